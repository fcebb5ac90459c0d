"""Statistics of heads against loops and heads made by hand; names against margins; the film against its training."""

import math

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase3_visualization import attention_3d, attention_flow
from phase3_visualization.roles import entropy_and_distance, head_roles, role_stability, training_film
from shared import head_statistics, training
from shared.attention_utils import padding_mask
from shared.grammar import roles
from shared.grammar.scores import HeadScore
from shared.toy_language import TOY_SENTENCE, tokenize
from shared.toy_model import weights_of
from shared.visualization_utils import WEIGHT_MAP, save_animation

FILM_DTYPE = torch.float64


def film_masks(lengths, causal):
    """(N, 1, T, T) bool, by loops."""
    size = max(lengths)
    mask = torch.zeros(len(lengths), 1, size, size, dtype=torch.bool)
    for n, length in enumerate(lengths):
        for i in range(length):
            for j in range(length):
                mask[n, 0, i, j] = not causal or j <= i
    return mask


def film_score(accuracy, layer=0, head=0):
    return HeadScore(layer, head, "forward", accuracy)


def film_rigged(accuracies):
    """A film whose best heads have these accuracies, look by look; every relation alike, the same head."""
    best = [{r: film_score(a, 1, 2) for r in training_film.CORE_RELATIONS} for a in accuracies]
    film = training_film.Film(loss=[3.0, 2.5, 2.0, 1.5, 1.0, 0.5, 0.4, 0.3], steps=[0, 2, 4, 8][: len(best)])
    film.best = best
    film.weights = [torch.full((2, 4, 3, 3), 1 / 3) for _ in best]
    film.weights[-1] = torch.eye(3).expand(2, 4, 3, 3).clone()
    film.names = {step: [[roles.NO_NAME] * 4, [roles.NO_NAME] * 4] for step in film.steps}
    film.names[film.steps[-1]][1][2] = "verb → subject"
    return film


@pytest.mark.parametrize("causal", [False, True])
def test_distance_is_the_loop_over_real_queries(causal):
    lengths = [5, 3, 7]
    mask = film_masks(lengths, causal)
    torch.manual_seed(1)
    scores = torch.randn(3, 2, 7, 7, dtype=FILM_DTYPE).masked_fill(~mask, -math.inf)
    weights = scores.softmax(dim=-1).nan_to_num(1 / 7)  # rows of padding hold something, which must not count
    got = head_statistics.head_statistics(weights, mask)["distance"]
    for head in range(2):
        rows = [weights[n, head, i] for n, length in enumerate(lengths) for i in range(length)]
        places = [i for length in lengths for i in range(length)]
        total = sum(row[j].item() * abs(i - j) for i, row in zip(places, rows, strict=True) for j in range(7))
        assert got[head].item() == pytest.approx(total / sum(lengths), abs=1e-12)


def test_film_untrained_causal_model_reaches_about_as_far_as_even_weights():
    recipe = training.Recipe("film_test", "next word", 4, 2, 0)
    trained = training.untrained(recipe, MultiHeadAttention)
    found = entropy_and_distance.measure(trained, 20)
    assert torch.equal(found.trained, found.untrained) and found.trained.shape == (2, 4)
    lengths = [len(sentence.words) + 2 for sentence in training.corpus()[1][:20]]
    assert found.even == pytest.approx(sum(n * (n - 1) / 4 for n in lengths) / sum(lengths), rel=1e-5)
    assert found.trained.mean().item() == pytest.approx(found.even, rel=0.15)


def test_entropy_falls_by_the_mean_of_the_heads_in_the_model_where_it_falls_less():
    curve = lambda rows: ([0, 1, 2], torch.tensor(rows, dtype=FILM_DTYPE)[:, None])  # noqa: E731  (S, H) -> (S, 1, H)
    found = entropy_and_distance.entropies(
        {"one": curve([[1.0, 0.9], [0.2, 0.2], [0.4, 0.9]]), "other": curve([[1.0, 1.0], [0.9, 0.5], [0.9, 0.9]])}
    )
    assert found["one, first"] == pytest.approx(0.95) and found["one, lowest"] == pytest.approx(0.2)
    assert found["one, last"] == pytest.approx(0.65) and found["one, heads 0.1 below their start"] == 0.5
    assert found[entropy_and_distance.FALL] == pytest.approx(0.1)


def test_film_entropy_curve_ends_with_the_finished_model():
    recipe = training.Recipe("film_test", "masked word", 2, 1, 3, d_model=8)
    trained = training.untrained(recipe, MultiHeadAttention)
    trained.recipe, trained.history = recipe, training.History([3, 2, 1], [0, 1, 2], [[[0.9, 0.8]]] * 3)
    steps, entropy = entropy_and_distance.entropy_curve(trained)
    now = training.head_entropy(trained.model, training.corpus()[1][:64], "masked word")
    assert steps == [0, 1, 2, 3] and entropy.shape == (4, 1, 2)
    assert entropy[-1].tolist() == [pytest.approx(now[0])] and entropy[0, 0].tolist() == pytest.approx([0.9, 0.8])


def test_film_looks_come_at_even_steps():
    assert training_film.look_steps(400, 41) == list(range(0, 401, 10))
    assert training_film.look_steps(1, 5) == [0, 1]


def test_film_step_at_share_is_counted_from_the_baseline():
    steps, scores = [0, 2, 4, 8], [0.1, 0.4, 0.8, 1.0]
    assert [training_film.step_at_share(steps, scores, 0.1, share) for share in (0, 0.25, 0.75, 1)] == [0, 2, 4, 8]
    assert training_film.step_at_share(steps, scores, 0.6, 0.5) == 4  # half of the way from 0.6 to 1


def test_film_up_to_a_step_has_the_looks_asked_for_alone():
    film = film_rigged([0.2, 0.5, 0.7, 0.9]).at([0, 4])
    assert film.steps == [0, 4] and film.loss == [3.0, 2.5, 2.0, 1.5] and film.scores("verb-place") == [0.2, 0.7]
    assert len(film.weights) == 2


def test_film_names_heads_as_all_pictures_do():
    recipe = training.Recipe("film_test", "masked word", 2, 1, 3, d_model=8)
    film = training_film.shoot(recipe, ["the", "cat"], {0, 3}, 4, named={3})
    trained = training.train(recipe, MultiHeadAttention)
    assert film.names == {3: roles.head_names(trained, MultiHeadAttention)}


def test_film_writes_names_of_lines_apart_from_each_other_and_around_their_middle():
    heights = training_film.apart({"low": 0.1, "middle": 0.5, "as high": 0.5, "near": 0.47}, 0.09, 1)
    assert heights == pytest.approx({"middle": 0.58, "as high": 0.49, "near": 0.4, "low": 0.1})
    assert training_film.apart({"one": 1.0, "other": 1.0}, 0.1, 1.02) == pytest.approx({"one": 1.02, "other": 0.92})


def test_film_baseline_is_the_better_of_offset_and_untrained_head():
    film = film_rigged([0.5, 0.9])
    offsets = {"determiner-noun": 0.7, "verb-subject": 0.2, "verb-place": 0.5}
    base = training_film.baselines(film, offsets)
    assert base == {"determiner-noun": 0.7, "verb-subject": 0.5, "verb-place": 0.5}


def test_film_headline_names_the_step_or_boasts_of_nothing():
    base = dict.fromkeys(training_film.CORE_RELATIONS, 0.3)
    assert "verb-place 4, of 16" in training_film.summary(film_rigged([0.2, 0.5, 0.7, 0.9]), base, 16)
    assert "no head has a role" in training_film.summary(film_rigged([0.2, 0.3, 0.4, 0.4]), base, 16)
    numbers = training_film.rises(film_rigged([0.2, 0.5, 0.7, 0.9]), base, 80)
    assert numbers["verb-place, steps for the middle half"] == 6 / 80 and numbers.claims[0].holds(numbers)
    numbers = training_film.rises(film_rigged([0.2, 0.3, 0.4, 0.4]), base, 80)  # no rise, and so no middle of it
    assert "verb-place, steps for the middle half" not in numbers and not numbers.claims[0].holds(numbers)


def test_film_even_growth_takes_half_of_the_steps():
    steps = list(range(101))
    assert training_film.middle_half(steps, [step / 100 for step in steps], 0, 100) == training_film.EVEN
    assert training_film.middle_half(steps, [float(step > 30) for step in steps], 0, 100) == 0


class FilmRiggedModel(torch.nn.Module):
    """Attends evenly but for a share `sure` that goes from the verb's position to the subject's, as told."""

    def __init__(self, gold, sure):
        super().__init__()
        self.gold, self.sure = gold, sure
        self.register_buffer("positions", torch.zeros(1))

    def forward(self, tokens, mask=None):
        size = tokens.size(1)
        visible = torch.ones(len(tokens), 1, size, size, dtype=torch.bool) if mask is None else mask
        even = head_statistics.even_weights(visible.expand(len(tokens), 1, size, size))
        told = even.clone()
        if len(tokens) > 1:
            for n, (verb, subject) in enumerate(self.gold):
                told[n, 0, verb] = torch.eye(size)[subject]
        blend = self.sure * told + (1 - self.sure) * even
        blend[..., 0] += 1e-3  # without a choice of its own, the first word wins
        return None, [blend / blend.sum(-1, keepdim=True)]


def test_film_role_score_rises_on_a_rigged_model():
    sentences = training.corpus()[1][:30]
    gold = [sentence.relations["verb-subject"][0] for sentence in sentences]
    film = training_film.Film()
    for step, sure in enumerate((0.0, 1.0)):
        training_film.look(film, FilmRiggedModel(gold, sure), step, ["the", "cat", "sat"], 30)
    before, after = film.scores("verb-subject")
    assert after == 1.0 and before < 0.7
    assert [tuple(w.shape) for w in film.weights] == [(1, 1, 3, 3)] * 2 and film.steps == [0, 1]


def test_film_is_the_first_part_of_the_training_that_it_shows():
    recipe = training.Recipe("film_test", "masked word", 2, 1, 6, d_model=8, seed=5)
    one, two = (training_film.shoot(recipe, ["the", "cat"], {0, 2, 3}, 4) for _ in range(2))
    trained = training.train(recipe, MultiHeadAttention)
    assert one.steps == [0, 2, 3] and one.loss == two.loss == trained.history.loss[:3]
    assert all(torch.equal(a, b) for a, b in zip(one.weights, two.weights, strict=True))
    assert not torch.equal(one.weights[0], one.weights[-1])
    assert torch.equal(one.weights[0], weights_of(training.new_model(recipe, MultiHeadAttention), ["the", "cat"]))
    whole = training_film.shoot(recipe, ["the", "cat"], {6}, 4)
    assert torch.equal(whole.weights[-1], weights_of(trained.model, ["the", "cat"]))


def test_film_frames_have_one_size_change_and_become_a_gif_that_holds_the_last(tmp_path):
    film = film_rigged([0.2, 0.5, 0.7, 0.9])
    base = dict.fromkeys(training_film.CORE_RELATIONS, 0.3)
    stage = training_film.Stage(film, ["the", "cat", "sat"], base, "note")
    frames = training_film.frames_of(stage, [0, 1, 3])
    assert {frame.shape for frame in frames} == {(*frames[0].shape[:2], 3)} and frames[0].shape[1] == 900
    assert not np.array_equal(frames[0], frames[1]) and not np.array_equal(frames[1], frames[2])
    assert np.array_equal(frames[0], training_film.frames_of(stage, [0, 3])[0])  # nothing of a later frame stays
    titles = [ax.get_title() for ax in stage.heads.flat]  # of the last frame: the head with a role has its name
    assert titles[:7] == ["head 0.0", "head 0.1", "head 0.2", "head 0.3", "head 1.0", "head 1.1", "verb → subject"]
    assert stage.title.get_text() == "Step 8 of 8: 1 of 8 heads has a role"
    colors = {tuple(color) for frame in frames for color in frame.reshape(-1, 3)}
    assert (255, 255, 255) in colors and colors <= set(map(tuple, training_film.palette()))
    path = save_animation(frames + frames[-1:] * 4, tmp_path / "film.gif", caption="c", seconds_per_frame=0.2)
    with Image.open(path) as image:
        assert image.n_frames == 3
        image.seek(2)
        assert image.info["duration"] == 1000
    assert path.stat().st_size < 200_000


ROLE_LENGTHS = (2, 3, 7, 11)


def perfect_head(kind: str, length: int, width: int) -> Tensor:
    """(T, T) with T = width, the first `length` rows real; rows without the key look at themselves."""
    weights = torch.zeros(width, width, dtype=torch.float64)
    for i in range(width):
        if kind == "even":
            weights[i, :length] = 1 / length
        else:
            j = {"self": i, "previous": i - 1, "next": i + 1, "first": 0}[kind]
            weights[i, j if 0 <= j < length else i] = 1
    return weights


def role_mask(lengths: list[int], width: int) -> Tensor:
    keys = padding_mask(torch.tensor(lengths), width)
    return keys & keys.mT


@pytest.mark.parametrize("kind", ["self", "previous", "next", "first"])
@pytest.mark.parametrize("padding", [0, 3])
def test_perfect_heads_score_exactly_one_at_every_length(kind, padding):
    for length in ROLE_LENGTHS:
        width = length + padding
        weights = perfect_head(kind, length, width)[None, None]
        statistics = head_statistics.head_statistics(weights, role_mask([length], width))
        assert statistics[kind].item() == 1
        share = (
            head_statistics.first_share(weights, role_mask([length], width))
            if kind == "first"
            else head_statistics.offset_share(weights, role_mask([length], width), head_statistics.OFFSETS[kind])
        )
        assert share.item() == 1
        assert statistics["entropy"].item() == 0 and statistics["effective context"].item() == 1
        for other in {"self": ("previous", "next", "first"), "previous": ("next",), "next": ("previous", "first")}.get(
            kind, ("next",)
        ):
            assert statistics[other].item() == 0


def test_even_head_spreads_over_all_real_words_whatever_the_padding():
    for length in ROLE_LENGTHS:
        for width in (length, length + 2):
            weights = perfect_head("even", length, width)[None, None]
            statistics = head_statistics.head_statistics(weights, role_mask([length], width))
            for name in ("self", "previous", "next", "first", "largest weight"):
                torch.testing.assert_close(statistics[name].item(), 1 / length)
            torch.testing.assert_close(statistics["normalised entropy"].item(), 1.0)
            torch.testing.assert_close(statistics["effective context"].item(), float(length))
            torch.testing.assert_close(statistics["distance"].item(), (length**2 - 1) / (3 * length))


def test_sink_score_is_the_share_of_sentences_above_the_threshold():
    sink, even = perfect_head("first", 5, 7), perfect_head("even", 7, 7)
    weights = torch.stack([sink, even])[:, None]
    assert head_statistics.sink_score(weights, role_mask([5, 7], 7)).item() == 0.5


def test_statistics_match_loops_and_keep_heads_apart():
    torch.manual_seed(0)
    lengths, width = [3, 7, 5], 7
    mask = role_mask(lengths, width)
    weights = torch.randn(3, 2, width, width, dtype=torch.float64)
    weights = weights.masked_fill(~padding_mask(torch.tensor(lengths), width), -torch.inf).softmax(dim=-1)
    found = head_statistics.head_statistics(weights, mask)
    gold = torch.zeros(3, width, width, dtype=torch.bool)
    gold[0, 2, 0] = gold[1, 4, 6] = gold[1, 4, 1] = True
    for h in range(2):
        previous = [weights[n, h, i, i - 1] for n in range(3) for i in range(1, lengths[n])]
        following = [weights[n, h, i, i + 1] for n in range(3) for i in range(lengths[n] - 1)]
        first = [weights[n, h, i, 0] for n in range(3) for i in range(1, lengths[n])]
        for name, values in (("previous", previous), ("next", following), ("first", first)):
            torch.testing.assert_close(found[name][h], torch.stack(values).mean())
        right = [weights[n, h, i].argmax() == i - 1 for n in range(3) for i in range(1, lengths[n])]
        torch.testing.assert_close(
            head_statistics.offset_share(weights, mask, -1)[h], torch.stack(right).double().mean()
        )
        on_gold = (weights[0, h, 2, 0] + weights[1, h, 4, 6] + weights[1, h, 4, 1]) / 2
        torch.testing.assert_close(head_statistics.relation_weight(weights, gold)[h], on_gold)


def test_causal_heads_have_no_next_word_and_the_first_row_does_not_count():
    mask = role_mask([5], 5).tril()
    weights = perfect_head("previous", 5, 5)[None, None]
    statistics = head_statistics.head_statistics(weights, mask)
    assert statistics["next"].isnan() and statistics["previous"].item() == 1
    assert statistics["first"].item() == 0.25  # row 1 of rows 1 to 4


def test_statistics_refuse_an_additive_mask_and_a_missing_axis():
    with pytest.raises(ValueError, match="bool mask"):
        head_statistics.head_statistics(torch.ones(1, 2, 3, 3) / 3, torch.zeros(1, 1, 3, 3))
    with pytest.raises(ValueError, match="unsqueeze"):
        head_statistics.sink_score(torch.ones(2, 3, 3) / 3, torch.ones(1, 1, 3, 3, dtype=torch.bool))


def test_four_sharp_heads_look_like_one_blurred_head_after_averaging():
    heads = torch.eye(4).flip(0)[None, :, None, :].expand(1, 4, 4, 4)  # each head looks at one word, all at others
    visible = torch.ones(1, 1, 4, 4, dtype=torch.bool)
    context = [
        head_statistics.head_statistics(weights, visible)["effective context"].tolist()
        for weights in (heads, heads.mean(dim=1, keepdim=True))
    ]
    assert context == [[1.0] * 4, [pytest.approx(4.0)]]


def role_scores(previous: float, first: float, subject: float) -> roles.Scores:
    one = lambda value: torch.tensor([[value]], dtype=torch.float64)  # noqa: E731
    return roles.Scores(
        {-1: one(previous), 0: one(0.0)}, {}, one(first), {("verb-subject", "backward"): one(subject)},
        {"normalised entropy": one(0.5), "largest weight": one(0.85)},
    )  # fmt: skip


def test_a_head_is_named_only_above_the_published_margins_and_in_both_halves():
    key = ("verb-subject", "backward")
    base = roles.Baselines({key: 0.5}, {key: 0.3, -1: 0.2, 0: 0.2, "first": 0.2}, {})

    def name(naming, scoring=None, base=base):
        return roles.role_name([(role_scores(*scores), base) for scores in (naming, scoring or naming)], 0, 0)

    assert name((0.91, 0, 1)) == "previous"
    assert name((0.89, 0, 0.61)) == "subject → verb"
    assert name((0.89, 0, 0.59)) == roles.NO_NAME
    assert name((0.5, 0.95, 0.4)) == "first word"
    assert name((0.5, 0, 0.61), (0.5, 0, 0.59)) == name((0.91, 0, 0.4), (0.89, 0, 0.4)) == roles.NO_NAME
    high = roles.Baselines({key: 0.5}, {key: 0.7, -1: 0.2, 0: 0.2, "first": 0.2}, {})
    assert name((0.1, 0, 0.75), base=high) == roles.NO_NAME
    assert roles.spread_name(role_scores(0, 0, 0), 0, 0) == "focused"
    for scores, count in (((0.91, 0, 0.61), 1), ((0.91, 0, 0.59), 0)):  # a relation counts, whatever the head's name
        found = head_roles.relations_followed([(role_scores(0.91, 0, 0.61), base), (role_scores(*scores), base)])
        assert found[head_roles.FOLLOWING] == found[head_roles.DIFFERENT] == found[head_roles.SUBJECT] == count


@pytest.mark.parametrize(("follows", "expected"), [("grammar", 0.0), ("neighbour", 1.0)])
@pytest.mark.parametrize("offset", [-1, 1])
def test_a_neighbour_head_is_asked_where_its_neighbour_is_not_related(follows, expected, offset):
    """Heads made by hand: at the related word, else at the word itself; and always at the neighbour."""
    sentences = training.corpus()[1][:60]
    related = torch.stack(list(roles.golds(sentences).values())).any(dim=0)  # (N, T, T)
    length = related.size(-1)
    mask = role_mask([len(sentence.words) for sentence in sentences], length)
    if follows == "grammar":
        weights = related + 0.5 * torch.eye(length)
    else:
        weights = torch.eye(length).roll(offset, dims=1).expand_as(related)
    share = roles.unrelated_share(weights[:, None] * mask, mask, related[:, None], offset)
    assert share.tolist() == [expected]


def test_the_words_that_a_role_relates_are_those_of_the_grammar():
    words = tokenize(TOY_SENTENCE)
    assert attention_flow.pairs_of("noun → determiner", words) == {(1, 0), (5, 4)}
    assert attention_flow.pairs_of("verb → place", words) == {(2, 5)}
    for name, said in (("previous", words), (roles.NO_NAME, words), ("verb → place", words[::-1])):
        assert attention_flow.pairs_of(name, said) == set()


def test_the_few_colours_of_the_landscape_are_those_of_weights_and_white_stays_white():
    pixels = (255 * WEIGHT_MAP(np.linspace(0, 1, 101))[None, :, :3]).round().astype(np.uint8)
    few = Image.fromarray(pixels).quantize(palette=attention_3d.palette(), dither=Image.Dither.NONE).convert("RGB")
    assert np.abs(np.asarray(few).astype(int) - pixels).max() <= 12 and few.getpixel((0, 0)) == (255, 255, 255)


def test_a_picture_of_stability_fills_the_heads_that_follow_a_relation_in_either_direction():
    assert role_stability.follows("verb → subject", "verb-subject")
    assert role_stability.follows("subject → verb", "verb-subject")
    assert not role_stability.follows("place → verb", "verb-subject")
    fig, caption = role_stability.draw([[["verb → place", "previous"]], [[roles.NO_NAME] * 2]], "trained", range(2))
    written = [[text.get_text() for text in ax.texts] for ax in fig.axes]
    assert written == [[], [], [], [], ["0.0"], []] and "come back" in caption
    assert "no head" in role_stability.draw([[["previous", roles.NO_NAME]]] * 2, "trained", range(2))[1]


def test_heads_are_told_by_one_of_each_role_first_those_of_the_sentence():
    names = [["adjective → noun", "verb → place", "previous"], ["verb → place", roles.NO_NAME, "subject → verb"]]
    weights = torch.full((2, 3, 6, 6), 1 / 6)
    weights[1, 0] = torch.eye(6)
    found = attention_flow.telling(names, weights, tokenize(TOY_SENTENCE))
    assert found == [(0, 0), (0, 2), (1, 0), (1, 2)]
    names[0][1] = "noun → determiner"
    assert (0, 2) not in attention_flow.telling(names, weights, tokenize(TOY_SENTENCE))
    blank = [[roles.NO_NAME] * 3] * 2
    assert attention_flow.telling(blank, weights, ["cat"]) == [(0, 0), (0, 1), (0, 2), (1, 0)]


def test_two_models_that_differ_in_the_order_of_their_heads_alone():
    torch.manual_seed(2)
    columns = len(head_statistics.OFFSETS) + 1 + 2 * len(role_stability.CORE_RELATIONS)
    profile, blank = 0.5 * torch.rand(8, columns, dtype=torch.float64), torch.zeros(8, columns, dtype=torch.float64)
    profile[[0, 1, 2], [-1, -3, -5]] = 1.0  # three heads, each with a role of its own
    numbers = role_stability.trained_again(profile, profile.roll(1, dims=0), (blank, blank), seed=0)
    same_place, roles_move = numbers.claims
    assert numbers[role_stability.SAME] == 0 and numbers[role_stability.ASSIGNED] == pytest.approx(1)
    assert not same_place.holds(numbers) and roles_move.holds(numbers)
    numbers = role_stability.trained_again(profile, profile, (blank, blank), seed=0)
    assert same_place.holds(numbers) and not roles_move.holds(numbers) and numbers[role_stability.SAME_SCORE] == 1


def test_assignment_finds_permuted_heads_and_is_the_best_of_all_permutations():
    from itertools import permutations

    torch.manual_seed(1)
    profile = torch.rand(5, 10, dtype=torch.float64)
    order = [3, 0, 4, 1, 2]
    by_index, assigned = role_stability.compare(profile, profile[order])
    assert assigned == pytest.approx(1) and by_index < 0.9
    similarity = torch.rand(5, 5, dtype=torch.float64)
    best = max(permutations(range(5)), key=lambda p: sum(similarity[i, j].item() for i, j in enumerate(p)))
    assert role_stability.assign(similarity) == list(best)
