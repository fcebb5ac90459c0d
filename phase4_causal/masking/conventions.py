"""Who says True means what, and what if a mask is read in another convention?

A mask is a question about two places: may this query see that key? There are four ways to write the
answer, and five ways in which code reads it. Each mask is written and read in every way, on random
scores. Where a reading does not fit, no error is raised: how much weight leaks to later words?

    python phase4_causal/masking/conventions.py
"""

import math
import textwrap
from collections.abc import Callable

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor

from phase1_single_head.self_attention import masked_softmax
from shared.attention_utils import causal_mask
from shared.evidence.claims import Numbers
from shared.experiment import Experiment, Results, Run
from shared.visualization_utils import BLUE, QUIET, plot_cells

LENGTH, NUM_SCORES = 6, 500


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


def random_scores() -> Tensor:
    """Returns standard normal scores (NUM_SCORES, T, T), float64, the same at every call."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(NUM_SCORES, LENGTH, LENGTH, dtype=torch.float64, generator=generator)


def future_mass(weights: Tensor) -> float:
    """Returns the mean weight on later keys over rows (..., T, T); NaN if a row has no weights."""
    return weights.triu(diagonal=1).sum(dim=-1).mean().item()


def measure(run: Run) -> Numbers:
    """Returns the weight on later words, 0 where the mask was read as it was written."""
    scores, allowed = random_scores(), causal_mask(LENGTH)
    numbers = {}
    for written, write in WRITTEN.items():
        for read_as, read in READ.items():
            numbers[f"{written}, {read_as}"] = future_mass(read(scores, write(allowed)))
    run.shown["right"] = sum(mass == 0 for mass in numbers.values())
    run.shown["leaks"] = sum(mass > 0 for mass in numbers.values())
    run.shown["no mask"] = future_mass(scores.softmax(dim=-1))
    return numbers


def picture(found: Results) -> Figure:
    """Draws a row for how the mask is written, a column for how it is read; darker: more leaks."""
    fig, ax = plt.subplots(figsize=(8.6, 4.2), layout="constrained")
    masses = [found.row(written, READ) for written in WRITTEN]
    texts = []
    for row in masses:
        texts.append(
            ["right" if mass == 0 else f"{mass:.2f}".replace("nan", "NaN") for mass in row]
        )
    columns = [textwrap.fill(name, 13) for name in READ]
    plot_cells(ax, torch.tensor(masses), texts, list(WRITTEN), columns)
    for cell in ax.texts:
        if cell.get_text() == "right":
            cell.set(color=BLUE, weight="bold")
    ax.set_xlabel("the code reads it as", color=QUIET, labelpad=8)
    ax.xaxis.set_label_position("top")
    ax.set_ylabel("the mask is written as", color=QUIET)
    return fig


main = Experiment(
    measure,
    picture=picture,
    title="{shown[leaks]} of 20 ways to hand a mask to other code leak the future without an error",
    note="numbers: share of a row's weight on later words; without any mask {shown[no mask]:.2f} "
    "· random scores",
    answer="A mask is written in four ways and read in five: of these 20 mixtures {shown[right]} "
    "are right, and none of the others raises an error",
)

if __name__ == "__main__":
    main.run()
