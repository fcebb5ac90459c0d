"""The tests of everything:  ./run_all.sh test   or   pytest test_all.py

They compare with oracles: a plain loop, torch's own functions with copied weights, numbers worked by hand. Sizes are
different primes, so that no two axes can be confused; float64 first, where equal means equal to 12 digits. Checks of
the core take the module under test as an argument, because one test breaks the code in sixteen ways and asks whether
the check that is meant to notice does notice.
"""

import doctest
import importlib
import inspect
import itertools
import json
import math
import random
import re
import subprocess
import sys
import types
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn

from phase1_single_head import self_attention
from phase1_single_head import visualize as visualize1
from phase1_single_head.self_attention import SelfAttention, attention_by_loops, scaled_dot_product_attention
from phase2_multi_head import multi_head_attention, one_or_four_heads
from phase2_multi_head import visualize as visualize2
from phase2_multi_head.multi_head_attention import MultiHeadAttention, StackOfHeads, merge_heads, split_heads
from phase3_visualization import attention_3d, attention_flow
from phase4_causal import causal_attention, summary
from phase4_causal import visualize as visualize4
from phase4_causal.causal_attention import CausalSelfAttention, generate, largest_leak
from shared import attention_utils, cli, findings, grammar_scores, paths, toy_language, training
from shared.attention_utils import (
    attention_distance,
    attention_entropy,
    attention_rollout,
    causal_mask,
    effective_context,
    local_mask,
    normalized_entropy,
    padding_mask,
    strided_mask,
)
from shared.toy_language import RELATIONS, TOY_SENTENCE, VOCABULARY, encode, tokenize
from shared.toy_model import ToyTransformer, sinusoidal_positions
from shared.visualization_utils import plot_attention, plot_heads, save_figure, token_labels

B, H, T_Q, T_K, D_K, D_V = 2, 3, 5, 7, 11, 13
SCRIPTS = (
    self_attention,
    visualize1,
    multi_head_attention,
    visualize2,
    one_or_four_heads,
    attention_flow,
    attention_3d,
    causal_attention,
    visualize4,
    summary,
)
close = torch.testing.assert_close


def qkv(seed=0, *, t_q=T_Q, t_k=T_K, dtype=torch.float64, leading=(B, H), d_k=D_K, d_v=D_V):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((t_q, d_k), (t_k, d_k), (t_k, d_v))
    return [torch.randn(*leading, *shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


def some_mask(generator, shape):
    """About two thirds visible, and the first query of it sees nothing at all."""
    mask = torch.rand(shape, generator=generator) < 0.67
    mask[..., 0, :] = False
    return mask


# ---------------------------------------------------------------- the core function: checks that take the code to check


def check_torch_unequal_masked_causal(core, utils):
    """F.scaled_dot_product_attention with T_q != T_k, d_k != d_v, and a causal & random mask with a blind row."""
    query, key, value = qkv()
    mask = utils.causal_mask(T_Q, T_K) & some_mask(torch.Generator().manual_seed(1), (B, 1, T_Q, T_K))
    truth = torch.ones(T_Q, T_K).tril(diagonal=T_K - T_Q).bool() & some_mask(
        torch.Generator().manual_seed(1), (B, 1, T_Q, T_K)
    )
    output, weights = core.scaled_dot_product_attention(query, key, value, mask)
    close(output, F.scaled_dot_product_attention(query, key, value, attn_mask=truth), rtol=0, atol=1e-12)
    assert weights.shape == (B, H, T_Q, T_K)


def check_loop_specification(core, utils):
    """One pair at a time, written out here once more, independently of the code under test."""
    query, key, value = (tensor[0, 0] for tensor in qkv(2))
    mask = utils.causal_mask(T_Q, T_K)
    output, weights = core.scaled_dot_product_attention(query, key, value, mask)
    for i in range(T_Q):
        visible = range(i + T_K - T_Q + 1)
        raw = [math.exp(sum((query[i] * key[j]).tolist()) / math.sqrt(D_K)) for j in visible]
        expected = torch.tensor([r / sum(raw) for r in raw] + [0.0] * (T_K - len(raw)), dtype=torch.float64)
        close(weights[i], expected, rtol=0, atol=1e-12)
        close(output[i], sum(expected[j] * value[j] for j in range(T_K)), rtol=0, atol=1e-12)


def check_hidden_is_exactly_zero(core, utils):
    """Scores of -100,000 on the visible keys: a finite fill would lose against the hidden one."""
    query, key = torch.ones(1, 1, dtype=torch.float64), torch.tensor([[-200000.0], [-200000.0], [0.0]]).double()
    mask = torch.tensor([[True, True, False]])
    _, weights = core.scaled_dot_product_attention(query, key, torch.eye(3).double(), mask)
    assert weights.tolist() == [[0.5, 0.5, 0.0]], "a hidden key got weight: is it filled with -inf before softmax?"


def check_rows_sum_to_one_in_training(core, utils):
    """The returned weights are those before dropout."""
    torch.manual_seed(0)
    query, key, value = qkv()
    output, weights = core.scaled_dot_product_attention(query, key, value, dropout=nn.Dropout(0.5).train())
    close(weights.sum(dim=-1), torch.ones(B, H, T_Q).double(), rtol=0, atol=1e-12)
    assert not torch.allclose(output, weights @ value), "dropout had no effect on the output"


def check_no_dropout_in_eval(core, utils):
    query, key, value = qkv()
    dropout = nn.Dropout(0.5).eval()
    close(*(core.scaled_dot_product_attention(query, key, value, dropout=dropout)[0] for _ in range(2)))
    close(core.scaled_dot_product_attention(query, key, value, dropout=dropout)[0], attention(query, key, value)[0])


def attention(query, key, value, mask=None):
    return scaled_dot_product_attention(query, key, value, mask)


CORE_CHECKS = [
    check_torch_unequal_masked_causal,
    check_loop_specification,
    check_hidden_is_exactly_zero,
    check_rows_sum_to_one_in_training,
    check_no_dropout_in_eval,
]


def check_stack_of_single_heads(module):
    """H small attentions with the slices of the weights, through torch's function."""
    torch.manual_seed(3)
    d_k, d_model = D_K, H * D_K
    multi = module.MultiHeadAttention(d_model, H).double()
    x = torch.randn(B, T_Q, d_model, dtype=torch.float64)
    context = torch.randn(B, T_K, d_model, dtype=torch.float64)
    heads = []
    for h in range(H):
        rows = slice(h * d_k, (h + 1) * d_k)
        q, k, v = (
            F.linear(source, w.weight[rows], w.bias[rows])
            for source, w in ((x, multi.w_q), (context, multi.w_k), (context, multi.w_v))
        )
        heads.append(F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0])
    close(multi(x, context)[0], multi.w_o(torch.cat(heads, dim=-1)), rtol=0, atol=1e-12)


def check_torch_module_with_copied_weights(module):
    """nn.MultiheadAttention, weights per head, unequal lengths, a mask for each sequence and head."""
    torch.manual_seed(4)
    d_model = H * D_K
    ours = module.MultiHeadAttention(d_model, H).double()
    theirs = torch_twin(ours)
    x = torch.randn(B, T_Q, d_model, dtype=torch.float64)
    context = torch.randn(B, T_K, d_model, dtype=torch.float64)
    mask = torch.rand(B, H, T_Q, T_K) < 0.6
    mask[..., 0] = True  # nn.MultiheadAttention gives NaN for a row that sees nothing
    expected = theirs(
        context[:, :0] if False else x, context, context, attn_mask=~mask.flatten(0, 1), average_attn_weights=False
    )
    output, weights = ours(x, context, mask=mask)
    close(output, expected[0], rtol=0, atol=1e-12)
    close(weights, expected[1], rtol=0, atol=1e-12)


def torch_twin(ours, dtype=torch.float64):
    """nn.MultiheadAttention with the weights of our module."""
    d_model = ours.w_q.in_features
    theirs = nn.MultiheadAttention(d_model, ours.num_heads, batch_first=True).to(dtype)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([ours.w_q.weight, ours.w_k.weight, ours.w_v.weight]))
        theirs.in_proj_bias.copy_(torch.cat([ours.w_q.bias, ours.w_k.bias, ours.w_v.bias]))
        theirs.out_proj.weight.copy_(ours.w_o.weight)
        theirs.out_proj.bias.copy_(ours.w_o.bias)
    return theirs


MULTI_HEAD_CHECKS = [check_stack_of_single_heads, check_torch_module_with_copied_weights]


@pytest.mark.parametrize("check", CORE_CHECKS)
def test_core(check):
    check(self_attention, attention_utils)


@pytest.mark.parametrize("check", MULTI_HEAD_CHECKS)
def test_multi_head(check):
    check(multi_head_attention)


# name of the mistake -> (module, what to replace, the check that must notice). From the list of mistakes readers make.
FILL = "scores = scores.masked_fill(~mask & ~blind, -math.inf)"
MUTANTS = {
    "no scaling": (
        self_attention,
        [("scores = scores / math.sqrt(query.size(-1))", "pass")],
        check_torch_unequal_masked_causal,
    ),
    "divided by d_k, not its root": (
        self_attention,
        [("math.sqrt(query.size(-1))", "query.size(-1)")],
        check_torch_unequal_masked_causal,
    ),
    "scale from d_v": (
        self_attention,
        [("math.sqrt(query.size(-1))", "math.sqrt(value.size(-1))")],
        check_torch_unequal_masked_causal,
    ),
    "softmax over queries": (
        self_attention,
        [("torch.softmax(scores, dim=-1).masked_fill", "torch.softmax(scores, dim=-2).masked_fill")],
        check_torch_unequal_masked_causal,
    ),
    "mask inverted": (
        self_attention,
        [(FILL, FILL.replace("~mask", "mask"))],
        check_torch_unequal_masked_causal,
    ),
    "mask after softmax": (
        self_attention,
        [(FILL, "pass"), (".masked_fill(blind, 0.0)", ".masked_fill(~mask, 0.0)")],
        check_torch_unequal_masked_causal,
    ),
    "one future token visible": (
        attention_utils,
        [("return key_position <= query_position", "return key_position <= query_position + 1")],
        check_torch_unequal_masked_causal,
    ),
    "own token hidden": (
        attention_utils,
        [("return key_position <= query_position", "return key_position < query_position")],
        check_torch_unequal_masked_causal,
    ),
    "K Q^T instead of Q K^T": (
        self_attention,
        [("scores = query @ key.transpose(-2, -1)", "scores = key @ query.transpose(-2, -1)")],
        check_loop_specification,
    ),
    "filled with -1e5": (self_attention, [(FILL, FILL.replace("-math.inf", "-1e5"))], check_hidden_is_exactly_zero),
    "weights returned after dropout": (
        self_attention,
        [("output = kept @ value", "output, weights = kept @ value, kept")],
        check_rows_sum_to_one_in_training,
    ),
    "dropout alive in eval": (
        self_attention,
        [("dropout(weights)", "F.dropout(weights, dropout.p)")],
        check_no_dropout_in_eval,
    ),
    "heads split without transpose": (
        multi_head_attention,
        [
            ("x.view(batch, length, num_heads, d_model // num_heads)", "x.view(batch, num_heads, length, -1)"),
            ("return x.transpose(1, 2)  # (B, T, H", "return x  # (B, T, H"),
        ],
        check_stack_of_single_heads,
    ),
    "heads merged without transpose": (
        multi_head_attention,
        [("x.transpose(1, 2).flatten(start_dim=2)", "x.reshape(x.size(0), x.size(2), -1)")],
        check_stack_of_single_heads,
    ),
    "no output projection": (
        multi_head_attention,
        [("self.w_o(merge_heads(heads))", "merge_heads(heads)")],
        check_torch_module_with_copied_weights,
    ),
    "scaled by the root of d_model": (
        multi_head_attention,
        [("scaled_dot_product_attention(query, key", "scaled_dot_product_attention(query / self.num_heads**0.5, key")],
        check_torch_module_with_copied_weights,
    ),
}


def broken(module, replacements):
    """A copy of the module with each of the replacements made exactly once."""
    source = inspect.getsource(module)
    for old, new in replacements:
        assert source.count(old) == 1, f"{old!r} stands {source.count(old)} times in {module.__name__}"
        source = source.replace(old, new)
    copy = types.ModuleType(f"broken_{module.__name__}")
    exec(compile(source, copy.__name__, "exec"), copy.__dict__)
    return copy


@pytest.mark.parametrize("mistake", MUTANTS)
def test_every_known_mistake_is_noticed(mistake):
    module, replacements, check = MUTANTS[mistake]
    mutant = broken(module, replacements)
    if module is multi_head_attention:
        arguments = (mutant,)
    else:
        arguments = (mutant, attention_utils) if module is self_attention else (self_attention, mutant)
    with pytest.raises((AssertionError, RuntimeError)):
        check(*arguments)


# ------------------------------------------------------------------------------------ the core function: many draws


def mask_shapes(t_q, t_k):
    return [None, (t_q, t_k), (B, 1, t_q, t_k), (1, H, t_q, t_k), (B, H, t_q, t_k), (B, 1, 1, t_k), (t_q, 1), (1, t_k)]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-6)])
def test_core_agrees_with_torch_on_240_random_configurations(dtype, tolerance):
    """Outputs and gradients, sizes from 1 up, masks of each accepted shape, rows that see nothing included."""
    rng = random.Random(5)
    for draw in range(240):
        t_q, t_k, d_k, d_v = (rng.choice((1, 2, 3, 5, 7, 11, 13)) for _ in range(4))
        shape = mask_shapes(t_q, t_k)[draw % 8]
        mask = None if shape is None else some_mask(torch.Generator().manual_seed(draw), shape)
        ours = [t.requires_grad_() for t in qkv(draw, t_q=t_q, t_k=t_k, dtype=dtype, d_k=d_k, d_v=d_v)]
        theirs = [t.detach().clone().requires_grad_() for t in ours]
        output, weights = scaled_dot_product_attention(*ours, mask)
        full = None if mask is None else mask.expand(B, H, t_q, t_k)
        expected = F.scaled_dot_product_attention(*theirs, attn_mask=full)
        close(output, expected, rtol=0, atol=tolerance, msg=lambda m, d=draw: f"draw {d}: {m}")
        if full is not None:
            assert weights[~full].eq(0).all(), "hidden keys must get exactly 0"
        upstream = torch.randn(output.shape, generator=torch.Generator().manual_seed(draw), dtype=torch.float64).to(
            dtype
        )
        output.backward(upstream)
        expected.backward(upstream)
        for a, b in zip(ours, theirs, strict=True):
            close(a.grad, b.grad, rtol=10 * tolerance, atol=10 * tolerance)


def test_matrix_form_equals_the_loops_it_is_explained_with():
    for seed in range(20):
        query, key, value = (tensor[0, 0] for tensor in qkv(seed))
        mask = some_mask(torch.Generator().manual_seed(seed), (T_Q, T_K)) if seed % 2 else None
        for ours, loops in zip(
            attention(query, key, value, mask), attention_by_loops(query, key, value, mask), strict=True
        ):
            close(ours, loops, rtol=0, atol=1e-12)


def test_hand_worked_numbers():
    """q·k / √4 = ln 3 and 0: weights 3/4 and 1/4, so the output lies a quarter of the way to the second value."""
    query = torch.tensor([[2.0 * math.log(3.0), 0.0, 0.0, 0.0]])
    key = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]])
    output, weights = scaled_dot_product_attention(query, key, torch.tensor([[0.0, 8.0], [4.0, 0.0]]))
    close(weights, torch.tensor([[0.75, 0.25]]))
    close(output, torch.tensor([[1.0, 6.0]]))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_query_that_sees_nothing_gets_zero_and_finite_gradients(dtype):
    inputs = [t.requires_grad_() for t in qkv(dtype=dtype)]
    mask = some_mask(torch.Generator().manual_seed(0), (T_Q, T_K))
    with torch.autograd.set_detect_anomaly(True):  # no NaN on the way either
        output, weights = scaled_dot_product_attention(*inputs, mask)
        output.float().sum().backward()
    assert weights[..., 0, :].eq(0).all() and output[..., 0, :].eq(0).all()
    assert weights[..., ~mask].eq(0).all()
    assert all(t.grad.isfinite().all() for t in inputs)
    assert inputs[0].grad[..., 0, :].eq(0).all()


def test_gradients_are_those_of_finite_differences():
    mask = some_mask(torch.Generator().manual_seed(0), (3, 5))
    inputs = [t.requires_grad_() for t in qkv(t_q=3, t_k=5, d_k=2, d_v=3, leading=(1,))]
    assert torch.autograd.gradcheck(lambda q, k, v: scaled_dot_product_attention(q, k, v, mask)[0], inputs)


def test_inputs_are_left_as_they_were():
    inputs, mask = qkv(), causal_mask(T_Q, T_K)
    before = [t.clone() for t in (*inputs, mask)]
    scaled_dot_product_attention(*inputs, mask)
    assert all(torch.equal(a, b) for a, b in zip((*inputs, mask), before, strict=True))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda q, k, v: (q[..., :5], k, v, None), r"share their last size d_k: got 5 and 11"),
        (lambda q, k, v: (q, k, v[..., :6, :], None), r"same length T_k: got 7 and 6"),
        (lambda q, k, v: (q[0, 0, 0], k, v, None), r"query needs at least 2 axes"),
        (lambda q, k, v: (q[:, :2], k, v, None), r"axes before length and size must agree"),
        (lambda q, k, v: (q, k, v, torch.ones(T_Q, T_K)), r"mask must be bool.*got torch.float32.*mask.bool\(\)"),
        (
            lambda q, k, v: (q, k, v, causal_mask(T_Q, 6)),
            r"\(5, 6\) does not broadcast to scores of shape \(2, 3, 5, 7\)",
        ),
        (lambda q, k, v: (q, k, v, torch.ones(B, T_Q, T_K).bool()), r"head axis with mask.unsqueeze\(1\)"),
        (lambda q, k, v: (q, k, v, torch.ones(T_K).bool()), r"2 axes \(T_q, T_k\) or 4 like the scores: got 1"),
    ],
)
def test_errors_name_the_rule_and_both_numbers(change, message):
    with pytest.raises(ValueError, match=message):
        scaled_dot_product_attention(*change(*qkv()))


def test_docstring_examples():
    assert doctest.testmod(self_attention).attempted > 0
    assert doctest.testmod(self_attention).failed == 0


# ------------------------------------------------------------------------------------------------- masks, statistics


def test_masks_are_the_predicates_they_are_said_to_be():
    for t_q, t_k in ((5, 5), (2, 7), (7, 3), (1, 11)):
        for i, j in itertools.product(range(t_q), range(t_k)):
            position = i + t_k - t_q  # the last query stands at the last key
            assert causal_mask(t_q, t_k)[i, j] == (j <= position)
            assert local_mask(t_q, t_k, 2)[i, j] == (abs(j - position) <= 2)
            assert strided_mask(t_q, t_k, 3)[i, j] == ((j - position) % 3 == 0)
    assert causal_mask(3).tolist() == [[True, False, False], [True, True, False], [True, True, True]]
    mask = padding_mask(torch.tensor([2, 0, 3]), 3)
    assert mask.shape == (3, 1, 1, 3)
    assert mask[:, 0, 0].int().tolist() == [[1, 1, 0], [0, 0, 0], [1, 1, 1]]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: causal_mask(0), "at least one query"),
        (lambda: local_mask(3, 3, -1), "window must be 0 or more: got -1"),
        (lambda: strided_mask(3, 3, 0), "stride must be 1 or more: got 0"),
        (lambda: padding_mask(torch.tensor([4]), 3), r"between 0 and T_k=3: got \[4\]"),
        (lambda: padding_mask(torch.tensor([1.0]), 3), "integers"),
        (lambda: attention_rollout([]), "at least one layer"),
    ],
)
def test_mask_errors(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_statistics_on_patterns_whose_value_is_known():
    for n in (2, 5, 13):
        identity, uniform = torch.eye(n).double(), torch.full((n, n), 1 / n).double()
        mask = causal_mask(n)
        causal = mask.double() / mask.sum(dim=-1, keepdim=True)
        close(attention_entropy(identity), torch.zeros(n).double())
        close(attention_entropy(uniform), torch.full((n,), math.log(n)).double())
        close(effective_context(causal), torch.arange(1, n + 1).double())
        close(normalized_entropy(uniform), torch.ones(n).double())
        close(normalized_entropy(causal, mask)[1:], torch.ones(n - 1).double())
        assert normalized_entropy(causal, mask)[0].isnan()
        close(attention_distance(identity), torch.zeros(n).double())
        close(attention_distance(uniform).mean().item(), (n * n - 1) / (3 * n))
        close(attention_distance(causal).mean().item(), (n - 1) / 4)
    previous = torch.eye(7).roll(-1, dims=-1)[1:]  # every row its left neighbour; T_q = 6 rows of T_k = 7
    close(attention_distance(previous), torch.ones(6))


def test_statistics_are_taken_per_head_before_any_mean():
    """Four heads, each sure of another key: entropy 0 each; averaged first they would seem to look everywhere."""
    heads = torch.eye(4)[:, None, :].expand(4, 4, 4)
    assert attention_entropy(heads).max() == 0
    close(attention_entropy(heads.mean(dim=0)), torch.full((4,), math.log(4)))


def test_rollout_by_hand():
    """Two layers of one head, 2 tokens: R = (A2 + I)/2 (A1 + I)/2."""
    first, second = torch.tensor([[[0.0, 1.0], [0.5, 0.5]]]), torch.tensor([[[1.0, 0.0], [1.0, 0.0]]])
    close(attention_rollout([first, second]), torch.tensor([[0.5, 0.5], [0.375, 0.625]]))
    layers = [torch.rand(B, H, 5, 5).softmax(dim=-1) for _ in range(4)]
    close(attention_rollout(layers).sum(dim=-1), torch.ones(B, 5))


# ------------------------------------------------------------------------------------------------- the modules


def test_self_attention_is_torchs_module_with_one_head():
    torch.manual_seed(0)
    ours = SelfAttention(D_K, output_projection=True).double()
    theirs = nn.MultiheadAttention(D_K, 1, bias=False, batch_first=True).double()
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([ours.w_q.weight, ours.w_k.weight, ours.w_v.weight]))
        theirs.out_proj.weight.copy_(ours.w_o.weight)
    x = torch.randn(B, T_Q, D_K, dtype=torch.float64)
    for mask in (None, causal_mask(T_Q)):
        output, weights = ours(x, mask)
        expected = theirs(x, x, x, attn_mask=None if mask is None else ~mask, average_attn_weights=False)
        close(output, expected[0], rtol=0, atol=1e-12)
        close(weights, expected[1], rtol=0, atol=1e-12)


def test_parameter_counts_follow_the_formulas():
    count = multi_head_attention.count_parameters
    assert count(SelfAttention(D_K)) == 3 * D_K**2
    assert count(SelfAttention(D_K, output_projection=True)) == 4 * D_K**2
    assert count(SelfAttention(D_K, 3, 5)) == D_K * (3 + 3 + 5)
    assert count(MultiHeadAttention(33, 3)) == 4 * 33**2 + 4 * 33
    assert count(MultiHeadAttention(33, 3, bias=False)) == count(StackOfHeads(33, 3)) == 4 * 33**2


def test_head_axis_and_masks_of_self_attention():
    x = torch.randn(B, T_Q, D_K)
    output, weights = SelfAttention(D_K, d_v=D_V)(x, padding_mask(torch.tensor([3, 5]), T_Q))
    assert output.shape == (B, T_Q, D_V) and weights.shape == (B, 1, T_Q, T_Q)
    assert weights[0, :, :, 3:].eq(0).all() and weights[1].gt(0).all()
    with pytest.raises(ValueError, match="head axis"):
        SelfAttention(D_K)(x, torch.ones(B, T_Q, T_Q).bool())


def test_split_and_merge_are_inverse_and_put_each_column_in_its_head():
    x = torch.arange(2 * 5 * 33).view(2, 5, 33).double()
    split = split_heads(x, 3)
    assert torch.equal(merge_heads(split), x)
    for head, column in itertools.product(range(3), range(11)):
        assert torch.equal(split[:, head, :, column], x[:, :, 11 * head + column])


def test_stack_of_heads_equals_one_projection_in_slices():
    for heads, d_model in ((1, 11), (3, 33), (5, 35)):
        assert multi_head_attention.difference_of_views(d_model, heads) < 1e-12


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-6)])
def test_multi_head_agrees_with_torch_on_many_configurations_and_in_gradients(dtype, tolerance):
    rng = random.Random(6)
    for draw in range(40):
        torch.manual_seed(draw)
        heads, d_k, t_q, t_k = (rng.choice((1, 2, 3, 5, 7)) for _ in range(4))
        ours = MultiHeadAttention(heads * d_k, heads).to(dtype)
        theirs = torch_twin(ours, dtype)
        x = torch.randn(B, t_q, heads * d_k, dtype=dtype)
        context = torch.randn(B, t_k, heads * d_k, dtype=dtype)
        mask = torch.rand(B, 1, t_q, t_k) < 0.6
        mask[..., 0] = True
        output, weights = ours(x, context, mask=mask)
        blocked = ~mask.expand(B, heads, t_q, t_k).flatten(0, 1)
        expected, expected_weights = theirs(x, context, context, attn_mask=blocked, average_attn_weights=False)
        close(output, expected, rtol=0, atol=tolerance)
        close(weights, expected_weights, rtol=0, atol=tolerance)
        output.square().sum().backward()
        expected.square().sum().backward()
        q, k, v = theirs.in_proj_weight.grad.chunk(3)
        for a, b in ((ours.w_q, q), (ours.w_k, k), (ours.w_v, v), (ours.w_o, theirs.out_proj.weight.grad)):
            close(a.weight.grad, b, rtol=20 * tolerance, atol=20 * tolerance)


def test_multi_head_value_can_differ_from_key_and_dropout_stays_off_the_weights():
    torch.manual_seed(0)
    ours = MultiHeadAttention(33, 3, dropout=0.5).double()
    x, key, value = (torch.randn(B, t, 33, dtype=torch.float64) for t in (T_Q, T_K, T_K))
    ours.train()
    close(ours(x, key, value)[1].sum(dim=-1), torch.ones(B, 3, T_Q).double())
    assert not torch.equal(ours(x, key, value)[0], ours(x, key, value)[0])
    ours.eval()
    expected = torch_twin(ours).eval()(x, key, value)[0]
    close(ours(x, key, value)[0], expected, rtol=0, atol=1e-12)


def test_heads_must_divide_the_width_and_the_error_says_what_works():
    with pytest.raises(ValueError, match=r"d_model=1600 is not divisible by num_heads=48.*: 50 heads of 32"):
        MultiHeadAttention(1600, 48)
    with pytest.raises(ValueError, match="must be 1 or more"):
        MultiHeadAttention(16, 0)


def test_operations_do_not_depend_on_the_number_of_heads():
    counts = {multi_head_attention.count_operations(MultiHeadAttention(32, h), 7, 32) for h in (1, 2, 4, 8)}
    assert counts == {8 * 7 * 32**2 + 4 * 7**2 * 32}


def test_causal_attention_is_torchs_causal_attention():
    torch.manual_seed(0)
    ours = CausalSelfAttention(33, 3).double()
    x = torch.randn(B, T_Q, 33, dtype=torch.float64)
    output, weights = ours(x)
    q, k, v = (split_heads(w(x), 3) for w in (ours.w_q, ours.w_k, ours.w_v))
    expected = ours.w_o(merge_heads(F.scaled_dot_product_attention(q, k, v, is_causal=True)))
    close(output, expected, rtol=0, atol=1e-12)
    assert weights.triu(diagonal=1).eq(0).all()
    padded = ours(x, padding_mask(torch.tensor([3, 5]), T_Q))[1]
    assert padded[0, :, :, 3:].eq(0).all() and padded.triu(diagonal=1).eq(0).all()


def test_causal_and_bidirectional_modules_share_their_weights():
    bidirectional, causal = MultiHeadAttention(33, 3), CausalSelfAttention(33, 3)
    causal.load_state_dict(bidirectional.state_dict())
    x = torch.randn(B, T_Q, 33)
    close(causal(x)[0], bidirectional(x, mask=causal_mask(T_Q))[0])


# ---------------------------------------------------------------------------------------- toy language, toy model


def test_every_gold_relation_joins_words_of_the_right_kind():
    nouns = {form for c in (toy_language.SUBJECTS, toy_language.PLACES) for ps in c.values() for p in ps for form in p}
    singular = {p[0] for c in (toy_language.SUBJECTS, toy_language.PLACES) for ps in c.values() for p in ps}
    distances = {name: set() for name in RELATIONS}
    for sentence in training.corpus()[1]:
        words = sentence.words
        for name, pairs in sentence.relations.items():
            distances[name] |= {target - source for source, target in pairs}
        for determiner, noun in sentence.relations["determiner-noun"]:
            assert words[noun] in nouns
            allowed = toy_language.SINGULAR_DETERMINERS if words[noun] in singular else toy_language.PLURAL_DETERMINERS
            assert words[determiner] in (*allowed, "the")
        for adjective, noun in sentence.relations["adjective-noun"]:
            assert words[adjective] in toy_language.ADJECTIVES and words[noun] in nouns
        ((verb, subject),) = sentence.relations["verb-subject"]
        ((same_verb, place),) = sentence.relations["verb-place"]
        subject_class, preposition, place_class = toy_language.VERBS[words[verb]]
        assert verb == same_verb and subject < verb < place and preposition in words[verb:place]
        assert words[subject] in itertools.chain(*toy_language.SUBJECTS[subject_class])
        assert words[place] in itertools.chain(*toy_language.PLACES[place_class])
    assert all(len(distances[name]) >= 3 for name in RELATIONS[:3]), "a fixed offset would be a good guess"


def test_the_sets_are_disjoint_and_the_toy_sentence_is_never_trained_on():
    train, held_out = ({sentence.words for sentence in part} for part in training.corpus())
    assert len(train) == training.NUM_TRAIN and len(held_out) == training.NUM_HELD_OUT
    assert not train & held_out
    assert tuple(TOY_SENTENCE.split()) not in train | held_out
    assert 90 <= len(VOCABULARY) <= 110 and len(set(VOCABULARY)) == len(VOCABULARY)
    assert toy_language.sample_corpus(10, 5, seed=1) == toy_language.sample_corpus(10, 5, seed=1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the sentence is empty"),
        ("  . ", "the sentence is empty"),
        ("the cta sat", '"cta" is not among the .* nearest known words: .*cat'),
        ("the zzzzqx sat", '"zzzzqx" is not among'),
        ("the <pad> sat", '"<pad>" is not among'),
        ("the " * 33, "33 words: the limit is 32"),
    ],
)
def test_tokenizer_says_what_is_wrong(text, message):
    with pytest.raises(ValueError, match=message):
        tokenize(text)


def test_tokenizer_reads_what_it_should():
    assert tokenize("The cat, sat on the MAT.") == TOY_SENTENCE.split()
    assert toy_language.decode(encode(TOY_SENTENCE.split())) == TOY_SENTENCE.split()
    assert len(tokenize("the " * 32)) == 32


def test_sentence_files(tmp_path):
    assert toy_language.read_sentences(str(paths.TOY_SEQUENCES))[0] == TOY_SENTENCE
    file = tmp_path / "sentences.txt"
    file.write_text("# comment\n\nthe cat sat\nthe dgo sat\n")
    with pytest.raises(ValueError, match=r"line 4: \"dgo\" is not among .*dog"):
        toy_language.read_sentences(str(file))
    file.write_text("# nothing\n")
    with pytest.raises(ValueError, match="holds no sentence"):
        toy_language.read_sentences(str(file))


def test_positions_follow_the_published_formula():
    for d_model in (6, 7, 64):
        encoding = sinusoidal_positions(11, d_model)
        for position, column in itertools.product(range(11), range(d_model)):
            angle = position / 10000 ** (2 * (column // 2) / d_model)
            expected = math.sin(angle) if column % 2 == 0 else math.cos(angle)
            assert encoding[position, column].item() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    "make_attention",
    [self_attention.make_single_head, MultiHeadAttention, CausalSelfAttention],
    ids=lambda f: f.__name__,
)
def test_padding_changes_nothing_for_any_attention(make_attention):
    """A sentence alone and in a padded batch: the same logits and weights, to rounding."""
    torch.manual_seed(0)
    heads = 1 if make_attention is self_attention.make_single_head else 4
    model = ToyTransformer(num_heads=heads, make_attention=make_attention).double().eval()
    short, long = (encode(text.split()) for text in (TOY_SENTENCE, "those dogs beside the dark barn slept in a bed"))
    tokens, lengths = toy_language.pad_batch([short, long])
    logits, layers = model(tokens, mask=padding_mask(lengths, tokens.size(1)))
    alone, alone_layers = model(torch.tensor([short]))
    close(logits[0, : len(short)], alone[0], rtol=0, atol=1e-12)
    for padded, single in zip(layers, alone_layers, strict=True):
        assert padded.shape == (2, heads, len(long), len(long))
        close(padded[0, :, : len(short), : len(short)], single[0], rtol=0, atol=1e-12)


def test_model_of_another_size_and_its_limit():
    model = ToyTransformer(128, 8, 3, make_attention=MultiHeadAttention)
    logits, layers = model(torch.zeros(1, 32, dtype=torch.long))
    assert logits.shape == (1, 32, len(VOCABULARY)) and [w.shape for w in layers] == [(1, 8, 32, 32)] * 3
    with pytest.raises(ValueError, match="at most 34 tokens: got 35"):
        model(torch.zeros(1, 35, dtype=torch.long))


# ---------------------------------------------------------------------------------------------- grammar scores


def test_a_perfect_head_scores_one_an_inverse_head_zero_and_an_offset_what_it_deserves():
    sentences = training.corpus()[1][:50]
    length = max(len(s.words) for s in sentences)
    gold = grammar_scores.gold_matrices(sentences, length)
    for name in RELATIONS:
        perfect = gold[name].double() + torch.eye(length)  # its own position does not count
        wrong = (1 - gold[name].double()) / length
        weights = torch.stack([perfect, wrong], dim=1)
        close(grammar_scores.accuracy_per_head(weights, gold[name]), torch.tensor([1.0, 0.0]).double())
    for name in RELATIONS:  # the baseline against a count by hand
        pairs = [(i, j) for s in sentences for i, j in s.relations[name]]
        offsets = [j - i for i, j in pairs]
        expected = max(offsets.count(o) for o in set(offsets)) / len(offsets)
        assert grammar_scores.best_fixed_offset(gold[name])[1] == pytest.approx(expected)


def test_scores_name_the_right_head_layer_and_direction():
    sentences = training.corpus()[1][:20]
    length = max(len(s.words) for s in sentences)
    gold = grammar_scores.gold_matrices(sentences, length, shift=0)
    layers = [torch.full((20, 3, length, length), 1 / length) for _ in range(2)]
    layers[1][:, 2] = gold["verb-place"].mT.float()
    best = grammar_scores.best_heads(grammar_scores.score_heads(layers, sentences))["verb-place"]
    assert (best.layer, best.head, best.direction, best.accuracy) == (1, 2, "backward", 1.0)


# --------------------------------------------------------------------------------------- training, checkpoints


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Checkpoints of the tests lie apart from the reader's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paths, "CHECKPOINTS", tmp_path_factory.mktemp("checkpoints"))
        yield paths.CHECKPOINTS
    training._trained_here.clear()


TINY = training.Recipe("tiny", "masked word", num_heads=2, num_layers=1, steps=25, d_model=16)


def test_training_lowers_the_loss_and_repeats_bit_by_bit(checkpoints):
    first, second = (training.train(TINY, MultiHeadAttention) for _ in range(2))
    assert np.mean(first.history.loss[-5:]) < np.mean(first.history.loss[:5]) - 0.3
    assert first.history.loss == second.history.loss
    for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(a, b)
    entropy = torch.tensor(first.history.entropy)
    assert entropy.shape == (len(first.history.entropy_steps), 1, 2) and ((entropy >= 0) & (entropy <= 1)).all()


def test_the_loss_counts_only_the_words_to_predict():
    """An untrained model that knows nothing but the bias of one word: the losses can be worked out by hand."""
    model = ToyTransformer(16, 2, 1, make_attention=CausalSelfAttention)
    with torch.no_grad():
        model.embedding.weight.zero_()
    tokens, lengths = training.to_batch(training.corpus()[1][:7], "next word")
    loss = training.next_word_loss(model, tokens, lengths, torch.Generator())
    assert loss.item() == pytest.approx(math.log(len(VOCABULARY)), rel=1e-5)
    tokens, lengths = training.to_batch(training.corpus()[1][:7], "masked word")
    loss = training.masked_word_loss(model, tokens, lengths, torch.Generator().manual_seed(0))
    assert loss.item() == pytest.approx(math.log(len(VOCABULARY)), rel=1e-5)


def test_checkpoints_survive_and_bad_ones_are_named_and_made_again(checkpoints, capsys):
    trained = training.load_or_train(TINY, MultiHeadAttention)
    loaded = training.load_checkpoint(TINY, MultiHeadAttention)
    assert loaded.recipe == TINY and loaded.history == trained.history
    for a, b in zip(trained.model.parameters(), loaded.model.parameters(), strict=True):
        assert torch.equal(a, b)
    good = TINY.path.read_bytes()
    other = torch.load(TINY.path, weights_only=True)
    bad_files = [
        ("is damaged", good[: len(good) // 2]),
        *(("is damaged", content) for content in (b"", b"not a checkpoint at all", b"hello\n", b"\x80\x02", bytes(99))),
        ("is not a checkpoint of this version", {"some": "dict"}),
        ("was made with other settings", other | {"recipe": other["recipe"] | {"steps": 7}}),
        ("holds the weights of another model", other | {"state_dict": {}}),
    ]
    for message, content in bad_files:
        training._trained_here.clear()
        if isinstance(content, bytes):
            TINY.path.write_bytes(content)
        else:
            torch.save(content, TINY.path)
        again = training.load_or_train(TINY, MultiHeadAttention)
        said = capsys.readouterr().out
        assert message in said and "tiny.pt" in said and "training it again" in said
        assert torch.equal(again.model.embedding.weight, trained.model.embedding.weight)
        training.load_checkpoint(TINY, MultiHeadAttention)


def test_an_interrupt_leaves_nothing_half_written(checkpoints, monkeypatch):
    recipe = training.variant(TINY, seed=3)

    def interrupted(*_arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(training.torch, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        training.load_or_train(recipe, MultiHeadAttention)
    assert not [file for file in checkpoints.iterdir() if "seed3" in file.name]


def test_quick_never_stands_in_for_a_trained_model(checkpoints):
    recipe = training.variant(TINY, seed=5)
    quick = training.load_or_train(recipe, MultiHeadAttention, quick=True)
    assert quick.recipe.path != recipe.path and not recipe.path.exists()
    full = training.load_or_train(recipe, MultiHeadAttention)
    assert training.load_or_train(recipe, MultiHeadAttention, quick=True) is full


def test_variants_have_names_of_their_own():
    assert training.variant(TINY, seed=2, d_model=32, num_heads=None).name == "tiny_d_model32_seed2"
    assert training.variant(TINY) == TINY
    with pytest.raises(ValueError, match="unknown objective 'x': choose from masked word, next word"):
        training.Recipe("x", "x", num_heads=1, num_layers=1, steps=1)


# ------------------------------------------------------------------------------------------- causality, generation


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_nothing_leaks_from_the_future(layers):
    torch.manual_seed(layers)
    tokens = torch.tensor([encode(["the", "big", "cat", "sat", "quietly", "on", "the", "dark", "mat"])])
    causal = ToyTransformer(num_layers=layers, make_attention=CausalSelfAttention).eval()
    assert largest_leak(causal, tokens) == (0.0, 0.0), (
        "a future word moved an earlier logit: is the mask before softmax?"
    )
    change, gradient = largest_leak(ToyTransformer(num_layers=layers, make_attention=MultiHeadAttention).eval(), tokens)
    assert change > 1e-4 and gradient > 1e-4, "the test itself must be able to fail"


def test_generation_follows_the_logits_stops_at_end_and_at_the_limit():
    class Counter(ToyTransformer):
        """Predicts the word after the last one in the vocabulary."""

        def forward(self, tokens, mask=None):
            return F.one_hot((tokens + 1) % len(VOCABULARY), len(VOCABULARY)).float(), []

    model = Counter(make_attention=MultiHeadAttention)
    start = VOCABULARY[-3]
    assert generate(model, [start], limit=2) == list(VOCABULARY[-3:-1])
    assert generate(model, [start], limit=20)[:3] == list(VOCABULARY[-3:])
    before_end = [toy_language.decode([toy_language.END_ID - 1])[0]]
    assert generate(model, before_end) == before_end


# ------------------------------------------------------------------------------------- pictures, findings, scripts


def test_heatmap_refuses_what_is_not_attention():
    weights = torch.eye(3)
    for bad, tokens, message in (
        (torch.eye(3)[None], "abc", "one .T_q, T_k. matrix: got shape"),
        (weights, "abcd", "3 queries but 4 query tokens"),
        (weights * 2, "abc", "row 0 sums to 2.0000, not 1"),
    ):
        with pytest.raises(ValueError, match=message.replace("query tokens", "querie tokens")):
            plot_attention(bad, list(tokens))
    with pytest.raises(ValueError, match="pick one item of a batch"):
        plot_heads(torch.eye(3)[None, None], list("abc"), axes=[], titles=[])


def test_heatmap_shows_queries_down_keys_across_and_hatches_hidden_cells():
    weights = torch.tensor([[1.0, 0.0], [0.25, 0.75]])
    ax = plot_attention(weights, ["a", "b"], mask=causal_mask(2), ax=plt.figure().add_subplot())
    drawn = ax.collections[0].get_array()
    assert drawn.shape == (2, 2) and drawn[1, 0] == 0.25 and drawn.mask[0, 1]
    assert ax.yaxis_inverted() and ax.collections[0].get_clim() == (0, 1)
    (patch,) = ax.patches
    assert patch.get_xy() == (1, 0) and patch.get_hatch()
    assert [t.get_text() for t in ax.get_xticklabels()] == token_labels(["a", "b"]) == ["0 a", "1 b"]
    assert sorted(t.get_text() for t in ax.texts) == ["0.25", "0.75", "1.00"]
    plt.close()


def test_flow_draws_relative_to_the_even_share():
    uniform = torch.full((6, 6), 1 / 6)
    assert attention_flow.arrows(uniform, 1.5) == []
    sharp = torch.eye(6).roll(-1, dims=-1)
    assert {(i, j) for i, j, _ in attention_flow.arrows(sharp, 1.5)} == {(i, (i - 1) % 6) for i in range(6)}


def test_landscape_heights_are_the_weights():
    weights = np.random.default_rng(0).random((3, 5))
    x, y, z, _ = attention_3d.terraces(weights)
    for i, j in itertools.product(range(3), range(5)):
        cell = (x > i) & (x < i + 1) & (y > j) & (y < j + 1)
        assert set(z[cell]) == {weights[i, j]}
    assert z[0].max() == z[-1].max() == z[:, 0].max() == z[:, -1].max() == 0
    previous = torch.eye(6).roll(-1, dims=-1)
    previous[0] = torch.eye(6)[0]
    assert "a ridge: 1.00 of the weight goes to the word before" in attention_3d.describe(previous, list("abcdef"))
    wall = torch.zeros(6, 6)
    wall[:, 3] = 1
    assert 'a wall: every word gives 1.00 of its weight to "d"' in attention_3d.describe(wall, list("abcdef"))


def test_findings_are_checked_recorded_and_shown(tmp_path, capsys):
    good = findings.Finding(
        "T1", "<b>water</b> is wet", "test", {"wetness": 0.5, "runs": [1.0, 2.0]}, "unit", "rule", "holds"
    )
    with pytest.raises(ValueError, match="unknown verdict"):
        findings.Finding("T2", "c", "s", {"x": 1}, "u", "r", "maybe")
    with pytest.raises(ValueError, match="a condition belongs"):
        findings.Finding("T3", "c", "s", {"x": 1}, "u", "r", "holds only if")
    with pytest.raises(ValueError, match="at least one measured number"):
        findings.Finding("T4", "c", "s", {}, "u", "r", "holds")
    findings.record("phase1_single_head/a.py", [good, good], tmp_path)
    findings.record("phase1_single_head/a.py", [good], tmp_path)  # replaces, does not pile up
    assert 'holds: "<b>water</b> is wet"' in capsys.readouterr().out
    save_figure(plt.figure(), tmp_path / paths.PLOTS / "phase1" / "x.png", caption='A "caption" <i>')
    page = findings.write_page(tmp_path).read_text()
    assert len(json.loads((tmp_path / paths.PROCESSED / "findings.json").read_text())) == 1
    assert "&lt;b&gt;water" in page and "<b>water" not in page
    assert "wetness: 0.5; runs: 1, 2 (unit)" in page
    assert "A &#34;caption&#34; &lt;i&gt;" in page and "data:image/png;base64," in page
    assert not re.search(r'(src|href)="(?!data:|#)', page), "the page must not load anything"


EXPECTED = {
    "phase1/attention_heatmap.png",
    "phase1/qkv_flow.png",
    "phase2/multi_head_grid.png",
    "phase2/attention_entropy.png",
    "phase2/head_roles.png",
    "phase3/attention_flow.png",
    "phase3/3d_attention.png",
    "phase4/causal_mask.png",
    "phase4/bidirectional_vs_causal.png",
    "summary_all_phases.png",
}


@pytest.fixture(scope="module")
def quick_run(checkpoints, tmp_path_factory):
    """Every script once, as a reader would run it, with little training."""
    folder = tmp_path_factory.mktemp("run")
    for script in SCRIPTS:
        script.main(["--quick", "--output-dir", str(folder)])
    findings.main(["--output-dir", str(folder)])
    return folder


def test_every_script_runs_and_writes_what_it_promises(quick_run):
    plots = quick_run / paths.PLOTS
    assert {str(p.relative_to(plots)) for p in plots.rglob("*.png")} == EXPECTED
    gif = quick_run / paths.ANIMATIONS / "phase3" / "3d_attention.gif"
    with Image.open(gif) as image:
        assert image.n_frames == 6 and image.info["comment"]
    for path in plots.rglob("*.png"):
        with Image.open(path) as image:
            assert len(image.info["Description"]) > 20
            extremes = np.asarray(image.convert("L"))
            assert extremes.min() < 80 and extremes.max() == 255
            for edge in (extremes[0], extremes[-1], extremes[:, 0], extremes[:, -1]):
                assert edge.min() > 200, f"{path.name}: something is cut off at the edge"
    saved = torch.load(quick_run / paths.PROCESSED / "attention_weights.pt", weights_only=True)
    assert saved[TOY_SENTENCE].shape == (6, 6)
    saved = torch.load(quick_run / paths.PROCESSED / "multi_head_patterns.pt", weights_only=True)
    assert saved[TOY_SENTENCE].shape == (2, 4, 6, 6)
    assert len(saved) == len(toy_language.read_sentences(str(paths.TOY_SEQUENCES)))
    recorded = json.loads((quick_run / paths.PROCESSED / "findings.json").read_text())
    assert len(recorded) >= 20 and len({f["id"] for f in recorded}) == len(recorded)
    page = (quick_run / paths.PAGE).read_text()
    assert all(name.split("/")[-1] in page for name in EXPECTED)


def test_the_same_seed_gives_the_same_bytes(quick_run, tmp_path, monkeypatch):
    """Trained anew elsewhere, the pictures and findings of two phases are the same, byte for byte."""
    monkeypatch.setattr(paths, "CHECKPOINTS", tmp_path / "checkpoints")
    for script in (self_attention, visualize1, causal_attention, visualize4):
        script.main(["--quick", "--output-dir", str(tmp_path)])
    compared = [p for p in tmp_path.rglob("*") if p.suffix in (".png", ".json") and p.parent.name != "checkpoints"]
    assert len(compared) >= 7
    for path in compared:
        assert path.read_bytes() == (quick_run / path.relative_to(tmp_path)).read_bytes(), path.name


@pytest.mark.parametrize("script", [s for s in SCRIPTS if s is not one_or_four_heads], ids=lambda s: s.__name__)
def test_other_sentences_work_in_every_script(quick_run, tmp_path, script, request):
    sentence = "today some strange kites beside the dark big barn lay on a red soft box"  # 15 words
    script.main(["--quick", "--sentence", sentence, "--output-dir", str(tmp_path)])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sentence", "the cta sat"], '"cta" is not among the 97 words .* nearest known words: .*cat'),
        (["--sentence", ""], "the sentence is empty"),
        (["--sentence", "cat " * 40], "40 words: the limit is 32"),
        (["--sentences", "no-such-file.txt"], "cannot use no-such-file.txt: No such file"),
        (["--device", "tpu"], "invalid choice: 'tpu'"),
        (["--device", "cuda"], "--device cuda is not available here"),
        (["--seeds", "0"], "--seeds must be 1 or more: got 0"),
        (["--seed", "-1"], "--seed must lie between"),
        (["--heads", "5"], "--d-model 64 is not divisible by --heads 5"),
        (["--layers", "x"], "invalid int value: 'x'"),
        (["--output-dir", "/dev/null/x"], "cannot write to --output-dir /dev/null/x"),
        (["--no-such-option"], "unrecognized arguments: --no-such-option"),
        (["--format", "jpg"], "invalid choice: 'jpg'"),
    ],
)
def test_bad_input_is_one_clear_line_and_exit_code_2(arguments, message, capsys):
    if arguments[-1] == "cuda" and torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    for script in (self_attention, causal_attention):
        with pytest.raises(SystemExit) as stop:
            script.main(arguments)
        said = capsys.readouterr().err
        assert stop.value.code == 2
        assert re.search(message, said) and said.count("\n") == 1, said


@pytest.mark.parametrize(
    ("script", "arguments", "message"),
    [
        (attention_flow, ["--layer", "2"], "--layer must lie between 0 and 1: got 2"),
        (attention_3d, ["--head", "-1"], "--head must lie between 0 and 3: got -1"),
        (attention_flow, ["--threshold", "-1"], "--threshold must be 0 or more"),
        (causal_attention, ["--prompt", "the xyzzy"], '--prompt: "xyzzy" is not among'),
    ],
)
def test_bad_options_of_single_scripts(checkpoints, script, arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        script.main(["--quick", *arguments])
    assert stop.value.code == 2 and message in capsys.readouterr().err


def test_interrupts_and_full_disks_are_one_line(capsys):
    def interrupted():
        raise KeyboardInterrupt

    def full():
        raise OSError(28, "No space left on device", "picture.png")

    for main, code, message in ((interrupted, 130, "interrupted"), (full, 2, "picture.png: No space left on device")):
        with pytest.raises(SystemExit) as stop:
            cli.run(main)
        assert stop.value.code == code and message in capsys.readouterr().err


def test_scripts_start_from_anywhere_as_files_and_modules(tmp_path):
    """Real processes, another working directory, no display: the option check comes before anything is written."""
    root = Path(__file__).parent
    for command in ([root / "phase2_multi_head" / "visualize.py"], ["-m", "phase4_causal"]):
        done = subprocess.run(
            [sys.executable, *map(str, command), "--sentence", "the cta"], cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 2 and "Traceback" not in done.stderr and "nearest known words" in done.stderr
    assert not list(tmp_path.iterdir())


def test_run_all_refuses_unknown_words():
    done = subprocess.run(["bash", "run_all.sh", "phase9"], cwd=Path(__file__).parent, capture_output=True, text=True)
    assert done.returncode == 2 and "unknown word 'phase9'" in done.stderr


# --------------------------------------------------------------------------------------------- the house itself


def repository_files(*patterns):
    root = Path(__file__).parent
    found = itertools.chain(
        *(root.glob(f"{folder}{pattern}") for pattern in patterns for folder in ("", "shared/", "phase*/"))
    )
    return sorted({path for path in found if ".venv" not in path.parts})


def test_importing_runs_nothing_and_shared_imports_no_phase():
    order = ["shared", "phase1_single_head", "phase2_multi_head", "phase3_visualization", "phase4_causal"]
    for path in repository_files("*.py"):
        text = path.read_text()
        assert not re.search(r"^\s*sys\.path", text, re.M), path
        assert len(text.splitlines()) <= 300 or path.name == "test_all.py", path
        if path.parent.name in order:
            for imported in re.findall(r"^\s*(?:from|import) (phase\w+|shared)", text, re.M):
                assert order.index(imported) <= order.index(path.parent.name), f"{path} imports {imported}"
            module = importlib.import_module(f"{path.parent.name}.{path.stem}")
            assert path.name in ("__init__.py",) or module.__doc__, f"{path} does not say what it teaches"


def test_formatting_and_lint_are_clean():
    for command in (["check"], ["format", "--check"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "."], cwd=Path(__file__).parent, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_committed_pictures_exist_and_are_light():
    root = paths.ROOT
    for name in EXPECTED:
        path = root / paths.PLOTS / name
        assert path.exists() and path.stat().st_size <= 200_000, name
    assert (root / paths.ANIMATIONS / "phase3" / "3d_attention.gif").stat().st_size <= 2_000_000
    assert (root / paths.PAGE).exists()


def test_links_and_commands_of_the_lessons_lead_somewhere():
    for path in repository_files("README.md"):
        text = path.read_text()
        for link in re.findall(r"\]\((?!https?://|#)([^)#]+)", text):
            assert (path.parent / link).exists(), f"{path}: {link}"
        for script in re.findall(r"python ((?:phase|shared)\S+\.py)", text):
            assert (paths.ROOT / script).exists(), f"{path}: {script}"
