"""Writing with and without a cache, sampling against a plain loop, quality against the grammar
worked by hand.
"""

import math

import pytest
import torch

from phase4_causal.causal_attention import CausalSelfAttention, generate
from phase4_causal.key_value_cache import KeyValueCache
from phase4_causal.models import long_model
from phase4_causal.writing import cache_savings
from phase4_causal.writing import generate as generate4
from phase4_causal.writing.sampling import GREEDY, Sampling, Written, new_caches, write
from shared.measure import count_operations
from shared.tests.helpers import near
from shared.toy_language import END_ID, PAD_ID, START_ID, VOCABULARY, encode
from shared.toy_model import ToyTransformer


def generation_model(layers=2, seed=0):
    torch.manual_seed(seed)
    model = ToyTransformer(32, 2, layers, make_attention=CausalSelfAttention).double().eval()
    torch.nn.init.normal_(model.embedding.weight)  # so that the untrained model has opinions
    return model


def test_what_a_cache_cannot_hold_is_refused_and_nothing_stored():
    cache, new = KeyValueCache(1, 2, 5, 3), torch.ones(1, 2, 3, 3)
    keys, _ = cache.append(new, new)
    assert keys.data_ptr() == cache.keys.data_ptr() and cache.num_bytes == 2 * 2 * 5 * 3 * 4
    one = new[:, :, :1]
    for key, value, message in (
        (new, new, r"room for 5 positions: got 6 \(3 there, 3 new\)"),
        (torch.ones(1, 2, 3, 7), new, r"key of shape \(1, 2, T_new, 3\): got \(1, 2, 3, 7\)"),
        (one, new[:, :, :2], "same length: got 1 and 2"),
        (one.clone().requires_grad_(), one, "not for training"),
    ):
        with pytest.raises(ValueError, match=message):
            cache.append(key, value)
    assert cache.length == 3 and cache.keys[:, :, 3:].eq(0).all()
    with pytest.raises(ValueError, match="34 positions: got max_length=35"):
        new_caches(generation_model(), 35)


@pytest.mark.parametrize("given", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kept", [torch.float64, torch.float32, torch.float16])
def test_a_cache_keeps_numbers_that_it_can_hold_and_refuses_others(kept, given):
    """70,000 is inf in float16: rounded silently, it would spoil every word that comes after."""
    cache, new = KeyValueCache(1, 2, 5, 3, dtype=kept), torch.full((1, 2, 1, 3), 7.0, dtype=given)
    own, other = torch.finfo(kept), torch.finfo(given)
    if own.max >= other.max and own.eps <= other.eps:
        assert all(torch.equal(numbers, new.to(kept)) for numbers in cache.append(new, new))
        return
    for pair in ((new, new.to(kept)), (new.to(kept), new)):
        with pytest.raises(
            ValueError, match=rf"holds {kept}.*got {given}; make it with dtype={given}"
        ):
            cache.append(*pair)
    assert cache.length == 0


def generation_oracle(logits, temperature, top_k, top_p):
    """Temperature, top-k, top-p for one row of logits, in plain loops."""
    weights = [math.exp(value / temperature) for value in logits]
    ranked = sorted(range(len(weights)), key=lambda i: -weights[i])[:top_k]
    total = sum(weights[i] for i in ranked)
    kept, reached = [], 0.0
    for i in ranked:
        kept.append(i)
        reached += weights[i] / total
        if reached >= top_p:
            break
    total = sum(weights[i] for i in kept)
    return [weights[i] / total if i in kept else 0.0 for i in range(len(weights))]


@pytest.mark.parametrize("top_p", [None, 0.1, 0.6, 0.95])
@pytest.mark.parametrize(("temperature", "top_k"), [(0.3, None), (1.0, 1), (1.7, 5), (1.7, 200)])
def test_sampling_is_the_plain_loop(temperature, top_k, top_p):
    logits = torch.randn(3, 17, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    ours = Sampling(temperature, top_k, top_p).probabilities(logits)
    expected = [
        generation_oracle(row, temperature, top_k, top_p or math.inf) for row in logits.tolist()
    ]
    near(ours, torch.tensor(expected, dtype=torch.float64))


def test_top_p_keeps_the_word_that_reaches_p_and_small_temperatures_are_greedy():
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64).log()
    expected = torch.tensor([5 / 8, 3 / 8, 0, 0], dtype=torch.float64)
    near(Sampling(top_p=0.7).probabilities(logits), expected)
    assert Sampling(1e-300).probabilities(1e3 * logits).tolist() == [1, 0, 0, 0]
    assert GREEDY.probabilities(logits).tolist() == [1, 0, 0, 0]


def test_what_is_written_with_a_cache_is_what_one_pass_says_and_repeats_with_the_seed():
    model, start = generation_model(), torch.tensor([[START_ID, 9]]).expand(5, -1)
    one, same, other = (
        write(
            model, start, Sampling(2.0, 30), limit=13, generator=torch.Generator().manual_seed(seed)
        )
        for seed in (0, 0, 1)
    )
    assert torch.equal(one.tokens, same.tokens) and not torch.equal(one.tokens, other.tokens)
    logits, layers = model(one.tokens[:, :-1])
    near(one.logits, logits[:, 1:], share=1e-10)
    for step, attended in enumerate(one.attended):
        for ours, theirs in zip(attended, layers, strict=True):
            near(ours, theirs[:, :, step + 1, : step + 2], share=1e-10)


def test_temperature_0_is_the_greedy_generation_of_the_plain_function():
    model, start = generation_model(), torch.tensor([[START_ID, *encode(["the", "cat"])]])
    assert write(model, start, Sampling(0.0), limit=12).sentences() == [
        generate(model, ["the", "cat"], limit=12)
    ]


def test_writing_stops_at_end_pads_and_leaves_room():
    model = generation_model()
    start = torch.full((2, 1), START_ID)
    with torch.no_grad():
        model.output_bias[END_ID] = 1e4
    written = write(model, start)
    assert written.tokens.tolist() == [[START_ID, END_ID]] * 2 and written.sentences() == [[], []]
    tokens = torch.tensor([[START_ID, 9, PAD_ID, 8, END_ID, PAD_ID]])
    words = [
        VOCABULARY[9],
        VOCABULARY[PAD_ID],
        VOCABULARY[8],
    ]  # padding before <end> was written, and is a mistake
    assert Written(tokens, tokens, []).sentences() == [words]
    with pytest.raises(ValueError, match="after the prompt of 3 words: got 3"):
        write(model, torch.full((1, 4), START_ID), limit=3)


def test_accepted_is_what_the_grammar_can_make():
    good, bad = (
        ["the", "cat", "sat", "on", "the", "mat"],
        ["these", "cat", "sat", "on", "the", "mat"],
    )
    assert generate4.accepted([good, bad, ["a", "dog", "slept", "in", "a", "bed"], good]) == 3 / 4


def test_entropy_of_a_sentence_against_a_plain_loop():
    model, sampling = generation_model(), Sampling(4.0, top_p=0.8)
    with torch.no_grad():
        model.output_bias[END_ID] = 20.0  # so that sentences differ in length
    written = write(
        model, torch.full((9, 2), START_ID), sampling, generator=torch.Generator().manual_seed(2)
    )
    assert len({len(words) for words in written.sentences()}) > 2
    for row, tokens in enumerate(written.tokens.tolist()):
        entropy = 0.0
        for step, word in enumerate(tokens[2:]):
            drawn_from = sampling.probabilities(written.logits[row, step])
            entropy -= sum(p * math.log(p) for p in drawn_from.tolist() if p)
            if word == END_ID:
                assert set(tokens[step + 3 :]) <= {PAD_ID}
                break
        near(written.entropy(sampling)[row].item(), entropy, share=1e-5)


def test_the_work_is_that_of_the_formulas_and_the_cache_exact():
    model, lengths = long_model(17, "meta"), (1, 3, 17)
    for way in cache_savings.COLORS:
        counted = [
            count_operations(cache_savings.step, model, n, way == "with the cache") for n in lengths
        ]
        assert counted == [cache_savings.on_paper(n, way) for n in lengths]
    assert (
        cache_savings.largest_difference(generation_model(), torch.tensor([[4, 9, 7, 30, 5, 9]]))
        < 1e-12
    )
