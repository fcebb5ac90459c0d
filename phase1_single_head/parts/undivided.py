"""What is attention without the division by √d_k?

UndividedSelfAttention leaves it away. FoldedSelfAttention leaves it away, too, but its W_q starts
smaller by √d_k, so that at first its scores are those of the divided head: T5 does that (Raffel et
al. 2020). scaling.py trains all three.
"""

import math

import torch
from torch import Tensor

from phase1_single_head.self_attention import SelfAttention


class UndividedSelfAttention(SelfAttention):
    """SelfAttention without the division: multiplying the query by √d_k first undoes it."""

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x (B, T, d_model) -> queries times √d_k, keys and values, each (B, 1, T, d)."""
        query, key, value = super().project(x)
        return query * math.sqrt(query.size(-1)), key, value


class FoldedSelfAttention(UndividedSelfAttention):
    """Without the division, but W_q starts smaller by √d_k: at first the same scores."""

    def __init__(
        self, d_model: int, d_k: int | None = None, *, output_projection: bool = False
    ) -> None:
        super().__init__(d_model, d_k, output_projection=output_projection)
        with torch.no_grad():
            self.w_q.weight /= math.sqrt(self.w_q.out_features)
