"""What does each head do, by rules that a head can fail?

It is easy to look at a heatmap and call it "the previous-word head". Here a head gets a name by a rule with a published
margin, over held-out sentences, or it gets none:

    position   its largest weight has the same offset in 0.9 of the rows: itself, previous, next, or another fixed
               offset; or lies on the first word in 0.9 of them                              (Voita et al. 2019)
    relation   its largest weight, itself aside, is the gold word at least 10 points (0.10) more often than with the
               best fixed offset (Voita et al. 2019) and than in the best untrained model, and twice as often as that
               of a word without this relation to it, in the same sentence (both our addition)
    column     the largest weight of half of all words is on one word, whoever asks: "most → subject"

A head has its name from one half of the held-out sentences, and keeps it if it passes the same rule on the other half.
phase3_visualization/roles/head_roles.py draws the scores; every picture names and colours heads by this rule.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from shared import training
from shared.grammar.scores import (
    DIRECTIONS,
    attended_word,
    best_fixed_offset,
    gold_matrices,
    relation_name,
    share_of_others,
    share_right,
)
from shared.head_statistics import OFFSETS, even_weights, first_share, head_statistics, offset_shares
from shared.toy_language import RELATIONS, Sentence
from shared.toy_model import MakeAttention
from shared.training import Recipe, Trained, attention_on

POSITIONAL, MARGIN = 0.90, 0.10  # Voita et al. 2019
FARTHEST = 5  # fixed offsets tried to each side
UNTRAINED = 3  # models of the control
TWICE = 2  # so often as the other words must those with a relation find their word
MOST = 0.50  # of the other words look at the word of a column
NO_NAME = "no name"

Key = tuple[str, str]  # relation, direction
Place = int | str  # an offset, or the first word
NAMES = {offset: f"offset {offset:+d}" for offset in range(-FARTHEST, FARTHEST + 1)} | {"first": "first word"}
NAMES |= {offset: name for name, offset in OFFSETS.items()}

# The words that each sentence has once, each with a relation whose other words are asked.
COLUMNS: dict[str, Key] = {
    "most → subject": ("verb-subject", "forward"),
    "most → verb": ("verb-subject", "backward"),
    "most → place": ("verb-place", "forward"),
}


@dataclass
class Scores:
    """One number for each head of a model, (L, H): shares of rows by offset or on the first word, relations, spread."""

    place: dict[Place, Tensor]
    relation: dict[Key, Tensor]  # accuracy
    others: dict[Key, Tensor]  # share of the words without the relation that look at the same word
    statistics: dict[str, Tensor]

    @property
    def heads(self) -> list[tuple[int, int]]:
        """(layer, head) of all heads."""
        return list(itertools.product(*map(range, self.place[0].shape)))


@dataclass
class Baselines:
    """What a head that learned nothing reaches; untrained: the highest over the heads of all untrained models."""

    fixed_offset: dict[Key, float]
    untrained: dict[Place | Key, float]  # and the name of a column
    even: dict[str, float]  # statistics of weights of 1/n

    def bar(self, key: Key) -> float:
        """The better of the two baselines of a relation and direction."""
        return max(self.fixed_offset[key], self.untrained[key])


Halves = Sequence[tuple[Scores, Baselines]]  # of the half of the sentences that names, and of the half that scores


def golds(sentences: list[Sentence], objective: str = "masked word") -> dict[Key, Tensor]:
    """(relation, direction) -> gold (N, T, T). For other objectives the sentences stand between <start> and <end>."""
    around = int(objective != "masked word")
    forward = gold_matrices(sentences, max(len(sentence.words) for sentence in sentences) + 2 * around, around)
    return {(r, d): gold for r in RELATIONS for d, gold in zip(DIRECTIONS, (forward[r], forward[r].mT), strict=True)}


def measure(trained: Trained, sentences: list[Sentence]) -> Scores:
    """All scores of a model."""
    layers, mask = attention_on(trained.model, sentences, trained.recipe.objective)
    mask, gold = mask.cpu(), golds(sentences, trained.recipe.objective)

    def of_layer(weights: Tensor) -> tuple[dict[Any, Tensor], ...]:
        attended = attended_word(weights)
        return (
            offset_shares(weights, mask, range(-FARTHEST, FARTHEST + 1)) | {"first": first_share(weights, mask)},
            {key: share_right(attended, of_key) for key, of_key in gold.items()},
            {key: share_of_others(attended, of_key, mask[:, 0]) for key, of_key in gold.items()},
            head_statistics(weights, mask),
        )

    kinds = zip(*(of_layer(weights.cpu()) for weights in layers), strict=True)
    return Scores(*({name: torch.stack([layer[name] for layer in kind]) for name in kind[0]} for kind in kinds))


def halves() -> tuple[list[Sentence], list[Sentence]]:
    """The held-out sentences that name heads, and those that must agree."""
    held_out = training.corpus()[1]
    return held_out[::2], held_out[1::2]


@cache
def baselines(recipe: Recipe, make_attention: MakeAttention) -> list[Baselines]:
    """For each half: the best fixed offset of a relation, the best head of UNTRAINED models, and even weights."""
    blanks = [training.untrained(replace(recipe, seed=recipe.seed + i), make_attention) for i in range(UNTRAINED)]
    return [_baselines(blanks, sentences) for sentences in halves()]


def _baselines(blanks: list[Trained], sentences: list[Sentence]) -> Baselines:
    models, objective = [measure(blank, sentences) for blank in blanks], blanks[0].recipe.objective
    gold = golds(sentences, objective)
    best = {key: max(m.relation[key].max().item() for m in models) for key in gold}
    best |= {place: max(m.place[place].max().item() for m in models) for place in NAMES}
    best |= {name: max(m.others[key].max().item() for m in models) for name, key in COLUMNS.items()}
    _, mask = attention_on(blanks[0].model, sentences, objective)
    even = head_statistics(even_weights(mask.cpu()), mask.cpu())
    offsets = {key: best_fixed_offset(gold[key])[1] for key in gold}
    return Baselines(offsets, best, {name: value.item() for name, value in even.items()})


def rules(scores: Scores, base: Baselines, layer: int, head: int) -> list[dict[str, tuple[float, float]]]:
    """The rules of positions, relations and columns: name -> how often a head follows it, and how often it must."""
    positions = {
        NAMES[place]: (share[layer, head].item(), max(POSITIONAL, base.untrained[place] + MARGIN))
        for place, share in scores.place.items()
    }
    others = {key: share[layer, head].item() for key, share in scores.others.items()}
    relations = {
        relation_name(*key): (share[layer, head].item(), max(base.bar(key) + MARGIN, TWICE * others[key]))
        for key, share in scores.relation.items()
    }
    columns = {name: (others[key], max(MOST, base.untrained[name] + MARGIN)) for name, key in COLUMNS.items()}
    return [positions, relations, columns]


def margins(scores: Scores, base: Baselines, layer: int, head: int) -> list[dict[str, float]]:
    """By how much a head passes each rule, kind by kind; below 0 it does not."""
    kinds = rules(scores, base, layer, head)
    return [{name: share - needed for name, (share, needed) in kind.items()} for kind in kinds]


def role_name(halves: Halves, layer: int, head: int) -> str:
    """The role of a head by the rules above, or "no name". A position comes before a relation, a column last."""
    naming, scoring = (margins(scores, base, layer, head) for scores, base in halves)
    for named, scored in zip(naming, scoring, strict=True):
        best = max(named, key=lambda name: named[name])
        if min(named[best], scored[best]) >= 0:
            return best
    return NO_NAME


def nearest_rule(halves: Halves, layer: int, head: int) -> tuple[str, float, float]:
    """The rule of the head's role or, if it has none, the one that it misses by least -> name, share, needed.

    share: how often the head follows the rule, on the half of the sentences where it does worse; needed: how often it
    must there.
    """
    both = [{name: pair for kind in rules(*half, layer, head) for name, pair in kind.items()} for half in halves]
    worse = {name: min((half[name] for half in both), key=lambda pair: pair[0] - pair[1]) for name in both[0]}
    role = role_name(halves, layer, head)
    name = max(worse, key=lambda rule: worse[rule][0] - worse[rule][1]) if role == NO_NAME else role
    return name, *worse[name]


def halves_of(trained: Trained, make_attention: MakeAttention) -> Halves:
    """Scores and baselines of a model that guesses hidden words, on both halves of the held-out sentences."""
    both = zip(halves(), baselines(trained.recipe, make_attention), strict=True)
    return [(measure(trained, sentences), base) for sentences, base in both]


def names_of(halves: Halves) -> list[list[str]]:
    """[layer][head] -> the name of each head, by the rules above."""
    num_layers, num_heads = halves[0][0].place[0].shape
    return [[role_name(halves, layer, head) for head in range(num_heads)] for layer in range(num_layers)]


def head_names(trained: Trained, make_attention: MakeAttention) -> list[list[str]]:
    """[layer][head] -> the name of each head of a model that guesses hidden words."""
    return names_of(halves_of(trained, make_attention))
