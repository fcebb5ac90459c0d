"""Which models run in the page, and how do they travel there?

The model of phase 2 at several steps of its training, and trained once more with another seed; and
three pairs of small ones, one whole and one broken: the same first weights, the same batches, the
same steps, and one thing taken out.

    divided, undivided    one head that looks at two places (phase1_single_head/parts/scaling.py)
    masked, unmasked      next words (phase4_causal/masking/breaking_causality.py)
    placed, unplaced      strings backwards (phase1_single_head/order/positions.py)

To keep the page small the numbers are rounded, to float16 or int8. What the page says of a model is
measured on the rounded numbers: it is true of the model that the reader has.
"""

import argparse
import base64
import copy
import math
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from phase1_single_head.order.reverse_and_copy import REVERSE, SymbolMover, train_mover
from phase1_single_head.parts.two_places import train_two_places
from phase1_single_head.parts.undivided import UndividedSelfAttention
from phase1_single_head.self_attention import SelfAttention
from phase2_multi_head.models import MULTI_HEAD_RECIPE, WITH_MASK_RECIPE, WITHOUT_MASK_RECIPE
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from shared.experiment import Run
from shared.grammar import roles
from shared.toy_model import ToyTransformer
from shared.training.checkpoints import trained_model
from shared.training.recipes import Recipe, Trained

TWO_PLACES_STEPS, REVERSE_STEPS = 300, 150  # as scaling.py and positions.py train them
# Of the 800 steps of MULTI_HEAD_RECIPE. Most are from its second quarter, where most happens.
SHOWN_STEPS = (0, 100, 150, 180, 200, 220, 250, 300, 340, 400, 800)


# ---- numbers as text


def rounded(parameter: Tensor, kind: str) -> list[Tensor]:
    """Returns what the page has of a parameter: tensors (rows, ...) whose product is nearly it.

    With float16 there is one; with int8 a float16 scale for each row, (rows, 1), and the numbers,
    (rows, columns). A parameter of one dimension is one row.
    """
    rows = parameter.reshape(-1, parameter.size(-1))
    if kind == "float16":
        return [rows.half()]
    least = torch.finfo(torch.float16).tiny  # below it float16 loses digits
    scales = (rows.abs().amax(dim=-1, keepdim=True) / 127).clamp(min=least).half()
    return [scales, (rows / scales.float()).round().to(torch.int8)]


def pack(state: dict[str, Tensor], kind: str) -> dict[str, str]:
    """Returns all numbers as a text, one parameter after the other, little endian, in base 64.

    With int8 the scales of all parameters come first.
    """
    of_scales, of_numbers = b"", b""
    for parameter in state.values():
        *scales, numbers = rounded(parameter, kind)  # float16 has no scales
        of_scales += b"".join(scale.numpy().tobytes() for scale in scales)
        of_numbers += numbers.numpy().tobytes()
    return {"kind": kind, "numbers": base64.b64encode(of_scales + of_numbers).decode()}


@torch.no_grad()
def as_packed(trained: Trained, kind: str) -> Trained:
    """Returns the model with the numbers that the page has of it, on the CPU."""
    model = copy.deepcopy(trained.model).cpu()
    for parameter in model.parameters():
        product = math.prod(factor.float() for factor in rounded(parameter, kind))
        parameter.copy_(product.view_as(parameter))
    return replace(trained, model=model)


def layout(state: dict[str, Tensor]) -> dict[str, list[int]]:
    """Returns the shape of each parameter, in the order of their numbers."""
    return {name: list(parameter.shape) for name, parameter in state.items()}


# ---- the model of phase 2


def heads_of(trained: Trained) -> list[list[dict]]:
    """Returns [layer][head] -> its role, None if it has no name, and how often it follows it.

    own: this share, of the half of the sentences that scores.
    """
    halves = roles.halves_of(trained, MultiHeadAttention)
    heads = []
    for layer, names in enumerate(roles.names_of(halves)):
        heads.append([])
        for head, name in enumerate(names):
            rules = roles.rules_of(halves.scoring, layer, head)
            shares = {rule.name: round(rule.share, 2) for rule in rules}
            role = None if name == roles.NO_NAME else name
            heads[layer].append({"role": role, "own": shares.get(role)})
    return heads


def stop_at(trained: Trained, step: int, kind: str) -> dict:
    """Returns the model as it was after so many steps: its numbers, and what its heads do."""
    packed = as_packed(trained.at_stage(step), kind)
    return {"step": step, "heads": heads_of(packed)} | pack(packed.model.state_dict(), kind)


def two_trainings(own: Trained, again: Trained) -> list[dict]:
    """Returns the reader's model at SHOWN_STEPS, and the same with another seed at three of them.

    A shorter training has its stops at the same shares. More stops of the other model would make
    the page large.
    """
    share = own.recipe.steps / MULTI_HEAD_RECIPE.steps
    *before, last = sorted({round(step * share) for step in SHOWN_STEPS})
    stops = [stop_at(own, step, "int8") for step in before]
    stops.append(stop_at(own, last, "float16"))
    middle = before[len(before) // 2]
    others = [stop_at(again, step, "int8") for step in (before[0], middle, last)]
    return [{"seed": own.recipe.seed, "stops": stops}, {"seed": again.recipe.seed, "stops": others}]


# ---- the small models of the wagers


def next_words(recipe: Recipe, options: argparse.Namespace) -> ToyTransformer:
    """Returns a small model of next words, with the numbers that the page has of it."""
    return as_packed(trained_model(recipe, MultiHeadAttention, options), "float16").model


def train_pairs(options: argparse.Namespace) -> tuple[dict[str, nn.Module], Tensor]:
    """Returns the six small models by their names, and the table (S, S) of the first two."""
    seed, run = options.seed, Run(options, options.seed)
    whole = partial(SelfAttention, output_projection=True)
    broken = partial(UndividedSelfAttention, output_projection=True)
    steps = run.steps(TWO_PLACES_STEPS)
    divided, table, _ = train_two_places(whole, seed, steps)
    undivided, _, _ = train_two_places(broken, seed, steps)
    steps = run.steps(REVERSE_STEPS)
    pairs = {
        "divided": divided,
        "undivided": undivided,
        "masked": next_words(WITH_MASK_RECIPE, options),
        "unmasked": next_words(WITHOUT_MASK_RECIPE, options),
        "placed": train_mover("sinusoidal", whole, REVERSE, seed, steps),
        "unplaced": train_mover("none", whole, REVERSE, seed, steps),
    }
    return pairs, table


def small_record(name: str, model: nn.Module) -> dict:
    """Returns what the page gets of a small model, by the names of its forward pass."""
    state = {}
    for key, parameter in model.state_dict().items():
        state[key.replace("block.", "blocks.0.")] = parameter  # the first of one block
    if isinstance(model, SymbolMover):
        state["positions"] = state["positions"][: SymbolMover.LENGTH]  # those of a string
    record = {
        "name": name,
        "causal": name in ("divided", "undivided", "masked"),
        "d_model": model.embedding.embedding_dim,
        "num_heads": 1,
        "num_layers": 1,
        "max_length": len(state.get("positions", model.positions)),
        "parameters": layout(state),
    }
    if isinstance(model, ToyTransformer):
        record["num_heads"] = model.blocks[0].attention.num_heads
    if name == "undivided":
        record["divisor"] = 1
    return record | pack(state, "float16")
