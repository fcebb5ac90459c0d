"""At which step of training does a head find its role?

A film of the model that all scripts share, as it was at each stage of its training: its weights on
one sentence become a frame. A head lights up when it has a role by the rules of
shared/grammar/roles.py, in the colour that the role has everywhere. The loss stands above the maps.
What is measured is how often the best head of each relation looks at the right word at the end,
and what guesses reach: the best fixed offset, or the best untrained head.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean

import matplotlib.pyplot as plt
import numpy as np
from torch import Tensor

from phase2_multi_head.models import load_multi_head_model
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from shared.claims import Numbers
from shared.experiment import Experiment, Film, Results, Run
from shared.grammar import roles
from shared.grammar.scores import CORE_RELATIONS, DIRECTIONS
from shared.toy_model import weights_on_sentence
from shared.training.recipes import Trained
from shared.visualization_utils import (
    HIDDEN,
    QUIET,
    in_few_colors,
    picture_of,
    plot_attention,
    role_color,
)

HELD_FRAMES = 7  # how often the last frame is shown again
SECONDS_PER_FRAME = 0.5
VISIBLE = 0.05  # weights are shown in such steps: nobody sees less, and the file is smaller
NOTE = (
    "row: the word that looks, column: the word looked at, darker: more weight\n"
    "framed: the head has a role by rule, on held-out sentences"
)
# In points: a phone shows the film at less than half its size.
TITLE_SIZE, TEXT_SIZE, NOTE_SIZE = 19, 13.5, 12
TEXT_STYLE = {"fontsize": TEXT_SIZE}


@dataclass(frozen=True)
class Look:
    """What was seen after one step of training."""

    step: int
    weights: Tensor  # (L, H, T, T) on the sentence of the film
    names: list[list[str]]  # [layer][head] -> role by rule
    scores: dict[str, float]  # relation -> how often its best head is right

    @property
    def with_role(self) -> int:
        """How many heads have a role."""
        return sum(name != roles.NO_NAME for name in chain(*self.names))

    @property
    def num_heads(self) -> int:
        """How many heads there are in all layers."""
        return len(list(chain(*self.names)))


def look_at(trained: Trained, step: int, words: list[str]) -> Look:
    """Looks at the model as it was after so many steps of its training."""
    model = trained.at_stage(step)
    halves = roles.halves_of(model, MultiHeadAttention)
    by_head = halves.scoring.scores
    scores = {}
    for relation in CORE_RELATIONS:
        ways = [by_head.relation[relation, direction].max().item() for direction in DIRECTIONS]
        scores[relation] = max(ways)
    return Look(step, weights_on_sentence(model.model, words), roles.names_of(halves), scores)


def when_roles_came(looks: Sequence[Look]) -> str:
    """Returns in a sentence when a head first had a role, and how many have one at the end."""
    steps = [look.step for look in looks if look.with_role]
    if not steps:
        return "Here no head finds a role"
    last = looks[-1]
    return (
        f"A head first has a role at step {steps[0]}, and at the end of training {last.with_role} "
        f"of {last.num_heads} heads have one"
    )


def measure(run: Run) -> Numbers:
    """Returns the share of held-out pairs that the best head finds, beside what guesses reach."""
    trained = load_multi_head_model(run.options, run.seed)
    steps = list(trained.stages)
    if run.options.quick:
        steps = steps[:: len(steps) // 4 + 1]
    looks = [look_at(trained, step, run.options.words) for step in steps]
    run.shown.update(looks=looks, loss=trained.losses, sentence=when_roles_came(looks))
    _, baselines = roles.baselines(trained.recipe, MultiHeadAttention)
    numbers = {}
    for relation in CORE_RELATIONS:
        guesses = [baselines.bar((relation, direction)) for direction in DIRECTIONS]
        numbers[f"{relation}, guess"] = max(guesses)
        numbers[f"{relation}, best head"] = looks[-1].scores[relation]
    return numbers


# ---- the film


def draw_maps(axes: np.ndarray, look: Look, words: list[str]) -> None:
    """Draws a map for each head, axes (L, H).

    The words stand on the left of the grid only, and above it the numbers that they have there.
    """
    size = min(TEXT_SIZE, 90 / len(words))
    for (layer, head), ax in np.ndenumerate(axes):
        plot_attention(ax, look.weights[layer, head], words, annotate=False, labels=False)
        ax.spines[:].set_visible(True)
        ax.tick_params(labelsize=size)
        ax.tick_params(axis="y", pad=5)  # beside a frame
        numbers = range(len(words)) if layer == 0 else [""] * len(words)
        ax.set_xticks(ax.get_xticks(), numbers, rotation=0, ha="center")
        if head > 0:
            ax.set_yticks([])
        else:
            ax.set_ylabel(f"layer {layer}", color=QUIET, **TEXT_STYLE)


def light_up(axes: np.ndarray, look: Look) -> None:
    """Shows weights and roles of this look."""
    for (layer, head), ax in np.ndenumerate(axes):
        weights = (look.weights[layer, head] / VISIBLE).round() * VISIBLE
        ax.collections[0].set_array(weights.numpy())
        role = look.names[layer][head]
        color = role_color(role)
        if role == roles.NO_NAME:
            # Two lines in every frame: all frames are laid out as the first one.
            ax.set_title(f" \nhead {layer}.{head}", color=color, weight="normal", **TEXT_STYLE)
            ax.spines[:].set(color=HIDDEN, linewidth=1)
        else:
            name = role.replace(" → ", " →\n")
            ax.set_title(name, color=color, weight="bold", **TEXT_STYLE)
            ax.spines[:].set(color=color, linewidth=4)


def frame_title(look: Look, end: int, losses: list[float]) -> str:
    """Returns the headline of a frame: the step, the loss of the last ten steps, heads with a role.

    losses: of each step from the first on.
    """
    latest = losses[: look.step][-10:]
    loss = f"loss {fmean(latest):.1f}" if latest else "untrained"
    found = f"{look.with_role} of {look.num_heads} heads have a role"
    return f"Step {look.step} of {end} · {loss} · {found}"


def training_frames(results: Results) -> Film:
    """Returns every frame; the last one stays for a while."""
    looks, words = results.shown["looks"], results.options.words
    end = looks[-1].step
    num_layers, num_heads, *_ = looks[0].weights.shape
    fig = plt.figure(figsize=(8.3, 2.15 * num_layers + 1.1), layout="constrained")
    maps = fig.subplots(num_layers, num_heads, squeeze=False)
    draw_maps(maps, looks[0], words)
    fig.supxlabel(NOTE, fontsize=NOTE_SIZE, color=QUIET)
    images = []
    for look in looks:
        light_up(maps, look)
        fig.suptitle(frame_title(look, end, results.shown["loss"]), fontsize=TITLE_SIZE)
        images.append(picture_of(fig, density=10 / 11))
        fig.set_layout_engine("none")  # all frames are laid out as the first one
    plt.close(fig)
    images = in_few_colors(images)
    return images + images[-1:] * HELD_FRAMES, SECONDS_PER_FRAME


main = Experiment(
    measure,
    film=training_frames,
    title="Pale heads become dark, and find their roles, while a model is trained",
    answer="{shown[sentence]}",
    uses="--sentence --sentences --seed --seeds --quick "
    "--device --retrain --d-model --heads --layers",
)

if __name__ == "__main__":
    main.run()
