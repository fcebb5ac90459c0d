"""The forward pass in the page, attention.js, against PyTorch: every logit, every weight, with every lever."""

import base64
import difflib
import json
import math
import random
import re
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from phase2_multi_head.models import CAUSAL_RECIPE
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase3_visualization.explorer import models as page_models
from phase3_visualization.explorer import write_page
from phase4_causal import models
from phase4_causal.causal_attention import CausalSelfAttention
from shared import checkpoints, paths, training
from shared.attention_utils import attention_entropy, causal_mask, normalized_entropy, padding_mask
from shared.grammar import scores as grammar_scores
from shared.tests.helpers import needs_browser, open_watched
from shared.toy_language import INDEX, MASK_ID, SPECIAL, START_ID, VOCABULARY, tokenize
from shared.toy_model import ToyTransformer

PAGE_TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def explorer_errors():
    """What went wrong in the page so far; the last test looks at it once more."""
    return []


@pytest.fixture(scope="module")
def explorer_data(explorer_models):
    return write_page.page_data(explorer_models)


@pytest.fixture(scope="module")
def explorer_page(browser, explorer_data, explorer_errors, tmp_path_factory):
    path = tmp_path_factory.mktemp("explorer") / "explorer.html"
    path.write_text(write_page.render(explorer_data), encoding="utf-8")
    assert 0.5e6 < path.stat().st_size < 3e6
    page = open_watched(browser, path.as_uri(), explorer_errors)
    yield page
    page.close()


# JSON, because a browser hands over one long text faster than many numbers; JSON has no -Infinity.
PLAIN = """
const plain = (key, value) => ArrayBuffer.isView(value) ? [...value] : value === -Infinity ? "-inf" : value;
const load = () => JSON.parse(document.getElementById("data").textContent).models.map(Attention.load);
window.loaded ??= Object.fromEntries(load().map((model) => [model.name, model]));  // once for all tests of a tab
const models = window.loaded;
"""


FORWARD = f"""(cases) => {{ {PLAIN}
    return JSON.stringify(cases.map(([name, tokens, levers, parts]) => {{
        const {{ logits, layers }} = Attention.forward(models[name], tokens, levers);
        const wanted = (layer) => Object.fromEntries(parts.map((part) => [part, layer[part]]));
        return {{ logits, layers: layers.map(wanted) }};
    }}), plain); }}"""


def in_page(page, cases, parts=("weights",)):
    """Attention.forward of the page for (model name, tokens, levers): logits (T, V), part -> (L, H, T, ...)."""
    answers = json.loads(page.evaluate(FORWARD, [[*case, list(parts)] for case in cases]))
    return [
        SimpleNamespace(
            logits=numbers(answer["logits"]),
            **{part: numbers([layer[part] for layer in answer["layers"]]) for part in parts},
        )
        for answer in answers
    ]


def numbers(nested):
    return torch.from_numpy(np.array(nested, dtype=np.float32))  # "-inf" and None become -inf and NaN


@torch.no_grad()
def in_torch(trained, tokens, levers):
    """The same by PyTorch: the levers are masks and changed weights of phase 2's MultiHeadAttention."""
    recipe, length = trained.recipe, len(tokens)
    bias = trained.model.blocks[0].attention.w_q.bias is not None
    make_attention = partial(MultiHeadAttention, bias=bias)
    model = ToyTransformer(recipe.d_model, recipe.num_heads, recipe.num_layers, make_attention=make_attention).eval()
    model.load_state_dict(trained.model.state_dict())
    d_k = recipe.d_model // recipe.num_heads
    if "divisor" in levers:
        for block in model.blocks:
            for parameter in block.attention.w_q.parameters():
                parameter.mul_(math.sqrt(d_k) / levers["divisor"])
    for name in levers.get("removed", []):
        layer, head = map(int, name.split("."))
        model.blocks[layer].attention.w_o.weight[:, head * d_k : (head + 1) * d_k] = 0
    mask = torch.ones(length, length, dtype=torch.bool)
    if levers.get("causal", recipe.objective == "next word"):
        mask = mask & causal_mask(length)
    mask[:, levers.get("hidden", [])] = False
    logits, layers = model(torch.tensor([tokens]), mask=mask)
    return SimpleNamespace(logits=logits[0], weights=torch.cat(layers), mask=mask)


def random_cases(models, count, rng, levers=lambda recipe, length: {}):
    """(model name, tokens, levers) with 1 to 32 random words, hidden ones among them where the model knows <mask>."""
    cases = []
    for name, n in [(name, n) for name in models for n in range(count)]:
        recipe = models[name].recipe
        length = 32 if n == 0 else 1 if n == 1 else rng.randint(1, 32)
        tokens = [rng.randrange(len(SPECIAL), len(VOCABULARY)) for _ in range(length)]
        if recipe.objective == "next word":
            tokens = [START_ID, *tokens]
        elif n % 2:
            tokens[rng.randrange(length)] = MASK_ID
        cases.append([name, tokens, levers(recipe, len(tokens))])
    return cases


def largest_difference(page, models, cases, answers=None):
    """Largest absolute difference of logits and weights between page and PyTorch, each compared with shape."""
    worst = 0.0
    answers = answers or [in_torch(models[name], tokens, levers) for name, tokens, levers in cases]
    for ours, theirs in zip(in_page(page, cases), answers, strict=True):
        for a, b in ((ours.logits, theirs.logits), (ours.weights, theirs.weights)):
            assert a.shape == b.shape
            difference = (a - b).abs().max().item()
            worst = max(worst, math.inf if math.isnan(difference) else difference)
    return worst


@needs_browser
def test_the_page_computes_what_pytorch_computes(explorer_page, explorer_models, explorer_errors):
    rng, small = random.Random(0), {name: explorer_models[name] for name in ("small", "small causal")}
    large = {name: explorer_models[name] for name in ("both sides", "causal")}
    cases = [*random_cases(large, 50, rng), *random_cases(small, 10, rng)]
    sharp = torch.cat([in_torch(explorer_models[n], t, v).weights.amax(-1).flatten() for n, t, v in cases[:20]])
    assert sharp.median() > 0.7, "the weights must be sharp, or a wrong divisor hardly shows"
    assert largest_difference(explorer_page, explorer_models, cases) < PAGE_TOLERANCE
    assert not explorer_errors


def one_lever(lever, rng):
    """A function that draws a position of this lever for a model and a number of tokens."""

    def draw(recipe, length):
        heads = [f"{layer}.{head}" for layer in range(recipe.num_layers) for head in range(recipe.num_heads)]
        positions = {
            "causal": lambda: recipe.objective == "masked word",
            "divisor": lambda: rng.choice([0.7, 1, 2, 7, 30]),
            "removed": lambda: rng.sample(heads, rng.randint(1, len(heads))),
            "hidden": lambda: rng.sample(range(length), rng.randint(1, length)),
        }
        return {name: draw_one() for name, draw_one in positions.items() if lever in (name, "all")}

    return draw


@needs_browser
@pytest.mark.parametrize("lever", ["causal", "divisor", "removed", "hidden", "all"])
def test_a_lever_does_what_the_same_change_does_in_pytorch(explorer_page, explorer_models, lever):
    rng = random.Random(lever)
    cases = random_cases(explorer_models, 4, rng, one_lever(lever, rng))
    assert largest_difference(explorer_page, explorer_models, cases) < PAGE_TOLERANCE
    untouched = [[name, tokens, {}] for name, tokens, _ in cases]
    for case, with_it, without in zip(
        cases, in_page(explorer_page, cases), in_page(explorer_page, untouched), strict=True
    ):
        if len(case[1]) > 4:
            assert (with_it.logits - without.logits).abs().max() > 0.01, f"{case[2]} changed nothing"


@needs_browser
def test_a_removed_head_still_looks_but_says_nothing(explorer_page, explorer_models):
    tokens = [INDEX[word] for word in tokenize("the cat sat on the mat")]
    cases = [["both sides", tokens, {}], ["both sides", tokens, {"removed": ["1.2", "1.0"]}]]
    before, after = in_page(explorer_page, cases, parts=("weights", "head_output", "output"))
    assert torch.equal(before.weights, after.weights)
    assert (after.head_output[1, [0, 2]] == 0).all() and torch.equal(after.head_output[0], before.head_output[0])
    assert torch.equal(after.head_output[1, [1, 3]], before.head_output[1, [1, 3]])
    w_o = explorer_models["both sides"].model.blocks[1].attention.w_o
    merged = after.head_output[1].transpose(0, 1).flatten(1)  # (H, T, d_k) -> (T, d_model)
    assert torch.allclose(after.output[1], w_o(merged), rtol=0, atol=PAGE_TOLERANCE)


@needs_browser
def test_the_five_steps_follow_from_each_other(explorer_page, explorer_models):
    parts = ("query", "key", "value", "scores", "weights", "head_output", "output")
    for case in random_cases(explorer_models, 3, random.Random(3)):
        pass_ = in_page(explorer_page, [case], parts)[0]
        scores = pass_.query @ pass_.key.mT / math.sqrt(pass_.query.size(-1))
        visible = pass_.scores > -math.inf
        assert torch.equal(visible.all(0).all(0), in_torch(explorer_models[case[0]], *case[1:]).mask)
        assert torch.allclose(pass_.scores[visible], scores[visible], rtol=1e-5, atol=PAGE_TOLERANCE)
        assert torch.allclose(pass_.weights, pass_.scores.softmax(dim=-1), rtol=0, atol=PAGE_TOLERANCE)
        assert torch.allclose(pass_.head_output, pass_.weights @ pass_.value, rtol=0, atol=PAGE_TOLERANCE)


@needs_browser
def test_a_row_that_sees_nothing_is_zero_and_not_nan(explorer_page):
    tokens = [INDEX[word] for word in tokenize("the cat sat")]
    cases = [["both sides", tokens, {"hidden": [0, 1, 2]}], ["causal", [START_ID, *tokens], {"hidden": [0]}]]
    both, causal = in_page(explorer_page, cases, parts=("weights", "head_output"))
    assert (both.weights == 0).all() and (both.head_output == 0).all() and both.logits.isfinite().all()
    assert (causal.weights[:, :, 0] == 0).all() and (causal.head_output[:, :, 0] == 0).all()
    assert (causal.weights[:, :, :, 0] == 0).all() and causal.logits.isfinite().all()
    assert torch.allclose(causal.weights[:, :, 1:].sum(-1), torch.ones(2, 4, 3))


STEPS = f"""([name, tokens, levers]) => {{ {PLAIN}
    const model = models[name], cache = Attention.empty_cache(model);
    const sizes = () => cache.layers.flatMap(({{ key, value }}) => [...key, ...value].map((rows) => rows.length));
    return JSON.stringify(tokens.map((token) =>
        ({{ step: Attention.step(model, cache, token, levers), length: cache.length, sizes: sizes(),
            keys: cache.layers.map(({{ key }}) => key.map((rows) => rows.at(-1))) }})), plain); }}"""


@needs_browser
@pytest.mark.parametrize("levers", [{}, {"divisor": 2, "hidden": [1], "removed": ["0.1"]}], ids=["plain", "levers"])
def test_a_step_with_the_cache_is_the_last_row_of_the_whole(explorer_page, levers):
    rng = random.Random(5)
    for name in ("causal", "small causal"):
        tokens = [START_ID, *(rng.randrange(len(SPECIAL), len(VOCABULARY)) for _ in range(12))]
        steps = json.loads(explorer_page.evaluate(STEPS, [name, tokens, levers]))
        prefixes = [[name, tokens[: i + 1], levers] for i in range(len(tokens))]
        wholes = in_page(explorer_page, prefixes, ("weights", "query", "key"))
        for i, (one, whole) in enumerate(zip(steps, wholes, strict=True)):
            assert one["length"] == i + 1 and set(one["sizes"]) == {i + 1}
            step = one["step"]
            assert torch.equal(numbers(step["logits"]), whole.logits[-1])
            for part in ("weights", "query"):
                assert torch.equal(numbers([layer[part] for layer in step["layers"]]), getattr(whole, part)[:, :, -1])
            assert torch.equal(numbers(one["keys"]), whole.key[:, :, -1])


ROLES = f"""([name, levers]) => {{ {PLAIN}
    const {{ sentences, vocabulary, special }} = JSON.parse(document.getElementById("data").textContent);
    const hits = Statistics.count_hits(models[name], sentences.slice(0, 15), levers, vocabulary, special);
    return Statistics.best_heads(hits); }}"""


@needs_browser
@pytest.mark.parametrize("levers", [{}, {"causal": True}, {"removed": ["0.1"], "divisor": 3, "hidden": [2]}], ids=str)
def test_role_scores_are_those_of_the_python(explorer_page, explorer_models, levers):
    sentences = write_page.page_sentences()[:15]
    for name in ("both sides", "causal", "small"):
        trained = explorer_models[name]
        shift = int(trained.recipe.objective == "next word")
        tokens, lengths = training.to_batch(sentences, trained.recipe.objective)
        layers = []
        for row, length in zip(tokens.tolist(), lengths.tolist(), strict=True):
            weights = in_torch(trained, row[:length], {k: v for k, v in levers.items() if k != "hidden"}).weights
            missing = tokens.size(1) - length
            layers.append(F.pad(weights, (0, missing, 0, missing)))  # (L, H, T, T), T of the longest
        scores = grammar_scores.score_heads(list(torch.stack(layers, dim=1)), sentences, shift)
        expected = {
            relation: {"score": pytest.approx(s.accuracy), "layer": s.layer, "head": s.head, "direction": s.direction}
            for relation, s in grammar_scores.best_heads(scores).items()
        }
        assert explorer_page.evaluate(ROLES, [name, levers]) == expected


@needs_browser
def test_the_page_counts_entropy_loss_and_likeliest_words_as_the_python(explorer_page):
    generator = torch.Generator().manual_seed(1)
    mask = causal_mask(7)
    scores = 3 * torch.randn(7, 7, generator=generator)
    hidden = padding_mask(torch.tensor([5]), 7)[0, 0]
    for causal, gone, visible in (
        (False, [], torch.ones(7, 7, dtype=torch.bool)),
        (True, [], mask),
        (True, [5, 6], mask & hidden),
    ):
        weights = scores.masked_fill(~visible, -math.inf).softmax(dim=-1)
        rows = weights.tolist()
        ours = explorer_page.evaluate("rows => rows.map(row => Statistics.entropy(row))", rows)
        assert ours == pytest.approx(attention_entropy(weights).tolist(), abs=1e-6)
        ours = explorer_page.evaluate("([w, c, h]) => Statistics.normalized_entropy(w, c, h)", [rows, causal, gone])
        assert ours == pytest.approx(normalized_entropy(weights, visible).nanmean().item(), abs=1e-6)
    logits = 200 * torch.randn(11, generator=generator)  # so far apart that p of the target rounds to 0
    target = int(logits.argmin())
    ours = explorer_page.evaluate("([l, t]) => Statistics.loss(l, t)", [logits.tolist(), target])
    assert ours == pytest.approx(F.cross_entropy(logits, torch.tensor(target)).item(), rel=1e-5)
    for temperature in (0.5, 1, 3):
        shares = (logits / 50 / temperature).softmax(dim=0)
        ask = "([l, t]) => Statistics.top(Attention.softmax(l.map(x => x / 50), t), 4)"
        ours = explorer_page.evaluate(ask, [logits.tolist(), temperature])
        best = shares.topk(4)
        assert [item["token"] for item in ours] == best.indices.tolist()
        assert [item["probability"] for item in ours] == pytest.approx(best.values.tolist(), abs=1e-6)


@needs_browser
def test_unknown_words_get_the_same_neighbours_as_in_the_scripts(explorer_page):
    rng = random.Random(2)
    words = ["kat", "caat", "tac", "xylophone", "teh", "b", "bedd", "<b>", "sofass"]
    for word in rng.sample(VOCABULARY[len(SPECIAL) :], 40):
        letters = list(word)
        letters[rng.randrange(len(letters))] = rng.choice("aestxz")
        letters.insert(rng.randrange(len(letters) + 1), rng.choice("aestxz"))
        words.append("".join(letters))
    ask = "([words, vocabulary]) => words.map(word => Statistics.nearest_words(word, vocabulary))"
    known = VOCABULARY[len(SPECIAL) :]
    expected = [difflib.get_close_matches(word, known, n=3, cutoff=0.5) for word in words]
    assert explorer_page.evaluate(ask, [words, list(VOCABULARY)]) == expected
    assert [] in expected and sum(len(near) == 3 for near in expected) > 10


MISTAKES = {
    "divided by d_k": ("divisor: Math.sqrt(d_k)", "divisor: d_k"),
    "not divided": ("dot(query, key) / divisor", "dot(query, key)"),
    "the mask one too far": ("j > past + i", "j > past + i + 1"),
    "a hidden score is 0": (": -Infinity));", ": 0));"),
    "softmax without a sum": ("share / total", "share"),
    "norm without a size": ("* weight[i] + bias[i]", "+ bias[i]"),
    "no ReLU": ("Math.max(value, 0)", "value"),
    "positions count from 1": ("cache.length + i))", "cache.length + i + 1))"),
    "no biases": ("bias ? bias.data[i] : 0", "0"),
    "heads interleaved": (
        "x.slice(head * d_k, (head + 1) * d_k)",
        "x.filter((_, i) => i % num_heads === head)",
    ),
    "keys and values exchanged": ('["w_q", "w_k", "w_v"]', '["w_q", "w_v", "w_k"]'),
    "no residual": ("add(vector, attention.output[i])", "attention.output[i]"),
}


@pytest.fixture(scope="module")
def explorer_mistakes(browser, explorer_models):
    """A function: the text of attention.js -> its largest difference to PyTorch on small models."""
    models = {name: explorer_models[name] for name in ("small", "small causal")}
    data = write_page.as_script_text({"models": [page_models.record(*item) for item in models.items()]})
    cases = random_cases(models, 4, random.Random(7))
    answers = [in_torch(models[name], tokens, levers) for name, tokens, levers in cases]
    page = browser.new_page()

    def difference(source):
        page.goto("about:blank")  # a new world, without the names of the last one
        page.set_content(f'<script type="application/json" id="data">{data}</script><script>{source}</script>')
        return largest_difference(page, models, cases, answers)

    yield difference
    page.close()


@needs_browser
@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_comparison_notices_a_planted_mistake(explorer_mistakes, mistake):
    source = (write_page.FOLDER / "model" / "attention.js").read_text(encoding="utf-8")
    right, wrong = MISTAKES[mistake]
    assert source.count(right) == 1
    assert explorer_mistakes(source.replace(right, wrong)) > 10 * PAGE_TOLERANCE


@needs_browser
def test_the_comparison_finds_nothing_where_nothing_is_planted(explorer_mistakes):
    assert (
        explorer_mistakes((write_page.FOLDER / "model" / "attention.js").read_text(encoding="utf-8")) < PAGE_TOLERANCE
    )


@needs_browser
def test_planted_markup_stays_text(browser, explorer_data, tmp_path):
    planted, errors = '</script><b id="planted">bold</b><!--<script>', []
    data = json.loads(json.dumps(explorer_data).replace('"mat"', json.dumps(planted)))
    data["models"][0] |= {"label": planted}
    assert planted in data["vocabulary"] and planted in data["sentences"][0]["words"]
    path = tmp_path / "planted.html"
    path.write_text(write_page.render(data), encoding="utf-8")
    page = open_watched(browser, path.as_uri(), errors)
    assert page.evaluate('JSON.parse(document.getElementById("data").textContent)') == data
    assert page.locator("#planted").count() == 0 and page.locator("b").filter(has_text="bold").count() == 0
    assert planted in page.locator("body").inner_text()
    page.close()
    assert not errors


def test_the_page_is_one_small_file_and_the_same_each_time(explorer_models, tmp_path):
    models = {"small": explorer_models["small"], "small causal": explorer_models["small causal"]}
    first, second = (write_page.write(models, tmp_path / name) for name in "ab")
    assert first.read_bytes() == second.read_bytes()
    page = first.read_text(encoding="utf-8")
    assert page.count("Content-Security-Policy") == 1
    assert set(re.findall(r"https?://[^\s\"'<>]*", page)) <= {"http://www.w3.org/2000/svg"}  # a name, not an address
    parts = (*write_page.SCRIPTS, *write_page.STYLES)
    files = [file for kind in ("js", "css") for file in write_page.FOLDER.rglob(f"*.{kind}")]
    assert sorted(parts) == sorted(file.relative_to(write_page.FOLDER).as_posix() for file in files)
    assert [file.name for file in first.parent.iterdir()] == ["explorer.html"]


def test_the_data_of_the_page_can_be_read_back(explorer_data, explorer_models):
    data = json.loads(write_page.as_script_text(explorer_data))
    assert data["vocabulary"] == list(VOCABULARY) and [len(ramp) for ramp in data["weight_map"].values()] == [33, 33]
    assert data["special"] == {word.strip("<>"): INDEX[word] for word in SPECIAL}
    toy, *held_out = data["sentences"]
    assert len(held_out) == 40 and tuple(held_out[0]["words"]) == training.corpus()[1][0].words
    assert list(toy["relations"]) == list(held_out[0]["relations"])
    pairs = {name: [(toy["words"][a], toy["words"][b]) for a, b in pairs] for name, pairs in toy["relations"].items()}
    assert pairs["determiner-noun"] == [("the", "cat"), ("the", "mat")] and pairs["adjective-noun"] == []
    assert pairs["verb-subject"] == [("sat", "cat")] and pairs["verb-place"] == [("sat", "mat")]
    assert data["models"][3]["loss"] == pytest.approx(training.held_out_loss(explorer_models["small causal"]), abs=1e-4)
    for record, trained in zip(data["models"], explorer_models.values(), strict=True):
        flat = torch.frombuffer(bytearray(base64.b64decode(record["numbers"])), dtype=torch.float32)
        for name, parameter in trained.model.state_dict().items():
            shape, start = record["parameters"][name]["shape"], record["parameters"][name]["start"]
            assert torch.equal(flat[start : start + math.prod(shape)].view(shape), parameter)
        assert len(flat) == sum(parameter.numel() for parameter in trained.model.parameters())


@pytest.fixture
def explorer_checkpoints(tmp_path, monkeypatch):
    """Checkpoints of one test, and nothing remembered before or after it."""
    monkeypatch.setattr(paths, "CHECKPOINTS", tmp_path / "checkpoints")
    monkeypatch.setattr("shared.checkpoints._trained_here", {})
    monkeypatch.setattr(training, "QUICK_STEPS", 2)
    return paths.CHECKPOINTS


def test_the_explorer_trains_the_causal_model_that_phase_4_then_finds(explorer_checkpoints, tmp_path, capsys):
    assert CAUSAL_RECIPE == models.RECIPE
    write_page.main(["--quick", "--output-dir", str(tmp_path)])
    path = tmp_path / paths.EXPLORER
    said = capsys.readouterr().out
    assert f"{paths.shown(path)}, {path.stat().st_size / 1e6:.2f} MB" in said and path.stat().st_size < 3e6
    recipe = replace(models.RECIPE, name="causal_model_quick", steps=2)
    ours = checkpoints.load_checkpoint(recipe, CausalSelfAttention)
    theirs = training.train(recipe, CausalSelfAttention)
    for a, b in zip(ours.model.parameters(), theirs.model.parameters(), strict=True):
        assert torch.equal(a, b)


@needs_browser
def test_nothing_went_wrong_in_the_page_meanwhile(explorer_page, explorer_errors):
    with pytest.raises(Exception, match="at most 34 tokens"):
        in_page(explorer_page, [["both sides", [INDEX["the"]] * 35, {}]])
    assert not explorer_errors
