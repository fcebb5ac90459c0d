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
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from shared.exercise_checker.exercise import Case, Exercise, Function, mistakes, ways_in

DONE, WRONG, NOT_WRITTEN = "done", "wrong", "not written yet"
MARK_OF = {DONE: "+", NOT_WRITTEN: "-", WRONG: "x"}  # in what is printed
SHARES = ("weights", "probabilities", "rollout")  # results whose rows sum to 1, or to 0
ERRORS = """
    another dtype: the inputs are float64, so give new tensors the dtype of an input
        (dtype|scalar type).*([Dd]ouble|[Ff]loat) =>
    a transpose is missing, or one is too many: in a @ b the last axis of a must be as long as the
    last but one of b; key.transpose(-2, -1) exchanges the last two axes of key
        shapes cannot be multiplied =>
        first two dimensions of batch2 =>
        size mismatch, got input =>
    one yes or no asked of a whole tensor: write `if mask is not None:`, and ~, & and | where Python
    has `not`, `and` and `or`
        Boolean value of Tensor =>
    the mask may be None: then nothing is hidden, so ask for that first
        unary ~: 'NoneType' =>
        'NoneType' object (is not subscriptable|has no attribute) =>
    True or False where a mask is needed: a mask is a tensor, of shape (T_q, T_k), or None
        'bool' object (is not subscriptable|has no attribute) =>
    a mask of numbers: make it bool, with True = may attend, as by .bool() or by a comparison
        invert.* only implemented on integer and Boolean =>
    an index too large: the last of n has index n - 1
        index .* is out of bounds =>
        index out of range =>
    more parts than names, or fewer: chunk(3) makes 3 parts, split(3) makes parts of 3 numbers; in
    B, T, D = x.shape there is a name for each axis
        values to unpack =>
    cut along another axis than you meant: give it by dim=..., and -1 is the last one
        stack expects each tensor to be equal size =>
        Provided sizes .* multiply up =>
    one axis left: repeat_interleave without dim=... makes one axis of all
        batches of matrices. Got 1-D =>
    the largest of a number and a tensor: x.clamp(min=0), or torch.relu(x)
        max.. received an invalid combination of arguments - got .int, Tensor =>
    axes that do not line up: they are compared from the last one on, and must be equally long, or
    one of them 1, as [:, None] makes it
        size of tensor a =>
    view cannot reorder: after a transpose the numbers lie in memory as before; reshape copies them
        view size is not compatible =>
    a size must be a whole number: 6 / 2 is 3.0, and 6 // 2 is 3
        but got float =>
        got .float, int =>
        'float' object cannot be interpreted as an integer =>
    e to a large score is too large for a float: subtract the largest score of the row first
        math range error =>
    torch.cat needs tensors alike in all axes but the one in which they are joined: key[:, None]
    gives a key an axis for its position
        same number of dimensions: got =>
        match except in dimension =>
    dim, descending and stable must be given by their names
        argsort.* takes =>
    several results in one name: write output, weights = ...
        'Tensor' and 'tuple' =>
"""  # what torch says, in words


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
    arguments = own_copies(case.arguments)
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


def own_copies(arguments: Sequence[Any]) -> list[Any]:
    """Returns the arguments of a call with tensors of their own: a function may write to them."""
    return [a.clone() if isinstance(a, Tensor) else a for a in arguments]


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
    for said, [(pattern, _)] in ways_in(ERRORS):
        if re.search(pattern, message):
            message = f"{said} ({message})"
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
    share = name in SHARES
    sums = sums_of_rows(name, given, right, tolerance) if share else ""
    if sums:
        return sums
    distance = torch.where(wrong, distance, -1.0)
    at = (distance == distance.max()).nonzero()[0].tolist()  # the worst place
    number, expected_number = given[tuple(at)], right[tuple(at)]
    text = f"{name}[{', '.join(map(str, at))}]" if at else name
    if is_mask:
        return f"{text} is {bool(number)}: True means that query {at[-2]} may see key {at[-1]}"
    text += f" is {number:.6g}"
    if number.isnan():
        return f"{text}, not a number: 0 / 0, inf - inf and 0 · inf make it"
    if share and expected_number == 0:
        why = ": the mask hides it" if name == "weights" else ""
        return f"{text}, and must be exactly 0{why}"
    if secret:
        return f"{text}, and that is not right"
    return f"{text}, expected {expected_number:.6g}"


def sums_of_rows(name: str, given: Tensor, right: Tensor, tolerance: float) -> str:
    """Returns in words the first row of shares (..., T_k) with a wrong sum; "" if none, or NaN."""
    sums, expected = given.sum(dim=-1), right.sum(dim=-1)  # (..., T_k) -> (...)
    off = (sums - expected).abs() > given.size(-1) * tolerance
    if given.isnan().any() or not off.any():
        return ""
    row = tuple(off.nonzero()[0].tolist())
    which = f"row {', '.join(map(str, row))} of {name} sums" if row else f"the {name} sum"
    text = f"{which} to {sums[row]:.6g}: it must be {expected[row]:.4g}"
    if row and torch.allclose(given.sum(dim=-2), torch.ones(()).double()):
        text += "; each column does sum to 1, so it was divided along the wrong axis"
    return text


# ---- which mistake it is


class Report(NamedTuple):
    """One of DONE, NOT_WRITTEN and WRONG, the line for the reader, and the name of the mistake."""

    status: str
    text: str
    mistake: str = ""


def check(exercise: Exercise, function: Function | None) -> Report:
    """Tries a reader's function, and what it calls from earlier exercises where it is wrong.

    function: None where the reader's file has none of that name.
    """
    if function is None:
        return Report(NOT_WRITTEN, f"{NOT_WRITTEN}: the file has no {exercise.name}")
    report = by_itself(exercise, function)
    names = getattr(function, "__globals__", {})
    earlier = exercise.solution.__globals__.get("EXERCISES", ())
    for number, other in enumerate(earlier, start=1):
        if other.name == exercise.name or report.status != WRONG:
            break
        own = names.get(other.name)
        if own is None:
            continue
        names[other.name] = other.solution
        rest = by_itself(exercise, function)
        names[other.name] = own
        if rest.text != report.text and check(other, own).status == WRONG:  # it calls a wrong one
            text = f"your {other.name} (exercise {number}) is not right yet"
            text += "" if rest.status == DONE else f". With a right one: {rest.text}"
            return Report(WRONG, text, rest.mistake)
    return report


def by_itself(exercise: Exercise, function: Function) -> Report:
    """Try a function on one case after the other, up to the first that goes wrong."""
    right = 0  # cases
    for case in exercise.cases():
        outcome = call(exercise, function, case)
        problem, wrong = problem_of(exercise, outcome, case)
        if problem or outcome.changed:  # mistakes that show later will have their turn
            break
        right += 1
    if outcome.failure == NOT_WRITTEN:
        return Report(NOT_WRITTEN, outcome.message)
    if problem:
        where = f" ({case.name})" if case.name else ""
        known = recognise(exercise, function, right, wrong)
        mistake, _, _ = known.partition(": ")
        return Report(WRONG, known or problem + where, mistake)
    if outcome.changed:
        names = " and ".join(outcome.changed)
        why = "which its caller may still need: make a new tensor"
        return Report(WRONG, f"your function changed {names}, {why}")
    return Report(DONE, DONE)


def recognise(exercise: Exercise, function: Function, number: int, wrong: list[int]) -> str:
    """Returns name and hint of the mistake that gives what the reader's function gave, or "".

    number: of the case in which it goes wrong. First a mistake that gives all of its results, then
    one that gives a wrong one of them; of several, the one that is like it in later cases, too.
    """
    cases = exercise.cases()
    one_result = [slice(i, i + 1) for i in wrong]
    known = ""

    @cache  # plain loops are slow, and there are dozens of mistakes to compare with
    def given(i: int) -> Outcome:
        return call(exercise, function, cases[i])

    def agree(mistake: Function, i: int, parts: slice) -> bool:
        return alike(given(i), call(exercise, mistake, cases[i]), parts, exercise.tolerance)

    with warnings.catch_warnings(action="ignore"):  # about what the reader did not write
        for parts in (slice(None), *one_result):
            for name_and_hint, mistake in mistakes(exercise):
                if not agree(mistake, number, parts):
                    continue
                theirs = call(exercise, mistake, cases[number])
                _, spoilt = problem_of(exercise, theirs, cases[number])
                if spoilt != wrong:
                    continue  # one that does not show here, or spoils what is right, is another
                if is_right(exercise, mistake, cases[:number]):
                    if theirs.failure or theirs.tensors[wrong[-1]].dim():  # one number may be luck
                        known = known or name_and_hint
                    if all(agree(mistake, i, parts) for i in range(number + 1, len(cases))):
                        return name_and_hint
            if known:
                return known
    return ""


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


def is_right(exercise: Exercise, function: Function, cases: list[Case]) -> bool:
    for case in cases:
        problem, _ = problem_of(exercise, call(exercise, function, case), case)
        if problem:
            return False
    return True
