"""The seven findings of the front door as small pictures, drawn from the record: a dot for each run.

Each picture has one panel and large type, since README shows it 420 pixels wide: a line for each quantity, and on it
its value with every seed and kind of processor in data/evidence.json. Nothing is measured here, and no run is needed.
"""

from pathlib import Path
from statistics import fmean

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from shared import paths
from shared.evidence import replications
from shared.evidence.claims import all_claims
from shared.toy_language import RELATIONS
from shared.visualization_utils import BLUE, INK, QUIET, RED, save_figure, theme

SIZE, DPI = (4.2, 2.1), 100  # inches; README's width, so that a point of type keeps its size
TYPE = 12


class Line:
    """A quantity: what it is called here, and which numbers of which claim it is in the record, their mean."""

    def __init__(self, label: str, claim: str, *numbers: str) -> None:
        self.label, self.claim, self.numbers = label, claim, numbers

    def values(self) -> list[float]:
        """Its value in every run."""
        claim = next(claim for claim in all_claims() if claim.id == self.claim)
        return [fmean(run[number] for number in self.numbers) for run in replications.published(claim).runs]


class Small:
    """One small picture; the last line is the surprise. limits of its axis; written: how its numbers are."""

    def __init__(self, unit: str, *lines: Line, limits: tuple[float, float] = (0, 1), written: str = "{:.0%}") -> None:
        self.unit, self.lines, self.limits, self.written = unit, lines, limits, written


SEVEN = {
    "bottleneck": Small(
        "right without attention, in the order read",
        Line("first quarter", "C174", "first quarter, in order"),
        Line("last quarter", "C174", "last quarter, in order"),
    ),
    "scaling": Small(
        "answers right after 300 steps, d_k = 64",
        Line("divided by √d_k", "C012", "divided, 64"),
        Line("not divided", "C012", "not divided, 64"),
        Line("not divided, smaller start", "C012", "smaller W_q, 64"),
    ),
    "heads": Small(
        "two look-ups at once: answers right",
        Line("eight heads, 200 steps", "one-head-two-lookups", "heads: 8, model 1"),
        Line("one head, 400 steps", "one-head-two-lookups", "heads: 1, twice the steps, model 1"),
        Line("one head, 200 steps", "one-head-two-lookups", "heads: 1, model 1"),
    ),
    "seed": Small(
        "related words that it finds",
        Line("the best head", "three-roles", *(f"four heads, two layers, {relation}" for relation in RELATIONS[:3])),
        Line("any head, on average", "same-place", "share right, mean head"),
        Line("that head, trained again", "same-place", "share right, same head"),
    ),
    "faithfulness": Small(
        "of the sentences",
        Line("weight on a related word", "faithful-weights", "raw weights, plausible"),
        Line("nearest word mattered", "faithful-weights", "nearest word, found"),
        Line("weight on what mattered", "faithful-weights", "raw weights, found"),
    ),
    "coreference": Small(
        "of 40 pairs with “it”, best of 72 heads",
        Line("both right", "pretrained-coreference", "both right"),
        Line("both wrong", "pretrained-coreference", "both wrong"),
        Line("same noun twice", "pretrained-coreference", "the same noun in both"),
        limits=(0, 40),
        written="{:.0f}",
    ),
    "induction": Small(
        "answers lost without induction heads",
        Line("one by one, summed", "induction-head-ablation", "without one, summed, wrong"),
        Line("all together", "induction-head-ablation", "without all, wrong"),
    ),
}


def range_of(values: list[float], written: str) -> str:
    """The least and the largest: "31–35%"."""
    low, high = written.format(min(values)), written.format(max(values))
    return low if low == high else f"{low.removesuffix('%')}–{high}"


def draw(small: Small) -> tuple[Figure, str]:
    """A line for each quantity, a dot for each run, the least and the largest written above."""
    fig, ax = plt.subplots(figsize=SIZE, layout="constrained")
    said = []
    for row, line in enumerate(small.lines):
        runs, color = line.values(), RED if line is small.lines[-1] else BLUE
        ax.hlines(row, *small.limits, color="#d5dade", linewidth=1, zorder=0)
        ax.plot(runs, [row] * len(runs), "o", color=color, alpha=0.45, markersize=8, markeredgewidth=0, clip_on=False)
        text = range_of(runs, small.written)
        ax.text(small.limits[0], row - 0.24, line.label, fontsize=TYPE, color=INK)
        ax.text(small.limits[1], row - 0.24, text, fontsize=TYPE, color=color, ha="right", weight="bold")
        said.append(f"{line.label} {text}")
    ax.set(xlim=small.limits, ylim=(len(small.lines) - 0.6, -0.75), yticks=[])
    ax.tick_params(labelsize=TYPE - 1, color="#aab2bb")
    if "%" in small.written:
        ax.xaxis.set_major_formatter(PercentFormatter(1))
    ax.spines.left.set_visible(False)
    ax.set_xlabel(small.unit, fontsize=TYPE, color=QUIET)
    return fig, f"{small.unit}: {', '.join(said)}; a dot for each run"


def draw_all(output_dir: Path) -> None:
    """Write all of them to visualizations/plots/seven/ below the output folder."""
    with theme(), plt.rc_context({"savefig.dpi": DPI}):
        for name, small in SEVEN.items():
            fig, caption = draw(small)
            save_figure(fig, output_dir / paths.PLOTS / "seven" / f"{name}.png", caption=caption)
