"""What a reader's file takes from the course: does it still do what it did?

Lessons say "change this, expect that". The solutions use none of the files that are changed there,
but an answer may: my_exercises.py of phase 2 begins with an import of scaled_dot_product_attention.
Where a change is left over in that file, a right answer gives the wrong numbers, and the checker
would look for the mistake in the answer. So what was imported is called first, beside PyTorch's own
function or a few numbers of which nobody can be in doubt.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from shared.exercise_checker.exercise import OURS, Function, draw

READERS = ".my_exercises"  # how the names of the reader's own modules end


def examples() -> dict[str, tuple[tuple[Any, ...], Tensor]]:
    """Returns for what a reader may import and a lesson says to change: inputs, and the result."""
    query, key, value, scores = draw((2, 5, 7), (2, 11, 7), (2, 11, 13), (5, 11))
    mask = torch.ones(5, 11, dtype=torch.bool).tril(3)
    shares = scores.exp() * mask
    x = torch.arange(2 * 5 * 6).view(2, 5, 6)
    heads = torch.stack([x[:, :, :2], x[:, :, 2:4], x[:, :, 4:]], dim=1)  # (2, 3, 5, 2)
    output = F.scaled_dot_product_attention(query, key, value, mask)
    past = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]])
    return {
        "masked_softmax": ((scores, mask), shares / shares.sum(dim=-1, keepdim=True)),
        "scaled_dot_product_attention": ((query, key, value, mask), output),
        "split_heads": ((x, 3), heads),
        "merge_heads": ((heads,), x),
        "causal_mask": ((3, 5), past),
    }


def gives(function: Function, inputs: tuple[Any, ...], expected: Tensor) -> bool:
    """Returns whether a function gives this, or a tuple that begins with it."""
    try:
        result = function(*inputs)
    except Exception:
        return False
    result = result[0] if isinstance(result, tuple) else result
    return result.shape == expected.shape and torch.allclose(result.double(), expected.double())


def refuse_what_was_changed(functions: Mapping[str, Any]) -> None:
    """Raise ValueError if the reader's file uses a function of the course that was changed."""
    for name, (inputs, expected) in examples().items():
        function = functions.get(name)
        module = getattr(function, "__module__", None) or ""
        of_the_course = module.startswith(OURS) and not module.endswith(READERS)
        if of_the_course and not gives(function, inputs, expected):
            file = module.replace(".", "/") + ".py"
            raise ValueError(
                f"{file} was changed: its {name} does not give what it should, and your file uses "
                "it, so right answers would come out wrong. "
                f"git restore {file} brings it back, and so does a new copy of it"
            )
