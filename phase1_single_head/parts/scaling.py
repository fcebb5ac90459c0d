"""Experiment: what does dividing the scores by √d_k do to softmax and to the gradients?

A dot product of d_k independent numbers of variance 1 has variance d_k. Without the division scores grow with √d_k,
softmax saturates (one key takes nearly all the weight), and the gradient at the scores vanishes. That much is in every
textbook. Here it is measured, with what is usually left out: the mean gradient at the query does not vanish but grows,
since undivided scores also move √d_k times as fast; what vanishes is the gradient of most queries, the median.

    python phase1_single_head/parts/scaling.py

Whether a model learns without the division is another question: scaling_training.py. Writes scaling.png to
visualizations/plots/phase1/.
"""

import argparse
import math
import statistics
from dataclasses import dataclass

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from phase1_single_head.self_attention import masked_softmax
from shared import cli, paths
from shared.attention_utils import normalized_entropy
from shared.evidence import findings
from shared.evidence.findings import Finding
from shared.visualization_utils import INK, QUIET, head_color, model_note, save_figure

SIZES = (8, 32, 64, 128, 512)  # of d_k
NUM_KEYS, NUM_DRAWS = 6, 2000
Stats = dict[tuple[int, bool], list["Statistics"]]  # (d_k, divided?) -> one for each seed


@dataclass
class Statistics:
    """What one size d_k does to attention with queries and keys of variance 1, over many draws."""

    score_std: float  # of q · k, before any division
    beyond_50: float  # share of |q · k| > 50
    within_2: float  # share of |q · k / √d_k| < 2
    entropy: float  # normalised
    largest: float  # weight
    at_scores: float  # |dL/dscores|, mean
    at_query_mean: float  # |dL/dq|
    at_query_median: float
    starved: float  # share of rows with |dL/dscores| < 0.001


def measure(d_k: int, divide: bool, seed: int) -> Statistics:
    """One query and six keys, many times; L is the output for values of one random number per key."""
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(NUM_DRAWS, 1, d_k, generator=generator, requires_grad=True)
    key = torch.randn(NUM_DRAWS, NUM_KEYS, d_k, generator=generator)
    value = torch.randn(NUM_DRAWS, NUM_KEYS, 1, generator=generator)
    raw = query @ key.transpose(-2, -1)  # (N, 1, d_k) @ (N, d_k, 6) -> (N, 1, 6)
    scores = raw / math.sqrt(d_k) if divide else raw
    weights = masked_softmax(scores)
    at_scores, at_query = torch.autograd.grad((weights @ value).sum(), (scores, query))
    at_scores, at_query = at_scores.norm(dim=-1).flatten(), at_query.norm(dim=-1).flatten()
    return Statistics(
        raw.std().item(),
        (raw.abs() > 50).float().mean().item(),
        ((raw / math.sqrt(d_k)).abs() < 2).float().mean().item(),
        normalized_entropy(weights.detach()).mean().item(),
        weights.amax(dim=-1).mean().item(),
        at_scores.mean().item(),
        at_query.mean().item(),
        at_query.median().item(),
        (at_scores < 0.001).float().mean().item(),
    )


def mean(stats: Stats, name: str, d_k: int, divide: bool) -> float:
    """One statistic, averaged over seeds."""
    return statistics.mean(getattr(run, name) for run in stats[d_k, divide])


def draw(stats: Stats) -> tuple[Figure, str]:
    """Scores, softmax and gradients against d_k; full lines with the division, dashed ones without."""
    fig, (spread, sharp, gradient) = plt.subplots(1, 3, figsize=(11, 4.2), layout="constrained")

    def lines(ax: Axes, name: str, color: str, label: str) -> None:
        for divide, style in ((True, "-"), (False, "--")):
            values = [mean(stats, name, d_k, divide) for d_k in SIZES]
            ax.plot(SIZES, values, style, color=color, marker="o", markersize=4)
        ax.text(600, values[-1], label, color=color, fontsize=8.5, va="center")

    raw = [mean(stats, "score_std", d_k, False) for d_k in SIZES]
    spread.plot(SIZES, raw, "--", color=INK, marker="o", markersize=4)
    spread.plot(
        SIZES,
        [score / math.sqrt(d_k) for score, d_k in zip(raw, SIZES, strict=True)],
        color=INK,
        marker="o",
        markersize=4,
    )
    spread.text(9, 21, "spread = √d_k; after division: 1", fontsize=8.5, color=QUIET)
    spread.set_title("standard deviation of q · k")
    lines(sharp, "largest", head_color(1), "largest\nweight")
    lines(sharp, "entropy", head_color(0), "entropy")
    sharp.set_title("softmax saturates")
    lines(gradient, "at_query_mean", head_color(2), "at query,\nmean")
    lines(gradient, "at_scores", head_color(3), "at scores,\nmean")
    lines(gradient, "at_query_median", head_color(4), "at query,\nmedian")
    gradient.set_yscale("log")
    gradient.set_title("gradients: one grows, two vanish")
    for ax in (spread, sharp, gradient):
        ax.set_xscale("log", base=2)
        ax.set_xticks(SIZES, SIZES)
        ax.set(xlim=(7, 2200), xlabel="d_k")
        ax.tick_params(length=0)
    before, after = (mean(stats, "largest", 512, divide) for divide in (False, True))
    title = f"At d_k = 512 one of {NUM_KEYS} keys takes {before:.2f} of the weight; divided by √d_k, {after:.2f}"
    fig.suptitle(title, fontsize=13)
    entropy = mean(stats, "entropy", 64, True)
    model_note(
        fig,
        "full line: divided by √d_k, dashed: not · random vectors, no model · "
        f"normalised entropy at d_k = 64, divided: {entropy:.2f}",
    )
    return fig, title + ". What the division does to scores, softmax and gradients, against d_k."


def record_findings(stats: Stats, options: argparse.Namespace) -> None:
    def values(name: str, divide: bool) -> dict[str, float]:
        return {f"d_k = {d_k}": mean(stats, name, d_k, divide) for d_k in SIZES}

    def both(name: str, sizes: tuple[int, ...] = (8, 128, 512)) -> dict[str, float]:
        return {
            f"{d_k}, {'divided' if divide else 'not'}": mean(stats, name, d_k, divide)
            for d_k in sizes
            for divide in (True, False)
        }

    spread, largest = values("score_std", False), values("largest", False)
    beyond = {f"d_k = {d_k}": mean(stats, "beyond_50", d_k, False) for d_k in (64, 128, 512)}
    within = values("within_2", True)
    median, average, at_scores = both("at_query_median"), both("at_query_mean"), both("at_scores")
    starved = {"divided": mean(stats, "starved", 128, True), "not divided": mean(stats, "starved", 128, False)}

    def finding(name: str, claim: str, *rest: object, **verdict: str) -> Finding:
        return Finding(name, claim, "course notes", *rest, **verdict, seeds=list(cli.seeds(options)))

    findings.record(
        "phase1_single_head/parts/scaling.py",
        [
            finding(
                "C006",
                "q · k grows like √d_k",
                spread,
                "standard deviation of q · k for independent numbers of variance 1",
                "within 5 % of √d_k at every size",
                findings.verdict(all(abs(spread[f"d_k = {d}"] / math.sqrt(d) - 1) < 0.05 for d in SIZES)),
            ),
            finding(
                "C013",
                "Without the division softmax saturates when d_k is large",
                both("entropy"),
                "normalised entropy of the weights of 6 keys",
                "below 0.2 at d_k = 128 without the division, above 0.7 with it",
                findings.verdict(mean(stats, "entropy", 128, False) < 0.2 and mean(stats, "entropy", 128, True) > 0.7),
            ),
            finding(
                "C014",
                "Softmax saturates: all the weight falls on one position",
                largest,
                "largest of 6 weights, not divided, mean",
                "above 0.9",
                **findings.conditional(
                    min(largest.values()) > 0.9, largest["d_k = 512"] > 0.9, "d_k is large, 128 or more"
                ),
            ),
            finding(
                "C015",
                "Softmax lets gradient flow to all positions",
                starved,
                "share of queries with |dL/dscores| below 0.001, d_k = 128",
                "below 0.01",
                **findings.conditional(
                    max(starved.values()) < 0.01, starved["divided"] < 0.01, "softmax is not saturated"
                ),
            ),
            finding(
                "C016",
                "Dot products reach 50 or 100 when d_k is large",
                beyond,
                "share of |q · k| above 50",
                "at least 0.001",
                **findings.conditional(
                    min(beyond.values()) >= 0.001, beyond["d_k = 512"] >= 0.001, "d_k is in the hundreds: not at 64"
                ),
            ),
            finding(
                "C017",
                "After the division scores mostly lie between -2 and 2",
                within,
                "share of |q · k / √d_k| below 2",
                "at least 0.9 at every size",
                findings.verdict(min(within.values()) >= 0.9),
            ),
            finding(
                "C008",
                "Without the division gradients become tiny",
                {f"mean at query, {name}": value for name, value in average.items()}
                | {f"median at query, {name}": value for name, value in median.items()}
                | {f"mean at scores, {name}": value for name, value in at_scores.items()},
                "length of the gradient of one output",
                "without the division at most a third of that with it, for every d_k and each way to look",
                **findings.conditional(
                    all(
                        which[f"{d_k}, not"] < which[f"{d_k}, divided"] / 3
                        for which in (average, median, at_scores)
                        for d_k in (8, 128, 512)
                    ),
                    all(
                        which[f"{d_k}, not"] < which[f"{d_k}, divided"] / 3
                        for which in (median, at_scores)
                        for d_k in (128, 512)
                    ),
                    "d_k is 128 or more, at the scores or for the median query; the mean at the query grows",
                ),
            ),
            finding(
                "C009",
                "An experiment at d_k = 8, 32 and 128 shows the gradient vanish",
                both("at_query_mean", (8, 32, 128)),
                "mean length of dL/dq, the gradient that is plotted first",
                "at d_k = 128 smaller without the division than with it",
                **findings.conditional(
                    mean(stats, "at_query_mean", 128, False) < mean(stats, "at_query_mean", 128, True),
                    mean(stats, "at_scores", 128, False) < mean(stats, "at_scores", 128, True),
                    "the gradient at the scores is plotted, or the median: the mean at the query shows the opposite",
                ),
            ),
            finding(
                "C025",
                "With the division gradients keep their size",
                values("at_query_median", True),
                "median length of dL/dq",
                "largest at most 1.5 times the smallest",
                findings.verdict(
                    max(values("at_query_median", True).values()) <= 1.5 * min(values("at_query_median", True).values())
                ),
            ),
        ],
        options.output_dir,
    )


def main(argv: list[str] | None = None) -> None:
    options = cli.parse(cli.parser(__doc__), argv)
    stats = {
        (d, divide): [measure(d, divide, s) for s in cli.seeds(options)] for d in SIZES for divide in (True, False)
    }
    print(f"\n{NUM_DRAWS:,} queries on {NUM_KEYS} keys, all numbers independent with variance 1; L is the output")
    print(f"{'':18}{'spread of':>11}{'normalised':>11}{'largest':>9}{'|dL/dscores|':>14}{'|dL/dq|':>9}{'|dL/dq|':>9}")
    print(f"{'d_k':>6}{'':12}{'q · k':>11}{'entropy':>11}{'weight':>9}{'mean':>14}{'mean':>9}{'median':>9}")
    for d_k, divide in stats:
        numbers = [
            mean(stats, name, d_k, divide)
            for name in ("entropy", "largest", "at_scores", "at_query_mean", "at_query_median")
        ]
        spread = mean(stats, "score_std", d_k, divide) / (math.sqrt(d_k) if divide else 1)
        print(
            f"{d_k:>6}{'  divided' if divide else '  not':12}{spread:>11.2f}"
            + "".join(f"{value:>{width}.4f}" for value, width in zip(numbers, (11, 9, 14, 9, 9), strict=True))
        )
    figure, caption = draw(stats)
    save_figure(figure, options.output_dir / paths.PLOTS / "phase1" / f"scaling.{options.format}", caption=caption)
    record_findings(stats, options)


if __name__ == "__main__":
    cli.run(main)
