"""How large may the repository become, and how dense its code? test_house.py holds it to this.

    python shared/tests/budget.py      prints where it stands

Who adds a file, a row or a page takes one away, or raises the number here and says in the same
commit why. Width is no way out, since density fails, too: it is counted in tokens on a line of
code, in lines over 100 columns, and in comprehensions inside comprehensions (or with two `for`),
each in a thousand lines. Docstrings and comments count for nothing.
"""

import ast
import io
import re
import subprocess
import tokenize
from collections import Counter
from pathlib import Path

from shared import paths
from shared.tests.faults import FAULTS

MOST = {  # what -> tokens of Python, lines of pages, or how many
    "packages": 144_500,
    # Of the packages: what runs, records, draws and publishes. 21,000 is the aim.
    "machinery": 22_300,
    "tests": 103_000,
    "pages": 3_650,
    "files": 325,
    "faults": 320,
}
DENSEST = {  # what -> tokens a line, and per 1,000 lines: wide ones, comprehensions, nested ones
    "packages": (9.8, 50, 35, 0.5),
    "tests": (12.5, 60, 60, 3),
}
MACHINERY = re.compile(
    r"shared/lab/|phase3_visualization/explorer/|.*/(checkpoints|measure)\.py"
    r"|shared/(__init__|charts|claims|cli|experiment|paths|visualization_utils)\.py"
)
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


def lines_of_docstrings(tree: ast.Module) -> set[int]:
    """Returns the numbers of the lines on which docstrings stand."""
    lines = set()
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None:
            docstring = node.body[0]
            lines.update(range(docstring.lineno, docstring.end_lineno + 1))
    return lines


def is_nested(node: ast.AST) -> bool:
    """Returns whether a comprehension has a second `for`, or another comprehension inside."""
    inside = [child for child in ast.walk(node) if isinstance(child, COMPREHENSIONS)]
    return len(node.generators) > 1 or len(inside) > 1


def counted_in(text: str) -> Counter[str]:
    """Counts tokens, lines of code, wide lines, comprehensions and nested ones of a Python file."""
    tree = ast.parse(text)
    documentation = lines_of_docstrings(tree)
    rows = text.splitlines()
    counts = Counter()
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        row = token.start[0]
        if token.type not in QUIET and row not in documentation:
            counts["tokens"] += 1
            lines.add(row)
    counts["lines"] = len(lines)
    counts["wide"] = sum(len(rows[row - 1]) > 100 for row in lines)
    for node in ast.walk(tree):
        if isinstance(node, COMPREHENSIONS):
            counts["comprehensions"] += 1
            counts["nested"] += is_nested(node)
    return counts


def sizes_and_densities() -> tuple[Counter[str], dict[str, list[float]]]:
    """Returns the size of each row of MOST, and the densities of each row of DENSEST."""
    sizes = Counter(faults=len(FAULTS))
    code = {"packages": Counter(), "tests": Counter()}
    for file in files():
        sizes["files"] += 1
        if file.suffix not in (".py", ".js", ".css", ".html", ".jinja"):
            continue
        text = (paths.ROOT / file).read_text(encoding="utf-8")
        if file.suffix != ".py":
            sizes["pages"] += len(text.splitlines())
            continue
        kind = "tests" if "tests" in file.parts or file.name == "test_all.py" else "packages"
        counts = counted_in(text)
        code[kind] += counts
        sizes[kind] += counts["tokens"]
        if kind == "packages" and MACHINERY.match(file.as_posix()):
            sizes["machinery"] += counts["tokens"]
    return sizes, {kind: densities(counts) for kind, counts in code.items()}


def densities(counts: Counter[str]) -> list[float]:
    """Returns tokens a line; wide lines, comprehensions and nested ones in a thousand lines."""
    lines = max(counts["lines"], 1)
    in_lines = [counts[what] / lines for what in ("tokens", "wide", "comprehensions", "nested")]
    return [in_lines[0], *(1000 * share for share in in_lines[1:])]


def main() -> None:
    sizes, dense = sizes_and_densities()
    for row, most in MOST.items():
        print(f"{row:10}{sizes[row]:9,} of at most {most:,}")
    for row, measured in dense.items():
        a_line, wide, comprehensions, nested = measured
        print(f"{row:10}{a_line:9.2f} tokens a line; in 1,000 lines {wide:.0f} wide", end="")
        print(f", {comprehensions:.0f} comprehensions, {nested:.1f} nested")


if __name__ == "__main__":
    main()
