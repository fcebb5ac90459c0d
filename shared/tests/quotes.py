"""Do README, lessons and rooms' pages say what record and pictures say?

What is said in a link to the record must agree with its row in data/numbers.md or its claim in
data/claims.md. A number that a picture shows is a link to the picture, and must stand in its
caption.

    [0.97](../data/numbers.md#bottleneck:luong-24-letters)        of the run with seed 0
    [39 to 44 %](../data/numbers.md#bottleneck:none-24-letters)   where another seed falls
    [at least 84 %](../data/numbers.md#scaling:divided-best-rate) the lower end; at most: the upper
    [about 40 %](...)                         in the middle half of that range
    [9 of 10](../data/claims.md#patching-lookers)                  the runs in which the rule holds
    [six of the eight](../visualizations/gallery/phase3/head_roles.png)

What is said in words alone ("nearly all", "about a third") is the author's to judge; that its link
leads to a row is checked.
"""

import re
from math import ceil, floor

from shared import paths
from shared.claims import all_claims
from shared.lab import record
from shared.lab.pages import LINK, caption_of, rows, short_name

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
A_WORD = "|".join(WORDS)
OUT_OF = re.compile(rf"\b({A_WORD}|\d+)(?: times)? (?:in|of|out of) (?:the )?({A_WORD}|\d+)\b")
OF_PICTURE = re.compile(
    r"(?<!!)\[(?P<words>[^][]+)\]\([./]*visualizations/gallery/(?P<name>[\w/]+\.(?:png|gif))\)"
)
ROUNDING = 1e-6  # a bound that is a round number but for rounding stays what it is


def without_quotes(text: str) -> str:
    """Returns a text without its links to record and pictures, and so without their numbers."""
    return OF_PICTURE.sub("", LINK.sub("", text))


# ---- pictures


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


# ---- what is wrong with a quote


def whats_wrong(quote: re.Match) -> str:
    """Returns what the record says instead of a LINK; empty if the quote agrees with it."""
    words, page, anchor = quote["words"], quote["page"], quote["anchor"]
    if page == "claims":
        return wrong_runs(words, anchor)
    places = {name: place for name, *place in rows()}
    if ":" not in anchor:
        known = {short_name(module) for module, _ in places.values()}
        return "" if anchor in known else f"no experiment is called {anchor}"
    if anchor not in places:
        return f"data/numbers.md has no row {anchor}"
    module, name = places[anchor]
    return wrong_number(words, record.interval(module, name), record.first_run(module).get(name))


def wrong_runs(words: str, name: str) -> str:
    """Returns what is wrong with a link to a claim: the claim, or in how many runs it holds."""
    claims = {claim.id: claim for claim in all_claims()}
    if name not in claims:
        return f"no claim is called {name}"
    known = record.known(claims[name])
    match = OUT_OF.search(words.lower())
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
