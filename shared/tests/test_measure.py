"""Measuring: memory of calls whose memory is known, ratios within rounds, counted operations, seconds of a run."""

import random
from collections import Counter

import pytest
import torch
import torch.nn.functional as F

from shared import measure
from shared.tests import seconds


def test_peak_memory_of_calls_whose_memory_is_known():
    def free_first():
        first = torch.zeros(1000)  # 4,000 bytes
        del first
        return torch.zeros(500)  # 2,000

    def both():
        first = torch.zeros(1000)
        return first, torch.zeros(500)

    def nested():
        kept = torch.zeros(100)  # 400
        both()
        return kept

    def one_after_the_other():
        x = torch.zeros(1000)
        for _ in range(3):
            x = x + x  # the old x lives until the new one is written
        return x.sum()

    expected = {
        free_first: 4000,
        both: 6000,
        nested: 6400,
        one_after_the_other: 8000,
        lambda: None: 0,
        lambda: torch.zeros(3, dtype=torch.float64): 24,
    }
    for call, size in expected.items():
        assert measure.peak_memory(call) == size, call.__name__
    with pytest.raises(ValueError, match="--device cpu"):
        measure.peak_memory(lambda: None, "mps")


def test_peak_memory_sees_the_scratch_memory_of_a_kernel():
    q = torch.randn(1, 2, 256, 16)
    output = q.nbytes
    assert measure.peak_memory(lambda: F.scaled_dot_product_attention(q, q, q)) > output + 256 * 2 * 4  # and log-sums


def test_paired_times_calls_every_function_equally_often_in_a_new_order_each_round():
    called = []
    calls = {name: (lambda name=name: called.append(name)) for name in "abc"}
    random.seed(0)
    state, torch_state = random.getstate(), torch.get_rng_state()
    times = measure.paired_times(calls, rounds=12)
    assert random.getstate() == state and torch.equal(torch.get_rng_state(), torch_state)
    assert {name: len(values) for name, values in times.items()} == dict.fromkeys("abc", 12)
    assert all(value >= 0 for values in times.values() for value in values)
    rounds = ["".join(called[i : i + 3]) for i in range(0, len(called), 3)]
    assert len(rounds) == 13 and all(sorted(one) == list("abc") for one in rounds)  # the first to warm up
    assert len(set(rounds)) > 2
    called.clear()
    assert set(map(len, measure.paired_times(calls, seconds=0, warm_up=False).values())) == {3}
    assert sorted(called) == sorted("abc" * 3)
    for wrong in (lambda: measure.paired_times({}), lambda: measure.paired_times(calls, rounds=0)):
        with pytest.raises(ValueError, match="1 or more"):
            wrong()


def test_rates_are_of_the_quickest_round(monkeypatch):
    monkeypatch.setattr(measure, "paired_times", lambda calls, **_: {"product": [0.5, 0.25, 1.0]})
    assert measure.matmul_rate(size=7) == 2 * 7**3 / 0.25, "two operations for each product"
    assert measure.memory_rate(size=2**14) == 2**14 / 0.25, "the bytes of the matrix, once"


def test_operations_are_counted_with_and_without_numbers():
    for device in ("cpu", "meta"):
        a, b = torch.empty(3, 5, device=device), torch.empty(5, 7, device=device)
        assert measure.count_operations(torch.matmul, a, b) == 2 * 3 * 5 * 7
        assert measure.count_operations(torch.add, a, a) == 0


def test_ratios_are_taken_within_rounds():
    times = {"slow": [2.0, 6.0, 8.0, 20.0, 10.0], "fast": [2.0, 3.0, 2.0, 4.0, 5.0]}  # ratios 1, 2, 4, 5, 2
    assert measure.ratio_quartiles(times, "slow", "fast") == [2, 2, 4]
    assert measure.ratio_quartiles({"slow": [3.0], "fast": [2.0]}, "slow", "fast") == [1.5] * 3, "of one round, too"


def test_seconds_are_those_of_what_was_being_done(monkeypatch):
    library, script = "/site-packages/matplotlib/figure.py", "/here/phase1_single_head/visualize.py"
    assert seconds.kind_of(["<frozen importlib._bootstrap>", library, script]) == "imports"
    assert seconds.kind_of([library, "/here/shared/optimization.py"]) == "drawing"
    assert seconds.kind_of(["/torch/autograd.py", "/here/shared/optimization.py", script]) == "training"
    assert seconds.kind_of([script]) == "measuring" == seconds.kind_of([])
    monkeypatch.setattr(seconds, "unit", lambda: 2.0)
    lines = seconds.table({"a": {"training": 1.0}, "b": {"drawing": 2.0, "training": 4.0}}).splitlines()
    assert lines[0] == "CPU seconds, and units of 2.00 s" and lines[1].split() == [*seconds.KINDS, "all", "units"]
    assert [line.split() for line in lines[2:5]] == [
        ["b", "4.0", "2.0", "0.0", "0.0", "6.0", "3.0"],
        ["a", "1.0", "0.0", "0.0", "0.0", "1.0", "0.5"],
        ["all", "scripts", "5.0", "2.0", "0.0", "0.0", "7.0", "3.5"],
    ]


def test_a_watched_process_counts_what_it_spends(monkeypatch):
    monkeypatch.setattr(seconds, "EVERY", 0.001)
    seconds.watch(spent := Counter())
    before = spent.copy()
    while (spent - before).total() < 0.05:
        sum(range(10_000))
    assert set(spent - before) == {"measuring"}
