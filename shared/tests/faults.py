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
import re
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import CodeType, FunctionType

import pytest
from tqdm import tqdm

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
    """All code inside, that of classes, functions and functions in functions."""
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from (inner, *codes(inner))


def replaced(file: str, old: str, new: str) -> str:
    """The text of the file with the fault. Raises ValueError if the row does not fit the file."""
    path = paths.ROOT / file
    source = path.read_text(encoding="utf-8") if path.exists() else ""
    if source.count(old) != 1:
        rule = "the row in shared/tests/faults.txt must move with the code"
        raise ValueError(
            f"{old!r} must stand once in {file}: got it {source.count(old)} times; {rule}"
        )
    return source.replace(old, new)


def broken(file: str, old: str, new: str) -> dict[tuple[str, int], CodeType]:
    """Name and line of each function -> its code with the fault."""
    with_fault = compile(replaced(file, old, new), paths.ROOT / file, "exec")
    return {(code.co_qualname, code.co_firstlineno): code for code in codes(with_fault)}


@contextmanager
def planted(file: str, old: str, new: str) -> Iterator[None]:
    """Within the block the functions of this file have the fault, for everybody who has imported
    them.
    """
    wrong = broken(file, old, new)
    path = importlib.import_module(file.removesuffix(".py").replace("/", ".")).__file__
    functions = [
        each
        for each in gc.get_objects()
        if type(each) is FunctionType and each.__code__.co_filename == path
    ]
    right = {function: function.__code__ for function in functions}
    try:
        for function, code in right.items():
            function.__code__ = wrong.get(
                (code.co_qualname, code.co_firstlineno), code
            )  # a dataclass has written some
        yield
    finally:
        for function, code in right.items():
            function.__code__ = code


def oracles_notice(file: str, old: str, new: str) -> bool:
    """Whether one of the oracles that are named after the file fails."""
    with planted(file, old, new):
        for name, *lengths in test_oracles.CASES:
            if name.split(",")[0] == Path(file).stem:
                try:
                    test_oracles.check(name, *lengths)
                except Exception:
                    return True
    return False


def tests_that_import(file: Path) -> list[str]:
    """First the tests of the file, then those of its room, of its phase, of others."""
    tests = [
        Path(folder, "tests", f"test_{room}.py")
        for folder, rooms in test_all.TESTS.items()
        for room in rooms
    ]
    imports = re.compile(
        rf"^from [^(\n]*(\([^)]*)?\b{file.stem}\b", re.MULTILINE
    )  # in one line or in brackets
    tests = [
        test for test in tests if imports.search((paths.ROOT / test).read_text(encoding="utf-8"))
    ]

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
    """The first of these tests to fail, or nothing; those in a browser are left out."""
    first = FirstFailure()
    with redirect_stdout(io.StringIO()):
        code = pytest.main(
            ["-x", "--numprocesses", "0", "-m", "not browser", *tests], plugins=[first]
        )
    return first.test or (
        "" if code in (0, 5) else f"pytest ended with code {code}"
    )  # 5: all are in a browser


def failing_test(number: int) -> str:
    """The first test to fail with this fault, of those that import its file."""
    file, *_ = FAULTS[number]
    with planted(*FAULTS[number]):
        return next(filter(None, map(run, tests_that_import(Path(file)))), "")


def main(words: list[str]) -> int:
    """Plant the faults of all files with these words in their path -> 0 if each was noticed, else
    1.
    """
    python = [number for number, (file, *_) in enumerate(FAULTS) if file.endswith(".py")]
    chosen = [number for number in python if all(word in FAULTS[number][0] for word in words)]
    left = [number for number in chosen if not oracles_notice(*FAULTS[number])]
    print(
        f"{len(chosen)} faults: oracles notice {len(chosen) - len(left)}, tests are asked for the rest",
        flush=True,
    )
    processes = multiprocessing.get_context(
        "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    )
    processes.set_forkserver_preload(
        [__name__]
    )  # each fault has a process of its own, which must not load all again
    with ProcessPoolExecutor(2, processes, max_tasks_per_child=1) as pool:
        tests = dict(
            zip(
                left, tqdm(pool.map(failing_test, left), total=len(left), disable=None), strict=True
            )
        )
        anyway = (
            pool.submit(run, *set(tests.values()) - {""}).result() if any(tests.values()) else ""
        )
    missed = [number for number in left if not tests[number]]
    for file, old, new in (FAULTS[number] for number in missed):
        print(f"nobody notices {file}: {old} => {new}")
    print(f"{len(chosen) - len(missed)} of {len(chosen)} faults are noticed")
    if anyway:
        print(f"or so it seems: without a fault fails, too, {anyway}")
    return 1 if missed or anyway else 0
