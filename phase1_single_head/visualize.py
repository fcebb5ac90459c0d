"""Whom does a hidden word ask, and how does that become a guess?

    python phase1_single_head/visualize.py
    python phase1_single_head/visualize.py --sentence "those dogs slept in a soft bed"

Writes attention_heatmap.png and qkv_flow.png to visualizations/plots/phase1/, both with a word hidden, and the
weights of every sentence of --sentences, with nothing hidden, to data/processed/attention_weights.pt.
"""

from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from phase1_single_head.models import asks, choose_word, flow_of, hide, load_single_head_model, most_asked, shown
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
        color = "white" if weight > 0.5 else INK
        ax.text(j + 0.5, i + 0.5, f"{weight:.2f}", ha="center", va="center", color=color, zorder=6)
    for label in [ax.get_yticklabels()[i], *(ax.get_xticklabels()[j] for j in most_asked(weights[i], i))]:
        label.set_weight("bold")
    weight_colorbar(fig, ax, shrink=0.7)
    ax.add_patch(Rectangle((0, i), len(words), 1, fill=False, edgecolor=INK, linewidth=2.5, clip_on=False, zorder=5))
    headline(fig, title, entropy_note(trained, weights))
    rows = 'Each row shows where one word takes its output from, and sums to 1; that of "?" is framed.'
    return fig, f"{title}. {rows}"


def head(ax: Axes, step: str, what: str) -> Axes:
    """Over a panel: the step, if one begins here, and what it shows."""
    ax.set_title(f"{step}\n", loc="left", fontsize=12, weight="bold", linespacing=1.6)
    ax.annotate(what, (0, 1), (0, 5), xycoords="axes fraction", textcoords="offset points", color=QUIET)
    return ax


def stripes(ax: Axes, vectors: Tensor) -> None:
    """Vectors (n, d), one above the other: a stripe for each number."""
    limit = vectors.abs().max().item()
    ax.imshow(vectors.numpy(), aspect="auto", cmap=SIGNED, vmin=-limit, vmax=limit, interpolation="nearest")
    ax.set(xticks=[], yticks=[])
    ax.tick_params(length=0)


def bars(ax: Axes, names: Sequence[str], values: Sequence[float], colors: Sequence[str]) -> None:
    """A bar for each name, the first on top, its number at its end."""
    ax.bar_label(ax.barh(range(len(names)), values, 0.6, color=colors), [f"{x:z.2f}" for x in values], padding=3)
    ax.set_yticks(range(len(names)), names)
    ax.set(xticks=[], ylim=(len(names) - 0.5, -0.5))
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    ax.margins(x=0.5)


def arrow(start: Axes, end: Axes, side: float, height: float) -> None:
    """From one panel to another: from the left (0) or right (1) side of the first to a point of the other's side."""
    style = {"arrowprops": {"arrowstyle": "-|>", "color": INK, "linewidth": 1.4}}
    coordinates = {"xycoords": end.transAxes, "textcoords": start.transAxes}
    start.annotate("", (1 - side, height), (side, 0.5), **coordinates, **style)


LAYOUT = """
    Q....
    KSWVM
    .GG.O
    .GG..
"""


def draw_flow(trained: Trained, words: list[str]) -> tuple[Figure, str]:
    """The way of the hidden word, from its query to the guess: a row for each word, those asked most in blue."""
    flow, n = flow_of(trained, words), len(words)
    size, heights = (9.6, 3.8 + 0.3 * n), (0.8, n, 0.8, 2.4)
    fig, axes = plt.subplot_mosaic(LAYOUT, figsize=size, height_ratios=heights, layout="constrained")
    colors = [BLUE if j in flow.asked else GREY for j in range(n)]
    stripes(head(axes["Q"], "1  Ask", 'W_q: query of "?"'), flow.query[None])
    stripes(head(axes["K"], "", "W_k: keys"), flow.key)
    axes["K"].set_yticks(range(n), token_labels(flow.seen))
    bars(head(axes["S"], "", f"scores: q · k / √{flow.key.size(-1)}"), [""] * n, flow.scores.tolist(), colors)
    bars(head(axes["W"], "2  Weigh", "softmax: sum 1"), flow.seen, flow.weights.tolist(), colors)
    stripes(head(axes["V"], "3  Mix", "W_v: values"), flow.value)
    stripes(head(axes["M"], "", "weight × value"), flow.weights[:, None] * flow.value)
    stripes(head(axes["O"], "", 'their sum: output of "?"'), flow.output[None])
    guesses, chances = zip(*flow.guesses, strict=True)
    bars(head(axes["G"], "4  Guess", "the rest of the model"), guesses, chances, [BLUE] + [GREY] * len(guesses))
    arrow(axes["Q"], axes["S"], 1, 0.95)
    arrow(axes["O"], axes["G"], 0, 0.85)
    guess, word = guesses[0], words[flow.i]
    title = f'Four steps lead from "?" to the guess "{guess}"' + ("" if guess == word else f'; it was "{word}"')
    note = entropy_note(trained, flow.weights, ' of the row of "?"')
    headline(fig, title, f"a stripe: one number of a vector, purple below 0, green above\n{note}")
    return fig, f"{title}. Query against keys, scores, weights, weighted values, their sum, and the likeliest words."


@cli.script
def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    trained = load_single_head_model(options)
    saved = {text: weights_of(trained.model, tokenize(text))[0, 0] for text in options.all_sentences}
    path = options.output_dir / paths.PROCESSED / "attention_weights.pt"
    checkpoints.save_tensors(saved, path)
    figure, caption = draw_heatmap(trained, options.words)
    save_plot(options, "phase1/attention_heatmap", figure, caption)
    save_plot(options, "phase1/qkv_flow", *draw_flow(trained, options.words))
    return caption.split(". ")[0]


if __name__ == "__main__":
    cli.run(main)
