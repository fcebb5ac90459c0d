"""How many of its heads does a trained model need, and which?

Heads are removed from trained models one at a time, without training again, until none is left. Two models, two tasks:

    toy language    two layers of four heads, the model of multi_head_attention.py, on held-out sentences
    two look-ups    one layer of eight heads that must look at two places at once, on strings not trained on

In the second task each symbol is given by the ones 1 and 3 places before it, through a table drawn at random:

    y_t = table[x_(t-1), x_(t-3)]        x  2 0 1 2 ...      y_3 = table[1, 2], because x_2 = 1 and x_0 = 2

Nothing can be said about y_t from one of the two symbols alone. Is one head enough for two places?

Heads are removed greedily: after each step all that are left are measured again, and the cheapest goes. The control is
a random order. Heads can go if the loss rises by less than 0.01 nats without them, by the upper end of its 95 %
interval: the examples are drawn again, 1,000 times (bootstrap; Efron 1979). Can one know beforehand which can go? The
gradient of a gate is compared with what removing its head costs (head_importance.py).

    python phase2_multi_head/pruning/head_pruning.py
    python phase2_multi_head/pruning/head_pruning.py --seeds 3

Writes head_pruning.png to visualizations/plots/phase2/.
"""

import random
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from phase2_multi_head.models import load_multi_head_model
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase2_multi_head.pruning.head_importance import (
    Head,
    Loss,
    Sampled,
    gradient_importance,
    language_model,
    over_examples,
    rank_correlation,
    removal_importance,
)
from shared import cli, training
from shared.evidence import findings
from shared.evidence.claims import EXPERIMENT, Above, Claim, Numbers, measures
from shared.tasks import TwoPlaces
from shared.visualization_utils import BLUE, HIDDEN, ORANGE, QUIET, headline, label_ends, save_plot

TOLERANCE = 0.01  # nats that the loss may rise
RANDOM_ORDERS = 4  # for each model
HEADS, BATCH, STEPS, LEARNING_RATE, STRINGS, LOOKUP_MODELS = 8, 32, 200, 1e-2, 250, 2  # of two look-ups
LANGUAGE, LOOKUPS = "toy language", "two look-ups"
COLORS = {LANGUAGE: BLUE, LOOKUPS: ORANGE}
SMALLEST = 1e-3  # nats: the picture shows anything below as this
PICTURED = 4  # heads removed in the picture


@dataclass(frozen=True)
class TwoLookups:
    """A trained model, the table that it learned, and strings (B, T) that it was not trained on."""

    model: TwoPlaces
    table: Tensor
    symbols: Tensor

    def logits(self) -> Tensor:
        """For the places that have an answer -> (B, T - 3, S)."""
        return self.model(self.symbols)[:, TwoPlaces.FIRST :]

    def losses(self) -> Tensor:
        """Mean cross-entropy of each string in nats -> (B,)."""
        target = TwoPlaces.answers(self.symbols, self.table)
        return F.cross_entropy(self.logits().mT, target, reduction="none").mean(dim=-1)  # (B, S, T - 3) -> (B,)

    @torch.no_grad()
    def right(self) -> float:
        """Share of right answers."""
        return (self.logits().argmax(dim=-1) == TwoPlaces.answers(self.symbols, self.table)).double().mean().item()

    def sampled(self) -> Sampled:
        return Sampled([self.model.block.attention], self.losses, len(self.symbols))


def train(num_heads: int, seed: int, steps: int = STEPS, strings: int = STRINGS) -> TwoLookups:
    """Train a new model; its heads share d_model = 64. The seed decides the table, the weights and the strings."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    table = torch.randint(TwoPlaces.SYMBOLS, (TwoPlaces.SYMBOLS, TwoPlaces.SYMBOLS), generator=generator)
    model = TwoPlaces(MultiHeadAttention(TwoPlaces.D_MODEL, num_heads))

    def loss_of_step(_: int) -> Tensor:
        symbols = torch.randint(TwoPlaces.SYMBOLS, (BATCH, TwoPlaces.LENGTH), generator=generator)
        return TwoLookups(model, table, symbols).losses().mean()

    name = f"two look-ups, heads: {num_heads}"
    training.fit(model, loss_of_step, steps, matrix_rate=None, rate=LEARNING_RATE, progress=name)
    test = torch.randint(TwoPlaces.SYMBOLS, (strings, TwoPlaces.LENGTH), generator=generator)
    return TwoLookups(model, table, test)


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
    removal_range: tuple[Tensor, Tensor]  # its interval, each (L, H)
    gradient: Tensor  # (L, H)
    greedy: list[float]  # the curve of the greedy order
    greedy_range: tuple[list[float], list[float]]  # interval of the greedy curve
    random_curves: list[list[float]]

    @property
    def spared_alone(self) -> int:
        """How many heads can go, each as the only one."""
        return int((self.removal_range[1] < TOLERANCE).sum())

    @property
    def can_go(self) -> int:
        """How many heads can go together, removed greedily."""
        return removable(self.greedy_range[1])


def prune(sample: Sampled, seed: int) -> Pruning:
    """Remove the heads of one model, greedily and in random orders; the seed shuffles."""
    losses, model = cache(sample.losses_without), sample.measured()  # orders share many of their steps

    def loss(removed: frozenset[Head]) -> float:
        return losses(removed).mean().item()

    def rises(removals: Iterable[Iterable[Head]]) -> Tensor:
        """By how much the loss on each example rises -> (removals, B)."""
        return torch.stack([losses(frozenset(heads)) for heads in removals]) - losses(frozenset())

    removal, gradient = removal_importance(model, loss), gradient_importance(model)
    order = greedy_order(model.heads, loss)
    shuffle = random.Random(seed)
    shuffled = [shuffle.sample(model.heads, len(model.heads)) for _ in range(RANDOM_ORDERS)]
    alone = over_examples(rises([head] for head in model.heads))
    together = over_examples(rises(order[:count] for count in range(len(model.heads) + 1)))
    return Pruning(
        removal,
        tuple(end.view_as(removal) for end in alone),
        gradient,
        curve(order, loss),
        tuple(end.tolist() for end in together),
        [curve(other, loss) for other in shuffled],
    )


Runs = dict[str, list[Pruning]]  # task -> one Pruning for each model

CHEAPEST, ALONE = "rise without the cheapest head", "heads that can each go"
SHARE, BY_CHANCE = "share that can go together", "the same in random order"
AGREE = "gradient and removal"


def of_both(name: str, n: Numbers) -> list[float]:
    """A number of all models of both tasks."""
    return [*n[f"{LANGUAGE}, {name}"], *n[f"{LOOKUPS}, {name}"]]


def in_both(name: str, value: float) -> dict[str, list[float]]:
    """For oracles: the same number in both tasks."""
    return {f"{LANGUAGE}, {name}": [value], f"{LOOKUPS}, {name}": [value] * LOOKUP_MODELS}


def mean_share(n: Numbers) -> float:
    """The share of heads that can go, both tasks counted alike."""
    return statistics.mean(statistics.mean(n[f"{task}, {SHARE}"]) for task in (LANGUAGE, LOOKUPS))


@measures(
    Claim(
        id="C064",
        text="Removing any head hurts",
        source="course notes, 'Multi-Head Attention', empirical evidence; against it Michel et al. 2019",
        kind=EXPERIMENT,
        rule="in none of the three models a head of which it is certain that it costs less than 0.01 nats",
        holds=lambda n: min(of_both(f"{CHEAPEST}, at most", n)) >= TOLERANCE,
        oracle=in_both(f"{CHEAPEST}, at most", 0.1),
        null=in_both(f"{CHEAPEST}, at most", 0.002),
        unit="nats, with a 95 % interval over the examples; number of heads, of eight",
        control="a task whose models have more heads than it needs, beside one where they have not",
        shows=(f"*, {CHEAPEST}*", f"*, {ALONE}"),
    ),
    Claim(
        id="pruning-share",
        text="A good share of the heads, a fifth and more, can be removed from a trained model",
        source="Michel et al. 2019: 20 % in a translation model, 40 % in BERT, both far larger than ours",
        kind=EXPERIMENT,
        rule="more than 0.2, mean of the two tasks",
        holds=Above(mean_share, 0.2),
        oracle=in_both(SHARE, 0.375),
        null=in_both(SHARE, 0.0),
        unit="share of heads that can go for less than 0.01 nats, removed greedily, not trained again",
        control="the heads that can each go as the only one; removal in random order",
        shows=(f"*, {SHARE}", f"*, {BY_CHANCE}", f"*, {ALONE}"),
    ),
    Claim(
        id="pruning-gradient",
        text="The gradient of its gate tells beforehand how much a head matters",
        source="Michel et al. 2019, who remove heads by it",
        kind=EXPERIMENT,
        rule="above 0.5, a strong correlation by Cohen's (1988) measure, mean of the three models",
        holds=Above(lambda n: statistics.mean(of_both(AGREE, n)), 0.5),
        oracle=in_both(AGREE, 0.9),
        null=in_both(AGREE, 0.0),
        unit="rank correlation of the gradient and the rise of the loss without the head, eight heads",
        shows=(f"*, {AGREE}",),
    ),
)
def which_can_go(runs: Runs) -> dict[str, list[float]]:
    """What became of the models of one seed, a number for each model."""
    found: dict[str, Callable[[Pruning], float]] = {
        CHEAPEST: lambda run: run.removal.min().item(),
        f"{CHEAPEST}, at least": lambda run: run.removal_range[0].min().item(),
        f"{CHEAPEST}, at most": lambda run: run.removal_range[1].min().item(),
        ALONE: lambda run: run.spared_alone,
        SHARE: lambda run: run.can_go / run.removal.numel(),
        BY_CHANCE: lambda run: statistics.mean(removable(c) for c in run.random_curves) / run.removal.numel(),
        AGREE: lambda run: rank_correlation(run.removal, run.gradient),
    }
    return {
        f"{task}, {name}": [value(run) for run in prunings]
        for task, prunings in runs.items()
        for name, value in found.items()
    }


def solved(shares: Iterable[Iterable[float]]) -> float:
    """The rate of models that are right in 0.95 of the answers; shares: of the models of each seed."""
    return statistics.mean(share >= 0.95 for of_seed in shares for share in of_seed)


EIGHT_HEADS, ONE_HEAD, ONE_LONGER = "heads: 8", "heads: 1", "heads: 1, twice the steps"


@measures(
    Claim(
        id="one-head-two-lookups",
        text="What takes two look-ups at once, one head learns later than eight do; most learn it in the end",
        source="course notes, 'Multi-Head Attention': a single head is limited to one way to compute relevance",
        kind=EXPERIMENT,
        rule=f"with ten seeds, after {STEPS} steps: eight heads of size 8 solve it, 0.95 right, each time, one head of "
        f"size 64 six times at most (by chance at p = 0.04; Fisher's exact test, one-sided); after {2 * STEPS} steps "
        "one head solves it more often than not",
        holds=lambda n: solved(n[EIGHT_HEADS]) == 1 and solved(n[ONE_HEAD]) <= 0.6 and solved(n[ONE_LONGER]) > 0.5,
        over_seeds=True,
        oracle={EIGHT_HEADS: [[1.0, 1.0]] * 5, ONE_HEAD: [[0.4, 0.5]] * 5, ONE_LONGER: [[1.0, 1.0]] * 5},
        null={EIGHT_HEADS: [[1.0, 1.0]] * 5, ONE_HEAD: [[1.0, 1.0]] * 5, ONE_LONGER: [[1.0, 1.0]] * 5},
        unit="share of right answers to two look-ups, strings not trained on, two models a seed",
        control="as many parameters, the same strings and steps; by chance 0.13",
        headline=True,
    )
)
def right_answers(eight: list[TwoLookups], one: list[TwoLookups], longer: list[TwoLookups]) -> dict[str, list[float]]:
    """Share of right answers of the models of one seed; longer: with one head and twice the steps."""
    models = {EIGHT_HEADS: eight, ONE_HEAD: one, ONE_LONGER: longer}
    return {name: [model.right() for model in each] for name, each in models.items()}


def can_go(prunings: list[Pruning]) -> str:
    """How many heads can go: "none of 8", "2 of 8", or "1 to 2 of 8" where models differ."""
    counts = sorted({run.can_go for run in prunings})
    count = " to ".join(map(str, [*counts[:1], *counts[1:][-1:]])) if counts[-1] else "none"
    return f"{count} of {prunings[0].removal.numel()}"


def draw(runs: Runs, learned: bool, note: str) -> tuple[Figure, str]:
    """How far the loss rises with each of the first heads removed, a line for each model; a band where heads can go."""
    fig, ax = plt.subplots(figsize=(8.6, 4.6), layout="constrained")
    named = {
        f"{task}, model {place}" if len(prunings) > 1 else task: (run, COLORS[task])
        for task, prunings in runs.items()
        for place, run in enumerate(prunings, 1)
    }
    ax.axhspan(SMALLEST / 1.5, TOLERANCE, color=HIDDEN, zorder=0, linewidth=0)
    said = f"can go (filled): the whole\n95 % interval below {TOLERANCE} nats"
    ax.text(PICTURED + 0.2, SMALLEST * 2.5, said, color=QUIET, ha="right", va="center")
    ends = {}
    for place, (name, (run, color)) in enumerate(named.items()):
        last = draw_curve(ax, run, color, shift=0.3 * ((place + 0.5) / len(named) - 0.5))
        ends[name] = (PICTURED + 0.2, last, color)
    counts = range(1, PICTURED + 1)
    ax.set(yscale="log", xlim=(0.7, PICTURED + 0.25), xticks=counts, ylim=(SMALLEST / 1.5, 3))
    ax.set_yticks([SMALLEST, TOLERANCE, 0.1, 1], [f"{SMALLEST}\nor less", f"{TOLERANCE}", "0.1", "1"])
    ax.set(xlabel="heads removed, each time the cheapest that is left", ylabel="rise of the loss, in nats")
    ax.minorticks_off()
    label_ends(ax, ends, size=10)
    most, sizes = max(run.can_go for run, _ in named.values()), {run.removal.numel() for run, _ in named.values()}
    of = " or ".join(map(str, sorted(sizes)))
    title = f"In these models at most {most} of {of} heads can go unnoticed"
    if not learned:
        title = "Trained too little: nothing is learned yet that goes away with a head"
    headline(fig, title, note)
    return fig, f"{title}. The rise of the loss when heads are removed one by one, always the cheapest that is left."


def draw_curve(ax: Axes, run: Pruning, color: str, shift: float) -> float:
    """How far the loss of one model has risen, with 95 % intervals; a dot is filled where so many heads can go.

    shift: to the side, so that no interval lies on another. Returns the height at which the line ends.
    """
    kept = slice(1, PICTURED + 1)
    rises, low, high = ([max(rise, SMALLEST) for rise in line[kept]] for line in (run.greedy, *run.greedy_range))
    places = [count + shift for count in range(1, len(rises) + 1)]
    ax.plot(places, rises, color=color, linewidth=1.5)
    ax.vlines(places, low, high, color=color, linewidth=5, alpha=0.3)
    faces = [color if rise < TOLERANCE else "white" for rise in run.greedy_range[1][kept]]
    ax.scatter(places, rises, s=55, facecolors=faces, edgecolors=color, linewidths=1.8, zorder=3)
    return rises[-1]


@cli.script
def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    sentences, steps = (40, training.QUICK_STEPS) if options.quick else (training.NUM_HELD_OUT, STEPS)
    found, right, all_runs = [], [], {LANGUAGE: [], LOOKUPS: []}
    for seed in cli.seeds(options):
        trained = load_multi_head_model(options, seed)
        eight, one, longer = (
            [train(heads, LOOKUP_MODELS * seed + model, count) for model in range(LOOKUP_MODELS)]
            for heads, count in ((HEADS, steps), (1, steps), (1, 2 * steps))
        )
        models = {LANGUAGE: [language_model(trained, sentences)], LOOKUPS: [each.sampled() for each in eight]}
        runs = {task: [prune(model, seed) for model in each] for task, each in models.items()}
        found.append(which_can_go(runs))
        right.append(right_answers(eight, one, longer))
        for task, prunings in runs.items():
            all_runs[task] += prunings
    learned = min(min(n[EIGHT_HEADS]) for n in right) >= 0.9 and trained.recipe.steps > training.QUICK_STEPS
    note = f"{trained.label} (toy language) and {steps} (two look-ups), none after a removal; thick: 95 % intervals"
    save_plot(options, "phase2/head_pruning", *draw(all_runs, learned, note))
    findings.record(options, *found, *right)
    language, in_lookups = can_go(all_runs[LANGUAGE]), can_go(all_runs[LOOKUPS])
    return f"{language} heads can go in the toy language, {in_lookups} in two look-ups, for {TOLERANCE} nats"


if __name__ == "__main__":
    cli.run(main)
