"""Why do queries and keys need two projections, and not one for both?

If W_q = W_k, the score of "x looks at y" is the score of "y looks at x", q_x · q_y. The weights may still differ, since
each row has its own sum, but a ring, where a looks at b, b at c and c at a, is out of reach. And q · q = |q|² makes
most words look at themselves: the bright diagonal of demonstrations that set Q = K = V = X.

    python phase1_single_head/parts/queries_and_keys.py
    python phase1_single_head/parts/queries_and_keys.py --sentence "those dogs slept in a small soft bed"
"""

import math

import torch
from torch import Tensor

from phase1_single_head.parts.soft_lookup import Reading, long_words, read, read_held_out
from phase1_single_head.self_attention import SelfAttention, load_single_head_model, scaled_dot_product_attention
from shared import cli
from shared.evidence import findings
from shared.evidence.claims import EXPERIMENT, IDENTITY, Claim, Numbers, measures

# Who should look at whom among seven words: word i at word TARGETS[i].
WEEK, PHRASE = "each weekday looks at the next", "the words of a phrase look at its noun"
TARGETS = {WEEK: [1, 2, 3, 4, 5, 6, 0], PHRASE: [6, 6, 6, 6, 6, 6, 6]}


def asymmetry(matrix: Tensor) -> float:
    """|M - Mᵀ| / |M|: 0 if i to j is always the same as j to i, about √2 for independent entries."""
    return ((matrix - matrix.T).norm() / matrix.norm()).item()


@measures(
    Claim(
        id="shared-projection",
        text="With one projection for queries and keys, x attends to y as much as y to x",
        kind=IDENTITY,
        rule="scores and weights with W_k = W_q are both below 0.01",
        holds=lambda n: max(n["W_k = W_q: scores"], n["W_k = W_q: weights"]) < 0.01,
        only_if=lambda n: n["W_k = W_q: scores"] < 0.01,
        condition="scores are meant: softmax divides each row by a sum of its own",
        unit="|M - Mᵀ| / |M| in one sentence: 0 symmetric, about 1.4 unrelated",
        control="the trained head with its own two projections",
    )
)
def directions(head: Reading) -> dict[str, float]:
    """Asymmetry of one sentence's scores and weights, as trained and with W_k replaced by W_q."""
    found = {}
    for name, key in (("as trained", head.key), ("W_k = W_q", head.query)):
        scores = head.query @ key.T / math.sqrt(key.size(-1))
        found |= {f"{name}: scores": asymmetry(scores), f"{name}: weights": asymmetry(scores.softmax(dim=-1))}
    return found


@torch.enable_grad()
def learn_to_look(targets: list[int], *, shared: bool) -> float:
    """Train queries and keys until word i looks at targets[i] -> the weight it then gives it (geometric mean).

    The words are bare identities without positions: content alone. shared: one projection for queries and keys. Scores
    are symmetric then, and the weights along a ring a -> b -> ... -> a have the same product forward and backward (the
    sums of the rows cancel). A word's forward and backward weight together are at most 1, their product at most 1/4: so
    the geometric mean of the forward weights is at most 1/2.
    """
    generator = torch.Generator().manual_seed(0)
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
    return numbers[f"{relation}, separate"] >= 0.9 > numbers[f"{relation}, shared"]


@measures(
    Claim(
        id="C085",
        text="Separate projections for queries and keys are necessary",
        kind=EXPERIMENT,
        rule="separate ones reach 0.9 and a shared one does not, in both relations",
        holds=lambda n: needed(n, WEEK) and needed(n, PHRASE),
        only_if=lambda n: needed(n, WEEK),
        condition="the relation runs in a ring; that many words look at one is learned without",
        oracle={f"{name}, {kind}": float(kind == "separate") for name in TARGETS for kind in ("separate", "shared")},
        null={f"{name}, {kind}": 1.0 for name in TARGETS for kind in ("separate", "shared")},
        unit="weight on the right word after 200 steps, geometric mean over seven words known by content alone",
        control="at most 0.5 by proof, for a ring with a shared projection",
    )
)
def learned_relations() -> dict[str, float]:
    """Both relations, with separate projections and with a shared one."""
    return {
        f"{name}, {'shared' if shared else 'separate'}": learn_to_look(targets, shared=shared)
        for name, targets in TARGETS.items()
        for shared in (False, True)
    }


def share_on_diagonal(weights: Tensor) -> float:
    """Share of the rows of (..., T, T) whose largest weight lies on their own position."""
    own = torch.arange(weights.size(-1))
    return (weights.argmax(dim=-1) == own).double().mean().item()


SETTINGS = ("Q = K = X", "separate random projections", "trained head")


@measures(
    Claim(
        id="C077",
        text="The diagonal is often high: words attend to themselves",
        kind=EXPERIMENT,
        rule="more than half of the rows in every setting",
        holds=lambda n: min(n[name] for name in SETTINGS) > 0.5,
        only_if=lambda n: n["Q = K = X"] > 0.5,
        condition="queries and keys are the same vectors, as in demonstrations without projections",
        oracle=dict.fromkeys(SETTINGS, 1.0),
        null=dict.fromkeys(SETTINGS, 0.2),
        unit="share of rows with the largest weight on the diagonal",
    )
)
@torch.no_grad()
def diagonals(readings: list[Reading]) -> dict[str, float]:
    """Share of rows with the largest weight on themselves: vectors compared with themselves, projected, trained."""
    x = torch.randn(200, 5, 8, generator=torch.Generator().manual_seed(0))  # 200 times 5 words of 8 numbers
    _, same = scaled_dot_product_attention(x, x, x)
    _, projected = zip(*(SelfAttention(8)(item[None]) for item in x), strict=True)  # new projections every time
    rows = sum(len(r.words) for r in readings)
    own = sum(share_on_diagonal(r.weights) * len(r.words) for r in readings) / rows
    shares = share_on_diagonal(same), share_on_diagonal(torch.cat(projected)), own
    return dict(zip(SETTINGS, shares, strict=True)) | {"by chance, 5 words": 1 / 5}


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


@measures(
    Claim(
        id="C076",
        text="The weights of a demonstration with Q = K = V = X are learned during training",
        kind=IDENTITY,
        rule="at least one number behind the weights can be trained",
        holds=lambda n: n["Q = K = V = X"] > 0,
        unit="numbers that a gradient of the weights reaches, vectors of 8 numbers",
        control="a head with projections: 2 · 8 · 8 numbers decide its weights",
    )
)
def behind_the_weights() -> dict[str, int]:
    """Numbers that training could change: attention among bare vectors, and a head with its projections."""
    x = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    _, bare = scaled_dot_product_attention(x, x, x)
    _, projected = SelfAttention(8)(x[None])
    return {"Q = K = V = X": trainable_numbers(bare), "W_q and W_k": trainable_numbers(projected)}


def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    trained = load_single_head_model(options)
    (head,) = read(trained, [long_words(options)])
    print(f'\nOne head, {trained.label}, on "{" ".join(head.words)}"')
    learned = learned_relations()
    findings.record(options, directions(head), learned, diagonals(read_held_out(trained)), behind_the_weights())
    separate, shared = learned[f"{WEEK}, separate"], learned[f"{WEEK}, shared"]
    return f'For direction: "Monday looks at Tuesday" reaches {separate:.2f} with two, {shared:.2f} with one'


if __name__ == "__main__":
    cli.run(main)
