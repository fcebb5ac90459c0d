"""Is one head enough for two look-ups at once?

Each symbol is given by the ones 1 and 3 places before it, through a table drawn at random:

    y_t = table[x_(t-1), x_(t-3)]

With x = 2 0 1 2 ... y_3 is table[1, 2], because x_2 = 1 and x_0 = 2.

One of the two symbols alone says nothing about y_t. We compare eight heads of size 8 with one head
of size 64, which has as many parameters. One head also gets twice the steps, in a training of its
own. The learning rates rise and fall over all steps of a training, and at their highest they are
the same for all three models.
"""

import torch

from phase1_single_head.parts.two_places import TwoPlaces
from phase2_multi_head.models import train_two_lookups
from shared.claims import Numbers
from shared.experiment import Experiment, Run

MODELS = {
    "eight heads, 200 steps": (8, 200),
    "one head, 200 steps": (1, 200),
    "one head, 400 steps": (1, 400),
}


@torch.no_grad()
def right_after_training(num_heads: int, seed: int, steps: int) -> float:
    """Returns the share of right answers of a new model to strings that it has not seen."""
    model, symbols, answers = train_two_lookups(num_heads, seed, steps)
    guesses = model(symbols)[:, TwoPlaces.FIRST :].argmax(dim=-1)
    return (guesses == answers).double().mean().item()


def measure(run: Run) -> Numbers:
    """Returns shares of right answers to strings not trained on; by chance they are 0.13."""
    numbers = {}
    for name, (num_heads, steps) in MODELS.items():
        numbers[name] = right_after_training(num_heads, run.seed, run.steps(steps))
    return numbers


main = Experiment(
    measure,
    answer="One head gets {n[one head, 200 steps]:.0%} of the answers right after 200 steps and "
    "{n[one head, 400 steps]:.0%} after 400; eight heads get {n[eight heads, 200 steps]:.0%} right "
    "after 200.",
)

if __name__ == "__main__":
    main.run()
