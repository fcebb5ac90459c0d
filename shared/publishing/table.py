"""What was found? The table of all findings, data/claims.md, and what other pages take from it.

    python shared/publishing/table.py

All is written from the claims, which stand in the code beside what measures them, and from the
record: the table, what course notes say wrongly (notes.py), and the numbers of README and lessons
(quoted.py).
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

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
Each rule was committed before seeds 100 to 109 were run, which nobody had run before; these ten \
decide. Before, on seeds 0 to 9, {revised} of the {all} rules were written or revised after a look \
at them.
Ten of ten means that the rule holds for at least 74 % of all seeds (95 % confidence). What \
decides is the number that is compared with the rule's bar: here stands where the next seed falls \
nineteen times in twenty.
{newer} claims, marked ?, came after these ten seeds. They were tried on seeds 0 to 9 alone, which \
are for making rules, so they have no verdict until the record is made again.
All numbers are in [evidence.csv](evidence.csv). What course notes say wrongly, and what is true \
instead, has a [page of its own](notes.md). Written by [table.py](../shared/publishing/table.py).
"""
PHASE = """
## {}

| verdict | what is said | rule for one seed | what decides | code |
|---|---|---|---|---|
"""


def claim_row(claim: Claim) -> str:
    """Returns a row: the verdict, what is said, its rule, where the next seed falls, the script."""
    verdict, decides = record.verdict(claim), ""
    if verdict:
        found = f"{MARKS[verdict.kind]} {verdict.held} of {verdict.seeds}"
        decides = findings.between(record.effect(claim))
    else:
        found = f"? {record.known(claim).held} of 10 explored, not recorded yet"
    said = f"{claim.text} ({claim.source}) `{claim.id}`"
    rule = f"{claim.rule}."
    if claim.revised:
        rule += f" *After a look at seeds 0 to 9: {claim.revised}.*"
    script = path_of(claim.experiment)
    anchor, code = f'<a id="{claim.id}"></a>', f"[{Path(script).name}](../{script})"
    return f"| {found} | {anchor}{cell(said)} | {cell(rule)} | {decides} | {code} |\n"


def counts_of(claims: Sequence[Claim]) -> str:
    """Returns how many hold, as the front door says it."""
    counts = Counter()
    for claim in claims:
        verdict = record.verdict(claim)
        if verdict:
            counts[verdict.kind] += 1
    said = [f"{counts[kind]} {plural}" for kind, plural in PLURAL.items()]
    return f"{counts.total()} experiments: {', '.join(said)}."


def claims_page(claims: Sequence[Claim]) -> str:
    """Returns the whole table as Markdown."""
    text = OPENING.format(
        counts=counts_of(claims),
        all=len(claims),
        revised=sum(bool(claim.revised) for claim in claims),
        newer=sum(record.verdict(claim) is None for claim in claims),
    )
    for phase, folder in paths.PHASES.items():
        text += PHASE.format(SECTIONS[phase])
        for claim in claims:
            if claim.experiment.startswith(folder):
                text += claim_row(claim)
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
