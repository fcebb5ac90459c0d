"""How does one get from a mean of words to attention?

In four steps, each a few lines, on six words of three numbers, made by hand: how much a word is an
animal, a deed, a place. A mean treats all words alike. By similarity words take most from
themselves, and no score is one-sided. Queries and keys let a word look for what it is not. Then the
same for all words at once.

    python phase1_single_head/from_a_mean.py
"""

import math

import torch
from torch import Tensor

from phase1_single_head.self_attention import scaled_dot_product_attention
from shared import cli

WORDS = ["the", "cat", "sat", "on", "the", "mat"]
X = torch.tensor(
    [  # animal, deed, place
        [0.0, 0.0, 0.0],  # the
        [2.0, 0.0, 0.0],  # cat
        [0.0, 2.0, 0.0],  # sat
        [0.0, 1.0, 1.0],  # on
        [0.0, 0.0, 0.0],  # the
        [0.0, 0.0, 2.0],  # mat
    ],
    dtype=torch.float64,
)
# Rows: animal, deed, place. A deed asks for an animal, a place for a deed.
W_Q = torch.tensor([[0, 0], [1, 0], [0, 1]]).double()  # asks for: animal, deed
W_K = torch.tensor([[1, 0], [0, 1], [0, 0]]).double()  # is found as: animal, deed
W_V = torch.tensor([[1, 0], [0, 0], [0, 1]]).double()  # passes on: animal, place


def plain_mean(x: Tensor) -> Tensor:
    """Every word gets the mean of all words: (T, d) -> (T, d)."""
    return x.mean(dim=0).expand_as(x)


def similarity_mean(x: Tensor) -> tuple[Tensor, Tensor]:
    """The more alike, the more weight: (T, d) -> output (T, d), weights (T, T)."""
    scores = x @ x.T  # dot products, large for words alike: (T, d) @ (d, T) -> (T, T)
    weights = torch.softmax(scores, dim=-1)  # each row positive, its sum 1
    return weights @ x, weights


def one_word_asks(
    x: Tensor, i: int, w_q: Tensor, w_k: Tensor, w_v: Tensor
) -> tuple[Tensor, Tensor]:
    """Word i asks every word j, one pair at a time: (T, d) -> output (d_v,), weights (T,)."""
    query = x[i] @ w_q  # what word i looks for
    keys = [word @ w_k for word in x]  # what each word is found by
    values = [word @ w_v for word in x]  # what each word passes on
    scores = [torch.dot(query, key) / math.sqrt(len(key)) for key in keys]
    total = sum(math.exp(score) for score in scores)
    weights = [math.exp(score) / total for score in scores]
    output = sum(weight * value for weight, value in zip(weights, values, strict=True))
    return output, torch.tensor(weights, dtype=x.dtype)


def all_words_ask(x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor) -> tuple[Tensor, Tensor]:
    """The same for all words at once: (T, d) -> output (T, d_v), weights (T, T)."""
    query = x @ w_q  # (T, d) -> (T, d_k)
    key = x @ w_k  # (T, d) -> (T, d_k)
    value = x @ w_v  # (T, d) -> (T, d_v)
    scores = query @ key.T / math.sqrt(key.size(-1))  # (T, d_k) @ (d_k, T) -> (T, T)
    weights = torch.softmax(scores, dim=-1)
    return weights @ value, weights


def print_weights(weights: Tensor) -> None:
    """Print a row for each word that asks, with a column for each word that is asked."""
    print(" " * 6 + "".join(f"{word:>6}" for word in WORDS))
    for word, row in zip(WORDS, weights.tolist(), strict=True):
        print(f"{word:6}" + "".join(f"{weight:6.2f}" for weight in row))


@cli.script
def main(argv: list[str] | None = None) -> str:
    cli.parse(cli.parser(__doc__, ""), argv)
    cat, sat, on, mat = 1, 2, 3, 5  # their places in WORDS
    animal, deed, place = plain_mean(X)[cat].tolist()
    print(f"\n1. A plain mean: every word becomes ({animal:.2f}, {deed:.2f}, {place:.2f})")

    print("\n2. Weighted by similarity: cat, sat and mat take most from themselves")
    _, weights = similarity_mean(X)
    print_weights(weights)
    scores = X @ X.T
    print(f"   score of mat for on: {scores[mat, on]:g}, of on for mat: {scores[on, mat]:g}")

    print("\n3. Queries and keys: sat asks for an animal, mat asks for a deed")
    output, weights = all_words_ask(X, W_Q, W_K, W_V)
    print_weights(weights)
    scores = (X @ W_Q) @ (X @ W_K).T  # before the division
    print(f"   score of sat for cat: {scores[sat, cat]:g}, of cat for sat: {scores[cat, sat]:g}")
    animal, place = output[sat].tolist()
    print(f'   "sat" becomes ({animal:.2f}, {place:.2f}): so much animal, so much place')

    print("\n4. The same three times (a difference of 1e-16 is rounding)")
    one_by_one = [one_word_asks(X, i, W_Q, W_K, W_V)[0] for i in range(len(WORDS))]
    difference = (torch.stack(one_by_one) - output).abs().max()
    print(f"   word by word against all at once                 differ by {difference:.0e}")
    core, _ = scaled_dot_product_attention(X @ W_Q, X @ W_K, X @ W_V)
    difference = (core - output).abs().max()
    print(f"   all at once against the core of self_attention   differ by {difference:.0e}")
    answer = 'Weighted by similarity "sat" looks at itself; with queries and keys it gives "cat"'
    return f"{answer} {weights[sat, cat]:.2f}"


if __name__ == "__main__":
    cli.run(main)
