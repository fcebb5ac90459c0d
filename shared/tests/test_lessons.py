"""The numbers in the prose of README and lessons against the record of all replications, data/evidence.json.

A number that an experiment measures may stand in the prose in three ways: alone, if all seeds on all processors agree
to its last digit; as a range, 0.52 to 0.58, from the least to the largest; or as a bound, "at least 0.52".
"""

import ast
import re

import pytest

from shared import course, paths
from shared.evidence import replications, report, table
from shared.evidence.claims import EXPERIMENT, FAILS, HOLDS, ONLY_IF, UNDECIDED, all_claims
from shared.tests.helpers import promised

PHASES = tuple(course.PHASES.values())
README = (paths.ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def recorded():
    """Script -> the ranges of all numbers that its findings have in the record."""
    found = {}
    for claim in all_claims():
        known = replications.published(claim)
        found.setdefault(claim.script, []).extend(spans(known.blocks) if known else ())
    return found


def spans(blocks):
    """The least and the largest value of each number over all blocks and seeds; of a list, item by item."""
    values = {}
    for columns in blocks:
        for name, of_seeds in columns.items():
            for value in of_seeds:
                for place, number in enumerate(replications.flat(value) if isinstance(value, list) else [value]):
                    values.setdefault((name, place), []).append(abs(number))
    return [(min(numbers), max(numbers)) for numbers in values.values()]


NUMBER = re.compile(r"(?<![\w.,√^])(\d+(?:,\d{3})+|\d+)(\.\d+)?(e-?\d+)?( ?%)?(?![\w])")
RANGE = re.compile(NUMBER.pattern + r"(?: to |–)" + NUMBER.pattern)
AT_LEAST = re.compile(r"(at least|above|over|more than|from)( \w+)?\s$|^ (or more|and more|at least)")
AT_MOST = re.compile(r"(at most|below|under|less than|up to)( \w+)?\s$|^ (or less|at most)")


# Numbers that are right but that no finding records, by lesson and section, and where they come from instead.
ELSEWHERE = {
    "phase1_single_head": {
        "2. By hand": "2.718, 0.368, 4.086, 0.665, 0.245, 0.090, 10, 7.55, 3.35",  # worked out, has a test of its own
        "10. The long path": "774",  # counted and printed by layer_costs.py
        "12. What textbooks say": "0.993, 0.88, 0.12",  # printed by textbook_numbers.py and asserted by its tests
    },
    "phase2_multi_head": {
        # counted and printed by cost_model.py; its formulas, which a test compares with what is measured
        "4. What heads cost": "1,048,576; 301,989,888; 14.6; 2.4",
        "5. What heads learn": "800",  # steps of the recipe
    },
    "phase3_visualization": {
        "1. Reading a map": "0.15",  # the threshold that is in question
        "8. A real model": "0.65",  # of one sentence, printed by coreference.py
    },
    "phase4_causal": {
        "3. With and without": "4.6",  # ln of the size of the vocabulary, printed by breaking_causality.py
    },
}


def prose(section):
    """A section without code, links' addresses, rows of the table of claims, years of papers, names of heads."""
    section = re.sub(r"^```.*?^```|^    .*?$|`[^`\n]*`|^\| [+x~] \|.*?$", "", section, flags=re.DOTALL | re.MULTILINE)
    section = re.sub(r"!\[.*?\]\(.*?\)|\]\(.*?\)|et al\.,? \(?\d{4}\)?|& \w+ \d{4}", "", section)
    section = re.sub(r"[Hh]eads? \d\.\d+(?: and \d\.\d+)?", "", section)
    return section.split("**Named, not measured")[0]


def sections(lesson, phase):
    """Heading -> text and scripts (by their paths): of the section, and of its row in the lesson's first table."""
    first, *rest = re.split(r"^## ", lesson, flags=re.MULTILINE)
    found = {}
    for part in rest:
        heading, text = part.split("\n", 1)
        anchor = re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
        rows = "".join(row for row in first.splitlines() if f"(#{anchor})" in row)
        links = set(re.findall(r"\]\(([\w./]+\.py)\)", prose_links(rows + text)))
        answer = re.sub(r"^\| \d+ \|", "|", rows) + "\n"
        found[heading] = answer + text, {link[3:] if link.startswith("../") else f"{phase}/{link}" for link in links}
    return found


def prose_links(text):
    """Text without the table of claims, which links to every script of the phase."""
    return re.sub(r"^\| [+x~] \|.*$", "", text, flags=re.MULTILINE)


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


def lesson_unknowns(phase, recorded):
    lesson = (paths.ROOT / phase / "README.md").read_text(encoding="utf-8")
    found = {}
    for heading, (text, scripts) in sections(lesson, phase).items():
        known = [span for script in scripts for span in recorded.get(script, ())]
        settings = set().union(*(whole_numbers(script) for script in scripts))
        if unknown := unknown_numbers(text, known, settings):
            found[heading] = unknown
    return found


@pytest.fixture(scope="module")
def unknown_by_lesson(recorded):
    return {phase: lesson_unknowns(phase, recorded) for phase in PHASES}


# Numbers in captions that no finding has, by picture: of one sentence, of a drawing, counted, or by formula.
IN_CAPTIONS = {
    "phase2/attention_entropy.png": "160",  # untrained heads, counted
    "phase3/attention_flow.png": "39, 288",  # arrows of the sentence that is drawn
    "phase3/pretrained_heads.png": "30",  # heads, on the text that is drawn
    "phase3/training_film.gif": "190, 200, 800",  # steps of this film
}


def captions():
    """Picture of the gallery, its caption, and the script whose docstring promises it."""
    writes = {}
    for phase in PHASES:
        for script in sorted((paths.ROOT / phase).rglob("*.py")):
            doc = ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or ""
            writes |= {f"{phase[:6]}/{name}": paths.shown(script) for name in promised(doc)}
    gallery = paths.ROOT / paths.GALLERY
    for picture in sorted(path for path in gallery.glob("phase?/*") if path.is_file()):
        name = picture.relative_to(gallery).as_posix()
        yield name, report.caption_of(picture), writes[name]


def values_of(script):
    """Every value that the record has of a script's experiments, as a range of its own."""
    experiments = (claim for claim in all_claims() if claim.script == script and claim.kind == EXPERIMENT)
    known = [replications.published(claim) for claim in experiments]
    return [
        (abs(number), abs(number))
        for found in known
        if found
        for columns in found.blocks
        for of_seeds in columns.values()
        for number in replications.flat(of_seeds)
    ]


def test_numbers_of_captions_are_those_of_recorded_runs():
    for picture, caption, script in captions():
        known = values_of(script)
        unknown = (
            unknown_numbers(caption, known, whole_numbers(script)) if known else ()
        )  # else nothing was an experiment
        excused = set(re.split(r"[;,] ", IN_CAPTIONS.get(picture, "")))
        assert set(unknown) <= excused, f"{picture}: {sorted(set(unknown) - excused)}: {caption}"


def seven_things():
    """The items of the front door's list -> text and the scripts that each links to."""
    text = README.split("## Seven things")[1].split("\n## ")[0]
    items = re.findall(r"^\d\. (.*?)(?=^\d\. |^$)", text, re.DOTALL | re.MULTILINE)
    return [(item, re.findall(r"\]\(([\w/]+\.py)\)", item)) for item in items]


def test_seven_things_of_the_front_door_are_decided_and_have_numbers_code_and_picture(recorded):
    assert len(seven_things()) == 7
    decided = {
        claim.script
        for claim in all_claims()
        if claim.kind == EXPERIMENT and (known := replications.published(claim)) and known.verdict != UNDECIDED
    }
    for item, scripts in seven_things():
        assert set(scripts) <= decided and "visualizations/gallery/" in item, item
        known = [span for script in scripts for span in recorded[script]]
        assert not unknown_numbers(item, known, set().union(*map(whole_numbers, scripts))), item


def test_the_front_door_counts_as_the_record_does():
    counts = table.counted(all_claims(), replications.read())
    said = re.search(
        r"(\d+) experiments: (\d+) hold, (\d+) do not, (\d+) only under a condition, (\d+) are undecided here",
        " ".join(README.split()),
    )
    verdicts = [counts[verdict] for verdict in (HOLDS, FAILS, ONLY_IF, UNDECIDED)]
    assert [int(count) for count in said.groups()] == [sum(verdicts), *verdicts]


@pytest.mark.parametrize("phase", PHASES)
def test_numbers_of_a_lesson_are_those_of_the_record(unknown_by_lesson, phase):
    """A number of two digits and more is one of the record (as above), or one of the settings of the section's scripts.

    A wrong digit is noticed nine times in ten; now and then a wrong number is by chance another value of the section.
    """
    for heading, unknown in unknown_by_lesson[phase].items():
        excused = set(re.split(r"[;,] ", ELSEWHERE[phase].get(heading, "")))
        assert set(unknown) <= excused, f"{phase}, {heading}: not recorded: {sorted(set(unknown) - excused)}"


def test_no_number_is_excused_in_vain(unknown_by_lesson):
    for phase, excuses in ELSEWHERE.items():
        for heading, numbers in excuses.items():
            vain = set(re.split(r"[;,] ", numbers)) - set(unknown_by_lesson[phase].get(heading, ()))
            assert not vain, f"{phase}, {heading}: {vain} is recorded by now, or gone"


def test_a_wrong_number_in_a_lesson_is_noticed(recorded):
    lesson = (paths.ROOT / PHASES[0] / "README.md").read_text(encoding="utf-8")
    text, scripts = next(part for name, part in sections(lesson, PHASES[0]).items() if "bottleneck" in name)
    known = [span for script in scripts for span in recorded[script]]
    settings = set().union(*(whole_numbers(script) for script in scripts))
    right = unknown_numbers(text, known, settings)
    pair = next(RANGE.finditer(prose(text)))
    wrong = text.replace(pair[0], pair[0].replace(pair[1] + (pair[2] or ""), "0.123"))
    assert "0.123" in unknown_numbers(wrong, known, settings) and "0.123" not in right


def test_unknown_numbers_on_a_made_up_section():
    columns = {"x": [0.4529, 0.4531], "n": [2048, 2048], "spread": [0.521, 0.578], "list": [[0.1, -0.88], [0.1, -0.88]]}
    known, settings = spans([columns]), {24}
    good = "Of 24 (Vaswani et al. 2017) 45 %, 0.453 or 0.45; 2,048 or 2 KiB; 55 % are lost; 0.88; `0.77`; head 1.13"
    assert unknown_numbers(good, known, settings) == []
    assert unknown_numbers("46 % of 25, 0.454 and 2,049; 0.16", known, settings) == [
        "46 %",
        "25",
        "0.454",
        "2,049",
        "0.16",
    ]
    assert unknown_numbers("0.52 to 0.58, 52 to 58 %, 0.52–0.58, at least 0.52, 0.58 at most", known, settings) == []
    assert unknown_numbers("0.55", known, settings) == ["0.55"], "seeds differ: alone it says too much"
    assert unknown_numbers("0.53 to 0.58; at least 0.58; below 0.52", known, settings) == [
        "0.53",
        "0.58",
        "0.58",
        "0.52",
    ]
    assert unknown_numbers("| + | C001: 0.99 of all | [a](b/0.98.py) |", known, settings) == []
    assert unknown_numbers("4.5e-1 and 4.6e-1", known, settings) == ["4.6e-1"]
