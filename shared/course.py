"""Runs the scripts of the course, two at a time, and shows what they print in reading order.

    python shared/course.py                    all four phases, then the report page
    python shared/course.py all                the same, and the experiments that take longer
    python shared/course.py phase2 --quick     one phase, as python -m phase2_multi_head --quick

The models that scripts share are trained first. Each script has one thread: the toy models are too small for two. What
measures times runs at the end, when nothing else does. Each phase's __main__.py says which script is which.
"""

import contextlib
import importlib
import io
import multiprocessing
import signal
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.pool import AsyncResult, Pool
from types import ModuleType

from tqdm import tqdm

from shared import cli
from shared.evidence import findings

PHASES = {
    "phase1": "phase1_single_head",
    "phase2": "phase2_multi_head",
    "phase3": "phase3_visualization",
    "phase4": "phase4_causal",
}
PROCESSES = 2
Result = tuple[int, str]  # exit code, what was printed


@dataclass(frozen=True)
class Plan:
    """The scripts of a phase; its __main__.py has one of these as PLAN."""

    train: list[ModuleType]  # whose models the scripts share
    in_order: list[ModuleType]  # as they are best read
    long: list[ModuleType] = field(default_factory=list)  # they train models of their own: started first, shown last
    alone: list[ModuleType] = field(default_factory=list)  # they measure times
    longer: list[ModuleType] = field(default_factory=list)  # with the word "all" only


def run_script(name: str, argv: list[str]) -> Result:
    """Run the main() of a module in this process and catch what it prints; errors only if it fails."""
    printed, errors = io.StringIO(), io.StringIO()
    code = 0
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
        try:
            cli.run(partial(importlib.import_module(name).main, argv))
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 1
    return code, printed.getvalue() + (errors.getvalue() if code else "")


def show(name: str, result: Result) -> None:
    """Print a script's output under its name, above the progress bar; leave with its exit code if it failed."""
    code, text = result
    tqdm.write(f"\n== {name.replace('.', '/')}.py\n{text.rstrip()}")
    if code:
        sys.exit(code)


def names(scripts: list[ModuleType]) -> list[str]:
    return [script.__name__ for script in scripts]


def run_side_by_side(pool: Pool, plans: list[Plan], argv: list[str]) -> None:
    """Train, then run everything that may run beside something else, and show it phase by phase."""
    trained = dict.fromkeys(name for plan in plans for name in names(plan.train))
    looks = [option for option in argv if option != "--retrain"]

    def start(name: str, options: list[str]) -> AsyncResult:
        return pool.apply_async(run_script, (name, options))

    training = [start(name, ["--train-only", *argv]) for name in trained]
    started = {name: start(name, looks) for name in names(plans[0].long)}  # they need none of these models
    for result in training:
        code, text = result.get()
        tqdm.write(text.rstrip()) if text else None
        if code:
            sys.exit(code)
    for plan in plans:
        for name in names(plan.long + plan.in_order):
            started[name] = started.get(name) or start(name, looks)
    in_order = [name for plan in plans for name in names(plan.in_order + plan.long)]
    for name in tqdm(in_order, desc="scripts", leave=False, disable=None):
        show(name, started[name].get())


def run(phases: list[str], argv: list[str], *, longer: bool = False) -> None:
    """Run the scripts of these packages with the options argv; longer: also what takes longer."""
    plans = [importlib.import_module(f"{phase}.__main__").PLAN for phase in phases]  # before the fork: imported once
    ignore_ctrl_c = partial(signal.signal, signal.SIGINT, signal.SIG_IGN)  # this process hears it, and ends the others
    print("Training the models that the scripts share: about a minute, unless they are there already", flush=True)
    with multiprocessing.Pool(PROCESSES, initializer=ignore_ctrl_c) as pool:
        run_side_by_side(pool, plans, argv)
    looks = [option for option in argv if option != "--retrain"]
    alone = [name for plan in plans for name in names(plan.alone + (plan.longer if longer else []))]
    for name in alone:
        print(f"\n== {name.replace('.', '/')}.py", flush=True)
        importlib.import_module(name).main(looks)


def main(argv: list[str] | None = None) -> None:
    argv = sys.argv[1:] if argv is None else argv
    word, options = (argv[0], argv[1:]) if argv and not argv[0].startswith("-") else ("", argv)
    parser = cli.parser(__doc__)
    if parser.prog == "course.py":
        parser.prog = "run_all.sh"  # as readers call it
    if word not in ("", "all", *PHASES):
        parser.error(f"unknown word '{word}': say all, {', '.join(PHASES)}, or nothing")
    cli.parse(parser, options)  # a wrong option is said before anything is trained
    started = time.perf_counter()
    run([PHASES[word]] if word in PHASES else list(PHASES.values()), options, longer=word == "all")
    print(f"\n{word if word in PHASES else 'All four phases'} ran in {time.perf_counter() - started:.0f} s")
    findings.main([option for option in options if option != "--retrain"])


if __name__ == "__main__":
    cli.run(main)
