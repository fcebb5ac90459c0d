"""What does dividing by √d_k do to softmax, to gradients, and to learning?

First on random vectors: a query, six keys and values of independent numbers with variance 1; L is the output. Then in
training: one head must look at the symbols 1 and 3 places before, with the division, without it, and without it but
with a W_q that starts smaller by √d_k, as in T5. The last starts with the scores and gradients of the first, but each
step of AdamW moves its scores √d_k times as far. It is slower: there after 900 steps, the second not after 2,700.
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
from shared.attention_utils import normalized_entropy
from shared.evidence.claims import Above, Claim, Numbers
from shared.experiment import Experiment, Results, Run
from shared.tasks import TwoPlaces, train_two_places
from shared.visualization_utils import BLUE, RED

SIZES, TRAINED = (8, 32, 64, 128, 512), (8, 64, 128)  # of d_k; 64 is customary
NUM_KEYS, NUM_DRAWS, STEPS = 6, 2000, 300
VARIANTS = {"divided": SelfAttention, "not divided": UndividedSelfAttention, "smaller W_q": FoldedSelfAttention}
COLORS = {"divided": BLUE, "not divided": RED}


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
        "spread of scores": scores.std().item(),
        "entropy": normalized_entropy(weights.detach()).mean().item(),
        "largest weight": weights.amax(dim=-1).mean().item(),
        "mean |dL/dscores|": at_scores.norm(dim=-1).mean().item(),
        "mean |dL/dq|": at_query.norm(dim=-1).mean().item(),
        "median |dL/dq|": at_query.norm(dim=-1).median().item(),
    }


def learned(variant: str, d_k: int, run: Run) -> float:
    """Share of right answers in the last tenth of training."""
    head = VARIANTS[variant]
    _, _, right = train_two_places(
        lambda d_model: head(d_model, d_k, output_projection=True), run.seed, run.steps(STEPS)
    )
    return fmean(right[-max(1, len(right) // 10) :])


def measure(run: Run) -> Numbers:
    """Of the vectors, by d_k, divided and not; of training the share of right answers, by variant and d_k."""
    found = {}
    for d_k in SIZES:
        for divide, name in ((True, "divided"), (False, "not divided")):
            statistics = random_vectors(d_k, divide, run.seed)
            found |= {f"{statistic}, {name}, {d_k}": value for statistic, value in statistics.items()}
    trained = [(variant, d_k) for variant in COLORS for d_k in TRAINED] + [("smaller W_q", 64)]
    for variant, d_k in tqdm(trained, desc="training with and without the division", leave=False, disable=None):
        found[f"{variant}, {d_k}"] = learned(variant, d_k, run)
    return found


def shrinks(n: Numbers, gradient: str, d_k: int) -> bool:
    """Is it at most a tenth of that with the division?"""
    return n[f"{gradient}, not divided, {d_k}"] <= 0.1 * n[f"{gradient}, divided, {d_k}"]


CLAIMS = (
    Claim(
        id="C008",
        text="With a large d_k (64, 128) and without the division gradients become tiny",
        source='course notes, "Why Scaling Matters"',
        rule="at 64 and 128 at most a tenth of that with the division: at the scores, or of the median query",
        holds=lambda n: all(shrinks(n, "mean |dL/dscores|", d) or shrinks(n, "median |dL/dq|", d) for d in (64, 128)),
        only_if=lambda n: shrinks(n, "median |dL/dq|", 512),
        condition="d_k is in the hundreds (512), and for most queries: the mean at the query is even larger",
        oracle={"*, not divided, *": 0.001, "*": 0.3},
        null={"*": 0.3},
        headline=True,
    ),
    Claim(
        id="C010",
        text="With a large d_k (64, 128) training fails without the division by √d_k",
        source='course notes, "Why Scaling Matters"',
        rule="at 64 and 128, in the mean of both, at least 0.3 fewer right than with it; the mean over seeds",
        holds=Above(lambda n: fmean(n[f"divided, {d}"] - n[f"not divided, {d}"] for d in (64, 128)), 0.3),
        oracle={"not divided, *": 1 / TwoPlaces.SYMBOLS, "*": 1.0},
        null={"*": 1.0},
        headline=True,
    ),
    Claim(
        id="C012",
        text="With AdamW, as with T5's Adafactor, a model learns as fast with a W_q that starts smaller by √d_k as "
        "with the division",
        source='asked of Raffel et al. 2020, whose code says "equivalent under Adafactor"',
        rule="at d_k = 64 at most 0.1 fewer right than with the division; the mean over seeds",
        holds=Above(lambda n: n["smaller W_q, 64"] - n["divided, 64"], -0.1),
        oracle={"not divided, *": 1 / TwoPlaces.SYMBOLS, "*": 1.0},
        null={"divided, *": 1.0, "*": 0.3},
    ),
)


def picture(found: Results) -> Figure:
    """Left: how much of the weight one of six keys takes. Right: what is learned."""
    fig, (left, right) = plt.subplots(1, 2, figsize=(9.6, 4.4), layout="constrained")
    lines = {name: found.row(f"largest weight, {name}", SIZES) for name in COLORS}
    charts.lines(left, SIZES, lines, COLORS, guess=1 / NUM_KEYS, guess_name="all alike")
    left.set(ylim=(0, 1), xlabel="d_k", ylabel="largest of six weights", title="random vectors")
    lines = {name: found.row(name, TRAINED) for name in COLORS}
    charts.lines(right, TRAINED, lines, COLORS, guess=1 / TwoPlaces.SYMBOLS)
    right.set(ylim=(0, 1), xlabel="d_k", ylabel="answers right", title=f"trained {STEPS} steps")
    return fig


main = Experiment(
    measure,
    CLAIMS,
    picture,
    title="Without the division by √d_k one key takes nearly all,\nand little is learned at a large d_k",
    note="one head that must look at two places at once",
    answer="At the customary d_k = 64 a model is right {n[divided, 64]:.0%} of the time with the division, "
    "{n[not divided, 64]:.0%} without it, {n[smaller W_q, 64]:.0%} with a W_q that starts smaller instead",
)

if __name__ == "__main__":
    main.run()
