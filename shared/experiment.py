"""How is an experiment written? A file that measures ends in these lines:

    main = Experiment(measure, CLAIMS, picture, title="...", note="...", answer="{n[right]:.0%}")

    if __name__ == "__main__":
        main.run()

To add one, write such a file and name its module in shared/lab/plan.py (.github/CONTRIBUTING.md).
The first line of its docstring is the question, and the picture is named after the file.
measure(run) returns the numbers of one seed by name. Whatever else the picture needs, measure puts
into run.shown. title, note and answer are format strings: in them {n[right]} is the mean over the
seeds of the number "right", and {shown[word]} is what measure has put there. Where the numbers
decide what is to be said, title or answer is a function: it takes n and returns one of several such
strings.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from matplotlib.figure import Figure

from shared import cli, paths
from shared.claims import Claim, Numbers, mean_of
from shared.training.checkpoints import QUICK_STEPS
from shared.visualization_utils import headline, save_animation, save_plot

Film = tuple[Sequence[np.ndarray], float]  # images (height, width, 3), seconds for each


@dataclass
class Run:
    """What measure is told: the options of the command line and the seed.

    shown is filled by measure: what else the picture will need. refuse ends the program because of
    bad input, with one line.
    """

    options: argparse.Namespace
    seed: int
    refuse: Callable[[str], NoReturn] = sys.exit
    shown: dict[str, Any] = field(default_factory=dict)

    def steps(self, wanted: int) -> int:
        """Returns how many steps to train: fewer with --quick."""
        return min(wanted, QUICK_STEPS) if self.options.quick else wanted


@dataclass(frozen=True)
class Results:
    """The numbers of all seeds, the options, and what the run of the first seed has shown."""

    measured: Sequence[Numbers]  # one a seed
    options: argparse.Namespace
    shown: dict[str, Any]

    @cached_property
    def mean(self) -> dict[str, float]:
        """Name -> mean over the seeds."""
        return mean_of(self.measured)

    def each(self, name: str) -> list[float]:
        """Returns the number of this name, one a seed."""
        return [numbers[name] for numbers in self.measured]

    def row(self, name: str, columns: Sequence[Any]) -> list[float]:
        """Returns the means called "name, column"."""
        return [self.mean[f"{name}, {column}"] for column in columns]

    def format(self, text: str | Callable[[Numbers], str]) -> str:
        """Returns a text with its numbers in it, or the text that a function chooses by them."""
        chosen = text(self.mean) if callable(text) else text
        return chosen.format(n=self.mean, shown=self.shown)


@dataclass(frozen=True)
class Picture:
    """A picture that is not named after its experiment, with a name and a finding of its own.

    title and note are format strings, as those of the experiment.
    """

    name: str
    draw: Callable[[Results], Figure]
    title: str | Callable[[Numbers], str]
    note: str


@dataclass(eq=False)
class Experiment:
    """The main of a script that measures. measure, title, note and answer are explained above.

    film gives the images of a GIF. more_pictures stand beside the picture that
    is named after the file, or replace it. keep writes whatever else a run leaves behind.
    add_options gives the parser options of this script alone; uses names the common options that it
    uses, beside those of every experiment. claims_apply says whether a run with these options
    can be judged by the claims; if not, nothing is judged and nothing is saved.
    machine_dependent has patterns for the names of numbers that another machine or moment changes,
    such as "*, seconds". All others come out the same with one seed, on every processor.
    """

    measure: Callable[[Run], Numbers]
    claims: Sequence[Claim] = ()
    picture: Callable[[Results], Figure] | None = None
    _: KW_ONLY
    title: str | Callable[[Numbers], str] = ""
    note: str = ""
    answer: str | Callable[[Numbers], str] = ""
    film: Callable[[Results], Film] | None = None
    more_pictures: Sequence[Picture] = ()
    keep: Callable[[Results], None] | None = None
    add_options: Callable[[argparse.ArgumentParser], Any] | None = None
    uses: str = "--seed --seeds --quick"
    claims_apply: Callable[[argparse.Namespace], bool] = lambda options: True
    machine_dependent: Sequence[str] = ()

    def __post_init__(self) -> None:
        # The script that defines measure. When it is run, its module is called "__main__".
        script = sys.modules[self.measure.__module__]
        self.file = Path(script.__file__).resolve()
        self.doc = script.__doc__
        self.claims = [replace(claim, experiment=self.module) for claim in self.claims]

    @property
    def module(self) -> str:
        """The name of the experiment in the record: a/b.py is called a.b."""
        return ".".join(self.file.relative_to(paths.ROOT).with_suffix("").parts)

    def is_reproducible(self, number: str) -> bool:
        """Returns whether the number of this name is the same for everybody who has the seed."""
        return not any(fnmatchcase(number, pattern) for pattern in self.machine_dependent)

    @property
    def question(self) -> str:
        return self.doc.splitlines()[0]

    @property
    def own_picture(self) -> Picture:
        """The picture that is named after the file."""
        return Picture(self.file.stem, self.picture, self.title, self.note)

    @property
    def all_pictures(self) -> list[Picture]:
        """Every picture, but for the film."""
        if self.picture is None:
            return list(self.more_pictures)
        return [self.own_picture, *self.more_pictures]

    @cli.script
    def __call__(self, argv: list[str] | None = None) -> str:
        """Measures with every seed; says, draws and keeps what came out; returns the answer."""
        results = self.measure_seeds(argv)
        as_recorded = self.judge(results)
        self.draw(results, as_recorded=as_recorded)
        if self.keep:
            self.keep(results)
        return results.format(self.answer)

    def measure_seeds(self, argv: list[str] | None) -> Results:
        """Returns what was measured with every seed that the command line asks for."""
        uses = f"{self.uses} --numbers --output-dir"
        if self.all_pictures or self.film:
            uses += " --no-pictures"
        if self.all_pictures:
            uses += " --format"
        parser = cli.parser(self.doc, uses)
        if self.add_options:
            self.add_options(parser)
        options = cli.parse(parser, argv)
        print(self.question)
        runs = [Run(options, seed, refuse=parser.error) for seed in cli.seeds(options)]
        numbers = [self.measure(run) for run in runs]
        return Results(numbers, options, shown=runs[0].shown)

    def judge(self, results: Results) -> bool:
        """Prints the numbers, judges the claims by them, and saves both.

        Returns whether every claim came out as it is on record. Here alone does a script meet the
        laboratory, shared/lab; it is loaded when something has been measured.
        """
        from shared.lab import findings

        options = results.options
        findings.print_numbers(self.module, results.measured, options)
        if not self.claims_apply(options):
            return False
        answer = results.format(self.answer)
        return findings.judge_and_save(self.module, self.claims, results.measured, answer, options)

    def draw(self, results: Results, *, as_recorded: bool) -> None:
        """Draws and saves every picture, then the film.

        The title is the finding if it came out as recorded; else it is the question.
        """
        options = results.options
        if not options.pictures:
            return
        phase, _, _ = self.module.partition("_")  # phase1_single_head.parts.scaling -> phase1
        for picture in self.all_pictures:
            title, note, caption = self.words(results, picture, as_recorded)
            fig = picture.draw(results)
            headline(fig, title, note)
            save_plot(options, f"{phase}/{picture.name}", fig, caption)
        if self.film:
            _, _, caption = self.words(results, self.own_picture, as_recorded)
            images, seconds = self.film(results)
            path = options.output_dir / paths.ANIMATIONS / phase / f"{self.file.stem}.gif"
            save_animation(images, path, caption=caption, seconds_per_frame=seconds)

    def words(self, results: Results, picture: Picture, as_recorded: bool) -> tuple[str, str, str]:
        """Returns title and note of a picture, and its caption: title, question and note."""
        title = self.question
        if as_recorded and picture.title and not results.options.quick:
            title = results.format(picture.title)
        note = results.format(picture.note)
        seeds = len(results.measured)
        if seeds > 1:
            note += f" · {seeds} runs"
        if results.options.quick:
            note += " · with --quick: fewer steps than that"
        caption = self.question
        if title != self.question:
            in_one_line = title.replace("\n", " ")
            caption = f"{in_one_line}. {self.question}"
        return title, note, f"{caption} {note}"

    def run(self) -> None:
        """Runs the experiment as a program does: errors and interrupts are one line."""
        cli.run(self)
