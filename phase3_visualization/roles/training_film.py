"""At which step of training does a head find its role?

A film of the model that all scripts share. Its training is run once more, and every so often its weights on one
sentence become a frame. Under the heads grow the loss and the role scores: for each relation of the grammar, how often
its best head looks at the right word, on 100 held-out sentences (shared/grammar/scores.py). A head is named in its
title as soon as it follows a relation clearly better than its baseline: the best fixed offset, or the best head before
training, which can look at the last word of every sentence and so find many places.

Frames come at steps that grow geometrically (0, 1, 2, 3, 5, ...), because most happens early. The film ends half-way:
after that the roles are there, and get a little better.

    python phase3_visualization/roles/training_film.py
    python phase3_visualization/roles/training_film.py --sentence "these dogs slept quietly in the basket"

Writes training_film.gif to visualizations/animations/phase3/.
"""

from dataclasses import dataclass, field, replace

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
from shared.evidence.claims import EXPERIMENT, Claim, measures
from shared.grammar.scores import HeadScore, best_heads, offset_baselines, score_heads
from shared.toy_model import ToyTransformer, weights_of
from shared.training import Recipe
from shared.visualization_utils import INK, QUIET, model_note, plot_heads, save_animation, weight_colorbar

NUM_FRAMES, HELD_FRAMES, SECONDS = 40, 10, 0.3  # the last frame stays HELD_FRAMES * SECONDS on the screen
SCORED_EVERY, NUM_SENTENCES, QUICK_SENTENCES = 20, 100, 20
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


def frame_steps(steps: int, count: int) -> list[int]:
    """At most `count` different steps from 0 to `steps`, both included, each gap about the same factor of the last."""
    return sorted({round(step) for step in np.geomspace(1, steps + 1, count) - 1})


def look(film: Film, model: ToyTransformer, step: int, words: list[str], num_sentences: int) -> None:
    """Add to the film how the model attends now."""
    sentences = training.corpus()[1][:num_sentences]
    layers, _ = training.attention_on(model, sentences, "masked word")
    film.steps.append(step)
    film.weights.append(weights_of(model, words))
    film.best.append(best_heads(score_heads(layers, sentences)))


def shoot(recipe: Recipe, words: list[str], at: set[int], num_sentences: int, device: str = "cpu") -> Film:
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
        ax.set_xscale("symlog", linthresh=1)
        ax.set(xlim=(0, self.film.steps[-1]), ylim=limits)
        ax.set_xlabel("training step (log scale)", fontsize=9)
        ax.set_ylabel(label, fontsize=9)
        marks = [0, *(10**k for k in range(5) if 10**k <= self.film.steps[-1])]
        ax.set_xticks(marks, [str(mark) for mark in marks])
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


def frames_of(stage: Stage, looks: list[int]) -> list[np.ndarray]:
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


def risen_suddenly(numbers: dict[str, float]) -> bool:
    return all(
        numbers[f"{r}, at the end"] >= numbers[f"{r}, baseline"] + CLEARLY
        and numbers.get(f"{r}, steps for the middle half", 1) <= 0.1
        for r in CORE_RELATIONS
    )


def alike(end: float, middle: float) -> dict[str, float]:
    """The numbers of three relations that go alike, from a baseline of 0.5: for the worlds that the rule must tell."""
    parts = {"at the end": end, "baseline": 0.5, "steps for the middle half": middle}
    return {f"{r}, {name}": value for r in CORE_RELATIONS for name, value in parts.items()}


@measures(
    Claim(
        id="roles-sudden",
        text="A head does not find its role little by little: the role appears suddenly during training",
        kind=EXPERIMENT,
        source="after the induction heads of Olsson et al. 2022",
        rule="each of the three scores ends 0.15 above its baseline, and goes from a quarter to three quarters of the "
        "way from there to its last value within a tenth of the steps",
        holds=risen_suddenly,
        oracle=alike(end=1.0, middle=0.01),
        null=alike(end=1.0, middle=0.5),
        unit="steps as a share of all steps; the others as a share of held-out pairs, best head",
        control="baseline: the best fixed offset or the best head before training, whichever is better",
    )
)
def rises(film: Film, base: dict[str, float], total: int) -> dict[str, float]:
    """Of each relation the last score, the baseline, and which share of all steps the middle half of a rise takes."""
    found = {}
    for r in CORE_RELATIONS:
        found |= {f"{r}, at the end": film.best[-1][r].accuracy, f"{r}, baseline": base[r]}
        if found[f"{r}, at the end"] >= base[r] + CLEARLY:
            quarter, three_quarters = (step_at_share(film.steps, film.scores(r), base[r], at) for at in (0.25, 0.75))
            found[f"{r}, steps for the middle half"] = (three_quarters - quarter) / total
    return found


def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    sizes = {"d_model": options.d_model, "num_heads": options.heads, "num_layers": options.layers}
    recipe = training.variant(RECIPE, options.seed, **sizes)
    if options.quick:
        recipe = replace(recipe, steps=training.QUICK_STEPS)
    num_sentences = QUICK_SENTENCES if options.quick else NUM_SENTENCES
    frames = frame_steps(recipe.steps // 2, 6 if options.quick else NUM_FRAMES)
    at = {*frames, *range(0, frames[-1], SCORED_EVERY)}
    film = shoot(recipe, options.words, at, num_sentences, options.device)
    base = baselines(film, offset_baselines(training.corpus()[1][:num_sentences]))
    title = summary(film, base, recipe.steps)
    note = (
        f"the first {film.steps[-1]} of {recipe.steps} training steps, seed {recipe.seed}; {num_sentences} held-out "
        f"sentences · normalised entropy of these maps {entropy(film, 0):.2f} before, {entropy(film, -1):.2f} after"
    )
    stage = Stage(film, options.words, base, title, note)
    images = frames_of(stage, [film.steps.index(step) for step in frames])
    plt.close(stage.fig)
    path = options.output_dir / paths.ANIMATIONS / "phase3" / "training_film.gif"
    caption = f'{title}. All heads on "{" ".join(options.words)}" during training, with loss and role scores.'
    save_animation(images + images[-1:] * HELD_FRAMES, path, caption=caption, seconds_per_frame=SECONDS)
    findings.record(options, rises(film, base, recipe.steps))
    return title


if __name__ == "__main__":
    cli.run(main)
