"""What do four heads bring over one, and a second layer over one?

Three models guess hidden words, after the same steps on the same batches: one head in one layer; four heads in one
layer, with the same number of parameters; four heads in each of two layers. What does each lose above the best possible
loss, the grammar's own entropy? And which relations of the grammar do its heads learn?

Every head is scored on held-out sentences: how often does it look at the word that the grammar relates to its query?
The best of several heads has been lucky, too: it is chosen on one half of the sentences and scored on the other. Two
baselines decide what such a score is worth, the best fixed offset and the same model before training.

    python phase2_multi_head/heads/one_or_four_heads.py
    python phase2_multi_head/heads/one_or_four_heads.py --seeds 3

Writes head_roles.png to visualizations/plots/phase2/.
"""

import statistics

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from phase1_single_head.models import load_single_head_model
from phase2_multi_head.heads.heads_vs_loss import NUM_SENTENCES, QUICK_SENTENCES
from phase2_multi_head.models import load_multi_head_model, load_one_layer_model
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from shared import cli, training
from shared.evidence import findings
from shared.evidence.claims import EXPERIMENT, Above, Claim, Measured, Numbers, measures
from shared.grammar.entropy import Question, excess_loss, floor, questions
from shared.grammar.scores import CORE_RELATIONS, chosen_and_scored, offset_baselines
from shared.training import Trained
from shared.visualization_utils import GREY, HIDDEN, INK, QUIET, headline, role_color, save_plot

CONTROL = "adjective-noun"
REQUIRED = 0.90
ONE, FOUR, DEEP = "one head, one layer", "four heads, one layer", "four heads, two layers"
MODELS = (ONE, FOUR, DEEP)
UNTRAINED = "best head before training"
LOSS, FLOOR = "excess loss", "the grammar's entropy"


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
    one, four, deep = (n[f"{name}, {LOSS}"] for name in MODELS)
    return min(one - four, four - deep)


def losses(one: float, four: float, deep: float) -> dict[str, float]:
    """What the three models lose, by the names under which it is recorded."""
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
def what_heads_learn(
    one: Trained, four: Trained, deep: Trained, untrained: Trained, asked: list[Question]
) -> dict[str, float]:
    """By model the accuracy of the chosen head in each relation, with both baselines; and what it loses."""
    held_out = training.corpus()[1]
    found = {
        "best fixed offset": offset_baselines(held_out[len(held_out) // 2 :]),
        UNTRAINED: chosen_and_scored(untrained),
        ONE: chosen_and_scored(one),
        FOUR: chosen_and_scored(four),
        DEEP: chosen_and_scored(deep),
    }
    numbers = {f"{name}, {relation}": value for name, scores in found.items() for relation, value in scores.items()}
    numbers |= losses(*(loss_of(trained, asked) for trained in (one, four, deep)))
    return numbers | {FLOOR: floor(asked)}


def draw(runs: list[Measured], note: str) -> tuple[Figure, str]:
    """A row for each model: what it loses, and of each relation how often its best head is right."""
    fig, (first, *others) = plt.subplots(
        1, 1 + len(CORE_RELATIONS), figsize=(9, 3.6), width_ratios=(1.1, 1, 1, 1), sharey=True, layout="constrained"
    )
    draw_losses(first, runs)
    for ax, relation in zip(others, CORE_RELATIONS, strict=True):
        draw_relation(ax, runs, relation)
    others[1].set_xlabel("share of the pairs that the best head gets right", color=QUIET)
    first.set_yticks(range(len(MODELS)), [name.replace(", ", "\n") for name in MODELS])
    first.invert_yaxis()
    for ax in (first, *others):
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
    title = "One head misses the place of a verb; four find it"
    if not all(n[f"{ONE}, verb-place"] < 0.5 and n[f"{FOUR}, verb-place"] > 0.75 for n in runs):
        title = "Three models: what they lose, and which words their heads find"
    headline(fig, title, note)
    return fig, (
        f"{title}. One head in one layer, four heads in one layer, four heads in each of two layers: what each loses "
        "above the grammar's entropy, and how often its best head finds the right word, beside the best fixed offset."
    )


def draw_losses(ax: Axes, runs: list[Measured]) -> None:
    """A bar for each model, the mean over seeds; each seed is a dot."""
    for row, name in enumerate(MODELS):
        of_seeds = [n[f"{name}, {LOSS}"] for n in runs]
        mean = statistics.mean(of_seeds)
        ax.barh(row, mean, color=GREY, height=0.5)
        if len(runs) > 1:
            ax.plot(of_seeds, [row] * len(runs), ".", color=INK, markersize=4)
        ax.annotate(f"{mean:.2f}", (max(of_seeds), row), (6, 0), textcoords="offset points", va="center")
    ax.set(xlim=(0, 1.35 * ax.dataLim.xmax), xticks=[])
    ax.set_title("loss above the best\npossible, in nats")


def draw_relation(ax: Axes, runs: list[Measured], relation: str) -> None:
    """A dot for the best head of each model, the mean over seeds, and a tick for the best fixed offset."""
    offset, color = runs[0][f"best fixed offset, {relation}"], role_color(relation)
    for row, name in enumerate(MODELS):
        of_seeds = [n[f"{name}, {relation}"] for n in runs]
        mean = statistics.mean(of_seeds)
        ax.plot((0, 1), (row, row), color=HIDDEN, linewidth=4, solid_capstyle="round", zorder=0)
        ax.plot((offset, offset), (row - 0.22, row + 0.22), color=INK, linewidth=1.8)
        ax.plot(of_seeds, [row] * len(runs), "o", color=color, markersize=4, alpha=0.6, markeredgewidth=0)
        ax.plot(mean, row, "o", color=color, markersize=11, zorder=3)
        ax.text(1.1, row, f"{mean:.2f}", color=color, va="center")
    ax.set(xlim=(-0.06, 1.34))
    ax.set_xticks((0, offset, 1), ("0", f"best fixed\noffset {offset:.2f}", "1"), fontsize=9, color=QUIET)
    ax.set_title(relation.replace("-", " – "), color=color)


@cli.script
def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    asked = questions(training.corpus()[1][: QUICK_SENTENCES if options.quick else NUM_SENTENCES])
    runs = []
    for seed in cli.seeds(options):
        one, four = load_single_head_model(options, seed), load_one_layer_model(options, seed)
        deep = load_multi_head_model(options, seed)
        untrained = training.untrained(deep.recipe, MultiHeadAttention)
        runs.append(what_heads_learn(one, four, deep, untrained, asked))
    halves = "the best head is chosen on one half of the held-out sentences, scored on the other"
    note = f"{deep.label}, seeds: {len(runs)} · {halves}"
    save_plot(options, "phase2/head_roles", *draw(runs, note))
    findings.record(options, *runs)
    one, four, deep = (statistics.mean(n[f"{name}, {LOSS}"] for n in runs) for name in MODELS)
    return f"Nats above the best loss: {one:.2f} with one head, {four:.2f} with four, {deep:.2f} with a second layer"


if __name__ == "__main__":
    cli.run(main)
