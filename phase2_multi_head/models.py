"""The models of this phase: two layers of four heads, and one layer of four beside the single head of phase 1."""

import argparse

from phase2_multi_head.multi_head_attention import MultiHeadAttention
from shared import checkpoints
from shared.training import LITTLE_DECAY, Recipe, Trained

RECIPE = Recipe("multi_head_model", "masked word", num_heads=4, num_layers=2, steps=800)
ONE_LAYER_RECIPE = Recipe(
    "one_layer_model", "masked word", num_heads=4, num_layers=1, steps=800, matrix_decay=LITTLE_DECAY
)


def load_multi_head_model(options: argparse.Namespace, seed: int | None = None) -> Trained:
    """Two layers of four heads, trained on masked words."""
    return checkpoints.trained_model(RECIPE, MultiHeadAttention, options, seed)


def load_one_layer_model(options: argparse.Namespace, seed: int | None = None) -> Trained:
    """One layer of four heads, trained like the single head of phase 1."""
    return checkpoints.trained_model(ONE_LAYER_RECIPE, MultiHeadAttention, options, seed)
