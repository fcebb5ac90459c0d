"""The scores of all heads of a model, the baselines they have to beat, and the rules that give a head its name.

The rules are explained in head_roles.py, which draws the table:  python phase3_visualization/roles/head_roles.py
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from phase2_multi_head.multi_head_attention import MultiHeadAttention
from shared import training
from shared.grammar.scores import DIRECTIONS, best_fixed_offset, gold_matrices, score_heads
from shared.head_statistics import OFFSETS, even_weights, first_share, head_statistics, offset_share, relation_weight
from shared.toy_language import RELATIONS, Sentence
from shared.training import Trained, attention_on

POSITIONAL, MARGIN = 0.90, 0.10  # Voita et al. 2019
BROAD, FOCUSED = 0.90, 0.80
FARTHEST = 5  # fixed offsets tried to each side
UNTRAINED = 3  # models of the control
NO_NAME = "no name"


@dataclass
class Scores:
    """One number for each head of a model, (L, H): shares of rows by offset or on the first word, relations, spread."""

    offset: dict[int, Tensor]
    first: Tensor
    relation: dict[tuple[str, str], Tensor]  # (relation, direction) -> accuracy
    statistics: dict[str, Tensor]


@dataclass
class Baselines:
    """What a head that learned nothing reaches; untrained: the highest over the heads of all untrained models."""

    fixed_offset: dict[tuple[str, str], float]
    untrained: dict[int | str | tuple[str, str], float]
    even: dict[str, float]  # statistics of weights of 1/n


def measure(trained: Trained, sentences: list[Sentence], relation_weights: bool = False) -> Scores:
    """All scores of a model; relation_weights: also the mean weight on the gold words, in both directions."""
    layers, mask = attention_on(trained.model, sentences, trained.recipe.objective)
    layers, mask = [weights.cpu() for weights in layers], mask.cpu()
    statistics = [head_statistics(weights, mask) for weights in layers]
    accuracy = score_heads(layers, sentences)
    return Scores(
        {o: torch.stack([offset_share(w, mask, o) for w in layers]) for o in range(-FARTHEST, FARTHEST + 1)},
        torch.stack([first_share(weights, mask) for weights in layers]),
        {(r, d): accuracy[r][..., i] for r in RELATIONS for i, d in enumerate(DIRECTIONS)},
        {name: torch.stack([layer[name] for layer in statistics]) for name in statistics[0]}
        | {
            f"weight on {r}, {d}": torch.stack([relation_weight(w, gold) for w in layers])
            for r, d, gold in (golds(sentences) if relation_weights else [])
        },
    )


def golds(sentences: list[Sentence]) -> list[tuple[str, str, Tensor]]:
    """(relation, direction, gold (N, T, T)) of both directions of every relation."""
    length = max(len(sentence.words) for sentence in sentences)
    forward = gold_matrices(sentences, length)
    return [(r, d, gold) for r in RELATIONS for d, gold in zip(DIRECTIONS, (forward[r], forward[r].mT), strict=True)]


def baselines(trained: Trained, sentences: list[Sentence], count: int) -> Baselines:
    """The best fixed offset of each relation, the best head of `count` untrained models, and even weights."""
    models = [
        measure(
            training.untrained(replace(trained.recipe, seed=trained.recipe.seed + i), MultiHeadAttention), sentences
        )
        for i in range(count)
    ]
    untrained = {key: max(m.relation[key].max().item() for m in models) for key in models[0].relation}
    untrained |= {offset: max(m.offset[offset].max().item() for m in models) for offset in models[0].offset}
    untrained["first"] = max(m.first.max().item() for m in models)
    untrained["normalised entropy"] = min(m.statistics["normalised entropy"].min().item() for m in models)
    untrained["largest weight"] = max(m.statistics["largest weight"].max().item() for m in models)
    _, mask = attention_on(trained.model, sentences, trained.recipe.objective)
    even = even_weights(mask.cpu())
    weights = {f"weight on {r}, {d}": relation_weight(even, gold).item() for r, d, gold in golds(sentences)}
    return Baselines(
        {(r, d): best_fixed_offset(gold)[1] for r, d, gold in golds(sentences)},
        untrained,
        {name: value.item() for name, value in head_statistics(even, mask.cpu()).items()} | weights,
    )


def margin(scores: Scores, base: Baselines, key: tuple[str, str], layer: int, head: int) -> float:
    """How far a head is above the better of the two baselines of a relation and direction."""
    return scores.relation[key][layer, head].item() - max(base.fixed_offset[key], base.untrained[key])


def arrow(key: tuple[str, str]) -> str:
    """("verb-place", "backward") -> "place → verb": from the word that looks to the word it looks at."""
    source, target = key[0].split("-") if key[1] == "forward" else key[0].split("-")[::-1]
    return f"{source} → {target}"


def name(scores: Scores, base: Baselines, layer: int, head: int) -> str:
    """The role of a head by the rules above, or "no name". A position comes before a relation."""
    words = {offset: text for text, offset in OFFSETS.items()}
    offset = max(scores.offset, key=lambda o: scores.offset[o][layer, head].item())
    if scores.offset[offset][layer, head] >= max(POSITIONAL, base.untrained[offset] + MARGIN):
        return words.get(offset, f"offset {offset:+d}")
    if scores.first[layer, head] >= max(POSITIONAL, base.untrained["first"] + MARGIN):
        return "first word"
    key = max(scores.relation, key=lambda k: margin(scores, base, k, layer, head))
    return arrow(key) if margin(scores, base, key, layer, head) >= MARGIN else NO_NAME


def spread(scores: Scores, layer: int, head: int) -> str:
    """broad, focused, or neither (an empty string)."""
    if scores.statistics["normalised entropy"][layer, head] >= BROAD:
        return "broad"
    return "focused" if scores.statistics["largest weight"][layer, head] >= FOCUSED else ""
