"""The model of this phase, two layers of four causal heads trained on next words, and what is asked
of such models.
"""

import argparse

import torch
from torch import Tensor

from phase4_causal.causal_attention import CausalSelfAttention
from shared import checkpoints, training
from shared.toy_language import SPECIAL, Sentence, encode
from shared.toy_model import MakeAttention, ToyTransformer, sinusoidal_positions
from shared.training import Recipe, Trained

RECIPE = Recipe("causal_model", "next word", num_heads=4, num_layers=2, steps=800)


def load_causal_model(options: argparse.Namespace, seed: int | None = None) -> Trained:
    """Two layers of four causal heads, trained to predict the next word."""
    return checkpoints.trained_model(RECIPE, CausalSelfAttention, options, seed)


def with_attention(trained: Trained, make_attention: MakeAttention) -> ToyTransformer:
    """The trained weights in a model with another attention, such as one without the mask: a mask
    has no parameters.
    """
    model = training.new_model(trained.recipe, make_attention)
    model.load_state_dict(trained.model.state_dict())
    return model.eval()


def patterns_of(trained: Trained, sentences: list[Sentence]) -> tuple[list[Tensor], Tensor]:
    """Weights of every layer, each (N, H, T, T), and what real queries may see, bool (N, 1, T, T).

    Both are on the CPU. A next-word model reads <start> first. It never reads <end>, which it only
    predicts, so <end> has no row here, and no column: its weights would be those of a word that the
    model has not met in training.
    """
    layers, mask = training.attention_on(trained.model, sentences, trained.recipe.objective)
    layers, mask = [weights.cpu() for weights in layers], mask.cpu()
    if trained.recipe.objective == "masked word":
        return layers, mask
    before_end = [weights[..., :-1, :-1] for weights in layers]
    return before_end, mask[..., 1:, 1:]  # (N, 1, T, T) -> (N, 1, T - 1, T - 1), one word less each


def long_model(
    length: int, device: str = "cpu", d_model: int = 128, num_layers: int = 4
) -> ToyTransformer:
    """An untrained causal model with `length` positions, more than the language needs; it never
    writes <end>.

    It costs what a trained one costs, and on the device "meta" nothing at all: shapes without
    numbers.
    """
    model = ToyTransformer(
        d_model, RECIPE.num_heads, num_layers, make_attention=CausalSelfAttention
    )
    model.positions = sinusoidal_positions(length, d_model)
    with torch.no_grad():
        model.output_bias[: len(SPECIAL)] = -1e4
    return model.to(device).eval()


@torch.no_grad()
def largest_leak(model: ToyTransformer, tokens: Tensor) -> float:
    """How far logits 0 to i move when everything after i is replaced by other words: the most, over
    all i.
    """
    one, another = encode(["mat", "big"])
    others = torch.where(tokens == one, another, one)  # surely another word at every position
    before, change = model(tokens)[0], 0.0
    for i in range(tokens.size(1) - 1):
        later = torch.arange(tokens.size(1), device=tokens.device) > i
        after, _ = model(torch.where(later, others, tokens))
        change = max(change, (before - after)[:, : i + 1].abs().max().item())
    return change
