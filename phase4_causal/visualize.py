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
from shared.toy_model import weights_of
from shared.training import Trained
from shared.visualization_utils import (
    QUIET,
    headline,
    plot_attention,
    plot_mask,
    save_plot,
    token_labels,
)


def draw_combined(fig: SubFigure, length: int = 8) -> None:
    """Each row reads: this mask & this mask = both."""
    causal, same_text = causal_mask(length), document_mask(torch.arange(length) // (length - 3))
    no_filler = padding_mask(torch.tensor([length - 2]), length)[0, 0]  # (1, 1, 1, T) -> (1, T)
    others = {"no filler": no_filler.expand(length, length), "same text": same_text}
    for panels, (name, other) in zip(fig.subplots(len(others), 3), others.items(), strict=True):
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
    ax.xaxis.set_label_position("top")
    ax.set_xlabel("key (attended to)", color=QUIET)
    ax.set_ylabel("query (attending)", color=QUIET)
    draw_combined(combined)
    title = "A word may see itself and what comes before, and two masks combine with “and”"
    note = "blue: may attend · hatched: hidden · right: 8 places, queries ↓, keys → · no model"
    headline(fig, title, note)
    caption = (
        f"{title}. The causal mask of the sentence; beside it with a padding and a document mask."
    )
    return fig, caption


def draw_comparison(trained: Trained, words: list[str]) -> tuple[Figure, str]:
    """One head of the first layer without and with the mask: the same parameters, so the same
    scores.
    """
    masked_model = with_attention(trained, CausalSelfAttention)
    full, masked = (weights_of(model, words)[0] for model in (trained.model, masked_model))
    mask = causal_mask(len(words))
    future = full.masked_fill(mask, 0.0).sum(dim=-1).mean(dim=-1)  # (H, T, T) -> (H,)
    head = int(future.argmax())  # the one that loses most: in it the mask is seen best
    name = head_names(trained, MultiHeadAttention)[0][head]

    side = 4.0 if len(words) <= 10 else 4.5
    fig, axes = plt.subplots(1, 2, figsize=(2 * side, side + 1.0), layout="constrained")
    fig.get_layout_engine().set(h_pad=0.15)
    plot_attention(full[head], words, ax=axes[0], title="no mask")
    plot_attention(masked[head], words, mask=mask, ax=axes[1], title="with the mask").set_ylabel("")
    title = "With the mask all weight goes to the word itself and those before it"
    entropies = [
        normalized_entropy(w, m).nanmean().item()
        for w, m in ((full[head], None), (masked[head], mask))
    ]
    role = "" if name == NO_NAME else f', "{name}"'
    note = "one head of layer 0{}, {} · normalised entropy {:.2f} and {:.2f}".format(
        role, trained.label, *entropies
    )
    headline(fig, title, note, 12)
    return (
        fig,
        f"{title}. Two maps of one head; in the second the cells above the diagonal are hidden.",
    )


@cli.script
def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    trained = load_multi_head_model(options)
    save_plot(options, "phase4/causal_mask", *draw_masks(options.words))
    figure, caption = draw_comparison(trained, options.words)
    save_plot(options, "phase4/bidirectional_vs_causal", figure, caption)
    return caption.split(". ")[0]


if __name__ == "__main__":
    cli.run(main)
