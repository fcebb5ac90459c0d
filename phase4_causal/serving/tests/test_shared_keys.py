"""Fewer keys and values: what is kept and refused, beside the oracles; the cards against a reader."""

import pytest
import torch

from phase4_causal.serving.latent_attention import LatentAttention
from phase4_causal.serving.shared_keys import KEPT, WAYS
from shared.measure import count_operations
from shared.tasks import CardReader as Cards

B, H, T, D_K, D_C, D_R = 2, 3, 7, 5, 11, 4
ATTENTION, X = LatentAttention(H * D_K, H, D_C, D_R).double(), torch.randn(B, T, H * D_K, dtype=torch.float64)


def test_absorbed_makes_no_keys_of_the_past():
    """One more word in the cache costs its products with the query and the weights, and no product with a matrix."""
    costs = [count_operations(ATTENTION.decode, X[:, :1], X.new_zeros(B, past, D_C + D_R)) for past in (13, 14)]
    assert costs[1] - costs[0] == 2 * B * H * (D_C + D_R + D_C)


def test_latent_sizes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"d_rotary must be even.*: got 3"):
        LatentAttention(15, 3, 11, 3)
    for shape in ((B, 4), (B, 4, D_C), (B + 1, 4, D_C + D_R), (1, B, 4, D_C + D_R)):
        with pytest.raises(ValueError, match=rf"kept must be \({B}, T_past, {D_C + D_R}\): got \({shape[0]}, "):
            ATTENTION.decode(X[:, :1], X.new_zeros(shape))


def test_numbers_kept():
    modules = {way: make(64, 4) for way, make in WAYS.items()}
    latent = modules.pop("latent").project(torch.zeros(1, 1, 64))[2]
    kept = {way: module.w_k.out_features + module.w_v.out_features for way, module in modules.items()}
    assert kept | {"latent": latent.size(-1)} == KEPT


def test_cards_have_one_answer():
    shown_first, blank = Cards.COLOURS * Cards.LETTERS, Cards.COLOURS * Cards.LETTERS + Cards.DIGITS
    for rows, wanted in zip(*(part.tolist() for part in Cards.draw(5, torch.Generator().manual_seed(0))), strict=True):
        shown = {letter: digit - shown_first for *letters, digit in rows[: Cards.CARDS] for letter in letters}
        assert len(shown) == Cards.CARDS * Cards.COLOURS, "a letter of a colour stands on one card only"
        assert [[shown[letter] for letter in letters] for *letters, _ in rows[Cards.CARDS :]] == wanted
        assert {row[-1] for row in rows[Cards.CARDS :]} == {blank}, "questions show no digit"
