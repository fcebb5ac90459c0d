"""Terminals without letters, pipes that close, Ctrl-C and kills at any moment, disks that are full."""

import ast
import os
import re
import shutil
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
from shared.checkpoints import _trained_here, load_checkpoint, load_or_train, read_checkpoint, save_checkpoint
from shared.evidence import findings
from shared.evidence.report import questions

HERE = Path(sysconfig.get_path("purelib")) / "here.pth"  # loads shared before anything else
in_our_environment = pytest.mark.skipif(not HERE.exists(), reason="only in the .venv that run_all.sh makes")
TINY = training.Recipe("tiny", "masked word", num_heads=2, num_layers=1, steps=2, d_model=16)


@pytest.fixture(autouse=True)
def hears():
    """What runs in the background may be deaf to Ctrl-C, and what it starts, too."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


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
    save_checkpoint(trained)
    again = load_or_train(TINY, MultiHeadAttention)
    assert "tiny.pt is damaged (numbers that are not finite): training it again" in capsys.readouterr().out
    assert again.model.embedding.weight.isfinite().all()
    load_checkpoint(TINY, MultiHeadAttention)
    _trained_here.clear()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_checkpoint_that_is_a_pipe_is_not_waited_for(checkpoints):
    pipe = checkpoints / "pipe.pt"
    os.mkfifo(pipe)
    with pytest.raises(ValueError, match="is not a file"):
        read_checkpoint(pipe)


def test_the_same_model_is_the_same_bytes_whoever_writes_it(checkpoints, monkeypatch):
    trained = training.train(TINY, MultiHeadAttention)
    written = []
    for process in (1234, 98765):
        monkeypatch.setattr(os, "getpid", lambda process=process: process)
        save_checkpoint(trained)
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
        cli.run(lambda: load_or_train(TINY, MultiHeadAttention))
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
        cli.run(lambda: save_checkpoint(training.train(TINY, MultiHeadAttention)))
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


def as_program(code, **options):
    """A process that runs cli.run(main), with main() made of these lines."""
    text = "from shared import cli\n" + "\n    ".join(["def main():", *code])
    return subprocess.Popen(
        [sys.executable, "-c", f"{text}\ncli.run(main)"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        **options,
    )


def ended(process):
    """(exit code, what it printed, its lines of errors)."""
    printed, errors = process.communicate(timeout=60)
    return process.returncode, printed, errors.split("\n")[:-1]


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_help_and_errors_are_printed_in_any_terminal(encoding):
    environment = os.environ | {"PYTHONIOENCODING": encoding}
    code = ["parser = cli.parser('√ → what?')", "parser.print_help()", "parser.error('“φ” → 語')"]
    code, printed, errors = ended(as_program(code, env=environment))
    assert code == 2 and printed and errors[0].endswith("-> ?") and len(errors) == 1


@pytest.mark.parametrize("code", [["print('line\\n' * 100_000)"], ["cli.parser('Why?').parse_args(['--help'])"]])
def test_a_reader_who_has_seen_enough_is_no_error(code):
    process = as_program(code, env={name: os.environ[name] for name in os.environ if name != "PYTHONUNBUFFERED"})
    process.stdout.close()
    assert (process.wait(timeout=60), process.stderr.read()) == (141, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
def test_what_is_printed_into_a_full_disk_is_one_line():
    with open("/dev/full", "wb") as full:
        process = subprocess.run(
            [sys.executable, "-c", "from shared import cli; cli.run(lambda: 'an answer')"],
            stdout=full,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )
    assert (process.returncode, process.stderr) == (2, "output: No space left on device\n")


@pytest.mark.skipif(sys.platform == "win32", reason="closed by a shell of Unix")
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_nobody_needs_to_listen(closed):
    code = "from shared import cli; cli.run(lambda: print('a line') or 'an answer')"
    command = ["/bin/sh", "-c", f'"$0" -c "$1" {closed}', sys.executable, code]
    assert subprocess.run(command, stdout=subprocess.DEVNULL).returncode == 0


POOL = """
import multiprocessing, time
from shared import course
with course.processes() as pool:
    pids = [child.pid for child in multiprocessing.active_children()]
    pool.apply(abs, (1,))
    print(*pids, flush=True)
    pool.apply(time.sleep, (60,))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there a signal to one process ends it")
@pytest.mark.parametrize(
    ("number", "code", "said"),
    [
        (signal.SIGINT, 130, "interrupted: no file is half-written"),
        (signal.SIGTERM, 143, "ended: no file is half-written"),
    ],
)
def test_whoever_stops_a_program_stops_its_processes_too(number, code, said):
    process = as_program(POOL.splitlines())
    children = [int(child) for child in process.stdout.readline().split()]
    process.send_signal(number)
    assert ended(process) == (code, "", ["", said]) and len(children) == course.PROCESSES
    for child in children:
        with pytest.raises(ProcessLookupError):
            os.kill(child, 0)


def test_a_script_that_is_stopped_in_the_course_is_no_script_that_failed(monkeypatch):
    def main(_argv):
        raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "phase.stopped", Namespace(main=main))
    with pytest.raises(KeyboardInterrupt):
        course.run_script("phase.stopped", [])


def test_signals_are_put_back_and_whoever_is_deaf_stays_deaf():
    before = signal.getsignal(signal.SIGINT)
    assert cli.run(lambda: str(signal.getsignal(signal.SIGINT))) != str(before)
    assert signal.getsignal(signal.SIGINT) is before
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert cli.run(lambda: str(signal.getsignal(signal.SIGINT))) == str(signal.SIG_IGN)
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.skipif(sys.platform == "win32", reason="there a signal to one process ends it")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    "command",
    [
        ["phase1_single_head/self_attention.py"],
        ["phase2_multi_head/visualize.py"],
        ["phase4_causal/long_texts/ring_attention.py"],
        ["shared/course.py"],
        ["shared/toy_language.py"],
        ["-m", "phase3_visualization"],
    ],
    ids=lambda command: command[-1],
)
@in_our_environment
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
    assert (done.returncode, done.stderr) == (128 + number, "\nended while loading or leaving\n")


def test_a_program_of_others_keeps_its_signals_and_its_display():
    code = "import os, shared, signal; print(signal.getsignal(2).__name__, 'MPLBACKEND' in os.environ)"
    environment = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", env=environment)
    assert done.stdout == "default_int_handler False\n"


@in_our_environment
def test_a_display_that_matplotlib_does_not_know_is_nobodys_business():
    done = subprocess.run(
        [sys.executable, paths.ROOT / "phase1_single_head" / "visualize.py", "--sentence", "the cta"],
        env=os.environ | {"MPLBACKEND": "nonsense"},
        capture_output=True,
        encoding="utf-8",
    )
    assert done.returncode == 2 and "nearest known words" in done.stderr and "nonsense" not in done.stderr


RING = """
from contextlib import contextmanager
from phase4_causal.long_texts import ring_attention
from shared import cli

deaf = cli.deaf_children

@contextmanager
def told():
    with deaf():
        yield
    print("begun", flush=True)

cli.deaf_children = told
cli.run(lambda: ring_attention.main(["--quick", "--no-pictures"]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there a signal to one process ends it")
def test_whoever_interrupts_a_ring_hears_of_it_once():
    """As a terminal does, which tells all processes; they have just begun to load."""
    process = subprocess.Popen(
        [sys.executable, "-c", RING],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        encoding="utf-8",
        start_new_session=True,
    )
    process.stdout.readline()
    os.killpg(process.pid, signal.SIGINT)
    assert ended(process) == (130, "", ["", "interrupted: no file is half-written"])
