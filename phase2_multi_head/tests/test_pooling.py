"""Poolings and questions by hand; padding that may change nothing."""

import math

import pytest
import torch
import torch.nn.functional as F

from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase2_multi_head.pooling import pooling_questions as questions
from phase2_multi_head.pooling.attention_pooling import (
    AttentionClassifier,
    AttentionPooling,
    last_pooling,
    mean_pooling,
)
from shared.attention_utils import padding_mask
from shared.grammar.scores import with_relations
from shared.tests.helpers import D_K, T_K, near
from shared.toy_language import (
    INDEX,
    NOUN_PAIRS,
    PAD_ID,
    encode,
    pad_batch,
    sample_corpus,
    tokenize,
)


@pytest.mark.parametrize(
    ("mask", "mean", "last"),
    [
        ([[1, 1, 0]], [1.0, 3.5], [2.0, 1.0]),  # the same for both sentences
        ([[[[0, 1, 0]]], [[[1, 0, 1]]]], [2.0, 4.0], [2.0, 2.0]),  # with a hole
    ],
)
def test_poolings_worked_by_hand(mask, mean, last):
    """Words of one number. A query of 0 is the mean; the others: test_oracles.py."""
    x, mask = (
        torch.tensor([[[0.0], [2.0], [4.0]], [[6.0], [1.0], [2.0]]]),
        torch.tensor(mask).bool(),
    )
    expected = {mean_pooling: mean, last_pooling: last, AttentionPooling(1): mean}
    for pooling, values in expected.items():
        near(pooling(x, mask)[0].flatten(), torch.tensor(values))


@pytest.mark.parametrize("pooling", [mean_pooling, last_pooling, AttentionPooling(D_K).double()])
def test_a_sentence_of_padding_alone_pools_to_zero(pooling):
    x = torch.randn(3, T_K, D_K, dtype=torch.float64, requires_grad=True)
    pooled, weights = pooling(x, padding_mask(torch.tensor([7, 0, 5]), T_K))
    assert not pooled[1].any() and not weights[1].any() and pooled[[0, 2]].abs().min() > 0
    pooled.square().sum().backward()
    assert x.grad.isfinite().all() and not x.grad[1].any() and x.grad[0].any()
    if isinstance(pooling, AttentionPooling):
        assert pooling.query.grad.isfinite().all() and pooling.query.grad.any()


@pytest.fixture
def classifier():
    torch.manual_seed(0)
    model = AttentionClassifier(33, AttentionPooling(33), MultiHeadAttention(33, 3)).double()
    model.pooling.query.data.normal_()
    return model


def test_classifier_is_embedding_attention_pooling_and_a_linear_layer(classifier):
    sentence = torch.tensor([encode(tokenize("those dogs slept in a bed"))])
    x = classifier.embedding.weight[sentence] + classifier.positions[:6]
    x = (x + classifier.attention(x)[0])[0]
    weights = (x @ classifier.pooling.query / math.sqrt(33)).softmax(dim=0)
    logits, given = classifier(sentence)
    near(given[0, 0, 0], weights)
    near(logits[0], classifier.to_logits.weight @ (weights @ x) + classifier.to_logits.bias)


def test_classifier_answers_alike_alone_and_beside_longer_sentences(classifier):
    """The words at places of padding change nothing, not even the gradients."""
    rows = [encode(tokenize(s)) for s in ("many cats sat on a big mat", "the fox slept")]
    tokens, lengths = pad_batch(rows)
    mask, parameters = padding_mask(lengths, tokens.size(1)), list(classifier.parameters())
    results = []
    for batch in (tokens, tokens.where(tokens != PAD_ID, INDEX["kites"])):
        logits, weights = classifier(batch, mask)
        results.append([logits, weights, *torch.autograd.grad(logits.square().sum(), parameters)])
    for with_pads, with_kites in zip(*results, strict=True):
        assert torch.equal(with_pads, with_kites), "padding leaks"
    for row, together in zip(rows, logits, strict=True):
        near(classifier(torch.tensor([row]))[0][0], together)


BY_HAND = (
    "those dogs beside the barn slept in a soft bed",
    "a big bus beside many houses stalled on the bridges",
    "again the foxes beside the box ran near the parks",
)
PLURAL, DECISIVE = [0, 1, 0], [[3, 4], [4, 5], [4, 5]]  # of the noun beside the subject


def by_hand():
    return questions.ask([with_relations(text.split()) for text in BY_HAND])


def test_what_is_asked_by_hand():
    question = by_hand()
    assert question.answers.tolist() == PLURAL
    assert [row.nonzero()[:, 0].tolist() for row in question.decisive] == DECISIVE
    assert question.mask.all()


@pytest.mark.parametrize(("position", "looks"), [(3, 1 / 3), (4, 1.0), (5, 2 / 3), (1, 0.0)])
def test_right_answers_and_looks_by_hand(position, looks):
    def always_plural(tokens, _mask):
        weights = F.one_hot(torch.full((len(tokens), 1, 1), position), tokens.size(1)).double()
        return torch.tensor([[0, 1]]).expand(len(tokens), 2), weights

    assert questions.right_and_looks(always_plural, by_hand()) == (1 / 3, looks)


def test_held_out_sentences_are_new_and_no_noun_tells_the_number_of_another():
    train, held_out = questions.both_parts()
    seen, new = set(map(tuple, train.tokens.tolist())), set(map(tuple, held_out.tokens.tolist()))
    assert len(seen) > 2000 and len(held_out.tokens) > 800 and not seen & new
    plurals = {plural for _, plural in NOUN_PAIRS}
    nouns = []  # of each sentence whether subject, noun beside it and place are plural
    for sentence in questions.with_three_nouns(sample_corpus(8000, 3000)[1]):
        words = [sentence.words[noun] for _, noun in sorted(sentence.relations["determiner-noun"])]
        nouns.append([word in plurals for word in words])
    nouns = torch.tensor(nouns).double().T
    assert torch.equal(nouns[1], held_out.answers.double())
    assert (torch.corrcoef(nouns) - torch.eye(3)).abs().max() < 0.1
