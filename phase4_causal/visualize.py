"""Two pictures of causality: the mask itself, and one sentence seen with and without it.

    python phase4_causal/visualize.py
    python phase4_causal/visualize.py --sentence "those dogs slept in a soft bed"

Writes causal_mask.png and bidirectional_vs_causal.png to visualizations/plots/phase4/.
"""

import argparse

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from phase2_multi_head.multi_head_attention import load_multi_head_model
from phase4_causal.causal_attention import load_causal_model
from phase4_causal.masking.mask_training import WITH, under
from shared import cli, paths
from shared.attention_utils import causal_mask, normalized_entropy
from shared.evidence import findings
from shared.evidence.findings import Finding
from shared.toy_language import START, encode
from shared.toy_model import ToyTransformer
from shared.training import Trained
from shared.visualization_utils import (
    INK,
    QUIET,
    model_note,
    plot_attention,
    save_figure,
    token_labels,
    weight_colorbar,
)


def draw_mask(words: list[str]) -> tuple[Figure, str]:
    """White where attention is allowed, black where it is blocked."""
    mask = causal_mask(len(words))
    n, allowed = len(words), int(mask.sum())
    size = max(5.0, 0.42 * n + 1.6)
    fig, ax = plt.subplots(figsize=(size, size + 0.5), layout="constrained")
    for i, j in torch.cartesian_prod(torch.arange(n), torch.arange(n)).tolist():
        ax.add_patch(Rectangle((j, i), 1, 1, facecolor="white" if mask[i, j] else "black", edgecolor="#8a8f96"))
        if n <= 10:
            text = "1" if mask[i, j] else "0"
            ax.text(j + 0.5, i + 0.5, text, ha="center", va="center", color=INK if mask[i, j] else "white")
    ax.set(xlim=(0, n), ylim=(n, 0), aspect="equal")
    ax.xaxis.tick_top()
    ax.set_xticks([j + 0.5 for j in range(n)], token_labels(words))
    ax.set_yticks([i + 0.5 for i in range(n)], token_labels(words))
    plt.setp(ax.get_xticklabels(), rotation=45, ha="left", rotation_mode="anchor")
    ax.xaxis.set_label_position("top")
    ax.set_xlabel("key (attended to)", color=QUIET)
    ax.set_ylabel("query (attending)", color=QUIET)
    ax.tick_params(length=0)
    title = f"Each word sees itself and the past: {allowed} of {n * n} pairs"
    ax.set_title(title, pad=12)
    model_note(fig, "white: may attend · black: blocked, score -inf before softmax\nno model involved")
    return fig, f"{title}. White: allowed; black: blocked."


@torch.no_grad()
def weights_of(model: ToyTransformer, words: list[str]) -> list[Tensor]:
    """Weights of each layer on one sentence, each (H, T, T)."""
    _, layers = model(torch.tensor([encode(words)], device=model.positions.device))
    return [weights[0].cpu() for weights in layers]


def sharpest_cut(full: Tensor) -> int:
    """The head (H, T, T) that loses most weight to the mask: the one in which to see it."""
    future = full.masked_fill(causal_mask(full.size(-1)), 0.0)
    return int(future.sum(dim=(-2, -1)).argmax())


def draw_comparison(bidirectional: Trained, causal: Trained, words: list[str]) -> tuple[Figure, str]:
    """One head without and with the mask, the same weights, and beside them a head that was trained with it."""
    full, masked = weights_of(bidirectional.model, words)[0], weights_of(under(bidirectional, WITH), words)[0]
    head = sharpest_cut(full)
    mask = causal_mask(len(words))
    lost = full[head].masked_fill(mask, 0.0).sum(dim=-1).mean().item()
    learned = torch.cat(weights_of(causal.model, [START, *words]))  # (L * H, T + 1, T + 1)
    start_mask = causal_mask(len(words) + 1)
    entropy = normalized_entropy(learned, start_mask.expand_as(learned)).nanmean(dim=-1)  # (L * H,)
    sharpest = int(entropy.argmin())
    layer, causal_head = divmod(sharpest, causal.recipe.num_heads)

    side = max(3.6, 0.3 * len(words) + 0.8)
    fig, axes = plt.subplots(1, 3, figsize=(3 * side + 1.0, side + 1.4), layout="compressed")
    fig.get_layout_engine().set(wspace=0.06)
    panels = (
        (full[head], words, None, f"no mask: layer 0 head {head}"),
        (masked[head], words, mask, "the same weights with the mask"),
        (learned[sharpest], [START, *words], start_mask, f"trained with the mask: layer {layer} head {causal_head}"),
    )
    for ax, (weights, tokens, panel_mask, title) in zip(axes, panels, strict=True):
        plot_attention(weights, tokens, mask=panel_mask, ax=ax, title=title, annotate=len(tokens) <= 7)
    for ax in axes[1:]:
        ax.set_ylabel("")
    weight_colorbar(fig, list(axes), shrink=0.55, aspect=30)
    title = (
        f"The mask cuts off the {lost:.2f} of this head's weight that lay in the future; what is left is scaled up to 1"
    )
    fig.suptitle(title, fontsize=12.5)
    full_entropy = normalized_entropy(full[head]).nanmean().item()
    masked_entropy = normalized_entropy(masked[head], mask).nanmean().item()
    model_note(
        fig,
        f"left and middle: {bidirectional.label} without a mask · right: {causal.label} with it · "
        f"normalised entropy {full_entropy:.2f}, {masked_entropy:.2f}, {entropy[sharpest]:.2f}",
    )
    return fig, title + "."


def record_findings(bidirectional: Trained, words: list[str], options: argparse.Namespace) -> None:
    """What the mask does to the weights of the first layer, where both models read the same input."""
    mask = causal_mask(len(words))
    full, masked = weights_of(bidirectional.model, words)[0], weights_of(under(bidirectional, WITH), words)[0]
    zeroed = full.masked_fill(~mask, 0.0)
    renormalized = zeroed / zeroed.sum(dim=-1, keepdim=True)
    moved = (full - masked).abs().sum(dim=-1).mean(dim=0) / 2  # (H, T, T) -> (T,): total variation, mean over heads
    findings.record(
        "phase4_causal/visualize.py",
        [
            Finding(
                "C097",
                "Causal attention is full attention with the upper triangle set to zero",
                "course notes",
                {
                    "zeroed": (zeroed - masked).abs().max().item(),
                    "zeroed and rows scaled back to 1": (renormalized - masked).abs().max().item(),
                },
                "largest difference from causal attention, same weights, first layer",
                "zeroing alone differs by less than 0.001",
                findings.verdict((zeroed - masked).abs().max().item() < 1e-3),
                control="zeroed and renormalised: equal up to rounding",
                seeds=[options.seed],
            ),
            Finding(
                "C098",
                "Bidirectional and causal attention differ dramatically",
                "course notes",
                {"first word to last word": [round(value, 4) for value in moved.tolist()]},
                "share of a row's weight that moves, mean over the heads of the first layer",
                "more than 0.2 in every row",
                **findings.conditional(
                    bool((moved > 0.2).all()),
                    bool((moved[: len(words) // 2] > 0.2).all()),
                    "the row is an early one; the last word loses nothing, since all words are in its past",
                ),
                seeds=[options.seed],
            ),
        ],
        options.output_dir,
    )


def main(argv: list[str] | None = None) -> None:
    options = cli.parse(cli.parser(__doc__), argv)
    bidirectional, causal = load_multi_head_model(options), load_causal_model(options)
    plots = options.output_dir / paths.PLOTS / "phase4"
    figure, caption = draw_mask(options.words)
    save_figure(figure, plots / f"causal_mask.{options.format}", caption=caption)
    figure, caption = draw_comparison(bidirectional, causal, options.words)
    save_figure(figure, plots / f"bidirectional_vs_causal.{options.format}", caption=caption)
    record_findings(bidirectional, options.words, options)


if __name__ == "__main__":
    cli.run(main)
