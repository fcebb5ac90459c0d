"""What is wrong with a reader's function?

It is tried on one case after the other, beside all functions that make a known mistake. If it gives
what one of them gives, that mistake is named. Else the error, the shape, the sum or the number that
is wrong is said in words.
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
MARK_OF = {DONE: "+", NOT_WRITTEN: "-", WRONG: "x"}  # in what is printed
SHARES = ("weights", "probabilities", "rollout")  # results whose rows sum to 1, or to 0


@dataclass(frozen=True)
class Outcome:
    """What one call gave: tensors, or the kind of failure and a message.

    changed: the names of the inputs that the function wrote to.
    """

    tensors: tuple[Tensor, ...] = ()
    failure: str = ""
    message: str = ""
    changed: tuple[str, ...] = ()


def call(exercise: Exercise, function: Function, case: Case) -> Outcome:
    """Returns what the function gives for copies of the arguments, whatever happens."""
    arguments = [a.clone() if isinstance(a, Tensor) else a for a in case.arguments]
    try:
        result = function(*arguments)
    except (Exception, SystemExit) as error:
        return failed(error)
    tensors, complaint = tensors_of(result, exercise.names)
    changed = []
    names = inspect.signature(exercise.solution).parameters
    for name, old, new in zip(names, case.arguments, arguments, strict=False):
        if isinstance(new, Tensor) and not torch.equal(old, new):
            changed.append(name)
    return Outcome(tensors, complaint, complaint, tuple(changed))


def failed(error: BaseException) -> Outcome:
    """Returns what a call gave that raised this.

    A NotImplementedError without a message is a stub that is not written yet; torch raises it with
    one.
    """
    frames = traceback.extract_tb(error.__traceback__)[1:]  # the first is that of call()
    if type(error) is NotImplementedError and not error.args:
        inner, outer = frames[-1].name, frames[0].name
        needs = f": it needs {inner}" if inner != outer else ""
        return Outcome(failure=NOT_WRITTEN, message=NOT_WRITTEN + needs)
    message = error_in_words(error, frames[0].filename if frames else "")
    if re.search(r"(dtype|scalar type).*(double|float)", str(error), re.I | re.S):
        message += "; the inputs are float64: give new tensors the dtype of an input"
    return Outcome(failure=type(error).__name__, message=message)


def error_in_words(error: BaseException, file: str) -> str:
    """Returns an exception as one line, with the last line of this file that it came through."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == file]
    message = str(error)
    if isinstance(error, SyntaxError) and error.filename == file:
        lines, message = [error.lineno], error.msg
    where = f" in line {lines[-1]}" if lines else ""
    return textwrap.shorten(f"{type(error).__name__}{where}: {message}", 200, placeholder=" ...")


def tensors_of(result: Any, names: list[str]) -> tuple[tuple[Tensor, ...], str]:
    """Returns the result as a tuple of tensors, and a complaint if that is not possible."""
    parts = result if len(names) > 1 else (result,)
    if not isinstance(parts, tuple | list) or len(parts) != len(names):
        return (), f"must return {', '.join(names)}: got {result_in_words(result)}"
    tensors = []
    for name, part in zip(names, parts, strict=True):
        if isinstance(part, tuple | list) and any(p is ... for p in part):
            return (), NOT_WRITTEN
        try:
            tensors.append(torch.as_tensor(part).detach())
        except (TypeError, ValueError, RuntimeError):
            return (), f"{name} must be a tensor or numbers: got {result_in_words(part)}"
    return tuple(tensors), ""


def result_in_words(result: Any) -> str:
    if result is None:
        return "None; is there a return?"
    if isinstance(result, Tensor):
        return f"one tensor of shape {tuple(result.shape)}"
    if isinstance(result, tuple | list):
        return f"{len(result)} values; of several tensors torch.stack or torch.cat makes one"
    return f"{result!r:.40} ({type(result).__name__})"


def problem_of(exercise: Exercise, outcome: Outcome, case: Case) -> tuple[str, list[int]]:
    """Returns in words what is wrong with an outcome, or ""; and which results are, the last first.

    The last one is said, because the output is made of the weights, and the weights come behind it.
    """
    if outcome.message:
        return outcome.message, [0]
    expected = call(exercise, exercise.solution, case).tensors
    wrong, right, words = [], [], ""
    for i, name in enumerate(exercise.names):
        secret = not case.arguments  # then the numbers are the task
        pair = (outcome.tensors[i], expected[i])
        text = difference_in_words(name, *pair, exercise.tolerance, secret=secret)
        if text:
            wrong.insert(0, i)
            words = text
        else:
            right.append(name)
    if wrong and right:
        words = f"{' and '.join(right)} right, {exercise.names[wrong[0]]} not: {words}"
    return words, wrong


def difference_in_words(
    name: str, actual: Tensor, expected: Tensor, tolerance: float, *, secret: bool
) -> str:
    """Returns what tells a tensor from the right one, or "". secret: without the right number."""
    if actual.shape != expected.shape:
        return f"{name} has shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    is_mask = expected.dtype == torch.bool
    if is_mask and actual.dtype != torch.bool:
        return f"{name} must be bool: got {actual.dtype}"
    given, right = actual.double(), expected.double()
    distance = torch.where(given == right, 0.0, (given - right).abs())
    distance = distance.nan_to_num(math.inf, math.inf)
    wrong = (distance > tolerance) | ((right == 0) & (given != 0))
    if not wrong.any():
        return ""
    sums = sums_of_rows(name, actual, expected, tolerance) if name in SHARES else ""
    if sums:
        return sums
    worst = int(torch.where(wrong, distance, -1.0).argmax())
    # NumPy's, since torch's own takes a second to start.
    indices = ", ".join(str(i) for i in np.unravel_index(worst, actual.shape))
    number = given.flatten()[worst]
    text = f"{name}[{indices}] is {number:.6g}" if indices else f"{name} is {number:.6g}"
    if number.isnan():
        return f"{text}, not a number: 0 / 0, inf - inf and 0 · inf make it"
    if secret:
        return f"{text}, and that is not right"
    return f"{text}, expected {right.flatten()[worst]:.6g}"


def sums_of_rows(name: str, actual: Tensor, expected: Tensor, tolerance: float) -> str:
    """Returns in words the first row of shares (..., T_k) with a wrong sum; "" if none, or NaN."""
    sums, right = actual.double().sum(dim=-1), expected.double().sum(dim=-1)  # (..., T_k) -> (...)
    off = (sums - right).abs() > actual.size(-1) * tolerance
    if actual.isnan().any() or not off.any():
        return ""
    row = tuple(off.nonzero()[0].tolist())
    which = f"row {', '.join(map(str, row))} of {name} sums" if row else f"the {name} sum"
    return f"{which} to {sums[row]:.6g}, expected {right[row]:.4g}"


# ---- which mistake it is


class Report(NamedTuple):
    """One of DONE, NOT_WRITTEN and WRONG, the line for the reader, and the name of the mistake."""

    status: str
    text: str
    mistake: str = ""


def check(exercise: Exercise, function: Function | None) -> Report:
    """Try a reader's function on one case after the other, up to the first that goes wrong.

    function: None where the reader's file has none of that name.
    """
    if function is None:
        return Report(NOT_WRITTEN, f"{NOT_WRITTEN}: the file has no {exercise.name}")
    cases = []
    for case in exercise.cases():
        cases.append(case)
        outcome = call(exercise, function, case)
        problem, wrong = problem_of(exercise, outcome, case)
        if problem or outcome.changed:  # mistakes that show later will have their turn
            break
    if outcome.failure == NOT_WRITTEN:
        return Report(NOT_WRITTEN, outcome.message)
    if problem:
        where = f" ({case.name})" if case.name else ""
        known = recognise(exercise, cases, outcome, wrong)
        mistake, _, _ = known.partition(": ")
        return Report(WRONG, known or problem + where, mistake)
    if outcome.changed:
        names = " and ".join(outcome.changed)
        why = "which its caller may still need: make a new tensor"
        return Report(WRONG, f"your function changed {names}, {why}")
    return Report(DONE, DONE)


def recognise(exercise: Exercise, cases: list[Case], given: Outcome, wrong: list[int]) -> str:
    """Returns name and hint of the mistake that gives what the reader's function gave, or "".

    First one that gives all of its results, then one that gives a wrong one of them. In the cases
    before the last one, the reader's function was right.
    """
    *before, last = cases
    everything = slice(None)
    one_result = [slice(i, i + 1) for i in wrong]
    with warnings.catch_warnings(action="ignore"):  # about what the reader did not write
        for parts in (everything, *one_result):
            for name_and_hint, function in mistakes(exercise):
                same = alike(given, call(exercise, function, last), parts, exercise.tolerance)
                if not same or is_right(exercise, function, [last]):
                    continue  # a mistake that does not show here is another one
                if is_right(exercise, function, before):
                    return name_and_hint
    return ""


def is_right(exercise: Exercise, function: Function, cases: list[Case]) -> bool:
    for case in cases:
        problem, _ = problem_of(exercise, call(exercise, function, case), case)
        if problem:
            return False
    return True


def alike(one: Outcome, other: Outcome, parts: slice, tolerance: float) -> bool:
    """Returns whether two calls failed alike, or gave the same numbers in these results."""
    if one.failure != other.failure:
        return False
    for a, b in zip(one.tensors[parts], other.tensors[parts], strict=True):
        if a.shape != b.shape:
            return False
        if not torch.allclose(a.double(), b.double(), rtol=0, atol=tolerance, equal_nan=True):
            return False
    return True
