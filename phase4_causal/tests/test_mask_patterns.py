"""Tests: mask patterns."""

import json
import math
from dataclasses import replace
from functools import cache

import matplotlib.pyplot as plt
import pytest
import torch
from torch import Tensor

from phase2_multi_head.multi_head_attention import RECIPE as MASKED_WORD_RECIPE
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase4_causal.causal_attention import RECIPE as CAUSAL_RECIPE
from phase4_causal.causal_attention import CausalSelfAttention
from phase4_causal.masking import mask_patterns, mask_verdicts, masked_heads
from phase4_causal.masking.mask_training import WITH, under
from phase4_causal.masking.masked_heads import BOTH, CAUSAL, CUT, Patterns
from shared import head_statistics, training
from shared.attention_utils import causal_mask
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


@cache
def pattern_measured(layers: int = 2) -> masked_heads.Measured:
    return masked_heads.measure(*pattern_models(layers), training.corpus()[1][:11], untrained=1)


def pattern_verdicts(found: list) -> dict[str, str]:
    return {finding.id: finding.verdict for finding in found}


def test_even_weights_on_six_words_give_the_numbers_worked_by_hand():
    full, mask = torch.ones(1, 1, 6, 6, dtype=torch.bool), causal_mask(6)[None, None]
    expected = {
        "entropy": (math.log(6), math.log(720) / 6),  # (ln 1 + ... + ln 6) / 6 = ln(6!) / 6
        "distance": (35 / 18, 1.25),  # (6² - 1) / 18; the mean of 0, 1/2, ..., 5/2
    }
    for name, values in expected.items():
        for allowed, value in zip((full, mask), values, strict=True):
            assert head_statistics.head_statistics(even_weights(allowed), allowed)[name].item() == pytest.approx(
                value, abs=1e-6
            )
    keys = masked_heads.received(even_weights(mask), mask)[0]
    assert keys.tolist() == pytest.approx([sum(1 / i for i in range(j + 1, 7)) / 6 for j in range(6)], abs=1e-7)
    assert round(keys[0].item(), 3) == 0.408 and round(keys[5].item(), 3) == 0.028
    assert masked_heads.received(even_weights(full), full)[0].tolist() == pytest.approx([1 / 6] * 6)


@pytest.mark.parametrize("causal", [False, True])
def test_spread_is_that_of_plain_loops_and_one_for_even_weights(causal):
    mask = pattern_mask(causal)
    weights = pattern_weights(mask)
    patterns = Patterns([weights], pattern_mask(False), mask, shift=0)
    sums, rows, choices = dict.fromkeys(masked_heads.SPREADS, 0.0), 0, 0
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
    assert masked_heads.spread(patterns) == pytest.approx(expected, abs=1e-6)  # even weights come in float32
    of_even = masked_heads.spread(masked_heads.even(patterns))
    assert of_even["normalised entropy"] == pytest.approx(1, abs=1e-6)
    assert of_even["normalised distance"] == pytest.approx(1, abs=1e-6)


def test_a_row_with_one_key_has_no_normalised_distance():
    mask = causal_mask(5)
    distance = masked_heads.normalized_distance(even_weights(mask), mask)
    assert distance[0].isnan() and torch.allclose(distance[1:], torch.ones(4))


def test_received_counts_real_rows_only():
    mask = pattern_mask(True)
    weights = pattern_weights(mask) + 0.0
    weights[1, :, 5:] = 1 / 7  # rows of padding mean nothing
    expected = torch.zeros(3, 7, dtype=torch.float64)
    for n, length in enumerate((7, 5)):
        for i in range(length):
            expected += weights[n, :, i] / length / 2
    torch.testing.assert_close(masked_heads.received(weights, mask), expected)


def test_cut_takes_the_future_and_scales_the_rest_back():
    mask = pattern_mask(False)
    weights = pattern_weights(mask)
    result = masked_heads.cut(Patterns([weights], mask, mask, shift=0))
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
    patterns = masked_heads.cut(masked_heads.read(trained, sentences))
    tokens, lengths = masked_heads.tokens_of(sentences, "masked word")
    computed = masked_heads.weights_on(under(trained, WITH), tokens, lengths)
    rows = patterns.mask.any(dim=-1, keepdim=True)  # rows of padding are not cut to anything
    first, second = ((a - b).masked_fill(~rows, 0).abs().max() for a, b in zip(patterns.layers, computed, strict=True))
    assert first < 1e-6 and second > 1e-4


def test_cut_refuses_a_row_whose_past_has_no_weight():
    weights = torch.zeros(1, 1, 6, 6)
    weights[..., 5] = 1  # every word looks at the last one
    with pytest.raises(ValueError, match="no weight on its past"):
        masked_heads.cut(pattern_of(weights))


def test_a_causal_model_never_reads_the_end_and_its_patterns_start_with_one_more_token():
    sentences = training.corpus()[1][:7]
    both, causal = (masked_heads.read(trained, sentences) for trained in pattern_models())
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
    assert masked_heads.roles(full, [PATTERN_SENTENCE])[role].item() == 1
    assert masked_heads.possible(full, [PATTERN_SENTENCE])[role]
    cut = masked_heads.cut(full)
    assert masked_heads.roles(cut, [PATTERN_SENTENCE])[role].item() == float(allowed)
    assert masked_heads.possible(cut, [PATTERN_SENTENCE])[role] == allowed


def test_row_zero_under_the_mask_is_no_hit_by_tie():
    # "the" at 0 sees only itself. With hidden keys at 0, all tie, and the first of them is its noun at 1.
    head = torch.eye(6)[None, None]
    assert masked_heads.roles(pattern_of(head, causal=True), [PATTERN_SENTENCE])["determiner → noun"].item() == 0


def test_positions_under_the_mask():
    made = masked_heads.previous_token_head(6)[None, None]
    score = {name: value.item() for name, value in masked_heads.roles(pattern_of(made), [PATTERN_SENTENCE]).items()}
    assert score["previous word"] == 1 and score["next word"] == 0
    can = masked_heads.possible(pattern_of(made, causal=True), [PATTERN_SENTENCE])
    assert [name for name, yes in can.items() if not yes] == [
        "next word",
        "determiner → noun",
        "subject → verb",
        "verb → place",
        "adjective → noun",
    ]


def test_the_head_made_by_hand_is_a_band_below_the_diagonal():
    weights = masked_heads.previous_token_head(7)
    assert weights.argmax(dim=-1).tolist() == [0, 0, 1, 2, 3, 4, 5]
    assert weights.diagonal(-1).min() > 0.99 and weights.diagonal(1).max() < 0.01
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(7, dtype=torch.float64))


@pytest.mark.parametrize("model", [0, 1])
def test_the_mask_leaves_the_last_row_of_the_first_layer_alone_and_only_there(model):
    sentences = training.corpus()[1][:5]  # of different lengths: the last row is not the last of the batch
    assert len({len(sentence.words) for sentence in sentences}) > 1
    one, two = (masked_heads.last_row_change(pattern_models(layers)[model], sentences) for layers in (1, 2))
    assert max(one["last"]) < 1e-12 and len(one["last"]) == 1
    assert two["last"][0] < 1e-12 and two["last"][1] > 1e-5
    assert min(one["earlier"][0], *two["earlier"]) > 1e-2


def test_baselines_are_never_below_the_fixed_offset_and_zero_for_what_cannot_be():
    _, causal = pattern_models()
    sentences = training.corpus()[1][:11]
    base = masked_heads.baselines(causal, sentences, count=1)
    can = masked_heads.possible(masked_heads.read(causal, sentences), sentences)
    assert base["noun → adjective"] == 1  # always the word before
    assert all((base[name] == 0) == (not yes) for name, yes in can.items())


def test_the_verdicts_follow_the_numbers():
    found = pattern_measured()
    one_layer = pattern_measured(layers=1)
    two_seeds = [one_layer, one_layer]
    for found_twice in (
        mask_verdicts.spread_findings(two_seeds, [0, 1]),
        mask_verdicts.role_findings(two_seeds, [0, 1]),
    ):
        assert found_twice[0].seeds == [0, 1]
    everywhere = {role: torch.ones(2, 4) for role in found.roles[BOTH]}
    nowhere = dict.fromkeys(found.possible, 0.0)
    strong = replace(found, roles=dict.fromkeys((BOTH, CUT, CAUSAL), everywhere), base={BOTH: nowhere, CAUSAL: nowhere})
    gone = replace(strong, roles=strong.roles | {CAUSAL: {role: torch.zeros(2, 4) for role in everywhere}})
    sees_ahead = replace(found, kinds=found.kinds | {CAUSAL: found.kinds[BOTH]})
    assert pattern_verdicts(mask_verdicts.role_findings([strong], [0]))["C109"] == "holds"
    assert pattern_verdicts(mask_verdicts.role_findings([gone], [0]))["C109"] == "holds only if"
    assert pattern_verdicts(mask_verdicts.role_findings([found], [0]))["C109"] == "does not hold"  # nothing is trained
    assert pattern_verdicts(mask_verdicts.role_findings([sees_ahead], [0]))["C108"] == "holds"
    assert pattern_verdicts(mask_verdicts.role_findings([found], [0]))["C108"] == "does not hold"

    models = pattern_models()
    assert pattern_verdicts(mask_verdicts.position_findings([one_layer], *models, [0]))["C104"] == "holds"
    assert pattern_verdicts(mask_verdicts.position_findings([found], *models, [0]))["C104"] == "holds only if"

    half = {kind: dict.fromkeys(masked_heads.SPREADS, 0.5 if kind != BOTH else 1.0) for kind in found.spread}
    raw_only = {kind: values | dict.fromkeys(masked_heads.SPREADS[1::2], 0.7) for kind, values in half.items()}
    for spread, verdict in ((half, "holds"), (raw_only, "holds only if"), (half | {CUT: half[BOTH]}, "does not hold")):
        assert pattern_verdicts(mask_verdicts.spread_findings([replace(found, spread=spread)], [0]))["C107"] == verdict


def test_a_head_on_the_first_token_must_beat_even_weights():
    found = pattern_measured()
    masked = found.kinds[CAUSAL]
    first = torch.zeros_like(masked.layers[0])
    first[..., 0] = 1
    for layers, verdict in (([first], "holds only if"), ([even_weights(masked.mask)], "does not hold")):
        kinds = found.kinds | {CAUSAL: replace(masked, layers=layers)}
        assert pattern_verdicts(mask_verdicts.spread_findings([replace(found, kinds=kinds)], [0]))["C110"] == verdict


def test_mask_patterns_writes_picture_and_findings(tmp_path, monkeypatch, capsys):
    bidirectional, causal = pattern_models()
    open_before = plt.get_fignums()
    monkeypatch.setattr(mask_patterns, "load_multi_head_model", lambda _options, _seed: bidirectional)
    monkeypatch.setattr(mask_patterns, "load_causal_model", lambda _options, _seed: causal)
    mask_patterns.main(["--quick", "--output-dir", str(tmp_path)])
    assert (tmp_path / "visualizations" / "plots" / "phase4" / "mask_patterns.png").stat().st_size > 10_000
    assert plt.get_fignums() == open_before  # the figure was closed
    content = json.loads((tmp_path / "data/processed/findings/phase4_causal.masking.mask_patterns.json").read_text())
    assert [f["id"] for f in content] == ["C107", "C110", "C108", "C109", "C111", "C104", "C106"]
    assert content[2]["measured"][f"{CAUSAL}, best head"] == [0.0]
    assert capsys.readouterr().out.count("cannot exist under the mask") == 5
