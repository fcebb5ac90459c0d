"""run_all.sh and the life of .venv, in a small copy of the repository: real environments, a pip that keeps a record."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shared import paths

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="run_all.sh is for those who have bash")

COURSE = """
import sys, shared
print(f"the course of {shared.__path__[0]} got {sys.argv[1:]}")
"""
PIP = """
import os, sys, time
from pathlib import Path
if "--help" not in sys.argv:
    with open(os.environ["RECORD"], "a") as record:
        print(*sys.argv[1:3], file=record)
    if "SLOW" in os.environ:
        Path(os.environ["SLOW"]).touch()
        time.sleep(60)
"""
FOUND = """#!/bin/sh
# The Python that run_all.sh finds: a real one, whose venv gets the stand-in for pip
case "$*" in
    "-m venv"*)
        echo "$@" >> "$RECORD"
        "{real}" "$@" --without-pip || exit
        for last; do :; done
        cp -R "{pip}" "$last"/lib/python3*/site-packages/ ;;
    *) exec "{real}" "$@" ;;
esac
"""
OLD_PYTHON = """#!/bin/sh
case "$1" in -V) echo "Python 3.9.18" ;; *) exit 1 ;; esac
"""
ANEW, INSTALLED = "-m venv --clear .venv", "install --disable-pip-version-check"


class Repository:
    """What run_all.sh needs, and nothing else, in a folder of its own."""

    def __init__(self, folder: Path):
        self.root, self.record = folder / "repository", folder / "record"
        (self.root / "shared").mkdir(parents=True)
        for name in ("run_all.sh", "pyproject.toml"):
            shutil.copy2(paths.ROOT / name, self.root)
        (self.root / "shared" / "__init__.py").touch()
        (self.root / "shared" / "course.py").write_text(COURSE, encoding="utf-8")
        (folder / "pip").mkdir()
        (folder / "pip" / "__init__.py").touch()
        (folder / "pip" / "__main__.py").write_text(PIP, encoding="utf-8")
        found = folder / "python"
        found.write_text(FOUND.format(real=Path(sys._base_executable), pip=folder / "pip"), encoding="utf-8")
        found.chmod(0o755)
        self.environment = {**os.environ, "PYTHON": str(found), "RECORD": str(self.record)}

    def run(self, *command, cwd=None, **environment):
        return subprocess.run(
            [*map(str, command or ["./run_all.sh"])],
            cwd=cwd or self.root,
            env={**self.environment, **environment},
            capture_output=True,
            encoding="utf-8",
        )

    def asked_for(self, *command, **more):
        """Run it, see the course of this folder begin; what Python and pip have been asked."""
        done = self.run(*command, **more)
        ours = f"the course of {self.root}/shared got []"
        assert done.returncode == 0 and done.stdout.splitlines()[-1] == ours, done
        lines = self.record.read_text(encoding="utf-8").splitlines() if self.record.exists() else []
        self.record.unlink(missing_ok=True)
        return lines


@pytest.fixture
def repository(tmp_path):
    """One that has been set up."""
    repository = Repository(tmp_path.resolve())
    assert repository.asked_for() == [ANEW, INSTALLED]
    return repository


def test_an_environment_that_is_fine_is_left_alone_and_what_has_changed_is_installed(repository, tmp_path):
    assert repository.asked_for() == []
    (tmp_path / "link.sh").symlink_to(repository.root / "run_all.sh")
    assert repository.asked_for("sh", tmp_path / "link.sh", cwd="/") == []
    with (repository.root / "pyproject.toml").open("a", encoding="utf-8") as file:
        file.write("\n")
    assert repository.asked_for() == [INSTALLED]
    (repository.root / ".venv" / "installed").unlink()  # made by the reader, with another build of PyTorch
    assert repository.asked_for() == [INSTALLED]


def test_a_copy_runs_itself_and_gets_an_environment_of_its_own(repository, tmp_path):
    original = repository.root
    repository.root = original.parent / "copy"
    shutil.copytree(original, repository.root, symlinks=True, copy_function=os.link)
    other = {"PYTHONPATH": str(original)}
    course = [repository.root / ".venv" / "bin" / "python", repository.root / "shared" / "course.py"]
    assert repository.asked_for(*course, cwd="/", **other) == [], "the other copy on PYTHONPATH does not count"
    assert repository.asked_for(**other, PYTHONHOME="/nowhere") == [ANEW, INSTALLED]
    repository.root = original
    assert repository.asked_for() == []


@pytest.mark.parametrize("how", ["no Python", "too old", "another version", "half of pip"])
def test_a_broken_environment_is_made_anew(repository, how):
    python, installed = (repository.root / ".venv" / name for name in ("bin/python", "installed"))
    if how == "another version":
        installed.write_text(installed.read_text(encoding="utf-8").replace("Python 3.", "Python 3.1"), encoding="utf-8")
    elif how == "half of pip":
        installed.unlink()
        (pip,) = (repository.root / ".venv" / "lib").glob("python3*/site-packages/pip/__main__.py")
        pip.write_text("import pip.not_unpacked_yet", encoding="utf-8")
    else:
        python.unlink()
        if how == "too old":
            python.write_text(OLD_PYTHON, encoding="utf-8")
            python.chmod(0o755)
    assert repository.asked_for() == [ANEW, INSTALLED]
    assert repository.asked_for() == []


def test_a_set_up_that_is_interrupted_goes_on_with_the_next_call(tmp_path):
    repository, at_work = Repository(tmp_path.resolve()), tmp_path / "pip is at work"
    running = subprocess.Popen(
        ["./run_all.sh"],
        cwd=repository.root,
        env={**repository.environment, "SLOW": str(at_work)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background processes ignore it
    )
    while not at_work.exists() and running.poll() is None:
        time.sleep(0.02)
    os.killpg(running.pid, signal.SIGINT)
    _, errors = running.communicate(timeout=20)
    assert running.returncode == 130 and errors.splitlines()[-1].startswith("run_all.sh: interrupted"), errors
    assert repository.asked_for() == [ANEW, INSTALLED, INSTALLED]


def test_what_is_missing_is_said_in_one_line(repository, tmp_path):
    old = tmp_path / "python3"
    old.write_text(OLD_PYTHON, encoding="utf-8")
    old.chmod(0o755)
    shutil.rmtree(repository.root / ".venv")
    for python, message in {old: f"{old} is Python 3.9.18: ", tmp_path / "x": f"no {tmp_path / 'x'} found: "}.items():
        done = repository.run(PYTHON=str(python))
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert done.stderr.startswith(f"run_all.sh: {message}") and not (repository.root / ".venv").exists()
    done = repository.run(RECORD="/nowhere/record")  # pip fails
    assert done.returncode == 2 and done.stderr.splitlines()[-1].startswith("run_all.sh: ")
