"""What does each head do, by rules that a head can fail?

It is easy to look at a heatmap and call it "the previous-word head". Here a head gets a name only by the rules of
shared/grammar/roles.py, on one half of the held-out sentences, and keeps it if it passes on the other half. Does a head
follow a relation, or does every word look where the related one looks? The words of the same sentence without the
relation are asked, too: of those heads that beat the two usual baselines, the one where most of them look at its word.
"""

import itertools

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from phase2_multi_head.models import load_multi_head_model
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from shared.evidence.claims import Claim, Numbers
from shared.experiment import Experiment, Results, Run
from shared.grammar.roles import MARGIN, NO_NAME, Halves, halves_of, margins, names_of, rules
from shared.grammar.scores import DIRECTIONS, relation_name
from shared.toy_language import RELATIONS
from shared.visualization_utils import GREY, HIDDEN, INK, QUIET, role_color

COLUMN, STATISTICS = 1.2, {"normalised entropy": 7.4, "distance": 8.3}  # a relation is so wide; where they stand


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
    """Heads down, relations across: how often a head is right, and a mark how often it must be."""
    halves, names = results.shown["halves"], results.shown["names"]
    scores, base = halves[1]
    fig, ax = plt.subplots(figsize=(9, 1.8 + 0.48 * len(names)), layout="constrained")
    for row, (place, name) in enumerate(zip(scores.heads, names, strict=True)):
        rule, passed = rules(scores, base, *place)[1], passing(halves, *place)
        for column, relation in enumerate(RELATIONS):
            ways = {relation_name(relation, direction) for direction in DIRECTIONS}
            share, needed = max((rule[way] for way in ways), key=lambda way: way[0] - way[1])  # the better direction
            ax.barh(row, 1, 0.6, left=COLUMN * column, color=HIDDEN)
            ax.barh(row, share, 0.6, left=COLUMN * column, color=role_color(relation) if passed & ways else GREY)
            ax.plot([COLUMN * column + needed] * 2, [row - 0.38, row + 0.38], color=INK, linewidth=2)
        weight = "normal" if name == NO_NAME else "bold"
        ax.text(4.95, row, name, va="center", fontsize=11, color=role_color(name), weight=weight)
        for x, statistic in zip(STATISTICS.values(), STATISTICS, strict=True):
            ax.text(x, row, f"{scores.statistics[statistic][place]:.2f}", va="center", ha="center", fontsize=11)
    ax.set_yticks(range(len(names)), [f"layer {layer} head {head}" for layer, head in scores.heads])
    middles = [COLUMN * column + 0.5 for column in range(len(RELATIONS))]
    ax.set_xticks(middles, [relation.replace("-", "\n") for relation in RELATIONS])
    ax.tick_params(length=0, labelsize=11)
    ax.xaxis.tick_top()
    even = "entropy,\n1: even", f"words away,\neven: {base.even['distance']:.1f}"
    for x, text in zip(STATISTICS.values(), even, strict=True):
        ax.text(x, -0.7, text, va="bottom", ha="center", color=QUIET)
    ax.set(xlim=(-0.05, 8.8), ylim=(len(names) - 0.5, -0.5))
    ax.spines[:].set_visible(False)
    return fig


main = Experiment(
    measure,
    [CLAIM],
    picture,
    title="{n[heads that follow a relation]:.0f} of {n[all heads]:.0f} heads follow a relation of the grammar",
    note="{shown[model]} · bar, 0 to 1: share of the related words whose largest weight is on the right word\n"
    "mark: needed, 0.10 above the best fixed offset and untrained head, and twice the share of all other words",
    answer="{n[heads that follow a relation]:.0f} of {n[all heads]:.0f} heads follow a relation; in the strongest "
    "column {n[related words that find theirs]:.0%} of the related words find theirs, and of all others "
    "{n[other words that look there]:.0%} look there, too",
)

if __name__ == "__main__":
    main.run()
