"""The live page as its readers meet it: addresses, what they do there, and what the screen shows.

explorer_visits.txt has the visits, below the name of each a line for every step: an address, in
this page or, after "open", in one that knows nothing; what is done to an element, by the names that
playwright has for it, or a line of JavaScript to run; and what is asked: see ASKED, some of the
first view's state, or the whole screen.
"""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import parse_qsl

import pytest
import torch

from phase3_visualization.explorer.models import as_packed
from shared import paths
from shared.tests.helpers import as_if_trained, axe_violations, in_torch, open_watched
from shared.toy_language import INDEX, MASK_ID, PAD_ID, START_ID, VOCABULARY, encode

TOY = "words=the+cat+sat+on+the+mat"
HEADS = [f"{layer}.{head}" for layer in range(2) for head in range(4)]
NO_WORDS = torch.tensor([MASK_ID, PAD_ID, START_ID])
TWO_DIGITS = 0.0051  # and so is a share that is written as a whole number of percent
ADDRESS_WAITS = 300  # milliseconds, for who types: LATER in page.js

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


def position_guessed(now):
    """Where the hidden word stands that the guess is for; None if nothing is hidden."""
    if now["query"] in now["hidden"]:
        return now["query"]
    return now["hidden"][0] if now["hidden"] else None


def computed(trained, now, **changed):
    """What the chosen head does, and the guess for the word that is asked for, by PyTorch."""
    now = now | changed
    tokens = encode(now["words"])
    for position in now["hidden"]:
        tokens[position] = MASK_ID
    levers = {name: now[name] for name in ("causal", "removed", "divisor") if now[name] is not None}
    forward, position = in_torch(trained, tokens, levers), position_guessed(now)
    screen = SimpleNamespace(mask=forward.mask, weights=forward.weights[now["layer"], now["head"]])
    screen.words = [VOCABULARY[token] for token in tokens]
    if position is not None:
        screen.chances = forward.logits[position].softmax(dim=-1)
        screen.chance = screen.chances[INDEX[now["words"][position]]].item()
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
             row.querySelector(".number").textContent]) };
}"""


def numbers(texts):
    """What is written; nothing and "<0.01" are numbers below the least that is written."""
    return torch.tensor([float(text.replace("<0.01", "0.0025") or 0) for text in texts])


def shares(texts):
    """What is written in percent."""
    return torch.tensor([float(text.removesuffix("%").strip()) / 100 for text in texts])


def close(shown, expected, apart=TWO_DIGITS):
    assert (shown - expected).abs().max() < apart


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
    position = position_guessed(now)
    if position is None:
        assert seen["guesses"] == [] and set(seen["costs"]) == {""}
        return
    likely = after.chances.index_fill(0, NO_WORDS, 0).topk(5).indices.tolist()
    expected, truth = [VOCABULARY[i] for i in likely], now["words"][position]
    if truth not in expected:
        expected[-1] = truth
    guesses = dict(seen["guesses"])
    assert set(guesses) == set(expected)
    for word, text in guesses.items():
        says(text, before.chances[INDEX[word]], after.chances[INDEX[word]])
    for name, text in zip(HEADS, seen["costs"], strict=True):
        removed = sorted({*now["removed"]} ^ {name})  # without it, or with it again
        says(text, after.chance, computed(trained, now, removed=removed).chance)


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


BROKEN = """model=none words=the+dgo head=9.9 head=toString query=99 query=-1 mask=maybe
    mask=__proto__ divisor=-1 divisor=constructor without=7.7_x hide=50_a temperature=4 %E0%A4%A
    story=0 story=constructor step=-1 step=99999 step=x run=2 run=g9999999 view=nowhere
    view=__proto__"""


def test_a_broken_address_opens_the_first_view(page):
    goes_to(page, "query=99")
    first = state(page)
    for hash_ in BROKEN.split():
        goes_to(page, hash_)
        assert state(page) == first and page.is_visible("#look"), hash_


LINKED = re.compile(r"\]\([./]*visualizations/explorer\.html#([^)]+)\)")
LINKS = set()
for lesson in paths.ROOT.glob("phase*/**/README.md"):
    LINKS.update(LINKED.findall(lesson.read_text(encoding="utf-8")))


@pytest.mark.parametrize("hash_", sorted(LINKS))
def test_the_views_that_other_pages_link_to_are_views_of_the_page(page, hash_):
    goes_to(page, hash_)
    address = dict(parse_qsl(hash_))
    if "view" in address:
        assert page.is_visible(f"#{address['view']}")
        assert page.inner_text("#break-name").startswith(address.get("wager", ""))
    elif "story" not in address:  # a step has its own controls
        page.click("#words button >> nth=0")  # whatever the reader does, the address holds the rest
        settles(page, ADDRESS_WAITS)
        held = dict(parse_qsl(page.url.split("#")[1]))
        assert address | {"query": "0"} == {name: held[name] for name in {*address, "query"}}


@pytest.mark.parametrize("words", ["the cat sat on the mat", "that dog sat on every soft chair"])
def test_a_sentence_is_shown_with_the_head_whose_loss_costs_most(page, explorer_models, words):
    goes_to(page, f"words={words.replace(' ', '+')}&hide=1")
    now = state(page)
    trained, left = model_at(explorer_models, now), {}
    for name in HEADS:
        left[name] = computed(trained, now, removed=[name]).chance
    costliest = min(left, key=left.get)
    assert f"{now['layer']}.{now['head']}" == costliest
    page.click("#knock")
    assert state(page)["removed"] == [costliest]


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


def test_the_story_goes_by_keyboard_alone_and_is_scored(browser, explorer_address):
    errors = []
    page = open_watched(browser, explorer_address, errors)

    def count(where, **more):
        return page.locator(where, **more).count()

    def presses(where, key="Enter"):
        page.press(where, key)

    assert count("#guesses .line") == 0 and "coin" not in page.inner_text("#words")
    presses("body", "ArrowRight")
    assert on_stage(page)[0] == "1", "first the bet"
    choices = page.locator("#more .choices button:not(.link)").all_inner_texts()
    assert len(choices) == 4 and state(page)["words"][state(page)["hidden"][0]] in choices
    presses("#more .choices button >> nth=0")
    assert count("#more .verdict") == 1 and count("#title:focus") == 1
    assert count("#guesses .name", has_text="you") == 1
    presses("body", "ArrowRight")
    assert on_stage(page) == ["2", 10, "after 40 steps"] and count("#title:focus") == 1
    presses("#more .choices button >> nth=0")
    assert len(state(page)["removed"]) == 1 and count("#arcs.out") == 1
    presses("#more button >> text=put it back")
    assert state(page)["removed"] == []
    presses("#next")
    assert on_stage(page) == ["3", 10, "after 40 steps"]
    page.wait_for_selector("#arcs .drop")  # values arrive
    presses("#next")
    assert on_stage(page) == ["4", 0, "before training"]
    page.emulate_media(reduced_motion="reduce")
    presses("body", "ArrowLeft")
    assert count("#arcs .drop") == 0, "nothing moves for whoever wants that"
    presses("#next")
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
    presses("#back")
    assert state(page)["run"] == "1", "what the title speaks of is on the stage"
    page.close()
    assert errors == []


@pytest.mark.parametrize("hash_", ["", "story=2", "view=own"])
def test_no_address_gives_the_first_bet_away(page, explorer_data, hash_):
    first = explorer_data["landings"][0]
    opens(page, hash_)
    now = state(page)
    if hash_:
        assert now["words"] != list(first["words"])
        return
    assert now["words"] == list(first["words"]) and now["covered"]
    hidden = first["words"][first["hidden"]]
    assert hidden not in page.inner_text("#words") and not page.is_visible("#guesses")


# ---- wagers


DRAWN = """() => Array.from(document.querySelectorAll(".decision .won, .decision .whisker"),
    ({ style }) => [style.left, style.width].map(parseFloat))"""
NUMBER = re.compile(r"\d+(?:\.\d+)?")


def beats(wager):
    """What the page says of a bet when it is answered."""
    return [wager[beat] for beat in ("answer", "means", "beside", "why") if beat in wager]


def test_before_a_bet_a_picture_stands_beside_it_and_gives_nothing_away(page, explorer_data):
    opens(page, "view=break")
    for number, wager in enumerate(explorer_data["wagers"]["list"], start=1):
        goes_to(page, f"view=break&wager={number}")
        assert page.locator("#break-live :is(svg, .cells, .sees, .track, .move):visible").count()
        of_answer = NUMBER.findall(" ".join(beats(wager)))
        of_answer += [f"{end:.3f}" for end in wager["interval"] or ()]
        assert not {*of_answer} & {*NUMBER.findall(page.inner_text("#break-live"))}
        shown = page.inner_text("#break-wager")
        assert not any(beat in shown for beat in beats(wager))
        assert page.locator("#break-wager :is(.won, .lost, .right, .wrong)").count() == 0
        assert "undefined" not in page.locator("#break").inner_html()


def test_the_verdict_is_explained_and_the_interval_that_decides_is_drawn_to_scale(
    page, explorer_data
):
    opens(page, "view=break&wager=1&answers=bbbbbb")
    for number, wager in enumerate(explorer_data["wagers"]["list"], start=1):
        goes_to(page, f"view=break&wager={number}")
        page.evaluate(UNFOLD, "break")
        verdict = page.inner_text("#break-verdict")
        assert all(beat in verdict for beat in beats(wager))
        assert "undefined" not in page.locator("#break").inner_html()
        if wager["interval"]:
            low, _ = wager.get("decides", wager)["bands"][wager["right"]]
            (band, _), (start, width) = page.evaluate(DRAWN)
            ends = [band * end / float(low) for end in wager["interval"]]
            assert [start, start + width] == pytest.approx(ends, rel=1e-3)


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


# ---- for everybody

LONG = "words=" + "+".join(["these"] * 20) + "&without=0.1&hide=1"
WALK = {
    "look": [LONG, *(f"story={number}" for number in range(1, 8))],
    "break": [f"view=break&wager={number}&answers=bbabba" for number in ("end", 6, 5, 4, 3, 2, 1)],
}
TOO_SMALL = """() => [...document.querySelectorAll("body *")].filter((one) => {
    const has_text = [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    const is_pressed = one.matches("button, input, textarea, summary, a:not(p a)");
    const size = parseFloat(getComputedStyle(one).fontSize); // 0: a shade without its number
    return one.checkVisibility() && ((has_text && size > 0 && size < 13)
        || (is_pressed && one.getBoundingClientRect().height < 44));
}).map((one) => one.outerHTML)"""
UNFOLD = """(view) => document.querySelectorAll(`#${view} details`)
    .forEach((one) => { one.open = true; })"""


DESK = {"viewport": {"width": 1280, "height": 844}}
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}


@pytest.mark.parametrize(
    "context", [DESK, PHONE | {"color_scheme": "dark"}], ids=["light desk", "dark phone"]
)
def test_everybody_can_use_every_view(browser, explorer_address, context):
    errors, tops, width = [], set(), context["viewport"]["width"]
    page = open_watched(browser, explorer_address, errors, **context)
    for view, addresses in WALK.items():
        for hash_ in addresses:
            goes_to(page, hash_)
            page.evaluate(UNFOLD, view)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, hash_
            if "has_touch" in context:
                assert page.evaluate(TOO_SMALL) == [], hash_
            if hash_.startswith("story"):
                tops.add(page.evaluate("document.querySelector('#title').offsetTop"))
        assert axe_violations(page) == []
    assert len(tops) == 1, "the heading keeps its place"
    goes_to(page, "view=own")
    page.fill("#sentence", "the dgo")
    assert axe_violations(page) == []
    page.close()
    assert errors == []
