"""Which pairs of models do the wagers run side by side, one whole and one broken?

Each pair is trained as the experiment whose record answers the wager: the same first weights, the same batches, the
same steps, and one thing taken out. They are small; all six take about six seconds of one core.

    divided, undivided    one head of d_k = 64 that must look at two places, as phase1_single_head/parts/scaling.py
    masked, unmasked      next words with a causal mask and without, as phase4_causal/masking/breaking_causality.py
    placed, unplaced      strings backwards with positions and without, as phase1_single_head/order/positions.py
"""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn

from phase1_single_head.parts.undivided import UndividedSelfAttention
from phase1_single_head.self_attention import SelfAttention
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase3_visualization.explorer.packing import pack
from shared import checkpoints, training
from shared.tasks import REVERSE, SymbolMover, train_mover, train_two_places
from shared.toy_model import ToyTransformer
from shared.training import Recipe

# As phase 4 trains them: one layer of four heads, a copy of it without the mask.
MASKED = Recipe("wager_masked", "next word", num_heads=4, num_layers=1, steps=200, batch_size=32)
UNMASKED = Recipe("wager_unmasked", "next word, without a mask", num_heads=4, num_layers=1, steps=200, batch_size=32)
TWO_PLACES_STEPS, REVERSE_STEPS = 300, 150  # as scaling.py and positions.py train them


@dataclass(frozen=True)
class WagerModels:
    """The six models by their names, and the table (S, S) that the first two learned."""

    models: Mapping[str, nn.Module]
    table: Tensor


def train(options: argparse.Namespace) -> WagerModels:
    """All six, as the experiments train them; a few steps of each with --quick."""
    steps = (lambda full: min(full, training.QUICK_STEPS)) if options.quick else (lambda full: full)
    whole, undivided_head = (partial(kind, output_projection=True) for kind in (SelfAttention, UndividedSelfAttention))
    divided, table, _ = train_two_places(whole, options.seed, steps(TWO_PLACES_STEPS))
    undivided, _, _ = train_two_places(undivided_head, options.seed, steps(TWO_PLACES_STEPS))
    placed, unplaced = (
        train_mover(encoding, whole, REVERSE, options.seed, steps(REVERSE_STEPS)) for encoding in ("sinusoidal", "none")
    )
    masked = checkpoints.trained_model(MASKED, MultiHeadAttention, options).model
    unmasked = checkpoints.trained_model(UNMASKED, MultiHeadAttention, options).model
    return WagerModels(
        {
            "divided": divided,
            "undivided": undivided,
            "masked": masked,
            "unmasked": unmasked,
            "placed": placed,
            "unplaced": unplaced,
        },
        table,
    )


def state_of(model: nn.Module) -> dict[str, Tensor]:
    """The parameters by the names that the page's forward pass asks for; of positions those that a string can have."""
    state = {name.replace("block.", "blocks.0."): tensor for name, tensor in model.state_dict().items()}
    if isinstance(model, SymbolMover):
        state["positions"] = state["positions"][: SymbolMover.LENGTH]
    return state


def record(name: str, model: nn.Module) -> dict[str, Any]:
    """What the page is told about one of them."""
    state, toy = state_of(model), isinstance(model, ToyTransformer)
    attention = model.blocks[0].attention if toy else model.block.attention
    sizes = {
        "name": name,
        "causal": name in ("divided", "undivided", "masked"),
        "d_model": state["embedding.weight"].size(1),
        "num_heads": attention.num_heads if toy else 1,
        "num_layers": 1,
        "max_length": len(model.positions if toy else state["positions"]),
    }
    return sizes | ({"divisor": 1} if name == "undivided" else {}) | pack(state)
