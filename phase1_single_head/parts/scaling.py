"""What does dividing by √d_k do to softmax, to gradients, and to learning?

First on random vectors: a query, six keys and values of independent numbers with variance 1; L is the output. Then in
training: one head must look at the symbols 1 and 3 places before, with the division, without it, and without it but
with a W_q that starts smaller by √d_k, as in T5. The last starts with the scores of the first, but each step of AdamW
moves its scores √d_k times as far, at whatever rate. All else is alike: parameters, batches, steps, rates.
"""

import math
from statistics import fmean

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from tqdm import tqdm

from phase1_single_head.parts.undivided import FoldedSelfAttention, UndividedSelfAttention
from phase1_single_head.self_attention import SelfAttention, masked_softmax
from shared import charts
from shared.evidence.claims import Claim, Numbers
from shared.experiment import Experiment, Results, Run
from shared.tasks import TwoPlaces, train_two_places
from shared.visualization_utils import BLUE, ORANGE, RED

SIZES, D_K = (8, 64, 128, 512), 64  # of random vectors, and of the heads that are trained: 64 is customary
RATES = {"rate 0.001": 0.001, "64": 0.003, "rate 0.01": 0.01}  # the one that suits the division bears the size alone
NUM_KEYS, NUM_DRAWS, STEPS = 6, 2000, 300
VARIANTS = {"divided": SelfAttention, "not divided": UndividedSelfAttention, "smaller W_q": FoldedSelfAttention}
COLORS = {"divided": BLUE, "not divided": RED, "smaller W_q": ORANGE}
WAYS = ("divided", "not divided")  # of random vectors


def random_vectors(d_k: int, divide: bool, seed: int) -> dict[str, float]:
    """Weights and gradients of many queries on six keys."""
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(NUM_DRAWS, 1, d_k, generator=generator, requires_grad=True)
    key = torch.randn(NUM_DRAWS, NUM_KEYS, d_k, generator=generator)
    value = torch.randn(NUM_DRAWS, NUM_KEYS, 1, generator=generator)
    raw = query @ key.transpose(-2, -1)  # (N, 1, d_k) @ (N, d_k, 6) -> (N, 1, 6)
    scores = raw / math.sqrt(d_k) if divide else raw
    weights = masked_softmax(scores)
    at_scores, at_query = torch.autograd.grad((weights @ value).sum(), (scores, query))
    return {
        "largest weight": weights.amax(dim=-1).mean().item(),
        "mean |dL/dscores|": at_scores.norm(dim=-1).mean().item(),
        "mean |dL/dq|": at_query.norm(dim=-1).mean().item(),
        "median |dL/dq|": at_query.norm(dim=-1).median().item(),
    }


def learned(variant: str, rate: float, run: Run) -> float:
    """Share of right answers in the last tenth of training."""
    head = VARIANTS[variant]
    _, _, right = train_two_places(
        lambda d_model: head(d_model, D_K, output_projection=True), run.seed, run.steps(STEPS), rate
    )
    return fmean(right[-max(1, len(right) // 10) :])


def measure(run: Run) -> Numbers:
    """Of the vectors, by d_k, divided and not; of training the share of right answers, by variant and rate."""
    found = {}
    for d_k in SIZES:
        for name in WAYS:
            statistics = random_vectors(d_k, name == "divided", run.seed)
            found |= {f"{statistic}, {name}, {d_k}": value for statistic, value in statistics.items()}
    for variant in tqdm(VARIANTS, desc="training with and without the division", leave=False, disable=None):
        shares = {f"{variant}, {name}": learned(variant, rate, run) for name, rate in RATES.items()}
        found |= shares | {f"{variant}, best rate": max(shares.values())}
    return found


def left(n: Numbers, d_k: int) -> float:
    """How much of the gradient is left without the division: at the scores or of the median query, where it is less."""
    gradients = ("mean |dL/dscores|", "median |dL/dq|")
    return min(n[f"{gradient}, not divided, {d_k}"] / n[f"{gradient}, divided, {d_k}"] for gradient in gradients)


CLAIMS = (
    Claim(
        id="C008",
        text="With a large d_k (64, 128) and without the division gradients become tiny, on random vectors",
        source='course notes, "Why Scaling Matters"',
        rule="at 64 and 128 at most a tenth of that with the division: at the scores, or of the median query",
        effect=lambda n: max(left(n, 64), left(n, 128)),
        at_most=0.1,
        oracle={"*, not divided, *": 0.001, "*": 0.3},
        null={"*": 0.3},
        revised="was a third, for every d_k and each way to look; a third is what comes out at the scores at 64, so "
        "tiny means a tenth now; then a condition, d_k = 512, let it hold",
    ),
    Claim(
        id="C010",
        text="Without the division by √d_k training fails: one head of d_k = 64 that must look at two places at once, "
        "300 steps of AdamW, at each of three rates",
        source='course notes, "Why Scaling Matters"',
        rule="at its best rate of 0.001, 0.003 and 0.01 at least 0.3 fewer right than with it at its own best",
        effect=lambda n: n["divided, best rate"] - n["not divided, best rate"],
        at_least=0.3,
        oracle={"divided, *": 1.0, "*": 1 / TwoPlaces.SYMBOLS},
        null={"*": 1.0},
        revised="asked for failure at 8 and 16 too, where the source says large ones; then at 64 and 128 at one rate",
    ),
    Claim(
        id="smaller-start",
        text="With AdamW and one rate for all weights, a W_q that starts smaller by √d_k does not replace the "
        "division: one head of d_k = 64 that must look at two places at once, 300 steps, at each of three rates",
        source='asked of Raffel et al. 2020, whose code says "equivalent under Adafactor"',
        rule="at its best rate of 0.001, 0.003 and 0.01 at least 0.2 fewer right than with the division at its best",
        effect=lambda n: n["divided, best rate"] - n["smaller W_q, best rate"],
        at_least=0.2,
        oracle={"divided, *": 1.0, "*": 0.3},
        null={"*": 1.0},
        revised="was 'learns as fast', at most 0.1 fewer right at one rate; before that at d_k = 16, too",
    ),
)


def picture(found: Results) -> Figure:
    """Left: how much of the weight one of six keys takes. Right: what is learned."""
    fig, (left, right) = plt.subplots(1, 2, figsize=(9.6, 4.4), layout="constrained")
    lines = {name: found.row(f"largest weight, {name}", SIZES) for name in WAYS}
    charts.lines(left, SIZES, lines, COLORS, guess=1 / NUM_KEYS, guess_name="all alike")
    left.set(ylim=(0, 1), xlabel="d_k", ylabel="largest of six weights", title="random vectors: one key takes most")
    lines = {name: found.row(name, RATES) for name in VARIANTS}
    charts.lines(right, list(RATES.values()), lines, COLORS, guess=1 / TwoPlaces.SYMBOLS)
    right.set(ylim=(0, 1), xlabel="rate of AdamW", ylabel="answers right", title=f"d_k = {D_K}, trained {STEPS} steps")
    return fig


main = Experiment(
    measure,
    CLAIMS,
    picture,
    title="Without the division by √d_k little is learned",
    note="one head that must look at two places at once · smaller W_q: not divided, but W_q starts smaller by √d_k",
    answer="At d_k = 64 and the best of three rates {n[divided, best rate]:.0%} are right with the division, "
    "{n[not divided, best rate]:.0%} without it, {n[smaller W_q, best rate]:.0%} with a W_q that starts smaller",
)

if __name__ == "__main__":
    main.run()
