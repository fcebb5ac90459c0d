"""Do README, lessons and rooms' pages quote the record as it is?

A number that comes from the record is a link to its row in data/numbers.md, and what is said in the
link must agree with that row. A number of runs is a link to a claim in data/claims.md:

    [39 to 44 %](../data/numbers.md#bottleneck:none-24-letters)   both ends of where a new run falls
    [at least 84 %](../data/numbers.md#scaling:divided-best-rate) the lower end; at most: the upper
    [about 40 %](...)  [about a third](...)  [three in four](...)  in the middle half of that range
    [9 of 10](../data/claims.md#patching-lookers)                  the runs in which the rule holds

What is said in words alone ("nearly all", "it does not") is the author's to judge; that its link
leads to a row is checked. No other file of the laboratory reads the pages.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, floor
from pathlib import Path

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
SHARES = {"a tenth": 0.1, "a fifth": 0.2, "a quarter": 0.25, "a third": 1 / 3, "half": 0.5,
          "two thirds": 2 / 3, "three quarters": 0.75}  # fmt: skip
A_WORD = "|".join(WORDS)
OUT_OF = re.compile(rf"\b({A_WORD}|\d+)(?: times)? (?:in|of|out of) (?:the )?({A_WORD}|\d+)\b")
A_SHARE = re.compile(rf"\b({'|'.join(SHARES)})\b")
SHOWN = re.compile(r"visualizations/gallery/([\w/]+\.(?:png|gif|svg))")
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


def quotes(text: str) -> list[Quote]:
    """Returns the links of a text to the record."""
    return [Quote(match["words"], match["page"], match["anchor"]) for match in LINK.finditer(text)]


def without_quotes(text: str) -> str:
    """Returns a text without its links to the record, and so without the numbers in them."""
    return LINK.sub("", text)


# ---- rows of the table of numbers


def short_name(module: str) -> str:
    """Returns an experiment as anchors call it, by the name of its file: "scaling"."""
    return module.rpartition(".")[2]


def anchor_of(module: str, number: str) -> str:
    """Returns the anchor of a number's row."""
    signs = {"≤": "at most", "≥": "at least", "√": "root ", "<": "below", ">": "above"}
    for sign, word in signs.items():
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
    return wrong_number(quote.words, record.interval(*places[quote.anchor]))


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


def wrong_number(words: str, ends: tuple[float, float]) -> str:
    """Returns what is wrong with a number, given both ends of where a new run falls."""
    share = share_in_words(words.lower())
    if share is not None:
        return wrong_middle(share, ends, slack=0.05)
    match = NUMBER.search(words)
    if not match:
        return ""
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


def share_in_words(words: str) -> float | None:
    """Returns "a third" or "nine in ten" as a number; None if nothing of the kind is said."""
    match = OUT_OF.search(words)
    if match:
        return as_number(match[1]) / as_number(match[2])
    match = A_SHARE.search(words)
    return SHARES[match[1]] if match else None


def as_number(text: str) -> float:
    """Returns "4,928" or "nine" as a number."""
    return WORDS[text] if text in WORDS else float(text.replace(",", ""))
