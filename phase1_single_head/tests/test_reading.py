"""Weights that give the same output, by hand and by null space; paths and gradients against formulas."""

import math

import pytest
import torch
from torch import nn

from phase1_single_head.reading import long_path
from phase1_single_head.reading.other_weights import alternative_weights, change_without_effect
from phase1_single_head.self_attention import SelfAttention, scaled_dot_product_attention
from shared.measure import count_operations
from shared.tests.helpers import as_printed, near


def test_alternative_weights_worked_by_hand():
    """Values 0, 1, 2: a step of (1, -2, 1) changes neither mean nor sum, and ends when the middle is empty."""
    value = torch.tensor([[0.0], [1.0], [2.0]], dtype=torch.float64)
    weights = torch.tensor([0.25, 0.5, 0.25], dtype=torch.float64)
    near(alternative_weights(weights, value), torch.tensor([0.5, 0.0, 0.5], dtype=torch.float64))
    uneven = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)  # now away from the first: 0.1 * (-1, 2, -1) each time
    near(alternative_weights(uneven, value), torch.tensor([0.3, 0.7, 0.0], dtype=torch.float64))
    assert change_without_effect(weights, value, torch.tensor([True, False, True])) is None


@pytest.mark.parametrize(("length", "d_v"), [(7, 3), (11, 5), (13, 1), (5, 3)])
def test_alternative_weights_are_weights_and_give_the_same_output(length, d_v):
    generator = torch.Generator().manual_seed(length)
    value = torch.randn(length, d_v, generator=generator).double()
    weights = torch.randn(length, generator=generator).double().softmax(dim=0)
    kept = weights.clone()
    other = alternative_weights(weights, value)
    assert torch.equal(weights, kept), "the row that was passed in stays as it was"
    assert (other >= 0).all() and other.sum().item() == pytest.approx(1, abs=1e-12)
    near(other @ value, weights @ value)
    assert (other - weights).abs().sum() > 1e-3
    assert (other > 0).sum() <= d_v + 1, "Carathéodory: d_v + 1 words are enough"
    assert alternative_weights(other, value) is None, "a row with d_v + 1 words or fewer is at the end"


@pytest.mark.parametrize(("length", "d_v"), [(2, 1), (5, 4), (7, 13)])
def test_weights_are_unique_with_at_most_d_v_plus_one_words(length, d_v):
    generator = torch.Generator().manual_seed(0)
    value = torch.randn(length, d_v, generator=generator).double()
    weights = torch.randn(length, generator=generator).double().softmax(dim=0)
    assert alternative_weights(weights, value) is None
    value[1] = value[0]  # two words that say the same: the heavier gives all to the other, the rest stays
    other, lighter = alternative_weights(weights, value), int(weights[:2].argmin())
    near(other[2:], weights[2:])
    near(other[lighter], weights[:2].sum())


def test_change_without_effect_takes_most_from_the_heaviest_free_word():
    generator = torch.Generator().manual_seed(5)
    value, free = torch.randn(13, 3, generator=generator).double(), torch.arange(13) != 4
    weights = torch.full((13,), 0.05, dtype=torch.float64)
    weights[4], weights[7] = 0.3, 0.15  # the heaviest is not free
    change = change_without_effect(weights, value, free)
    assert change.sum().item() == pytest.approx(0, abs=1e-12) and change[4] == 0
    assert (change @ value).tolist() == pytest.approx([0] * value.size(1), abs=1e-12)
    constraints = torch.cat([value, torch.ones(13, 1).double()], dim=1)[free]
    for seed in range(50):  # no direction of the same length takes more from word 7
        other = torch.randn(12, generator=torch.Generator().manual_seed(seed)).double()
        other -= constraints @ torch.linalg.lstsq(constraints, other[:, None]).solution[:, 0]
        assert -other[6].abs() / other.norm() >= change[7] / change.norm() - 1e-12


@pytest.mark.parametrize(
    ("scores", "printed", "comes_out"),
    [
        ((2, 0, 3), (0.24, 0.03, 0.73), (0.26, 0.04, 0.71)),  # C001
        ((2, -math.inf, 3), (0.27, 0.00, 0.73), (0.27, 0.00, 0.73)),  # C003, which is right
        ((100, 95, 5, 3), (0.88, 0.12, 0, 0), (0.99, 0.01, 0, 0)),  # C019: a gap of 5 is a ratio of 148
        ((12.5, 11.875, 0.625, 0.375), (0.55, 0.40, 0.02, 0.01), (0.65, 0.35, 0, 0)),  # C020
    ],
)
def test_what_comes_out_where_courses_print_weights(scores, printed, comes_out):
    """The errata of data/claims.md. No softmax at any temperature gives 0.7 more than 0.8, as C022 has it."""
    weights = torch.tensor(scores, dtype=torch.float64).softmax(dim=0)
    as_printed(weights, comes_out, digits=2)
    assert torch.allclose(weights, torch.tensor(printed).double(), rtol=0, atol=0.005) == (printed == comes_out)


# ------------------------------------------------------------------------------------------------------- the long path


def recurrence_by_loop(x, factor):
    """h_t = factor h_{t-1} + x_t, word by word: (T, d) -> (T, d)."""
    states = [x[0]]
    for word in x[1:]:
        states.append(factor * states[-1] + word)
    return torch.stack(states)


class LinearRecurrence(nn.Module):
    """h_t = a h_{t-1} + x_t as a layer: its gradient from first to last is a^(n-1), whatever the words."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return recurrence_by_loop(x[0], self.factor)[None]


@pytest.mark.parametrize(("factor", "length"), [(0.5, 7), (1.1, 13), (0.1, 250)])
def test_gradient_of_a_linear_recurrence_is_the_factor_to_the_number_of_steps(factor, length):
    """0.1^249 is a number in float64, but its square is not: the norm must not lose it."""
    expected = factor ** (length - 1) * math.sqrt(long_path.SIZE)  # one such gradient for each number of a word
    assert long_path.gradient(LinearRecurrence(factor), length) == pytest.approx(expected, rel=1e-9, abs=0)


@pytest.mark.parametrize(("dilated", "layers", "reached"), [(False, 1, 2), (False, 5, 10), (True, 1, 2), (True, 4, 30)])
def test_how_far_layers_of_convolutions_reach(dilated, layers, reached):
    """Two words more with each layer; if the dilation doubles, 2 + 4 + ... + 2^L = 2^(L+1) - 2."""
    torch.manual_seed(0)
    x = torch.randn(1, 3, 40).double().requires_grad_()
    y = x
    for layer in range(layers):
        gap = 2**layer if dilated else 1
        y = nn.Conv1d(3, 3, 3, dilation=gap).double()(nn.functional.pad(y, (2 * gap, 0)))
    (at_input,) = torch.autograd.grad(y[..., -1].sum(), x)
    assert at_input[0].any(dim=0).nonzero().min() == 39 - reached


def test_convolution_is_causal():
    torch.manual_seed(0)
    layer, x = long_path.CausalConvolution(), torch.randn(1, 11, long_path.SIZE)
    changed = x.clone()
    changed[:, 5] += 1
    moved = (layer(x) - layer(changed)).abs().amax(dim=(0, 2)) > 1e-6
    assert moved.nonzero().flatten().tolist() == [5, 6, 7]


def test_chain_counts_operations_that_wait_for_one_another():
    """Worked by hand: x itself, then each operation on the longest way; what runs beside it does not count."""
    x = torch.ones(3, requires_grad=True)
    assert long_path.longest_chain(x + 1) == 2
    assert long_path.longest_chain((x + 1).exp() * 2 + x.sin()) == 5
    assert long_path.longest_chain(torch.stack([x.sin(), x.cos(), x.exp()])) == 3


def test_a_linear_recurrence_need_not_wait():
    """Without tanh the same states are one matrix product, as attention takes its values."""
    torch.manual_seed(0)
    x = torch.randn(13, 3, dtype=torch.float64, requires_grad=True)
    position = torch.arange(13, dtype=torch.float64)
    weights = (0.9 ** (position[:, None] - position)).tril()  # of word j in state t, 0 of later words
    by_loop, at_once = recurrence_by_loop(x, 0.9), weights @ x
    near(at_once, by_loop)
    assert long_path.longest_chain(by_loop) > 13 > long_path.longest_chain(at_once)


@pytest.mark.parametrize(("n", "d"), [(5, 8), (12, 8), (40, 8), (7, 3)])
def test_operations_and_weights_of_attention(n, d):
    """Core 4 n² d, projections 6 n d²; the core is the larger part beyond n = 1.5 d. n² weights."""
    text = torch.randn(1, n, d)
    core = count_operations(scaled_dot_product_attention, *[text] * 3)
    layer = count_operations(SelfAttention(d), text)
    assert (core, layer - core) == (4 * n**2 * d, 6 * n * d**2)
    assert (core > layer - core) == (n > 1.5 * d)
    assert SelfAttention(d)(text)[1].numel() == n**2
