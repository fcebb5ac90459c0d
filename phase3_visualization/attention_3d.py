"""Is a head easier to read as a landscape of its weights?

Queries along one side, keys along the other, the weight as height. A ridge along the diagonal is a head that looks at a
fixed distance; a wall across is a word that everybody looks at. It looks well, and blocks hide each other, so the same
weights stand beside it as a map: which of the two can you read?

Writes 3d_attention.png, the sharpest head of the model, to visualizations/plots/phase3/, and the landscape turning as
3d_attention.gif to visualizations/animations/phase3/.
"""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from mpl_toolkits.mplot3d.axes3d import Axes3D
from PIL import Image
from torch import Tensor

from phase2_multi_head.models import load_multi_head_model
from shared import cli, paths
from shared.attention_utils import normalized_entropy
from shared.toy_model import weights_of
from shared.visualization_utils import (
    QUIET,
    WEIGHT_MAP,
    headline,
    in_few_colors,
    picture_of,
    plot_attention,
    save_animation,
    save_plot,
    token_labels,
)

TITLE, FRAMES = "The same weights twice: the landscape hides what the map shows", 14
SIDES = (1, 0.86, 0.72)  # how bright the top of a block is, and its two kinds of walls
VIEW = (38, -55)  # degrees above the ground, and around: no frame of the turn is square on, where blocks hide words


def draw(weights: Tensor, words: list[str], note: str) -> tuple[Figure, Axes3D]:
    """The weights of one head (T, T) as a landscape, a block for each, and once more flat."""
    fig = plt.figure(figsize=(9, 5))
    landscape, places = fig.add_axes((0.03, 0.11, 0.5, 0.75), projection="3d"), np.arange(len(words))
    query, key = (weights > 0.005).nonzero().T.numpy()  # less is the ground
    heights = weights[query, key].double().numpy()
    faces = WEIGHT_MAP(heights)[:, None, :3] * np.repeat(SIDES, 2)[:, None]  # (blocks, 3) -> (blocks, 6 faces, 3)
    landscape.bar3d(query, key, 0, 0.96, 0.96, heights, color=faces.reshape(-1, 3), shade=False, antialiased=False)
    landscape.set_box_aspect(None, zoom=0.92)
    labels = token_labels(words) if len(words) <= 10 else places  # no room for words: the map has them
    landscape.set_xticks(places + 0.5, labels, fontsize=9)
    landscape.set_yticks(places + 0.5, labels, fontsize=9)
    landscape.set(zlim=(0, 1), zticks=(0, 0.5, 1), xlim=(0, len(words)), ylim=(0, len(words)))
    landscape.set_xlabel("query (attending)", color=QUIET, labelpad=14)
    landscape.set_ylabel("key (attended to)", color=QUIET, labelpad=14)
    landscape.view_init(*VIEW)
    for axis in (landscape.xaxis, landscape.yaxis, landscape.zaxis):
        axis.set_pane_color("white")
    plot_attention(weights, words, ax=fig.add_axes((0.62, 0.12, 0.36, 0.58)))
    style = {"ha": "center", "color": QUIET, "fontsize": 10.5}
    fig.text(0.27, 0.875, "as a landscape: blocks hide what is behind them", **style)
    fig.text(0.77, 0.875, "as a map: nothing is hidden", **style)
    headline(fig, TITLE, note)
    return fig, landscape


def turn(fig: Figure, ax: Axes3D, frames: int) -> list[np.ndarray]:
    """The landscape alone, small, from all sides: an image (height, width, 3) a frame, in the same few colours."""
    images: list[Image.Image] = []
    with plt.rc_context({"savefig.dpi": 62}):
        for frame in range(frames):
            ax.view_init(VIEW[0], VIEW[1] + 360 * frame / frames)
            whole = picture_of(fig)
            images.append(whole.crop((0, 0.15 * whole.height, 0.56 * whole.width, 0.94 * whole.height)))
    ax.view_init(*VIEW)
    return in_few_colors(images, SIDES)


@cli.script
def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    trained = load_multi_head_model(options)
    weights = weights_of(trained.model, options.words)
    entropy = normalized_entropy(weights).nanmean(dim=-1)  # (L, H, T, T) -> (L, H)
    layer, head = divmod(int(entropy.argmin()), entropy.size(1))  # the sharpest
    answer = f"Layer {layer} head {head} as a landscape: what stands behind a block, only the map shows"
    if options.pictures:
        note = f"layer {layer} head {head} · {trained.label} · normalised entropy {entropy[layer, head]:.2f}"
        fig, landscape = draw(weights[layer, head], options.words, note)
        animation = options.output_dir / paths.ANIMATIONS / "phase3" / "3d_attention.gif"
        images = turn(fig, landscape, frames=6 if options.quick else FRAMES)
        save_animation(images, animation, caption=f"{TITLE}: the landscape turns.", seconds_per_frame=0.25)
        save_plot(options, "phase3/3d_attention", fig, f'{TITLE}, on "{" ".join(options.words)}".')
    return answer


if __name__ == "__main__":
    cli.run(main)
