"""Exercises of phase 1: write the parts of attention yourself, and hear what is wrong, not only that something is.

Replace each `...` and each `raise NotImplementedError` by your own code, then run this file, as often as you like:

    python phase1_single_head/exercises.py            all exercises
    python phase1_single_head/exercises.py 3          one of them, by number or name
    python phase1_single_head/exercises.py --help

The text of each exercise says what to compute, one number at a time. Loops are fine; matrix products are shorter. You
may import what you like, and use the functions that you wrote before; only F.scaled_dot_product_attention would take
the fun out of it. Spoilers are in exercise_solutions.py. Exit code 0: all done, 1: not yet.
"""

import torch

from phase1_single_head.answers.solutions import EXERCISES
from shared import cli, exercise_checker

Tensor = torch.Tensor


def score_by_hand() -> list[float]:
    """Exercise 1, with pencil and paper: how much does a query attend to each of three keys?

        query q = [1, 0, 2, 1]
        key 0   = [0, 3, 1, 0]
        key 1   = [1, 1, 1, 1]
        key 2   = [1, 2, 0, -1]

    1. three scores: the dot products q · k                    2. divide them by √d_k; here d_k = 4
    3. weights: e to each of them, divided by the sum of the three
                                                               e ≈ 2.72, e² ≈ 7.39, e³ ≈ 20.1, e⁴ ≈ 54.6
    Put in the three weights, rounded to two decimals. Before you compute: which key wins? Does key 2, at right angles
    to the query, get nothing?
    """
    return [..., ..., ...]


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Exercise 2: turn scores into weights, and hide what the mask hides.

    scores   (T_q, T_k)        row i: how well query i matches each key
    mask     (T_q, T_k)        bool, True = may attend
    ->       (T_q, T_k)        weights

        for i in range(T_q):
            visible = [j for j in range(T_k) if mask[i, j]]
            for j in visible:
                weights[i, j] = exp(scores[i, j]) / sum(exp(scores[i, k]) for k in visible)
            # all other weights of the row are exactly 0: the whole row, if nothing is visible, and never NaN

    Scores may be as large as 1000 or as low as -1e12: e^1000 is too much for any float. torch.softmax knows a way.
    """
    raise NotImplementedError


def self_attention(
    x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Exercise 3: every position of a sequence asks all positions, one head.

    x          (T, d_model)
    w_q, w_k   (d_model, d_k)
    w_v        (d_model, d_v)
    mask       (T, T)          bool, True = may attend; None hides nothing
    ->         output (T, d_v), weights (T, T)

        for i in range(T):
            query[i], key[i], value[i] = x[i] @ w_q, x[i] @ w_k, x[i] @ w_v
        for i in range(T):
            for j in range(T):
                scores[i, j] = sum(query[i, c] * key[j, c] for c in range(d_k)) / sqrt(d_k)
        weights = masked_softmax(scores, mask)
        for i in range(T):
            output[i] = sum(weights[i, j] * value[j] for j in range(T))
    """
    raise NotImplementedError


def additive_attention(query: Tensor, memory: Tensor, w_q: Tensor, w_k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Exercise 4: the first attention, in which a small network scores each pair (Bahdanau et al. 2014).

    query    (T_q, d_query)         w_q   (d_query, d_hidden)
    memory   (T_k, d_memory)        w_k   (d_memory, d_hidden)        v   (d_hidden,)
    ->       output (T_q, d_memory), weights (T_q, T_k)

        for i in range(T_q):
            for j in range(T_k):
                hidden = tanh(query[i] @ w_q + memory[j] @ w_k)                        # d_hidden numbers
                scores[i, j] = sum(v[c] * hidden[c] for c in range(d_hidden))          # no division by a root here
            for j in range(T_k):
                weights[i, j] = exp(scores[i, j]) / sum(exp(scores[i, k]) for k in range(T_k))
            output[i] = sum(weights[i, j] * memory[j] for j in range(T_k))             # the memory is its own value

    Without loops every query must meet every row of the memory: think of a tensor of shape (T_q, T_k, d_hidden).
    """
    raise NotImplementedError


def sinusoidal_positions(length: int, d_model: int) -> Tensor:
    """Exercise 5: waves that tell positions apart (Vaswani et al. 2017, section 3.5).

    ->   (length, d_model)

        for position in range(length):
            for column in range(d_model):
                i = column // 2                                     # columns 0 and 1 are pair 0, then come 2 and 3
                angle = position / 10000 ** (2 * i / d_model)
                encoding[position, column] = sin(angle) if column % 2 == 0 else cos(angle)

    Any d_model of 1 or more will come, odd ones too.
    """
    raise NotImplementedError


def cross_attention(
    x: Tensor, context: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Exercise 6: one sequence asks, another answers, as when a translation looks at its source.

    x          (T_q, d_model)       asks
    context    (T_k, d_model)       answers; it may be longer or shorter than x
    w_q, w_k   (d_model, d_k)
    w_v        (d_model, d_v)
    w_o        (d_v, d_model)       brings the output back to the size of x
    mask       (T_q, T_k)           bool, True = may attend; it often hides the padding at the end of the context
    ->         output (T_q, d_model), weights (T_q, T_k)

        for i in range(T_q):
            for j in range(T_k):
                scores[i, j] = (x[i] @ w_q) @ (context[j] @ w_k) / sqrt(d_k)
        weights = masked_softmax(scores, mask)
        for i in range(T_q):
            output[i] = sum(weights[i, j] * (context[j] @ w_v) for j in range(T_k)) @ w_o
    """
    raise NotImplementedError


YOURS = (score_by_hand, masked_softmax, self_attention, additive_attention, sinusoidal_positions, cross_attention)


def main(argv: list[str] | None = None) -> None:
    exercise_checker.main(__doc__, EXERCISES, YOURS, argv)


if __name__ == "__main__":
    cli.run(main)
