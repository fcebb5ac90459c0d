"""The table of claims: what course notes say about attention, and what became of each of their 182 claims.

    python shared/evidence/table.py

Writes data/claims.md from three sources: the claims themselves with where they are said, in data/raw/claims.json, kept
by hand; the findings, which stand in the code beside the functions that measure them (shared/evidence/claims.py); and
the record of their replications (shared/evidence/replications.py).
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from shared import cli, paths
from shared.evidence import replications
from shared.evidence.claims import (
    ERRATUM,
    EXPERIMENT,
    IDENTITY,
    MARKS,
    MEASURED,
    ONLY_IF,
    UNDECIDED,
    Claim,
    all_claims,
    rules_changed,
)
from shared.evidence.replications import Block

SAID = paths.ROOT / "data" / "raw" / "claims.json"
PAGE = Path("data", "claims.md")
CLAIM_IDS = tuple(f"C{number:03d}" for number in range(1, 183))
FINDING = "finding"
SECTIONS = {  # kind of a row -> heading, and how its answer is called
    FINDING: ("Measured", "finding, and what it says of this"),
    IDENTITY: ("Algebra, counting and definitions of functions, asserted by tests", "what is right"),
    ERRATUM: ("Errata", "what is right"),
    "definition": ("A question of words", "answer"),
    "opinion": ("Opinions", "remark"),
    "not checkable here": ("Not checkable here", "why"),
}


def read_said() -> list[dict]:
    """The 182 rows: id, claim, said, kind, and finding or answer."""
    return json.loads(SAID.read_text(encoding="utf-8"))


def check(rows: Sequence[Mapping], claims: Iterable[Claim]) -> None:
    """Raises ValueError unless all 182 ids occur once, in a known kind, and each names a finding or has an answer."""
    ids = {claim.id for claim in claims}
    if tuple(row["id"] for row in rows) != CLAIM_IDS:
        raise ValueError(f"{SAID.name} must have {CLAIM_IDS[0]} to {CLAIM_IDS[-1]} in order, each once")
    for row in rows:
        if row["kind"] not in SECTIONS:
            raise ValueError(f"{row['id']}: unknown kind {row['kind']!r}: choose from {', '.join(SECTIONS)}")
        if row["kind"] == FINDING and row["finding"] not in ids:
            raise ValueError(f"{row['id']}: no script measures {row['finding']}: name one of the findings")


def cell(text: str) -> str:
    """Text for a cell of a Markdown table: a bar would end it, and "<start>" be taken for HTML."""
    return re.sub(r"(?<!\\)([|<])", r"\\\1", text)


def verdict_of(claim: Claim, blocks: Sequence[Block]) -> str:
    """ "+ holds", "~ holds only if ...", as the record says."""
    known = replications.published(claim, blocks)
    verdict = known.verdict if known else "not replicated yet"
    return f"{MARKS.get(verdict, '·')} {verdict}" + (f" {claim.condition}" if verdict == ONLY_IF else "")


def finding_row(claim: Claim, blocks: Sequence[Block]) -> str:
    where = f"[{Path(claim.script).name}](../{claim.script})"
    why = rules_changed().get(claim.id)
    changed = f" *Rule changed after a result: {why}.*" if why else ""
    said = f"{claim.text} ({claim.source})"
    return f"| {claim.id} | {cell(said)} | {cell(claim.rule + changed)} | {cell(verdict_of(claim, blocks))} | {where} |"


def said_row(row: Mapping, of: Mapping[str, Claim], blocks: Sequence[Block]) -> str:
    """A claim and what became of it; where it is a part of a finding on more, the answer in place of its verdict."""
    parts = [answer] if (answer := row.get("answer")) else []
    if row["kind"] == FINDING:
        own = row["finding"] == row["id"] or not parts
        parts = [verdict_of(of[row["finding"]], blocks), *parts] if own else parts
        parts[0] = f"{row['finding']}: {parts[0]}"
    text = cell("; ".join(parts))
    if where := row.get("where"):
        text += f" ([{Path(where).name}](../{where}))"
    return f"| {row['id']} | {cell(row['claim'])} | {cell(row['said'])} | {text} |"


def counted(claims: Iterable[Claim], blocks: Sequence[Block]) -> Counter:
    """Verdict -> number of experiments."""
    return Counter(replications.verdicts(claims, blocks).values())


def findings_part(claims: Sequence[Claim], blocks: Sequence[Block]) -> list[str]:
    """The findings: experiments, those of the first row before the others, and probes."""
    head = ["", "| finding | what is said | rule | verdict | code |", "|---|---|---|---|---|"]
    experiments = [claim for claim in claims if claim.kind == EXPERIMENT]
    parts = (
        ("The findings that the course is about", [claim for claim in claims if claim.headline]),
        ("Further findings", [claim for claim in experiments if not claim.headline]),
        ("Time, memory, and what a library does", [c for c in claims if c.kind != EXPERIMENT and not c.headline]),
    )
    return [
        line
        for heading, group in parts
        for line in ("", f"## {heading}", *head, *(finding_row(claim, blocks) for claim in group))
    ]


def page(claims: Sequence[Claim], rows: Sequence[Mapping], blocks: Sequence[Block]) -> str:
    """The whole table as Markdown."""
    claims = sorted(claims, key=lambda claim: (claim.script, claim.id))
    of = {claim.id: claim for claim in claims}
    counts, kinds = counted(claims, blocks), Counter(row["kind"] for row in rows)
    seeds = sum(len(block.seeds) for block in blocks)
    lines = [
        "# Is it true that ...?",
        "",
        f"{sum(counts.values())} experiments decide what is said about attention: "
        + ", ".join(f"{counts[verdict]} {MARKS[verdict]} {verdict}" for verdict in MARKS)
        + ".",
        f"Each rests on {seeds} runs: seeds "
        + "; ".join(f"{block.seeds[0]} to {block.seeds[-1]} on {block.processor}" for block in blocks)
        + f". {UNDECIDED.capitalize()}: seeds or processors disagree. "
        + f"{MEASURED.capitalize()}: a time, without a verdict.",
        "All numbers are in [evidence.json](evidence.json). Below the findings stand the 182 claims of five sets of",
        "course notes, in our own words, each with what became of it: "
        + ", ".join(f"{kinds[kind]} {heading[0].lower() + heading[1:]}" for kind, (heading, _) in SECTIONS.items())
        + ".",
        "Written by [table.py](../shared/evidence/table.py).",
        *findings_part(claims, blocks),
        "",
        "# The 182 claims",
    ]
    for kind, (heading, answer) in SECTIONS.items():
        lines += ["", f"## {heading}", "", f"| id | claim | said in | {answer} |", "|---|---|---|---|"]
        lines += [said_row(row, of, blocks) for row in rows if row["kind"] == kind]
    return "\n".join(lines) + "\n"


@cli.script
def main(argv: list[str] | None = None) -> None:
    parser = cli.parser(__doc__)
    options = cli.parse(parser, argv)
    claims, rows = all_claims(), read_said()
    try:
        check(rows, claims)
    except ValueError as error:
        parser.error(str(error))
    with paths.whole_file(options.output_dir / PAGE) as unfinished:
        unfinished.write_text(page(claims, rows, replications.read()), encoding="utf-8", newline="\n")
    print(f"written: {paths.shown(options.output_dir / PAGE)}")


if __name__ == "__main__":
    cli.run(main)
