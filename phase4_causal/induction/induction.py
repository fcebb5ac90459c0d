"""How does a model learn to continue what it has seen once?

    ... red on swam ... red on ?        look for the "on" before, take what followed: "swam"

A key holds its own word, not the one before it. So the first layer must first copy to each place the word before it
(a previous-token head); then a head of the second layer can look for the place whose word before is the present one,
and finds the word to say right there (an induction head; Elhage et al. 2021, Olsson et al. 2022).

Two layers and, as the control, one are trained on random words, so that the repetition is all there is to learn. The
control has half the weights and twice the steps. Then heads are taken out, every subset of a layer, and the first layer
is kept from seeing one of its neighbours (ablation.py). The task and the scores are in induction_scores.py. Heads are
chosen on sequences of their own. Trains two models for each seed, which takes about 20 s:

    python phase4_causal/induction/induction.py
    python phase4_causal/induction/induction.py --seeds 3

Writes induction.png to visualizations/plots/phase4/.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from phase4_causal.causal_attention import CausalSelfAttention
from phase4_causal.induction import ablation
from phase4_causal.induction.ablation import Heads
from phase4_causal.induction.induction_scores import (
    LENGTH,
    PERIODS,
    SYMBOLS,
    after_earlier_occurrence,
    even_score,
    late_sequences,
    looks_back,
    next_word_losses,
    predictable,
    repeated_loss,
    repeated_sequences,
    right,
    scores,
    scores_on,
    unrepeated_sequences,
)
from shared import cli, training
from shared.attention_utils import causal_mask, normalized_entropy
from shared.evidence import findings
from shared.evidence.claims import EXPERIMENT, Claim, Numbers, measures
from shared.toy_language import decode
from shared.toy_model import ToyTransformer, sinusoidal_positions
from shared.training import Recipe
from shared.visualization_utils import BLUE, GREY, PURPLE, QUIET, RED, headline, label_ends, plot_attention, save_plot

HEADS, BATCH, STEPS = 4, 32, 500
RATE, MATRIX_RATE, WARM_UP = 0.005, 0.01, 40
NUM_TEST, EVERY = 100, 10  # sequences that are measured, every so many steps
FALL = (0.75, 0.25)  # of ln SYMBOLS, the loss of a guess among all words: where the fall begins and ends
EXPONENTIAL = math.log(3) / math.log(4 / 3)  # how much longer than the wait this takes when the loss decays evenly
DISTANCES = PERIODS[1] - PERIODS[0] + 1
MATCHES = 0.5  # from this score on we call a head an induction head
LONGER_BLOCKS = (17, 24)
POSITIONAL = 0.90  # share of rows from which on a head is a previous-token head (Voita et al. 2019), as in phase 3
KINDS = ("zero", "mean")  # of ablation
INDUCTION, PREVIOUS, CONTROL = BLUE, PURPLE, GREY
SCORES = ("best score", "best score, nothing repeated", "best score, untrained", "even weights")
ALL_ROWS, FIRST_COPY = "on the word before, share of all rows", "of the first copy, by some head"
BEFORE, OTHERS, BLIND = "hidden: the word before", "hidden: another neighbour, worst", "best score, word before hidden"
AS_TRAINED, LONGER = "as in training", "longer blocks"
LATE, TWICE = "block in the second half", "sequences twice as long, second half"


@dataclass
class Run:
    """A trained model, its test sequences, and what was measured on these at some steps, the first before training."""

    model: ToyTransformer
    tokens: Tensor  # (NUM_TEST, LENGTH)
    steps: list[int]
    loss: list[float]  # nats per word of the repeated part
    induction: Tensor  # (steps, L, H)
    previous: Tensor  # (steps, L, H)
    chosen_by: tuple[Tensor, Tensor]  # both scores (L, H) at the end on other sequences: heads are chosen by them

    def first_below(self, share: float) -> int:
        """The first measured step at which the loss is at most this share of ln SYMBOLS; the last if none is."""
        below = (step for step, loss in zip(self.steps, self.loss, strict=True) if loss <= share * math.log(SYMBOLS))
        return next(below, self.steps[-1])

    @property
    def fall(self) -> tuple[int, int]:
        """The steps at which the fall of the loss begins and ends; the last step if it does not."""
        return self.first_below(FALL[0]), self.first_below(FALL[1])

    @property
    def learned(self) -> bool:
        """Whether the loss came down to the end of the fall."""
        return self.loss[-1] <= FALL[1] * math.log(SYMBOLS)

    @property
    def formed(self) -> int:
        """The step at which the best induction head has come half the way from its first to its last score."""
        track = self.induction[(slice(None), *self.best_induction)]  # (steps, L, H) -> (steps,)
        return self.steps[int((track >= (track[0] + track[-1]) / 2).nonzero()[0])]

    @property
    def best_induction(self) -> tuple[int, int]:
        """Layer and head with the highest induction score."""
        return divmod(int(self.chosen_by[0].argmax()), HEADS)

    @property
    def best_score(self) -> float:
        """The score of that head."""
        return self.induction[(-1, *self.best_induction)].item()

    @property
    def induction_heads(self) -> Heads:
        """The heads of the last layer that score MATCHES or more."""
        return tuple((self.chosen_by[0][-1] >= MATCHES).nonzero().flatten().tolist())

    @property
    def best_previous(self) -> int:
        """The head of the first layer with the highest previous-token score."""
        return int(self.chosen_by[1][0].argmax())


def new_model(num_layers: int, seed: int) -> ToyTransformer:
    """The untrained model of a seed."""
    return training.new_model(
        Recipe("induction", "next word", HEADS, num_layers, STEPS, seed=seed), CausalSelfAttention
    )


def generator(seed: int, what: int) -> torch.Generator:
    """Random numbers of their own for each seed and purpose."""
    return torch.Generator().manual_seed(what * 10**6 + seed)


def train(num_layers: int, seed: int, steps: int = STEPS) -> Run:
    """Train one model on the loss of all places, predictable or not: nobody tells it where the copy begins.

    After the first steps the learning rate stays the same, so that a sudden fall is not the schedule's doing. Models of
    one seed see the same batches.
    """
    model = new_model(num_layers, seed)
    batches = generator(seed, 0)
    tokens, others = (repeated_sequences(NUM_TEST, generator(seed, what)) for what in (1, 2))
    gold = after_earlier_occurrence(tokens[:, :-1])
    asked, measured = gold.any(dim=-1), []

    def loss_of_step(_: int) -> Tensor:
        return next_word_losses(model, repeated_sequences(BATCH, batches))[0].mean()

    def watch(done: int) -> None:
        if done % EVERY == 0:
            losses, layers = next_word_losses(model, tokens)
            measured.append((done, losses[asked].mean().item(), *scores(layers, gold)))

    training.fit(
        model,
        loss_of_step,
        steps,
        matrix_rate=MATRIX_RATE,
        rate=RATE,
        matrix_decay=0.0,
        decay=0.01,
        share=lambda step: min(1.0, (step + 1) / WARM_UP),
        watch=watch,
        progress=f"induction, layers: {num_layers}",
    )
    at, loss, induction, previous = zip(*measured, strict=True)
    tracks = torch.stack(induction), torch.stack(previous)
    return Run(model, tokens, list(at), list(loss), *tracks, scores_on(model, others))


@dataclass
class Outcome:
    """Of one seed: both runs, and for each layer of the larger how far its loss rises without each subset of heads."""

    seed: int
    two: Run
    one: Run
    rises: list[dict[str, dict[Heads, float]]]  # layer -> kind of ablation -> heads -> nats


def outcome(seed: int, steps: int) -> Outcome:
    """Train both models of a seed, and take out heads of the larger."""
    two, one = train(2, seed, steps), train(1, seed, 2 * steps)
    return Outcome(seed, two, one, [ablation.rises(two.model, two.tokens, layer) for layer in (0, 1)])


@contextmanager
def longer_positions(model: ToyTransformer) -> Iterator[None]:
    """Within the block the model takes sequences of up to 2 * LENGTH words."""
    kept = model.positions
    model.positions = sinusoidal_positions(2 * LENGTH, kept.size(1)).to(kept)
    try:
        yield
    finally:
        model.positions = kept


def guesses(run: Run, seed: int) -> dict[str, float]:
    """Share of right guesses on sequences that differ from those of training in what the names say."""
    count, model = len(run.tokens), run.model
    found = {
        AS_TRAINED: right(model, repeated_sequences(count, generator(seed, 3))),
        LONGER: right(model, repeated_sequences(count, generator(seed, 4), LONGER_BLOCKS)),
        LATE: right(model, late_sequences(count, generator(seed, 5))),
    }
    with longer_positions(model):
        twice = repeated_sequences(count, generator(seed, 6), length=2 * LENGTH)
        return found | {TWICE: right(model, twice, first=LENGTH)}


@torch.no_grad()
def first_layer(run: Run) -> dict[str, float]:
    """How much the first layer looks at the word before, and what is lost when it may not see one of its neighbours."""
    _, weights = run.model(run.tokens[:, :-1])
    rows = torch.ones_like(run.tokens[:, :-1], dtype=torch.bool)
    rows[:, 0] = False  # nothing stands before the first word
    first_copy = rows & ~predictable(run.tokens[:, :-1])
    alone = looks_back(weights[0][:, [run.best_previous]], rows)
    full, lost, blind = repeated_loss(run.model, run.tokens), {}, 0.0
    for offset in range(-5, 1):
        with ablation.hidden(run.model, 0, offset):
            lost[offset] = (repeated_loss(run.model, run.tokens) - full).item()
            if offset == -1:
                blind = scores_on(run.model, run.tokens)[0][run.best_induction].item()
    before = lost.pop(-1)
    shares = {ALL_ROWS: alone, FIRST_COPY: looks_back(weights[0], first_copy)}
    return shares | {BEFORE: before, OTHERS: max(lost.values()), BLIND: blind}


def taken_out(found: Outcome) -> dict[str, int | float | list[float]]:
    """What the heads are worth alone and together; in each layer the least and the most for 1, 2, ... of them."""
    heads, last = found.two.induction_heads, found.rises[1]
    numbers: dict[str, int | float | list[float]] = {"induction heads": len(heads)}
    for kind in KINDS:
        alone = [last[kind][head,] for head in heads]
        numbers |= {
            f"{kind}, one of them, worst": max(alone, default=0.0),
            f"{kind}, each alone, summed": sum(alone),
            f"{kind}, all of them": last[kind].get(heads, 0.0),
        }
        for layer, subsets in enumerate(found.rises):
            by_size = [[rise for s, rise in subsets[kind].items() if len(s) == n] for n in range(1, HEADS + 1)]
            numbers[f"{kind}, layer {layer}, least"] = [min(rises) for rises in by_size]
            numbers[f"{kind}, layer {layer}, most"] = [max(rises) for rises in by_size]
    return numbers


def learned(n: Numbers) -> bool:
    return n["two layers"] <= FALL[1] * math.log(SYMBOLS)


def stand_in(n: Numbers, kind: str) -> bool:
    """Whether all heads together matter, and by far more than the sum of each alone."""
    return n[f"{kind}, all of them"] >= max(2.0, 2 * n[f"{kind}, each alone, summed"])


def worth(alone: float, together: float) -> dict[str, float]:
    """Made-up numbers of an ablation, the same for both kinds."""
    summed = {f"{kind}, each alone, summed": alone for kind in KINDS}
    return summed | {f"{kind}, all of them": together for kind in KINDS}


def needs_the_word_before(n: Numbers) -> bool:
    return n[BEFORE] >= max(1.0, 3 * n[OTHERS]) and n["best score"] - n[BLIND] >= 0.5


FELL = {"two layers": 0.0, "fall begins": 230, "fall ends": 290}


@measures(
    Claim(
        id="induction-phase-change",
        text="A model of two layers waits, and then learns to continue a repetition in one sudden fall of the loss",
        kind=EXPERIMENT,
        headline=True,
        source="Olsson et al. 2022, argument 1",
        rule="the loss comes to 1/4 of that of a guess, and the fall from 3/4 to there takes no longer than the wait",
        holds=lambda n: learned(n) and n["fall ends"] <= 2 * n["fall begins"],
        oracle=FELL,
        null={"two layers": 0.0, "fall begins": 100, "fall ends": 100 * (1 + EXPONENTIAL)},
        unit=f"fall: steps until 3/4 and until 1/4 of ln {SYMBOLS}, the last step if never; loss in nats",
        control=f"exponential decay takes {EXPONENTIAL:.1f} times the wait; the learning rate stays the same",
        shows=("fall *", "two layers"),
    ),
    Claim(
        id="induction-together",
        text="Induction heads form while the loss falls",
        kind=EXPERIMENT,
        source="Olsson et al. 2022, argument 1",
        rule="half way during the fall, or before or after it by at most a fifth of the step at which it ends",
        holds=lambda n: (
            learned(n) and n["fall begins"] - 0.2 * n["fall ends"] <= n["best head half way up"] <= 1.2 * n["fall ends"]
        ),
        oracle=FELL | {"best head half way up": 260},
        null=FELL | {"best head half way up": 0},
        unit="step",
        shows=("two layers", "fall *", "best head half way up"),
    ),
    Claim(
        id="induction-one-layer",
        text="Induction takes two layers: one has no induction head, and does not learn to continue the repetition",
        kind=EXPERIMENT,
        headline=True,
        source="Elhage et al. 2021, on models of attention alone; here with feed-forward networks",
        rule="two layers at most 0.3 nats; one layer, after twice the steps, at least 1.0, and no head's score more "
        "than 0.1 above even weights",
        holds=lambda n: (
            n["two layers"] <= 0.3 and n["one layer"] >= 1.0 and n["one layer, best score"] <= n["even weights"] + 0.1
        ),
        oracle={
            "two layers": 0.0,
            "one layer": math.log(DISTANCES),
            "one layer, best score": 0.06,
            "even weights": 0.06,
        },
        null={"two layers": 0.0, "one layer": 0.0, "one layer, best score": 1.0, "even weights": 0.06},
        unit="loss on the repeated part, nats; induction score",
        control=f"any of {SYMBOLS} words: {math.log(SYMBOLS):.2f} nats; any of {DISTANCES} distances: "
        f"{math.log(DISTANCES):.2f}; one layer has half the weights",
        shows=("two layers", "one layer*", "even weights"),
    ),
    Claim(
        id="induction-score-calibrated",
        text="A high induction score comes from looking up, not from a habit of place",
        kind=EXPERIMENT,
        source="score of Olsson et al. 2022",
        rule="trained at least 0.8; untrained, or on sequences where nothing repeats, at most 0.1 above even weights",
        holds=lambda n: n[SCORES[0]] >= 0.8 and max(n[SCORES[1]], n[SCORES[2]]) <= n["even weights"] + 0.1,
        oracle=dict(zip(SCORES, (1.0, 0.0, 0.06, 0.06), strict=True)),
        null=dict(zip(SCORES, (0.9, 0.9, 0.06, 0.06), strict=True)),
        unit="induction score of the best head, which in the controls is the highest of all; 1 is perfect",
        shows=SCORES,
    ),
    Claim(
        id="induction-head-ablation",
        text="Induction heads stand in for each other: all together are worth far more than each alone, added up",
        kind=EXPERIMENT,
        headline=True,
        source="Olsson et al. 2022, argument 3 (all of them); Wang et al. 2022 (backup heads)",
        rule="by zero and by mean ablation all together cost 2 nats or more, and twice the sum of each alone or more",
        holds=lambda n: all(stand_in(n, kind) for kind in KINDS),
        oracle=worth(0.1, 5.0),
        null=worth(5.0, 5.0),
        unit=f"rise of the loss on the repeated part, nats; induction heads score {MATCHES} or more; least and most: "
        "of all subsets of 1, 2, 3 and 4 heads of a layer",
        shows=("induction heads", "zero, *", "mean, *"),
    ),
    Claim(
        id="induction-previous-token",
        text="An induction head builds on a previous-token head in the layer before",
        kind=EXPERIMENT,
        source="Elhage et al. 2021; Olsson et al. 2022",
        rule=f"some head has its largest weight on the word before in {POSITIONAL} of all rows; a first layer that may "
        "not see that word costs 1 nat or more and 3 times what any other neighbour costs, and the score falls by 0.5",
        holds=lambda n: n[ALL_ROWS] >= POSITIONAL and needs_the_word_before(n),
        only_if=lambda n: n[FIRST_COPY] >= POSITIONAL and needs_the_word_before(n),
        condition="heads may share the work, and do it only in the first copy, where what is looked up stands",
        oracle={ALL_ROWS: 1.0, FIRST_COPY: 1.0, BEFORE: 8.0, OTHERS: 0.0, BLIND: 0.0, "best score": 1.0},
        null={ALL_ROWS: 0.2, FIRST_COPY: 0.2, BEFORE: 0.0, OTHERS: 0.0, BLIND: 1.0, "best score": 1.0},
        unit="share of rows by largest weight, of the best head of the first layer; nats; induction score",
        control="hidden in the same way: the word itself, and those 2 to 5 places before",
        shows=(ALL_ROWS, FIRST_COPY, BEFORE, OTHERS, BLIND, "best score"),
    ),
    Claim(
        id="induction-carries-over",
        text="An induction head works on repetitions that were never in training",
        kind=EXPERIMENT,
        source="Elhage et al. 2021; Olsson et al. 2022, argument 4",
        rule="at least 0.9 on longer blocks and on blocks in the second half; or else on longer blocks",
        holds=lambda n: min(n[LONGER], n[LATE]) >= 0.9,
        only_if=lambda n: n[LONGER] >= 0.9,
        condition="the first copy stands where it stood in training, at the beginning; it may come back after any time",
        oracle={LONGER: 1.0, LATE: 1.0},
        null={LONGER: 1 / SYMBOLS, LATE: 1 / SYMBOLS},
        unit="share right where the next word is certain; longer blocks: {} to {} words".format(*LONGER_BLOCKS),
        control=f"all sequences are new; by chance {1 / SYMBOLS:.3f}",
        shows=(AS_TRAINED, LONGER, LATE, TWICE),
    ),
)
@torch.no_grad()
def measure(found: Outcome) -> dict[str, int | float | list[float]]:
    """All questions to the models of one seed."""
    two, one = found.two, found.one
    gold = after_earlier_occurrence(two.tokens[:, :-1])  # the same places, now with nothing repeated
    control = unrepeated_sequences(len(two.tokens), generator(found.seed, 7))
    return {
        "two layers": two.loss[-1],
        "one layer": one.loss[-1],
        "one layer, same steps": one.loss[one.steps.index(two.steps[-1])],
        "one layer, best score": one.best_score,
        "fall begins": two.fall[0],
        "fall ends": two.fall[1],
        "best head half way up": two.formed,
        "best score": two.best_score,
        "best score, nothing repeated": scores_on(two.model, control, gold)[0].max().item(),
        "best score, untrained": two.induction[0].max().item(),
        "even weights": even_score(gold),
        **taken_out(found),
        **first_layer(two),
        **guesses(two, found.seed),
    }


def shade_fall(ax: Axes, run: Run) -> None:
    """The steps during which the loss falls, in the same shade in every panel."""
    if run.learned:
        ax.axvspan(*run.fall, color=INDUCTION, alpha=0.15, linewidth=0)


def draw_losses(ax: Axes, outcomes: list[Outcome]) -> None:
    two, one = outcomes[0].two, outcomes[0].one
    for i, found in enumerate(outcomes):
        for run, color in ((found.two, INDUCTION), (found.one, CONTROL)):
            ax.plot(run.steps, run.loss, color=color, linewidth=2, alpha=0.35 if i else 1)
    end = one.steps[-1]
    for count, what, side in ((SYMBOLS, "words", "bottom"), (DISTANCES, "places", "top")):
        ax.axhline(math.log(count), color=QUIET, linewidth=0.8, linestyle=":")
        style = {"ha": "right", "va": side, "fontsize": 9, "color": QUIET}
        ax.text(end, math.log(count) + (0.05 if side == "bottom" else -0.08), f"a guess among {count} {what}", **style)
    ax.text(two.steps[-1], two.loss[-1] + 0.1, " two layers", color=INDUCTION, va="bottom")
    middle = len(one.steps) // 2
    ax.text(one.steps[middle], one.loss[middle] + 0.1, " one layer", color=CONTROL, va="bottom")
    shade_fall(ax, two)
    ax.set(xlabel="step", ylabel="loss on the repeated part, nats", ylim=(0, 6.4), xlim=(0, end))
    ax.set_title("1. the loss waits, and falls at once" if two.learned else "1. the loss")


def draw_scores(ax: Axes, two: Run) -> None:
    end = two.steps[-1]
    for head in range(HEADS):
        ax.plot(two.steps, two.induction[:, 1, head], color=INDUCTION, linewidth=1.6)
        ax.plot(two.steps, two.previous[:, 0, head], color=PREVIOUS, linestyle="--", linewidth=1.6)
    shade_fall(ax, two)
    ax.set(xlabel="step", ylabel="weight of each head there", ylim=(0, 1), yticks=(0, 0.5, 1), xlim=(0, end))
    ax.set_title("2. heads form in this fall" if two.learned else "2. the heads")
    ends = {
        "layer 1:\nafter the\nsame word": (end, two.induction[-1, 1].median().item(), INDUCTION),
        "layer 0:\nthe word\nbefore": (end, two.previous[-1, 0].median().item(), PREVIOUS),
    }
    label_ends(ax, ends)


@torch.no_grad()
def draw_pattern(ax: Axes, run: Run, seed: int) -> None:
    """The best induction head on a block of 8 words said twice; the places it should look at are framed."""
    tokens = repeated_sequences(1, torch.Generator().manual_seed(seed), (8, 8), length=16)
    layer, head = run.best_induction
    weights = run.model(tokens)[1][layer][0, head]  # (1, H, T, T) -> (T, T)
    mask = causal_mask(tokens.size(1))
    plot_attention(weights, decode(tokens[0].tolist()), mask=mask, ax=ax, annotate=False, labels=False)
    ax.tick_params(labelsize=8)
    ax.set(xlabel="key (attended to)", ylabel="query (attending)")
    for row, column in after_earlier_occurrence(tokens)[0].nonzero().tolist():
        ax.add_patch(Rectangle((column, row), 1, 1, fill=False, edgecolor=RED, linewidth=1.6))
    ax.set_title("3. framed: after the same word", pad=8)


def draw_removal(ax: Axes, found: Outcome) -> None:
    """What each head of the last layer costs alone, and the induction heads together, by zero ablation."""
    together, rises = found.two.induction_heads, found.rises[1]["zero"]
    alone = [rises[head,] for head in range(HEADS)]
    colors = [INDUCTION if head in together else CONTROL for head in range(HEADS)]
    rise_of_all, places = rises.get(together, 0.0), [*range(HEADS), HEADS + 0.4]
    names = [*(f"head {head}" for head in range(HEADS)), f"all {len(together)}\ninduction\nheads"]
    ax.barh(places, [*alone, rise_of_all], color=[*colors, INDUCTION], tick_label=names)
    for place, rise in zip(places, (*alone, rise_of_all), strict=True):
        ax.text(max(rise, 0), place, f" {rise:+.1f}", va="center")
    ax.invert_yaxis()
    ax.tick_params(axis="y", length=0)
    ax.set(xlabel="rise of the loss, nats", xlim=(min(0, *alone), 1.2 * max(*alone, rise_of_all, 0.1)))
    ax.set_title("4. taken out of layer 1: alone, and all")


@torch.no_grad()
def draw(outcomes: list[Outcome]) -> tuple[Figure, str]:
    """Losses, scores while training, the pattern of the best induction head, what each head is worth."""
    first, two, one = outcomes[0], outcomes[0].two, outcomes[0].one
    fig, ((losses, curves), (pattern, removal)) = plt.subplots(2, 2, figsize=(8.8, 8.2), layout="constrained")
    draw_losses(losses, outcomes)
    draw_pattern(pattern, two, first.seed)
    draw_removal(removal, first)
    draw_scores(curves, two)
    title = "After so few steps neither model has learned to look up what came next"
    if two.learned and not one.learned:
        title = "Two layers learn to look up what came next; one layer does not, in twice the steps"
    _, layers = two.model(two.tokens[:, :-1])
    entropy = [normalized_entropy(w, causal_mask(w.size(-1))).nanmean().item() for w in layers]
    seeds = ", ".join(str(found.seed) for found in outcomes)
    steps = f"trained {two.steps[-1]} and {one.steps[-1]} steps, seed {seeds}"
    headline(fig, title, f"{steps} · normalised entropy of layers 0 and 1: {entropy[0]:.2f}, {entropy[1]:.2f}", 12.5)
    return fig, f"{title}. Loss by step, scores of the heads by step, pattern of the best head, loss without each head."


@cli.script
def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    steps = training.QUICK_STEPS if options.quick else STEPS
    outcomes = [outcome(seed, steps) for seed in cli.seeds(options)]
    save_plot(options, "phase4/induction", *draw(outcomes))
    found = [measure(each) for each in outcomes]
    findings.record(options, *found)
    return (
        f"Loss: {found[0]['two layers']:.2f} with two layers, {found[0]['one layer']:.2f} with one and twice the steps"
    )


if __name__ == "__main__":
    cli.run(main)
