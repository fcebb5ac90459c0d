"""Claims and rules on made numbers, the record, the table, the gallery."""

import json
import math
import re
import types
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from shared import course, paths
from shared.evidence import claims, findings, publish, replicate, replications, table
from shared.evidence.claims import (
    EXPERIMENT,
    FAILS,
    HOLDS,
    MEASURED,
    ONLY_IF,
    PROBE,
    UNDECIDED,
    Above,
    Claim,
    World,
)
from shared.evidence.replications import Block
from shared.plan import Plan, path_of, plans

CLAIMS = claims.all_claims()
EXPERIMENTS = [claim for claim in CLAIMS if claim.kind == EXPERIMENT]
SAID = json.loads((paths.ROOT / "data" / "raw" / "claims.json").read_text(encoding="utf-8"))


def made(name="C001", **changes):
    """A claim that one number decides: above 0.5, or at least above 0.2 where it rains."""
    rain = {"only_if": lambda n: n["wetness"] > 0.2, "condition": "it rains"}
    settings = {"text": "water is wet", "kind": EXPERIMENT, "rule": "above 0.5", "unit": "share", **rain} | changes
    return Claim(id=name, **{"holds": lambda n: n["wetness"] > 0.5, **settings})


def plain(name="C001", **changes):
    """The same without a condition."""
    return made(name, only_if=None, condition="", **changes)


def wet(*values):
    """Runs of several seeds."""
    return [{"wetness": value} for value in values]


# ----------------------------------------------------------------------------------------- what every claim must be


def test_every_claim_says_what_how_and_where():
    names = [claim.id for claim in CLAIMS]
    assert len(set(names)) == len(names)
    for claim in CLAIMS:
        assert claim.text and claim.rule and claim.source, claim.id
        assert claim.kind == EXPERIMENT or (claim.kind == PROBE and not claim.over_seeds), claim.id
        assert claim.holds or claim.kind == PROBE, f"{claim.id}: only a probe of times may have no rule"
        assert bool(claim.condition) == bool(claim.only_if), f"{claim.id}: a condition has its rule and its words"
        assert "every seed" not in claim.rule, f"{claim.id}: the frame applies each rule to every seed"
        assert (paths.ROOT / claim.script).is_file(), claim.id


@pytest.mark.parametrize("claim", EXPERIMENTS, ids=lambda claim: claim.id)
def test_a_rule_tells_an_exact_reader_from_nothing_there(claim):
    tells_apart(claim)


def tells_apart(claim):
    """Every experiment has both worlds; its rule holds in the first and not in the second."""
    assert claim.oracle is not None and claim.null is not None, f"{claim.id} needs oracle and null"
    assert claim.verdict(claim.oracle) == HOLDS, claim.id
    assert claim.verdict(claim.null) != HOLDS, claim.id


def test_a_rule_that_cannot_fail_or_cannot_hold_is_noticed():
    worlds = {"oracle": {"wetness": 1.0}, "null": {"wetness": 0.0}}
    tells_apart(made(**worlds))
    for rule in (lambda n: True, lambda n: n["wetness"] >= 0, lambda n: n["wetness"] > 1, lambda n: False):
        with pytest.raises(AssertionError):
            tells_apart(plain(holds=rule, **worlds))
    with pytest.raises(AssertionError, match="needs oracle and null"):
        tells_apart(made(oracle={"wetness": 1.0}))


# ------------------------------------------------------------------------------------------------ rules and verdicts


@pytest.mark.parametrize(("wetness", "verdict"), [(0.6, HOLDS), (0.5, ONLY_IF), (0.2, FAILS)])
def test_a_verdict_follows_the_numbers(wetness, verdict):
    assert made().verdict({"wetness": wetness}) == verdict
    assert plain().verdict({"wetness": wetness}) == (HOLDS if wetness > 0.5 else FAILS)


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ((0.6, 0.7, 0.9), HOLDS),
        ((0.6, 0.7, 0.4), UNDECIDED),
        ((0.3, 0.4, 0.3), ONLY_IF),
        ((0.1, 0.4, 0.1), FAILS),  # it never holds, and the condition helps with one seed alone
        ((0.1, 0.2, 0.6), UNDECIDED),
    ],
)
def test_seeds_decide_where_they_agree(values, verdict):
    assert made().over(wet(*values)) == verdict


def test_fewer_than_three_seeds_decide_nothing():
    assert findings.of_this_run(made(), wet(0.6, 0.7)) == HOLDS, "they agree"
    assert findings.of_this_run(made(), wet(0.6, 0.1)) == UNDECIDED
    assert findings.of_this_run(made(over_seeds=True), wet(0.6)) == ""
    assert plain(kind=PROBE, holds=None).over(wet(0.6)) == MEASURED


def test_a_rule_over_seeds_sees_all_of_them():
    often = plain(over_seeds=True, holds=lambda n: sum(value > 0.5 for value in n["wetness"]) >= 2)
    assert often.over(wet(0.6, 0.1, 0.9)) == HOLDS and often.over(wet(0.6, 0.1, 0.1)) == FAILS


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ((0.6, 0.7, 0.65), HOLDS),
        ((0.7, 0.72, 0.49, 0.71, 0.7), HOLDS),  # one seed below, the mean clearly above: 0.66 +- 0.12
        ((0.1, 0.12, 0.51, 0.1, 0.1), FAILS),
        ((0.4, 0.8, 0.3, 0.9, 0.5), UNDECIDED),
        ((0.49, *[0.6] * 11), HOLDS),  # more than ten, too
    ],
)
def test_an_effect_is_decided_by_its_interval_where_seeds_disagree(values, verdict):
    assert plain(holds=Above(lambda n: n["wetness"], 0.5)).over(wet(*values)) == verdict


def test_what_could_not_be_measured_decides_nothing():
    assert made().verdict({"wetness": 0.9, "dryness": math.nan}) == UNDECIDED


def test_a_world_is_written_short():
    world = World({"none, reverse": 0.2, "*, reverse": 1.0})
    assert (world["none, reverse"], world["rotary, reverse"]) == (0.2, 1.0)
    with pytest.raises(KeyError):
        world["rotary, copy"]


# ------------------------------------------------------------------------------------------------ what a run records


def test_a_run_stands_beside_the_record(monkeypatch, capsys):
    monkeypatch.setattr(replications, "read", lambda: RECORD)
    found = findings.judged(plain(), wet(0.4))
    assert (found["verdict"], found["here"], found["rests on"]) == (HOLDS, FAILS, "6 runs on 2 kinds of processor")
    assert not findings.as_published(found) and findings.as_published(findings.judged(plain(), wet(0.6)))
    assert findings.published_ranges([plain()], ["wetness", "dryness"]) == {"wetness": "0.6 to 0.9"}
    findings.print_verdicts([found], rules=True)
    printed = capsys.readouterr().out
    assert '+ holds (this run: does not hold): "water is wet"' in printed and "rule: above 0.5" in printed


@pytest.mark.parametrize(
    ("value", "text"),
    [(1_050_624, "1,050,624"), (0.97, "0.97"), (3.1e-7, "3.1e-07"), (1234.5, "1,234"), ([1.0, 0.25], "1, 0.25")],
)
def test_numbers_are_shown_as_a_reader_wants_them(value, text):
    assert findings.number(value) == text


# --------------------------------------------------------------------------------------------------------- the record


def block(values, processor="GenuineIntel AVX512", seeds=(0, 1, 2), name="C001"):
    return Block(processor, {"torch": "2.13.0"}, list(seeds), {name: {"wetness": list(values)}})


RECORD = (block((0.6, 0.7, 0.8)), block((0.9, 0.7, 0.8), "GenuineIntel AVX2"))


def test_the_record_decides_where_all_blocks_agree():
    known = replications.published(plain(), RECORD)
    assert (known.verdict, len(known.runs), known.processors) == (HOLDS, 6, 2)
    assert known.range("wetness") == (0.6, 0.9) and known.range("dryness") is None
    assert replications.published(plain(), [*RECORD, block((0.1, 0.7, 0.8), seeds=(5, 6, 7))]).verdict == UNDECIDED
    assert replications.published(plain(), [*RECORD, block((0.1, 0.1, 0.1), "AMD")]).verdict == UNDECIDED
    assert replications.published(plain("other"), RECORD) is None
    renamed = plain(holds=lambda n: n["moisture"] > 0.5)
    assert replications.published(renamed, RECORD) is None, "the rule asks for a number that was not measured"
    timed = plain(kind=PROBE, holds=None)
    assert replications.published(timed, RECORD).verdict == MEASURED


def test_a_record_is_written_and_read_finding_by_finding(tmp_path):
    path = tmp_path / "evidence.json"
    exact = block((1 / 3, 2.0, [0.123456, 4]))
    replications.write([exact, *RECORD], path)
    first, *others = replications.read(path)
    assert first.findings["C001"]["wetness"] == [0.3333, 2.0, [0.1235, 4]] and tuple(others) == RECORD
    more = replace(RECORD[1], findings={"C001": {"wetness": [0.0, 0.0, 0.0]}, "C002": {"x": [1.0] * 3}})
    merged = replications.with_block(RECORD, more)
    assert len(merged) == 2 and merged[0] == RECORD[0] and merged[1].findings == more.findings
    assert len(replications.with_block(RECORD, block((0.6, 0.7, 0.8), seeds=(5, 6, 7)))) == 3


def test_the_record_on_disk_has_every_experiment_with_five_seeds():
    blocks = replications.read()
    assert all(len(found.seeds) == 5 for found in blocks) and len({found.processor for found in blocks}) >= 3
    measured = [replications.published(claim) for claim in EXPERIMENTS]
    missing = [claim.id for claim, known in zip(EXPERIMENTS, measured, strict=True) if not known]
    assert not missing, f"run ./run_all.sh replicate for {missing}"
    assert {name for found in blocks for name in found.findings} <= {claim.id for claim in CLAIMS}


def test_a_decided_verdict_that_turns_is_a_contradiction(monkeypatch):
    def said(value, claim, name="C001"):
        content = {"numbers": {"wetness": [value]}, "findings": [{"id": name}]}
        return findings.contradictions([content], [claim])

    monkeypatch.setattr(replications, "read", lambda: RECORD)
    assert said(0.4, plain()) == ["C001: does not hold, in the record: holds"] and said(0.51, plain()) == []
    assert said(0.4, plain("C009"), "C009")[0].startswith("C009: not in the record")
    of_before = {"script": "a/b.py", "numbers": {"dampness": [0.4]}, "findings": [{"id": "C001"}]}
    assert findings.contradictions([of_before], [plain()]) == ["C001: the last run has no 'wetness': run a/b.py again"]
    often = plain(over_seeds=True, holds=lambda n: min(n["wetness"]) > 0.5)
    for lenient in (plain(holds=Above(lambda n: n["wetness"], 0.5)), often):
        assert said(0.4, lenient) == [], "one seed says nothing of a mean or a rate"
    monkeypatch.setattr(replications, "read", lambda: [*RECORD, block((0.1, 0.7, 0.8), seeds=(5, 6, 7))])
    assert said(0.4, plain()) == [], "undecided: both are possible"


@pytest.fixture
def small_course(tmp_path, monkeypatch):
    """Two made experiments in place of the course's; returns the calls, and the folder that is kept."""
    calls = []

    def run_script(name, argv):
        seed, folder = int(argv[argv.index("--seed") + 1]), Path(argv[-1])
        calls.append((name, seed))
        assert tmp_path / "checkpoints" == paths.CHECKPOINTS, "another processor trains other models"
        if name == "b" and seed in broken:
            return course.Result(1, "it broke")
        content = {"numbers": {"wetness": [0.6 + seed / 10]}, "findings": [{"id": name}]}
        with paths.whole_file(findings.file_of(path_of(name), folder)) as unfinished:
            unfinished.write_text(json.dumps(content), encoding="utf-8")
        return course.Result(0, "")

    broken = set()
    plan = Plan(train=("a:model",), scripts=("a", "b"))
    monkeypatch.setattr(course, "run_script", run_script)
    monkeypatch.setattr(course, "train", run_script)
    monkeypatch.setattr(replicate, "plans", lambda: {"phase1": plan})
    home = paths.CHECKPOINTS
    monkeypatch.setattr(paths, "CHECKPOINTS", home)  # replicate sets it

    def imap_unordered(function, tasks):
        for task in tasks:
            paths.CHECKPOINTS = home  # another process knows nothing of what this one has set
            yield function(task)

    one_process = types.SimpleNamespace(imap_unordered=imap_unordered)
    monkeypatch.setattr(course, "processes", lambda: nullcontext(one_process))
    return calls, broken, tmp_path


BOTH = [("a", 0), ("a", 1), ("b", 0), ("b", 1)]


def test_a_replication_that_was_stopped_goes_on_where_it_was(small_course, monkeypatch):
    calls, broken, kept = small_course
    broken.add(1)
    with pytest.raises(SystemExit):
        replicate.measure_all(kept, BOTH)
    done = [call for call in calls if ":" not in call[0]]
    assert done == BOTH
    broken.clear()
    calls.clear()
    replicate.measure_all(kept, BOTH)
    assert calls == [("a:model", 1), ("b", 1)], "only what is missing, and the model for it"
    found = replicate.collected(kept, BOTH, [0, 1])
    assert found.findings == {"a": {"wetness": [0.6, 0.7]}, "b": {"wetness": [0.6, 0.7]}}
    assert found.processor == replications.processor() and found.seeds == [0, 1]
    calls.clear()
    replicate.measure_all(kept, BOTH)
    assert calls == []


def test_nothing_is_taken_over_from_other_versions_or_files(tmp_path, monkeypatch):
    (tmp_path / "shared" / "tests").mkdir(parents=True)
    (tmp_path / "shared" / "a.py").write_text("1", encoding="utf-8")
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    before = replicate.kept_here()
    (tmp_path / "shared" / "tests" / "test_a.py").touch()
    assert replicate.kept_here() == before
    monkeypatch.setattr(replications, "versions", lambda: {"torch": "9"})
    newer = replicate.kept_here()
    (tmp_path / "shared" / "a.py").write_text("2", encoding="utf-8")
    assert len({before, newer, replicate.kept_here()}) == 3


def test_what_has_only_probes_is_measured_once_and_what_is_not_installed_left_out(monkeypatch, capsys):
    plan = Plan(train=(), scripts=("a", "b", "c"), needs={"c": "no_such_package"})
    monkeypatch.setattr(replicate, "plans", lambda: {"phase1": plan})
    some = [plain(script="a.py"), plain("C002", script="b.py", kind=PROBE), plain("C003", script="c.py")]
    assert replicate.wanted_tasks(some, [5, 6]) == [("a", 5), ("a", 6), ("b", 5)]
    assert "left out: c" in capsys.readouterr().out


def test_every_script_of_a_plan_is_there():
    for plan in plans().values():
        assert all((paths.ROOT / path_of(name)).is_file() for name in plan.all)
        assert set(plan.slow) <= set(plan.scripts) and set(plan.needs) <= set(plan.all)


# ---------------------------------------------------------------------------------------------- the table of claims


def test_the_table_on_disk_is_that_of_claims_and_record():
    text = (paths.ROOT / table.PAGE).read_text(encoding="utf-8")
    assert text == table.page(CLAIMS, replications.read()), "run shared/evidence/table.py"
    for link in re.findall(r"\]\(([^)]+)\)", text):
        assert (paths.ROOT / "data" / link).exists(), link


def test_every_saying_of_the_notes_is_measured_or_answered():
    ids = {claim.id for claim in CLAIMS}
    assert [row["id"] for row in SAID] == [f"C{number:03d}" for number in range(1, 183)]
    for row in SAID:
        assert row["finding"] in ids if row["kind"] == "finding" else row.get("answer") or row["kind"] == "opinion", row
        assert (paths.ROOT / row.get("where", "")).exists(), row
    assert set(claims.rules_changed()) <= ids


def test_the_table_says_verdict_and_change(monkeypatch):
    monkeypatch.setattr(table, "rules_changed", lambda: {"wetness": "was 0.4"})
    claim = plain("wetness", text="a | b", script="a/b.py", headline=True)
    record = (block((0.6, 0.7, 0.8), name="wetness"),)
    row = table.row(claim, record)
    assert "| a \\| b (" in row and "*Rule changed after a result: was 0.4.* | + holds | [b.py](../a/b.py)" in row
    text = table.page([claim], record)
    assert "1 experiments decide" in text and "1 + holds" in text and "seeds 0 to 2 on GenuineIntel AVX512" in text


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
