"""Lessons and rooms' pages: their numbers are marked as those of the record, and their code is that
of the files.
"""

import functools
import importlib
import inspect
import io
import posixpath
import re
import shlex
from contextlib import redirect_stdout

import pytest
from markdown_it import MarkdownIt

from shared import cli, course, paths
from shared.evidence.claims import all_claims
from shared.publishing import quoted, table
from shared.publishing.seven import SEVEN
from shared.tests.faults import planted
from shared.tests.helpers import needs_browser

PHASES = tuple(course.PHASES.values())
README = (paths.ROOT / "README.md").read_text(encoding="utf-8")
LESSONS = [f"{phase}/README.md" for phase in PHASES]
ROOMS = sorted(
    paths.shown(page) for phase in PHASES for page in (paths.ROOT / phase).glob("*/README.md")
)
PAGES = [*LESSONS, *ROOMS]
CHANGES = "Change this, expect that"  # a section whose rows are tried


def text_of(page):
    return (paths.ROOT / page).read_text(encoding="utf-8")


NUMBER = re.compile(r"(?<![\w.,√^])(\d+(?:,\d{3})+|\d+)(\.\d+)?(e-?\d+)?( ?%)?(?![\w])")

# Numbers that are right but that no finding of their section records, and where they come from
# instead.
ELSEWHERE = {
    "phase1_single_head/README.md": "64; 97",  # the recipe and the vocabulary
    "phase1_single_head/before/README.md": "3,000",  # steps of a single run, told as such
    "phase1_single_head/parts/README.md": "900; 2,700",  # steps of two models of each kind, told as such
    "phase2_multi_head/README.md": "2.7; 16; 64",  # e; the recipe
    "phase2_multi_head/heads/README.md": "300; 800",  # steps, of the models that all phases share
    "phase2_multi_head/costs/README.md": "14.6; 2.4; 8,192",  # formulas of cost_model.py
    "phase3_visualization/README.md": "0.15; 65 %",  # the threshold that is in question; Clark et al. 2019
    "phase3_visualization/pretrained/README.md": "23",  # million numbers
    "phase4_causal/README.md": "0.95; 4.6",  # top-p; ln of the size of the vocabulary
    "phase4_causal/writing/README.md": "0.95",
    # KiB, which a test asserts; a version; counted by pages.py; DeepSeek-V2's sizes; tests
    "phase4_causal/serving/README.md": "36; 512; 3.1; 10; 576; 32,768; 200",
}


def prose(text):
    """A text without code, links' addresses, years of papers, numbers of sections and names of
    heads.
    """
    text = re.sub(r"^```.*?^```|^    .*?$|`[^`\n]*`", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"!\[.*?\]\(.*?\)|\]\(.*?\)|et al\.,? \(?\d{4}\)?|& \w+ \d{4}", "", text)
    text = re.sub(r"^#.*$|[Ss]ections? \d+|[Pp]hase \d|^\d+\. ", "", text, flags=re.MULTILINE)
    return re.sub(r"[Hh]eads? \d\.\d+(?: and \d\.\d+)?", "", text)


def blocks(text, kind):
    return re.findall(rf"^```{kind}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def beside(page, link):
    """The path of what a page links to, from the root."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), link))


def sections(page):
    """Heading -> text, and the scripts that it links to or runs, by their paths."""
    found = {}
    for part in re.split(r"^## ", text_of(page), flags=re.MULTILINE)[1:]:
        heading, text = part.split("\n", 1)
        linked = re.findall(r"\]\(([\w./]+\.py)\)", text)
        scripts = {beside(page, link) for link in linked}
        found[heading] = text, scripts | set(re.findall(r"^\$ \S+ (\S+\.py)", text, re.MULTILINE))
    return found


def unmarked_numbers(text, settings):
    """Numbers of two digits and more that are neither marked as of the record nor whole numbers of
    the scripts.
    """
    found = []
    for match in NUMBER.finditer(prose(quoted.unmarked(text))):
        whole, rest = match[1].replace(",", ""), match[2] or match[3] or match[4]
        is_short = len((whole + (match[2] or "")).replace(".", "").lstrip("0")) < 2
        if not is_short and (rest or int(whole) not in settings):
            found.append(match[0])
    return found


def whole_numbers(script):
    """The whole numbers that stand in a script: its settings."""
    text = (paths.ROOT / script).read_text(encoding="utf-8")
    return {
        int(number.replace("_", "").replace(",", ""))
        for number in re.findall(r"\b\d[\d_,]*\b", text)
    }


def test_seven_things_of_the_front_door_have_numbers_of_the_record_and_code():
    text = README.split("## Seven things")[1].split("\n## ")[0]
    cells = re.findall(r"^!.*seven/(\w+)\.png\)\n\n(\*\*\d\. .*)$", text, re.MULTILINE)
    assert [picture for picture, _ in cells] == list(SEVEN) and len(SEVEN) == 7
    for _, said in cells:
        scripts = re.findall(r"\]\(([\w/]+\.py)\)", said)
        assert scripts and not unmarked_numbers(said, set().union(*map(whole_numbers, scripts))), (
            said
        )


def test_the_front_door_counts_as_the_record_does():
    assert table.experiments(all_claims()) in " ".join(README.split())


@pytest.mark.parametrize("page", PAGES)
def test_numbers_of_a_page_are_marked_as_those_of_the_record_or_settings(page):
    """What is marked is compared with the record in test_evidence.py."""
    parts = [part for heading, part in sections(page).items() if heading != CHANGES]
    unknown = {
        n
        for text, scripts in parts
        for n in unmarked_numbers(text, set().union(*map(whole_numbers, scripts)))
    }
    assert unknown == set(filter(None, ELSEWHERE.get(page, "").split("; "))), (
        "not marked, or excused in vain"
    )


def pieces(block):
    """The parts of a block between lines of three dots."""
    return [
        piece.strip("\n")
        for piece in re.split(r"^\s*\.\.\.$", block, flags=re.MULTILINE)
        if piece.strip()
    ]


def stands_in(piece, text):
    """Whether these whole lines stand somewhere in a text, one after the other."""
    return f"\n{piece}\n" in f"\n{text}\n"


@pytest.mark.parametrize("page", PAGES)
def test_code_of_a_lesson_is_the_code_of_the_files_that_it_links_to(page):
    for heading, (text, scripts) in sections(page).items():
        for piece in (piece for block in blocks(text, "python") for piece in pieces(block)):
            unbroken = re.sub(
                r"\(\n +(.*)\n +\)", r"(\1)", piece
            )  # a lesson may break a long line at its brackets
            found = [script for script in scripts if stands_in(unbroken, text_of(script))]
            assert found, f"{page}, {heading}: in none of {sorted(scripts)}:\n{piece}"


def printed_by(script, folder, options=""):
    """What a script prints after a little training, without the lines that say so."""
    main = importlib.import_module(script.removesuffix(".py").replace("/", ".")).main
    argv = ["--quick", "--output-dir", str(folder), *shlex.split(options)]
    with redirect_stdout(io.StringIO()) as out:
        cli.answer_of(
            functools.partial(main, *([argv] if inspect.signature(main).parameters else []))
        )
    return re.sub(r"^training .*\n", "", out.getvalue(), flags=re.MULTILINE)


@pytest.mark.parametrize("page", PAGES)
def test_what_a_lesson_shows_as_printed_is_what_its_script_prints(page, checkpoints):
    for block in blocks(text_of(page), "console"):
        command, shown = block.split("\n", 1)
        script = re.fullmatch(r"\$ \.venv/bin/python (\S+\.py)", command)[1]
        printed = printed_by(script, checkpoints)
        for piece in pieces(shown):
            assert stands_in(piece, printed), f"{page}: {script} does not print\n{piece}"


def changes():
    """The items of this section: lesson, file, old text, new text, script, options, what is seen."""
    for lesson in LESSONS:
        text, _ = sections(lesson)[CHANGES]
        for row in re.findall(r"^- .*", text, re.MULTILINE):
            cells = re.fullmatch(
                r"- \[[^]]*\]\((.+?)\): `(.+?)` → `(.+?)`<br>`(\S+)(.*?)`: (.+)", row
            )
            assert cells, (
                f"{lesson}: an item is link: `old` → `new`<br>`script`: what is seen; got {row}"
            )
            file, old, new, script, options, seen = cells.groups()
            script = beside(lesson, script)
            yield pytest.param(
                beside(lesson, file),
                old,
                new,
                script,
                options,
                seen,
                id=f"{script}, {old} => {new}",
            )


@pytest.mark.parametrize(("file", "old", "new", "script", "options", "seen"), list(changes()))
def test_what_a_lesson_says_to_change_is_seen(checkpoints, file, old, new, script, options, seen):
    right = printed_by(script, checkpoints, options)  # trains what is missing, before it is changed
    with planted(file, old, new):
        changed = printed_by(script, checkpoints, options)
    assert changed != right, "it changes nothing; only what stands in functions can be changed here"
    right, changed = (" ".join(text.split()) for text in (right, changed))
    for words in re.findall(r'"([^"]+)"', seen):
        assert words in changed and words not in right, (
            f"{words!r} must be printed with the change alone:\n{changed}"
        )


@pytest.mark.parametrize(
    ("page", "most"), [("README.md", 1600), *((lesson, 2200) for lesson in LESSONS)]
)
def test_lessons_and_front_door_are_short(page, most):
    text = re.sub("<!--.*?-->|</?t[^>]*>", "", text_of(page))
    assert len(re.findall(r"\S*[^\W\d_]\S*", text)) <= most, "words, with a letter"


# What decides sizes in a README on GitHub, whose column is 830 pixels: rules of github-markdown-css
# 5.9.0 (MIT).
GITHUB = """
body { margin: 0; width: 830px; font: 16px/1.5 "Segoe UI", "Noto Sans", Helvetica, Arial, sans-serif; }
img { max-width: 100%; box-sizing: content-box; }
table { display: block; width: max-content; max-width: 100%; overflow: auto; border-collapse: collapse; }
th, td { padding: 6px 13px; border: 1px solid; }
pre { padding: 1rem; overflow: auto; font-size: 85%; }
code { padding: .2em .4em; font: 85% ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono", monospace; }
pre code { padding: 0; font-size: 100%; }
"""
TOO_SMALL = "[...document.images].filter((one) => one.width < Math.min(380, one.naturalWidth)).map((one) => one.src)"
SCROLLED = """[...document.querySelectorAll("html, pre, table")].filter((one) => one.scrollWidth > one.clientWidth)
    .map((one) => one.textContent.slice(0, 80))"""


@needs_browser
@pytest.mark.parametrize("page", ["README.md", *PAGES])
def test_on_github_pictures_are_large_and_nothing_is_scrolled_sideways(browser, tmp_path, page):
    lesson, shown = tmp_path / "page.html", browser.new_page(viewport={"width": 830, "height": 900})
    html = (
        MarkdownIt("commonmark")
        .enable("table")
        .render(text_of(page).replace("<details>", "<details open>"))
    )
    base = (paths.ROOT / page).as_uri()
    lesson.write_text(
        f'<!doctype html><base href="{base}"><style>{GITHUB}</style>{html}', encoding="utf-8"
    )
    shown.goto(lesson.as_uri())
    assert shown.evaluate("document.images.length") == text_of(page).count("![")
    assert shown.evaluate(TOO_SMALL) == [] and shown.evaluate(SCROLLED) == []
    lines = "".join(blocks(text_of(page), r"\w*")).splitlines()
    assert [line for line in lines if len(line) > 88] == [], (
        "columns; other machines have wider letters"
    )


def test_lessons_lead_to_every_room():
    for room in ROOMS:
        phase, name, _ = room.split("/")
        assert f"]({name}/README.md" in text_of(f"{phase}/README.md"), room


@pytest.mark.parametrize(
    ("text", "unmarked"),
    [
        ("Of 24 (Vaswani et al. 2017) 45 %<!--water: wetness--> of 9; `0.77`; head 1.13", []),
        (
            "0.52 to 0.58<!--water: a, b-->, 8 of 10<!--verdict C001--> and 11 %<!--undone 1 all-->",
            [],
        ),
        ("46 % of 25, 0.454 and 2,049; 0.16", ["46 %", "25", "0.454", "2,049", "0.16"]),
        ("[a](b/0.98.py) and phase 3, section 12; 4.5e-1", ["4.5e-1"]),
    ],
)
def test_numbers_that_nobody_marked_are_noticed(text, unmarked):
    assert unmarked_numbers(text, {24}) == unmarked
