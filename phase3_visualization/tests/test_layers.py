"""Rollout against worked numbers and paths; readers and methods against their definitions."""

import itertools
import math

import pytest
import torch
from torch import nn

from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase3_visualization.layers import faithfulness, not_an_explanation, readers
from phase3_visualization.layers.rollout import (
    apart,
    apart_with_depth,
    random_attention,
    rollout_by_paths,
    shares_on_paths,
)
from shared.attention_utils import attention_rollout
from shared.grammar.best_reader import sentence_log_probability
from shared.grammar.scores import with_relations
from shared.tests.helpers import near
from shared.toy_language import INDEX, VOCABULARY, encode
from shared.toy_model import ToyTransformer, patched

SENTENCE = with_relations(("these", "cats", "sat", "on", "the", "mat"))
CATS = readers.make_case(SENTENCE, 1)  # "cats" is hidden; "these" and "sat" matter


def doubles(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def test_rollout_counts_every_path():
    by_hand = [doubles([[1, 0, 0], [0.5, 0.5, 0], [0, 1, 0]])] * 2
    near(attention_rollout(by_hand)[2], doubles(1 / 8, 5 / 8, 1 / 4))
    layers = random_attention(3, 2, 4, seed=0)
    near(attention_rollout(layers), rollout_by_paths(layers))


def test_words_that_matter_by_hand():
    related = [readers.related_words(SENTENCE, hidden) for hidden in (0, 1, 5)]
    assert related == [{1}, {0, 2}, {2}]  # "the" says nothing about "mat"
    hidden = [readers.make_case(SENTENCE, kind).hidden for kind in range(4)]
    assert hidden == [0, 1, 5, 5]  # "the" is not hidden, its noun is
    assert CATS.others == [0, 2, 3, 4, 5]


# A determiner, an adjective, the verb, an adverb, the other noun.
@pytest.mark.parametrize("left_out", [1, 2, 4, 5, 8])
def test_rise_of_a_perfect_reader_sums_over_every_word_of_the_language(left_out):
    words = ("today", "these", "red", "cats", "slept", "often", "in", "a", "bed")
    filled = list(words)
    joint = torch.zeros(len(VOCABULARY), len(VOCABULARY), dtype=torch.float64)
    for i, filled[3] in enumerate(VOCABULARY):
        for j, filled[left_out] in enumerate(VOCABULARY):
            joint[i, j] = math.exp(sentence_log_probability(filled))
    with_word = joint[:, INDEX[words[left_out]]]
    without = joint.sum(dim=1)
    chances = with_word / with_word.sum() / (without / without.sum())
    expected = chances[INDEX["cats"]].log().item()
    assert readers.cost_to_perfect_reader(words, 3, left_out) == pytest.approx(expected, abs=1e-12)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return ToyTransformer(15, 3, 2, make_attention=MultiHeadAttention).double().eval()


def loss_on_cats(model, *masked):
    logits, _ = model(torch.tensor([CATS.tokens(*masked)]))
    return -logits[0, 1].log_softmax(dim=-1)[INDEX["cats"]]


def test_leave_one_out_is_its_definition(model):
    rises = [loss_on_cats(model, j) - loss_on_cats(model) for j in range(6)]
    expected = torch.stack(rises).detach()
    near(readers.leave_one_out(model, CATS), expected)
    assert expected[1] == 0 and expected[[0, 2, 3, 4, 5]].abs().min() > 0


def test_gradients_are_how_fast_the_loss_changes_with_an_embedding(model):
    def with_sat_moved(change):
        """The loss when the embedding of "sat", at its place alone, is moved."""
        moved = torch.zeros(1, 6, 15).double()
        moved[0, 2] = change
        with patched(model.embedding, moved.add):
            return loss_on_cats(model).item()

    steps = 1e-6 * torch.eye(15).double()
    slopes = [(with_sat_moved(step) - with_sat_moved(-step)) / 2e-6 for step in steps]
    expected = pytest.approx(doubles(*slopes).norm().item(), rel=1e-4)
    assert readers.gradient_lengths(model, CATS)[2].item() == expected


@torch.no_grad()
def test_methods_are_read_in_the_row_of_the_hidden_word(model):
    said = faithfulness.numbers_by_method(model, CATS)
    layers = [layer[0] for layer in model(torch.tensor([CATS.tokens()]))[1]]
    near(said["raw weights"], layers[1][:, 1].mean(dim=0))
    near(said["rollout"], attention_rollout(layers)[1])
    assert said["nearest word"].tolist() == [-1, 0, -1, -2, -3, -4]


def test_the_board_counts_who_finds_the_word_that_both_readers_name(monkeypatch):
    """Words 0 and 2 are related: in the second sentence no word matters, in the fourth they
    disagree, in the last 5.
    """
    one = torch.eye(6)
    costs = iter([one[0], 0.01 * one[0], one[2], one[5], one[5]])
    said = {
        "leave-one-out": iter(one[[0, 2, 0, 5]]),
        "raw weights": iter([one[0] + one[2], one[3], one[5], one[0]]),
        "rollout": iter(one[[0, 2, 0, 0]]),
    }
    monkeypatch.setattr(faithfulness, "perfect_reader", lambda _: next(costs))

    def next_numbers(*_):
        return {name: next(values) for name, values in said.items()}

    monkeypatch.setattr(faithfulness, "numbers_by_method", next_numbers)
    assert faithfulness.score_methods(None, [CATS] * 5) == pytest.approx(
        {
            "sentences": 3,
            "both readers agree": 3 / 4,
            "raw weights, found": 1 / 6,  # half of the first, for it names two
            "raw weights, plausible": 2 / 3,
            "raw weights, plausible where another word mattered": 1,
            "sentences where another word mattered": 1,
            "rollout, found": 2 / 3,
            "chance, found": 1 / 5,
        }
    )


@torch.no_grad()
def test_shares_of_what_is_added_are_what_the_definition_says(model):
    nn.init.normal_(model.blocks[0].attention.w_v.bias)
    weights, shares = not_an_explanation.weights_and_shares(model, CATS.words)
    attention = model.blocks[0].attention
    read = model.blocks[0].attention_norm(model.embed(torch.tensor([encode(CATS.words)])))
    near(weights[0], attention(read)[1][0])
    for head, query in itertools.product(range(3), range(6)):
        columns = slice(5 * head, 5 * head + 5)
        value = attention.w_v(read)[0, :, columns]
        lengths = (value @ attention.w_o.weight[:, columns].T).norm(dim=-1)
        added = weights[0, head, query] * lengths
        near(shares[0, head, query], added / added.sum())


# ---- rollout, drawn


def test_shares_on_paths_arrive_where_rollout_says():
    layers = random_attention(3, 2, 5, seed=1)
    shares = shares_on_paths([attention_rollout([layer]) for layer in layers], query=3)
    near(shares[0].sum(dim=0), attention_rollout(layers)[3])
    near(torch.stack(shares).sum(dim=(1, 2)), torch.ones(3).double())


def test_how_far_apart_outputs_stay_by_hand():
    assert apart(doubles([0.7, 0.3], [0.2, 0.8], [0.6, 0.4])) == pytest.approx(0.5)
    lower = doubles([[1, 0, 0], [0.5, 0.5, 0], [0, 1, 0]])
    upper = doubles([[0.5, 0.5, 0], [0.5, 0.5, 0], [0, 0, 1]])
    # The product of both has the rows 3/4 1/4 0 | 3/4 1/4 0 | 0 1 0; with the halves its first
    # column is 13/16 7/16 0. After one layer the first column has 1 and 0, with the half as without
    # it.
    assert apart_with_depth([lower, upper]) == pytest.approx((3 / 4, 13 / 16))


@pytest.mark.parametrize("length", [7, 17])
def test_six_layers_of_four_random_heads_leave_what_the_page_says(length):
    """C143: less than a thousandth without the residual half, a few hundredths with."""
    for seed in range(20):
        bare, with_half = apart_with_depth(random_attention(6, 4, length, seed))
        assert bare < 1e-3 and 0.02 < with_half < 0.07, seed
