"""What a run answered, as the report page tells it: phases, in each the scripts' questions, with findings and pictures.

The picture of an experiment is called after its file; a script that draws several says so in its docstring, "Writes
a.png and b.png". Questions with a finding that the
course is about come first, then the others, both as each phase's __main__.py has its scripts.
"""

import importlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from shared import paths
from shared.evidence.claims import VERDICTS
from shared.plan import SECTIONS, path_of, plans, question_of

PHASE_OF = {folder: phase for phase, folder in paths.PHASES.items()}


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


def pictures(output_dir: Path) -> list[Path]:
    """Every PNG and GIF that a run drew; the small ones of the front stand there."""
    drawn = [path for kind in (paths.PLOTS, paths.ANIMATIONS) for path in paths.whole_files(output_dir / kind, "**/*")]
    found = sorted(path.relative_to(output_dir) for path in drawn if path.suffix in (".png", ".gif"))
    return [path for path in found if path.parent.name != "seven"]


def promised(module: str) -> set[str]:
    """The pictures of a script: those of its Experiment, or those that its docstring says it writes."""
    script = importlib.import_module(module)
    names = re.findall(r"[\w/]+\.(?:png|gif|html)\b", script.__doc__ or "")
    return getattr(script.main, "pictures", None) or {name.rpartition("/")[2] for name in names}


def drawn_by(module: str, drawn: Iterable[Path]) -> list[Path]:
    """Of all pictures those of a script; the poster, which belongs to all phases, lies in no phase's folder."""
    folders = (PHASE_OF[module.partition(".")[0]], paths.PLOTS.name)
    return [path for path in drawn if path.name in promised(module) and path.parent.name in folders]


def ranked(findings: Iterable[dict]) -> list[dict]:
    """What the course is about first, then by verdict; a time without a verdict last."""

    def rank(finding: dict) -> tuple[bool, int]:
        verdict = finding["verdict"]
        return not finding["headline"], VERDICTS.index(verdict) if verdict in VERDICTS else len(VERDICTS)

    return sorted(findings, key=rank)


def question(module: str, measured: dict | None, drawn: list[Path], output_dir: Path) -> Question:
    """A script with what it measured and drew."""
    found = measured or {"answer": "", "table": "", "findings": []}
    own = [Picture.at(output_dir, path) for path in drawn_by(module, drawn)]
    return Question(
        path_of(module), question_of(module), found["answer"], found["table"], ranked(found["findings"]), own
    )


def headlines_first(questions: Iterable[Question]) -> list[Question]:
    """Without those that have neither findings nor pictures."""
    there = [question for question in questions if question.findings or question.pictures]
    return sorted(there, key=lambda question: not any(finding["headline"] for finding in question.findings))


def sections(measured: Iterable[dict], output_dir: Path) -> list[Section]:
    """Everything that a run measured and drew, each once."""
    of, drawn, found = {content["script"]: content for content in measured}, pictures(output_dir), []
    for phase, plan in plans().items():
        asked = [question(name, of.get(path_of(name)), drawn, output_dir) for name in plan.all]
        found.append(Section(phase, SECTIONS[phase], Path(paths.PHASES[phase], "README.md"), headlines_first(asked)))
    return found
