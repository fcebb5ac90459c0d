"""How is multi-head attention written wrong, without any shape that tells?

1. Reshape without the transpose. (B, T, d_model) viewed as (B, H, T, d_k) has the right shape, but a head's rows are
   then pieces of neighbouring tokens.
2. Slice the input. Cut x itself into H slices and send all of them through one small projection of d_k x d_k. It is
   often printed, it trains, and it is not multi-head attention: head h never sees the other slices, and all heads ask
   the same question. In the real one each head's projection reads all of x; only what comes out is a slice.

    python phase2_multi_head/heads/wrong_heads.py
"""

import argparse

import torch
from torch import Tensor, nn

from phase1_single_head.self_attention import scaled_dot_product_attention
from phase2_multi_head.multi_head_attention import MultiHeadAttention, check_heads, merge_heads, split_heads
from shared import cli, training
from shared.evidence import findings
from shared.evidence.claims import EXPERIMENT, IDENTITY, Claim, measures
from shared.training import Recipe, held_out_loss

STEPS = 100
D_MODEL, NUM_HEADS = 64, 4


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


def show_reshapes() -> None:
    """What split_heads does to numbers that say where they come from, and what a bare view does instead."""
    x = torch.tensor([[[10 * token + column for column in range(6)] for token in range(3)]])  # (1, 3, 6)
    split = split_heads(x, 2)  # (1, 3, 6) -> (1, 2, 3, 3)
    print("\nThree tokens of 6 numbers, two heads; 14 is token 1, column 4:")
    for name, tensor in (("split_heads", split), ("view alone", x.view_as(split))):
        rows = [" ".join("[" + " ".join(f"{n:2d}" for n in row) + "]" for row in head) for head in tensor[0].tolist()]
        print(f"   {name:12} head 0: {rows[0]}   head 1: {rows[1]}")
    print("   A row should be one token: with the view alone, row 1 of head 0 is still token 0.")


@measures(
    Claim(
        id="C089",
        text="The heads are put together by a reshape to (B, T, H d_k)",
        kind=IDENTITY,
        rule="all of them",
        holds=lambda n: n["reshape alone"] == 1,
        only_if=lambda n: n["transpose, then reshape"] == 1,
        condition="T and H are swapped first",
        unit="share of the numbers that are back in their place; 6 tokens, 4 heads of 16",
    )
)
def back_in_place() -> dict[str, float]:
    """Which share of the numbers two ways of merging put back where they were."""
    x = torch.arange(6 * 4 * 16).view(1, 6, 64)
    split = split_heads(x, 4)  # (1, 6, 64) -> (1, 4, 6, 16)
    merged = {"reshape alone": split.reshape(x.shape), "transpose, then reshape": merge_heads(split)}
    return {name: (tensor == x).double().mean().item() for name, tensor in merged.items()}


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


@measures(
    Claim(
        id="C079",
        text="Each head works on a subset of the dimensions",
        kind=IDENTITY,
        rule="16 of 64 in multi-head attention",
        holds=lambda n: n["multi-head"] == D_MODEL // NUM_HEADS,
        unit="columns of x, of 64, that change the weights of head 0",
        control="the version that slices its input, of which the sentence is true",
        shows=tuple(VERSIONS),
    )
)
def what_heads_see() -> dict[str, float]:
    """Of each version: columns that head 0 reads, how far two heads are apart on equal slices, parameters."""
    layers = {name: make(D_MODEL, NUM_HEADS) for name, make in VERSIONS.items()}
    return {
        **{name: columns_seen(layer) for name, layer in layers.items()},
        **{f"{name}, two heads on equal slices differ by": same_question(each) for name, each in layers.items()},
        **{f"{name}, parameters": sum(p.numel() for p in layer.parameters()) for name, layer in layers.items()},
    }


@measures(
    Claim(
        id="sliced-input",
        text="Slicing the input for the heads works as well",
        kind=EXPERIMENT,
        rule="at most 0.05 nats worse than multi-head attention, with every seed",
        holds=lambda n: all(w <= r + 0.05 for w, r in zip(n["sliced input"], n["multi-head"], strict=True)),
        oracle={"sliced input": [2.2], "multi-head": [2.2]},
        null={"sliced input": [2.5], "multi-head": [2.2]},
        unit="held-out loss, nats per hidden word, one layer",
        control="the same data, seeds and steps",
    )
)
def train_both(options: argparse.Namespace) -> dict[str, list[float]]:
    """Held-out loss of one layer with each attention: the same data, seeds and steps."""
    steps = training.QUICK_STEPS if options.quick else STEPS
    losses: dict[str, list[float]] = {name: [] for name in VERSIONS}
    for seed in cli.seeds(options):
        recipe = Recipe("heads", "masked word", NUM_HEADS, num_layers=1, steps=steps, d_model=D_MODEL, seed=seed)
        for name, make in VERSIONS.items():
            losses[name].append(held_out_loss(training.train(recipe, make)))
    return losses


def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    show_reshapes()
    torch.manual_seed(options.seed)
    seen, losses = what_heads_see(), train_both(options)
    findings.record(options, back_in_place(), seen, losses)
    worse = losses["sliced input"][0] - losses["multi-head"][0]
    return f"With the input sliced a head reads {seen['sliced input']} of {D_MODEL} columns: {worse:.2f} nats worse"


if __name__ == "__main__":
    cli.run(main)
