"""Masks cell by cell, statistics of patterns whose numbers are known, rollout by hand."""

import itertools
import math

import pytest
import torch

from shared.attention_utils import (
    attention_distance,
    attention_entropy,
    attention_rollout,
    causal_mask,
    effective_context,
    local_mask,
    normalized_entropy,
    padding_mask,
    strided_mask,
)
from shared.tests.helpers import B, H, near


def test_masks_are_the_predicates_they_are_said_to_be():
    for t_q, t_k in ((5, 5), (2, 7), (7, 3), (1, 11)):
        for i, j in itertools.product(range(t_q), range(t_k)):
            position = i + t_k - t_q  # the last query stands at the last key
            assert causal_mask(t_q, t_k)[i, j] == (j <= position)
            assert local_mask(t_q, t_k, 2)[i, j] == (abs(j - position) <= 2)
            assert strided_mask(t_q, t_k, 3)[i, j] == ((j - position) % 3 == 0)
    assert causal_mask(3).tolist() == [[True, False, False], [True, True, False], [True, True, True]]
    mask = padding_mask(torch.tensor([2, 0, 3]), 3)
    assert mask.shape == (3, 1, 1, 3)
    assert mask[:, 0, 0].int().tolist() == [[1, 1, 0], [0, 0, 0], [1, 1, 1]]


def test_a_mask_for_no_sequence_is_empty():
    assert padding_mask(torch.empty(0, dtype=torch.long), 3).shape == (0, 1, 1, 3)
    assert torch.equal(causal_mask(3.0), causal_mask(3))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: padding_mask(torch.tensor([4]), 3), r"between 0 and T_k=3: got \[4\]"),
        (lambda: padding_mask(torch.tensor([1.0]), 3), "integers"),
        (lambda: attention_rollout([]), "at least one layer"),
    ],
)
def test_mask_errors(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_statistics_on_patterns_whose_value_is_known():
    for n in (2, 5, 13):
        identity, uniform = torch.eye(n).double(), torch.full((n, n), 1 / n, dtype=torch.float64)
        mask = causal_mask(n)
        causal = mask.double() / mask.sum(dim=-1, keepdim=True)
        near(attention_entropy(identity), torch.zeros(n).double())
        near(attention_entropy(uniform), torch.full((n,), math.log(n), dtype=torch.float64))
        near(effective_context(causal), torch.arange(1, n + 1).double())
        near(normalized_entropy(uniform), torch.ones(n).double())
        near(normalized_entropy(causal, mask)[1:], torch.ones(n - 1).double())
        assert normalized_entropy(causal, mask)[0].isnan()
        near(attention_distance(identity), torch.zeros(n).double())
        near(attention_distance(uniform).mean().item(), (n * n - 1) / (3 * n))
        near(attention_distance(causal).mean().item(), (n - 1) / 4)
    previous = torch.eye(7).roll(-1, dims=-1)[1:]  # every row its left neighbour; T_q = 6 rows of T_k = 7
    near(attention_distance(previous), torch.ones(6))


def test_statistics_are_taken_per_head_before_any_mean():
    """Four heads, each sure of another key: entropy 0 each; averaged first they would seem to look everywhere."""
    heads = torch.eye(4)[:, None, :].expand(4, 4, 4)
    assert attention_entropy(heads).max() == 0
    near(attention_entropy(heads.mean(dim=0)), torch.full((4,), math.log(4)))


def test_rollout_by_hand():
    """Two layers of one head, 2 tokens: R = (A2 + I)/2 (A1 + I)/2."""
    first, second = torch.tensor([[[0.0, 1.0], [0.5, 0.5]]]), torch.tensor([[[1.0, 0.0], [1.0, 0.0]]])
    near(attention_rollout([first, second]), torch.tensor([[0.5, 0.5], [0.375, 0.625]]))
    layers = [torch.rand(B, H, 5, 5).softmax(dim=-1) for _ in range(4)]
    near(attention_rollout(layers).sum(dim=-1), torch.ones(B, 5))
