"""What the mask does to patterns: against plain loops, heads made by hand, untrained models; rules on made numbers."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from phase2_multi_head.multi_head_attention import RECIPE as MASKED_WORD_RECIPE
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase4_causal.causal_attention import RECIPE as CAUSAL_RECIPE
from phase4_causal.causal_attention import CausalSelfAttention, with_attention
from phase4_causal.masking import mask_patterns
from phase4_causal.masking.mask_patterns import BOTH, CAUSAL, CUT, DETERMINER, Patterns
from shared import training
from shared.attention_utils import causal_mask
from shared.evidence.claims import FAILS, HOLDS, ONLY_IF
from shared.head_statistics import even_weights
from shared.toy_language import Sentence

PATTERN_SIZES = 2, 3, 7  # N, H, T: different primes, so that no two axes can be confused


PATTERN_SENTENCE = Sentence(
    ("the", "cat", "sat", "on", "a", "mat"),
    {
        "determiner-noun": ((0, 1), (4, 5)),
        "verb-subject": ((2, 1),),
        "verb-place": ((2, 5),),
        "adjective-noun": ((3, 5),),  # not grammar: each relation needs a pair
    },
)


def pattern_weights(mask: Tensor) -> Tensor:
    """Random weights (N, H, T, T) in float64, zero where the mask hides and in rows that see nothing."""
    n, heads, length = PATTERN_SIZES
    scores = torch.randn(n, heads, length, length, generator=torch.Generator().manual_seed(0)).double()
    return scores.masked_fill(~mask, -math.inf).softmax(dim=-1).nan_to_num()


def pattern_mask(causal: bool) -> Tensor:
    """Two sentences of 7 and 5 words, (N, 1, T, T)."""
    real = torch.arange(7) < torch.tensor([7, 5])[:, None]
    mask = (real[:, None, :] & real[:, :, None])[:, None]  # (N, T, T) -> (N, 1, T, T)
    return mask.tril() if causal else mask


def pattern_of(weights: Tensor, causal: bool = False) -> Patterns:
    """One layer on PATTERN_SENTENCE, no <start>."""
    real = torch.ones(1, 1, 6, 6, dtype=torch.bool)
    return Patterns([weights], real, real.tril() if causal else real, shift=0)


def pattern_models(layers: int = 2) -> tuple[training.Trained, training.Trained]:
    recipes = replace(MASKED_WORD_RECIPE, num_layers=layers), replace(CAUSAL_RECIPE, num_layers=layers)
    return tuple(
        training.untrained(recipe, make)
        for recipe, make in zip(recipes, (MultiHeadAttention, CausalSelfAttention), strict=True)
    )


@pytest.fixture(scope="module")
def measured():
    return mask_patterns.measure(*pattern_models(), training.corpus()[1][:11], untrained=1)


def test_even_weights_on_six_words_give_the_numbers_worked_by_hand():
    full, mask = torch.ones(1, 1, 6, 6, dtype=torch.bool), causal_mask(6)[None, None]
    numbers = mask_patterns.spreads([])  # no models: what even weights do
    expected = {
        "even, 6 words, no mask, entropy": math.log(6),
        "even, 6 words, mask, entropy": math.log(720) / 6,  # (ln 1 + ... + ln 6) / 6 = ln(6!) / 6
        "even, 6 words, no mask, distance": 35 / 18,  # (6² - 1) / 18
        "even, 6 words, mask, distance": 1.25,  # the mean of 0, 1/2, ..., 5/2
    }
    assert {name: numbers[name] for name in expected} == pytest.approx(expected, abs=1e-6)
    keys = mask_patterns.received(even_weights(mask), mask)[0]
    assert keys.tolist() == pytest.approx([sum(1 / i for i in range(j + 1, 7)) / 6 for j in range(6)], abs=1e-7)
    assert mask_patterns.received(even_weights(full), full)[0].tolist() == pytest.approx([1 / 6] * 6)


@pytest.mark.parametrize("causal", [False, True])
def test_spread_is_that_of_plain_loops_and_one_for_even_weights(causal):
    mask = pattern_mask(causal)
    weights = pattern_weights(mask)
    patterns = Patterns([weights], pattern_mask(False), mask, shift=0)
    sums, rows, choices = dict.fromkeys(mask_patterns.SPREADS, 0.0), 0, 0
    for n, length in enumerate((7, 5)):
        for h in range(3):
            for i in range(length):
                seen = [j for j in range(length) if j <= i or not causal]
                w = [weights[n, h, i, j].item() for j in seen]
                entropy = -sum(x * math.log(x) for x in w)
                distance = sum(x * abs(i - j) for x, j in zip(w, seen, strict=True))
                sums["entropy"] += entropy
                sums["distance"] += distance
                rows += 1
                if len(seen) > 1:
                    choices += 1
                    sums["normalised entropy"] += entropy / math.log(len(seen))
                    sums["normalised distance"] += distance / (sum(abs(i - j) for j in seen) / len(seen))
    expected = {name: value / (choices if "normalised" in name else rows) for name, value in sums.items()}
    assert mask_patterns.spread(patterns) == pytest.approx(expected, abs=1e-6)  # even weights come in float32
    of_even = mask_patterns.spread(mask_patterns.even(patterns))
    assert of_even["normalised entropy"] == pytest.approx(1, abs=1e-6)
    assert of_even["normalised distance"] == pytest.approx(1, abs=1e-6)


def test_a_row_with_one_key_has_no_normalised_distance():
    mask = causal_mask(5)
    distance = mask_patterns.normalized_distance(even_weights(mask), mask)
    assert distance[0].isnan() and torch.allclose(distance[1:], torch.ones(4))


def test_received_counts_real_rows_only():
    mask = pattern_mask(True)
    weights = pattern_weights(mask) + 0.0
    weights[1, :, 5:] = 1 / 7  # rows of padding mean nothing
    expected = torch.zeros(3, 7, dtype=torch.float64)
    for n, length in enumerate((7, 5)):
        for i in range(length):
            expected += weights[n, :, i] / length / 2
    torch.testing.assert_close(mask_patterns.received(weights, mask), expected)


def test_cut_takes_the_future_and_scales_the_rest_back():
    mask = pattern_mask(False)
    weights = pattern_weights(mask)
    result = mask_patterns.cut(Patterns([weights], mask, mask, shift=0))
    assert torch.equal(result.mask, mask.tril())
    for n, length in enumerate((7, 5)):
        for i in range(length):
            past = weights[n, :, i, : i + 1]
            torch.testing.assert_close(result.layers[0][n, :, i, : i + 1], past / past.sum(dim=-1, keepdim=True))
            assert not result.layers[0][n, :, i, i + 1 :].any()
    assert not result.layers[0][1, :, 5:].any()  # padding stays empty, not NaN


def test_cut_is_what_the_first_layer_computes_under_the_mask_and_not_the_second():
    sentences = training.corpus()[1][:5]
    trained, _ = pattern_models()
    patterns = mask_patterns.cut(mask_patterns.read(trained, sentences))
    tokens, lengths = mask_patterns.tokens_of(sentences, "masked word")
    computed = mask_patterns.weights_on(with_attention(trained, CausalSelfAttention), tokens, lengths)
    rows = patterns.mask.any(dim=-1, keepdim=True)  # rows of padding are not cut to anything
    first, second = ((a - b).masked_fill(~rows, 0).abs().max() for a, b in zip(patterns.layers, computed, strict=True))
    assert first < 1e-6 and second > 1e-4


def test_cut_refuses_a_row_whose_past_has_no_weight():
    weights = torch.zeros(1, 1, 6, 6)
    weights[..., 5] = 1  # every word looks at the last one
    with pytest.raises(ValueError, match="no weight on its past"):
        mask_patterns.cut(pattern_of(weights))


def test_a_causal_model_never_reads_the_end_and_its_patterns_start_with_one_more_token():
    sentences = training.corpus()[1][:7]
    both, causal = (mask_patterns.read(trained, sentences) for trained in pattern_models())
    words = [len(sentence.words) for sentence in sentences]
    assert both.real.diagonal(dim1=-2, dim2=-1).sum(dim=-1).flatten().tolist() == words
    assert causal.real.diagonal(dim1=-2, dim2=-1).sum(dim=-1).flatten().tolist() == [n + 1 for n in words]
    assert (both.shift, causal.shift) == (0, 1)
    assert not causal.mask.triu(1).any() and not causal.layers[0].triu(1).any() and torch.equal(both.mask, both.real)


@pytest.mark.parametrize(
    ("role", "pair", "allowed"),
    [
        ("determiner → noun", (0, 1), False),
        ("noun → determiner", (1, 0), True),
        ("verb → subject", (2, 1), True),
        ("subject → verb", (1, 2), False),
        ("verb → place", (2, 5), False),
        ("place → verb", (5, 2), True),
    ],
)
def test_a_relation_survives_the_mask_in_the_direction_that_looks_back(role, pair, allowed):
    pairs = [pair, *{"determiner → noun": [(4, 5)], "noun → determiner": [(5, 4)]}.get(role, [])]
    made = torch.full((1, 1, 6, 6), 0.02)  # a head made by hand that plays this role and no other
    for query, key in pairs:
        made[0, 0, query, key] = 0.9
    full = pattern_of(made / made.sum(dim=-1, keepdim=True))
    assert mask_patterns.roles(full, [PATTERN_SENTENCE])[role].item() == 1
    assert mask_patterns.possible(full, [PATTERN_SENTENCE])[role]
    cut = mask_patterns.cut(full)
    assert mask_patterns.roles(cut, [PATTERN_SENTENCE])[role].item() == float(allowed)
    assert mask_patterns.possible(cut, [PATTERN_SENTENCE])[role] == allowed


def test_row_zero_under_the_mask_is_no_hit_by_tie():
    # "the" at 0 sees only itself. With hidden keys at 0, all tie, and the first of them is its noun at 1.
    head = torch.eye(6)[None, None]
    assert mask_patterns.roles(pattern_of(head, causal=True), [PATTERN_SENTENCE])["determiner → noun"].item() == 0


def test_positions_under_the_mask():
    made = torch.eye(6).roll(-1, dims=1)[None, None]  # the word before; the first looks at the last
    score = {name: value.item() for name, value in mask_patterns.roles(pattern_of(made), [PATTERN_SENTENCE]).items()}
    assert score["previous word"] == 1 and score["next word"] == 0
    can = mask_patterns.possible(pattern_of(made, causal=True), [PATTERN_SENTENCE])
    assert [name for name, yes in can.items() if not yes] == [
        "next word",
        "determiner → noun",
        "subject → verb",
        "verb → place",
        "adjective → noun",
    ]


@pytest.mark.parametrize("model", [0, 1])
def test_the_mask_leaves_the_last_row_of_the_first_layer_alone_and_only_there(model):
    sentences = training.corpus()[1][:5]  # of different lengths: the last row is not the last of the batch
    assert len({len(sentence.words) for sentence in sentences}) > 1
    one, two = (mask_patterns.last_row_change(pattern_models(layers)[model], sentences) for layers in (1, 2))
    assert max(one["last row"]) < 1e-12 and len(one["last row"]) == 1
    assert two["last row"][0] < 1e-12 and two["last row"][1] > 1e-5
    assert min(one["earlier rows"][0], *two["earlier rows"]) > 1e-2


def test_baselines_are_never_below_the_fixed_offset_and_zero_for_what_cannot_be():
    _, causal = pattern_models()
    sentences = training.corpus()[1][:11]
    base = mask_patterns.baselines(causal, sentences, count=1)
    can = mask_patterns.possible(mask_patterns.read(causal, sentences), sentences)
    assert base["noun → adjective"] == 1  # always the word before
    assert all((base[name] == 0) == (not yes) for name, yes in can.items())


def verdict(numbers) -> str:
    (claim,) = numbers.claims
    return claim.verdict(numbers)


def test_the_verdicts_follow_the_numbers(measured):
    nowhere = dict.fromkeys(measured.possible, 0.0)
    everywhere = {role: torch.ones(2, 4) for role in measured.roles[BOTH]}
    strong = replace(
        measured, roles=dict.fromkeys((BOTH, CUT, CAUSAL), everywhere), base=dict.fromkeys((BOTH, CAUSAL), nowhere)
    )
    gone = replace(strong, roles=strong.roles | {CAUSAL: {role: torch.zeros(2, 4) for role in everywhere}})
    for found, expected in ((strong, HOLDS), (gone, ONLY_IF), (measured, FAILS)):  # the last one: nothing is trained
        assert verdict(mask_patterns.determiners([found, found])) == expected
    assert mask_patterns.determiners([gone])[f"{DETERMINER}, {CAUSAL}"] == [0]

    sees_ahead = replace(measured, kinds=measured.kinds | {CAUSAL: measured.kinds[BOTH]})
    assert verdict(mask_patterns.next_token([sees_ahead])) == HOLDS
    assert verdict(mask_patterns.next_token([measured])) == FAILS
    assert mask_patterns.bands() == {"rows are queries": [1, 0], "rows are keys": [0, 1]}
    assert verdict(mask_patterns.bands()) == ONLY_IF
    for layers, expected in ((1, HOLDS), (2, ONLY_IF)):
        assert verdict(mask_patterns.last_rows([pattern_models(layers)], training.corpus()[1][:5])) == expected
    assert verdict(mask_patterns.one_cell(*pattern_models())) == ONLY_IF

    half = {kind: dict.fromkeys(mask_patterns.SPREADS, 0.5 if kind != BOTH else 1.0) for kind in measured.spread}
    raw_only = {kind: values | dict.fromkeys(mask_patterns.SPREADS[1::2], 0.7) for kind, values in half.items()}
    for spread, expected in ((half, HOLDS), (raw_only, ONLY_IF), (half | {CUT: half[BOTH]}, FAILS)):
        assert verdict(mask_patterns.spreads([replace(measured, spread=spread)])) == expected


def test_a_head_on_the_first_token_must_beat_even_weights(measured):
    masked = measured.kinds[CAUSAL]
    first = torch.zeros_like(masked.layers[0])
    first[..., 0] = 1
    for layers, expected in (([first], ONLY_IF), ([even_weights(masked.mask)], FAILS)):
        found = replace(measured, kinds=measured.kinds | {CAUSAL: replace(masked, layers=layers)})
        assert verdict(mask_patterns.first_token([found], range(1))) == expected
