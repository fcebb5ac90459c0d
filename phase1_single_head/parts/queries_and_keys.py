"""Why do queries and keys need two projections, and not one for both?

Each of seven weekdays should look at the next day, and Sunday at Monday: a ring. We train it with
one matrix for queries and keys, and with two. If W_q = W_k, the score of "x looks at y" is that of
"y looks at x", because both are q_x · q_y. So around the ring the product of all forward weights is
the product of all backward weights. A day's forward and backward weights add up to at most 1, so
the geometric mean of the forward weights is at most 1/2.
"""

import math

import torch

from phase1_single_head.self_attention import scaled_dot_product_attention
from shared.claims import Numbers
from shared.experiment import Experiment, Run

NEXT_DAY = [1, 2, 3, 4, 5, 6, 0]  # day i should look at day NEXT_DAY[i]


def learn_to_look(targets: list[int], seed: int, projections: int) -> float:
    """Trains word i to look at word targets[i]; returns the geometric mean of the weights on them.

    projections: 2, or 1 for queries and keys in one. A word is nothing but its number, so the
    queries and keys of all words are the rows of the two matrices.
    """
    size = len(targets)
    generator = torch.Generator().manual_seed(seed)
    matrices = []
    for _ in range(projections):
        start = 0.5 * torch.randn(size, size, generator=generator)
        matrices.append(start.requires_grad_())
    query, key = matrices[0], matrices[-1]
    optimizer = torch.optim.Adam(matrices, lr=0.1)
    for _ in range(200):
        _, weights = scaled_dot_product_attention(query, key, torch.eye(size))
        loss = -weights[range(size), targets].log().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return math.exp(-loss.item())


def measure(run: Run) -> Numbers:
    """Returns the weight on the next day after 200 steps."""
    return {
        "separate": learn_to_look(NEXT_DAY, run.seed, projections=2),
        "shared": learn_to_look(NEXT_DAY, run.seed, projections=1),
    }


main = Experiment(
    measure,
    answer="Because with one projection for both, x scores y exactly as y scores x: then "
    "{n[shared]:.2f} of a day's weight lies on the next day, and with two {n[separate]:.2f}.",
)

if __name__ == "__main__":
    main.run()
