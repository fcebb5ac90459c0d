"""Where does NaN in attention come from, and where not?

Softmax of a row of -inf is 0 / 0. Such rows arise without any mistake: with padding on the left and a causal mask the
first query sees itself alone, and it is padding. One such row spoils more than itself: its NaN reaches the gradient of
every value, even if the row is left out of the loss, because 0 * NaN is NaN. masked_softmax of phase 1 gives it zeros.

Each cause that is usually named is tried here in four number formats, with ours beside plain softmax:

    python phase4_causal/masking/nan_causes.py
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from phase1_single_head.self_attention import masked_softmax, scaled_dot_product_attention
from phase4_causal.causal_attention import DTYPES, name_of
from shared import cli
from shared.attention_utils import causal_mask, padding_mask
from shared.evidence import findings
from shared.evidence.claims import IDENTITY, PROBE, Claim, measures

LENGTHS, LENGTH = torch.tensor([5, 3]), 5  # two sequences, the second with two words of padding
FORMATS = ", ".join(map(name_of, DTYPES))
D_K, LARGE = 64, 40.0  # q . k = 64 * 40 * 40 = 102,400; float16 ends at 65,504


def plain_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Softmax without care for rows that see nothing."""
    return torch.softmax(scores.masked_fill(~mask, -math.inf), dim=-1)


Softmax = Callable[[Tensor, Tensor], Tensor]
SOFTMAX: dict[str, Softmax] = {"plain": plain_softmax, "ours": masked_softmax}


def most(n: dict, words: str) -> int:
    return max(max(counts) for name, counts in n.items() if words in name)


def batch_masks() -> dict[str, Tensor]:
    """Causal and padding masks of the two sequences, padded on the right or on the left -> name -> (2, 1, T, T)."""
    right = padding_mask(LENGTHS, LENGTH)  # (2, 1, 1, T)
    return {"right": causal_mask(LENGTH) & right, "left": causal_mask(LENGTH) & right.flip(-1)}


@measures(
    Claim(
        id="C112",
        text="A padding mask has a 0 where the key is padding",
        kind=IDENTITY,
        rule="padding gets no weight, also where masks are added to scores",
        holds=lambda n: n["weight on padding, 1 or 0 added"] < 1e-6,
        only_if=lambda n: n["change of real words"] == 0,
        condition="0 stands for False, or is filled with -inf; in an additive mask 0 means visible",
        unit="weight per row; largest change when other padding is put in, float64",
        shows=("weight on padding*", "change*"),
    ),
    Claim(
        id="C113",
        text="A padding mask makes the model ignore padding",
        kind=IDENTITY,
        rule="real words change by exactly 0, and padding puts out 0",
        holds=lambda n: n["change of real words"] == 0 and n["output at padding"] == 0,
        only_if=lambda n: n["change of real words"] == 0,
        condition="the rows of padded queries are left out of loss and pooling: only keys are hidden",
        unit="largest change when other padding is put in; smallest length of an output vector at padding",
        shows=("change*", "output*"),
    ),
)
def padding_effects() -> dict[str, float]:
    """What padding does to real words, and what comes out at padding; ours, float64, 3 words and 2 of padding."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, LENGTH, 8, dtype=torch.float64, generator=generator)
    other = x.clone()
    other[:, 3:] += 1.0  # other padding
    mask = padding_mask(LENGTHS[1:], LENGTH)[:, 0]  # (1, 1, 1, T) -> (1, 1, T)
    before, after = (scaled_dot_product_attention(y, y, y, mask)[0] for y in (x, other))
    added = torch.softmax(x @ x.mT / math.sqrt(8) + mask.double(), dim=-1)  # the same mask as 1 and 0, added
    return {
        "change of real words": (before - after)[:, :3].abs().max().item(),
        "output at padding": before[:, 3:].norm(dim=-1).min().item(),
        "weight on padding, 1 or 0 added": added[..., 3:].sum(dim=-1).mean().item(),
    }


@measures(
    Claim(
        id="C114",
        text="A batch for a causal model needs the causal mask and the padding mask together",
        kind=IDENTITY,
        rule="no NaN on either side, in any dtype, with plain softmax",
        holds=lambda n: most(n, "plain") == 0,
        only_if=lambda n: max(n["right, plain"]) == most(n, "ours") == 0,
        condition="padding stands on the right, or rows that see nothing are set to 0 as here",
        unit=f"rows with NaN among 10, in {FORMATS}",
    )
)
def blind_rows() -> dict[str, list[int]]:
    """Rows with NaN under causal & padding, by the side of the padding; plain softmax, and ours."""

    def count(softmax: Softmax, mask: Tensor, dtype: torch.dtype) -> int:
        return int(softmax(torch.zeros(mask.shape, dtype=dtype), mask).isnan().any(dim=-1).sum())

    return {
        f"{side}, {how}": [count(softmax, mask, dtype) for dtype in DTYPES]
        for side, mask in batch_masks().items()
        for how, softmax in SOFTMAX.items()
    }


def cured(n: dict) -> list[bool]:
    """By dtype: NaN without scaling, and none with it."""
    return [without > scaled for without, scaled in zip(n["not scaled"], n["scaled before"], strict=True)]


@measures(
    Claim(
        id="C120",
        text="NaN in attention: check that the scores are scaled",
        kind=PROBE,
        rule="scaling removes NaN in every dtype",
        holds=lambda n: all(cured(n)),
        only_if=lambda n: any(cured(n)),
        condition="float16, where q . k exceeds 65,504, and q is scaled before the product, not the scores after",
        unit=f"NaN with d_k = {D_K} and inputs of {LARGE:g} (1 = yes), in {FORMATS}",
    ),
    Claim(
        id="C122",
        text="NaN in attention: use float32 instead of float16",
        kind=PROBE,
        rule="NaN in float16, none in float32",
        holds=lambda n: n["not scaled"][DTYPES.index(torch.float16)] > n["not scaled"][DTYPES.index(torch.float32)],
        unit=f"NaN without scaling, d_k = {D_K} and inputs of {LARGE:g} (1 = yes), in {FORMATS}",
        shows=("not scaled*",),
    ),
)
def large_inputs() -> dict[str, list[int]]:
    """NaN from large queries and keys: without scaling, with the scores scaled after, with the query before (ours)."""
    found: dict[str, list[int]] = {"not scaled": [], "scaled after": [], "scaled before": []}
    for dtype in DTYPES:
        query, key = torch.full((2, 3, D_K), LARGE, dtype=dtype)
        scores = query @ key.T  # (3, D_K) @ (D_K, 3) -> (3, 3)
        tried = (scores, scores / math.sqrt(D_K))
        weights = (*(each.softmax(dim=-1) for each in tried), scaled_dot_product_attention(query, key, key)[1])
        for counts, each in zip(found.values(), weights, strict=True):
            counts.append(int(each.isnan().any()))
    return found


@measures(
    Claim(
        id="C121",
        text="NaN in attention: check the axis of softmax",
        kind=IDENTITY,
        rule="softmax over the wrong axis gives NaN under a causal mask and under a padding mask",
        holds=lambda n: n["causal: NaN"] == n["padding: NaN"] == 1,
        only_if=lambda n: n["padding: NaN"] == 1,
        condition="a key is hidden from all queries; under a causal mask the symptom is rows that do not sum to 1",
        unit="NaN (1 = yes); sums of rows, which should be 1",
    )
)
def wrong_axis() -> dict[str, float]:
    """Softmax over the queries instead of the keys: NaN and the row sums, under two masks."""
    scores = torch.randn(LENGTH, LENGTH, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    causal = torch.softmax(scores.masked_fill(~causal_mask(LENGTH), -math.inf), dim=-2)
    key_hidden = padding_mask(LENGTHS, LENGTH)[1, 0].expand(LENGTH, LENGTH)  # hidden from every query
    padded = torch.softmax(scores.masked_fill(~key_hidden, -math.inf), dim=-2)
    sums = causal.sum(dim=-1)
    return {
        "causal: NaN": int(causal.isnan().any()),
        "causal: smallest row sum": sums.min().item(),
        "causal: largest row sum": sums.max().item(),
        "padding: NaN": int(padded.isnan().any()),
    }


@measures(
    Claim(
        id="C123",
        text="A query that sees no key makes NaN, and the NaN reaches the gradients of other rows",
        kind=IDENTITY,
        rule="at least one in every dtype with plain softmax, none with rows set to 0",
        holds=lambda n: min(n["plain"]) >= 1 and most(n, "ours") == 0,
        unit=f"gradients with NaN among those of q, k, v, in {FORMATS}; the row itself is not in the loss",
    )
)
def gradients_lost() -> dict[str, list[int]]:
    """How many of the gradients of query, key and value hold NaN, when one row sees nothing and is not in the loss."""

    def count(softmax: Softmax, dtype: torch.dtype) -> int:
        generator = torch.Generator().manual_seed(0)
        query, key, value = (torch.randn(3, 4, generator=generator).to(dtype).requires_grad_() for _ in range(3))
        mask = causal_mask(3) & torch.tensor([False, True, True])  # the first query sees nothing
        weights = softmax(query @ key.T / 2, mask)
        (weights @ value)[1:].sum().backward()  # the loss reads the other rows only
        return sum(bool(tensor.grad.isnan().any()) for tensor in (query, key, value))

    return {how: [count(softmax, dtype) for dtype in DTYPES] for how, softmax in SOFTMAX.items()}


def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    rows = blind_rows()
    findings.record(options, padding_effects(), rows, large_inputs(), wrong_axis(), gradients_lost())
    blind, ours = most(rows, "left, plain"), most(rows, "ours")
    return f"From queries that see no key: {blind} of 10 rows, padded on the left; {ours} with ours"


if __name__ == "__main__":
    cli.run(main)
