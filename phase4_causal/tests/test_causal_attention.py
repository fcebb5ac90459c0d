"""Causal attention against torch's own, its leak test against models that leak, generation, the root's pictures."""

import pytest
import torch
import torch.nn.functional as F

from phase1_single_head.self_attention import scaled_dot_product_attention
from phase2_multi_head.multi_head_attention import MultiHeadAttention, merge_heads, split_heads
from phase4_causal import visualize
from phase4_causal.causal_attention import CausalSelfAttention, generate
from phase4_causal.key_value_cache import KeyValueCache
from phase4_causal.masking import nan_causes
from phase4_causal.models import with_attention
from shared import toy_language, training
from shared.attention_utils import causal_mask, padding_mask
from shared.tests.helpers import T_Q, B, close
from shared.toy_language import TOY_SENTENCE, VOCABULARY, encode
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


def test_no_words_and_no_batch_are_told_so():
    attention, cache = CausalSelfAttention(16, 4), KeyValueCache(2, 4, 5, 4)
    with pytest.raises(ValueError, match="at least one query and one key: got T_q=0, T_k=0"):
        attention(torch.zeros(2, 0, 16))
    for more in ({}, {"cache": cache}):
        with pytest.raises(ValueError, match=r"\(B, T, d_model=16\): got query \(5, 16\)"):
            attention(torch.zeros(5, 16), **more)
    assert cache.length == 0


def test_masks_have_no_parameters():
    """The same weights in a model with another attention: with the mask, without, and under a mask of the caller."""
    trained = training.untrained(training.Recipe("t", "next word", 3, 2, 0, d_model=33), MultiHeadAttention)
    tokens = torch.tensor([encode(TOY_SENTENCE.split())])
    with torch.no_grad():
        close(with_attention(trained, CausalSelfAttention)(tokens)[0], trained.model(tokens, mask=causal_mask(6))[0])
        close(with_attention(trained, MultiHeadAttention)(tokens)[0], trained.model(tokens)[0], rtol=0, atol=0)


def test_the_mask_moves_most_of_the_first_row_and_nothing_of_the_last():
    trained = training.untrained(training.Recipe("t", "masked word", 3, 1, 0, d_model=33), MultiHeadAttention)
    first, *_, last = visualize.moved(trained, TOY_SENTENCE.split())
    assert first == pytest.approx(5 / 6, abs=0.1) and last == 0  # a word that looks everywhere alike gives up 5 of 6


def test_hidden_weights_are_those_of_the_dtype():
    filled = nan_causes.weight_under(-1e9)
    assert filled["float64: all hidden"] == pytest.approx(1 / 3) and filled["float16: refused by torch"] == 1
    mask = torch.tensor([[True, False, True], [False, False, False]])
    for dtype in nan_causes.DTYPES:  # ours, with -inf: exactly 0, also in a row that sees nothing
        query, key = torch.zeros(2, 1, dtype=dtype), torch.zeros(3, 1, dtype=dtype)
        assert not scaled_dot_product_attention(query, key, key, mask)[1][~mask].any()


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
