"""Why queries and keys are two projections: with one for both, looking has no direction, and words see themselves.

If W_q = W_k, the score of "x looks at y" is the score of "y looks at x", q_x · q_y. The weights may still differ, since
each row has its own sum, but a ring, where a looks at b, b at c and c at a, is out of reach. And q · q = |q|² makes
most words look at themselves: the bright diagonal of demonstrations that set Q = K = V = X.

    python phase1_single_head/parts/queries_and_keys.py
    python phase1_single_head/parts/queries_and_keys.py --sentence "those dogs slept in a small soft bed"
"""

import argparse
import math

import torch
from torch import Tensor

from phase1_single_head.parts.soft_lookup import Reading, long_words, read, read_held_out
from phase1_single_head.self_attention import SelfAttention, load_single_head_model, scaled_dot_product_attention
from shared import cli
from shared.evidence import findings
from shared.evidence.findings import Finding

# Who should look at whom among seven words: word i at word TARGETS[i].
WEEK, PHRASE = "each weekday looks at the next", "the words of a phrase look at its noun"
TARGETS = {WEEK: [1, 2, 3, 4, 5, 6, 0], PHRASE: [6, 6, 6, 6, 6, 6, 6]}


def asymmetry(matrix: Tensor) -> float:
    """|M - Mᵀ| / |M|: 0 if i to j is always the same as j to i, about √2 for independent entries."""
    return ((matrix - matrix.T).norm() / matrix.norm()).item()


@torch.enable_grad()
def learn_to_look(targets: list[int], *, shared: bool, seed: int = 0) -> float:
    """Train queries and keys until word i looks at targets[i] -> the weight it then gives it (geometric mean).

    The words are bare identities without positions: content alone. shared: one projection for queries and keys. Scores
    are symmetric then, and the weights along a ring a -> b -> ... -> a have the same product forward and backward (the
    sums of the rows cancel). A word's forward and backward weight together are at most 1, their product at most 1/4: so
    the geometric mean of the forward weights is at most 1/2.
    """
    generator = torch.Generator().manual_seed(seed)
    size = len(targets)
    projections = [(0.5 * torch.randn(size, size, generator=generator)).requires_grad_() for _ in range(2 - shared)]
    optimizer = torch.optim.Adam(projections, lr=0.1)
    for _ in range(200):
        _, weights = scaled_dot_product_attention(projections[0], projections[-1], torch.eye(size))
        loss = -weights[range(size), targets].log().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return math.exp(-loss.item())


def share_on_diagonal(weights: Tensor) -> float:
    """Share of the rows of (..., T, T) whose largest weight lies on their own position."""
    own = torch.arange(weights.size(-1))
    return (weights.argmax(dim=-1) == own).double().mean().item()


def trainable_numbers(output: Tensor) -> int:
    """How many numbers a gradient of the output reaches, found by walking its graph back to the parameters."""
    found, waiting, seen = 0, [output.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):  # the end of a path: a tensor that training changes
            found += node.variable.numel()
        waiting.extend(before for before, _ in node.next_functions)
    return found


def show_trainable(d_model: int = 8) -> dict[str, int]:
    """Numbers that training could change: attention among bare vectors, and a head with its projections."""
    x = torch.randn(5, d_model, generator=torch.Generator().manual_seed(0))
    _, bare = scaled_dot_product_attention(x, x, x)
    _, projected = SelfAttention(d_model)(x[None])
    found = {"Q = K = V = X": trainable_numbers(bare), "W_q and W_k": trainable_numbers(projected)}
    print("\n4. How many numbers behind the weights can training change?")
    for name, count in found.items():
        print(f"   {name:28} {count}")
    return found


@torch.no_grad()
def diagonals(readings: list[Reading], draws: int = 200, length: int = 5, d_model: int = 8) -> dict[str, float]:
    """Share of rows with the largest weight on themselves: vectors compared with themselves, projected, trained."""
    x = torch.randn(draws, length, d_model, generator=torch.Generator().manual_seed(0))
    _, same = scaled_dot_product_attention(x, x, x)
    _, projected = zip(*(SelfAttention(d_model)(item[None]) for item in x), strict=True)  # new projections every time
    rows = sum(len(r.words) for r in readings)
    return {
        "Q = K = X": share_on_diagonal(same),
        "separate random projections": share_on_diagonal(torch.cat(projected)),
        "trained head": sum(share_on_diagonal(r.weights) * len(r.words) for r in readings) / rows,
        "by chance, 5 words": 1 / length,
    }


def show_symmetry(head: Reading) -> dict[str, float]:
    """Asymmetry of one sentence's scores and weights, as trained and with W_k replaced by W_q."""
    print('\n1. Is "x looks at y" the same as "y looks at x"? |M - Mᵀ| / |M|, in the sentence')
    print(f'   "{" ".join(head.words)}"')
    found = {}
    for name, key in (("as trained", head.key), ("W_k = W_q", head.query)):
        scores = head.query @ key.T / math.sqrt(key.size(-1))
        found |= {f"{name}: scores": asymmetry(scores), f"{name}: weights": asymmetry(scores.softmax(dim=-1))}
        print(f"   {name:11} scores {asymmetry(scores):.2f}, weights {asymmetry(scores.softmax(dim=-1)):.2f}")
    print("   Two rows with the same score in common have different sums: equal scores, unequal weights.")
    return found


def show_relations() -> dict[str, dict[bool, float]]:
    """Both relations, learned with separate and with shared projections -> weight on the right word."""
    print("\n2. Seven words, content alone: the weight on the right word after 200 steps (geometric mean)")
    learned = {
        name: {shared: learn_to_look(targets, shared=shared) for shared in (False, True)}
        for name, targets in TARGETS.items()
    }
    for name, weight in learned.items():
        print(f"   {name:39} separate {weight[False]:.2f}   shared {weight[True]:.2f}")
    print("   Around a ring shared projections cannot pass 1/2. Towards one noun they can: a long vector attracts all.")
    return learned


def show_diagonals(readings: list[Reading]) -> dict[str, float]:
    print("\n3. How many rows have their largest weight on the word itself?")
    shares = diagonals(readings)
    for name, share in shares.items():
        print(f"   {name:28} {share:.2f}")
    return shares


def record_findings(
    symmetry: dict[str, float],
    learned: dict[str, dict[bool, float]],
    shares: dict[str, float],
    trainable: dict[str, int],
    options: argparse.Namespace,
) -> None:
    needed = {name: weight[False] >= 0.9 > weight[True] for name, weight in learned.items()}
    kinds = {False: "separate", True: "shared"}
    settings = [share for name, share in shares.items() if name != "by chance, 5 words"]
    findings.record(
        "phase1_single_head/parts/queries_and_keys.py",
        [
            Finding(
                "shared-projection",
                "With one projection for queries and keys, x attends to y as much as y to x",
                "course notes",
                symmetry,
                "|M - Mᵀ| / |M|: 0 symmetric, about 1.4 unrelated",
                "scores and weights with W_k = W_q are both below 0.01",
                **findings.conditional(
                    max(symmetry["W_k = W_q: scores"], symmetry["W_k = W_q: weights"]) < 0.01,
                    symmetry["W_k = W_q: scores"] < 0.01,
                    "scores are meant: softmax divides each row by a sum of its own",
                ),
                control="the trained head with its own two projections",
                seeds=[options.seed],
            ),
            Finding(
                "C085",
                "Separate projections for queries and keys are necessary",
                "course notes",
                {f"{name}, {kinds[kind]}": weight for name, row in learned.items() for kind, weight in row.items()},
                "weight on the right word, geometric mean over seven words known by content alone",
                "separate ones reach 0.9 and a shared one does not, in both relations",
                **findings.conditional(
                    all(needed.values()),
                    needed[WEEK],
                    "the relation runs in a ring; that many words look at one is learned without",
                ),
                control="at most 0.5 by proof, for a ring with a shared projection",
            ),
            Finding(
                "C077",
                "The diagonal is often high: words attend to themselves",
                "course notes",
                shares,
                "share of rows with the largest weight on the diagonal",
                "more than half of the rows in every setting",
                **findings.conditional(
                    min(settings) > 0.5,
                    shares["Q = K = X"] > 0.5,
                    "queries and keys are the same vectors, as in demonstrations without projections",
                ),
                seeds=[options.seed],
            ),
            Finding(
                "C076",
                "The weights of a demonstration with Q = K = V = X are learned during training",
                "course notes",
                trainable,
                "numbers that a gradient of the weights reaches, vectors of 8 numbers",
                "at least one number behind the weights can be trained",
                findings.verdict(trainable["Q = K = V = X"] > 0),
                control="a head with projections: 2 · 8 · 8 numbers decide its weights",
            ),
        ],
        options.output_dir,
    )


def main(argv: list[str] | None = None) -> None:
    options = cli.parse(cli.parser(__doc__), argv)
    trained = load_single_head_model(options)
    (head,) = read(trained, [long_words(options)])
    symmetry, learned, shares = show_symmetry(head), show_relations(), show_diagonals(read_held_out(trained))
    record_findings(symmetry, learned, shares, show_trainable(), options)


if __name__ == "__main__":
    cli.run(main)
