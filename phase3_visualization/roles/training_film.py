"""At which step of training does a head find its role?

A film of the model that all scripts share. Its training is run once more, and every so often its weights on one
sentence become a frame. A head lights up when it has a role by the rules of shared/grammar/roles.py, in the colour that
the role has everywhere. Beneath grow the loss and, for each relation of the grammar, how often its best head looks at
the right word; the grey band is what guesses reach: the best fixed offset, or the best head before training. The black
line is the mean normalised entropy of all heads: 1 means even weights.
"""

from dataclasses import dataclass, field, replace
from statistics import fmean

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter
from PIL import Image
from torch import Tensor
from tqdm import tqdm

from phase2_multi_head.models import RECIPE
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from shared import training
from shared.evidence.claims import Numbers
from shared.experiment import Experiment, Film, Results, Run
from shared.grammar import roles
from shared.grammar.scores import CORE_RELATIONS, best_heads, offset_baselines, score_heads
from shared.toy_language import Sentence
from shared.toy_model import ToyTransformer, weights_of
from shared.training import Recipe
from shared.visualization_utils import GREY, HIDDEN, INK, QUIET, in_few_colors, model_note, plot_heads, role_color

# Steps of 800 with a frame: most are from the second quarter of training, where most happens. The last is held.
FRAMES = (0, 40, 80, 100, *range(120, 350, 10), 370, 400, 450, 500, 600, 700, 800)
QUICK_FRAMES = FRAMES[::11]
HELD_FRAMES, SECONDS = 14, 0.28
NUM_SENTENCES, QUICK_SENTENCES = 100, 20
WIDTH, MAP = 9.0, 1.5  # inches: of a frame, of a map


@dataclass
class Looks:
    """What was seen of one training run; all but the loss belong to `steps`."""

    loss: list[float] = field(default_factory=list)  # nats per hidden word, of every step
    steps: list[int] = field(default_factory=list)
    weights: list[Tensor] = field(default_factory=list)  # (L, H, T, T) on the sentence of the film
    names: list[list[list[str]]] = field(default_factory=list)  # [layer][head] -> role by rule
    entropy: list[float] = field(default_factory=list)  # normalised, mean of all heads on held-out sentences
    best: dict[str, list[float]] = field(default_factory=dict)  # relation -> how often its best head is right


def watch_training(recipe: Recipe, words: list[str], at: set[int], sentences: list[Sentence], device: str) -> Looks:
    """Train a new model by the recipe, and look at it after each of these steps."""
    seen = Looks(best={relation: [] for relation in CORE_RELATIONS})

    def look(model: ToyTransformer, done: int) -> None:
        if done in at:
            layers, _ = training.attention_on(model, sentences, "masked word")
            best = best_heads(score_heads(layers, sentences))
            seen.steps.append(done)
            seen.weights.append(weights_of(model, words))
            now = training.Trained(model, recipe, training.History())
            seen.names.append(roles.head_names(now, MultiHeadAttention))
            seen.entropy.append(float(np.mean(training.head_entropy(model, sentences, "masked word"))))
            for relation, scores in seen.best.items():
                scores.append(best[relation].accuracy)

    seen.loss = training.train(recipe, MultiHeadAttention, device, look=look).history.loss
    return seen


def step_half_grown(steps: list[int], scores: list[float], base: float) -> int:
    """The first step at which a score has made half of its way from `base` to its last value."""
    level = (base + scores[-1]) / 2
    return next((step for step, score in zip(steps, scores, strict=True) if score >= level), steps[-1])


def measure(run: Run) -> Numbers:
    """Share of held-out pairs that the best head finds; guess: the best fixed offset or head before training."""
    options, quick = run.options, run.options.quick
    sizes = {"d_model": options.d_model, "num_heads": options.heads, "num_layers": options.layers}
    recipe = training.variant(RECIPE, run.seed, **sizes)
    recipe = replace(recipe, steps=run.steps(recipe.steps))
    at = {round(step * recipe.steps / FRAMES[-1]) for step in (QUICK_FRAMES if quick else FRAMES)}
    sentences = training.corpus()[1][: QUICK_SENTENCES if quick else NUM_SENTENCES]
    seen, offsets = watch_training(recipe, options.words, at, sentences, options.device), offset_baselines(sentences)
    run.shown["seen"], found = seen, {}
    for relation, scores in seen.best.items():
        guess = max(offsets[relation], scores[0])
        found |= {f"{relation}, guess": guess, f"{relation}, best head": scores[-1]}
        found[f"{relation}, half grown at step"] = step_half_grown(seen.steps, scores, guess)
    return found | {"entropy, before training": seen.entropy[0], "entropy, after": seen.entropy[-1]}


class Stage:
    """The figure of the film. What stays is drawn once and kept as pixels; a frame draws only what moves on top of it.

    That is ten times as fast as drawing everything, and the GIF, which stores what changed, becomes small.
    """

    def __init__(self, seen: Looks, words: list[str], guesses: list[float]) -> None:
        self.seen, (num_layers, num_heads) = seen, seen.weights[0].shape[:2]
        self.loss_so_far = [fmean(seen.loss[max(step - 10, 0) : step]) for step in range(1, len(seen.loss) + 1)]
        maps = num_layers * (MAP + 0.35) + 1.0
        self.fig = plt.figure(figsize=(WIDTH, maps + 2.7), layout="constrained")
        above, below = self.fig.subfigures(2, 1, height_ratios=(maps, 2.7))
        self.title = above.suptitle(" ", fontsize=14)
        self.heads = self.draw_maps(above.subplots(num_layers, num_heads, squeeze=False), words)
        left, right = below.subplots(1, 2, width_ratios=(0.62, 1))
        self.loss = self.curve(left, "loss, nats per hidden word", 1.1 * max(self.loss_so_far), GREY)
        self.scores = {name: self.curve(right, "best head is right", 1.08, role_color(name)) for name in CORE_RELATIONS}
        self.scores["entropy"] = self.curve(right, "best head is right", 1.08, INK)
        last = seen.steps[-1]
        right.fill_between((0, last), min(guesses), max(guesses), color=HIDDEN, linewidth=0)
        right.text(0.98 * last, min(guesses) + 0.03, "guesses", color=QUIET, fontsize=9, ha="right")
        right.yaxis.set_major_formatter(PercentFormatter(1))
        right.set(xlim=(0, 1.58 * last), xticks=left.get_xticks())  # room for names and numbers beside the lines
        right.spines["bottom"].set_bounds(0, last)
        self.ends = {
            name: right.text(1.04 * last, 0.95 - 0.16 * row, "", color=line.get_color(), weight="bold", fontsize=9)
            for row, (name, line) in enumerate(self.scores.items())
        }
        model_note(below, "rows: queries, columns: keys, darker: more weight · framed: has a role by rule, on held-out "
                   "sentences\nnormalised entropy, mean of all heads: 1 means even weights")  # fmt: skip
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
        for layer, (weights, row) in enumerate(zip(self.seen.weights[0], axes, strict=True)):
            plot_heads(weights, words, axes=row, titles=[" "] * len(row))
            for head, ax in enumerate(row):
                ax.spines[:].set_visible(True)
                ax.tick_params(labeltop=layer == 0, labelleft=head == 0)
                if len(words) > 10:  # no room for words side by side: the rows have them
                    ax.set_xticks(ax.get_xticks(), range(len(words)), rotation=0, ha="center", fontsize=7.5)
            row[0].set_ylabel(f"layer {layer}", color=QUIET, fontsize=11)
        return axes

    def curve(self, ax: Axes, label: str, top: float, color: str) -> Line2D:
        """Prepare the axes of a curve over the steps; the curve itself is still empty."""
        ax.set(xlim=(0, self.seen.steps[-1]), ylim=(0, top))
        ax.set_title(f"{label}, by training step", color=QUIET, loc="left")
        return ax.plot([], [], color=color, linewidth=2.5, solid_capstyle="round")[0]

    def show(self, at: int) -> None:
        """Set everything that moves to what look number `at` saw."""
        seen, now = self.seen, self.seen.steps[at]
        for (layer, head), ax in np.ndenumerate(self.heads):
            name = seen.names[at][layer][head]
            lit = name != roles.NO_NAME
            ax.collections[0].set_array(seen.weights[at][layer, head].numpy())
            ax.title.set(text=name if lit else f"head {layer}.{head}", color=role_color(name))
            ax.title.set_weight("bold" if lit else "normal")
            ax.spines[:].set(color=role_color(name) if lit else HIDDEN, linewidth=3 if lit else 1)
        self.loss.set_data(range(1, now + 1), self.loss_so_far[:now])
        for name, line in self.scores.items():
            values = seen.entropy if name == "entropy" else seen.best[name]
            line.set_data(seen.steps[: at + 1], values[: at + 1])
            number = f"{values[at]:.2f}" if name == "entropy" else f"{values[at]:.0%}"
            self.ends[name].set_text(f"{name.replace('-', '–')} {number}")
        self.title.set_text(f"Step {now} of {seen.steps[-1]}: {having_roles(seen.names[at])}")

    def pixels(self, at: int) -> Image.Image:
        """The picture of look number `at`."""
        self.show(at)
        canvas = self.fig.canvas
        canvas.restore_region(self.still)
        for artist in self.moving:
            artist.draw(canvas.get_renderer())
        return Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")


def having_roles(names: list[list[str]]) -> str:
    """How many heads have a role by rule: "3 of 8 heads have a role"."""
    heads = [name for layer in names for name in layer]
    number = sum(name != roles.NO_NAME for name in heads)
    return f"{number or 'none'} of {len(heads)} heads {'has' if number < 2 else 'have'} a role"


def film(results: Results) -> Film:
    """Every frame; the last one stays for a while."""
    seen = results.shown["seen"]
    stage = Stage(seen, results.options.words, [results.mean[f"{relation}, guess"] for relation in CORE_RELATIONS])
    looks = tqdm(range(len(seen.steps)), desc="drawing", leave=False, disable=None)
    images = in_few_colors([stage.pixels(at) for at in looks])
    plt.close(stage.fig)
    return images + images[-1:] * HELD_FRAMES, SECONDS


main = Experiment(
    measure,
    film=film,
    title="The heads of a model in training, with its loss and the scores of three relations",
    answer="Roles half grown at step: determiner-noun {n[determiner-noun, half grown at step]:.0f}, verb-subject "
    "{n[verb-subject, half grown at step]:.0f}, verb-place {n[verb-place, half grown at step]:.0f}; entropy "
    "{n[entropy, before training]:.2f} to {n[entropy, after]:.2f}",
)

if __name__ == "__main__":
    main.run()
