"""Where the pages lie, what they may link to, and the head that all of them have.

Pages are read from the disk, or published alone, without the code. What a page cannot reach is not linked. Whoever
publishes says with two variables of the environment where things are then: SITE_URL is the address of the folder
visualizations/, CODE_URL that of the repository's files. See .github/workflows/check_and_publish.yml.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import jinja2
from markupsafe import Markup

from shared import paths

FOLDER = Path(__file__).parent / "page"
HOME = paths.PAGE.parent
NAME = "Attention, built from scratch and measured"


def environment() -> jinja2.Environment:
    """The templates of the pages; what they forget is an error."""
    return jinja2.Environment(loader=jinja2.FileSystemLoader(FOLDER), autoescape=True, undefined=jinja2.StrictUndefined)


@dataclass(frozen=True)
class Site:
    """The pages below an output folder. Paths of pages and files are relative to it, as to the repository."""

    output_dir: Path
    url: str = ""  # ends in "/", or is empty: then nothing is known but the disk
    code_url: str = ""

    @classmethod
    def at(cls, output_dir: Path) -> "Site":
        """The site as the environment says; an address that somebody wrote without its last "/" gets it."""
        said = (os.environ.get(name, "") for name in ("SITE_URL", "CODE_URL"))
        return cls(output_dir, *(url and url.rstrip("/") + "/" for url in said))

    def link(self, page: Path, to: Path) -> str:
        """Address of a page or picture as seen from another page: "../explorer.html"."""
        return Path(os.path.relpath(to, page.parent)).as_posix()

    def file(self, page: Path, name: str | Path) -> str | None:
        """Address of a file of the repository as seen from a page, or None where it cannot be reached."""
        if self.code_url:
            return f"{self.code_url}{Path(name).as_posix()}"
        return self.link(page, Path(name)) if (self.output_dir / name).exists() else None

    def head(self, page: Path, title: str, description: str) -> Markup:
        """What stands in the <head> of a page: title, description, and what is shown where somebody sends its link."""
        address = self.url and self.url + page.relative_to(HOME).as_posix()
        template = environment().get_template("head.html.jinja")
        return Markup(template.render(title=title, description=description, address=address, name=NAME))


def write_page(site: Site, page: Path, html: str) -> Path:
    """Write a page whole; returns its path on the disk."""
    path = site.output_dir / page
    with paths.whole_file(path) as unfinished:
        unfinished.write_text(html, encoding="utf-8")
    return path
