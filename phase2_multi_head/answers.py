"""SPOILERS: the answers to the exercises of phase 2. A solution is one way among many: yours is
right if it passes.

Its docstring has the three hints and the usual mistakes, edits of its text: see
shared/exercise_checker/exercise.py. The solutions use no file that lessons tell you to change: see
phase1_single_head/answers.py."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from phase1_single_head.answers import (
    ATTENTION,
    ATTENTION_MISTAKES,
    MASK_MISTAKES,
    QUERY_MASKS,
    TRANSPOSED,
    VERY_LARGE,
    Pair,
    attend,
    masked_softmax,
    one_blind,
    some_hidden,
)
from shared.exercise_checker.exercise import Case, draw, exercise

SIZES = ((3, 7), (1, 7), (7, 1))  # heads, and numbers in each; with the first every mistake shows


def real_tokens(*lengths: int) -> Tensor:
    """A mask of real tokens, padding at the end -> bool (B, 5)."""
    return torch.arange(5) < torch.tensor(lengths)[:, None]


SPLIT_UP = """
    split without transpose: view keeps the order of memory, so a head gets whole positions; cut,
    then transpose
        x.view(batch, length, num_heads, d_model // num_heads) => x.reshape(batch, num_heads,
        length, -1).swapdims(1, 2)
    heads interleaved: head h owns d_k columns in a row, h * d_k to (h + 1) * d_k, not every H-th:
    mind which comes last
        x.view(batch, length, num_heads, d_model // num_heads) => x.view(batch, length, -1,
        num_heads).mT
    heads in another order: head h begins at column h * d_k, so head 0 at column 0
        x.view(batch, length, num_heads, d_model // num_heads) => x.unflatten(-1, (num_heads,
        -1)).flip(2)
        x.view(batch, length, num_heads, d_model // num_heads) => x.unflatten(-1, (num_heads,
        -1)).roll(1, 2)
        x.view(batch, length, num_heads, d_model // num_heads) => x.unflatten(-1, (num_heads,
        -1)).roll(-1, 2)
    the same slice for every head: head h begins at column h * d_k
        x.view(batch, length, num_heads, d_model // num_heads) => x.unflatten(-1, (num_heads,
        -1))[:, :, :1].repeat(1, 1, num_heads, 1)
    positions and sequences exchanged: the first axis of x is B, the second T, so write B, T, D =
    x.shape
        x.view(batch, length, num_heads, d_model // num_heads) => x.view(length, batch, num_heads,
        -1).transpose(0, 1)
"""


def split_cases() -> list[Case]:
    """B = 2, T = 5."""
    return [Case(f"{h} heads of {d_k}", (*draw((2, 5, h * d_k)), h)) for h, d_k in SIZES]


@exercise("heads", split_cases, SPLIT_UP)
def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """
    First cut the last axis in two: heads, and the numbers of each head. Then exchange heads and
    positions, because no cut can do that.

    (B, T, d_model)   the input
    (B, T, H, d_k)    the last axis cut in two: view, reshape or unflatten
    (B, H, T, d_k)    axes 1 and 2 exchanged: transpose

    for h in range(H):
        for c in range(d_k):
            heads[:, h, :, c] = x[:, :, h * d_k + c]  # of all sequences and positions

    axes in the wrong order: the numbers are in the right groups; move the axes to (B, H, T, d_k)
        return x.transpose(1, 2) => return x
        x.transpose(1, 2) => x.permute(2, 0, 1, 3)
        return x.transpose(1, 2) => return x.permute(0, 2, 3, 1)
        return x.transpose(1, 2) => return x.permute(0, 3, 2, 1)
    pieces of H numbers: split(n) cuts into pieces of n numbers, chunk(n) into n pieces; a head has
    d_model / H numbers
        return x.transpose(1, 2) => return x.flatten(2).unflatten(-1, (-1, num_heads)).transpose(1,
        2)
    slices that overlap: head h begins at column h * d_k, not at column h
        x.view(batch, length, num_heads, d_model // num_heads) => x.unfold(-1, d_model // num_heads,
        1)[:, :, :num_heads]
    transposed before the cut: cut the last axis in two first, as long as it is the columns of one
    position
        x.view(batch, length, num_heads, d_model // num_heads) => x.mT.reshape(batch, num_heads,
        length, -1).swapdims(1, 2)
    """
    batch, length, d_model = x.shape
    x = x.view(batch, length, num_heads, d_model // num_heads)  # -> (B, T, H, d_k)
    return x.transpose(1, 2)  # -> (B, H, T, d_k)


MERGE_UP = """
    merged without transpose: swap H and T back first: as they lie in memory, the positions of one
    head come first
        x.transpose(1, 2).flatten(start_dim=2) => x.reshape(x.size(0), x.size(2), -1)
    merged interleaved: at each position all numbers of head 0 come first, then those of head 1: (B,
    T, H, d_v)
        x.transpose(1, 2).flatten(start_dim=2) => x.permute(0, 2, 3, 1).flatten(2)
"""


def merge_cases() -> list[Case]:
    """B = 2, T = 5."""
    return [Case(f"{h} heads of {d_v}", tuple(draw((2, h, 5, d_v)))) for h, d_v in SIZES]


@exercise("merged", merge_cases, MERGE_UP)
def merge_heads(x: Tensor) -> Tensor:
    """
    The two steps of exercise 1, backwards: first exchange heads and positions, then make one axis
    of the last two.

    (B, H, T, d_v)   the input
    (B, T, H, d_v)   axes 1 and 2 exchanged: transpose
    (B, T, H * d_v)  the last two axes joined: reshape or flatten; view refuses, they no longer lie
                     in a row

    for h in range(H):
        for c in range(d_v):
            merged[:, :, h * d_v + c] = x[:, h, :, c]  # of all sequences and positions

    heads averaged or added up: put them side by side: of a mean or a sum w_o cannot tell which head
    found what
        x.transpose(1, 2).flatten(start_dim=2) => x.mean(dim=1)
        x.transpose(1, 2).flatten(start_dim=2) => x.sum(dim=1)
        x.transpose(1, 2).flatten(start_dim=2) => x.mean(dim=1).repeat(1, 1, x.size(1))
    heads in another order: head 0 comes first, and the last head last
        x.transpose(1, 2).flatten(start_dim=2) => x.flip(1).transpose(1, 2).flatten(2)
    joined with the positions: heads stand side by side in the last axis, and not one after the
    other in the axis of positions
        x.transpose(1, 2).flatten(start_dim=2) => x.flatten(1, 2)
    last two axes not joined: (B, T, H, d_v) is not the end; flatten makes one axis of the last two
        x.transpose(1, 2).flatten(start_dim=2) => x.transpose(1, 2)
    other axes exchanged: exchange axes 1 and 2, heads and positions, and leave the others where
    they are
        x.transpose(1, 2).flatten(start_dim=2) => x.transpose(1, 3).flatten(2)
        x.transpose(1, 2).flatten(start_dim=2) => x.mT.reshape(x.size(0), x.size(2), -1)
        x.transpose(1, 2).flatten(start_dim=2) => x.permute(2, 0, 1, 3).flatten(2)
        x.transpose(1, 2).flatten(start_dim=2) => x.mT.transpose(1, 2).reshape(x.size(0), x.size(2),
        -1)
        x.transpose(1, 2).flatten(start_dim=2) => x.transpose(1, 3).reshape(x.size(0), x.size(2),
        -1)
        x.transpose(1, 2).flatten(start_dim=2) => x.permute(2, 1, 0, 3).reshape(x.size(0),
        x.size(2), -1)
    """
    # (B, H, T, d_v) -> (B, T, H, d_v) -> (B, T, H * d_v)
    return x.transpose(1, 2).flatten(start_dim=2)


IN_HEADS = (
    ATTENTION_MISTAKES
    + """
    softmax over the heads: the last axis has the keys; dim=1 was the right one as long as there
    were no heads
        masked_softmax(scores, mask) => torch.softmax(scores, dim=-3)
    divided by √d_model: each dot product is a sum of d_k = d_model / H products: the root of d_k
    belongs there
        math.sqrt(query.size(-1)) => math.sqrt(query.size(-1) * query.size(-3))
    divided by d_model: each dot product is a sum of d_k = d_model / H products: the root of d_k
    belongs there
        math.sqrt(query.size(-1)) => (query.size(-1) * query.size(-3))
    divided by √H: each dot product is a sum of d_k products: the root of d_k belongs there
        math.sqrt(query.size(-1)) => math.sqrt(query.size(-3))
    divided by H, or another number than √d_k: each dot product is a sum of d_k products: the root
    of d_k belongs there
        math.sqrt(query.size(-1)) => query.size(-3)
"""
)


def multi_head_cases() -> list[Case]:
    """There are as many sequences as heads once: there a mask without an axis for heads runs."""
    two, three = draw((2, 5, 21), (3, 5, 21))
    w_q, *others = draw(*4 * [(21, 21)], seed=1)
    return [
        Case("without a mask", (two, w_q, *others, 3, None)),
        Case("padding, as many sequences as heads", (three, w_q, *others, 3, real_tokens(3, 4, 1))),
        Case("padding", (two, w_q, *others, 3, real_tokens(2, 4))),
        Case("padding, scores up to 1e13", (two, VERY_LARGE * w_q, *others, 3, real_tokens(2, 4))),
        Case("sequence 1 is only padding", (two, w_q, *others, 3, real_tokens(5, 0))),
    ]


@exercise(ATTENTION, multi_head_cases, IN_HEADS + TRANSPOSED + SPLIT_UP + MERGE_UP)
def multi_head_attention(
    x: Tensor,
    w_q: Tensor,
    w_k: Tensor,
    w_v: Tensor,
    w_o: Tensor,
    num_heads: int,
    mask: Tensor | None = None,
) -> Pair:
    """
    Multiply by the matrices and cut into heads, attend as in phase 1, join the heads and multiply
    by w_o. The heads are one more axis in front.

    query, key, value   x @ w_q, x @ w_k, x @ w_v, each cut by exercise 1    3 x (B, H, T, d_k)
    visible             the mask, the same for all heads and queries         (B, T) -> (B, 1, 1, T)
    heads, weights   attention of phase 1   (B, H, T, d_k), (B, H, T, T)
    output              the heads joined by exercise 2, times w_o            (B, T, d_model)

    d_k = d_model // H
    for b in range(B):
        for h in range(H):
            columns = slice(h * d_k, (h + 1) * d_k)
            query = x[b] @ w_q[:, columns]
            key = x[b] @ w_k[:, columns]
            value = x[b] @ w_v[:, columns]
            for i in range(T):
                for j in range(T):
                    scores[i, j] = query[i] @ key[j] / sqrt(d_k)
            # the same for every query and head
            weights[b, h] = masked_softmax(scores, mask[b].expand(T, T))
            for i in range(T):
                head[h][i] = sum(weights[b, h, i, j] * value[j] for j in range(T))
        for i in range(T):
            output[b, i] = concatenate([head[h][i] for h in range(H)]) @ w_o

    split and merged without transpose: view keeps the order of memory; swap T and H both times
        x.view(batch, length, num_heads, d_model // num_heads) => x.reshape(batch, num_heads,
        length, -1).swapdims(1, 2)
        and x.transpose(1, 2).flatten(start_dim=2) => x.reshape(x.size(0), x.size(2), -1)
    one of the three split without transpose: queries, keys and values are all cut first, then
    transposed
        split_heads(x @ w_q, num_heads) => (x @ w_q).reshape(len(x), num_heads, x.size(1), -1)
        split_heads(x @ w_k, num_heads) => (x @ w_k).reshape(len(x), num_heads, x.size(1), -1)
        split_heads(x @ w_v, num_heads) => (x @ w_v).reshape(len(x), num_heads, x.size(1), -1)
        split_heads(x @ w_q, num_heads) => (x @ w_q).reshape(len(x), num_heads, x.size(1), -1)
        and split_heads(x @ w_k, num_heads) => (x @ w_k).reshape(len(x), num_heads, x.size(1), -1)
    one of the three interleaved: in queries, keys and values head h owns d_k columns in a row, from
    h * d_k on
        split_heads(x @ w_q, num_heads) => (x @ w_q).unflatten(-1, (-1, num_heads)).movedim(-1, 1)
        split_heads(x @ w_k, num_heads) => (x @ w_k).unflatten(-1, (-1, num_heads)).movedim(-1, 1)
        split_heads(x @ w_v, num_heads) => (x @ w_v).unflatten(-1, (-1, num_heads)).movedim(-1, 1)
    mask on the queries: padding is hidden as a key, from every query: the axis of the mask comes
    last, (B, 1, 1, T)
        mask[:, None, None, :] => mask[:, None, :, None]
    mask on queries and keys: padded queries get something as well, which the loss leaves out: hide
    padded keys alone
        mask[:, None, None, :] => mask[:, None, None, :] & mask[:, None, :, None]
        merge_heads(heads) @ w_o => merge_heads(heads) @ w_o * (1 if mask is None else mask[...,
        None])
    mask of one sequence on the head of another: (B, 1, T) lines up with (H, T, T); the mask needs
    (B, 1, 1, T)
        mask[:, None, None, :] => mask[:, None]
    mask of the first sequence for all: each sequence of the batch has its own padding: mask[:,
    None, None, :]
        mask[:, None, None, :] => mask[:1, None, None, :]
    one mask for the whole batch: each sequence has its own padding: mask[:, None, None, :]
        mask[:, None, None, :] => mask.any(0)
        mask[:, None, None, :] => mask.all(0)
    output projection missing: multiply the merged heads by w_o: without it no head's find reaches
    other columns
        merge_heads(heads) @ w_o => merge_heads(heads)
    residual added: the block adds x; here the output is only what the heads find, times w_o
        merge_heads(heads) @ w_o => x + merge_heads(heads) @ w_o
    heads averaged or added up: put them side by side: of a mean or a sum w_o cannot tell which head
    found what
        merge_heads(heads) @ w_o => heads.sum(1) @ w_o[:heads.size(-1)]
        merge_heads(heads) @ w_o => heads.mean(1) @ w_o[:heads.size(-1)]
        merge_heads(heads) @ w_o => heads.mean(1).repeat(1, 1, num_heads) @ w_o
        merge_heads(heads) @ w_o => merge_heads(heads) / num_heads @ w_o
    weights averaged over the heads: keep those of each head: the mean of four sharp heads is a
    blurred one
        @ w_o, weights) => @ w_o, weights.mean(dim=1))
    one matrix for queries and keys: w_q makes queries, w_k keys; with one for both, words find
    those that are alike
        x @ w_k => x @ w_q
    values not made by w_v: a value has a matrix of its own
        x @ w_v => x @ w_k
        x @ w_v => x
    matrices transposed: it is x @ w here; only nn.Linear keeps its matrix transposed
        @ w_o => @ w_o.T
        x @ w_q => x @ w_q.T
        and x @ w_k => x @ w_k.T
        and x @ w_v => x @ w_v.T
        and @ w_o => @ w_o.T
        x @ w_q => x @ w_q.T
        and x @ w_k => x @ w_k.T
        and x @ w_v => x @ w_v.T
    heads and positions not exchanged: then the heads of one word ask each other; before the scores
    they must be (B, H, T, d_k)
        return x.transpose(1, 2) => return x
    heads in front of the batch: weights and heads are (B, H, T, ...), the batch first
        @ w_o, weights) => @ w_o, weights.transpose(0, 1))
    a single head: cut queries, keys and values into heads before the scores, as in exercise 1
        split_heads(x @ w_q, num_heads) => (x @ w_q)[:, None]
        and split_heads(x @ w_k, num_heads) => (x @ w_k)[:, None]
        and split_heads(x @ w_v, num_heads) => (x @ w_v)[:, None]
        and weights) => weights[:, 0])
    """
    query = split_heads(x @ w_q, num_heads)  # -> (B, H, T, d_k)
    key = split_heads(x @ w_k, num_heads)
    value = split_heads(x @ w_v, num_heads)
    # Keys are hidden, from all heads and queries: (B, T) -> (B, 1, 1, T).
    visible = None if mask is None else mask[:, None, None, :]
    heads, weights = attend(query, key, value, visible)
    return merge_heads(heads) @ w_o, weights  # (B, H, T, d_k) -> (B, T, d_model)


def fused_cases() -> list[Case]:
    """B = 2, T = 5."""
    cases = []
    for h, d_k in SIZES:
        x, w_qkv = draw((2, 5, h * d_k), (h * d_k, 3 * h * d_k))
        cases.append(Case(f"{h} heads of {d_k}", (x, w_qkv, h)))
    return cases


@exercise("query, key, value", fused_cases, SPLIT_UP)
def fused_projection(x: Tensor, w_qkv: Tensor, num_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """
    Three times as many columns make three vectors at once, side by side. Cut in three first, then
    each into heads.

    wide                x times w_qkv                                  (B, T, 3 * d_model)
    query, key, value   its columns in three equal parts: chunk        3 x (B, T, d_model)
    result              each cut into heads by exercise 1              3 x (B, H, T, d_k)

    for b in range(B):
        for t in range(T):
            wide = x[b, t] @ w_qkv                                          # 3 * d_model numbers
            for h in range(H):
                for c in range(d_k):
                    three = wide[h * d_k + c :: d_model]
                    query[b, h, t, c], key[b, h, t, c], value[b, h, t, c] = three

    queries, keys, values in another order: w_q holds the first d_model columns, w_k the next, w_v
    the last
        in parts => in (parts[0], parts[2], parts[1])
        in parts => in (parts[1], parts[0], parts[2])
        in parts => in (parts[1], parts[2], parts[0])
        in parts => in (parts[2], parts[0], parts[1])
    cut into heads first: yours gives each head 3 d_k columns in a row; first cut into queries, keys
    and values
        in parts) => in parts) if not num_heads else split_heads(x @ w_qkv, num_heads).chunk(3,
        dim=-1)
    not cut into heads: each of the three is then cut as in exercise 1
        split_heads(part, num_heads) => part
    heads and positions not exchanged: exercise 1 ends with (B, H, T, d_k)
        return x.transpose(1, 2) => return x
    every third column: w_q is the first d_model columns, w_k the next, w_v the last: chunk(3,
    dim=-1)
        (x @ w_qkv).chunk(3, dim=-1) => [(x @ w_qkv)[..., i::3] for i in range(3)]
    cut by reshape alone: the three lie side by side in the last axis, so cut that one, then
    exchange axes
        for part in parts => for part in parts) if not num_heads else tuple((x @ w_qkv).reshape(3,
        len(x), num_heads, x.size(1), -1)
        for part in parts => for part in parts) if not num_heads else tuple((x @
        w_qkv).reshape(len(x), 3, num_heads, x.size(1), -1).unbind(1)
    the same part three times: queries are the first d_model columns, keys the next, values the last
        in parts => in parts[:1] * 3
        in parts => in parts[1:2] * 3
        in parts => in parts[2:] * 3
    the same part twice: queries are the first d_model columns, keys the next, values the last
        in parts => in (parts[0], parts[0], parts[1])
        in parts => in (parts[0], parts[0], parts[2])
        in parts => in (parts[0], parts[1], parts[0])
        in parts => in (parts[0], parts[1], parts[1])
        in parts => in (parts[0], parts[2], parts[0])
        in parts => in (parts[0], parts[2], parts[2])
        in parts => in (parts[1], parts[0], parts[0])
        in parts => in (parts[1], parts[0], parts[1])
        in parts => in (parts[1], parts[1], parts[0])
        in parts => in (parts[1], parts[1], parts[2])
        in parts => in (parts[1], parts[2], parts[1])
        in parts => in (parts[1], parts[2], parts[2])
        in parts => in (parts[2], parts[0], parts[0])
        in parts => in (parts[2], parts[0], parts[2])
        in parts => in (parts[2], parts[1], parts[1])
        in parts => in (parts[2], parts[1], parts[2])
        in parts => in (parts[2], parts[2], parts[0])
        in parts => in (parts[2], parts[2], parts[1])
    cut a column too early or too late: with d = d_model keys are the columns d to 2 d - 1, values
    2 d to 3 d - 1
        in parts => in (parts[0], (x @ w_qkv)[..., x.size(-1) - 1:2 * x.size(-1) - 1], parts[2])
        in parts => in (parts[0], (x @ w_qkv)[..., x.size(-1) + 1:2 * x.size(-1) + 1], parts[2])
        in parts => in (*parts[:2], (x @ w_qkv)[..., 2 * x.size(-1) - 1:-1])
        in parts => in (parts[0], (x @ w_qkv)[..., x.size(-1) - 1:2 * x.size(-1) - 1], (x @
        w_qkv)[..., 2 * x.size(-1) - 1:-1])
    query scaled: the scores are divided by √d_k, in attention; queries come as they are
        in parts => in (parts[0] / math.sqrt(x.size(-1) // num_heads), *parts[1:])
    one of the three split without transpose: queries, keys and values are all cut first, then
    transposed
        for part in parts => if part is not parts[0] else part.reshape(len(x), num_heads, x.size(1),
        -1) for part in parts
        for part in parts => if part is not parts[1] else part.reshape(len(x), num_heads, x.size(1),
        -1) for part in parts
        for part in parts => if part is not parts[2] else part.reshape(len(x), num_heads, x.size(1),
        -1) for part in parts
    one of the three not cut into heads: each of them is, as in exercise 1
        for part in parts => if part is not parts[0] else part for part in parts
        for part in parts => if part is not parts[1] else part for part in parts
        for part in parts => if part is not parts[2] else part for part in parts
    """
    parts = (x @ w_qkv).chunk(3, dim=-1)  # (B, T, 3 d_model) -> 3 x (B, T, d_model)
    return tuple(split_heads(part, num_heads) for part in parts)


def grouped_cases() -> list[Case]:
    """H = 6, T_q = 5, T_k = 7, d_k = 10, d_v = 11."""
    inputs = {groups: draw((6, 5, 10), (groups, 7, 10), (groups, 7, 11)) for groups in (2, 1, 6)}
    query, *others = inputs[2]
    return [
        *(Case(f"H = 6, G = {groups}", (*tensors, None)) for groups, tensors in inputs.items()),
        Case("some keys hidden", (query, *others, some_hidden(5, 7))),
        Case(
            "some keys hidden, scores up to 1e13", (VERY_LARGE * query, *others, some_hidden(5, 7))
        ),
        Case("query 1 may see no key", (query, *others, one_blind(5, 7))),
    ]


@exercise(ATTENTION, grouped_cases, IN_HEADS + QUERY_MASKS)
def grouped_query_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
) -> Pair:
    """
    Copy the key-value heads, so that every query head has one: the first H / G get head 0. Then
    attend as before.

    shared_by         how many query heads share a head         H / G
    key, value        each head so often: repeat_interleave     (G, T_k, ...) -> (H, T_k, ...)
    output, weights   attention of phase 1                      (H, T_q, d_v), (H, T_q, T_k)

    for h in range(H):
        g = h // (H // G)  # H = 6, G = 2: 0 0 0 1 1 1
        for i in range(T_q):
            for j in range(T_k):
                scores[i, j] = query[h, i] @ key[g, j] / sqrt(d_k)
        weights[h] = masked_softmax(scores, mask)                           # exercise 2 of phase 1
        for i in range(T_q):
            output[h, i] = sum(weights[h, i, j] * value[g, j] for j in range(T_k))

    key-value heads tiled: repeat and expand along a new first axis give 0 1 0 1; neighbours share:
    0 0 0 1 1 1
        key.repeat_interleave(shared_by, dim=0) => key.repeat(shared_by, 1, 1)
        and value.repeat_interleave(shared_by, dim=0) => value.repeat(shared_by, 1, 1)
        value.repeat_interleave(shared_by, dim=0) => value.repeat(shared_by, 1, 1)
        key.repeat_interleave(shared_by, dim=0) => key.repeat(shared_by, 1, 1)
    key-value heads in another order: query head h reads number h // (H / G), so the first ones read
    number 0
        key.repeat_interleave(shared_by, dim=0) => key.flip(0).repeat_interleave(shared_by, dim=0)
        and value.repeat_interleave(shared_by, dim=0) => value.flip(0).repeat_interleave(shared_by,
        dim=0)
        key.repeat_interleave(shared_by, dim=0) => key.flip(0).repeat_interleave(shared_by, dim=0)
        value.repeat_interleave(shared_by, dim=0) => value.flip(0).repeat_interleave(shared_by,
        dim=0)
        key.repeat_interleave(shared_by, dim=0) => key.repeat_interleave(shared_by, dim=0).roll(1,
        0)
        and value.repeat_interleave(shared_by, dim=0) => value.repeat_interleave(shared_by,
        dim=0).roll(1, 0)
        key.repeat_interleave(shared_by, dim=0) => key.repeat_interleave(shared_by, dim=0).roll(-1,
        0)
        and value.repeat_interleave(shared_by, dim=0) => value.repeat_interleave(shared_by,
        dim=0).roll(-1, 0)
        key.repeat_interleave(shared_by, dim=0) => key[torch.arange(len(query)).clamp(max=len(key) -
        1)]
        and value.repeat_interleave(shared_by, dim=0) =>
        value[torch.arange(len(query)).clamp(max=len(value) - 1)]
    one key-value head for all: with G of them query head h reads number h // (H / G)
        key.repeat_interleave(shared_by, dim=0) => key[:1].repeat(len(query), 1, 1)
        and value.repeat_interleave(shared_by, dim=0) => value[:1].repeat(len(query), 1, 1)
        key.repeat_interleave(shared_by, dim=0) => key.mean(0, keepdim=True).repeat(len(query), 1,
        1)
        and value.repeat_interleave(shared_by, dim=0) => value.mean(0,
        keepdim=True).repeat(len(query), 1, 1)
        key.repeat_interleave(shared_by, dim=0) => key[-1:].repeat(len(query), 1, 1)
        and value.repeat_interleave(shared_by, dim=0) => value[-1:].repeat(len(query), 1, 1)
        key.repeat_interleave(shared_by, dim=0) => key[:1].repeat(len(query), 1, 1)
        value.repeat_interleave(shared_by, dim=0) => value[:1].repeat(len(query), 1, 1)
    """
    shared_by = query.size(0) // key.size(0)  # H / G
    # Query heads read the key-value heads 0 0 0 1 1 1.
    key = key.repeat_interleave(shared_by, dim=0)  # (G, T_k, d_k) -> (H, T_k, d_k)
    value = value.repeat_interleave(shared_by, dim=0)  # (G, T_k, d_v) -> (H, T_k, d_v)
    return attend(query, key, value, mask)


def causal_mask(length: int) -> Tensor:
    query_position, key_position = torch.arange(length)[:, None], torch.arange(length)
    return key_position <= query_position  # (T, 1) and (T,) -> (T, T)


def half(x: Tensor) -> Tensor:
    """As dropout of 0.5, but each call drops the same numbers: their own size decides."""
    stays = (8 * x).floor() % 2 == 0
    return torch.where(stays, 2 * x, 0.0)


def block_cases() -> list[Case]:
    """T = 5, d_model = 6, H = 2, d_ff = 11."""
    x, w_1, w_2, *projections = draw((5, 6), (6, 11), (11, 6), *4 * [(6, 6)])

    def attention(x: Tensor, mask: Tensor | None) -> Pair:
        w_q, w_k, w_v, w_o = projections
        query = split_heads((x @ w_q)[None], 2)  # (T, d_model) -> (1, H, T, d_k)
        key = split_heads((x @ w_k)[None], 2)
        value = split_heads((x @ w_v)[None], 2)
        heads, weights = attend(query, key, value, mask)
        return merge_heads(heads)[0] @ w_o, weights[0]

    even = torch.where(torch.arange(5)[:, None] == 3, 0.3 + 0.001 * x, x)
    return [
        Case("not causal", (x, attention, w_1, w_2, False, half, False)),
        Case("causal", (x, attention, w_1, w_2, True, half, False)),
        Case(
            "position 3 has nearly the same number in all places",
            (even, attention, w_1, w_2, True, half, False),
        ),
        Case("in training, with dropout", (x, attention, w_1, w_2, True, half, True)),
    ]


@exercise(ATTENTION, block_cases, tolerance=1e-3)
def transformer_block(
    x: Tensor,
    attention: Callable[[Tensor, Tensor | None], Pair],
    w_1: Tensor,
    w_2: Tensor,
    causal: bool = False,
    dropout: Callable[[Tensor], Tensor] | None = None,
    training: bool = False,
) -> Pair:
    """
    Two results are added to x, that of attention and that of the feed-forward network. Each of them
    reads a normalised copy, and x itself is never normalised.

    norm   over the last axis: F.layer_norm, or mean and var(correction=0) with keepdim=True
    mask             the lower triangle, if causal, else None              (T, T)
    found, weights   attention(norm of x, mask)                            (T, d_model), (H, T, T)
    y                x + found, of which some is dropped in training       (T, d_model)
    hidden           norm of y, times w_1, negative numbers set to 0       (T, d_ff)
    computed         hidden @ w_2, of which some is dropped in training    (T, d_model)
    output           y + computed                                          (T, d_model)

    def norm(v):  # of one position; nothing is learned
        return (v - v.mean()) / sqrt(((v - v.mean()) ** 2).mean() + 1e-5)
    for i in range(T):
        normed[i] = norm(x[i])
        for j in range(T):
            past[i, j] = j <= i
    found, weights = attention(normed, past if causal else None)
    for i in range(T):
        y[i] = x[i] + (dropout(found[i]) if training else found[i])
        computed = relu(norm(y[i]) @ w_1) @ w_2  # relu: max(0, ...), of d_ff numbers
        output[i] = y[i] + (dropout(computed) if training else computed)

    norm missing: attention reads norm(x), feed-forward norm(y)
        attention(norm(x) => attention(x
        norm(y) @ w_1 => y @ w_1
        attention(norm(x) => attention(x
        and norm(y) @ w_1 => y @ w_1
    norm after the addition (post-norm): so did Vaswani et al. 2017; pre-norm leaves the stream x as
    it is
        attention(norm(x) => attention(x
        and y = x + dropped(found) => y = norm(x + dropped(found))
        and norm(y) @ w_1 => y @ w_1
        and y + dropped(hidden @ w_2) => norm(y + dropped(hidden @ w_2))
    residual forgotten: add the result to what was there; otherwise the layer must learn to copy
        x + dropped(found) => dropped(found)
        y + dropped(hidden @ w_2) => dropped(hidden @ w_2)
        x + dropped(found) => dropped(found)
        and y + dropped(hidden @ w_2) => dropped(hidden @ w_2)
    variance divided by d_model - 1: that estimates a variance from a sample; here it is
    torch.var(..., correction=0)
        F.layer_norm(x, x.shape[-1:], eps=1e-05) => (x - x.mean(-1, True)) / (x.var(-1,
        keepdim=True) + 1e-5).sqrt()
    no 1e-5 in the norm: a position with the same number in all places has variance 0: divide by
    √(variance + 1e-5)
        F.layer_norm(x, x.shape[-1:], eps=1e-05) => (x - x.mean(-1, True)) / x.std(-1, keepdim=True,
        correction=0)
    1e-5 outside the root: add it to the variance, before the root: √(variance + 1e-5)
        F.layer_norm(x, x.shape[-1:], eps=1e-05) => (x - x.mean(-1, True)) / (x.std(-1, False,
        keepdim=True) + 1e-5)
    ReLU missing: without it two matrices in a row are one matrix
        torch.relu(norm(y) @ w_1) => norm(y) @ w_1
    causal mask the wrong way around: True = may attend: position i sees j <= i, the lower triangle
        causal_mask(len(x)) => causal_mask(len(x)).T
        causal_mask(len(x)) => ~causal_mask(len(x))
    causal mask hides the position itself: position i sees itself as well: j <= i, not j < i
        key_position <= query_position => key_position < query_position
    one word of the future visible: the diagonal is one too far to the right: the model could copy
    its next word
        key_position <= query_position => key_position <= query_position + 1
    dropout when the model is used: it is for training alone; a trained model would answer otherwise
    each time
        dropout(added) if training else added => dropout(added)
    dropout missing: in training some of what attention and the feed-forward network add is dropped:
    of each of them
        dropout(added) if training else added => added
        x + dropped(found) => x + found
        y + dropped(hidden @ w_2) => y + hidden @ w_2
    dropout of the stream: drop what is added, before it is; what is dropped of the stream no later
    layer can read
        x + dropped(found) => dropped(x + found)
        and y + dropped(hidden @ w_2) => dropped(y + hidden @ w_2)
        x + dropped(found) => dropped(x + found)
        y + dropped(hidden @ w_2) => dropped(y + hidden @ w_2)
        x + dropped(found) => dropped(x) + found
        and y + dropped(hidden @ w_2) => dropped(y) + hidden @ w_2
    dropout of the hidden numbers: here it is of what w_2 makes of them, of what is added; some
    models have both
        y + dropped(hidden @ w_2) => y + dropped(hidden) @ w_2
        y + dropped(hidden @ w_2) => y + dropped(dropped(hidden) @ w_2)
    minus in place of plus: what attention and the feed-forward network find is added to the stream
        x + dropped(found) => x - dropped(found)
        and y + dropped(hidden @ w_2) => y - dropped(hidden @ w_2)
        x + dropped(found) => x - dropped(found)
        y + dropped(hidden @ w_2) => y - dropped(hidden @ w_2)
    feed-forward network first: attention comes first, and the feed-forward network reads its sum
        found, weights = => x = x + dropped(torch.relu(norm(x) @ w_1) @ w_2); found, weights =
        and y + dropped(hidden @ w_2) => y
    attention not added: add to x what it found, before the feed-forward network reads the sum
        x + dropped(found) => x
    feed-forward reads what attention found: it reads the norm of the sum, of x + found
        norm(y) @ w_1 => norm(found) @ w_1
    a stream added twice or left out: attention adds to x, and the feed-forward network to their sum
        y + dropped(hidden @ w_2) => y + found + dropped(hidden @ w_2)
        y + dropped(hidden @ w_2) => y + y + dropped(hidden @ w_2)
        y + dropped(hidden @ w_2) => x + y + dropped(hidden @ w_2)
        y + dropped(hidden @ w_2) => found + dropped(hidden @ w_2)
    norm of what is added: norm(x) goes into attention; what comes out is added as it is
        x + dropped(found) => x + norm(dropped(found))
        x + dropped(found) => x + norm(dropped(found))
        and y + dropped(hidden @ w_2) => y + norm(dropped(hidden @ w_2))
        attention(norm(x) => attention(x
        and x + dropped(found) => x + norm(dropped(found))
        and norm(y) @ w_1 => y @ w_1
        and y + dropped(hidden @ w_2) => y + norm(dropped(hidden @ w_2))
    ReLU before w_1: first norm @ w_1, then max(0, ...) of that, then w_2
        torch.relu(norm(y) @ w_1) => torch.relu(norm(y)) @ w_1
    another number than 1e-5: add 1e-5 to the variance, below the root
        eps=1e-05 => eps=1e-06
        eps=1e-05 => eps=1e-08
        eps=1e-05 => eps=0.001
    dropout of what is read: attention and the feed-forward network read all; drop what they give
        attention(norm(x) => attention(dropped(norm(x))
        and x + dropped(found) => x + found
        attention(norm(x) => attention(dropped(norm(x))
        norm(y) @ w_1 => dropped(norm(y)) @ w_1
        norm(y) @ w_1 => dropped(norm(y)) @ w_1
        and dropped(hidden @ w_2) => hidden @ w_2
        found, weights = => x = dropped(x); found, weights =
    dropout more than once: each of the two results is dropped once, just before it is added
        dropout(added) if training else added => dropout(dropout(added)) if training else added
        y + dropped(hidden @ w_2) => dropped(y + dropped(hidden @ w_2))
    dropout of the weights: return them as attention gave them
        @ w_2), weights) => @ w_2), dropped(weights))
    residual of the norm: add to x itself, not to norm(x); the norm is what the next part reads
        x + dropped(found) => norm(x) + dropped(found)
        and y + dropped(hidden @ w_2) => norm(y) + dropped(hidden @ w_2)
        x + dropped(found) => norm(x) + dropped(found)
        y + dropped(hidden @ w_2) => norm(y) + dropped(hidden @ w_2)
    second residual of x: the feed-forward network adds to y, in which attention has added already
        y + dropped(hidden @ w_2) => x + dropped(hidden @ w_2)
    feed-forward reads x: it reads the norm of y, what attention has found included
        norm(y) @ w_1 => norm(x) @ w_1
    feed-forward network missing: after attention comes max(0, norm @ w_1) @ w_2, and is added as
    well
        y + dropped(hidden @ w_2) => y
    norm at the end: the sum is returned as it is; the next layer takes the norm
        y + dropped(hidden @ w_2) => norm(y + dropped(hidden @ w_2))
    another function for ReLU: the task says max(0, ...)
        torch.relu(norm(y) @ w_1) => F.gelu(norm(y) @ w_1)
        torch.relu(norm(y) @ w_1) => F.gelu(norm(y) @ w_1, approximate='tanh')
        torch.relu(norm(y) @ w_1) => F.silu(norm(y) @ w_1)
        torch.relu(norm(y) @ w_1) => torch.sigmoid(norm(y) @ w_1)
        torch.relu(norm(y) @ w_1) => torch.tanh(norm(y) @ w_1)
        torch.relu(norm(y) @ w_1) => F.leaky_relu(norm(y) @ w_1)
        torch.relu(norm(y) @ w_1) => (norm(y) @ w_1).abs()
        torch.relu(norm(y) @ w_1) => (norm(y) @ w_1).clamp(max=0)
    ReLU at the end: it stands between w_1 and w_2; what is added may be negative
        torch.relu(norm(y) @ w_1) => norm(y) @ w_1
        and dropped(hidden @ w_2) => dropped(torch.relu(hidden @ w_2))
    divided by the variance: divide by its root, √(variance + 1e-5)
        F.layer_norm(x, x.shape[-1:], eps=1e-05) => (x - x.mean(-1, True)) / (x.var(-1, False,
        keepdim=True) + 1e-05)
    not divided by the deviation: subtracting the mean is half of the norm; then divide by
    √(variance + 1e-5)
        F.layer_norm(x, x.shape[-1:], eps=1e-05) => x - x.mean(-1, True)
    mean not subtracted: the norm first takes the mean of a position off all of its numbers
        F.layer_norm(x, x.shape[-1:], eps=1e-05) => x / (x.var(-1, False, keepdim=True) +
        1e-05).sqrt()
        F.layer_norm(x, x.shape[-1:], eps=1e-05) => x / (x.square().mean(-1, True) + 1e-05).sqrt()
    norm over the wrong axis: mean and variance are those of one position, over its d_model numbers
        F.layer_norm(x, x.shape[-1:], eps=1e-05) => (x - x.mean(0)) / (x.var(0, False) +
        1e-05).sqrt()
        F.layer_norm(x, x.shape[-1:], eps=1e-05) => F.layer_norm(x, x.shape)
    another norm: subtract the mean, and divide by √(variance + 1e-5); the variance is the mean of
    the squared differences
        F.layer_norm(x, x.shape[-1:], eps=1e-05) => F.normalize(x, dim=-1)
        F.layer_norm(x, x.shape[-1:], eps=1e-05) => F.normalize(x - x.mean(-1, True), dim=-1)
        F.layer_norm(x, x.shape[-1:], eps=1e-05) => (x - x.mean(-1, True)) / (x.square().mean(-1,
        True) + 1e-05).sqrt()
        F.layer_norm(x, x.shape[-1:], eps=1e-05) => x - x.mean(-1, True) / (x.var(-1, False,
        keepdim=True) + 1e-05).sqrt()
    causal mask missing: if causal is True, give attention a mask that lets position i see j <= i;
    yours looks ahead
        causal_mask(len(x)) if causal else None => None
    causal mask where none was asked for: if causal is False, the mask is None
        causal_mask(len(x)) if causal else None => causal_mask(len(x))
    """

    def norm(x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], eps=0.00001)

    def dropped(added: Tensor) -> Tensor:
        return dropout(added) if training else added

    found, weights = attention(norm(x), causal_mask(len(x)) if causal else None)
    y = x + dropped(found)
    hidden = torch.relu(norm(y) @ w_1)  # (T, d_model) -> (T, d_ff)
    return y + dropped(hidden @ w_2), weights  # (T, d_ff) -> (T, d_model)


def pooling_cases() -> list[Case]:
    query, x = draw((7,), (3, 5, 7), seed=2)
    return [
        Case("padding", (query, x, real_tokens(4, 3, 1))),
        Case("padding, scores up to 1e13", (VERY_LARGE * query, x, real_tokens(4, 3, 1))),
        Case("sequence 1 is only padding", (query, x, real_tokens(2, 0, 4))),
    ]


@exercise("pooled, weights", pooling_cases, MASK_MISTAKES)
def attention_pooling(query: Tensor, x: Tensor, mask: Tensor) -> Pair:
    """
    It is attention with a single query, the same for all sequences: one score for each token, so
    weights (B, T).

    scores    each token with the query, / √d_model         (B, T, d_model) @ (d_model,) -> (B, T)
    weights   softmax over the real tokens of a sequence    (B, T); exercise 2 of phase 1 takes
              these shapes
    pooled   each token times its weight, added up   (B, T, 1) * (B, T, d_model) -> (B, d_model)

    for b in range(B):
        for j in range(T):
            scores[j] = query @ x[b, j] / sqrt(d_model)
        weights[b] = masked_softmax(scores, mask[b])
        pooled[b] = sum(weights[b, j] * x[b, j] for j in range(T))

    a plain mean: all tokens count the same, so the query was never asked
        masked_softmax(scores, mask) => masked_softmax(0 * scores, mask)
    not divided by √d_model: the dot products are too large by that factor, so the softmax comes out
    too sharp
        x @ query / math.sqrt(len(query)) => x @ query
    divided by another size than √d_model: a score is a sum of d_model products, whatever T
        math.sqrt(len(query)) => len(query)
        math.sqrt(len(query)) => math.sqrt(x.size(1))
        math.sqrt(len(query)) => math.sqrt(len(x))
        math.sqrt(len(query)) => (len(query) / 2)
        math.sqrt(len(query)) => mask.sum(-1, True).clamp(min=1).sqrt()
    root rounded: √d_model need not be a whole number, so take it as it is
        math.sqrt(len(query)) => int(math.sqrt(len(query)))
    multiplied by √d_model: divide the scores by it, so that they do not grow with d_model
        / math.sqrt(len(query)) => * math.sqrt(len(query))
    softmax twice: the weights are the softmax of the scores: once is enough
        masked_softmax(scores, mask) => masked_softmax(masked_softmax(scores, mask), mask)
    mask of the first sequence for all: each sequence has its own padding, so use all rows of the
    mask
        masked_softmax(scores, mask) => masked_softmax(scores, mask[:1].expand_as(mask))
    mask in one of the two only: pooled is made with the weights that you give back, and padding has
    no part in either
        pooled.squeeze(1), weights => pooled.squeeze(1), masked_softmax(scores)
        pooled = weights[:, None, :] => pooled = masked_softmax(scores)[:, None, :]
    an output where all is padding: all weights are 0 there, and so is the sum of the vectors, each
    times its weight
        pooled.squeeze(1) => torch.where(mask.any(-1, True), pooled.squeeze(1), x.mean(1))
        pooled.squeeze(1) => torch.where(mask.any(-1, True), pooled.squeeze(1), query)
    softmax over the wrong axis: each sentence shares out 1 over its tokens
        masked_softmax(scores, mask) => masked_softmax(scores.mT, mask.mT).mT
    softmax missing: these are scores; a weight is e to its score, divided by the sum of these
        masked_softmax(scores, mask) => scores * mask
    no softmax: divided by the sum. You divided the scores themselves; take e to the power of each
    score first
        masked_softmax(scores, mask) => (scores * mask) / (scores * mask).sum(-1, True)
    averaged, not added: the weights sum to 1 already, so add up the weighed vectors
        weights[:, None, :] @ x => weights[:, None, :] @ x / x.size(1)
        weights[:, None, :] @ x => weights[:, None, :] @ x / mask.sum(-1).clamp(min=1)[:, None,
        None]
    scores in place of weights: pooled is the sum of the vectors, each times its weight, the softmax
    of its score
        weights[:, None, :] @ x => scores[:, None, :] @ x
        weights[:, None, :] @ x => (scores * mask)[:, None, :] @ x
    weights not used: pooled is the sum of the vectors, each times its weight
        weights[:, None, :] @ x => x.sum(1, True)
        weights[:, None, :] @ x => x.mean(1, True)
        weights[:, None, :] @ x => mask[:, None, :].double() @ x
        weights[:, None, :] @ x => mask[:, None, :].double() @ x / mask.sum(-1).clamp(min=1)[:,
        None, None]
        weights[:, None, :] @ x => x[:, :1]
        weights[:, None, :] @ x => x[:, -1:]
    cosine in place of the dot product: do not divide by the lengths of the vectors
        x @ query / math.sqrt(len(query)) => F.cosine_similarity(x, query, dim=-1)
    the largest, not the sum: pooled is the sum of the vectors, each times its weight
        weights[:, None, :] @ x => (weights[:, :, None] * x).amax(1, True)
        weights[:, None, :] @ x => x.amax(1, True)
        weights[:, None, :] @ x => x[range(len(x)), weights.argmax(1)][:, None]
    """
    scores = x @ query / math.sqrt(len(query))  # (B, T, d_model) @ (d_model,) -> (B, T)
    weights = masked_softmax(scores, mask)
    pooled = weights[:, None, :] @ x  # (B, 1, T) @ (B, T, d_model) -> (B, 1, d_model)
    return pooled.squeeze(1), weights


EXERCISES = (
    split_heads,
    merge_heads,
    multi_head_attention,
    fused_projection,
    grouped_query_attention,
    transformer_block,
    attention_pooling,
)
AFTERWARDS = """\
You can now write a whole pre-norm layer from tensors, let heads share keys and values, and pool a
sentence into one vector. Next is phase3_visualization/README.md, which asks what the heads do."""
