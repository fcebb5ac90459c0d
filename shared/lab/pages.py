"""What do README, lessons and rooms' pages link to, and what are their pictures called?

A number that comes from the record is a link to its row in data/numbers.md, and a number of runs is
a link to a claim in data/claims.md. Whether what is said in a link agrees with the record, is asked
in shared/lab/tests/test_record.py. The alt text of a picture is its title; `publish` writes it. No
other file of the laboratory reads or writes the pages.
"""

import re
from collections.abc import Iterator
from html import escape
from pathlib import Path

from PIL import Image

from shared import paths
from shared.lab import record
from shared.lab.plan import scripts

LINK = re.compile(
    r"\[(?P<words>[^][]+)\]\((?:[./]*data/)?(?P<page>claims|numbers)\.md#(?P<anchor>[^\s)]+)\)"
)
SIGNS = {"≤": "at most", "≥": "at least", "√": "root ", "<": "below", ">": "above", "*": "times"}
SHOWN = re.compile(r"visualizations/gallery/([\w/]+\.(?:png|gif|svg))")
PICTURE = re.compile(r"!\[(?P<alt>[^]]*)\](?=\([./]*visualizations/gallery/(?P<name>[^)]+)\))")
SMALL_PICTURE = re.compile(
    r'<img src="[./]*visualizations/gallery/(?P<name>[^"]+)" alt="(?P<alt>[^"]*)"'
)
OF_PICTURE = re.compile(
    r"(?<!!)\[(?P<words>[^][]+)\]\([./]*visualizations/gallery/(?P<name>[\w/]+\.(?:png|gif))\)"
)
BY_HAND = (".svg", "live_page.gif")  # pictures that no run draws: their alt texts are by hand, too


def pages() -> list[Path]:
    """Returns README, the pages of data/ that are written by hand, the lessons and the rooms."""
    by_hand = [paths.ROOT / "README.md"]
    for name in ("notes.md", "surprises.md", "teaching.md"):
        by_hand.append(paths.ROOT / "data" / name)
    return [*by_hand, *sorted(paths.ROOT.glob("phase*/**/README.md"))]


def linked_pictures() -> list[str]:
    """Returns the pictures that a README shows, as paths below the gallery."""
    names = set()
    for page in pages():
        names.update(SHOWN.findall(page.read_text(encoding="utf-8")))
    return sorted(names)


# ---- what pictures say


def is_made_by_hand(name: str) -> bool:
    """Returns whether a picture of the gallery is one that no run draws."""
    return name.endswith(BY_HAND)


def caption_of(file: Path) -> str:
    """Returns what a PNG or GIF says of itself: its title, then more."""
    with Image.open(file) as image:
        caption = image.info.get("Description") or image.info.get("comment") or file.stem
    return caption.decode() if isinstance(caption, bytes) else caption


def title_of(caption: str) -> str:
    """Returns the first sentence of a caption."""
    return re.split(r"(?<=[.?!])\s", caption)[0].removesuffix(".")


def with_titles(text: str) -> str:
    """Returns a page in which the alt text of each picture is the picture's title."""

    def titled(match: re.Match) -> str:
        if is_made_by_hand(match["name"]):
            return match[0]
        title = title_of(caption_of(paths.ROOT / paths.GALLERY / match["name"]))
        if match.re is PICTURE:
            return f"![{title}]"
        return match[0].replace(f'alt="{match["alt"]}"', f'alt="{escape(title)}"')

    return SMALL_PICTURE.sub(titled, PICTURE.sub(titled, text))


def write_titles() -> None:
    """Writes titles into all pages."""
    for page in pages():
        titled = with_titles(page.read_text(encoding="utf-8"))
        page.write_text(titled, encoding="utf-8", newline="\n")


# ---- rows of the table of numbers


def short_name(module: str) -> str:
    """Returns an experiment as anchors call it, by the name of its file: "scaling"."""
    return module.rpartition(".")[2]


def anchor_of(module: str, number: str) -> str:
    """Returns the anchor of a number's row."""
    for sign, word in SIGNS.items():
        number = number.replace(sign, word)
    return f"{short_name(module)}:{re.sub(r'[^a-z0-9.]+', '-', number.lower()).strip('-')}"


def rows() -> Iterator[tuple[str, str, str]]:
    """Yields anchor, experiment and name of every number, one experiment after another."""
    for module, name in record.read()[["experiment", "number"]].drop_duplicates().to_numpy():
        yield anchor_of(module, name), module, name


def linked_experiments() -> set[str]:
    """Returns the modules whose numbers the pages quote, on record or not."""
    quoted = set()
    for page in pages():
        for quote in LINK.finditer(page.read_text(encoding="utf-8")):
            if quote["page"] == "numbers":
                quoted.add(quote["anchor"].partition(":")[0])
    return {module for module in scripts() if short_name(module) in quoted}
