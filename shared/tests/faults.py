"""Faults in the mechanism, planted one at a time: is each of them noticed?

    ./run_all.sh test --faults              all of them
    ./run_all.sh test --faults serving      those of the files with this word in their path

faults.txt has them: below the name of a file a row for each, a fragment that stands once in the
file => what is put there instead, a wrong sign, index, mask, scale or shift. First the oracles of
the file are asked (test_oracles.py), in this process. What they let pass is planted in a process of
its own, which runs the tests that import the file. Those in JavaScript are planted by each run of
test_explorer.py, which computes the same in PyTorch.
"""

import gc
import importlib
import io
import multiprocessing
import os
import re
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import CodeType, FunctionType

import pytest

import test_all
from shared import paths
from shared.tests import test_oracles


def read_faults() -> list[tuple[str, str, str]]:
    """File, old text and new text of each fault."""
    rows, file = [], ""
    for line in Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines():
        if line.startswith(" "):
            old, new = line.split(" =>")
            rows.append((file, old.strip(), new.strip()))
        else:
            file = line
    return rows


FAULTS = read_faults()


def codes(code: CodeType) -> Iterator[CodeType]:
    """Yield all code inside: that of classes, functions, and functions in functions."""
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield inner
            yield from codes(inner)


def replaced(file: str, old: str, new: str) -> str:
    """The text of the file with the fault. Raises ValueError if the row does not fit the file."""
    path = paths.ROOT / file
    source = path.read_text(encoding="utf-8") if path.exists() else ""
    if source.count(old) != 1:
        rule = f"{old!r} must stand once in {file}: got it {source.count(old)} times"
        raise ValueError(f"{rule}; the row in shared/tests/faults.txt must move with the code")
    return source.replace(old, new)


def broken(file: str, old: str, new: str) -> dict[tuple[str, int], CodeType]:
    """Name and line of each function -> its code with the fault."""
    with_fault = compile(replaced(file, old, new), paths.ROOT / file, "exec")
    return {(code.co_qualname, code.co_firstlineno): code for code in codes(with_fault)}


@contextmanager
def planted(file: str, old: str, new: str) -> Iterator[None]:
    """Within the block the functions of this file have the fault, whoever has imported them."""
    wrong = broken(file, old, new)
    path = importlib.import_module(file.removesuffix(".py").replace("/", ".")).__file__
    right = {}
    for each in gc.get_objects():
        if type(each) is FunctionType and each.__code__.co_filename == path:
            right[each] = each.__code__
    try:
        for function, code in right.items():
            place = (code.co_qualname, code.co_firstlineno)
            function.__code__ = wrong.get(place, code)  # what a dataclass has written is not there
        yield
    finally:
        for function, code in right.items():
            function.__code__ = code


def oracles_notice(file: str, old: str, new: str) -> bool:
    """Returns whether one of the oracles that are named after the file fails."""
    with planted(file, old, new):
        for name, *lengths in test_oracles.CASES:
            if name.split(",")[0] == Path(file).stem:
                try:
                    test_oracles.check(name, *lengths)
                except Exception:
                    return True
    return False


def tests_that_import(file: Path) -> list[str]:
    """Returns first the tests of the file, then those of its room, of its phase, of others."""
    # An import stands on one line or in brackets.
    imports = re.compile(rf"^from [^(\n]*(\([^)]*)?\b{file.stem}\b", re.MULTILINE)
    tests = []
    for folder, rooms in test_all.TESTS.items():
        for room in rooms:
            test = Path(folder, "tests", f"test_{room}.py")
            if imports.search((paths.ROOT / test).read_text(encoding="utf-8")):
                tests.append(test)

    def near(test: Path) -> tuple[bool, ...]:
        return file.stem in test.stem, file.parent.name in test.stem, file.parts[0] in test.parts

    return [str(test) for test in sorted(tests, key=near, reverse=True)]


class FirstFailure:
    """A plugin of pytest that remembers which test failed first."""

    test = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.test = self.test or report.nodeid


def run(*tests: str) -> str:
    """Returns the first of these tests to fail, or ""; those in a browser are left out."""
    first = FirstFailure()
    options = ["-x", "--numprocesses", "0", "-m", "not browser"]
    with redirect_stdout(io.StringIO()):
        code = pytest.main([*options, *tests], plugins=[first])
    if first.test or code in (0, 5):  # 5: all of them are in a browser
        return first.test
    return f"pytest ended with code {code}"


def failing_test(number: int) -> str:
    """Returns the first test to fail with this fault, of those that import its file, or ""."""
    file, old, new = FAULTS[number]
    with planted(file, old, new):
        for test in tests_that_import(Path(file)):
            failed = run(test)
            if failed:
                return failed
    return ""


def main(words: list[str]) -> int:
    """Plant all faults of the files with these words in their path; 0 if each was noticed."""
    chosen = []
    for number, (file, _, _) in enumerate(FAULTS):
        if file.endswith(".py") and all(word in file for word in words):
            chosen.append(number)
    os.environ["TRITON_INTERPRET"] = "1"  # before anybody imports Triton
    left = [number for number in chosen if not oracles_notice(*FAULTS[number])]
    noticed = len(chosen) - len(left)
    rest = "tests are asked for the rest"
    print(f"{len(chosen)} faults: oracles notice {noticed}, {rest}", flush=True)
    has_server = "forkserver" in multiprocessing.get_all_start_methods()
    processes = multiprocessing.get_context("forkserver" if has_server else "spawn")
    # Each fault has a process of its own, which must not load everything again.
    processes.set_forkserver_preload([__name__])
    with ProcessPoolExecutor(2, processes, max_tasks_per_child=1) as pool:
        tests = {}
        for number, test in zip(left, pool.map(failing_test, left), strict=True):
            tests[number] = test
            if len(tests) % 20 == 0:  # seen in a log, too
                print(f"{len(tests)} of {len(left)} asked", flush=True)
        failed = set(tests.values()) - {""}
        anyway = pool.submit(run, *failed).result() if failed else ""
    missed = [number for number in left if not tests[number]]
    for number in missed:
        file, old, new = FAULTS[number]
        print(f"nobody notices {file}: {old} => {new}")
    print(f"{len(chosen) - len(missed)} of {len(chosen)} faults are noticed")
    if anyway:
        print(f"or so it seems: without a fault fails, too, {anyway}")
    return 1 if missed or anyway else 0
