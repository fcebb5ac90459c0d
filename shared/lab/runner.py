"""Runs the course, when ./run_all.sh has made .venv; options follow the word.

    ./run_all.sh                    the four phases, then a page with what came out
    ./run_all.sh all                the same, and the experiments that take longer
    ./run_all.sh phase2 --seeds 3   one phase, here with three seeds
    ./run_all.sh test               the tests; options are those of pytest: test -k ring
    ./run_all.sh help               the usual ones; help all: this

For maintainers:

    ./run_all.sh test --faults      is each fault noticed that is put into a mechanism?
    ./run_all.sh replicate          all experiments, ten seeds, into data/evidence.csv
    ./run_all.sh publish            the last run's pictures into visualizations/gallery/

First the models that scripts share are trained. Then scripts run two at a time, each with one
thread, and are told in reading order: each with its question, how long it takes if that is long,
its answer, how its claims stand, and its pictures. What measures times runs at the end, when
nothing else does. All that a script printed is in the log, and on the screen with --verbose.
"""

import argparse
import contextlib
import importlib
import importlib.util
import io
import multiprocessing
import pkgutil
import signal
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from multiprocessing.pool import AsyncResult, Pool
from pathlib import Path
from typing import NoReturn

import matplotlib

from shared import cli, paths
from shared.lab import findings
from shared.lab.findings import INDENT, wrapped
from shared.lab.plan import PLANS, SECONDS, SECTIONS, Plan, can_run, path_of, question_of
from shared.lab.report import write_report
from shared.paths import PHASES
from shared.training.objectives import corpus

MAINTAINERS = {  # word -> the module that does it
    "replicate": "shared.lab.replicate",
    "publish": "shared.lab.gallery",
}
PROCESSES = 2
LOG = paths.PROCESSED / "run.log"
PICTURES = (".png", ".svg", ".gif", ".html")


@dataclass(frozen=True)
class Result:
    """What became of a script: its exit code, what it printed, its answer, the files it wrote."""

    code: int
    text: str
    answer: str = ""
    written: tuple[Path, ...] = ()


def result_of(main: Callable[[], str | None]) -> Result:
    """Call it in this process and catch what it prints; its errors are kept only if it fails."""
    printed, errors = io.StringIO(), io.StringIO()
    code, answer = 0, None
    already_written = len(paths.written)
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
        try:
            answer = cli.answer_of(main)
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 1
    text = printed.getvalue()
    if code:
        text += errors.getvalue()
    return Result(code, text, answer or "", tuple(paths.written[already_written:]))


def run_script(name: str, argv: list[str]) -> Result:
    """Run the main of a module, which is a function or an Experiment."""
    return result_of(lambda: importlib.import_module(name).main(argv))


def count_untrained(loaders: list[str], options: argparse.Namespace) -> int:
    """Returns how many of the models that these load are not there yet, one a seed."""
    asking = argparse.Namespace(**vars(options), only_read=True)
    count = 0
    for loader in set(loaders):
        for seed in cli.seeds(options):
            try:
                pkgutil.resolve_name(loader)(asking, seed)
            except LookupError:
                count += 1
    return count


def train_shared(loader: str, argv: list[str]) -> Result:
    """Train the models that a loader loads, one a seed, unless they are there already."""

    @cli.script
    def load() -> None:
        options = cli.parse(cli.parser(None), argv)
        for seed in cli.seeds(options):
            pkgutil.resolve_name(loader)(options, seed)

    return result_of(load)


# ---- the story


def verdicts_of(result: Result) -> list[str]:
    """Returns how each claim of a script stands on record and here, and what differs here."""
    sentences = []
    for path in result.written:
        if path.parent.name == "findings":
            judgement = findings.load(path).judged()
            for finding in judgement.findings:
                sentences.append(f'"{finding.claim.point}" {finding.sentence}')
            sentences.append(judgement.differs)
    return sentences


def story(result: Result) -> str:
    """Returns what a script answers, how its claims stand, and its pictures."""
    lines = []
    for sentence in (result.answer, *verdicts_of(result)):
        if sentence:
            lines.append(wrapped(sentence))
    for path in result.written:
        if path.suffix in PICTURES:
            lines.append(f"{INDENT}{paths.shown(path)}")
    return "\n".join(lines)


def duration(seconds: int) -> str:
    return f", about {seconds} s" if seconds else ""


class Teller:
    """Tells the story on the screen and keeps all that was printed in the log.

    total: how many scripts there are to tell of. measured: with how many seeds each measures, or 0
    for a test drive, of which nobody knows how long it takes.
    """

    def __init__(self, log: Path, total: int, *, measured: int = 1, verbose: bool = False) -> None:
        self.verbose = verbose
        self.total = total
        self.measured = measured
        self.number = 0  # of the script that is told now
        log.parent.mkdir(parents=True, exist_ok=True)
        self.file = log.open("w", encoding="utf-8")

    def begin(self, name: str) -> None:
        """Print what a script asks and, if it takes long, how long."""
        self.number += 1
        _, _, below_the_phase = name.partition(".")
        script = below_the_phase.replace(".", "/")
        takes = duration(SECONDS.get(name, 0) * self.measured)
        line = f"{self.number} of {self.total} · {script}{takes}: {question_of(name)}"
        print(f"\n{wrapped(line, indent='')}", flush=True)

    def tell(self, name: str, result: Result) -> None:
        """Print the story of a script; if it failed, all that it said, and leave with its code."""
        whole = f"\n== {path_of(name)}\n{result.text.rstrip()}\n"
        self.file.write(whole)
        self.file.flush()
        print(whole if self.verbose or result.code else story(result), flush=True)
        if result.code:
            sys.exit(result.code)


# ---- processes


def prepare() -> None:
    """Begin a process of the pool: whoever started it may end it, and Ctrl-C does not reach it."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    matplotlib.use("Agg")  # it opens no window


def processes(modules: Iterable[str] = ()) -> Pool:
    """Returns a pool of processes that do not hear Ctrl-C, because this process ends them.

    On Linux they are copies of this one, so the modules are loaded once, before they start.
    """
    copies = sys.platform == "linux"
    if copies:
        for name in modules:
            importlib.import_module(name)
    context = multiprocessing.get_context("fork" if copies else "spawn")
    # Deaf from their first moment, before they come to prepare.
    heard = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return context.Pool(PROCESSES, prepare)
    finally:
        signal.signal(signal.SIGINT, heard)


def for_each_script(argv: list[str]) -> list[str]:
    """Returns the options of a run for each script: its models have just been trained.

    By itself a script refuses an option that it does not use; here the option is for the others.
    """
    return ["--if-used", *(option for option in argv if option != "--retrain")]


def start(
    pool: Pool, function: Callable[[str, list[str]], Result], names: Iterable[str], argv: list[str]
) -> dict[str, AsyncResult]:
    """Start a function for each of these names, but once; returns name -> what becomes of it."""
    return {name: pool.apply_async(function, (name, argv)) for name in dict.fromkeys(names)}


def run_side_by_side(pool: Pool, plans: dict[str, Plan], argv: list[str], teller: Teller) -> None:
    """Train, run all that may run beside something else, and tell it phase by phase."""
    loaders, scripts = [], []
    for plan in plans.values():
        loaders += plan.train
        # The slow ones first.
        scripts += sorted(plan.scripts, key=lambda name: -SECONDS.get(name, 0))
    for name, training in start(pool, train_shared, loaders, argv).items():
        result = training.get()
        if result.code:
            teller.tell(name, result)
        teller.file.write(result.text)
    started = start(pool, run_script, scripts, for_each_script(argv))
    for phase, plan in plans.items():
        print(f"\n---- {SECTIONS[phase]}")
        for name in plan.scripts:
            teller.begin(name)
            teller.tell(name, started[name].get())


def run_phases(phases: list[str], argv: list[str], options: argparse.Namespace, word: str) -> None:
    """Run the scripts of these phases with the options argv; those that take longer with "all"."""
    plans = {phase: PLANS[phase] for phase in phases}
    modules = ["torch._dynamo"]  # every optimizer asks for it
    loaders, by_themselves = [], []
    for plan in plans.values():
        modules += plan.scripts
        loaders += plan.train
        by_themselves += plan.alone + (plan.longer if word == "all" else ())
    by_themselves = [name for name in by_themselves if can_run(name)]
    total = len(modules) - 1 + len(by_themselves)
    measured = 0 if options.quick else options.seeds
    log = options.output_dir / LOG
    teller = Teller(log, total, measured=measured, verbose=options.verbose)
    to_train = count_untrained(loaders, options)
    training = f"Models to train: {to_train}{duration(10 * to_train * bool(measured))}"
    print(training if to_train else "The models are there already.", flush=True)
    corpus()  # drawn once for all processes, where they are copies
    with processes(modules) as pool:
        run_side_by_side(pool, plans, argv, teller)
    for name in by_themselves:
        teller.begin(name)
        teller.tell(name, run_script(name, for_each_script(argv)))


# ---- the words


def test(argv: list[str]) -> NoReturn:
    """Run the tests in two processes, or plant faults, and leave with the exit code."""
    import pytest

    if argv[:1] == ["--faults"]:
        from shared.tests import faults

        sys.exit(faults.main(argv[1:]))
    all_tests = str(paths.ROOT / "test_all.py")
    sys.exit(pytest.main([all_tests, "--numprocesses", "2", "--dist", "loadgroup", *argv]))


@cli.script
def main(argv: list[str] | None = None) -> str | None:
    rest = sys.argv[1:] if argv is None else argv
    word = ""
    if rest and not rest[0].startswith("-"):
        word, *rest = rest
    if word in MAINTAINERS:
        return importlib.import_module(MAINTAINERS[word]).main(rest)
    parser = cli.parser(__doc__)
    parser.add_argument("--verbose", action="store_true", help="print all that the scripts say")
    if word == "test":
        if not importlib.util.find_spec("xdist"):
            parser.error('the tests need more packages: python -m pip install -e ".[test]"')
        test(rest)
    known = ("", "all", *PHASES, "test", "help")
    if word not in known:
        parser.error(f"unknown word '{word}'{cli.did_you_mean(word, known)}")
    options = cli.parse(parser, ["--help"] if word == "help" else rest)
    started = time.perf_counter()
    scripts_take = [option for option in rest if option != "--verbose"]
    run_phases([word] if word in PHASES else list(PHASES), scripts_take, options, word)
    seconds = time.perf_counter() - started
    print(f"\n---- {word if word in PHASES else 'All four phases'} ran in {seconds:.0f} s\n")
    page = write_report(options.output_dir)
    log = paths.shown(options.output_dir / LOG)
    print(f"All numbers and claims, as the scripts said them: {log}")
    print(f"What this run found, with pictures, to see in a browser: {paths.shown(page)}")


if __name__ == "__main__":
    cli.run(main)
