"""Claims and their rules on made numbers, what is printed and saved, the table of claims, the gallery, the page."""

import json
import re
import types
from contextlib import contextmanager
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

from shared import cli, paths
from shared.evidence import claims, findings, publish, table
from shared.evidence import report as report_page
from shared.evidence.claims import EXPERIMENT, FAILS, HOLDS, IDENTITY, KINDS, ONLY_IF, VERDICTS, Claim, measures
from shared.tests.helpers import needs_browser
from shared.visualization_utils import save_figure

CLAIMS = claims.all_claims()


def made(name="C001", **changes):
    """A claim that one number decides: above 0.5, or at least above 0.2 where it rains."""
    rain = {"only_if": lambda n: n["wetness"] > 0.2, "condition": "it rains"}
    settings = {"text": "water is wet", "kind": IDENTITY, "rule": "above 0.5", "unit": "share", **rain} | changes
    return Claim(id=name, holds=lambda n: n["wetness"] > 0.5, **settings)


@pytest.fixture
def no_claims(monkeypatch):
    """Claims made in a test are forgotten after it."""
    monkeypatch.setattr(claims, "_claims", {})


@pytest.fixture
def options(tmp_path):
    return cli.parse(cli.parser(None), ["--output-dir", str(tmp_path)])


# ----------------------------------------------------------------------------------------- what every claim must be


def test_every_claim_says_what_how_and_where():
    names = [claim.id for claim in CLAIMS]
    assert len(set(names)) == len(names) > 200
    for claim in CLAIMS:
        assert claim.kind in KINDS and claim.text and claim.rule and claim.unit and claim.source, claim.id
        assert (paths.ROOT / claim.script).is_file(), claim.id


@pytest.mark.parametrize("claim", [claim for claim in CLAIMS if claim.oracle is not None], ids=lambda claim: claim.id)
def test_a_rule_tells_an_exact_reader_from_nothing_there(claim):
    assert claim.verdict(claim.oracle) == HOLDS
    assert claim.verdict(claim.null) != HOLDS


def test_each_claim_of_the_notes_is_measured_once_or_settled_by_hand():
    measured, by_hand = {claim.id for claim in CLAIMS}, table.read_by_hand()
    settled = {entry["id"] for entry in by_hand}
    assert not measured & settled and set(table.CLAIM_IDS) <= measured | settled
    for entry in by_hand:
        assert entry["verdict"] in (table.CITED, table.OPINION, table.NOT_HERE) and entry["reason"], entry["id"]
        assert entry["verdict"] != table.CITED or (isinstance(entry["holds"], bool) and entry["source"]), entry["id"]


# ------------------------------------------------------------------------------------------------ rules and verdicts


@pytest.mark.parametrize(("wetness", "verdict"), [(0.6, HOLDS), (0.5, ONLY_IF), (0.2, FAILS)])
def test_a_verdict_follows_the_numbers(wetness, verdict):
    assert made().verdict({"wetness": wetness}) == verdict
    assert made(only_if=None, condition="").verdict({"wetness": wetness}) == (HOLDS if wetness > 0.5 else FAILS)


def test_claims_that_cannot_be_are_refused(no_claims):
    with pytest.raises(ValueError, match="unknown kind 'guess'"):
        made(kind="guess")
    with pytest.raises(ValueError, match="a condition needs its rule"):
        made(only_if=None)
    with pytest.raises(ValueError, match="none of the measured numbers"):
        made(shows=("dry*",)).shown({"wetness": 1.0})
    elsewhere = types.FunctionType(compile("0", "/elsewhere.py", "eval"), {})
    measures(made())(lambda: {})
    with pytest.raises(ValueError, match=r"C001 stands in .*test_evidence.py and in /elsewhere.py"):
        measures(made())(elsewhere)


def test_findings_are_judged_printed_once_and_saved(no_claims, options, capsys):
    @measures(made("one"), made("two", kind=EXPERIMENT, shows=("wet*",)))
    def water(wetness):
        return {"wetness": wetness, "runs": [1.0, 2.0]}

    findings.record(options, water(0.6), water(0.6))
    findings.record(options, water(0.3))  # in place of what was there
    printed = capsys.readouterr().out
    assert printed.count("wetness: 0.6; runs: 1, 2") == 2 and '+ holds: "water is wet" (one)' in printed
    assert "only if it rains; rule: above 0.5 (share)" in printed
    first, second = findings.gather(options.output_dir)
    assert (first["verdict"], first["condition"], first["seeds"]) == (ONLY_IF, "it rains", [])
    assert second["measured"] == {"wetness": 0.3} and second["seeds"] == [0]
    findings.record(options, water(0.7), show_numbers=False)
    assert "wetness: 0.7" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("value", "text"),
    [(1_050_624, "1,050,624"), (0.97, "0.97"), (3.1e-7, "3.1e-07"), (1234.5, "1,234"), ([1.0, 0.25], "1, 0.25")],
)
def test_numbers_are_shown_as_a_reader_wants_them(value, text):
    assert findings.number(value) == text


# ---------------------------------------------------------------------------------------------- the table of claims


def entry(name, **changes):
    """One recorded finding, as a script writes it."""
    return {"id": name, "verdict": HOLDS, "script": "a.py", "measured": {"one": 0.5, "list": [0.25, 1 / 3]}} | changes


def test_the_table_on_disk_is_that_of_the_claims():
    recorded, text = table.read_table(), (paths.ROOT / table.PAGE).read_text(encoding="utf-8")
    assert {claim.id for claim in CLAIMS} == set(recorded)
    assert all(found["verdict"] in VERDICTS and found["measured"] for found in recorded.values())
    assert text == table.page(recorded, CLAIMS, table.read_by_hand())
    for link in re.findall(r"\]\(([^)]+)\)", text):
        assert (paths.ROOT / "data" / link).exists(), link


def test_a_table_without_a_claim_or_with_one_twice_is_refused():
    entries = [entry(name) for name in table.CLAIM_IDS]
    built = table.build([entry("an-own-name"), *entries], [])
    assert list(built) == [*table.CLAIM_IDS, "an-own-name"]
    assert built["C001"] == {"verdict": HOLDS, "measured": {"one": 0.5, "list": [0.25, 0.333333]}}
    with pytest.raises(ValueError, match="C100"):
        table.build([found for found in entries if found["id"] != "C100"], [])
    with pytest.raises(ValueError, match="C007"):
        table.build(entries, [{"id": "C007", "claim": "", "verdict": table.OPINION, "reason": "none"}])


def test_algebra_must_come_out_as_in_the_table_and_training_may_differ():
    of = [made("C001", script="a.py"), made("C002", script="a.py", kind=EXPERIMENT), made("C003", script="b.py")]
    known = {claim.id: {"verdict": HOLDS, "measured": {}} for claim in of}
    same = [entry("C001"), entry("C002")]
    assert table.differences(same, known, of) == ([], [])  # b.py did not run
    wrong, may = table.differences([entry("C001", verdict=FAILS), entry("C002", verdict=FAILS)], known, of)
    assert [line[:4] for line in wrong + may] == ["C001", "C002"] and len(wrong) == 1
    assert table.differences([*same, entry("more")], known, of)[0] == ["more: new, not in the table"]
    assert table.differences(same[1:], known, of)[0] == ["C001: a.py ran and did not record it"]
    assert table.differences(same, known, of[:2])[0] == ["C003: in the table, and no script has it"]


# ------------------------------------------------------------------------------------------------------ the gallery


def test_the_gallery_is_what_the_readmes_show_and_nothing_else(tmp_path):
    root, run = tmp_path / "root", tmp_path / "run"
    (root / "phase1").mkdir(parents=True)
    (root / "README.md").write_text("![a](visualizations/gallery/phase1/a.png)", encoding="utf-8")
    (root / "phase1" / "README.md").write_text("[b](../visualizations/gallery/b.gif)", encoding="utf-8")
    old = root / paths.GALLERY / "old.png"
    for path in (old, run / paths.PLOTS / "phase1" / "a.png", run / paths.PLOTS / "c.png"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(path.stem, encoding="utf-8")
    with pytest.raises(ValueError, match=r"not drawn yet: b.gif"):
        publish.publish(run, root)
    assert old.exists()
    (run / paths.ANIMATIONS).mkdir(parents=True)
    (run / paths.ANIMATIONS / "b.gif").write_text("b", encoding="utf-8")
    publish.publish(run, root)
    left = sorted(path for path in (root / paths.GALLERY).rglob("*") if path.is_file())
    assert [path.name for path in left] == ["b.gif", "a.png"] and left[1].read_text(encoding="utf-8") == "a"


def test_the_gallery_on_disk_is_what_the_readmes_show():
    gallery = paths.ROOT / paths.GALLERY
    shown = {path.relative_to(gallery).as_posix() for path in gallery.rglob("*") if path.is_file()}
    assert shown == set(publish.linked_pictures(paths.ROOT))
    for path in gallery.rglob("*.png"):
        assert path.stat().st_size <= 200_000, path.name


def test_a_saved_finding_is_plain_json(no_claims, options):
    @measures(made())
    def water():
        return {"wetness": 1.0}

    findings.record(options, water())
    (path,) = (options.output_dir / paths.PROCESSED / "findings").iterdir()
    assert json.loads(path.read_text(encoding="utf-8"))[0]["claim"] == "water is wet"


# ----------------------------------------------------------------------------------------------------- the report page


def saved(name: str, claim: str, verdict: str = HOLDS) -> dict:
    """A finding as it is saved."""
    plain = {"kind": "identity", "source": "test", "measured": {"wetness": 0.5}, "unit": "unit", "rule": "rule"}
    condition = "it rains" if verdict == ONLY_IF else ""
    return plain | {"id": name, "claim": claim, "verdict": verdict, "condition": condition, "control": "", "seeds": []}


MADE = {
    "phase1_single_head/parts/scaling.py": [
        saved("C901", "<b>water</b> is wet <script>alert(1)</script>"),
        saved("C902", "a mask hides the future", FAILS),
    ],
    "phase4_causal/masking/masks.py": [
        saved("C903", "Mask and future meet", ONLY_IF),
        saved("no-phase-4", "fire is hot", FAILS),
    ],
    "shared/measure.py": [saved("C904", "clocks tick", HOLDS)],
}


def save(script: str, folder: Path) -> None:
    with paths.whole_file(findings.file_of(script, folder)) as unfinished:
        unfinished.write_text(json.dumps([found | {"script": script} for found in MADE[script]]), encoding="utf-8")


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A small repository with findings, pictures, scripts, one lesson and an explorer; its report page."""
    folder = tmp_path_factory.mktemp("report")
    for script in MADE:
        (folder / script).parent.mkdir(parents=True, exist_ok=True)
        (folder / script).touch()
        save(script, folder)
    (folder / "phase1_single_head" / "README.md").touch()
    for name in ("summary.png", "phase1/x.png", "elsewhere/y.png"):
        save_figure(plt.figure(figsize=(9, 2)), folder / paths.PLOTS / name, caption=f'A "caption" <i> of {name}')
    (folder / paths.PAGE).with_name("explorer.html").write_text("<!doctype html><title>explorer</title>")
    return report_page.write_page(folder)


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
    for found in (found for all_found in MADE.values() for found in all_found):  # once each, also without a phase
        assert page.count(f'<article id="{found["id"]}"') == 1
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
    assert report_page.write_page(report.parents[1]).read_bytes() == first
    save("phase1_single_head/parts/scaling.py", tmp_path)
    page = report_page.write_page(tmp_path).read_text()
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
