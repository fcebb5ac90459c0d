"""The table of claims: what textbooks and course notes say about attention, and what became of it here.

    python shared/evidence/table.py            after a full run (./run_all.sh all): write the table anew
    python shared/evidence/table.py --check    compare the present run with the table

What is said stands in the code, beside the function that measures it (shared/evidence/claims.py). Claims that nothing
here can measure, opinions and facts of history, are kept by hand in data/raw/claims_not_measured.json. The verdicts of
a full run go into data/claims.json, and all of it into data/claims.md for readers.

--check ends with exit code 1 if a claim is missing or new, or if algebra, a count or a misprint comes out otherwise.
What was trained or timed is compared too, but only reported: another processor rounds otherwise, like another seed.
"""

import json
import math
import re
import sys
from collections import Counter
from pathlib import Path

from shared import cli, paths
from shared.evidence import findings
from shared.evidence.claims import ERRATUM, IDENTITY, MARKS, Claim, all_claims

BY_HAND = paths.ROOT / "data" / "raw" / "claims_not_measured.json"
TABLE = Path("data", "claims.json")
PAGE = Path("data", "claims.md")
CLAIM_IDS = tuple(f"C{number:03d}" for number in range(1, 183))  # of the notes that the course goes through
OPINION, CITED, NOT_HERE = "opinion", "cited", "not checkable here"
DIGITS = 6  # of a measured number, in the table
EXACT = (IDENTITY, ERRATUM)  # kinds whose verdicts no machine changes


def rounded(value: float | int | list) -> float | int | list:
    """A measured value to DIGITS digits, so that the table stays small and the same in every run."""
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) and math.isfinite(value) else value


def build(recorded: list[dict], by_hand: list[dict]) -> dict[str, dict]:
    """id -> verdict and measured numbers of a run, in the order of the ids.

    Raises ValueError if an id occurs twice, or a claim of the notes has neither a finding nor an entry by hand.
    """
    names = [entry["id"] for entry in recorded + by_hand]
    if twice := sorted(name for name, count in Counter(names).items() if count > 1):
        raise ValueError(f"each id must occur once: got {', '.join(twice)} more often; rename one or delete its entry")
    if missing := [name for name in CLAIM_IDS if name not in names]:
        raise ValueError(f"no finding and no entry by hand for {', '.join(missing)}: run ./run_all.sh all, or add one")
    found = {
        entry["id"]: {
            "verdict": entry["verdict"],
            "measured": {name: rounded(value) for name, value in entry["measured"].items()},
        }
        for entry in recorded
    }
    return dict(sorted(found.items()))


def differences(recorded: list[dict], table: dict[str, dict], claims: list[Claim]) -> tuple[list[str], list[str]]:
    """What a run says differently from the table, a line each: what must not differ, and what may."""
    run = {found["id"]: found for found in recorded}
    scripts = {found["script"] for found in recorded}
    of = {claim.id: claim for claim in claims}
    wrong = [f"{name}: new, not in the table" for name in run if name not in table]
    wrong += [f"{name}: in the table, and no script has it" for name in table if name not in of]
    wrong += [f"{name}: {of[name].script} ran and did not record it" for name in table
              if name in of and name not in run and of[name].script in scripts]  # fmt: skip
    may = []
    for name in (name for name in table if name in run and name in of):
        if run[name]["verdict"] != table[name]["verdict"]:
            line = f"{name}: {run[name]['verdict']}, in the table: {table[name]['verdict']}"
            (wrong if of[name].kind in EXACT else may).append(line)
    return wrong, may


def _cell(text: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", text)  # a bar would end the cell


def measured_row(claim: Claim, verdict: str) -> str:
    what = f"{MARKS[verdict]} {verdict}" + (f" {claim.condition}" if verdict == "holds only if" else "")
    where = f"[{Path(claim.script).name}](../{claim.script})"
    return f"| {claim.id} | {_cell(claim.text)} | {claim.kind} | {_cell(what)} | {where} |"


def hand_row(entry: dict) -> str:
    what = f"{entry['verdict']}: {entry['reason']}"
    if entry["verdict"] == CITED:
        what = f"{'+ holds' if entry['holds'] else 'x does not hold'} ({CITED}): {entry['reason']}"
    return f"| {entry['id']} | {_cell(entry['claim'])} | | {_cell(what)} | {_cell(entry.get('source', ''))} |"


def page(table: dict[str, dict], claims: list[Claim], by_hand: list[dict]) -> str:
    """The table as Markdown: the claims of the notes, then the others."""
    rows = {claim.id: measured_row(claim, table[claim.id]["verdict"]) for claim in claims if claim.id in table}
    rows |= {entry["id"]: hand_row(entry) for entry in by_hand}
    verdicts = Counter(entry["verdict"] for name, entry in table.items() if name in CLAIM_IDS)
    verdicts |= Counter(entry["verdict"] for entry in by_hand if entry["id"] in CLAIM_IDS)
    head = ["| id | claim | kind | what became of it | where to look |", "|---|---|---|---|---|"]
    others = sorted(name for name in rows if name not in CLAIM_IDS)
    lines = [
        "# Is it true that ...?",
        "",
        f"{len(CLAIM_IDS)} claims of textbooks and course notes about attention, in our own words. Measured: "
        + ", ".join(f"{verdicts[verdict]} {MARKS[verdict]} {verdict}" for verdict in MARKS)
        + f". Settled by reading: {verdicts[CITED]}. Opinions: {verdicts[OPINION]}. "
        + f"Not checkable here: {verdicts[NOT_HERE]}.",
        "The verdicts are those of one machine and of small models; numbers and rules stand on the report page",
        "that a run makes, `visualizations/index.html`. Written by [table.py](../shared/evidence/table.py).",
        "",
        *head,
        *(rows[name] for name in CLAIM_IDS if name in rows),
        "",
        "## Further questions",
        "",
        f"{len(others)} more, from papers and from the measurements themselves.",
        "",
        *head,
        *(rows[name] for name in others),
    ]
    return "\n".join(lines) + "\n"


def read_table() -> dict[str, dict]:
    return json.loads((paths.ROOT / TABLE).read_text(encoding="utf-8"))


def read_by_hand() -> list[dict]:
    return json.loads(BY_HAND.read_text(encoding="utf-8"))


def write(table: dict[str, dict], output_dir: Path) -> None:
    """Write data/claims.json, one claim a line so that changes can be read, and data/claims.md."""
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(entry, ensure_ascii=False)}" for name, entry in table.items())
    for path, text in ((TABLE, f"{{\n{lines}\n}}\n"), (PAGE, page(table, all_claims(), read_by_hand()))):
        with paths.whole_file(output_dir / path) as unfinished:
            unfinished.write_text(text, encoding="utf-8")
        print(f"written: {paths.shown(output_dir / path)}")


def main(argv: list[str] | None = None) -> None:
    parser = cli.parser(__doc__)
    parser.add_argument("--check", action="store_true", help="compare the run with the table, write nothing")
    options = cli.parse(parser, argv)
    recorded = findings.gather(options.output_dir)
    if not options.check:
        try:
            write(build(recorded, read_by_hand()), options.output_dir)
        except ValueError as error:
            parser.error(str(error))
        return
    wrong, may = differences(recorded, read_table(), all_claims())
    print("\n".join(wrong + may) if wrong or may else f"{len(recorded)} findings, all as in {TABLE}")
    if may:
        print(f"{len(may)} of what was trained or timed came out otherwise: another machine acts like another seed")
    if wrong:
        sys.exit(1)


if __name__ == "__main__":
    cli.run(main)
