"""How many layers of sparse attention until all words have heard of all?

A layer with a sparse pattern lets a position see few others. The next layer reads what those have read, so reach
grows: as boolean matrices, reach after a layer = pattern · reach before it (the diagonal is the residual connection).
A window of 8 walks 8 positions a layer; every 8th position and nothing else never leaves its remainder. Together, in
turn, they see everything after two layers (Child et al. 2019). A first block that sees all and is seen by all is a hub
and does the same (Longformer, Beltagy et al. 2020; Big Bird, Zaheer et al. 2020), as long as it may look ahead.

Reach says what could arrive, not that a trained model sends it. What a pattern saves is counted, too.

    python phase4_causal/long_texts/sparse_reach.py

Writes sparse_reach.png to visualizations/plots/phase4/.
"""

import itertools
import math
from collections.abc import Iterable, Iterator
from functools import partial

import matplotlib.pyplot as plt
import torch
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from torch import Tensor

from phase4_causal.long_texts.long_context import Attention, masked
from phase4_causal.long_texts.sparse_attention import block_sparse_attention, strided_attention, tile_mask, tile_pattern
from shared import cli
from shared.attention_utils import causal_mask, local_mask, strided_mask
from shared.evidence import findings
from shared.evidence.claims import IDENTITY, Claim, measures
from shared.measure import count_operations, peak_memory
from shared.visualization_utils import INK, QUIET, headline, save_plot

NEAR, LENGTHS = 8, (64, 256)  # window, stride and block of the reach experiment; lengths of the text
LOCAL, STRIDED, IN_TURN = "local", "strided", "local and strided in turn"
FIRST, BIG_BIRD = "near and first tile", "near, first and random tile"
UNIT = f"{LENGTHS[0]} words, with a causal mask, {LENGTHS[1]} words, with a causal mask; window, stride, block {NEAR}"
COST_LENGTH, STRIDE, BLOCK, WIDTH = 2048, 64, 64, 64
PAIR_LENGTHS = (256, 1024)


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


def layers_by_pattern(length: int) -> dict[str, tuple[float, float]]:
    """Pattern -> layers needed to see everything, and under a causal mask to see all of the past."""
    past = causal_mask(length)
    return {
        name: (
            layers_needed(masks, torch.ones_like(past)),
            layers_needed([mask & past for mask in masks], past),
        )
        for name, masks in patterns(length).items()
    }


@measures(
    Claim(
        id="sparse-reach",
        text="Two layers of sparse attention let every word hear of every other",
        kind=IDENTITY,
        source="Child et al. 2019; Beltagy et al. 2020; Zaheer et al. 2020",
        rule="2 layers at most, whatever the pattern; or else for patterns that look near and far",
        holds=lambda n: max(max(n[name][::2]) for name in (LOCAL, IN_TURN, FIRST, BIG_BIRD)) <= 2,
        only_if=lambda n: max(max(n[name][::2]) for name in (IN_TURN, FIRST, BIG_BIRD)) <= 2,
        condition="some layer or tile looks far; a window alone needs T / window layers",
        unit=f"layers until all have met; {UNIT}",
        control="strided alone: never, it stays within its remainder",
        shows=("local*", "near*"),
    ),
    Claim(
        id="sparse-hub",
        text="A first block that all see and that sees all connects all words in two layers",
        kind=IDENTITY,
        source="Beltagy et al. 2020; Zaheer et al. 2020",
        rule="2 layers at most, with a causal mask, too; or else without one",
        holds=lambda n: max(n[FIRST] + n[BIG_BIRD]) <= 2,
        only_if=lambda n: max(n[FIRST][::2] + n[BIG_BIRD][::2]) <= 2,
        condition="the block may look ahead; under a causal mask it has heard of nothing but itself",
        unit=f"layers until all have met; {UNIT}",
        shows=("near*",),
    ),
)
def layers_until_all_met() -> dict[str, list[float]]:
    """Pattern -> layers for each length, without and with a causal mask; inf: never."""
    tables = [layers_by_pattern(length) for length in LENGTHS]
    return {name: [layers for table in tables for layers in table[name]] for name in tables[0]}


@measures(
    Claim(
        id="C057",
        text="Seeing every k-th position only brings the cost down from T² to T √T",
        kind=IDENTITY,
        rule="at most 9 times with a fixed k (T √T is 8, T² is 16); or else with k = √T",
        holds=lambda n: n["stride 8"] <= 9,
        only_if=lambda n: n["stride √T"] <= 9,
        condition="k grows like √T; with a fixed k the pairs are T² / k",
        unit=f"how many times as many pairs are left at {PAIR_LENGTHS[1]:,} tokens as at {PAIR_LENGTHS[0]}",
    )
)
def growth_of_pairs() -> dict[str, float]:
    """Pairs of query and key that a mask leaves: what a kernel that skips hidden pairs would compute."""
    left = {
        "stride 8": lambda n: strided_mask(n, n, 8).sum().item(),
        "stride √T": lambda n: strided_mask(n, n, round(n**0.5)).sum().item(),
        "window 16": lambda n: local_mask(n, n, 16).sum().item(),
        "all": lambda n: n * n,
    }
    short, long = PAIR_LENGTHS
    return {name: pairs(long) / pairs(short) for name, pairs in left.items()}


def score_cells(attention: Attention, length: int) -> int:
    """Scores that one head computes: with d_k = d_v = 1, each takes 2 operations for itself and 2 for its value."""
    return count_operations(attention, *torch.zeros(3, 1, length, 1)) // 4


@measures(
    Claim(
        id="sparse-cells",
        text="A sparse pattern makes attention cheaper",
        kind=IDENTITY,
        source="Child et al. 2019",
        rule="at most 1/4, with a mask, too; or else in the functions that leave hidden pairs out",
        holds=lambda n: (
            max(n[f"of T²: {way}"] for way in ("strided", "tiles", "strided, masked", "tiles, masked")) <= 1 / 4
        ),
        only_if=lambda n: max(n["of T²: strided"], n["of T²: tiles"]) <= 1 / 4,
        condition="the hidden pairs are left out; a mask hides them after they were computed",
        unit=f"scores that are computed, as a share of T², at {COST_LENGTH:,} tokens, counted",
        shows=("of T²*",),
    )
)
def costs(length: int = COST_LENGTH) -> dict[str, float | list[int]]:
    """What one head computes, and the most bytes that it needs at a time, forward and with backward."""
    allowed = tile_pattern(length // BLOCK)
    calls = {
        "strided, masked": masked(strided_mask(length, length, STRIDE)),
        "strided": partial(strided_attention, stride=STRIDE),
        "tiles, masked": masked(tile_mask(allowed, BLOCK, length, length)),
        "tiles": partial(block_sparse_attention, block_size=BLOCK, allowed=allowed),
    }
    inputs = torch.randn(3, 1, 1, length, WIDTH, requires_grad=True)
    found = {f"of T²: {name}": score_cells(call, length) / length**2 for name, call in calls.items()}
    for name, call in calls.items():
        with torch.no_grad():
            forward = peak_memory(partial(call, *inputs))
        both = peak_memory(lambda call=call: torch.autograd.grad(call(*inputs).sum(), inputs))
        found[f"bytes, and with backward: {name}"] = [forward, both]
    return found


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
    table = layers_by_pattern(length)
    counts = " · ".join(f"{name}: {'never' if table[name][0] == math.inf else table[name][0]}" for name in shown)
    title = f"Layers until all {length} positions have heard of each other\n{counts}"
    note = f"white: has reached · window, stride and block {NEAR} · a row for each output position · no model"
    headline(fig, title, note, size=12)
    return (
        fig,
        f"{title.replace(chr(10), ': ')}. White: the input position (column) has reached the output position (row).",
    )


def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    layers = layers_until_all_met()
    save_plot(options, "phase4/sparse_reach", *draw(LENGTHS[0]))
    findings.record(options, layers, growth_of_pairs(), costs())
    both, near = layers[IN_TURN][-2], layers[LOCAL][-2]
    return f"{LENGTHS[-1]} words, near and far in turn: {both} layers; a window of {NEAR} alone: {near}"


if __name__ == "__main__":
    cli.run(main)
