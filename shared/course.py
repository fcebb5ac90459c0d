"""Runs the course. ./run_all.sh does the same, after it has made .venv; options follow the word.

    python shared/course.py                    the four phases, then the report page
    python shared/course.py all                the same, and the experiments that take longer
    python shared/course.py phase2 --seeds 3   one phase, here with three seeds
    python shared/course.py test               the tests; options are those of pytest: test -k ring
    python shared/course.py test --faults      for maintainers: is each fault noticed that is put into the mechanism?
    python shared/course.py replicate          for maintainers: all experiments with ten seeds, into data/evidence.csv
    python shared/course.py publish            for maintainers: the last run's pictures into visualizations/gallery/
    python shared/course.py --time             for maintainers: the four phases, and a table of where the seconds went
    python shared/course.py help               the options of a run

The models that scripts share are trained first. Then scripts run two at a time, each with one
thread, and are told in reading order; what measures times runs at the end, when nothing else does.
Of each script the story has its question, its answer, its verdicts and its pictures; all that it
printed is in the log, and on the screen with --verbose.
"""

import argparse
import collections
import contextlib
import importlib
import importlib.util
import io
import json
import multiprocessing
import pkgutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from multiprocessing.pool import Pool
from pathlib import Path
from typing import NoReturn

import matplotlib
from tqdm import tqdm

from shared import STOPS, cli, measure, paths, training
from shared.evidence.claims import MARKS
from shared.paths import PHASES
from shared.plan import SECTIONS, Plan, path_of, plan_of, question_of
from shared.publishing.report.write_pages import write_pages

ELSEWHERE = {
    "replicate": "shared.publishing.replicate",
    "publish": "shared.publishing.publish",
}  # word -> who does it
PROCESSES = 2
LOG = paths.PROCESSED / "run.log"
spent: collections.Counter[str] = (
    collections.Counter()
)  # kind -> CPU seconds of this process, with --time


@dataclass(frozen=True)
class Result:
    """What became of a script: its exit code, all that it printed, its answer, the files that it
    wrote, its seconds.
    """

    code: int
    text: str
    answer: str = ""
    written: tuple[Path, ...] = ()
    spent: dict[str, float] = field(default_factory=dict)  # kind -> CPU seconds, with --time


def result_of(main: Callable[[], str | None]) -> Result:
    """Call it in this process and catch what it prints; errors only if it fails."""
    printed, errors = io.StringIO(), io.StringIO()
    code, answer = 0, None
    before, spent_before = len(paths.written), spent.copy()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
        try:
            answer = cli.answer_of(main)
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 1
    text = printed.getvalue() + (errors.getvalue() if code else "")
    return Result(code, text, answer or "", tuple(paths.written[before:]), spent - spent_before)


def run_script(name: str, argv: list[str]) -> Result:
    """Run the main of a module, a function or an Experiment."""
    return result_of(lambda: importlib.import_module(name).main(argv))


def train(loader: str, argv: list[str]) -> Result:
    """Train the models that a loader loads, one for each seed, unless they are there already."""

    def load() -> None:
        options = cli.parse(cli.parser(None), argv)
        for seed in cli.seeds(options):
            pkgutil.resolve_name(loader)(options, seed)

    return result_of(load)


def counted(judged: Iterable[Mapping]) -> str:
    """How claims come out, by their marks: "+ 3  x 1"."""
    counts = collections.Counter(MARKS[finding["kind"]] for finding in judged)
    return "  ".join(f"{mark} {counts[mark]}" for mark in MARKS.values() if counts[mark])


def verdicts(result: Result) -> list[str]:
    """What the record says of a script's claims, what this run says of newer ones, and where this
    run differs.
    """
    said = []
    for path in result.written:
        if path.parent.name != "findings":
            continue
        kept = json.loads(path.read_text(encoding="utf-8"))
        on_record = [finding for finding in kept["findings"] if finding["on record"]]
        newer = [finding for finding in kept["findings"] if not finding["on record"]]
        said += [f"on record {counted(on_record)}"] if on_record else []
        said += [f"not on record yet, here {counted(newer)}"] if newer else []
        said.append(kept["differs"])
    return said


def story(name: str, result: Result) -> str:
    """Two lines: what the script asks; what it found, its verdicts ("on record + 3  x 1"), and its
    pictures.
    """
    pictures = " ".join(
        path.name for path in result.written if path.suffix in (".png", ".svg", ".gif", ".html")
    )
    said = "   ".join(filter(None, (result.answer, *verdicts(result), pictures)))
    return f"{name.split('.', 1)[1].replace('.', '/')}: {question_of(name)}" + (
        f"\n    {said}" if said else ""
    )


class Teller:
    """Tells the story on the screen and keeps everything in the log."""

    def __init__(self, log: Path, *, verbose: bool) -> None:
        self.verbose = verbose
        log.parent.mkdir(parents=True, exist_ok=True)
        self.file = log.open("w", encoding="utf-8")
        self.spent: dict[str, dict[str, float]] = {}  # script or loader -> kind -> CPU seconds

    def tell(self, name: str, result: Result) -> None:
        """Log a script, print its story; leave with its exit code, and all it said, if it failed."""
        self.spent[name] = result.spent
        whole = f"\n== {path_of(name)}\n{result.text.rstrip()}\n"
        self.file.write(whole)
        self.file.flush()
        tqdm.write(whole if self.verbose or result.code else story(name, result))
        if result.code:
            sys.exit(result.code)


def hold(*, back: bool) -> None:
    """What would stop this process has to wait, or comes through again. Windows has no such thing."""
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_BLOCK if back else signal.SIG_UNBLOCK, STOPS)


def prepare(timed: bool) -> None:
    """What a process of the pool begins with: it can be ended at any moment, and does not hear
    Ctrl-C.
    """
    if timed:
        measure.watch(spent)
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN if number == signal.SIGINT else signal.SIG_DFL)
    hold(back=False)
    matplotlib.use("Agg")  # it opens no window
    tqdm.set_lock(
        threading.RLock()
    )  # its own is shared by processes: whoever is ended would leave it behind


def processes(modules: Iterable[str] = (), *, timed: bool = False) -> Pool:
    """A pool whose processes do not hear Ctrl-C: this one ends them. On Linux they are copies, with
    modules loaded.
    """
    copies = sys.platform == "linux"
    for name in modules if copies else ():
        importlib.import_module(name)
    hold(back=True)  # a new process is not stopped before it is prepared for that
    try:
        return multiprocessing.get_context("fork" if copies else "spawn").Pool(
            PROCESSES, prepare, [timed]
        )
    finally:
        hold(back=False)


def without_retrain(argv: list[str]) -> list[str]:
    """The options of a script whose models have just been trained."""
    return [option for option in argv if option != "--retrain"]


def run_side_by_side(pool: Pool, plans: dict[str, Plan], argv: list[str], teller: Teller) -> None:
    """Train, then run everything that may run beside something else, and tell it phase by phase."""
    loaders = dict.fromkeys(name for plan in plans.values() for name in plan.train)
    for name, waiting in {name: pool.apply_async(train, (name, argv)) for name in loaders}.items():
        result = waiting.get()
        if result.code:
            teller.tell(name, result)
        teller.file.write(result.text)
        teller.spent[name] = result.spent
    argv = without_retrain(argv)
    started = {
        name: pool.apply_async(run_script, (name, argv))
        for plan in plans.values()
        for name in (*plan.slow, *(other for other in plan.scripts if other not in plan.slow))
    }
    bar = tqdm(total=len(started), desc="scripts", leave=False, disable=None)
    for phase, plan in plans.items():
        tqdm.write(f"---- {SECTIONS[phase]}")
        for name in plan.scripts:
            teller.tell(name, started[name].get())
            bar.update()
    bar.close()


def run(
    phases: list[str], argv: list[str], options: argparse.Namespace, *, longer: bool = False
) -> Teller:
    """Run the scripts of these phases with the options argv; longer: also what takes longer."""
    plans = {phase: plan_of(phase) for phase in phases}
    if options.quick:  # a test drive: its times say nothing, so that nothing needs to run alone
        plans = {
            phase: replace(plan, scripts=plan.scripts + plan.alone, alone=())
            for phase, plan in plans.items()
        }
    teller = Teller(options.output_dir / LOG, verbose=options.verbose)
    tqdm.write(
        "Training the models that the scripts share, unless they are there already: about half a minute"
    )
    training.corpus()  # drawn once, for all processes, if they are copies
    modules = [name for plan in plans.values() for name in plan.scripts]
    with processes(
        [*modules, "torch._dynamo"], timed=options.time
    ) as pool:  # the last: every optimizer asks for it
        run_side_by_side(pool, plans, argv, teller)
    for plan in plans.values():
        for name in filter(plan.can_run, plan.alone + (plan.longer if longer else ())):
            teller.tell(name, run_script(name, without_retrain(argv)))
    return teller


def test(argv: list[str]) -> NoReturn:
    """Run all tests, or plant faults, with two processes, and leave with the exit code; pytest
    hears Ctrl-C itself.
    """
    import pytest

    if argv[:1] == ["--faults"]:
        from shared.tests import faults

        sys.exit(faults.main(argv[1:]))
    sys.exit(
        pytest.main(
            [str(paths.ROOT / "test_all.py"), "--numprocesses", "2", "--dist", "loadgroup", *argv]
        )
    )


@cli.script
def main(argv: list[str] | None = None) -> str | None:
    argv = sys.argv[1:] if argv is None else argv
    word, rest = (argv[0], argv[1:]) if argv and not argv[0].startswith("-") else ("", argv)
    if word in ELSEWHERE:
        return importlib.import_module(ELSEWHERE[word]).main(rest)
    parser = cli.parser(__doc__)
    parser.add_argument(
        "--verbose",
        action="store_true",
        help="print all that the scripts say, not only their story",
    )
    parser.add_argument(
        "--time", action="store_true", help="print where the seconds went: CPU seconds by script"
    )
    if word == "test":
        if not importlib.util.find_spec("xdist"):
            parser.error('the tests need more packages: python -m pip install -e ".[test]"')
        test(rest)
    if word not in ("", "all", *PHASES, "help"):
        parser.error(
            f"unknown word '{word}': say all, {', '.join(PHASES)}, test, {', '.join(ELSEWHERE)} or help"
        )
    options = cli.parse(
        parser, ["--help"] if word == "help" else rest
    )  # a wrong option is said before training
    started = time.perf_counter()
    if options.time:
        measure.watch(spent)
    scripts_take = [option for option in rest if option not in ("--verbose", "--time")]
    teller = run(
        [word] if word in PHASES else list(PHASES), scripts_take, options, longer=word == "all"
    )
    print(
        f"---- {word if word in PHASES else 'All four phases'} ran in {time.perf_counter() - started:.0f} s"
    )
    page = write_pages(options.output_dir)
    print("claims on record, over ten seeds: + hold   x do not hold   ~ hold in some seeds")
    print("pictures: visualizations/plots/ and visualizations/animations/")
    print(
        f"all that was said: {paths.shown(options.output_dir / LOG)}; to see in a browser: {paths.shown(page)}"
    )
    if options.time:
        print(measure.seconds_by_script(teller.spent))


if __name__ == "__main__":
    cli.run(main)
