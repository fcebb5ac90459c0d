"""Is the attention of phase 2 what a published language model computes?

The layers of a model are rebuilt with our MultiHeadAttention and the model's own norms and feed-forward network, and
run from the embeddings to the last layer, each on what ours before it put out. Every hidden state and every weight of
every head is compared, on a padded batch, in float64: in float32 two right programs drift apart, layer by layer.

    BERT, post-norm    x = norm(x + attention(x)),   x = norm(x + feed_forward(x))          (Devlin et al. 2019)
    GPT-2, pre-norm    x = x + attention(norm(x)),   x = x + feed_forward(norm(x)), causal  (Radford et al. 2019)

Of Llama and seven later kinds only the attention is exchanged, as decoders.py says. Run it to see MiniLM compared.
"""

import copy
from dataclasses import replace

import torch
from torch import Tensor, nn

from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase3_visualization.pretrained import decoders
from phase3_visualization.pretrained.language_model import TEXT, LanguageModel, Reading, load, read
from shared.attention_utils import causal_mask

BERTS = ("bert", "roberta", "xlm-roberta", "electra", "big_bird")  # they name their parts alike


class PostNormLayer(nn.Module):
    """A layer of a BERT with our attention in it."""

    def __init__(self, theirs: nn.Module, num_heads: int) -> None:
        super().__init__()
        projections, output = theirs.attention.self, theirs.attention.output
        self.attention = copy_into(
            num_heads,
            w_q=(projections.query.weight, projections.query.bias),
            w_k=(projections.key.weight, projections.key.bias),
            w_v=(projections.value.weight, projections.value.bias),
            w_o=(output.dense.weight, output.dense.bias),
        )
        self.attention_norm, self.feed_forward_norm = output.LayerNorm, theirs.output.LayerNorm
        self.feed_forward = nn.Sequential(theirs.intermediate, theirs.output.dense)  # with GELU, where ours has ReLU

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """x (B, T, d_model) -> output (B, T, d_model), weights (B, H, T, T)."""
        found, weights = self.attention(x, mask=mask)
        x = self.attention_norm(x + found)
        return self.feed_forward_norm(x + self.feed_forward(x)), weights


class PreNormLayer(nn.Module):
    """A layer of GPT-2 with our attention in it."""

    def __init__(self, theirs: nn.Module, num_heads: int) -> None:
        super().__init__()
        merged = theirs.attn.c_attn  # queries, keys and values in one, stored (d_model, 3 * d_model): x W, not W x
        w_q, w_k, w_v = zip(merged.weight.T.chunk(3), merged.bias.chunk(3), strict=True)  # 3 x (d_model, d_model)
        w_o = (theirs.attn.c_proj.weight.T, theirs.attn.c_proj.bias)
        self.attention = copy_into(num_heads, w_q=w_q, w_k=w_k, w_v=w_v, w_o=w_o)
        self.attention_norm, self.feed_forward_norm, self.feed_forward = theirs.ln_1, theirs.ln_2, theirs.mlp

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """x (B, T, d_model) -> output (B, T, d_model), weights (B, H, T, T)."""
        found, weights = self.attention(self.attention_norm(x), mask=mask)
        x = x + found
        return x + self.feed_forward(self.feed_forward_norm(x)), weights


@torch.no_grad()
def copy_into(num_heads: int, **parts: tuple[Tensor, Tensor]) -> MultiHeadAttention:
    """Our attention with the weight (d_model, d_model) and bias (d_model,) given for each of w_q, w_k, w_v, w_o."""
    bias = parts["w_o"][1]
    ours = MultiHeadAttention(len(bias), num_heads).to(bias).eval()  # on the device and in the precision of theirs
    for name, (weight, bias) in parts.items():
        getattr(ours, name).weight.copy_(weight)
        getattr(ours, name).bias.copy_(bias)
    return ours


def rebuilt_layers(language_model: LanguageModel) -> list[PostNormLayer | PreNormLayer]:
    """All layers with our attention. ValueError for a family whose layers are not known here."""
    model, config = language_model.model, language_model.model.config
    if config.model_type in BERTS:
        return [PostNormLayer(layer, config.num_attention_heads).eval() for layer in model.encoder.layer]
    if config.model_type == "gpt2":
        return [PreNormLayer(layer, config.num_attention_heads).eval() for layer in model.h]
    known = ", ".join((*BERTS, "gpt2", *decoders.KINDS))
    raise ValueError(f"{language_model.name} is of the kind {config.model_type}: this script knows {known}")


@torch.no_grad()
def differences(language_model: LanguageModel, reading: Reading) -> list[tuple[float, float]]:
    """Largest difference of states and of weights to the model's own, a pair for each layer; padding included."""
    x, length = reading.states[0], reading.states.size(2)
    layers, result = rebuilt_layers(language_model), []
    mask = reading.real[:, None, None, :]  # (B, T) -> (B, 1, 1, T): padding is hidden as a key
    if isinstance(layers[0], PreNormLayer):
        mask = mask & causal_mask(length)  # (B, 1, 1, T) & (T, T) -> (B, 1, T, T)
    for index, layer in enumerate(layers):
        x, weights = layer(x, mask)
        last = index == len(layers) - 1 and isinstance(layer, PreNormLayer)
        state = language_model.model.ln_f(x) if last else x  # GPT-2 reports its last state after one more norm
        pairs = ((state, reading.states[index + 1]), (weights, reading.weights[:, index]))
        result.append(tuple((ours - theirs).abs().max().item() for ours, theirs in pairs))
    return result


def in_float64(language_model: LanguageModel) -> LanguageModel:
    """A copy that computes with 15 digits."""
    return replace(language_model, model=copy.deepcopy(language_model.model).double())


def main() -> None:
    for name, language_model in (("float32", load()), ("float64", in_float64(load()))):
        reading = read(language_model, [TEXT, "Words!", "Short sentences are padded at the end."])
        states, weights = (max(layers) for layers in zip(*differences(language_model, reading), strict=True))
        print(f"{name}: hidden states differ by {states:.0e} at most, weights of all heads by {weights:.0e}")


if __name__ == "__main__":
    main()
