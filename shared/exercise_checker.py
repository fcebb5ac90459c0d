"""The machinery behind the exercises: it runs a reader's function and says what is wrong with it, by name if it can.

An exercise knows its solution and the usual mistakes, and each mistake is a function that makes it. All of them get the
same random inputs, in float64, of sizes that no two axes share. Where the reader's numbers are not those of the
solution but those of a mistake, that mistake is named. Where they are nobody's, the first thing that differs is
described: a shape, the sum of a row, a number, or the error that was raised, in one line.

The exercises are in the exercises.py of each phase.
"""

import argparse
import inspect
import math
import sys
import textwrap
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from shared import cli

DONE, NOT_WRITTEN, WRONG = "done", "not written yet", "wrong"
MARKS = {DONE: "+", NOT_WRITTEN: "-", WRONG: "x"}
WIDTH = 110  # of the printed lines


@dataclass(frozen=True)
class Case:
    """One call: what is special about it, and the arguments."""

    name: str
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Mistake:
    """A function that makes a usual mistake, the name of the mistake, and a sentence that helps out of it."""

    name: str
    hint: str
    variant: Callable[..., Any]


@dataclass(frozen=True)
class Exercise:
    """What is asked for. The first case is one in which every mistake runs; later cases are more special.

    returns: the names of what the function returns. A number may be off by `tolerance`, except where exactly 0 is
    right. by_hand: the numbers are themselves the task, so a message must not give them away.
    """

    solution: Callable[..., Any]
    returns: tuple[str, ...]
    cases: Callable[[], list[Case]]
    mistakes: tuple[Mistake, ...]
    tolerance: float = 1e-5
    by_hand: bool = False

    @property
    def name(self) -> str:
        return self.solution.__name__


@dataclass(frozen=True)
class Outcome:
    """What one call gave: tensors, or the kind of failure and a message. changed: names of the inputs it wrote to."""

    tensors: tuple[Tensor, ...] = ()
    failure: str = ""
    message: str = ""
    changed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    """One of DONE, NOT_WRITTEN and WRONG, and the line for the reader."""

    status: str
    text: str


def draw(*shapes: tuple[int, ...], seed: int = 0) -> list[Tensor]:
    """Random numbers in float64, the same each time, and small enough that softmax and tanh do not saturate."""
    generator = torch.Generator().manual_seed(seed)
    return [0.5 * torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def call(exercise: Exercise, function: Callable[..., Any], case: Case) -> Outcome:
    """Run the function on copies of the arguments, whatever happens."""
    arguments = [a.clone() if isinstance(a, Tensor) else a for a in case.arguments]
    try:
        result = function(*arguments)
    except Exception as error:
        return failed(error)
    tensors, complaint = unpack(result, exercise.returns)
    if complaint:
        return Outcome(failure=complaint, message=complaint)
    names = inspect.signature(exercise.solution).parameters
    changed = [
        name
        for name, before, after in zip(names, case.arguments, arguments, strict=False)
        if isinstance(before, Tensor) and not (before.shape == after.shape and torch.equal(before, after))
    ]
    return Outcome(tensors, changed=tuple(changed))


def failed(error: Exception) -> Outcome:
    """An exception as one line, with the line of the reader's file; a bare NotImplementedError is a stub."""
    frames = traceback.extract_tb(error.__traceback__)[1:]  # the first is that of call()
    if type(error) is NotImplementedError and not error.args:  # torch raises it as well, with a message
        inner, outer = frames[-1].name, frames[0].name
        return Outcome(failure=NOT_WRITTEN, message=NOT_WRITTEN + (f": it needs {inner}" if inner != outer else ""))
    lines = [frame.lineno for frame in frames if frame.filename == frames[0].filename]
    place = f" in line {lines[-1]}" if lines else ""
    kind = type(error).__name__
    return Outcome(failure=kind, message=textwrap.shorten(f"{kind}{place}: {error}", 200, placeholder=" ..."))


def unpack(result: Any, names: tuple[str, ...]) -> tuple[tuple[Tensor, ...], str]:
    """What a function returned as a tuple of tensors, and a complaint if that is not possible."""
    parts = result if len(names) > 1 else (result,)
    if not isinstance(parts, tuple | list) or len(parts) != len(names):
        return (), f"must return {', '.join(names)}: got {kind_of(result)}"
    if any(part is ... or (isinstance(part, tuple | list) and any(p is ... for p in part)) for part in parts):
        return (), NOT_WRITTEN
    tensors = []
    for name, part in zip(names, parts, strict=True):
        try:
            tensors.append(torch.as_tensor(part).detach())
        except (TypeError, ValueError, RuntimeError):
            return (), f"{name} must be a tensor or numbers: got {kind_of(part)}"
    return tuple(tensors), ""


def kind_of(result: Any) -> str:
    if result is None:
        return "None; is there a return?"
    if isinstance(result, Tensor):
        return f"one tensor of shape {tuple(result.shape)}"
    return f"{len(result)} values" if isinstance(result, tuple) else f"{result!r:.40} ({type(result).__name__})"


def difference(name: str, actual: Tensor, expected: Tensor, exercise: Exercise) -> str:
    """The first thing in which a tensor differs from the right one, in words; nothing if it does not."""
    if actual.shape != expected.shape:
        return f"{name} has shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    if expected.dtype == torch.bool and actual.dtype != torch.bool:
        return f"{name} must be bool: got {actual.dtype}"
    actual, expected = actual.double(), expected.double()
    distance = torch.where(actual == expected, 0.0, (actual - expected).abs())  # where: inf - inf would be NaN
    distance = distance.nan_to_num(nan=math.inf, posinf=math.inf)
    wrong = (distance > exercise.tolerance) | ((expected == 0) & (actual != 0))
    if not wrong.any():
        return ""
    if name == "weights":
        sums, right_sums = actual.sum(dim=-1), expected.sum(dim=-1)  # (..., T_q, T_k) -> (..., T_q)
        bad = ~((sums - right_sums).abs() <= actual.size(-1) * exercise.tolerance)  # NaN is bad, too
        if bad.any():
            row = bad.nonzero()[0].tolist()
            which = f"row {', '.join(map(str, row))} of weights sums" if row else "the weights sum"
            return f"{which} to {sums[tuple(row)]:.4g}, expected {right_sums[tuple(row)]:.4g}"
    largest = int(torch.where(wrong, distance, -1.0).argmax())
    place = ", ".join(str(int(i)) for i in torch.unravel_index(torch.tensor(largest), actual.shape))
    if exercise.by_hand:
        return f"{name}[{place}] is {actual.flatten()[largest]:.4g}, and that is not right"
    numbers = f"{actual.flatten()[largest]:.4g}, expected {expected.flatten()[largest]:.4g}"
    return f"{name}[{place}] is {numbers}, the largest difference"


def problem_of(exercise: Exercise, outcome: Outcome, case: Case) -> str:
    """What is wrong with an outcome, in words; nothing if it is right."""
    if outcome.message:
        return outcome.message
    expected = call(exercise, exercise.solution, case).tensors
    # backwards, because weights come before the output that is made of them
    triples = reversed(list(zip(exercise.returns, outcome.tensors, expected, strict=True)))
    return next((text for triple in triples if (text := difference(*triple, exercise))), "")


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


def recognise(exercise: Exercise, cases: list[Case], outcomes: list[Outcome]) -> Mistake | None:
    """The mistake that gives what the reader's function gave, in the case that went wrong and in all before it."""
    mistakes = exercise.mistakes
    if len(exercise.returns) > 1:
        hint = f"the task says: return {', '.join(exercise.returns)}"
        mistakes += (Mistake("returned in the wrong order", hint, lambda *inputs: exercise.solution(*inputs)[::-1]),)
    for mistake in mistakes:
        # only as far as the reader's function came: mistakes that show later will have their turn
        tried = [call(exercise, mistake.variant, case) for case in cases[: len(outcomes)]]
        same = all(alike(a, b, exercise.tolerance) for a, b in zip(outcomes, tried, strict=True))
        if same and problem_of(exercise, tried[-1], cases[len(tried) - 1]):
            return mistake
    return None


def check(exercise: Exercise, function: Callable[..., Any]) -> Report:
    """Try a reader's function on one case after the other, up to the first that goes wrong."""
    cases, outcomes = exercise.cases(), []
    for case in cases:
        outcome = call(exercise, function, case)
        outcomes.append(outcome)
        if outcome.failure == NOT_WRITTEN:
            return Report(NOT_WRITTEN, outcome.message)
        complaints = []
        if problem := problem_of(exercise, outcome, case):
            mistake = recognise(exercise, cases, outcomes)
            where = f" ({case.name})" if case.name else ""
            complaints.append(f"{mistake.name}: {mistake.hint}" if mistake else problem + where)
        if outcome.changed:
            names = " and ".join(outcome.changed)
            complaints.append(f"your function changed {names}, which its caller may still need: make a new tensor")
        if complaints:
            return Report(WRONG, "; also, ".join(complaints))
    return Report(DONE, DONE)


def main(
    description: str | None,
    exercises: Sequence[Exercise],
    functions: Sequence[Callable[..., Any]],
    argv: list[str] | None = None,
) -> None:
    """The command line of an exercises.py: check the functions, print a line for each, exit with 1 unless all are done.

    functions: the reader's, in the order of the exercises.
    """
    parser = cli.Parser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("exercise", nargs="?", help="its number or its name (default: all)")
    parser.add_argument("--solutions", action="store_true", help="check the reference solutions instead of yours")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)  # tiny tensors: more threads would only wait for each other
    numbers = [
        number
        for number, exercise in enumerate(exercises, start=1)
        if options.exercise in (None, str(number), exercise.name)
    ]
    if not numbers:
        names = ", ".join(f"{number} {exercise.name}" for number, exercise in enumerate(exercises, start=1))
        parser.error(f"no exercise {options.exercise!r}: choose from {names}")
    done = 0
    for number in numbers:
        exercise = exercises[number - 1]
        report = check(exercise, exercise.solution if options.solutions else functions[number - 1])
        head = f"{MARKS[report.status]} {number} {exercise.name:24} "
        print(textwrap.fill(report.text, WIDTH, initial_indent=head, subsequent_indent=" " * len(head)))
        done += report.status == DONE
    if len(numbers) > 1:
        print(f"{done} of {len(numbers)} done")
    if done < len(numbers):
        sys.exit(1)
