"""At which step of training does a head find its role?

A film of the model that all scripts share, as it was at each stage of its training: its weights on
one sentence become a frame. A head lights up when it has a role by the rules of
shared/grammar/roles.py, in the colour that the role has everywhere. Beneath grow the loss and, for
each relation of the grammar, how often its best head looks at the right word; the grey band is what
guesses reach: the best fixed offset, or the best untrained head. Beside them is the normalised
entropy of each head, a line in the colour of its role, and dotted their mean: 1 means even weights.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.ticker import PercentFormatter
from PIL import Image
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
    in_few_colors,
    model_note,
    plot_heads,
    role_color,
)

HELD_FRAMES, SECONDS = 14, 0.28
WIDTH, MAP = 9.0, 1.5  # inches: of a frame, of a map
VISIBLE = 0.03  # a cell is drawn anew when its weight has moved by more: nobody sees less, and the file is smaller
THICK = {"linewidth": 2.5, "solid_capstyle": "round"}
NOTE = """rows: queries, columns: keys, darker: more weight · framed: has a role by rule, on held-out sentences
normalised entropy: a line for each head, in the colour of its role, dotted their mean; 1 means even weights"""


@dataclass(frozen=True)
class Look:
    """What was seen after one step of training."""

    step: int
    weights: Tensor  # (L, H, T, T) on the sentence of the film
    names: list[list[str]]  # [layer][head] -> role by rule
    scores: dict[str, float]  # relation -> how often its best head is right
    entropy: Tensor  # (L, H), normalised


def look_at(trained: Trained, step: int, words: list[str]) -> Look:
    """The model after so many steps of its training."""
    model, halves = trained.model, roles.halves_of(trained, MultiHeadAttention)
    found = halves.scoring.scores
    scores = {
        r: max(found.relation[r, way].max().item() for way in DIRECTIONS) for r in CORE_RELATIONS
    }
    entropy = found.statistics["normalised entropy"]
    return Look(step, weights_of(model, words), roles.names_of(halves), scores, entropy)


def measure(run: Run) -> Numbers:
    """Share of held-out pairs that the best head finds; guess: the best fixed offset or untrained
    head.
    """
    trained = load_multi_head_model(run.options, run.seed)
    steps = list(trained.stages)[:: len(trained.stages) // 4 + 1 if run.options.quick else 1]
    looks = [look_at(trained.at_stage(step), step, run.options.words) for step in steps]
    run.shown.update(looks=looks, loss=trained.losses)
    _, base = roles.baselines(trained.recipe, MultiHeadAttention)
    before, after = looks[0].entropy.mean().item(), looks[-1].entropy.mean().item()
    found = {"entropy, before": before, "entropy, after training": after}
    for relation in CORE_RELATIONS:
        found[f"{relation}, guess"] = max(base.bar((relation, way)) for way in DIRECTIONS)
        found[f"{relation}, best head"] = looks[-1].scores[relation]
    return found


def calm(weights: list[Tensor]) -> list[Tensor]:
    """The weights of each look as they are shown: a cell stays as it was until it has changed
    visibly.

    The last look is shown as it is, since it stays.
    """
    shown = [weights[0]]
    for now in weights[1:]:
        moved = (now - shown[-1]).abs() > VISIBLE
        shown.append(torch.where(moved, now, shown[-1]))
    shown[-1] = weights[-1]
    return shown


class Stage:
    """The figure of the film. What stays is drawn once and kept as pixels; a frame draws only what
    moves on top of it.

    That is ten times as fast as drawing everything, and the GIF, which stores what changed, becomes
    small.
    """

    def __init__(
        self, looks: list[Look], loss: list[float], words: list[str], guesses: list[float]
    ) -> None:
        self.looks, self.last_step = looks, looks[-1].step
        self.cells = calm([look.weights for look in looks])
        self.loss_so_far = [
            fmean(loss[max(step - 10, 0) : step]) for step in range(1, len(loss) + 1)
        ]
        num_layers, num_heads = looks[0].weights.shape[:2]
        maps = num_layers * (MAP + 0.35) + 1.0
        self.fig = plt.figure(figsize=(WIDTH, maps + 2.7), layout="constrained")
        above, below = self.fig.subfigures(2, 1, height_ratios=(maps, 2.7))
        self.title = above.suptitle(" ", fontsize=14)
        self.heads = self.draw_maps(above.subplots(num_layers, num_heads, squeeze=False), words)
        left, middle, right = below.subplots(1, 3, width_ratios=(0.7, 1, 1))
        self.loss = self.draw_loss(left)
        self.scores, self.ends = self.draw_scores(middle, guesses)
        self.entropies = self.draw_entropies(right)
        (self.mean_entropy,) = right.plot([], [], color=INK, linewidth=2.5, linestyle=":")
        self.mean_written = right.text(
            0.98 * self.last_step, 0.06, "", weight="bold", fontsize=9, ha="right"
        )
        model_note(below, NOTE)
        self.fig.canvas.draw()  # lays everything out
        self.fig.set_layout_engine("none")  # and there it stays
        self.moving = [
            *self.parts_of_maps(),
            self.loss,
            *self.scores.values(),
            *self.ends.values(),
            self.title,
        ]
        self.moving += [*self.entropies.flat, self.mean_entropy, self.mean_written]
        for artist in self.moving:
            artist.set_animated(True)  # left out when the rest is drawn
        self.fig.canvas.draw()
        self.still = self.fig.canvas.copy_from_bbox(self.fig.bbox)

    def draw_maps(self, axes: np.ndarray, words: list[str]) -> np.ndarray:
        """A map for each head, (L, H); the words stand at the edges of the grid only."""
        for layer, (weights, row) in enumerate(zip(self.looks[0].weights, axes, strict=True)):
            plot_heads(weights, words, axes=row, titles=[" "] * len(row))
            for head, ax in enumerate(row):
                ax.spines[:].set_visible(True)
                ax.tick_params(labeltop=layer == 0, labelleft=head == 0)
                if len(words) > 10:  # no room for words side by side: the rows have them
                    ax.set_xticks(
                        ax.get_xticks(), range(len(words)), rotation=0, ha="center", fontsize=7.5
                    )
            row[0].set_ylabel(f"layer {layer}", color=QUIET, fontsize=11)
        return axes

    def parts_of_maps(self) -> Iterator[Artist]:
        """What changes in the map of a head: its cells, its frame and its title."""
        for ax in self.heads.flat:
            yield from (ax.collections[0], *ax.spines.values(), ax.title)

    def draw_loss(self, ax: Axes) -> Line2D:
        """The panel of the loss, and its line, which is empty yet."""
        ax.set(
            xlim=(0, self.last_step),
            ylim=(0, 1.1 * max(self.loss_so_far)),
            xticks=self.steps_written,
        )
        ax.set_title("loss, nats per hidden word", color=QUIET, loc="left")
        (line,) = ax.plot([], [], color=GREY, **THICK)
        return line

    def draw_scores(
        self, ax: Axes, guesses: list[float]
    ) -> tuple[dict[str, Line2D], dict[str, Text]]:
        """The panel of the relations: the line of each, and its name with the share of now, below
        the guesses.
        """
        ax.fill_between((0, self.last_step), min(guesses), max(guesses), color=HIDDEN, linewidth=0)
        ax.text(
            0.98 * self.last_step,
            min(guesses) + 0.03,
            "guesses",
            color=QUIET,
            fontsize=9,
            ha="right",
        )
        lines, names = {}, {}
        for row, relation in enumerate(CORE_RELATIONS):
            color = role_color(relation)
            (lines[relation],) = ax.plot([], [], color=color, **THICK)
            place, style = (
                (0.98 * self.last_step, 0.34 - 0.14 * row),
                {"ha": "right", "weight": "bold"},
            )
            names[relation] = ax.text(*place, "", color=color, fontsize=9, **style)
        ax.set(xlim=(0, self.last_step), ylim=(0, 1.08), xticks=self.steps_written)
        ax.set_xlabel("training step", color=QUIET)
        ax.set_title("best head is right", color=QUIET, loc="left")
        ax.yaxis.set_major_formatter(PercentFormatter(1))
        return lines, names

    def draw_entropies(self, ax: Axes) -> np.ndarray:
        """The panel of the entropies, and the line of each head, (L, H)."""
        ax.set(
            xlim=(0, self.last_step), ylim=(0, 1.08), xticks=self.steps_written, yticks=[0, 0.5, 1]
        )
        ax.set_title("normalised entropy", color=QUIET, loc="left")
        lines = np.empty(self.heads.shape, dtype=object)
        for place in np.ndindex(lines.shape):
            (lines[place],) = ax.plot([], [], linewidth=1.6)
        return lines

    @property
    def steps_written(self) -> list[int]:
        """The steps that stand below each panel."""
        return [0, self.last_step // 2, self.last_step]

    def show(self, at: int) -> None:
        """Set everything that moves to what look number `at` saw."""
        now, so_far = self.looks[at], self.looks[: at + 1]
        for (layer, head), ax in np.ndenumerate(self.heads):
            name = now.names[layer][head]
            lit = name != roles.NO_NAME
            ax.collections[0].set_array(self.cells[at][layer, head].numpy())
            ax.title.set(text=name if lit else f"head {layer}.{head}", color=role_color(name))
            ax.title.set_weight("bold" if lit else "normal")
            ax.spines[:].set(color=role_color(name) if lit else HIDDEN, linewidth=3 if lit else 1)
        self.loss.set_data(range(1, now.step + 1), self.loss_so_far[: now.step])
        steps = [look.step for look in so_far]
        for relation, line in self.scores.items():
            line.set_data(steps, [look.scores[relation] for look in so_far])
            self.ends[relation].set_text(f"{relation.replace('-', '–')} {now.scores[relation]:.0%}")
        for (layer, head), line in np.ndenumerate(self.entropies):
            line.set_data(steps, [look.entropy[layer, head] for look in so_far])
            line.set_color(role_color(now.names[layer][head]))
        self.mean_entropy.set_data(steps, [look.entropy.mean() for look in so_far])
        self.mean_written.set_text(f"mean {now.entropy.mean():.2f}")
        number = sum(name != roles.NO_NAME for layer in now.names for name in layer)
        self.title.set_text(
            f"Step {now.step} of {self.looks[-1].step} · heads that have a role: {number}"
        )

    def pixels(self, at: int) -> Image.Image:
        """The picture of look number `at`."""
        self.show(at)
        canvas = self.fig.canvas
        canvas.restore_region(self.still)
        for artist in self.moving:
            artist.draw(canvas.get_renderer())
        return Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")


def film(results: Results) -> Film:
    """Every frame; the last one stays for a while."""
    looks, guesses = (
        results.shown["looks"],
        [results.mean[f"{relation}, guess"] for relation in CORE_RELATIONS],
    )
    stage = Stage(looks, results.shown["loss"], results.options.words, guesses)
    images = in_few_colors([stage.pixels(at) for at in range(len(looks))])
    plt.close(stage.fig)
    return images + images[-1:] * HELD_FRAMES, SECONDS


main = Experiment(
    measure,
    film=film,
    title="The heads of a model in training, with its loss and the scores of three relations",
    answer="The best head finds {n[verb-subject, best head]:.0%} of verbs and subjects, a guess "
    "{n[verb-subject, guess]:.0%}; entropy falls from {n[entropy, before]:.2f} to {n[entropy, after training]:.2f}",
)

if __name__ == "__main__":
    main.run()
