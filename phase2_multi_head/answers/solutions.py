"""SPOILERS: the reference solutions of the exercises of phase 2, and the inputs on which yours are tried.

Try exercises.py first, then compare. A solution is one way among many: yours is right if the checker says so. The
docstring of a solution is its task in plain loops, which `--hint 3` prints; hints 1 and 2 stand in EXERCISES.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from phase1_single_head.answers.solutions import LARGE, attend, masked_softmax, one_blind, some_hidden
from phase2_multi_head.answers.mistakes import MISTAKES
from shared.attention_utils import causal_mask
from shared.exercise_checker import Case, Exercise, draw

Pair = tuple[Tensor, Tensor]  # output, weights


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """
    for b in range(B):
        for h in range(H):
            for t in range(T):
                for c in range(d_k):
                    heads[b, h, t, c] = x[b, t, h * d_k + c]
    """
    return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)  # (B, T, d_model) -> (B, T, H, d_k) -> (B, H, T, d_k)


def merge_heads(x: Tensor) -> Tensor:
    """
    for b in range(B):
        for t in range(T):
            for h in range(H):
                for c in range(d_v):
                    merged[b, t, h * d_v + c] = x[b, h, t, c]
    """
    return x.transpose(1, 2).flatten(2)  # (B, H, T, d_v) -> (B, T, H, d_v) -> (B, T, H * d_v)


def multi_head_attention(
    x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, num_heads: int, mask: Tensor | None = None
) -> Pair:
    """
    d_k = d_model // H
    for b in range(B):
        for h in range(H):
            columns = slice(h * d_k, (h + 1) * d_k)
            query, key, value = x[b] @ w_q[:, columns], x[b] @ w_k[:, columns], x[b] @ w_v[:, columns]
            for i in range(T):
                for j in range(T):
                    scores[i, j] = query[i] @ key[j] / sqrt(d_k)
                visible = [j for j in range(T) if mask[b, j]]              # the same for every query and head
                for j in visible:
                    weights[b, h, i, j] = exp(scores[i, j]) / sum(exp(scores[i, k]) for k in visible)
                # all other weights stay 0, in a sequence of nothing but padding all of them
                head[h][i] = sum(weights[b, h, i, j] * value[j] for j in range(T))
        for i in range(T):
            output[b, i] = concatenate([head[h][i] for h in range(H)]) @ w_o
    """
    query, key, value = (split_heads(x @ w, num_heads) for w in (w_q, w_k, w_v))  # (B, T, d_model) -> (B, H, T, d_k)
    visible = None if mask is None else mask[:, None, None, :]  # (B, T) -> (B, 1, 1, T): keys, for all heads, queries
    heads, weights = attend(query, key, value, visible)
    return merge_heads(heads) @ w_o, weights  # (B, H, T, d_k) -> (B, T, d_model)


def fused_projection(x: Tensor, w_qkv: Tensor, num_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """
    for b in range(B):
        for t in range(T):
            wide = x[b, t] @ w_qkv                                          # 3 * d_model numbers
            for h in range(H):
                for c in range(d_k):
                    query[b, h, t, c] = wide[h * d_k + c]
                    key[b, h, t, c] = wide[d_model + h * d_k + c]
                    value[b, h, t, c] = wide[2 * d_model + h * d_k + c]
    """
    query, key, value = (x @ w_qkv).chunk(3, dim=-1)  # (B, T, 3 d_model) -> 3 x (B, T, d_model)
    return split_heads(query, num_heads), split_heads(key, num_heads), split_heads(value, num_heads)


def grouped_query_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Pair:
    """
    for h in range(H):
        g = h // (H // G)                                                   # H = 6, G = 2: 0 0 0 1 1 1
        for i in range(T_q):
            for j in range(T_k):
                scores[i, j] = query[h, i] @ key[g, j] / sqrt(d_k)
        weights[h] = masked_softmax(scores, mask)                           # exercise 2 of phase 1
        for i in range(T_q):
            output[h, i] = sum(weights[h, i, j] * value[g, j] for j in range(T_k))
    """
    shared_by = query.size(0) // key.size(0)  # H / G
    key = key.repeat_interleave(shared_by, dim=0)  # (G, T_k, d_k) -> (H, T_k, d_k): heads 0 0 0 1 1 1
    value = value.repeat_interleave(shared_by, dim=0)  # (G, T_k, d_v) -> (H, T_k, d_v)
    return attend(query, key, value, mask)


def transformer_block(
    x: Tensor,
    attention: Callable[[Tensor, Tensor | None], Pair],
    w_1: Tensor,
    w_2: Tensor,
    causal: bool = False,
    keep: Tensor | None = None,
    p: float = 0.0,
) -> Pair:
    """
    def norm(v):                                                         # of one position; nothing is learned
        return (v - v.mean()) / sqrt(((v - v.mean()) ** 2).mean() + 1e-5)

    def dropout(v, which, i):                                               # v: what is added to position i
        return v if keep is None else [v[c] / (1 - p) if keep[which, i, c] else 0 for c in range(d_model)]

    for i in range(T):
        normed[i] = norm(x[i])
        for j in range(T):
            past[i, j] = j <= i
    found, weights = attention(normed, past if causal else None)
    for i in range(T):
        for c in range(d_model):
            y[i, c] = x[i, c] + dropout(found[i], 0, i)[c]
        hidden = relu(norm(y[i]) @ w_1)                                     # max(0, ...), d_ff numbers
        for c in range(d_model):
            output[i, c] = y[i, c] + dropout(hidden @ w_2, 1, i)[c]
    """

    def norm(x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:])

    def dropout(x: Tensor, which: int) -> Tensor:
        return x if keep is None else torch.where(keep[which], x / (1 - p), 0.0)

    mask = causal_mask(len(x)) if causal else None
    found, weights = attention(norm(x), mask)
    y = x + dropout(found, 0)
    hidden = torch.relu(norm(y) @ w_1)  # (T, d_model) -> (T, d_ff)
    return y + dropout(hidden @ w_2, 1), weights  # (T, d_ff) -> (T, d_model)


def attention_pooling(query: Tensor, x: Tensor, mask: Tensor) -> Pair:
    """
    for b in range(B):
        for j in range(T):
            scores[j] = query @ x[b, j] / sqrt(d_model)
        real = [j for j in range(T) if mask[b, j]]
        for j in real:
            weights[b, j] = exp(scores[j]) / sum(exp(scores[k]) for k in real)
        # all other weights stay 0: all of them, if there is nothing but padding
        pooled[b] = sum(weights[b, j] * x[b, j] for j in range(T))
    """
    scores = x @ query / math.sqrt(len(query))  # (B, T, d_model) @ (d_model,) -> (B, T)
    weights = masked_softmax(scores, mask)
    pooled = (weights[:, None, :] @ x).squeeze(1)  # (B, 1, T) @ (B, T, d_model) -> (B, 1, d_model) -> (B, d_model)
    return pooled, weights


# -------------------------------------------------------------------------------------------------------- the cases

SIZES = ((3, 7), (1, 7), (7, 1))  # heads, and numbers in each; with the first every mistake shows


def real_tokens(*lengths: int) -> Tensor:
    """A mask of real tokens, padding at the end -> bool (B, 5)."""
    return torch.arange(5) < torch.tensor(lengths)[:, None]


def split_cases() -> list[Case]:
    return [Case(f"{h} heads of {d_k}", (draw((2, 5, h * d_k))[0], h)) for h, d_k in SIZES]


def merge_cases() -> list[Case]:
    return [Case(f"{h} heads of {d_v}", tuple(draw((2, h, 5, d_v)))) for h, d_v in SIZES]


def fused_cases() -> list[Case]:
    return [Case(f"{h} heads of {d_k}", (*draw((2, 5, h * d_k), (h * d_k, 3 * h * d_k)), h)) for h, d_k in SIZES]


def multi_head_cases() -> list[Case]:
    """As many sequences as heads once: there a mask without an axis for the heads runs, on the wrong axis."""
    two, three = draw((2, 5, 21), (3, 5, 21))
    w_q, *others = draw(*4 * [(21, 21)], seed=1)
    return [
        Case("without a mask", (two, w_q, *others, 3)),
        Case("padding, as many sequences as heads", (three, w_q, *others, 3, real_tokens(4, 3, 1))),
        Case("padding", (two, w_q, *others, 3, real_tokens(2, 4))),
        Case("padding, scores up to 1e13", (two, LARGE * w_q, *others, 3, real_tokens(2, 4))),
        Case("sequence 1 is only padding", (two, w_q, *others, 3, real_tokens(5, 0))),
    ]


def grouped_cases() -> list[Case]:
    """H = 6, T_q = 5, T_k = 7, d_k = 3, d_v = 11."""
    inputs = {groups: draw((6, 5, 3), (groups, 7, 3), (groups, 7, 11)) for groups in (2, 1, 6)}
    query, *others = inputs[2]
    return [
        *(Case(f"H = 6, G = {groups}", tuple(tensors)) for groups, tensors in inputs.items()),
        Case("some keys hidden", (query, *others, some_hidden(5, 7))),
        Case("some keys hidden, scores up to 1e13", (LARGE * query, *others, some_hidden(5, 7))),
        Case("query 1 may see no key", (query, *others, one_blind(5, 7))),
    ]


def block_cases() -> list[Case]:
    """T = 5, d_model = 6, H = 2, d_ff = 11."""
    x, w_1, w_2, *projections = draw((5, 6), (6, 11), (11, 6), *4 * [(6, 6)])
    w_q, w_k, w_v, w_o = projections

    def attention(x: Tensor, mask: Tensor | None) -> Pair:
        query, key, value = (split_heads((x @ w)[None], 2) for w in (w_q, w_k, w_v))  # (T, d_model) -> (1, H, T, d_k)
        heads, weights = attend(query, key, value, mask)
        return merge_heads(heads)[0] @ w_o, weights[0]

    keep = draw((2, 5, 6), seed=1)[0] > -0.3  # drops 16 of the 60 numbers
    return [
        Case("neither mask nor dropout", (x, attention, w_1, w_2)),
        Case("causal", (x, attention, w_1, w_2, True)),
        Case("dropout", (x, attention, w_1, w_2, True, keep, 0.2)),
        Case("p = 0.2, but in evaluation, without a keep", (x, attention, w_1, w_2, True, None, 0.2)),
    ]


def pooling_cases() -> list[Case]:
    query, x = draw((7,), (3, 5, 7), seed=2)
    return [
        Case("padding", (query, x, real_tokens(4, 3, 1))),
        Case("padding, scores up to 1e13", (LARGE * query, x, real_tokens(4, 3, 1))),
        Case("without padding", (query, x, real_tokens(5, 5, 5))),
        Case("sequence 1 is only padding", (query, x, real_tokens(2, 0, 4))),
    ]


# --------------------------------------------------------------------------------------- the exercises and their hints

# fmt: off

ATTENTION = ("output", "weights")
EXERCISES = (
    Exercise(
        split_heads, ("heads",), split_cases, MISTAKES["split_heads"],
        section="2. Two views of one thing", level="easy", minutes=25,
        idea="""
        First cut the last axis in two, heads and numbers of a head. Then the heads must come before the positions: that
        is an exchange of two axes, which no cutting can do.
        """,
        steps="""
        (B, T, d_model)   the input
        (B, T, H, d_k)    the last axis cut in two: view, reshape or unflatten
        (B, H, T, d_k)    axes 1 and 2 exchanged: transpose
        """,
    ),
    Exercise(
        merge_heads, ("merged",), merge_cases, MISTAKES["merge_heads"],
        section="3. What joins the heads", level="easy", minutes=15,
        idea="""
        The two steps of exercise 1, backwards: first exchange heads and positions, then make one axis of the last two.
        """,
        steps="""
        (B, H, T, d_v)   the input
        (B, T, H, d_v)   axes 1 and 2 exchanged: transpose
        (B, T, H * d_v)  the last two axes joined: reshape or flatten; view refuses, for the numbers of a
                         position no longer lie in a row
        """,
    ),
    Exercise(
        multi_head_attention, ATTENTION, multi_head_cases, MISTAKES["multi_head_attention"],
        section="3. What joins the heads", level="hard", minutes=75,
        idea="""
        Only the beginning and the end are new: project and cut into heads, attend as in phase 1, join and project. The
        heads are one more axis in front, and attention works on the last two.
        """,
        steps="""
        query, key, value   x @ w_q, x @ w_k, x @ w_v, each cut by exercise 1    3 x (B, H, T, d_k)
        visible             the mask, the same for all heads and queries         (B, T) -> (B, 1, 1, T)
        heads, weights      attention of phase 1                                 (B, H, T, d_k), (B, H, T, T)
        output              the heads joined by exercise 2, times w_o            (B, T, d_model)
        """,
    ),
    Exercise(
        fused_projection, ("query", "key", "value"), fused_cases, MISTAKES["fused_projection"],
        section="4. Wrong, and no shape shows it", level="medium", minutes=30,
        idea="""
        Three times as many columns make three vectors at once, one behind the other. So cut the result in three first,
        and each of the three into heads.
        """,
        steps="""
        wide                x times w_qkv                                  (B, T, 3 * d_model)
        query, key, value   its columns in three equal parts: chunk        3 x (B, T, d_model)
        result              each cut into heads by exercise 1              3 x (B, H, T, d_k)
        """,
    ),
    Exercise(
        grouped_query_attention, ATTENTION, grouped_cases, MISTAKES["grouped_query_attention"],
        section="costs/README.md", level="medium", minutes=45,
        idea="""
        Give every query head a key-value head of its own, by copying. The first H / G of them get copies of key-value
        head 0, the next ones of head 1. Then it is attention as before.
        """,
        steps="""
        key, value        H / G copies of each head, side by side   (G, T_k, ...) -> (H, T_k, ...)
                          repeat_interleave does it, or an index such as key[[0, 0, 0, 1, 1, 1]]
        output, weights   attention of phase 1                      (H, T_q, d_v), (H, T_q, T_k)
        """,
    ),
    # the tolerance leaves room for another small number beside the variance than 1e-5
    Exercise(
        transformer_block, ATTENTION, block_cases, MISTAKES["transformer_block"], 1e-3,
        section="6. The block", level="hard", minutes=90,
        idea="""
        x is a stream to which two things are added: what attention finds, then what feed-forward makes. Each
        reads a normalised copy; the stream itself is never normalised.
        """,
        steps="""
        mask             the lower triangle, if causal, else None              (T, T)
        found, weights   attention(norm of x, mask)                            (T, d_model), (H, T, T)
        y                x + dropout of found, by keep[0]                      (T, d_model)
        hidden           norm of y, times w_1, negative numbers set to 0       (T, d_ff)
        output           y + dropout of hidden @ w_2, by keep[1]               (T, d_model)

        norm             over the last axis: F.layer_norm, or mean and var(correction=0) with keepdim=True
        dropout          torch.where(keep[0], v / (1 - p), 0), and v as it is without a keep
        """,
    ),
    Exercise(
        attention_pooling, ("pooled", "weights"), pooling_cases, MISTAKES["attention_pooling"],
        section="pooling/README.md", level="medium", minutes=40,
        idea="""
        It is attention with a single query, the same for all sequences: one score for each token, so weights (B, T).
        """,
        steps="""
        scores    each token with the query, / √d_model         (B, T, d_model) @ (d_model,) -> (B, T)
        weights   softmax over the real tokens of a sequence    (B, T); exercise 2 of phase 1 takes these shapes
        pooled    each token times its weight, added up         (B, T, 1) * (B, T, d_model) -> (B, d_model)
        """,
    ),
)
# fmt: on

AFTERWARDS = """\
You can now write a whole pre-norm layer of a transformer from tensors: cut vectors into heads without mixing positions,
attend in all heads at once, join them, and put norms, additions, feed-forward and dropout where they belong. You can
also let heads share keys and values, and pool a sentence into one vector. Next is phase3_visualization/README.md, which
asks what the heads do."""
