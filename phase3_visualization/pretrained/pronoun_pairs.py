"""Forty pairs of sentences in which one word decides what "it" means (Winograd schemas, Levesque et al. 2012)."""

import re
from dataclasses import dataclass

from torch import Tensor

from phase3_visualization.pretrained.language_model import Reading
from shared import paths


@dataclass(frozen=True)
class Pair:
    """A sentence with a gap, its two nouns, and for each noun the word in the gap that makes "it" mean it."""

    frame: str
    nouns: tuple[str, str]
    words: tuple[str, str]

    def sentence(self, member: int) -> str:
        """Member 0 is about the first noun, member 1 about the second."""
        return self.frame.replace("_", self.words[member])


# The famous one first, and 39 of our own: "The cat ate the fish because it was _ | cat fish | hungry tasty"
LINES = [line.split(" | ") for line in paths.PRONOUN_PAIRS.read_text(encoding="utf-8").splitlines()]
PAIRS = tuple(Pair(frame, tuple(nouns.split()), tuple(words.split())) for frame, nouns, words in LINES)
FAMOUS = PAIRS[0]


def sentences() -> list[str]:
    """All of them, the members of a pair side by side."""
    return [pair.sentence(member) for pair in PAIRS for member in (0, 1)]


def tokens_of(reading: Reading, index: int, text: str, word: str) -> Tensor:
    """Which tokens of text `index` belong to a word, bool (T,): a rare word is several tokens."""
    found = [match.span() for match in re.finditer(rf"\b{word}\b", text)]
    if len(found) != 1:
        raise ValueError(f'"{word}" must stand exactly once in "{text}": found {len(found)} times; reword the pair')
    start, end = found[0]
    spans = reading.spans[index]  # (T, 2)
    return (spans[:, 0] < end) & (spans[:, 1] > start) & ~reading.special[index]
