"""Charts that most experiments need: lines against sizes, bars beside a guess, a dot for each seed.

Each draws on an Axes and returns it. values: name -> its numbers, one a seed (Results.each). A name
keeps its colour in all panels of a figure.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from statistics import fmean

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.patches import FancyArrowPatch, Rectangle
from torch import Tensor

from shared.visualization_utils import GREY, HIDDEN, INK, QUIET, label_ends


def lines(
    ax: Axes,
    sizes: Sequence[float],
    rows: Mapping[str, Sequence[float]],
    colors: Mapping[str, str],
    *,
    guess: float | None = None,
    guess_name: str = "a guess",
) -> Axes:
    """A line for each name, its name at its end; sizes that grow eightfold or more stand at even
    distances.

    guess: a dotted line where somebody would be who has learned nothing.
    """
    for name, row in rows.items():
        ax.plot(
            sizes, row, "o-", color=colors[name], markersize=5, linewidth=2, clip_on=False, zorder=3
        )
    if sizes[0] > 0 and sizes[-1] / sizes[0] >= 8:
        ax.set_xscale("log", base=2)
    ax.set_xticks(sizes, sizes)
    ax.minorticks_off()
    ax.set_xlim(sizes[0], sizes[-1])
    ends = {name: (sizes[-1], row[-1], colors[name]) for name, row in rows.items()}
    if guess is not None:
        ax.axhline(guess, color=QUIET, linewidth=1, linestyle=":")
        ends[guess_name] = (sizes[-1], guess, QUIET)
    label_ends(ax, ends, size=10)
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
    """A bar for each name, its mean, the first on top, the number at its end; of several seeds a
    dot each.

    guess: a dotted line where somebody would be who has learned nothing.
    """
    means = {name: fmean(seeds) for name, seeds in values.items()}
    ax.barh(list(means), list(means.values()), 0.6, color=[colors[name] for name in means])
    end = max(max(seeds) for seeds in values.values())
    for place, (name, seeds) in enumerate(values.items()):
        if len(seeds) > 1:
            ax.plot(
                seeds,
                [place] * len(seeds),
                "o",
                color=INK,
                markersize=4,
                alpha=0.6,
                markeredgewidth=0,
            )
        ax.text(
            max(*seeds, means[name], guess or 0) + 0.03 * end,
            place,
            number.format(means[name]),
            va="center",
        )
    if guess is not None:
        ax.axvline(guess, color=INK, linewidth=1, linestyle=":")
        ax.text(guess, len(means) - 0.4, guess_name, ha="center", va="top", color=QUIET)
    ax.set_ylim(len(means) - 0.4, -0.6)  # the first on top, also where panels share this axis
    ax.set(xlim=(min(0, *means.values()), 1.2 * max(end, guess or 0)), xticks=[])
    ax.tick_params(length=0)
    return ax


def cells(
    ax: Axes, left: float, top: float, numbers: Tensor, colors: Sequence[Sequence[str]]
) -> Axes:
    """Whole numbers (rows, columns) in cells, each on a light shade of its colour; the first cell
    begins at left, top.

    An empty cell stands for NaN.
    """
    for (row, column), number in np.ndenumerate(numbers.numpy()):
        empty, corner = math.isnan(number), (left + column, top + row)
        face = "white" if empty else to_rgba(colors[row][column], 0.3)
        ax.add_patch(
            Rectangle(corner, 1, 1, facecolor=face, edgecolor=HIDDEN if empty else "white")
        )
        text = "" if empty else f"{number:.0f}".replace("-", "−")
        ax.text(corner[0] + 0.5, corner[1] + 0.5, text, ha="center", va="center", fontsize=11)
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
    told: Collection[tuple[int, int]] | None = None,
) -> Axes:
    """Words in a row, and over them an arc from query to key for each weight (T, T) above
    `threshold` even shares 1/T.

    The thicker, the more weight; what a word gives to itself is left out. told: the only (query,
    key) to be drawn.
    """
    size, highest = len(words), 0.5
    for i, j in large(weights, threshold).nonzero().tolist():
        if i != j and (told is None or (i, j) in told):
            weight, rise = weights[i, j].item(), 0.3 + 0.05 * abs(i - j)
            highest = max(highest, rise)
            style = {
                "color": color,
                "linewidth": 0.6 + 4 * weight,
                "mutation_scale": 8 + 6 * weight,
            }
            ends = (i + 0.06 * (j - i) / abs(i - j), 0.2), (j - 0.06 * (j - i) / abs(i - j), 0.2)
            # Its middle is `rise` higher than its ends, in units of a word.
            bend = f"arc3,rad={-2 * rise / (j - i)}"
            ax.add_patch(
                FancyArrowPatch(
                    *ends, arrowstyle="-|>", connectionstyle=bend, shrinkA=0, shrinkB=0, **style
                )
            )
    for place, word in enumerate(words):
        ax.text(place, 0, word, ha="center", va="center", fontsize=min(16, 100 / size))
    ax.set(xlim=(-0.6, size - 0.4), ylim=(-0.2, 0.3 + highest), aspect="equal")
    ax.axis("off")
    return ax


def shares_down(
    ax: Axes,
    shares: Sequence[Tensor],
    words: Sequence[str],
    color: str,
    *,
    marked: int,
    least: float = 0.01,
) -> Axes:
    """Words in a row, and over them a line for each share that is handed down, in one storey for
    each of `shares`.

    shares: (T, T) each, the lowest storey first; entry (i, j) goes from place i above to place j
    below. The thicker a line, the larger its share; what stays in its place is grey, and less than
    `least` is not drawn. Below each word stands what arrives there in all, and the word at the
    place `marked` is bold.
    """
    size = len(words)
    for storey, share in enumerate(shares):
        for i, j in (share > least).nonzero().tolist():
            style = {"color": GREY if i == j else color, "linewidth": 22 * share[i, j].item()}
            ax.plot(
                [i, j], [storey + 0.97, storey + 0.03], solid_capstyle="butt", alpha=0.75, **style
            )
        leaving = share.sum(dim=1)  # (T, T) -> (T,)
        for i in (leaving > least).nonzero().flatten().tolist():
            ax.plot(i, storey + 1, "o", color=INK, markersize=4 + 8 * leaving[i].item(), zorder=3)
    arriving = shares[0].sum(dim=0)  # (T, T) -> (T,)
    for place, word in enumerate(words):
        style = {"ha": "center", "va": "top", "weight": "bold" if place == marked else "normal"}
        ax.text(place, -0.08, word, fontsize=min(15, 90 / size), **style)
        ax.text(place, -0.45, f"{arriving[place]:.2f}", fontsize=min(11, 90 / size), **style)
    ax.set(xlim=(-0.6, size - 0.4), ylim=(-0.75, len(shares) + 0.12))
    ax.axis("off")
    return ax
