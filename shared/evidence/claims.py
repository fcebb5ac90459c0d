"""A claim: what is said about attention, and the rule by which a measurement decides it.

A claim stands beside the function that measures it, is written once, and is read from there by everybody: the terminal,
the report page, data/claims.md and the tests.

    @measures(
        Claim(
            "C046",
            "Some head learns verb -> subject without being told",
            kind=EXPERIMENT,
            source="course notes; scored as in Clark et al. 2019",
            rule="the best head finds 0.90 or more, and 0.15 more than the best fixed offset",
            holds=lambda n: n["best head"] >= max(0.90, n["best fixed offset"] + 0.15),
            oracle={"best head": 1.0, "best fixed offset": 0.5},
            null={"best head": 0.5, "best fixed offset": 0.5},
            unit="share of held-out pairs",
        )
    )
    def best_verb_head(trained: Trained) -> dict[str, float]:
        ...

The function returns its numbers by name, and shared.evidence.findings.record judges, prints and saves them.
"""

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from shared import paths

HOLDS, FAILS, ONLY_IF = "holds", "does not hold", "holds only if"
VERDICTS = (HOLDS, FAILS, ONLY_IF)
MARKS = {HOLDS: "+", FAILS: "x", ONLY_IF: "~"}

# What a claim rests on: something trained or sampled; algebra, counting or a definition; a printed number that is
# wrong; time, memory, or what a library does.
EXPERIMENT, IDENTITY, ERRATUM, PROBE = "experiment", "identity", "erratum", "probe"
KINDS = (EXPERIMENT, IDENTITY, ERRATUM, PROBE)

Numbers = Mapping[str, Any]  # name -> a number, or a list with one for each seed or size
Rule = Callable[[Numbers], bool]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What is said, where it is said, and when it counts as true.

    rule: in words what holds decides by the measured numbers. only_if: the same rule under a condition, which condition
    says in words; it is tried where the rule fails without. oracle and null: numbers as they would be if the claim were
    right, and if there were nothing in it; the rule must tell them apart. control: what the numbers are compared with.
    shows: patterns of the names of the numbers that belong to the claim. script: where it is measured, filled in by
    `measures`.
    """

    id: str
    text: str
    kind: str
    rule: str
    holds: Rule
    unit: str
    source: str = "course notes"
    only_if: Rule | None = None
    condition: str = ""
    oracle: Numbers | None = None
    null: Numbers | None = None
    control: str = ""
    shows: tuple[str, ...] = ("*",)
    script: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"{self.id}: unknown kind {self.kind!r}: choose from {', '.join(KINDS)}")
        if bool(self.condition) != (self.only_if is not None):
            raise ValueError(f"{self.id}: a condition needs its rule, only_if, and the rule its words, condition")

    def verdict(self, numbers: Numbers) -> str:
        """One of VERDICTS."""
        if self.holds(numbers):
            return HOLDS
        return ONLY_IF if self.only_if is not None and self.only_if(numbers) else FAILS

    def shown(self, numbers: Numbers) -> dict[str, Any]:
        """The numbers that belong to this claim. Raises ValueError if none does."""
        chosen = {name: n for name, n in numbers.items() if any(fnmatchcase(name, part) for part in self.shows)}
        if not chosen:
            raise ValueError(f"{self.id}: none of the measured numbers is among {', '.join(self.shows)}")
        return chosen


class Measured(dict[str, Any]):
    """What a measuring function returned, with the claims that it decides."""

    def __init__(self, numbers: Numbers, claims: tuple[Claim, ...]) -> None:
        super().__init__(numbers)
        self.claims = claims


_claims: dict[str, Claim] = {}  # by id, in the order in which their modules were imported


def measures(*claims: Claim) -> Callable[[Callable[..., Numbers]], Callable[..., Measured]]:
    """Decorator: this function measures the numbers that decide these claims.

    Raises ValueError if a claim of another file has the same id.
    """

    def decorate(function: Callable[..., Numbers]) -> Callable[..., Measured]:
        script = paths.shown(Path(inspect.unwrap(function).__code__.co_filename).resolve())  # below torch.no_grad
        placed = tuple(replace(claim, script=script) for claim in claims)
        for claim in placed:
            if claim.id in _claims and _claims[claim.id].script != script:
                raise ValueError(f"{claim.id} stands in {_claims[claim.id].script} and in {script}: rename one")
            _claims[claim.id] = claim

        @functools.wraps(function)
        def measured(*args: Any, **kwargs: Any) -> Measured:
            return Measured(function(*args, **kwargs), placed)

        measured.claims = placed
        return measured

    return decorate


def all_claims() -> list[Claim]:
    """Every claim that some file of the phases measures, by file."""
    folders = (folder for folder in paths.ROOT.glob("phase?_*") if folder.is_dir())
    for path in sorted(path for folder in folders for path in folder.rglob("*.py")):
        if path.name != "__main__.py" and "@measures(" in path.read_text(encoding="utf-8"):
            importlib.import_module(".".join(path.relative_to(paths.ROOT).with_suffix("").parts))
    return sorted(_claims.values(), key=lambda claim: claim.script)
