"""Whom does a hidden word ask, and how does that become a guess?

    python phase1_single_head/visualize.py
    python phase1_single_head/visualize.py --sentence "those dogs slept in a soft bed"

Writes attention_heatmap.png and qkv_flow.png to visualizations/plots/phase1/, both with a word hidden, and the
weights of every sentence of --sentences, with nothing hidden, to data/processed/attention_weights.pt.
"""

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

from phase1_single_head.models import Flow, asks, choose_word, flow_of, hide, load_single_head_model, most_asked, shown
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
    spread = f" · normalised entropy{whose} {entropy:.2f} (0: one word, 1: all alike)" if entropy == entropy else ""
    return f"one layer, one head, {trained.label}{spread}"


def draw_heatmap(trained: Trained, words: list[str]) -> tuple[Figure, str]:
    """The attention matrix of the sentence with one word hidden; the title names whom that word asks."""
    i = choose_word(words)
    seen = hide(words, i)
    weights = weights_of(trained.model, seen)[0, 0]
    title = f'To guess the hidden word, "?" asks {asks(words, weights[i], i)}'
    size = min(max(5.6, 0.55 * len(words) + 2), 7.3)
    fig, ax = plt.subplots(figsize=(size + 0.8, size), layout="constrained")
    plot_attention(weights, shown(seen), ax=ax, annotate=False)
    for j, weight in enumerate(weights[i].tolist() if len(words) <= 16 else ()):
        color = "white" if weight > 0.55 else INK
        ax.text(j + 0.5, i + 0.5, f"{weight:.2f}", ha="center", va="center", color=color, zorder=6)
    for label in [ax.get_yticklabels()[i], *(ax.get_xticklabels()[j] for j in most_asked(weights[i], i))]:
        label.set_weight("bold")
    weight_colorbar(fig, ax, shrink=0.7)
    for top, tall in ((0, i), (i + 1, len(words) - i - 1)):  # the other rows fade
        ax.add_patch(Rectangle((0, top), len(words), tall, color="white", alpha=0.4, linewidth=0, zorder=4))
    ax.add_patch(Rectangle((0, i), len(words), 1, fill=False, edgecolor=INK, linewidth=2.5, clip_on=False, zorder=5))
    headline(fig, title, entropy_note(trained, weights))
    rows = 'Each row shows where one word takes its output from, and sums to 1; all but that of "?" are faded.'
    return fig, f"{title}. {rows}"


# ---- the flow, drawn on a ground in inches

WIDTH, STRIP, LABEL, NUMBER = 9, 0.85, 0.75, 0.42  # of all, of a strip, of a word before a bar, of a number behind one
COLUMNS = {  # left and right edge
    "words": (0.28, 1.23),
    "keys": (1.67, 2.52),
    "scores": (2.9, 3.85),
    "weights": (4.2, 5.95),
    "values": (6.3, 7.15),
    "weight × value": (7.65, 8.5),
}


@dataclass(frozen=True)
class Rows:
    """Where rows lie, one for each word: the bottom of all, the height of one; the first is on top."""

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


def frame(ax: Axes, left: float, bottom: float, right: float, tall: float, linewidth: float = 1) -> None:
    ax.add_patch(Rectangle((left, bottom), right - left, tall, fill=False, edgecolor=INK, lw=linewidth, zorder=8))


def strip(ax: Axes, left: float, bottom: float, tall: float, vectors: Tensor) -> None:
    """Vectors (n, d), one above the other, as coloured cells in a frame."""
    limit = vectors.abs().max().item()
    inset = ax.inset_axes([left, bottom, STRIP, tall], transform=ax.transData)
    inset.imshow(vectors.numpy(), aspect="auto", cmap=SIGNED, vmin=-limit, vmax=limit, interpolation="nearest")
    inset.axis("off")
    frame(ax, left, bottom, left + STRIP, tall)


def names(ax: Axes, left: float, rows: Rows, texts: Sequence[str], colors: Sequence[str]) -> None:
    """One text in each row; what is not grey is bold."""
    for y, text, color in zip(rows.middles, texts, colors, strict=True):
        style = {"color": INK} if color == GREY else {"color": color, "weight": "bold"}
        ax.text(left + 0.07, y, text, va="center", size=10 if rows.each > 0.2 else 8, **style)


def bars(
    ax: Axes, left: float, right: float, rows: Rows, values: Sequence[float], colors: Sequence[str], most: float = 0
) -> None:
    """A bar in each row, its number at its end; most: what has the whole width, if it is not the largest value."""
    lowest, highest = min(0, *values), max(most, *values)
    unit = (right - left - NUMBER) / (highest - lowest)  # inches
    zero = left - lowest * unit
    ax.barh(rows.middles, [value * unit for value in values], 0.6 * rows.each, left=zero, color=colors)
    for y, value in zip(rows.middles, values, strict=True):
        end = zero + max(value, 0) * unit + 0.04
        ax.text(end, y, f"{round(value, 2) + 0:.2f}", va="center", size=9.5 if rows.each > 0.2 else 8)


def head(ax: Axes, left: float, bottom: float, name: str, size: str = "") -> None:
    """Above a column: what it holds, and how large that is."""
    ax.text(left, bottom + 0.23, name, size=10, weight="bold")
    ax.text(left, bottom + 0.07, size, size=9, color=QUIET)


def step(ax: Axes, left: float, right: float, y: float, text: str) -> None:
    """The name of a step, over the columns that belong to it."""
    ax.plot([left, right], [y, y], color=INK, linewidth=2)
    ax.text(left, y + 0.06, text, size=12, weight="bold")


def arrow(ax: Axes, *points: tuple[float, float], text: str = "", at: tuple[float, float] = (0, 0)) -> None:
    """An arrow along points, from the first to the last, and a text."""
    style = {"arrowstyle": "-|>", "mutation_scale": 13, "color": INK, "linewidth": 1.4, "zorder": 9}
    ax.add_patch(FancyArrowPatch(path=Path(points), **style))
    ax.text(*at, text, size=9, color=QUIET, ha="center")


def draw_columns(ax: Axes, flow: Flow, rows: Rows, colors: list[str]) -> None:
    """What the head computes, a row for each word; a band follows the words that are asked most."""
    n, d_k = len(flow.words), flow.key.size(-1)
    sizes = (f"x: {n} × {flow.x.size(-1)}", f"{n} × {d_k}", f"q · k / √{d_k}", "softmax: sum 1", *[f"{n} × {d_k}"] * 2)
    for (name, (left, right)), size in zip(COLUMNS.items(), sizes, strict=True):
        head(ax, left, rows.top, name, size)
        frame(ax, left, rows.bottom, right, rows.tall)
    for j in flow.asked:
        corner, wide = (COLUMNS["words"][0], rows.middles[j] - rows.each / 2), 8.5 - COLUMNS["words"][0]
        ax.add_patch(Rectangle(corner, wide, rows.each, color=BLUE, alpha=0.12, zorder=0))
    left, right = COLUMNS["words"]
    frame(ax, left, rows.middles[flow.i] - rows.each / 2, right, rows.each, linewidth=2.5)
    names(ax, left, rows, token_labels(flow.seen), [INK if j == flow.i else color for j, color in enumerate(colors)])
    left, right = COLUMNS["scores"]
    bars(ax, left + 0.05, right, rows, flow.scores.tolist(), colors)
    left, right = COLUMNS["weights"]
    names(ax, left, rows, flow.seen, colors)
    bars(ax, left + LABEL, right, rows, flow.weights.tolist(), colors)
    mixed = flow.weights[:, None] * flow.value
    for name, vectors in (("keys", flow.key), ("values", flow.value), ("weight × value", mixed)):
        strip(ax, COLUMNS[name][0], rows.bottom, rows.tall, vectors)


def draw_ways(ax: Axes, flow: Flow, rows: Rows) -> None:
    """The query above, the output below, and what leads from where to where."""
    level, place, above, below = rows.bottom + rows.tall / 2, rows.middles[flow.i], rows.top + 0.6, rows.bottom - 0.25
    (words, words_end), (keys, keys_end), (scores, scores_end) = (COLUMNS[name] for name in ("words", "keys", "scores"))
    (weights, weights_end), (values, values_end), (mix, mix_end) = list(COLUMNS.values())[3:]
    for left, right, name in (
        (keys, scores_end, "1 ask"),
        (weights, weights_end, "2 weigh"),
        (values, mix_end, "3 mix"),
    ):
        step(ax, left, right, rows.top + 1.08, name)
    strip(ax, keys, above - 0.1, 0.2, flow.query[None])
    head(ax, keys, above - 0.06, 'query of "?"')
    arrow(ax, (words, place), (0.1, place), (0.1, above), (keys, above), text="W_q", at=(1.43, above + 0.06))
    between = (keys_end + scores) / 2 + 0.02
    ax.plot([keys_end, between, between], [above, above, level], color=INK, linewidth=1.4)
    for end, start, name in ((words_end, keys, "W_k"), (keys_end, scores, ""), (scores_end, weights, "")):
        near, far = end + 0.05, end + 0.11  # a bracket: all rows of the column that ends there
        ax.plot([near, far, far, near], [rows.bottom, rows.bottom, rows.top, rows.top], color=INK, linewidth=1.4)
        arrow(ax, (far, level), (start, level), text=name, at=(1.49, level + 0.06))
    for left, right, sign in ((weights_end, values, "×"), (values_end, mix, "=")):
        ax.text((left + right) / 2, level, sign, size=16, ha="center", va="center")
    start, end, centre = (words + words_end) / 2, values + STRIP / 2, mix + STRIP / 2
    way = (start, rows.bottom), (start, below), (end, below), (end, rows.bottom)
    arrow(ax, *way, text="W_v", at=(1.43, below + 0.06))
    arrow(ax, (centre, rows.bottom), (centre, 1.4), text="sum", at=(centre + 0.25, 1.8))
    strip(ax, mix, 1.2, 0.2, flow.output[None])
    head(ax, mix, 0.78, 'output of "?"', f"{flow.output.size(-1)} numbers")
    then = "added to the word, then\nthe rest of the model"
    arrow(ax, (mix, 1.3), (weights_end, 1.3), text=then, at=((mix + weights_end) / 2, 1.38))


def draw_guess(ax: Axes, flow: Flow) -> None:
    """The likeliest words."""
    rows, left, right = Rows(0.6, 0.275, len(flow.guesses)), COLUMNS["scores"][0], COLUMNS["weights"][1]
    texts, probabilities = zip(*flow.guesses, strict=True)
    colors = [BLUE] + [GREY] * (len(texts) - 1)
    frame(ax, left, rows.bottom, right, rows.tall)
    names(ax, left, rows, texts, colors)
    bars(ax, left + LABEL, right, rows, probabilities, colors, most=1)
    step(ax, left, right, rows.top + 0.08, "4 guess")


def draw_flow(trained: Trained, words: list[str]) -> tuple[Figure, str]:
    """The way of the hidden word, from its query to the guess."""
    flow = flow_of(trained, words)
    rows = Rows(2.3, max(0.17, min(0.34, 2.6 / len(words))), len(words))
    height = rows.top + 1.75
    fig = plt.figure(figsize=(WIDTH, height))
    ax = fig.add_axes((0, 0, 1, 1), xlim=(0, WIDTH), ylim=(0, height))
    ax.axis("off")
    draw_columns(ax, flow, rows, [BLUE if j in flow.asked else GREY for j in range(len(words))])
    draw_ways(ax, flow, rows)
    draw_guess(ax, flow)
    stripes = "a stripe: one number\nof a vector, purple\nbelow 0, green above"
    ax.text(COLUMNS["words"][0], 1.15, stripes, size=9, color=QUIET, va="center")
    guess, word = flow.guesses[0][0], words[flow.i]
    title = f'Four steps lead from "?" to the guess "{guess}"' + ("" if guess == word else f'; it was "{word}"')
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
