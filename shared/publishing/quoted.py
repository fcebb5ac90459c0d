"""Numbers in README, lessons and rooms' pages, which come from the record.

Behind each stands a comment, which a reader of the rendered page does not see: whose number it is.

    0.52 to 0.58<!--scaling: divided, best rate-->    where the next seed falls; alone if both ends read alike
    52–58 %<!--scaling: a, best rate; b, best rate--> of several numbers, from the lowest end to the highest
    at least 0.52<!--≥ scaling: divided, best rate--> the lower end; ≤ the upper
    8 of 10<!--verdict three-roles-->                 in how many seeds the rule of a claim holds, or held on seeds
                                                      0 to 9 if the claim is newer than the record
    11 %<!--undone 1 revised-->                       of the verdicts that one seed prints (one_seed.py)

`filled` writes them anew as the record has them, with as many decimals as they have now.
"""

import re
from math import ceil, floor
from pathlib import Path

from shared import paths
from shared.evidence import findings, record
from shared.evidence.claims import Verdict, all_claims
from shared.publishing import one_seed

PLAIN = r"-?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?"
MARKED = re.compile(
    rf"(?P<low>{PLAIN})(?:(?P<to> to |–)(?P<high>{PLAIN}))?(?P<percent> ?%)?"
    r"<!--(?P<end>[≥≤] )?(?P<experiment>\w+): (?P<names>.+?)-->"
)
VERDICT = re.compile(r"\d+ of \d+<!--verdict (?P<claim>\S+)-->")
UNDONE = re.compile(r"\d+ %<!--undone (?P<k>\d+) (?P<group>\w+)-->")


def written(value: float, like: str) -> str:
    """A value with as many decimals as a number of the text has: "1,234", "0.52", "3e-7"."""
    number, power, _ = like.partition("e")
    decimals = len(number.partition(".")[2])
    text = f"{value:,.{decimals}{'e' if power else 'f'}}"
    return re.sub(r"e([+-])0*(?=\d)", lambda sign: "e" + sign[1].strip("+"), text)


def quoted(match: re.Match) -> str:
    """A marked number as the record has it. Raises ValueError for one that the record does not
    have.
    """
    ends = record.interval(match["experiment"], *match["names"].split("; "))
    if ends is None:
        raise ValueError(f"the record does not have {match['experiment']}: {match['names']}")
    scale, like = 100 if match["percent"] else 1, match["high"] or match["low"]
    unit = 0.1 ** len(
        like.partition("e")[0].partition(".")[2]
    )  # of the last digit: bounds are rounded outwards
    bounds = {
        "≥ ": floor(scale * ends[0] / unit + 1e-6) * unit,
        "≤ ": ceil(scale * ends[1] / unit - 1e-6) * unit,
    }
    shown = [bounds[match["end"]]] if match["end"] else [scale * end for end in ends]
    text = findings.between(shown, lambda value: written(value, like), match["to"] or " to ")
    return text + (match["percent"] or "") + match[0][match[0].index("<!--") :]


def verdict(match: re.Match) -> str:
    """A marked verdict as the record has it."""
    claim = {claim.id: claim for claim in all_claims()}[match["claim"]]
    found = record.verdict(claim)
    if found is None and claim.explored is not None:
        found = Verdict(claim.explored, 10)
    if found is None:
        raise ValueError(f"the record does not have {match['claim']}")
    return f"{found.held} of {found.seeds}<!--verdict {match['claim']}-->"


def undone(match: re.Match) -> str:
    """A marked share of verdicts that do not last."""
    k, group = match.groups()
    return (
        f"{100 * one_seed.undone(one_seed.verdicts(group), int(k)):.0f} %<!--undone {k} {group}-->"
    )


def filled(text: str) -> str:
    """A text with its marked numbers as the record has them."""
    for pattern, number in ((MARKED, quoted), (VERDICT, verdict), (UNDONE, undone)):
        text = pattern.sub(number, text)
    return text


def experiments() -> set[str]:
    """The experiments whose numbers the pages quote."""
    return {
        match["experiment"]
        for path in pages()
        for match in MARKED.finditer(path.read_text(encoding="utf-8"))
    }


def unmarked(text: str) -> str:
    """A text without its marked numbers."""
    return MARKED.sub("", VERDICT.sub("", UNDONE.sub("", text)))


def pages(root: Path = paths.ROOT) -> list[Path]:
    """README, the lessons and the rooms' pages."""
    return [root / "README.md", *sorted(root.glob("phase*/**/README.md"))]
