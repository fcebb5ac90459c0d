"""What does each head do, by rules that a head can fail?

It is easy to look at a heatmap and call it "the previous-word head". Here a head gets a name by a rule with a published
margin, over held-out sentences, or it gets none:

    position   its largest weight has the same offset in 0.9 of the rows: itself, previous, next, or another fixed
               offset; or lies on the first word in 0.9 of them                              (Voita et al. 2019)
    relation   its largest weight, itself aside, is the gold word at least 10 points (0.10) more often than with the
               best fixed offset (Voita et al. 2019), and than in the best untrained model (our addition)

A head has its name from one half of the held-out sentences, and keeps it if it passes the same rule on the other half.
phase3_visualization/roles/head_roles.py draws the scores; every picture names and colours heads by this rule.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from shared import training
from shared.grammar.scores import DIRECTIONS, best_fixed_offset, gold_matrices, relation_name, score_heads
from shared.head_statistics import OFFSETS, even_weights, first_share, head_statistics, offset_shares
from shared.toy_language import RELATIONS, Sentence
from shared.toy_model import MakeAttention
from shared.training import Recipe, Trained, attention_on

POSITIONAL, MARGIN = 0.90, 0.10  # Voita et al. 2019
FARTHEST = 5  # fixed offsets tried to each side
UNTRAINED = 3  # models of the control
NO_NAME = "no name"
NEIGHBOURS = (-1, 1)  # offsets of the previous and of the next word

Key = tuple[str, str]  # relation, direction


@dataclass
class Scores:
    """One number for each head of a model, (L, H): shares of rows by offset or on the first word, relations, spread."""

    offset: dict[int, Tensor]
    unrelated: dict[int, Tensor]  # previous and next word, only of the rows where that is not a related word
    first: Tensor
    relation: dict[Key, Tensor]  # accuracy
    statistics: dict[str, Tensor]

    @property
    def heads(self) -> list[tuple[int, int]]:
        """(layer, head) of all heads."""
        num_layers, num_heads = self.first.shape
        return [(layer, head) for layer in range(num_layers) for head in range(num_heads)]


@dataclass
class Baselines:
    """What a head that learned nothing reaches; untrained: the highest over the heads of all untrained models."""

    fixed_offset: dict[Key, float]
    untrained: dict[int | str | Key, float]
    even: dict[str, float]  # statistics of weights of 1/n

    def bar(self, key: Key) -> float:
        """The better of the two baselines of a relation and direction."""
        return max(self.fixed_offset[key], self.untrained[key])


Halves = Sequence[tuple[Scores, Baselines]]  # of the half of the sentences that names, and of the half that scores


def golds(sentences: list[Sentence], around: int = 0) -> dict[Key, Tensor]:
    """(relation, direction) -> gold (N, T, T). around: 1 if sentences stand between <start> and <end>."""
    forward = gold_matrices(sentences, max(len(sentence.words) for sentence in sentences) + 2 * around, around)
    return {(r, d): gold for r in RELATIONS for d, gold in zip(DIRECTIONS, (forward[r], forward[r].mT), strict=True)}


def unrelated_share(weights: Tensor, mask: Tensor, related: Tensor, offset: int) -> Tensor:
    """offset_shares, but only of the rows whose word at this offset is not related -> (H,); related as mask."""
    positions = torch.arange(weights.size(-1))
    there = weights.masked_fill(~mask, -1.0).argmax(dim=-1) - positions == offset  # (N, H, T, T) -> (N, H, T)
    rows = (mask & ~related).diagonal(offset, dim1=-2, dim2=-1)  # (N, 1, rows whose word is inside the matrix)
    start, end = max(-offset, 0), len(positions) - max(offset, 0)
    return torch.stack([head[rows[:, 0]].double().mean() for head in there[..., start:end].unbind(dim=1)])


def measure(trained: Trained, sentences: list[Sentence]) -> Scores:
    """All scores of a model."""
    layers, mask = attention_on(trained.model, sentences, trained.recipe.objective)
    around = int(trained.recipe.objective != "masked word")
    layers, mask, gold = [weights.cpu() for weights in layers], mask.cpu(), golds(sentences, around)
    statistics = [head_statistics(weights, mask) for weights in layers]
    accuracy, related = score_heads(layers, sentences, around), torch.stack(list(gold.values())).any(dim=0)[:, None]
    offsets = range(-FARTHEST, FARTHEST + 1)
    shares = [offset_shares(weights, mask, offsets) for weights in layers]
    return Scores(
        {offset: torch.stack([layer[offset] for layer in shares]) for offset in offsets},
        {o: torch.stack([unrelated_share(w, mask, related, o) for w in layers]) for o in NEIGHBOURS},
        torch.stack([first_share(weights, mask) for weights in layers]),
        {(r, d): accuracy[r][..., i] for r in RELATIONS for i, d in enumerate(DIRECTIONS)},
        {name: torch.stack([layer[name] for layer in statistics]) for name in statistics[0]},
    )


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
    models, around = [measure(blank, sentences) for blank in blanks], int(blanks[0].recipe.objective != "masked word")
    gold = golds(sentences, around)
    best = {key: max(m.relation[key].max().item() for m in models) for key in gold}
    best |= {offset: max(m.offset[offset].max().item() for m in models) for offset in models[0].offset}
    best |= {f"unrelated {o}": max(m.unrelated[o].max().item() for m in models) for o in NEIGHBOURS}
    best["first"] = max(m.first.max().item() for m in models)
    _, mask = attention_on(blanks[0].model, sentences, blanks[0].recipe.objective)
    even = head_statistics(even_weights(mask.cpu()), mask.cpu())
    offsets = {key: best_fixed_offset(gold[key])[1] for key in gold}
    return Baselines(offsets, best, {name: value.item() for name, value in even.items()})


def rules(scores: Scores, base: Baselines, layer: int, head: int) -> list[dict[str, tuple[float, float]]]:
    """The rule of each position, and of each relation: name -> how often a head follows it, and how often it must."""
    words = {offset: text for text, offset in OFFSETS.items()}
    shares = {o: (words.get(o, f"offset {o:+d}"), share) for o, share in scores.offset.items()}
    shares |= {"first": ("first word", scores.first)}
    positions = {
        name: (share[layer, head].item(), max(POSITIONAL, base.untrained[place] + MARGIN))
        for place, (name, share) in shares.items()
    }
    relations = {
        relation_name(*key): (share[layer, head].item(), base.bar(key) + MARGIN)
        for key, share in scores.relation.items()
    }
    return [positions, relations]


def margins(scores: Scores, base: Baselines, layer: int, head: int) -> list[dict[str, float]]:
    """By how much a head passes the rule of each position, and of each relation; below 0 it does not."""
    kinds = rules(scores, base, layer, head)
    return [{name: share - needed for name, (share, needed) in kind.items()} for kind in kinds]


def role_name(halves: Halves, layer: int, head: int) -> str:
    """The role of a head by the rules above, or "no name". A position comes before a relation."""
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
    num_layers, num_heads = halves[0][0].first.shape
    return [[role_name(halves, layer, head) for head in range(num_heads)] for layer in range(num_layers)]


def head_names(trained: Trained, make_attention: MakeAttention) -> list[list[str]]:
    """[layer][head] -> the name of each head of a model that guesses hidden words."""
    return names_of(halves_of(trained, make_attention))
