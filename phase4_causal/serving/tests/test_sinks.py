"""A rolling cache equals attention under its mask, a logit and a gate their formulas; the texts keep their rule."""

import math
import random

import pytest
import torch

from phase1_single_head.order.position_encodings import rotary
from phase1_single_head.self_attention import scaled_dot_product_attention
from phase2_multi_head.multi_head_attention import merge_heads, split_heads
from phase4_causal.key_value_cache import KeyValueCache
from phase4_causal.serving import sinks
from phase4_causal.serving.resting_heads import KINDS, RotaryAttention
from phase4_causal.serving.rolling_cache import RollingCache, streaming_by_loops
from shared.attention_utils import causal_mask, streaming_mask
from shared.tests.helpers import qkv
from shared.toy_language import MASK, VERBS, VOCABULARY, decode

B, H, T, D_K = 2, 3, 23, 4
SIZES = [(1, 0), (5, 0), (5, 1), (7, 4), (3, 5), (29, 0), (29, 2)]  # window, sinks; the last two never roll


def rolling(window, first):
    return RollingCache(KeyValueCache(B, H, first + window, D_K, dtype=torch.float64), first)


def module(kind):
    torch.manual_seed(7)
    attention = KINDS[kind](H * D_K, H).double()
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.normal_()
    return attention, torch.randn(B, T, H * D_K, dtype=torch.float64)


@torch.no_grad()
def word_by_word(attention, x, cache):
    return torch.cat([attention(word, cache=cache)[0] for word in x.split(1, dim=1)], dim=1)


def test_what_is_kept():
    rows = streaming_mask(5, window=2, sinks=1).int().tolist()
    assert rows == [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 0, 1, 1, 0], [1, 0, 0, 1, 1]]
    for length, window, first in ((11, 3, 0), (11, 3, 2), (11, 7, 5), (3, 11, 1)):
        expected = [[j <= i and (i - j < window or j < first) for j in range(length)] for i in range(length)]
        assert streaming_mask(length, window, first).tolist() == expected
    assert torch.equal(streaming_mask(5, None), causal_mask(5))


@pytest.mark.parametrize(("window", "first"), SIZES)
def test_a_rolling_cache_is_a_mask(window, first):
    query, key, value = qkv(1, t_q=T, t_k=T, leading=(B, H), d_k=D_K, d_v=D_K)
    cache, mask = rolling(window, first), streaming_mask(T, window, first)
    expected, _ = scaled_dot_product_attention(query, key, value, mask)
    for i in range(T):
        one, *new = (each[..., i : i + 1, :] for each in (query, key, value))
        output, _ = scaled_dot_product_attention(one, *cache.append(*new))
        torch.testing.assert_close(output, expected[..., i : i + 1, :], rtol=0, atol=1e-10)
        assert sorted(cache.positions.tolist()) == mask[i].nonzero()[:, 0].tolist()
        assert all(p == s if p < first else (p - first) % window == s - first for s, p in enumerate(cache.positions))


@pytest.mark.parametrize(("window", "first"), SIZES)
def test_places_are_counted_within_the_cache(window, first):
    attention, x = module("plain")
    query, key, value = (split_heads(w(x), H) for w in (attention.w_q, attention.w_k, attention.w_v))
    heads = [streaming_by_loops(query[b, h], key[b, h], value[b, h], window, first) for b in range(B) for h in range(H)]
    expected = attention.w_o(merge_heads(torch.stack(heads).view(B, H, T, D_K)))
    torch.testing.assert_close(word_by_word(attention, x, rolling(window, first)), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_a_cache_of_everything_is_one_pass(kind):
    attention, x = module(kind)
    torch.testing.assert_close(word_by_word(attention, x, rolling(T, 0)), attention(x)[0], rtol=0, atol=1e-10)


def test_a_logit_is_a_gate_on_what_was_found():
    """Plain output times sigmoid(logsumexp(scores) - logit); at logit 0 softmax off by one, exp / (1 + sum of exp)."""
    attention, x = module("logit")
    query, key, value = (split_heads(w(x), H) for w in (attention.w_q, attention.w_k, attention.w_v))
    query, key = (rotary(each, torch.arange(T)) for each in (query, key))
    scores = (query @ key.mT / D_K**0.5).masked_fill(~causal_mask(T), -torch.inf)
    plain, _ = scaled_dot_product_attention(query, key, value, causal_mask(T))
    gate = (scores.logsumexp(dim=-1, keepdim=True) - attention.logit).sigmoid()
    output, weights = attention(x)
    torch.testing.assert_close(output, attention.w_o(merge_heads(plain * gate)), rtol=0, atol=1e-10)
    torch.testing.assert_close(weights.sum(dim=-1, keepdim=True), gate, rtol=0, atol=1e-10)
    torch.nn.init.zeros_(attention.logit)
    off_by_one = scores.exp() / (1 + scores.exp().sum(dim=-1, keepdim=True))
    torch.testing.assert_close(attention(x)[1], off_by_one, rtol=0, atol=1e-10)


def test_a_gate_scales_the_heads_of_the_word_that_asks():
    attention, x = module("gate")
    plain = RotaryAttention(H * D_K, H).double()
    plain.load_state_dict(attention.state_dict(), strict=False)
    plain.w_o, w_o = torch.nn.Identity(), attention.w_o
    gates = attention.gate(x).sigmoid().repeat_interleave(D_K, dim=-1)  # (B, T, H) -> (B, T, H * d_k)
    torch.testing.assert_close(attention(x)[0], w_o(gates * plain(x)[0]), rtol=0, atol=1e-10)


def test_texts_keep_their_rule():
    words, asked = decode(sinks.text(2000, random.Random(3))), 0
    for i, verb in enumerate(words[:-1]):
        if verb in VERBS:
            same = [j for j in range(i) if sinks.CLASS.get(words[j]) == VERBS[verb][0]]
            back = i - max(same, default=-1000)
            assert words[i + 1] == (words[same[-1]] if back <= sinks.NEAR else MASK)
            assert back <= sinks.NEAR or back > sinks.SLOTS, "no answer hangs on whether a window still has it"
            asked += 1
    assert len(words) == 2001 and asked > 100


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_logit_in_16_bits_is_summed_in_float32(dtype):
    """As phase 1's function, of which a logit that gets nothing takes nothing away."""
    attention = KINDS["logit"](H * D_K, H).to(dtype)
    torch.nn.init.constant_(attention.logit, -torch.inf)
    query, key, value = (60 * part.to(dtype) for part in qkv(1, t_q=5, t_k=5, leading=(B, H), d_k=7))
    query[0] /= 60**2  # the products of the others are beyond 65,504, where float16 ends
    found = attention.attend(query, key, value, causal_mask(5), None)
    expected = scaled_dot_product_attention(query, key, value, causal_mask(5))
    torch.testing.assert_close(found, expected, rtol=torch.finfo(dtype).eps, atol=torch.finfo(dtype).tiny)


@pytest.mark.parametrize("kind", KINDS)
def test_a_mask_with_one_column_hides_all_keys_or_none(kind):
    attention, x = module(kind)
    query, key, value = qkv(t_q=T, t_k=T, leading=(B, H), d_k=D_K, d_v=D_K)
    rows = torch.arange(T)[:, None] % 5 != 3
    found, expected = (attention.attend(query, key, value, mask, x) for mask in (rows, rows.expand(T, T)))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_masks_and_places_are_made_where_the_words_are(kind):
    attention, x = module(kind)
    output, weights = attention.to("meta")(x.to("meta"))
    assert (output.device.type, output.shape, weights.shape) == ("meta", x.shape, (B, H, T, T))


def test_at_rest_counts_from_a_full_window_on_and_leaves_out_where_something_is_asked():
    tokens = sinks.texts(7, sinks.LENGTH, 0)
    verbs = torch.tensor([[word in VERBS for word in decode(row)] for row in tokens[:, :-1].tolist()])
    late = torch.arange(sinks.LENGTH) >= sinks.SLOTS
    assert verbs[:, late].any()
    weights = torch.zeros(7, 1, sinks.LENGTH, sinks.LENGTH)
    weights[..., 0] = torch.where(verbs | ~late, 0.0, 0.75)[:, None]
    sure = torch.nn.functional.one_hot(tokens[:, 1:], len(VOCABULARY)) * torch.where(late, 0.0, 1e3)[:, None]
    loss, on_first = sinks.at_rest(lambda words: (sure, (weights,)), tokens)
    assert (loss, on_first) == (pytest.approx(math.log(len(VOCABULARY))), pytest.approx(0.75))


def test_errors():
    with pytest.raises(ValueError, match="of 4 slots one must roll: got sinks=4"):
        RollingCache(KeyValueCache(1, 1, 4, 2), 4)
    used = KeyValueCache(1, 1, 4, 2)
    used.append(*torch.zeros(2, 1, 1, 3, 2))
    with pytest.raises(ValueError, match=r"empty.*got one that holds 3"):
        RollingCache(used)
    cache = rolling(3, 1)
    with pytest.raises(ValueError, match="one position at a time: got 2"):
        cache.append(*torch.zeros(2, B, H, 2, D_K, dtype=torch.float64))
    for shape in ((B, H), (B, H, D_K), (1, B, H, 1, D_K)):
        with pytest.raises(ValueError, match=r"a key of shape \(2, 3, T_new, 4\): got"):
            cache.append(*torch.zeros(2, *shape, dtype=torch.float64))
    assert cache.length == 0
    attention, x = module("plain")
    with pytest.raises(ValueError, match="a RollingCache: got KeyValueCache"), torch.no_grad():
        attention(x[:, :1], cache=KeyValueCache(B, H, 5, D_K, dtype=torch.float64))
