"""What do four phases show on one poster, A2, for the wall?

Everything is computed in this run from trained models. The sheet is one grid in millimetres: two
columns for what a row is called, six for words. Writes summary_all_phases.png to
visualizations/plots/; for a printer, as SVG:

    python phase4_causal/summary.py --format svg --sentence "those dogs slept in a soft bed"
"""

import textwrap
from collections.abc import Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.patches import FancyArrowPatch, PathPatch, Rectangle
from matplotlib.path import Path
from matplotlib.text import Text
from torch import Tensor

from phase1_single_head.models import asks, choose_word, flow_of, load_single_head_model
from phase2_multi_head.models import AGAIN, load_multi_head_model, load_one_layer_model
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase4_causal.causal_attention import generate
from phase4_causal.models import largest_leak, load_causal_model
from shared import cli
from shared.grammar.roles import NO_NAME, golds, head_names
from shared.grammar.scores import CORE_RELATIONS, chosen_and_scored, relation_name, with_relations
from shared.toy_language import MAX_LENGTH, START, encode
from shared.toy_model import weights_of
from shared.training import Trained
from shared.visualization_utils import (
    GREY,
    HIDDEN,
    INK,
    ORANGE,
    QUIET,
    WEIGHT_MAP,
    hatch_cell,
    role_color,
    save_plot,
)

# The sheet in millimetres from its upper left corner, and its type in points.
WIDTH, HEIGHT, LEFT, RIGHT, POINT = 420, 594, 20, 400, 25.4 / 72
WORDS, STATEMENTS = LEFT + 95, LEFT + 190  # where these begin
STRIP, STRIP_HEIGHT = 38, 6  # a vector
HEADING_SIZE, WORD_SIZE, TERM_SIZE, BODY_SIZE, FOOT_SIZE = 42, 32, 22, 18, 14

TITLE = "Attention in one sentence"
STRIP_MAP = LinearSegmentedColormap.from_list("strip", ["white", INK])
FAINT = "#c9cfd5"  # arrows that are not right, or of a head without a name


def fitted(texts: Sequence[str], width: float, size: float) -> float:
    """The type size, `size` at most, in which none of the texts is wider than `width` millimetres,
    or hardly.
    """
    return min(size, width / (0.62 * POINT * max(map(len, texts))))


def middles(words: list[str]) -> list[float]:
    """The middle of the column of each word."""
    return [WORDS + (i + 0.5) * (RIGHT - WORDS) / len(words) for i in range(len(words))]


def put(ax: Axes, x: float, y: float, words: str, size: float = BODY_SIZE, **style) -> Text:
    """Write on a baseline, unless style says otherwise."""
    return ax.text(x, y, words, fontsize=size, **{"va": "baseline", **style})


def term(ax: Axes, y: float, name: str, meaning: str) -> None:
    """In the left columns: what is seen at the height y, and what it means."""
    put(ax, LEFT, y - 1.5, name, TERM_SIZE, weight="bold")
    put(ax, LEFT, y + 6.8, meaning, color=QUIET)


def heading(ax: Axes, top: float, name: str, statement: str) -> None:
    """The rule of a band, its heading and what it says."""
    ax.plot((LEFT, RIGHT), (top, top), color=INK, linewidth=1.5)
    put(ax, LEFT, top + 17, name, HEADING_SIZE, weight="bold")
    lines = textwrap.fill(statement, max(46, len(statement) // 2 + 8))  # two, whatever is said
    size = fitted(lines.split("\n"), RIGHT - STATEMENTS, BODY_SIZE + 1)
    put(ax, STATEMENTS, top + 12.5, lines, size, va="center", linespacing=1.35)


def strip(ax: Axes, x: float, y: float, values: Tensor, width: float = STRIP) -> None:
    """A vector as a row of cells around x, below y: light for its low numbers, dark for its high
    ones.
    """
    edges, limit = (
        torch.linspace(x - width / 2, x + width / 2, len(values) + 1),
        values.abs().max().item(),
    )
    style = {"cmap": STRIP_MAP, "vmin": -limit, "vmax": limit, "edgecolors": "face"}
    ax.pcolormesh(edges.numpy(), [y, y + STRIP_HEIGHT], values[None].numpy(), **style)
    ax.add_patch(
        Rectangle(
            (x - width / 2, y), width, STRIP_HEIGHT, fill=False, edgecolor=QUIET, linewidth=0.8
        )
    )


def ribbon(
    ax: Axes, top: tuple[float, float], bottom: tuple[float, float], width: float, color
) -> None:
    """A ribbon `width` millimetres wide that leaves one place downwards and reaches another from
    above.
    """
    (x, y), (end, z) = top, bottom
    middle = (y + z) / 2
    path = Path([(x, y), (x, middle), (end, middle), (end, z)], [Path.MOVETO, *[Path.CURVE4] * 3])
    ax.add_patch(
        PathPatch(path, fill=False, edgecolor=color, linewidth=width / POINT, capstyle="butt")
    )


def arrow(ax: Axes, start: float, end: float, y: float, weight: float, color: str, **style) -> None:
    """An arc over the words, as thick as the weight; one to the left stays lower."""
    way, rise = (1, 5) if end > start else (-1, 3.5)
    bend = f"arc3,rad={-way * (2 * rise / abs(end - start) + 0.06):.3f}"
    tip = {"arrowstyle": "-|>", "mutation_scale": 14 + 12 * weight, "shrinkA": 0, "shrinkB": 0}
    ends = ((start + 2 * way, y), (end - 2 * way, y))
    ax.add_patch(
        FancyArrowPatch(
            *ends, connectionstyle=bend, color=color, linewidth=2 + 8 * weight, **tip, **style
        )
    )


def row_of_words(ax: Axes, y: float, words: list[str], size: float) -> None:
    """The sentence on a baseline, a word in each column; a hidden one white on black."""
    size = fitted(words, 0.9 * (RIGHT - WORDS) / len(words), size)
    for x, word in zip(middles(words), words, strict=True):
        if word == "?":
            side = 1.35 * size * POINT
            ax.add_patch(Rectangle((x - side / 2, y - 0.77 * side), side, side, facecolor=INK))
        put(ax, x, y, word, size, ha="center", color="white" if word == "?" else INK)


def draw_one_head(ax: Axes, top: float, trained: Trained, words: list[str]) -> str:
    """The query of a hidden word, all keys, scores, weights, and the values they mix -> what is
    seen, in words.

    A ribbon is as wide as its weight, and all of them together as wide as the output.
    """
    flow = flow_of(trained, words)
    (guess, chance), most = flow.guesses[0], asks(words, flow.weights, flow.i)
    statement = f"One word is hidden. It asks all words, {most} the most, and mixes their answers."
    heading(ax, top, "1  One head", statement)
    row_of_words(ax, top + 36, flow.seen, WORD_SIZE)
    query, keys, scores, weights, values, output = (
        top + down for down in (43, 65, 87, 119, 125, 155)
    )
    width = min(STRIP, 0.85 * (RIGHT - WORDS) / len(words))
    here = min(
        max(middles(words)[flow.i], WORDS + STRIP / 2), RIGHT - STRIP / 2
    )  # a full strip fits in
    colors = [WEIGHT_MAP(weight) for weight in flow.weights.tolist()]
    ends = here + (flow.weights.cumsum(dim=0) - flow.weights / 2 - 0.5) * STRIP  # side by side
    for j, place in enumerate(middles(words)):
        start = here + ((j + 0.5) / len(words) - 0.5) * STRIP
        ribbon(ax, (start, query + STRIP_HEIGHT), (place, keys), 0.7, GREY)
        strip(ax, place, keys, flow.keys[j], width)
        ribbon(
            ax,
            (place, values + STRIP_HEIGHT),
            (ends[j], output),
            flow.weights[j] * STRIP,
            colors[j],
        )
        strip(ax, place, values, flow.values[j], width)
    for zero, numbers, high, color in (
        (scores, flow.scores, 10, GREY),
        (weights, flow.weights, 17, colors),
    ):
        ax.bar(
            middles(words),
            (-high * numbers / numbers.abs().max()).numpy(),
            width / 2,
            bottom=zero,
            color=color,
        )
        ax.plot((WORDS, RIGHT), (zero, zero), color=QUIET, linewidth=0.8)
    strip(ax, here, query, flow.query)
    strip(ax, here, output, flow.output)
    put(ax, here, output + 22, guess, 1.4 * WORD_SIZE, ha="center", weight="bold")

    term(ax, query + 3, "Query", 'what "?" looks for')
    term(ax, keys + 3, "Keys", "what each word offers")
    term(ax, scores, "Scores", "query · key: a match?")
    term(ax, weights - 8, "Weights", "softmax: shares of a whole")
    term(ax, values + 6, "Values", "what each word tells")
    term(ax, output - 2, "Output", "values mixed by weight")
    term(ax, output + 19, f"Guess: {chance:.0%} sure", "a small network reads it")
    return f'{statement} Of "{" ".join(flow.seen)}" it guesses "{guess}", {chance:.0%} sure.'


def draw_many_heads(ax: Axes, top: float, one: Trained, four: Trained, words: list[str]) -> str:
    """For each head an arrow from every word to the other word it looks at most; right ones have a
    colour.
    """
    single, several = chosen_and_scored(one), chosen_and_scored(four)
    relation = max(CORE_RELATIONS, key=lambda name: several[name] - single[name])
    pairs, alone, together = relation.replace("-", " and "), single[relation], several[relation]
    statement = f"A lone head links {alone:.0%} of new pairs of {pairs}, the best of these four {together:.0%}."
    heading(ax, top, "2  Many heads", statement)
    weights, gold = weights_of(four.model, words)[0], golds([with_relations(words)])
    right = {relation_name(*key): matrix[0] for key, matrix in gold.items()}
    others = weights.masked_fill(torch.eye(len(words), dtype=torch.bool), -1.0).argmax(
        dim=-1
    )  # (H, T, T) -> (H, T)
    places, names, step = middles(words), head_names(four, MultiHeadAttention)[0], 81 / len(weights)
    for row, head in enumerate(sorted(range(len(names)), key=lambda head: names[head] == NO_NAME)):
        level, name = top + 41.5 + step * row, names[head]
        put(ax, LEFT, level, name, TERM_SIZE, weight="bold", color=role_color(name))
        row_of_words(ax, level, words, 0.75 * WORD_SIZE)
        for i, j in enumerate(others[head].tolist() if len(words) > 1 else []):
            good = name in right and bool(right[name][i, j])
            color = role_color(name) if good else FAINT
            weight = weights[head, i, j].item() * (
                1 if good else 0.4
            )  # the others stay in the background
            arrow(ax, places[i], places[j], level - 7.5, weight, color, zorder=3 if good else 2)
    key = "An arrow: the other word that is looked at most. Coloured: right by the grammar."
    put(ax, WORDS, top + 114, key, color=QUIET)
    return statement


def draw_what_heads_do(ax: Axes, top: float, deep: Trained, again: Trained) -> str:
    """The heads of a model and of the same model trained again, by role."""
    statement = "Nobody told them what to do. Trained again, they share out the grammar anew."
    heading(ax, top, "3  What heads do", statement)
    rows = [
        [name for layer in head_names(trained, MultiHeadAttention) for name in layer]
        for trained in (deep, again)
    ]
    said, height = ("Trained once", "Trained again, from other random numbers"), 17
    column = (RIGHT - LEFT + 2) / len(rows[0])
    places = [LEFT + (head + 0.5) * column - 1 for head in range(len(rows[0]))]
    size = fitted(["→ determiner"], 0.9 * column, BODY_SIZE)
    for level, text, names in zip((top + 36, top + 70), said, rows, strict=True):
        put(ax, LEFT, level - 3, text, weight="bold")
        for x, name in zip(places, names, strict=True):
            color = HIDDEN if name == NO_NAME else role_color(name)
            ax.add_patch(
                Rectangle((x - column / 2 + 1, level), column - 2, height, facecolor=color)
            )
            style = {
                "ha": "center",
                "va": "center_baseline",
                "color": {HIDDEN: QUIET, ORANGE: INK}.get(color, "white"),
            }
            put(
                ax,
                x,
                level + height / 2,
                name.replace(" → ", "\n→ "),
                size,
                linespacing=1.1,
                **style,
            )
    put(ax, STATEMENTS, top + 33, "A name is earned by rule. A colour is a relation.", color=QUIET)
    return statement


def draw_without_a_future(ax: Axes, top: float, trained: Trained, words: list[str]) -> str:
    """What each word sees under the mask, and how the model goes on after the verb."""
    tokens = torch.tensor([encode([START, *words])], device=trained.model.positions.device)
    leak = largest_leak(trained.model, tokens)
    statement = f"A word may see only the past. Change all later words: what came before changes by {leak:g}."
    heading(ax, top, "4  Without a future", statement)
    width, height = (RIGHT - WORDS) / len(words), 50 / len(words)
    size = fitted(words, 0.85 * width, min(0.6 * WORD_SIZE, 0.78 * height / POINT))
    for i in range(len(words)):
        level = top + 26 + i * height
        for j, x in enumerate(middles(words)):
            if j > i:
                hatch_cell(ax, x - width / 2, level, width, height)
            else:
                new = {"weight": "bold"} if i == j else {"color": QUIET}
                put(ax, x, level + 0.72 * height, words[j], size, ha="center", **new)
    term(ax, top + 32, "Past", "read once, then cached")
    term(ax, top + 55, "Future", "hidden: its weight is zero")
    term(ax, top + 89, "It writes on", "one word after another")
    prompt = words[: choose_word(words) + 1]
    written = generate(trained.model, prompt, limit=min(len(prompt) + 8, MAX_LENGTH))
    size = fitted([" ".join(written)], RIGHT - WORDS, WORD_SIZE)
    read = put(ax, WORDS, top + 92, " ".join(prompt), size, color=QUIET)
    style = {
        "xycoords": (read, "data"),
        "textcoords": "offset points",
        "va": "baseline",
        "weight": "bold",
    }
    ax.annotate(
        " ".join(written[len(prompt) :]), (1, top + 92), (0.35 * size, 0), fontsize=size, **style
    )
    return f'{statement} It writes: "{" ".join(written)}".'


@cli.script
def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    one, four = load_single_head_model(options), load_one_layer_model(options)
    deep, again = (
        load_multi_head_model(options),
        load_multi_head_model(options, options.seed + AGAIN),
    )
    fig = plt.figure(figsize=(WIDTH / 25.4, HEIGHT / 25.4))
    ax = fig.add_axes((0, 0, 1, 1), xlim=(0, WIDTH), ylim=(HEIGHT, 0))
    ax.axis("off")
    put(ax, LEFT, 37, TITLE, 73, weight="bold")
    subtitle = "Small transformers, built from scratch. Every number on this sheet is their own."
    put(ax, LEFT, 50.5, subtitle, TERM_SIZE, color=QUIET)
    said = [
        draw_one_head(ax, 59, one, options.words),
        draw_many_heads(ax, 246, one, four, options.words),
        draw_what_heads_do(ax, 367, deep, again),
        draw_without_a_future(ax, 470, load_causal_model(options), options.words),
    ]
    foot = (
        f"drawn by phase4_causal/summary.py · models {one.label}, seed {options.seed} · MIT licence"
    )
    put(ax, LEFT, 579, foot, FOOT_SIZE, color=QUIET)
    save_plot(options, "summary_all_phases", fig, " ".join([f"{TITLE}.", *said]))
    return said[1]


if __name__ == "__main__":
    cli.run(main)
