"""Statistics of heads against loops, names of heads against their margins, pictures of heads."""

import collections
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex

from phase2_multi_head.models import MULTI_HEAD_RECIPE
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase3_visualization import attention_flow
from phase3_visualization.roles import head_roles, role_stability
from shared import charts
from shared.attention_utils import attention_entropy
from shared.grammar import roles
from shared.grammar.scores import best_fixed_offset, gold_masks, related_pairs
from shared.tests.helpers import EXPLORER_RECIPES, near, sharp_model
from shared.toy_language import TOY_SENTENCE, tokenize
from shared.training.objectives import attention_weights, corpus
from shared.training.recipes import Recipe, untrained_model
from shared.visualization_utils import GREY, VIOLET


def test_a_mean_of_sharp_heads_is_no_head():
    """C130."""
    heads = torch.eye(4)[:, None]  # (H, T_q, T_k): each looks at another word
    assert attention_entropy(heads).max() == 0
    near(attention_entropy(heads.mean(dim=0)).item(), math.log(4), share=1e-6)


# ---- names by rule

SUBJECT, PLACE = ("verb-subject", "forward"), ("verb-place", "backward")
FIXED_OFFSET = {SUBJECT: 0.5, PLACE: 0.4}
UNTRAINED = {SUBJECT: 0.3, PLACE: 0.2, -1: 0.2, 0: 0.2, "first": 0.2}
UNTRAINED |= dict.fromkeys(roles.COLUMN_RULES, 0.3)
HIGH = UNTRAINED | {-1: 0.84, SUBJECT: 0.7, "most → subject": 0.5}


def half_of(previous=0.0, first=0.0, subject=0.0, others=0.0, place=0.0, *, untrained=UNTRAINED):
    """Shares of one head. A position needs 0.9, "verb → subject" 0.6, "place → verb" 0.5."""
    places = {-1: previous, 0: 0.0, "first": first}
    relations = {SUBJECT: subject, PLACE: place}
    by_others = dict.fromkeys((SUBJECT, PLACE, *roles.COLUMN_RULES.values()), 0.0)
    by_others[SUBJECT] = others
    scores = []
    for shares in (places, relations, by_others):
        one_head = {}
        for key, share in shares.items():
            one_head[key] = torch.tensor([[share]], dtype=torch.float64)
        scores.append(one_head)
    return roles.Half(roles.Scores(*scores, {}), roles.Baselines(FIXED_OFFSET, untrained))


def halves_of(naming, scoring=None, untrained=UNTRAINED):
    """The same head on both halves, or another on the half that scores."""
    naming_half = half_of(**naming, untrained=untrained)
    return roles.Halves(naming_half, half_of(**(scoring or naming), untrained=untrained))


def name_of(naming, scoring=None, untrained=UNTRAINED):
    return roles.role_name(halves_of(naming, scoring, untrained), 0, 0)


@pytest.mark.parametrize(
    ("shares", "untrained", "name"),
    [
        # The published margins.
        ({"previous": 0.91, "subject": 1}, UNTRAINED, "previous"),
        ({"previous": 0.5, "first": 0.95}, UNTRAINED, "first word"),
        ({"previous": 0.89, "subject": 0.61}, UNTRAINED, "verb → subject"),
        ({"previous": 0.89, "subject": 0.59}, UNTRAINED, roles.NO_NAME),
        # Twice as often as the others: 0.94 is not twice 0.48.
        ({"subject": 0.98, "others": 0.48}, UNTRAINED, "verb → subject"),
        ({"subject": 0.94, "others": 0.48}, UNTRAINED, roles.NO_NAME),
        ({"subject": 1, "others": 0.51}, UNTRAINED, "most → subject"),
        ({"subject": 1, "others": math.nan}, UNTRAINED, "verb → subject"),  # there are no others
        # 0.1 more than the best untrained head, where that is more.
        ({"previous": 0.93}, HIGH, roles.NO_NAME),
        ({"previous": 0.95}, HIGH, "previous"),
        ({"subject": 0.75}, HIGH, roles.NO_NAME),
        ({"subject": 0.81}, HIGH, "verb → subject"),
        ({"subject": 1, "others": 0.55}, HIGH, roles.NO_NAME),
        ({"subject": 1, "others": 0.61}, HIGH, "most → subject"),
        # A position is the plainest explanation, and a column comes last, with whatever margin.
        ({"previous": 0.9, "subject": 1}, UNTRAINED, "previous"),
        ({"subject": 0.9, "others": 0.8, "place": 0.51}, UNTRAINED, "place → verb"),
    ],
)
def test_a_head_is_named_by_the_plainest_rule_that_it_passes(shares, untrained, name):
    assert name_of(shares, untrained=untrained) == name


@pytest.mark.parametrize(
    ("passes", "fails"),
    [
        ({"previous": 0.91}, {"previous": 0.89}),
        ({"subject": 0.61}, {"subject": 0.59}),
        ({"subject": 0.98, "others": 0.48}, {"subject": 0.98, "others": 0.5 - 1e-9}),
        ({"subject": 0.9, "others": 0.51}, {"subject": 0.9, "others": 0.48}),
        ({"subject": 1, "others": 0.6}, {"subject": 1, "others": math.nan}),  # nobody is asked
    ],
)
def test_the_other_half_of_the_sentences_must_agree(passes, fails):
    assert name_of(passes) != roles.NO_NAME
    assert name_of(passes, fails) == name_of(fails, passes) == roles.NO_NAME


def test_of_the_relations_that_pass_on_both_halves_the_margin_on_the_first_decides():
    naming = {"subject": 0.9, "place": 0.7}
    assert name_of(naming, {"subject": 0.4, "place": 0.4}) == roles.NO_NAME
    assert name_of(naming, {"subject": 0.4, "place": 0.6}) == "place → verb"
    assert name_of(naming, {"subject": 0.65, "place": 0.95}) == "verb → subject"


def test_the_nearest_rule_has_the_numbers_of_the_worse_half():
    """It is the rule that names the head, even if another has a larger margin there."""
    missed = halves_of({"subject": 0.7, "place": 0.45}, {"subject": 0.45, "place": 0.48})
    missed_by_least = roles.nearest_rule(missed, 0, 0).worse
    assert missed_by_least == roles.Rule("place → verb", "relation", 0.45, 0.5)
    named = halves_of({"subject": 0.9, "place": 0.7}, {"subject": 0.65, "place": 0.95})
    naming = roles.nearest_rule(named, 0, 0).worse
    assert naming == roles.Rule("verb → subject", "relation", 0.65, 0.6)


def test_the_half_that_scores_has_other_sentences_than_the_half_that_names():
    naming, scoring = roles.halves()
    assert not {*map(str, naming)} & {*map(str, scoring)}
    assert len(naming) + len(scoring) == len(corpus()[1])


def test_the_control_is_three_untrained_models_on_each_half():
    recipe = Recipe("control", "masked word", 2, 1, 0, d_model=6, seed=77)
    blanks = []
    for seed in (77, 1_000_077, 2_000_077):  # a million apart: no neighbour has one of them
        blanks.append(untrained_model(replace(recipe, seed=seed), MultiHeadAttention))
    expected = [roles.baselines_on(sentences, blanks) for sentences in roles.halves()]
    assert roles.baselines(recipe, MultiHeadAttention) == expected
    last_half = roles.halves()[1]
    scores = [roles.scores_of(blank, last_half) for blank in blanks]
    heads = torch.stack([of_model.relation[SUBJECT] for of_model in scores])
    others = torch.stack([of_model.others[SUBJECT] for of_model in scores])
    assert expected[1].untrained[SUBJECT] == heads.max()
    assert expected[1].untrained["most → subject"] == others.max()
    gold = gold_masks(last_half, "masked word")[SUBJECT]
    assert expected[1].fixed_offset[SUBJECT] == best_fixed_offset(gold) > 0.1


def test_each_half_is_compared_with_its_own_baselines(monkeypatch):
    monkeypatch.setattr(roles, "halves", lambda: ("names", "agrees"))
    monkeypatch.setattr(roles, "baselines", lambda *_: ["bars of the first", "bars of the second"])
    monkeypatch.setattr(roles, "scores_of", lambda _, sentences: f"scores where it {sentences}")
    blank = untrained_model(MULTI_HEAD_RECIPE, MultiHeadAttention)
    halves = roles.halves_of(blank, MultiHeadAttention)
    assert halves.naming == roles.Half("scores where it names", "bars of the first")
    assert halves.scoring == roles.Half("scores where it agrees", "bars of the second")


def test_no_head_of_an_untrained_model_has_a_name():
    """With a seed that is not among those of the control."""
    blank = untrained_model(replace(MULTI_HEAD_RECIPE, seed=100), MultiHeadAttention)
    assert roles.head_names(blank, MultiHeadAttention) == [[roles.NO_NAME] * 4] * 2


# Three heads in each of three layers, and five in one, with large random weights.
SHARP = {recipe.objective: recipe for recipe in EXPLORER_RECIPES if "small" in recipe.name}


def both_ways(sentence, start):
    """(relation, direction) -> pairs of a word and the word that it is related to."""
    pairs = {}
    for relation, forward in sentence.relations.items():
        shifted = [(source + start, target + start) for source, target in forward]
        pairs[relation, "forward"] = shifted
        pairs[relation, "backward"] = [(target, source) for source, target in shifted]
    return pairs


def asked_one_by_one(trained, sentence, layer, head, counted):
    """Adds each answer of one head on one sentence to the lists in counted."""
    causal = trained.recipe.objective == "next word"
    layers, _ = attention_weights(trained.model, [sentence], trained.recipe.objective)
    weights = layers[layer][0, head].tolist()
    words = range(causal, causal + len(sentence.words))  # behind <start>, before <end>
    for i in words:
        keys = range(i + 1) if causal else words
        largest = max(keys, key=lambda j: weights[i][j])
        elsewhere = max(set(keys) - {i}, key=lambda j: weights[i][j])
        for place, j in ((0, i), (-1, i - 1), (2, i + 2), ("first", 0)):
            if j in keys and (i > 0 or place != "first"):
                counted[place].append(largest == j)
        for key, pairs in both_ways(sentence, causal).items():
            own = {target for source, target in pairs if source == i}
            if own:
                counted["related", *key].append(elsewhere in own)
            for target in {target for _, target in pairs} - own - {i}:
                if target in keys:
                    counted["others", *key].append(elsewhere == target)


@pytest.mark.parametrize("objective", SHARP)
def test_scores_are_what_is_counted_word_by_word(objective):
    trained, sentences = sharp_model(SHARP[objective]), corpus()[1][:41]
    scores = roles.scores_of(trained, sentences)
    shares = {position: scores.position[position] for position in (-1, 0, 2, "first")}
    for key in roles.gold_masks(sentences):
        shares["related", *key], shares["others", *key] = scores.relation[key], scores.others[key]
    for layer, head in scores.heads:
        counted = collections.defaultdict(list)
        for sentence in sentences:
            asked_one_by_one(trained, sentence, layer, head, counted)
        for name, share in shares.items():
            expected = np.mean(counted[name]) if counted[name] else math.nan
            assert share[layer, head].item() == pytest.approx(expected, nan_ok=True), name
    nobody = {name for name, share in shares.items() if share.isnan().all()}
    # Under a causal mask no word sees what comes later (C108, C109).
    behind = {2, ("others", "verb-place", "forward")}
    assert nobody == (behind if objective == "next word" else set())


@pytest.mark.parametrize(
    ("subject", "others", "beats", "follows"), [(1, 0.2, 1, 1), (1, 0.7, 1, 0), (0.5, 0.7, 0, 0)]
)
def test_a_column_beats_the_two_usual_baselines_and_follows_no_relation(
    subject, others, beats, follows
):
    halves = halves_of({"previous": 0.95, "subject": subject, "others": others})
    assert len(head_roles.passing(halves, 0, 0)) == follows  # whatever the head's name
    column = list(head_roles.strongest_column(halves).values())
    assert column == pytest.approx([subject * beats, others * beats])


def test_arrows_are_of_the_words_that_a_role_relates_and_one_head_of_each_role_has_them():
    words = tokenize(TOY_SENTENCE)
    assert related_pairs("noun → determiner", words) == {(1, 0), (5, 4)}
    assert related_pairs("verb → place", words) == {(2, 5)}
    assert related_pairs("previous", words) == related_pairs("most → subject", words) == set()
    # Of five roles "previous" has no words here.
    first = ["verb → subject", "adjective → noun", "verb → place", "previous"]
    second = ["verb → place", roles.NO_NAME, "noun → determiner"]
    heads = attention_flow.one_of_each([first, second], words)
    assert heads == [(0, 0), (0, 1), (1, 0), (1, 2)]


def test_every_large_weight_has_an_arrow_and_those_that_name_the_head_its_colour(monkeypatch):
    """All words look at the word before; head 0.1 has no name."""
    monkeypatch.setattr(attention_flow, "head_names", lambda *_: [["verb → subject", "no name"]])
    before = torch.eye(6).roll(1, dims=0).expand(1, 2, -1, -1)
    monkeypatch.setattr(attention_flow, "weights_on_sentence", lambda *_: before)
    untrained = untrained_model(MULTI_HEAD_RECIPE, MultiHeadAttention)
    for head, colors in enumerate(([charts.PALE] * 5 + [VIOLET], [GREY] * 6)):
        figure, _ = attention_flow.draw_arrows(untrained, tokenize(TOY_SENTENCE), [(0, head)])
        drawn = [to_hex(arc.get_facecolor()) for arc in figure.axes[0].patches]
        assert sorted(drawn) == sorted(colors)
        assert ("its role" in figure.get_supxlabel()) == (head == 0)


def test_a_fixed_threshold_draws_most_arrows_of_an_untrained_model_and_a_relative_one_none():
    untrained = untrained_model(MULTI_HEAD_RECIPE, MultiHeadAttention)
    fixed, relative = attention_flow.shares_drawn(untrained, TOY_SENTENCE.split())
    assert fixed > 0.6 and relative == 0


def test_two_models_that_differ_in_the_order_of_their_heads_alone():
    first = 0.5 * torch.rand(8, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    first[[0, 2, 4], [0, 1, 2]] = 1.0  # three heads, each with a role of its own
    mean = pytest.approx(first.mean().item())
    found, right, any_head = role_stability.same_heads(first, first).values()
    assert (found, right, any_head) == (1, 1, mean)
    found, right, any_head = role_stability.same_heads(first, first.roll(1, dims=0)).values()
    assert found == 0 and right <= 0.5 and any_head == mean
