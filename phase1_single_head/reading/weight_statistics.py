"""Where do row sums, entropy and effective context of attention mislead?

A row of weights sums to 1. Its entropy says how evenly it is spread, from 0 for one word to ln n for n words alike, and
exp of that is a number of words. But a check of one row says nothing about the others, entropies compare rows only if
they may look at equally many words, and a mean of exponentials is not the exponential of a mean.

    python phase1_single_head/reading/weight_statistics.py
"""

import math

import torch
from torch import Tensor

from phase1_single_head.models import load_single_head_model
from phase1_single_head.parts.soft_lookup import read_held_out
from phase1_single_head.self_attention import scaled_dot_product_attention
from shared import cli
from shared.attention_utils import attention_entropy, normalized_entropy

WORDS, SIZE, DRAWS = 20, 64, 20  # of the patterns made of random numbers


def errors_noticed(weights: Tensor) -> tuple[int, int, int]:
    """Double each row of weights (B, T, T) in turn -> noticed by weights[0, 0].sum(), by weights.sum(dim=-1); rows."""
    one = every = 0
    for item in range(weights.size(0)):
        for row in range(weights.size(1)):
            broken = weights.clone()
            broken[item, row] *= 2
            one += abs(broken[0, 0].sum().item() - 1) > 1e-3
            every += bool(((broken.sum(dim=-1) - 1).abs() > 1e-3).any())
    return one, every, weights.shape[:2].numel()


def made_patterns() -> dict[str, Tensor]:
    """Weights (draws, T, T) of random queries and keys, and of keys that are the queries, once and ten times."""
    generator = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, DRAWS, WORDS, SIZE, generator=generator, dtype=torch.float64)
    pairs = {
        "random": (query, key),
        "random, not divided by √d": (math.sqrt(SIZE) * query, key),
        "K = Q": (query, query),
        "K = 10 Q": (query, 10 * query),
    }
    return {name: scaled_dot_product_attention(q, k, k)[1] for name, (q, k) in pairs.items()}


@cli.script
def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    patterns = made_patterns()
    one, every, rows = errors_noticed(patterns["random"][:2])
    print(f"\nOf {rows} rows, doubled one at a time, weights[0, 0].sum() notices {one}, weights.sum(dim=-1) {every}")

    peaked = torch.full((WORDS,), 0.3 / (WORDS - 1))
    peaked[0] = 0.7
    print("\nEntropy, and divided by ln n; e to it, a number of words")
    for name, row in (
        (f"even over {WORDS}", torch.full((WORDS,), 1 / WORDS)),
        (f"0.7 on one of {WORDS}", peaked),
        ("even over 2", torch.full((2,), 0.5)),
    ):
        entropy = attention_entropy(row).item()
        print(f"   {name:26} {entropy:.2f}   {normalized_entropy(row).item():.2f}   {math.exp(entropy):5.2f}")

    entropy = torch.cat([attention_entropy(r.weights) for r in read_held_out(load_single_head_model(options))])
    first, last = entropy.exp().mean().item(), entropy.mean().exp().item()
    print(f"   all rows of the trained head: mean of e to the entropy {first:.2f}, e to the mean entropy {last:.2f}")

    print(f"\n{WORDS} words of {SIZE} random numbers: normalised entropy, weight on the diagonal")
    for name, weights in patterns.items():
        diagonal = weights.diagonal(dim1=-2, dim2=-1).mean().item()
        print(f"   {name:26} {normalized_entropy(weights).mean().item():.2f}   {diagonal:.2f}")
    return f"One row's sum notices {one} of {rows} broken rows"


if __name__ == "__main__":
    cli.run(main)
