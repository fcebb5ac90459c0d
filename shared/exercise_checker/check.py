"""What is wrong with a reader's function: the mistake that it makes, or in words an error, a shape,
a sum, a number.

It is tried on one case after the other, beside all functions that make a mistake.
"""

import inspect
import math
import re
import textwrap
import traceback
import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from shared.exercise_checker.exercise import Case, Exercise, Function, mistakes

DONE, WRONG, NOT_WRITTEN = "done", "wrong", "not written yet"
SHARES = ("weights", "probabilities", "rollout")  # results whose rows sum to 1, or to 0
NEARLY = 0.001  # a sum that is off by less is told by how much, since four digits do not show it


@dataclass(frozen=True)
class Outcome:
    """What one call gave: tensors, or the kind of failure and a message. changed: names of the
    inputs it wrote to.
    """

    tensors: tuple[Tensor, ...] = ()
    failure: str = ""
    message: str = ""
    changed: tuple[str, ...] = ()


def call(exercise: Exercise, function: Function, case: Case) -> Outcome:
    """Run the function on copies of the arguments, whatever happens."""
    arguments = [a.clone() if isinstance(a, Tensor) else a for a in case.arguments]
    inputs = dict(
        zip(inspect.signature(exercise.solution).parameters, case.arguments, strict=False)
    )
    try:
        result = function(*arguments)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # sys.exit, too, and whatever else a reader raises
        return failed(error, inputs)
    tensors, complaint = tensors_of(result, exercise.names)
    pairs = zip(inputs.items(), arguments, strict=True)
    changed = [
        name for (name, old), new in pairs if isinstance(old, Tensor) and not torch.equal(old, new)
    ]
    return Outcome(tensors, complaint, complaint, tuple(changed))


def message_of(error: BaseException) -> str:
    """What an exception says; a reader may have written it, so that even this can fail."""
    try:
        return str(error)
    except Exception:
        return "an exception whose message cannot be shown"


def failed(error: BaseException, inputs: dict[str, Any]) -> Outcome:
    """An exception as one line, with the line of the reader's file; a bare NotImplementedError is a
    stub.
    """
    frames = traceback.extract_tb(error.__traceback__)[1:]  # the first is that of call()
    if (
        type(error) is NotImplementedError and not error.args
    ):  # torch raises it as well, with a message
        inner, outer = frames[-1].name, frames[0].name
        return Outcome(
            failure=NOT_WRITTEN,
            message=NOT_WRITTEN + (f": it needs {inner}" if inner != outer else ""),
        )
    lines = [frame.lineno for frame in frames if frame.filename == frames[0].filename]
    kind, place = type(error).__name__, f" in line {lines[-1]}" if lines else ""
    said = message_of(error)
    message = textwrap.shorten(f"{kind}{place}: {said}", 200, placeholder=" ...")
    if re.search(r"(dtype|scalar type).*(double|float)", said, re.I | re.S):
        message += "; the inputs are float64: give new tensors the dtype of an input"
    absent = [name for name, a in inputs.items() if a is None]
    if absent and "None" in said:
        message += f"; in this call {' and '.join(absent)} is None"
    return Outcome(failure=kind, message=message)


def tensors_of(result: Any, names: list[str]) -> tuple[tuple[Tensor, ...], str]:
    """What a function returned as a tuple of tensors, and a complaint if that is not possible."""
    parts = result if len(names) > 1 else (result,)
    if not isinstance(parts, tuple | list) or len(parts) != len(names):
        return (), f"must return {', '.join(names)}: got {kind_of(result)}"
    tensors = []
    for name, part in zip(names, parts, strict=True):
        if isinstance(part, tuple | list) and any(p is ... for p in part):
            return (), NOT_WRITTEN
        try:
            tensors.append(torch.as_tensor(part).detach().to_dense())
        except (TypeError, ValueError, RuntimeError):
            return (), f"{name} must be a tensor or numbers: got {kind_of(part)}"
    return tuple(tensors), ""


def kind_of(result: Any) -> str:
    if result is None:
        return "None; is there a return?"
    if isinstance(result, Tensor):
        return f"one tensor of shape {tuple(result.shape)}"
    if isinstance(result, tuple | list):
        return f"{len(result)} values; of several tensors torch.stack or torch.cat makes one"
    return f"{result!r:.40} ({type(result).__name__})"


def problem_of(exercise: Exercise, outcome: Outcome, case: Case) -> tuple[str, list[int]]:
    """What is wrong with an outcome, in words, "" if nothing is; and the numbers of the wrong
    results, the last first.

    The last one is told: the output is made of the weights, and the weights come behind it.
    """
    if outcome.message:
        return outcome.message, [0]
    expected = call(exercise, exercise.solution, case).tensors
    wrong, right, told = [], [], ""
    for i, name in enumerate(exercise.names):
        text = difference(
            name, outcome.tensors[i], expected[i], exercise.tolerance, secret=not case.arguments
        )
        if text:
            wrong.insert(0, i)
            told = text
        else:
            right.append(name)
    if wrong and right:
        told = f"{' and '.join(right)} right, {exercise.names[wrong[0]]} not: {told}"
    return told, wrong


def difference(
    name: str, actual: Tensor, expected: Tensor, tolerance: float, *, secret: bool
) -> str:
    """What tells a tensor from the right one, in words. secret: the numbers are the task, so they
    are not told.
    """
    if actual.shape != expected.shape:
        return f"{name} has shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    if actual.is_complex() or (expected.dtype == torch.bool and actual.dtype != torch.bool):
        return f"{name} must be {'bool' if expected.dtype == torch.bool else 'real'}: got {actual.dtype}"
    given, right = actual.double(), expected.double()
    distance = torch.where(given == right, 0.0, (given - right).abs()).nan_to_num(
        math.inf, math.inf
    )
    wrong = (distance > tolerance) | ((right == 0) & (given != 0))
    if not wrong.any():
        return ""
    sums = sums_of_rows(name, actual, expected, tolerance) if name in SHARES else ""
    if sums:
        return sums
    worst = int(torch.where(wrong, distance, -1.0).argmax())
    place = ", ".join(
        str(i) for i in np.unravel_index(worst, actual.shape)
    )  # torch's takes a second to start
    found, wanted = given.flatten()[worst], right.flatten()[worst]
    text = f"{name}[{place}] is {found:.6g}" if place else f"{name} is {found:.6g}"
    if found.isnan():
        return f"{text}, not a number: 0 / 0, inf - inf and 0 · inf make it"
    return f"{text}, {'and that is not right' if secret else f'expected {wanted:.6g}'}"


def sums_of_rows(name: str, actual: Tensor, expected: Tensor, tolerance: float) -> str:
    """The first row of shares (..., T_k) with another sum than expected, in words; "" if there is
    none, or NaN.
    """
    sums, right = actual.double().sum(dim=-1), expected.double().sum(dim=-1)  # (..., T_k) -> (...)
    off = (sums - right).abs() > actual.size(-1) * tolerance
    if actual.isnan().any() or not off.any():
        return ""
    row = tuple(off.nonzero()[0].tolist())
    which = f"row {', '.join(map(str, row))} of {name} sums" if row else f"the {name} sum"
    off_by = (sums - right)[row].abs()
    if off_by > NEARLY:
        return f"{which} to {sums[row]:.4g}, expected {right[row]:.4g}"
    coarse = actual.dtype in (torch.float16, torch.bfloat16)
    why = f"; the result is {actual.dtype}, and the inputs are float64" if coarse else ""
    return f"{which} to {right[row]:.4g} only nearly, off by {off_by:.0e}{why}"


# ---- which mistake it is


class Report(NamedTuple):
    """One of DONE, NOT_WRITTEN and WRONG, and the line for the reader."""

    status: str
    text: str


def check(exercise: Exercise, function: Function) -> Report:
    """Try a reader's function on one case after the other, up to the first that goes wrong."""
    cases, outcomes = exercise.cases(), []
    for case in cases:
        outcomes.append(call(exercise, function, case))
        problem, wrong = problem_of(exercise, outcomes[-1], case)
        if problem or outcomes[-1].changed:  # mistakes that show later will have their turn
            break
    if outcomes[-1].failure == NOT_WRITTEN:
        return Report(NOT_WRITTEN, outcomes[-1].message)
    complaints = []
    if problem:
        where = f" ({case.name})" if case.name else ""
        complaints.append(
            recognise(exercise, cases[: len(outcomes)], outcomes, wrong) or problem + where
        )
    if outcomes[-1].changed:
        names = " and ".join(outcomes[-1].changed)
        complaints.append(
            f"your function changed {names}, which its caller may still need: make a new tensor"
        )
    return Report(WRONG, "; also, ".join(complaints)) if complaints else Report(DONE, DONE)


def recognise(
    exercise: Exercise, cases: list[Case], outcomes: list[Outcome], wrong: list[int]
) -> str:
    """What is said of the mistake that gives all that the reader's function gave, or one wrong
    result; "" if none.
    """
    with warnings.catch_warnings(action="ignore"):  # about what the reader did not write
        tried = [
            (said, function, call(exercise, function, cases[-1]))
            for said, function in mistakes(exercise)
        ]
        for parts in (slice(None), *(slice(i, i + 1) for i in wrong)):
            for said, function, outcome in tried:
                if alike(outcomes[-1], outcome, parts, exercise.tolerance) and shows_first(
                    exercise, function, cases
                ):
                    return said
    return ""


def shows_first(exercise: Exercise, function: Function, cases: list[Case]) -> bool:
    """Whether a function is wrong in the last of these cases alone."""
    *right, wrong = [
        not problem_of(exercise, call(exercise, function, case), case)[0] for case in cases
    ]
    return all(right) and not wrong


def alike(one: Outcome, other: Outcome, parts: slice, tolerance: float) -> bool:
    """Whether two calls failed in the same way or gave the same numbers in these results, NaN
    included.
    """
    return one.failure == other.failure and all(
        a.shape == b.shape
        and torch.allclose(a.double(), b.double(), rtol=0, atol=tolerance, equal_nan=True)
        for a, b in zip(one.tensors[parts], other.tensors[parts], strict=True)
    )
