"""What is an exercise made of? A solution, inputs to try it on, hints, and the usual mistakes.

A mistake is an edit of the solution's text. A table of mistakes has what is said, which is a name
and a hint; below it, indented, stands a line for each way to make the mistake:

    not divided by √d_k: the dot products are too large, so the softmax comes out too sharp
        some words of the solution => other words
        and more words => other words, an edit of the same way
"""

import ast
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

Function = Callable[..., Any]
Edits = list[tuple[str, str]]  # old words, new words
OURS = ("shared.", "phase")  # where the helpers of a solution stand


class Case(NamedTuple):
    """One call: what is special about it, and the arguments."""

    name: str
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True, eq=False)
class Exercise:
    """What is asked for.

    solution: its docstring has the idea, the steps with their shapes, the whole as plain loops and
    a table of mistakes, with blank lines between. returns: the names of what the function returns.
    cases: in the first, every mistake runs; later ones are more special. tables: mistakes that
    several exercises share. tolerance: how far a number may be off, except where exactly 0 is
    right.
    """

    solution: Function
    returns: str
    cases: Callable[[], list[Case]]
    tables: str = ""
    tolerance: float = 1e-5

    def __call__(self, *inputs: Any) -> Any:
        """What the solution gives: the solution of one exercise may use that of another."""
        return self.solution(*inputs)

    @property
    def name(self) -> str:
        return self.solution.__name__

    @property
    def names(self) -> list[str]:
        return self.returns.split(", ")

    @property
    def paragraphs(self) -> list[str]:
        """The three hints, from the idea to the whole, and the table of mistakes."""
        return inspect.getdoc(self.solution).split("\n\n")


def exercise(
    returns: str, cases: Callable[[], list[Case]], tables: str = "", tolerance: float = 1e-5
) -> Any:
    """Decorates a solution: it becomes the Exercise."""
    return lambda solution: Exercise(solution, returns, cases, tables, tolerance)


def draw(*shapes: tuple[int, ...], seed: int = 0) -> list[Tensor]:
    """Returns random numbers in float64, small enough that softmax and tanh do not saturate."""
    generator = torch.Generator().manual_seed(seed)
    return [0.5 * torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def ways_in(table: str) -> list[tuple[str, Edits]]:
    """Returns of a table of mistakes each way to make one, behind the mistake's name and hint.

    Names and hints stand at the margin and edits are indented. Either may go on in the next line.
    """
    name_and_hint, ways = "", []
    goes_on = False  # whether the line before was at the margin, too
    for line in textwrap.dedent(table).splitlines():
        text = line.strip()
        old, arrow, new = text.partition(" =>")
        if text and not line.startswith(" "):
            name_and_hint = f"{name_and_hint} {text}" if goes_on else text
        elif arrow and old.startswith("and "):
            ways[-1][1].append((old.removeprefix("and "), new.strip()))
        elif arrow:
            ways.append((name_and_hint, [(old, new.strip())]))
        elif text:
            edits = ways[-1][1]
            old, new = edits.pop()
            edits.append((old, f"{new} {text}".strip()))
        goes_on = bool(text) and not line.startswith(" ")
    return ways


@cache
def source_of(solution: Function) -> tuple[str, dict[str, Any]]:
    """Returns the text of a solution and of our functions that it calls, and all their names."""
    texts, names, todo = {}, {}, [solution]
    while todo:
        function = todo.pop()
        definition = ast.parse(inspect.getsource(function)).body[0]
        definition.decorator_list = []
        if ast.get_docstring(definition) is not None:
            del definition.body[0]
        texts[function] = ast.unparse(definition)
        names = function.__globals__ | names
        used = {node.id for node in ast.walk(definition) if isinstance(node, ast.Name)}
        for name in sorted(used):
            helper = names.get(name)
            if isinstance(helper, Exercise):
                helper = helper.solution
            ours = inspect.isfunction(helper) and helper.__module__.startswith(OURS)
            if ours and helper not in texts:
                todo.append(helper)
    return "\n\n".join(reversed(texts.values())), names


def edited(solution: Function, way: Edits) -> Function:
    """Returns the solution with its text, or that of its helpers, changed."""
    text, names = source_of(solution)
    for old, new in way:
        text = text.replace(old, new)
    namespace = dict(names)
    exec(text, namespace)
    return namespace[solution.__name__]


@cache
def mistakes(exercise: Exercise) -> list[tuple[str, Function]]:
    """Returns name and hint of every mistake, with every function that makes it."""
    ways = ways_in("\n".join(exercise.paragraphs[3:])) + ways_in(exercise.tables)
    functions = [(name_and_hint, edited(exercise.solution, way)) for name_and_hint, way in ways]
    if len(exercise.names) > 1:
        hint = f"results in the wrong order: the task says: return {exercise.returns}"
        functions.append((hint, lambda *inputs: exercise.solution(*inputs)[::-1]))
    return functions
