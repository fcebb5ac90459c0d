"""What a run answered, as the report page tells it: phases, in each the scripts' questions, with findings and pictures.

The picture of an experiment is called after its file; a script that draws several says so in its docstring, "Writes
a.png and b.png". Questions stand as each phase's __main__.py has its scripts.
"""

import importlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from shared import paths
from shared.evidence.report.lessons import place
from shared.plan import path_of, plans, question_of


@dataclass(frozen=True)
class Picture:
    """A PNG or GIF: where it lies below the output folder, its caption, and its pixels."""

    path: Path
    caption: str
    width: int
    height: int

    @property
    def title(self) -> str:
        """What the picture finds: the first sentence of its caption."""
        return re.split(r"(?<=[.?!])\s", self.caption)[0].removesuffix(".")

    @classmethod
    def at(cls, output_dir: Path, path: Path) -> "Picture":
        """With the caption that save_figure and save_animation kept inside the file."""
        with Image.open(output_dir / path) as image:
            caption = image.info.get("Description") or image.info.get("comment") or path.stem
            return cls(path, caption.decode() if isinstance(caption, bytes) else caption, *image.size)


def promised(module: str) -> set[str]:
    """The pictures of a script: those of its Experiment, or those that its docstring says it writes."""
    script = importlib.import_module(module)
    names = re.findall(r"[\w/]+\.(?:png|gif|html)\b", script.__doc__ or "")
    return getattr(script.main, "pictures", None) or {name.rpartition("/")[2] for name in names}


def drawn_by(module: str, phase: str, output_dir: Path) -> list[Picture]:
    """The pictures of a script that a run drew; the poster, which belongs to all phases, lies in no phase's folder."""
    folders = (paths.ANIMATIONS / phase, paths.PLOTS / phase, paths.PLOTS)
    found = [folder / name for folder in folders for name in sorted(promised(module))]
    return [Picture.at(output_dir, path) for path in found if (output_dir / path).is_file()]


def question(module: str, phase: str, saved: Mapping, output_dir: Path) -> dict[str, Any]:
    """A script: what it asks, found and drew in this run; page: its room's, or its phase's, which tells of it."""
    return {
        "script": path_of(module),
        "page": place(Path(path_of(module)).parent / "README.md"),
        "text": question_of(module),
        "answer": saved.get("answer"),
        "table": saved.get("table"),
        "findings": saved.get("findings", []),
        "pictures": drawn_by(module, phase, output_dir),
    }


def answered(measured: Iterable[Mapping], output_dir: Path) -> dict[str, list[Mapping]]:
    """Phase -> its questions: everything that a run measured and drew, each once."""
    saved, found = {content["script"]: content for content in measured}, {}
    for phase, plan in plans().items():
        asked = [question(name, phase, saved.get(path_of(name), {}), output_dir) for name in plan.all]
        found[phase] = [question for question in asked if question["findings"] or question["pictures"]]
    return found
