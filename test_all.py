"""The tests of everything:  ./run_all.sh test   or   pytest test_all.py

They compare with oracles: a plain loop, torch's own functions with copied weights, numbers worked by hand. Sizes are
different primes, so that no two axes can be confused; float64 first, where equal means equal to 12 digits. Checks of
the core take the module under test as an argument, because one test breaks the code in sixteen ways and asks whether
the check that is meant to notice does notice.
"""

import ast
import difflib
import doctest
import functools
import importlib
import inspect
import itertools
import json
import math
import multiprocessing
import os
import random
import re
import shutil
import subprocess
import sys
import textwrap
import types
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from phase1_single_head import (
    bottleneck,
    cross_attention,
    exercises,
    layer_costs,
    path_length,
    position_encodings,
    positions,
    queries_and_keys,
    reading_weights,
    recurrence,
    scaling,
    scaling_training,
    scoring,
    scoring_rules,
    self_attention,
    seq2seq,
    soft_lookup,
    textbook_numbers,
    weight_statistics,
)
from phase1_single_head import visualize as visualize1
from phase1_single_head.cross_attention import CrossAttention
from phase1_single_head.position_encodings import (
    RotarySelfAttention,
    against_the_fall,
    order_gap,
    rotary,
    similarity_by_distance,
    sinusoidal_by_loops,
    twin_gaps,
)
from phase1_single_head.scoring import METHODS, AdditiveAttention, LuongAttention
from phase1_single_head.self_attention import (
    SelfAttention,
    attention_by_loops,
    make_single_head,
    scaled_dot_product_attention,
)
from phase1_single_head.soft_lookup import Reading
from phase2_multi_head import (
    attention_pooling,
    benchmark,
    collapse_rate,
    cost_model,
    fused_attention,
    head_costs,
    head_pruning,
    heads_vs_loss,
    multi_head_attention,
    one_or_four_heads,
    output_projection,
    pooling_questions,
    pre_or_post_norm,
    rank_collapse,
    three_nouns,
    transformer_block,
    two_lookups,
    untrained_heads,
    variants,
    wrong_heads,
)
from phase2_multi_head import exercise_solutions as solutions2
from phase2_multi_head import exercises as exercises2
from phase2_multi_head import visualize as visualize2
from phase2_multi_head.attention_pooling import AttentionClassifier, AttentionPooling, last_pooling, mean_pooling
from phase2_multi_head.fused_attention import FusedMultiHeadAttention, GroupedQueryAttention
from phase2_multi_head.head_importance import (
    Measured,
    curve,
    divided_by_layer,
    gated,
    gradient_importance,
    greedy_order,
    loss_without,
    measured_language_model,
    rank_correlation,
    ranks,
    removable,
    removal_importance,
)
from phase2_multi_head.multi_head_attention import (
    RECIPE,
    MultiHeadAttention,
    StackOfHeads,
    merge_heads,
    split_heads,
    torch_twin,
)
from phase2_multi_head.multi_head_attention import RECIPE as MASKED_WORD_RECIPE
from phase2_multi_head.pooling_questions import CASES, POOLINGS, Run
from phase2_multi_head.three_nouns import QUESTIONS, best_fixed_place, make_task, most_frequent, noun_asked_for
from phase2_multi_head.transformer_block import TransformerBlock, from_toy_block, torch_layer
from phase2_multi_head.variants import (
    FUSED,
    FUSED_MASK,
    GROUPED_2,
    INVERTED,
    TOLERANCE,
    TORCH,
    Variant,
    check_agreement,
    group_means,
    load_variants,
)
from phase3_visualization import (
    attention_3d,
    attention_flow,
    coreference,
    entropy_training,
    explorer,
    faithfulness,
    head_roles,
    hub_or_no_op,
    language_model,
    leave_one_out,
    minimal_pairs,
    not_an_explanation,
    other_weights,
    pattern_scores,
    pretrained,
    pretrained_parity,
    role_stability,
    rollout,
    training_film,
)
from phase3_visualization import attention_distance as distance3
from phase3_visualization import exercise_solutions as solutions3
from phase3_visualization import exercises as exercises3
from phase3_visualization.attention_distance import CausalAttention
from phase3_visualization.rollout import CAUSAL_LAYERS, TOKENS, causal_rollout, planted_weights
from phase4_causal import (
    breaking_causality,
    cache_costs,
    cached_or_not,
    causal_attention,
    causality,
    generation_film,
    generation_temperature,
    induction,
    induction_measures,
    induction_scores,
    key_value_cache,
    length_benchmark,
    linear_kernel,
    long_context,
    mask_patterns,
    mask_training,
    mask_verdicts,
    masked_heads,
    masks,
    nan_causes,
    promises,
    ring_attention,
    ring_blocks,
    sparse_reach,
    summary,
)
from phase4_causal import exercise_solutions as solutions4
from phase4_causal import exercises as exercises4
from phase4_causal import generate as generate4
from phase4_causal import visualize as visualize4
from phase4_causal.causal_attention import RECIPE as CAUSAL_RECIPE
from phase4_causal.causal_attention import CausalSelfAttention, generate, largest_leak
from phase4_causal.generate import GREEDY, Sampling, new_caches, next_logits, write
from phase4_causal.key_value_cache import KeyValueCache
from phase4_causal.linear_attention import linear_attention, linear_attention_recurrent, linear_by_loops
from phase4_causal.local_attention import local_by_loops
from phase4_causal.long_context import flash_attention, flash_by_loops, local_attention
from phase4_causal.mask_training import WITH, under
from phase4_causal.masked_heads import BOTH, CAUSAL, CUT, Patterns
from phase4_causal.sparse_attention import (
    block_sparse_attention,
    block_sparse_by_loops,
    strided_attention,
    strided_by_loops,
    tile_mask,
    tile_pattern,
)
from shared import (
    attention_utils,
    claims,
    cli,
    course,
    exercise_checker,
    findings,
    grammar_entropy,
    grammar_scores,
    head_statistics,
    measure,
    paths,
    toy_language,
    training,
)
from shared.attention_utils import (
    attention_distance,
    attention_entropy,
    attention_rollout,
    blocked_mask,
    causal_mask,
    effective_context,
    local_mask,
    normalized_entropy,
    padding_mask,
    prefix_mask,
    strided_mask,
)
from shared.exercise_checker import DONE, NOT_WRITTEN, WRONG, Case, Exercise
from shared.findings import FAILS, HOLDS, ONLY_IF, Finding
from shared.grammar_entropy import hidden_word_distribution, hidden_word_entropy, sentence_log_probability
from shared.grammar_scores import HeadScore, accuracy_per_head, best_fixed_offset, offset_baselines
from shared.head_statistics import even_weights
from shared.measure import peak_memory
from shared.toy_language import (
    EITHER_DETERMINERS,
    END_ID,
    INDEX,
    MASK_ID,
    PAD_ID,
    PLACES,
    PLURAL_DETERMINERS,
    RELATIONS,
    SINGULAR_DETERMINERS,
    SPECIAL,
    START_ID,
    SUBJECTS,
    TOY_SENTENCE,
    VERBS,
    VOCABULARY,
    Sentence,
    decode,
    encode,
    pad_batch,
    sample_corpus,
    sample_sentence,
    tokenize,
)
from shared.toy_model import Block, ToyTransformer, sinusoidal_positions
from shared.training import Recipe
from shared.visualization_utils import WEIGHT_MAP, plot_attention, plot_heads, save_animation, save_figure, token_labels

B, H, T_Q, T_K, D_K, D_V = 2, 3, 5, 7, 11, 13
SCRIPTS = (
    self_attention,
    visualize1,
    soft_lookup,
    queries_and_keys,
    scoring,
    scoring_rules,
    cross_attention,
    scaling,
    scaling_training,
    bottleneck,
    position_encodings,
    positions,
    recurrence,
    path_length,
    layer_costs,
    reading_weights,
    weight_statistics,
    textbook_numbers,
    multi_head_attention,
    visualize2,
    one_or_four_heads,
    untrained_heads,
    heads_vs_loss,
    wrong_heads,
    output_projection,
    head_costs,
    two_lookups,
    head_pruning,
    transformer_block,
    pre_or_post_norm,
    rank_collapse,
    collapse_rate,
    attention_pooling,
    pooling_questions,
    fused_attention,
    cost_model,
    benchmark,
    attention_flow,
    attention_3d,
    head_roles,
    role_stability,
    distance3,
    entropy_training,
    training_film,
    rollout,
    faithfulness,
    not_an_explanation,
    masks,
    causal_attention,
    visualize4,
    causality,
    nan_causes,
    breaking_causality,
    key_value_cache,
    cached_or_not,
    generate4,
    generation_temperature,
    generation_film,
    mask_patterns,
    promises,
    long_context,
    sparse_reach,
    linear_kernel,
    cache_costs,
    length_benchmark,
    summary,
)
torch.set_num_threads(1)  # the tensors are so small that a second thread costs more than it brings
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
    expected = theirs(x, context, context, attn_mask=~mask.flatten(0, 1), average_attn_weights=False)
    output, weights = ours(x, context, mask=mask)
    close(output, expected[0], rtol=0, atol=1e-12)
    close(weights, expected[1], rtol=0, atol=1e-12)


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
        [("query = query / math.sqrt(query.size(-1))", "pass")],
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
        [("attention(query, key, value, mask", "attention(query / self.num_heads**0.5, key, value, mask")],
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
    count = head_costs.count_parameters
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
        theirs = torch_twin(ours)
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
    x = torch.randn(1, 7, 32)
    counts = {layer_costs.count_operations(MultiHeadAttention(32, h), x) for h in (1, 2, 4, 8)}
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


# ------------------------------------------------------------------- phase 2: fused and grouped, wrong heads, W_O


def masks_for(kind, t_q, t_k):
    generator = torch.Generator().manual_seed(5)
    shapes = {"pairs": (t_q, t_k), "padding": (B, 1, 1, t_k), "each head": (B, H, t_q, t_k)}
    return some_mask(generator, shapes[kind]) if kind in shapes else None


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("t_q", "t_k"), [(T_Q, T_Q), (T_Q, T_K), (T_K, T_Q)])
@pytest.mark.parametrize("kind", ["no mask", "pairs", "padding", "each head"])
def test_fused_attention_is_the_plain_one_in_outputs_and_gradients(kind, t_q, t_k, causal):
    torch.manual_seed(0)
    plain, fused = MultiHeadAttention(33, H).double(), FusedMultiHeadAttention(33, H, causal=causal).double()
    fused.load_state_dict(plain.state_dict())
    mask = masks_for(kind, t_q, t_k)
    future_hidden = mask if not causal else causal_mask(t_q, t_k) if mask is None else mask & causal_mask(t_q, t_k)
    gradients = []
    for attention, seen in ((plain, future_hidden), (fused, mask)):
        torch.manual_seed(1)
        x, context = (torch.randn(B, t, 33, dtype=torch.float64, requires_grad=True) for t in (t_q, t_k))
        output, weights = attention(x, context, mask=seen)
        output.square().sum().backward()
        gradients.append((output, x.grad, context.grad, *(p.grad for p in attention.parameters())))
    assert weights is None
    for ours, theirs in zip(*gradients, strict=True):
        close(ours, theirs, rtol=0, atol=1e-11)


def test_fused_attention_passes_is_causal_for_equal_lengths_alone(monkeypatch):
    calls = []

    def watched(*inputs, **options):
        calls.append(options)
        return inputs[0]

    monkeypatch.setattr(fused_attention.F, "scaled_dot_product_attention", watched)
    attention = FusedMultiHeadAttention(33, H, causal=True, dropout=0.25)
    x, longer = torch.randn(B, T_Q, 33), torch.randn(B, T_K, 33)
    attention(x)
    attention.eval()
    attention(x, longer)
    attention(x, mask=torch.ones(T_Q, T_Q).bool())
    assert [c["is_causal"] for c in calls] == [True, False, False]
    assert [c["dropout_p"] for c in calls] == [0.25, 0.0, 0.0]
    assert calls[0]["attn_mask"] is None and torch.equal(calls[1]["attn_mask"], causal_mask(T_Q, T_K))
    with pytest.raises(ValueError, match="head axis"):
        attention(x, mask=torch.ones(B, T_Q, T_Q).bool())


@pytest.mark.parametrize(("heads", "groups"), [(6, 1), (6, 2), (6, 3), (6, 6)])
def test_grouped_queries_are_torchs_and_head_h_reads_its_neighbours_group(heads, groups):
    torch.manual_seed(0)
    attention = GroupedQueryAttention(42, heads, groups).double()
    x, context = torch.randn(B, T_Q, 42, dtype=torch.float64), torch.randn(B, T_K, 42, dtype=torch.float64)
    mask = masks_for("padding", T_Q, T_K)
    output, weights = attention(x, context, mask=mask)
    query = split_heads(attention.w_q(x), heads)
    key, value = (split_heads(w(context), groups) for w in (attention.w_k, attention.w_v))
    fused = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)
    close(output, attention.w_o(merge_heads(fused)), rtol=0, atol=1e-12)
    for head in range(heads):
        group = head // (heads // groups)
        expected = scaled_dot_product_attention(query[:, head], key[:, group], value[:, group], mask[:, 0])[1]
        close(weights[:, head], expected, rtol=0, atol=1e-12)


def test_grouped_queries_converted_from_many_heads():
    torch.manual_seed(0)
    many = MultiHeadAttention(42, 6).double()
    x = torch.randn(B, T_Q, 42, dtype=torch.float64)
    same = GroupedQueryAttention(42, 6, 6).double()
    same.copy_weights(many)
    for ours, theirs in zip(same(x), many(x), strict=True):
        close(ours, theirs, rtol=0, atol=1e-12)
    halves = GroupedQueryAttention(42, 6, 2).double()
    halves.copy_weights(many)
    for name in ("w_k", "w_v"):
        ours, theirs = getattr(halves, name), getattr(many, name)
        for group, row in itertools.product(range(2), range(7)):
            rows = [7 * head + row for head in range(3 * group, 3 * group + 3)]
            close(ours.weight[7 * group + row], theirs.weight[rows].mean(dim=0))
            close(ours.bias[7 * group + row], theirs.bias[rows].mean())
    with pytest.raises(ValueError, match="num_heads=6 is not divisible by num_kv_heads=4; these work: 1, 2, 3, 6"):
        GroupedQueryAttention(42, 6, 4)


def test_cache_of_a_published_model():
    # Llama 3 8B, bfloat16: 2 (keys, values) x 32 layers x 8 heads x 128 x 2 bytes = 128 KiB for each token
    assert fused_attention.kv_cache_bytes(8, 128, 1, num_layers=32) == 131_072
    assert fused_attention.kv_cache_bytes(32, 128, 8192, num_layers=32) == 4 * 2**30


def test_backend_tells_kernels_from_plain_steps():
    q, k, v = qkv(d_k=8, d_v=8)
    assert fused_attention.backend(lambda: F.scaled_dot_product_attention(q, k, v)) == "flash"
    assert fused_attention.backend(lambda: F.scaled_dot_product_attention(q, k, v, dropout_p=0.5)) == "math"
    assert fused_attention.backend(lambda: scaled_dot_product_attention(q, k, v)) == "math"


def test_what_is_causal_lets_through():
    assert torch.equal(fused_attention.seen_by_flag(T_Q, T_Q), causal_mask(T_Q))
    assert torch.equal(fused_attention.seen_by_flag(T_Q, T_K), torch.ones(T_Q, T_K).bool().tril())


def test_sliced_input_is_one_small_head_on_each_slice():
    torch.manual_seed(0)
    wrong = wrong_heads.SlicedInput(33, 3).double()
    x = torch.randn(B, T_Q, 33, dtype=torch.float64)
    mask = causal_mask(T_Q)
    slices = [(wrong.w_q(part), wrong.w_k(part), wrong.w_v(part)) for part in x.split(11, dim=-1)]
    heads = [scaled_dot_product_attention(*projected, mask) for projected in slices]
    output, weights = wrong(x, mask)
    close(output, wrong.w_o(torch.cat([head for head, _ in heads], dim=-1)), rtol=0, atol=1e-12)
    close(weights, torch.stack([w for _, w in heads], dim=1), rtol=0, atol=1e-12)


def test_sliced_heads_see_their_slice_and_ask_one_question_and_real_heads_do_not():
    torch.manual_seed(0)
    wrong, right = wrong_heads.SlicedInput(64, 4), MultiHeadAttention(64, 4)
    assert (wrong_heads.columns_seen(wrong), wrong_heads.columns_seen(right)) == (16, 64)
    assert wrong_heads.same_question(wrong) == 0 < 0.01 < wrong_heads.same_question(right)


def test_output_projection_sums_heads_and_folds_for_one_head_alone():
    torch.manual_seed(0)
    x = torch.randn(B, T_Q, 64, dtype=torch.float64)
    one, many = (MultiHeadAttention(64, heads, bias=False).double() for heads in (1, 4))
    value = split_heads(many.w_v(x), 4)
    weights = many(x)[1]
    by_hand = sum((weights[:, h] @ value[:, h]) @ many.w_o.weight[:, 16 * h : 16 * h + 16].T for h in range(4))
    close(output_projection.sum_of_heads(many, x), by_hand, rtol=0, atol=1e-12)
    close(many(x)[0], by_hand, rtol=0, atol=1e-12)
    close(output_projection.folded(one)(x)[0], one(x)[0], rtol=0, atol=1e-12)
    assert (output_projection.folded(many)(x)[0] - many(x)[0]).abs().max() > 0.01
    assert output_projection.columns_written(many) == 64
    nn.init.eye_(many.w_o.weight)
    assert output_projection.columns_written(many) == 16


def test_attention_dropout_divides_what_it_keeps():
    sums = multi_head_attention.show_dropout()
    assert sums["returned"] < 1e-12 > sums["used in eval"] and 0.05 < sums["used in training"] < 1
    query, key = torch.zeros(2, 1, 1, 40, 16, dtype=torch.float64)
    used, _ = scaled_dot_product_attention(query, key, torch.eye(40).double()[None, None], dropout=nn.Dropout(0.1))
    close(used, (used > 0).double() / (40 * 0.9), rtol=0, atol=1e-12)


# ------------------------------------------------------------------------ phase 2: untrained heads, pooling


def test_heads_of_known_patterns_are_described_by_their_numbers():
    even, own = torch.full((1, 5, 5), 0.2).double(), torch.eye(5).double()[None]
    after = torch.roll(torch.eye(5).double(), 1, dims=1)[None]
    weights = torch.stack([even, own, after], dim=1)  # (1, 3, 5, 5)
    heads = untrained_heads.describe([weights, weights], torch.ones(1, 1, 5, 5).bool())
    assert heads.entropy == pytest.approx([1, 0, 0] * 2) and heads.largest == pytest.approx([0.2, 1, 1] * 2)
    # even weights over 5 words: (5² - 1) / 15 = 1.6 positions; the roll: 1, 1, 1, 1 and 4 positions
    assert heads.distance == pytest.approx([1, 0, 1.6 / 1.6] * 2)
    assert heads.difference == pytest.approx((0.8 + 0.8 + 1) / 3)


def test_total_variation_leaves_padding_out():
    one = torch.tensor([[1.0, 0, 0], [1, 0, 0], [1, 0, 0]])
    other = torch.tensor([[0.5, 0.5, 0], [1, 0, 0], [0, 0, 1]])
    weights = torch.stack([one, other])[None]
    assert untrained_heads.total_variation(weights, torch.tensor([[True, True, False]])) == pytest.approx(0.25)
    assert untrained_heads.total_variation(weights, torch.tensor([[True, True, True]])) == pytest.approx(0.5)


# ----------------------------------------------------------------------------------------------------- phase 2: pooling


# ---------------------------------------------------------------- pooling

P_B, P_T, P_D = 3, 7, 11
LENGTHS = torch.tensor([7, 2, 5])  # one without padding, all different


def pool_input(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(P_B, P_T, P_D, generator=generator, dtype=torch.float64)


def attention_pooling_with_a_query(d_model=P_D, seed=1):
    pooling = AttentionPooling(d_model).double()
    query = torch.randn(d_model, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    pooling.query.data.copy_(query)
    return pooling


def all_poolings():
    return {"mean": mean_pooling, "last": last_pooling, "attention": attention_pooling_with_a_query()}


def weights_by_loops(name, x, visible, query):
    """The weight of each word of one sentence, x (T, d_model), one word at a time."""
    places = [t for t in range(len(x)) if visible[t]]
    weights = [0.0] * len(x)
    if name == "attention":
        powers = {
            t: math.exp(sum((query[c] * x[t, c]).item() for c in range(x.size(1))) / x.size(1) ** 0.5) for t in places
        }
    for t in places:
        weights[t] = {
            "mean": lambda: 1 / len(places),
            "last": lambda t=t: float(t == places[-1]),
            "attention": lambda t=t: powers[t] / sum(powers.values()),
        }[name]()
    return torch.tensor(weights, dtype=torch.float64)


@pytest.mark.parametrize("name", ["mean", "last", "attention"])
@pytest.mark.parametrize("kind", ["none", "padding", "holes", "shared"])
def test_poolings_are_their_loops(name, kind):
    x, pooling = pool_input(), all_poolings()[name]
    holes = torch.rand(P_B, 1, 1, P_T, generator=torch.Generator().manual_seed(2)) < 0.6
    masks = {"none": None, "padding": padding_mask(LENGTHS, P_T), "holes": holes, "shared": holes[:1, 0, 0]}
    pooled, weights = pooling(x, masks[kind])
    visible = torch.ones(P_B, P_T) if masks[kind] is None else masks[kind].reshape(-1, P_T).expand(P_B, P_T)
    assert pooled.shape == (P_B, P_D) and weights.shape == (P_B, 1, 1, P_T)
    for b in range(P_B):
        expected = weights_by_loops(name, x[b], visible[b], all_poolings()["attention"].query)
        close(weights[b, 0, 0], expected, rtol=0, atol=1e-12)
        by_words = sum(expected[t] * x[b, t] for t in range(P_T))
        close(pooled[b], by_words, rtol=0, atol=1e-12)
        close(attention_pooling.pool_by_loops(weights[b, 0, 0], x[b]), by_words, rtol=0, atol=1e-12)


def test_zero_query_is_the_mean_of_the_visible_words_and_training_starts_there():
    x, mask = pool_input(), padding_mask(LENGTHS, P_T)
    pooling = AttentionPooling(P_D).double()
    close(pooling(x, mask)[0], torch.stack([x[b, :n].mean(dim=0) for b, n in enumerate(LENGTHS)]), rtol=0, atol=1e-12)
    pooling(x, mask)[0].square().sum().backward()
    assert pooling.query.grad.abs().max() > 1e-3, "a query that starts at zero must be able to leave it"


def test_a_long_query_picks_the_word_it_points_at():
    x = torch.eye(P_D, dtype=torch.float64)[None, :P_T]
    pooling = AttentionPooling(P_D).double()
    pooling.query.data[3] = 100 * P_D**0.5
    close(pooling(x)[0], x[:, 3], rtol=0, atol=1e-12)


def test_a_key_projection_would_be_another_query():
    """The reason for which there is none: q · (W x) = (Wᵀ q) · x."""
    x, query = pool_input(), attention_pooling_with_a_query().query.data
    matrix = torch.randn(P_D, P_D, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    projected = torch.softmax((x @ matrix.T) @ query / P_D**0.5, dim=-1)
    other = AttentionPooling(P_D).double()
    other.query.data.copy_(matrix.T @ query)
    close(other(x)[1][:, 0, 0], projected, rtol=0, atol=1e-12)


def test_a_query_agrees_with_torchs_own_attention_in_value_and_gradient():
    x, mask, pooling = pool_input().requires_grad_(), padding_mask(LENGTHS, P_T), attention_pooling_with_a_query()
    query = pooling.query.expand(P_B, 1, 1, P_D)
    expected = nn.functional.scaled_dot_product_attention(query, x[:, None], x[:, None], attn_mask=mask)[:, 0, 0]
    results = []
    for pooled in (pooling(x, mask)[0], expected):
        results.append((pooled, *torch.autograd.grad(pooled.square().sum(), (x, pooling.query))))
    for ours, theirs in zip(*results, strict=True):
        close(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["mean", "last", "attention"])
def test_padding_changes_nothing_in_value_or_gradient(name):
    mask = padding_mask(LENGTHS, P_T)
    real = mask[:, 0, 0, :, None]  # (B, 1, 1, T) -> (B, T, 1)
    x = pool_input().where(real, 0.0)
    seen = []
    for padded in (x, pool_input(5).where(~real, x), x.where(real, 1e9)):
        pooling = all_poolings()[name]
        padded = padded.clone().requires_grad_()
        pooled, weights = pooling(padded, mask)
        pooled.square().sum().backward()
        assert (weights.masked_select(~mask) == 0).all() and (padded.grad.masked_select(~real) == 0).all()
        assert padded.grad.masked_select(real).abs().max() > 0
        query_grad = pooling.query.grad if name == "attention" else torch.zeros(1)
        seen.append((pooled.detach(), weights.detach(), padded.grad, query_grad))
    for other in seen[1:]:
        for ours, theirs in zip(seen[0], other, strict=True):
            assert torch.equal(ours, theirs), "padding leaks into the pooled vector"
    for b, length in enumerate(LENGTHS):  # nor does it matter how much of it there is
        close(all_poolings()[name](x[b : b + 1, :length])[0][0], seen[0][0][b], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["mean", "last", "attention"])
def test_a_sentence_of_padding_alone_pools_to_zero(name):
    x, pooling = pool_input().requires_grad_(), all_poolings()[name]
    mask = padding_mask(torch.tensor([7, 0, 5]), P_T)
    pooled, weights = pooling(x, mask)
    assert (pooled[1] == 0).all() and (weights[1] == 0).all() and pooled[[0, 2]].abs().min() > 0
    pooled.square().sum().backward()
    assert x.grad.isfinite().all() and (x.grad[1] == 0).all() and x.grad[0].abs().max() > 0
    if name == "attention":
        assert pooling.query.grad.isfinite().all() and pooling.query.grad.abs().max() > 0


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: AttentionPooling(0), "d_model must be 1 or more: got 0"),
        (lambda: AttentionPooling(P_D)(torch.zeros(P_T, P_D)), r"\(B, T, d_model\).*got shape \(7, 11\)"),
        (lambda: last_pooling(torch.zeros(P_B, 0, P_D)), r"T of 1 or more: got shape \(3, 0, 11\)"),
        (lambda: AttentionPooling(5)(torch.zeros(P_B, P_T, P_D)), "d_k: got 5 and 11"),
        (lambda: mean_pooling(torch.zeros(P_B, P_T, P_D), torch.ones(P_B, 1, 1, P_T)), "must be bool.*float32"),
        (
            lambda: mean_pooling(torch.zeros(P_B, P_T, P_D), torch.ones(P_B, P_T, dtype=torch.bool)),
            r"\(3, 1, 1, 7\): got \(3, 7\); .* mask\[:, None, None, :\]",
        ),
        (
            lambda: last_pooling(torch.zeros(P_B, P_T, P_D), torch.ones(P_B, 1, 1, 5, dtype=torch.bool)),
            r"\(3, 1, 1, 5\) does not broadcast to scores of shape \(3, 1, 1, 7\)",
        ),
        (
            lambda: mean_pooling(torch.zeros(P_B, P_T, P_D), torch.ones(P_B, 2, 1, P_T, dtype=torch.bool)),
            "does not broadcast",
        ),
        (lambda: AttentionClassifier(1, P_D), "2 classes or more: got num_classes=1"),
        (lambda: AttentionClassifier(2, P_D)(torch.zeros(1, 33, dtype=torch.long)), "at most 32 words: got 33"),
    ],
)
def test_pooling_errors_name_the_rule_and_the_numbers(build, message):
    with pytest.raises(ValueError, match=message):
        build()


# ---------------------------------------------------------------- classifier

P_HEADS, P_WIDTH, P_CLASSES = 3, 33, 5


def classifier(attention):
    torch.manual_seed(0)
    layer = MultiHeadAttention(P_WIDTH, P_HEADS) if attention else None
    model = AttentionClassifier(P_CLASSES, P_WIDTH, attention=layer).double()
    model.pooling.query.data.normal_()
    return model


@pytest.mark.parametrize("attention", [False, True])
def test_classifier_is_embedding_attention_pooling_and_a_linear_layer(attention):
    model, sentence = classifier(attention), torch.tensor([encode(tokenize("those dogs slept in a bed"))])
    x = model.embedding.weight[sentence[0]] + model.positions[:6]
    if attention:
        x = x + model.attention(x[None])[0][0]
    weights = weights_by_loops("attention", x, torch.ones(6), model.pooling.query)
    logits, given = model(sentence)
    close(given[0, 0, 0], weights, rtol=0, atol=1e-12)
    close(logits[0], model.to_logits.weight @ (weights @ x) + model.to_logits.bias, rtol=0, atol=1e-12)


@pytest.mark.parametrize("attention", [False, True])
def test_classifier_answers_alike_alone_and_beside_longer_sentences(attention):
    """The words that stand at places of padding change nothing, not even through the attention layer's gradients."""
    model, rows = classifier(attention), [encode(tokenize(s)) for s in ("many cats sat on a big mat", "the fox slept")]
    tokens, lengths = pad_batch(rows)
    mask = padding_mask(lengths, tokens.size(1))
    other = tokens.where(tokens != PAD_ID, INDEX["kites"])
    results = []
    for batch in (tokens, other):
        model.zero_grad()
        logits, weights = model(batch, mask)
        logits.square().sum().backward()
        grads = [p.grad.clone() for p in model.parameters()]
        assert (model.embedding.weight.grad[batch[1, -1]] == 0).all(), "padding gets a gradient"
        results.append([logits, weights, *grads])
    for ours, theirs in zip(*results, strict=True):
        assert torch.equal(ours, theirs), "padding leaks"
    for b, row in enumerate(rows):
        close(model(torch.tensor([row]))[0][0], results[0][0][b], rtol=0, atol=1e-12)


def test_only_the_attention_pooling_adds_weights_and_each_seed_starts_alike():
    models = {}
    for name, make in POOLINGS.items():
        torch.manual_seed(0)
        models[name] = AttentionClassifier(2, pooling_questions.D_MODEL, pooling=make())
    counts = {name: sum(p.numel() for p in model.parameters()) for name, model in models.items()}
    assert counts["mean"] == counts["last word"] == counts["attention"] - pooling_questions.D_MODEL
    for name, parameter in models["mean"].named_parameters():
        assert torch.equal(parameter, models["attention"].get_parameter(name))


def test_the_lesson_on_one_sentence(capsys):
    attention_pooling.main(["--sentence", "those dogs slept in a soft bed"])
    lines = {
        line[3:25].strip(): line[25:].split() for line in capsys.readouterr().out.splitlines() if "   " in line[:3]
    }
    assert lines["query 1 x slept"][2] == max(lines["query 1 x slept"]) >= "0.90"


# ---------------------------------------------------------------- three questions


def written(text, subject, beside, place):
    """A sentence by hand; nouns at the given indices, each with its determiner right before it or before adjectives."""
    words = tuple(text.split())
    determiners = [
        max(i for i in range(noun) if words[i] in ("a", "the", "those", "many")) for noun in (subject, beside, place)
    ]
    pairs = tuple(zip(determiners, (subject, beside, place), strict=True))
    return Sentence(words, {"determiner-noun": pairs, "verb-subject": ((0, subject),), "verb-place": ((0, place),)})


BY_HAND = [
    written("those dogs beside the barn slept in a soft bed", 1, 4, 9),
    written("a big bus beside many houses stalled on the bridges", 2, 5, 9),
    written("again the foxes beside the box ran near the parks", 2, 5, 9),
]


def test_questions_by_hand():
    expected = {"subject": [1, 0, 1], "beside": [0, 1, 0], "place": [0, 1, 1]}
    words = {
        "subject": ["dogs", "bus", "foxes"],
        "beside": ["barn", "houses", "box"],
        "place": ["bed", "bridges", "parks"],
    }
    decisive = {
        "subject": [{0, 1}, {0, 2}, {1, 2}],
        "beside": [{3, 4}, {4, 5}, {4, 5}],
        "place": [{7, 9}, {8, 9}, {8, 9}],
    }
    for question in QUESTIONS:
        task = make_task(BY_HAND, question)
        assert task.answers.tolist() == expected[question]
        assert [s.words[noun_asked_for(s, question)] for s in BY_HAND] == words[question]
        assert [set(row.nonzero()[:, 0].tolist()) for row in task.decisive] == decisive[question]
        assert task.mask.shape == (3, 1, 1, 10) and task.mask.all()


def test_answers_are_the_number_that_the_determiner_shows():
    """An independent way to know the number: every determiner but "the" shows it."""
    rng, plural, checked = random.Random(7), {"these", "those", "some", "many"}, 0
    sentences = [s for s in (sample_sentence(rng) for _ in range(600)) if "beside" in s.words]
    for question in QUESTIONS:
        task = make_task(sentences, question)
        for n, sentence in enumerate(sentences):
            length = len(sentence.words)
            assert task.tokens[n, :length].tolist() == encode(sentence.words)
            assert task.mask[n, 0, 0].tolist() == [t < length for t in range(task.tokens.size(1))]
            determiner, noun = task.decisive[n].nonzero()[:, 0].tolist()
            before_beside = noun < sentence.words.index("beside")
            assert before_beside == (question == "subject") and (noun == length - 1) == (question == "place")
            if sentence.words[determiner] != "the":
                assert task.answers[n] == (sentence.words[determiner] in plural)
                checked += 1
    assert checked > 300


def test_questions_refuse_other_sentences_and_questions():
    two_nouns = next(s for s in (sample_sentence(random.Random(i)) for i in range(99)) if "beside" not in s.words)
    with pytest.raises(ValueError, match="three nouns"):
        noun_asked_for(two_nouns, "subject")
    with pytest.raises(ValueError, match="choose from subject, beside, place"):
        noun_asked_for(BY_HAND[0], "object")


def test_baselines_by_hand():
    for question in QUESTIONS:  # plural 2, 1 and 2 times of 3
        assert most_frequent(make_task(BY_HAND, question)) == pytest.approx(2 / 3)
    assert best_fixed_place(make_task(BY_HAND, "place")) == 1.0
    assert best_fixed_place(make_task(BY_HAND, "subject")) == pytest.approx(2 / 3)  # at 0, 1 and 2 alike
    longer = written("again those cats beside the barn slept again in a bed", 2, 5, 10)
    shorter = written("a cat beside the barn sat on the mats", 1, 4, 8)
    task = make_task([longer, shorter], "place")
    assert task.tokens.size(1) == 11 and best_fixed_place(task) == 1.0  # the last word, though at two places
    assert (
        best_fixed_place(make_task([longer, shorter], "beside")) == 1.0
    )  # 4 is its determiner in one, the noun in one


def test_held_out_questions_are_new_and_no_noun_tells_the_number_of_another():
    train, held_out = three_nouns.three_noun_sentences()
    assert len(train) > 2000 and len(held_out) > 800 and not {s.words for s in train} & {s.words for s in held_out}
    answers = torch.stack([three_nouns.tasks(q)[1].answers for q in QUESTIONS]).double()
    assert (torch.corrcoef(answers) - torch.eye(3)).abs().max() < 0.1


# ---------------------------------------------------------------- the experiment


class Looking(nn.Module):
    """Looks at a place of its own and says its token's oddness."""

    def __init__(self, place):
        super().__init__()
        self.place = place

    def forward(self, tokens, mask=None):
        weights = torch.zeros(len(tokens), 1, 1, tokens.size(1), dtype=torch.float64)
        weights[..., self.place] = 1
        return torch.nn.functional.one_hot(torch.ones(len(tokens), dtype=torch.long), 2), weights


@pytest.mark.parametrize(("place", "looks"), [(0, 2 / 3), (2, 2 / 3), (5, 0.0)])
def test_measure_by_hand(place, looks):
    run = pooling_questions.measure(Looking(place), make_task(BY_HAND, "subject"))
    assert (run.accuracy, run.looks, run.entropy) == (2 / 3, looks, 0.0)  # it always says plural


def test_training_lets_attention_find_what_the_mean_and_the_last_word_cannot():
    runs = {name: pooling_questions.train(name, "beside", False, 5, 120) for name in POOLINGS}
    assert runs["attention"].accuracy > runs["mean"].accuracy + 0.1 > runs["last word"].accuracy + 0.2
    assert runs["attention"].looks > 0.6
    again = pooling_questions.train("attention", "beside", False, 5, 120)
    assert torch.equal(runs["attention"].model.pooling.query, again.model.pooling.query)


def test_pooling_verdicts_follow_the_numbers(tmp_path, monkeypatch):
    def verdicts(better, mean_on_subject, looks_after, last_after, looks=0.97):
        right = {(p, q, layer): 0.99 for p in POOLINGS for q, layer in CASES}
        right |= {("mean", q, False): 0.75 for q in QUESTIONS} | {("mean", "subject", False): mean_on_subject}
        right |= {("last word", q, False): 0.5 for q in ("subject", "beside")}
        right |= {("last word", "place", False): 0.5, ("last word", "beside", True): last_after}
        right["attention", "beside", False] = better
        looked = {key: looks_after if key[2] else looks for key in right}
        runs = {key: [Run(None, right[key], looked[key], 0.5)] * 2 for key in right}
        options = pooling_questions.cli.parse(pooling_questions.cli.parser(""), ["--output-dir", str(tmp_path)])
        pooling_questions.record_findings(runs, options)
        file = next((tmp_path / findings.paths.PROCESSED / "findings").glob("*pooling_questions.json"))
        return [finding["verdict"] for finding in json.loads(file.read_text())]

    assert verdicts(0.99, 1.0, 0.4, 0.97) == [ONLY_IF, ONLY_IF, ONLY_IF, HOLDS]
    assert verdicts(0.99, 0.75, 0.95, 0.97) == [HOLDS, HOLDS, HOLDS, HOLDS]
    assert verdicts(0.80, 1.0, 0.4, 0.80, looks=0.6) == [FAILS, ONLY_IF, FAILS, FAILS]


def test_pooling_examples_are_chosen_by_the_sentences_alone():
    chosen = pooling_questions.example_sentences()
    answers = torch.stack([three_nouns.tasks(question)[1].answers for question in QUESTIONS])
    assert len(chosen) == 3
    for index in chosen:
        subject, beside, place = answers[:, index].tolist()
        assert subject == place != beside and 9 <= len(three_nouns.three_noun_sentences()[1][index].words) <= 11


# ----------------------------------------------------------------------------------------------------- phase 2: pruning


GATE_B, GATE_T, GATE_D, GATE_H, GATE_C = 7, 5, 33, 3, 11


class TwoLayers(torch.nn.Module):
    """Two layers of attention and a readout, float64; the loss has curvature in every gate."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.layers = torch.nn.ModuleList(MultiHeadAttention(GATE_D, GATE_H) for _ in range(2))
        self.readout = torch.nn.Linear(GATE_D, GATE_C)
        self.double()
        self.x = torch.randn(GATE_B, GATE_T, GATE_D, dtype=torch.float64)
        self.target = torch.randint(GATE_C, (GATE_B, GATE_T))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)[0]
        return self.readout(x)

    def loss(self, x=None, target=None):
        x, target = (self.x, self.target) if x is None else (x, target)
        return F.cross_entropy(self(x).flatten(0, 1), target.flatten())

    def measured(self):
        return Measured(list(self.layers), self.loss, GATE_B)


def one_example(model, n):
    return Measured(list(model.layers), lambda: model.loss(model.x[n : n + 1], model.target[n : n + 1]), 1)


def hooks(module):
    return sum(len(part._forward_pre_hooks) + len(part._forward_hooks) for part in module.modules())


@pytest.mark.parametrize("batch", [(), (GATE_B,)])
def test_open_gates_change_nothing(batch):
    model = TwoLayers()
    plain = model(model.x)
    with gated(model.layers, model.measured().open_gates(*batch)):
        assert hooks(model) == 2
        assert torch.equal(model(model.x), plain), "a gate of 1 must not change a single bit"


@pytest.mark.parametrize("layer", range(2))
@pytest.mark.parametrize("head", range(GATE_H))
def test_a_closed_gate_is_a_head_without_its_columns_of_w_o(layer, head):
    model, other = TwoLayers(), TwoLayers()
    size = GATE_D // GATE_H
    with torch.no_grad():
        other.layers[layer].w_o.weight[:, head * size : (head + 1) * size] = 0
    expected = other.loss().item()
    assert abs(expected - model.loss().item()) > 1e-4  # the head does something
    assert loss_without(model.measured(), frozenset([(layer, head)])) == pytest.approx(expected, abs=1e-12)


def test_gates_of_its_own_for_each_example():
    model = TwoLayers()
    gates = torch.rand(GATE_B, 2, GATE_H, dtype=torch.float64)
    with gated(model.layers, gates):
        together = model(model.x)
    for n in range(GATE_B):
        with gated(model.layers, gates[n]):
            torch.testing.assert_close(model(model.x[n : n + 1])[0], together[n])


def test_no_hook_stays_even_after_an_error():
    model = TwoLayers()
    before = model(model.x)
    removal_importance(model.measured())
    gradient_importance(model.measured())
    with pytest.raises(RuntimeError), gated(model.layers, torch.zeros(2, GATE_H, dtype=torch.float64)):
        raise RuntimeError
    assert hooks(model) == 0
    assert torch.equal(model(model.x), before)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("shape", [(GATE_H,), (GATE_H, 2), (GATE_B, 2, GATE_H + 1), (1, GATE_B, 2, GATE_H)])
def test_wrong_gates_are_refused(shape):
    model = TwoLayers()
    with (
        pytest.raises(ValueError, match=r"one number for each head: \(L, H\) = \(2, 3\)"),
        gated(model.layers, torch.ones(shape)),
    ):
        pass
    assert hooks(model) == 0


def test_gradient_importance_is_the_mean_over_a_loop_of_examples():
    model = TwoLayers()
    by_loop = torch.zeros(2, GATE_H, dtype=torch.float64)
    signed = torch.zeros(2, GATE_H, dtype=torch.float64)
    for n in range(GATE_B):
        gates = torch.ones(2, GATE_H, dtype=torch.float64, requires_grad=True)
        with gated(model.layers, gates):
            (gradient,) = torch.autograd.grad(one_example(model, n).loss(), gates)
        by_loop += gradient.abs() / GATE_B
        signed += gradient / GATE_B
    importance = gradient_importance(model.measured())
    torch.testing.assert_close(importance, by_loop)
    assert (importance - signed.abs()).max() > 1e-3  # absolute before the mean, not after


def test_gradient_importance_by_finite_differences():
    model, step = TwoLayers(), 1e-5
    expected = torch.zeros(2, GATE_H, dtype=torch.float64)
    for n in range(GATE_B):
        for layer in range(2):
            for head in range(GATE_H):
                losses = []
                for gate in (1 + step, 1 - step):
                    gates = torch.ones(2, GATE_H, dtype=torch.float64)
                    gates[layer, head] = gate
                    with gated(model.layers, gates), torch.no_grad():
                        losses.append(one_example(model, n).loss().item())
                expected[layer, head] += abs(losses[0] - losses[1]) / (2 * step) / GATE_B
    torch.testing.assert_close(gradient_importance(model.measured()), expected, atol=1e-8, rtol=1e-6)


def test_gradient_importance_works_where_gradients_are_off():
    model = TwoLayers()
    with torch.no_grad():
        inside = gradient_importance(model.measured())
    torch.testing.assert_close(inside, gradient_importance(model.measured()))


def test_a_head_that_w_o_does_not_read_has_no_importance():
    model = TwoLayers()
    size = GATE_D // GATE_H
    with torch.no_grad():
        model.layers[1].w_o.weight[:, size : 2 * size] = 0
    removal, gradient = removal_importance(model.measured()), gradient_importance(model.measured())
    assert removal[1, 1] == 0 and gradient[1, 1] == 0
    assert (removal != 0).sum() == (gradient != 0).sum() == 2 * GATE_H - 1


def test_removal_importance_by_hand():
    model = TwoLayers()
    full = model.loss().item()
    importance = removal_importance(model.measured())
    assert importance.shape == (2, GATE_H)
    for layer, head in model.measured().heads:
        gates = torch.ones(2, GATE_H, dtype=torch.float64)
        gates[layer, head] = 0
        with gated(model.layers, gates), torch.no_grad():
            assert importance[layer, head].item() == pytest.approx(model.loss().item() - full, abs=1e-12)


def test_layers_are_divided_by_their_own_norm():
    divided = divided_by_layer(torch.tensor([[3.0, 4.0], [5.0, 12.0]]))
    torch.testing.assert_close(divided, torch.tensor([[0.6, 0.8], [5 / 13, 12 / 13]]))


def test_rank_correlation_by_hand():
    assert ranks(torch.tensor([30.0, 10.0, 20.0, 20.0])).tolist() == [4, 1, 2.5, 2.5]
    a, b = torch.tensor([10.0, 20.0, 30.0, 40.0, 50.0]), torch.tensor([2.0, 1.0, 4.0, 3.0, 500.0])
    assert rank_correlation(a, b) == pytest.approx(1 - 6 * 4 / (5 * 24))  # 1 - 6 Σd² / n(n² - 1), Σd² = 4: 0.8
    assert rank_correlation(a, -(a**3)) == pytest.approx(-1)
    assert rank_correlation(a.view(5, 1), a.exp().view(1, 5)) == pytest.approx(1)


def test_greedy_takes_the_cheapest_head_first():
    costs = {(0, 0): 3.0, (0, 1): -1.0, (1, 0): 2.0, (1, 1): 0.5}

    def additive(removed):
        return 10 + sum(costs[head] for head in removed)

    order = greedy_order(costs, additive)
    assert order == [(0, 1), (1, 1), (1, 0), (0, 0)]
    assert curve(order, additive) == [0, -1, -0.5, 1.5, 4.5]


def test_greedy_measures_again_where_two_heads_stand_in_for_each_other():
    twins, third = {(0, 0), (0, 1)}, (0, 2)

    def loss(removed):
        return 5.0 * (twins <= removed) + 1.0 * (third in removed) + 0.1 * ((0, 1) in removed)

    heads = [(0, 0), (0, 1), third]
    alone = sorted(heads, key=lambda head: loss(frozenset([head])))
    assert alone == [(0, 0), (0, 1), third]  # each twin is cheap as long as the other is there
    assert greedy_order(heads, loss) == [(0, 0), third, (0, 1)]
    assert curve(alone, loss)[2] == pytest.approx(5.1) and curve(greedy_order(heads, loss), loss)[2] == 1


def test_removable_counts_to_the_last_allowed_rise():
    assert removable([0, 0.005, 0.02, 0.009, 0.3], 0.01) == 3  # the loss may fall again
    assert removable([0, 0.01, 0.5], 0.01) == 0  # less than, not equal


def test_prune_agrees_with_its_parts():
    model = TwoLayers().measured()
    run = head_pruning.prune(model, seed=3, random_orders=4)
    everything = loss_without(model, frozenset(model.heads)) - run.full_loss
    for rises in [*run.curves.values(), *run.random_curves]:
        assert len(rises) == 2 * GATE_H + 1
        assert rises[0] == 0 and rises[-1] == pytest.approx(everything)
    assert len({tuple(rises) for rises in run.random_curves}) > 1
    assert run.curves[head_pruning.REMOVAL][1] == pytest.approx(run.removal.min().item())
    least = int(run.gradient.argmin())
    assert run.curves[head_pruning.GRADIENT][1] == pytest.approx(run.removal.flatten()[least].item())
    assert all(run.curves[head_pruning.GREEDY][1] <= rises[1] for rises in run.random_curves)
    spared = frozenset(head for head in model.heads if run.removal[head] < head_pruning.TOLERANCE)
    assert run.spared_alone == len(spared)
    assert run.spared_together == pytest.approx(loss_without(model, spared) - run.full_loss)
    again = head_pruning.prune(model, seed=3, random_orders=4)
    assert again.random_curves == run.random_curves


def test_the_language_model_is_measured_by_its_held_out_loss():
    trained = training.untrained(RECIPE, MultiHeadAttention)
    model = measured_language_model(trained)
    assert len(model.layers) == 2 and model.examples == training.NUM_HELD_OUT
    assert loss_without(model, frozenset()) == training.held_out_loss(trained)
    few = measured_language_model(trained, 13)
    assert gradient_importance(few).shape == (2, 4) and few.examples == 13


def test_labels_of_two_lookups_by_a_loop():
    generator = torch.Generator().manual_seed(1)
    table = torch.randint(5, (5, 5), generator=generator)
    symbols = torch.randint(5, (3, 11), generator=generator)
    labels = two_lookups.labels(symbols, table)
    assert labels.shape == (3, 8)
    for row in range(3):
        for t in range(3, 11):
            assert labels[row, t - 3] == table[symbols[row, t - 1], symbols[row, t - 3]]
    assert two_lookups.labels(torch.tensor([[2, 0, 1, 2]]), torch.arange(9).view(3, 3)).tolist() == [[5]]


def test_training_of_two_lookups_repeats_and_starts_at_chance():
    first, again, other = (two_lookups.train(4, seed, steps=5, strings=17) for seed in (0, 0, 1))
    assert first.loss().item() == again.loss().item() != other.loss().item()
    assert not torch.equal(first.table, other.table)
    logits = first.logits()
    assert logits.shape == (17, two_lookups.LENGTH - 3, two_lookups.SYMBOLS)
    wanted = two_lookups.labels(first.symbols, first.table)
    by_loop = [-logits[n, t].log_softmax(-1)[wanted[n, t]].item() for n in range(17) for t in range(logits.size(1))]
    assert first.loss().item() == pytest.approx(math.fsum(by_loop) / len(by_loop), rel=1e-5)
    assert first.measured().examples == 17 and len(first.measured().heads) == 4


def test_span_names_a_range_only_where_models_differ():
    assert head_pruning.span([2, 2]) == "2" and head_pruning.span([3, 1, 2]) == "1 to 3"


# ------------------------------------------------------------------------- phase 2: heads against loss, grammar entropy


def words_of(sentence):
    return sentence.split()


def test_sentence_probability_worked_by_hand():
    bare = (0.5 / 5) * 0.5 / 3  # number and determiner, no adjective, one noun of three
    assert math.isclose(
        math.exp(sentence_log_probability(words_of("the cat sat on the mat"))), 0.8**3 * 0.7 * bare**2 / 12
    )
    subject = (0.5 / 5) * 0.2 / (7 * 6) / 3  # two adjectives, the second one of the six that are left
    attractor = (0.5 / 5) * 0.3 / 7 / 3 / 6  # one adjective; a class of places first, one of six
    place = (0.5 / 5) * 0.5 / 3
    adverbs = (0.2 / 5) ** 2 * 0.8
    words = words_of("quietly those big red dogs beside the soft barn slept again in a bed")
    expected = adverbs * 0.3 * subject * attractor * place / 12
    assert math.isclose(math.exp(sentence_log_probability(words)), expected, rel_tol=1e-12)


@pytest.mark.parametrize(
    "sentence",
    [
        "a dogs sat on the mat",  # number of the determiner
        "the girl sat on the mat",  # class of the subject
        "the cat sat in the mat",  # preposition of the verb
        "the cat sat on the bed",  # class of the place
        "the big big cat sat on the mat",  # an adjective twice
        "the big red soft cat sat on the mat",  # three adjectives
        "the cat beside the dog sat on the mat",  # only places stand after beside
        "the cat quietly quietly sat on the mat",  # two adverbs in one place
        "the <mask> sat on the mat",
        "cat the sat on the mat",
        "the cat sat on the mat today",
    ],
)
def test_what_the_grammar_cannot_make_has_probability_zero(sentence):
    assert sentence_log_probability(sentence.split()) == -math.inf


def test_probability_agrees_with_the_sampler():
    # All sentences of six words, enumerated; their total is also the share of six words among sampled sentences.
    determiners = grammar_entropy.KINDS["d"]
    total = 0.0
    for verb, (subject, preposition, place) in toy_language.VERBS.items():
        nouns = [itertools.chain(*group) for group in (toy_language.SUBJECTS[subject], toy_language.PLACES[place])]
        for a, b, c, d in itertools.product(determiners, nouns[0], determiners, nouns[1]):
            total += math.exp(sentence_log_probability((a, b, verb, preposition, c, d)))
    assert math.isclose(total, 0.8**3 * 0.7 * 0.5**2, rel_tol=1e-12)
    rng = random.Random(11)
    drawn = [sample_sentence(rng).words for _ in range(20_000)]
    assert all(sentence_log_probability(words) > -math.inf for words in drawn[:2000])
    share = sum(len(words) == 6 for words in drawn) / len(drawn)
    assert abs(share - total) < 4 * math.sqrt(total * (1 - total) / len(drawn))


def test_hidden_words_against_bayes_and_by_hand():
    words = words_of("the cat sat on the mat")
    subject = hidden_word_distribution(words, 1)
    animals = ("cat", "cats", "dog", "dogs", "fox", "foxes")  # "the" takes both numbers
    assert {VOCABULARY[i] for i in subject.nonzero().flatten()} == set(animals)
    torch.testing.assert_close(subject[INDEX["fox"]].item(), 1 / 6)
    assert math.isclose(hidden_word_entropy(words, 0), math.log(5))  # the and four determiners for one cat
    assert hidden_word_entropy(words, 2) == 0
    torch.testing.assert_close(hidden_word_distribution(["the", "<mask>", *words[2:]], 1), subject)
    rng = random.Random(3)
    for sentence in (sample_sentence(rng).words for _ in range(13)):
        for position in range(len(sentence)):
            p = hidden_word_distribution(sentence, position)
            joint = [
                math.exp(sentence_log_probability((*sentence[:position], w, *sentence[position + 1 :])))
                for w in VOCABULARY
            ]
            expected = torch.tensor(joint, dtype=torch.float64) / sum(joint)
            torch.testing.assert_close(p, expected)
            assert abs(p.sum().item() - 1) < 1e-12
            possible = p[p > 0]
            assert p[INDEX[sentence[position]]] > 0
            assert possible.max() - possible.min() < 1e-12, "all words that fit are equally likely, as the lesson says"


def test_hidden_word_frequencies():
    # Of many sampled sentences, those that agree with a pattern in all but one word: how often which word?
    rng = random.Random(5)
    seen = [words[1] for words in (sample_sentence(rng).words for _ in range(20_000)) if words[0] == "every"]
    nouns = [word for word in seen if grammar_entropy.KIND[word] == "n"]
    # Hidden after "every", before the verb of each class, the noun is one of three; together one of twelve.
    verbs = {
        "animal": "sat on the mat",
        "person": "swam in the lake",
        "vehicle": "stalled on the hill",
        "toy": "fell in the lake",
    }
    p = sum(hidden_word_distribution(["every", "?", *rest.split()], 1) for rest in verbs.values()) / 4
    for i in p.nonzero().flatten().tolist():
        expected = p[i].item()
        share = nouns.count(VOCABULARY[i]) / len(nouns)
        assert abs(share - expected) < 4 * math.sqrt(expected * (1 - expected) / len(nouns))


def test_hidden_word_errors():
    with pytest.raises(ValueError, match="position must lie between 0 and 5: got 6"):
        hidden_word_distribution(words_of("the cat sat on the mat"), 6)
    with pytest.raises(ValueError, match=r'no word makes "a \.\.\. sat in the mat"'):
        hidden_word_distribution(words_of("a cat sat in the mat"), 1)


def test_excess_loss_of_the_grammar_itself_is_zero():
    asked = heads_vs_loss.questions(sample_corpus(0, 7)[1])

    def oracle(tokens):
        logits = torch.zeros(*tokens.shape, len(VOCABULARY), dtype=torch.float64)
        for row, ids in enumerate(tokens.tolist()):
            position = ids.index(MASK_ID)
            logits[row, position] = hidden_word_distribution(decode(ids), position).log().clamp(min=-1e4)
        return logits, None

    def indifferent(tokens):
        return torch.zeros(*tokens.shape, len(VOCABULARY)), None

    assert abs(heads_vs_loss.excess_loss(oracle, asked)) < 1e-12
    entropies = torch.cat([torch.special.entr(p).sum(dim=-1) for *_, p in asked])
    expected = math.log(len(VOCABULARY)) - entropies.mean().item()
    assert math.isclose(heads_vs_loss.excess_loss(indifferent, asked), expected, rel_tol=1e-9)
    assert len(entropies) == sum(len(sentence.words) for sentence in sample_corpus(0, 7)[1])


def test_all_numbers_of_heads_start_alike_and_see_the_same_batches(monkeypatch):
    rows = [
        torch.tensor([encode(words_of(text))] * 3)
        for text in ("the cat sat on the mat", "a girl often swam in the lake")
    ]
    for group in rows:
        group[:, 0] = torch.tensor([5, 6, 7])  # three sentences of each length
    monkeypatch.setattr(heads_vs_loss, "sentences_by_length", lambda: rows)
    seen = []
    loss = training.masked_word_loss

    def spy(model, tokens, lengths, generator):
        seen.append((tokens.clone(), generator.get_state()))
        return loss(model, tokens, lengths, generator)

    monkeypatch.setattr(training, "masked_word_loss", spy)
    starts = [heads_vs_loss.train(num_heads, seed=3, steps=0).state_dict() for num_heads in heads_vs_loss.HEADS]
    for other in starts[1:]:
        torch.testing.assert_close(other, starts[0], rtol=0, atol=0)
    trained = [heads_vs_loss.train(num_heads, seed=3, steps=3) for num_heads in (1, 8)]
    for (tokens, state), (other_tokens, other_state) in zip(seen[:3], seen[3:], strict=True):
        assert torch.equal(tokens, other_tokens) and torch.equal(state, other_state)
        assert tokens.shape[0] == heads_vs_loss.BATCH and not (tokens == toy_language.PAD_ID).any()
    assert not torch.equal(
        trained[0].embedding.weight, trained[1].embedding.weight
    )  # but they compute different things
    assert len({tuple(tokens.flatten().tolist()) for tokens, _ in seen[:3]}) == 3  # and no batch comes twice


def test_head_distance_against_loops():
    model = training.new_model(heads_vs_loss.recipe(4, 0, 0), MultiHeadAttention)
    with torch.no_grad():
        model.blocks[0].attention.w_q.weight.mul_(20)  # sharper, so that the distance is no small number
    sentences = sample_corpus(0, 5)[1]
    values = []
    for sentence in sentences:
        weights = training.attention_on(model, [sentence], "masked word")[0][0][0].double()  # (H, T, T), no padding
        for g, h in itertools.combinations(range(4), 2):
            for p, q in zip(weights[g], weights[h], strict=True):
                m = (p + q) / 2
                values.append(((p * (p / m).log()).sum() + (q * (q / m).log()).sum()).item() / 2)
    distance = heads_vs_loss.head_distance(model, sentences)
    assert abs(distance - sum(values) / len(values)) < 1e-5 and distance > 0.05


# ----------------------------------------------------------------------------- phase 2: the block, rank collapse, norms


def new_block(norm_first=True, dropout=0.0):
    """d_model 21, 3 heads of 7, d_ff 11; the norms have weights of their own, so that none can stand for another."""
    torch.manual_seed(0)
    block = TransformerBlock(21, 3, 11, dropout=dropout, norm_first=norm_first).double()
    for norm in (block.attention_norm, block.feed_forward_norm):
        nn.init.normal_(norm.weight, 1.0, 0.5)
        nn.init.normal_(norm.bias, 0.0, 0.5)
    return block


def words(*shape):
    torch.manual_seed(1)
    return torch.randn(*shape, dtype=torch.float64)


# The second sequence has 3 real words of 5; nn.TransformerEncoderLayer takes the two kinds of masks apart, inverted.
KEYS = padding_mask(torch.tensor([5, 3]), 5)
MASKS = {
    "no mask": (None, {}),
    "causal": (causal_mask(5), {"src_mask": ~causal_mask(5)}),
    "padding": (KEYS, {"src_key_padding_mask": ~KEYS[:, 0, 0]}),
    "both": (causal_mask(5) & KEYS, {"src_mask": ~causal_mask(5), "src_key_padding_mask": ~KEYS[:, 0, 0]}),
}


def gradients_by_our_names(theirs):
    """Gradients of nn.TransformerEncoderLayer under the names of TransformerBlock's parameters."""
    grads = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    ours = {}
    for kind in ("weight", "bias"):
        projections = grads[f"self_attn.in_proj_{kind}"].chunk(3)
        ours |= {f"attention.{w}.{kind}": grad for w, grad in zip(("w_q", "w_k", "w_v"), projections, strict=True)}
        ours |= {
            f"attention.w_o.{kind}": grads[f"self_attn.out_proj.{kind}"],
            f"attention_norm.{kind}": grads[f"norm1.{kind}"],
            f"feed_forward.0.{kind}": grads[f"linear1.{kind}"],
            f"feed_forward.3.{kind}": grads[f"linear2.{kind}"],
            f"feed_forward_norm.{kind}": grads[f"norm2.{kind}"],
        }
    return ours


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("kind", MASKS)
def test_block_is_torchs_layer_forwards_and_backwards(kind, norm_first):
    block, (mask, their_masks) = new_block(norm_first), MASKS[kind]
    theirs = torch_layer(block)
    x = words(2, 5, 21)
    ours_in, theirs_in = x.clone().requires_grad_(), x.clone().requires_grad_()
    output, weights = block(ours_in, mask)
    expected = theirs(theirs_in, **their_masks)
    close(output, expected)
    direction = words(2, 5, 21).cos()
    output.backward(direction)
    expected.backward(direction)
    close(ours_in.grad, theirs_in.grad)
    expected_grads = gradients_by_our_names(theirs)
    assert expected_grads.keys() == {name for name, _ in block.named_parameters()}
    for name, parameter in block.named_parameters():
        close(parameter.grad, expected_grads[name], msg=lambda text, name=name: f"{name}: {text}")
    read = theirs.norm1(x) if norm_first else x
    hide = {"attn_mask": their_masks.get("src_mask"), "key_padding_mask": their_masks.get("src_key_padding_mask")}
    _, their_weights = theirs.self_attn(read, read, read, average_attn_weights=False, **hide)
    assert weights.shape == (2, 3, 5, 5)
    close(weights, their_weights)


@pytest.mark.parametrize("norm_first", [True, False])
def test_dropout_is_where_torch_has_it_and_off_in_eval(norm_first):
    """The same random numbers in the same order: every dropout must stand in the same place, with the same p.

    One sequence only: with more, torch keeps them in another order in memory, and draws in that order.
    """
    block = new_block(norm_first, dropout=0.3)
    theirs, x = torch_layer(block), words(1, 5, 21)
    trained = []
    for layer in (block, theirs):
        torch.manual_seed(5)
        trained.append(layer(x)[0] if layer is block else layer(x))
    close(*trained)
    assert not torch.equal(block(x)[0], block(x)[0]), "dropout is not active in training"
    block.eval()
    assert torch.equal(block(x)[0], block(x)[0]), "dropout is alive in eval"
    close(block(x)[0], torch_layer(block)(x))  # with gradients
    with torch.no_grad():
        close(block(x)[0], torch_layer(block)(x))  # torch's fast path
    close(block(x)[0], new_block(norm_first)(x)[0])
    assert {module.p for module in block.modules() if isinstance(module, nn.Dropout)} == {0.3}


def test_pre_norm_leaves_the_stream_alone_and_post_norm_does_not():
    """With sub-layers that answer 0 a pre-norm block is the identity, whatever comes in; post-norm normalises twice."""
    x = 50 * words(2, 5, 21) + 3
    for norm_first in (True, False):
        block = new_block(norm_first)
        for last in (block.attention.w_o, block.feed_forward[3]):
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)
        expected = x if norm_first else block.feed_forward_norm(block.attention_norm(x))
        close(block(x)[0], expected)


def test_block_is_the_block_of_the_toy_transformer():
    torch.manual_seed(0)
    toy = Block(21, MultiHeadAttention(21, 3)).double()
    for norm in (toy.attention_norm, toy.feed_forward_norm):
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    x, mask = words(2, 5, 21), causal_mask(5) & KEYS
    block = from_toy_block(toy)
    assert block.feed_forward[0].out_features == 42 and block.feed_forward[0].weight is not toy.feed_forward[0].weight
    for ours, theirs in zip(block(x, mask), toy(x, mask), strict=True):
        close(ours, theirs, rtol=0, atol=0)


def test_parameters_of_a_block():
    """Attention 4 d² + 4 d, feed-forward 8 d² + 5 d at d_ff = 4 d, norms 4 d: a third is attention's, nearly."""
    d = 21
    count = [
        sum(p.numel() for p in module.parameters()) for module in (TransformerBlock(d, 3), MultiHeadAttention(d, 3))
    ]
    assert count == [12 * d**2 + 13 * d, 4 * d**2 + 4 * d]
    d = transformer_block.D_MODEL
    assert transformer_block.attention_share(4) == (4 * d**2 + 4 * d) / (12 * d**2 + 13 * d)
    assert transformer_block.attention_share(2) == (4 * d**2 + 4 * d) / (8 * d**2 + 11 * d)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((20, 3), {}, "d_model=20 is not divisible by num_heads=3"),
        ((20, 0), {}, "must be 1 or more"),
        ((0, 1), {}, "d_model and num_heads must be 1 or more: got d_model=0"),
        ((20, 4, 0), {}, r"d_ff must be 1 or more: got 0; leave it out for 4 \* d_model = 80"),
        ((20, 4, -7), {}, "got -7"),
        ((20, 4), {"dropout": 1.5}, "1.5"),
    ],
)
def test_blocks_that_cannot_be_built(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        TransformerBlock(*arguments, **options)


def test_inputs_that_do_not_fit_a_block():
    block = new_block()
    with pytest.raises(ValueError, match=r"\(B, T, d_model=21\): got \(2, 5, 20\)$"):
        block(words(2, 5, 20))
    with pytest.raises(ValueError, match=r"got \(5, 21\); a single sequence needs a batch axis: x\[None\]"):
        block(words(5, 21))
    with pytest.raises(ValueError, match="mask must be bool"):
        block(words(2, 5, 21), torch.ones(5, 5))


def test_heads_on_the_diagonal_are_attention_with_a_mask_that_hides_all_others():
    attention, x = new_block().attention, words(2, 5, 21)
    added = transformer_block.added_on_the_diagonal(attention, x)
    output, weights = attention(x, mask=torch.eye(5, dtype=torch.bool))
    close(weights, torch.eye(5, dtype=torch.float64).expand(2, 3, 5, 5))
    assert added.shape == (2, 3, 5, 21)
    close(added.sum(dim=1) + attention.w_o.bias, output)


# pre_or_post_norm.py


def test_xavier_reaches_the_matrices_and_leaves_the_norms():
    block = new_block()
    norm = block.attention_norm.weight.clone()
    pre_or_post_norm.use_xavier(block)
    for layer in (block.attention.w_q, block.attention.w_o, block.feed_forward[0], block.feed_forward[3]):
        limit = math.sqrt(6 / (layer.in_features + layer.out_features))
        assert 0.9 * limit < layer.weight.abs().max() <= limit and not layer.bias.any()
    assert torch.equal(block.attention_norm.weight, norm)


@pytest.mark.parametrize("norm_first", [True, False])
def test_layer_gradients_are_those_of_torchs_layers(norm_first):
    """The same draws, through nn.TransformerEncoderLayer; pre-norm has a norm at its end, post-norm none."""
    size, heads = pre_or_post_norm.D_MODEL, pre_or_post_norm.NUM_HEADS
    torch.manual_seed(3)
    layers = [TransformerBlock(size, heads, norm_first=norm_first) for _ in range(2)]
    to_logits = nn.Linear(size, len(pre_or_post_norm.VOCABULARY))
    x = torch.randn(8, 12, size)
    wanted = torch.randint(len(pre_or_post_norm.VOCABULARY), (8, 12))
    layers = [torch_layer(layer) for layer in layers]
    for layer in layers:
        x = layer(x)
    x = nn.LayerNorm(size)(x) if norm_first else x
    F.cross_entropy(to_logits(x).transpose(1, 2), wanted).backward()
    expected = [layer.linear2.weight.grad.norm().item() for layer in layers]
    found = pre_or_post_norm.layer_gradients(2, norm_first=norm_first, xavier=False, seed=3)
    assert found == pytest.approx(expected, rel=1e-4)
    assert found != pytest.approx(
        pre_or_post_norm.layer_gradients(2, norm_first=norm_first, xavier=True, seed=3), rel=0.05
    )


# rank_collapse.py


def test_distance_to_rank_one_worked_by_hand():
    distance = rank_collapse.distance_to_rank_one
    by_hand = {
        1 / math.sqrt(2): [[1.0, 0.0], [0.0, 1.0]],  # mean (½, ½): 1 of the squares is left of 2
        1.0: [[3.0, -4.0], [-3.0, 4.0]],  # mean 0: nothing is alike
        math.sqrt(2 / 10): [[1.0, 2.0], [1.0, 0.0], [1.0, 1.0], [1.0, 1.0]],  # mean (1, 1): 2 left of 10
    }
    for expected, x in by_hand.items():
        assert distance(torch.tensor(x, dtype=torch.float64)).item() == pytest.approx(expected, rel=1e-14)
    same_rows = words(1, 7).expand(5, 7)
    assert distance(same_rows) < 1e-15 and distance(torch.zeros(5, 7)) == 0
    outer = words(5, 1) @ words(1, 7)  # rank one, but the rows are multiples: not all words alike
    assert distance(outer) > 0.3
    with pytest.raises(ValueError, match=r"at least 2 axes \(T, d\): got shape \(7,\)"):
        distance(words(7))


def test_distance_to_rank_one_is_the_nearest_and_blind_to_order_size_and_rotation():
    x = words(3, 5, 7) + 0.5
    distance = rank_collapse.distance_to_rank_one(x)
    rotation, _ = torch.linalg.qr(words(7, 7))
    for other in (x.flip(dims=[1]), -13 * x, x @ rotation):
        close(rank_collapse.distance_to_rank_one(other), distance)
    assert (rank_collapse.distance_to_rank_one(x + 3) < distance).all(), "a shift makes words more alike"
    mean = x.mean(dim=1, keepdim=True)
    for _ in range(20):  # no other row is nearer than the mean
        row = mean + 0.1 * torch.randn_like(mean)
        assert (torch.linalg.matrix_norm(x - row) / torch.linalg.matrix_norm(x) > distance).all()
    singular = torch.linalg.svdvals(x - mean)  # an independent way to the norm
    close(distance, (singular**2).sum(dim=-1).sqrt() / (x**2).sum(dim=(1, 2)).sqrt())


def test_layers_are_made_of_the_parts_that_they_name():
    block, x = new_block(), words(2, 5, 21)
    attend, feed, norms = block.attention, block.feed_forward, (block.attention_norm, block.feed_forward_norm)
    expected = {
        rank_collapse.ALONE: attend(x)[0],
        rank_collapse.FEED_FORWARD: feed(attend(x)[0]),
        rank_collapse.NO_RESIDUAL: feed(norms[1](attend(norms[0](x))[0])),
        rank_collapse.RESIDUAL: x + attend(x)[0],
        rank_collapse.NO_NORMS: x + attend(x)[0] + feed(x + attend(x)[0]),
        rank_collapse.WHOLE: block(x)[0],
    }
    assert expected.keys() == rank_collapse.LAYERS.keys()
    for name, output in expected.items():
        close(rank_collapse.LAYERS[name](block, x), output)


@pytest.mark.parametrize("xavier", [False, True])
def test_without_residual_the_words_become_alike_sooner(xavier):
    x, blocks = rank_collapse.new_stack(xavier, seed=1000)
    runs = {name: rank_collapse.distances(x, blocks[:6], layer) for name, layer in rank_collapse.LAYERS.items()}
    start = rank_collapse.distance_to_rank_one(x).item()
    assert all(run[0] == pytest.approx(start) for run in runs.values())
    without = (rank_collapse.ALONE, rank_collapse.FEED_FORWARD, rank_collapse.NO_RESIDUAL)
    for name, run in runs.items():
        if name in without:
            assert run[-1] == rank_collapse.FLOOR and len(run) <= 7 and min(run[:-1]) > rank_collapse.FLOOR
        else:
            assert len(run) == 7 and run[-1] > 0.3


def test_medians_go_on_where_a_draw_has_ended():
    floor = rank_collapse.FLOOR
    assert rank_collapse.medians([[1, 0.5, floor], [1, 0.3, 0.2, floor], [1, 0.1, 0.1, 0.05]]) == [1, 0.3, 0.1, floor]
    assert rank_collapse.medians([[1, floor], [1, floor], [1, 0.5, floor]]) == [1, floor]
    assert rank_collapse.medians([[1, 0.5], [1, 0.7], [1, 0.6]]) == [1, 0.6]


# collapse_rate.py


@pytest.mark.parametrize("scale", [1.0, 1e-3])
def test_attention_in_two_parts_is_attention(scale):
    attention = new_block().attention
    x = words(1, 5, 21)
    mean = x.mean(dim=1, keepdim=True)
    apart = scale * (x - mean)
    new_mean, new_apart = collapse_rate.attend_apart(attention, mean, apart)
    output, _ = attention(mean + apart)
    close(new_mean + new_apart, output)
    close(new_mean, output.mean(dim=1, keepdim=True))
    close(new_apart, output - output.mean(dim=1, keepdim=True), rtol=1e-6, atol=1e-15)


@pytest.mark.parametrize("e", [1e-3, 1e-20, 1e-80])
def test_two_words_of_one_number_are_cubed(e):
    """Words m ± e, weights a number each: the outputs are w_o w_v (m ± e tanh(w_q w_k (m ± e) e)), so ± e³ is left."""
    attention = MultiHeadAttention(1, 1, bias=False).double()
    for linear, weight in zip((attention.w_q, attention.w_k, attention.w_v, attention.w_o), (2, 3, 5, 7), strict=True):
        nn.init.constant_(linear.weight, weight)
    mean, apart = torch.full((1, 1, 1), 0.25).double(), torch.tensor([e, -e]).double()[None, :, None]
    _, left = collapse_rate.attend_apart(attention, mean, apart)
    close(left, 5 * 7 * 2 * 3 * apart**3, rtol=2e-5, atol=0)


def test_exact_distances_agree_above_rounding_and_go_on_below():
    x, blocks = rank_collapse.new_stack(True, seed=1000)
    plain = rank_collapse.distances(x, blocks, rank_collapse.LAYERS[rank_collapse.ALONE])
    exact = collapse_rate.exact_distances(x, blocks)
    assert exact[:3] == pytest.approx(plain[:3], rel=1e-9) and exact[3] == pytest.approx(plain[3], rel=1e-6)
    assert exact[-1] < 1e-150 and all(after < before for before, after in itertools.pairwise(exact))


def test_acceleration_tells_doubly_exponential_from_exponential():
    assert collapse_rate.acceleration([1e-1, 1e-2, 1e-3, 1e-4]) == pytest.approx([1, 1])
    assert collapse_rate.acceleration([1e-1, 1e-3, 1e-9, 1e-27]) == pytest.approx([3, 3])


# What the findings say follows from what was measured


def recorded_by(module, monkeypatch, *arguments):
    """Verdicts of what main() would record, without writing findings."""
    recorded = []
    monkeypatch.setattr(module.findings, "record", lambda script, found, folder: recorded.extend(found))
    module.record_findings(*arguments, module.cli.parse(module.cli.parser(""), []))
    return {finding.id: finding.verdict for finding in recorded}


def stacks_that_end_with(**ends):
    """Runs of three draws, by (initial weights, parts); where not said otherwise all is lost without a residual."""
    defaults = dict(ALONE=1e-15, FEED_FORWARD=1e-15, NO_RESIDUAL=1e-15, RESIDUAL=0.5, NO_NORMS=0.5, WHOLE=0.5)
    ends = {getattr(rank_collapse, part): end for part, end in (defaults | ends).items()}
    return {
        (initial, name): [[1.0, end if isinstance(end, float) else end[i]]] * 3
        for i, initial in enumerate(rank_collapse.INITIAL)
        for name, end in ends.items()
    }


def test_verdicts_on_rank_depend_on_what_is_measured(monkeypatch):
    kept, lost = [0.4, 0.5, 0.6], [0.4, 0.1, 0.001]

    def verdicts(with_residual=kept, without=lost, **ends):
        models = {
            f"{m}, {r}": run
            for m in ("trained", "untrained")
            for r, run in (("with residual", with_residual), ("without", without))
        }
        return tuple(recorded_by(rank_collapse, monkeypatch, stacks_that_end_with(**ends), models).values())

    assert verdicts() == (HOLDS, FAILS, HOLDS, HOLDS)
    assert verdicts(RESIDUAL=(0.5, 0.01)) == (ONLY_IF, FAILS, HOLDS, HOLDS)
    assert verdicts(RESIDUAL=(0.5, 0.01), WHOLE=(0.5, 0.05)) == (FAILS, FAILS, HOLDS, HOLDS)
    assert verdicts(ALONE=0.3) == (FAILS, FAILS, HOLDS, HOLDS)
    assert verdicts(FEED_FORWARD=0.3) == (HOLDS, HOLDS, HOLDS, HOLDS)
    assert verdicts(NO_NORMS=(0.5, 0.01)) == (HOLDS, FAILS, ONLY_IF, HOLDS)
    assert verdicts(NO_RESIDUAL=0.3) == (HOLDS, FAILS, FAILS, HOLDS)
    assert verdicts(without=kept)[-1] == verdicts(with_residual=lost)[-1] == FAILS


def test_verdicts_on_the_rate_and_the_place_of_the_norm(monkeypatch):
    cubed, plain = [0.5, 1e-1, 1e-3, 1e-9, 1e-27, 1e-81], [10.0**-n for n in range(6)]
    for run, verdict in ((cubed, HOLDS), (plain, FAILS)):
        assert recorded_by(collapse_rate, monkeypatch, {"Xavier": [cubed, run]}) == {"collapse-rate": verdict}

    def verdicts(post, pre):
        by_norm = {"post-norm": post, "pre-norm": pre}
        runs = itertools.product(pre_or_post_norm.INITIAL, by_norm, (pre_or_post_norm.SHALLOW, pre_or_post_norm.DEEP))
        gradients = {run: [by_norm[run[1]][run[2]]] * 2 for run in runs}
        return list(recorded_by(pre_or_post_norm, monkeypatch, gradients).values())

    low, high = pre_or_post_norm.SHALLOW, pre_or_post_norm.DEEP
    even, rising, falling = [1.0, 1.0], [0.5, 1.0], [1.0, 0.5]
    assert verdicts({low: rising, high: rising}, {low: even, high: falling}) == [HOLDS, HOLDS]
    assert verdicts({low: even, high: even}, {low: even, high: falling}) == [HOLDS, ONLY_IF]
    assert verdicts({low: even, high: even}, {low: even, high: even}) == [FAILS, FAILS]
    assert verdicts({low: even, high: [0.5, 0.5]}, {low: even, high: falling}) == [FAILS, FAILS]


def test_verdict_on_the_diagonal(monkeypatch):
    same = {transformer_block.IDENTITY: torch.tensor([1.0, 0.5])}
    for cosine, verdict in ((-0.5, ONLY_IF), (0.95, HOLDS)):
        found = recorded_by(
            transformer_block,
            monkeypatch,
            {"d_ff": 0.3},
            {"torch": 0.0},
            same | {"trained": torch.tensor([cosine, 0.1])},
        )
        assert found == {"block-parity": HOLDS, "C160": FAILS, "C078": verdict}


def test_picture_of_the_collapse_names_every_line_with_its_end():
    models = {f"{m}, {r}": [0.5, 0.4, 0.25] for m in ("trained", "untrained") for r in ("with residual", "without")}
    figure, caption = rank_collapse.draw(stacks_that_end_with(RESIDUAL=0.012), models, "note")
    labels = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert f"{rank_collapse.ALONE}: below 1e-15 after 1" in labels and f"{rank_collapse.RESIDUAL}:\n0.012" in labels
    assert "trained, without:\n0.25" in labels and len(labels) == 6 + 1 + 4
    assert "keeps them 0.012 apart, the whole block 0.5" in caption
    plt.close(figure)


# ---------------------------------------------------------------------------------- phase 2: measuring, variants, costs


def random_mask(length: int) -> torch.Tensor:
    """Half of it hidden; each query sees itself, since nn.MultiheadAttention gives NaN to one that sees nothing."""
    return (torch.rand(length, length) < 0.5) | torch.eye(length, dtype=torch.bool)


VARIANT_MASKS = {"none": lambda n: torch.ones(n, n, dtype=torch.bool), "causal": causal_mask, "random": random_mask}


def layer(d_model: int = 33, num_heads: int = 3, dtype: torch.dtype = torch.float64) -> MultiHeadAttention:
    torch.manual_seed(0)
    return MultiHeadAttention(d_model, num_heads, bias=False).to(dtype)


@pytest.mark.parametrize("mask", VARIANT_MASKS)
def test_nine_variants_give_the_same_outputs_gradients_and_weights(mask):
    multi_head = layer()  # 3 heads of 11, 2 sequences of 7: no two axes alike
    x, mask = torch.randn(2, 7, 33, dtype=torch.float64), VARIANT_MASKS[mask](7)
    loaded = load_variants(multi_head, mask)
    assert len(loaded) == 10 and GROUPED_2 not in loaded  # 3 heads have no 2 groups
    del loaded[INVERTED]
    differences = check_agreement(loaded, multi_head, x, mask)
    assert max(differences.values()) < 1e-12, differences
    with_weights = {name for name, variant in loaded.items() if variant(x)[1] is not None}
    assert {name for name in loaded if name not in with_weights} == {FUSED, FUSED_MASK, variants.TORCH_NO_WEIGHTS}


def test_the_reference_of_the_comparison_agrees_with_plain_loops():
    multi_head, mask = layer(), random_mask(5)
    x = torch.randn(1, 5, 33, dtype=torch.float64)
    q, k, v = (w(x)[0].detach().chunk(3, dim=-1) for w in (multi_head.w_q, multi_head.w_k, multi_head.w_v))
    heads = [attention_by_loops(q[h], k[h], v[h], mask)[0] for h in range(3)]
    expected = torch.cat(heads, dim=-1) @ multi_head.w_o.weight.T
    for name, variant in load_variants(multi_head, mask).items():
        close = torch.allclose(variant(x)[0][0], expected, rtol=0, atol=1e-12)
        assert close == (name != INVERTED), name


def test_each_variant_takes_the_mask_in_its_own_form():
    multi_head = layer()
    none, causal, other = (load_variants(multi_head, VARIANT_MASKS[name](5)) for name in VARIANT_MASKS)
    assert none[FUSED_MASK].mask.all() and none[INVERTED].mask.all() and none[TORCH].mask is None
    assert causal[FUSED].mask is None and causal[FUSED].module.causal and not causal[FUSED_MASK].module.causal
    assert other[FUSED].mask is not None and not other[FUSED].module.causal
    with pytest.raises(ValueError, match="bias=False"):
        load_variants(MultiHeadAttention(33, 3), causal_mask(5))


def test_two_groups_are_another_function_with_an_oracle_of_its_own():
    multi_head, mask = layer(44, 4), causal_mask(7)  # 4 heads of 11 in 2 groups
    x = torch.randn(2, 7, 44, dtype=torch.float64)
    grouped = load_variants(multi_head, mask)[GROUPED_2]
    assert check_agreement({GROUPED_2: grouped}, multi_head, x, mask)[GROUPED_2] < 1e-12
    assert check_agreement({"as if G = H": grouped}, multi_head, x, mask)["as if G = H"] > 0.01
    before, means = multi_head.w_k.weight.view(4, 11, 44), group_means(multi_head, 2).w_k.weight.view(4, 11, 44)
    for head in range(4):
        first = head // 2 * 2  # heads 0 and 1, heads 2 and 3
        torch.testing.assert_close(means[head], (before[first] + before[first + 1]) / 2)


def test_the_inverted_mask_is_refused_although_nothing_else_shows_it():
    multi_head, mask = layer(dtype=torch.float32), causal_mask(7)
    x, loaded = torch.randn(2, 7, 33), load_variants(multi_head, mask)
    right, wrong = loaded[FUSED_MASK](x)[0], loaded[INVERTED](x)[0]
    assert right.shape == wrong.shape and right.dtype == wrong.dtype and wrong.isfinite().all()
    differences = check_agreement(loaded, multi_head, x, mask)
    assert [name for name, difference in differences.items() if not difference <= TOLERANCE] == [INVERTED]


class ScaleOff(FusedMultiHeadAttention):
    """Scores one percent too large."""

    def forward(self, x, mask=None):
        self.w_q.weight.data *= 1.01
        result = super().forward(x, mask=mask)
        self.w_q.weight.data /= 1.01
        return result


class WrongGradient(MultiHeadAttention):
    def forward(self, x, mask=None):
        return super().forward(x, x.detach(), x, mask)


class WrongWeights(MultiHeadAttention):
    """Right outputs, averaged weights."""

    def forward(self, x, mask=None):
        output, weights = super().forward(x, mask=mask)
        return output, weights.mean(dim=1, keepdim=True)


class WithNaN(MultiHeadAttention):
    def forward(self, x, mask=None):
        output, weights = super().forward(x, mask=mask)
        return output, weights.masked_fill(~mask, math.nan)


@pytest.mark.parametrize("wrong", (ScaleOff, WrongGradient, WrongWeights, WithNaN))
def test_a_slightly_wrong_variant_is_refused(wrong):
    multi_head, mask = layer(dtype=torch.float32), causal_mask(7)
    module = wrong(33, 3, bias=False)
    module.load_state_dict(multi_head.state_dict())
    x = torch.randn(2, 7, 33)
    (difference,) = check_agreement({"wrong": Variant(module, mask)}, multi_head, x, mask).values()
    assert not difference <= TOLERANCE
    if wrong is not ScaleOff:  # the other three give the right output: only the rest betrays them
        torch.testing.assert_close(module(x, mask=mask)[0], multi_head(x, mask=mask)[0])


# ---- shared/measure.py


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


def test_median_ratio_is_taken_within_rounds():
    times = {"a": [2.0, 4.0, 9.0], "b": [1.0, 4.0, 3.0]}
    assert measure.median_ratio(times, "a", "b") == 2.0  # of 2, 1, 3; the ratio of the medians is 4/3


def test_matmul_rate_counts_two_operations_for_each_product(monkeypatch):
    monkeypatch.setattr(measure, "paired_times", lambda calls, **_: {"product": [0.5, 0.25, 1.0]})
    assert measure.matmul_rate(size=7) == 2 * 7**3 / 0.25


# ---- benchmark.py


def test_shapes_are_read_and_bad_ones_get_one_clear_line(capsys):
    assert benchmark.parse_shapes("8x64, 2x1024") == [(8, 64), (2, 1024)]
    for bad in ("8y64", "0x64", "8x", "x8", "-1x5", "", "8x64,"):
        with pytest.raises(SystemExit) as stopped:
            benchmark.main([f"--shapes={bad}"])
        error = capsys.readouterr().err
        assert stopped.value.code == 2 and error.count("\n") == 1 and "as in 8x64,2x1024" in error, bad
    with pytest.raises(SystemExit) as stopped:
        benchmark.main(["--threads", "0"])
    assert stopped.value.code == 2 and "--threads must be 1 or more: got 0" in capsys.readouterr().err


def test_the_benchmark_refuses_before_it_times(tmp_path, monkeypatch, capsys):
    def with_one_more(multi_head, mask):
        loaded = load_variants(multi_head, mask)
        wrong = ScaleOff(multi_head.w_q.in_features, multi_head.num_heads, bias=False)
        wrong.load_state_dict(multi_head.state_dict())
        return loaded | {"one percent off": Variant(wrong, mask)}

    monkeypatch.setattr(benchmark, "D_MODEL", 32)
    monkeypatch.setattr(benchmark, "load_variants", with_one_more)
    json_file = tmp_path / "times.json"
    benchmark.main(
        ["--quick", "--shapes", "3x5", "--threads", "2", "--output-dir", str(tmp_path), "--json", str(json_file)]
    )
    assert torch.get_num_threads() == 1  # set back
    (result,) = json.loads(json_file.read_text())["results"]
    refused = {INVERTED, "one percent off"}
    assert {name for name, difference in result["differences"].items() if difference > TOLERANCE} == refused
    for timed in (*result["times"].values(), result["memory"]):
        assert timed.keys() == result["differences"].keys() - refused
    assert {len(values) for values in result["wrong"].values()} == {len(result["wrong"][INVERTED])}
    assert result["operations"] == 3 * (8 * 5 * 32**2 + 4 * 5**2 * 32)
    printed = capsys.readouterr().out
    assert printed.count("refused: differs by") == 2 and "timed all the same" in printed
    assert (tmp_path / "visualizations" / "plots" / "phase2" / "benchmark.png").is_file()
    found = json.loads((tmp_path / "data/processed/findings/phase2_multi_head.benchmark.json").read_text())
    verdicts = {finding["id"]: finding["verdict"] for finding in found}
    assert verdicts["nine-ways"] == "does not hold"  # ten now, of which nine agree
    assert verdicts["inverted-mask"] == "does not hold"


def test_a_ratio_with_a_refused_variant_is_nan():
    result = benchmark.Result("1x1", {}, {"forward": {"a": [1.0]}}, {}, 0, 0.0, {}, {})
    assert math.isnan(result.ratio("forward", "a", TORCH))
    result = replace(result, times={"forward": {"a": [3.0], TORCH: [2.0]}})
    assert result.ratio("forward", "a") == 1.5


# ---- cost_model.py


@pytest.mark.parametrize(("batch", "length", "d_model", "num_heads"), ((1, 7, 33, 3), (2, 13, 22, 2), (3, 5, 35, 7)))
def test_operations_and_weights_as_the_formulas_say(batch, length, d_model, num_heads):
    multi_head, x = layer(d_model, num_heads), torch.randn(batch, length, d_model, dtype=torch.float64)
    with FlopCounterMode(display=False) as counter:
        _, weights = multi_head(x)
    projections = cost_model.projection_operations(length, d_model, batch=batch)
    attention = cost_model.attention_operations(length, d_model, batch=batch)
    assert counter.get_total_flops() == projections + attention
    assert cost_model.weights_bytes(length, num_heads, batch=batch, bytes_each=8) == weights.nbytes
    if batch == 1:
        assert cost_model.counted_operations(length, d_model, num_heads) == (projections, attention)


@pytest.mark.parametrize(("length", "d_model", "num_heads"), ((5, 33, 3), (64, 32, 1), (101, 33, 3), (128, 64, 2)))
def test_peak_memory_as_the_formulas_say(length, d_model, num_heads):
    """Short and long, on both sides of T = 2 d_k."""
    in_steps = cost_model.measured_peak(MultiHeadAttention, length, d_model, num_heads)
    assert in_steps == cost_model.peak_bytes_in_steps(length, d_model, num_heads)
    fused = cost_model.measured_peak(FusedMultiHeadAttention, length, d_model, num_heads)
    formula = cost_model.peak_bytes_fused(length, d_model)
    assert formula <= fused <= formula + 2**20  # scratch memory


@pytest.mark.parametrize("d_model", (2, 22, 346))
def test_attention_takes_over_at_twice_the_width(d_model):
    assert cost_model.crossing(d_model) == 2 * d_model


def test_sizes_in_words():
    sizes = {5: "5 B", 1536: "1.5 KiB", 2**20: "1 MiB", 3 * 2**30: "3 GiB", 2**45: "32 TiB"}
    assert {size: cost_model.in_bytes(size) for size in sizes} == sizes


def test_the_cost_model_measures_the_same_twice_and_finds_what_the_formulas_say(tmp_path):
    lengths = (64, 128, 256, 512)
    measured = cost_model.measure(lengths)
    assert measured == cost_model.measure(lengths)
    errors = cost_model.errors(measured)
    assert errors.pop("fused") < 0.05 and set(errors.values()) == {0}
    cost_model.main(["--quick", "--output-dir", str(tmp_path)])
    assert (tmp_path / "visualizations" / "plots" / "phase2" / "cost_model.png").is_file()
    found = json.loads((tmp_path / "data/processed/findings/phase2_multi_head.cost_model.json").read_text())
    verdicts = {finding["id"]: finding["verdict"] for finding in found}
    only_if = dict.fromkeys(("C033", "C061"), "holds only if")
    assert verdicts == only_if | dict.fromkeys(("C034", "C048", "C052"), "holds")


# ------------------------------------------------------------------------------ phase 3: not an explanation, landscapes


def explain_module(d_model=15, heads=3):
    torch.manual_seed(0)
    module = MultiHeadAttention(d_model, heads).double()
    for w in (module.w_q, module.w_k, module.w_v, module.w_o):
        nn.init.normal_(w.bias)
    return module


def explain_model(**sizes):
    """An untrained model whose heads are not even: queries and keys made larger."""
    recipe = Recipe("explain", "masked word", **{"num_heads": 2, "num_layers": 2, "steps": 5} | sizes)
    trained = training.untrained(recipe, MultiHeadAttention)
    with torch.no_grad():
        for block in trained.model.blocks:
            block.attention.w_q.weight *= 8
            nn.init.normal_(block.attention.w_v.bias)
            nn.init.normal_(block.attention.w_o.bias)
    return trained


@torch.no_grad()
def test_what_words_add_is_what_the_definition_says_and_sums_to_the_output():
    module, x = explain_module(), torch.randn(1, 7, 15).double()
    added = other_weights.added_by_words(module, x)
    assert added.shape == (3, 7, 15)
    for h in range(3):
        columns = slice(5 * h, 5 * h + 5)
        for j in range(7):
            value = module.w_v.weight[columns] @ x[0, j] + module.w_v.bias[columns]
            torch.testing.assert_close(added[h, j], module.w_o.weight[:, columns] @ value)
    output, weights = module(x)
    whole = sum(weights[0, h] @ added[h] for h in range(3)) + module.w_o.bias
    torch.testing.assert_close(whole, output[0])


@torch.no_grad()
def test_readings_are_the_heads_of_the_model():
    trained, words = explain_model(), tokenize("the cat sat on the mat")
    readings = not_an_explanation.read_heads(trained, [words, words[:3]])
    assert list(readings) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    _, layers = trained.model.double()(torch.tensor([encode(words)]))
    for (layer, head), (long, short) in readings.items():
        torch.testing.assert_close(long.weights, layers[layer][0, head])
        scores = long.query @ long.key.T / math.sqrt(32)
        torch.testing.assert_close(long.weights, scores.softmax(dim=-1))
        assert long.value.shape == (6, 64) and short.weights.shape == (3, 3) and short.words == words[:3]


def explain_reading(weights, value):
    weights, value = torch.tensor(weights).double(), torch.tensor(value).double()
    return Reading([*"abc"[: len(weights)]], value, value, value, weights)


def test_shares_and_disagreement_of_rows_by_hand():
    """Contributions: 0.9 * 1 and 0.1 * 5; 0.6 * 1 and 0.4 * 5."""
    reading = explain_reading([[0.9, 0.1], [0.6, 0.4]], [[0.0, 1.0], [3.0, 4.0]])
    expected = torch.tensor([[0.9 / 1.4, 0.5 / 1.4], [0.6 / 2.6, 2.0 / 2.6]]).double()
    torch.testing.assert_close(not_an_explanation.shares_added(reading), expected)
    readings = {(0, 0): [reading], (0, 1): [reading, explain_reading([[0.5, 0.5], [0.3, 0.7]], [[2.0], [2.0]])]}
    assert not_an_explanation.disagreement(readings) == {(0, 0): 0.5, (0, 1): 0.25}
    assert not_an_explanation.disagreement(readings, above=0.65) == {(0, 0): 0.0, (0, 1): 0.0}
    assert not_an_explanation.disagreement(readings, above=0.55) == {(0, 0): 0.5, (0, 1): pytest.approx(1 / 3)}
    assert not_an_explanation.disagreement(readings, above=0.95) == {(0, 0): 0.0, (0, 1): 0.0}, "no row is asked"
    row = max(not_an_explanation.rows_of(readings), key=lambda row: row.gap)
    assert (row.head, row.i, row.heaviest) == ((0, 0), 1, 0) and row.gap == pytest.approx(0.6 - 0.6 / 2.6)


def test_a_planted_zero_moves_no_weight_and_adds_nothing():
    reading = explain_reading([[0.9, 0.1], [0.6, 0.4]], [[0.0, 1.0], [3.0, 4.0]])
    planted = not_an_explanation.plant_zero(reading, 0)
    assert torch.equal(planted.weights, reading.weights) and reading.value[0, 1] == 1, "the reading itself stays"
    shares = not_an_explanation.shares_added(planted)
    torch.testing.assert_close(shares, torch.tensor([[0.0, 1.0], [0.0, 1.0]]).double())


def test_planting_takes_the_weight_nearest_to_nine_tenths(capsys):
    near = explain_reading([[0.88, 0.12], [0.3, 0.7]], [[1.0], [2.0]])
    far = explain_reading([[0.97, 0.03], [0.5, 0.5]], [[1.0], [1.0]])
    found = not_an_explanation.show_planted({(0, 0): [far], (0, 1): [near]})
    assert found == pytest.approx({"weight": 0.88, "share before": 0.88 / (0.88 + 0.24), "share after": 0.0})
    assert '"a" set to zero, on which "a" puts a weight of 0.88' in capsys.readouterr().out


def test_joined_texts_have_the_length_that_is_asked_for():
    lengths = (9, 10, 4, 5, 17, 16, 15, 17, 12)
    sentences = [[f"{number}"] * length for number, length in enumerate(lengths)]
    texts = other_weights.joined(sentences, 18)
    assert [len(text) for text in texts] == [19, 32] and texts[0] == ["0"] * 9 + ["1"] * 10


@pytest.mark.parametrize(("length", "all_rows"), [(7, True), (5, False)])
def test_rows_are_exchanged_if_there_are_more_words_than_numbers(length, all_rows):
    """d_v = 4: a row of 5 weights is unique, one of 7 has two directions to go."""
    torch.manual_seed(1)
    weights = torch.randn(3, length, length).double().softmax(dim=-1)
    added = torch.randn(3, length, 4).double() @ torch.randn(3, 4, 11).double()  # rank 4, in 11 numbers
    other = other_weights.exchanged(weights, added)
    torch.testing.assert_close(other @ added, weights @ added)
    torch.testing.assert_close(other.sum(dim=-1), torch.ones(3, length).double())
    assert (other >= 0).all() and bool(((other - weights).abs().amax(dim=-1) > 1e-3).all()) == all_rows
    assert all_rows or torch.equal(other, weights)
    assert not all_rows or ((other > 0).sum(dim=-1) <= 5).all(), "Caratheodory: at most d_v + 1 words have weight"


def test_a_model_says_the_same_on_other_weights_and_something_else_on_wrong_ones(monkeypatch):
    trained = explain_model(num_heads=8, d_model=16)  # d_v = 2
    model, words = other_weights.in_float64(trained), tokenize("the cat sat on the mat")
    found = other_weights.exchange_all(model, [words, words[:4]])
    assert found["rows"] == found["rows with another"] == 2 * 8 * (6 + 4)
    assert found["largest change of a logit"] < 1e-12 and found["weight that moves, median"] > 0.001
    assert next(trained.model.parameters()).dtype == torch.float32, "the model itself stays"
    short = other_weights.exchange_all(model, [words[:3]])
    assert short["rows"] == 48 and short["rows with another"] == short["share of rows with another heaviest word"] == 0
    monkeypatch.setattr(other_weights, "exchanged", lambda weights, added: weights.flip(-1))
    assert other_weights.exchange_all(model, [words])["largest change of a logit"] > 1e-3


@pytest.mark.parametrize(("heads", "verdict"), [(16, "holds only if"), (2, None)])
def test_exchange_says_when_texts_are_too_short_for_wide_heads(capsys, heads, verdict):
    """Heads of 4 numbers: rows of 6 weights have others. Heads of 32 numbers: no text has 34 words."""
    sentences = [list(sentence.words) for sentence in training.corpus()[1][:6]]
    trained = explain_model(num_heads=heads, num_layers=1)
    long, short = not_an_explanation.show_exchange(trained, sentences, quick=True)
    said = capsys.readouterr().out
    assert bool(long) == bool(short) == (verdict is not None) and ("no two sentences" in said) == (verdict is None)
    if verdict:
        finding = not_an_explanation.exchange_finding(long, short, seed=0)
        assert finding.verdict == verdict and finding.condition == "the text has more than d_v + 1 words"
        one_less = long | {"rows with another": long["rows"] - 1}
        assert not_an_explanation.exchange_finding(one_less, short, seed=0).verdict == "does not hold"
        moved = long | {"largest change of a logit": 1e-3}
        assert not_an_explanation.exchange_finding(moved, short, seed=0).verdict == "does not hold"


def explain_sweep(tmp_path, monkeypatch, trained, *arguments):
    monkeypatch.setattr(attention_3d, "load_multi_head_model", lambda options: trained)
    attention_3d.main(["--quick", "--output-dir", str(tmp_path), *arguments])
    return sorted(path.name for path in (tmp_path / "visualizations" / "plots" / "phase3").iterdir())


@pytest.mark.parametrize(
    ("chosen", "panels"),
    [([], [(0, 0), (0, 1), (1, 0), (1, 1)]), (["--layer", "1"], [(1, 0), (1, 1)]), (["--head", "1"], [(0, 1), (1, 1)])],
)
def test_small_landscapes_show_every_head_that_is_chosen(tmp_path, monkeypatch, chosen, panels):
    seen = []
    monkeypatch.setattr(attention_3d, "turn", lambda *_, **__: [torch.zeros(2, 2, 3, dtype=torch.uint8).numpy()])
    real = attention_3d.draw_heads
    monkeypatch.setattr(
        attention_3d, "draw_heads", lambda trained, words, heads: seen.append(real(trained, words, heads)) or seen[-1]
    )
    assert explain_sweep(tmp_path, monkeypatch, explain_model(), *chosen) == ["3d_attention.png", "3d_heads.png"]
    (figure, title), names = seen[0], [f"layer {layer} head {head}" for layer, head in panels]
    assert [ax.get_title().split(":")[0] for ax in figure.axes] == names and title.startswith(f"{len(panels)} heads: ")
    kinds = [ax.get_title().split(": ")[1] for ax in figure.axes]
    assert f", {kinds.count('separate peaks')} with separate peaks" in title


def test_one_chosen_head_has_no_grid_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(attention_3d, "turn", lambda *_, **__: [torch.zeros(2, 2, 3, dtype=torch.uint8).numpy()])
    assert explain_sweep(tmp_path, monkeypatch, explain_model(), "--layer", "1", "--head", "0") == ["3d_attention.png"]


def test_long_texts_exist_for_the_trained_model():
    """The default run needs a few joined sentences longer than d_v + 1 = 17."""
    sentences = [list(sentence.words) for sentence in training.corpus()[1][:20]]
    d_v = RECIPE.d_model // RECIPE.num_heads
    assert d_v == 16 and other_weights.joined(sentences, d_v + 2)


# ---------------------------------------------------------------------------- phase 3: training film, distance, entropy


FILM_DTYPE = torch.float64


def film_masks(lengths, causal):
    """(N, 1, T, T) bool, by loops."""
    size = max(lengths)
    mask = torch.zeros(len(lengths), 1, size, size, dtype=torch.bool)
    for n, length in enumerate(lengths):
        for i in range(length):
            for j in range(length):
                mask[n, 0, i, j] = not causal or j <= i
    return mask


def film_score(accuracy, layer=0, head=0):
    return HeadScore(layer, head, "forward", accuracy)


def film_rigged(accuracies):
    """A film whose best heads have these accuracies, look by look; every relation alike, the same head."""
    best = [{r: film_score(a, 1, 2) for r in training_film.CORE_RELATIONS} for a in accuracies]
    film = training_film.Film(loss=[3.0, 2.5, 2.0, 1.5, 1.0, 0.5, 0.4, 0.3], steps=[0, 2, 4, 8][: len(best)])
    film.best = best
    film.weights = [torch.full((2, 4, 3, 3), 1 / 3) for _ in best]
    film.weights[-1] = torch.eye(3).expand(2, 4, 3, 3).clone()
    film.entropy = [torch.ones(2, 4) for _ in best]
    return film


@pytest.mark.parametrize(("length", "causal", "expected"), [
    (5, False, 24 / 15), (7, False, 48 / 21), (5, True, 1.0), (7, True, 1.5),
])  # fmt: skip
def test_film_even_weights_reach_as_far_as_worked_by_hand(length, causal, expected):
    mask = film_masks([length], causal)
    even = distance3.even_weights(mask.double() > 0).double()
    assert distance3.mean_distance(even, mask).item() == pytest.approx(expected, abs=1e-6)


def test_film_even_distance_over_two_lengths_counts_words_not_sentences():
    mask = film_masks([5, 7], causal=False)
    got = distance3.mean_distance(distance3.even_weights(mask), mask).item()
    assert got == pytest.approx((5 * 24 / 15 + 7 * 48 / 21) / 12, abs=1e-6)


@pytest.mark.parametrize("causal", [False, True])
def test_film_mean_distance_is_the_loop_over_real_queries(causal):
    lengths = [5, 3, 7]
    mask = film_masks(lengths, causal)
    torch.manual_seed(1)
    scores = torch.randn(3, 2, 7, 7, dtype=FILM_DTYPE).masked_fill(~mask, -math.inf)
    weights = scores.softmax(dim=-1).nan_to_num(1 / 7)  # rows of padding hold something, which must not count
    got = distance3.mean_distance(weights, mask)
    for head in range(2):
        total, queries = 0.0, 0
        for n, length in enumerate(lengths):
            for i in range(length):
                queries += 1
                total += sum(weights[n, head, i, j].item() * abs(i - j) for j in range(length))
        assert got[head].item() == pytest.approx(total / queries, abs=1e-12)


def test_film_causal_attention_sees_neither_the_future_nor_padding():
    torch.manual_seed(2)
    attention = distance3.CausalAttention(12, 3).double()
    x = torch.randn(2, 5, 12, dtype=FILM_DTYPE, requires_grad=True)
    keys = torch.arange(5) < torch.tensor([[5], [3]])
    output, weights = attention(x, mask=keys[:, None, None, :])
    assert weights.triu(1).abs().max() == 0 and weights[1, :, :, 3:].abs().max() == 0
    assert torch.allclose(weights.sum(-1), torch.ones(2, 3, 5, dtype=FILM_DTYPE))
    output[0, 2].sum().backward()
    assert x.grad[0, 3:].abs().max() == 0 and x.grad[0, :3].abs().min(dim=0).values.max() > 0
    assert attention(x[:1])[1].triu(1).abs().max() == 0  # without a mask as well


def test_film_untrained_causal_model_reaches_about_as_far_as_even_weights():
    recipe = training.Recipe("film_test", "next word", 4, 2, 0)
    trained = training.untrained(recipe, distance3.CausalAttention)
    found = distance3.measure(trained, distance3.CausalAttention, 20)
    assert torch.equal(found.trained, found.untrained) and found.trained.shape == (2, 4)
    lengths = [len(sentence.words) + 2 for sentence in training.corpus()[1][:20]]
    assert found.even == pytest.approx(sum(n * (n - 1) / 4 for n in lengths) / sum(lengths), rel=1e-5)
    assert found.trained.mean().item() == pytest.approx(found.even, rel=0.15)


def test_film_fall_and_rise_by_hand():
    fall, rise = entropy_training.fall_and_rise(torch.tensor([[0.9, 1.0], [0.3, 0.8], [0.5, 0.6]], dtype=FILM_DTYPE))
    assert fall.tolist() == pytest.approx([0.4, 0.4]) and rise.tolist() == pytest.approx([0.2, 0.0])


def test_film_entropy_curve_ends_with_the_finished_model():
    recipe = training.Recipe("film_test", "masked word", 2, 1, 3, d_model=8)
    trained = training.untrained(recipe, training_film.MultiHeadAttention)
    trained.recipe, trained.history = recipe, training.History([3, 2, 1], [0, 1, 2], [[[0.9, 0.8]]] * 3)
    steps, entropy = entropy_training.entropy_curve(trained)
    now = training.head_entropy(trained.model, training.corpus()[1][:64], "masked word")
    assert steps == [0, 1, 2, 3] and entropy.shape == (4, 1, 2)
    assert entropy[-1].tolist() == [pytest.approx(now[0])] and entropy[0, 0].tolist() == pytest.approx([0.9, 0.8])


def test_film_steps_of_frames_grow_by_about_the_same_factor():
    steps = training_film.frame_steps(600, 40)
    assert steps[0] == 0 and steps[-1] == 600 and len(steps) == len(set(steps)) <= 40
    late = [(b + 1) / (a + 1) for a, b in itertools.pairwise(steps) if a > 30]
    assert max(late) / min(late) < 1.05
    assert training_film.frame_steps(1, 5) == [0, 1]


def test_film_step_at_share_is_counted_from_the_baseline():
    steps, scores = [0, 2, 4, 8], [0.1, 0.4, 0.8, 1.0]
    assert [training_film.step_at_share(steps, scores, 0.1, share) for share in (0, 0.25, 0.75, 1)] == [0, 2, 4, 8]
    assert training_film.step_at_share(steps, scores, 0.6, 0.5) == 4  # half of the way from 0.6 to 1


def test_film_roles_need_a_margin_over_the_baseline_and_share_a_head():
    base = {"determiner-noun": 0.5, "verb-subject": 0.6, "verb-place": 0.4}
    best = {
        "determiner-noun": film_score(0.66, 0, 1), "verb-subject": film_score(0.74, 1, 0),
        "verb-place": film_score(0.9, 0, 1),
    }  # fmt: skip
    assert training_film.roles(best, base) == {(0, 1): "determiner-noun, verb-place"}


def test_film_baseline_is_the_better_of_offset_and_untrained_head():
    film = film_rigged([0.5, 0.9])
    offsets = {"determiner-noun": 0.7, "verb-subject": 0.2, "verb-place": 0.5}
    base = training_film.baselines(film, offsets)
    assert base == {"determiner-noun": 0.7, "verb-subject": 0.5, "verb-place": 0.5}


def test_film_headline_names_the_step_or_boasts_of_nothing():
    base = dict.fromkeys(training_film.CORE_RELATIONS, 0.3)
    assert "verb-place 4" in training_film.headline(film_rigged([0.2, 0.5, 0.7, 0.9]), base)
    assert "no head has a role" in training_film.headline(film_rigged([0.2, 0.3, 0.4, 0.4]), base)


class FilmRiggedModel(torch.nn.Module):
    """Attends evenly but for a share `sure` that goes from the verb's position to the subject's, as told."""

    def __init__(self, gold, sure):
        super().__init__()
        self.gold, self.sure = gold, sure
        self.register_buffer("positions", torch.zeros(1))

    def forward(self, tokens, mask=None):
        size = tokens.size(1)
        visible = torch.ones(len(tokens), 1, size, size, dtype=torch.bool) if mask is None else mask
        even = distance3.even_weights(visible.expand(len(tokens), 1, size, size))
        told = even.clone()
        if len(tokens) > 1:
            for n, (verb, subject) in enumerate(self.gold):
                told[n, 0, verb] = torch.eye(size)[subject]
        blend = self.sure * told + (1 - self.sure) * even
        blend[..., 0] += 1e-3  # without a choice of its own, the first word wins
        return None, [blend / blend.sum(-1, keepdim=True)]


def test_film_role_score_rises_on_a_rigged_model():
    sentences = training.corpus()[1][:30]
    gold = [sentence.relations["verb-subject"][0] for sentence in sentences]
    film = training_film.Film()
    for step, sure in enumerate((0.0, 1.0)):
        training_film.look(film, FilmRiggedModel(gold, sure), step, ["the", "cat", "sat"], 30)
    before, after = film.scores("verb-subject")
    assert after == 1.0 and before < 0.7
    assert film.entropy[0][0, 0] > 0.99 and film.entropy[1][0, 0] < film.entropy[0][0, 0] - 0.05
    assert [tuple(w.shape) for w in film.weights] == [(1, 1, 3, 3)] * 2 and film.steps == [0, 1]


def test_film_shoot_looks_when_told_and_is_the_same_twice():
    recipe = training.Recipe("film_test", "masked word", 2, 1, 3, d_model=8, seed=5)
    one, two = (training_film.shoot(recipe, ["the", "cat"], {0, 2}, 4) for _ in range(2))
    assert one.steps == [0, 2, 3] and len(one.loss) == 3 and one.loss == two.loss
    assert all(torch.equal(a, b) for a, b in zip(one.weights, two.weights, strict=True))
    assert not torch.equal(one.weights[0], one.weights[-1])
    untrained = training.new_model(recipe, training_film.MultiHeadAttention)
    with torch.no_grad():
        expected = untrained(torch.tensor([training_film.encode(["the", "cat"])]))[1][0]
    assert torch.equal(one.weights[0], expected)


def test_film_frames_have_one_size_change_and_become_a_gif_that_holds_the_last(tmp_path):
    film = film_rigged([0.2, 0.5, 0.7, 0.9])
    base = dict.fromkeys(training_film.CORE_RELATIONS, 0.3)
    stage = training_film.Stage(film, ["the", "cat", "sat"], base, "title", "note")
    frames = training_film.frames_of(stage, [0, 1, 3])
    assert {frame.shape for frame in frames} == {(*frames[0].shape[:2], 3)} and frames[0].shape[1] == 900
    assert not np.array_equal(frames[0], frames[1]) and not np.array_equal(frames[1], frames[2])
    assert np.array_equal(frames[0], training_film.frames_of(stage, [0, 3])[0])  # nothing of a later frame stays
    path = save_animation(frames + frames[-1:] * 4, tmp_path / "film.gif", caption="c", seconds_per_frame=0.2)
    with Image.open(path) as image:
        assert image.n_frames == 3
        image.seek(2)
        assert image.info["duration"] == 1000
    assert path.stat().st_size < 200_000


def test_film_offsets_are_those_of_the_same_sentences():
    offsets = offset_baselines(training.corpus()[1][:100])
    assert set(training_film.CORE_RELATIONS) < set(offsets) and max(offsets.values()) <= 1


# ------------------------------------------------------------------------------------------ phase 3: a pretrained model


PRETRAINED_EXTRA = "needs the optional extra: pip install -e '.[pretrained]'"


@pytest.fixture(scope="module")
def minilm():
    pytest.importorskip("transformers", reason=PRETRAINED_EXTRA)
    if not language_model.available():
        pytest.skip(PRETRAINED_EXTRA)
    return language_model.load()


def tiny_pretrained_gpt2(folder):
    """A random two-layer decoder, saved with a tokenizer of eight words, as somebody else's model folder would be."""
    transformers = pytest.importorskip("transformers", reason=PRETRAINED_EXTRA)
    tokenizers = pytest.importorskip("tokenizers", reason=PRETRAINED_EXTRA)
    words = {word: i for i, word in enumerate(["<unk>", "<end>", "the", "cat", "sat", "on", "a", "mat"])}
    raw = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    raw.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="<unk>", eos_token="<end>")
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=8, n_positions=13, n_embd=15, n_layer=2, n_head=3)
    model = transformers.GPT2Model(config)
    for parameter in model.parameters():  # large enough that heads choose, biases not 0
        torch.nn.init.normal_(parameter, std=0.4)
    model.save_pretrained(folder)


def test_pretrained_parity_in_every_layer_of_a_padded_batch(minilm):
    texts = ["Words of unequal number.", "One.", "A third sentence, which is the longest of them all, unsurprisingly."]
    double = pretrained_parity.in_float64(minilm)
    reading = language_model.read(double, texts)
    assert len({len(tokens) for tokens in reading.tokens}) == 3 and not reading.real.all()
    largest = pretrained_parity.differences(double, reading)
    assert len(largest) == minilm.model.config.num_hidden_layers
    assert max(max(pair) for pair in largest) < 1e-11
    single = language_model.read(minilm, texts)
    for layer, x, theirs in zip(
        pretrained_parity.rebuilt_layers(minilm), single.states[:-1], single.states[1:], strict=True
    ):
        ours, _ = layer(x, single.real[:, None, None, :])  # each layer on the model's own input: nothing adds up
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)
    unpadded = reading.real.clone()
    reading.real[:] = True  # the comparison must notice a forgotten padding mask
    assert max(max(pair) for pair in pretrained_parity.differences(double, reading)) > 1e-3
    assert not unpadded.all()


def test_pretrained_decoder_parity_and_padding(tmp_path):
    tiny_pretrained_gpt2(tmp_path)
    model = pretrained_parity.in_float64(language_model.load(str(tmp_path)))
    reading = language_model.read(model, ["the cat sat on a mat", "a cat sat"])
    assert max(max(pair) for pair in pretrained_parity.differences(model, reading)) < 1e-12
    assert not reading.weights.triu(1).any() and reading.real.sum(dim=1).tolist() == [6, 3]
    assert not language_model.real_mask(reading).triu(1).any()
    with pytest.raises(ValueError, match=r"\[CLS\] is missing"):
        hub_or_no_op.measure(model, reading)


def test_pretrained_unknown_family_is_refused_by_name():
    model = torch.nn.Linear(2, 2)
    model.config = type("Config", (), {"num_attention_heads": 1})()
    with pytest.raises(ValueError, match="got Linear"):
        pretrained_parity.rebuilt_layers(language_model.LanguageModel(model, None, "linear"))


@pytest.mark.parametrize("script", [language_model, pretrained, pretrained_parity, coreference, hub_or_no_op])
def test_pretrained_missing_extra_is_one_line(script, monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "transformers", None)  # what an import of a missing library meets
    language_model.load.cache_clear()
    with pytest.raises(SystemExit) as stop:
        script.main(["--output-dir", str(tmp_path)])
    error = capsys.readouterr().err
    assert stop.value.code == 2 and error.count("\n") == 1 and language_model.INSTALL in error


def test_pretrained_missing_or_empty_folder_is_one_line(capsys, tmp_path):
    pytest.importorskip("transformers", reason=PRETRAINED_EXTRA)
    (tmp_path / "empty").mkdir()
    for name in ("none", "empty"):
        with pytest.raises(SystemExit) as stop:
            pretrained.main(["--output-dir", str(tmp_path), "--model", str(tmp_path / name)])
        error = capsys.readouterr().err
        assert stop.value.code == 2 and error.count("\n") == 1 and language_model.INSTALL in error and name in error


def test_minimal_pairs_differ_in_one_word_and_name_their_nouns():
    assert len(minimal_pairs.PAIRS) >= 30 and len(set(minimal_pairs.sentences())) == 2 * len(minimal_pairs.PAIRS)
    for pair in minimal_pairs.PAIRS:
        first, second = (pair.sentence(member).split() for member in (0, 1))
        assert sum(a != b for a, b in zip(first, second, strict=True)) == 1
        assert first.count("it") == 1 and all(first.count(noun) == 1 for noun in pair.nouns)
        assert first.index(pair.nouns[0]) < first.index(pair.nouns[1]) < first.index("it")


def test_coreference_counts_pairs_and_holds_out():
    weights = torch.zeros(6, 2, 1, 3, 2)  # (pairs, member, L, H, noun)
    weights[..., 0, 0] = 1.0  # head 0 always prefers the first noun
    weights[:, 0, 0, 1, 0] = weights[:, 1, 0, 1, 1] = 0.6  # head 1 follows the meaning
    weights[:3, 0, 0, 2, 0] = weights[:3, 1, 0, 2, 1] = 0.6  # head 2 follows it in half of the pairs, else ties
    correct = coreference.right(weights)
    assert correct.double().mean(dim=(0, 1)).tolist() == [[0.5, 1.0, 0.5]]
    assert correct.all(dim=1).double().mean(dim=0).tolist() == [[0.0, 1.0, 0.5]]
    test = coreference.choose_and_test(correct[:, :, :, [0, 2]], slice(0, 3), slice(3, 6))
    assert (test.layer, test.head, test.chosen_on, test.held_out) == (0, 1, 1.0, 0.0)


def test_coreference_reads_the_weights_of_it(minilm):
    pairs = (
        minimal_pairs.FAMOUS,
        minimal_pairs.pair("The elephant saw the cat but it was _", "elephant cat", "old new"),
    )
    found = coreference.weights_of_it(minilm, pairs)
    alone = language_model.read(minilm, [minimal_pairs.FAMOUS.sentence(1)])
    it, animal, street = (alone.tokens[0].index(word) for word in ("it", "animal", "street"))
    expected = alone.weights[0, :, :, it, [animal, street]]
    torch.testing.assert_close(found[0, 1], expected, atol=1e-5, rtol=0)
    with pytest.raises(ValueError, match="exactly once"):
        coreference.weights_of_it(minilm, (minimal_pairs.pair("The dog bit the dog but it was _", "dog dog", "x y"),))


def test_hub_lengths_equal_a_loop(minilm):
    reading = language_model.read(minilm, ["A cat sat.", "Here is a longer sentence."])
    found = hub_or_no_op.lengths(minilm, reading)
    b, layer, head, token, size = 1, 3, 7, 4, 32  # MiniLM: 12 heads of 32
    theirs = minilm.model.encoder.layer[layer].attention
    rows = slice(head * size, (head + 1) * size)
    value = (theirs.self.value.weight @ reading.states[layer, b, token] + theirs.self.value.bias)[rows]
    expected = (theirs.output.dense.weight[:, rows] @ value).norm()
    torch.testing.assert_close(found[b, layer, head, token], expected)


def test_pretrained_script_in_any_words(minilm, tmp_path, capsys):
    words = ["--text", "Quixotic zebras!", "--layer", "2", "--head", "4"]
    pretrained.main(["--quick", "--output-dir", str(tmp_path), *words])
    out = capsys.readouterr().out
    assert "layer 2" in out and "entropy" in out
    record = json.loads(next(tmp_path.glob("data/processed/findings/*pretrained.json")).read_text())
    assert record[0]["id"] == "pretrained-positional"
    assert len(list(tmp_path.glob("visualizations/plots/phase3/pretrained_*.png"))) == 2


# -------------------------------------------------------------------------------------------------- phase 3: head roles


ROLE_LENGTHS = (2, 3, 7, 11)


def perfect_head(kind: str, length: int, width: int) -> Tensor:
    """(T, T) with T = width, the first `length` rows real; rows without the key look at themselves."""
    weights = torch.zeros(width, width, dtype=torch.float64)
    for i in range(width):
        if kind == "even":
            weights[i, :length] = 1 / length
        else:
            j = {"self": i, "previous": i - 1, "next": i + 1, "first": 0}[kind]
            weights[i, j if 0 <= j < length else i] = 1
    return weights


def role_mask(lengths: list[int], width: int) -> Tensor:
    keys = padding_mask(torch.tensor(lengths), width)
    return keys & keys.mT


@pytest.mark.parametrize("kind", ["self", "previous", "next", "first"])
@pytest.mark.parametrize("padding", [0, 3])
def test_perfect_heads_score_exactly_one_at_every_length(kind, padding):
    for length in ROLE_LENGTHS:
        width = length + padding
        weights = perfect_head(kind, length, width)[None, None]
        statistics = head_statistics.head_statistics(weights, role_mask([length], width))
        assert statistics[kind].item() == 1
        share = (
            head_statistics.first_share(weights, role_mask([length], width))
            if kind == "first"
            else head_statistics.offset_share(weights, role_mask([length], width), head_statistics.OFFSETS[kind])
        )
        assert share.item() == 1
        assert statistics["entropy"].item() == 0 and statistics["effective context"].item() == 1
        for other in {"self": ("previous", "next", "first"), "previous": ("next",), "next": ("previous", "first")}.get(
            kind, ("next",)
        ):
            assert statistics[other].item() == 0


def test_even_head_spreads_over_all_real_words_whatever_the_padding():
    for length in ROLE_LENGTHS:
        for width in (length, length + 2):
            weights = perfect_head("even", length, width)[None, None]
            statistics = head_statistics.head_statistics(weights, role_mask([length], width))
            for name in ("self", "previous", "next", "first", "largest weight"):
                torch.testing.assert_close(statistics[name].item(), 1 / length)
            torch.testing.assert_close(statistics["normalised entropy"].item(), 1.0)
            torch.testing.assert_close(statistics["effective context"].item(), float(length))
            torch.testing.assert_close(statistics["distance"].item(), (length**2 - 1) / (3 * length))


def test_sink_score_is_the_share_of_sentences_above_the_threshold():
    sink, even = perfect_head("first", 5, 7), perfect_head("even", 7, 7)
    weights = torch.stack([sink, even])[:, None]
    assert head_statistics.sink_score(weights, role_mask([5, 7], 7)).item() == 0.5


def test_statistics_match_loops_and_keep_heads_apart():
    torch.manual_seed(0)
    lengths, width = [3, 7, 5], 7
    mask = role_mask(lengths, width)
    weights = torch.randn(3, 2, width, width, dtype=torch.float64)
    weights = weights.masked_fill(~padding_mask(torch.tensor(lengths), width), -torch.inf).softmax(dim=-1)
    found = head_statistics.head_statistics(weights, mask)
    gold = torch.zeros(3, width, width, dtype=torch.bool)
    gold[0, 2, 0] = gold[1, 4, 6] = gold[1, 4, 1] = True
    for h in range(2):
        previous = [weights[n, h, i, i - 1] for n in range(3) for i in range(1, lengths[n])]
        following = [weights[n, h, i, i + 1] for n in range(3) for i in range(lengths[n] - 1)]
        first = [weights[n, h, i, 0] for n in range(3) for i in range(1, lengths[n])]
        for name, values in (("previous", previous), ("next", following), ("first", first)):
            torch.testing.assert_close(found[name][h], torch.stack(values).mean())
        right = [weights[n, h, i].argmax() == i - 1 for n in range(3) for i in range(1, lengths[n])]
        torch.testing.assert_close(
            head_statistics.offset_share(weights, mask, -1)[h], torch.stack(right).double().mean()
        )
        on_gold = (weights[0, h, 2, 0] + weights[1, h, 4, 6] + weights[1, h, 4, 1]) / 2
        torch.testing.assert_close(head_statistics.relation_weight(weights, gold)[h], on_gold)


def test_causal_heads_have_no_next_word_and_the_first_row_does_not_count():
    mask = role_mask([5], 5).tril()
    weights = perfect_head("previous", 5, 5)[None, None]
    statistics = head_statistics.head_statistics(weights, mask)
    assert statistics["next"].isnan() and statistics["previous"].item() == 1
    assert statistics["first"].item() == 0.25  # row 1 of rows 1 to 4


def test_statistics_refuse_an_additive_mask_and_a_missing_axis():
    with pytest.raises(ValueError, match="bool mask"):
        head_statistics.head_statistics(torch.ones(1, 2, 3, 3) / 3, torch.zeros(1, 1, 3, 3))
    with pytest.raises(ValueError, match="unsqueeze"):
        head_statistics.sink_score(torch.ones(2, 3, 3) / 3, torch.ones(1, 1, 3, 3, dtype=torch.bool))


def role_scores(previous: float, first: float, subject: float) -> pattern_scores.Scores:
    one = lambda value: torch.tensor([[value]], dtype=torch.float64)  # noqa: E731
    return pattern_scores.Scores(
        {-1: one(previous), 0: one(0.0)}, one(first), {("verb-subject", "backward"): one(subject)},
        {"normalised entropy": one(0.5), "largest weight": one(0.85)},
    )  # fmt: skip


def test_a_head_is_named_only_above_the_published_margins():
    key = ("verb-subject", "backward")
    base = pattern_scores.Baselines({key: 0.5}, {key: 0.3, -1: 0.2, 0: 0.2, "first": 0.2}, {})
    assert pattern_scores.name(role_scores(0.91, 0, 1), base, 0, 0) == "previous"
    assert pattern_scores.name(role_scores(0.89, 0, 0.61), base, 0, 0) == "subject → verb"
    assert pattern_scores.name(role_scores(0.89, 0, 0.59), base, 0, 0) == pattern_scores.NO_NAME
    assert pattern_scores.name(role_scores(0.5, 0.95, 0.4), base, 0, 0) == "first word"
    high = pattern_scores.Baselines({key: 0.5}, {key: 0.7, -1: 0.2, 0: 0.2, "first": 0.2}, {})
    assert pattern_scores.name(role_scores(0.1, 0, 0.75), high, 0, 0) == pattern_scores.NO_NAME
    assert pattern_scores.spread(role_scores(0, 0, 0), 0, 0) == "focused"


@pytest.mark.parametrize(("follows", "expected"), [("gold", (1.0, 0.0)), ("neighbour", (0.0, 1.0))])
def test_a_head_is_asked_where_its_neighbour_and_its_relation_differ(monkeypatch, follows, expected):
    """Heads made by hand: determiner to noun, and always the next word; the noun is often further off."""
    sentences = training.corpus()[1][:60]
    length = max(len(sentence.words) for sentence in sentences)
    gold = grammar_scores.gold_matrices(sentences, length)["determiner-noun"].double()
    following = torch.eye(length).roll(1, dims=1).double().expand_as(gold)
    rows = gold.any(dim=-1, keepdim=True)
    weights = torch.where(rows & torch.tensor(follows == "gold"), gold, following)[:, None]  # (N, 1, T, T)
    monkeypatch.setattr(head_roles, "attention_on", lambda *_: ([weights], None))
    scores = types.SimpleNamespace(
        offset={1: torch.ones(1, 1)},
        first=torch.ones(1, 1),
        relation={
            (r, d): torch.tensor([[float(r == "determiner-noun")]])
            for r in RELATIONS
            for d in pattern_scores.DIRECTIONS
        },
    )
    trained = types.SimpleNamespace(model=None, recipe=types.SimpleNamespace(objective="masked word"))
    name, on_gold, on_neighbour = head_roles.neighbour_or_gold(trained, scores, sentences, 1)
    assert name == "0.0, determiner → noun" and (on_gold, on_neighbour) == expected


def test_assignment_finds_permuted_heads_and_is_the_best_of_all_permutations():
    from itertools import permutations

    torch.manual_seed(1)
    profile = torch.rand(5, 10, dtype=torch.float64)
    order = [3, 0, 4, 1, 2]
    by_index, assigned = role_stability.compare(profile, profile[order])
    assert assigned == pytest.approx(1) and by_index < 0.9
    similarity = torch.rand(5, 5, dtype=torch.float64)
    best = max(permutations(range(5)), key=lambda p: sum(similarity[i, j].item() for i, j in enumerate(p)))
    assert role_stability.assign(similarity) == list(best)


# --------------------------------------------------------------------------------- phase 3: rollout, flow, faithfulness


def rollout_layers(count=2, heads=3, length=4, *, causal=False, seed=0):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(count, heads, length, length, generator=generator, dtype=torch.float64)
    if causal:
        scores = scores.masked_fill(~causal_mask(length), -math.inf)
    return list(scores.softmax(dim=-1))


def test_combined_weights_worked_by_hand():
    layers = [torch.tensor([[[1, 0, 0], [0.5, 0.5, 0], [0, 1, 0]]], dtype=torch.float64)] * 2
    close(rollout.raw_product(layers)[2], torch.tensor([0.5, 0.5, 0]).double())
    close(attention_rollout(layers)[2], torch.tensor([1 / 8, 5 / 8, 1 / 4]).double())
    # to word 0 only 1/4 fits from word 1 on; to word 1 half straight down, half through its own pipe; to 2 its own half
    close(rollout.maximum_flow(layers)[2], torch.tensor([1 / 4, 1, 1 / 2]).double() / (7 / 4))
    even = rollout.even_causal_rollout(3, 2)[2]
    expected = torch.tensor([1 / 8, 5 / 8, 1 / 4]).double() / even
    close(rollout.causal_rollout(layers)[2], expected / expected.sum())


def cheapest_cut(layers, output, word):
    """The flow from an output to a word by the other side of the theorem: the narrowest cut, all cuts tried."""
    length = layers[0].size(-1)
    nodes = [(level, i) for level in range(len(layers) + 1) for i in range(length)]
    source, sink = (len(layers), output), (0, word)
    inner = [node for node in nodes if node not in (source, sink)]
    best = math.inf
    for chosen in itertools.product((False, True), repeat=len(inner)):
        side = {source, *itertools.compress(inner, chosen)}
        width = sum(
            ((layers[level - 1].mean(dim=0) + torch.eye(length)) / 2)[i, j].item()
            for level, i in side
            if level > 0
            for j in range(length)
            if (level - 1, j) not in side
        )
        best = min(best, width)
    return best


def test_flow_is_the_narrowest_cut():
    layers = rollout_layers(2, 2, 3)
    raw = torch.tensor([[cheapest_cut(layers, i, j) for j in range(3)] for i in range(3)], dtype=torch.float64)
    close(rollout.maximum_flow(layers), raw / raw.sum(dim=-1, keepdim=True), rtol=0, atol=1e-9)
    close(rollout.maximum_flow(layers, [2]), rollout.maximum_flow(layers)[2:], rtol=0, atol=1e-12)


def test_rows_of_combined_weights_sum_to_one_and_the_product_is_a_loop():
    layers = rollout_layers(3, 2, 5)
    product = torch.eye(5).double()
    for layer in layers:
        product = layer.mean(dim=0) @ product
    close(rollout.raw_product(layers), product)
    for combined in (rollout.raw_product(layers), attention_rollout(layers), rollout.maximum_flow(layers)):
        close(combined.sum(dim=-1), torch.ones(5).double())


@pytest.mark.parametrize("length", [2, 5, 16])
def test_corrected_rollout_blames_nobody_for_even_causal_attention(length):
    visible = causal_mask(length).double()
    even = [(visible / visible.sum(dim=-1, keepdim=True))[None]] * 8
    corrected = rollout.causal_rollout(even)
    close(corrected, visible / visible.sum(dim=-1, keepdim=True))
    if length == 16:
        assert attention_rollout(even)[-1, 0] > 0.5 > corrected[-1, 0] * 8 - 1e-12


def test_corrected_rollout_is_for_causal_weights_alone():
    corrected = rollout.causal_rollout(rollout_layers(3, 2, 5, causal=True))
    close(corrected.sum(dim=-1), torch.ones(5).double())
    with pytest.raises(ValueError, match="later positions; use attention_rollout"):
        rollout.causal_rollout(rollout_layers())
    with pytest.raises(ValueError, match="at least one layer"):
        rollout.raw_product([])
    with pytest.raises(ValueError, match="pick one item of a batch"):
        rollout.maximum_flow([torch.ones(1, 1, 3, 3)])


ROLLOUT_SENTENCE = Sentence(
    ("these", "cats", "sat", "on", "the", "mat"),
    {
        "determiner-noun": ((0, 1), (4, 5)),
        "verb-subject": ((2, 1),),
        "verb-place": ((2, 5),),
        "adjective-noun": (),
    },
)


def test_words_that_matter_by_hand():
    related = [leave_one_out.related_words(ROLLOUT_SENTENCE, hidden) for hidden in (0, 1, 5)]
    assert related == [frozenset({1}), frozenset({0, 2}), frozenset({2})]  # "the" says nothing about "mat"
    hidden = [leave_one_out.make_case(ROLLOUT_SENTENCE, kind).hidden for kind in range(4)]
    assert hidden == [0, 1, 5, 5]  # "the" is not hidden, its noun is
    case = leave_one_out.make_case(ROLLOUT_SENTENCE, 1)
    assert case.chance == 2 / 5 and case.others == [0, 2, 3, 4, 5]


def test_rise_of_a_perfect_reader_by_hand():
    words = ROLLOUT_SENTENCE.words
    # "cats" between "these" and "sat": three plural animals; without "these" singular ones fit as well, and "a", "this"
    # and so on are as likely in all as the plural determiners: half of the probability is plural
    assert hidden_word_distribution(words, 1)[INDEX["cats"]] == pytest.approx(1 / 3)
    assert leave_one_out.grammar_rise(words, 1, 0) == pytest.approx(math.log(2))
    assert leave_one_out.grammar_rise(words, 1, 4) == pytest.approx(0)
    assert leave_one_out.grammar_rise(words, 1, 1) == 0


def rollout_model():
    torch.manual_seed(0)
    return ToyTransformer(15, 3, 2, make_attention=MultiHeadAttention).double().eval()


def test_leave_one_out_and_gradients_are_their_definitions():
    model, case = rollout_model(), leave_one_out.make_case(ROLLOUT_SENTENCE, 1)

    def loss(*masked):
        logits, _ = model(torch.tensor([leave_one_out.hide(case.words, 1, *masked)]))
        return -logits[0, 1].log_softmax(dim=-1)[INDEX["cats"]].item()

    expected = torch.tensor([loss(j) - loss() for j in range(6)], dtype=torch.float64)
    close(leave_one_out.leave_one_out(model, case), expected, rtol=0, atol=1e-12)
    assert expected[1] == 0 and expected[[0, 2, 3, 4, 5]].abs().min() > 0
    lengths, products = leave_one_out.gradients(model, case)
    step, position = 1e-6, 2
    embedded = model.embedding.weight[INDEX["sat"]].detach()

    def moved(amount):
        """The loss when the embedding of "sat", at its place alone, is stretched by 1 + amount."""
        hook = model.embedding.register_forward_hook(
            lambda module, inputs, output: output.index_add(
                1, torch.tensor([position]), (amount * embedded)[None, None]
            )
        )
        try:
            return loss()
        finally:
            hook.remove()

    assert products[position] == pytest.approx(abs(moved(step) - moved(-step)) / (2 * step), rel=1e-4)
    assert lengths.shape == (6,) and bool((lengths > 0).all())


def test_norms_of_the_last_layer_add_up_to_its_output():
    model, case = rollout_model(), leave_one_out.make_case(ROLLOUT_SENTENCE, 1)
    tokens = torch.tensor([leave_one_out.hide(case.words, 1)])
    found = leave_one_out.last_layer_norms(model, tokens, 1)
    x = model.blocks[0](model.embed(tokens))[0]
    attention, read = model.blocks[1].attention, model.blocks[1].attention_norm(x)
    _, weights = attention(read)
    for j in range(6):
        added = torch.zeros(15).double()
        for head in range(3):
            rows = slice(5 * head, 5 * head + 5)
            value = attention.w_v.weight[rows] @ read[0, j] + attention.w_v.bias[rows]
            added += weights[0, head, 1, j] * (attention.w_o.weight[:, rows] @ value)
        assert found[j].item() == pytest.approx(added.norm().item(), abs=1e-12)


def test_finding_shares_ties_and_ignores_the_hidden_word():
    case = leave_one_out.make_case(ROLLOUT_SENTENCE, 1)  # 0 and 2 matter
    assert faithfulness.finds(torch.tensor([0.5, 9, 0.1, 0, 0, 0]), case) == 1
    assert faithfulness.finds(torch.tensor([0.5, 9, 0.1, 0.5, 0, 0]), case) == 0.5
    assert faithfulness.finds(torch.tensor([0, 9, 0.1, 0.5, 0, 0]), case) == 0


def test_chance_band_and_a_scoreboard_of_leave_one_out_itself():
    cases = leave_one_out.make_cases(training.corpus()[1][:12])
    band = faithfulness.chance_band(cases, torch.Generator().manual_seed(0))
    assert 0 < band < 0.4
    board = faithfulness.score_methods(rollout_model(), cases, torch.Generator().manual_seed(0))
    assert board.agreement[faithfulness.TRUTH] == pytest.approx(1)
    assert board.chance == pytest.approx(sum(case.chance for case in cases) / len(cases))


# ----------------------------------------------------------------------------------------- phase 3: what matters, again


class RiggedReader(nn.Module):
    """Knows the hidden word for certain while the word at one position is to be seen, and else nothing."""

    def __init__(self, position, answer):
        super().__init__()
        self.position, self.answer = position, answer
        self.register_buffer("positions", torch.zeros(1))

    def forward(self, tokens):
        logits = torch.zeros(*tokens.shape, len(VOCABULARY), dtype=torch.float64)
        seen = tokens[:, self.position] != leave_one_out.MASK_ID
        logits[seen, :, self.answer] = 50.0
        return logits, []


@pytest.mark.parametrize("position", [0, 2, 5])
def test_leave_one_out_finds_the_only_word_that_a_rigged_model_reads(position):
    words = ("these", "cats", "sat", "on", "the", "mat")
    case = leave_one_out.Case(words, 1, frozenset({position}))
    rises = leave_one_out.leave_one_out(RiggedReader(position, INDEX["cats"]), case)
    expected = torch.zeros(6, dtype=torch.float64)
    expected[position] = torch.tensor(len(VOCABULARY), dtype=torch.float64).log()  # from certain to an even guess
    torch.testing.assert_close(rises, expected, rtol=0, atol=1e-9)


def rollout_words_that_fit(case):
    """The words that may stand at the hidden position, from the words that matter alone."""
    known = [case.words[j] for j in case.relevant]
    noun_pairs = [pair for pairs in (*SUBJECTS.values(), *PLACES.values()) for pair in pairs]
    if case.words[case.hidden] in SINGULAR_DETERMINERS + PLURAL_DETERMINERS:
        plural = known[0] in [pair[1] for pair in noun_pairs]
        return set((PLURAL_DETERMINERS if plural else SINGULAR_DETERMINERS) + EITHER_DETERMINERS)
    (verb,) = [word for word in known if word in VERBS]
    subject, _, place = VERBS[verb]
    pairs = SUBJECTS[subject] if case.hidden < case.words.index(verb) else PLACES[place]
    determiners = [word for word in known if word != verb]
    numbers = [int(determiners[0] in PLURAL_DETERMINERS)] if determiners else [0, 1]
    return {pair[number] for pair in pairs for number in numbers}


def test_words_that_matter_say_all_that_the_sentence_says():
    for case in leave_one_out.make_cases(training.corpus()[1][:40]):
        exact = hidden_word_distribution(case.words, case.hidden)
        assert {VOCABULARY[i] for i in exact.nonzero().flatten().tolist()} == rollout_words_that_fit(case)
        assert exact[exact > 0].max() == pytest.approx(exact[exact > 0].min().item())  # all alike: nothing else counts


def test_a_planted_word_is_found_only_after_the_causal_correction():
    weights = planted_weights(7, torch.Generator().manual_seed(3))
    assert len(weights) == CAUSAL_LAYERS and weights[0].shape == (1, TOKENS, TOKENS)
    assert int(causal_rollout(weights)[-1].argmax()) == 7
    assert int(attention_rollout(weights)[-1].argmax()) == 0


# ---------------------------------------------------------------------------------------- phase 4: cache and generation


def generation_model(layers=2, seed=0):
    torch.manual_seed(seed)
    model = ToyTransformer(32, 2, layers, make_attention=CausalSelfAttention).double().eval()
    torch.nn.init.normal_(model.embedding.weight)  # so that the untrained model has opinions
    return model


def generation_tokens(batch=2, length=11):
    return torch.randint(4, len(VOCABULARY), (batch, length), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("chunks", [[1] * 11, [11], [7, 1, 1, 1, 1], [3, 5, 3], [2, 2, 7]])
def test_cache_in_chunks_of_any_size_gives_the_logits_and_weights_of_one_pass(chunks):
    model, tokens = generation_model(3), generation_tokens()
    with torch.no_grad():
        whole, layers = model(tokens)
    caches = new_caches(model, 11, batch=2)
    end = 0
    for part in tokens.split(chunks, dim=1):
        logits, weights = next_logits(model, part, caches)
        start, end = end, end + part.size(1)
        torch.testing.assert_close(logits, whole[:, start:end], rtol=0, atol=1e-10)
        for ours, theirs in zip(weights, layers, strict=True):
            torch.testing.assert_close(ours, theirs[:, :, start:end, :end], rtol=0, atol=1e-10)
        assert [cache.length for cache in caches] == [end] * 3


def test_cache_takes_a_padding_mask_over_all_keys():
    torch.manual_seed(1)
    attention = CausalSelfAttention(33, 3).double()
    x, mask = torch.randn(2, 7, 33, dtype=torch.float64), padding_mask(torch.tensor([4, 7]), 7)
    cache = KeyValueCache(2, 3, 13, 11, dtype=torch.float64)
    with torch.no_grad():
        expected = attention(x, mask)
        attention(x[:, :5], mask[..., :5], cache)
        output, weights = attention(x[:, 5:], mask, cache)
    torch.testing.assert_close(output, expected[0][:, 5:], rtol=0, atol=1e-12)
    assert weights[0, :, :, 4:].eq(0).all() and weights.shape == (2, 3, 2, 7)


def test_cache_overflow_and_wrong_shapes_are_refused_and_store_nothing():
    cache = KeyValueCache(1, 2, 5, 3)
    new = torch.ones(1, 2, 3, 3)
    keys, _ = cache.append(new, new)
    assert keys.data_ptr() == cache.keys.data_ptr() and cache.num_bytes == 2 * 2 * 5 * 3 * 4
    with pytest.raises(ValueError, match=r"room for 5 positions: got 6 \(3 there, 3 new\)"):
        cache.append(new, new)
    with pytest.raises(ValueError, match=r"key of shape \(1, 2, T_new, 3\): got \(1, 2, 3, 7\)"):
        cache.append(torch.ones(1, 2, 3, 7), new)
    with pytest.raises(ValueError, match="same length: got 1 and 2"):
        cache.append(new[:, :, :1], new[:, :, :2])
    with pytest.raises(ValueError, match="not for training"):
        cache.append(new[:, :, :1].clone().requires_grad_(), new[:, :, :1])
    assert cache.length == 3 and cache.keys[:, :, 3:].eq(0).all()
    with pytest.raises(ValueError, match="max_length=0"):
        KeyValueCache(1, 2, 0, 3)
    model = generation_model()
    with pytest.raises(ValueError, match="34 positions: got max_length=35"):
        new_caches(model, 35)
    caches = new_caches(model, 3)
    with pytest.raises(ValueError, match="room for 3 positions: got 4"):
        next_logits(model, generation_tokens(1, 4), caches)


def generation_oracle(logits, temperature, top_k, top_p):
    """Temperature, top-k, top-p for one row of logits, in plain loops."""
    weights = [math.exp(value / temperature) for value in logits]
    ranked = sorted(range(len(weights)), key=lambda i: -weights[i])[:top_k]
    total = sum(weights[i] for i in ranked)
    kept, reached = [], 0.0
    for i in ranked:
        kept.append(i)
        reached += weights[i] / total
        if reached >= top_p:
            break
    total = sum(weights[i] for i in kept)
    return [weights[i] / total if i in kept else 0.0 for i in range(len(weights))]


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
@pytest.mark.parametrize("top_k", [None, 1, 5, 200])
@pytest.mark.parametrize("top_p", [None, 0.1, 0.6, 0.95])
def test_sampling_is_the_plain_loop(temperature, top_k, top_p):
    logits = torch.randn(3, 17, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    ours = Sampling(temperature, top_k, top_p).probabilities(logits)
    expected = [generation_oracle(row, temperature, top_k, top_p or math.inf) for row in logits.tolist()]
    torch.testing.assert_close(ours, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12)


def test_top_p_keeps_the_word_that_reaches_p_and_small_temperatures_are_greedy():
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64).log()
    expected = torch.tensor([5 / 8, 3 / 8, 0, 0], dtype=torch.float64)
    torch.testing.assert_close(Sampling(top_p=0.7).probabilities(logits), expected)
    assert Sampling(1e-300).probabilities(1e3 * logits).tolist() == [1, 0, 0, 0]
    assert GREEDY.probabilities(logits).tolist() == [1, 0, 0, 0]


@pytest.mark.parametrize(
    ("values", "message"),
    [((-1.0,), "got -1"), ((math.nan,), "got nan"), ((math.inf,), "got inf"), ((1.0, 0), "got 0"),
     ((1.0, None, 0.0), "got 0"), ((1.0, None, 1.1), "got 1.1"), ((1.0, None, math.nan), "got nan")],
)  # fmt: skip
def test_sampling_refuses_values_without_a_meaning(values, message):
    with pytest.raises(ValueError, match=message):
        Sampling(*values)


def test_written_tokens_and_logits_are_the_same_with_and_without_cache_and_repeat_with_the_seed():
    model, start = generation_model(), torch.full((5, 1), START_ID)
    runs = [
        write(model, start, Sampling(2.0, 30), limit=13, generator=torch.Generator().manual_seed(seed), cached=cached)
        for seed, cached in ((0, True), (0, False), (1, True))
    ]
    assert torch.equal(runs[0].tokens, runs[1].tokens) and not torch.equal(runs[0].tokens, runs[2].tokens)
    torch.testing.assert_close(runs[0].logits, runs[1].logits, rtol=0, atol=1e-10)
    for ours, theirs in zip(runs[0].attended, runs[1].attended, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_temperature_0_is_the_greedy_generation_of_the_plain_function(seed):
    model = generation_model(seed=seed)
    expected = generate(model, ["the", "cat"], limit=12)
    start = torch.tensor([[START_ID, *generate4.encode(["the", "cat"])]])
    assert write(model, start, Sampling(0.0), limit=12).sentences() == [expected]


def test_writing_stops_at_end_pads_and_leaves_room():
    model = generation_model()
    start = torch.full((2, 1), START_ID)
    with torch.no_grad():
        model.output_bias[END_ID] = 1e4
    written = write(model, start)
    assert written.tokens.tolist() == [[START_ID, END_ID]] * 2 and written.sentences() == [[], []]
    tokens = torch.tensor([[START_ID, 9, PAD_ID, 8, END_ID, PAD_ID]])
    words = [VOCABULARY[9], VOCABULARY[PAD_ID], VOCABULARY[8]]  # padding before <end> was written, and is a mistake
    assert generate4.Written(tokens, tokens, []).sentences() == [words]
    with pytest.raises(ValueError, match="after the prompt of 3 words: got 3"):
        write(model, torch.full((1, 4), START_ID), limit=3)


def test_judge_counts_what_the_grammar_accepts():
    good, bad = ["the", "cat", "sat", "on", "the", "mat"], ["these", "cat", "sat", "on", "the", "mat"]
    other = ["a", "dog", "slept", "in", "a", "bed"]
    quality = generation_temperature.judge([good, bad, other, good])
    assert quality.accepted == 3 / 4 and quality.different == 3 / 4
    by_hand = [math.log(p) for p in sentence_probabilities()]
    assert math.isclose(quality.log_probability, (2 * by_hand[0] + by_hand[1]) / 3)
    assert math.isnan(generation_temperature.judge([bad]).log_probability)
    with pytest.raises(ValueError, match="got 0"):
        generation_temperature.judge([])


def sentence_probabilities():
    """Of "the cat sat on the mat" and "a dog slept in a bed": verb, no adverbs, no second noun, two noun phrases."""
    phrase = 0.5 / 5 * 0.5 / 3  # singular, one of five determiners, no adjective, one of three nouns
    return [1 / 12 * 0.8**3 * 0.7 * phrase**2] * 2


def test_cache_costs_are_the_formulas_and_the_quotient_is_the_length():
    counts = cache_costs.counted_operations((1, 3, 17))
    for length in (1, 3, 17):
        by_hand = 4 * (16 * length * 128**2 + 4 * length**2 * 128) + 2 * length * 128 * len(VOCABULARY)
        assert counts[cache_costs.WITHOUT][length] == by_hand == length * counts[cache_costs.WITH][length]


def test_the_unmasked_twin_differs_where_it_should():
    tokens = generation_tokens(1, 6)
    trained = generate4.training.untrained(
        generate4.training.Recipe("t", "next word", 2, 2, 1, d_model=32), CausalSelfAttention
    )
    one, two, again = cached_or_not.without_a_mask(trained, tokens).values()
    assert one < 1e-12 and min(two, again) > 1e-4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--temperature", "-1"], "temperature must be 0"),
        (["--temperature", "hot"], "invalid float value: 'hot'"),
        (["--top-k", "0"], "top-k must leave 1 word"),
        (["--top-p", "2"], "top-p must lie above 0"),
        (["--limit", "2"], "--limit must lie between 3 and 32 words: got 2"),
        (["--limit", "33"], "between 3 and 32 words: got 33"),
        (["--prompt", "xyzzy"], '"xyzzy" is not among'),
    ],
)
def test_generation_options_without_a_meaning_are_one_line(arguments, message, capsys):
    for script in (generate4, generation_film):
        with pytest.raises(SystemExit) as stop:
            script.main(arguments)
        said = capsys.readouterr().err
        assert stop.value.code == 2 and message in said and said.count("\n") == 1


# ----------------------------------------------------------------------------------------- phase 4: masks and causality


# --- masks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("num_queries", "num_keys"), [(7, 7), (3, 7), (1, 5), (7, 5)])
def test_blocked_and_prefix_masks_agree_with_their_definition_cell_by_cell(num_queries: int, num_keys: int) -> None:
    blocked, prefix = blocked_mask(num_queries, num_keys, 3), prefix_mask(num_queries, num_keys, 2)
    assert blocked.dtype == prefix.dtype == torch.bool and blocked.shape == prefix.shape == (num_queries, num_keys)
    for i in range(num_queries):
        position = i + num_keys - num_queries
        for j in range(num_keys):
            assert blocked[i, j] == (math.floor(position / 3) == j // 3)
            assert prefix[i, j] == (j <= position or j < 2)


def test_blocked_and_prefix_masks_at_their_limits() -> None:
    assert torch.equal(blocked_mask(5, 5, 1), torch.eye(5, dtype=torch.bool))
    assert blocked_mask(5, 5, 5).all()
    assert torch.equal(prefix_mask(5, 5, 0), causal_mask(5))
    assert prefix_mask(5, 5, 5).all()
    with pytest.raises(ValueError, match="block must be 1 or more: got 0"):
        blocked_mask(5, 5, 0)
    with pytest.raises(ValueError, match="between 0 and T_k=5: got 6"):
        prefix_mask(5, 5, 6)


def test_mixes_of_mask_and_code_are_right_where_torch_says_so_and_wrong_elsewhere() -> None:
    scores, allowed = masks.random_scores(), causal_mask(masks.LENGTH)
    found = masks.mixes()
    right = {mix for mix, (_, difference) in found.items() if difference < masks.ZERO}
    assert right == {
        ("True = may attend", "True = may\nattend"),
        ("True = may attend", "fill where\nmask == 0"),
        ("0 or -inf", "scores + mask"),
        ("0 or -inf", "True = hidden"),
        ("1 or 0", "True = may\nattend"),
        ("1 or 0", "fill where\nmask == 0"),
        ("True = hidden", "True = hidden"),
    }
    identity = torch.eye(masks.LENGTH, dtype=torch.float64).expand_as(scores)
    ones_added = F.scaled_dot_product_attention(scores, identity, identity, attn_mask=allowed.double(), scale=1.0)
    assert found["1 or 0", "scores + mask"][0] == pytest.approx(masks.future_mass(ones_added), abs=1e-12)
    # inverted: every row but the last, which sees nothing, has all of its weight in the future
    assert found["True = may attend", "True = hidden"][0] == pytest.approx(5 / 6)
    assert math.isnan(found["0 or -inf", "scores * mask"][0])  # 0 * -inf


def test_future_mass_by_hand() -> None:
    weights = torch.tensor([[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [1.0, 0.0, 0.0]])
    assert masks.future_mass(weights) == pytest.approx(0.75 / 3)
    assert masks.brute_force_errors() == 0


def test_gallery_shows_each_mask_and_the_table_each_mix(tmp_path) -> None:
    masks.main(["--output-dir", str(tmp_path)])
    assert {path.name for path in tmp_path.rglob("*.png")} == {"mask_gallery.png", "mask_conventions.png"}
    path = tmp_path / "data/processed/findings/phase4_causal.masks.json"
    verdicts = {record["id"]: record["verdict"] for record in json.loads(path.read_text())}
    assert verdicts == {"C091": HOLDS, "C092": FAILS, "C093": FAILS, "C094": HOLDS, "C095": FAILS, "C096": HOLDS}


# --- NaN -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", nan_causes.DTYPES)
def test_only_padding_on_the_left_leaves_rows_without_a_key(dtype: torch.dtype) -> None:
    sides = nan_causes.batch_masks()
    assert sides["left"][1, 0].tolist()[2] == [False, False, True, False, False]  # its first real word sees itself
    assert nan_causes.nan_rows(sides["right"], dtype) == (0, 0)
    assert nan_causes.nan_rows(sides["left"], dtype) == (2, 0)  # two words of padding on the left


@pytest.mark.parametrize("dtype", nan_causes.DTYPES)
def test_a_blind_row_spoils_gradients_only_without_masked_softmax(dtype: torch.dtype) -> None:
    assert nan_causes.gradients_lost(dtype, ours=False) >= 1
    assert nan_causes.gradients_lost(dtype, ours=True) == 0


def test_scaling_before_the_product_saves_float16() -> None:
    assert nan_causes.large_inputs(torch.float16) == {"not scaled": 1, "scaled after": 1, "before": 0}
    assert set(nan_causes.large_inputs(torch.float32).values()) == {0}


def test_padding_effects_agree_with_torch() -> None:
    effects = nan_causes.padding_effects()
    x = torch.randn(1, 5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    theirs = F.scaled_dot_product_attention(x, x, x, attn_mask=torch.arange(5) < 3)
    assert effects["change of real words"] == 0
    assert effects["output at padding"] == pytest.approx(theirs[0, 3:].norm(dim=-1).min().item())
    identity = torch.eye(5, dtype=torch.float64)[None]
    added = F.scaled_dot_product_attention(x, x, identity, attn_mask=(torch.arange(5) < 3).double())
    assert effects["weight on padding, 1 or 0 added"] == pytest.approx(added[0, :, 3:].sum(dim=-1).mean().item())


# --- the leak proof --------------------------------------------------------------------------------------------------

LEAK_TOKENS = torch.tensor([[START_ID, *encode(["the", "cat", "sat", "on"])]])


@pytest.mark.parametrize("name", causality.CAUSAL)
def test_causal_modules_do_not_leak(name: str) -> None:
    model = causality.build(causality.CAUSAL[name], 2, seed=3)
    assert largest_leak(model, LEAK_TOKENS) == (0.0, 0.0)
    assert torch.equal(causality.influence(model, LEAK_TOKENS) > 0, causal_mask(5))


@pytest.mark.parametrize("name", causality.PLANTED)
def test_planted_mistakes_are_caught_with_one_layer_and_with_two(name: str) -> None:
    for num_layers in (1, 2):
        change, gradient = largest_leak(causality.build(causality.PLANTED[name], num_layers, seed=3), LEAK_TOKENS)
        assert min(change, gradient) > causality.NOTICED


def test_influence_is_the_largest_derivative_of_the_squared_logits() -> None:
    model = causality.build(CausalSelfAttention, 1, seed=5)
    found, step = causality.influence(model, LEAK_TOKENS), 1e-5

    def squared(i: int, j: int, column: int, by: float) -> float:
        hook = model.embedding.register_forward_hook(
            lambda _m, _i, out: out.index_put(
                (torch.tensor(0), torch.tensor(j), torch.tensor(column)),
                torch.tensor(by, dtype=out.dtype),
                accumulate=True,
            )
        )
        with torch.no_grad():
            value = model(LEAK_TOKENS)[0][0, i].square().sum().item()
        hook.remove()
        return value

    slopes = [abs(squared(3, 1, c, step) - squared(3, 1, c, -step)) / (2 * step) for c in range(64)]
    assert found[3, 1].item() == pytest.approx(max(slopes), rel=1e-5)


def test_with_mask_ands_a_further_mask() -> None:
    class Given(nn.Module):
        def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
            return x, mask

    wrapped = causality.WithMask(Given(), causal_mask)
    further = torch.tensor([True, False, True])
    assert torch.equal(wrapped(torch.zeros(1, 3, 2), mask=further)[1], causal_mask(3) & further)


def test_chance_that_a_shuffle_changes_nothing() -> None:
    assert causality.ways_to_shuffle_nothing(["a", "the", "b", "the"]) == pytest.approx([2 / 6, 1 / 2, 1])


# --- trained with and without the mask -------------------------------------------------------------------------------


def test_past_loss_of_a_causal_model_is_its_full_loss_and_a_loop_agrees() -> None:
    trained = mask_training.train(mask_training.WITH, 1, training.corpus()[0][:64], 3, seed=5)
    sentences = training.corpus()[1][:5]
    model, terms = trained.model, []
    with torch.no_grad():
        for sentence in sentences:
            tokens = [START_ID, *encode(sentence.words), END_ID]
            for i in range(1, len(tokens)):
                logits, _ = model(torch.tensor([tokens[:i]]))
                terms.append(-logits[0, -1].log_softmax(dim=-1)[tokens[i]].item())
    expected = sum(terms) / len(terms)
    assert mask_training.past_loss(model, sentences) == pytest.approx(expected, abs=1e-5)
    assert mask_training.full_loss(model, sentences) == pytest.approx(expected, abs=1e-5)


def test_modes_share_first_weights_and_batches_and_masks_have_no_parameters() -> None:
    sentences = training.corpus()[0][:64]
    runs = {mode: mask_training.train(mode, 2, sentences, 2, seed=7) for mode in mask_training.ATTENTION}
    again = mask_training.train(mask_training.WITH, 2, sentences, 2, seed=7)
    assert again.history.loss == runs[mask_training.WITH].history.loss
    assert runs[mask_training.WITH].history.loss != runs[mask_training.WITHOUT].history.loss
    x = LEAK_TOKENS
    with torch.no_grad():
        other = mask_training.under(runs[mask_training.WITHOUT], mask_training.WITH)
        own = mask_training.under(runs[mask_training.WITHOUT], mask_training.WITHOUT)
        expected, _ = runs[mask_training.WITHOUT].model(x, mask=causal_mask(5))
        assert torch.equal(other(x)[0], expected)
        assert torch.equal(own(x)[0], runs[mask_training.WITHOUT].model(x)[0])


def test_floor_is_what_the_grammar_loses_per_word() -> None:
    # Worked by hand: 12 verbs; no adverb 0.8 three times; no attractor 0.7. A noun phrase without adjective: number
    # 0.5, one of 5 determiners, no adjective 0.5, one of 3 nouns. Six words and <end> are predicted.
    words = tuple(["the", "cat", "sat", "on", "the", "mat"])
    phrase = 0.5 / 5 * 0.5 / 3
    assert mask_training.floor([Sentence(words, {})]) == pytest.approx(-math.log(0.8**3 * 0.7 / 12 * phrase**2) / 7)
    assert math.log(len(VOCABULARY)) == mask_training.UNIFORM


def test_one_layer_needs_no_mask_at_the_last_position_but_two_layers_do() -> None:
    tokens = LEAK_TOKENS
    for num_layers, same in ((1, True), (2, False)):
        trained = mask_training.train(mask_training.WITH, num_layers, training.corpus()[0][:64], 3, seed=11)
        with torch.no_grad():
            masked, bare = (mask_training.under(trained, m)(tokens)[0][:, -1] for m in mask_training.ATTENTION)
        assert torch.allclose(masked, bare, atol=1e-5) == same


def test_verdicts_follow_the_numbers() -> None:
    def verdicts(cheat: float, blind: float, rise: float) -> dict[str, str]:
        tests = breaking_causality.TESTS
        tested = {}
        for n in (1, 2):
            tested["with the mask", n] = dict(zip(tests, (2.0, 2.0 + rise, 2.0), strict=True))
            tested["without", n] = dict(zip(tests, (blind, cheat, blind), strict=True))
        seen = {f"{mode}, {n}": cheat if mode == "without" else 2.0 for mode in mask_training.ATTENTION for n in (1, 2)}
        single = dict.fromkeys(mask_training.ATTENTION, 0.01)
        made = breaking_causality.make_findings([tested], [seen], [single], 1.95, range(1))
        return {finding.id: finding.verdict for finding in made}

    expected = {
        "C101": HOLDS,
        "next-token-floor": HOLDS,
        "C102": ONLY_IF,
        "C115": FAILS,
        "no-mask-when-writing": HOLDS,
        "C103": ONLY_IF,
    }
    assert verdicts(0.01, 9.0, 0.5) == expected
    assert verdicts(0.06, 9.0, 0.5)["C101"] == FAILS
    assert verdicts(0.01, 4.0, 0.5)["C101"] == FAILS
    assert verdicts(0.01, 9.0, 0.05)["C102"] == FAILS
    assert verdicts(2.0, 2.05, 0.05)["C115"] == HOLDS
    assert verdicts(2.0, 9.0, 0.5)["C103"] == FAILS


# ---------------------------------------------------------------------------------------------- phase 4: long sequences


LONG_LENGTHS = [(13, 13), (5, 17), (17, 5), (1, 7), (131, 137)]  # equal, fewer queries, fewer keys, one query, primes


def long_inputs(t_q, t_k, *, leading=(2, 3), d_k=5, d_v=7):
    shapes = ((t_q, d_k), (t_k, d_k), (t_k, d_v))
    generator = torch.Generator().manual_seed(t_q * 1000 + t_k)
    return [
        torch.randn(*leading, *shape, dtype=torch.float64, generator=generator).requires_grad_() for shape in shapes
    ]


def long_assert_same(mine, theirs, inputs):
    upstream = torch.randn(mine.shape, dtype=torch.float64)
    torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-10)
    for a, b in zip(
        torch.autograd.grad(mine, inputs, upstream), torch.autograd.grad(theirs, inputs, upstream), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10, msg="the gradients differ, the outputs do not")


@pytest.mark.parametrize(("t_q", "t_k"), LONG_LENGTHS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("block_size", [3, (4, 7), (256, 512)])
def test_long_flash_is_attention(t_q, t_k, causal, block_size):
    inputs = long_inputs(t_q, t_k)
    naive, _ = scaled_dot_product_attention(*inputs, causal_mask(t_q, t_k) if causal else None)
    long_assert_same(flash_attention(*inputs, causal=causal, block_size=block_size), naive, inputs)


@pytest.mark.parametrize("causal", [False, True])
def test_long_flash_gradcheck_and_broadcast(causal):
    q, k, v = long_inputs(5, 6, leading=(2,))
    assert torch.autograd.gradcheck(lambda *x: flash_attention(*x, causal=causal, block_size=(2, 3)), (q, k, v))
    shared_key = k[:1].detach().requires_grad_()  # one key for both: its gradient is a sum
    inputs = (q, shared_key, v)
    naive, _ = scaled_dot_product_attention(*inputs, causal_mask(5, 6) if causal else None)
    long_assert_same(flash_attention(*inputs, causal=causal, block_size=2), naive, inputs)


def test_long_flash_large_scores_and_order():
    """Scores of 1e4 overflow exp unless the largest is taken off, whether it comes first or last."""
    q, k, v = (x.detach() for x in long_inputs(7, 11))
    for keys in (k * 1e4, (k * 1e4).flip(-2)):
        torch.testing.assert_close(
            flash_attention(q, keys, v, block_size=3), F.scaled_dot_product_attention(q, keys, v)
        )
    inputs = [x.detach().float() for x in (q, k, v)]
    assert flash_attention(*inputs).dtype == torch.float32


def test_long_flash_skips_what_is_above_the_diagonal():
    """Tiles that no query sees are not even read: a NaN in them would show, since 0 · NaN is NaN."""
    q, k, v = (x.detach().clone() for x in long_inputs(12, 12))
    k[..., 6:, :] = v[..., 6:, :] = math.nan
    assert flash_attention(q, k, v, causal=True, block_size=3)[..., :6, :].isfinite().all()


def test_long_loops_agree():
    for t_q, t_k in ((7, 7), (3, 8), (8, 3)):
        q, k, v = (x.detach() for x in long_inputs(t_q, t_k, leading=()))
        for causal in (False, True):
            mask = causal_mask(t_q, t_k) if causal else None
            naive, _ = scaled_dot_product_attention(q, k, v, mask)
            torch.testing.assert_close(flash_by_loops(q, k, v, causal=causal), naive)
            near = local_mask(t_q, t_k, 2) if mask is None else local_mask(t_q, t_k, 2) & mask
            naive, _ = scaled_dot_product_attention(q, k, v, near)
            torch.testing.assert_close(local_by_loops(q, k, v, window=2, causal=causal), naive)
            for name in ("elu", "relu"):
                by_loops = linear_by_loops(q, k, v, causal=causal, feature_map=name)
                torch.testing.assert_close(linear_attention(q, k, v, causal=causal, feature_map=name), by_loops)


@pytest.mark.parametrize(("t_q", "t_k"), [*LONG_LENGTHS, (11, 150), (150, 11)])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [0, 3, 71])
def test_long_local_is_masked_attention(t_q, t_k, causal, window):
    inputs = long_inputs(t_q, t_k)
    mask = local_mask(t_q, t_k, window)
    naive, _ = scaled_dot_product_attention(*inputs, mask & causal_mask(t_q, t_k) if causal else mask)
    long_assert_same(local_attention(*inputs, window=window, causal=causal), naive, inputs)


def test_long_local_gradcheck():
    inputs = long_inputs(6, 7, leading=())
    assert torch.autograd.gradcheck(lambda *x: local_attention(*x, window=2, causal=True), inputs)


@pytest.mark.parametrize("feature_map", ["elu", "relu"])
@pytest.mark.parametrize("length", [1, 63, 64, 131])
def test_long_linear_parallel_is_recurrent(length, feature_map):
    inputs = long_inputs(length, length)
    recurrent, state = linear_attention_recurrent(*inputs, feature_map=feature_map)
    long_assert_same(linear_attention(*inputs, causal=True, feature_map=feature_map), recurrent, inputs)
    assert state.shape == (2, 3, 5, 8), "the state must not depend on the length"


@pytest.mark.parametrize(("t_q", "t_k"), LONG_LENGTHS)
@pytest.mark.parametrize("causal", [False, True])
def test_long_linear_is_its_kernel(t_q, t_k, causal):
    """The quadratic form, with all weights written out."""
    inputs = long_inputs(t_q, t_k)
    weights = (F.elu(inputs[0]) + 1) @ (F.elu(inputs[1]) + 1).mT
    weights = weights * causal_mask(t_q, t_k) if causal else weights
    total = weights.sum(dim=-1, keepdim=True)
    quadratic = weights / total.masked_fill(total == 0, 1) @ inputs[2]
    long_assert_same(linear_attention(*inputs, causal=causal), quadratic, inputs)


def test_long_linear_by_hand_and_gradcheck():
    """φ(0) = 1, φ(1) = 2: weights 1 and 2 for a query of one feature, so (1 · 3 + 2 · 9) / 3 = 7."""
    q, k, v = torch.zeros(1, 1), torch.tensor([[0.0], [1.0]]), torch.tensor([[3.0], [9.0]])
    assert linear_attention(q, k, v).item() == pytest.approx(7)
    blind = linear_attention(-torch.ones(1, 1), k, v, feature_map="relu")
    assert blind.item() == 0, "relu of a negative query gives no key any weight: the output is 0, not NaN"
    inputs = long_inputs(6, 5, leading=())
    assert torch.autograd.gradcheck(lambda *x: linear_attention(*x, causal=True), inputs)


def test_long_memory_is_linear():
    """Twice the length, at most 2.2 times the memory; naive attention takes 4 times. Backward included for flash."""

    def flash(length):
        inputs = torch.randn(3, 4, length, 16, requires_grad=True)
        output = flash_attention(*inputs, block_size=64)
        return lambda: output.sum().backward()

    calls = {
        "flash": lambda n: partial(flash_attention, *torch.randn(3, 4, n, 16), block_size=64),
        "flash backward": flash,
        "local": lambda n: partial(local_attention, *torch.randn(3, 4, n, 16), window=32),
        "linear": lambda n: partial(linear_attention, *torch.randn(3, 4, n, 16), causal=True),
    }
    for name, make in calls.items():
        assert peak_memory(make(1024)) <= 2.2 * peak_memory(make(512)), name
    x = torch.randn(4, 1024, 16)
    naive = peak_memory(lambda: scaled_dot_product_attention(x, x, x))
    assert peak_memory(calls["flash"](1024)) < naive / 20


def test_long_errors():
    x = torch.randn(4, 3)
    with pytest.raises(ValueError, match=r"block_size must be 1 or more.*got 0"):
        flash_attention(x, x, x, block_size=0)
    with pytest.raises(ValueError, match="window must be 0 or more: got -1"):
        local_attention(x, x, x, window=-1)
    with pytest.raises(ValueError, match="unknown feature_map 'exp': choose from elu, relu"):
        linear_attention(x, x, x, feature_map="exp")
    with pytest.raises(ValueError, match="as many queries as keys: got T_q=3, T_k=4"):
        linear_attention_recurrent(x[:3], x, x)
    for function in (flash_attention, linear_attention, lambda *y: local_attention(*y, window=1)):
        with pytest.raises(ValueError, match="same length T_k: got 4 and 3"):
            function(x, x, x[:3])


# -------------------------------------------------------------------------------------------- promises about running it


def test_a_figure_without_a_display_is_made_or_not_as_the_program_says():
    assert promises.draws_without_display(promises.DRAW["before pyplot is imported"])
    assert not promises.draws_without_display(("import os", "os.environ['DISPLAY']"))
    assert not promises.draws_without_display(("raise SystemExit(3)",))


def test_a_training_step_holds_more_than_the_weights_and_grows_with_the_batch():
    model = training.new_model(training.Recipe("promises", "masked word", 2, 1, 0, d_model=8), MultiHeadAttention)
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    small, large = (promises.step_memory(model, size) for size in (7, 29))
    assert weights < small < large


def test_a_sentence_ends_by_itself_only_with_the_end_token():
    model = training.new_model(training.Recipe("promises", "next word", 2, 1, 0, d_model=8), CausalSelfAttention).eval()
    with torch.no_grad():
        model.output_bias[END_ID] = 50.0  # <end> at once, always
    assert promises.ended_share(model, 13) == 1
    silent = promises.without_end(model)
    assert promises.ended_share(silent, 13) == 0
    assert model.output_bias[END_ID] == 50, "the model itself must not change"


def test_greedy_against_drawn_compares_with_the_grammar(monkeypatch):
    """A model that writes only what the grammar accepts, at one likelihood, gives 0; a rejected sentence -inf."""
    good = ["the", "cat", "sat", "on", "the", "mat"]
    bad = ["the", "cat", "sat", "sat"]

    class Fixed:
        def __init__(self, rows):
            self.rows = rows

        def sentences(self):
            return self.rows

    model = training.new_model(training.Recipe("promises", "next word", 2, 1, 0, d_model=8), CausalSelfAttention)
    for greedy, expected in ((good, 0.0), (bad, -math.inf)):
        rows = iter([[greedy] * 3, ([good] * 7 + [bad] * 3) * 3])
        monkeypatch.setattr(generation_temperature, "write", lambda *_, rows=rows, **__: Fixed(next(rows)))
        assert generation_temperature.greedy_against_drawn(model, 3, 0) == [expected] * 3


# --------------------------------------------------------------------------------------- what the mask does to patterns


PATTERN_SIZES = 2, 3, 7  # N, H, T: different primes, so that no two axes can be confused
PATTERN_SENTENCE = Sentence(
    ("the", "cat", "sat", "on", "a", "mat"),
    {
        "determiner-noun": ((0, 1), (4, 5)),
        "verb-subject": ((2, 1),),
        "verb-place": ((2, 5),),
        "adjective-noun": ((3, 5),),  # not grammar: each relation needs a pair
    },
)


def pattern_weights(mask: Tensor) -> Tensor:
    """Random weights (N, H, T, T) in float64, zero where the mask hides and in rows that see nothing."""
    n, heads, length = PATTERN_SIZES
    scores = torch.randn(n, heads, length, length, generator=torch.Generator().manual_seed(0)).double()
    return scores.masked_fill(~mask, -math.inf).softmax(dim=-1).nan_to_num()


def pattern_mask(causal: bool) -> Tensor:
    """Two sentences of 7 and 5 words, (N, 1, T, T)."""
    real = torch.arange(7) < torch.tensor([7, 5])[:, None]
    mask = (real[:, None, :] & real[:, :, None])[:, None]  # (N, T, T) -> (N, 1, T, T)
    return mask.tril() if causal else mask


def pattern_of(weights: Tensor, causal: bool = False) -> Patterns:
    """One layer on PATTERN_SENTENCE, no <start>."""
    real = torch.ones(1, 1, 6, 6, dtype=torch.bool)
    return Patterns([weights], real, real.tril() if causal else real, shift=0)


def pattern_models(layers: int = 2) -> tuple[training.Trained, training.Trained]:
    recipes = replace(MASKED_WORD_RECIPE, num_layers=layers), replace(CAUSAL_RECIPE, num_layers=layers)
    return tuple(
        training.untrained(recipe, make)
        for recipe, make in zip(recipes, (MultiHeadAttention, CausalSelfAttention), strict=True)
    )


@cache
def pattern_measured(layers: int = 2) -> masked_heads.Measured:
    return masked_heads.measure(*pattern_models(layers), training.corpus()[1][:11], untrained=1)


def pattern_verdicts(found: list) -> dict[str, str]:
    return {finding.id: finding.verdict for finding in found}


def test_even_weights_on_six_words_give_the_numbers_worked_by_hand():
    full, mask = torch.ones(1, 1, 6, 6, dtype=torch.bool), causal_mask(6)[None, None]
    expected = {
        "entropy": (math.log(6), math.log(720) / 6),  # (ln 1 + ... + ln 6) / 6 = ln(6!) / 6
        "distance": (35 / 18, 1.25),  # (6² - 1) / 18; the mean of 0, 1/2, ..., 5/2
    }
    for name, values in expected.items():
        for allowed, value in zip((full, mask), values, strict=True):
            assert head_statistics.head_statistics(even_weights(allowed), allowed)[name].item() == pytest.approx(
                value, abs=1e-6
            )
    keys = masked_heads.received(even_weights(mask), mask)[0]
    assert keys.tolist() == pytest.approx([sum(1 / i for i in range(j + 1, 7)) / 6 for j in range(6)], abs=1e-7)
    assert round(keys[0].item(), 3) == 0.408 and round(keys[5].item(), 3) == 0.028
    assert masked_heads.received(even_weights(full), full)[0].tolist() == pytest.approx([1 / 6] * 6)


@pytest.mark.parametrize("causal", [False, True])
def test_spread_is_that_of_plain_loops_and_one_for_even_weights(causal):
    mask = pattern_mask(causal)
    weights = pattern_weights(mask)
    patterns = Patterns([weights], pattern_mask(False), mask, shift=0)
    sums, rows, choices = dict.fromkeys(masked_heads.SPREADS, 0.0), 0, 0
    for n, length in enumerate((7, 5)):
        for h in range(3):
            for i in range(length):
                seen = [j for j in range(length) if j <= i or not causal]
                w = [weights[n, h, i, j].item() for j in seen]
                entropy = -sum(x * math.log(x) for x in w)
                distance = sum(x * abs(i - j) for x, j in zip(w, seen, strict=True))
                sums["entropy"] += entropy
                sums["distance"] += distance
                rows += 1
                if len(seen) > 1:
                    choices += 1
                    sums["normalised entropy"] += entropy / math.log(len(seen))
                    sums["normalised distance"] += distance / (sum(abs(i - j) for j in seen) / len(seen))
    expected = {name: value / (choices if "normalised" in name else rows) for name, value in sums.items()}
    assert masked_heads.spread(patterns) == pytest.approx(expected, abs=1e-6)  # even weights come in float32
    of_even = masked_heads.spread(masked_heads.even(patterns))
    assert of_even["normalised entropy"] == pytest.approx(1, abs=1e-6)
    assert of_even["normalised distance"] == pytest.approx(1, abs=1e-6)


def test_a_row_with_one_key_has_no_normalised_distance():
    mask = causal_mask(5)
    distance = masked_heads.normalized_distance(even_weights(mask), mask)
    assert distance[0].isnan() and torch.allclose(distance[1:], torch.ones(4))


def test_received_counts_real_rows_only():
    mask = pattern_mask(True)
    weights = pattern_weights(mask) + 0.0
    weights[1, :, 5:] = 1 / 7  # rows of padding mean nothing
    expected = torch.zeros(3, 7, dtype=torch.float64)
    for n, length in enumerate((7, 5)):
        for i in range(length):
            expected += weights[n, :, i] / length / 2
    torch.testing.assert_close(masked_heads.received(weights, mask), expected)


def test_cut_takes_the_future_and_scales_the_rest_back():
    mask = pattern_mask(False)
    weights = pattern_weights(mask)
    result = masked_heads.cut(Patterns([weights], mask, mask, shift=0))
    assert torch.equal(result.mask, mask.tril())
    for n, length in enumerate((7, 5)):
        for i in range(length):
            past = weights[n, :, i, : i + 1]
            torch.testing.assert_close(result.layers[0][n, :, i, : i + 1], past / past.sum(dim=-1, keepdim=True))
            assert not result.layers[0][n, :, i, i + 1 :].any()
    assert not result.layers[0][1, :, 5:].any()  # padding stays empty, not NaN


def test_cut_is_what_the_first_layer_computes_under_the_mask_and_not_the_second():
    sentences = training.corpus()[1][:5]
    trained, _ = pattern_models()
    patterns = masked_heads.cut(masked_heads.read(trained, sentences))
    tokens, lengths = masked_heads.tokens_of(sentences, "masked word")
    computed = masked_heads.weights_on(under(trained, WITH), tokens, lengths)
    rows = patterns.mask.any(dim=-1, keepdim=True)  # rows of padding are not cut to anything
    first, second = ((a - b).masked_fill(~rows, 0).abs().max() for a, b in zip(patterns.layers, computed, strict=True))
    assert first < 1e-6 and second > 1e-4


def test_cut_refuses_a_row_whose_past_has_no_weight():
    weights = torch.zeros(1, 1, 6, 6)
    weights[..., 5] = 1  # every word looks at the last one
    with pytest.raises(ValueError, match="no weight on its past"):
        masked_heads.cut(pattern_of(weights))


def test_a_causal_model_never_reads_the_end_and_its_patterns_start_with_one_more_token():
    sentences = training.corpus()[1][:7]
    both, causal = (masked_heads.read(trained, sentences) for trained in pattern_models())
    words = [len(sentence.words) for sentence in sentences]
    assert both.real.diagonal(dim1=-2, dim2=-1).sum(dim=-1).flatten().tolist() == words
    assert causal.real.diagonal(dim1=-2, dim2=-1).sum(dim=-1).flatten().tolist() == [n + 1 for n in words]
    assert (both.shift, causal.shift) == (0, 1)
    assert not causal.mask.triu(1).any() and not causal.layers[0].triu(1).any() and torch.equal(both.mask, both.real)


@pytest.mark.parametrize(
    ("role", "pair", "allowed"),
    [
        ("determiner → noun", (0, 1), False),
        ("noun → determiner", (1, 0), True),
        ("verb → subject", (2, 1), True),
        ("subject → verb", (1, 2), False),
        ("verb → place", (2, 5), False),
        ("place → verb", (5, 2), True),
    ],
)
def test_a_relation_survives_the_mask_in_the_direction_that_looks_back(role, pair, allowed):
    pairs = [pair, *{"determiner → noun": [(4, 5)], "noun → determiner": [(5, 4)]}.get(role, [])]
    made = torch.full((1, 1, 6, 6), 0.02)  # a head made by hand that plays this role and no other
    for query, key in pairs:
        made[0, 0, query, key] = 0.9
    full = pattern_of(made / made.sum(dim=-1, keepdim=True))
    assert masked_heads.roles(full, [PATTERN_SENTENCE])[role].item() == 1
    assert masked_heads.possible(full, [PATTERN_SENTENCE])[role]
    cut = masked_heads.cut(full)
    assert masked_heads.roles(cut, [PATTERN_SENTENCE])[role].item() == float(allowed)
    assert masked_heads.possible(cut, [PATTERN_SENTENCE])[role] == allowed


def test_row_zero_under_the_mask_is_no_hit_by_tie():
    # "the" at 0 sees only itself. With hidden keys at 0, all tie, and the first of them is its noun at 1.
    head = torch.eye(6)[None, None]
    assert masked_heads.roles(pattern_of(head, causal=True), [PATTERN_SENTENCE])["determiner → noun"].item() == 0


def test_positions_under_the_mask():
    made = masked_heads.previous_token_head(6)[None, None]
    score = {name: value.item() for name, value in masked_heads.roles(pattern_of(made), [PATTERN_SENTENCE]).items()}
    assert score["previous word"] == 1 and score["next word"] == 0
    can = masked_heads.possible(pattern_of(made, causal=True), [PATTERN_SENTENCE])
    assert [name for name, yes in can.items() if not yes] == [
        "next word",
        "determiner → noun",
        "subject → verb",
        "verb → place",
        "adjective → noun",
    ]


def test_the_head_made_by_hand_is_a_band_below_the_diagonal():
    weights = masked_heads.previous_token_head(7)
    assert weights.argmax(dim=-1).tolist() == [0, 0, 1, 2, 3, 4, 5]
    assert weights.diagonal(-1).min() > 0.99 and weights.diagonal(1).max() < 0.01
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(7, dtype=torch.float64))


@pytest.mark.parametrize("model", [0, 1])
def test_the_mask_leaves_the_last_row_of_the_first_layer_alone_and_only_there(model):
    sentences = training.corpus()[1][:5]  # of different lengths: the last row is not the last of the batch
    assert len({len(sentence.words) for sentence in sentences}) > 1
    one, two = (masked_heads.last_row_change(pattern_models(layers)[model], sentences) for layers in (1, 2))
    assert max(one["last"]) < 1e-12 and len(one["last"]) == 1
    assert two["last"][0] < 1e-12 and two["last"][1] > 1e-5
    assert min(one["earlier"][0], *two["earlier"]) > 1e-2


def test_baselines_are_never_below_the_fixed_offset_and_zero_for_what_cannot_be():
    _, causal = pattern_models()
    sentences = training.corpus()[1][:11]
    base = masked_heads.baselines(causal, sentences, count=1)
    can = masked_heads.possible(masked_heads.read(causal, sentences), sentences)
    assert base["noun → adjective"] == 1  # always the word before
    assert all((base[name] == 0) == (not yes) for name, yes in can.items())


def test_the_verdicts_follow_the_numbers():
    found = pattern_measured()
    one_layer = pattern_measured(layers=1)
    two_seeds = [one_layer, one_layer]
    for found_twice in (
        mask_verdicts.spread_findings(two_seeds, [0, 1]),
        mask_verdicts.role_findings(two_seeds, [0, 1]),
    ):
        assert found_twice[0].seeds == [0, 1]
    everywhere = {role: torch.ones(2, 4) for role in found.roles[BOTH]}
    nowhere = dict.fromkeys(found.possible, 0.0)
    strong = replace(found, roles=dict.fromkeys((BOTH, CUT, CAUSAL), everywhere), base={BOTH: nowhere, CAUSAL: nowhere})
    gone = replace(strong, roles=strong.roles | {CAUSAL: {role: torch.zeros(2, 4) for role in everywhere}})
    sees_ahead = replace(found, kinds=found.kinds | {CAUSAL: found.kinds[BOTH]})
    assert pattern_verdicts(mask_verdicts.role_findings([strong], [0]))["C109"] == "holds"
    assert pattern_verdicts(mask_verdicts.role_findings([gone], [0]))["C109"] == "holds only if"
    assert pattern_verdicts(mask_verdicts.role_findings([found], [0]))["C109"] == "does not hold"  # nothing is trained
    assert pattern_verdicts(mask_verdicts.role_findings([sees_ahead], [0]))["C108"] == "holds"
    assert pattern_verdicts(mask_verdicts.role_findings([found], [0]))["C108"] == "does not hold"

    models = pattern_models()
    assert pattern_verdicts(mask_verdicts.position_findings([one_layer], *models, [0]))["C104"] == "holds"
    assert pattern_verdicts(mask_verdicts.position_findings([found], *models, [0]))["C104"] == "holds only if"

    half = {kind: dict.fromkeys(masked_heads.SPREADS, 0.5 if kind != BOTH else 1.0) for kind in found.spread}
    raw_only = {kind: values | dict.fromkeys(masked_heads.SPREADS[1::2], 0.7) for kind, values in half.items()}
    for spread, verdict in ((half, "holds"), (raw_only, "holds only if"), (half | {CUT: half[BOTH]}, "does not hold")):
        assert pattern_verdicts(mask_verdicts.spread_findings([replace(found, spread=spread)], [0]))["C107"] == verdict


def test_a_head_on_the_first_token_must_beat_even_weights():
    found = pattern_measured()
    masked = found.kinds[CAUSAL]
    first = torch.zeros_like(masked.layers[0])
    first[..., 0] = 1
    for layers, verdict in (([first], "holds only if"), ([even_weights(masked.mask)], "does not hold")):
        kinds = found.kinds | {CAUSAL: replace(masked, layers=layers)}
        assert pattern_verdicts(mask_verdicts.spread_findings([replace(found, kinds=kinds)], [0]))["C110"] == verdict


def test_mask_patterns_writes_picture_and_findings(tmp_path, monkeypatch, capsys):
    bidirectional, causal = pattern_models()
    open_before = plt.get_fignums()
    monkeypatch.setattr(mask_patterns, "load_multi_head_model", lambda _options, _seed: bidirectional)
    monkeypatch.setattr(mask_patterns, "load_causal_model", lambda _options, _seed: causal)
    mask_patterns.main(["--quick", "--output-dir", str(tmp_path)])
    assert (tmp_path / "visualizations" / "plots" / "phase4" / "mask_patterns.png").stat().st_size > 10_000
    assert plt.get_fignums() == open_before  # the figure was closed
    content = json.loads((tmp_path / "data/processed/findings/phase4_causal.mask_patterns.json").read_text())
    assert [f["id"] for f in content] == ["C107", "C110", "C108", "C109", "C111", "C104", "C106"]
    assert content[2]["measured"][f"{CAUSAL}, best head"] == [0.0]
    assert capsys.readouterr().out.count("cannot exist under the mask") == 5


# -------------------------------------------------------------------------------------------------- a ring of processes


RING_LENGTHS = {"even": (67, 67, 67), "uneven": (5, 131, 17), "short": (1, 0, 1), "striped": (67, 67, 66)}
RING_MISTAKES = [  # object, right, wrong
    ("OnlineSoftmax", "self.weighted[:, rows] * shrink", "self.weighted[:, rows]"),
    ("OnlineSoftmax", "self.total[:, rows] * shrink", "self.total[:, rows]"),
    ("hidden_keys", "key_at > query_at[:, None]", "key_at > query_at[:, None] + 1"),
    ("slice_positions", "range(sum(lengths[:rank]), sum(", "range(sum(lengths[:rank]) - rank, -rank + sum("),
    ("add_block_gradients", ".sub_(row_sums[:, rows])", ""),
    ("Ring", "(self.rank - step) %", "(self.rank + step) %"),
    (
        "RingAttention",
        "grads = ring.pass_on(grads, step)()",
        "grads = ring.pass_on(grads, step)() if arrives else grads",
    ),
]

# What each of three processes runs. It needs little more than torch, so that it starts quickly.
RING_WORKER = """
import inspect, sys
import torch
import torch.distributed as dist
from phase4_causal import ring_attention, ring_blocks
from phase4_causal.ring_measure import costs

rank, folder = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=3)

def ring(tensors, **way):
    slices = [x.clone().requires_grad_() for x in tensors[:3]]
    output = ring_attention.ring_attention(*slices, **way)
    return [output.detach(), *torch.autograd.grad(output, slices, tensors[3])]

def refused(*tensors, **way):
    try:
        ring_attention.ring_attention(*tensors, **way)
    except ValueError as error:
        return str(error)

def with_mistake(name, right, wrong):
    home = ring_attention if name.startswith("Ring") else ring_blocks
    source = inspect.getsource(getattr(home, name))
    assert source.count(right) == 1, right
    kept = getattr(home, name)
    exec(source.replace(right, wrong), vars(home))
    setattr(ring_attention, name, getattr(home, name))
    try:
        return ring(inputs["even"][rank], causal=True)
    finally:
        setattr(home, name, kept)
        setattr(ring_attention, name, kept)

inputs, mistakes = torch.load(f"{folder}/inputs.pt")
results = {
    (name, causal): ring(slices[rank], causal=causal, striped=name == "striped")
    for name, slices in inputs.items() for causal in (False, True)
}
later_two = dist.new_group([1, 2])
if rank:
    results["group"] = ring(inputs["uneven"][rank], causal=True, group=later_two)
results["costs"] = costs(ring_attention.ring_attention, 384, None, "cpu")
x = torch.zeros(2, 5, 4)
results["refused"] = [
    refused(x, x, torch.zeros(2, 6, 4) if rank == 1 else x),
    refused(torch.zeros(4) if rank == 2 else x, x, x),
    refused(*[torch.zeros(3, 5, 4) if rank == 1 else x] * 3),
    refused(x, x, x, causal=rank == 0),
    refused(*[torch.zeros(2, 3 + rank, 4)] * 3, striped=True),
]
results["mistakes"] = [with_mistake(*mistake) for mistake in mistakes]
results["right again"] = ring(inputs["even"][rank], causal=True)
torch.save(results, f"{folder}/{rank}.pt")
dist.barrier()
dist.destroy_process_group()
"""


def ring_inputs(lengths: tuple[int, ...]) -> list[list[Tensor]]:
    """By process: query, key, value and what comes back to the output; as slices of a sequence cut anyhow."""
    sizes, draw = (7, 7, 5, 5), torch.Generator().manual_seed(sum(lengths))
    return [[torch.randn(2, 3, t, d, dtype=torch.float64, generator=draw) * 3 for d in sizes] for t in lengths]


def ring_join(slices: list[Tensor], striped: bool) -> Tensor:
    """Slices (..., T_r, d) -> the whole sequence (..., T, d)."""
    if not striped:
        return torch.cat(slices, dim=-2)
    whole = slices[0].new_empty(*slices[0].shape[:-2], sum(x.size(-2) for x in slices), slices[0].size(-1))
    for rank, x in enumerate(slices):
        whole[..., rank :: len(slices), :] = x
    return whole


def ring_expected(inputs: list[list[Tensor]], causal: bool, striped: bool = False) -> list[Tensor]:
    """Output and gradients of query, key, value by torch's own function on the whole sequence."""
    *whole, upstream = (ring_join(list(slices), striped) for slices in zip(*inputs, strict=True))
    whole = [x.requires_grad_() for x in whole]
    output = F.scaled_dot_product_attention(*whole, is_causal=causal)
    own = scaled_dot_product_attention(*whole, causal_mask(whole[0].size(-2)) if causal else None)[0]
    torch.testing.assert_close(own, output, rtol=0, atol=1e-12)
    return [output.detach(), *torch.autograd.grad(output, whole, upstream)]


def ring_difference(results: list[list[Tensor]], expected: list[Tensor], striped: bool = False) -> float:
    joined = [ring_join(list(slices), striped) for slices in zip(*results, strict=True)]
    differences = [(a - b).abs().max() for a, b in zip(joined, expected, strict=True)]
    return torch.stack(differences).max().nan_to_num(nan=1e9).item()


IN_ONE_RING = pytest.mark.xdist_group("ring")


@pytest.fixture(scope="module")
def ring_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, list[list[Tensor]]], list[dict]]:
    """Inputs by name, and what each of the three processes found; started once for all tests."""
    folder = tmp_path_factory.mktemp("ring")
    inputs = {name: ring_inputs(lengths) for name, lengths in RING_LENGTHS.items()}
    torch.save((inputs, RING_MISTAKES), folder / "inputs.pt")
    (folder / "worker.py").write_text(RING_WORKER, encoding="utf-8")
    command = [sys.executable, str(folder / "worker.py")]
    workers = [
        subprocess.Popen([*command, str(rank), str(folder)], stderr=subprocess.PIPE, text=True, cwd=paths.ROOT)
        for rank in range(3)
    ]
    try:
        errors = [worker.communicate(timeout=120)[1] for worker in workers]
        assert [worker.returncode for worker in workers] == [0, 0, 0], "\n".join(errors)
    finally:
        for worker in workers:
            worker.kill()
    return inputs, [torch.load(folder / f"{rank}.pt") for rank in range(3)]


@IN_ONE_RING
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", RING_LENGTHS)
def test_ring_of_three_equals_one(ring_run, name, causal):
    inputs, found = ring_run
    striped = name == "striped"
    expected = ring_expected(inputs[name], causal, striped)
    assert ring_difference([own[name, causal] for own in found], expected, striped) < 1e-10


@IN_ONE_RING
def test_ring_in_a_group_of_two(ring_run):
    inputs, found = ring_run  # processes 1 and 2 are 0 and 1 of the group
    expected = ring_expected(inputs["uneven"][1:], True)
    assert ring_difference([own["group"] for own in found[1:]], expected) < 1e-10


@IN_ONE_RING
@pytest.mark.parametrize("which", range(len(RING_MISTAKES)))
def test_ring_mistakes_are_noticed(ring_run, which):
    inputs, found = ring_run
    expected = ring_expected(inputs["even"], True)
    assert ring_difference([own["mistakes"][which] for own in found], expected) > 1e-3
    assert ring_difference([own["right again"] for own in found], expected) < 1e-10


@IN_ONE_RING
def test_ring_refuses_on_every_process(ring_run):
    _, found = ring_run
    assert found[0]["refused"] == found[1]["refused"] == found[2]["refused"]
    parts = [
        ("one T", "process 1 holds (2, 5, 4), (2, 5, 4), (2, 6, 4)", "own_slice"),
        ("process 2 holds (4,)", "own_slice"),
        ("agree in all but the length", "on process 0", "(3, 5, 4)", "on process 1"),
        ("causal", "True", "False", "call it alike"),
        ("[4, 4, 4]", "got [3, 4, 5]", "striped=True"),
    ]
    for message, expected in zip(found[0]["refused"], parts, strict=True):
        assert all(part in message for part in expected), message


@IN_ONE_RING
def test_ring_counts_are_those_planned(ring_run):
    costs = ring_run[1][0]["costs"]
    slice_numbers = 128 * 2 * 32  # keys and values of 384 / 3 tokens, 32 numbers each
    assert costs["messages"] == [2, 2, 2]
    assert costs["sent"] == [2 * slice_numbers] * 3
    assert costs["sent in both"] == [(2 + 2 + 3) * slice_numbers] * 3  # back: keys and values, and gradients to go home
    for name, striped in (("pairs", False), ("striped pairs", True)):
        planned = ring_blocks.computed_pairs([128] * 3, causal=True, striped=striped)
        assert costs[name] == [sum(row) for row in planned]


def test_ring_blocks_by_hand():
    plain = ring_blocks.computed_pairs([64] * 3, causal=True)  # a slice is one tile
    assert plain == [[4096, 0, 0], [4096, 4096, 0], [4096, 4096, 4096]]
    assert ring_blocks.computed_pairs([2, 3], causal=False) == [[4, 6], [9, 6]]
    halves = ring_blocks.computed_pairs([128] * 2, causal=True)  # tiles of 64: 64 · 64 + 64 · 128 on the diagonal
    assert halves == [[12288, 0], [12288, 16384]]
    assert ring_blocks.slice_positions([3, 0, 2]) == [range(0, 3), range(3, 3), range(3, 5)]
    assert [list(x) for x in ring_blocks.slice_positions([3, 2], striped=True)] == [[0, 2, 4], [1, 3]]
    with pytest.raises(ValueError, match=r"must have the lengths \[3, 2\]: got \[2, 3\]; cut them with own_slice"):
        ring_blocks.slice_positions([2, 3], striped=True)


@pytest.mark.parametrize("striped", [False, True])
@pytest.mark.parametrize("processes", [1, 2, 3, 4, 7])
def test_own_slices_make_up_the_whole(processes, striped):
    x = torch.randn(2, 5, 3)  # with 7 processes, two hold nothing
    slices = [ring_attention.own_slice(x, rank, processes, striped=striped) for rank in range(processes)]
    assert torch.equal(ring_join(slices, striped), x)
    positions = ring_blocks.slice_positions([part.size(-2) for part in slices], striped)
    for part, where in zip(slices, positions, strict=True):
        assert torch.equal(part, x[:, list(where)])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("lengths", "striped"), [((13,), False), ((5, 11, 2), False), ((1, 0, 1), False), ((4, 4, 3), True)]
)
def test_ring_in_one_process(lengths, striped, causal):
    inputs = ring_inputs(lengths)
    slices = [[x.clone().requires_grad_() for x in own[:3]] for own in inputs]
    outputs = ring_blocks.ring_in_one_process(*zip(*slices, strict=True), causal=causal, striped=striped)
    upstream = ring_join([own[3] for own in inputs], striped)
    leaves = [x for own in slices for x in own]
    slopes = torch.autograd.grad(ring_join(outputs, striped), leaves, upstream, materialize_grads=True)
    results = [[out.detach(), *slopes[3 * rank : 3 * rank + 3]] for rank, out in enumerate(outputs)]
    assert ring_difference(results, ring_expected(inputs, causal, striped), striped) < 1e-10


def test_ring_needs_a_process_group():
    x = torch.zeros(3, 2)
    with pytest.raises(ValueError, match="needs a process group: there is none; start with torchrun"):
        ring_attention.ring_attention(x, x, x)


def test_ring_under_torchrun(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    script = ["phase4_causal/ring_attention.py", "--quick", "--length", "17", "--output-dir", str(tmp_path)]
    done = subprocess.run(
        [*command, *script],
        cwd=paths.ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("findings:") == 1  # only process 0 prints
    file = tmp_path / "data" / "processed" / "findings" / "phase4_causal.ring_attention.json"
    records = {record["id"]: record for record in json.loads(file.read_text(encoding="utf-8"))}
    assert list(records) == ["ring-equals-one", "ring-memory", "ring-imbalance"]
    assert records["ring-equals-one"]["verdict"] == "holds"
    assert max(records["ring-equals-one"]["measured"].values()) < 1e-10
    assert records["ring-imbalance"]["measured"]["blocks of the last"] == 2


# ------------------------------------------------------------------------------------------------------------ induction


def induction_sample(count: int = 37, **options) -> Tensor:
    return induction_scores.repeated_sequences(count, torch.Generator().manual_seed(5), **options)


def induction_random_weights(tokens: Tensor, heads: int = 3) -> Tensor:
    """Causal attention weights of random scores, float64 (N, H, T, T)."""
    count, length = tokens.shape
    values = torch.randn(count, heads, length, length, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return values.masked_fill(~causal_mask(length), -math.inf).softmax(dim=-1)


def induction_run(num_layers: int = 2, seed: int = 3) -> induction_scores.Run:
    """An untrained model on 7 sequences; the scores are those that measuring gives."""
    model, tokens = induction_scores.new_model(num_layers, seed).double(), induction_sample(7)
    matched, previous = induction_scores.scores(model, tokens)
    loss = induction_scores.repeated_loss(model, tokens).item()
    return induction_scores.Run(model, tokens, [0], [loss], matched[None], previous[None])


def test_induction_sequences_repeat_a_block_of_their_own():
    tokens = induction_sample(300)
    assert tokens.shape == (300, induction_scores.LENGTH)
    assert len(SPECIAL) <= tokens.min() and tokens.max() < len(SPECIAL) + induction_scores.SYMBOLS <= len(VOCABULARY)
    periods, first_words = set(), set()
    for row in tokens.tolist():
        period = next(p for p in range(1, len(row)) if row[p] == row[0])  # the block has no word twice
        assert len(set(row[:period])) == period
        assert all(row[i] == row[i - period] for i in range(period, len(row)))
        periods.add(period)
        first_words.add(row[0])
    assert periods == set(range(8, 17))  # no fixed distance is right more often than one time in nine
    assert len(first_words) > 50


def test_induction_sequences_can_be_other_than_in_training():
    longer = induction_sample(50, periods=(17, 24), length=61)
    assert longer.shape == (50, 61)
    assert all(17 <= len(set(row)) <= 24 for row in longer.tolist())
    control = induction_scores.unrepeated_sequences(20, torch.Generator().manual_seed(2))
    assert all(len(set(row)) == induction_scores.LENGTH for row in control.tolist())
    assert not induction_scores.predictable(control).any()
    with pytest.raises(ValueError, match=r"1 <= shortest <= longest <= 64 different words: got \(8, 65\)"):
        induction_sample(1, periods=(8, 65))
    with pytest.raises(ValueError, match=r"got \(9, 8\)"):
        induction_sample(1, periods=(9, 8))


def test_induction_places_against_a_plain_loop():
    tokens = torch.randint(5, (11, 13), generator=torch.Generator().manual_seed(0))  # words also come back unplanned
    gold, certain = induction_scores.after_earlier_occurrence(tokens), induction_scores.predictable(tokens)
    for n in range(11):
        for i in range(13):
            places = {j + 1 for j in range(i) if tokens[n, j] == tokens[n, i]}
            assert set(gold[n, i].nonzero().flatten().tolist()) == places
            assert certain[n, i] == bool(places)


def test_induction_predictable_places_are_those_from_the_second_copy_on():
    tokens = induction_sample(29)
    for row, certain in zip(tokens.tolist(), induction_scores.predictable(tokens).tolist(), strict=True):
        period = len(set(row))
        assert certain == [i >= period for i in range(len(row))]


def test_induction_score_against_a_plain_loop():
    tokens = induction_sample(5, periods=(2, 5), length=11)
    weights, gold = induction_random_weights(tokens), induction_scores.after_earlier_occurrence(tokens)
    for head, score in enumerate(induction_scores.induction_score(weights, gold)):
        rows = []
        for n, row in enumerate(tokens.tolist()):
            for i in range(11):
                places = [j + 1 for j in range(i) if row[j] == row[i]]
                if places:
                    rows.append(sum(weights[n, head, i, j].item() for j in places))
        torch.testing.assert_close(score.item(), sum(rows) / len(rows), rtol=1e-12, atol=0)
    before = [weights[n, 2, i, i - 1].item() for n in range(5) for i in range(1, 11)]
    torch.testing.assert_close(induction_scores.previous_token_score(weights)[2].item(), sum(before) / len(before))


def test_induction_score_of_heads_that_are_known():
    tokens = torch.tensor([[7, 9, 7, 9]])  # query 2 should look at place 1, query 3 at place 2
    gold = induction_scores.after_earlier_occurrence(tokens)
    assert induction_scores.even_score(gold) == pytest.approx((1 / 3 + 1 / 4) / 2, rel=1e-6)
    eye = torch.eye(4, dtype=torch.float64)
    perfect, match, before = eye[[0, 0, 1, 2]], eye[[0, 1, 0, 1]], eye[[0, 0, 1, 2]]
    scores = induction_scores.induction_score(torch.stack([perfect, match, eye])[None], gold)
    assert scores.tolist() == [1, 0, 0]  # looking at the same word is not looking behind it
    assert induction_scores.previous_token_score(torch.stack([before, eye])[None]).tolist() == [1, 0]
    thrice = torch.tensor([[5, 6, 8] * 3])
    shared_out = induction_scores.after_earlier_occurrence(thrice).double()
    shared_out[shared_out.sum(dim=-1) == 0] = torch.eye(9, dtype=torch.float64)[0]
    shared_out = shared_out / shared_out.sum(dim=-1, keepdim=True)
    score = induction_scores.induction_score(shared_out[:, None], induction_scores.after_earlier_occurrence(thrice))
    assert score.item() == pytest.approx(1)  # the ceiling is 1 however often the block is repeated


def test_induction_by_two_heads_made_by_hand():
    """A previous-token head and a head that matches words with what the first one left: score 1, every guess right."""
    tokens = induction_sample(13)
    words = torch.nn.functional.one_hot(tokens, len(VOCABULARY)).double()  # (N, T) -> (N, T, V)
    length, mask = tokens.size(1), causal_mask(tokens.size(1))
    places = torch.eye(length, dtype=torch.float64).expand(len(tokens), -1, -1)
    one_back = 1e4 * places.roll(-1, dims=-1)  # query i asks for place i - 1
    before, first = scaled_dot_product_attention(one_back, places, words, mask)
    before[:, 0] = 0  # the first place has none before it
    found, second = scaled_dot_product_attention(1e4 * words, before, words, mask)
    gold = induction_scores.after_earlier_occurrence(tokens)
    assert induction_scores.previous_token_score(first[:, None]).item() == pytest.approx(1)
    assert induction_scores.induction_score(second[:, None], gold).item() == pytest.approx(1)
    certain = induction_scores.predictable(tokens[:, :-1])
    assert (found[:, :-1].argmax(dim=-1) == tokens[:, 1:])[certain].all()
    alone, same = scaled_dot_product_attention(1e4 * words, words, words, mask)  # one layer: keys hold their own word
    assert induction_scores.induction_score(same[:, None], gold).item() < 0.01
    assert not (alone[:, :-1].argmax(dim=-1) == tokens[:, 1:])[certain].any()


def test_induction_loss_and_right_guesses_against_a_plain_loop():
    run = induction_run()
    logits, _ = run.model(run.tokens[:, :-1])
    losses, hits, late = [], [], []
    for n, row in enumerate(run.tokens.tolist()):
        for i in range(len(row) - 1):
            if row[i] in row[:i]:
                losses.append(-logits[n, i].log_softmax(dim=-1)[row[i + 1]].item())
                hits.append(logits[n, i].argmax().item() == row[i + 1])
                late += [hits[-1]] if i >= 20 else []
    assert run.loss[0] == pytest.approx(sum(losses) / len(losses), rel=1e-6)
    assert induction_scores.right(run.model, run.tokens) == pytest.approx(sum(hits) / len(hits))
    assert induction_scores.right(run.model, run.tokens, first=20) == pytest.approx(sum(late) / len(late))


@torch.no_grad()
def test_induction_ablation_is_cutting_columns_of_w_o():
    run = induction_run()
    model, layer, head = induction_measures.measured(run), 1, 2
    full, d_v = loss_without(model, frozenset()), 64 // induction_scores.HEADS
    assert full == pytest.approx(run.loss[0], rel=1e-12)
    gone = loss_without(model, frozenset([(layer, head)]))
    columns = slice(head * d_v, (head + 1) * d_v)
    attention = run.model.blocks[layer].attention
    kept = attention.w_o.weight[:, columns].clone()
    attention.w_o.weight[:, columns] = 0
    assert loss_without(model, frozenset()) == pytest.approx(gone, rel=1e-12)
    attention.w_o.weight[:, columns] = kept
    assert abs(gone - full) > 1e-4
    attention.w_v.weight[columns] = 0
    attention.w_v.bias[columns] = 0  # now the output of the head is zero: there is nothing to remove
    assert removal_importance(model)[layer, head] == 0


def test_induction_fall_and_best_heads():
    steps, uniform = [0, 10, 20, 30, 40], math.log(induction_scores.SYMBOLS)
    track = torch.zeros(5, 2, induction_scores.HEADS)
    track[:, 1, 3] = torch.tensor([0.0, 0.1, 0.3, 0.9, 1.0])
    track[-1, 1, 0], previous = 0.5, torch.zeros_like(track)
    previous[-1, 0, 1], previous[-1, 1, 2] = 0.4, 0.9  # the second one is not in the first layer
    loss = [share * uniform for share in (1.4, 1.0, 0.7, 0.2, 0.01)]
    run = induction_scores.Run(None, torch.zeros(1, 3), steps, loss, track, previous)
    outcome = induction_measures.Outcome(run, run, track[0], 0, 0, 0, 0, 0, 0, {})
    assert outcome.fall == (20, 30) and outcome.formed == 30 and induction_measures.learned(run)
    assert run.best_induction == (1, 3) and run.best_previous == (0, 1)
    assert induction_measures.induction_heads(run) == {(1, 0), (1, 3)}
    flat = induction_scores.Run(None, torch.zeros(1, 3), steps, [uniform] * 5, track, previous)
    never = induction_measures.Outcome(flat, flat, track[0], 0, 0, 0, 0, 0, 0, {})
    assert never.fall == (40, 40) and not induction_measures.learned(flat)


def test_induction_exponential_decay_is_not_sudden():
    """The control of the rule: an even decay needs 3.8 times the wait, far from the limit of 1."""
    steps, uniform = list(range(0, 4001)), math.log(induction_scores.SYMBOLS)
    loss = [uniform * math.exp(-step / 1000) for step in steps]
    run = induction_scores.Run(None, torch.zeros(1), steps, loss, torch.zeros(1, 2, 4), torch.zeros(1, 2, 4))
    wait, end = run.first_below(0.75), run.first_below(0.25)
    assert (end - wait) / wait == pytest.approx(induction_measures.EXPONENTIAL, rel=0.01)


def test_induction_run_writes_picture_and_findings(tmp_path):
    induction.main(["--quick", "--output-dir", str(tmp_path)])
    assert (tmp_path / "visualizations/plots/phase4/induction.png").stat().st_size > 10_000
    found = json.loads((tmp_path / "data/processed/findings/phase4_causal.induction.json").read_text())
    assert found[0]["id"] == "induction-phase-change" and len(found) == 7
    assert not any(finding["verdict"] == "holds" for finding in found)  # 30 steps teach nothing: no rule may be met


# ---------------------------------------------------------------------------------------------------- strides and tiles


SPARSE_LENGTHS = [(12, 12), (17, 17), (5, 17), (17, 5), (1, 7)]
SPARSE_ALLOWED = torch.tensor([[1, 0, 0, 1], [0, 0, 0, 0], [0, 1, 1, 0]], dtype=torch.bool)  # the second row is empty


def sparse_inputs(t_q, t_k, leading=(2, 3)):
    generator = torch.Generator().manual_seed(t_q * 100 + t_k)
    make = partial(torch.randn, dtype=torch.float64, generator=generator, requires_grad=True)
    return make(*leading, t_q, 5), make(*leading, t_k, 5), make(*leading, t_k, 4)


def sparse_assert_same(output, expected, inputs):
    """Outputs and gradients of query, key, value."""
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-10)
    upstream = torch.randn_like(expected)
    slopes = (torch.autograd.grad(y, inputs, upstream, retain_graph=True) for y in (output, expected))
    for ours, theirs in zip(*slopes, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


def sparse_torch(query, key, value, mask):
    """PyTorch's own function, with 0 where a query sees no key."""
    output = F.scaled_dot_product_attention(query, key, value, attn_mask=mask | ~mask.any(-1, keepdim=True))
    return output * mask.any(-1, keepdim=True)


@pytest.mark.parametrize(("t_q", "t_k"), SPARSE_LENGTHS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("stride", [1, 4, 7, 19])
def test_sparse_strided_is_masked_attention(t_q, t_k, causal, stride):
    """Lengths that the stride divides and others, more and fewer queries than keys, strides longer than the text."""
    inputs = sparse_inputs(t_q, t_k)
    mask = strided_mask(t_q, t_k, stride)
    mask = mask & causal_mask(t_q, t_k) if causal else mask
    output = strided_attention(*inputs, stride=stride, causal=causal)
    sparse_assert_same(output, sparse_torch(*inputs, mask), inputs)
    assert not output[..., ~mask.any(dim=-1), :].any(), "a query that sees no key gets 0"


def test_sparse_strided_loops_and_broadcasting():
    for t_q, t_k in SPARSE_LENGTHS:
        inputs = [x.detach() for x in sparse_inputs(t_q, t_k, leading=())]
        for causal in (False, True):
            by_loops = strided_by_loops(*inputs, stride=3, causal=causal)
            torch.testing.assert_close(strided_attention(*inputs, stride=3, causal=causal), by_loops)
    query, key, value = (x.detach() for x in sparse_inputs(11, 11))
    shared_key = strided_attention(query, key[:1, :1], value, stride=4, causal=True)
    assert torch.equal(shared_key, strided_attention(query, key[:1, :1].expand_as(key), value, stride=4, causal=True))
    no_axes = strided_attention(query, key[0, 0], value, stride=4)
    torch.testing.assert_close(no_axes, strided_attention(query, key[:1, :1].expand_as(key), value, stride=4))


def test_sparse_strided_by_hand():
    """Equal keys: the plain mean. Stride 2 of 5: positions 0, 2, 4 and 1, 3; causal: the mean of those so far."""
    flat, value = torch.zeros(5, 3), torch.tensor([[1.0], [10.0], [3.0], [30.0], [8.0]])
    assert strided_attention(flat, flat, value, stride=2).flatten().tolist() == [4, 20, 4, 20, 4]
    assert strided_attention(flat, flat, value, stride=2, causal=True).flatten().tolist() == [1, 10, 2, 20, 4]
    last_two = strided_attention(flat[:2], flat, value, stride=2)
    assert last_two.flatten().tolist() == [20, 4], "the last query stands at the last key"


@pytest.mark.parametrize(("t_q", "t_k"), [(12, 16), (9, 13), (10, 15)])
def test_sparse_tiles_are_masked_attention(t_q, t_k):
    """Whole tiles and shorter last ones; the second row of tiles is empty."""
    inputs = sparse_inputs(t_q, t_k)
    mask = torch.tensor([[bool(SPARSE_ALLOWED[i // 4, j // 4]) for j in range(t_k)] for i in range(t_q)])
    assert torch.equal(tile_mask(SPARSE_ALLOWED, 4, t_q, t_k), mask)
    output = block_sparse_attention(*inputs, block_size=4, allowed=SPARSE_ALLOWED)
    sparse_assert_same(output, sparse_torch(*inputs, mask), inputs)
    assert not output[..., 4:8, :].any(), "a query without a tile gets 0"
    alone = [x[0, 0] for x in inputs]
    by_loops = block_sparse_by_loops(*alone, block_size=4, allowed=SPARSE_ALLOWED)
    torch.testing.assert_close(output[0, 0], by_loops)


def test_sparse_tiles_all_or_none():
    inputs = sparse_inputs(10, 10)
    everything, nothing = torch.ones(4, 4, dtype=torch.bool), torch.zeros(4, 4, dtype=torch.bool)
    full = F.scaled_dot_product_attention(*inputs)
    sparse_assert_same(block_sparse_attention(*inputs, block_size=3, allowed=everything), full, inputs)
    output = block_sparse_attention(*inputs, block_size=3, allowed=nothing)
    assert not output.any() and not torch.autograd.grad(output.sum(), inputs)[0].any()


def test_sparse_hidden_tiles_are_not_read():
    """A NaN in them would show in a masked computation, since 0 · NaN is NaN."""
    query, key, value = (x.detach().clone() for x in sparse_inputs(12, 12))
    key[..., 8:, :] = value[..., 8:, :] = math.nan
    near = tile_pattern(3, window=0)
    assert block_sparse_attention(query, key, value, block_size=4, allowed=near)[..., 4:8, :].isfinite().all()
    masked, _ = scaled_dot_product_attention(query, key, value, tile_mask(near, 4, 12, 12))
    assert masked.isnan().all()


def test_sparse_wrong_patterns_are_noticed():
    """Planted mistakes: another stride, queries aligned with the first key, the tile matrix transposed."""
    inputs = sparse_inputs(9, 16)
    output = strided_attention(*inputs, stride=3)
    for wrong in (strided_mask(9, 16, 4), strided_mask(16, 16, 3)[:9]):
        with pytest.raises(AssertionError):
            sparse_assert_same(output, sparse_torch(*inputs, wrong), inputs)
    inputs = sparse_inputs(12, 12)
    one_way = torch.ones(3, 3, dtype=torch.bool).tril()
    output = block_sparse_attention(*inputs, block_size=4, allowed=one_way)
    with pytest.raises(AssertionError):
        sparse_assert_same(output, sparse_torch(*inputs, tile_mask(one_way.T, 4, 12, 12)), inputs)


def test_sparse_tile_pattern():
    by_hand = [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 0, 1, 1, 1], [1, 0, 0, 1, 1]]
    near_and_first = tile_pattern(5)
    assert near_and_first.int().tolist() == by_hand
    assert torch.equal(tile_pattern(5, num_global=0, window=2), local_mask(5, 5, 2))
    for seed in range(3):
        big_bird = tile_pattern(9, num_random=2, seed=seed)
        added = big_bird & ~tile_pattern(9)
        assert big_bird[0].all() and added[1:].sum(dim=-1).tolist() == [2] * 8
    assert torch.equal(tile_pattern(9, num_random=2, seed=1), tile_pattern(9, num_random=2, seed=1))
    assert not torch.equal(tile_pattern(9, num_random=2, seed=1), tile_pattern(9, num_random=2, seed=2))


def test_sparse_memory():
    """Far below one T x T matrix, backward included; strided: T²/stride, so four times for twice the length."""
    length = 1024
    inputs = torch.randn(3, 1, length, 16, requires_grad=True)
    tiles = partial(block_sparse_attention, block_size=64, allowed=tile_pattern(16, num_random=1))
    for attention in (partial(strided_attention, stride=32), tiles):
        peak = peak_memory(lambda attention=attention: torch.autograd.grad(attention(*inputs).sum(), inputs))
        assert peak < length * length * 4 / 2
    for size in (512, 1024):
        x = torch.randn(1, size, 16)
        allowed = tile_pattern(size // 64)
        peak = peak_memory(partial(block_sparse_attention, x, x, x, block_size=64, allowed=allowed))
        assert peak < 8 * size * (16 + 64) * 4, "forward memory must be O(T (d + block))"


def test_sparse_errors():
    x = torch.randn(6, 3)
    with pytest.raises(ValueError, match="stride must be 1 or more: got 0"):
        strided_attention(x, x, x, stride=0)
    with pytest.raises(ValueError, match="block_size must be 1 or more: got 0"):
        block_sparse_attention(x, x, x, block_size=0, allowed=torch.ones(6, 6, dtype=torch.bool))
    for allowed in (torch.ones(3, 2, dtype=torch.bool), torch.ones(2, 2)):
        with pytest.raises(ValueError, match=r"bool, one cell for each tile of 4 x 4, \(2, 2\): got torch"):
            block_sparse_attention(x, x, x, block_size=4, allowed=allowed)
    tiles = partial(block_sparse_attention, block_size=3, allowed=torch.ones(2, 2, dtype=torch.bool))
    for function in (partial(strided_attention, stride=2), tiles):
        with pytest.raises(ValueError, match="same length T_k: got 6 and 5"):
            function(x, x, x[:5])


def test_sparse_reach_by_hand():
    """A window of 1 over 4 positions: 1 step a layer, 3 layers; stride 2 keeps odd and even apart."""
    after = [seen.int().tolist() for seen in sparse_reach.reach([local_mask(4, 4, 1)] * 2)]
    assert after[0] == [[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 1, 1]]
    assert after[1] == [[1, 1, 1, 0], [1, 1, 1, 1], [1, 1, 1, 1], [0, 1, 1, 1]]
    all_pairs = torch.ones(4, 4, dtype=torch.bool)
    near, far = local_mask(4, 4, 1), strided_mask(4, 4, 2)
    assert sparse_reach.layers_needed([near], all_pairs) == 3
    assert sparse_reach.layers_needed([far], all_pairs) == math.inf
    assert sparse_reach.layers_needed([near, far], all_pairs) == 2
    assert sparse_reach.layers_needed([all_pairs], all_pairs) == 1
    past = causal_mask(4)
    assert sparse_reach.layers_needed([near & past], past) == 3
    assert sparse_reach.layers_needed([past], all_pairs) == math.inf, "nobody hears of the future"
    nothing_new = torch.eye(4, dtype=torch.bool)
    assert sparse_reach.layers_needed([nothing_new, all_pairs], all_pairs) == 2, "one idle layer is not the end"


def test_sparse_reach_is_a_product_of_paths():
    """Reach after n layers = pairs joined by a path of n steps, from the integer matrix power."""
    allowed = tile_pattern(6, window=0, num_global=0, num_random=1, seed=3)
    for n, seen in enumerate(sparse_reach.reach([allowed] * 4), start=1):
        assert torch.equal(seen, torch.linalg.matrix_power(allowed.double(), n) > 0)


def test_sparse_score_cells():
    """Counted at the products: T² under a mask, and the sum of the tiles or the T²/stride pairs without one."""
    allowed = tile_pattern(6, num_random=1)
    for length in (48, 45):  # a shorter last tile
        cells = int(tile_mask(allowed, 8, length, length).sum())
        tiles = partial(block_sparse_attention, block_size=8, allowed=allowed)
        assert sparse_reach.score_cells(tiles, length) == cells
    assert sparse_reach.score_cells(partial(strided_attention, stride=8), 48) == 48 * 48 // 8
    assert sparse_reach.score_cells(sparse_reach.masked(strided_mask(48, 48, 8)), 48) == 48 * 48


def test_sparse_reach_table():
    table = sparse_reach.reach_table(64)
    assert table[sparse_reach.LOCAL] == (8, 8)  # 63 steps of 8
    assert table[sparse_reach.STRIDED] == (math.inf, math.inf)
    assert table[sparse_reach.IN_TURN] == (2, 2)
    assert table[sparse_reach.FIRST][0] == 2 < table[sparse_reach.FIRST][1]


def test_sparse_reach_runs(tmp_path, capsys):
    sparse_reach.main(["--quick", "--output-dir", str(tmp_path)])
    assert "never" in capsys.readouterr().out
    assert (tmp_path / "visualizations/plots/phase4/sparse_reach.png").exists()


# ------------------------------------------------------------------------------------- the course: scripts side by side


def course_script(name, monkeypatch, main):
    """A script that exists in memory only; the processes of a pool, forked later, know it, too."""
    module = types.ModuleType(name)
    module.main = main
    monkeypatch.setitem(sys.modules, name, module)
    return module


def course_echo(name, monkeypatch):
    return course_script(name, monkeypatch, lambda argv: print(f"{name} got {argv}"))


def test_the_course_shows_scripts_in_reading_order_and_trains_first(monkeypatch, capsys):
    train, first, second, long = (course_echo(f"course_{name}", monkeypatch) for name in ("t", "one", "two", "long"))
    plan = course.Plan(train=[train], in_order=[first, second], long=[long])
    with multiprocessing.get_context("fork").Pool(2) as pool:
        course.run_side_by_side(pool, [plan, course.Plan(train=[train], in_order=[])], ["--quick", "--retrain"])
    lines = [line for line in capsys.readouterr().out.splitlines() if line]
    assert lines == [
        "course_t got ['--train-only', '--quick', '--retrain']",
        *["== course_one.py", "course_one got ['--quick']", "== course_two.py", "course_two got ['--quick']"],
        *["== course_long.py", "course_long got ['--quick']"],
    ]


@pytest.mark.parametrize("fails", ["train", "script"])
def test_a_script_that_fails_ends_the_course_with_its_code(monkeypatch, capsys, fails):
    def broken(_argv):
        print("so far")
        print("what is wrong", file=sys.stderr)
        sys.exit(3)

    bad, good = course_script("course_bad", monkeypatch, broken), course_echo("course_good", monkeypatch)
    plan = course.Plan(train=[bad if fails == "train" else good], in_order=[bad, good])
    with multiprocessing.get_context("fork").Pool(2) as pool, pytest.raises(SystemExit) as stopped:
        course.run_side_by_side(pool, [plan], [])
    assert stopped.value.code == 3
    printed = capsys.readouterr().out
    assert printed.endswith("so far\nwhat is wrong\n") and "course_good.py" not in printed


def test_run_script_catches_what_is_printed_and_errors_only_if_it_fails(monkeypatch, capsys):
    def warns(_argv):
        print("result")
        print("a progress bar", file=sys.stderr)

    def breaks(_argv):
        raise OSError(28, "No space left on device", "picture.png")

    course_script("course_warns", monkeypatch, warns)
    course_script("course_breaks", monkeypatch, breaks)
    assert course.run_script("course_warns", []) == (0, "result\n")
    assert course.run_script("course_breaks", []) == (2, "picture.png: No space left on device\n")
    assert capsys.readouterr() == ("", "")


def test_the_course_knows_every_script_of_its_phases():
    """A script that records findings stands in a plan, or nobody would run it."""
    for phase in course.PHASES.values():
        plan = importlib.import_module(f"{phase}.__main__").PLAN
        planned = {script.__name__ for script in plan.in_order + plan.long + plan.alone + plan.longer}
        assert len(planned) == len(plan.in_order + plan.long + plan.alone + plan.longer)
        for path in sorted((paths.ROOT / phase).glob("*.py")):
            if path.stem not in NOT_RUN and "findings.record(" in path.read_text():
                assert f"{phase}.{path.stem}" in planned


def test_the_course_refuses_unknown_words_and_options_before_it_starts(capsys):
    for argv, message in ((["phase9"], "unknown word 'phase9': say all, phase1"), (["--sede", "1"], "unrecognized")):
        with pytest.raises(SystemExit) as stopped:
            course.main(argv)
        assert stopped.value.code == 2 and message in capsys.readouterr().err


# -------------------------------------------------------------------------------- claims and the numbers of the lessons


PHASES = tuple(course.PHASES.values())


@pytest.fixture(scope="module")
def claim_table():
    return claims.read_table()


def claim_entry(name="C001", **changes):
    """One recorded finding, as a script writes it."""
    return {
        "id": name,
        "claim": f"what {name} says",
        "verdict": findings.HOLDS,
        "condition": "",
        "script": "phase1_single_head/scaling.py",
        "unit": "share",
        "measured": {"one": 0.5, "a list": [0.25, 1e-16]},
    } | changes


def test_each_claim_of_the_notes_stands_in_the_table_once(claim_table):
    names = [entry["id"] for entry in claim_table]
    assert names[:182] == [f"C{number:03d}" for number in range(1, 183)]
    assert len(names) == len(set(names))
    for entry in claim_table:
        if "script" in entry:
            assert entry["verdict"] in findings.VERDICTS and entry["measured"], entry["id"]
        elif entry["verdict"] == claims.CITED:
            assert isinstance(entry["holds"], bool) and entry["source"] and entry["reason"], entry["id"]
        else:
            assert entry["verdict"] in (claims.OPINION, claims.NOT_HERE) and entry["reason"], entry["id"]


@functools.cache
def strings_in(path):
    """All string constants of a script; of an f-string its parts."""
    tree = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return {node.value for node in tree if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def names_claim(strings, entry):
    """Do id and claim stand there? An f-string gives them in parts: the id by its beginning, the claim by a piece."""
    name = entry["id"] in strings or any(len(s) > 4 and s[-1] == "-" and entry["id"].startswith(s) for s in strings)
    return name and (entry["claim"] in strings or any(len(s) > 8 and s in entry["claim"] for s in strings))


def test_measured_claims_name_the_script_that_records_them(claim_table):
    for entry in claim_table:
        if "script" not in entry:
            continue
        script = paths.ROOT / entry["script"]
        assert script.exists(), entry["id"]
        strings = strings_in(script)  # or in a module beside it that writes its findings
        if not names_claim(strings, entry):
            strings |= {text for path in script.parent.glob("*.py") for text in strings_in(path)}
        assert names_claim(strings, entry), entry["id"]


def test_the_readable_table_is_that_of_the_data(claim_table):
    text = (paths.ROOT / claims.PAGE).read_text(encoding="utf-8")
    assert text == claims.page(claim_table)
    for link in re.findall(r"\]\(([^)]+)\)", text):
        assert (paths.ROOT / "data" / link).exists(), link


def test_entries_by_hand_are_those_of_the_table(claim_table):
    by_hand = json.loads(claims.BY_HAND.read_text(encoding="utf-8"))
    assert by_hand == [entry for entry in claim_table if "script" not in entry]


def wrong_rows(lesson, table):
    """Rows of a lesson's table of claims whose mark or claim is not what the table records."""
    known = {entry["id"]: entry for entry in table}
    wrong = []
    for mark, name, text in re.findall(r"^\| ([+x~]) \| ([\w-]+): (.*) \| \[.*\]\(.*\) \|$", lesson, re.MULTILINE):
        entry = known.get(name)
        said = entry and entry["claim"] + (f". *only if {entry['condition']}*" if "condition" in entry else "")
        if entry is None or mark != findings.MARKS.get(entry["verdict"]) or text != said:
            wrong.append(name)
    return wrong


@pytest.mark.parametrize("phase", PHASES)
def test_marks_and_claims_of_a_lesson_are_the_recorded_ones(claim_table, phase):
    assert wrong_rows((paths.ROOT / phase / "README.md").read_text(encoding="utf-8"), claim_table) == []


def test_every_measured_claim_has_a_row_in_some_lesson(claim_table):
    lessons = "".join((paths.ROOT / phase / "README.md").read_text(encoding="utf-8") for phase in PHASES)
    rows = set(re.findall(r"^\| [+x~] \| ([\w-]+): ", lessons, re.MULTILINE))
    assert {entry["id"] for entry in claim_table if "script" in entry} == rows


def test_a_wrong_mark_claim_or_condition_in_a_lesson_is_noticed():
    table = [claim_entry(), claim_entry("C002", verdict=findings.ONLY_IF, condition="it is large")]
    good = "| + | C001: what C001 says | [a](a.py) |\n| ~ | C002: what C002 says. *only if it is large* | [a](a.py) |\n"
    del table[0]["condition"]
    assert wrong_rows(good, table) == []
    assert wrong_rows(good.replace("| + |", "| x |"), table) == ["C001"]
    assert wrong_rows(good.replace("large", "small"), table) == ["C002"]
    assert wrong_rows(good.replace("C001 says", "C001 does not say"), table) == ["C001"]
    assert wrong_rows(good.replace("C002:", "C003:"), table) == ["C003"]


def test_a_table_without_a_claim_or_with_one_twice_is_refused():
    entries = [claim_entry(name) for name in claims.CLAIM_IDS]
    other = claim_entry("an-own-name", condition="only here")
    built = claims.build([other, *entries], [])
    assert [entry["id"] for entry in built] == [*claims.CLAIM_IDS, "an-own-name"]
    assert "condition" not in built[0] and built[-1]["condition"] == "only here"
    with pytest.raises(ValueError, match="C100"):
        claims.build([entry for entry in entries if entry["id"] != "C100"], [])
    with pytest.raises(ValueError, match="C007"):
        claims.build(entries, [{"id": "C007", "claim": "", "verdict": claims.OPINION, "reason": "none"}])


def test_a_run_that_differs_from_the_table_is_noticed():
    recorded = [claim_entry(name) for name in claims.CLAIM_IDS]
    table = claims.build(recorded, [])
    assert claims.differences(recorded, table, tolerance=0.01) == []
    changed = [claim_entry(verdict=findings.FAILS), *recorded[1:]]
    assert [line[:13] for line in claims.differences(changed, table)] == ["C001: verdict"]
    assert "C001: no finding" in claims.differences(recorded[1:], table)[0]
    assert claims.differences([*recorded, claim_entry("more")], table) == ["more: new, not in the table"]
    moved = [claim_entry(measured={"one": 0.53, "a list": [0.25, 2e-16]}), *recorded[1:]]
    assert claims.differences(moved, table) == []
    assert len(claims.differences(moved, table, tolerance=0.01)) == 1  # 2e-16 is as good as 1e-16
    assert claims.differences(moved, table, tolerance=0.1) == []


def test_scripts_that_may_be_left_out_and_times_are_excused():
    sometimes, timed = claims.NOT_ALWAYS_RUN[0], claims.TIMED[0]
    recorded = [claim_entry(name) for name in claims.CLAIM_IDS]
    recorded += [claim_entry("extra", script=sometimes), claim_entry("time", script=timed)]
    table = claims.build(recorded, [])
    assert claims.differences([entry for entry in recorded if entry["id"] != "extra"], table) == []
    slower = [*recorded[:-1], claim_entry("time", script=timed, measured={"one": 5.0, "a list": [0.25, 1e-16]})]
    assert claims.differences(slower, table, tolerance=0.01) == []
    for script in (*claims.NOT_ALWAYS_RUN, *claims.TIMED):
        assert (paths.ROOT / script).exists(), script


def test_close_compares_numbers_lists_and_nan():
    assert claims.close([1.0, 2.0], [1.0, 2.02], 0.02) and not claims.close([1.0], [1.0, 2.0], 0.02)
    assert claims.close(math.nan, math.nan, 0.01) and claims.close(math.inf, math.inf, 0.01)
    assert not claims.close(1.0, math.nan, 0.01) and not claims.close(None, 1.0, 0.01)
    assert not claims.close([1.0], 1.0, 0.01) and claims.close(1e-16, 5e-15, 0.01)


# -- the numbers in the prose of the lessons

NUMBER = re.compile(r"(?<![\w.,√^])(\d+(?:,\d{3})+|\d+)(\.\d+)?(e-?\d+)?( ?%)?(?![\w])")

# Numbers that are right but that no finding records, by lesson and section, and where they come from instead.
ELSEWHERE = {
    "phase1_single_head": {
        "1. The bottleneck": "27 %, 82, 85 %",  # printed by bottleneck.py: going on from its own letters
        "2. By hand": "2.718, 0.368, 4.086, 0.665, 0.245, 0.090, 10, 7.55, 3.35",  # worked out, has a test of its own
        "3. In a trained model": "0.57",  # printed by self_attention.py
        # parameters by formula, memory and times as scoring_rules.py prints them
        "6. Which score": "16,384; 4,096; 320; 8,320; 85; 49,408; 40; 16,640",
        "8. Why divide by √d_k": "0.42",  # printed by scaling.py
        "10. The long path": "774, 2054",  # counted and printed by layer_costs.py
        "11. Reading weights": "17",  # the longest sentence of the toy language
        "12. What textbooks say": "0.88, 0.12",  # quoted
    },
    "phase2_multi_head": {
        "1. Two views of one thing": "0.74, 1.11",  # printed by multi_head_attention.py
        "4. What heads cost": "2.9 %, 14.6, 2.4",  # printed by cost_model.py
        "5. What heads learn": "2,500",  # steps of the recipe in shared/training.py
        "6. Are more heads better?": "1.21, 0.30, 0.21",  # the grammar's entropy; a run with --steps 900
        "7. Are all heads needed?": "0.40",  # printed by head_pruning.py
        "8. The block": "0.37",  # printed by rank_collapse.py: the middle one of its draws
        "10. Fused and grouped": "1.02, 0.87, 0.94, 1.05, 0.88, 0.95, 0.98, 0.97, 0.96",  # times
    },
    "phase3_visualization": {
        "1. Reading a map": "0.17, 0.15",  # 1/6, and the threshold that is in question
        "2. What each head does": "1.1",  # the name of a head
        "3. Another seed": "2,500; 0.91",  # a longer run of phase 2's script
        "4. Roles appear": "10 %, 400",  # the rule; steps of the recipe
        "5. How far": "2.60, 1.99, 2.66, 3.21",  # printed by attention_distance.py; the differences are recorded
        "8. A real model": "1.1e-4",  # printed by pretrained_parity.py
    },
    "phase4_causal": {
        "1. What may a word see": "0.58",  # recorded by mask_patterns.py (C104)
        "3. With and without": "4.6",  # ln of the size of the vocabulary
        "6. Writing": "77, 86 %, 26, 38 %",  # other seeds
        "8. Long texts": "1.2; 1.4; 8,192; 1.7; 58; 30",  # times, and lengths of the longer table
        "10. Induction": "2.20, 210, 50, 90",  # by formula; other seeds
    },
}


def prose(section):
    """A section without code, links' addresses, rows of the table of claims, years of papers, names of heads."""
    section = re.sub(r"^```.*?^```|^    .*?$|`[^`\n]*`|^\| [+x~] \|.*?$", "", section, flags=re.DOTALL | re.MULTILINE)
    section = re.sub(r"!\[.*?\]\(.*?\)|\]\(.*?\)|et al\.,? \(?\d{4}\)?|& \w+ \d{4}", "", section)
    section = re.sub(r"[Hh]eads? \d\.\d+(?: and \d\.\d+)?", "", section)
    return section.split("**Named, not measured")[0]


def sections(lesson, phase):
    """Heading -> text and scripts (by their paths): of the section, and of its row in the lesson's first table."""
    first, *rest = re.split(r"^## ", lesson, flags=re.MULTILINE)
    found = {}
    for part in rest:
        heading, text = part.split("\n", 1)
        anchor = re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
        rows = "".join(row for row in first.splitlines() if f"(#{anchor})" in row)
        links = set(re.findall(r"\]\(([\w./]+\.py)\)", prose_links(rows + text)))
        answer = re.sub(r"^\| \d+ \|", "|", rows) + "\n"
        found[heading] = answer + text, {link[3:] if link.startswith("../") else f"{phase}/{link}" for link in links}
    return found


def prose_links(text):
    """Text without the table of claims, which links to every script of the phase."""
    return re.sub(r"^\| [+x~] \|.*$", "", text, flags=re.MULTILINE)


def flat(value):
    return [number for item in value for number in flat(item)] if isinstance(value, list) else [value]


def measured_values(entries):
    """All recorded numbers; of a list with one for each seed, their mean as well."""
    values = []
    for entry in entries:
        for value in entry["measured"].values():
            numbers = flat(value)
            values += [abs(number) for number in (*numbers, sum(numbers) / len(numbers))]
    return values


def unknown_numbers(text, values, settings):
    """Numbers of two digits and more that are not a measured value as printed, nor a whole number of the scripts."""
    unknown = []
    for match in NUMBER.finditer(prose(text)):
        whole, decimals, power, percent = (part or "" for part in match.groups())
        digits = whole.replace(",", "") + decimals
        if len(digits.replace(".", "").lstrip("0")) < 2:
            continue
        number, unit = float(digits + power), 10.0 ** (int(power[1:] or 0) - max(len(decimals) - 1, 0))
        scales = (100, 1) if percent else (1, *(2.0**-bits for bits in (10, 20, 30, 40)))  # KiB, MiB, GiB, TiB
        shown = any(abs(value * scale - number) <= 0.51 * unit for scale in scales for value in values)
        rest = percent and any(abs((1 - value) * 100 - number) <= 0.51 * unit for value in values)
        setting = not (decimals or power or percent) and int(number) in settings
        if not (shown or rest or setting):
            unknown.append(match[0])
    return unknown


def whole_numbers(script):
    """The whole numbers that stand in a script: its settings."""
    text = (paths.ROOT / script).read_text(encoding="utf-8")
    return {int(number.replace("_", "").replace(",", "")) for number in re.findall(r"\b\d[\d_,]*\b", text)}


def lesson_unknowns(phase, table):
    lesson = (paths.ROOT / phase / "README.md").read_text(encoding="utf-8")
    found = {}
    for heading, (text, scripts) in sections(lesson, phase).items():
        values = measured_values([entry for entry in table if entry.get("script") in scripts])
        settings = set().union(*(whole_numbers(script) for script in scripts))
        if unknown := unknown_numbers(text, values, settings):
            found[heading] = unknown
    return found


@pytest.fixture(scope="module")
def unknown_by_lesson(claim_table):
    return {phase: lesson_unknowns(phase, claim_table) for phase in PHASES}


def seven_things():
    """The items of the front door's list -> text and the script that each links to."""
    text = (paths.ROOT / "README.md").read_text(encoding="utf-8").split("## Seven things")[1].split("\n## ")[0]
    items = re.findall(r"^\d\. (.*?)(?=^\d\. |^$)", text, re.DOTALL | re.MULTILINE)
    return [(item, re.search(r"\]\(([\w/]+\.py)\)", item)[1]) for item in items]


def test_seven_things_of_the_front_door_have_recorded_numbers_and_do_not_hold(claim_table):
    assert len(seven_things()) == 7
    for item, script in seven_things():
        entries = [entry for entry in claim_table if entry.get("script") == script]
        assert any(entry["verdict"] != HOLDS for entry in entries)
        assert not unknown_numbers(item, measured_values(entries), whole_numbers(script)), item


def test_the_front_door_counts_the_claims_as_the_table_does(claim_table):
    text = " ".join((paths.ROOT / "README.md").read_text(encoding="utf-8").split())
    counts = re.search(
        r"Of (\d+) claims (\d+) hold, (\d+) do not, (\d+) hold only under a condition, .* (\d+) are", text
    )
    verdicts = [entry["verdict"] for entry in claim_table if entry["id"] in claims.CLAIM_IDS]
    expected = [len(verdicts), *(verdicts.count(verdict) for verdict in (HOLDS, FAILS, ONLY_IF))]
    assert [int(count) for count in counts.groups()] == [*expected, len(verdicts) - sum(expected[1:])]


@pytest.mark.parametrize("phase", PHASES)
def test_numbers_of_a_lesson_are_recorded_ones(unknown_by_lesson, phase):
    """A number of two digits and more is a value measured by a script of its section, or one of that script's settings.

    A wrong digit is noticed nine times in ten; now and then a wrong number is by chance another value of the section.
    """
    for heading, unknown in unknown_by_lesson[phase].items():
        excused = set(re.split(r"[;,] ", ELSEWHERE[phase].get(heading, "")))
        assert set(unknown) <= excused, f"{phase}, {heading}: not recorded: {sorted(set(unknown) - excused)}"


def test_no_number_is_excused_in_vain(unknown_by_lesson):
    for phase, excuses in ELSEWHERE.items():
        for heading, numbers in excuses.items():
            vain = set(re.split(r"[;,] ", numbers)) - set(unknown_by_lesson[phase].get(heading, ()))
            assert not vain, f"{phase}, {heading}: {vain} is recorded by now, or gone"


def test_a_wrong_number_in_a_lesson_is_noticed(claim_table):
    lesson = (paths.ROOT / PHASES[0] / "README.md").read_text(encoding="utf-8")
    text, scripts = sections(lesson, PHASES[0])["1. The bottleneck"]
    assert "phase1_single_head/bottleneck.py" in scripts and "45 % pass one vector" in text
    values = measured_values([entry for entry in claim_table if entry.get("script") in scripts])
    settings = set().union(*(whole_numbers(script) for script in scripts))
    right = unknown_numbers(text, values, settings)
    assert unknown_numbers(text.replace("45 % at 24", "43 % at 24"), values, settings) == ["43 %", *right]


def test_unknown_numbers_on_a_made_up_section():
    values, settings = measured_values([claim_entry(measured={"x": 0.4529, "n": 2048, "s": [0.1, 0.3, -0.88]})]), {24}
    good = "Of 24 (Vaswani et al. 2017) 45 %, 0.45 or 0.453; 2,048 or 2 KiB; 55 % are lost; 0.88; `0.77`; head 1.13"
    assert unknown_numbers(good, values, settings) == []
    assert unknown_numbers("46 % of 25, 0.454 and 2,049; 0.16", values, settings) == ["46 %", "25", "0.454", "2,049"]
    assert unknown_numbers("| + | C001: 0.99 of all | [a](b/0.98.py) |", values, settings) == []
    assert unknown_numbers("4.5e-1 and 4.6e-1", values, settings) == ["4.6e-1"]


# -- what the findings added for the table measure


def test_trainable_numbers_are_those_that_a_gradient_reaches():
    used, unused, x = nn.Linear(3, 5), nn.Linear(3, 5), torch.randn(2, 3)
    assert queries_and_keys.trainable_numbers(used(x).relu() + used(x)) == 3 * 5 + 5, "each parameter counts once"
    assert queries_and_keys.trainable_numbers(used(x) * unused(x)) == 2 * (3 * 5 + 5)
    assert queries_and_keys.trainable_numbers(used(x).detach()) == 0 and queries_and_keys.trainable_numbers(x) == 0


def test_lengths_read_follow_the_arguments_and_leave_no_hook():
    facts = cross_attention.draw_facts(2, torch.Generator().manual_seed(0))
    model = cross_attention.Lookup(cross_attention.CrossAttention(cross_attention.D_MODEL))
    lengths = cross_attention.lengths_read(model, facts)
    assert lengths == {"query": facts.questions.size(1), "key": facts.nouns.size(1), "value": facts.nouns.size(1)}
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_a_preposition_between_verb_and_noun():
    assert textbook_numbers.between(["cat", "sat", "on", "the", "mat"], "sat", "mat") == 1
    assert textbook_numbers.between(["cat", "sat", "the", "mat"], "sat", "mat") == 0


def test_checkpointing_keeps_the_weights_of_one_layer_at_a_time():
    weights = 4 * 4 * 128**2  # bytes of one layer: 4 heads, float32
    kept, again = (head_costs.training_peak(3, 128, checkpointed=c) for c in (False, True))
    assert kept >= 3 * weights and kept - again >= 2 * weights


# ------------------------------------------------------------------------------------------------------ the report page


def needs_browser(test):
    """All of them in one process, since they share one Chromium."""
    return pytest.mark.browser(pytest.mark.xdist_group("browser")(test))


@pytest.fixture(scope="module")
def browser():
    """One headless Chromium for all tests of pages; without one they are skipped, and say so."""
    api = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install -e '.[browser]'")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium: install one (Debian, Ubuntu: sudo apt-get install chromium)")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


def made_finding(name: str, claim: str, verdict: str = HOLDS) -> Finding:
    condition = "it rains" if verdict == ONLY_IF else ""
    return Finding(name, claim, "test", {"wetness": 0.5}, "unit", "rule", verdict, condition=condition)


MADE = {
    "phase1_single_head/scaling.py": [
        made_finding("C901", "<b>water</b> is wet <script>alert(1)</script>"),
        made_finding("C902", "a mask hides the future", FAILS),
    ],
    "phase4_causal/masks.py": [
        made_finding("C903", "Mask and future meet", ONLY_IF),
        made_finding("no-phase-4", "fire is hot", FAILS),
    ],
    "shared/measure.py": [made_finding("C904", "clocks tick", HOLDS)],
}


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A small repository with findings, pictures, scripts, one lesson and an explorer; its report page."""
    folder = tmp_path_factory.mktemp("report")
    for script, made in MADE.items():
        (folder / script).parent.mkdir(parents=True, exist_ok=True)
        (folder / script).touch()
        findings.record(script, made, folder)
    (folder / "phase1_single_head" / "README.md").touch()
    for name in ("summary.png", "phase1/x.png", "elsewhere/y.png"):
        save_figure(plt.figure(figsize=(9, 2)), folder / paths.PLOTS / name, caption=f'A "caption" <i> of {name}')
    (folder / paths.PAGE).with_name("explorer.html").write_text("<!doctype html><title>explorer</title>")
    return findings.write_page(folder)


@contextmanager
def opened(browser, page_path: Path, address: str = "", **settings):
    """The page in a new window; fails on a console message, an error, or a request to anything but a file."""
    complaints = []
    context = browser.new_context(**settings)
    page = context.new_page()
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("requestfailed", lambda request: complaints.append(request.url))
    page.on("request", lambda r: complaints.append(r.url) if not r.url.startswith("file:") else None)
    page.goto(page_path.as_uri() + address)
    yield page
    context.close()
    assert complaints == []


def shown(page) -> list[str]:
    """Ids of the findings that can be seen."""
    return [article.get_attribute("id") for article in page.locator("article").all() if article.is_visible()]


def counts(page, kind: str) -> dict[str, int]:
    """Verdict or section -> the number beside it; all places that show the same number must agree."""
    found = {}
    for place in page.locator(f"[data-count-{kind}]").all():
        name, number = place.get_attribute(f"data-count-{kind}"), int(place.text_content())
        assert found.setdefault(name, number) == number
    return found


def test_report_escapes_and_leaves_nothing_out(report):
    page = report.read_text()
    assert "&lt;b&gt;water&lt;/b&gt; is wet" in page and "<b>water" not in page and "<script>alert" not in page
    assert "A &#34;caption&#34; &lt;i&gt;" in page
    for made in MADE.values():  # once each, also without a phase
        for finding in made:
            assert page.count(f'<article id="{finding.id}"') == 1
    assert all(
        page.count(f'<img src="plots/{name}') == 1 for name in ("summary.png", "phase1/x.png", "elsewhere/y.png")
    )
    assert page.index("plots/summary.png") < page.index('id="phase1"') < page.index('id="C904"')  # the poster first
    assert "<dt>seeds" not in page and "holds only if</b> it rains" in page


def test_report_links_lead_to_files(report):
    page = report.read_text()
    links = re.findall(r'(?:href|src)="([^"]+)"', page)
    for link in links:
        if link.startswith("#"):
            assert f'id="{link[1:]}"' in page, link
        else:
            assert (report.parent / link).is_file() and not link.startswith("/"), link
    expected = {"explorer.html", "../phase1_single_head/README.md", *(f"../{script}" for script in MADE)}
    assert expected <= set(links) and "../phase4_causal/README.md" not in links  # the one lesson that is there


def test_report_written_elsewhere_has_no_dead_links_and_the_same_bytes_twice(report, tmp_path):
    first = report.read_bytes()
    assert findings.write_page(report.parents[1]).read_bytes() == first
    findings.record("phase1_single_head/scaling.py", MADE["phase1_single_head/scaling.py"], tmp_path)
    page = findings.write_page(tmp_path).read_text()
    assert re.findall(r'(?:href|src)="([^#"][^"]*)"', page) == [] and "phase1_single_head/scaling.py" in page


@needs_browser
def test_report_filters_by_verdict_and_its_counts_agree(report, browser):
    with opened(browser, report) as page:
        assert shown(page) == ["C901", "C902", "C903", "no-phase-4", "C904"]
        assert counts(page, "verdict") == {"": 5, "holds": 2, "does-not-hold": 2, "holds-only-if": 1}
        for verdict, left in {"holds": ["C901", "C904"], "does-not-hold": ["C902", "no-phase-4"]}.items():
            page.locator(f"input[value={verdict}]").check()
            assert shown(page) == left and page.url.endswith(f"#verdict={verdict}")
            assert page.locator("output").inner_text() == "2 of 5 findings, without the pictures"
            assert counts(page, "verdict") == {"": 5, "holds": 2, "does-not-hold": 2, "holds-only-if": 1}
        assert counts(page, "section") == {"phase1": 1, "phase4": 1, "shared": 0}
        assert not page.locator("figure").first.is_visible() and not page.locator("#shared").is_visible()
        page.locator("#filter-clear").click()
        assert len(shown(page)) == 5 and "#" not in page.url and page.locator("figure").first.is_visible()


@needs_browser
def test_report_filters_by_words_from_the_keyboard(report, browser):
    with opened(browser, report) as page:
        page.keyboard.press("/")
        page.keyboard.type("FUTURE mask")  # both, in any order and case
        assert shown(page) == ["C902", "C903"] and page.url.endswith("#words=FUTURE+mask")
        assert counts(page, "verdict") == {"": 2, "holds": 0, "does-not-hold": 1, "holds-only-if": 1}
        page.keyboard.press("Escape")
        assert len(shown(page)) == 5
        for words, left in {
            "c904": ["C904"],
            "masks.py": ["C903", "no-phase-4"],
            "<b>": ["C901"],
            "nowhere": [],
        }.items():
            page.locator("input[type=search]").fill(words)
            assert shown(page) == left


@needs_browser
@pytest.mark.parametrize(
    ("address", "left"),
    [
        ("#verdict=does-not-hold&words=mask", ["C902", "no-phase-4"]),
        ("#words=%3Cb%3E", ["C901"]),
        ("#verdict=nonsense", ["C901", "C902", "C903", "no-phase-4", "C904"]),
        ("#C903", ["C901", "C902", "C903", "no-phase-4", "C904"]),
        ("#%", ["C901", "C902", "C903", "no-phase-4", "C904"]),
    ],
)
def test_report_restores_the_filter_from_its_address(report, browser, address, left):
    with opened(browser, report, address) as page:
        assert shown(page) == left
        page.evaluate("location.hash = '#C904'")  # a link to a finding reaches it, whatever is filtered
        page.wait_for_function("document.getElementById('C904').checkVisibility()")


@needs_browser
def test_report_works_on_a_phone_and_without_javascript(report, browser):
    with opened(browser, report, viewport={"width": 360, "height": 640}) as page:
        assert page.evaluate("document.documentElement.scrollWidth") == 360
    with opened(browser, report, java_script_enabled=False) as page:
        assert len(shown(page)) == 5 and not page.locator("form").is_visible()
        assert page.locator("figure").count() == 3 and page.locator("nav a").first.is_visible()


def scores_of(one: float, deep: float) -> summary.Scores:
    heads = {"one": one, "four": deep, "deep": deep}
    made = {name: {r: torch.full((1, 1, 2), value) for r in summary.CORE_RELATIONS} for name, value in heads.items()}
    return summary.Scores(**made, offsets=dict.fromkeys(summary.CORE_RELATIONS, 0.5))


def test_poster_boasts_only_of_what_was_measured():
    learned = summary.headline(scores_of(0.6, 0.95), 0.0)
    assert "belong together" in learned[0] and "finds 0.60 at most" in learned[1] and "exactly 0" in learned[1]
    for scores, leak in ((scores_of(0.6, 0.8), 0.0), (scores_of(0.9, 0.95), 0.0), (scores_of(0.6, 0.95), 0.25)):
        assert summary.headline(scores, leak)[0] == "Attention in four steps"
    assert "2.5e-01" in summary.headline(scores_of(0.6, 0.95), 0.25)[1]
    assert summary.role(scores_of(0.6, 0.95), 0).endswith("0.95\none head: 0.60")
    assert summary.role(scores_of(0.6, 0.4), 0).startswith("no relation")
    assert summary.arrow(("verb-place", "backward")) == "place → verb"


def test_poster_is_small_and_its_caption_holds_the_answers(tmp_path):
    if not (paths.CHECKPOINTS / "multi_head_model.pt").exists():
        pytest.skip("needs the trained models: ./run_all.sh")
    summary.main(["--quick", "--output-dir", str(tmp_path)])
    path = tmp_path / paths.PLOTS / "summary_all_phases.png"
    assert path.stat().st_size <= 200_000
    with Image.open(path) as image:
        caption = image.info["Description"]
    assert all(f" {number}. " in caption for number in (1, 2, 3, 4)) and "exactly 0" in caption


# ------------------------------------------------------------------------ the explorer: the forward pass in the browser


PAGE_TOLERANCE = 1e-4
EXPLORER_RECIPES = (
    Recipe("both sides", "masked word", num_heads=4, num_layers=2, steps=0),
    Recipe("causal", "next word", num_heads=4, num_layers=2, steps=0),
    Recipe("small", "masked word", num_heads=3, num_layers=3, steps=0, d_model=21),
    Recipe("small causal", "next word", num_heads=5, num_layers=1, steps=0, d_model=15),
)


def sharp_model(recipe):
    """Random weights, but large: no zero bias, words that outweigh positions, attention that decides."""
    make_attention = CausalAttention if recipe.objective == "next word" else MultiHeadAttention
    trained = training.untrained(recipe, make_attention)
    with torch.no_grad():
        for name, parameter in trained.model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(std=0.3)
            if "norm.weight" in name:
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
            if name == "embedding.weight":
                parameter.mul_(4)
            if "w_q.weight" in name or "w_k.weight" in name:
                parameter.mul_(5)
    trained.model.eval()
    return trained


@pytest.fixture(scope="module")
def explorer_models():
    return {recipe.name: sharp_model(recipe) for recipe in EXPLORER_RECIPES}


def open_watched(browser, address, errors, **context):
    """A new tab; whatever it complains about, and whatever it asks for beside its own file, lands in errors."""
    page = browser.new_page(**context)
    page.on("console", lambda message: errors.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on(
        "request", lambda request: None if request.url.startswith(address.split("#")[0]) else errors.append(request.url)
    )
    page.goto(address)
    return page


@pytest.fixture(scope="module")
def explorer_errors():
    """What went wrong in the page so far; the last test looks at it once more."""
    return []


@pytest.fixture(scope="module")
def explorer_data(explorer_models):
    return explorer.page_data(explorer_models, explorer.page_sentences())


@pytest.fixture(scope="module")
def explorer_page(browser, explorer_data, explorer_errors, tmp_path_factory):
    path = tmp_path_factory.mktemp("explorer") / "explorer.html"
    path.write_text(explorer.render(explorer_data), encoding="utf-8")
    assert 0.5e6 < path.stat().st_size < 3e6
    page = open_watched(browser, path.as_uri(), explorer_errors)
    yield page
    page.close()


# JSON, because a browser hands over one long text faster than many numbers; JSON has no -Infinity.
PLAIN = """
const plain = (key, value) => ArrayBuffer.isView(value) ? [...value] : value === -Infinity ? "-inf" : value;
const load = () => JSON.parse(document.getElementById("data").textContent).models.map(Attention.load);
window.loaded ??= Object.fromEntries(load().map((model) => [model.name, model]));  // once for all tests of a tab
const models = window.loaded;
"""
FORWARD = f"""(cases) => {{ {PLAIN}
    return JSON.stringify(cases.map(([name, tokens, levers, parts]) => {{
        const {{ logits, layers }} = Attention.forward(models[name], tokens, levers);
        const wanted = (layer) => Object.fromEntries(parts.map((part) => [part, layer[part]]));
        return {{ logits, layers: layers.map(wanted) }};
    }}), plain); }}"""


def in_page(page, cases, parts=("weights",)):
    """Attention.forward of the page for (model name, tokens, levers): logits (T, V), part -> (L, H, T, ...)."""
    answers = json.loads(page.evaluate(FORWARD, [[*case, list(parts)] for case in cases]))
    return [
        SimpleNamespace(
            logits=numbers(answer["logits"]),
            **{part: numbers([layer[part] for layer in answer["layers"]]) for part in parts},
        )
        for answer in answers
    ]


def numbers(nested):
    return torch.from_numpy(np.array(nested, dtype=np.float32))  # "-inf" and None become -inf and NaN


@torch.no_grad()
def in_torch(trained, tokens, levers):
    """The same by PyTorch: the levers are masks and changed weights of phase 2's MultiHeadAttention."""
    recipe, length = trained.recipe, len(tokens)
    bias = trained.model.blocks[0].attention.w_q.bias is not None
    make_attention = partial(MultiHeadAttention, bias=bias)
    model = ToyTransformer(recipe.d_model, recipe.num_heads, recipe.num_layers, make_attention=make_attention).eval()
    model.load_state_dict(trained.model.state_dict())
    d_k = recipe.d_model // recipe.num_heads
    if "divisor" in levers:
        for block in model.blocks:
            for parameter in block.attention.w_q.parameters():
                parameter.mul_(math.sqrt(d_k) / levers["divisor"])
    for name in levers.get("removed", []):
        layer, head = map(int, name.split("."))
        model.blocks[layer].attention.w_o.weight[:, head * d_k : (head + 1) * d_k] = 0
    mask = torch.ones(length, length, dtype=torch.bool)
    if levers.get("causal", recipe.objective == "next word"):
        mask = mask & causal_mask(length)
    mask[:, levers.get("hidden", [])] = False
    logits, layers = model(torch.tensor([tokens]), mask=mask)
    return SimpleNamespace(logits=logits[0], weights=torch.cat(layers), mask=mask)


def random_cases(models, count, rng, levers=lambda recipe, length: {}):
    """(model name, tokens, levers) with 1 to 32 random words, hidden ones among them where the model knows <mask>."""
    cases = []
    for name, n in [(name, n) for name in models for n in range(count)]:
        recipe = models[name].recipe
        length = 32 if n == 0 else 1 if n == 1 else rng.randint(1, 32)
        tokens = [rng.randrange(len(SPECIAL), len(VOCABULARY)) for _ in range(length)]
        if recipe.objective == "next word":
            tokens = [START_ID, *tokens]
        elif n % 2:
            tokens[rng.randrange(length)] = MASK_ID
        cases.append([name, tokens, levers(recipe, len(tokens))])
    return cases


def largest_difference(page, models, cases, answers=None):
    """Largest absolute difference of logits and weights between page and PyTorch, each compared with shape."""
    worst = 0.0
    answers = answers or [in_torch(models[name], tokens, levers) for name, tokens, levers in cases]
    for ours, theirs in zip(in_page(page, cases), answers, strict=True):
        for a, b in ((ours.logits, theirs.logits), (ours.weights, theirs.weights)):
            assert a.shape == b.shape
            difference = (a - b).abs().max().item()
            worst = max(worst, math.inf if math.isnan(difference) else difference)
    return worst


@needs_browser
def test_the_page_computes_what_pytorch_computes(explorer_page, explorer_models, explorer_errors):
    rng, small = random.Random(0), {name: explorer_models[name] for name in ("small", "small causal")}
    large = {name: explorer_models[name] for name in ("both sides", "causal")}
    cases = [*random_cases(large, 50, rng), *random_cases(small, 10, rng)]
    sharp = torch.cat([in_torch(explorer_models[n], t, v).weights.amax(-1).flatten() for n, t, v in cases[:20]])
    assert sharp.median() > 0.7, "the weights must be sharp, or a wrong divisor hardly shows"
    assert largest_difference(explorer_page, explorer_models, cases) < PAGE_TOLERANCE
    assert not explorer_errors


def one_lever(lever, rng):
    """A function that draws a position of this lever for a model and a number of tokens."""

    def draw(recipe, length):
        heads = [f"{layer}.{head}" for layer in range(recipe.num_layers) for head in range(recipe.num_heads)]
        positions = {
            "causal": lambda: recipe.objective == "masked word",
            "divisor": lambda: rng.choice([0.7, 1, 2, 7, 30]),
            "removed": lambda: rng.sample(heads, rng.randint(1, len(heads))),
            "hidden": lambda: rng.sample(range(length), rng.randint(1, length)),
        }
        return {name: draw_one() for name, draw_one in positions.items() if lever in (name, "all")}

    return draw


@needs_browser
@pytest.mark.parametrize("lever", ["causal", "divisor", "removed", "hidden", "all"])
def test_a_lever_does_what_the_same_change_does_in_pytorch(explorer_page, explorer_models, lever):
    rng = random.Random(lever)
    cases = random_cases(explorer_models, 4, rng, one_lever(lever, rng))
    assert largest_difference(explorer_page, explorer_models, cases) < PAGE_TOLERANCE
    untouched = [[name, tokens, {}] for name, tokens, _ in cases]
    for case, with_it, without in zip(
        cases, in_page(explorer_page, cases), in_page(explorer_page, untouched), strict=True
    ):
        if len(case[1]) > 4:
            assert (with_it.logits - without.logits).abs().max() > 0.01, f"{case[2]} changed nothing"


@needs_browser
def test_a_removed_head_still_looks_but_says_nothing(explorer_page, explorer_models):
    tokens = [INDEX[word] for word in tokenize("the cat sat on the mat")]
    cases = [["both sides", tokens, {}], ["both sides", tokens, {"removed": ["1.2", "1.0"]}]]
    before, after = in_page(explorer_page, cases, parts=("weights", "head_output", "output"))
    assert torch.equal(before.weights, after.weights)
    assert (after.head_output[1, [0, 2]] == 0).all() and torch.equal(after.head_output[0], before.head_output[0])
    assert torch.equal(after.head_output[1, [1, 3]], before.head_output[1, [1, 3]])
    w_o = explorer_models["both sides"].model.blocks[1].attention.w_o
    merged = after.head_output[1].transpose(0, 1).flatten(1)  # (H, T, d_k) -> (T, d_model)
    assert torch.allclose(after.output[1], w_o(merged), rtol=0, atol=PAGE_TOLERANCE)


@needs_browser
def test_the_five_steps_follow_from_each_other(explorer_page, explorer_models):
    parts = ("query", "key", "value", "scores", "weights", "head_output", "output")
    for case in random_cases(explorer_models, 3, random.Random(3)):
        pass_ = in_page(explorer_page, [case], parts)[0]
        scores = pass_.query @ pass_.key.mT / math.sqrt(pass_.query.size(-1))
        visible = pass_.scores > -math.inf
        assert torch.equal(visible.all(0).all(0), in_torch(explorer_models[case[0]], *case[1:]).mask)
        assert torch.allclose(pass_.scores[visible], scores[visible], rtol=1e-5, atol=PAGE_TOLERANCE)
        assert torch.allclose(pass_.weights, pass_.scores.softmax(dim=-1), rtol=0, atol=PAGE_TOLERANCE)
        assert torch.allclose(pass_.head_output, pass_.weights @ pass_.value, rtol=0, atol=PAGE_TOLERANCE)


@needs_browser
def test_a_row_that_sees_nothing_is_zero_and_not_nan(explorer_page):
    tokens = [INDEX[word] for word in tokenize("the cat sat")]
    cases = [["both sides", tokens, {"hidden": [0, 1, 2]}], ["causal", [START_ID, *tokens], {"hidden": [0]}]]
    both, causal = in_page(explorer_page, cases, parts=("weights", "head_output"))
    assert (both.weights == 0).all() and (both.head_output == 0).all() and both.logits.isfinite().all()
    assert (causal.weights[:, :, 0] == 0).all() and (causal.head_output[:, :, 0] == 0).all()
    assert (causal.weights[:, :, :, 0] == 0).all() and causal.logits.isfinite().all()
    assert torch.allclose(causal.weights[:, :, 1:].sum(-1), torch.ones(2, 4, 3))


STEPS = f"""([name, tokens, levers]) => {{ {PLAIN}
    const model = models[name], cache = Attention.empty_cache(model);
    const sizes = () => cache.layers.flatMap(({{ key, value }}) => [...key, ...value].map((rows) => rows.length));
    return JSON.stringify(tokens.map((token) =>
        ({{ step: Attention.step(model, cache, token, levers), length: cache.length, sizes: sizes(),
            keys: cache.layers.map(({{ key }}) => key.map((rows) => rows.at(-1))) }})), plain); }}"""


@needs_browser
@pytest.mark.parametrize("levers", [{}, {"divisor": 2, "hidden": [1], "removed": ["0.1"]}], ids=["plain", "levers"])
def test_a_step_with_the_cache_is_the_last_row_of_the_whole(explorer_page, levers):
    rng = random.Random(5)
    for name in ("causal", "small causal"):
        tokens = [START_ID, *(rng.randrange(len(SPECIAL), len(VOCABULARY)) for _ in range(12))]
        steps = json.loads(explorer_page.evaluate(STEPS, [name, tokens, levers]))
        prefixes = [[name, tokens[: i + 1], levers] for i in range(len(tokens))]
        wholes = in_page(explorer_page, prefixes, ("weights", "query", "key"))
        for i, (one, whole) in enumerate(zip(steps, wholes, strict=True)):
            assert one["length"] == i + 1 and set(one["sizes"]) == {i + 1}
            step = one["step"]
            assert torch.equal(numbers(step["logits"]), whole.logits[-1])
            for part in ("weights", "query"):
                assert torch.equal(numbers([layer[part] for layer in step["layers"]]), getattr(whole, part)[:, :, -1])
            assert torch.equal(numbers(one["keys"]), whole.key[:, :, -1])


ROLES = f"""([name, levers]) => {{ {PLAIN}
    const {{ sentences, vocabulary, special }} = JSON.parse(document.getElementById("data").textContent);
    return Statistics.role_scores(models[name], sentences.slice(0, 15), levers, vocabulary, special); }}"""


@needs_browser
@pytest.mark.parametrize("levers", [{}, {"causal": True}, {"removed": ["0.1"], "divisor": 3, "hidden": [2]}], ids=str)
def test_role_scores_are_those_of_the_python(explorer_page, explorer_models, levers):
    sentences = explorer.page_sentences()[:15]
    for name in ("both sides", "causal", "small"):
        trained = explorer_models[name]
        shift = int(trained.recipe.objective == "next word")
        tokens, lengths = training.to_batch(sentences, trained.recipe.objective)
        layers = []
        for row, length in zip(tokens.tolist(), lengths.tolist(), strict=True):
            weights = in_torch(trained, row[:length], {k: v for k, v in levers.items() if k != "hidden"}).weights
            missing = tokens.size(1) - length
            layers.append(F.pad(weights, (0, missing, 0, missing)))  # (L, H, T, T), T of the longest
        scores = grammar_scores.score_heads(list(torch.stack(layers, dim=1)), sentences, shift)
        expected = {
            relation: {"score": pytest.approx(s.accuracy), "layer": s.layer, "head": s.head, "direction": s.direction}
            for relation, s in grammar_scores.best_heads(scores).items()
        }
        assert explorer_page.evaluate(ROLES, [name, levers]) == expected


@needs_browser
def test_the_page_counts_entropy_loss_and_likeliest_words_as_the_python(explorer_page):
    generator = torch.Generator().manual_seed(1)
    mask = causal_mask(7)
    scores = 3 * torch.randn(7, 7, generator=generator)
    hidden = padding_mask(torch.tensor([5]), 7)[0, 0]
    for causal, gone, visible in (
        (False, [], torch.ones(7, 7, dtype=torch.bool)),
        (True, [], mask),
        (True, [5, 6], mask & hidden),
    ):
        weights = scores.masked_fill(~visible, -math.inf).softmax(dim=-1)
        rows = weights.tolist()
        ours = explorer_page.evaluate("rows => rows.map(row => Statistics.entropy(row))", rows)
        assert ours == pytest.approx(attention_entropy(weights).tolist(), abs=1e-6)
        ours = explorer_page.evaluate("([w, c, h]) => Statistics.normalized_entropy(w, c, h)", [rows, causal, gone])
        assert ours == pytest.approx(normalized_entropy(weights, visible).nanmean().item(), abs=1e-6)
    logits = 200 * torch.randn(11, generator=generator)  # so far apart that p of the target rounds to 0
    target = int(logits.argmin())
    ours = explorer_page.evaluate("([l, t]) => Statistics.loss(l, t)", [logits.tolist(), target])
    assert ours == pytest.approx(F.cross_entropy(logits, torch.tensor(target)).item(), rel=1e-5)
    for temperature in (0.5, 1, 3):
        shares = (logits / 50 / temperature).softmax(dim=0)
        ask = "([l, t]) => Statistics.top(Attention.softmax(l.map(x => x / 50), t), 4)"
        ours = explorer_page.evaluate(ask, [logits.tolist(), temperature])
        best = shares.topk(4)
        assert [item["token"] for item in ours] == best.indices.tolist()
        assert [item["probability"] for item in ours] == pytest.approx(best.values.tolist(), abs=1e-6)


@needs_browser
def test_unknown_words_get_the_same_neighbours_as_in_the_scripts(explorer_page):
    rng = random.Random(2)
    words = ["kat", "caat", "tac", "xylophone", "teh", "b", "bedd", "<b>", "sofass"]
    for word in rng.sample(VOCABULARY[len(SPECIAL) :], 40):
        letters = list(word)
        letters[rng.randrange(len(letters))] = rng.choice("aestxz")
        letters.insert(rng.randrange(len(letters) + 1), rng.choice("aestxz"))
        words.append("".join(letters))
    ask = "([words, vocabulary]) => words.map(word => Statistics.nearest_words(word, vocabulary))"
    known = VOCABULARY[len(SPECIAL) :]
    expected = [difflib.get_close_matches(word, known, n=3, cutoff=0.5) for word in words]
    assert explorer_page.evaluate(ask, [words, list(VOCABULARY)]) == expected
    assert [] in expected and sum(len(near) == 3 for near in expected) > 10


MISTAKES = {
    "divided by d_k": ("Math.sqrt(query[0][0].length)", "query[0][0].length"),
    "not divided": ("dot(query, key) / divisor", "dot(query, key)"),
    "the mask one too far": ("j > past + i", "j > past + i + 1"),
    "a hidden score is 0": (": -Infinity));", ": 0));"),
    "softmax without a sum": ("share / total", "share"),
    "norm without a size": ("* weight[i] + bias[i]", "+ bias[i]"),
    "no ReLU": ("Math.max(value, 0)", "value"),
    "positions count from 1": ("cache.length + i, model", "cache.length + i + 1, model"),
    "no output bias": ("normed) + bias)", "normed))"),
    "heads interleaved": (
        "x.slice(head * d_k, (head + 1) * d_k)",
        "x.filter((_, i) => i % num_heads === head)",
    ),
    "keys and values exchanged": ('["w_q", "w_k", "w_v"]', '["w_q", "w_v", "w_k"]'),
    "no residual": ("add(vector, attention.output[i])", "attention.output[i]"),
}


@pytest.fixture(scope="module")
def explorer_mistakes(browser, explorer_models):
    """A function: the text of attention.js -> its largest difference to PyTorch on small models."""
    models = {name: explorer_models[name] for name in ("small", "small causal")}
    data = explorer.as_script_text({"models": [explorer.model_record(*item) for item in models.items()]})
    cases = random_cases(models, 4, random.Random(7))
    answers = [in_torch(models[name], tokens, levers) for name, tokens, levers in cases]
    page = browser.new_page()

    def difference(source):
        page.goto("about:blank")  # a new world, without the names of the last one
        page.set_content(f'<script type="application/json" id="data">{data}</script><script>{source}</script>')
        return largest_difference(page, models, cases, answers)

    yield difference
    page.close()


@needs_browser
@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_comparison_notices_a_planted_mistake(explorer_mistakes, mistake):
    source = (explorer.FOLDER / "attention.js").read_text(encoding="utf-8")
    right, wrong = MISTAKES[mistake]
    assert source.count(right) == 1
    assert explorer_mistakes(source.replace(right, wrong)) > 10 * PAGE_TOLERANCE


@needs_browser
def test_the_comparison_finds_nothing_where_nothing_is_planted(explorer_mistakes):
    assert explorer_mistakes((explorer.FOLDER / "attention.js").read_text(encoding="utf-8")) < PAGE_TOLERANCE


@needs_browser
def test_planted_markup_stays_text(browser, explorer_data, tmp_path):
    planted, errors = '</script><b id="planted">bold</b><!--<script>', []
    data = json.loads(json.dumps(explorer_data).replace('"mat"', json.dumps(planted)))
    data["models"][0] |= {"label": planted}
    assert planted in data["vocabulary"] and planted in data["sentences"][0]["words"]
    path = tmp_path / "planted.html"
    path.write_text(explorer.render(data), encoding="utf-8")
    page = open_watched(browser, path.as_uri(), errors)
    assert page.evaluate('JSON.parse(document.getElementById("data").textContent)') == data
    assert page.locator("#planted").count() == 0 and page.locator("b").filter(has_text="bold").count() == 0
    assert planted in page.locator("body").inner_text()
    page.close()
    assert not errors


def test_the_page_is_one_small_file_and_the_same_each_time(explorer_models, tmp_path):
    models = {"small": explorer_models["small"], "small causal": explorer_models["small causal"]}
    first, second = (explorer.write(models, tmp_path / name) for name in "ab")
    assert first.read_bytes() == second.read_bytes()
    page = first.read_text(encoding="utf-8")
    assert page.count("Content-Security-Policy") == 1
    assert set(re.findall(r"https?://[^\s\"'<>]*", page)) <= {"http://www.w3.org/2000/svg"}  # a name, not an address
    assert sorted(explorer.SCRIPTS) == sorted(file.name for file in explorer.FOLDER.glob("*.js"))
    assert [file.name for file in first.parent.iterdir()] == ["explorer.html"]


def test_the_data_of_the_page_can_be_read_back(explorer_data, explorer_models):
    data = json.loads(explorer.as_script_text(explorer_data))
    assert data["vocabulary"] == list(VOCABULARY) and len(data["weight_map"]) == 33
    assert data["special"] == {word.strip("<>"): INDEX[word] for word in SPECIAL}
    toy, *held_out = data["sentences"]
    assert len(held_out) == 40 and tuple(held_out[0]["words"]) == training.corpus()[1][0].words
    assert list(toy["relations"]) == list(held_out[0]["relations"])
    pairs = {name: [(toy["words"][a], toy["words"][b]) for a, b in pairs] for name, pairs in toy["relations"].items()}
    assert pairs["determiner-noun"] == [("the", "cat"), ("the", "mat")] and pairs["adjective-noun"] == []
    assert pairs["verb-subject"] == [("sat", "cat")] and pairs["verb-place"] == [("sat", "mat")]
    assert data["models"][3]["loss"] == pytest.approx(training.held_out_loss(explorer_models["small causal"]), abs=1e-4)
    for record, trained in zip(data["models"], explorer_models.values(), strict=True):
        flat = torch.frombuffer(bytearray(explorer.base64.b64decode(record["numbers"])), dtype=torch.float32)
        for name, parameter in trained.model.state_dict().items():
            shape, start = record["parameters"][name]["shape"], record["parameters"][name]["start"]
            assert torch.equal(flat[start : start + math.prod(shape)].view(shape), parameter)
        assert len(flat) == sum(parameter.numel() for parameter in trained.model.parameters())


@pytest.fixture
def explorer_checkpoints(tmp_path, monkeypatch):
    """Checkpoints of one test, and nothing remembered before or after it."""
    monkeypatch.setattr(paths, "CHECKPOINTS", tmp_path / "checkpoints")
    monkeypatch.setattr(training, "_trained_here", {})
    monkeypatch.setattr(training, "QUICK_STEPS", 2)
    return paths.CHECKPOINTS


def test_the_explorer_trains_the_causal_model_that_phase_4_then_finds(explorer_checkpoints, tmp_path, capsys):
    assert training.CAUSAL_RECIPE == causal_attention.RECIPE
    explorer.main(["--quick", "--output-dir", str(tmp_path)])
    path = tmp_path / paths.EXPLORER
    said = capsys.readouterr().out
    assert f"{paths.shown(path)}, {path.stat().st_size / 1e6:.2f} MB" in said and path.stat().st_size < 3e6
    recipe = replace(causal_attention.RECIPE, name="causal_model_quick", steps=2)
    ours = training.load_checkpoint(recipe, CausalSelfAttention)
    theirs = training.train(recipe, CausalSelfAttention)
    for a, b in zip(ours.model.parameters(), theirs.model.parameters(), strict=True):
        assert torch.equal(a, b)


@needs_browser
def test_a_folder_of_models_of_any_size(explorer_checkpoints, browser, tmp_path):
    single = Recipe("one head", "masked word", num_heads=1, num_layers=1, steps=0, d_model=6)
    bare = training.untrained(single, lambda d_model, heads: MultiHeadAttention(d_model, heads, bias=False))
    models = {t.recipe.name: t for t in (bare, *(sharp_model(recipe) for recipe in EXPLORER_RECIPES[2:]))}
    for trained in models.values():
        training.save_checkpoint(trained)
    explorer.main(["--model", str(explorer_checkpoints), "--output-dir", str(tmp_path)])
    errors = []
    page = open_watched(browser, (tmp_path / paths.EXPLORER).as_uri(), errors)
    data = json.loads(page.locator("#data").text_content())
    assert [record["name"] for record in data["models"]] == sorted(models)
    assert largest_difference(page, models, random_cases(models, 5, random.Random(9))) < PAGE_TOLERANCE
    page.close()
    assert not errors


def test_a_folder_that_cannot_be_used_is_one_clear_line(explorer_checkpoints, tmp_path, capsys):
    recipe = EXPLORER_RECIPES[2]
    training.save_checkpoint(sharp_model(recipe))
    content = torch.load(recipe.path, weights_only=True)
    without_head = {name: p for name, p in content["state_dict"].items() if name != "output_bias"}
    bad = {
        "is damaged": b"hello",
        "is not a checkpoint of this version of the code": {"some": "dict"},
        "was made with another vocabulary": content | {"vocabulary": ["a", "b"]},
        "holds the weights of another model": content | {"state_dict": without_head},
        "unknown objective": content | {"recipe": content["recipe"] | {"objective": "chess"}},
    }
    for message, file in bad.items():
        recipe.path.write_bytes(file) if isinstance(file, bytes) else torch.save(file, recipe.path)
        refused(["--model", str(explorer_checkpoints)], tmp_path, (message, "small.pt"), capsys)
    for folder in (tmp_path / "empty", tmp_path / "not there"):
        refused(["--model", str(folder)], tmp_path, ("holds no checkpoints", folder.name), capsys)
        (tmp_path / "empty").mkdir(exist_ok=True)
    assert not (tmp_path / paths.EXPLORER).exists()


def refused(arguments, output_dir, words, capsys):
    with pytest.raises(SystemExit) as stopped:
        explorer.main([*arguments, "--output-dir", str(output_dir)])
    said = capsys.readouterr().err
    assert stopped.value.code == 2 and said.count("\n") == 1 and all(word in said for word in words), said


@needs_browser
def test_nothing_went_wrong_in_the_page_meanwhile(explorer_page, explorer_errors):
    with pytest.raises(Exception, match="at most 34 tokens"):
        in_page(explorer_page, [["both sides", [INDEX["the"]] * 35, {}]])
    assert not explorer_errors


# ------------------------------------------------------------------------------------------------------- the front door


def front_door_code(monkeypatch, name):
    """What the Python example of the README defines, run as the README says but with a few steps of training."""
    code = re.search(r"```python\n(.*?)```", (paths.ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)[1]
    assert "steps=1000" in code
    monkeypatch.setattr(sys, "argv", ["my_attention.py"])
    names = {"__name__": name}
    exec(compile(code.replace("steps=1000", "steps=8"), "README.md", "exec"), names)
    return names


def test_the_attention_of_the_front_door_is_what_it_says(checkpoints, monkeypatch, capsys):
    names = front_door_code(monkeypatch, "__main__")
    printed = capsys.readouterr().out
    assert re.findall(r"^([\w-]+): \d\.\d\d in layer \d head \d$", printed, re.MULTILINE) == list(RELATIONS)
    torch.manual_seed(5)
    module = names["AlibiAttention"](22, 2).double()
    x, mask = torch.randn(3, 7, 22, dtype=torch.float64), padding_mask(torch.tensor([7, 5, 2]), 7)
    output, weights = module(x, mask=mask)
    query, key, value = (split_heads(part, 2) for part in module.w_qkv(x).chunk(3, dim=-1))
    far = torch.tensor([[float(abs(i - j)) for j in range(7)] for i in range(7)], dtype=torch.float64)
    bias = torch.stack([-(2.0**-4) * far, -(2.0**-8) * far]).masked_fill(~mask, -torch.inf)  # (3, 2, 7, 7)
    expected = F.scaled_dot_product_attention(query, key, value, attn_mask=bias)
    torch.testing.assert_close(output, module.w_o(merge_heads(expected)), rtol=0, atol=1e-12)
    assert weights[2, :, :, 2:].abs().max() == 0


# ----------------------------------------------------------------------------------- the explorer: what the reader does


# -------------------------------------------------------------------------------- shared with the other tests


@pytest.fixture(scope="module")
def live_errors():
    return []


@pytest.fixture(scope="module")
def live_page(browser, explorer_models, live_errors, tmp_path_factory):
    path = explorer.write(explorer_models, tmp_path_factory.mktemp("explorer"))
    page = open_watched(browser, path.as_uri(), live_errors)
    yield page
    page.close()


LIVE_EXPECTED = """([name, words, levers, masked]) => {
    const [model, language] = [Page.models().get(name), Page.language()];
    const tokens = words.map((word) => language.index.get(word));
    const read = masked === null ? tokens : tokens.map((token, i) => i === masked ? language.special.mask : token);
    const { logits, layers } = Attention.forward(model, read, levers);
    const lists = (part) => layers.map((layer) => layer[part].map((head) => head.map((row) => [...row])));
    return { logits: logits.map((row) => [...row]), weights: lists("weights"), output: lists("head_output") };
}"""
LIVE_WORDS = TOY_SENTENCE.split()


def view(page, **state):
    """The page in a state, as a linked address gives it; all levers back."""
    parts = {"model": "both sides", "head": "0.0", "query": 1, "words": TOY_SENTENCE} | state
    address = "&".join(f"{name}={value}".replace(" ", "+") for name, value in parts.items())
    page.evaluate("(hash) => { history.replaceState(null, '', '#'); location.hash = hash; }", address)
    page.wait_for_function("(model) => Page.state().model === model", arg=parts["model"])
    page.evaluate("() => new Promise((done) => setTimeout(done))")  # the hashchange comes after this task


def expected(page, model, words=None, levers=None, masked=None):
    words = ["<start>"] * model.endswith("causal") + (words or LIVE_WORDS)
    return page.evaluate(LIVE_EXPECTED, [model, words, levers or {}, masked])


def probabilities(logits, temperature=1.0):
    return torch.tensor(logits).div(temperature).softmax(dim=-1)


def shown_weights(page):
    """The large map, row by row: numbers, or None where a cell is hatched."""
    rows = page.evaluate(
        "() => [...document.querySelectorAll('#large tbody tr')].map((row) => [...row.querySelectorAll('td')]"
        ".map((cell) => cell.classList.contains('hatched') ? null : Number(cell.textContent)))"
    )
    return rows


def shown_predictions(page):
    """Word -> its text of numbers, e.g. "0.20 → 0.31"."""
    return dict(
        page.evaluate(
            "() => [...document.querySelectorAll('#predictions .prediction')].map((row) =>"
            " [row.querySelector('.word').firstChild.textContent, row.querySelector('.number').textContent])"
        )
    )


def measure_text(page, name):
    return page.evaluate(
        "(name) => [...document.querySelectorAll('#measures tr')].find((r) => r.cells[0].textContent.includes(name))"
        ".cells[1].textContent",
        name,
    )


def change(before, after):
    old, new = f"{before:.2f}", f"{after:.2f}"
    return new if old == new else f"{old} → {new}"


def near(shown, wanted):
    """All numbers as in wanted, to the two digits that a cell has; None where it is hatched."""
    flat = [(a, b) for row_a, row_b in zip(shown, wanted, strict=True) for a, b in zip(row_a, row_b, strict=True)]
    assert all((a is None and b == 0) or (a is not None and abs(a - b) < 0.0051) for a, b in flat)


def check_predictions(page, before, after):
    """The words shown are the likeliest after the lever (the true one may replace the last), with both numbers."""
    vocabulary = page.evaluate("() => Page.language().vocabulary")
    shown = shown_predictions(page)
    for token in after.topk(4).indices.tolist():
        assert shown[vocabulary[token]] == change(before[token], after[token])


@needs_browser
def test_the_maps_show_the_forward_pass(live_page):
    view(live_page, head="1.2")
    near(shown_weights(live_page), expected(live_page, "both sides")["weights"][1][2])
    labels = live_page.locator("#large tbody th").all_inner_texts()
    assert labels == ["0 the", "1 cat", "2 sat", "3 on", "4 the", "5 mat"]
    assert live_page.locator("#heads .map").count() == 8
    row = expected(live_page, "both sides")["weights"][1][2][1]
    most = max(range(6), key=lambda j: row[j])
    title = f'Attention, live: "cat" looks at {LIVE_WORDS[most]} {row[most]:.2f} (layer 1, head 2)'
    assert live_page.title() == title == live_page.inner_text("h1")


@needs_browser
def test_the_causal_mask_comes_off_and_goes_on(live_page):
    view(live_page, model="causal", head="0.1", query=2)
    assert shown_weights(live_page)[1][2] is None  # "the" may not see "cat"
    live_page.uncheck("#causal")
    open_weights = expected(live_page, "causal", levers={"causal": False})["weights"][0][1]
    shown = shown_weights(live_page)
    assert sum(sum(row[i + 1 :]) for i, row in enumerate(shown)) > 0.5
    near(shown, open_weights)
    view(live_page, head="0.1")
    live_page.check("#causal")
    assert [row.count(None) for row in shown_weights(live_page)] == [5, 4, 3, 2, 1, 0]


@needs_browser
def test_the_divisor_sharpens(live_page):
    view(live_page, head="1.0")
    assert live_page.is_checked("#scaled")
    live_page.uncheck("#scaled")
    near(shown_weights(live_page), expected(live_page, "both sides", levers={"divisor": 1})["weights"][1][0])
    before, after = measure_text(live_page, "entropy").split(" → ")
    assert float(after) < float(before)
    live_page.fill("#divisor", "9")
    near(shown_weights(live_page), expected(live_page, "both sides", levers={"divisor": 9})["weights"][1][0])
    assert not live_page.is_checked("#scaled")
    live_page.check("#scaled")
    assert live_page.input_value("#divisor-slider") == "2"  # 2 ^ 2 = sqrt(16)


@needs_browser
def test_a_knocked_out_head_changes_the_predictions(live_page):
    view(live_page, model="small causal", query=2)
    plain = expected(live_page, "small causal")
    live_page.get_by_label("knock out layer 0, head 1", exact=True).click()
    lesioned = expected(live_page, "small causal", levers={"removed": ["0.1"]})
    before, after = probabilities(plain["logits"]), probabilities(lesioned["logits"])
    check_predictions(live_page, before[3], after[3])
    ids = live_page.evaluate("(words) => words.map((word) => Page.language().index.get(word))", LIVE_WORDS)
    losses = [-sum(p[i, token].log().item() for i, token in enumerate(ids)) / len(ids) for p in (before, after)]
    assert measure_text(live_page, "loss") == change(*losses)
    assert f"loss {change(*losses)}" in live_page.inner_text('[data-lever="removed"]')
    assert live_page.locator(".head-cell.out").count() == 1
    live_page.click("#restore")
    assert live_page.locator(".head-cell.out").count() == 0
    assert "→" not in measure_text(live_page, "loss")


@needs_browser
def test_a_hidden_word_becomes_a_mask_or_is_seen_by_nobody(live_page):
    view(live_page, model="small", query=5)
    live_page.click("#hide")
    assert live_page.locator("#words button").all_inner_texts()[5] == "5 <mask>"
    hidden = expected(live_page, "small", masked=5)
    near(shown_weights(live_page), hidden["weights"][0][0])
    after = probabilities(hidden["logits"])[5]
    check_predictions(live_page, after, after)
    token = live_page.evaluate("() => Page.language().index.get('mat')")
    assert measure_text(live_page, "loss") == f"{-math.log(after[token]):.2f}"
    live_page.click("#hide")
    assert live_page.locator("#words button").all_inner_texts()[5] == "5 mat"

    view(live_page, model="causal", query=1)
    live_page.click("#hide")
    assert {row[2] for row in shown_weights(live_page)} == {None}
    near(shown_weights(live_page), expected(live_page, "causal", levers={"hidden": [2]})["weights"][0][0])


@needs_browser
def test_two_words_change_places_and_the_choice_follows(live_page):
    view(live_page, model="small", query=1)
    live_page.select_option("#swap-with", "5")
    live_page.click("#swap")
    order = ["the", "mat", "sat", "on", "the", "cat"]
    assert live_page.locator("#words button").all_inner_texts() == [f"{i} {word}" for i, word in enumerate(order)]
    near(shown_weights(live_page), expected(live_page, "small", order)["weights"][0][0])
    assert live_page.inner_text("#words [aria-checked=true]") == "5 cat"
    before = probabilities(expected(live_page, "small", masked=1)["logits"])[1]
    after = probabilities(expected(live_page, "small", order, masked=5)["logits"])[5]
    check_predictions(live_page, before, after)
    live_page.click("#unswap")
    assert live_page.inner_text("#words [aria-checked=true]") == "1 cat"


@needs_browser
def test_temperature_spreads_and_gathers_the_probabilities(live_page):
    view(live_page, model="small causal", query=2)
    all_logits = expected(live_page, "small causal")["logits"]
    logits = all_logits[3]
    ids = live_page.evaluate("(words) => words.map((word) => Page.language().index.get(word))", LIVE_WORDS)
    for temperature in (2, 0.5):
        live_page.fill("#temperature", str(temperature))
        check_predictions(live_page, probabilities(logits), probabilities(logits, temperature))
        losses = [-probabilities(all_logits, t)[range(6), ids].log().mean().item() for t in (1, temperature)]
        assert measure_text(live_page, "loss") == change(*losses)
    live_page.fill("#temperature", "0")
    assert next(iter(shown_predictions(live_page).values())).endswith("1.00")


@needs_browser
def test_all_levers_go_back_at_once(live_page):
    view(
        live_page,
        model="causal",
        mask="off",
        divisor=2,
        without="0.1_1.3",
        hide="1",
        order="1_0_2_3_4_5",
        temperature=2,
    )
    assert live_page.locator(".effect:not(:empty)").count() == 6
    live_page.click("#reset")
    assert live_page.locator(".effect:not(:empty)").count() == 0
    near(shown_weights(live_page), expected(live_page, "causal")["weights"][0][0])


@needs_browser
def test_role_scores_follow_the_levers(live_page):
    view(live_page)
    wanted = live_page.evaluate(
        """() => { const data = JSON.parse(document.getElementById("data").textContent);
        return ["both sides"].map((name) => [{}, {divisor: 0.5}].map((levers) => Statistics.role_scores(
            Page.models().get(name), data.sentences, levers, data.vocabulary, data.special)["verb-subject"]))[0]; }"""
    )
    texts = [f"{math.floor(100 * s['score'] + 0.5)}% ({s['layer']}.{s['head']})" for s in wanted]
    live_page.fill("#divisor", "0.5")
    assert "…" in measure_text(live_page, "verb-subject")
    live_page.wait_for_function("() => !document.querySelector('#measures').textContent.includes('…')")
    shown = measure_text(live_page, "verb-subject")
    assert shown == (texts[1] if texts[0] == texts[1] else " → ".join(texts))


@needs_browser
def test_the_five_steps_add_up(live_page):
    view(live_page, head="1.3", query=3)
    numbers = expected(live_page, "both sides")
    rows = live_page.locator("table.steps tbody tr").count()
    assert rows == 6
    weights = [float(text) for text in live_page.locator("table.steps td.weight").all_inner_texts()]
    assert weights == pytest.approx(numbers["weights"][1][3][3], abs=6e-4)
    foot = live_page.locator("table.steps tfoot td").all_inner_texts()
    assert foot[3] == "1.000"
    output = [float(text) for text in foot[5].replace("−", "-").replace("…", "").split()]
    assert output == pytest.approx(numbers["output"][1][3][3][: len(output)], abs=6e-3)


@needs_browser
def test_pointing_at_a_key_shows_who_looks_at_it(live_page):
    view(live_page, head="0.1", query=2)
    weights = expected(live_page, "both sides")["weights"][0][1]
    read = "(side) => [...document.querySelectorAll(`.column.${side} .number`)].map((cell) => Number(cell.textContent))"
    assert live_page.evaluate(read, "key") == pytest.approx(weights[2], abs=0.0051)
    live_page.locator(".column.key button").nth(4).hover()
    assert live_page.evaluate(read, "query") == pytest.approx([row[4] for row in weights], abs=0.0051)
    live_page.locator(".column.key button").nth(4).click()
    live_page.mouse.move(0, 0)  # clicked, or tapped: it stays
    assert live_page.evaluate(read, "query") == pytest.approx([row[4] for row in weights], abs=0.0051)


@needs_browser
def test_an_unknown_word_is_explained_and_the_view_stays(live_page):
    view(live_page)
    before = live_page.inner_html("#large")
    live_page.fill("#sentence", "the dgo sat")
    message = live_page.inner_text("#message")
    assert '"dgo" is not among the' in message and live_page.inner_html("#large") == before
    live_page.click("#message button:has-text('dog') >> nth=0")
    taken = live_page.input_value("#sentence")
    assert taken in ("the dog sat", "the dogs sat")
    assert live_page.inner_text("#message") == ""
    assert live_page.locator("#words button").all_inner_texts() == [f"{i} {w}" for i, w in enumerate(taken.split())]


@needs_browser
@pytest.mark.parametrize(
    ("typed", "words"), [("  ", "empty"), ("the " * 33, "33 words"), ("qqqqq", "No known word"), ("<mask>", "<mask>")]
)
def test_a_sentence_that_cannot_be_read_is_one_line(live_page, typed, words):
    view(live_page)
    live_page.fill("#sentence", typed)
    assert words in live_page.inner_text("#message")
    assert live_page.locator("#words button").count() == 6


@needs_browser
def test_the_longest_sentence_fits_every_model(live_page):
    view(live_page, model="causal")
    live_page.fill("#sentence", "the " * 32)
    assert live_page.locator("#large tbody tr").count() == 33
    live_page.fill("#sentence", "cat")
    assert live_page.locator("#words button").all_inner_texts() == ["0 <start>", "1 cat"]
    live_page.select_option("#model", "small")
    assert live_page.locator("#words button").all_inner_texts() == ["0 cat"]
    assert live_page.locator("#heads .map").count() == 9


@needs_browser
def test_typed_markup_is_text(live_page, live_errors):
    view(live_page)
    live_page.fill("#sentence", "<img src=x onerror=alert(1)>")
    assert '"<img"' in live_page.inner_text("#message")
    view(live_page, words="<img src=x onerror=alert(1)>")
    assert live_page.locator("img").count() == 0
    assert not live_errors


@needs_browser
def test_a_view_can_be_linked(live_page, browser, live_errors):
    view(live_page, model="small causal", head="0.4", query=3)
    live_page.fill("#sentence", "these dogs swam slowly in the lake")
    live_page.fill("#divisor", "2.5")
    live_page.get_by_label("knock out layer 0, head 2", exact=True).click()
    live_page.click("#hide")
    live_page.select_option("#swap-with", "1")
    live_page.click("#swap")
    live_page.uncheck("#causal")
    live_page.fill("#temperature", "1.5")
    live_page.fill("#seed", "77")
    live_page.click("#one-more")
    live_page.wait_for_function("() => location.hash.includes('written=1')")
    state = live_page.evaluate("() => Page.state()")
    assert state["hidden"] == [3] and state["removed"] == ["0.2"] and state["order"] == [0, 3, 2, 1, 4, 5, 6]
    other = open_watched(browser, live_page.url, live_errors)
    assert other.evaluate("() => Page.state()") == state
    for box in ("#large", "#predictions", "#steps", "#writing", "#words"):
        assert other.inner_html(box) == live_page.inner_html(box)
    other.close()


@needs_browser
def test_a_broken_address_opens_the_first_view(live_page):
    live_page.evaluate("() => { location.hash = '#'; }")
    live_page.wait_for_function("() => Page.state().model === 'both sides'")
    first = live_page.evaluate("() => Page.state()")
    broken = (
        "model=none&words=the+dgo&head=9.9&query=99&mask=maybe&divisor=-1&without=7.7_x&hide=50_a&order=0_0&temperature=x"
        "&from=-3&seed=1e9&written=-1&%E0%A4%A"
    )
    live_page.evaluate("(hash) => { location.hash = hash; }", broken)
    live_page.evaluate("() => new Promise((done) => setTimeout(done, 20))")
    assert live_page.evaluate("() => Page.state()") == first


@needs_browser
def test_the_back_button_returns_to_the_sentence_before(live_page):
    before = "the dog slept in a bed"
    view(live_page, words=before)
    live_page.click("#another")
    assert live_page.evaluate("() => Page.state().words.join(' ')") != before
    live_page.go_back()
    live_page.wait_for_function("(text) => document.getElementById('sentence').value === text", arg=before)
    assert live_page.locator("#words button").count() == 6


@needs_browser
def test_the_keyboard_moves_words_and_heads(live_page):
    view(live_page, head="0.0", query=1)
    live_page.focus("#words [aria-checked=true]")
    live_page.keyboard.press("ArrowRight")
    live_page.keyboard.press("ArrowRight")
    assert live_page.inner_text(":focus") == "3 on" == live_page.inner_text("#words [aria-checked=true]")
    live_page.focus("#heads .map[aria-pressed=true]")
    live_page.keyboard.press("ArrowDown")
    live_page.keyboard.press("ArrowRight")
    assert live_page.inner_text("#head-heading") == "One head: layer 1, head 1"
    assert live_page.get_attribute(":focus", "aria-label") == "layer 1, head 1"
    live_page.keyboard.press("Tab")
    live_page.keyboard.press("Enter")
    assert live_page.locator(".head-cell.out .map").get_attribute("aria-label") == "layer 1, head 1, knocked out"
    outline = live_page.evaluate("() => getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"


WRITE = """([count, seed, temperature]) => {
    const [model, language] = [Page.models().get("small causal"), Page.language()];
    const [next, tokens] = [Writing.random(seed), ["<start>", "the", "cat"].map((word) => language.index.get(word))];
    while (count-- > 0) {
        const { logits } = Attention.forward(model, tokens);
        const chances = Attention.softmax(logits.at(-1), temperature);
        tokens.push(Writing.draw(chances, next()));
    }
    return tokens.slice(1).map((token) => language.vocabulary[token]);
}"""


def written_words(page):
    return page.evaluate(
        "() => [...document.querySelectorAll('.written > span')].slice(1).map((w) => w.firstChild.textContent)"
    )


@needs_browser
def test_writing_draws_from_the_forward_pass_and_the_cache_grows_by_one(live_page):
    view(live_page, model="small causal", seed=5, temperature=0.8)
    for count in range(5):
        assert written_words(live_page) == live_page.evaluate(WRITE, [count, 5, 0.8])
        kept = 3 + count
        note = live_page.inner_text("#cache-note")
        assert f"{kept} keys and {kept} values" in note and f" {kept * (kept + 1) // 2} of each" in note
        assert live_page.locator(".cache tbody tr").first.locator("td.kept").count() == kept
        live_page.click("#one-more")
    five = written_words(live_page)
    live_page.click("#start-again")
    assert written_words(live_page) == ["the", "cat"]
    for _ in range(5):
        live_page.click("#one-more")
    assert written_words(live_page) == five
    live_page.click("#new-seed")
    assert live_page.input_value("#seed") == "6" and written_words(live_page) == live_page.evaluate(WRITE, [5, 6, 0.8])


@needs_browser
def test_writing_stops_where_the_room_ends_and_at_temperature_0_needs_no_seed(live_page):
    view(live_page, model="causal", temperature=0)
    live_page.click("#to-end")
    greedy = written_words(live_page)
    assert live_page.is_disabled("#one-more") and (greedy[-1] == "<end>" or len(greedy) == 32)
    live_page.click("#new-seed")
    assert written_words(live_page) == greedy
    view(live_page, model="both sides", temperature=0)
    live_page.click("#to-end")
    assert written_words(live_page) == greedy  # the causal model writes, whatever model is on screen


@needs_browser
def test_the_random_numbers_are_even(live_page):
    drawn = live_page.evaluate("() => { const next = Writing.random(3); return Array.from({length: 4000}, next); }")
    assert min(drawn) >= 0 and max(drawn) < 1
    assert abs(sum(drawn) / 4000 - 0.5) < 0.03 and abs(sum(x < 0.25 for x in drawn) / 4000 - 0.25) < 0.03
    assert live_page.evaluate("() => [0, 0.3, 0.999999].map((u) => Writing.draw([0.25, 0.5, 0.25], u))") == [
        0,
        1,
        2,
    ]


@needs_browser
def test_a_phone_needs_no_sideways_scrolling(live_page, browser, live_errors):
    address = live_page.url.split("#")[0] + "#model=causal&words=" + "+".join(["these"] * 20) + "&written=8"
    phone = open_watched(browser, address, live_errors, viewport={"width": 360, "height": 740})
    assert phone.evaluate("() => document.documentElement.scrollWidth") <= 360
    wide = (
        "() => [...document.querySelectorAll('button, input, select, p, h1')].filter((node) => !node.closest('.scroll')"
    )
    assert phone.evaluate(wide + " && node.getBoundingClientRect().right > 361).map((node) => node.outerHTML)") == []
    phone.close()


CONTRAST = """() => {
    const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    const rgb = (color) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1);
                             return [...canvas.getImageData(0, 0, 1, 1).data]; };
    const linear = (x) => x / 255 <= 0.04045 ? x / 255 / 12.92 : ((x / 255 + 0.055) / 1.055) ** 2.4;
    const luminance = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
    const ground = (node) => {
        for (; node; node = node.parentElement) {
            const color = rgb(getComputedStyle(node).backgroundColor);
            if (color[3] === 255) return color;
        }
        return [255, 255, 255];
    };
    const low = [];
    for (const node of document.querySelectorAll("body *")) {
        const text = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
        if (!text || !node.checkVisibility() || node.disabled || node.closest("script, svg, option")) continue;
        const [a, b] = [luminance(rgb(getComputedStyle(node).color)), luminance(ground(node))].sort((x, y) => y - x);
        if ((a + 0.05) / (b + 0.05) < 4.5) low.push([node.outerHTML.slice(0, 120), (a + 0.05) / (b + 0.05)]);
    }
    return low;
}"""


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(live_page, browser, live_errors, scheme):
    address = live_page.url.split("#")[0] + "#model=causal&without=0.1&divisor=2&hide=1&written=3&head=0.1"
    page = open_watched(browser, address, live_errors, color_scheme=scheme)
    page.fill("#sentence", "the dgo")
    assert page.evaluate(CONTRAST) == []
    page.close()


@needs_browser
def test_a_redraw_is_fast(live_page):
    view(live_page, words="those small dogs beside the dark barn slept quietly in a bed")
    times = live_page.evaluate(
        """() => Array.from({ length: 20 }, () => { const start = performance.now(); Page.redraw();
            document.body.getBoundingClientRect(); return performance.now() - start; })"""
    )
    median = sorted(times)[10]
    print(f"a redraw of 12 words: {median:.0f} ms")
    assert median < 200


@needs_browser
def test_nothing_went_wrong_in_the_live_page_meanwhile(live_errors):
    assert live_errors == []


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
    """Checkpoints of the tests lie apart from the reader's, and --quick is quicker still."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "QUICK_STEPS", 8)
        patch.setattr(bottleneck, "NUM_TEST", 30)
        patch.setattr(visualize2, "UNTRAINED_MODELS", 4)
        patch.setattr(scoring_rules, "ROUNDS", 1)
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


# ------------------------------------------------------------------------------- phase 1: cross-attention and scoring


def single_head_twin(ours):
    """nn.MultiheadAttention with one head, no biases, and the weights of our CrossAttention."""
    d_model = ours.w_q.in_features
    theirs = nn.MultiheadAttention(d_model, 1, bias=False, batch_first=True).double()
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([ours.w_q.weight, ours.w_k.weight, ours.w_v.weight]))
        theirs.out_proj.weight.copy_(ours.w_o.weight)
    return theirs


def test_cross_attention_is_torchs_module_with_one_head():
    """Unequal lengths, the padding of the context hidden; outputs, weights and gradients of both inputs."""
    torch.manual_seed(20)
    ours = CrossAttention(D_K).double()
    x, context = torch.randn(B, T_Q, D_K).double(), torch.randn(B, T_K, D_K).double()
    mask = padding_mask(torch.tensor([4, 7]), T_K)
    results = []
    for attend in (
        lambda x, context: ours(x, context, mask),
        lambda x, context: single_head_twin(ours)(x, context, context, key_padding_mask=~mask[:, 0, 0]),
    ):
        inputs = [x.clone().requires_grad_(), context.clone().requires_grad_()]
        output, weights = attend(*inputs)
        gradients = torch.autograd.grad((output**2).sum(), inputs)
        results.append((output, weights.reshape(B, T_Q, T_K), *gradients))
    for mine, torchs in zip(*results, strict=True):
        close(mine, torchs, rtol=0, atol=1e-12)


def test_cross_attention_reads_keys_and_values_from_the_context_alone():
    torch.manual_seed(21)
    attention = CrossAttention(D_K, d_k=3, d_v=13).double()
    x, context = torch.randn(B, T_Q, D_K).double(), torch.randn(B, T_K, D_K).double()
    output, weights = attention(x, context)
    for b, i in itertools.product(range(B), range(T_Q)):
        query = attention.w_q.weight @ x[b, i]
        scores = torch.stack([query @ (attention.w_k.weight @ row) for row in context[b]]) / math.sqrt(3)
        expected = torch.softmax(scores, dim=0)
        close(weights[b, 0, i], expected)
        value = sum(w * (attention.w_v.weight @ row) for w, row in zip(expected, context[b], strict=True))
        close(output[b, i], attention.w_o.weight @ value)
    assert output.shape == (B, T_Q, D_K) and weights.shape == (B, 1, T_Q, T_K)


def loop_scores(query, memory, score):
    """Scores and output of one rule, one pair at a time, with softmax written out."""
    outputs, rows = [], []
    for q in query:
        raw = [math.exp(score(q, k)) for k in memory]
        weights = torch.tensor([r / sum(raw) for r in raw], dtype=torch.float64)
        rows.append(weights)
        outputs.append(sum(w * k for w, k in zip(weights, memory, strict=True)))
    return torch.stack(outputs), torch.stack(rows)


def test_every_scoring_rule_is_its_formula():
    torch.manual_seed(22)
    query, memory = torch.randn(B, T_Q, D_K).double(), torch.randn(B, T_K, D_K).double()
    additive = AdditiveAttention(D_K, d_hidden=3).double()
    general, concat = (LuongAttention(D_K, method).double() for method in ("general", "concat"))
    rules = [
        (LuongAttention(D_K, "dot"), lambda q, k: float(q @ k)),
        (general, lambda q, k: float(q @ general.w.weight @ k)),
        (
            concat,
            lambda q, k: float(concat.v.weight[0] @ torch.tanh(concat.w.weight @ torch.cat([q, k]) + concat.w.bias)),
        ),
        (
            additive,
            lambda q, k: float(
                additive.v.weight[0] @ torch.tanh(additive.w_q.weight @ q + additive.w_q.bias + additive.w_k.weight @ k)
            ),
        ),
    ]
    for attention, score in rules:
        output, weights = attention(query, memory)
        assert weights.shape == (B, 1, T_Q, T_K)
        for b in range(B):
            with torch.no_grad():
                expected_output, expected_weights = loop_scores(query[b], memory[b], score)
            close(output[b], expected_output, rtol=0, atol=1e-12)
            close(weights[b, 0], expected_weights, rtol=0, atol=1e-12)


def test_additive_attention_by_hand():
    """One hidden unit, W_q = 1, W_k = 2, b = 0, v = 3: scores 3 tanh(q + 2k) for q = 0.5 and k = 0, 1, -1."""
    attention = AdditiveAttention(1).double()
    for parameter, value in zip((attention.w_q.weight, attention.w_q.bias, attention.w_k.weight, attention.v.weight),
                                (1.0, 0.0, 2.0, 3.0), strict=True):  # fmt: skip
        nn.init.constant_(parameter, value)
    output, weights = attention(torch.tensor([[[0.5]]]).double(), torch.tensor([[[0.0], [1.0], [-1.0]]]).double())
    raw = [math.exp(3 * math.tanh(s)) for s in (0.5, 2.5, -1.5)]
    close(weights.flatten(), torch.tensor([r / sum(raw) for r in raw]).double())
    close(output.item(), (raw[1] - raw[2]) / sum(raw))


def test_additive_attention_takes_a_memory_of_another_size():
    torch.manual_seed(23)
    attention = AdditiveAttention(D_K, 3, d_memory=D_V).double()
    output, _ = attention(torch.randn(B, T_Q, D_K).double(), torch.randn(B, T_K, D_V).double())
    assert output.shape == (B, T_Q, D_V)
    assert sum(p.numel() for p in attention.parameters()) == 3 * D_K + 3 + 3 * D_V + 3  # one bias, v without


@pytest.mark.parametrize("make", [AdditiveAttention, *(lambda d, m=m: LuongAttention(d, m) for m in METHODS)])
def test_scores_hide_what_the_mask_hides(make):
    """Hidden memory can be anything; a query that sees nothing gives 0; gradients stay finite."""
    torch.manual_seed(24)
    attention = make(D_K).double()
    query, memory = torch.randn(B, T_Q, D_K).double(), torch.randn(B, T_K, D_K).double()
    mask = padding_mask(torch.tensor([0, 4]), T_K)
    other = torch.where(mask[:, 0, 0, :, None], memory, 1000 * torch.randn(B, T_K, D_K).double())
    output, weights = attention(query, memory.requires_grad_(), mask)
    close(output, attention(query, other, mask)[0], rtol=0, atol=0)
    assert not weights[0].any() and not output[0].any() and not weights[1, ..., 4:].any()
    (gradient,) = torch.autograd.grad(output.sum(), memory)
    assert gradient.isfinite().all() and not gradient[1, 4:].any()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: LuongAttention(4, "cosine"), "unknown method 'cosine': choose from dot, general, concat"),
        (lambda: LuongAttention(4)(torch.ones(2, 3, 5), torch.ones(2, 3, 4)), r"query must have shape \(B, T, 4\)"),
        (lambda: AdditiveAttention(4)(torch.ones(2, 3, 4), torch.ones(2, 3, 5)), r"memory must have shape \(B, T, 4\)"),
        (lambda: AdditiveAttention(4)(torch.ones(2, 3, 4), torch.ones(3, 3, 4)), "same batch size: got 2 and 3"),
        (
            lambda: LuongAttention(4)(torch.ones(2, 3, 4), torch.ones(2, 5, 4), torch.ones(2, 3, 5).bool()),
            r"mask must have 2 axes .* got 3; give it its head axis with mask.unsqueeze\(1\)",
        ),
        (
            lambda: LuongAttention(4)(torch.ones(2, 3, 4), torch.ones(2, 5, 4), torch.ones(3, 5)),
            "mask must be bool, True = may attend: got torch.float32",
        ),
        (lambda: CrossAttention(4)(torch.ones(2, 3, 5), torch.ones(2, 3, 4)), r"x must have shape .*d_model=4"),
        (lambda: CrossAttention(4)(torch.ones(2, 3, 4), torch.ones(3, 4)), r"context must have shape .*\(3, 4\)"),
        (
            lambda: CrossAttention(4)(torch.ones(2, 3, 4), torch.ones(2, 5, 4), torch.ones(3, 6).bool()),
            r"mask of shape \(3, 6\) does not broadcast to scores of shape \(2, 1, 3, 5\)",
        ),
    ],
)
def test_errors_of_cross_attention_and_scores_name_rule_and_numbers(build, message):
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize("shift", [0, 1])
def test_facts_know_their_right_answers(shift):
    facts = cross_attention.draw_facts(300, torch.Generator().manual_seed(3), shift)
    for row in range(300):
        nouns, length = facts.nouns[row].tolist(), int(facts.lengths[row])
        assert len(set(nouns)) == len(nouns) and 5 <= length <= cross_attention.MOST_FACTS
        for column, (question, place) in enumerate(
            zip(facts.questions[row].tolist(), facts.aligned[row].tolist(), strict=True)
        ):
            assert place < length and nouns[place] == (question + shift) % len(cross_attention.NOUNS)
            assert facts.answers[row, column] == facts.adjectives[row, place]
    assert facts.mask.sum(dim=-1).flatten().tolist() == facts.lengths.tolist()


def test_lookup_is_scored_against_the_right_fact():
    """An attention made by hand that looks at the right fact scores 1, one that looks beside it 0."""
    facts = cross_attention.draw_facts(50, torch.Generator().manual_seed(4))

    class Look(nn.Module):
        def __init__(self, beside):
            super().__init__()
            self.beside = beside

        def forward(self, x, context, mask):
            weights = F.one_hot((facts.aligned + self.beside) % cross_attention.MOST_FACTS, cross_attention.MOST_FACTS)
            return weights.float() @ context, weights[:, None].float()

    for beside, expected in ((0, 1.0), (1, 0.0)):
        assert cross_attention.score(cross_attention.Lookup(Look(beside)), facts)[1] == expected


def test_kept_bytes_are_the_tensors_that_the_backward_pass_needs():
    """The plain dot product keeps its weights alone, T² floats; the additive score T² d_hidden more."""
    length = 7
    assert scoring_rules.kept_bytes(LuongAttention(scoring_rules.D_MODEL), length) == 4 * length**2
    additive = AdditiveAttention(scoring_rules.D_MODEL)
    assert scoring_rules.kept_bytes(additive, length) == 4 * (length**2 * scoring_rules.D_MODEL + length**2)


# ---------------------------------------------------------------------------------- phase 1: bottleneck and scaling


@pytest.mark.parametrize("name", seq2seq.MODELS)
def test_writers_never_see_what_they_are_to_write(name):
    """Changing a later letter of `previous` must not move an earlier prediction; changing the source must."""
    torch.manual_seed(25)
    model = seq2seq.MODELS[name]().double()
    source, previous = torch.randint(12, (B, 7)), torch.randint(12, (B, 5))
    logits, weights = model(source, previous)
    changed = previous.clone()
    changed[:, 3] = (changed[:, 3] + 1) % 12
    assert torch.equal(model(source, changed)[0][:, :3], logits[:, :3])
    assert not torch.allclose(model(source, changed)[0][:, 3:], logits[:, 3:])
    assert not torch.allclose(model((source + 1) % 12, previous)[0], logits)
    assert name == "none" or (
        weights.shape == (B, 1, 5, 7) and torch.allclose(weights.sum(-1), torch.ones(()).double())
    )


def test_without_attention_one_vector_carries_the_string():
    """Two strings that leave the reader in the same state are written alike: only the last states count."""
    torch.manual_seed(26)
    model = seq2seq.Seq2Seq()
    memory, last = model.read(torch.randint(12, (1, 7)))
    half = seq2seq.SIZE // 2
    close(last[0, :half], memory[0, -1, :half])  # reading forwards ends at the last letter
    close(last[0, half:], memory[0, 0, half:])  # reading backwards ends at the first


def test_luong_asks_after_the_letter_and_bahdanau_before():
    """The row of weights with which letter t is written depends on previous[t] for Luong, not for Bahdanau."""
    torch.manual_seed(27)
    source, previous = torch.randint(12, (1, 7)), torch.randint(12, (1, 5))
    changed = previous.clone()
    changed[:, -1] = (changed[:, -1] + 1) % 12
    for name, moves in (("Luong", True), ("Bahdanau", False)):
        model = seq2seq.MODELS[name]()
        rows = [model(source, letters)[1][0, 0, -1] for letters in (previous, changed)]
        assert torch.equal(*rows) != moves


def test_bottleneck_scores_are_those_of_a_writer_made_by_hand():
    """A model that copies perfectly scores 1 everywhere, and its weights lie on the anti-diagonal."""

    class Perfect(nn.Module):
        def forward(self, source, previous):
            length = previous.size(1)
            weights = torch.eye(source.size(1)).flip(0)[:length].expand(len(source), 1, -1, -1)
            return F.one_hot(source.flip(1)[:, :length], 12).float(), weights

    assert bottleneck.accuracy(Perfect(), 7) == bottleneck.accuracy_alone(Perfect(), 7) == 1
    aligned = bottleneck.alignment(Perfect())
    assert (aligned.on_the_letter, aligned.one_after_it, aligned.smallest) == (1, 0, 0)
    source, previous, target = bottleneck.draw_strings(5, 7, torch.Generator().manual_seed(0))
    assert target.tolist() == [row[::-1] for row in source.tolist()]
    assert previous[:, 1:].tolist() == target[:, :-1].tolist() and (previous[:, 0] == seq2seq.START).all()


def test_scaling_measures_the_gradients_of_its_formula():
    """dL/ds_j = w_j (v_j - L) and dL/dq = sum_j dL/ds_j k_j / √d_k, against what measure() reports at d_k = 11."""
    for divide in (True, False):
        stats = scaling.measure(11, divide, seed=5)
        generator = torch.Generator().manual_seed(5)
        shapes = (
            (scaling.NUM_DRAWS, 1, 11),
            (scaling.NUM_DRAWS, scaling.NUM_KEYS, 11),
            (scaling.NUM_DRAWS, scaling.NUM_KEYS, 1),
        )
        query, key, value = (torch.randn(shape, generator=generator) for shape in shapes)
        root = math.sqrt(11) if divide else 1.0
        weights = torch.softmax((query @ key.mT / root), dim=-1)
        output = weights @ value
        at_scores = weights * (value.mT - output)
        at_query = (at_scores @ key / root).norm(dim=-1).flatten()
        assert stats.at_scores == pytest.approx(at_scores.norm(dim=-1).mean().item(), rel=1e-4)
        assert stats.at_query_mean == pytest.approx(at_query.mean().item(), rel=1e-4)
        assert stats.at_query_median == pytest.approx(at_query.median().item(), rel=1e-4)
        assert stats.largest == pytest.approx(weights.amax(dim=-1).mean().item(), rel=1e-4)


def test_unscaled_attention_differs_by_the_root_alone():
    torch.manual_seed(28)
    ours = scaling_training.UnscaledSelfAttention(D_K, 7, output_projection=True).double()
    x = torch.randn(B, T_Q, D_K).double()
    scores = ours.w_q(x) @ ours.w_k(x).mT
    close(ours(x, causal_mask(T_Q))[1][:, 0], scores.masked_fill(~causal_mask(T_Q), -math.inf).softmax(dim=-1))
    torch.manual_seed(28)
    folded = scaling_training.FoldedSelfAttention(D_K, 7, output_projection=True).double()
    close(folded.w_q.weight * math.sqrt(7), ours.w_q.weight, rtol=1e-6, atol=0)
    close(folded.w_k.weight, ours.w_k.weight)


# ------------------------------------------------------------------------------------------- phase 1: positions


def vectors(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# ---------------------------------------------------------------- rotary positions


@pytest.mark.parametrize("size", [2, 6, 22])
def test_rotary_is_a_product_of_complex_numbers(size):
    """The definition of Su et al. 2021, section 3.2.1: pair i, read as x + iy, times exp(i position theta_i)."""
    x, places = vectors(B, H, T_K, size), torch.tensor([0, 1, 5, 7, 11, 400, 3])
    expected = torch.empty_like(x)
    for t, position in enumerate(places.tolist()):
        for i in range(size // 2):
            turn = complex(math.cos(position * 10000 ** (-2 * i / size)), math.sin(position * 10000 ** (-2 * i / size)))
            pair = torch.complex(x[..., t, 2 * i], x[..., t, 2 * i + 1]) * turn
            expected[..., t, 2 * i], expected[..., t, 2 * i + 1] = pair.real, pair.imag
    close(rotary(x, places), expected, rtol=0, atol=1e-12)


def test_rotary_scores_depend_on_the_offset_alone():
    query, key, here = vectors(T_K, 22), vectors(T_K, 22, seed=1), torch.arange(T_K)
    scores = rotary(query, here) @ rotary(key, here).T
    close(rotary(query, here + 100) @ rotary(key, here + 100).T, scores, rtol=0, atol=1e-10)
    assert (rotary(query, here + 100) @ rotary(key, here).T - scores).abs().max() > 0.1, "no position in the scores"
    close(scores[2, 5], query[2] @ rotary(key[5:6], torch.tensor([3]))[0], rtol=0, atol=1e-12)  # 5 - 2 = 3


def test_rotary_keeps_lengths_and_leaves_position_0_alone():
    x = vectors(B, T_K, 22)
    turned = rotary(x, torch.arange(T_K))
    close(turned.norm(dim=-1), x.norm(dim=-1), rtol=0, atol=1e-12)
    assert torch.equal(turned[:, 0], x[:, 0])
    assert ((turned - x)[:, 1:].abs().amax(dim=(0, 2)) > 0.1).all()


def test_rotary_refuses_what_it_cannot_turn():
    with pytest.raises(ValueError, match="even: got 11"):
        rotary(vectors(T_K, D_K), torch.arange(T_K))
    with pytest.raises(ValueError, match=r"\(7,\).*\(5,\)"):
        rotary(vectors(T_K, 22), torch.arange(T_Q))
    with pytest.raises(ValueError, match="even: got 11"):
        RotarySelfAttention(D_V, D_K).double()(vectors(B, T_K, D_V))


def same_weights(d_k=22, d_v=D_V):
    """A rotary and a plain head with the same parameters; d_model is odd, only d_k must be even."""
    torch.manual_seed(0)
    plain = SelfAttention(D_K, d_k, d_v, output_projection=True).double()
    turning = RotarySelfAttention(D_K, d_k, d_v, output_projection=True).double()
    turning.load_state_dict(plain.state_dict())
    return turning, plain


@pytest.mark.parametrize("mask", [None, causal_mask(T_K)])
def test_rotary_attention_without_turning_is_self_attention(mask):
    turning, plain = same_weights()
    x = vectors(B, T_K, D_K)
    for place in (0, 19):  # all at one place: all offsets are 0
        for ours, theirs in zip(turning(x, mask, torch.full((T_K,), place)), plain(x, mask), strict=True):
            close(ours, theirs, rtol=0, atol=1e-12)
    assert (turning(x, mask)[0] - plain(x, mask)[0]).abs().max() > 1e-3, "nothing was turned"


def test_rotary_attention_by_loops():
    """One pair of words at a time: the score takes the key turned by the offset, the value is not turned."""
    turning, _ = same_weights()
    x = vectors(1, T_K, D_K)
    query, key, value = (w(x)[0] for w in (turning.w_q, turning.w_k, turning.w_v))
    weights = torch.empty(T_K, T_K, dtype=torch.float64)
    for i in range(T_K):
        scores = [query[i] @ rotary(key[j : j + 1], torch.tensor([j - i]))[0] / math.sqrt(22) for j in range(T_K)]
        weights[i] = torch.stack(scores).softmax(dim=0)
    output, found = turning(x)
    close(found[0, 0], weights, rtol=0, atol=1e-12)
    close(output[0], turning.w_o(weights @ value), rtol=0, atol=1e-12)
    close(turning(x, None, torch.arange(T_K) + 1000)[0], output, rtol=0, atol=1e-9)


def test_rotary_attention_respects_masks():
    turning, _ = same_weights()
    x = vectors(B, T_K, D_K)
    mask = (torch.rand(B, 1, T_K, T_K, generator=torch.Generator().manual_seed(1)) < 0.6) & causal_mask(T_K)
    mask[..., 0, :] = False  # the first query sees nothing
    output, weights = turning(x, mask)
    assert output.shape == x.shape and weights.shape == (B, 1, T_K, T_K)
    assert (weights[~mask] == 0).all() and (weights[mask] > 0).all() and (output[:, 0] == 0).all()
    changed = x.clone()
    changed[:, -1] += 1
    close(turning(changed, causal_mask(T_K))[0][:, :-1], turning(x, causal_mask(T_K))[0][:, :-1], rtol=0, atol=0)


def test_rotary_attention_gradient():
    turning, _ = same_weights(d_k=2, d_v=3)
    x = vectors(1, T_Q, D_K).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: turning(x, causal_mask(T_Q))[0], (x,))


# ---------------------------------------------------------------- sinusoidal positions


@pytest.mark.parametrize("d_model", [2, 3, 12, 13, 64])
def test_sinusoidal_positions_are_the_published_formula(d_model):
    """Vaswani et al. 2017, section 3.5, one number at a time, odd sizes too; and the specification says the same."""
    expected = torch.zeros(23, d_model, dtype=torch.float64)
    for position in range(23):
        for i in range((d_model + 1) // 2):
            expected[position, 2 * i] = math.sin(position / 10000 ** (2 * i / d_model))
            if 2 * i + 1 < d_model:
                expected[position, 2 * i + 1] = math.cos(position / 10000 ** (2 * i / d_model))
    close(sinusoidal_positions(23, d_model).double(), expected, rtol=0, atol=1e-5)
    close(sinusoidal_by_loops(23, d_model), expected, rtol=0, atol=1e-12)


def test_sinusoidal_rows_have_one_length_and_their_similarity_depends_on_distance():
    encoding = sinusoidal_by_loops(23, 12)
    close(encoding.norm(dim=-1), torch.full((23,), math.sqrt(6), dtype=torch.float64))
    mean, spread = similarity_by_distance(encoding)
    close(mean[4], encoding[3] @ encoding[7])
    assert spread < 1e-12
    mean, spread = similarity_by_distance(torch.tensor([[1.0], [2.0], [3.0]]))  # by hand: 1 4 9, then 2 6, then 3
    assert mean.tolist() == pytest.approx([14 / 3, 4, 3]) and spread == pytest.approx(9 - 14 / 3)


def test_sinusoidal_similarity_is_the_rotary_score_of_equal_words():
    ones = torch.tensor([1.0, 0.0], dtype=torch.float64).repeat(23, 6)
    turned = rotary(ones, torch.arange(23))
    close(turned @ turned.T, sinusoidal_by_loops(23, 12) @ sinusoidal_by_loops(23, 12).T, rtol=0, atol=1e-12)


def test_against_the_fall_by_hand():
    """5 3 4 1: one of three steps grows, and of the six pairs of distances only (3, 4)."""
    assert against_the_fall(torch.tensor([5.0, 3.0, 4.0, 1.0])) == pytest.approx((1 / 3, 1 / 6))
    assert against_the_fall(torch.tensor([5.0, 4.0, 3.0])) == (0, 0)
    assert against_the_fall(torch.tensor([3.0, 4.0, 5.0])) == (1, 1)


# ---------------------------------------------------------------- blind to order


def head(mask=None, encoding=0.0, attention_class=SelfAttention):
    torch.manual_seed(0)
    attention = attention_class(D_K, 22, output_projection=True).double()

    def attend(words):
        output, weights = attention((words + encoding)[None], mask)
        return output[0], weights[0, 0]

    return attend


@torch.no_grad()
def test_only_attention_without_positions_and_mask_is_blind_to_order():
    words, order = vectors(T_K, D_K), torch.tensor([3, 0, 6, 2, 5, 1, 4])
    assert order_gap(head(), words, order) < 1e-12
    for attend in (
        head(causal_mask(T_K)),
        head(encoding=sinusoidal_by_loops(T_K, D_K)),
        head(attention_class=RotarySelfAttention),
    ):
        assert order_gap(attend, words, order) > 0.01
        assert order_gap(attend, words, torch.arange(T_K)) == 0


@torch.no_grad()
def test_the_same_word_twice():
    words = vectors(T_K, D_K)
    words[5] = words[1]
    alone, masked = twin_gaps(head(), words, 1, 5), twin_gaps(head(causal_mask(T_K)), words, 1, 5)
    assert max(alone.values()) < 1e-12
    assert masked["outputs"] > 0.01 and masked["rows"] > 0.01
    assert masked["columns"] < 1e-12, "a word that sees both must give both the same"
    assert min(twin_gaps(head(encoding=sinusoidal_by_loops(T_K, D_K)), words, 1, 5).values()) > 1e-3
    assert min(twin_gaps(head(), words, 1, 4).values()) > 1e-3, "different words must differ"


# ---------------------------------------------------------------- the experiment


def test_weight_moved_by_loops():
    """Weights that follow the words do not move when words do; weights that follow the places do, and not otherwise."""
    tokens = torch.randint(10, (3, T_K), generator=torch.Generator().manual_seed(0))
    by_word = nn.Embedding(10, 5).double()

    def content(tokens):
        x = by_word(tokens)
        return (x @ x.mT).softmax(dim=-1)

    def place(tokens):
        return vectors(T_K, T_K).softmax(dim=-1).expand(len(tokens), T_K, T_K)

    seed, same_words, same_places = 3, "same words, other places", "other words, same places"
    assert positions.weight_moved(content, tokens, seed)[same_words] < 1e-12
    assert positions.weight_moved(content, tokens, seed)[same_places] > 0.1
    assert positions.weight_moved(place, tokens, seed)[same_places] == 0
    order = torch.rand(tokens.shape, generator=torch.Generator().manual_seed(seed)).argsort(dim=1).tolist()
    weights, moved = place(tokens)[0], 0.0
    for to in order:  # to[a] is the word that now stands at a
        for a in range(T_K):
            moved += sum(abs(float(weights[a, b] - weights[to[a], to[b]])) for b in range(T_K)) / 2
    assert positions.weight_moved(place, tokens, seed)[same_words] == pytest.approx(moved / (3 * T_K))


def test_answers_by_hand():
    symbols = torch.tensor([[7, 1, 8, 2, 9]])
    assert positions.answers(positions.REVERSE, symbols).tolist() == [[9, 2, 8, 1, 7]]
    assert positions.answers(positions.COPY, symbols)[:, positions.FIRST_PLACE[positions.COPY] :].tolist() == [[7, 1]]


def test_everything_but_the_encoding_starts_alike():
    models = {}
    for name in positions.ENCODINGS:
        torch.manual_seed(1)
        models[name] = positions.SymbolMover(name)
    for name, model in models.items():
        for key, tensor in model.state_dict().items():
            assert torch.equal(tensor, models["none"].state_dict()[key]) == (
                key != "positions" or name in ("none", "rotary")
            ), (name, key)
        assert model.positions.requires_grad == (name == "learned")


def test_without_positions_the_answers_are_shuffled_with_the_symbols():
    """So that no training can teach it to reverse: equal symbols get equal answers, wherever they stand."""
    torch.manual_seed(0)
    symbols = torch.randint(positions.SYMBOLS, (B, 16), generator=torch.Generator().manual_seed(0))
    for name in positions.ENCODINGS:
        model = positions.SymbolMover(name).double()
        gap = (model(symbols.flip(dims=[1]))[0] - model(symbols)[0].flip(dims=[1])).abs().max().item()
        assert (gap < 1e-12) == (name == "none"), (name, gap)


def test_a_few_steps_teach_distance_with_rotary_and_nothing_without_positions():
    rotary_model, blind = (positions.train(name, positions.COPY, 0, steps=60) for name in ("rotary", "none"))
    assert positions.right(rotary_model, positions.COPY) > 0.9
    assert positions.right(blind, positions.COPY) < positions.most_frequent() + 0.05


# ------------------------------------------------------------------------------------------- phase 1: long paths


class LinearRecurrence(nn.Module):
    """h_t = a h_{t-1} + x_t as a layer: its gradient from first to last is a^(n-1), whatever the words."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return recurrence.recurrence_by_loop(x[0], self.factor)[None]


@pytest.mark.parametrize(("factor", "length"), [(0.5, 7), (0.9, 31), (1.1, 13), (0.1, 250)])
def test_gradient_of_a_linear_recurrence_is_the_factor_to_the_number_of_steps(factor, length):
    """0.1^249 is a number in float64, but its square is not: the norm must not lose it."""
    expected = factor ** (length - 1) * math.sqrt(path_length.SIZE)  # one such gradient for each number of a word
    assert path_length.gradient(LinearRecurrence(factor), length) == pytest.approx(expected, rel=1e-9, abs=0)


@pytest.mark.parametrize("length", [2, 3, 4, 8, 9, 32, 33])
def test_plain_convolutions_connect_after_half_the_words_and_not_before(length):
    needed = math.ceil((length - 1) / 2)
    assert path_length.layers_needed(path_length.convolutions(4, dilated=False), length) == needed
    torch.manual_seed(0)
    x = torch.randn(1, length, 5, dtype=torch.float64, requires_grad=True)
    for depth in (needed - 1, needed):  # the whole stack in one piece, an independent way to the same answer
        stack = nn.Sequential(*itertools.islice(path_length.convolutions(5, dilated=False), depth)).double()
        (at_input,) = torch.autograd.grad(stack(x)[:, -1].sum(), x)
        assert bool(at_input[0, 0].any()) == (depth == needed), f"{depth} layers, {length} words"


@pytest.mark.parametrize(("length", "needed"), [(3, 1), (4, 2), (7, 2), (8, 3), (15, 3), (16, 4), (128, 7), (511, 8)])
def test_dilated_convolutions_reach_twice_as_far_with_each_layer(length, needed):
    """L layers of kernel 3 reach back 2 + 4 + ... + 2^L = 2^(L+1) - 2 words."""
    assert 2 ** (needed + 1) - 2 >= length - 1 > 2**needed - 2
    assert path_length.layers_needed(path_length.convolutions(4, dilated=True), length) == needed


def test_attention_connects_in_one_layer_and_too_few_layers_are_an_error():
    assert [path_length.layers_needed(iter([SelfAttention(4)]), n) for n in (2, 17, 300)] == [1, 1, 1]
    few = itertools.islice(path_length.convolutions(4, dilated=False), 15)  # 16 are needed
    with pytest.raises(ValueError, match="do not connect the first of 32 words"):
        path_length.layers_needed(few, 32)


def test_convolution_is_causal_and_torchs_own():
    torch.manual_seed(0)
    layer, x = path_length.CausalConvolution(5, kernel=3, dilation=2), torch.randn(2, 11, 5)
    by_hand = layer.bias.expand(2, 11, 5).clone()
    for t, tap in itertools.product(range(11), range(3)):
        if (source := t - 2 * (2 - tap)) >= 0:
            by_hand[:, t] += x[:, source] @ layer.weight[:, :, tap].T
    close(layer(x), by_hand)


def test_chain_counts_operations_that_wait_for_one_another():
    """Worked by hand: x itself, then each operation on the longest way; what runs beside it does not count."""
    x = torch.ones(3, requires_grad=True)
    assert recurrence.longest_chain(x + 1) == 2
    assert recurrence.longest_chain((x + 1).exp() * 2 + x.sin()) == 5
    assert recurrence.longest_chain(torch.stack([x.sin(), x.cos(), x.exp()])) == 3


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
def test_recurrent_networks_take_as_many_steps_as_there_are_words(kind):
    assert [recurrence.steps_needed(kind(3, 3, batch_first=True), n) for n in (1, 2, 5, 29)] == [1, 2, 5, 29]


@pytest.mark.parametrize("factor", [0.3, 0.9, 1.0, -0.7])
def test_linear_recurrence_at_once_equals_the_loop(factor):
    torch.manual_seed(0)
    x = torch.randn(13, 3, dtype=torch.float64, requires_grad=True)
    by_loop, at_once = recurrence.recurrence_by_loop(x, factor), recurrence.recurrence_at_once(x, factor)
    close(at_once, by_loop, rtol=0, atol=1e-12)
    state = torch.zeros(3, dtype=torch.float64)
    for word, got in zip(x, by_loop, strict=True):  # the definition, once more
        state = factor * state + word
        close(got, state)
    assert recurrence.longest_chain(by_loop) > 13 > recurrence.longest_chain(at_once)


def test_tanh_makes_a_recurrence_that_no_matrix_can_stand_for():
    torch.manual_seed(0)
    assert recurrence.not_linear(nn.Linear(recurrence.SIZE, recurrence.SIZE, bias=False).double()) < 1e-12
    rnn = nn.RNN(recurrence.SIZE, recurrence.SIZE, batch_first=True, bias=False).double()
    assert recurrence.not_linear(rnn) > 0.1


def test_what_is_kept_of_a_text():
    d = recurrence.SIZE
    kept = {
        kind: [recurrence.numbers_kept(kind(d, d, batch_first=True), n) for n in (5, 50)] for kind in (nn.RNN, nn.LSTM)
    }
    assert kept == {nn.RNN: [d, d], nn.LSTM: [2 * d, 2 * d]}
    assert [recurrence.numbers_kept(SelfAttention(d), n) for n in (5, 50)] == [2 * 5 * d, 2 * 50 * d]


def test_weights_are_counted_and_written_as_formulas():
    d, n = 24, 7
    expected = {
        "RNN": (2 * d**2, "2 d²"),
        "LSTM": (8 * d**2, "8 d²"),
        "convolution": (3 * d**2, "3 d²"),
        "dilated convolution": (3 * d**2, "3 d²"),
        "fully connected": ((n * d) ** 2, "(n d)²"),
        "attention": (3 * d**2, "3 d²"),
        "attention with W_O": (4 * d**2, "4 d²"),
    }
    names = layer_costs.LAYERS
    assert {k: (layer_costs.count_weights(k, d, n), layer_costs.weights_formula(k)) for k in names} == expected
    assert layer_costs.count_weights("fully connected", 64, 6) == 147_456
    assert layer_costs.count_weights("attention with W_O", 64, 6) == 16_384


def test_influence_is_the_gradient_of_each_pair():
    torch.manual_seed(0)
    layer, x = SelfAttention(3).double(), torch.randn(1, 4, 3, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(lambda x: layer(x)[0].sum(dim=-1)[0], x)  # (4, 1, 4, 3)
    close(layer_costs.influence(layer, x), jacobian[:, 0].norm(dim=-1))


def test_who_goes_with_the_word_and_who_stays_with_the_place(monkeypatch):
    monkeypatch.setattr(layer_costs, "NUM_DRAWS", 3)
    torch.manual_seed(0)
    rows = {name: layer_costs.measure(name) for name in layer_costs.LAYERS}
    assert {name: row.content_decides for name, row in rows.items()} == {
        "RNN": "how much",
        "LSTM": "how much",
        "convolution": "no",
        "dilated convolution": "no",
        "fully connected": "no",
        "attention": "where",
        "attention with W_O": "where",
    }
    assert {name for name, row in rows.items() if not row.at_once} == {"RNN", "LSTM"}
    assert {name for name, row in rows.items() if not row.any_length} == {"fully connected"}
    blind = layer_costs.Row("", [], [], True, stay=0.3, go=0.2)  # neither rule: no name for it
    assert blind.content_decides == "unclear"


def test_fits_tell_a_power_from_a_factor():
    power = [3 / n**1.5 for n in path_length.LENGTHS]
    factor = [0.2 * 0.8**n for n in path_length.LENGTHS]
    assert path_length.fall(power) == ("power", pytest.approx(-1.5))
    assert path_length.fall(factor) == ("factor", pytest.approx(0.8))
    assert path_length.fall([*factor[:-1], 0.0]) == ("factor", pytest.approx(0.8)), "zeros must be left out"
    assert path_length.fall_text(power) == "like n^-1.5" and path_length.fall_text(factor) == "× 0.80 a word"


def run_findings(module, monkeypatch, *arguments):
    """What main() would record, without writing findings or pictures."""
    recorded = []
    monkeypatch.setattr(module.findings, "record", lambda script, found, folder: recorded.extend(found))
    module.record_findings(*arguments)
    return {finding.id: finding for finding in recorded}


def test_verdict_on_vanishing_depends_on_what_is_measured(monkeypatch):
    """Attention that fell like an RNN would not hold; attention that kept all would hold without a condition."""
    script = path_length.cli.parser("")
    options = path_length.cli.parse(script, [])
    n = path_length.LENGTHS
    layers = {"RNN": list(n), "convolutions": [m // 2 for m in n], "attention": [1] * len(n)}
    layers["dilated convolutions"] = [round(math.log2(m)) for m in n]
    fast, slow, flat = [0.5**m for m in n], [3 / m for m in n], [0.4 for m in n]
    verdicts = []
    for attention, conv in ((slow, [m // 2 for m in n]), (flat, [2] * len(n)), (fast, [m // 2 for m in n])):
        gradients = {"attention": attention, "LSTM": fast, "RNN": fast, "LSTM, gate open": flat}
        found = run_findings(path_length, monkeypatch, gradients, layers | {"convolutions": conv}, options)
        verdicts.append((found["C046"].verdict, found["C037"].verdict))
    assert verdicts == [(ONLY_IF, ONLY_IF), (HOLDS, HOLDS), ("does not hold", ONLY_IF)]


def test_picture_says_where_gradients_are_exactly_zero():
    flat = [0.1] * len(path_length.LENGTHS)
    gradients = dict.fromkeys(path_length.NETWORKS, flat) | {"RNN": [0.5**n for n in path_length.LENGTHS[:-1]] + [0.0]}
    figure, _ = path_length.draw(gradients, {"RNN": list(path_length.LENGTHS)}, "note")
    labels = [text.get_text() for text in figure.axes[0].texts]
    assert "RNN: × 0.50 a word\n0 at 512 words ↓" in labels
    path_length.plt.close(figure)


# ----------------------------------------------------------------------------- phase 1: reading weights, textbooks


def random_reading(seed=0, length=7, d_k=11, d_v=13):
    generator = torch.Generator().manual_seed(seed)
    query, key, value = (torch.randn(length, d, generator=generator).double() for d in (d_k, d_k, d_v))
    return Reading(list("abcdefg"[:length]), query, key, value, (query @ key.T / math.sqrt(d_k)).softmax(dim=-1))


# ----------------------------------------------------------------------------------------------- textbook_numbers


@pytest.mark.parametrize("temperature", [0.3, 1.0, 8.0])
def test_softmax_and_slopes_by_hand_agree_with_torch_and_autograd(temperature):
    scores = torch.tensor([700.0, -3.0, 699.5, 0.2, 698.0], dtype=torch.float64, requires_grad=True)  # exp(700) is inf
    weights = torch.softmax(scores / temperature, dim=0)
    rises = torch.autograd.functional.jacobian(lambda s: torch.softmax(s / temperature, dim=0), scores).diagonal()
    assert textbook_numbers.softmax(scores.tolist(), temperature) == pytest.approx(weights.tolist(), abs=1e-12)
    assert textbook_numbers.slopes(scores.tolist(), temperature) == pytest.approx(rises.tolist(), abs=1e-12)


def test_order_violations_find_the_printed_row_and_pass_every_softmax():
    scores = textbook_numbers.SAT_SCORES
    assert textbook_numbers.order_violations(scores, textbook_numbers.SAT_WEIGHTS) == [(0, 4)]
    for temperature in (0.2, 1, 5, 300):
        weights = [round(w, 2) for w in textbook_numbers.softmax(scores, temperature)]
        assert textbook_numbers.order_violations(scores, weights) == [], "rounding keeps the order too"
    assert textbook_numbers.order_violations([1, 2, 3], [0.5, 0.3, 0.2]) == [(1, 0), (2, 0), (2, 1)]
    assert textbook_numbers.order_violations([1, 1], [0.4, 0.6]) == [], "equal scores have no order"


def test_best_temperature_recovers_the_one_that_made_the_weights():
    scores = [0.3, -1.1, 2.0, 0.7, 0.0]
    best, error = textbook_numbers.best_temperature(scores, textbook_numbers.softmax(scores, 2.57))
    assert best == 2.57 and error < 1e-12
    best, error = textbook_numbers.best_temperature(textbook_numbers.SAT_SCORES, textbook_numbers.SAT_WEIGHTS)
    assert best == pytest.approx(1.36, abs=0.02) and error == pytest.approx(0.028, abs=0.001)


@pytest.mark.parametrize("d_k", [2, 7, 64])
def test_divisor_is_read_off_the_weights(d_k):
    assert textbook_numbers.divisor(d_k) == pytest.approx(math.sqrt(d_k), rel=1e-12)


def test_luminance_of_known_colours():
    for color, expected in (
        ((0, 0, 0), 0.0), ((1, 1, 1), 1.0), ((0, 1, 0), 0.7152), ((1, 0, 0), 0.2126), ((0.5, 0.5, 0.5), 0.2140),
        ((0.02, 0.02, 0.02), 0.02 / 12.92), ((1, 1, 1, 0.3), 1.0),
    ):  # fmt: skip
        assert textbook_numbers.luminance(color) == pytest.approx(expected, abs=5e-5)
    steps = [textbook_numbers.luminance(WEIGHT_MAP(step / 50)) for step in range(51)]
    assert steps == sorted(steps, reverse=True), "our own map must darken all the way"
    assert textbook_numbers.luminance(matplotlib.colormaps["YlOrRd"](1.0)) < 0.1


def test_exercise_scores_worked_by_hand():
    assert textbook_numbers.exercise_scores([(1, 5, 7), (0, 9, 9), (-2, 0, 0)]) == pytest.approx(
        [0.57735, 0.0, -1.1547], abs=1e-5
    )


def textbook_verdicts(folder):
    textbook_numbers.main(["--output-dir", str(folder)])
    file = folder / paths.PROCESSED / "findings" / "phase1_single_head.textbook_numbers.json"
    return {finding["id"]: finding["verdict"] for finding in json.loads(file.read_text())}


def test_textbook_verdicts_and_that_they_follow_the_numbers(tmp_path, monkeypatch, capsys):
    before = textbook_verdicts(tmp_path)
    wrong = {name for name, verdict in before.items() if verdict == "does not hold"}
    assert wrong == {"C019", "C020", "C021", "C022", "C138", "C164", "C165", "C167"}
    assert {name for name, verdict in before.items() if verdict == "holds only if"} == {"C023"}
    good = [[round(w, 2) for w in textbook_numbers.softmax(textbook_numbers.LARGE_SCORES, t)] for t in (1, 8)]
    monkeypatch.setattr(textbook_numbers, "PRINTED_RAW", tuple(good[0]))
    monkeypatch.setattr(textbook_numbers, "PRINTED_SCALED", tuple(good[1]))
    sat = tuple(round(w, 3) for w in textbook_numbers.softmax(textbook_numbers.SAT_SCORES, 1.5))
    monkeypatch.setattr(textbook_numbers, "SAT_WEIGHTS", sat)
    monkeypatch.setattr(textbook_numbers, "IT_WEIGHTS", (0.2, 0.3, 0.3))
    monkeypatch.setattr(textbook_numbers, "TOY_SENTENCE", "the cat sat on a mat")
    after = textbook_verdicts(tmp_path)
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"C019", "C020", "C022", "C166", "C169"}, "a verdict that the numbers cannot change is no finding"


# ------------------------------------------------------------------------------------- soft_lookup, queries_and_keys


def test_reading_is_what_the_model_itself_computes():
    trained = training.untrained(training.Recipe("t", "masked word", 1, 1, 7, d_model=14), make_single_head)
    words = ["the", "big", "cat", "sat", "on", "a", "mat"]
    reading, short = soft_lookup.read(trained, [words, words[:2]])
    weights = trained.model(torch.tensor([encode(words)]))[1][0][0, 0]
    close(reading.weights.float(), weights, rtol=0, atol=1e-5)
    assert reading.query.dtype == torch.float64 and reading.value.shape == (7, 14) and short.weights.shape == (2, 2)
    assert trained.model.positions.dtype == torch.float32, "the model that was passed in stays as it was"


def test_share_found_by_hand():
    rows = torch.tensor([[0.95, 0.05], [0.6, 0.4]], dtype=torch.float64)
    reading = Reading(["a", "b"], rows, rows, rows, rows)
    assert soft_lookup.share_found([reading]) == pytest.approx((0.775, 0.5))
    squared = (0.95**2 / (0.95**2 + 0.05**2) + 0.36 / 0.52) / 2  # scores times two square the weights
    assert soft_lookup.share_found([reading], 2) == pytest.approx((squared, 0.5))


def test_gradients_reach_all_of_a_soft_and_values_alone_of_a_hard_lookup():
    reading = random_reading()
    soft, hard = soft_lookup.gradient_sizes(reading), soft_lookup.gradient_sizes(reading, hard=True)
    assert min(sizes.min() for sizes in soft.values()) > 1e-6
    assert hard["query"].max() == hard["key"].max() == 0.0
    picked = reading.weights.argmax(dim=-1).bincount(minlength=7)  # v picked m times: d(m v²)/dv = 2 m v
    close(hard["value"], 2 * picked * reading.value.norm(dim=-1))


def test_pooling_queries_give_the_mean_and_any_single_value():
    reading = random_reading()
    assert max(soft_lookup.pooling_errors(reading)) < 1e-12
    for wanted in range(7):
        scores = soft_lookup.picking_query(reading.key, wanted, margin=3.0) @ reading.key.T / math.sqrt(11)
        close(scores[0], 3.0 * F.one_hot(torch.tensor(wanted), 7).double(), rtol=0, atol=1e-12)
    mean, first = soft_lookup.pooling_errors(random_reading(d_k=3))  # 7 keys in 3 dimensions depend on each other
    assert mean < 1e-12 and first > 1e-3


class OverTheBatch(nn.Module):
    """A mistake: the softmax runs over the items of the batch."""

    w_q = nn.Linear(13, 13)

    def forward(self, x):
        weights = (x @ x.mT).softmax(dim=0)
        return weights @ x, weights


def test_items_of_a_batch_are_independent_and_the_check_notices_when_not():
    torch.manual_seed(0)
    by_neighbours, by_own = soft_lookup.batch_influence(SelfAttention(13, d_k=5, d_v=3))
    assert by_neighbours == 0.0 and by_own > 1e-4
    assert soft_lookup.batch_influence(OverTheBatch())[0] > 1e-2


def test_one_causal_pass_equals_all_prefixes_and_other_masks_do_not():
    reading = random_reading()
    assert max(soft_lookup.prefix_differences(reading, causal_mask(7))) < 1e-12
    for wrong in (None, causal_mask(7).T, torch.ones(7, 7, dtype=torch.bool).tril(1)):
        assert min(soft_lookup.prefix_differences(reading, wrong)) > 1e-3


def test_asymmetry_by_hand():
    matrix = torch.tensor([[0.0, 1.0], [-1.0, 0.0]])
    assert queries_and_keys.asymmetry(matrix) == pytest.approx(2.0)
    assert queries_and_keys.asymmetry(matrix @ matrix.T) == 0.0
    assert queries_and_keys.asymmetry(torch.tensor([[0.0, 3.0], [4.0, 0.0]])) == pytest.approx(math.sqrt(2) / 5)


@pytest.mark.parametrize("size", [3, 7, 11])
def test_symmetric_scores_weigh_a_ring_the_same_both_ways(size):
    half = 3 * torch.randn(size, size, generator=torch.Generator().manual_seed(size)).double()
    weights, ring = (half + half.T).softmax(dim=-1), torch.arange(size).roll(-1)
    forward, backward = weights[range(size), ring], weights[ring, range(size)]
    close(forward.log().sum(), backward.log().sum())
    assert forward.log().mean().exp() <= 0.5
    one_sided = half.softmax(dim=-1)  # the control: without symmetry the two differ
    assert not torch.allclose(one_sided[range(size), ring].log().sum(), one_sided[ring, range(size)].log().sum())


def test_a_ring_needs_two_projections_and_a_star_does_not():
    ring, star = [1, 2, 3, 4, 0], [4, 4, 4, 4, 4]
    assert queries_and_keys.learn_to_look(ring, shared=False) > 0.99
    assert queries_and_keys.learn_to_look(ring, shared=True) <= 0.5 + 1e-6
    assert queries_and_keys.learn_to_look(star, shared=True) > 0.99


def test_share_on_diagonal_by_hand():
    weights = torch.tensor([[[0.6, 0.4], [0.7, 0.3]], [[0.9, 0.1], [0.2, 0.8]]])
    assert queries_and_keys.share_on_diagonal(weights) == 0.75
    assert queries_and_keys.share_on_diagonal(weights[0]) == 0.5


# --------------------------------------------------------------------------------- reading_weights, weight_statistics


def test_alternative_weights_worked_by_hand():
    """Values 0, 1, 2: a step of (1, -2, 1) changes neither mean nor sum, and ends when the middle is empty."""
    value = torch.tensor([[0.0], [1.0], [2.0]], dtype=torch.float64)
    weights = torch.tensor([0.25, 0.5, 0.25], dtype=torch.float64)
    close(reading_weights.alternative_weights(weights, value), torch.tensor([0.5, 0.0, 0.5]).double())
    assert reading_weights.total_variation(weights, torch.tensor([0.5, 0.0, 0.5])) == 0.5
    uneven = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)  # now away from the first: 0.1 * (-1, 2, -1) each time
    close(reading_weights.alternative_weights(uneven, value), torch.tensor([0.3, 0.7, 0.0]).double())
    assert reading_weights.change_without_effect(weights, value, torch.tensor([True, False, True])) is None


@pytest.mark.parametrize(("length", "d_v"), [(7, 3), (11, 5), (13, 1), (17, 2), (5, 3)])
def test_alternative_weights_are_weights_and_give_the_same_output(length, d_v):
    generator = torch.Generator().manual_seed(length)
    value = torch.randn(length, d_v, generator=generator).double()
    weights = torch.randn(length, generator=generator).double().softmax(dim=0)
    kept = weights.clone()
    other = reading_weights.alternative_weights(weights, value)
    assert torch.equal(weights, kept), "the row that was passed in stays as it was"
    assert (other >= 0).all() and abs(other.sum().item() - 1) < 1e-12
    close(other @ value, weights @ value, rtol=0, atol=1e-12)
    assert reading_weights.total_variation(other, weights) > 1e-3
    assert (other > 0).sum() <= d_v + 1, "Carathéodory: d_v + 1 words are enough"
    assert reading_weights.alternative_weights(other, value) is None, "a row with d_v + 1 words or fewer is at the end"


@pytest.mark.parametrize(("length", "d_v"), [(2, 1), (5, 4), (7, 13)])
def test_weights_are_unique_with_at_most_d_v_plus_one_words(length, d_v):
    generator = torch.Generator().manual_seed(0)
    value = torch.randn(length, d_v, generator=generator).double()
    weights = torch.randn(length, generator=generator).double().softmax(dim=0)
    assert reading_weights.alternative_weights(weights, value) is None
    value[1] = value[0]  # two words that say the same: the heavier gives all to the other, the rest stays
    other, lighter = reading_weights.alternative_weights(weights, value), int(weights[:2].argmin())
    close(other[2:], weights[2:])
    close(other[lighter], weights[:2].sum())


def test_hidden_words_stay_hidden():
    generator = torch.Generator().manual_seed(3)
    value, scores = torch.randn(11, 2, generator=generator).double(), torch.randn(11, generator=generator).double()
    hidden = torch.arange(11) % 3 == 0
    weights = scores.masked_fill(hidden, -math.inf).softmax(dim=0)
    other = reading_weights.alternative_weights(weights, value)
    assert (other[hidden] == 0).all() and reading_weights.total_variation(other, weights) > 1e-2
    close(other @ value, weights @ value, rtol=0, atol=1e-12)


def test_change_without_effect_takes_most_from_the_heaviest_free_word():
    generator = torch.Generator().manual_seed(5)
    value, free = torch.randn(13, 3, generator=generator).double(), torch.arange(13) != 4
    weights = torch.full((13,), 0.05, dtype=torch.float64)
    weights[4], weights[7] = 0.3, 0.15  # the heaviest is not free
    change = reading_weights.change_without_effect(weights, value, free)
    assert abs(change.sum().item()) < 1e-12 and (change @ value).abs().max() < 1e-12 and change[4] == 0
    constraints = torch.cat([value, torch.ones(13, 1).double()], dim=1)[free]
    for seed in range(50):  # no direction of the same length takes more from word 7
        other = torch.randn(12, generator=torch.Generator().manual_seed(seed)).double()
        other -= constraints @ torch.linalg.lstsq(constraints, other[:, None]).solution[:, 0]
        assert -other[6].abs() / other.norm() >= change[7] / change.norm() - 1e-12


def test_strongest_directions_keep_distances_and_say_how_much():
    generator = torch.Generator().manual_seed(0)
    flat = torch.randn(7, 2, generator=generator).double() @ torch.randn(2, 11, generator=generator).double() + 5
    kept, share = reading_weights.strongest_directions(flat, 2)
    assert share == pytest.approx(1.0) and kept.shape == (7, 2)
    close(torch.cdist(kept, kept), torch.cdist(flat, flat))
    cross = torch.tensor([[3.0, 0], [-3.0, 0], [0, 1.0], [0, -1.0]], dtype=torch.float64)
    kept, share = reading_weights.strongest_directions(cross, 1)
    assert share == pytest.approx(0.9)  # 18 of 20
    close(kept[:, 0].abs(), torch.tensor([3.0, 3.0, 0.0, 0.0]).double())


def test_contributions_by_hand():
    weights, value = torch.tensor([[0.9, 0.1], [0.1, 0.9]]), torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    close(reading_weights.contributions(weights, value), torch.tensor([[0.0, 0.5], [0.0, 4.5]]))
    reading = Reading(["a", "b"], weights, weights, value, weights)
    assert reading_weights.largest_agrees(reading).tolist() == [False, True]


def test_one_row_sum_notices_one_error_and_all_sums_notice_all():
    weights = torch.randn(3, 5, 5, generator=torch.Generator().manual_seed(0)).softmax(dim=-1)
    assert list(weight_statistics.errors_noticed(weights).values()) == [1, 15, 15]


def test_entropies_of_known_rows():
    path, even, peaked = weight_statistics.rows_of_entropy().values()
    assert path[0] == 0 and path[-1] == pytest.approx(math.log(20)) and even == pytest.approx(math.log(2))
    middle = 0.5 + 0.5 / 20
    assert path[2] == pytest.approx(-middle * math.log(middle) - 19 * 0.025 * math.log(0.025))
    assert peaked == pytest.approx(-0.7 * math.log(0.7) - 0.3 * math.log(0.3 / 19))


def test_made_patterns_are_what_their_names_say():
    patterns = weight_statistics.made_patterns(length=7, size=11, draws=3)
    for weights in patterns.values():
        close(weights.sum(dim=-1), torch.ones(3, 7).double())
    generator = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, 3, 7, 11, generator=generator, dtype=torch.float64)
    for name, scores in (
        ("random", query @ key.mT / math.sqrt(11)),
        ("random, not divided by √d", query @ key.mT),
        ("K = Q", query @ query.mT / math.sqrt(11)),
        ("K = 10 Q", 10 * query @ query.mT / math.sqrt(11)),
    ):
        close(patterns[name], scores.softmax(dim=-1))


# ------------------------------------------------------------------------------------------------------ the exercises

LESSONS = [exercises, exercises2, exercises3, exercises4]
BY_NAME = {exercise.name: exercise for lesson in LESSONS for exercise in lesson.EXERCISES}
HAND, SOFTMAX, SELF, ADDITIVE, POSITIONS, CROSS = (exercise.name for exercise in exercises.EXERCISES)
SPLIT, MERGE, HEADS, PROJECTION, GROUPED, BLOCK, POOLING = (exercise.name for exercise in exercises2.EXERCISES)


def checked(name, function):
    return exercise_checker.check(BY_NAME[name], function)


def soft(scores, mask):
    """The right masked softmax, written once more: hide, softmax, zero the rows that are nothing but NaN."""
    return F.softmax(scores.masked_fill(~mask, float("-inf")), dim=-1).nan_to_num(0)


def own_attention(q, k, v, mask=None, softmax=soft, scale=None):
    s = torch.einsum("ic,jc->ij", q, k) * (q.shape[1] ** -0.5 if scale is None else scale)
    w = F.softmax(s, dim=1) if mask is None else softmax(s, mask)
    return w.mm(v), w


def own_self(x, wq, wk, wv, mask=None, **options):
    return own_attention(x.mm(wq), x.mm(wk), x.mm(wv), mask, **options)


def own_cross(x, c, wq, wk, wv, wo, mask=None, **options):
    output, weights = own_attention(x.mm(wq), c.mm(wk), c.mm(wv), mask, **options)
    return output.mm(wo), weights


def unfinished(x, c, wq, wk, wv, wo, mask=None, *, weigh):
    """Cross-attention whose scores become weights in a way of their own."""
    s = x @ wq @ (c @ wk).T / wq.shape[1] ** 0.5
    w = weigh(s, torch.ones_like(s).bool() if mask is None else mask)
    return w @ (c @ wv) @ wo, w


def own_additive(query, memory, wq, wk, v, score=lambda a, b, v: (v * torch.tanh(a + b)).sum(), dim=1):
    s = torch.stack([torch.stack([score(q @ wq, m @ wk, v) for m in memory]) for q in query])
    w = F.softmax(s, dim=dim)
    return w @ memory, w


def own_positions(length, d_model, *, first=0, power=lambda i, column, d: 2 * i / d, functions=(math.sin, math.cos)):
    rows = [
        [functions[c % 2]((first + p) / 10000 ** power(c // 2, c, d_model)) for c in range(d_model)]
        for p in range(length)
    ]
    return torch.tensor(rows)


def blind_to_none(scores, mask):
    """-1e9, and the blind rows set to 0: right for all scores but those below -1e9."""
    weights = scores.masked_fill(mask.logical_not(), -1e9).softmax(1)
    weights[~mask.any(1)] = 0
    return weights


def exponentials(scores, mask):
    e = torch.exp(scores) * mask
    return e / e.sum(1, keepdim=True).clamp(min=1e-30)


def even_only_positions(length, d_model):
    """As in many tutorials: the cosines are assigned to one column too many of them if d_model is odd."""
    encoding = torch.zeros(length, d_model)
    angle = torch.arange(length).unsqueeze(1) * torch.exp(torch.arange(0, d_model, 2) * -(math.log(10000.0) / d_model))
    encoding[:, 0::2], encoding[:, 1::2] = torch.sin(angle), torch.cos(angle)
    return encoding


def stacked_positions(length, d_model):
    angle = torch.outer(torch.arange(length), 1e4 ** -(torch.arange(0, d_model, 2) / d_model))
    return torch.stack([angle.sin(), angle.cos()], dim=2).reshape(length, -1)


def concatenated_positions(length, d_model):
    angle = torch.outer(torch.arange(length), 1e4 ** -(torch.arange(0, d_model, 2) / d_model))
    return torch.cat([angle.sin(), angle.cos()[:, : d_model // 2]], dim=1)


# (exercise, the name by which the checker must know the mistake, a function that makes it)
PLANTED = [
    (HAND, "not divided by √d_k", lambda: [0.12, 0.87, 0.02]),
    (HAND, "divided by d_k", lambda: [0.31, 0.51, 0.19]),
    (HAND, "softmax missing", lambda: [1, 2, 0]),
    (HAND, "scale and softmax missing", lambda: (2, 4, 0)),
    (HAND, "divided by the sum of the scores", lambda: [0.33, 0.67, 0.0]),
    (HAND, "exponentials not divided by their sum", lambda: [2.72, 7.39, 1]),
    (SOFTMAX, "softmax over the wrong axis", lambda s, m: soft(s.T, m.T).T),
    (SOFTMAX, "mask inverted", lambda s, m: soft(s, m.logical_not())),
    (SOFTMAX, "mask inverted", lambda s, m: F.softmax(s.masked_fill(m, -1e9), dim=1)),
    (SOFTMAX, "mask ignored", lambda s, m: s.exp() / s.exp().sum(1)[:, None]),
    (SOFTMAX, "mask after softmax", lambda s, m: F.softmax(s, dim=1) * m),
    (SOFTMAX, "hidden scores set to 0", lambda s, m: F.softmax(s * m, dim=1)),
    (SOFTMAX, "hidden scores set to a finite number", lambda s, m: F.softmax(s.masked_fill(~m, -1e9), dim=1)),
    (SOFTMAX, "hidden scores set to a finite number", lambda s, m: F.softmax(s.masked_fill(~m, -1e4), dim=1)),
    (SOFTMAX, "hidden scores set to a finite number", blind_to_none),
    (SOFTMAX, "hidden scores set to a finite number", lambda s, m: F.softmax(s.masked_fill(~m, -1e9), dim=1) * m),
    (SOFTMAX, "NaN where a query sees nothing", lambda s, m: F.softmax(s.masked_fill(~m, -math.inf), dim=1)),
    (SOFTMAX, "NaN where a query sees nothing", lambda s, m: torch.exp(s) * m / (torch.exp(s) * m).sum(1)[:, None]),
    (SOFTMAX, "exponentials not divided by their sum", lambda s, m: torch.exp(s).masked_fill(~m, 0)),
    (SOFTMAX, "exp overflows", exponentials),
    (SOFTMAX, "exp overflows", lambda s, m: ((s.exp() * m) / (s.exp() * m).sum(1, keepdim=True)).nan_to_num(0)),
    (SELF, "not divided by √d_k", lambda *a: own_self(*a, scale=1)),
    (SELF, "divided by d_k", lambda x, wq, *a: own_self(x, wq, *a, scale=1 / wq.shape[1])),
    (SELF, "divided by √d_model", lambda x, *a: own_self(x, *a, scale=x.shape[1] ** -0.5)),
    (SELF, "K Qᵀ instead of Q Kᵀ", lambda x, wq, wk, wv, m=None: own_self(x, wk, wq, wv, m)),
    (SELF, "softmax missing", lambda x, q, k, v, m=None: ((s := x @ q @ (x @ k).T / q.shape[1] ** 0.5) @ (x @ v), s)),
    (SELF, "softmax over the wrong axis", lambda x, q, k, v, m=None: ((w := own_self(x, k, q, v)[1].T) @ (x @ v), w)),
    (SELF, "mask ignored", lambda x, wq, wk, wv, m=None: own_self(x, wq, wk, wv)),
    (SELF, "mask inverted", lambda x, q, k, v, m=None: own_self(x, q, k, v, m if m is None else ~m)),
    (SELF, "mask after softmax", lambda *a: own_self(*a, softmax=lambda s, m: F.softmax(s, dim=1) * m)),
    (SELF, "hidden scores set to 0", lambda *a: own_self(*a, softmax=lambda s, m: F.softmax(s * m, dim=1))),
    (
        SELF,
        "hidden scores set to a finite number",
        lambda *a: own_self(*a, softmax=lambda s, m: (s - 1e9 * ~m).softmax(1)),
    ),
    (SELF, "NaN where a query sees nothing", lambda *a: own_self(*a, softmax=lambda s, m: (s + m.log()).softmax(1))),
    (SELF, "returned in the wrong order", lambda *a: own_self(*a)[::-1]),
    (ADDITIVE, "tanh missing", lambda *a: own_additive(*a, score=lambda q, k, v: v @ (q + k))),
    (ADDITIVE, "v missing", lambda *a: own_additive(*a, score=lambda q, k, v: torch.tanh(q + k).sum())),
    (ADDITIVE, "tanh after v", lambda *a: own_additive(*a, score=lambda q, k, v: torch.tanh(v @ q + v @ k))),
    (
        ADDITIVE,
        "scaled like a dot product",
        lambda *a: own_additive(*a, score=lambda q, k, v: v @ (q + k).tanh() * len(v) ** -0.5),
    ),
    (ADDITIVE, "softmax over the wrong axis", lambda *a: own_additive(*a, dim=0)),
    (ADDITIVE, "softmax missing", lambda q, m, a, b, v: ((s := (q[:, None] @ a + m @ b).tanh() @ v) @ m, s)),
    (ADDITIVE, "returned in the wrong order", lambda *a: (own_additive(*a)[1], own_additive(*a)[0])),
    (POSITIONS, "sine and cosine swapped", lambda n, d: own_positions(n, d, functions=(math.cos, math.sin))),
    (POSITIONS, "sines and cosines side by side", concatenated_positions),
    (POSITIONS, "only sines", lambda n, d: own_positions(n, d, functions=(math.sin, math.sin))),
    (POSITIONS, "positions counted from 1", lambda n, d: own_positions(n, d, first=1)),
    (POSITIONS, "exponent i / d_model", lambda n, d: own_positions(n, d, power=lambda i, c, d: i / d)),
    (POSITIONS, "exponent doubled", lambda n, d: own_positions(n, d, power=lambda i, c, d: 2 * (c - c % 2) / d)),
    (POSITIONS, "each column its own angle", lambda n, d: own_positions(n, d, power=lambda i, c, d: c / d)),
    (POSITIONS, "multiplied by the power of 10000", lambda n, d: own_positions(n, d, power=lambda i, c, d: -2 * i / d)),
    (POSITIONS, "an odd d_model fails", even_only_positions),
    (POSITIONS, "an odd d_model fails", stacked_positions),
    (
        CROSS,
        "keys from x",
        lambda x, c, q, k, v, o, m=None: ((r := own_attention(x @ q, x @ k, c @ v, m))[0] @ o, r[1]),
    ),
    (
        CROSS,
        "values from x",
        lambda x, c, q, k, v, o, m=None: ((r := own_attention(x @ q, c @ k, x @ v, m))[0] @ o, r[1]),
    ),
    (CROSS, "keys and values from x", lambda x, c, *a: own_cross(x, x, *a)),
    (CROSS, "x and context swapped", lambda x, c, *a: own_cross(c, x, *a)),
    (CROSS, "output projection missing", lambda x, c, q, k, v, o, m=None: own_attention(x @ q, c @ k, c @ v, m)),
    (
        CROSS,
        "K Qᵀ instead of Q Kᵀ",
        lambda x, c, q, k, v, o, m=None: ((r := own_attention(c @ k, x @ q, c @ v, m))[0] @ o, r[1]),
    ),
    (CROSS, "not divided by √d_k", lambda *a: own_cross(*a, scale=1)),
    (CROSS, "divided by d_k", lambda x, c, q, *a: own_cross(x, c, q, *a, scale=1 / q.shape[1])),
    (CROSS, "mask inverted", lambda *a: own_cross(*a[:6], *(~m for m in a[6:]))),
    (CROSS, "mask ignored", lambda *a: own_cross(*a[:6])),
    (CROSS, "mask after softmax", lambda *a: own_cross(*a, softmax=lambda s, m: m * F.softmax(s, dim=1))),
    (
        CROSS,
        "hidden scores set to a finite number",
        lambda *a: own_cross(*a, softmax=lambda s, m: (s - 1e5 * ~m).softmax(1)),
    ),
    (CROSS, "NaN where a query sees nothing", lambda *a: own_cross(*a, softmax=lambda s, m: (s + m.log()).softmax(1))),
    (CROSS, "returned in the wrong order", lambda *a: own_cross(*a)[::-1]),
    (CROSS, "divided by √d_model", lambda x, *a: own_cross(x, *a, scale=x.shape[1] ** -0.5)),
    (CROSS, "hidden scores set to 0", lambda *a: own_cross(*a, softmax=lambda s, m: (s * m).softmax(1))),
    (CROSS, "softmax missing", lambda *a: unfinished(*a, weigh=lambda s, m: s * m)),
    (CROSS, "exponentials not divided by their sum", lambda *a: unfinished(*a, weigh=lambda s, m: s.exp() * m)),
    (CROSS, "softmax over the wrong axis", lambda *a: unfinished(*a, weigh=lambda s, m: soft(s.T, m.T).T)),
    (
        SELF,
        "exponentials not divided by their sum",
        lambda x, q, k, v, m=None: unfinished(x, x, q, k, v, torch.eye(13).double(), m, weigh=lambda s, m: s.exp() * m),
    ),
]


# phase 2: right and wrong, written apart from the solutions


def own_heads(x, wq, wk, wv, wo, n, mask=None, *, softmax=soft, scale=None, rows="bk", by_head="dnc"):
    """Multi-head attention as einsum. rows: the axes of scores (bnqk) that the mask has. by_head: cuts a matrix."""
    sizes = {"n": n, "c": x.shape[2] // n}
    shape = [sizes.get(axis, x.shape[2]) for axis in by_head]
    q, k, v = (torch.einsum(f"btd,{by_head}->bntc", x, w.reshape(shape)) for w in (wq, wk, wv))
    s = torch.einsum("bnqc,bnkc->bnqk", q, k) * (sizes["c"] ** -0.5 if scale is None else scale)
    if mask is not None:
        mask = mask.reshape([size if axis in rows else 1 for axis, size in zip("bnqk", s.shape, strict=True)])
    w = softmax(s, torch.ones_like(s).bool() if mask is None else mask.expand(s.shape))
    found = torch.einsum("bnqk,bnkc->bqnc", w, v)
    return torch.einsum("bqnc,ncd->bqd", found, wo.reshape(n, sizes["c"], -1)), w


def with_axis_of_batch(x, wq, wk, wv, wo, n, mask=None):
    """mask[:, None] is (B, 1, T), which broadcasting lines up with (H, T, T)."""

    def hide(scores, all_visible):
        return soft(scores, all_visible if mask is None else all_visible & mask[:, None])

    return own_heads(x, wq, wk, wv, wo, n, softmax=hide)


def by_core(x, wq, wk, wv, wo, n, mask=None, *, split=None, merge=None, place=None, projections=None):
    """As a reader writes it who uses the function of phase 1."""
    b, t, d = x.shape
    split = split or (lambda y: y.view(b, t, n, -1).transpose(1, 2))
    q, k, v = projections(split) if projections else (split(x @ w) for w in (wq, wk, wv))
    visible = None if mask is None else place(mask) if place else mask.view(b, 1, 1, t)
    found, weights = scaled_dot_product_attention(q, k, v, visible)
    return (merge(found) if merge else found.transpose(1, 2).reshape(b, t, d)) @ wo, weights


def every_head_alone(x, wq, wk, wv, wo, n, mask=None, *, own=True):
    """A loop over heads; own=False: each of them takes the columns of the first."""
    width, outputs, weights = x.shape[2] // n, [], []
    for h in range(n):
        columns = slice(h * width, h * width + width) if own else slice(width)
        q, k, v = x @ wq[:, columns], x @ wk[:, columns], x @ wv[:, columns]
        w = soft(q @ k.mT / width**0.5, torch.ones(len(x), 1, x.shape[1]).bool() if mask is None else mask[:, None])
        outputs.append(w @ v)
        weights.append(w)
    return torch.cat(outputs, dim=2) @ wo, torch.stack(weights, dim=1)


def heads_of_slices(x, wq, wk, wv, wo, n, mask=None, *, project=True, corner=False):
    """Head h takes slice h of the input; corner: all go through one small matrix; not project: through none."""
    width = x.shape[2] // n
    cut = [slice(h * width, h * width + width) for h in range(n)]

    def project_slices(_):
        matrices = (wq, wk, wv) if project else [torch.eye(x.shape[2], dtype=x.dtype)] * 3
        return [
            torch.stack([x[:, :, c] @ (w[cut[0], cut[0]] if corner else w[c, c]) for c in cut], 1) for w in matrices
        ]

    return by_core(x, wq, wk, wv, wo, n, mask, projections=project_slices)


def own_fused(x, w, n, axes, order="qbhtc"):
    """The fused projection with its last axis read as `axes`, and then put in order; q is the axis of the three."""
    sizes = {"q": 3, "h": n, "c": x.shape[2] // n}
    y = (x @ w).reshape(*x.shape[:2], *(sizes[a] for a in axes))
    return tuple(torch.einsum(f"bt{axes}->{order}", y))


def own_groups(q, k, v, mask=None, *, keys=None, values=None, softmax=soft, scale=None):
    """Grouped-query attention by a list of which key-value head each query head reads."""
    r = len(q) // len(k)
    keys, values = ([h // r for h in range(len(q))] if of is None else of(len(q), len(k)) for of in (keys, values))
    s = torch.einsum("hic,hjc->hij", q, k[keys]) * (q.shape[2] ** -0.5 if scale is None else scale)
    w = softmax(s, torch.ones_like(s).bool() if mask is None else mask)
    return w.bmm(v[values]), w


def tiled(h, g):
    return [i % g for i in range(h)]


def expanded(q, k, v, mask=None, *, dim):
    k, v = (torch.cat([y.unsqueeze(dim)] * (len(q) // len(y)), dim).reshape(len(q), *y.shape[1:]) for y in (k, v))
    return scaled_dot_product_attention(q, k, v, mask)


def own_norm(v, correction=0, eps=1e-5, dim=-1):
    return (v - v.mean(dim, keepdim=True)) / (v.var(dim, correction=correction, keepdim=True) + eps) ** 0.5


def standardised(v):
    """torch.std divides by one less, and many add the small number after the root."""
    return (v - v.mean(1, keepdim=True)) / (v.std(1, keepdim=True) + 1e-6)


def own_block(x, attention, w1, w2, causal=False, keep=None, p=0.0):
    see = torch.ones(len(x), len(x)).tril() > 0 if causal else None
    a = own_norm(x)
    found, weights = attention(a, see)
    if keep is not None:
        found = found * keep[0] / (1 - p)
    y = x + found
    b = own_norm(y)
    new = F.relu(b @ w1) @ w2
    if keep is not None:
        new = new * keep[1] / (1 - p)
    z = y + new
    return z, weights


def edited(*changes):
    """own_block with some of its text replaced, (old, new), wherever it stands."""
    source = inspect.getsource(own_block)
    for old, new in changes:
        assert old in source, old
        source = source.replace(old, new)
    namespace = dict(globals())
    exec(source, namespace)
    return namespace["own_block"]


def in_first_second_and_both(name, first, second):
    """The same mistake in one step of the layer, in the other, and in both."""
    return [(BLOCK, name, edited(*changes)) for changes in (first, second, first + second)]


def own_pooling(query, x, mask, *, softmax=soft, scale=None):
    s = torch.einsum("c,bjc->bj", query, x) * (len(query) ** -0.5 if scale is None else scale)
    w = softmax(s, mask)
    return (w.unsqueeze(2) * x).sum(1), w


def each_softmax(exercise, own):
    """What can go wrong in any masked softmax, over the last axis."""
    return [
        (exercise, "mask inverted", own(lambda s, m: soft(s, m if m.all() else ~m))),
        (exercise, "padding takes part" if exercise == POOLING else "mask ignored", own(lambda s, m: s.softmax(-1))),
        (exercise, "mask after softmax", own(lambda s, m: s.softmax(-1) * m)),
        (exercise, "hidden scores set to 0", own(lambda s, m: (s * m).softmax(-1))),
        (exercise, "hidden scores set to a finite number", own(lambda s, m: s.masked_fill(~m, -1e6).softmax(-1))),
        (exercise, "NaN where a query sees nothing", own(lambda s, m: (s + m.log()).softmax(-1))),
        (exercise, "exponentials not divided by their sum", own(lambda s, m: s.exp() * m)),
        (exercise, "softmax missing", own(lambda s, m: s * m)),
        (exercise, "softmax over the wrong axis", own(lambda s, m: s.masked_fill(~m, -math.inf).softmax(-2))),
    ]


PLANTED2 = [
    (SPLIT, "split without transpose", lambda x, n: x.contiguous().view(len(x), n, x.shape[1], x.shape[2] // n)),
    (SPLIT, "heads interleaved", lambda x, n: torch.stack([x[:, :, h::n] for h in range(n)], dim=1)),
    (SPLIT, "axes in the wrong order", lambda x, n: x.view(len(x), x.shape[1], n, -1)),
    (SPLIT, "axes in the wrong order", lambda x, n: torch.stack(x.split(x.shape[2] // n, dim=2))),
    (SPLIT, "axes in the wrong order", lambda x, n: torch.stack(x.mT.chunk(n, dim=1), dim=1)),
    (MERGE, "merged without transpose", lambda x: x.reshape(len(x), x.shape[2], x.shape[1] * x.shape[3])),
    (MERGE, "heads interleaved", lambda x: torch.stack(tuple(x.transpose(0, 1)), dim=-1).flatten(2)),
    (MERGE, "merged along the wrong axis", lambda x: torch.cat(tuple(x.transpose(0, 1)), dim=1)),
    (MERGE, "merged along the wrong axis", lambda x: x.transpose(1, 2).reshape(len(x), -1, x.shape[3])),
    (MERGE, "heads averaged", lambda x: sum(x[:, h] for h in range(x.shape[1])) / x.shape[1]),
    (MERGE, "heads added up", lambda x: sum(x[:, h] for h in range(x.shape[1]))),
    *each_softmax(HEADS, lambda softmax: lambda *a: own_heads(*a, softmax=softmax)),
    (
        HEADS,
        "softmax over the heads",
        lambda *a: own_heads(*a, softmax=lambda s, m: s.masked_fill(~m, -math.inf).softmax(1)),
    ),
    (HEADS, "not divided by √d_k", lambda *a: own_heads(*a, scale=1)),
    (HEADS, "divided by d_k", lambda *a: own_heads(*a, scale=a[5] / a[0].shape[2])),
    (HEADS, "divided by √d_model", lambda *a: own_heads(*a, scale=a[0].shape[2] ** -0.5)),
    (HEADS, "K Qᵀ instead of Q Kᵀ", lambda x, wq, wk, *a: own_heads(x, wk, wq, *a)),
    (HEADS, "mask on the queries", lambda *a: own_heads(*a, rows="bq")),
    (HEADS, "mask of one sequence on the head of another", with_axis_of_batch),
    (HEADS, "split without transpose", lambda *a: by_core(*a, split=lambda y: y.view(len(y), a[5], y.shape[1], -1))),
    (HEADS, "merged without transpose", lambda *a: by_core(*a, merge=lambda y: y.reshape(a[0].shape))),
    (
        HEADS,
        "split without transpose",
        lambda *a: by_core(
            *a, split=lambda y: y.view(len(y), a[5], y.shape[1], -1), merge=lambda y: y.reshape(a[0].shape)
        ),
    ),
    (HEADS, "heads interleaved", lambda *a: own_heads(*a, by_head="dcn")),
    (HEADS, "heads interleaved", lambda *a: by_core(*a, merge=lambda y: y.permute(0, 2, 3, 1).reshape(a[0].shape))),
    (HEADS, "output projection missing", lambda x, q, k, v, o, *a: own_heads(x, q, k, v, torch.eye(21).double(), *a)),
    (HEADS, "heads averaged", lambda *a: ((r := own_heads(*a))[0] / a[5], r[1])),
    (
        HEADS,
        "heads averaged",
        lambda x, q, k, v, o, *a: by_core(x, q, k, v, torch.eye(7).double(), *a, merge=lambda y: y.mean(1)),
    ),
    (HEADS, "weights averaged over the heads", lambda *a: ((r := own_heads(*a))[0], r[1].mean(1))),
    (HEADS, "heads cut out of the input", heads_of_slices),
    (HEADS, "heads cut out of the input", lambda *a: heads_of_slices(*a, corner=True)),
    (HEADS, "heads cut out of the input", lambda *a: heads_of_slices(*a, project=False)),
    (HEADS, "one small projection for all heads", lambda *a: every_head_alone(*a, own=False)),
    (HEADS, "matrices transposed", lambda x, *a: own_heads(x, *(w.mT for w in a[:4]), *a[4:])),
    (HEADS, "matrices transposed", lambda x, *a: own_heads(x, *(w.mT for w in a[:3]), *a[3:])),
    (HEADS, "returned in the wrong order", lambda *a: own_heads(*a)[::-1]),
    (PROJECTION, "queries, keys, values in another order", lambda x, w, n: own_fused(x, w, n, "qhc")[::-1]),
    (
        PROJECTION,
        "queries, keys, values in another order",
        lambda x, w, n: [own_fused(x, w, n, "qhc")[i] for i in (1, 0, 2)],
    ),
    (
        PROJECTION,
        "queries, keys, values in another order",
        lambda x, w, n: [own_fused(x, w, n, "qhc")[i] for i in (1, 2, 0)],
    ),
    (PROJECTION, "cut into heads first", lambda x, w, n: own_fused(x, w, n, "hqc")),
    (PROJECTION, "queries, keys, values interleaved", lambda x, w, n: own_fused(x, w, n, "hcq")),
    (PROJECTION, "heads interleaved", lambda x, w, n: own_fused(x, w, n, "qch")),
    (PROJECTION, "axes in the wrong order", lambda x, w, n: own_fused(x, w, n, "qhc", "qbthc")),
    (
        PROJECTION,
        "cut across the rows",
        lambda x, w, n: own_fused(x, torch.cat(tuple(w.view(3, len(w), len(w))), 1), n, "qhc"),
    ),
    (PROJECTION, "cut across the rows", lambda x, w, n: own_fused(x, w.reshape(-1, len(w)).mT, n, "qhc")),
    (
        PROJECTION,
        "matrices transposed",
        lambda x, w, n: own_fused(x, torch.cat([m.mT for m in w.split(len(w), 1)], 1), n, "qhc"),
    ),
    (
        PROJECTION,
        "split without transpose",
        lambda x, w, n: [y.reshape(len(y), n, y.shape[1], -1) for y in (x @ w).chunk(3, 2)],
    ),
    (PROJECTION, "split without transpose", lambda x, w, n: tuple((x @ w).view(3, len(x), n, x.shape[1], -1))),
    (PROJECTION, "split without transpose", lambda x, w, n: (x @ w).view(len(x), 3, n, x.shape[1], -1).unbind(1)),
    *each_softmax(GROUPED, lambda softmax: lambda *a: own_groups(*a, softmax=softmax)),
    (
        GROUPED,
        "softmax over the heads",
        lambda *a: own_groups(*a, softmax=lambda s, m: s.masked_fill(~m, -math.inf).softmax(0)),
    ),
    (GROUPED, "key-value heads tiled", lambda *a: own_groups(*a, keys=tiled, values=tiled)),
    (
        GROUPED,
        "key-value heads tiled",
        lambda q, k, v, m=None: scaled_dot_product_attention(q, *(y.repeat(len(q) // len(y), 1, 1) for y in (k, v)), m),
    ),
    (GROUPED, "key-value heads tiled", lambda *a: own_groups(*a, keys=tiled)),
    (GROUPED, "key-value heads tiled", lambda *a: own_groups(*a, values=tiled)),
    (GROUPED, "expanded along the wrong axis", lambda *a: expanded(*a, dim=2)),
    (GROUPED, "expanded along the wrong axis", lambda *a: expanded(*a, dim=3)),
    (GROUPED, "not divided by √d_k", lambda *a: own_groups(*a, scale=1)),
    (GROUPED, "divided by d_k", lambda *a: own_groups(*a, scale=1 / a[0].shape[2])),
    (GROUPED, "divided by √d_model", lambda *a: own_groups(*a, scale=(len(a[0]) * a[0].shape[2]) ** -0.5)),
    (GROUPED, "returned in the wrong order", lambda *a: own_groups(*a)[::-1]),
    *in_first_second_and_both(
        "norm after the addition (post-norm)",
        [("a = own_norm(x)", "a = x"), ("y = x + found", "y = own_norm(x + found)")],
        [("b = own_norm(y)", "b = y"), ("z = y + new", "z = own_norm(y + new)")],
    ),
    *in_first_second_and_both(
        "norm after the sub-layer",
        [("a = own_norm(x)", "a = x"), ("(a, see)\n", "(a, see)\n    found = own_norm(found)\n")],
        [("b = own_norm(y)", "b = y"), ("F.relu(b @ w1) @ w2", "own_norm(F.relu(b @ w1) @ w2)")],
    ),
    *in_first_second_and_both("norm missing", [("own_norm(x)", "x")], [("own_norm(y)", "y")]),
    *in_first_second_and_both("residual forgotten", [("y = x + found", "y = found")], [("z = y + new", "z = new")]),
    *in_first_second_and_both(
        "residual from the normalised copy", [("y = x + found", "y = a + found")], [("z = y + new", "z = b + new")]
    ),
    *in_first_second_and_both(
        "dropout after the addition",
        [
            ("found = found * keep[0]", "found = (x + found) * keep[0]"),
            ("y = x + found", "y = x + found if keep is None else found"),
        ],
        [("new = new * keep[1]", "new = (y + new) * keep[1]"), ("z = y + new", "z = y + new if keep is None else new")],
    ),
    (BLOCK, "second addition to the input", edited(("z = y + new", "z = x + new"))),
    (BLOCK, "feed-forward beside attention", edited(("b = own_norm(y)", "b = a"))),
    (BLOCK, "variance divided by d_model - 1", edited(("own_norm(", "own_norm(correction=1, v="))),
    (BLOCK, "variance divided by d_model - 1", edited(("own_norm(", "standardised("))),
    (BLOCK, "normalised along the wrong axis", edited(("own_norm(", "own_norm(dim=0, v="))),
    (BLOCK, "normalised along the wrong axis", edited(("own_norm(", "own_norm(dim=(0, 1), v="))),
    (
        BLOCK,
        "mean not subtracted",
        edited(("own_norm(x)", "F.rms_norm(x, (6,))"), ("own_norm(y)", "F.rms_norm(y, (6,))")),
    ),
    (BLOCK, "ReLU missing", edited(("F.relu(b @ w1)", "(b @ w1)"))),
    (BLOCK, "ReLU after the second matrix", edited(("F.relu(b @ w1) @ w2", "F.relu(b @ w1 @ w2)"))),
    (BLOCK, "GELU instead of ReLU", edited(("F.relu", "F.gelu"))),
    (BLOCK, "causal mask the wrong way around", edited((".tril()", ".tril().T"))),
    (BLOCK, "causal mask hides the position itself", edited((".tril()", ".tril(diagonal=-1)"))),
    (BLOCK, "mask inverted", edited((".tril() > 0", ".tril() == 0"))),
    (BLOCK, "causal ignored", edited(("if causal", "if False"))),
    (BLOCK, "always causal", edited(("if causal", "if True"))),
    (BLOCK, "dropout not rescaled by 1 / (1 - p)", edited((" / (1 - p)", ""))),
    (BLOCK, "divided by p", edited(("(1 - p)", "p"))),
    (BLOCK, "multiplied by 1 - p", edited(("/ (1 - p)", "* (1 - p)"))),
    (BLOCK, "dropped what was to be kept", edited(("keep[", "~keep["))),
    (BLOCK, "dropout ignored", edited(("if keep is not None", "if False"))),
    (
        BLOCK,
        "rescaled in evaluation",
        edited(("if keep is not None", "keep = [1, 1] if keep is None else keep\n    if True")),
    ),
    (BLOCK, "keep masks mixed up", edited(("keep[1]", "keep[0]"))),
    (BLOCK, "keep masks mixed up", edited(("keep[0]", "keep[1]"))),
    (BLOCK, "keep masks mixed up", edited(("keep[", "keep[1 - "))),
    (BLOCK, "returned in the wrong order", edited(("return z, weights", "return weights, z"))),
    *each_softmax(POOLING, lambda softmax: lambda *a: own_pooling(*a, softmax=softmax)),
    (POOLING, "a plain mean", lambda query, x, m: own_pooling(0 * query, x, m)),
    (POOLING, "a plain mean", lambda query, x, m: (x.mean(1), torch.full(m.shape, 1 / m.shape[1]))),
    (POOLING, "a plain mean", lambda query, x, m: ((x * m[:, :, None]).mean(1), m / m.shape[1])),
    (POOLING, "not divided by √d_model", lambda *a: own_pooling(*a, scale=1)),
    (POOLING, "divided by d_model", lambda *a: own_pooling(*a, scale=1 / len(a[0]))),
    (POOLING, "returned in the wrong order", lambda *a: own_pooling(*a)[::-1]),
]


# phase 3: right and wrong, written apart from the solutions


ENTROPY3, ROLE3, ROLLOUT3, REMOVED3 = (exercise.name for exercise in exercises3.EXERCISES)


def own_entropy(
    w,
    mask,
    *,
    log=math.log,
    limit=lambda row, seen: math.log(len(seen)),
    least=2,
    mean=lambda rows: sum(rows) / len(rows),
):
    """With loops: row by row, key by key."""
    result = []
    for head in w.tolist():
        rows = []
        for row, may in zip(head, mask.tolist(), strict=True):
            seen = [p for p, visible in zip(row, may, strict=True) if visible]
            if len(seen) >= least:
                rows.append(-sum(p * log(p) for p in seen if p > 0) / limit(row, seen))
        result.append(mean(rows))
    return torch.tensor(result)


def quick_entropy(w, mask, log=torch.log):
    """As first written: the logarithm of every weight, those of 0 too."""
    rows = -(w * log(w)).sum(2) / mask.sum(1).log()
    return rows[:, mask.sum(1) > 1].mean(1)


def entropy_of_columns(w, mask):
    return own_entropy(w.mT, mask.T)


def counted_as_sharp(w, mask):
    """A row with one key as 0: the division is made safe, and the mean is over all rows."""
    h = torch.special.entr(w).sum(-1) / mask.sum(-1).clamp(min=2).log()
    return h.sum(-1) / len(mask)


def own_role(w, gold, *, own=False, score=None, baseline=None):
    """Query by query. own: the word itself may be attended to; score: of one row of weights and one of gold."""
    sentences, heads, length, _ = w.shape
    w = w.clone()
    for i in range(0 if own else length):
        w[:, :, i, i] = -math.inf
    score = score or (lambda row, right: float(right[row.argmax()]))
    asked = [(n, i) for n in range(sentences) for i in range(length) if gold[n, i].any()]
    accuracy = [sum(score(w[n, h, i], gold[n, i]) for n, i in asked) / len(asked) for h in range(heads)]
    share = (baseline or own_baseline)(gold, len(asked))
    return torch.tensor(accuracy), torch.tensor(share)


def own_baseline(gold, asked, tried=None):
    length = gold.size(-1)
    tried = tried or [k for k in range(-length, length) if k]
    found = [(int(j - i)) for _, i, j in gold.nonzero()]
    return max(found.count(k) for k in tried) / asked


def own_rollout(w, *, heads=lambda layer: layer.mean(0), step=lambda a, e: 0.5 * a + 0.5 * e, order=1):
    e = torch.eye(w.shape[-1]).to(w)
    steps = [step(heads(layer), e) for layer in w]
    return torch.linalg.multi_dot([e, *steps[::-1]] if order > 0 else [e, *steps])


def mean_of_sentences(w, gold):
    """Each sentence by itself, then the mean of the sentences."""
    scores = [own_role(w[n : n + 1], gold[n : n + 1])[0] for n in range(len(w))]
    return torch.stack(scores).mean(0), own_role(w, gold)[1]


def own_removal(x, wq, wk, wv, wo, bo, n, removed, *, remove=None, bias=1.0):
    """Head by head: the output is the sum of what each of them adds through its rows of w_o."""
    size = x.shape[2] // n
    total = bias * bo.expand_as(x)
    for h in range(n):
        part = slice(h * size, (h + 1) * size)
        q, k, v = (x @ m[:, part] for m in (wq, wk, wv))
        head = torch.softmax(q @ k.mT / size**0.5, -1) @ v
        if h == removed:
            head = 0 * head if remove is None else remove(head, v)
        total = total + head @ wo[part]
    return total


def whole_heads(x, wq, wk, wv, n):
    """(B, T, H, d_k): what each head hands on."""
    q, k, v = ((x @ m).view(*x.shape[:2], n, -1) for m in (wq, wk, wv))
    weights = torch.einsum("binc,bjnc->bnij", q, k).div(q.shape[-1] ** 0.5).softmax(-1)
    return torch.einsum("bnij,bjnc->binc", weights, v).contiguous()


def removal_at_the_end(x, wq, wk, wv, wo, bo, n, removed, bias_first=True):
    out = whole_heads(x, wq, wk, wv, n).flatten(2) @ wo + bias_first * bo
    out = out.clone()
    out.view(*out.shape[:2], n, -1)[:, :, removed] = 0
    return out if bias_first else out + bo


def removal_by(change):
    """Change what all heads hand on, (B, T, H, d_k), in place, then project."""

    def function(x, wq, wk, wv, wo, bo, n, removed):
        heads = whole_heads(x, wq, wk, wv, n)
        change(heads, removed)
        return heads.flatten(2) @ wo + bo

    return function


def zero_at(pick):
    """Set to 0 what pick(heads, removed) gives, a view."""

    def change(heads, removed):
        pick(heads, removed).zero_()

    return removal_by(change)


def all_but(heads, removed):
    alone = heads[:, :, removed].clone()
    heads.zero_()
    heads[:, :, removed] = alone


def by_mean_of_heads(heads, removed):
    heads[:, :, removed] = heads.mean(2)


def louder_others(heads, removed):
    heads[:, :, removed] = 0
    heads *= heads.shape[2] / max(1, heads.shape[2] - 1)


def half_the_input(x, wq, wk, wv, wo, bo, n, removed):
    x = x.clone()
    x.unflatten(2, (n, -1))[:, :, removed] = 0
    return zero_at(lambda heads, _: heads[:, :, :0])(x, wq, wk, wv, wo, bo, n, removed)


def renormalised(x, wq, wk, wv, wo, bo, n, removed):
    """The weights of the head set to 0, and every row divided by its sum."""
    size = x.shape[2] // n
    heads = []
    for h in range(n):
        q, k, v = (x @ m[:, h * size : (h + 1) * size] for m in (wq, wk, wv))
        weights = torch.softmax(q @ k.mT / size**0.5, -1) * (h != removed)
        heads.append(weights / weights.sum(-1, keepdim=True) @ v)
    return torch.cat(heads, -1) @ wo + bo


def by_zero_queries(x, wq, *others):
    """Queries of zero score all keys alike, and so do scores of zero."""
    n, removed = others[-2:]
    wq = wq.clone()
    wq.view(len(wq), n, -1)[:, removed] = 0
    return own_removal(x, wq, *others[:-1], -1)


def by_zero_values(x, wq, wk, wv, wo, bo, n, removed):
    """Right: a head whose values are 0 hands on 0."""
    wv = wv.clone()
    wv.view(len(wv), n, -1)[:, removed] = 0
    return own_removal(x, wq, wk, wv, wo, bo, n, -1)


def by_zero_rows_of_w_o(x, wq, wk, wv, wo, bo, n, removed):
    """Right: nothing of the head passes."""
    wo = wo.clone()
    wo.view(n, -1, wo.shape[1])[removed] = 0
    return own_removal(x, wq, wk, wv, wo, bo, n, -1)


def by_difference(*a):
    """Right: all that is there, less what the head adds."""
    x, wq, wk, wv, wo, bo, n, removed = a
    alone = removal_by(all_but)(x, wq, wk, wv, wo, 0 * bo, n, removed)
    return own_removal(*a[:-1], -1) - alone


PLANTED3 = [
    (ENTROPY3, "NaN from 0 · ln 0", quick_entropy),
    (ENTROPY3, "NaN from 0 · ln 0", lambda w, m: quick_entropy(w, m, lambda x: torch.log2(x) * math.log(2))),
    (ENTROPY3, "log2 over ln", lambda w, m: own_entropy(w, m, log=math.log2)),
    (ENTROPY3, "minus sign missing", lambda w, m: -own_entropy(w, m)),
    (ENTROPY3, "mean over the heads before the entropy", lambda w, m: own_entropy(w.mean(0)[None], m).repeat(3)),
    (ENTROPY3, "mean over the heads before the entropy", lambda w, m: own_entropy(w.mean(0)[None], m)[0]),
    (ENTROPY3, "mean over the heads", lambda w, m: own_entropy(w, m).sum() / 3),
    (
        ENTROPY3,
        "mean over the rows before the entropy",
        lambda w, m: own_entropy(w.mean(1, keepdim=True), torch.ones(1, w.shape[2]) > 0),
    ),
    (ENTROPY3, "columns instead of rows", entropy_of_columns),
    (ENTROPY3, "not normalised", lambda w, m: own_entropy(w, m, limit=lambda row, seen: 1)),
    (ENTROPY3, "divided by ln T", lambda w, m: own_entropy(w, m, limit=lambda row, seen: math.log(len(row)))),
    (ENTROPY3, "divided by the number of keys", lambda w, m: own_entropy(w, m, limit=lambda row, seen: len(seen))),
    (
        ENTROPY3,
        "keys with weight counted, not visible ones",
        lambda w, m: own_entropy(w, m, limit=lambda row, seen: math.log(sum(p > 0 for p in seen))),
    ),
    (
        ENTROPY3,
        "mean before the division",
        lambda w, m: own_entropy(w, m, limit=lambda row, seen: 1) / m.sum(1)[m.sum(1) > 1].log().mean(),
    ),
    (ENTROPY3, "division by ln 1", lambda w, m: (torch.special.entr(w).sum(2) / m.sum(1).log()).mean(1)),
    (ENTROPY3, "a row without a choice counted", counted_as_sharp),
    (ROLE3, "own position counted", lambda w, g: own_role(w, g, own=True)),
    (ROLE3, "columns instead of rows", lambda w, g: own_role(w.mT, g)),
    (ROLE3, "gold the wrong way around", lambda w, g: own_role(w, g.mT)),
    (ROLE3, "mean over the heads first", lambda w, g: own_role(w.mean(1, keepdim=True).repeat(1, 3, 1, 1), g)),
    (ROLE3, "mean over the heads first", lambda w, g: own_role(w.mean(1, keepdim=True), g)),
    (
        ROLE3,
        "weight on the gold key, not the largest weight",
        lambda w, g: own_role(w, g, score=lambda row, right: row[right].sum()),
    ),
    (
        ROLE3,
        "queries without a gold key counted",
        lambda w, g: ((r := own_role(w, g))[0] * g.any(-1).sum() / g.any(-1).numel(), r[1]),
    ),
    (ROLE3, "mean of sentences, not of queries", mean_of_sentences),
    (
        ROLE3,
        "a best offset for each sentence",
        lambda w, g: (
            own_role(w, g)[0],
            sum(own_baseline(one[None], int(one.any(-1).sum())) for one in g) / len(g),
        ),
    ),
    (ROLE3, "baseline over all places", lambda w, g: own_role(w, g, baseline=lambda g, n: own_baseline(g, 4 * 7))),
    (
        ROLE3,
        "baseline over all places",
        lambda w, g: own_role(
            w, g, baseline=lambda g, n: max(float(g.diagonal(k, 1, 2).double().mean()) for k in range(-6, 7) if k)
        ),
    ),
    (
        ROLE3,
        "only neighbours tried as baseline",
        lambda w, g: own_role(w, g, baseline=lambda g, n: own_baseline(g, n, tried=[1, -1])),
    ),
    (ROLE3, "chance as baseline", lambda w, g: own_role(w, g, baseline=lambda g, n: 1 / 7)),
    (ROLE3, "chance as baseline", lambda w, g: own_role(w, g, baseline=lambda g, n: 1 / 6)),
    (ROLE3, "returned in the wrong order", lambda w, g: own_role(w, g)[::-1]),
    (ROLLOUT3, "residual missing", lambda w: own_rollout(w, step=lambda a, e: a)),
    (
        ROLLOUT3,
        "residual only once",
        lambda w: 0.5 * own_rollout(w, step=lambda a, e: a) + 0.5 * torch.eye(w.shape[2]).double(),
    ),
    (ROLLOUT3, "product in the wrong order", lambda w: own_rollout(w, order=-1)),
    (ROLLOUT3, "rows not renormalised", lambda w: own_rollout(w, step=lambda a, e: a + e)),
    (ROLLOUT3, "columns normalised", lambda w: own_rollout(w, step=lambda a, e: (a + e) / (a + e).sum(0))),
    (ROLLOUT3, "columns instead of rows", lambda w: own_rollout(w).T),
    (ROLLOUT3, "heads added up", lambda w: own_rollout(w, heads=lambda layer: layer.sum(0))),
    (
        ROLLOUT3,
        "heads added up",
        lambda w: own_rollout(w, heads=lambda layer: layer.sum(0), step=lambda a, e: (a + e) / (w.shape[1] + 1)),
    ),
    (ROLLOUT3, "largest of the heads", lambda w: own_rollout(w, heads=lambda layer: layer.max(0).values)),
    (
        ROLLOUT3,
        "largest of the heads",
        lambda w: own_rollout(
            w, heads=lambda layer: layer.max(0)[0], step=lambda a, e: (a + e) / (a + e).sum(1)[:, None]
        ),
    ),
    (ROLLOUT3, "number by number", lambda w: ((w.mean(1) + torch.eye(w.shape[2])) / 2).prod(0) * torch.eye(w.shape[2])),
    (ROLLOUT3, "mean of the layers", lambda w: own_rollout(w.mean(0, keepdim=True))),
    (ROLLOUT3, "a layer left out", lambda w: own_rollout(w[1:])),
    (ROLLOUT3, "a layer left out", lambda w: own_rollout(w[:-1])),
    (ROLLOUT3, "one matrix for each head", lambda w: torch.stack([own_rollout(one[:, None]) for one in w.unbind(1)])),
    (
        ROLLOUT3,
        "one matrix for each layer",
        lambda w: torch.stack([own_rollout(w[:end]) for end in range(1, len(w) + 1)]),
    ),
    (REMOVED3, "removed after w_o", removal_at_the_end),
    (REMOVED3, "removed after w_o", lambda *a: removal_at_the_end(*a, bias_first=False)),
    (REMOVED3, "every H-th column removed", zero_at(lambda h, r: h.flatten(2)[:, :, r :: h.shape[2]])),
    (REMOVED3, "bias removed too", lambda *a: own_removal(*a, bias=0)),
    (REMOVED3, "bias of the others only", lambda *a: own_removal(*a, bias=1 - 1 / a[6])),
    (REMOVED3, "nothing removed", lambda *a: own_removal(*a[:-1], -1)),
    (REMOVED3, "all but this head removed", removal_by(all_but)),
    (REMOVED3, "counted from 1", zero_at(lambda h, r: h[:, :, r - 1])),
    (REMOVED3, "weights made even", by_zero_queries),
    (
        REMOVED3,
        "weights made even",
        lambda *a: own_removal(*a, remove=lambda h, v: torch.softmax(torch.zeros(5, 5).double(), 1) @ v),
    ),
    (REMOVED3, "weights renormalised to NaN", renormalised),
    (REMOVED3, "the other heads scaled up", removal_by(louder_others)),
    (
        REMOVED3,
        "replaced by its mean",
        lambda *a: own_removal(*a, remove=lambda h, v: h.mean(1)[:, None].repeat(1, 5, 1)),
    ),
    (
        REMOVED3,
        "replaced by its mean",
        lambda *a: own_removal(*a, remove=lambda h, v: h.flatten(0, 1).mean(0).expand_as(h)),
    ),
    (REMOVED3, "replaced by the mean of the heads", removal_by(by_mean_of_heads)),
    (REMOVED3, "removed from the input", half_the_input),
    (REMOVED3, "one position removed", zero_at(lambda h, r: h[:, r])),
    (REMOVED3, "one sequence removed", zero_at(lambda h, r: h[r % 2])),
]


def safe_entropy(w, mask):
    """With a small number inside the logarithm and nanmean over the rows."""
    rows = -(w * (w + 1e-12).log()).sum(2) / mask.sum(1).log()
    return rows.masked_fill(mask.sum(1) < 2, math.nan).nanmean(1).float()


RIGHT3 = [
    (ENTROPY3, own_entropy),
    (ENTROPY3, safe_entropy),
    (ENTROPY3, lambda w, m: own_entropy(w, m, log=math.log2, limit=lambda row, seen: math.log2(len(seen)))),
    (ENTROPY3, lambda w, m: normalized_entropy(w, m).nanmean(dim=-1)),
    (ROLE3, own_role),
    (ROLE3, lambda w, g: (accuracy_per_head(w, g), best_fixed_offset(g)[1])),
    (ROLLOUT3, own_rollout),
    (ROLLOUT3, lambda w: attention_rollout(list(w))),
    (ROLLOUT3, lambda w: own_rollout(w, step=lambda a, e: (a + e) / (a + e).sum(1, keepdim=True))),
    (REMOVED3, own_removal),
    (REMOVED3, zero_at(lambda heads, removed: heads[:, :, removed])),
    (REMOVED3, by_zero_values),
    (REMOVED3, by_zero_rows_of_w_o),
    (REMOVED3, by_difference),
]


# phase 4: right and wrong, written apart from the solutions


CAUSAL4, COMBINED4, NEXT4, CACHE4, TILES4, LINEAR4 = (exercise.name for exercise in exercises4.EXERCISES)


def own_causal(t_q, t_k, may=lambda i, j, more: j <= i + more):
    """With comprehensions; may(i, j, how many more keys than queries)."""
    return torch.tensor([[may(i, j, t_k - t_q) for j in range(t_k)] for i in range(t_q)])


def own_combined(n, t_q, t_k, may=lambda i, j, length: j <= i and j < length):
    """i and j count positions in the text here, so i starts at T_k - T_q."""
    places = range(t_k - t_q, t_k)
    return torch.tensor([[[[may(i, j, length) for j in range(t_k)] for i in places]] for length in n.tolist()])


def as_scores(mask, low=-math.inf):
    return torch.where(mask, 0.0, low)


def own_next(
    logits, t, k, *, row=lambda one: one[-1], scale=lambda x, t: x / t, order=lambda x: [-v for v in x], whole=False
):
    """Word by word with sorted; whole: divide by the sum over all words."""
    result = []
    for one in logits:
        x = [scale(v, t) for v in row(one).tolist()]
        rank = order(x)
        kept = sorted(range(len(x)), key=rank.__getitem__)[:k]
        total = sum(math.exp(x[v]) for v in (range(len(x)) if whole else kept))
        result.append([math.exp(x[v]) / total if v in kept else 0 for v in range(len(x))])
    return torch.tensor(result, dtype=torch.float64)


def kept_by(keep, low=-math.inf):
    """keep: scaled logits of the last position, k -> which to keep."""

    def wrong(logits, t, k):
        x = logits[:, -1] / t
        return torch.where(keep(x, k), x, low).softmax(-1)

    return wrong


def top_places(x, k):
    return torch.stack([torch.tensor([sum(row > v) < k for v in row]) for row in x])


def softmax_again(logits, t, k):
    first = own_next(logits, t, k)
    return torch.where(first > 0, first.exp(), 0) / torch.where(first > 0, first.exp(), 0).sum(-1, keepdim=True)


def only_ranks(logits, t, k):
    """topk and softmax, and no way back to the words."""
    return (logits[:, -1] / t).topk(k).values.softmax(-1)


def own_step(
    word,
    pos,
    wq,
    wk,
    wv,
    ks,
    vs,
    *,
    at=0,
    x=None,
    query=None,
    scale=None,
    see=slice(None),
    order=lambda old, new: [*old, new],
    back=slice(None),
):
    """One sequence after the other, on lists of vectors; attention by torch.

    at: added to the position, order: how old and new are joined, see and back: what is attended to and returned.
    """
    outputs, all_keys, all_values = [], [], []
    for b in range(len(word)):
        now = word[b] + pos[max(ks.shape[1] + at, 0)] if x is None else x(word[b], pos)
        keys, values = order([*ks[b]], now @ wk), order([*vs[b]], now @ wv)
        keys, values = torch.stack(keys), torch.stack(values)
        q = now @ wq if query is None else query(keys)
        outputs.append(F.scaled_dot_product_attention(q[None], keys[see], values[see], scale=scale)[0])
        all_keys.append(keys[back])
        all_values.append(values[back])
    return torch.stack(outputs), torch.stack(all_keys), torch.stack(all_values)


def own_tiles(
    ma,
    ta,
    oa,
    mb,
    tb,
    ob,
    *,
    top=max,
    fa=lambda m, new: math.exp(m - new),
    fb=lambda m, new: math.exp(m - new),
    total=lambda a, b: a + b,
    weight=lambda part, old: part,
    end=lambda vector, n: vector / n,
):
    """Query by query; one that sees nothing in both tiles is left as it is."""
    m, t, o = ma.clone(), ta.clone(), oa.clone()
    for i in range(len(ma)):
        a, b = ma[i].item(), mb[i].item()
        m[i] = new = top(a, b)
        if new > -math.inf:
            pa, pb = ta[i] * fa(a, new), tb[i] * fb(b, new)
            t[i] = total(pa, pb)
            o[i] = end(weight(pa, ta[i]) * oa[i] + weight(pb, tb[i]) * ob[i], t[i])
    return m, t, o


def no_factor(m, new):
    return 1


def upside_down(m, new):
    return math.exp(min(new - m, 700))


def tiles_with_mean(mean):
    def wrong(*tiles):
        return (*own_tiles(*tiles)[:2], mean(*tiles))

    return wrong


def careless_tiles(ma, ta, oa, mb, tb, ob):
    """The formulas as they are, with 0 / 0 and -inf - -inf where they come."""
    m = torch.max(ma, mb)
    a, b = ta * torch.exp(ma - m), tb * torch.exp(mb - m)
    return m, a + b, (a[:, None] * oa + b[:, None] * ob) / (a + b)[:, None]


def tiles_of_exp(ma, ta, oa, mb, tb, ob):
    a, b = ta * torch.exp(ma), tb * torch.exp(mb)
    m = torch.max(ma, mb)
    return m, (a + b) * torch.exp(-m), (a[:, None] * oa + b[:, None] * ob) / (a + b)[:, None]


def tiles_by_logaddexp(ma, ta, oa, mb, tb, ob):
    """Right: the logarithms of the sums, and a softmax over the two tiles."""
    logs = torch.stack([ma + ta.log(), mb + tb.log()])
    m = torch.max(ma, mb)
    share = logs.softmax(0).nan_to_num(0)[..., None]
    return m, (torch.logaddexp(*logs) - m).exp().nan_to_num(0), share[0] * oa + share[1] * ob


def phi4(x):
    return torch.where(x > 0, x + 1, x.exp())


def own_linear(
    q,
    k,
    v,
    *,
    pq=phi4,
    pk=phi4,
    norm=lambda w, q, keys: w.sum(),
    seen=lambda t: slice(0, t + 1),
    kept=lambda state, total: (state, total),
):
    """Weights one by one, quadratic; the state in one product."""
    q, k = pq(q), pk(k)
    rows = []
    for t in range(len(q)):
        w = k[seen(t)] @ q[t]
        rows.append(w @ v[seen(t)] / norm(w, q[t], k[seen(t)]))
    return torch.stack(rows), *kept(k.T @ v, k.sum(0))


PLANTED4 = [
    (CAUSAL4, "first query at the first key", lambda a, b: own_causal(a, b, lambda i, j, more: j <= i)),
    (CAUSAL4, "own position hidden", lambda a, b: own_causal(a, b, lambda i, j, more: j < i + more)),
    (CAUSAL4, "one word of the future visible", lambda a, b: own_causal(a, b, lambda i, j, more: j <= i + more + 1)),
    (CAUSAL4, "the future instead of the past", lambda a, b: own_causal(a, b, lambda i, j, more: j >= i + more)),
    (CAUSAL4, "queries and keys exchanged", lambda a, b: own_causal(b, a)),
    (CAUSAL4, "True = hidden", lambda a, b: own_causal(a, b, lambda i, j, more: j > i + more)),
    (CAUSAL4, "numbers to add instead of bool", lambda a, b: as_scores(own_causal(a, b))),
    (CAUSAL4, "numbers to add instead of bool", lambda a, b: as_scores(own_causal(a, b), -1e9)),
    (CAUSAL4, "0 and 1 instead of bool", lambda a, b: torch.tril(torch.ones(a, b), b - a)),
    (
        COMBINED4,
        "first query at the first key",
        lambda n, a, b: own_causal(a, b, lambda i, j, m: j <= i)[None, None] & padding_mask(n, b),
    ),
    (COMBINED4, "own position hidden", lambda n, a, b: own_combined(n, a, b, lambda i, j, m: j < i and j < m)),
    (
        COMBINED4,
        "one word of the future visible",
        lambda n, a, b: own_combined(n, a, b, lambda i, j, m: j <= i + 1 and j < m),
    ),
    (
        COMBINED4,
        "the future instead of the past",
        lambda n, a, b: own_combined(n, a, b, lambda i, j, m: j >= i and j < m),
    ),
    (COMBINED4, "padded queries hidden", lambda n, a, b: own_combined(n, a, b, lambda i, j, m: j <= i < m)),
    (
        COMBINED4,
        "padded queries hidden",
        lambda n, a, b: own_combined(n, a, b, lambda i, j, m: j <= i and i < m and j < m),
    ),
    (COMBINED4, "one padded key visible", lambda n, a, b: own_combined(n, a, b, lambda i, j, m: j <= i and j <= m)),
    (
        COMBINED4,
        "padding at the front",
        lambda n, a, b: own_combined(n, a, b, lambda i, j, m: j <= i and j >= b - m),
    ),
    (COMBINED4, "or instead of and", lambda n, a, b: own_combined(n, a, b, lambda i, j, m: j <= i or j < m)),
    (COMBINED4, "head axis missing", lambda n, a, b: own_combined(n, a, b).squeeze(1)),
    (COMBINED4, "head axis in the wrong place", lambda n, a, b: own_combined(n, a, b)[:, 0].unsqueeze(0)),
    (COMBINED4, "head axis in the wrong place", lambda n, a, b: own_combined(n, a, b)[:, 0].unsqueeze(2)),
    (COMBINED4, "head axis in the wrong place", lambda n, a, b: own_combined(n, a, b)[:, 0].unsqueeze(3)),
    (COMBINED4, "padding left out", lambda n, a, b: own_combined(n, a, b, lambda i, j, m: j <= i)),
    (COMBINED4, "padding left out", lambda n, a, b: own_causal(a, b)),
    (COMBINED4, "causal part left out", lambda n, a, b: own_combined(n, a, b, lambda i, j, m: j < m)),
    (COMBINED4, "causal part left out", lambda n, a, b: padding_mask(n, b)),
    (COMBINED4, "True = hidden", lambda n, a, b: own_combined(n, a, b, lambda i, j, m: j > i or j >= m)),
    (COMBINED4, "numbers to add instead of bool", lambda n, a, b: as_scores(own_combined(n, a, b))),
    (COMBINED4, "0 and 1 instead of bool", lambda n, a, b: own_combined(n, a, b).int()),
    (NEXT4, "multiplied by the temperature", lambda x, t, k: own_next(x, t, k, scale=lambda v, t: v * t)),
    (NEXT4, "temperature left out", lambda x, t, k: own_next(x, 1, k)),
    (NEXT4, "temperature on probabilities", lambda x, t, k: own_next(x.softmax(-1), t, k)),
    (NEXT4, "temperature on probabilities", lambda x, t, k: own_next(x, 1, k) / t),
    (NEXT4, "temperature on probabilities", lambda x, t, k: own_next(x, 1, k, whole=True) / t),
    (NEXT4, "not renormalised after top-k", lambda x, t, k: own_next(x, t, k, whole=True)),
    (NEXT4, "top-k left out", lambda x, t, k: own_next(x, t, 7)),
    (NEXT4, "the unlikeliest words kept", lambda x, t, k: own_next(x, t, k, order=lambda row: row)),
    (NEXT4, "logits of hidden words set to 0", kept_by(top_places, 0.0)),
    (NEXT4, "one word too few kept", lambda x, t, k: own_next(x, t, max(k - 1, 1))),
    (NEXT4, "one word too many kept", lambda x, t, k: own_next(x, t, k + 1)),
    (NEXT4, "more than k words kept at a tie", kept_by(top_places)),
    (
        NEXT4,
        "another of the equal words kept",
        lambda x, t, k: own_next(x, t, k, order=lambda row: [(-v, -i) for i, v in enumerate(row)]),
    ),
    (NEXT4, "softmax twice", softmax_again),
    (NEXT4, "softmax twice", lambda x, t, k: own_next(x, t, k).softmax(1)),
    (NEXT4, "in the order of rank, not of words", only_ranks),
    (NEXT4, "in the order of rank, not of words", lambda x, t, k: F.pad(only_ranks(x, t, k), (0, 7 - k))),
    (NEXT4, "first position instead of the last", lambda x, t, k: own_next(x, t, k, row=lambda one: one[0])),
    (NEXT4, "mean over the positions", lambda x, t, k: own_next(x, t, k, row=lambda one: one.mean(0))),
    (
        NEXT4,
        "all positions, not the last one",
        lambda x, t, k: torch.stack([own_next(x[:, [i]], t, k) for i in range(3)], 1),
    ),
    (CACHE4, "appended at the front", lambda *a: own_step(*a, order=lambda old, new: [new, *old])),
    (CACHE4, "an old entry lost", lambda *a: own_step(*a, order=lambda old, new: [*old[1:], new])),
    (CACHE4, "an old entry lost", lambda *a: own_step(*a, order=lambda old, new: [*old[:-1], new])),
    (CACHE4, "old cache returned", lambda *a: own_step(*a, back=slice(0, -1))),
    (CACHE4, "only what is new returned", lambda *a: own_step(*a, back=slice(-1, None))),
    (CACHE4, "new word does not see itself", lambda *a: own_step(*a, see=slice(0, -1))),
    (CACHE4, "cache not attended to", lambda *a: own_step(*a, see=slice(-1, None))),
    (CACHE4, "mask of the first query", lambda *a: own_step(*a, see=slice(0, 1))),
    (CACHE4, "no position", lambda *a: own_step(*a, x=lambda word, pos: word)),
    (CACHE4, "position 0", lambda *a: own_step(*a, x=lambda word, pos: word + pos[0])),
    (CACHE4, "position one too low", lambda *a: own_step(*a, at=-1)),
    (CACHE4, "position one too high", lambda *a: own_step(*a, at=1)),
    (CACHE4, "an old key as the query", lambda *a: own_step(*a, query=lambda keys: keys[-2])),
    (CACHE4, "the new key as the query", lambda *a: own_step(*a, query=lambda keys: keys[-1])),
    (CACHE4, "not divided by √d_k", lambda *a: own_step(*a, scale=1.0)),
    (CACHE4, "divided by d_k", lambda *a: own_step(*a, scale=1 / 3)),
    (CACHE4, "divided by √d_model", lambda *a: own_step(*a, scale=11**-0.5)),
    (CACHE4, "returned in the wrong order", lambda *a: own_step(*a)[::-1]),
    (TILES4, "not rescaled", lambda *a: own_tiles(*a, fa=no_factor)),
    (TILES4, "not rescaled", lambda *a: own_tiles(*a, fb=no_factor)),
    (TILES4, "not rescaled", lambda *a: own_tiles(*a, fa=no_factor, fb=no_factor)),
    (TILES4, "rescaled the wrong way", lambda *a: own_tiles(*a, fa=upside_down, fb=upside_down)),
    (
        TILES4,
        "rescaled by the other tile",
        lambda ma, ta, oa, mb, tb, ob: own_tiles(mb, ta, oa, ma, tb, ob),
    ),
    (TILES4, "divided twice", lambda *a: own_tiles(*a, end=lambda vector, n: vector / n / n)),
    (TILES4, "not divided by the new total", lambda *a: own_tiles(*a, end=lambda vector, n: vector)),
    (TILES4, "a mean taken for a sum", lambda *a: own_tiles(*a, weight=lambda part, old: part / old)),
    (TILES4, "total not rescaled in the mean", lambda *a: own_tiles(*a, weight=lambda part, old: old)),
    (
        TILES4,
        "total not rescaled in the mean",
        tiles_with_mean(lambda ma, ta, oa, mb, tb, ob: (oa.T * ta + ob.T * tb).div(ta + tb).T),
    ),
    (TILES4, "mean of the two means", tiles_with_mean(lambda ma, ta, oa, mb, tb, ob: torch.stack([oa, ob]).mean(0))),
    (TILES4, "larger of the totals", lambda *a: own_tiles(*a, total=max)),
    (TILES4, "smaller of the maxima", lambda *a: own_tiles(*a, top=min)),
    (TILES4, "exp of scores, nothing taken off", tiles_of_exp),
    (TILES4, "NaN where no key is seen", careless_tiles),
    (TILES4, "returned in the wrong order", lambda *a: own_tiles(*a)[::-1]),
    (LINEAR4, "norm missing", lambda *a: own_linear(*a, norm=lambda w, q, keys: 1)),
    (LINEAR4, "divided by the number of words", lambda *a: own_linear(*a, norm=lambda w, q, keys: len(w))),
    (LINEAR4, "query missing in the norm", lambda *a: own_linear(*a, norm=lambda w, q, keys: keys.sum())),
    (LINEAR4, "norm before the word itself", lambda *a: own_linear(*a, norm=lambda w, q, keys: w[:-1].sum())),
    (LINEAR4, "state read before it is updated", lambda *a: own_linear(*a, seen=lambda t: slice(0, t))),
    (
        LINEAR4,
        "state read before it is updated",
        lambda *a: own_linear(*a, seen=lambda t: slice(0, t), norm=lambda w, q, keys: w.sum() + 1e-9),
    ),
    (LINEAR4, "whole text read, not the past", lambda *a: own_linear(*a, seen=lambda t: slice(None))),
    (
        LINEAR4,
        "state replaced, not added to",
        lambda q, k, v: (v.clone(), phi4(k[-1])[:, None] * v[-1], phi4(k[-1])),
    ),
    (LINEAR4, "phi left out", lambda *a: own_linear(*a, pq=lambda x: x, pk=lambda x: x)),
    (LINEAR4, "phi left out", lambda *a: own_linear(*a, pq=lambda x: x)),
    (LINEAR4, "phi left out", lambda *a: own_linear(*a, pk=lambda x: x)),
    (LINEAR4, "elu without + 1", lambda *a: own_linear(*a, pq=F.elu, pk=F.elu)),
    (LINEAR4, "another phi", lambda *a: own_linear(*a, pq=torch.relu, pk=torch.relu)),
    (LINEAR4, "another phi", lambda *a: own_linear(*a, pq=torch.exp, pk=torch.exp)),
    (LINEAR4, "divided by √d_k", lambda q, k, v: own_linear(q / math.sqrt(3), k / math.sqrt(3), v)),
    (LINEAR4, "divided by √d_k", lambda q, k, v: own_linear(q / math.sqrt(3), k, v)),
    (
        LINEAR4,
        "softmax attention",
        lambda q, k, v: (
            (q @ k.T / math.sqrt(3)).masked_fill(~own_causal(len(q), len(k)), -math.inf).softmax(1) @ v,
            *own_linear(q, k, v)[1:],
        ),
    ),
    (LINEAR4, "state transposed", lambda *a: own_linear(*a, kept=lambda state, total: (state.T, total))),
    (LINEAR4, "returned in the wrong order", lambda *a: own_linear(*a)[::-1]),
]


def by_topk_of_distinct_numbers(logits, t, k):
    """Right: equal logits are told apart by a tiny number that falls from word to word."""
    x = (logits[:, -1] - 1e-9 * torch.arange(logits.shape[2])) / t
    best = x.topk(k)
    return torch.zeros_like(x).scatter(1, best.indices, best.values.softmax(1))


RIGHT4 = [
    (CAUSAL4, own_causal),
    (CAUSAL4, causal_mask),
    (CAUSAL4, lambda a, b: ~torch.triu(torch.ones(a, b), b - a + 1).bool()),
    (COMBINED4, own_combined),
    (COMBINED4, lambda n, a, b: causal_mask(a, b) & padding_mask(n, b)),
    (NEXT4, own_next),
    (NEXT4, lambda x, t, k: Sampling(t, k).probabilities(x[:, -1])),
    (NEXT4, by_topk_of_distinct_numbers),
    (CACHE4, own_step),
    (CACHE4, lambda *a: [part.float() for part in own_step(*a)]),
    (TILES4, own_tiles),
    (TILES4, tiles_by_logaddexp),
    (LINEAR4, own_linear),
    (LINEAR4, lambda q, k, v: own_linear(q, k, v, norm=lambda w, q, keys: w.sum() + 1e-9)),
]


@pytest.mark.parametrize(("name", "mistake", "function"), PLANTED + PLANTED2 + PLANTED3 + PLANTED4)
def test_exercises_know_the_usual_mistakes_by_name(name, mistake, function):
    """Each of these was written apart from the function by which the checker recognises it."""
    report = checked(name, function)
    assert report.status == WRONG and report.text.startswith(f"{mistake}: "), report.text
    assert len(report.text) > len(mistake) + 20, "a name alone teaches nothing"


def test_every_mistake_of_the_checker_is_planted_and_is_found_under_its_own_name():
    known = set()
    for exercise in BY_NAME.values():
        for mistake in exercise.mistakes:
            assert checked(exercise.name, mistake.variant).text == f"{mistake.name}: {mistake.hint}"
            first = exercise_checker.call(exercise, mistake.variant, exercise.cases()[0])
            assert not first.failure, f"{exercise.name}: {mistake.name} must run in the first case"
            known.add((exercise.name, mistake.name))
    assert known <= {(name, mistake) for name, mistake, _ in PLANTED + PLANTED2 + PLANTED3 + PLANTED4}


# What readers write that is right: loops, torch's own function, float32, lists where numbers are asked for.
def loops(scores, mask):
    weights = torch.zeros(scores.shape)  # float32, though the scores are float64
    for i, row in enumerate(scores):
        visible = [j for j in range(len(row)) if mask[i, j]]
        largest = max((row[j] for j in visible), default=0)
        for j in visible:
            weights[i, j] = math.exp(row[j] - largest) / sum(math.exp(row[k] - largest) for k in visible)
    return weights


def by_torch(x, wq, wk, wv, mask=None):
    query, key, value, eye = x @ wq, x @ wk, x @ wv, torch.eye(len(x)).double()
    output, weights = (
        F.scaled_dot_product_attention(query[None], key[None], v[None], attn_mask=mask)[0] for v in (value, eye)
    )
    return output, weights


RIGHT = [
    (HAND, lambda: [0.24, 0.67, 0.09]),
    (HAND, lambda: torch.tensor([0.25, 0.67, 0.09])),
    (SOFTMAX, loops),
    (SOFTMAX, soft),
    (SOFTMAX, self_attention.masked_softmax),
    (SELF, by_torch),
    (SELF, own_self),
    (ADDITIVE, own_additive),
    (POSITIONS, own_positions),
    (POSITIONS, sinusoidal_positions),
    (CROSS, own_cross),
]


def small_number_elsewhere(v):
    """Layer norm with the small number after the root, and another one."""
    return (v - v.mean(1, keepdim=True)) / (v.std(1, correction=0, keepdim=True) + 1e-6)


RIGHT2 = [
    (SPLIT, lambda x, n: torch.stack(x.chunk(n, dim=2), dim=1)),
    (SPLIT, lambda x, n: torch.einsum("btnc->bntc", x.reshape(*x.shape[:2], n, -1)).float()),
    (MERGE, lambda x: torch.cat(tuple(x.transpose(0, 1)), dim=-1)),
    (HEADS, own_heads),
    (HEADS, by_core),
    (HEADS, every_head_alone),
    (PROJECTION, lambda x, w, n: own_fused(x, w, n, "qhc")),
    (PROJECTION, lambda x, w, n: [torch.stack((x @ m).chunk(n, 2), 1) for m in w.split(x.shape[2], 1)]),
    (GROUPED, own_groups),
    (GROUPED, lambda *a: expanded(*a, dim=1)),
    (BLOCK, own_block),
    (BLOCK, edited(("own_norm(", "small_number_elsewhere("))),
    (POOLING, own_pooling),
]


@pytest.mark.parametrize(("name", "function"), RIGHT + RIGHT2 + RIGHT3 + RIGHT4)
def test_exercises_accept_every_right_way(name, function):
    assert checked(name, function).status == DONE, checked(name, function).text


@pytest.mark.parametrize("lesson", LESSONS)
def test_solutions_pass_their_own_checks(lesson, capsys):
    lesson.main(["--solutions"])
    said, number = capsys.readouterr().out, len(lesson.EXERCISES)
    assert said.count(" done\n") == number + 1 and f"{number} of {number} done" in said


@pytest.mark.parametrize("lesson", LESSONS)
def test_untouched_exercises_are_not_written_yet(lesson, capsys):
    """Readers write in this file, so only what is still as it came is looked at."""
    untouched = [f.__name__ for f in lesson.YOURS if code(f) == "raise NotImplementedError" or "..." in code(f)]
    for name in untouched:
        with pytest.raises(SystemExit) as stop:
            lesson.main([name])
        assert stop.value.code == 1
        assert re.fullmatch(rf"- \d {name} +not written yet\n", capsys.readouterr().out)
    if untouched:
        with pytest.raises(SystemExit) as stop:
            lesson.main([])
        said = capsys.readouterr().out
        assert stop.value.code == 1 and said.count("not written yet\n") == len(untouched), said


def code(function):
    """The function without its docstring."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    return "\n".join(ast.unparse(line) for line in tree.body[1:])


@pytest.mark.parametrize("lesson", LESSONS)
def test_exercises_ask_for_what_is_checked(lesson):
    for yours, exercise in zip(lesson.YOURS, lesson.EXERCISES, strict=True):
        assert yours.__name__ == exercise.name and len(yours.__doc__.splitlines()) > 5
        assert list(inspect.signature(yours).parameters) == list(inspect.signature(exercise.solution).parameters)


def test_numbers_of_the_exercise_by_hand():
    numbers = [ast.literal_eval(row) for row in re.findall(r"= (\[.*\])$", exercises.score_by_hand.__doc__, re.M)]
    scores = [sum(q * k for q, k in zip(numbers[0], key, strict=True)) / math.sqrt(len(key)) for key in numbers[1:]]
    weights = [math.exp(s) / sum(math.exp(t) for t in scores) for s in scores]
    close(BY_NAME[HAND].solution(), torch.tensor(weights))


def run_loops(function, **names):
    """Run the loops in the text of an exercise, word for word, on these names."""
    text = re.search(r"^( {4}for .*?)(?:\n\n|\Z)", inspect.getdoc(function), re.M | re.S).group(1)
    exec(textwrap.dedent(text), names | {"exp": torch.exp, "sqrt": math.sqrt, "masked_softmax": soft})


def test_the_loops_in_the_text_are_what_the_solutions_compute():
    (batch, length, heads, d_k), d_model = (2, 5, 3, 7), 21
    x, w_qkv, w_o, split = exercise_checker.draw((2, 5, 21), (21, 63), (21, 21), (2, 3, 5, 7))
    w_q, w_k, w_v = w_qkv.split(d_model, dim=1)
    names = {"B": batch, "T": length, "H": heads, "d_k": d_k, "d_v": d_k, "d_model": d_model, "x": x}

    result = torch.zeros(2, 3, 5, 7).double()
    run_loops(exercises2.split_heads, **names, heads=result)
    close(solutions2.split_heads(x, 3), result, rtol=0, atol=0)
    result = torch.zeros(2, 5, 21).double()
    run_loops(exercises2.merge_heads, **names | {"x": split}, merged=result)
    close(solutions2.merge_heads(split), result, rtol=0, atol=0)

    parts = {part: torch.zeros(2, 3, 5, 7).double() for part in ("query", "key", "value")}
    run_loops(exercises2.fused_projection, **names, w_qkv=w_qkv, **parts)
    close(solutions2.fused_projection(x, w_qkv, 3), tuple(parts.values()))

    mask = torch.tensor([[1, 0, 1, 1, 0], [0, 0, 0, 0, 0]]) > 0
    weights, output, scores = (torch.zeros(shape).double() for shape in ((2, 3, 5, 5), (2, 5, 21), (5, 5)))
    matrices = {"w_q": w_q, "w_k": w_k, "w_v": w_v, "w_o": w_o}
    run_loops(
        exercises2.multi_head_attention,
        **names,
        **matrices,
        mask=mask,
        weights=weights,
        output=output,
        scores=scores,
        head=torch.zeros(3, 5, 7).double(),
        concatenate=lambda *heads: torch.cat([h for h in heads if h is not ...]),
    )
    close(solutions2.multi_head_attention(x, *matrices.values(), 3, mask), (output, weights))

    query, key, value = exercise_checker.draw((6, 5, 3), (2, 7, 3), (2, 7, 11))
    mask = exercise_checker.draw((5, 7), seed=1)[0] > 0
    weights, output, scores = (torch.zeros(shape).double() for shape in ((6, 5, 7), (6, 5, 11), (5, 7)))
    sizes = {"H": 6, "G": 2, "T_q": 5, "T_k": 7, "d_k": 3}
    inputs = {"query": query, "key": key, "value": value, "mask": mask}
    run_loops(exercises2.grouped_query_attention, **sizes, **inputs, weights=weights, output=output, scores=scores)
    close(solutions2.grouped_query_attention(**inputs), (output, weights))

    mask = torch.tensor([[1, 0, 1, 1, 0], [0, 0, 0, 0, 0]]) > 0
    weights, pooled, query = torch.zeros(2, 5).double(), torch.zeros(2, 21).double(), w_o[0]
    run_loops(
        exercises2.attention_pooling,
        **names,
        query=query,
        mask=mask,
        weights=weights,
        pooled=pooled,
        scores=torch.zeros(5).double(),
    )
    close(solutions2.attention_pooling(query, x, mask), (pooled, weights))


def test_solution_of_multi_head_attention_is_that_of_torch_and_of_this_repository():
    torch.manual_seed(0)
    module = MultiHeadAttention(21, 3, bias=False).double()
    matrices = [w.weight.T for w in (module.w_q, module.w_k, module.w_v, module.w_o)]
    x, mask = torch.randn(2, 5, 21).double(), torch.tensor([[1, 1, 0, 1, 0], [0, 1, 1, 1, 1]]) > 0
    for real in (None, mask):
        actual = solutions2.multi_head_attention(x, *matrices, 3, real)
        hidden = None if real is None else ~real
        close(actual, torch_twin(module)(x, x, x, key_padding_mask=hidden, average_attn_weights=False))
        close(actual, module(x, mask=None if real is None else real[:, None, None]))
    query, key, value = solutions2.fused_projection(x, torch.cat(matrices[:3], dim=1), 3)
    found = F.scaled_dot_product_attention(query, key, value)
    close(found.transpose(1, 2).flatten(2) @ matrices[3], module(x)[0])


@pytest.mark.parametrize("groups", [1, 2, 3, 6])
def test_solution_of_grouped_query_attention_is_that_of_torch_and_of_this_repository(groups):
    query, key, value = exercise_checker.draw((6, 5, 3), (groups, 7, 3), (groups, 7, 11))
    mask = torch.rand(5, 7, generator=torch.Generator().manual_seed(1)) > 0.4
    for seen in (None, mask):
        output, _ = solutions2.grouped_query_attention(query, key, value, seen)
        batch = (tensor[None] for tensor in (query, key, value))
        close(output, F.scaled_dot_product_attention(*batch, attn_mask=seen, enable_gqa=True)[0])
    torch.manual_seed(0)
    module = GroupedQueryAttention(18, 6, groups).double()
    x = torch.randn(5, 18).double()
    projected = [w(x).view(5, -1, 3).transpose(0, 1) for w in (module.w_q, module.w_k, module.w_v)]
    output, weights = solutions2.grouped_query_attention(*projected, causal_mask(5))
    close((module.w_o(output.transpose(0, 1).flatten(1))[None], weights[None]), module(x[None], mask=causal_mask(5)))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("p", [0.0, 0.3])
def test_solution_of_the_block_is_a_pre_norm_layer_of_torch(causal, p):
    """The gains of torch's norms go into what reads them; its dropout says which numbers it kept."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(6, 2, 11, p, batch_first=True, norm_first=True, bias=False).double()
    layer.dropout.p = layer.self_attn.dropout = 0.0  # leaves the two dropouts before the additions
    for norm in (layer.norm1, layer.norm2):
        nn.init.normal_(norm.weight)
    kept = []
    for dropout in (layer.dropout1, layer.dropout2):
        dropout.register_forward_hook(lambda module, inputs, output: kept.append((output != 0)[0]))

    def attention(x, mask):
        x = (x * layer.norm1.weight)[None]
        hidden = None if mask is None else ~mask
        return (found[0] for found in layer.self_attn(x, x, x, attn_mask=hidden, average_attn_weights=False))

    x = torch.randn(5, 6).double()
    expected = layer(x[None], src_mask=~causal_mask(5) if causal else None)[0]
    w_1, w_2 = layer.norm2.weight[:, None] * layer.linear1.weight.T, layer.linear2.weight.T
    output, weights = solutions2.transformer_block(x, attention, w_1, w_2, causal, torch.stack(kept), p)
    close(output, expected)
    assert weights.shape == (2, 5, 5) and bool((weights.triu(1) == 0).all()) == causal
    assert (p > 0) == (not torch.stack(kept).all()), "with p = 0.3 some numbers must have been dropped"
    layer.eval()
    expected = layer(x[None], src_mask=~causal_mask(5) if causal else None)[0]
    close(solutions2.transformer_block(x, attention, w_1, w_2, causal, None, p)[0], expected)


def test_solution_of_pooling_is_attention_with_one_query():
    query, x = exercise_checker.draw((7,), (3, 5, 7))
    mask = torch.tensor([[1, 1, 0, 1, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]]) > 0
    asks = query.expand(3, 1, 7)
    by_torch = [
        F.scaled_dot_product_attention(asks, x, v, attn_mask=mask[:, None])[:, 0]
        for v in (x, torch.eye(5).double().expand(3, 5, 5))
    ]
    close(solutions2.attention_pooling(query, x, mask), tuple(by_torch))
    assert not by_torch[0][1].any(), "nothing but padding gives zeros"
    module = AttentionPooling(7).double()
    module.query.data = query
    pooled, weights = module(x, mask[:, None, None])
    close(solutions2.attention_pooling(query, x, mask), (pooled, weights[:, 0, 0]))


def test_the_loops_of_phase_3_are_what_the_solutions_compute():
    mask = torch.tensor([[1, 0, 1, 1, 0, 1, 1], [0, 0, 1, 0, 0, 0, 0], [1] * 7, [0, 1, 1, 0, 0, 0, 0], [1] * 7]) > 0
    scores = exercise_checker.draw((3, 5, 7))[0].masked_fill(~mask, -math.inf)
    scores[1, 2, 3] = -math.inf  # a weight of 0 on a visible key
    weights, entropy = scores.softmax(dim=-1), torch.zeros(3).double()
    sizes = {"H": 3, "T_q": 5, "T_k": 7}
    run_loops(exercises3.head_entropy, **sizes, weights=weights, mask=mask, entropy=entropy, log=math.log)
    close(solutions3.head_entropy(weights, mask), entropy)

    weights = (2 * exercise_checker.draw((4, 3, 5, 5))[0]).softmax(dim=-1)
    gold = (exercise_checker.draw((4, 5, 5), seed=1)[0] > 0.6) & ~torch.eye(5).bool()
    accuracy, share = torch.zeros(3).double(), {}
    run_loops(exercises3.role_score, N=4, H=3, T=5, weights=weights, gold=gold, accuracy=accuracy, share=share)
    assert gold.any(-1).sum() > 5 and sorted(share) == [-4, -3, -2, -1, 1, 2, 3, 4]
    close(solutions3.role_score(weights, gold), (accuracy, max(share.values())))

    rollout, step = torch.eye(5).double(), torch.zeros(5, 5).double()
    run_loops(exercises3.attention_rollout, L=4, H=3, T=5, weights=weights, step=step, rollout=rollout)
    close(solutions3.attention_rollout(weights), rollout)

    x, *matrices, bias = exercise_checker.draw((2, 5, 21), *4 * [(21, 21)], (21,))
    output = torch.zeros(2, 5, 21).double()
    run_loops(
        exercises3.without_head,
        **dict(zip(("w_q", "w_k", "w_v", "w_o"), matrices, strict=True)),
        **{"B": 2, "H": 3, "T": 5, "d_k": 7, "x": x, "b_o": bias, "removed": 2, "output": output},
        head=torch.zeros(3, 5, 7).double(),
        attention=lambda query, key, value: scaled_dot_product_attention(query, key, value)[0],
        concatenate=lambda *heads: torch.cat([h for h in heads if h is not ...]),
    )
    close(solutions3.without_head(x, *matrices, bias, 3, 2), output)


@pytest.mark.parametrize("mask", [causal_mask(7), local_mask(7, 7, window=2), torch.ones(7, 7) > 0])
def test_solution_of_the_entropy_is_that_of_this_repository(mask):
    scores = 4 * exercise_checker.draw((3, 7, 7))[0]
    weights = scores.masked_fill(~mask, -math.inf).softmax(dim=-1)
    found = solutions3.head_entropy(weights, mask)
    close(found, normalized_entropy(weights, mask).nanmean(dim=-1))
    even = (mask / mask.sum(dim=-1, keepdim=True)).double()
    close(solutions3.head_entropy(even[None], mask), torch.ones(1).double(), check_dtype=False)
    assert (found > 0.1).all() and (found < 0.999).all()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_solution_of_the_role_score_is_that_of_this_repository(seed):
    weights = (3 * exercise_checker.draw((11, 3, 7, 7), seed=seed)[0]).softmax(dim=-1)
    gold = (exercise_checker.draw((11, 7, 7), seed=seed + 3)[0] > 0.5) & ~torch.eye(7).bool()
    accuracy, baseline = solutions3.role_score(weights, gold)
    close(accuracy, accuracy_per_head(weights, gold))
    assert baseline.item() == pytest.approx(best_fixed_offset(gold)[1])


def test_solution_of_the_role_score_by_hand():
    """Two words look at their gold key, the third at itself then its gold key: 3 of 3; one to the right: 2 of 3."""
    weights = torch.tensor([[[[0.1, 0.8, 0.1], [0.2, 0.1, 0.7], [0.3, 0.1, 0.6]]]])
    gold = torch.tensor([[[0, 1, 0], [0, 0, 1], [1, 0, 0]]]) > 0
    accuracy, baseline = solutions3.role_score(weights, gold)
    assert accuracy.tolist() == [1.0] and baseline.item() == pytest.approx(2 / 3)


@pytest.mark.parametrize(("layers", "heads"), [(1, 1), (3, 2), (5, 3)])
def test_solution_of_rollout_is_that_of_this_repository(layers, heads):
    weights = (3 * exercise_checker.draw((layers, heads, 7, 7))[0]).softmax(dim=-1)
    rollout = solutions3.attention_rollout(weights)
    close(rollout, attention_rollout(list(weights)))
    close(rollout.sum(dim=-1), torch.ones(7).double())


@torch.no_grad()
@pytest.mark.parametrize("removed", [0, 1, 2])
def test_solution_of_removal_is_a_closed_gate(removed):
    torch.manual_seed(0)
    module = MultiHeadAttention(21, 3).double()
    for w in (module.w_q, module.w_k, module.w_v):
        nn.init.zeros_(w.bias)
    nn.init.normal_(module.w_o.bias)
    x, gates = torch.randn(2, 5, 21).double(), torch.ones(1, 3).double()
    gates[0, removed] = 0
    with gated([module], gates):
        expected, _ = module(x)
    matrices = [w.weight.T for w in (module.w_q, module.w_k, module.w_v, module.w_o)]
    close(solutions3.without_head(x, *matrices, module.w_o.bias, 3, removed), expected)
    assert (module(x)[0] - expected).abs().max() > 0.01


def test_the_loops_of_phase_4_are_what_the_solutions_compute():
    mask = torch.zeros(3, 7) > 0
    run_loops(exercises4.causal_mask, T_q=3, T_k=7, mask=mask)
    close(solutions4.causal_mask(3, 7), mask)

    lengths, mask = torch.tensor([7, 2, 5]), torch.zeros(3, 1, 5, 7) > 0
    run_loops(exercises4.combined_mask, B=3, T_q=5, T_k=7, lengths=lengths, mask=mask)
    close(solutions4.combined_mask(lengths, 5, 7), mask)

    logits, found = 3 * exercise_checker.draw((3, 5, 7))[0], torch.zeros(3, 7).double()
    logits[1, -1, 2:6] = 2.0
    sizes = {"B": 3, "T": 5, "V": 7, "temperature": 0.7, "top_k": 3}
    run_loops(exercises4.next_word_probabilities, **sizes, logits=logits, probabilities=found)
    close(solutions4.next_word_probabilities(logits, 0.7, 3), found)

    names = ("word", "positions", "w_q", "w_k", "w_v", "past_keys", "past_values")
    drawn = exercise_checker.draw((2, 11), (5, 11), (11, 3), (11, 3), (11, 7), (2, 3, 3), (2, 3, 7))
    output, keys, values = torch.zeros(2, 7).double(), {}, {}

    def attention(query, keys, values):
        keys, values = (torch.stack([row for row in rows if row is not ...]) for rows in (keys, values))
        return F.scaled_dot_product_attention(query[None], keys, values)[0]

    run_loops(
        exercises4.cached_step,
        **dict(zip(names, drawn, strict=True)),
        **{"B": 2, "T": 3, "output": output, "keys": keys, "values": values, "attention": attention},
    )
    expected = solutions4.cached_step(*drawn)
    close(expected[0], output)
    for joined, rows in zip(expected[1:], (keys, values), strict=True):
        close(joined, torch.stack([torch.stack([row for row in rows[b] if row is not ...]) for b in (0, 1)]))

    names = ("largest_a", "total_a", "mean_a", "largest_b", "total_b", "mean_b")
    tiles = exercise_checker.draw((5,), (5,), (5, 3), (5,), (5,), (5, 3))
    tiles[1], tiles[4] = 1 + tiles[1].abs(), 1 + tiles[4].abs()
    found = {"largest": torch.zeros(5).double(), "total": torch.zeros(5).double(), "mean": torch.zeros(5, 3).double()}
    run_loops(exercises4.merge_tiles, T_q=5, d_v=3, **dict(zip(names, tiles, strict=True)), **found)
    close(solutions4.merge_tiles(*tiles), tuple(found.values()))

    query, key, value = exercise_checker.draw((5, 3), (5, 3), (5, 7))
    shapes = {"output": (5, 7), "state": (3, 7), "total": (3,)}
    found = {name: torch.zeros(shape).double() for name, shape in shapes.items()}
    inputs = {"query": query, "key": key, "value": value, "phi": phi4}
    run_loops(exercises4.causal_linear_attention, T=5, d_k=3, d_v=7, **inputs, **found)
    close(solutions4.causal_linear_attention(query, key, value), tuple(found.values()))


@pytest.mark.parametrize(("t_q", "t_k"), [(1, 1), (1, 7), (3, 7), (5, 5), (7, 3)])
def test_solutions_of_the_masks_are_those_of_this_repository(t_q, t_k):
    close(solutions4.causal_mask(t_q, t_k), causal_mask(t_q, t_k))
    lengths = torch.tensor([t_k, 1, t_k - 1])
    close(solutions4.combined_mask(lengths, t_q, t_k), causal_mask(t_q, t_k) & padding_mask(lengths, t_k))


def test_padding_at_the_end_matters_to_padded_queries_only():
    """What the text of exercise 2 says: real queries see the same with and without the padding mask."""
    lengths, causal = torch.tensor([7, 2, 5]), causal_mask(7)
    differs = (solutions4.combined_mask(lengths, 7, 7)[:, 0] != causal).any(dim=-1)
    close(differs, torch.arange(7) >= lengths[:, None])


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
@pytest.mark.parametrize("top_k", [1, 3, 7])
def test_solution_of_the_next_word_is_that_of_generate(temperature, top_k):
    logits = (4 * exercise_checker.draw((5, 3, 7))[0]).round()  # rounded: many are equal
    found = solutions4.next_word_probabilities(logits, temperature, top_k)
    close(found, Sampling(temperature, top_k).probabilities(logits[:, -1]))
    assert ((found > 0).sum(dim=-1) == top_k).all() and not torch.equal(logits[:, -1], logits[:, 0])


@torch.no_grad()
def test_solution_of_the_cached_step_is_the_last_row_of_the_whole():
    """Word by word: causal attention of torch over all words, and CausalSelfAttention with its own cache."""
    words, positions, w_q, w_k, w_v = exercise_checker.draw((2, 7, 11), (7, 11), (11, 11), (11, 11), (11, 11))
    x = words + positions
    expected = F.scaled_dot_product_attention(x @ w_q, x @ w_k, x @ w_v, is_causal=True)
    module, cache = CausalSelfAttention(11, 1).double(), KeyValueCache(2, 1, 7, 11, dtype=torch.float64)
    for linear, matrix in zip((module.w_q, module.w_k, module.w_v, module.w_o), (w_q, w_k, w_v, None), strict=True):
        linear.weight.copy_(torch.eye(11) if matrix is None else matrix.T)
        torch.nn.init.zeros_(linear.bias)
    keys = values = torch.zeros(2, 0, 11).double()
    for t in range(7):
        output, keys, values = solutions4.cached_step(words[:, t], positions, w_q, w_k, w_v, keys, values)
        close(output, expected[:, t])
        close(output, module(x[:, t : t + 1], cache=cache)[0][:, 0])
    close(keys, x @ w_k)
    close((keys, values), (cache.keys[:, 0], cache.values[:, 0]))


@pytest.mark.parametrize("cut", [1, 5, 10])
def test_solution_of_the_tiles_is_softmax_over_all_keys(cut):
    """Two tiles merged, and then three: torch's attention over all keys, one query seeing none."""
    query, key, value = exercise_checker.draw((5, 3), (11, 3), (11, 7))
    visible = causal_mask(5, 11) & (torch.arange(5) != 2)[:, None]
    scores = (400 * query @ key.T).masked_fill(~visible, -math.inf)

    def tile(columns):
        own = scores[:, columns]
        largest = own.amax(dim=-1)
        numerators = (own - largest.masked_fill(largest == -math.inf, 0)[:, None]).exp()
        total = numerators.sum(dim=-1)
        return largest, total, numerators @ value[columns] / total.clamp(min=1)[:, None]

    expected = F.scaled_dot_product_attention(400 * query, key, value, attn_mask=visible, scale=1.0)
    two = solutions4.merge_tiles(*tile(slice(0, cut)), *tile(slice(cut, 11)))
    close(two[2], expected.nan_to_num(0))
    close(two[0] + two[1].log(), scores.logsumexp(dim=-1))
    first = solutions4.merge_tiles(*tile(slice(7, 11)), *tile(slice(0, 3)))
    close(solutions4.merge_tiles(*first, *tile(slice(3, 7))), two)  # in any order


@pytest.mark.parametrize("length", [1, 2, 7])
def test_solution_of_linear_attention_is_that_of_this_repository(length):
    query, key, value = (2 * x for x in exercise_checker.draw((length, 3), (length, 3), (length, 5)))
    output, state, total = solutions4.causal_linear_attention(query, key, value)
    close(output, linear_attention(query, key, value, causal=True))
    expected, carried = linear_attention_recurrent(query, key, value)
    close(output, expected)
    close(torch.cat([state, total[:, None]], dim=1), carried)  # that one keeps the total as the last column


def test_solutions_of_phase_4_by_hand():
    """Scores 0 and ln 3 in two tiles, values 4 and 8: weights 1/4 and 3/4. A first word sees itself only."""
    ln3, one = torch.tensor([math.log(3)]).double(), torch.ones(1).double()
    largest, total, mean = solutions4.merge_tiles(0 * one, one, 4 * one[None], ln3, one, 8 * one[None])
    close((largest, total, mean), (ln3, 4 / 3 * one, 7 * one[None]))
    probabilities = solutions4.next_word_probabilities(torch.tensor([[[0.0, 2 * math.log(3), -5.0]]]), 2.0, 2)
    close(probabilities, torch.tensor([[0.25, 0.75, 0.0]]))
    query, key, value = torch.tensor([[5.0], [0.0]]), torch.tensor([[2.0], [0.0]]), torch.tensor([[8.0], [4.0]])
    output, state, total = solutions4.causal_linear_attention(query, key, value)  # phi(2) = 3, phi(0) = 1
    assert output.flatten().tolist() == [8.0, 7.0] and state.item() == 28 and total.item() == 4


def unwritten(*_):
    raise NotImplementedError


def badly_typed(scores, mask):
    return torch.softmax(mask, dim=1)  # torch raises NotImplementedError for bool, which is not "not written yet"


def long_winded(*_):
    raise RuntimeError("a\nb " * 300)


def lost(scores, mask):
    return scores.no_such_method() * nothing  # noqa: F821


def test_errors_of_a_reader_are_one_line_with_its_number():
    assert checked(SELF, lambda *a: unwritten(*a)).text == "not written yet: it needs unwritten"
    assert checked(HAND, lambda: [0.25, ..., 0.09]).status == NOT_WRITTEN
    report, line = checked(SOFTMAX, lost), inspect.getsourcelines(lost)[1] + 1
    assert report.status == WRONG
    assert report.text == (
        f"AttributeError in line {line}: 'Tensor' object has no attribute 'no_such_method' (some keys hidden)"
    )
    assert checked(SOFTMAX, lambda scores, mask: lost(scores, mask)).text == report.text, (
        "the innermost line of the file"
    )
    assert checked(SOFTMAX, badly_typed).text.startswith("NotImplementedError in line ")
    assert checked(SOFTMAX, lambda scores: scores).text.startswith("TypeError: ")
    long = checked(SELF, long_winded)
    assert (
        re.fullmatch(r"RuntimeError in line \d+: [ab ]+ \.\.\. \(without a mask\)", long.text) and len(long.text) < 250
    )


@pytest.mark.parametrize(
    ("name", "function", "message"),
    [
        (SELF, lambda x, wq, *a: (x @ wq, x @ x.T), r"weights\[\d, \d\]|row 0 of weights sums to .*, expected 1"),
        (SELF, lambda x, q, k, v, m=None: (x @ v, torch.ones(5, 3)), r"weights has shape \(5, 3\), expected \(5, 5\)"),
        (
            SELF,
            lambda *a: (own_self(*a)[0] + 0.5, own_self(*a)[1]),
            r"output\[\d, \d+\] is .*, expected .*difference \(w",
        ),
        (
            SELF,
            lambda x, q, k, v, m=None: own_attention(x @ q, x @ k, x, m),
            r"output has shape \(5, 11\), expected \(5, 13\)",
        ),
        (SELF, lambda *a: own_self(*a)[0], r"must return output, weights: got one tensor of shape \(5, 13\)"),
        (SELF, lambda *a: None, "got None; is there a return"),
        (SELF, lambda *a: (*own_self(*a), 1), "must return output, weights: got 3 values"),
        (SELF, lambda *a: (None, own_self(*a)[1]), "output must be a tensor or numbers: got None"),
        (SOFTMAX, lambda s, m: "weights", r"weights must be a tensor or numbers: got 'weights' \(str\)"),
        (SOFTMAX, lambda s, m: soft(s, m) * math.nan, r"row 0 of weights sums to nan, expected 1"),
        (SOFTMAX, lambda s, m: soft(s, m) * 0.5, "row 0 of weights sums to 0.5, expected 1 \\(some keys hidden\\)"),
        (SOFTMAX, lambda s, m: soft(s, m) + ~m * 1e-9, r"weights\[.*\] is 1e-09, expected 0, .*\(some keys hidden\)"),
        (
            SOFTMAX,
            lambda s, m: soft(s, m).flip(0),
            r"weights\[\d, \d\] is 0, expected 0\.\d+, the largest difference",
        ),
        (CROSS, lambda *a: own_cross(*a, softmax=lambda s, m: soft(s, m[:1])), r"weights\[.*\(some keys hidden\)"),
        (
            POSITIONS,
            lambda n, d: torch.zeros(d, n),
            r"encoding has shape \(6, 7\), expected \(7, 6\) \(length 7, d_m",
        ),
        (POSITIONS, lambda n, d: {0: sinusoidal_positions(n, d)}[d % 2], r"^KeyError in line \d+: 1 \(length 11, d_m"),
        (HAND, lambda: [0.1, 0.2, 0.3], "the weights sum to 0.6, expected 1"),
        (HAND, lambda: [0.1, 0.2], r"weights has shape \(2,\), expected \(3,\)"),
        (
            HEADS,
            lambda *a: by_core(*a, place=lambda m: m[:, None]),
            r"^ValueError.*give it its head axis with mask.unsqueeze\(1\) \(padding, as many",
        ),
        (MERGE, lambda x: x.transpose(1, 2).view(2, 5, -1), r"^RuntimeError in line \d+: view size is not compatible"),
        (
            GROUPED,
            lambda q, k, v, m=None: own_groups(q[: len(k)], k, v),
            r"weights has shape \(2, 5, 7\), expected \(6, 5, 7\)",
        ),
        (
            PROJECTION,
            lambda x, w, n: (x @ w).chunk(3, dim=-1),
            r"value has shape \(2, 5, 21\), expected \(2, 3, 5, 7\)",
        ),
        (BLOCK, lambda x, *a: own_block(x, *a)[0], r"must return output, weights: got one tensor of shape \(5, 6\)"),
    ],
)
def test_unknown_mistakes_are_described(name, function, message):
    report = checked(name, function)
    assert report.status == WRONG and re.search(message, report.text), report.text
    assert not any(report.text.startswith(mistake.name) for mistake in BY_NAME[name].mistakes)


def test_numbers_worked_by_hand_are_not_given_away():
    report = checked(HAND, lambda: [0.5, 0.25, 0.25])
    assert report.text == "weights[1] is 0.25, and that is not right"


def test_changed_inputs_are_noticed():
    def in_place(scores, mask):
        scores[~mask] = -math.inf
        return torch.softmax(scores, dim=1).nan_to_num(0)

    def in_place_and_wrong(scores, mask):
        scores[~mask] = 0
        return torch.softmax(scores, dim=1)

    assert (
        checked(SOFTMAX, in_place).text
        == "your function changed scores, which its caller may still need: make a new tensor"
    )
    report = checked(SOFTMAX, in_place_and_wrong)
    assert (
        report.text.startswith("hidden scores set to 0: ") and "; also, your function changed scores, " in report.text
    )


def test_two_mistakes_are_named_one_after_the_other():
    def both(x, q, k, v, mask=None):
        return own_self(x, q, k, v, mask if mask is None else ~mask, scale=1)

    assert checked(SELF, both).text.startswith("not divided by √d_k: ")
    assert checked(SELF, lambda *a: own_self(*a[:4], *(~m for m in a[4:]))).text.startswith("mask inverted: ")


def test_the_checker_serves_any_exercise():
    """Masks that must be bool, several results, infinities: what later phases ask for."""

    def causal(length):
        return torch.ones(length, length).tril().bool()

    exercise = Exercise(causal, ("mask",), lambda: [Case("", (3,))], ())
    assert exercise_checker.check(exercise, causal).status == DONE
    assert exercise_checker.check(exercise, lambda n: causal(n).int()).text == "mask must be bool: got torch.int32"
    assert exercise_checker.check(exercise, lambda n: causal(n).T).text.startswith("mask[0, 1] is 1, expected 0")

    def additive(length):
        return torch.zeros(length, length).masked_fill(~causal(length), -math.inf)

    exercise = Exercise(additive, ("mask",), lambda: [Case("", (3,))], ())
    assert exercise_checker.check(exercise, additive).status == DONE
    assert exercise_checker.check(exercise, lambda n: additive(n).clamp(min=-9)).text.startswith(
        "mask[0, 1] is -9, expected -inf"
    )


@pytest.mark.parametrize("choice", ["4", "additive_attention"])
def test_one_exercise_can_be_checked_alone(choice, capsys):
    exercises.main(["--solutions", choice])
    assert re.fullmatch(r"\+ 4 additive_attention +done\n", capsys.readouterr().out)


def test_what_is_wrong_is_printed_and_the_exit_code_is_1(capsys):
    functions = [exercise.solution for exercise in exercises.EXERCISES]
    functions[2] = lambda *a: own_self(*a, scale=1)
    with pytest.raises(SystemExit) as stop:
        exercise_checker.main("", exercises.EXERCISES, functions, [])
    said = capsys.readouterr().out
    assert stop.value.code == 1 and "5 of 6 done" in said and said.count(" done\n") == 6
    assert re.search(r"^x 3 self_attention +not divided by √d_k: ", said, re.M)
    assert all(len(line) <= exercise_checker.WIDTH for line in said.splitlines())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["7"], "no exercise '7': choose from 1 score_by_hand, 2 masked_softmax, 3 self_att"),
        (["attention"], "no exercise 'attention'"),
        (["--solution"], "unrecognized arguments: --solution"),
        (["1", "2"], "unrecognized arguments: 2"),
    ],
)
def test_exercises_refuse_bad_input_in_one_line(arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        exercises.main(arguments)
    said = capsys.readouterr()
    assert stop.value.code == 2 and message in said.err and said.err.count("\n") == 1 and not said.out


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
    assert "A &#34;caption&#34; &lt;i&gt;" in page
    (address,) = set(re.findall(r'(?:src|href)="([^"#][^"]*)"', page))
    assert (tmp_path / paths.PAGE).parent.joinpath(address).exists() and "//" not in page.replace("</", "")


EXPECTED = {
    "phase1/attention_heatmap.png",
    "phase1/qkv_flow.png",
    "phase1/alignment.png",
    "phase1/bottleneck.png",
    "phase1/cross_attention.png",
    "phase1/path_length.png",
    "phase1/positions.png",
    "phase1/reading_weights.png",
    "phase1/scaling.png",
    "phase1/scaling_training.png",
    "phase1/scoring_rules.png",
    "phase2/multi_head_grid.png",
    "phase2/attention_entropy.png",
    "phase2/head_roles.png",
    "phase2/heads_vs_loss.png",
    "phase2/rank_collapse.png",
    "phase2/benchmark.png",
    "phase2/cost_model.png",
    "phase2/head_pruning.png",
    "phase2/attention_pooling.png",
    "phase3/attention_flow.png",
    "phase3/3d_attention.png",
    "phase3/3d_heads.png",
    "phase3/head_roles.png",
    "phase3/role_stability.png",
    "phase3/attention_distance.png",
    "phase3/entropy_training.png",
    "phase3/rollout.png",
    "phase3/not_an_explanation.png",
    "phase4/causal_mask.png",
    "phase4/mask_gallery.png",
    "phase4/mask_conventions.png",
    "phase4/leak_proof.png",
    "phase4/next_token.png",
    "phase4/break_causality.png",
    "phase4/kv_cache.png",
    "phase4/linear_attention.png",
    "phase4/long_context.png",
    "phase4/generation_temperature.png",
    "phase4/mask_patterns.png",
    "phase4/sparse_reach.png",
    "phase4/bidirectional_vs_causal.png",
    "summary_all_phases.png",
}


IN_ONE_RUN = pytest.mark.xdist_group("run")  # in one process, when the tests run in several: all scripts run once only


@pytest.fixture(scope="module")
def quick_run(checkpoints, tmp_path_factory):
    """Every script once, as a reader would run it, with little training."""
    folder = tmp_path_factory.mktemp("run")
    for script in SCRIPTS:
        script.main(["--quick", "--output-dir", str(folder)])
    findings.main(["--output-dir", str(folder)])
    return folder


@IN_ONE_RUN
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


@IN_ONE_RUN
def test_the_same_seed_gives_the_same_bytes(quick_run, tmp_path, monkeypatch):
    """Trained anew elsewhere, the pictures and findings of two phases are the same, byte for byte."""
    monkeypatch.setattr(paths, "CHECKPOINTS", tmp_path / "checkpoints")
    for script in (self_attention, visualize1, causal_attention, visualize4):
        script.main(["--quick", "--output-dir", str(tmp_path)])
    compared = [p for p in tmp_path.rglob("*") if p.suffix in (".png", ".json") and p.parent.name != "checkpoints"]
    assert len(compared) >= 7
    for path in compared:
        assert path.read_bytes() == (quick_run / path.relative_to(tmp_path)).read_bytes(), path.name


SHOW_A_SENTENCE = (
    self_attention,
    visualize1,
    soft_lookup,
    queries_and_keys,
    reading_weights,
    multi_head_attention,
    visualize2,
    transformer_block,
    attention_pooling,
    fused_attention,
    attention_flow,
    attention_3d,
    causal_attention,
    visualize4,
    summary,
)


@IN_ONE_RUN
@pytest.mark.parametrize("script", SHOW_A_SENTENCE, ids=lambda s: s.__name__)
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


def test_the_worked_example_of_the_first_lesson():
    """The numbers that the lesson works out by hand, and the row that it prints of them."""
    query = torch.tensor([[1.0, 1, 0, 0]])
    key = torch.tensor([[2.0, 0, 1, 0], [0, 0, 3, 1], [-1, -1, 0, 2]])
    value = torch.tensor([[10.0, 0], [0, 10], [10, 10]])
    output, weights = scaled_dot_product_attention(query, key, value)
    lesson = (paths.ROOT / "phase1_single_head" / "README.md").read_text()
    assert "| " + " | ".join(f"{weight:.3f}" for weight in weights[0].tolist()) + " |" in lesson
    assert f"({output[0, 0]:.2f}, {output[0, 1]:.2f})" in lesson


NOT_RUN = (  # these need the extra, or take longer: the claim stands in the script
    *("pretrained", "pretrained_parity", "coreference", "hub_or_no_op"),
    *("induction", "ring_attention"),
)


@IN_ONE_RUN
@pytest.mark.parametrize(
    ("phase", "at_least"),
    [("phase1_single_head", 80), ("phase2_multi_head", 60), ("phase3_visualization", 20), ("phase4_causal", 55)],
)
def test_every_claim_of_a_lesson_is_recorded_by_the_script_it_names(quick_run, phase, at_least):
    recorded = {f["id"]: f for f in json.loads((quick_run / paths.PROCESSED / "findings.json").read_text())}
    rows = re.findall(
        r"^\| [+x~] \| ([\w-]+): (.*) \| \[.*\]\((.*)\) \|$",
        (paths.ROOT / phase / "README.md").read_text(),
        re.MULTILINE,
    )
    assert len(rows) > at_least
    for name, claim, link in rows:
        script = f"{phase}/{link}" if "/" not in link else link.removeprefix("../")
        if Path(script).stem in NOT_RUN:
            tree = ast.walk(ast.parse((paths.ROOT / script).read_text()))
            assert any(isinstance(n, ast.Constant) and n.value and claim.startswith(str(n.value)) for n in tree), name
            continue
        assert recorded[name]["script"] == script and claim.startswith(recorded[name]["claim"])
    names = {name for name, _, _ in rows}
    missing = {name for name, f in recorded.items() if f["script"].startswith(phase)} - names
    assert not missing, f"recorded but not in the lesson of {phase}: {missing}"


def test_links_and_commands_of_the_lessons_lead_somewhere():
    for path in repository_files("README.md"):
        text = path.read_text()
        for link in re.findall(r"\]\((?!https?://|#)([^)#]+)", text):
            assert (path.parent / link).exists(), f"{path}: {link}"
        for script in re.findall(r"python ((?:phase|shared)\S+\.py)", text):
            assert (paths.ROOT / script).exists(), f"{path}: {script}"
