"""A claim: what is said about attention, and the rule by which a measurement decides it.

    Claim(
        id="C046",
        text="Some head learns verb -> subject without being told",
        source="course notes; scored as in Clark et al. 2019",
        rule="the best head finds 0.90 or more, and 0.15 more than the best fixed offset",
        effect=lambda n: n["best head"] - n["best fixed offset"],
        at_least=0.15,
        also=lambda n: n["best head"] >= 0.90,
        oracle={"best head": 1.0, "best fixed offset": 0.5},
        null={"*": 0.5},
    )

It stands in the file that measures it (shared/experiment.py) and is read from there by the
terminal, the report page, data/claims.md and the tests. A rule judges one seed; the verdict is in
how many of ten seeds it holds (shared/evidence/record.py). Rules were made on seeds 0 to 9 and
committed before seeds 100 to 109 were run. A claim that came later says with `explored` how it did
on seeds 0 to 9, until a new record judges it.
"""

import importlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from shared.plan import PLANS

HOLDS, FAILS, DIFFER = "holds", "does not hold", "seeds differ"
MARKS = {HOLDS: "+", FAILS: "x", DIFFER: "~"}
PLURAL = {HOLDS: "hold in all ten seeds", FAILS: "in none", DIFFER: "in some"}

Numbers = Mapping[str, float]  # of one seed, by name
Rule = Callable[[Numbers], bool]


class World(dict[str, float]):
    """Numbers written short: a name may be a pattern, {"*, reverse": 1.0}; the first that fits
    counts.
    """

    def __missing__(self, name: str) -> float:
        for pattern, number in self.items():
            if fnmatchcase(name, pattern):
                return number
        raise KeyError(name)


@dataclass(frozen=True)
class Verdict:
    """In how many of so many seeds a rule holds."""

    held: int
    seeds: int

    @property
    def kind(self) -> str:
        """HOLDS, FAILS or DIFFER."""
        return HOLDS if self.held == self.seeds else DIFFER if self.held else FAILS

    @property
    def decided(self) -> bool:
        return self.kind != DIFFER

    def __str__(self) -> str:
        of_ten = f"{self.kind if self.decided else HOLDS}, {self.held} of {self.seeds} seeds"
        return self.kind if self.seeds == 1 else of_ten


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What is said, where it is said, and when it counts as true.

    effect: the number that decides, with its bar, at_least or at_most. also: what else must be so
    with the same seed. rule says all of this in words. oracle, null: numbers as they would be if
    the claim were right, and if there were nothing in it; the rule must tell them apart. revised:
    what a look at results, of seeds 0 to 9, changed in the rule. explored: of a claim that is newer
    than the record, in how many of seeds 0 to 9 the rule held. Those seeds are for making rules, so
    this is no verdict; the next record gives one, and then the line goes. script: where it is
    measured, filled in by Experiment.
    """

    id: str
    text: str
    source: str
    rule: str
    effect: Callable[[Numbers], float]
    at_least: float = float("-inf")
    at_most: float = float("inf")
    also: Rule = lambda numbers: True
    oracle: Numbers
    null: Numbers
    revised: str = ""
    explored: int | None = None
    script: str = ""

    def holds(self, numbers: Numbers) -> bool:
        """Whether the rule holds with these numbers, of one seed."""
        return self.at_least <= self.effect(numbers) <= self.at_most and bool(self.also(numbers))

    def over(self, runs: Iterable[Numbers]) -> Verdict:
        """In how many of these seeds it holds."""
        held = [self.holds(numbers) for numbers in runs]
        return Verdict(sum(held), len(held))


def counted(kinds: Iterable[str]) -> str:
    """ "26 hold in all ten seeds, 9 in none"."""
    counts = Counter(kinds)
    return ", ".join(f"{counts[kind]} {said}" for kind, said in PLURAL.items() if counts[kind])


def all_claims() -> list[Claim]:
    """Every claim that a script of the course measures, phase by phase."""
    scripts = [importlib.import_module(name).main for plan in PLANS.values() for name in plan.all]
    return [claim for main in scripts for claim in getattr(main, "claims", ())]
