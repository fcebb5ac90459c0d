"""What did one run measure, and what does it say of each claim beside the record?

An experiment judges its claims with `judge`, prints a line for each with `print_verdicts`, and
keeps all of it with `save` in data/processed/findings/, a file for each experiment. From these
files shared/lab/report.py makes a page.
"""

import errno
import json
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shared import paths
from shared.claims import MARKS, Claim, Numbers, Verdict
from shared.lab import record

WIDTH, INDENT = 100, "    "  # of the printed lines
MOST_OUTSIDE = 0.15  # of the numbers of a run: where more lie outside the record, it is said
FEW = 2  # numbers outside, of which nothing is said
PARTS = ("experiment", "otherwise", "answer", "table", "runs", "findings")  # of what is saved


def number(value: float) -> str:
    """Returns a measured value as a reader wants it: 1,050,624; 0.97; 3.1e-07."""
    if isinstance(value, int):
        return f"{value:,}"
    if value != 0 and abs(value) < 0.001:
        return f"{value:.1e}"
    return f"{value:,.3g}" if abs(value) < 100 else f"{value:,.0f}"


def between(
    ends: Sequence[float], written: Callable[[float], str] = number, to: str = " to "
) -> str:
    """Returns an interval as text, "0.52 to 0.58", or one number if both ends read alike."""
    low, high = written(ends[0]), written(ends[1])
    return low if low == high else f"{low}{to}{high}"


def is_split(values: Sequence[float]) -> bool:
    """Returns whether values lie in two groups: one gap is wider than half of all they span.

    Ten values of an even spread have such a gap one time in thirty.
    """
    ordered = sorted(values)
    gaps = np.diff(ordered)
    return bool(gaps.max() > (ordered[-1] - ordered[0]) / 2)


def deciding(claim: Claim) -> str:
    """Returns what decided a claim: where the next seed falls or, if that misleads, all ten values.

    It misleads where the values lie in two groups, and where it crosses the bar though none of them
    does.
    """
    values = sorted(record.effects(claim))
    low, high = record.next_seed(values)
    some_cross = values[0] < claim.bar < values[-1]
    if is_split(values) or (low < claim.bar < high and not some_cross):
        return "ten values: " + " ".join(f"{value:.2g}" for value in values)
    return between((low, high))


def beside(known: Verdict, here: Verdict) -> str:
    """Returns in words what the record says of a claim, and what this run says."""
    on_record = f"On record this {known.in_words}"
    if not known.decided:
        return f"{on_record}; in this run it {here.in_words}"
    if here.kind == known.kind:
        return f"{on_record}, and this run agrees"
    return f"{on_record}, but in this run it {here.in_words}"


def judged(claim: Claim, runs: Sequence[Numbers]) -> dict:
    """Returns a finding: what is said, what the record says of it, and what this run says."""
    known, here = record.verdict(claim), claim.over(runs)
    finding = {
        "id": claim.id,
        "claim": claim.text,
        "source": claim.source,
        "rule": claim.rule,
        "revised": claim.revised,
        "here": str(here),
        "on record": known is not None,
    }
    if known:
        return finding | {
            "verdict": str(known),
            "kind": known.kind,
            "effect": deciding(claim),
            "as published": not known.decided or here.kind == known.kind,
            "held": known.held,
            "said": beside(known, here),
        }
    effects = [claim.effect(numbers) for numbers in runs]
    return finding | {
        "verdict": f"{here} (in this run; not on record yet)",
        "kind": here.kind,
        "effect": between((min(effects), max(effects))),
        "as published": True,
        "said": f"Not on record yet: in this run it {here.in_words}",
    }


@dataclass(frozen=True)
class Judgement:
    """The findings of a run, and in words where it came out otherwise than the record."""

    findings: list[dict]
    differs: str

    @property
    def as_published(self) -> bool:
        """Returns whether no claim came out otherwise than the record has it."""
        return all(finding["as published"] for finding in self.findings)


def judge(claims: Iterable[Claim], experiment: str, runs: Sequence[Numbers]) -> Judgement:
    """Compares the runs of an experiment with the record."""
    found = [judged(claim, runs) for claim in claims]
    return Judgement(found, differs(found, record.inside(experiment, runs)))


def differs(found: Iterable[Mapping], inside: Sequence[bool]) -> str:
    """Returns in words where a run came out otherwise than the record; empty where it did not.

    inside has for each of its numbers whether it lies in its interval. One in twenty is expected
    not to, so nothing is said of one or two, nor of a small share.
    """
    said = []
    turned = [finding["id"] for finding in found if not finding["as published"]]
    if turned:
        said.append(f"{' and '.join(turned)} came out otherwise")
    outside = inside.count(False)
    if outside > FEW and outside > MOST_OUTSIDE * len(inside):
        said.append(f"{outside} of {len(inside)} numbers lie outside the range where it has them")
    return f"This run differs from the record: {', and '.join(said)}." if said else ""


def wrapped(text: str, indent: str = INDENT) -> str:
    """Returns a text in lines of at most WIDTH columns; all but the first are indented."""
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )


def print_verdicts(judgement: Judgement, *, rules: bool) -> None:
    """Prints a sentence for each finding, with its rule if asked for, and where the run differs."""
    for finding in judgement.findings:
        said = f'{MARKS[finding["kind"]]} {finding["said"]}: "{finding["claim"]}"'
        print(wrapped(said, indent=""))
        if rules:
            print(wrapped(f"{finding['id']}: a run counts as true if {finding['rule']}."))
            print(wrapped(f"The number that decides: {finding['effect']}."))
    if judgement.differs:
        print(wrapped(judgement.differs, indent=""))


def file_of(experiment: str, output_dir: Path) -> Path:
    """Returns where the findings of an experiment lie."""
    return output_dir / paths.PROCESSED / "findings" / f"{experiment}.json"


def save(output_dir: Path, content: Mapping) -> None:
    """Keeps what an experiment measured, in place of what it measured before.

    content has the parts that `load` returns, and "differs": where the run differs from the record.
    Its "otherwise" has the options with which the run was not made like the record: ["--quick"].
    """
    with paths.whole_file(file_of(content["experiment"], output_dir)) as unfinished:
        unfinished.write_text(json.dumps(content, indent=1), encoding="utf-8")


def load(file: Path) -> dict:
    """Returns what an experiment saved.

    Raises OSError, which names the file, if it is damaged or an older version of the code wrote it.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        return {part: content[part] for part in PARTS}
    except (ValueError, KeyError):
        way_out = "remove it, and run its script again"
        said = f"is damaged, or of another version: {way_out}"
        raise OSError(errno.EINVAL, said, str(file)) from None


def gather(output_dir: Path) -> list[dict]:
    """Returns what every experiment saved."""
    folder = output_dir / paths.PROCESSED / "findings"
    # What is being written has a name that begins with a dot.
    return [load(file) for file in sorted(folder.glob("[!.]*.json"))]
