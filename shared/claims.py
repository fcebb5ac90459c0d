"""A claim: what is said about attention, and the rule by which a measurement decides it.

    Claim(
        id="C046",
        text="Some head learns to look from a verb to its subject, without being told. We asked it "
        "of two layers of four heads.",
        source="course notes; scored as in Clark et al. 2019",
        rule="the best head finds 0.90 or more, and 0.15 more than the best fixed offset",
        effect=lambda n: n["best head"] - n["best fixed offset"],
        at_least=0.15,
        also=lambda n: n["best head"] >= 0.90,
        oracle={"best head": 1.0, "best fixed offset": 0.5},
        null={"*": 0.5},
    )

The first sentence of the text is the point; at which size and how it was tried comes after it. A
claim stands in the file that measures it (shared/experiment.py). From there the terminal, the
report page, data/claims.md and the tests read it. A rule judges one seed. The verdict says in how
many of ten seeds the rule holds (shared/lab/record.py). Rules were made on seeds 0 to 9 and
committed before the ten seeds of the record were run.
"""

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean

from shared import paths

HOLDS, FAILS, DIFFER = "holds", "does not hold", "seeds differ"
MARKS = {HOLDS: "+", FAILS: "x", DIFFER: "~"}
PLURAL = {HOLDS: "hold in all ten seeds", FAILS: "in none", DIFFER: "in some"}

Numbers = Mapping[str, float]  # of one seed, by name
Condition = Callable[[Numbers], bool]


@dataclass(frozen=True)
class Verdict:
    """In how many of so many seeds a rule holds."""

    held: int
    seeds: int

    @property
    def kind(self) -> str:
        """Returns HOLDS, FAILS or DIFFER."""
        if self.held == self.seeds:
            return HOLDS
        if self.held == 0:
            return FAILS
        return DIFFER

    @property
    def decided(self) -> bool:
        """Returns whether all seeds agree."""
        return self.kind != DIFFER

    def __str__(self) -> str:
        """Returns what can be said after "it": "holds", or "holds in none of 10 runs"."""
        if self.seeds == 1:
            return self.kind
        return f"holds in {self.held or 'none'} of {self.seeds} runs"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What is said, where it is said, and when it counts as true.

    effect is the number that decides; its bar is at_least or at_most. also is what else must be so
    with the same seed. rule says all of this in words. oracle and null are numbers as they would be
    if the claim were right, and if there were nothing in it: the rule must tell them apart. They
    are written short: a name may be a pattern, as in {"*, reverse": 1.0}, and the first that fits
    gives the number.

    revised says what a look at results, of seeds 0 to 9, changed in the rule. explored says in how
    many of these ten seeds the final rule held. They are for making rules, so this is no verdict;
    beside the record it shows what became of the rule with seeds that nobody had seen. draws says
    that the model is a published one, of which the seed draws nothing but the data: ten seeds are
    ten draws, not ten models. experiment is the module that measures the claim; Experiment fills it
    in.
    """

    id: str
    text: str
    source: str
    rule: str
    effect: Callable[[Numbers], float]
    at_least: float = float("-inf")
    at_most: float = float("inf")
    also: Condition = lambda numbers: True
    oracle: Numbers
    null: Numbers
    revised: str = ""
    explored: int | None = None
    draws: bool = False
    experiment: str = ""

    @property
    def point(self) -> str:
        """What is said, without its conditions: the first sentence of the text."""
        return self.text.partition(". ")[0].removesuffix(".") + "."

    @property
    def conditions(self) -> str:
        """The sentences after the first: at which size and how it was tried."""
        return self.text.partition(". ")[2]

    @property
    def bar(self) -> float:
        """The one bar that the effect is held against."""
        return self.at_least if self.at_least > float("-inf") else self.at_most

    def holds(self, numbers: Numbers) -> bool:
        """Returns whether the rule holds with the numbers of one seed."""
        in_bounds = self.at_least <= self.effect(numbers) <= self.at_most
        return in_bounds and bool(self.also(numbers))

    def over(self, runs: Iterable[Numbers]) -> Verdict:
        """Returns in how many of these seeds the rule holds."""
        held = [self.holds(numbers) for numbers in runs]
        return Verdict(sum(held), len(held))


def mean_of(runs: Sequence[Numbers]) -> dict[str, float]:
    """Returns the mean over the runs of each number."""
    return {name: fmean(numbers[name] for numbers in runs) for name in runs[0]}


@cache
def experiments() -> list[str]:
    """Returns the module of every script of the course that measures, phase by phase."""
    modules = []
    for file in sorted(paths.ROOT.glob("phase*/**/*.py")):
        if "\nmain = Experiment(" in file.read_text(encoding="utf-8"):
            modules.append(".".join(file.relative_to(paths.ROOT).with_suffix("").parts))
    return modules


def all_claims() -> list[Claim]:
    """Returns every claim that a script of the course measures, phase by phase."""
    claims = []
    for module in experiments():
        claims.extend(importlib.import_module(module).main.claims)
    return claims
