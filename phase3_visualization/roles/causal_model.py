"""The causal model of phase 4, for this phase to look at: it predicts the next word and sees no word to the right.

Its attention is phase 2's, and the causal mask is handed to it (training.objective_mask). CausalSelfAttention of
phase 4 makes that mask itself; the weights fit both, and so both use the same checkpoint.
"""

import argparse

from phase2_multi_head.multi_head_attention import MultiHeadAttention
from shared import checkpoints, training
from shared.training import Trained

BOTH_SIDES, CAUSAL = "both sides", "causal"  # the model of phase 2, and this one


def load_causal_model(options: argparse.Namespace, seed: int | None = None) -> Trained:
    """Two layers of four heads, trained on next words. Whoever runs it passes a causal mask."""
    return checkpoints.trained_model(training.CAUSAL_RECIPE, MultiHeadAttention, options, seed)
