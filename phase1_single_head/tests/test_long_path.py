"""Gradients, paths and chains against formulas."""

import itertools
import math

import pytest
import torch
from torch import nn

from phase1_single_head.long_path import path_length
from phase1_single_head.self_attention import SelfAttention, scaled_dot_product_attention
from shared.measure import count_operations
from shared.tests.helpers import close


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


@pytest.mark.parametrize(("factor", "length"), [(0.5, 7), (0.9, 31), (1.1, 13), (0.1, 250)])
def test_gradient_of_a_linear_recurrence_is_the_factor_to_the_number_of_steps(factor, length):
    """0.1^249 is a number in float64, but its square is not: the norm must not lose it."""
    expected = factor ** (length - 1) * math.sqrt(path_length.SIZE)  # one such gradient for each number of a word
    assert path_length.gradient(LinearRecurrence(factor), length) == pytest.approx(expected, rel=1e-9, abs=0)


@pytest.mark.parametrize("length", [2, 3, 4, 8, 9, 32, 33])
def test_plain_convolutions_connect_after_half_the_words_and_not_before(length):
    needed = math.ceil((length - 1) / 2)
    assert path_length.layers_needed(path_length.convolutions(4, dilated=False), length) == needed
    torch.manual_seed(0)
    x = torch.randn(1, length, 5, dtype=torch.float64, requires_grad=True)
    for depth in (needed - 1, needed):  # the whole stack in one piece, an independent way to the same answer
        stack = nn.Sequential(*itertools.islice(path_length.convolutions(5, dilated=False), depth)).double()
        (at_input,) = torch.autograd.grad(stack(x)[:, -1].sum(), x)
        assert bool(at_input[0, 0].any()) == (depth == needed), f"{depth} layers, {length} words"


@pytest.mark.parametrize(("length", "needed"), [(3, 1), (4, 2), (7, 2), (8, 3), (15, 3), (16, 4), (128, 7), (511, 8)])
def test_dilated_convolutions_reach_twice_as_far_with_each_layer(length, needed):
    """L layers of kernel 3 reach back 2 + 4 + ... + 2^L = 2^(L+1) - 2 words."""
    assert 2 ** (needed + 1) - 2 >= length - 1 > 2**needed - 2
    assert path_length.layers_needed(path_length.convolutions(4, dilated=True), length) == needed


def test_attention_connects_in_one_layer_and_too_few_layers_are_an_error():
    assert [path_length.layers_needed(iter([SelfAttention(4)]), n) for n in (2, 17, 300)] == [1, 1, 1]
    few = itertools.islice(path_length.convolutions(4, dilated=False), 15)  # 16 are needed
    with pytest.raises(ValueError, match="do not connect the first of 32 words"):
        path_length.layers_needed(few, 32)


def test_convolution_is_causal_and_torchs_own():
    torch.manual_seed(0)
    layer, x = path_length.CausalConvolution(5, kernel=3, dilation=2), torch.randn(2, 11, 5)
    by_hand = layer.bias.expand(2, 11, 5).clone()
    for t, tap in itertools.product(range(11), range(3)):
        if (source := t - 2 * (2 - tap)) >= 0:
            by_hand[:, t] += x[:, source] @ layer.weight[:, :, tap].T
    close(layer(x), by_hand)


def test_chain_counts_operations_that_wait_for_one_another():
    """Worked by hand: x itself, then each operation on the longest way; what runs beside it does not count."""
    x = torch.ones(3, requires_grad=True)
    assert path_length.longest_chain(x + 1) == 2
    assert path_length.longest_chain((x + 1).exp() * 2 + x.sin()) == 5
    assert path_length.longest_chain(torch.stack([x.sin(), x.cos(), x.exp()])) == 3


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
def test_recurrent_networks_take_as_many_steps_as_there_are_words(kind):
    assert [path_length.steps_needed(kind(3, 3, batch_first=True), n) for n in (1, 2, 5, 29)] == [1, 2, 5, 29]


@pytest.mark.parametrize("factor", [0.3, 0.9, 1.0, -0.7])
def test_a_linear_recurrence_need_not_wait(factor):
    """Without tanh the same states are one matrix product, as attention takes its values."""
    torch.manual_seed(0)
    x = torch.randn(13, 3, dtype=torch.float64, requires_grad=True)
    position = torch.arange(13, dtype=torch.float64)
    weights = (factor ** (position[:, None] - position)).tril()  # of word j in state t, 0 of later words
    by_loop, at_once = recurrence_by_loop(x, factor), weights @ x
    close(at_once, by_loop, rtol=0, atol=1e-12)
    assert path_length.longest_chain(by_loop) > 13 > path_length.longest_chain(at_once)


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM])
def test_a_recurrent_state_is_as_large_for_many_words_as_for_few(kind):
    few, many = (kind(3, 3, batch_first=True)(torch.randn(1, n, 3))[1] for n in (5, 50))
    assert torch.stack([*few]).shape == torch.stack([*many]).shape


@pytest.mark.parametrize(("n", "d"), [(5, 8), (12, 8), (40, 8), (7, 3)])
def test_operations_and_weights_of_attention(n, d):
    """Core 4 n² d, projections 6 n d²; the core is the larger part beyond n = 1.5 d. n² weights."""
    text = torch.randn(1, n, d)
    core, layer = (
        count_operations(scaled_dot_product_attention, *[text] * 3),
        count_operations(SelfAttention(d), text),
    )
    assert (core, layer - core) == (4 * n**2 * d, 6 * n * d**2)
    assert (core > layer - core) == (n > 1.5 * d)
    assert SelfAttention(d)(text)[1].numel() == n**2


def test_fits_tell_a_power_from_a_factor():
    power = [3 / n**1.5 for n in path_length.LENGTHS]
    factor = [0.2 * 0.8**n for n in path_length.LENGTHS]
    assert path_length.fall(power) == ("power", pytest.approx(-1.5))
    assert path_length.fall(factor) == ("factor", pytest.approx(0.8))
    assert path_length.fall([*factor[:-1], 0.0]) == ("factor", pytest.approx(0.8)), "zeros must be left out"
    assert path_length.fall_text(power) == "like n^-1.5" and path_length.fall_text(factor) == "× 0.80 a word"


def test_picture_says_where_gradients_are_gone():
    """A line that falls is labelled with the first length at which next to nothing arrives, even exactly 0."""
    flat = [0.1] * len(path_length.LENGTHS)
    gradients = dict.fromkeys(path_length.NETWORKS, flat) | {"RNN": [0.5, 1e-8, 1e-10, *flat[3:-1], 0.0]}
    gradients["LSTM"] = [0.5] * 6 + [0.0]
    figure, _ = path_length.draw(gradients, "note")
    labels = [text.get_text() for text in figure.axes[0].texts]
    assert labels[:2] == ["LSTM: gone at 512 words", "RNN: gone at 32 words"]
    assert {"LSTM, gate open", "attention"} < set(labels[2:])
    path_length.plt.close(figure)
