"""The numbers in the prose of README and lessons against what the scripts recorded: data/claims.json."""

import re

import pytest

from shared import course, paths
from shared.evidence import table
from shared.evidence.claims import FAILS, HOLDS, ONLY_IF, all_claims

PHASES = tuple(course.PHASES.values())


@pytest.fixture(scope="module")
def recorded():
    """Every recorded verdict and its numbers, with the script that measures it."""
    known = table.read_table()
    return [{"id": claim.id, "script": claim.script, **known[claim.id]} for claim in all_claims() if claim.id in known]


NUMBER = re.compile(r"(?<![\w.,√^])(\d+(?:,\d{3})+|\d+)(\.\d+)?(e-?\d+)?( ?%)?(?![\w])")


# Numbers that are right but that no finding records, by lesson and section, and where they come from instead.
ELSEWHERE = {
    "phase1_single_head": {
        "1. The bottleneck": "27 %, 74, 78 %",  # printed by bottleneck.py: going on from its own letters
        "2. By hand": "2.718, 0.368, 4.086, 0.665, 0.245, 0.090, 10, 7.55, 3.35",  # worked out, has a test of its own
        "3. In a trained model": "0.27, 0.24, 0.22",  # printed by self_attention.py
        # parameters by formula, memory and times as scoring.py prints them
        "6. Which score": "1.3; 16,384; 4,096; 320; 8,320; 5.2; 55; 49,408; 16,640",
        "8. Why divide by √d_k": "0.42, 0.12",  # printed by scaling.py
        "10. The long path": "774, 2054, 19",  # counted and printed by layer_costs.py
        "11. Reading weights": "17",  # the longest sentence of the toy language
    },
    "phase2_multi_head": {
        "5. What heads learn": "800",  # steps of the recipe
        "6. Are more heads better?": "0.34, 0.24, 0.15, 0.12, 0.20, 0.37",  # a run with --steps 900
        "10. Fused and grouped": "0.98, 0.92, 0.93, 0.82, 1.04, 1.01, 0.97, 0.96",  # times, printed by benchmark.py
    },
    "phase3_visualization": {
        "1. Reading a map": "0.17, 0.15",  # 1/6, and the threshold that is in question
    },
    "phase4_causal": {
        "3. With and without": "4.6, 11.9, 12.5, 2.00",  # ln of the size of the vocabulary; other seeds
        "4. What the mask does to patterns": "0.82, 0.54",  # printed by mask_patterns.py
        "6. Writing": "77, 89, 46, 20 %",  # other seeds
        "8. Long texts": "1.6; 1.3; 40; 14",  # times, printed by long_context.py
        "10. Induction": "2.20, 210, 50, 90",  # by formula; other seeds
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


def flat(value):
    return [number for item in value for number in flat(item)] if isinstance(value, list) else [value]


def measured_values(entries):
    """All recorded numbers; of a list with one for each seed, their mean as well."""
    values = []
    for entry in entries:
        for value in entry["measured"].values():
            numbers = flat(value)
            values += [abs(number) for number in (*numbers, sum(numbers) / len(numbers))]
    return values


def unknown_numbers(text, values, settings):
    """Numbers of two digits and more that are not a measured value as printed, nor a whole number of the scripts."""
    unknown = []
    for match in NUMBER.finditer(prose(text)):
        whole, decimals, power, percent = (part or "" for part in match.groups())
        digits = whole.replace(",", "") + decimals
        if len(digits.replace(".", "").lstrip("0")) < 2:
            continue
        number, unit = float(digits + power), 10.0 ** (int(power[1:] or 0) - max(len(decimals) - 1, 0))
        scales = (100, 1) if percent else (1, *(2.0**-bits for bits in (10, 20, 30, 40)))  # KiB, MiB, GiB, TiB
        shown = any(abs(value * scale - number) <= 0.51 * unit for scale in scales for value in values)
        rest = percent and any(abs((1 - value) * 100 - number) <= 0.51 * unit for value in values)
        setting = not (decimals or power or percent) and int(number) in settings
        if not (shown or rest or setting):
            unknown.append(match[0])
    return unknown


def whole_numbers(script):
    """The whole numbers that stand in a script: its settings."""
    text = (paths.ROOT / script).read_text(encoding="utf-8")
    return {int(number.replace("_", "").replace(",", "")) for number in re.findall(r"\b\d[\d_,]*\b", text)}


def lesson_unknowns(phase, table):
    lesson = (paths.ROOT / phase / "README.md").read_text(encoding="utf-8")
    found = {}
    for heading, (text, scripts) in sections(lesson, phase).items():
        values = measured_values([entry for entry in table if entry.get("script") in scripts])
        settings = set().union(*(whole_numbers(script) for script in scripts))
        if unknown := unknown_numbers(text, values, settings):
            found[heading] = unknown
    return found


@pytest.fixture(scope="module")
def unknown_by_lesson(recorded):
    return {phase: lesson_unknowns(phase, recorded) for phase in PHASES}


def seven_things():
    """The items of the front door's list -> text and the script that each links to."""
    text = (paths.ROOT / "README.md").read_text(encoding="utf-8").split("## Seven things")[1].split("\n## ")[0]
    items = re.findall(r"^\d\. (.*?)(?=^\d\. |^$)", text, re.DOTALL | re.MULTILINE)
    return [(item, re.search(r"\]\(([\w/]+\.py)\)", item)[1]) for item in items]


def test_seven_things_of_the_front_door_have_recorded_numbers_and_do_not_hold(recorded):
    assert len(seven_things()) == 7
    for item, script in seven_things():
        entries = [entry for entry in recorded if entry.get("script") == script]
        assert any(entry["verdict"] != HOLDS for entry in entries)
        assert not unknown_numbers(item, measured_values(entries), whole_numbers(script)), item


def test_the_front_door_counts_the_claims_as_the_table_does(recorded):
    text = " ".join((paths.ROOT / "README.md").read_text(encoding="utf-8").split())
    counts = re.search(
        r"Of (\d+) claims (\d+) hold, (\d+) do not, (\d+) hold only under a condition, .* (\d+) are", text
    )
    verdicts = [entry["verdict"] for entry in recorded if entry["id"] in table.CLAIM_IDS]
    measured = [verdicts.count(verdict) for verdict in (HOLDS, FAILS, ONLY_IF)]
    total = len(table.CLAIM_IDS)
    assert [int(count) for count in counts.groups()] == [total, *measured, total - sum(measured)]


@pytest.mark.parametrize("phase", PHASES)
def test_numbers_of_a_lesson_are_recorded_ones(unknown_by_lesson, phase):
    """A number of two digits and more is a value measured by a script of its section, or one of that script's settings.

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
    text, scripts = sections(lesson, PHASES[0])["1. The bottleneck"]
    assert "phase1_single_head/before/bottleneck.py" in scripts and "44 % at 24" in text
    values = measured_values([entry for entry in recorded if entry.get("script") in scripts])
    settings = set().union(*(whole_numbers(script) for script in scripts))
    right = unknown_numbers(text, values, settings)
    assert unknown_numbers(text.replace("44 % at 24", "43 % at 24"), values, settings) == ["43 %", *right]


def test_unknown_numbers_on_a_made_up_section():
    values, settings = measured_values([{"measured": {"x": 0.4529, "n": 2048, "s": [0.1, 0.3, -0.88]}}]), {24}
    good = "Of 24 (Vaswani et al. 2017) 45 %, 0.45 or 0.453; 2,048 or 2 KiB; 55 % are lost; 0.88; `0.77`; head 1.13"
    assert unknown_numbers(good, values, settings) == []
    assert unknown_numbers("46 % of 25, 0.454 and 2,049; 0.16", values, settings) == ["46 %", "25", "0.454", "2,049"]
    assert unknown_numbers("| + | C001: 0.99 of all | [a](b/0.98.py) |", values, settings) == []
    assert unknown_numbers("4.5e-1 and 4.6e-1", values, settings) == ["4.6e-1"]
