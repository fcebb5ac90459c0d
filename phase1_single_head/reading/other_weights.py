"""What does a row of attention weights tell about the output?

The output is a weighted mean of the values. With more words than a value has numbers, other weights
give the same mean, to the last digit (Brunner et al. 2020).
"""

import math

import torch
from torch import Tensor


def change_without_effect(weights: Tensor, value: Tensor, free: Tensor) -> Tensor | None:
    """Returns a change (T,) of the `free` weights that moves neither output nor sum.

    weights (T,), value (T, d_v), free: bool (T,). Such changes are the null space of [value, 1]ᵀ,
    which has d_v + 1 rows. So of n free words at least n - (d_v + 1) directions have no effect.
    This is the one among them that takes most from the heaviest word that can change at all; None
    if there is none.
    """
    fixed = torch.cat([value, torch.ones_like(value[:, :1])], dim=1).T  # -> (d_v + 1, T)
    _, sizes, directions = torch.linalg.svd(fixed[:, free])
    rank = int((sizes > 1e-10 * sizes[0]).sum())
    null = directions[rank:]  # (n, n) -> (n - rank, n)
    projection = null.T @ null  # (n, n): a wish for change -> what of it has no effect
    can_change = projection.diagonal() > 1e-12
    if not can_change.any():
        return None
    heaviest = weights[free].masked_fill(~can_change, -1).argmax()
    change = torch.zeros_like(weights)
    change[free] = -projection[heaviest]
    return change


def alternative_weights(weights: Tensor, value: Tensor) -> Tensor | None:
    """Returns other weights (T,) with the same output, or None if there are none.

    weights (T,), value (T, d_v), both float64. From the given row we go along a direction without
    effect until some weight is 0. That one stays 0, and we go on along the next, until none is
    left. Then at most d_v + 1 words have weight (Carathéodory's theorem). Hidden words (weight 0)
    stay hidden. The weights are the only ones if at most d_v + 1 words have any, and no value among
    these is a mix of others.

    >>> value = torch.tensor([[0.0], [1.0], [2.0]]).double()  # 1 is a mix of 0 and 2
    >>> alternative_weights(torch.tensor([0.25, 0.5, 0.25]).double(), value)
    tensor([0.5000, 0.0000, 0.5000], dtype=torch.float64)
    """
    other = weights.clone()
    change = change_without_effect(weights, value, other > 0)
    while change is not None:
        steps = torch.where(change < 0, -other / change, math.inf)
        emptied = steps.argmin()
        other = (other + steps[emptied] * change).clamp(min=0)
        other[emptied] = 0
        change = change_without_effect(weights, value, other > 0)
    return None if torch.equal(other, weights) else other
