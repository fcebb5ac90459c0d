"""Numbers that sum up weights: row sums, entropy, effective context. What each says, and where it misleads.

A row of weights sums to 1. Its entropy says how evenly it is spread, from 0 for one word to ln n for n words alike, and
exp of that is a number of words. But a check of one row says nothing about the others, entropies compare rows only if
they may look at equally many words, and a mean of exponentials is not the exponential of a mean.

    python phase1_single_head/reading/weight_statistics.py
"""

import argparse
import math

import torch
from torch import Tensor

from phase1_single_head.parts.soft_lookup import Reading, read_held_out
from phase1_single_head.self_attention import load_single_head_model, scaled_dot_product_attention
from shared import cli
from shared.attention_utils import attention_entropy, effective_context, normalized_entropy
from shared.evidence import findings
from shared.evidence.findings import Finding


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


def made_patterns(length: int = 20, size: int = 64, draws: int = 20) -> dict[str, Tensor]:
    """Weights (draws, T, T) of random queries and keys, and of keys that are the queries, once and ten times."""
    generator = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, draws, length, size, generator=generator, dtype=torch.float64)
    pairs = {
        "random": (query, key),
        "random, not divided by √d": (math.sqrt(size) * query, key),
        "K = Q": (query, query),
        "K = 10 Q": (query, 10 * query),
    }
    return {name: scaled_dot_product_attention(q, k, k)[1] for name, (q, k) in pairs.items()}


def rows_of_entropy() -> dict[str, float | list[float]]:
    """Entropies of rows whose evenness is known: from one word to even over 20, even over 2, and 0.7 on one of 20."""
    one, even = torch.eye(20, dtype=torch.float64)[0], torch.full((20,), 1 / 20, dtype=torch.float64)
    mixed = torch.stack([torch.lerp(one, even, share / 4) for share in range(5)])
    peaked = 0.7 * one + 0.3 / 19 * (1 - one)
    return {
        "one word of 20 to even over 20": attention_entropy(mixed).tolist(),
        "even over 2": attention_entropy(torch.full((2,), 0.5, dtype=torch.float64)).item(),
        "0.7 on one of 20": attention_entropy(peaked).item(),
    }


def show_errors(weights: Tensor) -> dict[str, int]:
    print("\n1. Does weights[0, 0].sum() = 1 show that weights sum to 1? Double one row after the other")
    noticed = errors_noticed(weights)
    print("   " + ", ".join(f"{name}: {count}" for name, count in noticed.items()))
    return noticed


def show_entropies() -> dict[str, float | list[float]]:
    print(f"\n2. Entropy: 0 for one word, ln 20 = {math.log(20):.2f} for 20 alike")
    entropies = rows_of_entropy()
    for name, entropy in entropies.items():
        print(f"   {name:32} {findings.number(entropy)}")
    print("   The last two: an even row has less entropy than a peaked one, because it may look at 2 words only.")
    return entropies


def show_context(readings: list[Reading]) -> dict[str, float]:
    """exp(entropy) of even rows, and of the trained head averaged before and after exp."""
    print("\n3. Effective context, exp(entropy), is a number of words")
    even = torch.stack([effective_context(torch.full((k,), 1 / k, dtype=torch.float64)) for k in range(1, 21)])
    entropy = torch.cat([attention_entropy(reading.weights) for reading in readings])
    context = {
        "even rows of 1 to 20 words, largest error": (even - torch.arange(1, 21)).abs().max().item(),
        "trained head, mean of exp(entropy)": entropy.exp().mean().item(),
        "trained head, exp(mean entropy)": entropy.mean().exp().item(),
    }
    for name, value in context.items():
        print(f"   {name:42} {findings.number(value)}")
    return context


def show_patterns(patterns: dict[str, Tensor]) -> dict[str, tuple[float, float]]:
    """Normalised entropy and weight on the diagonal of the made patterns."""
    print("\n4. Patterns made of random numbers, 20 words: entropy / ln 20, weight of a word on itself")
    found = {
        name: (normalized_entropy(weights).mean().item(), weights.diagonal(dim1=-2, dim2=-1).mean().item())
        for name, weights in patterns.items()
    }
    for name, (entropy, diagonal) in found.items():
        print(f"   {name:27} {entropy:5.2f} {diagonal:6.2f}")
    return found


def record_findings(
    noticed: dict[str, int],
    entropies: dict[str, float | list[float]],
    context: dict[str, float],
    patterns: dict[str, tuple[float, float]],
    options: argparse.Namespace,
) -> None:
    path, even, peaked = entropies.values()
    rising = path[0] == 0 and abs(path[-1] - math.log(20)) < 1e-12 and path == sorted(path)
    error, before, after = context.values()
    random, undivided, same, ten = patterns.values()
    findings.record(
        "phase1_single_head/reading/weight_statistics.py",
        [
            Finding(
                "C140",
                "weights[0, 0].sum() = 1 shows that the weights sum to 1",
                "course notes",
                noticed,
                "rows that were doubled, one at a time, and noticed",
                "an error in any row is noticed",
                findings.verdict(noticed["weights[0, 0].sum()"] == noticed["rows"]),
                control="the sums of all rows, weights.sum(dim=-1)",
            ),
            Finding(
                "C131",
                "Higher entropy means more even attention, from 0 to ln n",
                "course notes",
                entropies,
                "nats",
                "0 for one word, ln n for all alike, rising between; and an even row is above a peaked one",
                **findings.conditional(
                    rising and even > peaked, rising, "rows may look at equally many words; otherwise divide by ln n"
                ),
            ),
            Finding(
                "C132",
                "The effective context is exp(entropy)",
                "course notes",
                context,
                "words",
                "exact for even rows, and the same to 1 % whether exp or the mean over rows comes first",
                **findings.conditional(
                    error < 1e-9 and abs(before - after) < 0.01 * before,
                    error < 1e-9,
                    "taken row by row, and averaged afterwards",
                ),
                seeds=[options.seed],
            ),
            Finding(
                "C133",
                "Keys equal to the queries, times ten, give a peaked diagonal",
                "course notes",
                {"normalised entropy": ten[0], "weight on the diagonal": ten[1]},
                "20 words, d = 64, mean over rows",
                "entropy below 0.01, diagonal above 0.99",
                findings.verdict(ten[0] < 0.01 and ten[1] > 0.99),
                control=f"without the ten: entropy {same[0]:.2f}, diagonal {same[1]:.2f}",
            ),
            Finding(
                "C134",
                "Random queries and keys give distributed attention",
                "course notes",
                {"normalised entropy": random[0], "weight on the diagonal": random[1]},
                "20 words, d = 64, mean over rows",
                "entropy above 0.75, diagonal below 2/20",
                findings.verdict(random[0] > 0.75 and random[1] < 2 / 20),
                control=f"not divided by √d: {undivided[0]:.2f}",
            ),
        ],
        options.output_dir,
    )


def main(argv: list[str] | None = None) -> None:
    options = cli.parse(cli.parser(__doc__), argv)
    trained = load_single_head_model(options)
    if options.train_only:
        return
    patterns = made_patterns()
    noticed, entropies = show_errors(patterns["random"][:2]), show_entropies()
    context, shown = show_context(read_held_out(trained)), show_patterns(patterns)
    record_findings(noticed, entropies, context, shown, options)


if __name__ == "__main__":
    cli.run(main)
