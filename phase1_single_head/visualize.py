"""What does one head look like: who attends to whom, and by which way?

    python phase1_single_head/visualize.py
    python phase1_single_head/visualize.py --sentence "those dogs slept in a soft bed"

Writes attention_heatmap.png and qkv_flow.png to visualizations/plots/phase1/, and the weights of every sentence of
--sentences to data/processed/attention_weights.pt.
"""

import math

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import ConnectionPatch, Rectangle
from torch import Tensor

from phase1_single_head.self_attention import (
    attention_input,
    choose_word,
    load_single_head_model,
    scaled_dot_product_attention,
)
from shared import cli, paths
from shared.attention_utils import normalized_entropy
from shared.toy_language import tokenize
from shared.toy_model import weights_of
from shared.training import Trained
from shared.visualization_utils import (
    INK,
    QUIET,
    head_color,
    model_note,
    plot_attention,
    save_plot,
    token_labels,
    weight_colorbar,
)


def entropy_note(trained: Trained, weights: Tensor) -> str:
    entropy = normalized_entropy(weights).nanmean().item()
    return f"one layer, one head, {trained.label} · normalised entropy {entropy:.2f} (0: one word, 1: all alike)"


def draw_heatmap(trained: Trained, words: list[str]) -> tuple[Figure, str]:
    """The attention matrix; the title names where the verb looks."""
    weights = weights_of(trained.model, words)[0, 0]
    i = choose_word(words)
    j = int(weights[i].argmax())
    title = f'"{words[i]}" looks at "{words[j]}": {weights[i, j]:.2f} of its weight'
    size = max(5.2, 0.55 * len(words) + 2)
    fig, ax = plt.subplots(figsize=(size + 0.9, size), layout="constrained")
    plot_attention(weights, words, ax=ax, title=title)
    weight_colorbar(fig, ax, shrink=0.7)
    ax.add_patch(Rectangle((0, i), len(words), 1, fill=False, edgecolor=INK, linewidth=1.6, clip_on=False))
    model_note(fig, entropy_note(trained, weights))
    return fig, f"{title}. Each row shows where one word takes its output from, and sums to 1."


def strip(ax: Axes, values: Tensor, title: str, rows: list[str] | None = None) -> None:
    """Draw vectors as rows of coloured cells: red positive, blue negative."""
    limit = values.abs().max().item()
    ax.imshow(
        torch.atleast_2d(values).numpy(), aspect="auto", cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest"
    )
    ax.set_title(title, fontsize=9.5, pad=4)
    ax.set_xticks([])
    ax.set_yticks(range(len(rows)) if rows else [], rows or [], fontsize=8)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)


def bars(ax: Axes, values: Tensor, title: str, rows: list[str], limits: tuple[float, float]) -> None:
    """Draw one number per word as horizontal bars with the numbers at their ends."""
    ax.barh(range(len(values)), values.tolist(), color=head_color(0), height=0.62)
    ax.axvline(0, color=QUIET, linewidth=0.8)
    for row, value in enumerate(values.tolist()):
        ax.text(max(value, 0), row, f" {value:.2f}", va="center", fontsize=8)
    ax.set(yticks=range(len(rows)), xticks=[], xlim=limits)
    ax.set_yticklabels(rows, fontsize=8)
    ax.set_title(title, fontsize=9.5, pad=4)
    ax.tick_params(length=0)
    ax.invert_yaxis()
    ax.spines[:].set_visible(False)


@torch.no_grad()
def draw_flow(trained: Trained, words: list[str]) -> tuple[Figure, str]:
    """One word's way: input, query against all keys, scores, weights, weighted values, output; sizes at each step."""
    model = trained.model.cpu()
    attention = model.blocks[0].attention
    x = attention_input(model, words)
    query, key, value = attention.w_q(x), attention.w_k(x), attention.w_v(x)
    i = choose_word(words)
    scores = query[i] @ key.T / math.sqrt(key.size(-1))
    output, weights = scaled_dot_product_attention(query, key, value)
    j = int(weights[i].argmax())
    n, d, d_k, d_v = len(words), x.size(-1), key.size(-1), value.size(-1)
    labels = token_labels(words)

    fig = plt.figure(figsize=(10.8, 6))
    left, width = {"x": 0.065, "project": 0.27, "score": 0.49, "softmax": 0.675, "output": 0.865}, 0.12
    bottom, height = {"query": 0.765, "keys": 0.43, "values": 0.09}, 0.25

    def place(column: str, row: str, tall: float = height) -> Axes:
        return fig.add_axes((left[column], bottom[row], width, tall))

    ax_x, ax_query, ax_keys = place("x", "keys"), place("project", "query", 0.035), place("project", "keys")
    ax_values, ax_scores, ax_weights = place("project", "values"), place("score", "keys"), place("softmax", "keys")
    ax_weighted, ax_output = place("softmax", "values"), place("output", "values", 0.035)
    for column, text in zip(left, ("", "1 project", "2 score, 3 scale", "4 softmax", "5 weighted sum"), strict=True):
        fig.text(left[column] + width / 2, 0.875, text, ha="center", color=QUIET, fontsize=10.5)

    strip(ax_x, x, f"input x: {n} × {d}", labels)
    ax_x.add_patch(Rectangle((-0.5, i - 0.5), d, 1, fill=False, edgecolor=INK, linewidth=1.8, clip_on=False))
    strip(ax_query, query[i], f'query of "{words[i]}": {d_k}')
    strip(ax_keys, key, f"keys: {n} × {d_k}", labels)
    strip(ax_values, value, f"values: {n} × {d_v}", labels)
    lowest, highest = min(scores.min().item(), 0), scores.max().item()
    bars(ax_scores, scores, f"q · k / √{d_k}: {n} numbers", labels, (lowest, highest + 0.4 * (highest - lowest)))
    bars(ax_weights, weights[i], f"weights: {n}, sum 1", labels, (0, 1.35 * weights[i].max().item()))
    strip(ax_weighted, weights[i][:, None] * value, f"weight × value: {n} × {d_v}", labels)
    strip(ax_output, output[i], f'output of "{words[i]}": {d_v}')

    def arrow(start: Axes, a: tuple[float, float], end: Axes, b: tuple[float, float], text: str = "") -> None:
        """An arrow from point a of one panel to point b of another, in fractions of the panels."""
        style = {"arrowstyle": "-|>", "color": QUIET, "mutation_scale": 12, "shrinkA": 4, "shrinkB": 4}
        fig.add_artist(ConnectionPatch(a, b, "axes fraction", "axes fraction", axesA=start, axesB=end, **style))
        if text:
            points = [
                fig.transFigure.inverted().transform(ax.transAxes.transform(p)) for ax, p in ((start, a), (end, b))
            ]
            on_white = {"facecolor": "white", "edgecolor": "none", "pad": 1}
            fig.text(*(sum(points) / 2 + (0, 0.012)), text, ha="center", color=QUIET, fontsize=9, bbox=on_white)

    arrow(ax_x, (1, (n - i - 0.5) / n), ax_query, (0, 0.5), "W_q")
    arrow(ax_x, (1, 0.5), ax_keys, (-0.42, 0.5), "W_k")
    arrow(ax_x, (1, 0.2), ax_values, (-0.42, 0.5), "W_v")
    arrow(ax_query, (1, 0.5), ax_scores, (0.1, 1.14))
    arrow(ax_keys, (1, 0.5), ax_scores, (-0.42, 0.5))
    arrow(ax_scores, (1.02, 0.5), ax_weights, (-0.42, 0.5))
    arrow(ax_weights, (0.5, 0), ax_weighted, (0.5, 1.16))
    arrow(ax_values, (1, 0.5), ax_weighted, (-0.42, 0.5))
    arrow(ax_weighted, (1, 0.07), ax_output, (0, 0.5), "sum")
    title = f'"{words[i]}" asks every word, and gives {weights[i, j]:.2f} of its weight to "{words[j]}"'
    fig.suptitle(title, fontsize=13, y=0.975)
    model_note(fig, entropy_note(trained, weights))
    return fig, f"{title}: project, score, scale, softmax, weighted sum, with the size of everything on the way."


def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    trained = load_single_head_model(options)
    saved = {text: weights_of(trained.model, tokenize(text))[0, 0] for text in options.all_sentences}
    with paths.whole_file(options.output_dir / paths.PROCESSED / "attention_weights.pt") as unfinished:
        torch.save(saved, unfinished)
    figure, caption = draw_heatmap(trained, options.words)
    save_plot(options, "phase1/attention_heatmap", figure, caption)
    save_plot(options, "phase1/qkv_flow", *draw_flow(trained, options.words))
    return caption.split(". ")[0]


if __name__ == "__main__":
    cli.run(main)
