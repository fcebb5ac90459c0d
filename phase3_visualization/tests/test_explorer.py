"""What the explorer computes, against PyTorch: forward pass and training in JavaScript, and what
the Python chooses.
"""

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
import torch.nn.functional as F

from phase2_multi_head.models import MULTI_HEAD_RECIPE
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase3_visualization.explorer import examples, growing, models, wagers, write_page
from shared import cli, optimization, paths, training
from shared.attention_utils import padding_mask
from shared.grammar import best_reader, roles
from shared.grammar.scores import DIRECTIONS, relation_name
from shared.paths import HOME, place
from shared.publishing.report.lessons import Site, rendered, sources
from shared.tasks import SymbolMover, TwoPlaces
from shared.tests.faults import FAULTS, replaced
from shared.tests.helpers import (
    in_torch,
    near,
    needs_browser,
    open_watched,
    sharp_model,
    small_records,
)
from shared.toy_language import (
    INDEX,
    MASK_ID,
    PAD_ID,
    RELATIONS,
    SPECIAL,
    START_ID,
    VERBS,
    VOCABULARY,
    encode,
)
from shared.training import Recipe, Trained

TIES = [(relation, direction) for relation in RELATIONS for direction in DIRECTIONS]
PAGE = 5e-4  # of the largest number: the page rounds to float32 between layers of large weights


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


def numbers(nested):
    return torch.from_numpy(np.array(nested, dtype=np.float32))  # None becomes NaN


def in_page(page, cases):
    """Network.run of the page for (model name, tokens, levers): logits (T, V), what heads have (L,
    H, T, T).
    """
    for answer in json.loads(page.evaluate(FORWARD, cases)):
        yield SimpleNamespace(**{part: numbers(nested) for part, nested in answer.items()})


def drawn(lever, recipe, rng):
    """A position of this lever, or of all but the bug, which under a causal mask leaves a place
    that sees nothing.
    """
    heads = [
        f"{layer}.{head}" for layer in range(recipe.num_layers) for head in range(recipe.num_heads)
    ]
    positions = {
        "causal": recipe.objective == "masked word",
        "divisor": rng.choice([0.7, 1, 2, 7, 30]),
        "removed": rng.sample(heads, rng.randint(1, len(heads))),
        "bug": "mask" if recipe.objective == "next word" else None,
    }
    pulled = (lever,) if lever != "all" else ("causal", "divisor", "removed")
    return {name: positions[name] for name in pulled if name in positions}


def random_cases(trained, count, rng, lever="none"):
    """(model name, tokens, levers) with 1 to 32 random words, hidden ones among them where the
    model knows <mask>.
    """
    cases = []
    for name, n in itertools.product(trained, range(count)):
        recipe = trained[name].recipe
        length = [32, 1][n] if n < 2 else rng.randint(2, 31)
        tokens = [rng.randrange(len(SPECIAL), len(VOCABULARY)) for _ in range(length)]
        if recipe.objective == "next word":
            tokens = [START_ID, *tokens]
        elif n % 2:
            tokens[rng.randrange(length)] = MASK_ID
        cases.append([name, tokens, drawn(lever, recipe, rng)])
    return cases


def compare(page, trained, cases):
    for case, found in zip(cases, in_page(page, cases), strict=True):
        expected = in_torch(trained[case[0]], *case[1:])
        near(found.logits, expected.logits, share=PAGE)
        near(found.weights, expected.weights, share=PAGE)


@needs_browser
@pytest.mark.parametrize("lever", ["none", "causal", "divisor", "removed", "bug", "all"])
def test_the_page_computes_what_pytorch_computes(explorer_page, explorer_models, lever):
    cases = random_cases(explorer_models, 5, random.Random(lever), lever)
    compare(explorer_page, explorer_models, cases)
    sharp = [
        in_torch(explorer_models[name], tokens, {}).weights.amax(-1).flatten()
        for name, tokens, _ in cases
    ]
    assert torch.cat(sharp).median() > 0.7, "or a wrong divisor hardly shows"


@needs_browser
def test_the_small_models_compute_what_they_compute_in_pytorch(explorer_page, checkpoints):
    symbols = {
        "divided": (TwoPlaces.SYMBOLS, TwoPlaces.LENGTH),
        "placed": (SymbolMover.SYMBOLS, SymbolMover.LENGTH),
    }
    pairs = models.train_pairs(cli.parse(cli.parser(""), ["--quick"]))[0]
    del pairs["masked"]  # the page of the tests has a sharper one
    for name, model in pairs.items():
        size, length = symbols.get(name.removeprefix("un"), (len(VOCABULARY), 9))
        tokens = torch.randint(size, (4, length), generator=torch.Generator().manual_seed(5))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(parameter.half())  # as the page has it
            expected = model(tokens)
        found = list(in_page(explorer_page, [[name, row, {}] for row in tokens.tolist()]))
        logits = torch.stack([one.logits for one in found])
        near(logits, expected if torch.is_tensor(expected) else expected[0], share=PAGE)
        sees_ahead = any(one.weights[0, 0, 0, 1:].any() for one in found)
        assert sees_ahead == (name in ("unmasked", "placed", "unplaced"))


@needs_browser
def test_unknown_words_get_the_neighbours_that_difflib_finds(explorer_page):
    rng, known = random.Random(2), list(VOCABULARY[len(SPECIAL) :])
    words = ["kat", "caat", "tac", "xylophone", "teh", "b", "bedd", "<b>", "sofass"]
    words += [word[:2] + rng.choice("aestxz") + word[rng.randint(2, 4) :] for word in known]
    expected = [difflib.get_close_matches(word, known, n=3, cutoff=0.5) for word in words]
    ask = "([words, vocabulary]) => words.map(word => Words.nearestWords(word, vocabulary))"
    assert explorer_page.evaluate(ask, [words, list(VOCABULARY)]) == expected
    assert [] in expected and sum(len(found) == 3 for found in expected) > 10


# ---- training in the page

TRAINED_SMALL = Recipe("small", "masked word", num_heads=3, num_layers=3, steps=0, d_model=24)
TRAINED_FULL = Recipe("full", "masked word", num_heads=4, num_layers=2, steps=0)
PARTS = ("packed", "matmul", "pieces", "network", "training")


def test_the_bytes_in_the_page_are_the_assembled_text():
    wasmtime = pytest.importorskip("wasmtime", reason='no wasmtime: pip install -e ".[browser]"')
    folder = write_page.FOLDER / "model"
    shipped = re.search(
        r"ASSEMBLED = `([^`]*)`", (folder / "matmul.js").read_text(encoding="utf-8")
    )[1]
    assert base64.b64decode(shipped) == wasmtime.wat2wasm(
        (folder / "matmul.wat").read_text(encoding="utf-8")
    )


def random_batch(generator):
    """Sentences of random words and lengths, with words to predict."""
    lengths = torch.randint(1, 19, (5,), generator=generator).tolist()
    rows = [
        torch.randint(len(SPECIAL), len(VOCABULARY), (n,), generator=generator).tolist()
        for n in lengths
    ]
    chosen = (
        torch.randperm(sum(lengths), generator=generator)[: max(1, sum(lengths) // 3)]
        .sort()
        .values.tolist()
    )
    targets = torch.randint(
        len(SPECIAL), len(VOCABULARY), (len(chosen),), generator=generator
    ).tolist()
    return {"rows": rows, "chosen": chosen, "targets": targets}


def by_autograd(model, batch):
    """Loss and gradients in float64."""
    lengths = torch.tensor([len(row) for row in batch["rows"]])
    longest = int(lengths.max())
    tokens = torch.tensor([row + [PAD_ID] * (longest - len(row)) for row in batch["rows"]])
    model.zero_grad()
    logits, _ = model(tokens, mask=padding_mask(lengths, longest))
    real = logits[torch.arange(longest) < lengths[:, None]]  # (B, T, V) -> (all words, V)
    loss = F.cross_entropy(real[batch["chosen"]], torch.tensor(batch["targets"]))
    loss.backward()
    return loss.detach(), {
        name: parameter.grad.clone() for name, parameter in model.named_parameters()
    }


def sizes_of(model):
    """What the page needs to know to make such a model."""
    num_heads = model.blocks[0].attention.num_heads
    known = {
        "num_words": len(VOCABULARY),
        "max_length": 32,
        "parameters": models.layout(model.state_dict()),
    }
    return known | {
        "d_model": model.embedding.embedding_dim,
        "num_heads": num_heads,
        "num_layers": len(model.blocks),
    }


GRADIENTS = """([sizes, weights, cases, slow]) => {
    const model = Network.create(sizes, Matmul.open_space(2e6, slow ? Matmul.slow_memory(2e6) : undefined), true);
    for (const [name, numbers] of Object.entries(weights)) model.parameters[name].value.data.set(numbers);
    return JSON.stringify(cases.map(({ rows, chosen, targets }) => {
        const batch = { ...Training.together(rows), chosen, targets };
        const work = Training.gradients(model, batch);
        let result = work.next();
        while (!result.done) result = work.next();
        const gradients = Object.entries(model.parameters).map(([name, { gradient }]) => [name, [...gradient.data]]);
        return { loss: result.value, gradients: Object.fromEntries(gradients), fast: model.space.fast };
    }));
}"""


def flat(model):
    return {name: parameter.flatten().tolist() for name, parameter in model.named_parameters()}


def compare_gradients(page, recipe, count, slow=False):
    """A few batches. slow: without WebAssembly."""
    generator = torch.Generator().manual_seed(1)
    cases = [random_batch(generator) for _ in range(count)]
    model = sharp_model(recipe).model
    answers = json.loads(page.evaluate(GRADIENTS, [sizes_of(model), flat(model), cases, slow]))
    model = model.double()
    for batch, found in zip(cases, answers, strict=True):
        loss, gradients = by_autograd(model, batch)
        assert found["fast"] is not slow and set(found["gradients"]) == set(gradients)
        near(torch.tensor(found["loss"], dtype=torch.float64), loss, share=PAGE)
        ours = {
            name: torch.tensor(flat, dtype=torch.float64)
            for name, flat in found["gradients"].items()
        }
        for name, expected in gradients.items():
            if name.endswith(
                "w_k.bias"
            ):  # it adds the same to all scores of a query: 0, beside that of its weight
                assert (
                    ours[name].abs().max()
                    < PAGE * gradients[name.replace("bias", "weight")].abs().max()
                )
            else:
                near(ours[name].view_as(expected), expected, share=PAGE)


@needs_browser
@pytest.mark.parametrize("slow", [False, True], ids=["WebAssembly", "JavaScript"])
def test_every_gradient_is_that_of_autograd(explorer_page, slow):
    compare_gradients(explorer_page, TRAINED_SMALL, 8, slow)
    compare_gradients(explorer_page, TRAINED_FULL, 2, slow)


@needs_browser
def test_the_comparisons_notice_each_planted_mistake(browser, explorer_models):
    trained = {name: explorer_models[name] for name in ("small", "small causal")}
    data = write_page.as_script_text({"wagers": {"models": small_records(trained)}})
    rng, page = random.Random(7), browser.new_page()
    cases = [case for lever in ("none", "removed") for case in random_cases(trained, 3, rng, lever)]
    for fault in (fault for fault in FAULTS if fault[0].endswith(".js")):
        files = [f"{paths.shown(write_page.FOLDER)}/model/{name}.js" for name in PARTS]
        wrong = {name: (paths.ROOT / name).read_text(encoding="utf-8") for name in files} | {
            fault[0]: replaced(*fault)
        }
        page.goto("about:blank")  # a new world, without the names of the last one
        page.set_content(f'<script type="application/json" id="data">{data}</script>')
        page.add_script_tag(content="\n".join(wrong.values()))
        with pytest.raises(AssertionError):
            compare(page, trained, cases)
            compare_gradients(page, TRAINED_SMALL, 2)
    page.close()


UPDATES = """([sizes, recipe, weights, gradients]) => {
    const model = Network.create(sizes, Matmul.open_space(2e6), true);
    for (const [name, numbers] of Object.entries(weights)) model.parameters[name].value.data.set(numbers);
    const optimizer = Optimizer.create(model);
    gradients.forEach((of_step, step) => {
        for (const [name, numbers] of Object.entries(of_step)) model.parameters[name].gradient.data.set(numbers);
        Optimizer.step(optimizer, recipe, Optimizer.one_cycle(step, recipe.steps, recipe.up));
    });
    return JSON.stringify(Object.fromEntries(
        Object.entries(model.parameters).map(([name, { value }]) => [name, [...value.data]])));
}"""


@needs_browser
def test_steps_are_those_of_muon_and_adamw(explorer_page):
    """Three steps; what is compared is how far each parameter went, not where it is."""
    model = sharp_model(TRAINED_SMALL).model.double()
    recipe = growing.recipe() | {"steps": 8, "decay": 0.3}
    start = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    weights, gradients = flat(model), []
    rates = [recipe[name] for name in ("matrix_rate", "rate", "matrix_decay", "decay")]
    both = optimization.optimizers(model, *rates)
    highest = [each.param_groups[0]["lr"] for each in both]
    generator = torch.Generator().manual_seed(5)
    for step in range(3):
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        gradients.append(
            {
                name: parameter.grad.flatten().tolist()
                for name, parameter in model.named_parameters()
            }
        )
        for each, rate in zip(both, highest, strict=True):
            each.param_groups[0]["lr"] = rate * optimization.one_cycle(step, recipe["steps"])
            each.step()
    found = json.loads(
        explorer_page.evaluate(UPDATES, [sizes_of(model), recipe, weights, gradients])
    )
    for name, parameter in model.named_parameters():
        went = torch.tensor(found[name], dtype=torch.float64).view_as(parameter) - start[name]
        near(went, parameter.detach() - start[name], share=PAGE)


RUN = """([growth, parameters, steps]) => {
    const drain = (work) => { for (;;) { const { done, value } = work.next(); if (done) return value; } };
    const run = Training.start({ ...growth.recipe, parameters }, Training.unpack(growth.train, growth.pad), 0);
    run.held_out = Roles.prepare(Training.unpack(growth.held_out, growth.pad), growth.gold, growth.rules);
    const look = () => JSON.stringify([drain(Roles.heads(run.model, run.held_out, growth.rules)),
        drain(Training.held_out_loss(run)),
        Object.fromEntries(Object.entries(run.model.parameters).map(([name, { value }]) => [name, [...value.data]]))]);
    const start = look();
    while (run.step < steps) drain(Training.step(run));
    const batch = { tokens: new Int32Array(20000).fill(9), sentences: [] };
    const { tokens, chosen, targets } = Training.hide(batch, growth.recipe, run.random);
    return [start, look(), ...[run.losses, [...tokens], chosen, targets].map((list) => JSON.stringify(list))];
}"""


@needs_browser
def test_a_short_training_starts_as_in_pytorch_learns_and_names_its_heads_as_the_python(
    explorer_page, explorer_data
):
    start, end, losses, *hidden = map(
        json.loads, explorer_page.evaluate(RUN, [*map(explorer_data.get, ("grow", "layout")), 200])
    )
    reference = training.new_model(MULTI_HEAD_RECIPE, MultiHeadAttention)
    for name, parameter in reference.named_parameters():
        drawn, theirs = np.array(start[2][name]), parameter.detach().flatten().numpy()
        tolerance = 4 / math.sqrt(len(theirs))
        assert drawn.std() == pytest.approx(theirs.std(), rel=tolerance), (
            name
        )  # why: drawn, as all below
        assert drawn.mean() == pytest.approx(theirs.mean(), abs=2 * tolerance * theirs.std()), (
            name
        )  # why: drawn
    assert np.mean(losses[:3]) == pytest.approx(
        math.log(len(VOCABULARY)), abs=0.6
    )  # why: the mean of three steps, near a guess among all words
    assert np.mean(losses[-10:]) < 2.5
    for heads, loss, weights in (start, end):
        with torch.no_grad():
            for name, parameter in reference.named_parameters():
                parameter.copy_(torch.tensor(weights[name]).view_as(parameter))
        trained = Trained(reference.eval(), MULTI_HEAD_RECIPE)
        for found, expected in zip(
            itertools.chain(*heads), itertools.chain(*models.heads_of(trained)), strict=True
        ):
            assert found == pytest.approx(expected, abs=0.0051)  # why: Python rounds to two digits
        near(
            torch.tensor(loss),
            examples.hidden_losses(trained, *models.questions())[0].mean(),
            share=PAGE,
        )
    assert any(head["role"] for head in itertools.chain(*heads)), "after 200 steps there is a role"
    assert training.held_out_loss(trained) == pytest.approx(
        np.mean(losses[-10:]), abs=0.3
    )  # why: other sentences
    words_are_hidden_as_in_the_python(*map(np.array, hidden))


def words_are_hidden_as_in_the_python(seen, chosen, targets):
    """Of 20,000 times one word: how many are chosen, hidden, kept and swapped for any word."""
    kept = training.KEPT + training.SWAPPED / (
        len(VOCABULARY) - len(SPECIAL)
    )  # a swap may give the same word
    assert (
        (targets == 9).all()
        and len(targets) == len(chosen)
        and (np.delete(seen, chosen) == 9).all()
    )
    assert len(chosen) / len(seen) == pytest.approx(training.CHOSEN, abs=0.02)  # why: drawn
    assert (seen[chosen] == 9).mean() == pytest.approx(kept, abs=0.03)  # why: drawn
    assert (seen[chosen] == MASK_ID).mean() == pytest.approx(
        1 - training.KEPT - training.SWAPPED, abs=0.03
    )  # why: drawn
    assert set(seen.tolist()) == {MASK_ID, *range(len(SPECIAL), len(VOCABULARY))}


NAMED = """([tallies, rules]) => tallies.map((halves) => Roles.head_of(halves, rules))"""
ASKED = 100  # words that each share is counted on


def head_by_chance(rng):
    """How many of ASKED follow each rule, drawn so that heads pass several rules, one, or none."""
    kinds = {"positions": roles.NAMES, "relations": TIES, "others": TIES}
    tallies = {}
    for kind, rules in kinds.items():
        low, high = (60, 100) if kind == "positions" else (0, 100)
        tallies[kind] = [{"asked": ASKED, "right": rng.randint(low, high)} for _ in rules]
    return tallies


def half_of(tallies, base):
    """The same head as the Python has it."""
    shares = {}
    for kind, of_kind in tallies.items():
        shares[kind] = [
            torch.tensor([[each["right"] / each["asked"]]], dtype=torch.float64) for each in of_kind
        ]
    place = dict(zip(roles.NAMES, shares["positions"], strict=True))
    relation = dict(zip(TIES, shares["relations"], strict=True))
    others = dict(zip(TIES, shares["others"], strict=True))
    return roles.Half(roles.Scores(place, relation, others, {}), base)


@needs_browser
def test_of_several_rules_that_a_head_passes_the_page_takes_the_one_that_the_python_takes(
    explorer_page,
):
    rng = random.Random(11)
    untrained = dict.fromkeys((*roles.NAMES, *TIES, *roles.COLUMN_RULES), 0.2)
    bases = [roles.Baselines(dict.fromkeys(TIES, offset), untrained, {}) for offset in (0.35, 0.45)]
    heads = [[head_by_chance(rng), head_by_chance(rng)] for _ in range(400)]
    found = explorer_page.evaluate(NAMED, [heads, [growing.bars_of(base) for base in bases]])
    not_its_best = 0
    for head, said in zip(heads, found, strict=True):
        halves = roles.Halves(*map(half_of, head, bases))
        assert said == pytest.approx(
            models.said_of_head(halves, 0, 0), abs=0.0051
        )  # why: rounded to two digits
        for named in (
            rule for rule in roles.rules_tried(halves, 0, 0) if rule.name == said["role"]
        ):
            rivals = [rule for rule in roles.rules_tried(halves, 0, 0) if rule.kind == named.kind]
            not_its_best += named.naming.margin < max(rule.naming.margin for rule in rivals)
    assert not_its_best > 20, "the other half of the sentences did not agree with the best rule"
    assert {said["role"] for said in found} >= {None, *roles.COLUMN_RULES}


# ---- what the Python chooses and tells the page


@torch.no_grad()
def loss_of(model, words, query, out=None):
    """Loss of the hidden word of one sentence by itself, the columns of W_o of one head set to 0;
    and all weights.
    """
    tokens = torch.tensor([encode(words)])
    tokens[0, query] = MASK_ID
    layer, head = out or (0, 0)
    w_o = model.blocks[layer].attention.w_o.weight
    kept, d_k = w_o.clone(), w_o.size(1) // model.blocks[layer].attention.num_heads
    if out is not None:
        w_o[:, head * d_k : (head + 1) * d_k] = 0
    logits, weights = model(tokens)
    w_o.copy_(kept)
    return F.cross_entropy(logits[:, query], torch.tensor([INDEX[words[query]]])).item(), weights


HEADS = list(itertools.product(range(2), range(4)))


def verb_in(words):
    return next(place for place, word in enumerate(words) if word in VERBS)


def from_text(packed, layout, exact):
    """The model from what the page has of it: base 85, scales and whole numbers; none is far from
    the exact one.
    """
    data = base64.b85decode(packed["numbers"].replace(",", "<"))
    if packed["kind"] == "float16":
        numbers = np.frombuffer(data, "<f2").astype("<f4")
        far = np.abs(numbers) / 2**11 + 2**-25
    else:
        widths = [
            place["shape"][-1]
            for place in layout.values()
            for _ in range(math.prod(place["shape"][:-1]))
        ]
        scales = np.repeat(np.frombuffer(data[: 2 * len(widths)], "<f2").astype("<f4"), widths)
        numbers = scales * np.frombuffer(data[2 * len(widths) :], np.int8)
        far = scales * (0.5 + 1e-5)
    model = copy.deepcopy(exact.model)
    for name, parameter in model.named_parameters():
        place = slice(start := layout[name]["start"], start + math.prod(layout[name]["shape"]))
        assert (np.abs(parameter.detach().flatten().numpy() - numbers[place]) <= far[place]).all()
        parameter.data = torch.from_numpy(numbers[place]).view(layout[name]["shape"])
    assert sum(parameter.numel() for parameter in model.parameters()) == len(numbers)
    return replace(exact, model=model)


def said_of(name, at, scores):
    """Role and shares of a head, as the page has them."""
    others = {relation_name(*key): share for key, share in scores.others.items()}
    own = {roles.NAMES[place]: share for place, share in scores.place.items()}
    own |= {column: scores.others[key] for column, key in roles.COLUMN_RULES.items()}
    own |= {relation_name(*key): share for key, share in scores.relation.items()}
    shares = [
        round(of_heads[name][at].item(), 2) if name in of_heads else None
        for of_heads in (own, others)
    ]
    return dict(
        zip(("role", "own", "others"), (name if name in own else None, *shares), strict=True)
    )


def test_what_the_page_says_of_a_stop_is_true_of_the_numbers_that_it_has(
    explorer_models, checkpoints
):
    trained = training.train(replace(MULTI_HEAD_RECIPE, steps=120), MultiHeadAttention)
    options = cli.parse(cli.parser(""), ["--quick"])
    data = write_page.page_data(trained, trained, options)
    own, again = (run["stops"] for run in data["runs"])
    assert [stop["step"] for stop in own] == [0, 15, 22, 27, 30, 33, 38, 45, 51, 60, 90, 120]
    assert [stop.get("kind") for stop in own] == ["int8"] * 11 + ["float16"]
    assert [stop["step"] for stop in again if "numbers" in stop] == [33, 120], (
        "the other ones have names alone"
    )
    asked = [(s.words, n % len(s.words)) for n, s in enumerate(training.corpus()[1])]
    for stop in (own[0], again[5], again[-1], own[-1]):
        exact = trained.at_stage(stop["step"])
        shipped = from_text(stop, data["layout"], exact)
        losses, before = (
            np.array([loss_of(one.model, *each)[0] for each in asked]) for one in (shipped, exact)
        )
        assert stop["loss"] == pytest.approx(losses.mean(), abs=6e-5)  # why: rounded to four digits
        names, scores = (
            roles.head_names(shipped, MultiHeadAttention),
            roles.scores_of(shipped, roles.halves()[1]),
        )
        expected = [
            [said_of(name, (i, j), scores) for j, name in enumerate(row)]
            for i, row in enumerate(names)
        ]
        assert stop["heads"] == expected
    assert np.abs(np.exp(-losses) - np.exp(-before)).max() < 0.005, (
        "float16 moves no chance by a printed digit"
    )
    assert {name for row in names for name in row} & set(data["role_colors"]), (
        "after 120 steps there is a role"
    )
    assert data["landings"] == examples.landings(shipped, names)
    gaps = [[(*words[:i], word, *words[i + 1 :]) for word in VOCABULARY] for words, i in asked]
    fit = [
        sum(best_reader.sentence_log_probability(words) > -math.inf for words in gap)
        for gap in gaps
    ]
    assert data["floor"] == pytest.approx(
        np.log(fit).mean(), abs=6e-5
    )  # why: all that fit are equally likely


@pytest.mark.parametrize(
    ("name", "relation", "turned"),
    [("subject → verb", "verb-subject", True), ("verb → place", "verb-place", False)],
)
def test_the_page_opens_where_its_head_counts_most(explorer_models, name, relation, turned):
    trained, rises = explorer_models["both sides"], {head: {} for head in HEADS}
    for sentence in training.corpus()[1]:
        query, key = sentence.relations[relation][0][:: -1 if turned else 1]
        if abs(query - key) < 3 or len(sentence.words) > 10:
            continue
        whole, weights = loss_of(trained.model, sentence.words, query)
        for layer, head in HEADS:
            if weights[layer][0, head, query].argmax() == key:
                rise = loss_of(trained.model, sentence.words, query, (layer, head))[0] - whole
                rises[layer, head][sentence.words, query] = rise
    assert max(len(found) for found in rises.values()) > 5
    for at, found in rises.items():
        views = examples.landings(
            trained, [[name if at == (i, j) else None for j in range(4)] for i in range(2)]
        )
        worst = {}
        for (words, query), rise in sorted(found.items(), key=lambda item: item[1]):
            if rise >= examples.LEAST:
                worst[words[verb_in(words)]] = (words, query, *at)
        expected = sorted(worst.values(), key=lambda view: -found[view[:2]])
        assert [
            tuple(view[part] for part in ("words", "hidden", "layer", "head")) for view in views
        ] == expected
    assert examples.landings(trained, [["previous", None, None, None], [None] * 4]) == []


def test_the_hidden_verb_is_the_one_that_loses_most_without_the_head_that_verbs_need_most(
    explorer_models,
):
    trained, found = (
        explorer_models["both sides"],
        examples.hidden_verb(explorer_models["both sides"]),
    )
    sentences = [
        sentence.words
        for sentence in training.corpus()[1]
        if len(sentence.words) <= examples.LONGEST
    ]
    places = [VERBS[verb][1:] for verb in VERBS]
    rivals = [words for words in sentences if places.count(VERBS[words[verb_in(words)]][1:]) > 1]
    whole = np.array([loss_of(trained.model, words, verb_in(words))[0] for words in rivals])
    rises = {
        head: np.array([loss_of(trained.model, words, verb_in(words), head)[0] for words in rivals])
        - whole
        for head in HEADS
    }
    needed = max(HEADS, key=lambda head: rises[head].mean())
    words = rivals[rises[needed].argmax()]
    assert (found["needed"], found["words"], found["hidden"]) == (needed, words, verb_in(words))
    assert found["spare"] == min(found["rises"], key=lambda each: each["rise"])["head"]


@pytest.mark.parametrize("wager", wagers.wagers()[:5], ids=lambda wager: wager["title"])
def test_the_right_answer_holds_every_published_number_and_the_interval_that_is_drawn_is_theirs(
    wager,
):
    """Read from the file itself: each seed's value lies in the band of the right answer, and in no
    other's.
    """
    rows = pd.read_csv(paths.EVIDENCE)
    values = rows[rows["experiment"] == wager["experiment"]].set_index(["number", "seed"])["value"]
    for asked in (wager, wager.get("decides", wager)):
        seeds = values[asked["number"]]
        assert len(seeds) >= 10, "the record must have ten seeds"
        fits = [seeds.between(float(low), float(high)).all() for low, high in asked["bands"]]
        assert np.flatnonzero(fits).tolist() == [wagers.right_choice(wager)]
    recorded = seeds[seeds.index <= 109]
    half = 2.262 * math.sqrt(1.1) * recorded.std()  # of ten seeds: Student's t
    assert wager["span"] == pytest.approx(
        (recorded.mean() - half, recorded.mean() + half), rel=2e-3
    )
    assert len(wager["setup"].split()) <= 25, "one sentence"


def test_the_lessons_have_the_places_that_the_page_links_to(explorer_data):
    linked = [wager["lesson"] for wager in explorer_data["wagers"]["list"]]
    for link in (*linked, explorer_data["rule"]):
        page, anchor = link.split("#")
        (source,) = (source for source in sources() if place(source) == HOME / page)
        text = (paths.ROOT / source).read_text(encoding="utf-8")
        assert f'id="{anchor}"' in rendered(text, source, place(source), Site(paths.ROOT)), link


def test_the_page_is_one_file_the_same_each_time_and_asks_nobody_for_more(explorer_data):
    page = write_page.render(explorer_data)
    assert page == write_page.render(explorer_data)
    assert page.count("Content-Security-Policy") == 1
    assert set(re.findall(r"https?://[^\s\"'<>]*", page)) <= {
        "http://www.w3.org/2000/svg"
    }  # a name, not an address
    files = [file for kind in ("js", "css") for file in write_page.FOLDER.rglob(f"*.{kind}")]
    used = [write_page.FOLDER / name for name in (*write_page.SCRIPTS, *write_page.STYLES)]
    assert sorted(used) == sorted(files)


@needs_browser
def test_planted_markup_stays_text(browser, explorer_data, tmp_path):
    planted, errors = '</script><b id="planted">bold</b><!--<script>', []
    data = json.loads(json.dumps(explorer_data).replace('"garden"', json.dumps(planted)))
    data["model"]["label"] = planted
    path = tmp_path / "planted.html"
    path.write_text(write_page.render(data), encoding="utf-8")
    page = open_watched(browser, path.as_uri(), errors)
    assert page.evaluate('JSON.parse(document.getElementById("data").textContent)') == data
    assert page.locator("#planted").count() == 0 and planted in page.locator("body").inner_text()
    page.close()
    assert errors == []


def test_the_script_writes_the_page_and_nothing_else(checkpoints, tmp_path, capsys):
    write_page.main(["--quick", "--output-dir", str(tmp_path)])
    path = tmp_path / paths.EXPLORER
    assert f"{paths.shown(path)}, {path.stat().st_size / 1e6:.2f} MB" in capsys.readouterr().out
    assert [file.name for file in path.parent.iterdir()] == ["explorer.html"]
