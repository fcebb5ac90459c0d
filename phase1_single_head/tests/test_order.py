"""Encodings of positions against published formulas and loops; tasks that are all order."""

import pytest
import torch
import torch.nn.functional as F

from phase1_single_head.order import positions, waves
from phase1_single_head.order.position_encodings import (
    RotarySelfAttention,
    rotary,
    sinusoidal_by_loops,
)
from phase1_single_head.order.reverse_and_copy import COPY, FIRST_PLACE, REVERSE, SymbolMover
from phase1_single_head.self_attention import SelfAttention
from shared.attention_utils import causal_mask
from shared.tests.helpers import D_K, T_K, B, near
from shared.toy_language import TOY_SENTENCE, VOCABULARY, encode
from shared.toy_model import sinusoidal_positions


def vectors(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_rotary_scores_depend_on_the_offset_alone():
    query, key, here = vectors(T_K, 22), vectors(T_K, 22, seed=1), torch.arange(T_K)
    scores = rotary(query, here) @ rotary(key, here).T
    further = rotary(query, here + 100)
    near(further @ rotary(key, here + 100).T, scores, share=1e-10)
    assert (further @ rotary(key, here).T - scores).abs().max() > 0.1, "no position in the scores"
    near(scores[2, 5], query[2] @ rotary(key[5:6], torch.tensor([3]))[0])  # 5 - 2 = 3


@pytest.mark.parametrize("d_model", [2, 3, 64])
def test_sinusoidal_positions_are_the_published_formula(d_model):
    """Vaswani et al. 2017, section 3.5, odd sizes too; and the specification says the same."""
    i = torch.arange((d_model + 1) // 2).double()
    angles = torch.arange(23)[:, None] / 10000 ** (2 * i / d_model)
    expected = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)[:, :d_model]
    near(sinusoidal_positions(23, d_model).double(), expected, share=1e-5)
    near(sinusoidal_by_loops(23, d_model), expected)


def test_sinusoidal_positions_are_less_alike_with_the_distance_on_average_but_rise_now_and_then():
    """They rise at 6 places first: the fastest waves have then gone round once, 2π positions."""
    rates = 10000 ** (-2 * torch.arange(32).double() / 64)
    by_distance = torch.cos(torch.arange(64)[:, None] * rates).mean(dim=1)
    near(waves.likeness(sinusoidal_by_loops(64, 64))[0], by_distance)
    of_eight = by_distance.view(8, 8).mean(dim=1)  # eight distances side by side
    assert of_eight[:5].diff().lt(0).all() and of_eight[0] > 0.7 > of_eight[1:].max()
    assert waves.rises(by_distance)[:8] == [6, 11, 12, 17, 18, 23, 24, 25]
    assert by_distance[32] - by_distance[28] > 0.1


PLAIN = SelfAttention(D_K, 22).double()
TURNING = RotarySelfAttention(D_K, 22).double()


@torch.no_grad()
@pytest.mark.parametrize(
    ("attention", "mask", "added", "blind"),
    [
        (PLAIN, None, 0.0, True),
        (PLAIN, causal_mask(T_K), 0.0, False),
        (PLAIN, None, sinusoidal_by_loops(T_K, D_K), False),
        (TURNING, None, 0.0, False),
    ],
)
def test_only_attention_without_positions_and_mask_is_blind_to_order(attention, mask, added, blind):
    words, order = vectors(T_K, D_K), torch.tensor([3, 0, 6, 2, 5, 1, 4])
    before, _ = attention((words + added)[None], mask)
    after, _ = attention((words[order] + added)[None], mask)
    assert ((after - before[:, order]).abs().max() < 1e-12) == blind  # C119


@torch.no_grad()
def test_without_positions_the_two_the_are_one():
    """They get the same output and the same scores, whatever the weights are."""
    x = vectors(len(VOCABULARY), D_K)[encode(TOY_SENTENCE.split())]
    output, weights = PLAIN(x[None])
    near(output[0, 4], output[0, 0])
    near(weights[0, 0, :, 4], weights[0, 0, :, 0])


def test_answers_by_hand():
    symbols = torch.tensor([[7, 1, 8, 2, 9]])
    assert SymbolMover.answers(REVERSE, symbols).tolist() == [[9, 2, 8, 1, 7]]
    assert SymbolMover.answers(COPY, symbols)[:, FIRST_PLACE[COPY] :].tolist() == [[7, 1]]


@torch.no_grad()
@pytest.mark.parametrize("name", positions.COLORS)
def test_all_but_the_encoding_starts_alike_and_without_one_answers_go_with_their_symbols(name):
    """So no training can teach it to reverse: equal symbols get equal answers everywhere."""
    model = positions.train_encoding(name, REVERSE, seed=1, steps=0).double()
    other = positions.train_encoding("none", REVERSE, seed=1, steps=0).double().state_dict()
    assert isinstance(model.block.attention, RotarySelfAttention) == (name == "rotary")
    assert model.positions.requires_grad == (name == "learned")
    different = [key for key, value in model.state_dict().items() if not value.equal(other[key])]
    assert different == (["positions"] if name in ("sinusoidal", "learned") else [])
    symbols = SymbolMover.test_strings(16)[:B]
    gap = model(symbols.flip(dims=[1])) - model(symbols).flip(dims=[1])
    assert (gap.abs().max() < 1e-12) == (name == "none")


def test_right_answers_are_counted_where_there_are_some_and_of_longer_strings_beyond_the_training():
    def knows_half(symbols):
        """The answers of a copy to places 0 to 15, and one that is wrong to those beyond."""
        answers = SymbolMover.answers(COPY, symbols) + (torch.arange(symbols.size(1)) >= 16)
        answers[:, :3] = symbols[:, :3] + 5  # at these there is nothing to say
        return F.one_hot(answers % SymbolMover.SYMBOLS, SymbolMover.SYMBOLS)

    assert positions.answers_right(knows_half, COPY) == 1
    assert positions.answers_right(knows_half, COPY, 32) == 0
