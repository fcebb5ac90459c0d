"""What is refused, and in which words: one line says the rule, what was received, and the way out.

A row is a call, and a part of what its ValueError says. A new refusal is a new row.
"""

import re

import pytest
import torch

from phase3_visualization.pretrained.attention_maps import draw_heads
from shared.attention_utils import padding_mask
from shared.head_statistics import head_statistics

WEIGHTS = torch.full((2, 3, 5, 5), 1 / 5)  # (L or N, H, T, T)

SHARED = [
    (lambda: padding_mask(torch.tensor([True]), 3), "got torch.bool"),
    (lambda: head_statistics(WEIGHTS, torch.ones(2, 1, 5, 5)), "a bool mask (N, 1, T, T)"),
    (lambda: head_statistics(WEIGHTS[0], torch.ones(1, 1, 5, 5).bool()), "unsqueeze(0)"),
]
PHASE_1 = []
PHASE_2 = []
PHASE_3 = [
    (lambda: draw_heads(WEIGHTS * 2, [*"abcde"]), "a row sums to 1 at most"),
    (lambda: draw_heads(WEIGHTS * torch.nan, [*"abcde"]), "weights after softmax"),
    (lambda: draw_heads(WEIGHTS[0, 0], [*"abcde"]), "got (5, 5)"),
    (lambda: draw_heads(WEIGHTS, [*"abcd"]), "with T=4 for these tokens: got (2, 3, 5, 5)"),
    (lambda: draw_heads([WEIGHTS[0], WEIGHTS[0, :2]], [*"abcde"]), "one shape (H, T, T)"),
]
PHASE_4 = []


@pytest.mark.parametrize(("call", "part"), [*SHARED, *PHASE_1, *PHASE_2, *PHASE_3, *PHASE_4])
def test_what_is_wrong_is_refused_in_one_line(call, part):
    with pytest.raises(ValueError, match=re.escape(part)) as refused:
        call()
    assert "\n" not in str(refused.value)
