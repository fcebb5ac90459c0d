"""Tests: the exercises of phase 4."""

import math

import pytest
import torch
import torch.nn.functional as F

from phase4_causal import exercises
from phase4_causal.answers import solutions
from phase4_causal.causal_attention import CausalSelfAttention
from phase4_causal.key_value_cache import KeyValueCache
from phase4_causal.long_texts.linear_attention import linear_attention, linear_attention_recurrent
from phase4_causal.serving import drafts
from phase4_causal.serving.rolling_cache import RollingCache
from phase4_causal.writing.sampling import Sampling
from shared.attention_utils import causal_mask, padding_mask
from shared.exercise_checker import DONE, check, draw
from shared.tests.helpers import asked_for_as_checked, by_loops, each_way, known_by_its_name, near

CAUSAL, COMBINED, NEXT, CACHE, TILES, LINEAR, PARTS, PAGED, DRAFT, ROLLING = solutions.EXERCISES


@pytest.mark.parametrize("exercise", solutions.EXERCISES, ids=lambda exercise: exercise.name)
def test_exercises_ask_for_what_is_checked(exercise):
    stub = getattr(exercises, exercise.name)
    asked_for_as_checked(exercise, stub)
    assert "float64" in stub.__doc__ or exercise in (CAUSAL, COMBINED, ROLLING)


@pytest.mark.parametrize(("exercise", "mistake", "function"), each_way(solutions.EXERCISES))
def test_mistakes_are_known_by_name(exercise, mistake, function):
    known_by_its_name(exercise, mistake, function, solutions.EXERCISES)


# ----------------------------------------------------------------------------------------------------------- right ways


def attention_of_one(query, keys, values):
    return F.scaled_dot_product_attention(query[None], keys, values)[0]


def topk_of_distinct_numbers(logits, t, k):
    """Equal logits are told apart by a tiny number that falls from word to word."""
    x = (logits[:, -1] - 1e-9 * torch.arange(logits.shape[2])) / t
    best = x.topk(k)
    return torch.zeros_like(x).scatter(1, best.indices, best.values.softmax(1))


def tiles_by_logaddexp(ma, ta, oa, mb, tb, ob):
    """The logarithms of the sums, and a softmax over the two tiles."""
    logs = torch.stack([ma + ta.log(), mb + tb.log()])
    m = torch.max(ma, mb)
    share = logs.softmax(0).nan_to_num(0)[..., None]
    return m, (torch.logaddexp(*logs) - m).exp().nan_to_num(0), share[0] * oa + share[1] * ob


def linear_of_this_repository(query, key, value):
    output, carried = linear_attention_recurrent(query, key, value)
    near(output, linear_attention(query, key, value, causal=True))
    return output, carried[:, :-1], carried[:, -1]  # that one keeps the total as the last column


def paged_by_places(pool, table, length):
    t = torch.arange(length)
    return pool[table[t // pool.size(2)], :, t % pool.size(2)].transpose(0, 1)


def draft_of_this_repository(words, q, p, luck):
    """With luck in the place of chance; what the last word is drawn by is caught."""
    lucks, asked = iter(luck), []

    def choose(chances):
        asked.append(chances)
        return len(chances) == 2 and next(lucks) < chances[1]  # stays

    return len(drafts.judge(words.tolist(), list(q), p, choose)) - 1, asked[-1]


def positions_of_this_repository(length, window, sinks):
    cache = RollingCache(KeyValueCache(1, 1, sinks + window, 1), sinks)
    for p in range(length):
        keys, _ = cache.append(*2 * [torch.full((1, 1, 1, 1), p)])  # each key is its own position
    return keys.flatten().long()


RIGHT = [
    (CAUSAL, by_loops(CAUSAL, mask="T_q T_k")),
    (CAUSAL, causal_mask),
    (CAUSAL, lambda a, b: ~torch.triu(torch.ones(a, b), b - a + 1).bool()),
    (COMBINED, by_loops(COMBINED, mask="B one T_q T_k")),
    (COMBINED, lambda n, a, b: causal_mask(a, b) & padding_mask(n, b)),
    (NEXT, by_loops(NEXT, logits="B T V")),
    (NEXT, lambda x, t, k: Sampling(t, k).probabilities(x[:, -1])),
    (NEXT, topk_of_distinct_numbers),
    (CACHE, by_loops(CACHE, past_keys="B T d_k", buffers={"attention": attention_of_one})),
    (CACHE, lambda *inputs: [part.float() for part in solutions.cached_step(*inputs)]),
    (TILES, by_loops(TILES, mean="T_q d_v")),
    (TILES, tiles_by_logaddexp),
    (LINEAR, by_loops(LINEAR, query="T d_k", value="T d_v", buffers={"phi": lambda x: F.elu(x) + 1})),
    (LINEAR, linear_of_this_repository),
    (PARTS, by_loops(PARTS, outputs="P T_q d_v", buffers={"log": torch.log})),
    (PAGED, by_loops(PAGED, pool="num_blocks H block_size d_k")),
    (PAGED, paged_by_places),
    (DRAFT, by_loops(DRAFT, q="n V")),
    (DRAFT, draft_of_this_repository),
    (ROLLING, by_loops(ROLLING)),
    (ROLLING, positions_of_this_repository),
]


@pytest.mark.parametrize(("exercise", "function"), RIGHT)
def test_every_right_way_is_accepted(exercise, function):
    assert check(exercise, function).status == DONE, check(exercise, function).text


def test_float32_is_explained_where_it_is_too_coarse():
    text = check(TILES, lambda *tiles: solutions.merge_tiles(*(part.float() for part in tiles))).text
    assert "nearly right, as in float32" in text and "scores of 1000" in text


# ------------------------------------------------------------------------------------------------------ the solutions


def test_padding_at_the_end_matters_to_padded_queries_only():
    """What the text of exercise 2 says: real queries see the same with and without the padding mask."""
    lengths, causal = torch.tensor([7, 2, 5]), causal_mask(7)
    differs = (solutions.combined_mask(lengths, 7, 7)[:, 0] != causal).any(dim=-1)
    near(differs, torch.arange(7) >= lengths[:, None])


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
@pytest.mark.parametrize("top_k", [1, 3, 7])
def test_solution_of_the_next_word_is_that_of_generate(temperature, top_k):
    logits = (4 * draw((5, 3, 7))[0]).round()  # rounded: many are equal
    found = solutions.next_word_probabilities(logits, temperature, top_k)
    near(found, Sampling(temperature, top_k).probabilities(logits[:, -1]))
    assert ((found > 0).sum(dim=-1) == top_k).all() and not torch.equal(logits[:, -1], logits[:, 0])


@torch.no_grad()
def test_solution_of_the_cached_step_is_the_last_row_of_the_whole():
    """Word by word: causal attention of torch over all words, and CausalSelfAttention with its own cache."""
    words, positions, w_q, w_k, w_v = draw((2, 7, 11), (7, 11), (11, 11), (11, 11), (11, 11))
    x = words + positions
    expected = F.scaled_dot_product_attention(x @ w_q, x @ w_k, x @ w_v, is_causal=True)
    module, cache = CausalSelfAttention(11, 1).double(), KeyValueCache(2, 1, 7, 11, dtype=torch.float64)
    for linear, matrix in zip((module.w_q, module.w_k, module.w_v, module.w_o), (w_q, w_k, w_v, None), strict=True):
        linear.weight.copy_(torch.eye(11) if matrix is None else matrix.T)
        torch.nn.init.zeros_(linear.bias)
    keys = values = torch.zeros(2, 0, 11).double()
    for t in range(7):
        output, keys, values = solutions.cached_step(words[:, t], positions, w_q, w_k, w_v, keys, values)
        near(output, expected[:, t])
        near(output, module(x[:, t : t + 1], cache=cache)[0][:, 0])
    near(keys, x @ w_k)
    near((keys, values), (cache.keys[:, 0], cache.values[:, 0]))


@pytest.mark.parametrize("cut", [1, 5, 10])
def test_solution_of_the_tiles_is_softmax_over_all_keys(cut):
    """Two tiles merged, and then three: torch's attention over all keys, one query seeing none."""
    query, key, value = draw((5, 3), (11, 3), (11, 7))
    visible = causal_mask(5, 11) & (torch.arange(5) != 2)[:, None]
    scores = (400 * query @ key.T).masked_fill(~visible, -math.inf)

    def tile(columns):
        own = scores[:, columns]
        largest = own.amax(dim=-1)
        numerators = (own - largest.masked_fill(largest == -math.inf, 0)[:, None]).exp()
        total = numerators.sum(dim=-1)
        return largest, total, numerators @ value[columns] / total.clamp(min=1)[:, None]

    expected = F.scaled_dot_product_attention(400 * query, key, value, attn_mask=visible, scale=1.0)
    two = solutions.merge_tiles(*tile(slice(0, cut)), *tile(slice(cut, 11)))
    near(two[2], expected.nan_to_num(0))
    near(two[0] + two[1].log(), scores.logsumexp(dim=-1))
    first = solutions.merge_tiles(*tile(slice(7, 11)), *tile(slice(0, 3)))
    near(solutions.merge_tiles(*first, *tile(slice(3, 7))), two)  # in any order


def test_solution_of_the_parts_is_attention_over_all_keys():
    """Four parts of unequal length, one of them empty; a query sees none of the others."""
    query, key, value = draw((5, 3), (11, 3), (11, 7))
    scores = (400 * query @ key.T).masked_fill(~causal_mask(5, 11) | (torch.arange(5) == 2)[:, None], -math.inf)
    outputs, logsumexps = zip(
        *((s.softmax(dim=-1).nan_to_num(0) @ v, s.logsumexp(dim=-1))
          for s, v in zip(scores.split([2, 0, 5, 4], dim=1), value.split([2, 0, 5, 4]), strict=True)),
        strict=True,
    )  # fmt: skip
    expected = scores.softmax(dim=-1).nan_to_num(0) @ value, scores.logsumexp(dim=-1)
    near(solutions.merge_parts(torch.stack(outputs), torch.stack(logsumexps)), expected)


def test_solutions_of_phase_4_by_hand():
    """Scores 0 and ln 3 in two tiles, values 4 and 8: weights 1/4 and 3/4. A first word sees itself only."""
    ln3, one = torch.tensor([math.log(3)]).double(), torch.ones(1).double()
    largest, total, mean = solutions.merge_tiles(0 * one, one, 4 * one[None], ln3, one, 8 * one[None])
    near((largest, total, mean), (ln3, 4 / 3 * one, 7 * one[None]))
    probabilities = solutions.next_word_probabilities(torch.tensor([[[0.0, 2 * math.log(3), -5.0]]]), 2.0, 2)
    near(probabilities, torch.tensor([[0.25, 0.75, 0.0]]))
    query, key, value = torch.tensor([[5.0], [0.0]]), torch.tensor([[2.0], [0.0]]), torch.tensor([[8.0], [4.0]])
    output, state, total = solutions.causal_linear_attention(query, key, value)  # phi(2) = 3, phi(0) = 1
    assert output.flatten().tolist() == [8.0, 7.0] and state.item() == 28 and total.item() == 4
    assert solutions.rolling_positions(8, 3, 1).tolist() == [0, 7, 5, 6]
