"""SPOILERS: the usual mistakes in exercises 3 and 4 of phase 3, each one a function that makes it.

Rollout goes through all layers, an ablation takes a head out of one. Most entries are the right way with one part
exchanged; HINTS has a sentence for each name.
"""

import math

import torch

from phase1_single_head.self_attention import scaled_dot_product_attention
from phase2_multi_head.multi_head_attention import merge_heads, split_heads

# ------------------------------------------------------------------------------------------------ exercise 3: rollout


def halves(layer, identity):
    return (layer + identity) / 2


def in_rollout(
    combine=lambda weights: weights.mean(dim=1),
    residual=halves,
    product=lambda step, before: step @ before,
    finish=lambda rollout: rollout,
):
    """Rollout with one of its parts exchanged."""

    def wrong(weights):
        identity = torch.eye(weights.size(-1), dtype=weights.dtype)
        rollout = identity
        for layer in combine(weights):
            rollout = product(residual(layer, identity), rollout)
        return finish(rollout)

    return wrong


def rows_to_one(x):
    return x / x.sum(dim=-1, keepdim=True)


def no_residual(layer, identity):
    return layer


ROLLOUT = (
    ("residual missing", in_rollout(residual=no_residual)),
    ("residual only once", in_rollout(residual=no_residual, finish=lambda r: (r + torch.eye(len(r))) / 2)),
    ("product in the wrong order", in_rollout(product=lambda step, before: before @ step)),
    ("rows not renormalised", in_rollout(residual=torch.add)),
    ("columns normalised", in_rollout(residual=lambda a, i: (a + i) / (a + i).sum(dim=-2, keepdim=True))),
    ("columns instead of rows", in_rollout(finish=lambda rollout: rollout.T)),
    ("heads added up", in_rollout(lambda w: w.sum(dim=1), lambda a, i: rows_to_one(a + i))),
    ("heads added up", in_rollout(lambda w: w.sum(dim=1))),
    ("largest of the heads", in_rollout(lambda w: w.amax(dim=1), lambda a, i: rows_to_one(a + i))),
    ("largest of the heads", in_rollout(lambda w: w.amax(dim=1))),
    ("number by number", in_rollout(product=torch.mul)),
    ("mean of the layers", lambda w: halves(w.mean(dim=(0, 1)), torch.eye(w.size(-1)))),
    ("a layer left out", in_rollout(lambda w: w[1:].mean(dim=1))),
    ("a layer left out", in_rollout(lambda w: w[:-1].mean(dim=1))),
    ("one matrix for each head", lambda w: torch.stack([in_rollout()(w[:, [h]]) for h in range(w.size(1))])),
    ("one matrix for each layer", lambda w: torch.stack([in_rollout()(w[: n + 1]) for n in range(len(w))])),
)

# ----------------------------------------------------------------------------------------------- exercise 4: ablation


def zero(heads, removed):
    return heads.index_fill(1, torch.tensor([removed]), 0)


def keep_only(heads, removed):
    return heads - zero(heads, removed)


def replace(heads, removed, by):
    return zero(heads, removed) + keep_only(by.expand_as(heads), removed)


def project(merged, w_o, b_o, num_heads, removed):
    return merged @ w_o + b_o


def slice_of(merged, num_heads, removed):
    d_k = merged.size(-1) // num_heads
    return torch.arange(removed * d_k, (removed + 1) * d_k)


def zero_after(merged, w_o, b_o, num_heads, removed):
    return (merged @ w_o + b_o).index_fill(-1, slice_of(merged, num_heads, removed), 0)


def zero_columns_of_w_o(merged, w_o, b_o, num_heads, removed):
    return merged @ w_o.index_fill(1, slice_of(merged, num_heads, removed), 0) + b_o


def zero_every_hth(merged, w_o, b_o, num_heads, removed):
    return merged.index_fill(-1, torch.arange(removed, merged.size(-1), num_heads), 0) @ w_o + b_o


def in_removal(remove=zero, finish=project, see=lambda x, num_heads, removed: x):
    """Attention without a head, with one part exchanged. remove gets the outputs (B, H, T, d_k) of all heads."""

    def wrong(x, w_q, w_k, w_v, w_o, b_o, num_heads, removed):
        x = see(x, num_heads, removed)
        query, key, value = (split_heads(x @ w, num_heads) for w in (w_q, w_k, w_v))
        heads, _ = scaled_dot_product_attention(query, key, value)
        return finish(merge_heads(remove(heads, removed)), w_o, b_o, num_heads, removed)

    return wrong


def even_weights(x, w_q, *others):
    """Its scores set to 0: the softmax makes even weights of them."""
    w_v, num_heads = others[1], others[-2]
    even = split_heads(x @ w_v, num_heads).mean(dim=2, keepdim=True)  # (B, H, T, d_k) -> (B, H, 1, d_k)
    return in_removal(lambda heads, removed: replace(heads, removed, even))(x, w_q, *others)


def scaled_up(heads, removed):
    return zero(heads, removed) * heads.size(1) / max(heads.size(1) - 1, 1)


REMOVED = (
    ("removed after w_o", in_removal(lambda heads, removed: heads, zero_after)),
    ("removed after w_o", in_removal(lambda heads, removed: heads, zero_columns_of_w_o)),
    ("every H-th column removed", in_removal(lambda heads, removed: heads, zero_every_hth)),
    ("bias removed too", in_removal(finish=lambda merged, w_o, *_: merged @ w_o)),
    ("bias of the others only", in_removal(finish=lambda m, w, b, h, r: m @ w + b * (h - 1) / h)),
    ("nothing removed", in_removal(lambda heads, removed: heads)),
    ("all but this head removed", in_removal(keep_only)),
    ("counted from 1", in_removal(lambda heads, removed: zero(heads, (removed - 1) % heads.size(1)))),
    ("weights made even", even_weights),
    ("weights renormalised to NaN", in_removal(lambda heads, removed: replace(heads, removed, heads * math.nan))),
    ("the other heads scaled up", in_removal(scaled_up)),
    ("replaced by its mean", in_removal(lambda h, removed: replace(h, removed, h.mean(dim=2, keepdim=True)))),
    ("replaced by its mean", in_removal(lambda h, removed: replace(h, removed, h.mean(dim=(0, 2), keepdim=True)))),
    ("replaced by the mean of the heads", in_removal(lambda h, r: replace(h, r, h.mean(dim=1, keepdim=True)))),
    ("removed from the input", in_removal(lambda h, _: h, see=lambda x, h, r: x.index_fill(-1, slice_of(x, h, r), 0))),
    ("one position removed", in_removal(lambda heads, removed: heads.index_fill(2, torch.tensor([removed]), 0))),
    ("one sequence removed", in_removal(lambda heads, removed: heads.index_fill(0, torch.tensor([removed % 2]), 0))),
)

HINTS = {
    "columns instead of rows": "row i says of what position i is made; yours is the transposed matrix",
    "residual missing": "half of each position is what it was before; without it all rows soon look alike",
    "residual only once": "every layer has a residual connection: add it to each matrix, before the product",
    "product in the wrong order": "the later layer stands on the left: step @ before",
    "rows not renormalised": "with the residual added, rows sum to 2: halve them",
    "columns normalised": "rows must sum to 1, over the last axis; columns need not",
    "heads added up": "take the mean of the heads; a sum outweighs the residual connection",
    "largest of the heads": "take the mean of the heads; the largest weights of a row do not sum to 1",
    "number by number": "a path goes from i through any k to j: that is a matrix product, @ and not *",
    "mean of the layers": "layers follow each other: multiply their matrices",
    "a layer left out": "start with 1 where i == j, and let each of the L layers take its step",
    "one matrix for each head": "average the heads within each layer: the residual stream mixes them before the next",
    "one matrix for each layer": "return what is there after the last layer",
    "removed after w_o": "w_o mixes the heads, so its output has no slices of heads: set to 0 what goes into it",
    "every H-th column removed": "the numbers of a head stand together: columns removed * d_k to (removed + 1) * d_k",
    "bias removed too": "b_o belongs to no head and stays",
    "bias of the others only": "b_o belongs to no head and stays whole",
    "nothing removed": "all heads are still there: set head number `removed` to 0 before w_o",
    "all but this head removed": "that is what this head alone does; asked is what the others do without it",
    "counted from 1": "heads are counted from 0",
    "weights made even": "a softmax of zeros is even, so the head still hands on the mean of all values; set its "
    "output to 0, not its queries, keys or scores",
    "weights renormalised to NaN": "weights of 0 have the sum 0, and 0 / 0 is NaN; leave them at 0",
    "the other heads scaled up": "that is dropout; an ablation leaves the other heads as they are",
    "replaced by its mean": "that is mean ablation, a definition of its own; here the head gives 0",
    "replaced by the mean of the heads": "the head gives 0; other heads do not stand in for it",
    "removed from the input": "each head reads all of x; remove what it gives, not a slice of what it is given",
    "one position removed": "the axis of the heads is another one: (B, H, T, d_k)",
    "one sequence removed": "the axis of the heads is another one: (B, H, T, d_k)",
}
