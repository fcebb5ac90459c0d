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
from shared.evidence.claims import EXPERIMENT, Claim, measures
from shared.head_statistics import even_weights, head_statistics
from shared.training import Trained
from shared.visualization_utils import INK, QUIET, head_color, headline, save_plot

FALLS, RISES = 0.2, 0.05  # margins, in normalised entropy
ENTROPY_SENTENCES, NUM_SENTENCES, QUICK_SENTENCES = 64, 300, 50
MODELS = {BOTH_SIDES: "sees both sides, guesses hidden words", CAUSAL: "causal, guesses the next word"}
ATTENTION = {BOTH_SIDES: MultiHeadAttention, CAUSAL: CausalAttention}

Curve = tuple[list[int], Tensor]  # steps, and the entropy of every head then, (S, L, H)


def entropy_curve(trained: Trained) -> Curve:
    """The history that training kept, with the finished model as its last point."""
    history, recipe = trained.history, trained.recipe
    last = training.head_entropy(trained.model, training.corpus()[1][:ENTROPY_SENTENCES], recipe.objective)
    return [*history.entropy_steps, recipe.steps], torch.tensor([*history.entropy, last])


def fall_and_rise(values: Tensor) -> tuple[Tensor, Tensor]:
    """Along the first axis: how far the last value lies below the first, and how far above the lowest."""
    return values[0] - values[-1], values[-1] - values.amin(dim=0)


FALL, RISE, RETURNING = "smallest fall", "largest rise from the lowest", "largest share of heads that rise"


@measures(
    Claim(
        id="C144",
        text="Entropy of attention decreases during training",
        kind=EXPERIMENT,
        source="course notes, as a question",
        rule=f"with every seed it ends at least {FALLS} below its start and at most {RISES} above its lowest point, "
        f"and at most a quarter of the heads end more than {RISES} above theirs; in both models",
        holds=lambda n: n[FALL] >= FALLS and n[RISE] <= RISES and n[RETURNING] <= 0.25,
        only_if=lambda n: n[FALL] >= FALLS,
        condition="only start and end are compared: it was lower in between",
        oracle={FALL: 0.5, RISE: 0.0, RETURNING: 0.0},
        null={FALL: 0.0, RISE: 0.0, RETURNING: 0.0},
        unit=f"normalised entropy, mean over all heads, {ENTROPY_SENTENCES} held-out sentences",
        control="start: the untrained model",
    )
)
def entropies(curves: dict[str, list[Curve]]) -> dict[str, float | list[float]]:
    """Mean entropy at the start, at its lowest and at the end of training, one for each seed, and what decides."""
    found, falls, rises, returning = {}, [], [], []
    for kind, of_seeds in curves.items():
        means = [entropy.mean(dim=(1, 2)) for _, entropy in of_seeds]
        for name, values in (("first", [m[0] for m in means]), ("lowest", [m.min() for m in means])):
            found[f"{kind}, {name}"] = [value.item() for value in values]
        found[f"{kind}, last"] = [mean[-1].item() for mean in means]
        falls += [fall_and_rise(mean)[0].item() for mean in means]
        rises += [fall_and_rise(mean)[1].item() for mean in means]
        returning += [(fall_and_rise(entropy)[1] > RISES).double().mean().item() for _, entropy in of_seeds]
    return found | {FALL: min(falls), RISE: max(rises), RETURNING: max(returning)}


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


FURTHER, NEARER, RELATIVELY = "last layer less first", "causal over both sides", "share of even, causal less both sides"


@measures(
    Claim(
        id="I129",
        text="Deeper layers attend further away than the first layer",
        kind=EXPERIMENT,
        source="course notes; in GPT-2 distance grows with depth (Vig & Belinkov 2019)",
        rule="more than 0.3 positions further with every seed, in the model that sees both sides and in the causal one",
        holds=lambda n: min(x for kind in MODELS for x in n[f"{kind}, {FURTHER}"]) > 0.3,
        oracle={f"{kind}, {FURTHER}": [1.0] for kind in MODELS},
        null={f"{kind}, {FURTHER}": [0.0] for kind in MODELS},
        unit="mean |i - j| of a layer's heads, positions",
        control="the same models before training",
        shows=("*layer*",),
    ),
    Claim(
        id="distance-causal",
        text="A causal mask makes attention more local",
        kind=EXPERIMENT,
        rule="with every seed a tenth fewer positions, and also at least 0.1 less as a share of the distance that even "
        "weights have under the same mask",
        holds=lambda n: max(n[NEARER]) <= 0.9 and max(n[RELATIVELY]) <= -0.1,
        only_if=lambda n: max(n[NEARER]) <= 0.9,
        condition="positions are counted; even weights reach less far under the mask, too, and beside them the "
        "difference is less than 0.1",
        oracle={NEARER: [0.5], RELATIVELY: [-0.3]},
        null={NEARER: [0.83], RELATIVELY: [0.0]},
        unit="mean |i - j| over all heads, positions",
        control="even weights under each mask; untrained models. The two models also have different tasks",
        shows=("*all heads", "*even*", NEARER),
    ),
)
def distances(runs: dict[str, list[Distances]]) -> dict[str, list[float]]:
    """Mean distances in positions, one for each seed: of layers, of all heads, of even weights, and what decides."""
    found, reach, share = {}, {}, {}
    for kind, of_seeds in runs.items():
        for name, models in (("", [d.trained for d in of_seeds]), ("untrained, ", [d.untrained for d in of_seeds])):
            found[f"{kind}, {name}first layer"] = [heads[0].mean().item() for heads in models]
            found[f"{kind}, {name}last layer"] = [heads[-1].mean().item() for heads in models]
            found[f"{kind}, {name}all heads"] = [heads.mean().item() for heads in models]
        found[f"{kind}, {FURTHER}"] = [(d.trained[-1].mean() - d.trained[0].mean()).item() for d in of_seeds]
        found[f"{kind}, even weights"] = [d.even for d in of_seeds]
        reach[kind] = [d.trained.mean().item() for d in of_seeds]
        share[kind] = found[f"{kind}, share of even weights"] = [d.trained.mean().item() / d.even for d in of_seeds]
    found[NEARER] = [causal / both for both, causal in zip(*reach.values(), strict=True)]
    found[RELATIVELY] = [causal - both for both, causal in zip(*share.values(), strict=True)]
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
    models = {
        BOTH_SIDES: [load_multi_head_model(options, seed) for seed in cli.seeds(options)],
        CAUSAL: [load_causal_model(options, seed) for seed in cli.seeds(options)],
    }
    num_sentences = QUICK_SENTENCES if options.quick else NUM_SENTENCES
    curves = {kind: [entropy_curve(trained) for trained in of_seeds] for kind, of_seeds in models.items()}
    runs = {kind: [measure(trained, ATTENTION[kind], num_sentences) for trained in models[kind]] for kind in models}
    labels = [f"{k}: {curves[k][0][1][-1].mean():.2f}, {of_seeds[0].label}" for k, of_seeds in models.items()]
    note = f"normalised entropy at the end: {'; '.join(labels)}"
    first_curves, first_runs = ({kind: of_seeds[0] for kind, of_seeds in each.items()} for each in (curves, runs))
    save_plot(options, "phase3/entropy_training", *draw_entropy(first_curves, note))
    save_plot(
        options, "phase3/attention_distance", *draw_distance(first_runs, f"{note}; {num_sentences} held-out sentences")
    )
    sharpened, reached = entropies(curves), distances(runs)
    findings.record(options, sharpened, reached)
    start, end = (sharpened[f"{BOTH_SIDES}, {what}"][0] for what in ("first", "last"))
    both, causal = (reached[f"{kind}, {FURTHER}"][0] for kind in MODELS)
    return f"Entropy {start:.2f} to {end:.2f}; the last layer looks {both:+.1f} positions further, causal {causal:+.1f}"


if __name__ == "__main__":
    cli.run(main)
