"""What does the causal mask hide, and what becomes of a head under it?

    python phase4_causal/visualize.py
    python phase4_causal/visualize.py --sentence "those dogs slept in a soft bed"

Writes causal_mask.png and bidirectional_vs_causal.png to visualizations/plots/phase4/.
"""

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from phase2_multi_head.models import load_multi_head_model
from phase4_causal.causal_attention import CausalSelfAttention
from phase4_causal.models import with_attention
from shared import cli
from shared.attention_utils import causal_mask, normalized_entropy
from shared.toy_model import weights_on_sentence
from shared.training.recipes import Trained
from shared.visualization_utils import (
    ORANGE,
    WIDE,
    frame_cell,
    headline,
    name_axes,
    plot_attention,
    plot_mask,
    save_plot,
    token_labels,
    write_in_cell,
)

ROOM = 7  # words, for numbers in cells and for names above them


def draw_mask(words: list[str]) -> tuple[Figure, str]:
    """The causal mask of the sentence."""
    fig, ax = plt.subplots(figsize=(WIDE, 4.2), layout="constrained")
    plot_mask(ax, causal_mask(len(words)), token_labels(words))
    plt.setp(ax.get_xticklabels(), rotation=45, ha="left", rotation_mode="anchor")
    name_axes(ax)
    title = "A word may see itself and what comes before"
    headline(fig, title, "blue: may attend · hatched: hidden · no model")
    return fig, f"{title}. The causal mask of the sentence."


def mark_row(ax: Axes, weights: Tensor, row: int) -> None:
    """Frame a row of a heatmap (T, T), and write its weights into the cells if there is room."""
    frame_cell(ax, row, 0, ORANGE, width=len(weights))
    if len(weights) > ROOM:
        return
    for column, weight in enumerate(weights[row].tolist()):
        if weight > 0:
            write_in_cell(ax, row, column, f"{weight:.2f}".lstrip("0"), weight)


def draw_comparison(trained: Trained, words: list[str]) -> tuple[Figure, str]:
    """One head of the first layer without and with the mask: the parameters are the same."""
    masked_model = with_attention(trained, CausalSelfAttention)
    full = weights_on_sentence(trained.model, words)[0]
    masked = weights_on_sentence(masked_model, words)[0]
    mask = causal_mask(len(words))
    # The strongest look ahead: there one sees best what the mask takes away.
    ahead = full.masked_fill(mask, 0.0)
    head, i, j = [int(place) for place in torch.unravel_index(ahead.argmax(), ahead.shape)]
    title = "With the mask all weight goes to the word itself and those before it"
    if j > i:  # a word alone has no later one
        title = f'"{words[i]}" looks ahead at "{words[j]}": {full[head, i, j]:.2f}.\n'
        title += "The mask makes that 0"
    fig, (left, right) = plt.subplots(1, 2, figsize=(WIDE, 3.9), layout="constrained")
    plot_attention(left, full[head], words, annotate=False).set_title("no mask", pad=8)
    plot_attention(right, masked[head], words, mask=mask, annotate=False)
    right.set_title("with the mask", pad=8)
    right.set(xlabel=" ", ylabel="", yticks=[])  # named once, on the left
    if len(words) > ROOM:  # the rows have the same names
        left.set(xticks=[])
        right.set(xticks=[])
    note = ""
    if j > i:
        mark_row(left, full[head], i)
        mark_row(right, masked[head], i)
        rest = full[head, i, : i + 1].sum()
        note = f"of the framed row {rest:.3f} is left, and becomes 1: "
        note += f"{full[head, i, i]:.3f} / {rest:.3f} = {masked[head, i, i]:.2f}\n"
    before = normalized_entropy(full[head]).nanmean()
    after = normalized_entropy(masked[head], mask).nanmean()
    note += (
        f"layer 0 head {head}, {trained.label} · normalised entropy {before:.2f} and {after:.2f}"
    )
    headline(fig, title, note)
    cells = "Two maps of one head; in the second the cells above the diagonal are hidden."
    return fig, f"{title}. {cells}".replace("\n", " ")


USES = (
    "--sentence --sentences --seed --quick "
    "--device --retrain --d-model --heads --layers --output-dir --no-pictures --format"
)


@cli.script
def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__, USES), argv)
    trained = load_multi_head_model(options)
    save_plot(options, "phase4/causal_mask", *draw_mask(options.words))
    figure, caption = draw_comparison(trained, options.words)
    save_plot(options, "phase4/bidirectional_vs_causal", figure, caption)
    return caption.split(". ")[0]


if __name__ == "__main__":
    cli.run(main)
