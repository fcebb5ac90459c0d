"""The core beside the table of oracles: what is hidden, 16 bits, dropout, errors."""

import doctest
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from phase1_single_head import self_attention
from phase1_single_head.order import position_encodings
from phase1_single_head.reading import other_weights
from phase1_single_head.self_attention import SelfAttention, scaled_dot_product_attention
from shared.attention_utils import causal_mask, padding_mask
from shared.tests.helpers import D_K, D_V, T_K, T_Q, B, H, near, qkv, some_mask


def test_hand_worked_numbers():
    """q·k / √4 = ln 3 and 0: weights 3/4 and 1/4, so the output lies a quarter of the way to the second value."""
    query = torch.tensor([[2.0 * math.log(3.0), 0.0, 0.0, 0.0]])
    key = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]])
    output, weights = scaled_dot_product_attention(query, key, torch.tensor([[0.0, 8.0], [4.0, 0.0]]))
    near(weights, torch.tensor([[0.75, 0.25]]))
    near(output, torch.tensor([[1.0, 6.0]]))


def test_hidden_is_exactly_zero():
    """Scores of -100,000 on the visible keys: a finite fill would lose against the hidden one."""
    query, key = torch.ones(1, 1, dtype=torch.float64), torch.tensor([[-200000.0], [-200000.0], [0.0]]).double()
    mask = torch.tensor([[True, True, False]])
    _, weights = scaled_dot_product_attention(query, key, torch.eye(3).double(), mask)
    assert weights.tolist() == [[0.5, 0.5, 0.0]], "a hidden key got weight: is it filled with -inf before softmax?"


def test_dropout_is_for_training_alone_and_weights_are_those_before_it():
    torch.manual_seed(0)
    query, key, value = qkv()
    output, weights = scaled_dot_product_attention(query, key, value, dropout=nn.Dropout(0.5).train())
    near(weights.sum(dim=-1), torch.ones(B, H, T_Q).double())
    assert not torch.allclose(output, weights @ value), "dropout had no effect on the output"
    near(scaled_dot_product_attention(query, key, value, dropout=nn.Dropout(0.5).eval())[0], weights @ value)


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


@pytest.mark.parametrize("size", [1.0, 100.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("mask", [None, causal_mask(97)])
def test_16_bits_are_enough_for_inputs_and_outputs_and_not_for_the_sums(dtype, size, mask):
    """As near to float64 as torch's own kernel, whose sums are in float32; finite where that is finite."""
    query, key, _ = qkv(t_q=97, t_k=97, d_k=64, d_v=8)
    _, value, upstream = qkv(1, t_q=97, t_k=97, d_k=8, d_v=8)
    *inputs, upstream = (x.to(dtype) for x in (size * query, size * key, value, upstream))
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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda q, k, v: (q[..., :5], k, v, None), r"share their last size d_k: got 5 and 11"),
        (lambda q, k, v: (q, k, v[..., :6, :], None), r"same length T_k: got 7 and 6"),
        (lambda q, k, v: (q[0, 0, 0], k, v, None), r"query needs at least 2 axes"),
        (lambda q, k, v: (q[:, :2], k, v, None), r"axes before length and size must agree"),
        (lambda q, k, v: (q.float(), k, v, None), r"one floating dtype: got torch.float32, torch.float64"),
        (lambda q, k, v: (q.long(), k.long(), v.long(), None), r"floating dtype: got torch.int64"),
        (lambda q, k, v: (q, k, v, torch.ones(T_Q, T_K)), r"mask must be bool.*got torch.float32.*mask.bool\(\)"),
        (lambda q, k, v: (q, k, v, causal_mask(T_Q, 6)), r"\(5, 6\) does not broadcast to scores of .*\(2, 3, 5, 7\)"),
        (lambda q, k, v: (q, k, v, torch.ones(B, T_Q, T_K).bool()), r"head axis with mask.unsqueeze\(1\)"),
        (lambda q, k, v: (q, k, v, torch.ones(T_K).bool()), r"2 axes \(T_q, T_k\) or 4 like the scores: got 1"),
    ],
)
def test_errors_name_the_rule_and_both_numbers(change, message):
    with pytest.raises(ValueError, match=message):
        scaled_dot_product_attention(*change(*qkv()))


@pytest.mark.parametrize("module", [self_attention, position_encodings, other_weights])
def test_docstring_examples(module):
    examples = doctest.testmod(module)
    assert examples.attempted > 0 and examples.failed == 0


def test_head_axis_and_masks_of_self_attention():
    x = torch.randn(B, T_Q, D_K)
    output, weights = SelfAttention(D_K, d_v=D_V)(x, padding_mask(torch.tensor([3, 5]), T_Q))
    assert output.shape == (B, T_Q, D_V) and weights.shape == (B, 1, T_Q, T_Q)
    assert weights[0, :, :, 3:].eq(0).all() and weights[1].gt(0).all()
