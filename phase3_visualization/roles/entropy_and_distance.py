"""Does training sharpen attention, and do deeper layers look further?

Neither number says much alone. Under a causal mask the first words see few keys, so that their entropy is low without
any choice; so it is divided by its largest value: 1 means even weights over all words that a query may see, 0 one word
only. And a head that does not choose looks (n² - 1) / 3n positions away in a sentence of n words, (n - 1) / 4 under a
causal mask. So each distance stands beside what even weights give under the same mask, over the same sentences, and
beside the same model before training.

Two models are measured: that of phase 2, which sees both sides and guesses hidden words, and the causal one of phase 4,
which guesses the next word. How their entropy went during training was kept with them (shared/training.py, History).

    python phase3_visualization/roles/entropy_and_distance.py

Writes entropy_training.png and attention_distance.png to visualizations/plots/phase3/.
"""

from dataclasses import dataclass

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from phase2_multi_head.multi_head_attention import MultiHeadAttention, load_multi_head_model
from phase3_visualization.roles.causal_model import BOTH_SIDES, CAUSAL, CausalAttention, load_causal_model
from shared import cli, training
from shared.attention_utils import causal_mask
from shared.evidence import findings
from shared.evidence.claims import EXPERIMENT, Above, Claim, measures
from shared.head_statistics import even_weights, head_statistics
from shared.training import Trained
from shared.visualization_utils import INK, QUIET, head_color, headline, save_plot

FALLS = 0.1  # margin, in normalised entropy
ENTROPY_SENTENCES, NUM_SENTENCES, QUICK_SENTENCES = 64, 300, 50
MODELS = {BOTH_SIDES: "sees both sides, guesses hidden words", CAUSAL: "causal, guesses the next word"}
ATTENTION = {BOTH_SIDES: MultiHeadAttention, CAUSAL: CausalAttention}

Curve = tuple[list[int], Tensor]  # steps, and the entropy of every head then, (S, L, H)


def entropy_curve(trained: Trained) -> Curve:
    """The history that training kept, with the finished model as its last point."""
    history, recipe = trained.history, trained.recipe
    last = training.head_entropy(trained.model, training.corpus()[1][:ENTROPY_SENTENCES], recipe.objective)
    return [*history.entropy_steps, recipe.steps], torch.tensor([*history.entropy, last])


FALL = "smaller of the two falls"


@measures(
    Claim(
        id="C144",
        text="Attention entropy decreases during training: attention becomes more focused",
        kind=EXPERIMENT,
        source="course notes, Attention Entropy Evolution, as a question",
        rule=f"in both models the mean over all heads ends at least {FALLS} below its start",
        holds=lambda n: n[FALL] >= FALLS,
        oracle={FALL: 0.5},
        null={FALL: 0.0},
        unit=f"normalised entropy, {ENTROPY_SENTENCES} held-out sentences",
        control="first: the untrained model, whose scores are so small that its weights are nearly even",
        changed="also asked that it never rises again, where the notes ask only which of the two; the margin was 0.2",
    )
)
def entropies(curves: dict[str, Curve]) -> dict[str, float]:
    """Mean entropy at the start, at its lowest and at the end of training, and the share of heads that end lower."""
    found = {}
    for kind, (_, entropy) in curves.items():
        means = entropy.mean(dim=(1, 2))  # (S, L, H) -> (S,)
        found[f"{kind}, first"], found[f"{kind}, last"] = means[0].item(), means[-1].item()
        found[f"{kind}, lowest"] = means.min().item()
        found[f"{kind}, heads {FALLS} below their start"] = (entropy[0] - entropy[-1] >= FALLS).double().mean().item()
    return found | {FALL: min(found[f"{kind}, first"] - found[f"{kind}, last"] for kind in curves)}


def draw_curves(ax: Axes, name: str, curve: Curve) -> None:
    """A line for each head, by layer solid or dashed, and the mean of all of them in black."""
    steps, entropy = curve
    for layer in range(entropy.size(1)):
        for head in range(entropy.size(2)):
            style = {"color": head_color(head), "linestyle": "-" if layer == 0 else "--"}
            ax.plot(steps, entropy[:, layer, head], linewidth=1.1, alpha=0.75, **style)
    mean = entropy.mean(dim=(1, 2))
    ax.plot(steps, mean, color=INK, linewidth=2.6)
    lowest = int(mean.argmin())
    for at, offset in {lowest: -0.06, len(steps) - 1: 0.0}.items():
        right = at == len(steps) - 1
        ax.plot(steps[at], mean[at], "o", color=INK, markersize=5)
        place = {"ha": "left", "va": "center"} if right else {"ha": "center", "va": "top"}
        ground = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1}
        x = steps[at] + (0.015 * steps[-1] if right else 0)
        ax.text(x, mean[at] + offset, f"{mean[at]:.2f}", fontsize=9, bbox=ground, **place)
    ax.set(xlim=(0, 1.1 * steps[-1]), ylim=(0, 1.12), xlabel="training step")
    ax.set_title(name, color=QUIET)


def draw_entropy(curves: dict[str, Curve], note: str) -> tuple[Figure, str]:
    """One panel for each model."""
    fig, axes = plt.subplots(1, 2, figsize=(9.2, 4.4), sharey=True, layout="constrained")
    parts = []
    for ax, (kind, curve) in zip(axes, curves.items(), strict=True):
        draw_curves(ax, MODELS[kind], curve)
        mean = curve[1].mean(dim=(1, 2))
        parts.append(f"{kind}: from {mean[0]:.2f} down to {mean.min():.2f}, at the end {mean[-1]:.2f}")
    axes[0].set_ylabel("normalised entropy of a head")
    marks = [
        plt.Line2D([], [], color=QUIET, linestyle="-", label="a head of layer 0"),
        plt.Line2D([], [], color=QUIET, linestyle="--", label="of a later layer"),
        plt.Line2D([], [], color=INK, linewidth=2.6, label="mean of all heads"),
    ]
    axes[0].legend(handles=marks, frameon=False, fontsize=8, loc="upper right", ncols=3, borderaxespad=0)
    title = f"Entropy, {'; '.join(parts)}"
    headline(fig, title, f"{note}; {ENTROPY_SENTENCES} held-out sentences", size=11.5)
    return fig, f"{title}. Normalised entropy of every head during training."


@dataclass(frozen=True)
class Distances:
    """Mean distances of one kind of model, in positions: of every head (L, H), and of even weights."""

    trained: Tensor
    untrained: Tensor
    even: float


def measure(trained: Trained, make_attention: training.MakeAttention, num_sentences: int) -> Distances:
    """Distances of a model and of its untrained twin on held-out sentences."""
    sentences, objective = training.corpus()[1][:num_sentences], trained.recipe.objective
    found = []
    for model in (trained.model, training.untrained(trained.recipe, make_attention).model):
        layers, mask = training.attention_on(model, sentences, objective)
        layers, mask = [weights.cpu() for weights in layers], mask.cpu()
        if objective == "next word":
            mask = mask & causal_mask(mask.size(-1))
        found.append(torch.stack([head_statistics(weights, mask)["distance"] for weights in layers]))
    return Distances(*found, even=head_statistics(even_weights(mask), mask)["distance"].item())


FURTHER = "last layer less first"


@measures(
    Claim(
        id="I129",
        text="Attention reaches further in deeper layers",
        kind=EXPERIMENT,
        source="course notes, Attention Distance Analysis, as a question; Vig & Belinkov 2019 find it in GPT-2",
        rule="the last layer looks further than the first, in the model that sees both sides and in the causal one",
        holds=Above(lambda n: min(n[f"{kind}, {FURTHER}"] for kind in MODELS), 0.0),
        oracle={f"{kind}, {FURTHER}": 1.0 for kind in MODELS},
        null={f"{kind}, {FURTHER}": 0.0 for kind in MODELS},
        unit="mean |i - j| of a layer's heads, positions; two layers",
        control="the same models before training; even weights under the same mask",
        changed="asked for 0.3 positions with every seed, which no source says",
    )
)
def distances(runs: dict[str, Distances]) -> dict[str, float]:
    """Mean distances in positions: of the first and the last layer, trained and not, and of even weights."""
    found = {}
    for kind, run in runs.items():
        for name, heads in (("", run.trained), ("untrained, ", run.untrained)):  # (L, H)
            found[f"{kind}, {name}first layer"] = heads[0].mean().item()
            found[f"{kind}, {name}last layer"] = heads[-1].mean().item()
        found[f"{kind}, even weights"] = run.even
        found[f"{kind}, {FURTHER}"] = found[f"{kind}, last layer"] - found[f"{kind}, first layer"]
    return found


def draw_heads(ax: Axes, name: str, found: Distances) -> None:
    """Each head a dot, each layer's mean a line; the dashed line is what even weights give."""
    num_layers, num_heads = found.trained.shape
    for layer in range(num_layers):
        for head in range(num_heads):
            x = layer + (head - (num_heads - 1) / 2) * 0.13
            ax.plot(x, found.untrained[layer, head], "o", color="white", markeredgecolor=QUIET, markersize=5)
            ax.plot(x, found.trained[layer, head], "o", color=head_color(head), markersize=9)
        for mean, color in ((found.untrained[layer].mean(), QUIET), (found.trained[layer].mean(), INK)):
            ax.plot([layer - 0.32, layer + 0.32], [mean, mean], color=color, linewidth=1.6)
        mean = found.trained[layer].mean()
        ax.text(layer + 0.34, mean, f"{mean:.2f}", va="center", fontsize=9)
    ax.axhline(found.even, color=INK, linewidth=1.2, linestyle="--")
    ax.set_xticks(range(num_layers), [f"layer {layer}" for layer in range(num_layers)])
    ax.set_xlim(-0.55, num_layers - 0.3)
    ax.set_title(f"{name}\n(even weights, dashed: {found.even:.2f})", color=QUIET)


def draw_distance(found: dict[str, Distances], note: str) -> tuple[Figure, str]:
    """One panel for each kind of model, on the same scale."""
    fig, axes = plt.subplots(1, 2, figsize=(9.2, 4.5), sharey=True, layout="constrained")
    for ax, (kind, distances) in zip(axes, found.items(), strict=True):
        draw_heads(ax, MODELS[kind], distances)
    top = max(max(d.trained.max().item(), d.untrained.max().item(), d.even) for d in found.values())
    axes[0].set(ylim=(0, 1.2 * top), ylabel="mean distance |i - j|, positions")
    marks = [
        plt.Line2D([], [], marker="o", linestyle="", color=head_color(0), markersize=9, label="a head, trained"),
        plt.Line2D([], [], marker="o", linestyle="", color="white", markeredgecolor=QUIET, label="the same, untrained"),
        plt.Line2D([], [], color=INK, label="mean of a layer"),
    ]
    axes[0].legend(handles=marks, frameon=False, fontsize=8, loc="upper left", ncols=3, borderaxespad=0)
    (a, b), (c, d) = ([d.trained[layer].mean() for layer in (0, -1)] for d in found.values())
    title = f"Mean distance, first and last layer: {a:.1f} and {b:.1f} seeing both sides, {c:.1f} and {d:.1f} causal"
    headline(fig, title, note, size=12.5)
    return fig, f"{title}. A dot for each head, trained and untrained; dashed: even weights under the same mask."


def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    num_sentences = QUICK_SENTENCES if options.quick else NUM_SENTENCES
    load = {BOTH_SIDES: load_multi_head_model, CAUSAL: load_causal_model}
    models = [{kind: load[kind](options, seed) for kind in MODELS} for seed in cli.seeds(options)]
    curves = [{kind: entropy_curve(both[kind]) for kind in MODELS} for both in models]
    runs = [{kind: measure(both[kind], ATTENTION[kind], num_sentences) for kind in MODELS} for both in models]
    labels = [f"{k}: {curves[0][k][1][-1].mean():.2f}, {trained.label}" for k, trained in models[0].items()]
    note = f"normalised entropy at the end: {'; '.join(labels)}"
    save_plot(options, "phase3/entropy_training", *draw_entropy(curves[0], note))
    save_plot(
        options, "phase3/attention_distance", *draw_distance(runs[0], f"{note}; {num_sentences} held-out sentences")
    )
    sharpened, reached = [entropies(of_seed) for of_seed in curves], [distances(of_seed) for of_seed in runs]
    findings.record(options, *sharpened, *reached)
    start, end = (sharpened[0][f"{BOTH_SIDES}, {what}"] for what in ("first", "last"))
    both, causal = (reached[0][f"{kind}, {FURTHER}"] for kind in MODELS)
    return f"Entropy {start:.2f} to {end:.2f}; the last layer looks {both:+.1f} positions further, causal {causal:+.1f}"


if __name__ == "__main__":
    cli.run(main)
