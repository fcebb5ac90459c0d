"""Exercises of phase 3: write the numbers that describe heads yourself, and hear what is wrong by its name.

Replace each `raise NotImplementedError` by your own code, then run this file, as often as you like:

    python phase3_visualization/exercises.py            all exercises
    python phase3_visualization/exercises.py 3          one of them, by number or name
    python phase3_visualization/exercises.py --help

The text of each exercise says what to compute, one number at a time. Loops are fine, whole tensors are shorter. You may
import what you like; scaled_dot_product_attention, split_heads and merge_heads of phases 1 and 2 are here already. Only
attention_utils, grammar_scores and head_importance would take the fun out of it. Spoilers are in exercise_solutions.py.
Exit code 0: all done, 1: not yet.

B batch, N sentences, L layers, H heads, T length. Rows of weights are queries and sum to 1, columns are keys.
"""

import torch

from phase1_single_head.self_attention import scaled_dot_product_attention  # noqa: F401 (yours to use)
from phase2_multi_head.multi_head_attention import merge_heads, split_heads  # noqa: F401
from phase3_visualization.answers.solutions import EXERCISES
from shared import cli, exercise_checker

Tensor = torch.Tensor


def head_entropy(weights: Tensor, mask: Tensor) -> Tensor:
    """Exercise 1: how evenly does a head spread its weights? 0: on one key, 1: on all that it may see.

    weights   (H, T_q, T_k)
    mask      (T_q, T_k)            bool, True = may attend
    ->        (H,)                  normalised entropy, the mean over rows

        for h in range(H):
            rows = []
            for i in range(T_q):
                visible = [j for j in range(T_k) if mask[i, j]]
                if len(visible) >= 2:                                           # with one key there is no choice
                    terms = [-weights[h, i, j] * log(weights[h, i, j]) for j in visible if weights[h, i, j] > 0]
                    rows.append(sum(terms) / log(len(visible)))                 # natural logarithms
            entropy[h] = sum(rows) / len(rows)

    A visible key may have a weight of exactly 0; its term is 0, the limit of -w log(w).
    """
    raise NotImplementedError


def role_score(weights: Tensor, gold: Tensor) -> tuple[Tensor, Tensor]:
    """Exercise 2: does a head follow a relation (Clark et al. 2019), and better than a fixed offset would?

    weights   (N, H, T, T)
    gold      (N, T, T)             bool, True where the query (row) has its gold key; most queries have none
    ->        accuracy (H,), baseline ()

        for h in range(H):
            right = asked = 0
            for n in range(N):
                for i in range(T):
                    if gold[n, i].any():
                        others = [j for j in range(T) if j != i]                # never the word itself
                        attended = max(others, key=lambda j: weights[n, h, i, j])
                        right += gold[n, i, attended]
                        asked += 1
            accuracy[h] = right / asked
        for k in [*range(1 - T, 0), *range(1, T)]:                              # "always k words to the right"
            hits = sum(gold[n, i, i + k] for n in range(N) for i in range(T) if 0 <= i + k < T)
            share[k] = hits / asked

    baseline is the largest share[k].
    """
    raise NotImplementedError


def attention_rollout(weights: Tensor) -> Tensor:
    """Exercise 3: how much of each input word is in each position after all layers (Abnar & Zuidema 2020)?

    weights   (L, H, T, T)          the first layer first
    ->        (T, T)                rows sum to 1

        for l in range(L):
            for i in range(T):
                for j in range(T):
                    step[i, j] = 0.5 * sum(weights[l, h, i, j] for h in range(H)) / H + 0.5 * (i == j)
            before = rollout.clone()                                            # at first 1 where i == j, 0 elsewhere
            for i in range(T):
                for j in range(T):
                    rollout[i, j] = sum(step[i, k] * before[k, j] for k in range(T))

    The 0.5 where i == j is the residual connection: half of each position is what it was before.
    """
    raise NotImplementedError


def without_head(
    x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, b_o: Tensor, num_heads: int, removed: int
) -> Tensor:
    """Exercise 4: what is left of multi-head attention without one of its heads (Michel et al. 2019)?

    x                    (B, T, d_model)
    w_q, w_k, w_v, w_o   (d_model, d_model)     used as x @ w
    b_o                  (d_model,)             the bias of the output projection
    removed              the head, counted from 0
    ->                   (B, T, d_model)

        for b in range(B):
            for h in range(H):
                columns = slice(h * d_k, (h + 1) * d_k)                         # d_k = d_model / H
                query, key, value = x[b] @ w_q[:, columns], x[b] @ w_k[:, columns], x[b] @ w_v[:, columns]
                head[h] = attention(query, key, value)                          # (T, d_k), as in phase 1, no mask
            head[removed] = 0
            for i in range(T):
                output[b, i] = concatenate(head[0][i], head[1][i], ..., head[H - 1][i]) @ w_o + b_o
    """
    raise NotImplementedError


YOURS = (head_entropy, role_score, attention_rollout, without_head)


def main(argv: list[str] | None = None) -> None:
    exercise_checker.main(__doc__, EXERCISES, YOURS, argv)


if __name__ == "__main__":
    cli.run(main)
