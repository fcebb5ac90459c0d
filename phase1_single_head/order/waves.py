"""Are positions that stand near each other more alike?

A sinusoidal position is a vector of sines and cosines, waves from fast to slow. We take 64 of them,
with 64 numbers each as in our models, and compare every two by their cosine, which is 1 for vectors
of the same direction. Nothing is trained here. By the formula this cosine is a mean of 32 waves,
cos(distance · rate): on average it falls, but the fastest wave is back every 2π places.
"""

import torch.nn.functional as F
from torch import Tensor

from shared.claims import Numbers
from shared.experiment import Experiment, Run
from shared.toy_model import sinusoidal_positions

LENGTH, D_MODEL = 64, 64
DISTANCES = (1, 5, 6, 28, 32, 63)  # those that are printed


def likeness(vectors: Tensor) -> Tensor:
    """Returns the cosine of every two vectors: (T, d) -> (T, T)."""
    directions = F.normalize(vectors, dim=-1)
    return directions @ directions.T  # (T, d) @ (d, T) -> (T, T)


def rises(cosines: Tensor) -> list[int]:
    """Returns the distances at which positions are more alike than one place nearer.

    cosines: (T,), of a position with those that stand 0, 1, 2 ... places after it.
    """
    is_more = cosines[1:] > cosines[:-1]  # (T,) -> (T - 1,), the first one for a distance of 1
    return (is_more.nonzero().flatten() + 1).tolist()


def measure(run: Run) -> Numbers:
    """Returns the cosine by distance, and at how many distances it rises; no seed changes it."""
    by_distance = likeness(sinusoidal_positions(LENGTH, D_MODEL).double())[0]
    numbers = {f"cosine, {distance}": by_distance[distance].item() for distance in DISTANCES}
    return numbers | {"distances at which it rises": len(rises(by_distance))}


main = Experiment(
    measure,
    answer="On average, yes: the likeness (cosine) of two positions falls from {n[cosine, 1]:.2f} "
    "if they are 1 place apart to {n[cosine, 63]:.2f} if they are 63 apart. But not always: in "
    "between it rises again, for example from 28 places to 32.",
    uses="",
)

if __name__ == "__main__":
    main.run()
