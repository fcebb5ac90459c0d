"""Numbers that courses print about attention, worked out again in front of you: which of them can be right?

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
from shared.evidence.findings import Finding
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


def show_row(name: str, values: Sequence[float]) -> None:
    print(f"   {name:36} " + " ".join(f"{value:9.2g}" for value in values))


def show_large_scores() -> tuple[list[float], list[float]]:
    """The row [100, 95, 5, 3] before and after the division by √64 -> its weights, both times."""
    print("\n1. Four large scores, and the same scores divided by √64 = 8")
    raw, scaled = softmax(LARGE_SCORES), softmax(LARGE_SCORES, 8)
    scores = torch.tensor(LARGE_SCORES, dtype=torch.float64, requires_grad=True)
    for name, weights, printed, t in (("raw", raw, PRINTED_RAW, 1), ("divided", scaled, PRINTED_SCALED, 8)):
        by_torch = torch.softmax(scores / t, dim=0)
        rises = [torch.autograd.grad(by_torch[i], scores, retain_graph=True)[0][i].item() for i in range(len(scores))]
        assert largest_gap(by_torch.tolist(), weights) < 1e-12 and largest_gap(rises, slopes(LARGE_SCORES, t)) < 1e-12
        show_row(f"{name}: printed weights", printed)
        show_row(f"{name}: computed weights", weights)
        show_row(f"{name}: rise with the own score", rises)
    print(
        f"   The printed {PRINTED_RAW[0]} and {PRINTED_RAW[1]} need a gap of ln({PRINTED_RAW[0]} / {PRINTED_RAW[1]}) ="
        f" {math.log(PRINTED_RAW[0] / PRINTED_RAW[1]):.2f} between the scores; it is 5. Dividing helps the two large\n"
        "   scores, which come within reach of each other; the small ones stay more than 11 behind."
    )
    return raw, scaled


def show_impossible_row() -> tuple[list[tuple[int, int]], tuple[float, float]]:
    """The printed weights of "sat" -> pairs out of order, best temperature and what error it leaves."""
    print('\n2. Weights of "sat" that no softmax gives')
    words = tokenize(TOY_SENTENCE)
    violations, fit = order_violations(SAT_SCORES, SAT_WEIGHTS), best_temperature(SAT_SCORES, SAT_WEIGHTS)
    print("   " + " " * 37 + " ".join(f"{word:>9}" for word in words))
    show_row("scores", SAT_SCORES)
    show_row("printed weights", SAT_WEIGHTS)
    for temperature in (1.0, fit[0], math.sqrt(64)):
        show_row(f"softmax(scores / {temperature:g})", softmax(SAT_SCORES, temperature))
    for i, j in violations:
        print(
            f'   "{words[i]}" ({i}) scores {SAT_SCORES[i]} and gets {SAT_WEIGHTS[i]}; "{words[j]}" ({j}) scores less, '
            f"{SAT_SCORES[j]}, and gets more, {SAT_WEIGHTS[j]}"
        )
    return violations, fit


def exercise_scores(keys: Sequence[Sequence[float]]) -> list[float]:
    """Scores of the query (1, 0, 0) with some keys of three numbers, divided by √3."""
    query = (1.0, 0.0, 0.0)
    return [sum(q * k for q, k in zip(query, key, strict=True)) / math.sqrt(3) for key in keys]


def show_exercise() -> dict[str, float]:
    print("\n3. The query (1, 0, 0) and the keys (1, 0, 0), (0, 1, 0), (0, 0, 1)")
    scores = exercise_scores(torch.eye(3).tolist())
    show_row("scores / √3", scores)
    show_row("weights", softmax(scores))
    longer = exercise_scores([(1.8, 2.4, 0.0)])[0]
    print(f"   A key in another direction (cosine 0.6) but three times as long scores more: {longer:.2f}")
    return {"same direction, length 1": scores[0], "other keys of length 1": scores[1], "cosine 0.6, length 3": longer}


def show_colors() -> dict[str, list[float]]:
    """Luminance at weight 0 and weight 1 of the maps that courses draw with, of ours, and of matplotlib's default."""
    print("\n4. Is brighter more? Luminance, 0 black to 1 white")
    maps = {name: matplotlib.colormaps[name] for name in ("YlOrRd", "Blues", "viridis")} | {"here": WEIGHT_MAP}
    ends = {name: [luminance(colors(0.0)), luminance(colors(1.0))] for name, colors in maps.items()}
    for name, (low, high) in ends.items():
        print(f"   {name:7} at 0: {low:.2f}, at 1: {high:.2f}; {'darker' if high < low else 'brighter'} is more")
    return ends


def finding(
    id: str, claim: str, measured: dict[str, float | list[float]], unit: str, rule: str, holds: bool, control: str = ""
) -> Finding:
    return Finding(id, claim, "course notes", measured, unit, rule, findings.verdict(holds), control)


def between(words: list[str], verb: str, noun: str) -> int:
    """How many prepositions of the language stand between a verb and a noun."""
    start, end = sorted((words.index(verb), words.index(noun)))
    prepositions = {preposition for _, preposition, _ in VERBS.values()}
    return sum(word in prepositions for word in words[start + 1 : end])


def counted() -> list[Finding]:
    """What only has to be counted."""
    words, french = tokenize(TOY_SENTENCE), ["Le", "chat", "est", "noir"]
    row_sum, hidden = round(sum(IT_WEIGHTS), 4), len(IT_WEIGHTS) * HALF_A_DIGIT
    its = {"in this one": words.count("it"), "in the longer sentence": IT_SENTENCE.split().count("it")}
    from_verb = {noun: between(words, "sat", noun) for noun in ("cat", "mat")}
    language, positions = len(VOCABULARY) - len(SPECIAL), len([START, *french, END])
    sizes = {f"{d_model} / {heads}": d_model / heads for d_model, heads in ((64, 4), (512, 8), (128, 8))}
    return [
        finding(
            "C166", f'The weights printed for "it" in "{IT_SENTENCE}" sum to 1',
            {"sum": row_sum, "rounding can hide": hidden}, "weight, ten numbers of two decimals",
            "off by no more than rounding can hide", abs(row_sum - 1) <= hidden,
        ),
        finding(
            "C164", f'In "{TOY_SENTENCE}" "mat" is the object of "sat"',
            {"mat": from_verb["mat"], "cat, the subject": from_verb["cat"]}, 'prepositions between "sat" and the noun',
            "none: an object follows its verb directly, a place follows a preposition", from_verb["mat"] == 0,
        ),
        finding(
            "C165", f'In "{TOY_SENTENCE}" attention finds out what "it" stands for', its, 'times the word "it"',
            'the sentence contains "it"', its["in this one"] > 0,
        ),
        finding(
            "C167", f'"{" ".join(french)}" takes 7 positions: four words and the special tokens',
            {"words": len(french), "with <start> and <end>": positions}, "positions", "7 with <start> and <end>",
            positions == 7,
        ),
        finding(
            "C168", "The toy language has a vocabulary of about 100 words",
            {"the language": language, "its example sentence": len(set(words))}, "different words", "90 to 110",
            90 <= language <= 110,
        ),
        finding(
            "C169", f'"{TOY_SENTENCE}" has 6 tokens, one word twice',
            {"tokens": len(words), "different words": len(set(words))}, "count", "6 tokens, 5 different words",
            (len(words), len(set(words))) == (6, 5),
        ),
        finding(
            "C177", "Heads are d_model / H wide: 64 / 4 = 16, 512 / 8 = 64, 128 / 8 = 16", sizes, "numbers per head",
            "16, 64, 16", list(sizes.values()) == [16, 64, 16],
        ),
    ]  # fmt: skip


def softmax_findings(raw: list[float], scaled: list[float], fit: tuple[float, float], violations: int) -> list[Finding]:
    before, after, fitted = slopes(LARGE_SCORES), slopes(LARGE_SCORES, 8), softmax(SAT_SCORES, fit[0])
    agree = f"all agree to {HALF_A_DIGIT}, half of the last printed digit"
    return [
        finding(
            "C018", "With d_k = 64 the scores are divided by 8",
            {"divisor, read off the weights of scaled_dot_product_attention": divisor(64)},
            "raw score per scaled score", "8, to 1e-9", abs(divisor(64) - 8) < 1e-9,
        ),
        finding(
            "C019", "softmax([100, 95, 5, 3]) = [0.88, 0.12, 0, 0]", {"softmax": raw}, "weights", agree,
            largest_gap(raw, PRINTED_RAW) < HALF_A_DIGIT,
        ),
        finding(
            "C020", "Divided by √64, the same scores give [0.55, 0.40, 0.02, 0.01]",
            {"softmax": scaled, "sum of the printed row": round(sum(PRINTED_SCALED), 4)}, "weights", agree,
            largest_gap(scaled, PRINTED_SCALED) < HALF_A_DIGIT,
        ),
        finding(
            "C021", "Dividing by √64 lets gradients reach the small scores 5 and 3 of that row",
            {"small scores, raw": before[2:], "small scores, divided": after[2:], "large ones, divided": after[:2]},
            "rise of a weight with its own raw score",
            "once divided, the small scores have at least a hundredth of the rise of the large ones",
            min(after[2:]) >= max(after[:2]) / 100,
            control=f"the two large scores do gain: {before[0]:.4f} raw, {after[0]:.4f} divided",
        ),
        finding(
            "C022", 'The scores 0.8, 3.2, 1.5, 0.5, 0.7, 2.1 give "sat" the weights .05, .45, .15, .05, .10, .20',
            {"pairs out of order": violations, "best temperature": fit[0], "largest error left": fit[1]},
            "pairs; divisor of the scores; weight",
            f"no pair out of order, and some temperature leaves an error below {HALF_A_DIGIT}",
            violations == 0 and fit[1] < HALF_A_DIGIT,
            control=f"softmax(scores / {fit[0]}): {len(order_violations(SAT_SCORES, fitted))} pairs out of order",
        ),
    ]  # fmt: skip


def other_findings(exercise: dict[str, float], ends: dict[str, list[float]]) -> list[Finding]:
    aligned, others, longer = exercise.values()
    weights = softmax((aligned, others, others))
    return [
        Finding(
            "C023",
            "The highest score belongs to the key that is best aligned with the query",
            "course notes",
            exercise,
            "q · k / √3 for the query (1, 0, 0)",
            "the key in the query's direction scores highest, whatever the length of the others",
            **findings.conditional(
                aligned > max(others, longer), aligned > others, "the keys have the same length, as in the exercise"
            ),
            control=f"weights in the exercise: {weights[0]:.4f}, {weights[1]:.4f}, {weights[2]:.4f}",
        ),
        Finding(
            "C138",
            "In the heatmap, brighter colours are higher weights",
            "course notes",
            ends,
            "luminance at weight 0 and at weight 1",
            "on both maps that the courses use, YlOrRd and Blues, weight 1 is brighter than weight 0",
            findings.verdict(all(ends[name][1] > ends[name][0] for name in ("YlOrRd", "Blues"))),
            control="viridis, matplotlib's default, does run from dark to bright",
        ),
    ]


def main(argv: list[str] | None = None) -> None:
    options = cli.parse(cli.parser(__doc__), argv)
    print("Numbers from courses, computed again")
    raw, scaled = show_large_scores()
    violations, fit = show_impossible_row()
    exercise, ends, counts = show_exercise(), show_colors(), counted()
    print("\n5. Counting")
    for count in counts:
        print(f"   {count.claim}\n      {findings.measured_text(count)}")
    found = softmax_findings(raw, scaled, fit, len(violations)) + other_findings(exercise, ends) + counts
    findings.record("phase1_single_head/reading/textbook_numbers.py", found, options.output_dir)


if __name__ == "__main__":
    cli.run(main)
