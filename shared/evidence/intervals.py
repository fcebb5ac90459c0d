"""How sure is a mean? 95 % intervals: over a few seeds by Student's t, over many examples by drawing them again."""

import math
import statistics
from collections.abc import Sequence

import torch
from torch import Tensor

# Student's t, 97.5 %, for 2 to 10 values (1 to 9 degrees of freedom)
STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
DRAWS = 1000  # of the examples


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the mean of 2 to 10 values, by Student's t. Raises ValueError for another number of them."""
    if len(values) not in STUDENT:
        raise ValueError(f"an interval needs 2 to {max(STUDENT)} values: got {len(values)}")
    half = STUDENT[len(values)] * statistics.stdev(values) / math.sqrt(len(values))
    return statistics.mean(values) - half, statistics.mean(values) + half


def bootstrap_interval(values: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Lower and upper end of the 95 % interval of the mean over examples: (..., B) -> two of (...).

    How the mean would spread over other draws of as many examples (bootstrap; Efron 1979).
    """
    drawn = torch.randint(values.size(-1), (DRAWS, values.size(-1)), generator=generator)
    means = torch.stack([values[..., examples].mean(dim=-1) for examples in drawn])  # (draws, ...)
    return tuple(means.quantile(torch.tensor([0.025, 0.975], dtype=means.dtype), dim=0))
