"""What sparse attention saves, and what it loses: how many layers until every word has heard of every other.

A layer with a sparse pattern lets a position see few others. The next layer reads what those have read, so reach
grows: as boolean matrices, reach after a layer = pattern · reach before it (the diagonal is the residual connection).
A window of 8 walks 8 positions a layer; every 8th position and nothing else never leaves its remainder. Together, in
turn, they see everything after two layers (Child et al. 2019). A first block that sees all and is seen by all is a hub
and does the same (Longformer, Beltagy et al. 2020; Big Bird, Zaheer et al. 2020), as long as it may look ahead.

Reach says what could arrive, not that a trained model sends it.

    python phase4_causal/long_texts/sparse_reach.py
    python phase4_causal/long_texts/sparse_reach.py --benchmark    times at 4,096 tokens, half a minute

Writes sparse_reach.png to visualizations/plots/phase4/.
"""

import argparse
import itertools
import math
import os
import statistics
from collections.abc import Iterable, Iterator
from functools import partial

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from torch import Tensor
from torch.autograd.profiler import profile

from phase2_multi_head.costs.cost_model import in_bytes
from phase4_causal.long_texts.long_context import Attention, masked
from phase4_causal.long_texts.sparse_attention import block_sparse_attention, strided_attention, tile_mask, tile_pattern
from shared import cli, paths
from shared.attention_utils import causal_mask, local_mask, strided_mask
from shared.evidence import findings
from shared.evidence.findings import Finding
from shared.measure import machine, median_ratio, paired_times, peak_memory
from shared.visualization_utils import INK, QUIET, model_note, save_figure

NEAR, LENGTHS = 8, (64, 256)  # window, stride and block of the reach experiment; lengths of the text
LOCAL, STRIDED, IN_TURN = "local", "strided", "local and strided in turn"
FIRST, BIG_BIRD = "near and first tile", "near, first and random tile"
COST_LENGTH, BENCHMARK_LENGTH, STRIDE, BLOCK, WIDTH = 2048, 4096, 64, 64, 64
Layers = dict[str, tuple[float, float]]  # pattern -> layers needed, without and with a causal mask
Cost = dict[str, tuple[int, int, int]]  # name -> score cells, peak bytes forward, peak bytes with backward


def patterns(length: int) -> dict[str, list[Tensor]]:
    """Name -> masks (T, T) of the layers, repeated from the first when they are used up."""
    near, far = local_mask(length, length, NEAR), strided_mask(length, length, NEAR)
    tiles = {FIRST: tile_pattern(length // NEAR), BIG_BIRD: tile_pattern(length // NEAR, num_random=1)}
    return {LOCAL: [near], STRIDED: [far], IN_TURN: [near, far]} | {
        name: [tile_mask(allowed, NEAR, length, length)] for name, allowed in tiles.items()
    }


def reach(layers: Iterable[Tensor]) -> Iterator[Tensor]:
    """After each layer: bool (T, T), row i = the input positions that position i can have heard of."""
    seen = None
    for mask in layers:
        if seen is None:
            seen = torch.eye(len(mask), dtype=torch.bool)  # before the first layer each position knows itself
        seen = seen | (mask.float() @ seen.float() > 0)  # its own, and what those it attends to had heard of
        yield seen


def layers_needed(masks: list[Tensor], target: Tensor) -> float:
    """Layers until everyone has heard of all that `target` (T, T) names; inf if reach stops growing before."""
    layers = reach(itertools.cycle(masks))
    before, count = torch.eye(len(target), dtype=torch.bool), 0
    while True:
        for seen in itertools.islice(layers, len(masks)):
            count += 1
            if bool((seen | ~target).all()):
                return count
        if torch.equal(seen, before):
            return math.inf  # every mask has had its turn and brought nothing new
        before = seen


def reach_table(length: int) -> Layers:
    """Pattern -> layers needed to see everything, and under a causal mask to see all of the past."""
    past = causal_mask(length)
    return {
        name: (
            layers_needed(masks, torch.ones_like(past)),
            layers_needed([mask & past for mask in masks], past),
        )
        for name, masks in patterns(length).items()
    }


def ways(length: int) -> dict[str, tuple[Attention, Tensor]]:
    """Name -> attention that is really sparse, and the mask (T, T) that says the same."""
    allowed = tile_pattern(length // BLOCK)
    masks = strided_mask(length, length, STRIDE), tile_mask(allowed, BLOCK, length, length)
    return {
        "strided": (partial(strided_attention, stride=STRIDE), masks[0]),
        "tiles": (partial(block_sparse_attention, block_size=BLOCK, allowed=allowed), masks[1]),
    }


def score_cells(attention: Attention, length: int) -> int:
    """Scores that one head computes, counted where they are made: the cells of all products of queries and keys."""
    d_k = 7  # nothing else here has this size, so a product over 7 numbers can only be query · key
    query, key, value = (torch.zeros(1, length, size) for size in (d_k, d_k, 1))
    with torch.no_grad(), profile(record_shapes=True) as profiler:
        attention(query, key, value)
    events = profiler.kineto_results.events()
    products = [event.shapes()[:2] for event in events if event.name() == "aten::bmm"]
    return sum(n * rows * columns for (n, rows, inner), (_, _, columns) in products if inner == d_k)


def peaks(attention: Attention, length: int) -> tuple[int, int]:
    """Peak bytes of one head, forward, and forward with backward."""
    inputs = torch.randn(3, 1, 1, length, WIDTH, requires_grad=True)

    @torch.no_grad()
    def forward() -> Tensor:
        return attention(*inputs)

    return peak_memory(forward), peak_memory(lambda: torch.autograd.grad(attention(*inputs).sum(), inputs))


def costs(length: int) -> Cost:
    """Name -> score cells of one head, peak bytes forward, peak bytes forward and backward."""
    calls = {}
    for name, (sparse, mask) in ways(length).items():
        calls |= {f"{name}, masked": masked(mask), name: sparse}
    return {name: (score_cells(call, length), *peaks(call, length)) for name, call in calls.items()}


def in_words(layers: float) -> str:
    return "never" if layers == math.inf else str(layers)


def show(by_length: dict[int, Layers], cost: Cost) -> None:
    print(f"\nLayers until every position has heard of every other; window, stride and block {NEAR}")
    print(f"   {'':28}" + "".join(f"{f'T = {n}':>10}{'causal':>10}" for n in by_length))
    for name in by_length[LENGTHS[0]]:
        counts = (count for table in by_length.values() for count in table[name])
        print(f"   {name:28}" + "".join(f"{in_words(count):>10}" for count in counts))
    print(
        f"\nOne head at {COST_LENGTH:,} tokens; stride {STRIDE}; tiles of {BLOCK}: the own, both neighbours, the first"
    )
    print(f"   {'':20}{'score cells':>14}{'of T²':>9}{'peak memory':>14}{'and backward':>14}")
    for name, (cells, forward, both) in cost.items():
        share = cells / COST_LENGTH**2
        print(f"   {name:20}{cells:14,}{share:9.1%}{in_bytes(forward):>14}{in_bytes(both):>14}")


def draw(length: int) -> tuple[Figure, str]:
    """A column for each pattern, a row for each number of layers: which input (across) has reached which output."""
    shown = {name: masks for name, masks in patterns(length).items() if name != FIRST}
    fig, axes = plt.subplots(3, len(shown), figsize=(9.2, 7.8), layout="constrained")
    for column, (name, masks) in enumerate(shown.items()):
        for row, seen in enumerate(itertools.islice(reach(itertools.cycle(masks)), 3)):
            ax = axes[row, column]
            ax.imshow(seen.numpy(), cmap=ListedColormap([INK, "white"]), vmin=0, vmax=1, interpolation="nearest")
            ax.set(xticks=[], yticks=[])
            ax.spines[:].set(visible=True, color="#aab2bb")
            ax.set_xlabel(f"{seen.double().mean():.0%} reached", color=QUIET)
            if row == 0:
                ax.set_title(name, fontsize=10)
            if column == 0:
                ax.set_ylabel(f"after {row + 1} layer{'s' if row else ''}")
    table = reach_table(length)
    counts = " · ".join(f"{name}: {in_words(table[name][0])}" for name in shown)
    title = f"Layers until all {length} positions have heard of each other\n{counts}"
    fig.suptitle(title, fontsize=12)
    model_note(fig, f"white: has reached · window, stride and block {NEAR} · a row for each output position · no model")
    return (
        fig,
        f"{title.replace(chr(10), ': ')}. White: the input position (column) has reached the output position (row).",
    )


def benchmark() -> None:
    """How many times as long masked attention takes as really sparse one; wall clock, so only in the terminal."""
    threads = torch.get_num_threads()
    torch.set_num_threads(min(2, os.cpu_count() or 1))
    try:
        print(f"\n8 heads of {WIDTH}, {BENCHMARK_LENGTH:,} tokens, forward; {machine()}")
        inputs = torch.randn(3, 1, 8, BENCHMARK_LENGTH, WIDTH)
        for name, (sparse, mask) in ways(BENCHMARK_LENGTH).items():
            calls = {
                name: sparse,
                "plain attention, same mask": masked(mask),
                "F.scaled_dot_product_attention, same mask": partial(F.scaled_dot_product_attention, attn_mask=mask),
            }
            with torch.no_grad():
                times = paired_times({key: partial(call, *inputs) for key, call in calls.items()}, rounds=3)
            for key, seconds in times.items():
                ratio = median_ratio(times, key, name)
                print(f"   {key:44}{statistics.median(seconds) * 1e3:10.1f} ms{ratio:8.1f} times {name}")
    finally:
        torch.set_num_threads(threads)


def record_findings(by_length: dict[int, Layers], cost: Cost, options: argparse.Namespace) -> None:
    layers = {f"{name}, T = {n}": by_length[n][name][0] for name in (LOCAL, IN_TURN, FIRST, BIG_BIRD) for n in LENGTHS}
    near_and_far = [count for name, count in layers.items() if not name.startswith(f"{LOCAL}, T")]
    hubs = {
        f"{name}{kind}": by_length[LENGTHS[-1]][name][i]
        for name in (FIRST, BIG_BIRD)
        for i, kind in enumerate(("", ", causal"))
    }
    shares = {name: cells / COST_LENGTH**2 for name, (cells, _, _) in cost.items()}
    findings.record(
        "phase4_causal/long_texts/sparse_reach.py",
        [
            Finding(
                "sparse-reach",
                "Two layers of sparse attention let every word hear of every other",
                "Child et al. 2019; Beltagy et al. 2020; Zaheer et al. 2020",
                layers,
                f"layers until all pairs have met; window, stride and block {NEAR}",
                "2 layers at most, whatever the pattern; or else for patterns that look near and far",
                **findings.conditional(
                    max(layers.values()) <= 2,
                    max(near_and_far) <= 2,
                    "some layer or tile looks far; a window alone needs T / window layers",
                ),
                control=f"strided alone: {in_words(by_length[LENGTHS[-1]][STRIDED][0])}, it stays within its remainder",
            ),
            Finding(
                "sparse-hub",
                "A first block that all see and that sees all connects all words in two layers",
                "Beltagy et al. 2020; Zaheer et al. 2020",
                hubs,
                f"layers at {LENGTHS[-1]} tokens until all pairs have met; causal: until all of the past has",
                "2 layers at most, with a causal mask, too; or else without one",
                **findings.conditional(
                    max(hubs.values()) <= 2,
                    max(count for name, count in hubs.items() if "causal" not in name) <= 2,
                    "the block may look ahead; under a causal mask it has heard of nothing but itself",
                ),
            ),
            Finding(
                "sparse-cells",
                "A sparse pattern makes attention cheaper",
                "Child et al. 2019",
                {name: round(share, 4) for name, share in shares.items()},
                f"scores that are computed, as a share of T², at {COST_LENGTH:,} tokens, counted",
                "at most 1/4, with a mask, too; or else in the functions that leave hidden pairs out",
                **findings.conditional(
                    max(shares.values()) <= 1 / 4,
                    max(share for name, share in shares.items() if "masked" not in name) <= 1 / 4,
                    "the hidden pairs are left out; a mask hides them after they were computed",
                ),
            ),
        ],
        options.output_dir,
    )


def main(argv: list[str] | None = None) -> None:
    parser = cli.parser(__doc__)
    parser.add_argument(
        "--benchmark", action="store_true", help=f"measure times at {BENCHMARK_LENGTH:,} tokens instead"
    )
    options = cli.parse(parser, argv)
    if options.benchmark:
        benchmark()
        return
    by_length = {length: reach_table(length) for length in LENGTHS}
    cost = costs(COST_LENGTH)
    show(by_length, cost)
    figure, caption = draw(LENGTHS[0])
    path = options.output_dir / paths.PLOTS / "phase4" / f"sparse_reach.{options.format}"
    save_figure(figure, path, caption=caption)
    record_findings(by_length, cost, options)


if __name__ == "__main__":
    cli.run(main)
