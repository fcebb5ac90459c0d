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
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from torch import Tensor

from phase4_causal.long_texts.long_context import Attention, masked
from phase4_causal.long_texts.sparse_attention import block_sparse_attention, strided_attention, tile_mask, tile_pattern
from shared import cli
from shared.attention_utils import causal_mask, local_mask, strided_mask
from shared.measure import count_operations
from shared.visualization_utils import BLUE, GREY, hatch_cell, headline, save_plot

NEAR, LENGTHS = 8, (64, 256)  # window, stride and block of the reach experiment; lengths of the text
LOCAL, STRIDED, IN_TURN = "local", "strided", "local and strided in turn"
FIRST, BIG_BIRD = "near and first tile", "near, first and random tile"
COST_LENGTH, STRIDE, BLOCK = 2048, 64, 64


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


def score_cells(attention: Attention, length: int) -> int:
    """Scores that one head computes: with d_k = d_v = 1, each takes 2 operations for itself and 2 for its value."""
    return count_operations(attention, *torch.zeros(3, 1, length, 1)) // 4


def shares_computed(length: int) -> dict[str, float]:
    """What one head computes of the T² scores: behind a mask, and where the hidden ones are left out."""
    allowed = tile_pattern(length // BLOCK)
    calls = {
        "strided, masked": masked(strided_mask(length, length, STRIDE)),
        "strided": partial(strided_attention, stride=STRIDE),
        "tiles, masked": masked(tile_mask(allowed, BLOCK, length, length)),
        "tiles": partial(block_sparse_attention, block_size=BLOCK, allowed=allowed),
    }
    return {name: score_cells(call, length) / length**2 for name, call in calls.items()}


def show(tables: dict[int, dict[str, tuple[float, float]]]) -> None:
    """Layers until all have met, and what is computed; inf: never."""
    print(f"\n{f'layers until all have met (window, stride, block {NEAR})':54}without    with a causal mask")
    for name in tables[LENGTHS[0]]:
        for length, table in tables.items():
            print(f"   {name:32}{f'T = {length}':16}" + "".join(f"{layers:>10}" for layers in table[name]))
    print(f"\nScores that are computed at {COST_LENGTH:,} tokens, stride {STRIDE}, tiles of {BLOCK}")
    for name, share in shares_computed(COST_LENGTH).items():
        print(f"   {name:18}{share:6.1%}")


def draw_reach(ax: Axes, seen: Tensor) -> None:
    """Which input (across) has reached which output (down): plain where it has, hatched where not."""
    hatch_cell(ax, 0, 0, *seen.shape)
    reached = seen.float().masked_fill(~seen, math.nan)
    ax.pcolormesh(reached.numpy(), cmap=ListedColormap([BLUE]))
    ax.set(xlim=(0, len(seen)), ylim=(len(seen), 0), aspect="equal", xticks=[], yticks=[])
    ax.spines[:].set(visible=True, color=GREY)
    ax.set_xlabel(f"{seen.double().mean():.0%} of the pairs", fontsize=10)


def draw(length: int) -> tuple[Figure, str]:
    """A column for each pattern, a row for each number of layers."""
    table = patterns(length)
    shown = {"near words": LOCAL, f"every {NEAR}th word": STRIDED, f"near and every {NEAR}th in turn": IN_TURN}
    fig, axes = plt.subplots(2, len(shown), figsize=(7.6, 6), layout="constrained")
    for panels, (title, name) in zip(axes.T, shown.items(), strict=True):
        panels[0].set_title(title, fontsize=11)
        for ax, seen in zip(panels, reach(itertools.cycle(table[name])), strict=False):
            draw_reach(ax, seen)
    for ax, layers in zip(axes[:, 0], ("1 layer", "2 layers"), strict=True):
        ax.set_ylabel(f"after {layers}", fontsize=11)
    title = "Near and far layers in turn connect all words in two layers"
    headline(fig, title, f"blue: has reached · hatched: not yet · {length} words, queries ↓, keys → · no model")
    return fig, f"{title}. What each of three patterns connects after one layer and after two."


@cli.script
def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    tables = {length: layers_by_pattern(length) for length in LENGTHS}
    show(tables)
    save_plot(options, "phase4/sparse_reach", *draw(LENGTHS[0]))
    (both, _), (near, _) = (tables[LENGTHS[-1]][name] for name in (IN_TURN, LOCAL))
    return f"{LENGTHS[-1]} words, near and far in turn: {both} layers; a window of {NEAR} alone: {near}"


if __name__ == "__main__":
    cli.run(main)
