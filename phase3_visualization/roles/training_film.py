"""At which step of training does a head find its role?

A film of the model that all scripts share. Its training is run once more, and every so often its weights on one
sentence become a frame. A head lights up when it has a role by the rules of shared/grammar/roles.py, in the colour that
the role has everywhere. Beneath grow the loss and three scores: for each relation of the grammar, how often its best
head looks at the right word, on 100 held-out sentences (shared/grammar/scores.py). The grey band is what guesses reach:
the best fixed offset, or the best head before training, which can look at the last word of every sentence and so find
many places.

The axes are linear: with steps that grow geometrically everything seems to happen at once. But most frames are from the
second quarter of training, where most happens; each says its step. The last one is the model of all other pictures.

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
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter
from torch import Tensor
from tqdm import tqdm

from phase2_multi_head.models import RECIPE
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from shared import cli, paths, training
from shared.attention_utils import normalized_entropy
from shared.evidence import findings
from shared.evidence.claims import EXPERIMENT, Above, Claim, measures
from shared.grammar import roles
from shared.grammar.scores import CORE_RELATIONS, HeadScore, best_heads, offset_baselines, score_heads
from shared.toy_model import ToyTransformer, weights_of
from shared.training import Recipe
from shared.visualization_utils import (
    GREY,
    HIDDEN,
    INK,
    PALETTE,
    QUIET,
    WEIGHT_MAP,
    model_note,
    plot_heads,
    role_color,
    save_animation,
)

LOOKS = 41  # that are measured, in the first half of training: after that the roles are there
FRAMES = (0, 40, 80, 100, *range(120, 350, 10), 370, 400, 450, 500, 600, 700, 800)  # steps of 800
QUICK_FRAMES = FRAMES[::11]  # with --quick: a few, the first and the last among them
HELD_FRAMES, SECONDS = 14, 0.28  # the last frame stays HELD_FRAMES * SECONDS on the screen
NUM_SENTENCES, QUICK_SENTENCES = 100, 20
CLEARLY = 0.15  # above the baseline, then a relation is said to have grown
WIDTH, MAP = 9.0, 1.5  # inches: of a frame, of a map


@dataclass
class Film:
    """What was seen of one training run; weights and best belong to `steps`, the loss to every step."""

    loss: list[float] = field(default_factory=list)  # nats per hidden word
    steps: list[int] = field(default_factory=list)
    weights: list[Tensor] = field(default_factory=list)  # (L, H, T, T) on the sentence of the film
    best: list[dict[str, HeadScore]] = field(default_factory=list)  # relation -> the head that follows it best
    names: dict[int, list[list[str]]] = field(default_factory=dict)  # at some steps: [layer][head] -> role by rule

    def scores(self, relation: str) -> list[float]:
        return [best[relation].accuracy for best in self.best]

    def at(self, steps: Collection[int]) -> "Film":
        """The film up to the last of these steps, with the looks at them only."""
        kept = [i for i, step in enumerate(self.steps) if step in steps]
        seen = ([part[i] for i in kept] for part in (self.steps, self.weights, self.best))
        return Film(self.loss[: max(steps)], *seen)


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


class Namer:
    """Names the heads of a model in training as roles.head_names does; the baselines are measured once."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.parts = training.corpus()[1][::2], training.corpus()[1][1::2]
        blank = training.untrained(recipe, MultiHeadAttention)
        self.base = [roles.baselines(blank, part, MultiHeadAttention, roles.UNTRAINED) for part in self.parts]

    def __call__(self, model: ToyTransformer) -> list[list[str]]:
        now = training.Trained(model, self.recipe, training.History())
        halves = [(roles.measure(now, part), base) for part, base in zip(self.parts, self.base, strict=True)]
        heads = range(self.recipe.num_heads)
        return [[roles.role_name(halves, layer, head) for head in heads] for layer in range(self.recipe.num_layers)]


def shoot(
    recipe: Recipe,
    words: list[str],
    at: Collection[int],
    num_sentences: int,
    device: str = "cpu",
    named: Collection[int] = (),
) -> Film:
    """Train a new model by the recipe until the last step in `at`, and look at it after s steps for each s in `at`.

    named: after which of these steps the heads get names, which takes longer.
    """
    film, namer = Film(), Namer(recipe) if named else None

    def look_at(model: ToyTransformer, done: int) -> None:
        if done in at:
            look(film, model, done, words, num_sentences)
        if namer and done in named:
            film.names[done] = namer(model)

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


def apart(heights: Mapping[str, float], gap: float, top: float) -> dict[str, float]:
    """Where to write the names of these heights: as near to them as `gap` between them allows, and none above top.

    Names that would touch move both ways, so that the middle of the group stays where it is.
    """
    names, groups = sorted(heights, key=lambda name: -heights[name]), []
    for place, name in enumerate(names):  # with place * gap added, names `gap` apart have the same height
        groups.append([heights[name] + place * gap])
        while len(groups) > 1 and fmean(groups[-1]) > fmean(groups[-2]):
            groups[-2:] = [groups[-2] + groups[-1]]
    levels = [min(fmean(group), top) for group in groups for _ in group]
    return {name: level - place * gap for place, (name, level) in enumerate(zip(names, levels, strict=True))}


class Stage:
    """The figure of the film. What stays is drawn once and kept as pixels; a frame draws only what moves on top of it.

    That is ten times as fast as drawing everything, and the GIF, which stores what changed, becomes small.
    """

    def __init__(self, film: Film, words: list[str], base: dict[str, float], note: str) -> None:
        self.film, num_layers = film, len(film.weights[0])
        self.loss_so_far = [fmean(film.loss[max(step - 10, 0) : step]) for step in range(1, len(film.loss) + 1)]
        maps = num_layers * (MAP + 0.35) + 1.0
        self.fig = plt.figure(figsize=(WIDTH, maps + 2.7), layout="constrained")
        above, below = self.fig.subfigures(2, 1, height_ratios=(maps, 2.7))
        self.title = above.suptitle(" ", fontsize=14)
        self.heads = self.draw_maps(above.subplots(num_layers, film.weights[0].size(1), squeeze=False), words)
        left, right = below.subplots(1, 2, width_ratios=(0.62, 1))
        self.loss = self.curve(left, "loss, nats per hidden word", 1.1 * max(self.loss_so_far), GREY)
        low, high, last = min(base.values()), max(base.values()), film.steps[-1]
        right.fill_between((0, last), low, high, color=HIDDEN, linewidth=0)
        right.text(0.98 * last, low + 0.03, "guesses", color=QUIET, fontsize=9, ha="right")
        self.scores = {r: self.curve(right, "best head is right", 1.08, role_color(r)) for r in CORE_RELATIONS}
        style = {"va": "center", "weight": "bold", "fontsize": 9}
        self.ends = {r: right.text(0, 0, "", color=role_color(r), **style) for r in CORE_RELATIONS}
        right.yaxis.set_major_formatter(PercentFormatter(1))
        right.set(xlim=(0, 1.58 * last), xticks=left.get_xticks())  # room for the names at the ends of the lines
        right.spines["bottom"].set_bounds(0, last)
        model_note(below, note)
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
        for layer, (weights, row) in enumerate(zip(self.film.weights[0], axes, strict=True)):
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
        ax.set(xlim=(0, self.film.steps[-1]), ylim=(0, top))
        ax.set_title(f"{label}, by training step", color=QUIET, loc="left")
        return ax.plot([], [], color=color, linewidth=2.5, solid_capstyle="round")[0]

    def show(self, at: int) -> None:
        """Set everything that moves to what look number `at` saw."""
        film, now = self.film, self.film.steps[at]
        for (layer, head), ax in np.ndenumerate(self.heads):
            name = film.names[now][layer][head]
            ax.collections[0].set_array(film.weights[at][layer, head].numpy())
            lit = name != roles.NO_NAME
            ax.title.set(text=name if lit else f"head {layer}.{head}", color=role_color(name))
            ax.title.set_weight("bold" if lit else "normal")
            ax.spines[:].set(color=role_color(name) if lit else HIDDEN, linewidth=3 if lit else 1)
        self.loss.set_data(range(1, now + 1), self.loss_so_far[:now])
        heights = apart({relation: film.best[at][relation].accuracy for relation in CORE_RELATIONS}, 0.11, 1.02)
        for relation, line in self.scores.items():
            line.set_data(film.steps[: at + 1], film.scores(relation)[: at + 1])
            self.ends[relation].set_position((now + 0.02 * film.steps[-1], heights[relation]))
            self.ends[relation].set_text(f"{relation.replace('-', '–')} {film.best[at][relation].accuracy:.0%}")
        self.title.set_text(f"Step {now} of {film.steps[-1]}: {having_roles(film.names[now])}")

    def pixels(self, at: int) -> np.ndarray:
        """The picture of look number `at`."""
        self.show(at)
        canvas = self.fig.canvas
        canvas.restore_region(self.still)
        for artist in self.moving:
            artist.draw(canvas.get_renderer())
        return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def having_roles(names: list[list[str]]) -> str:
    """How many heads have a role by rule: "3 of 8 heads have a role"."""
    heads = [name for layer in names for name in layer]
    number = sum(name != roles.NO_NAME for name in heads)
    return f"{number or 'none'} of {len(heads)} heads {'has' if number < 2 else 'have'} a role"


def palette() -> np.ndarray:
    """The colours of the film, (N, 3) bytes, few, which keeps it small: those of weights, and shades of all others."""
    shades = [sns.blend_palette(["white", color], 8) for color in (*PALETTE, INK, QUIET, GREY, HIDDEN)]
    colors = [*WEIGHT_MAP(np.linspace(0, 1, 128))[:, :3], *(shade for of_color in shades for shade in of_color)]
    return (255 * np.array(colors)).round().astype(np.uint8)


def in_few_colors(picture: np.ndarray, colors: np.ndarray) -> np.ndarray:
    """Each pixel of a picture (height, width, 3) in the nearest of these colours (N, 3)."""
    packed, places = np.unique(picture.astype(np.int64) @ [1 << 16, 1 << 8, 1], return_inverse=True)
    used = np.stack([packed >> 16, packed >> 8 & 255, packed & 255], axis=-1)  # (different colours, 3)
    nearest = ((used[:, None] - colors[None].astype(np.int64)) ** 2).sum(axis=-1).argmin(axis=1)
    return colors[nearest[places]].reshape(picture.shape)


def frames_of(stage: Stage, looks: Sequence[int]) -> list[np.ndarray]:
    """The frames of these looks, (height, width, 3) bytes each, all in the same colours."""
    colors = palette()
    return [in_few_colors(stage.pixels(at), colors) for at in tqdm(looks, desc="drawing", leave=False, disable=None)]


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


@cli.script
def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    sizes = {"d_model": options.d_model, "num_heads": options.heads, "num_layers": options.layers}
    recipes = [training.variant(RECIPE, seed, **sizes) for seed in cli.seeds(options)]
    if options.quick:
        recipes = [replace(recipe, steps=training.QUICK_STEPS) for recipe in recipes]
    total, num_sentences = recipes[0].steps, QUICK_SENTENCES if options.quick else NUM_SENTENCES
    at = look_steps(total // 2, 7 if options.quick else LOOKS)
    frames = QUICK_FRAMES if options.quick else FRAMES
    shown = sorted({round(step * total / frames[-1]) for step in frames}) if options.pictures else []
    film = shoot(recipes[0], options.words, {*at, *shown}, num_sentences, options.device, shown)
    films = [film.at(at), *(shoot(r, options.words, at, num_sentences, options.device) for r in recipes[1:])]
    offsets = offset_baselines(training.corpus()[1][:num_sentences])
    title = summary(films[0], baselines(film, offsets), total)
    if options.pictures:
        save_film(options, film, baselines(film, offsets))
    findings.record(options, *(rises(each, baselines(each, offsets), total) for each in films))
    return title


def save_film(options: argparse.Namespace, film: Film, base: dict[str, float]) -> None:
    """Draw every frame and save the animation; the last one stays for a while."""
    note = (
        f"rows: queries, columns: keys, darker: more weight · framed: has a role by rule, on held-out sentences\n"
        f"normalised entropy of these maps {entropy(film, 0):.2f} before, {entropy(film, -1):.2f} after"
    )
    stage = Stage(film, options.words, base, note)
    images = frames_of(stage, [film.steps.index(step) for step in film.names])
    plt.close(stage.fig)
    path = options.output_dir / paths.ANIMATIONS / "phase3" / "training_film.gif"
    caption = (
        f'The heads of a model in training, on "{" ".join(options.words)}", with its loss and the scores of three '
        f"relations; at its end {having_roles(film.names[film.steps[-1]])}."
    )
    save_animation(images + images[-1:] * HELD_FRAMES, path, caption=caption, seconds_per_frame=SECONDS)


if __name__ == "__main__":
    cli.run(main)
