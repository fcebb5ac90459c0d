"""Which words does each word look at, and which weights deserve an arrow?

The words of a sentence in a row, and an arrow from each word to the words it looks at, as thick as
its weight. All arrows above a multiple of 1/n are drawn, the weight that every word gets from a
head that does not choose. Those that gave the head its name have a colour. Of all heads at most
four are drawn, each with another role by the rules of shared/grammar/roles.py.

    python phase3_visualization/attention_flow.py --head 1.2

The second picture hides a word and asks where its guess comes from, by rollout, which follows every
path down to the words, and by the last layer alone.

Writes attention_flow.png and attention_rollout.png to visualizations/plots/phase3/.
"""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from phase1_single_head.models import as_shown, choose_word, hide
from phase2_multi_head.models import load_multi_head_model
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase3_visualization.layers.rollout import shares_on_paths
from shared import charts, cli
from shared.attention_utils import attention_rollout, normalized_entropy
from shared.grammar.roles import NO_NAME, head_names
from shared.grammar.scores import related_pairs
from shared.toy_model import weights_on_sentence
from shared.training.recipes import Trained, untrained_model
from shared.visualization_utils import (
    BLUE,
    GREY,
    INK,
    QUIET,
    TAUPE,
    WIDE,
    headline,
    readable,
    role_color,
    save_plot,
)

THRESHOLD = 2.0  # arrows above so many times the even share are drawn
FIXED = 0.15  # a threshold that is the same for every length, to compare with
MOST_SHOWN = 4  # heads, if the options pick none


def one_of_each(names: list[list[str]], words: Sequence[str]) -> list[tuple[int, int]]:
    """(layer, head) of at most MOST_SHOWN heads, each with another role; names: [layer][head].

    Roles that relate words of this sentence come first.
    """
    with_role = {}
    for layer, row in enumerate(names):
        for head, name in enumerate(row):
            if name != NO_NAME:
                with_role[name] = (layer, head)
    roles = sorted(with_role, key=lambda name: not related_pairs(name, words))
    return sorted(with_role[name] for name in roles[:MOST_SHOWN])


def draw_arrows(
    trained: Trained, words: list[str], heads: list[tuple[int, int]]
) -> tuple[Figure, str]:
    """A row of words and arrows for each head, and a caption; of many heads one of each role."""
    weights = weights_on_sentence(trained.model, words)  # (L, H, T, T)
    names = head_names(trained, MultiHeadAttention)
    if len(heads) > MOST_SHOWN:
        heads = one_of_each(names, words) or heads[:MOST_SHOWN]
    height = (0.7 + 0.05 * len(words)) * WIDE / len(words) + 0.3
    size = (WIDE, height * len(heads) + 1)
    fig, axes = plt.subplots(len(heads), figsize=size, squeeze=False, layout="constrained")
    for (layer, head), ax in zip(heads, axes.flat, strict=True):
        name = names[layer][head]
        color = role_color(name)
        pairs = related_pairs(name, words)
        # Where the name is of no relation, all arrows have its colour.
        named = None if color in (GREY, TAUPE) else pairs
        charts.arcs(ax, weights[layer, head], words, color, threshold=THRESHOLD, pairs=named)
        title = f"{layer}.{head}  {name}"
        ax.set_title(title, color=readable(color), weight="bold", loc="left", fontsize=11)
        shares = []
        for i, j in sorted(pairs):
            shares.append(f"{words[i]} → {words[j]} {weights[layer, head, i, j]:.0%}")
        ax.set_title("   ".join(shares), color=QUIET, loc="right", fontsize=10)
    shown = [names[layer][head] for layer, head in heads]
    finding = "Each head looks for something different in the same words"
    note = f"arrows: {THRESHOLD:g} times the even share or more · pale: not its role"
    if len(heads) == 1 or NO_NAME in shown:
        finding = f"What heads look for by our rules: {', '.join(shown)}"
    if shown == [NO_NAME]:
        note = f"at least {THRESHOLD:g} times the even share"
    entropy = normalized_entropy(torch.stack([weights[head] for head in heads])).nanmean()
    headline(fig, finding, f"{note}\n{trained.label} · normalised entropy {entropy:.2f}")
    sentence = " ".join(words)
    return fig, f'{finding}: "{sentence}", an arrow for each large weight, thicker for more weight.'


def draw_paths(
    ax: Axes,
    shares: Sequence[Tensor],
    words: Sequence[str],
    numbers: Mapping[str, Tensor],
    *,
    marked: int,
) -> None:
    """Draw words in a row, and over them a storey of lines for each of `shares`, (T, T) each.

    The lowest storey comes first. Entry (i, j) is the share that word i above hands down to word
    j below: the larger, the thicker its line. What stays where it is is grey, and a line of less
    than 0.01 is not drawn. Below the words stand `numbers`, name -> (T,); those at `marked` are
    bold.
    """
    for storey, share in enumerate(shares):
        ends = [storey + 0.97, storey + 0.03]
        for i, j in (share > 0.01).nonzero().tolist():
            style = {"color": GREY if i == j else BLUE, "linewidth": 22 * share[i, j].item()}
            ax.plot([i, j], ends, solid_capstyle="butt", alpha=0.75, **style)
        for i, leaving in enumerate(share.sum(dim=1).tolist()):  # (T, T) -> (T,)
            if leaving > 0:
                ax.plot(i, storey + 1, "o", color=INK, markersize=4 + 8 * leaving, zorder=3)
        ax.text(-0.6, storey + 1, f"after layer {storey}", ha="right", va="center", color=QUIET)
    size = 90 / len(words)
    for x, word in enumerate(words):
        style = {"ha": "center", "va": "top", "weight": "bold" if x == marked else "normal"}
        ax.text(x, -0.08, word, fontsize=min(15, size), **style)
        for row, values in enumerate(numbers.values()):
            below = -0.5 - 0.25 * row
            ax.text(x, below, f"{values[x]:.2f}", fontsize=min(11, size), **style)
    for row, name in enumerate(numbers):
        ax.text(-0.6, -0.5 - 0.25 * row, name, ha="right", va="top", color=QUIET)
    bottom = -0.55 - 0.25 * len(numbers)
    ax.set(xlim=(-0.6, len(words) - 0.4), ylim=(bottom, len(shares) + 0.12))
    ax.axis("off")


def draw_rollout(trained: Trained, words: list[str]) -> tuple[Figure, str]:
    """Where a hidden word takes what it knows from, through all layers; and a caption."""
    hidden = choose_word(words)
    seen = hide(words, hidden)
    weights = weights_on_sentence(trained.model, seen)  # (L, H, T, T)
    # Rollout of one layer alone is half of its mean and half of each word itself.
    shares = shares_on_paths([attention_rollout([layer]) for layer in weights], hidden)
    by_rollout = shares[0].sum(dim=0)  # (T, T) -> (T,)
    last = weights[-1].mean(dim=0)[hidden]  # (H, T, T) -> (T,)
    gains = by_rollout - last
    gains[hidden] = -1  # the residual half gives it more in any case
    gainer = gains.argmax().item()  # the word of which rollout says most that a layer does not
    fig, ax = plt.subplots(figsize=(WIDE, 4), layout="constrained")
    numbers = {"by rollout": by_rollout, f"weight in layer {len(weights) - 1}": last}
    draw_paths(ax, shares, as_shown(seen), numbers, marked=gainer)
    ax.text(hidden, len(shares) + 0.1, "the hidden word", ha="center", va="bottom")
    finding = f'The last layer takes {last[gainer]:.2f} from "{words[gainer]}"'
    finding += f"; by rollout {by_rollout[gainer]:.2f} comes from there"
    entropy = normalized_entropy(weights).nanmean()
    note = "grey: what a word keeps of itself, half or more"
    headline(fig, finding, f"{note}\n{trained.label} · normalised entropy {entropy:.2f}")
    sentence = " ".join(as_shown(seen))
    return fig, f'{finding}. Shown is the hidden word of "{sentence}", through all layers.'


def shares_drawn(trained: Trained, words: list[str]) -> tuple[float, float]:
    """Of all arrows of a sentence the shares above FIXED and above THRESHOLD even shares."""
    weights = weights_on_sentence(trained.model, words)
    fixed = weights > FIXED
    relative = charts.large(weights, THRESHOLD)
    return fixed.double().mean().item(), relative.double().mean().item()


USES = (
    "--sentence --sentences --seed --quick "
    "--device --retrain --d-model --heads --layers --output-dir --no-pictures --format"
)


@cli.script
def main(argv: list[str] | None = None) -> str:
    parser = cli.parser(__doc__, USES)
    parser.add_argument("--head", metavar="LAYER.HEAD", help="only this, as 1.0: layer 1 head 0")
    options = cli.parse(parser, argv)
    trained = load_multi_head_model(options)
    heads = []
    for layer, head in np.ndindex(trained.recipe.num_layers, trained.recipe.num_heads):
        if options.head in (None, f"{layer}.{head}"):
            heads.append((layer, head))
    if not heads:
        parser.error(f"--head counts from 0, and the last is {layer}.{head}: got {options.head}")
    fig, caption = draw_arrows(trained, options.words, heads)
    save_plot(options, "phase3/attention_flow", fig, caption)
    fig, caption = draw_rollout(trained, options.words)
    save_plot(options, "phase3/attention_rollout", fig, caption)
    untrained = untrained_model(trained.recipe, MultiHeadAttention)
    for model in (trained, untrained):
        fixed, relative = shares_drawn(model, options.words)
        above = f"{relative:.0%} above {THRESHOLD:g} even shares"
        print(f"   {model.label}: {fixed:.0%} of the arrows are above {FIXED}, {above}")
    return (
        "The pictures show where each word looks. In an untrained model, which does not choose, "
        f"{fixed:.0%} of all arrows are above a fixed {FIXED}, and {relative:.0%} are above "
        f"{THRESHOLD:g} even shares"
    )


if __name__ == "__main__":
    cli.run(main)
