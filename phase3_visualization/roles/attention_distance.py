"""How far does attention look? Mean distance |i - j| by layer and head, with and without a causal mask.

A distance alone says little: a head that does not choose looks (n² - 1) / 3n positions away in a sentence of n words,
and (n - 1) / 4 if a causal mask hides the words to the right. So each number stands beside what even weights give under
the same mask, over the same sentences, and beside the same model before training.

Two models are measured: the multi-head model of phase 2, which sees both sides and guesses hidden words, and a causal
one, which guesses the next word and is trained here in a few seconds.

    python phase3_visualization/roles/attention_distance.py

Writes attention_distance.png to visualizations/plots/phase3/.
"""

import argparse
from dataclasses import dataclass
from functools import cache

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from phase2_multi_head.multi_head_attention import MultiHeadAttention, load_multi_head_model
from shared import cli, paths, training
from shared.attention_utils import attention_distance, causal_mask
from shared.evidence import findings
from shared.evidence.findings import Finding
from shared.head_statistics import even_weights
from shared.training import Recipe, Trained
from shared.visualization_utils import INK, QUIET, head_color, model_note, save_figure

CAUSAL_STEPS, NUM_SENTENCES, QUICK_SENTENCES = 400, 300, 50
BOTH_SIDES, CAUSAL = "both sides", "causal"


class CausalAttention(MultiHeadAttention):
    """Multi-head attention in which no word sees what comes after it."""

    def forward(self, query: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """query (B, T, d_model), mask as in MultiHeadAttention -> output (B, T, d_model), weights (B, H, T, T)."""
        causal = causal_mask(query.size(1), device=query.device)
        return super().forward(query, mask=causal if mask is None else mask & causal)


@cache
def causal_run(num_heads: int, num_layers: int, d_model: int, steps: int, seed: int) -> Trained:
    """A causal model trained on next words, with its history; kept for the scripts of this process, not on disk."""
    recipe = Recipe("causal_in_memory", "next word", num_heads, num_layers, steps, d_model, seed=seed)
    return training.train(recipe, CausalAttention)


def causal_model(options: argparse.Namespace, seed: int) -> Trained:
    """The causal model in the sizes that the options ask for."""
    steps = training.QUICK_STEPS if options.quick else CAUSAL_STEPS
    return causal_run(options.heads or 4, options.layers or 2, options.d_model or 64, steps, seed)


def mean_distance(weights: Tensor, mask: Tensor) -> Tensor:
    """Mean |i - j| of each head, in positions -> (H,).

    weights: (N, H, T, T); mask: bool (N, 1, T, T), True = a real query that may see this key. Every real query counts
    the same, so long sentences count more (Vig & Belinkov 2019).
    """
    real = mask.any(dim=-1)  # (N, 1, T, T) -> (N, 1, T)
    return (attention_distance(weights) * real).sum(dim=(0, 2)) / real.sum()  # (N, H, T) -> (H,)


@dataclass(frozen=True)
class Distances:
    """Mean distances of one kind of model, in positions: of every head (L, H), and of even weights."""

    trained: Tensor
    untrained: Tensor
    even: float

    def layers(self, which: Tensor) -> list[float]:
        """Mean over the heads of each layer."""
        return which.mean(dim=1).tolist()


def measure(trained: Trained, make_attention: training.MakeAttention, num_sentences: int) -> Distances:
    """Distances of a model and of its untrained twin on held-out sentences."""
    sentences, objective = training.corpus()[1][:num_sentences], trained.recipe.objective
    found = []
    for model in (trained.model, training.untrained(trained.recipe, make_attention).model):
        layers, mask = training.attention_on(model, sentences, objective)
        layers, mask = [weights.cpu() for weights in layers], mask.cpu()
        if objective == "next word":
            mask = mask & causal_mask(mask.size(-1))
        found.append(torch.stack([mean_distance(weights, mask) for weights in layers]))
    return Distances(*found, even=mean_distance(even_weights(mask), mask).item())


def draw_distances(ax: Axes, name: str, found: Distances) -> None:
    """Each head a dot, each layer's mean a line; the dashed line is what even weights give."""
    num_layers, num_heads = found.trained.shape
    for layer in range(num_layers):
        for head in range(num_heads):
            x = layer + (head - (num_heads - 1) / 2) * 0.13
            ax.plot(x, found.untrained[layer, head], "o", color="white", markeredgecolor=QUIET, markersize=5)
            ax.plot(x, found.trained[layer, head], "o", color=head_color(head), markersize=9)
        for mean, color in ((found.untrained[layer].mean(), QUIET), (found.trained[layer].mean(), INK)):
            ax.plot([layer - 0.32, layer + 0.32], [mean, mean], color=color, linewidth=1.6)
        ax.text(
            layer + 0.34, found.trained[layer].mean(), f"{found.trained[layer].mean():.2f}", va="center", fontsize=9
        )
    ax.axhline(found.even, color=INK, linewidth=1.2, linestyle="--")
    ax.set_xticks(range(num_layers), [f"layer {layer}" for layer in range(num_layers)])
    ax.set_xlim(-0.55, num_layers - 0.3)
    ax.set_title(f"{name} (even weights, dashed: {found.even:.2f})", color=QUIET)


def draw(both: Distances, causal: Distances, note: str) -> tuple[Figure, str]:
    """One panel for each kind of model, on the same scale."""
    fig, axes = plt.subplots(1, 2, figsize=(9.2, 4.5), sharey=True, layout="constrained")
    draw_distances(axes[0], "both sides, hidden words", both)
    draw_distances(axes[1], "causal, next word", causal)
    top = max(d.max().item() for found in (both, causal) for d in (found.trained, found.untrained))
    axes[0].set(ylim=(0, 1.2 * max(top, both.even, causal.even)), ylabel="mean distance |i - j|, positions")
    marks = [
        plt.Line2D([], [], marker="o", linestyle="", color=head_color(0), markersize=9, label="a head, trained"),
        plt.Line2D([], [], marker="o", linestyle="", color="white", markeredgecolor=QUIET, label="the same, untrained"),
        plt.Line2D([], [], color=INK, label="mean of a layer"),
    ]
    axes[0].legend(handles=marks, frameon=False, fontsize=8, loc="upper left", ncols=3, borderaxespad=0)
    first_and_last = [[found.layers(found.trained)[i] for i in (0, -1)] for found in (both, causal)]
    (a, b), (c, d) = first_and_last
    title = f"Mean distance, first and last layer: {a:.1f} and {b:.1f} seeing both sides, {c:.1f} and {d:.1f} causal"
    fig.suptitle(title, fontsize=12.5)
    model_note(fig, note)
    return fig, f"{title}. A dot for each head, trained and untrained; dashed: even weights under the same mask."


Runs = dict[str, list[Distances]]  # kind of model -> one for each seed


def record_findings(runs: Runs, options: argparse.Namespace) -> None:
    def deeper(found: Distances, which: Tensor) -> float:
        return found.layers(which)[-1] - found.layers(which)[0]

    further = {name: [deeper(found, found.trained) for found in all_seeds] for name, all_seeds in runs.items()}
    chance = {
        f"{name}, untrained": [deeper(found, found.untrained) for found in all_seeds]
        for name, all_seeds in runs.items()
    }
    raw = {name: [found.trained.mean().item() for found in all_seeds] for name, all_seeds in runs.items()}
    shares = {name: [found.trained.mean().item() / found.even for found in runs[name]] for name in runs}
    start = {name: [found.untrained.mean().item() for found in runs[name]] for name in runs}
    nearer = all(a <= 0.9 * b for a, b in zip(raw[CAUSAL], raw[BOTH_SIDES], strict=True))
    relatively = all(a <= b - 0.1 for a, b in zip(shares[CAUSAL], shares[BOTH_SIDES], strict=True))
    findings.record(
        "phase3_visualization/roles/attention_distance.py",
        [
            Finding(
                "I129",
                "Deeper layers attend further away than the first layer",
                "course notes; in GPT-2 distance grows with depth (Vig & Belinkov 2019)",
                further | chance,
                "mean |i - j| of the last layer's heads less that of the first layer's, positions",
                "more than 0.3 positions further with every seed, in the model that sees both sides and in the causal "
                "one",
                findings.verdict(min(min(values) for values in further.values()) > 0.3),
                control="the same models before training",
                seeds=list(cli.seeds(options)),
            ),
            Finding(
                "distance-causal",
                "A causal mask makes attention more local",
                "course notes",
                {f"{name}, positions": values for name, values in raw.items()}
                | {f"{name}, share of even weights": values for name, values in shares.items()}
                | {f"{name}, untrained, positions": values for name, values in start.items()},
                "mean |i - j| over all heads",
                "with every seed a tenth fewer positions, and also at least 0.1 less as a share of the distance that "
                "even weights have under the same mask",
                **findings.conditional(
                    nearer and relatively,
                    nearer,
                    "positions are counted; even weights reach less far under the mask, too, and beside them the "
                    "difference is less than 0.1",
                ),
                control="even weights under each mask; untrained models. The two models also have different tasks",
                seeds=list(cli.seeds(options)),
            ),
        ],
        options.output_dir,
    )


def show(runs: Runs) -> None:
    """Print the distances of the first seed."""
    print("\nmean distance in positions   even weights   untrained, by layer   trained, by layer")
    for name, (found, *_) in runs.items():
        by_layer = [" ".join(f"{x:.2f}" for x in found.layers(which)) for which in (found.untrained, found.trained)]
        print(f"   {name:25} {found.even:<14.2f} {by_layer[0]:21} {by_layer[1]}")


def main(argv: list[str] | None = None) -> None:
    options = cli.parse(cli.parser(__doc__), argv)
    models = [load_multi_head_model(options, seed) for seed in cli.seeds(options)]
    causal_models = [causal_model(options, seed) for seed in cli.seeds(options)]
    num_sentences = QUICK_SENTENCES if options.quick else NUM_SENTENCES
    runs = {
        BOTH_SIDES: [measure(trained, MultiHeadAttention, num_sentences) for trained in models],
        CAUSAL: [measure(trained, CausalAttention, num_sentences) for trained in causal_models],
    }
    show(runs)
    entropy = []
    for trained in (models[0], causal_models[0]):
        heads = training.head_entropy(trained.model, training.corpus()[1][:num_sentences], trained.recipe.objective)
        entropy.append(f"{trained.label}, normalised entropy {torch.tensor(heads).mean():.2f}")
    note = f"both sides: {entropy[0]} · causal: {entropy[1]} · {num_sentences} held-out sentences"
    figure, caption = draw(runs[BOTH_SIDES][0], runs[CAUSAL][0], note)
    path = options.output_dir / paths.PLOTS / "phase3" / f"attention_distance.{options.format}"
    save_figure(figure, path, caption=caption)
    record_findings(runs, options)


if __name__ == "__main__":
    cli.run(main)
