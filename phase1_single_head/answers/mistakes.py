"""SPOILERS: the usual mistakes in the exercises of phase 1, each an edit of the solution's text: old words, new words.

A mistake has a name, a hint, and one edit for each way to make it that gives other numbers. Two edits joined by + are
one way. What can go wrong in attend and masked_softmax is listed once, for exercises 2, 3 and 6 and for phase 2.
"""

from shared.exercise_checker import Mistake, edit

# A table: the name and the hint, then the ways to make the mistake.
# fmt: off

# -------------------------------------------------------------------------------- in masked_softmax: what is hidden

NOT_HIDDEN = edit("torch.where(mask, scores, -math.inf)", "scores")
NOT_ZEROED = edit("torch.where(mask, weights, 0.0)", "weights")
BY_THE_SUM = "(weights * mask) / ((weights * mask).sum(dim=-1, keepdim=True) + {})"
BY_EXP = "visible.exp() / visible.exp().sum(dim=-1, keepdim=True)"
BY_EXP_AND_MASK = "(scores.exp() * mask) / (scores.exp() * mask).sum(dim=-1, keepdim=True)"
OF_SHARES = "the weights of a query are shares of 1"
FINITE = (
    "with -1e9, say, a row that sees nothing does not come out as 0, and visible scores below it lose to the hidden; "
    "use -inf, and weights of 0 for a row that sees nothing"
)
MASK = (
    Mistake("mask inverted", "True means may attend; your weights sit on the hidden keys",
            edit("(mask, scores", "(~mask, scores") + edit("(mask, weights", "(~mask, weights")),
    Mistake("mask ignored", "hidden keys get weight as if there were no mask", NOT_HIDDEN + NOT_ZEROED),
    Mistake("mask after softmax",
            "hidden keys took their share of 1 before you hid them; hide the scores, not the weights",
            NOT_HIDDEN),
    Mistake("mask after softmax, then divided by the sum",
            "next to a hidden score that is far higher, visible weights are 0 before you divide; hide the scores "
            "instead",
            NOT_HIDDEN + edit("torch.where(mask, weights, 0.0)", BY_THE_SUM.format("0.0")),
            NOT_HIDDEN + edit("torch.where(mask, weights, 0.0)", BY_THE_SUM.format("1e-9"))),
    Mistake("hidden scores set to 0", "e⁰ = 1 is a weight like any other; only e to -inf is 0",
            edit("-math.inf", "0.0") + NOT_ZEROED, edit("-math.inf", "0.0")),
    Mistake("hidden scores set to a finite number", FINITE,
            edit("-math.inf", "-1e9") + NOT_ZEROED, edit("-math.inf", "-1e9"),
            edit("torch.where(mask, scores, -math.inf)", "scores - 1e9 * ~mask") + NOT_ZEROED),
    Mistake("NaN where a query sees nothing", "softmax of only -inf is 0 / 0; give such a row weights of 0",
            NOT_ZEROED),
    Mistake("equal weights where a query sees nothing",
            "it sees no key, so no key gets weight: set such a row to 0. (The lowest finite number does not hide, "
            "either.)",
            edit("-math.inf", "torch.finfo(scores.dtype).min") + NOT_ZEROED),
    Mistake("exp overflows", "e^1000 is inf, and inf / inf NaN; take the largest visible score off the row first",
            edit("torch.softmax(visible, dim=-1)", BY_EXP),
            edit("torch.softmax(visible, dim=-1)", f"({BY_EXP}).nan_to_num(0)"),
            edit("torch.softmax(visible, dim=-1)", BY_EXP_AND_MASK) + NOT_ZEROED),
)
WRONG_AXIS = "each query shares out 1 over the keys, so rows must sum to 1; your columns do"
SOFTMAX = (
    *MASK,
    Mistake("softmax over the wrong axis", WRONG_AXIS,
            edit("visible, dim=-1", "visible, dim=-2"), edit("visible, dim=-1", "visible, dim=-2") + NOT_ZEROED),
    Mistake("exponentials not divided by their sum", OF_SHARES,
            edit("torch.softmax(visible, dim=-1)", "visible.exp()")),
)

# -------------------------------------------------------------------------------- in attend, without a mask

TOO_SHARP = "the dot products are too large by that factor, so the softmax comes out too sharp"
NOT_THE_ROOT = "divide by its root: a sum of d_k products of unit variance has a standard deviation of √d_k"
SCORES = "these are scores; a weight is e to its score, divided by the sum of these over the keys"
ATTEND = (
    *MASK,
    Mistake("softmax over the wrong axis", WRONG_AXIS, edit("scores, dim=-1", "scores, dim=-2")),
    Mistake("softmax missing", SCORES, edit("torch.softmax(scores, dim=-1)", "scores")),
    Mistake("exponentials not divided by their sum", OF_SHARES,
            edit("torch.softmax(scores, dim=-1)", "torch.exp(scores)")),
    Mistake("not divided by √d_k", TOO_SHARP, edit(" / math.sqrt(key.size(-1))", "")),
    Mistake("divided by d_k", NOT_THE_ROOT, edit("math.sqrt(key.size(-1))", "key.size(-1)")),
    Mistake("divided by √T", "the sum in a dot product runs over d_k numbers, however many keys there are",
            edit("math.sqrt(key.size(-1))", "math.sqrt(key.size(-2))")),
    Mistake("multiplied by √d_k", "divide: long vectors make scores too large, not too small",
            edit("/ math", "* math")),
)
EQUAL_LENGTHS = (  # with as many queries as keys these run
    Mistake("K Qᵀ instead of Q Kᵀ",
            "rows belong to queries, columns to keys; weights[i, j] is how query i weighs key j",
            edit("query @ key.mT", "key @ query.mT")),
    Mistake("weights transposed before the values",
            "row i of the weights says what query i takes of each value: weights @ value",
            edit("weights @ value", "weights.mT @ value")),
)
OVER_D_K = "the sum in a dot product of query and key runs over d_k numbers, so its root belongs there"
DIVIDED_BY_D_V = Mistake("divided by √d_v", OVER_D_K,
    edit("math.sqrt(key.size(-1))", "math.sqrt(value.size(-1))"))
DIVIDED_BY_ANOTHER_SIZE = (
    Mistake("divided by √d_model", OVER_D_K, edit("math.sqrt(key.size(-1))", "math.sqrt(11)")),
    DIVIDED_BY_D_V,
)
ONE_MATRIX = "w_q makes the queries, w_k the keys; with one matrix for both, words that are alike ask for each other"
NOT_W_V = "a value has a matrix of its own: what a word tells is not what it is found by"

# -------------------------------------------------------------------------------- exercise by exercise

MISTAKES = {
    "score_by_hand": (
        Mistake("not divided by √d_k", TOO_SHARP, edit(" / math.sqrt(4)", "")),
        Mistake("divided by d_k", NOT_THE_ROOT, edit("math.sqrt(4)", "4")),
        Mistake("softmax missing", SCORES, edit("torch.softmax(scores, dim=-1)", "scores")),
        Mistake("scale and softmax missing",
                "these are the bare dot products q · k; divide by √d_k, then take the softmax",
                edit(" / math.sqrt(4)", "") + edit("torch.softmax(scores, dim=-1)", "scores")),
        Mistake("divided by the sum of the scores",
                "softmax takes e to each score first: scores may be negative, weights may not",
                edit("torch.softmax(scores, dim=-1)", "scores / scores.sum()")),
        Mistake("exponentials not divided by their sum", OF_SHARES,
                edit("torch.softmax(scores, dim=-1)", "scores.exp()")),
    ),
    "masked_softmax": SOFTMAX,
    "self_attention": (
        *ATTEND,
        *EQUAL_LENGTHS,
        *DIVIDED_BY_ANOTHER_SIZE,
        Mistake("one matrix for queries and keys", ONE_MATRIX, edit("x @ w_k", "x @ w_q"), edit("x @ w_q", "x @ w_k")),
        Mistake("values not made by w_v", NOT_W_V,
                edit("x @ w_v", "x @ w_k"), edit("x @ w_v", "x @ w_q"), edit("x @ w_v", "x")),
    ),
    "additive_attention": (
        Mistake("tanh missing",
                "then the query adds the same to all scores of its row and softmax drops it: every row is the same",
                edit("torch.tanh(pairs)", "pairs")),
        Mistake("tanh before the sum", "add first: a unit sees the query and the memory together, then tanh",
                edit("torch.tanh(pairs)",
                     "(torch.tanh(query @ w_q)[:, None] + torch.tanh(memory @ w_k)[None])")),
        Mistake("v missing", "multiply each hidden unit by its entry of v before you add them up",
                edit("torch.tanh(pairs) @ v", "torch.tanh(pairs).sum(dim=-1)")),
        Mistake("tanh after v", "tanh acts on each hidden unit; v then makes one number of them",
                edit("torch.tanh(pairs) @ v", "torch.tanh(pairs @ v)")),
        Mistake("scaled like a dot product", "no √d here: tanh keeps each hidden unit between -1 and 1",
                edit("@ v", "@ v / math.sqrt(len(v))")),
        Mistake("softmax over the wrong axis", WRONG_AXIS, edit("dim=-1", "dim=-2")),
        Mistake("softmax missing", SCORES, edit("torch.softmax(scores, dim=-1)", "scores")),
    ),
    "sinusoidal_positions": (
        Mistake("sine and cosine swapped", "even columns hold the sine, odd columns the cosine",
                edit("column % 2 == 0", "column % 2 == 1")),
        Mistake("sines and cosines side by side", "they take turns: column 2i holds the sine, column 2i + 1 the cosine",
                edit("torch.arange(d_model)", "torch.cat([torch.arange(0, d_model, 2), torch.arange(1, d_model, 2)])")),
        Mistake("only sines", "odd columns hold the cosine of the angle of the column before",
                edit("angle.cos", "angle.sin")),
        Mistake("positions counted from 1", "the first row is position 0: sin 0 = 0, cos 0 = 1",
                edit("torch.arange(length)", "torch.arange(1, length + 1)")),
        Mistake("exponent i / d_model",
                "the power is 2i / d_model, with i counting pairs of columns: yours grows half as fast",
                edit("column // 2 * 2", "column // 2")),
        Mistake("exponent doubled", "the power is 2i / d_model, and 2i is already the number of the sine's column",
                edit("column // 2 * 2", "column // 2 * 4")),
        Mistake("each column its own angle",
                "columns 2i and 2i + 1 share one angle; the cosine's power is 2i / d_model as well",
                edit("column // 2 * 2", "column")),
        Mistake("multiplied by the power of 10000", "divide: the waves get longer from left to right",
                edit("/ 10000.0", "* 10000.0")),
        Mistake("an odd d_model fails", "the last sine then has no cosine beside it",
                edit("torch.arange(d_model)", "torch.arange(d_model // 2 * 2)"),
                edit("torch.arange(d_model)", "torch.arange((d_model + 1) // 2 * 2)"),
                edit("angle.cos())", "angle.cos()).view(length, d_model // 2, 2).flatten(1)")),
    ),
    "cross_attention": (
        *ATTEND,
        *EQUAL_LENGTHS,
        *DIVIDED_BY_ANOTHER_SIZE,
        Mistake("keys from x", "w_k reads the context: it is the context that is searched",
                edit("context @ w_k", "x @ w_k")),
        Mistake("values from x", "w_v reads the context: what is found is what is passed on",
                edit("context @ w_v", "x @ w_v")),
        Mistake("keys and values from x", "this is self-attention; w_k and w_v read the context",
                edit("context @ w_k, context @ w_v", "x @ w_k, x @ w_v")),
        Mistake("queries from the context", "x asks: w_q reads x; yours is self-attention of the context",
                edit("x @ w_q", "context @ w_q")),
        Mistake("x and context swapped", "x asks, the context answers: w_q reads x, w_k and w_v the context",
                edit("x @ w_q, context @ w_k, context @ w_v", "context @ w_q, x @ w_k, x @ w_v")),
        Mistake("one matrix for queries and keys", ONE_MATRIX, edit("context @ w_k", "context @ w_q")),
        Mistake("output projection missing", "multiply by w_o, which brings the output from d_v back to d_model",
                edit("output @ w_o", "output")),
    ),
}
