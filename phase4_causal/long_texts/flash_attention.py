"""Attention tile by tile: the same output as always, and no T_q x T_k matrix anywhere.

Softmax needs the largest score and the sum of a whole row before it can give one weight. The online softmax (Milakov &
Gimelshein 2018) gets by with one key at a time: it keeps the largest score so far, and the sums with that score taken
off. When a larger one comes, both sums shrink by exp(old largest - new largest):

    largest' = max(largest, s)     shrink = exp(largest - largest')
    total'   = total · shrink + exp(s - largest')
    sum'     = sum   · shrink + exp(s - largest') · v                    at the end: output = sum / total

FlashAttention (Dao et al. 2022; Dao 2023) does so with a tile of queries and keys at a time, so that the scores at hand
stay small and near the processor. For the backward pass it keeps the output and one number for each query,
logsumexp = largest + log(total), and computes the weights again: exp(score - logsumexp).

Compared with the plain function by long_context.py, timed by length_benchmark.py.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from phase1_single_head.self_attention import check_attention_inputs

BLOCK_SIZE = (256, 512)  # queries and keys in a tile


def flash_by_loops(query: Tensor, key: Tensor, value: Tensor, *, causal: bool = False) -> Tensor:
    """The specification: the online softmax, one query and one key at a time. (T_q, d_k), (T_k, d_k), (T_k, d_v)."""
    output = query.new_zeros(query.size(0), value.size(1))
    shift = key.size(0) - query.size(0)  # the last query stands at the last key
    for i in range(query.size(0)):
        largest, total, weighted = -math.inf, 0.0, torch.zeros_like(value[0])
        for j in range(key.size(0)):
            if causal and j > i + shift:
                break
            score = torch.dot(query[i], key[j]) / math.sqrt(key.size(1))
            new_largest = max(largest, score)
            shrink = torch.exp(largest - new_largest)
            total = total * shrink + torch.exp(score - new_largest)
            weighted = weighted * shrink + torch.exp(score - new_largest) * value[j]
            largest = new_largest
        if total:  # else the query sees no key, and its output stays 0
            output[i] = weighted / total
    return output


def _row_tiles(length: int, size: int) -> Iterator[slice]:
    for start in range(0, length, size):
        yield slice(start, min(start + size, length))


def _column_tiles(rows: slice, shift: int, key_length: int, size: int, causal: bool) -> Iterator[slice]:
    """Tiles of keys for these queries; with causal, those above the diagonal are left out: no query sees any of them.

    shift = T_k - T_q: query i stands at position i + shift.
    """
    return _row_tiles(min(key_length, rows.stop + shift) if causal else key_length, size)


def _new_tile(query: Tensor, key: Tensor, size: tuple[int, int]) -> Tensor:
    """Room for the scores of one tile, used again for each: fresh memory would cost a tenth of the time."""
    return query.new_empty(query.size(0), min(size[0], query.size(1)), min(size[1], key.size(1)))


def _tile_scores(
    query: Tensor, key: Tensor, rows: slice, columns: slice, shift: int, causal: bool, tile: Tensor
) -> Tensor:
    """Scores of one tile, (N, rows, columns), the future hidden with -inf; query is divided by √d_k already."""
    scores = tile[:, : rows.stop - rows.start, : columns.stop - columns.start]  # tiles at the edges are smaller
    torch.bmm(query[:, rows], key[:, columns].mT, out=scores)  # (N, rows, d_k) @ (N, d_k, columns)
    first = rows.start + shift  # position of the tile's first query
    if causal and columns.stop - 1 > first:  # only tiles that the diagonal crosses have something to hide
        query_position = torch.arange(first, rows.stop + shift, device=query.device)[:, None]
        key_position = torch.arange(columns.start, columns.stop, device=query.device)
        scores.masked_fill_(key_position > query_position, -math.inf)
    return scores


class FlashAttention(torch.autograd.Function):
    """Forward and backward of the tiled computation on (N, T, d), N being all axes before the length as one."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, causal: bool, size: tuple[int, int]) -> Tensor:
        scaled = query / math.sqrt(query.size(-1))
        shift = key.size(1) - query.size(1)
        output = query.new_empty(*query.shape[:2], value.size(-1))
        logsumexp = query.new_empty(*query.shape[:2], 1)
        tile = _new_tile(query, key, size)
        for rows in _row_tiles(query.size(1), size[0]):
            weighted = torch.zeros_like(output[:, rows])
            total = torch.zeros_like(logsumexp[:, rows])
            largest = torch.full_like(total, torch.finfo(query.dtype).min)  # finite: -inf - -inf would be NaN
            for columns in _column_tiles(rows, shift, key.size(1), size[1], causal):
                scores = _tile_scores(scaled, key, rows, columns, shift, causal, tile)
                new_largest = torch.maximum(largest, scores.amax(dim=-1, keepdim=True))
                shrink = torch.exp(largest - new_largest)
                numerators = scores.sub_(new_largest).exp_()  # in place, while the tile is in the cache
                total = total * shrink + numerators.sum(dim=-1, keepdim=True)
                weighted.mul_(shrink).baddbmm_(numerators, value[:, columns])  # sum' = sum · shrink + numerators · V
                largest = new_largest
            total.masked_fill_(total == 0, 1.0)  # a query that sees no key: 0 / 1 = 0
            output[:, rows] = weighted / total
            logsumexp[:, rows] = largest + total.log()
        ctx.save_for_backward(query, key, value, output, logsumexp)
        ctx.causal, ctx.size = causal, size
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        """Softmax has the derivative dS = P ∘ (dP - sum of P ∘ dP over keys), and that sum is sum of dO ∘ O."""
        query, key, value, output, logsumexp = ctx.saved_tensors
        scale, shift = 1 / math.sqrt(query.size(-1)), key.size(1) - query.size(1)
        scaled = query * scale
        grad_query, grad_key, grad_value = (torch.zeros_like(x) for x in (query, key, value))
        tile = _new_tile(query, key, ctx.size)
        row_sums = (grad_output * output).sum(dim=-1, keepdim=True)  # (N, T_q, d_v) -> (N, T_q, 1)
        for rows in _row_tiles(query.size(1), ctx.size[0]):
            for columns in _column_tiles(rows, shift, key.size(1), ctx.size[1], ctx.causal):
                scores = _tile_scores(scaled, key, rows, columns, shift, ctx.causal, tile)
                weights = scores.sub_(logsumexp[:, rows]).exp_()  # again, as in the forward pass
                grad_value[:, columns] += weights.mT @ grad_output[:, rows]  # -> (N, columns, d_v)
                grad_weights = grad_output[:, rows] @ value[:, columns].mT  # -> (N, rows, columns)
                grad_scores = grad_weights.sub_(row_sums[:, rows]).mul_(weights)
                grad_query[:, rows] += scale * (grad_scores @ key[:, columns])  # -> (N, rows, d_k)
                grad_key[:, columns] += grad_scores.mT @ scaled[:, rows]  # -> (N, columns, d_k)
        return grad_query, grad_key, grad_value, None, None


def flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    causal: bool = False,
    block_size: int | tuple[int, int] = BLOCK_SIZE,
) -> Tensor:
    """Scaled dot-product attention in tiles; beyond its inputs it needs memory O(T_q d_v + T_k), forward and backward.

    query (..., T_q, d_k), key (..., T_k, d_k), value (..., T_k, d_v) -> output (..., T_q, d_v). Output only, like
    F.scaled_dot_product_attention: the weights never exist together. causal: a query sees itself and what comes before,
    the last query stands at the last key; one that sees no key gets 0. block_size: queries and keys in a tile, or one
    number for both. Cannot be differentiated twice. Raises ValueError for sizes that do not fit.
    """
    check_attention_inputs(query, key, value, None)
    size = (block_size, block_size) if isinstance(block_size, int) else tuple(block_size)
    if len(size) != 2 or min(size) < 1:
        raise ValueError(f"block_size must be 1 or more, one number or (queries, keys): got {block_size}")
    leading = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    flat = [x.expand(*leading, *x.shape[-2:]).reshape(-1, *x.shape[-2:]) for x in (query, key, value)]
    output = FlashAttention.apply(*flat, causal, size)  # (..., T, d) as (N, T, d) -> (N, T_q, d_v)
    return output.view(*leading, *output.shape[-2:])  # (N, T_q, d_v) -> (..., T_q, d_v)
