"""What all phases share. And how a program ends that somebody stops while it is still loading: in one line.

To load PyTorch takes seconds, in which Ctrl-C would print where in it. So .venv loads this file first, as run_all.sh
tells it (here.pth), and cli.run takes over when a script begins.
"""

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), os.pardir))  # without pathlib: each start waits for it


def leave(number: int, _frame: FrameType | None) -> NoReturn:
    """Leave at once: an error might be swallowed by whoever is loading, and there is nothing to put away yet."""
    os.write(2, b"\nended while loading or leaving\n")
    os._exit(128 + number)


def _is_ours(started: str) -> bool:
    """Whether this is a file of the course, or a module (after -m)."""
    inside = os.path.relpath(os.path.realpath(started), ROOT) if started.endswith(".py") else started
    package = inside.replace(os.sep, ".").split(".")[0]
    return bool(package) and os.path.isdir(os.path.join(ROOT, package))


def _one_of_ours_was_started() -> bool:
    """Whether this process runs a script of the course. In a notebook, or in a program of others, nothing changes."""
    words = iter(sys.orig_argv[1:])
    for word in words:
        if word in ("-W", "-X"):
            next(words, None)
        elif word == "-m":
            return _is_ours(next(words, ""))
        elif not word.startswith("-") or word.startswith("-c"):
            return _is_ours(word)
    return False


if _one_of_ours_was_started():
    os.environ["MPLBACKEND"] = "Agg"  # scripts only save pictures: whatever a reader's programs show theirs with
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, leave)
