"""How many heads are enough, and what does a second layer bring?

Four models guess hidden words after the same steps on the same batches. They have one, four or
eight heads in one layer, or four heads in each of two layers. In one layer more heads cost no
parameters, because d_model = 64 is only cut into more slices. We ask what each model loses above
the grammar's own entropy, and what share of that is left with more heads. We also ask how often its
best head finds the word that the grammar relates to another. That head is chosen on one half of the
held-out sentences and scored on the other half.
"""

from functools import partial

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from phase1_single_head.models import (
    SINGLE_HEAD_RECIPE,
    load_single_head_model,
    make_single_head,
)
from phase2_multi_head.models import ONE_LAYER_RECIPE, load_multi_head_model, load_one_layer_model
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from shared import charts
from shared.claims import Claim, Numbers
from shared.experiment import Experiment, Results, Run
from shared.grammar.best_reader import Gaps, excess_loss, floor, questions
from shared.grammar.scores import CORE_RELATIONS, chosen_and_scored, offset_baselines
from shared.toy_model import MakeAttention
from shared.training.checkpoints import trained_model
from shared.training.objectives import corpus
from shared.training.recipes import Recipe, untrained_model, variant
from shared.visualization_utils import GREY, WIDE, readable, role_color

MODELS = {  # name -> what loads the model of a seed
    "one head, one layer": load_single_head_model,
    "four heads, one layer": load_one_layer_model,
    "eight heads, one layer": partial(load_one_layer_model, num_heads=8),
    "four heads, two layers": load_multi_head_model,
}
LABELS = {  # in the picture
    "one head, one layer": "1 head",
    "four heads, one layer": "4 heads",
    "eight heads, one layer": "8 heads",
    "four heads, two layers": "2 layers of 4",
}
EARLY = 300  # steps of two more trainings, of one head and of four; all others have 800
NUM_SENTENCES, QUICK_SENTENCES = 150, 20  # of the held-out ones, each word of which is hidden once


def measure(run: Run) -> Numbers:
    """Returns nats above the best loss, and the share of pairs that the best head gets right.

    The models of one layer differ in nothing but the size of their heads; one head alone has no
    biases. Two layers have twice the parameters, and a weight decay of their own, 0.5 for 0.1.
    Rates rise and fall once in each training.
    """
    models = {name: load(run.options, run.seed) for name, load in MODELS.items()}
    held_out = corpus()[1]
    untrained = untrained_model(models["four heads, two layers"].recipe, MultiHeadAttention)
    scores = {name: chosen_and_scored(trained) for name, trained in models.items()}
    scores["best head before training"] = chosen_and_scored(untrained)
    scores["best fixed offset"] = offset_baselines(held_out[len(held_out) // 2 :])
    numbers = {}
    for name, shares in scores.items():
        for relation, share in shares.items():
            numbers[f"{name}, {relation}"] = share
    gaps = questions(held_out[: QUICK_SENTENCES if run.options.quick else NUM_SENTENCES])
    excess = {name: excess_loss(trained.logits, gaps) for name, trained in models.items()}
    for name, loss in excess.items():
        numbers[f"{name}, excess loss"] = loss
    early_one = excess_early(SINGLE_HEAD_RECIPE, make_single_head, run, gaps)
    early_four = excess_early(ONE_LAYER_RECIPE, MultiHeadAttention, run, gaps)
    left = early_four / early_one
    numbers[f"of one head's excess four heads leave after {EARLY} steps"] = left
    four = excess["four heads, one layer"]
    numbers["of one head's excess four heads leave"] = four / excess["one head, one layer"]
    numbers["of four heads' excess eight leave"] = excess["eight heads, one layer"] / four
    numbers["the grammar's entropy"] = floor(gaps)
    return numbers


def excess_early(recipe: Recipe, make: MakeAttention, run: Run, gaps: list[Gaps]) -> float:
    """Returns the excess loss of a model that was trained EARLY steps."""
    trained = trained_model(variant(recipe, steps=EARLY), make, run.options, run.seed)
    return excess_loss(trained.logits, gaps)


def above_baselines(n: Numbers, relation: str) -> float:
    """Returns how much more often the best head is right than the better of the two baselines."""
    baseline = max(n[f"best fixed offset, {relation}"], n[f"best head before training, {relation}"])
    return n[f"four heads, two layers, {relation}"] - baseline


CLAIMS = (
    Claim(
        id="four-heads-half",
        text="Four heads leave about half of what one head loses above the best possible loss. We "
        "asked it of the toy language and of one layer of d_model = 64, after the same 800 steps.",
        source="course notes, 'Multi-Head Attention' and 'Hyperparameter Choices', where several "
        "heads outperform a single one",
        rule="the excess loss with four heads is at most 0.6 of the excess loss with one head",
        effect=lambda n: n["of one head's excess four heads leave"],
        at_most=0.6,
        explored=10,
        oracle={"*": 0.5},
        null={"*": 1.0},
    ),
    Claim(
        id="three-roles",
        text="When a small model learns to guess hidden words, heads come to follow determiner – "
        "noun, verb – subject and verb – place, which no head does before training. The model has "
        "two layers of four heads of 16 numbers, its words start at a size of 0.2, and Muon trains "
        "it with a learning rate of 0.01.",
        source="course notes, 'Head Specialization', of patterns of trained models that emerge "
        "during training; scored as in Clark et al. 2019",
        rule="for each relation there is a head that is right in at least 0.90 of the pairs, and "
        "at least 0.15 more often than the best fixed offset and the best head before training",
        effect=lambda n: min(above_baselines(n, relation) for relation in CORE_RELATIONS),
        at_least=0.15,
        also=lambda n: (
            min(n[f"four heads, two layers, {relation}"] for relation in CORE_RELATIONS) >= 0.90
        ),
        explored=10,
        oracle={
            "four heads, two layers, *": 1.0,
            "best fixed offset, *": 0.5,
            "best head before training, *": 0.3,
        },
        null={
            "four heads, two layers, *": 0.5,
            "best fixed offset, *": 0.5,
            "best head before training, *": 0.3,
        },
        revised="the best head is now chosen on other sentences than those it is scored on",
    ),
)


def picture(results: Results) -> Figure:
    """Draws a row for each model: how often its best head finds two relations; what it loses."""
    fig, axes = plt.subplots(1, 3, figsize=(WIDE, 3.4), sharey=True, layout="constrained")
    panels = {
        "verb-place": ("place of\nthe verb", "{:.0%}"),
        "verb-subject": ("subject of\nthe verb", "{:.0%}"),
        "excess loss": ("excess loss\n(less is better)", "{:.2f}"),
    }
    for ax, (column, (title, number)) in zip(axes, panels.items(), strict=True):
        values = {label: results.each(f"{name}, {column}") for name, label in LABELS.items()}
        color = role_color(column) if column in CORE_RELATIONS else GREY
        guess = results.mean.get(f"best fixed offset, {column}")
        colors = dict.fromkeys(values, color)
        name = f"fixed offset\n{guess:.0%}" if guess else ""
        charts.bars(ax, values, colors, guess=guess, guess_name=name, number=number)
        ax.set_title(title, color=readable(color))
    return fig


main = Experiment(
    measure,
    CLAIMS,
    picture,
    title="One head misses the place of a verb; four heads find it",
    note="found by the best head, chosen on other sentences, trained 800 steps\n"
    "fixed offset: such as “always one to the left”",
    answer="Of what one head loses above the best possible loss, four heads leave "
    "{n[of one head's excess four heads leave]:.0%}, and of what four lose, eight leave "
    "{n[of four heads' excess eight leave]:.0%}. Two layers of four heads lose "
    "{n[four heads, two layers, excess loss]:.2f} nats, eight heads in one layer "
    "{n[eight heads, one layer, excess loss]:.2f}.",
    uses="--seed --seeds --quick --device --retrain --d-model",
)

if __name__ == "__main__":
    main.run()
