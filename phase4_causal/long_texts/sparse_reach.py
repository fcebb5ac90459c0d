"""How many layers of sparse attention until all words have heard of all?

A position sees few others, and the next layer reads what those have read. As matrices of 0 and 1, reach after a layer =
pattern · reach before it; the residual connection keeps what was there. Compared are a window, every 8th word, and both
in turn (Child et al. 2019). Reach says what could arrive, not that a trained model sends it.
"""

import math
from collections.abc import Iterator
from itertools import cycle, islice

import matplotlib.pyplot as plt
import torch
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from torch import Tensor

from shared.attention_utils import causal_mask, local_mask, strided_mask
from shared.evidence.claims import Numbers
from shared.experiment import Experiment, Results, Run
from shared.visualization_utils import BLUE, hatch_cell

LENGTH, NEAR = 64, 8  # words; window and stride
WINDOW, STRIDE = local_mask(LENGTH, LENGTH, NEAR), strided_mask(LENGTH, LENGTH, NEAR)
PATTERNS = {"near words": [WINDOW], "every 8th word": [STRIDE], "near and every 8th in turn": [WINDOW, STRIDE]}


def reach(masks: list[Tensor]) -> Iterator[Tensor]:
    """After each layer, the masks in turn: bool (T, T), row i = the words that position i can have heard of."""
    seen = torch.eye(len(masks[0]), dtype=torch.bool)
    for mask in cycle(masks):
        seen = seen | (mask.float() @ seen.float() > 0)  # its own, and what those it attends to had heard of
        yield seen


def layers_needed(masks: list[Tensor], target: Tensor) -> float:
    """Layers until everyone has heard of all that `target` (T, T) names; inf if that never happens."""
    enough = len(target) * len(masks)  # by then a whole turn of the masks has brought nothing new
    done = (count for count, seen in enumerate(islice(reach(masks), enough), start=1) if (seen | ~target).all())
    return next(done, math.inf)


def measure(run: Run) -> Numbers:
    """Layers until all words have met, and under a causal mask until each has heard of all before it."""
    past, found = causal_mask(LENGTH), {}
    for name, masks in PATTERNS.items():
        found[f"{name}, both ways"] = layers_needed(masks, past | ~past)
        found[f"{name}, causal"] = layers_needed([mask & past for mask in masks], past)
    return found


def picture(found: Results) -> Figure:
    """A column for each pattern, a row for each layer: plain where an input (across) has reached an output (down)."""
    fig, axes = plt.subplots(2, len(PATTERNS), figsize=(7.6, 6), layout="constrained")
    for (name, masks), column in zip(PATTERNS.items(), axes.T, strict=True):
        for layers, ax, seen in zip(("1 layer", "2 layers"), column, reach(masks), strict=False):
            hatch_cell(ax, 0, 0, *seen.shape)
            ax.pcolormesh(seen.float().masked_fill(~seen, math.nan).numpy(), cmap=ListedColormap([BLUE]))
            ax.set(xlim=(0, LENGTH), ylim=(LENGTH, 0), aspect="equal", xticks=[], yticks=[], title=f"{name}\n{layers}")
            ax.set_xlabel(f"{seen.double().mean():.0%} of the pairs")
    return fig


main = Experiment(
    measure,
    picture=picture,
    title="Near and far layers in turn connect all words in two layers",
    note=f"blue: has reached · hatched: not yet · {LENGTH} words, queries ↓, keys → · no model",
    answer=f"{LENGTH} words meet after {{n[near and every 8th in turn, both ways]:.0f}} layers, near and far in turn, "
    f"and after {{n[near words, both ways]:.0f}} with a window of {NEAR} alone",
)

if __name__ == "__main__":
    main.run()
