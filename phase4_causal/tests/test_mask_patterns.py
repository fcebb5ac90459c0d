"""What the mask does to patterns: against plain loops, heads made by hand, untrained models."""

import math
from dataclasses import replace

import matplotlib.pyplot as plt
import pytest
import torch
from torch import Tensor

from phase2_multi_head.models import CAUSAL_RECIPE
from phase2_multi_head.models import RECIPE as MASKED_WORD_RECIPE
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase4_causal.causal_attention import CausalSelfAttention
from phase4_causal.masking import mask_patterns
from phase4_causal.masking.mask_patterns import CAUSAL, Patterns
from phase4_causal.models import with_attention
from shared import training
from shared.attention_utils import causal_mask
from shared.evidence.claims import FAILS, HOLDS
from shared.head_statistics import even_weights
from shared.toy_language import TOY_SENTENCE, Sentence
from shared.toy_model import weights_of

PATTERN_SIZES = 2, 3, 7  # N, H, T: different primes, so that no two axes can be confused


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


def pattern_models(layers: int = 2) -> tuple[training.Trained, training.Trained]:
    recipes = replace(MASKED_WORD_RECIPE, num_layers=layers), replace(CAUSAL_RECIPE, num_layers=layers)
    return tuple(
        training.untrained(recipe, make)
        for recipe, make in zip(recipes, (MultiHeadAttention, CausalSelfAttention), strict=True)
    )


def test_even_weights_on_six_words_give_the_weights_on_the_first_word_that_are_printed():
    mask = causal_mask(6)[None, None]
    assert even_weights(mask)[0, 0, :, 0].mean().item() == pytest.approx(0.408, abs=5e-4)
    spread = mask_patterns.spread(Patterns([even_weights(mask)], mask))
    assert spread["entropy"] == pytest.approx(math.log(720) / 6, abs=1e-6)  # (ln 1 + ... + ln 6) / 6 = ln(6!) / 6
    assert spread["distance"] == pytest.approx(1.25)  # the mean of 0, 1/2, ..., 5/2


@pytest.mark.parametrize("causal", [False, True])
def test_spread_is_that_of_plain_loops_and_one_for_even_weights(causal):
    mask = pattern_mask(causal)
    weights = pattern_weights(mask)
    patterns = Patterns([weights], mask)
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


def test_cut_takes_the_future_and_scales_the_rest_back():
    mask = pattern_mask(False)
    weights = pattern_weights(mask)
    result = mask_patterns.cut(Patterns([weights], mask))
    assert torch.equal(result.mask, mask.tril())
    for n, length in enumerate((7, 5)):
        for i in range(length):
            past = weights[n, :, i, : i + 1]
            torch.testing.assert_close(result.layers[0][n, :, i, : i + 1], past / past.sum(dim=-1, keepdim=True))
            assert not result.layers[0][n, :, i, i + 1 :].any()
    assert not result.layers[0][1, :, 5:].any()  # padding stays empty, not NaN


def test_cut_is_what_the_first_layer_computes_under_the_mask_and_not_the_second():
    """Zeros above the diagonal are not enough, rows are scaled back; and deeper layers read what the mask changed."""
    sentences = training.corpus()[1][:5]
    trained, _ = pattern_models()
    patterns = mask_patterns.cut(mask_patterns.read(trained, sentences))
    masked = replace(trained, model=with_attention(trained, CausalSelfAttention))
    rows = patterns.mask.any(dim=-1, keepdim=True)  # rows of padding are not cut to anything
    computed = mask_patterns.read(masked, sentences).layers
    first, second = ((a - b).masked_fill(~rows, 0).abs().max() for a, b in zip(patterns.layers, computed, strict=True))
    assert first < 1e-6 and second > 1e-4


def test_the_mask_leaves_the_last_row_of_the_first_layer_alone_and_only_there():
    words = TOY_SENTENCE.split()
    for trained in pattern_models():
        on, off = (
            weights_of(with_attention(trained, make), words) for make in (CausalSelfAttention, MultiHeadAttention)
        )
        change = (on - off).abs().amax(dim=(1, 3))  # (L, H, T, T) -> (L, T)
        assert change[0, -1] < 1e-6 and change[1, -1] > 1e-5 and change[:, :-1].min() > 1e-2


def test_cut_refuses_a_row_whose_past_has_no_weight():
    weights = torch.zeros(1, 1, 6, 6)
    weights[..., 5] = 1  # every word looks at the last one
    with pytest.raises(ValueError, match="no weight on its past"):
        mask_patterns.cut(Patterns([weights], torch.ones(1, 1, 6, 6, dtype=torch.bool)))


def test_a_causal_model_never_reads_the_end_and_its_patterns_start_with_one_more_token():
    sentences = training.corpus()[1][:7]
    both, causal = (mask_patterns.read(trained, sentences) for trained in pattern_models())
    words = [len(sentence.words) for sentence in sentences]
    assert both.mask.diagonal(dim1=-2, dim2=-1).sum(dim=-1).flatten().tolist() == words
    assert causal.mask.diagonal(dim1=-2, dim2=-1).sum(dim=-1).flatten().tolist() == [n + 1 for n in words]
    assert not causal.mask.triu(1).any() and not causal.layers[0].triu(1).any()


def test_last_rows_of_beginnings_are_those_of_each_kind_of_word():
    sentences = [Sentence(tuple(text.split()), {}) for text in ("the cat sat on the mat", "a dog beside a bed slept")]
    weights = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(1)).double()  # <start> stands in row 0
    found = mask_patterns.on_first(Patterns([weights, weights / 2], causal_mask(8).expand(2, 1, 8, 8)), sentences)
    assert set(found) == {"determiner", "noun", "verb", "preposition"}  # the others do not occur
    verbs, share = found["verb"]
    close = torch.testing.assert_close
    close(verbs[:3], (weights[0, :, 3, 0] + weights[1, :, 6, 0]) / 2)
    close(verbs[3:], verbs[:3] / 2)
    assert share == pytest.approx((1 / 4 + 1 / 7) / 2)
    close(found["preposition"][0][:3], (weights[0, :, 4, 0] + weights[1, :, 3, 0]) / 2)
    close(found["determiner"][0][:3], (weights[0, :, 5, 0] + weights[1, :, 4, 0]) / 2)  # the first word does not count


def test_a_sink_is_chosen_on_one_half_and_scored_on_the_other():
    sentences = [Sentence(tuple(["the", "cat", "sat", "on", "the", "mat"]), {})] * 4
    weights = even_weights(causal_mask(7)[None, None]).expand(4, 3, 7, 7).clone()
    weights[:2, 2, 4, 0], weights[2:, 2, 4, 0] = 0.9, 0.3  # "on" stands in row 4
    weights[2:, 1, 3, 0] = 1.0  # best on the half that does not choose
    sink = mask_patterns.find_sink(Patterns([weights], causal_mask(7).expand(4, 1, 7, 7)), sentences)
    assert (sink.kind, sink.head, sink.even) == ("preposition", 2, 0.2) and sink.weight == pytest.approx(0.3)


def test_raw_numbers_that_fall_with_the_number_of_keys_decide_nothing():
    (claim,) = mask_patterns.spreads.claims
    assert claim.verdict(mask_patterns.made_up(0.7)) == FAILS  # raw ones are halved there
    only_added = mask_patterns.made_up(0.4) | {f"distance, {CAUSAL}": 9.0, f"normalised distance, {CAUSAL}": 0.7}
    assert claim.verdict(only_added) == FAILS and claim.verdict(mask_patterns.made_up(0.4)) == HOLDS


def test_the_picture_of_sinks_says_so_where_there_is_none():
    by_kind = {"noun": (torch.tensor([0.1, 0.2]), 0.2), "preposition": (torch.tensor([0.3, 0.1]), 0.2)}
    trained = pattern_models()[1]
    for weight, said in ((0.9, "In this model one head rests on <start>"), (0.35, "No head of this model rests")):
        sink = mask_patterns.Sink("preposition", 0, weight, 0.2)
        assert mask_patterns.draw_sinks(trained, by_kind, sink, "note")[1].startswith(said)
    plt.close("all")
