"""What the tests of the exercises of all phases share."""

import inspect
import math
import re

import pytest
import torch
import torch.nn.functional as F

from shared.exercise_checker import DONE, NOT_WRITTEN, call, check, first_problem, ways

LARGE_NUMBERS = re.compile(r"1e1|1000")  # in the names of cases: there e to a score is inf


def each_way(exercises):
    """Every mistake of the lists with every function that makes it, as parameters of a test."""
    found = [(exercise, *way) for exercise in exercises for way in ways(exercise) if way[0] in exercise.mistakes]
    return [pytest.param(*three, id=f"{three[0].name}-{three[1].name}") for three in found]


def known_by_its_name(exercise, mistake, function, exercises):
    assert not call(exercise, function, exercise.cases()[0]).failure, "it must run in the first case"
    assert check(exercise, function).text == f"{mistake.name}: {mistake.hint}"
    assert len(mistake.hint) > 20, "a name alone teaches nothing"
    for other in exercises:
        assert first_problem(other, function, other.cases())[1], f"it passes as {other.name}"


def asked_for_as_checked(exercise, stub):
    """The stub has the arguments of the solution, says what they are and keeps the loops for --hint."""
    assert list(inspect.signature(stub).parameters) == list(inspect.signature(exercise.solution).parameters)
    assert len(stub.__doc__.splitlines()) > 5 and not re.search(r"^ *for ", stub.__doc__, re.M)
    assert check(exercise, stub).status == NOT_WRITTEN
    assert check(exercise, exercise.solution).status == DONE


def soft(scores, mask):
    """The right masked softmax, written once more: hide, softmax, zero the rows that are nothing but NaN."""
    return F.softmax(scores.masked_fill(~mask, -math.inf), dim=-1).nan_to_num(0)


MATHS = {
    "exp": torch.exp,
    "tanh": torch.tanh,
    "relu": torch.relu,
    "sqrt": math.sqrt,
    "sin": math.sin,
    "cos": math.cos,
    "concatenate": torch.cat,
    "masked_softmax": soft,
}


def by_loops(exercise, *, buffers=None, **axes):
    """A function that runs the loops of --hint word for word.

    axes: the names of the axes of inputs and results. buffers: what else the loops fill, by its axes or as it is.
    """
    signature = inspect.signature(exercise.solution)

    def function(*inputs):
        bound = signature.bind(*inputs)
        bound.apply_defaults()
        right = exercise.solution(*inputs)
        right = right if isinstance(right, tuple) else (right,)
        results = {name: torch.zeros_like(tensor) for name, tensor in zip(exercise.returns, right, strict=True)}
        names = MATHS | bound.arguments | results
        names["H"] = names.get("num_heads")
        for name, letters in axes.items():
            if names[name] is not None:
                names |= zip(letters.split(), names[name].shape, strict=True)

        def zeros(letters):
            return torch.zeros([names[axis] for axis in letters.split()], dtype=torch.float64)

        if names.get("mask", ...) is None:
            names["mask"] = zeros(axes["mask"]) == 0
        names |= {name: zeros(kind) if isinstance(kind, str) else kind for name, kind in (buffers or {}).items()}
        exec(inspect.getdoc(exercise.solution), names)
        found = tuple(names[name] for name in exercise.returns)
        return found if len(found) > 1 else found[0]

    return function


def computes_the_same(exercise, function):
    """Whether a function is right in all cases but those with large scores, where e to a score is inf."""
    cases = [case for case in exercise.cases() if not LARGE_NUMBERS.search(case.name)]
    assert cases and first_problem(exercise, function, cases)[1] == ""
