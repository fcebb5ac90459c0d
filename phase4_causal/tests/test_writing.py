"""Writing with and without a cache, sampling against a plain loop, quality against the grammar worked by hand."""

import math

import matplotlib.pyplot as plt
import numpy as np
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


def test_a_cache_refuses_what_its_numbers_cannot_hold_and_keeps_what_they_can():
    """70,000 is inf in float16: rounded silently, it would spoil every word that comes after."""
    for kept, given, holds in (
        (torch.float16, torch.float32, False),
        (torch.float16, torch.bfloat16, False),
        (torch.float32, torch.float64, False),
        (torch.float32, torch.bfloat16, True),
        (torch.float64, torch.float16, True),
    ):
        cache, new = (
            KeyValueCache(1, 2, 5, 3, dtype=kept),
            torch.full((1, 2, 1, 3), 7e4 if given != torch.float16 else 7.0, dtype=given),
        )
        if holds:
            keys, _ = cache.append(new, new)
            assert keys.dtype == kept and torch.equal(keys, new.to(kept))
            continue
        for pair in ((new, new.to(kept)), (new.to(kept), new)):
            with pytest.raises(ValueError, match=rf"holds {kept}.*got {given}; make it with dtype={given}"):
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


def test_accepted_is_what_the_grammar_can_make():
    good, bad = ["the", "cat", "sat", "on", "the", "mat"], ["these", "cat", "sat", "on", "the", "mat"]
    assert generate4.accepted([good, bad, ["a", "dog", "slept", "in", "a", "bed"], good]) == 3 / 4
    with pytest.raises(ValueError, match="got 0"):
        generate4.accepted([])


def test_entropy_and_probability_of_a_sentence_against_a_plain_loop():
    model, sampling = generation_model(), Sampling(4.0, top_p=0.8)
    with torch.no_grad():
        model.output_bias[END_ID] = 20.0  # so that sentences differ in length
    written = write(model, torch.full((9, 2), START_ID), sampling, generator=torch.Generator().manual_seed(2))
    lengths = [len(words) for words in written.sentences()]
    assert len(set(lengths)) > 2
    for row, tokens in enumerate(written.tokens.tolist()):
        entropy = log_probability = 0.0
        for step, word in enumerate(tokens[2:]):
            drawn_from = sampling.probabilities(written.logits[row, step])
            entropy -= sum(p * math.log(p) for p in drawn_from.tolist() if p)
            log_probability += written.logits[row, step].log_softmax(dim=-1)[word].item()
            if word == END_ID:
                break
        assert math.isclose(written.entropy(sampling)[row], entropy)
        assert math.isclose(written.log_probability()[row], log_probability)


def test_the_entropies_of_the_words_sum_to_that_of_the_sentences():
    """The chain rule, by all sentences of two words at most that a model can write."""
    torch.manual_seed(0)
    model, limit = ToyTransformer(32, 2, 2, make_attention=CausalSelfAttention).double().eval(), 2
    with torch.no_grad():
        model.output_bias[8:] = -1e4  # few words are left
    start = torch.full((4000, 1), START_ID)
    written = write(model, start, Sampling(), limit=limit, generator=torch.Generator().manual_seed(0))
    distinct = {
        tuple(row): p for row, p in zip(written.tokens.tolist(), written.log_probability().tolist(), strict=True)
    }
    assert math.isclose(sum(map(math.exp, distinct.values())), 1, abs_tol=0.02)
    by_sentences = -sum(math.exp(log) * log for log in distinct.values())
    assert math.isclose(written.entropy(Sampling()).mean(), by_sentences, abs_tol=0.05)


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
    assert cache_savings.with_and_without(generation_model(), tokens, 0) < 1e-12


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


@pytest.mark.parametrize(
    ("greedy", "accepted", "likelier"),
    [("the cat sat on the mat", 1, 0), ("the cat sat sat", 0, 0), ("the cat sat on a mat", 1, 1)],  # first: as likely
)
def test_greedy_against_drawn_compares_with_the_grammar_and_with_the_model(monkeypatch, greedy, accepted, likelier):
    """Of the drawn 7 in 10 are accepted; in the last case they are longer, and so less likely, than the greedy one."""
    good = "the cat sat on the mat" if "a mat" not in greedy else "the big cat sat on the mat"

    def written(_model, tokens, *_sampling, **_more):
        of_one = 14 * [good] + 6 * ["the cat sat sat"]
        rows = [greedy] * 3 if len(tokens) == 3 else of_one * 3
        logs = [-3.0, -1.0, -9.0] if len(tokens) == 3 else [-2.0] * 60
        answers = {"sentences": lambda self: [row.split() for row in rows]}
        return type("Rows", (), answers | {"log_probability": lambda self: torch.tensor(logs)})()

    monkeypatch.setattr(generate4, "write", written)
    found = generate4.greedy_against_drawn(generation_model(), 3, 0)
    assert list(found.values()) == [accepted, likelier, 1 / 3]


def test_a_page_of_the_film_shows_the_sentence_so_far_and_hatches_what_is_not_yet_written():
    start = torch.tensor([[START_ID, *encode(["the", "cat"])]])
    written = write(generation_model(), start, Sampling(2.0), limit=6, generator=torch.Generator().manual_seed(1))
    tokens = [VOCABULARY[token] for token in written.tokens[0].tolist()]
    for step, so_far in enumerate(range(3, len(tokens))):
        fig = generate4.page(written, step, "note")
        assert [text.get_text() for text in fig.texts[1:3]] == [" ".join(tokens[1:so_far]) + " ", tokens[so_far]]
        hatched = [patch for patch in fig.axes[0].patches if patch.get_hatch()]
        assert len(hatched) == 2 * (len(tokens) - 1 - so_far)
        plt.close(fig)


def test_a_shade_stays_what_it_is_from_page_to_page():
    rng = np.random.default_rng(0)
    pages = [rng.integers(0, 256, (20, 30, 3), dtype=np.uint8) for _ in range(3)]  # far more than 256 colours
    for page in pages:
        page[0, 0] = 250, 240, 230
    few = generate4.in_one_palette(pages)
    assert len({tuple(page[0, 0]) for page in few}) == 1 and few[0].shape == (20, 30, 3)
    assert len(np.unique(np.concatenate(few).reshape(-1, 3), axis=0)) <= 256
