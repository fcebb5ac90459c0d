"""The table of claims: what textbooks and course notes say about attention, and what became of it here.

    python shared/evidence/table.py            after a full run (./run_all.sh all): write the table anew
    python shared/evidence/table.py --check    compare the present run with the table
    python shared/evidence/table.py --check --numbers    the measured numbers too, but for times

The findings of a run lie in data/processed/. Claims that nothing here can measure, opinions and facts of history, are
kept by hand in data/raw/claims_not_measured.json. Both go into data/claims.json, and into data/claims.md for readers.
--check ends with exit code 1 if a verdict differs, a finding is missing or is new. A run with --quick, another seed or
another size may well differ: the table tells of a full run with the default options.
"""

import json
import math
import re
import sys
from pathlib import Path

from shared import cli, paths
from shared.evidence import findings
from shared.evidence.findings import MARKS

BY_HAND = paths.ROOT / "data" / "raw" / "claims_not_measured.json"
TABLE = Path("data", "claims.json")
PAGE = Path("data", "claims.md")
CLAIM_IDS = tuple(f"C{number:03d}" for number in range(1, 183))  # of the notes that the course goes through
OPINION, CITED, NOT_HERE = "opinion", "cited", "not checkable here"
DIGITS = 6  # of a measured number, in the table

# These need the extra `pretrained`, or run only with ./run_all.sh all: a run without them is a run, too.
NOT_ALWAYS_RUN = (
    *("phase3_visualization/pretrained/pretrained.py", "phase3_visualization/pretrained/pretrained_parity.py"),
    *("phase3_visualization/pretrained/coreference.py", "phase3_visualization/pretrained/hub_or_no_op.py"),
    *("phase4_causal/induction/induction.py", "phase4_causal/long_texts/ring_attention.py"),
)
# These measure times or what they compare with times, which no two runs share.
TIMED = (
    *(
        "phase1_single_head/before/scoring_rules.py",
        "phase2_multi_head/costs/benchmark.py",
        "phase2_multi_head/costs/cost_model.py",
    ),
    *(
        "phase3_visualization/attention_3d.py",
        "phase4_causal/writing/cached_or_not.py",
        "phase4_causal/long_texts/length_benchmark.py",
    ),
    *(
        "phase4_causal/long_texts/linear_kernel.py",
        "phase4_causal/long_texts/long_context.py",
        "phase4_causal/writing/promises.py",
    ),
)


def rounded(value: float | int | list) -> float | int | list:
    """A measured value to DIGITS digits, so that the table stays small and the same in every run."""
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) and math.isfinite(value) else value


def build(recorded: list[dict], by_hand: list[dict]) -> list[dict]:
    """The table: claims C001 to C182 in order, then the findings with names of their own, by name.

    Raises ValueError if an id occurs twice, or a claim of the notes has neither a finding nor an entry by hand.
    """
    names = [entry["id"] for entry in recorded + by_hand]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"each id must occur once: got {', '.join(twice)} more often; rename one or delete its entry")
    if missing := [name for name in CLAIM_IDS if name not in names]:
        raise ValueError(f"no finding and no entry by hand for {', '.join(missing)}: run ./run_all.sh all, or add one")
    kept = ("id", "claim", "verdict", "condition", "script", "unit")
    measured = [
        {key: found[key] for key in kept if found[key]}
        | {"measured": {name: rounded(value) for name, value in found["measured"].items()}}
        for found in recorded
    ]
    return sorted(measured + by_hand, key=lambda entry: (entry["id"] not in CLAIM_IDS, entry["id"]))


def differences(recorded: list[dict], table: list[dict], tolerance: float | None = None) -> list[str]:
    """What a run says differently from the table, a line each; numbers are compared only if a tolerance is given.

    tolerance: how far two numbers may lie apart, as a share of the larger one. Times are left out.
    """
    run = {found["id"]: found for found in recorded}
    known = {entry["id"]: entry for entry in table}
    ran = {found["script"] for found in recorded}
    lines = [f"{name}: new, not in the table" for name in run if name not in known]
    for name, entry in known.items():
        if "script" not in entry:
            continue
        if name not in run:
            if entry["script"] in ran or entry["script"] not in NOT_ALWAYS_RUN:
                lines.append(f"{name}: no finding in this run; {entry['script']} recorded it before")
            continue
        found = run[name]
        for key in ("claim", "verdict", "script", "condition"):
            if found.get(key, "") != entry.get(key, ""):
                lines.append(f"{name}: {key} is {found.get(key, '')!r}, in the table {entry.get(key, '')!r}")
        if tolerance is not None and entry["script"] not in TIMED:
            lines += [
                f"{name}: {part} is {found['measured'].get(part)}, in the table {value}"
                for part, value in entry["measured"].items()
                if not close(found["measured"].get(part), value, tolerance)
            ]
    return lines


def close(a: float | list | None, b: float | list, tolerance: float) -> bool:
    """Are two measured values, or two lists of them, the same but for rounding? Rounding errors count as 0."""
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(close(x, y, tolerance) for x, y in zip(a, b, strict=True))
    if a is None or isinstance(a, list) or isinstance(b, list):
        return False
    return math.isclose(a, b, rel_tol=tolerance, abs_tol=1e-4) or a == b or (math.isnan(a) and math.isnan(b))


def _cell(text: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", text)  # a bar would end the cell


def _row(entry: dict) -> str:
    if "script" in entry:
        what = f"{MARKS[entry['verdict']]} {entry['verdict']}"
        if "condition" in entry:
            what += f" {entry['condition']}"
        where = f"[{Path(entry['script']).name}](../{entry['script']})"
    else:
        what = f"{entry['verdict']}: {entry['reason']}"
        if entry["verdict"] == CITED:
            what = f"{'+ holds' if entry['holds'] else 'x does not hold'} ({CITED}): {entry['reason']}"
        where = entry.get("source", "")
    return f"| {entry['id']} | {_cell(entry['claim'])} | {_cell(what)} | {_cell(where)} |"


def page(table: list[dict]) -> str:
    """The table as Markdown: the claims of the notes, then the others."""
    verdicts = [entry["verdict"] for entry in table if entry["id"] in CLAIM_IDS]
    count = {verdict: verdicts.count(verdict) for verdict in (*MARKS, CITED, OPINION, NOT_HERE)}
    head = ["| id | claim | what became of it | where to look |", "|---|---|---|---|"]
    notes = [_row(entry) for entry in table if entry["id"] in CLAIM_IDS]
    others = [_row(entry) for entry in table if entry["id"] not in CLAIM_IDS]
    lines = [
        "# Is it true that ...?",
        "",
        f"{len(notes)} claims of textbooks and course notes about attention, in our own words. Measured: "
        + ", ".join(f"{count[verdict]} {MARKS[verdict]} {verdict}" for verdict in MARKS)
        + f". Settled by reading: {count[CITED]}. Opinions: {count[OPINION]}. Not checkable here: {count[NOT_HERE]}.",
        "The verdicts are those of one machine and of small models; numbers and rules stand on the",
        "[report page](../visualizations/index.html). Written by [claims.py](../shared/evidence/table.py).",
        "",
        *head,
        *notes,
        "",
        "## Further questions",
        "",
        f"{len(others)} more, from papers and from the measurements themselves.",
        "",
        *head,
        *others,
    ]
    return "\n".join(lines) + "\n"


def read_table() -> list[dict]:
    return json.loads((paths.ROOT / TABLE).read_text(encoding="utf-8"))


def write(table: list[dict], output_dir: Path) -> None:
    """Write data/claims.json, one claim a line so that changes can be read, and data/claims.md."""
    lines = ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in table)
    for path, text in ((TABLE, f"[\n{lines}\n]\n"), (PAGE, page(table))):
        with paths.whole_file(output_dir / path) as unfinished:
            unfinished.write_text(text, encoding="utf-8")
        print(f"written: {paths.shown(output_dir / path)}")


def main(argv: list[str] | None = None) -> None:
    parser = cli.parser(__doc__)
    parser.add_argument("--check", action="store_true", help="compare the run with the table, write nothing")
    parser.add_argument("--numbers", action="store_true", help="with --check: compare measured numbers as well")
    parser.add_argument("--tolerance", type=float, default=0.05, help="for --numbers, as a share (default: 0.05)")
    options = cli.parse(parser, argv)
    recorded = findings.gather(options.output_dir)
    if not options.check:
        try:
            table = build(recorded, json.loads(BY_HAND.read_text(encoding="utf-8")))
        except ValueError as error:
            parser.error(str(error))
        write(table, options.output_dir)
        return
    lines = differences(recorded, read_table(), options.tolerance if options.numbers else None)
    print("\n".join(lines) if lines else f"{len(recorded)} findings, all as in {TABLE}")
    if lines:
        sys.exit(1)


if __name__ == "__main__":
    cli.run(main)
