"""From an edit to a function: the solution's text, some of it replaced, compiled anew."""

import ast
import inspect
from collections.abc import Iterator
from functools import cache
from itertools import combinations, islice
from typing import Any

from shared.exercise_checker.exercise import Edit, Exercise, Function, Mistake

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
