"""What does a model learn that is trained without the causal mask?

The task is the next word at every position at once. Without a mask the next word stands in the input, one place to the
right, and the model learns to copy it: the loss falls to almost 0 and nothing was learnt that helps to write. It shows
when the model must do what it is for, read only the past. So one model is trained with and without, and tested thrice:

    full, with the mask       the whole sentence goes in, later words hidden in every layer
    full, without             the whole sentence goes in, nothing hidden
    word by word              only the words so far go in, nothing hidden; the last position answers, as when writing

Two lines frame every loss. The floor is the loss of the grammar itself on the same sentences: by the chain rule the
next-word losses of a sentence add up to -ln P(sentence), which shared/grammar/entropy.py computes. No model of the
language is better on average. The ceiling is a uniform guess, ln V: a loss above it is worse than guessing.

    python phase4_causal/masking/breaking_causality.py

Writes next_token.png and break_causality.png to visualizations/plots/phase4/.
"""

import math

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from phase2_multi_head.multi_head_attention import MultiHeadAttention
from shared import cli, training
from shared.evidence import findings
from shared.evidence.claims import EXPERIMENT, Claim, measures
from shared.grammar.entropy import sentence_log_probability
from shared.toy_language import PAD_ID, TOY_SENTENCE, VOCABULARY, Sentence
from shared.toy_model import ToyTransformer
from shared.training import History, Recipe, Trained
from shared.visualization_utils import BLUE, GREY, ORANGE, QUIET, headline, save_plot

STEPS, SENTENCE_STEPS, BATCH = 200, 40, 32
NUM_SENTENCES, QUICK_SENTENCES = 300, 40
WITH, WITHOUT = "with the mask", "without"
OBJECTIVES = {WITH: "next word", WITHOUT: "next word, without a mask"}
LAYERS = {1: "one layer", 2: "two layers"}
MODES = [(mode, layers) for mode in OBJECTIVES for layers in LAYERS]
MASKED, OPEN, WORD_BY_WORD = TESTS = ("full, with the mask", "full, without", "word by word")
TRAINING = "in training"  # the loss on sentences of the training, tested as it was trained
UNIFORM = math.log(len(VOCABULARY))  # loss of a guess that takes all words for equally likely
GRAMMAR, BIGRAM = "the grammar", "a bigram model"


def train(mode: str, num_layers: int, sentences: list[Sentence], steps: int, seed: int) -> Trained:
    """Train one model on next words. The two modes start from the same weights and see the same batches."""
    recipe = Recipe("breaking_causality", OBJECTIVES[mode], 4, num_layers, steps, batch_size=BATCH, seed=seed)
    model = training.new_model(recipe, MultiHeadAttention)
    generator = torch.Generator().manual_seed(seed)
    tokens, lengths = training.to_batch(sentences, recipe.objective)

    def loss_of_step(_: int) -> Tensor:
        batch = torch.randint(len(tokens), (BATCH,), generator=generator)
        own = tokens[batch, : int(lengths[batch].max())], lengths[batch]
        return training.next_word_loss(model, *own, objective=recipe.objective)

    losses = training.fit(model, loss_of_step, steps, progress=f"training {mode}")
    return Trained(model, recipe, History(losses))


@torch.no_grad()
def full_loss(model: ToyTransformer, sentences: list[Sentence], mode: str) -> float:
    """Next-word loss in nats per word when whole sentences go in, with the mask or without."""
    objective = OBJECTIVES[mode]
    return training.next_word_loss(model, *training.to_batch(sentences, objective), objective=objective).item()


@torch.no_grad()
def past_loss(model: ToyTransformer, sentences: list[Sentence]) -> float:
    """Next-word loss in nats per word when only the words so far go in, one prefix after the other."""
    tokens, _ = training.to_batch(sentences, "next word")
    total, count = 0.0, 0
    for length in range(1, tokens.size(1)):
        rows = tokens[tokens[:, length] != PAD_ID]  # the sentences that have a next word here
        logits, _ = model(rows[:, :length])
        total += F.cross_entropy(logits[:, -1], rows[:, length], reduction="sum").item()
        count += len(rows)
    return total / count


def floor(sentences: list[Sentence]) -> float:
    """What the grammar itself loses per word on these sentences, <end> included: -ln P(sentence) over the words."""
    total = -sum(sentence_log_probability(sentence.words) for sentence in sentences)
    return total / sum(len(sentence.words) + 1 for sentence in sentences)


def bigram_loss(sentences: list[Sentence], held_out: list[Sentence]) -> float:
    """What one loses per word who knows how often each word of the sentences is followed by each other one."""
    counts = torch.full((len(VOCABULARY), len(VOCABULARY)), 0.01)  # a little for pairs that were never seen
    (tokens, _), (tested, _) = (training.to_batch(part, "next word") for part in (sentences, held_out))
    pairs = tokens[:, :-1].flatten(), tokens[:, 1:].flatten()  # (N, T) -> (N * (T - 1),) each
    counts.index_put_(pairs, torch.ones(len(pairs[0])), accumulate=True)
    counts[:, PAD_ID] = 0.0  # padding is no word
    chances = (counts / counts.sum(dim=-1, keepdim=True)).log()
    return F.nll_loss(chances[tested[:, :-1]].mT, tested[:, 1:], ignore_index=PAD_ID).item()


def losses(trained: Trained, sentences: list[Sentence]) -> dict[str, float]:
    """The three tests of one trained model -> test -> nats per word."""
    model = trained.model
    values = (full_loss(model, sentences, WITH), full_loss(model, sentences, WITHOUT), past_loss(model, sentences))
    return dict(zip(TESTS, values, strict=True))


Runs = dict[tuple[str, int], Trained]  # (how it was trained, number of layers) -> the model


def name(mode: str, layers: int, test: str) -> str:
    return f"trained {mode}, {LAYERS[layers]}: {test}"


def of(n: dict[str, float], mode: str, *tests: str) -> list[float]:
    """All losses of a mode in these tests, with one layer and with two."""
    return [n[name(mode, layers, test)] for test in tests for layers in LAYERS]


def rises(n: dict[str, float], test: str) -> list[float]:
    """By how much the models that were trained with the mask lose more in a test than with it, by layers."""
    return [worse - base for worse, base in zip(of(n, WITH, test), of(n, WITH, MASKED), strict=True)]


def made_up(honest: tuple[float, ...], cheat: tuple[float, ...] = (9.0, 0.0, 9.0)) -> dict[str, float]:
    """The numbers as they would be if the three tests came out so, for a model trained with the mask and without."""
    tested = {WITH: (*honest, honest[0]), WITHOUT: (*cheat, cheat[1])}
    numbers = {name(m, k, test): x for m, k in MODES for test, x in zip((*TESTS, TRAINING), tested[m], strict=True)}
    return numbers | {GRAMMAR: 1.95, BIGRAM: 2.6}


@measures(
    Claim(
        id="C101",
        text="Trained without a causal mask a next-word model cheats: it copies the next word and learns nothing that "
        "helps to write; with the mask it must learn the language",
        kind=EXPERIMENT,
        source="course notes, experiments with the causal mask",
        rule="in training below 0.05 without the mask and above 1 with it; from the past alone the model without is "
        "worse than a uniform guess, with one layer and with two",
        holds=lambda n: (
            max(of(n, WITHOUT, TRAINING)) < 0.05
            and min(of(n, WITH, TRAINING)) > 1
            and min(of(n, WITHOUT, WORD_BY_WORD, MASKED)) > UNIFORM
        ),
        oracle=made_up((2.0, 3.0, 2.0)),
        null=made_up((2.0, 2.0, 2.0), (2.0, 2.0, 2.0)),
        unit="loss, nats per word; a uniform guess loses 4.6",
        control="what the grammar itself loses; one fixed sentence, which both modes learn by heart: the contrast "
        "needs words that are uncertain",
        headline=True,
        shows=("trained without*", "*in training", "one sentence*", GRAMMAR),
    ),
    Claim(
        id="next-token-floor",
        text="Trained with the mask the model learns the language: it predicts nearly as well as the grammar",
        kind=EXPERIMENT,
        source="the chain rule; Shannon 1948",
        rule="above the grammar's own held-out loss it has less than a quarter of what a bigram model has, with one "
        "layer and with two",
        holds=lambda n: max(of(n, WITH, MASKED)) - n[GRAMMAR] < (n[BIGRAM] - n[GRAMMAR]) / 4,
        oracle=made_up((1.95, 3.0, 1.95)),
        null=made_up((2.6, 3.0, 2.6)),
        unit="held-out loss, nats per word",
        control="a bigram model, which counts pairs of neighbouring words in the same training sentences",
        headline=True,
        shows=("trained with the mask*: full, with the mask", GRAMMAR, BIGRAM),
    ),
    Claim(
        id="C102",
        text="Trained with the mask and tested without, the model is confused",
        kind=EXPERIMENT,
        source="course notes, experiments with the causal mask",
        rule="its held-out loss rises by more than 0.1 when whole sentences go in and also word by word, with one "
        "layer and with two",
        holds=lambda n: min(rises(n, OPEN) + rises(n, WORD_BY_WORD)) > 0.1,
        only_if=lambda n: min(rises(n, OPEN)) > 0.1 and max(map(abs, rises(n, WORD_BY_WORD))) < 0.1,
        condition="whole sentences go in, so that later words are there to be seen; when it writes word by word there "
        "are none, and leaving the mask out costs less than 0.1",
        oracle=made_up((2.0, 3.0, 3.0)),
        null=made_up((2.0, 2.0, 2.0)),
        unit="held-out loss, nats per word",
        control="the same models with the mask",
        headline=True,
        shows=("trained with the mask*: full*", "trained with the mask*: word by word"),
    ),
)
def break_causality(
    runs: Runs, sentences: list[Sentence], held_out: list[Sentence], *, count: int, single_steps: int
) -> dict[str, float]:
    """Losses of every model of one seed in every test, on `count` sentences of the training and as many others."""
    seen, held_out = sentences[:count], held_out[:count]
    found: dict[str, float] = {}
    for (mode, layers), trained in runs.items():
        tested = losses(trained, held_out) | {TRAINING: full_loss(trained.model, seen, mode)}
        found |= {name(mode, layers, test): loss for test, loss in tested.items()}
    only = [Sentence(tuple(TOY_SENTENCE.split()), {})]
    for mode in OBJECTIVES:  # the same model of one layer when all of training is one sentence
        single = train(mode, 1, only, single_steps, runs[mode, 1].recipe.seed)
        found[f"one sentence, {mode}"] = full_loss(single.model, only, mode)
    return found | {GRAMMAR: floor(held_out), BIGRAM: bigram_loss(sentences, held_out)}


COLORS = {WITH: BLUE, WITHOUT: ORANGE}  # of a model, by how it was trained


def frame(ax: Axes, least: float, right: float | None = None) -> None:
    """The two lines between which an honest loss lies; their names end at x = right."""
    for level, text, side in ((least, "the grammar itself", "top"), (UNIFORM, "a guess among all words", "bottom")):
        ax.axhline(level, color=GREY, linestyle="--", linewidth=1.2, zorder=0)
        if right:
            style = {"textcoords": "offset points", "ha": "right", "va": side, "fontsize": 10, "color": QUIET}
            ax.annotate(text, (right, level), (0, 2 if side == "bottom" else -3), **style)


def finding(found: dict, title: str) -> str:
    """The title of a picture, if the model without the mask learned to copy, which takes more than a few steps."""
    copies = found[name(WITHOUT, 2, OPEN)] < found[GRAMMAR] and found[name(WITHOUT, 2, WORD_BY_WORD)] > UNIFORM
    return title if copies else "After so few steps neither model has learned its task"


def draw_next_token(runs: Runs, found: dict, note: str) -> tuple[Figure, str]:
    """Training loss of both modes, and beside it what they can do with the past alone; two layers."""
    fig, (curves, past) = plt.subplots(1, 2, figsize=(9, 4.6), sharey=True, width_ratios=(1.5, 1), layout="constrained")
    alone = [found[name(WITH, 2, MASKED)], found[name(WITHOUT, 2, WORD_BY_WORD)]]  # a mask leaves the past alone
    for place, (mode, color) in enumerate(COLORS.items()):
        curve = torch.tensor(runs[mode, 2].history.loss)
        smooth = curve.unfold(0, min(10, len(curve)), 1).mean(dim=-1)  # (steps,) -> (steps - 9,)
        steps = range(len(curve) - len(smooth) + 1, len(curve) + 1)
        curves.plot(steps, smooth, color=color, linewidth=2)
        style = {"textcoords": "offset points", "ha": "right", "va": "bottom", "fontsize": 10, "color": color}
        curves.annotate(f"trained {mode}", (len(curve), smooth[-1]), (0, 4), **style)
        past.bar(place, alone[place], width=0.6, color=color)
        past.text(place, alone[place] + 0.15, f"{alone[place]:.1f}", ha="center", va="bottom", fontsize=11)
    last = len(runs[WITH, 2].history.loss)
    top = 1.1 * max(UNIFORM, curves.dataLim.y1, past.dataLim.y1)
    curves.set(xlabel="step", ylabel="loss, nats per word", ylim=(0, top), xlim=(0, last))
    curves.set_title("in training: all words at once")
    past.set_xticks([0, 1], [f"trained\n{mode}" for mode in OBJECTIVES])
    past.set_title("in writing: only the past")
    frame(curves, found[GRAMMAR], last)
    frame(past, found[GRAMMAR])
    title = finding(found, "Without the mask a model looks best in training, and writes worse than by guessing")
    headline(fig, title, note, 12.5)
    return fig, f"{title}. The loss in training of two models, and their loss when only the past is there."


def draw_breaking(found: dict, note: str) -> tuple[Figure, str]:
    """Loss of the model of two layers that was trained with the mask, in every test."""
    fig, ax = plt.subplots(figsize=(8.2, 4.4), layout="constrained")
    losses = [found[name(WITH, 2, test)] for test in TESTS]
    groups = ("with the mask", "without: it sees\nlater words", "without, but word by\nword: none is later")
    ax.bar_label(ax.bar(groups, losses, width=0.5, color=BLUE), fmt="%.1f", padding=3, fontsize=13)
    frame(ax, found[GRAMMAR], 3.0)
    ax.set(ylabel="loss, nats per word (held-out)", xlim=(-0.5, 3.0), ylim=(0, 1.1 * max(UNIFORM, *losses)))
    ax.tick_params(axis="x", length=0, labelsize=11)
    title = "Without its mask a trained model stumbles over later words, and writes as before"
    headline(fig, finding(found, title), note, 12.5)
    return fig, f"{finding(found, title)}. The loss of one model in three tests."


@cli.script
def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    steps = training.QUICK_STEPS if options.quick else STEPS
    train_sentences, held_out = (part[: STEPS * BATCH] for part in training.corpus())  # more would not be seen
    count = QUICK_SENTENCES if options.quick else NUM_SENTENCES
    single_steps, every, shown = min(steps, SENTENCE_STEPS), [], None
    for seed in cli.seeds(options):
        runs = {m: train(*m, train_sentences, steps, seed) for m in MODES}
        every.append(break_causality(runs, train_sentences, held_out, count=count, single_steps=single_steps))
        shown = shown or runs
    found = every[0]
    label, tested = shown[WITH, 2].label, f"{count} held-out sentences"
    note = f"two layers, {label} each, same first weights and batches · {tested}"
    save_plot(options, "phase4/next_token", *draw_next_token(shown, found, note))
    note = f"one model of two layers, {label} with the mask · {tested}"
    save_plot(options, "phase4/break_causality", *draw_breaking(found, note))
    print(f"\nloss in nats per word (grammar {found[GRAMMAR]:.3f}, uniform guess {UNIFORM:.3f})")
    print(f"   {'trained':27}" + "".join(f"{test:>22}" for test in (*TESTS, TRAINING)))
    for mode, layers in MODES:
        values = "".join(f"{found[name(mode, layers, test)]:22.4f}" for test in (*TESTS, TRAINING))
        print(f"   {f'{mode}, {LAYERS[layers]}':27}{values}")
    print("   on one sentence: " + ", ".join(f"{mode} {found[f'one sentence, {mode}']:.4f}" for mode in OBJECTIVES))
    findings.record(options, *every, show_numbers=False)
    cheat, blind = (found[name(WITHOUT, 2, test)] for test in (TRAINING, WORD_BY_WORD))
    return f"To copy: loss {cheat:.1g} in training, {blind:.1f} from the past alone; grammar {found[GRAMMAR]:.1f}"


if __name__ == "__main__":
    cli.run(main)
