"""Long texts: a rolling cache and places in it, rotary positions stretched, by identities in float64; and the texts."""

import math
import random

import pytest
import torch
import torch.nn.functional as F

from phase1_single_head.order.position_encodings import rotary
from phase1_single_head.self_attention import scaled_dot_product_attention
from phase2_multi_head.multi_head_attention import merge_heads, split_heads
from phase4_causal.key_value_cache import KeyValueCache
from phase4_causal.serving import longer, sinks
from phase4_causal.serving.rolling_cache import RollingCache
from phase4_causal.serving.rotary_attention import (
    AS_TRAINED,
    INTERPOLATED,
    NTK,
    PARTS,
    TRAINED,
    WAYS,
    RotaryHeads,
    frequencies,
)
from shared.attention_utils import causal_mask, streaming_mask
from shared.toy_language import MASK, VERBS, decode

B, H, T, D_K = 2, 3, 23, 4
SIZES = [(1, 0), (5, 0), (5, 1), (7, 4), (3, 5), (29, 0), (29, 2)]  # window, sinks; the last two never roll
SIZE = 14  # of a head: its pairs go round 5, 1.4 and less than 1 times in training
close = torch.testing.assert_close


def rolling(window, first):
    return RollingCache(KeyValueCache(B, H, first + window, D_K, dtype=torch.float64), first)


def attention_and_words():
    torch.manual_seed(7)
    return RotaryHeads(H * D_K, H).double(), torch.randn(B, T, H * D_K, dtype=torch.float64)


@torch.no_grad()
def word_by_word(attention, x, cache):
    return torch.cat([attention(word, cache=cache)[0] for word in x.split(1, dim=1)], dim=1)


def streaming_by_loops(query, key, value, window, first):
    """Every position (T, d) takes what it keeps out of the whole past, and numbers it from 0 on."""
    outputs = []
    for i, row in enumerate(streaming_mask(len(query), window, first)):
        kept = row.nonzero()[:, 0]
        places, turns = torch.arange(len(kept)), frequencies(D_K).double()
        turned = rotary(query[i : i + 1], places[-1:], turns), rotary(key[kept], places, turns)
        outputs.append(scaled_dot_product_attention(*turned, value[kept])[0])
    return torch.cat(outputs)


@pytest.mark.parametrize(("window", "first"), SIZES)
def test_positions_are_those_of_the_mask_and_places_are_counted_within_the_cache(window, first):
    attention, x = attention_and_words()
    query, key, value = (split_heads(w(x), H) for w in (attention.w_q, attention.w_k, attention.w_v))
    heads = [streaming_by_loops(query[b, h], key[b, h], value[b, h], window, first) for b in range(B) for h in range(H)]
    expected, cache = attention.w_o(merge_heads(torch.stack(heads).view(B, H, T, D_K))), rolling(window, first)
    for i, word in enumerate(x.split(1, dim=1)):
        close(word_by_word(attention, word, cache), expected[:, i : i + 1], rtol=0, atol=1e-10)
        assert sorted(cache.positions.tolist()) == streaming_mask(T, window, first)[i].nonzero()[:, 0].tolist()
        assert all(p == s if p < first else (p - first) % window == s - first for s, p in enumerate(cache.positions))


def test_a_cache_of_everything_is_one_pass():
    attention, x = attention_and_words()
    close(word_by_word(attention, x, rolling(T, 0)), attention(x)[0], rtol=0, atol=1e-10)


def test_caches_and_words_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="of 4 slots one must roll: got sinks=4"):
        RollingCache(KeyValueCache(1, 1, 4, 2), 4)
    used = KeyValueCache(1, 1, 4, 2)
    used.append(*torch.zeros(2, 1, 1, 3, 2))
    with pytest.raises(ValueError, match=r"empty.*got one that holds 3"):
        RollingCache(used)
    cache = rolling(3, 1)
    with pytest.raises(ValueError, match="one position at a time: got 2"):
        cache.append(*torch.zeros(2, B, H, 2, D_K, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"a key of shape \(2, 3, T_new, 4\): got"):
        cache.append(*torch.zeros(2, B, H, D_K, dtype=torch.float64))
    assert cache.length == 0


@pytest.mark.parametrize("stretch", [1, 2.5, 8])
def test_frequencies_pair_by_pair(stretch):
    """The specification: one pair at a time, in words of the papers."""
    found = {way: frequencies(SIZE, way, stretch).tolist() for way in WAYS}
    for i, plain in enumerate(found[AS_TRAINED]):
        assert plain == pytest.approx(10000 ** (-2 * i / SIZE))
        assert found[INTERPOLATED][i] == pytest.approx(plain / stretch)
        assert found[NTK][i] == pytest.approx(plain * stretch ** (-i / (SIZE / 2 - 1))), "first: as it was; last: / s"
        rounds = TRAINED * plain / (2 * math.pi)
        slowed = 1 if rounds >= 2 else 0 if rounds <= 1 else rounds - 1  # share of the plain frequency that is kept
        assert found[PARTS][i] == pytest.approx(slowed * plain + (1 - slowed) * plain / stretch)


@pytest.mark.parametrize("way", WAYS)
def test_heads_are_attention_with_turned_queries_and_keys(way):
    """By complex numbers and torch's own attention; with a mask of words that nobody sees."""
    torch.manual_seed(0)
    module, x = RotaryHeads(3 * SIZE, 3).double(), torch.randn(2, 11, 3 * SIZE, dtype=torch.float64)
    module.way, module.stretch = way, 4
    angle = torch.arange(11)[:, None] * frequencies(SIZE, way, 4).double()

    def turned(heads):
        pairs = torch.view_as_complex(heads.unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten(-2)

    query, key, value = (split_heads(w(x), 3) for w in (module.w_q, module.w_k, module.w_v))
    scale = (0.1 * math.log(4) + 1) ** 2 if way == PARTS else 1
    for mask in (None, torch.arange(11) % 4 != 1):
        seen = causal_mask(11) if mask is None else causal_mask(11) & mask
        heads = F.scaled_dot_product_attention(turned(query) * scale, turned(key), value, attn_mask=seen)
        output, weights = module(x, mask if mask is None else mask.expand(11, 11))
        close(output, module.w_o(merge_heads(heads)), rtol=0, atol=1e-10)
        assert not weights[..., ~seen].any()


def test_one_pair_cannot_be_the_first_and_the_last():
    with pytest.raises(ValueError, match="4 features or more: got 2"):
        frequencies(2, NTK, 4)
    assert frequencies(2, INTERPOLATED, 4).tolist() == [0.25]


def test_texts_keep_their_rule():
    words, wanted = longer.copies(3, 40, torch.Generator().manual_seed(0))
    assert torch.equal(wanted[:, 3:], words[:, :-3])
    words, asked = decode(sinks.text(2000, random.Random(3))), 0
    for i, verb in enumerate(words[:-1]):
        if verb in VERBS:
            same = [j for j in range(i) if sinks.CLASS.get(words[j]) == VERBS[verb][0]]
            back = i - max(same, default=-1000)
            assert words[i + 1] == (words[same[-1]] if back <= sinks.NEAR else MASK)
            assert back <= sinks.NEAR or back > sinks.SLOTS, "no answer hangs on whether a window still has it"
            asked += 1
    assert len(words) == 2001 and asked > 100
