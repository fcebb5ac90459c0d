"""The explorer as its readers meet it: addresses, what they do there, and what is on the screen
then; for everybody.

explorer_visits.txt has the visits, below the name of each a line for every step: an address, in
this page or, after "open", in one that knows nothing; what is done to an element, by the names that
playwright has for it, or a line of JavaScript to run; and what is asked: see ASKED, some of the
first view's state, or the whole screen.
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

from phase3_visualization.explorer.models import as_packed
from shared import paths
from shared.publishing.report.write_pages import TRY
from shared.tests.helpers import (
    as_if_trained,
    axe_violations,
    in_torch,
    needs_browser,
    open_watched,
)
from shared.toy_language import INDEX, MASK_ID, PAD_ID, START_ID, VOCABULARY, encode

TOY = "words=the+cat+sat+on+the+mat"
HEADS = [f"{layer}.{head}" for layer in range(2) for head in range(4)]


def goes_to(page, hash_):
    page.evaluate(
        "(hash) => { history.replaceState(null, '', '#-'); location.hash = hash; }", hash_
    )
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


def model_at(models, now):
    """The model at the stop that is looked at, with the numbers that the page has."""
    run = as_if_trained(models["both sides"])
    return as_packed(
        run.at_stage(now["step"]), "float16" if now["step"] == run.recipe.steps else "int8"
    )


def asked_in(now):
    """The hidden word that the guess is for; None if none is."""
    return now["query"] if now["query"] in now["hidden"] else (now["hidden"] or [None])[0]


def computed(trained, now, **changed):
    """What the chosen head does, and the guess for the word that is asked for, by PyTorch."""
    now = now | changed
    tokens = [
        MASK_ID if i in now["hidden"] else token for i, token in enumerate(encode(now["words"]))
    ]
    levers = {name: now[name] for name in ("causal", "removed")}
    levers |= {"divisor": now["divisor"]} if now["divisor"] else {}
    found, at = in_torch(trained, tokens, levers), asked_in(now)
    return SimpleNamespace(
        words=[VOCABULARY[token] for token in tokens],
        mask=found.mask,
        weights=found.weights[now["layer"], now["head"]],
        chances=None if at is None else found.logits[at].softmax(dim=-1),
        truth=None if at is None else INDEX[now["words"][at]],
    )


SCREEN = """() => {
    const all = (where, then) => [...document.querySelectorAll(where)].map(then);
    const cells = (row) => [...row.querySelectorAll("td")].map((cell) =>
        cell.classList.contains("hatched") ? null : Number(cell.ariaLabel));
    const text = (where) => all(where, (one) => one.textContent);
    return { labels: text("#large tbody th"), map: all("#large tbody tr", cells),
        costs: text(".cost"),
        row: text("#words .weight"), guesses: all("#guesses .line", (row) =>
            [row.querySelector(".name").firstChild.textContent,
             row.querySelector(".number").textContent]),
        levers: all(".effect", (one) => [one.dataset.lever, one.textContent])
            .filter(([, text]) => text) };
}"""


def says(text, before, after):
    """Whether "0.20 → 0.31" has these two numbers, or "0.20" twice the same."""
    shown = [float(number) for number in text.split(" → ")]
    return all(abs(a - b) < 0.0051 for a, b in ((shown[0], before), (shown[-1], after)))


def shows_what_is_computed(page, models):
    now, seen = state(page), page.evaluate(SCREEN)
    trained, usual = model_at(models, now), {"causal": False, "divisor": None, "removed": []}
    before, after = computed(trained, now, **usual), computed(trained, now)
    assert seen["labels"] == [f"{place} {word}" for place, word in enumerate(after.words)]
    shown = torch.tensor(
        [[math.nan if cell is None else cell for cell in row] for row in seen["map"]]
    )
    assert torch.equal(shown.isnan(), ~after.mask), "what may not be seen is hatched"
    assert (shown.nan_to_num(0) - after.weights).abs().max() < 0.0051
    row = torch.tensor([float(text or 0) for text in seen["row"]])
    assert (row - after.weights[now["query"]]).abs().max() < 0.0051, "the arcs"
    if after.truth is None:
        assert seen["guesses"] == [] and set(seen["costs"]) == {""}
        return
    likely = [
        VOCABULARY[i]
        for i in after.chances.argsort(descending=True)
        if i not in (MASK_ID, PAD_ID, START_ID)
    ][:5]
    truth = VOCABULARY[after.truth]
    guesses = dict(seen["guesses"])
    assert set(guesses) == set(likely if truth in likely else [*likely[:4], truth])
    for word, text in guesses.items():
        assert says(text, before.chances[INDEX[word]].item(), after.chances[INDEX[word]].item())
    for name, text in zip(HEADS, seen["costs"], strict=True):
        other = (
            computed(trained, now, removed=sorted({*now["removed"]} ^ {name}))
            .chances[after.truth]
            .item()
        )
        assert says(text, after.chances[after.truth].item(), other), "without it, or with it again"
    pulled = {name for name, value in usual.items() if now[name] != value}
    assert {name for name, _ in seen["levers"]} == pulled
    if len(pulled) == 1:
        assert seen["levers"][0][1] == f"by itself: “{truth}” {guesses[truth]}"


# ---- visits


def read_visits():
    """Name -> its steps."""
    visits, name = {}, ""
    for line in (
        Path(__file__).with_name("explorer_visits.txt").read_text(encoding="utf-8").splitlines()
    ):
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
globalThis.pixels = () => Array.from(document.querySelectorAll("#heads canvas"),
    (map) => map.toDataURL()).join();
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
def test_a_visit_goes_as_it_should(page, explorer_models, name):
    for line in VISITS[name]:
        try:
            step(page, line.replace("TOY", TOY), explorer_models)
        except Exception as error:
            error.add_note(f"at the step: {line}")
            raise
    if any(line == "screen" for line in VISITS[name]):  # what is seen can be linked
        before = state(page)
        settles(page, 320)  # the address waits for who types
        goes_to(page, page.evaluate("location.hash.slice(1)"))
        assert state(page) == before


BROKEN = """model=none words=the+dgo head=9.9 head=2.0 head=toString query=99 query=-1
    mask=maybe mask=toString mask=constructor mask=__proto__ divisor=-1 divisor=x
    divisor=constructor without=7.7_x without=constructor_0.9 hide=50_a hide=__proto__ order=0_0
    temperature=4 from=-3 seed=1e9 written=-1 %E0%A4%A tour=9 story=0 story=8
    story=constructor step=-1 step=99999 step=x step=toString run=2 run=constructor run=g run=gx
    run=g9999999
    run=__proto__ view=nowhere view=constructor view=__proto__ view=toString view=hasOwnProperty"""


@needs_browser
@pytest.mark.parametrize("hash_", BROKEN.split())
def test_a_broken_address_opens_the_first_view(page, hash_):
    goes_to(page, "query=99")
    first = state(page)
    goes_to(page, hash_)
    assert state(page) == first and page.is_visible("#look")


LINKED = re.compile(r"\]\([./]*visualizations/explorer\.html#([^)]+)\)")
LESSONS = [page.read_text(encoding="utf-8") for page in paths.ROOT.glob("phase*/**/README.md")]
LINKS = {*itertools.chain(*map(LINKED.findall, LESSONS)), *(view for view, _ in TRY.values())}


@needs_browser
@pytest.mark.parametrize("hash_", sorted(LINKS))
def test_the_views_that_other_pages_link_to_are_views_of_the_page(page, hash_):
    goes_to(page, hash_)
    wanted = dict(parse_qsl(hash_))
    if "view" in wanted:
        assert page.is_visible(f"#{wanted['view']}")
        assert page.inner_text("#break-name").startswith(wanted.get("wager", ""))
    else:
        page.click("#words button >> nth=0")  # whatever the reader does, the address holds the rest
        settles(page, 320)
        held = dict(parse_qsl(page.url.split("#")[1]))
        assert all(held[name] == value for name, value in wanted.items() if name != "query")


@needs_browser
@pytest.mark.parametrize(
    "words", ["the cat sat on the mat", "a dog ran", "this farmer slept on a big bed"]
)
def test_the_main_button_takes_the_smallest_set_of_heads_that_changes_the_guess(
    page, explorer_models, words
):
    goes_to(page, f"words={words.replace(' ', '+')}&hide=1&head=0.0")
    page.wait_for_timeout(600)  # it waits for who types, then tries
    trained, now = model_at(explorer_models, state(page)), state(page)

    def best(removed):
        chances = computed(trained, now, removed=list(removed)).chances
        return int(chances.index_fill(0, torch.tensor([MASK_ID, PAD_ID, START_ID]), 0).argmax())

    sizes = (itertools.combinations(HEADS, size) for size in (1, 2, 3))
    found = ([each for each in sets if best(each) != best(())] for sets in sizes)
    smallest = next(filter(None, found), [])
    page.click("#knock")
    taken = tuple(state(page)["removed"])
    if not smallest:
        assert "No three heads" in page.inner_text("#breaks")
    elif ("0.0",) in smallest:
        assert taken == ("0.0",), "the head that is looked at, if it does"
    else:
        left = {
            one: computed(trained, now, removed=list(one)).chances[INDEX[now["words"][1]]]
            for one in smallest
        }
        assert left[taken] <= min(left.values()) + 1e-6


@needs_browser
def test_an_opened_arc_and_the_walk_through_the_block_have_the_numbers_of_the_model(
    page, explorer_models
):
    goes_to(page, f"story=3&{TOY}&head=1.3&query=3&hide=2")
    weights = computed(model_at(explorer_models, state(page)), state(page)).weights
    shown = page.locator("table.steps td.weight").all_inner_texts()
    assert list(map(float, shown)) == pytest.approx(
        weights[3].tolist(), abs=6e-4
    )  # why: three digits are shown
    parts = [
        float(text.split()[0].replace("−", "-"))
        for text in page.locator("table.steps tr td:last-child").all_inner_texts()
    ]
    assert len(parts) == 7 and sum(parts[:-1]) == pytest.approx(
        parts[-1], abs=0.04
    )  # why: numbers of two digits
    goes_to(page, f"story=4&{TOY}&hide=2&query=2")
    trained, truth = model_at(explorer_models, state(page)), INDEX["sat"]
    model, losses = trained.model, []
    tokens = torch.tensor(
        [[MASK_ID if i == 2 else token for i, token in enumerate(encode(state(page)["words"]))]]
    )
    with torch.no_grad():
        x = model.embedding(tokens) + model.positions[:6]
        streams = [x]
        for block in model.blocks:
            x = x + block.attention(block.attention_norm(x))[0]
            streams.append(x)
            x = x + block.feed_forward(block.feed_forward_norm(x))
            streams.append(x)
        for stream in streams:
            logits = model.output_norm(stream[0, 2]) @ model.embedding.weight.T + model.output_bias
            losses.append(-logits.log_softmax(dim=-1)[truth].item())
    said = page.locator(".screen.current .line .number").all_inner_texts()
    assert list(map(float, said)) == pytest.approx(losses, abs=0.0051)  # why: two digits


def on_stage(page):
    return page.evaluate("""() => [document.querySelector(".screen.current h2").textContent[0],
        Number(document.querySelector("#step").value),
        document.querySelector("#step-note").textContent]""")


@needs_browser
@pytest.mark.parametrize("motion", ["no-preference", "reduce"])
def test_the_story_goes_by_keyboard_alone_and_is_scored(browser, explorer_address, motion):
    errors = []
    page = open_watched(
        browser,
        explorer_address,
        errors,
        reduced_motion=motion,
        viewport={"width": 1280, "height": 800},
    )
    assert page.locator("#guesses .line").count() == 0 and "hides" not in page.inner_text("#words")
    page.fill("#own-guess", "lion")
    page.press("#own-guess", "Enter")
    assert "It does not know “lion”. No animals but: " in page.inner_text("#own-note")
    assert page.locator("#guesses .line").count() == 0, "nothing is told yet"
    page.fill("#own-guess", "cat")
    page.press("#own-guess", "Enter")
    assert page.locator(".current .verdict b").inner_text().strip() in ("Right.", "No.")
    assert page.locator("#guesses .name", has_text="you").count() == 1
    page.press(".current .next", "Enter")
    assert on_stage(page) == ["2", 0, "step 0"] and page.locator(".current h2:focus").count() == 1
    page.press("#step", "ArrowRight")
    assert on_stage(page)[1:] != [0, "step 0"] and f"S{on_stage(page)[2][1:]}:" in page.inner_text(
        ".current .says"
    )
    for screen in "345":
        page.press(".current .next", "Enter")
        assert on_stage(page)[0] == screen and on_stage(page)[2] == "step 40"
    page.press(".current .more button >> nth=0", "Enter")
    assert (
        page.evaluate("Page.state().removed.length") == 1
        and page.locator(".verdict:focus").count() == 1
    )
    page.press(".current .next", "Enter")
    assert page.evaluate("Page.state().removed.length") == 0, "each screen begins anew"
    page.press(".current .more button >> nth=0", "Enter")
    assert page.evaluate("Page.state().run") == "1"
    page.press(".current .next", "Enter")
    won = page.locator(".screen .verdict.won").count()
    assert page.inner_text(".score") == f"{won} won, {3 - won} lost, 0 open"
    assert page.locator(".screen:visible").count() == (7 if motion == "no-preference" else 1)
    page.press(".current button >> text=back", "Enter")
    assert on_stage(page)[0] == "6"
    page.close()
    assert errors == []


@needs_browser
def test_scrolling_moves_the_stage_and_a_linked_stage_stays(browser, explorer_address):
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.goto(f"{explorer_address}#{TOY}&hide=2&without=0.1")
    page.wait_for_timeout(200)
    assert page.evaluate("Page.state().removed") == ["0.1"], "nobody has scrolled"
    for screen in (2, 3):
        page.mouse.move(200, 400)
        page.mouse.wheel(
            0,
            page.evaluate(
                f"document.querySelectorAll('.screen')[{screen - 1}]"
                ".getBoundingClientRect().top - 300"
            ),
        )
        page.wait_for_function(f"() => Page.state().story === {screen}")
        assert page.evaluate("Page.state().words") == ["the", "cat", "sat", "on", "the", "mat"], (
            "their own sentence"
        )
        page.wait_for_function(f"() => location.hash.includes('story={screen}')")
    assert page.evaluate("Page.state().removed") == []
    page.close()


# ---- wagers


DRAWN = """() => Array.from(document.querySelectorAll(".decision .won, .decision .whisker"),
    ({ style }) => [style.left, style.width].map(parseFloat))"""


@needs_browser
def test_the_verdict_is_explained_and_the_interval_that_decides_is_drawn_to_scale(
    page, explorer_data
):
    for number, wager in enumerate(explorer_data["wagers"]["list"], start=1):
        opens(page, f"view=break&wager={number}&answers=bbbbbb")
        said = page.inner_text("#break-verdict")
        assert wager["answer"] in said and wager["why"] in said
        if wager["span"]:
            low = float(wager.get("decides", wager)["bands"][wager["right"]][0])
            (band, _), (start, width) = page.evaluate(DRAWN)
            assert [start, start + width] == pytest.approx(
                [band * end / low for end in wager["span"]], rel=1e-3
            )


@needs_browser
def test_the_bugs_show_in_what_a_changed_word_moves(page, explorer_models, explorer_data):
    """The right program moves exactly what PyTorch moves, the mask the wrong way round all that
    must stay.
    """
    wager = explorer_data["wagers"]["list"][5]
    words, others, causal = (
        wager["example"]["words"],
        wager["example"]["others"],
        explorer_models["causal"],
    )
    opens(page, "view=break&wager=6")
    for word in (0, 3, 6):
        page.click(f"#break-live .bugs button >> nth={word}")
        cells = page.locator("#break-live .move").all_inner_texts()
        shown = {way: cells[number::3] for number, way in enumerate(wager["ways"])}
        rows = (words, [*words[:word], others[word], *words[word + 1 :]])
        before, after = (
            in_torch(causal, [START_ID, *encode(row)], {}).logits.softmax(dim=-1) for row in rows
        )
        moves = (before - after).abs().sum(dim=-1) / 2
        found = [float(text.replace("<0.01", "0.0025") or 0) for text in shown[None]]
        assert found == pytest.approx(moves.tolist(), abs=0.0051)  # why: two digits
        assert not any(shown[None][: word + 1]) and all(shown["mask"][: word + 1])
        assert "" in shown["view"][word + 1 :] or any(shown["view"][: word + 1]) or word == 6


# ---- a head grows


@needs_browser
def test_without_a_worker_it_trains_beside_the_page(browser, explorer_address):
    page = browser.new_page()
    page.add_init_script("delete globalThis.Worker; delete globalThis.WebAssembly")
    page.goto(f"{explorer_address}#story=6&run=g3&step=20")
    page.locator("#grow-status", has_text="step 20 ").wait_for()
    page.locator("#grow-train", has_text="go on").wait_for()
    assert "lacks WebAssembly" in page.inner_text("#grow-status")
    page.close()


# ---- for everybody

WALK = {
    "look": [
        *(f"story={screen}" for screen in range(1, 8)),
        "words=" + "+".join(["these"] * 20) + "&without=0.1&hide=1",
    ],
    "break": [f"view=break&wager={number}&answers=bbabba" for number in ("end", 6, 5, 4, 3, 2, 1)],
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
            "(view) => document.querySelectorAll(`#${view} details`)"
            ".forEach((one) => { one.open = true; })",
            view,
        )
        assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{hash_} is cut off"
    if view == "look":
        page.fill("#sentence", "the dgo")
    assert axe_violations(page) == []
    page.close()
    assert errors == []
