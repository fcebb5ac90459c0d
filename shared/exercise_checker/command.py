"""The command line of an exercises.py, and the file in which the reader writes: my_exercises.py
beside it.

It is made of the stubs on the first run and never written to again; git ignores it. Solution,
mistakes (exercise.py) and the reader's function get the same random inputs, in float64, of sizes
that no two axes share. Where the reader's numbers are those of a mistake, it is named; where they
are nobody's, they are described in words (check.py). train.py makes a function the attention of the
toy model, and says what it loses and finds there.
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
from shared.exercise_checker.check import DONE, NOT_WRITTEN, WRONG, Report, check, message_of
from shared.exercise_checker.exercise import Exercise, Function
from shared.exercise_checker.given import refuse_what_was_changed
from shared.exercise_checker.train import WIDTH, trained

MARKS = {DONE: "+", NOT_WRITTEN: "-", WRONG: "x"}
HOW = """

The first run makes my_exercises.py beside this file. Write there, in place of each `raise NotImplementedError`, and run
this again, as often as you like. Each exercise names its section of the lesson, or the page of a room; how hard it is
(easy: one idea, medium: two at once, hard: several, with special cases); and how many minutes it may take: an estimate.
Loops are fine, matrix products are shorter, what you wrote for one exercise helps in the next. Import what you like.
Inputs are float64: give new tensors the dtype of one of them, torch.zeros(3, 5, dtype=x.dtype).
Exit code 0: all done, 1: not yet. Whoever marks answers of others looks at the last lines, too: code that ends Python
at once (os._exit) leaves no report, and any exit code that it likes."""
HINTS = {"1": "the idea", "2": "the steps and their shapes", "3": "the whole as plain loops"}


@cli.script
def run(
    file: str, exercises: Sequence[Exercise], afterwards: str, argv: list[str] | None = None
) -> None:
    """Check what the reader wrote, print a line for each exercise, exit with 1 unless all are done.

    file: the path of the exercises.py. afterwards: what to say when the reader has done all.
    """
    stubs, known = Path(file), {str(n): exercise for n, exercise in enumerate(exercises, start=1)}
    parser = parser_for(ast.get_docstring(ast.parse(stubs.read_text(encoding="utf-8"))) + HOW)
    options = parser.parse_args(argv)
    chosen = {n: each for n, each in known.items() if options.exercise in (None, n, each.name)}
    if not chosen:
        names = ", ".join(f"{n} {each.name}" for n, each in known.items())
        parser.error(f"no exercise {options.exercise!r}: choose from {names}")
    if options.hint:
        if options.exercise is None:
            parser.error(
                f"a hint for which exercise? Its number comes first: python {short(stubs)} 3 --hint 2"
            )
        print(hint(*chosen.popitem(), options.hint, stubs))
        return
    functions = {each.name: each.solution for each in exercises}
    try:
        if not options.solutions:
            functions = written_in(readers_file(stubs))
            refuse_what_was_changed(functions)
        if options.train:
            sys.exit(not trained(list(chosen.values()), exercises, functions))
    except ValueError as error:
        parser.error(str(error))
    if report(chosen, functions, stubs):
        sys.exit(1)
    if chosen == known and not options.solutions:
        print(f"\n{textwrap.fill(afterwards, WIDTH)}")


def parser_for(description: str) -> argparse.ArgumentParser:
    parser = cli.Parser(
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("exercise", nargs="?", help="its number or its name (default: all)")
    explained = ", ".join(f"{n}: {what}" for n, what in HINTS.items())
    parser.add_argument(
        "--hint",
        nargs="?",
        const="1",
        choices=tuple(HINTS),
        help=f"check nothing, show {explained}",
    )
    parser.add_argument(
        "--solutions", action="store_true", help="check the reference solutions instead of yours"
    )
    parser.add_argument(
        "--train",
        action="store_true",
        help="train it in the toy model: what does it find, or cost?",
    )
    return parser


def about(stubs: Path) -> list[tuple[str, str, int]]:
    """Of each exercise where it belongs, how hard it is and how many minutes it may take, as its
    stub says.
    """
    told = re.findall(
        r"^ +Lesson: (.+) · (\w+) · (\d+) min$", stubs.read_text(encoding="utf-8"), re.MULTILINE
    )
    return [(section, level, int(minutes)) for section, level, minutes in told]


def hint(number: str, exercise: Exercise, which: str, stubs: Path) -> str:
    """One of the three hints, and how to get the next."""
    text = f"{number} {exercise.name}, hint {which} of {len(HINTS)}: {HINTS[which]}\n\n"
    text += textwrap.indent(exercise.paragraphs[int(which) - 1], "    ")
    more = str(int(which) + 1)
    return text + (
        f"\n\nmore: python {short(stubs)} {number} --hint {more}, {HINTS[more]}"
        if more in HINTS
        else ""
    )


def report(chosen: dict[str, Exercise], functions: dict[str, Function], stubs: Path) -> bool:
    """A line for each exercise, how many are done, and what comes next -> whether something is left
    to do.
    """
    torch.set_num_threads(1)  # tiny tensors: more threads would only wait for each other
    left, told = {}, about(stubs)
    width = max(len(section) for section, *_ in told)
    for number, exercise in chosen.items():
        section, level, minutes = told[int(number) - 1]
        result = Report(NOT_WRITTEN, f"{NOT_WRITTEN}: your file has no {exercise.name}")
        if exercise.name in functions:
            result = check(exercise, functions[exercise.name])
        head = f"{MARKS[result.status]} {f'{number} {exercise.name}':26} "
        text = textwrap.fill(
            result.text, WIDTH, initial_indent=head, subsequent_indent=" " * len(head)
        )
        if result.text == NOT_WRITTEN:  # a row of the table of what there is to do
            text += f"  {section:{width}}  {level:6}  {minutes:3} min"
        print(text)
        if result.status != DONE:
            left[f"{number} {exercise.name}"] = minutes
    if len(chosen) > 1:
        print(f"{len(chosen) - len(left)} of {len(chosen)} done")
    if left and len(chosen) > 1:
        first, minutes = next(iter(left)), sum(left.values())
        print(f"Next: {first}; for a hint: python {short(stubs)} {first.split()[0]} --hint")
        print(
            f"Minutes are estimates; what is left takes about {minutes // 60} h {minutes % 60} min."
        )
    return bool(left)


def readers_file(stubs: Path) -> Path:
    """my_exercises.py beside the stubs. If it is not there it is made: the stubs without what is
    the checker's.
    """
    file, text = stubs.with_name("my_exercises.py"), stubs.read_text(encoding="utf-8")
    if not file.exists():
        lines = text[: text.index("\n\ndef main(")].splitlines()[
            ast.parse(text).body[0].end_lineno :
        ]
        lines = [
            line
            for line in lines
            if not re.match(r"from (shared[.\w]*|\w+\.answers) import ", line)
        ]
        lines = [
            f'"""Your exercises: python {short(stubs)} checks them."""',
            "",
            "import torch",
            *lines[1:],
            "",
        ]
        with paths.whole_file(file) as unfinished:
            unfinished.write_text("\n".join(lines), encoding="utf-8")
        print(f"made {short(file)}: write your answers there; git leaves this file alone")
    return file


def short(file: Path) -> str:
    return f"{file.parent.name}/{file.name}"


def written_in(file: Path) -> dict[str, Function]:
    """The names that the reader's file defines. ValueError, in one line, if it cannot be run."""
    module = types.ModuleType(f"{file.parent.name}.{file.stem}")
    module.__file__ = str(file)
    sys.modules[module.__name__] = module
    try:
        exec(
            compile(file.read_bytes(), str(file), "exec"), vars(module)
        )  # bytes: with any line ends and a BOM
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        lines = [
            frame.lineno
            for frame in traceback.extract_tb(error.__traceback__)
            if frame.filename == str(file)
        ]
        said = message_of(error)
        if isinstance(error, SyntaxError) and error.filename == str(file):
            lines, said = [error.lineno], error.msg
        place = f", line {lines[-1]}" if lines else ""
        line = f"{short(file)}{place}: {type(error).__name__}: {said}"
        raise ValueError(textwrap.shorten(line, 300, placeholder=" ...")) from None
    return vars(module)
