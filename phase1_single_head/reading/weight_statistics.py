"""Where do row sums, entropy and effective context of attention mislead?

A row of weights sums to 1. Its entropy says how evenly it is spread, from 0 for one word to ln n for n words alike, and
exp of that is a number of words. But a check of one row says nothing about the others, entropies compare rows only if
they may look at equally many words, and a mean of exponentials is not the exponential of a mean.

    python phase1_single_head/reading/weight_statistics.py
"""

import math

import torch
from torch import Tensor

from phase1_single_head.parts.soft_lookup import Reading, read_held_out
from phase1_single_head.self_attention import load_single_head_model, scaled_dot_product_attention
from shared import cli
from shared.attention_utils import attention_entropy, effective_context, normalized_entropy
from shared.evidence import findings
from shared.evidence.claims import EXPERIMENT, IDENTITY, Claim, measures

WORDS, SIZE, DRAWS = 20, 64, 20  # of the patterns made of random numbers


@measures(
    Claim(
        id="C140",
        text="weights[0, 0].sum() = 1 shows that the weights sum to 1",
        kind=IDENTITY,
        rule="an error in any row is noticed",
        holds=lambda n: n["weights[0, 0].sum()"] == n["rows"],
        unit="rows that were doubled, one at a time, and noticed",
        control="the sums of all rows, weights.sum(dim=-1)",
    )
)
def errors_noticed(weights: Tensor) -> dict[str, int]:
    """Break each row of weights (B, T, T) in turn -> how often one row's sum shows it, and the sums of all rows."""
    noticed = {"weights[0, 0].sum()": 0, "weights.sum(dim=-1)": 0, "rows": weights.shape[:2].numel()}
    for item in range(weights.size(0)):
        for row in range(weights.size(1)):
            broken = weights.clone()
            broken[item, row] *= 2
            noticed["weights[0, 0].sum()"] += abs(broken[0, 0].sum().item() - 1) > 1e-3
            noticed["weights.sum(dim=-1)"] += bool(((broken.sum(dim=-1) - 1).abs() > 1e-3).any())
    return noticed


def rises_to_the_limit(path: list[float]) -> bool:
    return path[0] == 0 and abs(path[-1] - math.log(WORDS)) < 1e-12 and path == sorted(path)


@measures(
    Claim(
        id="C131",
        text="Higher entropy means more even attention, from 0 to ln n",
        kind=IDENTITY,
        rule="0 for one word, ln n for all alike, rising between; and an even row is above a peaked one",
        holds=lambda n: rises_to_the_limit(n["from one word to even over 20"]) and n["even over 2"] > n["0.7 on one"],
        only_if=lambda n: rises_to_the_limit(n["from one word to even over 20"]),
        condition="rows may look at equally many words; otherwise divide by ln n",
        unit="nats",
    )
)
def rows_of_entropy() -> dict[str, float | list[float]]:
    """Entropies of rows whose evenness is known; the last two: even over two words, and 0.7 on one of twenty."""
    one = torch.eye(WORDS, dtype=torch.float64)[0]
    even = torch.full_like(one, 1 / WORDS)
    mixed = torch.stack([torch.lerp(one, even, share / 4) for share in range(5)])
    peaked = 0.7 * one + 0.3 / (WORDS - 1) * (1 - one)
    return {
        "from one word to even over 20": attention_entropy(mixed).tolist(),
        "even over 2": attention_entropy(torch.full((2,), 0.5, dtype=torch.float64)).item(),
        "0.7 on one": attention_entropy(peaked).item(),
    }


@measures(
    Claim(
        id="C132",
        text="The effective context is exp(entropy)",
        kind=IDENTITY,
        rule="exact for even rows, and the same to 1 % whether exp or the mean over rows comes first",
        holds=lambda n: (
            n["error on even rows"] < 1e-9 and abs(n["exp first"] - n["mean first"]) < 0.01 * n["exp first"]
        ),
        only_if=lambda n: n["error on even rows"] < 1e-9,
        condition="taken row by row, and averaged afterwards",
        unit="words; even rows of 1 to 20 words, and the rows of the trained head",
    )
)
def context_sizes(readings: list[Reading]) -> dict[str, float]:
    """exp(entropy) of even rows, and of the trained head averaged before and after exp."""
    even = torch.stack([effective_context(torch.full((k,), 1 / k, dtype=torch.float64)) for k in range(1, 21)])
    entropy = torch.cat([attention_entropy(reading.weights) for reading in readings])
    return {
        "error on even rows": (even - torch.arange(1, 21)).abs().max().item(),
        "exp first": entropy.exp().mean().item(),
        "mean first": entropy.mean().exp().item(),
    }


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


@measures(
    Claim(
        id="C133",
        text="Keys equal to the queries, times ten, give a peaked diagonal",
        kind=EXPERIMENT,
        rule="entropy below 0.01, diagonal above 0.99",
        holds=lambda n: n["K = 10 Q: entropy"] < 0.01 and n["K = 10 Q: diagonal"] > 0.99,
        oracle={"K = 10 Q: entropy": 0.0, "K = 10 Q: diagonal": 1.0},
        null={"K = 10 Q: entropy": 0.9, "K = 10 Q: diagonal": 0.05},
        unit="20 words, d = 64, entropy divided by ln 20, mean over rows",
        control="without the ten",
        shows=("K = *",),
    ),
    Claim(
        id="C134",
        text="Random queries and keys give distributed attention",
        kind=EXPERIMENT,
        rule="entropy above 0.75, diagonal below 2/20",
        holds=lambda n: n["random: entropy"] > 0.75 and n["random: diagonal"] < 2 / 20,
        oracle={"random: entropy": 1.0, "random: diagonal": 1 / 20},
        null={"random: entropy": 0.0, "random: diagonal": 1.0},
        unit="20 words, d = 64, entropy divided by ln 20, mean over rows",
        control="not divided by √d",
        shows=("random*",),
    ),
)
def spread_of(patterns: dict[str, Tensor]) -> dict[str, float]:
    """Normalised entropy and weight on the diagonal of the patterns made of random numbers."""
    found = {}
    for name, weights in patterns.items():
        found[f"{name}: entropy"] = normalized_entropy(weights).mean().item()
        found[f"{name}: diagonal"] = weights.diagonal(dim1=-2, dim2=-1).mean().item()
    return found


def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    patterns = made_patterns()
    noticed = errors_noticed(patterns["random"][:2])
    context = context_sizes(read_held_out(load_single_head_model(options)))
    findings.record(options, noticed, rows_of_entropy(), context, spread_of(patterns))
    return f"One row's sum notices {noticed['weights[0, 0].sum()']} of {noticed['rows']} broken rows"


if __name__ == "__main__":
    cli.run(main)
