"""The explorer where its readers may open it: in Firefox, and from a server of the web."""

import functools
import itertools
import json
import shutil
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest

from phase3_visualization.tests.test_explorer_pages import (
    HEADS,
    PROBES,
    TOY,
    computed,
    model_at,
    shows_what_is_computed,
    state,
)
from shared import paths
from shared.publishing.report import write_pages
from shared.tests.firefox import open_tab
from shared.tests.helpers import open_watched

RIGHT = "\ue014"  # the key, as WebDriver has it
CHOICE = "#more .choices button:not(.link)"
WAITS = "new Promise((done) => setInterval(() => UNTIL && done(), 50))"
TRAINED_HERE = WAITS.replace("UNTIL", "steps() >= 20")
PAUSED = WAITS.replace("UNTIL", "texts('#grow-train')[0] === 'go on'")
STANDS = 200  # milliseconds after which a bar has moved
BAR = f"""() => new Promise((done) => setTimeout(() =>
    done(parseFloat(document.querySelector("#guesses .own").style.width)), {STANDS}))"""


# ---- Firefox


@pytest.fixture(scope="module")
def firefox(tmp_path_factory):
    """A tab of Firefox; without one the test is skipped, and says so."""
    pytest.importorskip("websockets", reason='no websockets: pip install -e ".[browser]"')
    program = shutil.which("firefox-esr") or shutil.which("firefox")
    if program is None:
        pytest.skip("no Firefox: install one (Debian: sudo apt-get install firefox-esr)")
    with open_tab(program, tmp_path_factory.mktemp("firefox")) as tab:
        yield tab
    assert tab.errors == []


def opened(firefox, address):
    """As somebody who has not answered anything."""
    firefox.goto("about:blank")
    firefox.goto(address)
    firefox.evaluate(f"() => {{ {PROBES} }}")


def clicks(firefox, where, nth=0):
    firefox.evaluate(f"document.querySelectorAll({json.dumps(where)})[{nth}].click()")


def count(firefox, where):
    return firefox.evaluate(f"document.querySelectorAll({json.dumps(where)}).length")


def largest_fall(models, now):
    """The hidden word, the head: without this head the guess for the word falls the most."""
    trained, falls = model_at(models, now), {}
    for place, head in itertools.product(range(len(now["words"])), HEADS):
        now = now | {"hidden": [place], "query": place}
        cut = computed(trained, now, removed=[head])
        falls[place, head] = computed(trained, now).chance - cut.chance
    return max(falls, key=falls.get)


def test_in_firefox_the_story_goes_by_its_arrow_key(firefox, explorer_address):
    opened(firefox, explorer_address)
    for number in range(1, 8):
        assert firefox.evaluate("texts('#where')[0][0]") == str(number)
        if number in (1, 2, 6):
            clicks(firefox, CHOICE)
        assert count(firefox, "#guesses .line") == 5, "the guess is there"
        firefox.type(RIGHT)


def test_in_firefox_a_cut_lowers_the_bar_to_what_torch_computes(
    firefox, explorer_address, explorer_models
):
    opened(firefox, f"{explorer_address}#{TOY}&hide=2")
    place, head = largest_fall(explorer_models, state(firefox))
    opened(firefox, f"{explorer_address}#{TOY}&hide={place}")
    shows_what_is_computed(firefox, explorer_models)
    before = firefox.evaluate(BAR)
    clicks(firefox, "#heads .remove", HEADS.index(head))
    assert state(firefox)["removed"] == [head]
    shows_what_is_computed(firefox, explorer_models)
    assert firefox.evaluate(BAR) < before


def test_in_firefox_a_sentence_is_typed(firefox, explorer_address):
    opened(firefox, f"{explorer_address}#view=own")
    firefox.evaluate("document.querySelector('#sentence').select()")
    firefox.type("the cats slept in a bed\ue007")  # Enter
    assert state(firefox)["words"] == ["the", "cats", "slept", "in", "a", "bed"]


def test_in_firefox_a_training_starts(firefox, explorer_address):
    opened(firefox, f"{explorer_address}#story=6")
    clicks(firefox, CHOICE)
    clicks(firefox, "#grow-train")
    firefox.evaluate(TRAINED_HERE)
    clicks(firefox, "#grow-train")
    firefox.evaluate(PAUSED)


# ---- from a server


@pytest.fixture(scope="module")
def server(explorer_address, tmp_path_factory):
    """All pages of a run, as python -m http.server has them for everybody; its address."""
    folder = tmp_path_factory.mktemp("served")
    write_pages.write_pages(folder)
    shutil.copy(urlsplit(explorer_address).path, folder / paths.EXPLORER)
    handler = functools.partial(SimpleHTTPRequestHandler, directory=folder)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def test_from_a_server_it_goes_as_from_a_file(browser, server):
    errors = []
    address = f"{server}{paths.EXPLORER}"
    page = open_watched(browser, address, errors, own=server)
    page.evaluate(f"() => {{ {PROBES} }}")
    page.click(f"{CHOICE} >> nth=0")
    assert page.locator("#guesses .line").count() == 5
    page.evaluate("location.hash = '#story=6'")
    page.click(f"{CHOICE} >> nth=0")
    page.click("#grow-train")
    page.wait_for_function("() => steps() >= 20", timeout=90_000)  # 1 s on an idle core
    assert "WebAssembly" not in page.inner_text("#grow-status"), "it is done in a worker"
    page.click("nav a >> text=Findings")
    page.wait_for_url(f"{server}{paths.PAGE}")
    page.click("a[href*=phase1_single_head] >> nth=0")
    assert "phase1_single_head" in page.url and page.locator("h1").count() == 1
    page.close()
    assert errors == []
