"""How is multi-head attention written wrong, without any shape that tells?

1. Reshape without the transpose. (B, T, d_model) viewed as (B, H, T, d_k) has the right shape, but a head's rows are
   then pieces of neighbouring tokens.
2. Slice the input. Cut x itself into H slices and send all of them through one small projection of d_k x d_k. It is
   often printed, it trains, and it is not multi-head attention: head h never sees the other slices, and all heads ask
   the same question. In the real one each head's projection reads all of x; only what comes out is a slice.

    python phase2_multi_head/heads/wrong_heads.py

Writes split_heads.png, the first mistake in three tokens of six numbers, to visualizations/plots/phase2/.
"""

from statistics import fmean

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor, nn

from phase1_single_head.self_attention import scaled_dot_product_attention
from phase2_multi_head.multi_head_attention import MultiHeadAttention, merge_heads, split_heads
from shared import cli, training
from shared.attention_checks import check_heads
from shared.evidence import findings
from shared.evidence.claims import EXPERIMENT, Above, Claim, measures
from shared.training import Recipe, held_out_loss
from shared.visualization_utils import BLUE, GREEN, ORANGE, QUIET, headline, save_plot

STEPS = 100
D_MODEL, NUM_HEADS = 64, 4
TOKEN_COLORS = (BLUE, ORANGE, GREEN)
LOWER = 5.6  # of the picture: where the wrong heads begin


class SlicedInput(nn.Module):
    """The wrong version: head h sees columns h * d_k to (h + 1) * d_k of x, and all heads share their projections."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        check_heads(d_model, num_heads)
        self.num_heads = num_heads
        d_k = d_model // num_heads
        self.w_q, self.w_k, self.w_v = (nn.Linear(d_k, d_k, bias=False) for _ in range(3))
        self.w_o = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """x (B, T, d_model) -> output (B, T, d_model), weights (B, H, T, T)."""
        slices = split_heads(x, self.num_heads)  # (B, T, d_model) -> (B, H, T, d_k), before any projection
        heads, weights = scaled_dot_product_attention(self.w_q(slices), self.w_k(slices), self.w_v(slices), mask)
        return self.w_o(merge_heads(heads)), weights  # (B, H, T, d_k) -> (B, T, d_model)


VERSIONS = {"sliced input": SlicedInput, "multi-head": MultiHeadAttention}


def reshapes() -> tuple[Tensor, dict[str, Tensor]]:
    """Numbers x (1, 3, 6) that say where they come from; what split_heads makes of them, and a bare view: (1, 2, 3, 3).

    14 is token 1, column 4.
    """
    x = torch.tensor([[[10 * token + column for column in range(6)] for token in range(3)]])  # (1, 3, 6)
    split = split_heads(x, 2)  # (1, 3, 6) -> (1, 2, 3, 3)
    return x, {"split_heads": split, "view alone": x.view_as(split)}


def show_reshapes() -> None:
    print("\nThree tokens of 6 numbers, two heads; 14 is token 1, column 4:")
    for name, tensor in reshapes()[1].items():
        rows = [" ".join("[" + " ".join(f"{n:2d}" for n in row) + "]" for row in head) for head in tensor[0].tolist()]
        print(f"   {name:12} head 0: {rows[0]}   head 1: {rows[1]}")
    print("   A row should be one token: with the view alone, row 1 of head 0 is still token 0.")


def draw() -> tuple[Figure, str]:
    """x, and the two heads that split_heads makes of it, above those of a bare view; a colour for each token."""
    x, split = reshapes()
    fig, ax = plt.subplots(figsize=(9, 4.6), layout="constrained")
    draw_rows(ax, x[0], 0, LOWER / 2, "x: three words of six numbers")
    words = {
        "split_heads": (0, "view(B, T, H, d_k).transpose(1, 2)", "right: every row\nis one word"),
        "view alone": (LOWER, "view(B, H, T, d_k)", "wrong: in head 0,\nrow 1 is still word 0"),
    }
    for name, (top, code, verdict) in words.items():
        ax.annotate("", (9.2, top + 1.5), (6.4, LOWER / 2 + 1.5), arrowprops={"arrowstyle": "->", "color": QUIET})
        ax.text(12.9, top - 1.1, code, family="monospace", ha="center", va="bottom")
        ax.text(16.9, top + 1.5, verdict, va="center", fontsize=11)
        for head in range(2):
            draw_rows(ax, split[name][0, head], 9.5 + 3.8 * head, top, f"head {head}")
    ax.set(xlim=(-0.2, 21), ylim=(LOWER + 3.2, -2), aspect="equal")
    ax.axis("off")
    title = "Two ways to cut heads, one shape: a view alone mixes the words"
    headline(fig, title, "colour: the word that a number belongs to; 14 is word 1, column 4")
    return fig, (
        f"{title}. Three words of six numbers, cut into two heads. With the transpose each row of a head is one "
        "word; with the view alone the rows of head 0 are word 0, word 0 again and half of word 1."
    )


def draw_rows(ax: Axes, rows: Tensor, left: float, top: float, title: str) -> None:
    """Numbers (T, columns), each on the colour of the token that it comes from."""
    for row, numbers in enumerate(rows.tolist()):
        for column, number in enumerate(numbers):
            shade = to_rgba(TOKEN_COLORS[number // 10], 0.35)
            ax.add_patch(Rectangle((left + column, top + row), 1, 1, facecolor=shade, edgecolor="white", linewidth=1.5))
            ax.text(left + column + 0.5, top + row + 0.5, f"{number}", ha="center", va="center", fontsize=11)
    ax.text(left + rows.size(1) / 2, top - 0.15, title, ha="center", va="bottom", fontsize=11)


def columns_seen(attention: nn.Module) -> int:
    """How many columns of x can change the weights of head 0: those with a gradient that is not zero."""
    x = torch.randn(1, 7, D_MODEL, dtype=torch.float64, requires_grad=True)
    _, weights = attention.double()(x)
    (gradient,) = torch.autograd.grad((weights[0, 0] * torch.randn(7, 7, dtype=torch.float64)).sum(), x)
    return int((gradient != 0).any(dim=1).sum())  # (1, 7, d_model) -> one number


@torch.no_grad()
def same_question(attention: nn.Module) -> float:
    """Largest difference between two heads when both slices of x hold the same numbers: 0 if they ask the same."""
    d_k = D_MODEL // NUM_HEADS
    x = torch.randn(1, 7, d_k, dtype=torch.float64).repeat(1, 1, NUM_HEADS)  # (1, 7, d_k) -> (1, 7, d_model)
    _, weights = attention.double()(x)
    return (weights[:, 0] - weights[:, 1]).abs().max().item()


def show_what_heads_see() -> None:
    """Of each version: the columns of x that head 0 reads, and how far two heads are apart on equal slices."""
    print(f"\nFour heads, {D_MODEL} columns of x:")
    for name, make in VERSIONS.items():
        layer = make(D_MODEL, NUM_HEADS)
        seen, apart = columns_seen(layer), same_question(layer)
        print(f"   {name:12} head 0 reads {seen} columns; where all slices are equal, two heads differ by {apart:.2f}")


@measures(
    Claim(
        id="sliced-input",
        text="Cutting the input into slices for the heads is worse than cutting what the projections make of all of it",
        source="printed code of multi-head attention; against it Vaswani et al. 2017, section 3.2.2",
        kind=EXPERIMENT,
        rule="more than 0.05 nats",
        holds=Above(lambda n: n["sliced input"] - n["multi-head"], 0.05),
        oracle={"sliced input": 2.6, "multi-head": 2.4},
        null={"sliced input": 2.4, "multi-head": 2.4},
        unit="held-out loss, nats per hidden word, one layer of four heads, 100 steps",
        control="the same data, seeds and steps; its one small projection for all heads also means fewer parameters, "
        "4,928 for 16,640",
        headline=True,
    )
)
def train_both(seed: int, steps: int) -> dict[str, float]:
    """Held-out loss of one layer with each attention."""
    recipe = Recipe("heads", "masked word", NUM_HEADS, num_layers=1, steps=steps, d_model=D_MODEL, seed=seed)
    return {name: held_out_loss(training.train(recipe, make)) for name, make in VERSIONS.items()}


@cli.script
def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    show_reshapes()
    save_plot(options, "phase2/split_heads", *draw())
    show_what_heads_see()
    steps = training.QUICK_STEPS if options.quick else STEPS
    runs = [train_both(seed, steps) for seed in cli.seeds(options)]
    findings.record(options, *runs)
    worse = fmean(losses["sliced input"] - losses["multi-head"] for losses in runs)
    return f"A sliced input costs {worse:.2f} nats: a head reads {D_MODEL // NUM_HEADS} of {D_MODEL} columns"


if __name__ == "__main__":
    cli.run(main)
