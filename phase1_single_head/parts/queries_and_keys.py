"""Why do queries and keys need two projections, and not one for both?

If W_q = W_k, the score of "x looks at y" is the score of "y looks at x", q_x · q_y. Along a ring a
-> b -> ... -> a the product of the weights is then the same forward and backward, and a word's
forward and backward weight together are at most 1: so the geometric mean of the forward ones is at
most 1/2.
"""

import math

import torch

from phase1_single_head.self_attention import scaled_dot_product_attention
from shared.evidence.claims import Numbers
from shared.experiment import Experiment, Run

RING = [1, 2, 3, 4, 5, 6, 0]  # word i should look at word RING[i]


def learn_to_look(targets: list[int], seed: int, projections: int) -> float:
    """Train queries and keys until word i looks at targets[i] -> the weight it gives it, geometric
    mean.
    """
    generator, size = torch.Generator().manual_seed(seed), len(targets)
    made = [
        (0.5 * torch.randn(size, size, generator=generator)).requires_grad_()
        for _ in range(projections)
    ]
    optimizer = torch.optim.Adam(made, lr=0.1)
    for _ in range(200):
        _, weights = scaled_dot_product_attention(made[0], made[-1], torch.eye(size))
        loss = -weights[range(size), targets].log().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return math.exp(-loss.item())


def measure(run: Run) -> Numbers:
    """Weight on the right word after 200 steps; the words are bare identities, known by content
    alone.
    """
    return {
        name: learn_to_look(RING, run.seed, number)
        for name, number in (("separate", 2), ("shared", 1))
    }


ANSWER = "With two matrices {n[separate]:.2f} of the weight lies on the next day, with one {n[shared]:.2f}"
main = Experiment(measure, answer=ANSWER)

if __name__ == "__main__":
    main.run()
