"""The budget: how many lines of what are in git. Who adds must delete. Printed at the end of every
run of the tests.

The limits are what has been reached, and may only be lowered. The aim: packages 14,500, exercises
2,300, tests 8,000, pages 4,200, files 300.
"""

import subprocess
from pathlib import Path

from shared import paths

EXERCISES = ("answers.py", "exercises.py", "exercise_checker")
PAGES = (".js", ".css", ".html", ".jinja", ".wat")
LIMITS = {
    "packages": 18_300,
    "exercises": 2_900,
    "tests": 11_200,
    "pages": 4_100,
    "files": 325,
    "phase1_single_head/self_attention.py": 135,
    "phase2_multi_head/multi_head_attention.py": 115,
    "phase4_causal/causal_attention.py": 95,
    "phase4_causal/long_texts/flash_attention.py": 130,
}


def files() -> list[Path]:
    """What git has, or would have after the next commit; nothing where this is no checkout."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=paths.ROOT, capture_output=True, encoding="utf-8")
    return [Path(line) for line in done.stdout.splitlines() if (paths.ROOT / line).is_file()]


def kind_of(file: Path) -> str:
    """Which row of the table a file counts for; "" for none."""
    if file.suffix in PAGES:
        return "pages"
    if file.suffix != ".py":
        return ""
    if "tests" in file.parts or file.name == "test_all.py":
        return "tests"
    return "exercises" if any(part in EXERCISES for part in file.parts) else "packages"


def counts() -> dict[str, int]:
    """Row of the table -> lines, and files."""
    found = dict.fromkeys(LIMITS, 0) | {"files": len(files())}
    for file in files():
        if file.as_posix() in found or kind_of(file):
            lines = len((paths.ROOT / file).read_text(encoding="utf-8").splitlines())
            for row in {file.as_posix(), kind_of(file)} & set(found):
                found[row] += lines
    return found


def table() -> str:
    """A line for each row: what there is, of what there may be."""
    return "\n".join(f"{row:45}{count:8,} of {LIMITS[row]:7,}" for row, count in counts().items())
