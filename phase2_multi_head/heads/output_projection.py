"""What the output projection is for: it lets every head write to all of d_model.

    Concat(head_1, ..., head_H) W_O  =  head_1 W_O^1 + ... + head_H W_O^H,     W_O^h = rows h d_k to (h + 1) d_k of W_O

So a layer's heads add up, each by its own d_k x d_model part of W_O (Elhage et al. 2021 read trained models this way).
With one head of full size, W_V and W_O are two matrices in a row and could be one.

    python phase2_multi_head/heads/output_projection.py
"""

import argparse

import torch
from torch import Tensor

from phase2_multi_head.multi_head_attention import MultiHeadAttention, split_heads
from shared import cli
from shared.evidence import findings
from shared.evidence.findings import Finding

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


@torch.no_grad()
def folded(attention: MultiHeadAttention) -> MultiHeadAttention:
    """One matrix in place of two: W_V becomes W_V W_O, and W_O the identity; no biases."""
    result = MultiHeadAttention(D_MODEL, attention.num_heads, bias=False).double()
    result.load_state_dict(attention.state_dict())
    result.w_v.weight.copy_(attention.w_o.weight @ attention.w_v.weight)  # nn.Linear holds the transposed matrix
    result.w_o.weight.copy_(torch.eye(D_MODEL))
    return result


@torch.no_grad()
def columns_written(attention: MultiHeadAttention) -> int:
    """Columns of the output that the values of head 0 can change."""
    changed = MultiHeadAttention(D_MODEL, attention.num_heads, bias=False).double()
    changed.load_state_dict(attention.state_dict())
    changed.w_v.weight[: D_MODEL // attention.num_heads] += 1.0
    x = torch.randn(1, 7, D_MODEL, dtype=torch.float64)
    return int((attention(x)[0] != changed(x)[0]).any(dim=1).sum())  # (1, 7, d_model) -> one number


def main(argv: list[str] | None = None) -> None:
    options = cli.parse(cli.parser(__doc__), argv)
    x = torch.randn(2, 7, D_MODEL, dtype=torch.float64)
    layers = {h: MultiHeadAttention(D_MODEL, h, bias=False).double() for h in (1, NUM_HEADS)}
    many = layers[NUM_HEADS]
    adds_up = (many(x)[0] - sum_of_heads(many, x)).abs().max().item()
    print(f"\nConcat and W_O against the sum over {NUM_HEADS} heads, largest difference: {adds_up:.1e}")
    assert adds_up < 1e-12
    differences = {
        f"{h} head{'s' if h > 1 else ''}": (layer(x)[0] - folded(layer)(x)[0]).abs().max().item()
        for h, layer in layers.items()
    }
    print("W_V and W_O made one matrix, largest difference of the output:")
    print("   " + ", ".join(f"{name} {difference:.1e}" for name, difference in differences.items()))
    no_projection = MultiHeadAttention(D_MODEL, NUM_HEADS, bias=False).double()
    torch.nn.init.eye_(no_projection.w_o.weight)
    columns = {"with W_O": columns_written(many), "without": columns_written(no_projection)}
    print(f"Columns of the output, of {D_MODEL}, that head 0 can write to:")
    print("   " + ", ".join(f"{name} {count}" for name, count in columns.items()))
    record_findings(adds_up, differences, columns, options)


def record_findings(
    adds_up: float, differences: dict[str, float], columns: dict[str, int], options: argparse.Namespace
) -> None:
    one, many = differences.values()
    findings.record(
        "phase2_multi_head/heads/output_projection.py",
        [
            Finding(
                "C086",
                "The output projection W_O is needed",
                "course notes",
                {f"{name}, W_V and W_O made one": difference for name, difference in differences.items()}
                | {f"columns of {D_MODEL} that head 0 writes to, {name}": count for name, count in columns.items()},
                "largest difference of the output, float64; columns",
                "leaving it out (taken into W_V) changes the output: for one head as well as for several",
                **findings.conditional(
                    min(one, many) > 1e-3,
                    many > 1e-3 and one < 1e-12,
                    "there are several heads (or d_v is not d_model); for one head it can be part of W_V",
                ),
            ),
            Finding(
                "sum-of-heads",
                "The outputs of the heads are concatenated",
                "Elhage et al. 2021",
                {"concatenation and W_O against the sum of head times its part of W_O": adds_up},
                "largest difference of outputs, float64",
                "below 1e-12: concatenating and adding are the same thing",
                findings.verdict(adds_up < 1e-12),
            ),
        ],
        options.output_dir,
    )


if __name__ == "__main__":
    cli.run(main)
