"""The explorer as its readers meet it: addresses, what they do there, and what is on the screen then; for everybody.

explorer_visits.txt has the visits, below the name of each a line for every step: an address, in this page or, after
"open", in one that knows nothing; what is done to an element, by the names that playwright has for it, or a line of
JavaScript to run; and what is asked: see ASKED, some of the first view's state, or the whole screen.
"""

import itertools
import json
import math
import re
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import parse_qsl

import pytest
import torch

from shared import paths
from shared.attention_utils import causal_mask, normalized_entropy
from shared.evidence.report.write_pages import TRY
from shared.tests.helpers import axe_violations, in_torch, needs_browser, open_watched
from shared.toy_language import INDEX, MASK_ID, PAD_ID, START_ID, VOCABULARY, encode

TOY = "words=the+cat+sat+on+the+mat"


def goes_to(page, hash_):
    page.evaluate("(hash) => { history.replaceState(null, '', '#-'); location.hash = hash; }", hash_)
    settles(page)


def opens(page, hash_):
    """As an address that somebody sent: another reader, who has not answered anything."""
    address = page.url.split("#")[0]
    page.goto("about:blank")
    page.goto(f"{address}#{hash_}")


def settles(page, milliseconds=20):
    page.evaluate("(time) => new Promise((done) => setTimeout(done, time))", milliseconds)


def state(page):
    return page.evaluate("Page.state()")


# ---- what is on the screen, from the state alone


def computed(trained, now, asked):
    """What the chosen head does, and the guess for the word that is asked for, by PyTorch."""
    causal = trained.recipe.objective == "next word"
    order = now["order"] or range(len(now["words"]))
    places = {word: place + causal for place, word in enumerate(order)} | {-1: 0}
    tokens = [START_ID] * causal + encode([now["words"][word] for word in order])
    hidden, at = [places[word] for word in now["hidden"]], places.get(asked)
    truths = dict(enumerate(tokens[1:])) if causal else {place: tokens[place] for place in hidden if place == at}
    if not causal:
        tokens = [MASK_ID if place in hidden else token for place, token in enumerate(tokens)]
    levers = {"removed": now["removed"], "hidden": hidden if causal else []}
    levers |= {name: now[name] for name in ("causal", "divisor") if now[name] is not None}
    found = in_torch(trained, tokens, levers)
    shares = (found.logits.double() / (now["temperature"] or 1e-9)).softmax(dim=-1)
    rows, targets = list(truths), list(truths.values())
    return SimpleNamespace(
        words=[VOCABULARY[token] for token in tokens],
        mask=found.mask,
        weights=found.weights[now["layer"], now["head"]],
        entropy=normalized_entropy(found.weights[now["layer"], now["head"]], found.mask).nanmean().item(),
        loss=shares[rows, targets].log().mean().abs().item(),
        chances=None if at is None else shares[at],
        likely=None if at is None else found.logits[at].argsort(descending=True).tolist(),
        truth=truths.get(at),
    )


SCREEN = """() => {
    const all = (where, then) => [...document.querySelectorAll(where)].map(then);
    const cells = (row) => [...row.querySelectorAll("td")].map((cell) =>
        cell.classList.contains("hatched") ? null : Number(cell.ariaLabel));
    return { labels: all("#large tbody th", (head) => head.textContent), map: all("#large tbody tr", cells),
        guesses: all("#guesses .guess", (row) =>
            [row.querySelector(".word").firstChild.textContent, row.querySelector(".number").textContent]),
        measures: all("#measures tr:not(.role-row) td", (cell) => cell.textContent),
        levers: all(".effect", (one) => [one.dataset.lever, one.textContent]).filter(([, text]) => text) };
}"""


def says(text, before, after):
    """Whether "0.20 → 0.31" has these two numbers, or "0.20" twice the same."""
    shown = [float(number.replace("∞", "inf").replace("–", "nan")) for number in text.split(" → ")]
    pairs = ((shown[0], before), (shown[-1], after))
    return all(a == b or abs(a - b) < 0.0051 or (math.isnan(a) and math.isnan(b)) for a, b in pairs)


def shows_what_is_computed(page, models):
    now, seen = state(page), page.evaluate(SCREEN)
    trained = models[now["model"]]
    causal = trained.recipe.objective == "next word"
    asked = now["query"] if causal or now["query"] in now["hidden"] else (now["hidden"] or [None])[0]
    usual = {"causal": None, "divisor": None, "removed": [], "order": None, "temperature": 1}
    usual |= {"hidden": []} if causal else {}
    before, after = computed(trained, now | usual, asked), computed(trained, now, asked)
    assert seen["labels"] == [f"{place} {word}" for place, word in enumerate(after.words)]
    shown = torch.tensor([[math.nan if cell is None else cell for cell in row] for row in seen["map"]])
    assert torch.equal(shown.isnan(), ~after.mask), "what may not be seen is hatched"
    assert (shown.nan_to_num(0) - after.weights).abs().max() < 0.0051
    assert says(seen["measures"][0], before.loss, after.loss)
    assert says(seen["measures"][1], before.entropy, after.entropy)
    if asked is None:
        assert seen["guesses"] == []
        return
    likely = [VOCABULARY[token] for token in after.likely if token not in (MASK_ID, PAD_ID, START_ID)][:5]
    truth = VOCABULARY[after.truth] if after.truth is not None else likely[0]
    guesses = dict(seen["guesses"])
    assert list(guesses) == (likely if truth in likely else [*likely[:4], truth])
    for word, text in guesses.items():
        assert says(text, before.chances[INDEX[word]].item(), after.chances[INDEX[word]].item())
    pulled = {name for name, value in usual.items() if now[name] != value}
    if after.truth is not None and after.truth == before.truth:
        assert {name for name, _ in seen["levers"]} == pulled
        if len(pulled) == 1:
            assert seen["levers"][0][1] == f"by itself: “{truth}” {guesses[truth]}"


# ---- visits


def read_visits():
    """Name -> its steps."""
    visits, name = {}, ""
    for line in Path(__file__).with_name("explorer_visits.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith(" "):
            visits[name].append(line.strip())
        elif line:
            visits[line], name = [], line
    return visits


VISITS = read_visits()


ASKED = {
    "text": "([where, what]) => document.querySelector(where)?.innerText.includes(what)",
    "exactly": "([where, what]) => texts(where).join(', ') === what",
    "value": "([where, what]) => document.querySelector(where).value === what",
    "count": "([where, what]) => document.querySelectorAll(where).length === Number(what)",
    "address": "([where]) => location.hash.endsWith(where)",
}
PROBES = """
globalThis.texts = (where) => Array.from(document.querySelectorAll(where), (one) => one.innerText);
globalThis.steps = () => parseInt(/step (\\d+) of/.exec(texts("#grow-status")[0])?.[1]);
globalThis.pixels = () => Array.from(document.querySelectorAll("#grow-heads canvas"), (map) => map.toDataURL()).join();
"""


def step(page, line, models):
    """One line of a visit: something is done, or something is asked."""
    done, _, rest = line.partition(" ")
    where, _, what = (part.strip() for part in rest.partition("|"))
    if line == "screen":
        shows_what_is_computed(page, models)
    elif line.startswith("#"):
        goes_to(page, line[1:])
    elif done == "open":
        opens(page, rest[1:])
    elif done == "state":
        wanted, found = json.loads(rest), state(page)
        assert {name: found[name] for name in wanted} == wanted
    elif done == "run":
        page.evaluate(rest)
    elif done == "wait":
        page.wait_for_function(f"() => {rest}", timeout=90_000)  # 4 s on an idle core
    elif done in ASKED:
        page.wait_for_function(ASKED[done], arg=[where, what])
    elif where:
        getattr(page.locator(where).first, done)(*filter(None, [what]))
    else:
        getattr(page, done)()
    settles(page)


@pytest.fixture(scope="module")
def page(explorer_page):
    explorer_page.set_default_timeout(10_000)
    explorer_page.add_init_script(PROBES)
    explorer_page.reload()
    return explorer_page


@needs_browser
@pytest.mark.parametrize("name", VISITS)
def test_a_visit_goes_as_it_should(page, explorer_models, explorer_data, name):
    right = explorer_data["wagers"]["list"][0]["right"]
    names = {"TOY": TOY, "RIGHT": "abc"[right], "LOST": "bca"[right], "WRONG": str((right + 1) % 3)}
    for line in VISITS[name]:
        for short, long in names.items():
            line = line.replace(short, long)
        try:
            step(page, line, explorer_models)
        except Exception as error:
            error.add_note(f"at the step: {line}")
            raise
    if any(line == "screen" for line in VISITS[name]):  # what is seen can be linked
        before = state(page)
        settles(page, 320)  # the address waits for who types
        goes_to(page, page.evaluate("location.hash.slice(1)"))
        assert state(page) == before


BROKEN = """model=none words=the+dgo head=9.9 head=2.0 query=99 mask=maybe divisor=-1 divisor=x without=7.7_x hide=50_a
    order=0_0 order=0_0_2_3_4_5_6_7_8_9 temperature=x temperature=4 from=-3 seed=1e9 written=-1 %E0%A4%A tour=9
    view=nowhere view=constructor view=__proto__ mask=toString"""


@needs_browser
@pytest.mark.parametrize("hash_", BROKEN.split())
def test_a_broken_address_opens_the_first_view(page, hash_):
    goes_to(page, "")
    first = state(page)
    goes_to(page, hash_)
    assert state(page) == first and page.is_visible("#look") and page.is_hidden("#tour")


LINKED = re.compile(r"\]\([./]*visualizations/explorer\.html#([^)]+)\)")
LESSONS = [page.read_text(encoding="utf-8") for page in paths.ROOT.glob("phase*/**/README.md")]
LINKS = {*itertools.chain(*map(LINKED.findall, LESSONS)), *(view for view, _ in TRY.values())}


@needs_browser
@pytest.mark.parametrize("hash_", sorted(LINKS))
def test_the_views_that_other_pages_link_to_are_views_of_the_page(page, hash_):
    goes_to(page, hash_)
    wanted = dict(parse_qsl(hash_))
    if wanted.get("view", "look") == "look":
        page.click("#words button >> nth=0")  # whatever the reader does, the address holds the rest
        held = {"model": "both sides", "view": "look"} | dict(parse_qsl(page.url.split("#")[1]))
        assert all(held[name] == value for name, value in wanted.items() if name != "query")
    else:
        assert page.is_visible(f"#{wanted['view']}")
        assert page.inner_text("#break-name").startswith(wanted.get("wager", ""))


@needs_browser
def test_the_five_steps_and_the_lines_have_the_numbers_of_the_maps(page, explorer_models):
    goes_to(page, f"{TOY}&head=1.3&query=3")
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    weights = computed(explorer_models["both sides"], state(page), None).weights
    shown = page.locator("table.steps td.weight").all_inner_texts()
    assert list(map(float, shown)) == pytest.approx(weights[3].tolist(), abs=6e-4)  # why: three digits are shown
    rows = page.locator("table.steps tr td:last-child").all_inner_texts()
    *parts, total = (float(row.split()[0].replace("−", "-")) for row in rows)
    assert len(parts) == 6 and sum(parts) == pytest.approx(total, abs=0.04)  # why: six numbers of two digits
    read = "(side) => [...document.querySelectorAll(`.column.${side} .number`)].map((cell) => Number(cell.textContent))"
    assert page.evaluate(read, "key") == pytest.approx(weights[3].tolist(), abs=0.0051)  # why: two digits
    page.locator(".column.key button").nth(4).click()
    page.mouse.move(0, 0)  # clicked, or tapped: it stays
    assert page.evaluate(read, "query") == pytest.approx(weights[:, 4].tolist(), abs=0.0051)  # why: two digits


def written(page):
    return page.eval_on_selector_all(".written > span", "all => all.map((word) => word.firstChild.textContent)")


def drawn(page, trained, count, seed, temperature):
    """What the model writes after two words, with the random numbers of the page."""
    tokens = [START_ID, INDEX["the"], INDEX["cat"]]
    ask = "([seed, count]) => { const next = Training.random_numbers(seed); return Array.from({length: count}, next); }"
    for number in page.evaluate(ask, [seed, count]):
        logits = in_torch(trained, tokens, {}).logits[-1].double()
        logits[[MASK_ID, PAD_ID, START_ID]] = -math.inf
        shares = (logits / temperature).softmax(dim=-1) if temperature else logits == logits.max()
        if tokens[-1] != INDEX["<end>"]:
            tokens.append(int((shares.cumsum(dim=0) > number).nonzero()[0]))
    return [VOCABULARY[token] for token in tokens]


@needs_browser
@pytest.mark.parametrize(("temperature", "count"), [(0.8, 5), (3, 30), (0, 4)])
def test_writing_draws_from_the_forward_pass_and_the_cache_grows_by_one(page, explorer_models, temperature, count):
    causal = explorer_models["causal"]
    goes_to(page, f"model=causal&{TOY}&seed=5&temperature={temperature}&written={count - 1}")
    page.click("#one-more")
    expected = drawn(page, causal, count, 5, temperature)[:33]
    assert written(page) == expected
    kept = len(expected)
    assert page.locator(".cache tbody tr").first.locator("td.kept").count() == kept
    ended = kept == 33 or expected[-1] == "<end>"
    assert page.get_attribute("#one-more", "aria-disabled") == str(ended).lower()
    before = in_torch(causal, encode(expected[:-1]), {}).logits[-1].softmax(dim=-1)[INDEX[expected[-1]]].item()
    assert says(page.locator(".written small").last.inner_text(), before, before), "without the temperature"
    page.click("#start-again")
    assert written(page) == expected[:3]
    page.click("#new-seed")
    page.click("#to-end")
    assert page.input_value("#seed") == "6" and written(page) == drawn(page, causal, 32, 6, temperature)[:33]
    goes_to(page, f"{TOY}&temperature={temperature}&seed=6&written=32")
    assert (written(page)[:3] == expected[:3]) and page.is_visible("#cache-note"), "a model of next words writes"


# ---- wagers


@needs_browser
@pytest.mark.parametrize("right", [True, False])
def test_each_wager_can_be_won_and_lost_by_keyboard(page, explorer_data, right):
    opens(page, "view=break&wager=1")
    for wager in explorer_data["wagers"]["list"]:
        assert page.inner_text("#break-verdict") == "" and page.is_hidden("#break-lesson")
        chosen = (wager["right"] + 1 - right) % len(wager["choices"])
        page.press(f"#break-choices button >> nth={chosen}", "Enter")
        said = page.inner_text("#break-verdict")
        assert said.startswith("Right." if right else "No.") and wager["answer"] in said and wager["why"] in said
        marks = {chosen: "lost", wager["right"]: "won"}
        classes = page.eval_on_selector_all("#break-choices button", "all => all.map((b) => b.className)")
        assert classes == [marks.get(i, "") for i in range(len(classes))]
        assert page.locator("#break-choices button:focus").count() == 1, "the focus stays"
        page.click(f"#break-choices button >> nth={(chosen + 1) % len(classes)}", force=True)
        assert page.inner_text("#break-verdict") == said, "only the first answer counts"
        page.press("#break-next", "Enter")
        assert page.locator("h2:focus").count() == 1, "the next thing to be read"
    assert page.inner_text("#break-score h2") == f"{6 * right} of 6"


@needs_browser
def test_the_bugs_show_in_what_a_changed_word_moves(page, explorer_models, explorer_data):
    """The right program moves exactly what PyTorch moves, the mask the wrong way round all that must stay."""
    wager = explorer_data["wagers"]["list"][5]
    example = wager["example"]
    assert example["ways"][wager["right"]] is None, "the way that leaks nothing"
    opens(page, "view=break&wager=6")
    for word in (0, 3, 6):
        page.click(f"#break-live .bugs button >> nth={word}")
        cells = page.eval_on_selector_all("#break-live .move", "all => all.map((cell) => cell.textContent)")
        shown = {way: cells[number::3] for number, way in enumerate(example["ways"])}
        rows = [[START_ID, *encode(example["words"])] for _ in range(2)]
        rows[1][word + 1] = INDEX[example["others"][word]]
        with torch.no_grad():
            logits, _ = explorer_models["causal"].model(torch.tensor(rows), mask=causal_mask(8))
        before, after = logits.softmax(dim=-1)
        moves = ((before - after).abs().sum(dim=-1) / 2).tolist()
        assert shown[None][: word + 1] == [""] * (word + 1) and all(shown["mask"][: word + 1])
        for text, move in zip(shown[None][word + 1 :], moves[word + 1 :], strict=True):
            assert abs(float(text.replace("<0.01", "0.0025")) - move) < 0.0051
        assert "" in shown["view"][word + 1 :] or any(shown["view"][: word + 1]) or word == 6


# ---- a head grows


@needs_browser
def test_without_a_worker_it_trains_beside_the_page(browser, explorer_address):
    page = browser.new_page()
    page.add_init_script("delete globalThis.Worker; delete globalThis.WebAssembly")
    page.goto(f"{explorer_address}#view=grow&step=10")
    page.locator("#grow-status", has_text="step 10 ").wait_for()
    page.locator("#grow-train", has_text="go on").wait_for()
    assert "lacks WebAssembly" in page.inner_text("#grow-status")
    page.close()


# ---- for everybody

WALK = {
    "look": ["tour=4", "model=causal&words=" + "+".join(["these"] * 20) + "&without=0.1&hide=1&written=8"],
    "break": [f"view=break&wager={number}&answers=bbabba" for number in ("end", 6, 5, 4, 3, 2, 1)],
    "grow": ["view=grow&step=10&without=0.0-5"],
}


@needs_browser
@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
@pytest.mark.parametrize("view", WALK)
def test_everybody_can_use_every_view(browser, explorer_address, view, scheme, width):
    errors, context = [], {"color_scheme": scheme, "viewport": {"width": width, "height": 844}}
    page = open_watched(browser, f"{explorer_address}#{WALK[view][0]}", errors, **context)
    for hash_ in WALK[view]:
        goes_to(page, hash_)
        page.evaluate(
            "(view) => document.querySelectorAll(`#${view} details`).forEach((one) => { one.open = true; })", view
        )
        assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{hash_} is cut off"
    if view == "grow":
        page.locator("#grow-train", has_text="go on").wait_for()
    if view == "look":
        page.fill("#sentence", "the dgo")
    assert axe_violations(page) == []
    page.close()
    assert errors == []
