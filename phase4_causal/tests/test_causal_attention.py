"""Tests: causal attention."""

import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from phase2_multi_head.multi_head_attention import MultiHeadAttention, merge_heads, split_heads
from phase4_causal import summary
from phase4_causal.causal_attention import CausalSelfAttention, generate, largest_leak
from shared import paths, toy_language
from shared.attention_utils import causal_mask, padding_mask
from shared.tests.helpers import T_Q, B, close
from shared.toy_language import VOCABULARY, encode
from shared.toy_model import ToyTransformer


def test_causal_attention_is_torchs_causal_attention():
    torch.manual_seed(0)
    ours = CausalSelfAttention(33, 3).double()
    x = torch.randn(B, T_Q, 33, dtype=torch.float64)
    output, weights = ours(x)
    q, k, v = (split_heads(w(x), 3) for w in (ours.w_q, ours.w_k, ours.w_v))
    expected = ours.w_o(merge_heads(F.scaled_dot_product_attention(q, k, v, is_causal=True)))
    close(output, expected, rtol=0, atol=1e-12)
    assert weights.triu(diagonal=1).eq(0).all()
    padded = ours(x, padding_mask(torch.tensor([3, 5]), T_Q))[1]
    assert padded[0, :, :, 3:].eq(0).all() and padded.triu(diagonal=1).eq(0).all()


def test_causal_and_bidirectional_modules_share_their_weights():
    bidirectional, causal = MultiHeadAttention(33, 3), CausalSelfAttention(33, 3)
    causal.load_state_dict(bidirectional.state_dict())
    x = torch.randn(B, T_Q, 33)
    close(causal(x)[0], bidirectional(x, mask=causal_mask(T_Q))[0])


def scores_of(one: float, deep: float) -> summary.Scores:
    heads = {"one": one, "four": deep, "deep": deep}
    made = {name: {r: torch.full((1, 1, 2), value) for r in summary.CORE_RELATIONS} for name, value in heads.items()}
    return summary.Scores(**made, offsets=dict.fromkeys(summary.CORE_RELATIONS, 0.5))


def test_poster_boasts_only_of_what_was_measured():
    learned = summary.headline(scores_of(0.6, 0.95), 0.0)
    assert "belong together" in learned[0] and "finds 0.60 at most" in learned[1] and "exactly 0" in learned[1]
    for scores, leak in ((scores_of(0.6, 0.8), 0.0), (scores_of(0.9, 0.95), 0.0), (scores_of(0.6, 0.95), 0.25)):
        assert summary.headline(scores, leak)[0] == "Attention in four steps"
    assert "2.5e-01" in summary.headline(scores_of(0.6, 0.95), 0.25)[1]
    assert summary.role(scores_of(0.6, 0.95), 0).endswith("0.95\none head: 0.60")
    assert summary.role(scores_of(0.6, 0.4), 0).startswith("no relation")
    assert summary.arrow(("verb-place", "backward")) == "place → verb"


def test_poster_is_small_and_its_caption_holds_the_answers(tmp_path):
    if not (paths.CHECKPOINTS / "multi_head_model.pt").exists():
        pytest.skip("needs the trained models: ./run_all.sh")
    summary.main(["--quick", "--output-dir", str(tmp_path)])
    path = tmp_path / paths.PLOTS / "summary_all_phases.png"
    assert path.stat().st_size <= 200_000
    with Image.open(path) as image:
        caption = image.info["Description"]
    assert all(f" {number}. " in caption for number in (1, 2, 3, 4)) and "exactly 0" in caption


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_nothing_leaks_from_the_future(layers):
    torch.manual_seed(layers)
    tokens = torch.tensor([encode(["the", "big", "cat", "sat", "quietly", "on", "the", "dark", "mat"])])
    causal = ToyTransformer(num_layers=layers, make_attention=CausalSelfAttention).eval()
    assert largest_leak(causal, tokens) == (0.0, 0.0), (
        "a future word moved an earlier logit: is the mask before softmax?"
    )
    change, gradient = largest_leak(ToyTransformer(num_layers=layers, make_attention=MultiHeadAttention).eval(), tokens)
    assert change > 1e-4 and gradient > 1e-4, "the test itself must be able to fail"


def test_generation_follows_the_logits_stops_at_end_and_at_the_limit():
    class Counter(ToyTransformer):
        """Predicts the word after the last one in the vocabulary."""

        def forward(self, tokens, mask=None):
            return F.one_hot((tokens + 1) % len(VOCABULARY), len(VOCABULARY)).float(), []

    model = Counter(make_attention=MultiHeadAttention)
    start = VOCABULARY[-3]
    assert generate(model, [start], limit=2) == list(VOCABULARY[-3:-1])
    assert generate(model, [start], limit=20)[:3] == list(VOCABULARY[-3:])
    before_end = [toy_language.decode([toy_language.END_ID - 1])[0]]
    assert generate(model, before_end) == before_end
