"""Tests: the exercises of phase 2."""

import math
from collections import defaultdict

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from phase1_single_head.self_attention import scaled_dot_product_attention
from phase2_multi_head import exercises
from phase2_multi_head import multi_head_attention as repository
from phase2_multi_head.answers import solutions
from phase2_multi_head.answers.solutions import EXERCISES
from phase2_multi_head.grouped_query_attention import GroupedQueryAttention
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase2_multi_head.pooling.attention_pooling import AttentionPooling
from shared.attention_checks import torch_twin
from shared.attention_utils import causal_mask
from shared.exercise_checker import DONE, WRONG, check, draw
from shared.tests.helpers import (
    asked_for_as_checked,
    by_loops,
    computes_the_same,
    each_way,
    known_by_its_name,
    near,
    soft,
)

SPLIT, MERGE, HEADS, PROJECTION, GROUPED, BLOCK, POOLING = EXERCISES


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.name)
def test_exercises_ask_for_what_is_checked(exercise):
    stub = getattr(exercises, exercise.name)
    asked_for_as_checked(exercise, stub)
    assert "float64" in stub.__doc__


@pytest.mark.parametrize(("exercise", "mistake", "function"), each_way(EXERCISES))
def test_mistakes_are_known_by_name(exercise, mistake, function):
    known_by_its_name(exercise, mistake, function, EXERCISES)


# ------------------------------------------------------------------------ ways that were written apart from the edits


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


def by_core(x, wq, wk, wv, wo, n, mask=None, *, split=None, projections=None):
    """As a reader writes it who uses the function of phase 1."""
    b, t, d = x.shape
    split = split or (lambda y: y.view(b, t, n, -1).transpose(1, 2))
    q, k, v = projections(split) if projections else (split(x @ w) for w in (wq, wk, wv))
    found, weights = scaled_dot_product_attention(q, k, v, None if mask is None else mask.view(b, 1, 1, t))
    return found.transpose(1, 2).reshape(b, t, d) @ wo, weights


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


def slices_of_the_input(x, wq, wk, wv, *others):
    """Head h takes slice h of the input, through a block of each matrix."""
    n = others[1]

    def project(_):
        parts = x.unflatten(2, (n, -1)).transpose(1, 2)
        blocks = [w.unflatten(0, (n, -1)).unflatten(2, (n, -1)) for w in (wq, wk, wv)]  # (n, c, n, c)
        return [parts @ torch.stack([block[h, :, h] for h in range(n)]) for block in blocks]

    return by_core(x, wq, wk, wv, *others, projections=project)


def own_fused(x, w, n, axes, order="qbhtc"):
    """The fused projection with its last axis read as `axes`, and then put in order; q is the axis of the three."""
    sizes = {"q": 3, "h": n, "c": x.shape[2] // n}
    y = (x @ w).reshape(*x.shape[:2], *(sizes[a] for a in axes))
    return tuple(torch.einsum(f"bt{axes}->{order}", y))


def own_groups(q, k, v, mask=None, *, keys=None, softmax=soft, scale=None):
    """Grouped-query attention by a list of which key-value head each query head reads; keys: another for the keys."""
    read = [h // (len(q) // len(k)) for h in range(len(q))]
    s = torch.einsum("hic,hjc->hij", q, k[keys(len(q), len(k)) if keys else read])
    s = s * (q.shape[2] ** -0.5 if scale is None else scale)
    w = softmax(s, torch.ones_like(s).bool() if mask is None else mask)
    return w.bmm(v[read]), w


def expanded(q, k, v, mask=None, *, dim):
    k, v = (torch.cat([y.unsqueeze(dim)] * (len(q) // len(y)), dim).reshape(len(q), *y.shape[1:]) for y in (k, v))
    return scaled_dot_product_attention(q, k, v, mask)


def own_norm(v):
    return (v - v.mean(-1, keepdim=True)) / (v.var(-1, correction=0, keepdim=True) + 1e-5) ** 0.5


def standardised(v, correction=1):
    """torch.std divides by one less, and many add the small number after the root."""
    return (v - v.mean(1, keepdim=True)) / (v.std(1, correction=correction, keepdim=True) + 1e-6)


def own_block(x, attention, w1, w2, causal=False, keep=None, p=0.0, *, norm=own_norm, shift=0):
    see = torch.ones(len(x), len(x)).tril(shift) > 0 if causal else None
    found, weights = attention(norm(x), see)
    y = x + (found if keep is None else found * keep[0] / (1 - p))
    new = F.relu(norm(y) @ w1) @ w2
    return y + (new if keep is None else new * keep[1] / (1 - p)), weights


def own_pooling(query, x, mask, *, softmax=soft, scale=None):
    s = torch.einsum("c,bjc->bj", query, x) * (len(query) ** -0.5 if scale is None else scale)
    w = softmax(s, mask)
    return (w.unsqueeze(2) * x).sum(1), w


@pytest.mark.parametrize(
    ("exercise", "function"),
    [
        (SPLIT, lambda x, n: torch.stack(x.chunk(n, dim=2), dim=1)),
        (SPLIT, lambda x, n: torch.einsum("btnc->bntc", x.reshape(*x.shape[:2], n, -1)).float()),
        (SPLIT, repository.split_heads),
        (MERGE, lambda x: torch.cat(tuple(x.transpose(0, 1)), dim=-1)),
        (MERGE, repository.merge_heads),
        (HEADS, own_heads),
        (HEADS, by_core),
        (HEADS, every_head_alone),
        (PROJECTION, lambda x, w, n: own_fused(x, w, n, "qhc")),
        (PROJECTION, lambda x, w, n: [torch.stack((x @ m).chunk(n, 2), 1) for m in w.split(x.shape[2], 1)]),
        (GROUPED, own_groups),
        (GROUPED, lambda *a: expanded(*a, dim=1)),
        (BLOCK, own_block),
        (BLOCK, lambda *a: own_block(*a, norm=lambda v: standardised(v, correction=0))),
        (POOLING, own_pooling),
    ],
)
def test_every_right_way_is_accepted(exercise, function):
    assert check(exercise, function).status == DONE, check(exercise, function).text


def over_the_heads(scores, mask):
    return scores.masked_fill(~mask, -math.inf).softmax(-3)


@pytest.mark.parametrize(
    ("exercise", "mistake", "function"),
    [
        (SPLIT, "heads interleaved", lambda x, n: torch.stack([x[:, :, h::n] for h in range(n)], dim=1)),
        (SPLIT, "axes in the wrong order", lambda x, n: torch.stack(x.mT.chunk(n, dim=1), dim=1)),
        (MERGE, "heads interleaved", lambda x: torch.stack(tuple(x.transpose(0, 1)), dim=-1).flatten(2)),
        (HEADS, "softmax over the heads", lambda *a: own_heads(*a, softmax=over_the_heads)),
        (HEADS, "divided by √d_model", lambda *a: own_heads(*a, scale=a[0].shape[2] ** -0.5)),
        (HEADS, "mask on the queries", lambda *a: own_heads(*a, rows="bq")),
        (HEADS, "heads interleaved", lambda *a: own_heads(*a, by_head="dcn")),
        (HEADS, "heads cut out of the input", slices_of_the_input),
        (HEADS, "one small projection for all heads", lambda *a: every_head_alone(*a, own=False)),
        (HEADS, "values not made by w_v", lambda x, wq, wk, wv, *a: own_heads(x, wq, wk, wk, *a)),
        (HEADS, "weights averaged over the heads", lambda *a: ((r := own_heads(*a))[0], r[1].mean(1))),
        (PROJECTION, "queries, keys, values in another order", lambda x, w, n: own_fused(x, w, n, "qhc")[::-1]),
        (PROJECTION, "cut into heads first", lambda x, w, n: own_fused(x, w, n, "hqc")),
        (PROJECTION, "queries, keys, values interleaved", lambda x, w, n: own_fused(x, w, n, "hcq")),
        (PROJECTION, "axes in the wrong order", lambda x, w, n: own_fused(x, w, n, "qhc", "qbthc")),
        (PROJECTION, "cut across the rows", lambda x, w, n: own_fused(x, w.reshape(-1, len(w)).mT, n, "qhc")),
        (GROUPED, "softmax over the heads", lambda *a: own_groups(*a, softmax=over_the_heads)),
        (GROUPED, "key-value heads tiled", lambda *a: own_groups(*a, keys=lambda h, g: [i % g for i in range(h)])),
        (GROUPED, "expanded along the wrong axis", lambda *a: expanded(*a, dim=2)),
        (GROUPED, "returned in the wrong order", lambda *a: own_groups(*a)[::-1]),
        (BLOCK, "one of the two never added", lambda x, f, *a: own_block(x, lambda *b: (0 * x, f(*b)[1]), *a)),
        (BLOCK, "variance divided by d_model - 1", lambda *a: own_block(*a, norm=standardised)),
        (BLOCK, "one word of the future visible", lambda *a: own_block(*a, shift=1)),
        (POOLING, "mask after softmax", lambda *a: own_pooling(*a, softmax=lambda s, m: s.softmax(-1) * m)),
        (POOLING, "a plain mean", lambda query, x, m: ((x * m[:, :, None]).mean(1), m / m.shape[1])),
    ],
)
def test_mistakes_written_in_another_way_are_known(exercise, mistake, function):
    report = check(exercise, function)
    assert report.status == WRONG and report.text.startswith(f"{mistake}: "), report.text


# ------------------------------------------------------------------------------------------------------- the solutions


@pytest.mark.parametrize(
    ("exercise", "function"),
    [
        (SPLIT, by_loops(SPLIT, heads="B H T d_k")),
        (MERGE, by_loops(MERGE, x="B H T d_v")),
        (
            HEADS,
            by_loops(HEADS, x="B T d_model", mask="B T", buffers={"scores": "T T", "head": defaultdict(dict)}),
        ),
        (PROJECTION, by_loops(PROJECTION, x="B T d_model", query="B H T d_k")),
        (
            GROUPED,
            by_loops(GROUPED, query="H T_q d_k", key="G T_k d_k", mask="T_q T_k", buffers={"scores": "T_q T_k"}),
        ),
        (
            BLOCK,
            by_loops(
                BLOCK,
                x="T d_model",
                buffers={"normed": "T d_model", "y": "T d_model", "past": torch.zeros(5, 5, dtype=torch.bool)},
            ),
        ),
        (POOLING, by_loops(POOLING, x="B T d_model", buffers={"scores": "T"})),
    ],
)
def test_the_loops_of_the_hint_are_what_the_solutions_compute(exercise, function):
    computes_the_same(exercise, function)


def test_solution_of_multi_head_attention_is_that_of_torch_and_of_this_repository():
    torch.manual_seed(0)
    module = MultiHeadAttention(21, 3, bias=False).double()
    matrices = [w.weight.T for w in (module.w_q, module.w_k, module.w_v, module.w_o)]
    x, mask = torch.randn(2, 5, 21).double(), torch.tensor([[1, 1, 0, 1, 0], [0, 1, 1, 1, 1]]) > 0
    for real in (None, mask):
        actual = solutions.multi_head_attention(x, *matrices, 3, real)
        hidden = None if real is None else ~real
        near(actual, torch_twin(module)(x, x, x, key_padding_mask=hidden, average_attn_weights=False))
        near(actual, module(x, mask=None if real is None else real[:, None, None]))
    query, key, value = solutions.fused_projection(x, torch.cat(matrices[:3], dim=1), 3)
    found = F.scaled_dot_product_attention(query, key, value)
    near(found.transpose(1, 2).flatten(2) @ matrices[3], module(x)[0])


@pytest.mark.parametrize("groups", [1, 2, 3, 6])
def test_solution_of_grouped_query_attention_is_that_of_torch_and_of_this_repository(groups):
    query, key, value = draw((6, 5, 3), (groups, 7, 3), (groups, 7, 11))
    mask = torch.rand(5, 7, generator=torch.Generator().manual_seed(1)) > 0.4
    for seen in (None, mask):
        output, _ = solutions.grouped_query_attention(query, key, value, seen)
        batch = (tensor[None] for tensor in (query, key, value))
        near(output, F.scaled_dot_product_attention(*batch, attn_mask=seen, enable_gqa=True)[0])
    torch.manual_seed(0)
    module = GroupedQueryAttention(18, 6, groups).double()
    x = torch.randn(5, 18).double()
    projected = [w(x).view(5, -1, 3).transpose(0, 1) for w in (module.w_q, module.w_k, module.w_v)]
    output, weights = solutions.grouped_query_attention(*projected, causal_mask(5))
    near((module.w_o(output.transpose(0, 1).flatten(1))[None], weights[None]), module(x[None], mask=causal_mask(5)))


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
    output, weights = solutions.transformer_block(x, attention, w_1, w_2, causal, torch.stack(kept), p)
    near(output, expected)
    assert weights.shape == (2, 5, 5) and bool((weights.triu(1) == 0).all()) == causal
    assert (p > 0) == (not torch.stack(kept).all()), "with p = 0.3 some numbers must have been dropped"
    layer.eval()
    expected = layer(x[None], src_mask=~causal_mask(5) if causal else None)[0]
    near(solutions.transformer_block(x, attention, w_1, w_2, causal, None, p)[0], expected)


def test_solution_of_pooling_is_attention_with_one_query():
    query, x = draw((7,), (3, 5, 7))
    mask = torch.tensor([[1, 1, 0, 1, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]]) > 0
    asks = query.expand(3, 1, 7)
    by_torch = [
        F.scaled_dot_product_attention(asks, x, v, attn_mask=mask[:, None])[:, 0]
        for v in (x, torch.eye(5).double().expand(3, 5, 5))
    ]
    near(solutions.attention_pooling(query, x, mask), tuple(by_torch))
    assert not by_torch[0][1].any(), "nothing but padding gives zeros"
    module = AttentionPooling(7).double()
    module.query.data = query
    pooled, weights = module(x, mask[:, None, None])
    near(solutions.attention_pooling(query, x, mask), (pooled, weights[:, 0, 0]))
