"""How large is the repository, and how dense is its code? Printed below every run of the tests.

Sizes stand beside their aims, and nothing fails because of them. What fails is density: code that a
stranger reads twice. It is counted in tokens on a line of code, in lines over 100 columns, and in
comprehensions inside comprehensions (or with two `for`), each in a thousand lines.
"""

import ast
import io
import subprocess
import tokenize
from collections import Counter
from pathlib import Path

from shared import paths

PAGES = (".js", ".css", ".html", ".jinja", ".wat")
AIMS = {  # what -> tokens of Python, or lines of pages, or files
    "packages": 135_000,
    "tests": 90_000,
    "pages": 4_200,
    "files": 320,
}
DENSEST = {  # what -> tokens a line, and per 1,000 lines: wide ones, comprehensions, nested ones
    "packages": (10.0, 50, 35, 1),
    "tests": (12.5, 60, 60, 3),
}
QUIET = {
    tokenize.NEWLINE,
    tokenize.NL,
    tokenize.COMMENT,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def files() -> list[Path]:
    """Returns what git has, or would have after the next commit; nothing outside of a checkout."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=paths.ROOT, capture_output=True, encoding="utf-8")
    return [Path(line) for line in done.stdout.splitlines() if (paths.ROOT / line).is_file()]


def kind_of_file(file: Path) -> str:
    """Returns the row of the table that a file counts for, or "" for none."""
    if file.suffix in PAGES:
        return "pages"
    if file.suffix != ".py":
        return ""
    return "tests" if "tests" in file.parts or file.name == "test_all.py" else "packages"


def lines_of_docstrings(tree: ast.Module) -> set[int]:
    """Returns the numbers of the lines on which docstrings stand."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None:
            docstring = node.body[0]
            found.update(range(docstring.lineno, docstring.end_lineno + 1))
    return found


def is_nested(node: ast.AST) -> bool:
    """Returns whether a comprehension has a second `for`, or another comprehension inside."""
    inside = [child for child in ast.walk(node) if isinstance(child, COMPREHENSIONS)]
    return len(node.generators) > 1 or len(inside) > 1


def counted_in(text: str) -> Counter[str]:
    """Counts tokens, lines of code, wide lines, comprehensions and nested ones of a Python file."""
    tree = ast.parse(text)
    documentation = lines_of_docstrings(tree)
    rows = text.splitlines()
    found = Counter()
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        row = token.start[0]
        if token.type not in QUIET and row not in documentation:
            found["tokens"] += 1
            lines.add(row)
    found["lines"] = len(lines)
    found["wide"] = sum(len(rows[row - 1]) > 100 for row in lines)
    for node in ast.walk(tree):
        if isinstance(node, COMPREHENSIONS):
            found["comprehensions"] += 1
            found["nested"] += is_nested(node)
    return found


def counts() -> dict[str, Counter[str]]:
    """Returns for each row of the table what its files count together."""
    found = {row: Counter() for row in AIMS}
    for file in files():
        found["files"]["size"] += 1
        row = kind_of_file(file)
        text = (paths.ROOT / file).read_text(encoding="utf-8") if row else ""
        if row == "pages":
            found[row]["size"] += len(text.splitlines())
        elif row:
            found[row] += counted_in(text)
    for row in DENSEST:
        found[row]["size"] = found[row]["tokens"]
    return found


def densities(found: Counter[str]) -> list[float]:
    """Returns tokens a line; wide lines, comprehensions and nested ones in a thousand lines."""
    lines = max(found["lines"], 1)
    return [
        found["tokens"] / lines,
        1000 * found["wide"] / lines,
        1000 * found["comprehensions"] / lines,
        1000 * found["nested"] / lines,
    ]


def table() -> str:
    """Returns a line for each row: its size beside the aim, and how dense its code is."""
    said = []
    for row, found in counts().items():
        line = f"{row:10}{found['size']:8,} (aim {AIMS[row]:,})"
        if row in DENSEST:
            a_line, wide, comprehensions, nested = densities(found)
            line += f"   {a_line:.1f} tokens a line; in 1,000 lines {wide:.0f} wide"
            line += f", {comprehensions:.0f} comprehensions, {nested:.1f} nested"
        said.append(line)
    return "\n".join(said)
