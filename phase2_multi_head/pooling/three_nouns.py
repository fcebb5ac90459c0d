"""Three questions about one sentence, for which a pooling must find the word that decides.

    those dogs beside the barn slept in a soft bed

Is the subject plural (dogs)? Is the noun beside it (barn)? Is the place (bed)? The number of every noun is drawn by
itself, so that no noun says anything about another. Subjects are words of their own; the two other nouns are drawn from
the same words, and only their order tells which of them is beside the subject. Which noun is which is known from the
gold relations of the toy language. The questions are put to trained models in pooling_questions.py.
"""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn

from shared.attention_utils import padding_mask
from shared.toy_language import PLACES, SUBJECTS, Sentence, encode, pad_batch, sample_corpus

QUESTIONS = ("subject", "beside", "place")  # is this noun plural?
PLURALS = frozenset(plural for nouns in (SUBJECTS, PLACES) for pairs in nouns.values() for _, plural in pairs)


def noun_asked_for(sentence: Sentence, question: str) -> int:
    """Index of the noun that a question is about, from the gold relations.

    Raises ValueError for an unknown question and for a sentence that has not three nouns.
    """
    if question not in QUESTIONS:
        raise ValueError(f"unknown question {question!r}: choose from {', '.join(QUESTIONS)}")
    subject, place = (sentence.relations[f"verb-{role}"][0][1] for role in ("subject", "place"))
    others = [noun for _, noun in sentence.relations["determiner-noun"] if noun not in (subject, place)]
    if len(others) != 1:
        raise ValueError(f'the questions are about sentences with three nouns: got "{sentence}"')
    return {"subject": subject, "beside": others[0], "place": place}[question]


@dataclass
class Task:
    """A question about N sentences: tokens (N, T), mask (N, 1, 1, T), answers (N,), 1 = plural.

    decisive: bool (N, T), True at the noun asked for and at its determiner.
    """

    tokens: Tensor
    mask: Tensor
    answers: Tensor
    decisive: Tensor


def make_task(sentences: list[Sentence], question: str) -> Task:
    """Sentences with three nouns -> what a classifier reads and what it is to say."""
    tokens, lengths = pad_batch([encode(sentence.words) for sentence in sentences])
    nouns = [noun_asked_for(sentence, question) for sentence in sentences]
    answers = torch.tensor([int(s.words[noun] in PLURALS) for s, noun in zip(sentences, nouns, strict=True)])
    decisive = torch.zeros(tokens.shape, dtype=torch.bool)
    for row, (sentence, noun) in enumerate(zip(sentences, nouns, strict=True)):
        determiner = next(d for d, n in sentence.relations["determiner-noun"] if n == noun)
        decisive[row, [determiner, noun]] = True
    return Task(tokens, padding_mask(lengths, tokens.size(1)), answers, decisive)


@cache
def three_noun_sentences() -> tuple[list[Sentence], list[Sentence]]:
    """(train, held-out) sentences with three nouns: about 2,400 and 900, the same for all seeds."""
    drawn = sample_corpus(8000, 3000)
    train, held_out = ([s for s in part if len(s.relations["determiner-noun"]) == 3] for part in drawn)
    return train, held_out


@cache
def tasks(question: str) -> tuple[Task, Task]:
    """(train, held-out) of a question."""
    train, held_out = three_noun_sentences()
    return make_task(train, question), make_task(held_out, question)


def best_fixed_place(task: Task) -> float:
    """Share of sentences in which the best fixed place, counted from the start or the end, holds a decisive word."""
    lengths = task.mask.sum(dim=-1).flatten().tolist()
    from_end = [row[:length].flip(0) for row, length in zip(task.decisive, lengths, strict=True)]
    padded = nn.utils.rnn.pad_sequence(from_end, batch_first=True)
    return max(decisive.double().mean(dim=0).max().item() for decisive in (task.decisive, padded))


def most_frequent(task: Task) -> float:
    """Accuracy of always giving the more frequent answer."""
    share = task.answers.double().mean().item()
    return max(share, 1 - share)
