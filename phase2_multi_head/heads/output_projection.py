"""What is the output projection W_O for, and is it needed?

    Concat(head_1, ..., head_H) W_O  =  head_1 W_O^1 + ... + head_H W_O^H
                              W_O^h  =  rows h d_k to (h + 1) d_k of W_O

W_O lets every head write to all of d_model, and it adds the heads up, each through its own part of
W_O (Elhage et al. 2021). We count the columns that a head writes to, with W_O and without it. With
one head of full size, W_V and W_O are two matrices in a row and could be one. The picture has the
product above for one word, in small whole numbers.
"""

import copy
from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

from phase2_multi_head.multi_head_attention import MultiHeadAttention
from shared import charts
from shared.claims import Numbers
from shared.experiment import Experiment, Results, Run
from shared.head_statistics import added_by_heads
from shared.visualization_utils import BLUE, INK, ORANGE, QUIET, WIDE

D_MODEL, NUM_HEADS = 64, 4
COLORS = (BLUE, ORANGE)  # of the heads, in the picture alone
WIDTH = 4  # of its vectors
MIDDLE, RIGHT, SUM = 5.2, 10.4, 4.6  # where W_O and the products begin, and the row of sums


def columns_written(attention: MultiHeadAttention, x: Tensor) -> int:
    """Returns how many columns of the output the values of head 0 can change."""
    changed = copy.deepcopy(attention)
    changed.w_v.weight[: D_MODEL // attention.num_heads] += 1.0
    differs = attention(x)[0] != changed(x)[0]
    return int(differs.any(dim=(0, 1)).sum())  # (B, T, d_model) -> one number


@torch.no_grad()
def measure(run: Run) -> Numbers:
    """Returns how many columns head 0 of four writes to, with W_O and without it."""
    torch.manual_seed(run.seed)
    x = torch.randn(2, 7, D_MODEL, dtype=torch.float64)
    layer = MultiHeadAttention(D_MODEL, NUM_HEADS, bias=False).double()
    with_w_o = columns_written(layer, x)
    nn.init.eye_(layer.w_o.weight)
    return {
        "columns that head 0 writes to, with W_O": with_w_o,
        "columns that head 0 writes to, without": columns_written(layer, x),
    }


@torch.no_grad()
def small_example() -> tuple[Tensor, Tensor, Tensor]:
    """Returns what two heads found for one word, W_O (4, 4), and what each head adds (2, 4).

    What they found is side by side, (2, 4): a row for each head, 0 in the columns of the other.
    """
    generator = torch.Generator().manual_seed(2)
    attention = MultiHeadAttention(WIDTH, len(COLORS), bias=False)
    attention.w_o.weight.copy_(torch.randint(-1, 3, (WIDTH, WIDTH), generator=generator))
    heads = torch.randint(1, 4, (len(COLORS), 1, 2), generator=generator)
    heads = heads.to(attention.w_o.weight)
    side_by_side = torch.block_diag(*heads)
    return side_by_side, attention.w_o.weight.detach().T, added_by_heads(attention, heads)[:, 0]


def picture(_: Results) -> Figure:
    """Draws what each head writes, without W_O and with it, beside its rows of W_O, and the sum."""
    side_by_side, matrix, added = small_example()
    fig, ax = plt.subplots(figsize=(WIDE, 3.4), layout="constrained")
    by_head = np.repeat(COLORS, 2)  # of the four columns, and of the rows of W_O
    charts.cells(ax, MIDDLE, 0, matrix, [[color] * WIDTH for color in by_head])
    for head, color in enumerate(COLORS):
        y, own = 2 * head + 0.5, side_by_side[head]
        ax.text(-0.3, y + 0.5, f"head {head}", color=color, ha="right", va="center", fontsize=11)
        draw_product(ax, y, own.where(own != 0, torch.nan), added[head], [color] * WIDTH, color)
    draw_sign(ax, RIGHT + 2, 2, "+")
    draw_product(ax, SUM, side_by_side.sum(dim=0), added.sum(dim=0), by_head, INK)
    ax.text(MIDDLE + 2, SUM + 0.5, "W_O", ha="center", va="center", fontsize=11)
    for left, above, below in (
        (0, "heads, side\nby side", "all heads"),
        (MIDDLE, "W_O in\ntwo blocks", "4 × 4"),
        (RIGHT, "what each\nhead adds", "output"),
    ):
        ax.text(left + 2, -0.3, above, ha="center", va="bottom", fontsize=11)
        ax.text(left + 2, SUM + 1.2, below, ha="center", va="top", fontsize=11)
    ax.set(xlim=(-2.2, RIGHT + 4.2), ylim=(SUM + 2, -1.9), aspect="equal")
    ax.axis("off")
    return fig


def draw_product(
    ax: Axes, y: float, heads: Tensor, output: Tensor, colors: Sequence[str], color: str
) -> None:
    """Draws one row: heads (4,) in their colors, times W_O, is output (4,) in its color."""
    charts.cells(ax, 0, y, heads[None], [colors])
    charts.cells(ax, RIGHT, y, output[None], [[color] * WIDTH])
    draw_sign(ax, MIDDLE - 0.6, y + 0.5, "×")
    draw_sign(ax, RIGHT - 0.6, y + 0.5, "=")


def draw_sign(ax: Axes, x: float, y: float, sign: str) -> None:
    ax.text(x, y, sign, ha="center", va="center", fontsize=13, color=QUIET)


main = Experiment(
    measure,
    picture=picture,
    title="W_O lets every head write to every column, and adds the heads up",
    note=f"one word, made-up whole numbers: two heads of d_v = 2, d_model = {WIDTH}",
    answer="It lets every head write to all columns, and adds the heads up: with W_O a head writes "
    f"to {{n[columns that head 0 writes to, with W_O]:.0f}} of {D_MODEL} columns, without it to "
    "{n[columns that head 0 writes to, without]:.0f}. With one head of full size it is not needed, "
    "because W_V and W_O could be one matrix.",
    uses="--seed --seeds",
)

if __name__ == "__main__":
    main.run()
