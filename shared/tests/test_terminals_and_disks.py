"""Terminals without letters, pipes that close, Ctrl-C and kills at any moment, disks that are full."""

import ast
import os
import re
import shutil
import subprocess
import sys
from argparse import Namespace

import pytest
import torch

from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase3_visualization.explorer.write_page import as_script_text
from shared import cli, paths, toy_language, training
from shared.evidence import findings
from shared.evidence.report import questions

TINY = training.Recipe("tiny", "masked word", num_heads=2, num_layers=1, steps=2, d_model=16)


def gone():
    """The number of a process that has ended."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return ended.pid


# ---- checkpoints


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_checkpoint_with_numbers_that_are_none_is_damaged_and_made_again(checkpoints, capsys, value):
    trained = training.train(TINY, MultiHeadAttention)
    with torch.no_grad():
        trained.model.embedding.weight[3, 1] = value
    training.save_checkpoint(trained)
    again = training.load_or_train(TINY, MultiHeadAttention)
    assert "tiny.pt is damaged (numbers that are not finite): training it again" in capsys.readouterr().out
    assert again.model.embedding.weight.isfinite().all()
    training.load_checkpoint(TINY, MultiHeadAttention)
    training._trained_here.clear()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_checkpoint_that_is_a_pipe_is_not_waited_for(checkpoints):
    pipe = checkpoints / "pipe.pt"
    os.mkfifo(pipe)
    with pytest.raises(ValueError, match="is not a file"):
        training.read_checkpoint(pipe)


def test_the_same_model_is_the_same_bytes_whoever_writes_it(checkpoints, monkeypatch):
    trained = training.train(TINY, MultiHeadAttention)
    written = []
    for process in (1234, 98765):
        monkeypatch.setattr(os, "getpid", lambda process=process: process)
        training.save_checkpoint(trained)
        written.append(TINY.path.read_bytes())
    assert written[0] == written[1]


def never(*_arguments, **_options):
    raise AssertionError("trained, though nobody could keep it")


def small_disk(_folder):
    return Namespace(free=60_000)


@pytest.mark.parametrize("fault", ["a file", "full", "a folder of its name"])
def test_a_checkpoint_that_cannot_be_written_is_noticed_before_training(fault, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "checkpoints"
    monkeypatch.setattr(paths, "CHECKPOINTS", folder)
    monkeypatch.setattr(training, "train", never)
    if fault == "a file":
        folder.touch()
    elif fault == "full":
        monkeypatch.setattr(shutil, "disk_usage", small_disk)
    else:
        TINY.path.mkdir(parents=True)
    with pytest.raises(SystemExit) as stop:
        cli.run(lambda: training.load_or_train(TINY, MultiHeadAttention))
    said = capsys.readouterr().err
    assert stop.value.code == 2 and said.count("\n") == 1 and str(folder) in said, said


# ---- files


def test_what_a_kill_left_behind_is_no_picture_and_no_finding(tmp_path):
    for place in (paths.PLOTS / "phase1" / "x.png", paths.PROCESSED / "findings" / "x.json"):
        half = tmp_path / place.with_name(f".{gone()}.{place.name}")
        half.parent.mkdir(parents=True)
        half.write_text("[{", encoding="utf-8")
    assert questions.pictures(tmp_path) == [] and findings.gather(tmp_path) == []


def test_whoever_writes_next_removes_it_unless_somebody_still_writes(tmp_path):
    kept = [f".{os.getpid()}.b.png", ".hidden", ".1x.png", "1.png", ".1.5"]
    left = [f".{gone()}.a.png", f".{10**30}.a.png"]
    for name in kept + left:
        (tmp_path / name).touch()
    with paths.whole_file(tmp_path / "c.png") as unfinished:
        unfinished.touch()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*kept, "c.png"])


def test_a_disk_that_is_full_leaves_no_file_and_the_line_names_it(tmp_path, capsys):
    def full():
        with paths.whole_file(tmp_path / "picture.png") as unfinished:
            unfinished.write_text("so f", encoding="utf-8")
            raise OSError(28, "No space left on device")

    with pytest.raises(SystemExit) as stop:
        cli.run(full)
    assert stop.value.code == 2 and not list(tmp_path.iterdir())
    assert capsys.readouterr().err == f"{tmp_path / 'picture.png'}: No space left on device\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
def test_a_model_that_fills_the_disk_is_one_line_that_names_the_file(tmp_path, monkeypatch, capsys):
    """torch's own writer says so without an errno."""
    monkeypatch.setattr(paths, "CHECKPOINTS", tmp_path)
    (tmp_path / f".{os.getpid()}.tiny.pt").symlink_to("/dev/full")
    with pytest.raises(SystemExit) as stop:
        cli.run(lambda: training.save_checkpoint(training.train(TINY, MultiHeadAttention)))
    said = capsys.readouterr().err
    assert stop.value.code == 2 and said == f"{TINY.path}: No space left on device\n"
    assert not list(tmp_path.iterdir())


def test_a_small_disk_is_noticed_before_anything_is_computed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(shutil, "disk_usage", small_disk)
    with pytest.raises(SystemExit) as stop:
        cli.parse(cli.parser("What?"), ["--output-dir", str(tmp_path)])
    assert stop.value.code == 2
    assert f"cannot use {tmp_path}: less than 5 MB of space left\n" in capsys.readouterr().err


def test_a_page_never_holds_what_is_no_json():
    with pytest.raises(ValueError, match="not JSON compliant"):
        as_script_text({"loss": float("nan")})


# ---- terminals


@pytest.mark.parametrize("start", ["\ufeff", "\ufeff\r\n"])
def test_sentences_may_begin_with_a_mark_and_have_the_line_ends_of_windows(tmp_path, start):
    file = tmp_path / "sentences.txt"
    file.write_bytes(f"{start}the cat sat on the mat\r\n\r\n# a note\r\na dog slept in a bed\r\n".encode())
    assert toy_language.read_sentences(str(file)) == ["the cat sat on the mat", "a dog slept in a bed"]


def bars_of(path):
    """Calls of tqdm in a file, as text."""
    calls = (node for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, ast.Call))
    return [ast.unparse(call) for call in calls if ast.unparse(call.func) == "tqdm"]


def test_progress_bars_are_for_terminals_only():
    files = [path for part in ("shared", *paths.PHASES.values()) for path in (paths.ROOT / part).rglob("*.py")]
    bars = [(path.name, bar) for path in files for bar in bars_of(path)]
    assert len(bars) > 5
    for name, bar in bars:
        assert re.search(r"disable=(None|not progress or None)\)$", bar), f"{name}: {bar}"
