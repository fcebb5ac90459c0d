"""Is our attention what published language models compute?

The layers of a BERT are rebuilt with our MultiHeadAttention and the model's own norms and feed-forward network, and run
from the embeddings to the last layer, each on what ours before it put out. Every hidden state and every weight of every
head is compared, on a padded batch, in float64: in float32 two right programs drift apart, layer by layer.

    x = norm(x + attention(x)),   x = norm(x + feed_forward(x))        post-norm (Devlin et al. 2019)

Of decoders only the attention is exchanged. Four things have come round the core since GPT-2:

    rotary positions     queries and keys are turned by where they stand            (Su et al. 2021; phase 1)
    grouped heads        several query heads share a head of keys and values        (Ainslie et al. 2023; phase 2)
    a window             some layers see only so many tokens back                   (Mistral, Gemma, gpt-oss)
    a norm               of each query and key before they are turned               (Qwen 3, Gemma 3)

and two that change the softmax itself, written out below: a cap on the scores (Gemma 2: cap · tanh(score / cap)), and a
sink logit, one learned number a head, that takes part in the softmax and stands for nobody (gpt-oss), so that the
weights of a row sum to less than 1. Run it to see MiniLM compared.
"""

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from phase1_single_head.order.position_encodings import rotary
from phase1_single_head.self_attention import masked_softmax, scaled_dot_product_attention
from phase2_multi_head.multi_head_attention import MultiHeadAttention, merge_heads, split_heads
from phase3_visualization.pretrained.language_model import TEXT, LanguageModel, Reading, load, read
from shared.attention_checks import at_least_float32, check_attention_inputs
from shared.attention_utils import streaming_mask

# as configurations call them; BERTs name their parts alike
BERTS = ("bert", "roberta", "xlm-roberta", "electra", "big_bird")
DECODERS = (
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma",
    "gemma2",
    "gemma3_text",
    "gpt_oss",
)  # as configurations say it


class PostNormLayer(nn.Module):
    """A layer of a BERT with our attention in it."""

    def __init__(self, theirs: nn.Module, num_heads: int) -> None:
        super().__init__()
        projections, output = theirs.attention.self, theirs.attention.output
        bias = output.dense.bias
        self.attention = MultiHeadAttention(len(bias), num_heads).to(bias)  # on the device, in the precision of theirs
        self.attention.w_q.load_state_dict(projections.query.state_dict())
        self.attention.w_k.load_state_dict(projections.key.state_dict())
        self.attention.w_v.load_state_dict(projections.value.state_dict())
        self.attention.w_o.load_state_dict(output.dense.state_dict())
        self.attention_norm, self.feed_forward_norm = output.LayerNorm, theirs.output.LayerNorm
        self.feed_forward = nn.Sequential(theirs.intermediate, theirs.output.dense)  # with GELU, where ours has ReLU

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """x (B, T, d_model) -> output (B, T, d_model), weights (B, H, T, T)."""
        found, weights = self.attention(x, mask=mask)
        x = self.attention_norm(x + found)
        return self.feed_forward_norm(x + self.feed_forward(x)), weights


def rebuilt_layers(language_model: LanguageModel) -> list[PostNormLayer]:
    """All layers with our attention. ValueError for a family whose layers are not known here."""
    model, config = language_model.model, language_model.model.config
    if config.model_type not in BERTS:
        raise ValueError(f"{language_model.name} is of the kind {config.model_type}: known are {', '.join(BERTS)}")
    return [PostNormLayer(layer, config.num_attention_heads).eval() for layer in model.encoder.layer]


@torch.no_grad()
def differences(language_model: LanguageModel, reading: Reading) -> list[tuple[float, float]]:
    """Largest difference of states and of weights to the model's own, a pair for each layer; padding included."""
    x, mask, result = reading.states[0], reading.real[:, None, None, :], []  # padding is hidden as a key: (B, 1, 1, T)
    for index, layer in enumerate(rebuilt_layers(language_model)):
        x, weights = layer(x, mask)
        pairs = ((x, reading.states[index + 1]), (weights, reading.weights[:, index]))
        result.append(tuple((ours - theirs).abs().max().item() for ours, theirs in pairs))
    return result


def in_float64(language_model: LanguageModel) -> LanguageModel:
    """A copy that computes with 15 digits."""
    return replace(language_model, model=copy.deepcopy(language_model.model).double())


# ---- decoders


def halves_to_pairs(x: Tensor) -> Tensor:
    """Features 0, d/2, 1, d/2 + 1, ...: these models turn feature i with i + d/2, and ours 2i with 2i + 1.

    In the same order for queries and keys, so no product changes: (..., d) -> (..., d).
    """
    return x.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2)  # (..., d) -> (..., 2, d / 2) -> (..., d)


def capped_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, cap: float | None, sinks: Tensor | None
) -> tuple[Tensor, Tensor]:
    """scaled_dot_product_attention with scores that stay below a cap, and a sink logit for each head, sinks (H,)."""
    check_attention_inputs(query, key, value, mask)
    dtype, (query, key, value) = query.dtype, at_least_float32(query, key, value)
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


def turned(x: Tensor, model: nn.Module, theirs: nn.Module) -> Tensor:
    """Queries or keys (B, H, T, d_k), turned at the speeds of this model, or of this kind of layer."""
    speeds, kind = model.rotary_emb, "" if hasattr(model.rotary_emb, "inv_freq") else f"{theirs.layer_type}_"
    frequencies, stretch = (getattr(speeds, kind + name) for name in ("inv_freq", "attention_scaling"))
    return stretch * rotary(halves_to_pairs(x), torch.arange(x.size(-2), device=x.device), frequencies)


def attend(theirs: nn.Module, model: nn.Module, mask: Tensor | None, hidden_states: Tensor, **_: Any) -> tuple:
    """x (B, T, d_model) -> output (B, T, d_model), weights (B, H, T, T), with the parameters of their module.

    What else the model hands over, its own masks and angles, is not used. Padding stands at the end, where the causal
    mask hides it from all real tokens.
    """
    shared_by, d_k = theirs.num_key_value_groups, theirs.head_dim
    projections = theirs.q_proj, theirs.k_proj, theirs.v_proj
    query, key, value = (
        split_heads(w(hidden_states), w.out_features // d_k) for w in projections
    )  # (B, H or G, T, d_k)
    if hasattr(theirs, "q_norm"):
        query, key = theirs.q_norm(query), theirs.k_norm(key)
    query, key = turned(query, model, theirs), turned(key, model, theirs)
    query = query * (theirs.scaling * math.sqrt(d_k))  # they may divide by another number than √d_k
    key, value = (x.repeat_interleave(shared_by, dim=1) for x in (key, value))  # (B, G, T, d_k) -> (B, H, T, d_k)
    if mask is None:
        window = getattr(theirs, "sliding_window", getattr(theirs.config, "sliding_window", None))
        mask = streaming_mask(query.size(-2), window, device=query.device)
    cap, sinks = getattr(theirs, "attn_logit_softcapping", None), getattr(theirs, "sinks", None)
    plain = cap is None and sinks is None
    core = scaled_dot_product_attention if plain else partial(capped_attention, cap=cap, sinks=sinks)
    heads, weights = core(query, key, value, mask)
    return theirs.o_proj(merge_heads(heads)), weights  # (B, H, T, d_k) -> (B, T, d_model)


@contextmanager
def our_attention(language_model: LanguageModel, mask: Tensor | None = None) -> Iterator[None]:
    """Inside `with`, every layer computes its attention as above; mask: bool (T, T), instead of the layer's own.

    Raises ValueError for other kinds of models.
    """
    model = language_model.model
    if model.config.model_type not in DECODERS:
        raise ValueError(f"{language_model.name} is of kind {model.config.model_type}: known are {', '.join(DECODERS)}")
    attentions = [layer.self_attn for layer in model.layers]
    try:
        for attention in attentions:  # the module stays, and with it the record of weights: only its call is ours
            attention.forward = partial(attend, attention, model, mask)
        yield
    finally:
        for attention in attentions:
            vars(attention).pop("forward", None)  # what is left is the one of its class


def main() -> None:
    for name, language_model in (("float32", load()), ("float64", in_float64(load()))):
        reading = read(language_model, [TEXT, "Words!", "Short sentences are padded at the end."])
        states, weights = (max(layers) for layers in zip(*differences(language_model, reading), strict=True))
        print(f"{name}: hidden states differ by {states:.0e} at most, weights of all heads by {weights:.0e}")


if __name__ == "__main__":
    main()
