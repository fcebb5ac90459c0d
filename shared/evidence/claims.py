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

The function returns the numbers of one seed by name; shared.evidence.findings.record judges, prints and saves them.
One seed decides nothing: ./run_all.sh replicate measures every experiment with five, and a claim holds or fails where
all of them agree, or where the 95 % interval of an effect clears its bar. Everything else is undecided here.
"""

import functools
import importlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from shared import paths
from shared.evidence.intervals import interval

HOLDS, FAILS, ONLY_IF, UNDECIDED = "holds", "does not hold", "holds only if", "undecided here"
VERDICTS = (HOLDS, FAILS, ONLY_IF, UNDECIDED)
MARKS = {HOLDS: "+", FAILS: "x", ONLY_IF: "~", UNDECIDED: "?"}
MEASURED = "measured"  # in place of a verdict, where only times were taken
FEWEST_SEEDS = 3  # that a verdict over seeds may rest on

# What a claim rests on: something trained or sampled; algebra, counting or a definition; a printed number that is
# wrong; time, memory, or what a library does.
EXPERIMENT, IDENTITY, ERRATUM, PROBE = "experiment", "identity", "erratum", "probe"
KINDS = (EXPERIMENT, IDENTITY, ERRATUM, PROBE)

Numbers = Mapping[str, Any]  # name -> a number, or a list with one for each head, size or the like
Rule = Callable[[Numbers], bool]


class World(dict[str, Any]):
    """Numbers written short: a name may be a pattern, {"*, reverse": 1.0}; the first that fits counts."""

    def __missing__(self, name: str) -> Any:
        for pattern, number in self.items():
            if fnmatchcase(name, pattern):
                return number
        raise KeyError(name)


@dataclass(frozen=True)
class Above:
    """A rule for an effect that is judged by its mean: it holds where effect(numbers) exceeds bar.

    Where seeds disagree, the 95 % interval of their mean decides (Student's t), if it lies on one side of the bar.
    """

    effect: Callable[[Numbers], float]
    bar: float

    def __call__(self, numbers: Numbers) -> bool:
        return self.effect(numbers) > self.bar

    def over(self, runs: Sequence[Numbers]) -> str:
        """HOLDS, FAILS or UNDECIDED, by the interval."""
        low, high = interval([self.effect(run) for run in runs])
        return HOLDS if low > self.bar else FAILS if high < self.bar else UNDECIDED


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What is said, where it is said, and when it counts as true.

    rule: in words what holds decides by the measured numbers of one seed. only_if: the same rule under a condition that
    the source does not have, which condition says in words; it is tried where the rule fails without. over_seeds: the
    rule speaks of several seeds ("on six of ten") and gets, for each name, a list with one value a seed. oracle, null:
    numbers as they would be if the claim were right, and if there were nothing in it; the rule must tell them apart.
    control: what the numbers are compared with.
    headline: one of the findings that the course is about. shows: patterns of the names of the numbers that belong to
    the claim. script: where it is measured, filled in by `measures`. A probe of times alone has no rule: holds=None.
    """

    id: str
    text: str
    rule: str
    holds: Rule | None
    kind: str = EXPERIMENT
    unit: str = ""
    source: str = "course notes"
    only_if: Rule | None = None
    condition: str = ""
    over_seeds: bool = False
    oracle: Numbers | None = None
    null: Numbers | None = None
    control: str = ""
    headline: bool = False
    shows: tuple[str, ...] = ("*",)
    script: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"{self.id}: unknown kind {self.kind!r}: choose from {', '.join(KINDS)}")
        if bool(self.condition) != (self.only_if is not None):
            raise ValueError(f"{self.id}: a condition needs its rule, only_if, and the rule its words, condition")
        for world in ("oracle", "null"):
            if getattr(self, world) is not None:
                object.__setattr__(self, world, World(getattr(self, world)))
        if self.holds is None and self.kind != PROBE:
            raise ValueError(f"{self.id}: only a probe of times may have no rule")

    def verdict(self, numbers: Numbers) -> str:
        """What these numbers say, of one seed (over_seeds: of several): HOLDS, FAILS or ONLY_IF.

        UNDECIDED if one that belongs to the claim is NaN: there was nothing to measure.
        """
        if self.holds is None:
            return MEASURED
        if any(number != number for name, number in numbers.items() if self.owns(name)):
            return UNDECIDED
        if self.holds(numbers):
            return HOLDS
        return ONLY_IF if self.only_if is not None and self.only_if(numbers) else FAILS

    def over(self, runs: Sequence[Numbers]) -> str:
        """What several seeds say together: one of VERDICTS.

        Decided where all seeds agree, or where the interval of an effect (Above) clears its bar.
        Raises ValueError if there are fewer than FEWEST_SEEDS.
        """
        if self.holds is None:
            return MEASURED
        if len(runs) < FEWEST_SEEDS and self.kind == EXPERIMENT:
            raise ValueError(f"{self.id}: a verdict needs {FEWEST_SEEDS} seeds: got {len(runs)}; use --seeds")
        if self.over_seeds:
            return self.verdict({name: [run[name] for run in runs] for name in runs[0]})
        said = {self.verdict(run) for run in runs}
        if len(said) == 1:
            return said.pop()
        if said == {FAILS, ONLY_IF}:
            return FAILS  # with every seed; the condition helps with some
        return self.holds.over(runs) if isinstance(self.holds, Above) else UNDECIDED

    def owns(self, name: str) -> bool:
        """Whether the number of this name belongs to the claim."""
        return any(fnmatchcase(name, part) for part in self.shows)

    def shown(self, numbers: Numbers) -> dict[str, Any]:
        """The numbers that belong to this claim. Raises ValueError if none does."""
        chosen = {name: n for name, n in numbers.items() if self.owns(name)}
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


def rules_changed() -> dict[str, str]:
    """id -> how and why the rule of a claim changed after a result was seen."""
    return json.loads(paths.RULES_CHANGED.read_text(encoding="utf-8"))


def all_claims() -> list[Claim]:
    """Every claim that some file of the phases measures, by file."""
    folders = (folder for folder in paths.ROOT.glob("phase?_*") if folder.is_dir())
    for path in sorted(path for folder in folders for path in folder.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if path.name != "__main__.py" and ("@measures(" in text or "main = Experiment(" in text):
            importlib.import_module(".".join(path.relative_to(paths.ROOT).with_suffix("").parts))
    return sorted(_claims.values(), key=lambda claim: claim.script)
