"""Are positions that stand near each other more alike?

A sinusoidal position is a vector of sines and cosines, waves from fast to slow. We draw 64 of them,
with 64 numbers each as in our models, and compare every two by their cosine, which is 1 for vectors
of the same direction. Nothing is trained here. By the formula this cosine is a mean of 32 waves,
cos(distance · rate): on average it falls, but the fastest wave is back every 2π places.
"""

import matplotlib.pyplot as plt
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from shared.claims import Numbers
from shared.experiment import Experiment, Results, Run
from shared.toy_model import sinusoidal_positions
from shared.visualization_utils import BLUE, ORANGE, QUIET, SIGNED_MAP, WEIGHT_MAP

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
    positions = sinusoidal_positions(LENGTH, D_MODEL).double()
    cosines = likeness(positions)
    by_distance = cosines[0]
    run.shown.update(positions=positions, cosines=cosines)
    numbers = {f"cosine, {distance}": by_distance[distance].item() for distance in DISTANCES}
    return numbers | {"distances at which it rises": len(rises(by_distance))}


def draw_waves(ax: Axes, positions: Tensor) -> Axes:
    """Draws the numbers of each position (T, d): a row for a position, a wave down each column."""
    image = ax.imshow(positions.numpy(), cmap=SIGNED_MAP, vmin=-1, vmax=1, interpolation="nearest")
    ax.figure.colorbar(image, ax=ax, shrink=0.8, ticks=[-1, 0, 1]).outline.set_visible(False)
    ax.set(xlabel="which number of its vector", ylabel="position")
    ax.set_title("each row is a position: fast waves left, slow right")
    return ax


def draw_likeness(ax: Axes, cosines: Tensor) -> Axes:
    """Draws how alike every two positions are (T, T)."""
    colors = {"cmap": WEIGHT_MAP, "vmin": cosines.min().item(), "vmax": 1}
    image = ax.imshow(cosines.numpy(), interpolation="nearest", **colors)
    ax.figure.colorbar(image, ax=ax, shrink=0.8).outline.set_visible(False)
    ax.set(xlabel="position", ylabel="position", title="how alike every two of them are")
    return ax


def draw_distance(ax: Axes, cosines: Tensor) -> Axes:
    """Draws one row of that against the distance (T,), with a larger dot where it rises."""
    ax.plot(cosines.numpy(), "o-", color=BLUE, markersize=3, linewidth=1.5)
    up = rises(cosines)
    name = "more alike than one place nearer"
    ax.plot(up, cosines[up].numpy(), "o", color=ORANGE, markersize=7, label=name)
    ylabel = "how alike (cosine)"
    ax.set(xlim=(0, LENGTH - 1), ylim=(0, 1.05), xlabel="places apart", ylabel=ylabel)
    ax.set_xticks(range(0, LENGTH, 6))
    ax.legend(frameon=False, loc="upper right", labelcolor=QUIET)
    return ax


def picture(results: Results) -> Figure:
    """Above: how alike positions are by their distance. Below: all of them, and every two."""
    panels = [["distance", "distance"], ["waves", "likeness"]]
    sizes = {"figsize": (8.8, 7.2), "height_ratios": (4, 5)}
    fig, axes = plt.subplot_mosaic(panels, layout="constrained", **sizes)
    cosines = results.shown["cosines"]
    draw_distance(axes["distance"], cosines[0])
    draw_waves(axes["waves"], results.shown["positions"])
    draw_likeness(axes["likeness"], cosines)
    return fig


main = Experiment(
    measure,
    picture=picture,
    title="Positions far apart are less alike, but the likeness falls in waves",
    note=f"sinusoidal positions of {D_MODEL} numbers, as our models have; nothing is trained",
    answer="On average, yes: the likeness (cosine) of two positions falls from {n[cosine, 1]:.2f} "
    "if they are 1 place apart to {n[cosine, 63]:.2f} if they are 63 apart. But not always: in "
    "between it rises again, for example from 28 places to 32.",
    uses="",
)

if __name__ == "__main__":
    main.run()
