"""Which published models can compute with our attention? Nearly all that the library has.

The library asks for an attention function by its name (transformers.AttentionInterface). So ours is
registered under a name of its own. The model's own layers make queries, keys and values, turn them
by their positions and build the masks, and our function gets the four.

Two additions of published models change the softmax itself: a cap on the scores,
cap · tanh(score / cap), and a sink logit, one learned number a head that takes part in the softmax
and stands for nobody, so that a row of weights sums to less than 1. parity.py compares each kind of
tiny_model with the library's own attention.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from phase1_single_head.self_attention import masked_softmax, scaled_dot_product_attention
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase3_visualization.pretrained.language_model import SMOLLM2, LanguageModel, library
from shared.attention_checks import at_least_float32, check_attention_inputs

# query, key, value, mask -> output, weights
AttentionFunction = Callable[..., tuple[Tensor, Tensor]]

FROM_SCRATCH = "from scratch"  # the name by which the library finds our function
# What models hand to their attention and ours would not use, such as numbers added to the scores.
NOT_OURS = ("position_bias", "block_indices", "sinks")


def capped_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *,
    cap: float | None = None,
    sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """scaled_dot_product_attention with a cap on the scores, and sink logits of the heads, (H,).

    Shapes and errors are those of that function, which computes everything if neither is given.
    """
    if cap is None and sinks is None:
        return scaled_dot_product_attention(query, key, value, mask)
    check_attention_inputs(query, key, value, mask)
    dtype = query.dtype
    query, key, value = at_least_float32(query, key, value)
    scores = query @ key.mT / math.sqrt(query.size(-1))  # (B, H, T_q, d_k) @ (B, H, d_k, T_k)
    if cap is not None:
        scores = cap * torch.tanh(scores / cap)
    if sinks is not None:  # one more key, which everybody may see and whose value is 0
        nobody = sinks[:, None, None].expand(*scores.shape[:-1], 1)  # (H,) -> (B, H, T_q, 1)
        scores = torch.cat([scores, nobody], dim=-1)  # (B, H, T_q, T_k) -> (B, H, T_q, T_k + 1)
        if mask is not None:
            mask = F.pad(mask, (0, 1), value=True)  # (..., T_q, T_k) -> (..., T_q, T_k + 1)
    weights = masked_softmax(scores, mask)[..., : key.size(-2)]
    return (weights @ value).to(dtype), weights.to(dtype)


# ---- the library's models compute with it


@contextmanager
def attention_named(model: nn.Module, name: str) -> Iterator[None]:
    """Inside `with`, a model of the library asks for the attention function of this name."""
    before = model.config._attn_implementation
    model.set_attn_implementation(name)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


@contextmanager
def our_attention(model: nn.Module, attend: AttentionFunction = capped_attention) -> Iterator[None]:
    """Inside `with`, every layer of a model of the library computes its attention with `attend`.

    attend gets query, key, value (B, H, T, d) and a mask, bool (B, 1, T_q, T_k) or None, as phase
    1's function, and returns output and weights. Where a model has a cap or sinks, it also gets
    cap= or sinks=. Raises ValueError for a model that has layers without attention, or whose
    attention cannot be exchanged.
    """
    transformers = library()
    from transformers.masking_utils import sdpa_mask

    counts = {"passes": 0, "layers": 0}

    def called_by_library(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        softcap: float | None = None,
        s_aux: Tensor | None = None,
        **more: Any,
    ) -> tuple[Tensor, Tensor]:
        """query (B, H, T_q, d_k), key and value (B, H_kv, T_k, d) -> (B, T_q, H, d_v), weights."""
        counts["layers"] += 1
        for name in NOT_OURS:
            if more.get(name) is not None:
                raise cannot_serve(model, f"its layers hand {name} to their attention")
        shared_by = query.size(1) // key.size(1)  # query heads for each head of keys and values
        key = key.repeat_interleave(shared_by, dim=1)  # (B, H_kv, T_k, d_k) -> (B, H, T_k, d_k)
        value = value.repeat_interleave(shared_by, dim=1)
        if scaling is not None:  # ours divides by √d_k, and some models by another number
            query = query * (scaling * math.sqrt(query.size(-1)))
        additions = {}
        if softcap is not None:
            additions["cap"] = softcap
        if s_aux is not None:
            additions["sinks"] = s_aux
        output, weights = attend(query, key, value, attention_mask, **additions)
        return output.transpose(1, 2), weights  # (B, H, T_q, d_v) -> (B, T_q, H, d_v)

    def count_pass(*_: Any) -> None:
        counts["passes"] += 1

    def mask_for_library(*sizes: Any, **options: Any) -> Tensor | None:
        """The library's own mask, True = may attend. It leaves none out because it is causal."""
        options["allow_is_causal_skip"] = False
        return sdpa_mask(*sizes, **options)

    transformers.AttentionInterface.register(FROM_SCRATCH, called_by_library)
    transformers.AttentionMaskInterface.register(FROM_SCRATCH, mask_for_library)
    counting = model.register_forward_pre_hook(count_pass)
    try:
        with attention_named(model, FROM_SCRATCH):
            yield
    finally:
        counting.remove()
    layers = model.config.num_hidden_layers
    if counts["layers"] < counts["passes"] * layers:
        ours = counts["layers"] // counts["passes"]
        raise cannot_serve(model, f"only {ours} of its {layers} layers ask the library for theirs")


def cannot_serve(model: nn.Module, reason: str) -> ValueError:
    """The error for a model whose attention is not ours to exchange."""
    return ValueError(
        f"a model of kind {model.config.model_type} cannot compute with our attention: {reason}; "
        f"try --model {SMOLLM2}"
    )


# ---- our module, with the weights of a published layer

# Kinds of encoders whose layers name their parts alike.
BERTS = ("bert", "roberta", "xlm-roberta", "electra", "big_bird")


def modules_of(language_model: LanguageModel) -> list[MultiHeadAttention]:
    """Our MultiHeadAttention for each layer of a BERT, with the layer's own four matrices.

    Raises ValueError for a model of another kind.
    """
    model, config = language_model.model, language_model.model.config
    if config.model_type not in BERTS:
        raise ValueError(
            f"{language_model.name} is of kind {config.model_type}, and our module takes its "
            f"matrices from {', '.join(BERTS)}; try it without --model"
        )
    modules = []
    for layer in model.encoder.layer:
        projections, output = layer.attention.self, layer.attention.output
        module = MultiHeadAttention(output.dense.out_features, config.num_attention_heads)
        module.w_q = projections.query
        module.w_k = projections.key
        module.w_v = projections.value
        module.w_o = output.dense
        modules.append(module.eval())
    return modules


# ---- a small model of each kind, with random weights

SIZES = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "max_position_embeddings": 64,
    "pad_token_id": 1,
}
GROUPED = SIZES | {"num_key_value_heads": 2, "bos_token_id": 0, "eos_token_id": 1}
WIDE = GROUPED | {"head_dim": 10}  # heads that together are wider than the model
WINDOW = {"sliding_window": 3}
ONE_WINDOW = WINDOW | {"layer_types": ["sliding_attention", "full_attention"]}
MAY_SLIDE = {"use_sliding_window": True}
SCALED = {"query_pre_attn_scalar": 7}
EXPERTS = {"num_experts_per_tok": 2, "num_local_experts": 3}
LATENT = {
    "num_key_value_heads": 6,
    "q_lora_rank": 14,
    "kv_lora_rank": 10,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 6,
    "v_head_dim": 8,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 8,
    "first_k_dense_replace": 1,
}
# Kind, as configurations call it -> what a small one is made of.
MODEL_KINDS: dict[str, dict[str, Any]] = {
    "bert": SIZES,
    "roberta": SIZES,
    "electra": SIZES | {"embedding_size": 10},
    "distilbert": SIZES,
    "modernbert": SIZES | {"local_attention": 6, "cls_token_id": 0, "sep_token_id": 1},
    "gpt2": SIZES | {"bos_token_id": 0, "eos_token_id": 1},
    "opt": SIZES | {"ffn_dim": 16, "word_embed_proj_dim": 48},
    "llama": GROUPED,
    "mistral": WIDE | WINDOW,
    "mixtral": GROUPED | WINDOW | EXPERTS,
    "qwen2": GROUPED | ONE_WINDOW | MAY_SLIDE,
    "qwen3": WIDE | ONE_WINDOW | MAY_SLIDE,
    "gemma": WIDE,
    "gemma2": WIDE | ONE_WINDOW | SCALED | {"attn_logit_softcapping": 2.0},
    "gemma3_text": WIDE | ONE_WINDOW | SCALED,
    "olmo2": GROUPED,
    "phi3": GROUPED,
    "smollm3": GROUPED,
    "glm4": WIDE,
    "deepseek_v3": GROUPED | LATENT,
    "gpt_oss": WIDE | ONE_WINDOW | EXPERTS,
    "vit": SIZES | {"image_size": 20, "patch_size": 5},
}


def tiny_model(
    kind: str,
    seed: int = 0,
    *,
    head: str = "AutoModel",
    **more: Any,
) -> nn.Module:
    """Returns a random model of the library of two layers, in float32, ready to be asked.

    head: the library's class that makes it, such as "AutoModelForCausalLM". more: of its
    configuration. ValueError, one line with a way out, if the library is not installed.
    """
    transformers = library()
    config = transformers.AutoConfig.for_model(kind, **MODEL_KINDS.get(kind, GROUPED) | more)
    model = getattr(transformers, head).from_config(
        config, attn_implementation="eager", experts_implementation="eager"
    )
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():  # large enough that heads choose, biases not 0
        nn.init.normal_(parameter, std=0.4, generator=generator)
    return model.eval()


def main() -> None:
    query = torch.ones(1, 1, 1)  # (H, T_q, d_k): so the scores are the keys
    key = torch.tensor([[[0.0], [2.0], [9.0]]])  # (H, T_k, d_k)
    _, plain = capped_attention(query, key, key)
    _, capped = capped_attention(query, key, key, cap=3.0)
    _, with_sink = capped_attention(query, key, key, sinks=torch.tensor([9.0]))
    print("A query with the scores 0, 2 and 9 gives its keys these weights:")
    print("   as they are:     ", plain.flatten().numpy().round(3))
    print("   with a cap of 3: ", capped.flatten().numpy().round(3))
    print("   with a sink of 9:", with_sink.flatten().numpy().round(3))


if __name__ == "__main__":
    main()
