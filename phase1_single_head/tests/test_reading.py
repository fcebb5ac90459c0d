"""Weights that give the same output, by hand and by null space; printed numbers against torch and autograd."""

import math

import matplotlib
import pytest
import torch

from phase1_single_head.parts.soft_lookup import Reading
from phase1_single_head.reading import reading_weights, textbook_numbers, weight_statistics
from shared import attention_utils
from shared.evidence import table
from shared.tests.helpers import close
from shared.toy_language import TOY_SENTENCE, VOCABULARY
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


def independent_answers():
    """The right numbers of the errata, each by another way than in textbook_numbers.py."""

    def by_torch(*scores):
        return torch.tensor(scores, dtype=torch.float64).softmax(dim=0)

    large = torch.tensor([100, 95, 5, 3.0], dtype=torch.float64, requires_grad=True)
    rises = torch.autograd.functional.jacobian(lambda s: (s / 8).softmax(dim=0), large).diagonal()
    words = TOY_SENTENCE.split()
    query, key, value = torch.randn(3, 8, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    off = torch.nn.functional.scaled_dot_product_attention(query[None], key[None], value[None], scale=1.0)[0]
    off = (off - torch.nn.functional.scaled_dot_product_attention(query[None], key[None], value[None])[0]).abs().max()
    return {
        "C001": by_torch(2, 0, 3),
        "C003": by_torch(2, -math.inf, 3),
        "C018": [8.0],
        "C019": by_torch(100, 95, 5, 3),
        "C020": by_torch(12.5, 11.875, 0.625, 0.375),
        "C021": rises[[2, 0]],
        "C022": by_torch(0.8, 3.2, 1.5, 0.5, 0.7, 2.1),
        "C056": [off.item()],
        "C080": [12, 96, 128],  # in the papers
        "C124": [1.75, 3.25],  # 105 and 195 seconds
        "C138": [0.9708, 0.0473],  # #ffffcc and #800026, by hand
        "C164": [0],
        "C165": [0],
        "C166": [1.0],
        "C167": [4 + 2],
        "C168": [sum(not word.startswith("<") for word in VOCABULARY)],
        "C169": [len(words), len({*words})],
        "C177": [16, 64, 16],
    }


def test_errata_against_other_ways_to_compute_them():
    found, expected = {entry.claim: entry for entry in textbook_numbers.errata()}, independent_answers()
    assert list(found) == list(expected) == sorted(found)
    for name, entry in found.items():
        assert list(entry.right) == pytest.approx(list(map(float, expected[name])), rel=1e-3, abs=1e-9), name
        assert entry.answer and entry.printed, name
    wrong = {name for name, entry in found.items() if entry.wrong}
    assert wrong == {
        *("C001", "C019", "C020", "C021", "C022", "C056", "C080", "C124", "C138", "C164", "C165", "C167"),
    }


def test_the_table_of_claims_calls_a_misprint_what_is_one():
    kinds = {row["id"]: row["kind"] for row in table.read_said()}
    for entry in textbook_numbers.errata():
        assert (kinds[entry.claim] == "erratum") == entry.wrong, entry.claim


def test_an_erratum_follows_its_numbers(monkeypatch):
    """With the right numbers in print nothing is wrong, and with wrong ones in print something is."""
    assert not textbook_numbers.row("C001", "", (0.26, 0.04, 0.71), textbook_numbers.softmax((2, 0, 3)), "").wrong
    assert textbook_numbers.row("C003", "", (0.28, 0, 0.72), textbook_numbers.softmax((2, -math.inf, 3)), "").wrong
    sat = [round(weight, 2) for weight in textbook_numbers.softmax(textbook_numbers.SAT_SCORES, 1.5)]
    for name, value in (
        ("SAT_WEIGHTS", sat), ("IT_WEIGHTS", (0.2, 0.3, 0.3)), ("TOY_SENTENCE", "the cat sat on a mat"),
        ("FRENCH", ("Le", "petit", "chat", "est", "noir")), ("PUBLISHED_HEADS", {"BERT base": 12}),
        ("SECONDS", ((330,), (700,))), ("HEADS", ((64, 4), (512, 8), (128, 4))),
    ):  # fmt: skip
        monkeypatch.setattr(textbook_numbers, name, value)
    wrong = {entry.claim for entry in textbook_numbers.errata() if entry.wrong}
    assert wrong == {"C001", "C019", "C020", "C021", "C056", "C138", "C164", "C165", "C166", "C169", "C177"}


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
    assert weight_statistics.errors_noticed(weights) == (1, 15, 15)


def test_entropy_rises_from_one_word_to_all_and_is_a_number_of_words():
    one, even = torch.eye(20, dtype=torch.float64)[0], torch.full((20,), 1 / 20, dtype=torch.float64)
    path = attention_utils.attention_entropy(torch.stack([torch.lerp(one, even, share / 4) for share in range(5)]))
    assert path.tolist() == sorted(path.tolist()) and path[0] == 0 and path[-1] == pytest.approx(math.log(20))
    middle = 0.5 + 0.5 / 20
    assert path[2] == pytest.approx(-middle * math.log(middle) - 19 * 0.025 * math.log(0.025))
    for k in range(1, 21):
        row = torch.full((k,), 1 / k, dtype=torch.float64)
        assert attention_utils.effective_context(row) == pytest.approx(k)
    peaked = torch.tensor([0.7, *19 * [0.3 / 19]])  # sharper than an even row of two, by ln n alone
    assert attention_utils.attention_entropy(peaked) > math.log(2)
    assert attention_utils.normalized_entropy(peaked) < 1


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


def test_made_patterns_are_peaked_or_even_as_said():
    """Keys ten times the queries: all on the diagonal. Random ones: spread, if divided by √d."""
    patterns = weight_statistics.made_patterns()
    even = {name: attention_utils.normalized_entropy(weights).mean() for name, weights in patterns.items()}
    assert even["K = 10 Q"] < 0.01 and even["random"] > 0.75 > 0.3 > even["random, not divided by √d"]
    assert patterns["K = 10 Q"].diagonal(dim1=-2, dim2=-1).mean() > 0.99


def test_an_object_has_no_preposition_before_it():
    assert textbook_numbers.objects(["the", "cat", "sat", "on", "the", "mat"]) == []
    assert textbook_numbers.objects(["the", "cat", "sat", "the", "mat"]) == ["mat"]
