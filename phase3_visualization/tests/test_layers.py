"""Rollout against worked numbers and paths; readers against their definitions; the board against readers made up."""

import itertools
import math
from functools import cache, partial

import pytest
import torch
from torch import nn

from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase3_visualization.layers import faithfulness, not_an_explanation, readers
from phase3_visualization.layers.rollout import raw_product, rollout_by_paths
from shared import training
from shared.attention_utils import attention_rollout, causal_mask
from shared.evidence.claims import FAILS, HOLDS
from shared.grammar.entropy import hidden_word_distribution, sentence_log_probability
from shared.tests.helpers import near
from shared.toy_language import (
    EITHER_DETERMINERS,
    INDEX,
    PLACES,
    PLURAL_DETERMINERS,
    SINGULAR_DETERMINERS,
    SUBJECTS,
    VERBS,
    VOCABULARY,
    Sentence,
    encode,
)
from shared.toy_model import ToyTransformer

SENTENCE = Sentence(
    ("these", "cats", "sat", "on", "the", "mat"),
    {"determiner-noun": ((0, 1), (4, 5)), "verb-subject": ((2, 1),), "verb-place": ((2, 5),), "adjective-noun": ()},
)


def random_layers(count, heads, length):
    generator = torch.Generator().manual_seed(0)
    return list(torch.randn(count, heads, length, length, generator=generator, dtype=torch.float64).softmax(dim=-1))


def test_combined_weights_worked_by_hand():
    layers = [torch.tensor([[[1, 0, 0], [0.5, 0.5, 0], [0, 1, 0]]], dtype=torch.float64)] * 2
    near(raw_product(layers)[2], torch.tensor([0.5, 0.5, 0]).double())
    near(attention_rollout(layers)[2], torch.tensor([1 / 8, 5 / 8, 1 / 4]).double())


def test_rollout_counts_every_path_and_the_product_is_a_loop():
    layers = random_layers(3, 2, 4)
    near(attention_rollout(layers), rollout_by_paths(layers))
    product = torch.eye(4).double()
    for layer in layers:
        product = layer.mean(dim=0) @ product
    near(raw_product(layers), product)


def test_without_the_residual_connection_all_outputs_soon_come_from_the_same_words():
    def rows_apart(combine, layers):
        return combine(layers).std(dim=-2).mean()

    layers = random_layers(6, 4, 16)
    assert rows_apart(raw_product, layers) < 1e-3 * rows_apart(raw_product, layers[:1])
    assert rows_apart(attention_rollout, layers) > 1e-2 * rows_apart(attention_rollout, layers[:1])


def test_rollout_of_even_causal_attention_blames_the_first_word():
    even = causal_mask(16) / causal_mask(16).sum(dim=-1, keepdim=True)
    assert attention_rollout([even[None]] * 8)[-1, 0] > 0.5


def test_words_that_matter_by_hand():
    related = [readers.related_words(SENTENCE, hidden) for hidden in (0, 1, 5)]
    assert related == [frozenset({1}), frozenset({0, 2}), frozenset({2})]  # "the" says nothing about "mat"
    hidden = [readers.make_case(SENTENCE, kind).hidden for kind in range(4)]
    assert hidden == [0, 1, 5, 5]  # "the" is not hidden, its noun is
    assert readers.make_case(SENTENCE, 1).others == [0, 2, 3, 4, 5]


def words_that_fit(case):
    """The words that may stand at the hidden position, from the words that matter alone."""
    known = [case.words[j] for j in case.related]
    noun_pairs = [pair for pairs in (*SUBJECTS.values(), *PLACES.values()) for pair in pairs]
    if case.words[case.hidden] in SINGULAR_DETERMINERS + PLURAL_DETERMINERS:
        plural = known[0] in [pair[1] for pair in noun_pairs]
        return set((PLURAL_DETERMINERS if plural else SINGULAR_DETERMINERS) + EITHER_DETERMINERS)
    (verb,) = [word for word in known if word in VERBS]
    subject, _, place = VERBS[verb]
    pairs = SUBJECTS[subject] if case.hidden < case.words.index(verb) else PLACES[place]
    determiners = [word for word in known if word != verb]
    numbers = [int(determiners[0] in PLURAL_DETERMINERS)] if determiners else [0, 1]
    return {pair[number] for pair in pairs for number in numbers}


def test_words_that_matter_say_all_that_the_sentence_says():
    for case in readers.make_cases(training.corpus()[1][:40]):
        exact = hidden_word_distribution(case.words, case.hidden)
        assert {VOCABULARY[i] for i in exact.nonzero().flatten().tolist()} == words_that_fit(case)
        assert exact[exact > 0].max() == pytest.approx(exact[exact > 0].min().item())  # all alike: nothing else counts


def test_rise_of_a_perfect_reader_by_hand():
    # "cats" between "these" and "sat": three plural animals; without "these" singular ones fit as well, and "a", "this"
    # and so on are as likely in all as the plural determiners: half of the probability is plural
    words = SENTENCE.words
    assert hidden_word_distribution(words, 1)[INDEX["cats"]] == pytest.approx(1 / 3)
    assert readers.grammar_rise(words, 1, 0) == pytest.approx(math.log(2))
    assert readers.grammar_rise(words, 1, 4) == pytest.approx(0)
    assert readers.grammar_rise(words, 1, 1) == 0


def test_rise_of_a_perfect_reader_sums_over_every_word_of_the_language():
    words, hidden = ("today", "these", "red", "cats", "slept", "often", "in", "a", "bed"), 3
    for left_out in (1, 2, 4, 5, 8):  # a determiner, an adjective, the verb, an adverb, the other noun
        joint = torch.zeros(len(VOCABULARY), len(VOCABULARY), dtype=torch.float64)
        filled = list(words)
        for (i, filled[hidden]), (j, filled[left_out]) in itertools.product(enumerate(VOCABULARY), repeat=2):
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
    expected = torch.stack([loss_on_cats(model, j) - loss_on_cats(model) for j in range(6)]).detach()
    near(readers.leave_one_out(model, case), expected)
    assert expected[1] == 0 and expected[[0, 2, 3, 4, 5]].abs().min() > 0


def test_gradients_are_how_fast_the_loss_changes_with_an_embedding(model, case):
    def with_sat_moved(change):
        """The loss when the embedding of "sat", at its place alone, is moved."""
        hook = model.embedding.register_forward_hook(
            lambda module, inputs, output: output.index_add(1, torch.tensor([2]), change[None, None])
        )
        try:
            return loss_on_cats(model).item()
        finally:
            hook.remove()

    steps = 1e-6 * torch.eye(15).double()
    slopes = torch.tensor([(with_sat_moved(step) - with_sat_moved(-step)) / 2e-6 for step in steps])
    assert readers.gradient_lengths(model, case)[2].item() == pytest.approx(slopes.norm().item(), rel=1e-4)


class RiggedReader(nn.Module):
    """Knows the hidden word for certain while the word at one position is to be seen, and else nothing."""

    def __init__(self, position, answer):
        super().__init__()
        self.position, self.answer = position, answer
        self.register_buffer("positions", torch.zeros(1))

    def forward(self, tokens):
        logits = torch.zeros(*tokens.shape, len(VOCABULARY), dtype=torch.float64)
        seen = tokens[:, self.position] != readers.MASK_ID
        logits[seen, :, self.answer] = 50.0
        return logits, []


@pytest.mark.parametrize("position", [0, 2, 5])
def test_leave_one_out_finds_the_only_word_that_a_rigged_model_reads(position, case):
    rises = readers.leave_one_out(RiggedReader(position, INDEX["cats"]), case)
    expected = torch.zeros(6, dtype=torch.float64)
    expected[position] = math.log(len(VOCABULARY))  # from certain to an even guess
    near(rises, expected, share=1e-9)


def test_norms_of_the_last_layer_add_up_to_its_output(model, case):
    tokens = torch.tensor([readers.hide(case.words, 1)])
    found = faithfulness.last_layer_norms(model, tokens, 1)
    x = model.blocks[0](model.embed(tokens))[0]
    attention, read = model.blocks[1].attention, model.blocks[1].attention_norm(x)
    _, weights = attention(read)
    for j in range(6):
        added = torch.zeros(15).double()
        for head in range(3):
            rows = slice(5 * head, 5 * head + 5)
            value = attention.w_v.weight[rows] @ read[0, j] + attention.w_v.bias[rows]
            added += weights[0, head, 1, j] * (attention.w_o.weight[:, rows] @ value)
        assert found[j].item() == pytest.approx(added.norm().item(), abs=1e-12)


def test_ties_are_shared_and_the_hidden_word_is_ignored(case):
    for values, right in (([0.5, 9, 0.1, 0, 0, 0], 1), ([0.5, 9, 0.1, 0.5, 0, 0], 0.5), ([0, 9, 0.1, 0.5, 0, 0], 0)):
        assert faithfulness.share(readers.first(torch.tensor(values), case), case.related) == right


def test_an_exact_reader_passes_and_one_that_guesses_fails(model, monkeypatch):
    exact, real = cache(readers.perfect_reader), cache(partial(faithfulness.answers, model))
    generator = torch.Generator().manual_seed(1)
    monkeypatch.setattr(faithfulness, "perfect_reader", exact)

    def guess(case):
        return torch.rand(len(case.words), generator=generator)

    def board(left_out, weights):
        """The board of 24 sentences, where the model misses words by left_out(case) and raw weights are weights(case).

        What the perfect reader and the other methods say is computed once for all boards.
        """
        made_up = {"leave-one-out": left_out, "raw weights": weights}
        monkeypatch.setattr(
            faithfulness, "answers", lambda _, case: real(case) | {name: made(case) for name, made in made_up.items()}
        )
        return faithfulness.score_methods(model, readers.make_cases(training.corpus()[1][:24]))

    weights, rollout = faithfulness.CLAIMS
    found = board(exact, exact)
    assert found["raw weights, found"] == found["leave-one-out, perfect reader's word"] == 1
    assert found["both readers agree"] == found["sentences asked"] <= 24
    assert weights.verdict(found) == HOLDS and rollout.verdict(found) == FAILS  # nothing is better than exact
    found = board(exact, guess)
    assert found["raw weights, found"] == pytest.approx(found["chance, found"], abs=0.2)
    assert weights.verdict(found) == FAILS
    found = board(lambda case: exact(case) + guess(case), exact)
    assert found["both readers agree"] < found["sentences asked"] and found["leave-one-out, found"] == 1


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


def test_where_the_value_is_zero_nothing_is_added_whatever_the_weight():
    attention = MultiHeadAttention(2, 1, bias=False).double()
    for w in (attention.w_v, attention.w_o):
        w.weight.data = torch.eye(2).double()
    words = torch.tensor([[[0.0, 1.0], [3.0, 4.0], [0.0, 0.0]]]).double()  # lengths 1, 5 and 0
    weights = torch.tensor([[[[0.6, 0.1, 0.3], [0.5, 0.5, 0.0], [0.1, 0.0, 0.9]]]], dtype=torch.float64)
    expected = torch.tensor([[[0.6 / 1.1, 0.5 / 1.1, 0], [1 / 6, 5 / 6, 0], [1, 0, 0]]], dtype=torch.float64)
    near(not_an_explanation.shares_added(attention, words, weights), expected)
