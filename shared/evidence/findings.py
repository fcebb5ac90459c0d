"""Findings: what became of a claim in one run. A script ends by recording what it measured:

    findings.record(options, weights_of_the_best_head(trained), ...)

Each measuring function carries its claims (shared/evidence/claims.py). The numbers of the run are printed beside the
published range, with the published verdict (shared/evidence/replications.py), and saved in data/processed/findings/,
from where shared/evidence/report/ makes a page.
"""

import argparse
import json
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from shared import cli, paths
from shared.evidence import replications
from shared.evidence.claims import (
    EXPERIMENT,
    FEWEST_SEEDS,
    MARKS,
    ONLY_IF,
    UNDECIDED,
    Claim,
    Measured,
    Numbers,
    rules_changed,
)

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


def shown_range(span: tuple[float, float]) -> str:
    """A range as a reader wants it: 0.52 to 0.58; one number where its ends look alike."""
    low, high = map(number, span)
    return low if low == high else f"{low} to {high}"


def beside(values: list, span: tuple[float, float] | None) -> str:
    """The values of a run, one a seed, beside the published range: "0.56 (published 0.52 to 0.58)"."""
    shown = number(values[0] if len(values) == 1 else values)
    if span is None or isinstance(values[0], list):
        return shown
    return f"{shown} (published {shown_range(span)})"


def number_texts(finding: Mapping) -> dict[str, str]:
    """Name -> "best head: 0.97 (published 0.93 to 1)"."""
    spans = finding["published"]
    return {name: f"{name}: {beside(values, spans.get(name))}" for name, values in finding["measured"].items()}


def of_this_run(claim: Claim, runs: Sequence[Numbers]) -> str:
    """What the seeds of a run say by themselves; empty where the rule needs more of them."""
    if claim.kind == EXPERIMENT and len(runs) >= FEWEST_SEEDS:
        return claim.over(runs)
    if claim.over_seeds:
        return ""
    said = {claim.verdict(run) for run in runs}
    return said.pop() if len(said) == 1 else UNDECIDED


def judged(claim: Claim, runs: Sequence[Numbers], seeds: list[int]) -> dict:
    """What is saved of a claim: its numbers, one value a seed, the published verdict, and what this run says."""
    shown = replications.columns([claim.shown(run) for run in runs])
    known = replications.published(claim)
    here = of_this_run(claim, runs)
    verdict = known.verdict if known else here
    return {
        "id": claim.id,
        "claim": claim.text,
        "kind": claim.kind,
        "source": claim.source,
        "measured": shown,
        "published": {name: span for name in shown if known and (span := known.range(name))},
        "unit": claim.unit,
        "rule": claim.rule,
        "verdict": verdict,
        "rests on": f"{known.runs} runs on {known.processors} kinds of processor" if known else "this run alone",
        "here": here,
        "control": claim.control,
        "condition": claim.condition if verdict == ONLY_IF else "",
        "changed": rules_changed().get(claim.id, ""),
        "headline": claim.headline,
        "seeds": seeds[: len(runs)],
        "script": claim.script,
    }


def judge(options: argparse.Namespace, claims: Sequence[Claim], runs: Sequence[Numbers]) -> list[dict]:
    """What is saved of each claim that these runs, one a seed, decide."""
    return [judged(claim, runs, list(cli.seeds(options))) for claim in claims]


def as_published(finding: Mapping) -> bool:
    """Whether this run came out as the record has it; what the record leaves open, it cannot contradict."""
    return finding["here"] in ("", finding["verdict"]) or finding["verdict"] == UNDECIDED


def published_texts(finding: Mapping) -> dict[str, str]:
    """Name of a number -> its range in the record, "0.52 to 0.58"."""
    return {name: shown_range(span) for name, span in finding["published"].items()}


def print_verdicts(found: Iterable[Mapping], *, rules: bool) -> None:
    """A line for each claim: what the record says of it, and where this run by itself says otherwise."""
    for finding in found:
        mark, verdict = MARKS.get(finding["verdict"], "·"), finding["verdict"]
        condition = f" {finding['condition']}" if finding["condition"] else ""
        here = "" if as_published(finding) else f" (this run: {finding['here']})"
        print(
            textwrap.fill(f'{mark} {verdict}{condition}{here}: "{finding["claim"]}"', WIDTH, subsequent_indent="    ")
        )
        if rules:
            rule = f"{finding['id']}; {finding['rests on']}; rule: {finding['rule']}"
            print(textwrap.fill(rule, WIDTH, initial_indent="    ", subsequent_indent="    "))


def save(options: argparse.Namespace, script: str, found: list[dict]) -> None:
    """Keep the findings of a script, in place of earlier ones."""
    with paths.whole_file(file_of(script, options.output_dir)) as unfinished:
        unfinished.write_text(json.dumps(found, indent=1), encoding="utf-8")


def say(texts: Iterable[str]) -> None:
    """Print the texts as one paragraph."""
    print(textwrap.fill("; ".join(texts), WIDTH, initial_indent="  ", subsequent_indent="    "))


def show(found: list[dict], *, with_numbers: bool) -> None:
    """Print the numbers of findings that were measured together, once, and below them the verdicts."""
    print()
    if with_numbers:
        say({name: text for finding in found for name, text in number_texts(finding).items()}.values())
    for finding in found:
        mark = MARKS.get(finding["verdict"], "·")
        said = f'{mark} {finding["verdict"]}: "{finding["claim"]}" ({finding["id"]}; {finding["rests on"]})'
        print(textwrap.fill(said, WIDTH, initial_indent="  ", subsequent_indent="      "))
        why = f"only if {finding['condition']}; " if finding["condition"] else ""
        why += f"rule: {finding['rule']} ({finding['unit']})"
        print(textwrap.fill(why, WIDTH, initial_indent="      ", subsequent_indent="      "))
        if finding["here"] not in ("", finding["verdict"]):
            print(f"      this run by itself: {finding['here']}")


def record(options: argparse.Namespace, *measured: Measured, show_numbers: bool = True) -> None:
    """Judge what a script measured, print it, and save it in place of the script's earlier findings.

    What one function measured several times was measured with one seed after the other.
    show_numbers=False: the script has printed its numbers already, as a table.
    """
    together: dict[tuple[str, ...], list[Measured]] = {}
    for numbers in measured:
        together.setdefault(tuple(claim.id for claim in numbers.claims), []).append(numbers)
    content = []
    for runs in together.values():
        found = [judged(claim, runs, list(cli.seeds(options))) for claim in runs[0].claims]
        show(found, with_numbers=show_numbers)
        content += found
    (script,) = {finding["script"] for finding in content}
    save(options, script, content)


def file_of(script: str, output_dir: Path) -> Path:
    """Where the findings of a script (its path in the repository) lie."""
    return output_dir / paths.PROCESSED / "findings" / (script.removesuffix(".py").replace("/", ".") + ".json")


def gather(output_dir: Path) -> list[dict]:
    """All recorded findings, by script and then as the script recorded them; also written to findings.json."""
    files = paths.whole_files(output_dir / paths.PROCESSED / "findings", "*.json")
    findings = [finding for file in files for finding in json.loads(file.read_text(encoding="utf-8"))]
    with paths.whole_file(output_dir / paths.PROCESSED / "findings.json") as unfinished:
        unfinished.write_text(json.dumps(findings, indent=1), encoding="utf-8")
    return findings
