"""Tests: the exercises of phase 1."""

import ast
import math
import re

import pytest
import torch
import torch.nn.functional as F

from phase1_single_head import exercises, self_attention
from phase1_single_head.answers.solutions import EXERCISES
from shared.exercise_checker import DONE, WRONG, check
from shared.tests.helpers import (
    asked_for_as_checked,
    by_loops,
    computes_the_same,
    each_way,
    known_by_its_name,
    near,
    soft,
)
from shared.toy_model import sinusoidal_positions

HAND, SOFTMAX, SELF, ADDITIVE, POSITIONS, CROSS = EXERCISES


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.name)
def test_exercises_ask_for_what_is_checked(exercise):
    stub = getattr(exercises, exercise.name)
    asked_for_as_checked(exercise, stub)
    assert "float64" in stub.__doc__ or exercise in (HAND, POSITIONS)


@pytest.mark.parametrize(("exercise", "mistake", "function"), each_way(EXERCISES))
def test_mistakes_are_known_by_name(exercise, mistake, function):
    known_by_its_name(exercise, mistake, function, EXERCISES)


# ------------------------------------------------------------------------ ways that were written apart from the edits


def own_attention(q, k, v, mask=None, softmax=soft, scale=None):
    s = torch.einsum("ic,jc->ij", q, k) * (q.shape[1] ** -0.5 if scale is None else scale)
    w = F.softmax(s, dim=1) if mask is None else softmax(s, mask)
    return w.mm(v), w


def own_self(x, wq, wk, wv, mask=None, **options):
    return own_attention(x.mm(wq), x.mm(wk), x.mm(wv), mask, **options)


def own_cross(x, c, wq, wk, wv, wo, mask=None, **options):
    output, weights = own_attention(x.mm(wq), c.mm(wk), c.mm(wv), mask, **options)
    return output.mm(wo), weights


def own_additive(query, memory, wq, wk, v, score=lambda a, b, v: (v * torch.tanh(a + b)).sum()):
    s = torch.stack([torch.stack([score(q @ wq, m @ wk, v) for m in memory]) for q in query])
    w = F.softmax(s, dim=1)
    return w @ memory, w


def own_positions(length, d_model, *, first=0, functions=(math.sin, math.cos)):
    rows = [
        [functions[c % 2]((first + p) / 10000 ** (2 * (c // 2) / d_model)) for c in range(d_model)]
        for p in range(length)
    ]
    return torch.tensor(rows)


def by_rows(scores, mask):
    """With loops, the largest score taken off, in float32 though the scores are float64."""
    weights = torch.zeros(scores.shape)
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


@pytest.mark.parametrize(
    ("exercise", "function"),
    [
        (HAND, lambda: [0.24, 0.67, 0.09]),
        (HAND, lambda: torch.tensor([0.25, 0.67, 0.09])),
        (SOFTMAX, by_rows),
        (SOFTMAX, soft),
        (SOFTMAX, self_attention.masked_softmax),
        (SELF, by_torch),
        (SELF, own_self),
        (ADDITIVE, own_additive),
        (POSITIONS, own_positions),
        (POSITIONS, sinusoidal_positions),
        (CROSS, own_cross),
    ],
)
def test_every_right_way_is_accepted(exercise, function):
    assert check(exercise, function).status == DONE, check(exercise, function).text


def blind_to_none(scores, mask):
    """-1e9, and the blind rows set to 0: right for all scores but those below -1e9."""
    weights = scores.masked_fill(mask.logical_not(), -1e9).softmax(1)
    weights[~mask.any(1)] = 0
    return weights


def exponentials(scores, mask):
    e = torch.exp(scores) * mask
    return e / e.sum(1, keepdim=True).clamp(min=1e-30)


def exponentials_of_the_visible(scores, mask):
    e = scores.exp() * mask
    return e / e.sum(1, keepdim=True)


def renormalised(scores, mask, eps=0.0):
    weights = F.softmax(scores, dim=1) * mask
    return weights / (weights.sum(1, keepdim=True) + eps)


def lowered(scores, mask):
    return (scores - 1e5 * ~mask).softmax(1)


def by_log(scores, mask):
    return (scores + mask.log()).softmax(1)


def even_only_positions(length, d_model):
    """As in many tutorials: the cosines are assigned to one column too many of them if d_model is odd."""
    encoding = torch.zeros(length, d_model)
    angle = torch.arange(length).unsqueeze(1) * torch.exp(torch.arange(0, d_model, 2) * -(math.log(10000.0) / d_model))
    encoding[:, 0::2], encoding[:, 1::2] = torch.sin(angle), torch.cos(angle)
    return encoding


def concatenated_positions(length, d_model):
    angle = torch.outer(torch.arange(length), 1e4 ** -(torch.arange(0, d_model, 2) / d_model))
    return torch.cat([angle.sin(), angle.cos()[:, : d_model // 2]], dim=1)


@pytest.mark.parametrize(
    ("exercise", "mistake", "function"),
    [
        (HAND, "scale and softmax missing", lambda: (2, 4, 0)),
        (HAND, "exponentials not divided by their sum", lambda: [2.72, 7.39, 1]),
        (SOFTMAX, "mask inverted", lambda s, m: F.softmax(s.masked_fill(m, -1e9), dim=1)),
        (SOFTMAX, "mask ignored", lambda s, m: s.exp() / s.exp().sum(1)[:, None]),
        (SOFTMAX, "mask after softmax, then divided by the sum", renormalised),
        (SOFTMAX, "mask after softmax, then divided by the sum", lambda s, m: renormalised(s, m, 1e-9)),
        (SOFTMAX, "hidden scores set to 0", lambda s, m: F.softmax(s * m, dim=1)),
        (SOFTMAX, "hidden scores set to a finite number", lambda s, m: F.softmax(s.masked_fill(~m, -1e4), dim=1)),
        (SOFTMAX, "hidden scores set to a finite number", blind_to_none),
        (SOFTMAX, "NaN where a query sees nothing", by_log),
        (SOFTMAX, "equal weights where a query sees nothing", lambda s, m: torch.where(m, s, -1e300).softmax(1)),
        (SOFTMAX, "exp overflows", exponentials),
        (SOFTMAX, "exp overflows", lambda s, m: exponentials(s, m).nan_to_num(0)),
        (SELF, "not divided by √d_k", lambda *a: own_self(*a, scale=1)),
        (SELF, "divided by √T", lambda x, *a: own_self(x, *a, scale=len(x) ** -0.5)),
        (SELF, "one matrix for queries and keys", lambda x, wq, wk, *a: own_self(x, wq, wq, *a)),
        (SELF, "weights transposed before the values", lambda x, *a: ((w := own_self(x, *a)[1]).T @ (x @ a[2]), w)),
        (SELF, "values not made by w_v", lambda x, q, k, v, m=None: own_self(x, q, k, torch.eye(11).double(), m)),
        (SELF, "mask after softmax, then divided by the sum", lambda *a: own_self(*a, softmax=renormalised)),
        (SELF, "hidden scores set to a finite number", lambda *a: own_self(*a, softmax=lowered)),
        (SELF, "exp overflows", lambda *a: own_self(*a, softmax=exponentials_of_the_visible)),
        (SELF, "divided by √d_v", lambda x, q, k, v, m=None: own_self(x, q, k, v, m, scale=v.shape[1] ** -0.5)),
        (SELF, "returned in the wrong order", lambda *a: own_self(*a)[::-1]),
        (ADDITIVE, "tanh before the sum", lambda *a: own_additive(*a, score=lambda q, k, v: v @ (q.tanh() + k.tanh()))),
        (ADDITIVE, "tanh after v", lambda *a: own_additive(*a, score=lambda q, k, v: torch.tanh(v @ q + v @ k))),
        (POSITIONS, "sines and cosines side by side", concatenated_positions),
        (POSITIONS, "positions counted from 1", lambda n, d: own_positions(n, d, first=1)),
        (POSITIONS, "an odd d_model fails", even_only_positions),
        (CROSS, "queries from the context", lambda x, c, *a: own_cross(c, c, *a)),
        (CROSS, "NaN where a query sees nothing", lambda *a: own_cross(*a, softmax=by_log)),
        (CROSS, "output projection missing", lambda x, c, q, k, v, o, m=None: own_attention(x @ q, c @ k, c @ v, m)),
    ],
)
def test_mistakes_written_in_another_way_are_known(exercise, mistake, function):
    report = check(exercise, function)
    assert report.status == WRONG and report.text.startswith(f"{mistake}: "), report.text


# ------------------------------------------------------------------------------------------------------- the solutions

QUERY, *KEYS = (ast.literal_eval(row) for row in re.findall(r"= (\[.*\])$", exercises.score_by_hand.__doc__, re.M))


@pytest.mark.parametrize(
    ("exercise", "function"),
    [
        (HAND, by_loops(HAND, weights="n", buffers={"query": QUERY, "key": KEYS, "scores": "n"})),
        (SOFTMAX, by_loops(SOFTMAX, weights="T_q T_k")),
        (
            SELF,
            by_loops(
                SELF,
                x="T d_model",
                w_k="d_model d_k",
                w_v="d_model d_v",
                mask="T T",
                buffers={"query": "T d_k", "key": "T d_k", "value": "T d_v", "scores": "T T"},
            ),
        ),
        (ADDITIVE, by_loops(ADDITIVE, weights="T_q T_k", v="d_hidden", buffers={"scores": "T_q T_k"})),
        (POSITIONS, by_loops(POSITIONS)),
        (
            CROSS,
            by_loops(CROSS, weights="T_q T_k", w_k="d_model d_k", mask="T_q T_k", buffers={"scores": "T_q T_k"}),
        ),
    ],
)
def test_the_loops_of_the_hint_are_what_the_solutions_compute(exercise, function):
    computes_the_same(exercise, function)


def test_the_exercise_by_hand_is_attention():
    scores = [sum(q * k for q, k in zip(QUERY, key, strict=True)) / math.sqrt(len(key)) for key in KEYS]
    weights = [math.exp(s) / sum(math.exp(t) for t in scores) for s in scores]
    near(HAND.solution(), torch.tensor(weights))
