"""The fast tiles against the online softmax that the lesson shows: the same numbers, the same silence of the future."""

import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F

from phase4_causal.long_texts.fast_tiles import REACH, fast_softmax
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
def test_scores_far_above_and_far_below_the_bound(causal):
    """Scores in the thousands, some along the longest key, some against it: both are right, the second done again."""
    query, key, value = heads(19, 19)
    key[:, 0] *= 1e4
    query[:, 5] = key[:, 0] / 10
    query[:, 7] = -key[:, 0] / 10
    *_, sure = fast_softmax(query, key, value, (positions(query, key), causal, (4, 6)))
    assert sure[:, 5].all() and not sure[:, 7].any()
    inputs = [x.requires_grad_() for x in (query, key, value)]
    found = flash_attention(*inputs, causal=causal, block_size=(4, 6))
    expected = F.scaled_dot_product_attention(*inputs, is_causal=causal)
    slopes = [torch.autograd.grad(x.square().sum(), inputs) for x in (found, expected)]
    for a, b in zip((found, *slopes[0]), (expected, *slopes[1]), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


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
    """e^39 · 1e30 is too large; sums near e^-95 have 3 digits, where one long key puts the bound far above the rest."""
    x = torch.full((1, 3, 4), math.sqrt(39 / 2))  # |x|² / √4 = 39
    value = torch.tensor([[[1e30], [2e30], [4e30]]])
    assert torch.equal(flash_attention(x, x, value), value.mean(dim=1, keepdim=True).expand(1, 3, 1))
    query = torch.tensor([[[0.0, 0.0, 0.0, 1.0]]])
    key = torch.tensor([[[2 * (REACH + 95), 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.3], [0.0, 0.0, 0.0, 0.4]]])
    expected = F.scaled_dot_product_attention(query, key, value)
    torch.testing.assert_close(flash_attention(query, key, value), expected, rtol=1e-6, atol=0)


def test_threads_change_nothing():
    """Five heads for two threads, output and gradients bit for bit, and torch's number of threads is what it was."""
    inputs = [x.requires_grad_() for x in qkv(t_q=401, t_k=401, leading=(5,), d_k=11, dtype=torch.float32)]
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
