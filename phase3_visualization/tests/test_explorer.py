"""What the live page computes in JavaScript, against PyTorch, and what the Python chooses."""

import base64
import copy
import difflib
import itertools
import json
import math
import random
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from phase1_single_head.order.reverse_and_copy import SymbolMover
from phase1_single_head.parts.two_places import TwoPlaces
from phase3_visualization.explorer import examples, models, wagers, write_page
from shared import cli, paths
from shared.tests.faults import FAULTS, replaced
from shared.tests.helpers import anchors, as_if_trained, in_torch, near, open_watched, small_records
from shared.toy_language import MASK_ID, SPECIAL, START_ID, VOCABULARY, encode
from shared.toy_model import default_dtype

HEADS = list(itertools.product(range(2), range(4)))
WORDS = range(len(SPECIAL), len(VOCABULARY))  # their ids
with default_dtype():  # cli.parse sets it, and other files are read after this one
    QUICK = cli.parse(cli.parser(""), ["--quick"])
PAGE = 5e-4  # of the largest number: the page rounds to float32 between layers of large weights


@pytest.fixture(autouse=True)
def as_in_a_script():
    torch.set_default_dtype(torch.float64)


# ---- the forward pass

# JSON, because a browser hands over one long text faster than many numbers.
FORWARD = """(cases) => {
    const plain = (key, value) => ArrayBuffer.isView(value) ? [...value] : value;
    const { wagers } = JSON.parse(document.getElementById("data").textContent);
    window.loaded ??= new Map(wagers.models.map((one) => [one.name, Network.load(one)]));
    return JSON.stringify(cases.map(([name, ...rest]) => {
        const { logits, layers } = Network.run(window.loaded.get(name), ...rest);
        return { logits, weights: layers.map(({ weights }) => weights) };
    }), plain); }"""


def as_tensor(nested):
    return torch.from_numpy(np.array(nested, dtype=np.float64))  # None becomes NaN


def in_page(page, cases):
    """Network.run for (model name, tokens, levers): logits (T, V), weights (L, H, T, T)."""
    for answer in json.loads(page.evaluate(FORWARD, cases)):
        logits, weights = as_tensor(answer["logits"]), as_tensor(answer["weights"])
        yield SimpleNamespace(logits=logits, weights=weights)


def pulled(lever, recipe, rng):
    """A position of this lever, or of all but the bug.

    Under a causal mask the bug leaves a query that sees nothing.
    """
    heads = itertools.product(range(recipe.num_layers), range(recipe.num_heads))
    heads = [f"{layer}.{head}" for layer, head in heads]
    positions = {
        "causal": recipe.objective == "masked word",
        "divisor": rng.choice([0.7, 1, 2, 7, 30]),
        "removed": rng.sample(heads, rng.randint(1, len(heads))),
    }
    if lever == "all":
        return positions
    positions["bug"] = "mask" if recipe.objective == "next word" else None
    return {name: positions[name] for name in positions if name == lever}


def random_cases(trained, count, rng, lever="none"):
    """(model name, tokens, levers) with 1 to 32 random words, of which one may be hidden."""
    cases = []
    for name, n in itertools.product(trained, range(count)):
        recipe = trained[name].recipe
        length = [32, 1][n] if n < 2 else rng.randint(2, 31)
        tokens = rng.choices(WORDS, k=length)
        if recipe.objective == "next word":
            tokens.insert(0, START_ID)
        elif n % 2:
            tokens[rng.randrange(length)] = MASK_ID
        cases.append([name, tokens, pulled(lever, recipe, rng)])
    return cases


def compare(page, trained, cases):
    """Returns the weights by PyTorch."""
    weights = []
    for case, computed in zip(cases, in_page(page, cases), strict=True):
        expected = in_torch(trained[case[0]], *case[1:])
        near(computed.logits, expected.logits, share=PAGE)
        near(computed.weights, expected.weights, share=PAGE)
        weights.append(expected.weights)
    return weights


@pytest.mark.parametrize("lever", ["none", "causal", "divisor", "removed", "bug", "all"])
def test_the_page_computes_what_pytorch_computes(explorer_page, explorer_models, lever):
    cases = random_cases(explorer_models, 5, random.Random(lever), lever)
    weights = compare(explorer_page, explorer_models, cases)
    if lever == "none":
        sharpest = torch.cat([each.amax(dim=-1).flatten() for each in weights])
        assert sharpest.median() > 0.7, "or a wrong divisor hardly shows"


def test_the_small_models_compute_what_they_compute_in_pytorch(explorer_page, checkpoints):
    small, _ = models.train_pairs(QUICK)
    del small["masked"]  # the page of the tests has a sharper one
    for name, model in small.items():
        toy, size, length = False, SymbolMover.SYMBOLS, SymbolMover.LENGTH
        if isinstance(model, TwoPlaces):
            size, length = TwoPlaces.SYMBOLS, TwoPlaces.LENGTH
        elif not isinstance(model, SymbolMover):
            toy, size, length = True, len(VOCABULARY), 9
        tokens = torch.randint(size, (4, length), generator=torch.Generator().manual_seed(5))
        for parameter in model.parameters():
            parameter.data = parameter.data.half().double()  # as the page has it
        expected = model(tokens)
        computed = list(in_page(explorer_page, [[name, row, {}] for row in tokens.tolist()]))
        logits = torch.stack([each.logits for each in computed])
        near(logits, (expected[0] if toy else expected).detach(), share=PAGE)
        sees_ahead = any(each.weights[0, 0, 0, 1:].any() for each in computed)
        assert sees_ahead == (name in ("unmasked", "placed", "unplaced"))


# In the order in which they need each other.
PARTS = ("pieces", "network", "runs")


def test_the_comparisons_notice_each_planted_mistake(browser, explorer_models):
    trained = {name: explorer_models[name] for name in ("small", "small causal")}
    data = write_page.as_script_text({"wagers": {"models": small_records(trained)}})
    rng, page = random.Random(7), browser.new_page()
    cases = random_cases(trained, 3, rng) + random_cases(trained, 3, rng, "removed")
    folder = paths.shown(write_page.FOLDER)
    texts = {
        f"{folder}/model/{name}.js": write_page.page_file(f"model/{name}.js") for name in PARTS
    }
    for fault in FAULTS:
        if fault[0].endswith(".js"):
            wrong = texts | {fault[0]: replaced(*fault)}
            page.goto("about:blank")  # a new world, without the names of the last one
            page.set_content(f'<script type="application/json" id="data">{data}</script>')
            page.add_script_tag(content="\n".join(wrong.values()))
            with pytest.raises(AssertionError):
                compare(page, trained, cases)
    page.close()


def test_unknown_words_get_the_neighbours_that_difflib_finds(explorer_page):
    known = list(VOCABULARY[len(SPECIAL) :])
    words = ["kat", "caat", "tac", "xylophone", "teh", "b", "bedd", "<b>", "sofass", "frmer"]
    expected = [difflib.get_close_matches(word, known, n=3, cutoff=0.5) for word in words]
    ask = "([words, vocabulary]) => words.map(word => Words.nearestWords(word, vocabulary))"
    assert explorer_page.evaluate(ask, [words, list(VOCABULARY)]) == expected
    assert {len(neighbours) for neighbours in expected} == {0, 3}


# ---- what the Python chooses and tells the page


def test_the_head_that_is_shown_is_the_one_that_the_hidden_word_needs_most(explorer_models):
    trained = explorer_models["both sides"]
    for sentence, hidden in [*examples.OPENINGS[:4], examples.KNOCKED_OUT]:
        tokens = encode(sentence.split())
        truth, tokens[hidden] = tokens[hidden], MASK_ID
        left = {}
        for layer, head in HEADS:
            blind = in_torch(trained, tokens, {"removed": [f"{layer}.{head}"]})
            left[layer, head] = blind.logits[hidden].softmax(dim=-1)[truth]
        assert examples.costliest_head(trained, sentence, hidden) == min(left, key=left.get)


def from_text(packed, layout, exact):
    """The model from what the page has of it; none of its numbers is far from the exact one."""
    data = base64.b64decode(packed["numbers"])
    if packed["kind"] == "float16":
        numbers = np.frombuffer(data, "<f2").astype("<f8")
        far = np.abs(numbers) / 2**11 + 2**-25
    else:
        widths = []
        for *rows, width in layout.values():
            widths += [width] * math.prod(rows)
        scales = np.frombuffer(data[: 2 * len(widths)], "<f2").astype("<f8").repeat(widths)
        numbers = scales * np.frombuffer(data[2 * len(widths) :], np.int8)
        far = scales * (0.5 + 1e-5)
    model = copy.deepcopy(exact.model)
    before = parameters_to_vector(model.parameters()).detach().numpy()
    assert (np.abs(before - numbers) <= far).all()
    vector_to_parameters(torch.from_numpy(numbers), model.parameters())
    return replace(exact, model=model)


def test_what_the_page_says_of_a_stop_is_true_of_the_numbers_that_it_has(
    explorer_data, explorer_models
):
    trained = as_if_trained(explorer_models["both sides"])
    own, again = [run["stops"] for run in explorer_data["runs"]]
    assert [stop["step"] for stop in own] == [0, 5, 8, 9, 10, 11, 12, 15, 17, 20, 40]
    assert [stop.get("kind") for stop in own] == ["int8"] * 10 + ["float16"]
    assert [stop["step"] for stop in again] == [0, 11, 40], "more would make the page large"
    for stop in (own[1], again[-1]):
        shipped = from_text(stop, explorer_data["layout"], trained.at_stage(stop["step"]))
        assert stop["heads"] == models.heads_of(shipped)
    from_text(own[-1], explorer_data["layout"], trained.at_stage(40))


@pytest.mark.parametrize("wager", wagers.wagers()[:5], ids=lambda wager: wager["title"])
def test_the_right_answer_holds_every_recorded_number_and_the_interval_is_theirs(wager):
    """Read from the file: each seed's value lies in the band of the right answer, in no other's."""
    rows = pd.read_csv(paths.EVIDENCE)
    own = rows[(rows["experiment"] == wager["experiment"]) & (rows["seed"] > 0)]
    values = own.set_index(["number", "seed"])["value"]
    for question in (wager, wager.get("decides", wager)):
        seeds = values[question["number"]]
        assert len(seeds) == 10
        fits = [seeds.between(float(low), float(high)).all() for low, high in question["bands"]]
        assert np.flatnonzero(fits).tolist() == [wager["right"]]
    assert wager["interval"] == (seeds.min(), seeds.max())


def test_an_interval_is_written_with_its_unit_once():
    assert f"{wagers.Interval(0.237, 0.257):.0%}" == "24 to 26\u00a0%"
    assert f"{wagers.Interval(0.998, 1.0):.0%}" == "100\u00a0%"
    assert f"{wagers.Interval(11.19, 13.3):.1f}" == "11.2 to 13.3"


def test_the_lessons_have_the_places_that_the_page_links_to(explorer_data, monkeypatch):
    links = [wager["lesson"] for wager in explorer_data["wagers"]["list"]]
    for link in (*links, explorer_data["rule"]):
        lesson, anchor = link.split("#")
        assert anchor in anchors(paths.ROOT / paths.HOME / lesson), link
    monkeypatch.setenv("CODE_URL", "https://code")
    assert wagers.lesson_link("a/README.md#b") == "https://code/a/README.md#b"


def test_the_page_is_one_file_the_same_each_time_and_asks_nobody_for_more(
    explorer_data, monkeypatch
):
    page = write_page.render(explorer_data)
    assert page == write_page.render(explorer_data)
    assert page.count("Content-Security-Policy") == 1
    addresses = set(re.findall(r"https?://[^\s\"'<>]*", page))
    assert addresses <= {"http://www.w3.org/2000/svg"}  # a name, not an address
    for file in write_page.FOLDER.rglob("*.*s"):  # .js, .css
        assert page.count(file.read_text(encoding="utf-8")) == 1, file
    monkeypatch.setenv("PAGE_URL", "https://page")
    assert '"og:image" content="https://page/' in write_page.render(explorer_data)


def test_planted_markup_stays_text(browser, explorer_data, tmp_path):
    planted, errors = '</script><b id="planted">bold</b><!--<script>', []
    data = json.loads(json.dumps(explorer_data).replace('"river"', json.dumps(planted)))
    path = tmp_path / "planted.html"
    path.write_text(write_page.render(data), encoding="utf-8")
    page = open_watched(browser, path.as_uri(), errors)
    assert page.evaluate('JSON.parse(document.getElementById("data").textContent)') == data
    assert page.locator("#planted").count() == 0 and planted in page.locator("body").inner_text()
    page.close()
    assert errors == []
