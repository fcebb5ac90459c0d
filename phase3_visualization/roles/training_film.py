"""At which step of training does a head find its role?

A film of the model that all scripts share, as it was at each stage of its training: its weights on one sentence become
a frame. A head lights up when it has a role by the rules of shared/grammar/roles.py, in the colour that
the role has everywhere. Beneath grow the loss and, for each relation of the grammar, how often its best head looks at
the right word; the grey band is what guesses reach: the best fixed offset, or the best untrained head. The black line
is the mean normalised entropy of all heads: 1 means even weights.
"""

from dataclasses import dataclass
from statistics import fmean

import matplotlib.pyplot as plt
import numpy as np
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
from shared.visualization_utils import GREY, HIDDEN, INK, QUIET, in_few_colors, model_note, plot_heads, role_color

HELD_FRAMES, SECONDS = 14, 0.28
WIDTH, MAP = 9.0, 1.5  # inches: of a frame, of a map
NOTE = """rows: queries, columns: keys, darker: more weight · framed: has a role by rule, on held-out sentences
normalised entropy, mean of all heads: 1 means even weights"""


@dataclass(frozen=True)
class Look:
    """What was seen after one step of training."""

    step: int
    weights: Tensor  # (L, H, T, T) on the sentence of the film
    names: list[list[str]]  # [layer][head] -> role by rule
    scores: dict[str, float]  # relation -> how often its best head is right; and the entropy


def look_at(trained: Trained, step: int, words: list[str]) -> Look:
    """The model after so many steps of its training."""
    model, halves = trained.model, roles.halves_of(trained, MultiHeadAttention)
    found = halves.scoring.scores
    scores = {r: max(found.relation[r, way].max().item() for way in DIRECTIONS) for r in CORE_RELATIONS}
    scores["entropy"] = found.statistics["normalised entropy"].mean().item()
    return Look(step, weights_of(model, words), roles.names_of(halves), scores)


def measure(run: Run) -> Numbers:
    """Share of held-out pairs that the best head finds; guess: the best fixed offset or untrained head."""
    trained = load_multi_head_model(run.options, run.seed)
    steps = list(trained.stages)[:: len(trained.stages) // 4 + 1 if run.options.quick else 1]
    looks = [look_at(trained.at_stage(step), step, run.options.words) for step in steps]
    run.shown.update(looks=looks, loss=trained.losses)
    _, base = roles.baselines(trained.recipe, MultiHeadAttention)
    found = {"entropy, before": looks[0].scores["entropy"], "entropy, after training": looks[-1].scores["entropy"]}
    for relation in CORE_RELATIONS:
        found[f"{relation}, guess"] = max(base.bar((relation, way)) for way in DIRECTIONS)
        found[f"{relation}, best head"] = looks[-1].scores[relation]
    return found


class Stage:
    """The figure of the film. What stays is drawn once and kept as pixels; a frame draws only what moves on top of it.

    That is ten times as fast as drawing everything, and the GIF, which stores what changed, becomes small.
    """

    def __init__(self, looks: list[Look], loss: list[float], words: list[str], guesses: list[float]) -> None:
        self.looks, (num_layers, num_heads) = looks, looks[0].weights.shape[:2]
        self.loss_so_far = [fmean(loss[max(step - 10, 0) : step]) for step in range(1, len(loss) + 1)]
        maps = num_layers * (MAP + 0.35) + 1.0
        self.fig = plt.figure(figsize=(WIDTH, maps + 2.7), layout="constrained")
        above, below = self.fig.subfigures(2, 1, height_ratios=(maps, 2.7))
        self.title = above.suptitle(" ", fontsize=14)
        self.heads = self.draw_maps(above.subplots(num_layers, num_heads, squeeze=False), words)
        left, right = below.subplots(1, 2, width_ratios=(0.62, 1))
        last, style = looks[-1].step, {"linewidth": 2.5, "solid_capstyle": "round"}
        (self.loss,) = left.plot([], [], color=GREY, **style)
        left.set(xlim=(0, last), ylim=(0, 1.1 * max(self.loss_so_far)))
        left.set_title("loss, nats per hidden word, by training step", color=QUIET, loc="left")
        colors = {**{relation: role_color(relation) for relation in CORE_RELATIONS}, "entropy": INK}
        self.scores = {name: right.plot([], [], color=color, **style)[0] for name, color in colors.items()}
        self.ends = {
            name: right.text(1.04 * last, 0.95 - 0.16 * row, "", color=color, weight="bold", fontsize=9)
            for row, (name, color) in enumerate(colors.items())
        }
        right.fill_between((0, last), min(guesses), max(guesses), color=HIDDEN, linewidth=0)
        right.text(0.98 * last, min(guesses) + 0.03, "guesses", color=QUIET, fontsize=9, ha="right")
        right.set(xlim=(0, 1.58 * last), ylim=(0, 1.08), xticks=left.get_xticks())  # room for names beside the lines
        right.set_title("best head is right, by training step", color=QUIET, loc="left")
        right.yaxis.set_major_formatter(PercentFormatter(1))
        right.spines["bottom"].set_bounds(0, last)
        model_note(below, NOTE)
        self.fig.canvas.draw()  # lays everything out
        self.fig.set_layout_engine("none")  # and there it stays
        of_heads = [part for ax in self.heads.flat for part in (ax.collections[0], *ax.spines.values(), ax.title)]
        self.moving = [*of_heads, self.loss, *self.scores.values(), *self.ends.values(), self.title]
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
                    ax.set_xticks(ax.get_xticks(), range(len(words)), rotation=0, ha="center", fontsize=7.5)
            row[0].set_ylabel(f"layer {layer}", color=QUIET, fontsize=11)
        return axes

    def show(self, at: int) -> None:
        """Set everything that moves to what look number `at` saw."""
        now, so_far = self.looks[at], self.looks[: at + 1]
        for (layer, head), ax in np.ndenumerate(self.heads):
            name = now.names[layer][head]
            lit = name != roles.NO_NAME
            ax.collections[0].set_array(now.weights[layer, head].numpy())
            ax.title.set(text=name if lit else f"head {layer}.{head}", color=role_color(name))
            ax.title.set_weight("bold" if lit else "normal")
            ax.spines[:].set(color=role_color(name) if lit else HIDDEN, linewidth=3 if lit else 1)
        self.loss.set_data(range(1, now.step + 1), self.loss_so_far[: now.step])
        for name, line in self.scores.items():
            line.set_data([look.step for look in so_far], [look.scores[name] for look in so_far])
            number = f"{now.scores[name]:.2f}" if name == "entropy" else f"{now.scores[name]:.0%}"
            self.ends[name].set_text(f"{name.replace('-', '–')} {number}")
        number = sum(name != roles.NO_NAME for layer in now.names for name in layer)
        self.title.set_text(f"Step {now.step} of {self.looks[-1].step} · heads that have a role: {number}")

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
    looks, guesses = results.shown["looks"], [results.mean[f"{relation}, guess"] for relation in CORE_RELATIONS]
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
