"""What all phases share. And how a script ends that somebody stops while PyTorch is still loading:
in one line.

So .venv loads this file first, as run_all.sh tells it (here.pth). A notebook, or a program of
others, stays as it is.
"""

import os
import signal
import sys

ROOT = os.path.realpath(
    os.path.join(os.path.dirname(__file__), os.pardir)
)  # without pathlib: each start waits for it

STOPS = [
    number for number in signal.Signals if number.name in ("SIGINT", "SIGTERM", "SIGHUP")
]  # no SIGHUP on Windows


def _is_ours(started: str) -> bool:
    """Whether Python was started with a file of the course, or with a module of it (after -m)."""
    inside = (
        os.path.relpath(os.path.realpath(started), ROOT) if started.endswith(".py") else started
    )
    package = inside.replace(os.sep, ".").split(".")[0]
    return bool(package) and os.path.isdir(os.path.join(ROOT, package))


def _leave(number: int, _frame: object) -> None:
    os.write(2, b"\nended while loading\n")
    os._exit(128 + number)  # at once: an error might be swallowed by whoever is loading


if _is_ours(next((word for word in sys.orig_argv[1:] if not word.startswith("-")), "")):
    os.environ["MPLBACKEND"] = "Agg"  # scripts only save pictures
    sys.modules["bottleneck"] = (
        None  # a library that pandas looks for: it would find the script of this name
    )
    for number in STOPS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _leave)
