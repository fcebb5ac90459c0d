"""Which relations of the grammar do heads learn, and does one head learn them too?

Every head is scored on held-out sentences: how often does it look at the word that the grammar relates to its query?
The best of several heads has been lucky, too: it is chosen on one half of the sentences and scored on the other. Two
baselines decide what such a score is worth, the best fixed offset and the same model before training. Three models are
compared: one layer with one head, one layer with four (the same number of parameters and steps, so that only the number
of heads differs), and two layers with four.

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

from phase1_single_head.self_attention import load_single_head_model
from phase2_multi_head.heads.heads_vs_loss import (
    NUM_SENTENCES,
    QUICK_SENTENCES,
    Question,
    excess_loss,
    floor,
    questions,
)
from phase2_multi_head.multi_head_attention import MultiHeadAttention, load_multi_head_model, load_one_layer_model
from shared import cli, training
from shared.evidence import findings
from shared.evidence.claims import EXPERIMENT, Above, Claim, Measured, Numbers, measures
from shared.grammar.scores import DIRECTIONS, best_heads, offset_baselines, relation_name, score_heads
from shared.toy_language import RELATIONS, Sentence
from shared.training import Trained, attention_on
from shared.visualization_utils import INK, QUIET, grouped_bars, head_color, headline, save_plot

# The adjective is left out: it carries no information about its noun and serves as a control.
CORE_RELATIONS = ("determiner-noun", "verb-subject", "verb-place")
CONTROL = "adjective-noun"
REQUIRED = 0.90
ONE, FOUR, DEEP = "one head, one layer", "four heads, one layer", "four heads, two layers"
COLORS = {ONE: "#c9d0d8", FOUR: "#8592a0", DEEP: INK}  # no head colours: these are models
UNTRAINED = "best head before training"
LOSS, FLOOR = "excess loss", "the grammar's entropy"
BASELINES = {"best fixed offset": "-", UNTRAINED: ":"}  # and how their lines are drawn
LINE = {"color": "black", "linewidth": 1.5, "path_effects": [withStroke(linewidth=3, foreground="white")]}


@dataclass(frozen=True)
class Roles:
    """One model: of all its heads, relation -> accuracy (L, H, 2); and relation -> accuracy of the chosen head."""

    trained: Trained
    scores: dict[str, Tensor]
    chosen: dict[str, float]


def best(scores: dict[str, Tensor]) -> dict[str, float]:
    """Relation -> accuracy of the best head in its better direction."""
    return {relation: head.accuracy for relation, head in best_heads(scores).items()}


def chosen_and_scored(layers: list[Tensor], sentences: list[Sentence]) -> dict[str, float]:
    """Relation -> accuracy on the second half of the sentences, by the head and direction best on the first half.

    layers: weights (N, H, T, T) of each.
    """
    half = len(sentences) // 2
    first, second = (
        score_heads([weights[part] for weights in layers], sentences[part]) for part in (slice(half), slice(half, None))
    )
    return {
        relation: second[relation][head.layer, head.head, DIRECTIONS.index(head.direction)].item()
        for relation, head in best_heads(first).items()
    }


def roles_of(trained: Trained) -> Roles:
    """Score the heads of a model on the held-out sentences."""
    held_out = training.corpus()[1]
    layers, _ = attention_on(trained.model, held_out, trained.recipe.objective)
    return Roles(trained, score_heads(layers, held_out), chosen_and_scored(layers, held_out))


def is_learned(n: Numbers, relation: str) -> bool:
    """Right in 0.90, and 0.15 more often than the better of the two baselines."""
    baseline = max(n[f"best fixed offset, {relation}"], n[f"{UNTRAINED}, {relation}"])
    return n[f"{DEEP}, {relation}"] >= max(REQUIRED, baseline + 0.15)


def loss_of(trained: Trained, asked: list[Question]) -> float:
    """What a model loses on one hidden word above the grammar's entropy, in nats; on whatever device it is."""
    device = trained.model.positions.device
    return excess_loss(lambda tokens: (trained.model(tokens.to(device))[0].cpu(), None), asked)


def smaller_drop(n: Numbers) -> float:
    """What the smaller of the two changes takes off the loss, in nats: four heads for one, two layers for one."""
    one, four, deep = (n[f"{name}, {LOSS}"] for name in (ONE, FOUR, DEEP))
    return min(one - four, four - deep)


def losses(one: float, four: float, deep: float) -> dict[str, float]:
    """For oracles: what the three models lose."""
    return {f"{ONE}, {LOSS}": one, f"{FOUR}, {LOSS}": four, f"{DEEP}, {LOSS}": deep}


def scored(relations: tuple[str, ...], trained: float, offset: float) -> dict[str, float]:
    """For oracles: the same numbers for each of the relations."""
    values = {DEEP: trained, "best fixed offset": offset, UNTRAINED: 0.3}
    return {f"{name}, {relation}": value for name, value in values.items() for relation in relations}


@measures(
    Claim(
        id="three-roles",
        text="By guessing hidden words alone, heads come to follow determiner – noun, verb – subject and verb – place; "
        "before training none does",
        source="course notes, 'Head Specialization': patterns of trained models, which emerge during training; "
        "scored as in Clark et al. 2019",
        kind=EXPERIMENT,
        rule="for each relation a head that is right in 0.90 of the pairs, and 0.15 more often than the best fixed "
        "offset and than the best head before training",
        holds=lambda n: all(is_learned(n, relation) for relation in CORE_RELATIONS),
        oracle=scored(CORE_RELATIONS, 1.0, 0.5),
        null=scored(CORE_RELATIONS, 0.5, 0.5),
        unit="share of held-out pairs, either direction; head chosen on one half of the sentences, scored on the other",
        control="the best fixed offset, chosen on the half that it is scored on; the same model untrained; one layer "
        "of one head and of four, with the same steps and half the parameters of the two layers",
        changed="three claims and one of phase 3 made one; the best head was chosen and scored on the same sentences",
        headline=True,
        shows=tuple(f"*, {relation}" for relation in CORE_RELATIONS),
    ),
    Claim(
        id="roles-adjective-noun",
        text="A high score is no sign that a relation was learned: heads also find the adjective of a noun, about "
        "which there is nothing to learn",
        source="control for three-roles",
        kind=EXPERIMENT,
        rule="a head that is right in 0.90, though no head is 0.15 better than the best fixed offset",
        holds=lambda n: n[f"{DEEP}, {CONTROL}"] >= REQUIRED and not is_learned(n, CONTROL),
        oracle=scored((CONTROL,), 0.95, 1.0),
        null=scored((CONTROL,), 0.5, 1.0),
        unit="share of held-out pairs, either direction; head chosen on one half of the sentences, scored on the other",
        control="adjectives carry no information about their noun and stand right before it",
        changed="asked for 0.15 above an offset that is always right, which nothing can reach",
        headline=True,
        shows=(f"*, {CONTROL}",),
    ),
    Claim(
        id="one-change-one-drop",
        text="Each change by itself lowers the loss: four heads in place of one, then two layers in place of one",
        source="our question: what does each part of the model bring?",
        kind=EXPERIMENT,
        rule="each of the two changes takes off more than 0.02 nats",
        holds=Above(smaller_drop, 0.02),
        oracle=losses(0.3, 0.15, 0.08),
        null=losses(0.3, 0.3, 0.3),
        unit=f"nats above the grammar's entropy for one hidden word of a held-out sentence, {NUM_SENTENCES} sentences",
        control="the same steps and batches; four heads have the matrices of one, cut (and biases); two layers have "
        "twice the parameters of one layer, and a weight decay of their own, 0.5 for 0.1",
        shows=(f"*, {LOSS}", FLOOR),
    ),
)
def what_heads_learn(one: Roles, four: Roles, deep: Roles, untrained: Roles, asked: list[Question]) -> dict[str, float]:
    """By model the accuracy of the chosen head in each relation, with both baselines; and what it loses."""
    held_out = training.corpus()[1]
    found = {
        "best fixed offset": offset_baselines(held_out[len(held_out) // 2 :]),
        UNTRAINED: untrained.chosen,
        ONE: one.chosen,
        FOUR: four.chosen,
        DEEP: deep.chosen,
    }
    numbers = {f"{name}, {relation}": value for name, scores in found.items() for relation, value in scores.items()}
    numbers |= losses(*(loss_of(roles.trained, asked) for roles in (one, four, deep)))
    return numbers | {FLOOR: floor(asked)}


def at_least(share: float) -> str:
    """A share for "... or more": rounded down to hundredths."""
    return f"{math.floor(100 * share + 1e-9) / 100:.2f}"


def draw(runs: list[Measured], deep: Roles, untrained: Roles) -> tuple[Figure, str]:
    """Left: the chosen head of each model per relation. Right: every head of the deep model and its best relation."""
    fig, (left, right) = plt.subplots(1, 2, figsize=(10.6, 4.9), width_ratios=(1.25, 1), layout="constrained")
    draw_models(left, runs)
    draw_heads(right, deep, best(untrained.scores))
    lowest = at_least(min(n[f"{DEEP}, {relation}"] for n in runs for relation in CORE_RELATIONS))
    highest = max(n[f"{ONE}, {relation}"] for n in runs for relation in CORE_RELATIONS)
    title = f"Three relations: four heads in two layers find {lowest} or more, one head {highest:.2f} at most"
    entropy = training.head_entropy(deep.trained.model, training.corpus()[1], deep.trained.recipe.objective)
    note = f"{deep.trained.label}, seeds: {len(runs)}; {training.NUM_HELD_OUT} held-out sentences"
    headline(fig, title, f"{note} · normalised entropy {statistics.mean(map(statistics.mean, entropy)):.2f}")
    return fig, title + ". Share of held-out words whose most attended word is the one the grammar relates to them."


def draw_models(ax: Axes, runs: list[Measured]) -> None:
    """A group of bars for each relation, one bar a model (mean over seeds), with both baselines."""
    names = [r.replace("-", "–\n") + ("" if r in CORE_RELATIONS else "\n(control)") for r in RELATIONS]
    of = {name: [[n[f"{name}, {r}"] for n in runs] for r in RELATIONS] for name in (*COLORS, *BASELINES)}
    means = {name: [statistics.mean(seeds) for seeds in of[name]] for name in COLORS}
    offsets = [seeds[0] for seeds in of["best fixed offset"]]
    places = grouped_bars(ax, names, means, COLORS, width=0.78, clear_of=offsets)
    for x, name in zip(places, COLORS, strict=True):
        for position, seeds in zip(x, of[name], strict=True):
            if len(seeds) > 1:
                ax.plot([position] * len(seeds), seeds, ".", color="black", markersize=4, zorder=4)
    for name, style in BASELINES.items():
        for group, seeds in enumerate(of[name]):
            label = None if group else name
            ax.plot((group - 0.39, group + 0.39), [max(seeds)] * 2, linestyle=style, label=label, **LINE)
    ax.set(ylim=(0, 1.42), yticks=(0, 0.5, 1), ylabel="share right, best head")
    ax.set_title("the best head of each model", color=QUIET)
    ax.legend(frameon=False, fontsize=8.5, ncols=2, loc="upper left", borderaxespad=0)


def draw_heads(ax: Axes, roles: Roles, chance: dict[str, float]) -> None:
    """A bar for each head: the relation in which it is furthest above the best fixed offset, with both baselines.

    chance: relation -> accuracy of the best untrained head.
    """
    offsets = offset_baselines(training.corpus()[1])
    num_layers, num_heads = next(iter(roles.scores.values())).shape[:2]
    heads = [(layer, head) for layer in range(num_layers) for head in range(num_heads)]
    for row, (layer, head) in enumerate(heads):
        relation = max(CORE_RELATIONS, key=lambda r: roles.scores[r][layer, head].max().item() - offsets[r])
        accuracy, direction = roles.scores[relation][layer, head].max(dim=-1)
        value, name = accuracy.item(), relation_name(relation, DIRECTIONS[int(direction)])
        ax.barh(row, value, color=head_color(head), alpha=1 if value > offsets[relation] else 0.35, height=0.7)
        for baseline, style in zip((offsets[relation], chance[relation]), BASELINES.values(), strict=True):
            ax.plot([baseline] * 2, [row - 0.35, row + 0.35], linestyle=style, **LINE)
        ax.text(1.03, row, f"{name} {value:.2f}", va="center", fontsize=8.5)
    ax.set_yticks(range(len(heads)), [f"layer {layer} head {head}" for layer, head in heads], fontsize=9)
    ax.set(xlim=(0, 1.75), xticks=(0, 0.5, 1))
    ax.set_title("best relation of each head (pale: an offset wins)", color=QUIET)
    ax.invert_yaxis()
    ax.tick_params(length=0)
    ax.spines.bottom.set_visible(False)


def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    asked = questions(training.corpus()[1][: QUICK_SENTENCES if options.quick else NUM_SENTENCES])
    runs, pictured = [], None
    for seed in cli.seeds(options):
        one, four = roles_of(load_single_head_model(options, seed)), roles_of(load_one_layer_model(options, seed))
        deep = roles_of(load_multi_head_model(options, seed))
        untrained = roles_of(training.untrained(deep.trained.recipe, MultiHeadAttention))
        runs.append(what_heads_learn(one, four, deep, untrained, asked))
        pictured = pictured or (deep, untrained)
    save_plot(options, "phase2/head_roles", *draw(runs, *pictured))
    findings.record(options, *runs)
    found = [at_least(min(n[f"{DEEP}, {relation}"] for n in runs)) for relation in CORE_RELATIONS]
    return f"Who belongs to whom: {', '.join(found)} of determiners, verbs and places by the best head"


if __name__ == "__main__":
    cli.run(main)
