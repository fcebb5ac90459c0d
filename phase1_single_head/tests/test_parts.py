"""Parts of attention against formulas and loops."""

import math

import pytest
import torch
import torch.nn.functional as F

from phase1_single_head.parts import scaling
from phase1_single_head.parts.two_places import TwoPlaces
from phase1_single_head.parts.undivided import FoldedSelfAttention, UndividedSelfAttention
from phase1_single_head.self_attention import SelfAttention, scaled_dot_product_attention
from shared.attention_utils import causal_mask
from shared.tests.helpers import D_K, T_Q, B, near, qkv


@pytest.mark.parametrize("divide", [True, False])
def test_scaling_measures_the_gradients_of_its_formula(divide):
    """dL/ds_j = w_j (v_j - L) and dL/dq = sum_j dL/ds_j k_j / √d_k, here of d_k = 11."""
    generator = torch.Generator().manual_seed(5)
    query = torch.randn(scaling.NUM_DRAWS, 1, 11, generator=generator)
    key = torch.randn(scaling.NUM_DRAWS, scaling.NUM_KEYS, 11, generator=generator)
    value = torch.randn(scaling.NUM_DRAWS, scaling.NUM_KEYS, 1, generator=generator)
    root = math.sqrt(11) if divide else 1.0
    weights = torch.softmax(query @ key.mT / root, dim=-1)
    at_scores = weights * (value.mT - weights @ value)
    at_query = (at_scores @ key / root).norm(dim=-1)
    expected = {
        "largest weight": weights.amax(dim=-1).mean().item(),
        "mean |dL/dscores|": at_scores.norm(dim=-1).mean().item(),
        "mean |dL/dq|": at_query.mean().item(),
        "median |dL/dq|": at_query.median().item(),
    }
    assert scaling.random_vectors(11, divide, seed=5) == pytest.approx(expected, rel=1e-4)


def test_undivided_attention_differs_by_the_root_alone():
    torch.manual_seed(28)
    ours = UndividedSelfAttention(D_K, 7, output_projection=True).double()
    x, mask = torch.randn(B, T_Q, D_K).double(), causal_mask(T_Q)
    scores = ours.w_q(x) @ ours.w_k(x).mT
    expected = scores.masked_fill(~mask, -math.inf).softmax(dim=-1)
    near(ours(x, mask)[1][:, 0], expected)


def losses_of_training(kind, share):
    """Of a head whose W_q takes steps that are shorter by a share, with AdamW and weight decay."""
    torch.manual_seed(28)
    head, x = kind(D_K, 7, output_projection=True).double(), torch.randn(B, T_Q, D_K).double()
    w_q, *others = head.parameters()
    own = {"lr": 0.01 * share, "eps": 1e-8 / share, "weight_decay": 0.1 / share}
    groups = [{"params": [w_q], **own}, {"params": others}]
    optimizer = torch.optim.AdamW(groups, lr=0.01, weight_decay=0.1)
    losses = []
    for _ in range(30):
        loss = (head(x)[0] - x.flip(dims=[1])).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return torch.tensor(losses)


def test_a_smaller_start_with_steps_as_much_smaller_is_the_division():
    """In scaling.py decay is 0, and epsilon hardly counts."""
    divided = losses_of_training(SelfAttention, 1.0)
    near(losses_of_training(FoldedSelfAttention, 1 / math.sqrt(7)), divided)
    same_steps = losses_of_training(FoldedSelfAttention, 1.0)
    assert abs(same_steps[-1] - divided[-1]) > 1e-3 * divided[-1]


def test_answers_of_two_places_by_a_loop():
    generator = torch.Generator().manual_seed(1)
    table = torch.randint(5, (5, 5), generator=generator)
    symbols = torch.randint(5, (3, 11), generator=generator)
    answers = TwoPlaces.answers(symbols, table)
    for row, answer in zip(symbols, answers, strict=True):
        assert answer.tolist() == [table[row[t - 1], row[t - 3]] for t in range(3, 11)]


def test_gradients_reach_all_of_a_soft_and_values_alone_of_a_hard_look_up():
    """Hard, as in a dictionary: the value of the best key, and nothing of the others."""
    inputs = [x.requires_grad_() for x in qkv(leading=())]
    query, key, value = inputs
    soft, _ = scaled_dot_product_attention(query, key, value)
    hard = F.one_hot((query @ key.T).argmax(dim=-1), len(key)).double() @ value
    for output, reached in ((soft, [True, True, True]), (hard, [False, False, True])):
        gradients = torch.autograd.grad(output.sum(), inputs, materialize_grads=True)
        assert [bool(gradient.any()) for gradient in gradients] == reached


def test_a_ring_needs_two_projections_and_a_star_does_not():
    """With one, forwards and backwards a ring has the same weights, 1/2 each at most."""
    days, ahead, back = torch.arange(7), torch.arange(7).roll(-1), torch.arange(7).roll(1)
    value = torch.eye(7).double()
    one = 2 * torch.randn(7, 5, generator=torch.Generator().manual_seed(0)).double()
    _, weights = scaled_dot_product_attention(one, one, value)
    forwards, backwards = (weights[days, to].log().mean().exp() for to in (ahead, back))
    near(forwards, backwards)
    assert forwards <= 0.5  # C085
    _, weights = scaled_dot_product_attention(20 * value[ahead], value, value)
    assert weights[days, ahead].min() > 0.99, "two matrices"
    star = torch.ones(7, 1).double() + 200 * value[:, :1]
    _, weights = scaled_dot_product_attention(star, star, value)
    assert weights[:, 0].min() > 0.99, "all look at one that is long"
