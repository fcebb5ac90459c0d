"""What a run answered, as the report page tells it: phases, in each the scripts' questions, with findings and pictures.

Each script asks a question in the first line of its docstring and says there which pictures it writes, so that a
finding stands beside the pictures of the script that measured it. Questions with a finding that the course is about
come first, then the others, both as each phase's __main__.py has its scripts.
"""

import ast
import importlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image

from shared import paths
from shared.evidence.claims import VERDICTS, all_claims
from shared.evidence.report.numbers import shown_numbers

SECTIONS = {
    "phase1": "1 · One head",
    "phase2": "2 · Many heads",
    "phase3": "3 · What they do",
    "phase4": "4 · Without a future",
}


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


@dataclass
class Question:
    """A script: its path, its question, what it measured and drew. Of what no script promises, the pictures alone."""

    script: str
    text: str
    findings: list[dict] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)


@dataclass(frozen=True)
class Section:
    """A phase: key, name, the path of its lesson if it is one, its questions."""

    key: str
    name: str
    lesson: Path | None
    questions: list[Question]

    @property
    def findings(self) -> list[dict]:
        return [finding for question in self.questions for finding in question.findings]


def promised(doc: str) -> set[str]:
    """The pictures that the docstring of a script says it writes: "Writes a.png and b.gif to ..."."""
    sentences = re.findall(r"[Ww]rites\s(.*?)(?:\.\s|\.?$)", doc.strip(), re.DOTALL)
    return {name.split("/")[-1] for said in sentences for name in re.findall(r"[\w/]+\.(?:png|gif|html)\b", said)}


def docstring(script: str) -> str:
    """Of a script by its path; without running it."""
    file = paths.ROOT / script
    return (file.is_file() and ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))) or script


def reading_order(phase: str) -> list[str]:
    """The scripts of a phase by their paths, as its __main__.py has them."""
    plan = importlib.import_module(f"{paths.PHASES[phase]}.__main__").PLAN
    return [f"{paths.PHASES[phase]}/{name.replace('.', '/')}.py" for name in plan.scripts + plan.alone + plan.longer]


def pictures(output_dir: Path) -> list[Path]:
    """Every PNG and GIF that a run drew; the small ones of the front stand there."""
    drawn = [path for kind in (paths.PLOTS, paths.ANIMATIONS) for path in paths.whole_files(output_dir / kind, "**/*")]
    found = sorted(path.relative_to(output_dir) for path in drawn if path.suffix in (".png", ".gif"))
    return [path for path in found if path.parent.name != "seven"]


def ranked(findings: Iterable[dict]) -> list[dict]:
    """What the course is about first, then by verdict; a time without a verdict last."""

    def rank(finding: dict) -> tuple[bool, int]:
        verdict = finding["verdict"]
        return not finding["headline"], VERDICTS.index(verdict) if verdict in VERDICTS else len(VERDICTS)

    return sorted(findings, key=rank)


def question(script: str, phase: str, findings: list[dict], drawn: list[Path], output_dir: Path) -> Question:
    """A script with what it measured and drew; the poster, which belongs to all phases, lies in no phase's folder."""
    doc = docstring(script)
    folders = (phase, paths.PLOTS.name)
    own = [path for path in drawn if path.name in promised(doc) and path.parent.name in folders]
    measured = ranked(finding for finding in findings if finding["script"] == script)
    return Question(script, doc.splitlines()[0], measured, [Picture.at(output_dir, path) for path in own])


def headlines_first(questions: Iterable[Question]) -> list[Question]:
    """Without those that have neither findings nor pictures."""
    there = [question for question in questions if question.findings or question.pictures]
    return sorted(there, key=lambda question: not any(finding["headline"] for finding in question.findings))


def sections(findings: list[dict], output_dir: Path) -> list[Section]:
    """Everything that a run measured and drew, each once."""
    claims = {claim.id: claim for claim in all_claims()}
    findings = [finding | {"numbers": shown_numbers(finding, claims.get(finding["id"]))} for finding in findings]
    drawn, found = pictures(output_dir), []
    for phase, name in SECTIONS.items():
        ran = [finding["script"] for finding in findings if finding["script"].startswith(paths.PHASES[phase])]
        scripts = dict.fromkeys([*reading_order(phase), *ran])
        questions = [question(script, phase, findings, drawn, output_dir) for script in scripts]
        found.append(Section(phase, name, Path(paths.PHASES[phase], "README.md"), headlines_first(questions)))
    used = {picture.path for section in found for question in section.questions for picture in question.pictures}
    if others := [Picture.at(output_dir, path) for path in drawn if path not in used]:
        found.append(Section("others", "Other pictures", None, [Question("", "", [], others)]))
    return found
