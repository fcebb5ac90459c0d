"""How can several processors share the keys of one query?

A new word asks with one query, and its keys may be many thousands. So each processor takes a part
of the keys, attends to it by itself, and keeps three things: the largest score, the sum of the
weights, and the sum of the weighted values. Softmax needs the sums over all keys, and such partial
sums can be merged (long_texts/flash_attention.py), which costs next to nothing. This is
flash-decoding, or split-K (Dao et al. 2023). Here the parts are computed one after the other; on a
GPU all at once.

    python phase4_causal/serving/flash_decoding.py
"""

import math

import torch
from torch import Tensor

from phase1_single_head.self_attention import scaled_dot_product_attention
from phase4_causal.long_texts.flash_attention import (
    LOG2_E,
    empty_partial,
    merge_partials,
    normalize,
    partial_softmax,
)
from shared.attention_checks import at_least_float32, check_attention_inputs, check_sizes


@torch.no_grad()
def flash_decoding(query: Tensor, key: Tensor, value: Tensor, *, num_splits: int) -> Tensor:
    """Attention to all keys, merged from num_splits parts that are computed independently.

    query (..., T_q, d_k), key (..., T_k, d_k), value (..., T_k, d_v) -> output (..., T_q, d_v), 0
    without keys. Inputs of 16 bits are computed in float32. A trained model writes with it, so
    there are no gradients. Raises ValueError for wrong sizes.
    """
    check_sizes(least=1, num_splits=num_splits)
    check_attention_inputs(query, key, value, mask=None)
    dtype = query.dtype
    query, key, value = at_least_float32(query, key, value)
    # The partial sums are of powers of 2: 2^(scaled q · k) is e^(q · k / √d_k).
    scaled_query = query * LOG2_E / math.sqrt(query.size(-1))
    keys = key.tensor_split(num_splits, dim=-2)
    values = value.tensor_split(num_splits, dim=-2)
    partials = []
    for k, v in zip(keys, values, strict=True):
        if k.size(-2) > 0:  # with fewer keys than processors, some have none
            # The work of one processor.
            partials.append(partial_softmax(scaled_query @ k.mT, v))
    merged = empty_partial(query, value.size(-1))  # one for each query
    for partial in partials:
        merged = merge_partials(merged, partial)
    output, _log_of_sums = normalize(merged)
    return output.to(dtype)


def main() -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(1, 4), torch.randn(1000, 4), torch.randn(1000, 4)
    reference, _ = scaled_dot_product_attention(query, key, value)
    print("One query and 1,000 keys. The most keys of a processor, and how far the output is off:")
    for num_splits in (1, 4, 16):
        output = flash_decoding(query, key, value, num_splits=num_splits)
        most_keys = math.ceil(1000 / num_splits)
        error = (output - reference).abs().max()
        print(f"   {num_splits:2} processors: {most_keys:4} keys, {error:.0e}")


if __name__ == "__main__":
    main()
