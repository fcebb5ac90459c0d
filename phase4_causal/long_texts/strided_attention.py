"""Attention to every stride-th word, counted from one's own, without computing the rest (Child et al. 2019).

A mask hides scores that were computed anyway. Here positions with the same remainder modulo the stride are brought
together by a reshape, (..., T, d) to (..., stride, T / stride, d): each remainder is a short text of its own, on which
attention is the usual one. That makes T² / stride scores. Where this leads after some layers: sparse_reach.py.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from phase1_single_head.self_attention import scaled_dot_product_attention
from shared.attention_checks import check_attention_inputs, check_sizes


def by_remainder(x: Tensor, stride: int) -> Tensor:
    """Positions with the same remainder together; zeros in front fill up to whole strides, so the ends stay aligned."""
    whole = F.pad(x, (0, 0, -x.size(-2) % stride, 0))  # (..., T, d) -> (..., n stride, d)
    return whole.unflatten(-2, (-1, stride)).transpose(-3, -2)  # (..., n stride, d) -> (..., stride, n, d)


def strided_attention(query: Tensor, key: Tensor, value: Tensor, *, stride: int, causal: bool = False) -> Tensor:
    """Equal to attention with strided_mask, with causal=True & causal_mask, in time and memory O(T² / stride).

    query (..., T_q, d_k), key (..., T_k, d_k), value (..., T_k, d_v) -> output (..., T_q, d_v). The last query stands
    at the last key; one that sees no key gets 0. Raises ValueError for a stride below 1 and sizes that do not fit.
    """
    check_sizes(1, stride=stride)
    check_attention_inputs(query, key, value, None)
    filling = -key.size(-2) % stride
    queries, keys, values = (by_remainder(x, stride) for x in (query, key, value))
    mask = torch.ones(stride, queries.size(-2), keys.size(-2), dtype=torch.bool, device=query.device)
    mask[:filling, :, :1] = False  # the first key of the first remainders is no key
    mask = mask.tril(keys.size(-2) - queries.size(-2)) if causal else mask  # the last query stands at the last key
    mask = mask.view(*[1] * (max(queries.dim(), keys.dim(), values.dim()) - 3), *mask.shape)  # -> an axis for each
    output, _ = scaled_dot_product_attention(queries, keys, values, mask)
    output = output.transpose(-3, -2).flatten(-3, -2)  # (..., stride, n, d_v) -> (..., n stride, d_v)
    return output[..., output.size(-2) - query.size(-2) :, :]  # -> (..., T_q, d_v)
