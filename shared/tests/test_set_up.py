"""run_all.sh and the life of .venv, in a small copy of the repository: real environments, a pip that keeps a record.

The stand-in for pip does what the real one does to an environment, without the network: an editable install is a path
in a file, and a script in .venv/bin begins with the path of its Python.
"""

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
import os, sys
from pathlib import Path
def install():
    with open(os.environ["RECORD"], "a") as record:
        print(*sys.argv[1:], file=record)
    if "SLOW" in os.environ:
        import time
        Path(os.environ["SLOW"]).touch()
        try:
            time.sleep(60)
        except KeyboardInterrupt:
            sys.exit("ERROR: Operation cancelled by user")  # as pip does, with a code of 1
    site, bin = Path(__file__).parents[1], Path(sys.prefix, "bin")
    (site / "__editable__.attention_from_scratch.pth").write_text(os.getcwd())
    shebang = f"#!{bin}/python"
    if " " in shebang:
        shebang = f"#!/bin/sh\\n'''exec' \\"{bin}/python\\" \\"$0\\" \\"$@\\"\\n' '''"
    (bin / "where").write_text(shebang + "\\nimport shared, sys\\nprint(shared.__path__[0], sys.prefix)\\n")
    (bin / "where").chmod(0o755)
if "install" in sys.argv and "--help" not in sys.argv:
    install()
"""
FOUND = """#!/bin/sh
# The Python that run_all.sh finds: a real one, whose venv gets the stand-in for pip
case "$*" in
    "-m venv"*)
        echo "$@" >> "$RECORD"
        "{real}" "$@" --without-pip || exit
        for last; do :; done
        if [ -n "${{DIES-}}" ]; then kill -9 $PPID; exit; fi
        cp -R "{pip}" "$last"/lib/python3*/site-packages/ ;;
    *) exec "{real}" "$@" ;;
esac
"""
OLD_PYTHON = """#!/bin/sh
case "$1" in -V) echo "Python 3.9.18" ;; *) exit 1 ;; esac
"""
ANEW, INSTALLED = "-m venv --clear .venv", "install --disable-pip-version-check --quiet --editable .[test]"


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
        self.found = folder / "python"
        real = Path(sys._base_executable)
        self.found.write_text(FOUND.format(real=real, pip=folder / "pip"), encoding="utf-8")
        self.found.chmod(0o755)
        self.environment = {**os.environ, "PYTHONPATH": "", "PYTHON": str(self.found), "RECORD": str(self.record)}

    @property
    def python(self):
        return self.root / ".venv" / "bin" / "python"

    def asked(self):
        """What Python and pip have been asked since the last look."""
        lines = self.record.read_text(encoding="utf-8").splitlines() if self.record.exists() else []
        self.record.unlink(missing_ok=True)
        return lines

    def run(self, *command, shell=(), cwd=None, **environment):
        return subprocess.run(
            [*shell, *map(str, command or ["./run_all.sh"])],
            cwd=cwd or self.root,
            env={**self.environment, **environment},
            capture_output=True,
            encoding="utf-8",
        )

    def runs_the_course(self, *command, **more):
        """Run it, see the course of this folder begin; what was said before, in one line."""
        done = self.run(*command, **more)
        *said, course = done.stdout.splitlines() or [""]
        assert done.returncode == 0 and course == f"the course of {self.root}/shared got []", done
        return " ".join(line for line in said if line), done.stderr

    def moved(self, name):
        self.root = self.root.rename(self.root.parent / name)

    def where(self, *command):
        """Which folder's code, and which folder's environment, a command of the environment uses."""
        done = self.run(*command, cwd="/")
        assert done.returncode == 0, done
        return done.stdout.strip()


@pytest.fixture
def repository(tmp_path):
    """One that has been set up."""
    repository = Repository(tmp_path.resolve())
    repository.runs_the_course()
    repository.asked()
    return repository


def test_the_first_call_sets_up(tmp_path):
    repository = Repository(tmp_path.resolve())
    said, _ = repository.runs_the_course()
    assert "Setting up .venv" in said and repository.asked() == [ANEW, INSTALLED]


def test_an_environment_that_is_fine_is_left_alone(repository):
    installed = repository.root / ".venv" / "installed"
    before = installed.stat().st_mtime_ns
    assert repository.runs_the_course() == ("", "")
    assert repository.asked() == [] and installed.stat().st_mtime_ns == before


def test_what_has_changed_is_installed(repository):
    with (repository.root / "pyproject.toml").open("a", encoding="utf-8") as file:
        file.write("\n")
    said, _ = repository.runs_the_course()
    assert "pyproject.toml has changed" in said and repository.asked() == [INSTALLED]


@pytest.mark.parametrize("name", ["renamed", "with a space"])
def test_a_moved_repository_knows_its_new_place(repository, name):
    """Robustness 4. Nothing is downloaded: a train has no network."""
    old = repository.root
    repository.moved(name)
    said, _ = repository.runs_the_course()
    assert f"was made in {old}" in said and repository.asked() == []
    bin, here = repository.root / ".venv" / "bin", f"{repository.root}/shared {repository.root}/.venv"
    assert repository.where(bin / "where") == here
    activated = 'source "$1" && command -v where && echo "$VIRTUAL_ENV"'
    assert repository.where("bash", "-c", activated, "bash", bin / "activate") == f"{bin}/where\n{bin.parent}"
    assert repository.runs_the_course() == ("", "")
    repository.moved("moved again")
    repository.runs_the_course()
    assert repository.where(repository.root / ".venv/bin/where").startswith(f"{repository.root}/shared ")


def test_a_copy_works_on_itself_and_leaves_the_original_alone(repository):
    """Robustness 1, copied with hard links: writing into a file of the copy would write into the original."""
    original, before = repository.root, {}
    for path in sorted((original / ".venv").rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            before[path] = path.read_bytes()
    repository.root = original.parent / "copy"
    shutil.copytree(original, repository.root, symlinks=True, copy_function=os.link)
    here = f"the course of {repository.root}/shared got []"
    assert repository.where(repository.python, repository.root / "shared" / "course.py") == here, "run_all.sh or not"
    repository.runs_the_course()
    assert repository.asked() == []
    assert repository.where(repository.root / ".venv/bin/where") == f"{repository.root}/shared {repository.root}/.venv"
    assert {path: path.read_bytes() for path in before} == before


def test_a_copy_whose_project_has_changed_leaves_the_original_alone(repository):
    original, installed = repository.root, repository.root / ".venv" / "installed"
    before = installed.read_text(encoding="utf-8")
    repository.root = original.parent / "copy"
    shutil.copytree(original, repository.root, symlinks=True, copy_function=os.link)
    toml = repository.root / "pyproject.toml"
    toml.unlink()
    toml.write_text("[project]\n", encoding="utf-8")
    repository.runs_the_course()
    assert repository.asked() == [INSTALLED] and installed.read_text(encoding="utf-8") == before


def broken(repository, how):
    """Spoil the environment; what is said then."""
    python, site = repository.python, next((repository.root / ".venv" / "lib").glob("python3*")) / "site-packages"
    installed = repository.root / ".venv" / "installed"
    if how == "its Python is gone":
        python.unlink()
        python.symlink_to("/nowhere/bin/python3")
        return "it has no Python that runs"
    if how == "too old":
        python.unlink()
        python.write_text(OLD_PYTHON, encoding="utf-8")
        python.chmod(0o755)
        return "Python 3.9.18 is too old"
    if how == "another version":
        installed.write_text(installed.read_text(encoding="utf-8").replace("Python 3.", "Python 3.1"), encoding="utf-8")
        return "its packages are for Python 3.1"
    installed.unlink()
    if how == "no environment":
        (repository.root / ".venv" / "pyvenv.cfg").unlink()
        return "what it installs would go elsewhere"
    if how == "no pip":
        shutil.rmtree(site / "pip")
    if how == "half of pip":
        (site / "pip" / "__main__.py").write_text("import pip.not_unpacked_yet", encoding="utf-8")
    if how == "no Python yet":
        shutil.rmtree(python.parent)
    return "its set-up was interrupted" if how != "no Python yet" else "it has no Python that runs"


@pytest.mark.parametrize(
    "how",
    ["its Python is gone", "too old", "another version", "no environment", "no pip", "half of pip", "no Python yet"],
)
def test_a_broken_environment_is_made_anew(repository, how):
    """Robustness 2, 3 and 20."""
    reason = broken(repository, how)
    said, _ = repository.runs_the_course()
    assert "Making .venv anew" in said and reason in said
    assert repository.asked() == [ANEW, INSTALLED]
    assert repository.runs_the_course() == ("", "")


def test_an_environment_of_ones_own_is_installed_into(repository):
    """As the README advises who wants another build of PyTorch: made before the first run, and kept."""
    (repository.root / ".venv" / "installed").unlink()
    repository.runs_the_course()
    assert repository.asked() == [INSTALLED]


def test_an_environment_of_uv_has_no_pip_and_is_kept(repository, tmp_path):
    broken(repository, "no pip")
    with (repository.root / ".venv" / "pyvenv.cfg").open("a", encoding="utf-8") as file:
        file.write("uv = 0.9.0\n")
    (tmp_path / "bin").mkdir()
    uv = tmp_path / "bin" / "uv"
    uv.write_text('#!/bin/sh\necho uv "$@" >> "$RECORD"\n', encoding="utf-8")
    uv.chmod(0o755)
    repository.runs_the_course(PATH=f"{uv.parent}:{os.environ['PATH']}")
    assert repository.asked() == ["uv pip install --python .venv/bin/python --quiet --editable .[test]"]


def test_a_set_up_that_is_killed_or_interrupted_goes_on_with_the_next_call(tmp_path):
    repository = Repository(tmp_path.resolve())
    assert repository.run(DIES="1").returncode == -signal.SIGKILL
    assert repository.asked() == [ANEW]
    signal_file = tmp_path / "pip is at work"
    running = subprocess.Popen(
        ["./run_all.sh"],
        cwd=repository.root,
        env={**repository.environment, "SLOW": str(signal_file)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background processes ignore it
    )
    while not signal_file.exists() and running.poll() is None:
        time.sleep(0.02)
    os.killpg(running.pid, signal.SIGINT)
    _, errors = running.communicate(timeout=20)
    assert running.returncode == 130 and errors.splitlines()[-1].startswith("run_all.sh: interrupted"), errors
    assert repository.asked() == [ANEW, INSTALLED]
    repository.runs_the_course()
    assert repository.asked() == [INSTALLED]


def test_an_installation_that_fails_is_said_and_tried_again(repository):
    (repository.root / "pyproject.toml").write_text("[project]\n", encoding="utf-8")
    done = repository.run(RECORD="/nowhere/record")
    assert done.returncode == 2 and done.stderr.splitlines()[-1].startswith("run_all.sh: the installation failed")
    repository.runs_the_course()
    assert repository.asked() == [INSTALLED]


def test_a_python_that_is_too_old_or_missing_is_said(tmp_path):
    repository = Repository(tmp_path.resolve())
    old, shim, nothing = (tmp_path / name for name in ("python3", "shim", "nothing"))
    for path, text in ((old, OLD_PYTHON), (shim, "#!/bin/sh\nexit 127\n")):
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)
    said = {old: "Python 3.9.18 is too old: ", shim: f"{shim} does not run: ", nothing: f"no {nothing} found: "}
    for python, message in said.items():
        done = repository.run(PYTHON=str(python))
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert done.stderr.startswith(f"run_all.sh: {message}")
        assert not (repository.root / ".venv").exists()


@pytest.mark.parametrize("link", ["link.sh", "folder/link.sh"])
def test_a_link_to_run_all_leads_to_the_repository(repository, tmp_path, link):
    """Robustness 16. One link with a relative path to another with an absolute one."""
    (tmp_path / "absolute.sh").symlink_to(repository.root / "run_all.sh")
    link = tmp_path / link
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(os.path.relpath(tmp_path / "absolute.sh", link.parent))
    assert repository.runs_the_course(link, cwd=tmp_path) == ("", "")
    assert repository.runs_the_course(link.name, shell=["bash"], cwd=link.parent) == ("", "")


def test_a_folder_reached_by_a_link_or_by_cdpath_is_the_same_folder(repository, tmp_path):
    (tmp_path / "other" / "repository").mkdir(parents=True)
    (tmp_path / "link").symlink_to(repository.root)
    assert repository.runs_the_course(tmp_path / "link" / "run_all.sh", cwd="/") == ("", "")
    command = ["bash", "repository/run_all.sh"]
    assert repository.runs_the_course(*command, cwd=tmp_path, CDPATH=str(tmp_path / "other")) == ("", "")


SHELLS = [shell for shell in ("sh", "dash", "zsh", "bash --posix") if shutil.which(shell.split()[0])]


@pytest.mark.parametrize("shell", SHELLS)
def test_another_shell_hands_over_to_bash(repository, shell):
    """Robustness 20."""
    assert repository.runs_the_course("run_all.sh", shell=shell.split()) == ("", "")
