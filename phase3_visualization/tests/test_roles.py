"""Statistics of heads against loops and heads made by hand; names against margins; the film against its training."""

import math

import numpy as np
import pytest
import torch

from phase2_multi_head.models import RECIPE
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase3_visualization import attention_flow
from phase3_visualization.roles import head_roles, role_stability, training_film
from shared import head_statistics, training
from shared.attention_utils import padding_mask
from shared.grammar import roles
from shared.grammar.scores import attended_word, share_of_others
from shared.tests.helpers import near
from shared.toy_language import TOY_SENTENCE, tokenize
from shared.toy_model import weights_of
from shared.visualization_utils import in_few_colors


def words_mask(lengths: list[int], width: int) -> torch.Tensor:
    keys = padding_mask(torch.tensor(lengths), width)
    return keys & keys.mT


def perfect_head(kind: str, length: int, width: int) -> torch.Tensor:
    """(1, 1, T, T) with T = width, the first `length` rows real; rows without the key look at themselves."""
    weights = torch.zeros(width, width, dtype=torch.float64)
    for i in range(width):
        j = {"self": i, "previous": i - 1, "next": i + 1, "first": 0}[kind]
        weights[i, j if 0 <= j < length else i] = 1
    return weights[None, None]


def of_heads(weights, mask):
    """Weight on fixed places, and how widely the weights spread."""
    found = {name: head_statistics.offset_weight(weights, mask, o) for name, o in head_statistics.OFFSETS.items()}
    first = {"first": head_statistics.first_weight(weights, mask)}
    return found | first | head_statistics.head_statistics(weights, mask)


@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.parametrize("length", [2, 3, 7])
def test_perfect_heads_score_exactly_one_and_even_ones_what_is_due(length, padding):
    mask = words_mask([length], length + padding)
    for kind, others in {"self": ("previous", "next"), "previous": ("next",), "next": ("first",), "first": ()}.items():
        weights = perfect_head(kind, length, length + padding)
        offset, found = head_statistics.OFFSETS.get(kind), of_heads(weights, mask)
        shares = head_statistics.offset_shares(weights, mask, [offset]) if offset is not None else {}
        share = shares.get(offset, head_statistics.first_share(weights, mask))
        assert found[kind].item() == share.item() == 1
        assert all(found[name].item() == 0 for name in ("entropy", *others))
    found = of_heads(head_statistics.even_weights(mask).double(), mask)
    for name in ("self", "previous", "next", "first"):
        assert found[name].item() == pytest.approx(1 / length)
    assert found["normalised entropy"].item() == pytest.approx(1)
    assert found["distance"].item() == pytest.approx((length**2 - 1) / (3 * length))


def test_statistics_match_loops_and_keep_heads_apart():
    torch.manual_seed(0)
    lengths, width = [3, 7, 5], 7
    mask = words_mask(lengths, width)
    weights = torch.randn(3, 2, width, width, dtype=torch.float64)
    weights = weights.masked_fill(~padding_mask(torch.tensor(lengths), width), -math.inf).softmax(dim=-1)
    found = of_heads(weights, mask)
    gold = torch.zeros(3, width, width, dtype=torch.bool)
    gold[0, 2, 0] = gold[1, 4, 6] = gold[1, 4, 1] = True
    rows = [(n, i) for n in range(3) for i in range(lengths[n])]
    for h in range(2):
        values = {
            "previous": [weights[n, h, i, i - 1] for n, i in rows if i > 0],
            "next": [weights[n, h, i, i + 1] for n, i in rows if i + 1 < lengths[n]],
            "first": [weights[n, h, i, 0] for n, i in rows if i > 0],
            "distance": [sum(weights[n, h, i, j] * abs(i - j) for j in range(width)) for n, i in rows],
        }
        for name, of_rows in values.items():
            near(found[name][h], torch.stack(of_rows).mean())
        right = [weights[n, h, i].argmax() == i - 1 for n, i in rows if i > 0]
        share = head_statistics.offset_shares(weights, mask, [-1])[-1][h]
        near(share, torch.stack(right).double().mean())
        on_gold = (weights[0, h, 2, 0] + weights[1, h, 4, 6] + weights[1, h, 4, 1]) / 2
        near(head_statistics.relation_weight(weights, gold)[h], on_gold)


def test_causal_heads_have_no_next_word_and_the_first_row_does_not_count():
    statistics = of_heads(perfect_head("previous", 5, 5), words_mask([5], 5).tril())
    assert statistics["next"].isnan() and statistics["previous"].item() == 1
    assert statistics["first"].item() == 0.25  # row 1 of rows 1 to 4


def test_statistics_refuse_an_additive_mask_and_a_missing_axis():
    weights, visible = torch.ones(1, 2, 3, 3) / 3, torch.ones(1, 1, 3, 3, dtype=torch.bool)
    for wrong in ((weights, visible.float()), (weights[0], visible)):
        with pytest.raises(ValueError, match=r"bool mask \(N, 1, T, T\).*unsqueeze"):
            head_statistics.head_statistics(*wrong)


SUBJECT = ("verb-subject", "forward")
BLANK = {SUBJECT: 0.3, -1: 0.2, 0: 0.2, "first": 0.2, **dict.fromkeys(roles.COLUMNS, 0.3)}


def role_scores(previous: float, first: float, subject: float, others: float = 0.0) -> roles.Scores:
    def one(value):
        return torch.tensor([[value]], dtype=torch.float64)

    by_others = {key: one(others if key == SUBJECT else 0.0) for key in roles.COLUMNS.values()}
    return roles.Scores({-1: one(previous), 0: one(0.0), "first": one(first)}, {SUBJECT: one(subject)}, by_others, {})


def test_a_head_is_named_only_above_the_published_margins_and_in_both_halves():
    def name(naming, scoring=None, blank=BLANK):
        base = roles.Baselines({SUBJECT: 0.5}, blank, {})
        return roles.role_name([(role_scores(*scores), base) for scores in (naming, scoring or naming)], 0, 0)

    assert name((0.89, 0, 0.61)) == name((0.89, 0, 0.98, 0.48)) == "verb → subject"
    assert name((0.89, 0, 0.59)) == name((0.89, 0, 0.94, 0.48)) == roles.NO_NAME  # 0.94 is not twice 0.48
    assert (name((0.91, 0, 1)), name((0.5, 0.95, 0.4))) == ("previous", "first word")
    assert name((0.5, 0, 0.61), (0.5, 0, 0.59)) == name((0.91, 0, 0.4), (0.89, 0, 0.4)) == roles.NO_NAME
    assert name((0, 0, 1, 0.51)) == "most → subject" != name((0, 0, 0.9, 0.51), (0, 0, 0.9, 0.48))
    high = BLANK | {SUBJECT: 0.7, "most → subject": 0.5}
    assert name((0.1, 0, 0.75), blank=high) == name((0, 0, 1, 0.55), blank=high) == roles.NO_NAME


@pytest.mark.parametrize(("subject", "others", "usual", "passes"), [(1, 0.2, 1, 1), (1, 0.7, 1, 0), (0.5, 0.7, 0, 0)])
def test_a_column_beats_the_two_usual_baselines_and_follows_no_relation(subject, others, usual, passes):
    halves = [(role_scores(0.95, 0, subject, others), roles.Baselines({SUBJECT: 0.5}, BLANK, {}))] * 2
    assert len(head_roles.passing(halves, 0, 0)) == passes  # a relation counts, whatever the head's name
    assert list(head_roles.strongest_column(halves).values()) == pytest.approx([subject * usual, others * usual])


def test_words_without_a_relation_are_asked_one_by_one():
    for gold in roles.golds(training.corpus()[1][:60]).values():
        asked, keys = torch.rand(gold.shape) < 0.7, gold.any(dim=-2)
        attended = attended_word(torch.rand(len(gold), 2, *gold.shape[1:]))  # two heads by chance
        pairs = [(n, i, k) for n, i, k in asked.nonzero() if i != k and keys[n, k] and not gold[n, i, k]]
        right = torch.stack([attended[n, :, i] == k for n, i, k in pairs]).double()
        near(share_of_others(attended, gold, asked), right.mean(dim=0))


def test_arrows_are_of_the_words_that_a_role_relates_and_one_head_of_each_role_has_them():
    words, four = tokenize(TOY_SENTENCE), ["verb → subject", "adjective → noun", "verb → place", "previous"]
    assert attention_flow.pairs_of("noun → determiner", words) == {(1, 0), (5, 4)}
    assert attention_flow.pairs_of("verb → place", words) == {(2, 5)}
    assert attention_flow.pairs_of("previous", words) == set()
    names = [four, ["verb → place", roles.NO_NAME, "noun → determiner"]]  # of five roles "previous" has no words here
    assert attention_flow.one_of_each(names, words) == [(0, 0), (0, 1), (1, 0), (1, 2)]


def test_a_fixed_threshold_draws_most_arrows_of_a_model_that_was_never_trained_and_a_relative_one_none():
    untrained = training.untrained(RECIPE, MultiHeadAttention)
    fixed, even = attention_flow.shares_drawn(untrained)
    assert fixed > 0.6 and even == 0


def test_two_models_that_differ_in_the_order_of_their_heads_alone():
    first = 0.5 * torch.rand(8, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    first[[0, 2, 4], [0, 1, 2]] = 1.0  # three heads, each with a role of its own
    moved, same = role_stability.same_heads(first, first.roll(1, dims=0)), role_stability.same_heads(first, first)
    assert moved["roles found in the same head"] == 0 and moved["share right, same head"] <= 0.5
    assert same["roles found in the same head"] == same["share right, same head"] == 1
    assert same["share right, mean head"] == moved["share right, mean head"] == pytest.approx(first.mean().item())


def test_the_film_shows_the_training_of_the_model_and_names_heads_as_all_pictures_do():
    recipe, words = training.Recipe("film", "masked word", 2, 1, 3, d_model=8, seed=5, stages=(0, 1)), ["the", "cat"]
    trained = training.train(recipe, MultiHeadAttention)
    looks = [training_film.look_at(trained.at_stage(step), step, words) for step in trained.stages]
    assert [look.step for look in looks] == [0, 3]
    for look, model in zip(looks, (training.new_model(recipe, MultiHeadAttention), trained.model), strict=True):
        assert torch.equal(look.weights, weights_of(model, words))
    assert looks[1].names == roles.head_names(trained, MultiHeadAttention)


def test_frames_of_the_film_keep_nothing_of_a_later_one_and_white_stays_white():
    names, scores = [[roles.NO_NAME] * 2], dict.fromkeys([*training_film.CORE_RELATIONS, "entropy"], 0.5)
    sharp, even = torch.eye(3).expand(1, 2, 3, 3), torch.full((1, 2, 3, 3), 1 / 3)
    looks = [training_film.Look(step, weights, names, scores) for step, weights in ((0, even), (2, sharp))]
    stage = training_film.Stage(looks, [3.0, 2.5], ["the", "cat", "sat"], [0.3, 0.5])
    first, second, again = in_few_colors([stage.pixels(at) for at in (0, 1, 0)])
    assert not np.array_equal(first, second) and np.array_equal(first, again)
    assert first.shape[1] == 900 and tuple(first[0, 0]) == (255, 255, 255)
