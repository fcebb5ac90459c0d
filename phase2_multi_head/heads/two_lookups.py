"""Is one head enough for two look-ups at once?

Each symbol is given by the ones 1 and 3 places before it, through a table drawn at random:

    y_t = table[x_(t-1), x_(t-3)]        x  2 0 1 2 ...      y_3 = table[1, 2], because x_2 = 1 and x_0 = 2

One of the two symbols alone says nothing about y_t. Eight heads of size 8 are compared with one of size 64, which has
as many parameters; one head also gets twice the steps.
"""

from statistics import fmean

import torch

from phase2_multi_head.models import train_two_lookups
from shared.evidence.claims import Claim, Numbers
from shared.experiment import Experiment, Run
from shared.tasks import TwoPlaces

STEPS, MODELS = 200, (1, 2)  # models: of each kind, for each seed


@torch.no_grad()
def share_right(num_heads: int, seed: int, steps: int) -> float:
    """Share of right answers of a new model to strings that it has not seen."""
    with torch.enable_grad():
        model, symbols, answers = train_two_lookups(num_heads, seed, steps)
    return (model(symbols)[:, TwoPlaces.FIRST :].argmax(dim=-1) == answers).double().mean().item()


def measure(run: Run) -> Numbers:
    """Share of right answers to strings not trained on, of two models of each kind; by chance 0.13."""
    numbers, steps = {}, run.steps(STEPS)
    for name, heads, times in (("heads: 8", 8, 1), ("heads: 1", 1, 1), ("heads: 1, twice the steps", 1, 2)):
        for model in MODELS:
            seed = len(MODELS) * run.seed + model - 1
            numbers[f"{name}, model {model}"] = share_right(heads, seed, times * steps)
    return numbers


def solved(n: Numbers, name: str) -> float:
    """The rate of models that are right in 0.95 of the answers; n has a list with a value for each seed."""
    return fmean(share >= 0.95 for model in MODELS for share in n[f"{name}, model {model}"])


CLAIM = Claim(
    id="one-head-two-lookups",
    text="What takes two look-ups at once, one head learns later than eight do; most learn it in the end",
    source="course notes, 'Multi-Head Attention': a single head is limited to one way to compute relevance",
    rule=f"with ten seeds, after {STEPS} steps: eight heads of size 8 solve it, 0.95 right, each time, one head of "
    f"size 64 six times of ten at most (by chance at p = 0.04; Fisher's exact test, one-sided); after {2 * STEPS} "
    "steps one head solves it more often than not",
    holds=lambda n: (
        solved(n, "heads: 8") == 1 and solved(n, "heads: 1") <= 0.6 and solved(n, "heads: 1, twice the steps") > 0.5
    ),
    over_seeds=True,
    oracle={"heads: 1, model 1": [0.4] * 5, "heads: 1, model 2": [0.5] * 5, "*": [1.0] * 5},
    null={"*": [1.0] * 5},
    headline=True,
)


main = Experiment(
    measure,
    [CLAIM],
    answer="Eight heads get {n[heads: 8, model 1]:.0%} of two look-ups at once right, one head "
    "{n[heads: 1, model 1]:.0%}, and after twice the steps {n[heads: 1, twice the steps, model 1]:.0%}",
)

if __name__ == "__main__":
    main.run()
