"""What does the causal mask hide, and what becomes of a head under it?

    python phase4_causal/visualize.py
    python phase4_causal/visualize.py --sentence "those dogs slept in a soft bed"

Writes causal_mask.png and bidirectional_vs_causal.png to visualizations/plots/phase4/.
"""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from torch import Tensor

from phase2_multi_head.multi_head_attention import load_multi_head_model
from phase4_causal.causal_attention import CausalSelfAttention, load_causal_model, with_attention
from phase4_causal.masking import masks
from shared import cli
from shared.attention_utils import causal_mask, normalized_entropy
from shared.toy_language import START
from shared.toy_model import weights_of
from shared.training import Trained
from shared.visualization_utils import (
    INK,
    QUIET,
    headline,
    model_note,
    plot_attention,
    save_plot,
    token_labels,
    weight_colorbar,
)


def draw_mask(words: list[str]) -> tuple[Figure, str]:
    """White where attention is allowed, dark where it is blocked."""
    mask, n = causal_mask(len(words)), len(words)
    size = max(5.0, 0.42 * n + 1.6)
    fig, ax = plt.subplots(figsize=(size, size + 0.5), layout="constrained")
    title = f"Each word sees itself and the past: {int(mask.sum())} of {n * n} pairs"
    masks.draw_mask(ax, title, mask)
    for i, row in enumerate(mask.tolist() if n <= 10 else ()):
        for j, allowed in enumerate(row):
            ax.text(j + 0.5, i + 0.5, int(allowed), ha="center", va="center", color=INK if allowed else "white")
    ax.xaxis.tick_top()
    ax.set_xticks([j + 0.5 for j in range(n)], token_labels(words), rotation=45, ha="left", rotation_mode="anchor")
    ax.set_yticks([i + 0.5 for i in range(n)], token_labels(words))
    ax.xaxis.set_label_position("top")
    ax.set_xlabel("key (attended to)", color=QUIET)
    ax.set_ylabel("query (attending)", color=QUIET)
    ax.set_title(title, pad=12)
    model_note(fig, "white: may attend · dark: blocked, score -inf before softmax\nno model involved")
    return fig, f"{title}. White: allowed; dark: blocked."


def sharpest_head(trained: Trained, words: list[str]) -> tuple[int, int, Tensor, float]:
    """Layer and head of lowest entropy in a causal model, its weights (T, T), and its normalised entropy."""
    weights = weights_of(trained.model, words)  # (L, H, T, T)
    mask = causal_mask(len(words)).expand_as(weights)
    entropy = normalized_entropy(weights, mask).nanmean(dim=-1)  # (L, H, T, T) -> (L, H)
    layer, head = divmod(int(entropy.argmin()), weights.size(1))
    return layer, head, weights[layer, head], entropy[layer, head].item()


def draw_comparison(bidirectional: Trained, causal: Trained, words: list[str]) -> tuple[Figure, str]:
    """One head without and with the mask, the same weights, and beside them a head that was trained with it."""
    full, masked = first_layer(bidirectional, words)
    mask, start_mask = causal_mask(len(words)), causal_mask(len(words) + 1)
    future = full.masked_fill(mask, 0.0).sum(dim=-1).mean(dim=-1)  # (H, T, T) -> (H,)
    head = int(future.argmax())  # the one that loses most: in it the mask is seen best
    layer, causal_head, learned, entropy = sharpest_head(causal, [START, *words])

    side = max(3.6, 0.3 * len(words) + 0.8)
    fig, axes = plt.subplots(1, 3, figsize=(3 * side + 1.0, side + 1.4), layout="compressed")
    fig.get_layout_engine().set(wspace=0.06)
    panels = (
        (full[head], words, None, f"no mask: layer 0 head {head}"),
        (masked[head], words, mask, "the same weights with the mask"),
        (learned, [START, *words], start_mask, f"trained with the mask: layer {layer} head {causal_head}"),
    )
    for ax, (weights, tokens, panel_mask, title) in zip(axes, panels, strict=True):
        plot_attention(weights, tokens, mask=panel_mask, ax=ax, title=title, annotate=len(tokens) <= 7)
    for ax in axes[1:]:
        ax.set_ylabel("")
    weight_colorbar(fig, list(axes), shrink=0.55, aspect=30)
    lost = f"The mask cuts off the {future[head]:.2f} of this head's weight that lay in the future"
    title = f"{lost}; what is left is scaled up to 1"
    entropies = (normalized_entropy(full[head]).nanmean(), normalized_entropy(masked[head], mask).nanmean(), entropy)
    note = f"left and middle: {bidirectional.label} without a mask · right: {causal.label} with it"
    headline(fig, title, f"{note} · normalised entropy {', '.join(f'{value:.2f}' for value in entropies)}", 12.5)
    return fig, title + "."


def first_layer(bidirectional: Trained, words: list[str]) -> tuple[Tensor, Tensor]:
    """Weights (H, T, T) of the layer in which both read the same: as trained without a mask, and under the mask."""
    masked = with_attention(bidirectional, CausalSelfAttention)
    return weights_of(bidirectional.model, words)[0], weights_of(masked, words)[0]


def moved(bidirectional: Trained, words: list[str]) -> list[float]:
    """Share of each row's weight that the mask moves in the first layer, mean over heads, first word to last."""
    full, masked = first_layer(bidirectional, words)
    return ((full - masked).abs().sum(dim=-1).mean(dim=0) / 2).tolist()  # (H, T, T) -> (T,): total variation


def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    bidirectional, causal = load_multi_head_model(options), load_causal_model(options)
    save_plot(options, "phase4/causal_mask", *draw_mask(options.words))
    save_plot(options, "phase4/bidirectional_vs_causal", *draw_comparison(bidirectional, causal, options.words))
    shares = moved(bidirectional, options.words)
    return f"The mask moves {shares[0]:.2f} of the first word's weight, {shares[-1]:.2f} of the last one's"


if __name__ == "__main__":
    cli.run(main)
