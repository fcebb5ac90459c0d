"""The pages: what stands where, that nothing is lost and every link arrives, and the page in a real browser."""

import io
import os
import re
import shutil
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
from PIL import Image

from shared import course, paths
from shared.evidence import findings, replications
from shared.evidence.claims import FAILS, HOLDS, ONLY_IF, all_claims
from shared.evidence.report import write_pages
from shared.evidence.report.lessons import HOME, Site, place, rendered, sources, write_lesson
from shared.evidence.report.questions import Picture, headlines_first, ranked
from shared.evidence.report.write_pages import TRY, surprises
from shared.evidence.seven import SEVEN
from shared.plan import plans
from shared.tests.helpers import axe_violations, needs_browser
from shared.visualization_utils import save_figure

TALLEST = {"desktop": 12_000, "phone": 19_000}  # pixels of the report page, before anything is opened
DESKTOP, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}


# ------------------------------------------------------------------------------------------------- made pages, read


def saved(name: str, claim: str, verdict: str = HOLDS, *, headline: bool = False) -> dict:
    """A finding as it is saved."""
    rest = {"kind": "experiment", "source": "test", "unit": "unit", "rule": "rule", "rests on": "5 runs", "changed": ""}
    condition = "it rains" if verdict == ONLY_IF else ""
    said = {"id": name, "claim": claim, "verdict": verdict, "here": verdict, "condition": condition}
    return rest | said | {"headline": headline}


SCALING, MASKS = "phase1_single_head/parts/scaling.py", "phase4_causal/masking/causality.py"
MADE = {
    SCALING: [
        saved("C901", "<b>water</b> is wet <script>alert(1)</script>"),
        saved("C902", "a mask hides the future", FAILS, headline=True),
    ],
    MASKS: [saved("C903", "Mask and future meet", ONLY_IF), saved("no-phase-4", "fire is hot", FAILS)],
}
FLOW = "phase3/attention_flow.png"  # its script measured nothing in this run
DRAWN = ("phase1/scaling.png", FLOW, "phase4/causality.png", "summary_all_phases.png")
IN_ORDER = ["C902", "C901", "no-phase-4", "C903"]


def save(script: str, found: list[dict], folder: Path) -> None:
    findings.save(folder, script, found, [{"wetness": 0.5}], "wetness  0.5\n<published>  0.4", "It is <wet>")


def draw(folder: Path, name: str) -> None:
    save_figure(plt.figure(figsize=(9, 5)), folder / paths.PLOTS / name, caption=f'A "caption" <i> of {name}')


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A report page of a few findings and pictures, beside their scripts and an explorer."""
    folder = tmp_path_factory.mktemp("report")
    for script in MADE:
        (folder / script).parent.mkdir(parents=True, exist_ok=True)
        (folder / script).touch()
        save(script, MADE[script], folder)
    for name in DRAWN:
        draw(folder, name)
    shutil.copytree(paths.ROOT / paths.GALLERY / "seven", folder / paths.PLOTS / "seven")
    (folder / paths.EXPLORER).write_bytes(b"<!doctype html><title>explorer</title>")
    return write_pages.write_report(Site(folder))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The pages of a whole run: every claim that the record has, as its first seed judged it, and a picture each."""
    folder = tmp_path_factory.mktemp("whole")
    by_script = {}
    for claim in all_claims():
        if known := replications.published(claim):
            by_script.setdefault(claim.script, []).append(findings.judged(claim, known.runs[:1]))
    for script, found in by_script.items():
        save(script, found, folder)
    for phase, plan in plans().items():
        for name in plan.all:
            draw(folder, f"{phase}/{name.rpartition('.')[2]}.png")
    (folder / paths.EXPLORER).write_bytes(b"<!doctype html><title>explorer</title>")
    write_pages.write_pages(folder)
    return folder


class Read(HTMLParser):
    """What a page says and where it leads: the words of its <main>, links, anchors."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text, self.links, self.ids, self.inside = [], [], set(), False
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        said = dict(attributes)
        self.inside = self.inside or tag == "main"
        self.ids |= {said["id"]} if "id" in said else set()
        self.links += [said[name] for name in ("href", "src") if said.get(name)]
        self.text += [said["alt"]] if tag == "img" and self.inside else []

    def handle_endtag(self, tag):
        self.inside = self.inside and tag not in ("main", "script")

    def handle_data(self, data):
        self.text += [data] if self.inside else []


def read(path: Path) -> Read:
    return Read(path.read_text(encoding="utf-8"))


def dead_links(path: Path) -> list[str]:
    """Links of a page that lead to no file, or to no place in it. The explorer's views have tests of their own."""
    dead = []
    for link in read(path).links:
        file, _, anchor = link.partition("#")
        target = (path.parent / file) if file else path
        if link.startswith(("https:", "data:")) or (target.name == paths.EXPLORER.name and target.is_file()):
            continue
        if not target.exists() or (anchor and anchor not in read(target).ids):
            dead.append(link)
    return dead


# -------------------------------------------------------------------------------------------------- the report page


def test_report_escapes_and_leaves_nothing_out(report):
    page = report.read_text(encoding="utf-8")
    assert "&lt;b&gt;water&lt;/b&gt; is wet" in page and "<b>water" not in page and "<script>alert" not in page
    assert "A &#34;caption&#34; &lt;i&gt;" in page
    for found in (found for all_found in MADE.values() for found in all_found):
        assert page.count(f'<details id="{found["id"]}"') == 1
    assert all(page.count(f'<img src="plots/{name}') == 1 for name in DRAWN)
    assert "It is &lt;wet&gt;" in page and "&lt;published&gt;  0.4" in page and "<dt>only if</dt><dd>it rains" in page


def test_a_finding_stands_beside_the_pictures_of_its_script(report):
    articles = re.findall(r"<article.*?</article>", report.read_text(encoding="utf-8"), re.DOTALL)
    (scaling,) = (article for article in articles if "C901" in article)
    (masks,) = (article for article in articles if "C903" in article)
    assert "plots/phase1/scaling.png" in scaling and "What does dividing by √d_k do" in scaling
    assert "plots/phase4/causality.png" in masks and "no-phase-4" in masks
    assert "plots/summary_all_phases.png" in articles[-1], "promised in the docstring of summary.py"


def test_the_course_is_about_comes_first_then_verdicts_then_lesson_order(report):
    findings_of = [saved("a", "", FAILS), saved("b", ""), saved("c", "", ONLY_IF, headline=True), saved("d", "", HOLDS)]
    assert [found["id"] for found in ranked(findings_of)] == ["c", "b", "d", "a"]
    first, empty, later = ({"findings": found, "pictures": []} for found in ([saved("x", "")], [], findings_of))
    assert headlines_first([first, empty, later]) == [later, first]
    page = report.read_text(encoding="utf-8")
    assert re.findall(r'<details id="([^"]+)"', page) == IN_ORDER


def test_the_counts_of_the_head_are_those_of_the_filter(whole):
    words = " ".join(" ".join(read(whole / paths.PAGE).text).split())
    page = (whole / paths.PAGE).read_text(encoding="utf-8")
    head = re.search(r"Of (\d+) claims (\d+) were put to experiments: (.*?)\. The other (\d+) are .*?: (.*?)\.", words)
    every, experiments, of_experiments, others, of_others = head.groups()
    assert int(every) == int(experiments) + int(others) == page.count("<details id=")
    for said, all_numbers, kind in (
        (of_experiments, int(experiments), "experiments"),
        (of_others, int(others), "others"),
    ):
        assert sum(map(int, re.findall(r"\d+", said))) == all_numbers, kind
    for verdict, plural in write_pages.PLURAL.items():
        both = [re.search(rf"(\d+) {plural}(?:,|$)", said) for said in (of_experiments, of_others)]
        slug = verdict.replace(" ", "-")
        assert sum(int(found.group(1)) for found in both if found) == page.count(f'data-verdict="{slug}"')


def test_a_picture_is_called_by_the_first_sentence_of_its_caption():
    for caption, title in {
        "One of 1.00 looks. A dot for each.": "One of 1.00 looks",
        'Whom does "?" ask? Rows ask.': 'Whom does "?" ask?',
        "Ways to write it: 12 of 20 leak": "Ways to write it: 12 of 20 leak",
    }.items():
        assert Picture(Path("a.png"), caption, 1, 1).title == title


def test_the_seven_are_those_of_the_front_door():
    found = surprises(Site(paths.ROOT))
    readme = (paths.ROOT / "README.md").read_text(encoding="utf-8")
    assert [surprise["picture"] for surprise in found] == [f"plots/seven/{name}.png" for name in SEVEN]
    for number, surprise in enumerate(found, 1):
        words = Read(f"<main>{surprise['said']}</main>").text
        title = words[0]
        assert title.startswith(f"{number}. ") and f"**{title}**" in readme and words[-1] == ")."
        links = Read(surprise["said"]).links
        assert len(links) == 1 and (paths.ROOT / paths.PAGE.parent / links[0]).is_file()
    assert set(TRY) < set(SEVEN)


def test_bets_come_before_the_numbers_that_answer_them(whole):
    links = read(whole / paths.PAGE).links
    bets = [place for place, link in enumerate(links) if "view=break" in link]
    pictures = [place for place, link in enumerate(links) if "plots/seven/" in link]
    assert len(bets) == 1 and len(pictures) == len(SEVEN) and bets[0] < min(pictures)


# ------------------------------------------------------------------------------------------------- links and lessons


def test_every_link_and_anchor_of_every_page_arrives(whole, report):
    pages = sorted((whole / HOME).rglob("*.html"))
    assert len(pages) == len(sources()) + 2
    assert {str(page): dead for page in pages if (dead := dead_links(page))} == {}
    links = read(report).links
    assert {f"../{script}" for script in (SCALING, MASKS)} <= set(links), "code is linked where it is there"


@pytest.mark.parametrize("source", sources(), ids=Path.as_posix)
def test_a_lesson_keeps_all_links_of_its_source(source):
    """On the disk and published apart from the code: nothing that the Markdown links to is lost."""
    text = (paths.ROOT / source).read_text(encoding="utf-8")
    in_source = re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.DOTALL))
    made = {place(page) for page in sources()} | {paths.PAGE, paths.EXPLORER}
    for site in (Site(paths.ROOT), Site(Path("nowhere"), code_url="https://code.example/")):
        links = Read(rendered(text, source, place(source), site)).links
        assert len(links) == len(in_source)
        for link in links:
            file = link.partition("#")[0]
            if file.startswith("https://code.example/"):
                assert (paths.ROOT / file.removeprefix("https://code.example/")).exists(), link
            elif file and not file.startswith("https:"):
                target = Path(os.path.normpath(place(source).parent / file))
                assert target in made or (paths.ROOT / target).exists(), link


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text)


def plain(markdown: str) -> str:
    """What a reader of the source would read: no addresses, languages of code, tags, rules of tables."""
    text = re.sub(r"\]\([^)\s]*\)", "]", markdown)
    text = re.sub(r"^```\w+", "", text, flags=re.MULTILINE)
    return re.sub(r"</?(?:details|summary)>", "", text)


@pytest.mark.parametrize("source", sources(), ids=Path.as_posix)
def test_a_lesson_has_every_word_of_its_source_in_order(source, tmp_path):
    page = write_lesson(source, Site(tmp_path))
    text = (paths.ROOT / source).read_text(encoding="utf-8")
    numbers = r"^\d+\. "  # of lists: the browser counts
    expected = words(re.sub(numbers, "", plain(text), flags=re.MULTILINE))
    assert words(" ".join(read(page).text)) == expected


def test_what_github_shows_is_shown(tmp_path):
    page = write_lesson(Path("phase1_single_head", "README.md"), Site(tmp_path)).read_text(encoding="utf-8")
    assert page.count("<details>") >= 2 and page.count("</details>") == page.count("<details>")
    assert "<table>" in page and '<pre tabindex="0"><code class="language-python"><span class=' in page
    text = "| a | |\n|---|---|\n| 1 | 2 |\n\n| | |\n|---|---|\n| 3 | 4 |\n\n[x](nowhere.py) [y](#a-b) https://e.org\n"
    html = rendered(f"## A B\n## A B\n{text}", Path("README.md"), paths.PAGE, Site(tmp_path))
    assert html.count("<thead>") == 1 and html.count("<th>") == 1 and html.count("<td>") == 5
    assert 'id="a-b"' in html and 'id="a-b-1"' in html and '<a href="#a-b">y</a>' in html
    assert "<p>x <a" in html, "a link that leads nowhere is text"


def test_a_per_cent_sign_stays_beside_its_number_and_code_can_be_copied():
    html = rendered("in 8 % of `8 % 3`\n\n```\n9 % 2\n```\n", Path("README.md"), paths.PAGE, Site(Path("nowhere")))
    assert "in 8\u00a0% of" in html and "8 % 3" in html and "9 % 2" in html


def test_pages_written_elsewhere_link_to_no_code_and_have_the_same_bytes_twice(whole):
    report = whole / paths.PAGE
    first = report.read_bytes()
    assert write_pages.write_report(Site(whole)).read_bytes() == first
    assert not [link for link in read(report).links if link.endswith((".py", ".md"))]
    assert "parts/scaling.py" in first.decode()


# --------------------------------------------------------------------------------------------------- seen and shared


def test_the_workflow_runs_what_is_there():
    workflow = (paths.ROOT / ".github" / "workflows" / "check_and_publish.yml").read_text(encoding="utf-8")
    assert all(f"{system}-latest" in workflow for system in ("ubuntu", "macos", "windows"))
    commands = re.findall(r"shared/course\.py (\w+)|run_all\.sh(?: (\w+))?$", workflow, re.MULTILINE)
    assert commands and all(word in ("", "all", "test", *course.PHASES) for pair in commands for word in pair)
    assert f"{{path: {HOME.as_posix()}}}" in workflow
    assert "CODE_URL:" in workflow


# ---------------------------------------------------------------------------------------------------- in the browser


@contextmanager
def opened(browser, path: Path, address: str = "", **settings):
    """The page in a new window; fails on a console message, an error, or a request to anything but a file."""
    complaints = []
    context = browser.new_context(**settings)
    page = context.new_page()
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("requestfailed", lambda request: complaints.append(request.url))
    page.on("request", lambda r: complaints.append(r.url) if not r.url.startswith(("file:", "data:")) else None)
    page.goto(path.as_uri() + address)
    yield page
    context.close()
    assert complaints == []


def shown(page) -> list[str]:
    """Ids of the findings that can be seen."""
    return [
        finding.get_attribute("id")
        for finding in page.locator("article details[data-verdict]").all()
        if finding.is_visible()
    ]


def seen_pictures(page) -> list[str]:
    """Pictures beside the findings that can be seen, by their names."""
    seen = [image.get_attribute("src") for image in page.locator("figure img").all() if image.is_visible()]
    return [Path(address).name for address in seen]


def counts(page, kind: str) -> dict[str, int]:
    """Verdict or section -> the number beside it."""
    places = page.locator(f"[data-count-{kind}]").all()
    return {place.get_attribute(f"data-count-{kind}"): int(place.text_content()) for place in places}


NAMES = ("", "holds", "does-not-hold", "holds-only-if", "undecided-here", "measured")


@needs_browser
def test_a_verdict_takes_its_pictures_along_and_counts_agree(report, browser):
    with opened(browser, report) as page:
        assert shown(page) == IN_ORDER and len(seen_pictures(page)) == len(DRAWN)
        assert counts(page, "verdict") == dict(zip(NAMES, (4, 1, 2, 1, 0, 0), strict=True))
        for verdict, left, pictures in (
            ("holds", ["C901"], ["scaling.png"]),
            ("does-not-hold", ["C902", "no-phase-4"], ["scaling.png", "causality.png"]),
            ("measured", [], []),
        ):
            page.locator(f"input[value={verdict}]").check()
            assert shown(page) == left and page.url.endswith(f"#verdict={verdict}")
            assert seen_pictures(page) == pictures
            assert page.locator("output").inner_text().startswith(f"{len(left)} finding")
            assert counts(page, "verdict") == dict(zip(NAMES, (4, 1, 2, 1, 0, 0), strict=True))
            assert sum(counts(page, "section").values()) == len(left)
        page.locator("#filter-clear").click()
        assert len(shown(page)) == 4 and "#" not in page.url and len(seen_pictures(page)) == len(DRAWN)


@needs_browser
def test_words_find_findings_and_pictures_from_the_keyboard(report, browser):
    with opened(browser, report) as page:
        page.keyboard.press("/")
        page.keyboard.type("FUTURE mask")  # both, in any order and case
        assert shown(page) == ["C902", "C903"] and page.url.endswith("#words=FUTURE+mask")
        assert counts(page, "verdict") == dict(zip(NAMES, (2, 0, 1, 1, 0, 0), strict=True))
        assert seen_pictures(page) == ["scaling.png", "causality.png"]
        page.keyboard.press("Escape")
        assert len(shown(page)) == 4
        for words, left, pictures in (
            ("causality.py", ["no-phase-4", "C903"], ["causality.png"]),  # the script of both
            ("<b>", ["C901"], ["scaling.png"]),
            ("√d_k", ["C902", "C901"], ["scaling.png"]),  # in the question of both
            ("sqrt(d_k)", ["C902", "C901"], ["scaling.png"]),
            ("SQRT", ["C902", "C901"], ["scaling.png"]),
            ("attention_flow", [], ["attention_flow.png"]),  # the picture alone
            ("caption causality", ["no-phase-4", "C903"], ["causality.png"]),  # their picture's caption
            ("zebra", [], []),
        ):
            page.locator("input[type=search]").fill(words)
            assert (shown(page), seen_pictures(page)) == (left, pictures), words


@needs_browser
@pytest.mark.parametrize(
    ("address", "left"),
    [
        ("#verdict=does-not-hold&words=mask", ["C902", "no-phase-4"]),
        ("#words=%3Cb%3E", ["C901"]),
        ("#verdict=nonsense", IN_ORDER),
        ("#C903", IN_ORDER),
        ("#%", IN_ORDER),
    ],
)
def test_an_address_brings_its_filter_back_and_a_link_opens_its_finding(report, browser, address, left):
    with opened(browser, report, address) as page:
        assert shown(page) == left
        if "=" in address:  # what is asked for can be seen
            assert 0 <= page.locator("#findings").bounding_box()["y"] < page.viewport_size["height"]
        assert page.locator("details[open]").count() == ("C903" in address)
        other = next((name for name in IN_ORDER if name not in left), "C901")
        page.evaluate(f"location.hash = '#{other}'")  # whatever is filtered
        page.wait_for_function(f"document.getElementById('{other}').open")
        assert page.locator(f"#{other} dl").is_visible() and shown(page) == IN_ORDER
        assert page.locator(f"#{other}").bounding_box()["y"] > page.locator("nav").bounding_box()["height"]


@needs_browser
def test_report_works_without_javascript(report, browser):
    with opened(browser, report, java_script_enabled=False) as page:
        assert len(shown(page)) == 4 and not page.locator("form").is_visible()
        page.locator("#C901 summary").click()
        assert page.locator("#C901 dl").is_visible()


@needs_browser
@pytest.mark.parametrize(("device", "viewport"), [("desktop", DESKTOP), ("phone", PHONE)])
def test_the_report_of_a_whole_run_is_not_too_tall(whole, browser, device, viewport):
    with opened(browser, whole / paths.PAGE, viewport=viewport) as page:
        tall = page.evaluate("document.documentElement.scrollHeight")
        print(f"the report page of a whole run, on a {device}: {tall} px")
        assert tall <= TALLEST[device]


@needs_browser
def test_the_front_shows_a_bet_and_surprises_at_once(whole, browser):
    with opened(browser, whole / paths.PAGE, viewport=DESKTOP) as page:
        assert page.locator(".cards img").count() == len(SEVEN)
        first = page.locator(".cards img").first
        assert first.bounding_box()["y"] < DESKTOP["height"] and first.evaluate("image => image.naturalWidth") == 420
        assert page.get_by_text("Six wagers").bounding_box()["y"] < DESKTOP["height"]


@needs_browser
def test_on_a_phone_the_menu_is_whole_and_a_picture_stands_beside_its_question(whole, browser):
    with opened(browser, whole / paths.PAGE, viewport=PHONE) as page:
        for link in page.locator("nav a").all():
            box = link.bounding_box()
            assert box["x"] >= 0 and box["x"] + box["width"] <= PHONE["width"], link.inner_text()
        question = page.locator("article").filter(has=page.locator("#C010"))
        heading, picture = question.locator("h3").bounding_box(), question.locator("img").first.bounding_box()
        assert picture["x"] >= heading["x"] + heading["width"] and picture["y"] < heading["y"] + heading["height"]


LESSON = place(Path("phase1_single_head", "README.md"))
CUT = "[...document.querySelectorAll('main > pre')].filter((code) => code.scrollWidth > code.clientWidth).length"


@needs_browser
def test_code_is_whole_on_a_desktop_and_has_a_shadow_where_a_phone_cuts_it(whole, browser):
    with opened(browser, whole / LESSON, viewport=DESKTOP) as page:
        assert page.locator("main > pre").count() > 5 and page.evaluate(CUT) == 0
    with opened(browser, whole / LESSON, viewport=PHONE) as page:
        assert page.evaluate(CUT) > 0
        shot = Image.open(io.BytesIO(page.locator("main > pre").nth(4).screenshot())).convert("L")
        edge, left = (shot.getpixel((x, 4)) for x in (shot.width - 1, 2))
        assert edge < left - 20, "darker at the side on which code goes on"


@needs_browser
@pytest.mark.parametrize("name", [paths.PAGE, LESSON, place(Path("README.md"))], ids=lambda page: page.as_posix())
@pytest.mark.parametrize(("scheme", "viewport"), [("light", DESKTOP), ("dark", DESKTOP), ("light", PHONE)])
def test_nothing_keeps_anybody_from_reading_a_page(whole, browser, name, scheme, viewport):
    with opened(browser, whole / name, color_scheme=scheme, viewport=viewport) as page:
        page.evaluate("[...document.querySelectorAll('details')].slice(0, 9).forEach((part) => { part.open = true; })")
        assert axe_violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
