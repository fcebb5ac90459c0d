"""Is the word with the largest weight the one that adds most?

A weight says how much of a value is taken, not how large the value is. What word j adds to word i
through head h is a vector, and its length is a_ij ||(x_j W_V^h + b_V^h) W_O^h||: norm-weighted
attention (Kobayashi et al. 2020). A large weight on a short value adds little: the head looks, and
takes almost nothing. We ask this of every row of every head of the trained model of phase 2, all
heads together, and then of those rows alone in which one word has more than half of the weight. The
picture shows the row in which the weight misleads most.
"""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from phase2_multi_head.models import load_multi_head_model
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from shared.claims import Claim, Numbers
from shared.experiment import Experiment, Results, Run
from shared.head_statistics import value_lengths
from shared.toy_language import encode
from shared.toy_model import ToyTransformer
from shared.training.objectives import corpus
from shared.visualization_utils import GREY, INK, QUIET, WIDE, label_ends, token_labels

SENTENCES, QUICK_SENTENCES = 100, 20  # held-out
CLEAR = 0.5  # a weight above this is more than all others together


def shares_added(attention: MultiHeadAttention, x: Tensor, weights: Tensor) -> Tensor:
    """Returns norm-weighted attention, each row divided by its sum -> (H, T, T).

    x: (1, T, d_model). weights: (1, H, T, T).
    """
    lengths = value_lengths(attention, x)[0]  # (1, T, d_model) -> (H, T)
    added = weights[0] * lengths[:, None]
    return added / added.sum(dim=-1, keepdim=True)


@torch.no_grad()
def weights_and_shares(model: ToyTransformer, words: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Returns the weights of all heads, and the shares that each word adds, (L, H, T, T) each."""
    x = model.embed(torch.tensor([encode(words)]))
    all_weights, shares = [], []
    for block in model.blocks:
        normed = block.attention_norm(x)
        x, weights = block(x)
        all_weights.append(weights[0])
        shares.append(shares_added(block.attention, normed, weights))
    return torch.stack(all_weights), torch.stack(shares)


@dataclass(frozen=True)
class Row:
    """One row of one head: the weights and the shares that its words add, (T,) each."""

    words: Sequence[str]
    where: str
    weights: Tensor
    shares: Tensor


def measure(run: Run) -> Numbers:
    """Returns the share of held-out rows, all heads together."""
    trained = load_multi_head_model(run.options, run.seed)
    model = trained.model.cpu()
    _, held_out = corpus()
    misleads, clear = [], []
    widest = 0.0
    for sentence in held_out[: QUICK_SENTENCES if run.options.quick else SENTENCES]:
        weights, shares = weights_and_shares(model, sentence.words)
        largest, heaviest = weights.max(dim=-1)  # (L, H, T, T) -> (L, H, T)
        misleads.append((heaviest != shares.argmax(dim=-1)).flatten())
        clear.append((largest > CLEAR).flatten())
        gaps = largest - shares.gather(-1, heaviest[..., None])[..., 0]
        if gaps.max() > widest:
            widest = gaps.max()
            layer, head, query = np.unravel_index(int(gaps.argmax()), gaps.shape)
            where = f"head {layer}.{head}, the row of “{query} {sentence.words[query]}”"
            row_weights, row_shares = weights[layer, head, query], shares[layer, head, query]
            run.shown["row"] = Row(sentence.words, where, row_weights, row_shares)
    run.shown["model"] = trained.label
    wrong = torch.cat(misleads).double()
    clearly_wrong = wrong[torch.cat(clear)]
    share_clear = clearly_wrong.mean().item() if len(clearly_wrong) else 1.0
    return {
        "another word adds most": wrong.mean().item(),
        "another word adds most, where one has over half of the weight": share_clear,
    }


CLAIM = Claim(
    id="norm-weights",
    text="The word with the largest weight need not be the one that adds most, but with more than "
    "half of the weight it nearly always is. We asked it of two layers of four heads.",
    source="course notes, where “Why Visualization Matters” says that weights show directly what "
    "influences what; Kobayashi et al. 2020 argue against it, for BERT, and we measure as they do",
    rule="in 5 % or more of the rows of all heads together, a different word than the one with "
    "the largest weight adds most; and among the rows in which that word has more than half of "
    "the weight, this is so in at most 5 %",
    effect=lambda n: n["another word adds most"],
    at_least=0.05,
    also=lambda n: n["another word adds most, where one has over half of the weight"] <= 0.05,
    explored=10,
    oracle={"another word adds most": 0.2, "*": 0.01},
    null={"*": 0.0},
    revised="at first the rule said that the word with the largest weight adds most in 95 % of "
    "the rows, which failed",
)


def picture(results: Results) -> Figure:
    """Draws a line for each word of the row that misleads most, from its weight to its share."""
    row = results.shown["row"]
    heaviest, adds_most = int(row.weights.argmax()), int(row.shares.argmax())
    names = token_labels(row.words)
    fig, ax = plt.subplots(figsize=(WIDE, 4.6), layout="constrained")
    ends = {}
    for key, name in enumerate(names):
        weight, share = row.weights[key].item(), row.shares[key].item()
        style = {"color": INK if key == heaviest else GREY, "linewidth": 1, "markersize": 3}
        if key in (heaviest, adds_most):
            style |= {"linewidth": 4, "markersize": 9}
            ax.text(-0.03, weight, f"{name}: {weight:.2f}", fontsize=11, ha="right", va="center")
            ends[f"  {name}: {share:.2f}"] = (1, share, INK)
        ax.plot((0, 1), (weight, share), "o-", **style)
    highest = torch.cat([row.weights, row.shares]).max().item()
    ax.set(xlim=(-0.32, 1.02), ylim=(-0.02, 1.1 * highest), yticks=[])
    ax.set_xticks((0, 1), ("its share of\nthe weight", "its share of\nwhat is added"), fontsize=11)
    ax.spines["left"].set_visible(False)
    sentence = textwrap.fill(f"“{' '.join(row.words)}”", 50)
    ax.set_title(f"{row.where}:\n{sentence}", color=QUIET, fontsize=10)
    label_ends(ax, ends, size=11)
    return fig


main = Experiment(
    measure,
    [CLAIM],
    picture,
    title="The word with the largest weight\nneed not be the one that adds most",
    note="{shown[model]} · thin lines: the other words",
    answer="Counted on held-out sentences, in {n[another word adds most]:.0%} of the rows a "
    "different word adds most. Where one word has more than half of the weight, this happens in "
    "{n[another word adds most, where one has over half of the weight]:.0%}",
    uses="--seed --seeds --quick --device --retrain --d-model --heads --layers",
)

if __name__ == "__main__":
    main.run()
