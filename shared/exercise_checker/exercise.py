"""What an exercise is made of: a solution, inputs to try it on, hints, and the usual mistakes as edits of its text.

A table of mistakes is text: a name and a hint, then a line for each way to make the mistake.

    not divided by √d_k: the dot products are too large, so the softmax comes out too sharp
        some words of the solution => other words
        and more words => other words, an edit of the same way
"""

import ast
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor

Function = Callable[..., Any]
Edit = tuple[str, str]  # old words, new words
OURS = ("shared.", "phase")  # where the helpers of a solution stand


@dataclass(frozen=True)
class Mistake:
    """The name of a usual mistake, a sentence that helps out of it, and the ways to make it."""

    name: str
    hint: str
    ways: list[list[Edit]] = field(default_factory=list)


@dataclass(frozen=True)
class Case:
    """One call: what is special about it, and the arguments."""

    name: str
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True, eq=False)
class Exercise:
    """What is asked for. The first case is one in which every mistake runs; later cases are more special.

    returns: the names of what the function returns. told: the idea, the steps with their shapes, the whole as plain
    loops and a table of mistakes, blank lines between. tables: more mistakes, of which several exercises have the same.
    A number may be off by `tolerance`, but where exactly 0 is right.
    """

    solution: Function
    returns: str
    cases: Callable[[], list[Case]]
    told: str
    tables: str = ""
    tolerance: float = 1e-5

    @property
    def name(self) -> str:
        return self.solution.__name__

    @property
    def names(self) -> list[str]:
        return self.returns.split(", ")

    @property
    def paragraphs(self) -> list[str]:
        """The three hints, from the idea to the whole, and the table of mistakes."""
        return inspect.cleandoc(self.told).split("\n\n")


def exercise(returns: str, cases: Callable[[], list[Case]], tables: str = "", tolerance: float = 1e-5) -> Any:
    """Decorates a solution whose docstring holds what is told: it becomes the Exercise."""
    return lambda solution: Exercise(solution, returns, cases, solution.__doc__, tables, tolerance)


def draw(*shapes: tuple[int, ...], seed: int = 0) -> list[Tensor]:
    """Random numbers in float64, the same each time, and small enough that softmax and tanh do not saturate."""
    generator = torch.Generator().manual_seed(seed)
    return [0.5 * torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def mistakes_in(table: str) -> list[Mistake]:
    """Read a table of mistakes."""
    found: list[Mistake] = []
    for line in map(str.strip, filter(str.strip, table.splitlines())):
        old, arrow, new = line.partition(" =>")
        name, _, hint = line.partition(": ")
        if not arrow:
            found.append(Mistake(name, hint))
        elif old.startswith("and "):
            found[-1].ways[-1].append((old[4:], new.strip()))
        else:
            found[-1].ways.append([(old, new.strip())])
    return found


@cache
def source_of(solution: Function) -> tuple[str, dict[str, Any]]:
    """The text of a solution and of our functions that it calls, without docstrings; the names around it."""
    texts, names, todo = {}, {}, [solution]
    while todo:
        function = todo.pop()
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
        definition = tree.body[0]
        definition.decorator_list = []
        if ast.get_docstring(definition) is not None:
            del definition.body[0]
        texts[function] = ast.unparse(tree)
        names = function.__globals__ | names
        used = sorted({node.id for node in ast.walk(definition) if isinstance(node, ast.Name)})
        helpers = [names[name] for name in used if inspect.isfunction(names.get(name))]
        todo += [helper for helper in helpers if helper.__module__.startswith(OURS) and helper not in texts]
    return "\n\n".join(reversed(texts.values())), names


def edited(solution: Function, way: list[Edit]) -> Function:
    """The solution with its text, or that of its helpers, changed. Each old text must stand there exactly once."""
    text, names = source_of(solution)
    for old, new in way:
        if text.count(old) != 1:
            raise ValueError(f"{old!r} stands {text.count(old)} times in {solution.__name__} and its helpers")
        text = text.replace(old, new)
    namespace = dict(names)
    exec(compile(text, f"<{solution.__name__}, edited>", "exec"), namespace)
    return namespace[solution.__name__]


@cache
def ways(exercise: Exercise) -> list[tuple[Mistake, Function]]:
    """Every mistake with every function that makes it."""
    mistakes = mistakes_in("\n".join([*exercise.paragraphs[3:], exercise.tables]))
    found = [(mistake, edited(exercise.solution, way)) for mistake in mistakes for way in mistake.ways]
    if len(exercise.names) > 1:
        mistake = Mistake("returned in the wrong order", f"the task says: return {exercise.returns}")
        found.append((mistake, lambda *inputs: exercise.solution(*inputs)[::-1]))
    return found
