"""Tests: exercises."""

import ast
import inspect
import math
import re
import textwrap

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from phase1_single_head import exercises, self_attention
from phase1_single_head.self_attention import scaled_dot_product_attention
from phase2_multi_head import exercises as exercises2
from phase2_multi_head.answers import solutions as solutions2
from phase2_multi_head.costs.fused_attention import GroupedQueryAttention
from phase2_multi_head.multi_head_attention import MultiHeadAttention, torch_twin
from phase2_multi_head.pooling.attention_pooling import AttentionPooling
from phase2_multi_head.pruning.head_importance import gated
from phase3_visualization import exercises as exercises3
from phase3_visualization.answers import solutions as solutions3
from phase4_causal import exercises as exercises4
from phase4_causal.answers import solutions as solutions4
from phase4_causal.causal_attention import CausalSelfAttention
from phase4_causal.key_value_cache import KeyValueCache
from phase4_causal.long_texts.linear_attention import linear_attention, linear_attention_recurrent
from phase4_causal.writing.generate import Sampling
from shared import exercise_checker
from shared.attention_utils import attention_rollout, causal_mask, local_mask, normalized_entropy, padding_mask
from shared.exercise_checker import DONE, NOT_WRITTEN, WRONG, Case, Exercise
from shared.grammar.scores import accuracy_per_head, best_fixed_offset
from shared.tests.helpers import close
from shared.toy_model import sinusoidal_positions

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
        for mistake, function in exercise_checker.ways(exercise)[: len(exercise.mistakes)]:
            assert checked(exercise.name, function).text == f"{mistake.name}: {mistake.hint}"
            first = exercise_checker.call(exercise, function, exercise.cases()[0])
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
        (SOFTMAX, lambda s, m: soft(s, m) * math.nan, r"weights\[0, 0\] is NaN, not a number"),
        (
            SOFTMAX,
            lambda s, m: soft(s, m) * 0.5,
            "row 0 of weights sums to 0.5, expected 1; .* 0.5 times the right one \\(some keys hidden\\)",
        ),
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
    assert exercise_checker.check(exercise, lambda n: causal(n).T).text.startswith("sees the future: mask[0, 1]")

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
