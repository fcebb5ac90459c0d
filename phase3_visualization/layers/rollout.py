"""From which input words does an output of several layers come?

Row i of one attention matrix says from where position i takes its value. But in layer 2 "position j" is no longer word
j: layer 1 has already mixed the words. So the matrices of all layers have to be combined (A: heads averaged).

    B_2 B_1, B = (A + I) / 2     shares handed on from layer to layer                   (Abnar & Zuidema 2020)

The half of I is the residual connection: x is added, so half stays where it is.

    python -m phase3_visualization.layers.rollout
"""

from collections.abc import Sequence
from itertools import pairwise, product

import torch
from torch import Tensor

from shared.attention_utils import attention_rollout, causal_mask


def rollout_by_paths(weights: Sequence[Tensor]) -> Tensor:
    """attention_rollout as it is meant, for one (H, T, T) a layer: every path from an output down to a word, (T, T).

    A path stops at one position after each layer. Each of its steps costs (A_ij + [i = j]) / 2; its share is their
    product, and an output comes from a word by the sum over all paths between them. T ** (L + 1) paths: small T only.
    """
    length = weights[0].size(-1)
    rollout = torch.zeros(length, length, dtype=weights[0].dtype)
    for path in product(range(length), repeat=len(weights) + 1):  # the word, then a position after each layer
        share = 1.0
        for layer, (below, above) in zip(weights, pairwise(path), strict=True):
            share *= (layer[:, above, below].mean().item() + (above == below)) / 2
        rollout[path[-1], path[0]] += share
    return rollout


def main() -> None:
    weights = [torch.tensor([[[1, 0, 0], [0.5, 0.5, 0], [0, 1, 0]]])] * 2
    print("Three tokens, two layers, both with the weights  1 0 0 | 1/2 1/2 0 | 0 1 0. The last output comes from")
    for name, way in (("rollout", attention_rollout), ("all paths", rollout_by_paths)):
        print(f"   {name:12}" + "".join(f"{share:8.3f}" for share in way(weights)[-1].tolist()))
    even = causal_mask(16) / causal_mask(16).sum(dim=-1, keepdim=True)
    blamed = attention_rollout([even[None]] * 8)[-1, 0].item()
    print(f"Even causal attention, 16 tokens, 8 layers: {blamed:.2f} of the last output comes from the first token,")
    print("which no head prefers: all words see it in every layer, and rollout counts each path that leads to it.")


if __name__ == "__main__":
    main()
