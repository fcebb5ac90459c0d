"""Where do the numbers of a run lie beside the record, and which of them lie outside?

The report page begins with this. Each number is a dot on a track. The middle half of the track is
where the record expects the number 19 times in 20, so all numbers share one picture, whatever they
measure. What would lie beyond the end of the track is a mark at its end.

A run with --quick, or with sizes of its own, trains otherwise than the record did. Of such a run
nothing is compared.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

from shared.evidence import record
from shared.evidence.claims import Claim
from shared.evidence.findings import FEW, MOST_OUTSIDE, number

LISTED = 4  # numbers outside that are seen at once, the farthest first
MOST_DIGITS = 8


@dataclass(frozen=True)
class Dot:
    """A number of a run, and from where to where the record expects it.

    question is the experiment that measured it, as on the page (write_pages.py). findings are those
    whose rule asks for this number: where it turned one of them, that one comes first.
    """

    name: str
    value: float
    low: float
    high: float
    question: Mapping
    findings: Sequence[Mapping]

    @property
    def place(self) -> float:
        """Where the dot lies: 0 is the beginning of the track, 1 its end, beyond is outside it."""
        return 0.25 + 0.5 * (self.value - self.low) / (self.high - self.low)

    @property
    def is_outside(self) -> bool:
        return not self.low <= self.value <= self.high

    @property
    def texts(self) -> list[str]:
        """The value and both ends, with as many digits as tell the value from the ends."""
        numbers = (self.value, self.low, self.high)
        texts = [number(each) for each in numbers]
        for digits in range(4, MOST_DIGITS + 1):
            if texts[0] in texts[1:]:
                texts = [f"{each:,.{digits}g}" for each in numbers]
        return texts


@dataclass(frozen=True)
class YourRun:
    """Every number that can be compared, and the findings that came out otherwise.

    measured are the questions that have numbers. apart are those of them that were run with options
    which train otherwise than the record did.
    """

    dots: list[Dot]
    turned: list[Mapping]
    measured: list[Mapping]
    apart: list[Mapping]

    @property
    def outside(self) -> list[Dot]:
        """The numbers outside, the farthest first."""
        found = [dot for dot in self.dots if dot.is_outside]
        return sorted(found, key=lambda dot: abs(dot.place - 0.5), reverse=True)

    @property
    def beyond_chance(self) -> bool:
        """Whether more lie outside than a run that was made like the record would have."""
        count = len(self.outside)
        return count > FEW and count > MOST_OUTSIDE * len(self.dots)

    @property
    def options(self) -> list[str]:
        """The options of those that were run apart, each once: ["--quick"]."""
        given = set()
        for question in self.apart:
            given.update(question["otherwise"])
        return sorted(given)


def resting_on(question: Mapping, claims: Iterable[Claim]) -> dict[str, list[Mapping]]:
    """Returns the name of a number -> the findings of a question whose rule asks for it.

    What came out otherwise than on record comes first.
    """
    by_id = {claim.id: claim for claim in claims}
    found = defaultdict(list)
    for finding in sorted(question["findings"], key=itemgetter("as published")):
        if finding["id"] in by_id:
            for name in record.decided_by(by_id[finding["id"]]):
                found[name].append(finding)
    return found


def your_run(questions: Iterable[Mapping], claims: Sequence[Claim]) -> YourRun:
    """Compares the first run of each experiment with the record."""
    dots, turned, apart = [], [], []
    measured = [question for question in questions if question["runs"]]
    for question in measured:
        if question["otherwise"]:
            apart.append(question)
            continue
        turned += [finding for finding in question["findings"] if not finding["as published"]]
        resting = resting_on(question, claims)
        for name, *numbers in record.compared(question["module"], question["runs"][0]):
            dots.append(Dot(name, *numbers, question, resting.get(name, [])))
    return YourRun(dots, turned, measured, apart)
