"""Statistics of heads against loops and heads made by hand; names against margins; the film against
its training.
"""

import collections
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from phase2_multi_head.models import MULTI_HEAD_RECIPE
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase3_visualization import attention_flow
from phase3_visualization.roles import head_roles, pattern_types, role_stability, training_film
from shared import head_statistics, training
from shared.attention_utils import normalized_entropy, padding_mask
from shared.grammar import roles
from shared.grammar.scores import attended_word, share_of_others
from shared.tests.helpers import EXPLORER_RECIPES, near, sharp_model
from shared.toy_language import TOY_SENTENCE, tokenize
from shared.toy_model import weights_of
from shared.visualization_utils import in_few_colors, role_color


def words_mask(lengths: list[int], width: int) -> torch.Tensor:
    keys = padding_mask(torch.tensor(lengths), width)
    return keys & keys.mT


def perfect_head(kind: str, length: int, width: int) -> torch.Tensor:
    """(1, 1, T, T) with T = width, the first `length` rows real; rows without the key look at
    themselves.
    """
    weights = torch.zeros(width, width, dtype=torch.float64)
    for i in range(width):
        j = {"self": i, "previous": i - 1, "next": i + 1, "first": 0}[kind]
        weights[i, j if 0 <= j < length else i] = 1
    return weights[None, None]


def of_heads(weights, mask):
    """Weight on fixed places, and how widely the weights spread."""
    found = {
        name: head_statistics.offset_weight(weights, mask, o)
        for name, o in head_statistics.OFFSETS.items()
    }
    first = {"first": head_statistics.first_weight(weights, mask)}
    return found | first | head_statistics.head_statistics(weights, mask)


@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.parametrize("length", [2, 3, 7])
def test_perfect_heads_score_exactly_one_and_even_ones_what_is_due(length, padding):
    mask = words_mask([length], length + padding)
    for kind, others in {
        "self": ("previous", "next"),
        "previous": ("next",),
        "next": ("first",),
        "first": (),
    }.items():
        weights = perfect_head(kind, length, length + padding)
        offset, found = head_statistics.OFFSETS.get(kind), of_heads(weights, mask)
        shares = (
            head_statistics.offset_shares(weights, mask, [offset]) if offset is not None else {}
        )
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
    weights = weights.masked_fill(~padding_mask(torch.tensor(lengths), width), -math.inf).softmax(
        dim=-1
    )
    found = of_heads(weights, mask)
    gold = torch.zeros(3, width, width, dtype=torch.bool)
    gold[0, 2, 0] = gold[1, 4, 6] = gold[1, 4, 1] = True
    rows = [(n, i) for n in range(3) for i in range(lengths[n])]
    for h in range(2):
        values = {
            "previous": [weights[n, h, i, i - 1] for n, i in rows if i > 0],
            "next": [weights[n, h, i, i + 1] for n, i in rows if i + 1 < lengths[n]],
            "first": [weights[n, h, i, 0] for n, i in rows if i > 0],
            "distance": [
                sum(weights[n, h, i, j] * abs(i - j) for j in range(width)) for n, i in rows
            ],
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
    assert statistics["next"].isnan() and statistics["previous"].item() == 1  # C108
    assert statistics["first"].item() == 0.25  # row 1 of rows 1 to 4


def test_statistics_refuse_an_additive_mask_and_a_missing_axis():
    weights, visible = torch.ones(1, 2, 3, 3) / 3, torch.ones(1, 1, 3, 3, dtype=torch.bool)
    for wrong in ((weights, visible.float()), (weights[0], visible)):
        with pytest.raises(ValueError, match=r"bool mask \(N, 1, T, T\).*unsqueeze"):
            head_statistics.head_statistics(*wrong)


# ---- names by rule

SUBJECT, PLACE = ("verb-subject", "forward"), ("verb-place", "backward")
FIXED_OFFSET = {SUBJECT: 0.5, PLACE: 0.4}
UNTRAINED = {
    SUBJECT: 0.3,
    PLACE: 0.2,
    -1: 0.2,
    0: 0.2,
    "first": 0.2,
    **dict.fromkeys(roles.COLUMN_RULES, 0.3),
}


def half_of(previous=0.0, first=0.0, subject=0.0, others=0.0, place=0.0, *, untrained=UNTRAINED):
    """Shares of one head, layer 0 head 0. A position needs 0.9, "verb → subject" 0.6, "place →
    verb" 0.5.
    """

    def one(value):
        return torch.tensor([[value]], dtype=torch.float64)

    by_others = dict.fromkeys((SUBJECT, PLACE, *roles.COLUMN_RULES.values()), one(0.0)) | {
        SUBJECT: one(others)
    }
    places = {-1: one(previous), 0: one(0.0), "first": one(first)}
    scores = roles.Scores(places, {SUBJECT: one(subject), PLACE: one(place)}, by_others, {})
    return roles.Half(scores, roles.Baselines(FIXED_OFFSET, untrained, {}))


def halves_of(naming, scoring=None, **more):
    """The same head on both halves, or another on the half that scores; the shares as half_of takes
    them.
    """
    scoring = naming if scoring is None else scoring
    return roles.Halves(half_of(**naming, **more), half_of(**scoring, **more))


def name_of(naming, scoring=None, **more):
    return roles.role_name(halves_of(naming, scoring, **more), 0, 0)


def test_a_head_is_named_only_above_the_published_margins():
    assert name_of({"previous": 0.91, "subject": 1}) == "previous"
    assert name_of({"previous": 0.5, "first": 0.95}) == "first word"
    assert name_of({"previous": 0.89, "subject": 0.61}) == "verb → subject"
    assert name_of({"previous": 0.89, "subject": 0.59}) == roles.NO_NAME
    assert name_of({"subject": 0.98, "others": 0.48}) == "verb → subject"
    assert name_of({"subject": 0.94, "others": 0.48}) == roles.NO_NAME, "0.94 is not twice 0.48"
    assert name_of({"subject": 1, "others": 0.51}) == "most → subject"


def test_a_head_must_beat_the_untrained_models_too():
    """What is needed is 0.1 more than the best untrained head, where that is more than the
    published margin.
    """
    high = UNTRAINED | {-1: 0.84, SUBJECT: 0.7, "most → subject": 0.5}
    for shares, name in (
        ({"previous": 0.93}, roles.NO_NAME),
        ({"previous": 0.95}, "previous"),
        ({"subject": 0.75}, roles.NO_NAME),
        ({"subject": 0.81}, "verb → subject"),
        ({"subject": 1, "others": 0.55}, roles.NO_NAME),
        ({"subject": 1, "others": 0.61}, "most → subject"),
    ):
        assert name_of(shares, untrained=high) == name, shares


def test_the_other_half_of_the_sentences_must_agree():
    for passes, fails in (
        ({"previous": 0.91}, {"previous": 0.89}),
        ({"subject": 0.61}, {"subject": 0.59}),
        ({"subject": 0.98, "others": 0.48}, {"subject": 0.98, "others": 0.5 - 1e-9}),
        ({"subject": 0.9, "others": 0.51}, {"subject": 0.9, "others": 0.48}),
    ):
        assert name_of(passes) != roles.NO_NAME
        assert name_of(passes, fails) == name_of(fails, passes) == roles.NO_NAME


def test_a_head_that_passes_a_second_rule_on_both_halves_is_named_after_it():
    best_fails = {"subject": 0.9, "place": 0.7}, {"subject": 0.4, "place": 0.6}
    assert name_of(*best_fails) == "place → verb"
    assert name_of({"subject": 0.9, "place": 0.7}, {"subject": 0.4, "place": 0.4}) == roles.NO_NAME
    both_pass = {"subject": 0.9, "place": 0.7}, {"subject": 0.65, "place": 0.95}
    assert name_of(*both_pass) == "verb → subject", "by the margin on the half that names"
    assert name_of({"previous": 0.9, "subject": 1}) == "previous", (
        "a position is the plainest explanation"
    )
    column = {"subject": 0.9, "others": 0.8, "place": 0.51}
    assert name_of(column) == "place → verb", "a column comes last, with whatever margin"
    nearest = roles.nearest_rule(halves_of(*best_fails), 0, 0)
    assert nearest == roles.Rule("place → verb", "relation", 0.6, 0.5)


def test_the_nearest_rule_has_the_numbers_of_the_worse_half():
    """It is passed if and only if the head has a name."""
    missed = halves_of({"subject": 0.7, "place": 0.45}, {"subject": 0.45, "place": 0.48})
    assert roles.nearest_rule(missed, 0, 0) == roles.Rule("place → verb", "relation", 0.45, 0.5)
    named = halves_of({"subject": 0.7}, {"subject": 0.65})
    assert roles.nearest_rule(named, 0, 0) == roles.Rule("verb → subject", "relation", 0.65, 0.6)
    generator = torch.Generator().manual_seed(3)
    found = set()
    for _ in range(300):
        naming, scoring = torch.rand(2, 5, generator=generator, dtype=torch.float64).tolist()
        halves = roles.Halves(half_of(*naming), half_of(*scoring))
        name, nearest = roles.role_name(halves, 0, 0), roles.nearest_rule(halves, 0, 0)
        assert (name != roles.NO_NAME) == (nearest.margin >= 0)
        assert name in (roles.NO_NAME, nearest.name)
        found.add(name)
    assert found == {
        roles.NO_NAME,
        "previous",
        "first word",
        "verb → subject",
        "most → subject",
        "place → verb",
    }


def test_a_rule_that_nobody_can_be_asked_about_is_not_passed():
    asked, nobody = {"subject": 1, "others": 0.6}, {"subject": 1, "others": math.nan}
    assert name_of(asked) == "most → subject"
    assert name_of(asked, nobody) == name_of(nobody, asked) == roles.NO_NAME


def test_the_half_that_scores_has_other_sentences_than_the_half_that_names():
    naming, scoring = (set(map(str, half)) for half in roles.halves())
    assert not naming & scoring
    assert naming | scoring == set(map(str, training.corpus()[1]))


def test_the_control_is_three_models_that_differ_on_both_halves(monkeypatch):
    seen, asked, untrained, baselines_on = [], [], training.untrained, roles.baselines_on

    def watched(recipe, make_attention):
        seen.append(recipe.seed)
        return untrained(recipe, make_attention)

    def watched_on(sentences, blanks):
        asked.append(sentences)
        assert len(blanks) == len(seen)
        return baselines_on(sentences, blanks)

    monkeypatch.setattr(training, "untrained", watched)
    monkeypatch.setattr(roles, "baselines_on", watched_on)
    recipe = training.Recipe("control", "masked word", 2, 1, 0, d_model=6, seed=77)
    found = roles.baselines(recipe, MultiHeadAttention)
    assert seen == [77, 78, 79] and asked == list(roles.halves())
    heads = []
    for seed in seen:
        blank = untrained(replace(recipe, seed=seed), MultiHeadAttention)
        heads.append(roles.scores_of(blank, roles.halves()[1]).relation[SUBJECT])
    assert found[1].untrained[SUBJECT] == torch.stack(heads).max()


def test_each_half_is_compared_with_its_own_baselines(monkeypatch):
    monkeypatch.setattr(roles, "halves", lambda: ("names", "agrees"))
    monkeypatch.setattr(roles, "baselines", lambda *_: ["bars of the first", "bars of the second"])
    monkeypatch.setattr(roles, "scores_of", lambda _, sentences: f"scores where it {sentences}")
    halves = roles.halves_of(
        training.untrained(MULTI_HEAD_RECIPE, MultiHeadAttention), MultiHeadAttention
    )
    assert halves.naming == roles.Half("scores where it names", "bars of the first")
    assert halves.scoring == roles.Half("scores where it agrees", "bars of the second")


def test_no_head_of_an_untrained_model_has_a_name():
    """With seeds that are not among those of the control."""
    blank = training.untrained(replace(MULTI_HEAD_RECIPE, seed=100), MultiHeadAttention)
    naming, scoring = roles.halves()
    for_naming, for_scoring = roles.baselines(MULTI_HEAD_RECIPE, MultiHeadAttention)
    naming, scoring = roles.scores_of(blank, naming), roles.scores_of(blank, scoring)
    halves = roles.Halves(roles.Half(naming, for_naming), roles.Half(scoring, for_scoring))
    assert roles.names_of(halves) == [[roles.NO_NAME] * 4] * 2


# Three heads in each of three layers, and five in one, with large random weights.
SHARP = {recipe.objective: recipe for recipe in EXPLORER_RECIPES if "small" in recipe.name}


def asked_one_by_one(trained, sentence, layer, head, counted):
    """Adds each answer of one head on one sentence to the lists in counted, as the rules describe
    it.
    """
    causal = trained.recipe.objective == "next word"
    layers, _ = training.attention_on(trained.model, [sentence], trained.recipe.objective)
    weights = layers[layer][0, head].tolist()
    words = range(causal, causal + len(sentence.words))  # behind <start>, before <end>
    related = {}
    for relation, pairs in sentence.relations.items():
        related[relation, "forward"] = [
            (source + causal, target + causal) for source, target in pairs
        ]
        related[relation, "backward"] = [
            (target, source) for source, target in related[relation, "forward"]
        ]
    for i in words:
        keys = range(i + 1) if causal else words
        largest = max(keys, key=lambda j: weights[i][j])
        elsewhere = max(set(keys) - {i}, key=lambda j: weights[i][j])
        counted["self"].append(largest == i)
        for offset, name in ((-1, "previous"), (2, "offset +2")):
            if i + offset in keys:
                counted[name].append(largest == i + offset)
        if i > 0:
            counted["first word"].append(largest == 0)
        for key, pairs in related.items():
            own = {target for source, target in pairs if source == i}
            if own:
                counted["related", *key].append(elsewhere in own)
            for target in {target for _, target in pairs} - own - {i}:
                if target in keys:
                    counted["others", *key].append(elsewhere == target)


@pytest.mark.parametrize("objective", SHARP)
def test_scores_are_what_is_counted_word_by_word(objective):
    trained, sentences = sharp_model(SHARP[objective]), training.corpus()[1][:41]
    scores = roles.scores_of(trained, sentences)
    names = {-1: "previous", 0: "self", 2: "offset +2", "first": "first word"}
    shares = {name: scores.place[place] for place, name in names.items()}
    for key in roles.golds(sentences):
        shares["related", *key], shares["others", *key] = scores.relation[key], scores.others[key]
    for layer, head in scores.heads:
        counted = collections.defaultdict(list)
        for sentence in sentences:
            asked_one_by_one(trained, sentence, layer, head, counted)
        for name, share in shares.items():
            expected = np.mean(counted[name]) if counted[name] else math.nan
            assert share[layer, head].item() == pytest.approx(expected, nan_ok=True), name
    nobody = {name for name, share in shares.items() if share.isnan().all()}
    behind = {
        "offset +2",
        ("others", "verb-place", "forward"),
    }  # under a causal mask no word sees what comes later
    assert nobody == (behind if objective == "next word" else set())


@pytest.mark.parametrize(
    ("subject", "others", "usual", "passes"), [(1, 0.2, 1, 1), (1, 0.7, 1, 0), (0.5, 0.7, 0, 0)]
)
def test_a_column_beats_the_two_usual_baselines_and_follows_no_relation(
    subject, others, usual, passes
):
    halves = halves_of({"previous": 0.95, "subject": subject, "others": others})
    assert (
        len(head_roles.passing(halves, 0, 0)) == passes
    )  # a relation counts, whatever the head's name
    assert list(head_roles.strongest_column(halves).values()) == pytest.approx(
        [subject * usual, others * usual]
    )


def test_words_without_a_relation_are_asked_one_by_one():
    for gold in roles.golds(training.corpus()[1][:60]).values():
        asked, keys = torch.rand(gold.shape) < 0.7, gold.any(dim=-2)
        attended = attended_word(torch.rand(len(gold), 2, *gold.shape[1:]))  # two heads by chance
        pairs = [
            (n, i, k) for n, i, k in asked.nonzero() if i != k and keys[n, k] and not gold[n, i, k]
        ]
        right = torch.stack([attended[n, :, i] == k for n, i, k in pairs]).double()
        near(share_of_others(attended, gold, asked), right.mean(dim=0))


def test_arrows_are_of_the_words_that_a_role_relates_and_one_head_of_each_role_has_them():
    words, four = (
        tokenize(TOY_SENTENCE),
        ["verb → subject", "adjective → noun", "verb → place", "previous"],
    )
    assert attention_flow.pairs_of("noun → determiner", words) == {(1, 0), (5, 4)}
    assert attention_flow.pairs_of("verb → place", words) == {(2, 5)}
    assert attention_flow.pairs_of("previous", words) == set()
    names = [
        four,
        ["verb → place", roles.NO_NAME, "noun → determiner"],
    ]  # of five roles "previous" has no words here
    assert attention_flow.one_of_each(names, words) == [(0, 0), (0, 1), (1, 0), (1, 2)]


def test_a_fixed_threshold_draws_most_arrows_of_a_model_that_was_never_trained_and_a_relative_one_none():
    untrained = training.untrained(MULTI_HEAD_RECIPE, MultiHeadAttention)
    fixed, even = attention_flow.shares_drawn(untrained)
    assert fixed > 0.6 and even == 0


def test_two_models_that_differ_in_the_order_of_their_heads_alone():
    first = 0.5 * torch.rand(8, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    first[[0, 2, 4], [0, 1, 2]] = 1.0  # three heads, each with a role of its own
    moved, same = (
        role_stability.same_heads(first, first.roll(1, dims=0)),
        role_stability.same_heads(first, first),
    )
    assert moved["roles found in the same head"] == 0 and moved["share right, same head"] <= 0.5
    assert same["roles found in the same head"] == same["share right, same head"] == 1
    assert (
        same["share right, mean head"]
        == moved["share right, mean head"]
        == pytest.approx(first.mean().item())
    )


def test_the_film_shows_the_training_of_the_model_and_names_heads_as_all_pictures_do():
    recipe, words = (
        training.Recipe("film", "masked word", 2, 1, 3, d_model=8, seed=5, stages=(0, 1)),
        ["the", "cat"],
    )
    trained = training.train(recipe, MultiHeadAttention)
    looks = [training_film.look_at(trained.at_stage(step), step, words) for step in trained.stages]
    assert [look.step for look in looks] == [0, 3]
    for look, model in zip(
        looks, (training.new_model(recipe, MultiHeadAttention), trained.model), strict=True
    ):
        assert torch.equal(look.weights, weights_of(model, words))
    assert looks[1].names == roles.head_names(trained, MultiHeadAttention)
    layers, mask = training.attention_on(trained.model, roles.halves()[1], "masked word")
    near(
        looks[1].entropy[0],
        normalized_entropy(layers[0], mask).nanmean(dim=(0, 2)).double(),
        share=1e-5,
    )


def test_frames_of_the_film_keep_nothing_of_a_later_one_and_white_stays_white():
    names, scores = [[roles.NO_NAME] * 2], dict.fromkeys(training_film.CORE_RELATIONS, 0.5)
    sharp, even = torch.eye(3).expand(1, 2, 3, 3), torch.full((1, 2, 3, 3), 1 / 3)
    before = training_film.Look(0, even, names, scores, torch.tensor([[1.0, 1.0]]))
    after = training_film.Look(
        2, sharp, [["previous", roles.NO_NAME]], scores, torch.tensor([[0.25, 0.5]])
    )
    looks = [before, after]
    stage = training_film.Stage(looks, [3.0, 2.5], ["the", "cat", "sat"], [0.3, 0.5])
    first, second, again = in_few_colors([stage.pixels(at) for at in (0, 1, 0)])
    assert not np.array_equal(first, second) and np.array_equal(first, again)
    assert first.shape[1] == 900 and tuple(first[0, 0]) == (255, 255, 255)
    stage.show(1)
    one, other = stage.entropies[0]
    assert one.get_xydata().tolist() == [[0, 1], [2, 0.25]] and other.get_xydata().tolist() == [
        [0, 1],
        [2, 0.5],
    ]
    assert (one.get_color(), other.get_color()) == (
        role_color("previous"),
        role_color(roles.NO_NAME),
    )
    assert stage.mean_entropy.get_ydata() == [1, 0.375]
    assert stage.mean_written.get_text() == "mean 0.38"


def test_a_cell_of_the_film_stays_until_it_has_moved_visibly_and_ends_as_it_is():
    weights = [
        torch.tensor(each) for each in ([0.5, 0.5], [0.48, 0.52], [0.46, 0.54], [0.45, 0.55])
    ]
    shown = training_film.calm(weights)
    assert [each.tolist() for each in shown] == [weights[i].tolist() for i in (0, 0, 2, 3)]


# ---- pattern types


def test_patterns_made_by_hand_are_attention_worked_out_by_loops():
    first = pattern_types.drawn_to_the_first(3)
    near(first, torch.tensor([[math.e**4, 1, 1]] * 3) / (math.e**4 + 2))
    generator = torch.Generator().manual_seed(5)
    query = torch.randn(7, pattern_types.D_K, generator=generator)
    drawn_query, drawn_key = torch.randn(2, 7, pattern_types.D_K, generator=generator)
    generator.manual_seed(5)
    alike, random = (
        pattern_types.keys_like_queries(7, generator),
        pattern_types.unrelated_keys(7, generator),
    )
    for weights, queries, keys in ((alike, query, 10 * query), (random, drawn_query, drawn_key)):
        for i in range(7):
            scores = [
                float(queries[i].double() @ key.double()) / 8 for key in keys
            ]  # 8 is the root of 64
            fits = [math.exp(score - max(scores)) for score in scores]
            expected = torch.tensor(fits, dtype=torch.float64) / sum(fits)
            near(weights[i].double(), expected, share=1e-5)
    assert alike.diagonal().min() > 0.99 > 0.9 > random.max()


def test_a_pattern_is_scored_in_its_own_place_and_a_column_by_the_fullest():
    def two_heads(*shares):
        return torch.tensor([shares], dtype=torch.float64)

    places = {
        0: two_heads(0.1, 0.2),
        -1: two_heads(0.3, 0.4),
        1: two_heads(0.5, 0.6),
        "first": two_heads(0.7, 0.8),
    }
    columns = (two_heads(0.2, 0.9), two_heads(0.5, 0.1), two_heads(0.4, 0.3))
    others = dict(zip(roles.COLUMN_RULES.values(), columns, strict=True))
    shares = pattern_types.shares_of(roles.Scores(places, {}, others, {}))
    expected = {
        "itself": (0.1, 0.2),
        "previous": (0.3, 0.4),
        "next": (0.5, 0.6),
        "first word": (0.7, 0.8),
    }
    expected["one word"] = (0.5, 0.9)
    assert {name: tuple(share[0].tolist()) for name, share in shares.items()} == expected
    assert pattern_types.place_of_largest(torch.tensor([[0.1, 0.2, 0.3], [0.2, 0.9, 0.8]])) == (
        1,
        1,
    )


def test_the_weight_on_itself_is_the_mean_of_the_diagonal_over_words_alone():
    recipe = training.Recipe("diagonal", "masked word", 2, 1, 0, d_model=8)
    model = sharp_model(recipe)
    found, sentences = pattern_types.weight_on_itself(model), roles.halves()[1]
    for head in range(2):
        own = []
        for sentence in sentences:
            own.extend(weights_of(model.model, list(sentence.words))[0, head].diagonal().tolist())
        assert found[0, head].item() == pytest.approx(sum(own) / len(own), rel=1e-5)


def test_the_relation_that_is_drawn_is_the_one_with_the_largest_margin_on_the_worse_half():
    both = halves_of(
        {"subject": 0.95, "place": 0.8}, {"subject": 0.65, "place": 0.7}
    )  # 0.6 and 0.5 are needed
    place, rule = pattern_types.strongest_relation(both)
    assert (place, rule) == ((0, 0), roles.Rule("place → verb", "relation", 0.7, 0.5))
    words = tokenize(TOY_SENTENCE)
    assert pattern_types.related_cells("place → verb", words) == [[5, 2]]
    assert pattern_types.related_cells("determiner → noun", words) == [[0, 1], [4, 5]]
    assert pattern_types.related_cells("most → subject", words) == []
