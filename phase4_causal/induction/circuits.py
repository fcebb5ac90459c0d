"""Can it be read off a model's weights why it copies?

An induction head should look for the key whose word *before* is its own word, and say the word it looks at. So both of
its tables, words by words (word_tables.py), should be dark on the diagonal. They are drawn twice: by the weights of
attention alone, as Elhage et al. (2021) do in models that have nothing else, and with all that layer 0 does, its
feed-forward network too. And is what a previous-token head writes read by the induction head as a key? Its composition
scores say so beside those of random matrices.

Trains the model of two layers of induction.py (10 s for a seed) unless it is there, and keeps it:

    python phase4_causal/induction/circuits.py

Writes circuits.png to visualizations/plots/phase4/.
"""

import argparse

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from phase4_causal.causal_attention import CausalSelfAttention
from phase4_causal.induction.induction import BATCH, HEADS, NUM_TEST, STEPS, generator, new_model, train
from phase4_causal.induction.induction_scores import PERIODS, repeated_sequences, scores_on, unrepeated_sequences
from phase4_causal.induction.word_tables import (
    centred,
    composition,
    compositions,
    copying_score,
    on_diagonal,
    ov_table,
    qk_table,
    words_alone,
    words_in_text,
)
from shared import checkpoints, cli, training
from shared.evidence import findings
from shared.evidence.claims import EXPERIMENT, Claim, Numbers, measures
from shared.toy_model import ToyTransformer, in_double
from shared.training import History, Recipe, Trained
from shared.visualization_utils import BLUE, GREY, QUIET, WEIGHT_MAP, headline, save_plot

TEXTS, DRAWN, RANDOM = 1000, 32, 100  # texts for the means, words in the picture, pairs of random matrices
MATCHES, SAYS, COPYING = SCORES = "looks for the word before", "says the word it looks at", "copying score"
ALONE, UNTRAINED = ", weights of attention alone", ", untrained, best head"
PARTS, CHANCE = ("Q", "K", "V"), "random matrices, highest"
RECIPE = Recipe("induction_model", "next word", HEADS, 2, STEPS, batch_size=BATCH, matrix_decay=0.0)


def on_repetitions(recipe: Recipe) -> Trained:
    """Trained as in induction.py, on sequences that repeat."""
    return Trained(train(recipe.num_layers, recipe.seed, recipe.steps).model, recipe, History())


def induction_model(options: argparse.Namespace, seed: int) -> ToyTransformer:
    """The model of two layers of induction.py in float64, from its checkpoint or trained now, always on the CPU.

    It keeps its size, whatever the options say: what is measured here was found out in that one.
    """
    if seed == options.seed and any((options.d_model, options.heads, options.layers)):
        print("the induction model keeps its size: width 64, 4 heads, 2 layers", flush=True)
    own = {"retrain": options.retrain, "quick": options.quick, "task": on_repetitions}
    trained = checkpoints.load_or_train(training.variant(RECIPE, seed), CausalSelfAttention, **own)
    return in_double(trained.model)


def chosen_scores(model: ToyTransformer, seed: int) -> tuple[Tensor, Tensor]:
    """Induction scores of layer 1 and previous-token scores of layer 0, (H,) each, by which heads are chosen."""
    matches, before = scores_on(model, repeated_sequences(NUM_TEST, generator(seed, 2)))
    return matches[1], before[0]


def tables(model: ToyTransformer, head: int, seed: int) -> dict[str, Tensor]:
    """Both tables of a head of layer 1, in both ways, (W, W) each."""
    text = unrepeated_sequences(TEXTS, generator(seed, 8))[:, : PERIODS[1]]  # where the first copy stands
    found = {}
    for how, (here, before) in (("", words_in_text(model, text)), (ALONE, words_alone(model))):
        found |= {MATCHES + how: qk_table(model, head, here, before), SAYS + how: ov_table(model, head, here)}
    return found


def highest_by_chance(d_model: int, seed: int) -> float:
    """The highest composition score of pairs of random matrices, of the shape and rank of a head's."""
    a, b, c, d = torch.randn(4, RANDOM, d_model, d_model // HEADS, generator=generator(seed, 9))
    return max(composition(*each) for each in zip(a @ b.mT, c @ d.mT, strict=True))


@measures(
    Claim(
        id="induction-circuit",
        text="An induction head looks for the word before, by its own word, and says the word that it looks at",
        kind=EXPERIMENT,
        source="Elhage et al. 2021, sections on QK and OV circuits; here with all that layer 0 does",
        rule="both tables of the best induction head are largest on the diagonal for 0.9 of the words, its copying "
        "score is 0.9 or more; untrained at most 0.3, all of them",
        holds=lambda n: min(n[s] for s in SCORES) >= 0.9 and max(n[s + UNTRAINED] for s in SCORES) <= 0.3,
        oracle={name + how: value for name in SCORES for how, value in (("", 1.0), (UNTRAINED, 0.02))},
        null={name + how: 0.02 for name in SCORES for how in ("", UNTRAINED)},
        unit="share of the 64 words; copying score from -1 to 1",
        control="every head of the untrained model; by chance 1/64",
        shows=(*SCORES, f"*{UNTRAINED}"),
    ),
    Claim(
        id="induction-weights-alone",
        text="What an induction head looks for, and what it says, can be read off the weights of attention alone",
        kind=EXPERIMENT,
        source="Elhage et al. 2021, of models without feed-forward networks; ours has them",
        rule="both tables by weights alone are largest on the diagonal for half of the words or more",
        holds=lambda n: min(n[MATCHES + ALONE], n[SAYS + ALONE]) >= 0.5,
        oracle={MATCHES + ALONE: 1.0, SAYS + ALONE: 1.0},
        null={MATCHES + ALONE: 0.02, SAYS + ALONE: 0.02},
        unit="share of the 64 words",
        shows=(f"*{ALONE}",),
    ),
    Claim(
        id="induction-k-composition",
        text="What the previous-token head writes is read by the induction head for its keys, more than for its "
        "queries or values",
        kind=EXPERIMENT,
        source="Elhage et al. 2021, composition scores",
        rule=f"the K-composition of the best head of each kind is above that of all {RANDOM} pairs of random matrices; "
        "Q and V are not",
        holds=lambda n: n["K"] > n[CHANCE] >= max(n["Q"], n["V"]),
        oracle={"K": 0.3, "Q": 0.12, "V": 0.12, CHANCE: 0.14},
        null={"K": 0.12, "Q": 0.12, "V": 0.12, CHANCE: 0.14},
        unit="composition score, of weights alone",
        shows=(*PARTS, CHANCE),
    ),
)
def circuit(model: ToyTransformer, seed: int) -> dict[str, float]:
    """The best induction head of one model in numbers."""
    matches, before = chosen_scores(model, seed)
    head, first = int(matches.argmax()), int(before.argmax())
    found, untrained = tables(model, head, seed), in_double(new_model(2, seed))
    controls = [tables(untrained, each, seed) for each in range(HEADS)]
    return (
        {name: on_diagonal(table) for name, table in found.items()}
        | {COPYING + how: copying_score(found[SAYS + how]) for how in ("", ALONE)}
        | {name + UNTRAINED: max(on_diagonal(each[name]) for each in controls) for name in (MATCHES, SAYS)}
        | {COPYING + UNTRAINED: max(copying_score(each[SAYS]) for each in controls)}
        | compositions(model, first, head)
        | {CHANCE: highest_by_chance(model.positions.size(1), seed)}
    )


def draw_table(ax: Axes, table: Tensor, axes: tuple[str, str], title: str) -> None:
    """The first words of a table, from one (white) to three standard deviations above the mean (dark)."""
    values = centred(table)
    ax.imshow((values / values.std())[:DRAWN, :DRAWN].numpy(), vmin=1, vmax=3, cmap=WEIGHT_MAP)
    ax.set(xticks=[], yticks=[], xlabel=axes[1], ylabel=axes[0])
    ax.set_title(title, fontsize=11)


def draw_compositions(ax: Axes, found: Numbers) -> None:
    ax.barh(PARTS, [found[part] for part in PARTS], color=[BLUE if part == "K" else GREY for part in PARTS], height=0.6)
    ax.axvline(found[CHANCE], color=QUIET, linestyle=":", linewidth=1.5)
    ax.text(found[CHANCE], -0.65, "  highest of\n  100 random", color=QUIET, va="center")
    ax.invert_yaxis()
    ax.set_yticks(range(len(PARTS)), [f"as {name}" for name in ("queries", "keys", "values")])
    ax.set(ylim=(2.5, -1.1), xlim=(0, 1.5 * max(found["K"], found[CHANCE])), xlabel="composition score")
    ax.set_title("4. the previous-token head is read", fontsize=11)


def draw(model: ToyTransformer, found: Numbers, seed: int) -> tuple[Figure, str]:
    """The match by weights alone and with all of layer 0, what is said, and the composition scores."""
    fig, ((alone, match), (says, bars)) = plt.subplots(2, 2, figsize=(8, 8.2), layout="constrained")
    head = int(chosen_scores(model, seed)[0].argmax())
    of_head, axes = tables(model, head, seed), ("query: its word", "key: the word before it")
    draw_table(alone, of_head[MATCHES + ALONE], axes, "1. looks for: by weights of attention alone")
    draw_table(match, of_head[MATCHES], axes, "2. looks for: with all of layer 0")
    draw_table(says, of_head[SAYS], ("word it looks at", "word it says"), "3. says: the word it looks at")
    draw_compositions(bars, found)
    title = "Trained too little: no table is dark on the diagonal yet"
    if min(found[MATCHES], found[SAYS]) >= 0.9:
        alone_too = "show it, too" if found[MATCHES + ALONE] >= 0.5 else "alone do not show it"
        title = f"An induction head matches the word before; the weights of attention {alone_too}"
    note = f"layer 1 head {head}, seed {seed} · {DRAWN} of 64 words · white: average, dark: far above average"
    headline(fig, title, note, 12)
    return fig, f"{title}. Tables of {DRAWN} by {DRAWN} words, and composition scores with the previous-token head."


@cli.script
def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    models = {seed: induction_model(options, seed) for seed in cli.seeds(options)}
    found = [circuit(model, seed) for seed, model in models.items()]
    save_plot(options, "phase4/circuits", *draw(models[options.seed], found[0], options.seed))
    findings.record(options, *found)
    says, alone = found[0][MATCHES], found[0][MATCHES + ALONE]
    return f"The word before is matched for {says:.0%} of the words; by weights of attention alone for {alone:.0%}"


if __name__ == "__main__":
    cli.run(main)
