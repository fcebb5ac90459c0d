"""Fused and grouped attention, and what PyTorch's own function does; operations and bytes are what
the formulas say.
"""

import pytest
import torch
import torch.nn.functional as F

from phase1_single_head.self_attention import SelfAttention
from phase2_multi_head.costs import benchmark, cost_model
from phase2_multi_head.fused_attention import FusedMultiHeadAttention
from phase2_multi_head.grouped_query_attention import GroupedQueryAttention, kv_cache_bytes
from phase2_multi_head.multi_head_attention import MultiHeadAttention, StackOfHeads
from shared.attention_utils import causal_mask
from shared.measure import count_operations
from shared.tests.helpers import T_K, T_Q, B, H


def test_fused_attention_passes_is_causal_for_equal_lengths_alone_and_dropout_in_training_alone(
    monkeypatch,
):
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
    assert [call["is_causal"] for call in calls] == [True, False] and calls[0]["attn_mask"] is None
    assert torch.equal(calls[1]["attn_mask"], causal_mask(T_Q, T_K))
    assert [call["dropout_p"] for call in calls] == [0.25, 0.0]


def test_what_would_mean_something_else_is_refused():
    for source, message in (
        (MultiHeadAttention(16, 4), "needs an original with bias=False: got one with bias=True"),
        (
            MultiHeadAttention(16, 8, bias=False),
            "d_model=16, num_heads=4: got d_model=16, num_heads=8",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            StackOfHeads(16, 4).copy_weights(source)
    with pytest.raises(
        ValueError, match=r"num_heads=6 is not divisible by num_kv_heads=4; these work: 1, 2, 3, 6"
    ):
        GroupedQueryAttention(24, 6, 4)
    with pytest.raises(
        ValueError, match=r"head axis with mask.unsqueeze\(1\)"
    ):  # torch would take it as one of heads
        FusedMultiHeadAttention(16, 2)(torch.zeros(2, 5, 16), mask=torch.ones(2, 5, 5).bool())


def test_keys_and_values_to_keep():
    assert kv_cache_bytes(8, 128, 8192, num_layers=32) == 2**30  # Llama 3 8B
    assert (
        kv_cache_bytes(32, 128, 8192, num_layers=32) == 4 * 2**30
    )  # with as many key-value heads as query heads


def test_is_causal_aligns_the_first_query_with_the_first_key():
    """Which keys it lets each query see: identity as values hands back the weights."""
    for queries in (5, 2):
        q, k = torch.zeros(1, 1, queries, 8), torch.zeros(1, 1, 5, 8)
        seen = (
            F.scaled_dot_product_attention(q, k, torch.eye(5)[None, None], is_causal=True)[0, 0] > 0
        )
        assert torch.equal(seen, torch.ones(queries, 5).bool().tril())
        assert torch.equal(seen, causal_mask(queries, 5)) == (queries == 5)


def test_all_ways_of_the_benchmark_agree_but_the_wrong_one():
    calls, x = benchmark.ways(7, "cpu"), torch.randn(2, 7, benchmark.D_MODEL)
    with torch.no_grad():
        off = {
            name: (call(x) - calls["multi-head attention"](x)).abs().max().item()
            for name, call in calls.items()
        }
    assert off.pop(benchmark.WRONG) > 0.1 and len(off) == 4 and max(off.values()) < 1e-5


@pytest.mark.parametrize(
    ("length", "d_model", "num_heads"), ((5, 33, 3), (64, 32, 1), (101, 33, 3), (128, 64, 2))
)
def test_peak_memory_as_the_formulas_say(length, d_model, num_heads):
    """Short and long, on both sides of T = 2 d_k."""  # C048, C052
    sizes = length, d_model, num_heads
    assert cost_model.measured_peak("in steps", *sizes) == cost_model.peak_bytes("in steps", *sizes)
    formula = cost_model.peak_bytes("fused", *sizes)
    assert formula <= cost_model.measured_peak("fused", *sizes) <= formula + 2**20  # scratch memory
    assert cost_model.peak_bytes("fused", 4 * length, d_model, num_heads) == 4 * formula, (
        "linear in the length"
    )


def test_operations_and_parameters_as_the_formulas_say():
    def parameters(module):
        return sum(parameter.numel() for parameter in module.parameters())

    for batch, n, d, heads in ((1, 7, 33, 3), (2, 13, 22, 2), (3, 5, 35, 7)):
        attention = MultiHeadAttention(d, heads, bias=False)
        operations = count_operations(attention, torch.randn(batch, n, d))
        assert operations == batch * (8 * n * d**2 + 4 * n**2 * d)  # C029, C030, C031, C034
        assert parameters(attention) == parameters(StackOfHeads(d, heads)) == 4 * d**2  # C026, C028
        assert parameters(MultiHeadAttention(d, heads)) == 4 * d**2 + 4 * d  # C027
    assert parameters(SelfAttention(11)) == 3 * 11**2 and parameters(
        SelfAttention(11, 3, 5)
    ) == 11 * (3 + 3 + 5)
    operations = 8 * 128 * 512**2 + 4 * 128**2 * 512
    assert cost_model.costs_of(8) == {
        "parameters": 4 * 512**2,
        "operations": operations,
        "weights": 8 * 128**2,
    }
