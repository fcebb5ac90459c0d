"""Attention to the neighbourhood only, at most `window` positions away, without computing what is
hidden anyway.

A mask hides weights after all T² scores were computed: local_mask makes nothing cheaper. To save
time the scores outside the band must not be computed at all. So queries are taken in blocks; a
block of queries, together, sees one stretch of keys, and on that small rectangle attention is the
usual one. Cost: O(T window) in place of O(T²).

What is lost is real: this is another function than full attention. A layer moves information by
`window` positions at most, so a word 1,000 away is reached with window 128 in 8 layers (Beltagy et
al. 2020).

Compared with masked attention, and timed, by long_context.py.
"""

import torch
from torch import Tensor

from phase1_single_head.self_attention import scaled_dot_product_attention
from shared.attention_checks import check_attention_inputs, check_sizes

SMALLEST_BLOCK = 64  # queries: with fewer, a narrow window would mean many tiny products


def local_attention(
    query: Tensor, key: Tensor, value: Tensor, *, window: int, causal: bool = False
) -> Tensor:
    """Attention to keys at most `window` positions away, to both sides, or with causal=True to the
    past only.

    query (..., T_q, d_k), key (..., T_k, d_k), value (..., T_k, d_v) -> output (..., T_q, d_v).
    Equal to attention with local_mask (& causal_mask), in memory O(T window). Output only, since
    the weights are mostly zeros that nobody computed. The last query stands at the last key; a
    query that sees no key gets 0. Raises ValueError for a negative window and for sizes that do not
    fit.
    """
    check_sizes(0, window=window)
    check_attention_inputs(query, key, value, None)
    query_length, key_length = query.size(-2), key.size(-2)
    shift = key_length - query_length
    blocks = []
    for start in range(
        0, max(query_length, 1), max(window, SMALLEST_BLOCK)
    ):  # one block at least, if an empty one
        stop = min(start + max(window, SMALLEST_BLOCK), query_length)
        first = min(max(0, start + shift - window), key_length)
        last = max(first, min(key_length, stop + shift + (0 if causal else window)))
        query_position = torch.arange(start, stop, device=query.device)[:, None] + shift
        distance = (
            torch.arange(first, last, device=query.device) - query_position
        )  # -> (rows, columns)
        mask = (distance.abs() <= window) & (distance <= 0) if causal else distance.abs() <= window
        k, v = key[..., first:last, :], value[..., first:last, :]
        output, _ = scaled_dot_product_attention(query[..., start:stop, :], k, v, mask)
        blocks.append(output)
    return torch.cat(blocks, dim=-2)  # blocks (..., rows, d_v) -> (..., T_q, d_v)
