"""SPOILERS: the usual mistakes with several heads, each one a function that makes it, with a name and a hint.

A list for each exercise but the sixth, whose mistakes are in exercise_block_mistakes.py. Most entries are the right
way with one part exchanged: another split, another softmax, other copies. A name may occur several times, for there may
be several ways to make a mistake. What can go wrong in the softmax is taken over from phase 1.
"""

import math
from collections.abc import Callable
from functools import partial
from itertools import permutations

import torch

from phase1_single_head.answers import solutions as phase1
from phase1_single_head.answers.solutions import fill
from phase1_single_head.self_attention import masked_softmax
from phase2_multi_head.multi_head_attention import merge_heads, split_heads
from shared.exercise_checker import Mistake

# ---------------------------------------------------------------------------------------- exercises 1 and 2: the axes


def cut(x, num_heads):
    """(B, T, d_model) -> (B, T, H, d_k)"""
    return x.unflatten(-1, (num_heads, -1))


def interleaved(x, num_heads):
    """Head h gets the columns h, h + H, h + 2H, ..."""
    return cut(x, x.size(-1) // num_heads).permute(0, 3, 1, 2)  # (B, T, d_k, H) -> (B, H, T, d_k)


def split_by_view(x, num_heads):
    return x.reshape(x.size(0), num_heads, x.size(1), -1)


def merge_by_view(x):
    return x.reshape(x.size(0), x.size(2), -1)


def merge_interleaved(x):
    return x.permute(0, 2, 3, 1).flatten(2)  # (B, H, T, d_v) -> (B, T, d_v, H) -> (B, T, d_v * H)


SPLITS = (
    ("split without transpose", split_by_view),
    ("heads interleaved", interleaved),
)
SPLIT = (
    *SPLITS,
    ("axes in the wrong order", cut),  # (B, T, H, d_k)
    ("axes in the wrong order", lambda x, num_heads: cut(x, num_heads).permute(2, 0, 1, 3)),  # (H, B, T, d_k)
    ("axes in the wrong order", lambda x, num_heads: cut(x, num_heads).permute(0, 2, 3, 1)),  # (B, H, d_k, T)
)
MERGE = (
    ("merged without transpose", merge_by_view),
    ("heads interleaved", merge_interleaved),
    ("merged along the wrong axis", lambda x: x.flatten(1, 2)),  # (B, H * T, d_v)
    ("merged along the wrong axis", lambda x: x.transpose(1, 2).flatten(1, 2)),  # (B, T * H, d_v)
    ("heads averaged", lambda x: x.mean(dim=1)),
    ("heads added up", lambda x: x.sum(dim=1)),
)

# ------------------------------------------------------------------------------- exercises 3 and 5: attention in heads


def attend(query, key, value, mask=None, softmax=masked_softmax, divisor=lambda query: math.sqrt(query.size(-1))):
    """Scaled dot-product attention with another softmax or another divisor: (H, T_q, d_k) or (B, H, T_q, d_k)."""
    scores = query @ key.transpose(-2, -1) / divisor(query)
    weights = softmax(scores, torch.ones_like(scores, dtype=torch.bool) if mask is None else mask)
    return weights @ value, weights


ATTEND = (
    *((name, partial(attend, softmax=softmax)) for name, softmax in phase1.SOFTMAX),
    ("softmax over the heads", partial(attend, softmax=fill(-math.inf, dim=-3))),
    ("softmax missing", partial(attend, softmax=torch.mul)),
    ("not divided by √d_k", partial(attend, divisor=lambda query: 1)),
    ("divided by d_k", partial(attend, divisor=lambda query: query.size(-1))),
    ("divided by √d_model", partial(attend, divisor=lambda query: math.sqrt(query.size(-1) * query.size(-3)))),
)


def keys_hidden(mask):
    return mask[:, None, None, :]  # (B, T) -> (B, 1, 1, T)


def projected(x, matrices, num_heads, split):
    return [split(x @ w, num_heads) for w in matrices]  # 3 x (B, T, d_model) -> (B, H, T, d_k)


def by_slices_of_input(x, matrices, num_heads, split):
    """Head h reads slice h of x and no more: a diagonal block of each matrix."""
    slices = [w.unflatten(0, (num_heads, -1)).unflatten(2, (num_heads, -1)) for w in matrices]  # -> (H, d_k, H, d_k)
    return [split(x, num_heads) @ torch.stack([w[h, :, h] for h in range(num_heads)]) for w in slices]


def by_slices_sharing_a_corner(x, matrices, num_heads, split):
    """Head h reads slice h of x, and all of them one d_k x d_k corner of each matrix: SlicedInput of wrong_heads.py."""
    x = split(x, num_heads)
    return [x @ w[: x.size(-1), : x.size(-1)] for w in matrices]


def by_one_small_projection(x, matrices, num_heads, split):
    """All heads share the columns of the first."""
    return [split(x @ w, num_heads)[:, :1].expand(-1, num_heads, -1, -1) for w in matrices]


def in_multi_head(
    attend=attend,
    split=split_heads,
    merge=merge_heads,
    place=keys_hidden,
    project=projected,
    finish=torch.matmul,
    report=lambda weights: weights,
):
    """Multi-head attention with one of its parts exchanged."""

    def wrong(x, w_q, w_k, w_v, w_o, num_heads, mask=None):
        query, key, value = project(x, (w_q, w_k, w_v), num_heads, split)
        heads, weights = attend(query, key, value, None if mask is None else place(mask))
        return finish(merge(heads), w_o), report(weights)

    return wrong


def transposed(x, w_q, w_k, w_v, w_o, num_heads, mask=None):
    return in_multi_head()(x, w_q.T, w_k.T, w_v.T, w_o.T, num_heads, mask)


MULTI_HEAD = (
    *((name, in_multi_head(wrong)) for name, wrong in ATTEND),
    ("K Qᵀ instead of Q Kᵀ", in_multi_head(lambda q, k, v, mask: attend(k, q, v, mask))),
    ("mask on the queries", in_multi_head(place=lambda mask: mask[:, None, :, None])),
    ("mask of one sequence on the head of another", in_multi_head(place=lambda mask: mask[:, None])),
    *((name, in_multi_head(split=split)) for name, split in SPLITS),
    ("merged without transpose", in_multi_head(merge=merge_by_view)),
    ("split without transpose", in_multi_head(split=split_by_view, merge=merge_by_view)),
    ("heads interleaved", in_multi_head(split=interleaved, merge=merge_interleaved)),
    ("heads interleaved", in_multi_head(merge=merge_interleaved)),
    ("output projection missing", in_multi_head(finish=lambda merged, w_o: merged)),
    ("heads averaged", in_multi_head(merge=lambda heads: merge_heads(heads) / heads.size(1))),
    ("heads averaged", in_multi_head(merge=lambda heads: heads.mean(dim=1), finish=lambda merged, w_o: merged)),
    ("weights averaged over the heads", in_multi_head(report=lambda weights: weights.mean(dim=1))),
    ("heads cut out of the input", in_multi_head(project=by_slices_of_input)),
    ("heads cut out of the input", in_multi_head(project=by_slices_sharing_a_corner)),
    ("heads cut out of the input", in_multi_head(project=lambda x, _, h, split: [split(x, h)] * 3)),
    ("one small projection for all heads", in_multi_head(project=by_one_small_projection)),
    ("matrices transposed", transposed),
    ("matrices transposed", lambda x, q, k, v, o, h, m=None: in_multi_head()(x, q.T, k.T, v.T, o, h, m)),
)


def in_groups(attend=attend, key_axis=1, value_axis=1):
    """Grouped-query attention; the copies of a key-value head stand along a new axis, 1 is right."""

    def spread(x, num_heads, axis):
        copies = x.unsqueeze(axis).repeat_interleave(num_heads // x.size(0), dim=axis)
        return copies.reshape(num_heads, *x.shape[1:])  # (G, T_k, d) with H / G copies -> (H, T_k, d)

    def wrong(query, key, value, mask=None):
        return attend(query, spread(key, len(query), key_axis), spread(value, len(query), value_axis), mask)

    return wrong


GROUPED = (
    *((name, in_groups(wrong)) for name, wrong in ATTEND),
    *(("key-value heads tiled", in_groups(key_axis=k, value_axis=v)) for k, v in ((0, 0), (0, 1), (1, 0))),
    *(
        ("expanded along the wrong axis", in_groups(key_axis=k, value_axis=v))
        for wrong in (2, 3)
        for k, v in ((wrong, wrong), (wrong, 1), (1, wrong))
    ),
)

# ------------------------------------------------------------------------------- exercise 4: one product for all three


def in_fused(parts=lambda x, w: (x @ w).chunk(3, dim=-1), split=split_heads):
    """The fused projection, cut in another way."""
    return lambda x, w_qkv, num_heads: tuple(split(part, num_heads) for part in parts(x, w_qkv))


def in_order(order):
    return lambda x, w: [(x @ w).chunk(3, dim=-1)[i] for i in order]


def renamed(x, w_qkv, num_heads, *axes, part):
    """All the numbers in the order of memory, under other axes."""
    sizes = {"B": x.size(0), "T": x.size(1), "3": 3, "H": num_heads}
    return (x @ w_qkv).reshape(*(sizes[axis] for axis in axes), -1).unbind(part)


FUSED = (
    *(("queries, keys, values in another order", in_fused(in_order(o))) for o in list(permutations(range(3)))[1:]),
    ("cut into heads first", lambda x, w, h: split_heads(x @ w, h).chunk(3, dim=-1)),  # (B, H, T, 3 d_k)
    ("queries, keys, values interleaved", in_fused(lambda x, w: (x @ w).unflatten(-1, (-1, 3)).unbind(-1))),
    ("cut across the rows", in_fused(lambda x, w: x @ w.reshape(3, 1, *2 * w.shape[:1]))),
    ("cut across the rows", in_fused(lambda x, w: (x @ w.reshape(w.shape[::-1]).T).chunk(3, dim=-1))),
    ("matrices transposed", in_fused(lambda x, w: [x @ part.T for part in w.chunk(3, dim=1)])),
    *((name, in_fused(split=split)) for name, split in SPLITS),
    ("split without transpose", lambda x, w, h: renamed(x, w, h, *"3BHT", part=0)),
    ("split without transpose", lambda x, w, h: renamed(x, w, h, *"B3HT", part=1)),
    ("axes in the wrong order", in_fused(split=cut)),
)

# ------------------------------------------------------------------------------------- exercise 7: one vector for all


def in_pooling(softmax=masked_softmax, divisor=math.sqrt):
    def wrong(query, x, mask):
        weights = softmax(x @ query / divisor(len(query)), mask)
        return torch.einsum("bj,bjc->bc", weights, x), weights

    return wrong


POOLING = (
    *(("padding takes part" if name == "mask ignored" else name, in_pooling(wrong)) for name, wrong in phase1.SOFTMAX),
    ("softmax missing", in_pooling(torch.mul)),
    ("a plain mean", in_pooling(lambda scores, mask: masked_softmax(0 * scores, mask))),
    ("a plain mean", in_pooling(lambda scores, mask: torch.softmax(0 * scores, dim=-1))),
    ("a plain mean", in_pooling(lambda scores, mask: torch.softmax(0 * scores, dim=-1) * mask)),
    ("not divided by √d_model", in_pooling(divisor=lambda d_model: 1)),
    ("divided by d_model", in_pooling(divisor=lambda d_model: d_model)),
)

HINTS = {
    **phase1.HINTS,
    "split without transpose": "view and reshape keep the order of memory, so a head gets whole positions instead of "
    "its slice of each; make it (B, T, H, d_k), then swap T and H",
    "heads interleaved": "head h owns d_k columns in a row, h * d_k to (h + 1) * d_k, not every H-th; mind which of H "
    "and d_k comes last",
    "axes in the wrong order": "the numbers are in the right groups; move the axes to (B, H, T, d_k)",
    "merged without transpose": "swap H and T back first: as they lie in memory, the positions of one head come first",
    "merged along the wrong axis": "heads are put side by side, in the last axis; the length stays T",
    "heads averaged": "put the heads side by side: after a mean, w_o cannot tell any more which head found what",
    "heads added up": "put the heads side by side: after a sum, w_o cannot tell any more which head found what",
    "softmax over the heads": "the last axis has the keys; dim=1 was the right one as long as there were no heads",
    "divided by √d_model": "each dot product is a sum of d_k = d_model / H products, so the root of d_k belongs there",
    "mask on the queries": "padding is hidden as a key: put the axis of the mask last, (B, 1, 1, T)",
    "mask of one sequence on the head of another": "(B, 1, T) lines up with (H, T, T), and B = H hides it; "
    "the mask needs an axis for the heads: (B, 1, 1, T)",
    "output projection missing": "multiply the merged heads by w_o: without it no head's find reaches other columns",
    "weights averaged over the heads": "keep the weights of each head: the mean of four sharp heads is a blurred one. "
    "(nn.MultiheadAttention returns this mean unless told not to.)",
    "heads cut out of the input": "cut the projected vectors: each head reads all of x, and chooses by its columns of "
    "w_q, w_k and w_v",
    "one small projection for all heads": "each head has its own d_k columns of w_q, w_k and w_v; otherwise all heads "
    "find the same",
    "matrices transposed": "it is x @ w; nn.Linear and F.linear keep the transposed matrix and compute x @ w.T",
    "key-value heads tiled": "repeat and expand along a new first axis give 0 1 0 1; neighbours share: 0 0 0 1 1 1, "
    "as from repeat_interleave",
    "expanded along the wrong axis": "the copies belong beside the axis of the heads; yours repeat positions or "
    "numbers, and reshape then deals them out anew",
    "queries, keys, values in another order": "w_q holds the first d_model columns, w_k the next, w_v the last",
    "cut into heads first": "first cut into queries, keys and values, then each into heads; yours gives each head "
    "3 d_k columns in a row. (Some models store it so: check before you load their weights.)",
    "queries, keys, values interleaved": "the columns of w_q stand together, then those of w_k; not every third",
    "cut across the rows": "each column of w_qkv makes one number; reshape cuts along the rows instead, through all "
    "three; cut the columns, with chunk or slices",
    "padding takes part": "padding has weight as if it were a word; hide its scores before the softmax",
    "a plain mean": "all tokens count the same, so the query was never asked",
    "not divided by √d_model": phase1.HINTS["not divided by √d_k"],
    "divided by d_model": "divide by its root: a sum of d_model products of unit variance has a standard deviation of "
    "√d_model",
}


def named(mistakes: tuple[tuple[str, Callable], ...], hints: dict[str, str] = HINTS) -> tuple[Mistake, ...]:
    return tuple(Mistake(name, hints[name], wrong) for name, wrong in mistakes)
