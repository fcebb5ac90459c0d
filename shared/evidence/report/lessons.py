"""README, the lessons, the rooms' pages and the table of claims as pages, to be read from the disk as on GitHub.

markdown-it-py follows CommonMark as GitHub does, and gives headings the same anchors. What is done here: links lead to
the rendered pages, pictures to the gallery, code to the files of the repository; a table without words in its head
loses the head; a per cent sign stays beside its number.
"""

import re
import shutil
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.common.utils import escapeHtml
from markupsafe import Markup
from mdit_py_plugins.anchors import anchors_plugin
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from shared import paths
from shared.evidence.report.links import CONTENTS, HOME, LESSONS, Site, link, place, unbroken


def sources() -> list[Path]:
    """The pages of the course, as paths in the repository: README, then lesson by lesson, the table of claims last."""
    pages = [page.relative_to(paths.ROOT) for page in paths.ROOT.glob("phase*/**/README.md")]
    return [CONTENTS, *sorted(pages, key=lambda page: page.parent.parts), Path("data", "claims.md")]


def address(to: str, source: Path, page: Path, site: Site) -> str:
    """A link of a source as seen from the page in which it is shown; empty where it leads nowhere from there."""
    if "://" in to or to.startswith("#"):
        return to
    file, mark, anchor = to.partition("#")
    target = Path(paths.shown((paths.ROOT / source.parent / file).resolve()))
    if target in sources():
        return link(page, place(target)) + mark + anchor
    if target.is_relative_to(HOME):
        return link(page, target) + mark + anchor
    return site.file(page, target) or ""


def colored(code: str, language: str, _attributes: str) -> str:
    """Python in colours; what is printed stays as it is."""
    return highlight(code, PythonLexer(), HtmlFormatter(nowrap=True)) if language == "python" else ""


def rendered(text: str, source: Path, page: Path, site: Site) -> Markup:
    """Markdown -> HTML, with links as seen from the page; tables and code can be scrolled, with the keyboard, too."""
    md = MarkdownIt("commonmark", {"highlight": colored}).enable("table").use(anchors_plugin, max_level=6)
    md.normalizeLink = lambda to: address(to, source, page, site)
    md.add_render_rule("text", lambda _, tokens, place, *more: escapeHtml(unbroken(tokens[place].content)))
    md.add_render_rule("table_open", lambda *_: '<div class="wide" tabindex="0"><table>')
    md.add_render_rule("table_close", lambda *_: "</table></div>")
    html = md.render(text).replace("<pre>", '<pre tabindex="0">')
    html = re.sub(r'<a href="">(.*?)</a>', r"\1", html, flags=re.DOTALL)  # leads nowhere
    html = re.sub(r"<thead>\s*<tr>\s*(<th></th>\s*)+</tr>\s*</thead>", "", html)  # GitHub wants a head for each table
    return Markup(html.replace("<th></th>", "<td></td>"))


def first_words(text: str) -> tuple[str, str]:
    """The title of a page and the first sentence below it, for whoever gets its link."""
    title, rest = re.match(r"# (.*)\n+([\s\S]*)", text).groups()
    sentence = " ".join(rest.split("\n\n")[0].split())
    return title, re.split(r"(?<=[.?!:]) ", re.sub(r"[*`]|\[(.*?)\]\(.*?\)", r"\1", sentence))[0]


def write_lesson(source: Path, site: Site) -> Path:
    """Write the page of one source; returns its path."""
    page, text = place(source), (paths.ROOT / source).read_text(encoding="utf-8")
    title, description = first_words(text)
    html, markdown = rendered(text, source, page, site), site.file(page, source)
    return site.write(page, "page.html.jinja", title=title, description=description, text=html, source=markdown)


def write_lessons(site: Site) -> list[Path]:
    """Write all of them; in another output folder with the pictures that they show."""
    if site.output_dir != paths.ROOT:
        shutil.copytree(paths.ROOT / paths.GALLERY, site.output_dir / paths.GALLERY, dirs_exist_ok=True)
    shutil.rmtree(site.output_dir / LESSONS, ignore_errors=True)  # what has no source any more
    return [write_lesson(source, site) for source in sources()]
