"""Replicate: every experiment with several seeds, added to the record, data/evidence.json.

    ./run_all.sh replicate                                 seeds 0 to 4, with two processes
    ./run_all.sh replicate --seed 5                        seeds 5 to 9
    ATEN_CPU_CAPABILITY=avx2 ./run_all.sh replicate        as a processor would round that has no more than AVX2
    ./run_all.sh replicate phase1_single_head/parts/scaling.py     this script alone
    .venv/bin/python shared/evidence/replicate.py --check  does the last run contradict the record?

Each script runs as a reader runs it, with --seed. What it measured, and the models that it needed, are kept in
data/processed/replications/, so that a replication that was stopped goes on where it was. Nothing is taken over from
another processor, version of torch or numpy, or version of any file of the course.
"""

import argparse
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from tqdm import tqdm

from shared import cli, course, paths
from shared.evidence import findings, replications
from shared.evidence.claims import EXPERIMENT, FEWEST_SEEDS, Claim, all_claims, columns
from shared.evidence.replications import Block
from shared.plan import path_of, plans

KEPT = paths.ROOT / paths.PROCESSED / "replications"


def module_of(script: str) -> str:
    return script.removesuffix(".py").replace("/", ".")


def wanted_tasks(claims: Iterable[Claim], seeds: Sequence[int]) -> list[tuple[str, int]]:
    """(module, seed), those that train models of their own first; where a script only has probes, one seed."""
    here = {name: plan.can_run(name) for plan in plans().values() for name in plan.all}
    measured = {module_of(claim.script) for claim in claims}
    if missing := sorted(name for name in measured if not here[name]):
        print(f"not installed, so left out: {', '.join(missing)}")
    experiments = {module_of(claim.script) for claim in claims if claim.kind == EXPERIMENT}
    slow = [name for plan in plans().values() for name in plan.slow + plan.longer]
    names = sorted((name for name in measured if here[name]), key=lambda name: (name not in slow, name))
    return [(name, seed) for name in names for seed in (seeds if name in experiments else seeds[:1])]


def kept_here() -> Path:
    """Where this processor keeps what it measures, with these versions and files alone."""
    files = [path for top in ("shared", "phase*") for path in sorted(paths.ROOT.glob(f"{top}/**/*.py"))]
    code = b"".join(path.read_bytes() for path in files if "tests" not in path.parts)
    mark = hashlib.sha256(code + json.dumps(replications.versions()).encode()).hexdigest()[:12]
    return KEPT / f"{replications.processor().replace(' ', '_')}_{mark}"


def found_in(kept: Path, name: str, seed: int) -> Path:
    """The file in which a script keeps what it measured with this seed; it is there if the script has run."""
    return findings.file_of(path_of(name), kept / f"seed{seed}")


def measure(task: tuple[Path, str, int]) -> tuple[str, course.Result]:
    """Run a script with one seed, or train a model that scripts share."""
    kept, name, seed = task
    paths.CHECKPOINTS = kept / "checkpoints"  # another processor, and other files, train other models
    argv = ["--seed", str(seed), "--no-pictures", "--output-dir", str(kept / f"seed{seed}")]
    return name, (course.train if ":" in name else course.run_script)(name, argv)


def measure_all(kept: Path, wanted: Sequence[tuple[str, int]]) -> None:
    """Measure what is not done yet, two at a time; what measures times at the end, alone.

    Leaves with the exit code of a script that failed, and says what it said.
    """
    alone = {name for plan in plans().values() for name in plan.alone}
    waiting = [(kept, name, seed) for name, seed in wanted if not found_in(kept, name, seed).is_file()]
    if not waiting:
        return
    loaders = dict.fromkeys(loader for plan in plans().values() for loader in plan.train)
    training = [(kept, loader, seed) for seed in sorted({seed for _, _, seed in waiting}) for loader in loaders]
    together = [task for task in waiting if task[1] not in alone]
    apart = [task for task in waiting if task[1] in alone]
    bar = tqdm(total=len(training) + len(waiting), desc="models, scripts and seeds", disable=None)
    with course.processes() as pool:
        for run, tasks in ((pool.imap_unordered, training), (pool.imap_unordered, together), (map, apart)):
            for name, result in run(measure, tasks):
                if result.code:
                    tqdm.write(f"== {name}\n{result.text}")
                    sys.exit(result.code)
                bar.update()
    bar.close()


def collected(kept: Path, measured: Iterable[tuple[str, int]], seeds: Sequence[int]) -> Block:
    """What these scripts found with these seeds, as a block of the record."""
    runs: dict[str, list[dict]] = {}
    for name, seed in measured:
        content = json.loads(found_in(kept, name, seed).read_text(encoding="utf-8"))
        numbers = {number: value for number, (value,) in content["numbers"].items()}
        for finding in content["findings"]:
            runs.setdefault(finding["id"], []).append(numbers)
    found = {finding: columns(of_seeds) for finding, of_seeds in runs.items()}
    return Block(replications.processor(), replications.versions(), list(seeds), found)


def of_claims(blocks: Sequence[Block], claims: Iterable[Claim]) -> list[Block]:
    """The blocks without findings that no script has any more."""
    ids = {claim.id for claim in claims}
    kept = [{name: found for name, found in block.findings.items() if name in ids} for block in blocks]
    return [replace(block, findings=found) for block, found in zip(blocks, kept, strict=True) if found]


def replicate(options: argparse.Namespace, claims: list[Claim]) -> None:
    """Measure, and add what was measured to the record. Raises ValueError for what cannot be measured or judged."""
    seeds = list(cli.seeds(options))
    if len(seeds) < FEWEST_SEEDS:
        raise ValueError(f"a verdict needs {FEWEST_SEEDS} seeds or more: got --seeds {len(seeds)}")
    chosen = {module_of(script) for script in options.scripts}
    if unknown := sorted(chosen - {module_of(claim.script) for claim in claims}):
        raise ValueError(f"no claim is decided by {', '.join(unknown)}: name scripts as data/claims.md does")
    kept = kept_here()
    wanted = wanted_tasks([claim for claim in claims if not chosen or module_of(claim.script) in chosen], seeds)
    measure_all(kept, wanted)
    new = collected(kept, wanted, seeds)
    before = of_claims(replications.read(), claims)
    after = replications.with_block(before, new)
    replications.write(after)
    old, now = replications.verdicts(claims, before), replications.verdicts(claims, after)
    for name in (name for name in now if name in old and old[name] != now[name]):
        print(f"{name}: {old[name]} -> {now[name]}")
    print("The record: " + ", ".join(f"{count} {verdict}" for verdict, count in Counter(now.values()).items()))
    print(f"written: {paths.shown(paths.EVIDENCE)}: seeds {seeds[0]} to {seeds[-1]} on {new.processor}")


@cli.script
def main(argv: list[str] | None = None) -> None:
    parser = cli.parser(__doc__)
    parser.add_argument("scripts", nargs="*", metavar="SCRIPT", help="measure these alone (default: all)")
    parser.add_argument("--check", action="store_true", help="compare the last run with the record, measure nothing")
    parser.set_defaults(seeds=5)
    options = cli.parse(parser, argv)
    if options.check:
        return findings.check(options.output_dir)
    try:
        replicate(options, all_claims())
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    cli.run(main)
