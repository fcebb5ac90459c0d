"""What may a word see, and what if a mask is read in another convention?

A mask is a predicate on two positions, so each is one line in shared/attention_utils.py, and masks combine with `&`.
Here each is drawn. Then the traps. Readers meet four ways to write the same mask:

    bool, True = may attend     this repository and F.scaled_dot_product_attention
    additive, 0 or -inf         added to the scores
    1 or 0                      textbooks; made for masked_fill(mask == 0, -inf), yet often added or multiplied
    bool, True = hidden         nn.MultiheadAttention, the inverse of the first

and code that expects one of them and is given another raises no error. The table shows what it does instead.

    python phase4_causal/masking/masks.py

Writes mask_gallery.png and mask_conventions.png to visualizations/plots/phase4/.
"""

import math
import textwrap
from collections.abc import Callable

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from torch import Tensor

from phase1_single_head.self_attention import masked_softmax
from shared import cli
from shared.attention_utils import blocked_mask, causal_mask, local_mask, padding_mask, prefix_mask, strided_mask
from shared.visualization_utils import INK, QUIET, headline, save_plot

LENGTH, NUM_SCORES = 6, 500
ZERO = 1e-12

# how a causal mask is written down: bool (T, T), True = may attend -> the tensor that is passed around
WRITTEN: dict[str, Callable[[Tensor], Tensor]] = {
    "True = may attend": lambda allowed: allowed,
    "0 or -inf": lambda allowed: torch.zeros(allowed.shape, dtype=torch.float64).masked_fill(~allowed, -math.inf),
    "1 or 0": lambda allowed: allowed.double(),
    "True = hidden": lambda allowed: ~allowed,
}
# how code reads a mask: (scores (..., T, T), mask (T, T)) -> weights (..., T, T)
READ: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "True = may attend": lambda scores, mask: masked_softmax(scores, mask.bool()),
    "scores + mask": lambda scores, mask: torch.softmax(scores + mask, dim=-1),
    "fill where mask == 0": lambda scores, mask: torch.softmax(scores.masked_fill(mask == 0, -1e9), dim=-1),
    "scores * mask": lambda scores, mask: torch.softmax(scores * mask, dim=-1),
    "True = hidden": lambda scores, mask: masked_softmax(scores, ~mask.bool()),
}


def gallery(length: int) -> dict[str, Tensor]:
    """Name -> mask of `length` keys, and as many queries where the name does not say otherwise."""
    padding = padding_mask(torch.tensor([length - 3]), length)[0, 0].expand(length, length)  # (1, 1, 1, T) -> (T, T)
    causal = causal_mask(length)
    return {
        "causal": causal,
        "causal, 3 new queries": causal_mask(3, length),
        "padding of 3": padding,
        "causal & padding": causal & padding,
        "local, window 2": local_mask(length, length, window=2),
        "causal & local": causal & local_mask(length, length, window=2),
        "strided, stride 3": strided_mask(length, length, stride=3),
        "blocked, block 4": blocked_mask(length, length, block=4),
        "prefix of 4": prefix_mask(length, length, prefix=4),
        "causal & blocked": causal & blocked_mask(length, length, block=4),
    }


def draw_mask(ax: Axes, name: str, mask: Tensor) -> None:
    """One mask: queries go down, keys across; a query stands at the row of its position."""
    num_queries, num_keys = mask.shape
    first = num_keys - num_queries  # position of the first query
    ax.pcolormesh(
        torch.arange(num_keys + 1).numpy(),
        torch.arange(first, num_keys + 1).numpy(),
        mask.float().numpy(),
        cmap=ListedColormap([INK, "white"]),
        vmin=0,
        vmax=1,
        edgecolors="#aab2bb",
        linewidth=0.6,
        clip_on=False,
    )
    ax.set(xlim=(0, num_keys), ylim=(num_keys, 0), aspect="equal")
    ax.set_xticks([0.5, num_keys - 0.5], [0, num_keys - 1], fontsize=8)
    ax.set_yticks([first + 0.5, num_keys - 0.5], [first, num_keys - 1], fontsize=8)
    ax.tick_params(length=0, pad=2)
    ax.spines[:].set_visible(False)
    ax.set_title(f"{name}\n{int(mask.sum())} of {mask.numel()}", fontsize=9.5)


def draw_gallery(masks: dict[str, Tensor]) -> tuple[Figure, str]:
    """All masks side by side."""
    fig, axes = plt.subplots(2, (len(masks) + 1) // 2, figsize=(9.6, 4.9), layout="constrained")
    for ax, (name, mask) in zip(axes.flat, masks.items(), strict=True):
        draw_mask(ax, name, mask)
    share = {name: mask.double().mean().item() for name, mask in masks.items()}
    least = min(share, key=share.__getitem__)
    title = (
        f"Masks are predicates on positions: causal allows {share['causal']:.0%} of the pairs, "
        f"{least} {share[least]:.0%}"
    )
    note = "white: may attend · dark: hidden · a row for each query, a column for each key · no model involved"
    headline(fig, title, note, 12.5)
    return fig, f"{title}. White: this query (row) may attend to this key (column)."


def future_mass(weights: Tensor) -> float:
    """Weight on later keys, mean over all rows -> 0 to 1, NaN if a row has no weights; weights (..., T, T)."""
    return weights.triu(diagonal=1).sum(dim=-1).mean().item()


def random_scores() -> Tensor:
    """Standard normal scores (NUM_SCORES, T, T), float64, the same at every call."""
    return torch.randn(NUM_SCORES, LENGTH, LENGTH, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


Mixes = dict[tuple[str, str], tuple[float, float]]


def mixes() -> Mixes:
    """(written, read) -> weight in the future per row, and largest difference from causal attention (NaN: some NaN)."""
    scores, allowed = random_scores(), causal_mask(LENGTH)
    right = masked_softmax(scores, allowed)
    found = {}
    for written, write in WRITTEN.items():
        for read_as, read in READ.items():
            weights = read(scores, write(allowed))
            found[written, read_as] = (future_mass(weights), (weights - right).abs().max().item())
    return found


def draw_conventions(found: Mixes, unmasked: float) -> tuple[Figure, str]:
    """The table of mixes: a row for how the mask is written, a column for how it is read."""
    fig, ax = plt.subplots(figsize=(9.2, 4.0), layout="constrained")
    right = 0
    for row, written in enumerate(WRITTEN):
        for column, read_as in enumerate(READ):
            mass, difference = found[written, read_as]
            correct = difference < ZERO
            right += correct
            text = "NaN" if math.isnan(mass) else f"{mass:.2f}" + (" (right)" if correct else "")
            color = "#d5ecd9" if correct else "#e6e8eb" if math.isnan(mass) else plt.cm.OrRd(0.15 + 0.6 * mass)
            ax.add_patch(plt.Rectangle((column, row), 1, 1, facecolor=color, edgecolor="white", linewidth=2))
            ax.text(column + 0.5, row + 0.5, text, ha="center", va="center", fontsize=11)
    ax.set(xlim=(0, len(READ)), ylim=(len(WRITTEN), 0))
    ax.set_xticks([i + 0.5 for i in range(len(READ))], [textwrap.fill(name, 13) for name in READ])
    ax.set_yticks([i + 0.5 for i in range(len(WRITTEN))], WRITTEN)
    ax.xaxis.tick_top()
    ax.xaxis.set_label_position("top")
    ax.set_xlabel("the code reads it as", color=QUIET)
    ax.set_ylabel("the mask is written as", color=QUIET)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    title = f"{right} of {len(found)} ways to mix mask and code are right; no other one raises an error"
    scores = f"{NUM_SCORES} random {LENGTH} x {LENGTH} score matrices, no model involved"
    headline(fig, title, f"numbers: weight on later words per row (without any mask {unmasked:.2f}) · {scores}", 12.5)
    return fig, f"{title}. Numbers: weight in the future per row."


def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    save_plot(options, "phase4/mask_gallery", *draw_gallery(gallery(8)))
    found, unmasked = mixes(), future_mass(random_scores().softmax(dim=-1))
    save_plot(options, "phase4/mask_conventions", *draw_conventions(found, unmasked))
    right = sum(difference < ZERO for _, difference in found.values())
    return f"{right} of {len(found)} ways to mix mask and code are right, and no other one raises an error"


if __name__ == "__main__":
    cli.run(main)
