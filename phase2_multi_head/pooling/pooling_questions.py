"""Which pooling finds the word that decides?

We ask of sentences with three nouns, such as "those dogs beside the barn slept in a soft bed",
whether the noun beside the subject is plural (barn). No noun says anything about another. The place
(bed) is drawn from the same words as the noun beside the subject, so only their order tells which
of the two is asked for. Words are embedded, get their position, are pooled by their mean, as their
last word or by attention, and are classified. Then we ask once more with a layer of attention
before the pooling.
"""

import itertools
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor

from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase2_multi_head.pooling.attention_pooling import (
    AttentionClassifier,
    AttentionPooling,
    Pooling,
    last_pooling,
    mean_pooling,
)
from shared import charts
from shared.attention_utils import padding_mask
from shared.claims import Claim, Numbers
from shared.experiment import Experiment, Results, Run
from shared.toy_language import PLACES, SUBJECTS, Sentence, encode, pad_batch, sample_corpus
from shared.training.loop import fit
from shared.visualization_utils import BLUE, GREY, WIDE

LAYERED = "beside, after a layer"
D_MODEL, STEPS = 32, 200
POOLINGS: dict[str, Callable[[], Pooling]] = {
    "mean": lambda: mean_pooling,
    "last word": lambda: last_pooling,
    "attention": lambda: AttentionPooling(D_MODEL),
}
COLORS = {"mean": GREY, "last word": GREY, "learned query": BLUE}
LABELS = {"attention": "learned query"}  # in the picture, where they are not the names


class NounQuestion(NamedTuple):
    """What is asked of N sentences with three nouns."""

    tokens: Tensor  # (N, T)
    mask: Tensor  # (N, 1, 1, T)
    answers: Tensor  # (N,), 1 = plural
    decisive: Tensor  # bool (N, T), True at the noun asked for and at its determiner


def noun_asked_for(sentence: Sentence) -> tuple[int, int]:
    """Returns where the noun beside the subject stands, as (its determiner, the noun)."""
    [(_, subject)] = sentence.relations["verb-subject"]
    [(_, noun_of_place)] = sentence.relations["verb-place"]
    for determiner, noun in sentence.relations["determiner-noun"]:
        if noun not in (subject, noun_of_place):
            return determiner, noun
    raise ValueError(f'"{sentence}" has no noun beside its subject')


def ask(sentences: list[Sentence]) -> NounQuestion:
    """Returns what a classifier reads of sentences with three nouns, and what it is to say."""
    plurals = {plural for _, plural in itertools.chain(*SUBJECTS.values(), *PLACES.values())}
    tokens, lengths = pad_batch([encode(sentence.words) for sentence in sentences])
    answers, decisive = [], torch.zeros(tokens.shape, dtype=torch.bool)
    for row, sentence in enumerate(sentences):
        determiner, noun = noun_asked_for(sentence)
        answers.append(int(sentence.words[noun] in plurals))
        decisive[row, [determiner, noun]] = True
    mask = padding_mask(lengths, tokens.size(1))
    return NounQuestion(tokens, mask, torch.tensor(answers), decisive)


@cache
def both_parts() -> tuple[NounQuestion, NounQuestion]:
    """Returns what to train on and what to test with, about 2,400 and 900 sentences.

    They are the same for all seeds.
    """
    train, held_out = sample_corpus(8000, 3000)
    return ask(with_three_nouns(train)), ask(with_three_nouns(held_out))


def with_three_nouns(sentences: list[Sentence]) -> list[Sentence]:
    return [each for each in sentences if len(each.relations["determiner-noun"]) == 3]


def train_classifier(pooling: str, with_layer: bool, seed: int, steps: int) -> AttentionClassifier:
    """Trains a classifier; for a seed, all poolings start with the same numbers and batches."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    attention = MultiHeadAttention(D_MODEL, 4) if with_layer else None
    model = AttentionClassifier(D_MODEL, POOLINGS[pooling](), attention)
    train, _ = both_parts()

    def loss_of_step(_: int) -> Tensor:
        batch = torch.randint(len(train.answers), (32,), generator=generator)
        logits, _ = model(train.tokens[batch], train.mask[batch])
        return F.cross_entropy(logits, train.answers[batch])

    fit(model, loss_of_step, steps, matrix_rate=None, rate=2e-2)
    return model


@torch.no_grad()
def right_and_looks(model: AttentionClassifier, held_out: NounQuestion) -> tuple[float, float]:
    """Returns shares: of right answers, and of weight on the noun asked for and its determiner."""
    logits, weights = model(held_out.tokens, held_out.mask)
    right = (logits.argmax(dim=-1) == held_out.answers).double().mean()
    looks = (weights[:, 0, 0] * held_out.decisive).sum(dim=-1)  # (N, 1, 1, T) -> (N, T) -> (N,)
    return right.item(), looks.mean().item()


def measure(run: Run) -> Numbers:
    """Returns shares of sentences answered right, and of the weight on the word that decides."""
    _, held_out = both_parts()
    numbers = {}
    for case in ("beside", LAYERED):
        for pooling in POOLINGS:
            model = train_classifier(pooling, case == LAYERED, run.seed, run.steps(STEPS))
            right, looks = right_and_looks(model, held_out)
            numbers[f"{case}, {pooling}"] = right
            if pooling == "attention":
                numbers[f"{case}, looks"] = looks
    plural = held_out.answers.double().mean().item()
    numbers["beside, most frequent answer"] = max(plural, 1 - plural)
    even = held_out.decisive.sum(dim=-1) / held_out.mask.sum(dim=-1).flatten()
    numbers["weight if even"] = even.mean().item()
    return numbers


CLAIM = Claim(
    id="pooling-looks",
    text="The weights of attention pooling show which word matters if the words themselves are "
    "pooled, and no longer show it after a layer of attention. That layer has four heads.",
    source='course notes, "Mini Exercises", where it is said without the condition',
    rule="at least 0.30 of the weight lies on the noun asked for and its determiner (even weights "
    "would give them 0.17), and after a layer of attention at most 0.25 does",
    effect=lambda n: n["beside, looks"],
    at_least=0.30,
    also=lambda n: n[f"{LAYERED}, looks"] <= 0.25,
    explored=10,
    oracle={f"{LAYERED}, looks": 0.17, "*, looks": 1.0},
    null={"*, looks": 0.17},
    revised="the rule asks for weight and no longer for the largest weight, and the 0.25 was "
    "added; after the ten runs two more questions were dropped, in which the rule held, too",
)


def picture(results: Results) -> Figure:
    """Draws how often each pooling is right."""
    fig, ax = plt.subplots(figsize=(WIDE, 2.8), layout="constrained")
    right = {}
    for name in POOLINGS:
        right[LABELS.get(name, name)] = results.each(f"beside, {name}")
    guess = results.mean["beside, most frequent answer"]
    charts.bars(ax, right, COLORS, guess=guess, guess_name="guessing", number="{:.0%}")
    return fig


main = Experiment(
    measure,
    [CLAIM],
    picture,
    title="Is the barn plural? Only a learned query nearly always knows",
    note="“those dogs beside the barn slept in a soft bed”\n"
    f"answers right, no layer before the pooling, trained {STEPS} steps",
    answer="Pooled by attention {n[beside, attention]:.0%} of the answers are right, by the mean "
    "{n[beside, mean]:.0%}, and by the last word {n[beside, last word]:.0%}.",
)

if __name__ == "__main__":
    main.run()
