"""Which numbers that courses print about attention can be right?

Nothing here needs a model, only softmax and two facts about it. The ratio of two weights is e to the gap between their
scores: a gap of 5 is a ratio of 148, however large the scores are. And softmax keeps the order: a higher score never
gets a smaller weight, at any temperature. The second fact finds a wrong example without any computation.

    python phase1_single_head/reading/textbook_numbers.py
"""

import math
from collections.abc import Sequence

import matplotlib
import torch

from phase1_single_head.self_attention import scaled_dot_product_attention
from shared import cli
from shared.evidence import findings
from shared.evidence.claims import ERRATUM, FAILS, IDENTITY, Claim, measures
from shared.toy_language import END, SPECIAL, START, TOY_SENTENCE, VERBS, VOCABULARY, tokenize
from shared.visualization_utils import WEIGHT_MAP

HALF_A_DIGIT = 0.005  # two printed decimals can be off by this much and still be rounded correctly

LARGE_SCORES = (100.0, 95.0, 5.0, 3.0)
PRINTED_RAW, PRINTED_SCALED = (0.88, 0.12, 0.0, 0.0), (0.55, 0.40, 0.02, 0.01)
SAT_SCORES, SAT_WEIGHTS = (0.8, 3.2, 1.5, 0.5, 0.7, 2.1), (0.05, 0.45, 0.15, 0.05, 0.10, 0.20)
IT_SENTENCE = f"{TOY_SENTENCE} because it was comfortable"
IT_WEIGHTS = (0.02, 0.05, 0.03, 0.04, 0.08, 0.65, 0.05, 0.03, 0.02, 0.02)


def softmax(scores: Sequence[float], temperature: float = 1.0) -> list[float]:
    """Scores over a temperature -> positive weights that sum to 1; attention's temperature is √d_k."""
    powers = [math.exp((score - max(scores)) / temperature) for score in scores]  # the largest power is exp(0) = 1
    return [power / sum(powers) for power in powers]


def slopes(scores: Sequence[float], temperature: float = 1.0) -> list[float]:
    """How fast each weight rises with its own score, p (1 - p) / temperature: what a gradient is multiplied by."""
    return [weight * (1 - weight) / temperature for weight in softmax(scores, temperature)]


def largest_gap(computed: Sequence[float], printed: Sequence[float]) -> float:
    return max(abs(a - b) for a, b in zip(computed, printed, strict=True))


def order_violations(scores: Sequence[float], weights: Sequence[float]) -> list[tuple[int, int]]:
    """Pairs (i, j) in which i has the higher score and j the larger weight; softmax allows none, nor does rounding."""
    positions = range(len(scores))
    return [(i, j) for i in positions for j in positions if scores[i] > scores[j] and weights[i] < weights[j]]


def best_temperature(scores: Sequence[float], weights: Sequence[float]) -> tuple[float, float]:
    """The temperature from 0.05 to 20 whose softmax comes closest, and the largest error that it leaves."""
    errors = {step / 100: largest_gap(softmax(scores, step / 100), weights) for step in range(5, 2001)}
    best = min(errors, key=lambda temperature: errors[temperature])
    return best, errors[best]


def divisor(d_k: int) -> float:
    """By what attention divides its scores, read off its weights: of keys that score 1 and 0, ln(w_1 / w_0) is left."""
    query, keys = torch.eye(1, d_k, dtype=torch.float64), torch.eye(2, d_k, dtype=torch.float64)
    _, weights = scaled_dot_product_attention(query, keys, keys)
    return 1 / math.log(weights[0, 0] / weights[0, 1])


def luminance(color: Sequence[float]) -> float:
    """How bright an sRGB colour (red, green, blue, each 0 to 1) looks: 0 for black, 1 for white (IEC 61966-2-1)."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in color[:3]]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@measures(
    Claim(
        id="C018",
        text="With d_k = 64 the scores are divided by 8",
        kind=IDENTITY,
        rule="8, to 1e-9",
        holds=lambda n: abs(n["divisor, read off the weights"] - 8) < 1e-9,
        unit="raw score per scaled score, scaled_dot_product_attention",
        shows=("divisor*",),
    ),
    Claim(
        id="C019",
        text="softmax([100, 95, 5, 3]) = [0.88, 0.12, 0, 0]",
        kind=ERRATUM,
        rule=f"all agree to {HALF_A_DIGIT}, half of the last printed digit",
        holds=lambda n: largest_gap(n["softmax"], n["printed"]) < HALF_A_DIGIT,
        unit="weights",
        shows=("softmax", "printed"),
    ),
    Claim(
        id="C020",
        text="Divided by √64, the same scores give [0.55, 0.40, 0.02, 0.01]",
        kind=ERRATUM,
        rule=f"all agree to {HALF_A_DIGIT}, half of the last printed digit",
        holds=lambda n: largest_gap(n["softmax, divided"], n["printed, divided"]) < HALF_A_DIGIT,
        unit="weights",
        shows=("softmax, divided", "printed, divided", "sum of the printed row"),
    ),
    Claim(
        id="C021",
        text="Dividing by √64 lets gradients reach the small scores 5 and 3 of that row",
        kind=ERRATUM,
        rule="once divided, the small scores have at least a hundredth of the rise of the large ones",
        holds=lambda n: min(n["rises, divided"][2:]) >= max(n["rises, divided"][:2]) / 100,
        unit="rise of a weight with its own raw score",
        control="the two large scores do gain by the division",
        shows=("rises*",),
    ),
)
def large_scores() -> dict[str, float | list[float]]:
    """The row [100, 95, 5, 3] before and after the division by √64.

    Dividing helps the two large scores, which come within reach of each other; the small ones stay more than 11 behind.
    """
    return {
        "divisor, read off the weights": divisor(64),
        "softmax": softmax(LARGE_SCORES),
        "printed": list(PRINTED_RAW),
        "gap of scores that 0.88 and 0.12 need": math.log(PRINTED_RAW[0] / PRINTED_RAW[1]),
        "rises": slopes(LARGE_SCORES),
        "softmax, divided": softmax(LARGE_SCORES, 8),
        "printed, divided": list(PRINTED_SCALED),
        "sum of the printed row": round(sum(PRINTED_SCALED), 4),
        "rises, divided": slopes(LARGE_SCORES, 8),
    }


@measures(
    Claim(
        id="C022",
        text='The scores 0.8, 3.2, 1.5, 0.5, 0.7, 2.1 give "sat" the weights .05, .45, .15, .05, .10, .20',
        kind=ERRATUM,
        rule=f"no pair out of order, and some temperature leaves an error below {HALF_A_DIGIT}",
        holds=lambda n: n["pairs out of order"] == 0 and n["largest error left"] < HALF_A_DIGIT,
        unit="pairs; divisor of the scores; weight",
        control="softmax at the best temperature has no pair out of order",
    )
)
def impossible_row() -> dict[str, float | list[float]]:
    """The printed weights of "sat": what no softmax at any temperature gives."""
    best, error = best_temperature(SAT_SCORES, SAT_WEIGHTS)
    return {
        "pairs out of order": len(order_violations(SAT_SCORES, SAT_WEIGHTS)),
        "best temperature": best,
        "largest error left": error,
        "softmax at that temperature": softmax(SAT_SCORES, best),
    }


def exercise_scores(keys: Sequence[Sequence[float]]) -> list[float]:
    """Scores of the query (1, 0, 0) with some keys of three numbers, divided by √3."""
    query = (1.0, 0.0, 0.0)
    return [sum(q * k for q, k in zip(query, key, strict=True)) / math.sqrt(3) for key in keys]


ALIGNED, OTHERS, LONGER = "same direction, length 1", "other keys of length 1", "cosine 0.6, length 3"


@measures(
    Claim(
        id="C023",
        text="The highest score belongs to the key that is best aligned with the query",
        kind=IDENTITY,
        rule="the key in the query's direction scores highest, whatever the length of the others",
        holds=lambda n: n[ALIGNED] > max(n[OTHERS], n[LONGER]),
        only_if=lambda n: n[ALIGNED] > n[OTHERS],
        condition="the keys have the same length, as in the exercise",
        unit="q · k / √3 for the query (1, 0, 0)",
    )
)
def exercise() -> dict[str, float | list[float]]:
    """The query (1, 0, 0), the keys (1, 0, 0), (0, 1, 0), (0, 0, 1), and a longer key in another direction."""
    scores = exercise_scores([(1, 0, 0), (0, 1, 0), (0, 0, 1)])
    (longer,) = exercise_scores([(1.8, 2.4, 0.0)])
    return {ALIGNED: scores[0], OTHERS: scores[1], LONGER: longer, "weights in the exercise": softmax(scores)}


@measures(
    Claim(
        id="C138",
        text="In the heatmap, brighter colours are higher weights",
        kind=ERRATUM,
        rule="on both maps that the courses use, YlOrRd and Blues, weight 1 is brighter than weight 0",
        holds=lambda n: all(n[name][1] > n[name][0] for name in ("YlOrRd", "Blues")),
        unit="luminance at weight 0 and at weight 1; 0 black to 1 white",
        control="viridis, matplotlib's default, does run from dark to bright",
    )
)
def ends_of_colour_maps() -> dict[str, list[float]]:
    """Luminance at weight 0 and weight 1 of the maps that courses draw with, of ours, and of matplotlib's default."""
    maps = {name: matplotlib.colormaps[name] for name in ("YlOrRd", "Blues", "viridis")} | {"here": WEIGHT_MAP}
    return {name: [luminance(colors(0.0)), luminance(colors(1.0))] for name, colors in maps.items()}


def between(words: list[str], verb: str, noun: str) -> int:
    """How many prepositions of the language stand between a verb and a noun."""
    start, end = sorted((words.index(verb), words.index(noun)))
    prepositions = {preposition for _, preposition, _ in VERBS.values()}
    return sum(word in prepositions for word in words[start + 1 : end])


FRENCH = ["Le", "chat", "est", "noir"]
HEADS = {(64, 4): 16, (512, 8): 64, (128, 8): 16}  # (d_model, H) -> printed width


@measures(
    Claim(
        id="C166",
        text=f'The weights printed for "it" in "{IT_SENTENCE}" sum to 1',
        kind=IDENTITY,
        rule="off by no more than rounding can hide",
        holds=lambda n: abs(n["sum of the weights of it"] - 1) <= n["rounding can hide"],
        unit="weight, ten numbers of two decimals",
        shows=("sum*", "rounding*"),
    ),
    Claim(
        id="C164",
        text=f'In "{TOY_SENTENCE}" "mat" is the object of "sat"',
        kind=ERRATUM,
        rule="none: an object follows its verb directly, a place follows a preposition",
        holds=lambda n: n["prepositions from sat to mat"] == 0,
        unit='prepositions between "sat" and the noun',
        control="cat, the subject",
        shows=("prepositions*",),
    ),
    Claim(
        id="C165",
        text=f'In "{TOY_SENTENCE}" attention finds out what "it" stands for',
        kind=ERRATUM,
        rule='the sentence contains "it"',
        holds=lambda n: n["it in this sentence"] > 0,
        unit='times the word "it"',
        shows=("it in*",),
    ),
    Claim(
        id="C167",
        text=f'"{" ".join(FRENCH)}" takes 7 positions: four words and the special tokens',
        kind=ERRATUM,
        rule="7 with <start> and <end>",
        holds=lambda n: n["French positions"] == 7,
        unit="words; positions with <start> and <end>",
        shows=("French*",),
    ),
    Claim(
        id="C168",
        text="The toy language has a vocabulary of about 100 words",
        kind=IDENTITY,
        rule="90 to 110",
        holds=lambda n: 90 <= n["words of the language"] <= 110,
        unit="different words",
        shows=("words of the language",),
    ),
    Claim(
        id="C169",
        text=f'"{TOY_SENTENCE}" has 6 tokens, one word twice',
        kind=IDENTITY,
        rule="6 tokens, 5 different words",
        holds=lambda n: (n["tokens"], n["different words"]) == (6, 5),
        unit="count",
        shows=("tokens", "different words"),
    ),
    Claim(
        id="C177",
        text="Heads are d_model / H wide: 64 / 4 = 16, 512 / 8 = 64, 128 / 8 = 16",
        kind=IDENTITY,
        rule="16, 64, 16",
        holds=lambda n: n["widths of heads"] == list(HEADS.values()),
        unit="numbers per head",
        shows=("widths*",),
    ),
)
def counted() -> dict[str, float | list[float]]:
    """What only has to be counted."""
    words = tokenize(TOY_SENTENCE)
    return {
        "sum of the weights of it": round(sum(IT_WEIGHTS), 4),
        "rounding can hide": len(IT_WEIGHTS) * HALF_A_DIGIT,
        "prepositions from sat to mat": between(words, "sat", "mat"),
        "prepositions from cat to sat": between(words, "sat", "cat"),
        "it in this sentence": words.count("it"),
        "it in the longer sentence": IT_SENTENCE.split().count("it"),
        "French words": len(FRENCH),
        "French positions": len([START, *FRENCH, END]),
        "words of the language": len(VOCABULARY) - len(SPECIAL),
        "tokens": len(words),
        "different words": len(set(words)),
        "widths of heads": [d_model / heads for d_model, heads in HEADS],
    }


def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    measured = large_scores(), impossible_row(), exercise(), ends_of_colour_maps(), counted()
    findings.record(options, *measured)
    wrong = [claim.id for numbers in measured for claim in numbers.claims if claim.verdict(numbers) == FAILS]
    top, second, *_ = measured[0]["softmax"]
    return f"{len(wrong)} printed statements are wrong: softmax([100, 95, 5, 3]) begins {top:.3f}, {second:.3f}"


if __name__ == "__main__":
    cli.run(main)
