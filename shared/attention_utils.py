"""Masks, and the numbers that describe an attention pattern (its entropy, its distance, rollout).

Masks are predicates on positions, built for the lengths at hand: torch.bool, True = this query may
attend to this key. That is the convention of F.scaled_dot_product_attention; nn.MultiheadAttention
means the opposite, so pass it ~mask. Combine masks with &. When query and key lengths differ, the
last query stands at the last key, as in generation with a cache: query i has position
i + T_k - T_q.

Statistics take weights (..., T_q, T_k) and answer per query, (..., T_q): average over queries
afterwards, and never average heads before, since the mean of four sharp heads is a blurred one.
"""

import math

import torch
from torch import Tensor

from shared.attention_checks import check_sizes

Device = torch.device | str | None


def _positions(query_length: int, key_length: int, device: Device = None) -> tuple[Tensor, Tensor]:
    """Positions of queries (T_q, 1) and keys (1, T_k), the last query aligned with the last key."""
    check_sizes(1, T_q=query_length, T_k=key_length)
    query_position = torch.arange(key_length - query_length, key_length, device=device)
    key_position = torch.arange(key_length, device=device)
    return query_position[:, None], key_position[None, :]


def causal_mask(
    query_length: int, key_length: int | None = None, *, device: Device = None
) -> Tensor:
    """May attend to itself and to what comes before -> bool (T_q, T_k). T_k defaults to T_q.

    causal_mask(3)       causal_mask(2, 5): the last query sees the last key
    1 0 0                1 1 1 1 0
    1 1 0                1 1 1 1 1
    1 1 1

    Beware: is_causal=True of F.scaled_dot_product_attention aligns the first query with the first
    key instead.
    """
    key_length = query_length if key_length is None else key_length
    query_position, key_position = _positions(query_length, key_length, device)
    return key_position <= query_position


def also_causal(x: Tensor, mask: Tensor | None) -> Tensor:
    """The causal mask of x (B, T, d_model) and, unless it is None, a further mask: both must allow.

    Returns a bool mask (T, T), or with the axes of the further one.
    """
    causal = causal_mask(x.size(1), device=x.device)
    return causal if mask is None else causal & mask


def padding_mask(lengths: Tensor, key_length: int) -> Tensor:
    """May attend to real tokens, not to padding at the end -> bool (B, 1, 1, T_k).

    It holds for every head and every query. lengths: (B,) integers, the number of real tokens of
    each sequence. Only keys are hidden: the rows of padded queries still produce output, which must
    stay out of the loss.

    The two axes of size 1 matter. A mask (B, T_k) is read as (T_q, T_k), one row for each query,
    and where B happens to be T_q nothing can notice it: the second sentence's padding would be
    hidden from the second word of every sentence.
    """
    check_sizes(0, T_k=key_length)
    if lengths.dim() != 1 or lengths.is_floating_point() or lengths.dtype == torch.bool:
        received = f"{lengths.dtype} of shape {tuple(lengths.shape)}"
        raise ValueError(f"lengths must be integers of shape (B,): got {received}")
    if ((lengths < 0) | (lengths > key_length)).any():
        raise ValueError(f"lengths must lie between 0 and T_k={key_length}: got {lengths.tolist()}")
    is_real = torch.arange(key_length, device=lengths.device) < lengths[:, None]  # -> (B, T_k)
    return is_real[:, None, None, :]


def document_mask(text: Tensor) -> Tensor:
    """May attend within the same text -> bool (..., T, T).

    For texts that stand one behind the other in one row: with causal_mask it is the training mask
    of language models. text: (..., T), which text each position belongs to.
    """
    return text[..., :, None] == text[..., None, :]


def local_mask(query_length: int, key_length: int, window: int, *, device: Device = None) -> Tensor:
    """May attend up to `window` positions away, to both sides -> bool (T_q, T_k).

    So a query sees 2 * window + 1 keys at most.
    """
    check_sizes(0, window=window)
    query_position, key_position = _positions(query_length, key_length, device)
    return (key_position - query_position).abs() <= window


def strided_mask(
    query_length: int, key_length: int, stride: int, *, device: Device = None
) -> Tensor:
    """May attend to every stride-th position, counted from itself -> bool (T_q, T_k)."""
    check_sizes(1, stride=stride)
    query_position, key_position = _positions(query_length, key_length, device)
    return (key_position - query_position) % stride == 0


def attention_entropy(weights: Tensor) -> Tensor:
    """Entropy of each query's weights in nats -> (..., T_q).

    H_i = - sum_j a_ij ln a_ij with 0 ln 0 = 0 (Ghader & Monz 2017). It is 0 if all weight lies on
    one key, and ln n for n equal weights.
    """
    return torch.special.entr(weights).sum(dim=-1)  # (..., T_q, T_k) -> (..., T_q)


def normalized_entropy(weights: Tensor, mask: Tensor | None = None) -> Tensor:
    """Entropy over the largest that the row can reach, ln(number of keys it may see) -> (..., T_q).

    So it lies in [0, 1]. A row that sees fewer than two keys has no choice, hence no value: NaN.
    Average with nanmean. Without this division a causal head looks sharper than it is, because its
    early rows see few keys.
    """
    visible = torch.ones_like(weights) if mask is None else mask.expand(weights.shape)
    num_visible = visible.sum(dim=-1)  # (..., T_q, T_k) -> (..., T_q)
    limit = num_visible.clamp(min=1).to(weights.dtype).log()
    return (attention_entropy(weights) / limit).masked_fill(num_visible < 2, math.nan)


def attention_distance(weights: Tensor) -> Tensor:
    """Mean distance |i - j| to the attended keys, in positions -> (..., T_q) (Vig & Belinkov 2019).

    Compare with uniform attention, averaged over rows: (n² - 1) / 3n without a mask, (n - 1) / 4
    under a causal one.
    """
    query_position, key_position = _positions(*weights.shape[-2:], weights.device)
    distance = (query_position - key_position).abs()
    return (weights * distance).sum(dim=-1)  # (..., T_q, T_k) -> (..., T_q)


def attention_rollout(weights: list[Tensor]) -> Tensor:
    """How much of each input position is in each output position after all layers -> (..., T, T).

    weights: one tensor (..., H, T, T) per layer, the first layer first. Heads are averaged and half
    of every row is the residual connection: R_l = (A_l / 2 + I / 2) R_(l-1) (Abnar & Zuidema 2020).
    Rows sum to 1.
    """
    if not weights:
        raise ValueError("rollout needs the weights of at least one layer: got an empty list")
    identity = torch.eye(weights[0].size(-1)).to(weights[0])
    rollout = identity
    for layer in weights:
        rollout = (layer.mean(dim=-3) + identity) / 2 @ rollout  # -> (..., T, T)
    return rollout
