"""What must the engine know to write with a published model?

A Llama is cut as the toy transformer is (packed_toy.py), where attention stands. Four things have
become common since the Transformer of 2017:

    RMSNorm           a norm that takes no mean away             (Zhang & Sennrich 2019)
    rotary positions  queries and keys are turned                (Su et al. 2021)
    grouped queries   several query heads share a head of keys   (Ainslie et al. 2023)
    SwiGLU            a gate in the feed-forward network         (Shazeer 2020)

The matrices are those of the library's model; what is computed with them is written here.

    python phase4_causal/serving/packed_llama.py
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from phase1_single_head.order.position_encodings import rotary
from phase2_multi_head.block.qk_norm import rms_norm
from phase3_visualization.pretrained.language_model import LanguageModel, library


def halves_to_pairs(x: Tensor) -> Tensor:
    """Puts features in the order 0, d/2, 1, d/2 + 1, ...: (..., d) -> (..., d).

    These models turn feature i with i + d/2, and ours 2i with 2i + 1. Queries and keys have the
    same order, so no product changes.
    """
    halves = x.unflatten(-1, (2, -1))  # (..., d) -> (..., 2, d / 2)
    return halves.transpose(-1, -2).flatten(-2)  # -> (..., d / 2, 2) -> (..., d)


def normed_as(theirs: nn.Module, x: Tensor) -> Tensor:
    """Our RMSNorm with the factors of the library's, x (N, d) -> (N, d)."""
    return rms_norm(x, theirs.weight, theirs.variance_epsilon)


class PackedLlamaLayer:
    """A layer of a Llama. angles: the library's module, which knows how fast each pair turns."""

    def __init__(self, theirs: nn.Module, angles: nn.Module) -> None:
        self.theirs = theirs
        self.angles = angles

    def project(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x (N, d_model) -> query (N, H, d_k), key and value (N, H_kv, d_k)."""
        attention = self.theirs.self_attn
        by_head = (-1, attention.head_dim)
        normed = normed_as(self.theirs.input_layernorm, x)
        query = attention.q_proj(normed).unflatten(1, by_head)  # (N, d_model) -> (N, H, d_k)
        key = attention.k_proj(normed).unflatten(1, by_head)  # (N, d_model) -> (N, H_kv, d_k)
        value = attention.v_proj(normed).unflatten(1, by_head)
        return self.turned(query, positions), self.turned(key, positions), value

    def turned(self, x: Tensor, positions: Tensor) -> Tensor:
        """Queries or keys (N, heads, d_k), each turned by its word's position in its own text."""
        by_head = halves_to_pairs(x).transpose(0, 1)  # (N, heads, d_k) -> (heads, N, d_k)
        turned = rotary(by_head, positions, self.angles.inv_freq)
        return self.angles.attention_scaling * turned.transpose(0, 1)  # -> (N, heads, d_k)

    def finish(self, x: Tensor, heads: Tensor) -> Tensor:
        """x (N, d_model), and what its heads have found (N, H, d_k) -> the layer's output."""
        x = x + self.theirs.self_attn.o_proj(heads.flatten(1))  # (N, H, d_k) -> (N, d_model)
        normed = normed_as(self.theirs.post_attention_layernorm, x)
        network = self.theirs.mlp
        gate = F.silu(network.gate_proj(normed))  # (N, d_model) -> (N, d_hidden)
        return x + network.down_proj(gate * network.up_proj(normed))


class PackedLlama:
    """A Llama of the library, such as SmolLM2, as the engine takes it.

    Raises ValueError for a model of another kind, and for one whose output matrix is not that of
    its words: it is not loaded with the layers.
    """

    def __init__(self, language_model: LanguageModel) -> None:
        model = language_model.model
        kind = model.config.model_type
        if kind != "llama":
            raise ValueError(
                f"{language_model.name} is of kind {kind}, and the engine writes with a llama, "
                "such as smollm2"
            )
        if not model.config.tie_word_embeddings:
            raise ValueError(
                f"{language_model.name} has an output matrix of its own, which is not loaded here; "
                "try smollm2, which has one matrix for both"
            )
        self.model = model
        self.tokenizer = language_model.tokenizer
        self.layers = [PackedLlamaLayer(layer, model.rotary_emb) for layer in model.layers]
        self.embedding = model.embed_tokens.weight.detach()
        self.num_kv_heads = model.config.num_key_value_heads
        self.d_k = model.layers[0].self_attn.head_dim
        self.num_positions = model.config.max_position_embeddings
        self.end_id = self.tokenizer.eos_token_id

    def encode(self, prompt: str) -> list[int]:
        """The tokens of a prompt. Raises ValueError for an empty one."""
        tokens = self.tokenizer(prompt)["input_ids"]
        if not tokens:
            raise ValueError("the prompt is empty: a published model needs a word to begin with")
        return tokens

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """tokens (N,) -> (N, d_model). Positions are not added: queries and keys are turned."""
        return self.embedding[tokens]

    def logits(self, x: Tensor) -> Tensor:
        """x (N, d_model) -> (N, V)."""
        return normed_as(self.model.norm, x) @ self.embedding.T


@torch.no_grad()
def greedy_by_library(packed: PackedLlama, prompt: str, limit: int) -> list[int]:
    """All words of one text, `limit` at most, as the library's own `generate` writes them."""
    transformers = library()
    model = packed.model
    with torch.device("meta"):  # it needs no numbers of its own
        whole = transformers.LlamaForCausalLM(model.config)
    whole.model = model
    whole.lm_head.weight = model.embed_tokens.weight
    tokens = torch.tensor([packed.encode(prompt)])
    written = whole.generate(
        tokens,
        max_length=limit,
        do_sample=False,
        use_cache=True,
        eos_token_id=packed.end_id,
    )
    found = written[0].tolist()
    return found[:-1] if found[-1] == packed.end_id else found


def main() -> None:
    x = torch.tensor([[3.0, 4.0, 5.0, 6.0]])
    print("A vector, and what two norms make of it:", x.tolist()[0])
    layer_norm = F.layer_norm(x, (4,))[0]
    print("   LayerNorm, whose mean is 0:  ", " ".join(f"{each:5.2f}" for each in layer_norm))
    rms = rms_norm(x, torch.ones(4), epsilon=0.0)[0]
    print("   RMSNorm, which keeps signs:  ", " ".join(f"{each:5.2f}" for each in rms))


if __name__ == "__main__":
    main()
