"""Weights that give the same output, by hand and by null space; printed numbers against torch and autograd."""

import math

import matplotlib
import pytest
import torch

from phase1_single_head.parts.soft_lookup import Reading
from phase1_single_head.reading import reading_weights, textbook_numbers, weight_statistics
from shared.evidence.claims import FAILS, ONLY_IF
from shared.tests.helpers import close
from shared.visualization_utils import WEIGHT_MAP


@pytest.mark.parametrize("temperature", [0.3, 1.0, 8.0])
def test_softmax_and_slopes_by_hand_agree_with_torch_and_autograd(temperature):
    scores = torch.tensor([700.0, -3.0, 699.5, 0.2, 698.0], dtype=torch.float64, requires_grad=True)  # exp(700) is inf
    weights = torch.softmax(scores / temperature, dim=0)
    rises = torch.autograd.functional.jacobian(lambda s: torch.softmax(s / temperature, dim=0), scores).diagonal()
    assert textbook_numbers.softmax(scores.tolist(), temperature) == pytest.approx(weights.tolist(), abs=1e-12)
    assert textbook_numbers.slopes(scores.tolist(), temperature) == pytest.approx(rises.tolist(), abs=1e-12)


def test_order_violations_find_the_printed_row_and_pass_every_softmax():
    scores = textbook_numbers.SAT_SCORES
    assert textbook_numbers.order_violations(scores, textbook_numbers.SAT_WEIGHTS) == [(0, 4)]
    for temperature in (0.2, 1, 5, 300):
        weights = [round(w, 2) for w in textbook_numbers.softmax(scores, temperature)]
        assert textbook_numbers.order_violations(scores, weights) == [], "rounding keeps the order too"
    assert textbook_numbers.order_violations([1, 2, 3], [0.5, 0.3, 0.2]) == [(1, 0), (2, 0), (2, 1)]
    assert textbook_numbers.order_violations([1, 1], [0.4, 0.6]) == [], "equal scores have no order"


def test_best_temperature_recovers_the_one_that_made_the_weights():
    scores = [0.3, -1.1, 2.0, 0.7, 0.0]
    best, error = textbook_numbers.best_temperature(scores, textbook_numbers.softmax(scores, 2.57))
    assert best == 2.57 and error < 1e-12
    best, error = textbook_numbers.best_temperature(textbook_numbers.SAT_SCORES, textbook_numbers.SAT_WEIGHTS)
    assert best == pytest.approx(1.36, abs=0.02) and error == pytest.approx(0.028, abs=0.001)


@pytest.mark.parametrize("d_k", [2, 7, 64])
def test_divisor_is_read_off_the_weights(d_k):
    assert textbook_numbers.divisor(d_k) == pytest.approx(math.sqrt(d_k), rel=1e-12)


def test_luminance_of_known_colours():
    for color, expected in (
        ((0, 0, 0), 0.0), ((1, 1, 1), 1.0), ((0, 1, 0), 0.7152), ((1, 0, 0), 0.2126), ((0.5, 0.5, 0.5), 0.2140),
        ((0.02, 0.02, 0.02), 0.02 / 12.92), ((1, 1, 1, 0.3), 1.0),
    ):  # fmt: skip
        assert textbook_numbers.luminance(color) == pytest.approx(expected, abs=5e-5)
    steps = [textbook_numbers.luminance(WEIGHT_MAP(step / 50)) for step in range(51)]
    assert steps == sorted(steps, reverse=True), "our own map must darken all the way"
    assert textbook_numbers.luminance(matplotlib.colormaps["YlOrRd"](1.0)) < 0.1


def test_exercise_scores_worked_by_hand():
    assert textbook_numbers.exercise_scores([(1, 5, 7), (0, 9, 9), (-2, 0, 0)]) == pytest.approx(
        [0.57735, 0.0, -1.1547], abs=1e-5
    )


def textbook_verdicts():
    names = ("large_scores", "impossible_row", "exercise", "ends_of_colour_maps", "counted")
    found = [getattr(textbook_numbers, name)() for name in names]
    return {claim.id: claim.verdict(numbers) for numbers in found for claim in numbers.claims}


def test_textbook_verdicts_and_that_they_follow_the_numbers(monkeypatch):
    before = textbook_verdicts()
    wrong = {name for name, verdict in before.items() if verdict == FAILS}
    assert wrong == {"C019", "C020", "C021", "C022", "C138", "C164", "C165", "C167"}
    assert {name for name, verdict in before.items() if verdict == ONLY_IF} == {"C023"}
    good = [[round(w, 2) for w in textbook_numbers.softmax(textbook_numbers.LARGE_SCORES, t)] for t in (1, 8)]
    sat = [round(w, 3) for w in textbook_numbers.softmax(textbook_numbers.SAT_SCORES, 1.5)]
    for name, value in (
        *(("PRINTED_RAW", good[0]), ("PRINTED_SCALED", good[1]), ("SAT_WEIGHTS", sat)),
        *(("IT_WEIGHTS", (0.2, 0.3, 0.3)), ("TOY_SENTENCE", "the cat sat on a mat")),
    ):
        monkeypatch.setattr(textbook_numbers, name, value)
    after = textbook_verdicts()
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"C019", "C020", "C022", "C166", "C169"}, "a verdict that the numbers cannot change is no finding"


def test_alternative_weights_worked_by_hand():
    """Values 0, 1, 2: a step of (1, -2, 1) changes neither mean nor sum, and ends when the middle is empty."""
    value = torch.tensor([[0.0], [1.0], [2.0]], dtype=torch.float64)
    weights = torch.tensor([0.25, 0.5, 0.25], dtype=torch.float64)
    close(reading_weights.alternative_weights(weights, value), torch.tensor([0.5, 0.0, 0.5]).double())
    assert reading_weights.total_variation(weights, torch.tensor([0.5, 0.0, 0.5])) == 0.5
    uneven = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)  # now away from the first: 0.1 * (-1, 2, -1) each time
    close(reading_weights.alternative_weights(uneven, value), torch.tensor([0.3, 0.7, 0.0]).double())
    assert reading_weights.change_without_effect(weights, value, torch.tensor([True, False, True])) is None


@pytest.mark.parametrize(("length", "d_v"), [(7, 3), (11, 5), (13, 1), (17, 2), (5, 3)])
def test_alternative_weights_are_weights_and_give_the_same_output(length, d_v):
    generator = torch.Generator().manual_seed(length)
    value = torch.randn(length, d_v, generator=generator).double()
    weights = torch.randn(length, generator=generator).double().softmax(dim=0)
    kept = weights.clone()
    other = reading_weights.alternative_weights(weights, value)
    assert torch.equal(weights, kept), "the row that was passed in stays as it was"
    assert (other >= 0).all() and abs(other.sum().item() - 1) < 1e-12
    close(other @ value, weights @ value, rtol=0, atol=1e-12)
    assert reading_weights.total_variation(other, weights) > 1e-3
    assert (other > 0).sum() <= d_v + 1, "Carathéodory: d_v + 1 words are enough"
    assert reading_weights.alternative_weights(other, value) is None, "a row with d_v + 1 words or fewer is at the end"


@pytest.mark.parametrize(("length", "d_v"), [(2, 1), (5, 4), (7, 13)])
def test_weights_are_unique_with_at_most_d_v_plus_one_words(length, d_v):
    generator = torch.Generator().manual_seed(0)
    value = torch.randn(length, d_v, generator=generator).double()
    weights = torch.randn(length, generator=generator).double().softmax(dim=0)
    assert reading_weights.alternative_weights(weights, value) is None
    value[1] = value[0]  # two words that say the same: the heavier gives all to the other, the rest stays
    other, lighter = reading_weights.alternative_weights(weights, value), int(weights[:2].argmin())
    close(other[2:], weights[2:])
    close(other[lighter], weights[:2].sum())


def test_change_without_effect_takes_most_from_the_heaviest_free_word():
    generator = torch.Generator().manual_seed(5)
    value, free = torch.randn(13, 3, generator=generator).double(), torch.arange(13) != 4
    weights = torch.full((13,), 0.05, dtype=torch.float64)
    weights[4], weights[7] = 0.3, 0.15  # the heaviest is not free
    change = reading_weights.change_without_effect(weights, value, free)
    assert abs(change.sum().item()) < 1e-12 and (change @ value).abs().max() < 1e-12 and change[4] == 0
    constraints = torch.cat([value, torch.ones(13, 1).double()], dim=1)[free]
    for seed in range(50):  # no direction of the same length takes more from word 7
        other = torch.randn(12, generator=torch.Generator().manual_seed(seed)).double()
        other -= constraints @ torch.linalg.lstsq(constraints, other[:, None]).solution[:, 0]
        assert -other[6].abs() / other.norm() >= change[7] / change.norm() - 1e-12


def test_strongest_directions_keep_distances_and_say_how_much():
    generator = torch.Generator().manual_seed(0)
    flat = torch.randn(7, 2, generator=generator).double() @ torch.randn(2, 11, generator=generator).double() + 5
    kept, share = reading_weights.strongest_directions(flat, 2)
    assert share == pytest.approx(1.0) and kept.shape == (7, 2)
    close(torch.cdist(kept, kept), torch.cdist(flat, flat))
    cross = torch.tensor([[3.0, 0], [-3.0, 0], [0, 1.0], [0, -1.0]], dtype=torch.float64)
    kept, share = reading_weights.strongest_directions(cross, 1)
    assert share == pytest.approx(0.9)  # 18 of 20
    close(kept[:, 0].abs(), torch.tensor([3.0, 3.0, 0.0, 0.0]).double())


def test_contributions_by_hand():
    weights, value = torch.tensor([[0.9, 0.1], [0.1, 0.9]]), torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    close(reading_weights.contributions(weights, value), torch.tensor([[0.0, 0.5], [0.0, 4.5]]))
    reading = Reading(["a", "b"], weights, weights, value, weights)
    assert reading_weights.largest_agrees(reading).tolist() == [False, True]


def test_one_row_sum_notices_one_error_and_all_sums_notice_all():
    weights = torch.randn(3, 5, 5, generator=torch.Generator().manual_seed(0)).softmax(dim=-1)
    assert list(weight_statistics.errors_noticed(weights).values()) == [1, 15, 15]


def test_entropies_of_known_rows():
    path, even, peaked = weight_statistics.rows_of_entropy().values()
    assert path[0] == 0 and path[-1] == pytest.approx(math.log(20)) and even == pytest.approx(math.log(2))
    middle = 0.5 + 0.5 / 20
    assert path[2] == pytest.approx(-middle * math.log(middle) - 19 * 0.025 * math.log(0.025))
    assert peaked == pytest.approx(-0.7 * math.log(0.7) - 0.3 * math.log(0.3 / 19))


def test_made_patterns_are_what_their_names_say(monkeypatch):
    for name, value in (("WORDS", 7), ("SIZE", 11), ("DRAWS", 3)):
        monkeypatch.setattr(weight_statistics, name, value)
    patterns = weight_statistics.made_patterns()
    for weights in patterns.values():
        close(weights.sum(dim=-1), torch.ones(3, 7).double())
    generator = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, 3, 7, 11, generator=generator, dtype=torch.float64)
    for name, scores in (
        ("random", query @ key.mT / math.sqrt(11)),
        ("random, not divided by √d", query @ key.mT),
        ("K = Q", query @ query.mT / math.sqrt(11)),
        ("K = 10 Q", 10 * query @ query.mT / math.sqrt(11)),
    ):
        close(patterns[name], scores.softmax(dim=-1))


def test_a_preposition_between_verb_and_noun():
    assert textbook_numbers.between(["cat", "sat", "on", "the", "mat"], "sat", "mat") == 1
    assert textbook_numbers.between(["cat", "sat", "the", "mat"], "sat", "mat") == 0
