"""At which step of training does a head find its role?

A film of the model that all scripts share. Its training is run once more, and every so often its weights on one
sentence become a frame. Under the heads grow the loss and the role scores: for each relation of the grammar, how often
its best head looks at the right word, on 100 held-out sentences (shared/grammar/scores.py). A head is named in its
title as soon as it follows a relation clearly better than its baseline: the best fixed offset, or the best head before
training, which can look at the last word of every sentence and so find many places.

Frames come at even steps, and the axes of the curves are linear: with steps that grow geometrically everything seems to
happen at once. The film ends half-way: after that the roles are there, and get a little better.

    python phase3_visualization/roles/training_film.py
    python phase3_visualization/roles/training_film.py --sentence "these dogs slept quietly in the basket"

Writes training_film.gif to visualizations/animations/phase3/.
"""

import argparse
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from PIL import Image
from torch import Tensor
from tqdm import tqdm

from phase2_multi_head.heads.one_or_four_heads import CORE_RELATIONS
from phase2_multi_head.multi_head_attention import RECIPE, MultiHeadAttention
from shared import cli, paths, training
from shared.attention_utils import normalized_entropy
from shared.evidence import findings
from shared.evidence.claims import EXPERIMENT, Above, Claim, measures
from shared.grammar.scores import HeadScore, best_heads, offset_baselines, score_heads
from shared.toy_model import ToyTransformer, weights_of
from shared.training import Recipe
from shared.visualization_utils import INK, QUIET, model_note, plot_heads, save_animation, weight_colorbar

LOOKS, PER_FRAME = 41, 2
HELD_FRAMES, SECONDS = 6, 0.5  # the last frame stays HELD_FRAMES * SECONDS on the screen
NUM_SENTENCES, QUICK_SENTENCES = 100, 20
CLEARLY = 0.15  # above the baseline, then a head is said to have a role
STYLES = dict(zip(CORE_RELATIONS, ((INK, "-"), (QUIET, "-"), (INK, "--")), strict=True))  # no head colours: relations


@dataclass
class Film:
    """What was seen of one training run; weights and best belong to `steps`, the loss to every step."""

    loss: list[float] = field(default_factory=list)  # nats per hidden word
    steps: list[int] = field(default_factory=list)
    weights: list[Tensor] = field(default_factory=list)  # (L, H, T, T) on the sentence of the film
    best: list[dict[str, HeadScore]] = field(default_factory=list)  # relation -> the head that follows it best

    def scores(self, relation: str) -> list[float]:
        return [best[relation].accuracy for best in self.best]


def look_steps(steps: int, count: int) -> list[int]:
    """At most `count` different steps from 0 to `steps`, both included, evenly spaced."""
    return sorted({round(step) for step in np.linspace(0, steps, count)})


def look(film: Film, model: ToyTransformer, step: int, words: list[str], num_sentences: int) -> None:
    """Add to the film how the model attends now."""
    sentences = training.corpus()[1][:num_sentences]
    layers, _ = training.attention_on(model, sentences, "masked word")
    film.steps.append(step)
    film.weights.append(weights_of(model, words))
    film.best.append(best_heads(score_heads(layers, sentences)))


def shoot(recipe: Recipe, words: list[str], at: Collection[int], num_sentences: int, device: str = "cpu") -> Film:
    """Train a new model by the recipe until the last step in `at`, and look at it after s steps for each s in `at`."""
    film = Film()

    def look_at(model: ToyTransformer, done: int) -> None:
        if done in at:
            look(film, model, done, words, num_sentences)

    trained = training.train(recipe, MultiHeadAttention, device, until=max(at), look=look_at)
    film.loss = trained.history.loss
    return film


def baselines(film: Film, offsets: dict[str, float]) -> dict[str, float]:
    """Relation -> what a score is worth nothing below: the best fixed offset or the best head before training."""
    return {r: max(offsets[r], film.best[0][r].accuracy) for r in CORE_RELATIONS}


def step_at_share(steps: list[int], scores: list[float], base: float, share: float) -> int:
    """The first step at which a score has made this share of its way from `base` to its last value."""
    level = base + share * (scores[-1] - base)
    return next(step for step, score in zip(steps, scores, strict=True) if score >= level)


def roles(best: dict[str, HeadScore], base: dict[str, float]) -> dict[tuple[int, int], str]:
    """(layer, head) -> the relations that it follows better than all heads, and clearly better than the baseline."""
    found: dict[tuple[int, int], str] = {}
    for relation in CORE_RELATIONS:
        score = best[relation]
        if score.accuracy >= base[relation] + CLEARLY:
            place = (score.layer, score.head)
            found[place] = f"{found[place]}, {relation}" if place in found else relation
    return found


class Stage:
    """The figure of the film. What stays is drawn once and kept as pixels; a frame draws only what moves on top of it.

    That is ten times as fast as drawing everything, and the GIF, which stores what changed, becomes small.
    """

    def __init__(self, film: Film, words: list[str], base: dict[str, float], title: str, note: str) -> None:
        self.film, self.base = film, base
        num_layers, num_heads = film.weights[0].shape[:2]
        self.fig = plt.figure(figsize=(9, 3.1 + 1.95 * num_layers), layout="constrained")
        above, below = self.fig.subfigures(2, 1, height_ratios=(1.95 * num_layers + 0.5, 2.6))
        self.heads = above.subplots(num_layers, num_heads, squeeze=False)
        for layer, (weights, axes) in enumerate(zip(film.weights[0], self.heads, strict=True)):
            plot_heads(weights, words, axes=axes, titles=[f"layer {layer} head {head}\n " for head in range(num_heads)])
        weight_colorbar(above, self.heads, shrink=0.6, fraction=0.03)
        above.suptitle(title, fontsize=11)
        left, right = below.subplots(1, 2)
        self.loss = self.curve(left, "loss, nats per hidden word", (0, 1.1 * max(film.loss)), INK, "-")
        self.scores = {r: self.curve(right, "share right, best head", (0, 1.04), *STYLES[r]) for r in CORE_RELATIONS}
        self.names = []
        for row, (relation, line) in enumerate(self.scores.items()):
            y = 0.85 - 0.33 * row
            style = {"color": line.get_color(), "linestyle": line.get_linestyle(), "linewidth": 1.8}
            right.add_line(Line2D([1.03, 1.11], [y, y], transform=right.transAxes, clip_on=False, **style))
            text = right.text(1.13, y, self.describe(relation, 0), transform=right.transAxes, va="center", fontsize=8)
            self.names.append(text)
        self.clock = left.set_title("step 0", fontsize=10, loc="left")
        right.set_title("does any head look at the right word?", fontsize=10, loc="left", color=QUIET)
        model_note(below, note)
        self.fig.canvas.draw()  # lays everything out
        self.fig.set_layout_engine("none")  # and there it stays
        meshes = [ax.collections[0] for ax in self.heads.flat]
        titles = [ax.title for ax in self.heads.flat]
        lines = [self.loss, *self.scores.values()]
        self.moving = [*meshes, *titles, *lines, self.clock, *self.names]
        for artist in self.moving:
            artist.set_animated(True)  # left out when the rest is drawn
        self.fig.canvas.draw()
        self.still = self.fig.canvas.copy_from_bbox(self.fig.bbox)

    def curve(self, ax: Axes, label: str, limits: tuple[float, float], color: str, style: str) -> Line2D:
        """Prepare the axes of a curve over the steps; the curve itself is still empty."""
        ax.set(xlim=(0, self.film.steps[-1]), ylim=limits)
        ax.set_xlabel("training step", fontsize=9)
        ax.set_ylabel(label, fontsize=9)
        return ax.plot([], [], color=color, linestyle=style, linewidth=1.8)[0]

    def describe(self, relation: str, at: int) -> str:
        head = self.film.best[at][relation]
        return f"{relation} {head.accuracy:.2f}\n{head.name} (baseline {self.base[relation]:.2f})"

    def show(self, at: int) -> None:
        """Set everything that moves to what look number `at` saw."""
        film, now = self.film, self.film.steps[at]
        having = roles(film.best[at], self.base)
        for (layer, head), ax in np.ndenumerate(self.heads):
            ax.collections[0].set_array(film.weights[at][layer, head].numpy())
            ax.title.set_text(f"layer {layer} head {head}\n{having.get((layer, head), ' ')}")
        self.loss.set_data(range(now), film.loss[:now])
        for (relation, line), text in zip(self.scores.items(), self.names, strict=True):
            line.set_data(film.steps[: at + 1], film.scores(relation)[: at + 1])
            text.set_text(self.describe(relation, at))
        loss = f", loss {np.mean(film.loss[max(now - 10, 0) : now]):.2f}" if now else ""
        self.clock.set_text(f"step {now} of {film.steps[-1]}{loss}")

    def pixels(self, at: int) -> Image.Image:
        """The picture of look number `at`."""
        self.show(at)
        canvas = self.fig.canvas
        canvas.restore_region(self.still)
        for artist in self.moving:
            artist.draw(canvas.get_renderer())
        return Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3].copy())


def frames_of(stage: Stage, looks: Sequence[int]) -> list[np.ndarray]:
    """The frames of these looks, (height, width, 3) bytes each, all in the 64 colours that the last one needs."""
    pictures = [stage.pixels(at) for at in tqdm(looks, desc="drawing", leave=False)]
    palette = pictures[-1].quantize(64, method=Image.Quantize.MAXCOVERAGE)
    few = [picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in pictures]
    return [np.asarray(picture.convert("RGB")) for picture in few]


def entropy(film: Film, at: int) -> float:
    return normalized_entropy(film.weights[at]).nanmean().item()


def summary(film: Film, base: dict[str, float], total: int) -> str:
    """What the film shows, in numbers: when the roles that there are at the end were half grown."""
    grown = [r for r in CORE_RELATIONS if film.best[-1][r].accuracy >= base[r] + CLEARLY]
    if not grown:
        return f"After {film.steps[-1]} steps no head has a role yet"
    when = [f"{r} {step_at_share(film.steps, film.scores(r), base[r], 0.5)}" for r in grown]
    return f"Roles half grown at step: {', '.join(when)}, of {total}"


MIDDLE, EVEN = "steps for the middle half", 0.5  # of all steps, if a score grew evenly through all of training


def middle_half(steps: list[int], values: list[float], base: float, total: int) -> float:
    """The share of all steps from a quarter to three quarters of a score's way from base to its last value."""
    quarter, three_quarters = (step_at_share(steps, values, base, share) for share in (0.25, 0.75))
    return (three_quarters - quarter) / total


def mean_rise(numbers: Mapping[str, float]) -> float:
    """Mean over the relations; one that has not risen counts as if it grew evenly."""
    return fmean(numbers.get(f"{r}, {MIDDLE}", EVEN) for r in CORE_RELATIONS)


@measures(
    Claim(
        id="roles-sudden",
        text="A head does not find its role little by little: the role appears suddenly during training",
        kind=EXPERIMENT,
        source="after the induction heads of Olsson et al. 2022",
        rule="the three scores go from a quarter to three quarters of the way from baseline to last value within a "
        "tenth of the steps on average: five times as fast as if they grew evenly",
        holds=Above(lambda n: EVEN / 5 - mean_rise(n), 0.0),
        oracle={f"{r}, {MIDDLE}": 0.02 for r in CORE_RELATIONS},
        null={f"{r}, {MIDDLE}": EVEN for r in CORE_RELATIONS},
        unit="share of all training steps; the others as a share of held-out pairs, best head",
        control="the loss; baseline of a score: the best fixed offset or the best head before training",
        changed="asked for a tenth of the steps in each of three relations, which turned with the seed",
    )
)
def rises(film: Film, base: dict[str, float], total: int) -> dict[str, float]:
    """Of each relation the last score, the baseline, and which share of all steps the middle half of a rise takes."""
    found = {}
    for r in CORE_RELATIONS:
        found |= {f"{r}, at the end": film.best[-1][r].accuracy, f"{r}, baseline": base[r]}
        if found[f"{r}, at the end"] >= base[r] + CLEARLY:
            found[f"{r}, {MIDDLE}"] = middle_half(film.steps, film.scores(r), base[r], total)
    smooth = [-fmean(film.loss[max(step - 10, 0) : step + 10]) for step in range(len(film.loss))]
    return found | {f"loss, {MIDDLE}": middle_half(list(range(len(smooth))), smooth, smooth[0], total)}


def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    sizes = {"d_model": options.d_model, "num_heads": options.heads, "num_layers": options.layers}
    recipes = [training.variant(RECIPE, seed, **sizes) for seed in cli.seeds(options)]
    if options.quick:
        recipes = [replace(recipe, steps=training.QUICK_STEPS) for recipe in recipes]
    total, num_sentences = recipes[0].steps, QUICK_SENTENCES if options.quick else NUM_SENTENCES
    at = look_steps(total // 2, 7 if options.quick else LOOKS)
    films = [shoot(recipe, options.words, at, num_sentences, options.device) for recipe in recipes]
    offsets = offset_baselines(training.corpus()[1][:num_sentences])
    film, base = films[0], baselines(films[0], offsets)
    title = summary(film, base, total)
    if options.pictures:
        save_film(options, film, base, title, recipes[0], num_sentences)
    findings.record(options, *(rises(each, baselines(each, offsets), total) for each in films))
    return title


def save_film(
    options: argparse.Namespace,
    film: Film,
    base: dict[str, float],
    title: str,
    recipe: training.Recipe,
    num_sentences: int,
) -> None:
    """Draw every frame and save the animation; the last one stays for a while."""
    note = (
        f"the first {film.steps[-1]} of {recipe.steps} training steps, seed {recipe.seed}; {num_sentences} held-out "
        f"sentences · normalised entropy of these maps {entropy(film, 0):.2f} before, {entropy(film, -1):.2f} after"
    )
    stage = Stage(film, options.words, base, title, note)
    images = frames_of(stage, range(0, len(film.steps), PER_FRAME))
    plt.close(stage.fig)
    path = options.output_dir / paths.ANIMATIONS / "phase3" / "training_film.gif"
    caption = f'{title}. All heads on "{" ".join(options.words)}" during training, with loss and role scores.'
    save_animation(images + images[-1:] * HELD_FRAMES, path, caption=caption, seconds_per_frame=SECONDS)


if __name__ == "__main__":
    cli.run(main)
