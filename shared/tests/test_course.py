"""Tests: course."""

import importlib
import multiprocessing
import sys
import types

import pytest

from shared import course, paths
from shared.tests.helpers import NOT_RUN


def course_script(name, monkeypatch, main):
    """A script that exists in memory only; the processes of a pool, forked later, know it, too."""
    module = types.ModuleType(name)
    module.main = main
    monkeypatch.setitem(sys.modules, name, module)
    return module


def course_echo(name, monkeypatch):
    return course_script(name, monkeypatch, lambda argv: print(f"{name} got {argv}"))


def test_the_course_shows_scripts_in_reading_order_and_trains_first(monkeypatch, capsys):
    train, first, second, long = (course_echo(f"course_{name}", monkeypatch) for name in ("t", "one", "two", "long"))
    plan = course.Plan(train=[train], in_order=[first, second], long=[long])
    with multiprocessing.get_context("fork").Pool(2) as pool:
        course.run_side_by_side(pool, [plan, course.Plan(train=[train], in_order=[])], ["--quick", "--retrain"])
    lines = [line for line in capsys.readouterr().out.splitlines() if line]
    assert lines == [
        "course_t got ['--train-only', '--quick', '--retrain']",
        *["== course_one.py", "course_one got ['--quick']", "== course_two.py", "course_two got ['--quick']"],
        *["== course_long.py", "course_long got ['--quick']"],
    ]


@pytest.mark.parametrize("fails", ["train", "script"])
def test_a_script_that_fails_ends_the_course_with_its_code(monkeypatch, capsys, fails):
    def broken(_argv):
        print("so far")
        print("what is wrong", file=sys.stderr)
        sys.exit(3)

    bad, good = course_script("course_bad", monkeypatch, broken), course_echo("course_good", monkeypatch)
    plan = course.Plan(train=[bad if fails == "train" else good], in_order=[bad, good])
    with multiprocessing.get_context("fork").Pool(2) as pool, pytest.raises(SystemExit) as stopped:
        course.run_side_by_side(pool, [plan], [])
    assert stopped.value.code == 3
    printed = capsys.readouterr().out
    assert printed.endswith("so far\nwhat is wrong\n") and "course_good.py" not in printed


def test_run_script_catches_what_is_printed_and_errors_only_if_it_fails(monkeypatch, capsys):
    def warns(_argv):
        print("result")
        print("a progress bar", file=sys.stderr)

    def breaks(_argv):
        raise OSError(28, "No space left on device", "picture.png")

    course_script("course_warns", monkeypatch, warns)
    course_script("course_breaks", monkeypatch, breaks)
    assert course.run_script("course_warns", []) == (0, "result\n")
    assert course.run_script("course_breaks", []) == (2, "picture.png: No space left on device\n")
    assert capsys.readouterr() == ("", "")


def test_the_course_knows_every_script_of_its_phases():
    """A script that records findings stands in a plan, or nobody would run it."""
    for phase in course.PHASES.values():
        plan = importlib.import_module(f"{phase}.__main__").PLAN
        planned = {script.__name__ for script in plan.in_order + plan.long + plan.alone + plan.longer}
        assert len(planned) == len(plan.in_order + plan.long + plan.alone + plan.longer)
        for path in sorted((paths.ROOT / phase).glob("*.py")):
            if path.stem not in NOT_RUN and "findings.record(" in path.read_text():
                assert f"{phase}.{path.stem}" in planned


def test_the_course_refuses_unknown_words_and_options_before_it_starts(capsys):
    for argv, message in ((["phase9"], "unknown word 'phase9': say all, phase1"), (["--sede", "1"], "unrecognized")):
        with pytest.raises(SystemExit) as stopped:
            course.main(argv)
        assert stopped.value.code == 2 and message in capsys.readouterr().err
