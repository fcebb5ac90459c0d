"""What a cache costs: on paper, in the buffers, and counted by torch."""

import pytest
import torch

from phase2_multi_head.grouped_query_attention import kv_cache_bytes
from phase4_causal.key_value_cache import KeyValueCache
from phase4_causal.models import long_model
from phase4_causal.serving import cache_cost
from phase4_causal.serving.cache_cost import PUBLISHED, Pass, costs, per_word, prepared, ratios
from phase4_causal.writing.sampling import new_caches
from shared.toy_language import VOCABULARY

PASSES = [Pass("", 1, 0, 7), Pass("", 3, 11, 1), Pass("", 5, 2, 13)]


def test_a_cache_holds_two_numbers_a_layer_a_head_a_dimension():
    """2 L H_kv d_k for each token, in the buffers and of the published models."""
    for dtype, size in ((torch.float32, 4), (torch.bfloat16, 2)):
        layers = [KeyValueCache(5, 3, 11, 7, dtype=dtype) for _ in range(2)]
        paper = 5 * kv_cache_bytes(3, 7, 11, num_layers=2, bytes_each=size)
        assert sum(cache.num_bytes for cache in layers) == paper == 5 * 11 * 2 * 2 * 3 * 7 * size
    numbers = {name: kv_cache_bytes(h, d, 1, num_layers=n, bytes_each=1) for name, (n, h, d, _) in PUBLISHED.items()}
    assert list(numbers.values()) == [18_432, 262_144, 163_840, 65_536, 65_536]


@pytest.mark.parametrize("work", PASSES, ids=str)
def test_operations_and_bytes_of_a_pass(work):
    """By the formulas, with d = 16 and 2 layers; the weights once, whatever the batch."""
    d, layers, words = 16, 2, work.batch * work.new
    length = work.past + work.new
    operations, moved = costs(long_model(20, "meta", d, layers), work)
    assert operations == layers * words * (16 * d**2 + 4 * length * d) + 2 * words * d * len(VOCABULARY)
    model = long_model(20, "cpu", d, layers)
    kept = sum(cache.num_bytes for cache in new_caches(model, length, work.batch))
    assert moved == sum(parameter.nbytes for parameter in model.parameters()) + kept


def test_a_prepared_pass_reads_its_cache_and_can_be_run_again(monkeypatch):
    """Each call starts behind the same words, with a buffer that has been written to."""
    work, model, seen = Pass("", 3, 11, 2), long_model(20, "cpu", 16, 2), []
    append = KeyValueCache.append

    def watched(cache, key, value):
        kept = append(cache, key, value)
        seen.append([tuple(part.shape[::2]) for part in kept] + [bool(part[:, :, : work.past].all()) for part in kept])
        return kept

    monkeypatch.setattr(KeyValueCache, "append", watched)
    call = prepared(model, work)
    call()
    call()
    assert seen == [[(3, 13), (3, 13), True, True]] * 4  # two layers, twice


def test_time_a_word_by_the_roofline_and_as_ratios():
    """Times that grow with the batch: a word takes as long as alone. With one rate free the other decides."""
    times = {name: [2.0 * work.batch, 3.0 * work.batch] for name, work in cache_cost.PASSES.items()}
    times |= {cache_cost.TOY: [4.0, 4.0], cache_cost.CALLS: [1.0, 1.0]}
    found = ratios(times)
    assert found.pop(f"{cache_cost.CALLS} / {cache_cost.TOY}") == [0.25] * 3
    assert len(found) == 6 and all(quartiles == [1, 1, 1] for quartiles in found.values())
    model = long_model(1024, "meta", cache_cost.D_MODEL, cache_cost.NUM_LAYERS)
    by_memory, by_arithmetic = (per_word(times, rates) for rates in ((1e30, 1.0), (1.0, 1e30)))
    for name, work in cache_cost.PASSES.items():
        operations, moved = costs(model, work)
        words = work.batch * work.new
        assert by_memory[name] == (operations / moved, moved / words, 2 / work.new)
        assert by_arithmetic[name][1] == operations / words
