"""The house: rooms, arrows between them, the table of contents, links and commands of the lessons, and its guests."""

import ast
import graphlib
import importlib
import importlib.util
import re
import subprocess
import sys

import pytest

import test_all
from phase1_single_head import visualize
from shared import course, paths
from shared.tests import budget, faults, test_oracles
from shared.tests.faults import FAULTS

ORDER = ["shared", *course.PHASES.values()]
MINE = "my_exercises.py"  # written by a reader
FILES = sorted(p for top in ORDER for p in (paths.ROOT / top).rglob("*.py") if p.name != MINE)


def module_of(path):
    return ".".join(path.relative_to(paths.ROOT).with_suffix("").parts)


def imported_by(path, *, anywhere=False):
    """Modules and packages of the repository that a file imports at its top level, or inside functions as well."""
    found, tree = set(), ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree) if anywhere else tree.body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in ORDER:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            modules = {name for name in inner if (paths.ROOT / (name.replace(".", "/") + ".py")).is_file()}
            found |= modules or {node.module}
    return found


def foreign_imports(path):
    """Names of modules of other libraries that a file imports at its top level."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module]
            yield from (name for name in names if name.split(".")[0] not in ORDER)


def test_importing_runs_nothing_and_arrows_point_back():
    for path in FILES:
        text, module = path.read_text(encoding="utf-8"), module_of(path)
        assert not re.search(r"^\s*sys\.path", text, re.M), path
        if "tests" not in path.parts:
            for imported in imported_by(path):
                assert ORDER.index(imported.split(".")[0]) <= ORDER.index(module.split(".")[0]), f"{path}: {imported}"
        if path.name != "__init__.py":
            assert importlib.import_module(module).__doc__, f"{path} does not say what it teaches"


def test_no_file_needs_itself():
    """Along whatever path of imports, those inside functions included."""
    graph = {module_of(path): imported_by(path, anywhere=True) for path in FILES if "tests" not in path.parts}
    list(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError, which names the files


def measures(path):
    """Whether a file measures, or is a script with options: all others define."""
    text = path.read_text(encoding="utf-8")
    return "main = Experiment(" in text or "cli.parse(" in text


def test_a_file_defines_or_it_measures():
    """Nobody imports what measures; only the commands of shared/ are called by shared/course.py."""
    measuring = {module_of(path) for path in FILES if measures(path) and path.name not in ("cli.py", "experiment.py")}
    commands = {name for name in measuring if name.startswith("shared.")}
    for path in FILES:
        if "tests" not in path.parts and path.name != "__main__.py":
            found = imported_by(path, anywhere=True) & (measuring - (commands if ORDER[0] in path.parts else set()))
            assert not found, f"{path} imports what measures: {', '.join(found)}"


def room_of(module):
    """phase2_multi_head.block.rank_collapse -> phase2_multi_head.block; of a file at a phase's root the phase."""
    return module.rpartition(".")[0]


def test_rooms_import_each_other_without_circles():
    graph = {}
    for path in FILES:
        if "tests" not in path.parts and path.name not in ("__init__.py", "__main__.py"):
            room = room_of(module_of(path))
            graph.setdefault(room, set()).update(room_of(imported) for imported in imported_by(path))
    roots = set(ORDER) | {"shared.evidence"}  # a root and its rooms are one house: answers.py looks into rooms
    rooms = {room: needs - {room} - roots for room, needs in graph.items() if room not in roots}
    list(graphlib.TopologicalSorter(rooms).static_order())  # raises CycleError, which names the rooms


def test_the_table_of_contents_names_every_test_file():
    named = {f"{folder}/tests/test_{room}.py" for folder, rooms in test_all.TESTS.items() for room in rooms}
    there = {path.relative_to(paths.ROOT).as_posix() for path in FILES if path.name.startswith("test_")}
    assert named == there


def test_formatting_and_lint_are_clean():
    for command in (["check"], ["format", "--check"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "."], cwd=paths.ROOT, capture_output=True, encoding="utf-8"
        )
        assert done.returncode == 0, done.stdout + done.stderr


MADE_BY_A_RUN = (paths.PAGE, paths.EXPLORER)  # pages that a reader has after the first run


def anchor(heading):
    """As GitHub makes it: "## 6. The block" -> 6-the-block."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def anchors(page):
    return {anchor(heading) for heading in re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)}


def test_links_and_commands_of_the_lessons_lead_somewhere():
    for path in [paths.ROOT / "README.md", *paths.ROOT.glob("phase*/**/README.md")]:
        text = path.read_text(encoding="utf-8")
        for link, place in re.findall(r"\]\((?!https?://)([^)#]*)#?([^)]*)\)", text):
            target = (path.parent / link).resolve() if link else path
            if target in [paths.ROOT / page for page in MADE_BY_A_RUN]:
                continue  # its views: test_explorer_page.py
            assert target.exists(), f"{path}: {link}"
            assert not place or place in anchors(target), f"{path}: {link}#{place}"
        for script in re.findall(r"python ((?:phase|shared)\S+\.py)", text):
            assert (paths.ROOT / script).exists(), f"{path}: {script}"
        for module in re.findall(r"python -m ((?:phase|shared)[\w.]+)", text):
            assert importlib.util.find_spec(module), f"{path}: {module}"


# ---- a guest in a notebook

GUEST = """
import importlib, os, random, signal, sys, warnings
from contextlib import suppress

others, ours, folder = eval(sys.argv[1])
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
        "style": dict(plt.rcParams),
        "environment": dict(os.environ),
        "torch": (torch.get_rng_state().tolist(), torch.get_num_threads(), torch.get_default_dtype()),
        "random": (random.getstate(), str(np.random.get_state())),
        "warnings": [str(entry) for entry in warnings.filters],
        "signals": [signal.getsignal(number) for number in sorted(signal.valid_signals())],
        "folders": (os.getcwd(), list(sys.path)),
    }


before = world()
for name in ours:
    importlib.import_module(name)
    changed = [part for part, found in world().items() if found != before[part]]
    if changed:
        sys.exit(f"{name} changes {', '.join(changed)}")

from phase1_single_head import visualize
from shared import paths, training
from pathlib import Path

training.QUICK_STEPS, paths.CHECKPOINTS = 8, Path(folder, "checkpoints")
visualize.main(["--quick", "--output-dir", folder])
sys.exit(dict(plt.rcParams) != before["style"])
"""


def test_imports_change_nothing_and_our_pictures_are_ours_whatever_style_a_guest_has(tmp_path, checkpoints):
    """What other libraries do when they are imported is theirs: the guest has imported them before."""
    modules = [path for path in FILES if "tests" not in path.parts and path.name != "__init__.py"]
    others = {name for path in modules for name in foreign_imports(path)}
    known = repr((sorted(others), [module_of(path) for path in modules], str(tmp_path / "guest")))
    done = subprocess.run([sys.executable, "-c", GUEST, known], capture_output=True, encoding="utf-8", cwd=paths.ROOT)
    assert done.returncode == 0, done.stderr
    visualize.main(["--quick", "--output-dir", str(tmp_path / "host")])
    drawn = sorted((tmp_path / "host" / paths.PLOTS).rglob("*.png"))
    assert len(drawn) == 2
    for path in drawn:
        assert path.read_bytes() == (tmp_path / "guest" / path.relative_to(tmp_path / "host")).read_bytes(), path.name


def test_the_budget_is_kept():
    if not budget.files():
        pytest.skip("not a checkout of git")
    over = {row: count for row, count in budget.counts().items() if count > budget.LIMITS[row]}
    assert not over, f"over budget, who adds must delete:\n{budget.table()}"


# ---- every row of faults.txt fits its file, and some are planted; all of them: ./run_all.sh test --faults

HAVE_ORACLES = {name.split(",")[0] for name in (*test_oracles.WAYS, *test_oracles.MODULES)}
FIRST = {file: (file, old, new) for file, old, new in reversed(FAULTS) if faults.Path(file).stem in HAVE_ORACLES}


@pytest.mark.parametrize("file", sorted({file for file, *_ in FAULTS}))
def test_rows_have_moved_with_the_code(file):
    for row in FAULTS:
        if row[0] == file:
            faults.broken(*row)
            assert row[1] != row[2]


@pytest.mark.parametrize("row", FIRST.values(), ids=FIRST)
def test_the_first_fault_of_a_file_is_noticed_and_taken_out_again(row):
    assert faults.oracles_notice(*row)
