"""The look of every picture, and the heatmap that all phases draw.

One theme: white ground; one perceptual map for weights, always from 0 to 1, in which zero is the
ground; hidden cells hatched grey, clearly not zero. Wherever heads are named, what a head does has
the same colour, and a head without a role is grey. Queries (attending) go down, keys (attended to)
go across, and words carry their position, "0 the", so that repeated words stay apart. Lines carry
their names at their ends.

Helpers draw on an Axes and return it; only scripts save, through save_figure. A script's main() has
the theme (see cli.script); a notebook has it in the lines below `with
visualization_utils.theme():`.
"""

import argparse
import itertools
import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import imageio.v3 as imageio
import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from torch import Tensor

from shared import paths

INK, QUIET, GREY, HIDDEN = "#1d2733", "#5b6672", "#969fa8", "#e6e8eb"
# Told apart by everybody, by lightness too, whatever kind of colour blindness: a test computes it.
BLUE, ORANGE, GREEN, RED, PURPLE = PALETTE = ("#0b7cf2", "#d79300", "#2a8263", "#bd3703", "#a42f8a")
WEIGHT_MAP = LinearSegmentedColormap.from_list(
    "weights", ["white", *sns.color_palette("mako_r", 256)[12:230:11]]
)
SIGNED_MAP = LinearSegmentedColormap.from_list(  # below zero, zero, above
    "signed", [PURPLE, "white", GREEN]
)
RELATION_COLORS = {"determiner": BLUE, "subject": RED, "place": GREEN, "adjective": ORANGE}

THEME = {
    "figure.dpi": 100,
    "savefig.dpi": 110,
    "figure.constrained_layout.h_pad": 0.1,  # inches: nothing touches the edge
    "figure.constrained_layout.w_pad": 0.1,
    "figure.facecolor": "white",
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": "#aab2bb",
    "axes.titlesize": 11,
    "axes.titlecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "hatch.color": "#b9c0c8",
    "hatch.linewidth": 0.8,
    "svg.hashsalt": "attention",  # the same SVG for the same picture
}


@contextmanager
def theme() -> Iterator[None]:
    """Our look, whatever the style was before; and afterwards that one again. Figures open no
    window meanwhile.
    """
    with plt.style.context(THEME, after_reset=True), plt.ioff():
        yield


def role_color(role: str) -> str:
    """The colour of what a head does: of a relation, in either direction ("verb → subject",
    "verb-subject"); purple for a position or a column ("previous", "most → subject"); grey for "no
    name"."""
    relation = next(
        (color for word, color in RELATION_COLORS.items() if word in role and "most" not in role),
        None,
    )
    return relation or (GREY if role == "no name" else PURPLE)


def token_labels(tokens: Sequence[str]) -> list[str]:
    """["the", "cat"] -> ["0 the", "1 cat"]."""
    return [f"{position} {token}" for position, token in enumerate(tokens)]


def _checked(weights: Tensor, query_tokens: Sequence[str], key_tokens: Sequence[str]) -> Tensor:
    weights = torch.as_tensor(weights).detach().cpu().double()
    shape, wanted = tuple(weights.shape), (len(query_tokens), len(key_tokens))
    if weights.dim() != 2:
        raise ValueError(
            f"a heatmap shows one (T_q, T_k) matrix: got shape {shape}, "
            "pick one, e.g. weights[0, 0]"
        )
    if shape != wanted:
        raise ValueError(
            f"weights must have a row for each query and a column for each key {wanted}: "
            f"got {shape}"
        )
    sums = weights.sum(dim=-1)
    wrong = ((sums - 1).abs() > 1e-4) & (sums != 0)  # a query that may see nothing has an empty row
    if wrong.any():
        row = int(wrong.nonzero()[0])
        raise ValueError(
            f"row {row} sums to {sums[row]:.4f}, not 1: are these weights, with keys along the "
            "last axis?"
        )
    return weights


def readable(color: str) -> tuple[float, float, float]:
    """A colour for text on white: a little darker than the line that it names."""
    return sns.blend_palette([color, INK], 5)[1]


def hatch_cell(ax: Axes, x: float, y: float, width: float = 1, height: float = 1) -> None:
    """Mark a cell as hidden or blocked: hatched light grey, in every picture."""
    ax.add_patch(
        Rectangle(
            (x, y), width, height, facecolor=HIDDEN, hatch="////", edgecolor="white", linewidth=0.8
        )
    )


def plot_attention(
    weights: Tensor,
    query_tokens: Sequence[str],
    key_tokens: Sequence[str] | None = None,
    *,
    mask: Tensor | None = None,
    ax: Axes | None = None,
    title: str | None = None,
    annotate: bool | None = None,
    labels: bool = True,
) -> Axes:
    """Draw one attention matrix (T_q, T_k) as a heatmap on `ax`.

    How to read it: along a row. Each row sums to 1; a dark cell means that this query takes most of
    its output from that key. It is a weight, not an explanation. Cells that `mask` hides (False)
    are hatched. annotate: numbers in the cells (default: up to 10 x 10). labels=False leaves out
    axis names, for small panels. Raises ValueError for a wrong number of axes or tokens, and for
    rows that do not sum to 1.
    """
    key_tokens = query_tokens if key_tokens is None else key_tokens
    weights = _checked(weights, query_tokens, key_tokens)
    ax = ax or plt.figure(figsize=(5, 5), layout="constrained").add_subplot()
    if annotate is None:
        annotate = max(weights.shape) <= 10
    hidden = (
        torch.zeros_like(weights, dtype=torch.bool)
        if mask is None
        else ~mask.cpu().expand(weights.shape)
    )
    shown = weights.masked_fill(hidden, math.nan).numpy()
    ax.pcolormesh(shown, vmin=0, vmax=1, cmap=WEIGHT_MAP, edgecolors=HIDDEN, linewidth=0.8)
    for row, column in hidden.nonzero().tolist():
        hatch_cell(ax, column, row)
    if annotate:
        for row, column in (~hidden).nonzero().tolist():
            weight = weights[row, column].item()
            color = "white" if weight > 0.5 else INK
            ax.text(
                column + 0.5,
                row + 0.5,
                f"{weight:.2f}",
                ha="center",
                va="center",
                fontsize=9,
                color=color,
            )
    ax.xaxis.tick_top()
    size = 9 if len(key_tokens) <= 12 else 7.5
    ax.set_xticks(
        [column + 0.5 for column in range(len(key_tokens))], token_labels(key_tokens), fontsize=size
    )
    ax.set_yticks(
        [row + 0.5 for row in range(len(query_tokens))], token_labels(query_tokens), fontsize=size
    )
    plt.setp(ax.get_xticklabels(), rotation=45, ha="left", rotation_mode="anchor")
    ax.tick_params(length=0, pad=2)
    ax.invert_yaxis()
    ax.set_aspect("equal")
    ax.spines[:].set_visible(False)
    if labels:
        ax.xaxis.set_label_position("top")
        ax.set_xlabel("key (attended to)", color=QUIET)
        ax.set_ylabel("query (attending)", color=QUIET)
    if title:
        ax.set_title(title, pad=10)
    return ax


def plot_heads(
    weights: Tensor,
    tokens: Sequence[str],
    *,
    axes: Sequence[Axes],
    titles: Sequence[str],
    colors: Sequence[str] | None = None,
) -> Sequence[Axes]:
    """Draw every head of weights (H, T, T), one on each of `axes`; colors: of the titles, see
    role_color.
    """
    for head, (matrix, ax, title) in enumerate(zip(weights, axes, titles, strict=True)):
        plot_attention(matrix, tokens, ax=ax, annotate=False, labels=False)
        ax.set_title(title, fontsize=9, color=readable(colors[head]) if colors else INK, pad=6)
    return axes


def plot_mask(
    ax: Axes, mask: Tensor, labels: Sequence[str] = (), *, wrong: Tensor | None = None
) -> Axes:
    """One mask (T, T), queries down and keys across: allowed cells blue, hidden ones hatched, wrong
    ones red.
    """
    for row, column in itertools.product(*map(range, mask.shape)):
        if mask[row, column]:
            color = (BLUE, 0.3) if wrong is None or not wrong[row, column] else RED
            ax.add_patch(
                Rectangle((column, row), 1, 1, facecolor=color, edgecolor="white", linewidth=0.8)
            )
        else:
            hatch_cell(ax, column, row)
    ax.set(xlim=(0, mask.size(1)), ylim=(mask.size(0), 0), aspect="equal")
    ax.xaxis.tick_top()
    ax.set_xticks([place + 0.5 for place in range(len(labels))], labels)
    ax.set_yticks([place + 0.5 for place in range(len(labels))], labels)
    ax.tick_params(length=0, pad=2)
    ax.spines[:].set_visible(False)
    return ax


def plot_cells(
    ax: Axes,
    shares: Tensor,
    texts: Sequence[Sequence[str]],
    rows: Sequence[str],
    columns: Sequence[str],
) -> Axes:
    """A table of words or numbers, each cell shaded by its share (rows, columns) of 0 to 1; the
    first row is on top.
    """
    ax.pcolormesh(shares.numpy(), vmin=0, vmax=1, cmap=WEIGHT_MAP, edgecolors=HIDDEN, linewidth=1)
    for row, line in enumerate(texts):
        for column, text in enumerate(line):
            color = "white" if shares[row, column] > 0.5 else INK
            ax.text(
                column + 0.5, row + 0.5, text, ha="center", va="center", fontsize=12, color=color
            )
    ax.set_yticks([row + 0.5 for row in range(len(rows))], rows)
    ax.set_xticks([column + 0.5 for column in range(len(columns))], columns, fontsize=11)
    ax.xaxis.tick_top()
    ax.invert_yaxis()
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    return ax


def weight_colorbar(fig: Figure, axes: Axes | Sequence[Axes], **options: float) -> None:
    """One colour bar for the weights, 0 to 1."""
    bar = fig.colorbar(plt.cm.ScalarMappable(plt.Normalize(0, 1), WEIGHT_MAP), ax=axes, **options)
    bar.set_label("attention weight", color=QUIET)
    bar.outline.set_visible(False)


def label_ends(
    ax: Axes, labels: Mapping[str, tuple[float, float, str]], *, size: float = 9
) -> None:
    """Write names of lines at their ends, none on another; labels: name -> (x, y, colour) of the
    line's last point.

    Call it when limits and scales are set. The text is in a readable colour of its line.
    """
    ax.figure.draw_without_rendering()  # the layout: from here on a point has its place in pixels
    line = 1.3 * size * ax.figure.dpi / 72
    heights = {name: ax.transData.transform((x, y))[1] for name, (x, y, _) in labels.items()}
    top = -math.inf  # of the names so far
    for name in sorted(labels, key=lambda name: heights[name]):
        x, y, color = labels[name]
        half = line * (1 + name.count("\n")) / 2
        middle = max(heights[name], top + half)
        top, up = middle + half, (middle - heights[name]) * 72 / ax.figure.dpi
        style = {
            "textcoords": "offset points",
            "va": "center",
            "annotation_clip": False,
            "fontsize": size,
        }
        ax.annotate(name, (x, y), (6, up), color=readable(color), **style)


def model_note(fig: Figure, text: str) -> None:
    """The line at the foot of every figure: which model, trained or untrained, and its normalised
    entropy.
    """
    fig.supxlabel(text, fontsize=9, color=QUIET)


def headline(fig: Figure, title: str, note: str, size: float = 13) -> None:
    """Puts the finding at the top of a figure, in lines that fit, and model_note at its foot."""
    letters = int(
        fig.get_figwidth() * 72 / (0.54 * size)
    )  # a letter is about half as wide as its size
    fig.suptitle(
        "\n".join(textwrap.fill(line, letters) for line in title.splitlines()), fontsize=size
    )
    model_note(fig, note)


def save_plot(options: argparse.Namespace, name: str, fig: Figure, caption: str) -> Path | None:
    """Save a figure where the options say, if they want it: save_plot(options, "phase2/head_roles",
    *draw(...)).
    """
    if not options.pictures:
        plt.close(fig)
        return None
    return save_figure(
        fig, options.output_dir / paths.PLOTS / f"{name}.{options.format}", caption=caption
    )


def picture_of(fig: Figure) -> Image.Image:
    """The pixels of a figure as savefig would write them, but drawn once: savefig draws all of it
    twice.
    """
    if plt.rcParams["savefig.dpi"] != "figure":  # as it is where the theme is not
        fig.set_dpi(plt.rcParams["savefig.dpi"])
    canvas = FigureCanvasAgg(fig)
    canvas.draw()
    return Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")


def save_figure(fig: Figure, path: Path, *, caption: str) -> Path:
    """Write the figure, whole or not at all, close it and print where it is.

    caption: what the picture shows, for readers who cannot see it and for the report page; kept
    inside the file.
    """
    with paths.whole_file(path) as unfinished:
        if path.suffix == ".svg":
            fig.savefig(unfinished, metadata={"Description": caption, "Date": None})
        else:
            info = PngInfo()
            info.add_text("Description", caption)
            # 256 colours look the same and take a third of the space
            image = picture_of(fig).quantize(256, method=Image.Quantize.MAXCOVERAGE)
            image.save(
                unfinished, pnginfo=info
            )  # optimize=True takes a second in all, for 7 % of the bytes
    plt.close(fig)
    print(f"  picture: {paths.shown(path)}")
    return path


def in_few_colors(images: Sequence[Image.Image], sides: Sequence[float] = (1,)) -> list[np.ndarray]:
    """Images as (height, width, 3) bytes, all in the same 252 colours, which keeps a GIF of them
    small.

    They are those of weights, as bright as the sides of a block are, and shades of all others.
    """
    weights = WEIGHT_MAP(np.linspace(0, 1, 180 // len(sides)))[:, :3]
    shades = [
        sns.blend_palette(["white", color], 8) for color in (*PALETTE, INK, QUIET, GREY, HIDDEN)
    ]
    colors = np.concatenate([*(side * weights for side in sides), *shades])
    colors, few = (255 * colors).round().astype(np.int64), []
    nearest = np.full(1 << 24, -1, dtype=np.int16)  # of our colours, for each that has come up
    for image in images:
        packed = (
            np.asarray(image.convert("RGBA")).view("<u4")[..., 0] & 0xFFFFFF
        )  # red, green, blue in one number
        new = np.unique(packed[nearest[packed] < 0])
        parts = np.stack([new & 255, new >> 8 & 255, new >> 16], axis=-1)  # (colours, 3)
        nearest[new] = ((parts[:, None] - colors) ** 2).sum(axis=-1).argmin(axis=1)
        few.append(colors[nearest[packed]].astype(np.uint8))
    return few


def save_animation(
    images: Sequence[np.ndarray], path: Path, *, caption: str, seconds_per_frame: float
) -> Path:
    """Write images (height, width, 3) as a GIF that repeats for ever, whole or not at all, and
    print where it is.

    The same image several times in a row is one frame that stays longer.
    """
    frames = [list(same) for _, same in itertools.groupby(images, key=id)]
    durations = [1000 * seconds_per_frame * len(same) for same in frames]
    with paths.whole_file(path) as unfinished:
        stills = [same[0] for same in frames]
        imageio.imwrite(unfinished, stills, duration=durations, loop=0, comment=caption.encode())
    print(f"  animation: {paths.shown(path)}")
    return path
