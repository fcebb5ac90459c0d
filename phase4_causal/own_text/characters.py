"""How does a text become tokens, and what does counting alone know about it?

Each character is a token. The first nine tenths of a text are for training, the rest is held out.
The simplest model of language counts: how often does "e" come after "th"? Counts of pairs and of
triples of characters are what a network has to beat (Shannon 1948, section 3).
"""

import argparse
import platform
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from shared import paths

SHORTEST, LONGEST = 20_000, 5_000_000  # characters of a text; of a longer one the first are taken
MOST_DIFFERENT = 200  # rarer characters share one token: tables of triples have V³ numbers
RARE = "\ufffd"  # stands for them
PRIOR = 5  # how often everything has been seen before anything is counted


@dataclass(frozen=True)
class CharacterText:
    """A text as tokens: alphabet[token] is its character."""

    name: str
    alphabet: str
    training: Tensor  # (9 T / 10,)
    held_out: Tensor  # (T / 10,)

    def decode(self, tokens: Tensor) -> str:
        """tokens (T,) -> their characters."""
        return "".join(self.alphabet[token] for token in tokens.tolist())


def python_reference() -> str:
    """What help() prints on each topic of the language. Every version of Python has its own."""
    from pydoc_data.topics import topics  # half a megabyte: only where it is wanted

    return "\n\n".join(topics[name] for name in sorted(topics))


def load_characters(path: Path | None = None) -> CharacterText:
    """A file in UTF-8 as tokens, or Python's own reference.

    Raises ValueError, in one line, for a file that is missing, empty, binary or too short.
    """
    if path is None:
        version = ".".join(platform.python_version_tuple()[:2])
        return as_tokens(python_reference(), f"the reference of Python {version}")
    try:
        content = paths.text_of(path, LONGEST)
    except OSError as error:
        raise ValueError(f"--text {path} cannot be read: {error.strerror}") from None
    if len(content) < SHORTEST:
        rule = f"--text needs {SHORTEST:,} characters or more, some ten pages"
        raise ValueError(f"{rule}: {path} has {len(content):,}")
    return as_tokens(content, path.name)


def as_tokens(content: str, name: str) -> CharacterText:
    """The text as tokens, in two parts."""
    common = [character for character, _ in Counter(content).most_common(MOST_DIFFERENT - 1)]
    alphabet = "".join(sorted(common)) + RARE
    token_of = {character: token for token, character in enumerate(alphabet)}
    rare = token_of[RARE]
    tokens = torch.tensor([token_of.get(character, rare) for character in content])
    end = len(tokens) * 9 // 10
    return CharacterText(name, alphabet, tokens[:end], tokens[end:])


def counted_table(tokens: Tensor, size: int, context: int) -> Tensor:
    """How likely each character is after the `context` before it -> (size,) * (context + 1).

    Smoothed: before anything is counted, it is as if PRIOR characters had been seen behind each
    context, spread as behind the shorter context that leaves out the first character (MacKay & Peto
    1995). With no context left, all characters are alike.
    """
    table = torch.tensor(1 / size)
    for length in range(1, context + 2):  # characters alone, pairs, triples ...
        counts = counts_of_runs(tokens, size, length)
        total = counts.sum(dim=-1, keepdim=True)
        table = (counts + PRIOR * table) / (total + PRIOR)
    return table


def counts_of_runs(tokens: Tensor, size: int, length: int) -> Tensor:
    """How often each run of `length` characters stands in the text -> (size,) * length."""
    number = len(tokens) - length + 1
    code = torch.zeros(number, dtype=torch.long)  # a number for each run
    for i in range(length):
        code = size * code + tokens[i : i + number]
    return torch.bincount(code, minlength=size**length).view([size] * length)


def counted_loss(table: Tensor, pieces: Tensor) -> float:
    """Mean loss in nats of a counted table on pieces (N, T), behind the first characters."""
    context = table.dim() - 1
    number = pieces.size(1) - context
    columns = [pieces[:, i : i + number] for i in range(context + 1)]
    return -table[tuple(columns)].log().mean().item()


# ---- what scripts on a text have in common


def add_text_option(parser: argparse.ArgumentParser) -> None:
    """Adds the option --text."""
    help_text = "a text of your own in UTF-8 (default: Python's own reference)"
    parser.add_argument("--text", metavar="FILE", type=Path, help=help_text)


def is_reference(options: argparse.Namespace) -> bool:
    """Whether the options ask for the text that the findings are about."""
    return options.text is None
