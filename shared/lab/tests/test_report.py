"""The report: nothing is lost, every link arrives, and everybody can read it in a browser."""

import re
from html.parser import HTMLParser
from statistics import median

import matplotlib.pyplot as plt
import pytest

from phase1_single_head.parts import scaling
from phase4_causal.masking import causality
from shared import paths
from shared.claims import Claim, all_claims
from shared.lab import findings, record
from shared.lab.gallery import SMALL_PICTURES
from shared.lab.plan import path_of
from shared.lab.report import write_report
from shared.tests.helpers import axe_violations
from shared.visualization_utils import save_figure

SCALING, CAUSALITY = "phase1_single_head.parts.scaling", "phase4_causal.masking.causality"


def claim(name, text, experiment, at_least, effect, revised=""):
    worlds = {"oracle": {"*": 1}, "null": {"*": 0}}
    words = {"source": "test", "rule": "rule", "revised": revised, "experiment": experiment}
    return Claim(id=name, text=text, effect=effect, at_least=at_least, **words, **worlds)


def dry_on_record(numbers):
    """1 in the record, and 0.5 in the run that is made here."""
    return numbers.get("wetness", 1.0)


def cold_on_record(numbers):
    return numbers.get("wetness", 0.0)


CHANGING = next(iter(record.runs(CAUSALITY)[0]))
MIDDLE = median(numbers[CHANGING] for numbers in record.runs(CAUSALITY))
MADE = {
    SCALING: [
        claim("C901", "<b>water</b> <script>alert(1)</script>", SCALING, 0.7, dry_on_record),
        claim("C902", "A mask hides. In 0.5 heads.", SCALING, 0.3, cold_on_record),
    ],
    CAUSALITY: [
        claim("C903", "They meet", CAUSALITY, MIDDLE, lambda n: n[CHANGING], "it rained"),
        claim("no-phase-4", "fire is hot", CAUSALITY, 0.3, cold_on_record),
    ],
}
TURNED = 3  # all but C903, where the seeds of the record differ
DRAWN = (
    "phase1/scaling.png",
    "phase3/attention_flow.png",
    "phase4/causality.png",
    "summary_all_phases.png",
)
IN_ORDER = ["C901", "C902", "C903", "no-phase-4"]


def measured(experiment):
    """A run: all numbers are those of seed 0, but the first."""
    numbers = dict(record.first_run(experiment))
    first = next(iter(numbers))
    return numbers | {first: numbers[first] + 1, "wetness": 0.5}


@pytest.fixture(scope="module")
def made_up():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scaling.main, "claims", MADE[SCALING])
        patch.setattr(causality.main, "claims", MADE[CAUSALITY])
        yield


@pytest.fixture(scope="module")
def report(tmp_path_factory, made_up):
    """The report of a few findings and pictures, beside a live page."""
    folder = tmp_path_factory.mktemp("report")
    for experiment in MADE:
        kept = findings.SavedRun(experiment, [], "It is <wet>", [measured(experiment)])
        findings.save(kept, folder)
    for name in DRAWN:
        caption = f'A "caption" <i> of {name}'
        save_figure(plt.figure(figsize=(9, 5)), folder / paths.PLOTS / name, caption=caption)
    (folder / paths.EXPLORER).write_bytes(b"<!doctype html><title>live page</title>")
    return write_report(folder)


def test_report_escapes_and_leaves_nothing_out(report):
    page = report.read_text(encoding="utf-8")
    on_record = [claim for claim in all_claims() if record.verdict(claim)]
    for part in (
        "&lt;b&gt;water&lt;/b&gt;",
        "It is &lt;wet&gt;",
        "after a look at seeds 0 to 9: it rained",
        '/phase1_single_head/parts/scaling.py">parts/scaling.py</a>',
        'README.md#a-head-can-look-at-the-right-word-and-still-not-matter">How we found it',
        f"You see {len(IN_ORDER)} of the {len(on_record)} findings here",
        "<span>A mask hides.",
        '<p class="quiet">In 0.5 heads.</p>',
    ):
        assert part in page, part
    for name in DRAWN:
        assert page.count(f'<img src="plots/{name}') == 1, name
    assert page.count("seven/") == len(SMALL_PICTURES), "the seven, each with its picture"
    for wrong in ("<b>water", "<script>alert", ".: "):
        assert wrong not in page, wrong
    for each in (r'<details id="([^"]+)" class', r'<a href="#([^"]+)" title="[^"]+: '):
        assert re.findall(each, page) == IN_ORDER
    (article,) = re.findall(r"<article(?:(?!</article>).)*C901.*?</article>", page, re.DOTALL)
    assert "plots/phase1/scaling.png" in article and "What does dividing by √d_k do" in article


def told(report):
    """What the page says of the run."""
    page = report.read_text(encoding="utf-8")
    return page.partition('<h2 id="run">')[2].partition("</section>")[0]


def test_the_page_says_what_of_a_run_is_not_ours(report, made_up, tmp_path):
    compared = sum(len(record.first_run(experiment)) for experiment in MADE)
    assert f"not agree with ours everywhere.</strong> 2 of {compared} numbers" in told(report)
    for experiment in MADE:
        changed = record.differing(experiment, measured(experiment))
        assert f"{path_of(experiment)}: {changed[0]}</li>" in told(report)
        findings.save(findings.SavedRun(experiment, runs=[record.first_run(experiment)]), tmp_path)
    assert report.read_text(encoding="utf-8").count("<em>In your run: ") == TURNED
    same = f"Your run agrees with ours, number for number.</strong> We compared {compared} numbers"
    assert same in told(write_report(tmp_path))


class Read(HTMLParser):
    """Where a page leads, and its anchors."""

    def __init__(self, html):
        super().__init__()
        self.links, self.ids = [], set()
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.ids.add(values.get("id"))
        self.links += [values[name] for name in ("href", "src") if values.get(name)]


@pytest.mark.parametrize("code_url", ["", "https://code.example"])
def test_every_link_arrives(report, made_up, monkeypatch, code_url):
    monkeypatch.setenv("CODE_URL", code_url)
    page = Read(write_report(report.parent.parent).read_text(encoding="utf-8"))
    for link in page.links:
        file, _, anchor = link.partition("#")
        if code_url and file.startswith(code_url):
            file = str(paths.ROOT) + file.removeprefix(code_url)
        elif file.startswith(("https:", "data:")) or file == paths.EXPLORER.name:
            continue
        assert (report.parent / file).exists(), link
        assert file or not anchor or anchor in page.ids, link


# ---- in the browser

PICTURES = """async () => {
    const all = [...document.querySelectorAll("article img")];
    return Promise.all(all.map(async (one) => {
        one.loading = "eager";
        await one.decode();
        const { width, height } = one.getBoundingClientRect();
        return { width, stretched: (width / height) / (one.naturalWidth / one.naturalHeight) };
    }));
}"""
SMALL_CARDS = "[...document.querySelectorAll('.cards img')].filter((one) => one.width < 300)"
LOADED = "[...document.querySelectorAll('article img')].some((one) => one.naturalWidth)"
OPEN_ALL = "document.querySelectorAll('details').forEach((one) => one.open = true)"


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_everybody_can_read_the_page(report, browser, scheme, width):
    page = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": 800})
    page.goto(report.as_uri())
    assert page.locator("pre:visible, dl:visible").count() == 0, "numbers are a click away"
    assert not page.evaluate(LOADED), "pictures, too"
    page.evaluate(OPEN_ALL)
    pictures = page.evaluate(PICTURES)
    assert len(pictures) == len(DRAWN)
    for picture in pictures:
        assert picture["width"] >= min(480, width - 40), "letters can be read"
        assert picture["stretched"] == pytest.approx(1, rel=0.01), "whole"
    assert page.evaluate(SMALL_CARDS) == []
    assert axe_violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()
