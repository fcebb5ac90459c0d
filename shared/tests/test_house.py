"""Tests: house."""

import importlib
import itertools
import re
import subprocess
import sys

import torch
import torch.nn.functional as F

from phase1_single_head.self_attention import scaled_dot_product_attention
from phase2_multi_head.multi_head_attention import merge_heads, split_heads
from shared import paths
from shared.attention_utils import padding_mask
from shared.tests.helpers import EXPECTED
from shared.toy_language import RELATIONS


def front_door_code(monkeypatch, name):
    """What the Python example of the README defines, run as the README says but with a few steps of training."""
    code = re.search(r"```python\n(.*?)```", (paths.ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)[1]
    assert "steps=1000" in code
    monkeypatch.setattr(sys, "argv", ["my_attention.py"])
    names = {"__name__": name}
    exec(compile(code.replace("steps=1000", "steps=8"), "README.md", "exec"), names)
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


def repository_files(*patterns):
    root = paths.ROOT
    found = itertools.chain(
        *(root.glob(f"{folder}{pattern}") for pattern in patterns for folder in ("", "shared/", "phase*/"))
    )
    return sorted({path for path in found if ".venv" not in path.parts})


def test_importing_runs_nothing_and_shared_imports_no_phase():
    order = ["shared", "phase1_single_head", "phase2_multi_head", "phase3_visualization", "phase4_causal"]
    for path in repository_files("*.py"):
        text = path.read_text()
        assert not re.search(r"^\s*sys\.path", text, re.M), path
        assert len(text.splitlines()) <= 300 or path.name == "test_all.py", path
        if path.parent.name in order:
            for imported in re.findall(r"^\s*(?:from|import) (phase\w+|shared)", text, re.M):
                assert order.index(imported) <= order.index(path.parent.name), f"{path} imports {imported}"
            module = importlib.import_module(f"{path.parent.name}.{path.stem}")
            assert path.name in ("__init__.py",) or module.__doc__, f"{path} does not say what it teaches"


def test_formatting_and_lint_are_clean():
    for command in (["check"], ["format", "--check"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "."], cwd=paths.ROOT, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_committed_pictures_exist_and_are_light():
    root = paths.ROOT
    for name in EXPECTED:
        path = root / paths.PLOTS / name
        assert path.exists() and path.stat().st_size <= 200_000, name
    assert (root / paths.ANIMATIONS / "phase3" / "3d_attention.gif").stat().st_size <= 2_000_000
    assert (root / paths.PAGE).exists()


def test_the_worked_example_of_the_first_lesson():
    """The numbers that the lesson works out by hand, and the row that it prints of them."""
    query = torch.tensor([[1.0, 1, 0, 0]])
    key = torch.tensor([[2.0, 0, 1, 0], [0, 0, 3, 1], [-1, -1, 0, 2]])
    value = torch.tensor([[10.0, 0], [0, 10], [10, 10]])
    output, weights = scaled_dot_product_attention(query, key, value)
    lesson = (paths.ROOT / "phase1_single_head" / "README.md").read_text()
    assert "| " + " | ".join(f"{weight:.3f}" for weight in weights[0].tolist()) + " |" in lesson
    assert f"({output[0, 0]:.2f}, {output[0, 1]:.2f})" in lesson


def test_links_and_commands_of_the_lessons_lead_somewhere():
    for path in repository_files("README.md"):
        text = path.read_text()
        for link in re.findall(r"\]\((?!https?://|#)([^)#]+)", text):
            assert (path.parent / link).exists(), f"{path}: {link}"
        for script in re.findall(r"python ((?:phase|shared)\S+\.py)", text):
            assert (paths.ROOT / script).exists(), f"{path}: {script}"
