"""SPOILERS: the reference solutions of the exercises of phase 4, and the inputs on which yours are tried.

A solution is one way among many: yours is right if the checker says so. Its docstring is the task in plain
loops, which `--hint 3` prints; hints 1 and 2 stand in EXERCISES. The mistakes that the checker knows by name are text
edits of this file, in mistakes.py.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from phase4_causal.answers.mistakes import MISTAKES
from shared.exercise_checker import Case, Exercise, draw

# ---------------------------------------------------------------------------------------------------- the solutions


def causal_mask(query_length: int, key_length: int) -> Tensor:
    """
    for i in range(T_q):
        position = i + T_k - T_q                                # the last query stands at the last key
        for j in range(T_k):
            mask[i, j] = j <= position
    """
    ones = torch.ones(query_length, key_length, dtype=torch.bool)
    past = ones.tril(key_length - query_length)
    return past


def combined_mask(lengths: Tensor, query_length: int, key_length: int) -> Tensor:
    """
    for b in range(B):
        for i in range(T_q):
            for j in range(T_k):
                mask[b, 0, i, j] = j <= i + T_k - T_q and j < lengths[b]
    """
    real = torch.arange(key_length) < lengths[:, None]  # (T_k,), (B, 1) -> (B, T_k)
    visible = causal_mask(query_length, key_length) & real[:, None, None, :]  # (B, T_k) -> (B, 1, T_q, T_k)
    return visible


def next_word_probabilities(logits: Tensor, temperature: float, top_k: int) -> Tensor:
    """
    for b in range(B):
        scaled = [logits[b, T - 1, v] / temperature for v in range(V)]
        ranked = sorted(range(V), key=lambda v: -scaled[v])     # of equal words the smaller v first
        kept = ranked[:top_k]
        total = sum(exp(scaled[v]) for v in kept)
        for v in kept:
            probabilities[b, v] = exp(scaled[v]) / total
    """
    scaled = logits[:, -1] / temperature  # (B, T, V) -> (B, V)
    order = scaled.argsort(dim=-1, descending=True, stable=True)
    hidden = torch.ones_like(scaled, dtype=torch.bool).scatter(-1, order[:, :top_k], value=False)
    kept = scaled.masked_fill(hidden, -math.inf)
    return kept.softmax(dim=-1)


def cached_step(
    word: Tensor, positions: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, past_keys: Tensor, past_values: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """
    for b in range(B):
        x = word[b] + positions[T]                              # (d_model,)
        for t in range(T):
            keys[b, t], values[b, t] = past_keys[b, t], past_values[b, t]
        keys[b, T], values[b, T] = x @ w_k, x @ w_v
        output[b] = attention(x @ w_q, keys[b], values[b])      # one query, scores divided by √d_k, no mask
    """
    x = (word + positions[past_keys.size(1)])[:, None]  # (B, d_model) -> (B, 1, d_model)
    query, key, value = x @ w_q, x @ w_k, x @ w_v
    keys = torch.cat([past_keys, key], dim=1)  # (B, T, d_k) -> (B, T + 1, d_k)
    values = torch.cat([past_values, value], dim=1)  # (B, T, d_v) -> (B, T + 1, d_v)
    weights = (query @ keys.mT / math.sqrt(keys.size(-1))).softmax(dim=-1)  # (B, 1, T + 1)
    output = weights @ values  # (B, 1, d_v)
    return output[:, 0], keys, values


def merge_tiles(
    largest_a: Tensor, total_a: Tensor, mean_a: Tensor, largest_b: Tensor, total_b: Tensor, mean_b: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """
    for i in range(T_q):
        largest[i] = max(largest_a[i], largest_b[i])
        if largest[i] > float("-inf"):                          # otherwise total and mean stay 0
            part_a = total_a[i] * exp(largest_a[i] - largest[i])
            part_b = total_b[i] * exp(largest_b[i] - largest[i])
            total[i] = part_a + part_b
            for c in range(d_v):
                mean[i, c] = (part_a * mean_a[i, c] + part_b * mean_b[i, c]) / total[i]
    """
    largest = torch.maximum(largest_a, largest_b)
    finite = largest.masked_fill(largest == -math.inf, 0)  # -inf - -inf would be NaN
    part_a = total_a * (largest_a - finite).exp()
    part_b = total_b * (largest_b - finite).exp()
    total = part_a + part_b
    weighted = part_a[:, None] * mean_a + part_b[:, None] * mean_b  # (T_q, 1) * (T_q, d_v) -> (T_q, d_v)
    mean = weighted / total.masked_fill(total == 0, 1)[:, None]
    return largest, total, mean


def causal_linear_attention(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """
    for t in range(T):
        for a in range(d_k):
            total[a] += phi(key[t, a])                          # at first 0
            for c in range(d_v):
                state[a, c] += phi(key[t, a]) * value[t, c]     # at first 0
        norm = sum(phi(query[t, a]) * total[a] for a in range(d_k))
        for c in range(d_v):
            output[t, c] = sum(phi(query[t, a]) * state[a, c] for a in range(d_k)) / norm
    """
    phi_q, phi_k = F.elu(query) + 1, F.elu(key) + 1
    state = value.new_zeros(key.size(1), value.size(1))
    total = value.new_zeros(key.size(1))
    outputs = []
    for q, k, v in zip(phi_q, phi_k, value, strict=True):
        state = state + torch.outer(k, v)  # (d_k,), (d_v,) -> (d_k, d_v)
        total = total + k
        outputs.append(q @ state / (q @ total))  # (d_k,) @ (d_k, d_v) -> (d_v,)
    return torch.stack(outputs), state, total


def merge_parts(outputs: Tensor, logsumexps: Tensor) -> tuple[Tensor, Tensor]:
    """
    for i in range(T_q):
        logsumexp[i] = largest = max(logsumexps[p, i] for p in range(P))
        if largest > float("-inf"):                             # otherwise the output stays 0
            total = sum(exp(logsumexps[p, i] - largest) for p in range(P))
            logsumexp[i] = largest + log(total)
            for c in range(d_v):
                output[i, c] = sum(exp(logsumexps[p, i] - logsumexp[i]) * outputs[p, i, c] for p in range(P))
    """
    weights = logsumexps.softmax(dim=0).nan_to_num(0)  # of parts; no part at all has a NaN, and gets 0
    output = (weights[..., None] * outputs).sum(dim=0)  # (P, T_q, 1) * (P, T_q, d_v) -> (T_q, d_v)
    return output, logsumexps.logsumexp(dim=0)  # (P, T_q) -> (T_q,)


def paged_keys(pool: Tensor, table: Tensor, length: int) -> Tensor:
    """
    for h in range(H):
        for t in range(length):
            block = table[t // block_size]
            keys[h, t] = pool[block, h, t % block_size]
    """
    blocks = pool[table]  # (num_blocks, H, block_size, d_k) -> (n, H, block_size, d_k)
    keys = blocks.transpose(0, 1).flatten(1, 2)  # (n, H, block_size, d_k) -> (H, n * block_size, d_k)
    return keys[:, :length]


def judge_draft(words: Tensor, q: Tensor, p: Tensor, luck: Tensor) -> tuple[Tensor, Tensor]:
    """
    kept = 0
    while kept < n and luck[kept] < p[kept, words[kept]] / q[kept, words[kept]]:
        kept += 1
    for v in range(V):
        probabilities[v] = max(p[kept, v] - q[kept, v], 0) if kept < n else p[n, v]
    probabilities /= sum(probabilities)
    """
    places = torch.arange(len(words))
    stays = luck < p[places, words] / q[places, words]  # (n, V) -> (n,)
    kept = stays.cumprod(dim=0).sum()  # up to the first False
    if kept == len(words):
        return kept, p[-1]
    missing = (p[kept] - q[kept]).clamp(min=0)
    return kept, missing / missing.sum()


def rolling_positions(length: int, window: int, sinks: int) -> Tensor:
    """
    for p in range(length):
        slot = p if p < sinks else sinks + (p - sinks) % window
        positions[slot] = p                                     # over what was there
    """
    p = torch.arange(length)
    slots = torch.where(p < sinks, p, sinks + (p - sinks) % window)
    positions = p.new_zeros(min(length, sinks + window))
    return positions.scatter_reduce(0, slots, p, "amax")  # (length,) -> the filled slots: the last to come is there


# -------------------------------------------------------------------------------------------------------- the cases


def causal_cases() -> list[Case]:
    return [
        Case("as many queries as keys", (5, 5)),
        Case("3 queries, 7 keys", (3, 7)),
        Case("one query", (1, 5)),
        Case("more queries than keys", (7, 3)),
    ]


def combined_cases() -> list[Case]:
    """B = 3 or 2; in the first batch no sequence is as long as there is room."""
    return [
        Case("as many queries as keys", (torch.tensor([4, 2, 3]), 5, 5)),
        Case("3 queries, 7 keys", (torch.tensor([5, 7]), 3, 7)),
    ]


def next_word_cases() -> list[Case]:
    """B = 2, T = 3, V = 7. Ties: four equal logits at the border, of which two may stay."""
    logits = 4 * draw((2, 3, 7))[0]
    ties = logits.clone()
    ties[0, -1] = torch.tensor([0.5, 2.0, 0.5, 0.5, -1.0, 3.0, 0.5])
    return [
        Case("temperature 2, top-k 4", (logits, 2.0, 4)),
        Case("temperature 0.5, top-k 7: all words", (logits, 0.5, 7)),
        Case("temperature 1, top-k 1", (logits, 1.0, 1)),
        Case("equal logits", (ties, 1.5, 4)),
    ]


def cache_cases() -> list[Case]:
    """B = 2, T = 5, d_model = 11, d_k = 3, d_v = 7, room for 13 words; then an empty cache."""
    shapes = ((2, 11), (13, 11), (11, 3), (11, 3), (11, 7), (2, 5, 3), (2, 5, 7))
    word, positions, *matrices, keys, values = (2 * drawn for drawn in draw(*shapes))
    return [
        Case("5 words in the cache", (word, positions, *matrices, keys, values)),
        Case("1 word in the cache", (word, positions, *matrices, keys[:, :1], values[:, :1])),
        Case("empty cache", (word, positions, *matrices, keys[:, :0], values[:, :0])),
    ]


def merge_cases() -> list[Case]:
    """T_q = 5, d_v = 3. The sum of a tile is 1 or more: the largest key itself has exp(0)."""
    largest_a, total_a, mean_a, largest_b, total_b, mean_b = draw(*2 * [(5,), (5,), (5, 3)])
    total_a, total_b = 1 + 4 * total_a.abs(), 1 + 4 * total_b.abs()
    one, other = (2 * largest_a, total_a, mean_a), (2 * largest_b, total_b, mean_b)
    high = (1000 + 2 * largest_a, total_a, mean_a)
    queries = torch.arange(5)
    blind_a, blind_b = queries == 0, (queries == 1) | (queries == 3)

    def hide(tile: tuple[Tensor, Tensor, Tensor], rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        largest, total, mean = tile
        return largest.masked_fill(rows, -math.inf), total.masked_fill(rows, 0), mean.masked_fill(rows[:, None], 0)

    return [
        Case("", (*one, *other)),
        Case("scores of 1000 in one tile", (*high, *other)),
        Case("some queries see no key of one tile", (*hide(one, blind_a), *hide(other, blind_b))),
        Case("a query that sees no key in both", (*hide(one, queries == 1), *hide(other, blind_b))),
    ]


def linear_cases() -> list[Case]:
    """T = 5, d_k = 3, d_v = 7; then a single word."""
    query, key, value = (2 * drawn for drawn in draw((5, 3), (5, 3), (5, 7)))
    return [Case("", (query, key, value)), Case("one word", (query[:1], key[:1], value[:1]))]


def parts_cases() -> list[Case]:
    """P = 3, T_q = 5, d_v = 7; then a query with scores of 1000 beside others, and one that sees nothing."""
    outputs, logs = draw((3, 5, 7), (3, 5))
    unseen = torch.tensor([[0, 0, 0, 0, 1], [0, 0, 1, 0, 1], [1, 0, 1, 0, 1]]).bool()
    hidden = outputs.masked_fill(unseen[..., None], 0), logs.masked_fill(unseen, -math.inf)
    high = logs + torch.tensor([0, 1000, 0, 0, 0])
    return [Case("", (outputs, 2 * logs)), Case("scores of 1000", (outputs, high)), Case("keys not seen", hidden)]


def paged_cases() -> list[Case]:
    """H = 2, blocks of 3, d_k = 5; 11 blocks, of which a text has 4, and in the last one 1 word."""
    (pool,) = draw((11, 2, 3, 5))
    table = torch.tensor([7, 2, 9, 4])
    return [
        Case("10 words", (pool, table, 10)),
        Case("12 words: the last block is full", (pool, table, 12)),
    ]


def draft_cases() -> list[Case]:
    """n = 4, V = 7. The ratios p / q of the words: 0.73, 1.14, 0.47, 0.59."""
    q, p = ((2 * logits).softmax(dim=-1) for logits in draw((4, 7), (5, 7), seed=25))
    words = torch.tensor([0, 1, 1, 5])
    refused, at_once, none = torch.tensor([[0.1, 0.5, 0.6, 0.7], [0.8, 0.8, 0.9, 0.9], [0.4, 0.7, 0.4, 0.5]]).double()
    return [
        Case("the third word is refused", (words, q, p, refused)),
        Case("the first word is refused", (words, q, p, at_once)),
        Case("all stay", (words, q, p, none)),
    ]


def rolling_cases() -> list[Case]:
    """Read on and on; one token more than slots; fewer tokens than slots; fewer than sinks; no sinks."""
    sizes = (14, 5, 2), (8, 5, 2), (4, 5, 2), (1, 5, 2), (11, 3, 0)
    return [Case(f"length {n}, window {window}, sinks {sinks}", (n, window, sinks)) for n, window, sinks in sizes]


# --------------------------------------------------------------------------------------- the exercises and their hints

# fmt: off

EXERCISES = (
    Exercise(
        causal_mask, ("mask",), causal_cases, MISTAKES["causal_mask"],
        section="1. What may a word see", level="easy", minutes=20,
        idea="""
        Queries have positions, too: the last stands at the last key, so query i stands at i + T_k - T_q. It sees the
        keys up to there.
        """,
        steps="""
        (T_q, 1)     the positions of the queries: 0, 1, 2, ... plus T_k - T_q, as a column
        (T_k,)       the positions of the keys: 0, 1, 2, ...
        (T_q, T_k)   is the key's position at most the query's? (Or a triangle of ones, its diagonal moved.)
        """,
    ),
    Exercise(
        combined_mask, ("mask",), combined_cases, MISTAKES["combined_mask"],
        section="1. What may a word see", level="medium", minutes=30,
        idea="""
        Two questions: does the key lie in the past of the query, and is it a real word of this sequence? Both must be
        answered with True.
        """,
        steps="""
        past     exercise 1                                        (T_q, T_k)
        real     is the key's position below lengths[b]?           (T_k,) and (B, 1) -> (B, T_k)
        result   past & real, real with axes for heads, queries    (T_q, T_k) & (B, 1, 1, T_k) -> (B, 1, T_q, T_k)
        """,
    ),
    Exercise(
        next_word_probabilities, ("probabilities",), next_word_cases, MISTAKES["next_word_probabilities"],
        section="4. Writing", level="medium", minutes=45,
        idea="""
        A word that may not be drawn gets a logit of -inf: then softmax gives it 0, and the others share the whole 1.
        """,
        steps="""
        scaled   the logits of the last position / temperature                (B, V)
        order    the words from the largest logit to the smallest             (B, V): argsort, descending, stable
        kept     scaled, with -inf for all but the first top_k of the order   (B, V): scatter or a loop
        result   softmax of kept over the words                               (B, V)
        """,
    ),
    Exercise(
        cached_step, ("output", "keys", "values"), cache_cases, MISTAKES["cached_step"],
        section="5. The cache", level="medium", minutes=50,
        idea="""
        The new word brings one query, one key and one value. The key and the value join those of the words before, and
        the query meets them all.
        """,
        steps="""
        x                   word + positions[T]; T is past_keys.size(1)      (B, d_model)
        query, key, value   x times w_q, w_k, w_v                            (B, d_k), (B, d_k), (B, d_v)
        keys, values        old ones, then key[:, None]: torch.cat, axis 1   (B, T + 1, d_k), (B, T + 1, d_v)
        weights             softmax of query · keys / √d_k                   (B, 1, d_k) @ (B, d_k, T + 1)
        output              weights times values, without the axis of 1      (B, 1, T + 1) @ (B, T + 1, d_v)
        """,
    ),
    Exercise(
        merge_tiles, ("largest", "total", "mean"), merge_cases, MISTAKES["merge_tiles"],
        section="6. Long texts", level="hard", minutes=75,
        idea="""
        A total counts in units of e to the largest score of its tile. To add two totals bring both to one unit:
        multiply each by exp(its own largest - the new largest), which is at most 1.
        """,
        steps="""
        largest          the larger of the two                                           (T_q,)
        part_a, part_b   each total times exp(own largest - new largest)                 (T_q,)
        total            part_a + part_b                                                 (T_q,)
        mean             (part_a · mean_a + part_b · mean_b) / total                     (T_q, 1) with (T_q, d_v)

        Where a query sees no key at all, -inf - -inf and 0 / 0 come up: there put 0 for the new largest before
        exp, and 1 for the total before the division.
        """,
    ),
    Exercise(
        causal_linear_attention, ("output", "state", "total"), linear_cases, MISTAKES["causal_linear_attention"],
        section="6. Long texts", level="hard", minutes=60,
        idea="""
        In the sum of (phi(q) · phi(k)) v over the past words phi(q) is the same in each term: take it out. What
        is left is a sum of phi(k) and v alone, which can be kept from word to word.
        """,
        steps="""
        phi_q, phi_k   phi of all queries and keys                          (T, d_k)
        state, total   zeros at first, of the dtype of value                (d_k, d_v), (d_k,)
        word by word   add outer(phi_k[t], value[t]) to state, phi_k[t] to total; only then read:
        output[t]      phi_q[t] @ state / (phi_q[t] @ total)                (d_v,)
        """,
    ),
    Exercise(
        merge_parts, ("output", "logsumexp"), parts_cases, MISTAKES["merge_parts"],
        section="serving/README.md", level="medium", minutes=40,
        idea="""
        The weight of a part is its share of the sum of e to all scores: softmax, once more, this time over the parts.
        """,
        steps="""
        shares      e to (logsumexp of each part - the largest of them)         (P, T_q)
        output      the outputs with weights shares / their sum                 (P, T_q, 1) with (P, T_q, d_v)
        logsumexp   largest + log of the sum of the shares                      (T_q,)
        """,
    ),
    Exercise(
        paged_keys, ("keys",), paged_cases, MISTAKES["paged_keys"],
        section="serving/README.md", level="easy", minutes=25,
        idea="""
        The table says where each block of the text lies: word t is in block table[t // block_size], at place
        t % block_size of it.
        """,
        steps="""
        blocks   those of the table, in its order                           (n, H, block_size, d_k)
        keys     heads first, then blocks and places as one axis            (H, n * block_size, d_k)
        result   without the places behind the last word                    (H, length, d_k)
        """,
    ),
    Exercise(
        judge_draft, ("kept", "probabilities"), draft_cases, MISTAKES["judge_draft"],
        section="serving/README.md", level="medium", minutes=45,
        idea="""
        Of the chance p of a word the draft brings min(p, q). What is missing, p - q where it is positive, must come
        from the words that are drawn in place of refused ones.
        """,
        steps="""
        ratios          p / q of each drafted word: p[i, words[i]] / q[i, words[i]]         (n,)
        kept            how many come before the first whose luck is not below its ratio
        missing         p - q at that place, 0 where it is negative                         (V,)
        probabilities   missing divided by its sum; if all stay, the last row of p          (V,)
        """,
    ),
    Exercise(
        rolling_positions, ("positions",), rolling_cases, MISTAKES["rolling_positions"],
        section="serving/README.md", level="medium", minutes=30,
        idea="""
        Which slot a token takes depends on its position alone: behind the sinks the slots come round again and again.
        Of all tokens that took a slot the last is there.
        """,
        steps="""
        p        the positions of all tokens: 0, 1, 2, ...                         (length,)
        slots    p itself for a sink; else sinks plus (p - sinks) modulo window    (length,)
        result   in each slot the largest p: a loop, or scatter_reduce             (min(length, sinks + window),)
        """,
    ),
)
# fmt: on

AFTERWARDS = """\
You can now hide the future and the padding with one mask, turn logits into the probabilities of a next word, and write
word by word with a cache. You can also merge tiles of keys as flash attention does, and parts of them that several
processors read, and run attention as a recurrence. Blocks, drafts and slots that roll you know from the inside, too.
These were the last exercises. Next is an attention of your own: ToyTransformer in shared/toy_model.py takes it as an
argument."""
