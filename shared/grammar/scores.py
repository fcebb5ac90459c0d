"""Does a head follow a grammar relation? Scored on held-out sentences, against the gold that the grammar provides.

A head follows "verb -> subject" as often as the key it attends to most, its own position aside, is the gold one
(Clark et al. 2019, section 4.2). Both directions count: the verb looking at its subject ("forward"), or the subject at
its verb ("backward"). A score means nothing without its baselines: the best fixed offset ("always one to the left"),
which needs no attention at all, and the same model before training. how_many_heads.py of phase 2 shows both.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from shared import training
from shared.grammar.entropy import KIND, ORDER
from shared.toy_language import RELATIONS, Sentence
from shared.training import Trained

DIRECTIONS = ("forward", "backward")
# The adjective is left out: it carries no information about its noun and serves as a control.
CORE_RELATIONS = ("determiner-noun", "verb-subject", "verb-place")


def relation_name(relation: str, direction: str) -> str:
    """("verb-place", "backward") -> "place → verb": from the word that looks to the word it looks at."""
    source, target = relation.split("-") if direction == "forward" else relation.split("-")[::-1]
    return f"{source} → {target}"


def with_relations(words: Sequence[str]) -> Sentence:
    """A typed sentence with its gold relations; without any if the grammar never puts words in this order."""
    match = ORDER.fullmatch("".join(KIND[word] for word in words))
    if not match:
        return Sentence(tuple(words), {})
    phrases = [match.span(part) for part in ("subject", "attractor", "place") if match[part]]
    verb, subject, place = match.start("verb"), match.end("subject") - 1, match.end("place") - 1
    relations = {
        "determiner-noun": tuple((start, end - 1) for start, end in phrases),
        "verb-subject": ((verb, subject),),
        "verb-place": ((verb, place),),
        "adjective-noun": tuple((i, end - 1) for start, end in phrases for i in range(start + 1, end - 1)),
    }
    return Sentence(tuple(words), relations)


def gold_matrices(sentences: list[Sentence], length: int, shift: int = 0) -> dict[str, Tensor]:
    """Relation -> bool (N, T, T): True where the query (row) has its gold key (column), in forward direction.

    shift: how many special tokens stand before the first word.
    """
    gold = {name: torch.zeros(len(sentences), length, length, dtype=torch.bool) for name in RELATIONS}
    for name, matrix in gold.items():
        places = [(n, *pair) for n, sentence in enumerate(sentences) for pair in sentence.relations.get(name, ())]
        if places:
            n, source, target = torch.tensor(places).T
            matrix[n, source + shift, target + shift] = True
    return gold


def attended_word(weights: Tensor) -> Tensor:
    """Where the largest weight of each query lies, its own position aside: (N, H, T, T) -> (N, H, T)."""
    own_position = torch.eye(weights.size(-1), dtype=torch.bool, device=weights.device)
    return weights.masked_fill(own_position, -1.0).argmax(dim=-1)


def share_right(attended: Tensor, gold: Tensor) -> Tensor:
    """Share of the queries with a gold key, in gold (N, T, T), whose attended word (N, H, T) is one -> (H,)."""
    per_head_gold = gold.unsqueeze(1).expand(-1, attended.size(1), -1, -1)  # (N, T, T) -> (N, H, T, T)
    right = per_head_gold.gather(-1, attended.unsqueeze(-1)).squeeze(-1)  # (N, H, T, T) -> (N, H, T)
    asked = gold.any(dim=-1)  # (N, T, T) -> (N, T)
    return torch.stack([head[asked].double().mean() for head in right.unbind(dim=1)])


def share_of_others(attended: Tensor, gold: Tensor, asked: Tensor) -> Tensor:
    """Of all pairs of a gold key and a word that may see it (asked) but is not related: how many attend -> (H,)."""
    own_position = torch.eye(gold.size(-1), dtype=torch.bool)
    others = gold.any(dim=-2, keepdim=True) & asked & ~gold & ~own_position
    there = others.unsqueeze(1).expand(-1, attended.size(1), -1, -1).gather(-1, attended.unsqueeze(-1))
    return there.double().sum(dim=(0, 2, 3)) / others.sum()  # (N, H, T, 1) -> (H,)


def best_fixed_offset(gold: Tensor) -> tuple[int, float]:
    """The offset j - i that is right most often for a relation, and how often: the guess of a head blind to words."""
    asked = int(gold.any(dim=-1).sum())
    length = gold.size(-1)
    offsets = [offset for offset in range(1 - length, length) if offset != 0]
    shares = [gold.diagonal(offset, dim1=-2, dim2=-1).sum().item() / asked for offset in offsets]
    return offsets[shares.index(max(shares))], max(shares)


def score_heads(layers: list[Tensor], sentences: list[Sentence], shift: int = 0) -> dict[str, Tensor]:
    """Relation -> accuracy of every head in both directions, (L, H, 2); layers: one (N, H, T, T) per layer."""
    gold = gold_matrices(sentences, layers[0].size(-1), shift)
    attended = [attended_word(weights.cpu()) for weights in layers]
    scores = {}
    for name, forward in gold.items():
        ways = [torch.stack([share_right(words, way) for words in attended]) for way in (forward, forward.mT)]
        scores[name] = torch.stack(ways, dim=-1)  # 2 x (L, H) -> (L, H, 2)
    return scores


def offset_baselines(sentences: list[Sentence]) -> dict[str, float]:
    """Relation -> accuracy of the best fixed offset in its better direction."""
    gold = gold_matrices(sentences, max(len(sentence.words) for sentence in sentences))
    return {name: max(best_fixed_offset(matrix)[1] for matrix in (g, g.mT)) for name, g in gold.items()}


def chosen_and_scored(trained: Trained) -> dict[str, float]:
    """Relation -> accuracy on the second half of the held-out sentences, by the head that was best on the first half.

    The best of several heads has been lucky, too: so no head is scored on the sentences that it was chosen on.
    """
    sentences = training.corpus()[1]
    layers, _ = training.attention_on(trained.model, sentences, trained.recipe.objective)  # (N, H, T, T) each
    half = len(sentences) // 2
    first = score_heads([weights[:half] for weights in layers], sentences[:half])
    second = score_heads([weights[half:] for weights in layers], sentences[half:])
    return {relation: second[relation].flatten()[first[relation].argmax()].item() for relation in first}
