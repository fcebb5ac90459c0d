"""Plotting helpers of all phases: matrices as cells, and how a picture looks and is saved.

Here are heatmaps, masks and tables; lines, bars and arcs are in shared/charts.py.

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
from matplotlib.text import Text
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
# What a head does has a hue of its own: in the live page blue is to press, and red is wrong.
PLUM, VIOLET, OLIVE, AMBER, TAUPE = ROLE_PALETTE = (
    "#90417d",
    "#ac6fe7",
    "#3d5806",
    "#d67018",
    "#9b7363",
)
RELATION_COLORS = {"determiner": PLUM, "subject": VIOLET, "place": OLIVE, "adjective": AMBER}

COLUMN = 830  # pixels: GitHub shows no picture wider, and shrinks what is
INCH = 110  # pixels at which a page shows an inch of a figure
DENSITY = 2  # pixels of a PNG for each of these: letters are sharp on dense screens, too
WIDE = 5.5  # inches: in a figure this wide letters of 10 points are 9 pixels high on a phone
PHONE = 358  # pixels: as wide as GitHub shows a picture there
AT_END = "at the end of a line"  # marks a name that label_ends has written

THEME = {
    "savefig.dpi": INCH,
    "figure.constrained_layout.h_pad": 0.1,  # inches: nothing touches the edge
    "figure.constrained_layout.w_pad": 0.1,
    "figure.facecolor": "white",
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": "#aab2bb",
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "hatch.color": "#b9c0c8",
    "hatch.linewidth": 0.8,
    "svg.hashsalt": "attention",  # the same SVG for the same picture
    "text.parse_math": False,  # a token may hold two $; so name the ticks of a logarithmic axis
}


@contextmanager
def theme() -> Iterator[None]:
    """Within the block figures have our look, whatever the style was before, and open no window."""
    with plt.style.context(THEME, after_reset=True), plt.ioff():
        yield


def role_color(role: str) -> str:
    """Returns the colour of what a head does.

    A relation has one for both directions ("verb → subject", "verb-subject"). A position or a
    column is taupe ("previous", "most → subject"), and "no name" is grey.
    """
    if role == "no name":
        return GREY
    for word, color in RELATION_COLORS.items():
        if word in role and "most" not in role:
            return color
    return TAUPE


def token_labels(tokens: Sequence[str]) -> list[str]:
    """["the", "cat"] -> ["0 the", "1 cat"]."""
    return [f"{position} {token}" for position, token in enumerate(tokens)]


def readable(color: str) -> tuple[float, float, float]:
    """Returns a colour for text on white: a little darker than the line that it names."""
    return sns.blend_palette([color, INK], 5)[1]


# ---- matrices


def _check_rows(weights: Tensor, wanted: tuple[int, int]) -> None:
    """Raises ValueError unless weights are one matrix of this shape whose rows sum to 1 at most."""
    shape = tuple(weights.shape)
    if shape != wanted:
        rule = (
            f"a heatmap shows one matrix, a row for each query and a column for each key, {wanted}"
        )
        raise ValueError(f"{rule}: got {shape}; of several pick one, e.g. weights[0, 0]")
    sums = weights.sum(dim=-1)
    wrong = (sums > 1.0001) | (weights < 0).any(dim=-1)  # with a sink logit, less than 1 is right
    if wrong.any():
        row = int(wrong.nonzero()[0])
        rule = f"row {row} sums to {sums[row]:.4f}, and weights are 0 or more, and 1 at most"
        raise ValueError(f"{rule}: are these weights, with keys along the last axis?")


def hatch_cell(ax: Axes, x: float, y: float) -> None:
    """Mark a cell as hidden or blocked: hatched light grey, in every picture."""
    style = {"facecolor": HIDDEN, "hatch": "////", "edgecolor": "white", "linewidth": 0.8}
    ax.add_patch(Rectangle((x, y), 1, 1, **style))


def frame_cell(
    ax: Axes, row: int, column: int, color: str, *, width: int = 1, linewidth: float = 2.5
) -> Rectangle:
    """Draw a frame around a cell of a heatmap, or around `width` cells side by side; returns it."""
    style = {"fill": False, "edgecolor": color, "linewidth": linewidth, "zorder": 4}
    return ax.add_patch(Rectangle((column, row), width, 1, **style))


def write_in_cell(
    ax: Axes, row: int, column: int, text: str, shade: float | Tensor, size: int = 10
) -> Text:
    """Write in the middle of a cell, white where it is dark; shade: 0 to 1. Returns the text."""
    style = {"ha": "center", "va": "center", "fontsize": size}
    style["color"] = "white" if shade > 0.5 else INK
    return ax.text(column + 0.5, row + 0.5, text, **style)


def _name_cells(ax: Axes, rows: Sequence[str], columns: Sequence[str]) -> None:
    """Name the rows, the first one on top, and above them the columns; no frame."""
    ax.xaxis.tick_top()
    ax.set_xticks(np.arange(len(columns)) + 0.5, columns)
    ax.set_yticks(np.arange(len(rows)) + 0.5, rows)
    ax.invert_yaxis()
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)


def name_axes(ax: Axes) -> None:
    """Name the axes of a map of queries and keys, that of the keys above it."""
    ax.xaxis.set_label_position("top")
    ax.set_xlabel("key (attended to)", color=QUIET)
    ax.set_ylabel("query (attending)", color=QUIET)


def plot_attention(
    ax: Axes,
    weights: Tensor,
    query_tokens: Sequence[str],
    key_tokens: Sequence[str] | None = None,
    *,
    mask: Tensor | None = None,
    annotate: bool = True,
    labels: bool = True,
) -> Axes:
    """Draw one attention matrix (T_q, T_k) as a heatmap on `ax`.

    How to read it: along a row. Each row sums to 1 (or to less, with a sink logit); a dark cell
    means that this query takes most of its output from that key. It is a weight, not an
    explanation. Cells that `mask` hides (False) are hatched. annotate: numbers in the cells of up
    to 10 x 10. labels=False leaves out axis names, for small panels. Raises ValueError for a wrong
    number of axes or tokens, and for rows that sum to more than 1.
    """
    key_tokens = query_tokens if key_tokens is None else key_tokens
    weights = weights.detach().cpu().double()
    _check_rows(weights, (len(query_tokens), len(key_tokens)))
    visible = torch.ones_like(weights, dtype=torch.bool)
    if mask is not None:
        visible &= mask.cpu()
    shown = weights.masked_fill(~visible, math.nan).numpy()
    ax.pcolormesh(shown, vmin=0, vmax=1, cmap=WEIGHT_MAP, edgecolors=HIDDEN, linewidth=0.8)
    for row, column in (~visible).nonzero().tolist():
        hatch_cell(ax, column, row)
    if annotate and max(weights.shape) <= 10:
        for row, column in visible.nonzero().tolist():
            weight = weights[row, column]
            write_in_cell(ax, row, column, f"{weight:.2f}", weight)
    _name_cells(ax, token_labels(query_tokens), token_labels(key_tokens))
    ax.tick_params(pad=2)
    plt.setp(ax.get_xticklabels(), rotation=45, ha="left", rotation_mode="anchor")
    ax.set_aspect("equal")
    if labels:
        name_axes(ax)
    return ax


def plot_mask(
    ax: Axes, mask: Tensor, labels: Sequence[str] = (), *, wrong: Tensor | None = None
) -> Axes:
    """Draw a mask (T, T), queries down and keys across: visible cells blue, hidden ones hatched.

    wrong: which cells are red if they are visible.
    """
    for row, column in np.ndindex(*mask.shape):
        if not mask[row, column]:
            hatch_cell(ax, column, row)
            continue
        color = (BLUE, 0.3) if wrong is None or not wrong[row, column] else RED
        style = {"facecolor": color, "edgecolor": "white", "linewidth": 0.8}
        ax.add_patch(Rectangle((column, row), 1, 1, **style))
    ax.set(xlim=(0, mask.size(1)), ylim=(0, mask.size(0)), aspect="equal")
    _name_cells(ax, labels, labels)
    ax.tick_params(pad=2)
    return ax


def plot_cells(
    ax: Axes,
    shares: Tensor,
    texts: Sequence[Sequence[str]],
    rows: Sequence[str],
    columns: Sequence[str],
) -> Axes:
    """Draw a table of texts, each cell shaded by its share of 0 to 1; shares: (rows, columns)."""
    ax.pcolormesh(shares.numpy(), vmin=0, vmax=1, cmap=WEIGHT_MAP, edgecolors=HIDDEN, linewidth=1)
    for row, column in np.ndindex(*shares.shape):
        write_in_cell(ax, row, column, texts[row][column], shares[row, column], 12)
    _name_cells(ax, rows, columns)
    ax.tick_params(axis="x", labelsize=11)
    return ax


# ---- texts beside a chart


def label_ends(
    ax: Axes, labels: Mapping[str, tuple[float, float, str]], *, size: float = 10
) -> None:
    """Write the names of lines at their ends, in readable colours of the lines.

    labels: name -> (x, y, colour) of the line's last point. `headline` moves them apart.
    """
    style = {"textcoords": "offset points", "va": "center", "annotation_clip": False}
    for name, (x, y, color) in labels.items():
        style["color"] = readable(color)
        ax.annotate(name, (x, y), (6, 0), fontsize=size, gid=AT_END, **style)


def spread_ends(fig: Figure) -> None:
    """Move the names at the ends of lines so that none lies on another.

    Lines that end at one x share the room beside it. Call it when all else has its place: limits,
    scales, and a title, which takes room from the axes.
    """
    names = [text for text in fig.findobj(Text) if text.get_gid() == AT_END]
    if not names:
        return
    fig.draw_without_rendering()  # the layout: from here on a point has its place in pixels
    heights = {}
    for name in names:
        _, height = name.axes.transData.transform(name.xy)
        heights[name] = height * 72 / fig.dpi  # points, the unit of font sizes
    tops = {}  # of the names so far, by axes and x
    for name in sorted(names, key=heights.get):
        x, _ = name.xy
        lines = 1 + name.get_text().count("\n")
        half = 1.3 * name.get_fontsize() * lines / 2
        middle = max(heights[name], tops.get((name.axes, x), -math.inf) + half)
        tops[name.axes, x] = middle + half
        name.set_position((6, middle - heights[name]))


def _even_lines(text: str, letters: int) -> str:
    """Break a text into as few lines as fit, all about equally long: no last word alone."""
    count = len(textwrap.wrap(text, letters, break_on_hyphens=False))
    while letters > 1 and len(textwrap.wrap(text, letters - 1, break_on_hyphens=False)) == count:
        letters -= 1
    return textwrap.fill(text, letters, break_on_hyphens=False)


def headline(fig: Figure, title: str, note: str, size: float = 13) -> None:
    """Write the finding at the top of a figure, and a note at its foot, both in lines that fit.

    note: which model, trained or untrained, and its normalised entropy.
    """
    letters = int(fig.get_figwidth() * 72 / (0.54 * size))  # a letter is half as wide as high
    lines = [_even_lines(line, letters) for line in title.splitlines()]
    fig.suptitle("\n".join(lines), fontsize=size)
    fig.supxlabel(note, fontsize=10, color=QUIET, wrap=True)
    spread_ends(fig)


# ---- files


def save_plot(options: argparse.Namespace, name: str, fig: Figure, caption: str) -> None:
    """Save a figure where the options say, if they want pictures; name: as "phase2/head_roles"."""
    if options.pictures:
        path = options.output_dir / paths.PLOTS / f"{name}.{options.format}"
        save_figure(fig, path, caption=caption)
    else:
        plt.close(fig)


def sharp(fig: Figure) -> float:
    """Returns the density at which a PNG has twice the pixels at which a page shows it.

    A figure that is wider than the page's column is shown smaller, so that it needs less.
    """
    width = fig.get_figwidth() * INCH
    return max(1, DENSITY * min(1, COLUMN / width))


def picture_of(fig: Figure, *, density: float = 1) -> Image.Image:
    """Returns the pixels of a figure, `density` times those at which a page shows it.

    Frames of an animation keep a density of 1. (savefig draws all of it twice.)
    """
    fig.set_dpi(density * INCH)
    canvas = FigureCanvasAgg(fig)
    canvas.draw()
    return Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")


def smallest_letters(fig: Figure) -> float:
    """Returns the size in pixels of a figure's smallest text, where it is PHONE pixels wide."""
    fig.draw_without_rendering()  # ticks have their texts from here on
    texts = [text for text in fig.findobj(Text) if text.get_visible() and text.get_text().strip()]
    points = min((text.get_fontsize() for text in texts), default=math.inf)
    return points / 72 / fig.get_figwidth() * PHONE


def save_figure(fig: Figure, path: Path, *, caption: str) -> None:
    """Write the figure, whole or not at all, close it and print where it is.

    caption: what the picture shows, for readers who cannot see it and for the report page; kept
    inside the file. A PNG is sharp on a page.
    """
    with paths.whole_file(path) as unfinished:
        if path.suffix == ".svg":
            fig.savefig(unfinished, metadata={"Description": caption, "Date": None})
        else:
            info = PngInfo()
            info.add_text("Description", caption)
            info.add_text("Letters", f"{smallest_letters(fig):.1f} pixels on a phone")
            # 256 colours look the same and take a third of the space.
            picture = picture_of(fig, density=sharp(fig))
            image = picture.quantize(256, method=Image.Quantize.MEDIANCUT)
            image.save(unfinished, pnginfo=info, optimize=True)
    plt.close(fig)
    print(f"  picture: {paths.shown(path)}")


def in_few_colors(images: Sequence[Image.Image]) -> list[np.ndarray]:
    """Returns images (height, width, 3) in the same 80 colours, which keeps a GIF of them small."""
    below_each_other = Image.fromarray(np.concatenate(images))
    # Each colour becomes the mean of its pixels, once: kmeans says how many may still change.
    few = below_each_other.quantize(80, method=Image.Quantize.MAXCOVERAGE, kmeans=10**9)
    return np.split(np.asarray(few.convert("RGB")), len(images))


def save_animation(
    images: Sequence[np.ndarray], path: Path, *, caption: str, seconds_per_frame: float
) -> None:
    """Write images (height, width, 3) as a GIF that repeats, whole or not at all, and print where.

    The same image several times in a row is one frame that stays longer: Pillow sees to it.
    """
    milliseconds = 1000 * seconds_per_frame
    with paths.whole_file(path) as unfinished:
        imageio.imwrite(unfinished, images, duration=milliseconds, loop=0, comment=caption.encode())
    print(f"  animation: {paths.shown(path)}")
