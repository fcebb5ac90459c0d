"""The best possible reader: what the grammar says about a hidden word, computed, not learned.

The toy language is made by a few random choices (its grammar is sample_sentence in
shared/toy_language.py), and the probability of a sentence is the product of the probabilities of
its choices. So a question for which real text has no exact answer has one here: which words could
stand in the gap, and how likely is each?

    p(word | all other words) = P(sentence with the word) / sum over all w of P(sentence with w)

Whoever guesses with probabilities q pays -ln q(word) nats for the word that comes. On average this
is least for q = p, and then it is the entropy of p (Gibbs' inequality; Shannon 1948). No model can
go below, however large: what a loss has above this floor is what is left to learn. With one word
hidden, all words that fit are equally likely in this grammar.

The entropy of a head's weights is another one: attention_entropy in shared/attention_utils.py.
"""

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from shared.toy_language import (
    ADJECTIVE_COUNTS,
    ADJECTIVES,
    ADVERB_CHANCE,
    ADVERBS,
    ATTRACTOR_CHANCE,
    ATTRACTOR_PREPOSITION,
    EITHER_DETERMINERS,
    MASK_ID,
    PLACES,
    PLURAL_CHANCE,
    PLURAL_DETERMINERS,
    SINGULAR_DETERMINERS,
    SUBJECTS,
    VERBS,
    VOCABULARY,
    Sentence,
    encode,
)

noun_pairs = itertools.chain(*SUBJECTS.values(), *PLACES.values())
# One letter for each kind of word. No word is of two kinds, so a sentence can be read in one way
# only.
KINDS = {
    "d": SINGULAR_DETERMINERS + PLURAL_DETERMINERS + EITHER_DETERMINERS,
    "j": ADJECTIVES,
    "n": list(itertools.chain.from_iterable(noun_pairs)),
    "b": [ATTRACTOR_PREPOSITION],
    "a": ADVERBS,
    "v": list(VERBS),
    "p": sorted({preposition for _, preposition, _ in VERBS.values()}),
}
KIND: dict[str, str] = {}  # word -> the letter of its kind
for letter, of_kind in KINDS.items():
    KIND |= dict.fromkeys(of_kind, letter)

# The order of the kinds of words, as sample_sentence draws them:
# [adverb] noun-phrase [beside noun-phrase] [adverb] verb [adverb] preposition noun-phrase
PHRASE = f"dj{{0,{len(ADJECTIVE_COUNTS) - 1}}}n"
ORDER = re.compile(
    f"a?(?P<subject>{PHRASE})(b(?P<attractor>{PHRASE}))?a?(?P<verb>v)"
    f"a?(?P<where>p)(?P<place>{PHRASE})"
)
ADVERB_PLACES = 3  # each a? above
# Where the parts of a sentence stand, or None. It is often asked for the same sentence again.
parts_of = cache(ORDER.fullmatch)


# ---- how likely is a sentence?


@cache
def noun_phrase_probability(words: tuple[str, ...], nouns: tuple[tuple[str, str], ...]) -> float:
    """How likely noun_phrase of sample_sentence gives these words, called with these nouns.

    words: a determiner, adjectives and a noun, as ORDER lets them through.
    nouns: pairs of singular and plural.
    """
    determiner, *adjectives, noun = words
    is_plural = any(noun == plural for _, plural in nouns)
    own_determiners = PLURAL_DETERMINERS if is_plural else SINGULAR_DETERMINERS
    determiners = own_determiners + EITHER_DETERMINERS
    fits = determiner in determiners and any(noun in pair for pair in nouns)
    repeats = len(set(adjectives)) < len(adjectives)
    if repeats or not fits:
        return 0.0
    probability = PLURAL_CHANCE if is_plural else 1 - PLURAL_CHANCE
    probability /= len(determiners)
    probability *= ADJECTIVE_COUNTS[len(adjectives)] / sum(ADJECTIVE_COUNTS)
    probability /= math.perm(len(ADJECTIVES), len(adjectives))  # no adjective comes twice
    return probability / len(nouns)


def sentence_log_probability(words: Sequence[str]) -> float:
    """ln P(the next sentence of sample_sentence is this one), in nats.

    It is -inf for a sentence that the grammar cannot make.
    """
    kinds = "".join(KIND.get(word, "?") for word in words)
    parts = parts_of(kinds)
    if parts is None:
        return -math.inf

    def phrase(part: str) -> tuple[str, ...]:
        return tuple(words[parts.start(part) : parts.end(part)])

    subject_class, preposition, place_class = VERBS[words[parts.start("verb")]]
    if words[parts.start("where")] != preposition:
        return -math.inf
    adverbs = kinds.count("a")
    probability = (ADVERB_CHANCE / len(ADVERBS)) ** adverbs
    probability *= (1 - ADVERB_CHANCE) ** (ADVERB_PLACES - adverbs)
    probability /= len(VERBS)
    probability *= noun_phrase_probability(phrase("subject"), SUBJECTS[subject_class])
    probability *= noun_phrase_probability(phrase("place"), PLACES[place_class])
    if parts["attractor"]:  # first a class of places is drawn, then one of its nouns
        attractor = phrase("attractor")
        of_class = [noun_phrase_probability(attractor, nouns) for nouns in PLACES.values()]
        probability *= ATTRACTOR_CHANCE * sum(of_class) / len(PLACES)
    else:
        probability *= 1 - ATTRACTOR_CHANCE
    return math.log(probability) if probability else -math.inf


def next_word_floor(sentences: list[Sentence]) -> float:
    """What the grammar itself loses per word on these sentences, in nats, <end> included."""
    lost = -sum(sentence_log_probability(sentence.words) for sentence in sentences)
    return lost / sum(len(sentence.words) + 1 for sentence in sentences)


# ---- how likely is a hidden word?


class Gaps(NamedTuple):
    """Sentences of one length, each with one word hidden, and what the grammar says of it."""

    tokens: Tensor  # (n, T)
    hidden: Tensor  # bool (n, T), True at the hidden word
    p: Tensor  # (n, V), the probability of each word of VOCABULARY


def hidden_word_distribution(words: Sequence[str], position: int) -> Tensor:
    """p(word at position | all other words), for every word of VOCABULARY: (V,), float64, sum 1.

    What stands at the position itself does not matter. Raises ValueError if no word there makes it
    a sentence of the grammar.
    """
    before, after = tuple(words[:position]), tuple(words[position + 1 :])
    logs = [sentence_log_probability((*before, word, *after)) for word in VOCABULARY]
    if max(logs) == -math.inf:
        gap = " ".join((*before, "...", *after))
        raise ValueError(
            f'no word makes "{gap}" a sentence of the grammar: '
            "take one that sample_sentence can make"
        )
    # Bayes' rule: exp, and division by the sum.
    return torch.tensor(logs, dtype=torch.float64).softmax(dim=0)


def questions(sentences: list[Sentence]) -> list[Gaps]:
    """Each word of each sentence hidden once; one entry for each length, the shortest first."""
    of_length = defaultdict(list)
    for sentence in sentences:
        of_length[len(sentence.words)].append(sentence.words)
    gaps = []
    for length, same in sorted(of_length.items()):
        tokens = torch.tensor([encode(words) for words in same])
        tokens = tokens.repeat_interleave(length, dim=0)  # (sentences, T) -> (n, T)
        hidden = torch.eye(length, dtype=torch.bool).repeat(len(same), 1)  # (T, T) -> (n, T)
        p = []
        for words in same:
            p += [hidden_word_distribution(words, position) for position in range(length)]
        gaps.append(Gaps(tokens.masked_fill(hidden, MASK_ID), hidden, torch.stack(p)))
    return gaps


@torch.no_grad()
def excess_loss(logits: Callable[[Tensor], Tensor], gaps: list[Gaps]) -> float:
    """Mean of - sum_w p(w) ln q(w) less the entropy of p, in nats.

    p(w) is the probability of a word by the grammar, q(w) by the model. The sum runs over all words
    that may stand in the gap, not only over the one that did: no luck of the draw is left. It is
    never negative, and 0 for the grammar itself. logits: tokens (n, T) -> (n, T, V).
    """
    excess = []
    for tokens, hidden, p in gaps:
        guess = logits(tokens)[hidden]  # (n, T, V) -> (n, V)
        cost = -(p * guess.double().log_softmax(dim=-1)).sum(dim=-1)  # (n, V) -> (n,)
        excess.append(cost - torch.special.entr(p).sum(dim=-1))
    return torch.cat(excess).mean().item()


def floor(gaps: list[Gaps]) -> float:
    """The grammar's own entropy, in nats, mean over all questions: no model loses less."""
    entropies = [torch.special.entr(each.p).sum(dim=-1) for each in gaps]  # (n, V) -> (n,)
    return torch.cat(entropies).mean().item()
