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
from shared import exercise_checker
from shared.attention_utils import causal_mask
from shared.exercise_checker import DONE, NOT_WRITTEN, WRONG, Case, Exercise
from shared.tests.helpers import close
from shared.toy_model import sinusoidal_positions

LESSONS = [exercises, exercises2]


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


@pytest.mark.parametrize(("name", "mistake", "function"), PLANTED + PLANTED2)
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
    assert known <= {(name, mistake) for name, mistake, _ in PLANTED + PLANTED2}


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


@pytest.mark.parametrize(("name", "function"), RIGHT + RIGHT2)
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
