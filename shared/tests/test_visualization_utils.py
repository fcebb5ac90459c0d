"""Pictures: what the helpers draw, read back from the axes, and what they refuse."""

import itertools

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from colorspacious import cspace_convert, deltaE
from matplotlib.colors import to_hex, to_rgb
from PIL import Image

from shared import attention_maps, charts, cli, paths
from shared.attention_utils import causal_mask
from shared.tests.helpers import near, overlapping, smallest, watched_texts
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


def test_heatmap_refuses_what_is_not_attention():
    weights = torch.eye(3)
    with pytest.raises(ValueError, match=r"one .T_q, T_k. matrix: got shape"):
        plot_attention(weights[None], ["a", "b", "c"])
    with pytest.raises(ValueError, match=r"a column for each key \(4, 4\): got \(3, 3\)"):
        plot_attention(weights, ["a", "b", "c", "d"])
    with pytest.raises(ValueError, match=r"row 0 sums to 2\.0000, not 1"):
        plot_attention(weights * 2, ["a", "b", "c"])


def test_heatmap_shows_queries_down_keys_across_and_hatches_hidden_cells():
    weights = torch.tensor([[1.0, 0.0], [0.25, 0.75]])
    ax = plot_attention(weights, ["a", "b"], mask=causal_mask(2), ax=plt.figure().add_subplot())
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
    with watched_texts() as seen:
        fig.savefig(tmp_path / "a.png", dpi=fig.dpi)
    boxes = {text: box for text, _, box in seen[fig].values()}
    assert not overlapping(seen[fig])
    assert sorted(names, key=names.get) == sorted(names, key=lambda name: boxes[name].y0)
    _, height = ax.transData.transform((1, 0.9))
    away = abs((boxes["four"].y0 + boxes["four"].y1) / 2 - height)
    assert away < 4, "a name with room stays at its line"


def test_small_and_overlapping_texts_are_noticed(tmp_path):
    fig = plt.figure(figsize=(18, 2))
    fig.text(0.1, 0.5, "large", fontsize=20)
    fig.text(0.11, 0.5, "small", fontsize=9)
    with watched_texts() as seen:
        fig.savefig(tmp_path / "a.png", dpi=100)
    assert smallest(seen[fig]) == (6.2, "small") and overlapping(seen[fig]) == [("large", "small")]


def test_arcs_are_drawn_relative_to_the_even_share_and_only_what_is_told():
    def drawn(weights, told=None):
        ax = plt.figure().add_subplot()
        charts.arcs(ax, weights, list("abcdef"), BLUE, threshold=1.5, told=told)
        return len(ax.patches)

    sharp = torch.eye(6).roll(-1, dims=-1)
    assert drawn(torch.full((6, 6), 1 / 6)) == 0
    assert drawn(sharp) == 6
    assert drawn(sharp, told={(1, 0), (1, 5)}) == 1


@pytest.mark.parametrize("wanted", ["png", "svg", "pdf", None])
def test_a_plot_lies_where_the_options_say_and_keeps_its_caption_or_is_not_wanted(tmp_path, wanted):
    more = ["--format", wanted] if wanted else ["--no-pictures"]
    options = cli.parse(cli.parser(None), ["--output-dir", str(tmp_path), *more])
    fig = plt.figure(figsize=(3, 2), layout="constrained")
    headline(fig, "A finding", "trained 600 steps")
    path = save_plot(options, "phase1/a", fig, "what it shows")
    assert fig.get_suptitle() == "A finding" and fig.get_supxlabel() == "trained 600 steps"
    assert not plt.fignum_exists(fig.number)
    if wanted:
        assert path == tmp_path / paths.PLOTS / "phase1" / f"a.{wanted}"
        assert b"what it shows" in path.read_bytes()
    else:
        assert path is None and not any(tmp_path.rglob("*.png"))


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


# ---- maps of any model's heads: where do they look?

REPEATED = [*"ab", "c", "a", "d", "e", "a", "f", "g", "a", "h", "i"]  # the token a comes four times


def names_of_one_head(weights, tokens=REPEATED):
    """The name of a head with these weights (T, T), where all keys that are not 0 are seen."""
    layers = attention_maps.as_layers(weights[None], tokens)
    return attention_maps.measured_in(layers, tokens).name(0, 0)


def test_places_are_those_of_a_loop_and_who_sees_one_key_has_none():
    length = len(REPEATED)
    places = attention_maps.places_in(REPEATED, causal_mask(length))
    for query in range(length):
        for key in range(length):
            seen = key <= query and query > 0
            before_it = REPEATED[key - 1] if key else None
            expected = {
                "token before": key == query - 1,
                "itself": key == query,
                "same token": key != query and REPEATED[key] == REPEATED[query],
                "after same token": key > 0 and before_it == REPEATED[query],
                "first token": key == 0 and query > 0,
            }
            for name, there in expected.items():
                assert places[name][query, key] == (there and seen), (name, query, key)


def test_after_the_same_token_means_an_earlier_one_for_who_sees_both_sides():
    places = attention_maps.places_in([*"abac"], torch.ones(4, 4, dtype=torch.bool))
    assert places["after same token"].nonzero().tolist() == [[2, 1]]


def test_a_column_is_what_others_give_it_and_few_others_are_not_asked():
    layer = torch.rand(2, 5, 5, generator=torch.Generator().manual_seed(0)).double()
    columns = attention_maps.weight_on_columns(layer, [*"abcde"], torch.ones(5, 5).bool())
    _, at_c, _ = columns.values()  # at b, c and d
    near(at_c, (layer[:, 0, 2] + layer[:, 1, 2] + layer[:, 3, 2] + layer[:, 4, 2]) / 4)
    columns = attention_maps.weight_on_columns(layer, [*"abcde"], causal_mask(5))
    at_b, at_c, _ = columns.values()
    near(at_b, (layer[:, 2, 1] + layer[:, 3, 1] + layer[:, 4, 1]) / 3)
    assert at_c.isnan().all(), "two queries behind it are too few"


def test_a_head_is_named_after_the_place_with_most_weight_if_it_chooses():
    length = len(REPEATED)
    previous = torch.eye(length).roll(-1, dims=1)
    previous[0] = 1 / length
    same_token = previous.clone()
    for query, key in ((3, 0), (6, 3), (9, 6)):
        same_token[query] *= 0.4
        same_token[query, key] = 0.6
    everywhere = torch.full((length, length), 1 / length)
    assert names_of_one_head(0.99 * same_token + 0.01 * everywhere) == "token before"
    # Of two keys even a head that does not choose gives half its weight to the one before.
    two_keys = 0.6 * torch.eye(length).roll(-1, dims=1) + 0.4 * torch.eye(length)
    assert names_of_one_head(two_keys.tril()) == "no name"


def test_nearly_even_maps_are_said_to_look_untrained():
    weights = (0.1 * torch.randn(2, 3, 7, 7, generator=torch.Generator().manual_seed(0))).softmax(
        -1
    )
    measured = attention_maps.measured_in(weights.double(), [*"abcdefg"])
    assert "look untrained" in measured.finding
    measured.entropy[1, 2] = 0.9
    assert "of 6 heads" in measured.finding
