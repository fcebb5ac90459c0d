"""Rollout and flow against worked numbers, cuts and loops; leave-one-out and gradients against their definitions."""

import itertools
import math
from functools import cache, partial

import pytest
import torch
from torch import nn

from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase3_visualization.layers import faithfulness, rollout
from shared import training
from shared.attention_utils import attention_rollout, causal_mask
from shared.evidence.claims import FAILS, HOLDS
from shared.grammar.entropy import hidden_word_distribution, sentence_log_probability
from shared.tests.helpers import close
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
)
from shared.toy_model import ToyTransformer


def rollout_layers(count=2, heads=3, length=4, *, causal=False, seed=0):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(count, heads, length, length, generator=generator, dtype=torch.float64)
    if causal:
        scores = scores.masked_fill(~causal_mask(length), -math.inf)
    return list(scores.softmax(dim=-1))


def test_combined_weights_worked_by_hand():
    layers = [torch.tensor([[[1, 0, 0], [0.5, 0.5, 0], [0, 1, 0]]], dtype=torch.float64)] * 2
    close(rollout.raw_product(layers)[2], torch.tensor([0.5, 0.5, 0]).double())
    close(attention_rollout(layers)[2], torch.tensor([1 / 8, 5 / 8, 1 / 4]).double())
    # to word 0 only 1/4 fits from word 1 on; to word 1 half straight down, half through its own pipe; to 2 its own half
    close(rollout.maximum_flow(layers)[2], torch.tensor([1 / 4, 1, 1 / 2]).double() / (7 / 4))
    even = attention_rollout(rollout.even_causal_weights(3, 2))[2]
    expected = torch.tensor([1 / 8, 5 / 8, 1 / 4]).double() / even
    close(rollout.causal_rollout(layers)[2], expected / expected.sum())


def cheapest_cut(layers, output, word):
    """The flow from an output to a word by the other side of the theorem: the narrowest cut, all cuts tried."""
    length = layers[0].size(-1)
    nodes = [(level, i) for level in range(len(layers) + 1) for i in range(length)]
    source, sink = (len(layers), output), (0, word)
    inner = [node for node in nodes if node not in (source, sink)]
    best = math.inf
    for chosen in itertools.product((False, True), repeat=len(inner)):
        side = {source, *itertools.compress(inner, chosen)}
        width = sum(
            ((layers[level - 1].mean(dim=0) + torch.eye(length)) / 2)[i, j].item()
            for level, i in side
            if level > 0
            for j in range(length)
            if (level - 1, j) not in side
        )
        best = min(best, width)
    return best


def test_flow_is_the_narrowest_cut():
    layers = rollout_layers(2, 2, 3)
    raw = torch.tensor([[cheapest_cut(layers, i, j) for j in range(3)] for i in range(3)], dtype=torch.float64)
    close(rollout.maximum_flow(layers), raw / raw.sum(dim=-1, keepdim=True), rtol=0, atol=1e-9)
    close(rollout.maximum_flow(layers, [2]), rollout.maximum_flow(layers)[2:], rtol=0, atol=1e-12)


def test_rows_of_combined_weights_sum_to_one_and_the_product_is_a_loop():
    layers = rollout_layers(3, 2, 5)
    product = torch.eye(5).double()
    for layer in layers:
        product = layer.mean(dim=0) @ product
    close(rollout.raw_product(layers), product)
    for combined in (rollout.raw_product(layers), attention_rollout(layers), rollout.maximum_flow(layers)):
        close(combined.sum(dim=-1), torch.ones(5).double())


@pytest.mark.parametrize("length", [2, 5, 16])
def test_corrected_rollout_blames_nobody_for_even_causal_attention(length):
    even = rollout.even_causal_weights(length, 8)
    corrected = rollout.causal_rollout(even)
    close(corrected, torch.tensor([[(j <= i) / (i + 1) for j in range(length)] for i in range(length)]).double())
    if length == 16:
        assert attention_rollout(even)[-1, 0] > 0.5 > corrected[-1, 0] * 8 - 1e-12


def test_corrected_rollout_is_for_causal_weights_alone():
    corrected = rollout.causal_rollout(rollout_layers(3, 2, 5, causal=True))
    close(corrected.sum(dim=-1), torch.ones(5).double())
    with pytest.raises(ValueError, match="later positions; use attention_rollout"):
        rollout.causal_rollout(rollout_layers())
    with pytest.raises(ValueError, match="at least one layer"):
        rollout.raw_product([])
    with pytest.raises(ValueError, match="pick one item of a batch"):
        rollout.maximum_flow([torch.ones(1, 1, 3, 3)])


ROLLOUT_SENTENCE = Sentence(
    ("these", "cats", "sat", "on", "the", "mat"),
    {
        "determiner-noun": ((0, 1), (4, 5)),
        "verb-subject": ((2, 1),),
        "verb-place": ((2, 5),),
        "adjective-noun": (),
    },
)


def test_words_that_matter_by_hand():
    related = [faithfulness.related_words(ROLLOUT_SENTENCE, hidden) for hidden in (0, 1, 5)]
    assert related == [frozenset({1}), frozenset({0, 2}), frozenset({2})]  # "the" says nothing about "mat"
    hidden = [faithfulness.make_case(ROLLOUT_SENTENCE, kind).hidden for kind in range(4)]
    assert hidden == [0, 1, 5, 5]  # "the" is not hidden, its noun is
    case = faithfulness.make_case(ROLLOUT_SENTENCE, 1)
    assert case.others == [0, 2, 3, 4, 5]


def test_rise_of_a_perfect_reader_by_hand():
    # "cats" between "these" and "sat": three plural animals; without "these" singular ones fit as well, and "a", "this"
    # and so on are as likely in all as the plural determiners: half of the probability is plural
    words = ROLLOUT_SENTENCE.words
    assert hidden_word_distribution(words, 1)[INDEX["cats"]] == pytest.approx(1 / 3)
    assert faithfulness.grammar_rise(words, 1, 0) == pytest.approx(math.log(2))
    assert faithfulness.grammar_rise(words, 1, 4) == pytest.approx(0)
    assert faithfulness.grammar_rise(words, 1, 1) == 0


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
        assert faithfulness.grammar_rise(words, hidden, left_out) == pytest.approx(expected, abs=1e-12)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return ToyTransformer(15, 3, 2, make_attention=MultiHeadAttention).double().eval()


@pytest.fixture
def case():
    """ "cats" is hidden; "these" and "sat" matter."""
    return faithfulness.make_case(ROLLOUT_SENTENCE, 1)


def test_leave_one_out_and_gradients_are_their_definitions(model, case):

    def loss(*masked):
        logits, _ = model(torch.tensor([faithfulness.hide(case.words, 1, *masked)]))
        return -logits[0, 1].log_softmax(dim=-1)[INDEX["cats"]].item()

    expected = torch.tensor([loss(j) - loss() for j in range(6)], dtype=torch.float64)
    close(faithfulness.leave_one_out(model, case), expected, rtol=0, atol=1e-12)
    assert expected[1] == 0 and expected[[0, 2, 3, 4, 5]].abs().min() > 0
    lengths, products = faithfulness.gradients(model, case)
    step, position = 1e-6, 2
    embedded = model.embedding.weight[INDEX["sat"]].detach()

    def moved(amount):
        """The loss when the embedding of "sat", at its place alone, is stretched by 1 + amount."""
        change = (amount * embedded)[None, None]
        hook = model.embedding.register_forward_hook(
            lambda module, inputs, output: output.index_add(1, torch.tensor([position]), change)
        )
        try:
            return loss()
        finally:
            hook.remove()

    assert products[position] == pytest.approx(abs(moved(step) - moved(-step)) / (2 * step), rel=1e-4)
    assert lengths.shape == (6,) and bool((lengths > 0).all())


def test_norms_of_the_last_layer_add_up_to_its_output(model, case):
    tokens = torch.tensor([faithfulness.hide(case.words, 1)])
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
        assert faithfulness.share(faithfulness.first(torch.tensor(values), case), case.related) == right


def test_interval_over_sentences_is_that_of_a_mean():
    values = [0.0, 1.0] * 100
    low, high = faithfulness.over_sentences(values, torch.Generator().manual_seed(0))
    assert low == pytest.approx(0.5 - 1.96 * 0.5 / 200**0.5, abs=0.01)
    assert high == pytest.approx(0.5 + 1.96 * 0.5 / 200**0.5, abs=0.01)
    assert faithfulness.over_sentences([1.0] * 9, torch.Generator()) == [1, 1]


@pytest.fixture
def scoreboard(model, monkeypatch):
    """score_methods on 24 sentences, where the model misses words by rises(case) and raw weights are weights(case).

    What the perfect reader and the other methods say is computed once for all boards.
    """
    exact, real = cache(faithfulness.perfect_reader), cache(partial(faithfulness.scores, model))
    monkeypatch.setattr(faithfulness, "perfect_reader", exact)

    def board(rises, weights):
        monkeypatch.setattr(faithfulness, "leave_one_out", lambda _, case: rises(case))
        monkeypatch.setattr(faithfulness, "scores", lambda _, case: real(case) | {faithfulness.RAW: weights(case)})
        cases = faithfulness.make_cases(training.corpus()[1][:24])
        return faithfulness.score_methods(model, cases, torch.Generator().manual_seed(0))

    return board


def test_an_exact_reader_passes_and_one_that_guesses_fails(scoreboard):
    exact = faithfulness.perfect_reader
    board = scoreboard(exact, exact)
    assert board["raw weights: found"] == board["leave-one-out: perfect reader's word"] == 1
    assert board["raw weights: 95 % of sentences"] == [1, 1]
    assert board["both readers agree"] == board["sentences asked"] <= 24
    claims = {claim.id: claim for claim in board.claims}
    assert {claims[name].verdict(board) for name in ("faithful-weights", "leave-one-out")} == {HOLDS}
    assert claims["faithful-rollout"].verdict(board) == FAILS  # nothing is better than exact
    generator = torch.Generator().manual_seed(1)

    def guess(case):
        return torch.rand(len(case.words), generator=generator)

    board = scoreboard(exact, guess)
    assert board["raw weights: found"] == pytest.approx(board["chance: found"], abs=0.2)
    assert {claims[name].verdict(board) for name in ("faithful-weights", "plausible-weights")} == {FAILS}
    board = scoreboard(lambda case: exact(case) + guess(case), exact)
    assert board["both readers agree"] < board["sentences asked"] and board["leave-one-out: found"] == 1


class RiggedReader(nn.Module):
    """Knows the hidden word for certain while the word at one position is to be seen, and else nothing."""

    def __init__(self, position, answer):
        super().__init__()
        self.position, self.answer = position, answer
        self.register_buffer("positions", torch.zeros(1))

    def forward(self, tokens):
        logits = torch.zeros(*tokens.shape, len(VOCABULARY), dtype=torch.float64)
        seen = tokens[:, self.position] != faithfulness.MASK_ID
        logits[seen, :, self.answer] = 50.0
        return logits, []


@pytest.mark.parametrize("position", [0, 2, 5])
def test_leave_one_out_finds_the_only_word_that_a_rigged_model_reads(position, case):
    rises = faithfulness.leave_one_out(RiggedReader(position, INDEX["cats"]), case)
    expected = torch.zeros(6, dtype=torch.float64)
    expected[position] = torch.tensor(len(VOCABULARY), dtype=torch.float64).log()  # from certain to an even guess
    torch.testing.assert_close(rises, expected, rtol=0, atol=1e-9)


def rollout_words_that_fit(case):
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
    for case in faithfulness.make_cases(training.corpus()[1][:40]):
        exact = hidden_word_distribution(case.words, case.hidden)
        assert {VOCABULARY[i] for i in exact.nonzero().flatten().tolist()} == rollout_words_that_fit(case)
        assert exact[exact > 0].max() == pytest.approx(exact[exact > 0].min().item())  # all alike: nothing else counts


def test_a_planted_word_is_found_only_after_the_causal_correction():
    """Eight causal layers in which every position prefers word 7, four times as much as the others, up to chance."""
    torch.manual_seed(3)
    scores = 0.5 * torch.randn(8, 1, 16, 16, dtype=torch.float64)
    scores[..., 7] += math.log(4)
    weights = list(scores.masked_fill(~causal_mask(16), -math.inf).softmax(dim=-1))
    assert int(rollout.causal_rollout(weights)[-1].argmax()) == 7
    assert int(attention_rollout(weights)[-1].argmax()) == 0
