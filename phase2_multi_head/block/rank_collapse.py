"""Why the residual connection: what does attention alone do to the words?

Every output of attention is a mean of the same values, and words that are alike have outputs that
are alike. A residual connection adds the words themselves back. So we measure how far the matrix X
of all words is from rank one, where every word is the same vector. We compare stacks of 24 layers
with initial weights, by parts of a block (block_by_parts.py), and the trained toy model with and
without its residual connections.
"""

from collections.abc import Callable, Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from phase2_multi_head.block.block_by_parts import LAYERS_BY_PARTS
from phase2_multi_head.models import load_multi_head_model
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from shared import charts
from shared.claims import Numbers
from shared.experiment import Experiment, Results, Run
from shared.toy_language import encode, sample_corpus
from shared.toy_model import Block
from shared.visualization_utils import BLUE, GREEN, PURPLE, RED, WIDE

LENGTH, D_MODEL, NUM_HEADS, NUM_LAYERS = 16, 64, 4, 24
FLOOR = 1e-15  # float64 has 16 digits: a smaller distance is nothing but rounding
INITIAL = ("nn.Linear's own", "Xavier")  # initial weights
COLORS = {
    "attention alone": RED,
    "block without residual": PURPLE,
    "attention + residual": BLUE,
    "whole block": GREEN,
}


def distance_to_rank_one(x: Tensor) -> Tensor:
    """Returns ||X - 1 xᵀ|| / ||X|| in the Frobenius norm, (..., T, d) -> (...,).

    It is 0 if all rows are the same, 1 if their mean is 0. x is the mean row of X, (d,): for this
    norm it is the nearest.
    """
    apart = x - x.mean(dim=-2, keepdim=True)
    size = torch.linalg.matrix_norm(x)
    size = size.masked_fill(size == 0, 1.0)  # where all is 0, all rows are the same
    return torch.linalg.matrix_norm(apart) / size


@torch.no_grad()
def distances(
    x: Tensor, blocks: Sequence[Block], layer: Callable[[Block, Tensor], Tensor]
) -> list[float]:
    """Returns the distance of x (B, T, d_model) to rank one, before the first layer and after each.

    It is the mean over the batch. Where it falls below FLOOR it is only rounding, and counts as
    FLOOR from there on.
    """
    distance = distance_to_rank_one(x).mean().item()
    seen = [distance]
    for block in blocks:
        x = layer(block, x)
        if distance > FLOOR:
            distance = max(distance_to_rank_one(x).mean().item(), FLOOR)
        seen.append(distance)
    return seen


@torch.no_grad()
def new_stack(initial: str, seed: int) -> tuple[Tensor, nn.ModuleList]:
    """Returns random words (1, T, d_model) and new blocks, in float64.

    Xavier weights come without biases, as in the paper. They are larger than nn.Linear's own, by
    √3 for a square matrix.
    """
    torch.manual_seed(seed)
    blocks = nn.ModuleList()
    for _ in range(NUM_LAYERS):
        blocks.append(Block(D_MODEL, MultiHeadAttention(D_MODEL, NUM_HEADS)).double())
    for layer in blocks.modules():
        if initial == "Xavier" and isinstance(layer, nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
    return torch.randn(1, LENGTH, D_MODEL, dtype=torch.float64), blocks


def measure(run: Run) -> Numbers:
    """Returns layers until all words are alike, and the distance to rank one after 24 layers.

    The trained model has two layers. It reads sentences of eight words, as it is and with its
    residual connections left out.
    """
    numbers = {}
    for initial in INITIAL:
        x, blocks = new_stack(initial, run.seed)
        seen = {name: distances(x, blocks, LAYERS_BY_PARTS[name]) for name in COLORS}
        run.shown[initial] = seen
        until_alike = seen["attention alone"].index(FLOOR)
        numbers[f"attention alone, {initial}, layers until alike"] = until_alike
        for name in ("attention + residual", "whole block"):
            numbers[f"{name}, {initial}"] = seen[name][-1]
    model = load_multi_head_model(run.options, run.seed).model.cpu()
    _, held_out = sample_corpus(0, 500, seed=1)
    tokens = [encode(s.words) for s in held_out if len(s.words) == 8]
    x = model.embed(torch.tensor(tokens)).detach()
    whole = distances(x, model.blocks, LAYERS_BY_PARTS["whole block"])
    without = distances(x, model.blocks, LAYERS_BY_PARTS["block without residual"])
    numbers["trained, going in"] = whole[0]
    numbers["trained, with residual"] = whole[-1]
    numbers["trained, without"] = without[-1]
    return numbers


def picture(results: Results) -> Figure:
    """Draws the distance layer by layer with Xavier weights, by parts of a block."""
    fig, ax = plt.subplots(figsize=(WIDE, 4), layout="constrained")
    ax.set(yscale="log", ylim=(FLOOR / 5, 3), xlabel="layers", title="how different the words are")
    ax.set_yticks([1, 1e-5, 1e-10, FLOOR], ["1", "10⁻⁵", "10⁻¹⁰", "alike to the\nlast digit"])
    charts.lines(ax, range(NUM_LAYERS + 1), results.shown["Xavier"], COLORS)
    ax.set_xticks(range(0, NUM_LAYERS + 1, 4))
    return fig


main = Experiment(
    measure,
    picture=picture,
    title="Without residual connections a few layers make all words alike",
    note=f"random weights (Xavier), untrained, {LENGTH} random words",
    answer="Because attention alone makes all words alike: after "
    "{n[attention alone, Xavier, layers until alike]:.0f} layers they are one vector, up to "
    "rounding. After 24 whole blocks, which have residual connections, the words are still "
    "{n[whole block, Xavier]:.2g} apart (0: alike, 1: their mean is 0).",
    uses="--seed --seeds --quick --device --retrain --d-model --heads --layers",
)

if __name__ == "__main__":
    main.run()
