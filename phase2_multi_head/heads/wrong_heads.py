"""How is multi-head attention written wrong, without any shape that tells?

We show two mistakes, and measure the second beside the right module.

1. Somebody reshapes and forgets the transpose. (B, T, d_model) viewed as (B, H, T, d_k) has the
   right shape, but a head's rows are then pieces of neighbouring words. The picture has three words
   of six numbers, cut into two heads.
2. Somebody slices the input: x itself is cut into H slices, which all go through one small
   projection of d_k x d_k. It is often printed, and it trains. But head h never sees the other
   slices, and all heads ask the same question.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

from phase1_single_head.self_attention import scaled_dot_product_attention
from phase2_multi_head.multi_head_attention import MultiHeadAttention, merge_heads, split_heads
from shared import charts
from shared.attention_checks import check_heads
from shared.claims import Numbers
from shared.experiment import Experiment, Results, Run
from shared.visualization_utils import BLUE, GREEN, ORANGE, QUIET, WIDE

D_MODEL, NUM_HEADS = 64, 4
WORD_COLORS = np.array([BLUE, ORANGE, GREEN])


class SlicedInput(nn.Module):
    """The wrong version: head h sees columns h * d_k to (h + 1) * d_k of x.

    All heads share their projections.
    """

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        check_heads(d_model, num_heads)
        self.num_heads, d_k = num_heads, d_model // num_heads
        self.w_q = nn.Linear(d_k, d_k, bias=False)
        self.w_k = nn.Linear(d_k, d_k, bias=False)
        self.w_v = nn.Linear(d_k, d_k, bias=False)
        self.w_o = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Returns the output (B, T, d_model) of x (B, T, d_model), and weights (B, H, T, T)."""
        slices = split_heads(x, self.num_heads)  # -> (B, H, T, d_k), not projected
        query, key, value = self.w_q(slices), self.w_k(slices), self.w_v(slices)
        heads, weights = scaled_dot_product_attention(query, key, value, mask)
        return self.w_o(merge_heads(heads)), weights  # (B, H, T, d_k) -> (B, T, d_model)


def columns_read(attention: nn.Module) -> int:
    """Returns how many columns of x can change the weights of head 0: those with a gradient."""
    x = torch.randn(1, 7, D_MODEL, dtype=torch.float64, requires_grad=True)
    _, weights = attention(x)
    upstream = torch.randn(7, 7, dtype=torch.float64)
    (weights[0, 0] * upstream).sum().backward()
    return int((x.grad != 0).any(dim=1).sum())  # (1, 7, d_model) -> one number


@torch.no_grad()
def apart_on_equal_slices(attention: nn.Module) -> float:
    """Returns how far two heads differ at most if all slices of x hold the same numbers.

    It is 0 if both heads ask the same.
    """
    x = torch.randn(1, 7, D_MODEL // NUM_HEADS, dtype=torch.float64)
    x = x.repeat(1, 1, NUM_HEADS)  # (1, 7, d_k) -> (1, 7, d_model)
    _, weights = attention(x)
    return (weights[:, 0] - weights[:, 1]).abs().max().item()


def measure(run: Run) -> Numbers:
    """Returns what head 0 reads, how far two heads are apart, and parameters; random weights."""
    torch.manual_seed(run.seed)
    numbers = {}
    for name, make in (("multi-head", MultiHeadAttention), ("sliced input", SlicedInput)):
        layer = make(D_MODEL, NUM_HEADS).double()
        numbers[f"{name}, columns read"] = columns_read(layer)
        numbers[f"{name}, apart on equal slices"] = apart_on_equal_slices(layer)
        numbers[f"{name}, parameters"] = sum(p.numel() for p in layer.parameters())
    return numbers


def numbered_words() -> Tensor:
    """Returns three words of six numbers, (1, 3, 6): 14 is column 4 of word 1."""
    return 10 * torch.arange(3)[None, :, None] + torch.arange(6)


def draw_words(ax: Axes, left: float, top: float, rows: Tensor, title: str) -> None:
    """Draws numbers (T, columns), each on the colour of the word that it comes from."""
    charts.cells(ax, left, top, rows, WORD_COLORS[rows // 10])
    ax.text(left + rows.size(1) / 2, top - 0.15, title, ha="center", va="bottom", fontsize=11)


def draw_heads_of(ax: Axes, top: float, heads: Tensor, code: str, verdict: str) -> None:
    """Draws two heads (2, T, d_k) beside each other, with an arrow from x."""
    ax.annotate("", (8.6, top + 1.5), (6.3, 5), arrowprops={"arrowstyle": "->", "color": QUIET})
    centre = {"ha": "center", "fontsize": 11}
    ax.text(12.4, top - 1.1, code, family="monospace", va="bottom", **centre)
    draw_words(ax, 9, top, heads[0], "head 0")
    draw_words(ax, 12.8, top, heads[1], "head 1")
    ax.text(12.4, top + 3.2, verdict, va="top", **centre)


def picture(_: Results) -> Figure:
    """Draws x, and the two heads that split_heads makes of it, above those of a bare view."""
    fig, ax = plt.subplots(figsize=(WIDE, 5), layout="constrained")
    x = numbered_words()
    (right,), (wrong,) = split_heads(x, 2), x.view(1, 2, 3, 3)
    draw_words(ax, 0, 3.5, x[0], "x: three words")
    draw_heads_of(
        ax, 0, right, "view(B, T, H, d_k)\n.transpose(1, 2)", "right: every row is one word"
    )
    draw_heads_of(ax, 7.3, wrong, "view(B, H, T, d_k)", "wrong: in head 0,\nrow 1 is still word 0")
    ax.set(xlim=(-0.2, 17), ylim=(12, -2.6), aspect="equal")
    ax.axis("off")
    return fig


main = Experiment(
    measure,
    picture=picture,
    title="Cut by a view alone, heads have the right shape and the wrong words",
    note="colour: the word that a number belongs to; 14 is word 1, column 4",
    answer="Somebody forgets the transpose, and the rows of a head become pieces of neighbouring "
    "words. Or somebody cuts x before the projections, and a head reads only "
    f"{{n[sliced input, columns read]:.0f}} of {D_MODEL} columns.",
    uses="--seed --seeds",
)

if __name__ == "__main__":
    main.run()
