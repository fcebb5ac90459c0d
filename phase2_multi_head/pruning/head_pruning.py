"""Experiment: how many of its heads does a trained model need, and can one know beforehand which?

Heads are removed from trained models one at a time, without training again, until none is left. Two models, two tasks:

    toy language    two layers of four heads, the model of multi_head_attention.py, on held-out sentences
    two look-ups    one layer of eight heads that must look at two places (two_lookups.py), on strings not trained on

In which order? By the gradient of the gates or by the loss when a single head is gone, both known before anything is
removed (head_importance.py); greedily, which measures all that are left again after each step; and, as the control,
at random. A head can go as long as the loss rises by less than 0.01 nats.

    python phase2_multi_head/pruning/head_pruning.py
    python phase2_multi_head/pruning/head_pruning.py --seeds 3

Writes head_pruning.png to visualizations/plots/phase2/.
"""

import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from phase2_multi_head.multi_head_attention import load_multi_head_model
from phase2_multi_head.pruning import two_lookups
from phase2_multi_head.pruning.head_importance import (
    Measured,
    curve,
    divided_by_layer,
    gradient_importance,
    greedy_order,
    loss_without,
    measured_language_model,
    rank_correlation,
    removable,
    removal_importance,
)
from shared import cli, paths, training
from shared.evidence import findings
from shared.evidence.findings import Finding
from shared.visualization_utils import HIDDEN, INK, QUIET, head_color, model_note, save_figure

TOLERANCE = 0.01  # nats that the loss may rise
HEADS = 8  # for two look-ups
LANGUAGE, LOOKUPS = "toy language", "two look-ups"
GRADIENT, REMOVAL, GREEDY = "smallest gradient first", "cheapest alone first", "greedy, measured again"
COLORS = {GRADIENT: head_color(0), REMOVAL: head_color(1), GREEDY: INK}
LINES = {GRADIENT: "-", REMOVAL: "--", GREEDY: "-"}  # the dashed one often runs on another


@dataclass(frozen=True)
class Sizes:
    """How much is measured, and how many steps the models of two look-ups are trained."""

    sentences: int
    strings: int
    lookup_models: int
    random_orders: int
    steps: int


FULL = Sizes(training.NUM_HELD_OUT, two_lookups.NUM_TEST, lookup_models=2, random_orders=6, steps=200)
QUICK = Sizes(40, 40, lookup_models=1, random_orders=2, steps=training.QUICK_STEPS)


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
        return removable(self.curves[GREEDY], TOLERANCE)


def prune(model: Measured, seed: int, random_orders: int) -> Pruning:
    """Remove the heads of one model in every order; the seed shuffles the random ones."""
    loss = cache(partial(loss_without, model))  # orders share many of their steps
    removal, gradient = removal_importance(model, loss), gradient_importance(model)
    orders = {
        GRADIENT: sorted(model.heads, key=lambda head: gradient[head].item()),
        REMOVAL: sorted(model.heads, key=lambda head: removal[head].item()),
        GREEDY: greedy_order(model.heads, loss),
    }
    shuffle = random.Random(seed)
    shuffled = [shuffle.sample(model.heads, len(model.heads)) for _ in range(random_orders)]
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


def span(values: list[int]) -> str:
    """[2, 2] -> "2"; [1, 2] -> "1 to 2", where models differ."""
    return str(min(values)) if min(values) == max(values) else f"{min(values)} to {max(values)}"


def draw(runs: Runs, learned: bool, note: str) -> tuple[Figure, str]:
    """A panel for each task: how far the loss rises against the number of heads removed, mean over its models."""
    fig, axes = plt.subplots(1, 2, figsize=(10, 4.8), sharey=True, layout="constrained")
    for ax, (task, prunings) in zip(axes, runs.items(), strict=True):
        draw_curves(ax, prunings)
        models = f" (mean of {len(prunings)} models)" if len(prunings) > 1 else ""
        ax.set_title(f"{task}, heads in each layer: {prunings[0].removal.size(1)}{models}", pad=8)
    axes[0].set_ylabel("rise of the loss (nats)")
    axes[1].legend(frameon=False, fontsize=9, labelcolor="linecolor", loc="lower right", bbox_to_anchor=(1, -0.02))
    language, lookups = (
        f"{span([run.can_go for run in prunings])} of {prunings[0].removal.numel()}" for prunings in runs.values()
    )
    title = f"For less than {TOLERANCE} nats {language} heads can go in the toy language, {lookups} in two look-ups"
    if not learned:
        title = "Trained too little: nothing is learned yet that goes away with a head"
    fig.suptitle(title, fontsize=13)
    model_note(fig, note)
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


def show(task: str, run: Pruning) -> None:
    """Print one model, a row for each order; heads in the order of layers."""
    print(f"\n{task}: loss {run.full_loss:.4f} nats with all heads")
    for name, importance in (("rise without one head", run.removal), ("gradient of its gate", run.gradient)):
        digits = 3 if importance.max() > 0.01 else 5
        print(f"   {name:24}" + "".join(f"{value:>9.{digits}f}" for value in importance.flatten().tolist()))
    print(f"   {'heads removed':24}" + "".join(f"{count:>9}" for count in range(1, run.removal.numel() + 1)))
    averaged = [statistics.mean(rises) for rises in zip(*run.random_curves, strict=True)]
    for name, rises in (run.curves | {"random orders, mean": averaged}).items():
        print(f"   {name:24}" + "".join(f"{rise:>9.3f}" for rise in rises[1:]))
    print(f"   for less than {TOLERANCE} nats {run.spared_alone} can each go alone, {run.can_go} together")


def of(runs: Runs, value: Callable[[Pruning], float]) -> dict[str, list[float]]:
    """Something measured, for each model -> by task."""
    return {task: [value(run) for run in prunings] for task, prunings in runs.items()}


def findings_on_number(runs: Runs, seeds: list[int]) -> list[Finding]:
    """How many heads can go."""
    smallest = of(runs, lambda run: run.removal.min().item())
    alone, together = of(runs, lambda run: run.spared_alone), of(runs, lambda run: run.spared_together)
    share = of(runs, lambda run: run.can_go / run.removal.numel())
    by_chance = of(
        runs, lambda run: statistics.mean(removable(c, TOLERANCE) for c in run.random_curves) / run.removal.numel()
    )
    return [
        Finding(
            "C064",
            "Removing any head hurts",
            "course notes; against it Michel et al. 2019",
            {f"{task}, smallest rise": values for task, values in smallest.items()}
            | {f"{task}, heads that can each go": values for task, values in alone.items()},
            "rise of the loss without one head, nats; number of heads",
            "each head of each model costs at least 0.01 nats; failing that, each head of the language models",
            **findings.conditional(
                min(smallest[LANGUAGE] + smallest[LOOKUPS]) >= TOLERANCE,
                min(smallest[LANGUAGE]) >= TOLERANCE,
                "the task leaves no head to spare: the toy language with four in a layer, not two look-ups with eight",
            ),
            seeds=seeds,
        ),
        Finding(
            "pruning-share",
            "A good share of the heads can be removed from a trained model: a fifth and more",
            "Michel et al. 2019: 20 % in a translation model, 40 % in BERT",
            share | {f"{task}, in random order": values for task, values in by_chance.items()},
            "share of heads that can go for less than 0.01 nats, removed greedily, not trained again",
            "at least 0.2 in every model",
            findings.verdict(min(share[LANGUAGE] + share[LOOKUPS]) >= 0.2),
            control="removal in random order",
            seeds=seeds,
        ),
        Finding(
            "pruning-together",
            "Heads that can each be spared can be spared together",
            "what a list of single removals seems to say",
            {f"{LOOKUPS}, heads that can each go": alone[LOOKUPS], "rise without all of them": together[LOOKUPS]},
            "number of heads; nats",
            "less than 0.01 nats in every model of two look-ups with two such heads or more",
            findings.verdict(
                all(rise < TOLERANCE for n, rise in zip(alone[LOOKUPS], together[LOOKUPS], strict=True) if n > 1)
            ),
            seeds=seeds,
        ),
    ]


def findings_on_foresight(runs: Runs, half: list[float], seeds: list[int]) -> list[Finding]:
    """Whether one can know beforehand which."""
    agree = of(runs, lambda run: rank_correlation(run.removal, run.gradient))
    divided = of(runs, lambda run: rank_correlation(run.removal, divided_by_layer(run.gradient)))
    by_gradient = of(runs, lambda run: removable(run.curves[GRADIENT], TOLERANCE))
    greedily = of(runs, lambda run: run.can_go)
    return [
        Finding(
            "pruning-gradient",
            "The gradient tells beforehand which heads matter most",
            "Michel et al. 2019",
            agree
            | {f"{LANGUAGE}, divided by the norm of the layer": divided[LANGUAGE]}
            | {f"{LANGUAGE}, on the first half of the sentences": half},
            "rank correlation of the gradient and the rise of the loss without the head",
            "at least 0.7 in every model; eight ranks are few: see how far half of the sentences moves the number",
            findings.verdict(min(agree[LANGUAGE] + agree[LOOKUPS]) >= 0.7),
            control=f"heads that can go, smallest gradient first: {by_gradient}; greedily: {greedily}",
            seeds=seeds,
        )
    ]


def main(argv: list[str] | None = None) -> None:
    options = cli.parse(cli.parser(__doc__), argv)
    seeds = cli.seeds(options)
    language = [load_multi_head_model(options, seed) for seed in seeds]
    sizes = QUICK if options.quick else FULL
    lookup_seeds = range(seeds.start, max(seeds.stop, seeds.start + sizes.lookup_models))
    lookups = [two_lookups.train(HEADS, seed, sizes.steps, sizes.strings) for seed in lookup_seeds]
    models = {
        LANGUAGE: [measured_language_model(trained, sizes.sentences) for trained in language],
        LOOKUPS: [trained.measured() for trained in lookups],
    }
    runs = {task: [prune(model, options.seed, sizes.random_orders) for model in each] for task, each in models.items()}
    for task, prunings in runs.items():
        for run in prunings:
            show(task, run)
    right = [trained.right() for trained in lookups]
    print(f"\nTwo look-ups with all heads, right answers: {', '.join(f'{share:.3f}' for share in right)}")

    halves = [measured_language_model(trained, sizes.sentences // 2) for trained in language]
    half = [rank_correlation(removal_importance(model), gradient_importance(model)) for model in halves]
    learned = min(right) >= 0.9 and language[0].recipe.steps > training.QUICK_STEPS
    entropy = training.head_entropy(language[0].model, training.corpus()[1][: sizes.sentences], "masked word")
    note = (
        f"{language[0].label} (toy language, normalised entropy {statistics.mean(map(statistics.mean, entropy)):.2f}) "
        f"and {sizes.steps} (two look-ups), none after a removal; "
        f"random orders: {sizes.random_orders} a model"
    )
    figure, caption = draw(runs, learned, note)
    save_figure(figure, options.output_dir / paths.PLOTS / "phase2" / f"head_pruning.{options.format}", caption=caption)
    recorded = findings_on_number(runs, list(lookup_seeds)) + findings_on_foresight(runs, half, list(lookup_seeds))
    findings.record("phase2_multi_head/pruning/head_pruning.py", recorded, options.output_dir)


if __name__ == "__main__":
    cli.run(main)
