"""The course against scripts that exist in memory only: order, options, story, log, and what happens when one fails."""

import multiprocessing
import re
import sys
import types
from argparse import Namespace
from pathlib import Path

import pytest

from shared import course, paths
from shared.course import Plan, Result

OPTIONS = ["--quick", "--retrain"]


def script(name, monkeypatch, main, question="What is it?"):
    """A module that exists in memory only; the processes of a pool, forked later, know it, too."""
    module = types.ModuleType(f"phase.{name}", question)
    module.main = main
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module.__name__


def echo(name, monkeypatch):
    def main(argv):
        print(f"{name} got {argv}")
        return f"{name} is 0.5"

    return script(name, monkeypatch, main)


def tell(plans, teller, argv=()):
    with multiprocessing.get_context("fork").Pool(2) as pool:
        course.run_side_by_side(pool, plans, list(argv), teller)


@pytest.fixture
def teller(tmp_path):
    return course.Teller(tmp_path / "processed" / "run.log", verbose=False)


def test_the_story_is_told_in_reading_order_and_the_log_has_the_rest(monkeypatch, capsys, teller):
    train, first, second, slow = (echo(name, monkeypatch) for name in ("train", "first", "second", "slow"))
    plans = {"phase1": Plan((train,), (first, slow), slow=(slow,)), "phase2": Plan((train,), (second,))}
    tell(plans, teller, OPTIONS)
    lines = [line for line in capsys.readouterr().out.splitlines() if line]
    assert [re.sub(" +", " ", line) for line in lines] == [
        "---- 1 · One head",
        *("first: What is it?", " first is 0.5", "slow: What is it?", " slow is 0.5"),
        "---- 2 · Many heads",
        *("second: What is it?", " second is 0.5"),
    ]
    teller.file.close()
    log = [line for line in Path(teller.file.name).read_text(encoding="utf-8").splitlines() if line]
    assert log[:2] == ["train got ['--train-only', '--quick', '--retrain']", "train is 0.5"]
    assert log[2:5] == ["== phase/first.py", "first got ['--quick']", "first is 0.5"]


@pytest.mark.parametrize("fails", ["train", "script"])
def test_a_script_that_fails_ends_the_course_with_its_code(monkeypatch, capsys, teller, fails):
    def broken(_argv):
        print("so far")
        print("what is wrong", file=sys.stderr)
        sys.exit(3)

    bad, good = script("bad", monkeypatch, broken), echo("good", monkeypatch)
    plan = Plan((bad if fails == "train" else good,), (bad, good))
    with pytest.raises(SystemExit) as stopped:
        tell({"phase1": plan}, teller)
    assert stopped.value.code == 3
    printed = capsys.readouterr().out
    assert printed.rstrip().endswith("so far\nwhat is wrong") and "good" not in printed


def test_run_script_catches_what_is_printed_and_what_is_written(monkeypatch, capsys, tmp_path):
    def draws(_argv):
        print("result")
        print("a progress bar", file=sys.stderr)
        with paths.whole_file(tmp_path / "visualizations" / "plots" / "x.png") as unfinished:
            unfinished.touch()

    def breaks(_argv):
        raise OSError(28, "No space left on device", "picture.png")

    result = course.run_script(script("draws", monkeypatch, draws), [])
    assert (result.code, result.text) == (0, "result\n") and course.pictures(result) == "x.png"
    assert course.run_script(script("breaks", monkeypatch, breaks), []) == Result(
        2, "picture.png: No space left on device\n"
    )
    assert capsys.readouterr() == ("", "")


def test_a_story_is_two_lines_and_each_part_stands_where_it_fits(monkeypatch, tmp_path):
    name = script("one", monkeypatch, None, "Is it " + "so " * 30 + "?")
    drawn = tuple(tmp_path / f"{letter * 20}.png" for letter in "ab")
    first, second = course.story(name, Result(0, "", "0.5 of them", drawn)).splitlines()
    assert first.startswith("one: Is it so") and len(first) <= course.WIDTH
    assert second == f"    0.5 of them   {'a' * 20}.png {'b' * 20}.png"
    short = script("two", monkeypatch, None)
    assert course.story(short, Result(0, "", "", drawn[:1])) == f"two: What is it?   {'a' * 20}.png"


def test_the_course_knows_every_script_of_its_phases():
    """A file that records findings stands in one plan, or nobody would run it; what a plan names is there."""
    plans = [course.plan_of(phase) for phase in course.PHASES.values()]
    planned = [name for plan in plans for name in plan.scripts + plan.alone + plan.longer]
    optional = [f"phase3_visualization.pretrained.{path.stem}" for path in
                (paths.ROOT / "phase3_visualization" / "pretrained").glob("*.py")]  # fmt: skip
    assert len(set(planned)) == len(planned)
    assert all((paths.ROOT / course.path_of(name)).is_file() for name in planned)
    assert all(set(plan.slow) <= set(plan.scripts) for plan in plans)
    for phase in course.PHASES.values():
        for path in sorted((paths.ROOT / phase).rglob("*.py")):
            name = ".".join(path.relative_to(paths.ROOT).with_suffix("").parts)
            if "findings.record(" in path.read_text(encoding="utf-8") and ".tests." not in name:
                assert name in planned + optional, name


def test_every_script_asks_one_question():
    for name in course.scripts_of(map(course.plan_of, course.PHASES.values())):
        question = course.question_of(name)
        assert question.endswith("?") and len(question) <= 80, f"{name}: {question}"


def test_the_course_refuses_unknown_words_and_options_before_it_starts(capsys):
    for argv, message in ((["phase9"], "unknown word 'phase9': say all, phase1"), (["--sede", "1"], "unrecognized")):
        with pytest.raises(SystemExit) as stopped:
            course.main(argv)
        assert stopped.value.code == 2 and message in capsys.readouterr().err


def test_verbose_prints_everything(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(course, "plan_of", lambda phase: Plan((), (echo("only", monkeypatch),)))
    monkeypatch.setattr(course, "scripts_of", list)
    course.run(["phase1"], [], Namespace(output_dir=tmp_path, verbose=True, quick=False))
    assert "only got []" in capsys.readouterr().out and (tmp_path / course.LOG).read_text(encoding="utf-8")


def test_a_quick_run_has_nothing_alone(monkeypatch, tmp_path):
    plan = Plan((), ("first",), alone=("timed",), longer=("long",))
    alone = []
    monkeypatch.setattr(course, "plan_of", lambda phase: plan)
    monkeypatch.setattr(course, "scripts_of", list)
    monkeypatch.setattr(course, "run_side_by_side", lambda pool, plans, argv, teller: alone.append(plans["phase1"]))
    monkeypatch.setattr(course, "run_script", lambda name, argv: alone.append(name) or Result(0, ""))
    for quick in (False, True):
        course.run(["phase1"], [], Namespace(output_dir=tmp_path, verbose=True, quick=quick), longer=True)
    assert alone == [plan, "timed", "long", Plan((), ("first", "timed"), longer=("long",)), "long"]
