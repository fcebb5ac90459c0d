"""Our attention against the layers of MiniLM; heads made by hand; what is missing in one line."""

import itertools
import math
import sys

import pytest
import torch

from phase1_single_head.self_attention import scaled_dot_product_attention
from phase3_visualization.pretrained import (
    coreference,
    decoder_heads,
    heads,
    language_model,
    parity,
    window,
)
from phase3_visualization.pretrained.language_model import LanguageModel
from shared.attention_utils import causal_mask, local_mask, streaming_mask
from shared.experiment import Run
from shared.tests.helpers import near, qkv

PRETRAINED_EXTRA = 'needs the optional extra: pip install -e ".[pretrained]"'


@pytest.fixture(scope="module")
def minilm():
    pytest.importorskip("transformers", reason=PRETRAINED_EXTRA)
    if not language_model.installed(language_model.PACKAGE):
        pytest.skip(PRETRAINED_EXTRA)
    return language_model.load()


def tiny(kind, **sizes):
    """A random model of a kind of the library, which hands out its weights, and a tokenizer of eight words."""
    transformers = pytest.importorskip("transformers", reason=PRETRAINED_EXTRA)
    tokenizers = pytest.importorskip("tokenizers", reason=PRETRAINED_EXTRA)
    words = {word: i for i, word in enumerate(["<unk>", "<end>", "the", "cat", "sat", "on", "a", "mat"])}
    raw = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    raw.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<end>", padding_side="right")
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**sizes)
    model = transformers.AutoModel.from_config(config, attn_implementation="eager").eval()
    for parameter in model.parameters():  # large enough that heads choose, biases not 0
        torch.nn.init.normal_(parameter, std=0.4)
    return LanguageModel(model, tokenizer, kind)


def test_parity_in_every_layer_of_a_padded_batch(minilm):
    texts = ["Words of unequal number.", "One.", "A third sentence, which is the longest of them all, unsurprisingly."]
    double = parity.in_float64(minilm)
    reading = language_model.read(double, texts)
    assert len({len(tokens) for tokens in reading.tokens}) == 3 and not reading.real.all()
    largest = parity.differences(double, reading)
    assert len(largest) == minilm.model.config.num_hidden_layers
    assert max(max(pair) for pair in largest) < 1e-11
    reading.real[:] = True  # the comparison must notice a forgotten padding mask
    assert max(max(pair) for pair in parity.differences(double, reading)) > 1e-3


def test_a_missing_library_is_one_line(capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "transformers", None)  # what an import of a missing library meets
    language_model.load.cache_clear()
    with pytest.raises(SystemExit) as stop:
        heads.main(["--output-dir", str(tmp_path)])
    error = capsys.readouterr().err
    assert stop.value.code == 2 and error.count("\n") == 1 and language_model.INSTALL in error


def test_minimal_pairs_differ_in_one_word_and_name_their_nouns():
    assert len(language_model.PAIRS) >= 30 and len(set(language_model.sentences())) == 2 * len(language_model.PAIRS)
    for pair in language_model.PAIRS:
        first, second = (pair.sentence(member).split() for member in (0, 1))
        assert sum(a != b for a, b in zip(first, second, strict=True)) == 1
        assert first.count("it") == 1 and all(first.count(noun) == 1 for noun in pair.nouns)
        assert first.index(pair.nouns[0]) < first.index(pair.nouns[1]) < first.index("it")


def weights_of_three_heads(pairs):
    """(pairs, member, 1, 3, noun): a habit, the meaning, and a habit that the meaning moves a little."""
    weights = torch.zeros(pairs, 2, 1, 3, 2, dtype=torch.float64)
    weights[..., 0, 0] = 1.0
    weights[:, 0, 0, 1, 0] = weights[:, 1, 0, 1, 1] = 0.6
    weights[:, 0, 0, 2, 0], weights[:, 1, 0, 2, 0] = 0.9, 0.8
    return weights


def test_coreference_tells_a_habit_from_the_meaning():
    for weights, sign in ((weights_of_three_heads(4), 1), (weights_of_three_heads(4).flip(1), -1)):
        both, shift = coreference.turns(weights)
        assert both.sum(dim=0).tolist() == [[0, 4 * sign, 0]]
        assert (sign * shift > 0).sum(dim=0).tolist() == [[0, 4, 4]]


def test_coreference_scores_a_head_on_the_pairs_that_did_not_choose_it():
    def numbers(weights):
        found = coreference.held_out(weights, torch.Generator().manual_seed(0))
        return [found[name] for name in ("pairs", "both right", "both wrong", "permutation p")]

    assert numbers(weights_of_three_heads(40)) == [40, 40, 0, pytest.approx(1 / 2001)]  # none of 2000 is as good
    weights = weights_of_three_heads(40)[:, :, :, [1, 1]]
    for head, half in enumerate(torch.randperm(40, generator=torch.Generator().manual_seed(0)).chunk(2)):
        weights[half, :, :, head] = weights[half, :, :, head].flip(-1)  # wrong in one half, right in the other
    assert numbers(weights) == [40, 0, 40, 1]


def test_coreference_reads_the_weights_of_it(minilm):
    other = language_model.Pair("The elephant saw the cat but it was _", ("elephant", "cat"), ("old", "new"))
    found = coreference.weights_of_it(minilm, (language_model.FAMOUS, other))
    alone = language_model.read(minilm, [language_model.FAMOUS.sentence(1)])
    it, animal, street = (alone.tokens[0].index(word) for word in ("it", "animal", "street"))
    near(found[0, 1], alone.weights[0, :, :, it, [animal, street]], share=1e-4)
    with pytest.raises(ValueError, match="exactly once"):
        coreference.weights_of_it(
            minilm, (language_model.Pair("The dog bit the dog but it was _", ("dog", "dog"), ("x", "y")),)
        )


def test_the_hub_s_shares_equal_a_loop(minilm):
    reading = language_model.read(minilm, ["A cat sat.", "Here is a longer sentence."])
    weights, added = [], []
    for layer, block in enumerate(minilm.model.encoder.layer):
        theirs, to_output = block.attention.self, block.attention.output.dense.weight
        for b, head in itertools.product((0, 1), range(12)):
            rows = slice(head * 32, (head + 1) * 32)  # MiniLM: 12 heads of 32
            last = int(reading.real[b].sum()) - 1
            values = theirs.value(reading.states[layer, b])[: last + 1, rows]
            lengths = (values @ to_output[:, rows].T).norm(dim=-1)
            for row in reading.weights[b, layer, head, 1:last, : last + 1]:  # [CLS] and [SEP] do not ask
                weights.append(row[[0, last]])
                added.append((row * lengths)[[0, last]] / (row @ lengths))
    found, (short, long) = heads.hub_numbers(minilm, reading), reading.real.sum(dim=1).tolist()
    assert found["even share"] == pytest.approx((1 / short + 1 / long) / 2)
    for name, rows in (("share of the weight", weights), ("share of what is added", added)):
        expected = torch.stack(rows).mean(dim=0)
        near([found[f"{token}, {name}"] for token in ("[CLS]", "[SEP]")], expected.tolist(), share=1e-5)


# ---- decoders of every accepted kind, random and tiny: our attention in place of theirs; losses; heads by hand

SIZES = {"vocab_size": 8, "hidden_size": 48, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 6}
GROUPED = SIZES | {"num_key_value_heads": 2, "max_position_embeddings": 64}
YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 16}
SCALED = {"head_dim": 10, "query_pre_attn_scalar": 7, "sliding_window": 3}
KINDS = {
    "Llama": {},
    "Llama, stretched": {"rope_parameters": YARN},
    "Mistral": {"head_dim": 10, "sliding_window": 3},
    "Qwen2": {},
    "Qwen3": {"head_dim": 10},
    "Gemma": {"head_dim": 10},
    "Gemma2": SCALED | {"attn_logit_softcapping": 2.0},
    "Gemma3Text": SCALED | {"layer_types": ["sliding_attention", "full_attention"]},
    "GptOss": {"head_dim": 10, "sliding_window": 3, "num_local_experts": 3, "num_experts_per_tok": 2},
}
TEXTS = ["the cat sat on a mat the cat", "a cat sat"]


@pytest.mark.parametrize("kind", KINDS)
def test_our_attention_in_every_kind_of_decoder(kind):
    theirs = tiny(kind.split(",")[0], **GROUPED | KINDS[kind])
    before = language_model.read(theirs, TEXTS)
    with parity.our_attention(theirs):
        ours = language_model.read(theirs, TEXTS)
    rows = (ours.weights - before.weights).transpose(2, 3).transpose(1, 2)[before.real]  # (B, T, L, H, T) -> real rows
    assert rows.shape[1] == 2 and rows.abs().max() < 1e-5
    with parity.our_attention(theirs, mask=streaming_mask(8, window=2, sinks=1)):  # a wrong mask is noticed
        assert (language_model.read(theirs, TEXTS).weights - before.weights).abs().max() > 1e-2
    near(language_model.read(theirs, TEXTS).weights, before.weights, share=0)
    windows = [2 if "sliding" in t else 99 for t in getattr(theirs.model.config, "layer_types", [])] or [99, 99]
    windows = [2, 2] if kind == "Mistral" else windows
    for layer, width in enumerate(windows):  # what is visible, read off the weights, is what the kind's mask says
        expected = causal_mask(8) & local_mask(8, 8, width) & before.real[:, :, None]
        assert torch.equal(language_model.visible(before)[:, layer], expected)
    assert set(heads.role_scores(before)) == {"previous", "self", "first"}, "no next word, nor the last"
    assert heads.hub_numbers(theirs, before) == {}, "it has no [CLS]"


def test_a_capped_head_and_a_sink_by_loops():
    generator = torch.Generator().manual_seed(0)
    query, key, value = torch.randn(3, 2, 3, 5, 7, dtype=torch.float64, generator=generator) * 2
    sinks, cap = torch.tensor([-1.0, 0.0, 2.0], dtype=torch.float64), 1.7
    _, weights = parity.capped_attention(query, key, value, causal_mask(5), cap, sinks)
    for b, h, i in ((0, 0, 4), (1, 2, 3), (1, 1, 0)):
        scores = [cap * math.tanh((query[b, h, i] @ key[b, h, j]).item() / math.sqrt(7) / cap) for j in range(i + 1)]
        total = sum(math.exp(score) for score in scores) + math.exp(sinks[h])
        expected = torch.tensor([math.exp(score) / total for score in scores] + [0.0] * (4 - i), dtype=torch.float64)
        near(weights[b, h, i], expected, share=1e-10)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bits_are_summed_in_float32(dtype):
    """As phase 1's function, to which a cap of 1000000 and a sink that gets nothing add nothing."""
    query, key, value = (60 * part.to(dtype) for part in qkv(1, t_q=7))  # products beyond 65,504, where float16 ends
    query[0] /= 60**2  # and some rows that share out their weight
    expected = scaled_dot_product_attention(query, key, value, causal_mask(7))
    for cap, sinks in ((None, None), (1e6, torch.full((3,), -math.inf, dtype=dtype))):
        found = parity.capped_attention(query, key, value, causal_mask(7), cap, sinks)
        assert all(ours.isfinite().all() and ours.dtype == dtype for ours in found)
        near(found, expected, share=torch.finfo(dtype).eps)


def test_a_head_for_the_last_token_and_an_even_one_have_their_statistics():
    """In texts of four and of six tokens."""
    real = torch.arange(6) < torch.tensor([4, 6])[:, None]
    even = real / real.sum(dim=1, keepdim=True)  # (B, T)
    last = torch.eye(6)[[3, 5]]
    weights = torch.stack([last, even], dim=1)[:, None, :, None].expand(2, 1, 2, 6, 6)  # (B, 2, T) -> (B, 1, 2, T, T)
    found = heads.role_scores(language_model.Reading([], weights, weights, real, ~real, weights))
    near(found["last"], torch.tensor([[1, 2 / 10]]).double(), share=1e-6)
    near(found["previous"][0, 1].item(), (3 / 4 + 5 / 6) / 8, share=1e-6)


TOKENS = torch.tensor([[2, 3, 4, 5, 6, 2, 7]])
TIED = {"tie_word_embeddings": True}


@pytest.mark.parametrize(("kind", "sizes"), [("Llama", {}), ("Gemma", {"head_dim": 10})])  # Gemma scales its embeddings
def test_the_loss_with_everything_is_the_library_s(kind, sizes):
    ours = tiny(kind, **GROUPED | sizes | TIED)
    library = pytest.importorskip("transformers").AutoModelForCausalLM.from_config(ours.model.config).eval()
    library.model.load_state_dict(ours.model.state_dict())
    losses = -library(TOKENS[:, :-1]).logits[0].log_softmax(dim=-1)[range(6), TOKENS[0, 1:]]
    near(window.losses(ours, TOKENS, streaming_mask(6, None)), losses.detach())
    assert (window.losses(ours, TOKENS, streaming_mask(6, 2)) - losses).abs().max() > 1e-3


PAIR = language_model.Pair("the cat sat on it a _", ("cat", "it"), ("mat", "the"))


@pytest.mark.parametrize(
    ("use", "kind", "sizes", "message"),
    [
        (lambda model: language_model.read(model, TEXTS), "Longformer", {"attention_window": 4}, "every query and key"),
        (parity.rebuilt_layers, "DebertaV2", {}, "kind deberta-v2.*bert"),
        (lambda model: coreference.weights_of_it(model, (PAIR,)), "Llama", {}, "in a decoder"),
    ],
)
def test_what_a_script_cannot_do_with_is_refused_in_one_line(use, kind, sizes, message):
    with pytest.raises(ValueError, match=message) as refusal:
        use(tiny(kind, **GROUPED | sizes))
    assert "\n" not in str(refusal.value)


def test_losses_beyond_the_window_are_means_and_each_way_has_its_mask(monkeypatch):
    """A loss that counts what a token sees, and 1000 for the first token."""
    monkeypatch.setattr(window, "excerpt", lambda *_: None)
    monkeypatch.setattr(window, "losses", lambda model, tokens, mask: mask.sum(dim=-1) + 1000.0 * mask[:, 0])
    monkeypatch.setattr(window, "load", lambda name: LanguageModel(None, None, "made"))
    found = window.measure(Run(None, 0))
    seen = sum(range(257, 769)) / 512
    assert list(found.values()) == [1000 + seen, -872 - seen, 128 - seen]


def heads_of_every_role(tokens):
    """A head for each role, which gives all of its weight to its places: (8, 4, 96, 96)."""
    hits = (tokens[:, :, None] == tokens[:, None, :]).tril(-1)
    start = torch.eye(96) * (torch.arange(96) == 0)  # a query without such a key looks at the first token
    first = (torch.arange(96) == 0).expand(96, 96)
    previous = torch.eye(96).roll(1, dims=0).tril() + start
    rows = [key.expand(8, 96, 96).float() for key in (previous, hits, hits.roll(1, -1), first)]
    return torch.stack([row / row.sum(-1, keepdim=True).clamp(min=1) for row in rows], dim=1)


def test_heads_are_named_chosen_on_one_half_and_scored_on_the_other(monkeypatch):
    tokens = decoder_heads.repeated_tokens(torch.arange(3, 60), torch.Generator().manual_seed(0))
    assert tokens.shape == (8, 96) and tokens.min() >= 3
    models = {"model": heads_of_every_role(tokens), "shuffled": heads_of_every_role(tokens)[:, :1] / 2}
    monkeypatch.setattr(decoder_heads, "weights_of", lambda model, tokens: models[model])
    monkeypatch.setattr(decoder_heads, "shuffled", lambda model, generator: "shuffled")
    found, names = decoder_heads.head_scores("model", tokens, None)
    assert names == list(decoder_heads.COLORS)
    best = [f"{role}, best head" for role in ("previous", "induction")]
    near([found[name] for name in best], [1.0] * 2)
    assert [found[f"{role}, heads"] for role in names] == [1] * 4
    assert (found["all heads"], found["first, share of heads"]) == (4, 0.25)
    near(found["highest score in the shuffled model"], 0.5)
    assert decoder_heads.named(decoder_heads.role_scores(models["shuffled"], tokens)) == [""], "half is not enough"
    models["model"][4:] = models["model"][4:].flip(1)  # in the other half each head has another role
    swapped, _ = decoder_heads.head_scores("model", tokens, None)
    assert max(swapped[name] for name in best) < 0.1
