"""What does dividing by √d_k do to softmax, to gradients, and to learning?

A dot product of d_k independent numbers of variance 1 has variance d_k. Without the division scores grow with √d_k,
softmax saturates (one key takes nearly all the weight), and the gradient at the scores shrinks. That much is in every
textbook. Here it is measured, with what is usually left out: the mean gradient at the query does not shrink but grows,
since undivided scores also move √d_k times as fast; what vanishes at last is the gradient of most queries, the median.

Does a model need the division to learn? The task: each symbol is given by the ones 1 and 3 places before,
y_t = table[x_(t-1), x_(t-3)], so that one head must look at two places at once. The same small model learns it with and
without the division, everything else alike, at the customary d_k = 64 and at others; and a third time as T5 does it,
without the division but with a W_q that starts smaller by √d_k. T5's code says that this is "equivalent under
Adafactor" (t5x, layers.py), whose steps follow the size of the weights; here, as mostly elsewhere, AdamW's do not. That
model starts with the very scores and gradients of the divided one. If it learns more slowly, the start is not to blame
but the steps: each moves its scores √d_k times as far. (At 64 it catches up by 1,000 steps, on seeds 0, 1 and 3; with
neither a division nor that start one of the three does. Smaller learning rates slow all down.)

    python phase1_single_head/parts/scaling.py
    python phase1_single_head/parts/scaling.py --seeds 3

Writes scaling.png and scaling_training.png to visualizations/plots/phase1/.
"""

import argparse
import math
import statistics

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from tqdm import tqdm

from phase1_single_head.models import load_single_head_model
from phase1_single_head.parts.undivided import FoldedSelfAttention, UndividedSelfAttention
from phase1_single_head.self_attention import SelfAttention, masked_softmax
from shared import cli, training
from shared.attention_utils import normalized_entropy
from shared.evidence import findings, replications
from shared.evidence.claims import EXPERIMENT, Above, Claim, Numbers, measures
from shared.tasks import TwoPlaces, train_two_places
from shared.visualization_utils import BLUE, QUIET, RED, headline, label_ends, save_plot

SIZES = (8, 16, 32, 64, 128, 512)  # of d_k
CUSTOMARY = 64
LARGE = (64, 128)  # what the course notes call large
NUM_KEYS, NUM_DRAWS = 6, 2000
AT_SCORES, AT_QUERY, MEDIAN = "|dL/dscores|, mean", "|dL/dq|, mean", "|dL/dq|, median"
GRADIENTS = (AT_QUERY, MEDIAN, AT_SCORES)
DIVIDED = {True: "divided", False: "not"}

# ---- random vectors: softmax and gradients


def measure(d_k: int, divide: bool, seed: int) -> dict[str, float]:
    """One query and six keys of variance 1, many times; L is the output for values of one random number per key."""
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(NUM_DRAWS, 1, d_k, generator=generator, requires_grad=True)
    key = torch.randn(NUM_DRAWS, NUM_KEYS, d_k, generator=generator)
    value = torch.randn(NUM_DRAWS, NUM_KEYS, 1, generator=generator)
    raw = query @ key.transpose(-2, -1)  # (N, 1, d_k) @ (N, d_k, 6) -> (N, 1, 6)
    scores = raw / math.sqrt(d_k) if divide else raw
    weights = masked_softmax(scores)
    at_scores, at_query = torch.autograd.grad((weights @ value).sum(), (scores, query))
    at_scores, at_query = at_scores.norm(dim=-1).flatten(), at_query.norm(dim=-1).flatten()
    return {
        "spread": scores.std().item(),
        "beyond 50": (scores.abs() > 50).double().mean().item(),
        "within 2": (scores.abs() < 2).double().mean().item(),
        "entropy": normalized_entropy(weights.detach()).mean().item(),
        "largest weight": weights.amax(dim=-1).mean().item(),
        AT_SCORES: at_scores.mean().item(),
        AT_QUERY: at_query.mean().item(),
        MEDIAN: at_query.median().item(),
        "starved": (at_scores < 0.001).double().mean().item(),
    }


def each(name: str, divide: bool, value: float) -> dict[str, float]:
    """Made numbers: one statistic, the same at every d_k."""
    return {f"{name}, {d_k}, {DIVIDED[divide]}": value for d_k in SIZES}


def ratio(numbers: Numbers, name: str, d_k: int) -> float:
    """A statistic without the division, as a share of that with it."""
    return numbers[f"{name}, {d_k}, not"] / numbers[f"{name}, {d_k}, divided"]


def grows_like_the_root(numbers: Numbers) -> bool:
    return all(
        abs(numbers[f"spread, {d_k}, not"] / math.sqrt(d_k) - 1) < 0.05
        and abs(numbers[f"spread, {d_k}, divided"] - 1) < 0.05
        and numbers[f"within 2, {d_k}, divided"] >= 0.9
        for d_k in SIZES
    )


def saturates(numbers: Numbers, d_k: int, kind: str) -> bool:
    return numbers[f"entropy, {d_k}, {kind}"] < 0.2 and numbers[f"starved, {d_k}, {kind}"] > 0.1


def keeps_gradients(numbers: Numbers, d_k: int, kind: str) -> bool:
    return numbers[f"entropy, {d_k}, {kind}"] > 0.7 and numbers[f"starved, {d_k}, {kind}"] < 0.01


@measures(
    Claim(
        id="C006",
        text="q · k of independent numbers with variance 1 grows like √d_k; divided by √d_k its variance is 1 and most "
        "scores lie between -2 and 2",
        kind=EXPERIMENT,
        source='course notes, "Why Scaling Matters"; notes on the formula, "The Why in detail"',
        rule="standard deviation within 5 % of √d_k, and of 1 when divided, 0.9 or more within 2, at every size",
        holds=grows_like_the_root,
        oracle={f"spread, {d}, not": math.sqrt(d) for d in SIZES}
        | each("spread", True, 1.0)
        | each("within 2", True, 0.954),
        null=each("spread", False, 1.0) | each("spread", True, 1.0) | each("within 2", True, 0.954),
        unit="standard deviation of q · k; share of scores",
        control="where inputs are not like that: through new projections, in the trained phase-1 model",
        shows=("spread*", "within 2, *, divided", "beyond 50, *, not"),
    ),
    Claim(
        id="C013",
        text="With a large d_k (64, 128) and without the division softmax saturates: nearly all weight on one key",
        kind=EXPERIMENT,
        source='course notes, "Why Scaling Matters" and "Why Scaling?"; notes on the formula, "The Why in detail"',
        rule="at 64 and 128 an entropy below 0.2, and more than 1 query in 10 with |dL/dscores| below 0.001; divided, "
        "above 0.7 and fewer than 1 in 100",
        holds=lambda n: all(saturates(n, d, "not") and keeps_gradients(n, d, "divided") for d in LARGE),
        oracle=each("entropy", False, 0.05)
        | each("starved", False, 0.9)
        | each("entropy", True, 0.8)
        | each("starved", True, 0.0),
        null=each("entropy", False, 0.8)
        | each("starved", False, 0.0)
        | each("entropy", True, 0.8)
        | each("starved", True, 0.0),
        unit=f"normalised entropy of the weights of {NUM_KEYS} keys; largest weight; share of queries",
        control="the same queries and keys, divided",
        shows=("entropy, *", "largest weight, *", "starved, *"),
    ),
    Claim(
        id="C008",
        text="With a large d_k (64, 128) and without the division gradients become tiny",
        kind=EXPERIMENT,
        source='course notes, "Why Scaling Matters"',
        rule="at 64 and 128 at most a tenth of that with the division: at the scores, or of the median query",
        holds=lambda n: all(min(ratio(n, AT_SCORES, d), ratio(n, MEDIAN, d)) <= 0.1 for d in LARGE),
        only_if=lambda n: ratio(n, MEDIAN, 512) <= 0.1,
        condition="d_k is in the hundreds (512), and for most queries: the mean at the query is even larger",
        oracle={key: v for name in GRADIENTS for key, v in (each(name, True, 0.3) | each(name, False, 0.001)).items()},
        null={key: v for name in GRADIENTS for key, v in (each(name, True, 0.3) | each(name, False, 0.3)).items()},
        unit="length of the gradient of one output",
        control="the same queries and keys, divided: there gradients keep their size at every d_k",
        headline=True,
        shows=("|dL/*",),
    ),
)
def random_vectors(options: argparse.Namespace, seed: int) -> dict[str, float]:
    """All statistics at every d_k, divided and not; and the spread of divided scores of other inputs."""
    numbers = scores_elsewhere(options, seed)
    for d_k in SIZES:
        for divide, kind in DIVIDED.items():
            numbers |= {f"{name}, {d_k}, {kind}": value for name, value in measure(d_k, divide, seed).items()}
    return numbers


@torch.no_grad()
def scores_elsewhere(options: argparse.Namespace, seed: int) -> dict[str, float]:
    """Standard deviation of q · k / √d_k, d_k = 64: behind new nn.Linear projections, and in the phase-1 model."""
    generator = torch.Generator().manual_seed(seed)
    x, other = torch.randn(500, 64, generator=generator), torch.randn(500, 64, generator=generator)
    torch.manual_seed(seed)
    new, model = SelfAttention(64), load_single_head_model(options, seed).model.cpu()
    trained, words = model.blocks[0].attention, model.blocks[0].attention_norm(model.embedding.weight)
    pairs = {
        "spread, divided, new projections": (new.w_q(x), new.w_k(other)),
        "spread, divided, trained phase-1 model": (trained.w_q(words), trained.w_k(words)),
    }
    return {name: (q @ k.T / math.sqrt(k.size(-1))).std().item() for name, (q, k) in pairs.items()}


def mean_of(runs: list[Numbers]) -> dict[str, float]:
    """The same numbers of several seeds -> their means."""
    return {name: statistics.mean(run[name] for run in runs) for name in runs[0]}


def show(numbers: Numbers) -> None:
    columns = ("spread", "entropy", "largest weight", *GRADIENTS)
    print(f"\n{NUM_DRAWS:,} queries on {NUM_KEYS} keys, all numbers independent with variance 1; L is the output")
    print(f"{'d_k':>6}{'':10}" + "".join(f"{name:>19}" for name in columns))
    for d_k in SIZES:
        for kind in DIVIDED.values():
            cells = "".join(f"{numbers[f'{name}, {d_k}, {kind}']:>19.4f}" for name in columns)
            print(f"{d_k:>6}  {kind:8}{cells}")
    for name in ("new projections", "trained phase-1 model"):
        print(f"   spread of divided scores, {name}: {numbers[f'spread, divided, {name}']:.2f}")


def draw_sizes(ax: Axes, lines: dict[str, list[float]], floor: str, least: float) -> None:
    """A line against d_k with the division and one without, and `least`, the lowest that is possible or by chance."""
    ends = {floor: (SIZES[-1], least, QUIET)}
    ax.axhline(least, color=QUIET, linewidth=1, linestyle=":")
    for (name, values), color in zip(lines.items(), (BLUE, RED), strict=True):
        ax.plot(SIZES, values, color=color, marker="o", markersize=6, linewidth=2.5, clip_on=False)
        ends[name] = (SIZES[-1], values[-1], color)
    ax.set_xscale("log", base=2)
    ax.set_xticks(SIZES, SIZES)
    ax.set(xlim=(7, SIZES[-1]), ylim=(0, 1), yticks=(0, 0.5, 1))
    ax.set_xlabel("d_k", fontsize=12)
    ax.tick_params(labelsize=12)
    label_ends(ax, ends, size=12)


def draw(numbers: Numbers) -> tuple[Figure, str]:
    """The largest of six weights against d_k, with the division and without."""
    fig, ax = plt.subplots(figsize=(6.2, 4.4), layout="constrained")
    ax.set_ylabel("largest weight", fontsize=12)
    lines = {kind: [numbers[f"largest weight, {d_k}, {kind}"] for d_k in SIZES] for kind in DIVIDED.values()}
    draw_sizes(ax, {"divided": lines["divided"], "not divided": lines["not"]}, "if all alike", 1 / NUM_KEYS)
    title = f"Without the division by √d_k\none of {NUM_KEYS} keys takes nearly all at a large d_k"
    divided, without = (f"{numbers[f'entropy, {CUSTOMARY}, {kind}']:.2f}" for kind in DIVIDED.values())
    note = f"random vectors · normalised entropy at d_k = {CUSTOMARY}: divided {divided}, not divided {without}"
    headline(fig, title, note, 14)
    return fig, title.replace("\n", " ") + ". The largest weight against d_k, divided and not."


# ---- training

STEPS, SYMBOLS = 300, TwoPlaces.SYMBOLS


def train(attention_class, d_k, seed, steps):
    return train_two_places(lambda d_model: attention_class(d_model, d_k, output_projection=True), seed, steps)


WITH, WITHOUT, FOLDED = "divided", "not divided", "smaller W_q"
VARIANTS = {WITH: SelfAttention, WITHOUT: UndividedSelfAttention, FOLDED: FoldedSelfAttention}
RUNS = [(variant, d_k) for d_k in SIZES for variant in VARIANTS]
Curves = dict[tuple[str, int], list[float]]  # (variant, d_k) -> the curve of one seed


def lost(numbers: Numbers, variant: str, d_k: int) -> float:
    """By how much a variant is right less often than the model with the division."""
    return numbers[f"{WITH}, {d_k}"] - numbers[f"{variant}, {d_k}"]


def ends(**shares: float) -> dict[str, float]:
    """Made numbers: the same end at all sizes."""
    return {f"{variant}, {d_k}": shares[variant.replace(" ", "_")] for variant, d_k in RUNS}


@measures(
    Claim(
        id="C010",
        text="With a large d_k (64, 128) training fails without the division by √d_k",
        kind=EXPERIMENT,
        source='course notes, "Why Scaling Matters"',
        rule="at 64 and 128, in the mean of both, at least 0.3 fewer right than with it; the mean over seeds",
        holds=Above(lambda n: statistics.mean(lost(n, WITHOUT, d_k) for d_k in LARGE), 0.3),
        oracle=ends(divided=1.0, not_divided=1 / SYMBOLS, smaller_W_q=1.0),
        null=ends(divided=1.0, not_divided=1.0, smaller_W_q=1.0),
        unit=f"share of right predictions in the last tenth of {STEPS} steps, by chance {1 / SYMBOLS:.3f}",
        control="the same model, data, seed, learning rate and steps, divided",
        headline=True,
    ),
    Claim(
        id="C012",
        text="With AdamW, as with T5's Adafactor, a model learns as fast with a W_q that starts smaller by √d_k as "
        "with the division",
        kind=EXPERIMENT,
        source='asked of Raffel et al. 2020, whose code says "equivalent under Adafactor"',
        rule=f"at d_k = {CUSTOMARY} at most 0.1 fewer right than with the division; the mean over seeds",
        holds=Above(lambda n: -lost(n, FOLDED, CUSTOMARY), -0.1),
        oracle=ends(divided=1.0, not_divided=1 / SYMBOLS, smaller_W_q=1.0),
        null=ends(divided=1.0, not_divided=0.3, smaller_W_q=0.3),
        unit=f"share of right predictions in the last tenth of {STEPS} steps, by chance {1 / SYMBOLS:.3f}",
        control="neither the division nor the smaller start",
    ),
)
def right_at_the_end(curves: Curves) -> dict[str, float]:
    """Mean of the last tenth of each curve."""
    return {
        f"{variant}, {d_k}": statistics.mean(curve[-max(1, len(curve) // 10) :])
        for (variant, d_k), curve in curves.items()
    }


def draw_training(found: Numbers, seeds: int, steps: int) -> tuple[Figure, str]:
    """What is learned at each d_k, with the division and without; shaded, between the least and the most on record."""
    fig, ax = plt.subplots(figsize=(6.6, 4.6), layout="constrained")
    ax.set_ylabel("answers right after training", fontsize=12)
    lines = {variant: [found[f"{variant}, {d_k}"] for d_k in SIZES] for variant in (WITH, WITHOUT)}
    draw_sizes(ax, lines, "by chance", 1 / SYMBOLS)
    note = f"lines: trained {steps} steps, seeds: {seeds}"
    if known := replications.published(right_at_the_end.claims[0]):
        for variant, color in zip(lines, (BLUE, RED), strict=True):
            least, most = zip(*(known.range(f"{variant}, {d_k}") for d_k in SIZES), strict=True)
            ax.fill_between(SIZES, least, most, color=color, alpha=0.17, linewidth=0)
        note += f" · shaded: least to most of {known.runs} runs of {STEPS} steps"
    title = "Without the division by √d_k\nlittle is learned at a large d_k"
    if statistics.mean(lost(found, WITHOUT, d_k) for d_k in LARGE) < 0.3:
        title = f"{steps} steps are too few to tell\nwhat the division by √d_k is good for"
    headline(fig, title, note, 14)
    return fig, title.replace("\n", " ") + ". Right answers at the end of training against d_k, divided and not."


@cli.script
def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    steps = training.QUICK_STEPS if options.quick else STEPS
    drawn = [random_vectors(options, seed) for seed in cli.seeds(options)]
    show(mean_of(drawn))
    save_plot(options, "phase1/scaling", *draw(mean_of(drawn)))
    curves: list[Curves] = [{} for _ in cli.seeds(options)]
    for variant, d_k in tqdm(RUNS, desc="training with and without the division", leave=False, disable=None):
        for of_seed, seed in zip(curves, cli.seeds(options), strict=True):
            _, _, of_seed[variant, d_k] = train(VARIANTS[variant], d_k, seed, steps)
    ended = [right_at_the_end(of_seed) for of_seed in curves]
    found = mean_of(ended)
    print(f"\nPredictions right after {steps} steps, by chance {1 / SYMBOLS:.2f}\n{'d_k':>6}", end="")
    print("".join(f"{variant:>14}" for variant in VARIANTS))
    for d_k in SIZES:
        print(f"{d_k:>6}" + "".join(f"{found[f'{variant}, {d_k}']:>14.2f}" for variant in VARIANTS))
    save_plot(options, "phase1/scaling_training", *draw_training(found, len(ended), steps))
    findings.record(options, *drawn, *ended, show_numbers=False)
    with_it, without, folded = (found[f"{variant}, {CUSTOMARY}"] for variant in VARIANTS)
    return (
        f"At the customary d_k = {CUSTOMARY} a model is right {with_it:.0%} of the time with it, {without:.0%} without "
        f"and {folded:.0%} with W_q smaller at first instead"
    )


if __name__ == "__main__":
    cli.run(main)
