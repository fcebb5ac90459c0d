"""Pictures: what the helpers draw, read back from the axes, and what they refuse."""

import itertools

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from colorspacious import cspace_convert, deltaE
from matplotlib.colors import to_hex, to_rgb
from PIL import Image

from shared import cli, paths
from shared.attention_utils import causal_mask
from shared.tests.helpers import overlapping, watched_texts
from shared.visualization_utils import (
    BLUE,
    GREY,
    INK,
    PALETTE,
    ROLE_PALETTE,
    WEIGHT_MAP,
    headline,
    label_ends,
    picture_of,
    plot_attention,
    role_color,
    save_figure,
    save_plot,
    theme,
)


def test_heatmap_shows_queries_down_keys_across_and_hatches_hidden_cells():
    weights = torch.tensor([[1.0, 0.0], [0.25, 0.75]])
    ax = plot_attention(plt.figure().add_subplot(), weights, ["a", "b"], mask=causal_mask(2))
    drawn = ax.collections[0].get_array()
    assert drawn.shape == (2, 2) and drawn[1, 0] == 0.25 and drawn.mask[0, 1]
    assert ax.yaxis_inverted() and ax.collections[0].get_clim() == (0, 1)
    (patch,) = ax.patches
    assert patch.get_xy() == (1, 0) and patch.get_hatch()
    assert [label.get_text() for label in ax.get_xticklabels()] == ["0 a", "1 b"]
    assert sorted(text.get_text() for text in ax.texts) == ["0.25", "0.75", "1.00"]


@pytest.mark.parametrize("kind", ["protanomaly", "deuteranomaly", "tritanomaly", None])
def test_colours_are_told_apart_whatever_the_kind_of_colour_blindness(kind):
    """A distance of 1 in CAM02-UCS is just seen side by side; most keep twenty times that."""
    named = np.array([to_rgb(color) for color in (*PALETTE, GREY, INK)])
    roles = np.array([to_rgb(color) for color in (*ROLE_PALETTE, GREY, INK)])
    weights = WEIGHT_MAP(np.linspace(0, 1, 21))[:, :3]
    if kind:  # as they are seen then (Machado et al. 2009)
        space = {"name": "sRGB1+CVD", "cvd_type": kind, "severity": 100}
        named = cspace_convert(named, space, "sRGB1").clip(0, 1)
        roles = cspace_convert(roles, space, "sRGB1").clip(0, 1)
        weights = cspace_convert(weights, space, "sRGB1").clip(0, 1)
    for one, other in itertools.combinations(named, 2):
        assert deltaE(one, other, input_space="sRGB1") > (13 if kind == "tritanomaly" else 20)
    for one, other in itertools.combinations(roles, 2):
        assert deltaE(one, other, input_space="sRGB1") > (12 if kind == "tritanomaly" else 18)
    lightness = cspace_convert(weights, "sRGB1", "CAM02-UCS")[:, 0]
    assert all(np.diff(lightness) < -2), "a larger weight must be darker for everybody"
    assert to_hex(WEIGHT_MAP(0.0)) == "#ffffff", "a weight of zero is the ground"


def test_a_role_has_one_colour_in_both_directions():
    assert role_color("verb → subject") == role_color("subject → verb")
    assert role_color("verb-subject") == role_color("subject → verb")
    nouns = ["noun → determiner", "subject → verb", "place → verb", "adjective → noun"]
    colors = {role_color(name) for name in (*nouns, "most → subject", "no name")}
    assert len(colors) == 6


def test_names_at_the_ends_of_lines_do_not_lie_on_each_other(tmp_path):
    fig, ax = plt.subplots(figsize=(5, 3), layout="constrained")
    ax.set(xlim=(0, 1), ylim=(0, 1))
    names = {"one": 0.5, "two": 0.501, "three\nin two lines": 0.49, "four": 0.9}
    label_ends(ax, {name: (1, y, BLUE) for name, y in names.items()})
    headline(fig, "Two\nlines", "a note")
    with watched_texts() as seen:
        fig.savefig(tmp_path / "a.png", dpi=fig.dpi)
    boxes = {text: box for text, _, box in seen[fig].values()}
    assert not overlapping(seen[fig])
    assert sorted(names, key=names.get) == sorted(names, key=lambda name: boxes[name].y0)


@pytest.mark.parametrize("wanted", ["png", "svg", None])
def test_a_plot_lies_where_the_options_say_and_keeps_its_caption_or_is_not_wanted(tmp_path, wanted):
    more = ["--format", wanted] if wanted else ["--no-pictures"]
    options = cli.parse(cli.parser(None), ["--output-dir", str(tmp_path), *more])
    fig = plt.figure(figsize=(3, 2), layout="constrained")
    headline(fig, "A finding", "trained 600 steps")
    save_plot(options, "phase1/a", fig, "what it shows")
    assert fig.get_suptitle() == "A finding" and fig.get_supxlabel() == "trained 600 steps"
    assert not plt.fignum_exists(fig.number)
    if wanted:
        path = tmp_path / paths.PLOTS / "phase1" / f"a.{wanted}"
        assert b"what it shows" in path.read_bytes()
    else:
        assert not any(tmp_path.rglob("*.png"))


@pytest.mark.parametrize(("inches", "pixels"), [(4, (880, 440)), (9, (1660, 368))])
def test_a_png_has_two_pixels_for_each_that_a_page_shows_and_a_frame_has_one(
    tmp_path, inches, pixels
):
    """GitHub shows an inch of the theme in 110 pixels, but no picture wider than 830."""
    with theme():
        fig = plt.figure(figsize=(inches, 2))
        assert picture_of(fig).size == (110 * inches, 220)
        save_figure(fig, tmp_path / "a.png", caption="what it shows")
    with Image.open(tmp_path / "a.png") as image:
        assert image.size == pixels
