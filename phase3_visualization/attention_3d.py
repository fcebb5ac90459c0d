"""Is a head easier to read as a landscape of its weights?

Queries along one side, keys along the other, the weight as height. A ridge along the diagonal is a
head that looks at a fixed distance; a wall across is a word that everybody looks at. It looks well,
and blocks hide each other, so the same weights stand beside it as a map: which of the two can you
read?

Writes 3d_attention.png, the sharpest head of the model, to visualizations/plots/phase3/, and the
landscape turning once around as 3d_attention.gif to visualizations/animations/phase3/.
"""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from mpl_toolkits.mplot3d.axes3d import Axes3D
from torch import Tensor

from phase2_multi_head.models import load_multi_head_model
from shared import cli, paths
from shared.attention_utils import normalized_entropy
from shared.toy_model import weights_on_sentence
from shared.visualization_utils import (
    GREY,
    QUIET,
    WEIGHT_MAP,
    WIDE,
    headline,
    in_few_colors,
    picture_of,
    plot_attention,
    save_animation,
    save_plot,
    token_labels,
)

TITLE = "The same weights twice:\nthe landscape hides what the map shows"
TURN_TITLE = "From every side some block hides another"
FRAMES, QUICK_FRAMES = 28, 6  # of the turn
SECONDS_PER_FRAME = 0.16
SIDES = (1, 0.86, 0.72)  # how bright the top of a block is, and its two kinds of walls
ELEVATION = 38  # degrees above the ground
AZIMUTH = -45  # from here a turn of 28 frames is never square on, where blocks hide words
MOST_NAMED = 7  # words that have room beside the landscape
GROUND = 0.005  # a weight below this is no block


def plot_landscape(ax: Axes3D, weights: Tensor, words: list[str]) -> None:
    """The weights of one head (T, T) as blocks: queries along x, keys along y, weights upwards.

    Without words, or with many, their places are numbered.
    """
    query, key = (weights > GROUND).nonzero().T.numpy()
    heights = weights[query, key].double().numpy()
    tops = WEIGHT_MAP(heights)[:, None, :3]  # (blocks, 1, 3): red, green, blue
    faces = tops * np.repeat(SIDES, 2)[:, None]  # (blocks, 6 faces, 3)
    look = {"color": faces.reshape(-1, 3), "shade": False, "antialiased": False}
    ax.bar3d(query, key, 0, 0.96, 0.96, heights, **look)
    places = np.arange(len(weights))
    has_room = 0 < len(words) <= MOST_NAMED
    labels = token_labels(words) if has_room else places
    pad = 16 if has_room else 5
    ax.set_xticks(places + 0.5, labels)
    ax.set_yticks(places + 0.5, labels)
    ax.set(zlim=(0, 1), zticks=(0, 0.5, 1), xlim=(0, len(weights)), ylim=(0, len(weights)))
    ax.set_xlabel("query", color=QUIET, labelpad=pad)
    ax.set_ylabel("key", color=QUIET, labelpad=pad)
    ax.view_init(ELEVATION, AZIMUTH)
    for axis in (ax.xaxis, ax.yaxis, ax.zaxis):
        axis.set_pane_color("white")


def draw_twice(weights: Tensor, words: list[str], note: str) -> Figure:
    """The weights of one head (T, T) as a landscape, and once more flat."""
    fig = plt.figure(figsize=(WIDE, 3.7))
    landscape = fig.add_axes((0.0, 0.12, 0.46, 0.7), projection="3d")
    plot_landscape(landscape, weights, [])
    landscape.set_box_aspect(None, zoom=0.9)
    flat = fig.add_axes((0.6, 0.16, 0.36, 0.55))
    plot_attention(flat, weights, words, annotate=False, labels=False)
    headline(fig, TITLE, note)
    return fig


def turn(weights: Tensor, words: list[str], note: str, frames: int) -> list[np.ndarray]:
    """The landscape alone, once around: an image (height, width, 3) for each frame.

    It stands on a plain ground, because thin lines that turn make up a third of the GIF, and has no
    colour bar, because its height says the weight and words need the width. All images have the
    same few colours.
    """
    fig = plt.figure(figsize=(WIDE, 4.7))
    landscape = fig.add_axes((0.06, 0.17, 0.86, 0.82), projection="3d")
    plot_landscape(landscape, weights, words)
    landscape.grid(False)
    landscape.zaxis.pane.set_edgecolor(GREY)
    landscape.set_zlabel("attention weight", color=QUIET)
    landscape.set_box_aspect(None, zoom=1.06)
    headline(fig, TURN_TITLE, note, size=12)
    images = []
    for frame in range(frames):
        landscape.view_init(ELEVATION, AZIMUTH + 360 * frame / frames)
        images.append(picture_of(fig, density=10 / 11))
    plt.close(fig)
    return in_few_colors(images)


USES = (
    "--sentence --sentences --seed --quick "
    "--device --retrain --d-model --heads --layers --output-dir --no-pictures --format"
)


@cli.script
def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__, USES), argv)
    words = options.words
    trained = load_multi_head_model(options)
    weights = weights_on_sentence(trained.model, words)  # (L, H, T, T)
    entropy = normalized_entropy(weights).nanmean(dim=-1)  # (L, H, T, T) -> (L, H)
    layer, head = divmod(int(entropy.argmin()), entropy.size(1))  # the sharpest
    name = f"layer {layer} head {head}"
    if options.pictures:
        note = f"{name} · {trained.label} · normalised entropy {entropy[layer, head]:.2f}"
        frames = QUICK_FRAMES if options.quick else FRAMES
        images = turn(weights[layer, head], words, note, frames)
        animation = options.output_dir / paths.ANIMATIONS / "phase3" / "3d_attention.gif"
        caption = f"{TURN_TITLE}."
        save_animation(images, animation, caption=caption, seconds_per_frame=SECONDS_PER_FRAME)
        caption = TITLE.replace("\n", " ")
        fig = draw_twice(weights[layer, head], words, note)
        save_plot(options, "phase3/3d_attention", fig, f'{caption}, on "{" ".join(words)}".')
    return f"{name.capitalize()} as a landscape: what stands behind a block, only the map shows"


if __name__ == "__main__":
    cli.run(main)
