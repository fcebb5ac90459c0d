"""Tests: the exercises of phase 3."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase2_multi_head.pruning.head_importance import gated
from phase3_visualization import exercises
from phase3_visualization.answers import solutions
from shared.attention_utils import attention_rollout, normalized_entropy
from shared.exercise_checker import DONE, check, draw
from shared.grammar.scores import accuracy_per_head, best_fixed_offset
from shared.tests.helpers import asked_for_as_checked, by_loops, each_way, known_by_its_name, near

ENTROPY, ROLE, ROLLOUT, REMOVED = solutions.EXERCISES


@pytest.mark.parametrize("exercise", solutions.EXERCISES, ids=lambda exercise: exercise.name)
def test_exercises_ask_for_what_is_checked(exercise):
    stub = getattr(exercises, exercise.name)
    asked_for_as_checked(exercise, stub)
    assert "float64" in stub.__doc__


@pytest.mark.parametrize(("exercise", "mistake", "function"), each_way(solutions.EXERCISES))
def test_mistakes_are_known_by_name(exercise, mistake, function):
    known_by_its_name(exercise, mistake, function, solutions.EXERCISES)


# ----------------------------------------------------------------------------------------------------------- right ways


def entropy_by_nanmean(w, mask, log=torch.log):
    """With a small number inside the logarithm; with two log2 as well."""
    rows = -(w * log(w + 1e-12)).sum(2) / log(mask.sum(1))
    return rows.masked_fill(mask.sum(1) < 2, math.nan).nanmean(1)


def all_heads(x, w_q, w_k, w_v, w_o, b_o, num_heads):
    return solutions.without_head(x, w_q, w_k, w_v, w_o, b_o, num_heads, slice(0, 0))


def zeroed(matrix, num_heads, removed):
    """Without the rows of a head."""
    return matrix.unflatten(0, (num_heads, -1)).index_fill(0, torch.tensor([removed]), 0).flatten(0, 1)


RIGHT = [
    (ENTROPY, by_loops(ENTROPY, weights="H T_q T_k", buffers={"log": math.log})),
    (ENTROPY, entropy_by_nanmean),
    (ENTROPY, lambda w, m: entropy_by_nanmean(w, m, torch.log2)),
    (ENTROPY, lambda w, m: normalized_entropy(w, m).nanmean(dim=-1)),
    (ROLE, by_loops(ROLE, weights="N H T T")),
    (ROLE, lambda w, g: (accuracy_per_head(w, g), best_fixed_offset(g)[1])),
    (ROLLOUT, by_loops(ROLLOUT, weights="L H T T", buffers={"step": "T T"})),
    (ROLLOUT, lambda w: attention_rollout(list(w))),
    (REMOVED, by_loops(REMOVED, x="B T d_model", buffers={"attention": F.scaled_dot_product_attention})),
    (REMOVED, lambda x, q, k, v, o, b, n, r: all_heads(x, q, k, zeroed(v.T, n, r).T, o, b, n)),  # its values are 0
    (REMOVED, lambda x, q, k, v, o, b, n, r: all_heads(x, q, k, v, zeroed(o, n, r), b, n)),  # nothing of it passes
]


@pytest.mark.parametrize(("exercise", "function"), RIGHT)
def test_every_right_way_is_accepted(exercise, function):
    assert check(exercise, function).status == DONE, check(exercise, function).text


def best_of(*offsets):
    """The role score with these offsets tried as baseline."""

    def function(weights, gold):
        asked = gold.any(-1).sum()
        hits = [gold[:, range(max(0, -k), min(7, 7 - k)), range(max(0, k), min(7, 7 + k))].sum() for k in offsets]
        return accuracy_per_head(weights, gold), max(hits) / asked

    return function


@pytest.mark.parametrize(
    ("mistake", "offsets"),
    [
        ("only offsets to one side tried", range(1, 7)),
        ("only offsets to one side tried", range(-6, 0)),
        ("only neighbours tried as baseline", (-1, 1)),
        ("the word itself tried as baseline", range(-6, 7)),
        ("not all offsets tried", [k for k in range(-5, 6) if k]),
        *(("one offset, not the best of all", [k]) for k in (2, 3, -1, -2, -3)),
    ],
)
def test_offsets_left_out_are_known_from_each_other(mistake, offsets):
    assert check(ROLE, best_of(*offsets)).text.startswith(f"{mistake}: ")


def test_no_offset_can_be_left_out():
    offsets = [k for k in range(-6, 7) if k]
    assert check(ROLE, best_of(*offsets)).status == DONE
    for case in ROLE.cases():
        hits = [int(case.arguments[1].diagonal(k, dim1=1, dim2=2).sum()) for k in offsets]
        assert len({n for n in hits if n}) == len([n for n in hits if n]), "none is right as often as another"


def test_a_float32_identity_is_explained():
    text = check(ROLLOUT, lambda w: w.mean(1)[0] @ torch.eye(w.shape[-1])).text
    assert "the inputs are float64, so make new tensors with dtype=weights.dtype" in text


# ------------------------------------------------------------------------------------------------------ the solutions


def test_solution_of_the_entropy_by_hand():
    """Even weights on 2 of 3 visible keys: ln 2 / ln 3; on both of 2: 1; a single visible key does not count."""
    mask = torch.tensor([[1, 1, 1], [1, 0, 1], [0, 1, 0]]) > 0
    weights = torch.tensor([[[0.5, 0.5, 0], [0.5, 0, 0.5], [0, 1, 0]]]).double()
    assert solutions.head_entropy(weights, mask).item() == pytest.approx((math.log(2) / math.log(3) + 1) / 2)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_solution_of_the_role_score_is_that_of_this_repository(seed):
    weights = (3 * draw((11, 3, 7, 7), seed=seed)[0]).softmax(dim=-1)
    gold = (draw((11, 7, 7), seed=seed + 3)[0] > 0.5) & ~torch.eye(7).bool()
    accuracy, baseline = solutions.role_score(weights, gold)
    near(accuracy, accuracy_per_head(weights, gold))
    assert baseline.item() == pytest.approx(best_fixed_offset(gold)[1])


def test_solution_of_the_role_score_by_hand():
    """Two words look at their gold key, the third at itself then its gold key: 3 of 3; one to the right: 2 of 3."""
    weights = torch.tensor([[[[0.1, 0.8, 0.1], [0.2, 0.1, 0.7], [0.3, 0.1, 0.6]]]])
    gold = torch.tensor([[[0, 1, 0], [0, 0, 1], [1, 0, 0]]]) > 0
    accuracy, baseline = solutions.role_score(weights, gold)
    assert accuracy.tolist() == [1.0] and baseline.item() == pytest.approx(2 / 3)


@pytest.mark.parametrize(("layers", "heads"), [(1, 1), (3, 2), (5, 3)])
def test_solution_of_rollout_is_that_of_this_repository(layers, heads):
    weights = (3 * draw((layers, heads, 7, 7))[0]).softmax(dim=-1)
    rollout = solutions.attention_rollout(weights)
    near(rollout, attention_rollout(list(weights)))
    near(rollout.sum(dim=-1), torch.ones(7).double())


@torch.no_grad()
@pytest.mark.parametrize("removed", [0, 1, 2])
def test_solution_of_removal_is_a_closed_gate(removed):
    torch.manual_seed(0)
    module = MultiHeadAttention(21, 3).double()
    for w in (module.w_q, module.w_k, module.w_v):
        nn.init.zeros_(w.bias)
    nn.init.normal_(module.w_o.bias)
    x, gates = torch.randn(2, 5, 21).double(), torch.ones(1, 3).double()
    gates[0, removed] = 0
    with gated([module], gates):
        expected, _ = module(x)
    matrices = [w.weight.T for w in (module.w_q, module.w_k, module.w_v, module.w_o)]
    near(solutions.without_head(x, *matrices, module.w_o.bias, 3, removed), expected)
    assert (module(x)[0] - expected).abs().max() > 0.01
