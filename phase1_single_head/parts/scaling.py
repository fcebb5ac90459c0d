"""What does dividing by √d_k do to softmax, to gradients, and to learning?

A dot product of d_k independent numbers of variance 1 has variance d_k. Without the division scores grow with √d_k,
softmax saturates (one key takes nearly all the weight), and the gradient at the scores vanishes. That much is in every
textbook. Here it is measured, with what is usually left out: the mean gradient at the query does not vanish but grows,
since undivided scores also move √d_k times as fast; what vanishes is the gradient of most queries, the median.

From which d_k on does a model need the division to learn? The task: each symbol is given by the ones 1 and 3 places
before, y_t = table[x_(t-1), x_(t-3)], so that one head must look at two places at once. The same small model learns it
with and without the division, everything else alike; and once more without it but with W_q started smaller by √d_k,
as T5 does it.

    python phase1_single_head/parts/scaling.py
    python phase1_single_head/parts/scaling.py --seeds 3

Writes scaling.png and scaling_training.png to visualizations/plots/phase1/.
"""

import argparse
import math
import statistics

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn
from tqdm import tqdm

from phase1_single_head.self_attention import (
    SelfAttention,
    load_single_head_model,
    masked_softmax,
    scaled_dot_product_attention,
)
from shared import cli, training
from shared.attention_utils import causal_mask, normalized_entropy
from shared.evidence import findings
from shared.evidence.claims import EXPERIMENT, Claim, Measured, Numbers, measures
from shared.toy_model import Block
from shared.visualization_utils import INK, QUIET, head_color, headline, save_plot

SIZES = (8, 32, 64, 128, 512)  # of d_k
NUM_KEYS, NUM_DRAWS = 6, 2000
AT_SCORES, AT_QUERY, MEDIAN = "|dL/dscores|, mean", "|dL/dq|, mean", "|dL/dq|, median"
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


def shrinks(numbers: Numbers, name: str, d_k: int, factor: float = 3) -> bool:
    """Is the statistic without the division less than 1 / factor of that with it?"""
    return numbers[f"{name}, {d_k}, not"] < numbers[f"{name}, {d_k}, divided"] / factor


def all_of(numbers: Numbers, name: str, divide: bool) -> list[float]:
    return [numbers[f"{name}, {d_k}, {DIVIDED[divide]}"] for d_k in SIZES]


GRADIENTS = (AT_QUERY, MEDIAN, AT_SCORES)


@measures(
    Claim(
        id="C006",
        text="q · k grows like √d_k",
        kind=EXPERIMENT,
        rule="within 5 % of √d_k at every size",
        holds=lambda n: all(abs(n[f"spread, {d}, not"] / math.sqrt(d) - 1) < 0.05 for d in SIZES),
        oracle={f"spread, {d}, not": math.sqrt(d) for d in SIZES},
        null=each("spread", False, 1.0),
        unit="standard deviation of q · k for independent numbers of variance 1",
        shows=("spread, *, not",),
    ),
    Claim(
        id="C013",
        text="Without the division softmax saturates when d_k is large",
        kind=EXPERIMENT,
        rule="below 0.2 at d_k = 128 without the division, above 0.7 with it",
        holds=lambda n: n["entropy, 128, not"] < 0.2 and n["entropy, 128, divided"] > 0.7,
        oracle={"entropy, 128, not": 0.0, "entropy, 128, divided": 0.8},
        null={"entropy, 128, not": 0.8, "entropy, 128, divided": 0.8},
        unit="normalised entropy of the weights of 6 keys",
        shows=("entropy, *",),
    ),
    Claim(
        id="C014",
        text="Softmax saturates: all the weight falls on one position",
        kind=EXPERIMENT,
        rule="above 0.9",
        holds=lambda n: min(all_of(n, "largest weight", False)) > 0.9,
        only_if=lambda n: n["largest weight, 512, not"] > 0.9,
        condition="d_k is large, 128 or more",
        oracle=each("largest weight", False, 1.0),
        null=each("largest weight", False, 1 / NUM_KEYS),
        unit="largest of 6 weights, not divided, mean",
        shows=("largest weight, *, not",),
    ),
    Claim(
        id="C015",
        text="Softmax lets gradient flow to all positions",
        kind=EXPERIMENT,
        rule="below 0.01",
        holds=lambda n: max(n["starved, 128, divided"], n["starved, 128, not"]) < 0.01,
        only_if=lambda n: n["starved, 128, divided"] < 0.01,
        condition="softmax is not saturated",
        oracle=each("starved", True, 0.0) | each("starved", False, 0.0),
        null=each("starved", True, 1.0) | each("starved", False, 1.0),
        unit="share of queries with |dL/dscores| below 0.001, d_k = 128",
        shows=("starved, 128, *",),
    ),
    Claim(
        id="C016",
        text="Dot products reach 50 or 100 when d_k is large",
        kind=EXPERIMENT,
        rule="at least 0.001",
        holds=lambda n: min(n[f"beyond 50, {d}, not"] for d in (64, 128, 512)) >= 0.001,
        only_if=lambda n: n["beyond 50, 512, not"] >= 0.001,
        condition="d_k is in the hundreds: not at 64",
        oracle=each("beyond 50", False, 0.5),
        null=each("beyond 50", False, 0.0),
        unit="share of |q · k| above 50",
        shows=("beyond 50, *, not",),
    ),
    Claim(
        id="C017",
        text="After the division scores mostly lie between -2 and 2",
        kind=EXPERIMENT,
        rule="at least 0.9 at every size",
        holds=lambda n: min(all_of(n, "within 2", True)) >= 0.9,
        oracle=each("within 2", True, 0.954),
        null=each("within 2", True, 0.2),
        unit="share of |q · k / √d_k| below 2",
        shows=("within 2, *, divided",),
    ),
    Claim(
        id="C008",
        text="Without the division gradients become tiny",
        kind=EXPERIMENT,
        rule="without the division at most a third of that with it, for every d_k and each way to look",
        holds=lambda n: all(shrinks(n, name, d) for name in GRADIENTS for d in (8, 128, 512)),
        only_if=lambda n: all(shrinks(n, name, d) for name in (MEDIAN, AT_SCORES) for d in (128, 512)),
        condition="d_k is 128 or more, at the scores or for the median query; the mean at the query grows",
        oracle={key: v for name in GRADIENTS for key, v in (each(name, True, 0.3) | each(name, False, 0.001)).items()},
        null={key: v for name in GRADIENTS for key, v in (each(name, True, 0.3) | each(name, False, 0.3)).items()},
        unit="length of the gradient of one output",
        shows=("|dL/*",),
    ),
    Claim(
        id="C009",
        text="An experiment at d_k = 8, 32 and 128 shows the gradient vanish",
        kind=EXPERIMENT,
        rule="at d_k = 128 smaller without the division than with it",
        holds=lambda n: shrinks(n, AT_QUERY, 128, factor=1),
        only_if=lambda n: shrinks(n, AT_SCORES, 128, factor=1),
        condition="the gradient at the scores is plotted, or the median: the mean at the query shows the opposite",
        oracle={f"{AT_QUERY}, 128, divided": 0.3, f"{AT_QUERY}, 128, not": 0.001},
        null={f"{name}, 128, {kind}": 0.3 for name in (AT_QUERY, AT_SCORES) for kind in DIVIDED.values()},
        unit="mean length of dL/dq, the gradient that is plotted first",
        shows=(f"{AT_QUERY}, *",),
    ),
    Claim(
        id="C025",
        text="With the division gradients keep their size",
        kind=EXPERIMENT,
        rule="largest at most 1.5 times the smallest",
        holds=lambda n: max(all_of(n, MEDIAN, True)) <= 1.5 * min(all_of(n, MEDIAN, True)),
        oracle=each(MEDIAN, True, 0.3),
        null={f"{MEDIAN}, {d}, divided": 1 / math.sqrt(d) for d in SIZES},
        unit="median length of dL/dq",
        shows=(f"{MEDIAN}, *, divided",),
    ),
)
def random_vectors(seeds: range) -> dict[str, float]:
    """All statistics at every d_k, divided and not, mean over seeds."""
    numbers = {}
    for d_k in SIZES:
        for divide, kind in DIVIDED.items():
            runs = [measure(d_k, divide, seed) for seed in seeds]
            numbers |= {f"{name}, {d_k}, {kind}": statistics.mean(run[name] for run in runs) for name in runs[0]}
    return numbers


def show(numbers: Measured) -> None:
    columns = ("spread", "entropy", "largest weight", *GRADIENTS)
    print(f"\n{NUM_DRAWS:,} queries on {NUM_KEYS} keys, all numbers independent with variance 1; L is the output")
    print(f"{'d_k':>6}{'':10}" + "".join(f"{name:>19}" for name in columns))
    for d_k in SIZES:
        for kind in DIVIDED.values():
            cells = "".join(f"{numbers[f'{name}, {d_k}, {kind}']:>19.4f}" for name in columns)
            print(f"{d_k:>6}  {kind:8}{cells}")


def draw(numbers: Measured) -> tuple[Figure, str]:
    """Scores, softmax and gradients against d_k; full lines with the division, dashed ones without."""
    fig, (spread, sharp, gradient) = plt.subplots(1, 3, figsize=(11, 4.2), layout="constrained")

    def lines(ax: Axes, name: str, color: str, label: str) -> None:
        for divide, style in ((True, "-"), (False, "--")):
            values = all_of(numbers, name, divide)
            ax.plot(SIZES, values, style, color=color, marker="o", markersize=4)
        ax.text(600, values[-1], label, color=color, fontsize=8.5, va="center")

    lines(spread, "spread", INK, "")
    spread.text(9, 21, "spread = √d_k; after division: 1", fontsize=8.5, color=QUIET)
    spread.set_title("standard deviation of q · k")
    lines(sharp, "largest weight", head_color(1), "largest\nweight")
    lines(sharp, "entropy", head_color(0), "entropy")
    sharp.set_title("softmax saturates")
    lines(gradient, AT_QUERY, head_color(2), "at query,\nmean")
    lines(gradient, AT_SCORES, head_color(3), "at scores,\nmean")
    lines(gradient, MEDIAN, head_color(4), "at query,\nmedian")
    gradient.set_yscale("log")
    gradient.set_title("gradients: one grows, two vanish")
    for ax in (spread, sharp, gradient):
        ax.set_xscale("log", base=2)
        ax.set_xticks(SIZES, SIZES)
        ax.set(xlim=(7, 2200), xlabel="d_k")
        ax.tick_params(length=0)
    before, after = (numbers[f"largest weight, 512, {kind}"] for kind in ("not", "divided"))
    title = f"At d_k = 512 one of {NUM_KEYS} keys takes {before:.2f} of the weight; divided by √d_k, {after:.2f}"
    entropy = f"normalised entropy at d_k = 64, divided: {numbers['entropy, 64, divided']:.2f}"
    headline(fig, title, f"full line: divided by √d_k, dashed: not · random vectors, no model · {entropy}")
    return fig, title + ". What the division does to scores, softmax and gradients, against d_k."


# ---- training

SYMBOLS, LENGTH, D_MODEL, BATCH, STEPS, LEARNING_RATE = 8, 12, 64, 32, 300, 3e-3
TRAINED = (8, 16, 64, 128)  # sizes of d_k
FOLDED_SIZE = 64  # of d_k, for the third variant
FIRST = 3  # the first place that has a symbol three places before it


class UnscaledSelfAttention(SelfAttention):
    """SelfAttention without the division: the query is multiplied by √d_k first, which undoes it."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """x (B, T, d_model) -> output (B, T, d_model), weights (B, 1, T, T)."""
        query, key, value = (w(x).unsqueeze(-3) for w in (self.w_q, self.w_k, self.w_v))
        output, weights = scaled_dot_product_attention(query * math.sqrt(query.size(-1)), key, value, mask)
        return self.w_o(output.squeeze(-3)), weights


class FoldedSelfAttention(UnscaledSelfAttention):
    """Without the division, but W_q starts smaller by √d_k, as in T5 (Raffel et al. 2020)."""

    def __init__(self, d_model: int, d_k: int, *, output_projection: bool) -> None:
        super().__init__(d_model, d_k, output_projection=output_projection)
        with torch.no_grad():
            self.w_q.weight /= math.sqrt(d_k)


class TwoPlaces(nn.Module):
    """One block over symbols and learned positions that predicts table[x_(t-1), x_(t-3)] at each t."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.embedding = nn.Embedding(SYMBOLS, D_MODEL)
        self.positions = nn.Parameter(torch.randn(LENGTH, D_MODEL))
        self.block = Block(D_MODEL, attention)
        self.to_logits = nn.Linear(D_MODEL, SYMBOLS)

    def forward(self, symbols: Tensor) -> Tensor:
        """symbols (B, T) -> logits (B, T, SYMBOLS)."""
        x, _ = self.block(self.embedding(symbols) + self.positions, causal_mask(LENGTH))
        return self.to_logits(x)


def labels(symbols: Tensor, table: Tensor) -> Tensor:
    """What is to be said at the places 3 to T - 1: symbols (B, T), table (S, S) -> (B, T - 3)."""
    return table[symbols[:, FIRST - 1 : -1], symbols[:, :-FIRST]]


def learning_curve(attention_class: type[SelfAttention], d_k: int, seed: int, steps: int) -> list[float]:
    """Share of right predictions on each new batch, before the model learns from it."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    table = torch.randint(SYMBOLS, (SYMBOLS, SYMBOLS), generator=generator)
    model = TwoPlaces(attention_class(D_MODEL, d_k, output_projection=True))
    right = []

    def loss_of_step(_: int) -> Tensor:
        symbols = torch.randint(SYMBOLS, (BATCH, LENGTH), generator=generator)
        logits, target = model(symbols)[:, FIRST:], labels(symbols, table)
        right.append((logits.argmax(dim=-1) == target).float().mean().item())
        return F.cross_entropy(logits.flatten(0, 1), target.flatten())

    training.fit(model, loss_of_step, steps, matrix_rate=None, rate=LEARNING_RATE, share=lambda step: 1.0)
    return right


VARIANTS = {"divided": SelfAttention, "not divided": UnscaledSelfAttention, "folded into W_q": FoldedSelfAttention}
RUNS = [(variant, d_k) for d_k in TRAINED for variant in ("divided", "not divided")] + [
    ("folded into W_q", FOLDED_SIZE)
]
Curves = dict[tuple[str, int], list[list[float]]]  # (variant, d_k) -> one curve for each seed


def at_most_half(numbers: Numbers, *names: str) -> bool:
    return max(share for name in names for share in numbers[name]) <= 0.5


def learned(numbers: Numbers, variant: str, sizes: tuple[int, ...] = TRAINED) -> bool:
    """At least 0.9 right at the end, with every seed."""
    return min(share for d_k in sizes for share in numbers[f"{variant}, {d_k}"]) >= 0.9


def ends(not_divided: float) -> dict[str, list[float]]:
    """Made numbers: all right with the division; without it the same end for all sizes."""
    return {f"{variant}, {d_k}": [1.0 if variant == "divided" else not_divided] for variant, d_k in RUNS}


@measures(
    Claim(
        id="C010",
        text="Training is stable with the division and fails without it",
        kind=EXPERIMENT,
        rule="with the division at least 0.9 at every d_k; without it at most 0.5 at every d_k",
        holds=lambda n: learned(n, "divided") and at_most_half(n, *(f"not divided, {d}" for d in TRAINED)),
        only_if=lambda n: learned(n, "divided") and at_most_half(n, "not divided, 128"),
        condition="d_k is large, 128 or more; at 8 the model learns without",
        oracle=ends(0.125),
        null=ends(1.0),
        unit="share of right predictions in the last tenth of training",
        control="the same model, data, seed and steps",
    ),
    Claim(
        id="C011",
        text="The division is critical at the size of the toy model, d_k = 16",
        kind=EXPERIMENT,
        rule="without the division below 0.9",
        holds=lambda n: not learned(n, "not divided", (16,)),
        oracle=ends(0.125),
        null=ends(1.0),
        unit="share of right predictions in the last tenth of training",
        shows=("*, 16",),
    ),
    Claim(
        id="C012",
        text="The division is critical: models do not learn without it",
        kind=EXPERIMENT,
        source="course notes; against it T5, which does without (Raffel et al. 2020)",
        rule="without the division at most 0.5, whatever d_k and the initial weights",
        holds=lambda n: at_most_half(n, "not divided, 16", "not divided, 64", f"folded into W_q, {FOLDED_SIZE}"),
        only_if=lambda n: at_most_half(n, "not divided, 64"),
        condition="d_k is large and nothing else keeps the scores small, as T5's initial weights and optimizer do",
        oracle=ends(0.125),
        null=ends(1.0),
        unit="share of right predictions in the last tenth of training",
        control="folded into W_q: W_q starts smaller by √d_k; with this optimizer that alone may not be enough",
        shows=("not divided, 16", "not divided, 64", "folded*"),
    ),
)
def right_at_the_end(curves: Curves) -> dict[str, list[float]]:
    """Mean of the last tenth of each curve, a number for each seed."""
    return {
        f"{variant}, {d_k}": [statistics.mean(curve[-max(1, len(curve) // 10) :]) for curve in runs]
        for (variant, d_k), runs in curves.items()
    }


INDEPENDENT, NEW, ALL_WORDS = (
    "independent, variance 1",
    "through new nn.Linear projections",
    "all words, trained phase-1 model",
)


@measures(
    Claim(
        id="C007",
        text="Dividing by √d_k brings the scores to variance 1",
        kind=EXPERIMENT,
        rule="between 0.9 and 1.1",
        holds=lambda n: all(0.9 < spread < 1.1 for spread in n.values()),
        only_if=lambda n: 0.9 < n[INDEPENDENT] < 1.1,
        condition="queries and keys are independent with variance 1: projections and training change it",
        oracle=dict.fromkeys((INDEPENDENT, NEW, ALL_WORDS), 1.0),
        null=dict.fromkeys((INDEPENDENT, NEW, ALL_WORDS), 8.0),
        unit="standard deviation of q · k / √d_k, d_k = 64",
    )
)
@torch.no_grad()
def initial_scores(options: argparse.Namespace) -> dict[str, float]:
    """Standard deviation of q · k / √d_k, d_k = 64, for queries and keys that come from somewhere."""
    generator = torch.Generator().manual_seed(options.seed)
    x, other = torch.randn(500, 64, generator=generator), torch.randn(500, 64, generator=generator)
    torch.manual_seed(options.seed)
    new, model = SelfAttention(64), load_single_head_model(options).model.cpu()
    trained, words = model.blocks[0].attention, model.blocks[0].attention_norm(model.embedding.weight)
    pairs = {
        INDEPENDENT: (x, other),
        NEW: (new.w_q(x), new.w_k(other)),
        ALL_WORDS: (trained.w_q(words), trained.w_k(words)),
    }
    return {name: (q @ k.T / math.sqrt(k.size(-1))).std().item() for name, (q, k) in pairs.items()}


def draw_training(curves: Curves, found: Measured, steps: int) -> tuple[Figure, str]:
    """A panel for each variant, a line for each d_k, mean over seeds."""
    fig, axes = plt.subplots(1, 2, figsize=(9.6, 4.2), sharey=True, layout="constrained")
    window = max(1, steps // 30)
    for ax, variant in zip(axes, ("divided", "not divided"), strict=True):
        for index, d_k in enumerate(TRAINED):
            run = torch.tensor(curves[variant, d_k]).mean(dim=0)  # (seeds, steps) -> (steps,)
            smooth = run.unfold(0, window, window).mean(dim=1)  # (steps,) -> (windows, window) -> (windows,)
            places = [window * (i + 0.5) for i in range(len(smooth))]
            ax.plot(places, smooth.tolist(), color=head_color(index), label=f"d_k = {d_k}")
        ax.axhline(1 / SYMBOLS, color="black", linewidth=0.8, linestyle=":")
        ax.set(xlim=(0, steps), ylim=(0, 1.03), yticks=(0, 0.5, 1), xlabel="training step", title=variant)
    axes[0].set_ylabel("predictions right")
    axes[0].legend(frameon=False, fontsize=9, loc="lower right", bbox_to_anchor=(1, 0.13))
    axes[1].text(steps, 1 / SYMBOLS + 0.01, "by chance", fontsize=8.5, ha="right", va="bottom")
    works = [d_k for d_k in TRAINED if learned(found, "not divided", (d_k,))]
    fails = [d_k for d_k in TRAINED if d_k not in works]
    enough, few = (", ".join(map(str, sizes)) or "no size" for sizes in (works, fails))
    title = f"Without the division {steps} steps are enough at d_k = {enough}, not at {few}"
    if not any(learned(found, "divided", (d_k,)) for d_k in TRAINED):
        title = f"{steps} steps are too few: the task is not learned with the division either"
    seeds = len(curves[RUNS[0]])
    headline(fig, title, f"trained {steps} steps, seeds: {seeds}; each batch is scored before it is learned from")
    return fig, title + ". Share of right predictions during training, with the division and without."


def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    steps = training.QUICK_STEPS if options.quick else STEPS
    drawn = random_vectors(cli.seeds(options))
    show(drawn)
    save_plot(options, "phase1/scaling", *draw(drawn))
    curves = {
        (variant, d_k): [learning_curve(VARIANTS[variant], d_k, seed, steps) for seed in cli.seeds(options)]
        for variant, d_k in tqdm(RUNS, desc="training with and without the division", leave=False)
    }
    found, initial = right_at_the_end(curves), initial_scores(options)
    print(f"\nPredictions right after {steps} steps, by chance {1 / SYMBOLS:.2f}")
    for name, shares in found.items():
        print(f"   {name:22} {' '.join(f'{share:.2f}' for share in shares)}")
    print(f"\nSpread of q · k / √d_k: {findings.measured_text({'measured': initial, 'unit': 'd_k = 64'})}")
    save_plot(options, "phase1/scaling_training", *draw_training(curves, found, steps))
    findings.record(options, drawn, initial, found, show_numbers=False)
    small, large = (found[f"not divided, {d_k}"][0] for d_k in (16, 64))
    return f"Without it a model with d_k = 16 is right {small:.0%} of the time, with d_k = 64 {large:.0%}"


if __name__ == "__main__":
    cli.run(main)
