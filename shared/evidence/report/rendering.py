"""Markdown of the course as HTML: the page of a source lies below visualizations/lessons/ where the source lies.

markdown-it-py follows CommonMark as GitHub does, and gives headings the same anchors. What is done here: links lead to
the rendered pages, pictures to the gallery, code to the files of the repository; a table without words in its head
loses the head; a per cent sign stays beside its number.
"""

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup
from mdit_py_plugins.anchors import anchors_plugin
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name

from shared import paths
from shared.evidence.report.links import HOME, Site

FOLDER = HOME / "lessons"
CONTENTS = Path("README.md")


def sources() -> list[Path]:
    """The pages of the course, as paths in the repository: README, then lesson by lesson, the table of claims last."""
    pages = sorted(paths.ROOT.glob("phase*/README.md")) + sorted(paths.ROOT.glob("phase*/*/README.md"))
    in_order = sorted((page.relative_to(paths.ROOT) for page in pages), key=lambda page: page.parent.parts)
    return [CONTENTS, *in_order, Path("data", "claims.md")]


def place(source: Path) -> Path:
    """Where the page of a source lies: phase1/README.md -> visualizations/lessons/phase1/index.html."""
    name = "index" if source.stem == "README" else source.stem
    return FOLDER / source.parent / f"{name}.html"


def address(link: str, source: Path, page: Path, site: Site) -> str | None:
    """A link of a source as seen from the page in which it is shown; None where it leads nowhere from there."""
    if "://" in link or link.startswith("#"):
        return link
    file, mark, anchor = link.partition("#")
    target = Path(paths.shown((paths.ROOT / source.parent / file).resolve()))
    if target in sources():
        return site.link(page, place(target)) + mark + anchor
    if target.is_relative_to(HOME):
        return site.link(page, target) + mark + anchor
    return site.file(page, target)


def walk(tokens: list[Token]) -> Iterator[Token]:
    for token in tokens:
        yield token
        yield from walk(token.children or [])


def relink(tokens: list[Token], to: Callable[[str], str | None]) -> None:
    """Every link and picture gets its new address; a link that leads nowhere becomes plain text."""
    dead = []
    for token in walk(tokens):
        if token.type == "image":
            token.attrSet("src", to(str(token.attrGet("src"))) or "")
        elif token.type == "link_open":
            href = to(str(token.attrGet("href")))
            token.attrs = {"href": href} if href else {}
            dead.append(not href)
        if token.type in ("link_open", "link_close") and (dead[-1] if token.nesting > 0 else dead.pop()):
            token.tag = "span"


def without_empty_heads(tokens: list[Token]) -> list[Token]:
    """GitHub wants a head for each table. An empty one is left out here, and an empty cell of one heads nothing."""
    kept, head = [], []
    for place, token in enumerate(tokens):
        if token.type in ("th_open", "th_close") and not tokens[place + token.nesting].content:
            token.tag = "td"
        in_head = head or token.type == "thead_open"
        (head if in_head else kept).append(token)
        if token.type == "thead_close":
            kept += head if any(part.content for part in head) else []
            head = []
    return kept


def colored(code: str, language: str, _attributes: str) -> str:
    """Python in colours; what is printed stays as it is."""
    return highlight(code, get_lexer_by_name("python"), HtmlFormatter(nowrap=True)) if language == "python" else ""


def unbroken(text: str) -> str:
    """With a range, and a per cent sign, that stay in one line: "68–73 %"."""
    return re.sub(r"(?<=\d)–(?=\d)", "–\u2060", re.sub(r"(?<=\d) %", "\u00a0%", text))


def keep_together(tokens: list[Token]) -> None:
    """Ranges and per cent signs, but not in code, which is there to be copied."""
    for token in walk(tokens):
        if token.type == "text":
            token.content = unbroken(token.content)


def reader() -> MarkdownIt:
    """What GitHub understands of what the lessons use; tables and code can be scrolled, with the keyboard, too."""
    md = MarkdownIt("commonmark", {"highlight": colored}).enable("table").use(anchors_plugin, max_level=6)
    md.add_render_rule("table_open", lambda *_: '<div class="wide" tabindex="0"><table>')
    md.add_render_rule("table_close", lambda *_: "</table></div>")
    return md


def rendered(text: str, source: Path, page: Path, site: Site) -> Markup:
    """Markdown -> HTML, with links as seen from the page."""
    md = reader()
    tokens = without_empty_heads(md.parse(text))
    keep_together(tokens)
    relink(tokens, partial(address, source=source, page=page, site=site))
    html = md.renderer.render(tokens, md.options, {})
    return Markup(html.replace("<pre>", '<pre tabindex="0">'))


def inline(text: str, site: Site) -> Markup:
    """A line of README for the report page, without a paragraph around it."""
    html = rendered(text, CONTENTS, paths.PAGE, site)
    return Markup(html.strip().removeprefix("<p>").removesuffix("</p>"))
