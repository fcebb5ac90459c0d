"""The delta rule: loop, recurrence and chunks are one function, in float64, with gradients; and what it remembers."""

import math

import pytest
import torch
import torch.nn.functional as F

from phase4_causal.long_texts import delta_rule as lesson
from phase4_causal.long_texts.delta_rule import delta_by_loops, delta_rule, delta_rule_recurrent
from phase4_causal.long_texts.linear_attention import CHUNK
from shared.tests.helpers import qkv

WAYS = [delta_rule_recurrent, delta_rule]
close = torch.testing.assert_close


def inputs_of(length, *, leading=(2, 3)):
    """Keys of length 1, and a beta for each."""
    query, key, value = qkv(length, t_q=length, t_k=length, leading=leading, d_k=5, d_v=7)
    beta = torch.rand(*leading, length, dtype=torch.float64, generator=torch.Generator().manual_seed(length))
    return [x.requires_grad_() for x in (query, F.normalize(key, dim=-1), value, beta)]


def assert_same(mine, theirs, inputs):
    """Outputs and gradients."""
    close(mine, theirs, rtol=0, atol=1e-10)
    upstream = torch.randn(mine.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for a, b in zip(*(torch.autograd.grad(output, inputs, upstream) for output in (mine, theirs)), strict=True):
        close(a, b, rtol=1e-10, atol=1e-10, msg="the gradients differ, the outputs do not")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("length", [1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 3])
def test_every_form_is_the_loop(way, length):
    inputs = inputs_of(length, leading=(2,))
    loops = torch.stack([delta_by_loops(*(x[text] for x in inputs)) for text in (0, 1)])
    output, state = way(*inputs)
    assert_same(output, loops, inputs)
    assert state.shape == (2, 5, 7), "the state must not depend on the length"


@pytest.mark.parametrize("way", WAYS)
def test_a_text_read_in_pieces_is_the_whole_text(way):
    """The state is handed on, and gradients go through it."""
    inputs, outputs, state = inputs_of(CHUNK + 9), [], None
    for piece in (slice(7), slice(7, 8), slice(8, CHUNK + 9)):
        output, state = way(*(x[..., piece, :] for x in inputs[:3]), inputs[3][..., piece], state=state)
        outputs.append(output)
    whole, last = delta_rule_recurrent(*inputs)
    close(state, last, rtol=0, atol=1e-10)
    assert_same(torch.cat(outputs, dim=-2), whole, inputs)
    output, state = way(*(x[..., :0, :] for x in inputs[:3]), inputs[3][..., :0])
    assert delta_by_loops(*(x[0, 0, :0] for x in inputs)).shape == (0, 7)
    assert output.shape == (2, 3, 0, 7) and not state.any(), "of no words nothing comes, and nothing is kept"


@pytest.mark.parametrize("way", WAYS)
def test_a_key_gives_what_was_written_last(way):
    """With beta 1, however full the memory is; orthogonal keys leave each other alone; beta 0 writes nothing."""
    query, key, value, beta = (x.detach() for x in inputs_of(11))
    _, state = way(key, key, value, torch.ones_like(beta))
    close(key[..., -1:, :] @ state, value[..., -1:, :], rtol=0, atol=1e-12)
    twice = torch.eye(5, dtype=torch.float64).repeat(2, 1)  # five keys, each written twice
    _, state = way(twice, twice, value[0, 0, :10], torch.ones(10, dtype=torch.float64))
    close(state, value[0, 0, 5:10], rtol=0, atol=1e-12)
    assert not way(query, key, value, torch.zeros_like(beta))[0].any()


@pytest.mark.parametrize("which", [0, 1, 2, 3])
def test_nan_reaches_no_earlier_word_of_the_recurrence(which):
    inputs = [x.detach() for x in inputs_of(11, leading=())]
    before, _ = delta_rule_recurrent(*inputs)
    inputs[which][7] = math.nan
    after, _ = delta_rule_recurrent(*inputs)
    assert torch.equal(after[:7], before[:7]) and after[7].isnan().all()


def test_16_bits_are_summed_in_float32():
    rounded = [x.detach().bfloat16() for x in inputs_of(200)]
    exact, _ = delta_rule_recurrent(*(x.double() for x in rounded))
    close(delta_rule(*rounded)[0], exact.bfloat16(), rtol=2**-7, atol=1e-5)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({0: torch.zeros(3, 5)}, "as many queries as keys: got T_q=3, T_k=6"),
        ({3: torch.zeros(5)}, r"beta has one number for each key, \(6,\): got \(5,\)"),
        ({2: torch.zeros(5, 7)}, "same length T_k: got 6 and 5"),
        ({"state": torch.zeros(7, 5)}, r"has shape \(5, 7\) of .*: got \(7, 5\)"),
        ({"state": torch.zeros(5, 7).double()}, r"torch.float32: got \(5, 7\) of torch.float64"),
    ],
)
def test_what_does_not_fit_is_refused(way, change, message):
    inputs = dict(enumerate((torch.zeros(6, 5), torch.zeros(6, 5), torch.zeros(6, 7), torch.zeros(6)))) | change
    with pytest.raises(ValueError, match=message):
        way(*(inputs[i] for i in range(4)), state=inputs.get("state"))


def test_texts_write_every_key_twice_and_its_newest_value_last():
    keys, values, newest, text = lesson.written_twice(11, torch.Generator().manual_seed(0))
    close(torch.cat([keys, values], dim=1).norm(dim=-1), torch.ones(lesson.TEXTS, 33))
    for order, last in zip(text.tolist(), newest.tolist(), strict=True):
        assert sorted(order) == list(range(22)) and sorted(n % 11 for n in order[:11]) == list(range(11))
        assert {n % 11: n for n in order} == dict(enumerate(last)), "a dictionary keeps what comes last"
    assert 0 < (newest < 11).double().mean() < 1, "whichever value is the newest, it is so by chance"
