"""Keys in parts: equal to attention in one piece, whatever the parts; and who reads how many keys."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from phase1_single_head.self_attention import scaled_dot_product_attention
from phase4_causal.long_texts.flash_attention import merge
from phase4_causal.serving import split_keys as lesson
from phase4_causal.serving.split_keys import attend_to_part, split_keys
from shared.attention_utils import causal_mask, padding_mask
from shared.tests.helpers import qkv

T_Q, T_K = 3, 17
PARTS = [[17], [1] * 17, [5, 12], [0, 11, 0, 6, 0], [2, 3, 5, 7]]
MASKS = {
    "none": None,
    "causal": causal_mask(T_Q, T_K),
    "whole parts hidden": padding_mask(torch.tensor([2, 11]), T_K),  # (2, 1, 1, 17)
    "queries that see nothing": causal_mask(T_Q, T_K) & (torch.arange(T_Q) != 1)[:, None],
    "a mask of one column": torch.tensor([[True], [False], [True]]),
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("lengths", PARTS, ids=str)
def test_parts_are_the_whole(lengths, mask):
    inputs = qkv(t_q=T_Q, t_k=T_K, leading=(2, 5), d_k=7, d_v=11)
    expected, _ = scaled_dot_product_attention(*inputs, mask)
    with ThreadPoolExecutor(2) as pool:
        for run in (map, pool.map):
            output = split_keys(*inputs, lengths, mask, run)
            torch.testing.assert_close(output, expected, rtol=0, atol=1e-10)


def test_lengths_as_a_tensor_and_none_for_no_keys():
    query, key, value = qkv(t_q=T_Q, t_k=T_K, leading=(), d_k=7, d_v=11)
    expected, _ = scaled_dot_product_attention(query, key, value)
    torch.testing.assert_close(split_keys(query, key, value, torch.tensor([5, 12])), expected, rtol=0, atol=1e-10)
    assert torch.equal(split_keys(query, key[:0], value[:0], []), torch.zeros(T_Q, 11, dtype=torch.float64))


def test_scores_far_apart_and_few_bits():
    """Parts with scores of -2,000 and 2,000; 16 bits are summed in more."""
    query, key, value = qkv(t_q=T_Q, t_k=T_K, leading=(), d_k=7, d_v=11)
    key = key * torch.tensor([-1000.0] * 5 + [1000.0] * 12)[:, None]
    expected, _ = scaled_dot_product_attention(query, key, value)
    torch.testing.assert_close(split_keys(query, key, value, [5, 12]), expected, rtol=0, atol=1e-10)
    half = [x.bfloat16() for x in qkv(t_q=1, t_k=700, leading=(), d_k=7, d_v=11)]
    exact, _ = scaled_dot_product_attention(*(x.double() for x in half))
    torch.testing.assert_close(split_keys(*half, [333, 367]).double(), exact, rtol=2**-8, atol=1e-6)


def test_the_parts_may_be_merged_in_any_order():
    inputs = qkv(t_q=T_Q, t_k=T_K, leading=(), d_k=7, d_v=11)
    everything = torch.ones(1, dtype=torch.bool)
    a, b, c = (attend_to_part(inputs[0], inputs[1][part], inputs[2][part], everything)
               for part in (slice(0, 2), slice(2, 13), slice(13, 17)))  # fmt: skip
    for one, other in ((merge(merge(a, b), c), merge(a, merge(b, c))), (merge(a, b), merge(b, a))):
        for left, right in zip(one, other, strict=True):
            torch.testing.assert_close(left, right, rtol=1e-12, atol=0)


@pytest.mark.parametrize("lengths", [[5, 11], [18], [], [20, -3]])
def test_parts_that_do_not_fit_are_refused(lengths):
    with pytest.raises(ValueError, match="parts must be 0 or more and sum to T_k=17"):
        split_keys(*qkv(t_q=T_Q, t_k=T_K, leading=(), d_k=7, d_v=11), lengths)


@pytest.mark.parametrize("users", [1, 13, 14, 32])
def test_the_busiest_processor_by_handing_out(users):
    """Each part goes to the processor that has the least so far."""
    for parts in (1, 2, lesson.best_parts(users)):
        loads = [0] * lesson.PROCESSORS
        for _ in range(users * lesson.HEADS):
            for part in [-(-lesson.TEXT // parts)] * parts:
                loads[loads.index(min(loads))] += part
        assert max(loads) == lesson.busiest(users, parts)
    assert lesson.busiest(users, lesson.best_parts(users)) * lesson.PROCESSORS < 1.01 * users * 8 * lesson.TEXT
