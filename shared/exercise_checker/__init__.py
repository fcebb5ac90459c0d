"""The machinery behind the exercises: it runs a reader's function and says what is wrong with it, by name if it can.

A mistake is an edit of the solution's text, and what comes out makes the mistake. Solution, mistakes and the reader's
function get the same random inputs, in float64, of sizes that no two axes share. Where the reader's numbers are those
of a mistake, it is named; where they are nobody's, they are described in words.

    exercise.py   what an exercise is made of, and how an edit becomes a function that makes the mistake
    words.py      one call, and what is wrong with it in words
    check.py      which mistake it is
    command.py    the reader's file and the command line
    in_model.py   a function as the attention of the toy model
    train.py      what it loses and finds there
"""

# ruff: noqa: F401
from shared.exercise_checker.check import DONE, WRONG, check
from shared.exercise_checker.command import about, run
from shared.exercise_checker.exercise import Case, Exercise, draw, edited, exercise, ways
from shared.exercise_checker.words import NOT_WRITTEN, call
