"""SPOILERS: the reference solutions of the exercises of phase 2, and the inputs on which yours are tried.

Try exercises.py first, then compare. A solution is one way among many: yours is right if the checker says so. Exercises
1 and 2 are split_heads and merge_heads of multi_head_attention.py, two lines each. The mistakes that the checker knows
by name are in exercise_mistakes.py and exercise_block_mistakes.py.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from phase1_single_head.answers.solutions import one_blind, some_hidden
from phase1_single_head.self_attention import masked_softmax, scaled_dot_product_attention
from phase2_multi_head.answers.block_mistakes import BLOCK
from phase2_multi_head.answers.block_mistakes import HINTS as BLOCK_HINTS
from phase2_multi_head.answers.mistakes import FUSED, GROUPED, MERGE, MULTI_HEAD, POOLING, SPLIT, named
from phase2_multi_head.multi_head_attention import merge_heads, split_heads
from shared.attention_utils import causal_mask
from shared.exercise_checker import Case, Exercise, draw

Pair = tuple[Tensor, Tensor]  # output, weights

# ---------------------------------------------------------------------------------------------------- the solutions


def multi_head_attention(
    x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, num_heads: int, mask: Tensor | None = None
) -> Pair:
    query, key, value = (split_heads(x @ w, num_heads) for w in (w_q, w_k, w_v))  # (B, T, d_model) -> (B, H, T, d_k)
    visible = None if mask is None else mask[:, None, None, :]  # (B, T) -> (B, 1, 1, T): keys, for all heads, queries
    heads, weights = scaled_dot_product_attention(query, key, value, visible)
    return merge_heads(heads) @ w_o, weights  # (B, H, T, d_k) -> (B, T, d_model)


def fused_projection(x: Tensor, w_qkv: Tensor, num_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = (x @ w_qkv).chunk(3, dim=-1)  # (B, T, 3 d_model) -> 3 x (B, T, d_model)
    return split_heads(query, num_heads), split_heads(key, num_heads), split_heads(value, num_heads)


def grouped_query_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Pair:
    shared_by = query.size(0) // key.size(0)  # H / G
    key = key.repeat_interleave(shared_by, dim=0)  # (G, T_k, d_k) -> (H, T_k, d_k): heads 0 0 0 1 1 1
    value = value.repeat_interleave(shared_by, dim=0)  # (G, T_k, d_v) -> (H, T_k, d_v)
    return scaled_dot_product_attention(query, key, value, mask)


def transformer_block(
    x: Tensor,
    attention: Callable[[Tensor, Tensor | None], Pair],
    w_1: Tensor,
    w_2: Tensor,
    causal: bool = False,
    keep: Tensor | None = None,
    p: float = 0.0,
) -> Pair:
    def norm(x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:])

    def dropout(x: Tensor, which: int) -> Tensor:
        return x if keep is None else torch.where(keep[which], x / (1 - p), 0.0)

    found, weights = attention(norm(x), causal_mask(len(x)) if causal else None)
    x = x + dropout(found, 0)
    hidden = torch.relu(norm(x) @ w_1)  # (T, d_model) -> (T, d_ff)
    return x + dropout(hidden @ w_2, 1), weights  # (T, d_ff) -> (T, d_model)


def attention_pooling(query: Tensor, x: Tensor, mask: Tensor) -> Pair:
    scores = x @ query / math.sqrt(len(query))  # (B, T, d_model) @ (d_model,) -> (B, T)
    weights = masked_softmax(scores, mask)
    pooled = (weights[:, None, :] @ x).squeeze(1)  # (B, 1, T) @ (B, T, d_model) -> (B, 1, d_model) -> (B, d_model)
    return pooled, weights


# -------------------------------------------------------------------------------------------------------- the cases


def real_tokens(*lengths: int, longest: int = 5) -> Tensor:
    """A mask of real tokens, padding at the end -> bool (B, longest)."""
    return torch.arange(longest) < torch.tensor(lengths)[:, None]


def split_cases() -> list[Case]:
    """B = 2, T = 5, H = 3, d_k = 7 first, where every mistake shows."""
    return [
        Case(f"{heads} heads of {d_k}", (draw((2, 5, heads * d_k))[0], heads))
        for heads, d_k in ((3, 7), (1, 7), (7, 1))
    ]


def merge_cases() -> list[Case]:
    return [Case(f"{heads} heads of {d_v}", tuple(draw((2, heads, 5, d_v)))) for heads, d_v in ((3, 7), (1, 7), (7, 1))]


def multi_head_cases() -> list[Case]:
    """As many sequences as heads once: there a mask without an axis for the heads runs, on the wrong axis."""
    two, three = draw((2, 5, 21), (3, 5, 21))
    weights = (*draw(*4 * [(21, 21)], seed=1), 3)
    return [
        Case("without a mask", (two, *weights)),
        Case("padding, as many sequences as heads", (three, *weights, real_tokens(5, 3, 1))),
        Case("padding", (two, *weights, real_tokens(2, 4))),
        Case("sequence 1 is only padding", (two, *weights, real_tokens(5, 0))),
    ]


def fused_cases() -> list[Case]:
    return [
        Case(f"{heads} heads of {d_k}", (*draw((2, 5, heads * d_k), (heads * d_k, 3 * heads * d_k)), heads))
        for heads, d_k in ((3, 7), (1, 7), (7, 1))
    ]


def grouped_cases() -> list[Case]:
    """H = 6, T_q = 5, T_k = 7, d_k = 3, d_v = 11."""
    inputs = {groups: draw((6, 5, 3), (groups, 7, 3), (groups, 7, 11)) for groups in (2, 1, 6)}
    return [
        *(Case(f"H = 6, G = {groups}", tuple(tensors)) for groups, tensors in inputs.items()),
        Case("some keys hidden", (*inputs[2], some_hidden(5, 7))),
        Case("query 1 may see no key", (*inputs[2], one_blind(5, 7))),
    ]


def block_cases() -> list[Case]:
    """T = 5, d_model = 6, H = 2, d_ff = 11."""
    x, w_1, w_2, *projections = draw((5, 6), (6, 11), (11, 6), *4 * [(6, 6)])
    w_q, w_k, w_v, w_o = projections

    def attention(x: Tensor, mask: Tensor | None) -> Pair:
        query, key, value = (split_heads((x @ w)[None], 2) for w in (w_q, w_k, w_v))  # (T, d_model) -> (1, H, T, d_k)
        heads, weights = scaled_dot_product_attention(query, key, value, mask)
        return merge_heads(heads)[0] @ w_o, weights[0]

    keep = draw((2, 5, 6), seed=1)[0] > -0.3  # drops 16 of the 60 numbers
    return [
        Case("neither mask nor dropout", (x, attention, w_1, w_2)),
        Case("causal", (x, attention, w_1, w_2, True)),
        Case("dropout", (x, attention, w_1, w_2, True, keep, 0.2)),
        Case("p = 0.2, but in evaluation, without a keep", (x, attention, w_1, w_2, True, None, 0.2)),
    ]


def pooling_cases() -> list[Case]:
    query, x = draw((7,), (3, 5, 7))
    return [
        Case("without padding", (query, x, real_tokens(5, 5, 5))),
        Case("padding", (query, x, real_tokens(5, 3, 1))),
        Case("sequence 1 is only padding", (query, x, real_tokens(2, 0, 4))),
    ]


ATTENTION = ("output", "weights")
EXERCISES = (
    Exercise(split_heads, ("heads",), split_cases, named(SPLIT)),
    Exercise(merge_heads, ("merged",), merge_cases, named(MERGE)),
    Exercise(multi_head_attention, ATTENTION, multi_head_cases, named(MULTI_HEAD)),
    Exercise(fused_projection, ("query", "key", "value"), fused_cases, named(FUSED)),
    Exercise(grouped_query_attention, ATTENTION, grouped_cases, named(GROUPED)),
    # the tolerance leaves room for another small number beside the variance than 1e-5
    Exercise(transformer_block, ATTENTION, block_cases, named(BLOCK, BLOCK_HINTS), tolerance=1e-3),
    Exercise(attention_pooling, ("pooled", "weights"), pooling_cases, named(POOLING)),
)
