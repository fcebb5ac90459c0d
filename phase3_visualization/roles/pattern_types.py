"""What do the usual patterns look like, and which of them do trained heads have?

Course notes list patterns that attention is said to have: a word that looks at itself, at the word
before, at the first word, at all words alike. Each is drawn once, on the same sentence. Where a
head of the trained model can show a pattern, it is the head that has it most, with how often its
largest weight lies there on held-out sentences. Even weights are those of a head before training.
What is made by hand, from queries and keys or from scores, says so.
"""

from dataclasses import dataclass

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from phase1_single_head.self_attention import scaled_dot_product_attention
from phase2_multi_head.models import load_multi_head_model
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from shared.attention_utils import normalized_entropy
from shared.claims import Numbers
from shared.experiment import Experiment, Results, Run
from shared.grammar.roles import (
    COLUMN_RULES,
    NO_NAME,
    Halves,
    Rule,
    Scores,
    halves_of,
    rules_tried,
)
from shared.grammar.scores import related_pairs
from shared.toy_model import weights_on_sentence
from shared.training.recipes import Trained, untrained_model
from shared.visualization_utils import QUIET, frame_cell, plot_attention, readable, role_color

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
    run.shown.update(trained=trained, halves=both)
    run.shown["entropy"] = scores.statistics["normalised entropy"].mean().item()
    numbers = {}
    for name, share in shares.items():
        for layer, head in scores.heads:
            numbers[f"layer {layer} head {head}, {name}"] = share[layer, head].item()
        numbers[f"highest, {name}"] = share.max().item()
    return numbers


# ---- the picture


@dataclass(frozen=True)
class Pattern:
    """One panel: a name, where the weights (T, T) are from, and how to read them."""

    name: str
    origin: str
    reading: str
    weights: Tensor
    role: str = NO_NAME  # gives the name its colour


def best_of(shares: Tensor) -> tuple[int, int]:
    """Returns (layer, head) of the largest number in (L, H)."""
    return divmod(int(shares.argmax()), shares.size(1))


def strongest_relation(both: Halves) -> tuple[tuple[int, int], Rule]:
    """Returns (layer, head) that passes a relation by most, and the rule on its worse half.

    If no head passes, it is the one that misses by least.
    """
    best_head, best_rule = None, None
    for head in both.scoring.scores.heads:
        for tried in rules_tried(both, *head):
            if tried.kind != "relation":
                continue
            if best_rule is None or tried.worse.margin > best_rule.margin:
                best_head, best_rule = head, tried.worse
    return best_head, best_rule


def made_patterns(words: list[str], untrained: Trained) -> list[Pattern]:
    """Patterns made by hand, and the most even head of an untrained model."""
    length = len(words)
    generator = torch.Generator().manual_seed(untrained.recipe.seed)
    query = torch.randn(length, D_K, generator=generator)
    _, alike = scaled_dot_product_attention(query, 10 * query, query)
    query, key = torch.randn(2, length, D_K, generator=generator)
    _, unrelated = scaled_dot_product_attention(query, key, key)
    scores = torch.zeros(length, length)
    scores[:, 0] = DRAWN_TO
    first = scores.softmax(dim=-1)
    before = weights_on_sentence(untrained.model, words)
    entropy = normalized_entropy(before).nanmean(dim=-1)  # (L, H, T, T) -> (L, H)
    layer, head = best_of(entropy)
    even = before[layer, head]
    return [
        Pattern("self", "by hand: key = 10 × query", "a dark diagonal", alike),
        Pattern("first word", f"by hand: score {DRAWN_TO:g}, else 0", "a dark first column", first),
        Pattern("random", "by hand: queries, keys drawn", "dark cells, no order", unrelated),
        Pattern("uniform", f"untrained head {layer}.{head}", "no dark cell at all", even),
    ]


def trained_patterns(words: list[str], trained: Trained, both: Halves) -> list[Pattern]:
    """Returns the trained head that has each pattern most, with how often it has it."""
    weights = weights_on_sentence(trained.model, words)
    scores = both.scoring.scores
    shares = shares_of(scores)

    def pattern(name: str, head: tuple[int, int], share: float, reading: str, role: str) -> Pattern:
        origin = f"trained head {head[0]}.{head[1]}: {share:.2f}"
        return Pattern(name, origin, reading, weights[head], role)

    before = best_of(shares["previous"])
    behind = best_of(shares["next"])
    column = best_of(shares["one word"])
    role = max(COLUMN_RULES, key=lambda name: scores.others[COLUMN_RULES[name]][column])
    related, rule = strongest_relation(both)
    return [
        pattern("previous", before, shares["previous"][before], "left of the diagonal", "previous"),
        pattern("next", behind, shares["next"][behind], "right of the diagonal", "next"),
        pattern("column", column, shares["one word"][column], f"one column: {role}", role),
        pattern("relation", related, rule.share, rule.name, rule.name),
    ]


def draw_panel(ax: Axes, pattern: Pattern, words: list[str]) -> None:
    """Draws one map; its name and origin above, how to read it below. Related words are framed."""
    plot_attention(ax, pattern.weights, words, annotate=False, labels=False)
    ax.set_xticks([])
    color = role_color(pattern.role)
    for query, key in related_pairs(pattern.role, words):
        frame_cell(ax, query, key, color)
    ax.set_title(pattern.name, color=readable(color), weight="bold", fontsize=12, pad=18)
    above = {"ha": "center", "va": "bottom", "transform": ax.transAxes}
    ax.text(0.5, 1.03, pattern.origin, fontsize=9, color=QUIET, **above)
    ax.set_xlabel(pattern.reading, fontsize=10)


def picture(results: Results) -> Figure:
    """Draws above what is made by hand and a head before training, below trained heads."""
    shown = results.shown
    words, trained = results.options.words, shown["trained"]
    untrained = untrained_model(trained.recipe, MultiHeadAttention)
    patterns = made_patterns(words, untrained)
    patterns += trained_patterns(words, trained, shown["halves"])
    fig, axes = plt.subplots(2, 4, figsize=(9, 5.9), layout="constrained")
    fig.get_layout_engine().set(hspace=0.06)
    for ax, pattern in zip(axes.flat, patterns, strict=True):
        draw_panel(ax, pattern, words)
    return fig


main = Experiment(
    measure,
    picture=picture,
    title="Trained heads look beside a word, at one word or at a related one;\nat itself a head "
    "looks in {n[highest, itself]:.0%} of its rows at most",
    note="{shown[trained].label} · normalised entropy {shown[entropy]:.2f} · queries down, keys "
    "across; darker: more weight\n"
    "number: how often the largest weight of a row lies there, on held-out sentences; framed: the "
    "related words",
    answer="The picture shows each of them. The trained head that looks most at the word before "
    "does so in {n[highest, previous]:.0%} of its rows, and the one that looks most at the word "
    "itself in {n[highest, itself]:.0%}",
    uses="--sentence --sentences --seed --seeds --quick "
    "--device --retrain --d-model --heads --layers",
)

if __name__ == "__main__":
    main.run()
