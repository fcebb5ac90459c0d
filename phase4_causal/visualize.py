"""What does the causal mask hide, and what becomes of a head under it?

    python phase4_causal/visualize.py
    python phase4_causal/visualize.py --sentence "those dogs slept in a soft bed"

Writes causal_mask.png and bidirectional_vs_causal.png to visualizations/plots/phase4/.
"""

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure, SubFigure

from phase2_multi_head.models import load_multi_head_model
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase4_causal.causal_attention import CausalSelfAttention
from phase4_causal.models import with_attention
from shared import cli
from shared.attention_utils import causal_mask, document_mask, normalized_entropy, padding_mask
from shared.grammar.roles import NO_NAME, head_names
from shared.toy_model import weights_on_sentence
from shared.training.recipes import Trained
from shared.visualization_utils import (
    frame_cell,
    headline,
    name_axes,
    plot_attention,
    plot_mask,
    role_color,
    save_plot,
    token_labels,
)


def draw_combined(fig: SubFigure) -> None:
    """Two rows of three masks of 8 places each, to be read as: this & this = both."""
    causal = causal_mask(8)
    no_filler = padding_mask(torch.tensor([6]), 8)[0, 0].expand(8, 8)  # (1, 1, 1, T) -> (T, T)
    same_text = document_mask(torch.arange(8) // 5)
    rows = {"no filler": no_filler, "same text": same_text}
    for panels, (name, other) in zip(fig.subplots(2, 3), rows.items(), strict=True):
        masks = {"nothing later": causal, name: other, "both": causal & other}
        for ax, sign, (title, mask) in zip(panels, ("", "&", "="), masks.items(), strict=True):
            plot_mask(ax, mask).set_title(title, fontsize=10, pad=6)
            ax.set(xticks=[], yticks=[])
            ax.text(-0.17, 0.5, sign, transform=ax.transAxes, fontsize=18, ha="center", va="center")


def draw_masks(words: list[str]) -> tuple[Figure, str]:
    """The causal mask of the sentence, and beside it how masks combine."""
    fig = plt.figure(figsize=(9.6, 5), layout="constrained")
    own, combined = fig.subfigures(1, 2, width_ratios=(1, 1.15), wspace=0.05)
    ax = plot_mask(own.subplots(), causal_mask(len(words)), token_labels(words))
    ax.tick_params(labelsize=10 if len(words) <= 10 else 8)
    plt.setp(ax.get_xticklabels(), rotation=45, ha="left", rotation_mode="anchor")
    name_axes(ax)
    draw_combined(combined)
    title = "A word may see itself and what comes before, and two masks combine with “and”"
    note = "blue: may attend · hatched: hidden · right: 8 places, queries ↓, keys → · no model"
    headline(fig, title, note)
    masks = "The causal mask of the sentence; beside it with a padding and a document mask."
    return fig, f"{title}. {masks}"


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
        title = f'"{words[i]}" looks ahead at "{words[j]}": {full[head, i, j]:.2f}. '
        title += "The mask makes that 0"
    name = head_names(trained, MultiHeadAttention)[0][head]
    side = 4.0 if len(words) <= 10 else 4.5
    fig, (left, right) = plt.subplots(1, 2, figsize=(2 * side, side + 1.0), layout="constrained")
    fig.get_layout_engine().set(h_pad=0.15)
    plot_attention(left, full[head], words).set_title("no mask", pad=10)
    plot_attention(right, masked[head], words, mask=mask).set_title("with the mask", pad=10)
    right.set_ylabel("")
    if j > i:
        for ax in (left, right):
            frame_cell(ax, i, j, role_color(name))
    before = normalized_entropy(full[head]).nanmean()
    after = normalized_entropy(masked[head], mask).nanmean()
    role = "" if name == NO_NAME else f', "{name}"'
    entropies = f"normalised entropy {before:.2f} and {after:.2f}"
    headline(fig, title, f"one head of layer 0{role}, {trained.label} · {entropies}", 12)
    cells = "Two maps of one head; in the second the cells above the diagonal are hidden."
    return fig, f"{title}. {cells}"


USES = (
    "--sentence --sentences --seed --quick "
    "--device --retrain --d-model --heads --layers --output-dir --no-pictures --format"
)


@cli.script
def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__, USES), argv)
    trained = load_multi_head_model(options)
    save_plot(options, "phase4/causal_mask", *draw_masks(options.words))
    figure, caption = draw_comparison(trained, options.words)
    save_plot(options, "phase4/bidirectional_vs_causal", figure, caption)
    return caption.split(". ")[0]


if __name__ == "__main__":
    cli.run(main)
