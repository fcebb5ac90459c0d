"""Causal attention: models with and without a mask, and writing; test_oracles.py compares the numbers."""

import torch
import torch.nn.functional as F

from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase4_causal.causal_attention import CausalSelfAttention, generate
from phase4_causal.models import with_attention
from shared import toy_language, training
from shared.attention_utils import causal_mask, document_mask
from shared.tests.helpers import near
from shared.toy_language import TOY_SENTENCE, VOCABULARY, encode
from shared.toy_model import ToyTransformer


def test_masks_have_no_parameters():
    """The same weights in a model with another attention: with the mask, without, and under a mask of the caller."""
    trained = training.untrained(training.Recipe("t", "next word", 3, 2, 0, d_model=33), MultiHeadAttention)
    torch.nn.init.normal_(trained.model.output_bias)
    tokens = torch.tensor([encode(TOY_SENTENCE.split())])
    with torch.no_grad():
        near(with_attention(trained, CausalSelfAttention)(tokens)[0], trained.model(tokens, mask=causal_mask(6))[0])
        near(with_attention(trained, MultiHeadAttention)(tokens)[0], trained.model(tokens)[0], share=0)


def test_texts_packed_into_one_row_are_the_texts_alone():
    attention, texts = CausalSelfAttention(33, 3).double(), torch.randn(12, 33, dtype=torch.float64).split([5, 7])
    packed, _ = attention(torch.cat(texts)[None], mask=document_mask(torch.tensor([0] * 5 + [1] * 7)))
    near(packed[0], torch.cat([attention(x[None])[0][0] for x in texts]))


def test_generation_follows_the_logits_stops_at_end_and_at_the_limit():
    class Counter(ToyTransformer):
        """Predicts the word after the last one in the vocabulary."""

        def forward(self, tokens, mask=None):
            return F.one_hot((tokens + 1) % len(VOCABULARY), len(VOCABULARY)).float(), []

    model, before_end = Counter(make_attention=MultiHeadAttention), toy_language.decode([toy_language.END_ID - 1])
    assert generate(model, [VOCABULARY[-3]], limit=2) == list(VOCABULARY[-3:-1])
    assert generate(model, [VOCABULARY[-3]], limit=20)[:3] == list(VOCABULARY[-3:])
    assert generate(model, before_end) == before_end
