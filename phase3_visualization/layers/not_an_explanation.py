"""Is the word with the largest weight the one that adds most?

A weight says how much of a value is taken, not how large the value is. What word j adds to word i through head h is a
vector, and its length is a_ij ||(x_j W_V^h + b_V^h) W_O^h||: norm-weighted attention (Kobayashi et al. 2020). A large
weight on a short value adds little: the head looks, and takes almost nothing. Asked of every row of every head of the
trained model of phase 2; the picture shows the row in which the weight misleads most.
"""

from dataclasses import dataclass
from statistics import fmean as mean

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor

from phase2_multi_head.models import load_multi_head_model
from phase2_multi_head.multi_head_attention import MultiHeadAttention, split_heads
from shared import training
from shared.evidence.claims import Above, Claim, Numbers
from shared.experiment import Experiment, Results, Run
from shared.head_statistics import added_by_heads
from shared.toy_language import Sentence, encode
from shared.toy_model import ToyTransformer, in_double
from shared.visualization_utils import GREY, INK, QUIET, label_ends, token_labels

SENTENCES, QUICK_SENTENCES = 100, 20  # held-out
CLEAR = 0.5  # a weight above this is more than all others together


@dataclass(frozen=True)
class Row:
    """One row of one head: the query and, for each word, its weight and its share of what is added, (T,) each."""

    words: tuple[str, ...]
    layer: int
    head: int
    query: int
    weights: Tensor
    shares: Tensor

    @property
    def heaviest(self) -> int:
        return int(self.weights.argmax())

    @property
    def adds_most(self) -> int:
        return int(self.shares.argmax())

    @property
    def gap(self) -> float:
        """How much more weight the heaviest word has than its share of what is added."""
        return (self.weights - self.shares)[self.heaviest].item()


def shares_added(attention: MultiHeadAttention, x: Tensor, weights: Tensor) -> Tensor:
    """Norm-weighted attention, each row divided by its sum: x (1, T, d_model), weights (1, H, T, T) -> (H, T, T).

    Lengths are summed; vectors may cancel.
    """
    value = split_heads(attention.w_v(x), attention.num_heads)[0]  # (1, T, d_model) -> (H, T, d_v)
    lengths = added_by_heads(attention, value).norm(dim=-1)  # (H, T, d_v) -> (H, T, d_model) -> (H, T)
    added = weights[0] * lengths[:, None]
    return added / added.sum(dim=-1, keepdim=True)


@torch.no_grad()
def rows_of(model: ToyTransformer, sentence: Sentence) -> list[Row]:
    """Every row of every head of every layer."""
    x, rows = model.embed(torch.tensor([encode(sentence.words)])), []
    for layer, block in enumerate(model.blocks):
        normed = block.attention_norm(x)
        x, weights = block(x)
        shares = shares_added(block.attention, normed, weights)
        for head, query in torch.cartesian_prod(*map(torch.arange, shares.shape[:2])).tolist():
            rows.append(Row(sentence.words, layer, head, query, weights[0, head, query], shares[head, query]))
    return rows


def measure(run: Run) -> Numbers:
    """Share of held-out rows, all heads together; and the row in which the heaviest word adds least for its weight."""
    trained = load_multi_head_model(run.options, run.seed)
    sentences = training.corpus()[1][: QUICK_SENTENCES if run.options.quick else SENTENCES]
    model = in_double(trained.model)
    rows = [row for sentence in sentences for row in rows_of(model, sentence)]
    widest = max(rows, key=lambda row: row.gap)
    run.shown.update(model=trained.label, row=widest)
    clear = [row for row in rows if row.weights.max() > CLEAR]
    return {
        "the heaviest word adds most": mean(row.heaviest == row.adds_most for row in rows),
        "the same where its weight is above 0.5": mean(row.heaviest == row.adds_most for row in clear)
        if clear
        else 0.0,
        "widest gap, weight": widest.weights[widest.heaviest].item(),
        "widest gap, share of what is added": widest.shares[widest.heaviest].item(),
    }


CLAIM = Claim(
    id="norm-weights",
    text="Attention weights show directly which words influence which: the heaviest word is the one that adds most",
    source="course notes, Why Visualization Matters; measured as in Kobayashi et al. 2020",
    rule="in 0.95 of the rows of all heads together",
    holds=Above(lambda n: n["the heaviest word adds most"], 0.95),
    only_if=lambda n: n["the same where its weight is above 0.5"] > 0.95,
    condition="the word has more than half of the weight",
    oracle={"the *": 1.0},
    null={"the heaviest word adds most": 0.3, "the same where its weight is above 0.5": 0.6},
    headline=True,
)


def picture(results: Results) -> Figure:
    """A line for each word of one row, from its weight to its share of what is added."""
    row: Row = results.shown["row"]
    fig, ax = plt.subplots(figsize=(7.6, 4.6), layout="constrained")
    named, ends = {row.adds_most: GREY, row.heaviest: INK}, {}
    for place, (weight, share) in enumerate(zip(row.weights.tolist(), row.shares.tolist(), strict=True)):
        if place not in named:
            ax.plot((0, 1), (weight, share), "o-", color=GREY, linewidth=1, markersize=3)
            continue
        ax.plot((0, 1), (weight, share), "o-", color=named[place], linewidth=4, markersize=9, zorder=3)
        name = token_labels(row.words)[place]
        ax.text(-0.03, weight, f"{name}: {weight:.2f}", fontsize=11, ha="right", va="center")
        ends[f"  {name}: {share:.2f}"] = (1, share, named[place])
    ax.set(xlim=(-0.32, 1.02), ylim=(-0.02, 1.1 * max(row.weights.max().item(), row.shares.max().item())), yticks=[])
    ax.set_xticks((0, 1), ("its share of\nthe weight", "its share of\nwhat is added"), fontsize=11)
    ax.spines["left"].set_visible(False)
    where = f"“{row.query} {row.words[row.query]}” in layer {row.layer} head {row.head}"
    ax.set_title(f"the row that misleads most, of {where}:\n“{' '.join(row.words)}”", color=QUIET)
    label_ends(ax, ends, size=11)
    return fig


main = Experiment(
    measure,
    [CLAIM],
    picture,
    title="The word with the largest weight need not be the one that adds most",
    note="{shown[model]} · share: weight × length of the value after W_O, over the sum of the row · thin: the others",
    answer="The heaviest word adds most in {n[the heaviest word adds most]:.0%} of the rows; with more than half "
    "of the weight it does in {n[the same where its weight is above 0.5]:.0%}",
)

if __name__ == "__main__":
    main.run()
