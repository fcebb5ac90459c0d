"""The core and multi-head attention against torch and loops; sixteen planted mistakes."""

import doctest
import math
import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from phase1_single_head import self_attention
from phase1_single_head.self_attention import SelfAttention, attention_by_loops, scaled_dot_product_attention
from phase2_multi_head import multi_head_attention
from shared import attention_utils
from shared.attention_checks import torch_twin
from shared.attention_utils import causal_mask, padding_mask
from shared.tests.helpers import D_K, D_V, T_K, T_Q, B, H, broken, close, qkv, some_mask, torch_single_head


def check_torch_unequal_masked_causal(core, utils):
    """F.scaled_dot_product_attention with T_q != T_k, d_k != d_v, and a causal & random mask with a blind row."""
    query, key, value = qkv()
    some = some_mask(torch.Generator().manual_seed(1), (B, 1, T_Q, T_K))
    truth = torch.ones(T_Q, T_K).tril(diagonal=T_K - T_Q).bool() & some
    output, weights = core.scaled_dot_product_attention(query, key, value, utils.causal_mask(T_Q, T_K) & some)
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
    output, _ = core.scaled_dot_product_attention(query, key, value, dropout=dropout)
    close(output, core.scaled_dot_product_attention(query, key, value)[0])


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


FILL = "scores = scores.masked_fill(~mask & ~blind, -math.inf)"
VISIBLE = "return key_position <= query_position"

# (module, the check that must notice) -> name of the mistake -> what to replace. From the mistakes that readers make.
MUTANTS = {
    (self_attention, check_torch_unequal_masked_causal): {
        "no scaling": [("query = query / math.sqrt(query.size(-1))", "pass")],
        "divided by d_k, not its root": [("math.sqrt(query.size(-1))", "query.size(-1)")],
        "scale from d_v": [("math.sqrt(query.size(-1))", "math.sqrt(value.size(-1))")],
        "softmax over queries": [("softmax(scores, dim=-1).masked_fill", "softmax(scores, dim=-2).masked_fill")],
        "mask inverted": [(FILL, FILL.replace("~mask", "mask"))],
        "mask after softmax": [(FILL, "pass"), (".masked_fill(blind, 0.0)", ".masked_fill(~mask, 0.0)")],
    },
    (attention_utils, check_torch_unequal_masked_causal): {
        "one future token visible": [(VISIBLE, f"{VISIBLE} + 1")],
        "own token hidden": [(VISIBLE, VISIBLE.replace("<=", "<"))],
    },
    (self_attention, check_loop_specification): {
        "K Q^T instead of Q K^T": [("query @ key.transpose(-2, -1)", "key @ query.transpose(-2, -1)")],
    },
    (self_attention, check_hidden_is_exactly_zero): {
        "filled with -1e5": [(FILL, FILL.replace("-math.inf", "-1e5"))],
    },
    (self_attention, check_rows_sum_to_one_in_training): {
        "weights returned after dropout": [("output = kept @ value", "output, weights = kept @ value, kept")],
    },
    (self_attention, check_no_dropout_in_eval): {
        "dropout alive in eval": [("dropout(weights)", "F.dropout(weights, dropout.p)")],
    },
    (multi_head_attention, check_stack_of_single_heads): {
        "heads split without transpose": [
            ("x.view(batch, length, num_heads, d_model // num_heads)", "x.view(batch, num_heads, length, -1)"),
            ("return x.transpose(1, 2)  # (B, T, H", "return x  # (B, T, H"),
        ],
        "heads merged without transpose": [
            ("x.transpose(1, 2).flatten(start_dim=2)", "x.reshape(x.size(0), x.size(2), -1)"),
        ],
    },
    (multi_head_attention, check_torch_module_with_copied_weights): {
        "no output projection": [("self.w_o(merge_heads(heads))", "merge_heads(heads)")],
        "scaled by the root of d_model": [
            ("attention(query, key, value, mask", "attention(query / self.num_heads**0.5, key, value, mask"),
        ],
    },
}
PLANTED = {name: (*place, edits) for place, mistakes in MUTANTS.items() for name, edits in mistakes.items()}
assert len(PLANTED) == 16


@pytest.mark.parametrize("mistake", PLANTED)
def test_every_known_mistake_is_noticed(mistake):
    module, check, edits = PLANTED[mistake]
    mutant = broken(module, edits)
    arguments = {
        self_attention: (mutant, attention_utils),
        attention_utils: (self_attention, mutant),
        multi_head_attention: (mutant,),
    }[module]
    with pytest.raises((AssertionError, RuntimeError)):
        check(*arguments)


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
        upstream = torch.randn(output.shape, generator=torch.Generator().manual_seed(draw), dtype=dtype)
        output.backward(upstream)
        expected.backward(upstream)
        for a, b in zip(ours, theirs, strict=True):
            close(a.grad, b.grad, rtol=10 * tolerance, atol=10 * tolerance)


def test_matrix_form_equals_the_loops_it_is_explained_with():
    for seed in range(20):
        query, key, value = (tensor[0, 0] for tensor in qkv(seed))
        mask = some_mask(torch.Generator().manual_seed(seed), (T_Q, T_K)) if seed % 2 else None
        by_loops = attention_by_loops(query, key, value, mask)
        close(scaled_dot_product_attention(query, key, value, mask), by_loops, rtol=0, atol=1e-12)


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


SIXTEEN_BITS = [(dtype, size) for dtype in (torch.float16, torch.bfloat16) for size in (1.0, 100.0, 1e4)]


@pytest.mark.parametrize(("dtype", "size"), SIXTEEN_BITS)
@pytest.mark.parametrize("mask", [None, causal_mask(97)])
def test_16_bits_are_enough_for_inputs_and_outputs_and_not_for_the_sums(dtype, size, mask):
    """As near to float64 as torch's own kernel, whose sums are in float32; finite where that is finite."""
    *inputs, upstream = (
        x.to(dtype)
        for x in [size * x for x in qkv(t_q=97, t_k=97, d_k=64, d_v=8)[:2]] + qkv(1, t_q=97, t_k=97, d_k=8, d_v=8)[1:]
    )
    outcomes = {}
    for name, attention, kind in (
        ("exact", F.scaled_dot_product_attention, torch.float64),
        ("torch", F.scaled_dot_product_attention, dtype),
        ("ours", lambda q, k, v, attn_mask: scaled_dot_product_attention(q, k, v, attn_mask)[0], dtype),
    ):
        mine = [x.to(kind).requires_grad_() for x in inputs]
        output = attention(*mine, attn_mask=mask)
        outcomes[name] = [output, *torch.autograd.grad(output, mine, upstream.to(kind))]
    for exact, theirs, ours in zip(*outcomes.values(), strict=True):
        assert ours.dtype == dtype and ours.isfinite().all()
        error, bound = ((x.double() - exact).abs().max() for x in (ours, theirs))
        assert error <= bound + torch.finfo(dtype).eps / 2 * exact.abs().max()  # and the rounding of the result
    weights = scaled_dot_product_attention(*inputs, mask)[1]
    assert weights.dtype == dtype and (mask is None or weights[..., ~mask].eq(0).all())


@pytest.mark.parametrize(("batch", "t_q", "t_k"), [(2, 0, 5), (2, 5, 0), (2, 0, 0), (0, 5, 7)])
@pytest.mark.parametrize("with_mask", [False, True])
def test_no_queries_no_keys_no_batch(with_mask, batch, t_q, t_k):
    inputs = [x.requires_grad_() for x in qkv(t_q=t_q, t_k=t_k, leading=(batch, H))]
    mask = torch.ones(t_q, t_k, dtype=torch.bool) if with_mask else None
    output, weights = scaled_dot_product_attention(*inputs, mask)
    close(output, F.scaled_dot_product_attention(*inputs, attn_mask=mask))
    assert weights.shape == (batch, H, t_q, t_k) and not output.any()
    assert not any(slope.any() for slope in torch.autograd.grad(output.sum(), inputs))


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
        (
            lambda q, k, v: (q.float(), k, v, None),
            r"one floating dtype: got torch.float32, torch.float64, torch.float64",
        ),
        (lambda q, k, v: (q.long(), k.long(), v.long(), None), r"floating dtype: got torch.int64"),
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
    examples = doctest.testmod(self_attention)
    assert examples.attempted > 0 and examples.failed == 0


def test_self_attention_is_torchs_module_with_one_head():
    torch.manual_seed(0)
    ours = SelfAttention(D_K, output_projection=True).double()
    theirs = torch_single_head(ours)
    x = torch.randn(B, T_Q, D_K, dtype=torch.float64)
    for mask in (None, causal_mask(T_Q)):
        expected = theirs(x, x, x, attn_mask=None if mask is None else ~mask, average_attn_weights=False)
        for mine, torchs in zip(ours(x, mask), expected, strict=True):
            close(mine, torchs, rtol=0, atol=1e-12)


def test_head_axis_and_masks_of_self_attention():
    x = torch.randn(B, T_Q, D_K)
    output, weights = SelfAttention(D_K, d_v=D_V)(x, padding_mask(torch.tensor([3, 5]), T_Q))
    assert output.shape == (B, T_Q, D_V) and weights.shape == (B, 1, T_Q, T_Q)
    assert SelfAttention(D_K, d_v=D_V, output_projection=True)(x)[0].shape == x.shape, "W_o brings the size back"
    assert weights[0, :, :, 3:].eq(0).all() and weights[1].gt(0).all()
    with pytest.raises(ValueError, match="head axis"):
        SelfAttention(D_K)(x, torch.ones(B, T_Q, T_Q).bool())
