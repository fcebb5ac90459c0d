"""Attention in one call: the same as MultiHeadAttention, without weights to look at.

F.scaled_dot_product_attention may work tile by tile and never hold all T_q x T_k weights at once
(FlashAttention; Dao et al. 2022). That saves memory and time; which kernel runs depends on the
arguments.
"""

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from phase2_multi_head.multi_head_attention import MultiHeadAttention, merge_heads
from shared.attention_checks import check_attention_inputs
from shared.attention_utils import causal_mask


class FusedMultiHeadAttention(MultiHeadAttention):
    """MultiHeadAttention, computed by F.scaled_dot_product_attention.

    Parameters and state_dict are the same. causal=True hides the future, on top of any mask: the
    last query sees the last key. more: dropout and bias, as MultiHeadAttention takes them.
    """

    def __init__(self, d_model: int, num_heads: int, *, causal: bool = False, **more: Any) -> None:
        super().__init__(d_model, num_heads, **more)
        self.causal = causal

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> tuple[Tensor, None]:
        """Returns output (B, T_q, d_model), and None for the weights.

        query: (B, T_q, d_model); key, value: (B, T_k, d_model).
        """
        query, key, value = self.project(query, key, value)  # -> (B, H, T, d_k), each
        check_attention_inputs(query, key, value, mask)
        # is_causal needs no mask in memory. But it aligns the first query with the first key, so it
        # is right for equal lengths only.
        is_causal = self.causal and mask is None and query.size(-2) == key.size(-2)
        if self.causal and not is_causal:
            past = causal_mask(query.size(-2), key.size(-2), device=query.device)
            mask = past if mask is None else mask & past
        dropout = self.dropout.p if self.training else 0.0
        heads = F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=is_causal
        )
        return self.w_o(merge_heads(heads)), None  # -> (B, T_q, d_model)
