"""What a cache costs: on paper, in the buffers, and counted by torch."""

import pytest
import torch

from phase2_multi_head.grouped_query_attention import kv_cache_bytes
from phase4_causal.key_value_cache import KeyValueCache
from phase4_causal.models import long_model
from phase4_causal.serving.cache_cost import Pass, costs, prepared
from phase4_causal.writing.sampling import new_caches
from shared.toy_language import VOCABULARY

PASSES = [Pass(1, 0, 7), Pass(3, 11, 1), Pass(5, 2, 13)]


def test_a_cache_holds_two_numbers_a_layer_a_head_a_dimension():
    for dtype, size in ((torch.float32, 4), (torch.bfloat16, 2)):
        layers = [KeyValueCache(5, 3, 11, 7, dtype=dtype) for _ in range(2)]
        paper = 5 * kv_cache_bytes(3, 7, 11, num_layers=2, bytes_each=size)
        assert sum(cache.num_bytes for cache in layers) == paper == 5 * 11 * 2 * 2 * 3 * 7 * size
    gpt_2, llama_2, llama_3 = (12, 12, 64), (32, 32, 128), (32, 8, 128)  # layers, key-value heads, d_k
    kib = [kv_cache_bytes(heads, d_k, 1, num_layers=layers) / 2**10 for layers, heads, d_k in (gpt_2, llama_2, llama_3)]
    assert kib == [36, 512, 128], "as the lesson says, in 16 bits"


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
    work, model, seen = Pass(3, 11, 2), long_model(20, "cpu", 16, 2), []
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
