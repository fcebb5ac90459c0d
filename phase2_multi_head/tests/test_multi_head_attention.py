"""MultiHeadAttention beside the table of oracles: heads, values of their own, dropout, errors."""

import itertools
from functools import partial

import pytest
import torch

from phase2_multi_head.fused_attention import FusedMultiHeadAttention
from phase2_multi_head.grouped_query_attention import GroupedQueryAttention
from phase2_multi_head.multi_head_attention import MultiHeadAttention, merge_heads, split_heads
from shared.attention_checks import torch_twin
from shared.tests.helpers import T_K, T_Q, B, near


def test_split_and_merge_are_inverse_and_put_each_column_in_its_head():
    x = torch.arange(2 * 5 * 33).view(2, 5, 33).double()
    split = split_heads(x, 3)
    for head, column in itertools.product(range(3), range(11)):
        wrong = (split[:, head, :, column] != x[:, :, 11 * head + column]).sum().item()
        assert not wrong, f"head {head} must have column {11 * head + column} of each word: is the transpose missing?"
    assert not (merge_heads(split) != x).sum(), "merge_heads must put each column back where split_heads took it"


def test_multi_head_value_can_differ_from_key_and_dropout_stays_off_the_weights():
    torch.manual_seed(0)
    ours = MultiHeadAttention(33, 3, dropout=0.5).double()
    x, key, value = (torch.randn(B, t, 33, dtype=torch.float64) for t in (T_Q, T_K, T_K))
    ours.train()
    near(ours(x, key, value)[1].sum(dim=-1), torch.ones(B, 3, T_Q).double())
    assert not torch.equal(ours(x, key, value)[0], ours(x, key, value)[0])
    ours.eval()
    expected = torch_twin(ours).eval()(x, key, value)[0]
    near(ours(x, key, value)[0], expected)


def test_heads_must_divide_the_width_and_the_error_says_what_works():
    with pytest.raises(ValueError, match=r"d_model=1600 is not divisible by num_heads=48.*: 50 heads of 32"):
        MultiHeadAttention(1600, 48)
    with pytest.raises(ValueError, match="num_heads must be a whole number, 1 or more: got 0"):
        MultiHeadAttention(16, 0)


@pytest.mark.parametrize(
    "kind", [MultiHeadAttention, FusedMultiHeadAttention, partial(GroupedQueryAttention, num_kv_heads=2)]
)
@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((5, 16),), r"\(B, T, d_model=16\): got query \(5, 16\)"),
        (((2, 5, 16), (2, 7, 12)), r"\(B, T, d_model=16\): got key \(2, 7, 12\)"),
        (((3, 5, 16), (3, 7, 16), (1, 7, 16)), "one batch size B: got query 3, key 3, value 1"),
    ],
)
def test_what_is_no_batch_of_sequences_is_refused_and_no_batch_is_repeated(kind, shapes, message):
    with pytest.raises(ValueError, match=message):
        kind(16, 4)(*(torch.zeros(shape) for shape in shapes))
