"""How can softmax go tile by tile, when one weight needs the sum of the whole row?

Of some keys three things are kept: the largest score, the total of e^(score - largest), and the
values added up with these weights. What is kept of some keys and of others can be merged: the
online softmax (Milakov & Gimelshein 2018). FlashAttention (Dao et al. 2022) merges tile after tile,
and for the backward pass makes the weights of a tile again.
"""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from shared.attention_checks import at_least_float32, check_attention_inputs, check_sizes

LOG2_E = math.log2(
    math.e
)  # a factor of the scores: e^score is then a power of 2, which takes less time
Kept = tuple[
    Tensor, Tensor, Tensor
]  # largest score and total (..., T_q, 1), weighted values (..., T_q, d_v)


def merge(one: Kept, other: Kept) -> Kept:
    """What is kept of some keys, and of others -> of all of them."""
    (largest_1, total_1, weighted_1), (largest_2, total_2, weighted_2) = one, other
    largest = torch.maximum(largest_1, largest_2)
    shrink_1 = torch.exp2(largest_1 - largest)  # one of the two is 1
    shrink_2 = torch.exp2(largest_2 - largest)
    total = torch.addcmul(total_1 * shrink_1, total_2, shrink_2)  # a + b * c at once
    return largest, total, torch.addcmul(weighted_1 * shrink_1, weighted_2, shrink_2)


def nothing(query: Tensor, d_v: int) -> Kept:
    """What is kept of no key. The largest score is finite, since -inf - -inf would be NaN."""
    total = query.new_zeros(*query.shape[:-1], 1)
    return (
        torch.full_like(total, torch.finfo(query.dtype).min),
        total,
        query.new_zeros(*query.shape[:-1], d_v),
    )


def finish(largest: Tensor, total: Tensor, weighted: Tensor) -> tuple[Tensor, Tensor]:
    """Output (..., T_q, d_v), 0 where no key was seen, and logsumexp (..., T_q, 1). With a key
    total is 1 or more.
    """
    return weighted / total.clamp(min=1.0), largest + total.clamp(min=1.0).log2()


def flash_by_loops(query: Tensor, key: Tensor, value: Tensor, *, causal: bool = False) -> Tensor:
    """The specification: one query at a time, keys merged one by one. (T_q, d_k), (T_k, d_k), (T_k,
    d_v); d_k > 0.
    """
    output = query.new_zeros(query.size(0), value.size(1))
    for i in range(query.size(0)):
        kept = nothing(query[i], value.size(1))
        for j in range(
            key.size(0) - (query.size(0) - 1 - i if causal else 0)
        ):  # the last query sees all keys
            score = torch.dot(query[i], key[j]) * LOG2_E / math.sqrt(key.size(1))
            kept = merge(kept, (score, torch.ones_like(score), value[j]))
        output[i], _ = finish(*kept)
    return output


def tiles(
    t_q: int, t_k: int, causal: bool, size: int
) -> Iterator[tuple[slice, list[tuple[slice, int]]]]:
    """Rows and, for each, the columns that they see and the diagonal of the tile: row i sees column
    i + diagonal.
    """
    for top in range(0, t_q, size):
        seen = (
            min(top + size, t_q) + t_k - t_q if causal else t_k
        )  # the last query stands at the last key
        columns = [slice(left, min(left + size, seen)) for left in range(0, seen, size)]
        yield (
            slice(top, top + size),
            [(x, top + t_k - t_q - x.start if causal else t_k) for x in columns],
        )


def tile_scores(query: Tensor, key: Tensor, diagonal: int) -> Tensor:
    """(..., rows, d_k), (..., columns, d_k) -> scores (..., rows, columns), -inf for keys after the
    query.
    """
    scores = query @ key.mT  # (..., rows, d_k) @ (..., d_k, columns) -> (..., rows, columns)
    if diagonal < key.size(-2) - 1:
        future = scores.new_full(scores.shape[-2:], -math.inf).triu(diagonal + 1)
        scores.tril_(diagonal).add_(
            future
        )  # tril_ sets 0, also where NaN was; masked_fill_ takes four times as long
    return scores


def attend(
    query: Tensor, key: Tensor, value: Tensor, causal: bool, size: int
) -> tuple[Tensor, Tensor]:
    """Output and logsumexp; (logsumexp, 1, output) is kept of these keys, too, and can be merged
    with others.
    """
    output, logsumexp = finish(*nothing(query, value.size(-1)))
    for rows, strip in tiles(query.size(-2), key.size(-2), causal, size):
        kept = nothing(query[..., rows, :], value.size(-1))
        for columns, diagonal in strip:
            scores = tile_scores(query[..., rows, :], key[..., columns, :], diagonal)
            largest = scores.amax(dim=-1, keepdim=True).clamp(
                min=torch.finfo(scores.dtype).min
            )  # all hidden: -inf
            weights = scores.sub_(
                largest
            ).exp2_()  # in place, while the tile is in the processor's cache
            kept = merge(
                kept, (largest, weights.sum(dim=-1, keepdim=True), weights @ value[..., columns, :])
            )
            del (
                scores,
                weights,
            )  # the next tile then takes the same memory, which is still in the cache
        output[..., rows, :], logsumexp[..., rows, :] = finish(*kept)
    return output, logsumexp


def gradients(saved: Sequence[Tensor], d_output: Tensor, causal: bool, size: int) -> list[Tensor]:
    """Of query, key and value, by way of these keys; saved: these three, and output and logsumexp."""
    query, key, value, output, logsumexp = saved
    d_query, d_key, d_value = (torch.zeros_like(x) for x in (query, key, value))
    for rows, strip in tiles(query.size(-2), key.size(-2), causal, size):
        q, d_o = query[..., rows, :], d_output[..., rows, :]
        row_sums = (d_o * output[..., rows, :]).sum(
            dim=-1, keepdim=True
        )  # of weight times its gradient, over all keys
        for columns, diagonal in strip:
            k, v = key[..., columns, :], value[..., columns, :]
            weights = tile_scores(q, k, diagonal).sub_(logsumexp[..., rows, :]).exp2_()
            d_scores = (d_o @ v.mT).sub_(row_sums).mul_(weights)  # softmax's derivative
            d_value[..., columns, :] += weights.mT @ d_o
            d_query[..., rows, :] += d_scores @ k
            d_key[..., columns, :] += d_scores.mT @ q
    return [
        d_query.div_(LOG2_E),
        d_key.div_(LOG2_E),
        d_value,
    ]  # the derivative of 2^x is 2^x / log2(e)


class FlashAttention(torch.autograd.Function):
    @staticmethod  # the queries come divided by √d_k and multiplied by log2(e)
    def forward(ctx, query: Tensor, key: Tensor, value: Tensor, causal: bool, size: int) -> Tensor:
        output, logsumexp = attend(query, key, value, causal, size)
        ctx.save_for_backward(query, key, value, output, logsumexp)
        ctx.tiling = causal, size
        return output

    @staticmethod
    def backward(ctx, d_output: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph=True
            raise RuntimeError(
                "tiles cannot be differentiated twice: take scaled_dot_product_attention for that"
            )
        return *gradients(ctx.saved_tensors, d_output.contiguous(), *ctx.tiling), None, None


def flash_attention(
    query: Tensor, key: Tensor, value: Tensor, *, causal: bool = False, block_size: int = 256
) -> Tensor:
    """Scaled dot-product attention in tiles: no memory that grows with T_q · T_k, forward and
    backward.

    query (..., T_q, d_k), key (..., T_k, d_k), value (..., T_k, d_v) -> output (..., T_q, d_v),
    without the weights. causal: the last query stands at the last key; one that sees no key gets 0.
    block_size: queries and keys in a tile. A hidden value that is NaN or inf reaches outputs (0 ·
    NaN), as in scaled_dot_product_attention. Inputs of 16 bits are summed in float32. Cannot be
    differentiated twice. Raises ValueError for wrong sizes.
    """
    check_sizes(1, block_size=block_size)
    leading = check_attention_inputs(query, key, value, None)
    q, k, v = (
        x.expand(*leading, *x.shape[-2:]).contiguous() for x in at_least_float32(query, key, value)
    )
    return FlashAttention.apply(q * LOG2_E / math.sqrt(q.size(-1)), k, v, causal, block_size).to(
        query.dtype
    )
