"""Claims and rules on made numbers, the record, the runner of experiments, replications, the table, the gallery."""

import json
import math
import re
import types
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
from PIL import Image

from shared import course, paths
from shared.evidence import claims, findings, publish, replicate, replications, table
from shared.evidence.claims import EXPERIMENT, FAILS, HOLDS, MEASURED, ONLY_IF, PROBE, UNDECIDED, Above, Claim
from shared.evidence.replications import Block
from shared.experiment import Experiment
from shared.plan import Plan, path_of
from shared.visualization_utils import in_few_colors

CLAIMS = claims.all_claims()
EXPERIMENTS = [claim for claim in CLAIMS if claim.kind == EXPERIMENT]
ABOVE = Above(lambda n: n["wetness"], 0.5)


def made(name="C001", **changes):
    """A claim that one number decides."""
    settings = {"text": "water is wet", "rule": "above 0.5", "holds": lambda n: n["wetness"] > 0.5} | changes
    return Claim(id=name, **settings)


def with_condition(name="C001"):
    return made(name, only_if=lambda n: n["wetness"] > 0.2, condition="it rains")


def wet(*values):
    """Runs of several seeds."""
    return [{"wetness": value} for value in values]


def block(values, processor="Intel AVX512", seeds=(0, 1, 2), name="C001"):
    return Block(processor, {"torch": "2.13.0"}, list(seeds), {name: {"wetness": list(values)}})


RECORD = (block((0.6, 0.7, 0.8)), block((0.9, 0.7, 0.8), "Intel AVX2"))
SPLIT = (*RECORD, block((0.1, 0.7, 0.8), seeds=(5, 6, 7)))  # its last seeds disagree

# ---- claims and their rules


@pytest.mark.parametrize("claim", EXPERIMENTS, ids=lambda claim: claim.id)
def test_a_rule_tells_an_exact_reader_from_nothing_there(claim):
    """Every experiment has both worlds; its rule holds in the first and not in the second."""
    assert claim.oracle is not None and claim.null is not None, "it needs oracle and null"
    assert claim.verdict(claim.oracle) == HOLDS and claim.verdict(claim.null) != HOLDS


@pytest.mark.parametrize(
    ("claim", "values", "verdict"),
    [
        (made(), (0.6,), HOLDS),
        (made(), (0.5,), FAILS),
        (made(), (math.nan,), UNDECIDED),
        (with_condition(), (0.5,), ONLY_IF),
        (with_condition(), (0.2,), FAILS),
        (with_condition(), (0.6, 0.7, 0.9), HOLDS),
        (with_condition(), (0.6, 0.7, 0.4), UNDECIDED),
        (with_condition(), (0.3, 0.4, 0.3), ONLY_IF),
        (with_condition(), (0.1, 0.4, 0.1), FAILS),  # it never holds, and the condition helps with one seed alone
        (made(kind=PROBE, holds=None), (0.6,), MEASURED),
        (made(over_seeds=True, holds=lambda n: sum(n["wetness"]) > 1.5), (0.6, 0.1, 0.9), HOLDS),
        (made(over_seeds=True, holds=lambda n: sum(n["wetness"]) > 1.5), (0.9, 0.1, 0.1), FAILS),
        (made(holds=ABOVE), (0.7, 0.72, 0.49, 0.71, 0.7), HOLDS),  # one below, the mean clearly above: 0.66 +- 0.12
        (made(holds=ABOVE), (0.1, 0.12, 0.51, 0.1, 0.1), FAILS),
        (made(holds=ABOVE), (0.4, 0.8, 0.3, 0.9, 0.5), UNDECIDED),
        (made(holds=ABOVE), (0.49, *[0.6] * 11), HOLDS),  # more than ten, too
    ],
)
def test_seeds_decide_where_they_agree_or_where_their_mean_is_clear(claim, values, verdict):
    assert claim.over(wet(*values)) == verdict


# ---- the record


def test_the_record_decides_where_all_blocks_agree():
    known = replications.published(made(), RECORD)
    assert (known.verdict, len(known.runs), known.processors) == (HOLDS, 6, 2)
    assert known.range("wetness") == (0.6, 0.9) and known.range("dryness") is None
    assert replications.published(made(), SPLIT).verdict == UNDECIDED
    assert replications.published(made(), [*RECORD, block((0.1, 0.1, 0.1), "AMD")]).verdict == UNDECIDED
    assert replications.published(made("other"), RECORD) is None
    renamed = made(holds=lambda n: n["moisture"] > 0.5)
    assert replications.published(renamed, RECORD) is None, "the rule asks for a number that was not measured"


def test_a_record_is_written_and_read_finding_by_finding(tmp_path):
    path = tmp_path / "evidence.json"
    replications.write([block((1 / 3, 2.0, [0.123456, 4])), *RECORD], path)
    first, *others = replications.read(path)
    assert first.findings["C001"]["wetness"] == [0.3333, 2.0, [0.1235, 4]] and tuple(others) == RECORD
    more = replace(RECORD[1], findings={"C002": {"x": [1.0] * 3}})
    merged = replications.with_block(RECORD, more)
    assert merged == [RECORD[0], replace(more, findings=RECORD[1].findings | more.findings)]
    assert len(replications.with_block(RECORD, SPLIT[-1])) == 3


def test_the_record_on_disk_has_every_experiment_with_five_seeds():
    blocks = replications.read()
    assert all(len(found.seeds) == 5 for found in blocks) and len({found.processor for found in blocks}) >= 3
    missing = [claim.id for claim in EXPERIMENTS if not replications.published(claim)]
    assert not missing, f"run ./run_all.sh replicate for {missing}"
    assert {name for found in blocks for name in found.findings} <= {claim.id for claim in CLAIMS}


def test_a_run_stands_beside_the_record(monkeypatch):
    monkeypatch.setattr(replications, "read", lambda: RECORD)
    found = findings.judged(made(), wet(0.4))
    assert (found["verdict"], found["here"], found["rests on"]) == (HOLDS, FAILS, "6 runs on 2 kinds of processor")
    assert not findings.as_published(found) and findings.as_published(findings.judged(made(), wet(0.6)))
    assert findings.published_ranges([made()], ["wetness", "dryness"]) == {"wetness": "0.6 to 0.9"}
    assert findings.of_this_run(made(over_seeds=True), wet(0.6)) == "", "one seed decides nothing"
    monkeypatch.setattr(replications, "read", lambda: SPLIT)
    assert findings.as_published(findings.judged(made(), wet(0.4))), "undecided: both are possible"


def test_a_decided_verdict_that_turns_is_a_contradiction(monkeypatch):
    def said(value, claim, number="wetness"):
        content = {"script": "a/b.py", "numbers": {number: [value]}, "findings": [{"id": claim.id}]}
        return findings.contradictions([content], [claim])

    monkeypatch.setattr(replications, "read", lambda: RECORD)
    assert said(0.4, made()) == ["C001: does not hold, in the record: holds"] and said(0.51, made()) == []
    assert said(0.4, made("C009"))[0].startswith("C009: not in the record")
    assert said(0.4, made(), "damp") == ["C001: the last run has no 'wetness': run a/b.py again"]
    for lenient in (made(holds=ABOVE), made(over_seeds=True, holds=lambda n: min(n["wetness"]) > 0.5)):
        assert said(0.4, lenient) == [], "one seed says nothing of a mean or a rate"
    monkeypatch.setattr(replications, "read", lambda: SPLIT)
    assert said(0.4, made()) == []


# ---- the runner of experiments


def film(results):
    return in_few_colors([Image.new("RGB", (30, 20), color) for color in ("black", "white")]), 0.5


def picture(results):
    fig, ax = plt.subplots(figsize=(5, 3), layout="constrained")
    ax.plot(results.each("wetness"))
    return fig


def measure(run):
    run.shown["word"] = f"word {run.seed}"
    return {"wetness": 0.6 + run.seed / 10, "steps": run.steps(100), "all": [1.0, 2.0]}


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    """Runs an experiment of this file, as if it lay in phase 1 -> answer, what it printed, what the picture says."""
    experiment = Experiment(
        measure,
        [made()],
        picture,
        title="{n[wetness]:.1f} of all is wet",
        note="{shown[word]}",
        answer="wet: {n[wetness]:.2f}, {shown[word]}",
        film=film,
        options=lambda parser: parser.add_argument("--wish", type=lambda wish: None),
    )
    experiment.file, experiment.doc = (
        paths.ROOT / "phase1_single_head" / "wetness.py",
        "Is water wet?\n\nIt is made up.",
    )

    def run(*argv, record=()):
        monkeypatch.setattr(replications, "read", lambda: record)
        answer = experiment(["--output-dir", str(tmp_path), *argv])
        drawn = tmp_path / paths.PLOTS / "phase1" / "wetness.png"
        return answer, capsys.readouterr().out, Image.open(drawn).info["Description"] if drawn.exists() else None

    run.experiment = experiment
    return run


def kept_in(folder):
    (kept,) = (folder / paths.PROCESSED / "findings").iterdir()
    return json.loads(kept.read_text(encoding="utf-8"))


def test_what_an_experiment_prints_draws_and_keeps(run, tmp_path):
    answer, printed, caption = run("--wish", "rain", record=RECORD)
    assert answer == "wet: 0.60, word 0" and caption == "0.6 of all is wet Is water wet? word 0"
    assert '+ holds: "water is wet"' in printed and "1, 2" not in printed, "lists with --numbers alone"
    with Image.open(tmp_path / paths.ANIMATIONS / "phase1" / "wetness.gif") as image:
        assert image.n_frames == 2 and run.experiment.pictures == {"wetness.png", "wetness.gif"}
    content = kept_in(tmp_path)
    assert (content["numbers"]["wetness"], content["answer"]) == ([0.6], answer)
    assert content["findings"][0]["here"] == HOLDS and "all" in content["table"]


def test_several_seeds_are_told_by_their_mean_and_quick_ones_train_fewer_steps(run, tmp_path):
    answer, printed, caption = run("--seeds", "4", "--no-pictures", "--quick")
    assert answer == "wet: 0.75, word 0" and "0.75" in printed and caption is None
    assert kept_in(tmp_path)["numbers"]["steps"] == [30] * 4


def test_a_title_is_said_only_where_the_run_agrees_with_the_record(run):
    assert run(record=[block((0.1, 0.2, 0.3))])[2] == "Is water wet? word 0"


def test_what_an_experiment_refuses_is_one_line_and_exit_code_2(run, capsys):
    run.experiment.measure = lambda run: run.refuse("--wish: nobody grants that")
    with pytest.raises(SystemExit) as stop:
        run()
    assert stop.value.code == 2 and capsys.readouterr().err.endswith("--wish: nobody grants that\n")


# ---- replications


@pytest.fixture
def small_course(tmp_path, monkeypatch):
    """Two made experiments in place of the course's; the calls, the seeds with which b breaks, the folder kept."""
    calls, broken, home = [], {1}, paths.CHECKPOINTS

    def run_script(name, argv):
        seed, folder = int(argv[argv.index("--seed") + 1]), Path(argv[-1])
        calls.append((name, seed))
        assert tmp_path / "checkpoints" == paths.CHECKPOINTS, "another processor trains other models"
        if name == "b" and seed in broken:
            return course.Result(1, "it broke")
        findings.save(folder, path_of(name), [{"id": name}], wet(0.6 + seed / 10), "", "")
        return course.Result(0, "")

    def imap_unordered(function, tasks):
        for task in tasks:
            monkeypatch.setattr(paths, "CHECKPOINTS", home)  # another process knows nothing of what this one has set
            yield function(task)

    monkeypatch.setattr(course, "run_script", run_script)
    monkeypatch.setattr(course, "train", run_script)
    monkeypatch.setattr(replicate, "plans", lambda: {"phase1": Plan(train=("a:model",), scripts=("a", "b"))})
    pool = types.SimpleNamespace(imap_unordered=imap_unordered)
    monkeypatch.setattr(course, "processes", lambda: nullcontext(pool))
    return calls, broken, tmp_path


def test_a_replication_that_was_stopped_goes_on_where_it_was(small_course):
    calls, broken, kept = small_course
    both = [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    with pytest.raises(SystemExit):
        replicate.measure_all(kept, both)
    assert calls == [("a:model", 0), ("a:model", 1), *both]
    broken.clear()
    calls.clear()
    for _ in range(2):
        replicate.measure_all(kept, both)
        assert calls == [("a:model", 1), ("b", 1)], "only what is missing, and the model for it"
    found = replicate.collected(kept, both, [0, 1])
    assert found.findings == {"a": {"wetness": [0.6, 0.7]}, "b": {"wetness": [0.6, 0.7]}}
    assert found.processor == replications.processor() and found.seeds == [0, 1]


def test_nothing_is_taken_over_from_other_versions_or_files(tmp_path, monkeypatch):
    (tmp_path / "shared" / "tests").mkdir(parents=True)
    (tmp_path / "shared" / "a.py").write_text("1", encoding="utf-8")
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    before = replicate.kept_here()
    (tmp_path / "shared" / "tests" / "test_a.py").write_text("1", encoding="utf-8")
    assert replicate.kept_here() == before
    monkeypatch.setattr(replications, "versions", lambda: {"torch": "9"})
    newer = replicate.kept_here()
    (tmp_path / "shared" / "a.py").write_text("2", encoding="utf-8")
    assert len({before, newer, replicate.kept_here()}) == 3


# ---- the table of claims, the gallery


def test_the_table_on_disk_is_that_of_claims_and_record():
    text = (paths.ROOT / table.PAGE).read_text(encoding="utf-8")
    assert text == table.page(CLAIMS, replications.read()), "run shared/evidence/table.py"
    assert table.cell("a | b <c>") == r"a \| b \<c>"
    missing = [link for link in re.findall(r"\]\(([^)]+)\)", text) if not (paths.ROOT / "data" / link).exists()]
    assert not missing and claims.rules_changed().keys() <= {claim.id for claim in CLAIMS}


def test_the_gallery_on_disk_is_what_the_readmes_show():
    gallery = paths.ROOT / paths.GALLERY
    shown = {path.relative_to(gallery).as_posix() for path in gallery.rglob("*") if path.is_file()}
    assert shown == set(publish.linked_pictures(paths.ROOT))
    assert max(path.stat().st_size for path in gallery.rglob("*.png")) <= 200_000
