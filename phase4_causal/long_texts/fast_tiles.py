"""How near can tiles written in PyTorch come to PyTorch's own kernel?

The online softmax of flash_attention.py looks at every tile four times between its two matrix products: for the largest
score, to take it off, for exp, and for the sum. Four things make that less, and the results stay what they were.

    no running maximum     by Cauchy-Schwarz no score of query i is larger than |q_i| · max |k_j|, of either sign. While
                           that is at most 60, exp(score) stays within float32, and nothing has to be taken off
    one head at a time     for each thread, so that its tile stays in the processor's second-level cache, and no thread
                           waits for another
    no new memory          products are written into, or added to, memory that is there
    the future, after exp  tril_ sets it to 0 in place; -inf before it needs a mask as large as the tile

The maximum is over the keys that the query sees: were a later key part of it, a NaN there would reach the output.
Queries beyond 60 are left to the online softmax, and so are values too large for e^60 times them. Values near 1e38
overflow there as well: in both, sums are taken before the division. How much each of the four brings is in this
folder's README.md, "How fast is it?".
"""

import bisect
import itertools
import math
import operator
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

TILE = (256, 512)  # queries and keys: 512 KiB of scores in float32
REACH = 60.0  # e^60 times a value of 1e8 and some thousand keys fits into float32, and e^-60 has all its digits
Where = tuple[range, range]  # positions of queries and of keys in the text
Tiling = tuple[Where, bool, tuple[int, int]]  # where they stand, whether causal, size of a tile


def tile_size(block_size: int | tuple[int, int]) -> tuple[int, int]:
    """Queries and keys in a tile. Raises ValueError for what is not one integer or two, 1 or more, numpy's too."""
    try:
        size = tuple(map(operator.index, block_size if isinstance(block_size, Iterable) else (block_size,) * 2))
    except TypeError:
        size = ()  # not integers
    if len(size) != 2 or min(size) < 1:
        raise ValueError(f"block_size must be 1 or more, one number or (queries, keys): got {block_size}")
    return size


def tiles(query_at: range, key_at: range, causal: bool, size: tuple[int, int]) -> Iterator[tuple[slice, slice]]:
    """Rows and columns of the tiles to compute; with causal, the keys that no query of a tile sees are left out.

    query_at, key_at: where queries and keys stand in the text. Here the last query stands at the last key; in a ring
    (ring_attention.py) they are whatever slices a process has.
    """
    for start in range(0, len(query_at), size[0]):
        rows = slice(start, min(start + size[0], len(query_at)))
        visible = bisect.bisect_right(key_at, query_at[rows][-1]) if causal else len(key_at)  # from the first key on
        for first in range(0, visible, size[1]):
            yield rows, slice(first, min(first + size[1], visible))


def hide_future(tile: Tensor, query_at: range, key_at: range) -> None:
    """Set what stands after the query to 0, in place: (N, rows, columns), positions of both in steps of one length."""
    if key_at[-1] > query_at[0]:  # the diagonal crosses this tile
        tile.tril_((query_at[0] - key_at[0]) // key_at.step)  # sets, and does not multiply: NaN · 0 would be NaN


def strips(where: Where, causal: bool, size: tuple[int, int]) -> Iterator[tuple[slice, list[slice]]]:
    """The tiles again, by their rows: what belongs to the queries is looked up once for all their tiles."""
    for rows, strip in itertools.groupby(tiles(*where, causal, size), key=operator.itemgetter(0)):
        yield rows, [columns for _, columns in strip]


def for_heads(work: Callable[..., None], tiling: Tiling, *tensors: Tensor) -> None:
    """Call work with one head of each tensor (N, ...), or as many as have together no more scores than TILE.

    A thread takes whole heads, so that none waits for another before the end. Within torch's own functions, a hundred
    in each head, threads would meet at the end of each.
    """
    where, _, size = tiling
    tile = math.prod(min(most, len(at)) for most, at in zip(size, where, strict=True))
    parts = zip(*(x.split(max(1, math.prod(TILE) // max(1, tile))) for x in tensors), strict=True)
    threads = torch.get_num_threads()
    if threads == 1 or len(tensors[0]) * tile <= math.prod(TILE):
        for part in parts:
            work(*part)
        return
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            list(pool.map(lambda part: torch.inference_mode()(work)(*part), parts))  # a list, so that errors are raised
    finally:
        torch.set_num_threads(threads)  # what the workers set holds for all threads that are new, too


def within_reach(scaled: Tensor, key: Tensor, causal: bool) -> Tensor:
    """Whether no score of the query can be beyond REACH: bool (N, T_q, 1).

    scaled (N, T_q, d_k), key (N, T_k, d_k). With causal, it looks only at the keys that the query sees.
    """
    longest = F.pad(key.norm(dim=-1), (1, 0)).cummax(dim=-1).values  # of the first 0, 1, ... keys: (N, T_k + 1)
    if causal:
        seen = torch.arange(1 - scaled.size(1), 1, device=key.device) + key.size(1)  # so many keys
        longest = longest[:, seen.clamp(min=0)]  # (N, T_k + 1) -> (N, T_q)
    else:
        longest = longest[:, -1:]  # (N, T_k + 1) -> (N, 1)
    return (scaled.norm(dim=-1) * longest <= REACH).unsqueeze(-1)  # (N, T_q) -> (N, T_q, 1); False for NaN


def exp_or_zero(scores: Tensor) -> Tensor:
    """e to the scores, in place; what would be below three times the smallest normal number is exactly 0.

    In float32 that is e^-86. Numbers from there to e^-103, denormal ones, take a processor up to 200 times as long, and
    so does exp where it underflows.
    """
    smallest = torch.finfo(scores.dtype).tiny
    return F.threshold_(scores.clamp_(min=math.log(smallest) + 1).exp_(), 3 * smallest, 0.0)  # e < 3


def add_product(total: Tensor, a: Tensor, b: Tensor, factor: float = 1.0) -> None:
    """total += factor · a @ b, in place. baddbmm_ does the same, but torch's counter of operations leaves it out."""
    torch.baddbmm(total, a, b, alpha=factor, out=total)


def softmax_of_heads(
    query: Tensor, key: Tensor, value: Tensor, output: Tensor, logsumexp: Tensor, sure: Tensor, *, tiling: Tiling
) -> None:
    """Fill in the last three, see fast_softmax, for n heads; output is 0 before."""
    (query_at, key_at), causal, size = tiling
    scaled, turned = query / math.sqrt(query.size(-1)), key.mT.contiguous()  # (n, T_k, d_k) -> (n, d_k, T_k)
    sure.copy_(within_reach(scaled, key, causal))
    scaled.masked_fill_(~sure, 0.0)  # so that no score is extreme
    total = torch.zeros_like(logsumexp)
    memory = query.new_empty(len(query), min(size[0], len(query_at)), min(size[1], len(key_at)))
    for rows, strip in strips(*tiling):
        own_query, own_sure, own_total, weighted = (x[:, rows] for x in (scaled, sure, total, output))
        if not own_sure.any():
            continue
        for columns in strip:
            scores = memory[:, : rows.stop - rows.start, : columns.stop - columns.start]
            numerators = torch.bmm(own_query, turned[..., columns], out=scores).exp_()  # -> (n, rows, columns)
            if causal:
                hide_future(numerators, query_at[rows], key_at[columns])
            own_total.add_(numerators.sum(dim=-1, keepdim=True))
            add_product(weighted, numerators, value[:, columns])
    sure.logical_and_((total > 0) & output.sum(dim=-1, keepdim=True).isfinite())
    output.div_(total)
    torch.log(total, out=logsumexp)


def fast_softmax(query: Tensor, key: Tensor, value: Tensor, tiling: Tiling) -> tuple[Tensor, Tensor, Tensor]:
    """output (N, T_q, d_v), logsumexp (N, T_q, 1), and whether they are sure, bool (N, T_q, 1).

    query (N, T_q, d_k), key (N, T_k, d_k), value (N, T_k, d_v). What is not sure is left to the online softmax: queries
    beyond REACH, or without a key, or whose sums overflow.
    """
    output, logsumexp = query.new_zeros(*query.shape[:-1], value.size(-1)), query.new_empty(*query.shape[:-1], 1)
    sure = torch.empty_like(logsumexp, dtype=torch.bool)
    for_heads(partial(softmax_of_heads, tiling=tiling), tiling, query, key, value, output, logsumexp, sure)
    return output, logsumexp, sure


def gradients_of_heads(*tensors: Tensor, tiling: Tiling) -> None:
    """See add_gradients, for n heads: what has a row for each query, then what has one for each key."""
    of_queries, (key, value, grad_key, grad_value) = tensors[:5], tensors[5:]
    (query_at, key_at), causal, size = tiling
    memory = key.new_empty(2, len(key), min(size[0], len(query_at)), min(size[1], len(key_at)))
    exp_ = torch.exp_ if within_reach(of_queries[0], key, causal=False).all() else exp_or_zero
    for rows, strip in strips(*tiling):
        scaled, logsumexp, grad_output, row_sums, grad_query = (x[:, rows] for x in of_queries)
        grad_output = grad_output.contiguous()  # of a sum it is one number, repeated
        for columns in strip:
            weights, grad_scores = memory[..., : rows.stop - rows.start, : columns.stop - columns.start]
            torch.bmm(scaled, key[:, columns].mT, out=weights)  # -> (n, rows, columns)
            exp_(weights.sub_(logsumexp))  # again, as in the forward pass
            if causal:
                hide_future(weights, query_at[rows], key_at[columns])
            add_product(grad_value[:, columns], weights.mT, grad_output)
            torch.bmm(grad_output, value[:, columns].mT, out=grad_scores)  # -> (n, rows, columns)
            grad_scores.sub_(row_sums).mul_(weights)
            add_product(grad_query, grad_scores, key[:, columns], 1 / math.sqrt(key.size(-1)))
            add_product(grad_key[:, columns], grad_scores.mT, scaled)


def add_gradients(
    saved: tuple[Tensor, Tensor, Tensor, Tensor],
    key: Tensor,
    value: Tensor,
    grads: tuple[Tensor, Tensor, Tensor],
    tiling: Tiling,
) -> None:
    """Add to the gradients of query, key and value what comes by way of these keys.

    Softmax has the derivative dS = P ∘ (dP - sum of P ∘ dP over keys), and that sum is sum of dO ∘ O. saved: scaled
    query, logsumexp, grad_output, sum of grad_output ∘ output (N, T_q, 1).
    """
    grad_query, grad_key, grad_value = grads
    tensors = (*saved, grad_query, key, value, grad_key, grad_value)
    for_heads(partial(gradients_of_heads, tiling=tiling), tiling, *tensors)
