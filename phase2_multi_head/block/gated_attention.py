"""Must a head say something, even if it has found nothing?

The weights of a row sum to 1, so every head adds some mean of values to every word. Large models
put weight that they have no use for on the first token, which is then called a sink (Xiao et al.
2023; Gu et al. 2024). A gate is another way out: each word computes a number from 0 to 1 for each
feature, by which what the heads have found is multiplied (Qiu et al. 2025; Qwen3-Next).
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from phase2_multi_head.multi_head_attention import MultiHeadAttention


class GatedAttention(nn.Module):
    """An attention with a gate for each feature of its heads: sigmoid(w_gate x), before w_o.

    make_attention: makes what is gated, for example QKNormAttention.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        make_attention: Callable[[int, int], MultiHeadAttention] = MultiHeadAttention,
    ) -> None:
        super().__init__()
        self.heads = make_attention(d_model, num_heads)
        # The gate stands between the heads and w_o, so w_o is moved out of them.
        self.w_o = self.heads.w_o
        self.heads.w_o = nn.Identity()
        self.w_gate = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """x (B, T, d_model) -> output (B, T, d_model), weights (B, H, T, T)."""
        heads, weights = self.heads(x, mask=mask)  # (B, T, d_model): the heads side by side
        gate = torch.sigmoid(self.w_gate(x))
        return self.w_o(heads * gate), weights
