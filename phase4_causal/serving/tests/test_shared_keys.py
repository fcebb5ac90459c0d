"""Fewer keys and values: latent attention against loops and against itself absorbed; the cards against a reader."""

import itertools
import math

import pytest
import torch

from phase1_single_head.order.position_encodings import rotary
from phase4_causal.causal_attention import CausalSelfAttention
from phase4_causal.serving import shared_keys
from phase4_causal.serving.latent_attention import LatentAttention
from phase4_causal.serving.shared_keys import CARDS, HEADS, KEPT, LATENT, MAKE, CausalGroupedAttention
from shared.attention_utils import padding_mask
from shared.measure import count_operations

B, H, T, D_K, D_C, D_R = 2, 3, 7, 5, 11, 4


@pytest.fixture
def attention():
    torch.manual_seed(0)
    return LatentAttention(H * D_K, H, D_C, D_R).double()


@pytest.fixture
def x():
    return torch.randn(B, T, H * D_K, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def by_loops(attention, x, lengths):
    """One query of one head at a time; output (B, T, d_model), weights (B, H, T, T)."""
    output, weights = torch.zeros_like(x), x.new_zeros(B, H, T, T)
    for b, i, h in itertools.product(range(B), range(T), range(H)):
        past, head, turned = (
            x[b, : min(i + 1, lengths[b])],
            slice(h * D_K, h * D_K + D_K),
            slice(h * D_R, h * D_R + D_R),
        )
        c, places = attention.w_down(past), torch.arange(len(past))
        scores = attention.w_uk(c)[:, head] @ attention.w_q(x[b, i])[head]
        query = rotary(attention.w_q_rotary(x[b, i])[None, turned], torch.tensor([i]))[0]
        scores += rotary(attention.w_k_rotary(past), places) @ query
        weights[b, h, i, places] = (scores / math.sqrt(D_K + D_R)).softmax(dim=0)
        output[b, i, head] = weights[b, h, i, places] @ attention.w_uv(c)[:, head]
    return attention.w_o(output), weights


@torch.no_grad()
def test_latent_is_its_specification(attention, x):
    mine = attention(x, padding_mask(torch.tensor([T, 4]), T))
    torch.testing.assert_close(mine, by_loops(attention, x, [T, 4]), rtol=0, atol=1e-10)


@torch.no_grad()
@pytest.mark.parametrize("chunks", [[1] * T, [3, 2, 2], [5, 1, 1], [T]])
def test_absorbed_is_the_readable_form(attention, x, chunks):
    kept, outputs = x.new_empty(B, 0, D_C + D_R), []
    for part in x.split(chunks, dim=1):
        output, kept = attention.decode(part, kept)
        outputs.append(output)
    torch.testing.assert_close(torch.cat(outputs, dim=1), attention(x)[0], rtol=0, atol=1e-10)
    assert kept.shape == (B, T, D_C + D_R)


def test_absorbed_makes_no_keys_of_the_past(attention, x):
    """One more word in the cache costs its products with the query and the weights, and no product with a matrix."""
    costs = [count_operations(attention.decode, x[:, :1], x.new_zeros(B, past, D_C + D_R)) for past in (13, 14)]
    assert costs[1] - costs[0] == 2 * B * H * (D_C + D_R + D_C)


@torch.no_grad()
def test_grouped_with_all_groups_is_causal_multi_head(x):
    multi_head = CausalSelfAttention(H * D_K, H, bias=False).double()
    grouped = CausalGroupedAttention(H * D_K, H, H, bias=False).double()
    grouped.copy_weights(multi_head)
    mask = padding_mask(torch.tensor([T, 4]), T)
    torch.testing.assert_close(grouped(x, mask), multi_head(x, mask), rtol=0, atol=1e-12)


def test_numbers_kept():
    modules = {way: make(shared_keys.D_MODEL, HEADS) for way, make in MAKE.items()}
    latent = modules.pop(LATENT)
    found = {way: module.w_k.out_features + module.w_v.out_features for way, module in modules.items()}
    found[LATENT] = latent.project(torch.zeros(1, 1, shared_keys.D_MODEL))[2].size(-1)
    assert found == KEPT == {"multi-head": 128, "grouped": 64, "multi-query": 32, LATENT: 32}


def test_cards_have_one_answer():
    symbols, answers = shared_keys.cards(5, torch.Generator().manual_seed(0))
    for rows, wanted in zip(symbols.tolist(), answers.tolist(), strict=True):
        shown = {letter: digit for *letters, digit in rows[:CARDS] for letter in letters}
        assert len(shown) == CARDS * shared_keys.COLOURS, "a letter of a colour stands on one card only"
        first = shared_keys.COLOURS * shared_keys.LETTERS
        found = [[shown[letter] - first for letter in letters] for *letters, _ in rows[CARDS:]]
        assert found == wanted and {row[-1] for row in rows[CARDS:]} == {first + shared_keys.DIGITS}
