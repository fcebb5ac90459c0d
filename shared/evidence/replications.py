"""The record: what replications of every experiment measured, and what it says of each claim.

data/evidence.json is written by ./run_all.sh replicate and committed. It has one entry for each block of seeds on one
kind of processor (vendor and instruction set) and one set of versions; an entry has, for each finding and each of its
numbers, the values in the order of the seeds. Another processor rounds otherwise, which acts like another seed on
whatever is trained. So a claim is decided only if every entry decides it, and alike.
"""

import json
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shared import paths
from shared.evidence.claims import EXPERIMENT, UNDECIDED, Claim, Numbers

DIGITS = 4  # of a number in the record
Columns = Mapping[str, list]  # name -> its values, one a seed


@dataclass(frozen=True)
class Block:
    """The seeds of one replication on one kind of processor; findings: id -> Columns."""

    processor: str
    versions: Mapping[str, str]
    seeds: list[int]
    findings: Mapping[str, Columns]


@dataclass(frozen=True)
class Published:
    """What the record says of one claim; runs: the numbers of each seed of each block."""

    verdict: str
    runs: Sequence[Numbers]
    processors: int

    def range(self, name: str) -> tuple[float, float] | None:
        """The least and the largest value of a number, or None if the record does not have it."""
        values = [number for run in self.runs if name in run for number in flat(run[name])]
        return (min(values), max(values)) if values else None


def rows(columns: Columns) -> list[Numbers]:
    """Name -> values -> the numbers of each seed."""
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def flat(value: float | list) -> list[float]:
    return [number for item in value for number in flat(item)] if isinstance(value, list) else [value]


def rounded(value: Any) -> Any:
    """A number to DIGITS digits, so that the record stays small; lists and dicts item by item."""
    if isinstance(value, dict):
        return {name: rounded(item) for name, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def processor() -> str:
    """The vendor of this machine's processor and the instruction set that torch uses: "GenuineIntel AVX512"."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    vendor = next((line.split(":")[1].strip() for line in lines if line.startswith("vendor_id")), platform.machine())
    return f"{vendor} {torch.backends.cpu.get_cpu_capability()}"


def versions() -> dict[str, str]:
    """What decides the last digits: the versions of torch and numpy."""
    return {"torch": torch.__version__.split("+")[0], "numpy": np.__version__}


@cache
def read(path: Path = paths.EVIDENCE) -> tuple[Block, ...]:
    """All blocks of the record; none if there is no record yet. Raises OSError, which names it, if it is damaged."""
    if not path.is_file():
        return ()
    with paths.damage_names(path, f"git checkout {paths.shown(path)} brings it back"):
        blocks = tuple(Block(**block) for block in json.loads(path.read_text(encoding="utf-8")))
        for columns in (columns for block in blocks for columns in block.findings.values()):
            sum(number for numbers in rows(columns) for number in flat(list(numbers.values())))
    return blocks


def write(blocks: Sequence[Block], path: Path = paths.EVIDENCE) -> None:
    """Write the record, one finding a line so that changes can be read."""
    texts = []
    for block in blocks:
        head = json.dumps({"processor": block.processor, "versions": block.versions, "seeds": block.seeds})
        found = sorted(rounded(block.findings).items())
        lines = [f"  {json.dumps(name)}: {json.dumps(columns, ensure_ascii=False)}" for name, columns in found]
        texts.append(f'{head[:-1]}, "findings": {{\n' + ",\n".join(lines) + "\n}}")
    with paths.whole_file(path) as unfinished:
        unfinished.write_text("[\n" + ",\n".join(texts) + "\n]\n", encoding="utf-8", newline="\n")
    read.cache_clear()


def with_block(blocks: Sequence[Block], new: Block) -> list[Block]:
    """The record with a block added; findings of the same processor, versions and seeds are replaced one by one."""
    same = [old for old in blocks if replace(old, findings=new.findings) == new]
    others = [old for old in blocks if old not in same]
    merged = {name: columns for block in (*same, new) for name, columns in block.findings.items()}
    return [*others, replace(new, findings=merged)]


def published(claim: Claim, blocks: Sequence[Block] | None = None) -> Published | None:
    """What the record says of a claim: decided where all blocks agree.

    None if it was not measured yet, or before the rule asked for the numbers that it asks for now.
    """
    found = [block for block in (read() if blocks is None else blocks) if claim.id in block.findings]
    runs = [rows(block.findings[claim.id]) for block in found]
    try:
        said = {claim.over(seeds) for seeds in runs}
    except KeyError:
        return None
    if not said:
        return None
    verdict = said.pop() if len(said) == 1 else UNDECIDED
    return Published(verdict, [run for seeds in runs for run in seeds], len({block.processor for block in found}))


def verdicts(claims: Iterable[Claim], blocks: Sequence[Block]) -> dict[str, str]:
    """id -> published verdict of each experiment that the blocks have."""
    known = {claim.id: published(claim, blocks) for claim in claims if claim.kind == EXPERIMENT}
    return {name: found.verdict for name, found in known.items() if found}
