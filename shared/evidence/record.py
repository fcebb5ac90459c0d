"""What did every experiment measure on ten seeds that nobody had run before?

The record is data/evidence.csv, one row a number; ./run_all.sh replicate writes it. Its ten seeds,
100 to 109, were first run after all rules had been committed. An experiment is called by its
module. Where the next seed falls is a prediction interval: mean ± 2.37 s of ten seeds holds 95 % of
further ones (Student's t with 9 degrees of freedom, times √(1 + 1/10)).
"""

import math
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from shared import paths
from shared.evidence.claims import Claim, Numbers, Verdict

SEEDS = range(100, 110)
HALF_WIDTH = 2.262 * (1 + 1 / len(SEEDS)) ** 0.5  # of an interval, in standard deviations
DIGITS = 4  # of a recorded value that is no whole number
COLUMNS = ["experiment", "number", "seed", "processor", "torch", "code", "value"]


def check_rows(rows: pd.DataFrame) -> None:
    """Raises ValueError unless rows are a record: ten seeds of each number, and each row once."""
    if rows.empty or list(rows.columns) != COLUMNS or rows.isna().any(axis=None):
        raise ValueError("rows, columns or values are missing")
    if not np.isfinite(rows["value"]).all():
        raise ValueError("some values are not finite")
    for (experiment, number), seeds in rows.groupby(["experiment", "number"])["seed"]:
        if sorted(seeds) != list(SEEDS):
            raise ValueError(f"{experiment}: {number}: not seeds 100 to 109, but {sorted(seeds)}")


@cache
def read(path: Path = paths.EVIDENCE) -> pd.DataFrame:
    """Returns all rows; none if there is no record yet.

    Raises OSError, which names the file, if it is damaged.
    """
    if not path.is_file():
        return pd.DataFrame(columns=COLUMNS)
    with paths.damage_names(path, f"git checkout {paths.shown(path)} brings it back"):
        rows = pd.read_csv(path, dtype={"code": str, "seed": "int64", "value": "float64"})
        check_rows(rows)
        return rows


def written_short(value: float) -> str:
    """Returns a value as the file has it: whole, or with four digits."""
    return f"{value:.0f}" if value == round(value) else f"{value:.{DIGITS}g}"


def write(rows: pd.DataFrame, path: Path = paths.EVIDENCE) -> None:
    """Write the record, the seeds of a number side by side.

    Raises ValueError, and writes nothing, for what could not be read again, such as a number of
    nine seeds.
    """
    rows = rows[COLUMNS].sort_values(["experiment", "number", "seed"])
    check_rows(rows)
    rows["value"] = rows["value"].map(written_short)
    with paths.whole_file(path) as unfinished:
        rows.to_csv(unfinished, index=False, lineterminator="\n")
    read.cache_clear()
    runs.cache_clear()


def full_name(short: str) -> str:
    """Returns the module of the experiment whose name ends so: "scaling", or "parts.scaling".

    Raises ValueError unless exactly one experiment of the record does.
    """
    known = read()["experiment"].unique()
    found = [module for module in known if f".{module}".endswith(f".{short}")]
    if len(found) != 1:
        raise ValueError(f"{len(found)} experiments of the record are called {short}: {found}")
    return found[0]


@cache
def runs(experiment: str) -> Sequence[Numbers]:
    """Returns the numbers of each seed of the record, or nothing if it lacks the experiment."""
    rows = read()
    own = rows[rows["experiment"] == experiment]
    table = own.pivot(index="seed", columns="number", values="value")
    return table.to_dict("records")


def next_seed(values: Sequence[float]) -> tuple[float, float]:
    """Returns where another value falls, 95 % of the time.

    What was never below 0, or never left 0 to 1, is not said to.
    """
    numbers = pd.Series(values, dtype=float)
    middle = numbers.mean()
    half = HALF_WIDTH * numbers.std()
    low, high = middle - half, middle + half
    if numbers.min() >= 0:
        low = max(low, 0.0)
    if numbers.between(0, 1).all():
        high = min(high, 1.0)
    return float(low), float(high)


def interval(experiment: str, name: str) -> tuple[float, float] | None:
    """Returns where the number of this name falls with a new seed; None if the record lacks it."""
    measured = runs(experiment)
    if not measured or name not in measured[0]:
        return None
    return next_seed([numbers[name] for numbers in measured])


def inside(experiment: str, measured: Iterable[Numbers]) -> list[bool]:
    """Returns of each number of other runs whether it lies in its interval.

    Numbers that the record lacks, or that do not vary in its digits, are left out.
    """
    found = []
    for numbers in measured:
        for name, value in numbers.items():
            ends = interval(experiment, name)
            if ends and not math.isclose(*ends, rel_tol=10**-DIGITS):
                low, high = ends
                found.append(low <= value <= high)
    return found


def verdict(claim: Claim) -> Verdict | None:
    """Returns what the record says of a claim; None if it lacks a number that the rule asks for."""
    measured = runs(claim.experiment)
    if not measured:
        return None
    try:
        return claim.over(measured)
    except KeyError:
        return None


def known(claim: Claim) -> Verdict:
    """Returns what the record says of a claim or, if the claim is newer, how seeds 0 to 9 came out.

    Raises ValueError if the claim was never tried.
    """
    found = verdict(claim)
    if found:
        return found
    if claim.explored is None:
        raise ValueError(f"{claim.id}: run it on seeds 0 to 9, and say explored=... in the claim")
    return Verdict(claim.explored, 10)


def effect(claim: Claim) -> tuple[float, float]:
    """Returns where the number that decides a claim falls with a new seed."""
    return next_seed([claim.effect(numbers) for numbers in runs(claim.experiment)])
