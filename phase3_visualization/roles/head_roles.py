"""What does each head do, by rules that a head can fail?

It is easy to look at a heatmap and call it "the previous-word head". Here a head gets a name only by the rules of
shared/grammar/roles.py, on one half of the held-out sentences, and keeps it if it passes on the other half. Does a head
follow a relation, or does every word look where the related one looks? The words of the same sentence without the
relation are asked, too: of those heads that beat the two usual baselines, the one where most of them look at its word.
"""

import itertools

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure

from phase2_multi_head.models import load_multi_head_model
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from shared.evidence.claims import Claim, Numbers
from shared.experiment import Experiment, Results, Run
from shared.grammar.roles import MARGIN, NO_NAME, Halves, halves_of, margins, names_of, rules
from shared.grammar.scores import DIRECTIONS, relation_name
from shared.toy_language import RELATIONS
from shared.visualization_utils import QUIET, plot_cells, role_color

STATISTICS = ("normalised entropy", "distance")


def passing(halves: Halves, layer: int, head: int) -> set[str]:
    """The relations, by direction, that a head follows in both halves of the sentences, whatever its name."""
    (_, naming, _), (_, scoring, _) = (margins(scores, base, layer, head) for scores, base in halves)
    return {name for name in naming if min(naming[name], scoring[name]) >= 0}


def strongest_column(halves: Halves) -> Numbers:
    """Of the heads that beat the two usual baselines in a relation, in both halves of the sentences, the one at whose
    word most others look, too: chosen on one half; shares of the other half. 0 if no head beats them."""
    (naming, _), (scoring, _) = halves
    beaten = [
        (naming.others[key][place].item(), scoring.relation[key][place].item(), scoring.others[key][place].item())
        for place in naming.heads
        for key in naming.relation
        if all(scores.relation[key][place] >= base.bar(key) + MARGIN for scores, base in halves)
    ]
    _, related, others = max(beaten, default=(0.0, 0.0, 0.0))
    return {"related words that find theirs": related, "other words that look there": others}


def measure(run: Run) -> Numbers:
    """Heads that pass, beside all heads; shares of words that look at one word, of a head chosen on the other half."""
    trained = load_multi_head_model(run.options, run.seed)
    halves = halves_of(trained, MultiHeadAttention)
    run.shown.update(model=trained.label, halves=halves, names=[*itertools.chain(*names_of(halves))])
    places = halves[0][0].heads
    return {
        "all heads": len(places),
        "heads that follow a relation": sum(bool(passing(halves, *place)) for place in places),
        **strongest_column(halves),
    }


CLAIM = Claim(
    id="column-head",
    text="In two layers of four heads some head beats the best fixed offset and the best untrained head in a relation, "
    "though half of the words without the relation look at the same word, too: a column",
    source="our question to the baselines of Voita et al. 2019 and Clark et al. 2019",
    rule=f"a head that beats both by {MARGIN}, chosen on other sentences: half or more of the words without the "
    "relation have their largest weight on the word that the related one should find",
    effect=lambda n: n["other words that look there"],
    at_least=0.5,
    oracle={"*words that *": 0.9},
    null={"related words that find theirs": 0.9, "other words that look there": 0.1},
    revised="written after a look at five seeds",
)


def picture(results: Results) -> Figure:
    """Heads down, relations across: how often a head is right, and how often it must be; framed where it passes."""
    halves, names = results.shown["halves"], results.shown["names"]
    scores, base = halves[1]
    fig, ax = plt.subplots(figsize=(9, 1.9 + 0.55 * len(names)), layout="constrained")
    shares, texts = torch.zeros(len(names), len(RELATIONS)), [[""] * len(RELATIONS) for _ in names]
    for row, (place, name) in enumerate(zip(scores.heads, names, strict=True)):
        rule, passed = rules(scores, base, *place)[1], passing(halves, *place)
        for column, relation in enumerate(RELATIONS):
            ways = [relation_name(relation, direction) for direction in DIRECTIONS]
            way = max(ways, key=lambda way: rule[way][0] - rule[way][1])  # the better direction
            shares[row, column], needed = rule[way]
            texts[row][column] = f"{rule[way][0]:.2f}\nneeds {needed:.2f}"
            if passed & set(ways):
                frame = {"edgecolor": role_color(relation), "linewidth": 3, "fill": False, "zorder": 3}
                ax.add_patch(plt.Rectangle((column + 0.03, row + 0.04), 0.94, 0.92, **frame))
        weight = "normal" if name == NO_NAME else "bold"
        ax.text(4.15, row + 0.5, name, va="center", fontsize=11, color=role_color(name), weight=weight)
        for x, statistic in zip((6.3, 7.1), STATISTICS, strict=True):
            ax.text(x, row + 0.5, f"{scores.statistics[statistic][place]:.2f}", va="center", ha="center", fontsize=11)
    rows = [f"layer {layer} head {head}" for layer, head in scores.heads]
    plot_cells(ax, shares, texts, rows, [relation.replace("-", "\n") for relation in RELATIONS])
    for x, text in ((6.3, "entropy,\n1: even"), (7.1, f"words away,\neven: {base.even['distance']:.1f}")):
        ax.text(x, -0.15, text, va="bottom", ha="center", color=QUIET)
    ax.set_xlim(0, 7.6)
    return fig


main = Experiment(
    measure,
    [CLAIM],
    picture,
    title="{n[heads that follow a relation]:.0f} of {n[all heads]:.0f} heads follow the grammar by rule",
    note="{shown[model]} · share of the words that are related whose largest weight is on the right word\n"
    "needs: 0.10 more than the best fixed offset and the best untrained head, and twice the share of all other words",
    answer="{n[heads that follow a relation]:.0f} of {n[all heads]:.0f} heads follow a relation; in the strongest "
    "column {n[related words that find theirs]:.0%} of the related words find theirs, and of all others "
    "{n[other words that look there]:.0%} look there, too",
)

if __name__ == "__main__":
    main.run()
