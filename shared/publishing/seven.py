"""Which numbers does the front door show as dots? Four of its seven findings have a small picture.

A picture has a line for each quantity. On it stand the ten values of the record, shaded where the
next seed falls, which is also written above. Type is large, since README shows a picture 420 pixels
wide. Nothing is measured here, and no run is needed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from shared import paths
from shared.evidence import findings, record
from shared.visualization_utils import BLUE, INK, QUIET, RED, save_figure, theme

SIZE, DPI = (4.2, 2.1), 100  # inches; README's width, so that a point of type keeps its size
TYPE = 12


@dataclass(frozen=True)
class DotPicture:
    """What is counted, in which experiment, and for each line its label and its number.

    The last line is the surprise. most is where the axis ends.
    """

    unit: str
    experiment: str
    lines: Mapping[str, str]
    most: float = 1
    written: str = "{:.0%}"


SMALL_PICTURES = {
    "scaling": DotPicture(
        "answers right after 300 steps, d_k = 64",
        "parts.scaling",
        {
            "divided by √d_k": "divided, best rate",
            "not divided": "not divided, best rate",
            "not divided, smaller start": "smaller W_q, best rate",
        },
    ),
    "lookers": DotPicture(
        "of a hidden verb's answer, brought back",
        "circuits.pattern_used",
        {
            "by the head that carries it": "restored, most of all heads",
            "by another head that looks there": "restored, least of the heads that look",
        },
    ),
    "coreference": DotPicture(
        "of 40 pairs with “it”, one of 72 heads",
        "pretrained.coreference",
        {
            "both right": "both right",
            "both wrong": "both wrong",
            "same noun twice": "the same noun in both",
        },
        most=40,
        written="{:.0f}",
    ),
    "induction": DotPicture(
        "answers lost without induction heads",
        "induction.induction",
        {
            "one by one, summed": "answers lost, each alone",
            "all together": "answers lost, all together",
        },
    ),
}


def draw_dots(small: DotPicture) -> tuple[Figure, str]:
    """Returns the picture, and in words what it shows."""
    runs = record.runs(record.full_name(small.experiment))
    fig, ax = plt.subplots(figsize=SIZE, layout="constrained")
    said = []
    for row, (label, name) in enumerate(small.lines.items()):
        color = RED if row == len(small.lines) - 1 else BLUE
        values = [numbers[name] for numbers in runs]
        low, high = record.next_seed(values)
        text = findings.between((low, high), small.written.format, "–").replace("%–", "–")
        said.append(f"{label} {text}")
        ax.hlines(row, 0, small.most, color="#d5dade", linewidth=1, zorder=0)
        ax.hlines(row, low, high, color=color, alpha=0.2, linewidth=7, zorder=0)
        height = [row] * len(values)
        ax.scatter(values, height, s=64, color=color, alpha=0.45, linewidth=0, clip_on=False)
        above = row - 0.27
        ax.text(0, above, label, fontsize=TYPE, color=INK)
        ax.text(small.most, above, text, fontsize=TYPE, color=color, ha="right", weight="bold")
    ax.set(xlim=(0, small.most), ylim=(len(small.lines) - 0.6, -0.75), yticks=[])
    ax.tick_params(labelsize=TYPE - 1, color="#aab2bb")
    if "%" in small.written:
        ax.xaxis.set_major_formatter(PercentFormatter(1))
    ax.spines.left.set_visible(False)
    ax.set_xlabel(small.unit, fontsize=TYPE, color=QUIET)
    return fig, f"{small.unit}: {', '.join(said)}"


def draw_small_pictures(output_dir: Path) -> None:
    """Writes all of them to visualizations/plots/seven/ below the output folder."""
    with theme(), plt.rc_context({"savefig.dpi": DPI}):
        for name, small in SMALL_PICTURES.items():
            fig, caption = draw_dots(small)
            save_figure(fig, output_dir / paths.PLOTS / "seven" / f"{name}.png", caption=caption)
