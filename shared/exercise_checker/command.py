"""What does an exercises.py do when it is run? It checks the reader's file, my_exercises.py.

That file is made of the stubs on the first run and never written to again; git ignores it. The
reader's function gets the same random inputs as the solution and the usual mistakes (exercise.py):
float64, and no two axes have one size. What comes out is judged by check.py. in_models.py
makes a function the attention of the toy model, or of a published one. grade.py is for teachers: it
checks many files at once.
"""

import argparse
import ast
import re
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import torch

from shared import cli
from shared.exercise_checker.check import DONE, MARK_OF, NOT_WRITTEN, check
from shared.exercise_checker.exercise import Exercise, Function
from shared.exercise_checker.files import hand_out, readers_file, short, written_in
from shared.exercise_checker.grade import grade
from shared.exercise_checker.in_models import PRINTED_WIDTH, use_answer

HOW = """

The first run makes my_exercises.py beside this file. Write there, in place of each
`raise NotImplementedError`, and run this again, as often as you like. Each exercise names the
section of the lesson, or the side page, to which it belongs; how hard it is (easy: one idea,
medium: two at once, hard: several, with special cases); and how many minutes it may take, which is
an estimate. Loops are fine, matrix products are shorter, and what you wrote for one exercise helps
in the next. Import what you like. Inputs are float64, so give new tensors the dtype of one of them:
torch.zeros(3, 5, dtype=x.dtype).
Exit code 0 means that all are done, 1 that something is left.

For teachers: --handout FOLDER writes the tasks without hints and answers. --grade PATH checks one
file or all files of a folder, and prints a table that shows no answer; with --csv FILE it also
writes a row for each student and exercise: file, exercise, passed (1 or 0), minutes (those that the
task names, so that passed · minutes are points), message, and what else of the course the file
uses. Grading runs what others wrote with your rights, so read it first, or use an account that has
nothing to lose. See data/teaching.md.
"""
HINTS = {"1": "the idea", "2": "the steps and their shapes", "3": "the whole as plain loops"}


def run_exercises(
    file: str, exercises: Sequence[Exercise], afterwards: str, argv: list[str] | None = None
) -> None:
    """Check what the reader wrote, print a line for each exercise, exit with 1 unless all are done.

    file: the path of the exercises.py. afterwards: what to say when the reader has done all.
    """
    torch.set_num_threads(1)  # tiny tensors: more threads would only wait for each other
    stubs = Path(file)
    known = {str(n): exercise for n, exercise in enumerate(exercises, start=1)}
    docstring = ast.get_docstring(ast.parse(stubs.read_text(encoding="utf-8")))
    parser = parser_for(docstring + HOW.rstrip())
    options = parser.parse_args(argv)
    chosen = {n: each for n, each in known.items() if options.exercise in (None, n, each.name)}
    if not chosen:
        names = ", ".join(f"{n} {each.name}" for n, each in known.items())
        parser.error(f"no exercise {options.exercise!r}: choose from {names}")
    if options.csv and not options.grade:
        parser.error("--csv FILE goes with --grade PATH")
    if options.handout and options.exercise:
        parser.error("--handout writes all tasks of a lesson: leave the number out")
    in_a_model = options.train or options.model is not None
    if options.exercise is None and (options.hint or in_a_model):
        example = f"python {short(stubs)} 3 ..."
        parser.error(f"with which exercise? Its number comes first: {example}")
    if options.hint:
        print(hint(*chosen.popitem(), options.hint, stubs))
        return
    try:
        if options.handout:
            print(f"made {hand_out(stubs, options.handout)}")
            return
        if options.grade:
            minutes = {n: about(stubs)[int(n) - 1][2] for n in chosen}
            grade(options.grade, chosen, minutes, options.csv)
            return
        functions = written_in(readers_file(stubs))
        if in_a_model:
            sys.exit(not use_answer(list(chosen.values()), exercises, functions, options.model))
    except ValueError as error:
        parser.error(str(error))
    if report(chosen, functions, stubs):
        sys.exit(1)
    if chosen == known:
        print(f"\n{textwrap.fill(afterwards, PRINTED_WIDTH)}")


def parser_for(description: str) -> argparse.ArgumentParser:
    parser = cli.Parser(
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("exercise", nargs="?", help="its number or its name (default: all)")
    explained = ", ".join(f"{n}: {what}" for n, what in HINTS.items())
    show = f"check nothing, show {explained}"
    used = parser.add_mutually_exclusive_group()
    used.add_argument("--hint", nargs="?", const="1", choices=HINTS, help=show)
    train = "train it in the toy model: what does it find, or cost? Plain loops take minutes"
    used.add_argument("--train", action="store_true", help=train)
    written = (
        "let a published model write with it: smollm2, or one on this machine. Loops take a minute"
    )
    used.add_argument("--in", dest="model", metavar="MODEL", help=written)
    used.add_argument(
        "--handout", type=Path, metavar="FOLDER", help="for teachers: write the tasks alone there"
    )
    grading = "for teachers: check this file, or all files of this folder"
    used.add_argument("--grade", type=Path, metavar="PATH", help=grading)
    add("--csv", type=Path, metavar="FILE", help="with --grade: write a table for a spreadsheet")
    return parser


def about(stubs: Path) -> list[tuple[str, str, int]]:
    """Returns of each exercise its section, how hard it is, and how many minutes it may take."""
    text = stubs.read_text(encoding="utf-8")
    lines = re.findall(r"^ +Lesson: (.+) · (\w+) · (\d+) min$", text, re.MULTILINE)
    return [(section, level, int(minutes)) for section, level, minutes in lines]


def hint(number: str, exercise: Exercise, which: str, stubs: Path) -> str:
    """Returns one of the three hints, and how to get the next."""
    text = f"{number} {exercise.name}, hint {which} of {len(HINTS)}: {HINTS[which]}\n\n"
    text += textwrap.indent(exercise.paragraphs[int(which) - 1], "    ")
    more = str(int(which) + 1)
    if more in HINTS:
        text += f"\n\nmore: python {short(stubs)} {number} --hint {more}, {HINTS[more]}"
    return text


def report(chosen: dict[str, Exercise], functions: dict[str, Function], stubs: Path) -> bool:
    """Print a line for each exercise, and what comes next; returns whether something is left."""
    left, lessons = [], about(stubs)
    width = max(len(section) for section, *_ in lessons)
    for number, exercise in chosen.items():
        section, level, minutes = lessons[int(number) - 1]
        result = check(exercise, functions.get(exercise.name))
        head = f"{MARK_OF[result.status]} {f'{number} {exercise.name}':26} "
        below = " " * len(head)
        text = textwrap.fill(
            result.text, PRINTED_WIDTH, initial_indent=head, subsequent_indent=below
        )
        if result.text == NOT_WRITTEN:  # a row of the table of what there is to do
            text += f"  {section:{width}}  {level:6}  {minutes:3} min"
        print(text)
        if result.status != DONE:
            left.append(number)
    if len(chosen) > 1:
        print(f"{len(chosen) - len(left)} of {len(chosen)} done")
    if left and len(chosen) > 1:
        first = left[0]
        name = chosen[first].name
        print(f"Next: {first} {name}; for a hint: python {short(stubs)} {first} --hint")
    return bool(left)
