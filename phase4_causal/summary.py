"""What do four phases show on one poster, A2, for the wall?

    1  One head          a hidden word asks all words and mixes their answers
    2  Many heads        several heads read the same sentence, each in its own way
    3  What heads do     trained again, heads share out the grammar anew
    4  Without a future  with later words hidden, a model can write

Everything on it is computed in this run from trained models. Heads have their names by the rule of
shared/grammar/roles.py; how many pairs a head links is counted on sentences other than those it was chosen on. The
sheet is one grid in millimetres: two columns for what a row is called, six for the words of the sentence.

    python phase4_causal/summary.py
    python phase4_causal/summary.py --sentence "those dogs slept in a soft bed"

Writes summary_all_phases.png, and summary_all_phases.pdf for a printer, to visualizations/plots/.
"""

import argparse
import math
import textwrap
from collections.abc import Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, PathPatch, Rectangle
from matplotlib.path import Path
from matplotlib.patheffects import withStroke
from matplotlib.text import Text
from matplotlib.textpath import TextPath
from torch import Tensor

from phase1_single_head.models import asks, choose_word, flow_of, load_single_head_model
from phase2_multi_head.models import load_multi_head_model, load_one_layer_model
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase4_causal.causal_attention import generate
from phase4_causal.models import largest_leak, load_causal_model
from shared import cli, paths
from shared.grammar.relations import with_relations
from shared.grammar.roles import NO_NAME, golds, head_names
from shared.grammar.scores import CORE_RELATIONS, chosen_and_scored, relation_name
from shared.toy_language import MAX_LENGTH, START, encode
from shared.toy_model import weights_of
from shared.training import Trained
from shared.visualization_utils import GREY, HIDDEN, INK, ORANGE, QUIET, WEIGHT_MAP, hatch_cell, role_color, save_plot

# The sheet in millimetres from its upper left corner, and its type in points.
WIDTH, HEIGHT, MARGIN, POINT = 420, 594, 20, 25.4 / 72
LEFT, RIGHT, COLUMN = MARGIN, WIDTH - MARGIN, (WIDTH - 2 * MARGIN) / 8
WORDS, STATEMENTS = LEFT + 2 * COLUMN, LEFT + 4 * COLUMN  # where these begin
TITLE_AT, SUBTITLE_AT, BANDS, FOOT = 37, 50.5, (59, 246, 367, 470), 579
HEAD = 29  # from the rule of a band to its picture
STRIP, STRIP_HEIGHT = 38, 6  # a vector
TITLE_SIZE, HEADING_SIZE, WORD_SIZE, TERM_SIZE, BODY_SIZE, FOOT_SIZE = 80, 42, 32, 22, 18, 14

TITLE, FORMULA = "Attention in one sentence", "softmax(Q Kᵀ / √dₖ) V"
STRIP_MAP = LinearSegmentedColormap.from_list("strip", ["white", INK])
OUTLINE = [withStroke(linewidth=12, foreground="white")]  # keeps crossing ribbons apart
FAINT = "#c9cfd5"  # arrows that are not right, or of a head without a name


def fitted(texts: Sequence[str], width: float, size: float, weight: str = "normal") -> float:
    """The type size, `size` at most, in which none of the texts is wider than `width` millimetres."""
    widest = max(TextPath((0, 0), text, size=size, prop={"weight": weight}).get_extents().width for text in texts)
    return min(size, size * width / (widest * POINT))


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


def heading(ax: Axes, number: int, name: str, statement: str) -> float:
    """The rule of a band, its heading and what it says; returns where its picture begins."""
    top = BANDS[number - 1]
    ax.plot((LEFT, RIGHT), (top, top), color=INK, linewidth=1.5)
    put(ax, LEFT, top + 17, f"{number}  {name}", HEADING_SIZE, weight="bold")
    lines = textwrap.fill(statement, max(46, len(statement) // 2 + 8))  # two, whatever is said
    size = fitted(lines.split("\n"), RIGHT - STATEMENTS, BODY_SIZE + 1)
    put(ax, STATEMENTS, top + 12.5, lines, size, va="center", linespacing=1.35)
    return top + HEAD


def strip(ax: Axes, x: float, y: float, values: Tensor, width: float = STRIP) -> None:
    """A vector as a row of cells around x, below y: light for its low numbers, dark for its high ones."""
    edges, limit = torch.linspace(x - width / 2, x + width / 2, len(values) + 1), values.abs().max().item()
    style = {"cmap": STRIP_MAP, "vmin": -limit, "vmax": limit, "edgecolors": "face"}
    ax.pcolormesh(edges.numpy(), [y, y + STRIP_HEIGHT], values[None].numpy(), **style)
    ax.add_patch(Rectangle((x - width / 2, y), width, STRIP_HEIGHT, fill=False, edgecolor=QUIET, linewidth=0.8))


def ribbon(ax: Axes, top: tuple[float, float], bottom: tuple[float, float], width: float, color, **style) -> None:
    """A ribbon `width` millimetres wide that leaves one place downwards and reaches another from above."""
    (x, y), (end, z) = top, bottom
    middle = (y + z) / 2
    path = Path([(x, y), (x, middle), (end, middle), (end, z)], [Path.MOVETO, *[Path.CURVE4] * 3])
    ax.add_patch(PathPatch(path, fill=False, edgecolor=color, linewidth=width / POINT, capstyle="butt", **style))


def row_of_words(ax: Axes, y: float, words: list[str], size: float, hidden: int | None = None) -> None:
    """The sentence on a baseline, a word in each column; the hidden one white on black."""
    size = fitted(words, 0.9 * (RIGHT - WORDS) / len(words), size)
    for i, (x, word) in enumerate(zip(middles(words), words, strict=True)):
        if i == hidden:
            side = 1.35 * size * POINT
            ax.add_patch(Rectangle((x - side / 2, y - 0.77 * side), side, side, facecolor=INK))
        put(ax, x, y, word, size, ha="center", color="white" if i == hidden else INK)


def draw_one_head(ax: Axes, trained: Trained, words: list[str]) -> str:
    """Band 1: the query of a hidden word, all keys, scores, weights, and the values they mix; returns it in words.

    A ribbon is as wide as its weight, and all of them together as wide as the output.
    """
    flow, count = flow_of(trained, words), len(words)
    most = asks(words, flow.weights, flow.i)
    statement = f"One word is hidden. It asks all words, {most} the most, and mixes their answers."
    y = heading(ax, 1, "One head", statement)
    row_of_words(ax, y + 7, flow.seen, WORD_SIZE, hidden=flow.i)
    y_query, y_keys, y_scores, y_weights, y_values, y_output = (y + down for down in (14, 36, 58, 90, 96, 126))
    width = min(STRIP, 0.85 * (RIGHT - WORDS) / count)
    here = min(max(middles(words)[flow.i], WORDS + STRIP / 2), RIGHT - STRIP / 2)  # a full strip fits in
    highest, largest, before = flow.scores.abs().max().item(), flow.weights.max().item(), 0.0
    strip(ax, here, y_query, flow.query)
    for j, (place, score, weight) in enumerate(zip(middles(words), flow.scores, flow.weights, strict=True)):
        score, weight = score.item(), weight.item()
        ribbon(ax, (here + ((j + 0.5) / count - 0.5) * STRIP, y_query + STRIP_HEIGHT), (place, y_keys), 0.7, GREY)
        strip(ax, place, y_keys, flow.key[j], width)
        bar(ax, place, y_scores, 10 * score / highest, width, GREY)
        bar(ax, place, y_weights, 17 * weight / largest, width, WEIGHT_MAP(weight))
        end = (here + (before + weight / 2 - 0.5) * STRIP, y_output)
        ribbon(ax, (place, y_values + STRIP_HEIGHT), end, weight * STRIP, WEIGHT_MAP(weight))
        strip(ax, place, y_values, flow.value[j], width)
        before += weight
    strip(ax, here, y_output, flow.output)
    (guess, chance), at_edge = flow.guesses[0], here > RIGHT - COLUMN
    style = {"ha": "right" if at_edge else "center", "weight": "bold"}
    put(ax, here + STRIP / 2 * at_edge, y_output + 22, guess, 1.4 * WORD_SIZE, **style)
    free, side = (RIGHT, "right") if here < (WORDS + RIGHT) / 2 else (WORDS, "left")
    put(ax, free, y_output + 21, FORMULA, TERM_SIZE, ha=side, color=QUIET)

    term(ax, y_query + 3, "Query", 'what "?" looks for')
    term(ax, y_keys + 3, "Keys", "what each word offers")
    term(ax, y_scores, "Scores", "query · key: a match?")
    term(ax, y_weights - 8, "Weights", "softmax: shares of a whole")
    term(ax, y_values + 6, "Values", "what each word tells")
    term(ax, y_output - 2, "Output", "values mixed by weight")
    term(ax, y_output + 19, f"Guess: {chance:.0%} sure", "a small network reads it")
    return f'{statement} Of "{" ".join(flow.seen)}" it guesses "{guess}", {chance:.0%} sure.'


def bar(ax: Axes, x: float, y: float, height: float, width: float, color) -> None:
    """A number of a word, on the zero line of its row."""
    ax.add_patch(Rectangle((x - width / 4, y), width / 2, -height, facecolor=color))
    ax.plot((WORDS, RIGHT), (y, y), color=QUIET, linewidth=0.8)


def draw_many_heads(ax: Axes, one: Trained, four: Trained, words: list[str]) -> str:
    """Band 2: for each head an arrow from every word to the other word it looks at most; right ones have a colour."""
    single, several = chosen_and_scored(one), chosen_and_scored(four)
    relation = max(CORE_RELATIONS, key=lambda name: several[name] - single[name])
    pairs, alone, together = relation.replace("-", " and "), single[relation], several[relation]
    statement = f"A lone head links {alone:.0%} of new pairs of {pairs}, the best of these four {together:.0%}."
    y = heading(ax, 2, "Many heads", statement)
    weights, gold = weights_of(four.model, words)[0], golds([with_relations(words)])
    right = {relation_name(*key): matrix[0] for key, matrix in gold.items()}
    others = weights.masked_fill(torch.eye(len(words), dtype=torch.bool), -1.0).argmax(dim=-1)  # (H, T, T) -> (H, T)
    places, names, step = middles(words), head_names(four, MultiHeadAttention)[0], 81 / len(weights)
    for row, head in enumerate(sorted(range(len(names)), key=lambda head: names[head] == NO_NAME)):
        level, name = y + 12.5 + step * row, names[head]
        put(ax, LEFT, level, name, TERM_SIZE, weight="bold", color=role_color(name))
        row_of_words(ax, level, words, 0.75 * WORD_SIZE)
        for i, j in enumerate(others[head].tolist() if len(words) > 1 else []):
            good = name in right and bool(right[name][i, j])
            color = role_color(name) if good else FAINT
            weight = weights[head, i, j].item() * (1 if good else 0.4)  # the others stay in the background
            arrow(ax, places[i], places[j], level - 7.5, weight, color, zorder=3 if good else 2)
    key = "An arrow: the other word that is looked at most. Coloured: right by the grammar."
    put(ax, WORDS, y + 85, key, color=QUIET)
    return statement


def arrow(ax: Axes, start: float, end: float, y: float, weight: float, color: str, **style) -> None:
    """An arc over the words, as thick as the weight; one to the left stays lower."""
    way, distance = math.copysign(1, end - start), abs(end - start)
    rise = (5 + 0.03 * distance) * (1 if way > 0 else 0.7)
    bend = f"arc3,rad={-2 * rise / distance * way}"
    tip = {"arrowstyle": "-|>", "mutation_scale": 14 + 12 * weight, "shrinkA": 0, "shrinkB": 0}
    ends = ((start + 2 * way, y), (end - 2 * way, y))
    ax.add_patch(FancyArrowPatch(*ends, connectionstyle=bend, color=color, linewidth=2 + 8 * weight, **tip, **style))


def draw_what_heads_do(ax: Axes, deep: Trained, again: Trained) -> str:
    """Band 3: the heads of a model and of the same model trained again, by role, and where each role went."""
    statement = "Nobody told them what to do. Trained again, they share out the grammar anew."
    y = heading(ax, 3, "What heads do", statement)
    rows = [[name for layer in head_names(trained, MultiHeadAttention) for name in layer] for trained in (deep, again)]
    gap, levels, height = 2, (y + 5, y + 45), 17
    width = (RIGHT - LEFT + gap) / len(rows[0]) - gap
    places = [LEFT + width / 2 + head * (width + gap) for head in range(len(rows[0]))]
    for i, j in sorted(same_job(*rows), key=lambda pair: -abs(pair[0] - pair[1])):  # short ones on top
        ends = (places[i], levels[0] + height), (places[j], levels[1])
        ribbon(ax, *ends, 3, role_color(rows[0][i]), path_effects=OUTLINE)
    size = fitted(["→ determiner"], 0.93 * width, BODY_SIZE)
    for level, names in zip(levels, rows, strict=True):
        for x, name in zip(places, names, strict=True):
            color = HIDDEN if name == NO_NAME else role_color(name)
            ax.add_patch(Rectangle((x - width / 2, level), width, height, facecolor=color))
            on_it, lines = {HIDDEN: QUIET, ORANGE: INK}.get(color, "white"), name.replace(" → ", "\n→ ").split("\n")
            for line, part in enumerate(lines):
                middle = level + height / 2 + 7 * (line - (len(lines) - 1) / 2)
                put(ax, x, middle + 2.2, part, size, ha="center", color=on_it)
    put(ax, LEFT, levels[0] - 3, "Trained once", weight="bold")
    put(ax, STATEMENTS, levels[0] - 3, "A name is earned by rule. Lines join the same relation.", color=QUIET)
    put(ax, LEFT, levels[1] + height + 8, "Trained again, from other random numbers", weight="bold")
    return statement


def same_job(first: list[str], second: list[str]) -> list[tuple[int, int]]:
    """Pairs of heads of two models that follow the same relation, each head at most once.

    Heads of the same name, that is the same direction, come first, and then heads in the same place.
    """
    pairs: list[tuple[int, int]] = []
    jobs = [(i, j) for i, a in enumerate(first) for j, b in enumerate(second) if set(a.split()) == set(b.split())]
    for i, j in sorted(jobs, key=lambda pair: (first[pair[0]] != second[pair[1]], pair[0] != pair[1], pair)):
        if first[i] != NO_NAME and all(i != taken and j != other for taken, other in pairs):
            pairs.append((i, j))
    return pairs


def draw_without_a_future(ax: Axes, trained: Trained, words: list[str]) -> str:
    """Band 4: what each word sees under the mask, and how the model goes on after the verb."""
    tokens = torch.tensor([encode([START, *words])], device=trained.model.positions.device)
    leak = largest_leak(trained.model, tokens)[0]
    statement = f"A word may see only the past. Change all later words: what came before changes by {leak:g}."
    y = heading(ax, 4, "Without a future", statement)
    width, height = (RIGHT - WORDS) / len(words), 50 / len(words)
    size = fitted(words, 0.85 * width, min(0.6 * WORD_SIZE, 0.78 * height / POINT))
    for i in range(len(words)):
        level = y - 3 + i * height
        for j, (x, word) in enumerate(zip(middles(words), words, strict=True)):
            if j > i:
                hatch_cell(ax, x - width / 2, level, width, height)
            else:
                new = {"weight": "bold"} if i == j else {"color": QUIET}
                put(ax, x, level + 0.72 * height, word, size, ha="center", **new)
    style = {"ha": "center", "va": "center", "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 6}}
    put(ax, RIGHT - COLUMN, y + 4.7, "the future", TERM_SIZE, **style)
    term(ax, y + 3, "Past", "read once, then cached")
    term(ax, y + 26, "Future", "hidden: its weight is zero")
    term(ax, y + 60, "It writes on", "one word after another")
    prompt = words[: choose_word(words) + 1]
    written = generate(trained.model, prompt, limit=min(len(prompt) + 8, MAX_LENGTH))
    size = fitted([" ".join(written)], 0.95 * (RIGHT - WORDS), WORD_SIZE, "bold")
    read = put(ax, WORDS, y + 63, " ".join(prompt), size, color=QUIET)
    style = {"xycoords": (read, "data"), "textcoords": "offset points", "va": "baseline", "weight": "bold"}
    ax.annotate(" ".join(written[len(prompt) :]), (1, y + 63), (0.35 * size, 0), fontsize=size, **style)
    return f'{statement} It writes: "{" ".join(written)}".'


def draw(models: Sequence[Trained], words: list[str], command: str) -> tuple[Figure, list[str]]:
    """The whole sheet, and what its bands say; models: one head, four heads, two layers of four twice, causal."""
    one, four, deep, again, causal = models
    fig = plt.figure(figsize=(WIDTH / 25.4, HEIGHT / 25.4))
    ax = fig.add_axes((0, 0, 1, 1), xlim=(0, WIDTH), ylim=(HEIGHT, 0))
    ax.axis("off")
    put(ax, LEFT, TITLE_AT, TITLE, fitted([TITLE], 0.99 * (RIGHT - LEFT), TITLE_SIZE, "bold"), weight="bold")
    subtitle = "Small transformers, built from scratch. Every number on this sheet is their own."
    put(ax, LEFT, SUBTITLE_AT, subtitle, TERM_SIZE, color=QUIET)
    said = [
        draw_one_head(ax, one, words),
        draw_many_heads(ax, one, four, words),
        draw_what_heads_do(ax, deep, again),
        draw_without_a_future(ax, causal, words),
    ]
    foot = f"drawn by {command} · models {one.label} · MIT licence"
    put(ax, LEFT, FOOT, foot, fitted([foot], 0.94 * (RIGHT - LEFT), FOOT_SIZE), color=QUIET)
    return fig, said


def save_pdf(options: argparse.Namespace, fig: Figure, caption: str) -> None:
    """The sheet for a printer: vectors, fonts inside, and no date, so that the same run gives the same bytes."""
    path = options.output_dir / paths.PLOTS / "summary_all_phases.pdf"
    with paths.whole_file(path) as unfinished, plt.rc_context({"pdf.fonttype": 42}):
        fig.savefig(unfinished, metadata={"CreationDate": None, "Title": TITLE, "Subject": caption})
    print(f"  picture: {paths.shown(path)}")


@cli.script
def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    models = (
        load_single_head_model(options),
        load_one_layer_model(options),
        load_multi_head_model(options),
        load_multi_head_model(options, options.seed + 1),
        load_causal_model(options),
    )
    command = "python phase4_causal/summary.py"
    command += f" --seed {options.seed}" if options.seed else ""
    command += f' --sentence "{options.sentence}"' if options.sentence else ""
    fig, said = draw(models, options.words, command)
    caption = " ".join([f"{TITLE}.", *said])
    if options.pictures:
        save_pdf(options, fig, caption)
    save_plot(options, "summary_all_phases", fig, caption)
    return said[1]


if __name__ == "__main__":
    cli.run(main)
