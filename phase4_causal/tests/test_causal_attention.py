"""Causal attention: what it refuses, models without a mask, and writing. Its numbers: test_oracles.py."""

import pytest
import torch
import torch.nn.functional as F

from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase4_causal.causal_attention import CausalSelfAttention, generate
from phase4_causal.key_value_cache import KeyValueCache
from phase4_causal.models import with_attention
from shared import toy_language, training
from shared.attention_utils import causal_mask, padding_mask
from shared.tests.helpers import close
from shared.toy_language import TOY_SENTENCE, VOCABULARY, encode
from shared.toy_model import ToyTransformer


def test_no_words_and_no_batch_are_told_so():
    attention, cache = CausalSelfAttention(16, 4), KeyValueCache(2, 4, 5, 4)
    with pytest.raises(ValueError, match="at least one query and one key: got T_q=0, T_k=0"):
        attention(torch.zeros(2, 0, 16))
    for more in ({}, {"cache": cache}):
        with pytest.raises(ValueError, match=r"\(B, T, d_model=16\): got query \(5, 16\)"):
            attention(torch.zeros(5, 16), **more)
    assert cache.length == 0


def test_a_further_mask_hides_more_and_nothing_less():
    weights = CausalSelfAttention(33, 3)(torch.randn(2, 5, 33), padding_mask(torch.tensor([3, 5]), 5))[1]
    assert weights[0, :, :, 3:].eq(0).all() and weights.triu(diagonal=1).eq(0).all()


def test_masks_have_no_parameters():
    """The same weights in a model with another attention: with the mask, without, and under a mask of the caller."""
    trained = training.untrained(training.Recipe("t", "next word", 3, 2, 0, d_model=33), MultiHeadAttention)
    tokens = torch.tensor([encode(TOY_SENTENCE.split())])
    with torch.no_grad():
        close(with_attention(trained, CausalSelfAttention)(tokens)[0], trained.model(tokens, mask=causal_mask(6))[0])
        close(with_attention(trained, MultiHeadAttention)(tokens)[0], trained.model(tokens)[0], rtol=0, atol=0)


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
