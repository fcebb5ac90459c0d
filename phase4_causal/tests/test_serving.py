"""Serving: caches of every kind against one pass over the whole text, drafts by all branches."""

import functools
import math
import random
from collections import Counter

import pytest
import torch

from phase2_multi_head.costs.measure import count_operations
from phase4_causal import rotary_attention
from phase4_causal.causal_attention import CausalSelfAttention, generate
from phase4_causal.key_value_cache import KeyValueCache
from phase4_causal.rotary_attention import STRETCHES, TRAINED, RotaryHeads
from phase4_causal.serving import longer
from phase4_causal.serving.any_decoder import Decoder
from phase4_causal.serving.engine import Engine
from phase4_causal.serving.latent_attention import LatentAttention
from phase4_causal.serving.packed_toy import PackedToy
from phase4_causal.serving.paged_cache import PagedCache, Text
from phase4_causal.serving.speculative_decoding import chooser, missing_part, speculate
from phase4_causal.writing.sampling import GREEDY, Sampling, write_sentences
from shared import published
from shared.tests.helpers import near, tiny_model
from shared.toy_language import END_ID, START_ID, VOCABULARY, decode
from shared.toy_model import ToyTransformer

B, H, T, D_K = 2, 3, 23, 4

# ---- drafts


def few_words(seed, layers):
    """Untrained, in float64; of the vocabulary <end> and two words are left."""
    torch.manual_seed(seed)
    made = ToyTransformer(8, 2, layers, make_attention=CausalSelfAttention).double().eval()
    torch.nn.init.normal_(made.embedding.weight, std=0.5)  # so that it has opinions
    for module in made.modules():
        if isinstance(module, torch.nn.LayerNorm):  # so that one is not taken for another
            torch.nn.init.normal_(module.weight, mean=1.0, std=0.3)
            torch.nn.init.normal_(module.bias, std=0.3)
    with torch.no_grad():
        made.output_bias.fill_(-1e4)[END_ID : END_ID + 3] = 0.0
    return made


LARGE, SMALL = few_words(5, layers=2), few_words(3, layers=1)


def by_branches(sampling, drafted, limit):
    """Text -> its probability: speculate run anew for every way that chance may take."""
    found, todo = Counter(), [[]]
    while todo:
        path, chances_taken = todo.pop(), []

        def choose(chances, path=path, chances_taken=chances_taken):
            """Follows the path, then takes the first way that is possible; others are to do."""
            if len(chances_taken) == len(path):
                first, *others = chances.nonzero().flatten().tolist()
                todo.extend([*path, other] for other in others)
                path.append(first)
            way = path[len(chances_taken)]
            chances_taken.append(chances[way].item())
            return way

        limits = {"drafted": drafted, "limit": limit}
        written = speculate(LARGE, SMALL, [START_ID], sampling, choose, **limits)
        found[tuple(written.tokens)] += math.prod(chances_taken)
    return found


@torch.no_grad()
def by_large_alone(sampling, limit, tokens=(START_ID,)):
    """Text -> its probability, word by word, without caches and drafts."""
    if len(tokens) > limit or tokens[-1] == END_ID:
        return Counter({tokens: 1.0})
    logits, _ = LARGE(torch.tensor([tokens]))
    chances, found = sampling.probabilities(logits[0, -1]), Counter()
    for word in chances.nonzero().flatten().tolist():
        for text, rest in by_large_alone(sampling, limit, (*tokens, word)).items():
            found[text] = chances[word].item() * rest
    return found


@pytest.mark.parametrize(
    ("sampling", "drafted", "limit"),
    [(Sampling(), 1, 3), (Sampling(1.5), 3, 3), (Sampling(1.5, top_k=2), 2, 4), (GREEDY, 3, 9)],
)
def test_every_text_is_as_likely_as_if_the_large_model_wrote_alone(sampling, drafted, limit):
    found, expected = by_branches(sampling, drafted, limit), by_large_alone(sampling, limit)
    for text in found | expected:
        assert found[text] == pytest.approx(expected[text], abs=1e-10)


def test_a_draft_by_the_large_model_itself_is_kept_whole():
    prompt = [START_ID, 4, 4]
    written = speculate(LARGE, LARGE, prompt, GREEDY, chooser(torch.Generator()), drafted=3)
    assert written.tokens == write_sentences(LARGE, torch.tensor([prompt])).tokens[0].tolist()
    assert written.accepted == written.judged
    assert written.passes == math.ceil((len(written.tokens) - 3) / 4)


def test_where_rounding_refused_a_word_nothing_is_missing():
    p = torch.tensor([0.75, 0.25])
    assert torch.equal(missing_part(p, p), p), "0 / 0 is NaN"


def test_a_cache_forgets_its_end_and_goes_on_from_there():
    cache, first, second = KeyValueCache(1, 2, 5, 3), *torch.randn(2, 1, 2, 3, 3)
    cache.append(first, -first)
    cache.truncate(1)
    keys, values = cache.append(second, -second)
    assert torch.equal(keys, torch.cat([first[:, :, :1], second], dim=2))
    assert torch.equal(values, -keys)


# ---- pages and the engine


def assert_accounts_balance(engine, asked):
    """A block has as many readers as tables have it; who came first is served first."""
    cache, reading = engine.cache, Counter()
    for text in engine.running:
        reading.update(text.table)
        # Of the words of the text, the last may have been written by this step.
        for_stored = math.ceil(text.stored / cache.block_size)
        for_all = math.ceil(len(text.tokens) / cache.block_size)
        assert for_stored <= len(text.table) <= for_all
    assert cache.ref_counts == [reading[block] for block in range(len(cache.ref_counts))]
    assert not any(text.table or text.stored for text in engine.waiting)
    order = [asked.index(text) for text in (*engine.running, *engine.waiting)]
    assert order == sorted(order), "the newest is preempted, and is the first to come back"


def talkative(seed):
    """It seldom ends, and attends sharply, so that a wrong key makes another word."""
    model = few_words(seed, layers=2)
    with torch.no_grad():
        model.output_bias[END_ID] = -1.5
        for block in model.blocks:
            block.attention.w_q.weight.mul_(4)
            block.attention.w_o.weight.mul_(4)
    return model


WRITERS = [talkative(seed) for seed in range(5)]
written_alone = functools.cache(generate)


def serve(seed):
    """Random requests at random times; counts what happened to them, by steps."""
    rng, model, happened = random.Random(seed), WRITERS[seed % 5], Counter()
    size, limit, asked, expected = rng.choice((1, 2, 3, 5)), 9, [], []
    fewest = math.ceil(limit / size)
    share = rng.random() < 0.7
    chunk = rng.choice((None, None, 1, 2, 3))
    blocks = rng.randint(fewest, 2 * fewest)
    engine = Engine(PackedToy(model), blocks, size, share=share, chunk_size=chunk)
    engine.cache.keys.fill_(math.nan)  # what no text has written must not be read
    engine.cache.values.fill_(math.nan)
    while len(asked) < 6 or engine.waiting or engine.running:
        if len(asked) < 6 and rng.random() < 0.7:
            # Two words, so that many begin alike.
            prompt = tuple(rng.choices(VOCABULARY[4:6], k=rng.randint(0, 5)))
            most = rng.choice((limit, len(prompt) + 2))
            asked.append(engine.add(" ".join(prompt), most + 1))  # <start> counts here
            expected.append(written_alone(model, prompt, most))
        before = list(engine.running)
        computed = engine.step()  # now and then with nobody there
        shared = sum(readers > 1 for readers in engine.cache.ref_counts)
        happened["preempted"] += any(text in engine.waiting for text in before)
        happened["shared"] += shared > 0
        happened["two blocks shared"] += shared > 1
        happened["a chunk"] += any(text.stored < len(text.tokens) - 1 for text in engine.running)
        assert chunk is None or computed <= chunk * len(asked)
        assert share or not shared
        assert_accounts_balance(engine, asked)
    assert [decode(text.tokens[1:]) for text in asked] == expected
    return happened


def test_each_user_gets_what_generate_writes_whoever_else_asks_and_however_few_blocks_there_are():
    happened = sum(map(serve, range(200)), Counter())
    assert len(happened) == 4 and min(happened.values()) > 50, happened


def test_full_blocks_are_found_by_all_that_stands_before_their_end_until_they_are_taken():
    cache = PagedCache(1, 5, 2, 2, 3, like=torch.zeros(1), share=True)
    one, like_it, other = Text([7, 8, 9, 8, 7, 9]), Text([7, 8, 9, 8, 7, 9]), Text([8, 8, 9, 8])
    assert cache.allocate(one) and cache.allocate(like_it)
    assert like_it.table[:2] == one.table[:2]
    assert like_it.table[2] != one.table[2], "the last word must be computed"
    assert (like_it.stored, len(cache.free_blocks)) == (4, 1)
    assert not cache.allocate(other) and not other.table, "a second block behind another first"
    cache.free(like_it)
    cache.free(one)
    assert len(cache.free_blocks) == 5
    assert cache.allocate(like_it) and like_it.stored == 4, "free blocks are found as well"
    assert like_it.table[2] == 4, "the one that holds nothing is taken first"
    cache.free(like_it)
    assert cache.allocate(Text(5 * [1, 1])) and not cache.find_prefix(one.tokens)


def test_a_long_prompt_in_chunks_holds_nobody_up():
    """The longest pass has the chunk and a word for each of the others."""
    longest = {}
    for chunk in (None, 5):
        engine = Engine(PackedToy(LARGE), 20, 5, share=False, chunk_size=chunk)
        prompts = ("the", "a", " ".join(["the"] * 24))
        asked = [engine.add(prompt, 34) for prompt in prompts]
        passes = []
        while engine.waiting or engine.running:
            passes.append(engine.step())
        longest[chunk] = max(passes), [text.tokens for text in asked]
    assert longest[None][0] == 25 + 2 * 2 and longest[5][0] == 5 + 2 * 2
    assert longest[None][1] == longest[5][1]


YARN = {"rope_theta": 10000.0, "rope_type": "yarn", "factor": 8.0}
YARN["original_max_position_embeddings"] = 8
LONGROPE = YARN | {"rope_type": "longrope", "short_factor": 4 * [1.0], "long_factor": 4 * [2.0]}

# What the engine serves, with sizes of their own. The last scales its scores in another way.
DECODERS = {
    "Llama": ("llama", {}),
    "Llama with GELU": ("llama", {"hidden_act": "gelu"}),
    "Llama with YaRN": ("llama", {"rope_parameters": YARN}),
    "GPT-2": ("gpt2", {}),
    "Qwen3": ("qwen3", {"sliding_window": None, "layer_types": None}),
    "OLMo 2": ("olmo2", {}),
    "OPT": ("opt", {}),
    "SmolLM3": ("smollm3", {}),
    "Gemma": ("gemma", {}),
    "Gemma 3": ("gemma3_text", {"sliding_window": 40}),
}


def decoder(kind, seed=0, head="AutoModelForCausalLM", **more):
    """A small random model of the library whose tokens are letters, and which does not repeat one.

    For this its biases are small, and its output matrix is not that of its words.
    """
    pytest.importorskip("transformers", reason=published.INSTALL)
    more = {"tie_word_embeddings": False} | more
    network = tiny_model(kind, seed, head=head, **more).double()
    for parameter in network.parameters():
        if parameter.dim() == 1:
            parameter.data.mul_(0.1)
    return Decoder(network, lambda prompt: {"input_ids": [ord(letter) - 30 for letter in prompt]})


@torch.no_grad()
def by_library(model, prompt, limit):
    """All tokens of one text as the library's own `generate` writes them, but for the end."""
    tokens = torch.tensor([model.encode(prompt)])
    (text,) = model.network.generate(
        tokens, attention_mask=torch.ones_like(tokens), max_length=limit, do_sample=False
    ).tolist()
    return text[:-1] if text[-1] in model.end_ids else text


@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_writes_in_pages_what_the_library_writes(name):
    """Whole prompts and chunks, in few blocks, of texts that begin alike and others."""
    kind, more = DECODERS[name]
    model, happened, written = decoder(kind, **more), Counter(), set()
    prompts = ["the cat sat on", "a", "the cat ran", "mat", "the dog"]
    limits = [len(prompt) + 14 for prompt in prompts]
    expected = []
    for prompt, limit in zip(prompts, limits, strict=True):
        expected.append(by_library(model, prompt, limit))
        written.update(expected[-1][len(prompt) :])
    for chunk in (None, 3):
        engine = Engine(model, num_blocks=10, block_size=3, chunk_size=chunk)
        asked = []
        for prompt, limit in zip(prompts, limits, strict=True):
            asked.append(engine.add(prompt, limit))
        while engine.waiting or engine.running:
            before = list(engine.running)
            engine.step()
            happened["preempted"] += any(text in engine.waiting for text in before)
            happened["shared"] += max(engine.cache.ref_counts) > 1
        assert [text.tokens for text in asked] == expected
    assert len(written) > 6 and len(happened) == 2 and min(happened.values()) > 0


def test_a_decoder_ends_its_texts_where_the_library_does():
    model, letter = decoder("llama"), "a"
    first = by_library(model, letter, 2)[-1]
    model.network.generation_config.eos_token_id = [95, first]
    model.read_configuration()
    engine = Engine(model, num_blocks=10, block_size=3)
    text = engine.add(letter, 9)
    engine.run()
    assert text.tokens == by_library(model, letter, 9) == model.encode(letter)


@pytest.mark.parametrize(
    ("kind", "more", "reason"),
    [
        ("llama", {"rope_parameters": LONGROPE}, "one long text would change"),
        ("gemma2", {}, "neither a cap"),
        ("gpt_oss", {}, "neither a cap on its scores nor sinks"),
        ("mistral", {}, "are off by"),  # its window is shorter than the texts of the trial
        ("lfm2", {"layer_types": ["conv", "full_attention"]}, "only 1 of its 2 layers"),
        ("mamba", {}, "only 0 of its 2 layers"),
        ("bloom", {}, "only 0 of its 2 layers"),  # which compute attention in their own way
        ("bert", {}, "are off by"),
        ("bert", {"head": "AutoModel"}, "no attribute"),
        ("stablelm", {}, "missing 2 required"),  # hands nothing down
        ("deepseek_v3", {}, "key and value must be"),  # which have different sizes
    ],
)
def test_what_the_engine_cannot_write_with_is_said(kind, more, reason):
    with pytest.raises(ValueError, match=f"kind {kind} cannot write in pages: .*{reason}.*SmolLM2"):
        decoder(kind, **more)


def test_a_text_may_be_as_long_as_a_window():
    model = decoder("mistral", sliding_window=11)
    prompt = "the cat"
    engine = Engine(model, num_blocks=10, block_size=3)
    with pytest.raises(ValueError, match="at most 12, the model's positions and one: got 13"):
        engine.add(prompt, 13)
    text = engine.add(prompt, 12)
    engine.run()
    assert text.tokens == by_library(model, prompt, 12) and len(text.tokens) == 12
    with pytest.raises(ValueError, match="prompt is empty"):
        engine.add("", 9)


# ---- fewer keys and values

D_C, D_R = 11, 4
ATTENTION = LatentAttention(H * D_K, H, D_C, D_R).double()
X = torch.randn(B, T, H * D_K, dtype=torch.float64)


def test_absorbed_makes_no_keys_of_the_past():
    """One more word in the cache costs its products with query and weights alone."""
    shorter, longer = torch.zeros(2, B, 14, D_C + D_R, dtype=torch.float64)
    more = count_operations(ATTENTION.decode, X[:, :1], longer)
    less = count_operations(ATTENTION.decode, X[:, :1], shorter[:, 1:])
    assert more - less == 2 * B * H * (D_C + D_R + D_C)


# ---- longer


@pytest.mark.parametrize("stretch", [1, 2.5, 8])
def test_frequencies_pair_by_pair(stretch):
    """The specification: one pair at a time, in words of the papers."""
    d_k = 14  # its pairs go round 5, 1.4 and less than 1 times in training
    of_ways = [rotary_attention.frequencies(d_k, way, stretch).tolist() for way in STRETCHES]
    for i, turns in enumerate(zip(*of_ways, strict=True)):
        plain = 10000 ** (-2 * i / d_k)
        ntk_aware = plain * stretch ** (-i / (d_k / 2 - 1))  # the last: / stretch
        rounds = TRAINED * plain / (2 * math.pi)
        unscaled = min(max(rounds - 1, 0), 1)
        by_parts = unscaled * plain + (1 - unscaled) * plain / stretch
        assert turns == pytest.approx((plain, plain / stretch, ntk_aware, by_parts), rel=1e-5)


@torch.no_grad()
def test_yarn_also_makes_scores_larger():
    """The one pair of these heads turns as in training, so only the scores tell YaRN."""
    plain, stretched = RotaryHeads(6, 3), RotaryHeads(6, 3)
    stretched.load_state_dict(plain.state_dict())
    stretched.way, stretched.stretch = "by parts (YaRN)", 4
    for parameter in plain.w_q.parameters():
        parameter.mul_((0.1 * math.log(4) + 1) ** 2)
    x = torch.randn(2, 11, 6)
    near(stretched(x), plain(x))


def test_the_words_to_copy_stand_three_places_back():
    words, wanted = longer.copies(3, 40, torch.Generator().manual_seed(0))
    assert torch.equal(wanted[:, 3:], words[:, :-3])
