"""What is refused, and in which words: one line says the rule, what was received, and the way out.

A row is a call, and a part of what its ValueError says. A new refusal is a new row.
"""

import math
import re

import pytest
import torch

from phase1_single_head.before.additive import AdditiveAttention, LuongAttention
from phase1_single_head.order.position_encodings import rotary
from phase1_single_head.parts.cross_attention import CrossAttention
from phase1_single_head.self_attention import scaled_dot_product_attention
from phase2_multi_head.block.sink_logits import attention_with_sinks
from phase2_multi_head.fused_attention import FusedMultiHeadAttention
from phase2_multi_head.grouped_query_attention import GroupedQueryAttention
from phase2_multi_head.heads.head_importance import gated_heads
from phase2_multi_head.multi_head_attention import MultiHeadAttention, StackOfHeads
from phase2_multi_head.pooling.attention_pooling import mean_pooling
from phase3_visualization.pretrained.attention_maps import draw_heads
from phase3_visualization.pretrained.language_model import read_texts
from phase4_causal.key_value_cache import KeyValueCache
from phase4_causal.long_texts.delta_rule import delta_rule
from phase4_causal.long_texts.flash_attention import flash_attention
from phase4_causal.long_texts.gated_delta import gated_delta
from phase4_causal.long_texts.linear_attention import linear_attention, linear_attention_recurrent
from phase4_causal.long_texts.local_attention import local_attention
from phase4_causal.long_texts.state_space import state_space_attention
from phase4_causal.long_texts.triton_flash import triton_flash
from phase4_causal.models import long_model
from phase4_causal.rotary_attention import frequencies
from phase4_causal.serving.engine import Engine
from phase4_causal.serving.latent_attention import LatentAttention
from phase4_causal.serving.packed_toy import PackedToy
from phase4_causal.serving.paged_cache import PagedCache, Text, packed
from phase4_causal.writing.sampling import Sampling, new_caches, write_sentences
from shared import paths
from shared.attention_utils import causal_mask, local_mask, padding_mask, strided_mask
from shared.grammar.best_reader import hidden_word_distribution
from shared.head_statistics import head_statistics
from shared.published import LanguageModel, load_language_model
from shared.toy_language import TOY_SENTENCE, tokenize
from shared.toy_model import ToyTransformer
from shared.visualization_utils import plot_attention

TOY_MODEL = ToyTransformer(6, 1, 1, make_attention=MultiHeadAttention)
TOY_WORDS = TOY_SENTENCE.split()
X = torch.ones(3, 2)
WEIGHTS = torch.full((2, 3, 5, 5), 1 / 5)  # (L or N, H, T, T)

SHARED = [
    (lambda: padding_mask(torch.tensor([True]), 3), "got torch.bool"),
    (lambda: padding_mask(torch.tensor([0]), -1), "T_k must be a whole number, 0 or more: got -1"),
    (lambda: local_mask(3, 3, 1.5), "window must be a whole number, 0 or more: got 1.5"),
    (lambda: strided_mask(3, 3, 0), "stride must be a whole number, 1 or more: got 0"),
    (lambda: causal_mask(math.nan), "T_q must be a whole number, 1 or more: got nan"),
    (lambda: tokenize("  . "), "the sentence is empty"),
    (lambda: paths.text_of(paths.ROOT), "is a folder or no file"),  # nor is a pipe
    (lambda: tokenize("the cta sat"), '"cta" is not among the 97 words'),
    (lambda: tokenize("the elephant sat"), "nouns that it knows: cat, teacher"),
    (lambda: tokenize("the " * 33), "33 words: the limit is 32"),
    (lambda: hidden_word_distribution(TOY_WORDS[1:], 0), "take one that sample_sentence can make"),
    (lambda: TOY_MODEL(torch.zeros(1, 35).long()), "at most 34 tokens: got 35"),
    (
        lambda: plot_attention(None, WEIGHTS[0], [*"abcde"]),
        "(5, 5): got (3, 5, 5); of several pick one",
    ),
    (
        lambda: plot_attention(None, WEIGHTS[0, 0], [*"abcd"]),
        "a column for each key, (4, 4): got (5, 5)",
    ),
    (lambda: plot_attention(None, WEIGHTS[0, 0] * 2, [*"abcde"]), "row 0 sums to 2.0000, and"),
    (lambda: head_statistics(WEIGHTS, torch.ones(2, 1, 5, 5)), "a bool mask (N, 1, T, T)"),
    (lambda: head_statistics(WEIGHTS[0], torch.ones(1, 1, 5, 5).bool()), "unsqueeze(0)"),
]


def attend(query=(2, 3, 5, 11), key=(2, 3, 7, 11), value=(2, 3, 7, 13), mask=None):
    """Phase 1's function, of inputs of these shapes and a mask of this one."""
    mask = None if mask is None else torch.ones(mask).bool()
    return scaled_dot_product_attention(zeros(query), zeros(key), zeros(value), mask)


def attend_as(*dtypes):
    return scaled_dot_product_attention(*(zeros((5, 4), dtype) for dtype in dtypes))


def zeros(shape, dtype=torch.float32):
    return torch.zeros(shape, dtype=dtype)


ONES = zeros((5, 4))
EIGHT_HEADS = MultiHeadAttention(16, 8, bias=False)
TWO_LAYERS = [MultiHeadAttention(12, 3), MultiHeadAttention(12, 3)]

PHASE_1 = [
    (lambda: attend(key=(2, 3, 7, 5)), "share their last size d_k: got 11 and 5"),
    (lambda: attend(value=(2, 3, 6, 13)), "same length T_k: got 7 and 6"),
    (lambda: attend(query=(11,)), "query needs at least 2 axes"),
    (lambda: attend(query=(2, 2, 5, 11)), "the axes before length and size must agree"),
    (lambda: attend(mask=(5, 6)), "(5, 6) does not broadcast to scores of shape (2, 3, 5, 7)"),
    (lambda: attend(mask=(2, 5, 7)), "give it its head axis with mask.unsqueeze(1)"),
    (lambda: attend(mask=(7,)), "2 axes (T_q, T_k) or 4 like the scores: got 1"),
    (lambda: scaled_dot_product_attention(ONES, ONES, ONES, ONES), "mask must be bool"),
    (lambda: attend_as(torch.float32, torch.float64, torch.float64), "got torch.float32, torch.fl"),
    (lambda: attend_as(torch.int64, torch.int64, torch.int64), "one floating dtype: got torch.int"),
    (lambda: CrossAttention(4)(zeros((2, 3, 4)), zeros((3, 4))), "d_model=4): got key (3, 4)"),
    (lambda: AdditiveAttention(4)(zeros((2, 3, 5)), zeros((2, 3, 4))), "got query (2, 3, 5)"),
    (lambda: AdditiveAttention(4)(zeros((2, 3, 4)), zeros((3, 3, 4))), "got query 2, key 3"),
    (
        lambda: LuongAttention(4, "cosine"),
        "unknown method 'cosine': choose from dot, general, conc",
    ),
    (lambda: rotary(zeros((7, 11)), torch.arange(7)), "must be even: got 11"),
    (lambda: rotary(zeros((7, 22)), torch.arange(5)), "have shape (7,), one for each vector: got"),
]
PHASE_2 = [
    (lambda: MultiHeadAttention(1600, 48), "nearest that works: 50 heads of 32"),
    (lambda: MultiHeadAttention(16, 0), "num_heads must be a whole number, 1 or more: got 0"),
    (lambda: MultiHeadAttention(16, 4)(zeros((5, 16))), "(B, T, d_model=16): got query (5, 16)"),
    (
        lambda: MultiHeadAttention(16, 4)(zeros((3, 5, 16)), zeros((1, 7, 16))),
        "one batch size B: got query 3, key 1, value 1",
    ),
    (
        lambda: FusedMultiHeadAttention(16, 2)(zeros((2, 5, 16)), mask=torch.ones(2, 5, 5).bool()),
        "head axis with mask.unsqueeze(1)",
    ),
    (lambda: attention_with_sinks(*[WEIGHTS] * 3, sinks=ONES), "for each head, (3,): got (5, 4)"),
    (lambda: GroupedQueryAttention(24, 6, 4), "num_kv_heads=4; these work: 1, 2, 3, 6"),
    (lambda: GroupedQueryAttention(16, 4, 2)(zeros((2, 5, 12))), "got query (2, 5, 12)"),
    (lambda: StackOfHeads(16, 4).copy_weights(MultiHeadAttention(16, 4)), "got one with bias=True"),
    (lambda: StackOfHeads(16, 4).copy_weights(EIGHT_HEADS), "num_heads=4: got d_model=16, num_h"),
    (lambda: gated_heads(TWO_LAYERS, torch.ones(3)).__enter__(), "(L, H) = (2, 3): got (3,)"),
    (lambda: mean_pooling(zeros((7, 11))), "with T of 1 or more: got shape (7, 11)"),
    (lambda: mean_pooling(zeros((3, 7, 11)), torch.ones(3, 7).bool()), "to scores of shape (3, 1"),
]
PHASE_3 = [
    (lambda: draw_heads(WEIGHTS * 2, [*"abcde"]), "a row sums to 1 at most"),
    (lambda: draw_heads(WEIGHTS * torch.nan, [*"abcde"]), "weights after softmax"),
    (lambda: draw_heads(WEIGHTS[0, 0], [*"abcde"]), "got (5, 5)"),
    (lambda: draw_heads(WEIGHTS, [*"abcd"]), "with T=4 for these tokens: got (2, 3, 5, 5)"),
    (lambda: draw_heads((None, None), [*"abcde"]), "None, load the model with attn_impl"),
    (lambda: draw_heads(((WEIGHTS,), (WEIGHTS,)), [*"abcde"]), "model(tokens).attentions"),
    (lambda: draw_heads(WEIGHTS, [*"abcde"], heads=[(2, 0)]), "(1, 2) is the last: got [(2, 0)]"),
    (lambda: load_language_model(""), 'the model "": a name is needed'),
    (
        lambda: read_texts(LanguageModel(None, None, ""), ["caf\udce9"]),
        "all in Unicode: got 'caf\\udce9'",
    ),
]

LATENT = LatentAttention(12, 3, 11, 4)
WORDS, BETA = torch.zeros(6, 3), torch.zeros(6)
TWO = torch.zeros(2, 2, 4)  # two heads of two words
LEARNED = torch.zeros(1, 2, 2, 4, requires_grad=True)


def cache_of(dtype):
    return KeyValueCache(1, 2, 5, 4, dtype=dtype)


def with_words(way, **more):
    """A way to compute attention gets six words of three numbers."""
    return lambda: way(WORDS, WORDS, WORDS, **more)


def fewer_queries():
    return linear_attention_recurrent(WORDS[:3], WORDS, WORDS)


def request(prompt, limit, **more):
    """To a model of 34 positions, with four blocks of five places."""
    return Engine(PackedToy(long_model(34)), 4, 5, **more).add(prompt, limit)


def stored(key, value):
    """Of one word, with two heads of four numbers."""
    cache, text = PagedCache(1, 5, 2, 2, 4, like=key, share=True), Text([7])
    cache.allocate(text)
    cache.store(0, key, value, packed([text], cache))


PHASE_4 = [
    (with_words(flash_attention, block_size=0), "block_size must be a whole number, 1 or more"),
    (with_words(triton_flash), "powers of 2 from 16 to 256: got 3, 3 and 64"),
    (with_words(local_attention, window=-1), "window must be a whole number, 0 or more"),
    (with_words(linear_attention, feature_map="exp"), "'exp': choose from elu, relu"),
    (fewer_queries, "as many queries as keys: got T_q=3, T_k=6"),
    (with_words(linear_attention_recurrent, state=BETA), "(3, 4) of torch.float32: got (6,)"),
    (with_words(delta_rule, beta=BETA[:5]), "for each key, (6,) in torch.float32: got (5,)"),
    (with_words(gated_delta, beta=BETA, alpha=BETA[:5]), "alpha has one number for each key"),
    (with_words(state_space_attention, alpha=BETA.double()), "got (6,) in torch.float64"),
    (lambda: KeyValueCache(1, 2, 1, 4).append(TWO[None], TWO[None]), "room for 1 positions: got 2"),
    (lambda: KeyValueCache(1, 2, 5, 3).append(TWO[None], TWO[None]), "(1, 2, T_new, 3): got (1, 2"),
    (lambda: KeyValueCache(1, 2, 5, 4).append(TWO[None], TWO[None, :, :1]), "got 2 and 1"),
    (
        lambda: cache_of(torch.float16).append(TWO[None], TWO[None]),
        "make it with dtype=torch.float32",
    ),
    (lambda: cache_of(torch.float32).append(LEARNED, LEARNED), "with gradients; call the model"),
    (lambda: new_caches(long_model(34), 35), "34 positions: got max_length=35"),
    (
        lambda: write_sentences(long_model(34), torch.ones(1, 4).long(), limit=3),
        "of 3 words: got 3",
    ),
    (lambda: KeyValueCache(1, 1, 4, 2).truncate(1), "between 0 and the 0 positions there: got 1"),
    (lambda: LatentAttention(12, 3, 11, 5), "d_rotary must be even: got 5"),
    (lambda: LATENT.decode(torch.zeros(2, 1, 12), torch.zeros(3, 0, 15)), "got (3, 0, 15); begin"),
    (lambda: frequencies(2, "NTK-aware", 8), "needs 4 features or more: got 2"),
    (lambda: request("the", 2), "above the 2 that the text begins with"),
    (lambda: request("", 36), "at most 35, the model's positions and one: got 36"),
    (lambda: request("", 22), "at most 21, the places of all blocks and one: got 22; make more"),
    (lambda: stored(TWO, TWO), "must be (1, 2, 4): got (2, 2, 4) and (2, 2, 4)"),
    (lambda: Sampling(math.nan), "temperature must be finite, and 0"),
]


@pytest.mark.parametrize(("call", "part"), [*SHARED, *PHASE_1, *PHASE_2, *PHASE_3, *PHASE_4])
def test_what_is_wrong_is_refused_in_one_line(call, part):
    with pytest.raises(ValueError, match=re.escape(part)) as refused:
        call()
    assert "\n" not in str(refused.value)
