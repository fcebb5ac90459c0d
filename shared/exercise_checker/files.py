"""The files of exercises: tasks that are written for a reader or handed out, and what comes back.

my_exercises.py is made of the stubs of an exercises.py, and never written to again. What a reader
wrote is run as it is.

Lessons say "change this, expect that". The solutions use none of the files that are changed there,
but an answer may: my_exercises.py of phase 2 begins with an import of scaled_dot_product_attention.
Where a change is left over in that file, a right answer gives the wrong numbers, and the checker
would look for the mistake in the answer. So that function is called first, beside PyTorch's own.
"""

import ast
import re
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from shared import paths
from shared.exercise_checker.check import error_in_words
from shared.exercise_checker.exercise import OURS, Function, draw


def short(file: Path) -> str:
    return f"{file.parent.name}/{file.name}"


def tasks_in(stubs: str) -> str:
    """Returns the text of an exercises.py without its docstring and the imports of the checker."""
    end_of_docstring = ast.parse(stubs).body[0].end_lineno
    end_of_tasks = stubs.index("\n\ndef main(")
    lines = []
    for line in stubs[:end_of_tasks].splitlines()[end_of_docstring + 1 :]:
        if not re.match(r"from (shared[.\w]*|\w+\.answers) import ", line):
            lines.append(line)
    return "\n".join(lines)


def readers_file(stubs: Path) -> Path:
    """Returns my_exercises.py beside the stubs, which is made of them where it is not there yet."""
    file = stubs.with_name("my_exercises.py")
    if file.exists():
        return file
    title = f'"""Your exercises: python {short(stubs)} checks them."""'
    tasks = tasks_in(stubs.read_text(encoding="utf-8"))
    with paths.whole_file(file) as unfinished:
        unfinished.write_text(f"{title}\n\nimport torch\n{tasks}\n", encoding="utf-8")
    print(f"made {short(file)}: write your answers there; git leaves this file alone")
    return file


def hand_out(stubs: Path, folder: Path) -> Path:
    """Write the tasks of a phase into a folder, without hints and answers; returns the new file.

    Raises ValueError if the file is there already.
    """
    text = stubs.read_text(encoding="utf-8")
    _, _, *rules = ast.get_docstring(ast.parse(text)).split("\n\n")  # behind title and command
    title = f"Exercises of {stubs.parent.name}: write in place of each `raise NotImplementedError`."
    head = "\n\n".join([title, *rules])
    # A student may have no copy of the course; whoever grades has one.
    allowed = r"# With the course beside it: \1"
    tasks = re.sub(r"^(from phase.*?)(  #.*)?$", allowed, tasks_in(text), flags=re.MULTILINE)
    file = folder / f"{stubs.parent.name}.py"
    if file.exists():
        raise ValueError(f"{file} is there already, and is left as it is")
    folder.mkdir(parents=True, exist_ok=True)
    file.write_text(f'"""{head}\n"""\n\nimport torch\n{tasks}\n', encoding="utf-8")
    return file


def written_in(file: Path) -> dict[str, Function]:
    """Returns the names that the reader's file defines.

    Raises ValueError if it cannot be run, or uses what was changed in the course.
    """
    module = types.ModuleType("my_exercises")
    module.__file__ = str(file)
    sys.modules[module.__name__] = module
    try:
        code = compile(file.read_bytes(), str(file), "exec")  # bytes: with any line ends and a BOM
        exec(code, vars(module))
    except (Exception, SystemExit) as error:
        raise ValueError(f"{short(file)}: {error_in_words(error, str(file))}") from None
    refuse_what_was_changed(vars(module))
    return vars(module)


# ---- does what a file takes from the course still do what it did?


def refuse_what_was_changed(functions: Mapping[str, Any]) -> None:
    """Raise ValueError if the reader's file uses the course's attention, and it was changed."""
    attention = functions.get("scaled_dot_product_attention")
    module = getattr(attention, "__module__", "")
    if not module.startswith(OURS):  # the reader's own, or none
        return
    query, key, value = draw((2, 5, 7), (2, 11, 7), (2, 11, 13))
    mask = torch.ones(5, 11, dtype=torch.bool).tril(3)
    expected = F.scaled_dot_product_attention(query, key, value, mask)
    try:
        output, _ = attention(query, key, value, mask)
        torch.testing.assert_close(output, expected)
    except Exception:
        file = module.replace(".", "/") + ".py"
        raise ValueError(
            f"{file} was changed: its scaled_dot_product_attention does not give what it should, "
            "and your file uses it, so right answers would come out wrong. "
            f"git restore {file} brings it back, and so does a new copy of it"
        ) from None
