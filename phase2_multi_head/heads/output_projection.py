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
def main(argv: list[str] | None = None) -> str:
    cli.parse(cli.parser(__doc__), argv)
    x = torch.randn(2, 7, D_MODEL, dtype=torch.float64)
    print("\nLayers with random weights, without biases, float64; largest difference of the output:")
    for num_heads in (1, NUM_HEADS):
        layer = MultiHeadAttention(D_MODEL, num_heads, bias=False).double()
        for name, other in (("heads added up", sum_of_heads(layer, x)), ("W_V and W_O made one", folded(layer)(x)[0])):
            print(f"   heads: {num_heads}   {name:21} {(layer(x)[0] - other).abs().max():.1e}")
    with_it = columns_written(layer)
    torch.nn.init.eye_(layer.w_o.weight)
    return f"With it a head writes to {with_it} of {D_MODEL} columns, without to {columns_written(layer)}"


if __name__ == "__main__":
    cli.run(main)
