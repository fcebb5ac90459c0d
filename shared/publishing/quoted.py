"""Which numbers in README, lessons and rooms' pages come from the record?

Behind each stands a comment, which a reader of the rendered page does not see: whose number it is.

    0.52 to 0.58<!--scaling: divided, best rate-->    where the next seed falls
    52–58 %<!--scaling: a, best rate; b, best rate--> from the lowest to the highest of several
    at least 0.52<!--≥ scaling: divided, best rate--> the lower end; ≤ the upper
    8 of 10<!--verdict three-roles-->                 in how many seeds the rule of a claim holds

with_record writes them anew, with as many decimals as they have now. An experiment is called by the
end of its module's name.
"""

import re
from math import ceil, floor
from pathlib import Path

from shared import paths
from shared.evidence import findings, record
from shared.evidence.claims import all_claims
from shared.plan import PLANS

PLAIN = r"-?\d[\d,]*(?:\.\d+)?"
NUMBER = re.compile(
    rf"(?P<low>{PLAIN})(?:(?P<to> to |–)(?P<high>{PLAIN}))?(?P<percent> ?%)?"
    r"(?P<mark><!--(?P<end>[≥≤] )?(?P<experiment>[\w.]+): (?P<names>.+?)-->)"
)
VERDICT = re.compile(r"\d+ of \d+<!--verdict (?P<claim>\S+)-->")
ROUNDING = 1e-6  # a bound that is a round number but for rounding stays what it is


def recorded_number(marked: re.Match) -> str:
    """Returns a marked number as the record has it; ValueError if the record does not have it."""
    experiment = record.full_name(marked["experiment"])
    lows, highs = [], []
    for name in marked["names"].split("; "):
        ends = record.interval(experiment, name)
        if ends is None:
            raise ValueError(f"the record does not have {experiment}: {name}")
        lows.append(ends[0])
        highs.append(ends[1])
    scale = 100 if marked["percent"] else 1
    low, high = scale * min(lows), scale * max(highs)
    last = marked["high"] or marked["low"]
    decimals = len(last.partition(".")[2])
    unit = 0.1**decimals  # of the last digit: a bound is rounded outwards
    if marked["end"] == "≥ ":
        low = high = floor(low / unit + ROUNDING) * unit
    elif marked["end"] == "≤ ":
        low = high = ceil(high / unit - ROUNDING) * unit
    written = f"{{:,.{decimals}f}}".format
    text = findings.between((low, high), written, marked["to"] or " to ")
    return text + (marked["percent"] or "") + marked["mark"]


def recorded_verdict(marked: re.Match) -> str:
    """Returns a marked verdict as the record has it, or seeds 0 to 9 if the claim is newer."""
    name = marked["claim"]
    (claim,) = [claim for claim in all_claims() if claim.id == name]
    found = record.known(claim)
    return f"{found.held} of {found.seeds}<!--verdict {name}-->"


def quoted_experiments() -> set[str]:
    """Returns the modules whose numbers the pages quote, on record or not."""
    scripts = []
    for plan in PLANS.values():
        scripts += plan.all
    found = set()
    for page in quoting_pages():
        for marked in NUMBER.finditer(page.read_text(encoding="utf-8")):
            ending = f".{marked['experiment']}"
            found.update(module for module in scripts if f".{module}".endswith(ending))
    return found


def with_record(text: str) -> str:
    """Returns a text with its marked numbers as the record has them."""
    return NUMBER.sub(recorded_number, VERDICT.sub(recorded_verdict, text))


def unmarked(text: str) -> str:
    """Returns a text without its marked numbers."""
    return NUMBER.sub("", VERDICT.sub("", text))


def quoting_pages() -> list[Path]:
    """Returns README, the lessons and the rooms' pages."""
    return [paths.ROOT / "README.md", *sorted(paths.ROOT.glob("phase*/**/README.md"))]
