"""Why do queries and keys need two projections, and not one for both?

If W_q = W_k, the score of "x looks at y" is the score of "y looks at x", q_x · q_y. Along a ring a -> b -> ... -> a the
product of the weights is then the same forward and backward, and a word's forward and backward weight together are at
most 1: so the geometric mean of the forward ones is at most 1/2.
"""

import math

import torch

from phase1_single_head.self_attention import scaled_dot_product_attention
from shared.evidence.claims import Claim, Numbers
from shared.experiment import Experiment, Run

TARGETS = {"ring": [1, 2, 3, 4, 5, 6, 0], "star": [6, 6, 6, 6, 6, 6, 6]}  # word i should look at word TARGETS[i]


def learn_to_look(targets: list[int], seed: int, projections: int) -> float:
    """Train queries and keys until word i looks at targets[i] -> the weight it gives it, geometric mean."""
    generator, size = torch.Generator().manual_seed(seed), len(targets)
    made = [(0.5 * torch.randn(size, size, generator=generator)).requires_grad_() for _ in range(projections)]
    optimizer = torch.optim.Adam(made, lr=0.1)
    for _ in range(200):
        _, weights = scaled_dot_product_attention(made[0], made[-1], torch.eye(size))
        loss = -weights[range(size), targets].log().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return math.exp(-loss.item())


def measure(run: Run) -> Numbers:
    """Weight on the right word after 200 steps; the words are bare identities, known by content alone."""
    return {
        f"{relation}, {name}": learn_to_look(targets, run.seed, number)
        for relation, targets in TARGETS.items()
        for name, number in (("separate", 2), ("shared", 1))
    }


CLAIM = Claim(
    id="C085",
    text="Without separate projections a head cannot learn to search for one thing and be found by another",
    source='notebook on attention, "Why This Design?"',
    rule="separate ones reach 0.9 and a shared one at most 0.6, in both relations",
    holds=lambda n: all(n[f"{name}, separate"] >= 0.9 and n[f"{name}, shared"] <= 0.6 for name in TARGETS),
    only_if=lambda n: n["ring, separate"] >= 0.9 and n["ring, shared"] <= 0.6,
    oracle={"*, separate": 1.0, "*, shared": 0.5},
    null={"*": 1.0},
    condition="the relation runs in a ring; that many words look at one is learned without",
)
ANSWER = "With two matrices {n[ring, separate]:.2f} of the weight lies on the next day, with one {n[ring, shared]:.2f}"
main = Experiment(measure, [CLAIM], answer=ANSWER)

if __name__ == "__main__":
    main.run()
