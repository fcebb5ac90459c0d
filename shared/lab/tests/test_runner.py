"""What happens in a newcomer's terminal: run_all.sh and .venv, the course, how a script ends."""

import os
import pickle
import pkgutil
import re
import shutil
import signal
import subprocess
import sys
import types
from argparse import Namespace

import pytest

from shared import cli, paths
from shared.lab import runner
from shared.lab.plan import NEEDS, PLANS, SECONDS, Plan
from shared.lab.runner import Result

not_on_windows = pytest.mark.skipif(sys.platform == "win32", reason="no such signals there")


# ---- run_all.sh and .venv, with a stand-in for Python that keeps a record of what it is asked

PYTHON = """#!/bin/sh
case "$*" in
    -V) echo Python 3.14.1 ;;
    "-m venv"*)
        echo venv >> "$RECORD"
        rm -rf .venv
        mkdir -p .venv/bin .venv/lib/python3.14/site-packages
        cp "$0" .venv/bin/python ;;
    "-m pip install --help") [ ! -e .venv/half-of-pip ] ;;
    "-m pip install"*) $PIP; echo pip >> "$RECORD" ;;
    shared/lab/runner.py) echo "the course of $PWD" ;;
esac
"""
OLD = """#!/bin/sh
case "$1" in -V) echo "Python 3.9.18" ;; *) exit 1 ;; esac
"""
NO_VENV = """#!/bin/sh
case "$2" in *venv*) exit 1 ;; esac
"""


@pytest.fixture
def repository(tmp_path):
    """What run_all.sh needs, in a folder of its own, whose name has a space."""
    if sys.platform == "win32":
        pytest.skip("run_all.sh is for those who have bash")
    root = tmp_path.resolve() / "my repository"
    root.mkdir()
    for name, text in {"python": PYTHON, "old": OLD, "no_venv": NO_VENV}.items():
        (root.parent / name).write_text(text, encoding="utf-8")
        (root.parent / name).chmod(0o755)
    for name in ("run_all.sh", "pyproject.toml"):
        shutil.copy2(paths.ROOT / name, root)
    (root / "shared" / "lab").mkdir(parents=True)
    (root / "shared" / "lab" / "runner.py").touch()
    return root


def call(root, *command, cwd=None, **env):
    """Run it to its end -> (exit code, what it printed, its lines of errors)."""
    env = {"PYTHON": f"{root.parent}/python", "RECORD": f"{root.parent}/record", "PIP": ""} | env
    done = subprocess.run(
        [*map(str, command or ["./run_all.sh"])],
        cwd=cwd or root,
        env=os.environ | env,
        capture_output=True,
        encoding="utf-8",
        start_new_session=True,
    )
    return done.returncode, done.stdout, done.stderr.split("\n")[:-1]


def asked_for(root, *command, **more):
    """Run it, see the course of this folder begin; what Python has been asked before."""
    code, printed, errors = call(root, *command, **more)
    assert code == 0 and printed.endswith(f"the course of {root}\n"), (printed, errors)
    record = root.parent / "record"
    lines = record.read_text(encoding="utf-8").split() if record.exists() else []
    record.unlink(missing_ok=True)
    return lines


@pytest.mark.parametrize(
    ("happens", "asked"),
    [
        ("true", []),
        ("echo >> pyproject.toml", ["pip"]),
        ("rm .venv/installed; touch .venv/half-of-pip", ["venv", "pip"]),
        ("cp ../old .venv/bin/python", ["venv", "pip"]),
    ],
)
def test_an_environment_is_left_alone_or_mended_or_made_anew(repository, happens, asked):
    assert asked_for(repository) == ["venv", "pip"]
    call(repository, "bash", "-c", happens)
    assert asked_for(repository, "sh", repository / "run_all.sh", cwd="/") == asked


def test_a_set_up_that_cannot_go_on_says_why_in_one_line(repository):
    said = {"old": "is Python 3.9.18: ", "no_venv": "has no venv module: ", "nothing": "found: "}
    for python, message in said.items():
        code, _, (error,) = call(repository, PYTHON=f"{repository.parent}/{python}")
        assert code == 2 and re.match(f"run_all.sh: .*{message}", error)
        assert not (repository / ".venv").exists()
    failing = [("exit 1", 2, "the installation failed"), ("kill -INT 0", 130, "interrupted")]
    for pip, expected, said in failing:
        code, _, errors = call(repository, PIP=pip)
        assert code == expected and errors[-1].startswith(f"run_all.sh: {said}"), errors
    assert asked_for(repository)[1:] == ["pip"], "it goes on from there"


AT_ONCE = {  # what is typed -> what is said by bash alone
    "help": "./run_all.sh help all ",
    "phase2 -h": "test -k ring",
    "pahse2": "unknown word 'pahse2': did you mean phase2?",
    "phase1 phase2": "one lesson at a time",
    "phase1 --quick --sede=3": "no option --sede: did you mean --seed?",
    "test -x -k Rings": "no test is called 'Rings'",
}


def test_help_and_what_is_wrong_are_said_before_anything_is_installed(repository):
    for typed, said in AT_ONCE.items():
        code, printed, errors = call(repository, "./run_all.sh", *typed.split(), PYTHON="/nowhere")
        assert said in "\n".join([printed, *errors]) and printed.count("\n") <= 12, typed
        assert len(errors) == code / 2 == said.startswith(("no ", "one ", "unknown"))
    (repository / "shared" / "test_rings.py").touch()
    assert call(repository, "./run_all.sh", "test", "-k", "Rings")[0] == 0
    text = (repository / "run_all.sh").read_text(encoding="utf-8")
    assert set(text.replace(")", " ").split()).issuperset(cli.parser("")._option_string_actions)


# ---- the course, with small scripts made here


@pytest.fixture
def script(monkeypatch):
    """Makes modules phase.<name>, in the memory of this process."""

    def make(name, main=None):
        module = types.ModuleType(f"phase.{name}", f"What is {name}?")
        module.main = main or (lambda argv: f"{name} got {argv}")
        module.load = lambda options, seed: print(f"{name} of {seed}, again: {options.retrain}")
        monkeypatch.setitem(sys.modules, module.__name__, module)
        return module.__name__

    return make


class Pool:
    """As that of the course, in this process: what it is given must stand being sent to another."""

    def apply_async(self, *task):
        function, arguments = pickle.loads(pickle.dumps(task))
        result = function(*arguments)
        return Namespace(get=lambda: result)


def test_the_story_is_told_in_reading_order_and_the_log_has_the_rest(
    script, capsys, tmp_path, monkeypatch
):
    teller = runner.Teller(tmp_path / "run.log", 3, measured=2)
    first, second, slow = script("first"), script("second"), script("slow")
    monkeypatch.setitem(runner.SECONDS, slow, 35)
    loader = script("model") + ":load"
    plans = {
        "phase1": Plan((loader,), (first, slow)),
        "phase2": Plan((loader,), (second,)),
    }
    runner.run_side_by_side(Pool(), plans, ["--quick", "--retrain", "--seeds", "2"], teller)
    printed = [line for line in capsys.readouterr().out.splitlines() if line]
    assert [line.partition(" got")[0] for line in printed] == [
        "---- 1 · One head",
        "1 of 3 · first: What is first?",
        "    first",
        "2 of 3 · slow, about 70 s: What is slow?",
        "    slow",
        "---- 2 · Many heads",
        "3 of 3 · second: What is second?",
        "    second",
    ]
    teller.file.close()
    log = (tmp_path / "run.log").read_text(encoding="utf-8").split("\n")
    assert [line for line in log if line][:4] == [
        "model of 0, again: True",
        "model of 1, again: True",
        "== phase/first.py",
        "first got ['--if-used', '--quick', '--seeds', '2']",
    ]


@pytest.mark.parametrize("loader", [":load", ""])
def test_a_script_that_fails_ends_the_course_with_its_code(script, capsys, tmp_path, loader):
    def fails(*_):
        print("so far")
        print("what is wrong", file=sys.stderr)
        sys.exit(3)

    bad, good = script("bad", fails), script("good")
    sys.modules[bad].load = fails
    plan = Plan((bad + loader,), (good,)) if loader else Plan((), (bad, good))
    teller = runner.Teller(tmp_path / "run.log", 2)
    with pytest.raises(SystemExit) as stopped:
        runner.run_side_by_side(Pool(), {"phase1": plan}, [], teller)
    printed = capsys.readouterr().out
    assert stopped.value.code == 3
    assert printed.rstrip().endswith("so far\nwhat is wrong") and "good" not in printed


def test_what_a_script_prints_and_writes_is_caught(script, capsys, tmp_path):
    def draws(_argv):
        print("a progress bar", file=sys.stderr)
        with paths.whole_file(tmp_path / paths.PLOTS / "x.png") as unfinished:
            unfinished.touch()
        return "0.5 of them"

    def fails(argv):
        raise argv[0]

    result = runner.run_script(script("draws", draws), [])
    assert (result.code, result.text) == (0, "\n0.5 of them\n")
    told = runner.story(result).splitlines()
    assert told[0] == "    0.5 of them"
    assert len(told) == 2 and told[1].endswith("plots/x.png")
    full = OSError(28, "No space left on device", "x.png")
    broken = runner.run_script(script("fails", fails), [full])
    assert broken == Result(2, "x.png: No space left on device\n")
    assert capsys.readouterr() == ("", "")
    with pytest.raises(KeyboardInterrupt):  # stopped is not failed
        runner.run_script("phase.fails", [KeyboardInterrupt()])


def test_the_course_knows_every_script_of_its_phases_and_each_asks_a_question():
    planned = []
    for plan in PLANS.values():
        planned += plan.all
        assert all(callable(pkgutil.resolve_name(loader)) for loader in plan.train)
    assert len(set(planned)) == len(planned) and {*NEEDS, *SECONDS} <= set(planned)
    for name in planned:
        question = runner.question_of(name)
        assert question.endswith("?") and len(question) <= 80, f"{name}: {question}"
    for phase in runner.PHASES.values():
        for path in (paths.ROOT / phase).rglob("*.py"):
            name = ".".join(path.relative_to(paths.ROOT).with_suffix("").parts)
            measures = "= Experiment(" in path.read_text(encoding="utf-8")
            if measures and "tests" not in path.parts:
                assert name in planned, f"nobody would run {name}: name it in shared/lab/plan.py"


def test_words_go_to_whom_they_are_for_and_unknown_ones_are_refused(monkeypatch, capsys):
    for word, module in runner.MAINTAINERS.items():
        monkeypatch.setattr(f"{module}.main", lambda argv: f"done with {argv}")
        assert runner.main([word, "--seed", "5"]) == "done with ['--seed', '5']"
    monkeypatch.setattr(pytest, "main", lambda argv: len(argv))
    asked = {
        ("test", "-k", "ring"): (7, ""),  # test_all.py, processes, groups: five words; and -k ring
        ("help",): (0, "--verbose"),
    }
    for argv, (code, message) in asked.items():
        with pytest.raises(SystemExit) as stopped:
            runner.main(list(argv))
        assert stopped.value.code == code and message in "".join(capsys.readouterr()), argv


# ---- how scripts end


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_whoever_stops_a_script_reads_one_line(capsys, number):
    with pytest.raises(SystemExit, match="130"):
        cli.run(lambda: signal.raise_signal(number))
    assert capsys.readouterr().err == "\ninterrupted: no file is half-written\n"


def test_a_disk_that_is_full_leaves_no_file_and_the_line_names_it(tmp_path, capsys):
    def full():
        with paths.whole_file(tmp_path / "picture.png") as unfinished:
            unfinished.write_text("so f", encoding="utf-8")
            assert not list(tmp_path.glob("picture*")), "nobody takes it for a picture"
            raise OSError(28, "No space left on device")

    with pytest.raises(SystemExit) as stop:
        cli.run(full)
    assert stop.value.code == 2 and not list(tmp_path.iterdir())
    assert capsys.readouterr().err == f"{tmp_path / 'picture.png'}: No space left on device\n"


def test_a_reader_who_has_seen_enough_is_no_error(monkeypatch, capsys):
    seen, to_write = os.pipe()
    os.close(seen)
    with open(to_write, "w", encoding="utf-8") as pipe, pytest.raises(SystemExit) as stop:
        monkeypatch.setattr(sys, "stdout", pipe)
        cli.run(lambda: print("line\n" * 100_000))
    assert stop.value.code == 141 and capsys.readouterr().err == ""


POOL = """
import multiprocessing, time
from shared import cli
from shared.lab import runner

def main():
    with runner.processes() as pool:
        print(*[child.pid for child in multiprocessing.active_children()], flush=True)
        pool.apply(time.sleep, (60,))

cli.run(main)
"""


@not_on_windows
def test_whoever_stops_a_program_stops_its_processes_too():
    """As a terminal does: all of them hear it."""
    process = subprocess.Popen(
        [sys.executable, "-c", POOL],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        start_new_session=True,
    )
    children = [int(child) for child in process.stdout.readline().split()]
    os.killpg(process.pid, signal.SIGINT)
    assert process.communicate(timeout=60) == ("", "\ninterrupted: no file is half-written\n")
    assert process.returncode == 130
    assert len(children) == runner.PROCESSES
    for child in children:
        with pytest.raises(ProcessLookupError):
            os.kill(child, 0)
