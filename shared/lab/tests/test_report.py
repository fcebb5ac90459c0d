"""The pages: what stands where, that nothing is lost and every link arrives, and the page in a real
browser.
"""

import re
from html.parser import HTMLParser
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

from shared import cli, paths
from shared.claims import DIFFER, FAILS, HOLDS, all_claims
from shared.experiment import made_otherwise
from shared.lab import findings, record
from shared.lab import report as write_pages
from shared.lab.front_page import SMALL_PICTURES
from shared.lab.lessons import rendered, sources
from shared.paths import place
from shared.tests.helpers import axe_violations
from shared.visualization_utils import save_figure

MADE = {
    "phase1_single_head.parts.scaling": [
        ("C901", "<b>water</b> is wet <script>alert(1)</script>", HOLDS),
        ("C902", "A mask hides the future. In two layers of 0.5 heads.", FAILS),
    ],
    "phase4_causal.masking.causality": [
        ("C903", "Mask and future meet", DIFFER),
        ("no-phase-4", "fire is hot", FAILS),
    ],
}
DRAWN = (
    "phase1/scaling.png",
    "phase3/attention_flow.png",
    "phase4/causality.png",
    "summary_all_phases.png",
)
IN_ORDER = ["C901", "C902", "C903", "no-phase-4"]


def saved(name, claim, kind):
    """A finding as it is saved."""
    return {
        "id": name,
        "claim": claim,
        "kind": kind,
        "verdict": f"{kind}, 3 of 10",
        "source": "test",
        "rule": "rule",
        "effect": "0.5 to 0.7",
        "here": "holds, 1 of 1 seeds",
        "as published": False,
        "on record": True,
        "revised": "it rained" if kind == DIFFER else "",
    }


def measured(experiment):
    """A run: all numbers in the middle of what the record expects, but five are far above it."""
    names = [*record.runs(experiment)[0]]
    ends = {name: record.interval(experiment, name) for name in names}
    numbers = {name: (low + high) / 2 for name, (low, high) in ends.items()}
    changing = [name for name, (low, high) in ends.items() if low < high]
    for name in changing[:5]:
        low, high = ends[name]
        numbers[name] = high + 9 * (high - low)
    return numbers | {"wetness": 0.5}


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A report page of a few findings and pictures, beside the lessons and an explorer."""
    folder = tmp_path_factory.mktemp("report")
    for experiment, made in MADE.items():
        content = {
            "experiment": experiment,
            "otherwise": [],
            "findings": [saved(*finding) for finding in made],
            "runs": [measured(experiment)],
            "table": "wetness  0.5  <on record>",
            "answer": "It is <wet>",
        }
        findings.save(folder, content)
    for name in DRAWN:
        caption = f'A "caption" <i> of {name}'
        save_figure(plt.figure(figsize=(9, 5)), folder / paths.PLOTS / name, caption=caption)
    (folder / paths.EXPLORER).write_bytes(b"<!doctype html><title>explorer</title>")
    return write_pages.write_pages(folder)


class Read(HTMLParser):
    """What a page says and where it leads: the words of its <main>, links, anchors."""

    def __init__(self, html):
        super().__init__()
        self.text, self.links, self.ids, self.inside = [], [], set(), False
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        said = dict(attributes)
        self.inside = self.inside or tag == "main"
        self.ids.add(said.get("id"))
        self.links += [said[name] for name in ("href", "src") if said.get(name)]
        if tag == "img":
            self.handle_data(said["alt"])

    def handle_endtag(self, tag):
        self.inside = self.inside and tag not in ("main", "script")

    def handle_data(self, data):
        if self.inside:
            self.text.append(data)


def read(path):
    return Read(path.read_text(encoding="utf-8"))


def test_report_escapes_and_leaves_nothing_out(report):
    page = report.read_text(encoding="utf-8")
    for said in (
        "&lt;b&gt;water&lt;/b&gt; is wet",
        "It is &lt;wet&gt;",
        "0.5  &lt;on record&gt;",
        "after a look at seeds 0 to 9: it rained",
        '/phase1_single_head/parts/scaling.py">parts/scaling.py</a>',
        "<strong>What was read first is not what gets lost.</strong> Before attention",
        'href="lessons/data/surprises.html#what-was-read-first-is-not-what-gets-lost">Read on</a>',
    ):
        assert said in page, said
    for name in DRAWN:
        assert page.count(f'<img src="plots/{name}') == 1, name
    assert page.count(">Read on</a>") == len(SMALL_PICTURES), "the seven, each with its picture"
    assert "<b>water" not in page and "<script>alert" not in page
    for each in (r'<details id="([^"]+)"', r'<a href="#([^"]+)" title="[^"]+: '):
        assert re.findall(each, page) == IN_ORDER
    (scaling,) = re.findall(r"<article(?:(?!</article>).)*C901.*?</article>", page, re.DOTALL)
    assert "plots/phase1/scaling.png" in scaling and "What does dividing by √d_k do" in scaling


def run_section(report):
    page = report.read_text(encoding="utf-8")
    return page[page.index('<h2 id="run">') : page.index('<h2 id="surprises">')]


def test_the_page_says_how_many_numbers_lie_in_their_ranges(report):
    compared = []
    for experiment in MADE:
        compared += record.inside(experiment, [measured(experiment)])
    count = len(compared)
    assert f"{count - 10} of {count} numbers of your run lie in their ranges" in run_section(report)
    differing = report.read_text(encoding="utf-8").count("In your run: holds, 1 of 1 seeds.")
    assert differing == len(IN_ORDER), "all of these came out otherwise than on record"


def test_a_test_drive_is_told_and_not_compared(tmp_path):
    for options in (["--quick"], []):
        for experiment, otherwise in zip(MADE, (["--heads"], options), strict=True):
            content = {
                "experiment": experiment,
                "otherwise": otherwise,
                "findings": [saved(*finding) for finding in MADE[experiment]],
                "runs": [measured(experiment)],
                "table": "",
                "answer": "",
            }
            findings.save(tmp_path, content)
        page = write_pages.write_report(tmp_path)
        section = run_section(page)
        assert f"{1 + bool(options)} of 2 experiments were run with <code>--heads</code>" in section
        assert ("<code>--quick</code>" in section) == bool(options)
        assert ("lie in their ranges" in section) == (not options)
        differing = page.read_text(encoding="utf-8").count("In your run: ")
        assert differing == (0 if options else 2), "those that were made like the record"


def test_an_experiment_keeps_how_it_was_made_otherwise_than_the_record():
    for given, kept in [
        ([], []),
        (["--seed", "7", "--numbers"], []),
        (["--quick"], ["--quick"]),
        (["--d-model", "32", "--quick"], ["--quick", "--d-model"]),
    ]:
        assert made_otherwise(cli.parse(cli.parser(""), given)) == kept


def test_the_page_says_how_many_of_the_findings_on_record_it_has(report):
    page = report.read_text(encoding="utf-8")
    on_record = [claim for claim in all_claims() if record.verdict(claim)]
    assert f"You see {len(IN_ORDER)} of the {len(on_record)} findings here" in page
    assert "<strong>A mask hides the future.</strong>" in page
    assert '<span class="quiet">In two layers of 0.5 heads.</span>' in page


def test_every_link_and_anchor_of_every_page_arrives(report):
    pages = sorted(report.parent.rglob("*.html"))
    assert len(pages) == len(sources()) + 2
    for page in pages:
        for link in read(page).links:
            file, _, anchor = link.partition("#")
            target = page.parent / file if file else page
            assert target.suffix != ".md" or link.startswith("https:"), f"{page}: {link} is no page"
            if link.startswith(("https:", "data:")) or target.name == paths.EXPLORER.name:
                continue
            assert target.exists(), f"{page}: {link}"
            if anchor:
                assert anchor in read(target).ids, f"{page}: {link}"


LINKS = """
# A `<a href="code.md">`
[b](parts/README.md#scores) [c](self_attention.py) [d](#e) [f](https://g.example/h.md)
![i](../visualizations/gallery/j.png) <img src="../visualizations/gallery/k.svg" alt="l">
"""


@pytest.mark.parametrize("code_url", ["", "https://code.example"])
def test_a_link_leads_to_a_page_or_to_a_file_of_the_repository(monkeypatch, code_url):
    monkeypatch.setenv("CODE_URL", code_url)
    source = Path("phase1_single_head", "README.md")
    assert Read(rendered(LINKS, source, place(source), paths.ROOT)).links == [
        "parts/index.html#scores",
        f"{code_url or '../../..'}/phase1_single_head/self_attention.py",
        "#e",
        "https://g.example/h.md",
        "../../gallery/j.png",
        "../../gallery/k.svg",
    ]


# ---- in the browser

PICTURES = """async () => {
    const all = [...document.querySelectorAll("article img")];
    const seen = all.filter((one) => one.checkVisibility());
    return Promise.all(seen.map(async (one) => {
        one.loading = "eager";
        await one.decode();
        const { width, height } = one.getBoundingClientRect();
        return [{ width, height }, { width: one.naturalWidth, height: one.naturalHeight }];
    }));
}"""
OPEN_NINE = (
    "[...document.querySelectorAll('details')].slice(0, 9).forEach((one) => one.open = true)"
)
PAGES = (paths.PAGE, place(Path("phase1_single_head", "README.md")), place(Path("README.md")))


@pytest.mark.parametrize("name", PAGES, ids=Path.as_posix)
@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_everybody_can_read_every_page(report, browser, name, scheme, width):
    page = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": 800})
    page.goto((report.parent.parent / name).as_uri())
    if name == paths.PAGE:
        assert page.locator("pre:visible, dl:visible").count() == 0, "numbers are a click away"
        pictures = page.evaluate(PICTURES)
        assert len(pictures) == len(DRAWN)
        for shown, in_file in pictures:
            assert shown["width"] >= min(480, width - 40), "letters can be read"
            proportions = shown["width"] / shown["height"]
            expected = in_file["width"] / in_file["height"]
            assert proportions == pytest.approx(expected, rel=0.01), "whole"
        for image in page.locator(".cards img").all():
            assert image.bounding_box()["width"] >= 300
    page.evaluate(OPEN_NINE)
    assert axe_violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for link in page.locator(".menu a").all():
        box = link.bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= width, "the menu is whole"
        assert box["y"] < 60, "in two lines"
    page.close()
