"""Which pooling finds the word that decides?

Three questions about sentences with three nouns, "those dogs beside the barn slept in a soft bed": is the subject
plural (dogs)? Is the noun beside it (barn)? Is the place (bed)? One word decides each, and the number of every noun is
drawn by itself, so that no noun says anything about another. Words are embedded and given their position, then pooled
by their mean, as their last word or by attention, then classified. Subjects are words of their own; the other two nouns
are drawn from the same words, and only their order tells which is beside the subject. That question is asked once more
with one layer of multi-head attention before the pooling.

    python phase2_multi_head/pooling/pooling_questions.py
    python phase2_multi_head/pooling/pooling_questions.py --seeds 3

Writes attention_pooling.png to visualizations/plots/phase2/.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache
from statistics import fmean

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor
from tqdm import tqdm

from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase2_multi_head.pooling.attention_pooling import (
    AttentionClassifier,
    AttentionPooling,
    Pooling,
    last_pooling,
    mean_pooling,
)
from shared import cli, training
from shared.attention_utils import padding_mask
from shared.evidence import findings
from shared.evidence.claims import EXPERIMENT, Claim, Numbers, measures
from shared.toy_language import PLACES, SUBJECTS, Sentence, encode, pad_batch, sample_corpus
from shared.visualization_utils import BLUE, INK, QUIET, RED, headline, save_plot

QUESTIONS = ("subject", "beside", "place")  # is this noun plural?
PLURALS = frozenset(plural for nouns in (SUBJECTS, PLACES) for pairs in nouns.values() for _, plural in pairs)
CASES = {q: (q, False) for q in QUESTIONS} | {"beside, after a layer": ("beside", True)}  # True: after attention
D_MODEL, HEADS, BATCH, STEPS, LEARNING_RATE = 32, 4, 32, 200, 2e-2
POOLINGS: dict[str, Callable[[], Pooling]] = {
    "mean": lambda: mean_pooling,
    "last word": lambda: last_pooling,
    "attention": lambda: AttentionPooling(D_MODEL),
}
ENOUGH = 0.9  # share of right answers from which the picture says that a pooling answers a question
ASKED = ("is the subject plural?", "is the noun beside it plural?", "is the place plural?")  # in the picture


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


def most_frequent(task: Task) -> float:
    """Accuracy of always giving the more frequent answer."""
    share = task.answers.double().mean().item()
    return max(share, 1 - share)


def even_share(task: Task) -> float:
    """Share of the weight on the noun asked for and its determiner if all words of a sentence got the same."""
    return (task.decisive.sum(dim=-1) / task.mask.sum(dim=-1).flatten()).mean().item()


@dataclass
class Run:
    """A trained classifier, its share of right answers on held-out sentences, and where its pooling weights lie.

    looks: share of the weight that lies on the noun asked for and on its determiner, mean over held-out sentences.
    """

    model: AttentionClassifier
    accuracy: float
    looks: float


@torch.no_grad()
def measure(model: AttentionClassifier, task: Task) -> Run:
    logits, weights = model(task.tokens, task.mask)
    right = (logits.argmax(dim=-1) == task.answers).double().mean().item()
    looks = (weights[:, 0, 0] * task.decisive).sum(dim=-1).mean().item()  # (N, 1, 1, T) -> (N, T) -> one number
    return Run(model, right, looks)


def train(pooling: str, case: str, seed: int, steps: int) -> Run:
    """Train a classifier; for a seed, all poolings start with the same numbers and see the same batches."""
    question, with_layer = CASES[case]
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    attention = MultiHeadAttention(D_MODEL, HEADS) if with_layer else None
    model = AttentionClassifier(2, D_MODEL, pooling=POOLINGS[pooling](), attention=attention)
    task, held_out = tasks(question)

    def loss_of_step(_: int) -> Tensor:
        batch = torch.randint(len(task.answers), (BATCH,), generator=generator)
        logits, _ = model(task.tokens[batch], task.mask[batch])
        return F.cross_entropy(logits, task.answers[batch])

    training.fit(model, loss_of_step, steps, matrix_rate=None, rate=LEARNING_RATE)
    return measure(model, held_out)


Runs = dict[tuple[str, str], Run]  # (case, pooling) -> of one seed
RIGHT = "share of held-out sentences answered right"
EVEN, LAYERED = "weight if even", "beside, after a layer"


def lead(n: Numbers, case: str) -> float:
    """By how much attention is above the better of the two others."""
    return n[f"{case}, attention"] - max(n[f"{case}, mean"], n[f"{case}, last word"])


def right(cases: Collection[str], mean: float, last_word: float, attention: float) -> dict[str, float]:
    """For oracles: shares of right answers, the same in each case."""
    shares = {"mean": mean, "last word": last_word, "attention": attention}
    return {f"{case}, {pooling}": share for case in cases for pooling, share in shares.items()}


@measures(
    Claim(
        id="pooling-better",
        text="Pooling by attention beats the mean and the last word",
        source='course notes, "Mini Exercises"',
        kind=EXPERIMENT,
        rule='attention at least 0.10 above both others on each question; for the condition, on "beside"',
        holds=lambda n: min(lead(n, question) for question in QUESTIONS) >= 0.10,
        only_if=lambda n: lead(n, "beside") >= 0.10,
        condition="the same word could be another noun of the sentence, and the place of the one asked for varies: "
        "else the mean does as well, or the last word",
        oracle=right(QUESTIONS, mean=0.75, last_word=0.5, attention=1.0),
        null=right(QUESTIONS, mean=0.75, last_word=0.5, attention=0.75),
        unit=RIGHT,
        control="the same words, batches and steps; attention has 32 weights more",
        shows=(*(f"{question}, {pooling}" for question in QUESTIONS for pooling in POOLINGS), "most frequent*"),
    ),
    Claim(
        id="pooling-looks",
        text="Attention pooling learns to attend to the important words: its weights show which word matters",
        source='course notes, "Mini Exercises"',
        kind=EXPERIMENT,
        rule="at least 0.30 in all four cases (even weights: 0.17); for the condition, in the three without a layer",
        holds=lambda n: min(n[f"{case}, looks"] for case in CASES) >= 0.30,
        only_if=lambda n: min(n[f"{question}, looks"] for question in QUESTIONS) >= 0.30,
        condition="the words themselves are pooled: a layer before it writes the answer at other words, too",
        oracle={f"{case}, looks": 1.0 for case in CASES},
        null={f"{case}, looks": 0.17 for case in CASES},
        unit="share of the weight on the noun asked for and its determiner, mean over held-out sentences",
        control="even weights; right answers with and without the layer",
        headline=True,
        shows=("*, looks", EVEN, "beside, attention", f"{LAYERED}, attention"),
    ),
    Claim(
        id="pooling-layer",
        text="After attention layers it matters little how one pools: one position is enough",
        source="Devlin et al. 2019, section 3, who classify from one position",
        kind=EXPERIMENT,
        rule="after one layer all three poolings answer at least 0.90 right, at most 0.05 apart",
        holds=lambda n: (
            min(n[f"{LAYERED}, {pooling}"] for pooling in POOLINGS) >= 0.90
            and max(n[f"{LAYERED}, {p}"] for p in POOLINGS) - min(n[f"{LAYERED}, {p}"] for p in POOLINGS) <= 0.05
        ),
        oracle=right([LAYERED], mean=1.0, last_word=1.0, attention=1.0),
        null=right([LAYERED], mean=0.75, last_word=0.5, attention=1.0),
        unit=f'{RIGHT}, "beside"',
        control="without the layer attention leads",
        shows=tuple(f"{LAYERED}, {pooling}" for pooling in POOLINGS),
    ),
)
def what_poolings_find(runs: Runs) -> dict[str, float]:
    """Right answers of each pooling in each case, where attention looks, and what blind guesses reach."""
    numbers = {f"{case}, {pooling}": run.accuracy for (case, pooling), run in runs.items()}
    numbers |= {f"{case}, looks": runs[case, "attention"].looks for case in CASES}
    numbers |= {f"most frequent answer, {question}": most_frequent(tasks(question)[1]) for question in QUESTIONS}
    return numbers | {EVEN: even_share(tasks("beside")[1])}


def example_sentence() -> Sentence:
    """The first held-out sentence of ten words with one number for the noun beside, the other for the others."""
    answers = torch.stack([tasks(question)[1].answers for question in QUESTIONS])  # (3, N)
    differs = (answers[0] == answers[2]) & (answers[0] != answers[1])
    return next(s for i, s in enumerate(three_noun_sentences()[1]) if differs[i] and len(s.words) == 10)


def worst(numbers: Numbers) -> str:
    """Of each pooling the accuracy on the question that it answers worst, no layer before it."""
    scores = {p: min(numbers[f"{question}, {p}"] for question in QUESTIONS) for p in reversed(POOLINGS)}
    return ", ".join(f"{pooling} {score:.2f}" for pooling, score in scores.items())


def draw(numbers: list[Numbers], note: str) -> tuple[Figure, str]:
    """How often each pooling is right, a panel for each question, with a sentence as an example."""
    fig, axes = plt.subplots(1, len(QUESTIONS), figsize=(9, 3.7), sharey=True, layout="constrained")
    sentence = example_sentence()
    for ax, question, asked in zip(axes, QUESTIONS, ASKED, strict=True):
        draw_accuracies(ax, numbers, question)
        ax.set_title(f"{asked}\n“{sentence.words[noun_asked_for(sentence, question)]}”")
    axes[0].set_yticks(range(len(POOLINGS)), list(POOLINGS), fontsize=11)
    axes[0].invert_yaxis()
    axes[1].set_xlabel("share of right answers", color=QUIET)
    title = "Without a layer before the pooling, only attention answers all three questions"
    if min(n[f"{question}, attention"] for n in numbers for question in QUESTIONS) < ENOUGH:
        title = "Trained too little: no pooling answers all three questions"
    headline(fig, title, f"for example “{sentence}” · {note}")
    return fig, f"{title}. How often each way of pooling is right on held-out sentences, question by question."


def draw_accuracies(ax: Axes, numbers: list[Numbers], question: str) -> None:
    """A bar for each pooling, red where it fails, the mean over seeds, which are dots; dotted: a blind guess."""
    for row, pooling in enumerate(POOLINGS):
        of_seeds = [n[f"{question}, {pooling}"] for n in numbers]
        color = BLUE if fmean(of_seeds) >= ENOUGH else RED
        ax.barh(row, fmean(of_seeds), 0.6, color=color)
        if len(numbers) > 1:
            ax.plot(of_seeds, [row] * len(of_seeds), ".", color=INK, markersize=4)
        ax.text(1.04, row, f"{fmean(of_seeds):.2f}", color=color, va="center", fontsize=11)
    guess = numbers[0][f"most frequent answer, {question}"]
    ax.plot((guess, guess), (-0.45, len(POOLINGS) - 0.55), ":", color=INK)
    ax.set(xlim=(0, 1.2))
    ax.set_xticks((0, guess, 1), ("0", f"blind guess\n{guess:.2f}", "1"))
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)


@cli.script
def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    steps = training.QUICK_STEPS if options.quick else STEPS
    keys = [(case, pooling) for case in CASES for pooling in POOLINGS]
    runs: list[Runs] = []
    for seed in cli.seeds(options):
        each = tqdm(keys, desc=f"training three poolings, seed {seed}", leave=False, disable=None)
        runs.append({(case, pooling): train(pooling, case, seed, steps) for case, pooling in each})
    numbers = [what_poolings_find(found) for found in runs]
    note = f"trained {steps} steps, seeds: {len(runs)}"
    save_plot(options, "phase2/attention_pooling", *draw(numbers, note))
    findings.record(options, *numbers)
    return f"Right answers on the worst of three questions: {worst(numbers[0])}"


if __name__ == "__main__":
    cli.run(main)
