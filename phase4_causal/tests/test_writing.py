"""Writing with and without a cache, sampling against a plain loop, quality against the grammar."""

import math

import torch

from phase2_multi_head.costs.measure import count_operations
from phase4_causal.causal_attention import CausalSelfAttention, generate
from phase4_causal.models import long_model
from phase4_causal.writing import cache_savings
from phase4_causal.writing import generate as writing
from phase4_causal.writing.generate import accepted
from phase4_causal.writing.sampling import GREEDY, Sampling, Written, write_sentences
from shared.tests.helpers import near
from shared.toy_language import END_ID, PAD_ID, START_ID, VOCABULARY, encode
from shared.toy_model import ToyTransformer


def generation_model(end=0.0):
    """An untrained model with opinions; end: how much it likes to stop."""
    torch.manual_seed(0)
    model = ToyTransformer(32, 2, 2, make_attention=CausalSelfAttention).double().eval()
    torch.nn.init.normal_(model.embedding.weight)
    torch.nn.init.constant_(model.output_bias[END_ID], end)
    return model


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def test_top_p_keeps_the_word_that_reaches_p_and_small_temperatures_are_greedy():
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64).log()
    near(Sampling(top_p=0.7).probabilities(logits).tolist(), [5 / 8, 3 / 8, 0, 0])
    near(Sampling(top_p=1e-300).probabilities(logits.half()).tolist(), [1, 0, 0, 0])
    assert Sampling(1e-300).probabilities(1e3 * logits).tolist() == [1, 0, 0, 0]
    assert GREEDY.probabilities(logits).tolist() == [1, 0, 0, 0]
    near(Sampling(top_k=200).probabilities(logits), logits.exp())


def test_what_is_written_with_a_cache_is_what_one_pass_says_and_repeats_with_the_seed():
    model, start = generation_model(), torch.tensor([[START_ID, 9]]).expand(5, -1)

    def written(seed):
        return write_sentences(model, start, Sampling(2.0, 30), limit=13, generator=seeded(seed))

    one = written(0)
    assert torch.equal(one.tokens, written(0).tokens)
    assert not torch.equal(one.tokens, written(1).tokens)
    logits, layers = model(one.tokens[:, :-1])
    near(one.logits, logits[:, 1:], share=1e-10)
    for step, attended in enumerate(one.attended, start=1):
        rows = [weights[:, :, step, : step + 1] for weights in layers]
        near(tuple(attended), tuple(rows), share=1e-10)


def test_temperature_0_is_the_greedy_generation_of_the_plain_function():
    model, start = generation_model(), torch.tensor([[START_ID, *encode(["the", "cat"])]])
    (words,) = write_sentences(model, start, Sampling(0.0), limit=12).sentences()
    assert words == generate(model, ["the", "cat"], limit=12)


def test_writing_stops_at_end_pads_and_leaves_room():
    model = generation_model(end=1e4)
    written = write_sentences(model, torch.full((2, 1), START_ID))
    assert written.tokens.tolist() == [[START_ID, END_ID]] * 2 and written.sentences() == [[], []]
    # Padding before <end> was written, and is a mistake.
    tokens = torch.tensor([[START_ID, 9, PAD_ID, 8, END_ID, PAD_ID]])
    (words,) = Written(tokens, tokens, []).sentences()
    assert words == [VOCABULARY[9], VOCABULARY[PAD_ID], VOCABULARY[8]]


def test_accepted_is_what_the_grammar_can_make():
    good, bad = "the cat sat on the mat", "these cat sat on the mat"
    sentences = [text.split() for text in (good, bad, "a dog slept in a bed", good)]
    assert accepted(sentences) == 3 / 4


def test_entropy_of_a_sentence_against_a_plain_loop():
    model, sampling = generation_model(end=20.0), Sampling(4.0, top_p=0.8)
    start = torch.full((9, 2), START_ID)
    written = write_sentences(model, start, sampling, generator=seeded(2))
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
    model = long_model(17, "meta")
    for way in cache_savings.COLORS:
        for length in (1, 3, 17):
            cached = way == "with the cache"
            counted = count_operations(cache_savings.next_logits, model, length, cached)
            assert counted == cache_savings.on_paper(length, way)
    tokens = torch.tensor([[4, 9, 7, 30, 5, 9]])
    assert cache_savings.largest_difference(generation_model(), tokens) < 1e-12


def test_who_asks_for_a_rule_gets_the_numbers_of_that_rule(checkpoints, tmp_path, capsys):
    options = ["--quick", "--no-pictures", "--output-dir", str(tmp_path), "--temperature", "0"]
    assert "its sentences, drawn as you said" in writing.main(options)
    assert "accepted, all words" not in capsys.readouterr().out
