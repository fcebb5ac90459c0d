"""How many heads are enough, and what does a second layer bring?

Four models guess hidden words after the same steps on the same batches: one, four or eight heads in one layer, and four
heads in each of two. In one layer more heads cost no parameters: d_model = 64 is only cut into more slices. What
does each model lose above the grammar's own entropy, and how often does its best head find the word that the grammar
relates to another? That head is chosen on one half of the held-out sentences and scored on the other.
"""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from phase1_single_head.models import load_single_head_model
from phase2_multi_head.models import load_multi_head_model, load_one_layer_model
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from shared import charts, training
from shared.evidence.claims import Above, Claim, Numbers
from shared.experiment import Experiment, Results, Run
from shared.grammar.entropy import excess_loss, floor, questions
from shared.grammar.scores import CORE_RELATIONS, chosen_and_scored, offset_baselines
from shared.training import Trained
from shared.visualization_utils import GREY, role_color

MODELS = (
    "one head, one layer",
    "four heads, one layer",
    "eight heads, one layer",
    "four heads, two layers",
)
NUM_SENTENCES, QUICK_SENTENCES = 150, 20  # of the held-out ones, each word of which is hidden once


def load_models(run: Run) -> dict[str, Trained]:
    """The four models of a seed, by name."""
    options, seed = run.options, run.seed
    one, deep = load_single_head_model(options, seed), load_multi_head_model(options, seed)
    four, eight = (load_one_layer_model(options, seed, num_heads) for num_heads in (4, 8))
    return dict(zip(MODELS, (one, four, eight, deep), strict=True))


def measure(run: Run) -> Numbers:
    """The share of held-out pairs, in either direction, that the best head gets right; nats above the best loss.

    The models of one layer differ in nothing but the size of their heads; one head alone has no biases. Two layers have
    twice the parameters, and a weight decay of their own, 0.5 for 0.1.
    """
    models, held_out = load_models(run), training.corpus()[1]
    untrained = training.untrained(models["four heads, two layers"].recipe, MultiHeadAttention)
    scores = {name: chosen_and_scored(trained) for name, trained in models.items()}
    scores["best head before training"] = chosen_and_scored(untrained)
    scores["best fixed offset"] = offset_baselines(held_out[len(held_out) // 2 :])
    numbers = {f"{name}, {relation}": share for name, shares in scores.items() for relation, share in shares.items()}
    asked = questions(held_out[: QUICK_SENTENCES if run.options.quick else NUM_SENTENCES])
    numbers |= {f"{name}, excess loss": excess_loss(trained.logits, asked) for name, trained in models.items()}
    return numbers | {"the grammar's entropy": floor(asked)}


def diminishing(n: Numbers) -> float:
    """What eight heads gain over four, in nats, or what is left of half the gain of four over one: the smaller."""
    one, four, eight, _ = (n[f"{name}, excess loss"] for name in MODELS)
    return min(four - eight, (one - four) / 2 - (four - eight))


def is_learned(n: Numbers, relation: str) -> bool:
    """Right in 0.90, and 0.15 more often than the better of the two baselines."""
    baseline = max(n[f"best fixed offset, {relation}"], n[f"best head before training, {relation}"])
    return n[f"four heads, two layers, {relation}"] >= max(0.90, baseline + 0.15)


CLAIMS = (
    Claim(
        id="C081",
        text="More heads bring more, with diminishing returns",
        source="course notes, 'Hyperparameter Choices': beyond 16, in wider models; in translation 32 heads are worse "
        "than 16 (Vaswani et al. 2017, table 3)",
        rule="8 heads gain something over 4, and less than half of what 4 gain over 1",
        holds=Above(diminishing, 0),
        oracle={"one*, excess loss": 0.6, "four*": 0.3, "eight*": 0.25},
        null={"one*, excess loss": 0.6, "four*": 0.4, "eight*": 0.2},
        headline=True,
    ),
    Claim(
        id="three-roles",
        text="By guessing hidden words alone, heads come to follow determiner – noun, verb – subject and verb – place; "
        "before training none does",
        source="course notes, 'Head Specialization': patterns of trained models, which emerge during training; "
        "scored as in Clark et al. 2019",
        rule="for each relation a head that is right in 0.90 of the pairs, and 0.15 more often than the best fixed "
        "offset and than the best head before training",
        holds=lambda n: all(is_learned(n, relation) for relation in CORE_RELATIONS),
        oracle={"four heads, two layers, *": 1.0, "best fixed offset, *": 0.5, "best head before training, *": 0.3},
        null={"four heads, two layers, *": 0.5, "best fixed offset, *": 0.5, "best head before training, *": 0.3},
        headline=True,
    ),
)


def picture(found: Results) -> Figure:
    """A row for each model: what it loses, and of each relation how often its best head is right."""
    fig, axes = plt.subplots(1, 4, figsize=(10, 3.9), sharey=True, layout="constrained")
    for ax, column in zip(axes, ("excess loss", *CORE_RELATIONS), strict=True):
        color = role_color(column) if column in CORE_RELATIONS else GREY
        guess = found.mean.get(f"best fixed offset, {column}")
        values = {name.replace(", ", "\n"): found.each(f"{name}, {column}") for name in MODELS}
        charts.bars(ax, values, dict.fromkeys(values, color), guess=guess, guess_name="a fixed offset")
        ax.set_title(column.replace("-", " – "), color=color)
    axes[0].set_title("nats above the\nbest possible loss")
    return fig


main = Experiment(
    measure,
    CLAIMS,
    picture,
    title="One head misses the place of a verb; four find it",
    note="share of the pairs that the best head gets right, chosen on other sentences",
    answer="Nats above the best loss: {n[one head, one layer, excess loss]:.2f} with one head, "
    "{n[four heads, one layer, excess loss]:.2f} with four, {n[eight heads, one layer, excess loss]:.2f} with eight; "
    "{n[four heads, two layers, excess loss]:.2f} with a second layer of four",
)

if __name__ == "__main__":
    main.run()
