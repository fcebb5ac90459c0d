"""README, the lessons, the rooms' pages and the table of claims as pages, to be read from the disk as on GitHub."""

import re
import shutil
from pathlib import Path

from shared import paths
from shared.evidence.report.links import NAME, Site, environment, write_page
from shared.evidence.report.questions import SECTIONS
from shared.evidence.report.rendering import CONTENTS, FOLDER, place, rendered, sources


def first_words(text: str) -> tuple[str, str]:
    """The title of a page and the first sentence below it, for whoever gets its link."""
    title, rest = re.match(r"# (.*)\n+([\s\S]*)", text).groups()
    sentence = " ".join(rest.split("\n\n")[0].split())
    return title, re.split(r"(?<=[.?!:]) ", re.sub(r"[*`]|\[(.*?)\]\(.*?\)", r"\1", sentence))[0]


def menu(page: Path, site: Site) -> dict[str, str]:
    """Name -> address of what every page leads to."""
    lessons = {SECTIONS[phase]: place(Path(folder, "README.md")) for phase, folder in paths.PHASES.items()}
    pages = {"Results": paths.PAGE, "Explorer": paths.EXPLORER, "Start": place(CONTENTS), **lessons}
    there = {name: to for name, to in pages.items() if to != paths.EXPLORER or (site.output_dir / to).is_file()}
    return {name: site.link(page, to) for name, to in there.items()}


def write_lesson(source: Path, site: Site) -> Path:
    """Write the page of one source; returns its path."""
    page, text = place(source), (paths.ROOT / source).read_text(encoding="utf-8")
    title, description = first_words(text)
    html = (
        environment()
        .get_template("lesson.html.jinja")
        .render(
            head=site.head(page, title if title == NAME else f"{title} · {NAME}", description),
            menu=menu(page, site),
            here=site.link(page, page),
            text=rendered(text, source, page, site),
            source=site.file(page, source),
        )
    )
    return write_page(site, page, html)


def write_lessons(site: Site) -> list[Path]:
    """Write all of them; in another output folder with the pictures that they show."""
    if site.output_dir != paths.ROOT:
        shutil.copytree(paths.ROOT / paths.GALLERY, site.output_dir / paths.GALLERY, dirs_exist_ok=True)
    shutil.rmtree(site.output_dir / FOLDER, ignore_errors=True)  # what has no source any more
    return [write_lesson(source, site) for source in sources()]
