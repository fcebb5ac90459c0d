"""Attention to a regular part of the text, every stride-th word or chosen tiles, without computing the rest.

A mask hides scores that were computed anyway. Both functions here bring together what sees each other and compute
nothing else; what stands together is then ordinary attention on smaller matrices.

    strided_attention        positions with the same remainder modulo `stride` are a short text of their own: a reshape
                             to (..., stride, T / stride, d), and T²/stride scores (Child et al. 2019)
    block_sparse_attention   the T x T scores are cut into tiles and a small matrix says which of them count: each block
                             of queries collects its keys and reads them with the online softmax of flash_attention.py
                             (Child et al. 2019; Longformer, Beltagy et al. 2020; Big Bird, Zaheer et al. 2020)

Why tiles? Single cells scattered over a matrix cost more to find than to compute; a tile is a small matrix product.

Compared with masked attention by long_context.py. What is lost, and after how many layers it is back: sparse_reach.py.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from phase1_single_head.self_attention import scaled_dot_product_attention
from phase4_causal.long_texts.flash_attention import flash_attention
from shared.attention_checks import check_attention_inputs
from shared.attention_utils import causal_mask, local_mask


def _by_remainder(x: Tensor, stride: int) -> Tensor:
    """Positions with the same remainder together; zeros in front fill up to whole strides, so the ends stay aligned."""
    whole = F.pad(x, (0, 0, -x.size(-2) % stride, 0))  # (..., T, d) -> (..., n stride, d)
    return whole.unflatten(-2, (-1, stride)).transpose(-3, -2)  # (..., n stride, d) -> (..., stride, n, d)


def strided_attention(query: Tensor, key: Tensor, value: Tensor, *, stride: int, causal: bool = False) -> Tensor:
    """Attention to every stride-th position, counted from the query's own; with causal=True to the past only.

    query (..., T_q, d_k), key (..., T_k, d_k), value (..., T_k, d_v) -> output (..., T_q, d_v). Equal to attention with
    strided_mask (& causal_mask), in time and memory O(T²/stride). The last query stands at the last key; a query that
    sees no key gets 0. Raises ValueError for a stride below 1 and for sizes that do not fit.
    """
    if stride < 1:
        raise ValueError(f"stride must be 1 or more: got {stride}")
    check_attention_inputs(query, key, value, None)
    query_length, filling = query.size(-2), -key.size(-2) % stride
    queries, keys, values = (
        _by_remainder(x, stride) for x in (query, key, value)
    )  # (..., T, d) -> (..., stride, n, d)
    mask = causal_mask(queries.size(-2), keys.size(-2), device=query.device) if causal else None
    if filling:  # the first key of the first remainders is no key
        real = torch.ones(stride, 1, keys.size(-2), dtype=torch.bool, device=query.device)
        real[:filling, :, 0] = False
        mask = real if mask is None else real & mask  # (stride, 1, n_k) & (n_q, n_k) -> (stride, n_q, n_k)
        mask = mask.view(*[1] * (max(queries.dim(), keys.dim(), values.dim()) - 3), *mask.shape)
    output, _ = scaled_dot_product_attention(queries, keys, values, mask)
    output = output.transpose(-3, -2).flatten(-3, -2)  # (..., stride, n, d_v) -> (..., n stride, d_v)
    return output[..., output.size(-2) - query_length :, :]  # -> (..., T_q, d_v)


def tile_pattern(num_tiles: int, *, window: int = 1, num_global: int = 1, num_random: int = 0, seed: int = 0) -> Tensor:
    """The tiles of Longformer and Big Bird -> bool (num_tiles, num_tiles), True = computed.

    window: tiles to each side that are seen. num_global: the first tiles see everything and everything sees them.
    num_random: more tiles in each row, drawn with the seed from those not seen yet (Big Bird).
    """
    allowed = local_mask(num_tiles, num_tiles, window)
    allowed[:num_global] = True
    allowed[:, :num_global] = True
    generator = torch.Generator().manual_seed(seed)
    for row in allowed:
        free = (~row).nonzero().flatten()
        row[free[torch.randperm(len(free), generator=generator)[:num_random]]] = True
    return allowed


def tile_mask(allowed: Tensor, block_size: int, query_length: int, key_length: int) -> Tensor:
    """The same pattern as a mask for every single pair: bool (tiles, tiles) -> bool (T_q, T_k)."""
    cells = allowed.repeat_interleave(block_size, dim=0).repeat_interleave(block_size, dim=1)
    return cells[:query_length, :key_length]  # the last tiles may be smaller


def block_sparse_attention(query: Tensor, key: Tensor, value: Tensor, *, block_size: int, allowed: Tensor) -> Tensor:
    """Attention to the allowed tiles of the scores; the others are not computed.

    query (..., T_q, d_k), key (..., T_k, d_k), value (..., T_k, d_v) -> output (..., T_q, d_v). allowed: bool, a row
    for each block_size queries and a column for each block_size keys, counted from the first; the last may be shorter.
    Equal to attention with tile_mask(allowed, ...). Forward memory O(T (d + block_size)); for the backward pass the
    collected keys and values are kept, block_size of each for an allowed tile. A query without a tile gets 0. Cannot be
    differentiated twice. Raises ValueError for a block_size below 1, for an `allowed` of another type or shape, and for
    sizes that do not fit.
    """
    if block_size < 1:
        raise ValueError(f"block_size must be 1 or more: got {block_size}")
    check_attention_inputs(query, key, value, None)
    tiles = tuple(-(-x.size(-2) // block_size) for x in (query, key))  # rounded up
    if allowed.dtype != torch.bool or tuple(allowed.shape) != tiles:
        raise ValueError(
            f"allowed must be bool, one cell for each tile of {block_size} x {block_size}, {tiles}: got "
            f"{allowed.dtype} of shape {tuple(allowed.shape)}"
        )
    query_blocks, key_blocks, value_blocks = (x.split(block_size, dim=-2) for x in (query, key, value))
    outputs = []
    for queries, row in zip(query_blocks, allowed.tolist(), strict=True):
        seen = [j for j, is_allowed in enumerate(row) if is_allowed]
        if not seen:  # no keys: the sum of nothing is 0
            outputs.append(scaled_dot_product_attention(queries, key[..., :0, :], value[..., :0, :])[0])
            continue
        keys = torch.cat([key_blocks[j] for j in seen], dim=-2)  # blocks -> (..., keys seen, d_k)
        values = torch.cat([value_blocks[j] for j in seen], dim=-2)
        outputs.append(flash_attention(queries, keys, values))  # -> (..., block_size, d_v)
    return torch.cat(outputs, dim=-2)  # blocks (..., block_size, d_v) -> (..., T_q, d_v)
