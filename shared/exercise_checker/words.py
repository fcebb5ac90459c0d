"""One call of a function, and what is wrong with what it gave, in words: an error, a shape, a sum, a number."""

import inspect
import math
import re
import textwrap
import traceback
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shared.exercise_checker.exercise import Case, Exercise, Function

NOT_WRITTEN = "not written yet"
WIDTH = 110  # of the printed lines
SHARES = ("weights", "probabilities", "rollout")  # results whose rows sum to 1, or to 0


@dataclass(frozen=True)
class Outcome:
    """What one call gave: tensors, or the kind of failure and a message. changed: names of the inputs it wrote to."""

    tensors: tuple[Tensor, ...] = ()
    failure: str = ""
    message: str = ""
    changed: tuple[str, ...] = ()


def call(exercise: Exercise, function: Function, case: Case) -> Outcome:
    """Run the function on copies of the arguments, whatever happens."""
    arguments = [a.clone() if isinstance(a, Tensor) else a for a in case.arguments]
    names = inspect.signature(exercise.solution).parameters
    given = {name: a for name, a in zip(names, case.arguments, strict=False) if isinstance(a, Tensor)}
    try:
        result = function(*arguments)
    except (Exception, SystemExit) as error:
        values = {name: names[name].default for name in names} | dict(zip(names, arguments, strict=False))
        absent = [name for name, value in values.items() if value is None]
        return failed(error, [name for name, tensor in given.items() if tensor.is_floating_point()], absent)
    tensors, complaint = unpack(result, exercise.returns)
    if complaint:
        return Outcome(failure=complaint, message=complaint)
    after = dict(zip(names, arguments, strict=False))
    changed = [name for name, tensor in given.items() if not torch.equal(tensor, after[name])]
    return Outcome(tensors, changed=tuple(changed))


def failed(error: BaseException, inputs: list[str], absent: list[str]) -> Outcome:
    """An exception as one line, with the line of the reader's file; a bare NotImplementedError is a stub.

    inputs: the names of those in float64. absent: of those that are None in this call.
    """
    frames = traceback.extract_tb(error.__traceback__)[1:]  # the first is that of call()
    if type(error) is NotImplementedError and not error.args:  # torch raises it as well, with a message
        inner, outer = frames[-1].name, frames[0].name
        return Outcome(failure=NOT_WRITTEN, message=NOT_WRITTEN + (f": it needs {inner}" if inner != outer else ""))
    lines = [frame.lineno for frame in frames if frame.filename == frames[0].filename]
    place = f" in line {lines[-1]}" if lines else ""
    kind = type(error).__name__
    message = textwrap.shorten(f"{kind}{place}: {error}", 200, placeholder=" ...")
    if inputs and re.search(r"(dtype|scalar type).*(double|float)", str(error), re.I | re.S):
        message += f"; the inputs are float64, so make new tensors with dtype={inputs[0]}.dtype"
    if absent and "None" in str(error):
        message += f"; in this call {' and '.join(absent)} is None"
    return Outcome(failure=kind, message=message)


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


def problem_of(exercise: Exercise, outcome: Outcome, case: Case) -> str:
    """What is wrong with an outcome, in words; nothing if it is right."""
    if outcome.message:
        return outcome.message
    expected = call(exercise, exercise.solution, case).tensors
    triples = zip(exercise.returns, outcome.tensors, expected, strict=True)
    wrong = {triple[0]: text for triple in triples if (text := difference(*triple, exercise, case))}
    if not wrong:
        return ""
    right = [name for name in exercise.returns if name not in wrong]
    name, text = list(wrong.items())[-1]  # the weights come before the output that is made of them
    return f"{' and '.join(right)} right, {name} not: {text}" if right else text


def difference(name: str, actual: Tensor, expected: Tensor, exercise: Exercise, case: Case) -> str:
    """What tells a tensor from the right one, in words; nothing if nothing does."""
    if actual.shape != expected.shape:
        return f"{name} has shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    if expected.dtype == torch.bool and actual.dtype != torch.bool:
        return f"{name} must be bool: got {actual.dtype}"
    kind, actual, expected = expected.dtype, actual.double(), expected.double()
    distance = torch.where(actual == expected, 0.0, (actual - expected).abs())  # where: inf - inf would be NaN
    distance = distance.nan_to_num(nan=math.inf, posinf=math.inf)
    wrong = (distance > exercise.tolerance) | ((expected == 0) & (actual != 0))
    if not wrong.any():
        return ""
    text = not_a_number(name, actual, wrong & expected.isfinite()) or the_future(name, actual, expected)
    if not text and kind != torch.bool:
        text = wrong_sum(name, actual, expected, exercise.tolerance)
    if not text:
        worst = int(torch.where(wrong, distance, -1.0).argmax())
        right = f", expected {expected.flatten()[worst]:.4g}, the largest difference"
        right = ", and that is not right" if exercise.by_hand else right
        text = f"{spot(name, actual, worst)} is {actual.flatten()[worst]:.4g}{right}"
    return text if exercise.by_hand else text + constant_factor(actual, expected, case)


def spot(name: str, tensor: Tensor, flat: int) -> str:
    """The place of a number, as weights[1, 2]."""
    place = ", ".join(str(i) for i in np.unravel_index(flat, tensor.shape))  # torch's takes a second to start
    return f"{name}[{place}]" if place else name


def not_a_number(name: str, actual: Tensor, where: Tensor) -> str:
    """NaN and infinities where finite numbers belong; nan_to_num makes some of them merely huge."""
    bad = where & ~(actual.abs() < 1e300)  # NaN is not less than anything
    if not bad.any():
        return ""
    first = int(bad.flatten().int().argmax())
    number = actual.flatten()[first].item()
    if math.isnan(number):
        reason = "NaN, not a number: 0 / 0, inf - inf and 0 · inf make it"
    elif math.isinf(number):
        reason = f"{number}: e to a large number, a division by 0 and ln 0 make it"
    else:
        reason = f"{number:.4g}: nan_to_num makes that of inf, so look where inf comes from"
    return f"{spot(name, actual, first)} is {reason}"


def the_future(name: str, actual: Tensor, expected: Tensor) -> str:
    """A weight or a True to the right of the diagonal, where there must be none."""
    if name not in ("weights", "mask") or expected.dim() < 2:
        return ""
    t_q, t_k = expected.shape[-2:]
    later = torch.ones(t_q, t_k, dtype=torch.bool).triu(t_k - t_q + 1)  # the last query stands at the last key
    seen = (actual != 0) & later
    if expected[..., later].any() or not seen.any():
        return ""
    first = int(seen.flatten().int().argmax())
    value = "True" if name == "mask" else f"{actual.flatten()[first]:.4g}"
    return f"sees the future: {spot(name, actual, first)} is {value}, but that key comes after that query"


def wrong_sum(name: str, actual: Tensor, expected: Tensor, tolerance: float) -> str:
    """A row of shares that does not sum to 1, or to 0 where nothing is visible."""
    if name not in SHARES:
        return ""
    sums, right = actual.sum(dim=-1), expected.sum(dim=-1)  # (..., T_k) -> (...)
    bad = (sums - right).abs() > actual.size(-1) * tolerance
    if not bad.any():
        return ""
    row = bad.nonzero()[0].tolist()
    which = f"row {', '.join(map(str, row))} of {name} sums" if row else f"the {name} sum"
    return f"{which} to {sums[tuple(row)]:.4g}, expected {right[tuple(row)]:.4g}"


def constant_factor(actual: Tensor, expected: Tensor, case: Case) -> str:
    """One factor between all numbers and the right ones, by its name if a size of the inputs gives it one."""
    ratio = (actual / expected)[expected != 0]
    if len(ratio) < 2 or actual[expected == 0].any() or not torch.allclose(ratio, ratio[0], rtol=1e-4, atol=0):
        return ""
    factor = ratio[0].item()
    if factor == 0:
        return ""
    if math.isclose(factor, 1, rel_tol=1e-3):
        return "; nearly right, as in float32: the inputs are float64"
    sizes = {size for a in case.arguments if isinstance(a, Tensor) for size in a.shape}
    sizes |= {a for a in case.arguments if isinstance(a, int)}
    names = {}
    for n in sorted(sizes - {0, 1}):
        names |= {f"√{n}": math.sqrt(n), f"1 / √{n}": 1 / math.sqrt(n), f"1 / {n}": 1 / n}
    name = next((f" = {name}" for name, value in names.items() if math.isclose(factor, value, rel_tol=1e-4)), "")
    return f"; off by a constant factor: each number is {factor:.4g}{name} times the right one"
