"""The table of the findings, data/claims.md, what course notes say, and the numbers of README and
lessons.

    python shared/publishing/table.py

All are written from the claims, which stand in the code beside what measures them, and from the
record (claims.py, record.py; of the notes: notes.py; of README and lessons: quoted.py).
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean

from shared import cli, paths
from shared.evidence import findings, record
from shared.evidence.claims import MARKS, Claim, all_claims, counted
from shared.plan import SECTIONS
from shared.publishing import notes, one_seed, quoted
from shared.publishing.notes import cell

PAGE = paths.ROOT / "data" / "claims.md"
HEAD = [
    "| verdict | what is said | rule for one seed | what decides | code |",
    "|---|---|---|---|---|",
]


def explored(claim: Claim) -> str:
    """What stands in place of a verdict that the record does not have yet."""
    return (
        "not recorded yet"
        if claim.explored is None
        else f"? {claim.explored} of 10 explored, not recorded yet"
    )


def row(claim: Claim) -> str:
    """A finding: in how many seeds it holds, what is said, its rule, where the next seed falls, and
    the script.
    """
    verdict = record.verdict(claim)
    found = (
        f"{MARKS[verdict.kind]} {verdict.held} of {verdict.seeds}" if verdict else explored(claim)
    )
    between = findings.between(record.effect(claim)) if verdict else ""
    revised = f" *After a look at seeds 0 to 9: {claim.revised}.*" if claim.revised else ""
    where = f"[{Path(claim.script).name}](../{claim.script})"
    said = f"{claim.text} ({claim.source}) `{claim.id}`"
    anchor = f'<a id="{claim.id}"></a>'
    return f"| {found} | {anchor}{cell(said)} | {cell(claim.rule + '.' + revised)} | {between} | {where} |"


def experiments(claims: Iterable[Claim]) -> str:
    """How many hold, as the front door says it."""
    kinds = [verdict.kind for claim in claims if (verdict := record.verdict(claim))]
    return f"{len(kinds)} experiments: {counted(kinds)}."


def checked(claims: Sequence[Claim]) -> str:
    """How the further seeds fall beside the record, over all kinds of processors."""
    inside, turned, found = [], [], record.checks()
    if not found:
        return "No further seeds have been run."
    for measured in found.values():
        here, other = record.compared(claims, measured)
        inside, turned = inside + here, turned + [text.partition(";")[0] for text in other]
    times = Counter(filter(None, turned))
    said = ", ".join(f"{text} ({count} of {len(found)})" for text, count in times.items()) or "none"
    share = f"{inside.count(False)} of {len(inside)} numbers lie outside ({1 - fmean(inside):.1%})"
    return f"Further seeds, {len(found)} instruction sets: {share}; of {len(turned)} decided verdicts turned: {said}."


def newer(claims: Sequence[Claim]) -> list[str]:
    """A sentence about the claims that came after the record, if there are any."""
    count = sum(claim.explored is not None for claim in claims)
    if not count:
        return []
    return [
        f"{count} claims, marked ?, came after these ten seeds. They were tried on seeds 0 to 9 alone, which are for "
        "making rules, so they have no verdict until the record is made again."
    ]


def page(claims: Sequence[Claim]) -> str:
    """The whole table as Markdown."""
    revised = sum(bool(claim.revised) for claim in claims)
    lines = [
        "# Is it true that ...?",
        "",
        experiments(claims),
        "Each rule was committed before seeds 100 to 109 were run, which nobody had run before; these ten decide. "
        f"Before, on seeds 0 to 9, {revised} of the {len(claims)} rules were written or revised after a look at them.",
        "Ten of ten means that the rule holds for at least 74 % of all seeds (95 % confidence). What decides is the "
        "number that is compared with the rule's bar: here stands where the next seed falls nineteen times in twenty.",
        checked(claims),
        *newer(claims),
        "[Another of the ten denies](../shared/publishing/one_seed.py) {:.0%} of the verdicts that one seed alone would "
        "print; where the rule was written first {:.0%}, where it was revised {:.0%}.".format(
            *(one_seed.undone(one_seed.verdicts(group), 1) for group in one_seed.GROUPS)
        ),
        "All numbers are in [evidence.csv](evidence.csv). What course notes say wrongly, and what "
        "is true instead, has a [page of its own](notes.md). Written by "
        "[table.py](../shared/publishing/table.py).",
    ]
    for phase, folder in paths.PHASES.items():
        own = [claim for claim in claims if claim.script.startswith(folder)]
        lines += ["", f"## {SECTIONS[phase]}", "", *HEAD, *map(row, own)]
    return "\n".join(lines) + "\n"


def write(path: Path, text: str) -> None:
    with paths.whole_file(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8", newline="\n")


@cli.script
def main(argv: list[str] | None = None) -> None:
    cli.parse(cli.parser(__doc__), argv)
    claims = all_claims()
    write(PAGE, page(claims))
    write(notes.PAGE, notes.page(claims))
    for path in quoted.pages():
        write(path, quoted.filled(path.read_text(encoding="utf-8")))
    written = f"{paths.shown(PAGE)}, {paths.shown(notes.PAGE)}"
    print(f"written: {written}, and the numbers of README and lessons")


if __name__ == "__main__":
    cli.run(main)
