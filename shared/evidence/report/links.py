"""Where the pages lie, what they may link to, and the frame that all of them have.

Pages are read from the disk, or published alone, without the code. What a page cannot reach is not linked. Whoever
publishes says with the variable of the environment CODE_URL where the repository's files are then: see
.github/workflows/check_and_publish.yml.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from shared import paths
from shared.plan import SECTIONS

HOME = paths.PAGE.parent
LESSONS = HOME / "lessons"
CONTENTS = Path("README.md")


def unbroken(text: str) -> str:
    """With a range, and a per cent sign, that stay in one line: "68–73 %"."""
    return re.sub(r"(?<=\d)–(?=\d)", "–\u2060", re.sub(r"(?<=\d) %", "\u00a0%", text))


FOLDER = Path(__file__).parent / "page"
TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(FOLDER), autoescape=True, undefined=jinja2.StrictUndefined
)
TEMPLATES.filters["unbroken"] = unbroken


def place(source: Path) -> Path:
    """Where the page of a Markdown file lies: phase1/README.md -> visualizations/lessons/phase1/index.html."""
    name = "index" if source.stem == "README" else source.stem
    return LESSONS / source.parent / f"{name}.html"


def link(page: Path, to: Path) -> str:
    """Address of a page or picture as seen from another page: "../explorer.html"."""
    return Path(os.path.relpath(to, page.parent)).as_posix()


@dataclass(frozen=True)
class Site:
    """The pages below an output folder. Paths of pages and files are relative to it, as to the repository."""

    output_dir: Path
    code_url: str = ""

    def file(self, page: Path, name: str | Path) -> str | None:
        """Address of a file of the repository as seen from a page, or None where it cannot be reached."""
        if self.code_url:
            return f"{self.code_url.rstrip('/')}/{Path(name).as_posix()}"
        return link(page, Path(name)) if (self.output_dir / name).exists() else None

    @property
    def menu(self) -> dict[str, Path]:
        """What every page leads to: name -> page."""
        lessons = {SECTIONS[phase]: place(Path(folder, "README.md")) for phase, folder in paths.PHASES.items()}
        explorer = {"Explorer": paths.EXPLORER} if (self.output_dir / paths.EXPLORER).is_file() else {}
        return {"Results": paths.PAGE, **explorer, "Start": place(CONTENTS), **lessons}

    def write(self, page: Path, template: str, **parts: Any) -> Path:
        """Write a page whole; returns its path on the disk. parts: title, description, and what the template needs."""
        menu = {name: link(page, to) for name, to in self.menu.items()}
        html = TEMPLATES.get_template(template).render(menu=menu, here=link(page, page), **parts)
        path = self.output_dir / page
        with paths.whole_file(path) as unfinished:
            unfinished.write_text(html, encoding="utf-8")
        return path
