"""Pages: attention through tables of blocks against one cache a text, in every order of words, forks and ends."""

import copy
import math
import random
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from phase1_single_head.self_attention import scaled_dot_product_attention
from phase4_causal.key_value_cache import KeyValueCache
from phase4_causal.serving import pages
from phase4_causal.serving.paged_cache import PagedCache, paged_attention
from phase4_causal.tests.test_random_inputs import examples, normal
from shared.attention_utils import causal_mask

WORDS = st.dictionaries(st.integers(0, 9), st.integers(1, 5), min_size=1, max_size=4)  # which texts, how many words
EVENTS = st.lists(st.one_of(st.sampled_from(("start", "fork", "end")), WORDS, WORDS), min_size=5, max_size=30)


def attend_by_loops(query, key, value, caches, counts):
    """Text by text, each with a cache of its own -> (N, H, d_k)."""
    outputs = []
    for cache, *parts in zip(caches, *(x.split(counts) for x in (query, key, value)), strict=True):
        q, k, v = (part.transpose(0, 1)[None] for part in parts)  # (T_new, H, d_k) -> (1, H, T_new, d_k)
        keys, values = cache.append(k, v)
        heads, _ = scaled_dot_product_attention(q, keys, values, causal_mask(q.size(2), keys.size(2)))
        outputs.append(heads[0].transpose(0, 1))
    return torch.cat(outputs)


def assert_accounts_balance(cache):
    """Each block is free, or has as many readers as tables in which it stands; no table is longer than its text."""
    reading = Counter(block for table in cache.tables.values() for block in table)
    assert dict(enumerate(cache.readers)) == {block: reading[block] for block in range(len(cache.readers))}
    assert sorted(cache.free) == [block for block, readers in enumerate(cache.readers) if not readers]
    assert all(len(cache.tables[text]) == math.ceil(n / cache.block_size) for text, n in cache.lengths.items())


@examples(100)
@given(st.sampled_from((1, 2, 3, 5)), st.integers(1, 40), EVENTS, st.randoms(use_true_random=False))
def test_pages_are_a_cache_for_each_text_in_every_order_of_words_forks_and_ends(size, num_blocks, events, rng):
    cache, plain = PagedCache(num_blocks, 2, size, 3, dtype=torch.float64), {}  # plain: text -> a cache of its own
    cache.keys.fill_(math.nan)  # what no text has written must not be read
    cache.values.fill_(math.nan)
    for seed, event in enumerate(["start", *events]):
        text = rng.choice(list(plain)) if plain else None
        if event == "start" or text is None:
            plain[cache.start()] = KeyValueCache(1, 2, 200, 3, dtype=torch.float64)
        elif event == "fork":
            plain[cache.start(text)] = copy.deepcopy(plain[text])
        elif event == "end":
            cache.end(text)
            del plain[text]
        else:
            new = {list(plain)[index % len(plain)]: count for index, count in event.items()}
            query, key, value = normal(seed, *3 * [(sum(new.values()), 2, 3)])
            query = rng.choice((1, 1000)) * query  # exp of such scores is infinite
            free, needed, tables = len(cache.free), cache.blocks_for(new), copy.deepcopy(cache.tables)
            if needed > free:
                with pytest.raises(ValueError, match=f"{needed} blocks are needed: got {free} free"):
                    cache.append(key, value, new)
                assert cache.tables == tables
            else:
                cache.append(key, value, new)
                expected = attend_by_loops(query, key, value, [plain[text] for text in new], list(new.values()))
                torch.testing.assert_close(paged_attention(query, cache, new), expected, rtol=0, atol=1e-10)
                assert free - len(cache.free) == needed
        assert_accounts_balance(cache)


def test_words_that_do_not_fit_and_texts_that_are_not_there_are_refused_and_nothing_is_stored():
    cache, two = PagedCache(4, 2, 5, 3), torch.zeros(2, 2, 3)
    text = cache.start()
    for key in (torch.zeros(4, 2, 3), torch.zeros(1, 2, 3), two.double()):
        with pytest.raises(ValueError, match=r"\(2, 2, 3\) in torch.float32: got \("):
            cache.append(key, key, {text: 2})
    for use, *inputs in (
        (cache.start, 7),
        (cache.end, 7),
        (cache.blocks_for, {7: 1}),
        (cache.append, two, two, {text: 1, 7: 1}),
        (paged_attention, two, cache, {text: 1, 7: 1}),
    ):
        with pytest.raises(ValueError, match=r"start\(\).*end\(\).*got 7.*are \[0\]"):
            use(*inputs)
    assert (cache.lengths, cache.tables) == ({0: 0}, {0: []}) and cache.start() == 1
    assert_accounts_balance(cache)


def test_blocks_as_long_as_a_text_are_one_for_each_text_and_blocks_of_one_place_waste_nothing():
    cache = pages.filled(20, random.Random(0))
    assert len(cache.lengths) == pages.PLACES // 20 and not cache.free
    assert sum(pages.filled(1, random.Random(0)).lengths.values()) > pages.PLACES - 20
