"""What may a word see, and what if a mask is read in another convention?

A mask is a predicate on two positions, so each is one line in shared/attention_utils.py, and masks combine with `&`,
which is drawn here. Then the traps. Readers meet four ways to write the same mask:

    bool, True = may attend     this repository and F.scaled_dot_product_attention
    additive, 0 or -inf         added to the scores
    1 or 0                      textbooks; made for masked_fill(mask == 0, -inf), yet often added or multiplied
    bool, True = hidden         nn.MultiheadAttention, the inverse of the first

and code that expects one of them and is given another raises no error. The table shows what it does instead.

    python phase4_causal/masking/masks.py

Writes mask_gallery.png and mask_conventions.png to visualizations/plots/phase4/.
"""

import itertools
import math
import textwrap
from collections.abc import Callable

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from phase1_single_head.self_attention import masked_softmax
from shared import cli
from shared.attention_utils import causal_mask, local_mask, padding_mask
from shared.visualization_utils import BLUE, QUIET, RED, hatch_cell, headline, save_plot

LENGTH, NUM_SCORES = 6, 500
ZERO = 1e-12
ALLOWED = (BLUE, 0.3)  # colour and opacity of a cell that may be attended to

# how a causal mask is written down: bool (T, T), True = may attend -> the tensor that is passed around
WRITTEN: dict[str, Callable[[Tensor], Tensor]] = {
    "True = may attend": lambda allowed: allowed,
    "0 or -inf": lambda allowed: torch.zeros(allowed.shape, dtype=torch.float64).masked_fill(~allowed, -math.inf),
    "1 or 0": lambda allowed: allowed.double(),
    "True = hidden": lambda allowed: ~allowed,
}
# how code reads a mask: (scores (..., T, T), mask (T, T)) -> weights (..., T, T)
READ: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "True = may attend": lambda scores, mask: masked_softmax(scores, mask.bool()),
    "scores + mask": lambda scores, mask: torch.softmax(scores + mask, dim=-1),
    "fill where mask == 0": lambda scores, mask: torch.softmax(scores.masked_fill(mask == 0, -1e9), dim=-1),
    "scores * mask": lambda scores, mask: torch.softmax(scores * mask, dim=-1),
    "True = hidden": lambda scores, mask: masked_softmax(scores, ~mask.bool()),
}


def combinations(length: int) -> list[dict[str, Tensor]]:
    """Twice two masks of `length` queries and keys, and both combined: name -> bool (T, T)."""
    causal, near = causal_mask(length), local_mask(length, length, window=2)
    real = padding_mask(torch.tensor([length - 2]), length)[0, 0].expand(length, length)  # (1, 1, 1, T) -> (T, T)
    return [
        {"causal: nothing later": causal, "padding: no filler at the end": real, "both": causal & real},
        {"causal: nothing later": causal, "local: at most 2 words away": near, "both": causal & near},
    ]


def draw_mask(ax: Axes, mask: Tensor) -> None:
    """One mask (T, T), queries down and keys across: allowed cells plain, hidden ones hatched."""
    for row, column in itertools.product(*map(range, mask.shape)):
        if mask[row, column]:
            ax.add_patch(Rectangle((column, row), 1, 1, facecolor=ALLOWED, edgecolor="white", linewidth=0.8))
        else:
            hatch_cell(ax, column, row)
    ax.set(xlim=(0, mask.size(1)), ylim=(mask.size(0), 0), aspect="equal")
    ax.xaxis.tick_top()
    ax.xaxis.set_label_position("top")
    ax.tick_params(length=0, pad=2)
    ax.spines[:].set_visible(False)


def draw_gallery(rows: list[dict[str, Tensor]]) -> tuple[Figure, str]:
    """Each row reads: this mask & this mask = both."""
    fig, axes = plt.subplots(len(rows), 3, figsize=(8, 6.3), layout="constrained")
    fig.get_layout_engine().set(wspace=0.12, hspace=0.06)
    for panels, masks in zip(axes, rows, strict=True):
        for ax, sign, (name, mask) in zip(panels, ("", "&", "="), masks.items(), strict=True):
            draw_mask(ax, mask)
            places = [i + 0.5 for i in range(len(mask))]
            ax.set_xticks(places, range(len(mask)))
            ax.set_yticks(places, range(len(mask)))
            ax.set_title(name, fontsize=10, pad=6)
            ax.text(-0.22, 0.5, sign, transform=ax.transAxes, fontsize=22, ha="center", va="center")
    title = "Two masks combine with “and”: a word may be seen only where both allow it"
    headline(fig, title, "plain: may attend · hatched: hidden · rows: queries, columns: keys · no model")
    return fig, f"{title}. Causal and padding, causal and local: each mask, and both together, as grids of cells."


def future_mass(weights: Tensor) -> float:
    """Weight on later keys, mean over all rows -> 0 to 1, NaN if a row has no weights; weights (..., T, T)."""
    return weights.triu(diagonal=1).sum(dim=-1).mean().item()


def random_scores() -> Tensor:
    """Standard normal scores (NUM_SCORES, T, T), float64, the same at every call."""
    return torch.randn(NUM_SCORES, LENGTH, LENGTH, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


Mixes = dict[tuple[str, str], tuple[float, float]]


def mixes() -> Mixes:
    """(written, read) -> weight in the future per row, and largest difference from causal attention (NaN: some NaN)."""
    scores, allowed = random_scores(), causal_mask(LENGTH)
    right = masked_softmax(scores, allowed)
    found = {}
    for written, write in WRITTEN.items():
        for read_as, read in READ.items():
            weights = read(scores, write(allowed))
            found[written, read_as] = (future_mass(weights), (weights - right).abs().max().item())
    return found


def draw_conventions(found: Mixes, unmasked: float) -> tuple[Figure, str]:
    """The table of mixes: a row for how the mask is written, a column for how it is read."""
    fig, ax = plt.subplots(figsize=(8.6, 4.2), layout="constrained")
    right = silent = 0
    for (row, written), (column, read_as) in itertools.product(enumerate(WRITTEN), enumerate(READ)):
        mass, difference = found[written, read_as]
        if math.isnan(mass):
            text, color = "NaN", "white"
        elif difference < ZERO:
            text, color, right = "right", ALLOWED, right + 1
        else:
            text, color, silent = f"{mass:.2f}", (RED, 0.1 + 0.6 * mass), silent + 1
        ax.add_patch(Rectangle((column, row), 1, 1, facecolor=color, edgecolor="white", linewidth=2))
        ax.text(column + 0.5, row + 0.5, text, ha="center", va="center", fontsize=12)
    ax.set(xlim=(0, len(READ)), ylim=(len(WRITTEN), 0))
    ax.set_xticks([i + 0.5 for i in range(len(READ))], [textwrap.fill(name, 13) for name in READ])
    ax.set_yticks([i + 0.5 for i in range(len(WRITTEN))], WRITTEN)
    ax.xaxis.tick_top()
    ax.xaxis.set_label_position("top")
    ax.set_xlabel("the code reads it as", color=QUIET, labelpad=8)
    ax.set_ylabel("the mask is written as", color=QUIET)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    title = f"Handing a mask to other code: {silent} of {len(found)} ways leak the future without an error"
    note = f"numbers: share of a row's weight on later words; without any mask {unmasked:.2f}"
    headline(fig, title, f"{note} · random scores, no model involved")
    return fig, f"{title}. A table: how the mask is written, how code reads it, and the weight on later words."


@cli.script
def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    save_plot(options, "phase4/mask_gallery", *draw_gallery(combinations(8)))
    found, unmasked = mixes(), future_mass(random_scores().softmax(dim=-1))
    save_plot(options, "phase4/mask_conventions", *draw_conventions(found, unmasked))
    right = sum(difference < ZERO for _, difference in found.values())
    return f"{right} of {len(found)} ways to mix mask and code are right, and no other one raises an error"


if __name__ == "__main__":
    cli.run(main)
