"""What was found? The table of all findings, data/claims.md, and what other pages take from it.

    python shared/publishing/table.py

All is written from the claims, which stand in the code beside what measures them, and from the
record: the table, what course notes say wrongly (notes.py), and the numbers of README and lessons
(quoted.py).
"""

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from shared import cli, paths
from shared.evidence import findings, record
from shared.evidence.claims import MARKS, PLURAL, Claim, all_claims
from shared.plan import SECTIONS, path_of
from shared.publishing import notes, quoted
from shared.publishing.notes import cell

CLAIMS_PAGE = paths.ROOT / "data" / "claims.md"
OPENING = """\
# Is it true that ...?

{counts}
Each rule was committed before {seeds} were run, which nobody had run before; these ten decide. \
Rules were made on seeds 0 to 9, where {revised} of the {all} were written or revised after a look.
Ten of ten means that the rule holds for at least 74 % of all seeds (95 % confidence). Where the \
seed draws only data for a published model, it says *draws*: these are ten draws, not ten models. \
What decides is the number that is compared with the rule's bar: here stands where the next seed \
falls nineteen times in twenty, or all ten values where they lie in two groups.
{newer}
All numbers are in [evidence.csv](evidence.csv). What course notes say wrongly, and what is true \
instead, has a [page of its own](notes.md). Written by [table.py](../shared/publishing/table.py).
"""
NEWER = """\
{} claims, marked ?, came after these ten seeds. They were tried on seeds 0 to 9 alone, so they \
have no verdict until the record is made again.
"""
PHASE = """
## {}

| verdict | what is said | rule for one seed | what decides | code |
|---|---|---|---|---|
"""
OUT_OF_SAMPLE = """
## What became of the rules

A rule that was made on ten seeds may fit those ten alone. So here is in how many of seeds 0 to 9 \
each rule held, and in how many of {seeds}. {same} of {all} rules held as often as before. Added \
up, the rules held in {now} runs on record, and in {before} before. These changed:

| claim | of seeds 0 to 9 | of {seeds} |
|---|---|---|
{rows}
And what would a single seed have said? The opposite of what most of the ten say in {misled:.0%} \
of all cases; and two single seeds contradict each other in {apart:.0%}.
"""


def claim_row(claim: Claim) -> str:
    """Returns a row: the verdict, what is said, its rule, where the next seed falls, the script."""
    verdict, decides = record.verdict(claim), ""
    if verdict:
        found = f"{MARKS[verdict.kind]} {verdict.held} of {verdict.seeds}"
        decides = findings.deciding(claim)
    else:
        found = f"? {record.known(claim).held} of 10 explored, not recorded yet"
    if claim.draws:
        found += " draws"
    said = f"{claim.text} ({claim.source}) `{claim.id}`"
    rule = f"{claim.rule}."
    if claim.revised:
        rule += f" *After a look at seeds 0 to 9: {claim.revised}.*"
    script = path_of(claim.experiment)
    anchor, code = f'<a id="{claim.id}"></a>', f"[{Path(script).name}](../{script})"
    return f"| {found} | {anchor}{cell(said)} | {cell(rule)} | {decides} | {code} |\n"


def counts_of(claims: Sequence[Claim]) -> str:
    """Returns how many hold, as the front door says it."""
    counts = Counter(record.verdict(claim).kind for claim in claims)
    said = [f"{counts[kind]} {plural}" for kind, plural in PLURAL.items()]
    return f"{counts.total()} experiments: {', '.join(said)}."


def out_of_sample(claims: Sequence[Claim]) -> str:
    """Returns what became of the rules on the seeds of the record, in words and as a table.

    misled is the share of single seeds that say the opposite of what most of the ten say; apart is
    the share of pairs of seeds in which one says the opposite of the other.
    """
    changes, misled, apart = [], [], []
    rows = ""
    for claim in claims:
        verdict = record.verdict(claim)
        change = verdict.held - claim.explored
        changes.append(change)
        if change:
            rows += f"| [{claim.id}](#{claim.id}) | {claim.explored} | {verdict.held} |\n"
        failed = verdict.seeds - verdict.held
        misled.append(min(verdict.held, failed) / verdict.seeds)
        apart.append(verdict.held * failed / math.comb(verdict.seeds, 2))
    return OUT_OF_SAMPLE.format(
        seeds=record.SEEDS_IN_WORDS,
        same=changes.count(0),
        all=len(changes),
        now=sum(record.verdict(claim).held for claim in claims),
        before=sum(claim.explored for claim in claims),
        rows=rows,
        misled=fmean(misled),
        apart=fmean(apart),
    )


def claims_page(claims: Sequence[Claim]) -> str:
    """Returns the whole table as Markdown."""
    on_record = [claim for claim in claims if record.verdict(claim)]
    newer = len(claims) - len(on_record)
    text = OPENING.format(
        counts=counts_of(on_record),
        seeds=record.SEEDS_IN_WORDS,
        all=len(claims),
        revised=sum(bool(claim.revised) for claim in claims),
        newer=NEWER.format(newer) if newer else "",
    )
    for phase, folder in paths.PHASES.items():
        text += PHASE.format(SECTIONS[phase])
        for claim in claims:
            if claim.experiment.startswith(folder):
                text += claim_row(claim)
    tried = [claim for claim in on_record if claim.explored is not None]
    if tried:
        text += out_of_sample(tried)
    return text


@cli.script
def main(argv: list[str] | None = None) -> None:
    cli.parse(cli.parser(__doc__), argv)
    claims = all_claims()
    texts = {CLAIMS_PAGE: claims_page(claims), notes.NOTES_PAGE: notes.notes_page(claims)}
    for page in quoted.quoting_pages():
        texts[page] = quoted.with_record(page.read_text(encoding="utf-8"))
    for page, text in texts.items():
        with paths.whole_file(page) as unfinished:
            unfinished.write_text(text, encoding="utf-8", newline="\n")
    print("written: data/claims.md, data/notes.md, and the numbers of README and lessons")


if __name__ == "__main__":
    cli.run(main)
