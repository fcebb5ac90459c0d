"""What an exercise is made of: what a reader is told before, a solution, inputs to try it on, the usual mistakes."""

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cache
from itertools import combinations, islice
from typing import Any

import torch
from torch import Tensor

Function = Callable[..., Any]
Edit = tuple[tuple[str, str], ...]  # (old text, new text), replaced one after the other
LEVELS = ("easy", "medium", "hard")  # one idea; two at once; several, with special cases


def edit(old: str, new: str) -> Edit:
    """One way to make a mistake: `new` in place of `old` in the solution's text. `+` makes one edit of two."""
    return ((old, new),)


class Mistake:
    """The name of a usual mistake, a sentence that helps out of it, and the ways to make it."""

    def __init__(self, name: str, hint: str, *edits: Edit) -> None:
        self.name, self.hint, self.edits = name, hint, edits


@dataclass(frozen=True)
class Case:
    """One call: what is special about it, and the arguments."""

    name: str
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True, eq=False)
class Exercise:
    """What is asked for. The first case is one in which every mistake runs; later cases are more special.

    solution: its docstring is the task in plain loops, the last hint. returns: the names of what the function returns.
    A number may be off by `tolerance`, except where exactly 0 is right. by_hand: the numbers are themselves the task,
    so a message must not give them away. section: a heading of the lesson, or the README of a room. level: one of
    LEVELS. minutes: an estimate. idea, steps: the first two hints.
    """

    solution: Function
    returns: tuple[str, ...]
    cases: Callable[[], list[Case]]
    mistakes: Sequence[Mistake]
    tolerance: float = 1e-5
    by_hand: bool = False
    _: KW_ONLY
    section: str
    level: str
    minutes: int
    idea: str
    steps: str

    @property
    def name(self) -> str:
        return self.solution.__name__

    @property
    def about(self) -> str:
        """Where it belongs, how hard it is and how long it takes: the second line of the stub's docstring."""
        return f"{self.section} · {self.level} · {self.minutes} min"

    @property
    def hints(self) -> tuple[str, str, str]:
        """From the idea to the whole."""
        idea = textwrap.fill(inspect.cleandoc(self.idea), 100)
        return idea, inspect.cleandoc(self.steps), inspect.getdoc(self.solution)


def draw(*shapes: tuple[int, ...], seed: int = 0) -> list[Tensor]:
    """Random numbers in float64, the same each time, and small enough that softmax and tanh do not saturate."""
    generator = torch.Generator().manual_seed(seed)
    return [0.5 * torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


# ---- from an edit to a function: the solution's text, some of it replaced, compiled anew

MAX_PAIRS = 2000


@cache
def source_of(solution: Function) -> tuple[str, dict[str, Any]]:
    """The text of a solution and of the helpers in answers/ that it calls, without docstrings; the names around it."""
    texts, names, todo = {}, {}, [solution]
    while todo:
        function = todo.pop()
        lines = inspect.getsource(function).splitlines()
        definition = ast.parse("\n".join(lines)).body[0]
        used = {node.id for node in ast.walk(definition) if isinstance(node, ast.Name)}
        if ast.get_docstring(definition) is not None:
            docstring = definition.body[0]
            del lines[docstring.lineno - 1 : docstring.end_lineno]
        texts[function] = "\n".join(lines)
        names = function.__globals__ | names
        helpers = [function.__globals__.get(name) for name in sorted(used)]
        todo += [helper for helper in helpers if is_answer(helper, solution) and helper not in texts]
    return "\n\n".join(reversed(texts.values())), names


def is_answer(thing: Any, solution: Function) -> bool:
    """Whether this is a function that stands beside the solution, or in the answers of another phase."""
    return inspect.isfunction(thing) and (thing.__module__ == solution.__module__ or ".answers." in thing.__module__)


def edited(solution: Function, change: Edit) -> Function:
    """The solution with its text, or that of its helpers, changed. Each old text must stand there exactly once."""
    text, names = source_of(solution)
    for old, new in change:
        if text.count(old) != 1:
            raise ValueError(f"{old!r} stands {text.count(old)} times in {solution.__name__} and its helpers")
        text = text.replace(old, new)
    namespace = dict(names)
    exec(compile(text, f"<{solution.__name__}, edited>", "exec"), namespace)
    return namespace[solution.__name__]


@cache
def ways(exercise: Exercise) -> list[tuple[Mistake, Function]]:
    """Every mistake with every function that makes it."""
    found = []
    for mistake in exercise.mistakes:
        for change in mistake.edits:
            try:
                found.append((mistake, edited(exercise.solution, change)))
            except (ValueError, SyntaxError) as error:
                raise ValueError(f"{exercise.name}, {mistake.name}: {error}") from None
    if len(exercise.returns) > 1:
        hint = f"the task says: return {', '.join(exercise.returns)}"
        found.append((Mistake("returned in the wrong order", hint), lambda *inputs: exercise.solution(*inputs)[::-1]))
    return found


def pairs(exercise: Exercise) -> Iterator[tuple[Mistake, Mistake, Function]]:
    """Two mistakes at once: both edits, where the second still finds its text after the first."""
    edits = [(mistake, change) for mistake in exercise.mistakes for change in mistake.edits]
    for (one, first), (other, second) in islice(combinations(edits, 2), MAX_PAIRS):
        if one is other:
            continue
        try:
            function = edited(exercise.solution, first + second)
        except (ValueError, SyntaxError):
            continue
        yield one, other, function
