"""Rollout against worked numbers and paths; readers against their definitions; the board against
numbers made up.
"""

import itertools
import math

import pytest
import torch
from torch import nn

from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase3_visualization import attention_flow
from phase3_visualization.layers import faithfulness, not_an_explanation, readers
from phase3_visualization.layers.rollout import (
    apart,
    apart_with_depth,
    random_attention,
    rollout_by_paths,
    shares_on_paths,
)
from shared.attention_utils import attention_rollout
from shared.grammar.best_reader import hidden_word_distribution, sentence_log_probability
from shared.tests.helpers import near
from shared.toy_language import INDEX, VOCABULARY, Sentence, encode
from shared.toy_model import ToyTransformer
from shared.training import Recipe, Trained
from shared.visualization_utils import BLUE, GREY

SENTENCE = Sentence(
    ("these", "cats", "sat", "on", "the", "mat"),
    {
        "determiner-noun": ((0, 1), (4, 5)),
        "verb-subject": ((2, 1),),
        "verb-place": ((2, 5),),
        "adjective-noun": (),
    },
)


def test_rollout_counts_every_path():
    by_hand = [torch.tensor([[[1, 0, 0], [0.5, 0.5, 0], [0, 1, 0]]], dtype=torch.float64)] * 2
    near(attention_rollout(by_hand)[2], torch.tensor([1 / 8, 5 / 8, 1 / 4]).double())
    scores = torch.randn(
        3, 2, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    layers = list(scores.softmax(dim=-1))  # of two heads each
    near(attention_rollout(layers), rollout_by_paths(layers))


def test_words_that_matter_by_hand():
    related = [readers.related_words(SENTENCE, hidden) for hidden in (0, 1, 5)]
    assert related == [
        frozenset({1}),
        frozenset({0, 2}),
        frozenset({2}),
    ]  # "the" says nothing about "mat"
    hidden = [readers.make_case(SENTENCE, kind).hidden for kind in range(4)]
    assert hidden == [0, 1, 5, 5]  # "the" is not hidden, its noun is
    assert readers.make_case(SENTENCE, 1).others == [0, 2, 3, 4, 5]


def test_rise_of_a_perfect_reader_by_hand():
    # "cats" between "these" and "sat": three plural animals; without "these" three singular ones
    # are as likely
    words = SENTENCE.words
    assert hidden_word_distribution(words, 1)[INDEX["cats"]] == pytest.approx(1 / 3)
    assert readers.grammar_rise(words, 1, 0) == pytest.approx(math.log(2))
    assert readers.grammar_rise(words, 1, 4) == pytest.approx(0)
    assert readers.grammar_rise(words, 1, 1) == 0


def test_rise_of_a_perfect_reader_sums_over_every_word_of_the_language():
    words, hidden = ("today", "these", "red", "cats", "slept", "often", "in", "a", "bed"), 3
    for left_out in (
        1,
        2,
        4,
        5,
        8,
    ):  # a determiner, an adjective, the verb, an adverb, the other noun
        joint = torch.zeros(len(VOCABULARY), len(VOCABULARY), dtype=torch.float64)
        filled = list(words)
        for (i, filled[hidden]), (j, filled[left_out]) in itertools.product(
            enumerate(VOCABULARY), repeat=2
        ):
            joint[i, j] = math.exp(sentence_log_probability(filled))
        with_word = joint[:, INDEX[words[left_out]]] / joint[:, INDEX[words[left_out]]].sum()
        without = joint.sum(dim=1) / joint.sum()
        expected = (with_word / without)[INDEX["cats"]].log().item()
        assert readers.grammar_rise(words, hidden, left_out) == pytest.approx(expected, abs=1e-12)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return ToyTransformer(15, 3, 2, make_attention=MultiHeadAttention).double().eval()


@pytest.fixture
def case():
    """ "cats" is hidden; "these" and "sat" matter."""
    return readers.make_case(SENTENCE, 1)


def loss_on_cats(model, *masked):
    logits, _ = model(torch.tensor([readers.hide(SENTENCE.words, 1, *masked)]))
    return -logits[0, 1].log_softmax(dim=-1)[INDEX["cats"]]


def test_leave_one_out_is_its_definition(model, case):
    expected = torch.stack(
        [loss_on_cats(model, j) - loss_on_cats(model) for j in range(6)]
    ).detach()
    near(readers.leave_one_out(model, case), expected)
    assert expected[1] == 0 and expected[[0, 2, 3, 4, 5]].abs().min() > 0


def test_gradients_are_how_fast_the_loss_changes_with_an_embedding(model, case):
    def with_sat_moved(change):
        """The loss when the embedding of "sat", at its place alone, is moved."""
        hook = model.embedding.register_forward_hook(
            lambda module, inputs, output: output.index_add(
                1, torch.tensor([2]), change[None, None]
            )
        )
        try:
            return loss_on_cats(model).item()
        finally:
            hook.remove()

    steps = 1e-6 * torch.eye(15).double()
    slopes = torch.tensor([(with_sat_moved(step) - with_sat_moved(-step)) / 2e-6 for step in steps])
    assert readers.gradient_lengths(model, case)[2].item() == pytest.approx(
        slopes.norm().item(), rel=1e-4
    )


@torch.no_grad()
def test_answers_are_read_in_the_row_of_the_hidden_word(model, case):
    said = faithfulness.answers(model, case)
    layers = [layer[0] for layer in model(torch.tensor([readers.hide(case.words, 1)]))[1]]
    near(said["raw weights"], layers[1][:, 1].mean(dim=0))
    near(said["rollout"], attention_rollout(layers)[1])
    assert said["nearest word"].tolist() == [-1, 0, -1, -2, -3, -4]


def test_ties_are_shared_and_the_hidden_word_is_ignored(case):
    for values, right in (
        ([0.5, 9, 0.1, 0, 0, 0], 1),
        ([0.5, 9, 0.1, 0.5, 0, 0], 0.5),
        ([0, 9, 0.1, 0.5, 0, 0], 0),
    ):
        assert faithfulness.share(readers.first(torch.tensor(values), case), case.related) == right


def test_the_board_counts_who_finds_the_word_that_both_readers_name(case, monkeypatch):
    """Words 0 and 2 are related: in the second sentence no word matters, in the fourth they
    disagree, in the last 5.
    """
    costs = iter(torch.eye(6)[[0, 0, 2, 5, 5]] * torch.tensor([2, 0.01, 2, 1, 1])[:, None])
    left_out, rollout = iter(torch.eye(6)[[0, 2, 0, 5]]), iter(torch.eye(6)[[0, 2, 0, 0]])
    weights = iter(
        torch.tensor(
            [[1.0, 0, 1, 0, 0, 0], [0, 0, 0, 1, 0, 0], [0, 0, 0, 0, 0, 1], [1, 0, 0, 0, 0, 0]]
        )
    )
    said = {"leave-one-out": left_out, "raw weights": weights, "rollout": rollout}
    monkeypatch.setattr(faithfulness, "perfect_reader", lambda _: next(costs))
    monkeypatch.setattr(
        faithfulness, "answers", lambda *_: {name: next(values) for name, values in said.items()}
    )
    found = faithfulness.score_methods(None, [case] * 5)
    assert (found["sentences"], found["both readers agree"]) == (3, pytest.approx(3 / 4))
    assert found["raw weights, found"] == pytest.approx(
        1 / 6
    )  # half of the first, for it names two
    assert found["raw weights, plausible"] == pytest.approx(2 / 3)
    assert (
        found["raw weights, plausible where another word mattered"]
        == found["sentences where another word mattered"]
    )
    assert (found["rollout, found"], found["chance, found"]) == (
        pytest.approx(2 / 3),
        pytest.approx(1 / 5),
    )


@torch.no_grad()
def test_shares_of_what_is_added_are_what_the_definition_says(model):
    nn.init.normal_(model.blocks[0].attention.w_v.bias)
    weights, shares = not_an_explanation.weights_and_shares(model, SENTENCE.words)
    x = model.embed(torch.tensor([encode(SENTENCE.words)]))
    attention, read = model.blocks[0].attention, model.blocks[0].attention_norm(x)[0]
    near(weights[0], attention(read[None])[1][0])
    for head, query in itertools.product(range(3), range(6)):
        columns = slice(5 * head, 5 * head + 5)
        added = []
        for weight, word in zip(weights[0, head, query], read, strict=True):
            value = attention.w_v.weight[columns] @ word + attention.w_v.bias[columns]
            added.append(weight * (attention.w_o.weight[:, columns] @ value).norm())
        near(shares[0, head, query], torch.stack(added) / sum(added))


# ---- rollout, drawn


def test_shares_on_paths_by_hand():
    lower = torch.tensor([[1, 0, 0], [0.25, 0.75, 0], [0, 0.5, 0.5]], dtype=torch.float64)
    upper = torch.tensor([[1, 0, 0], [0, 1, 0], [0.2, 0.4, 0.4]], dtype=torch.float64)
    below, above = shares_on_paths([lower, upper], query=2)
    near(above, torch.tensor([[0, 0, 0], [0, 0, 0], [0.2, 0.4, 0.4]], dtype=torch.float64))
    near(below, torch.tensor([[0.2, 0, 0], [0.1, 0.3, 0], [0, 0.2, 0.2]], dtype=torch.float64))


def test_shares_on_paths_arrive_where_rollout_says():
    layers = random_attention(3, 2, 5, seed=1)
    shares = shares_on_paths([attention_rollout([layer]) for layer in layers], query=3)
    near(shares[0].sum(dim=0), attention_rollout(layers)[3])
    near(torch.stack([share.sum() for share in shares]), torch.ones(3).double())


def test_how_far_apart_outputs_stay_by_hand():
    assert apart(torch.tensor([[0.7, 0.3], [0.2, 0.8], [0.6, 0.4]])) == pytest.approx(0.5)
    lower = torch.tensor([[[1, 0, 0], [0.5, 0.5, 0], [0, 1, 0]]], dtype=torch.float64)
    upper = torch.tensor([[[0.5, 0.5, 0], [0.5, 0.5, 0], [0, 0, 1]]], dtype=torch.float64)
    # The product of both has the rows 3/4 1/4 0 | 3/4 1/4 0 | 0 1 0; with the halves its first
    # column is 13/16 7/16 0. After one layer the first column has 1 and 0, with the half as without
    # it.
    assert apart_with_depth([lower, upper]) == pytest.approx((3 / 4, 13 / 16))


def test_six_layers_of_four_random_heads_leave_what_the_page_says():
    """layers/README.md: less than a thousandth without the residual half, a few hundredths with it."""
    for length, seed in itertools.product((7, 17), range(20)):
        bare, with_half = apart_with_depth(random_attention(6, 4, length, seed))
        assert bare < 1e-3 and 0.02 < with_half < 0.07, (length, seed)


def test_the_picture_of_rollout_draws_every_path_of_the_hidden_word(monkeypatch):
    """The verb, word 2, looks at "on" in layer 1; in layer 0 both look at "cat", so most comes from
    there.
    """
    layers = torch.eye(6).repeat(2, 3, 1, 1)
    layers[1, :, 2] = torch.eye(6)[3]
    layers[0, :, 2] = layers[0, :, 3] = torch.eye(6)[1]
    monkeypatch.setattr(attention_flow, "weights_of", lambda *_: layers)
    recipe = Recipe("made by hand", "masked word", 3, 2, 0, d_model=15)
    words = ["the", "cat", "sat", "on", "the", "mat"]
    fig, caption = attention_flow.draw_rollout(Trained(None, recipe), words)
    assert caption.startswith('The last layer looks most at "on"; by rollout most comes from "cat"')
    written = [text.get_text() for text in fig.axes[2].texts]
    assert written[::2] == ["the", "cat", "?", "on", "the", "mat"]
    assert written[1::2] == ["0.00", "0.50", "0.25", "0.25", "0.00", "0.00"]
    bold = [text.get_text() for text in fig.axes[2].texts if text.get_weight() == "bold"]
    assert bold == ["cat", "0.50"]
    drawn = {}
    for line in fig.axes[2].lines:
        if len(line.get_xdata()) == 2:
            ends = tuple(line.get_xdata()), round(line.get_ydata()[1])
            drawn[ends] = (line.get_linewidth() / 22, line.get_color())
    assert drawn == {
        ((2, 2), 1): (0.5, GREY),
        ((2, 3), 1): (0.5, BLUE),
        ((2, 2), 0): (0.25, GREY),
        ((2, 1), 0): (0.25, BLUE),
        ((3, 3), 0): (0.25, GREY),
        ((3, 1), 0): (0.25, BLUE),
    }
