"""At which step of training does a head find its role?

A film of the model that all scripts share, as it was at each stage of its training: its weights on
one sentence become a frame. Some heads change their role, or lose it for a while. So a head lights
up when it first has the role that it ends with, by the rules of shared/grammar/roles.py, in the
colour that the role has everywhere. What is measured is how often the best head of each relation
looks at the right word at the end, and what guesses reach: the best fixed offset, or the best
untrained head.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
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
    GREY,
    HIDDEN,
    QUIET,
    WIDE,
    in_few_colors,
    picture_of,
    plot_attention,
    readable,
    role_color,
)

FRAMES = 16
HELD_FRAMES = 7  # how often the last frame is shown again
SECONDS_PER_FRAME = 0.5
VISIBLE = 0.05  # weights are shown in such steps: nobody sees less, and the file is smaller
NOTE = (
    "row: the word that looks · darker: more weight\nframed: from when the head first has its role"
)


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
    run.shown.update(looks=looks, sentence=when_roles_came(looks))
    _, baselines = roles.baselines(trained.recipe, MultiHeadAttention)
    numbers = {}
    for relation in CORE_RELATIONS:
        guesses = [baselines.bar((relation, direction)) for direction in DIRECTIONS]
        numbers[f"{relation}, guess"] = max(guesses)
        numbers[f"{relation}, best head"] = looks[-1].scores[relation]
    return numbers


# ---- the film


def first_steps(looks: Sequence[Look]) -> dict[tuple[int, int], int]:
    """Returns (layer, head) -> the step at which a head first has the role that it ends with."""
    steps = {}
    for (layer, head), role in np.ndenumerate(looks[-1].names):
        if role != roles.NO_NAME:
            steps[layer, head] = min(look.step for look in looks if look.names[layer][head] == role)
    return steps


def draw_maps(axes: np.ndarray, look: Look, words: list[str]) -> None:
    """Draws a map for each head, axes (L, H). The words stand on the left of the grid only."""
    for (layer, head), ax in np.ndenumerate(axes):
        plot_attention(ax, look.weights[layer, head], words, annotate=False, labels=False)
        ax.set_xticks([])
        if head > 0:
            ax.set_yticks([])
        # Three lines in every frame: all frames are laid out as the first one.
        ax.set_title(f" \n \nhead {layer}.{head}", color=GREY, fontsize=10)
        ax.spines[:].set(visible=True, color=HIDDEN)
        ax.tick_params(axis="y", pad=5, labelsize=min(10, 60 / len(words)))  # beside a frame


def light_up(ax: Axes, head: str, role: str) -> None:
    """Names a head, such as "0.1", and frames its map."""
    color = role_color(role)
    style = {"color": readable(color), "weight": "bold", "fontsize": 10}
    name = role.replace(" → ", " →\n")
    ax.set_title(f"head {head}\n{name}", **style)
    ax.spines[:].set(color=color, linewidth=3)


def training_frames(results: Results) -> Film:
    """Returns every frame; the last one stays for a while."""
    looks, words = results.shown["looks"], results.options.words
    first, last = looks[0], looks[-1]
    num_layers, num_heads, *_ = first.weights.shape
    fig = plt.figure(figsize=(WIDE, 1.8 * num_layers + 1), layout="constrained")
    maps = fig.subplots(num_layers, num_heads, squeeze=False)
    draw_maps(maps, first, words)
    fig.supxlabel(NOTE, fontsize=10, color=QUIET)
    roles_come = first_steps(looks)
    images = []
    for number in np.linspace(0, len(looks) - 1, FRAMES).round().astype(int):
        look = looks[number]
        have_role = [head for head, step in roles_come.items() if step <= look.step]
        for (layer, head), ax in np.ndenumerate(maps):
            weights = (look.weights[layer, head] / VISIBLE).round() * VISIBLE
            ax.collections[0].set_array(weights.numpy())
            if (layer, head) in have_role:
                light_up(ax, f"{layer}.{head}", last.names[layer][head])
        count = f"{len(have_role)} of {maps.size} heads have a role"
        fig.suptitle(f"Step {look.step} of {last.step}: {count}", fontsize=13)
        images.append(picture_of(fig, density=1.5))
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
