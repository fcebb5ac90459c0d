"""Tests: report."""

import re
from contextlib import contextmanager
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

from shared import paths
from shared.evidence import findings
from shared.evidence.findings import FAILS, HOLDS, ONLY_IF, Finding
from shared.tests.helpers import needs_browser
from shared.visualization_utils import save_figure


def made_finding(name: str, claim: str, verdict: str = HOLDS) -> Finding:
    condition = "it rains" if verdict == ONLY_IF else ""
    return Finding(name, claim, "test", {"wetness": 0.5}, "unit", "rule", verdict, condition=condition)


MADE = {
    "phase1_single_head/parts/scaling.py": [
        made_finding("C901", "<b>water</b> is wet <script>alert(1)</script>"),
        made_finding("C902", "a mask hides the future", FAILS),
    ],
    "phase4_causal/masking/masks.py": [
        made_finding("C903", "Mask and future meet", ONLY_IF),
        made_finding("no-phase-4", "fire is hot", FAILS),
    ],
    "shared/measure.py": [made_finding("C904", "clocks tick", HOLDS)],
}


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A small repository with findings, pictures, scripts, one lesson and an explorer; its report page."""
    folder = tmp_path_factory.mktemp("report")
    for script, made in MADE.items():
        (folder / script).parent.mkdir(parents=True, exist_ok=True)
        (folder / script).touch()
        findings.record(script, made, folder)
    (folder / "phase1_single_head" / "README.md").touch()
    for name in ("summary.png", "phase1/x.png", "elsewhere/y.png"):
        save_figure(plt.figure(figsize=(9, 2)), folder / paths.PLOTS / name, caption=f'A "caption" <i> of {name}')
    (folder / paths.PAGE).with_name("explorer.html").write_text("<!doctype html><title>explorer</title>")
    return findings.write_page(folder)


@contextmanager
def opened(browser, page_path: Path, address: str = "", **settings):
    """The page in a new window; fails on a console message, an error, or a request to anything but a file."""
    complaints = []
    context = browser.new_context(**settings)
    page = context.new_page()
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("requestfailed", lambda request: complaints.append(request.url))
    page.on("request", lambda r: complaints.append(r.url) if not r.url.startswith("file:") else None)
    page.goto(page_path.as_uri() + address)
    yield page
    context.close()
    assert complaints == []


def shown(page) -> list[str]:
    """Ids of the findings that can be seen."""
    return [article.get_attribute("id") for article in page.locator("article").all() if article.is_visible()]


def counts(page, kind: str) -> dict[str, int]:
    """Verdict or section -> the number beside it; all places that show the same number must agree."""
    found = {}
    for place in page.locator(f"[data-count-{kind}]").all():
        name, number = place.get_attribute(f"data-count-{kind}"), int(place.text_content())
        assert found.setdefault(name, number) == number
    return found


def test_report_escapes_and_leaves_nothing_out(report):
    page = report.read_text()
    assert "&lt;b&gt;water&lt;/b&gt; is wet" in page and "<b>water" not in page and "<script>alert" not in page
    assert "A &#34;caption&#34; &lt;i&gt;" in page
    for made in MADE.values():  # once each, also without a phase
        for finding in made:
            assert page.count(f'<article id="{finding.id}"') == 1
    assert all(
        page.count(f'<img src="plots/{name}') == 1 for name in ("summary.png", "phase1/x.png", "elsewhere/y.png")
    )
    assert page.index("plots/summary.png") < page.index('id="phase1"') < page.index('id="C904"')  # the poster first
    assert "<dt>seeds" not in page and "holds only if</b> it rains" in page


def test_report_links_lead_to_files(report):
    page = report.read_text()
    links = re.findall(r'(?:href|src)="([^"]+)"', page)
    for link in links:
        if link.startswith("#"):
            assert f'id="{link[1:]}"' in page, link
        else:
            assert (report.parent / link).is_file() and not link.startswith("/"), link
    expected = {"explorer.html", "../phase1_single_head/README.md", *(f"../{script}" for script in MADE)}
    assert expected <= set(links) and "../phase4_causal/README.md" not in links  # the one lesson that is there


def test_report_written_elsewhere_has_no_dead_links_and_the_same_bytes_twice(report, tmp_path):
    first = report.read_bytes()
    assert findings.write_page(report.parents[1]).read_bytes() == first
    findings.record("phase1_single_head/parts/scaling.py", MADE["phase1_single_head/parts/scaling.py"], tmp_path)
    page = findings.write_page(tmp_path).read_text()
    assert re.findall(r'(?:href|src)="([^#"][^"]*)"', page) == [] and "phase1_single_head/parts/scaling.py" in page


@needs_browser
def test_report_filters_by_verdict_and_its_counts_agree(report, browser):
    with opened(browser, report) as page:
        assert shown(page) == ["C901", "C902", "C903", "no-phase-4", "C904"]
        assert counts(page, "verdict") == {"": 5, "holds": 2, "does-not-hold": 2, "holds-only-if": 1}
        for verdict, left in {"holds": ["C901", "C904"], "does-not-hold": ["C902", "no-phase-4"]}.items():
            page.locator(f"input[value={verdict}]").check()
            assert shown(page) == left and page.url.endswith(f"#verdict={verdict}")
            assert page.locator("output").inner_text() == "2 of 5 findings, without the pictures"
            assert counts(page, "verdict") == {"": 5, "holds": 2, "does-not-hold": 2, "holds-only-if": 1}
        assert counts(page, "section") == {"phase1": 1, "phase4": 1, "shared": 0}
        assert not page.locator("figure").first.is_visible() and not page.locator("#shared").is_visible()
        page.locator("#filter-clear").click()
        assert len(shown(page)) == 5 and "#" not in page.url and page.locator("figure").first.is_visible()


@needs_browser
def test_report_filters_by_words_from_the_keyboard(report, browser):
    with opened(browser, report) as page:
        page.keyboard.press("/")
        page.keyboard.type("FUTURE mask")  # both, in any order and case
        assert shown(page) == ["C902", "C903"] and page.url.endswith("#words=FUTURE+mask")
        assert counts(page, "verdict") == {"": 2, "holds": 0, "does-not-hold": 1, "holds-only-if": 1}
        page.keyboard.press("Escape")
        assert len(shown(page)) == 5
        for words, left in {
            "c904": ["C904"],
            "masks.py": ["C903", "no-phase-4"],
            "<b>": ["C901"],
            "nowhere": [],
        }.items():
            page.locator("input[type=search]").fill(words)
            assert shown(page) == left


@needs_browser
@pytest.mark.parametrize(
    ("address", "left"),
    [
        ("#verdict=does-not-hold&words=mask", ["C902", "no-phase-4"]),
        ("#words=%3Cb%3E", ["C901"]),
        ("#verdict=nonsense", ["C901", "C902", "C903", "no-phase-4", "C904"]),
        ("#C903", ["C901", "C902", "C903", "no-phase-4", "C904"]),
        ("#%", ["C901", "C902", "C903", "no-phase-4", "C904"]),
    ],
)
def test_report_restores_the_filter_from_its_address(report, browser, address, left):
    with opened(browser, report, address) as page:
        assert shown(page) == left
        page.evaluate("location.hash = '#C904'")  # a link to a finding reaches it, whatever is filtered
        page.wait_for_function("document.getElementById('C904').checkVisibility()")


@needs_browser
def test_report_works_on_a_phone_and_without_javascript(report, browser):
    with opened(browser, report, viewport={"width": 360, "height": 640}) as page:
        assert page.evaluate("document.documentElement.scrollWidth") == 360
    with opened(browser, report, java_script_enabled=False) as page:
        assert len(shown(page)) == 5 and not page.locator("form").is_visible()
        assert page.locator("figure").count() == 3 and page.locator("nav a").first.is_visible()
