"""Terminals without letters, pipes that close, Ctrl-C and kills at any moment, disks that are full."""

import ast
import os
import re
import signal
import subprocess
import sys
import sysconfig
from argparse import Namespace
from pathlib import Path

import pytest
import torch

from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase3_visualization.explorer.write_page import as_script_text
from shared import cli, course, paths, toy_language, training
from shared.checkpoints import _trained_here, load_checkpoint, load_or_train, save_checkpoint

HERE = Path(sysconfig.get_path("purelib")) / "here.pth"  # loads shared before anything else
in_our_environment = pytest.mark.skipif(not HERE.exists(), reason="only in the .venv that run_all.sh makes")
not_on_windows = pytest.mark.skipif(sys.platform == "win32", reason="there a signal to one process ends it")
TINY = training.Recipe("tiny", "masked word", num_heads=2, num_layers=1, steps=2, d_model=16)


@pytest.fixture(autouse=True)
def hears():
    """What runs in the background may be deaf to Ctrl-C, and what it starts, too."""
    before = [(number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before:
        signal.signal(number, handler)


# ---- checkpoints and files


def test_a_checkpoint_with_numbers_that_are_none_is_damaged_and_made_again(checkpoints, capsys):
    trained = training.train(TINY, MultiHeadAttention)
    with torch.no_grad():
        trained.model.embedding.weight[3, 1] = float("nan")
    save_checkpoint(trained)
    again = load_or_train(TINY, MultiHeadAttention)
    assert "tiny.pt is damaged (numbers that are not finite): training it again" in capsys.readouterr().out
    assert again.model.embedding.weight.isfinite().all()
    load_checkpoint(TINY, MultiHeadAttention)
    _trained_here.clear()


def test_the_same_model_is_the_same_bytes_whoever_writes_it(checkpoints, monkeypatch):
    trained = training.train(TINY, MultiHeadAttention)
    written = []
    for process in (1234, 98765):
        monkeypatch.setattr(os, "getpid", lambda process=process: process)
        save_checkpoint(trained)
        written.append(TINY.path.read_bytes())
    assert written[0] == written[1]


def test_a_folder_that_takes_no_checkpoint_is_noticed_before_training(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "checkpoints"
    folder.touch()
    monkeypatch.setattr(paths, "CHECKPOINTS", folder)
    monkeypatch.setattr(training, "train", None)
    with pytest.raises(SystemExit) as stop:
        cli.run(lambda: load_or_train(TINY, MultiHeadAttention))
    said = capsys.readouterr().err
    assert stop.value.code == 2 and said.count("\n") == 1 and str(folder) in said, said


def test_a_disk_that_is_full_leaves_no_file_and_the_line_names_it(tmp_path, capsys):
    def full():
        with paths.whole_file(tmp_path / "picture.png") as unfinished:
            unfinished.write_text("so f", encoding="utf-8")
            assert paths.whole_files(tmp_path, "**/*") == [], "nobody takes it for a picture meanwhile"
            raise OSError(28, "No space left on device")

    with pytest.raises(SystemExit) as stop:
        cli.run(full)
    assert stop.value.code == 2 and not list(tmp_path.iterdir())
    assert capsys.readouterr().err == f"{tmp_path / 'picture.png'}: No space left on device\n"


def test_a_page_never_holds_what_is_no_json():
    with pytest.raises(ValueError, match="not JSON compliant"):
        as_script_text({"loss": float("nan")})


# ---- terminals


def test_sentences_may_begin_with_a_mark_and_have_the_line_ends_of_windows(tmp_path):
    file = tmp_path / "sentences.txt"
    file.write_bytes("\ufeffthe cat sat on the mat\r\n\r\n# a note\r\na dog slept in a bed\r\n".encode())
    assert toy_language.read_sentences(str(file)) == ["the cat sat on the mat", "a dog slept in a bed"]


def bars_of(path):
    """Calls of tqdm in a file, as text."""
    calls = (node for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, ast.Call))
    return [ast.unparse(call) for call in calls if ast.unparse(call.func) == "tqdm"]


def test_progress_bars_are_for_terminals_only():
    files = [path for part in ("shared", *paths.PHASES.values()) for path in (paths.ROOT / part).rglob("*.py")]
    for name, bar in [(path.name, bar) for path in files for bar in bars_of(path)]:
        assert re.search(r"disable=(None|not progress or None)\)$", bar), f"{name}: {bar}"


def as_program(code, **options):
    """A process that runs cli.run(main), with main() made of these lines."""
    text = "from shared import cli\n" + "\n    ".join(["def main():", *code])
    return subprocess.Popen(
        [sys.executable, "-c", f"{text}\ncli.run(main)"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        **options,
    )


def ended(process):
    """(exit code, what it printed, its lines of errors)."""
    printed, errors = process.communicate(timeout=60)
    return process.returncode, printed, errors.split("\n")[:-1]


def test_help_and_errors_are_printed_in_any_terminal():
    code = ["parser = cli.parser('√d → what?')", "parser.print_help()", "parser.error('“φ”')"]
    code, printed, errors = ended(as_program(code, env=os.environ | {"PYTHONIOENCODING": "ascii"}))
    assert code == 2 and "?d ? what?" in printed and errors == ["-c: ???"]


def test_a_reader_who_has_seen_enough_is_no_error():
    process = as_program(["print('line\\n' * 100_000)"])
    process.stdout.close()
    assert (process.wait(timeout=60), process.stderr.read()) == (141, "")


POOL = """
import multiprocessing, time
from shared import course
with course.processes() as pool:
    pids = [child.pid for child in multiprocessing.active_children()]
    print(*pids, flush=True)
    pool.apply(time.sleep, (60,))
"""


@not_on_windows
@pytest.mark.parametrize(
    ("send", "number", "said"),
    [
        ("killpg", "SIGINT", "interrupted"),  # as a terminal does: all processes hear it, and just begin to load
        ("kill", "SIGTERM", "ended"),
        ("kill", "SIGHUP", "ended"),  # the terminal was closed
    ],
)
def test_whoever_stops_a_program_stops_its_processes_too(send, number, said):
    process = as_program(POOL.splitlines(), start_new_session=True)
    children = [int(child) for child in process.stdout.readline().split()]
    number = getattr(signal, number)
    getattr(os, send)(process.pid, number)
    assert ended(process) == (128 + number, "", ["", f"{said}: no file is half-written"])
    assert len(children) == course.PROCESSES
    for child in children:
        with pytest.raises(ProcessLookupError):
            os.kill(child, 0)


def test_a_script_that_is_stopped_in_the_course_is_no_script_that_failed(monkeypatch):
    def main(_argv):
        raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "phase.stopped", Namespace(main=main))
    with pytest.raises(KeyboardInterrupt):
        course.run_script("phase.stopped", [])


def test_whoever_is_deaf_stays_deaf():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert cli.run(lambda: str(signal.getsignal(signal.SIGINT))) == str(signal.SIG_IGN)


@not_on_windows
@in_our_environment
@pytest.mark.parametrize("command", [["phase2_multi_head/visualize.py"], ["-m", "phase3_visualization"]])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_end_while_a_script_loads_is_one_line(command, number, tmp_path):
    for library in ("torch", "numpy", "matplotlib", "tqdm"):  # stand-ins, in the loading of which it comes
        text = f"import os, time\nos.kill(os.getpid(), {number:d})\ntime.sleep(1)\n"
        (tmp_path / f"{library}.py").write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, *command],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        cwd=paths.ROOT,
        capture_output=True,
        encoding="utf-8",
    )
    assert (done.returncode, done.stderr) == (128 + number, "\nended while loading\n")


@in_our_environment
def test_a_display_that_matplotlib_does_not_know_is_nobodys_business():
    command = [sys.executable, paths.ROOT / "phase1_single_head" / "visualize.py", "--sentence", "the cta"]
    environment = os.environ | {"MPLBACKEND": "nonsense"}
    done = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8")
    assert done.returncode == 2 and "nearest known words" in done.stderr and "nonsense" not in done.stderr


def test_a_program_of_others_keeps_its_signals_and_its_display():
    code = "import os, shared, signal; print(signal.getsignal(2).__name__, 'MPLBACKEND' in os.environ)"
    environment = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", env=environment)
    assert done.stdout == "default_int_handler False\n"


def test_importing_the_command_line_is_quick():
    """It leaves pictures and tables alone, which take a second to load."""
    code = "import sys, shared.cli; print({'seaborn', 'pandas', 'matplotlib.pyplot'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8").stdout == "set()\n"
