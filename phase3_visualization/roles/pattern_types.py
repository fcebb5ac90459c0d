"""What do the usual patterns look like, and which of them do trained heads have?

Course notes list patterns that attention is said to have: a word that looks at itself, at the word
before, at the first word, at all words alike. Each is drawn once, on the same sentence. Where a
head of the trained model can show a pattern, it is the head that has it most. The others are made
by hand: for "self" the keys are ten times the queries, for "random" both are drawn, for "first
word" its score is 4, beside 0, and for "uniform" all scores are 0.
"""

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor

from phase1_single_head.self_attention import scaled_dot_product_attention
from phase2_multi_head.models import load_multi_head_model
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from shared.claims import Numbers
from shared.experiment import Experiment, Results, Run
from shared.grammar.roles import (
    COLUMN_RULES,
    Halves,
    Scores,
    halves_of,
    rules_tried,
)
from shared.grammar.scores import related_pairs
from shared.toy_model import weights_on_sentence
from shared.visualization_utils import ORANGE, QUIET, WIDE, frame_cell, plot_attention

# Pattern -> where the largest weight of a row lies, as Scores.position calls it.
PATTERNS = {"itself": 0, "previous": -1, "next": 1, "first word": "first"}
D_K = 64  # of the queries that are made by hand
DRAWN_TO = 4.0  # the score of the first word, beside 0 for all others


# ---- what trained heads do


def shares_of(scores: Scores) -> dict[str, Tensor]:
    """Returns for each pattern the share of the rows whose largest weight lies there, (L, H).

    "one word" is the fullest column.
    """
    shares = {name: scores.position[position] for name, position in PATTERNS.items()}
    columns = [scores.others[key] for key in COLUMN_RULES.values()]
    shares["one word"] = torch.stack(columns).amax(dim=0)  # (columns, L, H) -> (L, H)
    return shares


def measure(run: Run) -> Numbers:
    """Returns in which share of held-out rows the largest weight lies in a place, head by head."""
    trained = load_multi_head_model(run.options, run.seed)
    both = halves_of(trained, MultiHeadAttention)
    scores = both.scoring.scores
    shares = shares_of(scores)
    head, relation = strongest_relation(both)
    run.shown.update(trained=trained, shares=shares, related=head, relation=relation)
    run.shown["entropy"] = scores.statistics["normalised entropy"].mean().item()
    numbers = {}
    for name, share in shares.items():
        for layer, head in scores.heads:
            numbers[f"layer {layer} head {head}, {name}"] = share[layer, head].item()
        numbers[f"highest, {name}"] = share.max().item()
    return numbers


# ---- the picture


def best_of(shares: Tensor) -> tuple[int, int]:
    """Returns (layer, head) of the largest number in (L, H)."""
    return divmod(int(shares.argmax()), shares.size(1))


def strongest_relation(both: Halves) -> tuple[tuple[int, int], str]:
    """Returns (layer, head) that passes a relation by most, and the name of the relation.

    If no head passes, it is the one that misses by least.
    """
    best_head, best_rule = None, None
    for head in both.scoring.scores.heads:
        for tried in rules_tried(both, *head):
            if tried.kind != "relation":
                continue
            if best_rule is None or tried.worse.margin > best_rule.margin:
                best_head, best_rule = head, tried.worse
    return best_head, best_rule.name


def made_patterns(length: int, seed: int) -> dict[str, Tensor]:
    """Returns patterns made by hand, (T, T) each."""
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(length, D_K, generator=generator)
    _, alike = scaled_dot_product_attention(query, 10 * query, query)
    query, key = torch.randn(2, length, D_K, generator=generator)
    _, unrelated = scaled_dot_product_attention(query, key, key)
    scores = torch.zeros(length, length)
    scores[:, 0] = DRAWN_TO
    first = scores.softmax(dim=-1)
    even = torch.zeros(length, length).softmax(dim=-1)
    return {"self": alike, "first word": first, "random": unrelated, "uniform": even}


def trained_patterns(results: Results) -> dict[str, tuple[Tensor, set[tuple[int, int]]]]:
    """Returns the trained head that has each pattern most, and which cells make the pattern."""
    words, shown = results.options.words, results.shown
    weights, shares = weights_on_sentence(shown["trained"].model, words), shown["shares"]
    places = range(len(words))
    column = weights[best_of(shares["one word"])]
    fullest = int(column.sum(dim=0).argmax())  # (T, T) -> (T,) -> ()
    return {
        "previous": (weights[best_of(shares["previous"])], {(i, i - 1) for i in places[1:]}),
        "next": (weights[best_of(shares["next"])], {(i, i + 1) for i in places[:-1]}),
        "column": (column, {(i, fullest) for i in places}),
        "relation": (weights[shown["related"]], related_pairs(shown["relation"], words)),
    }


def picture(results: Results) -> Figure:
    """Draws above what is made by hand, below trained heads."""
    words = results.options.words
    made = made_patterns(len(words), results.shown["trained"].recipe.seed)
    rows = {
        "made by hand": {name: (weights, set()) for name, weights in made.items()},
        "trained heads": trained_patterns(results),
    }
    fig = plt.figure(figsize=(WIDE, 5.7), layout="constrained")
    for part, (origin, patterns) in zip(fig.subfigures(len(rows)), rows.items(), strict=True):
        part.suptitle(origin, fontsize=11, color=QUIET)
        axes = part.subplots(1, len(patterns))
        for ax, (name, (weights, cells)) in zip(axes, patterns.items(), strict=True):
            plot_attention(ax, weights, words, annotate=False, labels=False)
            ax.tick_params(labelsize=min(10, 60 / len(words)))
            plt.setp(ax.get_xticklabels(), rotation=90, ha="center", rotation_mode="default")
            if ax is not axes[0]:
                ax.set_yticks([])
            ax.set_title(name, weight="bold", fontsize=10)
            for query, key in cells:
                frame_cell(ax, query, key, ORANGE, linewidth=2)
    return fig


main = Experiment(
    measure,
    picture=picture,
    title="Four patterns made by hand, and four that training makes",
    note="a row is the word that looks, a column what it looks at\n"
    "framed: the pattern (relation: {shown[relation]})\n"
    "{shown[trained].label} · normalised entropy {shown[entropy]:.2f}",
    answer="The picture shows each of them. The trained head that looks most at the word before "
    "does so in {n[highest, previous]:.0%} of its rows, and the one that looks most at the word "
    "itself in {n[highest, itself]:.0%}",
    uses="--sentence --sentences --seed --seeds --quick "
    "--device --retrain --d-model --heads --layers",
)

if __name__ == "__main__":
    main.run()
