"""What all phases share. The .venv that run_all.sh makes loads this file first (its here.pth).

Programs of others and notebooks, which load it later or not at all, stay as they are.
"""

import os
import sys

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), os.pardir))


def _is_ours(started: str) -> bool:
    """Returns whether Python was started with a file of the course, or with a module (after -m)."""
    inside = (
        os.path.relpath(os.path.realpath(started), ROOT) if started.endswith(".py") else started
    )
    package = inside.replace(os.sep, ".").split(".")[0]
    return bool(package) and os.path.isdir(os.path.join(ROOT, package))


_words = [word for word in sys.orig_argv[1:] if not word.startswith("-")]
if _words and _is_ours(_words[0]):
    # pandas looks for a library of this name, and would find our script before/bottleneck.py.
    sys.modules["bottleneck"] = None
