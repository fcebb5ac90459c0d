"""The steps from a mean to attention, and a hidden word followed number by number with its pictures."""

import re

import matplotlib.pyplot as plt
import pytest
import torch
import torch.nn.functional as F

from phase1_single_head import from_a_mean, hidden_word, models, visualize
from shared import training
from shared.tests.helpers import near
from shared.toy_language import MASK_ID, VOCABULARY, encode
from shared.toy_model import in_double

SENTENCES = ["the cat sat on the mat", "those big dogs beside a barn slept in a bed", "these teachers", "cats"]


@pytest.fixture(scope="module")
def trained():
    """Untrained, with larger words and queries, so that words and weights differ, and no guess is certain."""
    found = training.untrained(models.RECIPE, models.make_single_head)
    with torch.no_grad():
        found.model.embedding.weight.mul_(2)
        found.model.blocks[0].attention.w_q.weight.mul_(4)
    return found


def plain_pass(trained, words, i):
    """By a pass of the model and nothing of the code under test: probabilities (V,), row of weights (T,)."""
    tokens = torch.tensor([encode(words)])
    tokens[0, i] = MASK_ID
    with torch.no_grad():
        logits, (weights,) = in_double(trained.model)(tokens)
    return F.softmax(logits[0, i], dim=-1), weights[0, 0, i]


def guessed(probabilities):
    return f"{VOCABULARY[int(probabilities.argmax())]} {probabilities.max():.2f}"


@pytest.mark.parametrize("text", SENTENCES)
def test_what_is_walked_and_drawn_is_what_a_plain_pass_computes(trained, text, capsys):
    words = text.split()
    i = models.choose_word(words)
    probabilities, weights = plain_pass(trained, words, i)
    near(hidden_word.walk(in_double(trained.model), words, i), (probabilities, weights))
    printed = capsys.readouterr().out
    assert f"\n   {guessed(probabilities)}, " in printed
    assert " ".join(f"{weight:8.3f}" for weight in weights.tolist()) in printed
    differences = [float(number) for number in re.findall(r"differ by (\S+)", printed)]
    assert len(differences) == 2 and max(differences) < 1e-12
    flow = models.flow_of(trained, words)
    near((flow.weights, flow.scores.softmax(dim=0), flow.output), (weights, weights, weights @ flow.value))
    word, probability = flow.guesses[0]
    assert f"{word} {probability:.2f}" == guessed(probabilities)


def test_many_hidden_words_at_once_are_as_one_by_one(trained):
    texts = [text.split() for text in SENTENCES]
    positions = [models.choose_word(words) for words in texts]
    assert positions == [2, 6, 1, 0], "the verb, or the last word"
    probabilities, rows = models.guess_hidden(in_double(trained.model), texts, positions)
    for words, i, probability, row in zip(texts, positions, probabilities, rows, strict=True):
        near((probability, row[: len(words)]), plain_pass(trained, words, i))
        assert row[len(words) :].eq(0).all()


def test_whom_it_asked():
    weights = torch.tensor([0.1, 0.3, 0.4, 0.15, 0.05])
    assert models.most_asked(weights, 2) == [1, 3] and models.most_asked(weights, 1) == [2, 3]
    assert models.most_asked(torch.ones(1), 0) == []


def test_what_else_could_stand_there(trained, capsys):
    others = {"cats": ["girls", "cars", "balls"], "bus": ["cat", "girl", "ball"], "on": ["in", "near"], "mat": []}
    assert {word: hidden_word.others_like(word) for word in others} == others
    words = ["the", "cat", "sat", "on", "the", "mat"]
    hidden_word.ask_others(in_double(trained.model), words, 2, [0, 1])
    expected = [
        f'   "{noun}" for "cat": {guessed(plain_pass(trained, ["the", noun, *words[2:]], 2)[0])}'
        for noun in ("girl", "car", "ball")
    ]
    assert capsys.readouterr().out.splitlines()[2:] == expected


def test_the_heatmap_hides_the_word_and_frames_its_row(trained):
    words = SENTENCES[0].split()
    figure, _ = visualize.draw_heatmap(trained, words)
    ax = figure.axes[0]
    assert ax.get_yticklabels()[2].get_text() == "2 ?"
    row = ax.collections[0].get_array()[2].tolist()
    near(torch.tensor(row).double(), plain_pass(trained, words, 2)[1], share=1e-5)
    (framed,) = [patch for patch in ax.patches if not patch.get_fill()]
    assert (framed.get_xy(), framed.get_width(), framed.get_height()) == ((0, 2), 6, 1)
    plt.close("all")


# ---- the steps from a mean to attention


def test_each_step_is_its_sums_and_the_last_is_torchs():
    generator = torch.Generator().manual_seed(1)
    shapes = ((7, 5), (5, 3), (5, 3), (5, 2))
    x, w_q, w_k, w_v = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    near(from_a_mean.plain_mean(x), torch.stack([sum(x) / 7] * 7))
    alike, closeness = from_a_mean.similarity_mean(x)
    output, weights = from_a_mean.all_words_ask(x, w_q, w_k, w_v)
    near(output, F.scaled_dot_product_attention((x @ w_q)[None], (x @ w_k)[None], (x @ w_v)[None])[0])
    for i in range(7):
        scores = torch.stack([x[i] @ word for word in x])
        near(closeness[i], scores.exp() / scores.exp().sum())
        near(alike[i], sum(closeness[i, j] * x[j] for j in range(7)))
        near(from_a_mean.one_word_asks(x, i, w_q, w_k, w_v), (output[i], weights[i]))
