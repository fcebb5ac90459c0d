"""The machinery behind the exercises: it runs a reader's function and says what is wrong with it, by name if it can.

Solution, mistakes and the reader's function get the same random inputs, in float64, of sizes that no two axes share.
Where the reader's numbers are those of a mistake, it is named; where they are nobody's, they are described in words.
exercise.py says what an exercise is made of, check.py what is wrong and which mistake it is, command.py is the reader's
file and the command line, and train.py makes a function the attention of the toy model and says what it loses there.
"""

# ruff: noqa: F401
from shared.exercise_checker.check import DONE, NOT_WRITTEN, WRONG, call, check
from shared.exercise_checker.command import about, run
from shared.exercise_checker.exercise import Case, Exercise, draw, edited, exercise, mistakes
