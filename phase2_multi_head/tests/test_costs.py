"""Fused and grouped attention, and what PyTorch's own function does; operations and bytes are what
the formulas say.
"""

import random
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from phase1_single_head.self_attention import SelfAttention
from phase2_multi_head.costs import benchmark, cost_model, measure
from phase2_multi_head.costs.measure import count_operations, peak_memory
from phase2_multi_head.fused_attention import FusedMultiHeadAttention
from phase2_multi_head.grouped_query_attention import kv_cache_bytes
from phase2_multi_head.multi_head_attention import MultiHeadAttention, StackOfHeads
from shared.attention_utils import causal_mask
from shared.tests.helpers import T_K, T_Q, B, H


def test_the_fused_call_is_causal_for_equal_lengths_and_drops_in_training_alone(monkeypatch):
    calls = []

    def watched(*inputs, **options):
        calls.append(options)
        return inputs[0]

    monkeypatch.setattr(F, "scaled_dot_product_attention", watched)
    attention = FusedMultiHeadAttention(33, H, causal=True, dropout=0.25)
    x, longer = torch.randn(B, T_Q, 33), torch.randn(B, T_K, 33)
    attention(x)
    attention.eval()
    attention(x, longer)
    alike, apart = calls
    assert alike["is_causal"] and alike["attn_mask"] is None and alike["dropout_p"] == 0.25
    assert not apart["is_causal"] and apart["dropout_p"] == 0
    assert torch.equal(apart["attn_mask"], causal_mask(T_Q, T_K))


def test_keys_and_values_to_keep():
    assert kv_cache_bytes(8, 128, 8192, num_layers=32) == 2**30  # Llama 3 8B
    assert kv_cache_bytes(32, 128, 8192, num_layers=32) == 2**32  # with 32 key-value heads


@pytest.mark.parametrize("queries", [5, 2])
def test_is_causal_aligns_the_first_query_with_the_first_key(queries):
    """Which keys it lets each query see: identity as values hands back the weights."""
    q, k, v = torch.zeros(queries, 8), torch.zeros(5, 8), torch.eye(5)
    seen = F.scaled_dot_product_attention(q, k, v, is_causal=True) > 0
    assert torch.equal(seen, torch.ones(queries, 5).bool().tril())
    assert torch.equal(seen, causal_mask(queries, 5)) == (queries == 5)


def test_all_ways_of_the_benchmark_agree_but_the_wrong_one():
    ways, x = benchmark.ways(7, "cpu"), torch.randn(2, 7, benchmark.D_MODEL)
    right = ways[benchmark.OURS](x)
    assert len(ways) == 5
    for name, way in ways.items():
        off = (way(x) - right).abs().max()
        assert off > 0.1 if name == benchmark.WRONG else off < 1e-5, name


@pytest.mark.parametrize(
    ("length", "d_model", "num_heads"), ((5, 33, 3), (64, 32, 1), (101, 33, 3), (128, 64, 2))
)
def test_peak_memory_as_the_formulas_say(length, d_model, num_heads):
    """Short and long, on both sides of T = 2 d_k."""
    sizes = length, d_model, num_heads
    assert cost_model.measured_peak("in steps", *sizes) == cost_model.peak_bytes("in steps", *sizes)
    formula = cost_model.peak_bytes("fused", *sizes)
    assert formula <= cost_model.measured_peak("fused", *sizes) <= formula + 2**20  # scratch memory
    assert cost_model.peak_bytes("fused", 4 * length, d_model, num_heads) == 4 * formula


def parameters(module):
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize(
    ("batch", "n", "d", "heads"), ((1, 7, 33, 3), (2, 13, 22, 2), (3, 5, 35, 7))
)
def test_operations_and_parameters_as_the_formulas_say(batch, n, d, heads):
    attention = MultiHeadAttention(d, heads, bias=False)
    operations = count_operations(attention, torch.randn(batch, n, d))
    assert operations == batch * (8 * n * d**2 + 4 * n**2 * d)  # C029
    assert parameters(attention) == parameters(StackOfHeads(d, heads)) == 4 * d**2  # C026, C028
    assert parameters(MultiHeadAttention(d, heads)) == 4 * d**2 + 4 * d  # C027


@pytest.mark.parametrize(("length", "d_model"), [(6, 64), (26, 13), (52, 13)])
def test_from_twice_the_width_on_the_scores_cost_more_than_the_projections(length, d_model):
    """4 T² d for scores and means against 8 T d² for four projections."""
    x = torch.randn(1, length, d_model)
    projections = 4 * count_operations(nn.Linear(d_model, d_model, bias=False), x)
    whole = count_operations(MultiHeadAttention(d_model, 1, bias=False), x)
    share_of_scores = 1 - projections / whole
    expected = length / (length + 2 * d_model)
    assert share_of_scores == pytest.approx(expected)  # C032: half at T = 2 d


# ---- memory


def test_what_becomes_smaller_if_memory_is_short():
    """At 4,096 words, where the weights are nearly all of it."""
    bytes_of = partial(cost_model.peak_bytes, "in steps")
    whole = bytes_of(4096, 64, 8)
    assert bytes_of(2048, 64, 8) == pytest.approx(whole / 4, rel=0.01), "shorter"
    assert bytes_of(4096, 64, 4) == pytest.approx(whole / 2, rel=0.01), "fewer heads"
    assert bytes_of(4096, 32, 8) == pytest.approx(whole, rel=0.01), "narrower"


def test_when_torchs_attention_holds_no_table_of_weights():
    """On a processor. Dropout, or values of another size, bring the table; a mask does not."""
    query = torch.randn(1, 8, 512, 16)
    all_weights = 4 * 8 * 512**2  # bytes

    def peak(value=query, **options):
        return peak_memory(lambda: F.scaled_dot_product_attention(query, query, value, **options))

    fused = max(peak(), peak(is_causal=True), peak(attn_mask=causal_mask(512)))
    plain = min(peak(dropout_p=0.1), peak(value=query[..., :8]))
    assert fused < all_weights <= plain


def kept_bytes(module, x):
    """What a forward pass keeps for the backward pass."""
    kept = {}  # by their addresses

    def pack(tensor):
        kept[tensor.data_ptr()] = tensor
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        module(x)
    return sum(tensor.nbytes for tensor in kept.values())


def test_checkpointing_keeps_less_and_still_needs_one_whole_layer():
    """C149: the weights are not kept, but made again, and one layer's still grow like T²."""
    head, x = SelfAttention(64), torch.randn(1, 256, 64, requires_grad=True)
    again = partial(checkpoint, head, use_reentrant=False)
    assert kept_bytes(again, x) == x.nbytes < kept_bytes(head, x) / 5
    peaks = [peak_memory(partial(head, torch.randn(1, length, 64))) for length in (1024, 2048)]
    assert peaks[1] > 3 * peaks[0]


# ---- memory, operations, times


def test_peak_memory_of_calls_whose_memory_is_known():
    def free_first():
        first = torch.zeros(1000)  # 4,000 bytes
        del first
        return torch.zeros(500)  # 2,000

    def both():
        first = torch.zeros(1000)
        return first, torch.zeros(500)

    def one_after_the_other():
        x = torch.zeros(1000)
        for _ in range(3):
            x = x + x  # the old x lives until the new one is written
        return x.sum()

    sizes = {free_first: 4000, both: 6000, one_after_the_other: 8000, lambda: None: 0}
    for call, size in sizes.items():
        assert measure.peak_memory(call) == size, call.__name__
    q = torch.randn(1, 2, 256, 16)  # a kernel with scratch memory: its log-sums
    used = measure.peak_memory(lambda: F.scaled_dot_product_attention(q, q, q))
    assert used > q.nbytes + 256 * 2 * 4


def test_every_function_is_timed_equally_often_in_a_new_order_each_round():
    called = []
    calls = {name: (lambda name=name: called.append(name)) for name in "abc"}
    state, torch_state = random.getstate(), torch.get_rng_state()
    times = measure.paired_times(calls, rounds=12)
    assert random.getstate() == state and torch.equal(torch.get_rng_state(), torch_state)
    assert {name: len(values) for name, values in times.items()} == dict.fromkeys("abc", 12)
    rounds = ["".join(called[i : i + 3]) for i in range(0, len(called), 3)]
    assert len(rounds) == 13  # the first to warm up
    assert len(set(rounds)) > 2 and {"".join(sorted(one)) for one in rounds} == {"abc"}


def test_operations_and_ratios_by_hand():
    times = {"slow": [2.0, 6.0, 8.0, 20.0, 10.0], "fast": [2.0, 3.0, 2.0, 4.0, 5.0]}
    # ratios 1, 2, 4, 5, 2
    assert measure.ratio_quartiles(times, "slow", "fast") == [2, 2, 4]
    for device in ("cpu", "meta"):
        a, b = torch.empty(3, 5, device=device), torch.empty(5, 7, device=device)
        assert measure.count_operations(torch.matmul, a, b) == 2 * 3 * 5 * 7
        assert measure.count_operations(torch.add, a, a) == 0
