"""Where does each head of a model look? Three lines draw a map of each head, from any weights:

    from phase3_visualization.pretrained.attention_maps import draw_heads

    draw_heads(weights, tokens).savefig("maps.pdf")

weights: (L, H, T, T), (H, T, T), or a list of layers, such as the attentions of a model of the
Hugging Face library. tokens: T strings, and those that are equal count as the same token. A head
is named after the place that gets more than half of its weight, and at least twice as much as from
a head that does not choose. No map is an average over heads.
"""

import math
from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.nn.functional as F
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from shared.head_statistics import even_weights, head_statistics, relation_weight
from shared.visualization_utils import (
    GREY,
    HIDDEN,
    PURPLE,
    QUIET,
    WEIGHT_MAP,
    headline,
    readable,
    token_labels,
)

NAMED, TIMES_EVEN = 0.5, 2  # more than this weight, and so many times that of an even head
FEWEST = 3  # so many queries must have a place, or no head is named after it
UNTRAINED = 0.95  # normalised entropy; in a trained model some head is far below it
NO_PLACE = "no name"  # of a head that looks mostly at no place
LARGE = 4  # so many maps have tokens of their own; more of them share the tokens
LETTER = 0.11  # inches from a token to the next
FINEST = 50  # cells in an inch of a map: every file has more pixels than that


# ---- what the weights say


def as_layers(weights: Tensor | Sequence[Tensor], tokens: Sequence[str]) -> Tensor:
    """Returns the weights of one text as (L, H, T, T), whichever way they came.

    Layers in a list must have one shape. Raises ValueError for other shapes, for rows that cannot
    be weights, and for what some models hand out instead of weights.
    """
    try:
        if isinstance(weights, tuple | list):
            weights = torch.stack([torch.as_tensor(layer) for layer in weights])
        weights = torch.as_tensor(weights).detach().cpu().double()
    except (RuntimeError, TypeError, ValueError):
        raise ValueError(
            "layers are tensors of one shape; if they are None, load the model with "
            'attn_implementation="eager"; if they are tuples, as generate() returns them, '
            "take model(tokens).attentions, of one pass over the whole text"
        ) from None
    if weights.dim() == 5:
        weights = weights.squeeze(1)  # layers of a batch of one text: (L, 1, H, T, T)
    if weights.dim() == 3:
        weights = weights[None]  # (H, T, T) -> (1, H, T, T)
    length = len(tokens)
    if weights.dim() != 4 or weights.shape[2:] != (length, length) or not weights.numel():
        raise ValueError(
            f"maps need weights (L, H, T, T) or (H, T, T) of one text, with T={length} for these "
            f"tokens: got {tuple(weights.shape)}"
        )
    # In 16 bits a row sums to 1 up to a hundredth, and with a sink logit to less.
    if not (weights.min() >= 0 and weights.sum(dim=-1).max() < 1.02):
        raise ValueError(
            "weights are 0 or more, and a row sums to 1 at most: are these the weights after "
            "softmax, with keys along the last axis, and without dropout (model.eval())?"
        )
    return weights


def seen_keys(layers: Tensor) -> Tensor:
    """Which keys a query can see, bool (L, T, T): those that some head of the layer gives weight.

    layers (L, H, T, T).
    """
    return (layers > 0).any(dim=1)


def places_in(tokens: Sequence[str], seen: Tensor) -> dict[str, Tensor]:
    """Place -> where it is for each query, bool (T, T).

    seen: bool (T, T). A query that sees one key alone has no choice, and so no place.
    """
    words = np.array(tokens)
    same = torch.from_numpy(words[:, None] == words)  # (T, T)
    position = torch.arange(len(tokens))
    offset = position - position[:, None]  # from query to key, (T, T)
    places = {
        "token before": offset == -1,
        "itself": offset == 0,
        "token after": offset == 1,
        "same token": same & (offset != 0),
        "after same token": same.tril(-1).roll(1, dims=1),
        "first token": (position == 0) & (offset != 0),
        "last token": (position == len(tokens) - 1) & (offset != 0),
    }
    has_choice = seen.sum(dim=-1, keepdim=True) > 1
    return {place: where & seen & has_choice for place, where in places.items()}


def weight_by_place(layer: Tensor, tokens: Sequence[str], seen: Tensor) -> dict[str, Tensor]:
    """Place -> the mean weight that each head gives it, (H,), where FEWEST queries or more have it.

    layer (H, T, T), seen bool (T, T). Each token that is neither first nor last is a place, too,
    for all other queries.
    """
    weights = {}
    for place, where in places_in(tokens, seen).items():
        if where.any(dim=-1).sum() >= FEWEST:
            weights[place] = relation_weight(layer[None], where[None])
    others = seen & ~torch.eye(len(tokens), dtype=torch.bool)
    queries = others.sum(dim=0)  # that see a key: (T, T) -> (T,)
    by_others = (layer * others).sum(dim=1) / queries  # (H, T, T) -> (H, T)
    labels = token_labels(tokens)
    for key in range(1, len(tokens) - 1):
        if queries[key] >= FEWEST:
            weights[f"all at {labels[key]}"] = by_others[:, key]
    return weights


def names_of_layer(layer: Tensor, tokens: Sequence[str], seen: Tensor) -> list[str]:
    """The place that gets most weight of each head, if that is enough for a name.

    layer (H, T, T), seen bool (T, T).
    """
    does_not_choose = even_weights(seen)[None].double()  # (T, T) -> (1, T, T)
    even = weight_by_place(does_not_choose, tokens, seen)
    weights = weight_by_place(layer, tokens, seen)
    names = []
    for head in range(len(layer)):
        name, most = NO_PLACE, 0.0
        for place in weights:
            weight = weights[place][head].item()
            least = max(NAMED, TIMES_EVEN * even[place].item())
            if weight > max(least, most):
                name, most = place, weight
        names.append(name)
    return names


def name_heads(layers: Tensor, tokens: Sequence[str]) -> tuple[list[list[str]], Tensor]:
    """Where the heads of a model look in one text, and how evenly; layers (L, H, T, T).

    Returns the names, [layer][head], after the place that gets most weight, and the normalised
    entropy, (L, H).
    """
    names, entropy = [], []
    for layer, seen in zip(layers, seen_keys(layers), strict=True):
        names.append(names_of_layer(layer, tokens, seen))
        entropy.append(head_statistics(layer[None], seen[None, None])["normalised entropy"])
    return names, torch.stack(entropy)


def finding_of(names: list[list[str]], entropy: Tensor) -> str:
    """How many heads have a name, or that all of them look untrained."""
    least = entropy.min().item()
    if least > UNTRAINED:
        return (
            f"No head chooses: these maps look untrained (normalised entropy {least:.2f} or "
            "more everywhere)"
        )
    number = entropy.numel()
    without_name = sum(layer.count(NO_PLACE) for layer in names)
    return f"{number - without_name} of {number} heads look mostly at one place"


# ---- pictures


def fonts_for(text: str) -> tuple[list[str], dict[int, str]]:
    """Returns font families of this machine that together have the letters of a text.

    And for str.translate a table, which puts □ in place of each letter that none of them has; one
    printed line says so.
    """
    families, missing = [], {"a", *text}  # whatever the text, there are titles to write
    installed = font_manager.fontManager.ttflist
    for font in sorted(installed, key=lambda font: font.name != "DejaVu Sans"):
        if "Last Resort" in font.name or not missing:  # it has a box for everything
            continue
        charmap = font_manager.get_font(font.fname)
        known = {letter for letter in missing if charmap.get_char_index(ord(letter))}
        if known:
            families.append(font.name)
            missing -= known
    if missing:
        way_out = "install one that has them, such as fonts-noto-cjk"
        print(f"no font here has {len(missing)} of the letters, drawn as □: {way_out}")
    return families, dict.fromkeys(map(ord, missing), "□")


def label_tokens(ax: Axes, tokens: Sequence[str], side: float) -> None:
    """Write tokens beside a map that is `side` inches wide: all of them, or as many as fit."""
    step = math.ceil(len(tokens) * LETTER / side)
    shown = range(0, len(tokens), step)
    labels = token_labels(tokens)[::step]
    ax.set_xticks(shown, labels, rotation=90)
    ax.set_yticks(shown, labels)
    ax.tick_params(length=0, pad=2, labelsize=7)
    ax.xaxis.tick_top()


def draw_map(ax: Axes, weights: Tensor, seen: Tensor, side: float) -> None:
    """Draw the map of a head, queries down and keys across; what none sees is hatched.

    weights (T, T), seen bool (T, T), side in inches. Of a long text a cell is a block of cells, and
    shows the largest of them: a column would be lost if it fell between two pixels.
    """
    ax.patch.set(facecolor=HIDDEN, hatch="////", edgecolor="white")
    block = math.ceil(len(weights) / (FINEST * side))
    largest = F.max_pool2d(weights.where(seen, -1)[None], block, ceil_mode=True)[0]
    shown = largest.masked_fill(largest < 0, math.nan)
    end = block * len(shown) - 0.5
    style = {"cmap": WEIGHT_MAP, "interpolation": "nearest", "extent": (-0.5, end, end, -0.5)}
    ax.imshow(shown.numpy(), vmin=0, vmax=1, **style)
    ax.spines[:].set(visible=True, color=HIDDEN)


def draw_heads(
    weights: Tensor | Sequence[Tensor],
    tokens: Sequence[str],
    *,
    heads: Sequence[tuple[int, int]] | None = None,
) -> Figure:
    """Draw a map of each head, a row for each layer, or of the heads that are chosen.

    weights, tokens: see the top of this file. heads: (layer, head) of each. Raises ValueError for
    weights that cannot be drawn, and for heads that are not there.
    """
    layers = as_layers(weights, tokens)
    names, entropy = name_heads(layers, tokens)
    everyone = list(np.ndindex(*entropy.shape))
    heads = everyone if heads is None else [*map(tuple, heads)]
    if not heads or set(heads) - set(everyone):
        raise ValueError(f"heads are (layer, head), {everyone[-1]} is the last: got {heads}")
    seen = seen_keys(layers)
    columns = min(len(heads), layers.size(1))
    rows = math.ceil(len(heads) / columns)
    smallest, largest = (4.5, 9.0) if len(heads) <= LARGE else (1.3, 3.0)
    side = min(max(LETTER * len(tokens), smallest), largest)
    size = ((side + 0.2) * columns + 1.6, (side + 0.5) * rows + 2)
    families, boxes = fonts_for("".join(tokens))
    shown = [token.translate(boxes) for token in tokens]
    # A token may hold two $.
    with plt.rc_context({"font.family": families, "text.parse_math": False}):
        fig, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
        for ax in axes.flat[len(heads) :]:
            ax.axis("off")
        for (layer, head), ax in zip(heads, axes.flat, strict=False):
            draw_map(ax, layers[layer, head], seen[layer], side)
            label_tokens(ax, shown, side)
            if len(heads) > LARGE:  # the maps of a row and of a column share their tokens
                ax.label_outer()
            name = names[layer][head]
            color = GREY if name == NO_PLACE else PURPLE
            title = f"{layer}.{head} {name}\nentropy {entropy[layer, head]:.2f}"
            ax.set_title(title.translate(boxes), fontsize=9, color=readable(color))
        scale = plt.cm.ScalarMappable(plt.Normalize(0, 1), WEIGHT_MAP)
        bar = fig.colorbar(scale, ax=axes, shrink=min(1, 4 / size[1]), aspect=20)
        bar.set_label("attention weight", color=QUIET)
        bar.outline.set_visible(False)
        note = (
            f"normalised entropy of all heads {entropy.mean():.2f} on average\n"
            "queries down, keys across, hatched where no head of the layer looks"
        )
        headline(fig, finding_of(names, entropy), note)
    return fig
