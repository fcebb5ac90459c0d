"""How does a model learn to continue what it has seen once?

    ... red on swam ... red on ?        look for the "on" before, take what followed: "swam"

A key holds its own word, not the one before it. So a head of the first layer must first copy to each place the word
before it (previous-token head); then a head of the second layer can look for the place whose word before is the present
one, and finds the word to say right there (induction head; Elhage et al. 2021, Olsson et al. 2022).

Two layers and, as the control, one are trained on random words, so that there is nothing to know but the repetition.
Then heads are removed: their output is multiplied by 0 before W_O (phase 2, head_importance.py). The task and the
scores are in induction_scores.py. Trains two models for each seed, which takes about 20 s:

    python phase4_causal/induction/induction.py
    python phase4_causal/induction/induction.py --seeds 3

Writes induction.png to visualizations/plots/phase4/.
"""

import math
from dataclasses import dataclass
from functools import partial

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from torch import Tensor

from phase2_multi_head.pruning.head_importance import Head, Measured, gated, loss_without, removal_importance
from phase4_causal.causal_attention import CausalSelfAttention
from phase4_causal.induction.induction_scores import (
    LENGTH,
    PERIODS,
    SYMBOLS,
    after_earlier_occurrence,
    even_score,
    next_word_losses,
    repeated_loss,
    repeated_sequences,
    right,
    scores,
    unrepeated_sequences,
)
from shared import cli, training
from shared.attention_utils import causal_mask, normalized_entropy
from shared.evidence import findings
from shared.evidence.claims import EXPERIMENT, Claim, Numbers, measures
from shared.toy_language import decode
from shared.toy_model import ToyTransformer, sinusoidal_positions
from shared.training import Recipe
from shared.visualization_utils import HEAD_COLORS, INK, QUIET, headline, plot_attention, save_plot

HEADS, BATCH, STEPS = 4, 32, 500
RATE, MATRIX_RATE, WARM_UP = 0.005, 0.01, 40
NUM_TEST, EVERY = 100, 10  # sequences that are measured, every so many steps
FALL = (0.75, 0.25)  # of ln SYMBOLS, the loss of a guess among all words: where the fall begins and ends
EXPONENTIAL = math.log(3) / math.log(4 / 3)  # how much longer than the wait this takes when the loss decays evenly
MATCHES = 0.5  # from this score on we call a head an induction head
LONGER_BLOCKS = (17, 24)
INDUCTION, PREVIOUS, CONTROL = HEAD_COLORS[0], HEAD_COLORS[1], HEAD_COLORS[3]
SCORES = ("best score", "best score, nothing repeated", "best score, untrained", "even weights")
AS_TRAINED, LONGER, TWICE = "as in training", "longer blocks", "sequences twice as long, second half"


@dataclass
class Run:
    """A trained model, its test sequences, and what was measured on these at some steps, the first before training."""

    model: ToyTransformer
    tokens: Tensor  # (NUM_TEST, LENGTH)
    steps: list[int]
    loss: list[float]  # nats per word of the repeated part
    induction: Tensor  # (steps, L, H)
    previous: Tensor  # (steps, L, H)

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
        """Layer and head with the highest induction score at the end."""
        return divmod(int(self.induction[-1].argmax()), HEADS)

    @property
    def best_score(self) -> float:
        """The highest induction score of the heads at the end."""
        return self.induction[-1].max().item()

    @property
    def induction_heads(self) -> frozenset[Head]:
        """All heads that score MATCHES or more."""
        return frozenset((layer, head) for layer, head in (self.induction[-1] >= MATCHES).nonzero().tolist())

    @property
    def best_previous(self) -> tuple[int, int]:
        """The head of the first layer with the highest previous-token score at the end."""
        return 0, int(self.previous[-1, 0].argmax())


def new_model(num_layers: int, seed: int) -> ToyTransformer:
    """The untrained model of a seed."""
    return training.new_model(
        Recipe("induction", "next word", HEADS, num_layers, STEPS, seed=seed), CausalSelfAttention
    )


def train(num_layers: int, seed: int, steps: int = STEPS) -> Run:
    """Train one model on the loss of all places, predictable or not: nobody tells it where the copy begins.

    After the first steps the learning rate stays the same, so that a sudden fall is not the schedule's doing. Models of
    one seed see the same batches.
    """
    model = new_model(num_layers, seed)
    generator = torch.Generator().manual_seed(seed)
    tokens = repeated_sequences(NUM_TEST, torch.Generator().manual_seed(10**6 + seed))
    measured = []

    def loss_of_step(_: int) -> Tensor:
        return next_word_losses(model, repeated_sequences(BATCH, generator))[0].mean()

    def watch(done: int) -> None:
        if done % EVERY == 0:
            measured.append((done, repeated_loss(model, tokens).item(), *scores(model, tokens)))

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
    return Run(model, tokens, list(at), list(loss), torch.stack(induction), torch.stack(previous))


@dataclass
class Outcome:
    """Of one seed: both runs, how far the loss of the larger rises without each head (2, H), all numbers by name."""

    two: Run
    one: Run
    removal: Tensor
    numbers: dict[str, float]


def measured(run: Run) -> Measured:
    """The model and its loss on the repeated part, for the removal of heads."""
    layers = [block.attention for block in run.model.blocks]
    return Measured(layers, partial(repeated_loss, run.model, run.tokens), len(run.tokens))


@torch.no_grad()
def guesses(run: Run, seed: int) -> dict[str, float]:
    """Share of right guesses on sequences that differ from those of training in what the names say."""
    generator = torch.Generator().manual_seed(2 * 10**6 + seed)
    found = {
        AS_TRAINED: right(run.model, repeated_sequences(len(run.tokens), generator)),
        LONGER: right(run.model, repeated_sequences(len(run.tokens), generator, LONGER_BLOCKS)),
    }
    twice = repeated_sequences(len(run.tokens), generator, length=2 * LENGTH)
    trained_positions = run.model.positions
    run.model.positions = sinusoidal_positions(2 * LENGTH, trained_positions.size(1))
    found[TWICE] = right(run.model, twice, first=LENGTH)
    run.model.positions = trained_positions
    return found


def measure(seed: int, steps: int) -> Outcome:
    """Train both models of a seed and ask the larger one everything."""
    two, one = train(2, seed, steps), train(1, seed, steps)
    model, best = measured(two), two.best_induction
    removal, full = removal_importance(model), loss_without(model, frozenset())
    others = frozenset(model.heads) - two.induction_heads - {two.best_previous}
    gates = model.open_gates()
    gates[two.best_previous] = 0
    with gated(model.layers, gates):
        without_previous = scores(two.model, two.tokens)[0][best].item()
    gold = after_earlier_occurrence(two.tokens[:, :-1])  # the same places, now with nothing repeated
    control = unrepeated_sequences(len(two.tokens), torch.Generator().manual_seed(3 * 10**6 + seed))
    numbers = {
        "two layers": two.loss[-1],
        "one layer": one.loss[-1],
        "one layer, best score": one.best_score,
        "fall begins": two.fall[0],
        "fall ends": two.fall[1],
        "best head half way up": two.formed,
        "best score": two.best_score,
        "best score, nothing repeated": scores(two.model, control, gold)[0].max().item(),
        "best score, untrained": two.induction[0].max().item(),
        "even weights": even_score(gold),
        "without the best": removal[best].item(),
        "induction heads": len(two.induction_heads),
        "without all of them": loss_without(model, two.induction_heads) - full,
        "without one other head, highest": max((removal[head].item() for head in others), default=0.0),
        "without all others": loss_without(model, others) - full,
        "without the previous-token head": removal[two.best_previous].item(),
        "best score without it": without_previous,
        "its previous-token score": two.previous[-1][two.best_previous].item(),
    }
    return Outcome(two, one, removal, numbers | guesses(two, seed))


def all_learned(numbers: Numbers) -> bool:
    return max(numbers["two layers"]) <= FALL[1] * math.log(SYMBOLS)


def falls(numbers: Numbers) -> list[tuple[float, float]]:
    """When the loss of each seed begins and ends to fall."""
    return list(zip(numbers["fall begins"], numbers["fall ends"], strict=True))


def looks_up(numbers: Numbers) -> bool:
    habits = [numbers[f"best score, {where}"] for where in ("nothing repeated", "untrained")]
    low = all(max(scores) <= even + 0.1 for even, *scores in zip(numbers["even weights"], *habits, strict=True))
    return min(numbers["best score"]) >= 0.8 and low


def needs_previous(numbers: Numbers) -> bool:
    scores = zip(numbers["best score"], numbers["best score without it"], strict=True)
    return min(numbers["without the previous-token head"]) >= 0.5 and min(full - less for full, less in scores) >= 0.2


@measures(
    Claim(
        id="induction-phase-change",
        text="The loss on the repeated part waits and then falls suddenly",
        kind=EXPERIMENT,
        source="Olsson et al. 2022, argument 1",
        rule="reaches 1/4, and the fall takes no longer than the wait with any seed",
        holds=lambda n: all_learned(n) and all(end <= 2 * wait for wait, end in falls(n)),
        oracle={"two layers": [0.0], "fall begins": [230], "fall ends": [290]},
        null={"two layers": [0.0], "fall begins": [100], "fall ends": [100 * (1 + EXPONENTIAL)]},
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
            all_learned(n)
            and all(
                begin - 0.2 * end <= formed <= 1.2 * end
                for (begin, end), formed in zip(falls(n), n["best head half way up"], strict=True)
            )
        ),
        oracle={"two layers": [0.0], "fall begins": [230], "fall ends": [290], "best head half way up": [260]},
        null={"two layers": [0.0], "fall begins": [230], "fall ends": [290], "best head half way up": [0]},
        unit="step",
        shows=("fall *", "best head half way up"),
    ),
    Claim(
        id="induction-one-layer",
        text="One layer does not learn it: induction takes two",
        kind=EXPERIMENT,
        source="Elhage et al. 2021",
        rule="two layers at most 0.3 nats, one layer at least 1.5, with every seed",
        holds=lambda n: max(n["two layers"]) <= 0.3 and min(n["one layer"]) >= 1.5,
        oracle={"two layers": [0.0], "one layer": [math.log(PERIODS[1] - PERIODS[0] + 1)]},
        null={"two layers": [0.0], "one layer": [0.0]},
        unit="loss on the repeated part after the same steps, nats; induction score",
        control=f"any of {SYMBOLS} words: {math.log(SYMBOLS):.2f} nats",
        shows=("two layers", "one layer*"),
    ),
    Claim(
        id="induction-score-calibrated",
        text="A high induction score comes from looking up, not from a habit of place",
        kind=EXPERIMENT,
        source="definition of Olsson et al. 2022",
        rule="trained at least 0.8; untrained, or on sequences where nothing repeats, at most 0.1 above even weights",
        holds=looks_up,
        oracle=dict(zip(SCORES, ([1.0], [0.0], [0.06], [0.06]), strict=True)),
        null=dict(zip(SCORES, ([0.9], [0.9], [0.06], [0.06]), strict=True)),
        unit="induction score, highest of the heads; 1 is perfect",
        shows=SCORES,
    ),
    Claim(
        id="induction-head-ablation",
        text="Without its induction head the model cannot continue the repetition",
        kind=EXPERIMENT,
        source="Olsson et al. 2022, argument 3",
        rule="at least 1 nat without the best one; failing that, without all of them",
        holds=lambda n: min(n["without the best"]) >= 1,
        only_if=lambda n: min(n["without all of them"]) >= 1,
        condition="all induction heads go together: they stand in for each other",
        oracle={"without the best": [4.0], "without all of them": [5.0]},
        null={"without the best": [0.0], "without all of them": [0.0]},
        unit=f"rise of the loss on the repeated part, nats; induction heads score {MATCHES} or more",
        control="others: the heads that are neither induction heads nor the best previous-token head",
        shows=("without the best", "without all*", "without one*", "induction heads"),
    ),
    Claim(
        id="induction-previous-token",
        text="Induction heads need a previous-token head in the layer before",
        kind=EXPERIMENT,
        source="Elhage et al. 2021; Olsson et al. 2022",
        rule="without it the loss rises by at least 0.5 nats and the score falls by at least 0.2",
        holds=needs_previous,
        oracle={"without the previous-token head": [4.0], "best score": [1.0], "best score without it": [0.0]},
        null={"without the previous-token head": [0.0], "best score": [1.0], "best score without it": [1.0]},
        unit="nats; scores",
        control="without one head of neither kind",
        shows=("without the previous*", "without one*", "best score", "best score without*", "its*"),
    ),
    Claim(
        id="induction-carries-over",
        text="An induction head works on what was never in training",
        kind=EXPERIMENT,
        source="Olsson et al. 2022, argument 4",
        rule="at least 0.9 on both; failing that, on longer blocks",
        holds=lambda n: min(n[LONGER] + n[TWICE]) >= 0.9,
        only_if=lambda n: min(n[LONGER]) >= 0.9,
        condition="no place is later than in training",
        oracle={LONGER: [1.0], TWICE: [1.0]},
        null={LONGER: [1 / SYMBOLS], TWICE: [1 / SYMBOLS]},
        unit="share right where the next word is certain; longer blocks: {} to {} words".format(*LONGER_BLOCKS),
        control=f"all sequences are new; by chance {1 / SYMBOLS:.3f}",
        shows=(AS_TRAINED, LONGER, TWICE),
    ),
)
def numbers_by_seed(outcomes: list[Outcome]) -> dict[str, list[float]]:
    """All that was measured, with one number for each seed."""
    return {name: [outcome.numbers[name] for outcome in outcomes] for name in outcomes[0].numbers}


def draw_losses(ax: Axes, outcomes: list[Outcome]) -> None:
    two, end = outcomes[0].two, outcomes[0].two.steps[-1]
    for i, outcome in enumerate(outcomes):
        for run, color, name in ((outcome.two, INDUCTION, "two layers"), (outcome.one, CONTROL, "one layer")):
            ax.plot(run.steps, run.loss, color=color, alpha=0.35 if i else 1, label=None if i else name)
    for count, what in ((SYMBOLS, "words"), (PERIODS[1] - PERIODS[0] + 1, "distances")):
        ax.axhline(math.log(count), color=INK, linewidth=0.8, linestyle=":")
        ax.text(end, math.log(count) - 0.06, f"any of {count} {what}", ha="right", va="top", fontsize=8.5)
    ax.set(xlabel="step", ylabel="loss on the repeated part, nats", ylim=(0, 6.4), xlim=(0, end))
    ax.legend(frameon=False, fontsize=9, loc="upper right")
    ax.set_title(f"no fall within {end} steps")
    if two.learned:
        ax.axvspan(*two.fall, color=INDUCTION, alpha=0.12, linewidth=0)
        high, low = (two.loss[two.steps.index(step)] for step in two.fall)
        ax.set_title("steps {} to {}: ".format(*two.fall) + f"from {high:.1f} to {low:.1f} nats")


def draw_scores(ax: Axes, outcome: Outcome) -> None:
    two, even = outcome.two, outcome.numbers["even weights"]
    for head in range(HEADS):
        ax.plot(two.steps, two.induction[:, 1, head], color=INDUCTION, label=None if head else "induction, layer 1")
        label = None if head else "previous token, layer 0"
        ax.plot(two.steps, two.previous[:, 0, head], color=PREVIOUS, linestyle="--", label=label)
    ax.axhline(even, color=INK, linewidth=0.8, linestyle=":", label="induction, even weights")
    if two.learned:
        ax.axvspan(*two.fall, ymax=1 / 1.35, color=INDUCTION, alpha=0.12, linewidth=0)  # up to the legend
    ax.set(xlabel="step", ylabel="score of each head", ylim=(0, 1.35), yticks=(0, 0.5, 1), xlim=(0, two.steps[-1]))
    ax.legend(frameon=False, fontsize=8.5, loc="upper left", ncols=2, columnspacing=1.2)
    ax.set_title(f"best induction score {two.best_score:.2f}, even weights {even:.2f}")


@torch.no_grad()
def draw_pattern(ax: Axes, run: Run, seed: int) -> None:
    """The best induction head on a block of 8 words said twice; the places it should look at are framed."""
    tokens = repeated_sequences(1, torch.Generator().manual_seed(seed), (8, 8), length=16)
    layer, head = run.best_induction
    weights = run.model(tokens)[1][layer][0, head]  # (1, H, T, T) -> (T, T)
    mask = causal_mask(tokens.size(1))
    plot_attention(weights, decode(tokens[0].tolist()), mask=mask, ax=ax, annotate=False, labels=False)
    for row, column in after_earlier_occurrence(tokens)[0].nonzero().tolist():
        ax.add_patch(Rectangle((column, row), 1, 1, fill=False, edgecolor=PREVIOUS, linewidth=1.3))
    ax.set_title(f"layer {layer} head {head}; framed: after the same word", pad=8)


def draw_removal(ax: Axes, outcome: Outcome) -> None:
    run = outcome.two
    heads, together = measured(run).heads, run.induction_heads
    colors = [INDUCTION if h in together else PREVIOUS if h == run.best_previous else QUIET for h in heads]
    rises = [outcome.removal[head].item() for head in heads] + [outcome.numbers["without all of them"]]
    names = [f"layer {layer} head {head}" for layer, head in heads] + [f"all {len(together)} induction\nheads"]
    places = [*range(len(heads)), len(heads) + 0.4]
    ax.barh(places, rises, color=[*colors, INDUCTION], tick_label=names)
    for place, rise in zip(places, rises, strict=True):
        ax.text(max(rise, 0), place, f" {rise:+.2f}", va="center", fontsize=9)
    ax.set_ylim(len(rises), -3.3)  # the first head above, and over it room for the legend
    ax.set(xlabel="rise of the loss on the repeated part, nats", xlim=(min(0, *rises), 1.18 * max(*rises, 0.1)))
    roles = {"best previous-token head": PREVIOUS, f"induction, score from {MATCHES}": INDUCTION, "other": QUIET}
    ax.legend(handles=[Patch(color=color, label=name) for name, color in roles.items()], frameon=False, fontsize=8.5)
    ax.set_title("without a head, none trained again")


@torch.no_grad()
def draw(outcomes: list[Outcome], seed: int) -> tuple[Figure, str]:
    """Losses, scores while training, the pattern of the best induction head, what each head is worth."""
    first, two, one = outcomes[0], outcomes[0].two, outcomes[0].one
    steps = two.steps[-1]
    fig, ((losses, curves), (pattern, removal)) = plt.subplots(2, 2, figsize=(9.6, 8.6), layout="constrained")
    draw_losses(losses, outcomes)
    draw_scores(curves, first)
    draw_pattern(pattern, two, seed)
    draw_removal(removal, first)
    low, high = two.loss[-1], one.loss[-1]
    title = f"After {steps} steps: two layers at {low:.2f} nats, one layer at {high:.2f}"
    if two.learned and not one.learned:
        title = f"Two layers learn to look up what came next: loss {low:.2f}; one layer is still at {high:.2f}"
    _, layers = two.model(two.tokens[:, :-1])
    entropy = [normalized_entropy(w, causal_mask(w.size(-1))).nanmean().item() for w in layers]
    headline(
        fig,
        title,
        f"trained {steps} steps, {HEADS} heads in a layer, seeds: {len(outcomes)}; normalised entropy: "
        f"layer 0 {entropy[0]:.2f}, layer 1 {entropy[1]:.2f}; removal: {len(two.tokens)} new sequences",
    )
    return fig, f"{title}. Loss by step, scores of the heads by step, pattern of the best head, loss without each head."


def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    outcomes = [measure(seed, training.QUICK_STEPS if options.quick else STEPS) for seed in cli.seeds(options)]
    save_plot(options, "phase4/induction", *draw(outcomes, options.seed))
    numbers = numbers_by_seed(outcomes)
    findings.record(options, numbers)
    two, one = numbers["two layers"][0], numbers["one layer"][0]
    return f"Loss after {outcomes[0].two.steps[-1]} steps: {two:.2f} with two layers, {one:.2f} with one"


if __name__ == "__main__":
    cli.run(main)
