"""The command line that all scripts share: the same options, and one clear line for what cannot be
done.

A wrong option, an unknown word, a folder that cannot be written: one line that says what to do,
exit code 2. Ctrl-C: one line, exit code 130; kill: 143; hang-up: 129. No file is left half-written
(see shared.paths.whole_file).

    ./run_all.sh help     lists the common options
"""

import argparse
import functools
import importlib
import io
import itertools
import os
import random
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn, ParamSpec, TypeVar

import matplotlib
import numpy as np
import torch
from torch import nn

from shared import STOPS, paths
from shared.toy_language import TOY_SENTENCE, read_sentences, tokenize
from shared.toy_model import MakeAttention

P, T = ParamSpec("P"), TypeVar("T")

MOST = {
    "seeds": 100,
    "d_model": 1024,
    "heads": 1024,
    "layers": 24,
}  # more would take days, or all the memory


LONGEST = 400  # letters of a message: five lines of a terminal


def shortened(message: str) -> str:
    """The message; of one that is very long, such as one that names a very long path, its beginning
    and its end.
    """
    if len(message) <= LONGEST:
        return message
    half = LONGEST // 2
    return f"{message[:half]} ... {message[-half:]}"


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {shortened(message)}\n")


def folder(name: str) -> Path:
    """What --output-dir names. An empty name, as of an unset variable, would be the folder one
    happens to be in.
    """
    if not name:
        raise argparse.ArgumentTypeError("it must name a folder, such as . for this one")
    return Path(name)


def parser(description: str | None) -> argparse.ArgumentParser:
    """A parser with the common options; description is the script's own docstring."""
    result = Parser(
        prog=Path(sys.argv[0]).name,
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = result.add_argument
    add(
        "--sentence",
        metavar="TEXT",
        help=f'the sentence to look at (default: of --sentences, "{TOY_SENTENCE}")',
    )
    add(
        "--sentences",
        metavar="FILE",
        default=str(paths.TOY_SEQUENCES),
        help="file of sentences, one a line",
    )
    add(
        "--seed",
        type=int,
        default=0,
        help="decides the initial weights and the batches (default: 0)",
    )
    add(
        "--seeds",
        type=int,
        default=1,
        metavar="N",
        help="measure with N seeds, counted up from --seed (default: 1)",
    )
    add(
        "--device",
        choices=("cpu", "cuda", "mps", "auto"),
        default="cpu",
        help="where to compute (default: cpu)",
    )
    add("--retrain", action="store_true", help="train again even if there is a checkpoint")
    add(
        "--quick",
        action="store_true",
        help="without a checkpoint, train a few steps only: a test drive",
    )
    add(
        "--numbers",
        action="store_true",
        help="print all numbers and rules, not a table and verdicts alone",
    )
    add(
        "--output-dir",
        type=folder,
        default=paths.ROOT,
        metavar="DIR",
        help="write pictures and data under DIR",
    )
    add("--no-pictures", dest="pictures", action="store_false", help="measure only")
    add("--format", choices=("png", "svg"), default="png", help="of the pictures (default: png)")
    add("--d-model", type=int, metavar="D", help="width of the toy transformer (default: 64)")
    add(
        "--heads",
        type=int,
        metavar="H",
        help="heads in each layer (default: 4; the phase-1 model always has one)",
    )
    add(
        "--layers",
        type=int,
        metavar="L",
        help="layers (default: 2; the phase-1 model always has one)",
    )
    return result


def parse(result: argparse.ArgumentParser, argv: list[str] | None = None) -> argparse.Namespace:
    """Parse and check the options, and set up seeds, threads and device by them.

    Adds words (the sentence to look at, as a list) and all_sentences (of the file).
    """
    options = result.parse_args(argv)
    try:
        options.all_sentences = read_sentences(options.sentences)
        options.words = tokenize(
            options.all_sentences[0] if options.sentence is None else options.sentence
        )
        _check_sizes(options)
        options.device = _device(options.device)
        paths.check_writable(options.output_dir)
    except UnicodeDecodeError:
        result.error(f"{options.sentences} is not a text file in UTF-8")
    except ValueError as error:
        result.error(str(error))
    except OSError as error:
        result.error(f"cannot use {error.filename}: {error.strerror}")
    for set_seed in (random.seed, np.random.seed, torch.manual_seed):
        set_seed(options.seed)
    torch.set_num_threads(
        1
    )  # the models are so small that a second thread costs more than it brings
    return options


def attention_class(name: str) -> MakeAttention:
    """What --attention names, tried once: "phase2_multi_head.alibi_attention:AlibiAttention".

    Raises argparse.ArgumentTypeError for what is no attention: it must be made as MakeAttention
    says, and give output (B, T, d_model) and weights (B, num_heads, T, T).
    """
    module, _, own = name.partition(":")
    try:
        made = getattr(importlib.import_module(module), own)
    except (ImportError, AttributeError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"MODULE:CLASS, please: {error}") from None
    if not (isinstance(made, type) and issubclass(made, nn.Module)):
        raise argparse.ArgumentTypeError(
            f"MODULE:CLASS, please: {own} is not a class of torch.nn.Module"
        )
    d_model, num_heads, x = 64, 4, torch.zeros(2, 3, 64)
    try:
        output, weights = made(d_model, num_heads)(x, mask=None)
        shapes = [tuple(output.shape), tuple(weights.shape)]
    except Exception as error:  # a class of the reader's own may fail in any way
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"line {last.lineno} of {last.filename}: " if last.filename != __file__ else ""
        how = f"{own}(d_model, num_heads)(x, mask=mask) must give (output, weights)"
        raise argparse.ArgumentTypeError(f"{how}: {place}{type(error).__name__}: {error}") from None
    wanted = [(2, 3, d_model), (2, num_heads, 3, 3)]
    if shapes != wanted:
        raise argparse.ArgumentTypeError(
            f"{own} must give output and weights of shapes (B, T, d_model) and (B, num_heads, T, T), "
            f"here {wanted[0]} and {wanted[1]}: got {shapes[0]} and {shapes[1]}"
        )
    return made


def _check_sizes(options: argparse.Namespace) -> None:
    for name, most in MOST.items():
        value = getattr(options, name)
        if value is not None and not 1 <= value <= most:
            raise ValueError(
                f"--{name.replace('_', '-')} must lie between 1 and {most}: got {value}"
            )
    if not 0 <= options.seed < 2**32 - options.seeds:
        raise ValueError(
            f"--seed must lie between 0 and {2**32 - 1 - options.seeds}: got {options.seed}"
        )
    d_model, heads = options.d_model or 64, options.heads or 4
    if d_model % heads:
        raise ValueError(f"--d-model {d_model} is not divisible by --heads {heads}")


def _device(name: str) -> str:
    available = {
        "cpu": True,
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
    }
    if name == "auto":
        return next(device for device in ("cuda", "mps", "cpu") if available[device])
    if not available[name]:
        raise ValueError(
            f"--device {name} is not available here: use --device cpu or --device auto"
        )
    return name


def seeds(options: argparse.Namespace) -> range:
    """The seeds to measure with."""
    return range(options.seed, options.seed + options.seeds)


def chosen_heads(
    script: argparse.ArgumentParser, options: argparse.Namespace, num_layers: int, num_heads: int
) -> list[tuple[int, int]]:
    """(layer, head) of all heads, or of those that --layer and --head pick."""
    chosen = []
    for name, picked, count in (
        ("layer", options.layer, num_layers),
        ("head", options.head, num_heads),
    ):
        if picked is not None and not 0 <= picked < count:
            script.error(f"--{name} must lie between 0 and {count - 1}: got {picked}")
        chosen.append(range(count) if picked is None else [picked])
    return list(itertools.product(*chosen))


def script(main: Callable[P, T]) -> Callable[P, T]:
    """Decorates a script's main(): its figures have the look of the course, and a notebook keeps
    its own.
    """

    @functools.wraps(main)
    def in_our_look(*args: P.args, **options: P.kwargs) -> T:
        look = sys.modules.get(
            "shared.visualization_utils"
        )  # whoever draws has imported it, which takes a second
        with look.theme() if look else nullcontext():
            return main(*args, **options)

    return in_our_look


def answer_of(main: Callable[[], str | None]) -> str | None:
    """Run a script's main(); print and return its answer, if it has one. A full disk is one line.

    The answer is what main() returns: one sentence with the number that answers the question of its
    docstring.
    """
    try:
        answer = main()
        if answer:
            print(f"\n{answer}")
        return answer
    except BrokenPipeError:
        raise  # of the screen, not of a file
    except OSError as error:
        message = f"{error.filename or 'output'}: {error.strerror or error}"
        print(shortened(message), file=sys.stderr)
        sys.exit(2)


def _stop(number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt(number)


def run(main: Callable[[], str | None]) -> str | None:
    """answer_of for a program: Ctrl-C, kill, and a reader who has seen enough (| head) are one line
    at most.
    """
    matplotlib.use("Agg")  # scripts only save, so they need no display
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a letter that the terminal does not have
    for number in STOPS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # somebody wants this process to go on
            signal.signal(number, _stop)
    try:
        answer = answer_of(main)
        print(end="", flush=True)
        return answer
    except KeyboardInterrupt as stop:
        number = stop.args[0] if stop.args else signal.SIGINT
        with suppress(OSError):  # of a terminal that was closed
            how = "interrupted" if number == signal.SIGINT else "ended"
            print(f"\n{how}: no file is half-written", file=sys.stderr)
        sys.exit(128 + number)
    except BrokenPipeError:
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # takes what Python still wants to print
        sys.exit(141)
