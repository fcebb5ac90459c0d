"""Where things are, in one place, derived from where this repository lies and never from the working directory."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOY_SEQUENCES = ROOT / "data" / "raw" / "toy_sequences.txt"
PRONOUN_PAIRS = ROOT / "data" / "raw" / "pronoun_pairs.txt"
EVIDENCE = ROOT / "data" / "evidence.json"
CHECKPOINTS = ROOT / "models" / "checkpoints"

PHASES = {  # as commands and folders of pictures call them -> their folder
    "phase1": "phase1_single_head",
    "phase2": "phase2_multi_head",
    "phase3": "phase3_visualization",
    "phase4": "phase4_causal",
}

# What scripts write lies under an output folder, the repository itself unless --output-dir names another one.
PLOTS = Path("visualizations", "plots")
ANIMATIONS = Path("visualizations", "animations")
GALLERY = Path("visualizations", "gallery")
PAGE = Path("visualizations", "index.html")
EXPLORER = Path("visualizations", "explorer.html")
PROCESSED = Path("data", "processed")

written: list[Path] = []  # by this process, so that whoever ran a script can say what it made
PATIENCE = 50  # tries, a tenth of a second apart


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path that becomes `path` only if the block succeeds: a file is whole or not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{os.getpid()}.{path.name}")  # keeps the suffix, from which writers pick the format
    try:
        yield unfinished
        _replace(unfinished, path)
        written.append(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _replace(unfinished: Path, path: Path) -> None:
    """Rename, also over a file that is there. On Windows nobody may have that open: wait for who reads it just now."""
    for _ in range(PATIENCE):
        try:
            return os.replace(unfinished, path)
        except PermissionError as error:
            denied = error
            time.sleep(0.1)
    raise denied


def shown(path: Path) -> str:
    """A path as a reader of the repository would write it, with "/" on Windows, too."""
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else str(path)
