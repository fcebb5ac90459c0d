"""What an exercise is made of: what a reader is told before, a solution, inputs to try it on, the usual mistakes."""

import inspect
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
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
