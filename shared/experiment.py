"""An experiment: a question, a function that measures, claims that its numbers decide, and a
picture.

    main = Experiment(measure, CLAIMS, picture, title="...", note="...", answer="{n[rotary,
    reverse]:.0%} are right")

    if __name__ == "__main__":
        main.run()

The question is the first line of the file's docstring, and the picture is named after the file.
measure(run) gives the numbers of one seed by name; "row, column" names a cell of the table that is
printed. What the picture needs beside numbers, measure puts into run.shown. title, note and answer
are format strings over n, the means, and shown. An experiment that draws several pictures gives
each a name and a finding of its own: more_pictures=[Picture(...)].
"""

import argparse
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, NoReturn

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from shared import cli, paths, training
from shared.evidence import findings, record
from shared.evidence.claims import Claim, Numbers
from shared.visualization_utils import headline, save_animation, save_plot

Film = tuple[Sequence[np.ndarray], float]  # images (height, width, 3), seconds for each
MOST_ROWS, WIDTH = 16, 118  # of a table that is printed without --numbers
PUBLISHED = "   published "  # a row of where a new seed falls


@dataclass
class Run:
    """What measure is told: the options of the command line and the seed. shown: what else the
    picture will need.
    """

    options: argparse.Namespace
    seed: int
    refuse: Callable[[str], NoReturn] = sys.exit  # of bad input: one line, exit code 2
    shown: dict[str, Any] = field(default_factory=dict)

    def steps(self, wanted: int) -> int:
        """How many steps to train: fewer with --quick."""
        return min(wanted, training.QUICK_STEPS) if self.options.quick else wanted


@dataclass(frozen=True)
class Results:
    """The numbers of all seeds; options, and what the run of the first seed has shown."""

    runs: Sequence[Numbers]
    options: argparse.Namespace
    shown: dict[str, Any]

    @cached_property
    def mean(self) -> dict[str, float]:
        """Name -> mean over the seeds."""
        return {name: fmean(self.each(name)) for name in self.runs[0]}

    def each(self, name: str) -> list[float]:
        """The number of this name, one a seed."""
        return [run[name] for run in self.runs]

    def row(self, name: str, columns: Sequence[Any]) -> list[float]:
        """The means called "name, column"."""
        return [self.mean[f"{name}, {column}"] for column in columns]

    def format(self, text: str) -> str:
        return text.format(n=self.mean, shown=self.shown)


@dataclass(frozen=True)
class Picture:
    """A picture that is not named after the file of its experiment: the name of its own file, and
    its own finding.

    title and note are format strings, as those of the experiment.
    """

    name: str
    draw: Callable[[Results], Figure]
    title: str
    note: str


def table(numbers: Numbers, published: Mapping[str, str], *, everything: bool) -> str:
    """Numbers called "row, column" as a table, below each row where a new seed falls; a name alone
    is a row.

    everything=False leaves out what is published of a long table, and the end of a very long one.
    """
    rows: dict[str, dict[str, str]] = {}
    for name, number in numbers.items():
        row, _, column = name.rpartition(", ")
        row, column = (row, column) if row else (name, "")
        rows.setdefault(row, {})[column] = findings.number(number)
        rows.setdefault(f"{PUBLISHED}{row}", {})[column] = published.get(name, "")
    short = everything or len(rows) <= MOST_ROWS
    lines = [
        (n, row)
        for n, row in rows.items()
        if any(row.values()) and (short or not n.startswith(PUBLISHED))
    ]
    shown = lines if everything else lines[:MOST_ROWS]
    names = [PUBLISHED.rstrip() if name.startswith(PUBLISHED) else name for name, _ in shown]
    frame = pd.DataFrame([cells for _, cells in shown], names).fillna("")
    more = (
        f"\n... {len(lines) - len(shown)} more lines with --numbers"
        if len(shown) < len(lines)
        else ""
    )
    return (frame.to_string(line_width=WIDTH, header=any(frame.columns)) if shown else "") + more


class Experiment:
    """main() of a script that measures; see above.

    film: images for a GIF beside the picture. more_pictures: beside the one that is named after the
    file, or instead of it. keep: writes whatever else a run leaves behind. options: adds options of
    its own to the parser. about: whether the claims are about what these options ask for; of
    anything else nothing is judged, and no finding is kept.
    """

    def __init__(
        self,
        measure: Callable[[Run], Numbers],
        claims: Sequence[Claim] = (),
        picture: Callable[[Results], Figure] | None = None,
        *,
        title: str = "",
        note: str = "",
        answer: str = "",
        film: Callable[[Results], Film] | None = None,
        more_pictures: Sequence[Picture] = (),
        keep: Callable[[Results], None] | None = None,
        options: Callable[[argparse.ArgumentParser], Any] | None = None,
        about: Callable[[argparse.Namespace], bool] = lambda options: True,
    ) -> None:
        self.measure, self.picture, self.film, self.options = measure, picture, film, options
        self.title, self.note, self.answer, self.about = title, note, answer, about
        self.more_pictures, self.keep = tuple(more_pictures), keep
        self.file = Path(inspect.unwrap(measure).__code__.co_filename).resolve()
        self.doc = sys.modules[measure.__module__].__doc__ or ""
        self.claims = tuple(replace(claim, script=paths.shown(self.file)) for claim in claims)

    @property
    def drawings(self) -> list[Picture]:
        """Every picture that does not move, the one that is named after the file first."""
        own = [Picture(self.file.stem, self.picture, self.title, self.note)] if self.picture else []
        return [*own, *self.more_pictures]

    @property
    def pictures(self) -> set[str]:
        """The names of the files that a run draws."""
        files = {f"{drawing.name}.png" for drawing in self.drawings}
        return files | {f"{self.file.stem}.gif"} if self.film else files

    @property
    def question(self) -> str:
        return self.doc.splitlines()[0]

    @cli.script
    def __call__(self, argv: list[str] | None = None) -> str:
        """Measure with every seed, print, draw, record; returns the answer."""
        parser = cli.parser(self.doc)
        if self.options:
            self.options(parser)
        options = cli.parse(parser, argv)
        runs = [Run(options, seed, parser.error) for seed in cli.seeds(options)]
        results = Results([self.measure(run) for run in runs], options, runs[0].shown)
        claims = self.claims if (judges := self.about(options)) else ()
        judged = [findings.judged(claim, results.runs) for claim in claims]
        numbers = results.runs[0] if len(runs) == 1 else results.mean
        intervals = (
            {name: record.interval(self.file.stem, name) for name in numbers} if judges else {}
        )
        published = {name: findings.between(ends) for name, ends in intervals.items()}
        print(f"\n{table(numbers, published, everything=options.numbers)}\n")
        findings.print_verdicts(judged, rules=options.numbers)
        script = paths.shown(self.file)
        differs = (
            findings.differs(judged, findings.inside_record(script, results.runs)) if judges else ""
        )
        if differs:
            print(differs[0].upper() + differs[1:])
        as_published = judges and all(finding["as published"] for finding in judged)
        self.draw(results, as_published=as_published)
        if self.keep:
            self.keep(results)
        answer, whole = results.format(self.answer), table(numbers, published, everything=True)
        if judges:
            findings.save(options.output_dir, script, judged, results.runs, whole, answer)
        return answer

    def draw(self, results: Results, *, as_published: bool) -> None:
        """Draw and save every picture, then the film."""
        options = results.options
        if not options.pictures:
            return
        phase = self.file.relative_to(paths.ROOT).parts[0].split("_")[0]
        for drawing in self.drawings:
            title, note = (
                self.heading(results, drawing.title, as_published),
                self.foot(results, drawing.note),
            )
            fig = drawing.draw(results)
            headline(fig, title, note)
            save_plot(options, f"{phase}/{drawing.name}", fig, self.caption(title, note))
        if self.film:
            title, note = (
                self.heading(results, self.title, as_published),
                self.foot(results, self.note),
            )
            images, seconds = self.film(results)
            path = options.output_dir / paths.ANIMATIONS / phase / f"{self.file.stem}.gif"
            save_animation(
                images, path, caption=self.caption(title, note), seconds_per_frame=seconds
            )

    def heading(self, results: Results, title: str, as_published: bool) -> str:
        """The finding, or the question where this run came out otherwise than the record."""
        return results.format(title) if title and as_published else self.question

    def foot(self, results: Results, note: str) -> str:
        """The line at the foot of a picture; of several runs it says how many."""
        return results.format(note) + (
            f" · {len(results.runs)} runs" if len(results.runs) > 1 else ""
        )

    def caption(self, title: str, note: str) -> str:
        """Title, question and note in one line, the question once where it is the title."""
        sentences = dict.fromkeys([title.replace("\n", " "), self.question])
        return " ".join(sentences) + f" {note}"

    def run(self) -> None:
        """What a program does with it: errors and interrupts are one line."""
        cli.run(self)
