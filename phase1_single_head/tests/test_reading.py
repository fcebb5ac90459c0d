"""Weights that give the same output, by hand and by null space; paths and gradients against
formulas.
"""

import math

import pytest
import torch
from torch import nn

from phase1_single_head.reading import long_path
from phase1_single_head.reading.other_weights import alternative_weights
from phase1_single_head.self_attention import SelfAttention, scaled_dot_product_attention
from shared.measure import count_operations
from shared.tests.helpers import as_printed, near


@pytest.mark.parametrize(
    ("value", "weights", "other"),
    [
        ((0, 1, 2), (0.25, 0.5, 0.25), (0.5, 0.0, 0.5)),  # (1, -2, 1) changes neither mean nor sum
        (
            (0, 1, 2),
            (0.5, 0.3, 0.2),
            (0.3, 0.7, 0.0),
        ),  # now away from the first: 0.1 * (-1, 2, -1) each time
        (
            (0, 0, 5),
            (0.2, 0.3, 0.5),
            (0.5, 0.0, 0.5),
        ),  # the heaviest cannot change, no other says 5
        ((0, 2), (0.5, 0.5), None),  # nothing else makes 1
    ],
)
def test_alternative_weights_worked_by_hand(value, weights, other):
    found = alternative_weights(
        torch.tensor(weights, dtype=torch.float64), torch.tensor(value).double()[:, None]
    )
    assert (found is None) == (other is None)
    assert other is None or found.tolist() == pytest.approx(other, abs=1e-12)


@pytest.mark.parametrize(("length", "d_v"), [(7, 3), (11, 5), (13, 1)])
def test_alternative_weights_are_weights_and_give_the_same_output(length, d_v):
    generator = torch.Generator().manual_seed(length)
    value = torch.randn(length, d_v, generator=generator).double()
    weights = torch.randn(length, generator=generator).double().softmax(dim=0)
    other = alternative_weights(weights, value)
    assert (other >= 0).all() and other.sum().item() == pytest.approx(1, abs=1e-12)
    near(other @ value, weights @ value)
    assert (other > 0).sum() <= d_v + 1, "Carathéodory: d_v + 1 words are enough"
    assert alternative_weights(other, value) is None, (
        "a row with d_v + 1 words or fewer is at the end"
    )


@pytest.mark.parametrize(
    ("scores", "printed", "comes_out"),
    [
        ((2, 0, 3), (0.24, 0.03, 0.73), (0.26, 0.04, 0.71)),  # C001
        ((2, -math.inf, 3), (0.27, 0.00, 0.73), (0.27, 0.00, 0.73)),  # C003, which is right
        (
            (100, 95, 5, 3),
            (0.88, 0.12, 0, 0),
            (0.99, 0.01, 0, 0),
        ),  # C019: a gap of 5 is a ratio of 148
        ((12.5, 11.875, 0.625, 0.375), (0.55, 0.40, 0.02, 0.01), (0.65, 0.35, 0, 0)),  # C020
    ],
)
def test_what_comes_out_where_courses_print_weights(scores, printed, comes_out):
    """The errata of data/claims.md. No softmax at any temperature gives 0.7 more than 0.8, as C022
    has it.
    """
    weights = torch.tensor(scores, dtype=torch.float64).softmax(dim=0)
    as_printed(weights, comes_out, digits=2)
    assert torch.allclose(weights, torch.tensor(printed).double(), rtol=0, atol=0.005) == (
        printed == comes_out
    )


# ---- the long path


class LinearRecurrence(nn.Module):
    """h_t = a h_{t-1} + x_t: its gradient from first to last is a^(n-1), whatever the words."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        states = [x[:, 0]]
        for word in x.unbind(dim=1)[1:]:
            states.append(self.factor * states[-1] + word)
        return torch.stack(states, dim=1)


@pytest.mark.parametrize(("factor", "length"), [(0.5, 7), (1.1, 13), (0.1, 250)])
def test_gradient_of_a_linear_recurrence_is_the_factor_to_the_number_of_steps(factor, length):
    """0.1^249 is a number in float64, but its square is not: the norm must not lose it."""
    expected = factor ** (length - 1) * math.sqrt(
        long_path.SIZE
    )  # one such gradient for each number of a word
    assert long_path.gradient(LinearRecurrence(factor), length) == pytest.approx(
        expected, rel=1e-9, abs=0
    )


def test_an_open_gate_keeps_what_an_lstm_forgets():
    torch.manual_seed(0)
    open_gate, usual = (
        long_path.gradient(long_path.LAYERS[name](), 32)
        for name in ("LSTM with open gates", "LSTM")
    )
    assert open_gate > 1000 * usual


def test_operations_and_weights_of_attention():
    """Core 4 n² d, projections 6 n d²; the core is the larger part beyond n = 1.5 d. n² weights."""
    for n in (5, 12, 40):
        text, attention = torch.randn(1, n, 8), SelfAttention(8)
        core = count_operations(scaled_dot_product_attention, *[text] * 3)
        layer = count_operations(attention, text)
        assert (core, layer - core) == (4 * n**2 * 8, 6 * n * 8**2)  # C035
        assert attention(text)[1].numel() == n**2  # C036
