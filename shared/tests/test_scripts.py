"""Scripts as a reader runs them, two of each phase: briefly trained, with bad input, elsewhere.

ALL_SCRIPTS=1 in the environment runs every script, which takes a minute: for whoever has changed
how pictures are drawn. What a real run leaves behind is asked in last_run.py.
"""

import importlib
import inspect
import os
import re
import subprocess
import sys

import pytest
import torch

from phase1_single_head import visualize as visualize1
from phase2_multi_head import visualize as visualize2
from phase2_multi_head.heads import output_projection
from phase3_visualization import attention_3d, attention_flow
from phase4_causal import summary
from phase4_causal import visualize as visualize4
from phase4_causal.masking import conventions
from shared import cli, paths, toy_language
from shared.lab.report import promised
from shared.tests.helpers import smallest, watched_texts
from shared.tests.last_run import check_picture, pictures_in, scripts_that_run
from shared.toy_language import TOY_SENTENCE
from shared.training import loop
from shared.training.loop import make_optimizers

LONG = "today some strange kites beside the dark big barn lay on a red soft box"  # 15 words
# With 15 words their text is small in a README.
WIDE = (visualize2, attention_flow, attention_3d, visualize4)
SCRIPTS = [visualize1, output_projection, conventions, *WIDE]
if "ALL_SCRIPTS" in os.environ:
    SCRIPTS = [importlib.import_module(name) for name in scripts_that_run()]


def options_of(script, folder):
    """Little training; and a long sentence, where a script shows it and has room for it."""
    options = ["--if-used", "--quick", "--output-dir", str(folder)]
    if "options.words" in inspect.getsource(script) and script not in (summary, *WIDE):
        options += ["--sentence", LONG]
    return options


@pytest.fixture(scope="module")
def quick_run(checkpoints, tmp_path_factory):
    """Runs the scripts once: the folder; script -> files; script -> texts; dtypes in training."""
    folder = tmp_path_factory.mktemp("run")
    written, texts, dtypes = {}, {}, set()

    def watched(model, **rates):
        dtypes.update(parameter.dtype for parameter in model.parameters())
        return make_optimizers(model, **rates)

    for script in SCRIPTS:
        before = len(paths.written)
        with watched_texts() as seen, pytest.MonkeyPatch.context() as patch:
            patch.setattr(loop, "make_optimizers", watched)
            script.main(options_of(script, folder))
        written[script], texts[script] = paths.written[before:], list(seen.values())
    return folder, written, texts, dtypes


def test_scripts_write_the_pictures_that_they_announce(quick_run):
    folder, written, *_ = quick_run
    for script, files in written.items():
        pictures = {path.name for path in files if path.suffix in (".png", ".gif", ".html")}
        assert pictures == promised(script.__name__), script.__name__
    for path in pictures_in(folder):
        check_picture(path)


def test_scripts_train_in_float64(quick_run):
    assert quick_run[3] == {torch.float64}


READABLE = 11  # pixels, at the width that a README gives a picture
PRINTED = 14  # points


def test_all_text_of_pictures_is_large_enough_to_read(quick_run):
    for script, figures in quick_run[2].items():
        if script is summary:  # a poster, read on paper
            assert all(text.get_fontsize() >= PRINTED for texts in figures for text in texts)
            continue
        for texts in figures:
            pixels, text = smallest(texts)
            where = f"{script.__name__}: {text!r} is {pixels} pixels high in a README"
            assert pixels >= READABLE, where


def test_weights_of_all_sentences_are_saved(quick_run):
    saved = torch.load(quick_run[0] / paths.PROCESSED / "attention_weights.pt", weights_only=True)
    assert saved[TOY_SENTENCE].shape == (6, 6)
    saved = torch.load(quick_run[0] / paths.PROCESSED / "multi_head_patterns.pt", weights_only=True)
    assert saved[TOY_SENTENCE].shape == (2, 4, 6, 6)
    assert len(saved) == len(toy_language.read_sentences(str(paths.TOY_SEQUENCES)))


@pytest.mark.parametrize("script", [attention_flow, attention_3d])
def test_a_long_sentence_has_room(checkpoints, script, tmp_path):
    script.main(["--quick", "--sentence", LONG, "--output-dir", str(tmp_path)])
    assert {path.name for path in pictures_in(tmp_path)} == promised(script.__name__)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sentence", "the cta sat"], '"cta" is not among .* nearest known words: .*cat'),
        (["--sentence", ""], "the sentence is empty"),
        (["--sentences", "no-such-file.txt"], "cannot use no-such-file.txt: No such file"),
        (["--device", "cuda"], "--device cuda is not available here"),
        (["--seed", "-1"], "--seed: must lie between 0 and 2147483648: got -1"),
        (["--d-model", "4000000"], "--d-model: must lie between 1 and 1024: got 4000000"),
        (["--d-model", "15"], "--d-model 15 is not divisible by --heads 4"),
        (["--layers", "3"], "--layers: this script does not use it"),
        (["--output-dir", f"{__file__}/x"], "cannot use .*test_scripts.py.x: "),
    ],
)
def test_bad_input_is_one_clear_line_and_exit_code_2(arguments, message, capsys):
    if arguments[-1] == "cuda" and torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    with pytest.raises(SystemExit) as stop:
        visualize1.main(arguments)
    printed = capsys.readouterr().err
    assert stop.value.code == 2
    assert re.search(message, printed) and printed.count("\n") == 1, printed


def test_a_run_on_a_mac_has_float32_where_a_script_uses_the_gpu_and_says_so(monkeypatch, capsys):
    """A run gives its options to all scripts, also to those that compute on the CPU."""
    gpu = torch.device("mps")
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: gpu)
    computes = []
    for parser in (cli.parser(""), cli.parser("", "--seed")):
        options = cli.parse(parser, ["--if-used", "--device", "auto"])
        computes.append((options.device, torch.get_default_dtype()))
    assert computes == [("mps", torch.float32), ("cpu", torch.float64)]
    printed = capsys.readouterr().out
    assert printed == "mps has no float64: your numbers will differ from ours\n"


def test_what_may_lie_on_a_gpu_is_moved_before_it_becomes_float64():
    """Apple's have none."""
    for path in paths.ROOT.glob("phase*/**/*.py"):
        for line in path.read_text(encoding="utf-8").splitlines():
            assert not re.search(r"(double\(|float64).*\.cpu\(", line), f"{path}: {line}"


def test_a_script_starts_from_anywhere(tmp_path):
    """A real process, another folder, a name that pandas looks for."""
    script = paths.ROOT / "phase1_single_head" / "visualize.py"
    command = [sys.executable, script, "--sentence", "the cta"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, encoding="utf-8")
    assert done.returncode == 2 and "nearest known words" in done.stderr
    assert "Traceback" not in done.stderr and not list(tmp_path.iterdir())


def test_a_file_that_is_interrupted_stays_as_it_was(tmp_path):
    path = tmp_path / "picture"
    path.write_text("whole")
    with pytest.raises(KeyboardInterrupt), paths.whole_file(path) as unfinished:
        unfinished.write_text("ha")
        raise KeyboardInterrupt
    assert path.read_text() == "whole" and list(tmp_path.iterdir()) == [path]
