"""The files of exercises: tasks that are written for a reader or handed out, and what comes back.

my_exercises.py is made of the stubs of an exercises.py, and never written to again. What a reader
wrote is run as it is.

Lessons say "change this, expect that". The solutions use none of the files that are changed there,
but an answer may: my_exercises.py of phase 2 begins with an import of scaled_dot_product_attention.
Where a change is left over in that file, a right answer gives the wrong numbers, and the checker
would look for the mistake in the answer. So what was imported is called first, beside PyTorch's own
function or a few numbers of which nobody can be in doubt.
"""

import ast
import re
import sys
import textwrap
import traceback
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from shared import paths
from shared.exercise_checker.exercise import OURS, Function, draw

READERS = ".my_exercises"  # how the names of the reader's own modules end


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
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8") as handout:
            handout.write(f'"""{head}\n"""\n\nimport torch\n{tasks}\n')
    except FileExistsError:
        raise ValueError(f"{file} is there already, and is left as it is") from None
    return file


def written_in(file: Path) -> dict[str, Function]:
    """Returns the names that the reader's file defines. Raises ValueError if it cannot be run."""
    module = types.ModuleType(f"{file.parent.name}{READERS}")
    module.__file__ = str(file)
    sys.modules[module.__name__] = module
    try:
        code = compile(file.read_bytes(), str(file), "exec")  # bytes: with any line ends and a BOM
        exec(code, vars(module))
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == str(file)]
        message = str(error)
        if isinstance(error, SyntaxError) and error.filename == str(file):
            lines, message = [error.lineno], error.msg
        where = f", line {lines[-1]}" if lines else ""
        line = f"{short(file)}{where}: {type(error).__name__}: {message}"
        raise ValueError(textwrap.shorten(line, 300, placeholder=" ...")) from None
    return vars(module)


# ---- does what a file takes from the course still do what it did?


def examples() -> dict[str, tuple[tuple[Any, ...], Tensor]]:
    """Returns for what a reader may import and a lesson says to change: inputs, and the result."""
    query, key, value, scores = draw((2, 5, 7), (2, 11, 7), (2, 11, 13), (5, 11))
    mask = torch.ones(5, 11, dtype=torch.bool).tril(3)
    shares = scores.exp() * mask
    x = torch.arange(2 * 5 * 6).view(2, 5, 6)
    heads = torch.stack([x[:, :, :2], x[:, :, 2:4], x[:, :, 4:]], dim=1)  # (2, 3, 5, 2)
    output = F.scaled_dot_product_attention(query, key, value, mask)
    past = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]])
    return {
        "masked_softmax": ((scores, mask), shares / shares.sum(dim=-1, keepdim=True)),
        "scaled_dot_product_attention": ((query, key, value, mask), output),
        "split_heads": ((x, 3), heads),
        "merge_heads": ((heads,), x),
        "causal_mask": ((3, 5), past),
    }


def gives(function: Function, inputs: tuple[Any, ...], expected: Tensor) -> bool:
    """Returns whether a function gives this, or a tuple that begins with it."""
    try:
        result = function(*inputs)
    except Exception:
        return False
    result = result[0] if isinstance(result, tuple) else result
    return result.shape == expected.shape and torch.allclose(result.double(), expected.double())


def refuse_what_was_changed(functions: Mapping[str, Any]) -> None:
    """Raise ValueError if the reader's file uses a function of the course that was changed."""
    for name, (inputs, expected) in examples().items():
        function = functions.get(name)
        module = getattr(function, "__module__", None) or ""
        of_the_course = module.startswith(OURS) and not module.endswith(READERS)
        if of_the_course and not gives(function, inputs, expected):
            file = module.replace(".", "/") + ".py"
            raise ValueError(
                f"{file} was changed: its {name} does not give what it should, and your file uses "
                "it, so right answers would come out wrong. "
                f"git restore {file} brings it back, and so does a new copy of it"
            )
