"""What a head does, in numbers: where its weight goes and how widely it spreads, each head for
itself.

A row that has no such key does not count: the first word has no word before it. No number is an
average over heads, since the mean of four sharp heads looks like one blurred head.

weights: (N, H, T, T), rows sum to 1. mask: bool (N, 1, T, T), True where query and key are real
words and the query may see the key, as attention_weights returns it: a row of padding has
weights, too, but means nothing.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from shared.attention_utils import attention_distance, attention_entropy, normalized_entropy

OFFSETS = {"self": 0, "previous": -1, "next": 1}
# Where they stand in what has one entry for each layer; with one layer they are the same.
ENDS = {"first layer": 0, "last layer": -1}


def _check(weights: Tensor, mask: Tensor) -> None:
    """Raises ValueError for other shapes than above."""
    length = weights.size(-1)
    expected = (len(weights), 1, length, length)
    square = weights.dim() == 4 and weights.size(-2) == length > 0
    if not square or tuple(mask.shape) != expected or mask.dtype != torch.bool:
        raise ValueError(
            "statistics need weights (N, H, T, T) and a bool mask (N, 1, T, T): "
            f"got {tuple(weights.shape)} and {mask.dtype} {tuple(mask.shape)}; "
            "add the axis of sentences with unsqueeze(0)"
        )


def _mean(values: Tensor, rows: Tensor) -> Tensor:
    """Mean over the rows that count -> (H,), NaN if none does.

    values: (N, H, R); rows: bool (N, 1, R).
    """
    return values.double().masked_fill(~rows, 0).sum(dim=(0, 2)) / rows.sum()  # (N, H, R) -> (H,)


def offset_weight(weights: Tensor, mask: Tensor, offset: int) -> Tensor:
    """Mean weight on the key `offset` places away (-1: the word before) -> (H,).

    Over the rows that have such a key.
    """
    _check(weights, mask)
    there = weights.diagonal(offset, dim1=-2, dim2=-1)  # (N, H, T, T) -> (N, H, rows with this key)
    return _mean(there, mask.diagonal(offset, dim1=-2, dim2=-1))


def first_weight(weights: Tensor, mask: Tensor) -> Tensor:
    """Mean weight on the first word -> (H,).

    The first row is skipped: under a causal mask it has no other choice.
    """
    _check(weights, mask)
    return _mean(weights[:, :, 1:, 0], mask[:, :, 1:, 0])


def is_largest(weights: Tensor, mask: Tensor) -> Tensor:
    """Whether a weight is the largest of its row, bool (N, H, T, T); of equal ones the first is."""
    _check(weights, mask)
    largest = weights.masked_fill(~mask, -1.0).argmax(dim=-1, keepdim=True)  # -> (N, H, T, 1)
    return largest == torch.arange(weights.size(-1), device=weights.device)


def offset_shares(weights: Tensor, mask: Tensor, offsets: Iterable[int]) -> dict[int, Tensor]:
    """Offset -> share of the rows with such a key whose largest weight lies there, (H,).

    Voita et al. 2019 ask for 0.9.
    """
    largest = is_largest(weights, mask)
    return {offset: offset_weight(largest, mask, offset) for offset in offsets}


def first_share(weights: Tensor, mask: Tensor) -> Tensor:
    """Share of the rows, the first aside, whose largest weight lies on the first word -> (H,)."""
    return first_weight(is_largest(weights, mask), mask)


def relation_weight(weights: Tensor, gold: Tensor) -> Tensor:
    """Mean weight on the gold key or keys, over the queries that have one -> (H,).

    gold: bool (N, T, T).
    """
    on_gold = weights.masked_fill(~gold.unsqueeze(1), 0).sum(dim=-1)  # (N, H, T, T) -> (N, H, T)
    return _mean(on_gold, gold.any(dim=-1).unsqueeze(1))


def effective_context(weights: Tensor, mask: Tensor) -> Tensor:
    """How many words a row draws on: e to its entropy, mean over the rows of real words -> (H,).

    n equal weights count as n words, and all weight on one word counts as one.
    """
    _check(weights, mask)
    words = attention_entropy(weights).exp()  # (N, H, T, T) -> (N, H, T)
    return _mean(words, mask.any(dim=-1))


def even_weights(mask: Tensor) -> Tensor:
    """The head that does not choose: 1/n on each key it may see -> (N, 1, T, T).

    It is the baseline of every mean weight.
    """
    return mask / mask.sum(dim=-1, keepdim=True).clamp(min=1)


def head_statistics(weights: Tensor, mask: Tensor) -> dict[str, Tensor]:
    """How widely a head spreads its weight: name -> one number for each head, (H,) in float64.

    The normalised numbers are 1 for even weights. The distance is divided by that of even weights
    on the keys which the query may see: without this a causal head looks more local than it is,
    since its early queries have no key far away. NaN: no row has a choice, in sentences of one
    word.
    """
    _check(weights, mask)
    rows = mask.any(dim=-1)  # (N, 1, T, T) -> (N, 1, T)
    choice = mask.sum(dim=-1) >= 2
    # NaN stands in rows without a choice, which are not counted: it only must not get into the sum.
    entropy = normalized_entropy(weights, mask).nan_to_num()  # (N, H, T, T) -> (N, H, T)
    distance = attention_distance(weights)
    even = attention_distance(even_weights(mask))  # (N, 1, T, T) -> (N, 1, T)
    return {
        "entropy": _mean(attention_entropy(weights), rows),
        "normalised entropy": _mean(entropy, choice),
        "distance": _mean(distance, rows),
        "normalised distance": _mean((distance / even).nan_to_num(), choice),
    }


def stacked(layers: list[dict[Any, Tensor]]) -> dict[Any, Tensor]:
    """The numbers of all layers as one tensor for each name: L times (H,) -> (L, H)."""
    numbers = {}
    for name in layers[0]:
        numbers[name] = torch.stack([layer[name] for layer in layers])
    return numbers


def layer_statistics(layers: list[Tensor], mask: Tensor) -> dict[str, Tensor]:
    """head_statistics of every layer: name -> one number for each head, (L, H)."""
    return stacked([head_statistics(weights, mask) for weights in layers])


def composed(a: Tensor, b: Tensor) -> float:
    """|AB| / |A| |B|, Frobenius norms: how much of what A gives B takes (Elhage et al. 2021)."""
    return ((a @ b).norm() / (a.norm() * b.norm())).item()


def added_by_heads(attention: nn.Module, heads: Tensor) -> Tensor:
    """head_h W_O^h, what each head adds to the output: (..., H, T, d_v) -> (..., H, T, d_model).

    attention: with num_heads and w_o, as MultiHeadAttention, whose output is their sum over heads
    plus the bias of w_o.
    """
    parts = attention.w_o.weight.T.unflatten(0, (attention.num_heads, -1))
    return heads @ parts  # (..., H, T, d_v) @ (H, d_v, d_model) -> (..., H, T, d_model)


def value_lengths(attention: nn.Module, x: Tensor) -> Tensor:
    """How long what each head adds would be with a weight of 1, ||(x_j W_V^h + b_V^h) W_O^h||.

    x (B, T, d_model) -> (B, H, T), Kobayashi et al. 2020. attention: as in added_by_heads.
    """
    value = attention.w_v(x).unflatten(-1, (attention.num_heads, -1))  # -> (B, T, H, d_v)
    return added_by_heads(attention, value.transpose(1, 2)).norm(dim=-1)
