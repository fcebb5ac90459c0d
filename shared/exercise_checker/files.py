"""The files of exercises: tasks that are written for a reader or handed out, and what comes back.

my_exercises.py is made of the stubs of an exercises.py, and never written to again. What a reader
wrote is run as it is.
"""

import ast
import re
import sys
import textwrap
import traceback
import types
from pathlib import Path

from shared import paths
from shared.exercise_checker.exercise import Function
from shared.exercise_checker.given import READERS


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
        said = str(error)
        if isinstance(error, SyntaxError) and error.filename == str(file):
            lines, said = [error.lineno], error.msg
        place = f", line {lines[-1]}" if lines else ""
        line = f"{short(file)}{place}: {type(error).__name__}: {said}"
        raise ValueError(textwrap.shorten(line, 300, placeholder=" ...")) from None
    return vars(module)
