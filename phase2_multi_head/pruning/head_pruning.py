"""How many of its heads does a trained model need, and which?

Heads are removed from trained models one at a time, without training again, until none is left. Two models, two tasks:

    toy language    two layers of four heads, the model of multi_head_attention.py, on held-out sentences
    two look-ups    one layer of eight heads that must look at two places at once, on strings not trained on

In the second task each symbol is given by the ones 1 and 3 places before it, through a table drawn at random:

    y_t = table[x_(t-1), x_(t-3)]        x  2 0 1 2 ...      y_3 = table[1, 2], because x_2 = 1 and x_0 = 2

Nothing can be said about y_t from one of the two symbols alone. Is one head enough for two places?

Can one know beforehand which can go? Heads are removed by the gradient of the gates or by the loss when a single head
is gone, both known before anything is removed (head_importance.py); greedily, which measures all that are left again
after each step; and, as the control, at random. A head can go as long as the loss rises by less than 0.01 nats.

    python phase2_multi_head/pruning/head_pruning.py
    python phase2_multi_head/pruning/head_pruning.py --seeds 3

Writes head_pruning.png to visualizations/plots/phase2/.
"""

import random
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from phase1_single_head.parts.scaling import D_MODEL, FIRST, LENGTH, SYMBOLS, TwoPlaces, labels
from phase2_multi_head.multi_head_attention import MultiHeadAttention, load_multi_head_model
from phase2_multi_head.pruning.head_importance import (
    Head,
    Loss,
    Measured,
    divided_by_layer,
    gradient_importance,
    loss_without,
    rank_correlation,
    removal_importance,
)
from shared import cli, training
from shared.evidence import findings
from shared.evidence.claims import EXPERIMENT, Claim, Numbers, measures
from shared.training import Trained
from shared.visualization_utils import HIDDEN, INK, QUIET, head_color, headline, save_plot

TOLERANCE = 0.01  # nats that the loss may rise
RANDOM_ORDERS = 4  # for each model
HEADS, BATCH, STEPS, LEARNING_RATE, STRINGS, LOOKUP_MODELS = 8, 32, 200, 1e-2, 250, 2  # of two look-ups
LANGUAGE, LOOKUPS = "toy language", "two look-ups"
GRADIENT, REMOVAL, GREEDY = "smallest gradient first", "cheapest alone first", "greedy, measured again"
COLORS = {GRADIENT: head_color(0), REMOVAL: head_color(1), GREEDY: INK}
LINES = {GRADIENT: "-", REMOVAL: "--", GREEDY: "-"}  # the dashed one often runs on another


@dataclass(frozen=True)
class TwoLookups:
    """A trained model, the table that it learned, and strings (B, T) that it was not trained on."""

    model: TwoPlaces
    table: Tensor
    symbols: Tensor

    def logits(self) -> Tensor:
        """For the places that have an answer -> (B, T - 3, S)."""
        return self.model(self.symbols)[:, FIRST:]

    def loss(self) -> Tensor:
        """Mean cross-entropy in nats."""
        return F.cross_entropy(self.logits().flatten(0, 1), labels(self.symbols, self.table).flatten())

    @torch.no_grad()
    def right(self) -> float:
        """Share of right answers."""
        return (self.logits().argmax(dim=-1) == labels(self.symbols, self.table)).double().mean().item()

    def measured(self) -> Measured:
        """For the measurements of head_importance.py."""
        return Measured([self.model.block.attention], self.loss, len(self.symbols))


def train(num_heads: int, seed: int, steps: int = STEPS, strings: int = STRINGS) -> TwoLookups:
    """Train a new model; its heads share d_model = 64. The seed decides the table, the weights and the strings."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    table = torch.randint(SYMBOLS, (SYMBOLS, SYMBOLS), generator=generator)
    model = TwoPlaces(MultiHeadAttention(D_MODEL, num_heads))

    def loss_of_step(_: int) -> Tensor:
        symbols = torch.randint(SYMBOLS, (BATCH, LENGTH), generator=generator)
        return TwoLookups(model, table, symbols).loss()

    name = f"two look-ups, heads: {num_heads}"
    training.fit(model, loss_of_step, steps, matrix_rate=None, rate=LEARNING_RATE, progress=name)
    test = torch.randint(SYMBOLS, (strings, LENGTH), generator=generator)
    return TwoLookups(model, table, test)


def measured_language_model(trained: Trained, sentences: int = training.NUM_HELD_OUT) -> Measured:
    """A model of the toy language on held-out sentences; with all of them its loss is training.held_out_loss."""
    held_out = training.corpus()[1][:sentences]
    device = trained.model.positions.device
    tokens, lengths = (t.to(device) for t in training.to_batch(held_out, trained.recipe.objective))

    def loss() -> Tensor:
        hidden_words = torch.Generator().manual_seed(0)  # the same at every call
        return training.OBJECTIVES[trained.recipe.objective](trained.model, tokens, lengths, hidden_words)

    return Measured([block.attention for block in trained.model.blocks], loss, len(tokens))


def curve(order: Sequence[Head], loss: Loss) -> list[float]:
    """How far the loss has risen after each removal, from 0 removed to all -> one number more than heads."""
    losses = [loss(frozenset(order[:count])) for count in range(len(order) + 1)]
    return [value - losses[0] for value in losses]


def greedy_order(heads: Iterable[Head], loss: Loss) -> list[Head]:
    """At each step remove the head without which the loss is lowest, measured without those that are gone already."""
    left, removed = list(heads), []
    while left:
        cheapest = min(left, key=lambda head: loss(frozenset([*removed, head])))
        left.remove(cheapest)
        removed.append(cheapest)
    return removed


def removable(rises: list[float]) -> int:
    """The most heads that can be gone while the loss has risen by less than the tolerance, both in nats."""
    return max(count for count, rise in enumerate(rises) if rise < TOLERANCE)


@dataclass(frozen=True)
class Pruning:
    """What became of one model. A curve holds how far the loss has risen, in nats, with 0, 1, ... all heads removed."""

    removal: Tensor  # (L, H), as in head_importance.py
    gradient: Tensor  # (L, H)
    full_loss: float
    curves: dict[str, list[float]]  # by the order of removal
    random_curves: list[list[float]]
    spared_together: float  # how far the loss rises without all the heads that can each be spared alone

    @property
    def spared_alone(self) -> int:
        """How many heads can go, each as the only one."""
        return int((self.removal < TOLERANCE).sum())

    @property
    def can_go(self) -> int:
        """How many heads can go together, removed greedily."""
        return removable(self.curves[GREEDY])


def prune(model: Measured, seed: int) -> Pruning:
    """Remove the heads of one model in every order; the seed shuffles the random ones."""
    loss = cache(partial(loss_without, model))  # orders share many of their steps
    removal, gradient = removal_importance(model, loss), gradient_importance(model)
    orders = {
        GRADIENT: sorted(model.heads, key=lambda head: gradient[head].item()),
        REMOVAL: sorted(model.heads, key=lambda head: removal[head].item()),
        GREEDY: greedy_order(model.heads, loss),
    }
    shuffle = random.Random(seed)
    shuffled = [shuffle.sample(model.heads, len(model.heads)) for _ in range(RANDOM_ORDERS)]
    spared = frozenset(head for head in model.heads if removal[head] < TOLERANCE)
    return Pruning(
        removal,
        gradient,
        loss(frozenset()),
        {name: curve(order, loss) for name, order in orders.items()},
        [curve(order, loss) for order in shuffled],
        loss(spared) - loss(frozenset()),
    )


Runs = dict[str, list[Pruning]]  # task -> one Pruning for each model


def of_both(name: str, n: Numbers) -> list[float]:
    """A number of all models of both tasks."""
    return [*n[f"{LANGUAGE}, {name}"], *n[f"{LOOKUPS}, {name}"]]


def both(name: str, value: float) -> dict[str, list[float]]:
    """For oracles: the same number in both tasks, two models each."""
    return {f"{task}, {name}": [value] * 2 for task in (LANGUAGE, LOOKUPS)}


RISE, ALONE, ALL_OF_THEM = "smallest rise", "heads that can each go", "rise without all of them"
SHARE, BY_CHANCE = "share that can go", "share in random order"
AGREE, DIVIDED, HALF = "gradient and removal", "divided by the norm of the layer", "on the first half of the sentences"


@measures(
    Claim(
        id="C064",
        text="Removing any head hurts",
        source="course notes; against it Michel et al. 2019",
        kind=EXPERIMENT,
        rule="each head of each model costs at least 0.01 nats; failing that, each head of the language models",
        holds=lambda n: min(of_both(RISE, n)) >= TOLERANCE,
        only_if=lambda n: min(n[f"{LANGUAGE}, {RISE}"]) >= TOLERANCE,
        condition="the task leaves no head to spare: the toy language with four in a layer, not two look-ups with "
        "eight",
        oracle=both(RISE, 0.1),
        null=both(RISE, 0.0),
        unit="rise of the loss without one head, nats; number of heads",
        shows=(f"*, {RISE}", "*, largest rise", f"*, {ALONE}"),
    ),
    Claim(
        id="pruning-share",
        text="A good share of the heads can be removed from a trained model: a fifth and more",
        source="Michel et al. 2019: 20 % in a translation model, 40 % in BERT",
        kind=EXPERIMENT,
        rule="at least 0.2 in every model",
        holds=lambda n: min(of_both(SHARE, n)) >= 0.2,
        oracle=both(SHARE, 0.4),
        null=both(SHARE, 0.0),
        unit="share of heads that can go for less than 0.01 nats, removed greedily, not trained again",
        control="removal in random order",
        shows=(f"*, {SHARE}", f"*, {BY_CHANCE}"),
    ),
    Claim(
        id="pruning-together",
        text="Heads that can each be spared can be spared together",
        source="what a list of single removals seems to say",
        kind=EXPERIMENT,
        rule="less than 0.01 nats in every model of two look-ups with two such heads or more",
        holds=lambda n: all(
            rise < TOLERANCE
            for heads, rise in zip(n[f"{LOOKUPS}, {ALONE}"], n[f"{LOOKUPS}, {ALL_OF_THEM}"], strict=True)
            if heads > 1
        ),
        oracle=both(ALONE, 2) | both(ALL_OF_THEM, 0.005),
        null=both(ALONE, 2) | both(ALL_OF_THEM, 0.1),
        unit="number of heads; nats",
        shows=(f"{LOOKUPS}, {ALONE}", f"{LOOKUPS}, {ALL_OF_THEM}"),
    ),
    Claim(
        id="pruning-gradient",
        text="The gradient tells beforehand which heads matter most",
        source="Michel et al. 2019",
        kind=EXPERIMENT,
        rule="at least 0.7 in every model; eight ranks are few: see how far half of the sentences moves the number",
        holds=lambda n: min(of_both(AGREE, n)) >= 0.7,
        oracle=both(AGREE, 1.0),
        null=both(AGREE, 0.0),
        unit="rank correlation of the gradient and the rise of the loss without the head",
        shows=(f"*, {AGREE}", f"*, {DIVIDED}", f"*, {HALF}"),
    ),
)
def which_can_go(runs: Runs, halves: list[Measured]) -> dict[str, list[float]]:
    """What became of every model; halves: the language models on half of their sentences."""
    numbers: dict[str, list[float]] = {}
    for task, prunings in runs.items():
        found: dict[str, Callable[[Pruning], float]] = {
            "loss": lambda run: run.full_loss,
            RISE: lambda run: run.removal.min().item(),
            "largest rise": lambda run: run.removal.max().item(),
            ALONE: lambda run: run.spared_alone,
            ALL_OF_THEM: lambda run: run.spared_together,
            SHARE: lambda run: run.can_go / run.removal.numel(),
            BY_CHANCE: lambda run: statistics.mean(removable(c) for c in run.random_curves) / run.removal.numel(),
            AGREE: lambda run: rank_correlation(run.removal, run.gradient),
            DIVIDED: lambda run: rank_correlation(run.removal, divided_by_layer(run.gradient)),
        }
        numbers |= {f"{task}, {name}": [value(run) for run in prunings] for name, value in found.items()}
    half = [rank_correlation(removal_importance(model), gradient_importance(model)) for model in halves]
    return numbers | {f"{LANGUAGE}, {HALF}": half}


@measures(
    Claim(
        id="one-head-two-lookups",
        text="A single head is limited: it cannot do what takes two look-ups",
        kind=EXPERIMENT,
        rule="one head of size 64 at most 0.90 with every seed, where eight heads of size 8 reach 0.99",
        holds=lambda n: max(n["heads: 1"]) <= 0.9 and min(n["heads: 8"]) >= 0.99,
        oracle={"heads: 1": [0.5], "heads: 8": [1.0]},
        null={"heads: 1": [1.0], "heads: 8": [1.0]},
        unit="share of right answers to two look-ups, strings not trained on",
        control="eight heads with as many parameters, the same strings and steps; by chance 0.13",
    )
)
def right_answers(models: list[TwoLookups], with_one_head: list[TwoLookups]) -> dict[str, list[float]]:
    """Share of right answers with each seed."""
    return {"heads: 1": [m.right() for m in with_one_head], "heads: 8": [m.right() for m in models]}


def can_go(prunings: list[Pruning]) -> str:
    """How many heads can go: "2 of 8", or "1 to 2 of 8" where models differ."""
    counts = sorted({run.can_go for run in prunings})
    return f"{' to '.join(map(str, [*counts[:1], *counts[1:][-1:]]))} of {prunings[0].removal.numel()}"


def draw(runs: Runs, learned: bool, note: str) -> tuple[Figure, str]:
    """A panel for each task: how far the loss rises against the number of heads removed, mean over its models."""
    fig, axes = plt.subplots(1, 2, figsize=(10, 4.8), sharey=True, layout="constrained")
    for ax, (task, prunings) in zip(axes, runs.items(), strict=True):
        draw_curves(ax, prunings)
        models = f" (mean of {len(prunings)} models)" if len(prunings) > 1 else ""
        ax.set_title(f"{task}, heads in each layer: {prunings[0].removal.size(1)}{models}", pad=8)
    axes[0].set_ylabel("rise of the loss (nats)")
    axes[1].legend(frameon=False, fontsize=9, labelcolor="linecolor", loc="lower right", bbox_to_anchor=(1, -0.02))
    language, lookups = can_go(runs[LANGUAGE]), can_go(runs[LOOKUPS])
    title = f"For less than {TOLERANCE} nats {language} heads can go in the toy language, {lookups} in two look-ups"
    if not learned:
        title = "Trained too little: nothing is learned yet that goes away with a head"
    headline(fig, title, note)
    return fig, title + ". The rise of the loss when heads are removed one by one, in different orders."


def draw_curves(ax: Axes, prunings: list[Pruning]) -> None:
    """A line for each order, a band for the random ones; logarithmic above the 0.01 nats, linear below."""
    counts = range(prunings[0].removal.numel() + 1)
    for name, color in COLORS.items():
        rises = [statistics.mean(values) for values in zip(*(run.curves[name] for run in prunings), strict=True)]
        ax.plot(counts, rises, LINES[name], color=color, marker="o", markersize=4, label=name)
    by_chance = list(zip(*(rises for run in prunings for rises in run.random_curves), strict=True))
    lowest, highest = ([pick(rises) for rises in by_chance] for pick in (min, max))
    ax.fill_between(counts, lowest, highest, color=HIDDEN, linewidth=0, zorder=0)
    ax.plot([], [], color=QUIET, linewidth=0, label="grey: random orders")
    ax.axhline(TOLERANCE, color=INK, linewidth=0.8, linestyle=":")
    ax.text(counts[-1], TOLERANCE * 1.08, f"{TOLERANCE} nats", fontsize=8.5, ha="right", va="bottom")
    ax.set_yscale("symlog", linthresh=TOLERANCE, linscale=1.2)
    ax.set_yticks([0, TOLERANCE, 0.1, 1, 10], ["0", str(TOLERANCE), "0.1", "1", "10"])
    ax.set(xticks=counts, xlabel="heads removed")
    ax.minorticks_off()


def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    seeds = cli.seeds(options)
    sentences, steps = (40, training.QUICK_STEPS) if options.quick else (training.NUM_HELD_OUT, STEPS)
    language = [load_multi_head_model(options, seed) for seed in seeds]
    lookup_seeds = range(seeds.start, max(seeds.stop, seeds.start + LOOKUP_MODELS))
    lookups = [train(HEADS, seed, steps) for seed in lookup_seeds]
    models = {
        LANGUAGE: [measured_language_model(trained, sentences) for trained in language],
        LOOKUPS: [trained.measured() for trained in lookups],
    }
    runs = {task: [prune(model, options.seed) for model in each] for task, each in models.items()}
    right = right_answers(lookups, [train(1, seed, steps) for seed in seeds])
    numbers = which_can_go(runs, [measured_language_model(trained, sentences // 2) for trained in language])
    learned = min(right["heads: 8"]) >= 0.9 and language[0].recipe.steps > training.QUICK_STEPS
    entropy = training.head_entropy(language[0].model, training.corpus()[1][:sentences], "masked word")
    note = (
        f"{language[0].label} (toy language, normalised entropy {statistics.mean(map(statistics.mean, entropy)):.2f}) "
        f"and {steps} (two look-ups), none after a removal; random orders: {RANDOM_ORDERS} a model"
    )
    save_plot(options, "phase2/head_pruning", *draw(runs, learned, note))
    findings.record(options, numbers, right)
    language, in_lookups = can_go(runs[LANGUAGE]), can_go(runs[LOOKUPS])
    return f"{language} heads can go in the toy language, {in_lookups} in two look-ups, for {TOLERANCE} nats"


if __name__ == "__main__":
    cli.run(main)
