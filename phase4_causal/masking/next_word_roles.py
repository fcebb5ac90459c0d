"""Which relation of the grammar does a head of a next-word model follow?

A model that fills gaps is asked at the gap: the verb looks for its subject. A next-word model must
know the subject one place earlier, where it predicts the verb, so here the word before the verb is
asked. Only words of the past can be found: the noun may look for its determiner, but not the
determiner for its noun. The rest of the rule is that of shared/grammar/roles.py: by how much,
against which baselines, and on both halves of the held-out sentences.

    python phase4_causal/masking/next_word_roles.py
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from phase4_causal.causal_attention import CausalSelfAttention
from phase4_causal.models import patterns_of
from shared.grammar.roles import (
    MARGIN,
    NO_NAME,
    SEEDS_APART,
    UNTRAINED_MODELS,
    halves,
    needed_beside_others,
)
from shared.grammar.scores import (
    attended_word,
    best_fixed_offset,
    gold_masks,
    share_of_others,
    share_right,
    with_relations,
)
from shared.toy_language import Sentence
from shared.training.recipes import Trained, untrained_model

# Name -> relation of the grammar, and the direction in which it leads into the past.
PAST_RELATIONS = {
    "noun → determiner": ("determiner-noun", "backward"),
    "verb → subject": ("verb-subject", "forward"),
    "place → verb": ("verb-place", "backward"),
}


@dataclass(frozen=True)
class Followed:
    """How often each head finds the word of a relation, and how often it has to, both (L, H)."""

    right: Tensor
    needed: Tensor

    @property
    def margin(self) -> Tensor:
        return self.right - self.needed


@dataclass(frozen=True)
class OnBothHalves:
    """What the heads of a model follow on both halves of the held-out sentences."""

    naming: dict[str, Followed]  # by relation, on the half that names heads
    scoring: dict[str, Followed]  # on the other half


def asked_one_before(gold: Tensor) -> Tensor:
    """The same keys, asked by the word before the query, where the query is predicted.

    gold: bool (N, T, T), which query has which key. Where the key itself is the word before, nobody
    is asked, because a head's own position never counts.
    """
    earlier = torch.zeros_like(gold)
    earlier[:, :-1] = gold[:, 1:]  # row i asks what row i + 1 would have asked
    own_position = torch.eye(gold.size(-1), dtype=torch.bool)
    return earlier & ~own_position


def gold_one_before(sentences: list[Sentence], length: int) -> dict[str, Tensor]:
    """Name of a relation -> bool (N, T, T): which query has which key, asked one word before.

    Place 0 is <start>.
    """
    gold = gold_masks(sentences, "next word", length)
    return {name: asked_one_before(gold[key]) for name, key in PAST_RELATIONS.items()}


def attended_by(trained: Trained, sentences: list[Sentence]) -> Tensor:
    """The place that each query attends to most, (L, N, H, T)."""
    layers, _ = patterns_of(trained, sentences)
    return attended_word(torch.stack(layers))  # (L, N, H, T, T) -> (L, N, H, T)


def followed(
    trained: Trained, blanks: list[Trained], sentences: list[Sentence]
) -> dict[str, Followed]:
    """How often the heads follow each relation, asked one word before.

    A head has to find its word MARGIN more often than the best fixed offset and than the best head
    of the untrained models, `blanks`, and often enough beside the words without the relation.
    """
    _, mask = patterns_of(trained, sentences)
    attended = attended_by(trained, sentences)
    by_blanks = torch.stack([attended_by(blank, sentences) for blank in blanks])
    relations = {}
    for name, gold in gold_one_before(sentences, mask.size(-1)).items():
        by_chance = share_right(by_blanks, gold).max().item()
        least = max(by_chance, best_fixed_offset(gold)) + MARGIN
        others = share_of_others(attended, gold, mask[:, 0])
        needed = needed_beside_others(least, others)
        relations[name] = Followed(share_right(attended, gold), needed)
    return relations


def on_both_halves(trained: Trained) -> OnBothHalves:
    """What heads follow on the half of the sentences that names them, and on the other half."""
    blanks = []
    for i in range(UNTRAINED_MODELS):
        recipe = replace(trained.recipe, seed=trained.recipe.seed + i * SEEDS_APART)
        blanks.append(untrained_model(recipe, CausalSelfAttention))
    for_naming, for_scoring = halves()
    return OnBothHalves(
        followed(trained, blanks, for_naming), followed(trained, blanks, for_scoring)
    )


def relation_of(halves_followed: OnBothHalves, layer: int, head: int) -> str:
    """The relation that a head follows on both halves, or "no name".

    Of several it is the one that the head passes by most on the half that names heads.
    """
    best, largest = NO_NAME, 0.0
    for name in halves_followed.naming:
        margin = halves_followed.naming[name].margin[layer, head]
        agreed = halves_followed.scoring[name].margin[layer, head] >= 0
        if agreed and margin >= largest:
            best, largest = name, margin
    return best


def relations_of_heads(halves_followed: OnBothHalves) -> list[list[str]]:
    """[layer][head] -> the relation of each head, or "no name"."""
    num_layers, num_heads = halves_followed.naming["verb → subject"].right.shape
    layers = []
    for layer in range(num_layers):
        layers.append([relation_of(halves_followed, layer, head) for head in range(num_heads)])
    return layers


def main() -> None:
    words = ["the", "cat", "often", "sat", "on", "the", "mat"]
    gold = gold_masks([with_relations(words)])["verb-subject", "forward"]
    askers = {"at the word itself": gold, "one word before": asked_one_before(gold)}
    for asker, matrix in askers.items():
        _, query, key = matrix.nonzero()[0].tolist()
        print(f'verb → subject, {asker}: does "{words[query]}" look at "{words[key]}"?')


if __name__ == "__main__":
    main()
