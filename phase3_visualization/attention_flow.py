"""Which words does each word look at, and which weights deserve an arrow?

The words of a sentence in a row, and an arrow from each word to the words it looks at, as thick as
its weight. Only arrows above a multiple of 1/n are drawn, the weight that every word gets from a
head that does not choose. Of all heads at most four are drawn, each with another role by the rules
of shared/grammar/roles.py.

    python phase3_visualization/attention_flow.py --layer 1 --head 2

The second picture hides a word and asks where its guess comes from: each layer by itself, and both
by rollout, which follows every path down to the words.

Writes attention_flow.png and attention_rollout.png to visualizations/plots/phase3/.
"""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor

from phase1_single_head.models import choose_word, hide, most_asked, shown
from phase2_multi_head.models import load_multi_head_model
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase3_visualization.layers.rollout import shares_on_paths
from shared import charts, cli, training
from shared.attention_utils import attention_rollout, normalized_entropy
from shared.grammar.roles import NO_NAME, head_names
from shared.grammar.scores import relation_name, with_relations
from shared.toy_language import TOY_SENTENCE
from shared.toy_model import weights_of
from shared.training import Trained
from shared.visualization_utils import BLUE, headline, role_color, save_plot

THRESHOLD, FIXED = 2.0, 0.15  # times the even share; and what the same for every length would be
MOST_SHOWN, WIDTH = 4, 8.6  # heads, where the options pick none; inches


def pairs_of(name: str, words: Sequence[str]) -> set[tuple[int, int]]:
    """(query, key) of the words that the role of this name relates; none for a position, and
    without a name.
    """
    for relation, pairs in with_relations(words).relations.items():
        if name == relation_name(relation, "forward"):
            return set(pairs)
        if name == relation_name(relation, "backward"):
            return {(j, i) for i, j in pairs}
    return set()


def one_of_each(names: list[list[str]], words: Sequence[str]) -> list[tuple[int, int]]:
    """(layer, head) of at most MOST_SHOWN heads, each with another role; names: [layer][head].

    Roles that relate words of this sentence come first. Where no head has a role, simply the first
    heads.
    """
    places = [(layer, head) for layer, row in enumerate(names) for head in range(len(row))]
    found = {names[layer][head]: (layer, head) for layer, head in places}
    found.pop(NO_NAME, None)
    roles = sorted(found, key=lambda name: not pairs_of(name, words))[:MOST_SHOWN]
    return sorted(found[name] for name in roles) or places[:MOST_SHOWN]


def draw(trained: Trained, words: list[str], heads: list[tuple[int, int]]) -> tuple[Figure, str]:
    """A row for each head; of all heads only one of each role."""
    weights, names = (
        weights_of(trained.model, words),
        head_names(trained, MultiHeadAttention),
    )  # (L, H, T, T)
    if len(heads) > MOST_SHOWN:
        heads = one_of_each(names, words)
    height = (0.7 + 0.05 * len(words)) * WIDTH / len(words) + 0.1
    fig, axes = plt.subplots(
        len(heads), figsize=(WIDTH, height * len(heads) + 1), squeeze=False, layout="constrained"
    )
    for (layer, head), ax in zip(heads, axes.flat, strict=True):
        name, pairs = names[layer][head], pairs_of(names[layer][head], words)
        charts.arcs(
            ax,
            weights[layer, head],
            words,
            role_color(name),
            threshold=THRESHOLD,
            told=pairs or None,
        )
        said = ", ".join(
            f"{words[i]} → {words[j]} {weights[layer, head, i, j]:.2f}" for i, j in sorted(pairs)
        )
        ax.set_title(
            f"{name} ({layer}.{head})   {said}",
            color=role_color(name),
            weight="bold",
            loc="left",
            fontsize=13,
        )
    title = "Each head looks for something else in the same words"
    entropy = normalized_entropy(torch.stack([weights[place] for place in heads])).nanmean().item()
    note = (
        f"{trained.label} · normalised entropy {entropy:.2f} · arrows point to where a word looks\n"
        f"drawn: what gave the head its name (layer.head), above {THRESHOLD:g} times the even share of 1/{len(words)}"
    )
    headline(fig, title, note)
    return (
        fig,
        f'{title}: "{" ".join(words)}", an arrow for each large weight, thicker for more weight.',
    )


def storeys(layers: Sequence[Tensor]) -> dict[str, list[Tensor]]:
    """Panel of the picture -> what is handed down in it, (T, T) for each layer; layers (H, T, T)
    each.
    """
    panels = {}
    for number, layer in enumerate(layers):
        panels[f"Layer {number}, the mean of its heads"] = [
            layer.mean(dim=0)
        ]  # (H, T, T) -> (T, T)
    # Rollout of one layer alone is half of its mean and half of each word itself.
    panels["Rollout: through all layers, and half of each word stays"] = [
        attention_rollout([one]) for one in layers
    ]
    return panels


def draw_rollout(trained: Trained, words: list[str]) -> tuple[Figure, str]:
    """Where a hidden word takes what it knows from: a row for each layer, heads averaged, and one
    for all together.
    """
    hidden = choose_word(words)
    seen = hide(words, hidden)
    weights = weights_of(trained.model, seen)  # (L, H, T, T)
    panels = storeys(list(weights))
    heights = [len(steps) + 0.9 for steps in panels.values()]
    size = (WIDTH, 1.1 + sum(heights))
    fig, axes = plt.subplots(len(panels), figsize=size, height_ratios=heights, layout="constrained")
    most = []  # the other word that the most comes from, panel by panel
    for ax, (name, steps) in zip(axes, panels.items(), strict=True):
        shares = shares_on_paths(steps, hidden)
        others = most_asked(shares[0].sum(dim=0), hidden)  # (T, T) -> (T,)
        most.append(others[0] if others else hidden)
        charts.shares_down(ax, shares, shown(seen), BLUE, marked=most[-1])
        ax.set_title(name, loc="left", fontsize=13)
    *_, last, rollout = most
    by_rollout = "from there, too" if rollout == last else f'from "{words[rollout]}"'
    title = f'The last layer looks most at "{words[last]}"; by rollout most comes {by_rollout}'
    entropy = normalized_entropy(weights).nanmean().item()
    note = (
        f"{trained.label} · normalised entropy {entropy:.2f} · lines go down from the hidden word to where it looks\n"
        "grey: stays in its place · bold: the most, the hidden word itself aside"
    )
    headline(fig, title, note)
    return (
        fig,
        f'{title}: the hidden word of "{" ".join(shown(seen))}", layer by layer and through all layers.',
    )


def shares_drawn(trained: Trained) -> list[float]:
    """Of all arrows of the toy sentence: the share above FIXED, and the share above THRESHOLD times
    the even share.
    """
    weights = weights_of(trained.model, TOY_SENTENCE.split())
    return [
        drawn.double().mean().item()
        for drawn in (weights > FIXED, charts.large(weights, THRESHOLD))
    ]


@cli.script
def main(argv: list[str] | None = None) -> str:
    parser = cli.parser(__doc__)
    parser.add_argument("--layer", type=int, help="only this layer, counted from 0 (default: all)")
    parser.add_argument("--head", type=int, help="only this head, counted from 0 (default: all)")
    options = cli.parse(parser, argv)
    trained = load_multi_head_model(options)
    heads = cli.chosen_heads(parser, options, trained.recipe.num_layers, trained.recipe.num_heads)
    save_plot(options, "phase3/attention_flow", *draw(trained, options.words, heads))
    save_plot(options, "phase3/attention_rollout", *draw_rollout(trained, options.words))
    untrained = training.untrained(trained.recipe, MultiHeadAttention)
    drawn = {
        name: shares_drawn(each) for name, each in (("untrained", untrained), ("trained", trained))
    }
    for name, (fixed, even) in drawn.items():
        print(
            f"   {name}: {fixed:.0%} of the arrows above {FIXED}; {even:.0%} drawn, above {THRESHOLD:g} even shares"
        )
    return f"Of an untrained model's arrows {drawn['untrained'][0]:.0%} lie above {FIXED}"


if __name__ == "__main__":
    cli.run(main)
