"""Pictures: what the helpers draw, read back from the axes, and what they refuse."""

import itertools

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from phase3_visualization import attention_3d, attention_flow
from shared import cli, paths
from shared.attention_utils import causal_mask
from shared.visualization_utils import grouped_bars, headline, plot_attention, plot_heads, save_plot, token_labels


def test_heatmap_refuses_what_is_not_attention():
    weights = torch.eye(3)
    for bad, tokens, message in (
        (torch.eye(3)[None], "abc", "one .T_q, T_k. matrix: got shape"),
        (weights, "abcd", "weights have query length 3 but 4 query tokens were given: a, b, c, d"),
        (weights * 2, "abc", "row 0 sums to 2.0000, not 1"),
    ):
        with pytest.raises(ValueError, match=message):
            plot_attention(bad, list(tokens))
    with pytest.raises(ValueError, match="pick one item of a batch"):
        plot_heads(torch.eye(3)[None, None], list("abc"), axes=[], titles=[])


def test_heatmap_shows_queries_down_keys_across_and_hatches_hidden_cells():
    weights = torch.tensor([[1.0, 0.0], [0.25, 0.75]])
    ax = plot_attention(weights, ["a", "b"], mask=causal_mask(2), ax=plt.figure().add_subplot())
    drawn = ax.collections[0].get_array()
    assert drawn.shape == (2, 2) and drawn[1, 0] == 0.25 and drawn.mask[0, 1]
    assert ax.yaxis_inverted() and ax.collections[0].get_clim() == (0, 1)
    (patch,) = ax.patches
    assert patch.get_xy() == (1, 0) and patch.get_hatch()
    assert [t.get_text() for t in ax.get_xticklabels()] == token_labels(["a", "b"]) == ["0 a", "1 b"]
    assert sorted(t.get_text() for t in ax.texts) == ["0.25", "0.75", "1.00"]
    plt.close()


def test_flow_draws_relative_to_the_even_share():
    uniform = torch.full((6, 6), 1 / 6)
    assert attention_flow.arrows(uniform, 1.5) == []
    sharp = torch.eye(6).roll(-1, dims=-1)
    assert {(i, j) for i, j, _ in attention_flow.arrows(sharp, 1.5)} == {(i, (i - 1) % 6) for i in range(6)}


def test_landscape_heights_are_the_weights():
    weights = np.random.default_rng(0).random((3, 5))
    x, y, z, _ = attention_3d.terraces(weights)
    for i, j in itertools.product(range(3), range(5)):
        cell = (x > i) & (x < i + 1) & (y > j) & (y < j + 1)
        assert set(z[cell]) == {weights[i, j]}
    assert z[0].max() == z[-1].max() == z[:, 0].max() == z[:, -1].max() == 0
    previous = torch.eye(6).roll(-1, dims=-1)
    previous[0] = torch.eye(6)[0]
    assert "a ridge: 1.00 of the weight goes to the word before" in attention_3d.describe(previous, list("abcdef"))
    wall = torch.zeros(6, 6)
    wall[:, 3] = 1
    assert 'a wall: every word gives 1.00 of its weight to "d"' in attention_3d.describe(wall, list("abcdef"))


def test_grouped_bars_stand_side_by_side_around_their_group():
    ax = plt.figure().add_subplot()
    series = {"one": (0.25, 0.5), "two": (0.75, 1.0), "three": (0.1, 0.2)}
    places = grouped_bars(ax, ["left", "right"], series, dict.fromkeys(series, "#000000"), width=0.6)
    assert np.allclose(places, [[-0.2, 0.8], [0.0, 1.0], [0.2, 1.2]])
    assert [bar.get_height() for bar in ax.patches] == [0.25, 0.5, 0.75, 1.0, 0.1, 0.2]
    assert [text.get_text() for text in ax.texts] == ["0.25", "0.50", "0.75", "1.00", "0.10", "0.20"]
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["left", "right"]
    plt.close()


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_a_plot_lies_where_the_options_say_and_keeps_its_caption(tmp_path, kind):
    options = cli.parse(cli.parser(None), ["--output-dir", str(tmp_path), "--format", kind])
    fig = plt.figure(figsize=(3, 2), layout="constrained")
    headline(fig, "A finding", "trained 600 steps")
    path = save_plot(options, "phase1/a", fig, "what it shows")
    assert path == tmp_path / paths.PLOTS / "phase1" / f"a.{kind}" and b"what it shows" in path.read_bytes()
    assert fig.get_suptitle() == "A finding" and fig.get_supxlabel() == "trained 600 steps"


def test_where_no_pictures_are_wanted_none_is_saved(tmp_path):
    options = cli.parse(cli.parser(None), ["--no-pictures", "--output-dir", str(tmp_path)])
    fig = plt.figure()
    assert save_plot(options, "phase1/x", fig, "caption") is None
    assert not list(tmp_path.rglob("*.png")) and not plt.fignum_exists(fig.number)
