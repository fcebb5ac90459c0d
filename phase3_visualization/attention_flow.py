"""Which words does each word look at, and which weights deserve an arrow?

The words of a sentence in a row, and an arrow from each word to the words it looks at, as thick as its weight. Arcs
above the words look right, arcs below look left. Only arrows above a threshold are drawn, and the threshold is a
multiple of 1/n, the weight that every word gets from a head that does not choose: a fixed one such as 0.15 lies below
1/6, so that on six words such a head would draw all its arrows.

    python phase3_visualization/attention_flow.py
    python phase3_visualization/attention_flow.py --layer 1 --head 2 --threshold 1.5

Writes attention_flow.png to visualizations/plots/phase3/.
"""

import math

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch
from matplotlib.patheffects import withStroke
from torch import Tensor

from phase2_multi_head.multi_head_attention import MultiHeadAttention, load_multi_head_model
from shared import cli, training
from shared.attention_utils import normalized_entropy
from shared.evidence import findings
from shared.evidence.claims import EXPERIMENT, Claim, measures
from shared.toy_language import TOY_SENTENCE
from shared.toy_model import weights_of
from shared.training import Trained
from shared.visualization_utils import INK, QUIET, head_color, headline, save_plot

THRESHOLD = 2.0  # times the even share
OUTLINE = [withStroke(linewidth=2, foreground="white")]  # keeps words readable across rings and arrows


def arrows(weights: Tensor, threshold: float) -> list[tuple[int, int, float]]:
    """(query, key, weight) of every entry of weights (T, T) above threshold / T, the strongest last."""
    found = [(i, j, weights[i, j].item()) for i, j in (weights > threshold / weights.size(-1)).nonzero().tolist()]
    return sorted(found, key=lambda arrow: arrow[2])


def draw_flow(ax: Axes, weights: Tensor, words: list[str], *, color: str, threshold: float, bend: float = 0.55) -> Axes:
    """Draw one head: words in a row, arcs from query to key above the threshold; bend: how high they rise."""
    for i, j, weight in arrows(weights, threshold):
        style = {"color": color, "linewidth": 0.6 + 4 * weight, "alpha": 0.25 + 0.75 * weight, "zorder": weight}
        if i == j:  # a word that looks at itself: a ring around it
            ax.add_patch(Circle((i, 0), 0.36, fill=False, **style))
            continue
        side = 0.30 if j > i else -0.34  # below, the arc begins under the small number
        rise = bend if abs(i - j) > 1 else 1.6 * bend  # a short arc needs more to be seen
        tip = {"arrowstyle": "-|>", "mutation_scale": 7 + 6 * weight, "shrinkA": 0, "shrinkB": 0}
        ax.add_patch(FancyArrowPatch((i, side), (j, side), connectionstyle=f"arc3,rad={-rise}", **tip, **style))
    for position, word in enumerate(words):
        style = {"ha": "center", "va": "center", "zorder": 3, "path_effects": OUTLINE}
        ax.text(position, 0, word, fontsize=8.5, color=INK, **style)
        ax.text(position, -0.21, str(position), fontsize=5.5, color=QUIET, **style)
    height = 0.55 + bend / 2 * max(len(words) - 1, 2)
    ax.set(xlim=(-0.7, len(words) - 0.3), ylim=(-height, height), aspect="equal")  # arcs are round on paper
    ax.axis("off")
    return ax


def draw(trained: Trained, words: list[str], heads: list[tuple[int, int]], threshold: float) -> tuple[Figure, str]:
    """One panel a head, with its strongest arrow; the title counts the arrows drawn."""
    weights = weights_of(trained.model, words)  # (L, H, T, T)
    columns = min(len(heads), 1 if len(words) > 16 else 2 if len(words) > 8 else 4)
    rows = math.ceil(len(heads) / columns)
    width = max(2.6, 0.46 * len(words)) * (1.6 if len(heads) == 1 else 1)
    figsize = (max(width * columns, 6.4), 0.62 * width * rows + 1.0)
    fig, axes = plt.subplots(rows, columns, figsize=figsize, squeeze=False, layout="constrained")
    for ax in axes.flat:
        ax.axis("off")
    drawn = 0
    for ax, (layer, head) in zip(axes.flat, heads, strict=False):
        draw_flow(ax, weights[layer, head], words, color=head_color(head), threshold=threshold)
        drawn += len(arrows(weights[layer, head], threshold))
        i, j, weight = arrows(weights[layer, head], 0)[-1]
        title = f"layer {layer} head {head}: {words[i]} → {words[j]} {weight:.2f}"
        ax.set_title(title, fontsize=9, color=head_color(head), pad=2)
    who = "Trained heads choose" if len(heads) > 1 else f"Layer {heads[0][0]} head {heads[0][1]} chooses"
    of_all = f"{drawn} of {len(heads) * len(words) ** 2} arrows"
    title = f"{who}: {of_all} carry more than {threshold:g} times the even share of 1/{len(words)}"
    entropy = normalized_entropy(torch.stack([weights[place] for place in heads])).nanmean().item()
    note = f"{trained.label} · normalised entropy {entropy:.2f} · arrows point to where a word looks; ring: itself"
    headline(fig, title, note, size=12)
    return fig, f'{title}; "{" ".join(words)}", arrow width by weight.'


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


def main(argv: list[str] | None = None) -> str:
    parser = cli.parser(__doc__)
    parser.add_argument("--layer", type=int, help="only this layer, counted from 0 (default: all)")
    parser.add_argument("--head", type=int, help="only this head, counted from 0 (default: all)")
    parser.add_argument(
        "--threshold", type=float, default=THRESHOLD, metavar="X", help=f"draw weights above X/n (default: {THRESHOLD})"
    )
    options = cli.parse(parser, argv)
    if options.threshold < 0:
        parser.error(f"--threshold must be 0 or more: got {options.threshold:g}")
    trained = load_multi_head_model(options)
    heads = cli.chosen_heads(parser, options, trained.recipe)
    save_plot(options, "phase3/attention_flow", *draw(trained, options.words, heads, options.threshold))
    runs = [arrows_drawn(load_multi_head_model(options, seed)) for seed in cli.seeds(options)]
    findings.record(options, *runs)
    fixed, relative = (runs[0][f"untrained, above {text}"] for text in ("0.15", f"{THRESHOLD:g}/n"))
    return f"Of an untrained model's arrows {fixed:.0%} lie above 0.15, and {relative:.0%} above {THRESHOLD:g}/n"


if __name__ == "__main__":
    cli.run(main)
