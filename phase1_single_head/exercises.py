"""Exercises of phase 1: write the parts of attention yourself, and hear what is wrong.

    python phase1_single_head/exercises.py --help               says how; answers.py has spoilers
    python phase1_single_head/exercises.py 3 --in smollm2       a published model writes with it

Only F.scaled_dot_product_attention would take the fun out of it.
"""

from torch import Tensor

from phase1_single_head.answers import AFTERWARDS, EXERCISES
from shared import cli
from shared.exercise_checker import command


def score_by_hand() -> list[float]:
    """Exercise 1, with pencil and paper: how much does a query attend to each of three keys?
    Lesson: 3. Queries, keys and values · easy · 15 min

        query q = [1, 0, 2, 1]
        key 0   = [0, 3, 1, 0]
        key 1   = [1, 1, 1, 1]
        key 2   = [1, 2, 0, -1]

    1. compute three scores: the dot product of q with each key
    2. divide each of them by √d_k; here d_k = 4
    3. three weights: take e to the power of each of these, and divide by the sum of the three
    e ≈ 2.72, e² ≈ 7.39, e³ ≈ 20.1, e⁴ ≈ 54.6

    Write the three weights where the dots are, with two decimals. Guess first: does key 2, whose
    score is 0, get any weight?
    """
    return [..., ..., ...]


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Exercise 2: turn scores into weights, and hide what the mask hides.
    Lesson: 3. Queries, keys and values · medium · 40 min

    scores   (T_q, T_k)        float64; row i: how well query i matches each key
    mask     (T_q, T_k)        bool, True = may attend
    ->       (T_q, T_k)        weights

    Take the softmax of each row by itself, over the keys that its query may see. All other weights
    are exactly 0. If a query may see nothing, its whole row is 0, and never NaN. Scores may be as
    large as 1000 or as low as -1e10. e^1000 is too large for any float, so torch.softmax first
    subtracts the largest score of a row from all of its scores. If a row has nothing but -inf,
    torch.softmax gives NaN.
    """
    raise NotImplementedError


def self_attention(
    x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Exercise 3: every position of a sequence asks all positions, one head.
    Lesson: 3. Queries, keys and values · medium · 60 min

    All inputs are float64.

    x          (T, d_model)
    w_q, w_k   (d_model, d_k)
    w_v        (d_model, d_v)
    mask       (T, T)          bool, True = may attend; None hides nothing
    ->         output (T, d_v), weights (T, T)

    Each position makes a query, a key and a value from its vector: x[i] @ w_q, and so on. The score
    of a query and a key is their dot product, divided by √d_k. The weights are the masked softmax
    of the scores. The output at a position is the sum of all values, each times its weight in the
    row of that query. If mask is None, you can give your masked_softmax a mask that is True
    everywhere: torch.ones(len(x), len(x), dtype=torch.bool).
    """
    raise NotImplementedError


def additive_attention(
    query: Tensor, memory: Tensor, w_q: Tensor, w_k: Tensor, v: Tensor
) -> tuple[Tensor, Tensor]:
    """Exercise 4: the first attention: a small network scores each pair (Bahdanau et al. 2014).
    Lesson: before/README.md · hard · 75 min

    query    (T_q, d_query)         w_q   (d_query, d_hidden)
    memory   (T_k, d_memory)        w_k   (d_memory, d_hidden)        v   (d_hidden,)
    ->       output (T_q, d_memory), weights (T_q, T_k)               all float64

    For each pair, multiply the query by w_q and the row of the memory by w_k, add the two, and take
    tanh of the sum: these are the d_hidden hidden units. The score of the pair is the dot product
    of v and these units, and it is not divided by a root. The weights are the softmax of the scores
    over the memory. There is no w_v: the rows of the memory are the values.
    """
    raise NotImplementedError


def sinusoidal_positions(length: int, d_model: int) -> Tensor:
    """Exercise 5: waves that tell positions apart (Vaswani et al. 2017, section 3.5).
    Lesson: order/README.md · medium · 45 min

    length, d_model   whole numbers
    ->                (length, d_model), float32 or float64

    Columns 2i and 2i + 1 are a pair. At a position p, counted from 0, both have the angle p /
    10000^(2i / d_model). The even column holds its sine, the odd column its cosine. d_model can be
    any number from 1 on, and it may be odd.
    """
    raise NotImplementedError


def cross_attention(
    x: Tensor,
    context: Tensor,
    w_q: Tensor,
    w_k: Tensor,
    w_v: Tensor,
    w_o: Tensor,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Exercise 6: one sequence asks, another answers, as when a translation looks at its source.
    Lesson: 8. What is added to the word · easy · 30 min

    Inputs are float64.

    x          (T_q, d_model)       asks
    context    (T_k, d_model)       answers; it may be longer or shorter than x
    w_q, w_k   (d_model, d_k)
    w_v        (d_model, d_v)
    w_o        (d_v, d_model)       brings the output back to the size of x
    mask       (T_q, T_k)           bool, True = may attend; None hides nothing
    ->         output (T_q, d_model), weights (T_q, T_k)

    Do the same as in exercise 3, but make keys and values from the context, and at the end multiply
    what is found by w_o.
    """
    raise NotImplementedError


def main(argv: list[str] | None = None) -> None:
    command.run_exercises(__file__, EXERCISES, AFTERWARDS, argv)


if __name__ == "__main__":
    cli.run(main)
