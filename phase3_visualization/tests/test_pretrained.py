"""Our attention in every family of models; heads made by hand; what is missing or unknown in one
line.
"""

import itertools
import math
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from phase1_single_head.self_attention import scaled_dot_product_attention
from phase3_visualization.pretrained import (
    coreference,
    decoder_heads,
    families,
    heads,
    language_model,
    parity,
    unpacked,
    window,
)
from phase3_visualization.pretrained.language_model import LanguageModel
from shared.attention_utils import causal_mask, local_mask, streaming_mask
from shared.experiment import Results, Run
from shared.tests.helpers import near, qkv

PRETRAINED_EXTRA = 'needs the optional extra: pip install -e ".[pretrained]"'


@pytest.fixture(scope="module")
def minilm():
    pytest.importorskip("transformers", reason=PRETRAINED_EXTRA)
    if not language_model.installed(language_model.PACKAGE):
        pytest.skip(PRETRAINED_EXTRA)
    return language_model.load()


def tiny(kind, **sizes):
    """The random model of parity.py; skipped without the extra."""
    pytest.importorskip("transformers", reason=PRETRAINED_EXTRA)
    return parity.tiny(kind, **sizes)


def saved(model, folder):
    """The name that --model takes for it."""
    model.model.save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)
    return str(folder)


def refusal_of(script, capsys, *arguments):
    """The one line that a script says before it stops with exit code 2."""
    with pytest.raises(SystemExit) as stop:
        script.main(list(arguments))
    error = capsys.readouterr().err
    assert stop.value.code == 2 and error.count("\n") == 1, error
    return error


@pytest.mark.parametrize("script", [heads, parity])
def test_a_missing_library_is_one_line(script, capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(
        sys.modules, "transformers", None
    )  # what an import of a missing library meets
    language_model.load.cache_clear()
    assert language_model.INSTALL in refusal_of(script, capsys, "--output-dir", str(tmp_path))


def test_minimal_pairs_differ_in_one_word_and_name_their_nouns():
    assert len(language_model.PAIRS) >= 30 and len(set(language_model.sentences())) == 2 * len(
        language_model.PAIRS
    )
    for pair in language_model.PAIRS:
        first, second = (pair.sentence(member).split() for member in (0, 1))
        assert sum(a != b for a, b in zip(first, second, strict=True)) == 1
        assert first.count("it") == 1 and all(first.count(noun) == 1 for noun in pair.nouns)
        assert first.index(pair.nouns[0]) < first.index(pair.nouns[1]) < first.index("it")


def weights_of_three_heads(pairs):
    """(pairs, member, 1, 3, noun): a habit, the meaning, and a habit that the meaning moves a
    little.
    """
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

    assert numbers(weights_of_three_heads(40)) == [
        40,
        40,
        0,
        pytest.approx(1 / 2001),
    ]  # none of 2000 is as good
    weights = weights_of_three_heads(40)[:, :, :, [1, 1]]
    for head, half in enumerate(
        torch.randperm(40, generator=torch.Generator().manual_seed(0)).chunk(2)
    ):
        weights[half, :, :, head] = weights[half, :, :, head].flip(
            -1
        )  # wrong in one half, right in the other
    assert numbers(weights) == [40, 0, 40, 1]


def test_coreference_reads_the_weights_of_it(minilm):
    other = language_model.Pair(
        "The elephant saw the cat but it was _", ("elephant", "cat"), ("old", "new")
    )
    found = coreference.weights_of_it(minilm, (language_model.FAMOUS, other))
    alone = language_model.read(minilm, [language_model.FAMOUS.sentence(1)])
    it, animal, street = (alone.tokens[0].index(word) for word in ("it", "animal", "street"))
    near(found[0, 1], alone.weights[0, :, :, it, [animal, street]], share=1e-4)
    with pytest.raises(ValueError, match="exactly once"):
        coreference.weights_of_it(
            minilm,
            (language_model.Pair("The dog bit the dog but it was _", ("dog", "dog"), ("x", "y")),),
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
            for row in reading.weights[
                b, layer, head, 1:last, : last + 1
            ]:  # [CLS] and [SEP] do not ask
                weights.append(row[[0, last]])
                added.append((row * lengths)[[0, last]] / (row @ lengths))
    found, (short, long) = heads.hub_numbers(minilm, reading), reading.real.sum(dim=1).tolist()
    assert found["even share"] == pytest.approx((1 / short + 1 / long) / 2)
    for name, rows in (("share of the weight", weights), ("share of what is added", added)):
        expected = torch.stack(rows).mean(dim=0)
        near(
            [found[f"{token}, {name}"] for token in ("[CLS]", "[SEP]")],
            expected.tolist(),
            share=1e-5,
        )


# ---- our attention in place of theirs: in MiniLM, and in a tiny random model of every family

YARN = {
    "rope_type": "yarn",
    "rope_theta": 500.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
}
SPECIAL = {  # a model -> what is special about its configuration
    "llama, stretched": {"rope_parameters": YARN},
    "mistral, everything": {"sliding_window": None},
    "qwen3, windows": {"layer_types": ["sliding_attention"] * 2},
    "gemma2, no cap": {"attn_logit_softcapping": None},
    # Gemma 3's attention has a cap in its configuration, which the library does not use
    "gemma3_text, a cap": {"attn_logit_softcapping": 2.0},
}
TEXTS = parity.TINY_TEXTS


def test_parity_in_every_layer_of_a_padded_batch(minilm):
    texts = [
        "Words of unequal number.",
        "One.",
        "A third sentence, which is the longest of them all, unsurprisingly.",
    ]
    found = parity.difference(minilm, texts)
    assert max(found.weights, found.states) < 1e-11
    double = parity.in_float64(minilm)
    reading = language_model.read(double, texts)
    assert len({len(tokens) for tokens in reading.tokens}) == 3 and not reading.real.all()
    forgotten = families.rebuilt(double, replace(reading, real=torch.ones_like(reading.real)))
    assert (forgotten.weights - reading.weights).abs().max() > 1e-3, (
        "a forgotten padding mask is noticed"
    )


@pytest.mark.parametrize("name", [*families.BERTS, *families.FAMILIES, *SPECIAL])
def test_our_attention_in_every_family(name):
    theirs = tiny(name.split(",")[0], **SPECIAL.get(name, {}))
    found = parity.difference(theirs, TEXTS)
    rounding = 1e-11 if name in families.BERTS else 1e-4  # decoders compute in float32
    assert found.weights < rounding and found.states < rounding


def test_other_parameters_and_other_masks_are_noticed():
    for kind in ("bert", "gemma2"):
        theirs = tiny(kind)
        reading = language_model.read(theirs, TEXTS)
        other = families.read_with_ours(parity.tiny(kind, seed=1), TEXTS)
        assert (other.weights - reading.weights).abs().max() > 0.1
    with families.our_attention(theirs, mask=streaming_mask(8, window=2, sinks=1)):
        assert (language_model.read(theirs, TEXTS).weights - reading.weights).abs().max() > 1e-2
    near(language_model.read(theirs, TEXTS).weights, reading.weights, share=0)  # theirs is back


def test_a_difference_is_the_largest_of_all_real_tokens_by_their_size(monkeypatch):
    """One weight is off by 0.25; a token of size 1000 by 5, and one of size 2 by 0.1."""
    real = torch.tensor([[True, True, False]])
    states = torch.zeros(2, 1, 3, 2) + torch.tensor([2.0, 1000.0, 1.0])[:, None]
    theirs = language_model.Reading([], torch.zeros(1, 1, 1, 3, 3), states, real, ~real, states)
    ours = replace(theirs, weights=theirs.weights.clone(), states=states.clone())
    ours.weights[0, 0, 0, 1, 0], ours.weights[0, 0, 0, 2, 0] = -0.25, 9.0
    ours.states[1, 0, :, 0] += torch.tensor([0.1, 5.0, 7.0])
    monkeypatch.setattr(parity, "read", lambda model, texts: theirs)
    monkeypatch.setattr(parity, "read_with_ours", lambda model, texts: ours)
    made = LanguageModel(SimpleNamespace(config=SimpleNamespace(model_type="llama")), None, "made")
    found = parity.difference(made, [])
    near([found.weights, found.states], [0.25, 0.05], share=1e-6)
    assert not found.is_rounding and parity.Difference(1e-6, 1e-6).is_rounding
    assert (
        not parity.Difference(1e-6, math.nan).is_rounding
        and not parity.Difference(math.nan, 1e-6).is_rounding
    )


def parity_lines(capsys, tmp_path, *arguments):
    parity.main(["--output-dir", str(tmp_path), *arguments])
    return [
        line
        for line in capsys.readouterr().out.splitlines()
        if "weights of all heads differ by" in line
    ]


def test_parity_measures_the_model_that_it_is_asked_for(capsys, tmp_path):
    folder = saved(tiny("qwen3"), tmp_path / "mine")
    (line,) = parity_lines(capsys, tmp_path, "--model", folder)
    assert line.startswith("mine (") and "hidden states by" in line


def test_parity_names_every_family_and_what_is_not_installed(capsys, tmp_path, monkeypatch):
    pytest.importorskip("transformers", reason=PRETRAINED_EXTRA)
    monkeypatch.setattr(parity, "installed", lambda *packages: False)
    answer = parity.main(["--output-dir", str(tmp_path)])
    printed = capsys.readouterr().out
    for kind in (*families.BERTS, *families.FAMILIES):
        assert f"a random {kind}: weights of all heads differ by" in printed
    assert language_model.INSTALL_SMOLLM2 in printed and answer.startswith(
        "Yes: with our attention in 15 models"
    )
    monkeypatch.setattr(parity, "difference", lambda *_: parity.Difference(0.5, 0.0))
    assert parity.main(["--output-dir", str(tmp_path)]).startswith("No: ")


@pytest.mark.parametrize(
    ("name", "windows"),
    [
        ("llama", [99, 99]),
        ("mistral", [3, 3]),
        ("mixtral", [3, 3]),
        ("qwen3_moe", [3, 3]),
        ("qwen2", [3, 99]),
        ("gemma2", [3, 99]),
        ("gpt_oss", [3, 99]),
    ],
)
def test_what_is_visible_is_read_off_the_weights(name, windows):
    before = language_model.read(tiny(name), TEXTS)
    for layer, width in enumerate(windows):
        expected = causal_mask(8) & local_mask(8, 8, width - 1) & before.real[:, :, None]
        assert torch.equal(language_model.visible(before)[:, layer], expected)
    assert set(heads.role_scores(before)) == {"previous", "self", "first"}, (
        "no next word, nor the last"
    )
    assert heads.hub_numbers(tiny(name), before) == {}, "it has no [CLS]"


def test_a_capped_head_and_a_sink_by_loops():
    generator = torch.Generator().manual_seed(0)
    query, key, value = torch.randn(3, 2, 3, 5, 7, dtype=torch.float64, generator=generator) * 2
    sinks, cap = torch.tensor([-1.0, 0.0, 2.0], dtype=torch.float64), 1.7
    _, weights = families.capped_attention(query, key, value, causal_mask(5), cap, sinks)
    for b, h, i in ((0, 0, 4), (1, 2, 3), (1, 1, 0)):
        scores = [
            cap * math.tanh((query[b, h, i] @ key[b, h, j]).item() / math.sqrt(7) / cap)
            for j in range(i + 1)
        ]
        total = sum(math.exp(score) for score in scores) + math.exp(sinks[h])
        expected = torch.tensor(
            [math.exp(score) / total for score in scores] + [0.0] * (4 - i), dtype=torch.float64
        )
        near(weights[b, h, i], expected, share=1e-10)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bits_are_summed_in_float32(dtype):
    """As phase 1's function, to which a cap of 1000000 and a sink that gets nothing add nothing."""
    query, key, value = (
        60 * part.to(dtype) for part in qkv(1, t_q=7)
    )  # products beyond 65,504, where float16 ends
    query[0] /= 60**2  # and some rows that share out their weight
    expected = scaled_dot_product_attention(query, key, value, causal_mask(7))
    for cap, sinks in ((None, None), (1e6, torch.full((3,), -math.inf, dtype=dtype))):
        found = families.capped_attention(query, key, value, causal_mask(7), cap, sinks)
        assert all(ours.isfinite().all() and ours.dtype == dtype for ours in found)
        near(found, expected, share=torch.finfo(dtype).eps)


def test_a_head_for_the_last_token_and_an_even_one_have_their_statistics():
    """In texts of four and of six tokens."""
    real = torch.arange(6) < torch.tensor([4, 6])[:, None]
    even = real / real.sum(dim=1, keepdim=True)  # (B, T)
    last = torch.eye(6)[[3, 5]]
    weights = torch.stack([last, even], dim=1)[:, None, :, None].expand(
        2, 1, 2, 6, 6
    )  # (B, 2, T) -> (B, 1, 2, T, T)
    found = heads.role_scores(language_model.Reading([], weights, weights, real, ~real, weights))
    near(found["last"], torch.tensor([[1, 2 / 10]]).double(), share=1e-6)
    near(found["previous"][0, 1].item(), (3 / 4 + 5 / 6) / 8, share=1e-6)


TOKENS = torch.tensor([[2, 3, 4, 5, 6, 2, 7]])


@pytest.mark.parametrize("kind", ["llama", "gemma"])  # Gemma scales its embeddings
def test_the_loss_with_everything_is_the_library_s(kind):
    ours = tiny(kind, tie_word_embeddings=True)
    library = (
        pytest.importorskip("transformers")
        .AutoModelForCausalLM.from_config(ours.model.config)
        .eval()
    )
    library.model.load_state_dict(ours.model.state_dict())
    losses = -library(TOKENS[:, :-1]).logits[0].log_softmax(dim=-1)[range(6), TOKENS[0, 1:]]
    near(window.losses(ours, TOKENS, streaming_mask(6, None)), losses.detach())
    assert (window.losses(ours, TOKENS, streaming_mask(6, 2)) - losses).abs().max() > 1e-3


PAIR = language_model.Pair("the cat sat on it a _", ("cat", "it"), ("mat", "the"))
TOKENS_OF_EIGHT = torch.tensor([[2, 3, 4, 5, 6, 7, 2, 3]])
HYBRID = {"layer_types": ["conv", "full_attention"]}


@pytest.mark.parametrize(
    ("use", "kind", "sizes", "message"),
    [
        (
            lambda model: language_model.read(model, TEXTS),
            "longformer",
            {"attention_window": 4},
            "every query and key",
        ),
        (
            lambda model: language_model.read(model, TEXTS),
            "lfm2",
            HYBRID,
            "a hybrid: 1 of its 2 .*decoder_heads.py",
        ),
        (families.rebuilt_layers, "deberta-v2", {}, "kind deberta-v2.*bert"),
        (
            families.rebuilt_layers,
            "bert",
            {"is_decoder": True},
            "bert with is_decoder=True.*load it with",
        ),
        (
            lambda model: parity.difference(model, TEXTS),
            "gemma3_text",
            {"use_bidirectional_attention": True},
            "looks both ways, as EmbeddingGemma",
        ),
        (
            lambda model: parity.difference(model, TEXTS),
            "gpt2",
            {},
            "kind gpt2.*known to fit bert.*llama",
        ),
        (lambda model: coreference.weights_of_it(model, (PAIR,)), "llama", {}, "in a decoder"),
        (
            lambda model: decoder_heads.weights_of(model.model, TOKENS_OF_EIGHT),
            "bert",
            {},
            "kind bert tokens see later",
        ),
    ],
)
def test_what_a_script_cannot_do_with_is_refused_in_one_line(use, kind, sizes, message):
    with pytest.raises(ValueError, match=message) as refusal:
        use(tiny(kind, **sizes))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("script", [heads, decoder_heads, coreference, parity])
def test_a_model_without_attention_is_refused_in_a_line_that_helps(script, capsys, tmp_path):
    words = tiny("llama").tokenizer
    transformers = language_model.library()
    config = transformers.MambaConfig(
        vocab_size=8, hidden_size=12, num_hidden_layers=1, state_size=3
    )
    mamba = LanguageModel(transformers.MambaModel(config), words, "")
    arguments = ("--model", saved(mamba, tmp_path / "mine"), "--output-dir", str(tmp_path))
    error = refusal_of(script, capsys, *arguments)
    assert (
        "mamba carries a state from token to token and has no attention" in error
        and "try --model smollm2" in error
    )


def test_a_jamba_without_attention_is_refused_in_one_line():
    """Of its layers one in eight has attention, and here are only two."""
    state = {"num_experts": 1, "mamba_d_state": 3, "mamba_dt_rank": 2, "use_cache": False}
    with pytest.raises(
        ValueError, match=r"kind jamba hands out no weights of attention.*try --model"
    ):
        language_model.read(tiny("jamba", **state), TEXTS)


def test_an_xlnet_is_read_since_minus_one_means_that_it_has_no_limit():
    words = tiny("llama").tokenizer
    transformers = language_model.library()
    config = transformers.XLNetConfig(vocab_size=8, d_model=48, n_layer=2, n_head=6, d_inner=16)
    model = transformers.XLNetModel(config).eval()
    assert config.max_position_embeddings == -1
    reading = language_model.read(LanguageModel(model, words, ""), TEXTS)
    assert reading.weights.shape == (2, 2, 6, 8, 8) and not language_model.is_decoder(reading)
    near(reading.weights.sum(dim=-1), torch.ones(2, 2, 6, 8))
    assert reading.weights[1, :, :, :3, 3:].abs().max() == 0, "padding is hidden"


# ---- a hybrid in decoder_heads.py


def test_the_heads_of_a_hybrid_have_the_numbers_of_their_layers():
    model = tiny(
        "lfm2",
        num_hidden_layers=5,
        layer_types=["conv", "conv", "full_attention", "conv", "full_attention"],
    )
    weights = decoder_heads.weights_of(model.model, TOKENS_OF_EIGHT)
    assert weights.shape == (1, 2 * 6, 8, 8)
    layers = decoder_heads.attention_layers(model.model, 2)
    assert layers == [2, 4] and decoder_heads.attention_layers(model.model, 5) == [0, 1, 2, 3, 4]
    shown = {"roles": ["first"] * 12, "heads": 6, "layers": layers, "all layers": 5}
    (ax,) = decoder_heads.picture(Results([{}], None, shown)).axes
    columns = [patch.get_x() + patch.get_width() / 2 for patch in ax.patches]
    near(columns, [2.0] * 6 + [4.0] * 6)
    kinds = ["linear_attention", "full_attention", "mamba", "sliding_attention"]
    named = SimpleNamespace(num_hidden_layers=4, layer_types=kinds)
    assert decoder_heads.attention_layers(SimpleNamespace(config=named), 2) == [1, 3]
    with pytest.raises(ValueError, match="weights of 3 layers, and its configuration names 2"):
        decoder_heads.attention_layers(model.model, 3)


# ---- a model is unpacked once


class Unpacking:
    """unpack() for a tiny Llama, which counts its calls."""

    def __init__(self):
        self.model, self.calls = tiny("llama"), 0

    def __call__(self):
        self.calls += 1
        return self.model.model, self.model.tokenizer


def test_a_model_is_unpacked_once_and_is_the_same_when_it_is_read_again(tmp_path, capsys):
    path, unpack = tmp_path / "folder" / "kept.safetensors", Unpacking()
    unpacked.unpacked_once(path, "origin 1", unpack)
    assert "will keep it" in capsys.readouterr().out
    model, tokenizer = unpacked.unpacked_once(path, "origin 1", unpack)
    assert unpack.calls == 1 and not capsys.readouterr().out
    assert [file.name for file in path.parent.iterdir()] == [path.name], (
        "nothing unfinished is left"
    )
    before = language_model.read(unpack.model, TEXTS)
    after = language_model.read(LanguageModel(model.eval(), tokenizer, ""), TEXTS)
    assert after.tokens == before.tokens
    near(after.weights, before.weights, share=0)
    near(after.states, before.states, share=0)


def flipped(content):
    """With one bit of the last weight turned round."""
    return content[:-1] + bytes([content[-1] ^ 1])


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (flipped, "is damaged (its checksum is another): unpacking"),
        (lambda content: content[:-100], "is damaged (SafetensorError): unpacking"),
        (lambda content: b"", "is damaged (SafetensorError): unpacking"),
        (
            lambda content: content.replace(b"origin 1", b"origin 2"),
            "is damaged (its checksum is another): unpacking",
        ),
    ],
)
def test_a_damaged_file_is_made_anew_and_it_is_said(damage, said, tmp_path, capsys):
    path, unpack = tmp_path / "kept.safetensors", Unpacking()
    unpacked.unpacked_once(path, "origin 1", unpack)
    path.write_bytes(damage(path.read_bytes()))
    unpacked.unpacked_once(path, "origin 1", unpack)
    assert unpack.calls == 2 and said in capsys.readouterr().out
    unpacked.unpacked_once(path, "origin 1", unpack)
    assert unpack.calls == 2


def test_another_package_or_file_is_unpacked_anew(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(
        unpacked, "LIBRARIES", ("pandas",)
    )  # transformers and gguf need not be installed
    path, unpack = tmp_path / "kept.safetensors", Unpacking()
    packed = tmp_path / "packed.gguf"
    packed.write_bytes(b"1")
    first = unpacked.origin_of(packed, "torch")
    assert unpacked.origin_of(packed, "torch") == first != unpacked.origin_of(packed, "numpy")
    unpacked.unpacked_once(path, first, unpack)
    packed.write_bytes(b"2")
    unpacked.unpacked_once(path, unpacked.origin_of(packed, "torch"), unpack)
    assert (
        unpack.calls == 2
        and "was made from another file, or by another version: unpacking"
        in capsys.readouterr().out
    )


def test_what_cannot_be_kept_is_said_and_stops_nobody(tmp_path, capsys):
    path, unpack = tmp_path / "folder", Unpacking()
    path.mkdir()  # where the file should go
    for _ in range(2):
        model, _ = unpacked.unpacked_once(path, "origin 1", unpack)
        assert model is unpack.model.model and "cannot be kept" in capsys.readouterr().out
    assert unpack.calls == 2 and list(tmp_path.iterdir()) == [path]


def test_losses_beyond_the_window_are_means_and_each_way_has_its_mask(monkeypatch):
    """A loss that counts what a token sees, and 1000 for the first token."""
    monkeypatch.setattr(window, "excerpt", lambda *_: None)
    monkeypatch.setattr(
        window, "losses", lambda model, tokens, mask: mask.sum(dim=-1) + 1000.0 * mask[:, 0]
    )
    monkeypatch.setattr(window, "load", lambda name: LanguageModel(None, None, "made"))
    found = window.measure(Run(None, 0))
    seen = sum(range(257, 769)) / 512
    assert list(found.values()) == [1000 + seen, -872 - seen, 128 - seen]


def heads_of_every_role(tokens):
    """A head for each role, which gives all of its weight to its places: (8, 4, 96, 96)."""
    hits = (tokens[:, :, None] == tokens[:, None, :]).tril(-1)
    start = torch.eye(96) * (
        torch.arange(96) == 0
    )  # a query without such a key looks at the first token
    first = (torch.arange(96) == 0).expand(96, 96)
    previous = torch.eye(96).roll(1, dims=0).tril() + start
    rows = [key.expand(8, 96, 96).float() for key in (previous, hits, hits.roll(1, -1), first)]
    return torch.stack([row / row.sum(-1, keepdim=True).clamp(min=1) for row in rows], dim=1)


def test_heads_are_named_chosen_on_one_half_and_scored_on_the_other(monkeypatch):
    tokens = decoder_heads.repeated_tokens(torch.arange(3, 60), torch.Generator().manual_seed(0))
    assert tokens.shape == (8, 96) and tokens.min() >= 3
    models = {
        "model": heads_of_every_role(tokens),
        "shuffled": heads_of_every_role(tokens)[:, :1] / 2,
    }
    monkeypatch.setattr(decoder_heads, "weights_of", lambda model, tokens: models[model])
    monkeypatch.setattr(decoder_heads, "shuffled", lambda model, generator: "shuffled")
    found, names = decoder_heads.head_scores("model", tokens, None)
    assert names == list(decoder_heads.COLORS)
    best = [f"{role}, best head" for role in ("previous", "induction")]
    near([found[name] for name in best], [1.0] * 2)
    assert [found[f"{role}, heads"] for role in names] == [1] * 4
    assert (found["all heads"], found["first, share of heads"]) == (4, 0.25)
    near(found["highest score in the shuffled model"], 0.5)
    assert decoder_heads.named(decoder_heads.role_scores(models["shuffled"], tokens)) == [""], (
        "half is not enough"
    )
    models["model"][4:] = models["model"][4:].flip(
        1
    )  # in the other half each head has another role
    swapped, _ = decoder_heads.head_scores("model", tokens, None)
    assert max(swapped[name] for name in best) < 0.1
