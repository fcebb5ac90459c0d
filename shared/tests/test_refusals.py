"""What is refused, and in which words: one line says the rule, what was received, and the way out.

A row is a call, and a part of what its ValueError says. A new refusal is a new row.
"""

import re

import pytest
import torch

from shared.attention_utils import padding_mask

SHARED = [
    (lambda: padding_mask(torch.tensor([True]), 3), "got torch.bool"),
]
PHASE_1 = []
PHASE_2 = []
PHASE_3 = []
PHASE_4 = []


@pytest.mark.parametrize(("call", "part"), [*SHARED, *PHASE_1, *PHASE_2, *PHASE_3, *PHASE_4])
def test_what_is_wrong_is_refused_in_one_line(call, part):
    with pytest.raises(ValueError, match=re.escape(part)) as refused:
        call()
    assert "\n" not in str(refused.value)
