"""Which words does each word look at, and which weights deserve an arrow?

The words of a sentence in a row, and an arrow from each word to the words it looks at, as thick as its weight. Arcs
above the words look right, arcs below look left. Only arrows above a threshold are drawn, and the threshold is a
multiple of 1/n, the weight that every word gets from a head that does not choose: a fixed one such as 0.15 lies below
1/6, so that on six words such a head would draw all its arrows. Of all heads at most four are drawn, each with another
role by the rules of shared/grammar/roles.py; the arrows that fit the role have its colour.

    python phase3_visualization/attention_flow.py
    python phase3_visualization/attention_flow.py --layer 1 --head 2 --threshold 1.5

Writes attention_flow.png to visualizations/plots/phase3/.
"""

from collections.abc import Collection, Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch
from matplotlib.patheffects import withStroke
from torch import Tensor

from phase2_multi_head.models import load_multi_head_model
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from shared import cli, training
from shared.attention_utils import normalized_entropy
from shared.evidence import findings
from shared.evidence.claims import EXPERIMENT, Claim, measures
from shared.grammar.relations import with_relations
from shared.grammar.roles import NO_NAME, head_names
from shared.grammar.scores import relation_name
from shared.toy_language import TOY_SENTENCE
from shared.toy_model import weights_of
from shared.training import Trained
from shared.visualization_utils import GREY, INK, QUIET, headline, role_color, save_plot

THRESHOLD = 2.0  # times the even share
MOST_SHOWN, WIDTH = 4, 8.6  # heads, where the options pick none; inches
OUTLINE = [withStroke(linewidth=2, foreground="white")]  # keeps words readable across rings and arrows


def arrows(weights: Tensor, threshold: float) -> list[tuple[int, int, float]]:
    """(query, key, weight) of every entry of weights (T, T) above threshold / T, the strongest last."""
    found = [(i, j, weights[i, j].item()) for i, j in (weights > threshold / weights.size(-1)).nonzero().tolist()]
    return sorted(found, key=lambda arrow: arrow[2])


def pairs_of(name: str, words: Sequence[str]) -> set[tuple[int, int]]:
    """(query, key) of the words that the role of this name relates; none for a position, and without a name."""
    for relation, pairs in with_relations(words).relations.items():
        if name == relation_name(relation, "forward"):
            return set(pairs)
        if name == relation_name(relation, "backward"):
            return {(j, i) for i, j in pairs}
    return set()


def draw_flow(
    ax: Axes,
    weights: Tensor,
    words: list[str],
    *,
    color: str,
    threshold: float,
    bend: float = 0.55,
    only: Collection[tuple[int, int]] = (),
) -> Axes:
    """Draw one head: words in a row, arcs from query to key above the threshold; bend: how high they rise.

    only: the (query, key) that have the colour; all others are grey and half as thick. Without it all have it.
    """
    for i, j, weight in arrows(weights, threshold):
        told = not only or (i, j) in only
        style = {"color": color if told else GREY, "alpha": (0.25 + 0.75 * weight) * (1 if told else 0.7)}
        style |= {"linewidth": (0.6 + 4 * weight) * (1 if told else 0.5), "zorder": weight + told}
        if i == j:  # a word that looks at itself: a ring around it
            ax.add_patch(Circle((i, -0.06), 0.38, fill=False, **style))
            continue
        side = 0.28 if j > i else -0.42  # below, the arc begins under the position
        rise = bend if abs(i - j) > 1 else 1.6 * bend  # a short arc needs more to be seen
        tip = {"arrowstyle": "-|>", "mutation_scale": 7 + 6 * weight, "shrinkA": 0, "shrinkB": 0}
        ax.add_patch(FancyArrowPatch((i, side), (j, side), connectionstyle=f"arc3,rad={-rise}", **tip, **style))
    for position, word in enumerate(words):
        style = {"ha": "center", "va": "center", "zorder": 3, "path_effects": OUTLINE}
        ax.text(position, 0.04, word, fontsize=9, color=INK, **style)
        ax.text(position, -0.23, str(position), fontsize=8, color=QUIET, **style)
    height = 0.55 + bend / 2 * max(len(words) - 1, 2)
    ax.set(xlim=(-0.7, len(words) - 0.3), ylim=(-height, height), aspect="equal")  # arcs are round on paper
    ax.axis("off")
    return ax


def reach(weights: Tensor, threshold: float) -> tuple[float, float]:
    """How far the arcs of draw_flow go down and up, in words: as much paper as they need."""
    longest = [max([1, *(side * (j - i) for i, j, _ in arrows(weights, threshold))]) for side in (-1, 1)]
    return -0.65 - 0.3 * longest[0], 0.5 + 0.3 * longest[1]


def head_label(name: str, layer: int, head: int) -> str:
    """What a head is called in pictures: its role by rule, and where it is; "subject → verb (1.0)"."""
    return f"{name} ({layer}.{head})"


def telling(names: list[list[str]], weights: Tensor, words: list[str]) -> list[tuple[int, int]]:
    """(layer, head) of at most MOST_SHOWN heads, each with another role, the sharpest of its role.

    names: [layer][head]; weights (L, H, T, T). Roles that relate words of this sentence come first; where no head has a
    role, simply the first heads.
    """
    entropy = normalized_entropy(weights).nanmean(dim=-1)  # (L, H, T, T) -> (L, H)
    places = [(layer, head) for layer, row in enumerate(names) for head in range(len(row))]
    sharpest: dict[str, tuple[int, int]] = {}
    for layer, head in sorted(places, key=lambda place: entropy[place].item()):
        sharpest.setdefault(names[layer][head], (layer, head))
    sharpest.pop(NO_NAME, None)
    here_first = sorted(sharpest, key=lambda name: not pairs_of(name, words))
    return sorted(sharpest[name] for name in here_first[:MOST_SHOWN]) or places[:MOST_SHOWN]


def draw_panel(ax: Axes, weights: Tensor, words: list[str], name: str, label: str, threshold: float) -> None:
    """One head under its name; the arrows that gave it the name have its colour, and their weights are said."""
    pairs = pairs_of(name, words)
    draw_flow(ax, weights, words, color=role_color(name), threshold=threshold, only=pairs)
    ax.set_title(label, color=role_color(name), weight="bold", pad=15)
    said = ", ".join(f"{words[i]} → {words[j]} {weights[i, j]:.2f}" for i, j in sorted(pairs))
    ax.text(0.5, 1, said, transform=ax.transAxes, ha="center", fontsize=9, color=QUIET)


def draw(trained: Trained, words: list[str], heads: list[tuple[int, int]], threshold: float) -> tuple[Figure, str]:
    """One panel a head; of all heads only the telling ones."""
    weights, names = weights_of(trained.model, words), head_names(trained, MultiHeadAttention)  # (L, H, T, T)
    if len(heads) > MOST_SHOWN:
        heads = telling(names, weights, words)
    columns = 1 if len(heads) == 1 or len(words) > 8 else 2
    rows = [heads[start : start + columns] for start in range(0, len(heads), columns)]
    spans = [[reach(weights[place], threshold) for place in row] for row in rows]
    limits = [(min(low for low, _ in row), max(high for _, high in row)) for row in spans]
    each = min(WIDTH / columns / (len(words) + 0.4), 0.8)  # inches a word
    heights = [(high - low) * each + 0.55 for low, high in limits]
    size = {"figsize": (WIDTH, sum(heights) + 1.1), "height_ratios": heights}
    fig, axes = plt.subplots(len(rows), columns, **size, squeeze=False, layout="constrained")
    for ax in axes.flat:
        ax.axis("off")
    for row, of_row, limit in zip(rows, axes, limits, strict=True):
        for (layer, head), ax in zip(row, of_row, strict=False):
            name = names[layer][head]
            draw_panel(ax, weights[layer, head], words, name, head_label(name, layer, head), threshold)
            ax.set_ylim(limit)
    title = summary([names[layer][head] for layer, head in heads])
    entropy = normalized_entropy(torch.stack([weights[place] for place in heads])).nanmean().item()
    note = (
        f"{trained.label} · normalised entropy {entropy:.2f} · arrows point to where a word looks, ring: itself\n"
        f"drawn: weights above {threshold:g} times the even share of 1/{len(words)} · coloured: what gave the head its "
        "name (layer.head); grey: half as thick"
    )
    headline(fig, title, note)
    return fig, f'{title}: "{" ".join(words)}", an arrow for each large weight, thicker for more weight.'


def summary(names: list[str]) -> str:
    """What a picture of heads with these names shows."""
    if len(names) == 1:
        return "Where the words of one head look"
    if NO_NAME in names or len(set(names)) < len(names):
        return "Heads without a role: where their words look"
    number = ("Two", "Three", "Four")[len(names) - 2]
    return f"{number} heads read the same words, and each looks for something else"


@measures(
    Claim(
        id="I051",
        text="Arrows above a fixed threshold, such as 0.15, show clearly how information flows between words",
        kind=EXPERIMENT,
        source="course notes, Attention Flow Diagram; their example has six words",
        rule="an untrained model, whose heads prefer nothing, draws less than a tenth of its arrows",
        holds=lambda n: n["untrained, above 0.15"] < 0.1,
        oracle={"untrained, above 0.15": 0.0},
        null={"untrained, above 0.15": 0.75},
        unit="share of all arrows drawn, n = 6 words",
        control=f"the trained model; a threshold of {THRESHOLD:g} times the even share 1/n",
    )
)
def arrows_drawn(trained: Trained) -> dict[str, float]:
    """Share of the arrows of the toy sentence above a fixed and a relative threshold, whatever the picture shows."""
    words = TOY_SENTENCE.split()
    models = {"untrained": training.untrained(trained.recipe, MultiHeadAttention), "trained": trained}
    thresholds = {"0.15": 0.15, f"{THRESHOLD:g}/n": THRESHOLD / len(words)}
    return {
        f"{name}, above {text}": (weights_of(each.model, words) > value).double().mean().item()
        for name, each in models.items()
        for text, value in thresholds.items()
    }


@cli.script
def main(argv: list[str] | None = None) -> str:
    parser = cli.parser(__doc__)
    parser.add_argument("--layer", type=int, help="only this layer, counted from 0 (default: all)")
    parser.add_argument("--head", type=int, help="only this head, counted from 0 (default: all)")
    parser.add_argument(
        "--threshold", type=float, default=THRESHOLD, metavar="X", help=f"draw weights above X/n (default: {THRESHOLD})"
    )
    options = cli.parse(parser, argv)
    if not options.threshold >= 0:  # nan, too
        parser.error(f"--threshold must be 0 or more: got {options.threshold:g}")
    trained = load_multi_head_model(options)
    heads = cli.chosen_heads(parser, options, trained.recipe.num_layers, trained.recipe.num_heads)
    save_plot(options, "phase3/attention_flow", *draw(trained, options.words, heads, options.threshold))
    runs = [arrows_drawn(load_multi_head_model(options, seed)) for seed in cli.seeds(options)]
    findings.record(options, *runs)
    fixed, relative = (runs[0][f"untrained, above {text}"] for text in ("0.15", f"{THRESHOLD:g}/n"))
    return f"Of an untrained model's arrows {fixed:.0%} lie above 0.15, and {relative:.0%} above {THRESHOLD:g}/n"


if __name__ == "__main__":
    cli.run(main)
