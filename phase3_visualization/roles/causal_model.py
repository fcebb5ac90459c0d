"""The causal model of phase 4, for this phase to look at: it predicts the next word and sees no word to the right.

CausalAttention is CausalSelfAttention of phase 4 without its cache. It stands here a second time because phase 3 comes
first and imports nothing from phase 4; the weights fit both, and so both use the same checkpoint.
"""

import argparse

from torch import Tensor

from phase2_multi_head.multi_head_attention import MultiHeadAttention
from shared import cli, training
from shared.attention_utils import causal_mask
from shared.training import Trained

BOTH_SIDES, CAUSAL = "both sides", "causal"  # the model of phase 2, and this one


class CausalAttention(MultiHeadAttention):
    """Multi-head attention in which no word sees what comes after it."""

    def forward(self, query: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """query (B, T, d_model), mask as in MultiHeadAttention -> output (B, T, d_model), weights (B, H, T, T)."""
        causal = causal_mask(query.size(1), device=query.device)
        return super().forward(query, mask=causal if mask is None else mask & causal)


def load_causal_model(options: argparse.Namespace, seed: int | None = None) -> Trained:
    """Two layers of four heads, trained on next words."""
    return cli.trained_model(training.CAUSAL_RECIPE, CausalAttention, options, seed)
