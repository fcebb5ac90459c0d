"""SPOILERS: the usual mistakes in the exercises of phase 2, each an edit of the solution's text: old words, new words.

A mistake has a name, a hint, and one edit for each way to make it that gives other numbers. Two edits joined by + are
one way. What can go wrong in attend and masked_softmax is taken over from phase 1.
"""

from itertools import permutations

from phase1_single_head.answers import mistakes as phase1
from shared.exercise_checker import Mistake, edit

# A table: the name and the hint, then the ways to make the mistake.
# fmt: off

# -------------------------------------------------------------------------------- the axes of the heads

SPLIT = "x.unflatten(-1, (num_heads, -1)).transpose(1, 2)"
MERGE = "x.transpose(1, 2).flatten(2)"
SPLIT_BY_VIEW = edit(SPLIT, "x.reshape(x.size(0), num_heads, x.size(1), -1)")
MERGED_BY_VIEW = edit(MERGE, "x.reshape(x.size(0), x.size(2), -1)")
INTERLEAVED = edit(SPLIT, "x.unflatten(-1, (-1, num_heads)).permute(0, 3, 1, 2)")
MERGED_INTERLEAVED = edit(MERGE, "x.permute(0, 2, 3, 1).flatten(2)")
NO_TRANSPOSE = edit("-1)).transpose(1, 2)", "-1))")

KEEPS_MEMORY = (
    "view and reshape keep the order of memory, so a head gets whole positions instead of its slice of each; make it "
    "(B, T, H, d_k), then swap T and H"
)
IN_A_ROW = (
    "head h owns d_k columns in a row, h * d_k to (h + 1) * d_k, not every H-th; mind which of H and d_k comes last"
)
AXES = "the numbers are in the right groups; move the axes to (B, H, T, d_k)"
MERGED = "swap H and T back first: as they lie in memory, the positions of one head come first"
AVERAGED = "put the heads side by side: after a {}, w_o cannot tell any more which head found what"
TRANSPOSED = "it is x @ w; nn.Linear and F.linear keep the transposed matrix and compute x @ w.T"

# -------------------------------------------------------------------------------- attention in heads

ATTEND = (
    *phase1.ATTEND,
    Mistake("softmax over the heads",
            "the last axis has the keys; dim=1 was the right one as long as there were no heads",
            edit("scores, dim=-1", "scores, dim=-3")),
    Mistake("divided by √d_model",
            "each dot product is a sum of d_k = d_model / H products, so the root of d_k belongs there",
            edit("math.sqrt(key.size(-1))", "math.sqrt(key.size(-1) * key.size(-3))")),
)
PROJECTED = "split_heads(x @ w, num_heads) for"
BLOCK = "torch.stack([w.chunk(num_heads, 0)[h].chunk(num_heads, 1)[h] for h in range(num_heads)])"
CORNER = "w[: x.size(-1) // num_heads, : x.size(-1) // num_heads]"
MERGED_AND_PROJECTED = "merge_heads(heads) @ w_o"


def copied(name: str, axis: int) -> tuple:
    """The copies of a key-value head stand along a new axis; 1 would be right, 0 tiles the heads."""
    copies = f"{name}.unsqueeze({axis}).repeat_interleave(shared_by, dim={axis})"
    return edit(f"{name}.repeat_interleave(shared_by, dim=0)", f"{copies}.reshape(query.size(0), *{name}.shape[1:])")


# -------------------------------------------------------------------------------- the whole layer

ATTENDED, FOUND = "attention(norm(x)", "x + dropout(found, 0)"
NORMED, FED = "norm(y) @ w_1", "y + dropout(hidden @ w_2, 1)"
LAYER_NORM = "F.layer_norm(x, x.shape[-1:])"
CAUSAL = "causal_mask(len(x))"
NOT_NORMED = edit(ATTENDED, "attention(x"), edit(NORMED, "y @ w_1")


def twice(name: str, hint: str, first: tuple, second: tuple) -> Mistake:
    """The two steps of a layer look alike: a mistake can be made in both, in the first and in the second."""
    return Mistake(name, hint, first + second, first, second)


LAYER = (
    twice("norm after the addition (post-norm)",
          "Vaswani et al. 2017 did so; pre-norm normalises only the copy that goes into attention or feed-forward, "
          "and the stream x goes on as it is",
          NOT_NORMED[0] + edit(FOUND, f"norm({FOUND})"), NOT_NORMED[1] + edit(FED, f"norm({FED})")),
    twice("norm after the sub-layer", "the norm belongs before attention and before feed-forward, not on what they add",
          NOT_NORMED[0] + edit("dropout(found, 0)", "dropout(norm(found), 0)"),
          NOT_NORMED[1] + edit("dropout(hidden @ w_2, 1)", "dropout(norm(hidden @ w_2), 1)")),
    twice("norm missing", "attention reads norm(x), feed-forward norm(y)", *NOT_NORMED),
    twice("residual forgotten", "add the result to what was there; otherwise the layer must learn to copy",
          edit(FOUND, "dropout(found, 0)"), edit(FED, "dropout(hidden @ w_2, 1)")),
    twice("residual from the normalised copy", "add to x itself; keep the normalised copy under a name of its own",
          edit(FOUND, "norm(x) + dropout(found, 0)"), edit(FED, "norm(y) + dropout(hidden @ w_2, 1)")),
    twice("dropout after the addition", "drop numbers of what is added, never of the stream x itself",
          edit(FOUND, "dropout(x + found, 0)"), edit(FED, "dropout(y + hidden @ w_2, 1)")),
    Mistake("one of the two never added", "both are added: what attention found, and what feed-forward makes of it",
            edit(FOUND, "x"), edit(FED, "y")),
    Mistake("second addition to the input",
            "feed-forward adds to y, which holds what attention found, not to x once more",
            edit(FED, "x + dropout(hidden @ w_2, 1)")),
    Mistake("feed-forward beside attention",
            "feed-forward reads norm(y), after attention; yours still reads the norm of x",
            edit(NORMED, "norm(x) @ w_1")),
    Mistake("variance divided by d_model - 1",
            "that estimates a variance from a sample; here divide by d_model, torch.var(..., correction=0)",
            edit(LAYER_NORM, "(x - x.mean(-1, True)) / (x.var(-1, keepdim=True) + 1e-5).sqrt()")),
    Mistake("normalised along the wrong axis",
            "each position by itself, over its d_model numbers; otherwise positions leak into each other past the "
            "mask",
            edit(LAYER_NORM, "F.layer_norm(x.mT, x.shape[:1]).mT"),
            edit(LAYER_NORM, "F.layer_norm(x, x.shape)")),
    Mistake("mean not subtracted", "that is RMSNorm; here subtract the mean first",
            edit(LAYER_NORM, "F.rms_norm(x, x.shape[-1:], eps=1e-5)")),
    Mistake("ReLU missing", "without it two matrices in a row are one matrix",
            edit("torch.relu(norm(y) @ w_1)", NORMED)),
    Mistake("ReLU after the second matrix",
            "it belongs between the two matrices; after them, a layer could only add, never take away",
            edit("torch.relu(norm(y) @ w_1)", NORMED) + edit("hidden @ w_2", "torch.relu(hidden @ w_2)")),
    Mistake("GELU instead of ReLU", "many models have it; here it is max(0, ...)", edit("torch.relu", "F.gelu")),
    Mistake("causal mask the wrong way around", "True = may attend: position i sees j <= i, the lower triangle",
            edit(CAUSAL, f"{CAUSAL}.mT")),
    Mistake("causal mask hides the position itself", "position i sees itself as well: j <= i, not j < i",
            edit(CAUSAL, f"{CAUSAL}.tril(-1)")),
    Mistake("one word of the future visible",
            "the diagonal is one too far to the right: the model could copy its next word",
            edit(CAUSAL, "torch.ones(len(x), len(x)).tril(1).bool()")),
    Mistake("mask inverted", "True = may attend; yours hides the past, as the masks of nn.MultiheadAttention would",
            edit(CAUSAL, f"~{CAUSAL}")),
    Mistake("causal ignored", "with causal=True, attention needs a mask of shape (T, T)",
            edit("if causal", "if False")),
    Mistake("always causal", "without causal=True the mask is None", edit("if causal", "if True")),
    Mistake("dropout not rescaled by 1 / (1 - p)",
            "a share p is missing; divide the rest by 1 - p, so that the mean stays",
            edit("x / (1 - p)", "x")),
    Mistake("divided by p", "p is the share that was dropped, 1 - p the share that is kept: divide by that",
            edit("x / (1 - p)", "x / p")),
    Mistake("multiplied by 1 - p", "divide by it: what is kept must make up for what is missing",
            edit("x / (1 - p)", "x * (1 - p)")),
    Mistake("dropped what was to be kept", "where keep is True the number stays, where it is False it becomes 0",
            edit("keep[which]", "~keep[which]")),
    Mistake("dropout ignored", "keep says which numbers of the two results become 0",
            edit("if keep is None", "if True")),
    Mistake("rescaled in evaluation",
            "without a keep nothing is missing, so nothing is divided by 1 - p, whatever p is",
            edit("x if keep is None", "x / (1 - p) if keep is None")),
    Mistake("keep masks mixed up", "keep[0] is for what attention found, keep[1] for the result of feed-forward",
            *(edit("keep[which]", f"keep[{which}]") for which in ("1 - which", "0", "1"))),
)

# -------------------------------------------------------------------------------- exercise by exercise

ORDERS = list(permutations(("query", "key", "value")))[1:]
THREE = "query, key, value = (x @ w_qkv).chunk(3, dim=-1)"
SCALED, WEIGHED = "math.sqrt(len(query))", "masked_softmax(scores, mask)"

MISTAKES = {
    "split_heads": (
        Mistake("split without transpose", KEEPS_MEMORY, SPLIT_BY_VIEW),
        Mistake("heads interleaved", IN_A_ROW, INTERLEAVED),
        Mistake("axes in the wrong order", AXES,
                NO_TRANSPOSE, edit(".transpose(1, 2)", ".permute(2, 0, 1, 3)"),
                edit(".transpose(1, 2)", ".permute(0, 2, 3, 1)")),
    ),
    "merge_heads": (
        Mistake("merged without transpose", MERGED, MERGED_BY_VIEW),
        Mistake("heads interleaved", IN_A_ROW, MERGED_INTERLEAVED),
        Mistake("merged along the wrong axis", "heads are put side by side, in the last axis; the length stays T",
                edit(MERGE, "x.flatten(1, 2)"), edit(MERGE, "x.transpose(1, 2).flatten(1, 2)")),
        Mistake("heads averaged", AVERAGED.format("mean"), edit(MERGE, "x.mean(dim=1)")),
        Mistake("heads added up", AVERAGED.format("sum"), edit(MERGE, "x.sum(dim=1)")),
    ),
    "multi_head_attention": (
        *ATTEND,
        *phase1.EQUAL_LENGTHS,
        Mistake("one matrix for queries and keys", phase1.ONE_MATRIX,
                edit("(w_q, w_k, w_v)", "(w_q, w_q, w_v)"), edit("(w_q, w_k, w_v)", "(w_k, w_k, w_v)")),
        Mistake("values not made by w_v", phase1.NOT_W_V,
                edit("(w_q, w_k, w_v)", "(w_q, w_k, w_k)"), edit("(w_q, w_k, w_v)", "(w_q, w_k, w_q)"),
                edit("visible = None", "value = split_heads(x, num_heads)\n    visible = None")),
        Mistake("mask on the queries", "padding is hidden as a key: put the axis of the mask last, (B, 1, 1, T)",
                edit("mask[:, None, None, :]", "mask[:, None, :, None]")),
        Mistake("mask of one sequence on the head of another",
                "(B, 1, T) lines up with (H, T, T), and B = H hides it; the mask needs an axis for the heads: (B, 1, "
                "1, T)",
                edit("mask[:, None, None, :]", "mask[:, None]")),
        Mistake("split without transpose", KEEPS_MEMORY, SPLIT_BY_VIEW, SPLIT_BY_VIEW + MERGED_BY_VIEW),
        Mistake("merged without transpose", MERGED, MERGED_BY_VIEW),
        Mistake("heads interleaved", IN_A_ROW, INTERLEAVED, MERGED_INTERLEAVED, INTERLEAVED + MERGED_INTERLEAVED),
        Mistake("output projection missing",
                "multiply the merged heads by w_o: without it no head's find reaches other columns",
                edit(MERGED_AND_PROJECTED, "merge_heads(heads)")),
        Mistake("heads averaged", AVERAGED.format("mean"),
                edit(MERGED_AND_PROJECTED, f"{MERGED_AND_PROJECTED} / num_heads"),
                edit(MERGED_AND_PROJECTED, "heads.mean(dim=1)")),
        Mistake("weights averaged over the heads",
                "keep the weights of each head: the mean of four sharp heads is a blurred one. (nn.MultiheadAttention "
                "returns this mean unless told not to.)",
                edit("@ w_o, weights", "@ w_o, weights.mean(dim=1)")),
        Mistake("heads cut out of the input",
                "cut the projected vectors: each head reads all of x, and chooses by its columns of w_q, w_k and w_v",
                edit(PROJECTED, f"split_heads(x, num_heads) @ {BLOCK} for"),
                edit(PROJECTED, f"split_heads(x, num_heads) @ {CORNER} for"),
                edit(PROJECTED, "split_heads(x, num_heads) for")),
        Mistake("one small projection for all heads",
                "each head has its own d_k columns of w_q, w_k and w_v; otherwise all heads find the same",
                edit(PROJECTED, "split_heads(x @ w, num_heads)[:, :1].expand(-1, num_heads, -1, -1) for")),
        Mistake("matrices transposed", TRANSPOSED,
                edit("x @ w,", "x @ w.mT,"), edit("x @ w,", "x @ w.mT,") + edit("@ w_o", "@ w_o.mT")),
    ),
    "fused_projection": (
        Mistake("queries, keys, values in another order",
                "w_q holds the first d_model columns, w_k the next, w_v the last",
                *(edit("query, key, value = ", f"{', '.join(order)} = ") for order in ORDERS)),
        Mistake("cut into heads first",
                "first cut into queries, keys and values, then each into heads; yours gives each head 3 d_k columns "
                "in a row. (Some models store it so: check before you load their weights.)",
                edit(THREE, "return split_heads(x @ w_qkv, num_heads).chunk(3, dim=-1)")),
        Mistake("queries, keys, values interleaved",
                "the columns of w_q stand together, then those of w_k; not every third",
                edit(".chunk(3, dim=-1)", ".unflatten(-1, (-1, 3)).unbind(-1)")),
        Mistake("cut across the rows",
                "each column of w_qkv makes one number; reshape cuts along the rows instead, through all three; cut "
                "the columns, with chunk or slices",
                edit("(x @ w_qkv).chunk(3, dim=-1)", "x @ w_qkv.reshape(3, 1, len(w_qkv), -1)"),
                edit("x @ w_qkv", "x @ w_qkv.reshape(-1, len(w_qkv)).mT")),
        Mistake("matrices transposed", TRANSPOSED,
                edit("(x @ w_qkv).chunk(3, dim=-1)", "[x @ w.mT for w in w_qkv.chunk(3, dim=1)]")),
        Mistake("heads interleaved", IN_A_ROW, INTERLEAVED),
        Mistake("split without transpose", KEEPS_MEMORY,
                SPLIT_BY_VIEW,
                edit(THREE, "return (x @ w_qkv).reshape(3, x.size(0), num_heads, x.size(1), -1).unbind(0)"),
                edit(THREE, "return (x @ w_qkv).reshape(x.size(0), 3, num_heads, x.size(1), -1).unbind(1)")),
        Mistake("axes in the wrong order", AXES, NO_TRANSPOSE),
    ),
    "grouped_query_attention": (
        *ATTEND,
        phase1.DIVIDED_BY_D_V,
        Mistake("key-value heads tiled",
                "repeat and expand along a new first axis give 0 1 0 1; neighbours share: 0 0 0 1 1 1, as from "
                "repeat_interleave",
                copied("key", 0) + copied("value", 0), copied("key", 0), copied("value", 0)),
        Mistake("expanded along the wrong axis",
                "the copies belong beside the axis of the heads; yours repeat positions or numbers, and reshape then "
                "deals them out anew",
                *(copied("key", axis) + copied("value", axis) for axis in (2, 3)),
                *(copied(name, axis) for name in ("key", "value") for axis in (2, 3))),
    ),
    "transformer_block": LAYER,
    "attention_pooling": (
        *(mistake for mistake in phase1.SOFTMAX if mistake.name != "mask ignored"),
        Mistake("padding takes part", "padding has weight as if it were a word; hide its scores before the softmax",
                phase1.NOT_HIDDEN + phase1.NOT_ZEROED),
        Mistake("softmax missing", phase1.SCORES, edit(WEIGHED, "scores * mask")),
        Mistake("a plain mean", "all tokens count the same, so the query was never asked",
                edit(WEIGHED, "masked_softmax(0 * scores, mask)"),
                edit(WEIGHED, "torch.softmax(0 * scores, dim=-1)"),
                edit(WEIGHED, "torch.softmax(0 * scores, dim=-1) * mask")),
        Mistake("not divided by √d_model", phase1.TOO_SHARP, edit(f" / {SCALED}", "")),
        Mistake("divided by d_model",
                "divide by its root: a sum of d_model products of unit variance has a standard deviation of √d_model",
                edit(SCALED, "len(query)")),
    ),
}
