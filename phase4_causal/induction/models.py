"""The model that continues what it has seen once: how it is trained and kept, and by what its heads are chosen.

Two layers of four causal heads, or one as the control, read the sequences of induction_scores.py. The loss is that of
all places, predictable or not: nobody tells a model where the copy begins.
"""

import argparse
from collections.abc import Callable

import torch
from torch import Tensor

from phase4_causal.causal_attention import CausalSelfAttention
from phase4_causal.induction.induction_scores import next_word_losses, repeated_sequences, scores_on
from shared import checkpoints, training
from shared.optimization import fit
from shared.toy_model import ToyTransformer, in_double
from shared.training import Recipe, Trained

HEADS, STEPS, BATCH = 4, 500, 32
RECIPE = Recipe("induction_model", "next word", HEADS, 2, STEPS, batch_size=BATCH, matrix_decay=0.0)
WARM_UP, NUM_TEST = 40, 100  # steps; sequences that are measured
MATCHES = 0.5  # from this score on we call a head an induction head


def generator(seed: int, purpose: int) -> torch.Generator:
    """Random numbers of their own for each seed and purpose."""
    return torch.Generator().manual_seed(purpose * 10**6 + seed)


def untrained(seed: int, num_layers: int = 2) -> ToyTransformer:
    """The model of a seed before its first step."""
    return training.new_model(training.variant(RECIPE, seed, num_layers=num_layers), CausalSelfAttention)


def train(
    seed: int, num_layers: int, steps: int, look: Callable[[ToyTransformer, int], None] = lambda model, done: None
) -> ToyTransformer:
    """Train one model; those of one seed see the same batches. look: called as in training.train.

    After the first steps the learning rate stays the same, so that a sudden fall is not the schedule's doing.
    """
    model, batches = untrained(seed, num_layers), generator(seed, 0)

    def loss_of_step(_: int) -> Tensor:
        return next_word_losses(model, repeated_sequences(BATCH, batches))[0].mean()

    fit(
        model,
        loss_of_step,
        steps,
        matrix_rate=0.01,
        rate=0.005,
        matrix_decay=RECIPE.matrix_decay,
        decay=0.01,
        share=lambda step: min(1.0, (step + 1) / WARM_UP),
        watch=lambda done: look(model, done),
        progress=f"induction, layers: {num_layers}",
    )
    return model


def induction_model(options: argparse.Namespace, seed: int) -> ToyTransformer:
    """The model of two layers in float64, from its checkpoint or trained now; it keeps its size and runs on the CPU."""

    def on_repetitions(recipe: Recipe) -> Trained:
        return Trained(train(recipe.seed, recipe.num_layers, recipe.steps), recipe)

    recipe = training.variant(RECIPE, seed)
    trained = checkpoints.load_or_train(
        recipe, CausalSelfAttention, retrain=options.retrain, quick=options.quick, task=on_repetitions
    )
    return in_double(trained.model)


def chosen_by(model: ToyTransformer, seed: int) -> Tensor:
    """The induction score of each head on sequences of their own: heads are chosen by these -> (L, H)."""
    return scores_on(model, repeated_sequences(NUM_TEST, generator(seed, 2)))
