"""Why do queries and keys need two projections, and not one for both?

If W_q = W_k, the score of "x looks at y" is the score of "y looks at x", q_x · q_y. The weights may still differ, since
each row has its own sum, but a ring, where a looks at b, b at c and c at a, is out of reach. And q · q = |q|² makes
most words look at themselves: the bright diagonal of demonstrations that set Q = K = V = X, where nothing is learned.

    python phase1_single_head/parts/queries_and_keys.py
"""

import math

import torch
from torch import Tensor

from phase1_single_head.models import load_single_head_model
from phase1_single_head.parts.soft_lookup import Reading, read_held_out
from phase1_single_head.self_attention import SelfAttention, scaled_dot_product_attention
from shared import cli
from shared.evidence import findings
from shared.evidence.claims import EXPERIMENT, Claim, Numbers, measures

# Who should look at whom among seven words: word i at word TARGETS[i].
WEEK, PHRASE = "each weekday looks at the next", "the words of a phrase look at its noun"
TARGETS = {WEEK: [1, 2, 3, 4, 5, 6, 0], PHRASE: [6, 6, 6, 6, 6, 6, 6]}


def learn_to_look(targets: list[int], seed: int, *, shared: bool) -> float:
    """Train queries and keys until word i looks at targets[i] -> the weight it then gives it (geometric mean).

    The words are bare identities without positions: content alone. shared: one projection for queries and keys. Scores
    are symmetric then, and the weights along a ring a -> b -> ... -> a have the same product forward and backward (the
    sums of the rows cancel). A word's forward and backward weight together are at most 1, their product at most 1/4: so
    the geometric mean of the forward weights is at most 1/2.
    """
    generator = torch.Generator().manual_seed(seed)
    size = len(targets)
    projections = [
        (0.5 * torch.randn(size, size, generator=generator)).requires_grad_() for _ in range(1 if shared else 2)
    ]
    optimizer = torch.optim.Adam(projections, lr=0.1)
    for _ in range(200):
        _, weights = scaled_dot_product_attention(projections[0], projections[-1], torch.eye(size))
        loss = -weights[range(size), targets].log().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return math.exp(-loss.item())


def needed(numbers: Numbers, relation: str) -> bool:
    return numbers[f"{relation}, separate"] >= 0.9 and numbers[f"{relation}, shared"] <= 0.6


@measures(
    Claim(
        id="C085",
        text="Without separate projections a head cannot learn to search for one thing and be found by another",
        kind=EXPERIMENT,
        source='notebook on attention, "Why This Design?"',
        rule="separate ones for queries and keys reach 0.9 and a shared one at most 0.6, in both relations",
        holds=lambda n: needed(n, WEEK) and needed(n, PHRASE),
        only_if=lambda n: needed(n, WEEK),
        condition="the relation runs in a ring; that many words look at one is learned without",
        oracle={f"{name}, {kind}": float(kind == "separate") for name in TARGETS for kind in ("separate", "shared")},
        null={f"{name}, {kind}": 1.0 for name in TARGETS for kind in ("separate", "shared")},
        unit="weight on the right word after 200 steps, geometric mean over seven words known by content alone",
        control="at most 0.5 by proof, for a ring with a shared projection",
    )
)
def learned_relations(seed: int) -> dict[str, float]:
    """Both relations, with separate projections and with a shared one."""
    return {
        f"{name}, {'shared' if shared else 'separate'}": learn_to_look(targets, seed, shared=shared)
        for name, targets in TARGETS.items()
        for shared in (False, True)
    }


def share_on_diagonal(weights: Tensor) -> float:
    """Share of the rows of (..., T, T) whose largest weight lies on their own position."""
    own = torch.arange(weights.size(-1))
    return (weights.argmax(dim=-1) == own).double().mean().item()


@torch.no_grad()
def diagonals(readings: list[Reading]) -> dict[str, float]:
    """Share of rows with the largest weight on themselves: vectors compared with themselves, projected, trained."""
    x = torch.randn(200, 5, 8, generator=torch.Generator().manual_seed(0))  # 200 times 5 words of 8 numbers
    _, same = scaled_dot_product_attention(x, x, x)
    _, projected = zip(*(SelfAttention(8)(item[None]) for item in x), strict=True)  # new projections every time
    rows = sum(len(r.words) for r in readings)
    own = sum(share_on_diagonal(r.weights) * len(r.words) for r in readings) / rows
    return {
        "Q = K = X": share_on_diagonal(same),
        "separate random projections": share_on_diagonal(torch.cat(projected)),
        "the trained head": own,
        "by chance, 5 words": 1 / 5,
    }


@cli.script
def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    shares = diagonals(read_held_out(load_single_head_model(options)))
    print("\nRows with their largest weight on themselves")
    print("   " + ", ".join(f"{name}: {share:.0%}" for name, share in shares.items()))
    learned = [learned_relations(seed) for seed in cli.seeds(options)]
    findings.record(options, *learned)
    separate, shared = learned[0][f"{WEEK}, separate"], learned[0][f"{WEEK}, shared"]
    return f'For direction: "Monday looks at Tuesday" reaches {separate:.2f} with two, {shared:.2f} with one'


if __name__ == "__main__":
    cli.run(main)
