"""How much of its tolerance does each comparison of the tests use? A plugin that can be switched on:

    ATEN_CPU_CAPABILITY=default .venv/bin/python -m pytest test_all.py -n 2 -p shared.tests.tolerances

Run it with default, with avx2, and without the variable: other instructions round otherwise. It prints every
comparison, by near or by pytest.approx, that uses more than a tenth of its tolerance, with the difference over the
tolerance. Where that is not rounding but meant, a comment says it: "# why: printed with two digits".
"""

import inspect
import linecache
import re
import sys

import pytest
import torch
from _pytest.python_api import ApproxScalar

TENTH = 0.1
used = []  # in the test that runs: (difference over tolerance, file:line, said why)


def place():
    """File and line of the test's comparison, and whether a comment beside it or above it says why."""
    frame = sys._getframe(2)
    while "/tests/test_" not in frame.f_code.co_filename.replace("\\", "/"):
        frame = frame.f_back
        if frame is None:
            return "", True  # not by a test
    where = inspect.getframeinfo(frame).positions
    lines = range(where.lineno - 1, where.end_lineno + 1)
    said = re.search("why:|as_printed", "".join(linecache.getline(frame.f_code.co_filename, line) for line in lines))
    return f"{frame.f_code.co_filename}:{where.lineno}", bool(said)


def assert_close(found, expected, *, rtol=None, atol=None, plain=torch.testing.assert_close, **options):
    """As PyTorch's, and what it used."""
    plain(found, expected, rtol=rtol, atol=atol, **options)
    if rtol == 0 and torch.is_tensor(expected) and atol:
        difference = torch.where(found == expected, 0.0, found - expected).nan_to_num().abs().max().item()
        if difference:
            used.append((float(difference / atol), *place()))


def equal(self, other, plain=ApproxScalar.__eq__):
    """As pytest's, and what it used."""
    same = plain(self, other)
    if same and isinstance(other, int | float) and other != self.expected:
        used.append((float(abs(other - self.expected) / self.tolerance), *place()))
    return same


torch.testing.assert_close = assert_close
ApproxScalar.__eq__ = equal


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    used.clear()
    try:
        return (yield)
    finally:
        item.user_properties += [("used", use) for use in used]


def pytest_terminal_summary(terminalreporter):
    """The comparisons that use over a tenth, the most first; a line of a test once, with its largest."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, [])]
    uses = [use for report in reports for name, use in report.user_properties if name == "used"]
    largest = {where: (share, said) for share, where, said in sorted(uses)}
    over = [(share, where, said) for where, (share, said) in largest.items() if share > TENTH]
    silent = sorted((share, where) for share, where, said in over if not said)
    terminalreporter.write_line(f"\n{len(uses)} comparisons found a difference, in {len(largest)} lines of tests.")
    terminalreporter.write_line(f"Over a tenth of their tolerance use {len(over)}; {len(silent)} do not say why:")
    for share, where in reversed(silent):
        terminalreporter.write_line(f"{share:10.3f}  {where}")
