"""The steps from a mean to attention, and a hidden word followed number by number with its pictures."""

import re

import matplotlib.pyplot as plt
import pytest
import torch
import torch.nn.functional as F

from phase1_single_head import hidden_word, models, visualize
from phase1_single_head.from_a_mean import (
    W_K,
    W_Q,
    W_V,
    WORDS,
    X,
    all_words_ask,
    one_word_asks,
    plain_mean,
    similarity_mean,
)
from shared import training
from shared.tests.helpers import near
from shared.toy_language import INDEX, MASK_ID, VOCABULARY, encode
from shared.toy_model import in_double

SENTENCES = ["the cat sat on the mat", "those big dogs beside a barn slept in a bed", "these teachers", "cats"]
each_sentence = pytest.mark.parametrize("words", [text.split() for text in SENTENCES], ids=SENTENCES)


@pytest.fixture(scope="module", params=(0, 1))
def trained(request):
    """Untrained, with large words and large queries, so that words and weights differ."""
    recipe = training.variant(models.RECIPE, seed=request.param)
    found = training.untrained(recipe, models.make_single_head)
    with torch.no_grad():
        found.model.embedding.weight.mul_(8)
        found.model.blocks[0].attention.w_q.weight.mul_(4)
    return found


def plain_pass(trained, words, i):
    """By a pass of the model and nothing of the code under test: probabilities (V,), row of weights (T,)."""
    tokens = torch.tensor([encode(words)])
    tokens[0, i] = MASK_ID
    with torch.no_grad():
        logits, (weights,) = in_double(trained.model)(tokens)
    return F.softmax(logits[0, i], dim=-1), weights[0, 0, i]


@each_sentence
def test_the_walk_ends_where_a_plain_pass_does(trained, words, capsys):
    i = models.choose_word(words)
    probabilities, weights = hidden_word.walk(in_double(trained.model), words, i)
    expected = plain_pass(trained, words, i)
    near(probabilities, expected[0])
    near(weights, expected[1])
    printed = capsys.readouterr().out
    guess = VOCABULARY[int(expected[0].argmax())]
    assert f"\n   {guess} {expected[0].max():.2f}, " in printed
    assert " ".join(f"{weight:8.3f}" for weight in expected[1].tolist()) in printed


def test_the_hidden_word_is_hidden(trained, capsys):
    """The model never gets it, and with another word in its place all is the same but the last words of the guess."""
    model, printed = in_double(trained.model), []
    read = []
    model.embedding.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))
    for verb in ("sat", "rolled", "barns"):
        words = ["the", "cat", verb, "on", "the", "mat"]
        probabilities, weights = hidden_word.walk(model, words, 2)
        printed.append(
            (capsys.readouterr().out.replace(f'it was "{verb}"', ""), probabilities.tolist(), weights.tolist())
        )
        assert all(tokens[0, 2] == MASK_ID and INDEX[verb] not in tokens for tokens in read) and read
    assert printed[0] == printed[1] == printed[2]
    assert models.shown(models.hide(words, 2)) == ["the", "cat", "?", "on", "the", "mat"]


def test_many_hidden_words_at_once_are_as_one_by_one(trained):
    texts = [text.split() for text in SENTENCES]
    positions = [models.choose_word(words) for words in texts]
    assert positions == [2, 6, 1, 0]
    probabilities, rows = models.guess_hidden(in_double(trained.model), texts, positions)
    for words, i, probability, row in zip(texts, positions, probabilities, rows, strict=True):
        expected = plain_pass(trained, words, i)
        near(probability, expected[0])
        near(row[: len(words)], expected[1])
        assert row[len(words) :].eq(0).all()


def test_a_changed_core_is_told_and_the_walk_goes_on(trained, monkeypatch, capsys):
    def largest_difference():
        hidden_word.walk(in_double(trained.model), SENTENCES[0].split(), 2)
        return max(float(number) for number in re.findall(r"differ by (\S+)", capsys.readouterr().out))

    assert largest_difference() == pytest.approx(0, abs=1e-12)
    monkeypatch.setattr(hidden_word, "scaled_dot_product_attention", lambda q, k, v: (v, None))
    assert largest_difference() > 0.1


@each_sentence
def test_what_is_drawn_is_what_the_model_computes(trained, words):
    flow, i = models.flow_of(trained, words), models.choose_word(words)
    probabilities, weights = plain_pass(trained, words, i)
    near(flow.weights, weights)
    near(flow.scores.softmax(dim=0), weights)
    near(flow.output, weights @ flow.value)
    assert flow.guesses[0] == (VOCABULARY[int(probabilities.argmax())], pytest.approx(probabilities.max().item()))


def test_whom_it_asked():
    weights = torch.tensor([0.1, 0.3, 0.4, 0.15, 0.05])
    assert models.most_asked(weights, 2) == [1, 3] and models.most_asked(weights, 1) == [2, 3]
    assert models.most_asked(torch.ones(1), 0) == []


def test_what_else_could_stand_there(trained, capsys):
    assert hidden_word.others_like("cats") == ["girls", "cars", "balls"]
    assert hidden_word.others_like("bus") == ["cat", "girl", "ball"]
    assert hidden_word.others_like("on") == ["in", "near"]
    assert all(hidden_word.others_like(word) == [] for word in ("mat", "the", "beside", "often", "sat"))
    words = ["the", "cat", "sat", "on", "the", "mat"]
    hidden_word.ask_others(in_double(trained.model), words, 2, [0, 1])
    lines = capsys.readouterr().out.splitlines()[2:]
    assert len(lines) == 3
    for line, noun in zip(lines, ("girl", "car", "ball"), strict=True):
        probabilities, _ = plain_pass(trained, ["the", noun, *words[2:]], 2)
        assert line == f'   "{noun}" for "cat": {VOCABULARY[int(probabilities.argmax())]} {probabilities.max():.2f}'
    hidden_word.ask_others(in_double(trained.model), words, 2, [0, 5])
    assert capsys.readouterr().out == "", "nothing to exchange, nothing said"


def test_the_heatmap_hides_the_word_and_frames_its_row(trained):
    words = SENTENCES[0].split()
    figure, _ = visualize.draw_heatmap(trained, words)
    ax = figure.axes[0]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["0 the", "1 cat", "2 ?", "3 on", "4 the", "5 mat"]
    row = ax.collections[0].get_array()[2].tolist()
    near(torch.tensor(row).double(), plain_pass(trained, words, 2)[1], share=1e-5)
    (framed,) = [patch for patch in ax.patches if not patch.get_fill()]
    assert (framed.get_xy(), framed.get_width(), framed.get_height()) == ((0, 2), 6, 1)
    plt.close("all")


# ---- the steps from a mean to attention

T, D, D_K, D_V = 7, 5, 3, 2


@pytest.fixture
def drawn():
    generator = torch.Generator().manual_seed(1)
    shapes = ((T, D), (D, D_K), (D, D_K), (D, D_V))
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def test_a_plain_mean_is_the_same_for_every_word(drawn):
    x = drawn[0]
    near(plain_mean(x), torch.stack([sum(x) / T] * T))


def test_similarity_scores_are_symmetric_and_the_weights_those_of_a_softmax(drawn):
    x = drawn[0]
    output, weights = similarity_mean(x)
    for i in range(T):
        scores = torch.stack([x[i] @ x[j] for j in range(T)])
        near(weights[i], scores.exp() / scores.exp().sum())
        near(output[i], sum(weights[i, j] * x[j] for j in range(T)))
    closeness = weights.log() + (x @ x.T).logsumexp(dim=-1, keepdim=True)  # the scores, back from the weights
    near(closeness, closeness.T)


def test_one_word_by_itself_all_at_once_and_torch_agree(drawn):
    x, w_q, w_k, w_v = drawn
    output, weights = all_words_ask(x, w_q, w_k, w_v)
    near(output, F.scaled_dot_product_attention((x @ w_q)[None], (x @ w_k)[None], (x @ w_v)[None])[0])
    for i in range(T):
        near(one_word_asks(x, i, w_q, w_k, w_v), (output[i], weights[i]))


def test_the_small_tensor_shows_what_the_lesson_says():
    cat, sat, mat = (WORDS.index(word) for word in ("cat", "sat", "mat"))
    _, alike = similarity_mean(X)
    assert all(alike[word].argmax() == word for word in (cat, sat, mat)), "by similarity they take from themselves"
    _, weights = all_words_ask(X, W_Q, W_K, W_V)
    assert weights[sat].argmax() == cat and weights[mat].argmax() == sat and weights[sat, cat] > 0.7
    assert not any(weights[word].argmax() == word for word in (cat, sat, mat))  # cat asks for nothing: an even row
    scores = (X @ W_Q) @ (X @ W_K).T
    assert scores[sat, cat] > 0 and scores[cat, sat] == 0, "one-sided"
    near(weights[0], weights[4])  # the same word twice asks alike: no order yet
