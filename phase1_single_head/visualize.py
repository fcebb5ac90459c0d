"""Whom does a hidden word ask, and how does that become a guess?

    python phase1_single_head/visualize.py
    python phase1_single_head/visualize.py --sentence "those dogs slept in a soft bed"

Writes attention_heatmap.png and qkv_flow.png to visualizations/plots/phase1/, both with a word
hidden, and the weights of every sentence of --sentences, with nothing hidden, to
data/processed/attention_weights.pt.
"""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
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
from shared import checkpoints, cli, paths
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

SIGNED = LinearSegmentedColormap.from_list(
    "signed", [PURPLE, "white", GREEN]
)  # below zero, zero, above


def entropy_note(trained: Trained, weights: Tensor, whose: str = "") -> str:
    """Which model, and the normalised entropy of these rows; a sentence of one word has none."""
    entropy = normalized_entropy(weights).nanmean().item()
    spread = (
        f" · normalised entropy{whose} {entropy:.2f} (0: one word, 1: all alike)"
        if entropy == entropy
        else ""
    )
    return f"one layer, one head, {trained.label}{spread}"


def draw_heatmap(trained: Trained, words: list[str]) -> tuple[Figure, str]:
    """The attention matrix of the sentence with one word hidden; the title names whom that word
    asks.
    """
    i = choose_word(words)
    seen = hide(words, i)
    weights = weights_of(trained.model, seen)[0, 0]
    title = f'To guess the hidden word, "?" asks {asks(words, weights[i], i)}'
    size = min(max(5.6, 0.55 * len(words) + 2), 7.3)
    fig, ax = plt.subplots(figsize=(size + 0.8, size), layout="constrained")
    plot_attention(weights, shown(seen), ax=ax, annotate=False)
    for j, weight in enumerate(weights[i].tolist() if len(words) <= 16 else ()):
        color = "white" if weight > 0.5 else INK
        ax.text(j + 0.5, i + 0.5, f"{weight:.2f}", ha="center", va="center", color=color, zorder=6)
    for label in [
        ax.get_yticklabels()[i],
        *(ax.get_xticklabels()[j] for j in most_asked(weights[i], i)),
    ]:
        label.set_weight("bold")
    weight_colorbar(fig, ax, shrink=0.7)
    ax.add_patch(
        Rectangle(
            (0, i), len(words), 1, fill=False, edgecolor=INK, linewidth=2.5, clip_on=False, zorder=5
        )
    )
    headline(fig, title, entropy_note(trained, weights))
    rows = (
        'Each row shows where one word takes its output from, and sums to 1; that of "?" is framed.'
    )
    return fig, f"{title}. {rows}"


def size(vectors: Tensor) -> str:
    """The shape as a reader writes it: "(6, 64)", "(64)"."""
    return f"({', '.join(str(length) for length in vectors.shape)})"


def matrix(name: str, given: Tensor, made: Tensor) -> str:
    """The matrix that makes one vector of the other, with its size: "W_q (64 × 64)"."""
    return f"{name} ({given.size(-1)} × {made.size(-1)})"


def head(ax: Axes, step: str, what: str) -> Axes:
    """Over a panel: the step, if one begins here, and what the panel shows, with its size."""
    ax.set_title(f"{step}\n", loc="left", fontsize=12, weight="bold", linespacing=1.6)
    ax.annotate(
        what, (0, 1), (0, 5), xycoords="axes fraction", textcoords="offset points", color=QUIET
    )
    return ax


def stripes(ax: Axes, vectors: Tensor) -> Axes:
    """Vectors (n, d), one above the other: a stripe for each number."""
    limit = vectors.abs().max().item()
    colors = {"cmap": SIGNED, "vmin": -limit, "vmax": limit}
    ax.imshow(vectors.numpy(), aspect="auto", interpolation="nearest", **colors)
    ax.set(xticks=[], yticks=[])
    ax.tick_params(length=0)
    return ax


def bars(ax: Axes, names: Sequence[str], values: Sequence[float], colors: Sequence[str]) -> Axes:
    """A bar for each name, the first on top, its number at its end."""
    rows = range(len(names))
    drawn = ax.barh(rows, values, 0.6, color=colors)
    ax.bar_label(drawn, [f"{value:z.2f}" for value in values], padding=3)
    ax.set_yticks(rows, names)
    ax.set(xticks=[], ylim=(len(names) - 0.5, -0.5))
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    ax.margins(x=0.5)
    return ax


LAYOUT = [
    ["x", "query", ".", "."],
    ["words", "keys", "scores", "weights"],
    [".", "values", "weighted", "output"],
    [".", "guess", "guess", "."],
]
STEPS = (
    "The vector x of the hidden word, its query against all keys, scores, weights, weighted values, "
    "their sum, and the likeliest words."
)
LEFT, RIGHT, BOTTOM = (0, 0.5), (1, 0.5), (0.5, 0)  # middles of a panel's sides, as shares of it
ARROWS = (  # from a side of one panel to a point of another: where there is a product or a sum
    ("x", RIGHT, "query", LEFT),
    ("words", RIGHT, "keys", LEFT),
    ("words", (1, 0.1), "values", LEFT),
    ("query", RIGHT, "scores", (0, 0.98)),
    ("keys", RIGHT, "scores", LEFT),
    ("weights", BOTTOM, "weighted", (1, 0.9)),
    ("values", RIGHT, "weighted", LEFT),
    ("weighted", RIGHT, "output", LEFT),
    ("output", BOTTOM, "guess", (1, 0.8)),
)


def draw_arrows(axes: Mapping[str, Axes]) -> None:
    """From panel to panel, as the numbers go."""
    style = {"arrowstyle": "-|>", "color": INK, "linewidth": 1.2, "shrinkA": 3, "shrinkB": 3}
    for start, here, end, there in ARROWS:
        coordinates = {"xycoords": axes[end].transAxes, "textcoords": axes[start].transAxes}
        axes[start].annotate("", there, here, arrowprops=style, **coordinates)


def draw_asking(axes: Mapping[str, Axes], flow: Flow, colors: Sequence[str]) -> None:
    """From the words to the weights: the query of the hidden word against the key of each."""
    x, rows = flow.x[flow.i], range(len(flow.words))
    head(axes["x"], "", f'x of "?" {size(x)}')
    stripes(axes["x"], x[None])  # (d_model,) -> (1, d_model)
    head(axes["query"], "1  Ask", f"query {size(flow.query)}: {matrix('W_q', x, flow.query)}")
    stripes(axes["query"], flow.query[None])  # (d_k,) -> (1, d_k)
    head(axes["words"], "", f"x of all {size(flow.x)}")
    stripes(axes["words"], flow.x).set_yticks(rows, token_labels(flow.seen))
    head(axes["keys"], "", f"keys {size(flow.keys)}: {matrix('W_k', x, flow.keys)}")
    stripes(axes["keys"], flow.keys)
    head(axes["scores"], "", f"scores {size(flow.scores)}: q · k / √{len(flow.query)}")
    bars(axes["scores"], ["" for _ in rows], flow.scores.tolist(), colors)
    head(axes["weights"], "2  Weigh", f"weights {size(flow.weights)}: softmax")
    bars(axes["weights"], flow.seen, flow.weights.tolist(), colors)


def draw_mixing(axes: Mapping[str, Axes], flow: Flow) -> None:
    """From the values to the guess: each value times its weight, their sum, the likeliest words."""
    head(
        axes["values"],
        "3  Mix",
        f"values {size(flow.values)}: {matrix('W_v', flow.x, flow.values)}",
    )
    stripes(axes["values"], flow.values)
    weighted = flow.weights[:, None] * flow.values  # (T, 1) * (T, d_v) -> (T, d_v)
    head(axes["weighted"], "", f"weight × value {size(weighted)}")
    stripes(axes["weighted"], weighted)
    head(axes["output"], "", f"output {size(flow.output)}: their sum")
    stripes(axes["output"], flow.output[None])  # (d_v,) -> (1, d_v)
    axes["output"].set_box_aspect(0.12)  # as flat as a row
    words = [word for word, _ in flow.guesses]
    chances = [probability for _, probability in flow.guesses]
    head(axes["guess"], "4  Guess", "the rest of the model")
    bars(axes["guess"], words, chances, [BLUE] + [GREY] * len(words))


def draw_flow(trained: Trained, words: list[str]) -> tuple[Figure, str]:
    """The way of the hidden word, from its vector to the guess; the two words asked most are blue."""
    flow, n = flow_of(trained, words), len(words)
    colors = [BLUE if j in flow.asked else GREY for j in range(n)]
    sizes = {"figsize": (9.6, 4.6 + 0.5 * n), "height_ratios": (0.8, n, n, 3)}
    fig, axes = plt.subplot_mosaic(LAYOUT, layout="constrained", **sizes)
    fig.get_layout_engine().set(wspace=0.06)  # room for the arrows
    draw_asking(axes, flow, colors)
    draw_mixing(axes, flow)
    draw_arrows(axes)
    guess, _ = flow.guesses[0]
    word = words[flow.i]
    truth = "" if guess == word else f'; it was "{word}"'
    title = f'Four steps lead from "?" to the guess "{guess}"{truth}'
    note = entropy_note(trained, flow.weights, ' of the row of "?"')
    headline(fig, title, f"a stripe: one number of a vector, purple below 0, green above\n{note}")
    return fig, f"{title}. {STEPS}"


@cli.script
def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    trained = load_single_head_model(options)
    saved = {
        text: weights_of(trained.model, tokenize(text))[0, 0] for text in options.all_sentences
    }
    path = options.output_dir / paths.PROCESSED / "attention_weights.pt"
    checkpoints.save_tensors(saved, path)
    figure, caption = draw_heatmap(trained, options.words)
    save_plot(options, "phase1/attention_heatmap", figure, caption)
    save_plot(options, "phase1/qkv_flow", *draw_flow(trained, options.words))
    return caption.split(". ")[0]


if __name__ == "__main__":
    cli.run(main)
