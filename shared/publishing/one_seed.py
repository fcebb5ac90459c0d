"""What would one seed have said?

    python shared/publishing/one_seed.py

A paper with k seeds prints a verdict where all k agree. From the record, without a training: of the
verdicts that it would print, how many do the ten seeds undo, because one of them says otherwise?
Every choice of k of the ten counts. Rules that were written before any result was seen stand beside
those that were written or revised after one.
"""

from collections.abc import Iterable
from math import comb

import pandas as pd

from shared import cli
from shared.evidence import record
from shared.evidence.claims import Verdict, all_claims

COUNTS = (1, 2, 3, 5, 7)
GROUPS = ("all", "first", "revised")


def undone(verdicts: Iterable[Verdict], k: int) -> float:
    """Of the verdicts that k of the seeds print, the share that all of them undo; the mean over all
    choices of k.
    """
    printed = undoing = 0.0
    for found in verdicts:
        agreeing = (comb(found.held, k) + comb(found.seeds - found.held, k)) / comb(found.seeds, k)
        printed += agreeing
        undoing += 0.0 if found.decided else agreeing
    return undoing / printed if printed else 0.0


def verdicts(group: str) -> list[Verdict]:
    """The verdicts of the record: all, those whose rule was written first, or those whose rule was
    revised.
    """
    claims = [
        claim
        for claim in all_claims()
        if group == "all" or bool(claim.revised) == (group == "revised")
    ]
    return [verdict for claim in claims if (verdict := record.verdict(claim))]


@cli.script
def main(argv: list[str] | None = None) -> str:
    cli.parse(cli.parser(__doc__), argv)
    found = {group: verdicts(group) for group in GROUPS}
    rows = [[len(of), *(f"{undone(of, k):.1%}" for k in COUNTS)] for of in found.values()]
    print(
        pd.DataFrame(
            rows,
            ["all rules", "written first", "revised"],
            ["rules", *(f"{k} seeds" for k in COUNTS)],
        )
    )
    return f"Of the verdicts that one seed prints ten undo {undone(found['all'], 1):.0%}"


if __name__ == "__main__":
    cli.run(main)
