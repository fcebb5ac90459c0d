"""Our attention in a decoder of today: what has come round the core since GPT-2.

The core has stayed. Four things have come, each built in this course or a line of code:

    rotary positions     queries and keys are turned by where they stand            (Su et al. 2021; phase 1)
    grouped heads        several query heads share a head of keys and values        (Ainslie et al. 2023; phase 2)
    a window             some layers see only so many tokens back                   (Mistral, Gemma, gpt-oss)
    a norm               of each query and key before they are turned               (Qwen 3, Gemma 3)

and two that change the softmax itself, written out below: a cap on the scores (Gemma 2: cap · tanh(score / cap)), and a
sink logit, one learned number a head, that takes part in the softmax and stands for nobody (gpt-oss), so that the
weights of a row sum to less than 1.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from phase1_single_head.order.position_encodings import rotary
from phase1_single_head.self_attention import masked_softmax, scaled_dot_product_attention
from phase2_multi_head.multi_head_attention import merge_heads, split_heads
from phase3_visualization.pretrained.language_model import LanguageModel
from shared.attention_checks import at_least_float32, check_attention_inputs
from shared.attention_utils import streaming_mask

KINDS = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "gpt_oss")  # as configurations say it


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
    if model.config.model_type not in KINDS:
        raise ValueError(f"{language_model.name} is of kind {model.config.model_type}: known are {', '.join(KINDS)}")
    attentions = [layer.self_attn for layer in model.layers]
    try:
        for attention in attentions:  # the module stays, and with it the record of weights: only its call is ours
            attention.forward = partial(attend, attention, model, mask)
        yield
    finally:
        for attention in attentions:
            vars(attention).pop("forward", None)  # what is left is the one of its class
