"""Poolings against loops over words; padding that may change nothing; questions against sentences read by hand."""

import math
import random

import pytest
import torch

from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase2_multi_head.pooling.attention_pooling import (
    AttentionClassifier,
    AttentionPooling,
    last_pooling,
    mean_pooling,
)
from phase2_multi_head.pooling.pooling_questions import (
    POOLINGS,
    QUESTIONS,
    make_task,
    noun_asked_for,
    right_and_looks,
    tasks,
    train,
)
from shared.attention_utils import padding_mask
from shared.tests.helpers import near
from shared.toy_language import INDEX, PAD_ID, Sentence, encode, pad_batch, sample_sentence, tokenize

P_B, P_T, P_D = 3, 7, 11
LENGTHS = torch.tensor([7, 2, 5])  # one without padding, all different


def pool_input(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(P_B, P_T, P_D, generator=generator, dtype=torch.float64)


def attention_pooling_with_a_query():
    pooling = AttentionPooling(P_D).double()
    pooling.query.data.normal_(generator=torch.Generator().manual_seed(1))
    return pooling


def all_poolings():
    return {"mean": mean_pooling, "last": last_pooling, "attention": attention_pooling_with_a_query()}


def weights_by_loops(name, x, visible, query):
    """The weight of each word of one sentence, x (T, d_model), one word at a time."""
    places = [t for t in range(len(x)) if visible[t]]
    sizes = {"mean": dict.fromkeys(places, 1.0), "last": {places[-1]: 1.0}}
    sizes["attention"] = {
        t: math.exp(sum((query[c] * x[t, c]).item() for c in range(x.size(1))) / x.size(1) ** 0.5) for t in places
    }
    total = sum(sizes[name].values())
    return torch.tensor([sizes[name].get(t, 0.0) / total for t in range(len(x))], dtype=torch.float64)


@pytest.mark.parametrize("name", ["mean", "last", "attention"])
@pytest.mark.parametrize("kind", ["none", "padding", "holes", "shared"])
def test_poolings_are_their_loops(name, kind):
    x, pooling = pool_input(), all_poolings()[name]
    holes = torch.rand(P_B, 1, 1, P_T, generator=torch.Generator().manual_seed(2)) < 0.6
    masks = {"none": None, "padding": padding_mask(LENGTHS, P_T), "holes": holes, "shared": holes[:1, 0, 0]}
    pooled, weights = pooling(x, masks[kind])
    visible = torch.ones(P_B, P_T) if masks[kind] is None else masks[kind].reshape(-1, P_T).expand(P_B, P_T)
    assert pooled.shape == (P_B, P_D) and weights.shape == (P_B, 1, 1, P_T)
    for b in range(P_B):
        expected = weights_by_loops(name, x[b], visible[b], all_poolings()["attention"].query)
        near(weights[b, 0, 0], expected)
        by_words = sum(expected[t] * x[b, t] for t in range(P_T))
        near(pooled[b], by_words)


def test_a_key_projection_would_be_another_query():
    """The reason for which there is none: q · (W x) = (Wᵀ q) · x."""
    x, query = pool_input(), attention_pooling_with_a_query().query.data
    matrix = torch.randn(P_D, P_D, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    projected = torch.softmax((x @ matrix.T) @ query / P_D**0.5, dim=-1)
    other = AttentionPooling(P_D).double()
    other.query.data.copy_(matrix.T @ query)
    near(other(x)[1][:, 0, 0], projected)


@pytest.mark.parametrize("name", ["mean", "last", "attention"])
def test_a_sentence_of_padding_alone_pools_to_zero(name):
    x, pooling = pool_input().requires_grad_(), all_poolings()[name]
    mask = padding_mask(torch.tensor([7, 0, 5]), P_T)
    pooled, weights = pooling(x, mask)
    assert (pooled[1] == 0).all() and (weights[1] == 0).all() and pooled[[0, 2]].abs().min() > 0
    pooled.square().sum().backward()
    assert x.grad.isfinite().all() and (x.grad[1] == 0).all() and x.grad[0].abs().max() > 0
    if name == "attention":
        assert pooling.query.grad.isfinite().all() and pooling.query.grad.abs().max() > 0


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: AttentionPooling(P_D)(torch.zeros(P_T, P_D)), r"\(B, T, d_model\).*got shape \(7, 11\)"),
        (lambda: last_pooling(torch.zeros(P_B, 0, P_D)), r"T of 1 or more: got shape \(3, 0, 11\)"),
        (lambda: mean_pooling(pool_input(), torch.ones(P_B, 1, 1, P_T)), "must be bool.*float32"),
        (
            lambda: mean_pooling(pool_input(), torch.ones(P_B, P_T).bool()),
            r"\(3, 7\) does not broadcast.*\(3, 1, 1, 7\)",
        ),
    ],
)
def test_pooling_errors_name_the_rule_and_the_numbers(build, message):
    with pytest.raises(ValueError, match=message):
        build()


P_HEADS, P_WIDTH = 3, 33


def classifier(attention):
    torch.manual_seed(0)
    layer = MultiHeadAttention(P_WIDTH, P_HEADS) if attention else None
    model = AttentionClassifier(P_WIDTH, AttentionPooling(P_WIDTH), layer).double()
    model.pooling.query.data.normal_()
    return model


@pytest.mark.parametrize("attention", [False, True])
def test_classifier_is_embedding_attention_pooling_and_a_linear_layer(attention):
    model, sentence = classifier(attention), torch.tensor([encode(tokenize("those dogs slept in a bed"))])
    x = model.embedding.weight[sentence[0]] + model.positions[:6]
    if attention:
        x = x + model.attention(x[None])[0][0]
    weights = weights_by_loops("attention", x, torch.ones(6), model.pooling.query)
    logits, given = model(sentence)
    near(given[0, 0, 0], weights)
    near(logits[0], model.to_logits.weight @ (weights @ x) + model.to_logits.bias)


@pytest.mark.parametrize("attention", [False, True])
def test_classifier_answers_alike_alone_and_beside_longer_sentences(attention):
    """The words that stand at places of padding change nothing, not even through the attention layer's gradients."""
    model, rows = classifier(attention), [encode(tokenize(s)) for s in ("many cats sat on a big mat", "the fox slept")]
    tokens, lengths = pad_batch(rows)
    mask = padding_mask(lengths, tokens.size(1))
    other = tokens.where(tokens != PAD_ID, INDEX["kites"])
    results = []
    for batch in (tokens, other):
        model.zero_grad()
        logits, weights = model(batch, mask)
        logits.square().sum().backward()
        grads = [p.grad.clone() for p in model.parameters()]
        assert (model.embedding.weight.grad[batch[1, -1]] == 0).all(), "padding gets a gradient"
        results.append([logits, weights, *grads])
    for ours, theirs in zip(*results, strict=True):
        assert torch.equal(ours, theirs), "padding leaks"
    for b, row in enumerate(rows):
        near(model(torch.tensor([row]))[0][0], results[0][0][b])


def written(text, subject, beside, place):
    """A sentence by hand; nouns at the given indices, each with its determiner right before it or before adjectives."""
    words = tuple(text.split())
    determiners = [
        max(i for i in range(noun) if words[i] in ("a", "the", "those", "many")) for noun in (subject, beside, place)
    ]
    pairs = tuple(zip(determiners, (subject, beside, place), strict=True))
    return Sentence(words, {"determiner-noun": pairs, "verb-subject": ((0, subject),), "verb-place": ((0, place),)})


BY_HAND = [
    written("those dogs beside the barn slept in a soft bed", 1, 4, 9),
    written("a big bus beside many houses stalled on the bridges", 2, 5, 9),
    written("again the foxes beside the box ran near the parks", 2, 5, 9),
]


def test_questions_by_hand():
    expected = {"subject": [1, 0, 1], "beside": [0, 1, 0], "place": [0, 1, 1]}
    decisive = {  # determiner and noun
        "subject": [[0, 1], [0, 2], [1, 2]],
        "beside": [[3, 4], [4, 5], [4, 5]],
        "place": [[7, 9], [8, 9], [8, 9]],
    }
    for question in QUESTIONS:
        task = make_task(BY_HAND, question)
        assert task.answers.tolist() == expected[question]
        assert [noun_asked_for(sentence, question) for sentence in BY_HAND] == [noun for _, noun in decisive[question]]
        assert [row.nonzero()[:, 0].tolist() for row in task.decisive] == decisive[question]
        assert task.mask.shape == (3, 1, 1, 10) and task.mask.all()


def test_answers_are_the_number_that_the_determiner_shows():
    """An independent way to know the number: every determiner but "the" shows it."""
    rng, plural, checked = random.Random(7), {"these", "those", "some", "many"}, 0
    sentences = [s for s in (sample_sentence(rng) for _ in range(600)) if "beside" in s.words]
    for question in QUESTIONS:
        task = make_task(sentences, question)
        for n, sentence in enumerate(sentences):
            length = len(sentence.words)
            assert task.tokens[n, :length].tolist() == encode(sentence.words)
            assert task.mask[n, 0, 0].tolist() == [t < length for t in range(task.tokens.size(1))]
            determiner, noun = task.decisive[n].nonzero()[:, 0].tolist()
            before_beside = noun < sentence.words.index("beside")
            assert before_beside == (question == "subject") and (noun == length - 1) == (question == "place")
            if sentence.words[determiner] != "the":
                assert task.answers[n] == (sentence.words[determiner] in plural)
                checked += 1
    assert checked > 300


def test_held_out_questions_are_new_and_no_noun_tells_the_number_of_another():
    parts = [tasks(question) for question in QUESTIONS]
    (train, held_out) = parts[0]
    seen = {tuple(row) for row in train.tokens.tolist()}
    assert (
        len(seen) > 2000 and len(held_out.tokens) > 800 and not seen & {tuple(row) for row in held_out.tokens.tolist()}
    )
    answers = torch.stack([held_out.answers for _, held_out in parts]).double()
    assert (torch.corrcoef(answers) - torch.eye(3)).abs().max() < 0.1


@pytest.mark.parametrize(("place", "looks"), [(0, 2 / 3), (2, 2 / 3), (5, 0.0)])
def test_right_answers_and_looks_by_hand(place, looks):
    def always_plural(tokens, _mask):
        weights = torch.zeros(len(tokens), 1, 1, tokens.size(1), dtype=torch.float64)
        weights[..., place] = 1
        return torch.tensor([[0, 1]]).expand(len(tokens), 2), weights

    assert right_and_looks(always_plural, make_task(BY_HAND, "subject")) == (2 / 3, looks)


def test_training_lets_attention_find_what_the_mean_and_the_last_word_cannot():
    found = {name: right_and_looks(train(name, "beside", False, 5, 120), tasks("beside")[1]) for name in POOLINGS}
    right = {name: accuracy for name, (accuracy, _) in found.items()}
    assert right["attention"] > right["mean"] + 0.1 > right["last word"] + 0.2
    assert found["attention"][1] > 0.25  # even: 0.17
