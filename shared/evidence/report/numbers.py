"""The numbers that stand in the line of a finding: those that its rule compares, two where there are two.

A rule is a function. It is run on numbers that keep in mind which of them it asks for. The first that it asks for is
shown, and beside it one that is measured alike but for one thing: "divided, 64" and "not divided, 64". Where there are
several such, the one that differs most; where there is none, the next that the rule asks for.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from shared.evidence.claims import Claim
from shared.evidence.findings import number_texts

TINY = 1e-300  # below any gradient on record: so that zeros have a ratio, too


class Asked(dict):
    """Numbers that keep in mind which of them were asked for, and in which order."""

    def __init__(self, numbers: Mapping[str, Any]) -> None:
        super().__init__(numbers)
        self.names: dict[str, None] = {}

    def __getitem__(self, name: str) -> Any:
        self.names[name] = None
        return super().__getitem__(name)


def asked_for(claim: Claim | None, measured: Mapping[str, list]) -> list[str]:
    """The numbers that the rule of a claim asks for by their names; none where the claim has changed since the run."""
    if claim is None or claim.holds is None:
        return []
    numbers = Asked(measured if claim.over_seeds else {name: values[0] for name, values in measured.items()})
    try:
        claim.verdict(numbers)
    except KeyError:
        return []
    return [name for name in numbers.names if name in measured]


def parts(name: str) -> set[str]:
    """ "not divided, 64" -> "not divided" and "64"."""
    return set(re.split(r"[,:] ", name))


def alike_but_for_one(first: str, name: str) -> bool:
    return len(parts(first) - parts(name)) == 1 < len(parts(first))


def ratio(one: tuple[float, float], other: tuple[float, float]) -> float:
    """How many times the middle of one range is the other's, upwards or downwards, as a logarithm."""
    return abs(math.log((abs(sum(one)) + TINY) / (abs(sum(other)) + TINY)))


def pair(names: Sequence[str], spans: Mapping[str, tuple[float, float]]) -> list[str]:
    """The first of several names, and the one to set beside it; by the published ranges, which no run changes."""
    first, *others = names
    alike = [name for name in others if alike_but_for_one(first, name)]
    if not alike:
        return list(names[:2])
    return [first, max(alike, key=lambda name: ratio(spans[first], spans[name]))]


def shown_numbers(finding: Mapping, claim: Claim | None) -> str:
    """ "divided, 64: 0.992 (0.884 to 0.997) · not divided, 64: 0.316 (0.302 to 0.44)".

    Numbers with a published range are taken before others. Where the rule asks for none by its name, the first of all.
    """
    texts = number_texts(finding)
    asked = asked_for(claim, finding["measured"])
    of_all = [name for name in asked or texts if "(published" in texts[name]] or list(asked or texts)[:1]
    chosen = pair(of_all, finding["published"]) if asked else of_all[:1]
    return " · ".join(texts[name].replace("(published ", "(") for name in chosen)
