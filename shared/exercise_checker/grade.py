"""How did a class do? Checks all the files that were handed in, and prints one table.

What is handed in is somebody else's code. It runs with the rights of whoever grades, so read it
first, or grade in an account or a container that has nothing to lose. Each file runs in a process
of its own, because it may loop for ever or end Python: this file, run with a limit in seconds, the
path of what was handed in and the names of the exercises, writes what became of them to a file of
its own. What it prints goes nowhere, and what else it has started is ended behind it, unless it has
gone into a session of its own.
"""

import faulthandler
import json
import os
import pkgutil
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pandas as pd
import torch

from shared import paths
from shared.exercise_checker.check import DONE, MARK_OF, WRONG, Report, check
from shared.exercise_checker.exercise import Exercise
from shared.exercise_checker.files import written_in

PATIENCE = 30.0  # seconds for a file, which takes a few, even in plain loops
LOOPS = Report(WRONG, f"no answer within {PATIENCE:.0f} s: does it loop for ever?")
ENDED = Report(WRONG, "no answer: it ended Python or disturbed the checker")
STARTING = 60.0  # more seconds, until Python and torch are there
COLUMNS = ["file", "exercise", "passed", "minutes", "message", "uses"]  # of the CSV file
MOST_BYTES = 10**5  # of what is written about a file


def handed_in(path: Path) -> dict[str, Path]:
    """Returns a file, or all Python files of a folder and its folders, by the names to be shown.

    Raises ValueError if there is none.
    """
    if path.is_file():
        return {in_one_line(path.name): path}
    found = [file for file in sorted(path.rglob("*.py")) if file.is_file()]
    files = {in_one_line(file.relative_to(path).as_posix()): file for file in found}
    if not files:
        raise ValueError(f"nothing to grade: {path} is no file, nor a folder of files in .py")
    return files


def looked_at(file: Path) -> list[str]:
    """Returns the modules of the course that a file says it imports, and its ways to reach more."""
    text = file.read_text(encoding="utf-8", errors="replace")
    imports = r"^\s*(?:from|import)\s+(?=phase|shared)"
    others = r"\b(?=importlib\b|__import__\b|sys\.modules\b|os\.|gc\.)"
    return sorted(set(re.findall(rf"(?:{imports}|{others})([\w.]+)", text, re.MULTILINE)))


def in_one_line(text: str) -> str:
    """Returns a text as it is or, if it has line breaks and the like, in quotation marks."""
    return text if text.isprintable() else ascii(text)


def reports_of(file: Path, exercises: Sequence[Exercise]) -> list[Report]:
    """Returns a report of the file, then one of each exercise, as far as its process comes.

    The last one says why the process came no further, if it did not come to the end.
    """
    names = [f"{one.solution.__module__}:{one.name}" for one in exercises]
    command = [sys.executable, "-m", __name__, str(PATIENCE), str(file.resolve()), *names]
    with tempfile.TemporaryFile() as written:
        how = {"stdin": subprocess.DEVNULL, "stdout": written, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen(command, start_new_session=True, **how)
        try:
            with suppress(subprocess.TimeoutExpired):  # of a process that has put off its own end
                process.wait(PATIENCE + STARTING)
        finally:
            end(process)
        written.seek(0)
        content = written.read(MOST_BYTES)
    reports = []
    with suppress(AttributeError, RecursionError, TypeError, ValueError):  # not written by main
        for line in content.splitlines()[: len(exercises) + 1]:
            report = Report(*map(in_one_line, json.loads(line)))
            if report.status not in MARK_OF:
                break
            reports.append(report)
    if len(reports) <= len(exercises):
        reports.append(LOOPS if b"Timeout (" in content else ENDED)  # as faulthandler says
    return reports


def end(process: subprocess.Popen) -> None:
    """Ends a process and all that it has started; on Windows itself alone."""
    if os.name == "posix":
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()


def graded(file: Path, exercises: Sequence[Exercise]) -> tuple[str, list[Report]]:
    """Returns why the file cannot be run, or "", and a report for each exercise.

    Where one exercise does not come to its end, the next is asked in a new process. Of a file that
    cannot be run, every report says why.
    """
    reports: list[Report] = []
    while len(reports) < len(exercises):
        of_file, *more = reports_of(file, exercises[len(reports) :])
        if of_file.text:
            return of_file.text, [Report(WRONG, of_file.text)] * len(exercises)
        reports += more
    return "", reports


def grade(
    path: Path,
    chosen: Mapping[str, Exercise],
    minutes: Mapping[str, int],
    table: Path | None = None,
) -> None:
    """Print a line for each file and exercise, then how many did each, and what went wrong most.

    chosen, minutes: the exercises, and how long each may take, by their numbers. table: a CSV file
    to write, with a row for each file and exercise. Raises ValueError if there is nothing to grade.
    """
    files = handed_in(path)
    if table:
        paths.check_writable(table.parent)
    rows = []
    uses = {name: looked_at(file) for name, file in files.items()}  # before one of them runs
    done, wrong = Counter(), {number: Counter() for number in chosen}
    width = max(map(len, files))
    for name, file in files.items():
        complaint, reports = graded(file, list(chosen.values()))
        if complaint:
            print(f"{name:{width}}  {MARK_OF[WRONG]} {complaint}", flush=True)
        for (number, exercise), report in zip(chosen.items(), reports, strict=True):
            passed = int(report.status == DONE)
            used = " ".join(uses[name])
            rows.append((name, exercise.name, passed, minutes[number], report.text, used))
            if complaint:
                continue
            verdict = report.mistake or report.text
            task = f"{MARK_OF[report.status]} {f'{number} {exercise.name}':26}"
            line = f"{name:{width}}  {task} {verdict}"
            print(line, flush=True)
            done[number] += passed
            wrong[number][verdict] += report.status == WRONG
        if uses[name] and not complaint:
            print(f"{name:{width}}  ! uses {', '.join(uses[name])}", flush=True)
    title = f"done of {len(files)}"
    print(f"\n{'exercise':28} {title}  most often wrong")
    for number, exercise in chosen.items():
        line = f"{f'{number} {exercise.name}':28} {done[number]:<{len(title)}}"
        for verdict, times in (+wrong[number]).most_common(1):
            line += f" {verdict} ({times})"
        print(line.rstrip())
    if table:
        frame = pd.DataFrame(rows, columns=COLUMNS)
        with paths.whole_file(table) as unfinished:
            frame.to_csv(unfinished, index=False)
        print(f"\nmade {table}")


def main() -> None:
    """Writes a report of a file, then one of each exercise, in a line each, where stdout was."""
    seconds, file, *names = sys.argv[1:]
    torch.set_num_threads(1)
    out = os.fdopen(os.dup(1), "w")
    faulthandler.dump_traceback_later(float(seconds), exit=True, file=out)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what a student prints is no report
    for report in reports(Path(file), names):
        print(json.dumps(report), file=out, flush=True)


def reports(file: Path, names: Sequence[str]) -> Iterator[Report]:
    """Yields a report of the file, then one of each exercise."""
    try:
        functions = written_in(file)
    except ValueError as error:
        yield Report(WRONG, str(error))
        return
    yield Report(DONE, "")
    for name in names:
        exercise = pkgutil.resolve_name(name)
        yield check(exercise, functions.get(exercise.name))


if __name__ == "__main__":
    main()
