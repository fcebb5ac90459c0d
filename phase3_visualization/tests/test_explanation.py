"""What words add against the definition; planted rows by hand; a model on other weights against the model itself."""

import math

import pytest
import torch
from torch import nn

from phase1_single_head.reading.other_weights import Reading
from phase2_multi_head.models import RECIPE
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase3_visualization.explanation import not_an_explanation
from shared import training
from shared.toy_language import encode, tokenize
from shared.toy_model import in_double
from shared.training import Recipe


def explain_module(d_model=15, heads=3):
    torch.manual_seed(0)
    module = MultiHeadAttention(d_model, heads).double()
    for w in (module.w_q, module.w_k, module.w_v, module.w_o):
        nn.init.normal_(w.bias)
    return module


def explain_model(**sizes):
    """An untrained model whose heads are not even: queries and keys made larger."""
    recipe = Recipe("explain", "masked word", **{"num_heads": 2, "num_layers": 2, "steps": 5} | sizes)
    trained = training.untrained(recipe, MultiHeadAttention)
    with torch.no_grad():
        for block in trained.model.blocks:
            block.attention.w_q.weight *= 8
            nn.init.normal_(block.attention.w_v.bias)
            nn.init.normal_(block.attention.w_o.bias)
    return trained


@torch.no_grad()
def test_what_words_add_is_what_the_definition_says_and_sums_to_the_output():
    module, x = explain_module(), torch.randn(1, 7, 15).double()
    added = not_an_explanation.added_by_words(module, x)
    assert added.shape == (3, 7, 15)
    for h in range(3):
        columns = slice(5 * h, 5 * h + 5)
        for j in range(7):
            value = module.w_v.weight[columns] @ x[0, j] + module.w_v.bias[columns]
            torch.testing.assert_close(added[h, j], module.w_o.weight[:, columns] @ value)
    output, weights = module(x)
    whole = sum(weights[0, h] @ added[h] for h in range(3)) + module.w_o.bias
    torch.testing.assert_close(whole, output[0])


@torch.no_grad()
def test_readings_are_the_heads_of_the_model():
    trained, words = explain_model(), tokenize("the cat sat on the mat")
    readings = not_an_explanation.read_heads(trained, [words, words[:3]])
    assert list(readings) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    _, layers = trained.model.double()(torch.tensor([encode(words)]))
    for (layer, head), (long, short) in readings.items():
        torch.testing.assert_close(long.weights, layers[layer][0, head])
        scores = long.query @ long.key.T / math.sqrt(32)
        torch.testing.assert_close(long.weights, scores.softmax(dim=-1))
        assert long.value.shape == (6, 64) and short.weights.shape == (3, 3) and short.words == words[:3]


def explain_reading(weights, value):
    weights, value = torch.tensor(weights).double(), torch.tensor(value).double()
    return Reading([*"abc"[: len(weights)]], value, value, value, weights)


def test_shares_and_agreement_of_rows_by_hand():
    """Contributions: 0.9 * 1 and 0.1 * 5; 0.6 * 1 and 0.4 * 5."""
    reading = explain_reading([[0.9, 0.1], [0.6, 0.4]], [[0.0, 1.0], [3.0, 4.0]])
    expected = torch.tensor([[0.9 / 1.4, 0.5 / 1.4], [0.6 / 2.6, 2.0 / 2.6]]).double()
    torch.testing.assert_close(not_an_explanation.shares_added(reading), expected)
    readings = {(0, 0): [reading], (0, 1): [reading, explain_reading([[0.5, 0.5], [0.3, 0.7]], [[2.0], [2.0]])]}
    everywhere = [reading for of_head in readings.values() for reading in of_head]
    assert not_an_explanation.agreement(everywhere) == pytest.approx(4 / 6)
    assert not_an_explanation.agreement(everywhere, above=0.55) == pytest.approx(3 / 5)
    assert not_an_explanation.agreement(everywhere, above=0.65) == 1
    assert not_an_explanation.agreement(everywhere, above=0.95) == 0, "no row is asked"
    row = max(not_an_explanation.rows_of(readings), key=lambda row: row.gap)
    assert (row.head, row.i, row.heaviest) == ((0, 0), 1, 0) and row.gap == pytest.approx(0.6 - 0.6 / 2.6)


def test_where_the_value_is_zero_nothing_is_added_whatever_the_weight():
    reading = explain_reading([[0.9, 0.1], [0.6, 0.4]], [[0.0, 0.0], [3.0, 4.0]])
    shares = not_an_explanation.shares_added(reading)
    torch.testing.assert_close(shares, torch.tensor([[0.0, 1.0], [0.0, 1.0]]).double())


def test_joined_texts_have_the_length_that_is_asked_for():
    lengths = (9, 10, 4, 5, 17, 16, 15, 17, 12)
    sentences = [[f"{number}"] * length for number, length in enumerate(lengths)]
    texts = not_an_explanation.joined(sentences, 18)
    assert [len(text) for text in texts] == [19, 32] and texts[0] == ["0"] * 9 + ["1"] * 10


@pytest.mark.parametrize(("length", "all_rows"), [(7, True), (5, False)])
def test_rows_are_exchanged_if_there_are_more_words_than_numbers(length, all_rows):
    """d_v = 4: a row of 5 weights is unique, one of 7 has two directions to go."""
    torch.manual_seed(1)
    weights = torch.randn(3, length, length).double().softmax(dim=-1)
    added = torch.randn(3, length, 4).double() @ torch.randn(3, 4, 11).double()  # rank 4, in 11 numbers
    other = not_an_explanation.exchanged(weights, added)
    torch.testing.assert_close(other @ added, weights @ added)
    torch.testing.assert_close(other.sum(dim=-1), torch.ones(3, length).double())
    assert (other >= 0).all() and bool(((other - weights).abs().amax(dim=-1) > 1e-3).all()) == all_rows
    assert all_rows or torch.equal(other, weights)
    assert not all_rows or ((other > 0).sum(dim=-1) <= 5).all(), "Caratheodory: at most d_v + 1 words have weight"


def test_a_model_says_the_same_on_other_weights_and_something_else_on_wrong_ones(monkeypatch):
    trained = explain_model(num_heads=8, d_model=16)  # d_v = 2
    model, words = in_double(trained.model), tokenize("the cat sat on the mat")
    found = not_an_explanation.exchange_all(model, [words, words[:4]])
    assert found["rows"] == found["rows with another"] == 2 * 8 * (6 + 4)
    assert found["largest change of a logit"] < 1e-12 and found["weight that moves, median"] > 0.001
    assert next(trained.model.parameters()).dtype == torch.float32, "the model itself stays"
    short = not_an_explanation.exchange_all(model, [words[:3]])
    assert short["rows"] == 48 and short["rows with another"] == short["share of rows with another heaviest word"] == 0
    monkeypatch.setattr(not_an_explanation, "exchanged", lambda weights, added: weights.flip(-1))
    assert not_an_explanation.exchange_all(model, [words])["largest change of a logit"] > 1e-3


def test_long_texts_exist_for_the_trained_model_and_none_for_wide_heads():
    """The default run needs a few joined sentences longer than d_v + 1 = 17; heads of 32 numbers have none of 34."""
    sentences = [list(sentence.words) for sentence in training.corpus()[1][:20]]
    assert RECIPE.d_model // RECIPE.num_heads == 16
    assert not_an_explanation.joined(sentences, 18) and not not_an_explanation.joined(sentences, 34)
