"""Exercises of phase 2: write the parts of a transformer layer yourself, and hear what is wrong by its name.

Replace each `raise NotImplementedError` by your own code, then run this file, as often as you like:

    python phase2_multi_head/exercises.py            all exercises
    python phase2_multi_head/exercises.py 3          one of them, by number or name
    python phase2_multi_head/exercises.py --help

The text of each exercise says what to compute, one number at a time. Loops are fine, matrix products are shorter, and
what you wrote for one exercise helps in the next. You may import what you like: scaled_dot_product_attention of phase 1
is here already and takes any axes before the last two. Only nn.MultiheadAttention and the modules of this phase would
take the fun out of it. Spoilers are in exercise_solutions.py. Exit code 0: all done, 1: not yet.

B batch, T length, H heads. Every matrix is used as x @ w: it has a row for each number that goes in.
"""

from collections.abc import Callable

import torch

from phase1_single_head.self_attention import scaled_dot_product_attention  # noqa: F401 (yours to use)
from phase2_multi_head.answers.solutions import EXERCISES
from shared import cli, exercise_checker

Tensor = torch.Tensor


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """Exercise 1: give each head its slice of every vector.

    x    (B, T, d_model)
    ->   (B, H, T, d_k)             d_k = d_model / H

        for b in range(B):
            for h in range(H):
                for t in range(T):
                    for c in range(d_k):
                        heads[b, h, t, c] = x[b, t, h * d_k + c]

    The right shape proves nothing here: a wrong order can have it, too.
    """
    raise NotImplementedError


def merge_heads(x: Tensor) -> Tensor:
    """Exercise 2: the way back. Put the outputs of the heads side by side again.

    x    (B, H, T, d_v)
    ->   (B, T, H * d_v)

        for b in range(B):
            for t in range(T):
                for h in range(H):
                    for c in range(d_v):
                        merged[b, t, h * d_v + c] = x[b, h, t, c]
    """
    raise NotImplementedError


def multi_head_attention(
    x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, num_heads: int, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Exercise 3: several small attentions side by side (Vaswani et al. 2017, section 3.2.2).

    x                    (B, T, d_model)
    w_q, w_k, w_v, w_o   (d_model, d_model)
    mask                 (B, T)              bool, True = may be attended to, False = padding; None hides nothing
    ->                   output (B, T, d_model), weights (B, H, T, T)

        for b in range(B):
            for h in range(H):
                columns = slice(h * d_k, (h + 1) * d_k)                         # d_k = d_model / H
                query, key, value = x[b] @ w_q[:, columns], x[b] @ w_k[:, columns], x[b] @ w_v[:, columns]
                for i in range(T):
                    for j in range(T):
                        scores[i, j] = query[i] @ key[j] / sqrt(d_k)
                    visible = [j for j in range(T) if mask[b, j]]               # the same for every query and head
                    for j in visible:
                        weights[b, h, i, j] = exp(scores[i, j]) / sum(exp(scores[i, k]) for k in visible)
                    # all other weights are exactly 0, in a sequence of nothing but padding all of them
                    head[h][i] = sum(weights[b, h, i, j] * value[j] for j in range(T))
            for i in range(T):
                output[b, i] = concatenate(head[0][i], head[1][i], ..., head[H - 1][i]) @ w_o
    """
    raise NotImplementedError


def fused_projection(x: Tensor, w_qkv: Tensor, num_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Exercise 4: one matrix product instead of three, as GPT-2 does it.

    x       (B, T, d_model)
    w_qkv   (d_model, 3 * d_model)      w_q, w_k and w_v of exercise 3, side by side
    ->      query, key, value, each (B, H, T, d_k)

        for b in range(B):
            for t in range(T):
                wide = x[b, t] @ w_qkv                                          # 3 * d_model numbers
                for h in range(H):
                    for c in range(d_k):
                        query[b, h, t, c] = wide[h * d_k + c]
                        key[b, h, t, c] = wide[d_model + h * d_k + c]
                        value[b, h, t, c] = wide[2 * d_model + h * d_k + c]
    """
    raise NotImplementedError


def grouped_query_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Exercise 5: H query heads share G heads of keys and values (Ainslie et al. 2023). One sequence, no batch.

    query   (H, T_q, d_k)
    key     (G, T_k, d_k)           H is a multiple of G: neighbouring query heads share
    value   (G, T_k, d_v)
    mask    (T_q, T_k)              bool, True = may attend; None hides nothing
    ->      output (H, T_q, d_v), weights (H, T_q, T_k)

        for h in range(H):
            g = h // (H // G)                                                   # H = 6, G = 2: 0 0 0 1 1 1
            for i in range(T_q):
                for j in range(T_k):
                    scores[i, j] = query[h, i] @ key[g, j] / sqrt(d_k)
            weights[h] = masked_softmax(scores, mask)                           # exercise 2 of phase 1
            for i in range(T_q):
                output[h, i] = sum(weights[h, i, j] * value[g, j] for j in range(T_k))
    """
    raise NotImplementedError


def transformer_block(
    x: Tensor,
    attention: Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor]],
    w_1: Tensor,
    w_2: Tensor,
    causal: bool = False,
    keep: Tensor | None = None,
    p: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Exercise 6: a whole layer, pre-norm (Xiong et al. 2020). One sequence, no batch.

    x           (T, d_model)
    attention   a function, ready to use: attention(x, mask) -> output (T, d_model), weights (H, T, T)
                mask (T, T): bool, True = may attend; None hides nothing
    w_1, w_2    (d_model, d_ff) and (d_ff, d_model), the feed-forward network
    causal      True: position i may attend to the positions 0 to i
    keep        (2, T, d_model)     bool, False = dropped: keep[0] for attention, keep[1] for feed-forward; None: no
                                    dropout, as in evaluation. (nn.Dropout draws it anew in every call.)
    p           how likely it was for a number to be dropped
    ->          output (T, d_model), weights (H, T, T)

        norm(v) = (v - mean(v)) / sqrt(mean((v - mean(v)) ** 2) + 1e-5)         # of one position; nothing is learned

        found, weights = attention(norm of each x[i], mask)
        for i in range(T):
            y[i] = x[i] + dropout(found[i], keep[0, i])
        for i in range(T):
            hidden = max(0, norm(y[i]) @ w_1)                                   # d_ff numbers
            output[i] = y[i] + dropout(hidden @ w_2, keep[1, i])

        dropout(v, keep): v[c] / (1 - p) where keep[c], 0 elsewhere; without a keep, v as it is
    """
    raise NotImplementedError


def attention_pooling(query: Tensor, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Exercise 7: one vector for a whole sequence, by one learned query (after Yang et al. 2016, without its tanh).

    query   (d_model,)
    x       (B, T, d_model)         keys and values at once
    mask    (B, T)                  bool, True = a real token, False = padding
    ->      pooled (B, d_model), weights (B, T)

        for b in range(B):
            for j in range(T):
                scores[j] = query @ x[b, j] / sqrt(d_model)
            real = [j for j in range(T) if mask[b, j]]
            for j in real:
                weights[b, j] = exp(scores[j]) / sum(exp(scores[k]) for k in real)
            # all other weights are exactly 0: all of them, if there is nothing but padding
            pooled[b] = sum(weights[b, j] * x[b, j] for j in range(T))
    """
    raise NotImplementedError


YOURS = (
    split_heads,
    merge_heads,
    multi_head_attention,
    fused_projection,
    grouped_query_attention,
    transformer_block,
    attention_pooling,
)


def main(argv: list[str] | None = None) -> None:
    exercise_checker.main(__doc__, EXERCISES, YOURS, argv)


if __name__ == "__main__":
    cli.run(main)
