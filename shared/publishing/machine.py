"""Where in the whole machine does a lesson stand? Each lesson begins with this picture.

It is the same small transformer four times, from words on the left to a guess on the right. What a
lesson is about is blue, the rest grey. Nothing is measured here; the arcs and bars are a sketch.
"""

from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

from shared import paths
from shared.visualization_utils import BLUE, INK, QUIET, save_figure, theme

MACHINE_SIZE = (8.3, 4.0)  # inches at 100 pixels: as wide as a column on GitHub
PALE, LINE = "#eef1f4", "#b9c1c9"
TYPE = 11

WORDS, VECTORS, HEADS, BLOCK, GUESS = "words", "vectors", "heads", "block", "guess"
TOP, BOTTOM = 34, 8  # heights of the first and the last word
LEFT = {WORDS: 3, VECTORS: 13, HEADS: 29, BLOCK: 57, GUESS: 77}


@dataclass(frozen=True)
class Lesson:
    """What the picture of a lesson says: its title, its sentence, and what is blue."""

    title: str
    words: tuple[str, ...]
    guesses: dict[str, float]
    looks: dict[int, float]  # from the word that is guessed to others, by position
    heads: int = 1
    blue: tuple[str, ...] = (HEADS,)
    is_causal: bool = False
    attention: str = "attention"


HIDDEN = ("the", "cat", "?", "on", "the", "mat")
HIDDEN_GUESSES = {"sat": 0.8, "slept": 0.12, "stood": 0.08}
HIDDEN_LOOKS = {1: 1.0, 3: 0.9, 5: 0.2}
MACHINES = {
    "lesson_1": Lesson(
        "Lesson 1: how one head of attention decides which words to ask",
        HIDDEN,
        HIDDEN_GUESSES,
        HIDDEN_LOOKS,
        attention="attention: one head",
    ),
    "lesson_2": Lesson(
        "Lesson 2: several heads at once, and the block around them",
        HIDDEN,
        HIDDEN_GUESSES,
        HIDDEN_LOOKS,
        heads=4,
        blue=(HEADS, BLOCK),
        attention="attention: four heads",
    ),
    "lesson_3": Lesson(
        "Lesson 3: what the heads of a trained model do, and whether it matters",
        HIDDEN,
        HIDDEN_GUESSES,
        HIDDEN_LOOKS,
        heads=4,
        blue=(HEADS, GUESS),
        attention="which head did what?",
    ),
    "lesson_4": Lesson(
        "Lesson 4: no word may see a later one, so the model can write",
        ("the", "cat", "sat", "on", "the"),
        {"mat": 0.7, "rug": 0.2, "chair": 0.1},
        {4: 0.2, 3: 0.9, 1: 0.8},
        heads=4,
        blue=(WORDS, HEADS, GUESS),
        is_causal=True,
        attention="only backwards",
    ),
}


def height_of(row: int, count: int) -> float:
    """Returns the height at which a word and all that becomes of it stand."""
    return TOP - row * (TOP - BOTTOM) / (count - 1)


def color_of(part: str, lesson: Lesson) -> str:
    """Returns blue for what the lesson is about."""
    return BLUE if part in lesson.blue else LINE


def draw_sentence(ax: Axes, lesson: Lesson) -> None:
    """Draws each word and, beside it, its vector as a row of cells."""
    shades = (0.15, 0.6, 0.35, 0.8, 0.25)
    for row, word in enumerate(lesson.words):
        y = height_of(row, len(lesson.words))
        ax.text(LEFT[WORDS] + 6, y, word, fontsize=TYPE, color=INK, ha="right", va="center")
        for cell, shade in enumerate(shades[row % 5 :] + shades[: row % 5]):
            x = LEFT[VECTORS] + 2 * cell
            color = color_of(VECTORS, lesson)
            ax.add_patch(Rectangle((x, y - 1.1), 2, 2.2, facecolor=color, alpha=shade))


def draw_attention(ax: Axes, lesson: Lesson) -> None:
    """Draws from which words each word takes: strong for the word that is guessed."""
    left, right = LEFT[HEADS], LEFT[HEADS] + 20
    color, count = color_of(HEADS, lesson), len(lesson.words)
    for head in reversed(range(lesson.heads)):
        corner = (left - 1 + 0.7 * head, BOTTOM - 4 + 0.7 * head)
        size = (right - left + 2, TOP - BOTTOM + 8)
        box = FancyBboxPatch(corner, *size, boxstyle="round,pad=0.2", facecolor="white")
        box.set(edgecolor=color, linewidth=1.4)
        ax.add_patch(box)
    asks = count - 1 if lesson.is_causal else lesson.words.index("?")
    for row in range(count):
        for other in range(count):
            if lesson.is_causal and other > row:
                continue  # a later word: no line leads to it
            strength = lesson.looks.get(other, 0) if row == asks else 0
            y, to = height_of(row, count), height_of(other, count)
            (line,) = ax.plot([right, left], [y, to], color=color)
            line.set(alpha=0.25 + 0.75 * strength, linewidth=0.6 + 3 * strength)


def draw_block(ax: Axes, lesson: Lesson) -> None:
    """Draws what each word does alone: it adds what it took, and goes through a small network."""
    count, color = len(lesson.words), color_of(BLOCK, lesson)
    for row in range(count):
        y = height_of(row, count)
        box = FancyBboxPatch((LEFT[BLOCK], y - 1), 9, 2, boxstyle="round,pad=0.2")
        box.set(facecolor=PALE, edgecolor=color, linewidth=1.4)
        ax.add_patch(box)
        ax.text(LEFT[BLOCK] - 3, y, "+", fontsize=TYPE + 1, color=INK, va="center", ha="center")
    ends = (LEFT[HEADS] - 1, 0.6), (LEFT[BLOCK] + 10, 0.6)
    ax.annotate("", *ends, arrowprops={"arrowstyle": "|-|", "color": LINE})
    middle = (LEFT[HEADS] + LEFT[BLOCK] + 9) / 2
    ax.text(middle, -0.6, "one layer; most models have several", color=QUIET, ha="center", va="top")


def draw_guess(ax: Axes, lesson: Lesson) -> None:
    """Draws how likely the model finds some words in the place that it guesses."""
    count, color = len(lesson.words), color_of(GUESS, lesson)
    asks = count - 1 if lesson.is_causal else lesson.words.index("?")
    y = height_of(asks, count)
    arrow = FancyArrowPatch((LEFT[BLOCK] + 10, y), (LEFT[GUESS] + 2, y), arrowstyle="-|>")
    arrow.set(color=INK, mutation_scale=10, linewidth=1.2)
    ax.add_patch(arrow)
    for line, (word, share) in enumerate(lesson.guesses.items()):
        height = y + 2.6 - 2.6 * line
        ax.text(LEFT[GUESS] + 8.5, height, word, fontsize=TYPE, ha="right", va="center", color=INK)
        ax.add_patch(Rectangle((LEFT[GUESS] + 9.5, height - 0.8), 11 * share, 1.6, facecolor=color))
    if lesson.is_causal:
        ax.plot([90, 90, 6, 6], [y - 4.5, -5.5, -5.5, y - 4], color=BLUE, linewidth=1.6)
        ax.plot([6], [y - 4], marker="^", color=BLUE)
        ax.text(48, -6.3, "what it writes, it reads next", color=BLUE, ha="center", va="top")


def draw_machine(lesson: Lesson) -> Figure:
    """Returns the whole machine with the part that a lesson is about in blue."""
    fig, ax = plt.subplots(figsize=MACHINE_SIZE, layout="constrained")
    ax.set(xlim=(0, 100), ylim=(-9 if lesson.is_causal else -4, 46))
    ax.set_axis_off()
    fig.suptitle(lesson.title, fontsize=TYPE + 2, weight="bold", x=0.02, ha="left")
    draw_sentence(ax, lesson)
    draw_attention(ax, lesson)
    draw_block(ax, lesson)
    draw_guess(ax, lesson)
    headings = {
        WORDS: (LEFT[WORDS] + 4, "words"),
        VECTORS: (LEFT[VECTORS] + 5, "a list of\nnumbers each"),
        HEADS: (LEFT[HEADS] + 10, lesson.attention),
        BLOCK: (LEFT[BLOCK] + 4, "add, then each\nword alone"),
        GUESS: (LEFT[GUESS] + 11, "the next word" if lesson.is_causal else "a guess at “?”"),
    }
    for part, (x, text) in headings.items():
        style = {"color": BLUE, "weight": "bold"} if part in lesson.blue else {"color": QUIET}
        ax.text(x, 41.5, text, fontsize=TYPE, ha="center", va="bottom", **style)
    return fig


def draw_machines(output_dir: Path) -> None:
    """Writes a picture for each lesson to visualizations/plots/machine/ below the output folder."""
    with theme():
        for name, lesson in MACHINES.items():
            path = output_dir / paths.PLOTS / "machine" / f"{name}.png"
            save_figure(draw_machine(lesson), path, caption=lesson.title)
