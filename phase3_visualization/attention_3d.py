"""One head as a landscape: queries along one side, keys along the other, the weight as height.

A ridge along the diagonal is a head that looks at a fixed distance; a wall across is a word that everybody looks at.

    python phase3_visualization/attention_3d.py
    python phase3_visualization/attention_3d.py --layer 0 --head 3
    python phase3_visualization/attention_3d.py --layer 0

Writes 3d_attention.png, the sharpest head of those that the options pick, and 3d_heads.png, one small landscape for
each of them if they are several, to visualizations/plots/phase3/, and the full turn of the first, 3d_attention.gif, to
visualizations/animations/phase3/.
"""

import argparse
import io
import math
import time

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure
from mpl_toolkits.mplot3d.axes3d import Axes3D
from torch import Tensor

from phase2_multi_head.multi_head_attention import load_multi_head_model
from phase2_multi_head.visualize import patterns
from shared import cli, paths
from shared.attention_utils import normalized_entropy
from shared.evidence import findings
from shared.evidence.findings import Finding
from shared.training import Trained
from shared.visualization_utils import (
    QUIET,
    WEIGHT_MAP,
    head_color,
    model_note,
    save_animation,
    save_figure,
    token_labels,
)


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
    colors[0::2, :, :3] *= 0.72
    colors[1::2, 0::2, :3] *= 0.86
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


def draw_landscape(ax: Axes3D, weights: Tensor, labels: list[str], size: float) -> Axes3D:
    """Draw one head's weights (T, T), with labels of this font size along both sides."""
    x, y, z, colors = terraces(weights.double().numpy())
    ax.plot_surface(x, y, z, facecolors=colors, rstride=1, cstride=1, linewidth=0, antialiased=False, shade=False)
    middles = np.arange(len(labels)) + 0.5
    ax.set_xticks(middles, labels, fontsize=size)
    ax.set_yticks(middles, labels, fontsize=size)
    ax.set(zlim=(0, 1), zticks=(0, 0.5, 1), xlim=(0, len(labels)), ylim=(0, len(labels)))
    ax.view_init(elev=38, azim=-60)
    return ax


def draw(trained: Trained, words: list[str], layer: int, head: int) -> tuple[Figure, Axes3D, str]:
    """The landscape of one head."""
    weights = patterns(trained, words)[layer, head]
    fig = plt.figure(figsize=(6.2, 5.8))
    ax = fig.add_axes((0.0, 0.07, 0.95, 0.88), projection="3d")
    draw_landscape(ax, weights, token_labels(words), size=8 if len(words) <= 10 else 6)
    ax.set_xlabel("query (attending)", color=QUIET, labelpad=12)
    ax.set_ylabel("key (attended to)", color=QUIET, labelpad=12)
    ax.set_zlabel("attention weight", color=QUIET)
    title = f"Layer {layer} head {head} is {describe(weights, words)}"
    fig.suptitle(title, fontsize=11.5)
    model_note(fig, f"{trained.label} · normalised entropy {normalized_entropy(weights).nanmean():.2f}")
    return fig, ax, title


def draw_heads(trained: Trained, words: list[str], heads: list[tuple[int, int]]) -> tuple[Figure, str]:
    """A small landscape for each of several heads, a layer in each row; the title counts ridges, walls and others."""
    weights = patterns(trained, words)  # (L, H, T, T)
    rows = len({layer for layer, _ in heads})
    rows = 1 if rows == len(heads) else rows  # one head of each layer: side by side
    columns = len(heads) // rows
    side = 2.5 if columns > 2 else 3.2  # inches
    fig = plt.figure(figsize=(side * columns + 0.4, side * rows + 0.9))
    parts = fig.subplots(rows, columns, squeeze=False, subplot_kw={"projection": "3d"})
    margin = 0.45 / fig.get_figheight()  # for the title above and the note below
    fig.subplots_adjust(0.0, margin, 0.97, 1 - 1.3 * margin, wspace=0.08, hspace=0.1)
    short = len(words) <= 8  # of a longer sentence there is room for the positions alone
    labels = token_labels(words) if short else [str(position) for position in range(len(words))]
    kinds = {"a ridge": 0, "a wall": 0, "separate peaks": 0}
    for ax, (layer, head) in zip(parts.flat, heads, strict=True):
        draw_landscape(ax, weights[layer, head], labels, size=6.5)
        ax.set_box_aspect((4, 4, 2.7))
        ax.tick_params(pad=-3)
        ax.set_zticklabels([])
        kind = next(kind for kind in kinds if describe(weights[layer, head], words).startswith(kind))
        kinds[kind] += 1
        ax.set_title(f"layer {layer} head {head}: {kind}", fontsize=9, color=head_color(head), y=1.0, pad=6)
    ridges, walls, peaks = kinds.values()
    title = f"{len(heads)} heads: {counted(ridges, 'ridge')}, {counted(walls, 'wall')}, {peaks} with separate peaks"
    fig.suptitle(title, fontsize=12)
    entropy = normalized_entropy(torch.stack([weights[place] for place in heads])).nanmean()
    model_note(
        fig, f"{trained.label} · normalised entropy {entropy:.2f} · left side: query, right side: key, height: 0 to 1"
    )
    return fig, title


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" + "s" * (number != 1)


def turn(fig: Figure, ax: Axes3D, frames: int) -> list[np.ndarray]:
    """The figure from all sides, one image (height, width, 3) a frame."""
    images = []
    for frame in range(frames):
        ax.view_init(elev=38, azim=-60 + 360 * frame / frames)
        buffer = io.BytesIO()
        fig.savefig(buffer, format="rgba", dpi=80)
        width, height = (round(side * 80) for side in fig.get_size_inches())
        images.append(np.frombuffer(buffer.getvalue(), np.uint8).reshape(height, width, 4)[..., :3])
    return images


def record_finding(frames: int, seconds: float, options: argparse.Namespace) -> None:
    measured = {"frames": frames, "seconds, rounded up to tens": 10 * math.ceil(seconds / 10)}
    findings.record(
        "phase3_visualization/attention_3d.py",
        [
            Finding(
                "C125",
                "The rotating landscape takes about 30 seconds to draw on a CPU",
                "course notes",
                measured,
                "one head, one turn; in tens of seconds, so that two runs agree",
                "40 seconds or less",
                findings.verdict(seconds <= 40),
            )
        ],
        options.output_dir,
    )


def main(argv: list[str] | None = None) -> None:
    parser = cli.parser(__doc__)
    parser.add_argument("--layer", type=int, help="layer, counted from 0 (default: that of the sharpest head)")
    parser.add_argument("--head", type=int, help="head, counted from 0 (default: the sharpest)")
    options = cli.parse(parser, argv)
    trained = load_multi_head_model(options)
    entropy = normalized_entropy(patterns(trained, options.words)).nanmean(dim=-1)  # (L, H, T, T) -> (L, H)
    candidates = cli.chosen_heads(parser, options, trained.recipe)
    layer, head = min(candidates, key=lambda place: entropy[place].item())

    started = time.perf_counter()
    fig, ax, title = draw(trained, options.words, layer, head)
    images = turn(fig, ax, frames=6 if options.quick else 36)
    record_finding(len(images), time.perf_counter() - started, options)
    caption = f'{title}. "{" ".join(options.words)}": height is the attention weight.'
    animations = options.output_dir / paths.ANIMATIONS / "phase3"
    save_animation(images, animations / "3d_attention.gif", caption=caption, seconds_per_frame=0.12)
    ax.view_init(elev=38, azim=-60)
    plots = options.output_dir / paths.PLOTS / "phase3"
    save_figure(fig, plots / f"3d_attention.{options.format}", caption=caption)
    if len(candidates) == 1:
        return
    fig, title = draw_heads(trained, options.words, candidates)
    caption = f'{title}. "{" ".join(options.words)}": one landscape for each head, height is the attention weight.'
    save_figure(fig, plots / f"3d_heads.{options.format}", caption=caption)


if __name__ == "__main__":
    cli.run(main)
