"""Attention to the neighbourhood only, at most `window` positions away, and nothing else computed.

A mask hides weights after all T² scores were computed: local_mask makes nothing cheaper. To save
time the scores outside the band must not be computed at all. So queries are taken in blocks; a
block of queries, together, sees one stretch of keys, and on that small rectangle attention is the
usual one. Cost: O(T window) in place of O(T²).

What is lost is real: this is another function than full attention. A layer moves information by
`window` positions at most, so a word 1,000 away is reached with window 128 in 8 layers (Beltagy et
al. 2020). long_context.py measures the memory.
"""

import torch
from torch import Tensor

from phase1_single_head.self_attention import scaled_dot_product_attention
from shared.attention_checks import check_attention_inputs, check_sizes

SMALLEST_BLOCK = 64  # queries: with fewer, a narrow window would mean many tiny products


def local_attention(
    query: Tensor, key: Tensor, value: Tensor, *, window: int, causal: bool = False
) -> Tensor:
    """Attention to keys at most `window` positions away; with causal=True to the past only.

    query (..., T_q, d_k), key (..., T_k, d_k), value (..., T_k, d_v) -> output (..., T_q, d_v).
    Equal to attention with local_mask (& causal_mask), in memory O(T window). Output only, since
    the weights are mostly zeros that nobody computed. The last query stands at the last key; a
    query that sees no key gets 0. Raises ValueError for a negative window and for sizes that do not
    fit.
    """
    check_sizes(0, window=window)
    check_attention_inputs(query, key, value, None)
    query_length, key_length = query.size(-2), key.size(-2)
    shift = key_length - query_length  # query i stands at key i + shift
    ahead = 0 if causal else window
    size = max(window, SMALLEST_BLOCK)
    blocks = []
    for start in range(0, max(query_length, 1), size):  # one block at least, if an empty one
        stop = min(start + size, query_length)
        first = min(max(0, start + shift - window), key_length)
        last = max(first, min(key_length, stop + shift + ahead))
        query_position = torch.arange(start, stop, device=query.device)[:, None] + shift
        # Keys (columns,) and queries (rows, 1) -> (rows, columns).
        distance = torch.arange(first, last, device=query.device) - query_position
        mask = (distance >= -window) & (distance <= ahead)
        rows, columns = slice(start, stop), slice(first, last)
        output, _ = scaled_dot_product_attention(
            query[..., rows, :], key[..., columns, :], value[..., columns, :], mask
        )
        blocks.append(output)
    return torch.cat(blocks, dim=-2)  # blocks (..., rows, d_v) -> (..., T_q, d_v)
