"""Which words does a guess depend on?

Hide one word more, and see by how many nats the loss on the hidden word rises.

    leave-one-out      the model itself reads, with one word less
    perfect reader     knows the grammar and nothing else: computed from its probabilities
    gradient           an estimate: how long the gradient of the loss is at a word's embedding

Neither of the first two is the whole truth. The model may not use what the language offers; and it
misses a word whose message stands in the sentence twice, where a perfect reader shrugs: without
"sat", "on the mat" says it as well.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from shared.grammar.best_reader import (
    KIND,
    KINDS,
    hidden_word_distribution,
    parts_of,
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
from shared.toy_model import ToyTransformer, recorded_outputs

TRIED_ON = 120  # held-out sentences on which methods were developed; the numbers are of others

# Kind of word -> groups of words that the grammar treats alike: if one is exchanged for another of
# its group, the sentence is as likely as before.
ALIKE = {  # by the letters of best_reader.KINDS
    "d": [SINGULAR_DETERMINERS, PLURAL_DETERMINERS, EITHER_DETERMINERS],
    "n": [],
    "a": [ADVERBS],
}
for nouns in (*SUBJECTS.values(), *PLACES.values()):
    singular, plural = zip(*nouns, strict=True)
    ALIKE["n"] += [singular, plural]
for kind in "jbvp":  # each word for itself: no adjective comes twice, and a verb chooses its place
    ALIKE[kind] = [(word,) for word in KINDS[kind]]


@dataclass(frozen=True)
class HiddenWord:
    """A sentence, the position of its hidden word, and those of the words that it depends on.

    It depends on the words that the grammar relates to it.
    """

    words: tuple[str, ...]
    hidden: int
    related: frozenset[int]

    @property
    def others(self) -> list[int]:
        return [j for j in range(len(self.words)) if j != self.hidden]

    def tokens(self, *also: int) -> list[int]:
        """Token ids with <mask> at the hidden position, and at others that are hidden, too."""
        ids = encode(self.words)
        for position in (self.hidden, *also):
            ids[position] = MASK_ID
        return ids


def related_words(sentence: Sentence, hidden: int) -> frozenset[int]:
    """Positions of the words that the grammar relates to a hidden noun or determiner."""
    related = set()
    for name in ("determiner-noun", "verb-subject", "verb-place"):
        for source, target in sentence.relations[name]:
            # A noun depends on its verb and on its determiner, unless that is "the".
            if target == hidden and sentence.words[source] not in EITHER_DETERMINERS:
                related.add(source)
            # A determiner depends on its noun.
            if source == hidden and name == "determiner-noun":
                related.add(target)
    return frozenset(related)


def make_case(sentence: Sentence, kind: int) -> HiddenWord:
    """Hides the determiner (0) or the noun (1) of the subject, or those of the place (2, 3).

    Instead of "the", which no word helps to guess, its noun is hidden. Verbs are not hidden, since
    three other words nearly give a verb away.
    """
    ((_, noun),) = sentence.relations["verb-subject" if kind < 2 else "verb-place"]
    (determiner,) = [i for i, j in sentence.relations["determiner-noun"] if j == noun]
    hides_determiner = kind % 2 == 0 and sentence.words[determiner] not in EITHER_DETERMINERS
    hidden = determiner if hides_determiner else noun
    return HiddenWord(sentence.words, hidden, related_words(sentence, hidden))


def make_cases(sentences: Sequence[Sentence]) -> list[HiddenWord]:
    """One hidden word for each sentence, the four kinds in turn."""
    return [make_case(sentence, number % 4) for number, sentence in enumerate(sentences)]


def hidden_loss(model: ToyTransformer, rows: list[list[int]], case: HiddenWord) -> Tensor:
    """Returns -ln p(the hidden word) in nats for each row of token ids, B rows -> (B,)."""
    logits, _ = model(torch.tensor(rows, device=model.positions.device))
    answer = INDEX[case.words[case.hidden]]
    return -logits[:, case.hidden].log_softmax(dim=-1)[:, answer]  # (B, T, V) -> (B,)


@torch.no_grad()
def leave_one_out(model: ToyTransformer, case: HiddenWord) -> Tensor:
    """By how many nats the loss on the hidden word rises when word j is hidden, too -> (T,).

    0 at its own position.
    """
    rows = [case.tokens(j) for j in range(len(case.words))]
    losses = hidden_loss(model, rows, case)
    return (losses - losses[case.hidden]).cpu().double()


@torch.enable_grad()
def gradient_lengths(model: ToyTransformer, case: HiddenWord) -> Tensor:
    """Length of the gradient of the loss on the hidden word at each word's embedding -> (T,)."""
    with recorded_outputs(model.embedding) as embeddings:
        loss = hidden_loss(model, [case.tokens()], case)
    (gradient,) = torch.autograd.grad(loss.sum(), embeddings)
    return gradient[0].norm(dim=-1).cpu().double()  # (1, T, d_model) -> (T,)


def cost_to_perfect_reader(words: Sequence[str], hidden: int, left_out: int) -> float:
    """By how many nats a perfect reader's loss on one word rises if word left_out is hidden, too.

    ln p(word | all others) - ln p(word | all others but one), the second summed over all words of
    the language that may stand in the other gap. Below 0 where the missing word spoke against the
    hidden one.
    """
    if left_out == hidden:
        return 0.0
    with_word = hidden_word_distribution(words, hidden)[INDEX[words[hidden]]].item()
    kinds = [KIND[word] for word in words]
    filled = list(words)
    right = total = 0.0
    for kind, other_kind in product(ALIKE, ALIKE):
        kinds[hidden], kinds[left_out] = kind, other_kind
        if not parts_of("".join(kinds)):
            continue
        for group, other in product(ALIKE[kind], ALIKE[other_kind]):
            # One word stands for all of its group.
            filled[hidden], filled[left_out] = group[0], other[0]
            probability = math.exp(sentence_log_probability(filled)) * len(other)
            total += probability * len(group)
            right += probability * (words[hidden] in group)
    return math.log(with_word * total / right)


def perfect_reader(case: HiddenWord) -> Tensor:
    """cost_to_perfect_reader of every word -> (T,)."""
    costs = [cost_to_perfect_reader(case.words, case.hidden, j) for j in range(len(case.words))]
    return torch.tensor(costs).double()


def where_largest(values: Tensor, case: HiddenWord) -> frozenset[int]:
    """Where the largest number among the other words stands; several positions if they tie."""
    largest = values[case.others].max().item()
    return frozenset(j for j in case.others if values[j].item() > largest - 1e-9)


def main() -> None:
    words = ("these", "cats", "sat", "on", "the", "mat")
    print('"cats" is hidden in "these cats sat on the mat". If a second word is hidden, too, the')
    print("loss of a perfect reader rises by so many nats:")
    for j, word in enumerate(words):
        cost = cost_to_perfect_reader(words, hidden=1, left_out=j)
        if word != "cats":
            print(f"   {word:8}{max(cost, 0):.2f}")
    print('"these" alone says that there are several; "sat" and "on the mat" say the same thing.')


if __name__ == "__main__":
    main()
