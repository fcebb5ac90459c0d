"""The best possible reader: what the grammar itself says about a hidden word, computed, not
learned.

The toy language is made by a few random choices (sample_sentence in shared/toy_language.py), and
the probability of a sentence is the product of the probabilities of its choices. So a question for
which real text has no exact answer has one here: which words could stand in the gap, and how likely
is each?

    p(word | all other words) = P(sentence with the word) / sum over all words w of P(sentence with
    w)

Whoever guesses with probabilities q pays -ln q(word) nats for the word that comes. On average this
is least for q = p, and then it is the entropy of p (Gibbs' inequality; Shannon 1948). No model can
go below, however large: what a loss has above this floor is what is left to learn. With one word
hidden, all words that fit are equally likely in this grammar.
"""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor

from shared import toy_language as toy
from shared.toy_language import MASK_ID, VOCABULARY, Sentence, encode

Question = tuple[
    Tensor, Tensor, Tensor
]  # tokens (n, T) with one word hidden, its position (n,), p of all words (n, V)

# One letter for each kind of word. No word is of two kinds, so a sentence can be read in one way
# only.
KINDS = {
    "d": toy.SINGULAR_DETERMINERS + toy.PLURAL_DETERMINERS + toy.EITHER_DETERMINERS,
    "j": toy.ADJECTIVES,
    "n": [
        form
        for nouns in (*toy.SUBJECTS.values(), *toy.PLACES.values())
        for pair in nouns
        for form in pair
    ],
    "b": [toy.ATTRACTOR_PREPOSITION],
    "a": toy.ADVERBS,
    "v": list(toy.VERBS),
    "p": sorted({preposition for _, preposition, _ in toy.VERBS.values()}),
}
KIND = {word: kind for kind, words in KINDS.items() for word in words}
# [adverb] noun-phrase [beside noun-phrase] [adverb] verb [adverb] preposition noun-phrase, as in
# sample_sentence
PHRASE = f"dj{{0,{len(toy.ADJECTIVE_COUNTS) - 1}}}n"
ORDER = re.compile(
    f"a?(?P<subject>{PHRASE})(b(?P<attractor>{PHRASE}))?a?(?P<verb>v)a?(?P<where>p)(?P<place>{PHRASE})"
)


@cache
def _match(kinds: str) -> re.Match | None:
    """Where the parts of a sentence stand, from the kinds of its words ("dnvpdn"); None if their
    order is wrong.
    """
    return ORDER.fullmatch(kinds)


@cache
def noun_phrase_probability(words: tuple[str, ...], nouns: tuple[tuple[str, str], ...]) -> float:
    """How likely noun_phrase of sample_sentence, called with these (singular, plural) nouns, gives
    these words.

    words: a determiner, adjectives and a noun, as ORDER lets them through.
    """
    determiner, *adjectives, noun = words
    plural = noun in (pair[1] for pair in nouns)
    determiners = (
        toy.PLURAL_DETERMINERS if plural else toy.SINGULAR_DETERMINERS
    ) + toy.EITHER_DETERMINERS
    known = noun in (pair[plural] for pair in nouns) and determiner in determiners
    if not known or len(set(adjectives)) < len(adjectives):  # no adjective comes twice
        return 0.0
    return (
        (toy.PLURAL_CHANCE if plural else 1 - toy.PLURAL_CHANCE)
        / len(determiners)
        * (toy.ADJECTIVE_COUNTS[len(adjectives)] / sum(toy.ADJECTIVE_COUNTS))
        / math.perm(len(toy.ADJECTIVES), len(adjectives))  # ordered draws without repetition
        / len(nouns)
    )


def sentence_log_probability(words: Sequence[str]) -> float:
    """ln P(the next sentence of sample_sentence is this one), in nats; -inf for one that the
    grammar cannot make.
    """
    kinds = "".join(KIND.get(word, "?") for word in words)
    match = _match(kinds)
    if match is None:
        return -math.inf
    subject, attractor, place = (
        tuple(words[slice(*match.span(name))]) for name in ("subject", "attractor", "place")
    )
    subject_class, preposition, place_class = toy.VERBS[words[match.start("verb")]]
    if words[match.start("where")] != preposition:
        return -math.inf
    adverbs = kinds.count("a")  # in three places that may have one
    probability = (toy.ADVERB_CHANCE / len(toy.ADVERBS)) ** adverbs * (1 - toy.ADVERB_CHANCE) ** (
        3 - adverbs
    )
    probability /= len(toy.VERBS)
    probability *= noun_phrase_probability(subject, toy.SUBJECTS[subject_class])
    probability *= noun_phrase_probability(place, toy.PLACES[place_class])
    if attractor:  # first a class of places is drawn, then one of its nouns
        of_class = [noun_phrase_probability(attractor, nouns) for nouns in toy.PLACES.values()]
        probability *= toy.ATTRACTOR_CHANCE * sum(of_class) / len(toy.PLACES)
    else:
        probability *= 1 - toy.ATTRACTOR_CHANCE
    return math.log(probability) if probability else -math.inf


def hidden_word_distribution(words: Sequence[str], position: int) -> Tensor:
    """p(word at position | all other words) for every word of VOCABULARY -> (V,), float64, sums to
    1.

    What stands at the position itself does not matter. Raises ValueError if the position lies
    outside the sentence or if no word there makes it a sentence of the grammar.
    """
    if not 0 <= position < len(words):
        raise ValueError(f"position must lie between 0 and {len(words) - 1}: got {position}")
    before, after = tuple(words[:position]), tuple(words[position + 1 :])
    logs = [sentence_log_probability((*before, word, *after)) for word in VOCABULARY]
    if max(logs) == -math.inf:
        gap = " ".join((*before, "...", *after))
        raise ValueError(
            f'no word makes "{gap}" a sentence of the grammar: take one that sample_sentence can make'
        )
    return torch.tensor(logs, dtype=torch.float64).softmax(
        dim=0
    )  # exp and division by the sum: Bayes' rule


def questions(sentences: list[Sentence]) -> list[Question]:
    """Each word of each sentence hidden once, with what the grammar says of it; one entry for each
    sentence length.
    """
    rows = defaultdict(list)
    for sentence in sentences:
        for position in range(len(sentence.words)):
            tokens = encode(sentence.words)
            tokens[position] = MASK_ID
            rows[len(tokens)].append(
                (tokens, position, hidden_word_distribution(sentence.words, position))
            )
    by_length = (zip(*rows[length], strict=True) for length in sorted(rows))
    return [
        (torch.tensor(tokens), torch.tensor(places), torch.stack(p))
        for tokens, places, p in by_length
    ]


@torch.no_grad()
def excess_loss(logits: Callable[[Tensor], Tensor], asked: list[Question]) -> float:
    """Mean of - sum_w p(w) ln q(w) less the entropy of p, in nats; p is the grammar's, q the
    model's probability of w.

    logits: tokens (n, T) -> (n, T, V). The sum runs over all words that may stand in the gap, not
    only over the one that did: no luck of the draw is left. It is never negative, and 0 for the
    grammar itself.
    """
    excess = []
    for tokens, position, p in asked:
        guess = logits(tokens)[torch.arange(len(tokens)), position]  # (n, T, V) -> (n, V)
        cost = -(p * guess.double().log_softmax(dim=-1)).sum(dim=-1)  # (n, V) -> (n,)
        excess.append(cost - torch.special.entr(p).sum(dim=-1))
    return torch.cat(excess).mean().item()


def floor(asked: list[Question]) -> float:
    """The grammar's own entropy, in nats, mean over all questions: no model loses less."""
    return (
        torch.cat([torch.special.entr(p).sum(dim=-1) for *_, p in asked]).mean().item()
    )  # (n, V) -> (n,)


def next_word_floor(sentences: list[Sentence]) -> float:
    """What the grammar itself loses per word on these sentences, <end> included: -ln P(sentence)
    over the words.
    """
    return -sum(sentence_log_probability(s.words) for s in sentences) / sum(
        len(s.words) + 1 for s in sentences
    )
