"""How do README, lessons, rooms' pages and those of data/ become HTML, to be read beside a run?

markdown-it-py follows CommonMark as GitHub does, and its plugin gives headings the same anchors. A
link to a Markdown file leads to its page, a link to any other file to the repository. Pages may be
published alone, without the code: then the variable CODE_URL of the environment says where the
repository's files are, as in .github/workflows/check_and_publish.yml.
"""

import os
import re
from pathlib import Path

from markdown_it import MarkdownIt
from mdit_py_plugins.anchors import anchors_plugin

from shared import paths
from shared.paths import place

MARKDOWN = MarkdownIt("commonmark").enable("table").use(anchors_plugin, max_level=6)
FILE = re.compile(r'(?P<of>href="|src=")(?P<name>[^"#:]+)(?=["#])')  # no "#anchor", no "https:"


def sources() -> list[Path]:
    """Returns the Markdown files of which pages are made."""
    files = [paths.ROOT / "README.md", paths.ROOT / ".github" / "CONTRIBUTING.md"]
    files += [*paths.ROOT.glob("phase*/**/README.md"), *paths.ROOT.glob("data/*.md")]
    return [file.relative_to(paths.ROOT) for file in files]


def link(page: Path, to: Path) -> str:
    """Returns the address of a page or picture as seen from another page: "../explorer.html"."""
    return Path(os.path.relpath(to, page.parent)).as_posix()


def address(output_dir: Path, page: Path, name: str | Path) -> str:
    """Returns where a page finds a file of the repository; a Markdown file is found as its page."""
    file = Path(name)
    if file.suffix == ".md":
        file = place(file)
    if file.suffix == ".html":
        return link(page, file)
    code_url = os.environ.get("CODE_URL")
    if code_url and not file.is_relative_to(paths.HOME):
        return f"{code_url}/{file.as_posix()}"
    return link(output_dir / page, paths.ROOT / file)


def rendered(text: str, source: Path, page: Path, output_dir: Path) -> str:
    """Returns the Markdown of a source as HTML, with its links as seen from a page."""

    def with_address(found: re.Match) -> str:
        file = os.path.normpath(source.parent / found["name"])
        return found["of"] + address(output_dir, page, file)

    return FILE.sub(with_address, MARKDOWN.render(text))
