"""The site: where its pages lie, what they may link to, the frame that all have, and the lessons
among them.

README, the lessons, the rooms' pages, the table of claims and what course notes say look as on
GitHub: markdown-it-py follows CommonMark as it does, and gives headings the same anchors. What is
done here: links lead to the rendered pages, pictures to the gallery, code to the files of the
repository; a per cent sign stays beside its number.

Pages may be published alone, without the code. What a page cannot reach is not linked. Whoever
publishes says with the variable CODE_URL of the environment where the repository's files are, and
with SITE_URL where the pages will be: see .github/workflows/check_and_publish.yml.
"""

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from markdown_it import MarkdownIt
from markdown_it.common.utils import escapeHtml
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
PREVIEW = "gallery/phase1/qkv_flow.png"  # the picture beside a shared address
TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent / "page"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
)


def link(page: Path, to: Path) -> str:
    """Address of a page or picture as seen from another page: "../explorer.html"."""
    return Path(os.path.relpath(to, page.parent)).as_posix()


@dataclass(frozen=True)
class Site:
    """The pages below an output folder. Paths of pages and files are relative to it, as to the
    repository.
    """

    output_dir: Path
    code_url: str = ""

    def file(self, page: Path, name: str | Path) -> str | None:
        """Address of a file of the repository as seen from a page, or None where it cannot be
        reached.
        """
        if self.code_url:
            return f"{self.code_url.rstrip('/')}/{Path(name).as_posix()}"
        return link(page, Path(name)) if (self.output_dir / name).exists() else None

    def write(self, page: Path, template: str, **parts: Any) -> Path:
        """Write a page whole, with a menu; returns its path on the disk. parts: title, and what the
        template needs.
        """
        lessons = {
            SECTIONS[phase]: place(Path(folder, "README.md"))
            for phase, folder in paths.PHASES.items()
        }
        explorer = (
            {"Explorer": paths.EXPLORER} if (self.output_dir / paths.EXPLORER).is_file() else {}
        )
        there = {"Results": paths.PAGE, **explorer, "Start": place(CONTENTS), **lessons}
        menu = {name: link(page, to) for name, to in there.items()}
        html = TEMPLATES.get_template(template).render(menu=menu, page=page, link=link, **parts)
        path = self.output_dir / page
        with paths.whole_file(path) as unfinished:
            unfinished.write_text(html, encoding="utf-8")
        return path


def sources() -> list[Path]:
    """The pages of the course, as paths in the repository: README, lesson by lesson, and those of
    data/ last.
    """
    pages = [page.relative_to(paths.ROOT) for page in paths.ROOT.glob("phase*/**/README.md")]
    return [
        CONTENTS,
        *sorted(pages, key=lambda page: page.parent.parts),
        Path("data", "claims.md"),
        NOTES,
    ]


def address(to: str, source: Path, page: Path, site: Site) -> str:
    """A link of a source as seen from the page in which it is shown; empty where it leads nowhere
    from there.
    """
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
    """Python in colours; what is printed stays as it is."""
    return (
        highlight(code, PythonLexer(), HtmlFormatter(nowrap=True)) if language == "python" else ""
    )


def rendered(text: str, source: Path, page: Path, site: Site) -> Markup:
    """Markdown -> HTML, with links as seen from the page; tables and code can be scrolled, with the
    keyboard, too.
    """
    md = (
        MarkdownIt("commonmark", {"highlight": colored})
        .enable("table")
        .use(anchors_plugin, max_level=6)
    )
    md.normalizeLink = lambda to: address(to, source, page, site)
    md.add_render_rule(
        "text", lambda _, tokens, at, *more: escapeHtml(tokens[at].content.replace(" %", "\u00a0%"))
    )
    md.add_render_rule("table_open", lambda *_: '<div class="wide" tabindex="0"><table>')
    md.add_render_rule("table_close", lambda *_: "</table></div>")
    html = md.render(text).replace("<pre>", '<pre tabindex="0">')
    html = re.sub(r'<a href="">(.*?)</a>', r"\1", html, flags=re.DOTALL)  # leads nowhere
    html = re.sub(
        r"<thead>\s*<tr>\s*(<th></th>\s*)+</tr>\s*</thead>", "", html
    )  # GitHub wants a head for each table
    return Markup(html.replace("<th></th>", "<td></td>"))


def title_of(source: Path) -> str:
    """The first line of a Markdown file."""
    return (paths.ROOT / source).read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")


def write_lesson(source: Path, site: Site) -> Path:
    """Write the page of one source; returns its path. Before and after a lesson come lessons,
    beside a room rooms.
    """
    page = place(source)
    html = rendered((paths.ROOT / source).read_text(encoding="utf-8"), source, page, site)
    row = [other for other in sources() if len(other.parts) <= max(2, len(source.parts))]
    at = row.index(source)
    around = {
        "before": row[at - 1 : at],
        "after": row[at + 1 : at + 2],
        "place": place,
        "title_of": title_of,
    }
    parts = {
        "contents": re.findall(r'<h2 id="(.*?)">(.*?)</h2>', html),
        "source": site.file(page, source),
    }
    return site.write(page, "page.html.jinja", title=title_of(source), text=html, **parts, **around)


def add_previews(output_dir: Path, site_url: str) -> None:
    """Give each finished page what others show beside a shared link: its title and a picture, by
    full addresses.
    """
    for page in (paths.PAGE, paths.EXPLORER, *map(place, sources())):
        if (path := output_dir / page).is_file():
            html = path.read_text(encoding="utf-8")
            title = re.search("<title>(.*?)</title>", html)
            shown = {
                "title": title[1],
                "url": f"{site_url}/{link(paths.PAGE, page)}",
                "image": f"{site_url}/{PREVIEW}",
            }
            tags = "".join(
                f'\n<meta property="og:{name}" content="{said}">' for name, said in shown.items()
            )
            path.write_text(html.replace(title[0], title[0] + tags, 1), encoding="utf-8")


def write_lessons(site: Site) -> list[Path]:
    """Write all of them; in another output folder with the pictures that they show."""
    if site.output_dir != paths.ROOT:
        shutil.copytree(
            paths.ROOT / paths.GALLERY, site.output_dir / paths.GALLERY, dirs_exist_ok=True
        )
    shutil.rmtree(site.output_dir / LESSONS, ignore_errors=True)  # what has no source any more
    return [write_lesson(source, site) for source in sources()]
