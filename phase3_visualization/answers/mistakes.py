"""SPOILERS: the usual mistakes in the exercises of phase 3, each an edit of the solution's text: old words, new words.

A mistake has a name, a hint, and one edit for each way to make it that gives other numbers. Two edits joined by + are
one way.
"""

from shared.exercise_checker import Mistake, edit

# A table: the name and the hint, then the ways to make the mistake.
# fmt: off

# ------------------------------------------------------------------------------------------------ exercise 1: entropy

ROWS_LOOK = "row i, the last axis, is where word i looks; a column is who looks at a word"
TWO_LOGARITHMS = "both logarithms must be the same, here natural ones; a ratio of two log2 would do as well"
ENTR = "torch.special.entr(weights)"
LIMIT = "visible[choice].log()"
MEAN = "shares.mean(dim=-1)"
ENTROPY = (
    Mistake("NaN from 0 · ln 0",
            "0 times minus infinity is NaN; the limit is 0: torch.special.entr and torch.xlogy know that",
            edit(ENTR, "-(weights * weights.log())")),
    Mistake("nan_to_num hides a division by ln 1",
            "with a small number in the logarithm, a row that may see one key comes to -1e-12 / 0 = -inf, and "
            "nan_to_num makes -1.8e308 of that: leave such rows out",
            edit(ENTR, "-(weights * (weights + 1e-12).log())") + edit(">= 2", ">= 1")
            + edit("shares.", "shares.nan_to_num().")),
    Mistake("log2 over ln", TWO_LOGARITHMS, edit(ENTR, "-(weights * weights.clamp(min=1e-300).log2())")),
    Mistake("ln over log2", TWO_LOGARITHMS, edit(LIMIT, "visible[choice].log2()")),
    Mistake("minus sign missing", "the logarithm of a weight is negative, so the sum needs a minus",
            edit("= torch.special", "= -torch.special")),
    Mistake("mean over the heads before the entropy",
            "first the entropy of each head: the mean of four sharp heads is a blurred one",
            edit(ENTR, "torch.special.entr(weights.mean(dim=0, keepdim=True).expand_as(weights))"),
            edit(ENTR, "torch.special.entr(weights.mean(dim=0, keepdim=True))") + edit(MEAN, "shares.mean()")),
    Mistake("mean over the heads", "one number for each head: heads differ, and that is what is asked",
            edit(MEAN, "shares.mean()")),
    Mistake("mean over the rows before the entropy",
            "first the entropy of each row: sharp rows that look at different words have an even mean",
            edit(MEAN, "torch.special.entr(weights.mean(dim=1)).sum(dim=-1) / torch.tensor(weights.size(-1)).log()")),
    Mistake("columns instead of rows", ROWS_LOOK,
            edit("visible =", "weights, mask = weights.mT, mask.mT\n    visible =")),
    Mistake("not normalised",
            "divide each row by the ln of the number of keys it may see, the largest entropy it can have",
            edit(f" / {LIMIT}", "")),
    Mistake("divided by ln T",
            "a row that may see few keys can spread over few; divide by the ln of the keys that it may see, or hidden "
            "keys make a head look sharp",
            edit(LIMIT, "torch.tensor(weights.size(-1)).log()")),
    Mistake("divided by the number of keys", "n equal weights have an entropy of ln n: divide by the ln",
            edit(LIMIT, "visible[choice]")),
    Mistake("keys with weight counted, not visible ones",
            "a visible key with a weight of 0 was a choice, too: count the mask",
            edit(LIMIT, "(weights > 0).sum(dim=-1)[:, choice].log()")),
    Mistake("mean before the division", "divide each row by its own limit, then take the mean",
            edit(LIMIT, "visible[choice].log().mean()")),
    Mistake("division by ln 1", "a row that may see one key has an entropy of 0 and a limit of ln 1 = 0: leave it out",
            edit(">= 2", ">= 1")),
    Mistake("a row without a choice counted",
            "a row that may see one key is sharp whatever the head does: leave it out of the mean, in its sum and in "
            "its count",
            edit(MEAN, "shares.sum(dim=-1) / len(mask)")),
)

# --------------------------------------------------------------------------------------------- exercise 2: role score

OFFSETS = "[*range(1 - length, 0), *range(1, length)]"
HEADS_FIRST = "attended = weights.mean(dim=1, keepdim=True)"
PER_SENTENCE = "(right * asked[:, None]).sum(dim=-1) / asked.sum(dim=-1)[:, None]"
ROLE = (
    Mistake("own position counted",
            "the word itself does not count (Clark et al. 2019): hide the diagonal before the argmax",
            edit(".masked_fill(own, -1)", "")),
    Mistake("columns instead of rows", ROWS_LOOK, edit("attended = weights", "attended = weights.mT")),
    Mistake("gold the wrong way around",
            "gold[n, i, j]: i is the query, j its gold key. (Whether a head follows the relation backwards is a "
            "question of its own.)",
            edit("length =", "gold = gold.mT\n    length =")),
    Mistake("mean over the heads first",
            "score each head; a mean of heads has an argmax that may belong to none of them",
            edit("attended = weights", HEADS_FIRST + ".expand_as(weights)"),
            edit("attended = weights", HEADS_FIRST)),
    Mistake("weight on the gold key, not the largest weight",
            "asked is how often the largest weight is on the gold key; how much weight it gets is another measure",
            edit("right.transpose", "(weights * gold[:, None]).sum(dim=-1).transpose")),
    Mistake("queries without a gold key counted",
            "divide by the number of queries that have a gold key; the others were not asked",
            edit("right.transpose(1, 2)[asked].double().mean(dim=0)", "right.double().mean(dim=(0, 2))")),
    Mistake("mean of sentences, not of queries", "each query counts alike: sum over all sentences, then divide once",
            edit("right.transpose(1, 2)[asked].double()", f"({PER_SENTENCE})")),
    Mistake("divided by the gold pairs",
            "a query with two gold keys is asked once: divide by the number of queries that have one",
            edit("asked.sum()", "gold.sum()"),
            edit(".double().mean(dim=0)", ".sum(dim=0) / gold.sum()"),
            edit("asked.sum()", "gold.sum()") + edit(".double().mean(dim=0)", ".sum(dim=0) / gold.sum()")),
    Mistake("a best offset for each sentence",
            "one offset for the whole relation; one for each sentence has seen the answers",
            edit("dim2=2).sum()", "dim2=2).sum(dim=1)")
            + edit("hits.max() / asked.sum()", "(hits.amax(0) / asked.sum(1)).mean()")),
    Mistake("baseline over all places",
            "divide by the queries that were asked, as in the accuracy, or the baseline looks weak",
            edit("asked.sum()", "asked.numel()"),
            edit("dim2=2).sum()", "dim2=2).double().mean()") + edit(" / asked.sum()", "")),
    Mistake("only neighbours tried as baseline", "try every offset but 0: a relation may span more than one word",
            edit(OFFSETS, "[-1, 1]")),
    Mistake("only offsets to one side tried",
            "gold keys may lie to the left or to the right: try every offset but 0, from 1 - T to T - 1",
            edit(OFFSETS, "range(1, length)"),
            edit(OFFSETS, "range(1 - length, 0)")),
    Mistake("not all offsets tried",
            "a relation may span the whole sentence: try every offset from 1 - T to T - 1, but 0",
            edit(OFFSETS, "[-3, -2, -1, 1, 2, 3]"),
            edit(OFFSETS, "[*range(2 - length, 0), *range(1, length - 1)]"),
            edit(OFFSETS, "[*range(1 - length, 0), *range(1, length - 1)]"),
            edit(OFFSETS, "[*range(1 - length, -1), *range(1, length)]"),
            edit(OFFSETS, "[*range(1 - length, 0), *range(2, length)]")),
    Mistake("the word itself tried as baseline", "k = 0 is the word itself, which does not count",
            edit(OFFSETS, "range(1 - length, length)")),
    Mistake("one offset, not the best of all",
            "which offset is best depends on the relation: try all but 0 and take the largest share",
            *[edit(OFFSETS, f"[{k}]") for k in (2, 3, -1, -2, -3)]),
    Mistake("left and right counted together",
            "k words to the left and k words to the right are two offsets: always going there is one of them",
            edit("dim2=2).sum()", "dim2=2).sum() + gold.diagonal(-k, dim1=1, dim2=2).sum()")),
    Mistake("a baseline of 0",
            "each offset is right now and then: count the True in gold[n, i, i + k]; and // leaves no fraction",
            edit("hits.max() / asked.sum()", "0 * hits.max()")),
    Mistake("chance as baseline",
            "a head that is blind to words still knows positions: the best fixed offset beats chance",
            edit("hits.max() / asked.sum()", "1 / length"),
            edit("hits.max() / asked.sum()", "1 / (length - 1)")),
)

# ------------------------------------------------------------------------------------------------ exercise 3: rollout

HEADS = "weights.mean(dim=1)"
STEP = "(layer + identity) / 2"
RENORMALISED = edit(STEP, "(layer + identity) / (layer + identity).sum(dim=1, keepdim=True)")
MIXED = "average the heads within each layer: the residual stream mixes them before the next"
ROLLOUT = (
    Mistake("residual missing", "half of each position is what it was before; without it all rows soon look alike",
            edit(STEP, "layer")),
    Mistake("residual only once", "every layer has a residual connection: add it to each matrix, before the product",
            edit(STEP, "layer") + edit("return rollout", "return (rollout + identity) / 2")),
    Mistake("product in the wrong order", "the later layer stands on the left: step @ before",
            edit("step @ rollout", "rollout @ step")),
    Mistake("rows not renormalised", "with the residual added, rows sum to 2: halve them",
            edit(STEP, "(layer + identity)")),
    Mistake("only one of the two halved",
            "half of what is attended to and half of what was there: ½ A + ½ I, so that rows sum to 1",
            edit(STEP, "(layer + identity / 2)"),
            edit(STEP, "(layer / 2 + identity)")),
    Mistake("columns normalised", "rows must sum to 1, over the last axis; columns need not",
            edit(STEP, "(layer + identity) / (layer + identity).sum(dim=0)")),
    Mistake("columns instead of rows", "row i says of what position i is made; yours is the transposed matrix",
            edit("return rollout", "return rollout.T")),
    Mistake("heads added up", "take the mean of the heads; a sum outweighs the residual connection",
            edit(HEADS, "weights.sum(dim=1)"),
            edit(HEADS, "weights.sum(dim=1)") + RENORMALISED),
    Mistake("largest of the heads", "take the mean of the heads; the largest weights of a row do not sum to 1",
            edit(HEADS, "weights.amax(dim=1)"),
            edit(HEADS, "weights.amax(dim=1)") + RENORMALISED),
    Mistake("number by number", "a path goes from i through any k to j: that is a matrix product, @ and not *",
            edit("step @ rollout", "step * rollout")),
    Mistake("mean of the layers", "layers follow each other: multiply their matrices",
            edit("return rollout", "return (weights.mean(dim=(0, 1)) + identity) / 2")),
    Mistake("a layer left out", "start with 1 where i == j, and let each of the L layers take its step",
            edit(HEADS, "weights[1:].mean(dim=1)"),
            edit(HEADS, "weights[:-1].mean(dim=1)")),
    Mistake("one matrix for each head", MIXED, edit(HEADS, "weights")),
    Mistake("heads averaged at the end", MIXED,
            edit(HEADS, "weights") + edit("return rollout", "return rollout.mean(0)")),
    Mistake("one matrix for each layer", "return what is there after the last layer",
            edit("rollout = identity", "rollout, seen = identity, []")
            + edit("step @ rollout", "step @ rollout\n        seen.append(rollout)")
            + edit("return rollout", "return torch.stack(seen)")),
)

# ----------------------------------------------------------------------------------------------- exercise 4: ablation

ZERO = "heads[:, removed] = 0"
PROJECT = "merge_heads(heads) @ w_o + b_o"
OUTPUT_SLICE = "\n    output.unflatten(-1, (num_heads, -1))[..., removed, :] = 0\n    return output"
INPUT_SLICE = "x = x * (torch.arange(x.size(-1)) * num_heads // x.size(-1) != removed)"
ANOTHER_AXIS = "the axis of the heads is another one: (B, H, T, d_k)"
REMOVED = (
    Mistake("removed after w_o",
            "w_o mixes the heads, so its output has no slices of heads: set to 0 what goes into it",
            edit(ZERO, "") + edit(f"return {PROJECT}", f"output = {PROJECT}{OUTPUT_SLICE}"),
            edit(ZERO, "") + edit(f"return {PROJECT}", f"output = merge_heads(heads) @ w_o{OUTPUT_SLICE} + b_o")),
    Mistake("every H-th column removed",
            "the numbers of a head stand together: columns removed * d_k to (removed + 1) * d_k",
            edit(ZERO, "merged = merge_heads(heads)\n    merged[..., removed::num_heads] = 0")
            + edit(PROJECT, "merged @ w_o + b_o")),
    Mistake("bias removed too", "b_o belongs to no head and stays", edit(" + b_o", "")),
    Mistake("bias of the others only", "b_o belongs to no head and stays whole",
            edit("+ b_o", "+ b_o * (num_heads - 1) / num_heads")),
    Mistake("matrices transposed", "the matrices are used as x @ w; only nn.Linear keeps the transposed one",
            edit("x @ w", "x @ w.T"),
            edit("@ w_o", "@ w_o.T"),
            edit("x @ w", "x @ w.T") + edit("@ w_o", "@ w_o.T")),
    Mistake("nothing removed", "all heads are still there: set head number `removed` to 0 before w_o", edit(ZERO, "")),
    Mistake("all but this head removed", "that is what this head alone does; asked is what the others do without it",
            edit(ZERO, "heads[:, torch.arange(num_heads) != removed] = 0")),
    Mistake("counted from 1", "heads are counted from 0", edit(ZERO, "heads[:, removed - 1] = 0")),
    Mistake("weights made even",
            "a softmax of zeros is even, so the head still hands on the mean of all values; set its output to 0, not "
            "its queries, keys or scores",
            edit(ZERO, "heads[:, removed] = value[:, removed].mean(dim=1, keepdim=True)")),
    Mistake("NaN from the removed head",
            "0 / 0 and a softmax of only -inf are NaN; set what the head hands on to 0, not its weights or scores",
            edit(ZERO, "heads[:, removed] = torch.nan")),
    Mistake("the other heads scaled up", "that is dropout; an ablation leaves the other heads as they are",
            edit(ZERO, f"{ZERO}\n    heads = heads * num_heads / max(num_heads - 1, 1)")),
    Mistake("replaced by its mean", "that is mean ablation, a definition of its own; here the head gives 0",
            edit(ZERO, "heads[:, removed] = heads[:, removed].mean(dim=1, keepdim=True)"),
            edit(ZERO, "heads[:, removed] = heads[:, removed].mean(dim=(0, 1))")),
    Mistake("replaced by the mean of the heads", "the head gives 0; other heads do not stand in for it",
            edit(ZERO, "heads[:, removed] = heads.mean(dim=1)")),
    Mistake("removed from the input", "each head reads all of x; remove what it gives, not a slice of what it is given",
            edit(ZERO, "") + edit("query, key, value =", f"{INPUT_SLICE}\n    query, key, value =")),
    Mistake("one position removed", ANOTHER_AXIS, edit(ZERO, "heads[:, :, removed] = 0")),
    Mistake("one sequence removed", ANOTHER_AXIS, edit(ZERO, "heads[removed % 2] = 0")),
)

MISTAKES = {"head_entropy": ENTROPY, "role_score": ROLE, "attention_rollout": ROLLOUT, "without_head": REMOVED}
