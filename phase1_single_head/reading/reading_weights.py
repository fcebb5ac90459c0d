"""What does a row of attention weights tell about the output?

The output is a weighted mean of the values. With more words than a value has numbers, other weights give the same mean,
to the last digit (Brunner et al. 2020). And a word adds its weight times its value: a large weight on a small value
adds little. Run it to see a second row of weights for the verb of a sentence of ten words or more, with the same
output:

    python phase1_single_head/reading/reading_weights.py
    python phase1_single_head/reading/reading_weights.py --sentence "those dogs slept in a small soft bed"

Writes reading_weights.png to visualizations/plots/phase1/.
"""

import math

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from phase1_single_head.models import choose_word, load_single_head_model
from phase1_single_head.parts.soft_lookup import LONG, Reading, long_words, read, read_held_out
from shared import cli
from shared.attention_utils import normalized_entropy
from shared.training import Trained
from shared.visualization_utils import BLUE, ORANGE, QUIET, headline, save_plot, token_labels

COLORS = {"the head": BLUE, "other weights": ORANGE}
NARROW = 4  # numbers that are kept of each value, so that a sentence of ten words has more words than numbers


def change_without_effect(weights: Tensor, value: Tensor, free: Tensor) -> Tensor | None:
    """A change of the `free` (bool (T,)) weights that moves neither output nor sum -> (T,), or None if there is none.

    Such changes are the null space of [value, 1]ᵀ. It has d_v + 1 rows, so that of n free words at least n - (d_v + 1)
    directions have no effect. Among them: the one that takes most from the heaviest word that can change at all.
    """
    fixed = torch.cat([value, torch.ones_like(value[:, :1])], dim=1).T[:, free]  # (T, d_v) -> (d_v + 1, n)
    _, sizes, directions = torch.linalg.svd(fixed)
    null = directions[int((sizes > 1e-10 * sizes[0]).sum()) :]  # (n, n) -> (n - rank, n)
    projection = null.T @ null  # (n, n): a wish for change -> what of it has no effect
    can_change = projection.diagonal() > 1e-12
    if not can_change.any():
        return None
    heaviest = weights[free].masked_fill(~can_change, -1).argmax()
    change = torch.zeros_like(weights)
    change[free] = -projection[heaviest]
    return change


def alternative_weights(weights: Tensor, value: Tensor) -> Tensor | None:
    """Other weights with the same output: weights (T,), value (T, d_v), both float64 -> (T,), or None.

    From the given row along a direction without effect until some weight is 0; that one stays 0, and on along the next,
    until none is left. Then at most d_v + 1 words have weight (Carathéodory's theorem). Hidden words (weight 0) stay
    hidden. None, the weights are unique: at most d_v + 1 words, and no value among them is a mix of others.
    """
    other = weights.clone()
    while (change := change_without_effect(weights, value, other > 0)) is not None:
        steps = torch.where(change < 0, -other / change, math.inf)
        emptied = steps.argmin()
        other = (other + steps[emptied] * change).clamp(min=0)
        other[emptied] = 0
    return None if torch.equal(other, weights) else other


def total_variation(a: Tensor, b: Tensor) -> float:
    """How much weight must be moved to make one row of weights into the other, 0 to 1."""
    return (a - b).abs().sum().item() / 2


def strongest_directions(value: Tensor, number: int) -> tuple[Tensor, float]:
    """Values (T, d_v) -> (T, number): their principal components, and the share of their variation that is kept."""
    centred = value - value.mean(dim=0)
    _, sizes, directions = torch.linalg.svd(centred, full_matrices=False)
    return centred @ directions[:number].T, (sizes[:number].square().sum() / sizes.square().sum()).item()


def contributions(weights: Tensor, value: Tensor) -> Tensor:
    """Length of what each word adds to each output, |weight × value|: (T_q, T_k), (T_k, d_v) -> (T_q, T_k)."""
    return weights * value.norm(dim=-1)


def largest_agrees(reading: Reading) -> Tensor:
    """For each row: does the word with the largest weight contribute most? -> bool (T,)"""
    return contributions(reading.weights, reading.value).argmax(dim=-1) == reading.weights.argmax(dim=-1)


def draw_pairs(ax: Axes, pairs: dict[str, Tensor], labels: list[str]) -> None:
    """Two bars for each label, one above the other, in the colours of COLORS."""
    for (name, values), shift in zip(pairs.items(), (-0.2, 0.2), strict=True):
        ax.barh([j + shift for j in range(len(labels))], values.tolist(), 0.38, color=COLORS[name])
    ax.set_yticks(range(len(labels)), labels)
    ax.invert_yaxis()
    ax.axvline(0, color=QUIET, linewidth=0.8)
    ax.spines["left"].set_visible(False)
    ax.tick_params(axis="y", length=0)


def draw(trained: Trained, row: Tensor, other: Tensor, value: Tensor, words: list[str], i: int) -> tuple[Figure, str]:
    """Left: both rows of weights. Right: the output that each gives."""
    rows = dict(zip(COLORS, (row, other), strict=True))
    fig, (left, right) = plt.subplots(
        1, 2, figsize=(8.6, 1.6 + 0.32 * len(words)), width_ratios=(3, 2), layout="constrained"
    )
    draw_pairs(left, rows, token_labels(words))
    left.set(xlabel="attention weight", title=f'two ways to weight the words for "{words[i]}"')
    for (name, weights), shift in zip(rows.items(), (-0.2, 0.2), strict=True):
        largest = int(weights.argmax())
        style = {"textcoords": "offset points", "va": "center"}
        left.annotate(name, (weights[largest].item(), largest + shift), (4, 0), **style)
    left.set_xlim(0, 1.35 * max(row.max().item(), other.max().item()))
    outputs = {name: weights @ value for name, weights in rows.items()}
    draw_pairs(right, outputs, [f"number {c}" for c in range(value.size(1))])
    right.set_title(f"give the same {value.size(1)} numbers")
    title = "Quite different weights can give the same output,\nif values are short"
    entropy = " and ".join(f"{normalized_entropy(weights):.2f}" for weights in rows.values())
    note = f"one layer, one head, {trained.label} · each value cut to its {value.size(1)} strongest directions"
    headline(fig, title, f"{note} · normalised entropy {entropy}")
    return fig, title.replace("\n", " ") + ". Weights of a row are unique only if there are at most d_v + 1 words."


def search_alternatives(readings: list[Reading]) -> tuple[list[float], list[float], list[bool]]:
    """Of each long row: weight moved and change of the output, values narrow; is there another, values whole?"""
    moved, changes, whole = [], [], []
    for reading in (r for r in readings if len(r.words) >= LONG):
        value, _ = strongest_directions(reading.value, NARROW)
        for row in reading.weights:
            whole.append(alternative_weights(row, reading.value) is not None)
            if (other := alternative_weights(row, value)) is not None:
                moved.append(total_variation(row, other))
                changes.append(((row - other) @ value).abs().max().item())
    return moved, changes, whole


@cli.script
def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    trained = load_single_head_model(options)
    (head,), readings = read(trained, [long_words(options)]), read_held_out(trained)
    i, n = choose_word(head.words), len(head.words)
    print(f'\n"{" ".join(head.words)}": is there another row for "{head.words[i]}"?')
    print(f"   {n} weights must keep the d_v numbers of the output, and their sum: n - (d_v + 1) directions are free")
    for number in (1, 2, NARROW, n - 2, n - 1, head.value.size(1)):
        value, kept = strongest_directions(head.value, number)
        other = alternative_weights(head.weights[i], value)
        found = "unique" if other is None else f"{total_variation(head.weights[i], other):.2f} of the weight moved"
        print(f"   d_v = {number:2} ({kept:4.0%} of the variation): free {max(n - number - 1, 0):2}   {found}")
    value, _ = strongest_directions(head.value, NARROW)
    other = alternative_weights(head.weights[i], value)
    save_plot(options, "phase1/reading_weights", *draw(trained, head.weights[i], other, value, head.words, i))
    moved, changes, whole = search_alternatives(readings)
    median, largest = torch.tensor(moved).median().item(), max(changes)
    print(f"\n{len(whole)} rows of held-out sentences of {LONG} words or more, with values of {NARROW} numbers:")
    print(f"   {len(moved)} have another; median weight moved {median:.2f}, the output by at most {largest:.0e}")
    agree = torch.cat([largest_agrees(reading) for reading in readings]).double().mean().item()
    print(f"   in {agree:.0%} of all rows the word with the largest weight adds most, |weight × value|")
    return (
        f"With values of {NARROW} numbers {len(moved)} of {len(whole)} rows have another of the same output, "
        f"with whole values {sum(whole)}"
    )


if __name__ == "__main__":
    cli.run(main)
