"""Lessons and rooms' pages: their numbers against the record, and their code against the files.

A number that an experiment measures may stand in the prose in three ways: alone, if all seeds on all processors agree
to its last digit; as a range, 0.52 to 0.58, from the least to the largest; or as a bound, "at least 0.52".
"""

import functools
import importlib
import inspect
import io
import posixpath
import re
import shlex
from collections import Counter
from contextlib import redirect_stdout

import pytest

from shared import cli, course, paths
from shared.evidence import replications
from shared.evidence.claims import EXPERIMENT, FAILS, HOLDS, ONLY_IF, UNDECIDED, all_claims
from shared.evidence.seven import SEVEN
from shared.tests.faults import planted

PHASES = tuple(course.PHASES.values())
README = (paths.ROOT / "README.md").read_text(encoding="utf-8")
LESSONS = [f"{phase}/README.md" for phase in PHASES]
ROOMS = sorted(paths.shown(page) for phase in PHASES for page in (paths.ROOT / phase).glob("*/README.md"))
PAGES = [*LESSONS, *ROOMS]
CHANGES = "Change this, expect that"  # a section whose rows are tried


def text_of(page):
    return (paths.ROOT / page).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def recorded():
    """Script -> the ranges of all numbers that its findings have in the record."""
    found = {}
    for claim in all_claims():
        known = replications.published(claim)
        found.setdefault(claim.script, []).extend(spans(known.runs) if known else ())
    return found


def spans(runs):
    """The least and the largest value of each number over all runs; of a list, item by item."""
    values = {}
    for run in runs:
        for name, value in run.items():
            for place, number in enumerate(replications.flat(value)):
                values.setdefault((name, place), []).append(abs(number))
    return [(min(numbers), max(numbers)) for numbers in values.values()]


NUMBER = re.compile(r"(?<![\w.,√^])(\d+(?:,\d{3})+|\d+)(\.\d+)?(e-?\d+)?( ?%)?(?![\w])")
RANGE = re.compile(NUMBER.pattern + r"(?: to |–)" + NUMBER.pattern)
AT_LEAST = re.compile(r"(at least|above|over|more than|from)( \w+)?\s$|^ (or more|and more|at least)")
AT_MOST = re.compile(r"(at most|below|under|less than|up to)( \w+)?\s$|^ (or less|at most)")


# Numbers that are right but that no finding of their section records, and where they come from instead.
ELSEWHERE = {
    "phase1_single_head/README.md": "64; 97",  # the recipe and the vocabulary
    "phase1_single_head/reading/README.md": "774",  # counted and printed by long_path.py
    "phase2_multi_head/README.md": "2.7; 16; 64; 4,928; 16,640",  # e; the recipe; counted by wrong_heads.py
    "phase2_multi_head/heads/README.md": "17; 20; 4,928; 16,640",  # models of 10 seeds; counted by wrong_heads.py
    "phase2_multi_head/costs/README.md": "1,048,576; 301,989,888; 14.6; 2.4; 8,192",  # formulas of cost_model.py
    "phase3_visualization/README.md": "0.15",  # the threshold that is in question
    "phase4_causal/README.md": "4.6",  # ln of the size of the vocabulary, printed by breaking_causality.py
    # KiB, which a test asserts; a version; counted by pages.py; DeepSeek-V2's sizes; models of 10 seeds; tests
    "phase4_causal/serving/README.md": "36; 512; 3.1; 21; 23; 10; 97; 116; 52; 59; 28; 33; 576; 32,768; 20; 200",
}


def prose(text):
    """A text without code, links' addresses, years of papers, numbers of sections and names of heads."""
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


class Printed:
    """A number as it stands in a text: its value, and half of the unit of its last digit."""

    def __init__(self, parts, *, percent=False):
        whole, decimals, power, sign = (part or "" for part in parts)
        self.digits = whole.replace(",", "") + decimals
        self.value = float(self.digits + power)
        self.half = 0.51 * 10.0 ** (int(power[1:] or 0) - max(len(decimals) - 1, 0))
        self.percent = percent or bool(sign)
        self.is_whole = not (decimals or power or self.percent)

    def is_short(self):
        return len(self.digits.replace(".", "").lstrip("0")) < 2

    def near(self, number):
        return abs(number - self.value) <= self.half

    def scaled(self, spans):
        """The ranges as the text would have them: in percent, or left over from 1; in KiB, MiB, GiB, TiB."""
        for low, high in spans:
            for scale in (100, 1) if self.percent else (1, *(2.0**-bits for bits in (10, 20, 30, 40))):
                yield low * scale, high * scale
            if self.percent:
                yield 100 * (1 - high), 100 * (1 - low)


def ranges_left_out(text, spans):
    """The text without its ranges that go from the least to the largest value of some number."""

    def kept(match):
        low, high = Printed(match.groups()[:4], percent=bool(match[8])), Printed(match.groups()[4:])
        known = any(low.near(least) and high.near(most) for least, most in high.scaled(spans))
        return "" if known else match[0]

    return RANGE.sub(kept, text)


def unknown_numbers(text, spans, settings):
    """Numbers of two digits and more that are no value of the record as printed, nor a whole number of the scripts."""
    text = ranges_left_out(prose(text), spans)
    unknown = []
    for match in NUMBER.finditer(text):
        number = Printed(match.groups())
        before, after = text[max(0, match.start() - 24) : match.start()], text[match.end() : match.end() + 10]
        if number.is_short() or (number.is_whole and int(number.value) in settings):
            continue
        found = list(number.scaled(spans))
        same = any(number.near(low) and number.near(high) for low, high in found)
        least = AT_LEAST.search(before) or AT_LEAST.search(after)
        most = AT_MOST.search(before) or AT_MOST.search(after)
        bound = any((least and number.near(low)) or (most and number.near(high)) for low, high in found)
        if not (same or bound):
            unknown.append(match[0])
    return unknown


def whole_numbers(script):
    """The whole numbers that stand in a script: its settings."""
    text = (paths.ROOT / script).read_text(encoding="utf-8")
    return {int(number.replace("_", "").replace(",", "")) for number in re.findall(r"\b\d[\d_,]*\b", text)}


def unknown_by(text, scripts, recorded):
    """The unknown numbers of a text that speaks of these scripts."""
    known = [span for script in scripts for span in recorded.get(script, ())]
    return unknown_numbers(text, known, set().union(*map(whole_numbers, scripts)))


def test_seven_things_of_the_front_door_are_decided_and_have_numbers_and_code(recorded):
    text = README.split("## Seven things")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (!.*seven/(\w+)\.png.*\*\*\d\. .*) \|$", text, re.MULTILINE)
    assert [picture for _, picture in rows] == list(SEVEN) and len(SEVEN) == 7
    known = {claim.id: replications.published(claim) for claim in all_claims() if claim.kind == EXPERIMENT}
    decided = {claim.script for claim in all_claims() if known.get(claim.id) and known[claim.id].verdict != UNDECIDED}
    for row, _ in rows:
        scripts = re.findall(r"\]\(([\w/]+\.py)\)", row)
        assert set(scripts) <= decided and not unknown_by(row, scripts, recorded), row


def test_the_front_door_counts_as_the_record_does():
    counts = Counter(replications.verdicts(all_claims(), replications.read()).values())
    said = re.search(
        r"(\d+) experiments: (\d+) hold, (\d+) do not, (\d+) only under a condition, (\d+) are undecided here",
        " ".join(README.split()),
    )
    verdicts = [counts[verdict] for verdict in (HOLDS, FAILS, ONLY_IF, UNDECIDED)]
    assert [int(count) for count in said.groups()] == [sum(verdicts), *verdicts]


@pytest.mark.parametrize("page", PAGES)
def test_numbers_of_a_page_are_those_of_the_record(recorded, page):
    """A number of two digits and more is one of the record (as above), or one of the settings of the section's scripts.

    A wrong digit is noticed nine times in ten; now and then a wrong number is by chance another value of the section.
    """
    parts = [part for heading, part in sections(page).items() if heading != CHANGES]
    unknown = {number for text, scripts in parts for number in unknown_by(text, scripts, recorded)}
    assert unknown == set(filter(None, ELSEWHERE.get(page, "").split("; "))), "not recorded, or excused in vain"


def pieces(block):
    """The parts of a block between lines of three dots."""
    return [piece.strip("\n") for piece in re.split(r"^\s*\.\.\.$", block, flags=re.MULTILINE) if piece.strip()]


def stands_in(piece, text):
    """Whether these whole lines stand somewhere in a text, one after the other."""
    return f"\n{piece}\n" in f"\n{text}\n"


@pytest.mark.parametrize("page", PAGES)
def test_code_of_a_lesson_is_the_code_of_the_files_that_it_links_to(page):
    for heading, (text, scripts) in sections(page).items():
        for piece in (piece for block in blocks(text, "python") for piece in pieces(block)):
            found = [script for script in scripts if stands_in(piece, text_of(script))]
            assert found, f"{page}, {heading}: in none of {sorted(scripts)}:\n{piece}"


def printed_by(script, folder, options=""):
    """What a script prints after a little training, without the lines that say so."""
    main = importlib.import_module(script.removesuffix(".py").replace("/", ".")).main
    argv = ["--quick", "--output-dir", str(folder), *shlex.split(options)]
    with redirect_stdout(io.StringIO()) as out:
        cli.answer_of(functools.partial(main, *([argv] if inspect.signature(main).parameters else [])))
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
            cells = re.fullmatch(r"- \[[^]]*\]\((.+?)\): `(.+?)` → `(.+?)`<br>`(\S+)(.*?)`: (.+)", row)
            assert cells, f"{lesson}: an item is link: `old` → `new`<br>`script`: what is seen; got {row}"
            file, old, new, script, options, seen = cells.groups()
            script = beside(lesson, script)
            yield pytest.param(beside(lesson, file), old, new, script, options, seen, id=f"{script}, {old} => {new}")


@pytest.mark.parametrize(("file", "old", "new", "script", "options", "seen"), list(changes()))
def test_what_a_lesson_says_to_change_is_seen(checkpoints, file, old, new, script, options, seen):
    right = printed_by(script, checkpoints, options)  # trains what is missing, before it is changed
    with planted(file, old, new):
        changed = printed_by(script, checkpoints, options)
    assert changed != right, "it changes nothing; only what stands in functions can be changed here"
    right, changed = (" ".join(text.split()) for text in (right, changed))
    for words in re.findall(r'"([^"]+)"', seen):
        assert words in changed and words not in right, f"{words!r} must be printed with the change alone:\n{changed}"


@pytest.mark.parametrize(("page", "most"), [("README.md", 1600), *((lesson, 2000) for lesson in LESSONS)])
def test_lessons_and_front_door_are_short(page, most):
    assert len(re.findall(r"\S*[^\W\d_]\S*", text_of(page))) <= most, "words, with a letter"


def test_lessons_lead_to_every_room():
    for room in ROOMS:
        phase, name, _ = room.split("/")
        assert f"]({name}/README.md" in text_of(f"{phase}/README.md"), room


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        ("Of 24 (Vaswani et al. 2017) 45 %, 0.453 or 0.45; 2,048 or 2 KiB; 55 % are lost; 0.88; `0.77`; head 1.13", []),
        ("46 % of 25, 0.454 and 2,049; 0.16", ["46 %", "25", "0.454", "2,049", "0.16"]),
        ("0.52 to 0.58, 52 to 58 %, 0.52–0.58, at least 0.52, 0.58 at most", []),
        ("0.55", ["0.55"]),  # seeds differ: alone it says too much
        ("0.53 to 0.58; at least 0.58; below 0.52", ["0.53", "0.58", "0.58", "0.52"]),
        ("[a](b/0.98.py) and phase 3, section 12; 4.5e-1 and 4.6e-1", ["4.6e-1"]),
    ],
)
def test_wrong_numbers_of_a_made_up_section_are_noticed(text, unknown):
    columns = {"x": [0.4529, 0.4531], "n": [2048, 2048], "spread": [0.521, 0.578], "list": [[0.1, -0.88], [0.1, -0.88]]}
    assert unknown_numbers(text, spans(replications.rows(columns)), {24}) == unknown
