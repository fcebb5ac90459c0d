"""How do tiles become one kernel of a GPU?

The tiles of flash_attention.py, forward, in Triton (Tillet et al. 2019), Python that is compiled
for a GPU. One program does the work of one strip in one head: it loads a tile of queries, goes
through the tiles of keys, and stores a tile of the output. In between stand partial_softmax,
merge_partials and normalize, line for line. No strip waits for another, so the GPU does many at
once. On a CPU Triton's interpreter runs it, slowly:

    pip install -e ".[gpu]"
    TRITON_INTERPRET=1 python phase4_causal/long_texts/triton_flash.py
"""

import math
import os
import sys

import torch
import torch.nn.functional as F
from torch import Tensor

from phase4_causal.long_texts.flash_attention import LOG2_E
from shared.attention_checks import check_attention_inputs

try:
    import triton
    import triton.language as tl
    from triton.language import constexpr  # a number that is known when the kernel is compiled
except ImportError:  # it is an extra
    triton = tl = constexpr = None

MISSING = 'this needs Triton, which runs on Linux: pip install -e ".[gpu]"'
NO_GPU = "on a CPU set TRITON_INTERPRET=1 before Python starts, and take no bfloat16"
SIZES = (16, 32, 64, 128, 256)


def attend_in_strip(
    queries,  # the four tensors come as pointers to their first numbers
    keys,
    values,
    outputs,
    t_q,
    t_k,
    scale,
    causal: constexpr,
    d: constexpr,
    size: constexpr,
):
    """The program number (strip, head) of the kernel; size: queries and keys in a tile."""
    strip = tl.program_id(0)
    head = tl.program_id(1).to(tl.int64)
    feature = tl.arange(0, d)[None, :]
    row = strip * size + tl.arange(0, size)[:, None]
    at_row = (head * t_q + row) * d + feature  # -> (size, d)
    query = tl.load(queries + at_row, mask=row < t_q, other=0.0)
    largest = tl.full([size, 1], -3.4e38, tl.float32)  # finite, since -inf - -inf would be NaN
    total = tl.zeros([size, 1], tl.float32)
    weighted = tl.zeros([size, d], tl.float32)
    shift = t_k - t_q  # query i stands at key i + shift
    seen = t_k
    if causal:
        seen = tl.minimum((strip + 1) * size + shift, t_k)  # tiles in the future are never read
    for left in range(0, seen, size):
        key_row = left + tl.arange(0, size)[:, None]
        at_key = (head * t_k + key_row) * d + feature
        key = tl.load(keys + at_key, mask=key_row < t_k, other=0.0)
        value = tl.load(values + at_key, mask=key_row < t_k, other=0.0)
        scores = tl.dot(query, tl.trans(key)) * scale  # (size, d) @ (d, size) -> (size, size)
        column = left + tl.arange(0, size)[None, :]
        is_seen = column < t_k
        if causal:
            is_seen = is_seen & (column <= row + shift)
        scores = tl.where(is_seen, scores, float("-inf"))
        largest_now = tl.maximum(largest, tl.max(scores, axis=1, keep_dims=True))
        shrink = tl.exp2(largest - largest_now)
        weights = tl.exp2(scores - largest_now)
        total = total * shrink + tl.sum(weights, axis=1, keep_dims=True)
        weighted = weighted * shrink + tl.dot(weights.to(value.dtype), value)
        largest = largest_now
    output = weighted / tl.maximum(total, 1.0)  # it is 1 or more where a key was seen, else 0
    tl.store(outputs + at_row, output.to(query.dtype), mask=row < t_q)


kernel = triton and triton.jit(attend_in_strip)


def triton_flash(
    query: Tensor, key: Tensor, value: Tensor, *, causal: bool = False, block_size: int = 64
) -> Tensor:
    """Attention in one kernel of a GPU, without gradients; arguments as of flash_attention.

    query (..., T_q, d), key and value (..., T_k, d) -> output (..., T_q, d). d and block_size are
    powers of 2, 16 or more. Sums are in float32, and a GPU multiplies float32 in TF32, with three
    digits. Raises ValueError for other sizes, without Triton, and on a CPU unless TRITON_INTERPRET
    is 1; the interpreter computes nothing right in bfloat16, so that is refused, too.
    """
    leading = check_attention_inputs(query, key, value, None)
    d, d_v = query.size(-1), value.size(-1)
    if d_v != d or {d, block_size} - set(SIZES):
        rule = "d_k = d_v and block_size must be powers of 2 from 16 to 256"
        raise ValueError(f"{rule}: got {d}, {d_v} and {block_size}")
    if triton is None:
        raise ValueError(MISSING)
    interpreted = os.environ.get("TRITON_INTERPRET") == "1" and query.dtype != torch.bfloat16
    if not query.is_cuda and not interpreted:
        raise ValueError(NO_GPU)
    inputs = []
    for x in (query, key, value):
        inputs.append(x.expand(*leading, *x.shape[-2:]).contiguous())
    output = torch.empty_like(inputs[0])
    t_q, t_k = query.size(-2), key.size(-2)
    programs = triton.cdiv(t_q, block_size), math.prod(leading)
    if math.prod(programs) > 0:
        kernel[programs](*inputs, output, t_q, t_k, LOG2_E / math.sqrt(d), causal, d, block_size)
    return output


def main() -> None:
    query, key, value = torch.randn(3, 2, 37, 16)
    try:
        output = triton_flash(query, key, value, causal=True, block_size=16)
    except ValueError as error:
        sys.exit(str(error))
    expected = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    print("37 words in tiles of 16. How far is the kernel from PyTorch's function, at most?")
    print(f"   {(output - expected).abs().max():.0e}")


if __name__ == "__main__":
    main()
