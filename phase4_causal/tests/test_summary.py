"""The poster: what it says is what was computed, it has room for every sentence, and a printer can use it."""

import re

import matplotlib.pyplot as plt
import pytest
import torch
from matplotlib.colors import to_hex
from matplotlib.patches import FancyArrowPatch, PathPatch, Rectangle
from PIL import Image

from phase1_single_head.models import RECIPE as ONE_HEAD
from phase1_single_head.models import flow_of, make_single_head
from phase2_multi_head.models import CAUSAL_RECIPE, ONE_LAYER_RECIPE
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase4_causal import causal_attention, summary
from shared import paths, training
from shared.tests.helpers import overlapping, watched_texts
from shared.toy_language import MAX_LENGTH, TOY_SENTENCE
from shared.visualization_utils import THEME, role_color

NAMES = ["verb → subject", "place → verb", "no name", "noun → determiner"]
WORDS = TOY_SENTENCE.split()
LONG = "today some strange kites beside the dark big barn lay on a red soft box"


@pytest.fixture(scope="module")
def draw_poster(checkpoints, tmp_path_factory):
    """Draws the poster of a sentence, its heads named by hand: the texts drawn, and where PNG and PDF are."""

    def draw(sentence):
        folder = tmp_path_factory.mktemp("poster")
        with pytest.MonkeyPatch.context() as patch, watched_texts() as seen:
            patch.setattr(summary, "head_names", lambda trained, _: [NAMES] * trained.recipe.num_layers)
            summary.main(["--quick", "--sentence", sentence, "--output-dir", str(folder)])
        (texts,) = seen.values()
        return texts, folder / paths.PLOTS / "summary_all_phases"

    return draw


@pytest.fixture(scope="module")
def poster(draw_poster):
    """The poster of the sentence of all lessons, drawn once."""
    return draw_poster(TOY_SENTENCE)


@pytest.fixture
def ax():
    fig, ax = plt.subplots()
    yield ax
    plt.close(fig)


ON_ONE_POSTER = pytest.mark.xdist_group("poster")  # in one process, so that what they share is made once


@ON_ONE_POSTER
@pytest.mark.parametrize("sentence", [TOY_SENTENCE, LONG, "cat"], ids=["6", "15", "1"])
def test_every_sentence_has_its_place(draw_poster, poster, sentence):
    texts, _ = poster if sentence == TOY_SENTENCE else draw_poster(sentence)
    assert overlapping(texts) == []
    width, height = (side / 25.4 * THEME["savefig.dpi"] for side in (summary.WIDTH, summary.HEIGHT))
    for text, _, box in texts.values():
        assert 0.04 * width < box.x0 and box.x1 < 0.96 * width, text
        assert 0.02 * height < box.y0 and box.y1 < 0.98 * height, text


@ON_ONE_POSTER
def test_poster_is_read_from_afar_and_has_six_numbers_at_most(poster):
    texts, files = poster
    sizes = {text.get_text(): text.get_fontsize() for text in texts}
    foot = next(text for text in sizes if "summary.py" in text)
    assert sizes.pop(foot) >= 14 and min(sizes.values()) >= 18 and sizes[summary.TITLE] > 60
    headings = [text for text in sizes if re.match(r"\d  \w", text)]
    assert len(headings) == 4 and min(sizes[text] for text in headings) >= 40
    numbers = [number for text in sizes if text not in headings for number in re.findall(r"\d+", text)]
    with Image.open(files.with_suffix(".png")) as image:
        caption = image.info["Description"]
    assert 1 <= len(numbers) <= 6 and set(numbers) == set(re.findall(r"\d+", caption))


@ON_ONE_POSTER
def test_poster_of_a_printer_is_vectors_with_fonts_on_a2_and_the_same_twice(draw_poster, poster):
    (_, one), (_, two) = poster, draw_poster(TOY_SENTENCE)
    pdf = one.with_suffix(".pdf").read_bytes()
    width, height = map(float, re.search(rb"/MediaBox \[ ?0 0 ([\d.]+) ([\d.]+) ?\]", pdf).groups())
    assert (width / 72 * 25.4, height / 72 * 25.4) == pytest.approx((420, 594), abs=0.01)
    assert b"/FontFile2" in pdf and b"/Image" not in re.findall(rb"/Subtype (/\w+)", pdf) and b"CreationDate" not in pdf
    assert all(one.with_suffix(kind).read_bytes() == two.with_suffix(kind).read_bytes() for kind in (".pdf", ".png"))
    assert one.with_suffix(".png").stat().st_size <= 600_000


def test_ribbons_are_as_wide_as_the_weights_and_end_side_by_side(ax):
    trained = training.untrained(ONE_HEAD, make_single_head)
    said = summary.draw_one_head(ax, trained, WORDS)
    flow = flow_of(trained, WORDS)
    ribbons = [patch for patch in ax.patches if isinstance(patch, PathPatch)]
    asking, mixing = ribbons[::2], ribbons[1::2]
    widths = torch.tensor([patch.get_linewidth() * summary.POINT for patch in mixing]).double()
    torch.testing.assert_close(widths, flow.weights * summary.STRIP)
    ends = torch.tensor([patch.get_path().vertices[-1][0] for patch in mixing]).double()
    torch.testing.assert_close(ends.diff(), (widths[1:] + widths[:-1]) / 2)
    assert len(asking) == 6 and len({patch.get_linewidth() for patch in asking}) == 1
    assert f'"the cat ? on the mat" it guesses "{flow.guesses[0][0]}", {flow.guesses[0][1]:.0%} sure' in said


def test_only_arrows_that_the_grammar_confirms_have_a_colour(ax, monkeypatch):
    looks = torch.tensor([1, 2, 1, 2, 5, 2])  # the -> cat, cat -> sat, sat -> cat, on -> sat, the -> mat, mat -> sat
    weights = torch.nn.functional.one_hot(looks).double().expand(1, 4, 6, 6)
    monkeypatch.setattr(summary, "weights_of", lambda *_: weights)
    monkeypatch.setattr(summary, "head_names", lambda *_: [NAMES])
    one = training.untrained(ONE_HEAD, make_single_head)
    summary.draw_many_heads(ax, one, training.untrained(ONE_LAYER_RECIPE, MultiHeadAttention), WORDS)
    colors = [to_hex(patch.get_edgecolor()) for patch in ax.patches if isinstance(patch, FancyArrowPatch)]
    sat_cat, mat_sat = (role_color(NAMES[head]) for head in (0, 1))  # the head of nouns looks at no determiner
    faint = summary.FAINT
    assert colors == [faint, faint, sat_cat, *[faint] * 8, mat_sat, *[faint] * 12]


def test_jobs_are_followed_from_one_model_to_the_next():
    first = ["verb → subject", "no name", "place → verb", "noun → determiner", "previous"]
    again = ["place → verb", "no name", "no name", "subject → verb", "noun → determiner"]
    assert sorted(summary.same_job(first, again)) == [(0, 3), (2, 0), (3, 4)]
    several = ["verb → subject", "subject → verb", "subject → verb"]  # the same name first, then the same place
    assert sorted(summary.same_job(several, ["subject → verb"] * 2)) == [(1, 1), (2, 0)]


def test_the_future_is_hatched_and_a_leak_is_said(ax):
    causal = training.untrained(CAUSAL_RECIPE, causal_attention.CausalSelfAttention)
    assert "changes by 0. It writes" in summary.draw_without_a_future(ax, causal, WORDS)
    assert sum(isinstance(patch, Rectangle) and patch.get_hatch() is not None for patch in ax.patches) == 15
    assert "writes" in summary.draw_without_a_future(ax, causal, ["cat"] * MAX_LENGTH)  # no room to go on
    leaking = training.untrained(CAUSAL_RECIPE, MultiHeadAttention)
    assert "changes by 0. It writes" not in summary.draw_without_a_future(ax, leaking, WORDS)


def test_one_head_and_the_best_of_several_are_compared_where_they_differ_most(ax, monkeypatch):
    lone = {"determiner-noun": 0.5, "verb-subject": 0.7, "verb-place": 0.25}
    several = {"determiner-noun": 0.75, "verb-subject": 0.7, "verb-place": 0.96}
    chosen = {1: lone, 4: several}
    monkeypatch.setattr(summary, "head_names", lambda *_: [NAMES])
    monkeypatch.setattr(summary, "chosen_and_scored", lambda trained: chosen[trained.recipe.num_heads])
    one = training.untrained(ONE_HEAD, make_single_head)
    said = summary.draw_many_heads(ax, one, training.untrained(ONE_LAYER_RECIPE, MultiHeadAttention), WORDS)
    assert said == "A lone head links 25% of new pairs of verb and place, the best of these four 96%."
