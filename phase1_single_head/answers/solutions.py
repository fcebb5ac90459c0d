"""SPOILERS: the reference solutions of the exercises of phase 1, and the mistakes that the checker knows by name.

Try exercises.py first, then compare. A solution is one way among many: yours is right if the checker says so. Each
mistake is a function too, one that makes it, and that is how the checker tells one from the other.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from shared.exercise_checker import Case, Exercise, Mistake, draw

Pair = tuple[Tensor, Tensor]  # output, weights

# ---------------------------------------------------------------------------------------------------- the solutions


def dot_products() -> Tensor:
    """The query of exercise 1 times each of its keys: 2, 4, 0."""
    query, keys = torch.tensor([1.0, 0, 2, 1]), torch.tensor([[0.0, 3, 1, 0], [1, 1, 1, 1], [1, 2, 0, -1]])
    return keys @ query


def score_by_hand() -> Tensor:
    return torch.softmax(dot_products() / math.sqrt(4), dim=-1)  # e¹, e², e⁰ = 2.72, 7.39, 1, each divided by 11.11


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    weights = torch.softmax(torch.where(mask, scores, -math.inf), dim=-1)
    return torch.where(mask, weights, 0.0)  # a row of only -inf came out as NaN, and all of it is hidden


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, divisor=0.0, softmax=masked_softmax) -> Pair:
    """Scaled dot-product attention. Another divisor than √d_k, or another softmax, is a mistake made further down."""
    scores = query @ key.T / (divisor or math.sqrt(key.size(-1)))  # (T_q, d_k) @ (d_k, T_k) -> (T_q, T_k)
    weights = softmax(scores, torch.ones_like(scores, dtype=torch.bool) if mask is None else mask)
    return weights @ value, weights


def self_attention(x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, mask: Tensor | None = None) -> Pair:
    return attend(x @ w_q, x @ w_k, x @ w_v, mask)


def additive_attention(query: Tensor, memory: Tensor, w_q: Tensor, w_k: Tensor, v: Tensor) -> Pair:
    pairs = (query @ w_q)[:, None] + (memory @ w_k)[None]  # (T_q, 1, d) + (1, T_k, d) -> (T_q, T_k, d)
    weights = torch.softmax(torch.tanh(pairs) @ v, dim=-1)  # (T_q, T_k, d) @ (d,) -> (T_q, T_k)
    return weights @ memory, weights


def sinusoidal_positions(length: int, d_model: int) -> Tensor:
    column = torch.arange(d_model)
    angle = torch.arange(length)[:, None] / 10000.0 ** (column // 2 * 2 / d_model)  # -> (length, d_model)
    return torch.where(column % 2 == 0, angle.sin(), angle.cos())


def cross_attention(
    x: Tensor, context: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, mask: Tensor | None = None
) -> Pair:
    output, weights = attend(x @ w_q, context @ w_k, context @ w_v, mask)
    return output @ w_o, weights


# -------------------------------------------------------------------------------------------------------- the cases

D_K, D_MODEL, D_V = 3, 11, 13


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
        Case("query 1 may see no key", (scores, one_blind(5, 7))),
        Case("all scores 1000", (torch.full_like(scores, 1e3), visible)),
        Case("all scores -1e12", (torch.full_like(scores, -1e12), some_hidden(5, 7))),
    ]


def self_attention_cases() -> list[Case]:
    x, *weights = draw((5, D_MODEL), (D_MODEL, D_K), (D_MODEL, D_K), (D_MODEL, D_V))
    return [
        Case("without a mask", (x, *weights)),
        Case("some keys hidden", (x, *weights, some_hidden(5, 5))),
        Case("query 1 may see no key", (x, *weights, one_blind(5, 5))),
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
    weights = draw((D_MODEL, D_K), (D_MODEL, D_K), (D_MODEL, D_V), (D_V, D_MODEL), seed=1)
    return [
        Case("T_q = T_k = 5", (x, equal, *weights)),
        Case("T_q = 5, T_k = 7", (x, context, *weights)),
        Case("the last 3 of the context are padding", (x, context, *weights, torch.arange(7).expand(5, 7) < 4)),
        Case("some keys hidden", (x, context, *weights, some_hidden(5, 7))),
        Case("query 1 may see no key", (x, context, *weights, one_blind(5, 7))),
    ]


# --------------------------------------------------------------------------------------- the mistakes, as functions


def fill(value: float, dim: int = -1) -> Callable[[Tensor, Tensor], Tensor]:
    """Softmax with this value in the hidden places."""
    return lambda scores, mask: torch.softmax(torch.where(mask, scores, value), dim=dim)


def plain_exp(scores: Tensor, mask: Tensor) -> Tensor:
    """Softmax word for word: exponentials, divided by their sum."""
    visible = torch.where(mask, scores.exp(), 0.0)
    return torch.where(mask, visible / visible.sum(dim=-1, keepdim=True), 0.0)


def in_self(attend):
    """Self-attention with another attention."""
    return lambda x, w_q, w_k, w_v, mask=None: attend(x @ w_q, x @ w_k, x @ w_v, mask)


def in_cross(attend=attend, project=lambda x, context, w_q, w_k, w_v: (x @ w_q, context @ w_k, context @ w_v)):
    """Cross-attention with another attention or other projections."""

    def wrong(x, context, w_q, w_k, w_v, w_o, mask=None):
        output, weights = attend(*project(x, context, w_q, w_k, w_v), mask)
        return output @ w_o, weights

    return wrong


def in_additive(score=lambda pairs, v: torch.tanh(pairs) @ v, softmax=lambda scores: torch.softmax(scores, dim=-1)):
    """Additive attention with another score or another softmax."""

    def wrong(query, memory, w_q, w_k, v):
        weights = softmax(score((query @ w_q)[:, None] + (memory @ w_k)[None], v))
        return weights @ memory, weights

    return wrong


def waves(power=lambda column: column // 2 * 2, start=0, even=torch.sin, odd=torch.cos):
    """Positions that count from another start, with another power of 10000^(1 / d_model), or with other functions."""

    def wrong(length, d_model):
        column = torch.arange(d_model)
        angle = torch.arange(start, start + length)[:, None] / 10000.0 ** (power(column) / d_model)
        return torch.where(column % 2 == 0, even(angle), odd(angle))

    return wrong


def paired(length: int, d_model: int, pairs: int) -> Tensor:
    """Positions made of so many pairs of a sine and a cosine; an odd d_model is not a number of pairs."""
    angle = torch.arange(length)[:, None] / 10000.0 ** (2 * torch.arange(pairs) / d_model)
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)  # (length, pairs, 2) -> (length, 2 pairs)


# The name of a mistake and a function that makes it; a name may have several, for there may be several ways to make it.
HAND = (
    ("not divided by √d_k", lambda: torch.softmax(dot_products(), dim=-1)),
    ("divided by d_k", lambda: torch.softmax(dot_products() / 4, dim=-1)),
    ("softmax missing", lambda: dot_products() / 2),
    ("scale and softmax missing", dot_products),
    ("divided by the sum of the scores", lambda: dot_products() / dot_products().sum()),
    ("exponentials not divided by their sum", lambda: torch.exp(dot_products() / 2)),
)
SOFTMAX = (
    ("softmax over the wrong axis", fill(-math.inf, dim=-2)),
    ("mask inverted", lambda scores, mask: masked_softmax(scores, mask if mask.all() else ~mask)),
    ("mask inverted", lambda scores, mask: masked_softmax(scores, ~mask)),
    ("mask inverted", lambda scores, mask: fill(-math.inf)(scores, ~mask)),
    ("mask ignored", lambda scores, mask: torch.softmax(scores, dim=-1)),
    ("mask after softmax", lambda scores, mask: torch.where(mask, torch.softmax(scores, dim=-1), 0.0)),
    ("hidden scores set to 0", fill(0.0)),
    ("hidden scores set to a finite number", fill(-1e9)),
    ("hidden scores set to a finite number", lambda scores, mask: torch.softmax(scores - 1e9 * ~mask, dim=-1)),
    ("NaN where a query sees nothing", fill(-math.inf)),
    ("exponentials not divided by their sum", lambda scores, mask: torch.where(mask, scores.exp(), 0.0)),
)
EXTREMES = (  # right with ordinary scores
    ("exp overflows", plain_exp),
    ("exp overflows", lambda scores, mask: plain_exp(scores, mask).nan_to_num(0.0)),
    ("hidden scores set to a finite number", lambda s, mask: fill(-1e9)(s, mask) * mask.any(dim=-1, keepdim=True)),
    ("hidden scores set to a finite number", lambda s, mask: fill(-1e9)(s, mask) * mask),
)
ATTEND = (
    *((name, partial(attend, softmax=softmax)) for name, softmax in SOFTMAX),
    ("softmax missing", partial(attend, softmax=torch.mul)),
    ("not divided by √d_k", partial(attend, divisor=1)),
    ("divided by d_k", partial(attend, divisor=D_K)),
    ("divided by √d_model", partial(attend, divisor=math.sqrt(D_MODEL))),
    ("K Qᵀ instead of Q Kᵀ", lambda q, k, v, mask: attend(k, q, v, mask)),
)
SELF = tuple((name, in_self(wrong)) for name, wrong in ATTEND)
ADDITIVE = (
    ("tanh missing", in_additive(torch.matmul)),
    ("v missing", in_additive(lambda pairs, v: torch.tanh(pairs).sum(dim=-1))),
    ("tanh after v", in_additive(lambda pairs, v: torch.tanh(pairs @ v))),
    ("scaled like a dot product", in_additive(lambda pairs, v: torch.tanh(pairs) @ v / math.sqrt(len(v)))),
    ("softmax over the wrong axis", in_additive(softmax=lambda scores: torch.softmax(scores, dim=-2))),
    ("softmax missing", in_additive(softmax=lambda scores: scores)),
)
POSITIONS = (
    ("sine and cosine swapped", waves(even=torch.cos, odd=torch.sin)),
    ("sines and cosines side by side", lambda n, d: torch.cat([waves()(n, d)[:, i::2] for i in (0, 1)], dim=1)),
    ("only sines", waves(odd=torch.sin)),
    ("positions counted from 1", waves(start=1)),
    ("exponent i / d_model", waves(lambda column: column // 2)),
    ("exponent doubled", waves(lambda column: column // 2 * 4)),
    ("each column its own angle", waves(lambda column: column)),
    ("multiplied by the power of 10000", waves(lambda column: -(column // 2 * 2))),
    ("an odd d_model fails", lambda length, d_model: paired(length, d_model, d_model // 2).view(length, d_model)),
    ("an odd d_model fails", lambda length, d_model: paired(length, d_model, d_model // 2)),
    ("an odd d_model fails", lambda length, d_model: paired(length, d_model, (d_model + 1) // 2)),
)
CROSS = (
    *((name, in_cross(wrong)) for name, wrong in ATTEND),
    ("keys from x", in_cross(project=lambda x, context, w_q, w_k, w_v: (x @ w_q, x @ w_k, context @ w_v))),
    ("values from x", in_cross(project=lambda x, context, w_q, w_k, w_v: (x @ w_q, context @ w_k, x @ w_v))),
    ("keys and values from x", in_cross(project=lambda x, _, w_q, w_k, w_v: (x @ w_q, x @ w_k, x @ w_v))),
    ("x and context swapped", in_cross(project=lambda x, c, w_q, w_k, w_v: (c @ w_q, x @ w_k, x @ w_v))),
    ("output projection missing", lambda x, c, q, k, v, o, mask=None: attend(x @ q, c @ k, c @ v, mask)),
)
HINTS = {
    "not divided by √d_k": "the dot products are too large by that factor, so the softmax comes out too sharp",
    "divided by d_k": "divide by its root: a sum of d_k products of unit variance has a standard deviation of √d_k",
    "divided by √d_model": "the sum in a dot product of query and key runs over d_k numbers, so its root belongs there",
    "softmax missing": "these are scores; a weight is e to its score, divided by the sum of these over the keys",
    "scale and softmax missing": "these are the bare dot products q · k; divide by √d_k, then take the softmax",
    "divided by the sum of the scores": "softmax takes e to each score first: scores may be negative, weights may not",
    "exponentials not divided by their sum": "the weights of a query are shares of 1",
    "softmax over the wrong axis": "each query shares out 1 over the keys, so rows must sum to 1; your columns do",
    "mask inverted": "True means may attend; your weights sit on the hidden keys",
    "mask ignored": "hidden keys get weight as if there were no mask",
    "mask after softmax": "hidden keys took their share of 1 before you hid them; hide the scores, not the weights",
    "hidden scores set to 0": "e⁰ = 1 is a weight like any other; only e to -inf is 0",
    "hidden scores set to a finite number": "with -1e9, say, a row that sees nothing does not come out as 0, and "
    "visible scores below it lose to the hidden; use -inf, and weights of 0 for a row that sees nothing",
    "NaN where a query sees nothing": "softmax of only -inf is 0 / 0; give such a row weights of 0",
    "exp overflows": "e^1000 is inf, and inf / inf NaN; take the largest visible score off the row first",
    "K Qᵀ instead of Q Kᵀ": "rows belong to queries, columns to keys; weights[i, j] is how query i weighs key j",
    "tanh missing": "then the query adds the same to all scores of its row and softmax drops it: every row is the same",
    "v missing": "multiply each hidden unit by its entry of v before you add them up",
    "tanh after v": "tanh acts on each hidden unit; v then makes one number of them",
    "scaled like a dot product": "no √d here: tanh keeps each hidden unit between -1 and 1",
    "sine and cosine swapped": "even columns hold the sine, odd columns the cosine",
    "sines and cosines side by side": "they take turns: column 2i holds the sine, column 2i + 1 the cosine",
    "only sines": "odd columns hold the cosine of the angle of the column before",
    "positions counted from 1": "the first row is position 0: sin 0 = 0, cos 0 = 1",
    "exponent i / d_model": "the power is 2i / d_model, with i counting pairs of columns: yours grows half as fast",
    "exponent doubled": "the power is 2i / d_model, and 2i is already the number of the sine's column",
    "each column its own angle": "columns 2i and 2i + 1 share one angle; the cosine's power is 2i / d_model as well",
    "multiplied by the power of 10000": "divide: the waves get longer from left to right",
    "an odd d_model fails": "the last sine then has no cosine beside it",
    "keys from x": "w_k reads the context: it is the context that is searched",
    "values from x": "w_v reads the context: what is found is what is passed on",
    "keys and values from x": "this is self-attention; w_k and w_v read the context",
    "x and context swapped": "x asks, the context answers: w_q reads x, w_k and w_v the context",
    "output projection missing": "multiply by w_o, which brings the output from d_v back to d_model",
}


def named(mistakes: tuple[tuple[str, Callable], ...]) -> tuple[Mistake, ...]:
    return tuple(Mistake(name, HINTS[name], wrong) for name, wrong in mistakes)


ATTENTION = ("output", "weights")
EXERCISES = (
    Exercise(score_by_hand, ("weights",), lambda: [Case("")], named(HAND), tolerance=0.0101, by_hand=True),
    Exercise(masked_softmax, ("weights",), softmax_cases, named(SOFTMAX + EXTREMES)),
    Exercise(self_attention, ATTENTION, self_attention_cases, named(SELF)),
    Exercise(additive_attention, ATTENTION, additive_cases, named(ADDITIVE)),
    Exercise(sinusoidal_positions, ("encoding",), position_cases, named(POSITIONS), tolerance=1e-3),
    Exercise(cross_attention, ATTENTION, cross_attention_cases, named(CROSS)),
)
