"""The house: who imports whom, what a name means, the table of contents, the links, the guests."""

import ast
import collections
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
from shared import paths
from shared.lab.plan import path_of
from shared.tests import budget, faults, test_oracles
from shared.tests.faults import FAULTS
from shared.tests.helpers import anchors

ORDER = ["shared", *paths.PHASES.values()]
FILES = {  # path -> its text; my_exercises.py is written by a reader
    path: path.read_text(encoding="utf-8")
    for top in ORDER
    for path in sorted((paths.ROOT / top).rglob("*.py"))
    if path.name != "my_exercises.py"
}
HAVE_ORACLES = {name.split(",")[0] for name in (*test_oracles.WAYS, *test_oracles.MODULES)}
CODE = {path: text for path, text in FILES.items() if "tests" not in path.parts}


def module_of(path):
    return ".".join(path.relative_to(paths.ROOT).with_suffix("").parts)


def imported_by(path, *, anywhere=True):
    """Modules that a file imports, inside functions as well, or at its top level alone."""
    tree = ast.parse(FILES[path])
    for node in ast.walk(tree) if anywhere else tree.body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                is_module = (paths.ROOT / path_of(name)).is_file()
                yield name if is_module else node.module


def ours(path, **how):
    return {name for name in imported_by(path, **how) if name.split(".")[0] in ORDER}


def has_no_circle(graph):
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names the files


# ---- arrows


def test_arrows_point_back_and_every_file_says_what_it_teaches():
    for path, text in CODE.items():
        top = path.relative_to(paths.ROOT).parts[0]
        later = [name for name in ours(path) if ORDER.index(name.split(".")[0]) > ORDER.index(top)]
        assert not later, f"{path} imports {later}"
        assert not re.search(r"^\s*sys\.path", text, re.MULTILINE), path
        assert path.name == "__init__.py" or importlib.import_module(module_of(path)).__doc__, path


def room_of(module):
    """The folder of a file; a phase's root and its rooms are one, a file of shared/ is a room."""
    first, second, *_ = [*module.split("."), ""]
    return f"shared.{second}" if first == "shared" else module.rpartition(".")[0]


def test_no_file_needs_itself_and_no_room():
    """Along whatever path of imports. A root and its rooms are one: answers.py looks into rooms."""
    has_no_circle({module_of(path): ours(path) for path in CODE})
    needs = collections.defaultdict(set)
    for path in CODE:
        room = room_of(module_of(path))
        needs[room].update(room_of(name) for name in ours(path, anywhere=room == "shared.lab"))
    for room, needed in needs.items():
        needed -= {room, *ORDER}
    has_no_circle(needs)


def test_nobody_needs_the_laboratory():
    """It is entered at one place: where a run has ended, an experiment hands its numbers over."""
    for path in CODE:
        if "lab" not in path.parts:
            above = [name for name in ours(path, anywhere=False) if name.startswith("shared.lab")]
            assert not above, f"{path} imports {above}"
            inside = [name for name in ours(path) if name.startswith("shared.lab")]
            assert not inside or path.name == "experiment.py", f"{path} imports {inside}"


def test_a_file_defines_or_it_measures():
    """Nobody imports what measures; the runner calls the commands of shared/lab."""
    measuring = set()
    for path, text in FILES.items():
        measures = re.search(r"^main = Experiment\(|cli\.parse\(", text, re.MULTILINE)
        if measures and path.name not in ("cli.py", "experiment.py"):
            measuring.add(module_of(path))
    for path in CODE:
        wrong = ours(path) & measuring
        if module_of(path).startswith("shared."):
            wrong = {name for name in wrong if not name.startswith("shared.")}
        assert not wrong, f"{path} imports what measures: {wrong}"


# ---- names

OF_EVERY_SCRIPT = {"main", "measure", "picture", "answer"}
OF_A_READER = ("answers.py", "exercises.py")  # their functions are called as those of the lesson
MOST_NAMESAKES = 5


def named_in(path):
    """The functions and classes of a file, and its constants."""
    functions, constants = set(), set()
    for node in ast.parse(FILES[path]).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            functions.add(node.name)
        elif isinstance(node, ast.Assign):
            constants.update(name.id for name in node.targets if isinstance(name, ast.Name))
        elif isinstance(node, ast.AnnAssign):
            constants.add(node.target.id)
    return functions - OF_EVERY_SCRIPT, constants - OF_EVERY_SCRIPT


def names_taken_from_others(path):
    for node in ast.walk(ast.parse(FILES[path])):
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] in ORDER:
            for alias in node.names:
                yield alias.name


def test_one_name_means_one_thing():
    """Functions, classes, and constants that another file imports. D_MODEL may be a file's own."""
    files = [path for path in CODE if path.name not in OF_A_READER]
    taken = {name for path in files for name in names_taken_from_others(path)}
    where = collections.defaultdict(list)
    for path in files:
        functions, constants = named_in(path)
        for name in functions | (constants & taken):
            where[name].append(module_of(path))
    twice = {name: modules for name, modules in where.items() if len(modules) > 1}
    said = "\n".join(f"{name}: {', '.join(modules)}" for name, modules in sorted(twice.items()))
    assert len(twice) <= MOST_NAMESAKES, f"names that mean two things, rename one of each:\n{said}"


# ---- attention is asked by somebody else

ASKED_ELSEWHERE = {  # file -> the test that compares it
    "any_decoder.py": "test_serving.py",
    "triton_flash.py": "test_long_texts.py",
    "long_path.py": "test_reading.py",
    "undivided.py": "test_parts.py: it is wrong on purpose",
}


def attentions_in(path):
    """What is called an attention, heads or a cache, and public functions that attend."""
    for node in ast.parse(FILES[path]).body:
        if isinstance(node, ast.ClassDef):
            if node.name.endswith(("Attention", "Heads", "Cache")):
                yield node.name
        elif isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            named = {argument.arg for argument in node.args.args}
            is_called_so = "query" in named and node.name.endswith("attention")
            if is_called_so or {"query", "key", "value"} <= named:
                yield node.name


def test_every_attention_has_an_oracle_a_fault_and_a_lesson():
    """Whoever adds an attention: name it in test_oracles.py, in faults.txt, and in a README."""
    pages = [page.read_text(encoding="utf-8") for page in paths.ROOT.glob("phase*/**/README.md")]
    with_faults = {file for file, _, _ in FAULTS}
    for path in CODE:
        found = [] if path.name in OF_A_READER else list(attentions_in(path))
        if found and module_of(path).startswith("phase"):
            who = f"{paths.shown(path)}: {', '.join(found)}"
            assert path.stem in HAVE_ORACLES or path.name in ASKED_ELSEWHERE, f"no oracle: {who}"
            assert paths.shown(path) in with_faults, f"no row in faults.txt: {who}"
            assert any(path.name in page for page in pages), f"no README links to {who}"


# ---- contents


def test_the_table_of_contents_names_every_test_file():
    named = set()
    for folder, rooms in test_all.TESTS.items():
        named.update(f"{folder}/tests/test_{room}.py" for room in rooms)
    assert named == {
        path.relative_to(paths.ROOT).as_posix() for path in FILES if path.name.startswith("test_")
    }


def test_formatting_and_lint_are_clean():
    for command in (["check"], ["format", "--check"]):
        command = [sys.executable, "-m", "ruff", *command, "."]
        done = subprocess.run(command, cwd=paths.ROOT, capture_output=True, encoding="utf-8")
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_repository_stays_small_and_is_not_dense():
    """Of density it is the mean of a thousand lines that counts: what is read twice fails."""
    if not budget.files():
        pytest.skip("not a checkout of git")
    sizes, dense = budget.sizes_and_densities()
    for row, most in budget.MOST.items():
        rule = "who adds something takes something away; see shared/tests/budget.py"
        assert sizes[row] <= most, f"{row}: {sizes[row]:,}, at most {most:,}: {rule}"
    for row, most in budget.DENSEST.items():
        rule = "one thought a line, and a loop in place of a nested comprehension"
        for measured, limit in zip(dense[row], most, strict=True):
            assert measured <= limit, f"{row} are dense, {measured:.2f} for {limit}: {rule}"


def declared():
    """The packages that pyproject.toml names, in any list."""
    project = tomllib.loads((paths.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = list(project["dependencies"])
    for extra in project["optional-dependencies"].values():
        lines += extra
    return {re.match(r"[\w-]+", line)[0].lower() for line in lines}


def test_what_is_imported_is_declared():
    """Also what comes along with another package today: it may not tomorrow."""
    packages = importlib.metadata.packages_distributions()
    not_asked = {*ORDER, "test_all", *sys.stdlib_module_names}
    for path in FILES:
        imported = {name.split(".")[0] for name in imported_by(path)} - not_asked
        for top in imported & set(packages):  # the others are of extras that are not installed
            offered = {package.lower() for package in packages[top]}
            rule = f"pyproject.toml must name one of {offered}"
            assert offered & declared(), f"{path} imports {top}: {rule}"


# ---- links and commands of the lessons


def leads_somewhere(page, link, place):
    """Whether a link of a page names a file, or one that a run makes, and a heading of it."""
    target = (page.parent / link).resolve() if link else page
    if target in (paths.ROOT / paths.PAGE, paths.ROOT / paths.EXPLORER):
        return True  # their views: test_explorer_pages.py
    return target.exists() and (not place or place in anchors(target))


def test_links_and_commands_of_the_lessons_lead_somewhere():
    pages = [paths.ROOT / "README.md", paths.ROOT / ".github" / "CONTRIBUTING.md"]
    pages += [*paths.ROOT.glob("phase*/**/README.md"), *paths.ROOT.glob("data/*.md")]
    for path in pages:
        text = path.read_text(encoding="utf-8")
        for link, place in re.findall(r"\]\((?!https?://)([^)#]*)#?([^)]*)\)", text):
            assert leads_somewhere(path, link, place), f"{path}: {link}#{place}"
        if path.name == "CONTRIBUTING.md":
            continue  # its commands run files that the reader is about to write
        # Of commands (also of "-m pytest FILE"), fences and links; my_*.py is what a reader writes.
        for script in re.findall(r"\b((?:phase\d_\w+|shared)/(?:(?!my_)\w+/?)+\.py)", text):
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
        "random numbers of torch": torch.get_rng_state().tolist(),
        "random numbers": (random.getstate(), str(np.random.get_state())),
        "torch": (torch.get_num_threads(), torch.get_default_dtype()),
        "warnings": list(map(str, warnings.filters)),
        "signals": list(map(signal.getsignal, signal.valid_signals())),
    }


before = world()
for name in ours:
    importlib.import_module(name)
    changed = [part for part, found in world().items() if found != before[part]]
    if changed:
        sys.exit(f"{name} changes {', '.join(changed)}")
"""


def test_imports_change_nothing():
    """What other libraries do is theirs: the guest has imported them before."""
    modules = [path for path in CODE if path.name != "__init__.py"]
    others = {name for path in modules for name in imported_by(path, anywhere=False)}
    others = sorted(name for name in others if name.split(".")[0] not in ORDER)
    known = repr((others, [module_of(path) for path in modules]))
    command = [sys.executable, "-c", GUEST, known]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", cwd=paths.ROOT)
    assert done.returncode == 0, done.stderr


# ---- every row of faults.txt fits its file, and the first of a file is planted
# All of them: ./run_all.sh test --faults

FIRST = {}
for row in FAULTS:
    if faults.Path(row[0]).stem in HAVE_ORACLES:
        FIRST.setdefault(row[0], row)


def test_rows_have_moved_with_the_code():
    for file, old, new in FAULTS:
        plant = faults.broken if file.endswith(".py") else faults.replaced
        assert plant(file, old, new) and old != new


@pytest.mark.parametrize("row", FIRST.values(), ids=FIRST)
def test_the_first_fault_of_a_file_is_noticed_and_taken_out_again(row):
    assert faults.oracles_notice(*row)
