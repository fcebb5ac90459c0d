"""What do four heads learn that one head does not?

Every head is scored on held-out sentences: how often does it look at the word that the grammar relates to its query?
Two baselines decide what such a score is worth, the best fixed offset and the same models before training. Three models
are compared: one layer with one head, one layer with four (the same number of parameters, so that only the number of
heads differs), and two layers with four.

    python phase2_multi_head/heads/one_or_four_heads.py
    python phase2_multi_head/heads/one_or_four_heads.py --seeds 3

Writes head_roles.png to visualizations/plots/phase2/.
"""

import math
import statistics
from dataclasses import dataclass

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from torch import Tensor

from phase1_single_head.self_attention import load_single_head_model, make_single_head
from phase2_multi_head.multi_head_attention import MultiHeadAttention, load_multi_head_model, load_one_layer_model
from shared import cli, training
from shared.evidence import findings
from shared.evidence.claims import EXPERIMENT, Claim, Numbers, measures
from shared.grammar.scores import DIRECTIONS, best_heads, offset_baselines, relation_name, score_heads
from shared.training import Trained, attention_on, held_out_loss
from shared.visualization_utils import INK, QUIET, grouped_bars, head_color, headline, save_plot

# The adjective is left out: it carries no information about its noun and serves as a control.
CORE_RELATIONS = ("determiner-noun", "verb-subject", "verb-place")
CONTROL = "adjective-noun"
ONE, FOUR, DEEP = "one head, one layer", "four heads, one layer", "four heads, two layers"
COLORS = {ONE: "#c9d0d8", FOUR: "#8592a0", DEEP: INK}  # no head colours: these are models
BASELINE = {"color": "black", "linewidth": 1.5, "path_effects": [withStroke(linewidth=3, foreground="white")]}


@dataclass
class Roles:
    """One model: relation -> (L, H, 2) accuracies of its heads, trained and untrained, and its held-out loss."""

    trained: Trained
    scores: dict[str, Tensor]
    untrained_scores: dict[str, Tensor]
    loss: float


def measure(trained: Trained, make_attention: training.MakeAttention) -> Roles:
    """Score all heads of a model on the held-out sentences, and those of its untrained twin."""
    held_out = training.corpus()[1]
    scores = [
        score_heads(attention_on(model, held_out, trained.recipe.objective)[0], held_out)
        for model in (trained.model, training.untrained(trained.recipe, make_attention, "cpu").model)
    ]
    return Roles(trained, *scores, held_out_loss(trained))


def best(scores: dict[str, Tensor]) -> dict[str, float]:
    """Relation -> accuracy of the best head in its better direction."""
    return {relation: head.accuracy for relation, head in best_heads(scores).items()}


Runs = dict[str, list[Roles]]  # model -> one for each seed


def learned(relation: str) -> Claim:
    """The claim that some head learns a relation."""
    return Claim(
        id=f"roles-{relation}",
        text=f"Without being told, some head learns {relation.replace('-', ' → ')}",
        source="course notes; scored as in Clark et al. 2019",
        kind=EXPERIMENT,
        rule="at least 0.90, and 0.15 above the best fixed offset, with every seed",
        holds=lambda n: min(n[f"{DEEP}, {relation}"]) >= max(0.90, n[f"best fixed offset, {relation}"] + 0.15),
        oracle={f"{DEEP}, {relation}": [1.0], f"best fixed offset, {relation}": 0.5},
        null={f"{DEEP}, {relation}": [0.5], f"best fixed offset, {relation}": 0.5},
        unit="share of held-out pairs, either direction, best head",
        control="best fixed offset; the same model untrained",
        shows=tuple(f"{name}, {relation}" for name in (DEEP, "best fixed offset", "best untrained head")),
    )


def relations_missed(n: Numbers) -> list[int]:
    """In how many of the relations the best of one head stays below 0.70, for each seed."""
    by_seed = zip(*(n[f"{ONE}, {relation}"] for relation in CORE_RELATIONS), strict=True)
    return [sum(accuracy < 0.70 for accuracy in row) for row in by_seed]


@measures(
    *map(learned, CORE_RELATIONS),
    Claim(
        id="C067",
        text="A single head is limited: it has one way to decide what is relevant",
        kind=EXPERIMENT,
        rule="one head in one layer stays below 0.70 on at least two of the three relations, with every seed",
        holds=lambda n: min(relations_missed(n)) >= 2,
        oracle={f"{ONE}, {relation}": [0.5] for relation in CORE_RELATIONS},
        null={f"{ONE}, {relation}": [1.0] for relation in CORE_RELATIONS},
        unit="share of held-out pairs, best head",
        control="four heads in one layer, with the same number of parameters",
        shows=tuple(f"{name}, {relation}" for relation in CORE_RELATIONS for name in (ONE, FOUR)),
    ),
    Claim(
        id="C066",
        text="Multi-head attention performs significantly better than a single head",
        kind=EXPERIMENT,
        rule="four heads in one layer beat one head in one layer by 0.05 nats or more, with every seed",
        holds=lambda n: min(a - b for a, b in zip(n[f"{ONE}, loss"], n[f"{FOUR}, loss"], strict=True)) >= 0.05,
        oracle={f"{ONE}, loss": [1.8], f"{FOUR}, loss": [1.4]},
        null={f"{ONE}, loss": [1.8], f"{FOUR}, loss": [1.8]},
        unit="held-out loss, nats per hidden word",
        control="the same data, parameters and training steps",
        shows=("*, loss",),
    ),
    Claim(
        id="roles-adjective-noun",
        text="A head that follows a relation well has learned the relation",
        source="control for the three claims on what heads learn",
        kind=EXPERIMENT,
        rule="the best head is at least 0.15 above the best fixed offset",
        holds=lambda n: min(n[f"{DEEP}, {CONTROL}"]) >= n[f"best fixed offset, {CONTROL}"] + 0.15,
        oracle={f"{DEEP}, {CONTROL}": [1.0], f"best fixed offset, {CONTROL}": 0.5},
        null={f"{DEEP}, {CONTROL}": [1.0], f"best fixed offset, {CONTROL}": 1.0},
        unit="share of held-out pairs",
        control="adjectives carry no information about their noun and stand right before it",
        shows=(f"{DEEP}, {CONTROL}", f"best fixed offset, {CONTROL}"),
    ),
)
def what_heads_learn(runs: Runs, offsets: dict[str, float]) -> dict[str, float | list[float]]:
    """Accuracy of the best head in each relation, by model, with both baselines; held-out losses."""
    numbers: dict[str, float | list[float]] = {}
    for relation, offset in offsets.items():
        numbers[f"best fixed offset, {relation}"] = offset
        numbers[f"best untrained head, {relation}"] = [best(run.untrained_scores)[relation] for run in runs[DEEP]]
        numbers |= {f"{name}, {relation}": [best(run.scores)[relation] for run in runs[name]] for name in runs}
    return numbers | {f"{name}, loss": [run.loss for run in runs[name]] for name in runs}


def at_least(share: float) -> str:
    """A share for "... or more": rounded down to hundredths."""
    return f"{math.floor(100 * share + 1e-9) / 100:.2f}"


def draw(runs: Runs, numbers: Numbers, offsets: dict[str, float]) -> tuple[Figure, str]:
    """Left: the best head of each model per relation. Right: every head of the deep model and its best relation."""
    fig, (left, right) = plt.subplots(1, 2, figsize=(10.6, 4.9), width_ratios=(1.25, 1), layout="constrained")
    draw_models(left, numbers, offsets)
    draw_heads(right, runs[DEEP][0], offsets)
    lowest = at_least(min(min(numbers[f"{DEEP}, {relation}"]) for relation in CORE_RELATIONS))
    highest = max(max(numbers[f"{ONE}, {relation}"]) for relation in CORE_RELATIONS)
    title = f"Three relations: four heads in two layers find {lowest} or more, one head {highest:.2f} at most"
    trained = runs[DEEP][0].trained
    entropy = training.head_entropy(trained.model, training.corpus()[1], trained.recipe.objective)
    note = f"{trained.label}, seeds: {len(runs[DEEP])}; {training.NUM_HELD_OUT} held-out sentences"
    headline(fig, title, f"{note} · normalised entropy {statistics.mean(map(statistics.mean, entropy)):.2f}")
    return fig, title + ". Share of held-out words whose most attended word is the one the grammar relates to them."


def draw_models(ax: Axes, numbers: Numbers, offsets: dict[str, float]) -> None:
    """A group of bars for each relation, one bar a model (mean over seeds), with both baselines."""
    names = [r.replace("-", "–\n") + ("" if r in CORE_RELATIONS else "\n(control)") for r in offsets]
    means = {name: [statistics.mean(numbers[f"{name}, {relation}"]) for relation in offsets] for name in COLORS}
    places = grouped_bars(ax, names, means, COLORS, width=0.78, clear_of=list(offsets.values()))
    for x, name in zip(places, COLORS, strict=True):
        for position, relation in zip(x, offsets, strict=True):
            seeds = numbers[f"{name}, {relation}"]
            if len(seeds) > 1:
                ax.plot([position] * len(seeds), seeds, ".", color="black", markersize=4, zorder=4)
    for group, relation in enumerate(offsets):
        for kind, style in (("best fixed offset", "-"), ("best untrained head", ":")):
            height = numbers[f"{kind}, {relation}"]
            height = max(height) if isinstance(height, list) else height
            label = None if group else kind
            ax.plot((group - 0.39, group + 0.39), [height] * 2, linestyle=style, label=label, **BASELINE)
    ax.set(ylim=(0, 1.42), yticks=(0, 0.5, 1), ylabel="share right, best head")
    ax.set_title("the best head of each model", color=QUIET)
    ax.legend(frameon=False, fontsize=8.5, ncols=2, loc="upper left", borderaxespad=0)


def draw_heads(ax: Axes, roles: Roles, offsets: dict[str, float]) -> None:
    """A bar for each head: the relation in which it is furthest above the best fixed offset, with both baselines."""
    chance = best(roles.untrained_scores)
    num_layers, num_heads = next(iter(roles.scores.values())).shape[:2]
    heads = [(layer, head) for layer in range(num_layers) for head in range(num_heads)]
    for row, (layer, head) in enumerate(heads):
        relation = max(CORE_RELATIONS, key=lambda r: roles.scores[r][layer, head].max().item() - offsets[r])
        accuracy, direction = roles.scores[relation][layer, head].max(dim=-1)
        value, name = accuracy.item(), relation_name(relation, DIRECTIONS[int(direction)])
        ax.barh(row, value, color=head_color(head), alpha=1 if value > offsets[relation] else 0.35, height=0.7)
        for baseline, style in ((offsets[relation], "-"), (chance[relation], ":")):
            ax.plot([baseline] * 2, [row - 0.35, row + 0.35], linestyle=style, **BASELINE)
        ax.text(1.03, row, f"{name} {value:.2f}", va="center", fontsize=8.5)
    ax.set_yticks(range(len(heads)), [f"layer {layer} head {head}" for layer, head in heads], fontsize=9)
    ax.set(xlim=(0, 1.75), xticks=(0, 0.5, 1))
    ax.set_title("best relation of each head (pale: an offset wins)", color=QUIET)
    ax.invert_yaxis()
    ax.tick_params(length=0)
    ax.spines.bottom.set_visible(False)


def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    runs: Runs = {ONE: [], FOUR: [], DEEP: []}
    for seed in cli.seeds(options):
        runs[ONE].append(measure(load_single_head_model(options, seed), make_single_head))
        runs[FOUR].append(measure(load_one_layer_model(options, seed), MultiHeadAttention))
        runs[DEEP].append(measure(load_multi_head_model(options, seed), MultiHeadAttention))
    offsets = offset_baselines(training.corpus()[1])
    numbers = what_heads_learn(runs, offsets)
    save_plot(options, "phase2/head_roles", *draw(runs, numbers, offsets))
    findings.record(options, numbers)
    found = [f"{min(numbers[f'{DEEP}, {relation}']):.2f}" for relation in CORE_RELATIONS]
    return f"Who belongs to whom: {', '.join(found)} of determiners, verbs and places by the best head"


if __name__ == "__main__":
    cli.run(main)
