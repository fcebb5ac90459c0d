"""Which models run in the page, and how do they travel there?

As JSON: the sizes that the forward pass of page/model/attention.js asks for, and all numbers as one text. Beside the
two models of the lessons there are three pairs of small ones, one whole and one broken: the same first weights, the
same batches, the same steps, and one thing taken out. All six take about six seconds of one core.

    divided, undivided    one head of d_k = 64 that must look at two places, as phase1_single_head/parts/scaling.py
    masked, unmasked      next words with a causal mask and without, as phase4_causal/masking/breaking_causality.py
    placed, unplaced      strings backwards with positions and without, as phase1_single_head/order/positions.py
"""

import argparse
import base64
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor, nn

from phase1_single_head.parts.undivided import UndividedSelfAttention
from phase1_single_head.self_attention import SelfAttention
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase3_visualization.explorer import examples
from shared import checkpoints, training
from shared.grammar import roles
from shared.tasks import REVERSE, SymbolMover, train_mover, train_two_places
from shared.toy_model import ToyTransformer
from shared.training import Recipe, Trained

# As phase 4 trains them: one layer of four heads, a copy of it without the mask.
MASKED = Recipe("wager_masked", "next word", num_heads=4, num_layers=1, steps=200, batch_size=32)
UNMASKED = Recipe("wager_unmasked", "next word, without a mask", num_heads=4, num_layers=1, steps=200, batch_size=32)
TWO_PLACES_STEPS, REVERSE_STEPS = 300, 150  # as scaling.py and positions.py train them


def pack(state: Mapping[str, Tensor]) -> dict[str, Any]:
    """A state_dict, one parameter after the other: name -> shape and start, and all numbers as base64 of float32."""
    places, numbers, start = {}, [], 0
    for name, parameter in state.items():
        places[name] = {"shape": list(parameter.shape), "start": start}
        numbers.append(parameter.detach().cpu().numpy().astype("<f4").ravel())  # < : little endian, as browsers read it
        start += parameter.numel()
    return {"parameters": places, "numbers": base64.b64encode(np.concatenate(numbers).tobytes()).decode()}


def roles_of(trained: Trained) -> list[list[dict]] | None:
    """[layer][head] -> its role by rule or None, and the rule that is nearest: its name, the head's share, the bar.

    None for a model of next words, for which there are no such rules.
    """
    if trained.recipe.objective != "masked word":
        return None
    halves = roles.halves_of(trained, MultiHeadAttention)

    def of_head(layer: int, head: int, name: str) -> dict:
        rule, share, needed = roles.nearest_rule(halves, layer, head)
        role = None if name == roles.NO_NAME else name
        return {"role": role, "rule": rule, "share": round(share, 4), "needed": round(needed, 4)}

    names = enumerate(roles.names_of(halves))
    return [[of_head(layer, head, name) for head, name in enumerate(row)] for layer, row in names]


def record(name: str, trained: Trained) -> dict[str, Any]:
    """A model of the lessons: sizes, how it was trained, its loss in nats, what its heads do, and the weights.

    landings: the sentences with which the page shows this model.
    """
    recipe, heads = trained.recipe, roles_of(trained)
    names = [[head["role"] for head in layer] for layer in heads or []]
    return {
        "name": name,
        "label": f"{trained.label}, seed {recipe.seed}",
        "objective": recipe.objective,
        "d_model": recipe.d_model,
        "num_heads": recipe.num_heads,
        "num_layers": recipe.num_layers,
        "max_length": len(trained.model.positions),
        "loss": round(training.held_out_loss(trained), 4),
        "heads": heads,
        "landings": [view.as_data() for view in examples.landings(trained, names)],
        **pack(trained.model.state_dict()),
    }


def train_pairs(options: argparse.Namespace) -> tuple[dict[str, nn.Module], Tensor]:
    """The six small models by their names, a few steps of each with --quick; and the table (S, S) of the first two."""
    steps = (lambda full: min(full, training.QUICK_STEPS)) if options.quick else (lambda full: full)
    whole, undivided_head = (partial(kind, output_projection=True) for kind in (SelfAttention, UndividedSelfAttention))
    divided, table, _ = train_two_places(whole, options.seed, steps(TWO_PLACES_STEPS))
    undivided, _, _ = train_two_places(undivided_head, options.seed, steps(TWO_PLACES_STEPS))
    pairs = {
        "divided": divided,
        "undivided": undivided,
        "masked": checkpoints.trained_model(MASKED, MultiHeadAttention, options).model,
        "unmasked": checkpoints.trained_model(UNMASKED, MultiHeadAttention, options).model,
        "placed": train_mover("sinusoidal", whole, REVERSE, options.seed, steps(REVERSE_STEPS)),
        "unplaced": train_mover("none", whole, REVERSE, options.seed, steps(REVERSE_STEPS)),
    }
    return pairs, table


def small_record(name: str, model: nn.Module) -> dict[str, Any]:
    """One of the six, its parameters by the names of the forward pass; of positions those that a string can have."""
    state = {key.replace("block.", "blocks.0."): tensor for key, tensor in model.state_dict().items()}
    if isinstance(model, SymbolMover):
        state["positions"] = state["positions"][: SymbolMover.LENGTH]
    toy = isinstance(model, ToyTransformer)
    sizes = {
        "name": name,
        "causal": name in ("divided", "undivided", "masked"),
        "d_model": state["embedding.weight"].size(1),
        "num_heads": model.blocks[0].attention.num_heads if toy else 1,
        "num_layers": 1,
        "max_length": len(model.positions if toy else state["positions"]),
    }
    return sizes | ({"divisor": 1} if name == "undivided" else {}) | pack(state)
