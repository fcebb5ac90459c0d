"""Whom does a hidden word ask, and how does that become a guess?

    python phase1_single_head/visualize.py
    python phase1_single_head/visualize.py --sentence "those dogs slept in a soft bed"

Writes attention_heatmap.png and qkv_flow.png to visualizations/plots/phase1/, both with a word
hidden, and the weights of every sentence of --sentences, with nothing hidden, to
data/processed/attention_weights.pt.
"""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from phase1_single_head.models import Flow, flow_of, hide, load_single_head_model, most_attended
from shared import cli, paths
from shared.attention_utils import normalized_entropy
from shared.toy_language import tokenize
from shared.toy_model import weights_on_sentence
from shared.training.checkpoints import save_tensors
from shared.training.recipes import Trained
from shared.visualization_utils import (
    BLUE,
    GREY,
    HIDDEN,
    INK,
    QUIET,
    SIGNED_MAP,
    WIDE,
    frame_cell,
    headline,
    plot_attention,
    save_plot,
    write_in_cell,
)


def entropy_note(trained: Trained, weights: Tensor) -> str:
    """Which model, and the normalised entropy of these rows; a sentence of one word has none."""
    note = f"one layer, one head, {trained.label}"
    entropy = normalized_entropy(weights).nanmean()
    if entropy.isnan():
        return note
    return f"{note} · normalised entropy {entropy:.2f}"


# ---- the heatmap


def draw_heatmap(trained: Trained, flow: Flow) -> tuple[Figure, str]:
    """Returns the weights of the sentence with one word hidden, and a caption."""
    words, i = flow.words, flow.i
    weights = weights_on_sentence(trained.model, hide(words, i))[0, 0]  # (L, H, T, T) -> (T, T)
    height = min(max(4, 0.3 * len(words) + 2.2), 6.5)
    fig, ax = plt.subplots(figsize=(WIDE, height), layout="constrained")
    plot_attention(ax, weights, flow.seen, annotate=False)
    ax.set_aspect("auto")  # few words are wide cells, many are small ones

    # The row of the hidden word is framed; its numbers, and the words that it asks most, stand out.
    attended = most_attended(weights[i], i)
    frame_cell(ax, i, 0, INK, width=len(words)).set(clip_on=False, zorder=5)
    if len(words) <= 10:  # in smaller cells there is no room
        for j, weight in enumerate(weights[i].tolist()):
            number = write_in_cell(ax, i, j, f"{weight:.2f}", weight, 12)
            number.set(weight="bold" if j in attended else "normal", zorder=6)
    ax.get_yticklabels()[i].set_weight("bold")
    for j in attended:
        ax.get_xticklabels()[j].set_weight("bold")

    names = " and ".join(f'"{words[j]}" ({weights[i, j]:.2f})' for j in attended) or "nobody"
    title = f"The hidden word asks {names} most"
    note = f"darker: more weight\n{entropy_note(trained, weights)}"
    headline(fig, title, note)
    reading = "Each row shows where one word takes its output from, and sums to 1"
    return fig, f'{title}. {reading}; that of the hidden word, "?", is framed.'


# ---- the flow


LAYOUT = [  # clockwise, from the query to the guess
    ["query", ".", "."],
    ["keys", "weights", "mixed"],
    ["guess", "guess", "output"],
    ["guess", "guess", "."],
]
STEPS_IN_WORDS = (
    "The query of the hidden word stands over the keys of all words; beside each key the weight, "
    "and the value times it; below, their sum, and the likeliest words."
)
SHOWN = 8  # of the numbers of a vector
ARROWS = (  # from a point of one panel to a point of another, as shares of their sides
    ("query", (0.5, 0), "keys", (0.5, 1.1)),
    ("mixed", (0.5, 0), "output", (0.5, 1.8)),
    ("output", (0, 0.5), "guess", (0.85, 0.87)),
)


def draw_stripes(ax: Axes, vectors: Tensor) -> None:
    """The first numbers of vectors (n, d), one above the other, or of one (d,): stripes."""
    image = torch.atleast_2d(vectors)[:, :SHOWN].numpy()
    limit = abs(image).max()
    ax.pcolormesh(image, cmap=SIGNED_MAP, vmin=-limit, vmax=limit, edgecolors=HIDDEN, linewidth=1)
    ax.set(xticks=[], yticks=[], ylim=(len(image), 0))
    ax.spines[:].set_visible(False)


def draw_named_bars(
    ax: Axes, names: Sequence[str], values: Sequence[float], colors: Sequence[str]
) -> None:
    """A bar for each name, the first on top, its number at its end."""
    rows = range(len(names))
    bars = ax.barh(rows, values, 0.6, color=colors)
    ax.bar_label(bars, [f"{value:z.2f}" for value in values], padding=3)
    ax.set_yticks(rows, names)
    ax.set(xticks=[], ylim=(len(names) - 0.5, -0.5))
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    ax.margins(x=0.5)


def draw_panels(axes: Mapping[str, Axes], flow: Flow) -> None:
    """The way from the hidden word to the guess; the two words asked are blue."""
    count = len(flow.words)
    colors = [BLUE if j in flow.most_attended else GREY for j in range(count)]
    draw_stripes(axes["query"], flow.query)
    draw_stripes(axes["keys"], flow.keys)
    axes["keys"].set_yticks(np.arange(count) + 0.5, flow.seen)
    draw_named_bars(axes["weights"], [""] * count, flow.weights.tolist(), colors)
    weighted = flow.weights[:, None] * flow.values  # (T, 1) * (T, d_v) -> (T, d_v)
    draw_stripes(axes["mixed"], weighted)
    draw_stripes(axes["output"], flow.output)
    words = [word for word, _ in flow.guesses]
    chances = [chance for _, chance in flow.guesses]
    draw_named_bars(axes["guess"], words, chances, [BLUE, GREY, GREY, GREY])
    for name, step, what in (
        ("query", "1  Ask", 'query of "?"'),
        ("keys", "", "keys"),
        ("weights", "2  Weigh", "weights"),
        ("mixed", "3  Mix", "weight × value"),
        ("output", "", "output: their sum"),
        ("guess", "4  Guess", "the rest of the model"),
    ):
        ax = axes[name]
        ax.tick_params(length=0)
        ax.set_title(f"{step}\n" if step else "", loc="left", weight="bold", linespacing=1.5)
        above = {"xytext": (0, 4), "xycoords": "axes fraction", "textcoords": "offset points"}
        ax.annotate(what, (0, 1), color=QUIET, **above)


def connect_panels(axes: Mapping[str, Axes]) -> None:
    """From panel to panel, as the numbers go."""
    style = {"arrowstyle": "-|>", "color": INK, "linewidth": 1.2, "shrinkA": 3, "shrinkB": 3}
    for start, here, end, there in ARROWS:
        coordinates = {"xycoords": axes[end].transAxes, "textcoords": axes[start].transAxes}
        axes[end].annotate("", there, here, arrowprops=style, **coordinates)  # on top of both


def draw_flow(trained: Trained, flow: Flow) -> tuple[Figure, str]:
    """Returns the way of the hidden word from its query to the guess, and a caption."""
    n = len(flow.words)
    sizes = {"figsize": (WIDE, 3.4 + 0.27 * n), "height_ratios": (1, n, 1, 3)}
    fig, axes = plt.subplot_mosaic(LAYOUT, layout="constrained", **sizes)
    draw_panels(axes, flow)
    connect_panels(axes)
    guess, _ = flow.guesses[0]
    word = flow.words[flow.i]
    title = f'Four steps lead from "?" to the guess "{guess}"'
    if guess != word:
        title += f'; it was "{word}"'
    cells = f"first {SHOWN} of {len(flow.query)} numbers; purple: below 0, green: above"
    headline(fig, title, f"{cells}\n{entropy_note(trained, flow.weights)}")
    return fig, f"{title}. {STEPS_IN_WORDS}"


USES = (
    "--sentence --sentences --seed --quick "
    "--device --retrain --d-model --output-dir --no-pictures --format"
)


@cli.script
def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__, USES), argv)
    trained = load_single_head_model(options)
    saved = {}
    for text in options.all_sentences:
        saved[text] = weights_on_sentence(trained.model, tokenize(text))[0, 0]
    save_tensors(saved, options.output_dir / paths.PROCESSED / "attention_weights.pt")
    flow = flow_of(trained, options.words)
    figure, caption = draw_heatmap(trained, flow)
    save_plot(options, "phase1/attention_heatmap", figure, caption)
    save_plot(options, "phase1/qkv_flow", *draw_flow(trained, flow))
    return caption.split(". ")[0]


if __name__ == "__main__":
    cli.run(main)
