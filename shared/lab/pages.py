"""Do README, lessons and rooms' pages say what record and pictures say?

A number that comes from the record is a link to its row in data/numbers.md, and what is said in the
link must agree with that row. A number of runs is a link to a claim in data/claims.md. A number
that a picture shows is a link to the picture, and must stand in its caption.

    [0.97](../data/numbers.md#bottleneck:luong-24-letters)        of the run with seed 0
    [39 to 44 %](../data/numbers.md#bottleneck:none-24-letters)   where another seed falls
    [at least 84 %](../data/numbers.md#scaling:divided-best-rate) the lower end; at most: the upper
    [about 40 %](...)                         in the middle half of that range
    [9 of 10](../data/claims.md#patching-lookers)                  the runs in which the rule holds
    [six of the eight](../visualizations/gallery/phase3/head_roles.png)

What is said in words alone ("nearly all", "about a third") is the author's to judge; that its link
leads to a row is checked. The alt text of a picture is its title; `publish` writes it. No other
file of the laboratory reads or writes the pages.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from math import ceil, floor
from pathlib import Path

from PIL import Image

from shared import paths
from shared.claims import all_claims
from shared.lab import record
from shared.lab.plan import scripts

LINK = re.compile(
    r"\[(?P<words>[^][]+)\]\((?:[./]*data/)?(?P<page>claims|numbers)\.md#(?P<anchor>[^\s)]+)\)"
)
DIGITS = r"-?\d[\d,]*(?:\.\d+)?"
NUMBER = re.compile(
    rf"(?P<bound>at least |at most |about )?(?P<low>{DIGITS})(?: ?%)?"
    rf"(?:(?: to |–)(?P<high>{DIGITS}))?(?P<percent> ?%)?",
    re.IGNORECASE,
)
WORDS = {
    "none": 0, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5,
    "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10,
}  # fmt: skip
SIGNS = {"≤": "at most", "≥": "at least", "√": "root ", "<": "below", ">": "above", "*": "times"}
A_WORD = "|".join(WORDS)
OUT_OF = re.compile(rf"\b({A_WORD}|\d+)(?: times)? (?:in|of|out of) (?:the )?({A_WORD}|\d+)\b")
SHOWN = re.compile(r"visualizations/gallery/([\w/]+\.(?:png|gif|svg))")
PICTURE = re.compile(r"!\[(?P<alt>[^]]*)\](?=\([./]*visualizations/gallery/(?P<name>[^)]+)\))")
SMALL_PICTURE = re.compile(
    r'<img src="[./]*visualizations/gallery/(?P<name>[^"]+)" alt="(?P<alt>[^"]*)"'
)
OF_PICTURE = re.compile(
    r"(?<!!)\[(?P<words>[^][]+)\]\([./]*visualizations/gallery/(?P<name>[\w/]+\.(?:png|gif))\)"
)
BY_HAND = (".svg", "live_page.gif")  # pictures that no run draws: their alt texts are by hand, too
ROUNDING = 1e-6  # a bound that is a round number but for rounding stays what it is


@dataclass(frozen=True)
class Quote:
    """What a page says in a link to the record: [words](page#anchor)."""

    words: str
    page: str
    anchor: str


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


def wrong_of_pictures(text: str) -> list[str]:
    """Returns each number in a link to a picture that the picture's caption does not have."""
    wrong = []
    for match in OF_PICTURE.finditer(text):
        caption = caption_of(paths.ROOT / paths.GALLERY / match["name"]).lower()
        there = numbers_in(caption)
        missing = [value for value in numbers_in(match["words"].lower()) if value not in there]
        if missing:
            wrong.append(f"[{match['words']}]: {match['name']} has no {missing}: {caption}")
    return wrong


def numbers_in(text: str) -> list[float]:
    """Returns all numbers of a text, written as digits or as words."""
    numbers = re.findall(rf"(?<![\w.])(?:{DIGITS}|{A_WORD})(?!\w)", text)  # not the 3 of 3D
    return [as_number(number) for number in numbers]


# ---- what pages quote


def quotes(text: str) -> list[Quote]:
    """Returns the links of a text to the record."""
    return [Quote(match["words"], match["page"], match["anchor"]) for match in LINK.finditer(text)]


def without_quotes(text: str) -> str:
    """Returns a text without its links to record and pictures, and so without their numbers."""
    return OF_PICTURE.sub("", LINK.sub("", text))


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
    """Yields anchor, experiment and name of every number on record, one experiment after another.

    Raises ValueError if two numbers would have one anchor.
    """
    seen = set()
    for module, name in record.read()[["experiment", "number"]].drop_duplicates().to_numpy():
        anchor = anchor_of(module, name)
        if anchor in seen:
            raise ValueError(f"two numbers of {module} would be #{anchor}: rename {name}")
        seen.add(anchor)
        yield anchor, module, name


def linked_experiments() -> set[str]:
    """Returns the modules whose numbers the pages quote, on record or not."""
    quoted = set()
    for page in pages():
        for quote in quotes(page.read_text(encoding="utf-8")):
            if quote.page == "numbers":
                quoted.add(quote.anchor.partition(":")[0])
    return {module for module in scripts() if short_name(module) in quoted}


# ---- what is wrong with a quote


def whats_wrong(quote: Quote) -> str:
    """Returns what the record says instead; empty if the quote agrees with it."""
    if quote.page == "claims":
        return wrong_runs(quote)
    places = {anchor: (module, name) for anchor, module, name in rows()}
    if ":" not in quote.anchor:
        known = {short_name(module) for module, _ in places.values()}
        return "" if quote.anchor in known else f"no experiment is called {quote.anchor}"
    if quote.anchor not in places:
        return f"data/numbers.md has no row {quote.anchor}"
    module, name = places[quote.anchor]
    first = record.first_run(module).get(name)
    return wrong_number(quote.words, record.interval(module, name), first)


def wrong_runs(quote: Quote) -> str:
    """Returns what is wrong with a link to a claim: the claim, or in how many runs it holds."""
    claims = {claim.id: claim for claim in all_claims()}
    if quote.anchor not in claims:
        return f"no claim is called {quote.anchor}"
    known = record.known(claims[quote.anchor])
    match = OUT_OF.search(quote.words.lower())
    if match and [as_number(match[1]), as_number(match[2])] != [known.held, known.seeds]:
        return f"the rule holds in {known.held} of {known.seeds}"
    return ""


def wrong_number(words: str, ends: tuple[float, float] | None, first: float | None) -> str:
    """Returns what is wrong with a number.

    ends: of where another seed falls, None if the record lacks the ten seeds. first: what seed 0
    gives, None where that is of one machine.
    """
    match = NUMBER.search(words)
    if not match:
        return ""
    if first is not None and not (match["bound"] or match["high"]):
        ends = first, first
    if ends is None:
        return "the record has no other seeds"
    scale = 100 if match["percent"] or "%" in match[0] else 1
    low, high = scale * ends[0], scale * ends[1]
    last = match["high"] or match["low"]
    decimals = len(last.partition(".")[2])
    unit = 0.1**decimals  # of the last digit
    bound = (match["bound"] or "").strip().lower()
    if bound == "about":
        return wrong_middle(as_number(match["low"]), (low, high), slack=unit / 2)
    if bound == "at least":
        low = high = floor(low / unit + ROUNDING) * unit
    elif bound == "at most":
        low = high = ceil(high / unit - ROUNDING) * unit
    written = f"{{:,.{decimals}f}}".format
    expected = (written(low), written(high))
    if expected == (match["low"], last):
        return ""
    return f"the record has {' to '.join(dict.fromkeys(expected))}"


def wrong_middle(value: float, ends: tuple[float, float], slack: float) -> str:
    """Returns what is wrong with "about value": it is outside the middle half of the range."""
    low, high = ends
    quarter = (high - low) / 4
    if low + quarter - slack <= value <= high - quarter + slack:
        return ""
    return f"{value:.3g} is not in the middle of {low:.3g} to {high:.3g}"


def as_number(text: str) -> float:
    """Returns "4,928" or "nine" as a number."""
    return WORDS[text] if text in WORDS else float(text.replace(",", ""))
