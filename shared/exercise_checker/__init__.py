"""The machinery behind the exercises: it runs a reader's function and says what is wrong with it, by name if it can.

An exercise knows its solution and the usual mistakes. A mistake is an edit of the solution's text: some words are
replaced, and what comes out makes the mistake. Solution, mistakes and the reader's function get the same random
inputs, in float64, of sizes that no two axes share. Where the reader's numbers are not those of the solution but those
of a mistake, that mistake is named; after the single ones, two at once are tried. Where the numbers are nobody's, they
are described in words.

    exercise.py   what an exercise is made of, and how an edit becomes a function that makes the mistake
    words.py      one call, and what is wrong with it in words
    check.py      which mistake it is
    command.py    the reader's file and the command line
"""

# ruff: noqa: F401
from shared.exercise_checker.check import DONE, WRONG, check, first_problem
from shared.exercise_checker.command import run
from shared.exercise_checker.exercise import LEVELS, Case, Exercise, Mistake, draw, edit, edited, ways
from shared.exercise_checker.words import NOT_WRITTEN, WIDTH, call
