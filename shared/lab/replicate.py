"""Replicate: does every experiment measure the same again? And its ten seeds for the record.

    ./run_all.sh replicate                       the ten seeds of the record, which is written anew
    ./run_all.sh replicate phase1_single_head/parts/scaling.py      this script alone
    ./run_all.sh replicate --seed 0              seeds 0 to 9, to explore: judged, not recorded
    .venv/bin/python shared/lab/replicate.py --check         has the last run our numbers?

What a script measured with a seed is kept in data/processed/replications/, so that a replication
that was stopped goes on with the next script and seed. It is worthless with another version of
torch, or if a file has changed that the script imports.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from shared import cli, paths
from shared.claims import Claim, all_claims
from shared.lab import findings, pages, record, runner
from shared.lab.plan import can_run, path_of, scripts

REPLICATIONS = paths.ROOT / paths.PROCESSED / "replications"


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
    models = folder / f"models_{record.hash_of_files(experiments)}"
    pieces = []
    for experiment in experiments:
        code = record.hash_of_files([experiment])
        for seed in seeds:
            pieces.append(Piece(experiment, seed, folder / code / f"seed{seed}", models))
    return pieces


def measure_piece(piece: Piece) -> tuple[Piece, runner.Result]:
    """Runs a script as a reader runs it, with --seed."""
    paths.CHECKPOINTS = piece.models
    argv = ["--seed", str(piece.seed), "--if-used", "--no-pictures"]
    argv += ["--output-dir", str(piece.folder)]
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


def kept_numbers(pieces: Iterable[Piece]) -> record.Measured:
    """Returns what was measured."""
    measured = {}
    for piece in pieces:
        (numbers,) = findings.load(piece.file).runs
        measured.setdefault(piece.experiment, {})[piece.seed] = numbers
    return measured


# ---- what becomes of it


def chosen(named: Iterable[str], claims: Iterable[Claim]) -> list[str]:
    """Returns the experiments to run: those named, or all that decide claims or that pages quote.

    Says what cannot run here. Raises ValueError for what is no script of the course.
    """
    course = {path_of(module): module for module in scripts()}
    unknown = ", ".join(set(named) - set(course))
    if unknown:
        raise ValueError(f"no script of the course is {unknown}: name it as data/claims.md does")
    wanted = {claim.experiment for claim in claims} | pages.linked_experiments()
    if named:
        wanted = {course[file] for file in named}
    able = []
    for module in course.values():
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
    if seeds == record.SEEDS:
        record.write(record.with_rows(record.read(), measured))
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
    parser = cli.parser(__doc__, "--seed --seeds --output-dir")
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
