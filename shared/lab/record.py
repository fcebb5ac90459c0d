"""What did every experiment measure with seed 0, and on ten seeds that nobody had run before?

The record is data/evidence.csv, one row a number; ./run_all.sh replicate writes it. An experiment
is called by its module. Whoever runs it without --seed has seed 0, and gets its numbers, to six
digits, on any processor. The ten seeds say how much another seed differs, and they alone decide
claims: they were first run after all rules had been committed. Where the next seed falls is a
prediction interval: mean ± 2.37 s of ten seeds holds 95 % of further ones (Student's t with 9
degrees of freedom, times √(1 + 1/10)), and it is widened to all ten.
"""

import ast
import hashlib
import importlib
import math
import platform
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from shared import paths
from shared.claims import Claim, Numbers, Verdict
from shared.lab.plan import path_of

SEEDS = range(500, 510)
FIRST_SEED = 0
TORCH = torch.__version__.partition("+")[0]
SEEDS_IN_WORDS = f"seeds {SEEDS[0]} to {SEEDS[-1]}"
HALF_WIDTH = 2.262 * (1 + 1 / len(SEEDS)) ** 0.5  # of an interval, in standard deviations
FACTOR = 3  # a positive number that varies by more is judged by its logarithm
DIGITS = 8  # of a recorded value that is no whole number
SIX_DIGITS = 1e-6  # two values are one result if they differ by this share of the larger one
ROUNDING = 1e-9  # or by this: a number that should be 0 is as large as a rounding
Measured = Mapping[str, Mapping[int, Numbers]]  # experiment -> seed -> its numbers
COLUMNS = ["experiment", "number", "seed", "torch", "code", "value"]


def check_rows(rows: pd.DataFrame) -> None:
    """Raises ValueError unless rows are a record: of each number the ten seeds, seed 0, or both.

    The ten seeds of an experiment were measured by one version of torch and one state of the code.
    So was its seed 0, if it is there.
    """
    if list(rows.columns) != COLUMNS or not np.isfinite(rows["value"]).all():
        raise ValueError("columns or values are missing")
    ten = list(SEEDS)
    for (experiment, number), seeds in rows.groupby(["experiment", "number"])["seed"]:
        if sorted(seeds) not in (ten, [FIRST_SEED], [FIRST_SEED, *ten]):
            raise ValueError(f"{experiment}: {number}: not {SEEDS_IN_WORDS}, but {sorted(seeds)}")
    ways = rows.groupby(["experiment", rows["seed"] == FIRST_SEED])[["torch", "code"]].nunique()
    if (ways > 1).any(axis=None):
        raise ValueError("an experiment was measured in two ways")


@cache
def read(path: Path = paths.EVIDENCE) -> pd.DataFrame:
    """Returns all rows; none if there is no record yet."""
    if not path.is_file():
        return pd.DataFrame(columns=COLUMNS)
    return pd.read_csv(path, dtype={"code": str, "seed": "int64", "value": "float64"})


def written_short(value: float) -> str:
    """Returns a value as the file has it: whole, or with eight digits."""
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
    first_run.cache_clear()


@cache
def runs(experiment: str) -> Sequence[Numbers]:
    """Returns the numbers of each of the ten seeds, or nothing if the record lacks them."""
    rows = read()
    own = rows[(rows["experiment"] == experiment) & (rows["seed"] != FIRST_SEED)]
    table = own.pivot(index="seed", columns="number", values="value")
    return table.to_dict("records")


@cache
def first_run(experiment: str) -> Numbers:
    """Returns the numbers of seed 0, but for those that are of a machine or a moment."""
    rows = read()
    own = rows[(rows["experiment"] == experiment) & (rows["seed"] == FIRST_SEED)]
    return dict(zip(own["number"], own["value"], strict=True))


def made_by(seeds: Iterable[int]) -> str:
    """Returns which versions of torch measured these seeds."""
    rows = read()
    return ", ".join(sorted(rows.loc[rows["seed"].isin(seeds), "torch"].unique()))


def versions() -> str:
    """Returns what is at work here, beside what measured seed 0."""
    here = f"here torch {TORCH} and Python {platform.python_version()} are at work"
    return f"{here}; on record is torch {made_by([FIRST_SEED])}"


def differing(experiment: str, numbers: Numbers) -> list[str]:
    """Returns the names of the numbers that are not those of seed 0 on record, or are missing."""
    names = []
    for name, recorded in first_run(experiment).items():
        value = numbers.get(name, math.nan)
        if not math.isclose(value, recorded, rel_tol=SIX_DIGITS, abs_tol=ROUNDING):
            names.append(name)
    return names


def next_seed(values: Sequence[float]) -> tuple[float, float]:
    """Returns where another value falls, 95 % of the time.

    It is never said to fall outside 0 to 1, or below 0, where none of the values does; and no
    interval leaves out one of the values that it is made of.
    """
    numbers = pd.Series(values, dtype=float)
    lowest, highest = numbers.min(), numbers.max()
    if lowest == highest:
        return float(lowest), float(highest)
    of_logarithms = lowest > 0 and highest > FACTOR * lowest
    if of_logarithms:
        numbers = np.log(numbers)
    half = HALF_WIDTH * numbers.std()
    low, high = numbers.mean() - half, numbers.mean() + half
    if of_logarithms:
        low, high = math.exp(low), math.exp(high)
    if lowest >= 0:
        low = max(low, 0.0)
    if lowest >= 0 and highest <= 1:
        high = min(high, 1.0)
    return float(min(low, lowest)), float(max(high, highest))


def interval(experiment: str, name: str) -> tuple[float, float] | None:
    """Returns where the number of this name falls with a new seed; None if the record lacks it."""
    measured = runs(experiment)
    if not measured or name not in measured[0]:
        return None
    return next_seed([numbers[name] for numbers in measured])


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
    recorded = verdict(claim)
    if recorded:
        return recorded
    if claim.explored is None:
        raise ValueError(f"{claim.id}: run it on seeds 0 to 9, and say explored=... in the claim")
    return Verdict(claim.explored, 10)


# ---- what becomes of a measurement


@cache
def imported_by(file: Path) -> list[str]:
    """Returns what a file imports, anywhere in it; some of it are names and no modules."""
    names = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names.append(node.module)
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def hash_of_files(modules: Iterable[str]) -> str:
    """Returns a hash of all files of this repository that the modules need, themselves included."""
    files, waiting = set(), list(modules)
    while waiting:
        file = paths.ROOT / path_of(waiting.pop())
        if file.is_file() and file not in files:
            files.add(file)
            waiting += imported_by(file)
    code = b"".join(file.read_bytes() for file in sorted(files))
    return hashlib.sha256(code).hexdigest()[:8]


def for_everybody(experiment: str, numbers: Numbers) -> dict[str, float]:
    """Returns the finite numbers that no machine and no moment changes."""
    main = importlib.import_module(experiment).main
    kept = {}
    for name, value in numbers.items():
        if main.is_reproducible(name) and math.isfinite(value):
            kept[name] = value
    return kept


def with_rows(rows: pd.DataFrame, measured: Measured) -> pd.DataFrame:
    """Returns the record with what was measured, in place of what it had of these seeds."""
    new = []
    for experiment, by_seed in measured.items():
        code = hash_of_files([experiment])
        origin = {"experiment": experiment, "torch": TORCH, "code": code}
        for seed, numbers in by_seed.items():
            old = (rows["experiment"] == experiment) & (rows["seed"] == seed)
            rows = rows[~old]
            if seed == FIRST_SEED:
                numbers = for_everybody(experiment, numbers)
            for name, value in numbers.items():
                new.append(origin | {"number": name, "seed": seed, "value": value})
    return pd.concat([rows, pd.DataFrame(new)]) if len(rows) else pd.DataFrame(new)
