"""Where does NaN in attention come from, and is -1e9 as good as -inf?

Softmax of a row of -inf is 0 / 0. Such rows arise without any mistake: with padding on the left and
a causal mask the first query sees itself alone, and it is padding. Counted in four number formats,
with plain softmax and with ours; beside it the three causes that are usually named, and what hidden
keys get if -1e9 stands for -inf.
"""

import math
from collections.abc import Callable

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
REFUSED = 1.0  # in place of a weight, where torch says that the number format cannot hold -1e9

Softmax = Callable[[Tensor, Tensor], Tensor]


def plain_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Softmax without care for rows that see nothing."""
    return torch.softmax(scores.masked_fill(~mask, -math.inf), dim=-1)


def gradients_lost(softmax: Softmax, dtype: torch.dtype) -> int:
    """How many of the gradients of query, key, value hold NaN, when one row sees nothing and is not
    in the loss.
    """
    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(3, 4, generator=generator).to(dtype).requires_grad_() for _ in range(3)
    )
    mask = causal_mask(3) & torch.tensor([False, True, True])  # the first query sees nothing
    weights = softmax(query @ key.T / 2, mask)
    (weights @ value)[1:].sum().backward()  # the loss reads the other rows only
    return sum(bool(tensor.grad.isnan().any()) for tensor in (query, key, value))


def blind_rows(softmax: Softmax, side: str, dtype: torch.dtype) -> int:
    """Rows with NaN among 10 under causal & padding, by the side of the padding."""
    right = padding_mask(LENGTHS, LENGTH)  # (2, 1, 1, T)
    mask = causal_mask(LENGTH) & (right if side == "right" else right.flip(-1))  # (2, 1, T, T)
    return int(softmax(torch.zeros(mask.shape, dtype=dtype), mask).isnan().any(dim=-1).sum())


def large_inputs(when: str, dtype: torch.dtype) -> int:
    """Rows with NaN among 3, from large queries and keys: scaled never, after the product, or
    before it.
    """
    query, key = torch.full((2, 3, D_K), LARGE, dtype=dtype)
    if when == "before":
        query = query / math.sqrt(D_K)
    scores = query @ key.T  # (3, D_K) @ (D_K, 3) -> (3, 3)
    weights = torch.softmax(scores / math.sqrt(D_K) if when == "after" else scores, dim=-1)
    return int(weights.isnan().any(dim=-1).sum())


def wrong_axis(dtype: torch.dtype) -> Tensor:
    """Softmax over the queries instead of the keys under a causal mask: the sums of the rows, which
    should be 1.
    """
    scores = torch.randn(LENGTH, LENGTH, generator=torch.Generator().manual_seed(0)).to(dtype)
    return torch.softmax(scores.masked_fill(~causal_mask(LENGTH), -math.inf), dim=-2).sum(dim=-1)


def hidden_weight(hidden: list[bool], dtype: torch.dtype) -> float:
    """Weight on the second of three keys if -1e9 fills the scores of those that are hidden."""
    try:
        return torch.softmax(
            torch.zeros(3, dtype=dtype).masked_fill(torch.tensor(hidden), -1e9), dim=0
        )[1].item()
    except RuntimeError:
        return REFUSED


def measure(run: Run) -> Numbers:
    """Gradients with NaN among those of q, k, v; rows with NaN; weight of a hidden key. A column
    for each format.
    """
    causes: dict[str, Callable[[torch.dtype], float]] = {
        "gradients with NaN, plain softmax": lambda dtype: gradients_lost(plain_softmax, dtype),
        "gradients with NaN, ours": lambda dtype: gradients_lost(masked_softmax, dtype),
        "rows, padding on the left": lambda dtype: blind_rows(plain_softmax, "left", dtype),
        "rows, padding on the left, ours": lambda dtype: blind_rows(masked_softmax, "left", dtype),
        "rows, padding on the right": lambda dtype: blind_rows(plain_softmax, "right", dtype),
        "rows, large inputs, not scaled": lambda dtype: large_inputs("never", dtype),
        "rows, large inputs, scores scaled": lambda dtype: large_inputs("after", dtype),
        "rows, large inputs, queries scaled": lambda dtype: large_inputs("before", dtype),
        "rows, wrong axis, causal mask": lambda dtype: int(wrong_axis(dtype).isnan().sum()),
        "-1e9, one key hidden": lambda dtype: hidden_weight([False, True, False], dtype),
        "-1e9, all hidden": lambda dtype: hidden_weight([True, True, True], dtype),
    }
    return {
        f"{cause}, {name}": count(dtype)
        for cause, count in causes.items()
        for name, dtype in DTYPES.items()
    }


main = Experiment(
    measure,
    answer="From queries that see no key: {n[rows, padding on the left, float32]:.0f} of 10 rows, padded on the left; "
    "{n[rows, padding on the left, ours, float32]:.0f} with ours",
)

if __name__ == "__main__":
    main.run()
