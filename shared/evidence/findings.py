"""Findings: what became of a claim in one run. A script ends by recording what it measured:

    findings.record(options, weights_of_the_best_head(trained), ...)

Each measuring function carries its claims (shared/evidence/claims.py). Numbers, verdicts and rules are printed, and
saved in data/processed/findings/, from where shared/evidence/report.py builds the page.
"""

import argparse
import json
import textwrap
from collections.abc import Mapping
from pathlib import Path

from shared import cli, paths
from shared.evidence.claims import EXPERIMENT, MARKS, ONLY_IF, Claim, Measured

WIDTH = 118  # of the printed lines


def number(value: float | int | list[float]) -> str:
    """A measured value as a reader wants it: 1,050,624; 0.97; 3.1e-07; a list with its values side by side."""
    if isinstance(value, list):
        return ", ".join(number(item) for item in value)
    if isinstance(value, int):
        return f"{value:,}"
    if value != 0 and abs(value) < 0.001:
        return f"{value:.1e}"
    return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def measured_text(finding: Mapping) -> str:
    """One line: "best head: 0.97; best fixed offset: 0.50 (share of held-out pairs)"."""
    values = "; ".join(f"{name}: {number(value)}" for name, value in finding["measured"].items())
    return f"{values} ({finding['unit']})"


def judged(claim: Claim, numbers: Measured, seeds: list[int]) -> dict:
    """What is saved of a claim, its numbers and its verdict."""
    verdict = claim.verdict(numbers)
    return {
        "id": claim.id,
        "claim": claim.text,
        "kind": claim.kind,
        "source": claim.source,
        "measured": claim.shown(numbers),
        "unit": claim.unit,
        "rule": claim.rule,
        "verdict": verdict,
        "control": claim.control,
        "condition": claim.condition if verdict == ONLY_IF else "",
        "seeds": seeds if claim.kind == EXPERIMENT else [],
        "script": claim.script,
    }


def show(numbers: Measured, found: list[dict], *, with_numbers: bool) -> None:
    """Print what one function measured, once, and below it the verdicts on its claims."""
    print()
    if with_numbers:
        text = "; ".join(f"{name}: {number(value)}" for name, value in numbers.items())
        print(textwrap.fill(text, WIDTH, initial_indent="  ", subsequent_indent="    "))
    for finding in found:
        said = f'{MARKS[finding["verdict"]]} {finding["verdict"]}: "{finding["claim"]}" ({finding["id"]})'
        print(textwrap.fill(said, WIDTH, initial_indent="  ", subsequent_indent="      "))
        why = f"only if {finding['condition']}; " if finding["condition"] else ""
        why += f"rule: {finding['rule']} ({finding['unit']})"
        print(textwrap.fill(why, WIDTH, initial_indent="      ", subsequent_indent="      "))


def record(options: argparse.Namespace, *measured: Measured, show_numbers: bool = True) -> None:
    """Judge what a script measured, print it, and save it in place of the script's earlier findings.

    show_numbers=False: the script has printed its numbers already, as a table.
    """
    content = []
    for numbers in measured:
        found = [judged(claim, numbers, list(cli.seeds(options))) for claim in numbers.claims]
        show(numbers, found, with_numbers=show_numbers)
        content += found
    (script,) = {finding["script"] for finding in content}
    with paths.whole_file(file_of(script, options.output_dir)) as unfinished:
        unfinished.write_text(json.dumps(content, indent=1), encoding="utf-8")


def file_of(script: str, output_dir: Path) -> Path:
    """Where the findings of a script (its path in the repository) lie."""
    return output_dir / paths.PROCESSED / "findings" / (script.removesuffix(".py").replace("/", ".") + ".json")


def gather(output_dir: Path) -> list[dict]:
    """All recorded findings, by script and then as the script recorded them; also written to findings.json."""
    files = sorted((output_dir / paths.PROCESSED / "findings").glob("*.json"))
    findings = [finding for file in files for finding in json.loads(file.read_text(encoding="utf-8"))]
    with paths.whole_file(output_dir / paths.PROCESSED / "findings.json") as unfinished:
        unfinished.write_text(json.dumps(findings, indent=1), encoding="utf-8")
    return findings
