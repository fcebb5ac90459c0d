"""What does a mask let through in other code, and where does NaN come from?

There are four ways to write a mask down, and five ways in which code reads it. We try them all on
random scores: where a reading does not fit, how much weight leaks to later words? NaN comes from
rows that see nothing, such as the first one under a causal mask with padding on the left. We count
them with plain softmax and with ours.

    python phase4_causal/masking/conventions.py
"""

import math
from collections.abc import Callable

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor

from phase1_single_head.self_attention import masked_softmax
from shared.attention_utils import causal_mask, padding_mask
from shared.claims import Numbers
from shared.experiment import Experiment, Results, Run
from shared.visualization_utils import BLUE, QUIET, WIDE, plot_cells

LENGTH, NUM_SCORES = 6, 500
LENGTHS = torch.tensor([6, 4])  # two sequences, the second with two words of padding

# How a causal mask is written down: bool (T, T), True = may attend -> what is passed around.
WRITTEN: dict[str, Callable[[Tensor], Tensor]] = {
    "True = may attend": lambda allowed: allowed,  # this repository, F.scaled_dot_product_attention
    "0 or -inf": lambda allowed: torch.zeros(LENGTH, LENGTH).masked_fill(~allowed, -math.inf),
    "1 or 0": lambda allowed: allowed.double(),  # textbooks
    "True = hidden": lambda allowed: ~allowed,  # nn.MultiheadAttention
}
# How code reads a mask: scores (..., T, T), mask (T, T) -> weights (..., T, T).
READ: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "True = may attend": lambda scores, mask: masked_softmax(scores, mask.bool()),
    "scores + mask": lambda scores, mask: torch.softmax(scores + mask, dim=-1),
    "fill where mask == 0": lambda scores, mask: torch.softmax(
        scores.masked_fill(mask == 0, -1e9), dim=-1
    ),
    "scores * mask": lambda scores, mask: torch.softmax(scores * mask, dim=-1),
    "True = hidden": lambda scores, mask: masked_softmax(scores, ~mask.bool()),
}


# ---- conventions


def random_scores() -> Tensor:
    """Returns standard normal scores (NUM_SCORES, T, T), float64, the same at every call."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(NUM_SCORES, LENGTH, LENGTH, dtype=torch.float64, generator=generator)


def future_mass(weights: Tensor) -> float:
    """Returns the mean weight on later keys over rows (..., T, T); NaN if a row has no weights."""
    return weights.triu(diagonal=1).sum(dim=-1).mean().item()


# ---- NaN


def plain_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Returns the weights of a softmax that takes no care of rows that see nothing."""
    return torch.softmax(scores.masked_fill(~mask, -math.inf), dim=-1)


def blind_rows(softmax: Callable[[Tensor, Tensor], Tensor]) -> int:
    """Returns rows with NaN among 2 · LENGTH, where the first word of a text is padding."""
    padding = padding_mask(LENGTHS, LENGTH).flip(-1)  # (2, 1, 1, T), on the left
    mask = causal_mask(LENGTH) & padding  # (2, 1, T, T)
    weights = softmax(torch.zeros(mask.shape), mask)
    return int(weights.isnan().any(dim=-1).sum())


def measure(run: Run) -> Numbers:
    """Returns the weight on later words, 0 where the mask was read as it was written; and NaN."""
    scores, allowed = random_scores(), causal_mask(LENGTH)
    numbers = {}
    for written, write in WRITTEN.items():
        for read_as, read in READ.items():
            numbers[f"{written}, {read_as}"] = future_mass(read(scores, write(allowed)))
    run.shown["right"] = sum(mass == 0 for mass in numbers.values())
    run.shown["leaks"] = sum(mass > 0 for mass in numbers.values())
    numbers["rows with NaN, padding on the left"] = blind_rows(plain_softmax)
    numbers["rows with NaN, padding on the left, ours"] = blind_rows(masked_softmax)
    return numbers


def outcome(mass: float) -> str:
    """Returns in words what this weight on later words means."""
    if math.isnan(mass):
        return "NaN"
    if mass == 0:
        return "right"
    # The last word has no later one: if visible and hidden change places, it sees nothing.
    return "only\nlater" if math.isclose(mass, 1 - 1 / LENGTH) else "leaks"


def picture(results: Results) -> Figure:
    """Draws a row for how the mask is written, a column for how it is read; darker: more leaks."""
    fig, ax = plt.subplots(figsize=(WIDE, 3.8), layout="constrained")
    masses = [results.row(written, READ) for written in WRITTEN]
    texts = [list(map(outcome, row)) for row in masses]
    rows = ["True:\nattend", "0 or −∞", "1 or 0", "True:\nhide"]  # WRITTEN in short
    columns = ["True:\nattend", "add to\nscores", "0:\nhide", "multiply\nscores", "True:\nhide"]
    plot_cells(ax, torch.tensor(masses), texts, rows, columns)
    for cell in ax.texts:
        if cell.get_text() == "right":
            cell.set(color=BLUE, weight="bold")
    ax.tick_params(labelsize=10)
    ax.set_xlabel("the code reads it as", color=QUIET, labelpad=8)
    ax.xaxis.set_label_position("top")
    ax.set_ylabel("the mask is written as", color=QUIET)
    return fig


main = Experiment(
    measure,
    picture=picture,
    title="{shown[leaks]} of 20 ways to hand a mask to other code leak the future without an error",
    note="leaks: later words get weight, too · only later: nothing but them\n"
    "random scores, no model",
    answer="A mask is written in four ways and read in five: of these 20 mixtures {shown[right]} "
    "are right, and none of the others raises an error. NaN comes from queries that see no key: "
    f"{{n[rows with NaN, padding on the left]:.0f}} of {2 * LENGTH} rows if padding stands on the "
    "left, and {n[rows with NaN, padding on the left, ours]:.0f} with our softmax",
    uses="",
)

if __name__ == "__main__":
    main.run()
