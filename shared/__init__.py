"""What all phases share. And how a program ends that somebody stops while it is still loading: in one line.

To load PyTorch takes seconds, in which Ctrl-C would print where in it. cli.run takes over when a script begins.
"""

import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn


def leave(number: int, _frame: FrameType | None) -> NoReturn:
    """Leave at once: an error might be swallowed by whoever is loading, and there is nothing to put away yet."""
    os.write(2, b"\ninterrupted while loading or leaving\n")
    os._exit(128 + number)


def _one_of_ours_was_started() -> bool:
    """Whether this process runs a file of the course. In a notebook, or in a program of others, nothing changes."""
    started = Path(getattr(sys.modules["__main__"], "__file__", None) or "/").resolve()
    root = Path(__file__).resolve().parent.parent
    return any(started.is_relative_to(folder) for folder in (root / "shared", *root.glob("phase?_*")))


if _one_of_ours_was_started():
    os.environ["MPLBACKEND"] = "Agg"  # scripts only save pictures: whatever a reader's programs show theirs with
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, leave)
