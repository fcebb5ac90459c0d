"""What options do all scripts share, and how does a script end that cannot go on?

A wrong option, an unknown word, a folder that cannot be written: one line says what to do, and the
exit code is 2. Ctrl-C ends in one line, too, with the exit code 130. No file is left half-written
(shared.paths.whole_file).

    ./run_all.sh help all     lists the common options
"""

import argparse
import difflib
import io
import os
import pkgutil
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import matplotlib
import torch

from shared import paths
from shared.toy_language import all_words, read_sentences, tokenize
from shared.toy_model import MakeAttention, default_dtype, dtype_on

Main = TypeVar("Main", bound=Callable)

FORMATS = ("png", "svg")
# These options leave every number of a run as it is.
SAME_NUMBERS = ("seeds", "retrain", "numbers", "output_dir", "pictures", "format", "if_used")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Returns ": did you mean WORD?" with the word most like it, or "" if none is."""
    near = difflib.get_close_matches(word, known, n=1)
    return f": did you mean {near[0]}?" if near else ""


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that says what is wrong in one line."""

    def parse_args(self, *args: Any) -> argparse.Namespace:
        """Returns the options; an unknown one is refused beside the one that is most like it."""
        options, unknown = self.parse_known_args(*args)
        if unknown:
            word, _, _ = unknown[0].partition("=")
            self.error(f"no option {word}{did_you_mean(word, self._option_string_actions)}")
        return options

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def integer_from(least: int, most: int) -> Callable[[str], int]:
    """Returns the type of an option. More than the most would take days, or all the memory."""

    def integer(text: str) -> int:
        if not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"must lie between {least} and {most}: got {text}")
        return int(text)

    return integer


def parser(
    description: str | None, uses: str | None = None, *, formats: Sequence[str] = FORMATS
) -> argparse.ArgumentParser:
    """Returns a parser with the common options; description is the script's own docstring.

    formats: those of the pictures, for --format.
    uses: those of them that the script uses, as "--seed --quick"; None stands for all. Help leaves
    the others out, and parse refuses them, but for somebody who runs many scripts with the same
    options: --if-used.
    """
    result = Parser(
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    unused = []
    result.set_defaults(unused=unused)

    def add(option: str, **how: Any) -> None:
        action = result.add_argument(option, **how)
        if uses is not None and option not in uses.split():
            action.help = argparse.SUPPRESS
            unused.append(action)

    result.add_argument("--if-used", action="store_true", help=argparse.SUPPRESS)
    add("--sentence", metavar="TEXT", help="look at this one (default: the first of --sentences)")
    add(
        "--sentences",
        metavar="FILE",
        default=str(paths.TOY_SEQUENCES),
        help="file of sentences, one a line",
    )
    result.add_argument(
        "--words", action="version", version=all_words(), help="print all words of the toy language"
    )
    add(
        "--seed",
        type=integer_from(0, 2**31),
        default=0,
        help="decides initial weights and batches (default: 0)",
    )
    add(
        "--seeds",
        type=integer_from(1, 100),
        default=1,
        metavar="N",
        help="measure with N seeds, counted up from --seed (default: 1)",
    )
    add(
        "--device",
        choices=("cpu", "cuda", "mps", "auto"),
        default="cpu",
        help="where to compute (default: cpu; on mps, in float32, numbers differ)",
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
        type=Path,
        default=paths.ROOT,
        metavar="DIR",
        help="write pictures and data under DIR",
    )
    add("--no-pictures", dest="pictures", action="store_false", help="measure only")
    add(
        "--format",
        choices=formats,
        default="png",
        help="of the pictures (default: png)",
    )
    add(
        "--d-model",
        type=integer_from(1, 1024),
        metavar="D",
        help="width of the toy transformer (default: 64)",
    )
    add(
        "--heads",
        type=integer_from(1, 1024),
        metavar="H",
        help="heads in each layer (default: 4; the model of phase 1 always has one)",
    )
    add(
        "--layers",
        type=integer_from(1, 24),
        metavar="L",
        help="layers (default: 2; in phase 1: one)",
    )
    return result


def parse(result: argparse.ArgumentParser, argv: list[str] | None = None) -> argparse.Namespace:
    """Parse and check the options, and set up seeds, threads and device by them.

    Adds words (the sentence to look at, as a list), all_sentences (of the file) and otherwise (the
    options by which the run has other numbers than one without options: ["--seed"]).
    """
    options = result.parse_args(argv)
    leave_unused(result, options)
    otherwise = []
    for name, value in vars(options).items():
        if name not in SAME_NUMBERS and value != result.get_default(name):
            otherwise.append(f"--{name.replace('_', '-')}")
    options.otherwise = otherwise
    try:
        options.all_sentences = read_sentences(options.sentences)
        sentence = options.all_sentences[0] if options.sentence is None else options.sentence
        options.words = tokenize(sentence)
        d_model, heads = options.d_model or 64, options.heads or 4
        if d_model % heads:
            raise ValueError(f"--d-model {d_model} is not divisible by --heads {heads}")
        options.device = _device(options.device)
        paths.check_writable(options.output_dir)
    except ValueError as error:
        result.error(str(error))
    except OSError as error:
        result.error(f"cannot use {error.filename}: {error.strerror}")
    torch.set_default_dtype(dtype_on(options.device))  # before anything is drawn
    if options.device == "mps":
        print("mps has no float64: your numbers will differ from ours")
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)  # for models this small a second thread only costs
    return options


def leave_unused(result: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Refuse what the script does not use or, with --if-used, set it back to its default."""
    for action in options.unused:
        if getattr(options, action.dest) != action.default and not options.if_used:
            result.error(f"{action.option_strings[0]}: this script does not use it")
        setattr(options, action.dest, action.default)


def attention_class(name: str) -> MakeAttention:
    """Returns the class that --attention names: "phase2_multi_head.alibi_attention:AlibiAttention".

    It is made and called once, as MakeAttention says: it must give an output (B, T, d_model) and
    weights (B, num_heads, T, T). Raises argparse.ArgumentTypeError for what is no attention.
    """
    d_model, num_heads = 64, 4
    wanted = [(2, 3, d_model), (2, num_heads, 3, 3)]
    try:
        made = pkgutil.resolve_name(name)
        output, weights = made(d_model, num_heads)(torch.zeros(2, 3, d_model), mask=None)
        shapes = [tuple(output.shape), tuple(weights.shape)]
        if shapes != wanted:
            raise ValueError(f"the shapes must be {wanted}: got {shapes}")
    except Exception as error:  # a class of the reader's own may fail in any way
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"line {last.lineno} of {last.filename}"
        rule = (
            "MODULE:CLASS, please, and CLASS(d_model, num_heads)(x, mask=mask) must give "
            "(output, weights)"
        )
        raise argparse.ArgumentTypeError(f"{rule}: {where}: {error!r}") from None
    return made


def _device(name: str) -> str:
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    best = accelerator.type if accelerator else "cpu"
    if name == "auto":
        return best
    if name not in ("cpu", best):
        way_out = "use --device cpu or --device auto"
        raise ValueError(f"--device {name} is not available here: {way_out}")
    return name


def seeds(options: argparse.Namespace) -> range:
    """Returns the seeds to measure with."""
    return range(options.seed, options.seed + options.seeds)


def script(main: Main) -> Main:
    """Decorates a script's main(): float64, and the course's look. A notebook keeps its own."""
    # Whoever draws has imported it. Importing it here would cost everybody else a second.
    look = sys.modules.get("shared.visualization_utils")
    themed = look.theme()(main) if look else main
    return default_dtype()(themed)


def answer_of(main: Callable[[], str | None]) -> str | None:
    """Run a script's main(); print and return its answer, if it has one. A full disk is one line.

    The answer is what main() returns: a sentence that answers the question of its docstring.
    """
    try:
        answer = main()
        if answer:
            print(f"\n{answer}")
        return answer
    except BrokenPipeError:
        raise  # of the screen, not of a file
    except OSError as error:
        print(f"{error.filename or 'output'}: {error.strerror or error}", file=sys.stderr)
        sys.exit(2)


def run(main: Callable[[], str | None]) -> str | None:
    """Run main() as a program. Where somebody stops it (also with | head), it ends in one line."""
    matplotlib.use("Agg")  # scripts only save, so they need no display
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a letter that the terminal does not have
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # kill is heard as Ctrl-C is
    try:
        answer = answer_of(main)
        print(end="", flush=True)
        return answer
    except KeyboardInterrupt:
        print("\ninterrupted: no file is half-written", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())  # takes what Python still wants to print
        sys.exit(141)
