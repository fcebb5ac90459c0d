"""Which models run in the page, and how do they travel there?

The model of phase 2 at several stops of its training, and trained once more with another seed; and
three pairs of small ones, one whole and one broken: the same first weights, the same batches, the
same steps, and one thing taken out. All six take about six seconds of one core.

    divided, undivided    one head of d_k = 64 that must look at two places, as phase1_single_head/parts/scaling.py
    masked, unmasked      next words with a causal mask and without, as phase4_causal/masking/breaking_causality.py
    placed, unplaced      strings backwards with positions and without, as phase1_single_head/order/positions.py

To keep the page small the numbers are rounded, to float16 or int8. What the page says of a model is
measured on the rounded numbers: it is true of the model that the reader has.
"""

import argparse
import base64
import copy
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from phase1_single_head.parts.undivided import UndividedSelfAttention
from phase1_single_head.self_attention import SelfAttention
from phase2_multi_head.models import MULTI_HEAD_RECIPE
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase3_visualization.explorer import examples
from shared import checkpoints, training
from shared.grammar import roles
from shared.grammar.best_reader import hidden_word_distribution
from shared.grammar.scores import relation_name
from shared.tasks import REVERSE, SymbolMover, train_mover, train_two_places
from shared.toy_language import INDEX, Sentence
from shared.toy_model import ToyTransformer
from shared.training import Recipe, Trained

# As phase 4 trains them: one layer of four heads, a copy of it without the mask.
MASKED = Recipe("wager_masked", "next word", num_heads=4, num_layers=1, steps=200, batch_size=32)
UNMASKED = Recipe(
    "wager_unmasked",
    "next word, without a mask",
    num_heads=4,
    num_layers=1,
    steps=200,
    batch_size=32,
)
TWO_PLACES_STEPS, REVERSE_STEPS = 300, 150  # as scaling.py and positions.py train them
STOPS = (
    0,
    100,
    150,
    180,
    200,
    220,
    250,
    300,
    340,
    400,
    600,
    800,
)  # steps of MULTI_HEAD_RECIPE that the page shows


def as_text(data: bytes) -> str:
    """Five characters for four bytes (base 85); none needs an escape in the JSON of a page."""
    return base64.b85encode(data).decode().replace("<", ",")


def rounded(parameter: Tensor, kind: str) -> list[Tensor]:
    """What is kept of a parameter, nearly the parameter if multiplied: its numbers in float16, one
    factor alone; or a float16 scale for each row, (rows, 1), and int8 numbers, (rows, columns). One
    dimension is one row.
    """
    rows = parameter.detach().cpu().reshape(-1, parameter.size(-1))
    if kind == "float16":
        return [rows.half()]
    least = torch.finfo(torch.float16).tiny  # below it float16 loses digits
    scales = (rows.abs().amax(dim=-1, keepdim=True) / 127).clamp(min=least).half()
    return [scales, (rows / scales.float()).round().to(torch.int8)]


def pack(state: Mapping[str, Tensor], kind: str) -> dict[str, str]:
    """All numbers as a text, one parameter after the other, little endian; with int8 all scales
    come first.
    """
    factors = zip(*(rounded(parameter, kind) for parameter in state.values()), strict=True)
    data = b"".join(part.numpy().tobytes() for parts in factors for part in parts)
    return {"kind": kind, "numbers": as_text(data)}


@torch.no_grad()
def as_packed(trained: Trained, kind: str) -> Trained:
    """The model with the numbers that the page has of it."""
    model = copy.deepcopy(trained.model)
    for parameter in model.parameters():
        numbers = math.prod(part.float() for part in rounded(parameter, kind))
        parameter.copy_(numbers.view_as(parameter))
    return replace(trained, model=model)


def layout(state: Mapping[str, Tensor]) -> dict[str, dict[str, Any]]:
    """Parameter -> its shape, and how many numbers come before its own."""
    places, start = {}, 0
    for name, parameter in state.items():
        places[name] = {"shape": list(parameter.shape), "start": start}
        start += parameter.numel()
    return places


def questions() -> tuple[list[Sentence], list[int]]:
    """The held-out sentences, and in each the place of one hidden word: every place comes up."""
    held_out = training.corpus()[1]
    return held_out, [n % len(sentence.words) for n, sentence in enumerate(held_out)]


def floor() -> float:
    """What the grammar itself loses on the questions, in nats: no model loses less but by luck."""
    chances = [
        hidden_word_distribution(s.words, i)[INDEX[s.words[i]]]
        for s, i in zip(*questions(), strict=True)
    ]
    return -torch.stack(chances).log().mean().item()


def said_of_head(halves: roles.Halves, layer: int, head: int) -> dict[str, Any]:
    """Role by rule, how often the head follows it, and for a relation how often other words look
    there, too.

    The shares are those of the half of the sentences that scores. A head without a name has None.
    """
    name, own, others = roles.role_name(halves, layer, head), None, None
    if name == roles.NO_NAME:
        return {"role": None, "own": None, "others": None}
    for rule in roles.rules_of(halves.scoring, layer, head):
        if rule.name == name:
            own = round(rule.share, 2)
    for key, shares in halves.scoring.scores.others.items():
        if relation_name(*key) == name:
            others = round(shares[layer, head].item(), 2)
    return {"role": name, "own": own, "others": others}


def heads_of(trained: Trained) -> list[list[dict]]:
    """[layer][head] -> what the page says of this head."""
    halves = roles.halves_of(trained, MultiHeadAttention)
    num_layers, num_heads = trained.recipe.num_layers, trained.recipe.num_heads
    heads = []
    for layer in range(num_layers):
        heads.append([said_of_head(halves, layer, head) for head in range(num_heads)])
    return heads


def stop(trained: Trained, step: int, kind: str, kept: bool = True) -> dict[str, Any]:
    """The model as it was after so many steps: loss on the questions in nats, its heads and, if
    kept, its numbers.
    """
    packed = as_packed(trained.at_stage(step), kind)
    loss = examples.hidden_losses(packed, *questions())[0].mean().item()
    numbers = pack(packed.model.state_dict(), kind) if kept else {}
    return {"step": step, "loss": round(loss, 4), "heads": heads_of(packed), **numbers}


def runs(own: Trained, again: Trained) -> list[dict[str, Any]]:
    """The reader's model at STOPS, or a shorter training at the same shares of it; and the names in
    another one.

    Of the other one the page keeps the numbers at two stops alone, so that it stays small.
    """
    *before, last = sorted(
        {round(step / MULTI_HEAD_RECIPE.steps * own.recipe.steps) for step in STOPS}
    )
    stops = [*(stop(own, step, "int8") for step in before), stop(own, last, "float16")]
    kept = (before[len(before) // 2], last)
    others = [stop(again, step, "int8", kept=step in kept) for step in (*before, last)]
    return [{"seed": own.recipe.seed, "stops": stops}, {"seed": again.recipe.seed, "stops": others}]


def masked(options: argparse.Namespace) -> Trained:
    """The small model of next words that has its mask."""
    return as_packed(checkpoints.trained_model(MASKED, MultiHeadAttention, options), "float16")


def train_pairs(options: argparse.Namespace) -> tuple[dict[str, nn.Module], Tensor]:
    """The six small models by their names, a few steps of each with --quick; and the table (S, S)
    of the first two.
    """
    steps = (lambda full: min(full, training.QUICK_STEPS)) if options.quick else (lambda full: full)
    whole, undivided_head = (
        partial(kind, output_projection=True) for kind in (SelfAttention, UndividedSelfAttention)
    )
    divided, table, _ = train_two_places(whole, options.seed, steps(TWO_PLACES_STEPS))
    undivided, _, _ = train_two_places(undivided_head, options.seed, steps(TWO_PLACES_STEPS))
    pairs = {
        "divided": divided,
        "undivided": undivided,
        "masked": masked(options).model,
        "unmasked": checkpoints.trained_model(UNMASKED, MultiHeadAttention, options).model,
        "placed": train_mover("sinusoidal", whole, REVERSE, options.seed, steps(REVERSE_STEPS)),
        "unplaced": train_mover("none", whole, REVERSE, options.seed, steps(REVERSE_STEPS)),
    }
    return pairs, table


def small_record(name: str, model: nn.Module) -> dict[str, Any]:
    """One of the six, its parameters by the names of the forward pass; of positions those of a
    string.
    """
    state = {
        key.replace("block.", "blocks.0."): tensor for key, tensor in model.state_dict().items()
    }
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
        "parameters": layout(state),
    }
    return sizes | ({"divisor": 1} if name == "undivided" else {}) | pack(state, "float16")
