"""Findings: what one run measured, and what it says of each claim.

An experiment judges its claims with `judged`, prints a line for each with `print_verdicts`, and keeps all of it with
`save` in data/processed/findings/, a file for each script, from where shared/evidence/report/ makes a page.
"""

import json
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from shared import paths
from shared.evidence import claims, replications
from shared.evidence.claims import MEASURED, ONLY_IF, UNDECIDED, Claim, Numbers

WIDTH = 118  # of the printed lines


def number(value: float | int | list) -> str:
    """A measured value as a reader wants it: 1,050,624; 0.97; 3.1e-07; a list with its values side by side."""
    if isinstance(value, list):
        return ", ".join(number(item) for item in value)
    if isinstance(value, int):
        return f"{value:,}"
    if value != 0 and abs(value) < 0.001:
        return f"{value:.1e}"
    return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def published_ranges(asked: Iterable[Claim], names: Iterable[str]) -> dict[str, str]:
    """Name of a number -> its least and largest value in the record, "0.52 to 0.58"; without what it does not have."""
    known = [found for claim in asked if (found := replications.published(claim))]
    spans = {name: tuple(map(number, span)) for name in names for found in known if (span := found.range(name))}
    return {name: low if low == high else f"{low} to {high}" for name, (low, high) in spans.items()}


def of_this_run(claim: Claim, runs: Sequence[Numbers]) -> str:
    """What the seeds of a run say by themselves; empty where the rule needs more of them."""
    if claim.kind == claims.EXPERIMENT and len(runs) >= claims.FEWEST_SEEDS:
        return claim.over(runs)
    if claim.over_seeds:
        return ""
    said = {claim.verdict(run) for run in runs}
    return said.pop() if len(said) == 1 else UNDECIDED


def judged(claim: Claim, runs: Sequence[Numbers]) -> dict:
    """What is saved of a claim: what is said, the published verdict, and what this run says, which has some seeds."""
    known, here = replications.published(claim), of_this_run(claim, runs)
    verdict = known.verdict if known else here or UNDECIDED
    return {
        "id": claim.id,
        "claim": claim.text,
        "kind": claim.kind,
        "source": claim.source,
        "rule": claim.rule,
        "unit": claim.unit,
        "verdict": verdict,
        "rests on": f"{len(known.runs)} runs on {known.processors} kinds of processor" if known else "this run alone",
        "here": here,
        "condition": claim.condition if verdict == ONLY_IF else "",
        "changed": claims.rules_changed().get(claim.id, ""),
        "headline": claim.headline,
    }


def as_published(finding: Mapping) -> bool:
    """Whether this run came out as the record has it; what the record leaves open, it cannot contradict."""
    return finding["here"] in ("", finding["verdict"]) or finding["verdict"] == UNDECIDED


def print_verdicts(found: Iterable[Mapping], *, rules: bool) -> None:
    """A line for each claim: what the record says of it, and where this run by itself says otherwise."""
    for finding in found:
        mark, verdict = claims.MARKS.get(finding["verdict"], "·"), finding["verdict"]
        condition = f" {finding['condition']}" if finding["condition"] else ""
        here = "" if as_published(finding) else f" (this run: {finding['here']})"
        said = f'{mark} {verdict}{condition}{here}: "{finding["claim"]}"'
        print(textwrap.fill(said, WIDTH, subsequent_indent="    "))
        if rules:
            rule = f"{finding['id']}; {finding['rests on']}; rule: {finding['rule']}"
            print(textwrap.fill(rule, WIDTH, initial_indent="    ", subsequent_indent="    "))


def file_of(script: str, output_dir: Path) -> Path:
    """Where the findings of a script (its path in the repository) lie."""
    return output_dir / paths.PROCESSED / "findings" / (script.removesuffix(".py").replace("/", ".") + ".json")


def save(output_dir: Path, script: str, found: list[dict], runs: Sequence[Numbers], table: str, answer: str) -> None:
    """Keep what a script measured, in place of what it measured before."""
    numbers = claims.columns(runs)
    content = {"script": script, "answer": answer, "table": table, "numbers": numbers, "findings": found}
    with paths.whole_file(file_of(script, output_dir)) as unfinished:
        unfinished.write_text(json.dumps(content, indent=1), encoding="utf-8")


def gather(output_dir: Path) -> list[dict]:
    """What every script has saved. Raises OSError, which names the file, for one that is damaged."""
    found = []
    for file in paths.whole_files(output_dir / paths.PROCESSED / "findings", "*.json"):
        with paths.damage_names(file, "remove it, and run its script again"):
            content = json.loads(file.read_text(encoding="utf-8"))
            found.append({name: content[name] for name in ("script", "answer", "table", "numbers", "findings")})
    return found


def against_record(claim: Claim, script: Mapping) -> list[str]:
    """How what a script saved comes out other than the record calls decided, a line each."""
    known = replications.published(claim)
    if known is None:
        return [f"{claim.id}: not in the record: run ./run_all.sh replicate"]
    over_seeds = claim.over_seeds or isinstance(claim.holds, claims.Above)  # of these one seed decides nothing
    if over_seeds or known.verdict in (UNDECIDED, MEASURED):
        return []
    try:
        said = {claim.verdict(run) for run in replications.rows(script["numbers"])} - {known.verdict}
    except KeyError as missing:  # the run is of an earlier version of the script
        return [f"{claim.id}: the last run has no {missing}: run {script['script']} again"]
    said -= {ONLY_IF} if known.verdict != claims.HOLDS else set()
    return [f"{claim.id}: {verdict}, in the record: {known.verdict}" for verdict in sorted(said)]


def contradictions(recorded: Iterable[Mapping], asked: Iterable[Claim]) -> list[str]:
    """against_record of all that a run has saved."""
    by_id = {claim.id: claim for claim in asked}
    found = [(by_id.get(finding["id"]), script) for script in recorded for finding in script["findings"]]
    return [line for claim, script in found if claim for line in against_record(claim, script)]


def check(output_dir: Path) -> None:
    """Compare the last run with the record; leave with 1 if it contradicts it."""
    recorded = gather(output_dir)
    wrong = contradictions(recorded, claims.all_claims())
    count = sum(len(script["findings"]) for script in recorded)
    print("\n".join(wrong) or f"{count} findings, none against the record")
    if wrong:
        sys.exit(1)
