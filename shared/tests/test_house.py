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
import torch
import torch.nn.functional as F

import test_all
from phase1_single_head.self_attention import scaled_dot_product_attention
from phase2_multi_head.multi_head_attention import merge_heads, split_heads
from shared import course, paths
from shared.attention_utils import padding_mask
from shared.toy_language import RELATIONS


def front_door_code(monkeypatch, name):
    """What the Python example of the README defines, run as the README says but with a few steps of training."""
    code = re.search(r"```python\n(.*?)```", (paths.ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)[1]
    assert "steps=800" in code
    monkeypatch.setattr(sys, "argv", ["my_attention.py"])
    names = {"__name__": name}
    exec(compile(code.replace("steps=800", "steps=8"), "README.md", "exec"), names)
    return names


def test_the_attention_of_the_front_door_is_what_it_says(checkpoints, monkeypatch, capsys):
    names = front_door_code(monkeypatch, "__main__")
    printed = capsys.readouterr().out
    assert re.findall(r"^([\w-]+): \d\.\d\d in layer \d head \d$", printed, re.MULTILINE) == list(RELATIONS)
    torch.manual_seed(5)
    module = names["AlibiAttention"](22, 2).double()
    x, mask = torch.randn(3, 7, 22, dtype=torch.float64), padding_mask(torch.tensor([7, 5, 2]), 7)
    output, weights = module(x, mask=mask)
    query, key, value = (split_heads(part, 2) for part in module.w_qkv(x).chunk(3, dim=-1))
    far = torch.tensor([[float(abs(i - j)) for j in range(7)] for i in range(7)], dtype=torch.float64)
    bias = torch.stack([-(2.0**-4) * far, -(2.0**-8) * far]).masked_fill(~mask, -torch.inf)  # (3, 2, 7, 7)
    expected = F.scaled_dot_product_attention(query, key, value, attn_mask=bias)
    torch.testing.assert_close(output, module.w_o(merge_heads(expected)), rtol=0, atol=1e-12)
    assert weights[2, :, :, 2:].abs().max() == 0


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


def test_the_worked_example_of_the_first_lesson():
    """The numbers that the lesson works out by hand, and the row that it prints of them."""
    query = torch.tensor([[1.0, 1, 0, 0]])
    key = torch.tensor([[2.0, 0, 1, 0], [0, 0, 3, 1], [-1, -1, 0, 2]])
    value = torch.tensor([[10.0, 0], [0, 10], [10, 10]])
    output, weights = scaled_dot_product_attention(query, key, value)
    lesson = (paths.ROOT / "phase1_single_head" / "README.md").read_text(encoding="utf-8")
    assert "| " + " | ".join(f"{weight:.3f}" for weight in weights[0].tolist()) + " |" in lesson
    assert f"({output[0, 0]:.2f}, {output[0, 1]:.2f})" in lesson


def test_links_and_commands_of_the_lessons_lead_somewhere():
    for path in [paths.ROOT / "README.md", *paths.ROOT.glob("phase*/**/README.md")]:
        text = path.read_text(encoding="utf-8")
        for link in re.findall(r"\]\((?!https?://|#)([^)#]+)", text):
            assert (path.parent / link).exists(), f"{path}: {link}"
        for script in re.findall(r"python ((?:phase|shared)\S+\.py)", text):
            assert (paths.ROOT / script).exists(), f"{path}: {script}"
        for module in re.findall(r"python -m ((?:phase|shared)[\w.]+)", text):
            assert importlib.util.find_spec(module), f"{path}: {module}"
