"""Is a weight an explanation?

A weight says how much of a value is taken. It does not say how large the value is, or whether it had to be so. Two
experiments on the trained heads of phase 2; other_weights.py of phase 1 explains the ideas on a single head.

1. Norm-weighted attention (Kobayashi et al. 2020). What word j adds to word i through head h is a vector, and its
   length is a_ij ||(x_j W_V^h + b_V^h) W_O^h||. A large weight on a short value adds little: the head looks, and takes
   almost nothing; where the value is zero, nothing. How often is the heaviest word the one that adds most?
2. Other weights (Brunner et al. 2020). What a head hands on for word i is a mean of values, sum over j of a_ij v_j. The
   values have d_v = 16 numbers. In a text of 18 words or more, a row of weights can change in some directions without
   any effect. Here all rows of all heads of both layers are exchanged at once, and the model is asked for its answer.

    python phase3_visualization/explanation/not_an_explanation.py

Writes not_an_explanation.png to visualizations/plots/phase3/: the row in which the weight misleads most.
"""

from dataclasses import dataclass

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor

from phase1_single_head.reading.other_weights import (
    Reading,
    alternative_weights,
    contributions,
    largest_agrees,
    total_variation,
)
from phase2_multi_head.models import load_multi_head_model
from phase2_multi_head.multi_head_attention import MultiHeadAttention, split_heads
from phase2_multi_head.pruning.head_importance import Head
from shared import cli, training
from shared.evidence import findings
from shared.evidence.claims import EXPERIMENT, Above, Claim, measures
from shared.head_statistics import added_by_heads
from shared.toy_language import MAX_LENGTH, encode
from shared.toy_model import ToyTransformer, in_double
from shared.training import Trained
from shared.visualization_utils import GREY, INK, QUIET, headline, label_ends, save_plot, token_labels

NUM_READ = 100  # held-out sentences
CLEAR = 0.5  # a weight above this is more than all others together
ADDS_MOST, CLEARLY = "the heaviest word adds most", f"the same where its weight is above {CLEAR}"


def added_by_words(attention: MultiHeadAttention, x: Tensor) -> Tensor:
    """(x_j W_V^h + b_V^h) W_O^h, what head h adds for a weight of 1 on word j: x (1, T, d_model) -> (H, T, d_model).

    attention(x) is the sum of these over heads and words, each times its weight, plus the bias of w_o.
    """
    value = split_heads(attention.w_v(x), attention.num_heads)[0]  # (1, T, d_model) -> (H, T, d_v)
    return added_by_heads(attention, value)  # (H, T, d_v) -> (H, T, d_model)


@torch.no_grad()
def read_heads(trained: Trained, sentences: list[list[str]]) -> dict[Head, list[Reading]]:
    """What each head computes on each sentence, in float64; value (T, d_model) is what added_by_words says."""
    model = in_double(trained.model)
    readings: dict[Head, list[Reading]] = {}
    for words in sentences:
        x = model.embed(torch.tensor([encode(words)]))
        for layer, block in enumerate(model.blocks):
            attention, normed = block.attention, block.attention_norm(x)
            query, key = (split_heads(w(normed), attention.num_heads)[0] for w in (attention.w_q, attention.w_k))
            added = added_by_words(attention, normed)
            x, weights = block(x)
            for head in range(attention.num_heads):
                reading = Reading(words, query[head], key[head], added[head], weights[0, head])
                readings.setdefault((layer, head), []).append(reading)
    return readings


@dataclass(frozen=True)
class Row:
    """One row of one head: the query i and, for each word j, its weight and its share of the contributions."""

    head: Head
    words: list[str]
    i: int
    weights: Tensor
    shares: Tensor

    @property
    def heaviest(self) -> int:
        return int(self.weights.argmax())

    @property
    def gap(self) -> float:
        """How much more weight the heaviest word has than its share of what is added."""
        return (self.weights - self.shares)[self.heaviest].item()


def shares_added(reading: Reading) -> Tensor:
    """Norm-weighted attention, each row divided by its sum -> (T, T). Lengths are summed; vectors may cancel."""
    added = contributions(reading.weights, reading.value)
    return added / added.sum(dim=-1, keepdim=True)


def rows_of(readings: dict[Head, list[Reading]]) -> list[Row]:
    return [
        Row(head, reading.words, i, weights, shares)
        for head, of_head in readings.items()
        for reading in of_head
        for i, (weights, shares) in enumerate(zip(reading.weights, shares_added(reading), strict=True))
    ]


def agreement(readings: list[Reading], above: float = 0.0) -> float:
    """The share of rows in which the heaviest word is the one that adds most.

    above: only of the rows in which the heaviest word has more than this weight; 0 if there is none.
    """
    asked = torch.cat([reading.weights.amax(dim=-1) > above for reading in readings])
    agrees = torch.cat([largest_agrees(reading) for reading in readings])
    return ((asked & agrees).sum() / asked.sum().clamp(min=1)).item()


def widest_gap(readings: dict[Head, list[Reading]]) -> Row:
    """The row in which the heaviest word adds least beside its weight."""
    return max(rows_of(readings), key=lambda row: row.gap)


@measures(
    Claim(
        id="norm-weights",
        text="Attention weights show directly which words influence which: the heaviest word is the one that adds most",
        kind=EXPERIMENT,
        source="course notes, Why Visualization Matters; measured as in Kobayashi et al. 2020",
        rule="in 0.95 of the rows of all heads together",
        holds=Above(lambda n: n[ADDS_MOST], 0.95),
        only_if=lambda n: n[CLEARLY] > 0.95,
        condition="the word has more than half of the weight",
        oracle={ADDS_MOST: 1.0, CLEARLY: 1.0},
        null={ADDS_MOST: 0.3, CLEARLY: 0.6},
        unit="share of held-out rows; what a word adds is its weight × the length of its value after W_O",
        headline=True,
    )
)
def weight_and_contribution(readings: dict[Head, list[Reading]]) -> dict[str, float | list[float]]:
    """How often the heaviest word is the one that adds most, and the row in which it is so least."""
    everywhere = [reading for of_head in readings.values() for reading in of_head]
    row = widest_gap(readings)
    return {
        ADDS_MOST: agreement(everywhere),
        CLEARLY: agreement(everywhere, CLEAR),
        "by head": [agreement(of_head) for of_head in readings.values()],
        "widest gap, weight": row.weights[row.heaviest].item(),
        "widest gap, share of what is added": row.shares[row.heaviest].item(),
    }


def joined(sentences: list[list[str]], shortest: int) -> list[list[str]]:
    """Each sentence with its successor, where both together have `shortest` to MAX_LENGTH words."""
    pairs = [first + second for first, second in zip(sentences[::2], sentences[1::2], strict=False)]
    return [words for words in pairs if shortest <= len(words) <= MAX_LENGTH]


def exchanged(weights: Tensor, added: Tensor) -> Tensor:
    """Every row replaced by another one with the same output, where there is one: (H, T, T), (H, T, d) -> (H, T, T)."""
    rows = [
        row if (other := alternative_weights(row, value)) is None else other
        for matrix, value in zip(weights, added, strict=True)
        for row in matrix
    ]
    return torch.stack(rows).view_as(weights)


@torch.no_grad()
def run_exchanged(model: ToyTransformer, words: list[str]) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Run the model on other weights -> logits (T, V), and per layer the weights it would use and those it did."""
    x = model.embed(torch.tensor([encode(words)]))
    own, other = [], []
    for block in model.blocks:
        normed = block.attention_norm(x)
        added = added_by_words(block.attention, normed)
        own.append(block.attention(normed)[1][0])  # (1, H, T, T) -> (H, T, T)
        other.append(exchanged(own[-1], added))
        x = x + (other[-1] @ added).sum(dim=0) + block.attention.w_o.bias  # (H, T, d_model) -> (T, d_model)
        x = x + block.feed_forward(block.feed_forward_norm(x))
    logits = model.output_norm(x) @ model.embedding.weight.T + model.output_bias  # (1, T, d_model) -> (1, T, V)
    return logits[0], own, other


def exchange_all(model: ToyTransformer, texts: list[list[str]]) -> dict[str, float]:
    """All rows of all heads on each text: how many have another row, how different it is, and what the model says."""
    moved, heaviest_changed, changes, rows = [], 0, [], 0
    for words in texts:
        logits, own, other = run_exchanged(model, words)
        with torch.no_grad():
            changes.append((model(torch.tensor([encode(words)]))[0][0] - logits).abs().max().item())
        before, after = (torch.cat(layers).flatten(0, 1) for layers in (own, other))  # L x (H, T, T) -> (L * H * T, T)
        rows += len(before)
        heaviest_changed += int((before.argmax(dim=-1) != after.argmax(dim=-1)).sum())
        moved += [total_variation(a, b) for a, b in zip(before, after, strict=True) if not torch.equal(a, b)]
    return {
        "rows": rows,
        "rows with another": len(moved),
        "weight that moves, median": torch.tensor(moved).median().item() if moved else 0.0,
        "share of rows with another heaviest word": heaviest_changed / rows,
        "largest change of a logit": max(changes),
    }


def draw(trained: Trained, row: Row) -> tuple[Figure, str]:
    """A line for each word of one row, from its weight to its share of what is added."""
    (layer, head), adds_most = row.head, int(row.shares.argmax())
    adds_less = "adds far less" if adds_most == row.heaviest else "need not be the one that adds most"
    title = f"The word with the largest weight {adds_less}"
    fig, ax = plt.subplots(figsize=(7.6, 4.6), layout="constrained")
    named, ends = {adds_most: GREY, row.heaviest: INK}, {}
    for place, (weight, share) in enumerate(zip(row.weights.tolist(), row.shares.tolist(), strict=True)):
        if place not in named:
            ax.plot((0, 1), (weight, share), "o-", color=GREY, linewidth=1, markersize=3)
            continue
        ax.plot((0, 1), (weight, share), "o-", color=named[place], linewidth=4, markersize=9, zorder=3)
        name, style = token_labels(row.words)[place], {"textcoords": "offset points", "ha": "right", "va": "center"}
        ax.annotate(f"{name}: {weight:.2f}", (0, weight), (-12, 0), fontsize=11, **style)
        ends[f"  {name}: {share:.2f}"] = (1, share, named[place])
    ax.set(xlim=(-0.32, 1.02), ylim=(-0.02, 1.1 * max(row.weights.max().item(), row.shares.max().item())))
    ax.set_xticks((0, 1), ("its share of\nthe weight", "its share of\nwhat is added"), fontsize=11)
    ax.set_yticks([])  # the numbers stand at the lines
    ax.spines["left"].set_visible(False)
    ax.tick_params(length=0, pad=8)
    where = f"“{row.i} {row.words[row.i]}” in layer {layer} head {head}"
    ax.set_title(f"the row that misleads most, of {where}:\n“{' '.join(row.words)}”", color=QUIET)
    note = (
        f"{trained.label} · share: weight × length of the value after W_O, over the sum of the row · thin: the others"
    )
    headline(fig, title, note)
    label_ends(ax, ends, size=11)
    return fig, f"{title}: layer {layer} head {head}, the row of all held-out sentences in which the two differ most."


@cli.script
def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    sentences = [list(sentence.words) for sentence in training.corpus()[1][: 20 if options.quick else NUM_READ]]
    models = [load_multi_head_model(options, seed) for seed in cli.seeds(options)]
    readings = [read_heads(trained, sentences) for trained in models]
    save_plot(options, "phase3/not_an_explanation", *draw(models[0], widest_gap(readings[0])))
    shortest = models[0].recipe.d_model // models[0].recipe.num_heads + 2
    texts = joined(sentences, shortest)[: 1 if options.quick else 2]
    if texts:
        other = exchange_all(in_double(models[0].model), texts)
        changed = other["share of rows with another heaviest word"]
        print(
            f"   texts of {shortest} words or more: {other['rows with another']} of {other['rows']} rows have another "
            f"one with the same output,\n   {changed:.0%} with another heaviest word; with all exchanged no logit "
            f"moves by more than {other['largest change of a logit']:.0e}"
        )
    else:
        print(f"   weights are not exchanged: no two sentences together have the {shortest} words that this needs")
    compared = [weight_and_contribution(of_model) for of_model in readings]
    findings.record(options, *compared)
    return f"In {1 - compared[0][ADDS_MOST]:.0%} of the rows another word adds more than the heaviest one"


if __name__ == "__main__":
    cli.run(main)
