"""SPOILERS: the reference solutions of the exercises of phase 1, and the inputs on which yours are tried.

Try exercises.py first, then compare. A solution is one way among many: yours is right if the checker says so. The
docstring of a solution is its task in plain loops, which `--hint 3` prints; hints 1 and 2 stand in EXERCISES.
"""

import math

import torch
from torch import Tensor

from phase1_single_head.answers.mistakes import MISTAKES
from shared.exercise_checker import Case, Exercise, draw

Pair = tuple[Tensor, Tensor]  # output, weights


def score_by_hand() -> Tensor:
    """
    for j in range(3):
        scores[j] = sum(query[c] * key[j][c] for c in range(4)) / sqrt(4)
    for j in range(3):
        weights[j] = exp(scores[j]) / sum(exp(scores[k]) for k in range(3))
    """
    query, keys = torch.tensor([1.0, 0, 2, 1]), torch.tensor([[0.0, 3, 1, 0], [1, 1, 1, 1], [1, 2, 0, -1]])
    scores = keys @ query / math.sqrt(4)  # 2, 4 and 0, each divided by 2
    return torch.softmax(scores, dim=-1)  # e¹, e², e⁰ = 2.72, 7.39, 1, each divided by 11.11


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """
    for i in range(T_q):
        visible = [j for j in range(T_k) if mask[i, j]]
        for j in visible:
            weights[i, j] = exp(scores[i, j]) / sum(exp(scores[i, k]) for k in visible)
        # all other weights of the row stay 0: the whole row, if nothing is visible
    """
    visible = torch.where(mask, scores, -math.inf)
    weights = torch.softmax(visible, dim=-1)
    return torch.where(mask, weights, 0.0)  # a row of only -inf came out as NaN, and all of it is hidden


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Pair:
    """Scaled dot-product attention, with any axes before the last two. Exercises 3 and 6 and phase 2 call it."""
    scores = query @ key.mT / math.sqrt(key.size(-1))  # (..., T_q, d_k) @ (..., d_k, T_k) -> (..., T_q, T_k)
    weights = torch.softmax(scores, dim=-1) if mask is None else masked_softmax(scores, mask)
    return weights @ value, weights


def self_attention(x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, mask: Tensor | None = None) -> Pair:
    """
    for i in range(T):
        query[i], key[i], value[i] = x[i] @ w_q, x[i] @ w_k, x[i] @ w_v
    for i in range(T):
        for j in range(T):
            scores[i, j] = sum(query[i, c] * key[j, c] for c in range(d_k)) / sqrt(d_k)
    weights = masked_softmax(scores, mask)
    for i in range(T):
        output[i] = sum(weights[i, j] * value[j] for j in range(T))
    """
    return attend(x @ w_q, x @ w_k, x @ w_v, mask)


def additive_attention(query: Tensor, memory: Tensor, w_q: Tensor, w_k: Tensor, v: Tensor) -> Pair:
    """
    for i in range(T_q):
        for j in range(T_k):
            hidden = tanh(query[i] @ w_q + memory[j] @ w_k)                      # d_hidden numbers
            scores[i, j] = sum(v[c] * hidden[c] for c in range(d_hidden))        # no division by a root here
        for j in range(T_k):
            weights[i, j] = exp(scores[i, j]) / sum(exp(scores[i, k]) for k in range(T_k))
        output[i] = sum(weights[i, j] * memory[j] for j in range(T_k))           # the memory is its own value
    """
    pairs = (query @ w_q)[:, None] + (memory @ w_k)[None]  # (T_q, 1, d) + (1, T_k, d) -> (T_q, T_k, d)
    scores = torch.tanh(pairs) @ v  # (T_q, T_k, d) @ (d,) -> (T_q, T_k)
    weights = torch.softmax(scores, dim=-1)
    return weights @ memory, weights


def sinusoidal_positions(length: int, d_model: int) -> Tensor:
    """
    for position in range(length):
        for column in range(d_model):
            i = column // 2                                    # columns 0 and 1 are pair 0, then come 2 and 3
            angle = position / 10000 ** (2 * i / d_model)
            encoding[position, column] = sin(angle) if column % 2 == 0 else cos(angle)
    """
    column = torch.arange(d_model)
    power = column // 2 * 2 / d_model
    angle = torch.arange(length)[:, None] / 10000.0**power  # (length, 1), (d_model,) -> (length, d_model)
    return torch.where(column % 2 == 0, angle.sin(), angle.cos())


def cross_attention(
    x: Tensor, context: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, mask: Tensor | None = None
) -> Pair:
    """
    for i in range(T_q):
        for j in range(T_k):
            scores[i, j] = (x[i] @ w_q) @ (context[j] @ w_k) / sqrt(d_k)
    weights = masked_softmax(scores, mask)
    for i in range(T_q):
        output[i] = sum(weights[i, j] * (context[j] @ w_v) for j in range(T_k)) @ w_o
    """
    output, weights = attend(x @ w_q, context @ w_k, context @ w_v, mask)
    return output @ w_o, weights


# -------------------------------------------------------------------------------------------------------- the cases

D_K, D_MODEL, D_V = 3, 11, 13
LARGE = -1e13  # times w_q: some visible scores are below any number that should hide, some hidden ones far above them


def some_hidden(t_q: int, t_k: int) -> Tensor:
    """Every row and every column has visible and hidden places, and the transpose is another mask."""
    return (torch.arange(t_q)[:, None] + 3 * torch.arange(t_k)) % 5 < 3


def one_blind(t_q: int, t_k: int) -> Tensor:
    """The same, but query 1 may see nothing."""
    return some_hidden(t_q, t_k) & (torch.arange(t_q) != 1)[:, None]


def softmax_cases() -> list[Case]:
    scores, visible = draw((5, 7))[0], torch.ones(5, 7, dtype=torch.bool)
    return [
        Case("some keys hidden", (scores, some_hidden(5, 7))),
        Case("all scores 1000", (torch.full_like(scores, 1e3), visible)),
        Case("hidden scores of 1000", (torch.where(some_hidden(5, 7), scores, 1e3), some_hidden(5, 7))),
        Case("all scores -1e12", (torch.full_like(scores, -1e12), some_hidden(5, 7))),
        Case("query 1 may see no key", (scores, one_blind(5, 7))),
    ]


def self_attention_cases() -> list[Case]:
    x, w_q, *others = draw((5, D_MODEL), (D_MODEL, D_K), (D_MODEL, D_K), (D_MODEL, D_V))
    return [
        Case("without a mask", (x, w_q, *others)),
        Case("some keys hidden", (x, w_q, *others, some_hidden(5, 5))),
        Case("some keys hidden, scores up to 1e13", (x, LARGE * w_q, *others, some_hidden(5, 5))),
        Case("query 1 may see no key", (x, w_q, *others, one_blind(5, 5))),
    ]


def additive_cases() -> list[Case]:
    return [
        Case("T_q = 5, T_k = 7", tuple(draw((5, 11), (7, 13), (11, 17), (13, 17), (17,)))),
        Case("one query", tuple(draw((1, 3), (7, 5), (3, 2), (5, 2), (2,)))),
    ]


def position_cases() -> list[Case]:
    return [Case(f"length {n}, d_model {d}", (n, d)) for n, d in ((7, 6), (3, 2), (11, 13), (5, 1))]


def cross_attention_cases() -> list[Case]:
    """Equal lengths first: there a mix-up of x and context runs, and its numbers give it away."""
    x, equal, context = draw((5, D_MODEL), (5, D_MODEL), (7, D_MODEL))
    w_q, *others = draw((D_MODEL, D_K), (D_MODEL, D_K), (D_MODEL, D_V), (D_V, D_MODEL), seed=11)
    padding = torch.arange(7).expand(5, 7) < 4
    return [
        Case("T_q = T_k = 5", (x, equal, w_q, *others)),
        Case("T_q = 5, T_k = 7", (x, context, w_q, *others)),
        Case("the last 3 of the context are padding", (x, context, w_q, *others, padding)),
        Case("some keys hidden", (x, context, w_q, *others, some_hidden(5, 7))),
        Case("some keys hidden, scores up to 1e13", (x, context, LARGE * w_q, *others, some_hidden(5, 7))),
        Case("query 1 may see no key", (x, context, w_q, *others, one_blind(5, 7))),
    ]


# --------------------------------------------------------------------------------------- the exercises and their hints

# fmt: off

ATTENTION = ("output", "weights")
EXERCISES = (
    Exercise(
        score_by_hand, ("weights",), lambda: [Case("")], MISTAKES["score_by_hand"], 0.0101, by_hand=True,
        section="3. Queries, keys and values", level="easy", minutes=15,
        idea="""
        A weight is a share of 1: how large e to the score of its key is, beside that of the other two.
        """,
        steps="""
        scores     multiply place by place and add: q · key 0 = 1·0 + 0·3 + 2·1 + 1·0 = 2
        divided    each score by √4 = 2
        e to each  the task lists e to some numbers; e⁰ = 1
        weights    each of the three, divided by the sum of the three; to check: they sum to 1
        """,
    ),
    Exercise(
        masked_softmax, ("weights",), softmax_cases, MISTAKES["masked_softmax"],
        section="3. Queries, keys and values", level="medium", minutes=40,
        idea="""
        e to minus infinity is 0. So hide before the softmax: a hidden key gets the score -inf, and those that are
        visible share the whole 1.
        """,
        steps="""
        (T_q, T_k)   the scores, with -inf where the mask is False
        (T_q, T_k)   their softmax over the last axis, that of the keys
        (T_q, T_k)   the same, with 0 wherever the mask is False: a row that sees nothing came out as NaN
        """,
    ),
    Exercise(
        self_attention, ATTENTION, self_attention_cases, MISTAKES["self_attention"],
        section="3. Queries, keys and values", level="medium", minutes=60,
        idea="""
        Three matrix products make queries, keys and values of x. Then every query meets every key: that is one more
        product.
        """,
        steps="""
        query, key, value   x times w_q, w_k, w_v            (T, d_k), (T, d_k), (T, d_v)
        scores              query times key, transposed      (T, d_k) @ (d_k, T) -> (T, T); divided by √d_k
        weights             exercise 2, of scores and mask   (T, T)
        output              weights times value              (T, T) @ (T, d_v) -> (T, d_v)
        """,
    ),
    Exercise(
        additive_attention, ATTENTION, additive_cases, MISTAKES["additive_attention"],
        section="before/README.md", level="hard", minutes=75,
        idea="""
        Each pair of a query and a row of the memory has hidden units of its own. So make a table of pairs, in which
        each entry is a vector.
        """,
        steps="""
        asks      query times w_q               (T_q, d_hidden)
        answers   memory times w_k              (T_k, d_hidden)
        pairs     each of asks plus each of     (T_q, 1, d_hidden) + (1, T_k, d_hidden) -> (T_q, T_k, d_hidden)
                  answers; asks[:, None] and answers[None] have an axis of size 1, which is stretched
        scores    tanh of pairs, times v        (T_q, T_k, d_hidden) @ (d_hidden,) -> (T_q, T_k)
        weights   softmax over the memory       (T_q, T_k)
        output    weights times memory          (T_q, T_k) @ (T_k, d_memory) -> (T_q, d_memory)
        """,
    ),
    Exercise(
        sinusoidal_positions, ("encoding",), position_cases, MISTAKES["sinusoidal_positions"], 1e-3,
        section="order/README.md", level="medium", minutes=45,
        idea="""
        First a table of angles, one for each position and column; the two columns of a pair have the same. Then the
        sine of those in even columns and the cosine of the others.
        """,
        steps="""
        column   0, 1, 2, 3, ...                        (d_model,)
        2i       0, 0, 2, 2, ...: column // 2 * 2       (d_model,)
        angle    position / 10000 ** (2i / d_model)     (length, 1) and (d_model,) -> (length, d_model)
        result   sine where column % 2 is 0, else cosine: torch.where; nothing is left to do for an odd d_model
        """,
    ),
    Exercise(
        cross_attention, ATTENTION, cross_attention_cases, MISTAKES["cross_attention"],
        section="7. What is added to the word", level="easy", minutes=30,
        idea="""
        It is exercise 3 with two inputs. x asks, so queries are made of x. The context answers, so keys and values are
        made of the context, as many as it has rows.
        """,
        steps="""
        query        x times w_q                        (T_q, d_k)
        key, value   context times w_k and w_v          (T_k, d_k), (T_k, d_v)
        weights      as in exercise 3                   (T_q, T_k)
        output       weights times value, then w_o      (T_q, T_k) @ (T_k, d_v) @ (d_v, d_model) -> (T_q, d_model)
        """,
    ),
)
# fmt: on

AFTERWARDS = """\
You can now write attention from tensors alone: score every pair, by a dot product or by Bahdanau's network, hide what a
mask hides without a NaN, and mix the values, within one text or between two. And you can tell a model where a word
stands. Next is phase2_multi_head/README.md, where one row of weights for each word becomes several."""
