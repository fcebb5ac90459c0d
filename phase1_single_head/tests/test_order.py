"""Encodings of positions against published formulas and loops; tasks that are all order."""

import math

import pytest
import torch
import torch.nn.functional as F

from phase1_single_head.order import positions, waves
from phase1_single_head.order.position_encodings import (
    RotarySelfAttention,
    rotary,
    sinusoidal_by_loops,
)
from phase1_single_head.self_attention import SelfAttention
from shared.attention_utils import causal_mask
from shared.tasks import COPY, REVERSE, SymbolMover
from shared.tests.helpers import D_K, D_V, T_K, T_Q, B, near
from shared.toy_model import sinusoidal_positions


def vectors(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_rotary_scores_depend_on_the_offset_alone():
    query, key, here = vectors(T_K, 22), vectors(T_K, 22, seed=1), torch.arange(T_K)
    scores = rotary(query, here) @ rotary(key, here).T
    near(rotary(query, here + 100) @ rotary(key, here + 100).T, scores, share=1e-10)
    assert (rotary(query, here + 100) @ rotary(key, here).T - scores).abs().max() > 0.1, (
        "no position in the scores"
    )
    near(scores[2, 5], query[2] @ rotary(key[5:6], torch.tensor([3]))[0])  # 5 - 2 = 3


def test_rotary_refuses_what_it_cannot_turn():
    with pytest.raises(ValueError, match="even: got 11"):
        rotary(vectors(T_K, D_K), torch.arange(T_K))
    with pytest.raises(ValueError, match=r"\(7,\).*\(5,\)"):
        rotary(vectors(T_K, 22), torch.arange(T_Q))


def test_a_word_that_sees_itself_alone_has_no_offset_to_anybody():
    torch.manual_seed(0)
    plain = SelfAttention(D_K, 22, D_V, output_projection=True).double()
    turning = RotarySelfAttention(D_K, 22, D_V, output_projection=True).double()
    turning.load_state_dict(plain.state_dict())
    x = vectors(B, T_K, D_K)
    near(turning(x, torch.eye(T_K).bool())[0], plain(x, torch.eye(T_K).bool())[0])


@pytest.mark.parametrize("d_model", [2, 3, 64])
def test_sinusoidal_positions_are_the_published_formula(d_model):
    """Vaswani et al. 2017, section 3.5, odd sizes too; and the specification says the same."""
    angles = [
        [t / 10000 ** (2 * i / d_model) for i in range((d_model + 1) // 2)] for t in range(23)
    ]
    rows = [[f(angle) for angle in row for f in (math.sin, math.cos)][:d_model] for row in angles]
    near(
        sinusoidal_positions(23, d_model).double(),
        torch.tensor(rows, dtype=torch.float64),
        share=1e-5,
    )
    near(sinusoidal_by_loops(23, d_model), torch.tensor(rows, dtype=torch.float64))


def test_sinusoidal_similarity_is_the_rotary_score_of_equal_words():
    turned = rotary(torch.tensor([1.0, 0.0], dtype=torch.float64).repeat(23, 6), torch.arange(23))
    near(turned @ turned.T, sinusoidal_by_loops(23, 12) @ sinusoidal_by_loops(23, 12).T)


def test_likeness_is_the_cosine_of_each_pair():
    ours = vectors(T_K, D_K)
    pairs = [[F.cosine_similarity(one, other, dim=0) for other in ours] for one in ours]
    near(waves.likeness(ours), torch.tensor(pairs, dtype=torch.float64))


def test_sinusoidal_positions_are_less_alike_with_the_distance_on_average_but_rise_now_and_then():
    """Of 64 numbers, first at a distance of 6: the fastest waves have then gone round once, 2π positions."""  # C135
    rates = [10000 ** (-2 * i / 64) for i in range(32)]
    by_formula = [sum(math.cos(distance * rate) for rate in rates) / 32 for distance in range(64)]
    cosines = waves.likeness(sinusoidal_by_loops(64, 64))
    for distance, expected in enumerate(by_formula):
        near(
            cosines.diagonal(distance), torch.full((64 - distance,), expected, dtype=torch.float64)
        )
    of_eight = (
        cosines[0].view(8, 8).mean(dim=1)
    )  # means of eight distances side by side: (64,) -> (8,)
    assert of_eight[:5].diff().lt(0).all() and of_eight[0] > 0.7 > of_eight[1:].max()
    assert waves.rises(cosines[0])[:8] == [6, 11, 12, 17, 18, 23, 24, 25]
    assert cosines[0, 32] - cosines[0, 28] > 0.1


def test_rises_by_hand():
    assert waves.rises(torch.tensor([5.0, 3.0, 4.0, 4.0, 7.0, 1.0])) == [2, 4]


@torch.no_grad()
def test_only_attention_without_positions_and_mask_is_blind_to_order():
    torch.manual_seed(0)
    words, order = vectors(T_K, D_K), torch.tensor([3, 0, 6, 2, 5, 1, 4])
    plain, turning = (kind(D_K, 22).double() for kind in (SelfAttention, RotarySelfAttention))
    for attention, mask, added, blind in (
        (plain, None, 0.0, True),
        (plain, causal_mask(T_K), 0.0, False),
        (plain, None, sinusoidal_by_loops(T_K, D_K), False),
        (turning, None, 0.0, False),
    ):
        before, after = (attention((x + added)[None], mask)[0][0] for x in (words, words[order]))
        assert ((after - before[order]).abs().max() < 1e-12) == blind  # C118, C119


def test_answers_by_hand():
    symbols = torch.tensor([[7, 1, 8, 2, 9]])
    assert SymbolMover.answers(REVERSE, symbols).tolist() == [[9, 2, 8, 1, 7]]
    assert SymbolMover.answers(COPY, symbols)[:, SymbolMover.first(COPY) :].tolist() == [[7, 1]]


@torch.no_grad()
def test_everything_but_the_encoding_starts_alike_and_without_one_the_answers_are_shuffled_with_the_symbols():
    """So that no training can teach it to reverse: equal symbols get equal answers, wherever they stand."""
    models = {
        name: positions.train_encoding(name, REVERSE, seed=1, steps=0).double()
        for name in positions.COLORS
    }
    symbols = SymbolMover.test_strings(16)[:B]
    for name, model in models.items():
        assert isinstance(model.block.attention, RotarySelfAttention) == (name == "rotary")
        assert model.positions.requires_grad == (name == "learned")
        for key, tensor in model.state_dict().items():
            alike = key != "positions" or name in ("none", "rotary")
            assert torch.equal(tensor, models["none"].state_dict()[key]) == alike, (name, key)
        gap = (model(symbols.flip(dims=[1])) - model(symbols).flip(dims=[1])).abs().max().item()
        assert (gap < 1e-12) == (name == "none"), (name, gap)


def test_right_answers_are_counted_where_there_are_some_and_of_longer_strings_beyond_the_training():
    def knows_half(symbols):
        """The answers of a copy to places 0 to 15, and one that is wrong to those beyond."""
        said = SymbolMover.answers(COPY, symbols) + (torch.arange(symbols.size(1)) >= 16)
        said[:, :3] = symbols[:, :3] + 5  # at these there is nothing to say
        return F.one_hot(said % SymbolMover.SYMBOLS, SymbolMover.SYMBOLS)

    assert (
        positions.answers_right(knows_half, COPY),
        positions.answers_right(knows_half, COPY, 32),
    ) == (1, 0)
    commonest = [
        max(row.count(symbol) for symbol in row) for row in SymbolMover.test_strings(16).tolist()
    ]
    assert positions.most_frequent() == pytest.approx(sum(commonest) / 100 / 16)
