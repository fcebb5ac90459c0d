"""What did a run find? Its report, visualizations/index.html, to be seen in a browser.

    python shared/lab/report.py

The report begins with the live page and with whether the run agrees with the record, and goes on
with the surprises that README and data/surprises.md tell. Then it has a line for each question that
a script asks, and for each finding. A reader opens the line for what was measured
(data/processed/findings/) and drawn. The picture of an experiment is called after its file; any
other script says in its docstring what it draws.

A report may be published alone, without the code: then the variable CODE_URL of the environment
says where lessons and scripts can be read, as in .github/workflows/check_and_publish.yml.
"""

import importlib
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2
from PIL import Image

from shared import cli, paths
from shared.claims import PLURAL, all_claims
from shared.lab import pages, record
from shared.lab.findings import Finding, Judgement, SavedRun, gather
from shared.lab.gallery import SMALL_PICTURES
from shared.lab.plan import PLANS, SECTIONS, path_of, question_of

TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
)


@dataclass(frozen=True)
class Drawn:
    """A PNG or GIF: its address from the page, its caption and its pixels."""

    address: str
    caption: str
    width: int
    height: int

    @property
    def title(self) -> str:
        return pages.title_of(self.caption)


@dataclass(frozen=True)
class Question:
    """What a script asks, what it measured, and what it drew. A script may only draw."""

    module: str
    pictures: Sequence[Drawn]
    saved: SavedRun
    judgement: Judgement

    @property
    def text(self) -> str:
        return question_of(self.module)

    @property
    def script(self) -> str:
        return path_of(self.module)

    @property
    def page(self) -> str:
        """The lesson or the room that the question belongs to."""
        return f"{Path(self.script).parent.as_posix()}/README.md"


def link(output_dir: Path, file: Path) -> str:
    """Returns the address of a file as seen from the report."""
    return Path(os.path.relpath(file, output_dir / paths.HOME)).as_posix()


def drawn(output_dir: Path, file: Path) -> Drawn:
    """Reads what a picture says of itself."""
    with Image.open(file) as image:
        width, height = image.size
    return Drawn(link(output_dir, file), pages.caption_of(file), width, height)


def promised(module: str) -> set[str]:
    """Returns the names of a script's pictures: after itself, and those in its docstring."""
    script = importlib.import_module(module)
    names = set(re.findall(r"\w+\.(?:png|gif|html)\b", script.__doc__))
    own = pages.short_name(module)
    for has, suffix in {"picture": "png", "film": "gif"}.items():
        if getattr(script.main, has, None):
            names.add(f"{own}.{suffix}")
    return names


def drawn_by(module: str, phase: str, output_dir: Path) -> list[Drawn]:
    """Returns the pictures of a script that a run drew.

    They lie in their phase's folders; the poster, which belongs to all phases, lies in none.
    """
    pictures = []
    for folder in (paths.ANIMATIONS / phase, paths.PLOTS / phase, paths.PLOTS):
        for name in sorted(promised(module)):
            file = output_dir / folder / name
            if file.is_file():
                pictures.append(drawn(output_dir, file))
    return pictures


def questions_of(phase: str, measured: Mapping[str, SavedRun], output_dir: Path) -> list[Question]:
    """Returns what the scripts of a phase asked, if the run measured or drew something for it."""
    questions = []
    for module in PLANS[phase].all:
        saved = measured.get(module, SavedRun(module))
        judgement = saved.judged() if saved.runs else Judgement([])
        pictures = drawn_by(module, phase, output_dir)
        if judgement.findings or pictures:
            questions.append(Question(module, pictures, saved, judgement))
    return questions


def write_report(output_dir: Path) -> Path:
    """Writes the report of what lies below an output folder; returns its path."""
    code_url = os.environ.get("CODE_URL")

    def repository(name: str) -> str:
        """Returns where a file of the repository can be read."""
        return f"{code_url}/{name}" if code_url else link(output_dir, paths.ROOT / name)

    surprises = []
    for name, small in SMALL_PICTURES.items():
        picture = drawn(output_dir, paths.ROOT / paths.GALLERY / "seven" / f"{name}.png")
        surprises.append((picture, small))
    measured = {saved.experiment: saved for saved in gather(output_dir)}
    phases = {phase: questions_of(phase, measured, output_dir) for phase in PLANS}
    questions: list[Question] = []
    for asked_in_phase in phases.values():
        questions += asked_in_phase
    findings: list[Finding] = []
    for question in questions:
        findings += question.judgement.findings
    html = TEMPLATES.get_template("report.html.jinja").render(
        whose="the run behind this page" if code_url else "your run",
        repository=repository,
        live_page=paths.EXPLORER.name if (output_dir / paths.EXPLORER).is_file() else "",
        measured=[question for question in questions if question.saved.runs],
        versions=record.versions(),
        compared=sum(question.judgement.compared for question in questions),
        differing=[question for question in questions if question.judgement.differing],
        surprises=surprises,
        phases=phases,
        lessons={phase: f"{folder}/README.md" for phase, folder in paths.PHASES.items()},
        names=SECTIONS,
        findings=findings,
        total=len([claim for claim in all_claims() if record.verdict(claim)]),
        verdicts=PLURAL,
        counts=Counter(finding.kind for finding in findings if finding.recorded),
    )
    with paths.whole_file(output_dir / paths.PAGE) as unfinished:
        unfinished.write_text(html, encoding="utf-8")
    return output_dir / paths.PAGE


@cli.script
def main(argv: list[str] | None = None) -> None:
    options = cli.parse(cli.parser(__doc__, "--output-dir"), argv)
    path = write_report(options.output_dir)
    print(f"report page: {paths.shown(path)}  (open it in a browser)")


if __name__ == "__main__":
    cli.run(main)
