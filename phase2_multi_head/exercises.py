"""Exercises of phase 2: write the parts of a transformer layer, and hear what is wrong.

    python phase2_multi_head/exercises.py --help               says how; answers.py has spoilers
    python phase2_multi_head/exercises.py 3 --in smollm2       a published model writes with it

Only nn.MultiheadAttention and the modules of this phase would take the fun out of it.
"""

from collections.abc import Callable

from torch import Tensor

from phase1_single_head.self_attention import scaled_dot_product_attention  # noqa: F401 (yours to use)
from phase2_multi_head.answers import AFTERWARDS, EXERCISES
from shared import cli
from shared.exercise_checker import command

Attention = Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor]]


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """Exercise 1: give each head its slice of every vector. All inputs are float64.
    Lesson: 2. Two views of one thing · easy · 25 min

    x    (B, T, d_model)            B batch, T length
    ->   (B, H, T, d_k)             H heads, d_k = d_model / H

    Head h gets d_k columns of every position, from column h * d_k on. Do not trust the shape alone,
    because a wrong order can have the right shape, too.
    """
    raise NotImplementedError


def merge_heads(x: Tensor) -> Tensor:
    """Exercise 2: the way back. Put the outputs of the heads side by side again.
    Lesson: 3. What joins the heads · easy · 15 min

    The input is float64.

    x    (B, H, T, d_v)
    ->   (B, T, H * d_v)

    At every position the d_v numbers of head 0 come first, then those of head 1, and so on.
    """
    raise NotImplementedError


def multi_head_attention(
    x: Tensor,
    w_q: Tensor,
    w_k: Tensor,
    w_v: Tensor,
    w_o: Tensor,
    num_heads: int,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Exercise 3: several small attentions side by side (Vaswani et al. 2017, section 3.2.2).
    Lesson: 3. What joins the heads · hard · 75 min

    Inputs are float64.

    x                    (B, T, d_model)
    w_q, w_k, w_v, w_o   (d_model, d_model)
    mask                 (B, T)              bool, True = may be attended to, False = padding; None
                                             hides nothing
    ->                   output (B, T, d_model), weights (B, H, T, T)

    Multiply all of x by w_q, w_k and w_v (x @ w). Then cut queries, keys and values into heads, as
    in exercise 1. Each head attends by itself, with scores divided by √d_k. Padding gets a weight
    of exactly 0 from every query of every head. If a sequence is nothing but padding, all of its
    weights are 0. At the end put the heads side by side, as in exercise 2, and multiply by w_o.
    """
    raise NotImplementedError


def fused_projection(x: Tensor, w_qkv: Tensor, num_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Exercise 4: one matrix product instead of three, as in GPT-2. All inputs are float64.
    Lesson: 4. Wrong, and no shape shows it · medium · 30 min

    x       (B, T, d_model)
    w_qkv   (d_model, 3 * d_model)      w_q, w_k and w_v of exercise 3, side by side in this order
    ->      query, key, value, each (B, H, T, d_k): the same as three products, each followed by
            exercise 1
    """
    raise NotImplementedError


def grouped_query_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Exercise 5: H query heads share G heads of keys and values (Ainslie et al. 2023).
    Lesson: costs/README.md · medium · 45 min

    One sequence, no batch.

    query   (H, T_q, d_k)
    key     (G, T_k, d_k)           H is a multiple of G: neighbouring query heads share
    value   (G, T_k, d_v)           all float64
    mask    (T_q, T_k)              bool, True = may attend; None hides nothing
    ->      output (H, T_q, d_v), weights (H, T_q, T_k)

    With H = 6 and G = 2 the query heads read the key-value heads 0 0 0 1 1 1. Each query head
    attends as in phase 1: scores divided by √d_k, a softmax over what is visible, weights of 0 for
    a query that sees nothing.
    """
    raise NotImplementedError


def transformer_block(
    x: Tensor,
    attention: Attention,
    w_1: Tensor,
    w_2: Tensor,
    causal: bool = False,
    dropout: Callable[[Tensor], Tensor] | None = None,
    training: bool = False,
) -> tuple[Tensor, Tensor]:
    """Exercise 6: a whole layer, pre-norm (Xiong et al. 2020). One sequence, no batch, all float64.
    Lesson: 6. The block · hard · 65 min

    x           (T, d_model)
    attention   a function, ready to use: attention(x, mask) -> output (T, d_model), weights (H, T,
                T)
                mask (T, T): bool, True = may attend; None hides nothing
    w_1, w_2    (d_model, d_ff) and (d_ff, d_model), the feed-forward network
    causal      True: position i may attend to the positions 0 to i
    dropout     a function, ready to use: dropout(v) sets some numbers of v to 0 and makes the
                others larger
    training    True: the model is being trained, and dropout is wanted; False: nothing may be
                dropped
    ->          output (T, d_model), weights (H, T, T)

    Pre-norm means that attention reads the norm of x, and what it finds is added to x. The
    feed-forward network reads the norm of that sum, computes max(0, norm @ w_1) @ w_2, and its
    result is added as well. The norm works on one position at a time: subtract the mean, and divide
    by sqrt(variance + 1e-5), where the variance is the mean of the squared differences. Nothing in
    the norm is learned. In training, dropout is applied to each of the two results just before it
    is added (Vaswani et al. 2017, section 5.4).
    """
    raise NotImplementedError


def attention_pooling(query: Tensor, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Exercise 7: one vector for a whole sequence, by one learned query (after Yang et al. 2016).
    Lesson: pooling/README.md · medium · 40 min

    query   (d_model,)              float64
    x       (B, T, d_model)         keys and values at once, float64
    mask    (B, T)                  bool, True = a real token, False = padding
    ->      pooled (B, d_model), weights (B, T)

    Scores are dot products with the query, divided by √d_model. Padding gets a weight of exactly 0.
    If a sequence is nothing but padding, all of its weights are 0. The pooled vector is the sum of
    the vectors of x, each times its weight.
    """
    raise NotImplementedError


def main(argv: list[str] | None = None) -> None:
    command.run_exercises(__file__, EXERCISES, AFTERWARDS, argv)


if __name__ == "__main__":
    cli.run(main)
