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
HEAD = ["| finding | what is said | rule | verdict | code |", "|---|---|---|---|---|"]


def cell(text: str) -> str:
    """Text for a cell of a Markdown table: a bar would end it, and "<start>" be taken for HTML."""
    return re.sub(r"(?<!\\)([|<])", r"\\\1", text)


def row(claim: Claim, blocks: Sequence[Block]) -> str:
    """A finding: what is said, its rule, "+ holds" or "~ holds only if ...", where it is measured."""
    known, why = replications.published(claim, blocks), rules_changed().get(claim.id)
    verdict = known.verdict if known else "not replicated yet"
    said = f"{claim.text} ({claim.source})"
    rule = claim.rule + (f" *Rule changed after a result: {why}.*" if why else "")
    found = f"{MARKS.get(verdict, '·')} {verdict}" + (f" {claim.condition}" if verdict == ONLY_IF else "")
    where = f"[{Path(claim.script).name}](../{claim.script})"
    return f"| {claim.id} | {cell(said)} | {cell(rule)} | {cell(found)} | {where} |"


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
    others = [claim for claim in claims if not claim.headline]
    for heading, group in {
        "The findings that the course is about": [claim for claim in claims if claim.headline],
        "Further findings": [claim for claim in others if claim.kind == EXPERIMENT],
        "Time, memory, and what a library does": [claim for claim in others if claim.kind != EXPERIMENT],
    }.items():
        lines += ["", f"## {heading}", "", *HEAD]
        lines += [row(claim, blocks) for claim in sorted(group, key=lambda claim: (claim.script, claim.id))]
    return "\n".join(lines) + "\n"


@cli.script
def main(argv: list[str] | None = None) -> None:
    options = cli.parse(cli.parser(__doc__), argv)
    text = page(all_claims(), replications.read())
    with paths.whole_file(options.output_dir / PAGE) as unfinished:
        unfinished.write_text(text, encoding="utf-8", newline="\n")
    print(f"written: {paths.shown(options.output_dir / PAGE)}")


if __name__ == "__main__":
    cli.run(main)
