"""Rotary positions stretched: what each way does to the turns, by identities in float64."""

import math

import pytest
import torch
import torch.nn.functional as F

from phase1_single_head.order.position_encodings import rotary
from phase2_multi_head.multi_head_attention import merge_heads, split_heads
from phase4_causal.serving import longer
from phase4_causal.serving.longer import AS_TRAINED, INTERPOLATED, NTK, PARTS, ROTARY, TRAINED, CausalAlibi, RotaryHeads
from shared.attention_utils import causal_mask

SIZE = 14  # of a head: its pairs go round 5, 1.4 and less than 1 times in training
close = torch.testing.assert_close


def vectors(length, size=SIZE):
    return torch.randn(length, size, dtype=torch.float64, generator=torch.Generator().manual_seed(length))


@pytest.mark.parametrize("stretch", [1, 2.5, 8])
def test_frequencies_pair_by_pair(stretch):
    """The specification: one pair at a time, in words of the papers."""
    found = {way: longer.frequencies(SIZE, way, stretch).tolist() for way in ROTARY}
    for i, plain in enumerate(found[AS_TRAINED]):
        assert plain == pytest.approx(10000 ** (-2 * i / SIZE))
        assert found[INTERPOLATED][i] == pytest.approx(plain / stretch)
        assert found[NTK][i] == pytest.approx(plain * stretch ** (-i / (SIZE / 2 - 1))), "first: as it was; last: / s"
        rounds = TRAINED * plain / (2 * math.pi)
        slowed = 1 if rounds >= 2 else 0 if rounds <= 1 else rounds - 1  # share of the plain frequency that is kept
        assert found[PARTS][i] == pytest.approx(slowed * plain + (1 - slowed) * plain / stretch)


def test_stretched_by_1_nothing_changes_and_interpolated_places_are_those_of_training():
    x, places, plain = vectors(11), torch.arange(11), longer.frequencies(SIZE).double()
    for way in ROTARY:
        assert torch.equal(longer.frequencies(SIZE, way, 1).double(), plain)
    close(rotary(x, places, plain), rotary(x, places), rtol=0, atol=1e-5)  # those of phase 1, in float32
    slowed = longer.frequencies(SIZE, INTERPOLATED, 4).double()
    close(rotary(x, 4 * places, slowed), rotary(x, places, plain), rtol=0, atol=1e-10)


@pytest.mark.parametrize("way", ROTARY)
def test_scores_depend_on_the_distance_alone_however_stretched(way):
    query, key, turns = vectors(7), vectors(5), longer.frequencies(SIZE, way, 4).double()
    here, there = torch.arange(7), torch.arange(5)
    scores = rotary(query, here, turns) @ rotary(key, there, turns).T
    close(rotary(query, here + 90, turns) @ rotary(key, there + 90, turns).T, scores, rtol=0, atol=1e-10)
    assert (rotary(query, here + 90, turns) @ rotary(key, there, turns).T - scores).abs().max() > 0.1


@pytest.mark.parametrize("way", ROTARY)
def test_heads_are_attention_with_turned_queries_and_keys(way):
    """By complex numbers and torch's own attention; with a mask of words that nobody sees."""
    torch.manual_seed(0)
    module, x = RotaryHeads(3 * SIZE, 3).double(), torch.randn(2, 11, 3 * SIZE, dtype=torch.float64)
    module.way, module.stretch = way, 4
    angle = torch.arange(11)[:, None] * longer.frequencies(SIZE, way, 4).double()

    def turned(heads):
        pairs = torch.view_as_complex(heads.unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten(-2)

    query, key, value = (split_heads(w(x), 3) for w in (module.w_q, module.w_k, module.w_v))
    scale = (0.1 * math.log(4) + 1) ** 2 if way == PARTS else 1
    for mask in (None, torch.arange(11) % 4 != 1):
        seen = causal_mask(11) if mask is None else causal_mask(11) & mask
        heads = F.scaled_dot_product_attention(turned(query) * scale, turned(key), value, attn_mask=seen)
        output, weights = module(x, mask if mask is None else mask.expand(11, 11))
        close(output, module.w_o(merge_heads(heads)), rtol=0, atol=1e-10)
        assert not weights[..., ~seen].any()


def test_alibi_sees_neither_the_future_nor_what_is_hidden():
    weights = CausalAlibi(24, 3)(torch.randn(2, 7, 24), torch.arange(7).expand(7, 7) != 2)[1]
    assert not weights.triu(1).any() and not weights[..., 2].any() and weights[..., 0].all()


def test_masks_and_places_are_made_where_the_words_are():
    x = torch.empty(2, 11, 28, device="meta")
    for make in (RotaryHeads, CausalAlibi):
        output, weights = make(28, 2).to("meta")(x)
        assert (output.device.type, output.shape, weights.shape) == ("meta", x.shape, (2, 2, 11, 11))


def test_one_pair_cannot_be_the_first_and_the_last():
    with pytest.raises(ValueError, match="4 features or more: got 2"):
        longer.frequencies(2, NTK, 4)
    assert longer.frequencies(2, INTERPOLATED, 4).tolist() == [0.25]


def test_tasks_ask_for_what_can_be_known():
    """What a loop over the text would answer, at every place that counts."""
    for texts, answer in (
        (longer.copies, lambda words, i: words[i - 3]),
        (longer.blocks, lambda words, i: words[words[:i].index(words[i]) + 1]),
    ):
        words, wanted, known = texts(5, 64, torch.Generator().manual_seed(0))
        assert known[:, TRAINED:].all() and not known[:, :3].any()
        for n, i in known.nonzero().tolist():
            assert wanted[n, i] == answer(words[n].tolist(), i)


def test_ways_differ_beyond_the_length_of_training_only(monkeypatch):
    monkeypatch.setattr(longer, "STRETCHES", (1, 2))
    found = longer.beyond(0, steps=60)
    copied = [found[f"{way}: {longer.COPY}"] for way in ROTARY]
    assert len({first for first, _ in copied}) == 1 and len({last for _, last in copied}) > 2
