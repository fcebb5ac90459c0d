"""At which step of training does a head find its role?

A film of the model that all scripts share, as it was at each stage of its training: its weights on
one sentence become a frame. A head lights up when it has a role by the rules of
shared/grammar/roles.py, in the colour that the role has everywhere. Below the maps grow the loss,
how often the best head of each relation looks at the right word, and the normalised entropy of each
head (1 means even weights). The grey band is what guesses reach: the best fixed offset, or the best
untrained head.
"""

from dataclasses import dataclass
from statistics import fmean

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter
from torch import Tensor

from phase2_multi_head.models import load_multi_head_model
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from shared.evidence.claims import Numbers
from shared.experiment import Experiment, Film, Results, Run
from shared.grammar import roles
from shared.grammar.scores import CORE_RELATIONS, DIRECTIONS
from shared.toy_model import weights_of
from shared.training import Trained
from shared.visualization_utils import (
    GREY,
    HIDDEN,
    INK,
    QUIET,
    headline,
    in_few_colors,
    picture_of,
    plot_attention,
    role_color,
)

HELD_FRAMES = 14  # how often the last frame is shown again
SECONDS_PER_FRAME = 0.28
VISIBLE = 0.04  # weights are shown in such steps: nobody sees less, and the file is smaller
PANEL_TITLES = ("loss, nats per hidden word", "best head is right", "normalised entropy")
NOTE = (
    "rows: queries, columns: keys, darker: more weight · framed: has a role by rule, on held-out "
    "sentences\nnormalised entropy: a line for each head, in the colour of its role, dotted their "
    "mean; 1 means even weights"
)


@dataclass(frozen=True)
class Look:
    """What was seen after one step of training."""

    step: int
    weights: Tensor  # (L, H, T, T) on the sentence of the film
    names: list[list[str]]  # [layer][head] -> role by rule
    scores: dict[str, float]  # relation -> how often its best head is right
    entropy: Tensor  # (L, H), normalised


def look_at(trained: Trained, step: int, words: list[str]) -> Look:
    """Looks at the model as it was after so many steps of its training."""
    model = trained.at_stage(step)
    halves = roles.halves_of(model, MultiHeadAttention)
    found = halves.scoring.scores
    scores = {}
    for relation in CORE_RELATIONS:
        ways = [found.relation[relation, direction].max().item() for direction in DIRECTIONS]
        scores[relation] = max(ways)
    names = roles.names_of(halves)
    entropy = found.statistics["normalised entropy"]
    return Look(step, weights_of(model.model, words), names, scores, entropy)


def measure(run: Run) -> Numbers:
    """Share of held-out pairs that the best head finds, beside what guesses reach."""
    trained = load_multi_head_model(run.options, run.seed)
    steps = list(trained.stages)
    if run.options.quick:
        steps = steps[:: len(steps) // 4 + 1]
    looks = [look_at(trained, step, run.options.words) for step in steps]
    run.shown.update(looks=looks, loss=trained.losses)
    _, baselines = roles.baselines(trained.recipe, MultiHeadAttention)
    numbers = {
        "entropy, before": looks[0].entropy.mean().item(),
        "entropy, after training": looks[-1].entropy.mean().item(),
    }
    for relation in CORE_RELATIONS:
        guesses = [baselines.bar((relation, direction)) for direction in DIRECTIONS]
        numbers[f"{relation}, guess"] = max(guesses)
        numbers[f"{relation}, best head"] = looks[-1].scores[relation]
    return numbers


# ---- the film


def draw_maps(axes: np.ndarray, look: Look, words: list[str]) -> None:
    """Draws a map for each head, axes (L, H); the words stand at the edges of the grid only."""
    for (layer, head), ax in np.ndenumerate(axes):
        plot_attention(look.weights[layer, head], words, ax=ax, annotate=False, labels=False)
        ax.spines[:].set_visible(True)
        if layer > 0 or len(words) > 10:  # more words have no room side by side
            ax.set_xticks([])
        if head > 0:
            ax.set_yticks([])
        else:
            ax.set_ylabel(f"layer {layer}", color=QUIET, fontsize=11)


def light_up(axes: np.ndarray, look: Look) -> int:
    """Shows weights and roles of this look; returns how many heads have a role."""
    lit = 0
    for (layer, head), ax in np.ndenumerate(axes):
        weights = (look.weights[layer, head] / VISIBLE).round() * VISIBLE
        ax.collections[0].set_array(weights.numpy())
        role = look.names[layer][head]
        color = role_color(role)
        if role == roles.NO_NAME:
            ax.set_title(f"head {layer}.{head}", fontsize=9, color=color, weight="normal")
            ax.spines[:].set(color=HIDDEN, linewidth=1)
        else:
            ax.set_title(role, fontsize=9, color=color, weight="bold")
            ax.spines[:].set(color=color, linewidth=3)
            lit += 1
    return lit


def draw_loss(ax: Axes, smooth: list[float], step: int) -> None:
    """The loss up to this step."""
    ax.plot(range(1, step + 1), smooth[:step], color=GREY, linewidth=2.5)
    ax.set(ylim=(0, 1.1 * max(smooth)), yticks=[0, 2, 4])


def draw_scores(ax: Axes, looks: list[Look], guesses: list[float]) -> None:
    """How often the best head of each relation has been right up to now, above the guesses."""
    low, high = min(guesses), max(guesses)
    ax.axhspan(low, high, color=HIDDEN, linewidth=0)
    style = {"fontsize": 9, "ha": "right", "transform": ax.get_yaxis_transform()}
    ax.text(0.98, low + 0.03, "guesses", color=QUIET, **style)
    steps = [look.step for look in looks]
    for row, relation in enumerate(CORE_RELATIONS):
        shares = [look.scores[relation] for look in looks]
        color = role_color(relation)
        ax.plot(steps, shares, color=color, linewidth=2.5)
        text = f"{relation.replace('-', '–')} {shares[-1]:.0%}"
        ax.text(0.98, 0.34 - 0.14 * row, text, color=color, weight="bold", **style)
    ax.yaxis.set_major_formatter(PercentFormatter(1))
    ax.set_xlabel("training step", color=QUIET)


def draw_entropies(ax: Axes, looks: list[Look]) -> None:
    """The normalised entropy of each head up to now, in the colour of the role it has now."""
    steps = [look.step for look in looks]
    entropy = torch.stack([look.entropy for look in looks]).numpy()  # (looks, L, H)
    for layer, names in enumerate(looks[-1].names):
        for head, name in enumerate(names):
            ax.plot(steps, entropy[:, layer, head], color=role_color(name), linewidth=1.6)
    mean = entropy.mean(axis=(1, 2))  # (looks, L, H) -> (looks,)
    ax.plot(steps, mean, color=INK, linewidth=2.5, linestyle=":")
    place = {"ha": "right", "transform": ax.transAxes}
    ax.text(0.98, 0.06, f"mean {mean[-1]:.2f}", weight="bold", fontsize=9, **place)


def training_frames(results: Results) -> Film:
    """Every frame; the last one stays for a while."""
    looks, words = results.shown["looks"], results.options.words
    guesses = [results.mean[f"{relation}, guess"] for relation in CORE_RELATIONS]
    end = looks[-1].step
    num_layers, num_heads = looks[0].entropy.shape
    height = 1.85 * num_layers + 1.0  # inches, of all maps
    fig = plt.figure(figsize=(9, height + 2.7), layout="constrained")
    above, below = fig.subfigures(2, 1, height_ratios=(height, 2.7))
    maps = above.subplots(num_layers, num_heads, squeeze=False)
    panels = below.subplots(1, 3, width_ratios=(0.7, 1, 1))
    draw_maps(maps, looks[0], words)
    losses = results.shown["loss"]
    means_of_ten = [fmean(losses[max(end - 10, 0) : end]) for end in range(1, len(losses) + 1)]
    images = []
    for number, look in enumerate(looks, 1):
        lit = light_up(maps, look)
        headline(fig, f"Step {look.step} of {end} · heads that have a role: {lit}", NOTE, size=14)
        for ax, title in zip(panels, PANEL_TITLES, strict=True):
            ax.clear()
            ax.set_title(title, color=QUIET, loc="left")
            ax.set(xlim=(0, end), ylim=(0, 1.08), xticks=[0, end // 2, end], yticks=[0, 0.5, 1])
        draw_loss(panels[0], means_of_ten, look.step)
        draw_scores(panels[1], looks[:number], guesses)
        draw_entropies(panels[2], looks[:number])
        with plt.rc_context({"savefig.dpi": 100}):
            images.append(picture_of(fig))
        fig.set_layout_engine("none")  # all frames are laid out as the first one
    plt.close(fig)
    images = in_few_colors(images)
    return images + images[-1:] * HELD_FRAMES, SECONDS_PER_FRAME


main = Experiment(
    measure,
    film=training_frames,
    title="The heads of a model in training, with its loss and the scores of three relations",
    answer="The best head finds {n[verb-subject, best head]:.0%} of verbs and subjects, a guess "
    "{n[verb-subject, guess]:.0%}; entropy falls from {n[entropy, before]:.2f} to "
    "{n[entropy, after training]:.2f}",
)

if __name__ == "__main__":
    main.run()
