"""Measuring: statistics of known patterns, memory of calls whose memory is known, times."""

import math
import random

import pytest
import torch
import torch.nn.functional as F

from phase2_multi_head.costs import measure
from shared.attention_utils import (
    attention_distance,
    attention_entropy,
    attention_rollout,
    causal_mask,
    normalized_entropy,
    padding_mask,
)
from shared.tests.helpers import near

# ---- patterns


def test_masks_look_as_the_docstrings_show_them():
    """As predicates: test_oracles.py; refused sizes: test_refusals.py."""
    assert causal_mask(3).int().tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    mask = padding_mask(torch.tensor([2, 0, 3]), 3)
    assert mask.shape == (3, 1, 1, 3)
    assert mask.flatten(1).int().tolist() == [[1, 1, 0], [0, 0, 0], [1, 1, 1]]
    assert padding_mask(torch.empty(0, dtype=torch.long), 3).shape == (0, 1, 1, 3)
    with pytest.raises(ValueError, match=r"between 0 and T_k=3: got \[4\]"):
        padding_mask(torch.tensor([4]), 3)


@pytest.mark.parametrize("n", [2, 5, 13])
def test_statistics_on_patterns_whose_value_is_known(n):
    identity = torch.eye(n).double()
    uniform = torch.full((n, n), 1 / n, dtype=torch.float64)
    ones = torch.ones(n).double()
    mask = causal_mask(n)
    causal = mask.double() / mask.sum(dim=-1, keepdim=True)
    previous = identity.roll(-1, dims=-1)[1:]  # rows without the first: each its left neighbour
    near(attention_entropy(identity), 0 * ones)
    near(attention_entropy(uniform), math.log(n) * ones)
    near(attention_entropy(causal).exp(), torch.arange(1, n + 1).double())
    near(normalized_entropy(uniform), ones)
    near(normalized_entropy(causal, mask)[1:], ones[1:])
    assert normalized_entropy(causal, mask)[0].isnan()
    near(attention_distance(identity), 0 * ones)
    near(attention_distance(uniform).mean().item(), (n * n - 1) / (3 * n))
    near(attention_distance(causal).mean().item(), (n - 1) / 4)
    near(attention_distance(previous), ones[1:])


def test_rollout_by_hand():
    """Two layers of one head, 2 tokens: R = (A2 + I)/2 (A1 + I)/2."""
    first = torch.tensor([[[0.0, 1.0], [0.5, 0.5]]])
    second = torch.tensor([[[1.0, 0.0], [1.0, 0.0]]])
    near(attention_rollout([first, second]), torch.tensor([[0.5, 0.5], [0.375, 0.625]]))
    with pytest.raises(ValueError, match="at least one layer"):
        attention_rollout([])


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


def test_rates_operations_and_ratios_by_hand(monkeypatch):
    times = {"slow": [2.0, 6.0, 8.0, 20.0, 10.0], "fast": [2.0, 3.0, 2.0, 4.0, 5.0]}
    # ratios 1, 2, 4, 5, 2
    assert measure.ratio_quartiles(times, "slow", "fast") == [2, 2, 4]
    monkeypatch.setattr(measure, "paired_times", lambda calls, **_: {"product": [0.5, 0.25, 1.0]})
    assert measure.matmul_rate(size=7) == 2 * 7**3 / 0.25  # operations, in the quickest round
    assert measure.memory_rate(size=2**14) == 2**14 / 0.25  # the bytes of the matrix, once
    for device in ("cpu", "meta"):
        a, b = torch.empty(3, 5, device=device), torch.empty(5, 7, device=device)
        assert measure.count_operations(torch.matmul, a, b) == 2 * 3 * 5 * 7
        assert measure.count_operations(torch.add, a, a) == 0
