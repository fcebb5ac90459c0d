"""Experiment: what do four heads learn that one head does not?

Every head is scored on held-out sentences: how often does it look at the word that the grammar relates to its query?
Two baselines decide what such a score is worth, the best fixed offset and the same models before training. Three models
are compared: one layer with one head, one layer with four (the same number of parameters, so that only the number of
heads differs), and two layers with four.

    python phase2_multi_head/heads/one_or_four_heads.py
    python phase2_multi_head/heads/one_or_four_heads.py --seeds 3

Writes head_roles.png to visualizations/plots/phase2/.
"""

import argparse
from dataclasses import dataclass

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from torch import Tensor

from phase1_single_head.self_attention import load_single_head_model, make_single_head
from phase2_multi_head.multi_head_attention import MultiHeadAttention, load_multi_head_model, load_one_layer_model
from shared import cli, paths, training
from shared.evidence import findings
from shared.evidence.findings import Finding
from shared.grammar.scores import DIRECTIONS, best_heads, offset_baselines, score_heads
from shared.training import Trained, attention_on, held_out_loss
from shared.visualization_utils import INK, QUIET, head_color, model_note, save_figure

# The adjective is left out: it carries no information about its noun and serves as a control.
CORE_RELATIONS = ("determiner-noun", "verb-subject", "verb-place")
ONE, FOUR, DEEP = "one head, one layer", "four heads, one layer", "four heads, two layers"
COLORS = {ONE: "#c9d0d8", FOUR: "#8592a0", DEEP: INK}  # no head colours: these are models
OUTLINE = [withStroke(linewidth=3, foreground="white")]  # keeps black lines visible across dark bars


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


def draw(runs: dict[str, list[Roles]], offsets: dict[str, float]) -> tuple[Figure, str]:
    """Left: the best head of each model per relation. Right: every head of the deep model and its best relation."""
    fig, (left, right) = plt.subplots(1, 2, figsize=(10.6, 4.9), width_ratios=(1.25, 1), layout="constrained")
    draw_models(left, runs, offsets)
    draw_heads(right, runs[DEEP][0], offsets)
    deep = [best(run.scores) for run in runs[DEEP]]
    one = [best(run.scores) for run in runs[ONE]]
    lowest = min(min(run[relation] for relation in CORE_RELATIONS) for run in deep)
    highest = max(max(run[relation] for relation in CORE_RELATIONS) for run in one)
    title = f"Four heads in two layers: {lowest:.2f} or better on each relation; one head: {highest:.2f} at most"
    fig.suptitle(title, fontsize=13)
    trained = runs[DEEP][0].trained
    seeds = f"{len(deep)} seed{'s' if len(deep) > 1 else ''}"
    entropy = training.head_entropy(trained.model, training.corpus()[1], trained.recipe.objective)
    mean_entropy = sum(map(sum, entropy)) / sum(map(len, entropy))
    model_note(
        fig,
        f"{trained.label}, {seeds}; {training.NUM_HELD_OUT} held-out sentences · normalised entropy {mean_entropy:.2f}",
    )
    return fig, title + ". Share of held-out words whose most attended word is the one the grammar relates to them."


def draw_models(ax: Axes, runs: dict[str, list[Roles]], offsets: dict[str, float]) -> None:
    """A group of bars for each relation, one bar a model (mean over seeds), with both baselines."""
    relations = list(offsets)
    width = 0.26
    for m, (name, roles) in enumerate(runs.items()):
        values = [[best(run.scores)[relation] for relation in relations] for run in roles]
        means = [sum(column) / len(column) for column in zip(*values, strict=True)]
        x = [group + (m - 1) * width for group in range(len(relations))]
        ax.bar(x, means, width * 0.9, color=COLORS[name], label=name)
        for position, mean, relation in zip(x, means, relations, strict=True):
            above = offsets[relation] if 0 <= offsets[relation] - mean < 0.06 else mean  # not across the line
            ax.text(position, above + 0.015, f"{mean:.2f}", ha="center", fontsize=8)
        if len(values) > 1:
            for row in values:
                ax.plot(x, row, ".", color="black", markersize=4, zorder=4)
    chance = [max(best(run.untrained_scores)[relation] for run in runs[DEEP]) for relation in relations]
    for group, relation in enumerate(relations):
        span = (group - 1.5 * width, group + 1.5 * width)
        label = "best fixed offset" if not group else None
        ax.plot(span, [offsets[relation]] * 2, color="black", linewidth=1.6, path_effects=OUTLINE, label=label)
        label = "best untrained head" if not group else None
        ax.plot(
            span, [chance[group]] * 2, color="black", linewidth=1.4, linestyle=":", path_effects=OUTLINE, label=label
        )
    names = [
        relation.replace("-", "–\n") + ("\n(control)" if relation not in CORE_RELATIONS else "")
        for relation in relations
    ]
    ax.set_xticks(range(len(relations)), names)
    ax.set(ylim=(0, 1.42), yticks=(0, 0.5, 1), ylabel="share right, best head")
    ax.set_title("the best head of each model", color=QUIET)
    ax.legend(frameon=False, fontsize=8.5, ncols=2, loc="upper left", borderaxespad=0)
    ax.tick_params(length=0)


def draw_heads(ax: Axes, roles: Roles, offsets: dict[str, float]) -> None:
    """A bar for each head: the relation in which it is furthest above the best fixed offset, with both baselines."""
    chance = best(roles.untrained_scores)
    num_layers, num_heads = next(iter(roles.scores.values())).shape[:2]
    heads = [(layer, head) for layer in range(num_layers) for head in range(num_heads)]
    for row, (layer, head) in enumerate(heads):
        relation = max(CORE_RELATIONS, key=lambda r: roles.scores[r][layer, head].max().item() - offsets[r])
        accuracy, direction = roles.scores[relation][layer, head].max(dim=-1)
        value = accuracy.item()
        source, target = relation.split("-") if DIRECTIONS[int(direction)] == "forward" else relation.split("-")[::-1]
        ax.barh(row, value, color=head_color(head), alpha=1 if value > offsets[relation] else 0.35, height=0.7)
        ax.plot([offsets[relation]] * 2, [row - 0.35, row + 0.35], color="black", linewidth=1.6)
        ax.plot([chance[relation]] * 2, [row - 0.35, row + 0.35], color="black", linewidth=1.4, linestyle=":")
        ax.text(1.03, row, f"{source} → {target} {value:.2f}", va="center", fontsize=8.5)
    ax.set_yticks(range(len(heads)), [f"layer {layer} head {head}" for layer, head in heads], fontsize=9)
    ax.set(xlim=(0, 1.75), xticks=(0, 0.5, 1))
    ax.set_title("best relation of each head (pale: an offset wins)", color=QUIET)
    ax.invert_yaxis()
    ax.tick_params(length=0)
    ax.spines.bottom.set_visible(False)


def record_findings(runs: dict[str, list[Roles]], offsets: dict[str, float], options: argparse.Namespace) -> None:
    seeds = list(cli.seeds(options))
    accuracies = {name: [best(run.scores) for run in roles] for name, roles in runs.items()}
    chance = [best(run.untrained_scores) for run in runs[DEEP]]

    def of(name: str, relation: str) -> list[float]:
        return [run[relation] for run in accuracies[name]]

    emerged = [
        Finding(
            f"roles-{relation}",
            f"Without being told, some head learns {relation.replace('-', ' → ')}",
            "course notes; scored as in Clark et al. 2019",
            {
                "best head": of(DEEP, relation),
                "best fixed offset": offsets[relation],
                "best untrained head": [run[relation] for run in chance],
            },
            "share of held-out pairs, either direction",
            "at least 0.90, and 0.15 above the best fixed offset, with every seed",
            findings.verdict(min(of(DEEP, relation)) >= max(0.90, offsets[relation] + 0.15)),
            control="best fixed offset; the same model untrained",
            seeds=seeds,
        )
        for relation in CORE_RELATIONS
    ]
    failed = [sum(run[relation] < 0.70 for relation in CORE_RELATIONS) for run in accuracies[ONE]]
    losses = {name: [run.loss for run in roles] for name, roles in runs.items()}
    gaps = [one - four for one, four in zip(losses[ONE], losses[FOUR], strict=True)]
    findings.record(
        "phase2_multi_head/heads/one_or_four_heads.py",
        [
            *emerged,
            Finding(
                "C067",
                "A single head is limited: it has one way to decide what is relevant",
                "course notes",
                {f"{name}, {relation}": of(name, relation) for relation in CORE_RELATIONS for name in (ONE, FOUR)},
                "share of held-out pairs, best head",
                "one head in one layer stays below 0.70 on at least two of the three relations, with every seed",
                findings.verdict(min(failed) >= 2),
                control="four heads in one layer, with the same number of parameters",
                seeds=seeds,
            ),
            Finding(
                "C066",
                "Multi-head attention performs significantly better than a single head",
                "course notes",
                losses,
                "held-out loss, nats per hidden word",
                "four heads in one layer beat one head in one layer by 0.05 nats or more, with every seed",
                findings.verdict(min(gaps) >= 0.05),
                control="the same data, parameters and training steps",
                seeds=seeds,
            ),
            Finding(
                "roles-adjective-noun",
                "A head that follows a relation well has learned the relation",
                "control for the three findings above",
                {
                    "best head, adjective → noun": of(DEEP, "adjective-noun"),
                    "best fixed offset": offsets["adjective-noun"],
                },
                "share of held-out pairs",
                "the best head is at least 0.15 above the best fixed offset",
                findings.verdict(min(of(DEEP, "adjective-noun")) >= offsets["adjective-noun"] + 0.15),
                control="adjectives carry no information about their noun and stand right before it",
                seeds=seeds,
            ),
        ],
        options.output_dir,
    )


def main(argv: list[str] | None = None) -> None:
    options = cli.parse(cli.parser(__doc__), argv)
    runs: dict[str, list[Roles]] = {ONE: [], FOUR: [], DEEP: []}
    for seed in cli.seeds(options):
        runs[ONE].append(measure(load_single_head_model(options, seed), make_single_head))
        runs[FOUR].append(measure(load_one_layer_model(options, seed), MultiHeadAttention))
        runs[DEEP].append(measure(load_multi_head_model(options, seed), MultiHeadAttention))
    offsets = offset_baselines(training.corpus()[1])
    figure, caption = draw(runs, offsets)
    path = options.output_dir / paths.PLOTS / "phase2" / f"head_roles.{options.format}"
    save_figure(figure, path, caption=caption)
    record_findings(runs, offsets, options)


if __name__ == "__main__":
    cli.run(main)
