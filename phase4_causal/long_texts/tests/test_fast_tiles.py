"""The fast tiles against the online softmax that the lesson shows: the same numbers, the same silence of the future."""

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from phase4_causal.long_texts.fast_tiles import REACH, exp_or_zero, fast_softmax, tile_size
from phase4_causal.long_texts.flash_attention import OnlineSoftmax, flash_attention, positions
from shared.tests.helpers import qkv


def heads(t_q, t_k, dtype=torch.float64):
    return qkv(t_q + t_k, t_q=t_q, t_k=t_k, leading=(3,), d_k=5, d_v=7, dtype=dtype)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("t_q", "t_k"), [(131, 137), (11, 150), (150, 11), (1, 7), (3, 0)])
def test_fast_is_the_online_softmax(t_q, t_k, causal):
    query, key, value = heads(t_q, t_k)
    tiling = positions(query, key), causal, (13, 17)
    readable = OnlineSoftmax(query, 7)
    readable.fold(key, value, *tiling)
    *fast, sure = fast_softmax(query, key, value, tiling)
    sees = torch.arange(t_q) >= (t_q - t_k if causal else 0)
    assert torch.equal(sure[:, :, 0], (sees & (t_k > 0)).expand(3, t_q)), "no key: not sure, and so done again"
    for mine, theirs in zip(fast, readable.finish(), strict=True):
        torch.testing.assert_close(mine.where(sure, 0), theirs.where(sure, 0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
def test_scores_far_from_0(causal):
    """In the thousands, some along the longest key, some against it: left to the online softmax, with gradients."""
    query, key, value = heads(19, 19)
    key[:, 0] *= 1e4
    query[:, 5] = key[:, 0] / 10
    query[:, 7] = -key[:, 0] / 10
    query[:, 9] *= 1e-4
    *_, sure = fast_softmax(query, key, value, (positions(query, key), causal, (4, 6)))
    assert sure[:, 9].all() and not sure[:, 5].any() and not sure[:, 7].any()
    inputs = [x.requires_grad_() for x in (query, key, value)]
    found = flash_attention(*inputs, causal=causal, block_size=(4, 6))
    expected = F.scaled_dot_product_attention(*inputs, is_causal=causal)
    slopes = [torch.autograd.grad(x.square().sum(), inputs) for x in (found, expected)]
    for a, b in zip((found, *slopes[0]), (expected, *slopes[1]), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_exp_is_0_before_it_loses_digits(dtype):
    """From e^-86 down in float32, where numbers with fewer digits would take a processor many times as long."""
    smallest = torch.finfo(dtype).tiny
    least = math.log(smallest)
    scores = torch.tensor([-math.inf, -1e30, least - 20, least + 1, least + 1.2, -1, 0, 1, math.nan], dtype=dtype)
    found = exp_or_zero(scores.clone())
    assert not found[:4].any() and found[4] > 3 * smallest and found[-1].isnan()
    torch.testing.assert_close(found[4:-1], scores[4:-1].exp(), rtol=0, atol=0)


class Exponentials(TorchDispatchMode):
    """The least that any exp in place, of a tile, gave."""

    least = math.inf

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.exp_.default:
            self.least = min(self.least, out.min().item())
        return out


@pytest.mark.parametrize(("which", "count"), [(0, 61), (1, 1)])  # all queries, or the first key
def test_no_exponential_of_a_tile_underflows(which, count):
    """Forward and backward: it would be right, and many times slower."""
    inputs = qkv(t_q=61, t_k=61, leading=(2,), d_k=64, d_v=7, dtype=torch.float32)
    inputs[which][:, :count] *= 30
    inputs = [x.requires_grad_() for x in inputs]
    with Exponentials() as seen:
        torch.autograd.grad(flash_attention(*inputs, block_size=17).sum(), inputs)
    assert torch.finfo(torch.float32).tiny <= seen.least < 1e-30


@pytest.mark.parametrize("causal", [False, True])
def test_a_small_weight_of_a_large_value_counts(causal):
    """Scores 31, -35 and -110: the second weight is e^-66, and its value 1e30."""
    query = torch.tensor([[[10 * math.sqrt(2), 0.0]]])
    key = torch.tensor([[[3.1, 0.0], [-3.5, 0.0], [-11.0, 0.0]]])
    value = torch.tensor([[[1.0], [1e30], [0.0]]])
    found = flash_attention(query, key, value, causal=causal)
    torch.testing.assert_close(found, torch.full((1, 1, 1), 1 + 1e30 * math.exp(-66)), rtol=1e-4, atol=0)


@pytest.mark.parametrize("intruder", [math.nan, math.inf, -math.inf, 1e30])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_later_key_moves_no_earlier_bit(dtype, intruder):
    """Also where earlier queries are done again: being sure must not depend on what comes later."""
    query, key, value = heads(300, 300, dtype=dtype)
    key[:, 3] *= 300
    before = flash_attention(query, key, value, causal=True)
    for at in (1, 150, 270):
        later = key.clone()
        later[1, at:] = intruder
        after = flash_attention(query, later, value, causal=True)
        assert torch.equal(after[:, :at], before[:, :at]) and not torch.equal(after, before)


def test_what_float32_cannot_hold_on_the_way():
    """e^39 · 1e30 is too large; and one long key puts the bound 95 above the largest score that fits."""
    x = torch.full((1, 3, 4), math.sqrt(39 / 2))  # |x|² / √4 = 39
    value = torch.tensor([[[1e30], [2e30], [4e30]]])
    assert torch.equal(flash_attention(x, x, value), value.mean(dim=1, keepdim=True).expand(1, 3, 1))
    query = torch.tensor([[[0.0, 0.0, 0.0, 1.0]]])
    key = torch.tensor([[[2 * (REACH + 95), 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.3], [0.0, 0.0, 0.0, 0.4]]])
    expected = F.scaled_dot_product_attention(query, key, value)
    torch.testing.assert_close(flash_attention(query, key, value), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("made_inside", [False, True])
def test_threads_in_inference_mode(made_inside):
    """Two threads write into what the caller's mode made, whether their inputs were made in it or before."""

    def make():
        query, key, value = qkv(t_q=401, t_k=401, leading=(5,), d_k=11, dtype=torch.float32)
        key[:, 7] *= 100  # later queries are left to the online softmax
        return query, key, value

    torch.set_num_threads(2)
    try:
        inputs = None if made_inside else make()
        with torch.inference_mode():
            found = flash_attention(*(inputs or make()), causal=True)
    finally:
        torch.set_num_threads(1)
    assert torch.equal(found, flash_attention(*make(), causal=True))


def test_sizes_of_tiles_are_integers_of_any_kind():
    assert tile_size(np.int64(2)) == (2, 2) and tile_size((np.int32(3), 5)) == tile_size([3, 5]) == (3, 5)


def test_threads_change_nothing():
    """Five heads for two threads, output and gradients bit for bit, and torch's number of threads is what it was."""
    inputs = qkv(t_q=401, t_k=401, leading=(5,), d_k=11, dtype=torch.float32)
    inputs[1][3:, 7] *= 100  # two heads with queries that are left to the online softmax
    inputs = [x.requires_grad_() for x in inputs]
    found = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        try:
            output = flash_attention(*inputs, causal=True)
            found.append([output, *torch.autograd.grad(output.sum(), inputs)])
            with ThreadPoolExecutor(1) as pool:
                assert torch.get_num_threads() == pool.submit(torch.get_num_threads).result() == threads
        finally:
            torch.set_num_threads(1)
    assert all(torch.equal(one, two) for one, two in zip(*found, strict=True))
