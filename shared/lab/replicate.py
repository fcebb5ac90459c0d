"""Replicate: does every experiment measure the same again? And its seeds for the record.

    ./run_all.sh replicate                       the ten seeds of the record, which is written anew
    ./run_all.sh replicate phase1_single_head/parts/scaling.py      this script alone
    ./run_all.sh replicate --seed 0 --seeds 1    seed 0, into the record as well
    ./run_all.sh replicate --seed 0              seeds 0 to 9, to explore: judged, not recorded
    .venv/bin/python shared/lab/replicate.py --check         has the last run our numbers?

What a script measured with a seed is kept in data/processed/replications/, so that a replication
that was stopped goes on with the next script and seed. It is worthless with another version of
torch, or if a file has changed that the script imports.
"""

import argparse
import ast
import hashlib
import importlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pandas as pd
from tqdm import tqdm

from shared import cli, paths
from shared.claims import Claim, Numbers, all_claims
from shared.lab import findings, pages, record, runner
from shared.lab.plan import can_run, path_of, scripts

REPLICATIONS = paths.ROOT / paths.PROCESSED / "replications"
Measured = Mapping[str, Mapping[int, Numbers]]  # experiment -> seed -> its numbers


# ---- what decides a number


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


# ---- measuring


@dataclass(frozen=True)
class Piece:
    """An experiment with one seed, and the folders of what it measures and of its models."""

    experiment: str
    seed: int
    folder: Path
    models: Path

    @property
    def file(self) -> Path:
        """Where its numbers are kept, once it is done."""
        return findings.file_of(self.experiment, self.folder)


def pieces_of(experiments: Sequence[str], seeds: Iterable[int]) -> list[Piece]:
    """Returns every experiment with every seed.

    Experiments share their models, which are trained again if any file changes that one imports.
    """
    folder = REPLICATIONS / f"torch_{record.TORCH}"
    models = folder / f"models_{hash_of_files(experiments)}"
    pieces = []
    for experiment in experiments:
        code = hash_of_files([experiment])
        for seed in seeds:
            pieces.append(Piece(experiment, seed, folder / code / f"seed{seed}", models))
    return pieces


def measure_piece(piece: Piece) -> tuple[Piece, runner.Result]:
    """Runs a script as a reader runs it, with --seed."""
    paths.CHECKPOINTS = piece.models
    argv = ["--seed", str(piece.seed), "--no-pictures", "--output-dir", str(piece.folder)]
    return piece, runner.run_script(piece.experiment, argv)


def measure_missing(pieces: Iterable[Piece]) -> None:
    """Measures what is not kept yet. If a script fails, says what it said and leaves."""
    missing = [piece for piece in pieces if not piece.file.is_file()]
    with runner.processes() as pool, tqdm(total=len(missing), disable=None) as bar:
        for piece, result in pool.imap_unordered(measure_piece, missing):
            if result.code:
                tqdm.write(f"== {piece.experiment}\n{result.text}")
                sys.exit(result.code)
            bar.update()


def kept_numbers(pieces: Iterable[Piece]) -> Measured:
    """Returns what was measured."""
    measured = {}
    for piece in pieces:
        (numbers,) = findings.load(piece.file).runs
        measured.setdefault(piece.experiment, {})[piece.seed] = numbers
    return measured


# ---- what becomes of it


def with_rows(rows: pd.DataFrame, measured: Measured) -> pd.DataFrame:
    """Returns the record with what was measured, in place of what it had of these seeds.

    Of seed 0 it has no numbers that another machine or moment would change.
    """
    new = []
    for experiment, by_seed in measured.items():
        main = importlib.import_module(experiment).main
        code = hash_of_files([experiment])
        made_by = {"experiment": experiment, "torch": record.TORCH, "code": code}
        for seed, numbers in by_seed.items():
            old = (rows["experiment"] == experiment) & (rows["seed"] == seed)
            rows = rows[~old]
            for name, value in numbers.items():
                if seed != record.FIRST_SEED or main.is_reproducible(name):
                    new.append(made_by | {"number": name, "seed": seed, "value": value})
    return pd.concat([rows, pd.DataFrame(new)]) if len(rows) else pd.DataFrame(new)


def chosen(named: Iterable[str], claims: Iterable[Claim]) -> list[str]:
    """Returns the experiments to run: those named, or all that decide claims or that pages quote.

    Says what cannot run here. Raises ValueError for what is no script of the course.
    """
    course = scripts()
    wanted = {claim.experiment for claim in claims} | pages.linked_experiments()
    if named:
        by_path = {path_of(module): module for module in course}
        files = {paths.shown(Path(name).resolve()) for name in named}
        unknown = ", ".join(sorted(files - set(by_path)))
        if unknown:
            way_out = "name scripts as data/claims.md does"
            raise ValueError(f"nothing is recorded of {unknown}: {way_out}")
        wanted = {by_path[file] for file in files}
    able = []
    for module in course:
        if module in wanted and can_run(module):
            able.append(module)
        elif module in wanted:
            print(f"not installed, so left out: {module}")
    return able


def replicate(options: argparse.Namespace, claims: list[Claim]) -> None:
    """Measures, judges, records what belongs into the record, and says what came out.

    Raises ValueError for what cannot be measured or judged.
    """
    seeds = cli.seeds(options)
    pieces = pieces_of(chosen(options.scripts, claims), seeds)
    measure_missing(pieces)
    measured = kept_numbers(pieces)
    for claim in claims:
        if claim.experiment in measured:
            print(f"{claim.id}: {claim.over(measured[claim.experiment].values())}")
    if seeds in (record.SEEDS, range(record.FIRST_SEED, record.FIRST_SEED + 1)):
        record.write(with_rows(record.read(), measured))
        print(f"written: {paths.shown(paths.EVIDENCE)}")


def check_last_run(output_dir: Path) -> None:
    """Compares the last run of the course with seed 0 on record; leaves with 1 if they differ."""
    compared, differing = 0, []
    for saved in findings.gather(output_dir):
        judgement = saved.judged()
        compared += judgement.compared
        recorded = record.first_run(saved.experiment)
        for name in judgement.differing:
            value = saved.runs[0].get(name)
            differing.append(f"{saved.experiment}: {name}: {value}, on record {recorded[name]}")
    print(record.versions())
    print(f"{compared} numbers were compared: {len(differing)} are not those on record")
    for line in differing:
        print(line)
    if differing or not compared:
        sys.exit(1)


@cli.script
def main(argv: list[str] | None = None) -> None:
    parser = cli.parser(__doc__)
    parser.add_argument("scripts", nargs="*", metavar="SCRIPT", help="measure these alone")
    parser.add_argument(
        "--check", action="store_true", help="compare the last run with seed 0 on record"
    )
    parser.set_defaults(seed=min(record.SEEDS), seeds=len(record.SEEDS))
    options = cli.parse(parser, argv)
    if options.check:
        return check_last_run(options.output_dir)
    try:
        replicate(options, all_claims())
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    cli.run(main)
