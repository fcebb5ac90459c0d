"""Does training sharpen attention, and do deeper layers look further?

Neither number says much alone. Under a causal mask the first words see few keys, so that their entropy is low without
any choice; so it is divided by its largest value: 1 means even weights over all words that a query may see, 0 one word
only. And a head that does not choose looks (n² - 1) / 3n positions away in a sentence of n words, (n - 1) / 4 under a
causal mask. So each distance stands beside what even weights give under the same mask, over the same sentences, and
beside the same model before training.

Two models are measured: that of phase 2, which sees both sides and guesses hidden words, and the causal one of phase 4,
which guesses the next word. How their entropy went during training was kept with them (shared/training.py, History).

    python phase3_visualization/roles/entropy_and_distance.py

Writes attention_distance.png to visualizations/plots/phase3/.
"""

from dataclasses import dataclass

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from phase2_multi_head.models import load_causal_model, load_multi_head_model
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase3_visualization.attention_flow import head_label
from shared import cli, training
from shared.evidence import findings
from shared.evidence.claims import EXPERIMENT, Above, Claim, measures
from shared.grammar.roles import NO_NAME, head_names
from shared.head_statistics import even_weights, head_statistics
from shared.training import Trained
from shared.visualization_utils import INK, QUIET, headline, role_color, save_plot

FALLS = 0.1  # margin, in normalised entropy
ENTROPY_SENTENCES, NUM_SENTENCES, QUICK_SENTENCES = 64, 300, 50
MODELS = {"both sides": "sees both sides, guesses hidden words", "causal": "causal, guesses the next word"}

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


@dataclass(frozen=True)
class Distances:
    """Mean distances of one kind of model, in positions: of every head (L, H), and of even weights."""

    trained: Tensor
    untrained: Tensor
    even: float


def measure(trained: Trained, num_sentences: int) -> Distances:
    """Distances of a model and of its untrained twin on held-out sentences."""
    sentences, objective = training.corpus()[1][:num_sentences], trained.recipe.objective
    found = []
    for model in (trained.model, training.untrained(trained.recipe, MultiHeadAttention).model):
        layers, mask = training.attention_on(model, sentences, objective)
        layers, mask = [weights.cpu() for weights in layers], mask.cpu()
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


def further(run: Distances) -> bool:
    """Does the last layer look further than the first, on average over its heads?"""
    return bool(run.trained[-1].mean() > run.trained[0].mean())


def summary(found: dict[str, Distances]) -> str:
    """What the means of the first and the last layer say of the two models."""
    if all(map(further, found.values())):
        return "In both models the last layer looked further than the first, this time"
    return "Deeper layers need not look further"


def draw_heads(ax: Axes, found: Distances, names: list[list[str]] | None) -> None:
    """A dot for each head, by distance within its layer; from layer to layer an arrow joins the means."""
    num_layers, num_heads = found.trained.shape
    means = found.trained.mean(dim=1).tolist()
    ticks = []
    for layer, (distances, mean) in enumerate(zip(found.trained, means, strict=True)):
        top = layer * (num_heads + 1.5)
        for row, head in enumerate(distances.argsort().tolist()):
            name = names[layer][head] if names else NO_NAME
            label = head_label(name if names else "head", layer, head)
            ticks.append((top + row, label, role_color(name)))
            ax.plot(distances[head], top + row, "o", color=role_color(name), markersize=8)
        ax.plot([mean, mean], [top - 0.5, top + num_heads - 0.5], color=INK, linewidth=3, zorder=0)
        ax.text(0.04, top - 0.6, f"layer {layer}: {mean:.1f}", va="bottom", fontsize=10)
        if layer:
            line = {"arrowstyle": "-|>", "color": INK, "linewidth": 2, "shrinkA": 0, "shrinkB": 0}
            ax.annotate("", (mean, top - 0.5), (means[layer - 1], top - 2), arrowprops=line)
    bottom = num_layers * (num_heads + 1.5) - 1.5
    ax.axvline(found.even, color=QUIET, linewidth=1.5, linestyle=":", zorder=0)
    ax.text(found.even - 0.05, bottom, f"even weights {found.even:.1f}", color=QUIET, fontsize=9, ha="right")
    places, labels, colors = zip(*ticks, strict=True)
    ax.set_yticks(places, labels, fontsize=9)
    for label, color in zip(ax.get_yticklabels(), colors, strict=True):
        label.set_color(color)
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(bottom + 0.2, -1.6)


def draw(found: dict[str, Distances], names: list[list[str]], note: str) -> tuple[Figure, str]:
    """One panel for each kind of model, on the same scale; names: of the heads of the first."""
    fig, axes = plt.subplots(1, 2, figsize=(9, 4.8), layout="constrained", width_ratios=(1, 0.9))
    far = max(max(run.even, run.trained.max().item()) for run in found.values())
    for ax, (kind, run), known in zip(axes, found.items(), (names, None), strict=True):
        draw_heads(ax, run, known)
        ax.set(xlim=(0, 1.05 * far), xticks=range(1 + int(far)), xlabel="mean distance, words (line: mean of a layer)")
        ax.set_title(f"{MODELS[kind]}:\nhere its last layer looks {'further' if further(run) else 'less far'}")
    title = summary(found)
    headline(fig, title, f"{note}; in brackets: layer.head, of one seed")
    return fig, f"{title}. A dot for each head, a line at the mean of its layer, dotted what even weights give."


@cli.script
def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    num_sentences = QUICK_SENTENCES if options.quick else NUM_SENTENCES
    load = {"both sides": load_multi_head_model, "causal": load_causal_model}
    models = [{kind: load[kind](options, seed) for kind in MODELS} for seed in cli.seeds(options)]
    curves = [{kind: entropy_curve(both[kind]) for kind in MODELS} for both in models]
    runs = [{kind: measure(both[kind], num_sentences) for kind in MODELS} for both in models]
    if options.pictures:
        names = head_names(models[0]["both sides"], MultiHeadAttention)
        entropy = " and ".join(f"{curve[1][-1].mean():.2f}" for curve in curves[0].values())
        note = f"both {models[0]['causal'].label} · normalised entropy {entropy} · {num_sentences} held-out sentences"
        save_plot(options, "phase3/attention_distance", *draw(runs[0], names, note))
    sharpened, reached = [entropies(of_seed) for of_seed in curves], [distances(of_seed) for of_seed in runs]
    findings.record(options, *sharpened, *reached)
    start, end = (sharpened[0][f"both sides, {what}"] for what in ("first", "last"))
    both, causal = (reached[0][f"{kind}, {FURTHER}"] for kind in MODELS)
    return f"Entropy {start:.2f} to {end:.2f}; the last layer looks {both:+.1f} positions further, causal {causal:+.1f}"


if __name__ == "__main__":
    cli.run(main)
