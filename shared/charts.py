"""What experiments draw: lines against sizes, bars beside a guess, arcs over words.

Heatmaps and other matrices are in shared/visualization_utils.py, with the look of all pictures.

Each draws on an Axes and returns it. values: name -> its numbers, one a seed (Results.each). A name
keeps its colour in all panels of a figure.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from statistics import fmean

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Rectangle
from torch import Tensor

from shared.visualization_utils import GREY, HIDDEN, INK, QUIET, label_ends

PALE = "#ccd2d8"  # of arcs that are there, but not meant


def lines(
    ax: Axes,
    sizes: Sequence[float],
    rows: Mapping[str, Sequence[float]],
    colors: Mapping[str, str],
    *,
    guess: float | None = None,
    guess_name: str = "a guess",
) -> Axes:
    """Draw a line for each name, its name at its end.

    Sizes that grow eightfold or more stand at even distances. A shorter row ends early, and so does
    its line. guess: a dotted line where somebody would be who has learned nothing.
    """
    style = {"markersize": 5, "linewidth": 2, "clip_on": False, "zorder": 3}
    ends = {}
    for name, row in rows.items():
        ax.plot(sizes[: len(row)], row, "o-", color=colors[name], **style)
        ends[name] = (sizes[len(row) - 1], row[-1], colors[name])
    if sizes[0] > 0 and sizes[-1] / sizes[0] >= 8:
        ax.set_xscale("log", base=2)
    ax.set_xticks(sizes, sizes)
    ax.minorticks_off()
    ax.set_xlim(sizes[0], sizes[-1])
    if guess is not None:
        ax.axhline(guess, color=QUIET, linewidth=1, linestyle=":")
        ends[guess_name] = (sizes[-1], guess, QUIET)
    label_ends(ax, ends)
    return ax


def bars(
    ax: Axes,
    values: Mapping[str, Sequence[float]],
    colors: Mapping[str, str],
    *,
    guess: float | None = None,
    guess_name: str = "a guess",
    number: str = "{:.2f}",
) -> Axes:
    """Draw a bar for the mean of each name, the first on top, the number at its end.

    Of several seeds each has a dot. guess: a dotted line where somebody would be who has learned
    nothing.
    """
    dots = {"color": INK, "markersize": 4.5, "alpha": 0.75}
    dots |= {"markeredgecolor": "white", "markeredgewidth": 0.5}  # seen on dark bars, too
    highest = max(max(seeds) for seeds in values.values())
    lowest = 0.0
    for row, (name, seeds) in enumerate(values.items()):
        mean = fmean(seeds)
        lowest = min(lowest, mean)
        ax.barh(name, mean, 0.6, color=colors[name])
        if len(seeds) > 1:
            ax.plot(seeds, [row] * len(seeds), "o", **dots)
        end = max(*seeds, mean)
        ground = {"facecolor": "white", "edgecolor": "none", "pad": 1}  # breaks a guess's line
        ax.text(end + 0.03 * highest, row, number.format(mean), va="center", bbox=ground)
    bottom = len(values) - 0.4
    if guess is not None:
        ax.axvline(guess, color=INK, linewidth=1, linestyle=":")
        ax.text(guess, bottom, guess_name, ha="center", va="top", color=QUIET)
    ax.set_ylim(bottom, -0.6)  # the first on top, also where panels share this axis
    ax.set(xlim=(lowest, 1.2 * max(highest, guess or 0)), xticks=[])
    ax.tick_params(length=0)
    return ax


def cells(
    ax: Axes, left: float, top: float, numbers: Tensor, colors: Sequence[Sequence[str]]
) -> Axes:
    """Draw whole numbers (rows, columns) in cells, each on a light shade of its colour.

    The first cell begins at left, top. A pale 0 stands for NaN.
    """
    for (row, column), number in np.ndenumerate(numbers.numpy()):
        x, y = left + column, top + row
        if math.isnan(number):
            ax.add_patch(Rectangle((x, y), 1, 1, facecolor="white", edgecolor=HIDDEN))
            ax.text(x + 0.5, y + 0.5, "0", color=GREY, ha="center", va="center", fontsize=11)
            continue
        face = (colors[row][column], 0.3)
        ax.add_patch(Rectangle((x, y), 1, 1, facecolor=face, edgecolor="white"))
        text = f"{number:.0f}".replace("-", "−")
        ax.text(x + 0.5, y + 0.5, text, ha="center", va="center", fontsize=11)
    return ax


def large(weights: Tensor, threshold: float) -> Tensor:
    """Which weights (..., T, T) deserve an arrow: those above `threshold` even shares of 1/T."""
    return weights > threshold / weights.size(-1)


def arcs(
    ax: Axes,
    weights: Tensor,
    words: Sequence[str],
    color: str,
    *,
    threshold: float = 2.0,
    pairs: Collection[tuple[int, int]] | None = None,
) -> Axes:
    """Draw words in a row, and over them an arc from query to key for each large weight (T, T).

    The thicker an arc, the more weight. What a word gives to itself is left out. threshold: see
    `large`. pairs: the (query, key) that have the colour, if not all; others are pale grey.
    """
    highest = 0.5
    for i, j in large(weights, threshold).nonzero().tolist():
        if i == j:
            continue
        has_color = pairs is None or (i, j) in pairs
        weight = weights[i, j].item()
        rise = 0.3 + 0.05 * abs(i - j)  # of its middle over its ends, in words
        highest = max(highest, rise)
        inwards = math.copysign(0.06, j - i)
        arc = FancyArrowPatch(
            (i + inwards, 0.2),
            (j - inwards, 0.2),
            connectionstyle=f"arc3,rad={-2 * rise / (j - i)}",
            arrowstyle="-|>",
            shrinkA=0,
            shrinkB=0,
            color=color if has_color else PALE,
            zorder=1 + has_color,
            linewidth=0.6 + 4 * weight,
            mutation_scale=8 + 6 * weight,
        )
        ax.add_patch(arc)
    for x, word in enumerate(words):
        ax.text(x, 0, word, ha="center", va="center", fontsize=min(16, 100 / len(words)))
    ax.set(xlim=(-0.6, len(words) - 0.4), ylim=(-0.2, 0.3 + highest), aspect="equal")
    ax.axis("off")
    return ax
