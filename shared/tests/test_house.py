"""The house: rooms, arrows between them, the table of contents, links and commands of the lessons,
and its guests.
"""

import ast
import graphlib
import importlib
import importlib.metadata
import importlib.util
import re
import subprocess
import sys
import tomllib

import pytest

import test_all
from shared import course, paths
from shared.tests import budget, faults, test_oracles
from shared.tests.faults import FAULTS

ORDER = ["shared", *course.PHASES.values()]
FILES = {  # path -> its text; my_exercises.py is written by a reader
    path: path.read_text(encoding="utf-8")
    for top in ORDER
    for path in sorted((paths.ROOT / top).rglob("*.py"))
    if path.name != "my_exercises.py"
}
CODE = {path: text for path, text in FILES.items() if "tests" not in path.parts}


def module_of(path):
    return ".".join(path.relative_to(paths.ROOT).with_suffix("").parts)


def imported_by(path, *, anywhere=True):
    """Modules and packages that a file imports, inside functions as well, or at its top level
    alone.
    """
    tree = ast.parse(FILES[path])
    for node in ast.walk(tree) if anywhere else tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            yield from {
                name for name in inner if (paths.ROOT / f"{name.replace('.', '/')}.py").is_file()
            } or {node.module}


def ours(path, **how):
    return {name for name in imported_by(path, **how) if name.split(".")[0] in ORDER}


def has_no_circle(graph):
    list(
        graphlib.TopologicalSorter(graph).static_order()
    )  # raises CycleError, which names the files


# ---- arrows


def test_arrows_point_back_and_every_file_says_what_it_teaches():
    for path, text in CODE.items():
        top = path.relative_to(paths.ROOT).parts[0]
        later = [name for name in ours(path) if ORDER.index(name.split(".")[0]) > ORDER.index(top)]
        assert not later, f"{path} imports {later}"
        assert not re.search(r"^\s*sys\.path", text, re.MULTILINE), path
        assert path.name == "__init__.py" or importlib.import_module(module_of(path)).__doc__, path


def test_no_file_needs_itself_and_no_room():
    """Along whatever path of imports. A root and its rooms are one house: answers.py looks into
    rooms.
    """
    has_no_circle({module_of(path): ours(path) for path in CODE})
    rooms = {}
    for path in CODE:
        if path.name != "__init__.py":
            needs = {name.rpartition(".")[0] for name in ours(path, anywhere=False)}
            rooms.setdefault(module_of(path).rpartition(".")[0], set()).update(needs)
    roots = set(ORDER)
    has_no_circle(
        {room: needs - roots - {room} for room, needs in rooms.items() if room not in roots}
    )


def test_a_file_defines_or_it_measures():
    """Nobody imports what measures; only the commands of shared/ are called by shared/course.py."""
    known = ("cli.py", "experiment.py")
    found = [
        path
        for path in FILES
        if path.name not in known and re.search(r"main = Experiment\(|cli\.parse\(", FILES[path])
    ]
    measuring = {module_of(path) for path in found}
    commands = {name for name in measuring if name.startswith("shared.")}
    for path in CODE:
        wrong = ours(path) & (
            measuring - commands if path.is_relative_to(paths.ROOT / "shared") else measuring
        )
        assert not wrong, f"{path} imports what measures: {wrong}"


def test_the_table_of_contents_names_every_test_file():
    named = {
        f"{folder}/tests/test_{room}.py"
        for folder, rooms in test_all.TESTS.items()
        for room in rooms
    }
    assert named == {
        path.relative_to(paths.ROOT).as_posix() for path in FILES if path.name.startswith("test_")
    }


def test_formatting_and_lint_are_clean():
    for command in (["check"], ["format", "--check"]):
        command = [sys.executable, "-m", "ruff", *command, "."]
        done = subprocess.run(command, cwd=paths.ROOT, capture_output=True, encoding="utf-8")
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_budget_is_kept():
    if not budget.files():
        pytest.skip("not a checkout of git")
    over = {row: count for row, count in budget.counts().items() if count > budget.LIMITS[row]}
    assert not over, f"over budget, who adds must delete:\n{budget.table()}"


def declared():
    """The packages that pyproject.toml names, in any list."""
    project = tomllib.loads((paths.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    lines = [line for packages in lists for line in packages]
    return {re.match(r"[\w-]+", line)[0].lower() for line in lines}


def test_what_is_imported_is_declared():
    """Also what comes along with another package today: it may not tomorrow."""
    packages = importlib.metadata.packages_distributions()
    for path in FILES:
        for name in imported_by(path):
            top = name.split(".")[0]
            if top in (*ORDER, "test_all") or top in sys.stdlib_module_names or top not in packages:
                continue  # ours, Python's own, or of an extra that is not installed here
            offered = {package.lower() for package in packages[top]}
            assert offered & declared(), (
                f"{path} imports {top}: pyproject.toml must name one of {offered}"
            )


def test_the_table_of_contents_runs_the_tests_when_it_is_run(tmp_path):
    command = [
        sys.executable,
        paths.ROOT / "test_all.py",
        "--collect-only",
        "-k",
        "test_the_budget_is_kept",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, encoding="utf-8")
    assert done.returncode == 0 and "test_house.py::test_the_budget_is_kept" in done.stdout, (
        done.stdout
    )


# ---- links and commands of the lessons


def anchors(page):
    """As GitHub makes them: "## 6. The block" -> 6-the-block."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings
    }


def test_links_and_commands_of_the_lessons_lead_somewhere():
    made_by_a_run = [
        paths.ROOT / page for page in (paths.PAGE, paths.EXPLORER)
    ]  # their views: test_explorer_page.py
    for path in [paths.ROOT / "README.md", *paths.ROOT.glob("phase*/**/README.md")]:
        text = path.read_text(encoding="utf-8")
        for link, place in re.findall(r"\]\((?!https?://)([^)#]*)#?([^)]*)\)", text):
            target = (path.parent / link).resolve() if link else path
            there = target in made_by_a_run or (
                target.exists() and (not place or place in anchors(target))
            )
            assert there, f"{path}: {link}#{place}"
        for script in re.findall(r"python ((?:phase|shared)\S+\.py)", text):
            assert (paths.ROOT / script).exists(), f"{path}: {script}"
        for module in re.findall(r"python -m ((?:phase|shared)[\w.]+)", text):
            assert importlib.util.find_spec(module), f"{path}: {module}"


# ---- a guest in a notebook

GUEST = """
import importlib, os, random, signal, sys, warnings
from contextlib import suppress

others, ours = eval(sys.argv[1])
for name in others:
    with suppress(ImportError):  # of an extra that is not installed
        importlib.import_module(name)

import matplotlib.pyplot as plt
import numpy as np
import torch

plt.switch_backend("svg")
plt.style.use("dark_background")
plt.rcParams.update({"font.size": 17, "lines.linewidth": 5, "savefig.dpi": 50})


def world():
    return {
        "style or environment": (dict(plt.rcParams), dict(os.environ), os.getcwd(), list(sys.path)),
        "random numbers": (torch.get_rng_state().tolist(), random.getstate(), str(np.random.get_state())),
        "torch": (torch.get_num_threads(), torch.get_default_dtype()),
        "warnings or signals": (list(map(str, warnings.filters)), list(map(signal.getsignal, signal.valid_signals()))),
    }


before = world()
for name in ours:
    importlib.import_module(name)
    changed = [part for part, found in world().items() if found != before[part]]
    if changed:
        sys.exit(f"{name} changes {', '.join(changed)}")
"""


def test_imports_change_nothing():
    """What other libraries do when they are imported is theirs: the guest has imported them before."""
    modules = [path for path in CODE if path.name != "__init__.py"]
    others = {name for path in modules for name in imported_by(path, anywhere=False)}
    others = sorted(name for name in others if name.split(".")[0] not in ORDER)
    known = repr((others, [module_of(path) for path in modules]))
    done = subprocess.run(
        [sys.executable, "-c", GUEST, known], capture_output=True, encoding="utf-8", cwd=paths.ROOT
    )
    assert done.returncode == 0, done.stderr


# ---- every row of faults.txt fits its file, and some are planted; all of them: ./run_all.sh test --faults

HAVE_ORACLES = {name.split(",")[0] for name in (*test_oracles.WAYS, *test_oracles.MODULES)}
FIRST = {
    file: (file, old, new)
    for file, old, new in reversed(FAULTS)
    if faults.Path(file).stem in HAVE_ORACLES
}


def test_rows_have_moved_with_the_code():
    for file, old, new in FAULTS:
        assert (faults.broken if file.endswith(".py") else faults.replaced)(
            file, old, new
        ) and old != new


@pytest.mark.parametrize("row", FIRST.values(), ids=FIRST)
def test_the_first_fault_of_a_file_is_noticed_and_taken_out_again(row):
    assert faults.oracles_notice(*row)
