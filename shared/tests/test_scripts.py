"""Tests: scripts."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from phase1_single_head import self_attention
from phase1_single_head import visualize as visualize1
from phase1_single_head.parts import queries_and_keys, soft_lookup
from phase1_single_head.reading import reading_weights
from phase2_multi_head import multi_head_attention
from phase2_multi_head import visualize as visualize2
from phase2_multi_head.block import transformer_block
from phase2_multi_head.costs import fused_attention
from phase2_multi_head.pooling import attention_pooling
from phase3_visualization import attention_3d, attention_flow
from phase4_causal import causal_attention, summary
from phase4_causal import visualize as visualize4
from shared import cli, paths, toy_language
from shared.evidence import findings
from shared.tests.helpers import EXPECTED, IN_ONE_RUN, SCRIPTS
from shared.toy_language import TOY_SENTENCE


@pytest.fixture(scope="module")
def quick_run(checkpoints, tmp_path_factory):
    """Every script once, as a reader would run it, with little training."""
    folder = tmp_path_factory.mktemp("run")
    for script in SCRIPTS:
        script.main(["--quick", "--output-dir", str(folder)])
    findings.main(["--output-dir", str(folder)])
    return folder


@IN_ONE_RUN
def test_every_script_runs_and_writes_what_it_promises(quick_run):
    plots = quick_run / paths.PLOTS
    assert {str(p.relative_to(plots)) for p in plots.rglob("*.png")} == EXPECTED
    gif = quick_run / paths.ANIMATIONS / "phase3" / "3d_attention.gif"
    with Image.open(gif) as image:
        assert image.n_frames == 6 and image.info["comment"]
    for path in plots.rglob("*.png"):
        with Image.open(path) as image:
            assert len(image.info["Description"]) > 20
            extremes = np.asarray(image.convert("L"))
            assert extremes.min() < 80 and extremes.max() == 255
            for edge in (extremes[0], extremes[-1], extremes[:, 0], extremes[:, -1]):
                assert edge.min() > 200, f"{path.name}: something is cut off at the edge"
    saved = torch.load(quick_run / paths.PROCESSED / "attention_weights.pt", weights_only=True)
    assert saved[TOY_SENTENCE].shape == (6, 6)
    saved = torch.load(quick_run / paths.PROCESSED / "multi_head_patterns.pt", weights_only=True)
    assert saved[TOY_SENTENCE].shape == (2, 4, 6, 6)
    assert len(saved) == len(toy_language.read_sentences(str(paths.TOY_SEQUENCES)))
    recorded = json.loads((quick_run / paths.PROCESSED / "findings.json").read_text())
    assert len(recorded) >= 20 and len({f["id"] for f in recorded}) == len(recorded)
    page = (quick_run / paths.PAGE).read_text()
    assert all(name.split("/")[-1] in page for name in EXPECTED)


@IN_ONE_RUN
def test_the_same_seed_gives_the_same_bytes(quick_run, tmp_path, monkeypatch):
    """Trained anew elsewhere, the pictures and findings of two phases are the same, byte for byte."""
    monkeypatch.setattr(paths, "CHECKPOINTS", tmp_path / "checkpoints")
    for script in (self_attention, visualize1, causal_attention, visualize4):
        script.main(["--quick", "--output-dir", str(tmp_path)])
    compared = [p for p in tmp_path.rglob("*") if p.suffix in (".png", ".json") and p.parent.name != "checkpoints"]
    assert len(compared) >= 7
    for path in compared:
        assert path.read_bytes() == (quick_run / path.relative_to(tmp_path)).read_bytes(), path.name


SHOW_A_SENTENCE = (
    self_attention,
    visualize1,
    soft_lookup,
    queries_and_keys,
    reading_weights,
    multi_head_attention,
    visualize2,
    transformer_block,
    attention_pooling,
    fused_attention,
    attention_flow,
    attention_3d,
    causal_attention,
    visualize4,
    summary,
)


@IN_ONE_RUN
@pytest.mark.parametrize("script", SHOW_A_SENTENCE, ids=lambda s: s.__name__)
def test_other_sentences_work_in_every_script(quick_run, tmp_path, script, request):
    sentence = "today some strange kites beside the dark big barn lay on a red soft box"  # 15 words
    script.main(["--quick", "--sentence", sentence, "--output-dir", str(tmp_path)])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sentence", "the cta sat"], '"cta" is not among the 97 words .* nearest known words: .*cat'),
        (["--sentence", ""], "the sentence is empty"),
        (["--sentence", "cat " * 40], "40 words: the limit is 32"),
        (["--sentences", "no-such-file.txt"], "cannot use no-such-file.txt: No such file"),
        (["--device", "tpu"], "invalid choice: 'tpu'"),
        (["--device", "cuda"], "--device cuda is not available here"),
        (["--seeds", "0"], "--seeds must be 1 or more: got 0"),
        (["--seed", "-1"], "--seed must lie between"),
        (["--heads", "5"], "--d-model 64 is not divisible by --heads 5"),
        (["--layers", "x"], "invalid int value: 'x'"),
        (["--output-dir", "/dev/null/x"], "cannot write to --output-dir /dev/null/x"),
        (["--no-such-option"], "unrecognized arguments: --no-such-option"),
        (["--format", "jpg"], "invalid choice: 'jpg'"),
    ],
)
def test_bad_input_is_one_clear_line_and_exit_code_2(arguments, message, capsys):
    if arguments[-1] == "cuda" and torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    for script in (self_attention, causal_attention):
        with pytest.raises(SystemExit) as stop:
            script.main(arguments)
        said = capsys.readouterr().err
        assert stop.value.code == 2
        assert re.search(message, said) and said.count("\n") == 1, said


@pytest.mark.parametrize(
    ("script", "arguments", "message"),
    [
        (attention_flow, ["--layer", "2"], "--layer must lie between 0 and 1: got 2"),
        (attention_3d, ["--head", "-1"], "--head must lie between 0 and 3: got -1"),
        (attention_flow, ["--threshold", "-1"], "--threshold must be 0 or more"),
        (causal_attention, ["--prompt", "the xyzzy"], '--prompt: "xyzzy" is not among'),
    ],
)
def test_bad_options_of_single_scripts(checkpoints, script, arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        script.main(["--quick", *arguments])
    assert stop.value.code == 2 and message in capsys.readouterr().err


def test_interrupts_and_full_disks_are_one_line(capsys):
    def interrupted():
        raise KeyboardInterrupt

    def full():
        raise OSError(28, "No space left on device", "picture.png")

    for main, code, message in ((interrupted, 130, "interrupted"), (full, 2, "picture.png: No space left on device")):
        with pytest.raises(SystemExit) as stop:
            cli.run(main)
        assert stop.value.code == code and message in capsys.readouterr().err


def test_scripts_start_from_anywhere_as_files_and_modules(tmp_path):
    """Real processes, another working directory, no display: the option check comes before anything is written."""
    root = paths.ROOT
    for command in ([root / "phase2_multi_head" / "visualize.py"], ["-m", "phase4_causal"]):
        done = subprocess.run(
            [sys.executable, *map(str, command), "--sentence", "the cta"], cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 2 and "Traceback" not in done.stderr and "nearest known words" in done.stderr
    assert not list(tmp_path.iterdir())


def test_run_all_refuses_unknown_words():
    done = subprocess.run(["bash", "run_all.sh", "phase9"], cwd=paths.ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and "unknown word 'phase9'" in done.stderr
