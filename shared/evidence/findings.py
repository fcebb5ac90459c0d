"""Findings: what one run measured, and what it says of each claim beside the record.

An experiment judges its claims with `judged`, prints a line for each with `print_verdicts`, and
keeps all of it with `save` in data/processed/findings/, a file for each script, from where
shared/publishing/report/ makes a page.
"""

import json
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from shared import paths
from shared.evidence import record
from shared.evidence.claims import MARKS, Claim, Numbers

WIDTH = 118  # of the printed lines
MOST_OUTSIDE, FEWEST_OUTSIDE = (
    0.15,
    3,
)  # numbers of a run outside the record's ranges: where more are, it is said


def number(value: float) -> str:
    """A measured value as a reader wants it: 1,050,624; 0.97; 3.1e-07."""
    if isinstance(value, int):
        return f"{value:,}"
    if value != 0 and abs(value) < 0.001:
        return f"{value:.1e}"
    return f"{value:,.3g}" if abs(value) < 100 else f"{value:,.0f}"


def between(
    ends: Sequence[float] | None, written: Callable[[float], str] = number, to: str = " to "
) -> str:
    """An interval as text, "0.52 to 0.58", or one number if both ends read alike; empty for none."""
    return to.join(dict.fromkeys(map(written, ends or ())))


def not_on_record(claim: Claim) -> str:
    """What is known of a claim that the record does not have."""
    explored = (
        f"; in {claim.explored} of 10 exploratory seeds" if claim.explored is not None else ""
    )
    return f"in this run; not on record yet{explored}"


def judged(claim: Claim, runs: Sequence[Numbers]) -> dict:
    """What is saved of a claim: what is said, what the record says of it, and what this run says."""
    known, here = record.verdict(claim), claim.over(runs)
    verdict = known or here
    effects = [claim.effect(numbers) for numbers in runs]
    return {
        "id": claim.id,
        "claim": claim.text,
        "source": claim.source,
        "rule": claim.rule,
        "verdict": str(verdict) if known else f"{verdict} ({not_on_record(claim)})",
        "on record": known is not None,
        "kind": verdict.kind,
        "effect": between(record.effect(claim) if known else (min(effects), max(effects))),
        "here": str(here),
        "as published": not (known and known.decided and here.kind != known.kind),
        "revised": claim.revised,
    }


def said_of(finding: Mapping) -> str:
    """A finding in one sentence: what the record says, whether this run agrees, and the claim."""
    if not finding["on record"]:
        return f'{MARKS[finding["kind"]]} {finding["verdict"]}: "{finding["claim"]}"'
    here = "" if finding["as published"] else f"; but in this run: {finding['here']}"
    return f'{MARKS[finding["kind"]]} on record: {finding["verdict"]}{here}: "{finding["claim"]}"'


def print_verdicts(found: Iterable[Mapping], *, rules: bool) -> None:
    """A line for each claim: what the record says of it, and where this run by itself says
    otherwise.
    """
    for finding in found:
        print(textwrap.fill(said_of(finding), WIDTH, subsequent_indent="    "))
        if rules:
            rule = f"{finding['id']}; rule: {finding['rule']}; what decides: {finding['effect']}"
            print(textwrap.fill(rule, WIDTH, initial_indent="    ", subsequent_indent="    "))


def inside_record(script: str, runs: Sequence[Numbers]) -> list[bool]:
    """Whether each number of these runs that varies on record lies in its range there; empty
    without a record.
    """
    inside, _ = record.compared([], {record.name_of(script): dict(enumerate(runs))})
    return inside


def differs(judged: Iterable[Mapping], inside: Sequence[bool]) -> str:
    """Where a run came out otherwise than the record, in words; empty where it did not.

    inside: whether each of its numbers lies in the range on record. One in twenty is expected not
    to, so nothing is said of one or two, nor of a small share.
    """
    said = []
    turned = [finding["id"] for finding in judged if not finding["as published"]]
    if turned:
        said.append(f"{' and '.join(turned)} came out otherwise")
    outside = inside.count(False)
    if outside >= FEWEST_OUTSIDE and outside > MOST_OUTSIDE * len(inside):
        said.append(f"{outside} of {len(inside)} numbers lie outside the range on record")
    return f"this run differs from the record: {', and '.join(said)}" if said else ""


def file_of(script: str, output_dir: Path) -> Path:
    """Where the findings of a script (its path in the repository) lie."""
    return (
        output_dir
        / paths.PROCESSED
        / "findings"
        / (script.removesuffix(".py").replace("/", ".") + ".json")
    )


def save(
    output_dir: Path,
    script: str,
    found: list[dict],
    runs: Sequence[Numbers],
    table: str,
    answer: str,
) -> None:
    """Keep what a script measured, in place of what it measured before."""
    content = {"script": script, "answer": answer, "table": table, "runs": runs, "findings": found}
    content["differs"] = differs(found, inside_record(script, runs))
    with paths.whole_file(file_of(script, output_dir)) as unfinished:
        unfinished.write_text(json.dumps(content, indent=1), encoding="utf-8")


def check_finding(finding: Mapping) -> None:
    """Raise ValueError unless it has what every page says of a finding."""
    missing = {"id", "claim", "verdict", "kind"} - set(finding)
    if missing or finding["kind"] not in MARKS:
        raise ValueError(f"not a finding: {finding}")


def load(file: Path) -> dict:
    """What a script has saved. Raises OSError, which names the file, if it is damaged."""
    with paths.damage_names(file, "remove it, and run its script again"):
        content = json.loads(file.read_text(encoding="utf-8"))
        for finding in content["findings"]:
            check_finding(finding)
        return {name: content[name] for name in ("script", "answer", "table", "runs", "findings")}


def gather(output_dir: Path) -> list[dict]:
    """What every script has saved."""
    return [
        load(file)
        for file in paths.whole_files(output_dir / paths.PROCESSED / "findings", "*.json")
    ]
