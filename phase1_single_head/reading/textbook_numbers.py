"""Which numbers that courses print about attention can be right?

The errata: what is printed beside what comes out, each computed here. Two facts about softmax do most of it. The ratio
of two weights is e to the gap between their scores: a gap of 5 is a ratio of 148, however large the scores are. And
softmax keeps the order: a higher score never gets a smaller weight, at any temperature, which finds a wrong example
without any computation.

    python phase1_single_head/reading/textbook_numbers.py
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib
import torch

from phase1_single_head.self_attention import scaled_dot_product_attention
from shared import cli
from shared.toy_language import END, SPECIAL, START, TOY_SENTENCE, VERBS, VOCABULARY, tokenize

HALF_A_DIGIT = 0.005  # two printed decimals can be off by this much and still be rounded correctly

LARGE_SCORES = (100.0, 95.0, 5.0, 3.0)
SAT_SCORES, SAT_WEIGHTS = (0.8, 3.2, 1.5, 0.5, 0.7, 2.1), (0.05, 0.45, 0.15, 0.05, 0.10, 0.20)
IT_SENTENCE = f"{TOY_SENTENCE} because it was comfortable"
IT_WEIGHTS = (0.02, 0.05, 0.03, 0.04, 0.08, 0.65, 0.05, 0.03, 0.03, 0.02)
HEADS = ((64, 4), (512, 8), (128, 8))  # (d_model, H)
PUBLISHED_HEADS = {"BERT base": 12, "GPT-3": 96, "Llama 3.1 405B": 128}  # from their papers: 2019, 2020, 2024
SECONDS = ((20, 5, 10, 10, 15, 10, 15, 10, 10), (40, 10, 15, 20, 25, 20, 30, 15, 20))  # Apple GPU, CPU; rows of a table
FRENCH = ("Le", "chat", "est", "noir")


@dataclass(frozen=True)
class Printed:
    """A statement with numbers as courses print it, and what comes out.

    claim: its id in data/claims.md. right: the numbers, computed. wrong: do they contradict the printed ones?
    """

    claim: str
    printed: str
    right: tuple[float, ...]
    wrong: bool
    remark: str

    @property
    def answer(self) -> str:
        """The numbers and the remark, to be read: "0.993, 0.00669, 0, 0; a gap of 5 is a ratio of 148"."""
        numbers = ", ".join("0" if abs(number) < 1e-9 else f"{number:.3g}" for number in self.right)
        return "; ".join(filter(None, (numbers, self.remark)))


def softmax(scores: Sequence[float], temperature: float = 1.0) -> tuple[float, ...]:
    """Scores over a temperature -> positive weights that sum to 1; attention's temperature is √d_k."""
    powers = [math.exp((score - max(scores)) / temperature) for score in scores]  # the largest power is exp(0) = 1
    return tuple(power / sum(powers) for power in powers)


def slopes(scores: Sequence[float], temperature: float = 1.0) -> tuple[float, ...]:
    """How fast each weight rises with its own score, p (1 - p) / temperature: what a gradient is multiplied by."""
    return tuple(weight * (1 - weight) / temperature for weight in softmax(scores, temperature))


def order_violations(scores: Sequence[float], weights: Sequence[float]) -> list[tuple[int, int]]:
    """Pairs (i, j) in which i has the higher score and j the larger weight; softmax allows none, nor does rounding."""
    positions = range(len(scores))
    return [(i, j) for i in positions for j in positions if scores[i] > scores[j] and weights[i] < weights[j]]


def divisor(d_k: int) -> float:
    """By what attention divides its scores, read off its weights: of keys that score 1 and 0, ln(w_1 / w_0) is left."""
    query, keys = torch.eye(1, d_k, dtype=torch.float64), torch.eye(2, d_k, dtype=torch.float64)
    _, weights = scaled_dot_product_attention(query, keys, keys)
    return 1 / math.log(weights[0, 0] / weights[0, 1])


def gap_without_division() -> float:
    """Largest difference between softmax(Q Kᵀ) V and attention, for 8 words of 64 random numbers."""
    query, key, value = torch.randn(3, 8, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    output, _ = scaled_dot_product_attention(query, key, value)
    return (torch.softmax(query @ key.T, dim=-1) @ value - output).abs().max().item()


def luminance(color: Sequence[float]) -> float:
    """How bright an sRGB colour (red, green, blue, each 0 to 1) looks: 0 for black, 1 for white (IEC 61966-2-1)."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in color[:3]]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def objects(words: Sequence[str]) -> list[str]:
    """What follows a verb without a preposition between: a place follows one, and is no object."""
    prepositions = {preposition for _, preposition, _ in VERBS.values()}
    (verb,) = (i for i, word in enumerate(words) if word in VERBS)
    return [] if words[verb + 1] in prepositions else [words[-1]]


def row(claim: str, text: str, printed: Sequence[float], right: Sequence[float], remark: str) -> Printed:
    """A row of numbers, printed with two decimals: wrong if rounding cannot explain the difference."""
    wrong = any(abs(a - b) > HALF_A_DIGIT for a, b in zip(right, printed, strict=True))
    return Printed(claim, f"{text} = [{', '.join(f'{number:.2f}' for number in printed)}]", tuple(right), wrong, remark)


def equal(claim: str, text: str, printed: Sequence[float], right: Sequence[float], remark: str) -> Printed:
    """Numbers that rounding does not touch: wrong if any differs."""
    wrong = any(abs(a - b) > 1e-9 for a, b in zip(right, printed, strict=True))
    return Printed(claim, text, tuple(right), wrong, remark)


def errata() -> list[Printed]:
    """Every printed number of the 182 claims that needs no experiment, wrong or right, in the order of the ids."""
    small_rise, large_rise = slopes(LARGE_SCORES, 8)[2], slopes(LARGE_SCORES, 8)[0]
    words = tokenize(TOY_SENTENCE)
    colours = [luminance(matplotlib.colormaps["YlOrRd"](end)) for end in (0.0, 1.0)]
    minutes = [sum(seconds) / 60 for seconds in SECONDS]
    violations = order_violations(SAT_SCORES, SAT_WEIGHTS)
    off = gap_without_division()
    vocabulary = len(VOCABULARY) - len(SPECIAL)
    return [
        row("C001", "softmax([2, 0, 3])", (0.24, 0.03, 0.73), softmax((2, 0, 3)), "a gap of 1 is a ratio of 2.72"),
        row("C003", "softmax([2, -∞, 3])", (0.27, 0, 0.73), softmax((2, -math.inf, 3)), "hidden is exactly 0"),
        equal("C018", "with d_k = 64 scores are divided by 8", (8,), (divisor(64),), "read off the weights"),
        row("C019", "softmax([100, 95, 5, 3])", (0.88, 0.12, 0, 0), softmax(LARGE_SCORES),
            "a gap of 5 is a ratio of 148"),
        row("C020", "the same scores divided by √64, softmax", (0.55, 0.40, 0.02, 0.01), softmax(LARGE_SCORES, 8),
            "the printed row sums to 0.98"),
        Printed("C021", "the division brings gradient to the small scores 5 and 3", (small_rise, large_rise),
                small_rise < large_rise / 100, "rises of the weights of 5 and of 100 with their scores"),
        Printed("C022", f"scores {SAT_SCORES} give weights {SAT_WEIGHTS}", softmax(SAT_SCORES), bool(violations),
                "the score 0.7 gets more than 0.8, which no softmax at any temperature does"),
        Printed("C056", "linear attention replaces softmax(Q Kᵀ) V", (off,), off > HALF_A_DIGIT,
                "difference of an output from softmax(Q Kᵀ / √d_k) V: the division is left out"),
        Printed("C080", "8 heads (small models) to 64 (large ones)", tuple(PUBLISHED_HEADS.values()),
                max(PUBLISHED_HEADS.values()) > 64, f"{', '.join(PUBLISHED_HEADS)}; our toy model has 4"),
        Printed("C124", "all phases: 5 to 7 minutes on an Apple GPU, 10 to 15 on a CPU", tuple(minutes),
                minutes[0] < 5 or minutes[1] < 10, "minutes that the parts of the same table add up to"),
        Printed("C138", "brighter colours are higher weights (YlOrRd)", tuple(colours), colours[1] < colours[0],
                "luminance of the weights 0 and 1: darker is more"),
        Printed("C164", f'in "{TOY_SENTENCE}" "mat" is the object', (len(objects(words)),), "mat" not in objects(words),
                '"on the mat" is a place: objects of "sat"'),
        Printed("C165", f'in "{TOY_SENTENCE}" "it" attends to "cat" or "mat"', (words.count("it"),),
                "it" not in words, 'times "it" in the sentence'),
        equal("C166", f'weights of "it" in "{IT_SENTENCE}" sum to 1', (1,), (sum(IT_WEIGHTS),),
              "that it is the mat is a guess"),
        equal("C167", f'"{" ".join(FRENCH)}" takes 7 positions', (7,), (len((START, *FRENCH, END)),),
              "four words, a start and an end"),
        Printed("C168", "a vocabulary of about 100 words", (vocabulary,), not 90 <= vocabulary <= 110, "here"),
        equal("C169", f'"{TOY_SENTENCE}" has 6 tokens, 5 different', (6, 5), (len(words), len(set(words))), ""),
        equal("C177", "heads are 64 / 4 = 16, 512 / 8 = 64, 128 / 8 = 16 wide", (16, 64, 16),
              [d_model / heads for d_model, heads in HEADS], ""),
    ]  # fmt: skip


@cli.script
def main(argv: list[str] | None = None) -> str:
    cli.parse(cli.parser(__doc__), argv)
    found = errata()
    print()
    for entry in found:
        print(
            f"{'wrong' if entry.wrong else 'right'}  {entry.claim}  {entry.printed}\n{'':13}comes out: {entry.answer}"
        )
    good, (top, second, *_) = sum(not entry.wrong for entry in found), softmax(LARGE_SCORES)
    return f"{good} of {len(found)}; softmax([100, 95, 5, 3]) begins {top:.3f}, {second:.3f}, not 0.88, 0.12"


if __name__ == "__main__":
    cli.run(main)
