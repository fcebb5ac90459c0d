"""Encodings of positions against published formulas, complex numbers and loops; tasks that are all order."""

import math

import pytest
import torch

from phase1_single_head.order import positions
from phase1_single_head.order.position_encodings import (
    RotarySelfAttention,
    against_the_fall,
    order_gap,
    rotary,
    similarity_by_distance,
    sinusoidal_by_loops,
    twin_gaps,
)
from phase1_single_head.self_attention import SelfAttention
from shared.attention_utils import causal_mask
from shared.evidence.claims import Measured, all_claims
from shared.tests.helpers import D_K, D_V, T_K, T_Q, B, H, close
from shared.toy_model import sinusoidal_positions


def vectors(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("size", [2, 6, 22])
def test_rotary_is_a_product_of_complex_numbers(size):
    """The definition of Su et al. 2021, section 3.2.1: pair i, read as x + iy, times exp(i position theta_i)."""
    x, places = vectors(B, H, T_K, size), torch.tensor([0, 1, 5, 7, 11, 400, 3])
    expected = torch.empty_like(x)
    for t, position in enumerate(places.tolist()):
        for i in range(size // 2):
            turn = complex(math.cos(position * 10000 ** (-2 * i / size)), math.sin(position * 10000 ** (-2 * i / size)))
            pair = torch.complex(x[..., t, 2 * i], x[..., t, 2 * i + 1]) * turn
            expected[..., t, 2 * i], expected[..., t, 2 * i + 1] = pair.real, pair.imag
    close(rotary(x, places), expected, rtol=0, atol=1e-12)


def test_rotary_scores_depend_on_the_offset_alone():
    query, key, here = vectors(T_K, 22), vectors(T_K, 22, seed=1), torch.arange(T_K)
    scores = rotary(query, here) @ rotary(key, here).T
    close(rotary(query, here + 100) @ rotary(key, here + 100).T, scores, rtol=0, atol=1e-10)
    assert (rotary(query, here + 100) @ rotary(key, here).T - scores).abs().max() > 0.1, "no position in the scores"
    close(scores[2, 5], query[2] @ rotary(key[5:6], torch.tensor([3]))[0], rtol=0, atol=1e-12)  # 5 - 2 = 3


def test_rotary_refuses_what_it_cannot_turn():
    with pytest.raises(ValueError, match="even: got 11"):
        rotary(vectors(T_K, D_K), torch.arange(T_K))
    with pytest.raises(ValueError, match=r"\(7,\).*\(5,\)"):
        rotary(vectors(T_K, 22), torch.arange(T_Q))
    with pytest.raises(ValueError, match="even: got 11"):
        RotarySelfAttention(D_V, D_K).double()(vectors(B, T_K, D_V))


def same_weights(d_k=22, d_v=D_V):
    """A rotary and a plain head with the same parameters; d_model is odd, only d_k must be even."""
    torch.manual_seed(0)
    plain = SelfAttention(D_K, d_k, d_v, output_projection=True).double()
    turning = RotarySelfAttention(D_K, d_k, d_v, output_projection=True).double()
    turning.load_state_dict(plain.state_dict())
    return turning, plain


@pytest.mark.parametrize("mask", [None, causal_mask(T_K)])
def test_rotary_attention_without_turning_is_self_attention(mask):
    turning, plain = same_weights()
    x = vectors(B, T_K, D_K)
    for place in (0, 19):  # all at one place: all offsets are 0
        for ours, theirs in zip(turning(x, mask, torch.full((T_K,), place)), plain(x, mask), strict=True):
            close(ours, theirs, rtol=0, atol=1e-12)
    assert (turning(x, mask)[0] - plain(x, mask)[0]).abs().max() > 1e-3, "nothing was turned"


def test_rotary_attention_by_loops():
    """One pair of words at a time: the score takes the key turned by the offset, the value is not turned."""
    turning, _ = same_weights()
    x = vectors(1, T_K, D_K)
    query, key, value = (w(x)[0] for w in (turning.w_q, turning.w_k, turning.w_v))
    weights = torch.empty(T_K, T_K, dtype=torch.float64)
    for i in range(T_K):
        scores = [query[i] @ rotary(key[j : j + 1], torch.tensor([j - i]))[0] / math.sqrt(22) for j in range(T_K)]
        weights[i] = torch.stack(scores).softmax(dim=0)
    output, found = turning(x)
    close(found[0, 0], weights, rtol=0, atol=1e-12)
    close(output[0], turning.w_o(weights @ value), rtol=0, atol=1e-12)
    close(turning(x, None, torch.arange(T_K) + 1000)[0], output, rtol=0, atol=1e-9)


def test_rotary_attention_respects_masks():
    turning, _ = same_weights()
    x = vectors(B, T_K, D_K)
    mask = (torch.rand(B, 1, T_K, T_K, generator=torch.Generator().manual_seed(1)) < 0.6) & causal_mask(T_K)
    mask[..., 0, :] = False  # the first query sees nothing
    output, weights = turning(x, mask)
    assert output.shape == x.shape and weights.shape == (B, 1, T_K, T_K)
    assert (weights[~mask] == 0).all() and (weights[mask] > 0).all() and (output[:, 0] == 0).all()
    changed = x.clone()
    changed[:, -1] += 1
    close(turning(changed, causal_mask(T_K))[0][:, :-1], turning(x, causal_mask(T_K))[0][:, :-1], rtol=0, atol=0)


def test_rotary_attention_gradient():
    turning, _ = same_weights(d_k=2, d_v=3)
    x = vectors(1, T_Q, D_K).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: turning(x, causal_mask(T_Q))[0], (x,))


@pytest.mark.parametrize("d_model", [2, 3, 12, 13, 64])
def test_sinusoidal_positions_are_the_published_formula(d_model):
    """Vaswani et al. 2017, section 3.5, odd sizes too; and the specification says the same."""
    angles = [[t / 10000 ** (2 * i / d_model) for i in range((d_model + 1) // 2)] for t in range(23)]
    rows = [[f(angle) for angle in row for f in (math.sin, math.cos)][:d_model] for row in angles]
    close(sinusoidal_positions(23, d_model).double(), torch.tensor(rows, dtype=torch.float64), rtol=0, atol=1e-5)
    close(sinusoidal_by_loops(23, d_model), torch.tensor(rows, dtype=torch.float64), rtol=0, atol=1e-12)


def test_sinusoidal_rows_have_one_length_and_their_similarity_depends_on_distance():
    encoding = sinusoidal_by_loops(23, 12)
    close(encoding.norm(dim=-1), torch.full((23,), math.sqrt(6), dtype=torch.float64))
    mean, spread = similarity_by_distance(encoding)
    close(mean[4], encoding[3] @ encoding[7])
    assert spread < 1e-12
    mean, spread = similarity_by_distance(torch.tensor([[1.0], [2.0], [3.0]]))  # by hand: 1 4 9, then 2 6, then 3
    assert mean.tolist() == pytest.approx([14 / 3, 4, 3]) and spread == pytest.approx(9 - 14 / 3)


def test_sinusoidal_similarity_is_the_rotary_score_of_equal_words():
    ones = torch.tensor([1.0, 0.0], dtype=torch.float64).repeat(23, 6)
    turned = rotary(ones, torch.arange(23))
    close(turned @ turned.T, sinusoidal_by_loops(23, 12) @ sinusoidal_by_loops(23, 12).T, rtol=0, atol=1e-12)


def test_against_the_fall_by_hand():
    """5 3 4 1: one of three steps grows, and of the six pairs of distances only (3, 4)."""
    assert against_the_fall(torch.tensor([5.0, 3.0, 4.0, 1.0])) == pytest.approx((1 / 3, 1 / 6))
    assert against_the_fall(torch.tensor([5.0, 4.0, 3.0])) == (0, 0)
    assert against_the_fall(torch.tensor([3.0, 4.0, 5.0])) == (1, 1)


def test_nearer_positions_are_more_similar_on_average_only():
    """d_model = 64: from 32 down to a distance of 5, then up and down in waves."""
    similarity, _ = similarity_by_distance(sinusoidal_by_loops(64, 64))
    assert similarity[0] == pytest.approx(32) and similarity[5] < similarity[6]
    assert similarity[:6].tolist() == sorted(similarity[:6].tolist(), reverse=True)
    steps, pairs = against_the_fall(similarity)
    assert 0.3 < steps < 0.4 and 0.1 < pairs < 0.2


def head(mask=None, encoding=0.0, attention_class=SelfAttention):
    torch.manual_seed(0)
    attention = attention_class(D_K, 22, output_projection=True).double()

    def attend(words):
        output, weights = attention((words + encoding)[None], mask)
        return output[0], weights[0, 0]

    return attend


@torch.no_grad()
def test_only_attention_without_positions_and_mask_is_blind_to_order():
    words, order = vectors(T_K, D_K), torch.tensor([3, 0, 6, 2, 5, 1, 4])
    assert order_gap(head(), words, order) < 1e-12
    for attend in (
        head(causal_mask(T_K)),
        head(encoding=sinusoidal_by_loops(T_K, D_K)),
        head(attention_class=RotarySelfAttention),
    ):
        assert order_gap(attend, words, order) > 0.01
        assert order_gap(attend, words, torch.arange(T_K)) == 0


@torch.no_grad()
def test_the_same_word_twice():
    words = vectors(T_K, D_K)
    words[5] = words[1]
    alone, masked = twin_gaps(head(), words, 1, 5), twin_gaps(head(causal_mask(T_K)), words, 1, 5)
    assert max(alone.values()) < 1e-12
    assert masked["outputs"] > 0.01 and masked["rows"] > 0.01
    assert masked["columns"] < 1e-12, "a word that sees both must give both the same"
    assert min(twin_gaps(head(encoding=sinusoidal_by_loops(T_K, D_K)), words, 1, 5).values()) > 1e-3
    assert min(twin_gaps(head(), words, 1, 4).values()) > 1e-3, "different words must differ"


def test_answers_by_hand():
    symbols = torch.tensor([[7, 1, 8, 2, 9]])
    assert positions.answers(positions.REVERSE, symbols).tolist() == [[9, 2, 8, 1, 7]]
    assert positions.answers(positions.COPY, symbols)[:, positions.FIRST_PLACE[positions.COPY] :].tolist() == [[7, 1]]


def test_everything_but_the_encoding_starts_alike():
    models = {}
    for name in positions.ENCODINGS:
        torch.manual_seed(1)
        models[name] = positions.SymbolMover(name)
    for name, model in models.items():
        for key, tensor in model.state_dict().items():
            assert torch.equal(tensor, models["none"].state_dict()[key]) == (
                key != "positions" or name in ("none", "rotary")
            ), (name, key)
        assert model.positions.requires_grad == (name == "learned")


def test_without_positions_the_answers_are_shuffled_with_the_symbols():
    """So that no training can teach it to reverse: equal symbols get equal answers, wherever they stand."""
    torch.manual_seed(0)
    symbols = torch.randint(positions.SYMBOLS, (B, 16), generator=torch.Generator().manual_seed(0))
    for name in positions.ENCODINGS:
        model = positions.SymbolMover(name).double()
        gap = (model(symbols.flip(dims=[1]))[0] - model(symbols)[0].flip(dims=[1])).abs().max().item()
        assert (gap < 1e-12) == (name == "none"), (name, gap)


def test_a_few_steps_teach_distance_with_rotary_and_nothing_without_positions():
    rotary_model, blind = (positions.train(name, positions.COPY, 0, steps=60) for name in ("rotary", "none"))
    assert positions.right(rotary_model, positions.COPY) > 0.9
    assert positions.right(blind, positions.COPY) < positions.most_frequent() + 0.05


@pytest.mark.parametrize(("rotary_reverse", "said"), [(0.24, "Copying from a distance"), (1.0, "9 steps are too few")])
def test_title_says_what_was_found(rotary_reverse, said):
    longer = {f"{name}, {positions.COPY}, of {n}": 0.24 for name in positions.ENCODINGS for n in positions.TEST_LENGTHS}
    claims = tuple(claim for claim in all_claims() if claim.script.endswith("order/positions.py"))
    run = Measured(longer | positions.made(rotary_reverse=rotary_reverse), claims)
    figure, _ = positions.draw([run], 9)
    assert claims and figure.get_suptitle().startswith(said)
    positions.plt.close(figure)
