"""Which models does this phase train?

Two layers of four heads and one layer of several guess hidden words. Two layers guess next words,
with an attention of choice, and one layer does so with a causal mask and without. A single block
must look at two places at once, as two_places.py of phase 1 asks it.
"""

import argparse
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from phase1_single_head.parts.two_places import TwoPlaces
from phase2_multi_head.block.gated_attention import GatedAttention
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from shared.toy_model import MakeAttention, default_dtype, feed_forward
from shared.training.checkpoints import trained_model
from shared.training.loop import fit
from shared.training.objectives import OBJECTIVES, corpus, to_batch
from shared.training.recipes import LITTLE_DECAY, Recipe, Trained, untrained_model, variant

# Of 800 steps those with a frame in phase 3's film: many where most happens, few at the end.
FILMED = (0, 40, 80, 100, *range(120, 350, 10), 370, 400, 450, 500, 600, 700, 800)
STAGES = tuple(step / 800 for step in FILMED)
MULTI_HEAD_RECIPE = Recipe(
    "multi_head_model", "masked word", num_heads=4, num_layers=2, steps=800, stages=STAGES
)
ONE_LAYER_RECIPE = Recipe(
    "one_layer_model",
    "masked word",
    num_heads=4,
    num_layers=1,
    steps=800,
    matrix_decay=LITTLE_DECAY,
)
NEXT_WORD_RECIPE = Recipe("next words", "next word", num_heads=4, num_layers=2, steps=0)
# A pair with the same first weights and the same batches. Phase 4 measures what the mask is for,
# and in the live page of phase 3 both models run.
WITH_MASK_RECIPE = Recipe(
    "with_causal_mask", "next word", num_heads=4, num_layers=1, steps=200, batch_size=32
)
WITHOUT_MASK_RECIPE = replace(
    WITH_MASK_RECIPE, name="without_causal_mask", objective="next word, without a mask"
)
AGAIN = 1000  # added to a seed: the model trained again, with a seed that no other run of ten has


def load_multi_head_model(options: argparse.Namespace, seed: int | None = None) -> Trained:
    """Two layers of four heads, trained on masked words."""
    return trained_model(MULTI_HEAD_RECIPE, MultiHeadAttention, options, seed)


def load_one_layer_model(
    options: argparse.Namespace, seed: int | None = None, num_heads: int = 4
) -> Trained:
    """One layer of so many heads, trained like the single head of phase 1."""
    recipe = variant(ONE_LAYER_RECIPE, num_heads=num_heads)
    return trained_model(recipe, MultiHeadAttention, options, seed)


@default_dtype()  # as the recipe's model has it
def next_word_model(make_attention: MakeAttention, seed: int) -> Trained:
    """An untrained model of two layers, which is to guess next words.

    All have as many weights, to one in 1,000: a gate has 64 · 65 in each layer, and without it the
    feed-forward network has 32 more hidden features, of 129 weights each.
    """
    trained = untrained_model(replace(NEXT_WORD_RECIPE, seed=seed), make_attention)
    d_model = trained.recipe.d_model
    for block in trained.model.blocks:
        hidden = 2 * d_model
        if not isinstance(block.attention, GatedAttention):
            hidden += d_model // 2
        block.feed_forward = feed_forward(d_model, hidden)
    return trained


def train_in_order(trained: Trained, steps: int, name: str, **how: Any) -> None:
    """Train by the objective and the decay of the recipe; how: rates, as `fit` takes them.

    Batches are drawn one by one, other than in `train`, for the record was measured so. By
    one seed all models see the same.
    """
    model, recipe = trained.model, trained.recipe
    generator = torch.Generator().manual_seed(recipe.seed)
    tokens, lengths = to_batch(corpus()[0], recipe.objective)
    loss = OBJECTIVES[recipe.objective]

    def loss_of_step(_: int) -> Tensor:
        batch = torch.randint(len(tokens), (recipe.batch_size,), generator=generator)
        longest = int(lengths[batch].max())
        return loss(model, tokens[batch, :longest], lengths[batch], generator)

    fit(model, loss_of_step, steps, matrix_decay=recipe.matrix_decay, progress=name, **how)


def train_two_lookups(num_heads: int, seed: int, steps: int) -> tuple[TwoPlaces, Tensor, Tensor]:
    """Train one block of so many heads on a new table.

    Returns the model, 250 strings that it has not seen, and their answers.
    """
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    num_symbols = TwoPlaces.SYMBOLS
    table = torch.randint(num_symbols, (num_symbols, num_symbols), generator=generator)
    model = TwoPlaces(MultiHeadAttention(TwoPlaces.D_MODEL, num_heads))

    def draw(number: int) -> tuple[Tensor, Tensor]:
        symbols = torch.randint(num_symbols, (number, TwoPlaces.LENGTH), generator=generator)
        return symbols, TwoPlaces.answers(symbols, table)

    def loss_of_step(_: int) -> Tensor:
        symbols, answers = draw(32)
        return F.cross_entropy(model(symbols)[:, TwoPlaces.FIRST :].mT, answers)

    name = f"two look-ups, heads: {num_heads}"
    fit(model, loss_of_step, steps, matrix_rate=None, rate=1e-2, progress=name)
    return model, *draw(250)
