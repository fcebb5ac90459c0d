"""A function of the exercises as the attention of the toy model: four matrices without biases stand around it.

WAYS says for which exercises that works, and how each is called.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shared.exercise_checker.exercise import Function

HEADS = 4
Pair = tuple[Tensor, Tensor]  # output (B, T, d_model), weights (B, H, T, T)
Attend = Callable[[Function, Tensor, Sequence[Tensor], Tensor], Pair]  # x (B, T, d_model), w, mask (B, 1, 1, T)


def one_head(function: Function, x: Tensor, w: Sequence[Tensor], mask: Tensor) -> Pair:
    """A function that knows no batch is called for each sentence."""
    masks = mask[:, 0].repeat(1, x.size(1), 1)  # (B, 1, T) -> (B, T, T)
    found = [function(sentence, *w[:3], visible) for sentence, visible in zip(x, masks, strict=True)]
    output, weights = (torch.stack(parts) for parts in zip(*found, strict=True))
    return output @ w[3], weights[:, None]  # (B, T, T) -> (B, 1, T, T)


def masked_heads(function: Function, x: Tensor, w: Sequence[Tensor], mask: Tensor) -> Pair:
    query, key, value = ((x @ matrix).unflatten(-1, (HEADS, -1)).transpose(1, 2) for matrix in w[:3])  # (B, H, T, d_k)
    mask = function(x.size(1), x.size(1)) & mask  # (T, T) & (B, 1, 1, T) -> (B, 1, T, T)
    unit = torch.eye(x.size(1), dtype=x.dtype).expand(*query.shape[:2], -1, -1)  # the mean of such values: the weights
    weights = F.scaled_dot_product_attention(query, key, unit, mask)
    return (weights @ value).transpose(1, 2).flatten(2) @ w[3], weights  # (B, H, T, d_k) -> (B, T, d_model)


class Way(NamedTuple):
    """How a function attends in the model, and what the model learns."""

    attend: Attend
    objective: str = "masked word"
    num_heads: int = HEADS


NEXT = "next word, without a mask"  # of the trainer's: the function itself must hide the future
WAYS = {
    "self_attention": Way(one_head, num_heads=1),
    "multi_head_attention": Way(lambda function, x, w, mask: function(x, *w, HEADS, mask[:, 0, 0])),
    "causal_mask": Way(masked_heads, NEXT),
}


class Attention(nn.Module):
    """Four matrices, and the function of an exercise that attends with them."""

    def __init__(self, way: Way, function: Function, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.way, self.function = way, function
        self.w_q, self.w_k, self.w_v, self.w_o = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Pair:
        """x (B, T, d_model), mask of padding (B, 1, 1, T) -> output (B, T, d_model), weights (B, H, T, T)."""
        batch, length, _ = x.shape
        mask = torch.ones(batch, 1, 1, length, dtype=torch.bool) if mask is None else mask
        w = [layer.weight.T for layer in (self.w_q, self.w_k, self.w_v, self.w_o)]
        output, weights = self.way.attend(self.function, x, w, mask)
        for tensor, shape in ((output, x.shape), (weights, (batch, self.way.num_heads, length, length))):
            if tensor.shape != shape or tensor.dtype != x.dtype:
                raise ValueError(f"it gives {tensor.dtype} {tuple(tensor.shape)} instead of {x.dtype} {tuple(shape)}")
            if not tensor.isfinite().all():
                raise ValueError("it gives NaN or infinite numbers")
        return output, weights
