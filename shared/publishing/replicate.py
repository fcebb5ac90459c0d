"""Replicate: every experiment on ten seeds, into the record, data/evidence.csv.

    ./run_all.sh replicate                                 seeds 100 to 109, with two processes
    ./run_all.sh replicate phase1_single_head/parts/scaling.py      this script alone
    ./run_all.sh replicate --seed 0                        seeds 0 to 9, to explore: compared, and not recorded
    ./run_all.sh replicate --seed 110 --seeds 2            two further seeds: do they fall where the record says?
    ATEN_CPU_CAPABILITY=avx2 ./run_all.sh replicate --seed 110 --seeds 2      and as another processor would round
    .venv/bin/python shared/publishing/replicate.py --check  the last run of the course beside the record

Each script runs as a reader runs it, with --seed. What it measured, and the models that it needed,
are kept in data/processed/replications/, so that a replication that was stopped goes on where it
was. Nothing is taken over from another processor, version of torch, or version of any file of the
course.
"""

import argparse
import hashlib
import importlib
import platform
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import fmean

import pandas as pd
import torch
from tqdm import tqdm

from shared import cli, course, paths
from shared.evidence import findings, record
from shared.evidence.claims import Claim, Numbers, all_claims
from shared.evidence.findings import MOST_OUTSIDE
from shared.plan import PLANS, can_run, path_of
from shared.publishing import quoted

KEPT = paths.ROOT / paths.PROCESSED / "replications"
MOST_TURNED = 0.1  # of decided verdicts: where more are, something is broken
Task = tuple[Path, str, int]  # where results are kept, script or loader of a model, seed


def processor() -> str:
    """The vendor of this machine's processor and the instruction set that torch uses: "GenuineIntel
    AVX512".
    """
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    vendor = next(
        (line.split(":")[1].strip() for line in lines if line.startswith("vendor_id")),
        platform.machine(),
    )
    return f"{vendor} {torch.backends.cpu.get_cpu_capability()}"


def version() -> dict[str, str]:
    """What else decides the last digits: the version of torch, and all files of the course that are
    not tests.
    """
    files = [
        path for top in ("shared", "phase*") for path in sorted(paths.ROOT.glob(f"{top}/**/*.py"))
    ]
    code = b"".join(path.read_bytes() for path in files if "tests" not in path.parts)
    return {"torch": torch.__version__.split("+")[0], "code": hashlib.sha256(code).hexdigest()[:8]}


def are_recorded(names: Iterable[str], seeds: Sequence[int]) -> bool:
    """Whether these seeds go into the record. Raises ValueError for a part of the ten, which cannot
    be judged.
    """
    of_record = set(record.SEEDS) & set(seeds)
    if 0 < len(of_record) < len(record.SEEDS):
        raise ValueError("seeds 100 to 109 are the record: measure all ten of them, or others")
    rows, now = record.read(), version()
    same = rows[(rows["torch"] == now["torch"]) & (rows["code"] == now["code"])]
    there = {record.name_of(path_of(name)) for name in names} <= set(same["experiment"])
    return bool(of_record) or (there and min(seeds) > max(record.SEEDS))


def found_in(kept: Path, name: str, seed: int) -> Path:
    """The file in which a script keeps what it measured with this seed; it is there if the script
    has run.
    """
    return findings.file_of(path_of(name), kept / f"seed{seed}")


def measure(task: Task) -> tuple[str, course.Result]:
    """Run a script with one seed, or train a model that scripts share."""
    kept, name, seed = task
    paths.CHECKPOINTS = (
        kept / "checkpoints"
    )  # another processor, and other files, train other models
    argv = ["--seed", str(seed), "--no-pictures", "--output-dir", str(kept / f"seed{seed}")]
    return name, (course.train if ":" in name else course.run_script)(name, argv)


def stages(kept: Path, names: Sequence[str], seeds: Sequence[int]) -> Iterator[list[Task]]:
    """What is not done yet, seed by seed; beside the scripts of a seed, the shared models of the
    next.
    """
    loaders = dict.fromkeys(loader for plan in PLANS.values() for loader in plan.train)
    waiting = {
        seed: [(kept, n, seed) for n in names if not found_in(kept, n, seed).is_file()]
        for seed in seeds
    }
    todo = [seed for seed in seeds if waiting[seed]]
    training = [[(kept, loader, seed) for loader in loaders] for seed in todo]
    scripts = [waiting[seed] for seed in todo]
    yield from (one + two for one, two in zip([[], *scripts], [*training, []], strict=True))


def measure_all(kept: Path, names: Sequence[str], seeds: Sequence[int]) -> None:
    """Measure what is not done yet. Leaves with the exit code of a script that failed, and says
    what it said.
    """
    todo = list(stages(kept, names, seeds))
    with (
        course.processes() as pool,
        tqdm(total=sum(map(len, todo)), desc="models and scripts", disable=None) as bar,
    ):
        for tasks in todo:
            for name, result in pool.imap_unordered(measure, tasks):
                if result.code:
                    tqdm.write(f"== {name}\n{result.text}")
                    sys.exit(result.code)
                bar.update()


def collected(
    kept: Path, names: Iterable[str], seeds: Iterable[int]
) -> dict[str, dict[int, Numbers]]:
    """Experiment -> seed -> its numbers."""
    return {
        record.name_of(path_of(name)): {
            seed: findings.load(found_in(kept, name, seed))["runs"][0] for seed in seeds
        }
        for name in names
    }


def with_rows(rows: pd.DataFrame, measured: dict[str, dict[int, Numbers]]) -> pd.DataFrame:
    """The record with what was measured, in place of what these experiments had with other versions
    or measured now.
    """
    where = version() | {"processor": processor()}
    new = [
        {"experiment": experiment, "number": number, "seed": seed, "value": value} | where
        for experiment, runs in measured.items()
        for seed, numbers in runs.items()
        for number, value in numbers.items()
    ]
    old = rows[
        ~rows["experiment"].isin(measured)
        | (rows["code"] == where["code"]) & (rows["torch"] == where["torch"])
    ]
    both = pd.concat([old, pd.DataFrame(new)]) if len(old) else pd.DataFrame(new)
    return both.drop_duplicates(["experiment", "number", "seed", "processor"], keep="last")


def compare(claims: Iterable[Claim], measured: dict[str, dict[int, Numbers]]) -> bool:
    """Say how runs fall beside the record, and how much could be compared; returns whether they
    look like it.
    """
    inside, turned = record.compared(claims, measured)
    share = f", {1 - fmean(inside):.1%} (5 % are expected)" if inside else ""
    print(
        f"{len(inside)} numbers could be compared: {inside.count(False)} lie outside their interval{share}"
    )
    print(
        f"{len(turned)} decided verdicts could be compared: {len(turned) - turned.count('')} turned"
    )
    print("\n".join(filter(None, turned)))
    return inside.count(False) <= MOST_OUTSIDE * len(inside) and turned.count("") >= (
        1 - MOST_TURNED
    ) * len(turned)


def chosen(options: argparse.Namespace, claims: Iterable[Claim]) -> list[str]:
    """The modules to run, those that train first: they decide claims, or pages quote them. Says
    what cannot run.
    """
    names = quoted.experiments() | {record.name_of(claim.script) for claim in claims}
    every = {
        name: plan for plan in PLANS.values() for name in plan.all if name.split(".")[-1] in names
    }
    every = {
        name: plan
        for name, plan in every.items()
        if hasattr(importlib.import_module(name).main, "claims")
    }
    wanted = set(map(path_of, every))
    asked = {paths.shown(Path(script).resolve()) for script in options.scripts} or wanted
    if unknown := sorted(asked - wanted):
        raise ValueError(
            f"nothing is recorded of {', '.join(unknown)}: name scripts as data/claims.md does"
        )
    there = {name: plan for name, plan in every.items() if path_of(name) in asked}
    if missing := sorted(name for name, plan in there.items() if not can_run(name)):
        print(f"not installed, so left out: {', '.join(missing)}")
    able = [name for name, plan in there.items() if can_run(name)]
    return sorted(able, key=lambda name: (name not in there[name].slow + there[name].longer, name))


def replicate(options: argparse.Namespace, claims: list[Claim]) -> None:
    """Measure, record, and say what came out. Raises ValueError for what cannot be measured or
    judged.
    """
    seeds, names = list(cli.seeds(options)), chosen(options, claims)
    recorded = are_recorded(names, seeds)
    mark = "_".join((processor(), *version().values())).replace(" ", "_")
    measure_all(KEPT / mark, names, seeds)
    measured = collected(KEPT / mark, names, seeds)
    for claim in claims:
        if runs := measured.get(record.name_of(claim.script)):
            print(f"{claim.id}: {claim.over(runs.values())}")
    if not set(seeds) & set(record.SEEDS):
        compare(claims, measured)
    if recorded:
        record.write(with_rows(record.read(), measured))
        print(
            f"written: {paths.shown(paths.EVIDENCE)}: seeds {seeds[0]} to {seeds[-1]} on {processor()}"
        )


@cli.script
def main(argv: list[str] | None = None) -> None:
    parser = cli.parser(__doc__)
    parser.add_argument(
        "scripts", nargs="*", metavar="SCRIPT", help="measure these alone (default: all)"
    )
    parser.add_argument(
        "--check", action="store_true", help="compare the last run with the record, measure nothing"
    )
    parser.set_defaults(seed=min(record.SEEDS), seeds=len(record.SEEDS))
    options, claims = cli.parse(parser, argv), all_claims()
    if options.check:
        saved = findings.gather(options.output_dir)
        last = {
            record.name_of(script["script"]): dict(enumerate(script["runs"])) for script in saved
        }
        return None if compare(claims, last) else sys.exit(1)
    try:
        replicate(options, claims)
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    cli.run(main)
