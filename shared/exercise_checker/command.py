"""The command line of an exercises.py, and the file in which the reader writes: my_exercises.py beside it.

It is made of the stubs on the first run and never written to again; git ignores it.
"""

import argparse
import ast
import inspect
import re
import sys
import textwrap
import traceback
import types
from collections.abc import Sequence
from pathlib import Path

import torch

from shared import cli, paths
from shared.exercise_checker.check import DONE, WRONG, Report, check
from shared.exercise_checker.exercise import Exercise, Function
from shared.exercise_checker.words import NOT_WRITTEN, WIDTH

MARKS = {DONE: "+", NOT_WRITTEN: "-", WRONG: "x"}


def run(file: str, exercises: Sequence[Exercise], argv: list[str] | None = None) -> None:
    """Check what the reader wrote, print a line for each exercise, exit with 1 unless all are done.

    file: the path of the exercises.py.
    """
    stubs = Path(file)
    parser = parser_for(ast.get_docstring(ast.parse(stubs.read_text(encoding="utf-8"))))
    options = parser.parse_args(argv)
    numbers = chosen(options.exercise, exercises, parser)
    if options.hint:
        for number in numbers:
            loops = inspect.getdoc(exercises[number - 1].solution)
            print(f"{number} {exercises[number - 1].name}\n\n{textwrap.indent(loops, '    ')}\n")
        return
    functions = {exercise.name: exercise.solution for exercise in exercises}
    if not options.solutions:
        try:
            functions = written_in(readers_file(stubs))
        except ValueError as error:
            parser.error(str(error))
    report(numbers, exercises, functions)


def parser_for(description: str | None) -> argparse.ArgumentParser:
    parser = cli.Parser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("exercise", nargs="?", help="its number or its name (default: all)")
    parser.add_argument("--hint", action="store_true", help="print the task as plain loops, and check nothing")
    parser.add_argument("--solutions", action="store_true", help="check the reference solutions instead of yours")
    return parser


def chosen(wanted: str | None, exercises: Sequence[Exercise], parser: argparse.ArgumentParser) -> list[int]:
    """The numbers of the exercises that are asked for, counted from 1."""
    all_names = [exercise.name for exercise in exercises]
    numbers = [n for n, name in enumerate(all_names, start=1) if wanted in (None, str(n), name)]
    if not numbers:
        names = ", ".join(f"{n} {name}" for n, name in enumerate(all_names, start=1))
        parser.error(f"no exercise {wanted!r}: choose from {names}")
    return numbers


def report(numbers: Sequence[int], exercises: Sequence[Exercise], functions: dict[str, Function]) -> None:
    """A line for each exercise, and how many are done; exit code 1 unless all of them are."""
    torch.set_num_threads(1)  # tiny tensors: more threads would only wait for each other
    done = 0
    for number in numbers:
        exercise = exercises[number - 1]
        missing = Report(NOT_WRITTEN, f"{NOT_WRITTEN}: your file has no {exercise.name}")
        result = check(exercise, functions[exercise.name]) if exercise.name in functions else missing
        head = f"{MARKS[result.status]} {number} {exercise.name:24} "
        print(textwrap.fill(result.text, WIDTH, initial_indent=head, subsequent_indent=" " * len(head)))
        done += result.status == DONE
    if len(numbers) > 1:
        print(f"{done} of {len(numbers)} done")
    if done < len(numbers):
        sys.exit(1)


def readers_file(stubs: Path) -> Path:
    """my_exercises.py beside the stubs, made of them if it is not there."""
    file = stubs.with_name("my_exercises.py")
    if not file.exists():
        with paths.whole_file(file) as unfinished:
            unfinished.write_text(text_of(stubs), encoding="utf-8")
        print(f"made {short(file)}: write your answers there; git leaves this file alone")
    return file


def short(file: Path) -> str:
    return f"{file.parent.name}/{file.name}"


def text_of(stubs: Path) -> str:
    """What the reader's file starts with: the stubs and their imports, without what belongs to the checker."""
    text = stubs.read_text(encoding="utf-8")
    lines = text[: text.index("\n\ndef main(")].splitlines()[ast.parse(text).body[0].end_lineno :]
    lines = [line for line in lines if not re.match(r"from (shared|\w+\.answers\.\w+) import ", line)]
    heading = f'"""Your exercises. Check them, as often as you like, by\n\n    python {short(stubs)}\n"""'
    return "\n".join([heading, *lines]) + "\n"


def written_in(file: Path) -> dict[str, Function]:
    """The names that the reader's file defines. ValueError, in one line, if it cannot be run."""
    module = types.ModuleType(f"{file.parent.name}.{file.stem}")
    module.__file__ = str(file)
    sys.modules[module.__name__] = module
    try:
        exec(compile(file.read_bytes(), str(file), "exec"), vars(module))  # bytes: with any line ends and a BOM
    except (Exception, SystemExit) as error:
        raise ValueError(complaint(file, error)) from None
    return vars(module)


def complaint(file: Path, error: BaseException) -> str:
    """An error in the reader's file as one line, with the line where it happened."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    said = str(error)
    if isinstance(error, SyntaxError) and error.filename == str(file):
        lines, said = [error.lineno], error.msg
    place = f", line {lines[-1]}" if lines else ""
    return textwrap.shorten(f"{short(file)}{place}: {type(error).__name__}: {said}", 300, placeholder=" ...")
