"""Writing with and without a cache, sampling against a plain loop, quality against the grammar worked by hand."""

import math

import pytest
import torch

from phase4_causal.causal_attention import CausalSelfAttention, generate
from phase4_causal.key_value_cache import KeyValueCache
from phase4_causal.writing import cache_savings
from phase4_causal.writing import generate as generate4
from phase4_causal.writing.sampling import GREEDY, Sampling, Written, new_caches, write
from shared import training
from shared.attention_utils import padding_mask
from shared.toy_language import END_ID, PAD_ID, START_ID, VOCABULARY, encode
from shared.toy_model import ToyTransformer


def generation_model(layers=2, seed=0):
    torch.manual_seed(seed)
    model = ToyTransformer(32, 2, layers, make_attention=CausalSelfAttention).double().eval()
    torch.nn.init.normal_(model.embedding.weight)  # so that the untrained model has opinions
    return model


def generation_tokens(batch=2, length=11):
    return torch.randint(4, len(VOCABULARY), (batch, length), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("chunks", [[1] * 11, [11], [7, 1, 1, 1, 1], [3, 5, 3], [2, 2, 7]])
def test_cache_in_chunks_of_any_size_gives_the_logits_and_weights_of_one_pass(chunks):
    model, tokens = generation_model(3), generation_tokens()
    with torch.no_grad():
        whole, layers = model(tokens)
    caches = new_caches(model, 11, batch=2)
    end = 0
    for part in tokens.split(chunks, dim=1):
        with torch.no_grad():
            logits, weights = model(part, caches=caches)
        start, end = end, end + part.size(1)
        torch.testing.assert_close(logits, whole[:, start:end], rtol=0, atol=1e-10)
        for ours, theirs in zip(weights, layers, strict=True):
            torch.testing.assert_close(ours, theirs[:, :, start:end, :end], rtol=0, atol=1e-10)
        assert [cache.length for cache in caches] == [end] * 3


def test_cache_takes_a_padding_mask_over_all_keys():
    torch.manual_seed(1)
    attention = CausalSelfAttention(33, 3).double()
    x, mask = torch.randn(2, 7, 33, dtype=torch.float64), padding_mask(torch.tensor([4, 7]), 7)
    cache = KeyValueCache(2, 3, 13, 11, dtype=torch.float64)
    with torch.no_grad():
        expected = attention(x, mask)
        attention(x[:, :5], mask[..., :5], cache)
        output, weights = attention(x[:, 5:], mask, cache)
    torch.testing.assert_close(output, expected[0][:, 5:], rtol=0, atol=1e-12)
    assert weights[0, :, :, 4:].eq(0).all() and weights.shape == (2, 3, 2, 7)


def test_cache_overflow_and_wrong_shapes_are_refused_and_store_nothing():
    cache = KeyValueCache(1, 2, 5, 3)
    new = torch.ones(1, 2, 3, 3)
    keys, _ = cache.append(new, new)
    assert keys.data_ptr() == cache.keys.data_ptr() and cache.num_bytes == 2 * 2 * 5 * 3 * 4
    with pytest.raises(ValueError, match=r"room for 5 positions: got 6 \(3 there, 3 new\)"):
        cache.append(new, new)
    with pytest.raises(ValueError, match=r"key of shape \(1, 2, T_new, 3\): got \(1, 2, 3, 7\)"):
        cache.append(torch.ones(1, 2, 3, 7), new)
    with pytest.raises(ValueError, match="same length: got 1 and 2"):
        cache.append(new[:, :, :1], new[:, :, :2])
    with pytest.raises(ValueError, match="not for training"):
        cache.append(new[:, :, :1].clone().requires_grad_(), new[:, :, :1])
    assert cache.length == 3 and cache.keys[:, :, 3:].eq(0).all()
    with pytest.raises(ValueError, match="max_length=0"):
        KeyValueCache(1, 2, 0, 3)
    model = generation_model()
    with pytest.raises(ValueError, match="34 positions: got max_length=35"):
        new_caches(model, 35)
    caches = new_caches(model, 3)
    with torch.no_grad(), pytest.raises(ValueError, match="room for 3 positions: got 4"):
        model(generation_tokens(1, 4), caches=caches)
    with torch.no_grad(), pytest.raises(ValueError, match="at most 34 tokens: got 35"):
        model(generation_tokens(1, 35), caches=caches)


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


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
@pytest.mark.parametrize("top_k", [None, 1, 5, 200])
@pytest.mark.parametrize("top_p", [None, 0.1, 0.6, 0.95])
def test_sampling_is_the_plain_loop(temperature, top_k, top_p):
    logits = torch.randn(3, 17, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    ours = Sampling(temperature, top_k, top_p).probabilities(logits)
    expected = [generation_oracle(row, temperature, top_k, top_p or math.inf) for row in logits.tolist()]
    torch.testing.assert_close(ours, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12)


def test_top_p_keeps_the_word_that_reaches_p_and_small_temperatures_are_greedy():
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64).log()
    expected = torch.tensor([5 / 8, 3 / 8, 0, 0], dtype=torch.float64)
    torch.testing.assert_close(Sampling(top_p=0.7).probabilities(logits), expected)
    assert Sampling(1e-300).probabilities(1e3 * logits).tolist() == [1, 0, 0, 0]
    assert GREEDY.probabilities(logits).tolist() == [1, 0, 0, 0]


@pytest.mark.parametrize(
    ("values", "message"),
    [((-1.0,), "got -1"), ((math.nan,), "got nan"), ((math.inf,), "got inf"), ((1.0, 0), "got 0"),
     ((1.0, None, 0.0), "got 0"), ((1.0, None, 1.1), "got 1.1"), ((1.0, None, math.nan), "got nan")],
)  # fmt: skip
def test_sampling_refuses_values_without_a_meaning(values, message):
    with pytest.raises(ValueError, match=message):
        Sampling(*values)


def test_written_tokens_and_logits_are_the_same_with_and_without_cache_and_repeat_with_the_seed():
    model, start = generation_model(), torch.full((5, 1), START_ID)
    runs = [
        write(model, start, Sampling(2.0, 30), limit=13, generator=torch.Generator().manual_seed(seed), cached=cached)
        for seed, cached in ((0, True), (0, False), (1, True))
    ]
    assert torch.equal(runs[0].tokens, runs[1].tokens) and not torch.equal(runs[0].tokens, runs[2].tokens)
    torch.testing.assert_close(runs[0].logits, runs[1].logits, rtol=0, atol=1e-10)
    for ours, theirs in zip(runs[0].attended, runs[1].attended, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_temperature_0_is_the_greedy_generation_of_the_plain_function(seed):
    model = generation_model(seed=seed)
    expected = generate(model, ["the", "cat"], limit=12)
    start = torch.tensor([[START_ID, *encode(["the", "cat"])]])
    assert write(model, start, Sampling(0.0), limit=12).sentences() == [expected]


def test_writing_stops_at_end_pads_and_leaves_room():
    model = generation_model()
    start = torch.full((2, 1), START_ID)
    with torch.no_grad():
        model.output_bias[END_ID] = 1e4
    written = write(model, start)
    assert written.tokens.tolist() == [[START_ID, END_ID]] * 2 and written.sentences() == [[], []]
    tokens = torch.tensor([[START_ID, 9, PAD_ID, 8, END_ID, PAD_ID]])
    words = [VOCABULARY[9], VOCABULARY[PAD_ID], VOCABULARY[8]]  # padding before <end> was written, and is a mistake
    assert Written(tokens, tokens, []).sentences() == [words]
    with pytest.raises(ValueError, match="after the prompt of 3 words: got 3"):
        write(model, torch.full((1, 4), START_ID), limit=3)


# one of 12 verbs, no adverb three times, no second noun, and two noun phrases: singular, one of five determiners, no
# adjective, one of three nouns
SENTENCE_PROBABILITY = 1 / 12 * 0.8**3 * 0.7 * (0.5 / 5 * 0.5 / 3) ** 2


def test_judge_counts_what_the_grammar_accepts():
    good, bad = ["the", "cat", "sat", "on", "the", "mat"], ["these", "cat", "sat", "on", "the", "mat"]
    other = ["a", "dog", "slept", "in", "a", "bed"]
    accepted, different, log_probability = generate4.judge([good, bad, other, good])
    assert accepted == different == 3 / 4
    assert math.isclose(log_probability, math.log(SENTENCE_PROBABILITY))  # of "the cat ..." and "a dog ..." alike
    assert math.isnan(generate4.judge([bad])[2])
    with pytest.raises(ValueError, match="got 0"):
        generate4.judge([])


def test_the_work_is_that_of_the_formulas_and_the_quotient_is_the_length():
    lengths = (1, 3, 17)
    counts = cache_savings.work(lengths)
    by_hand = [4 * (16 * n * 128**2 + 4 * n**2 * 128) + 2 * n * 128 * len(VOCABULARY) for n in lengths]
    assert counts["without, counted"] == by_hand
    assert counts["with cache, counted"] == [work // n for work, n in zip(by_hand, lengths, strict=True)]


def test_the_cache_is_exact_and_a_model_without_the_mask_differs_where_it_should():
    tokens = generation_tokens(1, 6)
    trained = training.untrained(training.Recipe("t", "next word", 2, 2, 1, d_model=32), CausalSelfAttention)
    one, two, again = cache_savings.without_a_mask(trained, tokens).values()
    assert one < 1e-12 and min(two, again) > 1e-4
    exact = cache_savings.with_and_without(generation_model(), tokens, 0)
    assert max(exact["read in chunks"]) < 1e-12 and exact["20 drawn sentences"] < 1e-12 and not exact["different words"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--temperature", "-1"], "temperature must be 0"),
        (["--temperature", "hot"], "invalid float value: 'hot'"),
        (["--top-k", "0"], "top-k must leave 1 word"),
        (["--top-p", "2"], "top-p must lie above 0"),
        (["--limit", "2"], "--limit must lie between 3 and 32 words: got 2"),
        (["--limit", "33"], "between 3 and 32 words: got 33"),
        (["--prompt", "xyzzy"], '"xyzzy" is not among'),
    ],
)
def test_generation_options_without_a_meaning_are_one_line(arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        generate4.main(arguments)
    said = capsys.readouterr().err
    assert stop.value.code == 2 and message in said and said.count("\n") == 1


def test_a_sentence_ends_by_itself_only_with_the_end_token():
    model = generation_model()
    with torch.no_grad():
        model.output_bias[END_ID] = 500.0  # <end> at once, always
    assert generate4.ended(model, 13) == {"with <end>": 1, "<end> taken away": 0}
    assert model.output_bias[END_ID] == 500, "the model itself must not change"


@pytest.mark.parametrize(
    ("greedy", "expected"),
    [
        ("the cat sat on the mat", {"greedy accepted": 1, "greedy likelier than the median drawn": 0}),  # as likely
        ("the cat sat sat", {"greedy accepted": 0, "greedy likelier than the median drawn": 0}),
        ("the cat sat on a mat", {"greedy accepted": 1, "greedy likelier than the median drawn": 1}),
    ],
)
def test_greedy_against_drawn_compares_with_the_grammar(monkeypatch, greedy, expected):
    """Of ten drawn seven are accepted; in the last case they are longer, and so less likely, than the greedy one."""
    good = "the cat sat on the mat" if "a mat" not in greedy else "the big cat sat on the mat"

    def written(_model, tokens, *_sampling, **_more):
        rows = [greedy] * 3 if len(tokens) == 3 else ([good] * 7 + ["the cat sat sat"] * 3) * 3
        return type("Rows", (), {"sentences": lambda self: [row.split() for row in rows]})()

    monkeypatch.setattr(generate4, "write", written)
    assert generate4.greedy_against_drawn(generation_model(), 3, 0) == expected
