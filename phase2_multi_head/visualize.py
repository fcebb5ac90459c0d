"""What does each head look at, and how sharply: trained beside untrained?

Random weights draw pictures, too, and only the comparison shows what was learned. Courses like to show a grid of eight
heads of a module that was never trained (d_model = 512, 10 random tokens) under the title "different heads learn
different patterns". Here that module is measured beside the trained toy model and the same model before training.

    python phase2_multi_head/visualize.py
    python phase2_multi_head/visualize.py --sentence "those dogs slept in a soft bed"

Writes multi_head_grid.png and attention_entropy.png to visualizations/plots/phase2/, and the weights of all heads on
every sentence of --sentences to data/processed/multi_head_patterns.pt.
"""

import argparse
from dataclasses import replace
from statistics import fmean, median

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor

from phase2_multi_head.multi_head_attention import MultiHeadAttention, load_multi_head_model
from shared import cli, paths, training
from shared.attention_utils import normalized_entropy
from shared.evidence import findings
from shared.evidence.claims import EXPERIMENT, Claim, measures
from shared.toy_language import tokenize
from shared.toy_model import weights_of
from shared.training import Trained, attention_on, head_entropy
from shared.visualization_utils import HIDDEN, QUIET, head_color, headline, plot_heads, save_plot, weight_colorbar

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
        changed="was: every trained head, which the notes do not say; some stay as blurred as before",
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
        changed="one rule for five sentences (C071 to C075), which were judged by entropy, distance and sparseness",
        shows=("*: difference", "*: entropy"),
    ),
)
@torch.no_grad()
def describe_heads(trained: Trained, untrained: Trained, chance: Tensor) -> dict[str, float | list[float]]:
    """The heads of the figure's module and of the toy model before and after training; chance as draw_entropy has."""
    _, weights = MultiHeadAttention(512, 8)(torch.randn(2, 10, 512))  # the module of the figure
    numbers = describe(FIGURE, [weights], torch.ones(2, 1, 10, 10, dtype=torch.bool))
    for name, each in (("untrained", untrained), ("trained", trained)):
        layers, mask = attention_on(each.model, training.corpus()[1], each.recipe.objective)
        numbers |= describe(name, [layer.cpu() for layer in layers], mask.cpu())
    return numbers | {"lowest untrained head": chance.min().item()}


def draw_grid(trained: Trained, untrained: Trained, words: list[str]) -> tuple[Figure, str]:
    """Every head on one sentence, a layer in each row, the trained model above the untrained one."""
    models = (trained, untrained)
    weights = [weights_of(each.model, words) for each in models]  # each (L, H, T, T)
    num_layers, num_heads = weights[0].shape[:2]
    entropy = [normalized_entropy(w).nanmean().item() for w in weights]
    side = max(2.1, 0.2 * len(words))
    fig = plt.figure(figsize=(side * num_heads + 1.2, (side + 0.35) * 2 * num_layers + 1.1), layout="constrained")
    parts = fig.subfigures(2, 1)
    for part, model, w, e in zip(parts, models, weights, entropy, strict=True):
        axes = part.subplots(num_layers, num_heads, squeeze=False)
        for layer in range(num_layers):
            titles = [f"layer {layer} head {head}" for head in range(num_heads)]
            plot_heads(w[layer], words, axes=axes[layer], titles=titles)
        part.suptitle(f"{model.label}: normalised entropy {e:.2f}", fontsize=11, color=QUIET)
        weight_colorbar(part, list(axes.flat), shrink=0.6, aspect=30)
    title = f"Training turns {num_layers * num_heads} blurred heads into sharper, different ones"
    if entropy[0] > entropy[1] - 0.1:
        title = f"{trained.recipe.steps} steps are too few: trained and untrained heads look alike"
    fig.suptitle(title, fontsize=13)
    return fig, f'{title}: every head on "{" ".join(words)}", queries down, keys across, trained above untrained.'


def draw_entropy(trained: Trained, entropies: list[float], chance: Tensor) -> tuple[Figure, str]:
    """A bar for each head of the trained model, and the band in which untrained heads lie, chance (models, L, H)."""
    heads = [divmod(index, trained.recipe.num_heads) for index in range(len(entropies))]
    low, high = chance.min().item(), chance.max().item()
    below = sum(value < low for value in entropies)
    title = f"{below} of {len(heads)} heads are sharper than any of {chance.numel()} untrained heads"
    fig, ax = plt.subplots(figsize=(7.2, 4.2), layout="constrained")
    ax.axhspan(low, high, color=HIDDEN, zorder=0)
    ax.text(-0.4, high + 0.012, f"untrained heads: {low:.2f} to {high:.2f}", color=QUIET, fontsize=9, va="bottom")
    ax.bar(range(len(heads)), entropies, color=[head_color(head) for _, head in heads], width=0.7)
    for x, value in enumerate(entropies):
        ax.text(x, value + 0.012, f"{value:.2f}", ha="center", fontsize=9)
    ax.set_xticks(range(len(heads)), [f"layer {layer}\nhead {head}" for layer, head in heads], fontsize=9)
    ax.set(ylim=(0, 1.1), yticks=(0, 0.5, 1), ylabel="normalised entropy\n(0: one word, 1: all words alike)")
    where = f"{trained.recipe.num_layers} layers; mean over {training.NUM_HELD_OUT} held-out sentences"
    headline(fig, title, f"{trained.label}, {where}", size=11)
    return fig, title + ": normalised entropy of every head."


def untrained_entropies(recipe: training.Recipe, number: int) -> Tensor:
    """Normalised entropy of the heads of many untrained models, no two seeds the same ones -> (models, L, H)."""
    held_out, first = training.corpus()[1][:100], recipe.seed * UNTRAINED_MODELS
    models = (training.new_model(replace(recipe, seed=first + i), MultiHeadAttention) for i in range(number))
    return torch.tensor([head_entropy(model, held_out, recipe.objective) for model in models])


def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    runs = []
    for seed in cli.seeds(options):
        trained = load_multi_head_model(options, seed)
        untrained = training.untrained(trained.recipe, MultiHeadAttention)
        chance = untrained_entropies(trained.recipe, 4 if options.quick else UNTRAINED_MODELS)
        torch.manual_seed(seed)
        runs.append(describe_heads(trained, untrained, chance))
        if seed == options.seed:
            save_pictures(options, trained, untrained, chance, runs[0]["trained: entropy"])
    findings.record(options, *runs)
    before = chance.mean().item()
    after = fmean(entropy for n in runs for entropy in n["trained: entropy"])
    return f"Normalised entropy of the heads: {before:.2f} before training, {after:.2f} after, on average"


def save_pictures(
    options: argparse.Namespace, trained: Trained, untrained: Trained, chance: Tensor, entropies: list[float]
) -> None:
    """Both pictures of one model, and its weights on all sentences of the file."""
    saved = {sentence: weights_of(trained.model, tokenize(sentence)) for sentence in options.all_sentences}
    with paths.whole_file(options.output_dir / paths.PROCESSED / "multi_head_patterns.pt") as unfinished:
        torch.save(saved, unfinished)
    save_plot(options, "phase2/multi_head_grid", *draw_grid(trained, untrained, options.words))
    save_plot(options, "phase2/attention_entropy", *draw_entropy(trained, entropies, chance))


if __name__ == "__main__":
    cli.run(main)
