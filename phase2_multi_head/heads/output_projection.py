"""What is the output projection W_O for, and is it needed?

    Concat(head_1, ..., head_H) W_O  =  head_1 W_O^1 + ... + head_H W_O^H,     W_O^h = rows h d_k to (h + 1) d_k of W_O

It lets every head write to all of d_model. So a layer's heads add up, each by its own d_k x d_model part of W_O (Elhage
et al. 2021 read trained models this way). With one head of full size, W_V and W_O are two matrices in a row and could
be one.

    python phase2_multi_head/heads/output_projection.py
"""

import copy

import torch
from torch import Tensor

from phase2_multi_head.multi_head_attention import MultiHeadAttention, split_heads
from shared import cli
from shared.evidence import findings
from shared.evidence.claims import IDENTITY, Claim, measures

D_MODEL, NUM_HEADS = 64, 4


def added_by_heads(attention: MultiHeadAttention, heads: Tensor) -> Tensor:
    """head_h W_O^h, what each head adds to the output: (..., H, T, d_v) -> (..., H, T, d_model).

    The output is their sum over heads plus the bias of w_o, if it has one.
    """
    parts = attention.w_o.weight.T.unflatten(0, (attention.num_heads, -1))  # (H * d_v, d_model) -> (H, d_v, d_model)
    return heads @ parts  # (..., H, T, d_v) @ (H, d_v, d_model) -> (..., H, T, d_model)


@torch.no_grad()
def sum_of_heads(attention: MultiHeadAttention, x: Tensor) -> Tensor:
    """The output as a sum over heads -> (B, T, d_model); attention without biases."""
    _, weights = attention(x)
    value = split_heads(attention.w_v(x), attention.num_heads)  # (B, T, d_model) -> (B, H, T, d_k)
    return added_by_heads(attention, weights @ value).sum(dim=1)  # (B, H, T, d_model) -> (B, T, d_model)


def new_layer(num_heads: int) -> MultiHeadAttention:
    return MultiHeadAttention(D_MODEL, num_heads, bias=False).double()


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


ADDS_UP = "concatenation and W_O against the sum of head times its part of W_O"
FOLDED_ONE, FOLDED_MANY = (f"{heads}, W_V and W_O made one" for heads in ("1 head", f"{NUM_HEADS} heads"))
WITH, WITHOUT = (f"columns of {D_MODEL} that head 0 writes to, {how}" for how in ("with W_O", "without"))


@measures(
    Claim(
        id="C086",
        text="The output projection W_O is needed",
        kind=IDENTITY,
        rule="leaving it out (taken into W_V) changes the output: for one head as well as for several",
        holds=lambda n: min(n[FOLDED_ONE], n[FOLDED_MANY]) > 1e-3,
        only_if=lambda n: n[FOLDED_MANY] > 1e-3 and n[FOLDED_ONE] < 1e-12,
        condition="there are several heads (or d_v is not d_model); for one head it can be part of W_V",
        unit="largest difference of the output, float64; columns",
        shows=("*made one", "columns *"),
    ),
    Claim(
        id="sum-of-heads",
        text="The outputs of the heads are concatenated",
        source="Elhage et al. 2021",
        kind=IDENTITY,
        rule="below 1e-12: concatenating and adding are the same thing",
        holds=lambda n: n[ADDS_UP] < 1e-12,
        unit="largest difference of outputs, float64",
        shows=(ADDS_UP,),
    ),
)
def what_w_o_does() -> dict[str, float]:
    """On random words and new layers without biases, float64."""
    x = torch.randn(2, 7, D_MODEL, dtype=torch.float64)
    one, many, no_projection = new_layer(1), new_layer(NUM_HEADS), new_layer(NUM_HEADS)
    torch.nn.init.eye_(no_projection.w_o.weight)
    return {
        ADDS_UP: (many(x)[0] - sum_of_heads(many, x)).abs().max().item(),
        FOLDED_ONE: (one(x)[0] - folded(one)(x)[0]).abs().max().item(),
        FOLDED_MANY: (many(x)[0] - folded(many)(x)[0]).abs().max().item(),
        WITH: columns_written(many),
        WITHOUT: columns_written(no_projection),
    }


def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    found = what_w_o_does()
    assert found[ADDS_UP] < 1e-12
    findings.record(options, found)
    return f"With it a head writes to {found[WITH]} of {D_MODEL} columns, without to {found[WITHOUT]}"


if __name__ == "__main__":
    cli.run(main)
