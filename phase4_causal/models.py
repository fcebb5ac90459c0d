"""The model of this phase, two layers of four causal heads, and what is asked of such models."""

import argparse

import torch
from torch import Tensor

from phase4_causal.causal_attention import CausalSelfAttention
from shared.toy_language import SPECIAL, Sentence, encode
from shared.toy_model import MakeAttention, ToyTransformer, default_dtype, sinusoidal_positions
from shared.training.checkpoints import trained_model
from shared.training.objectives import attention_weights
from shared.training.recipes import Recipe, Trained, new_model

# At twice this rate it learns no more, and the rounding of a processor decides what it becomes.
CAUSAL_RECIPE = Recipe(
    "causal_model", "next word", num_heads=4, num_layers=2, steps=800, matrix_rate=0.02
)


def load_causal_model(options: argparse.Namespace, seed: int | None = None) -> Trained:
    """Two layers of four causal heads, trained to predict the next word."""
    return trained_model(CAUSAL_RECIPE, CausalSelfAttention, options, seed)


def with_attention(trained: Trained, make_attention: MakeAttention) -> ToyTransformer:
    """The trained weights in a model with another attention, such as one without the mask."""
    device = trained.model.positions.device.type
    model = new_model(trained.recipe, make_attention, device)
    model.load_state_dict(trained.model.state_dict())  # a mask has no parameters
    return model.eval()


def patterns_of(trained: Trained, sentences: list[Sentence]) -> tuple[list[Tensor], Tensor]:
    """Weights of every layer, each (N, H, T, T), and what real queries may see, bool (N, 1, T, T).

    Both are on the CPU. A next-word model reads <start> first. <end> has no row and no column.
    """
    return attention_weights(trained.model, sentences, trained.recipe.objective, end=False)


@default_dtype(torch.float32)
def long_model(
    length: int, device: str = "cpu", d_model: int = 128, num_layers: int = 4
) -> ToyTransformer:
    """An untrained causal model in float32, with `length` positions, which never writes <end>.

    It costs what a trained one costs, and on the device "meta", which has shapes without numbers,
    nothing at all.
    """
    heads = CAUSAL_RECIPE.num_heads
    model = ToyTransformer(d_model, heads, num_layers, make_attention=CausalSelfAttention)
    model.positions = sinusoidal_positions(length, d_model)
    with torch.no_grad():
        model.output_bias[: len(SPECIAL)] = -1e4
    return model.to(device).eval()


@torch.no_grad()
def largest_leak(model: ToyTransformer, tokens: Tensor) -> float:
    """By how much logits 0 to i move if other words stand after i: the most, over all i."""
    mat, big = encode(["mat", "big"])
    others = torch.where(tokens == mat, big, mat)  # surely another word at every position
    positions = torch.arange(tokens.size(1), device=tokens.device)
    before, _ = model(tokens)
    moved = 0.0
    for i in range(tokens.size(1) - 1):
        after, _ = model(torch.where(positions > i, others, tokens))
        change = (before - after)[:, : i + 1].abs().max().item()
        moved = max(moved, change)
    return moved
