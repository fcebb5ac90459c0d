"""The command line of an exercises.py, and the file in which the reader writes: my_exercises.py beside it.

It is made of the stubs on the first run and never written to again; git ignores it.
"""

import argparse
import ast
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
HINTS = ("the idea", "the steps and their shapes", "the whole as plain loops")


@cli.script
def run(file: str, exercises: Sequence[Exercise], afterwards: str, argv: list[str] | None = None) -> None:
    """Check what the reader wrote, print a line for each exercise, exit with 1 unless all are done.

    file: the path of the exercises.py. afterwards: what to say when the reader has done all.
    """
    stubs = Path(file)
    parser = parser_for(ast.get_docstring(ast.parse(stubs.read_text(encoding="utf-8"))))
    options = parser.parse_args(argv)
    numbers = chosen(options.exercise, exercises, parser)
    if options.hint is not None:
        check_hint(options, stubs, parser)
        print(hint(numbers[0], exercises[numbers[0] - 1], int(options.hint), stubs))
        return
    functions = {exercise.name: exercise.solution for exercise in exercises}
    if not options.solutions:
        try:
            functions = written_in(readers_file(stubs))
        except ValueError as error:
            parser.error(str(error))
    left = report(numbers, exercises, functions)
    if left:
        if len(numbers) > 1:
            print(what_next(left, exercises, stubs))
        sys.exit(1)
    if len(numbers) == len(exercises) and not options.solutions:
        print(f"\n{textwrap.fill(afterwards, WIDTH)}")


def parser_for(description: str | None) -> argparse.ArgumentParser:
    parser = cli.Parser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("exercise", nargs="?", help="its number or its name (default: all)")
    parser.add_argument(
        "--hint",
        nargs="?",
        const="1",
        metavar="1|2|3",
        help=f"show a hint and check nothing; 1 (default): {HINTS[0]}, 2: {HINTS[1]}, 3: {HINTS[2]}",
    )
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


def check_hint(options: argparse.Namespace, stubs: Path, parser: argparse.ArgumentParser) -> None:
    """There are three hints; and all exercises at once would give away too much."""
    example = f"as in: python {short(stubs)} 3 --hint 2"
    if options.hint not in ("1", "2", "3"):
        parser.error(f"there are hints 1, 2 and 3, no {options.hint!r}; the exercise comes first, {example}")
    if options.exercise is None:
        parser.error(f"a hint for which exercise? Put its number or name first, {example}")


def hint(number: int, exercise: Exercise, which: int, stubs: Path) -> str:
    """One of the three hints, and how to get the next."""
    head = f"{number} {exercise.name} · {exercise.about}\nhint {which} of {len(HINTS)}: {HINTS[which - 1]}"
    more = f"\n\nmore: python {short(stubs)} {number} --hint {which + 1}, {HINTS[which]}" if which < len(HINTS) else ""
    return f"{head}\n\n{textwrap.indent(exercise.hints[which - 1], '    ')}{more}"


def report(numbers: Sequence[int], exercises: Sequence[Exercise], functions: dict[str, Function]) -> list[int]:
    """A line for each exercise, and how many are done -> the numbers of those that are not."""
    torch.set_num_threads(1)  # tiny tensors: more threads would only wait for each other
    left = []
    width = max(len(exercise.section) for exercise in exercises)
    for number in numbers:
        exercise = exercises[number - 1]
        missing = Report(NOT_WRITTEN, f"{NOT_WRITTEN}: your file has no {exercise.name}")
        result = check(exercise, functions[exercise.name]) if exercise.name in functions else missing
        head = f"{MARKS[result.status]} {f'{number} {exercise.name}':26} "
        text = result.text
        if text == NOT_WRITTEN:  # a row of the table of what there is to do
            text += f"  {exercise.section:{width}}  {exercise.level:6}  {exercise.minutes:3} min"
        print(textwrap.fill(text, WIDTH, initial_indent=head, subsequent_indent=" " * len(head)))
        if result.status != DONE:
            left.append(number)
    if len(numbers) > 1:
        print(f"{len(numbers) - len(left)} of {len(numbers)} done")
    return left


def what_next(left: Sequence[int], exercises: Sequence[Exercise], stubs: Path) -> str:
    """Which exercise to take up, how to get a hint, what the table says, and how long all that are left will take."""
    number, minutes = left[0], sum(exercises[number - 1].minutes for number in left)
    return (
        f"{'Begin' if len(left) == len(exercises) else 'Go on'} with {number} {exercises[number - 1].name}; "
        f"for a hint: python {short(stubs)} {number} --hint\n"
        f"Sections are those of {short(stubs.with_name('README.md'))}; a room has a page of its own.\n"
        f"Minutes are estimates; what is left takes about {minutes // 60} h {minutes % 60} min."
    )


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
    command = f"    python {short(stubs)}"
    heading = [
        '"""Your exercises.',
        "",
        f"{command}            checks them",
        f"{command} 3 --hint   helps",
        '"""',
    ]
    return "\n".join([*heading, *lines]) + "\n"


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
