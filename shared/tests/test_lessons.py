"""Lessons and side pages: their numbers lead to the record, and their code is that of the files."""

import functools
import importlib
import inspect
import io
import posixpath
import re
import shlex
from contextlib import redirect_stdout
from xml.etree import ElementTree

import pytest
from markdown_it import MarkdownIt

from shared import cli, paths
from shared.claims import all_claims
from shared.lab import pages, record, tables
from shared.lab.gallery import SMALL_PICTURES
from shared.tests.faults import planted

PHASES = tuple(paths.PHASES.values())
LESSONS = [f"{phase}/README.md" for phase in PHASES]
NOTES = "data/notes.md"  # most of its numbers are those of other people's notes
PAGES = [paths.shown(page) for page in pages.pages()][1:]  # without README
PAGES.remove(NOTES)
ROOMS = [page for page in PAGES if page not in LESSONS and page.startswith("phase")]
CHANGES = "Change this, expect that"  # a section whose rows are tried


def text_of(page):
    return (paths.ROOT / page).read_text(encoding="utf-8")


NUMBER = re.compile(r"(?<![\w.,√^])(\d+(?:,\d{3})+|\d+)(\.\d+)?(e-?\d+)?( ?%)?(?![\w])")

# Numbers that are right but that no finding of their section records, and where they come from
# instead.
ELSEWHERE = {
    "phase1_single_head/README.md": "64; 97",  # the recipe and the vocabulary
    "phase1_single_head/before/README.md": "3,000",  # steps, of one run that is not on record
    "phase2_multi_head/README.md": "2.7; 16; 64",  # e; the recipe
    "phase2_multi_head/heads/README.md": "300; 800; 70 %",  # steps; the root of a half
    # formulas of cost_model.py; times on an H100
    "phase2_multi_head/costs/README.md": "14.6; 2.38; 8,192; "
    "0.54; 0.58; 0.39; 0.66; 0.83; 0.74; 0.63; 5.7; 5.4; 3.5; 1.4",
    "phase3_visualization/README.md": "0.15; 1.2; 65 %",  # thresholds; Clark et al. 2019
    "phase3_visualization/pretrained/README.md": "23",  # million numbers
    "phase4_causal/README.md": "0.95; 4.6",  # top-p; ln of the size of the vocabulary
    "phase4_causal/masking/README.md": "65,504",  # where float16 ends
    "phase4_causal/long_texts/README.md": "2.11; 6.5; 16.8",  # torch; times on an H200
    # two exercises; sizes of Llama 2 and DeepSeek-V2, and KiB, which a test asserts
    "phase4_causal/serving/README.md": "10; 11; 32; 128; 512; 576; 32,768",
}


def prose(text):
    """A text without code, links' addresses, years of papers, numbers of sections and names of
    heads.
    """
    text = re.sub(r"^```.*?^```|^    .*?$|`[^`\n]*`", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(
        r"!\[.*?\]\(.*?\)|<img .*?>|\]\(.*?\)|et al\.,? \(?\d{4}\)?|(?:& |\()\w+ \d{4}", "", text
    )
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
        scripts = {beside(page, link) for link in re.findall(r"\]\(([\w./]+\.py)\)", text)}
        scripts.update(re.findall(r"^\$ \S+ (\S+\.py)", text, re.MULTILINE))
        found[heading] = text, scripts
    return found


def unlinked_numbers(text, settings):
    """Numbers of two digits and more that neither lead to the record nor are settings."""
    found = []
    text = pages.OF_PICTURE.sub("", pages.LINK.sub("", text))  # their numbers lead somewhere
    for match in NUMBER.finditer(prose(text)):
        whole, decimals, power, percent = match.groups(default="")
        digits = re.sub(r"[,.]", "", whole + decimals).lstrip("0")
        is_setting = whole.replace(",", "") in settings and not decimals + power + percent
        if len(digits) > 1 and not is_setting:
            found.append(match[0])
    return found


def settings_of(scripts):
    """The whole numbers that stand in scripts."""
    found = set()
    for script in scripts:
        for number in re.findall(r"\b\d[\d_,]*\b", text_of(script)):
            found.add(re.sub("[_,]", "", number))
    return found


def test_seven_surprises_have_a_story_with_picture_script_and_verdict():
    """Two of them on the front page, five on a page of their own."""
    shown = []
    for page in ("README.md", "data/surprises.md"):
        for story in re.split("^##+ ", text_of(page), flags=re.MULTILINE):
            pictures = re.findall(r'^<p><img src="\S+/seven/(\w+)\.png" alt', story, re.MULTILINE)
            shown += pictures
            if pictures:
                links = re.findall(r"\]\(([\w/.]+\.py)\)", story)
                scripts = [beside(page, link) for link in links]
                assert scripts, story
                assert "claims.md#" in story, story
                assert not unlinked_numbers(story, settings_of(scripts)), story
    assert sorted(shown) == sorted(SMALL_PICTURES)


def test_the_front_door_counts_as_the_record_does():
    on_record = [claim for claim in all_claims() if record.verdict(claim)]
    assert tables.counts_of(on_record) in " ".join(text_of("README.md").split())


def test_the_page_about_notes_counts_its_rows():
    text = text_of(NOTES)
    verdicts = re.findall(r"^\| <a .*? \| \*\*(\w+)", text, re.MULTILINE)
    wrong, in_part = verdicts.count("Wrong"), verdicts.count("In")
    said = f"Of its {len(verdicts)} rows {wrong} are wrong and {in_part} are true in part"
    assert said in " ".join(text.split())


@pytest.mark.parametrize("page", PAGES)
def test_numbers_of_a_page_lead_to_the_record_or_are_settings(page):
    """What a link says is compared with the record in test_record.py."""
    unknown = set()
    for heading, (text, scripts) in sections(page).items():
        if heading != CHANGES:
            unknown.update(unlinked_numbers(text, settings_of(scripts)))
    excused = ELSEWHERE[page].split("; ") if page in ELSEWHERE else []
    assert unknown == set(excused), "no link to its row, or excused in vain"


def pieces(block):
    """The parts of a block between lines of three dots."""
    parts = re.split(r"^\s*\.\.\.$", block, flags=re.MULTILINE)
    return [part.strip("\n") for part in parts if part.strip()]


def stands_in(piece, text):
    """Whether these whole lines stand somewhere in a text, one after the other."""
    return f"\n{piece}\n" in f"\n{text}\n"


@pytest.mark.parametrize("page", ["README.md", *PAGES])
def test_code_of_a_lesson_is_the_code_of_the_files_that_it_links_to(page):
    for heading, (text, scripts) in sections(page).items():
        code = "\n...\n".join(blocks(text, "python"))
        for piece in pieces(code):
            # A lesson may break a long line at its brackets.
            unbroken = re.sub(r"\(\n +(.*)\n +\)", r"(\1)", piece)
            found = any(stands_in(unbroken, text_of(script)) for script in scripts)
            assert found, f"{page}, {heading}: in none of {sorted(scripts)}:\n{piece}"


def printed_by(script, folder, options=""):
    """What a script prints after a little training, without the lines that say so."""
    main = importlib.import_module(script.removesuffix(".py").replace("/", ".")).main
    argv = ["--if-used", "--quick", "--output-dir", str(folder), *shlex.split(options)]
    arguments = [argv] if inspect.signature(main).parameters else []
    with redirect_stdout(io.StringIO()) as out:
        cli.answer_of(functools.partial(main, *arguments))
    return re.sub(r"^training .*\n", "", out.getvalue(), flags=re.MULTILINE)


as_it_is = functools.cache(printed_by)  # several changes are seen in one script


@pytest.mark.parametrize("page", PAGES)
def test_what_a_lesson_shows_as_printed_is_what_its_script_prints(page, checkpoints):
    for block in blocks(text_of(page), "console"):
        command, shown = block.split("\n", 1)
        script = re.fullmatch(r"\$ \.venv/bin/python (\S+\.py)", command)[1]
        printed = printed_by(script, checkpoints)
        for piece in pieces(shown):
            assert stands_in(piece, printed), f"{page}: {script} does not print\n{piece}"


ITEM = r"- \[[^]]*\]\((.+?)\): `(.+?)` → `(.+?)`<br>`(\S+)(.*?)`: (.+)"


def changes():
    """The items of this section: file, old text, new text, script, options, what is seen."""
    for lesson in LESSONS:
        text, _ = sections(lesson)[CHANGES]
        for row in re.findall(r"^- .*", text, re.MULTILINE):
            item = re.fullmatch(ITEM, row)
            assert item, f"{lesson}: {row} is not: link: `old` → `new`<br>`script`: what is seen"
            file, old, new, script, options, seen = item.groups()
            cells = beside(lesson, file), old, new, beside(lesson, script), options, seen
            yield pytest.param(*cells, id=f"{script}, {old} => {new}")


@pytest.mark.parametrize(("file", "old", "new", "script", "options", "seen"), list(changes()))
def test_what_a_lesson_says_to_change_is_seen(checkpoints, file, old, new, script, options, seen):
    options += " --no-pictures"
    right = as_it_is(script, checkpoints, options)  # trains what is missing, before it is changed
    with planted(file, old, new):
        changed = printed_by(script, checkpoints, options)
    assert changed != right, "it changes nothing; only what stands in functions can be changed here"
    right, changed = " ".join(right.split()), " ".join(changed.split())
    for quoted in re.findall(r'"([^"]+)"', seen):
        words = quoted.removesuffix("…")  # where a number has more digits
        assert words in changed, f"{words!r} must be printed:\n{changed}"
        assert words not in right, f"{words!r} must be printed with the change alone"


@pytest.mark.parametrize(
    ("page", "most"), [("README.md", 1600), *((lesson, 2400) for lesson in LESSONS)]
)
def test_lessons_and_front_door_are_short(page, most):
    """In words of prose: without code, tables, headings, pictures, and the targets of links."""
    text = re.sub("^```.*?^```", "", text_of(page), flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^(?:[|#]|    |!\[).*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"\]\(\S+?\)|<!--.*?-->|</?[a-z][^>]*>", "", text)
    assert len(re.findall(r"\S*[^\W\d_]\S*", text)) <= most, "words, with a letter"


# What decides sizes in a README on GitHub, whose column is 830 pixels on a screen of 1280: rules of
# github-markdown-css 5.9.0 (MIT).
GITHUB = """
body { margin: 0 auto; padding: 0 16px; max-width: 830px; overflow-wrap: break-word;
       font: 16px/1.5 "Segoe UI", "Noto Sans", Helvetica, Arial, sans-serif; }
img { max-width: 100%; box-sizing: content-box; }
table { display: block; width: max-content; max-width: 100%; overflow: auto;
        border-collapse: collapse; }
th, td { padding: 6px 13px; border: 1px solid; }
pre { padding: 1rem; overflow: auto; font-size: 85%; }
code { padding: .2em .4em; white-space: break-spaces;
       font: 85% ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono", monospace; }
pre code { padding: 0; font-size: 100%; white-space: pre; }
"""
SMALLER_THAN = """(least) => [...document.images]
    .filter((one) => one.width < Math.min(least, one.naturalWidth)).map((one) => one.src)"""
SCROLLED = """(parts) => [...document.querySelectorAll(parts)]
    .filter((one) => one.scrollWidth > one.clientWidth)
    .map((one) => one.textContent.slice(0, 80))"""


def on_github(browser, folder, page, width):
    """A page of the repository as GitHub shows it on a screen of this width, its folds open."""
    shown = browser.new_page(viewport={"width": width, "height": 900})
    text, base = text_of(page), (paths.ROOT / page).as_uri()
    opened = text.replace("<details>", "<details open>")
    html = MarkdownIt("commonmark").enable("table").render(opened)
    head = f'<!doctype html><base href="{base}"><style>{GITHUB}</style>'
    (folder / "page.html").write_text(head + html, encoding="utf-8")
    shown.goto((folder / "page.html").as_uri())
    assert shown.evaluate("document.images.length") == len(re.findall(r"!\[|<img ", text))
    assert shown.evaluate("[...document.images].every((one) => one.naturalWidth)"), "all are there"
    return shown


@pytest.mark.parametrize("page", ["README.md", *PAGES])
def test_on_github_pictures_are_large_and_nothing_is_scrolled_sideways(browser, tmp_path, page):
    shown = on_github(browser, tmp_path, page, 1280)
    assert shown.evaluate(SMALLER_THAN, 380) == []
    assert shown.evaluate(SCROLLED, "html, pre, table") == []
    lines = "".join(blocks(text_of(page), r"\w*")).splitlines()
    too_long = [line for line in lines if len(line) > 88]
    assert too_long == [], "columns; other machines have wider letters"


@pytest.mark.parametrize("page", ["README.md", *PAGES])
def test_on_a_phone_pictures_have_all_of_its_width(browser, tmp_path, page):
    """Code and tables are scrolled in their boxes, so that no picture may stand in a table."""
    shown = on_github(browser, tmp_path, page, 390)
    assert shown.evaluate(SMALLER_THAN, 340) == [] and shown.evaluate(SCROLLED, "html") == []
    assert shown.evaluate("document.querySelectorAll('table img').length") == 0


@pytest.mark.parametrize("lesson", LESSONS)
def test_the_drawing_of_a_lesson_has_the_title_that_the_lesson_gives_it(lesson):
    alt, file = re.search(r"^!\[(.*)\]\((.*\.svg)\)", text_of(lesson), re.MULTILINE).groups()
    drawing = ElementTree.parse((paths.ROOT / lesson).parent / file)
    assert drawing.findtext("{*}title") == alt


def test_lessons_lead_to_every_room():
    for room in ROOMS:
        phase, name, _ = room.split("/")
        assert f"]({name}/README.md" in text_of(f"{phase}/README.md"), room
