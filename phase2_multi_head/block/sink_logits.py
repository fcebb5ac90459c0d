"""Must a head give all of its weight to words?

The weights of a row sum to 1, so a head that has found nothing still shares out its whole 1. A sink
logit is one more score in every row, a number that each head learns and behind which no word
stands. It takes part in the softmax, and what it gets is given to nobody: a row of weights sums to
less than 1, and the head adds less (gpt-oss, OpenAI 2025; the idea is Miller's, 2023).

    python phase2_multi_head/visualize.py \\
        --attention phase2_multi_head.block.sink_logits:SinkAttention
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from phase1_single_head.self_attention import masked_softmax, scaled_dot_product_attention
from phase2_multi_head.multi_head_attention import MultiHeadAttention, merge_heads
from shared.attention_checks import at_least_float32, check_attention_inputs


def attention_with_sinks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *,
    sinks: Tensor | None = None,
    cap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """scaled_dot_product_attention with a sink logit for each head, (H,), finite numbers.

    cap: squashes the scores, before the sink joins them, to cap · tanh(score / cap), as Gemma 2
    does. Shapes and errors are those of that function, which computes everything if neither is
    given.
    """
    if cap is None and sinks is None:
        return scaled_dot_product_attention(query, key, value, mask)
    check_attention_inputs(query, key, value, mask)
    heads = query.shape[-3:-2]
    if sinks is not None and sinks.shape != heads:
        got = f"got {tuple(sinks.shape)}"
        raise ValueError(f"sinks must be one number for each head, {tuple(heads)}: {got}")
    dtype = query.dtype
    query, key, value = at_least_float32(query, key, value)
    scores = query @ key.mT / math.sqrt(query.size(-1))  # (B, H, T_q, d_k) @ (B, H, d_k, T_k)
    if cap is not None:
        scores = cap * torch.tanh(scores / cap)
    if sinks is not None:  # one more key, which everybody may see and whose value is 0
        if mask is not None:  # -> (B, H, T_q, T_k + 1)
            mask = F.pad(mask.expand_as(scores), (0, 1), value=True)
        nobody = sinks[:, None, None].expand(*scores.shape[:-1], 1)  # (H,) -> (B, H, T_q, 1)
        scores = torch.cat([scores, nobody], dim=-1)  # (B, H, T_q, T_k) -> (B, H, T_q, T_k + 1)
    weights = masked_softmax(scores, mask)[..., : key.size(-2)]
    return (weights @ value).to(dtype), weights.to(dtype)


class SinkAttention(MultiHeadAttention):
    """MultiHeadAttention in which each head learns a sink logit, from 0 on."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__(d_model, num_heads)
        self.sinks = nn.Parameter(torch.zeros(num_heads))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """x (B, T, d_model) -> output (B, T, d_model), weights (B, H, T, T)."""
        heads, weights = attention_with_sinks(*self.project(x), mask, sinks=self.sinks)
        return self.w_o(merge_heads(heads)), weights
