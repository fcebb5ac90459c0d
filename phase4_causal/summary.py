"""What do four phases show on one poster, A2, for the wall?

Everything is computed in this run from trained models. The sheet is laid out in millimetres, with a
band for each phase. Writes summary_all_phases.png to visualizations/plots/; for a printer, as SVG:

    python phase4_causal/summary.py --format svg --sentence "those dogs slept in a soft bed"
"""

import textwrap
from collections.abc import Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from phase1_single_head.models import choose_word, flow_of, load_single_head_model
from phase2_multi_head.models import AGAIN, load_multi_head_model, load_one_layer_model
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase4_causal.causal_attention import generate
from phase4_causal.models import load_causal_model
from shared import charts, cli
from shared.attention_utils import causal_mask
from shared.grammar.roles import NO_NAME, head_names
from shared.grammar.scores import (
    CORE_RELATIONS,
    chosen_and_scored,
    related_pairs,
    relation_name,
)
from shared.toy_language import MAX_LENGTH
from shared.toy_model import weights_on_sentence
from shared.training.recipes import Trained
from shared.visualization_utils import (
    AMBER,
    BLUE,
    GREY,
    HIDDEN,
    INK,
    QUIET,
    TAUPE,
    VIOLET,
    plot_mask,
    role_color,
    save_plot,
)

WIDTH, HEIGHT = 420, 594  # of the sheet in millimetres, measured from its upper left corner
LEFT, SAID, MIDDLE, RIGHT = 20, 176, 215, 400
BODY, SMALL = 28, 20  # points
TITLE = "Attention in one sentence"


def put(fig: Figure, x: float, y: float, text: str, size: float = BODY, **style) -> None:
    fig.text(x / WIDTH, 1 - y / HEIGHT, text, fontsize=size, **style)


def panel(fig: Figure, left: float, top: float, width: float, height: float) -> Axes:
    bottom = HEIGHT - top - height
    return fig.add_axes((left / WIDTH, bottom / HEIGHT, width / WIDTH, height / HEIGHT))


def band(fig: Figure, top: float, name: str, statement: str) -> None:
    """A rule, the heading below it, and beside that what it says."""
    height = 1 - top / HEIGHT
    fig.add_artist(Line2D((LEFT / WIDTH, RIGHT / WIDTH), (height, height), color=INK))
    put(fig, LEFT, top + 16, name, 36, weight="bold")
    lines = textwrap.fill(statement, max(40, len(statement) // 2 + 6))  # two, whatever is said
    put(fig, SAID, top + 14, lines, va="center", linespacing=1.2)


def enlarge(ax: Axes, words: Sequence[str], size: float) -> None:
    """Let the words of a chart be as large as fits side by side, and its arcs as bold."""
    points = ax.get_position().width * WIDTH / 25.4 * 72 / len(words)
    longest = max(len(word) for word in words)
    plt.setp(ax.texts, va="top", fontsize=min(size, points / (0.62 * longest)))
    for arc in ax.patches:
        arc.set_linewidth(size / 12 * arc.get_linewidth())


def draw_one_head(fig: Figure, top: float, trained: Trained, words: list[str]) -> str:
    """An arc from the hidden word to each that it asks, the weights, and the guess."""
    flow = flow_of(trained, words)
    most_attended = " and ".join(f'"{words[j]}"' for j in flow.most_attended) or "nobody"
    statement = f"One word is hidden. It asks {most_attended} the most, and mixes their answers."
    band(fig, top, "1  One head", statement)
    weights = torch.zeros(len(words), len(words), dtype=torch.double)
    weights[flow.i] = flow.weights
    ax = panel(fig, LEFT, top + 22, 270, 74)
    charts.arcs(ax, weights, flow.seen, BLUE, threshold=0.0)
    for position, weight in enumerate(flow.weights.tolist()):
        ax.text(position, -0.45, f"{weight:.0%}", color=QUIET, ha="center")
    enlarge(ax, flow.seen, 44)
    steps = "weights = softmax(query · keys / √d)        output = weights · values"
    put(fig, LEFT, top + 120, steps, color=QUIET)
    guess, chance = flow.guesses[0]
    put(fig, 298, top + 66, guess, 60, weight="bold", color=BLUE)
    put(fig, 298, top + 80, f"its guess, {chance:.0%} sure", color=QUIET)
    return f'{statement} Of "{" ".join(flow.seen)}" it guesses "{guess}", {chance:.0%} sure.'


def draw_many_heads(fig: Figure, top: float, one: Trained, four: Trained, words: list[str]) -> str:
    """The large weights of four heads; in colour those on words that have the head's relation."""
    single, several = chosen_and_scored(one), chosen_and_scored(four)
    relation = max(CORE_RELATIONS, key=lambda name: several[name] - single[name])
    statement = (
        f"New pairs of {relation.replace('-', ' and ')}: one head alone finds "
        f"{single[relation]:.0%}, the best of these four {several[relation]:.0%}."
    )
    band(fig, top, "2  Many heads", statement)
    weights = weights_on_sentence(four.model, words)[0]
    told = relation_name(relation, "forward")
    wanted = related_pairs(told, words)
    for head, name in enumerate(head_names(four, MultiHeadAttention)[0]):
        left, down = (LEFT, MIDDLE)[head % 2], top + 37 + 58 * (head // 2)
        color = role_color(name)
        pairs = None if color in (GREY, TAUPE) else related_pairs(name, words)
        if pairs == set() and wanted:  # nobody here whom it could show: the one of the statement
            head = max(range(len(weights)), key=lambda h: sum(weights[h][pair] for pair in wanted))
            name, color, pairs = f"again: {told}", role_color(told), wanted
        put(fig, left, down, f"head {head} {name}", weight="bold", color=color)
        ax = panel(fig, left, down + 2, RIGHT - MIDDLE, 44)
        charts.arcs(ax, weights[head], words, color, pairs=pairs)
        enlarge(ax, words, 33)
    return statement


def draw_what_heads_do(fig: Figure, top: float, deep: Trained, again: Trained) -> str:
    """The heads of a model, and in the same rows those of the same model trained again, by role."""
    statement = "Nobody told them what to do. Trained again, they share out the grammar anew."
    band(fig, top, "3  What heads do", statement)
    columns = ((LEFT, "Trained once", deep), (MIDDLE, "Trained again", again))
    for left, text, trained in columns:
        put(fig, left, top + 37, text, weight="bold")
        ax = panel(fig, left, top + 40, RIGHT - MIDDLE, 84)
        first, second = head_names(trained, MultiHeadAttention)  # layers
        for head, name in enumerate(first + second):
            color = HIDDEN if name == NO_NAME else role_color(name)
            ink = {HIDDEN: QUIET, AMBER: INK, VIOLET: INK}.get(color, "white")
            ax.barh(head, 1, 0.94, color=color)
            ax.text(0.5, head, name, color=ink, fontsize=26, ha="center", va="center")
        ax.margins(0)
        ax.invert_yaxis()
        ax.axis("off")
    return statement


def draw_without_a_future(fig: Figure, top: float, trained: Trained, words: list[str]) -> str:
    """What each word sees under the mask, and how the model goes on after the verb."""
    statement = "A word may see only itself and the past. So the model can guess the next."
    band(fig, top, "4  Without a future", statement)
    ax = plot_mask(panel(fig, LEFT + 18, top + 47, 100, 66), causal_mask(len(words)), words)
    ax.tick_params(labelsize=24 if len(words) < 9 else SMALL)
    plt.setp(ax.get_xticklabels(), rotation=45, ha="left", rotation_mode="anchor")
    prompt = words[: choose_word(words) + 1]
    written = generate(trained.model, prompt, limit=min(len(prompt) + 8, MAX_LENGTH))
    put(fig, MIDDLE, top + 45, "It writes on", 36, weight="bold")
    put(fig, MIDDLE, top + 56, "each time the likeliest word", color=QUIET)
    given = textwrap.wrap(" ".join(prompt), 24)
    added = textwrap.fill(" ".join(written[len(prompt) :]), 24)
    put(fig, MIDDLE, top + 67, "\n".join(given), 36, color=QUIET, va="top")
    put(fig, MIDDLE, top + 68 + 14 * len(given), added, 36, weight="bold", va="top")
    return f'{statement} It writes: "{" ".join(written)}".'


USES = (
    "--sentence --sentences --seed --quick "
    "--device --retrain --d-model --output-dir --no-pictures --format"
)


@cli.script
def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__, USES), argv)
    one, four = load_single_head_model(options), load_one_layer_model(options)
    deep = load_multi_head_model(options)
    again = load_multi_head_model(options, options.seed + AGAIN)
    fig = plt.figure(figsize=(WIDTH / 25.4, HEIGHT / 25.4))
    put(fig, LEFT, 36, TITLE, 73, weight="bold")
    subtitle = "Small transformers, built from scratch. Every number on this sheet is their own."
    put(fig, LEFT, 49, subtitle, 24, color=QUIET)
    statements = [
        draw_one_head(fig, 56, one, options.words),
        draw_many_heads(fig, 184, one, four, options.words),
        draw_what_heads_do(fig, 336, deep, again),
        draw_without_a_future(fig, 465, load_causal_model(options), options.words),
    ]
    foot = f"drawn by phase4_causal/summary.py · models {one.label}, seed {options.seed} · MIT"
    put(fig, LEFT, 586, f"{foot} licence", SMALL, color=QUIET)
    caption = " ".join([f"{TITLE}.", *statements])
    save_plot(options, "summary_all_phases", fig, caption)
    return statements[1]


if __name__ == "__main__":
    cli.run(main)
