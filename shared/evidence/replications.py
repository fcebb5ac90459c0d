"""The record: what replications of every experiment measured, and what it says of each claim.

data/evidence.json is written by ./run_all.sh replicate and committed. It has one entry for each block of seeds on one
kind of processor (vendor and instruction set) and one set of versions; an entry has, for each finding and each of its
numbers, the values in the order of the seeds. Another processor rounds otherwise, which acts like another seed on
whatever is trained. So a claim is decided only if every entry decides it, and alike.
"""

import json
import math
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shared import paths
from shared.evidence.claims import EXPERIMENT, MEASURED, UNDECIDED, Claim, Numbers

DIGITS = 4  # of a number in the record
Columns = Mapping[str, list]  # name -> its values, one a seed


@dataclass(frozen=True)
class Block:
    """The seeds of one replication on one kind of processor; findings: id -> Columns."""

    processor: str
    versions: Mapping[str, str]
    seeds: list[int]
    findings: Mapping[str, Columns]

    @property
    def key(self) -> tuple:
        return self.processor, dict(self.versions), self.seeds


@dataclass(frozen=True)
class Published:
    """What the record says of one claim."""

    verdict: str
    blocks: Sequence[Columns]
    runs: int
    processors: int

    def range(self, name: str) -> tuple[float, float] | None:
        """The least and the largest value of a number, or None if the record does not have it."""
        values = [number for columns in self.blocks for value in columns.get(name, ()) for number in flat(value)]
        return (min(values), max(values)) if values else None


def flat(value: float | list) -> list[float]:
    return [number for item in value for number in flat(item)] if isinstance(value, list) else [value]


def rounded(value: Any) -> Any:
    """A number to DIGITS digits, so that the record stays small; lists item by item."""
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) and math.isfinite(value) else value


def columns(runs: Sequence[Numbers]) -> dict[str, list]:
    """Numbers of several seeds -> name -> values."""
    return {name: [run[name] for run in runs] for name in runs[0]}


def rows(of: Columns) -> list[dict[str, Any]]:
    """Name -> values -> the numbers of each seed."""
    return [dict(zip(of, values, strict=True)) for values in zip(*of.values(), strict=True)]


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
    """All blocks of the record; none if there is no record yet."""
    if not path.is_file():
        return ()
    return tuple(Block(**block) for block in json.loads(path.read_text(encoding="utf-8")))


def write(blocks: Sequence[Block], path: Path = paths.EVIDENCE) -> None:
    """Write the record, one finding a line so that changes can be read."""
    with paths.whole_file(path) as unfinished:
        unfinished.write_text("[\n" + ",\n".join(map(_block_text, blocks)) + "\n]\n", encoding="utf-8", newline="\n")
    read.cache_clear()


def _block_text(block: Block) -> str:
    head = {"processor": block.processor, "versions": dict(block.versions), "seeds": block.seeds}
    lines = ",\n".join(
        f"  {json.dumps(name)}: {json.dumps(rounded_columns(found), ensure_ascii=False)}"
        for name, found in sorted(block.findings.items())
    )
    return f'{json.dumps(head)[:-1]}, "findings": {{\n{lines}\n}}}}'


def rounded_columns(of: Columns) -> dict[str, list]:
    return {name: rounded(values) for name, values in of.items()}


def with_block(blocks: Sequence[Block], new: Block) -> list[Block]:
    """The record with a block added; findings of the same processor, versions and seeds are replaced one by one."""
    same = [old for old in blocks if old.key == new.key]
    others = [old for old in blocks if old.key != new.key]
    merged = {name: found for old in same for name, found in old.findings.items()} | dict(new.findings)
    return [*others, Block(new.processor, new.versions, new.seeds, merged)]


def said_by(claim: Claim, of: Columns) -> str | None:
    """The verdict of one block; None if it was measured before the rule asked for the numbers that it asks for now."""
    if claim.holds is None:
        return MEASURED
    try:
        return claim.over(rows(of))
    except KeyError:
        return None


def published(claim: Claim, blocks: Sequence[Block] | None = None) -> Published | None:
    """What the record says of a claim, or None if it was not measured yet: decided where all blocks agree."""
    found = [block for block in (read() if blocks is None else blocks) if claim.id in block.findings]
    verdicts = [said_by(claim, block.findings[claim.id]) for block in found]
    if not found or None in verdicts:
        return None
    verdict = verdicts[0] if len(set(verdicts)) == 1 else UNDECIDED
    measured = [block.findings[claim.id] for block in found]
    runs = sum(len(rows(of)) for of in measured)
    return Published(verdict, measured, runs, len({block.processor for block in found}))


def verdicts(claims: Iterable[Claim], blocks: Sequence[Block]) -> dict[str, str]:
    """id -> published verdict of each experiment that the blocks have."""
    known = {claim.id: published(claim, blocks) for claim in claims if claim.kind == EXPERIMENT}
    return {name: found.verdict for name, found in known.items() if found}
