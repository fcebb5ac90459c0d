"""Whom does a hidden word ask, and how does that become a guess?

    python phase1_single_head/visualize.py
    python phase1_single_head/visualize.py --sentence "those dogs slept in a soft bed"

Writes attention_heatmap.png and qkv_flow.png to visualizations/plots/phase1/, both with a word
hidden, and the weights of every sentence of --sentences, with nothing hidden, to
data/processed/attention_weights.pt.
"""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
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
    INK,
    QUIET,
    SIGNED_MAP,
    headline,
    plot_attention,
    save_plot,
    token_labels,
    weight_colorbar,
)


def entropy_note(trained: Trained, weights: Tensor, whose: str) -> str:
    """Which model, and the normalised entropy of these rows; a sentence of one word has none."""
    note = f"one layer, one head, {trained.label}"
    entropy = normalized_entropy(weights).nanmean()
    if entropy.isnan():
        return note
    return f"{note} · how even {whose} is (normalised entropy): {entropy:.2f}; 0: one word, 1: even"


# ---- the heatmap


def draw_heatmap(trained: Trained, flow: Flow) -> tuple[Figure, str]:
    """Returns the weights of the sentence with one word hidden, and a caption."""
    words, i = flow.words, flow.i
    weights = weights_on_sentence(trained.model, hide(words, i))[0, 0]  # (L, H, T, T) -> (T, T)
    height = min(max(4.8, 0.4 * len(words) + 2), 7.3)
    fig, ax = plt.subplots(figsize=(7.6, height), layout="constrained")
    plot_attention(ax, weights, flow.seen, annotate=False)
    ax.set_aspect("auto")  # few words are wide cells, many are small ones
    weight_colorbar(fig, ax, shrink=0.8)

    # The row of the hidden word is framed; its numbers, and the words that it asks most, stand out.
    attended = most_attended(weights[i], i)
    style = {"fill": False, "edgecolor": INK, "linewidth": 2.5, "clip_on": False, "zorder": 5}
    ax.add_patch(Rectangle((0, i), len(words), 1, **style))
    if len(words) <= 16:  # in smaller cells there is no room
        for j, weight in enumerate(weights[i].tolist()):
            style = {"ha": "center", "va": "center", "zorder": 6}
            style["color"] = "white" if weight > 0.5 else INK
            style["weight"] = "bold" if j in attended else "normal"
            ax.text(j + 0.5, i + 0.5, f"{weight:.2f}", **style)
    ax.get_yticklabels()[i].set_weight("bold")
    for j in attended:
        ax.get_xticklabels()[j].set_weight("bold")

    names = " and ".join(f'"{words[j]}" ({weights[i, j]:.2f})' for j in attended) or "nobody"
    title = f'To guess the hidden word, "?" asks {names} most'
    headline(fig, title, entropy_note(trained, weights, "a row"))
    reading = "Each row shows where one word takes its output from, and sums to 1"
    return fig, f'{title}. {reading}; that of "?" is framed.'


# ---- the flow


LAYOUT = [
    ["x", "query", ".", "."],
    ["words", "keys", "scores", "weights"],
    [".", "values", "weighted", "output"],
    [".", "guess", "guess", "."],
]
STEPS_IN_WORDS = (
    "The vector x of the hidden word, its query against all keys, scores, weights, weighted "
    "values, their sum, and the likeliest words."
)
LEFT, RIGHT, BOTTOM = (0, 0.5), (1, 0.5), (0.5, 0)  # middles of a panel's sides, as shares of it
FIRST_WORD = (0.8, 0.875)  # behind the likeliest of four words and its number
ARROWS = (  # from a side of one panel to a point of another: where there is a product or a sum
    ("x", RIGHT, "query", LEFT),
    ("words", RIGHT, "keys", LEFT),
    ("words", (1, 0.1), "values", LEFT),
    ("query", RIGHT, "scores", (0, 0.85)),
    ("keys", RIGHT, "scores", LEFT),
    ("scores", (0.88, 0.5), "weights", (-0.2, 0.5)),
    ("weights", (0.1, 0), "weighted", (1, 0.9)),
    ("values", RIGHT, "weighted", LEFT),
    ("weighted", RIGHT, "output", LEFT),
    ("output", BOTTOM, "guess", FIRST_WORD),
)


def shape_text(vectors: Tensor) -> str:
    """The shape as a reader writes it: "(6, 64)", "(64)"."""
    return f"({', '.join(str(length) for length in vectors.shape)})"


def label_panel(ax: Axes, what: str, step: str = "") -> None:
    """Over a panel: the step, if one begins here, and what the panel shows."""
    ax.set_title(f"{step}\n", loc="left", fontsize=12, weight="bold", linespacing=1.6)
    above = {"xytext": (0, 5), "xycoords": "axes fraction", "textcoords": "offset points"}
    ax.annotate(what, (0, 1), color=QUIET, **above)


def draw_stripes(ax: Axes, name: str, vectors: Tensor, more: str = "", step: str = "") -> None:
    """Vectors (n, d), one above the other, or one (d,): a stripe for each number."""
    limit = vectors.abs().max().item()
    image = torch.atleast_2d(vectors).numpy()
    colors = {"cmap": SIGNED_MAP, "vmin": -limit, "vmax": limit}
    ax.imshow(image, aspect="auto", interpolation="nearest", **colors)
    ax.set(xticks=[], yticks=[])
    ax.tick_params(length=0)
    label_panel(ax, f"{name} {shape_text(vectors)}{more}", step)


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
    """Every tensor on the way from the hidden word to the guess; the two words asked are blue."""
    count = len(flow.words)
    colors = [BLUE if j in flow.most_attended else GREY for j in range(count)]
    d_model, d_k, d_v = flow.x.size(1), flow.keys.size(1), flow.values.size(1)
    draw_stripes(axes["x"], 'x of "?"', flow.x[flow.i])
    draw_stripes(axes["query"], "query", flow.query, f": W_q ({d_model} × {d_k})", "1  Ask")
    draw_stripes(axes["words"], "x of all", flow.x)
    axes["words"].set_yticks(range(count), token_labels(flow.seen))
    draw_stripes(axes["keys"], "keys", flow.keys, f": W_k ({d_model} × {d_k})")

    draw_named_bars(axes["scores"], [""] * count, flow.scores.tolist(), colors)
    label_panel(axes["scores"], f"scores {shape_text(flow.scores)}: q · k / √{d_k}", "2  Weigh")
    draw_named_bars(axes["weights"], flow.seen, flow.weights.tolist(), colors)
    label_panel(axes["weights"], f"weights {shape_text(flow.weights)}: softmax")

    draw_stripes(axes["values"], "values", flow.values, f": W_v ({d_model} × {d_v})", "3  Mix")
    weighted = flow.weights[:, None] * flow.values  # (T, 1) * (T, d_v) -> (T, d_v)
    draw_stripes(axes["weighted"], "weight × value", weighted)
    draw_stripes(axes["output"], "output", flow.output, ": their sum")
    axes["output"].set_box_aspect(0.12)  # as flat as a row

    words = [word for word, _ in flow.guesses]
    chances = [chance for _, chance in flow.guesses]
    draw_named_bars(axes["guess"], words, chances, [BLUE, GREY, GREY, GREY])
    label_panel(axes["guess"], "the rest of the model", "4  Guess")


def connect_panels(axes: Mapping[str, Axes]) -> None:
    """From panel to panel, as the numbers go."""
    style = {"arrowstyle": "-|>", "color": INK, "linewidth": 1.2, "shrinkA": 3, "shrinkB": 3}
    for start, here, end, there in ARROWS:
        coordinates = {"xycoords": axes[end].transAxes, "textcoords": axes[start].transAxes}
        axes[end].annotate("", there, here, arrowprops=style, **coordinates)  # on top of both


def draw_flow(trained: Trained, flow: Flow) -> tuple[Figure, str]:
    """Returns the way of the hidden word from its vector to the guess, and a caption."""
    n = len(flow.words)
    sizes = {"figsize": (9.6, 4.6 + 0.5 * n), "height_ratios": (0.8, n, n, 3)}
    fig, axes = plt.subplot_mosaic(LAYOUT, layout="constrained", **sizes)
    fig.get_layout_engine().set(wspace=0.06)  # room for the arrows
    draw_panels(axes, flow)
    connect_panels(axes)
    guess, _ = flow.guesses[0]
    word = flow.words[flow.i]
    title = f'Four steps lead from "?" to the guess "{guess}"'
    if guess != word:
        title += f'; it was "{word}"'
    note = entropy_note(trained, flow.weights, 'the row of "?"')
    stripe = "x: the vector of a word; a stripe: one of its numbers, purple below 0, green above"
    headline(fig, title, f"{stripe}\n{note}")
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
