"""Weights that give the same output; gradients against formulas.

And what the page's table of layers says.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from phase1_single_head.reading import long_path
from phase1_single_head.reading.other_weights import alternative_weights
from phase1_single_head.self_attention import SelfAttention
from shared.tests.helpers import as_printed, near


def float64(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


@pytest.mark.parametrize(("length", "d_v"), [(7, 3), (11, 5), (13, 1)])
def test_alternative_weights_are_weights_and_give_the_same_output(length, d_v):
    generator = torch.Generator().manual_seed(length)
    value = torch.randn(length, d_v, generator=generator).double()
    weights = torch.randn(length, generator=generator).double().softmax(dim=0)
    other = alternative_weights(weights, value)
    assert (other >= 0).all()
    near((other.sum(), other @ value), (weights.sum(), weights @ value))
    assert (other > 0).sum() <= d_v + 1, "Carathéodory: d_v + 1 words are enough"
    assert alternative_weights(other, value) is None, "so few words have no other weights"


@pytest.mark.parametrize(
    ("scores", "printed", "comes_out"),
    [
        ((2, 0, 3), (0.24, 0.03, 0.73), (0.26, 0.04, 0.71)),  # C001
        ((2, -math.inf, 3), (0.27, 0.00, 0.73), (0.27, 0.00, 0.73)),  # which is right
        # C019: a gap of 5 is a ratio of 148
        ((100, 95, 5, 3), (0.88, 0.12, 0, 0), (0.99, 0.01, 0, 0)),
        ((12.5, 11.875, 0.625, 0.375), (0.55, 0.40, 0.02, 0.01), (0.65, 0.35, 0, 0)),  # C020, C021
    ],
)
def test_what_comes_out_where_courses_print_weights(scores, printed, comes_out):
    """No softmax at any temperature gives 0.7 more than 0.8, as C022 has it."""
    weights = float64(*scores).softmax(dim=0)
    as_printed(weights, comes_out, digits=2)
    is_right = torch.allclose(weights, float64(*printed), rtol=0, atol=0.005)
    assert is_right == (printed == comes_out)


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
        return torch.stack(states, dim=1), None


@pytest.mark.parametrize(("factor", "length"), [(0.5, 7), (1.1, 13), (0.1, 250)])
def test_gradient_of_a_linear_recurrence_is_the_factor_to_the_number_of_steps(factor, length):
    """0.1^249 is a number in float64, but its square is not: the norm must not lose it."""
    expected = factor ** (length - 1) * math.sqrt(long_path.SIZE)  # one for each number of a word
    gradients = long_path.sensitivity(LinearRecurrence(factor), length).gradients
    assert gradients[0].item() == pytest.approx(expected, rel=1e-9, abs=0)
    assert gradients[-1].item() == pytest.approx(math.sqrt(long_path.SIZE), rel=1e-9)


def test_the_residual_stream_is_added():
    layer, x = long_path.ResidualAttention(4), torch.randn(2, 3, 4)
    near(layer(x)[0] - x, SelfAttention.forward(layer, x)[0], 1e-6)


def test_an_open_gate_keeps_what_an_lstm_forgets():
    torch.manual_seed(0)
    arrives = {}
    for name in ("LSTM", "LSTM, bias 5"):
        arrives[name] = long_path.sensitivity(long_path.LAYERS[name](), 32).gradients[0]
    assert arrives["LSTM, bias 5"] > 1000 * arrives["LSTM"]
    assert long_path.lstm_with_open_gates(3.0).bias_ih_l0[32:64].eq(3).all()


# ---- the table of layers


@pytest.mark.parametrize(
    ("layer", "weights"),
    [
        (nn.RNN(11, 11, bias=False), 2 * 11**2),
        (nn.Conv1d(11, 11, 3, bias=False), 3 * 11**2),
        (SelfAttention(11), 3 * 11**2),
        (SelfAttention(11, output_projection=True), 4 * 11**2),
        (nn.Linear(7 * 11, 7 * 11, bias=False), (7 * 11) ** 2),
    ],
    ids=str,
)
def test_the_table_of_layers_counts(layer, weights):
    """Of one layer without biases, d = 11, k = 3, n = 7."""
    assert sum(parameter.numel() for parameter in layer.parameters()) == weights


def test_in_attention_every_word_is_one_step_away():
    torch.manual_seed(0)
    x = torch.randn(1, 7, 11, requires_grad=True)
    output, _ = SelfAttention(11)(x)
    (slope,) = torch.autograd.grad(output[0, -1].sum(), x)
    assert slope[0].abs().amax(dim=-1).gt(0).all()


def reached(dilations, length):
    """How many inputs the last output of convolutions of width 3 hears of, at most length."""
    seen = torch.zeros(length, dtype=torch.bool)  # the last input first
    seen[0] = True
    for dilation in dilations:
        for _ in range(2):
            seen = seen | F.pad(seen, (dilation, 0))[:length]
    return int(seen.sum())


@pytest.mark.parametrize("length", [33, 65])
def test_convolutions_join_words_in_log_n_layers_if_they_are_dilated(length):
    plain, dilated = [1] * length, [2**layer for layer in range(10)]  # C037
    needed = (length - 1) // 2  # k = 3: (n - 1) / (k - 1)
    few = math.ceil(math.log2(length + 1)) - 1
    for dilations, layers in ((plain, needed), (dilated, few)):
        assert reached(dilations[:layers], length) == length
        assert reached(dilations[: layers - 1], length) < length


def test_a_linear_recurrence_needs_no_word_to_wait_for_all_before_it():
    """h_t = a_t h_(t-1) + x_t puts the words up to t together; brackets may stand anywhere."""
    factor, state = torch.randn(2, 13, generator=torch.Generator().manual_seed(0)).double()
    expected = [state[0]]
    for t in range(1, 13):
        expected.append(factor[t] * expected[-1] + state[t])
    step, rounds = 1, 0
    while step < 13:  # all words at once, with what stands `step` places before
        earlier_state = F.pad(state, (step, 0))[:13]
        earlier_factor = F.pad(factor, (step, 0), value=1.0)[:13]
        state, factor = state + factor * earlier_state, factor * earlier_factor
        step, rounds = 2 * step, rounds + 1
    near(state, torch.stack(expected))
    assert rounds == 4, "log2 of 13 words, rounded up"
