"""Where does NaN in attention come from, and where not?

Softmax of a row of -inf is 0 / 0. Such rows arise without any mistake: with padding on the left and a causal mask the
first query sees itself alone, and it is padding. One such row spoils more than itself: its NaN reaches the gradient of
every value, even if the row is left out of the loss, because 0 * NaN is NaN. masked_softmax of phase 1 gives it zeros.

This cause is usually left out. It is tried in four number formats beside the three that are named: scores without a
scale, softmax over the wrong axis, too few bits. Each with plain softmax, and the first with ours:

    python phase4_causal/masking/nan_causes.py
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from phase1_single_head.self_attention import masked_softmax
from shared import cli
from shared.attention_utils import causal_mask, padding_mask
from shared.evidence import findings
from shared.evidence.claims import PROBE, Claim, measures

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


LENGTHS, LENGTH = torch.tensor([5, 3]), 5  # two sequences, the second with two words of padding
FORMATS = ", ".join(map(name_of, DTYPES))
D_K, LARGE = 64, 40.0  # q . k = 64 * 40 * 40 = 102,400; float16 ends at 65,504


def plain_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Softmax without care for rows that see nothing."""
    return torch.softmax(scores.masked_fill(~mask, -math.inf), dim=-1)


Softmax = Callable[[Tensor, Tensor], Tensor]


def blind_rows(softmax: Softmax, side: str, dtype: torch.dtype) -> int:
    """Rows with NaN among 10 under causal & padding, by the side of the padding."""
    right = padding_mask(LENGTHS, LENGTH)  # (2, 1, 1, T)
    mask = causal_mask(LENGTH) & (right if side == "right" else right.flip(-1))  # (2, 1, T, T)
    return int(softmax(torch.zeros(mask.shape, dtype=dtype), mask).isnan().any(dim=-1).sum())


def gradients_lost(softmax: Softmax, dtype: torch.dtype) -> int:
    """How many of the gradients of query, key, value hold NaN, when one row sees nothing and is not in the loss."""
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(3, 4, generator=generator).to(dtype).requires_grad_() for _ in range(3))
    mask = causal_mask(3) & torch.tensor([False, True, True])  # the first query sees nothing
    weights = softmax(query @ key.T / 2, mask)
    (weights @ value)[1:].sum().backward()  # the loss reads the other rows only
    return sum(bool(tensor.grad.isnan().any()) for tensor in (query, key, value))


def large_inputs(when: str, dtype: torch.dtype) -> int:
    """Rows with NaN among 3, from large queries and keys: scaled never, after the product, or before it."""
    query, key = torch.full((2, 3, D_K), LARGE, dtype=dtype)
    if when == "before":
        query = query / math.sqrt(D_K)
    scores = query @ key.T  # (3, D_K) @ (D_K, 3) -> (3, 3)
    weights = torch.softmax(scores / math.sqrt(D_K) if when == "after" else scores, dim=-1)
    return int(weights.isnan().any(dim=-1).sum())


def wrong_axis(dtype: torch.dtype) -> Tensor:
    """Softmax over the queries instead of the keys under a causal mask: the sums of the rows, which should be 1."""
    scores = torch.randn(LENGTH, LENGTH, generator=torch.Generator().manual_seed(0)).to(dtype)
    return torch.softmax(scores.masked_fill(~causal_mask(LENGTH), -math.inf), dim=-2).sum(dim=-1)


LOST, KEPT = "gradients with NaN, plain softmax", "gradients with NaN, ours"


@measures(
    Claim(
        id="C123",
        text="A query that sees no key makes NaN, and the NaN reaches gradients that other rows need",
        kind=PROBE,
        source="course notes, troubleshooting (they name scale, axis and float16, and leave it out)",
        rule="at least one gradient in every dtype with plain softmax, none with rows set to 0",
        holds=lambda n: min(n[LOST]) >= 1 and max(n[KEPT]) == 0,
        oracle={LOST: [1] * 4, KEPT: [0] * 4},
        null={LOST: [0] * 4, KEPT: [0] * 4},
        unit=f"gradients with NaN among those of q, k, v, the row itself not in the loss; rows; each in {FORMATS}",
        control="the three causes that are usually named: two need float16, the third gives no NaN",
        headline=True,
    )
)
def nan_causes() -> dict[str, list[int]]:
    """Cause -> how often it makes NaN in each of DTYPES; the query that sees no key first, then the usual three."""
    causes: dict[str, Callable[[torch.dtype], int]] = {
        LOST: lambda dtype: gradients_lost(plain_softmax, dtype),
        KEPT: lambda dtype: gradients_lost(masked_softmax, dtype),
        "rows, padding on the left": lambda dtype: blind_rows(plain_softmax, "left", dtype),
        "rows, padding on the left, ours": lambda dtype: blind_rows(masked_softmax, "left", dtype),
        "rows, padding on the right": lambda dtype: blind_rows(plain_softmax, "right", dtype),
        "rows, large inputs, not scaled": lambda dtype: large_inputs("never", dtype),
        "rows, large inputs, scores scaled": lambda dtype: large_inputs("after", dtype),
        "rows, large inputs, queries scaled": lambda dtype: large_inputs("before", dtype),
        "rows, wrong axis, causal mask": lambda dtype: int(wrong_axis(dtype).isnan().sum()),
    }
    return {name: [count(dtype) for dtype in DTYPES] for name, count in causes.items()}


@measures(
    Claim(
        id="C005",
        text="In practice -1e9 is close enough to -inf",
        kind=PROBE,
        source="course notes, the causal mask",
        rule="0 in every dtype, also when every key is hidden",
        holds=lambda n: max(n.values()) == 0,
        only_if=lambda n: max(weight for name, weight in n.items() if "one key" in name) == 0,
        condition="the dtype can hold it (not float16) and no row hides all keys: it would see all",
        unit="weight of a hidden key (refused: 1 = yes)",
        control="-inf with rows that see nothing set to 0: exactly 0 in every dtype",
    )
)
def weight_under(fill: float) -> dict[str, float]:
    """Filling hidden scores with `fill`: weight on a hidden key, and on hidden keys when all are hidden, by dtype."""
    found = {}
    for dtype in DTYPES:
        name = name_of(dtype)
        try:
            some = torch.zeros(3, dtype=dtype).masked_fill(torch.tensor([False, True, False]), fill)
            every = torch.zeros(3, dtype=dtype).masked_fill(torch.tensor([True, True, True]), fill)
        except RuntimeError:
            found[f"{name}: refused by torch"] = 1
            continue
        found[f"{name}: one key hidden"] = torch.softmax(some, dim=0)[1].item()
        found[f"{name}: all hidden"] = torch.softmax(every, dim=0)[1].item()
    return found


@cli.script
def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    found, sums = nan_causes(), wrong_axis(torch.float64)
    print(f"\n   {'NaN in':38}" + "".join(f"{name_of(dtype):>10}" for dtype in DTYPES))
    for name, counts in found.items():
        print(f"   {name:38}" + "".join(f"{count:10}" for count in counts))
    print(f"   the wrong axis shows in sums of rows, which should be 1: {sums.min():.2f} to {sums.max():.2f}")
    findings.record(options, found, weight_under(-1e9), show_numbers=False)
    blind, ours = max(found["rows, padding on the left"]), max(found["rows, padding on the left, ours"])
    return f"From queries that see no key: {blind} of 10 rows, padded on the left; {ours} with ours"


if __name__ == "__main__":
    cli.run(main)
