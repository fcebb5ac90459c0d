"""The explorer as its readers meet it: addresses, what they do there, and what the screen shows.

explorer_visits.txt has the visits, below the name of each a line for every step: an address, in
this page or, after "open", in one that knows nothing; what is done to an element, by the names that
playwright has for it, or a line of JavaScript to run; and what is asked: see ASKED, some of the
first view's state, or the whole screen.
"""

import copy
import functools
import itertools
import json
import re
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import parse_qsl, urlsplit

import pytest
import torch

from phase3_visualization.explorer import write_page
from phase3_visualization.explorer.models import as_packed
from shared import paths
from shared.lab.report import TRY
from shared.tests.helpers import as_if_trained, axe_violations, in_torch, open_watched
from shared.toy_language import INDEX, MASK_ID, PAD_ID, START_ID, VOCABULARY, encode

TOY = "words=the+cat+sat+on+the+mat"
HEADS = [f"{layer}.{head}" for layer in range(2) for head in range(4)]
NO_WORDS = torch.tensor([MASK_ID, PAD_ID, START_ID])
TWO_DIGITS = 0.0051  # and so is a share that is written as a whole number of percent
ADDRESS_WAITS = 300  # milliseconds, for who types: LATER in page.js
BREAK_WAITS = 150  # milliseconds: PAUSE in look.js

GO = """(hash) => new Promise((done) => {
    addEventListener("hashchange", () => setTimeout(done), { once: true });
    history.replaceState(null, "", "#-");
    location.hash = hash;
})"""


def goes_to(page, hash_):
    page.evaluate(GO, hash_)


def opens(page, hash_):
    """As an address that somebody sent: another reader, who has not answered anything."""
    address = page.url.split("#")[0]
    page.goto("about:blank")
    page.goto(f"{address}#{hash_}")


def settles(page, milliseconds=0):
    """A timer of the page itself: those that were set before, and wait no longer, are done then."""
    page.evaluate("(time) => new Promise((done) => setTimeout(done, time))", milliseconds)


def state(page):
    return page.evaluate("Page.state()")


# ---- what is on the screen, from the state alone


def model_at(models, now):
    """The model at the stop that is looked at, with the numbers that the page has."""
    run = as_if_trained(models["both sides"])
    kind = "float16" if now["step"] == run.recipe.steps else "int8"
    return as_packed(run.at_stage(now["step"]), kind)


def asked_in(now):
    """The hidden word that the guess is for; None if none is."""
    if now["query"] in now["hidden"]:
        return now["query"]
    return now["hidden"][0] if now["hidden"] else None


def computed(trained, now, **changed):
    """What the chosen head does, and the guess for the word that is asked for, by PyTorch."""
    now = now | changed
    tokens = encode(now["words"])
    for place in now["hidden"]:
        tokens[place] = MASK_ID
    levers = {name: now[name] for name in ("causal", "removed", "divisor") if now[name] is not None}
    found, asked = in_torch(trained, tokens, levers), asked_in(now)
    screen = SimpleNamespace(mask=found.mask, weights=found.weights[now["layer"], now["head"]])
    screen.words = [VOCABULARY[token] for token in tokens]
    if asked is not None:
        screen.chances = found.logits[asked].softmax(dim=-1)
        screen.chance = screen.chances[INDEX[now["words"][asked]]].item()
    return screen


SCREEN = """() => {
    const all = (where, then) => [...document.querySelectorAll(where)].map(then);
    const cells = (row) => [...row.querySelectorAll("td")].map((cell) =>
        cell.classList.contains("hatched") ? null : parseInt(cell.ariaLabel) / 100);
    const text = (where) => all(where, (one) => one.textContent);
    return { labels: text("#large tbody th"), map: all("#large tbody tr", cells),
        costs: text(".cost"),
        row: text("#words .weight"), guesses: all("#guesses .line", (row) =>
            [row.querySelector(".name").firstChild.textContent,
             row.querySelector(".number").textContent]),
        levers: all(".effect", (one) => [one.dataset.lever, one.textContent])
            .filter(([, text]) => text) };
}"""


def numbers(texts):
    """What is written; nothing and "<0.01" are numbers below the least that is written."""
    return torch.tensor([float(text.replace("<0.01", "0.0025") or 0) for text in texts])


def shares(texts):
    """What is written in percent."""
    return torch.tensor([float(text.removesuffix("%").strip()) / 100 for text in texts])


def close(found, expected, apart=TWO_DIGITS):
    assert (found - expected).abs().max() < apart


def says(text, before, after):
    """The text is "20 → 31 %" with these two shares, or "20 %" if both read alike."""
    shown = shares(text.removesuffix(", the same").split(" → "))
    close(shown[[0, -1]], torch.tensor([before, after]))


def shows_what_is_computed(page, models):
    now, seen = state(page), page.evaluate(SCREEN)
    trained, usual = model_at(models, now), {"causal": False, "divisor": None, "removed": []}
    before, after = computed(trained, now, **usual), computed(trained, now)
    names = ["____" if word == "<mask>" else word for word in after.words]
    assert seen["labels"] == names
    for row, visible, weights in zip(seen["map"], after.mask, after.weights, strict=True):
        hatched = [cell is None for cell in row]
        assert hatched == (~visible).tolist(), "what may not be seen is hatched"
        close(torch.tensor([cell or 0 for cell in row]), weights)
    close(shares(seen["row"]), after.weights[now["query"]])  # the arcs
    asked = asked_in(now)
    if asked is None:
        assert seen["guesses"] == [] and set(seen["costs"]) == {""}
        return
    likely = after.chances.index_fill(0, NO_WORDS, 0).topk(5).indices.tolist()
    expected, truth = [VOCABULARY[i] for i in likely], now["words"][asked]
    if truth not in expected:
        expected[-1] = truth
    guesses = dict(seen["guesses"])
    assert set(guesses) == set(expected)
    for word, text in guesses.items():
        says(text, before.chances[INDEX[word]], after.chances[INDEX[word]])
    for name, text in zip(HEADS, seen["costs"], strict=True):
        removed = sorted({*now["removed"]} ^ {name})  # without it, or with it again
        says(text, after.chance, computed(trained, now, removed=removed).chance)
    pulled = {name for name, value in usual.items() if now[name] != value}
    effects = dict(seen["levers"])
    assert set(effects) == pulled
    if len(pulled) == 1:
        assert [*effects.values()] == [f"by itself: “{truth}” {guesses[truth]}"]


# ---- visits


def read_visits():
    """Name -> its steps."""
    visits, name = {}, ""
    path = Path(__file__).with_name("explorer_visits.txt")
    for line in filter(None, path.read_text(encoding="utf-8").splitlines()):
        if line.startswith(" "):
            visits[name].append(line.strip().replace("TOY", TOY))
        else:
            name = line
            visits[name] = []
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
"""
STATE = """(wanted) => Object.entries(wanted).every(([name, value]) =>
    JSON.stringify(Page.state()[name]) === JSON.stringify(value))"""


def step(page, line, models):
    """One line of a visit: something is done, or something is asked."""
    done, _, rest = line.partition(" ")
    where, _, what = rest.partition("|")
    where, what = where.strip(), what.strip()
    if line == "screen":
        shows_what_is_computed(page, models)
    elif line.startswith("#"):
        goes_to(page, line[1:])
    elif done == "open":
        opens(page, rest[1:])
    elif done == "state":
        page.wait_for_function(STATE, arg=json.loads(rest))
    elif done == "run":
        page.evaluate(rest)
    elif done == "wait":
        page.wait_for_function(f"() => {rest}")
    elif done in ASKED:
        page.wait_for_function(ASKED[done], arg=[where, what])
    else:
        element = page.locator(where).first if where else page
        getattr(element, done)(*filter(None, [what]))
    settles(page)


@pytest.fixture(scope="module")
def page(explorer_page):
    explorer_page.set_default_timeout(30_000)
    explorer_page.add_init_script(PROBES)
    explorer_page.reload()
    return explorer_page


@pytest.mark.parametrize("name", VISITS)
def test_a_visit_goes_as_it_should(page, explorer_models, name):
    for line in VISITS[name]:
        try:
            step(page, line, explorer_models)
        except Exception as error:
            error.add_note(f"at the step: {line}, in the state {state(page)}")
            raise
    if "screen" in VISITS[name]:  # what is seen can be linked
        before = state(page)
        settles(page, ADDRESS_WAITS)
        goes_to(page, page.evaluate("location.hash.slice(1)"))
        assert state(page) == before


BROKEN = """model=none words=the+dgo head=9.9 head=2.0 head=toString query=99 query=-1
    mask=maybe mask=toString mask=constructor mask=__proto__ divisor=-1 divisor=x
    divisor=constructor without=7.7_x without=constructor_0.9 hide=50_a hide=__proto__ order=0_0
    temperature=4 from=-3 seed=1e9 written=-1 %E0%A4%A tour=9 story=0 story=8
    story=constructor step=-1 step=99999 step=x step=toString run=2 run=constructor run=g run=gx
    run=g9999999 run=7
    run=__proto__ view=nowhere view=constructor view=__proto__ view=toString view=hasOwnProperty"""


@pytest.mark.parametrize("hash_", BROKEN.split())
def test_a_broken_address_opens_the_first_view(page, hash_):
    goes_to(page, "query=99")
    first = state(page)
    goes_to(page, hash_)
    assert state(page) == first and page.is_visible("#look")


LINKED = re.compile(r"\]\([./]*visualizations/explorer\.html#([^)]+)\)")
LINKS = {view for view, _ in TRY.values()}
for lesson in paths.ROOT.glob("phase*/**/README.md"):
    LINKS.update(LINKED.findall(lesson.read_text(encoding="utf-8")))


@pytest.mark.parametrize("hash_", sorted(LINKS))
def test_the_views_that_other_pages_link_to_are_views_of_the_page(page, hash_):
    goes_to(page, hash_)
    wanted = dict(parse_qsl(hash_))
    if "view" in wanted:
        assert page.is_visible(f"#{wanted['view']}")
        assert page.inner_text("#break-name").startswith(wanted.get("wager", ""))
    else:
        if not wanted or "story" in wanted:
            return  # a step has its own controls
        page.click("#words button >> nth=0")  # whatever the reader does, the address holds the rest
        settles(page, ADDRESS_WAITS)
        held = dict(parse_qsl(page.url.split("#")[1]))
        assert wanted | {"query": "0"} == {name: held[name] for name in {*wanted, "query"}}


def breaking_sets(trained, now):
    """The smallest sets of heads without which the best guess is another one, of at most three."""

    def best(removed):
        chances = computed(trained, now, removed=list(removed)).chances
        return chances.index_fill(0, NO_WORDS, 0).argmax()

    for size in (1, 2, 3):
        found = [each for each in itertools.combinations(HEADS, size) if best(each) != best(())]
        if found:
            return found
    return []


@pytest.mark.parametrize(
    "words", ["the cat sat on the mat", "a dog ran", "this farmer slept on a big bed"]
)
def test_the_main_button_takes_the_smallest_set_of_heads_that_changes_the_guess(
    page, explorer_models, words
):
    goes_to(page, f"words={words.replace(' ', '+')}&hide=1&head=0.0")
    settles(page, BREAK_WAITS)
    now = state(page)
    trained = model_at(explorer_models, now)
    smallest = breaking_sets(trained, now)
    page.click("#knock")
    taken = tuple(state(page)["removed"])
    if not smallest:
        assert "No three heads" in page.inner_text("#breaks")
    elif ("0.0",) in smallest:
        assert taken == ("0.0",), "the head that is looked at, if it does"
    else:
        left = {each: computed(trained, now, removed=list(each)).chance for each in smallest}
        assert left[taken] <= min(left.values()) + 1e-6


def test_an_opened_arc_has_the_numbers_of_the_model(page, explorer_models):
    goes_to(page, f"story=3&{TOY}&head=1.3&query=3&hide=2")
    page.click("summary >> text=All the numbers")
    weights = computed(model_at(explorer_models, state(page)), state(page)).weights
    shown = page.locator("table.steps td.weight").all_inner_texts()
    close(shares(shown), weights[3], 6e-4)  # a tenth of a percent
    lines = page.locator(".keys .line:not(.headings)")
    close(shares(lines.locator(".number").all_inner_texts()), weights[3])
    sums = page.locator("table.steps tr td:last-child").all_inner_texts()
    *parts, whole = numbers([text.split()[0].replace("−", "-") for text in sums])
    assert len(parts) == 6
    close(sum(parts), whole, 0.04)  # numbers of two digits


@torch.no_grad()
def test_the_walk_through_the_block_has_the_numbers_of_the_model(page, explorer_models):
    goes_to(page, f"story=3&{TOY}&hide=2&query=2")
    page.click("summary >> text=And then?")
    now = state(page)
    model, tokens = model_at(explorer_models, now).model, torch.tensor([encode(now["words"])])
    tokens[0, 2] = MASK_ID
    x = model.embed(tokens)
    streams = [x]
    for block in model.blocks:
        x = x + block.attention(block.attention_norm(x))[0]
        streams.append(x)
        x = x + block.feed_forward(block.feed_forward_norm(x))
        streams.append(x)
    at_hidden = torch.cat(streams)[:, 2]  # (parts, T, d_model) -> (parts, d_model)
    logits = model.output_norm(at_hidden) @ model.embedding.weight.T + model.output_bias
    losses = -logits.log_softmax(dim=-1)[:, INDEX["sat"]]
    close(numbers(page.locator("#more details .line .number").all_inner_texts()), losses)


def on_stage(page):
    """Which step of the story it is, which stop of the training, and what is said of that."""
    return page.evaluate("""() => [document.querySelector("#where").textContent[0],
        Number(document.querySelector("#step").value),
        document.querySelector("#step-note").textContent.split(":")[0]]""")


@pytest.mark.parametrize("motion", ["no-preference", "reduce"])
def test_the_story_goes_by_keyboard_alone_and_is_scored(browser, explorer_address, motion):
    errors, context = [], {"reduced_motion": motion, "viewport": {"width": 1280, "height": 800}}
    page = open_watched(browser, explorer_address, errors, **context)

    def count(where, **more):
        return page.locator(where, **more).count()

    def presses(where, key="Enter"):
        page.press(where, key)

    assert count("#guesses .line") == 0 and "teachers" not in page.inner_text("#words")
    presses("body", "ArrowRight")
    presses("#next")
    assert on_stage(page)[0] == "1", "first the bet"
    choices = page.locator("#more .choices button:not(.link)").all_inner_texts()
    assert len(choices) == 4 and state(page)["words"][state(page)["hidden"][0]] in choices
    presses("#more .choices button >> nth=0")
    assert count("#more .verdict") == 1 and count("#title:focus") == 1
    assert count("#guesses .name", has_text="you") == 1
    presses("body", "ArrowRight")
    assert on_stage(page) == ["2", 11, "after 40 steps"] and count("#title:focus") == 1
    presses("#more .choices button >> nth=0")
    assert len(state(page)["removed"]) == 1 and count("#arcs.out") == 1
    presses("#more button >> text=put it back")
    assert state(page)["removed"] == []
    presses("#next")
    assert on_stage(page) == ["3", 11, "after 40 steps"]
    assert (count("#arcs circle") == 0) == (motion == "reduce"), "values arrive, or nothing moves"
    presses("#next")
    assert on_stage(page) == ["4", 0, "before training"]
    presses("#step", "ArrowRight")
    stage, number, note = on_stage(page)
    assert stage == "4" and number == 1 and note != "before training"
    presses("#next")
    presses("#heads .map[aria-pressed=true]", "ArrowRight")
    assert on_stage(page)[0] == "5", "there the arrow chooses another map"
    presses("#next")
    presses("#more .choices button >> nth=0")
    assert state(page)["run"] == "1"
    presses("#next")
    assert state(page)["run"] == "0", "the story ends with the model that it began with"
    won = page.evaluate("parseInt(document.querySelector('#title').textContent)")
    assert f"{won} of 3 bets won." in page.inner_text("#title") and 0 <= won <= 3
    assert count("#more a >> text=a sentence of your own") == 1
    presses("#back")
    assert state(page)["run"] == "1", "what the title speaks of is on the stage"
    presses("body", "ArrowLeft")
    assert on_stage(page)[0] == "5"
    page.close()
    assert errors == []


def test_the_story_says_of_each_stop_what_its_numbers_say(page, explorer_models):
    goes_to(page, "story=4")
    now = state(page)

    def looks_most(step):
        screen = computed(model_at(explorer_models, now | {"step": step}), now)
        return int(screen.weights[now["query"]].argmax())

    trained_step = explorer_models["both sides"].recipe.steps
    steps = {now["step"]}
    for place in range(1, 11):
        page.fill("#step", str(place))
        steps.add(state(page)["step"])
        said = page.inner_text("#says")
        most = looks_most(state(page)["step"])
        if most == looks_most(trained_step):
            assert "Now the line goes to" in said
        else:
            name = "____" if most in now["hidden"] else now["words"][most]
            assert f"here it looks most at “{name}”" in said
    assert len(steps) > 5


SPOKEN_OF = {  # where the story stands, after which press, and what it speaks of then
    "story=1": ["#words", "#more .choices button >> nth=3", "#next"],
    "story=1 bet": ["#words", ".verdict", "#guesses .line >> nth=4", "#next"],
    "story=2": ["#words", "#more .choices button >> nth=1", "#next"],
    "story=2 bet": ["#words", "#says", "#guesses .line >> nth=4", "#next"],
    "story=3": ["#words", "#says", ".keys .line >> nth=-1", "#next"],
    "story=4": ["#arcs", "#says", "#guesses .line >> nth=4", "#step", "#step-note", "#next"],
    "story=5": ["#words", "#heads .map >> nth=7", "#large-note", "#large-fold summary", "#next"],
    "story=6": ["#words", "#more .choices button >> nth=1", "#heads .map >> nth=7", "#next"],
    "story=6 bet": ["#words", "#says", "#step", "#heads .map >> nth=7", "#next"],
    "story=7": ["#words", "#says", "#more a >> nth=1", "#back"],
    "view=own": ["#words", "#sentence", "#hide"],
}
IN_SIGHT = """(one) => {
    const { top, bottom, left, right } = one.getBoundingClientRect();
    const nav = document.querySelector("#steps");
    const isFree = one.closest("#steps") || !nav.offsetParent;
    const end = isFree ? innerHeight : nav.getBoundingClientRect().top;
    return top >= 0 && bottom <= end + 1 && left >= 0 && right <= innerWidth && bottom > top;
}"""


@pytest.mark.parametrize(("width", "height"), [(1440, 900), (1024, 768), (390, 844)])
def test_all_that_a_step_speaks_of_is_in_sight(browser, explorer_address, width, height):
    page = browser.new_page(viewport={"width": width, "height": height})
    page.goto(explorer_address)
    # A bet is made once, so what is asked before it comes first.
    for place, shown in sorted(SPOKEN_OF.items(), key=lambda row: row[0].endswith("bet")):
        hash_, _, bet = place.partition(" ")
        goes_to(page, hash_)
        if bet:
            page.click("#more .choices button >> nth=0")
        settles(page, 50)
        for where in shown:
            assert page.locator(where).first.evaluate(IN_SIGHT), f"{place}: {where} is out of sight"
    for wager in range(1, 7):
        goes_to(page, f"view=break&wager={wager}&answers=bbabba")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, wager
    page.close()


@pytest.mark.parametrize(("width", "height"), [(1440, 900), (1024, 768), (390, 844)])
def test_the_slider_of_time_stays_under_the_hand(browser, explorer_address, width, height):
    page = browser.new_page(viewport={"width": width, "height": height})
    page.goto(f"{explorer_address}#story=4")
    places = set()
    for _ in range(12):
        places.add(page.locator("#step").bounding_box()["y"])
        page.press("#step", "ArrowRight")
    assert len(places) == 1
    page.close()


CONTROLS = "a[href], button, input, select, summary"
WITH_DIGIT = """() => {
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    const found = [];
    while (walker.nextNode()) {
        const { parentElement, textContent } = walker.currentNode;
        const isSeen = parentElement.offsetParent && parentElement.localName !== "script";
        if (isSeen && /[0-9]/.test(textContent)) found.push(textContent);
    }
    return found; }"""


def test_the_first_screen_has_one_thing_to_do(browser, explorer_address):
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto(explorer_address)
    visible = [one for one in page.locator(CONTROLS).all() if one.is_visible()]
    assert len(visible) <= 12
    assert len(page.evaluate(WITH_DIGIT)) <= 8
    assert page.locator("#arcs path").count() == 1, "the arc that is meant, and no other"
    assert page.locator("#heads .role").first.text_content() == "", "what is hidden is not drawn"
    page.close()


@pytest.mark.parametrize(
    "hash_", ["", *(f"story={step}" for step in range(1, 8)), "view=own", "nav"]
)
def test_no_address_gives_the_first_bet_away(browser, explorer_address, explorer_data, hash_):
    first = explorer_data["landings"][0]
    page = browser.new_page()
    page.goto(explorer_address if hash_ == "nav" else f"{explorer_address}#{hash_}")
    if hash_ == "nav":
        page.click("#to-own")
        page.wait_for_function("() => location.hash === '#view=own'")
        assert page.locator("#sentence").evaluate(IN_SIGHT)
    now = state(page)
    if hash_ in ("", "story=1"):
        assert now["words"] == list(first["words"]) and now["covered"]
        hidden = first["words"][first["hidden"]]
        assert hidden not in page.inner_text("#words") and not page.is_visible("#guesses")
    else:
        assert now["words"] != list(first["words"])
    page.close()


SLIDES = """() => new Promise((done) => {
    document.body.append(View.bar("word", 0.2, "", { before: 0.8 }));
    const strip = document.querySelector("body > .line .own");
    const before = strip.style.width;
    setTimeout(() => done([before, strip.style.width]), 100);
})"""


def test_a_bar_slides_from_where_it_was(browser, explorer_address):
    tab = browser.new_page()
    tab.goto(explorer_address)
    assert tab.evaluate(SLIDES) == ["80%", "20%"]
    tab.close()


# ---- wagers


DRAWN = """() => Array.from(document.querySelectorAll(".decision .won, .decision .whisker"),
    ({ style }) => [style.left, style.width].map(parseFloat))"""


def test_the_verdict_is_explained_and_the_interval_that_decides_is_drawn_to_scale(
    page, explorer_data
):
    for number, wager in enumerate(explorer_data["wagers"]["list"], start=1):
        opens(page, f"view=break&wager={number}&answers=bbbbbb")
        page.evaluate(UNFOLD, "break")
        said = page.inner_text("#break-verdict")
        for beat in ("answer", "means", "beside", "why"):
            assert wager.get(beat, "") in said
        if wager["interval"]:
            low, _ = wager.get("decides", wager)["bands"][wager["right"]]
            (band, _), (start, width) = page.evaluate(DRAWN)
            ends = [band * end / float(low) for end in wager["interval"]]
            assert [start, start + width] == pytest.approx(ends, rel=1e-3)


NUMBER = re.compile(r"\d+(?:\.\d+)?")
SENTENCE_ENDS = re.compile(r"(?<=[.:?])\s")


def test_what_a_run_shows_is_told_with_one_number_a_sentence(page):
    for number in range(1, 7):
        opens(page, f"view=break&wager={number}&answers=bbbbbb")
        for sentence in SENTENCE_ENDS.split(page.inner_text("#break-live .here")):
            assert len(NUMBER.findall(sentence)) <= 1, sentence


BET = re.compile(r"^  function (\w+)\(", re.MULTILINE)
SAID = re.compile(r'\bsay\("(\w+)"')
NAMED = re.compile(r'"(\w+)"|\b(\w+): "')  # names may stand in a list or a table


def test_the_bets_name_the_texts_that_there_are_and_no_others(page, explorer_data):
    """A name without a text, or a value that nobody fills in, would stand there as "undefined"."""
    sections = {}
    for section in write_page.page_file("break/live.js").split("\n  // ---- "):
        for bet in BET.findall(section):
            sections[bet] = section
    parts = set(re.findall(r"\bwager\.(\w+)", write_page.page_file("break/break.js")))
    for number, wager in enumerate(explorer_data["wagers"]["list"], start=1):
        section = sections[wager["name"]]
        named = {quoted or key for quoted, key in NAMED.findall(section)}
        assert set(SAID.findall(section)) <= set(wager["says"]) <= named
        assert {"setup", "detail", "question", *parts} <= set(wager)
        for answers in ("......", "bbbbbb"):
            opens(page, f"view=break&wager={number}&answers={answers}")
            assert "undefined" not in page.locator("#break").inner_html()


def test_before_a_bet_a_picture_stands_beside_it_and_gives_nothing_away(
    browser, explorer_address, explorer_data
):
    errors, size = [], {"width": 1440, "height": 900}
    page = open_watched(browser, f"{explorer_address}#view=break", errors, viewport=size)
    for number, wager in enumerate(explorer_data["wagers"]["list"], start=1):
        opens(page, f"view=break&wager={number}")
        ask, live = (page.locator(f"#break-{part}").bounding_box() for part in ("ask", "live"))
        assert live["x"] > ask["x"] + ask["width"] and live["y"] < ask["y"]
        assert page.locator("#break-live :is(svg, .cells, .sees, .track, .move):visible").count()
        verdict = [wager.get(beat, "") for beat in ("answer", "means", "beside", "why")]
        told = NUMBER.findall(" ".join(verdict)) + [f"{end:.3f}" for end in wager["interval"] or ()]
        assert not {*told} & {*NUMBER.findall(page.inner_text("#break-live"))}
        for beat in filter(None, verdict):
            assert beat not in page.inner_text("#break-wager")
        assert page.locator("#break-wager :is(.won, .lost, .right, .wrong)").count() == 0
    page.close()
    assert errors == []


PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
TOO_SMALL = """() => [...document.querySelectorAll("#break *")].filter((one) => {
    const has_text = [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    const is_pressed = one.matches("button, a, summary");
    return one.checkVisibility() && ((has_text && parseFloat(getComputedStyle(one).fontSize) < 13)
        || (is_pressed && one.getBoundingClientRect().height < 36));
}).map((one) => one.outerHTML)"""


def test_on_a_phone_a_bet_leaves_the_live_picture_or_the_way_to_it_in_sight(
    browser, explorer_address
):
    errors = []
    page = open_watched(browser, f"{explorer_address}#view=break", errors, **PHONE)

    def is_in_sight(where, height=0):
        box = page.locator(where).bounding_box()
        return box["y"] > -1 and box["y"] + min(box["height"], height) <= 844  # part of a pixel

    for number in range(1, 7):
        opens(page, f"view=break&wager={number}")
        assert page.evaluate(TOO_SMALL) == []
        page.tap("#break-choices button >> nth=1")
        page.locator("#break-verdict .answer").wait_for()
        assert is_in_sight("#break-verdict .answer", 100)
        assert is_in_sight("#break-live") or is_in_sight("#break-verdict .see", 36)
        assert page.evaluate(TOO_SMALL) == []
        page.tap("#break-verdict .see")
        assert is_in_sight("#break-live", 300)
        assert is_in_sight("#break-steps", 36) and is_in_sight("#break-name", 24)
        page.tap(f"#break-steps button >> nth={number % 6}")  # the next one begins at its top
        assert page.evaluate("scrollY") == 0
    page.close()
    assert errors == []


@pytest.mark.parametrize(("low", "high", "count"), [(0.005, 0.009, "1"), (0.005, 0.011, "none")])
def test_a_head_whose_interval_crosses_the_line_is_not_shown_to_be_able_to_go(
    browser, explorer_data, tmp_path, low, high, count
):
    data = copy.deepcopy(explorer_data)
    for rise in data["wagers"]["list"][0]["example"]["rises"]:
        rise |= {"rise": 0.025, "span": [0.02, 0.03]}  # nats; the line is at 0.01
    rise |= {"rise": 0.007, "span": [low, high]}
    path = tmp_path / "explorer.html"
    path.write_text(write_page.render(data), encoding="utf-8")
    page = browser.new_page()
    page.goto(f"{path.as_uri()}#view=break&wager=1&answers=a.....")
    assert page.inner_text("#break-live .here").endswith(f"Heads that can go: {count}.")
    assert page.locator("#break-live .crosses").count() == (0 if count == "1" else 1)
    shown = page.locator("#break-live .wide .name").all_inner_texts()
    assert shown[0] == "head 8" and sorted(shown) == [f"head {n}" for n in range(1, 9)]
    page.close()


@pytest.mark.parametrize(("width", "height"), [(1440, 900), (1024, 768)])
def test_on_a_wide_screen_an_answer_moves_nothing_and_on_a_large_one_all_of_it_fits(
    browser, explorer_address, width, height
):
    errors, size = [], {"width": width, "height": height}
    page = open_watched(browser, f"{explorer_address}#view=break", errors, viewport=size)
    for number in range(1, 7):
        opens(page, f"view=break&wager={number}")
        page.click("#break-choices button >> nth=1")
        answer = page.locator("#break-verdict .answer").bounding_box()
        assert page.evaluate("scrollY") == 0 and answer["y"] + answer["height"] <= height
        if width == 1440:
            assert page.evaluate("document.documentElement.scrollHeight") <= height, number
    page.close()
    assert errors == []


def test_the_bugs_show_in_what_a_changed_word_moves(page, explorer_models, explorer_data):
    """The right program moves what PyTorch moves, the mask the wrong way round what must stay."""
    wager = explorer_data["wagers"]["list"][5]

    def guesses(words):
        tokens = [START_ID, *encode(words)]
        return in_torch(explorer_models["causal"], tokens, {}).logits.softmax(dim=-1)

    opens(page, "view=break&wager=6")
    for word in (0, 3, 6):
        page.click(f"#break-live .bugs button >> nth={word}")
        cells = page.locator("#break-live .move").all_inner_texts()
        view, right, mask = (cells[number::3] for number in range(3))
        assert wager["ways"] == ["view", None, "mask"]
        words = list(wager["example"]["words"])
        before = guesses(words)
        words[word] = wager["example"]["others"][word]
        close(numbers(right), (before - guesses(words)).abs().sum(dim=-1) / 2)
        assert not any(right[: word + 1]) and all(mask[: word + 1])
        assert "" in view[word + 1 :] or any(view[: word + 1]) or word == 6


# ---- from a server of the web


def test_from_a_server_it_goes_as_from_a_file(browser, explorer_address):
    """As python -m http.server has it for everybody."""
    path, errors = Path(urlsplit(explorer_address).path), []
    handler = functools.partial(SimpleHTTPRequestHandler, directory=path.parent)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        address = f"http://127.0.0.1:{server.server_port}/{path.name}"
        page = open_watched(browser, address, errors)
        page.click("#more .choices button >> nth=0")
        assert page.locator("#guesses .line").count() == 5
        opens(page, "view=break&wager=end")
        assert "copy it to send it" in page.inner_text("#break-score")
        page.close()
        server.shutdown()
    assert errors == []


# ---- for everybody

LONG = "words=" + "+".join(["these"] * 20) + "&without=0.1&hide=1"
WALK = {
    "look": [*(f"story={screen}" for screen in range(1, 8)), LONG],
    "break": [f"view=break&wager={number}&answers=bbabba" for number in ("end", 6, 5, 4, 3, 2, 1)],
}
UNFOLD = """(view) => document.querySelectorAll(`#${view} details`)
    .forEach((one) => { one.open = true; })"""


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
@pytest.mark.parametrize("view", WALK)
def test_everybody_can_use_every_view(browser, explorer_address, view, scheme, width):
    errors, context = [], {"color_scheme": scheme, "viewport": {"width": width, "height": 844}}
    page = open_watched(browser, f"{explorer_address}#{WALK[view][0]}", errors, **context)
    for hash_ in WALK[view]:
        goes_to(page, hash_)
        page.evaluate(UNFOLD, view)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{hash_} is cut off"
    if view == "look":
        page.fill("#sentence", "the dgo")
    assert axe_violations(page) == []
    page.close()
    assert errors == []
