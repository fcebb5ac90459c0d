"""What the live page shows against its own forward pass, lever by lever; and that anybody can use it."""

import math
import re
from urllib.parse import parse_qsl

import pytest
import torch

from phase3_visualization.explorer import wagers, write_page
from shared import paths
from shared.evidence.report.write_pages import TRY
from shared.tests.helpers import needs_browser, open_watched
from shared.toy_language import MASK_ID, PAD_ID, SPECIAL, START_ID, TOY_SENTENCE, VOCABULARY


def change(before, after):
    old, new = f"{before:.2f}", f"{after:.2f}"
    return new if old == new else f"{old} → {new}"


@pytest.fixture(scope="module")
def live_errors():
    return []


@pytest.fixture(scope="module")
def live_page(browser, explorer_models, live_errors, tmp_path_factory):
    path = write_page.write(explorer_models, tmp_path_factory.mktemp("explorer"))
    page = open_watched(browser, path.as_uri(), live_errors)
    yield page
    page.close()


LINKED = re.compile(r"\]\([./]*visualizations/explorer\.html#([^)]+)\)")
LINKED_VIEWS = sorted(
    {view for page in paths.ROOT.glob("phase*/**/README.md") for view in LINKED.findall(page.read_text("utf-8"))}
    | {address for address, _ in TRY.values()}
)


LIVE_EXPECTED = """([name, words, levers, masked]) => {
    const [model, language] = [Page.models().get(name), Page.language()];
    const tokens = words.map((word) => language.index.get(word));
    const read = masked === null ? tokens : tokens.map((token, i) => i === masked ? language.special.mask : token);
    const { logits, layers } = Attention.forward(model, read, levers);
    const lists = (part) => layers.map((layer) => layer[part].map((head) => head.map((row) => [...row])));
    return { logits: logits.map((row) => [...row]), weights: lists("weights"), output: lists("head_output") };
}"""


LIVE_WORDS = TOY_SENTENCE.split()


def view(page, **state):
    """The page in a state, as a linked address gives it; all levers back."""
    parts = {"model": "both sides", "head": "0.0", "query": 1, "words": TOY_SENTENCE} | state
    address = "&".join(f"{name}={value}".replace(" ", "+") for name, value in parts.items())
    page.evaluate("(hash) => { history.replaceState(null, '', '#'); location.hash = hash; }", address)
    page.wait_for_function("(model) => Page.state().model === model", arg=parts["model"])
    page.evaluate("() => new Promise((done) => setTimeout(done))")  # the hashchange comes after this task


def expected(page, model, words=None, levers=None, masked=None):
    words = ["<start>"] * model.endswith("causal") + (words or LIVE_WORDS)
    return page.evaluate(LIVE_EXPECTED, [model, words, levers or {}, masked])


def probabilities(logits, temperature=1.0):
    return torch.tensor(logits).div(temperature).softmax(dim=-1)


def shown_weights(page):
    """The large map, row by row: numbers, or None where a cell is hatched."""
    rows = page.evaluate(
        "() => [...document.querySelectorAll('#large tbody tr')].map((row) => [...row.querySelectorAll('td')]"
        ".map((cell) => cell.classList.contains('hatched') ? null : Number(cell.textContent)))"
    )
    return rows


def word_labels(page):
    """The words of the sentence as the model reads them, with their places: "1 cat"."""
    return page.evaluate(
        "() => [...document.querySelectorAll('#words button')].map((button) =>"
        " button.querySelector('.place').textContent + ' ' + button.childNodes[1].textContent)"
    )


def chosen_word(page):
    return word_labels(page)[
        page.evaluate(
            "() => [...document.querySelectorAll('#words button')].findIndex("
            "(button) => button.getAttribute('aria-checked') === 'true')"
        )
    ]


def choose_model(page, name):
    page.evaluate("() => { document.getElementById('model').closest('details').open = true; }")
    page.select_option("#model", name)


def opened(page, card):
    """What is folded away, opened."""
    page.evaluate("(id) => { document.getElementById(id).open = true; }", card)


def shown_predictions(page):
    """Word -> its text of numbers, e.g. "0.20 → 0.31"."""
    return dict(
        page.evaluate(
            "() => [...document.querySelectorAll('#guesses .guess')].map((row) =>"
            " [row.querySelector('.word').firstChild.textContent, row.querySelector('.number').textContent])"
        )
    )


def measure_text(page, name):
    return page.evaluate(
        "(name) => [...document.querySelectorAll('#measures tr')].find((r) => r.cells[0].textContent.includes(name))"
        ".cells[1].textContent",
        name,
    )


def near(shown, wanted):
    """All numbers as in wanted, to the two digits that a cell has; None where it is hatched."""
    flat = [(a, b) for row_a, row_b in zip(shown, wanted, strict=True) for a, b in zip(row_a, row_b, strict=True)]
    assert all((a is None and b == 0) or (a is not None and abs(a - b) < 0.0051) for a, b in flat)


def check_predictions(page, before, after):
    """The words shown are the likeliest after the lever (the true one may replace the last), with both numbers."""
    vocabulary = page.evaluate("() => Page.language().vocabulary")
    shown = shown_predictions(page)
    words = [token for token in after.argsort(descending=True).tolist() if token not in (PAD_ID, MASK_ID, START_ID)]
    for token in words[:4]:
        assert shown[vocabulary[token]] == change(before[token], after[token])


@needs_browser
def test_the_maps_show_the_forward_pass(live_page):
    view(live_page, head="1.2")
    near(shown_weights(live_page), expected(live_page, "both sides")["weights"][1][2])
    labels = live_page.locator("#large tbody th").all_inner_texts()
    assert labels == ["0 the", "1 cat", "2 sat", "3 on", "4 the", "5 mat"]
    assert live_page.locator("#heads .map").count() == 8
    row = expected(live_page, "both sides")["weights"][1][2][1]
    most = max(range(6), key=lambda j: row[j])
    where = "itself" if most == 1 else LIVE_WORDS[most]
    said = f"cat looks most at {where}: {row[most]:.2f}. Head: no role layer 1, head 2"
    assert live_page.inner_text("#looks") == said


@needs_browser
def test_the_causal_mask_comes_off_and_goes_on(live_page):
    view(live_page, model="causal", head="0.1", query=2)
    assert shown_weights(live_page)[1][2] is None  # "the" may not see "cat"
    live_page.uncheck("#causal")
    open_weights = expected(live_page, "causal", levers={"causal": False})["weights"][0][1]
    shown = shown_weights(live_page)
    assert sum(sum(row[i + 1 :]) for i, row in enumerate(shown)) > 0.5
    near(shown, open_weights)
    view(live_page, head="0.1")
    live_page.check("#causal")
    assert [row.count(None) for row in shown_weights(live_page)] == [5, 4, 3, 2, 1, 0]


@needs_browser
def test_the_divisor_sharpens(live_page):
    view(live_page, head="1.0")
    assert live_page.is_checked("#scaled")
    live_page.uncheck("#scaled")
    near(shown_weights(live_page), expected(live_page, "both sides", levers={"divisor": 1})["weights"][1][0])
    before, after = measure_text(live_page, "entropy").split(" → ")
    assert float(after) < float(before)
    live_page.fill("#divisor", "9")
    near(shown_weights(live_page), expected(live_page, "both sides", levers={"divisor": 9})["weights"][1][0])
    assert not live_page.is_checked("#scaled")
    live_page.check("#scaled")
    assert live_page.input_value("#divisor-slider") == "2"  # 2 ^ 2 = sqrt(16)


@needs_browser
def test_a_knocked_out_head_changes_the_predictions(live_page):
    view(live_page, model="small causal", query=2)
    plain = expected(live_page, "small causal")
    live_page.get_by_label("knock out layer 0, head 1", exact=True).click()
    lesioned = expected(live_page, "small causal", levers={"removed": ["0.1"]})
    before, after = probabilities(plain["logits"]), probabilities(lesioned["logits"])
    check_predictions(live_page, before[3], after[3])
    ids = live_page.evaluate("(words) => words.map((word) => Page.language().index.get(word))", LIVE_WORDS)
    losses = [-sum(p[i, token].log().item() for i, token in enumerate(ids)) / len(ids) for p in (before, after)]
    assert measure_text(live_page, "loss") == change(*losses)
    truth = live_page.evaluate("() => Page.language().index.get('on')")
    assert (
        live_page.inner_text('[data-lever="removed"]') == f"by itself: “on” {change(before[3][truth], after[3][truth])}"
    )
    assert live_page.locator(".head-cell.out").count() == 1
    assert live_page.inner_text("#summary").startswith("“on” ")
    live_page.click("#restore")
    assert live_page.locator(".head-cell.out").count() == 0
    assert "→" not in measure_text(live_page, "loss")


@needs_browser
def test_a_hidden_word_becomes_a_mask_or_is_seen_by_nobody(live_page):
    view(live_page, model="small", query=5)
    assert live_page.inner_text("#question").startswith("Nothing is hidden") and shown_predictions(live_page) == {}
    live_page.click("#hide")
    assert word_labels(live_page)[5] == "5 <mask>"
    hidden = expected(live_page, "small", masked=5)
    near(shown_weights(live_page), hidden["weights"][0][0])
    after = probabilities(hidden["logits"])[5]
    check_predictions(live_page, after, after)
    token = live_page.evaluate("() => Page.language().index.get('mat')")
    assert measure_text(live_page, "loss") == f"{-math.log(after[token]):.2f}"
    live_page.click("#hide")
    assert word_labels(live_page)[5] == "5 mat"

    view(live_page, model="causal", query=1)
    live_page.click("#hide")
    assert {row[2] for row in shown_weights(live_page)} == {None}
    near(shown_weights(live_page), expected(live_page, "causal", levers={"hidden": [2]})["weights"][0][0])


@needs_browser
def test_two_words_change_places_and_the_choice_follows(live_page):
    view(live_page, model="small", query=1)
    live_page.click("#hide")
    live_page.select_option("#swap-with", "5")
    live_page.click("#swap")
    order = ["the", "mat", "sat", "on", "the", "<mask>"]
    assert live_page.input_value("#sentence") == "the mat sat on the cat"
    assert word_labels(live_page) == [f"{i} {word}" for i, word in enumerate(order)]
    near(shown_weights(live_page), expected(live_page, "small", order)["weights"][0][0])
    assert chosen_word(live_page) == "5 <mask>"
    before = probabilities(expected(live_page, "small", masked=1)["logits"])[1]
    after = probabilities(expected(live_page, "small", order, masked=5)["logits"])[5]
    check_predictions(live_page, before, after)
    live_page.click("#unswap")
    assert chosen_word(live_page) == "1 <mask>" and live_page.input_value("#sentence") == TOY_SENTENCE


@needs_browser
def test_temperature_spreads_and_gathers_the_probabilities(live_page):
    view(live_page, model="small causal", query=2)
    all_logits = expected(live_page, "small causal")["logits"]
    logits = all_logits[3]
    ids = live_page.evaluate("(words) => words.map((word) => Page.language().index.get(word))", LIVE_WORDS)
    for temperature in (2, 0.5):
        live_page.fill("#temperature", str(temperature))
        check_predictions(live_page, probabilities(logits), probabilities(logits, temperature))
        losses = [-probabilities(all_logits, t)[range(6), ids].log().mean().item() for t in (1, temperature)]
        assert measure_text(live_page, "loss") == change(*losses)
    live_page.fill("#temperature", "0")
    assert next(iter(shown_predictions(live_page).values())).endswith("1.00")


@needs_browser
def test_all_levers_go_back_at_once(live_page):
    view(
        live_page,
        model="causal",
        mask="off",
        divisor=2,
        without="0.1_1.3",
        hide="1",
        order="1_0_2_3_4_5",
        temperature=2,
    )
    assert live_page.locator(".effect:not(:empty)").count() == 6
    live_page.click("#reset")
    assert live_page.locator(".effect:not(:empty)").count() == 0
    near(shown_weights(live_page), expected(live_page, "causal")["weights"][0][0])


@needs_browser
def test_role_scores_follow_the_levers(live_page):
    view(live_page)
    wanted = live_page.evaluate(
        """() => { const data = JSON.parse(document.getElementById("data").textContent);
        const scores = (levers) => Statistics.best_heads(Statistics.count_hits(
            Page.models().get("both sides"), data.sentences, levers, data.vocabulary, data.special));
        return [{}, {divisor: 0.5}].map((levers) => scores(levers)["verb-subject"]); }"""
    )
    texts = [f"{math.floor(100 * s['score'] + 0.5)}% ({s['layer']}.{s['head']})" for s in wanted]
    live_page.fill("#divisor", "0.5")
    assert "…" in measure_text(live_page, "verb-subject")
    live_page.wait_for_function("() => !document.querySelector('#measures').textContent.includes('…')")
    shown = measure_text(live_page, "verb-subject")
    assert shown == (texts[1] if texts[0] == texts[1] else " → ".join(texts))


@needs_browser
def test_the_five_steps_add_up(live_page):
    view(live_page, head="1.3", query=3)
    opened(live_page, "steps-card")
    live_page.wait_for_selector("table.steps")
    numbers = expected(live_page, "both sides")
    rows = live_page.locator("table.steps tbody tr").count()
    assert rows == 6
    weights = [float(text) for text in live_page.locator("table.steps td.weight").all_inner_texts()]
    assert weights == pytest.approx(numbers["weights"][1][3][3], abs=6e-4)
    foot = live_page.locator("table.steps tfoot td").all_inner_texts()
    assert foot[3] == "1.000"
    output = [float(text) for text in foot[5].replace("−", "-").replace("…", "").split()]
    assert output == pytest.approx(numbers["output"][1][3][3][: len(output)], abs=6e-3)


@needs_browser
def test_pointing_at_a_key_shows_who_looks_at_it(live_page):
    view(live_page, head="0.1", query=2)
    live_page.click(".lines-card summary")
    weights = expected(live_page, "both sides")["weights"][0][1]
    read = "(side) => [...document.querySelectorAll(`.column.${side} .number`)].map((cell) => Number(cell.textContent))"
    assert live_page.evaluate(read, "key") == pytest.approx(weights[2], abs=0.0051)
    live_page.locator(".column.key button").nth(4).hover()
    assert live_page.evaluate(read, "query") == pytest.approx([row[4] for row in weights], abs=0.0051)
    live_page.locator(".column.key button").nth(4).click()
    live_page.mouse.move(0, 0)  # clicked, or tapped: it stays
    assert live_page.evaluate(read, "query") == pytest.approx([row[4] for row in weights], abs=0.0051)


@needs_browser
def test_an_unknown_word_is_explained_and_the_view_stays_greyed(live_page):
    view(live_page)
    before = live_page.inner_html("#large")
    live_page.fill("#sentence", "the dgo sat")
    message = live_page.inner_text("#message")
    assert "“dgo” is not among the 97 words" in message and live_page.inner_html("#large") == before
    assert live_page.evaluate("() => getComputedStyle(document.querySelector('.columns')).filter") == "grayscale(1)"
    live_page.click("#message button:has-text('dog') >> nth=0")
    taken = live_page.input_value("#sentence")
    assert taken in ("the dog sat", "the dogs sat")
    assert live_page.inner_text("#message") == ""
    assert word_labels(live_page) == ["0 the", f"1 {taken.split()[1]}", "2 <mask>"]
    assert live_page.evaluate("() => getComputedStyle(document.querySelector('.columns')).filter") == "none"


@needs_browser
def test_a_word_of_ours_is_answered_by_its_meaning(live_page):
    view(live_page)
    live_page.fill("#sentence", "my elephant loves pizza!?")
    problem, *answers = live_page.locator("#message p").all_inner_texts()
    assert problem == "“my” and 3 more are not among the 97 words that the models know."
    assert answers[0].startswith("my No determiners but: ") and answers[2].startswith("loves No verbs but: ")
    assert answers[1] == "elephant No animals but: catdogfox"
    live_page.fill("#sentence", "the qqqq")
    assert "Here comes a noun, such as: catgirlcar" in live_page.inner_text("#message")
    live_page.fill("#sentence", "the farmer ran and slept")
    assert "one sentence, one verb" in live_page.inner_text("#message")


@needs_browser
def test_every_word_can_be_clicked(live_page):
    view(live_page)
    live_page.click("details.all-words summary")
    chips = live_page.locator("#chips .chip").all_inner_texts()
    assert sorted(chips) == sorted(VOCABULARY[len(SPECIAL) :]) and len(chips) == 97
    live_page.click("#clear")
    assert "empty" in live_page.inner_text("#message")
    for word in ("those", "cats", "slept"):
        live_page.get_by_role("button", name=word, exact=True).click()
    assert word_labels(live_page) == ["0 those", "1 cats", "2 <mask>"]
    live_page.click("details.all-words summary")


def test_no_word_with_a_meaning_is_a_word_of_the_language():
    meanings = write_page.page_data({})["meanings"]
    words = [word for group in meanings.values() for word in group]
    assert len(words) == len(set(words)) and not set(words) & set(VOCABULARY)
    groups = write_page.word_groups()
    assert sorted(word for group in groups.values() for word in group) == sorted(VOCABULARY[len(SPECIAL) :])
    assert set(meanings) == set(groups) | {"pronoun", "joining"}


@needs_browser
@pytest.mark.parametrize(
    ("typed", "words"), [("  ", "empty"), ("the " * 33, "33 words"), ("qqqqq", "determiner"), ("<mask>", "<mask>")]
)
def test_a_sentence_that_cannot_be_read_is_explained(live_page, typed, words):
    view(live_page)
    live_page.fill("#sentence", typed)
    assert words in live_page.inner_text("#message")
    assert live_page.locator("#words button").count() == 6


@needs_browser
def test_the_longest_sentence_fits_every_model(live_page):
    view(live_page, model="causal")
    live_page.fill("#sentence", "the " * 32)
    assert live_page.locator("#large tbody tr").count() == 33
    live_page.fill("#sentence", "cat")
    assert word_labels(live_page) == ["0 <start>", "1 cat"]
    choose_model(live_page, "small")
    assert word_labels(live_page) == ["0 <mask>"]
    assert live_page.locator("#heads .map").count() == 9


@needs_browser
def test_typed_markup_is_text(live_page, live_errors):
    view(live_page)
    live_page.fill("#sentence", "<img src=x onerror=alert(1)>")
    assert "“<img”" in live_page.inner_text("#message")
    view(live_page, words="<img src=x onerror=alert(1)>")
    assert live_page.locator("img").count() == 0
    assert not live_errors


@needs_browser
def test_a_view_can_be_linked(live_page, browser, live_errors):
    view(live_page, model="small causal", head="0.4", query=3)
    live_page.fill("#sentence", "these dogs swam slowly in the lake")
    live_page.fill("#divisor", "2.5")
    live_page.get_by_label("knock out layer 0, head 2", exact=True).click()
    live_page.click("#hide")
    live_page.select_option("#swap-with", "1")
    live_page.click("#swap")
    live_page.uncheck("#causal")
    live_page.fill("#temperature", "1.5")
    opened(live_page, "writing-card")
    live_page.fill("#seed", "77")
    live_page.click("#one-more")
    live_page.wait_for_function("() => location.hash.includes('written=1')")
    state = live_page.evaluate("() => Page.state()")
    assert state["hidden"] == [3] and state["removed"] == ["0.2"] and state["order"] == [0, 3, 2, 1, 4, 5, 6]
    other = open_watched(browser, live_page.url, live_errors)
    assert other.evaluate("() => Page.state()") == state
    for box in ("#guesses", "#writing", "#words"):
        assert other.inner_html(box) == live_page.inner_html(box)
    assert shown_weights(other) == shown_weights(live_page)
    other.close()


@needs_browser
def test_a_broken_address_opens_the_first_view(live_page):
    live_page.evaluate("() => { location.hash = '#'; }")
    live_page.wait_for_function("() => Page.state().model === 'both sides'")
    first = live_page.evaluate("() => Page.state()")
    broken = (
        "model=none&words=the+dgo&head=9.9&query=99&mask=maybe&divisor=-1&without=7.7_x&hide=50_a&order=0_0&temperature=x"
        "&from=-3&seed=1e9&written=-1&%E0%A4%A"
    )
    for address in (broken, "view=constructor", "mask=toString"):  # what each object of JavaScript has
        live_page.evaluate("(hash) => { location.hash = hash; }", address)
        live_page.evaluate("() => new Promise((done) => setTimeout(done, 20))")
        assert live_page.evaluate("() => Page.state()") == first and live_page.locator("#look").is_visible(), address
        assert live_page.evaluate("() => Page.state().causal === null"), address


@needs_browser
def test_the_back_button_returns_to_the_sentence_before(live_page):
    before = "the dog slept in a bed"
    view(live_page, words=before)
    live_page.click("#another")
    assert live_page.evaluate("() => Page.state().words.join(' ')") != before
    live_page.go_back()
    live_page.wait_for_function("(text) => document.getElementById('sentence').value === text", arg=before)
    assert live_page.locator("#words button").count() == 6


@needs_browser
def test_the_keyboard_moves_words_and_heads(live_page):
    view(live_page, head="0.0", query=1)
    live_page.focus("#words [aria-checked=true]")
    live_page.keyboard.press("ArrowRight")
    live_page.keyboard.press("ArrowRight")
    assert live_page.evaluate("() => document.activeElement.ariaChecked") == "true" and chosen_word(live_page) == "3 on"
    live_page.focus("#heads .map[aria-pressed=true]")
    live_page.keyboard.press("ArrowDown")
    live_page.keyboard.press("ArrowRight")
    assert live_page.inner_text("#head-heading") == "One head: no role (layer 1, head 1)"
    assert live_page.get_attribute(":focus", "aria-label") == "no role (layer 1, head 1)"
    live_page.keyboard.press("Tab")
    live_page.keyboard.press("Enter")
    assert (
        live_page.locator(".head-cell.out .map").get_attribute("aria-label") == "no role (layer 1, head 1), knocked out"
    )
    outline = live_page.evaluate("() => getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"


WRITE = """([count, seed, temperature]) => {
    const [model, language] = [Page.models().get("small causal"), Page.language()];
    const next = Training.random_numbers(seed);
    const tokens = ["<start>", "the", "cat"].map((word) => language.index.get(word));
    while (count-- > 0) {
        const { logits } = Attention.forward(model, tokens);
        const never = [language.special.mask, language.special.pad, language.special.start];
        const sayable = logits.at(-1).map((logit, token) => never.includes(token) ? -Infinity : logit);
        const chances = Attention.softmax(sayable, temperature);
        tokens.push(Writing.draw(chances, next()));
    }
    return tokens.slice(1).map((token) => language.vocabulary[token]);
}"""


def written_words(page):
    return page.evaluate(
        "() => [...document.querySelectorAll('.written > span')].slice(1).map((w) => w.firstChild.textContent)"
    )


@needs_browser
def test_writing_draws_from_the_forward_pass_and_the_cache_grows_by_one(live_page):
    view(live_page, model="small causal", seed=5, temperature=0.8)
    opened(live_page, "writing-card")
    live_page.wait_for_selector("#cache-note")
    for count in range(5):
        assert written_words(live_page) == live_page.evaluate(WRITE, [count, 5, 0.8])
        kept = 3 + count
        note = live_page.inner_text("#cache-note")
        assert f"{kept} keys and {kept} values" in note and f" {kept * (kept + 1) // 2} of each" in note
        assert live_page.locator(".cache tbody tr").first.locator("td.kept").count() == kept
        live_page.click("#one-more")
    five = written_words(live_page)
    live_page.click("#start-again")
    assert written_words(live_page) == ["the", "cat"]
    for _ in range(5):
        live_page.click("#one-more")
    assert written_words(live_page) == five
    live_page.click("#new-seed")
    assert live_page.input_value("#seed") == "6" and written_words(live_page) == live_page.evaluate(WRITE, [5, 6, 0.8])


@needs_browser
def test_writing_stops_where_the_room_ends_and_at_temperature_0_needs_no_seed(live_page):
    view(live_page, model="causal", temperature=0)
    opened(live_page, "writing-card")
    live_page.click("#to-end")
    greedy = written_words(live_page)
    assert live_page.get_attribute("#one-more", "aria-disabled") == "true" and (
        greedy[-1] == "<end>" or len(greedy) == 32
    )
    live_page.click("#new-seed")
    assert written_words(live_page) == greedy
    chances = [float(text) for text in live_page.locator(".written small").all_inner_texts()]
    assert min(chances) < 1, "at temperature 0 the model is not certain of every word"
    view(live_page, model="both sides", temperature=0)
    live_page.click("#to-end")
    assert written_words(live_page) == greedy  # the causal model writes, whatever model is on screen


@needs_browser
def test_the_random_numbers_are_even(live_page):
    drawn = live_page.evaluate(
        "() => { const next = Training.random_numbers(3); return Array.from({length: 4000}, next); }"
    )
    assert min(drawn) >= 0 and max(drawn) < 1
    assert abs(sum(drawn) / 4000 - 0.5) < 0.03 and abs(sum(x < 0.25 for x in drawn) / 4000 - 0.25) < 0.03
    assert live_page.evaluate("() => [0, 0.3, 0.999999].map((u) => Writing.draw([0.25, 0.5, 0.25], u))") == [
        0,
        1,
        2,
    ]


@needs_browser
def test_a_phone_needs_no_sideways_scrolling(live_page, browser, live_errors):
    address = live_page.url.split("#")[0] + "#model=causal&words=" + "+".join(["these"] * 20) + "&written=8"
    phone = open_watched(browser, address, live_errors, viewport={"width": 360, "height": 740})
    assert phone.evaluate("() => document.documentElement.scrollWidth") <= 360
    wide = (
        "() => [...document.querySelectorAll('button, input, select, p, h1')].filter((node) => !node.closest('.scroll')"
    )
    assert phone.evaluate(wide + " && node.getBoundingClientRect().right > 361).map((node) => node.outerHTML)") == []
    phone.close()


@needs_browser
def test_nothing_went_wrong_in_the_live_page_meanwhile(live_errors):
    assert live_errors == []


@needs_browser
@pytest.mark.parametrize("address", LINKED_VIEWS)
def test_the_views_that_other_pages_link_to_are_views_of_the_page(live_page, address):
    wanted = dict(parse_qsl(address))
    if "view" in wanted:  # a view by itself; its own tests ask for what it shows
        assert wanted["view"] in write_page.VIEWS
        assert int(wanted.get("wager", 1)) in range(1, len(wagers.wagers()) + 1)
        return
    live_page.evaluate("(hash) => { history.replaceState(null, '', '#'); location.hash = hash; }", address)
    live_page.evaluate("() => new Promise((done) => setTimeout(done))")
    kept = live_page.evaluate("() => Page.state()")
    assert ("tour" not in wanted) or kept["tour"] == int(wanted["tour"])
    live_page.locator("#words button").nth(0).click()  # whatever the reader does next, the address holds the rest
    written = dict(parse_qsl(live_page.evaluate("() => location.hash.slice(1)")))
    written["model"] = kept["model"]  # the first one is not written
    for name, value in wanted.items():
        assert name == "query" or written.get(name) == value, f"{address}: {name}"
