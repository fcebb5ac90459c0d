"""Is one head enough for two look-ups at once?

Each symbol is given by the ones 1 and 3 places before it, through a table drawn at random:

    y_t = table[x_(t-1), x_(t-3)]

With x = 2 0 1 2 ... y_3 is table[1, 2], because x_2 = 1 and x_0 = 2.

One of the two symbols alone says nothing about y_t. Eight heads of size 8 are compared with one of
size 64, which has as many parameters. One head also gets twice the steps, in a training of its own:
the rates rise and fall over all steps of a training, and are the same at their highest for all
three models.
"""

import torch

from phase2_multi_head.models import train_two_lookups
from shared.evidence.claims import Numbers
from shared.experiment import Experiment, Run
from shared.tasks import TwoPlaces

MODELS = {
    "eight heads, 200 steps": (8, 200),
    "one head, 200 steps": (1, 200),
    "one head, 400 steps": (1, 400),
}


@torch.no_grad()
def right_after_training(num_heads: int, seed: int, steps: int) -> float:
    """Share of right answers of a new model to strings that it has not seen."""
    model, symbols, answers = train_two_lookups(num_heads, seed, steps)
    said = model(symbols)[:, TwoPlaces.FIRST :].argmax(dim=-1)
    return (said == answers).double().mean().item()


def measure(run: Run) -> Numbers:
    """Share of right answers to strings not trained on; by chance 0.13."""
    numbers = {}
    for name, (num_heads, steps) in MODELS.items():
        numbers[name] = right_after_training(num_heads, run.seed, run.steps(steps))
    return numbers


main = Experiment(
    measure,
    answer="Eight heads get {n[eight heads, 200 steps]:.0%} of two look-ups at once right after "
    "200 steps, one head {n[one head, 200 steps]:.0%}, and after 400 {n[one head, 400 steps]:.0%}",
)

if __name__ == "__main__":
    main.run()
