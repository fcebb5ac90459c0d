"""Does the entropy of attention fall during training? From even weights to a choice, and a little of the way back.

Training keeps the normalised entropy of every head at some 40 steps (shared/training.py, History): 1 means even weights
over all words that a query may see, 0 one word only. Here are the curves of the multi-head model of phase 2, as kept in
its checkpoint, and of the causal model that attention_distance.py trains in a few seconds. Normalising matters here:
under a causal mask the first words see few keys, so the plain entropy would be lower without any choice.

    python phase3_visualization/roles/entropy_training.py

Writes entropy_training.png to visualizations/plots/phase3/.
"""

import argparse

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from phase2_multi_head.multi_head_attention import load_multi_head_model
from phase3_visualization.roles.attention_distance import BOTH_SIDES, CAUSAL, causal_model
from shared import cli, paths, training
from shared.evidence import findings
from shared.evidence.findings import Finding
from shared.training import Trained
from shared.visualization_utils import INK, QUIET, head_color, model_note, save_figure

FALLS, RISES = 0.2, 0.05  # margins of the finding, in normalised entropy
Curve = tuple[list[int], Tensor]  # steps, and the entropy of every head then, (S, L, H)


def entropy_curve(trained: Trained) -> Curve:
    """The history that training kept, with the finished model as its last point."""
    history, recipe = trained.history, trained.recipe
    last = training.head_entropy(trained.model, training.corpus()[1][:64], recipe.objective)
    return [*history.entropy_steps, recipe.steps], torch.tensor([*history.entropy, last])


def fall_and_rise(values: Tensor) -> tuple[Tensor, Tensor]:
    """Along the first axis: how far the last value lies below the first, and how far above the lowest."""
    return values[0] - values[-1], values[-1] - values.amin(dim=0)


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
        ax.text(
            steps[at] + (0.015 * steps[-1] if right else 0),
            mean[at] + offset,
            f"{mean[at]:.2f}",
            ha="left" if right else "center",
            va="center" if right else "top",
            fontsize=9,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1},
        )
    ax.set(xlim=(0, 1.1 * steps[-1]), ylim=(0, 1.12), xlabel="training step")
    ax.set_title(name, color=QUIET)


def draw(curves: dict[str, Curve], note: str) -> tuple[Figure, str]:
    """One panel for each model."""
    fig, axes = plt.subplots(1, 2, figsize=(9.2, 4.4), sharey=True, layout="constrained")
    draw_curves(axes[0], "sees both sides, guesses hidden words", curves[BOTH_SIDES])
    draw_curves(axes[1], "causal, guesses the next word", curves[CAUSAL])
    axes[0].set_ylabel("normalised entropy of a head")
    marks = [
        plt.Line2D([], [], color=QUIET, linestyle="-", label="a head of layer 0"),
        plt.Line2D([], [], color=QUIET, linestyle="--", label="of a later layer"),
        plt.Line2D([], [], color=INK, linewidth=2.6, label="mean of all heads"),
    ]
    axes[0].legend(handles=marks, frameon=False, fontsize=8, loc="upper right", ncols=3, borderaxespad=0)
    parts = []
    for name, (_, entropy) in curves.items():
        mean = entropy.mean(dim=(1, 2))
        parts.append(f"{name}: from {mean[0]:.2f} down to {mean.min():.2f}, at the end {mean[-1]:.2f}")
    title = f"Entropy, {'; '.join(parts)}"
    fig.suptitle(title, fontsize=11.5)
    model_note(fig, note)
    return fig, f"{title}. Normalised entropy of every head during training."


def record_findings(curves: dict[str, list[Curve]], options: argparse.Namespace) -> None:
    measured, falls, returned = {}, [], []
    for name, all_seeds in curves.items():
        means = [entropy.mean(dim=(1, 2)) for _, entropy in all_seeds]
        risen = [(fall_and_rise(entropy)[1] > RISES).double().mean().item() for _, entropy in all_seeds]
        measured |= {
            f"{name}, first": [mean[0].item() for mean in means],
            f"{name}, lowest": [mean.min().item() for mean in means],
            f"{name}, last": [mean[-1].item() for mean in means],
            f"{name}, share of heads that end {RISES} above their lowest": risen,
        }
        falls += [fall_and_rise(mean)[0] >= FALLS for mean in means]
        if any(fall_and_rise(mean)[1] > RISES for mean in means) or max(risen) > 0.25:
            returned.append(name)
    findings.record(
        "phase3_visualization/roles/entropy_training.py",
        [
            Finding(
                "C144",
                "Entropy of attention decreases during training",
                "course notes, as a question",
                measured,
                "normalised entropy, mean over all heads, 64 held-out sentences",
                f"with every seed it ends at least {FALLS} below its start and at most {RISES} above its lowest point, "
                f"and at most a quarter of the heads end more than {RISES} above theirs; in both models",
                **findings.conditional(
                    all(falls) and not returned,
                    all(falls),
                    f"only start and end are compared: it was lower in between ({', '.join(returned)})",
                ),
                control="start: the untrained model",
                seeds=list(cli.seeds(options)),
            ),
        ],
        options.output_dir,
    )


def main(argv: list[str] | None = None) -> None:
    options = cli.parse(cli.parser(__doc__), argv)
    models = [load_multi_head_model(options, seed) for seed in cli.seeds(options)]
    causal_models = [causal_model(options, seed) for seed in cli.seeds(options)]
    curves = {
        BOTH_SIDES: [entropy_curve(trained) for trained in models],
        CAUSAL: [entropy_curve(trained) for trained in causal_models],
    }
    note = f"both sides: {models[0].label}; causal: {causal_models[0].label}; 64 held-out sentences"
    figure, caption = draw({name: first for name, (first, *_) in curves.items()}, note)
    path = options.output_dir / paths.PLOTS / "phase3" / f"entropy_training.{options.format}"
    save_figure(figure, path, caption=caption)
    record_findings(curves, options)


if __name__ == "__main__":
    cli.run(main)
