"""From which input words does an output of several layers come?

Row i of one attention matrix says from where position i takes its value. But in layer 2 "position
j" is no longer word j, since layer 1 has already mixed the words. So the matrices of all layers are
multiplied (rollout, Abnar & Zuidema 2020; A: heads averaged):

    B_2 B_1, B = (A + I) / 2

The half of I is the residual connection: x is added, so half stays where it is. The function that
multiplies, attention_rollout, is in shared/attention_utils.py; here are the paths that it sums.

    python -m phase3_visualization.layers.rollout
"""

from collections.abc import Sequence
from itertools import pairwise, product

import torch
from torch import Tensor

from shared.attention_utils import attention_rollout, causal_mask


def rollout_by_paths(weights: Sequence[Tensor]) -> Tensor:
    """attention_rollout as it is meant: the sum over every path from an output to a word, (T, T).

    weights: (H, T, T) for each layer. A path stops at one position after each layer; each of its
    steps costs (A_ij + [i = j]) / 2, and its share is their product. There are T ** (L + 1) paths,
    so T must be small.
    """
    length = weights[0].size(-1)
    rollout = torch.zeros(length, length, dtype=weights[0].dtype)
    # A path: the word, then a position after each layer.
    for path in product(range(length), repeat=len(weights) + 1):
        share = 1.0
        for layer, (below, above) in zip(weights, pairwise(path), strict=True):
            step = layer[:, above, below].mean().item()  # heads averaged
            share *= (step + (above == below)) / 2
        rollout[path[-1], path[0]] += share
    return rollout


def shares_on_paths(steps: Sequence[Tensor], query: int) -> list[Tensor]:
    """Returns how much of the output at `query` is handed down from each position to each, (T, T)
    for each step.

    steps: one (T, T) for each layer, the first layer first; row i says from where position i takes
    its value, and sums to 1. Entry (i, j) of a result is what goes from i above that layer to j
    below it; all entries sum to 1. So the sums over the rows of the first result are the shares of
    the words.
    """
    arrived = torch.zeros_like(steps[0][0])
    arrived[query] = 1
    shares = []
    for step in reversed(steps):
        share = arrived[:, None] * step  # (T, 1) * (T, T) -> (T, T)
        shares.append(share)
        arrived = share.sum(dim=0)  # (T, T) -> (T,)
    return shares[::-1]


def apart(rollout: Tensor) -> float:
    """How far apart two outputs are: the largest difference within a column of (T, T)."""
    return (rollout.amax(dim=0) - rollout.amin(dim=0)).max().item()  # (T, T) -> (T,) -> ()


def apart_with_depth(layers: Sequence[Tensor]) -> tuple[float, float]:
    """How much of `apart` after one layer is left after all: without the residual half, and with.

    layers: (H, T, T) each.
    """
    bare = layers[0].mean(dim=0)  # (H, T, T) -> (T, T)
    after_one = apart(bare)
    for layer in layers[1:]:
        bare = layer.mean(dim=0) @ bare
    with_half = apart(attention_rollout(list(layers))) / apart(attention_rollout([layers[0]]))
    return apart(bare) / after_one, with_half


def random_attention(num_layers: int, num_heads: int, length: int, seed: int) -> list[Tensor]:
    """The weights of heads whose scores are drawn, (H, T, T) for each layer."""
    generator = torch.Generator().manual_seed(seed)
    shape = (num_layers, num_heads, length, length)
    scores = torch.randn(shape, generator=generator, dtype=torch.float64)
    return list(scores.softmax(dim=-1))


def main() -> None:
    layers = [torch.tensor([[[1, 0, 0], [0.5, 0.5, 0], [0, 1, 0]]])] * 2
    print("Two layers with the weights  1 0 0 | 1/2 1/2 0 | 0 1 0. The last output comes from")
    print("   rollout  ", attention_rollout(layers)[-1].tolist())
    print("   all paths", rollout_by_paths(layers)[-1].tolist())
    bare, with_half = apart_with_depth(random_attention(6, 4, 16, seed=0))
    print("Six layers of four random heads, 16 words: of what sets outputs apart after one layer")
    print(f"   {bare:.5f} is left without the residual half, {with_half:.3f} with it")
    visible = causal_mask(16)
    even = visible / visible.sum(dim=-1, keepdim=True)
    blamed = attention_rollout([even[None]] * 8)[-1, 0].item()
    print(f"Even causal attention, 16 tokens, 8 layers: {blamed:.2f} of the last output comes from")
    print("the first token, which no head prefers: rollout counts each path that leads to it.")


if __name__ == "__main__":
    main()
