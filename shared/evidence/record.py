"""The record: what every experiment measured on ten seeds that nobody had run when the rules were
committed.

data/evidence.csv is written by ./run_all.sh replicate, one row a number. Seeds 100 to 109 are the
record. Seeds from 110 on are spot checks of it, with other seeds and other kinds of processors
(vendor and instruction set). An experiment is called by the name of its file. Where the next seed
falls is a prediction interval: mean ± 2.37 s of ten seeds holds 95 % of further ones (Student's t
with 9 degrees of freedom, times √(1 + 1/10)).
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from shared import paths
from shared.evidence.claims import Claim, Numbers, Verdict

SEEDS = range(100, 110)
WIDTH = 2.262 * (1 + 1 / len(SEEDS)) ** 0.5  # of a standard deviation, to each side
DIGITS = 4  # of a recorded value that is no whole number
Measured = Mapping[str, Mapping[int, Numbers]]  # experiment -> seed -> its numbers
COLUMNS = ["experiment", "number", "seed", "processor", "torch", "code", "value"]


def name_of(script: str) -> str:
    """ "phase1_single_head/parts/scaling.py" -> "scaling"."""
    return Path(script).stem


def check(rows: pd.DataFrame) -> None:
    """Raise ValueError for rows that are no record: of each number it has all ten seeds, and each
    row once.
    """
    if rows.empty or list(rows.columns) != COLUMNS or rows.isna().any(axis=None):
        raise ValueError("rows, columns or values are missing")
    if not np.isfinite(rows["value"]).all():
        raise ValueError("some values are not finite")
    if (rows["seed"] < min(SEEDS)).any():
        raise ValueError(f"the first seed is {min(SEEDS)}: got {rows['seed'].min()}")
    if rows.duplicated(["experiment", "number", "seed", "processor"]).any():
        raise ValueError("some rows come twice")
    seeds_of = rows[rows["seed"].isin(SEEDS)].groupby(["experiment", "number"])["seed"].nunique()
    for (experiment, number), seeds in seeds_of.items():
        if seeds < len(SEEDS):
            raise ValueError(f"{experiment}: {number}: {seeds} of {len(SEEDS)} seeds")


@cache
def read(path: Path = paths.EVIDENCE) -> pd.DataFrame:
    """All rows; none if there is no record yet. Raises OSError, which names the file, if it is
    damaged.
    """
    if not path.is_file():
        return pd.DataFrame(columns=COLUMNS)
    with paths.damage_names(path, f"git checkout {paths.shown(path)} brings it back"):
        rows = pd.read_csv(path, dtype={"code": str, "seed": "int64", "value": "float64"})
        check(rows)
        return rows


def write(rows: pd.DataFrame, path: Path = paths.EVIDENCE) -> None:
    """Write the record, a number's seeds side by side; of one seed's rows those that were measured
    first come first.

    Raises ValueError, and writes nothing, for what could not be read again, such as a number of
    nine seeds.
    """
    check(rows[COLUMNS])
    ordered = rows[COLUMNS].sort_values(["experiment", "number", "seed"], kind="stable")
    texts = [
        f"{value:.0f}" if value == round(value) else f"{value:.{DIGITS}g}"
        for value in ordered["value"]
    ]
    with paths.whole_file(path) as unfinished:
        ordered.assign(value=texts).to_csv(unfinished, index=False, lineterminator="\n")
    read.cache_clear()
    runs.cache_clear()


@cache
def runs(experiment: str) -> Sequence[Numbers]:
    """The numbers of each seed of the record; empty unless all seeds are there."""
    rows = read()
    own = rows[(rows["experiment"] == experiment) & rows["seed"].isin(SEEDS)].drop_duplicates(
        ["number", "seed"]
    )
    table = own.pivot(index="seed", columns="number", values="value").dropna(axis="columns")
    return table.to_dict("records") if len(table) == len(SEEDS) else []


def span(values: Sequence[float]) -> tuple[float, float]:
    """Where another value falls, 95 % of the time. What was never below 0, or never left 0 to 1, is
    not said to.
    """
    numbers = pd.Series(values, dtype=float)
    middle, half = numbers.mean(), WIDTH * numbers.std()
    low = max(middle - half, 0.0) if numbers.min() >= 0 else middle - half
    high = min(middle + half, 1.0) if numbers.between(0, 1).all() else middle + half
    return float(low), float(high)


def interval(experiment: str, *names: str) -> tuple[float, float] | None:
    """Where a number of this name falls with a new seed, or any of several; None if the record
    lacks one.
    """
    measured = runs(experiment)
    if not measured or not set(names) <= measured[0].keys():
        return None
    ends = [span([run[name] for run in measured]) for name in names]
    return min(low for low, _ in ends), max(high for _, high in ends)


def verdict(claim: Claim) -> Verdict | None:
    """What the record says of a claim; None if it does not have the numbers that the rule asks for."""
    try:
        return claim.over(measured) if (measured := runs(name_of(claim.script))) else None
    except KeyError:
        return None


def effect(claim: Claim) -> tuple[float, float]:
    """Where the number that decides a claim falls with a new seed."""
    return span([claim.effect(numbers) for numbers in runs(name_of(claim.script))])


def compared(claims: Iterable[Claim], measured: Measured) -> tuple[list[bool], list[str]]:
    """How other runs fall beside the record.

    Returns for each number that varies whether it lies in its interval, and for each decided
    verdict how it turned, empty if it did not.
    """
    inside, turned = [], []
    for experiment, by_seed in measured.items():
        for name, value in (item for numbers in by_seed.values() for item in numbers.items()):
            low, high = interval(experiment, name) or (value, value)
            inside += [low <= value <= high] if low < high else []
    for claim in claims:
        known = verdict(claim)
        for seed, numbers in (
            measured.get(name_of(claim.script), {}).items() if known and known.decided else ()
        ):
            here = claim.over([numbers]).kind
            turned.append(
                ""
                if here == known.kind
                else f"seed {seed}: {claim.id}: {here}; in the record: {known}"
            )
    return inside, turned


def checks() -> dict[str, dict[str, dict[int, dict[str, float]]]]:
    """Processor -> what it measured with further seeds."""
    rows, found = read(), {}
    for row in rows[rows["seed"] > max(SEEDS)].itertuples():
        numbers = (
            found.setdefault(row.processor, {})
            .setdefault(row.experiment, {})
            .setdefault(row.seed, {})
        )
        numbers[row.number] = row.value
    return found
