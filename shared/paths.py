"""Where are data, pictures and checkpoints? All paths derive from where this repository lies."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOY_SEQUENCES = ROOT / "data" / "raw" / "toy_sequences.txt"
PRONOUN_PAIRS = ROOT / "data" / "raw" / "pronoun_pairs.txt"
EVIDENCE = ROOT / "data" / "evidence.csv"
CHECKPOINTS = ROOT / "models" / "checkpoints"

PHASES = {  # as commands and folders of pictures call them -> their folder
    "phase1": "phase1_single_head",
    "phase2": "phase2_multi_head",
    "phase3": "phase3_visualization",
    "phase4": "phase4_causal",
}

# What scripts write lies below an output folder: the repository itself, or what --output-dir names.
PLOTS = Path("visualizations", "plots")
ANIMATIONS = Path("visualizations", "animations")
GALLERY = Path("visualizations", "gallery")
HOME = Path("visualizations")  # of all pages
PAGE = HOME / "index.html"
EXPLORER = HOME / "explorer.html"
PROCESSED = Path("data", "processed")

written: list[Path] = []  # by this process, so that whoever ran a script can say what it made


def check_writable(folder: Path) -> None:
    """Make the folder if need be. Raises OSError, which names it, if one cannot write there."""
    with errors_name(folder):
        folder.mkdir(parents=True, exist_ok=True)
        # With a name that is new, since two scripts may try at once.
        tempfile.TemporaryFile(dir=folder).close()


def text_of(path: str | Path, most: int = -1) -> str:
    """The text of a file of the reader's, in UTF-8, or so many characters at its beginning.

    Windows may have put a mark in front. Raises OSError for what cannot be opened, and ValueError
    for other bytes, a folder, and a pipe, which might wait for ever.
    """
    if Path(path).exists() and not Path(path).is_file():
        raise ValueError(f'"{path}" is a folder or no file: name a text in UTF-8')
    try:
        with open(path, encoding="utf-8-sig") as file:
            return file.read(most)
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a text file in UTF-8") from None


@contextmanager
def errors_name(path: Path) -> Iterator[None]:
    """Within the block, the error of whatever cannot be read or written names this path."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        raise


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path, which becomes `path` only if the block succeeds."""
    # Each process has a name of its own, since two may write the same. Writers ask for the suffix.
    unfinished = path.with_name(f".{os.getpid()}.{path.name}")
    with errors_name(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield unfinished
            unfinished.replace(path)
            written.append(path)
        finally:
            unfinished.unlink(missing_ok=True)


def shown(path: Path) -> str:
    """Returns a path as a reader of the repository would write it, with "/" on Windows, too."""
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else str(path)
