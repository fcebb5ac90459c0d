"""The house itself: rooms, arrows between them, the table of contents, links and commands of the lessons."""

import ast
import importlib
import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import networkx
import pytest

import test_all
from shared import course, paths

ROOMS_HOLD = 14  # entries at the most: what can be seen at a glance
ORDER = ["shared", *course.PHASES.values()]
MINE = "my_exercises.py"  # written by a reader
FILES = sorted(p for top in ORDER for p in (paths.ROOT / top).rglob("*.py") if p.name != MINE)


def module_of(path):
    return ".".join(path.relative_to(paths.ROOT).with_suffix("").parts)


def imported_by(path):
    """Modules and packages of the repository that a file imports at its top level."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in ORDER:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            modules = {name for name in inner if (paths.ROOT / (name.replace(".", "/") + ".py")).is_file()}
            found |= modules or {node.module}
    return found


def test_importing_runs_nothing_and_arrows_point_back():
    for path in FILES:
        text, module = path.read_text(encoding="utf-8"), module_of(path)
        assert not re.search(r"^\s*sys\.path", text, re.M), path
        if "tests" not in path.parts:
            for imported in imported_by(path):
                assert ORDER.index(imported.split(".")[0]) <= ORDER.index(module.split(".")[0]), f"{path}: {imported}"
        if path.name != "__init__.py":
            assert importlib.import_module(module).__doc__, f"{path} does not say what it teaches"


def room_of(module):
    """phase2_multi_head.block.rank_collapse -> phase2_multi_head.block; of a file at a phase's root the phase."""
    return module.rpartition(".")[0]


def test_rooms_import_each_other_without_circles():
    graph = networkx.DiGraph(
        (room_of(module_of(path)), room_of(imported))
        for path in FILES
        if "tests" not in path.parts and path.name not in ("__init__.py", "__main__.py")
        for imported in imported_by(path)
    )
    graph.remove_edges_from(list(networkx.selfloop_edges(graph)))
    roots = set(ORDER) | {"shared.evidence"}  # a root and its rooms are one house: exercises.py looks into answers/
    assert not list(networkx.simple_cycles(graph.subgraph(set(graph) - roots)))


@pytest.mark.skipif(not shutil.which("git"), reason="only git knows which files belong to the repository")
@pytest.mark.parametrize("top", ORDER)
def test_no_room_is_too_full(top):
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", top],
        cwd=paths.ROOT,
        capture_output=True,
        encoding="utf-8",
        check=False,
    ).stdout.split()
    for folder in {str(Path(name).parent) for name in listed} | {top}:
        entries = {Path(name).relative_to(folder).parts[0] for name in listed if Path(name).is_relative_to(folder)}
        assert len(entries - {"__init__.py"}) <= ROOMS_HOLD, f"{folder}: {sorted(entries)}"


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
