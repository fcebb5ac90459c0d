"""SPOILERS: the usual mistakes in the exercises of phase 4, each an edit of the solution's text: old words, new words.

A mistake has a name, a hint, and one edit for each way to make it that gives other numbers. Two edits joined by + are
one way. What can go wrong in the causal mask is listed once, for exercises 1 and 2.
"""

from shared.exercise_checker import Mistake, edit

# A table: the name and the hint, then the ways to make the mistake.
# fmt: off

# ------------------------------------------------------------------------------------------------- exercises 1 and 2

SHIFT = "tril(key_length - query_length)"
PAST = (
    Mistake("first query at the first key",
            "the last query stands at the last key: move the diagonal by T_k - T_q, or new words cannot see what is "
            "in the cache",
            edit(SHIFT, "tril()")),
    Mistake("diagonal moved the wrong way",
            "the last query stands at the last key: with more keys the diagonal moves to the right, by T_k - T_q",
            edit(SHIFT, "tril(query_length - key_length)")),
    Mistake("own position hidden", "a word may attend to itself: <=, not <; else the first one sees nothing",
            edit(SHIFT, "tril(key_length - query_length - 1)")),
    Mistake("one word of the future visible",
            "the diagonal is one too far to the right: the model could copy its next word",
            edit(SHIFT, "tril(key_length - query_length + 1)")),
    Mistake("the future instead of the past",
            "rows are queries, columns are keys: the ones are on the diagonal and below it",
            edit("tril", "triu")),
)


def codes(mask: str) -> tuple[Mistake, ...]:
    """What else a mask may look like. mask: its name in the solution."""
    end = f"return {mask}"
    return (
        Mistake("True = hidden",
                "here True means may attend, as in F.scaled_dot_product_attention; nn.MultiheadAttention means the "
                "opposite",
                edit(end, f"return ~{mask}")),
        Mistake("numbers to add instead of bool",
                "the mask is bool; 0 and -inf are what it does to scores, and masked_fill does that",
                *[edit(end, f"return torch.where({mask}, 0.0, {low})") for low in ("-math.inf", "-1e9", "-1e4")]),
        Mistake("0 and 1 instead of bool",
                "make it bool: a float mask is added to the scores by F.scaled_dot_product_attention",
                edit(end, f"return {mask}.double()")),
    )


CAUSAL = (
    *PAST,
    Mistake("queries and keys exchanged", "a row for each query, a column for each key: (T_q, T_k)",
            edit("ones =", "query_length, key_length = key_length, query_length\n    ones =")),
    *codes("past"),
)

REAL = "real[:, None, None, :]"
COMBINED = (
    *PAST,
    Mistake("padded queries hidden",
            "hide padded keys only: a query that sees nothing has no softmax, and one NaN in a batch reaches every "
            "weight",
            edit(REAL, "real[:, None, key_length - query_length :, None]")),
    Mistake("one padded key visible", "keys 0 to lengths[b] - 1 are real: <, not <=", edit("< lengths", "<= lengths")),
    Mistake("padding at the front", "the padding is at the end: the first lengths[b] keys are real",
            edit(REAL, "real.flip(-1)[:, None, None, :]")),
    Mistake("one length for all sequences",
            "each sequence has its own: compare the keys (T_k,) with lengths[:, None] (B, 1)",
            *[edit("lengths[:, None]", f"0 * lengths[:, None] + lengths{one}") for one in (".max()", ".min()", "[0]")]),
    Mistake("head axis missing",
            "weights are (B, H, T_q, T_k): without an axis for the heads, that of the batch would be broadcast to them",
            edit(REAL, "real[:, None, :]")),
    Mistake("head axis in the wrong place", "the axes of weights are (B, H, T_q, T_k): the size 1 belongs second",
            *[edit("return visible", f"return visible.movedim(1, {place})") for place in (0, 2, 3)]),
    Mistake("padding left out", "keys from lengths[b] on are padding: hide them",
            edit(f" & {REAL}", ""),
            edit("< lengths[:, None]", "< lengths[:, None] + key_length")),
    Mistake("causal part left out", "real words of the future must be hidden as well",
            edit("causal_mask(query_length, key_length) & ", ""),
            edit(SHIFT, "tril(key_length)")),
    Mistake("or instead of and", "a key must be allowed by both masks: &", edit("&", "|")),
    *codes("visible"),
)

# ------------------------------------------------------------------------------------------ exercise 3: the next word

LAST = "logits[:, -1]"
DIVIDED = "logits[:, -1] / temperature"
END = "kept.softmax(dim=-1)"
CUT = "scaled.softmax(dim=-1).masked_fill(hidden, 0)"
LAST_PREDICTS = "the last position predicts the word that comes next: logits[:, -1]"
NEXT_WORD = (
    Mistake("multiplied by the temperature", "divide: a high temperature makes the words more alike",
            edit("/ temperature", "* temperature")),
    Mistake("temperature left out", "divide the logits by the temperature before softmax", edit(" / temperature", "")),
    Mistake("temperature on probabilities",
            "divide the logits, before softmax: dividing probabilities by a number does not change what they are to "
            "each other",
            edit(DIVIDED, "logits[:, -1].softmax(dim=-1) / temperature"),
            edit(" / temperature", "") + edit(END, f"{END} / temperature"),
            edit(" / temperature", "") + edit(END, f"{CUT} / temperature")),
    Mistake("not renormalised after top-k",
            "the kept words must sum to 1 again: hide the others before softmax, or divide by the sum",
            edit(END, CUT)),
    Mistake("top-k left out", "only top_k words may be drawn: the others get -inf before softmax",
            edit("kept.softmax", "scaled.softmax")),
    Mistake("the unlikeliest words kept", "sort downwards: the largest logits stay",
            edit("descending=True", "descending=False")),
    Mistake("logits of hidden words set to 0", "exp(0) = 1: a hidden word needs a logit of -inf",
            edit("-math.inf", "0.0")),
    Mistake("one word too few kept", "the k-th word is kept, too: hide what is below it, not what equals it",
            edit(":top_k", ": max(top_k - 1, 1)")),
    Mistake("one word too many kept", "ranks are counted from 0: ranked[:top_k]", edit(":top_k", ": top_k + 1")),
    Mistake("more than k words kept at a tie",
            "a threshold keeps all words that equal the k-th: choose by rank instead",
            edit("masked_fill(hidden", "masked_fill(scaled < scaled.topk(top_k).values[:, -1:]")),
    Mistake("another of the equal words kept",
            "of equal logits the smaller word goes first: argsort with descending=True and stable=True",
            *[edit("order = scaled", f"order = (scaled + 1e-9 * torch.tensor([v in {kept} for v in range(7)]))")
              for kept in ((0, 3), (0, 6), (2, 3), (2, 6), (3, 6))]),
    Mistake("softmax twice", "softmax takes logits: of probabilities it makes something close to even",
            edit(END, "kept.softmax(dim=-1).softmax(dim=-1)"),
            edit(END, "kept.softmax(dim=-1).masked_fill(hidden, -math.inf).softmax(dim=-1)")),
    Mistake("softmax over the batch",
            "each text has its own row of probabilities: softmax, or the sum, over the last axis, that of the words",
            edit(END, "kept.softmax(dim=0)"),
            edit(END, "kept.exp() / kept.exp().sum()")),
    Mistake("log-probabilities",
            "these are logarithms: take softmax instead of log_softmax, and hidden words get 0 instead of -inf",
            edit(END, "kept.log_softmax(dim=-1)")),
    Mistake("in the order of rank, not of words", "put each probability back at the place of its word: scatter",
            edit(END, "kept.softmax(dim=-1).sort(dim=-1, descending=True).values"),
            edit(END, "kept.softmax(dim=-1).topk(top_k).values")),
    Mistake("first position instead of the last", LAST_PREDICTS, edit(LAST, "logits[:, 0]")),
    Mistake("mean over the positions", f"only {LAST_PREDICTS}", edit(LAST, "logits.mean(dim=1)")),
    Mistake("all positions, not the last one",
            "only the last position predicts a new word; the others predict what is there",
            edit(LAST, "logits") + edit("[:, :top_k]", "[..., :top_k]")),
)

# ------------------------------------------------------------------------------------------- exercise 4: the cache

TABLE = "positions[past_keys.size(1)]"
SCORES = "query @ keys.mT"
MIX = "weights @ values"
STANDS_AT_T = "the cache holds positions 0 to T - 1, so the new word stands at T"


def joined(way: str) -> tuple:
    """Another way to join old and new, {0} and {1}, for keys and for values."""
    pairs = (("past_keys", "key"), ("past_values", "value"))
    return tuple(("[{}, {}]".format(*pair), way.format(*pair)) for pair in pairs)


CACHE = (
    Mistake("appended at the front",
            "new keys and values go behind the old ones, for the next step counts on their order",
            joined("[{1}, {0}]")),
    Mistake("an old entry lost", "the cache grows by one word, and all old ones stay: T + 1",
            joined("[{0}[:, 1:], {1}]"),
            joined("[{0}[:, :-1], {1}]")),
    Mistake("old cache returned",
            "return the cache with the new key and value in it, or the next word will not see this one",
            edit("[:, 0], keys, values", "[:, 0], past_keys, past_values")),
    Mistake("only what is new returned", "return old and new together: (B, T + 1, d)",
            edit("[:, 0], keys, values", "[:, 0], key, value")),
    Mistake("new word does not see itself",
            "its own key and value belong to what it attends to: append first, then attend",
            edit(SCORES, "query @ past_keys.mT") + edit(MIX, "weights @ past_values")),
    Mistake("cache not attended to", "attend to old and new keys together; one key alone has a weight of 1",
            edit(SCORES, "query @ key.mT") + edit(MIX, "weights @ value")),
    Mistake("mask of the first query",
            "no mask, or one whose last query stands at the last key: the new word sees everything; is_causal=True "
            "would show it the first key only",
            edit(SCORES, "query @ keys[:, :1].mT") + edit(MIX, "weights @ values[:, :1]")),
    Mistake("no position", "add positions[T] to the embedding: a model without it cannot tell the order",
            edit(f"(word + {TABLE})", "word")),
    Mistake("position 0",
            "the new word is alone in the input, not in the text: T words are before it, so it stands at T",
            edit(TABLE, "positions[0]")),
    Mistake("position one too low", STANDS_AT_T, edit(TABLE, "positions[max(past_keys.size(1) - 1, 0)]")),
    Mistake("position one too high", STANDS_AT_T, edit(TABLE, "positions[past_keys.size(1) + 1]")),
    Mistake("position on the query only",
            "key and value are made of the same x as the query, word + positions[T]: later words find it by that key",
            edit("x @ w_k, x @ w_v", "word[:, None] @ w_k, word[:, None] @ w_v")),
    Mistake("one of the three without position", "query, key and value are made of the same x: word + positions[T]",
            edit("x @ w_q", "word[:, None] @ w_q"),
            edit("x @ w_k", "word[:, None] @ w_k"),
            edit("x @ w_v", "word[:, None] @ w_v")),
    Mistake("an old key as the query",
            "the query is made of the new word: x @ w_q; old queries are done and were not kept",
            edit(SCORES, "keys[:, -2:-1] @ keys.mT")),
    Mistake("the new key as the query", "the query has its own matrix: x @ w_q", edit(SCORES, "key @ keys.mT")),
    Mistake("softmax over the wrong axis",
            "softmax over the keys, the last axis of the scores; over the queries or the batch, the weights of a "
            "query do not sum to 1",
            edit("softmax(dim=-1)", "softmax(dim=1)"),
            edit("softmax(dim=-1)", "softmax(dim=0)")),
    Mistake("not divided by √d_k", "divide the scores by the square root of d_k, the size of a key",
            edit(" / math.sqrt(keys.size(-1))", "")),
    Mistake("divided by d_k", "divide by the square root of d_k", edit("math.sqrt(keys.size(-1))", "keys.size(-1)")),
    Mistake("divided by √d_model", "d_k is the size of a key, not of x", edit("(keys.size(-1))", "(x.size(-1))")),
    Mistake("divided by √d_v", "d_k is the size of a key, not of a value",
            edit("(keys.size(-1))", "(values.size(-1))")),
)

# -------------------------------------------------------------------------------------- exercise 5: the online softmax

PART_A, PART_B = "(largest_a - finite).exp()", "(largest_b - finite).exp()"
WEIGHED_A, WEIGHED_B = "part_a[:, None] * mean_a", "part_b[:, None] * mean_b"
BY_TOTALS = edit(WEIGHED_A, "total_a[:, None] * mean_a") + edit(WEIGHED_B, "total_b[:, None] * mean_b")
SAFE_TOTAL = "total.masked_fill(total == 0, 1)"
SAFE_LARGEST = "largest.masked_fill(largest == -math.inf, 0)"
RESULT = "return largest, total, mean"
MERGE = (
    Mistake("not rescaled",
            "both totals were taken relative to their own maximum: multiply each by exp(own - new) first",
            edit(PART_A, "1"),
            edit(PART_B, "1"),
            edit(PART_A, "1") + edit(PART_B, "1")),
    Mistake("rescaled the wrong way",
            "exp(own maximum - new maximum): at most 1, so that sums shrink and cannot overflow",
            edit(PART_A, "(finite - largest_a).exp()") + edit(PART_B, "(finite - largest_b).exp()")),
    Mistake("rescaled by the other tile", "each total goes with the maximum of its own tile",
            edit("total_a * (largest_a", "total_a * (largest_b")
            + edit("total_b * (largest_b", "total_b * (largest_a")),
    Mistake("divided twice", "part_a · mean_a is a sum already: divide once, by the new total",
            edit("= weighted /", "= weighted / total[:, None] /")),
    Mistake("not divided by the new total", "a weighted sum is no mean yet: divide it by the new total",
            edit(RESULT, "return largest, total, weighted")),
    Mistake("a mean taken for a sum", "a mean was divided by its total: multiply by it again before adding",
            edit(WEIGHED_A, f"{PART_A}[:, None] * mean_a") + edit(WEIGHED_B, f"{PART_B}[:, None] * mean_b")),
    Mistake("total not rescaled in the mean", "the weights of the means are the rescaled totals, as in the new total",
            BY_TOTALS,
            BY_TOTALS + edit(SAFE_TOTAL, "(total_a + total_b)")),
    Mistake("mean of the two means", "the tile with more weight counts more: weigh the means by the rescaled totals",
            edit(RESULT, "return largest, total, (mean_a + mean_b) / 2")),
    Mistake("larger of the totals", "totals add up; only the maximum is the larger of two",
            edit("part_a + part_b", "torch.maximum(part_a, part_b)")),
    Mistake("smaller of the maxima", "take the larger one, or exp may overflow",
            edit("torch.maximum", "torch.minimum")),
    Mistake("log-sum-exp as the largest",
            "largest is a score, the larger of two; largest + log(total) holds both in one number, and here they are "
            "kept apart",
            edit("torch.maximum", "torch.logaddexp"),
            edit(RESULT, "return torch.logaddexp(largest_a, largest_b), total, mean"),
            edit(RESULT, "return largest + total.log(), total, mean"),
            edit(RESULT, "return largest + total.log(), torch.ones_like(total), mean")),
    Mistake("exp of scores, nothing taken off", "exp(1000) is infinite: always take the new maximum off before exp",
            edit(PART_A, "largest_a.exp()") + edit(PART_B, "largest_b.exp()")
            + edit(RESULT, "return largest, total / largest.exp(), mean")),
    Mistake("another largest where one tile is not seen",
            "while one tile is seen the new largest is finite and stays; put another number only where it is -inf",
            edit("(largest == -math.inf", "(largest_a == -math.inf"),
            edit("(largest == -math.inf", "(largest_b == -math.inf")),
    Mistake("NaN where no key is seen",
            "-inf - -inf and 0 / 0 are NaN: put a finite number in their place before exp and before the division",
            edit(SAFE_LARGEST, "largest"),
            edit(SAFE_TOTAL, "total"),
            edit(SAFE_LARGEST, "largest") + edit(SAFE_TOTAL, "total")),
)

# --------------------------------------------------------------------------------------- exercise 6: linear attention

NORM = " / (q @ total)"
PHI_Q, PHI_K = "F.elu(query) + 1", "F.elu(key) + 1"
FEATURES = f"{PHI_Q}, {PHI_K}"
EARLIER = "q @ (state - torch.outer(k, v)) / (q @ (total - k){})"
STACKED = "torch.stack(outputs)"
DECAYS = (0.5, 0.8, 0.9, 0.95, 0.99)
LINEAR = (
    Mistake("norm missing", "divide by the sum of the weights, phi(query)·total: the weights must sum to 1",
            edit(NORM, "")),
    Mistake("divided by the number of words", "divide by the sum of the weights, phi(query)·total: weights differ",
            edit(NORM, " / (len(outputs) + 1)")),
    Mistake("query missing in the norm",
            "the weight of a key depends on the query: phi(query)·total, not the sum of total",
            edit(NORM, " / total.sum()")),
    Mistake("norm before the word itself", "state and total must hold the same words: update both, then read",
            edit(NORM, " / (q @ (total - k))")),
    Mistake("state read before it is updated",
            "a word sees itself: update state and total first, then read, or the first word sees nothing",
            edit(f"q @ state{NORM}", EARLIER.format("")),
            edit(f"q @ state{NORM}", EARLIER.format(" + 1e-9"))),
    Mistake("whole text read, not the past", "read at once after each update: later words must not be in the state",
            edit(STACKED, "phi_q @ state / (phi_q @ total)[:, None]")),
    Mistake("state replaced, not added to", "the state is a sum over all words so far: +=",
            edit("state + torch", "torch") + edit("total + k", "k")),
    Mistake("the past fades", "every word counts alike: state and total are plain sums, without a decay",
            *[edit("= state +", f"= {f} * state +") + edit("= total +", f"= {f} * total +") for f in DECAYS],
            *[edit("= state +", f"= {f} * state +") for f in DECAYS]),
    Mistake("phi left out", "phi of both, query and key: without it weights can be negative and the norm 0",
            edit(FEATURES, "query, key"),
            edit(PHI_Q, "query"),
            edit(PHI_K, "key")),
    Mistake("phi twice", "take phi once of each query and of each key; a second phi adds 1",
            edit(PHI_Q, "F.elu(query) + 2") + edit(PHI_K, "F.elu(key) + 2"),
            edit(PHI_Q, "F.elu(query) + 2"),
            edit(PHI_K, "F.elu(key) + 2")),
    Mistake("elu without + 1", "elu goes down to -1: add 1, and every weight is positive",
            edit(FEATURES, "F.elu(query), F.elu(key)")),
    Mistake("another phi", "phi(x) = elu(x) + 1 is asked; another one is another function",
            *[edit(PHI_Q, f"{phi}(query){more}") + edit(PHI_K, f"{phi}(key){more}")
              for phi, more in (("F.relu", ""), ("F.relu", " + 1"), ("F.softplus", ""), ("torch.exp", ""))]),
    Mistake("divided by √d_k",
            "nothing is divided by √d_k here: after phi it cancels in the norm, before phi it does not",
            edit("elu(query)", "elu(query / math.sqrt(key.size(1)))")
            + edit("elu(key)", "elu(key / math.sqrt(key.size(1)))"),
            edit("elu(query)", "elu(query / math.sqrt(key.size(1)))")),
    Mistake("softmax attention", "weights are products of phi, not exp of scores: that is what lets the sums be kept",
            edit(STACKED, "F.scaled_dot_product_attention(query, key, value, is_causal=True)")),
    Mistake("state transposed", "rows are features of keys, columns are values: (d_k, d_v)",
            edit(f"{STACKED}, state", f"{STACKED}, state.T")),
)

# ---------------------------------------------------------------------------------------- exercise 7: parts of the keys

SHARES, ALL_KEYS = "logsumexps.softmax(dim=0).nan_to_num(0)", "logsumexps.logsumexp(dim=0)"
PARTS = (
    Mistake("mean of the outputs", "a part counts by its share of the sum of e to all scores: softmax over the parts",
            edit(SHARES, "torch.full_like(logsumexps, 1 / len(outputs))")),
    Mistake("weights not divided", "the weights of the parts must sum to 1 for each query",
            edit(SHARES, "logsumexps.exp()")),
    Mistake("softmax over the queries", "the weights of the parts sum to 1 for each query: softmax over axis 0",
            edit(SHARES, "logsumexps.softmax(dim=1).nan_to_num(0)")),
    Mistake("logarithms for weights", "take e to the logsumexps first", edit(SHARES, "logsumexps / logsumexps.sum(0)")),
    Mistake("logarithms added", "add the sums, not their logarithms: torch.logsumexp over the parts",
            edit(ALL_KEYS, "logsumexps.sum(dim=0)")),
    Mistake("largest in place of the sum", "sums add up: log of the sum of e to the logsumexps",
            edit(ALL_KEYS, "logsumexps.amax(dim=0)")),
    Mistake("nothing taken off before exp", "exp(1000) is infinite: take the largest of the parts off first",
            edit(SHARES, "logsumexps.exp() / logsumexps.exp().sum(0)")
            + edit(ALL_KEYS, "logsumexps.exp().sum(0).log()")),
    Mistake("NaN where no key is seen", "-inf - -inf and 0 / 0 are NaN: such a query gets 0",
            edit(".nan_to_num(0)", "")),
)

# ------------------------------------------------------------------------------------------- exercise 8: pages

GATHERED = "blocks.transpose(0, 1).flatten(1, 2)"
PAGED = (
    Mistake("last block taken whole", "behind the last word there is old rubbish: cut off at length",
            edit("keys[:, :length]", "keys")),
    Mistake("order of the table ignored", "the first entry has the first words, wherever its block lies in memory",
            edit("pool[table]", "pool[table.sort().values]")),
    Mistake("table ignored", "the blocks of a text lie anywhere: look each one up in its table",
            edit("pool[table]", "pool[: len(table)]")),
    Mistake("place in the block off by one", "word t is at place t % block_size, counted from 0",
            *[edit(GATHERED, f"blocks.roll({by}, dims=2).transpose(0, 1).flatten(1, 2)") for by in (1, -1)]),
    Mistake("places before blocks", "all places of one block, then those of the next: t // block_size is the block",
            edit(GATHERED, "blocks.permute(1, 2, 0, 3).flatten(1, 2)")),
    Mistake("heads and words mixed up", "bring the heads to the front before blocks and places become one axis",
            edit(GATHERED, "blocks.reshape(pool.size(1), -1, pool.size(3))")),
)

# ------------------------------------------------------------------------------------------- exercise 9: drafts

RATIO = "p[places, words] / q[places, words]"
POSITIVE = "(p[kept] - q[kept]).clamp(min=0)"
DRAFT = (
    Mistake("ratio the wrong way round", "what the draft says too often, q above p, must be kept less often: p / q",
            edit(RATIO, "q[places, words] / p[places, words]")),
    Mistake("q left out", "the draft has brought the word with chance q already: it stays with p / q, not with p",
            edit(RATIO, "p[places, words]")),
    Mistake("accepted greedily", "a likely word may be refused and an unlikely one stay: compare luck with p / q",
            edit(f"luck < {RATIO}", "words == p[:-1].argmax(dim=-1)"),
            edit(f"luck < {RATIO}", "p[places, words] >= q[places, words]")),
    Mistake("words behind a refused one kept", "they were drafted to follow a word that is not there any more",
            edit("stays.cumprod(dim=0).sum()", "stays.sum()")),
    Mistake("drawn again from p", "kept words bring min(p, q) of p already: only what is missing may be drawn",
            edit(POSITIVE, "p[kept]")),
    Mistake("what is too much, not what is missing", "what the small model says too seldom is where p is above q",
            edit(POSITIVE, "q[kept]"),
            edit(POSITIVE, "(q[kept] - p[kept]).clamp(min=0)"),
            edit(POSITIVE, "(p[kept] - q[kept]).abs()")),
    Mistake("not renormalised", "what is missing sums to the chance of a refusal: divide by it",
            edit("missing / missing.sum()", "missing"),
            edit("missing / missing.sum()", "missing.softmax(dim=-1)")),
    Mistake("last row of p forgotten", "where all stay the next word is drawn by p behind the last of them: row n",
            edit("return kept, p[-1]", "return kept, p[-2]")),
)

# ------------------------------------------------------------------------------------- exercise 10: a cache that rolls

TURN, FILLED = "torch.where(p < sinks, p, sinks + (p - sinks) % window)", "min(length, sinks + window)"
ROLLING = (
    Mistake("sinks written over", "the first `sinks` slots do not roll: only those behind them are taken modulo window",
            edit(TURN, "p % (sinks + window)"), edit(TURN, "p % window") + edit(FILLED, "min(length, window)")),
    Mistake("rolls out of step", "position sinks + window, the first without a slot of its own, takes slot `sinks`",
            *[edit("(p - sinks)", behind) for behind in ("p", "(p - sinks + 1)", "(p - sinks - 1)")]),
    Mistake("one slot too many", "sinks + window tokens fill all slots: the next is written over another",
            edit("% window", "% (window + 1)") + edit(FILLED, "min(length, sinks + window + 1)"),
            edit("p < sinks", "p <= sinks + window") + edit(FILLED, "min(length, sinks + window + 1)")),
    Mistake("window counted with the sinks in it", "window slots roll, beside the sinks: sinks + window in all",
            edit("% window", "% (window - sinks)") + edit(FILLED, "min(length, window)")),
    Mistake("in the order of the text", "nothing moves: a token stays in its slot until another is written over it",
            edit('"amax")', '"amax").sort().values')),
    Mistake("sinks counted twice", "while a text is short the sinks are among its last tokens, too: take each once",
            edit(FILLED, "sinks + min(length, window)"),
            edit("return", "return torch.cat([p[:sinks], p[-window:]]) if length < sinks + window else")),
)

MISTAKES = {
    "causal_mask": CAUSAL,
    "combined_mask": COMBINED,
    "next_word_probabilities": NEXT_WORD,
    "cached_step": CACHE,
    "merge_tiles": MERGE,
    "causal_linear_attention": LINEAR,
    "merge_parts": PARTS,
    "paged_keys": PAGED,
    "judge_draft": DRAFT,
    "rolling_positions": ROLLING,
}
