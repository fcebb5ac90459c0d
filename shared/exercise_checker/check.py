"""Which mistake it is: the reader's function on one case after the other, beside all functions that make a mistake."""

import warnings
from dataclasses import dataclass

import torch

from shared.exercise_checker.exercise import Case, Exercise, Function, pairs, ways
from shared.exercise_checker.words import NOT_WRITTEN, Outcome, call, problem_of

DONE, WRONG = "done", "wrong"


@dataclass(frozen=True)
class Report:
    """One of DONE, NOT_WRITTEN and WRONG, and the line for the reader."""

    status: str
    text: str


def check(exercise: Exercise, function: Function) -> Report:
    """Try a reader's function on one case after the other, up to the first that goes wrong."""
    cases = exercise.cases()
    outcomes, problem = first_problem(exercise, function, cases)
    if outcomes[-1].failure == NOT_WRITTEN:
        return Report(NOT_WRITTEN, outcomes[-1].message)
    complaints = []
    if problem:
        where = f" ({cases[len(outcomes) - 1].name})" if cases[len(outcomes) - 1].name else ""
        complaints.append(recognise(exercise, cases, outcomes) or problem + where)
    if outcomes[-1].changed:
        names = " and ".join(outcomes[-1].changed)
        complaints.append(f"your function changed {names}, which its caller may still need: make a new tensor")
    return Report(WRONG, "; also, ".join(complaints)) if complaints else Report(DONE, DONE)


def first_problem(exercise: Exercise, function: Function, cases: list[Case]) -> tuple[list[Outcome], str]:
    """The outcomes up to the first that is wrong, and what is wrong with it; an input that was changed also stops."""
    outcomes, problem = [], ""
    for case in cases:
        outcomes.append(call(exercise, function, case))
        problem = problem_of(exercise, outcomes[-1], case)
        if problem or outcomes[-1].changed:
            break
    return outcomes, problem


def recognise(exercise: Exercise, cases: list[Case], outcomes: list[Outcome]) -> str:
    """The name and the hint of the mistake, or of the two mistakes, that give what the reader's function gave."""
    cases = cases[: len(outcomes)]  # mistakes that show later will have their turn
    for mistake, function in ways(exercise):
        if gives(exercise, function, cases, outcomes):
            return f"{mistake.name}: {mistake.hint}"
    numbers = outcomes[-1].tensors
    if numbers and not any(tensor.isnan().any() for tensor in numbers):  # errors and NaN have many causes
        for one, other, function in pairs(exercise):
            if gives(exercise, function, cases, outcomes):
                return f"two mistakes at once: {one.name} and {other.name}. First: {one.hint}. Second: {other.hint}"
    return ""


def gives(exercise: Exercise, function: Function, cases: list[Case], outcomes: list[Outcome]) -> bool:
    """Whether a function gives these outcomes, the last of which is wrong."""
    for case, outcome in zip(cases, outcomes, strict=True):
        with warnings.catch_warnings(action="ignore"):  # about what the reader did not write
            tried = call(exercise, function, case)
        if not alike(outcome, tried, exercise.tolerance):
            return False
    return problem_of(exercise, tried, case) != ""


def alike(one: Outcome, other: Outcome, tolerance: float) -> bool:
    """Whether two calls failed in the same way or gave the same numbers, NaN included."""
    return (
        one.failure == other.failure
        and len(one.tensors) == len(other.tensors)
        and all(
            a.shape == b.shape and torch.allclose(a.double(), b.double(), rtol=0, atol=tolerance, equal_nan=True)
            for a, b in zip(one.tensors, other.tensors, strict=True)
        )
    )
