"""What is attention without the division by √d_k?

UndividedSelfAttention leaves it away. FoldedSelfAttention leaves it away, too, but its W_q starts
smaller by √d_k, so that at first its scores are those of the divided head: T5 does that (Raffel et
al. 2020). scaling.py trains all three.
"""

import math

import torch
from torch import Tensor

from phase1_single_head.self_attention import SelfAttention, scaled_dot_product_attention


class UndividedSelfAttention(SelfAttention):
    """SelfAttention without the division: the query is multiplied by √d_k first, which undoes it."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """x (B, T, d_model) -> output (B, T, d_v or d_model), weights (B, 1, T, T)."""
        query, key, value = (w(x).unsqueeze(-3) for w in (self.w_q, self.w_k, self.w_v))
        output, weights = scaled_dot_product_attention(
            query * math.sqrt(query.size(-1)), key, value, mask
        )
        return self.w_o(output.squeeze(-3)), weights


class FoldedSelfAttention(UndividedSelfAttention):
    """Without the division, but W_q starts smaller by √d_k: at first the same scores."""

    def __init__(
        self, d_model: int, d_k: int | None = None, *, output_projection: bool = False
    ) -> None:
        super().__init__(d_model, d_k, output_projection=output_projection)
        with torch.no_grad():
            self.w_q.weight /= math.sqrt(self.w_q.out_features)
