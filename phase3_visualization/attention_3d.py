"""Is a head easier to read as a landscape of its weights?

Queries along one side, keys along the other, the weight as height. A ridge along the diagonal is a head that looks at a
fixed distance; a wall across is a word that everybody looks at. It looks well, and blocks hide each other, so the same
weights stand beside it as a map: which of the two can you read?

    python phase3_visualization/attention_3d.py
    python phase3_visualization/attention_3d.py --layer 0 --head 3

Writes 3d_attention.gif, the sharpest head of those that the options pick, to visualizations/animations/phase3/.
"""

import io

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
from shared.training import Trained
from shared.visualization_utils import QUIET, WEIGHT_MAP, headline, plot_attention, save_animation, token_labels

TITLE, FRAMES = "The same weights twice: the landscape hides what the map shows", 30
SIDES = (1, 0.86, 0.72)  # how bright the top of a block is, and its two kinds of walls
VIEW = (38, -55)  # degrees above the ground, and around: no frame of the turn is square on, where blocks hide words


def terraces(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """A surface with one flat square per weight -> x (query), y (key), z, colours of its facets.

    Nothing is invented between two words: steep walls join the squares, and the ground outside has height 0.
    """
    rows, columns = weights.shape
    x = np.concatenate([[0.0], (np.arange(rows)[:, None] + np.array([0.02, 0.98])).ravel(), [rows]])  # (2 * T_q + 2,)
    y = np.concatenate([[0.0], (np.arange(columns)[:, None] + np.array([0.02, 0.98])).ravel(), [columns]])
    z = np.pad(weights.repeat(2, axis=0).repeat(2, axis=1), 1)  # (T_q, T_k) -> (2 * T_q + 2, 2 * T_k + 2)
    corners = (z[:-1, :-1], z[1:, :-1], z[:-1, 1:], z[1:, 1:])
    colors = WEIGHT_MAP(np.max(corners, axis=0))  # a wall has the colour of its top, darker by the side it faces
    colors[0::2, :, :3] *= SIDES[2]
    colors[1::2, 0::2, :3] *= SIDES[1]
    return *np.meshgrid(x, y, indexing="ij"), z, colors


def describe(weights: Tensor, words: list[str]) -> str:
    """The shape of the landscape in words: a ridge at a fixed distance, a wall at one word, or neither."""
    n = len(words)
    ridges = {offset: weights.diagonal(offset).mean().item() for offset in range(1 - n, n) if n - abs(offset) > n / 2}
    offset = max(ridges, key=lambda o: ridges[o])
    wall = int(weights.mean(dim=0).argmax())
    height = weights[:, wall].mean().item()
    if ridges[offset] >= height and ridges[offset] > 0.5:
        where = {0: "the word itself", -1: "the word before", 1: "the word after"}.get(
            offset, f"{abs(offset)} words {'back' if offset < 0 else 'ahead'}"
        )
        return f"a ridge: {ridges[offset]:.2f} of the weight goes to {where}"
    if height > 0.5:
        return f'a wall: every word gives {height:.2f} of its weight to "{words[wall]}"'
    i, j = divmod(int(weights.argmax()), n)
    return f'separate peaks, the highest from "{words[i]}" to "{words[j]}": {weights[i, j]:.2f}'


def draw_landscape(ax: Axes3D, weights: Tensor, words: list[str]) -> None:
    """One head, the weight as height."""
    x, y, z, colors = terraces(weights.double().numpy())
    ax.plot_surface(x, y, z, facecolors=colors, rstride=1, cstride=1, linewidth=0, antialiased=False, shade=False)
    for axis in (ax.xaxis, ax.yaxis, ax.zaxis):
        axis.set_pane_color("white")
    middles = np.arange(len(words)) + 0.5
    labels = token_labels(words) if len(words) <= 10 else range(len(words))  # no room for words: the map has them
    ax.set_xticks(middles, labels, fontsize=8)
    ax.set_yticks(middles, labels, fontsize=8)
    ax.set(zlim=(0, 1), zticks=(0, 0.5, 1), xlim=(0, len(words)), ylim=(0, len(words)))
    ax.set_xlabel("query (attending)", color=QUIET, labelpad=14)
    ax.set_ylabel("key (attended to)", color=QUIET, labelpad=14)


def draw(trained: Trained, words: list[str], layer: int, head: int) -> tuple[Figure, Axes3D]:
    """The weights of one head as a landscape, and once more flat."""
    weights = weights_of(trained.model, words)[layer, head]
    fig = plt.figure(figsize=(9, 5))
    landscape = fig.add_axes((0.03, 0.11, 0.5, 0.75), projection="3d")
    landscape.set_box_aspect(None, zoom=0.92)
    flat = fig.add_axes((0.62, 0.12, 0.36, 0.58))
    draw_landscape(landscape, weights, words)
    plot_attention(weights, words, ax=flat)
    for x, text in ((0.27, "as a landscape: blocks hide what is behind them"), (0.77, "as a map: nothing is hidden")):
        fig.text(x, 0.875, text, ha="center", color=QUIET, fontsize=10.5)
    note = (
        f"layer {layer} head {head} · {trained.label} · normalised entropy {normalized_entropy(weights).nanmean():.2f}"
    )
    headline(fig, TITLE, note)
    return fig, landscape


def palette() -> Image.Image:
    """The colours of the animation, few, which keeps it small: weights on all sides of a block, and greys."""
    weights = WEIGHT_MAP(np.linspace(0, 1, 80))[:, :3]
    colors = np.concatenate([*(side * weights for side in SIDES), np.linspace(0, 1, 16)[:, None].repeat(3, axis=1)])
    image = Image.new("P", (1, 1))
    image.putpalette((255 * colors).round().astype(np.uint8).tobytes())
    return image


def turn(fig: Figure, ax: Axes3D, frames: int) -> list[np.ndarray]:
    """The figure with the landscape from all sides, an image (height, width, 3) a frame, all in the same colours."""
    images, colors = [], palette()
    for frame in range(frames):
        ax.view_init(VIEW[0], VIEW[1] + 360 * frame / frames)
        buffer = io.BytesIO()
        fig.savefig(buffer, format="png", dpi=fig.dpi)
        few = Image.open(buffer).convert("RGB").quantize(palette=colors, dither=Image.Dither.NONE)
        images.append(np.asarray(few.convert("RGB")))
    return images


@cli.script
def main(argv: list[str] | None = None) -> str:
    parser = cli.parser(__doc__)
    parser.add_argument("--layer", type=int, help="layer, counted from 0 (default: that of the sharpest head)")
    parser.add_argument("--head", type=int, help="head, counted from 0 (default: the sharpest)")
    options = cli.parse(parser, argv)
    trained = load_multi_head_model(options)
    weights = weights_of(trained.model, options.words)
    entropy = normalized_entropy(weights).nanmean(dim=-1)  # (L, H, T, T) -> (L, H)
    candidates = cli.chosen_heads(parser, options, trained.recipe.num_layers, trained.recipe.num_heads)
    layer, head = min(candidates, key=lambda place: entropy[place].item())
    answer = f"Layer {layer} head {head} is {describe(weights[layer, head], options.words)}"
    if options.pictures:
        fig, landscape = draw(trained, options.words, layer, head)
        images = turn(fig, landscape, frames=6 if options.quick else FRAMES)
        plt.close(fig)
        animation = options.output_dir / paths.ANIMATIONS / "phase3" / "3d_attention.gif"
        caption = f'{TITLE} {answer}, on "{" ".join(options.words)}": a landscape that turns, beside a map.'
        save_animation(images, animation, caption=caption, seconds_per_frame=0.14)
    return answer


if __name__ == "__main__":
    cli.run(main)
