"""What a run answered, as the report page tells it: phases, in each the scripts' questions, with findings and pictures.

The picture of an experiment is called after its file; a script that draws several says so in its docstring, "Writes
a.png and b.png". Questions with a finding that the course is about come first, then the others, both as each phase's
__main__.py has its scripts.
"""

import importlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from shared import paths
from shared.evidence.claims import MEASURED, VERDICTS
from shared.plan import SECTIONS, path_of, plans, question_of


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


@dataclass(frozen=True)
class Question:
    """A script: its path, its question, its answer, table and findings of this run, and what it drew."""

    script: str
    text: str
    answer: str
    table: str
    findings: list[dict]
    pictures: list[Picture]

    @property
    def page(self) -> Path:
        """What tells of it: the page of its room, or of the phase in whose folder it stands."""
        return Path(self.script).parent / "README.md"


@dataclass(frozen=True)
class Section:
    """A phase: key, name, the path of its lesson, its questions."""

    key: str
    name: str
    lesson: Path
    questions: list[Question]

    @property
    def findings(self) -> list[dict]:
        return [finding for question in self.questions for finding in question.findings]


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


def ranked(findings: Iterable[dict]) -> list[dict]:
    """What the course is about first, then by verdict; a time without a verdict last."""
    order = (*VERDICTS, MEASURED)
    return sorted(findings, key=lambda finding: (not finding["headline"], order.index(finding["verdict"])))


def headlines_first(questions: Iterable[Question]) -> list[Question]:
    """Without those that have neither findings nor pictures."""
    there = [question for question in questions if question.findings or question.pictures]
    return sorted(there, key=lambda question: not any(finding["headline"] for finding in question.findings))


def asked(module: str, phase: str, measured: Mapping, output_dir: Path) -> Question:
    """A script with what it measured and drew in this run."""
    return Question(
        path_of(module),
        question_of(module),
        measured.get("answer", ""),
        measured.get("table", ""),
        ranked(measured.get("findings", ())),
        drawn_by(module, phase, output_dir),
    )


def sections(measured: Iterable[Mapping], output_dir: Path) -> list[Section]:
    """Everything that a run measured and drew, each once."""
    found = {content["script"]: content for content in measured}
    result = []
    for phase, plan in plans().items():
        questions = [asked(name, phase, found.get(path_of(name), {}), output_dir) for name in plan.all]
        lesson = Path(paths.PHASES[phase], "README.md")
        result.append(Section(phase, SECTIONS[phase], lesson, headlines_first(questions)))
    return result
