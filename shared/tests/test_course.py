"""The course against small scripts made here: order, options, story, log, and what happens when one fails."""

import importlib
import re
import subprocess
import sys
import types
from argparse import Namespace
from contextlib import nullcontext
from pathlib import Path, PureWindowsPath

import pytest

from shared import cli, course, paths
from shared.course import Plan, Result

OPTIONS = ["--quick", "--retrain"]
ECHO = '''
"""What is {name}?"""
def main(argv):
    print(f"{{__name__}} got {{argv}}")
    return f"{{__name__}} is 0.5"
'''
LOADER = '''
"""What is trained?"""
def load(options, seed):
    print(f"trained with {seed}, again: {options.retrain}")
'''
BROKEN = '''
"""What is broken?"""
import sys
def main(*_):
    print("so far")
    print("what is wrong", file=sys.stderr)
    sys.exit(3)
load = main
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A package named phase, for modules that the tests make."""
    root = tmp_path_factory.mktemp("scripts")
    (root / "phase").mkdir()
    (root / "phase" / "__init__.py").touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(root))
        yield root / "phase"
    for name in [name for name in sys.modules if name.split(".")[0] == "phase"]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def pool(folder):
    """The processes of the course, which find the package of the tests as this one does."""
    with course.processes() as pool:
        yield pool


def written(folder, name, text=ECHO):
    """A script in a file, where another process finds it, too."""
    (folder / f"{name}.py").write_text(text.format(name=name) if text is ECHO else text, encoding="utf-8")
    importlib.invalidate_caches()
    return f"phase.{name}"


def script(name, monkeypatch, main):
    """A module that exists in the memory of this process only."""
    module = types.ModuleType(f"phase.{name}", "What is it?")
    module.main = main
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module.__name__


@pytest.fixture
def teller(tmp_path):
    return course.Teller(tmp_path / "processed" / "run.log", verbose=False)


def test_the_story_is_told_in_reading_order_and_the_log_has_the_rest(folder, pool, capsys, teller):
    first, second, slow = (written(folder, name) for name in ("first", "second", "slow"))
    train = written(folder, "models", LOADER) + ":load"
    plans = {"phase1": Plan((train,), (first, slow), slow=(slow,)), "phase2": Plan((train,), (second,))}
    course.run_side_by_side(pool, plans, [*OPTIONS, "--seeds", "2"], teller)
    assert [line for line in capsys.readouterr().out.splitlines() if line] == [
        "---- 1 · One head",
        *("first: What is first?", "    phase.first is 0.5", "slow: What is slow?", "    phase.slow is 0.5"),
        "---- 2 · Many heads",
        *("second: What is second?", "    phase.second is 0.5"),
    ]
    teller.file.close()
    log = [line for line in Path(teller.file.name).read_text(encoding="utf-8").splitlines() if line]
    assert log[:2] == ["trained with 0, again: True", "trained with 1, again: True"]
    assert log[2:5] == [
        "== phase/first.py",
        "phase.first got ['--quick', '--seeds', '2']",
        "phase.first is 0.5",
    ]


@pytest.mark.parametrize("fails", ["loader", "script"])
def test_a_script_that_fails_ends_the_course_with_its_code(folder, pool, capsys, teller, fails):
    bad, good = written(folder, "bad", BROKEN), written(folder, "good")
    plan = Plan((f"{bad}:load",) if fails == "loader" else (), (bad, good))
    with pytest.raises(SystemExit) as stopped:
        course.run_side_by_side(pool, {"phase1": plan}, [], teller)
    printed = capsys.readouterr().out
    assert stopped.value.code == 3
    assert printed.rstrip().endswith("so far\nwhat is wrong") and "good" not in printed


def test_run_script_catches_what_is_printed_and_what_is_written(monkeypatch, capsys, tmp_path):
    def draws(_argv):
        print("result")
        print("a progress bar", file=sys.stderr)
        with paths.whole_file(tmp_path / "visualizations" / "plots" / "x.png") as unfinished:
            unfinished.touch()
        return "0.5 of them"

    def breaks(_argv):
        raise OSError(28, "No space left on device", "picture.png")

    name = script("draws", monkeypatch, draws)
    result = course.run_script(name, [])
    assert (result.code, result.text) == (0, "result\n\n0.5 of them\n")
    assert course.story(name, result) == "draws: What is it?\n    0.5 of them   x.png"
    broken = course.run_script(script("breaks", monkeypatch, breaks), [])
    assert broken == Result(2, "picture.png: No space left on device\n")
    assert capsys.readouterr() == ("", "")


def test_the_course_knows_every_script_of_its_phases_and_each_asks_a_question():
    """A file that measures stands in one plan, or nobody would run it; what a plan names is there."""
    plans = [course.plan_of(phase) for phase in course.PHASES]
    planned = [name for plan in plans for name in plan.scripts + plan.alone + plan.longer]
    assert len(set(planned)) == len(planned) and all(set(plan.slow) <= set(plan.scripts) for plan in plans)
    for name in planned:
        question = course.question_of(name)
        assert question.endswith("?") and len(question) <= 80, f"{name}: {question}"
    for path in sorted(path for phase in course.PHASES.values() for path in (paths.ROOT / phase).rglob("*.py")):
        name = ".".join(path.relative_to(paths.ROOT).with_suffix("").parts)
        if re.search(r"findings\.record\(|= Experiment\(", path.read_text(encoding="utf-8")):
            assert name in planned or {"tests", "pretrained"} & set(path.parts), name
    for name in [name for plan in plans for name in plan.train]:
        module, _, loader = name.partition(":")
        assert callable(getattr(importlib.import_module(module), loader))


def test_the_course_refuses_unknown_words_and_options_before_it_starts(capsys):
    for argv, message in ((["phase9"], "unknown word 'phase9': say all, phase1"), (["--sede", "1"], "unrecognized")):
        with pytest.raises(SystemExit) as stopped:
            course.main(argv)
        assert stopped.value.code == 2 and message in capsys.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="it is for those who have bash")
def test_run_all_knows_the_words_of_the_course(capsys):
    done = subprocess.run(["bash", "run_all.sh", "phase9"], cwd=paths.ROOT, capture_output=True, encoding="utf-8")
    with pytest.raises(SystemExit):
        course.main(["phase9"])
    assert done.returncode == 2 and done.stderr.partition(": ")[2] == capsys.readouterr().err.partition(": ")[2]


@pytest.mark.parametrize("word", course.ELSEWHERE)
def test_a_word_and_its_options_go_to_whom_they_are_for(monkeypatch, word):
    monkeypatch.setattr(f"{course.ELSEWHERE[word]}.main", lambda argv: f"done with {argv}")
    assert course.main([word, "--seed", "5"]) == "done with ['--seed', '5']"


def test_the_word_test_runs_all_tests_or_says_what_is_missing(monkeypatch, capsys):
    monkeypatch.setattr(pytest, "main", lambda argv: len(argv))
    with pytest.raises(SystemExit) as stopped:
        course.main(["test", "-k", "ring"])
    assert stopped.value.code == 7  # test_all.py, two processes and their groups: five; and -k ring
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as stopped:
        course.main(["test"])
    assert stopped.value.code == 2 and 'pip install -e ".[test]"' in capsys.readouterr().err


def test_help_names_all_words_and_options(capsys):
    with pytest.raises(SystemExit) as stopped:
        course.main(["help"])
    said = capsys.readouterr().out
    assert stopped.value.code == 0 and "--verbose" in said and "--numbers" in said
    assert all(f"course.py {word} " in said for word in ("all", "phase2", "test", *course.ELSEWHERE, "help"))


def test_a_quick_run_has_nothing_alone(monkeypatch, tmp_path):
    plan = Plan((), ("first",), alone=("timed",), longer=("long",))
    alone = []
    monkeypatch.setattr(course, "plan_of", lambda phase: plan)
    monkeypatch.setattr(course, "processes", lambda *scripts, timed: nullcontext(None))
    monkeypatch.setattr(course, "run_side_by_side", lambda pool, plans, argv, teller: alone.append(plans["phase1"]))
    monkeypatch.setattr(course, "run_script", lambda name, argv: alone.append(name) or Result(0, ""))
    for quick in (False, True):
        course.run(["phase1"], [], Namespace(output_dir=tmp_path, verbose=True, quick=quick, time=False), longer=True)
    assert alone == [plan, "timed", "long", Plan((), ("first", "timed"), longer=("long",)), "long"]


def test_paths_are_told_with_a_slash(monkeypatch):
    monkeypatch.setattr(paths, "ROOT", PureWindowsPath(r"C:\here"))
    assert paths.shown(PureWindowsPath(r"C:\here\phase1\x.py")) == "phase1/x.py"


def test_the_answer_of_a_script_is_printed_and_returned(capsys):
    assert cli.answer_of(lambda: "0.97 of them") == "0.97 of them" and capsys.readouterr().out == "\n0.97 of them\n"
