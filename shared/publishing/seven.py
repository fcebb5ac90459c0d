"""The seven findings of the front door as small pictures, drawn from the record: a dot for each of
ten seeds.

Each picture has one panel and large type, since README shows it 420 pixels wide: a line for each
quantity, on it its ten values, shaded where the next seed falls, which is written above. Nothing is
measured here, and no run is needed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from shared import paths
from shared.evidence import findings, record
from shared.publishing import one_seed
from shared.visualization_utils import BLUE, INK, QUIET, RED, save_figure, theme

SIZE, DPI = (4.2, 2.1), 100  # inches; README's width, so that a point of type keeps its size
TYPE = 12


@dataclass(frozen=True)
class Small:
    """One small picture: what is counted, and of which experiment; label -> the numbers whose mean
    a line shows.

    The last line is the surprise.
    """

    unit: str
    experiment: str
    lines: Mapping[str, tuple[str, ...]]
    limits: tuple[float, float] = (0, 1)
    written: str = "{:.0%}"

    def values(self, label: str) -> list[float]:
        """What a line shows, seed by seed."""
        if self.experiment == "one_seed":
            return [one_seed.undone(one_seed.verdicts("all"), int(k)) for k in self.lines[label]]
        return [
            fmean(run[name] for name in self.lines[label]) for run in record.runs(self.experiment)
        ]


SEVEN = {
    "bottleneck": Small(
        "first quarter right minus last, without attention",
        "bottleneck",
        {
            "trained at 4 to 24 letters": ("mixed lengths, first minus last",),
            "trained at 24 alone": ("24 alone, first minus last",),
        },
    ),
    "scaling": Small(
        "answers right after 300 steps, d_k = 64",
        "scaling",
        {
            "divided by √d_k": ("divided, best rate",),
            "not divided": ("not divided, best rate",),
            "not divided, smaller start": ("smaller W_q, best rate",),
        },
    ),
    "gates": Small(
        "of a nudge 512 words back, what arrives",
        "long_path",
        {
            "LSTM, as usual": ("LSTM, 512 words",),
            "attention": ("attention, 512 words",),
            "LSTM with open gates": ("LSTM with open gates, 512 words",),
        },
        limits=(0, 7),
        written="{:.2f}",
    ),
    "lookers": Small(
        "of a hidden verb's answer, brought back",
        "pattern_used",
        {
            "by the head that carries it": ("restored, most of all heads",),
            "by another head that looks there": ("restored, least of the heads that look",),
        },
    ),
    "coreference": Small(
        "of 40 pairs with “it”, one of 72 heads",
        "coreference",
        {
            "both right": ("both right",),
            "both wrong": ("both wrong",),
            "same noun twice": ("the same noun in both",),
        },
        limits=(0, 40),
        written="{:.0f}",
    ),
    "induction": Small(
        "answers lost without induction heads",
        "induction",
        {
            "one by one, summed": ("answers lost, each alone",),
            "all together": ("answers lost, all together",),
        },
    ),
    "one_seed": Small(
        "verdicts printed by these seeds, undone by ten",
        "one_seed",
        {"seven seeds": ("7",), "three seeds": ("3",), "one seed": ("1",)},
    ),
}


def span(values: list[float]) -> tuple[float, float]:
    """Where the next one falls; of a single number, the number."""
    return record.span(values) if len(values) > 1 else (values[0], values[0])


def draw(small: Small) -> tuple[Figure, str]:
    """A line for each quantity, a dot for each seed, shaded and above it where the next seed falls."""
    fig, ax = plt.subplots(figsize=SIZE, layout="constrained")
    said = []
    for row, label in enumerate(small.lines):
        values, color = small.values(label), RED if row == len(small.lines) - 1 else BLUE
        text = findings.between(span(values), small.written.format, "–").replace("%–", "–")
        ax.hlines(row, *small.limits, color="#d5dade", linewidth=1, zorder=0)
        ax.hlines(row, *span(values), color=color, alpha=0.2, linewidth=7, zorder=0)
        ax.scatter(
            values, [row] * len(values), s=64, color=color, alpha=0.45, linewidth=0, clip_on=False
        )
        ax.text(small.limits[0], row - 0.27, label, fontsize=TYPE, color=INK)
        ax.text(
            small.limits[1], row - 0.27, text, fontsize=TYPE, color=color, ha="right", weight="bold"
        )
        said.append(f"{label} {text}")
    ax.set(xlim=small.limits, ylim=(len(small.lines) - 0.6, -0.75), yticks=[])
    ax.tick_params(labelsize=TYPE - 1, color="#aab2bb")
    if "%" in small.written:
        ax.xaxis.set_major_formatter(PercentFormatter(1))
    ax.spines.left.set_visible(False)
    ax.set_xlabel(small.unit, fontsize=TYPE, color=QUIET)
    return fig, f"{small.unit}: {', '.join(said)}"


def draw_all(output_dir: Path) -> None:
    """Write all of them to visualizations/plots/seven/ below the output folder."""
    with theme(), plt.rc_context({"savefig.dpi": DPI}):
        for name, small in SEVEN.items():
            fig, caption = draw(small)
            save_figure(fig, output_dir / paths.PLOTS / "seven" / f"{name}.png", caption=caption)
