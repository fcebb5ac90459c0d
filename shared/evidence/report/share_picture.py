"""What is seen where somebody sends a link to the pages: one sentence of words, one look, and what to do with it.

Writes share.png to visualizations/, as large as such previews are, 1200 x 630.
"""

from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

from shared.evidence.report.links import NAME, SHARE_PICTURE, Site
from shared.visualization_utils import GREY, INK, QUIET, RELATION_COLORS, save_figure

SENTENCE = "those dogs beside the barn slept in a soft bed"
WORDS = SENTENCE.split()
VERB, SUBJECT = WORDS.index("slept"), WORDS.index("dogs")  # a test asks the grammar
COLOR = RELATION_COLORS["subject"]
THICK = {"color": COLOR, "linewidth": 9, "mutation_scale": 38, "arrowstyle": "-|>"}
THIN = {"color": GREY, "linewidth": 1.6, "alpha": 0.55, "arrowstyle": "-"}
PIXELS = (1200, 630)
LEFT, SPACE, LINE = 70, 25, 175  # of the row of words: where it begins, between two words, its height
TYPE = 29


def place_words(ax: Axes) -> list[tuple[float, float]]:
    """Write the words in a row; returns for each the middle and the upper edge, in pixels."""
    tops, x = [], LEFT
    for place, word in enumerate(WORDS):
        chosen = place in (VERB, SUBJECT)
        text = ax.text(x, LINE, word, fontsize=TYPE, color=COLOR if chosen else INK, weight="bold" if chosen else None)
        box = text.get_window_extent()
        tops.append(((box.x0 + box.x1) / 2, LINE + 44))
        x = box.x1 + SPACE
    return tops


def look(ax: Axes, start: tuple[float, float], end: tuple[float, float], style: dict) -> None:
    """An arc over the words, from the word that looks to the word that it looks at."""
    bend = 0.5 if start[0] > end[0] else -0.5
    ax.add_patch(FancyArrowPatch(start, end, connectionstyle=f"arc3,rad={bend}", **style))


def draw() -> Figure:
    """The verb looks back over another noun to its subject; its other looks are thin."""
    with plt.rc_context({"figure.dpi": 100}):
        fig = plt.figure(figsize=(PIXELS[0] / 100, PIXELS[1] / 100))
    ax = fig.add_axes((0, 0, 1, 1))
    ax.set(xlim=(0, PIXELS[0]), ylim=(0, PIXELS[1]))
    ax.axis("off")
    ax.text(LEFT, 505, "Break it, and see", fontsize=54, weight="bold", color=INK)
    tops = place_words(ax)
    for place, top in enumerate(tops):
        if place not in (VERB, SUBJECT):
            look(ax, tops[VERB], top, THIN)
    look(ax, tops[VERB], tops[SUBJECT], THICK)
    ax.text(LEFT, 70, NAME, fontsize=20, color=QUIET)
    return fig


def write(site: Site) -> Path:
    """Draw it and write it where the heads of all pages look for it."""
    caption = (
        f'"{" ".join(WORDS)}": a thick line leads from "{WORDS[VERB]}" back to "{WORDS[SUBJECT]}". Break it, and see.'
    )
    with plt.rc_context({"savefig.dpi": 100}):
        return save_figure(draw(), site.output_dir / SHARE_PICTURE, caption=caption)
