"""What does the causal mask hide, and what becomes of a head under it?

    python phase4_causal/visualize.py
    python phase4_causal/visualize.py --sentence "those dogs slept in a soft bed"

Writes causal_mask.png and bidirectional_vs_causal.png to visualizations/plots/phase4/.
"""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from torch import Tensor

from phase2_multi_head.models import load_multi_head_model
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase4_causal.causal_attention import CausalSelfAttention
from phase4_causal.masking import masks
from phase4_causal.models import with_attention
from shared import cli
from shared.attention_utils import causal_mask, normalized_entropy
from shared.grammar.roles import NO_NAME, head_names
from shared.toy_model import weights_of
from shared.training import Trained
from shared.visualization_utils import QUIET, headline, plot_attention, save_plot, token_labels


def draw_mask(words: list[str]) -> tuple[Figure, str]:
    """The mask on the words: allowed cells plain, hidden ones hatched."""
    labels = token_labels(words)
    size = max(5.2, 0.36 * len(words) + 1.8)
    fig, ax = plt.subplots(figsize=(size, size + 0.4), layout="constrained")
    masks.draw_mask(ax, causal_mask(len(words)))
    places = [i + 0.5 for i in range(len(words))]
    ax.set_xticks(places, labels, rotation=45, ha="left", rotation_mode="anchor")
    ax.set_yticks(places, labels)
    ax.set_xlabel("key (attended to)", color=QUIET)
    ax.set_ylabel("query (attending)", color=QUIET)
    title = "Each word sees itself and what stands before it"
    headline(fig, title, "plain: may attend · hatched: hidden, score -inf before softmax")
    return fig, f"{title}: a triangle of allowed cells, below and on the diagonal."


def draw_comparison(trained: Trained, words: list[str]) -> tuple[Figure, str]:
    """One head of the first layer without and with the mask: the same parameters, so the same scores."""
    full, masked = first_layer(trained, words)
    mask = causal_mask(len(words))
    future = full.masked_fill(mask, 0.0).sum(dim=-1).mean(dim=-1)  # (H, T, T) -> (H,)
    head = int(future.argmax())  # the one that loses most: in it the mask is seen best
    name = head_names(trained, MultiHeadAttention)[0][head]

    side = 4.0 if len(words) <= 10 else 4.5
    fig, axes = plt.subplots(1, 2, figsize=(2 * side, side + 1.0), layout="constrained")
    fig.get_layout_engine().set(h_pad=0.15)
    for ax, weights, hidden, title in ((axes[0], full, None, "no mask"), (axes[1], masked, mask, "with the mask")):
        plot_attention(weights[head], words, mask=hidden, ax=ax, title=title)
        ax.tick_params(labelsize=9)
    axes[1].set_ylabel("")
    title = "The mask hides later words; their weight goes to the word itself and those before it"
    entropies = [normalized_entropy(w, m).nanmean().item() for w, m in ((full[head], None), (masked[head], mask))]
    role = "" if name == NO_NAME else f', "{name}"'
    note = "one head of layer 0{}, {} · normalised entropy {:.2f} and {:.2f}".format(role, trained.label, *entropies)
    headline(fig, title, note, 12)
    return fig, f"{title}. Two maps of one head; in the second the cells above the diagonal are hidden."


def first_layer(bidirectional: Trained, words: list[str]) -> tuple[Tensor, Tensor]:
    """Weights (H, T, T) of the layer in which both read the same: as trained without a mask, and under the mask."""
    masked = with_attention(bidirectional, CausalSelfAttention)
    return weights_of(bidirectional.model, words)[0], weights_of(masked, words)[0]


def moved(bidirectional: Trained, words: list[str]) -> list[float]:
    """Share of each row's weight that the mask moves in the first layer, mean over heads, first word to last."""
    full, masked = first_layer(bidirectional, words)
    return ((full - masked).abs().sum(dim=-1).mean(dim=0) / 2).tolist()  # (H, T, T) -> (T,): total variation


@cli.script
def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    trained = load_multi_head_model(options)
    save_plot(options, "phase4/causal_mask", *draw_mask(options.words))
    save_plot(options, "phase4/bidirectional_vs_causal", *draw_comparison(trained, options.words))
    shares = moved(trained, options.words)
    return f"The mask moves {shares[0]:.2f} of the first word's weight, {shares[-1]:.2f} of the last one's"


if __name__ == "__main__":
    cli.run(main)
