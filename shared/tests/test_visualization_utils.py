"""Pictures: what the helpers draw, read back from the axes, and what they refuse."""

import itertools

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from colorspacious import cspace_convert, deltaE
from matplotlib.colors import to_hex, to_rgb

from shared import charts, cli, paths
from shared.attention_utils import causal_mask
from shared.tests.helpers import overlapping, smallest, watched_texts
from shared.visualization_utils import (
    BLUE,
    GREY,
    INK,
    PALETTE,
    WEIGHT_MAP,
    headline,
    label_ends,
    plot_attention,
    role_color,
    save_plot,
)


def test_heatmap_refuses_what_is_not_attention():
    weights = torch.eye(3)
    for bad, tokens, message in (
        (torch.eye(3)[None], "abc", "one .T_q, T_k. matrix: got shape"),
        (weights, "abcd", r"a row for each query and a column for each key \(4, 4\): got \(3, 3\)"),
        (weights * 2, "abc", "row 0 sums to 2.0000, not 1"),
    ):
        with pytest.raises(ValueError, match=message):
            plot_attention(bad, list(tokens))


def test_heatmap_shows_queries_down_keys_across_and_hatches_hidden_cells():
    weights = torch.tensor([[1.0, 0.0], [0.25, 0.75]])
    ax = plot_attention(weights, ["a", "b"], mask=causal_mask(2), ax=plt.figure().add_subplot())
    drawn = ax.collections[0].get_array()
    assert drawn.shape == (2, 2) and drawn[1, 0] == 0.25 and drawn.mask[0, 1]
    assert ax.yaxis_inverted() and ax.collections[0].get_clim() == (0, 1)
    (patch,) = ax.patches
    assert patch.get_xy() == (1, 0) and patch.get_hatch()
    assert [t.get_text() for t in ax.get_xticklabels()] == ["0 a", "1 b"]
    assert sorted(t.get_text() for t in ax.texts) == ["0.25", "0.75", "1.00"]


def seen_with(kind, color):
    """A colour as seen with a kind of colour blindness (Machado et al. 2009), or with none."""
    if kind is None:
        return to_rgb(color)
    space = {"name": "sRGB1+CVD", "cvd_type": kind, "severity": 100}
    return np.clip(cspace_convert(to_rgb(color), space, "sRGB1"), 0, 1)


def test_colours_are_told_apart_whatever_the_kind_of_colour_blindness():
    """CAM02-UCS: a distance of 1 is just seen side by side; the palette keeps twenty times that for
    nearly all.
    """
    for kind, apart in (
        (None, 20),
        ("protanomaly", 20),
        ("deuteranomaly", 20),
        ("tritanomaly", 13),
    ):
        for one, other in itertools.combinations((*PALETTE, GREY, INK), 2):
            assert (
                deltaE(seen_with(kind, one), seen_with(kind, other), input_space="sRGB1") > apart
            ), (one, other)
        greys = [
            cspace_convert(seen_with(kind, WEIGHT_MAP(w)), "sRGB1", "CAM02-UCS")[0]
            for w in np.linspace(0, 1, 21)
        ]
        assert all(np.diff(greys) < -2), "a larger weight must be darker for everybody"
    assert to_hex(WEIGHT_MAP(0.0)) == "#ffffff", "a weight of zero is the ground"


def test_a_role_has_one_colour_in_both_directions():
    assert (
        role_color("verb → subject") == role_color("subject → verb") == role_color("verb-subject")
    )
    names = (
        "noun → determiner",
        "subject → verb",
        "place → verb",
        "adjective → noun",
        "most → subject",
        "no name",
    )
    assert len({role_color(name) for name in names}) == len(names)


def test_names_at_the_ends_of_lines_do_not_lie_on_each_other(tmp_path):
    fig, ax = plt.subplots(figsize=(5, 3), layout="constrained")
    ax.set(xlim=(0, 1), ylim=(0, 1))
    names = {"one": 0.5, "two": 0.501, "three\nin two lines": 0.49, "four": 0.9}
    label_ends(ax, {name: (1, y, BLUE) for name, y in names.items()})
    with watched_texts() as seen:
        fig.savefig(tmp_path / "a.png", dpi=fig.dpi)
    boxes = {text: box for text, _, box in seen[fig].values()}
    assert not overlapping(seen[fig])
    assert sorted(names, key=names.get) == sorted(names, key=lambda name: boxes[name].y0)
    top = ax.transData.transform((1, 0.9))[1]
    assert abs((boxes["four"].y0 + boxes["four"].y1) / 2 - top) < 4, (
        "a name with room stays at its line"
    )


def test_small_and_overlapping_texts_are_noticed(tmp_path):
    fig = plt.figure(figsize=(18, 2))
    fig.text(0.1, 0.5, "large", fontsize=20)
    fig.text(0.11, 0.5, "small", fontsize=9)
    with watched_texts() as seen:
        fig.savefig(tmp_path / "a.png", dpi=100)
    assert smallest(seen[fig]) == (6.2, "small") and overlapping(seen[fig]) == [("large", "small")]


def test_arcs_are_drawn_relative_to_the_even_share_and_only_what_is_told():
    words, sharp = list("abcdef"), torch.eye(6).roll(-1, dims=-1)
    _, (first, second, third) = plt.subplots(3)
    assert not charts.arcs(first, torch.full((6, 6), 1 / 6), words, BLUE, threshold=1.5).patches
    assert len(charts.arcs(second, sharp, words, BLUE, threshold=1.5).patches) == 6
    assert (
        len(charts.arcs(third, sharp, words, BLUE, threshold=1.5, told={(1, 0), (1, 5)}).patches)
        == 1
    )


@pytest.mark.parametrize("wanted", ["png", "svg", None])
def test_a_plot_lies_where_the_options_say_and_keeps_its_caption_or_is_not_wanted(tmp_path, wanted):
    more = ["--format", wanted] if wanted else ["--no-pictures"]
    options = cli.parse(cli.parser(None), ["--output-dir", str(tmp_path), *more])
    fig = plt.figure(figsize=(3, 2), layout="constrained")
    headline(fig, "A finding", "trained 600 steps")
    path = save_plot(options, "phase1/a", fig, "what it shows")
    assert fig.get_suptitle() == "A finding" and fig.get_supxlabel() == "trained 600 steps"
    assert not plt.fignum_exists(fig.number)
    assert path == (tmp_path / paths.PLOTS / "phase1" / f"a.{wanted}" if wanted else None)
    assert not wanted or b"what it shows" in path.read_bytes()
    assert wanted or not any(tmp_path.rglob("*.png"))
