"""Which words does a guess depend on? Hide one word more, and see by how many nats the loss on the
hidden word rises.

    leave-one-out      the model itself reads, with one word less
    perfect reader     knows the grammar and nothing else: computed from its probabilities, not learned
    gradient           how long the gradient of the loss is at a word's embedding: an estimate, without hiding anything

Neither of the first two is the whole truth. The model may not use what the language offers; and it
misses a word whose message stands in the sentence twice, where a perfect reader shrugs: without
"sat", "on the mat" says it as well.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor

from shared.grammar.best_reader import (
    KIND,
    KINDS,
    ORDER,
    hidden_word_distribution,
    sentence_log_probability,
)
from shared.toy_language import (
    ADVERBS,
    EITHER_DETERMINERS,
    INDEX,
    MASK_ID,
    PLACES,
    PLURAL_DETERMINERS,
    SINGULAR_DETERMINERS,
    SUBJECTS,
    Sentence,
    encode,
)
from shared.toy_model import ToyTransformer, changed

TRIED_ON = 120  # held-out sentences that the comparison of methods was developed on; its numbers come from the others

# Kind of word -> groups that the grammar treats alike: exchanged inside a group, every sentence is
# as likely as before.
ALIKE = {
    "d": (SINGULAR_DETERMINERS, PLURAL_DETERMINERS, EITHER_DETERMINERS),
    "n": [
        forms
        for nouns in (*SUBJECTS.values(), *PLACES.values())
        for forms in zip(*nouns, strict=True)
    ],
    "a": (ADVERBS,),
    **{
        kind: [(word,) for word in KINDS[kind]] for kind in "jbvp"
    },  # no adjective comes twice; a verb has its place
}


@dataclass(frozen=True)
class Case:
    """The words of a sentence, the hidden position, and the positions of words that the grammar
    relates to it.
    """

    words: tuple[str, ...]
    hidden: int
    related: frozenset[int]

    @property
    def others(self) -> list[int]:
        return [j for j in range(len(self.words)) if j != self.hidden]


def related_words(sentence: Sentence, hidden: int) -> frozenset[int]:
    """Positions of the words that carry information about a hidden noun or determiner, from the
    gold relations.
    """
    related = set()
    for name in ("determiner-noun", "verb-subject", "verb-place"):
        for i, j in sentence.relations[name]:
            if (
                j == hidden and sentence.words[i] not in EITHER_DETERMINERS
            ):  # its verb, its determiner
                related.add(i)
            if i == hidden and name == "determiner-noun":  # the noun of a hidden determiner
                related.add(j)
    return frozenset(related)


def make_case(sentence: Sentence, kind: int) -> Case:
    """Hide the determiner (0) or the noun (1) of the subject, or of the place (2, 3); instead of
    "the" the noun.

    Verbs are not hidden (three other words nearly give a verb away), nor is "the": no word helps to
    guess it.
    """
    ((_, noun),) = sentence.relations["verb-subject" if kind < 2 else "verb-place"]
    (determiner,) = [i for i, j in sentence.relations["determiner-noun"] if j == noun]
    hidden = noun if kind % 2 or sentence.words[determiner] in EITHER_DETERMINERS else determiner
    return Case(sentence.words, hidden, related_words(sentence, hidden))


def make_cases(sentences: Sequence[Sentence]) -> list[Case]:
    """One hidden word for each sentence, the four kinds in turn."""
    return [make_case(sentence, number % 4) for number, sentence in enumerate(sentences)]


def hide(words: Sequence[str], *positions: int) -> list[int]:
    """Token ids with <mask> at these positions."""
    return [MASK_ID if j in positions else token for j, token in enumerate(encode(tuple(words)))]


def hidden_loss(model: ToyTransformer, tokens: Tensor, case: Case) -> Tensor:
    """-ln p(the hidden word) in nats for each row of tokens (B, T) -> (B,)."""
    logits, _ = model(tokens)
    answer = tokens.new_tensor(encode(case.words)[case.hidden]).expand(len(tokens))
    return F.cross_entropy(logits[:, case.hidden], answer, reduction="none")  # (B, V) -> (B,)


@torch.no_grad()
def leave_one_out(model: ToyTransformer, case: Case) -> Tensor:
    """By how many nats the loss on the hidden word rises when word j is hidden, too -> (T,); 0 for
    its own position.
    """
    rows = [hide(case.words, case.hidden, j) for j in range(len(case.words))]
    losses = hidden_loss(model, torch.tensor(rows, device=model.positions.device), case)
    return (losses - losses[case.hidden]).double().cpu()


@torch.enable_grad()
def gradient_lengths(model: ToyTransformer, case: Case) -> Tensor:
    """Length of the gradient of the loss on the hidden word at each word's embedding -> (T,)."""
    seen: list[Tensor] = []
    with changed(model.embedding, seen.append):
        loss = hidden_loss(
            model,
            torch.tensor([hide(case.words, case.hidden)], device=model.positions.device),
            case,
        )
    (gradient,) = torch.autograd.grad(loss.sum(), seen)
    return gradient[0].norm(dim=-1).double().cpu()  # (1, T, d_model) -> (T,)


def grammar_rise(words: Sequence[str], hidden: int, left_out: int) -> float:
    """By how many nats the loss of a perfect reader on the hidden word rises if word left_out is
    hidden, too.

    ln p(word | all others) - ln p(word | all others but one), the second summed over all words of
    the language that may stand in the other gap. Below 0 where the missing word spoke against the
    hidden one.
    """
    if left_out == hidden:
        return 0.0
    with_word = hidden_word_distribution(words, hidden)[INDEX[words[hidden]]].item()
    kinds, filled = [KIND[word] for word in words], list(words)
    right = total = 0.0
    for kinds[hidden], kinds[left_out] in product(ALIKE, ALIKE):
        if ORDER.fullmatch("".join(kinds)):
            for group, other in product(ALIKE[kinds[hidden]], ALIKE[kinds[left_out]]):
                filled[hidden], filled[left_out] = (
                    group[0],
                    other[0],
                )  # one word stands for its group
                probability = math.exp(sentence_log_probability(filled)) * len(other)
                total += probability * len(group)
                right += probability * (words[hidden] in group)
    return math.log(with_word * total / right)


def perfect_reader(case: Case) -> Tensor:
    """grammar_rise of every word -> (T,)."""
    return torch.tensor(
        [grammar_rise(case.words, case.hidden, j) for j in range(len(case.words))]
    ).double()


def first(values: Tensor, case: Case) -> frozenset[int]:
    """Where the largest number among the other words stands; several positions if they tie."""
    largest = values[case.others].max().item()
    return frozenset(j for j in case.others if values[j].item() > largest - 1e-9)
