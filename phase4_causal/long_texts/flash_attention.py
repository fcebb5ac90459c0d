"""How can softmax go tile by tile, when one weight needs the sum of the whole row?

Softmax needs the largest score and the sum of a whole row before it can give one weight. The online softmax (Milakov &
Gimelshein 2018) gets by with some keys at a time. Of these it keeps the largest score, and two sums with that score
taken off; what is kept of some keys and of others can be merged, whatever their number:

    largest = max(largest_1, largest_2)     shrink_1 = exp(largest_1 - largest), and shrink_2 alike: one of them is 1
    total   = total_1 · shrink_1 + total_2 · shrink_2
    sum     = sum_1   · shrink_1 + sum_2   · shrink_2                     at the end: output = sum / total

Flash-decoding (keys of one long text shared out among processors) and ring attention (among devices) merge like this.

FlashAttention (Dao et al. 2022; Dao 2023) does so with a tile of queries and keys at a time, so that the scores at hand
stay small and near the processor. For the backward pass it keeps the output and one number for each query,
logsumexp = largest + log(total), and computes the weights again: exp(score - logsumexp).

OnlineSoftmax below is that in readable form. The function flash_attention takes that of fast_tiles.py, which gets by
without the largest score, and this one for the few queries where that cannot be done.

Run it to see two tiles worked by hand. Compared with the plain function, and timed, by long_context.py.

    python phase4_causal/long_texts/flash_attention.py
"""

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from phase4_causal.long_texts.fast_tiles import (
    TILE,
    Tiling,
    add_gradients,
    exp_or_zero,
    fast_softmax,
    for_heads,
    tile_size,
    tiles,
)
from shared import cli
from shared.attention_checks import at_least_float32, check_attention_inputs

Kept = tuple[Tensor, Tensor, Tensor]  # of some keys: largest score, sum of e^(score - largest), the same times values
SCORES, VALUES = (1, 2, 4, 0), (3, 1, 5, 2)  # of the worked example: the second tile brings a larger score


def merge(one: Kept, other: Kept) -> Kept:
    """What is kept of some keys, and of others -> of all of them."""
    (largest_1, total_1, sum_1), (largest_2, total_2, sum_2) = one, other
    largest = torch.maximum(largest_1, largest_2)
    shrink_1 = torch.exp(largest_1 - largest)  # 1 for the side with the larger score
    shrink_2 = torch.exp(largest_2 - largest)
    return largest, total_1 * shrink_1 + total_2 * shrink_2, sum_1 * shrink_1 + sum_2 * shrink_2


def flash_by_loops(query: Tensor, key: Tensor, value: Tensor, *, causal: bool = False) -> Tensor:
    """The specification: one query at a time, and its keys merged one by one. (T_q, d_k), (T_k, d_k), (T_k, d_v)."""
    output = query.new_zeros(query.size(0), value.size(1))
    shift = key.size(0) - query.size(0)  # the last query stands at the last key
    for i in range(query.size(0)):
        kept = query.new_tensor(-math.inf), query.new_zeros(()), torch.zeros_like(value[0])  # of no key at all
        for j in range(key.size(0)):
            if causal and j > i + shift:
                break
            score = torch.dot(query[i], key[j]) / math.sqrt(key.size(1))
            kept = merge(kept, (score, torch.ones_like(score), value[j]))  # of one key: e^(score - score) = 1
        _, total, weighted = kept
        if total:  # else the query sees no key, and its output stays 0
            output[i] = weighted / total
    return output


def two_tiles() -> list[str]:
    """One query and four keys worked by hand, in two tiles that are merged; the last line asks softmax itself."""
    scores, values = (torch.tensor(numbers, dtype=torch.float64) for numbers in (SCORES, VALUES))
    row = "{:8}{:9}{:32}{}".format
    lines, kept = [row("", "largest", "total", "sum, weighted by the values")], []
    for number, (s, v) in enumerate(zip(scores.split(2), values.split(2), strict=True), start=1):
        largest = s.max()
        numerators = torch.exp(s - largest)
        total, weighted = numerators.sum(), numerators @ v
        kept.append((largest, total, weighted))
        powers = [f"e^({score:g}-{largest:g})" for score in s]
        terms = [f"{each:g}·{power}" for each, power in zip(v, powers, strict=True)]
        sums = (f"{' + '.join(powers)} = {total:.3f}", f"{' + '.join(terms)} = {weighted:.3f}")
        lines.append(row(f"tile {number}", f"{largest:g}", *sums))
    one, two = kept
    shrink = torch.exp(one[0] - two[0])
    largest, *merged = merge(one, two)
    sums = [f"{shrink:.3f}·{a:.3f} + {b:.3f} = {c:.3f}" for a, b, c in zip(one[1:], two[1:], merged, strict=True)]
    total, weighted = merged
    weights = scores.softmax(dim=0)
    terms = [f"{weight:.3f}·{each:g}" for weight, each in zip(weights, values, strict=True)]
    return [
        *lines,
        row("merged", f"{largest:g}", *sums),
        "",
        f"correction of tile 1   e^({one[0]:g}-{two[0]:g}) = {shrink:.3f}",
        f"output                 {weighted:.3f} / {total:.3f} = {weighted / total:.2f}",
        f"softmax of all four    {' + '.join(terms)} = {weights @ values:.2f}",
    ]


def positions(query: Tensor, key: Tensor) -> tuple[range, range]:
    """Where queries (N, T_q, d_k) and keys (N, T_k, d_k) stand in the text: the last query stands at the last key."""
    return range(key.size(1) - query.size(1), key.size(1)), range(key.size(1))


def hidden_keys(query_at: range, key_at: range, device: torch.device) -> Tensor:
    """The future: bool (T_q, T_k), True where a key stands after the query."""
    queries, keys = (torch.arange(x.start, x.stop, x.step, device=device) for x in (query_at, key_at))
    return keys > queries[:, None]


def score_tiles(
    scaled: Tensor, key: Tensor, where: tuple[range, range], causal: bool, size: tuple[int, int]
) -> Iterator[tuple[slice, slice, Tensor]]:
    """Rows, columns and scores (N, rows, columns) of each tile, the future hidden with -inf.

    scaled: queries (N, T_q, d_k), divided by √d_k. where: their positions, and those of the keys (N, T_k, d_k). The
    scores of a tile may be overwritten, and the next tile does so: fresh memory would cost a tenth of the time.
    """
    query_at, key_at = where
    memory = scaled.new_empty(scaled.size(0), min(size[0], len(query_at)), min(size[1], len(key_at)))
    for rows, columns in tiles(query_at, key_at, causal, size):
        scores = memory[:, : rows.stop - rows.start, : columns.stop - columns.start]  # tiles at the edges are smaller
        torch.bmm(scaled[:, rows], key[:, columns].mT, out=scores)  # (N, rows, d_k) @ (N, d_k, columns)
        if causal and key_at[columns][-1] > query_at[rows][0]:  # the diagonal crosses this tile
            scores.masked_fill_(hidden_keys(query_at[rows], key_at[columns], key.device), -math.inf)
        yield rows, columns, scores


class OnlineSoftmax:
    """What is kept of each query while keys come by: largest score, sum of exp, and sum of exp · value."""

    def __init__(self, query: Tensor, d_v: int) -> None:
        """query: (N, T_q, d_k)."""
        self.scaled = query / math.sqrt(query.size(-1))
        self.weighted = query.new_zeros(*query.shape[:-1], d_v)
        self.total = query.new_zeros(*query.shape[:-1], 1)
        self.largest = torch.full_like(self.total, torch.finfo(query.dtype).min)  # finite: -inf - -inf would be NaN

    def fold(self, key: Tensor, value: Tensor, where: tuple[range, range], causal: bool, size: tuple[int, int]) -> None:
        """Take in some keys (N, T_k, d_k) and their values (N, T_k, d_v)."""
        for rows, columns, scores in score_tiles(self.scaled, key, where, causal, size):
            largest, total, weighted = self.largest[:, rows], self.total[:, rows], self.weighted[:, rows]
            # merge, in place; the tile is summed with the new largest score at once, so that only the past shrinks
            new_largest = torch.maximum(largest, scores.amax(dim=-1, keepdim=True))
            shrink = torch.exp(largest - new_largest)
            numerators = exp_or_zero(scores.sub_(new_largest))  # in place, while the tile is in the cache
            total.mul_(shrink).add_(numerators.sum(dim=-1, keepdim=True))
            weighted.mul_(shrink).add_(numerators @ value[:, columns])  # (N, rows, columns) @ (N, columns, d_v)
            largest.copy_(new_largest)

    def finish(self) -> tuple[Tensor, Tensor]:
        """output (N, T_q, d_v) and, for the backward pass, logsumexp (N, T_q, 1)."""
        self.total.masked_fill_(self.total == 0, 1.0)  # a query that sees no key: 0 / 1 = 0
        return self.weighted.div_(self.total), self.largest + self.total.log()


def do_again(
    query: Tensor, key: Tensor, value: Tensor, output: Tensor, logsumexp: Tensor, sure: Tensor, *, tiling: Tiling
) -> None:
    """Put output and logsumexp of the online softmax in place of those that are not sure (see fast_tiles.py)."""
    (query_at, key_at), causal, size = tiling
    for start in range(0, len(query_at), size[0]):
        rows = slice(start, start + size[0])
        if sure[:, rows].all():
            continue
        softmax = OnlineSoftmax(query[:, rows], value.size(-1))
        softmax.fold(key, value, (query_at[rows], key_at), causal, size)
        for before, again in zip((output, logsumexp), softmax.finish(), strict=True):
            before[:, rows] = torch.where(sure[:, rows], before[:, rows], again)


class FlashAttention(torch.autograd.Function):
    """Forward and backward of the tiled computation on (N, T, d), N being all axes before the length as one."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, causal: bool, size: tuple[int, int]) -> Tensor:
        ctx.tiling = positions(query, key), causal, size
        output, logsumexp, sure = fast_softmax(query, key, value, ctx.tiling)
        if not sure.all():
            for_heads(partial(do_again, tiling=ctx.tiling), ctx.tiling, query, key, value, output, logsumexp, sure)
        ctx.save_for_backward(query, key, value, output, logsumexp)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        query, key, value, output, logsumexp = ctx.saved_tensors
        grads = tuple(torch.zeros_like(x) for x in (query, key, value))
        row_sums = (grad_output * output).sum(dim=-1, keepdim=True)  # (N, T_q, d_v) -> (N, T_q, 1)
        saved = (query / math.sqrt(query.size(-1)), logsumexp, grad_output, row_sums)
        add_gradients(saved, key, value, grads, ctx.tiling)
        return *grads, None, None


def flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    causal: bool = False,
    block_size: int | tuple[int, int] = TILE,
) -> Tensor:
    """Scaled dot-product attention in tiles: no memory that grows with T_q · T_k, forward and backward.

    query (..., T_q, d_k), key (..., T_k, d_k), value (..., T_k, d_v) -> output (..., T_q, d_v). Output only, like
    F.scaled_dot_product_attention: the weights never exist together. causal: a query sees itself and what comes before,
    the last query stands at the last key; one that sees no key gets 0. block_size: queries and keys in a tile, or one
    number for both. Inputs of 16 bits are summed in float32. Cannot be differentiated twice. Raises ValueError for
    sizes that do not fit.
    """
    check_attention_inputs(query, key, value, None)
    leading = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    count, inputs = math.prod(leading), at_least_float32(query, key, value)
    flat = [x.expand(*leading, *x.shape[-2:]).reshape(count, *x.shape[-2:]) for x in inputs]
    output = FlashAttention.apply(*flat, causal, tile_size(block_size))  # (..., T, d) as (N, T, d) -> (N, T_q, d_v)
    return output.view(*leading, *output.shape[-2:]).to(query.dtype)  # (N, T_q, d_v) -> (..., T_q, d_v)


@cli.script
def main(argv: list[str] | None = None) -> str:
    cli.parse(cli.parser(__doc__), argv)
    lines = two_tiles()
    print(f"\nOne query and four keys, with scores {SCORES} and values {VALUES}, in two tiles of two\n")
    print("\n".join(lines))
    merged, softmax = (line.rsplit(" ", 1)[-1] for line in lines[-2:])
    return f"Two tiles, merged: {merged}; softmax over all four keys: {softmax}"


if __name__ == "__main__":
    cli.run(main)
