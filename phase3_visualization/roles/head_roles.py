"""What does each head do, by rules that a head can fail?

It is easy to look at a heatmap and call it "the previous-word head". Here a head gets a name only
by the rules of shared/grammar/roles.py, which it must pass on both halves of the held-out
sentences. Does a head follow a relation, or does every word look where the related one looks? We
ask the words of the same sentence that do not have the relation, too. Of the heads that beat the
two usual baselines we take the one where most of these other words look at the same word.
"""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from phase2_multi_head.models import load_multi_head_model
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from shared.claims import Claim, Numbers
from shared.experiment import Experiment, Results, Run
from shared.grammar.roles import (
    MARGIN,
    NO_NAME,
    Halves,
    Key,
    halves_of,
    nearest_rule,
    rules_tried,
)
from shared.visualization_utils import HIDDEN, INK, QUIET, WIDE, readable, role_color


def passing(halves: Halves, layer: int, head: int) -> set[str]:
    """Returns the relations, by direction, that a head follows on both halves."""
    tried = rules_tried(halves, layer, head)
    return {rule.name for rule in tried if rule.kind == "relation" and rule.passed}


def beats_baselines(halves: Halves, key: Key, head: tuple[int, int]) -> bool:
    """Returns whether a head beats best fixed offset and best untrained head, on both halves."""
    for half in (halves.naming, halves.scoring):
        if half.scores.relation[key][head] < half.baselines.needed_for_relation(key):
            return False
    return True


def strongest_column(halves: Halves) -> Numbers:
    """Returns, of the heads that beat the baselines, the one where most other words agree.

    It is chosen on one half of the sentences; the shares are those of the other half. They are 0 if
    no head beats the baselines.
    """
    naming, scoring = halves.naming.scores, halves.scoring.scores
    most = -1.0
    shares = {"related words that find theirs": 0.0, "other words that look there": 0.0}
    for key in naming.relation:
        for head in naming.heads:
            by_others = naming.others[key][head].item()
            if by_others > most and beats_baselines(halves, key, head):
                most = by_others
                shares["related words that find theirs"] = scoring.relation[key][head].item()
                shares["other words that look there"] = scoring.others[key][head].item()
    return shares


def measure(run: Run) -> Numbers:
    """Heads that follow a relation, beside all heads; then the shares of strongest_column."""
    trained = load_multi_head_model(run.options, run.seed)
    halves = halves_of(trained, MultiHeadAttention)
    run.shown.update(model=trained.label, halves=halves)
    heads = halves.scoring.scores.heads
    following = [head for head in heads if passing(halves, *head)]
    numbers = {"all heads": len(heads), "heads that follow a relation": len(following)}
    return numbers | strongest_column(halves)


CLAIM = Claim(
    id="column-head",
    text="Some head beats the usual baselines in a relation, although half of the words without "
    "the relation look at the same word, too. On a map that is a dark column. The baselines are "
    "the best fixed offset and the best untrained head. We asked it of two layers of four heads.",
    source="our own question; the baselines are those of Voita et al. 2019 and Clark et al. 2019",
    rule=f"there is a head, chosen on other sentences, that beats both baselines by {MARGIN}, and "
    "half or more of the words without the relation have their largest weight on the word that "
    "the related one should find",
    effect=lambda n: n["other words that look there"],
    at_least=0.5,
    explored=10,
    oracle={"*words that *": 0.9},
    null={"related words that find theirs": 0.9, "other words that look there": 0.1},
    revised="the rule was written after a look at five of these seeds",
)


def picture(results: Results) -> Figure:
    """Draws a bar for each head: how often it does what it is named after, or comes nearest to."""
    halves = results.shown["halves"]
    heads = halves.scoring.scores.heads
    fig, ax = plt.subplots(figsize=(WIDE, 1.6 + 0.4 * len(heads)), layout="constrained")
    names, labels = [], []
    for row, (layer, head) in enumerate(heads):
        nearest = nearest_rule(halves, layer, head)
        rule = nearest.worse
        name = rule.name if nearest.passed else NO_NAME
        names.append(name)
        labels.append(f"{name}  {layer}.{head}")
        ax.barh(row, 1, 0.6, color=HIDDEN)
        ax.barh(row, rule.share, 0.6, color=role_color(name))
        if rule.needed <= 1:
            ax.plot([rule.needed] * 2, [row - 0.38, row + 0.38], color=INK, linewidth=2)
        if name == NO_NAME:
            ax.text(1.27, row, f"nearest:\n{rule.name}", va="center", color=QUIET)
        ax.text(1.03, row, f"{rule.share:.0%}", va="center")
    ax.set_yticks(range(len(heads)), labels)
    for label, name in zip(ax.get_yticklabels(), names, strict=True):
        label.set(color=readable(role_color(name)), weight="normal" if name == NO_NAME else "bold")
    ax.set(xlim=(0, 1.78), ylim=(len(heads) - 0.4, -0.6), xticks=[])
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    return fig


main = Experiment(
    measure,
    [CLAIM],
    picture,
    title="{n[heads that follow a relation]:.0f} of {n[all heads]:.0f} heads follow a relation of "
    "the grammar",
    note="bar: how often the head does this · black mark: needed for the name\n"
    "1.0: layer 1 head 0 · {shown[model]}",
    answer="By these rules {n[heads that follow a relation]:.0f} of {n[all heads]:.0f} heads "
    "follow a relation of the grammar, and the picture names them",
    uses="--seed --seeds --quick --device --retrain --d-model --heads --layers",
)

if __name__ == "__main__":
    main.run()
