"""How can softmax go tile by tile, when one weight needs the sum of the whole row?

Of some keys three things are kept: the largest score, the total of e^(score - largest), and the
values added up with these weights. What is kept of some keys can be merged with what is kept of
others: the online softmax (Milakov & Gimelshein 2018). FlashAttention (Dao et al. 2022) merges tile
after tile, and for the backward pass makes the weights of a tile again.

    python phase4_causal/long_texts/flash_attention.py
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from shared.attention_checks import at_least_float32, check_attention_inputs, check_sizes

# Scores are multiplied by it: e^score is then a power of 2, which a processor makes sooner.
LOG2_E = math.log2(math.e)


class Partial(NamedTuple):
    """Attention to some keys, for each query, before anything is divided."""

    largest: Tensor  # score: (..., T_q, 1)
    total: Tensor  # of the weights 2^(score - largest): (..., T_q, 1)
    weighted: Tensor  # values, added up with these weights: (..., T_q, d_v)


def merge_partials(one: Partial, other: Partial) -> Partial:
    """Attention to all keys, from that to some of them and that to the others."""
    largest = torch.maximum(one.largest, other.largest)
    shrink_one = torch.exp2(one.largest - largest)  # one of the two is 1
    shrink_other = torch.exp2(other.largest - largest)
    # addcmul(a, b, c) is a + b * c.
    total = torch.addcmul(one.total * shrink_one, other.total, shrink_other)
    weighted = torch.addcmul(one.weighted * shrink_one, other.weighted, shrink_other)
    return Partial(largest, total, weighted)


def empty_partial(query: Tensor, d_v: int) -> Partial:
    """Attention to no key. The largest score is finite, since -inf - -inf would be NaN."""
    lengths = query.shape[:-1]
    total = query.new_zeros(*lengths, 1)
    largest = torch.full_like(total, torch.finfo(query.dtype).min)
    return Partial(largest, total, query.new_zeros(*lengths, d_v))


def partial_softmax(scores: Tensor, value: Tensor) -> Partial:
    """Attention to n keys: scores (..., T_q, n) and value (..., n, d_v).

    scores: multiplied by LOG2_E; they are overwritten.
    """
    lowest = torch.finfo(scores.dtype).min  # in place of -inf, where all keys are hidden
    largest = scores.amax(dim=-1, keepdim=True).clamp(min=lowest)
    # In place, while the tile is in the processor's cache.
    weights = scores.sub_(largest).exp2_()
    return Partial(largest, weights.sum(dim=-1, keepdim=True), weights @ value)


def normalize(partial: Partial) -> tuple[Tensor, Tensor]:
    """Returns the output (..., T_q, d_v), 0 where no key was seen, and log2_total (..., T_q, 1)."""
    total = partial.total.clamp(min=1.0)  # it is 1 or more where a key was seen, else 0
    return partial.weighted / total, partial.largest + total.log2()


def flash_by_loops(query: Tensor, key: Tensor, value: Tensor, *, causal: bool = False) -> Tensor:
    """The specification: for one query at a time, keys are merged one by one.

    query (T_q, d_k), key (T_k, d_k), value (T_k, d_v), d_k > 0 -> output (T_q, d_v).
    """
    output = query.new_zeros(query.size(0), value.size(1))
    for i in range(query.size(0)):
        num_seen = key.size(0)
        if causal:  # the last query sees all keys, each query before it one key less
            num_seen -= query.size(0) - 1 - i
        partial = empty_partial(query[i], value.size(1))
        for j in range(num_seen):
            score = torch.dot(query[i], key[j]) * LOG2_E / math.sqrt(key.size(1))
            alone = Partial(score, torch.ones_like(score), value[j])  # this key alone
            partial = merge_partials(partial, alone)
        output[i], _ = normalize(partial)
    return output


class Tile(NamedTuple):
    """Some keys, for some queries that follow each other."""

    columns: slice  # the keys
    diagonal: int | None  # row i sees the columns up to i + diagonal; None: it sees them all


def strips(t_q: int, t_k: int, causal: bool, size: int) -> Iterator[tuple[slice, list[Tile]]]:
    """Yields a strip of the table of scores: some rows (queries), and the tiles that they see."""
    shift = t_k - t_q  # query i stands at key i + shift
    for top in range(0, t_q, size):
        bottom = min(top + size, t_q)
        seen = bottom + shift if causal else t_k
        tiles = []
        for left in range(0, seen, size):
            right = min(left + size, seen)
            # A tile left of the first row's own key has no future in it.
            is_cut = causal and right - 1 > top + shift
            diagonal = top + shift - left if is_cut else None
            tiles.append(Tile(slice(left, right), diagonal))
        yield slice(top, bottom), tiles


def tile_scores(query: Tensor, key: Tensor, diagonal: int | None) -> Tensor:
    """Scores (..., rows, columns) of a tile, -inf for keys after the query.

    query (..., rows, d_k), key (..., columns, d_k), diagonal: of the Tile.
    """
    scores = query @ key.mT  # (..., rows, d_k) @ (..., d_k, columns) -> (..., rows, columns)
    if diagonal is not None:
        future = scores.new_full(scores.shape[-2:], -math.inf).triu(diagonal + 1)
        # tril_ sets 0, also where NaN was. One call of masked_fill_ takes four times as long.
        scores.tril_(diagonal).add_(future)
    return scores


def attend_in_tiles(
    query: Tensor, key: Tensor, value: Tensor, causal: bool, size: int
) -> tuple[Tensor, Tensor]:
    """Returns the output, and for each query log2 of the sum of 2^score over its keys.

    The queries were divided by √d_k and multiplied by log2(e). With that sum, the weights of a tile
    can be made again: 2^(score - log2_total).
    """
    lengths = query.shape[:-1]
    output = query.new_empty(*lengths, value.size(-1))
    log2_total = query.new_empty(*lengths, 1)
    for rows, tiles in strips(query.size(-2), key.size(-2), causal, size):
        q = query[..., rows, :]
        partial = empty_partial(q, value.size(-1))
        for columns, diagonal in tiles:
            k = key[..., columns, :]
            v = value[..., columns, :]
            # The scores get no name, so the next tile takes their memory, which is in the cache.
            partial = merge_partials(partial, partial_softmax(tile_scores(q, k, diagonal), v))
        output[..., rows, :], log2_total[..., rows, :] = normalize(partial)
    return output, log2_total


def gradients(saved: Sequence[Tensor], d_output: Tensor, causal: bool, size: int) -> list[Tensor]:
    """Returns the gradients of query, key and value, by way of these keys.

    saved: query, key and value as attend_in_tiles takes them, output and log2_total of all keys.
    """
    query, key, value, output, log2_total = saved
    d_query = torch.zeros_like(query)
    d_key = torch.zeros_like(key)
    d_value = torch.zeros_like(value)
    for rows, tiles in strips(query.size(-2), key.size(-2), causal, size):
        q = query[..., rows, :]
        d_o = d_output[..., rows, :]
        # The sum of each weight times its gradient, over all keys of a row.
        row_sums = (d_o * output[..., rows, :]).sum(dim=-1, keepdim=True)
        for columns, diagonal in tiles:
            k = key[..., columns, :]
            v = value[..., columns, :]
            scores = tile_scores(q, k, diagonal)
            weights = scores.sub_(log2_total[..., rows, :]).exp2_()
            d_value[..., columns, :] += weights.mT @ d_o
            d_weights = d_o @ v.mT
            d_scores = d_weights.sub_(row_sums).mul_(weights)  # softmax's derivative
            d_query[..., rows, :] += d_scores @ k
            d_key[..., columns, :] += d_scores.mT @ q
    # d_scores belong to softmax's own scores. Ours are LOG2_E times these, so the gradients of what
    # they are made of are smaller by it. Values have no part in the scores.
    return [d_query.div_(LOG2_E), d_key.div_(LOG2_E), d_value]


class FlashAttention(torch.autograd.Function):
    """Both passes in tiles; query, key and value as attend_in_tiles takes them."""

    @staticmethod
    def forward(ctx, query: Tensor, key: Tensor, value: Tensor, causal: bool, size: int) -> Tensor:
        output, log2_total = attend_in_tiles(query, key, value, causal, size)
        ctx.save_for_backward(query, key, value, output, log2_total)
        ctx.tiling = causal, size
        return output

    @staticmethod
    def backward(ctx, d_output: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph=True, of which once_differentiable says nothing
            way_out = "take scaled_dot_product_attention for that"
            raise RuntimeError(f"tiles cannot be differentiated twice: {way_out}")
        return *gradients(ctx.saved_tensors, d_output.contiguous(), *ctx.tiling), None, None


def flash_attention(
    query: Tensor, key: Tensor, value: Tensor, *, causal: bool = False, block_size: int = 256
) -> Tensor:
    """Scaled dot-product attention in tiles; forward and backward no memory grows with T_q · T_k.

    query (..., T_q, d_k), key (..., T_k, d_k), value (..., T_k, d_v) -> output (..., T_q, d_v),
    without the weights. causal: the last query stands at the last key; one that sees no key gets 0.
    block_size: queries and keys in a tile. A hidden value that is NaN or inf reaches outputs, as in
    scaled_dot_product_attention (0 · NaN is NaN). Inputs of 16 bits are computed in float32. Cannot
    be differentiated twice. Raises ValueError for wrong sizes.
    """
    check_sizes(1, block_size=block_size)
    leading = check_attention_inputs(query, key, value, None)
    inputs = []
    for x in at_least_float32(query, key, value):
        inputs.append(x.expand(*leading, *x.shape[-2:]).contiguous())
    q, k, v = inputs
    q = q * LOG2_E / math.sqrt(q.size(-1))
    output = FlashAttention.apply(q, k, v, causal, block_size)
    return output.to(query.dtype)


def main() -> None:
    scores = torch.tensor([1.0, 2, 4, 0])
    value = torch.tensor([[3.0], [1], [5], [2]])
    print("One query, four keys with scores 1, 2, 4, 0 and values 3, 1, 5, 2:")
    first = partial_softmax(scores[:2] * LOG2_E, value[:2])
    second = partial_softmax(scores[2:] * LOG2_E, value[2:])
    tiles = {"tile 1": first, "tile 2": second, "merged": merge_partials(first, second)}
    for name, partial in tiles.items():
        largest, total, weighted = torch.cat(partial).tolist()
        print(f"   {name}: largest score {largest / LOG2_E:.0f}, total {total:.3f}, ", end="")
        print(f"values added up {weighted:.3f}")
    expected = scores.softmax(dim=0) @ value
    print(f"   output {weighted / total:.2f}, and softmax of all four {expected.item():.2f}")


if __name__ == "__main__":
    main()
