"""Claims and rules on made numbers, the record, the runner of experiments, replications, the table,
the gallery.
"""

import argparse
import math
import re
import sys
import types
from contextlib import nullcontext
from fnmatch import fnmatchcase
from math import ceil, floor
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from PIL import Image

from shared import claims, cli, paths
from shared.claims import DIFFER, FAILS, HOLDS, Claim, Verdict
from shared.experiment import Experiment, Picture
from shared.lab import findings, gallery, pages, record, replicate, runner, tables
from shared.tests.helpers import near
from shared.visualization_utils import in_few_colors, save_figure

CLAIMS = claims.all_claims()
SEEDS = list(record.SEEDS)
TEN = [0.6, 0.62, 0.64, 0.66, 0.68, 0.7, 0.72, 0.74, 0.76, 0.78]
EXPECTED = (0.69 - 2.3725 * 0.0605530, 0.69 + 2.3725 * 0.0605530)  # mean and deviation of TEN
WATER = "phase1_single_head.wetness"


def made(name="C001", **changes):
    """A claim that one number decides."""
    settings = {
        "text": "water is wet",
        "source": "us",
        "rule": "0.5 or more",
        "effect": lambda n: n["wetness"],
        "at_least": 0.5,
        "oracle": {"*": 1},
        "null": {"*": 0},
        "experiment": WATER,
    }
    return Claim(id=name, **settings | changes)


def wet(*values):
    """Runs of several seeds."""
    return [{"wetness": value} for value in values]


def rows(values, **more):
    """Rows of the record, one a seed."""
    where = {
        "experiment": WATER,
        "number": "wetness",
        "seed": SEEDS[: len(values)],
        "torch": "2",
        "code": "c0de",
        "value": values,
    }
    return pd.DataFrame(where | more)


@pytest.fixture
def recorded(monkeypatch):
    """Puts rows into the place of the record."""

    def forget():
        record.runs.cache_clear()
        record.first_run.cache_clear()

    def put(*frames):
        monkeypatch.setattr(record, "read", lambda: pd.concat(frames))
        forget()

    yield put
    forget()


# ---- claims and their rules


class World(dict):
    """Numbers written short: the first pattern that fits a name gives its number."""

    def __missing__(self, name):
        for pattern, number in self.items():
            if fnmatchcase(name, pattern):
                return number
        raise KeyError(name)


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.id)
def test_a_rule_tells_an_exact_reader_from_nothing_there(claim):
    """Every claim has both worlds; its rule holds in the first and not in the second."""
    oracle, null = World(claim.oracle), World(claim.null)
    assert claim.holds(oracle) and not claim.holds(null)


def test_there_are_some_thirty_claims_each_with_a_name_and_one_bar():
    assert 30 <= len(CLAIMS) <= 50
    assert len({claim.id for claim in CLAIMS}) == len(CLAIMS)
    for claim in CLAIMS:
        assert (claim.at_least > float("-inf")) != (claim.at_most < float("inf")), claim.id


AT_MOST = {"at_least": float("-inf"), "at_most": 0.5}
TWO_BARS = {"also": lambda n: n["wetness"] < 0.7}


@pytest.mark.parametrize(
    ("changes", "values", "held", "kind", "said"),
    [
        ({}, (0.6, 0.5), 2, HOLDS, "holds in 2 of 2 runs"),
        ({}, (0.4, float("nan")), 0, FAILS, "holds in none of 2 runs"),
        ({}, (0.4,), 0, FAILS, "does not hold"),
        (AT_MOST, (0.5, 0.6), 1, DIFFER, "holds in 1 of 2 runs"),
        (TWO_BARS, (0.6, 0.8), 1, DIFFER, "holds in 1 of 2 runs"),
    ],
)
def test_a_verdict_is_a_rate(changes, values, held, kind, said):
    found = made(**changes).over(wet(*values))
    assert found == Verdict(held, len(values)) and str(found) == said
    assert found.kind == kind and found.decided == (kind != DIFFER)


# ---- the record


def test_the_record_is_ten_seeds_and_says_where_the_next_falls(recorded):
    recorded(rows(TEN), rows([1.0] * 10, number="dryness"), rows([0.9], seed=0, torch="3"))
    assert [numbers["wetness"] for numbers in record.runs(WATER)] == TEN
    assert record.first_run(WATER) == {"wetness": 0.9}, "it decides nothing"
    assert record.made_by(SEEDS) == "2" and record.versions().endswith("on record is torch 3")
    near(record.interval(WATER, "wetness"), EXPECTED, 1e-3)
    assert record.interval(WATER, "heat") is None and record.interval("fire", "wetness") is None
    assert record.verdict(made()) == Verdict(10, 10)
    assert record.verdict(made(at_least=0.7)) == Verdict(5, 10)
    assert record.verdict(made(effect=lambda n: n["moisture"])) is None, "it was not measured"
    assert record.known(made(experiment="fire", explored=3)) == Verdict(3, 10)
    with pytest.raises(ValueError, match="C001: run it on seeds 0 to 9"):
        record.known(made(experiment="fire"))


@pytest.mark.parametrize(
    ("value", "here", "same"),
    [
        (0.123456, 0.1234560001, True),
        (0.123456, 0.1234570000, False),
        (1e6, 1e6 + 0.9, True),
        (1e6, 1e6 + 1.1, False),
        (0.0, 4e-16, True),  # what should be 0 is a rounding, which processors do not share
        (0.0, 4e-9, False),
    ],
)
def test_with_seed_0_a_number_is_the_recorded_one_to_six_digits(recorded, value, here, same):
    recorded(rows(TEN), rows([value], seed=0), rows([1.0], seed=0, number="dryness"))
    assert record.differing(WATER, {"wetness": here, "dryness": 1.0, "heat": 3.0}) == (
        [] if same else ["wetness"]
    )
    assert record.differing(WATER, {"wetness": value}) == ["dryness"], "it was not measured"


def test_no_two_experiments_on_record_have_one_name():
    """Links to their numbers call them by it."""
    modules = record.read()["experiment"].unique()
    assert len({pages.short_name(module) for module in modules}) == len(modules)


def test_an_interval_keeps_to_what_its_values_are():
    """Ten times as much is judged by logarithms; no interval leaves out one of its own values.

    What never fell below 0 or left 0 to 1 is not said to.
    """
    assert record.next_seed([0.9, 1.0, 0.95])[1] == 1.0 < record.next_seed([0.9, 1.0, 1.1])[1]
    assert record.next_seed([0.1, 0.0, 5.0])[0] == 0.0 > record.next_seed([0.9, -0.1])[0]
    low, high = record.next_seed([10.0 ** (4 * value) for value in TEN])
    near([math.log10(low) / 4, math.log10(high) / 4], EXPECTED, 1e-3)
    assert record.next_seed([1.0, 3.0])[0] == 0.0, "three times is not more than three times"
    assert record.next_seed([-1.0, 3.1])[0] < -1.0, "a number below 0 has no logarithm"
    assert record.next_seed([0.652] + 9 * [1.0]) == (0.652, 1.0)


def test_a_record_is_written_and_read(tmp_path):
    path = tmp_path / "evidence.csv"
    ten = rows([1 / 3, 2048, 3e-9, *TEN[3:]][::-1], seed=SEEDS[::-1], code="12345678")
    record.write(pd.concat([ten, rows([0.5], seed=0)]), path)
    start = f"{WATER},wetness,"
    assert path.read_text().splitlines()[1:5] == [
        f"{start}0,2,c0de,0.5",
        f"{start}500,2,12345678,0.33333333",
        f"{start}501,2,12345678,2048",
        f"{start}502,2,12345678,3e-09",
    ]
    assert record.read(path).loc[1, "code"] == "12345678"
    before = path.read_bytes()
    for seeds in (SEEDS[:9], range(501, 511), [500] * 10, [0, 0, *SEEDS]):
        with pytest.raises(ValueError, match=f"{WATER}: wetness: not seeds 500 to 509"):
            record.write(rows([0.5] * len(seeds), seed=seeds), path)
    with pytest.raises(ValueError, match="measured in two ways"):
        record.write(rows(TEN, code=["0ld"] + 9 * ["new"]), path)
    assert path.read_bytes() == before, "what could not be read again is not written"


def test_the_record_on_disk_has_every_claim_and_what_pages_quote():
    record.check_rows(record.read())
    on_record = [claim for claim in CLAIMS if record.verdict(claim)]
    for claim in CLAIMS:
        record.known(claim)  # raises ValueError, which says what to do
    wanted = {claim.experiment for claim in on_record} | pages.linked_experiments()
    assert wanted <= set(record.read()["experiment"])


@pytest.mark.parametrize(
    ("rule", "here", "sentence", "agrees"),
    [
        ({}, [0.6], "On record it holds in 10 of 10 runs, and this run agrees.", True),
        ({}, [0.4], "holds in 10 of 10 runs, but here it does not hold.", False),
        ({}, [0.4, 0.6], "10 of 10 runs, but here it holds in 1 of 2 runs.", False),
        ({"at_least": 0.7}, [0.4], "holds in 5 of 10 runs; here it does not hold.", True),
        ({"at_least": 0.9}, [0.4], "holds in none of 10 runs, and this run agrees.", True),
        ({"at_least": 0.9}, [0.95], "none of 10 runs, but here it holds.", False),
        ({"experiment": "b"}, [0.6], "Not on record yet: here it holds.", True),
    ],
)
def test_a_finding_reads_as_a_sentence_about_record_and_run(recorded, rule, here, sentence, agrees):
    recorded(rows(TEN))
    finding = findings.judge_claim(made(**rule), wet(*here))
    assert finding.sentence.endswith(sentence) and finding.as_recorded == agrees


# ---- numbers in texts: what is said in a link agrees with the record
#
#   [0.97](../data/numbers.md#bottleneck:luong-24-letters)        of the run with seed 0
#   [39 to 44 %](../data/numbers.md#bottleneck:none-24-letters)   where another seed falls
#   [at least 84 %](../data/numbers.md#scaling:divided-best-rate) the lower end; at most: the upper
#   [about 40 %](...)  [about a third](...)                 in the middle half of that range
#   [9 of 10](../data/claims.md#patching-lookers)           the runs in which the rule holds
#   [six of the eight](../visualizations/gallery/phase3/head_roles.png)    as the caption says
#
# What is said in words alone ("nearly all") is the author's to judge; that its link leads to a row
# is checked.

DIGITS = r"-?\d[\d,]*(?:\.\d+)?"
NUMBER = re.compile(
    rf"(?P<bound>at least |at most |about )?(?P<low>{DIGITS})(?: ?%)?"
    rf"(?:(?: to |–)(?P<high>{DIGITS}))?(?P<percent> ?%)?",
    re.IGNORECASE,
)
WORDS = {
    "none": 0, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5,
    "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10,
}  # fmt: skip
SHARES = {"a third": "0.3", "half": "0.5", "three quarters": "0.75"}
A_WORD = "|".join(WORDS)
OUT_OF = re.compile(rf"\b({A_WORD}|\d+)(?: times)? (?:in|of|out of) (?:the )?({A_WORD}|\d+)\b")
ROUNDING = 1e-6  # a bound that is a round number but for rounding stays what it is


def wrong_of_pictures(text: str) -> list[str]:
    """Returns each number in a link to a picture that the picture's caption does not have."""
    wrong = []
    for match in pages.OF_PICTURE.finditer(text):
        caption = pages.caption_of(paths.ROOT / paths.GALLERY / match["name"]).lower()
        there = numbers_in(caption)
        missing = [value for value in numbers_in(match["words"].lower()) if value not in there]
        if missing:
            wrong.append(f"[{match['words']}]: {match['name']} has no {missing}: {caption}")
    return wrong


def numbers_in(text: str) -> list[float]:
    """Returns all numbers of a text, written as digits or as words."""
    numbers = re.findall(rf"(?<![\w.])(?:{DIGITS}|{A_WORD})(?!\w)", text)  # not the 3 of 3D
    return [as_number(number) for number in numbers]


def whats_wrong(quote: re.Match) -> str:
    """Returns what the record says instead of a LINK; empty if the quote agrees with it."""
    words, page, anchor = quote["words"], quote["page"], quote["anchor"]
    if page == "claims":
        return wrong_runs(words, anchor)
    places = {name: place for name, *place in pages.rows()}
    if ":" not in anchor:
        known = {pages.short_name(module) for module, _ in places.values()}
        return "" if anchor in known else f"no experiment is called {anchor}"
    if anchor not in places:
        return f"data/numbers.md has no row {anchor}"
    module, name = places[anchor]
    return wrong_number(words, record.interval(module, name), record.first_run(module).get(name))


def wrong_runs(words: str, name: str) -> str:
    """Returns what is wrong with a link to a claim: the claim, or in how many runs it holds."""
    known_claims = {claim.id: claim for claim in claims.all_claims()}
    if name not in known_claims:
        return f"no claim is called {name}"
    known = record.known(known_claims[name])
    match = OUT_OF.search(words.lower())
    if match and [as_number(match[1]), as_number(match[2])] != [known.held, known.seeds]:
        return f"the rule holds in {known.held} of {known.seeds}"
    return ""


def wrong_number(words: str, ends: tuple[float, float] | None, first: float | None) -> str:
    """Returns what is wrong with a number.

    ends: of where another seed falls, None if the record lacks the ten seeds. first: what seed 0
    gives, None where that is of one machine.
    """
    for share, number in SHARES.items():
        words = words.replace(share, number)
    match = NUMBER.search(words)
    if not match:
        return ""
    if first is not None and not (match["bound"] or match["high"]):
        ends = first, first
    if ends is None:
        return "the record has no other seeds"
    scale = 100 if match["percent"] or "%" in match[0] else 1
    low, high = scale * ends[0], scale * ends[1]
    last = match["high"] or match["low"]
    decimals = len(last.partition(".")[2])
    unit = 0.1**decimals  # of the last digit
    bound = (match["bound"] or "").strip().lower()
    if bound == "about":
        return wrong_middle(as_number(match["low"]), (low, high), slack=unit / 2)
    if bound == "at least":
        low = high = floor(low / unit + ROUNDING) * unit
    elif bound == "at most":
        low = high = ceil(high / unit - ROUNDING) * unit
    written = f"{{:,.{decimals}f}}".format
    expected = (written(low), written(high))
    if expected == (match["low"], last):
        return ""
    return f"the record has {' to '.join(dict.fromkeys(expected))}"


def wrong_middle(value: float, ends: tuple[float, float], slack: float) -> str:
    """Returns what is wrong with "about value": it is outside the middle half of the range."""
    low, high = ends
    quarter = (high - low) / 4
    if low + quarter - slack <= value <= high - quarter + slack:
        return ""
    return f"{value:.3g} is not in the middle of {low:.3g} to {high:.3g}"


def as_number(text: str) -> float:
    """Returns "4,928" or "nine" as a number."""
    return WORDS[text] if text in WORDS else float(text.replace(",", ""))


PUDDLE = "../data/numbers.md#wetness:"  # of which TEN are the values: 0.55 to 0.83


@pytest.mark.parametrize(
    ("link", "wrong"),
    [
        (f"[55–83 %]({PUDDLE}wetness)", ""),
        (f"[54–83 %]({PUDDLE}wetness)", "the record has 55 to 83"),
        (f"[at least 54 %]({PUDDLE}wetness)", ""),
        (f"[at least 55 %]({PUDDLE}wetness)", "the record has 54"),
        (f"[at most 0.84]({PUDDLE}wetness)", ""),
        (f"[at most 0.83]({PUDDLE}wetness)", "the record has 0.84"),
        (f"[about 70 %]({PUDDLE}wetness)", ""),
        (f"[about half]({PUDDLE}wetness)", "0.5 is not in the middle of 0.546 to 0.834"),
        (f"[about 60 %]({PUDDLE}wetness)", "60 is not in the middle of 54.6 to 83.4"),
        (f"[1,234]({PUDDLE}n-long)", ""),
        (f"[0.51]({PUDDLE}wetness)", ""),
        (f"[51 %]({PUDDLE}wetness)", ""),
        (f"[0.50]({PUDDLE}wetness)", "the record has 0.51"),
        (f"[all its numbers]({PUDDLE.rstrip(':')})", ""),
        (f"[it is wet]({PUDDLE}wetness)", ""),
        (f"[1]({PUDDLE}heat)", "data/numbers.md has no row wetness:heat"),
        ("[all](data/numbers.md#fire)", "no experiment is called fire"),
        ("[5 of 10](data/claims.md#C001)", ""),
        ("[in five of ten runs](../../data/claims.md#C001)", ""),
        ("[in six of the ten](data/claims.md#C001)", "the rule holds in 5 of 10"),
        ("[it holds](claims.md#C002)", "no claim is called C002"),
    ],
)
def test_what_a_page_quotes_agrees_with_the_record(recorded, monkeypatch, link, wrong):
    recorded(rows(TEN), rows([0.514], seed=0), rows([1234.4] * 10, number="n, long"))
    monkeypatch.setattr(claims, "all_claims", lambda: [made(at_least=0.7)])
    assert whats_wrong(pages.LINK.search(f"before {link} after")) == wrong


def test_two_numbers_never_share_a_row():
    anchors = [anchor for anchor, *_ in pages.rows()]
    assert len(set(anchors)) == len(anchors)


@pytest.mark.parametrize("page", pages.pages(), ids=paths.shown)
def test_pages_quote_the_record_as_it_is(page):
    wrong = []
    for quote in pages.LINK.finditer(page.read_text(encoding="utf-8")):
        says = whats_wrong(quote)
        if says:
            wrong.append(f"{quote[0]}: {says}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("page", pages.pages(), ids=paths.shown)
def test_pages_say_what_their_pictures_show(page):
    """An alt text is the picture's title; a number that links to a picture is in its caption."""
    text = page.read_text(encoding="utf-8")
    assert text == pages.with_titles(text), "run ./run_all.sh publish"
    assert not wrong_of_pictures(text)


def test_a_page_that_contradicts_its_picture_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    caption = 'Six of 8 heads follow "it". What do heads do? at 0.69'
    save_figure(plt.figure(), tmp_path / paths.GALLERY / "heads.png", caption=caption)
    address = "../visualizations/gallery/heads.png"
    image = '<img src="visualizations/gallery/heads.png" alt="{}" width="420">'
    said = f"![old]({address}) {image.format('old')} ![drawn](../visualizations/gallery/hand.svg)"
    *_, by_hand = said.split(" ", 1)[1].partition("> ")
    titled = image.format("Six of 8 heads follow &quot;it&quot;")
    assert pages.with_titles(said) == f'![Six of 8 heads follow "it"]({address}) {titled} {by_hand}'
    assert wrong_of_pictures(f"[Six of the eight]({address}), [0.69]({address})") == []
    (wrong,) = wrong_of_pictures(f"[five of the eight]({address})")
    assert wrong.startswith("[five of the eight]: heads.png has no [5]")


def test_no_number_hides_in_a_comment():
    for page in pages.pages():
        comments = re.findall(r"<!--.*?-->", page.read_text(encoding="utf-8"))
        assert not comments, f"{paths.shown(page)}: a reader does not see {comments}"


# ---- the runner of experiments


def film(results):
    return in_few_colors([Image.new("RGB", (30, 20), color) for color in ("black", "white")]), 0.5


def picture(results):
    fig, ax = plt.subplots(figsize=(5, 3), layout="constrained")
    ax.plot(results.each("wetness"))
    return fig


def measure(run):
    run.shown["word"] = f"word {run.seed}"
    return {"wetness": 0.6 + run.seed / 10, "steps": run.steps(100)}


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    """Runs an experiment, as if it lay in phase 1 -> answer, what it printed, what it kept."""
    made_up = Experiment(
        measure,
        [made()],
        picture,
        title="{n[wetness]:.1f} of all is wet",
        note="{shown[word]}",
        answer="wet: {n[wetness]:.2f}, {shown[word]}",
        film=film,
        add_options=lambda parser: parser.add_argument("--wish", type=lambda wish: None),
    )
    made_up.file = paths.ROOT / "phase1_single_head" / "wetness.py"
    made_up.doc = "Is water wet?\n\nIt is made up."

    module = types.ModuleType(WATER)
    module.main = made_up
    monkeypatch.setitem(sys.modules, WATER, module)

    def run(*argv, runs=(), first=None):
        monkeypatch.setattr(record, "runs", lambda experiment: runs)
        monkeypatch.setattr(record, "first_run", lambda experiment: first or {})
        answer = made_up(["--output-dir", str(tmp_path), *argv])
        return answer, capsys.readouterr().out, findings.load(findings.file_of(WATER, tmp_path))

    run.experiment, run.drawn = made_up, tmp_path / paths.PLOTS / "phase1"
    run.kept = findings.file_of(WATER, tmp_path)
    return run


def caption_of(path):
    return Image.open(path).info["Description"]


def test_what_an_experiment_prints_draws_and_keeps(run, tmp_path):
    answer, printed, kept = run("--wish", "rain", runs=wet(*TEN))
    assert answer == kept.answer == "wet: 0.60, word 0"
    assert caption_of(run.drawn / "wetness.png") == "0.6 of all is wet. Is water wet? word 0"
    assert printed.startswith("Is water wet?\n")
    verdict = '+ "water is wet" On record it holds in 10 of 10 runs, and this run agrees.'
    assert verdict in printed
    assert kept.table in printed and "0.546" not in printed, "whoever has seed 0 has our numbers"
    with Image.open(tmp_path / paths.ANIMATIONS / "phase1" / "wetness.gif") as image:
        assert image.n_frames == 2
    assert kept.runs[0]["wetness"] == 0.6 and kept.judged().findings[0].kind == HOLDS
    for options, mean in ((["--seeds", "2"], 0.65), (["--seed", "1"], 0.7)):
        _, printed, kept = run(*options, runs=wet(*TEN))
        assert kept.table in printed and re.search(f"wetness +{mean} +0.546 to 0.834", kept.table)
    _, printed, _ = run("--numbers", runs=wet(*TEN))
    assert re.search("wetness +0.6 +0.546 to 0.834", printed)
    assert "C001: a run counts as true if 0.5 or more." in printed
    assert "The number that decides, seed by seed: 0.6 · 0.62" in printed


def test_pictures_with_names_of_their_own_have_their_own_finding(run):
    """Beside the picture that is named after the file, or instead of it; `keep` is called once."""
    kept = []
    dry = Picture("dryness", picture, "{n[steps]:.0f} steps stay dry", "by {shown[word]}")
    run.experiment.more_pictures, run.experiment.keep = (dry,), kept.append
    run("--seeds", "3", runs=wet(*TEN))
    assert len(list(run.drawn.iterdir())) == 2
    first = "0.7 of all is wet. Is water wet? word 0 · 3 runs"
    assert caption_of(run.drawn / "wetness.png") == first
    said = "100 steps stay dry. Is water wet? by word 0 · 3 runs"
    assert caption_of(run.drawn / "dryness.png") == said
    (results,) = kept
    assert results.each("wetness") == pytest.approx([0.6, 0.7, 0.8])
    assert results.shown == {"word": "word 0"}


def test_several_seeds_are_told_by_their_mean_and_quick_ones_train_fewer_steps(run):
    answer, printed, kept = run("--seeds", "4", "--no-pictures", "--quick")
    assert answer == "wet: 0.75, word 0" and "0.75" in printed and not run.drawn.exists()
    assert [numbers["steps"] for numbers in kept.runs] == [30] * 4
    assert kept.otherwise == ["--quick"], "so it is not compared with the record"


def test_a_title_is_said_only_where_all_claims_come_out_as_on_record(run):
    run(runs=wet(0.1, 0.2, 0.3))
    assert caption_of(run.drawn / "wetness.png") == "Is water wet? word 0"
    run.experiment.claims = [made(), made("C002", at_least=0.65)]
    _, _, kept = run(runs=wet(*[0.7] * 10))
    assert caption_of(run.drawn / "wetness.png") == "Is water wet? word 0"
    assert [finding.as_recorded for finding in kept.judged().findings] == [True, False]


def test_of_what_the_claims_are_not_about_nothing_is_judged_or_kept(run):
    run.experiment.claims_apply = lambda options: False
    with pytest.raises(FileNotFoundError):
        run(runs=wet(*TEN))
    assert caption_of(run.drawn / "wetness.png") == "Is water wet? word 0"


def test_a_long_table_is_cut_in_the_middle(capsys):
    numbers = {f"number {n}": n for n in range(18)}
    for everything, lines in ((True, 19), (False, 18)):
        options = argparse.Namespace(numbers=everything, otherwise=[])
        findings.print_numbers(WATER, [numbers], options)
        assert len(capsys.readouterr().out.strip().splitlines()) == lines


def test_a_number_is_written_as_a_reader_wants_it():
    small = {0: "0", 3.14e-7: "3.1e-07", 0.97: "0.97", 99.94: "99.9"}
    large = {99.96: "100", 123.4: "123", 999.7: "1,000", -1234.5: "-1,234", 1050624: "1,050,624"}
    for value, written in (small | large).items():
        assert findings.number(value) == written


RECORD = '"water is wet." On record it holds in 10 of 10 runs'
DIFFERS = "This run differs from the record: 1 of 2 numbers are not those of seed 0: wetness."


def story_of(kept):
    """What the runner tells of a script that has kept this."""
    return " ".join(runner.story(runner.Result(0, "", "wet: 0.2", (kept,))).split())


def test_a_run_that_differs_from_the_record_says_so_alone_and_in_the_story(run):
    run.experiment.measure = lambda run: measure(run) | {"wetness": 0.2}
    first = {"wetness": 0.6, "steps": 100}
    _, printed, _ = run("--seeds", "3", runs=wet(*TEN), first=first)
    assert "mean of 3 runs" in printed
    assert f"runs. {DIFFERS}" in " ".join(printed.split())
    but = "but here it holds in none of 3 runs."
    assert story_of(run.kept).endswith(f"wet: 0.2 {RECORD}, {but} {DIFFERS}")
    for option in ("--quick", "--seed=1"):
        _, _, kept = run(option, runs=wet(*TEN), first=first)
        judged = kept.judged()
        assert judged.turned and not judged.compared, "another seed has other numbers"


@pytest.mark.parametrize("text", ["", "[{", '{"experiment": "a"}'])
def test_what_is_damaged_is_one_line_that_names_it(run, text, tmp_path, capsys, monkeypatch):
    run()
    run.kept.write_text(text, encoding="utf-8")
    monkeypatch.setattr(findings, "scripts", lambda: [WATER])
    with pytest.raises(SystemExit, match="2"):
        cli.run(lambda: findings.gather(tmp_path))
    line = capsys.readouterr().err
    assert line.startswith(f"{run.kept}: is damaged") and line.count("\n") == 1


def test_what_an_older_version_measured_is_not_judged(run, tmp_path):
    run(runs=wet(*TEN))
    findings.save(findings.SavedRun(WATER, runs=[{"moisture": 1.0}]), tmp_path)
    with pytest.raises(OSError, match="of another version"):
        findings.load(run.kept).judged()


def test_the_numbers_may_choose_the_answer(run):
    run.experiment.answer = lambda n: "Yes: {n[wetness]:.1f}." if n["wetness"] > 0.65 else "No."
    assert run()[0] == "No." and run("--seed", "1")[0] == "Yes: 0.7."


def test_what_an_experiment_refuses_is_one_line_and_exit_code_2(run, capsys):
    run.experiment.measure = lambda run: run.refuse("--wish: nobody grants that")
    with pytest.raises(SystemExit, match="2"):
        run()
    assert capsys.readouterr().err.endswith("--wish: nobody grants that\n")


# ---- replications


@pytest.fixture
def small_course(tmp_path, monkeypatch):
    """Replications of a made script in place of the course's -> the seeds run, those that break."""
    calls, broken = [], {501}

    def run_script(name, argv):
        assert paths.CHECKPOINTS.is_relative_to(tmp_path), "other code trains other models"
        seed, folder = int(argv[1]), Path(argv[-1])
        calls.append(seed)
        if seed in broken:
            return runner.Result(1, "it broke")
        runs = [{"wetness": seed / 1000, "time, seconds": 3.0}]
        findings.save(findings.SavedRun(WATER, runs=runs), folder)
        return runner.Result(0, "")

    pool = types.SimpleNamespace(imap_unordered=map)
    monkeypatch.setattr(paths, "CHECKPOINTS", paths.CHECKPOINTS)  # what is set comes back
    monkeypatch.setattr(runner, "run_script", run_script)
    monkeypatch.setattr(runner, "processes", lambda: nullcontext(pool))
    monkeypatch.setattr(replicate, "REPLICATIONS", tmp_path)
    monkeypatch.setattr(replicate, "scripts", lambda: [WATER])
    main = types.SimpleNamespace(claims=[], is_reproducible=lambda name: "seconds" not in name)
    monkeypatch.setitem(sys.modules, WATER, types.SimpleNamespace(main=main))
    monkeypatch.setattr(pages, "linked_experiments", lambda: {WATER})
    return calls, broken


def test_a_replication_that_was_stopped_goes_on_with_the_next_seed(small_course, recorded):
    calls, broken = small_course
    recorded(rows(TEN))
    pieces = replicate.pieces_of([WATER], SEEDS[:3])
    with pytest.raises(SystemExit, match="1"):
        replicate.measure_missing(pieces)
    assert calls == [500, 501]
    broken.clear()
    calls.clear()
    for _ in range(2):
        replicate.measure_missing(pieces)
        assert calls == [501, 502], "only what is missing"
    measured = replicate.kept_numbers(pieces)
    assert [numbers["wetness"] for numbers in measured[WATER].values()] == [0.5, 0.501, 0.502]


def test_a_kept_run_is_worthless_only_if_a_file_has_changed_that_its_script_imports(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    texts = {
        "a/script.py": "from b import models\n\n\ndef main():\n    import c.late\n",
        "b/models.py": "from b.parts import Part",
        "b/parts.py": "import torch\n\nPart = 1",
        "c/late.py": "",
        "c/other.py": "import a.script",
        "tests/test_script.py": "import a.script",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    before = replicate.pieces_of(["a.script"], [500])
    for name in texts:
        (tmp_path / name).write_text(texts[name] + "\nx = 1", encoding="utf-8")
        stays = name in ("c/other.py", "tests/test_script.py")
        assert (replicate.pieces_of(["a.script"], [500]) == before) == stays, name
        (tmp_path / name).write_text(texts[name], encoding="utf-8")
    assert replicate.pieces_of(["a.script"], [500]) == before


def test_ten_seeds_become_the_record_and_others_explore(small_course, monkeypatch):
    written = []
    monkeypatch.setattr(record, "write", written.append)
    monkeypatch.setattr(replicate, "all_claims", list)
    small_course[1].clear()
    replicate.main([f"{WATER.replace('.', '/')}.py"])
    assert (
        written[0].query("number == 'wetness' and experiment == @WATER")["seed"].tolist() == SEEDS
    )
    replicate.main(["--seed", "0", "--seeds", "2", f"{WATER.replace('.', '/')}.py"])
    assert len(written) == 1


def test_publishing_records_what_the_last_run_measured_with_seed_0(
    small_course, recorded, monkeypatch, tmp_path
):
    written = []
    recorded(rows(TEN), rows([0.3], seed=0), rows([0.2], seed=0, experiment="other"))
    monkeypatch.setattr(record, "write", written.append)
    monkeypatch.setattr(tables, "write", lambda: None)
    monkeypatch.setattr(findings, "scripts", lambda: [WATER, "other"])
    runs = [{"wetness": 0.5, "time, seconds": 3.0}]
    for name, otherwise in ((WATER, []), ("other", ["--quick"])):
        findings.save(findings.SavedRun(name, otherwise, runs=runs), tmp_path)
    gallery.record_first_seed(tmp_path)
    first = written[0].query("seed == 0").set_index(["experiment", "number"])["value"].to_dict()
    assert first == {(WATER, "wetness"): 0.5, ("other", "wetness"): 0.2}, "time is of a moment"


@pytest.mark.parametrize("options", ["--seeds 3", "--seed 501", "--seed 499 --seeds 12"])
def test_a_part_of_the_ten_seeds_is_judged_and_not_recorded(
    options, small_course, recorded, monkeypatch, capsys
):
    recorded(rows(TEN))
    monkeypatch.setattr(record, "write", lambda _: pytest.fail("it was written"))
    monkeypatch.setattr(replicate, "all_claims", lambda: [made()])
    small_course[1].clear()
    replicate.main(options.split())
    assert capsys.readouterr().out.startswith("C001: ")


@pytest.mark.parametrize("value", [0.7, 0.70001])
def test_the_last_run_is_checked(run, tmp_path, monkeypatch, capsys, value):
    monkeypatch.setattr(findings, "scripts", lambda: [WATER, f"{WATER}2"])
    run(runs=wet(*TEN), first={"wetness": value})
    findings.save(findings.SavedRun(WATER, runs=wet(0.7)), tmp_path)
    findings.save(findings.SavedRun(f"{WATER}2", ["--quick"], runs=wet(9)), tmp_path)
    monkeypatch.setitem(sys.modules, f"{WATER}2", sys.modules[WATER])
    with nullcontext() if value == 0.7 else pytest.raises(SystemExit, match="1"):
        replicate.main(["--check", "--output-dir", str(tmp_path)])
    printed = capsys.readouterr().out
    assert f"1 numbers were compared: {int(value != 0.7)} are not those on record" in printed
    assert (f"{WATER}: wetness: 0.7, on record 0.70001" in printed) == (value != 0.7)


# ---- the table of claims, the gallery


def test_the_table_on_disk_is_that_of_claims_and_record():
    text = tables.CLAIMS_PAGE.read_text(encoding="utf-8")
    assert text == tables.claims_page(tables.in_reading_order(CLAIMS)), "run shared/lab/tables.py"
    numbers = tables.NUMBERS_PAGE.read_text(encoding="utf-8")
    assert numbers == tables.numbers_page(), "run shared/lab/tables.py"
    assert tables.cell("a | b <c>") == r"a \| b \<c>"
    for link in re.findall(r"\]\(([^)]+)\)", text):
        file, _, anchor = link.partition("#")
        if anchor:
            target = numbers if file == "numbers.md" else text
            assert f'<a id="{anchor}"></a>' in target, link
        else:
            assert (paths.ROOT / "data" / link).exists(), link


def test_the_table_says_what_became_of_the_rules(recorded):
    """Ten, five and none of the ten seeds hold; of these three claims one was explored as it is."""
    recorded(rows(TEN))
    bars = {"C1": 0.5, "C2": 0.7, "C3": 0.9}
    tried = [made(name, at_least=bar, explored=9) for name, bar in bars.items()]
    tried[0] = made("C1", explored=10)
    page = tables.claims_page([*tried, made("C4", experiment=f"{WATER}2", explored=3)])
    assert "Of 3 claims, 1 hold in all ten runs, 1 in none, and 1 in some." in page
    assert "<b>3 of 10 runs (new: not on record yet)</b>" in page
    assert "1 of 3 rules held as often" in page and "in 15 runs on record, and in 28 before" in page
    assert "| [C2](#C2) | 9 | 5 |\n| [C3](#C3) | 9 | 0 |\n" in page and "[C1](#C1)" not in page
    # Of C2 half of the seeds contradict the others, and 25 of 45 pairs contradict each other.
    assert "most of the ten say in 17% of all" in page and "contradict each other in 19%" in page


def test_a_finding_says_its_point_first_and_unfolds_the_rest(recorded):
    recorded(rows(TEN))
    said = tables.entry(made(text="Rain < snow. Tried in small puddles, in May", at_least=0.5))
    summary, _, folded = said.partition("</summary>")
    assert summary.endswith("</a><b>10 of 10 runs</b> · Rain &lt; snow.")
    assert "<b>10 of 10 draws</b>" in tables.entry(made(draws=True)), "of data, for one model"
    assert "Tried in small puddles, in May" in folded
    assert "asks for at least 0.5: 0.6 · 0.62 · 0.64" in folded


def test_the_gallery_on_disk_is_what_the_readmes_show():
    folder = paths.ROOT / paths.GALLERY
    files = [path for path in folder.rglob("*") if path.is_file()]
    there = sorted(path.relative_to(folder).as_posix() for path in files)
    assert there == pages.linked_pictures()
    small = [*folder.rglob("live_page.gif"), *folder.rglob("*.png")]
    assert max(path.stat().st_size for path in small) <= 200_000


def test_publishing_leaves_alone_what_is_made_by_hand(tmp_path, monkeypatch):
    by_hand = {"phase3/live_page.gif", "phase1/machine.svg"}
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    monkeypatch.setattr(pages, "linked_pictures", lambda: ["phase4/new.gif", *by_hand])
    folder = tmp_path / paths.GALLERY
    for name in (*by_hand, "phase4/old.gif"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    drawn = tmp_path / paths.ANIMATIONS / "phase4" / "new.gif"
    drawn.parent.mkdir(parents=True)
    drawn.touch()
    assert gallery.fill_gallery(tmp_path) == 1
    there = [path for path in folder.rglob("*") if path.is_file()]
    assert {path.relative_to(folder).as_posix() for path in there} == by_hand | {"phase4/new.gif"}
