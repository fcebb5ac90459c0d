"""Where does NaN in attention come from, and is -1e9 as good as -inf?

Softmax of a row of -inf is 0 / 0. Such rows arise without any mistake: with padding on the left and
a causal mask the first query sees itself alone, and it is padding. We count them in four number
formats, with plain softmax and with ours. Beside them stand the three causes that are usually
named, and what hidden keys get if -1e9 stands for -inf.

    python phase4_causal/masking/nan_causes.py
"""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from phase1_single_head.self_attention import masked_softmax
from shared.attention_utils import causal_mask, padding_mask
from shared.evidence.claims import Numbers
from shared.experiment import Experiment, Run

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
LENGTHS, LENGTH = torch.tensor([5, 3]), 5  # two sequences, the second with two words of padding
D_K, LARGE = 64, 40.0  # q . k = 64 * 40 * 40 = 102,400; float16 ends at 65,504
REFUSED = 1.0  # instead of a weight, where torch says that the number format cannot hold -1e9

Softmax = Callable[[Tensor, Tensor], Tensor]  # of scores, under a mask


def plain_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Returns the weights of a softmax that takes no care of rows that see nothing."""
    return torch.softmax(scores.masked_fill(~mask, -math.inf), dim=-1)


def rows_with_nan(weights: Tensor) -> int:
    return int(weights.isnan().any(dim=-1).sum())


def gradients_lost(softmax: Softmax, dtype: torch.dtype) -> int:
    """Returns how many of the gradients of query, key and value hold NaN.

    One row sees nothing, and it is not in the loss.
    """
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(3, 3, 4, generator=generator).to(dtype).requires_grad_()
    query, key, value = inputs
    mask = causal_mask(3) & torch.tensor([False, True, True])  # the first query sees nothing
    output = softmax(query @ key.T / 2, mask) @ value
    output[1:].sum().backward()
    return rows_with_nan(inputs.grad.flatten(1))


def blind_rows(softmax: Softmax, side: str, dtype: torch.dtype) -> int:
    """Returns rows with NaN among 10 under causal & padding, by the side of the padding."""
    padding = padding_mask(LENGTHS, LENGTH)  # (2, 1, 1, T)
    if side == "left":
        padding = padding.flip(-1)
    mask = causal_mask(LENGTH) & padding  # (2, 1, T, T)
    return rows_with_nan(softmax(torch.zeros(mask.shape, dtype=dtype), mask))


def large_inputs(scaled: str, dtype: torch.dtype) -> int:
    """Returns rows with NaN among 3, from large inputs; scaled: "nothing", "query", "scores"."""
    query, key = torch.full((2, 3, D_K), LARGE, dtype=dtype)
    if scaled == "query":
        query = query / math.sqrt(D_K)
    scores = query @ key.T  # (3, D_K) @ (D_K, 3) -> (3, 3)
    if scaled == "scores":
        scores = scores / math.sqrt(D_K)
    return rows_with_nan(torch.softmax(scores, dim=-1))


def wrong_axis(dtype: torch.dtype) -> Tensor:
    """Returns weights (T, T) under a causal mask, if softmax takes the wrong axis."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(LENGTH, LENGTH, generator=generator).to(dtype)
    return torch.softmax(scores.masked_fill(~causal_mask(LENGTH), -math.inf), dim=-2)


def hidden_weight(hidden: list[bool], dtype: torch.dtype) -> float:
    """Returns the weight on the second of three keys if -1e9 fills the scores of hidden ones."""
    scores = torch.zeros(3, dtype=dtype)
    try:
        scores = scores.masked_fill(torch.tensor(hidden), -1e9)
    except RuntimeError:
        return REFUSED
    return torch.softmax(scores, dim=0)[1].item()


def measure(run: Run) -> Numbers:
    """Returns gradients and rows with NaN, and the weight of a hidden key, by number format."""
    causes: dict[str, Callable[[torch.dtype], float]] = {
        "gradients with NaN, plain softmax": partial(gradients_lost, plain_softmax),
        "gradients with NaN, ours": partial(gradients_lost, masked_softmax),
        "rows, padding on the left": partial(blind_rows, plain_softmax, "left"),
        "rows, padding on the left, ours": partial(blind_rows, masked_softmax, "left"),
        "rows, padding on the right": partial(blind_rows, plain_softmax, "right"),
        "rows, large inputs, not scaled": partial(large_inputs, "nothing"),
        "rows, large inputs, scores scaled": partial(large_inputs, "scores"),
        "rows, large inputs, queries scaled": partial(large_inputs, "query"),
        "rows, wrong axis, causal mask": lambda dtype: rows_with_nan(wrong_axis(dtype)),
        "-1e9, one key hidden": partial(hidden_weight, [False, True, False]),
        "-1e9, all hidden": partial(hidden_weight, [True, True, True]),
    }
    numbers = {}
    for cause, count in causes.items():
        for name, dtype in DTYPES.items():
            numbers[f"{cause}, {name}"] = count(dtype)
    return numbers


main = Experiment(
    measure,
    answer="It comes from queries that see no key: {n[rows, padding on the left, float32]:.0f} of "
    "10 rows if padding stands on the left, and {n[rows, padding on the left, ours, float32]:.0f} "
    "with our softmax. And -1e9 is not as good as -inf: a query that sees no key then gives "
    "{n[-1e9, all hidden, float32]:.2f} of its weight to a hidden one",
)

if __name__ == "__main__":
    main.run()
