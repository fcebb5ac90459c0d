"""The course against small scripts made here: order, options, story, log, what happens when one fails; and Windows.

There is no Windows here. What is tested is that nothing asks for what Windows lacks: processes that start as copies of
this one, files that can be renamed while they are open, UTF-8 wherever no encoding is named, and a slash in each path.
"""

import ast
import importlib
import io
import itertools
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import types
from argparse import Namespace
from contextlib import nullcontext
from multiprocessing import active_children
from pathlib import Path, PureWindowsPath

import pytest

from shared import cli, course, paths
from shared.course import Plan, Result

OPTIONS = ["--quick", "--retrain"]
ECHO = """
    print(f"{__name__} got {argv}")
    return f"{__name__} is 0.5"
"""
BROKEN = """
    import sys
    print("so far")
    print("what is wrong", file=sys.stderr)
    sys.exit(3)
"""


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


def written(folder, name, main=ECHO):
    """A script in a file, where another process finds it, too."""
    (folder / f"{name}.py").write_text(f'"""What is {name}?"""\ndef main(argv):{main}', encoding="utf-8")
    importlib.invalidate_caches()
    return f"phase.{name}"


def script(name, monkeypatch, main, question="What is it?"):
    """A module that exists in the memory of this process only."""
    module = types.ModuleType(f"phase.{name}", question)
    module.main = main
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module.__name__


@pytest.fixture
def teller(tmp_path):
    return course.Teller(tmp_path / "processed" / "run.log", verbose=False)


def test_the_story_is_told_in_reading_order_and_the_log_has_the_rest(folder, pool, capsys, teller):
    train, first, second, slow = (written(folder, name) for name in ("train", "first", "second", "slow"))
    plans = {"phase1": Plan((train,), (first, slow), slow=(slow,)), "phase2": Plan((train,), (second,))}
    course.run_side_by_side(pool, plans, OPTIONS, teller)
    lines = [line for line in capsys.readouterr().out.splitlines() if line]
    assert [re.sub(" +", " ", line) for line in lines] == [
        "---- 1 · One head",
        *("first: What is first?", " phase.first is 0.5", "slow: What is slow?", " phase.slow is 0.5"),
        "---- 2 · Many heads",
        *("second: What is second?", " phase.second is 0.5"),
    ]
    teller.file.close()
    log = [line for line in Path(teller.file.name).read_text(encoding="utf-8").splitlines() if line]
    assert log[:2] == ["phase.train got ['--train-only', '--quick', '--retrain']", "phase.train is 0.5"]
    assert log[2:5] == ["== phase/first.py", "phase.first got ['--quick']", "phase.first is 0.5"]


@pytest.mark.parametrize("fails", ["train", "script"])
def test_a_script_that_fails_ends_the_course_with_its_code(folder, pool, capsys, teller, fails):
    bad, good = written(folder, "bad", BROKEN), written(folder, "good")
    plan = Plan((bad if fails == "train" else good,), (bad, good))
    with pytest.raises(SystemExit) as stopped:
        course.run_side_by_side(pool, {"phase1": plan}, [], teller)
    assert stopped.value.code == 3
    printed = capsys.readouterr().out
    assert printed.rstrip().endswith("so far\nwhat is wrong") and "good" not in printed


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_a_plan_runs_however_processes_start(folder, monkeypatch, capsys, teller, method):
    """Where somebody has chosen another method for all of Python, and where the course itself would."""
    train, one, slow = (written(folder, name) for name in ("train", "one", "slow"))
    chosen, context = multiprocessing.get_start_method(allow_none=True), multiprocessing.get_context
    multiprocessing.set_start_method(method, force=True)
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: context(method))
    monkeypatch.setenv("MPLBACKEND", "svg")
    try:
        with course.processes() as pool:
            course.run_side_by_side(pool, {"phase1": Plan((train,), (one, slow), slow=(slow,))}, OPTIONS, teller)
            assert pool.apply(eval, ("__import__('matplotlib').get_backend()",)).lower() == "agg", "no window there"
    finally:
        multiprocessing.set_start_method(chosen, force=True)
    told = capsys.readouterr().out
    assert re.findall(r"phase\.\w+ is 0\.5", told) == ["phase.one is 0.5", "phase.slow is 0.5"]


@pytest.mark.skipif(sys.platform == "win32", reason="there a signal to one process ends it")
def test_the_processes_do_not_hear_an_interrupt_not_even_while_they_start():
    heard = signal.getsignal(signal.SIGINT)
    with course.processes() as pool:
        started = active_children()
        for child in started:
            os.kill(child.pid, signal.SIGINT)
        assert pool.apply(len, ("abc",)) == 3
        assert [child.is_alive() for child in started if child in active_children()] == [True] * len(started)
    assert signal.getsignal(signal.SIGINT) is heard, "but this one does, if it did"


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
    plans = [course.plan_of(phase) for phase in course.PHASES.values()]
    for name in [name for plan in plans for name in plan.scripts + plan.alone + plan.longer]:
        question = course.question_of(name)
        assert question.endswith("?") and len(question) <= 80, f"{name}: {question}"


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
    assert done.returncode == 2 and done.stderr.startswith("run_all.sh: unknown word 'phase9': say all")
    assert done.stderr.partition(": ")[2] == capsys.readouterr().err.partition(": ")[2]


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
    assert stopped.value.code == 0 and "--verbose" in said
    assert all(f"course.py {word} " in said for word in ("all", "phase2", "test", *course.ELSEWHERE, "help"))


def test_verbose_prints_everything(monkeypatch, capsys, tmp_path, folder, pool):
    monkeypatch.setattr(course, "plan_of", lambda phase: Plan((), (written(folder, "only"),)))
    monkeypatch.setattr(course, "processes", lambda: nullcontext(pool))
    course.run(["phase1"], [], Namespace(output_dir=tmp_path, verbose=True, quick=False))
    assert "phase.only got []" in capsys.readouterr().out and (tmp_path / course.LOG).read_text(encoding="utf-8")


def test_a_quick_run_has_nothing_alone(monkeypatch, tmp_path):
    plan = Plan((), ("first",), alone=("timed",), longer=("long",))
    alone = []
    monkeypatch.setattr(course, "plan_of", lambda phase: plan)
    monkeypatch.setattr(course, "processes", lambda: nullcontext(None))
    monkeypatch.setattr(course, "run_side_by_side", lambda pool, plans, argv, teller: alone.append(plans["phase1"]))
    monkeypatch.setattr(course, "run_script", lambda name, argv: alone.append(name) or Result(0, ""))
    for quick in (False, True):
        course.run(["phase1"], [], Namespace(output_dir=tmp_path, verbose=True, quick=quick), longer=True)
    assert alone == [plan, "timed", "long", Plan((), ("first", "timed"), longer=("long",)), "long"]


# ---- Windows


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [
        ("ascii", "sqrt d_k -> T^2 * 1-2 cafe... ?"),
        ("cp1252", "sqrt d_k -> T² · 1–2 café… ?"),
        ("cp437", "√d_k -> T² · 1-2 café... ?"),
        ("utf-8", "√d_k → T² · 1–2 café… 語"),
    ],
)
def test_what_a_terminal_has_no_letter_for_is_printed_in_others(monkeypatch, encoding, shown):
    terminal = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="")
    monkeypatch.setattr(sys, "stdout", terminal)
    cli.run(lambda: print("√d_k → T² · 1–2 café… 語", end="", flush=True))
    assert terminal.buffer.getvalue().decode(encoding) == shown


def test_processes_start_afresh_and_leave_nothing_behind(pool):
    assert "pytest" not in pool.apply(eval, ("list(__import__('sys').modules)",)), "nothing came with them"
    lock = pool.apply(eval, ("str(__import__('tqdm').tqdm.get_lock())",))
    assert "RLock" in lock, "a lock between processes outlives one that is ended"


def test_paths_are_told_with_a_slash(monkeypatch):
    monkeypatch.setattr(paths, "ROOT", PureWindowsPath(r"C:\here"))
    assert paths.shown(PureWindowsPath(r"C:\here\phase1\x.py")) == "phase1/x.py"
    assert paths.shown(PureWindowsPath(r"D:\there\x.py")) == r"D:\there\x.py"


def test_a_file_that_somebody_reads_is_replaced_a_little_later(monkeypatch, tmp_path):
    def held_by_a_reader(source, target):
        if next(refusals, None):
            raise PermissionError(13, "Access is denied", str(target))
        replace(source, target)

    replace, refusals, file = os.replace, iter([True] * 3), tmp_path / "a.txt"
    monkeypatch.setattr(os, "replace", held_by_a_reader)
    monkeypatch.setattr(paths.time, "sleep", lambda seconds: None)
    with paths.whole_file(file) as unfinished:
        unfinished.write_text("new", encoding="utf-8")
    assert next(refusals, None) is None, "it was refused three times"
    refusals = itertools.repeat(True)
    with pytest.raises(PermissionError), paths.whole_file(file) as unfinished:
        unfinished.write_text("lost", encoding="utf-8")
    assert [path.read_text(encoding="utf-8") for path in tmp_path.iterdir()] == ["new"]


def nameless(call):
    """Whether a call reads or writes text and leaves the encoding to the machine."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    constants = [part.value for part in call.args if isinstance(part, ast.Constant)]
    opens = (name == "open" and {"r", "w", "a", "x"} & set(constants)) or ast.unparse(call.func) == "open"
    by_path = len(call.args) == {"read_text": 0, "write_text": 1}.get(name)  # one more would be the encoding
    named = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    nameless = by_path or named.get("text") == "True" or (opens and "b" not in str(constants))
    return bool(nameless and "encoding" not in named)


def test_whatever_reads_or_writes_text_names_the_encoding():
    wrong = "p.read_text(); p.write_text(''); open(p); p.open('w'); run([], text=True)"
    right = "p.read_text('utf-8'); p.write_text('', encoding='utf-8'); open(p, 'rb'); run([], encoding='utf-8')"
    for calls, expected in ((wrong, True), (right, False)):
        assert {nameless(node.value) for node in ast.parse(calls).body} == {expected}
    for path in [path for part in ("shared", *course.PHASES.values()) for path in (paths.ROOT / part).rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_bytes())):
            assert not (isinstance(node, ast.Call) and nameless(node)), f"{path}, line {node.lineno}"
