"""What is the output projection W_O for, and is it needed?

    Concat(head_1, ..., head_H) W_O  =  head_1 W_O^1 + ... + head_H W_O^H,     W_O^h = rows h d_k to (h + 1) d_k of W_O

It lets every head write to all of d_model. So a layer's heads add up, each by its own d_k x d_model part of W_O (Elhage
et al. 2021 read trained models this way). With one head of full size, W_V and W_O are two matrices in a row and could
be one.

    python phase2_multi_head/heads/output_projection.py

Writes concat_and_wo.png, the product above for one word in small whole numbers, to visualizations/plots/phase2/.
"""

import copy

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from phase2_multi_head.multi_head_attention import MultiHeadAttention, split_heads
from shared import cli
from shared.head_statistics import added_by_heads
from shared.visualization_utils import BLUE, GREEN, HIDDEN, INK, ORANGE, PURPLE, QUIET, headline, save_plot

D_MODEL, NUM_HEADS = 64, 4
MIDDLE, RIGHT, SUM = 9.5, 19, 8.7  # of the picture: where W_O and the products begin, and the row of sums
COLORS = (BLUE, ORANGE, GREEN, PURPLE)  # of the heads, in this picture alone


@torch.no_grad()
def sum_of_heads(attention: MultiHeadAttention, x: Tensor) -> Tensor:
    """The output as a sum over heads -> (B, T, d_model); attention without biases."""
    _, weights = attention(x)
    value = split_heads(attention.w_v(x), attention.num_heads)  # (B, T, d_model) -> (B, H, T, d_k)
    return added_by_heads(attention, weights @ value).sum(dim=1)  # (B, H, T, d_model) -> (B, T, d_model)


@torch.no_grad()
def folded(attention: MultiHeadAttention) -> MultiHeadAttention:
    """One matrix in place of two: W_V becomes W_V W_O, and W_O the identity; no biases."""
    result = copy.deepcopy(attention)
    result.w_v.weight.copy_(attention.w_o.weight @ attention.w_v.weight)  # nn.Linear holds the transposed matrix
    result.w_o.weight.copy_(torch.eye(D_MODEL))
    return result


@torch.no_grad()
def columns_written(attention: MultiHeadAttention) -> int:
    """Columns of the output that the values of head 0 can change."""
    changed = copy.deepcopy(attention)
    changed.w_v.weight[: D_MODEL // attention.num_heads] += 1.0
    x = torch.randn(1, 7, D_MODEL, dtype=torch.float64)
    return int((attention(x)[0] != changed(x)[0]).any(dim=1).sum())  # (1, 7, d_model) -> one number


@torch.no_grad()
def small_example() -> tuple[MultiHeadAttention, Tensor]:
    """A layer of d_model = 8 with whole numbers in W_O, and what its four heads found for one word, (4, 1, 2)."""
    generator = torch.Generator().manual_seed(2)
    attention = MultiHeadAttention(8, NUM_HEADS, bias=False)
    attention.w_o.weight.copy_(torch.randint(-1, 3, (8, 8), generator=generator))
    return attention, torch.randint(1, 4, (NUM_HEADS, 1, 2), generator=generator).float()


@torch.no_grad()
def draw() -> tuple[Figure, str]:
    """Left what each head writes without W_O, right with it, in the middle W_O; each head beside its rows of W_O."""
    attention, heads = small_example()
    without = copy.deepcopy(attention)
    torch.nn.init.eye_(without.w_o.weight)
    quarters, written = (added_by_heads(each, heads)[:, 0] for each in (without, attention))  # (H, 1, 8) -> (H, 8)
    fig, ax = plt.subplots(figsize=(9, 4.5), layout="constrained")
    for head, color in enumerate(COLORS):
        first, middle = 2 * head, 2 * head + 0.5  # its rows of W_O are first and first + 1
        ax.text(-0.4, middle + 0.5, f"head {head}", color=color, ha="right", va="center", fontsize=11)
        for column in range(8):
            number = quarters[head, column] if column // 2 == head else None
            draw_cell(ax, column, middle, number, color)
            draw_cell(ax, RIGHT + column, middle, written[head, column], color)
            for row in (first, first + 1):
                draw_cell(ax, MIDDLE + column, row, attention.w_o.weight[column, row], color)
    for column in range(8):
        draw_cell(ax, column, SUM, quarters[:, column].sum(), COLORS[column // 2])
        draw_cell(ax, RIGHT + column, SUM, written[:, column].sum(), INK)
    draw_words(ax)
    ax.set(xlim=(-2.8, RIGHT + 8.2), ylim=(SUM + 2.2, -1.5), aspect="equal")
    ax.axis("off")
    title = "W_O lets every head write to every column, and adds the heads up"
    headline(fig, title, f"one word, made-up whole numbers: {NUM_HEADS} heads of d_v = 2, d_model = 8")
    return fig, (
        f"{title}. Left, without W_O: each of four heads fills its own quarter of the columns, side by side. Middle: "
        "W_O, its rows cut in four. Right: each head times its rows of W_O fills all columns; the sum is the output."
    )


def draw_cell(ax: Axes, x: float, y: float, number: Tensor | None, color: str) -> None:
    """A cell with a number on a light shade of a head's colour, grey for a sum; empty where a head cannot write."""
    face = "white" if number is None else to_rgba(color, 0.12 if color == INK else 0.3)
    ax.add_patch(Rectangle((x, y), 1, 1, facecolor=face, edgecolor=HIDDEN if number is None else "white"))
    if number is not None:
        text = f"{number:.0f}".replace("-", "−")
        ax.text(x + 0.5, y + 0.5, text, ha="center", va="center", fontweight="bold" if color == INK else "normal")


def draw_words(ax: Axes) -> None:
    """What the three parts are, and the signs between them."""
    for x, above, below in (
        (0, "heads, side by side", "concat of the heads: 1 × 8"),
        (MIDDLE, "W_O in four blocks", "8 × 8"),
        (RIGHT, "what each head adds", "output: 1 × 8, the sum"),
    ):
        ax.text(x + 4, -0.5, above, ha="center", va="bottom", fontsize=11)
        ax.text(x + 4, SUM + 1.3, below, ha="center", va="top", fontsize=11)
    sign = {"ha": "center", "va": "center", "fontsize": 13, "color": QUIET}
    for y in (1, 3, 5, 7, SUM + 0.5):
        ax.text((8 + MIDDLE) / 2, y, "×", **sign)
        ax.text((MIDDLE + 8 + RIGHT) / 2, y, "=", **sign)
    for y in (2, 4, 6):
        ax.text(RIGHT + 4, y, "+", **sign)
    ax.text(MIDDLE + 4, SUM + 0.5, "W_O", ha="center", va="center")
    for x in (0, RIGHT):
        ax.plot((x, x + 8), (SUM - 0.3,) * 2, color=INK, linewidth=1)


@torch.no_grad()
@cli.script
def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    x = torch.randn(2, 7, D_MODEL, dtype=torch.float64)
    print("\nLayers with random weights, without biases, float64; largest difference of the output:")
    for num_heads in (1, NUM_HEADS):
        layer = MultiHeadAttention(D_MODEL, num_heads, bias=False).double()
        for name, other in (("heads added up", sum_of_heads(layer, x)), ("W_V and W_O made one", folded(layer)(x)[0])):
            print(f"   heads: {num_heads}   {name:21} {(layer(x)[0] - other).abs().max():.1e}")
    save_plot(options, "phase2/concat_and_wo", *draw())
    with_it = columns_written(layer)
    torch.nn.init.eye_(layer.w_o.weight)
    return f"With it a head writes to {with_it} of {D_MODEL} columns, without to {columns_written(layer)}"


if __name__ == "__main__":
    cli.run(main)
