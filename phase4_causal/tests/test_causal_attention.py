"""Causal attention: what it refuses, models without a mask, and writing; the poster. Numbers: test_oracles.py."""

import matplotlib.pyplot as plt
import pytest
import torch
import torch.nn.functional as F
from matplotlib.patches import PathPatch, Rectangle

from phase1_single_head.models import RECIPE as ONE_HEAD
from phase1_single_head.models import flow_of, make_single_head
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase4_causal import summary
from phase4_causal.causal_attention import CausalSelfAttention, generate
from phase4_causal.models import RECIPE as CAUSAL
from phase4_causal.models import with_attention
from shared import toy_language, training
from shared.attention_utils import causal_mask, padding_mask
from shared.tests.helpers import near, overlapping, watched_texts
from shared.toy_language import TOY_SENTENCE, VOCABULARY, encode
from shared.toy_model import ToyTransformer
from shared.visualization_utils import THEME


def test_no_words_and_no_batch_are_told_so():
    attention = CausalSelfAttention(16, 4)
    with pytest.raises(ValueError, match="T_q must be a whole number, 1 or more: got 0"):
        attention(torch.zeros(2, 0, 16))
    with pytest.raises(ValueError, match=r"\(B, T, d_model=16\): got query \(5, 16\)"):
        attention(torch.zeros(5, 16))


def test_a_further_mask_hides_more_and_nothing_less():
    weights = CausalSelfAttention(33, 3)(torch.randn(2, 5, 33), padding_mask(torch.tensor([3, 5]), 5))[1]
    assert weights[0, :, :, 3:].eq(0).all() and weights.triu(diagonal=1).eq(0).all()


def test_masks_have_no_parameters():
    """The same weights in a model with another attention: with the mask, without, and under a mask of the caller."""
    trained = training.untrained(training.Recipe("t", "next word", 3, 2, 0, d_model=33), MultiHeadAttention)
    torch.nn.init.normal_(trained.model.output_bias)
    tokens = torch.tensor([encode(TOY_SENTENCE.split())])
    with torch.no_grad():
        near(with_attention(trained, CausalSelfAttention)(tokens)[0], trained.model(tokens, mask=causal_mask(6))[0])
        near(with_attention(trained, MultiHeadAttention)(tokens)[0], trained.model(tokens)[0], share=0)


def test_generation_follows_the_logits_stops_at_end_and_at_the_limit():
    class Counter(ToyTransformer):
        """Predicts the word after the last one in the vocabulary."""

        def forward(self, tokens, mask=None):
            return F.one_hot((tokens + 1) % len(VOCABULARY), len(VOCABULARY)).float(), []

    model, before_end = Counter(make_attention=MultiHeadAttention), toy_language.decode([toy_language.END_ID - 1])
    assert generate(model, [VOCABULARY[-3]], limit=2) == list(VOCABULARY[-3:-1])
    assert generate(model, [VOCABULARY[-3]], limit=20)[:3] == list(VOCABULARY[-3:])
    assert generate(model, before_end) == before_end


# ---- the poster: it has room for a long sentence, and draws what was computed

WORDS = TOY_SENTENCE.split()
LONG = "today some strange kites beside the dark big barn lay on a red soft box"


@pytest.fixture
def ax():
    fig, ax = plt.subplots()
    yield ax
    plt.close(fig)


def test_a_long_sentence_has_its_place(checkpoints, tmp_path, monkeypatch):
    names = ["verb → subject", "place → verb", "no name", "noun → determiner"]
    monkeypatch.setattr(summary, "head_names", lambda trained, _: [names] * trained.recipe.num_layers)
    with watched_texts() as seen:
        summary.main(["--quick", "--sentence", LONG, "--output-dir", str(tmp_path)])
    (texts,) = seen.values()
    assert overlapping(texts) == []
    width, height = (side / 25.4 * THEME["savefig.dpi"] for side in (summary.WIDTH, summary.HEIGHT))
    for text, _, box in texts.values():
        assert 0.04 * width < box.x0 and box.x1 < 0.96 * width, text
        assert 0.02 * height < box.y0 and box.y1 < 0.98 * height, text


def test_ribbons_are_as_wide_as_the_weights_and_end_side_by_side(ax):
    trained = training.untrained(ONE_HEAD, make_single_head)
    summary.draw_one_head(ax, 0, trained, WORDS)
    ribbons = [patch for patch in ax.patches if isinstance(patch, PathPatch)][1::2]
    widths = torch.tensor([patch.get_linewidth() * summary.POINT for patch in ribbons]).double()
    near(widths, flow_of(trained, WORDS).weights * summary.STRIP, share=1e-5)
    ends = torch.tensor([patch.get_path().vertices[-1][0] for patch in ribbons]).double()
    near(ends.diff(), (widths[1:] + widths[:-1]) / 2, share=1e-5)


def test_the_future_is_hatched_and_a_leak_is_said(ax):
    for attention, leaks in ((CausalSelfAttention, False), (MultiHeadAttention, True)):
        said = summary.draw_without_a_future(ax, 0, training.untrained(CAUSAL, attention), WORDS)
        assert ("changes by 0. It writes" in said) != leaks
    assert sum(isinstance(patch, Rectangle) and patch.get_hatch() is not None for patch in ax.patches) == 2 * 15
