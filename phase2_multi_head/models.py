"""The models of this phase: two layers of four heads, and one layer of four beside the single head of phase 1.

And what phase 3 looks at before phase 4 explains it: the same attention, handed a causal mask, guesses the next word.
"""

import argparse

from phase2_multi_head.multi_head_attention import MultiHeadAttention
from shared import checkpoints
from shared.training import LITTLE_DECAY, Recipe, Trained

RECIPE = Recipe("multi_head_model", "masked word", num_heads=4, num_layers=2, steps=800)
ONE_LAYER_RECIPE = Recipe(
    "one_layer_model", "masked word", num_heads=4, num_layers=1, steps=800, matrix_decay=LITTLE_DECAY
)
CAUSAL_RECIPE = Recipe("causal_model", "next word", num_heads=4, num_layers=2, steps=800)


def load_multi_head_model(options: argparse.Namespace, seed: int | None = None) -> Trained:
    """Two layers of four heads, trained on masked words."""
    return checkpoints.trained_model(RECIPE, MultiHeadAttention, options, seed)


def load_one_layer_model(options: argparse.Namespace, seed: int | None = None) -> Trained:
    """One layer of four heads, trained like the single head of phase 1."""
    return checkpoints.trained_model(ONE_LAYER_RECIPE, MultiHeadAttention, options, seed)


def load_causal_model(options: argparse.Namespace, seed: int | None = None) -> Trained:
    """Two layers of four heads, trained on next words. Whoever runs it passes a causal mask (training.objective_mask).

    Its checkpoint also serves phase 4, whose CausalSelfAttention makes that mask by itself.
    """
    return checkpoints.trained_model(CAUSAL_RECIPE, MultiHeadAttention, options, seed)
