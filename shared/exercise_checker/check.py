"""Which mistake it is: the reader's function on one case after the other, beside all functions that make a mistake."""

import warnings
from typing import NamedTuple

import torch

from shared.exercise_checker.exercise import Case, Exercise, Function, mistakes
from shared.exercise_checker.words import NOT_WRITTEN, Outcome, call, problem_of

DONE, WRONG = "done", "wrong"


class Report(NamedTuple):
    """One of DONE, NOT_WRITTEN and WRONG, and the line for the reader."""

    status: str
    text: str


def check(exercise: Exercise, function: Function) -> Report:
    """Try a reader's function on one case after the other, up to the first that goes wrong."""
    cases, outcomes = exercise.cases(), []
    for case in cases:
        outcomes.append(call(exercise, function, case))
        problem, which = problem_of(exercise, outcomes[-1], case)
        if problem or outcomes[-1].changed:  # mistakes that show later will have their turn
            break
    if outcomes[-1].failure == NOT_WRITTEN:
        return Report(NOT_WRITTEN, outcomes[-1].message)
    complaints = []
    if problem:
        where = f" ({case.name})" if case.name else ""
        complaints.append(recognise(exercise, cases[: len(outcomes)], outcomes, which) or problem + where)
    if outcomes[-1].changed:
        names = " and ".join(outcomes[-1].changed)
        complaints.append(f"your function changed {names}, which its caller may still need: make a new tensor")
    return Report(WRONG, "; also, ".join(complaints)) if complaints else Report(DONE, DONE)


def recognise(exercise: Exercise, cases: list[Case], outcomes: list[Outcome], which: int) -> str:
    """What is said of the mistake that gives all that the reader's function gave, or its wrong result; "" if none."""
    with warnings.catch_warnings(action="ignore"):  # about what the reader did not write
        tried = [(said, function, call(exercise, function, cases[-1])) for said, function in mistakes(exercise)]
        for parts in (slice(None), slice(which, which + 1)):
            for said, function, outcome in tried:
                if alike(outcomes[-1], outcome, parts, exercise.tolerance) and shows_first(exercise, function, cases):
                    return said
    return ""


def shows_first(exercise: Exercise, function: Function, cases: list[Case]) -> bool:
    """Whether a function is wrong in the last of these cases alone."""
    *right, wrong = [not problem_of(exercise, call(exercise, function, case), case)[0] for case in cases]
    return all(right) and not wrong


def alike(one: Outcome, other: Outcome, parts: slice, tolerance: float) -> bool:
    """Whether two calls failed in the same way or gave the same numbers in these results, NaN included."""
    return one.failure == other.failure and all(
        a.shape == b.shape and torch.allclose(a.double(), b.double(), rtol=0, atol=tolerance, equal_nan=True)
        for a, b in zip(one.tensors[parts], other.tensors[parts], strict=True)
    )
