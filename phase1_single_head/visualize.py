"""Whom does a hidden word ask, and how does that become a guess?

    python phase1_single_head/visualize.py
    python phase1_single_head/visualize.py --sentence "those dogs slept in a soft bed"

Writes attention_heatmap.png and qkv_flow.png to visualizations/plots/phase1/, both with a word hidden, and the
weights of every sentence of --sentences, with nothing hidden, to data/processed/attention_weights.pt.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle
from matplotlib.path import Path
from torch import Tensor

from phase1_single_head.models import (
    Flow,
    asks,
    choose_word,
    flow_of,
    hide,
    load_single_head_model,
    most_asked,
    shown,
)
from shared import cli, paths
from shared.attention_utils import normalized_entropy
from shared.toy_language import tokenize
from shared.toy_model import weights_of
from shared.training import Trained
from shared.visualization_utils import (
    BLUE,
    GREEN,
    GREY,
    INK,
    PURPLE,
    QUIET,
    headline,
    plot_attention,
    save_plot,
    token_labels,
    weight_colorbar,
)

SIGNED = LinearSegmentedColormap.from_list("signed", [PURPLE, "white", GREEN])  # below zero, zero, above


def entropy_note(trained: Trained, weights: Tensor, whose: str = "") -> str:
    """Which model, and the normalised entropy of these rows; a sentence of one word has none."""
    entropy = normalized_entropy(weights).nanmean().item()
    spread = "" if math.isnan(entropy) else f" · normalised entropy{whose} {entropy:.2f} (0: one word, 1: all alike)"
    return f"one layer, one head, {trained.label}{spread}"


def draw_heatmap(trained: Trained, words: list[str]) -> tuple[Figure, str]:
    """The attention matrix of the sentence with one word hidden; the title names whom that word asks."""
    i = choose_word(words)
    seen = hide(words, i)
    weights = weights_of(trained.model, seen)[0, 0]
    title = f'To guess the hidden word, "?" asks {asks(words, weights[i], i)}'
    size = min(max(5.6, 0.55 * len(words) + 2), 7.3)
    fig, ax = plt.subplots(figsize=(size + 0.8, size), layout="constrained")
    plot_attention(weights, shown(seen), ax=ax)
    for label in [ax.get_yticklabels()[i], *(ax.get_xticklabels()[j] for j in most_asked(weights[i], i))]:
        label.set_weight("bold")
    weight_colorbar(fig, ax, shrink=0.7)
    for top, tall in ((0, i), (i + 1, len(words) - i - 1)):  # the other rows fade
        ax.add_patch(Rectangle((0, top), len(words), tall, color="white", alpha=0.4, linewidth=0, zorder=4))
    ax.add_patch(Rectangle((0, i), len(words), 1, fill=False, edgecolor=INK, linewidth=2.5, clip_on=False, zorder=5))
    headline(fig, title, entropy_note(trained, weights))
    rows = 'Each row shows where one word takes its output from, and sums to 1; all but that of "?" are faded.'
    return fig, f"{title}. {rows}"


# ------------------------------------------------------------------------------- the flow, drawn on a ground in inches

WIDTH, BOTTOM = 9, 2.3  # of the picture; of the rows, one for each word, below which the guess stands
WORDS, KEYS, SCORES, WEIGHTS, VALUES, MIX = 0.28, 1.67, 2.9, 4.2, 6.3, 7.65  # left edges of the columns
WORDS_WIDE, STRIP, SCORES_WIDE, WEIGHTS_WIDE = 0.95, 0.85, 0.95, 1.75
SCORES_END, WEIGHTS_END = SCORES + SCORES_WIDE, WEIGHTS + WEIGHTS_WIDE
LABEL, NUMBER = 0.75, 0.42  # room for a word before a bar, and for the number at its end


@dataclass(frozen=True)
class Rows:
    """Where rows lie, one for each word: the height of one, the middle of each, the first on top."""

    bottom: float
    each: float
    count: int

    @property
    def tall(self) -> float:
        return self.each * self.count

    @property
    def top(self) -> float:
        return self.bottom + self.tall

    @property
    def middles(self) -> list[float]:
        return [self.top - (place + 0.5) * self.each for place in range(self.count)]

    @property
    def size(self) -> float:
        """Of the text in a row."""
        return 10 if self.each > 0.2 else 8


def frame(ax: Axes, x: float, y: float, wide: float, tall: float, linewidth: float = 1) -> None:
    ax.add_patch(Rectangle((x, y), wide, tall, fill=False, edgecolor=INK, linewidth=linewidth, zorder=8))


def strip(ax: Axes, x: float, y: float, tall: float, vectors: Tensor) -> None:
    """Vectors (n, d), one above the other, as coloured cells in a frame."""
    limit = vectors.abs().max().item()
    inset = ax.inset_axes([x, y, STRIP, tall], transform=ax.transData)
    inset.imshow(vectors.numpy(), aspect="auto", cmap=SIGNED, vmin=-limit, vmax=limit, interpolation="nearest")
    inset.axis("off")
    frame(ax, x, y, STRIP, tall)


def names(ax: Axes, x: float, rows: Rows, texts: Sequence[str], colors: Sequence[str]) -> None:
    """One text in each row; what is not grey is bold."""
    for y, text, color in zip(rows.middles, texts, colors, strict=True):
        style = {"color": INK} if color == GREY else {"color": color, "weight": "bold"}
        ax.text(x + 0.07, y, text, va="center", size=rows.size, **style)


def bars(
    ax: Axes, x: float, wide: float, rows: Rows, values: Sequence[float], colors: Sequence[str], most: float = 0
) -> None:
    """A bar in each row, its number at its end; most: what has the whole width, if it is not the largest value."""
    lowest, highest = min(0, *values), max(most, *values)
    unit = (wide - NUMBER) / (highest - lowest)  # inches
    zero = x - lowest * unit
    ax.barh(rows.middles, [value * unit for value in values], 0.6 * rows.each, left=zero, color=colors)
    for y, value in zip(rows.middles, values, strict=True):
        ax.text(
            zero + max(value, 0) * unit + 0.04, y, f"{round(value, 2) + 0:.2f}", va="center", size=min(9.5, rows.size)
        )


def head(ax: Axes, x: float, y: float, name: str, size: str) -> None:
    """Above a column: what it holds, and how large that is."""
    ax.text(x, y + 0.23, name, size=10, weight="bold")
    ax.text(x, y + 0.07, size, size=9, color=QUIET)


def step(ax: Axes, start: float, end: float, y: float, text: str) -> None:
    """The name of a step, over the columns that belong to it."""
    ax.plot([start, end], [y, y], color=INK, linewidth=2)
    ax.text(start, y + 0.06, text, size=12, weight="bold")


def arrow(ax: Axes, *points: tuple[float, float], text: str = "", at: tuple[float, float] = (0, 0)) -> None:
    """An arrow along points, from the first to the last, and a text."""
    style = {"arrowstyle": "-|>", "mutation_scale": 13, "color": INK, "linewidth": 1.4, "zorder": 9}
    ax.add_patch(FancyArrowPatch(path=Path(points), **style))
    ax.text(*at, text, size=9, color=QUIET, ha="center")


def bracket(ax: Axes, x: float, rows: Rows) -> float:
    """What follows starts from all rows of the column that ends at x -> where it starts."""
    near, far = x + 0.05, x + 0.11
    ax.plot([near, far, far, near], [rows.bottom, rows.bottom, rows.top, rows.top], color=INK, linewidth=1.4)
    return far


def draw_asking(ax: Axes, flow: Flow, rows: Rows, colors: list[str], level: float) -> None:
    """Words, the query of the hidden one, the keys of all, and how well they match."""
    n, d, place, query = len(flow.words), flow.x.size(-1), rows.middles[flow.i], rows.top + 0.6
    frame(ax, WORDS, rows.bottom, WORDS_WIDE, rows.tall)
    frame(ax, WORDS, place - rows.each / 2, WORDS_WIDE, rows.each, linewidth=2.5)
    inks = [INK if j == flow.i else color for j, color in enumerate(colors)]
    names(ax, WORDS, rows, token_labels(flow.seen), inks)
    strip(ax, KEYS, query - 0.1, 0.2, flow.query[None])
    strip(ax, KEYS, rows.bottom, rows.tall, flow.key)
    frame(ax, SCORES, rows.bottom, SCORES_WIDE, rows.tall)
    bars(ax, SCORES + 0.05, SCORES_WIDE - 0.05, rows, flow.scores.tolist(), colors)
    head(ax, WORDS, rows.top, "words", f"x: {n} × {d}")
    head(ax, KEYS, query - 0.06, 'query of "?"', "")
    head(ax, KEYS, rows.top, "keys", f"{n} × {flow.key.size(-1)}")
    head(ax, SCORES, rows.top, "scores", f"q · k / √{flow.key.size(-1)}")
    step(ax, KEYS, SCORES_END, rows.top + 1.08, "1 ask")
    arrow(ax, (WORDS, place), (0.1, place), (0.1, query), (KEYS, query), text="W_q", at=(1.43, query + 0.06))
    arrow(ax, (bracket(ax, WORDS + WORDS_WIDE, rows), level), (KEYS, level), text="W_k", at=(1.49, level + 0.06))
    between = (KEYS + STRIP + SCORES) / 2 + 0.02
    ax.plot([KEYS + STRIP, between, between], [query, query, level], color=INK, linewidth=1.4)
    arrow(ax, (bracket(ax, KEYS + STRIP, rows), level), (SCORES, level))


def draw_weighing(ax: Axes, flow: Flow, rows: Rows, colors: list[str], level: float) -> None:
    """Scores become weights."""
    frame(ax, WEIGHTS, rows.bottom, WEIGHTS_WIDE, rows.tall)
    names(ax, WEIGHTS, rows, flow.seen, colors)
    bars(ax, WEIGHTS + LABEL, WEIGHTS_WIDE - LABEL, rows, flow.weights.tolist(), colors)
    head(ax, WEIGHTS, rows.top, "weights", "softmax: sum 1")
    step(ax, WEIGHTS, WEIGHTS_END, rows.top + 1.08, "2 weigh")
    arrow(ax, (bracket(ax, SCORES_END, rows), level), (WEIGHTS, level))


def draw_mixing(ax: Axes, flow: Flow, rows: Rows, level: float) -> None:
    """Weights times values, and their sum."""
    size, centre, below = f"{len(flow.words)} × {flow.value.size(-1)}", MIX + STRIP / 2, rows.bottom - 0.25
    strip(ax, VALUES, rows.bottom, rows.tall, flow.value)
    strip(ax, MIX, rows.bottom, rows.tall, flow.weights[:, None] * flow.value)
    strip(ax, MIX, 1.2, 0.2, flow.output[None])
    head(ax, VALUES, rows.top, "values", size)
    head(ax, MIX, rows.top, "weight × value", size)
    head(ax, MIX, 0.78, 'output of "?"', f"{flow.output.size(-1)} numbers")
    step(ax, VALUES, MIX + STRIP, rows.top + 1.08, "3 mix")
    ax.text((WEIGHTS_END + VALUES) / 2, level, "×", size=16, ha="center", va="center")
    ax.text((VALUES + STRIP + MIX) / 2, level, "=", size=16, ha="center", va="center")
    start, end = WORDS + WORDS_WIDE / 2, VALUES + STRIP / 2
    way = (start, rows.bottom), (start, below), (end, below), (end, rows.bottom)
    arrow(ax, *way, text="W_v", at=(1.43, below + 0.06))
    arrow(ax, (centre, rows.bottom), (centre, 1.4), text="sum", at=(centre + 0.25, 1.8))


def draw_guess(ax: Axes, flow: Flow) -> None:
    """The likeliest words."""
    rows = Rows(0.6, 0.275, len(flow.guesses))
    texts, probabilities = zip(*flow.guesses, strict=True)
    colors = [BLUE] + [GREY] * (len(texts) - 1)
    frame(ax, SCORES, rows.bottom, WEIGHTS_END - SCORES, rows.tall)
    names(ax, SCORES, rows, texts, colors)
    bars(ax, SCORES + LABEL, WEIGHTS_END - SCORES - LABEL, rows, probabilities, colors, most=1)
    step(ax, SCORES, WEIGHTS_END, rows.top + 0.08, "4 guess")
    then = "added to the word, then\nthe rest of the model"
    arrow(ax, (MIX, 1.3), (WEIGHTS_END, 1.3), text=then, at=((MIX + WEIGHTS_END) / 2, 1.38))


def draw_flow(trained: Trained, words: list[str]) -> tuple[Figure, str]:
    """The way of the hidden word, from its query to the guess; a band follows the words that it asks."""
    flow, n = flow_of(trained, words), len(words)
    rows = Rows(BOTTOM, max(0.17, min(0.34, 2.6 / n)), n)
    height, level = rows.top + 1.75, rows.bottom + rows.tall / 2  # level: of the arrows from column to column
    fig = plt.figure(figsize=(WIDTH, height))
    ax = fig.add_axes((0, 0, 1, 1), xlim=(0, WIDTH), ylim=(0, height))
    ax.axis("off")
    colors = [BLUE if j in flow.asked else GREY for j in range(n)]
    for j in flow.asked:
        corner = (WORDS, rows.middles[j] - rows.each / 2)
        ax.add_patch(Rectangle(corner, MIX + STRIP - WORDS, rows.each, color=BLUE, alpha=0.12, zorder=0))
    draw_asking(ax, flow, rows, colors, level)
    draw_weighing(ax, flow, rows, colors, level)
    draw_mixing(ax, flow, rows, level)
    draw_guess(ax, flow)
    stripes = "a stripe: one number\nof a vector, purple\nbelow 0, green above"
    ax.text(WORDS, 1.15, stripes, size=9, color=QUIET, va="center")

    guess = flow.guesses[0][0]
    truth = "" if guess == words[flow.i] else f'; it was "{words[flow.i]}"'
    title = f'Four steps lead from "?" to the guess "{guess}"{truth}'
    headline(fig, title, entropy_note(trained, flow.weights, ' of the row of "?"'))
    return fig, f"{title}. Query against keys, scores, weights, weighted values, their sum, and the likeliest words."


@cli.script
def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    trained = load_single_head_model(options)
    saved = {text: weights_of(trained.model, tokenize(text))[0, 0] for text in options.all_sentences}
    path = options.output_dir / paths.PROCESSED / "attention_weights.pt"
    with paths.whole_file(path) as unfinished, unfinished.open("wb") as file:
        torch.save(saved, file)
    figure, caption = draw_heatmap(trained, options.words)
    save_plot(options, "phase1/attention_heatmap", figure, caption)
    save_plot(options, "phase1/qkv_flow", *draw_flow(trained, options.words))
    return caption.split(". ")[0]


if __name__ == "__main__":
    cli.run(main)
