"""Claims and rules on made numbers, the record, the runner of experiments, replications, the table,
the gallery.
"""

import json
import re
import types
from contextlib import nullcontext
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import pytest
import torch
from PIL import Image

from shared import course, paths
from shared.evidence import claims, findings, record
from shared.evidence.claims import DIFFER, FAILS, HOLDS, Claim, Verdict
from shared.experiment import Experiment, Picture
from shared.experiment import table as printed_table
from shared.plan import Plan, path_of
from shared.publishing import one_seed, publish, quoted, replicate, table
from shared.tests.helpers import near
from shared.visualization_utils import in_few_colors

CLAIMS = claims.all_claims()
SEEDS = list(record.SEEDS)


def made(name="C001", script="a/water.py", **changes):
    """A claim that one number decides."""
    settings = {
        "text": "water is wet",
        "source": "us",
        "rule": "0.5 or more",
        "oracle": {"*": 1},
        "null": {"*": 0},
    }
    effect = {"effect": lambda n: n["wetness"], "at_least": 0.5}
    return Claim(id=name, script=script, **settings | effect | changes)


def wet(*values):
    """Runs of several seeds."""
    return [{"wetness": value} for value in values]


def rows(
    values,
    seeds=SEEDS,
    processor="Intel AVX512",
    experiment="water",
    number="wetness",
    code="c0de",
    torch="2",
):
    """Rows of the record."""
    where = {
        "experiment": experiment,
        "number": number,
        "processor": processor,
        "torch": torch,
        "code": code,
    }
    return pd.DataFrame(
        [where | {"seed": s, "value": v} for s, v in zip(seeds, values, strict=True)]
    )


TEN = [
    0.6,
    0.62,
    0.64,
    0.66,
    0.68,
    0.7,
    0.72,
    0.74,
    0.76,
    0.78,
]  # mean 0.69, standard deviation 0.06055


@pytest.fixture
def recorded(monkeypatch):
    """Puts rows into the place of the record."""

    def put(*frames):
        monkeypatch.setattr(record, "read", lambda: pd.concat(frames))
        record.runs.cache_clear()

    yield put
    record.runs.cache_clear()


# ---- claims and their rules


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.id)
def test_a_rule_tells_an_exact_reader_from_nothing_there(claim):
    """Every claim has both worlds; its rule holds in the first and not in the second."""
    oracle, null = claims.World(claim.oracle), claims.World(claim.null)
    assert claim.holds(oracle) and not claim.holds(null)


def test_there_are_some_forty_claims_each_with_a_name_of_its_own():
    assert 36 <= len(CLAIMS) <= 52 and len({claim.id for claim in CLAIMS}) == len(CLAIMS)
    scripts = {claim.script for claim in CLAIMS}
    assert len({record.name_of(script) for script in scripts}) == len(scripts), (
        "the record calls them by file name"
    )
    assert all(
        (claim.at_least > float("-inf")) != (claim.at_most < float("inf")) for claim in CLAIMS
    ), "one bar"


@pytest.mark.parametrize(
    ("claim", "values", "verdict", "said"),
    [
        (made(), (0.6, 0.5), Verdict(2, 2), "holds, 2 of 2 seeds"),
        (made(), (0.4, float("nan")), Verdict(0, 2), "does not hold, 0 of 2 seeds"),
        (made(), (0.6, 0.4, 0.7), Verdict(2, 3), "holds, 2 of 3 seeds"),
        (
            made(at_least=float("-inf"), at_most=0.5),
            (0.5, 0.6),
            Verdict(1, 2),
            "holds, 1 of 2 seeds",
        ),
        (made(also=lambda n: n["wetness"] < 0.7), (0.6, 0.8), Verdict(1, 2), "holds, 1 of 2 seeds"),
    ],
)
def test_a_verdict_is_a_rate(claim, values, verdict, said):
    found = claim.over(wet(*values))
    assert found == verdict and str(found) == said
    kinds = {0: FAILS, verdict.seeds: HOLDS}
    assert found.kind == kinds.get(verdict.held, DIFFER) and found.decided == (
        verdict.held in kinds
    )


# ---- the record


def test_the_record_is_ten_seeds_and_says_where_the_next_falls(recorded):
    recorded(
        rows(TEN),
        rows([9.0], [110]),
        rows(TEN[::-1], processor="AMD"),
        rows([1.0] * 10, number="dryness"),
    )
    assert [run["wetness"] for run in record.runs("water")] == TEN, (
        "what was measured first, without further seeds"
    )
    near(
        record.interval("water", "wetness"),
        (0.69 - 2.3725 * 0.0605530, 0.69 + 2.3725 * 0.0605530),
        1e-3,
    )
    near(record.interval("water", "wetness", "dryness"), (0.69 - 2.3725 * 0.0605530, 1.0), 1e-3)
    assert record.interval("water", "heat") is None and record.interval("fire", "wetness") is None
    assert record.verdict(made()) == Verdict(10, 10) and record.verdict(
        made(at_least=0.7)
    ) == Verdict(5, 10)
    assert record.verdict(made(effect=lambda n: n["moisture"])) is None, (
        "the rule asks for what was not measured"
    )
    recorded(rows(TEN[:9], SEEDS[:9]))
    assert record.runs("water") == [] and record.verdict(made()) is None, "nine are not ten"


def test_where_the_next_seed_falls_is_met_nineteen_times_in_twenty():
    """Of numbers drawn from a bell curve; and what never fell below 0 or left 0 to 1 is not said
    to.
    """
    draws = (
        torch.randn(4000, 11, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 10
    )
    inside = [
        low <= new <= high for *ten, new in draws.tolist() for low, high in [record.span(ten)]
    ]
    assert abs(sum(inside) / 4000 - 0.95) < 0.01
    assert record.span([0.9, 1.0, 0.95])[1] == 1.0 and record.span([0.1, 0.0, 5.0])[0] == 0.0
    assert record.span([0.9, 1.0, 1.1])[1] > 1.1 and record.span([0.9, -0.1])[0] < -0.1


def test_a_record_is_written_and_read(tmp_path, monkeypatch):
    path = tmp_path / "evidence.csv"
    first = rows([1 / 3, 2048, *TEN[2:]], [101, 100, *SEEDS[2:]])
    other = rows([3e-9], [100], "AMD", code="12345678")
    record.write(pd.concat([first, other]), path)
    assert path.read_text().splitlines()[1:5] == [
        "water,wetness,100,Intel AVX512,2,c0de,2048",
        "water,wetness,100,AMD,2,12345678,3e-09",
        "water,wetness,101,Intel AVX512,2,c0de,0.3333",
        "water,wetness,102,Intel AVX512,2,c0de,0.64",
    ]
    assert record.read(path).loc[1, "code"] == "12345678"
    before = path.read_bytes()
    with pytest.raises(ValueError, match="water: wetness: 9 of 10 seeds"):
        record.write(rows(TEN[:9], SEEDS[:9]), path)
    assert path.read_bytes() == before, "what could not be read again is not written"


def test_the_record_on_disk_has_every_claim():
    missing = [claim.id for claim in CLAIMS if not record.verdict(claim) and claim.explored is None]
    assert not missing, (
        f"run ./run_all.sh replicate for {missing}, or say how they did on seeds 0 to 9: explored=..."
    )
    judged = [claim.id for claim in CLAIMS if record.verdict(claim) and claim.explored is not None]
    assert not judged, f"the record has {judged}: take explored=... out"
    kept, known = (
        record.read(),
        {record.name_of(claim.script) for claim in CLAIMS if record.verdict(claim)},
    )
    assert set(kept["experiment"]) == known | quoted.experiments()
    assert not kept.duplicated(["experiment", "number", "seed", "processor"]).any()


def test_a_run_stands_beside_the_record(recorded):
    recorded(rows(TEN))
    found = findings.judged(made(), wet(0.4))
    assert found["kind"] == HOLDS
    assert [found["verdict"], found["here"]] == ["holds, 10 of 10 seeds", "does not hold"]
    assert found["effect"] == "0.546 to 0.834", "where the record says that the next seed falls"
    assert findings.judged(made(script="b.py"), wet(0.4, 0.5))["effect"] == "0.4 to 0.5", (
        "what this run has"
    )
    assert not found["as published"] and findings.judged(made(), wet(0.6))["as published"]
    assert findings.judged(made(at_least=0.7), wet(0.4))["as published"], (
        "seeds differ: both are possible"
    )
    assert "not on record yet" in findings.judged(made(script="b.py"), wet(0.4))["verdict"]


def test_what_one_seed_would_have_said():
    """Of 10, 0 and 9 of ten: one seed prints all three, and the third is undone; two print it in 36
    of 45 choices.
    """
    found = [Verdict(10, 10), Verdict(0, 10), Verdict(9, 10)]
    near(one_seed.undone(found, 1), 1 / 3)
    near(one_seed.undone(found, 2), 0.8 / 2.8)
    assert one_seed.undone(found, 10) == 0


# ---- numbers in texts


def test_marked_numbers_are_written_as_the_record_has_them(recorded, monkeypatch):
    recorded(rows(TEN), rows([1234.5] * 10, number="n, long"), rows([2e-7] * 10, number="tiny"))
    monkeypatch.setattr(quoted, "all_claims", lambda: [made(at_least=0.7)])
    texts = {
        "1–2 %<!--water: wetness-->": "55–83 %<!--water: wetness-->",
        "0.1 to 0.2<!--water: wetness-->": "0.5 to 0.8<!--water: wetness-->",
        "at least 7 %<!--≥ water: wetness-->": "at least 54 %<!--≥ water: wetness-->",
        "9.99 at most<!--x--> 0.99<!--≤ water: wetness-->": "9.99 at most<!--x--> 0.84<!--≤ water: wetness-->",
        "1 to 9,999<!--water: n, long-->": "1,234<!--water: n, long-->",
        "3e-9<!--water: tiny-->": "2e-7<!--water: tiny-->",
        "0<!--water: wetness; n, long-->": "1 to 1,234<!--water: wetness; n, long-->",
        "3 of 10<!--verdict C001-->": "5 of 10<!--verdict C001-->",
        "3 %<!--undone 1 all--> of 4": "100 %<!--undone 1 all--> of 4",
    }
    monkeypatch.setattr(one_seed, "all_claims", lambda: [made(at_least=0.7)])
    for text, expected in texts.items():
        assert quoted.filled(text) == expected
    assert quoted.unmarked("a 3 %<!--undone 1 all--> of 4 to 5<!--water: x; y-->") == "a  of "
    for unknown in ("1<!--water: heat-->", "1 of 10<!--verdict C002-->"):
        with pytest.raises((ValueError, KeyError)):
            quoted.filled(unknown)


@pytest.mark.parametrize("page", quoted.pages(), ids=paths.shown)
def test_numbers_of_the_pages_are_those_of_the_record(page):
    text = page.read_text(encoding="utf-8")
    assert quoted.filled(text) == text, "run shared/publishing/table.py"


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
    """Runs an experiment of this file, as if it lay in phase 1 -> answer, what it printed, what the
    picture says.
    """
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

    def run(*argv, runs=()):
        monkeypatch.setattr(record, "runs", lambda experiment: runs)
        answer = experiment(["--output-dir", str(tmp_path), *argv])
        drawn = tmp_path / paths.PLOTS / "phase1" / "wetness.png"
        return (
            answer,
            capsys.readouterr().out,
            Image.open(drawn).info["Description"] if drawn.exists() else None,
        )

    run.experiment = experiment
    return run


def kept_in(folder):
    (kept,) = (folder / paths.PROCESSED / "findings").iterdir()
    return json.loads(kept.read_text(encoding="utf-8"))


def test_what_an_experiment_prints_draws_and_keeps(run, tmp_path):
    answer, printed, caption = run("--wish", "rain", runs=wet(*TEN))
    assert answer == "wet: 0.60, word 0" and caption == "0.6 of all is wet Is water wet? word 0"
    assert (
        '+ on record: holds, 10 of 10 seeds: "water is wet"' in printed
        and "0.546 to 0.834" in printed
    )
    with Image.open(tmp_path / paths.ANIMATIONS / "phase1" / "wetness.gif") as image:
        assert image.n_frames == 2 and run.experiment.pictures == {"wetness.png", "wetness.gif"}
    content = kept_in(tmp_path)
    assert (content["runs"][0]["wetness"], content["answer"]) == (0.6, answer)
    assert content["findings"][0]["kind"] == HOLDS and "steps" in content["table"]


def test_pictures_with_names_of_their_own_have_their_own_finding(run, tmp_path):
    """Beside the picture that is named after the file, or instead of it; and what else a run keeps
    is kept once.
    """
    kept = []
    dry = Picture("dryness", picture, "{n[steps]:.0f} steps stay dry", "by {shown[word]}")
    run.experiment.more_pictures, run.experiment.keep = (dry,), kept.append
    assert run.experiment.pictures == {"wetness.png", "dryness.png", "wetness.gif"}
    first = run("--seeds", "3", runs=wet(*TEN))[2]
    assert first == "0.7 of all is wet Is water wet? word 0 · 3 runs"
    drawn = tmp_path / paths.PLOTS / "phase1"
    assert {path.name for path in drawn.iterdir()} == {"wetness.png", "dryness.png"}
    said = Image.open(drawn / "dryness.png").info["Description"]
    assert said == "100 steps stay dry Is water wet? by word 0 · 3 runs"
    (results,) = kept
    assert results.each("wetness") == pytest.approx([0.6, 0.7, 0.8]) and results.shown == {
        "word": "word 0"
    }
    run.experiment.picture = run.experiment.film = None
    assert run.experiment.pictures == {"dryness.png"}
    run(runs=wet(0.1, 0.2, 0.3))
    said = Image.open(drawn / "dryness.png").info["Description"]
    assert said == "Is water wet? by word 0", "no finding where the record says otherwise"


def test_several_seeds_are_told_by_their_mean_and_quick_ones_train_fewer_steps(run, tmp_path):
    answer, printed, caption = run("--seeds", "4", "--no-pictures", "--quick")
    assert answer == "wet: 0.75, word 0" and "0.75" in printed and caption is None
    assert [run["steps"] for run in kept_in(tmp_path)["runs"]] == [30] * 4


def test_a_title_is_said_only_where_the_run_agrees_with_the_record(run):
    assert run(runs=wet(0.1, 0.2, 0.3))[2] == "Is water wet? word 0"


def test_a_title_is_not_said_if_one_of_two_claims_came_out_otherwise(run, tmp_path):
    dry = made("C002", script="wetness.py", effect=lambda n: n["wetness"], at_least=0.65)
    run.experiment.claims = (*run.experiment.claims, dry)
    assert run(runs=wet(*[0.7] * 10))[2] == "Is water wet? word 0"
    assert [finding["as published"] for finding in kept_in(tmp_path)["findings"]] == [True, False]


def test_a_long_table_is_cut_and_says_so():
    def lines(count, **options):
        numbers = {f"row {n}": n for n in range(count)}
        printed = printed_table(numbers, dict.fromkeys(numbers, "0 to 99"), **options).splitlines()
        return len(printed), sum("published" in line for line in printed), printed[-1]

    assert lines(8, everything=False)[:2] == (16, 8)
    assert lines(9, everything=False)[:2] == (9, 0), "what is published goes first"
    assert lines(20, everything=False) == (17, 0, "... 4 more lines with --numbers")
    assert lines(20, everything=True)[:2] == (40, 20)


def test_a_number_is_written_as_a_reader_wants_it():
    small = {0: "0", 3.14e-7: "3.1e-07", 0.97: "0.97", 99.94: "99.9"}
    large = {99.96: "100", 123.4: "123", 999.7: "1,000", -1234.5: "-1,234", 1050624: "1,050,624"}
    for value, written in (small | large).items():
        assert findings.number(value) == written


def test_a_run_that_differs_from_the_record_says_so_alone_and_in_the_story(run, tmp_path):
    """TEN holds in ten of ten, and expects 0.546 to 0.834; 0.2 denies it and lies outside, with
    three seeds thrice.
    """

    def dry(run):
        return measure(run) | {"wetness": 0.2}

    run.experiment.measure = dry
    _, printed, _ = run("--seeds", "3", runs=wet(*TEN))
    assert (
        '+ on record: holds, 10 of 10 seeds; but in this run: does not hold, 0 of 3 seeds: "water'
        in printed
    )
    said = "his run differs from the record: C001 came out otherwise, and 3 of 3 numbers lie outside the range on record"
    assert f"T{said}" in printed
    kept = tuple((tmp_path / paths.PROCESSED / "findings").iterdir())
    told = course.story("shared.plan", course.Result(0, "", "wet: 0.20", kept))
    assert f"wet: 0.20   on record + 1   t{said}" in told


def test_of_one_or_two_numbers_outside_the_record_nothing_is_said():
    assert (
        findings.differs([], [False, False]) == ""
        and findings.differs([], [False] * 3 + [True] * 20) == ""
    )
    assert findings.differs([], [False] * 3 + [True] * 5).endswith(
        "3 of 8 numbers lie outside the range on record"
    )


def test_a_run_like_the_record_and_a_claim_that_is_not_on_record(run, tmp_path):
    run(runs=wet(*TEN))
    kept = tuple((tmp_path / paths.PROCESSED / "findings").iterdir())
    told = course.story("shared.plan", course.Result(0, "", "wet: 0.60", kept))
    assert told.endswith("wet: 0.60   on record + 1")
    run()  # there is no record
    assert course.story("shared.plan", course.Result(0, "", "", kept)).endswith(
        "not on record yet, here + 1"
    )


def test_what_an_experiment_refuses_is_one_line_and_exit_code_2(run, capsys):
    run.experiment.measure = lambda run: run.refuse("--wish: nobody grants that")
    with pytest.raises(SystemExit) as stop:
        run()
    assert stop.value.code == 2 and capsys.readouterr().err.endswith("--wish: nobody grants that\n")


# ---- replications


@pytest.fixture
def small_course(tmp_path, monkeypatch):
    """Two made experiments in place of the course's; the calls, the seeds with which b breaks, the
    folder kept.
    """
    calls, broken, home = [], {1}, paths.CHECKPOINTS

    def run_script(name, argv):
        seed, folder = int(argv[argv.index("--seed") + 1]), Path(argv[-1])
        calls.append((name, seed))
        assert tmp_path / "checkpoints" == paths.CHECKPOINTS, (
            "another processor trains other models"
        )
        if name == "b" and seed in broken:
            return course.Result(1, "it broke")
        findings.save(folder, path_of(name), [], wet(0.6 + seed / 10), "", "")
        return course.Result(0, "")

    def imap_unordered(function, tasks):
        for task in tasks:
            monkeypatch.setattr(
                paths, "CHECKPOINTS", home
            )  # another process knows nothing of what this one has set
            yield function(task)

    monkeypatch.setattr(course, "run_script", run_script)
    monkeypatch.setattr(course, "train", run_script)
    monkeypatch.setattr(
        replicate, "plans", lambda: {"phase1": Plan(train=("a:model",), scripts=("a", "b"))}
    )
    pool = types.SimpleNamespace(imap_unordered=imap_unordered)
    monkeypatch.setattr(course, "processes", lambda: nullcontext(pool))
    return calls, broken, tmp_path


def test_a_replication_that_was_stopped_goes_on_where_it_was(small_course):
    calls, broken, kept = small_course
    with pytest.raises(SystemExit):
        replicate.measure_all(kept, ["a", "b"], [0, 1])
    assert calls == [("a:model", 0), ("a", 0), ("b", 0), ("a:model", 1), ("a", 1), ("b", 1)], (
        "seed by seed"
    )
    broken.clear()
    calls.clear()
    for _ in range(2):
        replicate.measure_all(kept, ["a", "b"], [0, 1])
        assert calls == [("a:model", 1), ("b", 1)], "only what is missing, and the model for it"
    found = replicate.collected(kept, ["a", "b"], [0, 1])
    assert found == {name: {0: {"wetness": 0.6}, 1: {"wetness": 0.7}} for name in ("a", "b")}


def test_a_version_is_that_of_torch_and_of_all_files_but_tests(tmp_path, monkeypatch):
    (tmp_path / "shared" / "tests").mkdir(parents=True)
    (tmp_path / "shared" / "a.py").write_text("1", encoding="utf-8")
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    before = replicate.version()
    (tmp_path / "shared" / "tests" / "test_a.py").write_text("1", encoding="utf-8")
    assert replicate.version() == before
    (tmp_path / "shared" / "a.py").write_text("2", encoding="utf-8")
    assert (
        replicate.version()["code"] != before["code"]
        and replicate.version()["torch"] == before["torch"]
    )


NOW = {"torch": "2", "code": "c0de"}


@pytest.mark.parametrize(
    ("seeds", "before", "recorded_now"),
    [
        (range(10), rows(TEN), False),  # to explore
        (range(100, 110), rows(TEN[:0], []), True),
        (range(100, 110), rows(TEN, code="old"), True),  # in place of the old ones
        (range(95, 112), rows(TEN), True),
        (range(110, 112), rows(TEN), True),
        (range(110, 112), rows(TEN, code="old"), False),
        (range(110, 112), rows(TEN, torch="1"), False),
        (range(110, 112), rows(TEN, experiment="fire"), False),
    ],
)
def test_which_seeds_are_recorded(recorded, monkeypatch, seeds, before, recorded_now):
    recorded(pd.DataFrame(columns=record.COLUMNS), before)
    monkeypatch.setattr(replicate, "version", lambda: NOW)
    assert replicate.are_recorded(["a.water"], seeds) == recorded_now


@pytest.mark.parametrize(
    "seeds",
    [["--seeds", "3"], ["--seeds", "9"], ["--seed", "105"], ["--seed", "99", "--seeds", "2"]],
)
def test_a_part_of_the_ten_seeds_is_refused_before_it_is_measured(seeds, monkeypatch, capsys):
    monkeypatch.setattr(replicate, "measure_all", lambda *_: pytest.fail("it was measured"))
    with pytest.raises(SystemExit, match="2"):
        replicate.main(seeds)
    assert "seeds 100 to 109 are the record" in capsys.readouterr().err


def test_what_lacks_a_package_is_left_out_and_said_so(monkeypatch, capsys):
    here, lacking = "phase1_single_head.before.bottleneck", "phase1_single_head.parts.scaling"
    plan = Plan(
        train=(),
        scripts=(lacking, here, "phase1_single_head.visualize"),
        needs={lacking: "no_such_package"},
    )
    monkeypatch.setattr(replicate, "plans", lambda: {"phase1": plan})
    assert replicate.chosen(types.SimpleNamespace(scripts=[]), CLAIMS) == [here]
    assert capsys.readouterr().out == f"not installed, so left out: {lacking}\n"
    with pytest.raises(ValueError, match=r"nothing is recorded of README\.md"):
        replicate.chosen(types.SimpleNamespace(scripts=[paths.ROOT / "README.md"]), CLAIMS)


def test_new_rows_drop_those_of_other_versions_and_replace_their_own(monkeypatch):
    monkeypatch.setattr(replicate, "version", lambda: NOW)
    monkeypatch.setattr(replicate, "processor", lambda: "AMD")
    before = [
        rows([1], [112], code="old"),
        rows([2], [113], torch="1"),
        rows([3, 4], [100, 110]),
        rows([5], [100], "AMD"),
        rows([6], [100], code="old", experiment="fire"),
    ]
    after = replicate.with_rows(pd.concat(before), {"water": {100: {"wetness": 7}}})
    assert sorted(after["value"]) == [3, 4, 6, 7]


def test_a_comparison_counts_what_it_compared(recorded, capsys):
    recorded(rows(TEN), rows([3.0] * 10, number="constant"))
    runs = {
        "water": {110: {"wetness": 0.7, "constant": 3.0}, 111: {"wetness": 0.4, "heat": 1.0}},
        "fire": {110: {}},
    }
    assert not replicate.compare([made(), made("C2", at_least=0.7)], runs)
    assert replicate.compare([made()], {"water": {110: {"wetness": 0.7}}}) and replicate.compare(
        [made()], {}
    )
    printed = capsys.readouterr().out
    assert "seed 111: C001: does not hold; in the record: holds, 10 of 10 seeds\n" in printed
    assert "2 numbers could be compared: 1 lie outside their interval, 50.0 %" in printed.replace(
        "50.0%", "50.0 %"
    )
    assert "2 decided verdicts could be compared: 1 turned" in printed


@pytest.mark.parametrize(("outside", "looks_like_it"), [(3, True), (4, False)])
def test_a_run_does_not_look_like_the_record_if_more_than_15_of_100_numbers_lie_outside(
    recorded, outside, looks_like_it
):
    """Of 20 numbers 3 or 4; no verdict is asked."""
    recorded(rows(TEN))
    measured = {seed: {"wetness": 9.0 if seed < 110 + outside else 0.7} for seed in range(110, 130)}
    assert replicate.compare([], {"water": measured}) == looks_like_it


@pytest.mark.parametrize(("turned", "looks_like_it"), [(2, True), (3, False)])
def test_a_run_does_not_look_like_the_record_if_more_than_one_in_ten_verdicts_turn(
    recorded, turned, looks_like_it
):
    """Of 20 verdicts 2 or 3, by numbers that lie in their interval: 0.56 to 0.83."""
    recorded(rows(TEN))
    measured = {seed: {"wetness": 0.57 if seed < 110 + turned else 0.7} for seed in range(110, 130)}
    assert replicate.compare([made(at_least=0.58)], {"water": measured}) == looks_like_it


def test_further_seeds_are_told_beside_the_record(recorded):
    recorded(rows(TEN))
    assert (
        table.checked([made()]) == "No further seeds have been run." and one_seed.undone([], 1) == 0
    )
    recorded(rows(TEN), rows([0.7, 0.4], [110, 111]), rows([0.71], [110], "AMD"))
    assert record.checks() == {
        "Intel AVX512": {"water": {110: {"wetness": 0.7}, 111: {"wetness": 0.4}}},
        "AMD": {"water": {110: {"wetness": 0.71}}},
    }
    assert table.checked([made()]) == (
        "Further seeds, 2 instruction sets: 1 of 3 numbers lie outside (33.3%); of 3 decided verdicts turned: "
        "seed 111: C001: does not hold (1 of 2)."
    )


# ---- the table of claims, the gallery


def test_the_table_on_disk_is_that_of_claims_and_record():
    text = table.PAGE.read_text(encoding="utf-8")
    assert text == table.page(CLAIMS), "run shared/publishing/table.py"
    assert table.cell("a | b <c>") == r"a \| b \<c>"
    missing = [
        link
        for link in re.findall(r"\]\(([^)]+)\)", text)
        if not (paths.ROOT / "data" / link).exists()
    ]
    assert not missing


def test_readme_leads_to_the_live_pages_where_their_address_is_known():
    text = (paths.ROOT / "README.md").read_text(encoding="utf-8")
    assert publish.with_live_link(text, "") == text
    linked = publish.with_live_link(text, "https://site.example")
    assert "](https://site.example/explorer.html)" in linked.partition(".gif")[0]
    assert publish.with_live_link(linked, "https://new.example") == linked.replace(
        "site.example", "new.example"
    )


def test_the_gallery_on_disk_is_what_the_readmes_show():
    gallery = paths.ROOT / paths.GALLERY
    shown = {path.relative_to(gallery).as_posix() for path in gallery.rglob("*") if path.is_file()}
    assert shown == set(publish.linked_pictures(paths.ROOT))
    assert max(path.stat().st_size for path in gallery.rglob("*.png")) <= 200_000
