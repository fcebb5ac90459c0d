"""Which relation of the grammar does a head of a next-word model follow?

A model that fills gaps is asked at the gap: the verb looks for its subject. A next-word model must
know the subject one place earlier, where it predicts the verb, so here the word before the verb is
asked. Only words of the past can be found: the noun may look for its determiner, but not the
determiner for its noun. The rest of the rule is that of shared/grammar/roles.py: by how much,
against which baselines, and on both halves of the held-out sentences.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from phase4_causal.causal_attention import CausalSelfAttention
from phase4_causal.models import patterns_of
from shared import training
from shared.grammar.roles import MARGIN, NO_NAME, TWICE, UNTRAINED, halves
from shared.grammar.scores import (
    attended_word,
    best_fixed_offset,
    gold_matrices,
    relation_name,
    share_of_others,
    share_right,
)
from shared.toy_language import TOY_SENTENCE, Sentence
from shared.training import Trained

# relation -> the direction in which the word that is looked for stands in the past
PAST = {"determiner-noun": "backward", "verb-subject": "forward", "verb-place": "backward"}
RELATIONS = tuple(relation_name(relation, direction) for relation, direction in PAST.items())


@dataclass(frozen=True)
class Followed:
    """How often each head finds the word of a relation, and how often it has to, both (L, H)."""

    found: Tensor
    needed: Tensor

    @property
    def margin(self) -> Tensor:
        return self.found - self.needed


Relations = dict[str, Followed]  # by name, one of RELATIONS


@dataclass(frozen=True)
class Asked:
    """The heads of a model, asked on both halves of the held-out sentences."""

    naming: Relations
    scoring: Relations


def gold_of_past(sentences: list[Sentence], length: int) -> dict[str, Tensor]:
    """Name of a relation -> gold, bool (N, T, T): which query has which key. <start> is number 0."""
    forward = gold_matrices(sentences, length, shift=1)
    gold = {}
    for name, (relation, direction) in zip(RELATIONS, PAST.items(), strict=True):
        gold[name] = forward[relation] if direction == "forward" else forward[relation].mT
    return gold


def asked_one_before(gold: Tensor) -> Tensor:
    """The same keys, asked by the word before the query, where the query is predicted.

    gold (N, T, T) -> (N, T, T). Where the key itself is the word before, nobody is asked, because a
    head's own position never counts.
    """
    earlier = torch.zeros_like(gold)
    earlier[:, :-1] = gold[:, 1:]  # row i asks what row i + 1 would have asked
    own_position = torch.eye(gold.size(-1), dtype=torch.bool)
    return earlier & ~own_position


def followed(
    trained: Trained,
    untrained: list[Trained],
    sentences: list[Sentence],
    *,
    one_before: bool = True,
) -> Relations:
    """How often the heads follow each relation, asked one word before, or at the word itself.

    A head has to find its word MARGIN more often than the best fixed offset and than the best head
    of the untrained models, and TWICE as often as the words without the relation look there.
    """
    layers, mask = patterns_of(trained, sentences)
    attended = [attended_word(weights) for weights in layers]
    attended_by_blanks = []
    for model in untrained:
        blank_layers, _ = patterns_of(model, sentences)
        attended_by_blanks += [attended_word(weights) for weights in blank_layers]
    relations = {}
    for name, gold in gold_of_past(sentences, mask.size(-1)).items():
        asked = asked_one_before(gold) if one_before else gold
        found = torch.stack([share_right(words, asked) for words in attended])
        others = torch.stack([share_of_others(words, asked, mask[:, 0]) for words in attended])
        by_chance = max(share_right(words, asked).max().item() for words in attended_by_blanks)
        _, by_offset = best_fixed_offset(asked)
        needed = (TWICE * others).clamp(min=max(by_chance, by_offset) + MARGIN)
        relations[name] = Followed(found, needed)
    return relations


def on_both_halves(trained: Trained, *, one_before: bool = True) -> Asked:
    """What heads follow on the half of the sentences that names them, and on the other half."""
    untrained = []
    for i in range(UNTRAINED):
        recipe = replace(trained.recipe, seed=trained.recipe.seed + i)
        untrained.append(training.untrained(recipe, CausalSelfAttention))
    for_naming, for_scoring = halves()
    return Asked(
        followed(trained, untrained, for_naming, one_before=one_before),
        followed(trained, untrained, for_scoring, one_before=one_before),
    )


def relation_of(asked: Asked, layer: int, head: int) -> str:
    """The relation that a head follows on both halves, or "no name".

    Of several it is the one that the head passes by most on the half that names heads.
    """
    best, largest = NO_NAME, 0.0
    for name in asked.naming:
        margin = asked.naming[name].margin[layer, head].item()
        agreed = asked.scoring[name].margin[layer, head].item() >= 0
        if agreed and margin >= largest:
            best, largest = name, margin
    return best


def relations_of_heads(asked: Asked) -> list[list[str]]:
    """[layer][head] -> the relation of each head, or "no name"."""
    num_layers, num_heads = asked.naming[RELATIONS[0]].found.shape
    layers = []
    for layer in range(num_layers):
        layers.append([relation_of(asked, layer, head) for head in range(num_heads)])
    return layers


def main() -> None:
    """Who is asked about the subject of "sat": the verb itself, or the word before it."""
    words = ["<start>", "the", "cat", "often", *TOY_SENTENCE.split()[2:]]
    gold = torch.zeros(1, len(words), len(words), dtype=torch.bool)
    gold[0, words.index("sat"), words.index("cat")] = True
    askers = {"at the word itself": gold, "one word before": asked_one_before(gold)}
    for asker, matrix in askers.items():
        _, query, key = matrix.nonzero()[0].tolist()
        print(f'verb → subject, {asker}: does "{words[query]}" look at "{words[key]}"?')


if __name__ == "__main__":
    main()
