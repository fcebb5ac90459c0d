"""How do README, lessons, rooms' pages, findings and notes become pages of the site?

They look as on GitHub: markdown-it-py follows CommonMark as GitHub does, and gives headings the
same anchors. Links lead to the rendered pages, pictures to the gallery, code to the files of the
repository. All pages have the same frame and menu, also the report page (write_pages.py).

Pages may be published alone, without the code: what a page cannot reach is not linked. Whoever
publishes says with the variable CODE_URL of the environment where the repository's files are, and
with SITE_URL where the pages will be: see .github/workflows/check_and_publish.yml.
"""

import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from markdown_it import MarkdownIt
from markdown_it.common.utils import escapeHtml
from markdown_it.token import Token
from markupsafe import Markup
from mdit_py_plugins.anchors import anchors_plugin
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from shared import paths
from shared.paths import HOME, LESSONS, place
from shared.plan import SECTIONS

CONTENTS = Path("README.md")
NOTES = Path("data", "notes.md")
SURPRISES = Path("data", "surprises.md")
PREVIEW = "gallery/phase1/qkv_flow.png"  # the picture beside a shared address
SOURCE = re.compile(r'(?<=<img src=")[^"]+')  # of a picture as HTML, which says its width
NO_HEAD = re.compile(r"<thead>\s*<tr>\s*(<th></th>\s*)+</tr>\s*</thead>")
TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent / "page"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
)


def link(page: Path, to: Path) -> str:
    """Returns the address of a page or picture as seen from another page: "../explorer.html"."""
    return Path(os.path.relpath(to, page.parent)).as_posix()


@dataclass(frozen=True)
class Site:
    """The pages below an output folder; paths are relative to it, as to the repository."""

    output_dir: Path
    code_url: str = ""

    def file(self, page: Path, name: str | Path) -> str | None:
        """Returns the address of a file of the repository as seen from a page.

        None if it cannot be reached from there.
        """
        if self.code_url:
            return f"{self.code_url.rstrip('/')}/{Path(name).as_posix()}"
        return link(page, Path(name)) if (self.output_dir / name).exists() else None

    def menu(self, page: Path) -> dict[str, str]:
        """Returns name -> address of the pages to which every page leads."""
        menu = {"Results": link(page, paths.PAGE)}
        if (self.output_dir / paths.EXPLORER).is_file():
            menu["Explorer"] = link(page, paths.EXPLORER)
        menu["Start"] = link(page, place(CONTENTS))
        for phase, folder in paths.PHASES.items():
            menu[SECTIONS[phase]] = link(page, place(Path(folder, "README.md")))
        return menu

    def write(self, page: Path, template: str, **parts: Any) -> Path:
        """Writes a page whole; returns its path on the disk.

        parts has the title, and what else the template needs.
        """
        frame = {"menu": self.menu(page), "page": page, "link": link, "place": place}
        html = TEMPLATES.get_template(template).render(**frame, **parts)
        path = self.output_dir / page
        with paths.whole_file(path) as unfinished:
            unfinished.write_text(html, encoding="utf-8")
        return path


def sources() -> list[Path]:
    """Returns the Markdown files: README, lessons, each before its rooms, and those of data/."""
    pages = [page.relative_to(paths.ROOT) for page in paths.ROOT.glob("phase*/**/README.md")]
    pages.sort(key=lambda page: page.parent.parts)
    data = [page.relative_to(paths.ROOT) for page in paths.ROOT.glob("data/*.md")]
    return [CONTENTS, *pages, *sorted(data)]


def address(to: str, source: Path, page: Path, site: Site) -> str:
    """Returns a link of a source as seen from its page; empty if it leads nowhere from there."""
    if "://" in to or to.startswith("#"):
        return to
    file, mark, anchor = to.partition("#")
    target = Path(paths.shown((paths.ROOT / source.parent / file).resolve()))
    if target in sources():
        target = place(target)
    if target.is_relative_to(HOME):
        return link(page, target) + mark + anchor
    return site.file(page, target) or ""


def colored(code: str, language: str, _attributes: str) -> str:
    """Returns Python in colours, as HTML; empty for what is printed, which stays as it is."""
    if language != "python":
        return ""
    return highlight(code, PythonLexer(), HtmlFormatter(nowrap=True))


def plain_text(_renderer: Any, tokens: Sequence[Token], at: int, *_options: Any) -> str:
    """Returns a piece of text as HTML, in which a per cent sign stays beside its number."""
    return escapeHtml(tokens[at].content.replace(" %", "\u00a0%"))


def rendered(text: str, source: Path, page: Path, site: Site) -> Markup:
    """Returns Markdown as HTML, with links as seen from the page.

    Tables and code can be scrolled, with the keyboard, too.
    """
    md = MarkdownIt("commonmark", {"highlight": colored}).enable("table")
    md.use(anchors_plugin, max_level=6)
    md.normalizeLink = lambda to: address(to, source, page, site)
    md.add_render_rule("text", plain_text)
    md.add_render_rule("table_open", lambda *_: '<div class="wide" tabindex="0"><table>')
    md.add_render_rule("table_close", lambda *_: "</table></div>")
    text = SOURCE.sub(lambda found: address(found[0], source, page, site), text)
    html = md.render(text).replace("<pre>", '<pre tabindex="0">')
    html = re.sub(r'<a href="">(.*?)</a>', r"\1", html, flags=re.DOTALL)  # leads nowhere
    html = NO_HEAD.sub("", html)  # an empty one stands there because GitHub wants one
    return Markup(html.replace("<th></th>", "<td></td>"))


def title_of(source: Path) -> str:
    """Returns the first line of a Markdown file."""
    return (paths.ROOT / source).read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")


def write_lesson(source: Path, site: Site) -> Path:
    """Writes the page of one source; returns its path."""
    page = place(source)
    html = rendered((paths.ROOT / source).read_text(encoding="utf-8"), source, page, site)
    # Before and after a room's page come rooms or lessons, beside a lesson lessons alone.
    depth = max(2, len(source.parts))
    row = [other for other in sources() if len(other.parts) <= depth]
    at = row.index(source)
    return site.write(
        page,
        "page.html.jinja",
        title=title_of(source),
        text=html,
        contents=re.findall(r'<h2 id="(.*?)">(.*?)</h2>', html),
        source=site.file(page, source),
        before=row[at - 1 : at],
        after=row[at + 1 : at + 2],
        title_of=title_of,
    )


def add_previews(output_dir: Path, site_url: str) -> None:
    """Gives each page the title, picture and address that others show beside a shared link."""
    for page in (paths.PAGE, paths.EXPLORER, *map(place, sources())):
        path = output_dir / page
        if not path.is_file():
            continue
        html = path.read_text(encoding="utf-8")
        title = re.search("<title>(.*?)</title>", html)
        shown = {
            "title": title[1],
            "url": f"{site_url}/{link(paths.PAGE, page)}",
            "image": f"{site_url}/{PREVIEW}",
        }
        tags = title[0]
        for name, said in shown.items():
            tags += f'\n<meta property="og:{name}" content="{said}">'
        path.write_text(html.replace(title[0], tags, 1), encoding="utf-8")


def write_lessons(site: Site) -> list[Path]:
    """Writes all of them; in another output folder with the pictures that they show."""
    if site.output_dir != paths.ROOT:
        gallery = site.output_dir / paths.GALLERY
        shutil.copytree(paths.ROOT / paths.GALLERY, gallery, dirs_exist_ok=True)
    shutil.rmtree(site.output_dir / LESSONS, ignore_errors=True)  # what has no source any more
    return [write_lesson(source, site) for source in sources()]
