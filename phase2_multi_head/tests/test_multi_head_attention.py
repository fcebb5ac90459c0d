"""MultiHeadAttention against nn.MultiheadAttention, forwards and backwards; the other ways to it: test_costs.py."""

import itertools
import random

import pytest
import torch
import torch.nn.functional as F

from phase2_multi_head.fused_attention import FusedMultiHeadAttention
from phase2_multi_head.grouped_query_attention import GroupedQueryAttention
from phase2_multi_head.multi_head_attention import MultiHeadAttention, merge_heads, split_heads
from shared.attention_checks import torch_twin
from shared.tests.helpers import T_K, T_Q, B, near


def test_split_and_merge_are_inverse_and_put_each_column_in_its_head():
    x = torch.arange(2 * 5 * 33).view(2, 5, 33).double()
    split = split_heads(x, 3)
    assert torch.equal(merge_heads(split), x)
    for head, column in itertools.product(range(3), range(11)):
        assert torch.equal(split[:, head, :, column], x[:, :, 11 * head + column])


@pytest.mark.parametrize("heads", [1, 2, 8, 64])
def test_what_comes_out_has_the_shape_of_what_went_in(heads):
    x = torch.zeros(2, 5, 64)
    output, weights = MultiHeadAttention(64, heads)(x)
    assert output.shape == x.shape and weights.shape == (2, heads, 5, 5)


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
        near(output, expected, share=tolerance)
        near(weights, expected_weights, share=tolerance)
        output.square().sum().backward()
        expected.square().sum().backward()
        q, k, v = theirs.in_proj_weight.grad.chunk(3)
        for a, b in ((ours.w_q, q), (ours.w_k, k), (ours.w_v, v), (ours.w_o, theirs.out_proj.weight.grad)):
            near(a.weight.grad, b, share=20 * tolerance)


def test_multi_head_value_can_differ_from_key_and_dropout_stays_off_the_weights():
    torch.manual_seed(0)
    ours = MultiHeadAttention(33, 3, dropout=0.5).double()
    x, key, value = (torch.randn(B, t, 33, dtype=torch.float64) for t in (T_Q, T_K, T_K))
    ours.train()
    near(ours(x, key, value)[1].sum(dim=-1), torch.ones(B, 3, T_Q).double())
    assert not torch.equal(ours(x, key, value)[0], ours(x, key, value)[0])
    ours.eval()
    expected = torch_twin(ours).eval()(x, key, value)[0]
    near(ours(x, key, value)[0], expected)


def test_heads_must_divide_the_width_and_the_error_says_what_works():
    with pytest.raises(ValueError, match=r"d_model=1600 is not divisible by num_heads=48.*: 50 heads of 32"):
        MultiHeadAttention(1600, 48)
    with pytest.raises(ValueError, match="num_heads must be a whole number, 1 or more: got 0"):
        MultiHeadAttention(16, 0)


KINDS = {
    "plain": MultiHeadAttention,
    "fused": FusedMultiHeadAttention,
    "grouped": lambda d_model, heads: GroupedQueryAttention(d_model, heads, 2),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((5, 16),), r"\(B, T, d_model=16\): got query \(5, 16\)"),
        (((2, 5, 16), (16,)), r"\(B, T, d_model=16\): got key \(16,\)"),
        (((2, 5, 12),), r"\(B, T, d_model=16\): got query \(2, 5, 12\)"),
        (((1, 5, 16), (3, 7, 16)), "one batch size B: got query 1, key 3, value 3"),
        (((3, 5, 16), (3, 7, 16), (1, 7, 16)), "one batch size B: got query 3, key 3, value 1"),
    ],
)
def test_what_is_no_batch_of_sequences_is_refused_and_no_batch_is_repeated(kind, shapes, message):
    with pytest.raises(ValueError, match=message):
        KINDS[kind](16, 4)(*(torch.zeros(shape) for shape in shapes))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("batch", "t_q", "t_k"), [(0, 3, 5), (2, 0, 5), (2, 3, 0), (2, 0, 0), (0, 0, 0)])
def test_empty_batches_and_sequences_give_what_torch_gives(kind, batch, t_q, t_k):
    """No query: nothing comes out. No key: the heads find 0, and W_o adds its bias."""
    attention = KINDS[kind](16, 4)
    output, _ = attention(torch.randn(batch, t_q, 16), torch.randn(batch, t_k, 16))
    found = F.scaled_dot_product_attention(*(torch.zeros(batch, 4, t, 4) for t in (t_q, t_k, t_k)))
    near(output, attention.w_o(merge_heads(found)))
