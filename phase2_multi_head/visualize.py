"""What does each head look at, and how sharply: trained beside untrained?

Random weights draw pictures, too, and only the comparison shows what was learned. Courses like to show a grid of eight
heads of a module that was never trained (d_model = 512, 10 random tokens) under the title "different heads learn
different patterns". Here that module is measured beside the trained toy model and the same model before training.

    python phase2_multi_head/visualize.py
    python phase2_multi_head/visualize.py --sentence "those dogs slept in a soft bed"

Writes multi_head_grid.png and attention_entropy.png to visualizations/plots/phase2/, and the weights of all heads on
every sentence of --sentences to data/processed/multi_head_patterns.pt.
"""

from dataclasses import replace

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor

from phase2_multi_head.multi_head_attention import MultiHeadAttention, load_multi_head_model
from shared import cli, paths, training
from shared.attention_utils import attention_distance, normalized_entropy
from shared.evidence import findings
from shared.evidence.claims import EXPERIMENT, Claim, measures
from shared.head_statistics import even_weights
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
    """Normalised entropy, distance over that of even weights, mean largest weight of a row: one number for each head.

    And how different two heads of a layer are. layers: weights (N, H, T, T) of each; mask (N, 1, T, T): real words.
    """
    rows = mask.any(dim=-1)[:, 0]  # (N, 1, T, T) -> (N, T)
    even_distance = attention_distance(even_weights(mask))[:, 0][rows].mean()
    heads = [head for weights in layers for head in weights.unbind(dim=1)]  # L * H x (N, T, T)
    return {
        f"{name}: entropy": [e for w in layers for e in normalized_entropy(w, mask).nanmean(dim=(0, 2)).tolist()],
        f"{name}: distance": [(attention_distance(head)[rows].mean() / even_distance).item() for head in heads],
        f"{name}: largest weight": [head.amax(dim=-1)[rows].mean().item() for head in heads],
        f"{name}: difference": sum(total_variation(weights, rows) for weights in layers) / len(layers),
    }


def spread(values: list[float]) -> float:
    return max(values) - min(values)


FIGURE = "as in the figure"


@measures(
    Claim(
        id="C070",
        text="Attention patterns emerge during training; they are not built in",
        kind=EXPERIMENT,
        rule="every trained head at least 0.05 below the lowest untrained one",
        holds=lambda n: max(n["trained: entropy"]) < n["lowest untrained head"] - 0.05,
        oracle={"trained: entropy": [0.1, 0.5], "lowest untrained head": 0.95},
        null={"trained: entropy": [0.95, 0.98], "lowest untrained head": 0.95},
        unit="normalised entropy on held-out sentences",
        control="20 untrained models",
        shows=("trained: entropy", "lowest *"),
    ),
    Claim(
        id="C071",
        text="The grid of all heads shows the diversity of their patterns",
        kind=EXPERIMENT,
        rule="0.3 or more, and at least twice that of the same model before training",
        holds=lambda n: min(n[f"{FIGURE}: difference"], n["untrained: difference"]) >= 0.3,
        only_if=lambda n: n["trained: difference"] >= max(0.3, 2 * n["untrained: difference"]),
        condition="the model is trained",
        oracle={f"{FIGURE}: difference": 0.7, "untrained: difference": 0.3},
        null={f"{name}: difference": 0.05 for name in (FIGURE, "untrained", "trained")},
        unit="mean total variation between the rows of two heads",
        control="untrained modules",
        shows=("*: difference",),
    ),
    Claim(
        id="C072",
        text="Entropy per head reveals which heads are specialised",
        kind=EXPERIMENT,
        rule="trained at least twice the untrained; and untrained below 0.02, so that nothing can be misread",
        holds=lambda n: n["largest untrained spread"] < min(0.02, spread(n["trained: entropy"]) / 2),
        only_if=lambda n: spread(n["trained: entropy"]) >= 2 * n["largest untrained spread"],
        condition="the model is trained: untrained heads differ too, by chance",
        oracle={"trained: entropy": [0.1, 0.9], "largest untrained spread": 0.0},
        null={"trained: entropy": [0.96, 0.98], "largest untrained spread": 0.05},
        unit="normalised entropy, largest minus smallest head of one model",
        control="20 untrained models",
        shows=("trained: entropy", "largest untrained *"),
    ),
    Claim(
        id="C073",
        text="Each of the 8 heads (of the untrained module) learned a different pattern",
        kind=EXPERIMENT,
        rule="some head is below 0.9: it prefers some words to others",
        holds=lambda n: min(n[f"{FIGURE}: entropy"]) < 0.9,
        oracle={f"{FIGURE}: entropy": [0.5] * 8},
        null={f"{FIGURE}: entropy": [0.98] * 8},
        unit="normalised entropy",
        control="heads of the trained model",
        shows=(f"{FIGURE}: entropy", "trained: entropy"),
    ),
    Claim(
        id="C074",
        text="Some heads look nearby and others far away, some are sparse",
        kind=EXPERIMENT,
        rule="heads differ by 0.3 in distance, and one gives half its weight to a single word",
        holds=lambda n: spread(n[f"{FIGURE}: distance"]) >= 0.3 and max(n[f"{FIGURE}: largest weight"]) >= 0.5,
        only_if=lambda n: spread(n["trained: distance"]) >= 0.3 and max(n["trained: largest weight"]) >= 0.5,
        condition="the model is trained; the figure shows one that is not",
        oracle={f"{FIGURE}: distance": [0.3, 1.5], f"{FIGURE}: largest weight": [0.9, 0.9]},
        null={f"{model}: distance": [1.0, 1.0] for model in (FIGURE, "trained")}
        | {f"{model}: largest weight": [0.1, 0.1] for model in (FIGURE, "trained")},
        unit="mean distance over that of even weights; mean largest weight of a row",
        shows=("*: distance", "*: largest weight"),
    ),
    Claim(
        id="C075",
        text="Different heads learn different patterns",
        kind=EXPERIMENT,
        rule="entropy of the most even head 0.1 or more above that of the sharpest",
        holds=lambda n: min(spread(n[f"{FIGURE}: entropy"]), spread(n["untrained: entropy"])) >= 0.1,
        only_if=lambda n: spread(n["trained: entropy"]) >= 0.1,
        condition="they were trained; the title stands over modules with random weights",
        oracle={f"{FIGURE}: entropy": [0.2, 0.9], "untrained: entropy": [0.2, 0.9]},
        null={f"{model}: entropy": [0.98, 0.98] for model in (FIGURE, "untrained", "trained")},
        unit="normalised entropy",
        shows=("*: entropy",),
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
    by_model = chance.flatten(1)  # (models, L, H) -> (models, L * H)
    numbers["lowest untrained head"] = by_model.min().item()
    numbers["largest untrained spread"] = (by_model.amax(dim=1) - by_model.amin(dim=1)).max().item()
    return numbers


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
    """Normalised entropy of the heads of many untrained models -> (models, L, H)."""
    held_out = training.corpus()[1][:100]
    models = (training.new_model(replace(recipe, seed=seed), MultiHeadAttention) for seed in range(number))
    return torch.tensor([head_entropy(model, held_out, recipe.objective) for model in models])


def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    trained = load_multi_head_model(options)
    untrained = training.untrained(trained.recipe, MultiHeadAttention)
    saved = {sentence: weights_of(trained.model, tokenize(sentence)) for sentence in options.all_sentences}
    with paths.whole_file(options.output_dir / paths.PROCESSED / "multi_head_patterns.pt") as unfinished:
        torch.save(saved, unfinished)
    chance = untrained_entropies(trained.recipe, 4 if options.quick else UNTRAINED_MODELS)
    torch.manual_seed(options.seed)
    numbers = describe_heads(trained, untrained, chance)
    entropies = numbers["trained: entropy"]
    save_plot(options, "phase2/multi_head_grid", *draw_grid(trained, untrained, options.words))
    save_plot(options, "phase2/attention_entropy", *draw_entropy(trained, entropies, chance))
    findings.record(options, numbers)
    before, after = chance.mean().item(), sum(entropies) / len(entropies)
    return f"Normalised entropy of the heads: {before:.2f} before training, {after:.2f} after, on average"


if __name__ == "__main__":
    cli.run(main)
