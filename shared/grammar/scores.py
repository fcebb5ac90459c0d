"""Does a head follow a relation of the grammar? Scored on held-out sentences, against their gold.

A head follows "verb -> subject" as often as the key it attends to most, its own position
aside, is the gold one (Clark et al. 2019, section 4.2). Both directions count: the verb looks at
its subject ("forward"), or the subject looks at its verb ("backward"). A score means nothing
without its baselines: the best fixed offset ("always one to the left"), which needs no attention
at all, and the same model before training. how_many_heads.py of phase 2 shows both.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from shared.grammar.best_reader import KIND, ORDER
from shared.toy_language import RELATIONS, Sentence
from shared.training.objectives import attention_weights, corpus
from shared.training.recipes import Trained

Key = tuple[str, str]  # relation, direction

DIRECTIONS = ("forward", "backward")
# The adjective is left out: it carries no information about its noun and serves as a control.
CORE_RELATIONS = ("determiner-noun", "verb-subject", "verb-place")


def relation_name(relation: str, direction: str) -> str:
    """("verb-place", "backward") -> "place → verb": who looks → at whom."""
    source, target = relation.split("-")
    if direction == "backward":
        source, target = target, source
    return f"{source} → {target}"


def with_relations(words: Sequence[str]) -> Sentence:
    """A typed sentence with its gold relations.

    The relations are empty if the grammar never puts words in this order.
    """
    match = ORDER.fullmatch("".join(KIND[word] for word in words))
    if not match:
        return Sentence(tuple(words), {})
    determiners, adjectives = [], []
    for part in ("subject", "attractor", "place"):
        if match[part]:
            start, noun = match.start(part), match.end(part) - 1
            determiners.append((start, noun))
            adjectives.extend((i, noun) for i in range(start + 1, noun))
    verb = match.start("verb")
    relations = {
        "determiner-noun": determiners,
        "verb-subject": [(verb, match.end("subject") - 1)],
        "verb-place": [(verb, match.end("place") - 1)],
        "adjective-noun": adjectives,
    }
    return Sentence(tuple(words), relations)


def related_pairs(name: str, words: Sequence[str]) -> set[tuple[int, int]]:
    """Returns (query, key) of the words that the relation of this name, "verb → place", relates.

    There are none for the name of a position or a column.
    """
    for relation, pairs in with_relations(words).relations.items():
        if name == relation_name(relation, "forward"):
            return set(pairs)
        if name == relation_name(relation, "backward"):
            return {(target, source) for source, target in pairs}
    return set()


def gold_masks(
    sentences: list[Sentence], objective: str = "masked word", length: int | None = None
) -> dict[Key, Tensor]:
    """(relation, direction) -> bool (N, T, T): True where a query (row) has its gold key (column).

    A model of next words reads <start> before its sentences, so T is larger by one. length: T,
    where it is not that of the longest sentence.
    """
    words_before = 0 if objective == "masked word" else 1  # <start>
    if length is None:
        length = words_before + max(len(sentence.words) for sentence in sentences)
    gold = {}
    for relation in RELATIONS:
        forward = torch.zeros(len(sentences), length, length, dtype=torch.bool)
        for n, sentence in enumerate(sentences):
            for source, target in sentence.relations.get(relation, ()):
                forward[n, source + words_before, target + words_before] = True
        gold[relation, "forward"] = forward
        gold[relation, "backward"] = forward.mT
    return gold


def attended_word(weights: Tensor) -> Tensor:
    """Where the largest weight of each query lies, its own position aside.

    (..., T, T) -> (..., T)
    """
    own_position = torch.eye(weights.size(-1), dtype=torch.bool, device=weights.device)
    return weights.masked_fill(own_position, -1.0).argmax(dim=-1)


def count_at_attended(marked: Tensor, attended: Tensor) -> Tensor:
    """How many queries of each head attend to a key that is marked for them -> (..., H), float64.

    marked: bool (N, T, T), the same for all heads; attended: (..., N, H, T).
    """
    of_heads = marked.unsqueeze(1).expand(*attended.shape, -1)  # (N, T, T) -> (..., N, H, T, T)
    there = of_heads.gather(-1, attended.unsqueeze(-1)).squeeze(-1)  # -> (..., N, H, T)
    return there.double().sum(dim=(-3, -1))


def share_right(attended: Tensor, gold: Tensor) -> Tensor:
    """Of the queries that have a gold key, the share that attends to one -> (..., H).

    attended: (..., N, H, T), ... are layers, if there are several; gold: bool (N, T, T).
    """
    return count_at_attended(gold, attended) / gold.any(dim=-1).sum()


def share_of_others(attended: Tensor, gold: Tensor, visible: Tensor) -> Tensor:
    """How often words without a relation attend to the word that others are related to.

    Asked are all pairs of a gold key and another word that may see it but is not related to it.
    NaN if there is no such pair. visible: bool (N, T, T), which keys each query may see; all else
    as in share_right.
    """
    own_position = torch.eye(gold.size(-1), dtype=torch.bool)
    others = gold.any(dim=-2, keepdim=True) & visible & ~gold & ~own_position
    return count_at_attended(others, attended) / others.sum()


def best_fixed_offset(gold: Tensor) -> float:
    """How often one offset j - i is right for a relation, the one that is right most often.

    It is the guess of a head that is blind to words.
    """
    length = gold.size(-1)
    right = []
    for offset in range(1 - length, length):
        if offset != 0:
            right.append(gold.diagonal(offset, dim1=-2, dim2=-1).sum().item())
    return max(right) / gold.any(dim=-1).sum().item()


def score_heads(layers: list[Tensor], sentences: list[Sentence]) -> dict[str, Tensor]:
    """Relation -> share right of every head in both directions, (L, H, 2).

    layers: the weights of each layer, (N, H, T, T).
    """
    attended = attended_word(torch.stack(layers))  # (L, N, H, T, T) -> (L, N, H, T)
    gold = gold_masks(sentences, length=attended.size(-1))
    scores = {}
    for relation in RELATIONS:
        ways = [share_right(attended, gold[relation, direction]) for direction in DIRECTIONS]
        scores[relation] = torch.stack(ways, dim=-1)
    return scores


def offset_baselines(sentences: list[Sentence]) -> dict[str, float]:
    """Relation -> how often the best fixed offset is right in its better direction."""
    gold = gold_masks(sentences)
    best = {}
    for relation in RELATIONS:
        best[relation] = max(best_fixed_offset(gold[relation, way]) for way in DIRECTIONS)
    return best


def chosen_and_scored(trained: Trained) -> dict[str, float]:
    """Relation -> share right on the second half of the held-out sentences, of the best head.

    That head was best on the first half. The best of several heads has been lucky, too, so
    no head is scored on the sentences that it was chosen on.
    """
    sentences = corpus()[1]
    layers, _ = attention_weights(trained.model, sentences, trained.recipe.objective)
    half = len(sentences) // 2
    first = score_heads([weights[:half] for weights in layers], sentences[:half])
    second = score_heads([weights[half:] for weights in layers], sentences[half:])
    scores = {}
    for relation in RELATIONS:
        best = first[relation].argmax()
        scores[relation] = second[relation].flatten()[best].item()
    return scores
