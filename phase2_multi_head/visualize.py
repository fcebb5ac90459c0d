"""What does each head look at, and how sharply: trained beside untrained?

Random weights draw pictures, too, and only the comparison shows what was learned. Courses like to show a grid of eight
heads of a module that was never trained (d_model = 512, 10 random tokens) under the title "different heads learn
different patterns". Here that module is measured beside the trained toy model and the same model before training.

    python phase2_multi_head/visualize.py
    python phase2_multi_head/visualize.py --sentence "those dogs slept in a soft bed"

Writes multi_head_grid.png to visualizations/plots/phase2/, of a sentence with an adjective unless you choose another,
and the weights of all heads on every sentence of --sentences to data/processed/multi_head_patterns.pt.
"""

import argparse
from dataclasses import replace
from statistics import fmean, median

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from phase2_multi_head.models import load_multi_head_model
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from shared import cli, paths, training
from shared.attention_utils import normalized_entropy
from shared.evidence import findings
from shared.evidence.claims import EXPERIMENT, Claim, measures
from shared.grammar.relations import with_relations
from shared.grammar.roles import NO_NAME, golds, head_names
from shared.grammar.scores import relation_name
from shared.toy_language import TOY_SENTENCE, tokenize
from shared.toy_model import weights_of
from shared.training import Trained, attention_on, head_entropy
from shared.visualization_utils import headline, plot_heads, role_color, save_plot, weight_colorbar

SENTENCE = "the cat sat on the small mat"  # of the picture: has all relations of the grammar
UNTRAINED_MODELS = 20  # with different seeds, to see how far chance alone spreads the heads


def total_variation(weights: Tensor, rows: Tensor) -> float:
    """Mean over pairs of heads and real rows of half the sum of |difference|: 0 alike, 1 no word in common.

    weights (N, H, T, T), rows (N, T).
    """
    first, second = torch.triu_indices(weights.size(1), weights.size(1), offset=1)
    moved = (weights[:, first] - weights[:, second]).abs().sum(dim=-1) / 2  # (N, H, T, T) -> (N, pairs, T)
    return moved.mean(dim=1)[rows].mean().item()


def describe(name: str, layers: list[Tensor], mask: Tensor) -> dict[str, float | list[float]]:
    """Normalised entropy, one number for each head, and how different two heads of a layer are.

    layers: weights (N, H, T, T) of each; mask (N, 1, T, T): real words.
    """
    rows = mask.any(dim=-1)[:, 0]  # (N, 1, T, T) -> (N, T)
    return {
        f"{name}: entropy": [e for w in layers for e in normalized_entropy(w, mask).nanmean(dim=(0, 2)).tolist()],
        f"{name}: difference": fmean(total_variation(weights, rows) for weights in layers),
    }


FIGURE = "as in the figure"
APART = ("trained", "untrained", FIGURE)  # models whose heads' difference is compared


@measures(
    Claim(
        id="C070",
        text="Sharp attention patterns come by training: they are not built in",
        source="course notes, 'Head Specialization'",
        kind=EXPERIMENT,
        rule="more than half of the trained heads at least 0.05 below the lowest untrained one",
        holds=lambda n: median(n["trained: entropy"]) < n["lowest untrained head"] - 0.05,
        oracle={"trained: entropy": [0.1, 0.5, 0.6, 0.95], "lowest untrained head": 0.95},
        null={"trained: entropy": [0.94, 0.96, 0.97, 0.98], "lowest untrained head": 0.95},
        unit="normalised entropy on held-out sentences",
        control=f"the sharpest head of {UNTRAINED_MODELS} untrained models",
        shows=("trained: entropy", "lowest *"),
    ),
    Claim(
        id="C075",
        text="Different heads come to look at different words by training; heads of a new module do not",
        source="course notes: titles of figures, over modules with random weights",
        kind=EXPERIMENT,
        rule="trained heads 0.2 further apart than those of the same model before training and those of the figures",
        holds=lambda n: n["trained: difference"] >= max(n[f"{name}: difference"] for name in APART[1:]) + 0.2,
        oracle=dict(zip([f"{name}: difference" for name in APART], (0.6, 0.1, 0.1), strict=True)),
        null={f"{name}: difference": 0.6 for name in APART},
        unit="mean total variation between the rows of two heads of a layer: 0 alike, 1 no word in common",
        control="untrained modules: the toy model, and 8 heads, d_model = 512, on 10 random tokens as in the figures",
        shows=("*: difference", "*: entropy"),
    ),
)
@torch.no_grad()
def describe_heads(trained: Trained, untrained: Trained, chance: Tensor) -> dict[str, float | list[float]]:
    """The heads of the figure's module and of the toy model before and after training; chance: untrained_entropies."""
    _, weights = MultiHeadAttention(512, 8)(torch.randn(2, 10, 512))  # the module of the figure
    numbers = describe(FIGURE, [weights], torch.ones(2, 1, 10, 10, dtype=torch.bool))
    for name, each in (("untrained", untrained), ("trained", trained)):
        layers, mask = attention_on(each.model, training.corpus()[1], each.recipe.objective)
        numbers |= describe(name, [layer.cpu() for layer in layers], mask.cpu())
    return numbers | {"lowest untrained head": chance.min().item()}


def draw_grid(trained: Trained, untrained: Trained, words: list[str]) -> tuple[Figure, str]:
    """Every trained head on one sentence, a layer in each row, by its role; below, the last layer before training."""
    names = head_names(trained, MultiHeadAttention)
    weights, before = (weights_of(each.model, words) for each in (trained, untrained))  # each (L, H, T, T)
    num_layers, num_heads = weights.shape[:2]
    side = max(1.85, 0.17 * len(words))
    size = (side * num_heads + 1.6, (side - 0.05) * (num_layers + 1) + 1.3)
    fig, axes = plt.subplots(num_layers + 1, num_heads, figsize=size, squeeze=False, layout="constrained")
    for layer, row in enumerate(names):
        titles = [f"{name} ({layer}.{head})" for head, name in enumerate(row)]
        plot_heads(weights[layer], words, axes=axes[layer], titles=titles, colors=list(map(role_color, row)))
        axes[layer, 0].set_ylabel(f"layer {layer}", fontsize=12)
        for ax, name in zip(axes[layer], row, strict=True):
            frame_related(ax, name, words)
    plot_heads(before[-1], words, axes=axes[-1], titles=[""] * num_heads)
    axes[-1, 0].set_ylabel(f"layer {num_layers - 1},\nuntrained", fontsize=12)
    for place, ax in enumerate(axes.flat):
        ax.tick_params(labeltop=place < num_heads, labelleft=place % num_heads == 0)  # the words once, at the edges
    weight_colorbar(fig, list(axes.flat), shrink=0.4, aspect=30)
    named = sum(name != NO_NAME for row in names for name in row)
    title = f"Before training all heads are blurred; after it {named} of {weights[:, :, 0, 0].numel()} have a role"
    if not named:
        title = f"{trained.recipe.steps} steps are too few: no head has a role yet"
    entropy, at_first = (normalized_entropy(w).nanmean().item() for w in (weights, before))
    how_even = f"normalised entropy {entropy:.2f}, untrained {at_first:.2f}"
    headline(fig, title, f"{trained.label} · roles by rule; framed: the words they are about · {how_even}")
    said = "; ".join(f"layer {layer}: {', '.join(row)}" for layer, row in enumerate(names))
    return fig, f'{title}. The weights of every head on "{" ".join(words)}", queries down, keys across. {said}.'


def frame_related(ax: Axes, name: str, words: list[str]) -> None:
    """Frame the cells where the role of a head has its weight, if it is a relation and this sentence has it."""
    gold = {relation_name(*key): matrix[0] for key, matrix in golds([with_relations(words)]).items()}
    for query, key in gold[name].nonzero().tolist() if name in gold else []:
        frame = {"fill": False, "edgecolor": role_color(name), "linewidth": 2.5, "zorder": 4, "clip_on": False}
        ax.add_patch(Rectangle((key, query), 1, 1, **frame))


def untrained_entropies(recipe: training.Recipe, number: int) -> Tensor:
    """Normalised entropy of the heads of many untrained models, no two seeds the same ones -> (models, L, H)."""
    held_out, first = training.corpus()[1][:100], recipe.seed * UNTRAINED_MODELS
    models = (training.new_model(replace(recipe, seed=first + i), MultiHeadAttention) for i in range(number))
    return torch.tensor([head_entropy(model, held_out, recipe.objective) for model in models])


def save_weights(options: argparse.Namespace, trained: Trained) -> None:
    """The weights of all heads on all sentences of the file."""
    saved = {sentence: weights_of(trained.model, tokenize(sentence)) for sentence in options.all_sentences}
    path = options.output_dir / paths.PROCESSED / "multi_head_patterns.pt"
    with paths.whole_file(path) as unfinished, unfinished.open("wb") as file:
        torch.save(saved, file)


@cli.script
def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    usual = options.sentence is None and options.words == tokenize(TOY_SENTENCE)
    words, runs = tokenize(SENTENCE) if usual else options.words, []
    for seed in cli.seeds(options):
        trained = load_multi_head_model(options, seed)
        untrained = training.untrained(trained.recipe, MultiHeadAttention)
        chance = untrained_entropies(trained.recipe, 4 if options.quick else UNTRAINED_MODELS)
        torch.manual_seed(seed)
        runs.append(describe_heads(trained, untrained, chance))
        if seed == options.seed:
            save_weights(options, trained)
            save_plot(options, "phase2/multi_head_grid", *draw_grid(trained, untrained, words))
    findings.record(options, *runs)
    before = chance.mean().item()
    after = fmean(entropy for n in runs for entropy in n["trained: entropy"])
    return f"Normalised entropy of the heads: {before:.2f} before training, {after:.2f} after, on average"


if __name__ == "__main__":
    cli.run(main)
