"""The table of the findings: what is said about attention, and what became of it.

    python shared/evidence/table.py

Writes data/claims.md from the claims, which stand in the code beside what measures them (shared/evidence/claims.py),
and the record of their replications (shared/evidence/replications.py).
"""

import re
from collections.abc import Sequence
from pathlib import Path

from shared import cli, paths
from shared.evidence import replications
from shared.evidence.claims import EXPERIMENT, MARKS, ONLY_IF, Claim, all_claims, rules_changed
from shared.evidence.replications import Block

PAGE = Path("data", "claims.md")
HEAD = ("| finding | what is said | rule | verdict | code |", "|---|---|---|---|---|")


def cell(text: str) -> str:
    """Text for a cell of a Markdown table: a bar would end it, and "<start>" be taken for HTML."""
    return re.sub(r"(?<!\\)([|<])", r"\\\1", text)


def verdict_of(claim: Claim, blocks: Sequence[Block]) -> str:
    """ "+ holds", "~ holds only if ...", as the record says."""
    known = replications.published(claim, blocks)
    verdict = known.verdict if known else "not replicated yet"
    return f"{MARKS.get(verdict, '·')} {verdict}" + (f" {claim.condition}" if verdict == ONLY_IF else "")


def row(claim: Claim, blocks: Sequence[Block]) -> str:
    where = f"[{Path(claim.script).name}](../{claim.script})"
    why = rules_changed().get(claim.id)
    changed = f" *Rule changed after a result: {why}.*" if why else ""
    said = f"{claim.text} ({claim.source})"
    return f"| {claim.id} | {cell(said)} | {cell(claim.rule + changed)} | {cell(verdict_of(claim, blocks))} | {where} |"


def parts(claims: Sequence[Claim]) -> dict[str, list[Claim]]:
    """Heading -> claims: what the course is about, further experiments, probes."""
    others = [claim for claim in claims if not claim.headline]
    return {
        "The findings that the course is about": [claim for claim in claims if claim.headline],
        "Further findings": [claim for claim in others if claim.kind == EXPERIMENT],
        "Time, memory, and what a library does": [claim for claim in others if claim.kind != EXPERIMENT],
    }


def page(claims: Sequence[Claim], blocks: Sequence[Block]) -> str:
    """The whole table as Markdown."""
    verdicts = list(replications.verdicts(claims, blocks).values())
    counts = ", ".join(f"{verdicts.count(verdict)} {mark} {verdict}" for verdict, mark in MARKS.items())
    runs = sum(len(block.seeds) for block in blocks)
    seeds = "; ".join(f"{block.seeds[0]} to {block.seeds[-1]} on {block.processor}" for block in blocks)
    lines = [
        "# Is it true that ...?",
        "",
        f"{len(verdicts)} experiments decide what is said about attention: {counts}.",
        f"Each rests on {runs} runs: seeds {seeds}. Undecided here: seeds or processors disagree.",
        "Measured: a time, without a verdict. All numbers are in [evidence.json](evidence.json). What five sets of",
        "course notes say, sentence by sentence, and what became of it, is in [claims.json](raw/claims.json).",
        "Written by [table.py](../shared/evidence/table.py).",
    ]
    for heading, group in parts(sorted(claims, key=lambda claim: (claim.script, claim.id))).items():
        lines += [
            "",
            f"## {heading}",
            "",
            "| finding | what is said | rule | verdict | code |",
            "|---|---|---|---|---|",
        ]
        lines += [row(claim, blocks) for claim in group]
    return "\n".join(lines) + "\n"


@cli.script
def main(argv: list[str] | None = None) -> None:
    options = cli.parse(cli.parser(__doc__), argv)
    with paths.whole_file(options.output_dir / PAGE) as unfinished:
        unfinished.write_text(page(all_claims(), replications.read()), encoding="utf-8", newline="\n")
    print(f"written: {paths.shown(options.output_dir / PAGE)}")


if __name__ == "__main__":
    cli.run(main)
