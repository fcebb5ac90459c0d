"""A claim: what is said about attention, and the rule by which a measurement decides it.

    Claim(
        id="C046",
        text="Some head learns verb -> subject without being told",
        source="course notes; scored as in Clark et al. 2019",
        rule="the best head finds 0.90 or more, and 0.15 more than the best fixed offset",
        holds=lambda n: n["best head"] >= max(0.90, n["best fixed offset"] + 0.15),
        oracle={"best head": 1.0, "best fixed offset": 0.5},
        null={"*": 0.5},
    )

It stands in the file that measures it (shared/experiment.py) and is read from there by the terminal, the report page,
data/claims.md and the tests. One seed decides nothing: ./run_all.sh replicate measures every experiment with several,
and a claim holds or fails where all of them agree, or where the 95 % interval of an effect clears its bar.
"""

import importlib
import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

from shared import paths
from shared.plan import plans

HOLDS, FAILS, ONLY_IF, UNDECIDED = "holds", "does not hold", "holds only if", "undecided here"
MARKS = {HOLDS: "+", FAILS: "x", ONLY_IF: "~", UNDECIDED: "?"}  # of the verdicts
MEASURED = "measured"  # in place of a verdict, where only times were taken
FEWEST_SEEDS = 3  # on which a verdict over seeds may rest

# An experiment trains or samples something; a probe is about time, memory, or what a library does.
EXPERIMENT, PROBE = "experiment", "probe"

Numbers = Mapping[str, Any]  # name -> a number, or a list with one for each head, size or the like
Rule = Callable[[Numbers], bool]


class World(dict[str, Any]):
    """Numbers written short: a name may be a pattern, {"*, reverse": 1.0}; the first that fits counts."""

    def __missing__(self, name: str) -> Any:
        for pattern, number in self.items():
            if fnmatchcase(name, pattern):
                return number
        raise KeyError(name)


# Student's t, 97.5 %, for 3 to 10 values
STUDENT = {3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}


@dataclass(frozen=True)
class Above:
    """A rule for an effect that is judged by its mean: it holds where effect(numbers) exceeds bar."""

    effect: Callable[[Numbers], float]
    bar: float

    def __call__(self, numbers: Numbers) -> bool:
        return self.effect(numbers) > self.bar

    def over(self, runs: Sequence[Numbers]) -> str:
        """Where seeds disagree: HOLDS or FAILS if the 95 % interval of their mean lies on one side of the bar."""
        effects = [self.effect(run) for run in runs]
        student = STUDENT[min(len(effects), 10)]  # for more than 10 the interval is a little too wide
        half = student * statistics.stdev(effects) / math.sqrt(len(effects))
        distance = statistics.mean(effects) - self.bar
        return HOLDS if distance > half else FAILS if distance < -half else UNDECIDED


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What is said, where it is said, and when it counts as true.

    rule: in words what holds decides by the measured numbers of one seed. only_if: the same rule under a condition that
    the source does not have, which condition says in words; it is tried where the rule fails without. over_seeds: the
    rule speaks of several seeds ("on six of ten") and gets, for each name, a list with one value a seed. oracle, null:
    numbers as they would be if the claim were right, and if there were nothing in it; the rule must tell them apart.
    headline: one of the findings that the course is about. script: where it is measured, filled in by Experiment. A
    probe of times alone has no rule: holds=None.
    """

    id: str
    text: str
    rule: str
    holds: Rule | None = None
    effect: Callable[[Numbers], float] | None = None
    at_least: float | None = None
    at_most: float | None = None
    also: Rule = lambda numbers: True
    revised: str = ""
    kind: str = EXPERIMENT
    unit: str = ""
    source: str = "course notes"
    only_if: Rule | None = None
    condition: str = ""
    over_seeds: bool = False
    oracle: Numbers | None = None
    null: Numbers | None = None
    headline: bool = False
    script: str = ""

    def __post_init__(self) -> None:
        if self.effect is not None:
            object.__setattr__(self, "holds", self.passes)
        for world in ("oracle", "null"):
            if getattr(self, world) is not None:
                object.__setattr__(self, world, World(getattr(self, world)))

    def passes(self, numbers: Numbers) -> bool:
        """Whether the effect is on the right side of its bar, and the rest of the rule holds."""
        effect = self.effect(numbers)
        return (effect >= self.at_least if self.at_most is None else effect <= self.at_most) and self.also(numbers)

    def verdict(self, numbers: Numbers) -> str:
        """What these numbers say, of one seed (over_seeds: of several): HOLDS, FAILS or ONLY_IF.

        UNDECIDED if one of them is NaN: there was nothing to measure.
        """
        if self.holds is None:
            return MEASURED
        if any(number != number for number in numbers.values()):
            return UNDECIDED
        if self.holds(numbers):
            return HOLDS
        return ONLY_IF if self.only_if is not None and self.only_if(numbers) else FAILS

    def over(self, runs: Sequence[Numbers]) -> str:
        """What several seeds say together: a verdict, or MEASURED.

        Decided where all seeds agree, or where the interval of an effect (Above) clears its bar.
        """
        if self.over_seeds:
            return self.verdict(columns(runs))
        said = {self.verdict(run) for run in runs}
        if len(said) == 1:
            return said.pop()
        if said == {FAILS, ONLY_IF}:
            return FAILS  # with every seed; the condition helps with some
        return self.holds.over(runs) if isinstance(self.holds, Above) else UNDECIDED


def columns(runs: Sequence[Numbers]) -> dict[str, list]:
    """The numbers of each seed -> name -> its values, one a seed."""
    return {name: [run[name] for run in runs] for name in runs[0]}


def all_claims() -> list[Claim]:
    """Every claim that a script of the course measures, phase by phase."""
    scripts = [importlib.import_module(name).main for plan in plans().values() for name in plan.all]
    return [claim for main in scripts for claim in getattr(main, "claims", ())]


@cache
def rules_changed() -> dict[str, str]:
    """id -> how and why the rule of a claim changed after a result was seen."""
    return json.loads(paths.RULES_CHANGED.read_text(encoding="utf-8"))
