"""Our attention in every family of models; heads made by hand; refusals in one line."""

import copy
import itertools
import sys
import warnings
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from phase2_multi_head.block.sink_logits import attention_with_sinks
from phase3_visualization.pretrained import (
    attention_maps,
    coreference,
    decoder_heads,
    head_prices,
    heads,
    hub,
    language_model,
)
from phase3_visualization.pretrained.language_model import WinogradPair
from shared import published
from shared.attention_utils import causal_mask
from shared.published import LanguageModel, our_attention
from shared.tests.helpers import (
    MODEL_KINDS,
    axe_violations,
    near,
    open_watched,
    tiny_model,
    watched_texts,
)
from shared.tests.helpers import tiny_language_model as tiny

PRETRAINED_EXTRA = 'needs the optional extra: pip install -e ".[pretrained]"'
TEXTS = ["the cat sat on a mat the cat", "a cat sat"]


@pytest.fixture(scope="module")
def minilm():
    pytest.importorskip("transformers", reason=PRETRAINED_EXTRA)
    if not published.installed(published.PACKAGE):
        pytest.skip(PRETRAINED_EXTRA)
    return published.load_language_model()


def random_model(kind, **sizes):
    """A model of other sizes than the tiny ones, and their tokenizer."""
    words = tiny("llama").tokenizer
    transformers = published.library()
    config = transformers.AutoConfig.for_model(kind, vocab_size=8, **sizes)
    return LanguageModel(transformers.AutoModel.from_config(config).eval(), words, "")


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


def read(model):
    return language_model.read_texts(model, TEXTS)


def test_a_missing_library_is_one_line(capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "transformers", None)  # as if it were missing
    published.load_language_model.cache_clear()
    assert published.INSTALL in refusal_of(heads, capsys, "--output-dir", str(tmp_path))


# ---- what "it" means


def test_minimal_pairs_differ_in_one_word_and_name_their_nouns():
    pairs = language_model.winograd_pairs()
    assert len(pairs) >= 30
    assert len(set(language_model.sentences_of(pairs))) == 2 * len(pairs)
    for pair in pairs:
        first, second = pair.sentence(0).split(), pair.sentence(1).split()
        assert sum(a != b for a, b in zip(first, second, strict=True)) == 1
        said = [word for word in first if word in (*pair.nouns, "it")]
        assert said == [*pair.nouns, "it"]


def weights_of_three_heads(pairs):
    """A habit, the meaning, and a habit that it moves a little: (pairs, member, 1, 3, noun)."""
    weights = torch.zeros(pairs, 2, 1, 3, 2, dtype=torch.float64)
    weights[..., 0, 0] = 1.0
    weights[:, 0, 0, 1, 0] = weights[:, 1, 0, 1, 1] = 0.6
    weights[:, :, 0, 2, 0] = torch.tensor([0.9, 0.8])
    return weights


def test_coreference_tells_a_habit_from_the_meaning():
    weights = weights_of_three_heads(4)
    for sign, exchanged in ((1, weights), (-1, weights.flip(1))):
        both, shift = coreference.turns(exchanged)
        assert both.sum(dim=0).tolist() == [[0, 4 * sign, 0]]
        assert (sign * shift > 0).sum(dim=0).tolist() == [[0, 4, 4]]


def test_coreference_scores_a_head_on_the_pairs_that_did_not_choose_it():
    def numbers(weights):
        found = coreference.scored_on_other_half(weights, torch.Generator().manual_seed(0))
        return [found[name] for name in ("pairs", "both right", "both wrong", "permutation p")]

    by_chance = pytest.approx(1 / 2001)  # none of 2000 is as good
    assert numbers(weights_of_three_heads(40)) == [40, 40, 0, by_chance]
    weights = weights_of_three_heads(40)[:, :, :, [1, 1]]
    halves = torch.randperm(40, generator=torch.Generator().manual_seed(0)).chunk(2)
    for head, half in enumerate(halves):  # wrong in one half, right in the other
        weights[half, :, :, head] = weights[half, :, :, head].flip(-1)
    assert numbers(weights) == [40, 0, 40, 1]


def test_coreference_reads_the_weights_of_it(minilm):
    other = WinogradPair(
        "The elephant saw the cat but it was _", ["elephant", "cat"], ["old", "new"]
    )
    famous = language_model.winograd_pairs()[0]
    found = coreference.weights_of_it(minilm, [famous, other])
    alone = language_model.read_texts(minilm, [famous.sentence(1)])
    it, *nouns = map(alone.tokens[0].index, ("it", *famous.nouns))
    near(found[0, 1], alone.weights[0, :, :, it, nouns], share=1e-4)


# ---- what a head looks at, and what arrives


def test_the_hub_s_shares_equal_a_loop(minilm):
    reading = language_model.read_texts(minilm, ["A cat sat.", "Here is a longer sentence."])
    weights, added = [], []
    numbers = reading.real.sum(dim=1).tolist()
    for layer, block in enumerate(minilm.model.encoder.layer):
        theirs, to_output = block.attention.self, block.attention.output.dense.weight
        for b, head in itertools.product((0, 1), range(12)):
            columns = slice(head * 32, (head + 1) * 32)  # MiniLM: 12 heads of 32
            last = numbers[b] - 1
            values = theirs.value(reading.states[layer, b])[: last + 1, columns]
            lengths = (values @ to_output[:, columns].T).norm(dim=-1)
            for i in range(1, last):  # [CLS] and [SEP] do not ask
                row = reading.weights[b, layer, head, i, : last + 1]
                weights.append(row[[0, last]])
                added.append((row * lengths)[[0, last]] / (row @ lengths))
    found = hub.hub_numbers(minilm, reading)
    assert found["even share"] == pytest.approx((1 / numbers[0] + 1 / numbers[1]) / 2)
    for name, rows in (("share of the weight", weights), ("share of what is added", added)):
        shares = [found[f"[CLS], {name}"], found[f"[SEP], {name}"]]
        near(shares, torch.stack(rows).mean(dim=0).tolist(), share=1e-5)


@pytest.mark.parametrize("kind", ["mistral", "gemma2"])
def test_a_decoder_is_told_by_its_weights_whatever_its_windows(kind):
    assert language_model.is_decoder(read(tiny(kind)))


# ---- our attention in place of the library's


@torch.no_grad()
def test_phase_2_s_module_has_the_weights_of_every_layer_of_minilm(minilm):
    double = replace(minilm, model=copy.deepcopy(minilm.model).double())
    reading = read(double)
    mask = reading.real[:, None, None, :]  # padding is hidden as a key: (B, T) -> (B, 1, 1, T)
    for number, module in enumerate(language_model.modules_of(double)):
        x = reading.states[number]
        attention = double.model.encoder.layer[number].attention
        expected, _ = attention(x, torch.where(mask, 0.0, -torch.inf))
        output, _ = module(x, mask=mask)
        near(attention.output.LayerNorm(x + output)[reading.real], expected[reading.real])


@torch.no_grad()
def computed_by(model, inputs, attend=None):
    """All weights of real queries, and all hidden states of real tokens."""
    attention = nullcontext() if attend is None else our_attention(model, attend)
    with attention:
        output = model(**inputs, output_attentions=True, output_hidden_states=True)
    states = torch.stack(output.hidden_states)
    real = inputs.get("attention_mask", torch.ones(states.shape[1:3])).bool()
    weights = torch.stack(output.attentions).permute(1, 3, 0, 2, 4)  # -> (B, T, L, H, T)
    return weights[real], states[:, real]


def inputs_of(model):
    """Two random texts of 11 and 9 tokens, or two random pictures."""
    generator = torch.Generator().manual_seed(0)
    if model.main_input_name == "pixel_values":
        return {"pixel_values": torch.randn(2, 3, 20, 20, generator=generator).double()}
    tokens = torch.randint(2, model.config.vocab_size, (2, 11), generator=generator)
    real = torch.arange(11) < torch.tensor([[11], [9]])  # (B, T)
    return {"input_ids": tokens.where(real, 1), "attention_mask": real.long()}


def hidden_from_itself(query, key, value, mask, **additions):
    others = ~torch.eye(query.size(-2), dtype=torch.bool)
    mask = others if mask is None else mask & others
    return attention_with_sinks(query, key, value, mask, **additions)


IN_FLOAT64 = ("bert", "roberta", "electra", "distilbert", "gpt2", "gpt_oss")


@pytest.mark.parametrize("kind", MODEL_KINDS)
def test_our_attention_in_every_kind_and_a_mistake_is_noticed(kind):
    model = tiny_model(kind).double()
    inputs = inputs_of(model)
    expected = computed_by(model, inputs)
    rounding = 1e-11 if kind in IN_FLOAT64 else 1e-5  # others take softmax in float32
    near(computed_by(model, inputs, attention_with_sinks), expected, share=rounding)
    _, states = computed_by(model, inputs, hidden_from_itself)
    assert (states - expected[1]).abs().max() > 0.05 * expected[1].abs().max()


def test_our_attention_in_minilm(minilm):
    inputs = minilm.tokenizer(TEXTS, padding=True, return_tensors="pt")
    ours = computed_by(minilm.model, inputs, attention_with_sinks)
    near(ours, computed_by(minilm.model, inputs), share=1e-5)


def test_our_function_is_called_once_a_layer_and_theirs_is_back():
    model, calls = tiny_model("gemma2"), []
    inputs = inputs_of(model)
    expected = computed_by(model, inputs)

    def counted(query, key, value, mask, *, cap):
        calls.append(cap)
        return attention_with_sinks(query, key, value, mask, cap=cap)

    near(computed_by(model, inputs, counted), expected, share=1e-5)
    assert calls == [2.0, 2.0]
    near(computed_by(model, inputs), expected, share=0)


# ---- what cannot be done is refused in one line


def with_our_attention(model):
    inputs = {"input_ids": torch.tensor([[2, 3, 4]])}
    computed_by(model.model, inputs, attention_with_sinks)


def read_it(model):
    return coreference.weights_of_it(
        model, [WinogradPair("a cat sat _", ["a", "cat"], ["on", "a"])]
    )


def in_random_tokens(model):
    return decoder_heads.weights_of_decoder(model.model, torch.arange(8)[None])


BIASED = {"coordinate_size": 8, "shape_size": 8, "visual_embed": False}
HYBRID = {"layer_types": ["conv", "full_attention"]}
# Of its layers one in eight has attention, and here are only two.
NONE = {"num_experts": 1, "mamba_d_state": 3, "mamba_dt_rank": 2, "use_cache": False}


@pytest.mark.parametrize(
    ("use", "kind", "sizes", "message"),
    [
        (read, "longformer", {"attention_window": 4}, "every query and key.* in 0 of 2 layers"),
        (read, "lfm2", HYBRID, "kind lfm2 .* in 1 of 2 layers.*try smollm2"),
        (read, "jamba", NONE, "kind jamba .* in 0 of 2 layers.*try smollm2"),
        (with_our_attention, "lfm2", HYBRID, "only 1 of its 2 layers.*try smollm2"),
        (with_our_attention, "mamba", {}, "kind mamba cannot compute .*: only 0 of its 2 layers"),
        (with_our_attention, "longformer", {"attention_window": 4}, "only 0 of its 2 layers"),
        (with_our_attention, "layoutlmv3", BIASED, "hand position_bias to their attention"),
        (language_model.modules_of, "deberta-v2", {}, "kind deberta-v2.*bert"),
        (read_it, "llama", {}, "in a decoder"),
        (in_random_tokens, "bert", {}, "kind bert tokens see later"),
    ],
)
def test_what_a_script_cannot_do_with_is_refused_in_one_line(use, kind, sizes, message):
    with pytest.raises(ValueError, match=message) as refusal:
        use(tiny(kind, **sizes))
    assert "\n" not in str(refusal.value)


def test_a_model_without_attention_is_refused_in_a_line_that_helps(capsys, tmp_path):
    mamba = random_model("mamba", hidden_size=12, num_hidden_layers=1, state_size=3)
    folder = saved(mamba, tmp_path / "mine")
    error = refusal_of(heads, capsys, "--model", folder, "--output-dir", str(tmp_path))
    assert "mine has no attention; try smollm2" in error


# ---- a model is unpacked once


class Packed:
    """What the library hangs on a model that it has unpacked; with it, it refuses to save."""

    def remove_quantization_config(self, model):
        del model.hf_quantizer


def test_a_model_is_unpacked_once_and_is_the_same_when_it_is_read_again(monkeypatch, tmp_path):
    model, from_files, unpacked = tiny("llama"), published.from_files, []

    def counted(source, **packed_file):
        if not packed_file:
            return from_files(source)
        unpacked.append(packed_file)
        model.model.hf_quantizer = Packed()
        return model.model, model.tokenizer

    monkeypatch.setattr(published, "from_files", counted)
    folder = tmp_path / "processed" / "kept"
    for _ in range(2):
        again, tokenizer = published.unpacked_once(tmp_path / "packed.gguf", folder)
        before, after = read(model), read(LanguageModel(again.eval(), tokenizer, ""))
        assert after.tokens == before.tokens
        near(after.states, before.states, share=0)
    assert unpacked == [{"gguf_file": "packed.gguf"}]
    assert list(folder.parent.iterdir()) == [folder], "nothing unfinished is left"


# ---- heads of a decoder


def heads_of_every_role(tokens):
    """A head for each role, which gives all of its weight to its places: (8, 4, 96, 96)."""
    hits = (tokens[:, :, None] == tokens[:, None, :]).tril(-1).float()
    first = torch.zeros(96, 96)
    first[:, 0] = 1
    previous = torch.eye(96).roll(1, dims=0).tril()
    previous[0, 0] = 1  # a query without such a key looks at the first token
    rows = [previous.expand(8, 96, 96), hits, hits.roll(1, -1), first.expand(8, 96, 96)]
    weights = torch.stack(rows, dim=1)
    return weights / weights.sum(dim=-1, keepdim=True).clamp(min=1)


def test_heads_are_named_chosen_on_one_half_and_scored_on_the_other(monkeypatch):
    tokens = decoder_heads.repeated_tokens(torch.arange(3, 60), torch.Generator().manual_seed(0))
    assert tokens.shape == (8, 96) and tokens.min() >= 3
    weights = heads_of_every_role(tokens)
    models = {"model": weights, "shuffled": weights[:, :1] / 2}
    monkeypatch.setattr(decoder_heads, "weights_of_decoder", lambda model, tokens: models[model])
    monkeypatch.setattr(decoder_heads, "shuffled", lambda model, generator: "shuffled")
    found, roles = decoder_heads.numbers_of("model", tokens, None)
    near([found["previous, best head"], found["induction, best head"]], [1.0, 1.0])
    assert roles == list(decoder_heads.ROLES)
    assert [found[f"{role}, heads"] for role in decoder_heads.ROLES] == [1] * 4
    assert (found["all heads"], found["first, share of heads"]) == (4, 0.25)
    near(found["highest score in the shuffled model"], 0.5)
    half = decoder_heads.weight_by_role(models["shuffled"], tokens)
    assert decoder_heads.roles_of(half) == [""], "half is not enough"
    weights[4:] = weights[4:].flip(1)  # in the other half each head has another role
    swapped, _ = decoder_heads.numbers_of("model", tokens, None)
    assert max(swapped["previous, best head"], swapped["induction, best head"]) < 0.1


# ---- maps of any weights


def one_place(places):
    """A head that gives all of its weight to places (T,): (1, T, T)."""
    return torch.eye(len(places))[torch.tensor(places)][None]


COPIED = ["a", "b", "c", "d", "a", "b", "c", "d"]
NAMED_HEADS = {  # name -> the key of each of the eight queries
    "token before": [0, 0, 1, 2, 3, 4, 5, 6],
    "itself": [0, 1, 2, 3, 4, 5, 6, 7],
    "token after": [1, 2, 3, 4, 5, 6, 7, 7],
    "same token": [4, 5, 6, 7, 0, 1, 2, 3],
    "after same token": [0, 2, 4, 6, 1, 2, 3, 4],
    "first token": [0, 0, 0, 0, 0, 0, 0, 0],
    "last token": [7, 7, 7, 7, 7, 7, 7, 7],
    "all at 2 c": [2, 2, 2, 2, 2, 2, 2, 2],
    "no name": [3, 6, 1, 5, 0, 2, 7, 3],
}


def name_of(head, tokens):
    """Of a head (1, T, T), where all keys that are not 0 are seen."""
    layers = attention_maps.as_layers(head, tokens)
    names, _ = attention_maps.name_heads(layers, tokens)
    return names[0][0]


@pytest.mark.parametrize("name", NAMED_HEADS)
def test_a_head_is_named_after_the_place_that_gets_its_weight(name):
    head, even = one_place(NAMED_HEADS[name]), torch.full((1, 8, 8), 1 / 8)
    layers = attention_maps.as_layers(torch.cat([head, even]), COPIED)
    names, entropy = attention_maps.name_heads(layers, COPIED)
    assert names == [[name, "no name"]]
    near(entropy[0], [0.0, 1.0])
    finding = attention_maps.finding_of(names, entropy)
    assert finding.startswith("0 of" if name == "no name" else "1 of 2 heads")
    assert name_of(0.4 * head + 0.6 * even, COPIED) == "no name"


def test_what_comes_too_seldom_or_leaves_no_choice_names_nobody():
    """A copy that comes once; two tokens, of which the second always looks at one of them; and two
    keys, of which even a head that does not choose gives half its weight to the one before.
    """
    seldom = one_place([4, 3, 1, 0, 0]) * 0.9 + 0.02
    assert name_of(seldom, ["a", "b", "c", "d", "a"]) == "no name"
    assert name_of(torch.tensor([[[1.0, 0.0], [0.9, 0.1]]]), ["a", "b"]) == "no name"
    two_keys = 0.6 * torch.eye(8).roll(-1, dims=1) + 0.4 * torch.eye(8)
    assert name_of(two_keys.tril()[None], COPIED) == "no name"


@pytest.mark.parametrize("seen", [causal_mask(8), torch.ones(8, 8, dtype=torch.bool)])
def test_places_are_those_of_a_loop_and_who_sees_one_key_has_none(seen):
    tokens = [*"abcadaba"]  # the token a comes four times
    places = attention_maps.places_in(tokens, seen)
    for query, key in itertools.product(range(8), range(8)):
        expected = {
            "token before": key == query - 1,
            "itself": key == query,
            "same token": key != query and tokens[key] == tokens[query],
            "after same token": 0 < key <= query and tokens[key - 1] == tokens[query],
            "first token": key == 0 and query > 0,
        }
        may_be = seen[query, key] and seen[query].sum() > 1
        for name, there in expected.items():
            assert places[name][query, key] == (there and may_be), (name, query, key)


def test_a_column_is_what_others_give_it_and_few_others_are_not_asked():
    layer = torch.rand(2, 5, 5, generator=torch.Generator().manual_seed(0)).double()
    weights = attention_maps.weight_by_place(layer, [*"abcde"], torch.ones(5, 5).bool())
    near(weights["all at 2 c"], layer[:, [0, 1, 3, 4], 2].mean(dim=1))
    weights = attention_maps.weight_by_place(layer, [*"abcde"], causal_mask(5))
    near(weights["all at 1 b"], layer[:, 2:, 1].mean(dim=1))
    assert "all at 2 c" not in weights, "two queries behind it are too few"


def test_weights_come_in_every_shape_and_nearly_even_ones_are_said_to_look_untrained():
    weights = torch.full((2, 3, 90, 90), 1 / 90)
    tokens = ["word"] * 90
    by_library = tuple(layer[None].requires_grad_() for layer in weights)
    for given in (weights, list(weights), by_library, weights.numpy(), weights.bfloat16()):
        near(attention_maps.as_layers(given, tokens), weights.double(), share=1e-2)  # why: 16 bits
    figure = attention_maps.draw_heads(weights[0], tokens)
    assert len(figure.axes) == 4, "three maps and a bar"
    assert "look untrained (normalised entropy 1.00" in figure.get_suptitle()


def test_a_column_of_a_long_text_is_not_lost_between_two_pixels():
    """Twelve heads give half of their weight to the second of 400 tokens."""
    weights = (torch.eye(400)[1] / 2 + 1 / 800).expand(12, 400, 400)
    figure = attention_maps.draw_heads(weights, ["word"] * 400)
    figure.draw_without_rendering()
    image = figure.axes[0].images[0]
    cells = image.get_array()
    assert cells[:, 0].min() > 0.5 > cells[:, 1:].max()
    assert len(cells) <= image.get_window_extent().width, "each cell has a pixel"


def test_tokens_are_shown_alike_where_their_ids_are_and_only_there():
    """Two tokens are bytes of one letter, as in many decoders."""
    pieces = ["\ufffd", "\ufffd", " cat", "cat", "\n", " ", "_"]
    tokenizer = SimpleNamespace(decode=pieces.__getitem__)
    ids = [0, 1, 0, 2, 3, 4, 5, 6]
    shown = language_model.shown_tokens(tokenizer, ids, "爱", [(0, 1)] * 8)
    assert shown == ["爱", "爱′", "爱", "cat", "cat′", "↵", "␣", "_"]


@pytest.mark.parametrize("number", [1, 2, 5, 12])
def test_a_map_has_its_texts_whole_and_tokens_as_they_are(number, tmp_path, capsys):
    """Outside of our theme, as a reader calls it."""
    weights = torch.tensor([0.05, 0.9, 0.05, 0.0]).expand(12, 4, 4)
    tokens = ["$$", "$x_1$", "$\\frac$", "\u0378"]  # the last is no letter
    heads = [(0, head) for head in range(number)]
    with watched_texts() as seen, warnings.catch_warnings(action="error"):
        attention_maps.draw_heads(weights, tokens, heads=heads).savefig(tmp_path / "maps.png")
    (texts,) = seen.values()
    drawn = {text for text, *_ in texts.values()}
    assert {"0 $$", "1 $x_1$", "2 $\\frac$", "3 □"} < drawn
    assert capsys.readouterr().out.count("\n") == 1, "one line about the letter without a font"


# ---- what a head costs


@torch.no_grad()
def test_costs_are_those_with_a_hook_on_the_output_projection():
    writer = tiny_model("smollm3", head="AutoModelForCausalLM").double()
    tokens = torch.tensor([[2, 3, 4, 5, 2, 3, 6], [7, 6, 5, 4, 3, 2, 2]])
    asked = (tokens, [[(0, 1), (1, 2)]])
    losses = head_prices.without_each(writer, *asked, head_prices.next_token_loss)
    vectors = head_prices.without_each(writer.model, *asked, head_prices.final_vectors)
    for layer, of_head in ((0, slice(8, 16)), (1, slice(16, 24))):  # heads of 8 numbers

        def says_its_mean(_, inputs, of_head=of_head):
            inputs[0][..., of_head] = inputs[0][..., of_head].mean(dim=1, keepdim=True)

        writer.model.layers[layer].self_attn.o_proj.register_forward_pre_hook(says_its_mean)
    expected = writer(tokens, output_hidden_states=True)
    near(vectors[0], expected.hidden_states[-1], share=1e-5)
    logs = expected.logits[:, :-1].log_softmax(dim=-1)
    near(-losses[0], logs.gather(2, tokens[:, 1:, None])[..., 0], share=1e-5)


def test_a_head_that_looks_matters_by_what_the_later_copies_lose(monkeypatch):
    """Of four heads two look. The first text is copied from its fourth token on."""
    tokens = torch.tensor([[2, 3, 4, 2, 3, 4, 2], [2, 3, 4, 5, 6, 7, 8]])
    losses = torch.full((5, 2, 6), 9.0)
    losses[:, 0, 3:] = torch.tensor([1.0, 6, 3, 5, 1.5])[:, None]
    asked = []
    monkeypatch.setattr(decoder_heads, "without_each", lambda *given: asked.append(given) or losses)
    model = tiny_model("smollm3", num_attention_heads=4)
    roles = ["previous", "induction", "first", ""]
    found = decoder_heads.looker_numbers(model, tokens, roles, torch.Generator())
    as_it_is, both, others, *alone = asked[0][2]
    assert (as_it_is, both, alone) == ([], [(0, 0), (0, 1)], [[(0, 0)], [(0, 1)]])
    assert sorted(others) == [(0, 2), (0, 3)]
    assert list(found.values()) == [2, 1, 0.5, 8, 4, 0.5, 5, 2]


HOSTILE = ["</script>", '"', "’", "🙂", "↵", "שלום", "{{ x }}"]


@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (390, "dark")])
def test_the_page_of_a_text_is_safe_and_goes_by_keyboard(browser, tmp_path, width, scheme):
    path, errors = tmp_path / "heads.html", []
    data = {"title": "<b>", "model": "", "tokens": HOSTILE, "unit": "nats", "meaning": ""}
    data |= {"names": [["a", "b", "c"]] * 2, "prices": [[0.0, 0.1, -0.2], [0.3, 0.0, 0.0]]}
    looks_at_next = torch.eye(7).roll(-1, dims=0)
    heads.write_page(path, data, looks_at_next.expand(2, 3, 7, 7))
    view = {"viewport": {"width": width, "height": 800}, "color_scheme": scheme}
    page = open_watched(browser, path.as_uri(), errors, **view)
    says = page.locator("main").inner_text
    assert says().startswith("<b>") and "Head 1.0 · a" in says(), "the dearest is large"
    assert page.locator("#words button").all_inner_texts() == HOSTILE
    page.locator("#words button").first.press("ArrowRight")
    page.locator("#grid button").nth(3).press("ArrowUp")
    assert "Head 0.0 · a" in says() and "’\u2069” (2) 100 %" in says()
    assert errors + axe_violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") == width


def test_a_text_of_one_s_own_is_drawn_priced_and_refused_in_one_line(capsys, tmp_path):
    options = ["--model", saved(tiny("gpt2"), tmp_path / "mine"), "--output-dir", str(tmp_path)]
    capsys.readouterr()  # what was said of saving
    for text in ("", "cat " * 81):
        assert "text" in refusal_of(heads, capsys, *options, "--text", text)
    options += ["--text", "the cat sat", "--prices"]
    for kind in ("html", "png"):
        assert heads.main([*options, "--format", kind]).startswith("The dearest of ")
    assert len([*tmp_path.rglob("heads*.*")]) == 3, "a page and two pictures"
