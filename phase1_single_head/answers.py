"""SPOILERS: the answers to the exercises of phase 1.

A solution is one way among many: yours is right if it passes. Its docstring has the three hints
and the usual mistakes, edits of its text: see shared/exercise_checker/exercise.py. Lessons tell you
to change files of the course and see what happens. So the solutions are written out here and use
none of these files: a change that is left over cannot make a right answer wrong.
"""

import math

import torch
from torch import Tensor

from shared.exercise_checker.exercise import Case, draw, exercise

Pair = tuple[Tensor, Tensor]  # output, weights


@exercise("weights", lambda: [Case("")], tolerance=0.0101)
def score_by_hand() -> Tensor:
    """
    A weight is a share of 1: e to the power of the score of one key, beside the same for all three.

    scores     multiply place by place and add: q · key 0 = 1·0 + 0·3 + 2·1 + 1·0 = 2
    divided    each score by √4 = 2
    e to each  the task lists e to some numbers; e⁰ = 1
    weights    each of the three, divided by the sum of the three; check that they sum to 1

    for j in range(3):
        scores[j] = sum(query[c] * key[j][c] for c in range(4)) / sqrt(4)
    for j in range(3):
        weights[j] = exp(scores[j]) / sum(exp(scores[k]) for k in range(3))

    not divided by √d_k: the dot products are too large by that factor, so the softmax comes out too
    sharp
        / math.sqrt(4) =>
    softmax missing: these are scores; a weight is e to its score, divided by the sum of these over
    the keys
        torch.softmax(scores, dim=-1) => scores
        torch.softmax(scores, dim=-1) => scores * math.sqrt(4)
    no softmax: divided by the sum. You divided the scores themselves; take e to the power of each
    score first, so that a score of 0 gets a weight, too
        torch.softmax(scores, dim=-1) => scores / scores.sum()
    multiplied by √d_k: divide the scores by √4 = 2
        / math.sqrt(4) => * math.sqrt(4)
    divided by d_k, not by its root: √4 is 2, so divide each score by 2
        math.sqrt(4) => 4
    divided by the root of another size: d_k is how many numbers a key has, and that is 4
        math.sqrt(4) => math.sqrt(3)
    not divided by their sum: you have e to each score; divide the three by the sum of the three
        torch.softmax(scores, dim=-1) => scores.exp()
    no weight for the score 0: e⁰ is 1, so key 2 gets a share, too
        torch.softmax(scores, dim=-1) => torch.softmax(torch.where(scores == 0, -math.inf, scores),
        dim=-1)
    powers of 2, not of e: the task lists those of e, which is about 2.72
        torch.softmax(scores, dim=-1) => torch.softmax(scores * math.log(2), dim=-1)
    a minus sign lost: key 2 ends in -1, so its score is 1 + 0 + 0 - 1 = 0
        [1, 2, 0, -1] => [1, 2, 0, 1]
    in another order: the weight of key 0 comes first, then that of key 1
        return torch.softmax(scores, dim=-1) => return torch.softmax(scores, dim=-1).flip(0)
        return torch.softmax(scores, dim=-1) => return torch.softmax(scores, dim=-1)[[1, 0, 2]]
        return torch.softmax(scores, dim=-1) => return torch.softmax(scores, dim=-1)[[1, 2, 0]]
        return torch.softmax(scores, dim=-1) => return torch.softmax(scores, dim=-1)[[2, 0, 1]]
    neither divided by √d_k nor a weight for the score 0: divide each score by 2, and e⁰ is 1, so
    key 2 gets a share, too
        / math.sqrt(4) =>
        and torch.softmax(scores, dim=-1) => torch.softmax(torch.where(scores == 0, -math.inf,
        scores), dim=-1)
    """
    query = torch.tensor([1.0, 0, 2, 1])
    keys = torch.tensor([[0.0, 3, 1, 0], [1, 1, 1, 1], [1, 2, 0, -1]])
    scores = keys @ query / math.sqrt(4)  # 2, 4 and 0, each divided by 2
    return torch.softmax(scores, dim=-1)  # e¹, e², e⁰ = 2.72, 7.39, 1, each divided by 11.11


MASK_MISTAKES = """
    mask inverted: True means may attend; your weights sit on the hidden keys
        ~mask & ~blind => mask & ~blind
    mask after softmax: hidden keys took their share of 1 before you hid them; hide the scores, not
    the weights
        ~mask & ~blind => blind
        and masked_fill(blind, 0.0) => masked_fill(~mask, 0.0)
    hidden scores set to 0: e⁰ = 1 is a weight like any other; only e to -inf is 0
        -math.inf => 0.0
        -math.inf => 0.0
        and masked_fill(blind, 0.0) => masked_fill(~mask, 0.0)
    a mask added as 1 and 0: that hides nothing; what is added must be 0 where a key is visible, and
    -inf elsewhere
        scores.masked_fill(~mask & ~blind, -math.inf) => scores + mask
    hidden scores set to a finite number: with -1e9, say, visible scores below it lose to the
    hidden; use -inf
        -math.inf => -1000000000.0
        -math.inf => -1000000000.0
        and masked_fill(blind, 0.0) => masked_fill(~mask, 0.0)
    hidden scores take part: next to a far higher one all that is visible rounds to 0; hide first,
    whatever comes next
        ~mask & ~blind => blind
        and torch.softmax(scores, dim=-1).mask => (w := scores.softmax(-1) * mask).div(w.sum(-1,
        True)).mask
        ~mask & ~blind => blind
        and torch.softmax(scores, dim=-1).mask => (w := scores.softmax(-1) * mask).div(w.sum(-1,
        True).clamp(min=1e-12)).mask
    scores clamped: that makes unequal scores equal; take the largest visible score of a row off all
    of them instead
        scores.masked_fill => scores.clamp(-50, 50).masked_fill
    exp overflows: e^1000 is inf, and inf / inf NaN; take the largest visible score off the row
    first, not the mean
        torch.softmax(scores, dim=-1).mask => (scores.exp() / scores.exp().sum(-1, True)).mask
        torch.softmax(scores, dim=-1).mask => (scores.exp() / scores.exp().sum(-1,
        True)).nan_to_num(0).mask
        ~mask & ~blind => blind
        and torch.softmax(scores, dim=-1).mask => (w := scores.exp() * mask).div(w.sum(-1,
        True)).mask
        torch.softmax(scores, dim=-1).mask => (w := scores.clone().apply_(math.exp)).div(w.sum(-1,
        True)).mask
    NaN where a query sees nothing: softmax of only -inf is 0 / 0; give such a row weights of 0
        ~mask & ~blind => ~mask
        and masked_fill(blind, 0.0) => mul(1)
    weights where a query sees nothing: it sees no key, so no key gets weight: set such a row to 0
        masked_fill(blind, 0.0) => masked_fill(blind, 1 / scores.size(-1))
        masked_fill(blind, 0.0) => mul(1)
    mask not applied: the hidden keys got weight; scores.masked_fill(...) makes a new tensor and
    leaves scores as they are, so write scores = scores.masked_fill(...)
        ~mask & ~blind => False & mask
    NaN where something is hidden: 0 · inf and inf - inf are NaN; hide by masked_fill(~mask, -inf),
    without a product and without +inf
        scores.masked_fill(~mask & ~blind, -math.inf) => scores + ~mask * -math.inf
    a whole row of zeros: if one key is hidden, the others share the 1; if NaN was there before you
    made it 0, it came from 0 · inf
        masked_fill(blind, 0.0) => masked_fill(~mask.all(dim=-1, keepdim=True), 0.0)
        scores.masked_fill(~mask & ~blind, -math.inf) => scores + ~mask * -math.inf
        and torch.softmax(scores, dim=-1) => torch.softmax(scores, dim=-1).nan_to_num(0)
"""

SOFTMAX_MISTAKES = """
    softmax over the wrong axis: each query shares out 1 over the keys, so rows must sum to 1; your
    columns do
        torch.softmax(scores, dim=-1).mask => torch.softmax(scores, dim=-2).mask
    exponentials not divided by their sum: the weights of a query are shares of 1
        torch.softmax(scores, dim=-1).mask => scores.exp().mask
        torch.softmax(scores, dim=-1).mask => (scores - scores.max(-1, True).values).exp().mask
    no softmax: divided by the sum. You divided the scores themselves; take e to the power of each
    visible score first
        scores.masked_fill(~mask & ~blind, -math.inf) => scores.masked_fill(~mask, 0)
        and torch.softmax(scores, dim=-1).mask => (scores / scores.sum(-1, True)).mask
        ~mask & ~blind => blind
        and torch.softmax(scores, dim=-1).masked_fill(blind => (scores / scores.sum(-1,
        True)).masked_fill(~mask
    softmax over the whole table: each query shares out 1 by itself, over its own row
        torch.softmax(scores, dim=-1).mask => scores.flatten().softmax(0).view_as(scores).mask
    the largest score of the whole table taken off: a row far below it rounds to 0; take off each
    row its own largest
        torch.softmax(scores, dim=-1).mask => (w := (scores - scores.max()).exp()).div(w.sum(-1,
        True)).mask
        torch.softmax(scores, dim=-1).mask => (w := (scores - scores.max()).exp()).div(w.sum(-1,
        True)).nan_to_num(0).mask
    the largest score of each column taken off: only what is the same for a whole row changes no
    weight: take off each row its own largest
        torch.softmax(scores, dim=-1).mask => (w := (scores - scores.max(0, True).values).exp()
        ).div(w.sum(-1, True)).mask
    sigmoid in place of e: a weight is e to its score, divided by the sum of these over the visible
    keys
        scores.masked_fill(~mask & ~blind, -math.inf) => scores.masked_fill(~mask, -math.inf)
        and torch.softmax(scores, dim=-1).mask => (w := torch.sigmoid(scores)).div(w.sum(-1,
        True)).mask
        torch.softmax(scores, dim=-1).mask => torch.sigmoid(scores).mask
    all visible keys alike: the scores decide, so take e to each of them
        scores.masked_fill => (0 * scores).masked_fill
"""


def some_hidden(t_q: int, t_k: int) -> Tensor:
    """Every row and every column has visible and hidden places, and the transpose is another
    mask."""
    return (torch.arange(t_q)[:, None] + 3 * torch.arange(t_k)) % 5 < 3


def one_blind(t_q: int, t_k: int) -> Tensor:
    """The same, but query 1 may see nothing, and no query may see key 3."""
    return some_hidden(t_q, t_k) & (torch.arange(t_q) != 1)[:, None] & (torch.arange(t_k) != 3)


def softmax_cases() -> list[Case]:
    (scores,) = draw((5, 7))
    mask = some_hidden(5, 7)
    far_apart = torch.tensor([[1000.0, 998, -2000, 997]]).double()
    all_but_last = far_apart != 997
    high_and_low = torch.tensor([[1000.0, 999], [-1000, -999]]).double()
    return [
        Case("some keys hidden", (scores, mask)),
        Case("a row 1000, 998, -2000, 997, the last one hidden", (far_apart, all_but_last)),
        Case("hidden scores of 1000", (torch.where(mask, scores, 1e3), mask)),
        Case("a row near 1000, a row near -1000", (high_and_low, high_and_low < math.inf)),
        Case("visible scores of -1e10", (1e3 - 1.0000001e10 * mask.double(), mask)),
        Case("query 1 may see no key", (scores, one_blind(5, 7))),
    ]


@exercise("weights", softmax_cases, MASK_MISTAKES + SOFTMAX_MISTAKES)
def masked_softmax(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """
    e to the power of minus infinity is 0. So give a hidden key the score -inf before the softmax,
    and the visible keys share the whole 1.

    (T_q, T_k)   the scores, with -inf where the mask is False
    (T_q, T_k)   their softmax over the last axis, that of the keys
    (T_q, T_k)   the same, with 0 wherever the mask is False: a row that sees nothing came out as
                 NaN

    for i in range(T_q):
        visible = [j for j in range(T_k) if mask[i, j]]
        for j in visible:
            weights[i, j] = exp(scores[i, j]) / sum(exp(scores[i, k]) for k in visible)
        # all other weights of the row stay 0: the whole row, if nothing is visible
    """
    if mask is None:
        return torch.softmax(scores, dim=-1)
    blind = ~mask.any(dim=-1, keepdim=True)  # queries that may see no key: -> (..., T_q, 1)
    scores = scores.masked_fill(~mask & ~blind, -math.inf)
    return torch.softmax(scores, dim=-1).masked_fill(blind, 0.0)


SCORE_MISTAKES = """
    softmax over the wrong axis: each query shares out 1 over the keys, so rows must sum to 1; your
    columns do
        masked_softmax(scores, mask) => torch.softmax(scores, dim=-2)
    softmax missing: these are scores; a weight is e to its score, divided by the sum of these over
    the keys
        masked_softmax(scores, mask) => scores
    no softmax: divided by the sum. You divided the scores themselves; take e to the power of each
    visible score first
        masked_softmax(scores, mask) => scores / scores.sum(-1, True)
    not divided by √d_k: the dot products are too large by that factor, so the softmax comes out too
    sharp
        query / math.sqrt(query.size(-1)) => query
    divided by d_k: divide by its root: a sum of d_k products of unit variance has a standard
    deviation of √d_k
        math.sqrt(query.size(-1)) => query.size(-1)
    divided by another size than √d_k: a dot product of query and key has d_k terms, whatever
    d_model and T_k
        math.sqrt(query.size(-1)) => math.sqrt(key.size(-2))
        math.sqrt(query.size(-1)) => math.sqrt(11)
        math.sqrt(query.size(-1)) => 8
        math.sqrt(query.size(-1)) => math.sqrt(13)
    softmax before the division: divide the scores; divided weights do not sum to 1
        query / math.sqrt(query.size(-1)) => query
        and masked_softmax(scores, mask) => masked_softmax(scores, mask) / math.sqrt(query.size(-1))
    cosine in place of the dot product: a long key may count more: do not divide by the lengths of
    the vectors
        query @ key.transpose(-2, -1) => query / query.norm(dim=-1)[..., None] @ (key /
        key.norm(dim=-1)[..., None]).mT
    multiplied by √d_k: divide the scores by it, so that they do not grow with d_k
        query / math.sqrt(query.size(-1)) => query * math.sqrt(query.size(-1))
    divided by d_k / 2: ** comes before /, so d_k ** 1 / 2 is d_k / 2: write d_k ** 0.5
        math.sqrt(query.size(-1)) => (query.size(-1) / 2)
    root rounded: √d_k need not be a whole number, so take it as it is
        math.sqrt(query.size(-1)) => int(math.sqrt(query.size(-1)))
    divided by another power of d_k: divide by √d_k, which is d_k ** 0.5, and once
        math.sqrt(query.size(-1)) => query.size(-1) ** 2
        math.sqrt(query.size(-1)) => query.size(-1) ** 0.25
    softmax twice: the weights are the softmax of the scores: once is enough
        masked_softmax(scores, mask) => masked_softmax(masked_softmax(scores, mask), mask)
    all visible keys alike: the scores decide, so take e to each of them
        masked_softmax(scores, mask) => masked_softmax(0 * scores, mask)
"""
ATTENTION_MISTAKES = (
    MASK_MISTAKES
    + SCORE_MISTAKES
    + """
    nothing visible without a mask: where mask is None nothing is hidden; in a mask of your own True
    must mean may attend
        masked_softmax(scores, mask) => masked_softmax(scores, mask) if mask is not None else 0 *
        scores
        masked_softmax(scores, mask) => scores.masked_fill(torch.ones_like(scores) > 0 if mask is
        None else mask, -math.inf).softmax(-1)
        masked_softmax(scores, mask) => scores.masked_fill(torch.ones_like(scores) > 0 if mask is
        None else mask, -math.inf).softmax(-1).nan_to_num(0)
        masked_softmax(scores, mask) => scores.masked_fill(torch.ones_like(scores) > 0 if mask is
        None else mask, -1e9).softmax(-1)
    scaled only without a mask: divide the scores before you ask for the mask, whether there is one
    or not
        query / math.sqrt(query.size(-1)) => query / (math.sqrt(query.size(-1)) if mask is None else
        1)
    a causal mask of your own: only the mask that is given hides something
        masked_softmax(scores, mask) => masked_softmax(scores, (torch.ones_like(scores).tril() > 0)
        & (mask is None or mask))
        masked_softmax(scores, mask) => masked_softmax(scores, torch.ones_like(scores).tril() > 0 if
        mask is None else mask)
        masked_softmax(scores, mask) => masked_softmax(scores, mask if mask is None else
        (torch.ones_like(scores).tril() > 0) & mask)
    scores returned: the output is right; give back the weights that it was made with, the softmax
    of the scores
        weights @ value, weights => weights @ value, scores
    mask in one of the two only: the output is made with the weights that you give back, and hidden
    keys have no part in either
        weights @ value, weights => weights @ value, masked_softmax(scores)
        weights @ value, weights => masked_softmax(scores) @ value, weights
    an output where a query sees nothing: all of its weights are 0, and so is the sum of the values,
    each times its weight
        weights @ value, weights => (weights @ value).where(weights.sum(-1, True) > 0,
        value.mean(-2, True)), weights
"""
)
TRANSPOSED = """
    K Qᵀ instead of Q Kᵀ: rows belong to queries, columns to keys; weights[i, j] is how query i
    weighs key j
        query @ key.transpose(-2, -1) => key @ query.transpose(-2, -1)
    weights transposed in the sum: output i is made of row i of the weights: weights @ value
        weights @ value => weights.mT @ value
    weights returned transposed: the output is right; give back the weights as they made it, a row
    for each query
        weights @ value, weights => weights @ value, weights.mT
    only the last value: write += where you add up, since = keeps only what came last
        weights @ value, weights => weights[..., -1:] * value[..., -1:, :], weights
    output divided again: the weights of a row sum to 1 already
        weights @ value, weights => weights @ value / math.sqrt(query.size(-1)), weights
        weights @ value, weights => weights @ value / value.size(-2), weights
"""
QUERY_MASKS = """
    one mask for all queries: it has a row for each query, so query i may see key j where mask[i, j]
    is True
        masked_softmax(scores, mask) => masked_softmax(scores, mask if mask is None else mask[:1])
        masked_softmax(scores, mask) => masked_softmax(scores, mask if mask is None else
        mask.any(0))
"""
ATTENTION = "output, weights"


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Pair:
    """Attention as the exercises ask for it, with any number of axes in front."""
    query = query / math.sqrt(query.size(-1))
    scores = query @ key.transpose(-2, -1)  # (..., T_q, d_k) @ (..., d_k, T_k) -> (..., T_q, T_k)
    weights = masked_softmax(scores, mask)
    return weights @ value, weights  # (..., T_q, T_k) @ (..., T_k, d_v) -> (..., T_q, d_v)


D_K, D_MODEL, D_V = 6, 11, 13  # the 11 stands in SCORE_MISTAKES, too: a root of d_model
# Times it, some visible scores lie below any number that should hide, some hidden ones far above.
VERY_LARGE = -1e13


def self_attention_cases() -> list[Case]:
    (x,) = draw((5, D_MODEL))
    w_q, *others = draw((D_MODEL, D_K), (D_MODEL, D_K), (D_MODEL, D_V), seed=4)
    large = VERY_LARGE * w_q
    return [
        Case("without a mask", (x, w_q, *others, None)),
        Case("some keys hidden", (x, w_q, *others, some_hidden(5, 5))),
        Case("some keys hidden, scores up to 1e13", (x, large, *others, some_hidden(5, 5))),
        Case("query 1 may see no key", (x, w_q, *others, one_blind(5, 5))),
    ]


@exercise(ATTENTION, self_attention_cases, ATTENTION_MISTAKES + TRANSPOSED + QUERY_MASKS)
def self_attention(
    x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, mask: Tensor | None = None
) -> Pair:
    """
    Three matrix products make queries, keys and values from x. One more product compares every
    query with every key.

    query, key, value   x times w_q, w_k, w_v            (T, d_k), (T, d_k), (T, d_v)
    scores   query times key, transposed   (T, d_k) @ (d_k, T) -> (T, T); divided by √d_k
    weights             exercise 2, of scores and mask   (T, T)
    output              weights times value              (T, T) @ (T, d_v) -> (T, d_v)

    for i in range(T):
        query[i], key[i], value[i] = x[i] @ w_q, x[i] @ w_k, x[i] @ w_v
    for i in range(T):
        for j in range(T):
            scores[i, j] = sum(query[i, c] * key[j, c] for c in range(d_k)) / sqrt(d_k)
    weights = masked_softmax(scores, mask)
    for i in range(T):
        output[i] = sum(weights[i, j] * value[j] for j in range(T))

    one matrix for queries and keys: w_q makes queries, w_k keys; with one for both, words find
    those that are alike
        x @ w_k => x @ w_q
        x @ w_q => x @ w_k
    values not made by w_v: a value has a matrix of its own: what a word tells is not what it is
    found by
        x @ w_v => x @ w_k
        x @ w_v => x
    queries and keys not made by w_q and w_k: compare x @ w_q with x @ w_k, not x with itself
        attend(x @ w_q, x @ w_k, x @ w_v, mask) => attend(x * math.sqrt(11 / 6), x, x @ w_v, mask)
    mask transposed: its rows belong to queries, its columns to keys, as in the weights
        masked_softmax(scores, mask) => masked_softmax(scores, mask if mask is None else mask.mT)
    values not weighed: output i is the sum of all values, each times its weight in row i
        weights @ value => value
    own value where a query sees nothing: all of its weights are 0, and so is its output
        weights @ value, weights => (weights @ value).where(weights.sum(-1, True) > 0, value),
        weights
    """
    return attend(x @ w_q, x @ w_k, x @ w_v, mask)


def additive_cases() -> list[Case]:
    return [
        Case("T_q = 5, T_k = 7", tuple(draw((5, 11), (7, 13), (11, 17), (13, 17), (17,)))),
        Case("one query", tuple(draw((1, 3), (7, 5), (3, 2), (5, 2), (2,)))),
    ]


@exercise(ATTENTION, additive_cases)
def additive_attention(query: Tensor, memory: Tensor, w_q: Tensor, w_k: Tensor, v: Tensor) -> Pair:
    """
    Each pair of a query and a row of the memory has its own hidden units. So make a table of pairs,
    in which each entry is a vector.

    asks      query times w_q, [:, None]    (T_q, 1, d_hidden)
    answers   memory times w_k, [None]      (1, T_k, d_hidden)
    pairs     asks + answers                (T_q, T_k, d_hidden): an axis of size 1 is stretched
    scores    tanh of pairs, times v        (T_q, T_k, d_hidden) @ (d_hidden,) -> (T_q, T_k)
    weights   softmax over the memory       (T_q, T_k)
    output    weights times memory          (T_q, T_k) @ (T_k, d_memory) -> (T_q, d_memory)

    for i in range(T_q):
        for j in range(T_k):
            hidden = tanh(query[i] @ w_q + memory[j] @ w_k)                      # d_hidden numbers
            # no division by a root here
            scores[i, j] = sum(v[c] * hidden[c] for c in range(d_hidden))
        for j in range(T_k):
            weights[i, j] = exp(scores[i, j]) / sum(exp(scores[i, k]) for k in range(T_k))
        # the memory is its own value
        output[i] = sum(weights[i, j] * memory[j] for j in range(T_k))

    tanh missing: then the query adds the same to all scores of its row and softmax drops it: every
    row is the same
        torch.tanh(pairs) => pairs
    the query has no say: add query and memory, then take tanh of the sum; what is added behind tanh
    moves all scores of a row alike, and softmax drops it
        torch.tanh(pairs) => (torch.tanh(query @ w_q)[:, None] + torch.tanh(memory @ w_k)[None])
    another function for tanh: Bahdanau's units lie between -1 and 1, as tanh makes them
        torch.tanh => torch.relu
        torch.tanh => torch.sigmoid
        torch.tanh => torch.nn.functional.gelu
    no softmax: divided by the sum. You divided the scores themselves; take e to the power of each
    score first
        torch.softmax(scores, dim=-1) => scores / scores.sum(-1, True)
    scaled like a dot product: no √d here: tanh keeps each hidden unit between -1 and 1
        (pairs) @ v => (pairs) @ v / math.sqrt(len(v))
        (pairs) @ v => (pairs) @ v / math.sqrt(memory.size(1))
    tanh after v: tanh is taken of each hidden unit, before they are multiplied by v and added
        torch.tanh(pairs) @ v => torch.tanh(pairs @ v)
        torch.tanh(pairs) @ v => torch.tanh(pairs * v).sum(dim=-1)
    tanh twice: once is enough, of the sum of the two
        asks + answers => asks.tanh() + answers.tanh()
        torch.tanh(pairs) => torch.tanh(torch.tanh(pairs))
    v left out: the score is the dot product of v and the hidden units, not their sum
        torch.tanh(pairs) @ v => torch.tanh(pairs).sum(dim=-1)
    a mean in place of the dot product: add the products of v and the hidden units, and do not
    divide by their number
        torch.tanh(pairs) @ v => (torch.tanh(pairs) * v).mean(dim=-1)
    multiplied, not added: add the query and the row of the memory, each times its matrix
        asks + answers => asks * answers
        torch.tanh(pairs) => (asks.tanh() * answers.tanh())
    subtracted, not added: add the query and the row of the memory, each times its matrix
        asks + answers => asks - answers
        asks + answers => answers - asks
    one query for all: each query scores the memory by itself, so the rows of the weights differ
        asks + answers => (asks[:1] + answers).repeat(len(query), 1, 1)
        asks + answers => (asks.mean(0, True) + answers).repeat(len(query), 1, 1)
    all rows of the memory alike: a score is made of the query and of one row of the memory, so each
    row has its own
        asks + answers => asks + 0 * answers
    a dot product: here a small network scores each pair: v, and tanh of the sum
        torch.tanh(pairs) @ v => (asks * answers).sum(dim=-1)
    softmax over the wrong axis: each query shares out 1 over the memory, so rows must sum to 1;
    your columns do
        torch.softmax(scores, dim=-1) => torch.softmax(scores, dim=0)
    softmax missing: these are scores; a weight is e to its score, divided by the sum of these over
    the memory
        torch.softmax(scores, dim=-1) => scores
    exponentials not divided by their sum: the weights of a query are shares of 1
        torch.softmax(scores, dim=-1) => scores.exp()
    values made by w_k: the rows of the memory themselves are the values
        weights @ memory => weights @ answers[0]
    memory not weighed: the output is the sum of its rows, each times its weight
        weights @ memory => memory.mean(0).repeat(len(query), 1)
    """
    asks = (query @ w_q)[:, None]  # -> (T_q, 1, d)
    answers = (memory @ w_k)[None]  # -> (1, T_k, d)
    pairs = asks + answers  # -> (T_q, T_k, d)
    scores = torch.tanh(pairs) @ v  # (T_q, T_k, d) @ (d,) -> (T_q, T_k)
    weights = torch.softmax(scores, dim=-1)
    return weights @ memory, weights


def position_cases() -> list[Case]:
    cases = []
    for length, d_model in ((7, 6), (3, 2), (11, 13), (5, 1)):
        cases.append(Case(f"length {length}, d_model {d_model}", (length, d_model)))
    return cases


@exercise("encoding", position_cases, tolerance=1e-3)
def sinusoidal_positions(length: int, d_model: int) -> Tensor:
    """
    First make a table of angles, in which the two columns of a pair are the same. Then take the
    sine in even columns, and the cosine in odd ones.

    column   0, 1, 2, 3, ...                        (d_model,)
    2i       0, 0, 2, 2, ...: column // 2 * 2       (d_model,)
    angle    position / 10000 ** (2i / d_model)     (length, 1) and (d_model,) -> (length, d_model)
    result   sine where column % 2 is 0, else cosine: torch.where; nothing is left to do for an odd
             d_model

    for position in range(length):
        for column in range(d_model):
            i = column // 2  # columns 0 and 1 are pair 0, then come 2 and 3
            angle = position / 10000 ** (2 * i / d_model)
            encoding[position, column] = sin(angle) if column % 2 == 0 else cos(angle)

    sines and cosines side by side: they take turns: column 2i holds the sine, column 2i + 1 the
    cosine
        return encoding => return torch.cat([encoding[:, 0::2], encoding[:, 1::2]], dim=1)
    positions counted from 1: the first row is position 0: sin 0 = 0, cos 0 = 1
        torch.arange(length) => torch.arange(1, length + 1)
    positions counted from 1, and something else: the first row is position 0; mend that and ask
    again
        torch.arange(length) => torch.arange(1, length + 1)
        and angle.sin() => torch.cos(angle)
        and angle.cos() => angle.sin()
        torch.arange(length) => torch.arange(1, length + 1)
        and return encoding => return torch.cat([encoding[:, 0::2], encoding[:, 1::2]], dim=1)
        torch.arange(length) => torch.arange(1, length + 1)
        and 10000.0 => 1000.0
        torch.arange(length) => torch.arange(1, length + 1)
        and torch.arange(0, d_model, 2) => torch.arange(0, d_model, 2) / 2
    positions counted backwards: row 0 is position 0, and the last row position length - 1
        return encoding => return encoding.flip(0)
    pairs counted from 1: the first pair has i = 0, so its angle is the position itself
        torch.arange(0, d_model, 2) => torch.arange(2, d_model + 2, 2)
    degrees: sine and cosine take the angle as it is, in radians
        angle = position * rates => angle = (position * rates).deg2rad()
    sine and cosine missing: these are the angles; even columns hold their sine, odd ones their
    cosine
        angle.sin() => angle
        and angle.cos() => angle
    exponent i / d_model: the power is 2i / d_model, with i counting pairs of columns: yours grows
    half as fast
        torch.arange(0, d_model, 2) => torch.arange(0, d_model, 2) / 2
    each column its own angle: columns 2i and 2i + 1 share one angle; the cosine's power is 2i /
    d_model as well
        angle.cos() => (angle * 10000 ** (-1 / d_model)).cos()
        angle.cos() => (angle * 10000 ** (-2 / d_model)).cos()
    an odd d_model fails: the last sine then has no cosine beside it
        angle.cos()[:, :d_model // 2] => angle.cos()
        return encoding => return encoding[:, :d_model // 2 * 2]
        return encoding => return encoding[:, torch.arange(d_model + d_model % 2)]
    exponent 2 · column: i counts pairs of columns, so in columns 2i and 2i + 1 the exponent is 2i /
    d_model, with i = column // 2
        torch.arange(0, d_model, 2) => 2 * torch.arange(0, d_model, 2)
        and angle.cos() => (angle * 10000 ** (-2 / d_model)).cos()
        torch.arange(0, d_model, 2) => 2 * torch.arange(0, d_model, 2)
    power far too large: the power is 10000 ** (2i / d_model), from 1 to nearly 10000; by exp it is
    exp(2i / d_model * log(10000))
        / d_model) => )
    all pairs turn alike: each has its own power 10000 ** (2i / d_model); 2i / d_model lies between
    0 and 1, and // makes it 0
        (-torch.arange(0, d_model, 2) / d_model) => (-(torch.arange(0, d_model, 2) // d_model))
    brackets missing in the power: ** comes before * and /, so write 10000 ** (2 * i / d_model)
        10000.0 ** (-torch.arange(0, d_model, 2) / d_model) => 1e-08 * torch.arange((d_model + 1) //
        2) / d_model
        10000.0 ** (-torch.arange(0, d_model, 2) / d_model) => 10000.0 ** -torch.arange(0, d_model,
        2) / d_model
        10000.0 ** (-torch.arange(0, d_model, 2) / d_model) => 10000.0 ** -torch.arange(0, d_model,
        2) * d_model
    multiplied by the power: divide the position by it, so that later columns turn more slowly
        (-torch.arange => (torch.arange
    another base than 10000: then the waves have other lengths
        10000.0 => 1000.0
        10000.0 => math.e
    sine and cosine exchanged: the even column holds the sine, the odd one the cosine
        angle.sin() => torch.cos(angle)
        and angle.cos() => angle.sin()
    only sines: the odd column of a pair holds the cosine
        angle.cos() => angle.sin()
    only cosines: the even column of a pair holds the sine
        angle.sin() => angle.cos()
    rows and columns exchanged: a row is a position, so the result has length rows
        return encoding => return encoding.T
    """
    position = torch.arange(length)[:, None]
    rates = 10000.0 ** (-torch.arange(0, d_model, 2) / d_model)
    angle = position * rates  # (length, 1) * (pairs,) -> (length, pairs)
    encoding = torch.zeros(length, d_model)
    encoding[:, 0::2] = angle.sin()
    encoding[:, 1::2] = angle.cos()[:, : d_model // 2]  # an odd d_model has one cosine less
    return encoding


def cross_attention_cases() -> list[Case]:
    """Equal lengths first: there a mix-up of x and context runs, and its numbers give it away."""
    x, equal, context = draw((5, D_MODEL), (5, D_MODEL), (7, D_MODEL))
    w_q, *others = draw((D_MODEL, D_K), (D_MODEL, D_K), (D_MODEL, D_V), (D_V, D_MODEL), seed=4)
    large = VERY_LARGE * w_q
    return [
        Case("T_q = T_k = 5", (x, equal, w_q, *others, None)),
        Case("T_q = 5, T_k = 7", (x, context, w_q, *others, None)),
        Case("some keys hidden", (x, context, w_q, *others, some_hidden(5, 7))),
        Case(
            "some keys hidden, scores up to 1e13", (x, context, large, *others, some_hidden(5, 7))
        ),
        Case("query 1 may see no key", (x, context, w_q, *others, one_blind(5, 7))),
    ]


@exercise(ATTENTION, cross_attention_cases, ATTENTION_MISTAKES + TRANSPOSED + QUERY_MASKS)
def cross_attention(
    x: Tensor,
    context: Tensor,
    w_q: Tensor,
    w_k: Tensor,
    w_v: Tensor,
    w_o: Tensor,
    mask: Tensor | None = None,
) -> Pair:
    """
    It is exercise 3 with two inputs. x asks, so queries are made from x. The context answers, so
    keys and values are made from the context.

    query        x times w_q                        (T_q, d_k)
    key, value   context times w_k and w_v          (T_k, d_k), (T_k, d_v)
    weights      as in exercise 3                   (T_q, T_k)
    output       weights times value, then w_o      (T_q, T_k) @ (T_k, d_v) @ (d_v, d_model) ->
                 (T_q, d_model)

    for i in range(T_q):
        for j in range(T_k):
            scores[i, j] = (x[i] @ w_q) @ (context[j] @ w_k) / sqrt(d_k)
    weights = masked_softmax(scores, mask)
    for i in range(T_q):
        output[i] = sum(weights[i, j] * (context[j] @ w_v) for j in range(T_k)) @ w_o

    keys or values from x: w_k and w_v both read the context: it is searched, and what is found is
    passed on
        context @ w_k => x @ w_k
        context @ w_v => x @ w_v
    self-attention: here x asks and the context answers: w_q reads x, w_k and w_v read the context
        context @ w_k => x @ w_k
        and context @ w_v => x @ w_v
    output projection missing: multiply by w_o, which brings the output from d_v back to d_model
        output @ w_o => output
    residual added: a layer adds x; here the output is only what is found
        output @ w_o => x + output @ w_o
    values not made by w_v: w_v makes values of the context, and w_o brings the output back
        context @ w_v => context
        and output @ w_o => output
    queries and keys not made by w_q and w_k: compare x @ w_q with context @ w_k
        attend(x @ w_q, context @ w_k, => attend(x * math.sqrt(11 / 6), context,
        attend(x @ w_q, context @ w_k, => attend(x, context,
    one matrix for queries and keys: w_q makes queries of x, w_k keys of the context
        context @ w_k => context @ w_q
        x @ w_q => x @ w_k
    w_q and w_k exchanged: w_q makes queries of x, w_k keys of the context
        attend(x @ w_q, context @ w_k => attend(x @ w_k, context @ w_q
    x and context exchanged: x asks, so w_q reads x; the context answers
        attend(x @ w_q, context @ w_k, context @ w_v, mask) => attend(context @ w_q, x @ w_k, x @
        w_v, mask)
    queries from the context: x asks, so w_q reads x
        x @ w_q => context @ w_q
    """
    output, weights = attend(x @ w_q, context @ w_k, context @ w_v, mask)
    return output @ w_o, weights


EXERCISES = (
    score_by_hand,
    masked_softmax,
    self_attention,
    additive_attention,
    sinusoidal_positions,
    cross_attention,
)
AFTERWARDS = """\
You can now write attention from tensors alone, within one text and between two, and tell a model
where a word stands. Next is phase2_multi_head/README.md, where one row of weights for each word
becomes several."""
