"""SPOILERS: the reference solutions of the exercises of phase 4, and the inputs on which yours are tried.

Try exercises.py first, then compare. A solution is one way among many: yours is right if the checker says so. The
mistakes that the checker knows by name are in exercise_mistakes.py, exercise_cache_mistakes.py and
exercise_sum_mistakes.py.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from phase2_multi_head.answers.mistakes import named
from phase4_causal.answers.cache_mistakes import CACHE
from phase4_causal.answers.cache_mistakes import HINTS as CACHE_HINTS
from phase4_causal.answers.mistakes import CAUSAL, COMBINED, HINTS, NEXT_WORD
from phase4_causal.answers.sum_mistakes import HINTS as SUM_HINTS
from phase4_causal.answers.sum_mistakes import LINEAR, MERGE
from shared.exercise_checker import Case, Exercise, draw

# ---------------------------------------------------------------------------------------------------- the solutions


def causal_mask(query_length: int, key_length: int) -> Tensor:
    return torch.ones(query_length, key_length, dtype=torch.bool).tril(key_length - query_length)


def combined_mask(lengths: Tensor, query_length: int, key_length: int) -> Tensor:
    real = torch.arange(key_length) < lengths[:, None]  # (T_k,), (B, 1) -> (B, T_k)
    return causal_mask(query_length, key_length) & real[:, None, None, :]  # (B, T_k) -> (B, 1, T_q, T_k)


def next_word_probabilities(logits: Tensor, temperature: float, top_k: int) -> Tensor:
    scaled = logits[:, -1] / temperature  # (B, T, V) -> (B, V)
    order = scaled.argsort(dim=-1, descending=True, stable=True)
    hidden = torch.ones_like(scaled, dtype=torch.bool).scatter(-1, order[:, :top_k], value=False)
    return scaled.masked_fill(hidden, -math.inf).softmax(dim=-1)


def cached_step(
    word: Tensor, positions: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, past_keys: Tensor, past_values: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    x = (word + positions[past_keys.size(1)])[:, None]  # (B, d_model) -> (B, 1, d_model)
    keys = torch.cat([past_keys, x @ w_k], dim=1)  # (B, T, d_k) -> (B, T + 1, d_k)
    values = torch.cat([past_values, x @ w_v], dim=1)  # (B, T, d_v) -> (B, T + 1, d_v)
    weights = (x @ w_q @ keys.mT / math.sqrt(keys.size(-1))).softmax(dim=-1)  # (B, 1, T + 1)
    return (weights @ values)[:, 0], keys, values  # (B, 1, d_v) -> (B, d_v)


def merge_tiles(
    largest_a: Tensor, total_a: Tensor, mean_a: Tensor, largest_b: Tensor, total_b: Tensor, mean_b: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    largest = torch.maximum(largest_a, largest_b)
    finite = largest.masked_fill(largest == -math.inf, 0)  # -inf - -inf would be NaN
    part_a, part_b = total_a * (largest_a - finite).exp(), total_b * (largest_b - finite).exp()
    total = part_a + part_b
    weighted = part_a[:, None] * mean_a + part_b[:, None] * mean_b  # (T_q, 1) * (T_q, d_v) -> (T_q, d_v)
    return largest, total, weighted / total.masked_fill(total == 0, 1)[:, None]


def causal_linear_attention(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    query, key = F.elu(query) + 1, F.elu(key) + 1
    state = value.new_zeros(key.size(1), value.size(1))
    total = value.new_zeros(key.size(1))
    outputs = []
    for q, k, v in zip(query, key, value, strict=True):
        state = state + torch.outer(k, v)  # (d_k,), (d_v,) -> (d_k, d_v)
        total = total + k
        outputs.append(q @ state / (q @ total))  # (d_k,) @ (d_k, d_v) -> (d_v,)
    return torch.stack(outputs), state, total


# -------------------------------------------------------------------------------------------------------- the cases


def causal_cases() -> list[Case]:
    return [
        Case("as many queries as keys", (5, 5)),
        Case("3 queries, 7 keys", (3, 7)),
        Case("one query", (1, 5)),
        Case("more queries than keys", (7, 3)),
    ]


def combined_cases() -> list[Case]:
    """B = 3 or 2; the longest sequence fills the batch, as it should."""
    return [
        Case("as many queries as keys", (torch.tensor([5, 2, 3]), 5, 5)),
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
    unseen = torch.tensor([False, True, False, True, False])

    def hide(tile: tuple[Tensor, Tensor, Tensor], rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        largest, total, mean = tile
        return largest.masked_fill(rows, -math.inf), total.masked_fill(rows, 0), mean.masked_fill(rows[:, None], 0)

    return [
        Case("", (*one, *other)),
        Case("scores of 1000 in one tile", (*high, *other)),
        Case("a tile of which two queries see no key", (*one, *hide(other, unseen))),
        Case("a query that sees no key in both", (*hide(one, torch.arange(5) == 1), *hide(other, unseen))),
    ]


def linear_cases() -> list[Case]:
    """T = 5, d_k = 3, d_v = 7; then a single word."""
    query, key, value = (2 * drawn for drawn in draw((5, 3), (5, 3), (5, 7)))
    return [Case("", (query, key, value)), Case("one word", (query[:1], key[:1], value[:1]))]


EXERCISES = (
    Exercise(causal_mask, ("mask",), causal_cases, named(CAUSAL, HINTS)),
    Exercise(combined_mask, ("mask",), combined_cases, named(COMBINED, HINTS)),
    Exercise(next_word_probabilities, ("probabilities",), next_word_cases, named(NEXT_WORD, HINTS)),
    Exercise(cached_step, ("output", "keys", "values"), cache_cases, named(CACHE, CACHE_HINTS)),
    Exercise(merge_tiles, ("largest", "total", "mean"), merge_cases, named(MERGE, SUM_HINTS)),
    Exercise(causal_linear_attention, ("output", "state", "total"), linear_cases, named(LINEAR, SUM_HINTS)),
)
