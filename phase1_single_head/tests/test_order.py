"""Encodings of positions against published formulas, complex numbers and loops; tasks that are all order."""

import math

import pytest
import torch

from phase1_single_head.order import positions
from phase1_single_head.order.position_encodings import RotarySelfAttention, alibi, rotary, sinusoidal_by_loops
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
    assert (rotary(query, here + 100) @ rotary(key, here).T - scores).abs().max() > 0.1, "no position in the scores"
    near(scores[2, 5], query[2] @ rotary(key[5:6], torch.tensor([3]))[0])  # 5 - 2 = 3


def test_rotary_refuses_what_it_cannot_turn():
    with pytest.raises(ValueError, match="even: got 11"):
        rotary(vectors(T_K, D_K), torch.arange(T_K))
    with pytest.raises(ValueError, match=r"\(7,\).*\(5,\)"):
        rotary(vectors(T_K, 22), torch.arange(T_Q))


def test_a_rotary_head_turns_queries_and_keys_and_no_values():
    """A word alone has no offset to anybody: that is SelfAttention."""
    torch.manual_seed(0)
    plain = SelfAttention(D_K, 22, D_V, output_projection=True).double()
    turning = RotarySelfAttention(D_K, 22, D_V, output_projection=True).double()
    turning.load_state_dict(plain.state_dict())
    x, mask = vectors(B, T_K, D_K), causal_mask(T_K)
    for ours, theirs in zip(turning(x[:, :1]), plain(x[:, :1]), strict=True):
        near(ours, theirs)
    assert (turning(x, mask)[0] - plain(x, mask)[0]).abs().max() > 1e-3, "nothing was turned"


@pytest.mark.parametrize("d_model", [2, 3, 12, 13, 64])
def test_sinusoidal_positions_are_the_published_formula(d_model):
    """Vaswani et al. 2017, section 3.5, odd sizes too; and the specification says the same."""
    angles = [[t / 10000 ** (2 * i / d_model) for i in range((d_model + 1) // 2)] for t in range(23)]
    rows = [[f(angle) for angle in row for f in (math.sin, math.cos)][:d_model] for row in angles]
    near(sinusoidal_positions(23, d_model).double(), torch.tensor(rows, dtype=torch.float64), share=1e-5)
    near(sinusoidal_by_loops(23, d_model), torch.tensor(rows, dtype=torch.float64))


def test_sinusoidal_similarity_is_the_rotary_score_of_equal_words():
    turned = rotary(torch.tensor([1.0, 0.0], dtype=torch.float64).repeat(23, 6), torch.arange(23))
    near(turned @ turned.T, sinusoidal_by_loops(23, 12) @ sinusoidal_by_loops(23, 12).T)


def test_nearer_positions_are_more_similar_on_average_only():
    """d_model = 64: from 32 down to a distance of 5, then up and down in waves; up at about a third of the steps."""
    encoding = sinusoidal_by_loops(64, 64)
    similarity = encoding @ encoding[0]
    assert similarity[0] == pytest.approx(32) and similarity[5] < similarity[6]
    assert similarity[:6].tolist() == sorted(similarity[:6].tolist(), reverse=True)
    assert 0.3 < (similarity.diff() > 0).double().mean() < 0.4


def test_alibi_by_loops():
    slopes = torch.tensor([0.5, 0.25])
    for h, i, j in ((h, i, j) for h in range(2) for i in range(5) for j in range(5)):
        assert alibi(5, slopes)[h, i, j] == -slopes[h] * abs(i - j)


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
        assert ((after - before[order]).abs().max() < 1e-12) == blind


def test_answers_by_hand():
    symbols = torch.tensor([[7, 1, 8, 2, 9]])
    assert SymbolMover.answers(REVERSE, symbols).tolist() == [[9, 2, 8, 1, 7]]
    assert SymbolMover.answers(COPY, symbols)[:, SymbolMover.first(COPY) :].tolist() == [[7, 1]]


def make_head(d_model):
    return SelfAttention(d_model, output_projection=True)


def test_everything_but_the_encoding_starts_alike():
    models = {}
    for name in positions.COLORS:
        torch.manual_seed(1)
        models[name] = SymbolMover(name, make_head)
    for name, model in models.items():
        for key, tensor in model.state_dict().items():
            alike = key != "positions" or name in ("none", "rotary")
            assert torch.equal(tensor, models["none"].state_dict()[key]) == alike, (name, key)
        assert model.positions.requires_grad == (name == "learned")


def test_without_positions_the_answers_are_shuffled_with_the_symbols():
    """So that no training can teach it to reverse: equal symbols get equal answers, wherever they stand."""
    symbols = SymbolMover.test_strings(16)[:B]
    torch.manual_seed(0)
    for name in ("none", "sinusoidal", "learned"):
        model = SymbolMover(name, make_head).double()
        gap = (model(symbols.flip(dims=[1])) - model(symbols).flip(dims=[1])).abs().max().item()
        assert (gap < 1e-12) == (name == "none"), (name, gap)


def test_a_few_steps_teach_distance_with_rotary_and_nothing_without_positions():
    rotary_model, blind = (positions.train(name, COPY, 0, steps=60) for name in ("rotary", "none"))
    assert positions.right(rotary_model, COPY) > 0.9
    assert positions.right(blind, COPY) < positions.most_frequent() + 0.05
