"""Long texts: five ways around T² weights, each shown to compute what it says.

    flash_attention         the same function, tile by tile: T² operations, memory O(T)    flash_attention.py
    local_attention         a part of it, the neighbourhood: T window operations           local_attention.py
    strided_attention       a part of it, every stride-th word: T²/stride operations       sparse_attention.py
    block_sparse_attention  a part of it, chosen tiles: as many operations as they have    sparse_attention.py
    linear_attention        another function, another kernel: T d² operations              linear_attention.py

Run it to see each compared, in float64, with its specification in loops and with plain attention under a mask, outputs
and (with plain attention) gradients; and how many pairs of words the masks of sparse attention leave.

    python phase4_causal/long_texts/long_context.py
"""

import argparse
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from phase1_single_head.self_attention import scaled_dot_product_attention
from phase4_causal.long_texts.flash_attention import flash_attention, flash_by_loops
from phase4_causal.long_texts.linear_attention import linear_attention, linear_attention_recurrent, linear_by_loops
from phase4_causal.long_texts.local_attention import local_attention, local_by_loops
from phase4_causal.long_texts.sparse_attention import (
    block_sparse_attention,
    block_sparse_by_loops,
    strided_attention,
    strided_by_loops,
    tile_mask,
    tile_pattern,
)
from shared import cli
from shared.attention_utils import causal_mask, local_mask, strided_mask
from shared.evidence import findings
from shared.evidence.findings import Finding

__all__ = [
    "block_sparse_attention",
    "flash_attention",
    "flash_by_loops",
    "linear_attention",
    "local_attention",
    "strided_attention",
]

WINDOW, TOLERANCE = 5, 1e-10
STRIDE, BLOCK, PAIR_LENGTHS = 8, 7, (256, 1024)
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


def difference(one: Attention, other: Attention, query_length: int, key_length: int, *, gradients: bool) -> float:
    """Largest difference of outputs and, if asked for, of gradients of query, key, value; random float64 numbers."""
    query = torch.randn(query_length, 16, dtype=torch.float64, requires_grad=True)
    key = torch.randn(key_length, 16, dtype=torch.float64, requires_grad=True)
    value = torch.randn(key_length, 12, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn(query_length, 12, dtype=torch.float64)
    results = []
    for attention in (one, other):
        output = attention(query, key, value)
        slopes = torch.autograd.grad(output, (query, key, value), upstream) if gradients else ()
        results.append((output, *slopes))
    return max((a - b).abs().max().item() for a, b in zip(*results, strict=True))


def masked(mask: Tensor | None) -> Attention:
    """Plain attention under a mask: every score is computed, then some are hidden."""
    return lambda query, key, value: scaled_dot_product_attention(query, key, value, mask)[0]


def comparisons(query_length: int, key_length: int) -> dict[str, float]:
    """Name -> largest difference, for each fast function, causal, against loops and against plain attention."""
    past = causal_mask(query_length, key_length)
    near = local_mask(query_length, key_length, WINDOW)
    far = strided_mask(query_length, key_length, STRIDE)
    allowed = tile_pattern(-(-key_length // BLOCK), num_random=1)[: -(-query_length // BLOCK)]  # a row per query block
    chosen = {"block_size": BLOCK, "allowed": allowed}
    flash = partial(flash_attention, causal=True, block_size=(16, 24))
    both_sides = partial(flash_attention, block_size=(16, 24))
    local = partial(local_attention, window=WINDOW, causal=True)
    strided = partial(strided_attention, stride=STRIDE, causal=True)
    tiles = partial(block_sparse_attention, **chosen)
    linear = partial(linear_attention, causal=True)
    pairs: dict[str, tuple[Attention, Attention]] = {
        "flash, loops": (flash, partial(flash_by_loops, causal=True)),
        "flash, plain attention": (both_sides, masked(None)),
        "flash, causal mask": (flash, masked(past)),
        "local, loops": (local, partial(local_by_loops, window=WINDOW, causal=True)),
        "local, local mask": (partial(local_attention, window=WINDOW), masked(near)),
        "local, local and causal mask": (local, masked(near & past)),
        "strided, loops": (strided, partial(strided_by_loops, stride=STRIDE, causal=True)),
        "strided, strided mask": (partial(strided_attention, stride=STRIDE), masked(far)),
        "strided, strided and causal mask": (strided, masked(far & past)),
        "tiles, loops": (tiles, partial(block_sparse_by_loops, **chosen)),
        "tiles, tile mask": (tiles, masked(tile_mask(allowed, BLOCK, query_length, key_length))),
        "linear, loops": (linear, partial(linear_by_loops, causal=True)),
    }
    if query_length == key_length:
        pairs["linear, recurrence"] = (linear, lambda *inputs: linear_attention_recurrent(*inputs)[0])
    return {  # the loops fill their output in place, which has no gradient
        name: difference(*pair, query_length, key_length, gradients=not name.endswith("loops"))
        for name, pair in pairs.items()
    }


def pairs_left() -> dict[str, dict[int, int]]:
    """Pairs of query and key that a mask leaves, by length: what a kernel that skips hidden pairs would compute."""
    return {
        f"stride {STRIDE}": {n: int(strided_mask(n, n, STRIDE).sum()) for n in PAIR_LENGTHS},
        "stride √T": {n: int(strided_mask(n, n, round(n**0.5)).sum()) for n in PAIR_LENGTHS},
        "window 16": {n: int(local_mask(n, n, 16).sum()) for n in PAIR_LENGTHS},
        "all": {n: n * n for n in PAIR_LENGTHS},
    }


def show(by_size: dict[str, dict[str, float]], left: dict[str, dict[int, int]]) -> None:
    print("\nFast against slow, float64: largest difference of outputs, and of gradients unless against loops")
    print(f"   {'':32}" + "".join(f"{size:>24}" for size in by_size))
    for name in next(iter(by_size.values())):
        values = (differences.get(name) for differences in by_size.values())
        print(f"   {name:32}" + "".join(f"{'-' if value is None else f'{value:.1e}':>24}" for value in values))
    print("\nPairs of query and key that a mask leaves")
    short, long = PAIR_LENGTHS
    print(f"   {'':20}{f'T = {short}':>12}{f'T = {long}':>12}{'growth':>10}")
    for name, pairs in left.items():
        print(f"   {name:20}{pairs[short]:12,}{pairs[long]:12,}{pairs[long] / pairs[short]:10.1f}")


def record_findings(
    by_size: dict[str, dict[str, float]], left: dict[str, dict[int, int]], options: argparse.Namespace
) -> None:
    worst = {
        family: max(value for d in by_size.values() for name, value in d.items() if name.startswith(family))
        for family in ("flash", "local", "strided", "tiles", "linear")
    }
    short, long = PAIR_LENGTHS
    growth = {name: pairs[long] / pairs[short] for name, pairs in left.items()}
    findings.record(
        "phase4_causal/long_texts/long_context.py",
        [
            Finding(
                "long-equal",
                "Attention in tiles, in a band, in strides and as a recurrence is the same as written out in full",
                "Dao et al. 2022; Child et al. 2019; Katharopoulos et al. 2020",
                {name: float(f"{value:.0e}") for name, value in worst.items()},
                "largest difference of outputs and gradients from loops, masked attention or recurrence, float64",
                f"all below {TOLERANCE:g}",
                findings.verdict(max(worst.values()) < TOLERANCE),
                control="linear attention is compared with its own kernel, not with softmax",
            ),
            Finding(
                "C057",
                "Seeing every k-th position only brings the cost down from T² to T √T",
                "course notes",
                {name: round(value, 2) for name, value in growth.items()},
                f"how many times as many pairs at {long:,} tokens as at {short}",
                "at most 9 times with a fixed k (T √T is 8, T² is 16); or else with k = √T",
                **findings.conditional(
                    growth[f"stride {STRIDE}"] <= 9,
                    growth["stride √T"] <= 9,
                    "k grows like √T; with a fixed k the pairs are T² / k",
                ),
            ),
        ],
        options.output_dir,
    )


def main(argv: list[str] | None = None) -> None:
    options = cli.parse(cli.parser(__doc__), argv)
    sizes = ((29, 29), (13, 29)) if options.quick else ((61, 61), (23, 61))
    by_size = {f"{t_q} queries, {t_k} keys": comparisons(t_q, t_k) for t_q, t_k in sizes}
    left = pairs_left()
    show(by_size, left)
    record_findings(by_size, left, options)


if __name__ == "__main__":
    cli.run(main)
