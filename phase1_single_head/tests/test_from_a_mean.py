"""The steps from a mean to attention: against loops, torch's own function, and what each step is said to fail at."""

import pytest
import torch
import torch.nn.functional as F

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
from shared.tests.helpers import close

T, D, D_K, D_V = 7, 5, 3, 2


@pytest.fixture
def drawn():
    generator = torch.Generator().manual_seed(1)
    shapes = ((T, D), (D, D_K), (D, D_K), (D, D_V))
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def test_a_plain_mean_is_the_same_for_every_word(drawn):
    x = drawn[0]
    close(plain_mean(x), torch.stack([sum(x) / T] * T))


def test_similarity_scores_are_symmetric_and_the_weights_those_of_a_softmax(drawn):
    x = drawn[0]
    output, weights = similarity_mean(x)
    for i in range(T):
        scores = torch.stack([x[i] @ x[j] for j in range(T)])
        close(weights[i], scores.exp() / scores.exp().sum())
        close(output[i], sum(weights[i, j] * x[j] for j in range(T)))
    closeness = weights.log() + (x @ x.T).logsumexp(dim=-1, keepdim=True)  # the scores, back from the weights
    close(closeness, closeness.T)


def test_one_word_by_itself_all_at_once_and_torch_agree(drawn):
    x, w_q, w_k, w_v = drawn
    output, weights = all_words_ask(x, w_q, w_k, w_v)
    close(output, F.scaled_dot_product_attention((x @ w_q)[None], (x @ w_k)[None], (x @ w_v)[None])[0])
    for i in range(T):
        close(one_word_asks(x, i, w_q, w_k, w_v), (output[i], weights[i]))


def test_the_small_tensor_shows_what_the_lesson_says():
    cat, sat, mat = (WORDS.index(word) for word in ("cat", "sat", "mat"))
    _, alike = similarity_mean(X)
    assert all(alike[word].argmax() == word for word in (cat, sat, mat)), "by similarity they take from themselves"
    _, weights = all_words_ask(X, W_Q, W_K, W_V)
    assert weights[sat].argmax() == cat and weights[mat].argmax() == sat and weights[sat, cat] > 0.7
    assert not any(weights[word].argmax() == word for word in (cat, sat, mat))  # cat asks for nothing: an even row
    scores = (X @ W_Q) @ (X @ W_K).T
    assert scores[sat, cat] > 0 and scores[cat, sat] == 0, "one-sided"
    close(weights[0], weights[4], msg="the same word twice asks alike: no order yet")
