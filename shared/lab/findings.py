"""What did a run measure, and what does it say of each claim beside the record?

Every experiment hands its numbers to print_numbers and to judge_and_save, which prints a sentence
for each claim and saves the numbers in data/processed/findings/, a file for each experiment. The
story of a whole run, the report page and `replicate --check` read these files and judge the numbers
in them again. A run with seed 0 has the numbers of the record; where it has others, it says so.
"""

import argparse
import errno
import importlib
import json
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import pandas as pd

from shared import paths
from shared.claims import MARKS, Claim, Numbers, Verdict, mean_of
from shared.lab import record
from shared.lab.plan import scripts

WIDTH, INDENT = 100, "    "  # of the printed lines
MOST_ROWS = 16  # of the numbers that are printed without --numbers


# ---- numbers as a reader wants them


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


def has_other_seeds(runs: Sequence[Numbers], otherwise: Sequence[str]) -> bool:
    """Returns whether the means over these runs are not the numbers of seed 0 alone."""
    return bool(otherwise) or len(runs) > 1


def table(
    runs: Sequence[Numbers], experiment: str, *, ranges: bool, most: int | None = None
) -> str:
    """Returns a line for each number: its name, its mean, and where another seed falls if asked.

    most: so many lines at most, and "..." for those in the middle.
    """
    numbers = mean_of(runs)
    frame = pd.DataFrame(index=list(numbers))
    whose = "this run" if len(runs) == 1 else f"mean of {len(runs)} runs"
    frame[whose] = [number(value) for value in numbers.values()]
    ends = [record.interval(experiment, name) for name in numbers]
    if ranges and any(ends):
        frame["another seed falls in"] = [between(pair) if pair else "" for pair in ends]
    return frame.to_string(max_rows=most) if numbers else ""


# ---- what is found


@dataclass(frozen=True)
class Finding:
    """A claim, in how many seeds of the record it holds, and in how many of this run.

    recorded is None for a claim that is newer than the record. effects has the number that decides,
    one a seed: of the record or, for a newer claim, of this run.
    """

    claim: Claim
    recorded: Verdict | None
    here: Verdict
    effects: Sequence[float]

    @property
    def kind(self) -> str:
        """HOLDS, FAILS or DIFFER: what the record says or, of a newer claim, what this run says."""
        return (self.recorded or self.here).kind

    @property
    def verdict(self) -> str:
        """Returns "holds in 8 of 10 runs"."""
        if self.recorded:
            return str(self.recorded)
        return f"{self.here} (in this run; not on record yet)"

    @property
    def as_recorded(self) -> bool:
        """Whether this run may say what the record says: all its seeds agree, or it is open."""
        known = self.recorded
        return known is None or not known.decided or self.here.kind == known.kind

    @property
    def sentence(self) -> str:
        """Returns in words what the record says of the claim, and what this run says."""
        here = f"here it {self.here}."
        if self.recorded is None:
            return f"Not on record yet: {here}"
        on_record = f"On record it {self.recorded}"
        if not self.recorded.decided:
            return f"{on_record}; {here}"
        return f"{on_record}, {'and this run agrees.' if self.as_recorded else f'but {here}'}"

    @property
    def deciding(self) -> str:
        """Returns the numbers that decided, one a seed, from the least to the largest."""
        return " · ".join(number(value) for value in sorted(self.effects))


def judge_claim(claim: Claim, runs: Sequence[Numbers]) -> Finding:
    """Holds a claim against the record and against the runs of a reader."""
    recorded = record.verdict(claim)
    deciding_runs = record.runs(claim.experiment) if recorded else runs
    effects = [claim.effect(numbers) for numbers in deciding_runs]
    return Finding(claim, recorded, claim.over(runs), effects)


@dataclass(frozen=True)
class Judgement:
    """The findings of a run, and how many of its numbers were compared with those of seed 0.

    differing has the names of those that are others.
    """

    findings: Sequence[Finding]
    compared: int = 0
    differing: Sequence[str] = ()

    @property
    def turned(self) -> list[Finding]:
        """The findings that came out otherwise than the record has them."""
        return [finding for finding in self.findings if not finding.as_recorded]

    @property
    def differs(self) -> str:
        """Returns in words which numbers are not those of seed 0; empty where all are."""
        if not self.differing:
            return ""
        return (
            f"This run differs from the record: {len(self.differing)} of {self.compared} numbers "
            f"are not those of seed 0: {'; '.join(self.differing)}."
        )


def judge(
    claims: Iterable[Claim], experiment: str, runs: Sequence[Numbers], otherwise: Sequence[str]
) -> Judgement:
    """Holds the runs of an experiment against the record.

    otherwise: the options by which they have other numbers than seed 0, so that those are not
        compared.
    """
    findings = [judge_claim(claim, runs) for claim in claims]
    if otherwise:
        return Judgement(findings)
    compared = len(record.first_run(experiment))
    return Judgement(findings, compared, record.differing(experiment, runs[0]))


# ---- what is printed


def wrapped(text: str, indent: str = INDENT) -> str:
    """Returns a text in lines of at most WIDTH columns. indent: of the first line."""
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )


def print_numbers(experiment: str, runs: Sequence[Numbers], options: argparse.Namespace) -> None:
    """Prints the means over the runs, one a line; the middle of a long list only with --numbers.

    Where another seed falls stands beside them with --numbers, and where other seeds were run.
    """
    ranges = options.numbers or has_other_seeds(runs, options.otherwise)
    most = None if options.numbers else MOST_ROWS
    print(f"\n{table(runs, experiment, ranges=ranges, most=most)}\n")


def print_judgement(judgement: Judgement, *, rules: bool) -> None:
    """Prints a sentence for each finding, with its rule if asked for, and where the run differs."""
    for finding in judgement.findings:
        claim = finding.claim
        print(wrapped(f'{MARKS[finding.kind]} "{claim.text}" {finding.sentence}', indent=""))
        if rules:
            print(wrapped(f"{claim.id}: a run counts as true if {claim.rule}."))
            print(wrapped(f"The number that decides, seed by seed: {finding.deciding}."))
    if judgement.differs:
        print(wrapped(judgement.differs, indent=""))


# ---- what is kept


@dataclass(frozen=True)
class SavedRun:
    """What a run of an experiment leaves behind.

    otherwise has the options by which its numbers are not those of seed 0: ["--quick"].
    """

    experiment: str
    otherwise: Sequence[str] = ()
    answer: str = ""
    runs: Sequence[Numbers] = ()

    @property
    def table(self) -> str:
        """Its numbers; if they are not those of seed 0, beside where another seed falls."""
        ranges = has_other_seeds(self.runs, self.otherwise)
        return table(self.runs, self.experiment, ranges=ranges)

    def judged(self) -> Judgement:
        """Holds it against the record once more.

        Raises OSError if an older version measured other numbers, or a script that measures nothing
        now.
        """
        try:
            claims = importlib.import_module(self.experiment).main.claims
            return judge(claims, self.experiment, self.runs, self.otherwise)
        except (AttributeError, KeyError):
            raise unreadable(f"{self.experiment}.json") from None


def unreadable(file: Path | str) -> OSError:
    """Returns the error for a file that cannot be used."""
    way_out = "remove it, and run its script again"
    return OSError(errno.EINVAL, f"is damaged, or of another version: {way_out}", str(file))


def file_of(experiment: str, output_dir: Path) -> Path:
    """Returns where an experiment keeps what it measured."""
    return output_dir / paths.PROCESSED / "findings" / f"{experiment}.json"


def save(run: SavedRun, output_dir: Path) -> None:
    """Writes it in place of what the experiment measured before."""
    with paths.whole_file(file_of(run.experiment, output_dir)) as unfinished:
        unfinished.write_text(json.dumps(asdict(run), indent=1), encoding="utf-8")


def load(file: Path) -> SavedRun:
    """Returns what an experiment kept.

    Raises OSError, which names the file, if it is damaged or an older version of the code wrote it.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        return SavedRun(**{part.name: content[part.name] for part in fields(SavedRun)})
    except (ValueError, TypeError, KeyError):
        raise unreadable(file) from None


def gather(output_dir: Path) -> list[SavedRun]:
    """Returns what the experiments of the course kept, in their order."""
    saved = []
    for module in scripts():
        file = file_of(module, output_dir)
        if file.is_file():
            saved.append(load(file))
    return saved


# ---- the door


def judge_and_save(
    experiment: str,
    claims: Sequence[Claim],
    runs: Sequence[Numbers],
    answer: str,
    options: argparse.Namespace,
) -> bool:
    """Prints what a run says of each claim, and saves it; returns whether all are as recorded."""
    judgement = judge(claims, experiment, runs, options.otherwise)
    print_judgement(judgement, rules=options.numbers)
    save(SavedRun(experiment, options.otherwise, answer, runs), options.output_dir)
    return not judgement.turned
