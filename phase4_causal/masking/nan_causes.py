"""Where NaN comes from, and where it does not: rows without a key, padding on the left, small number formats.

Softmax of a row of -inf is 0 / 0. Such rows arise without any mistake: with padding on the left and a causal mask the
first query sees itself alone, and it is padding. One such row spoils more than itself: its NaN reaches the gradient of
every value, even if the row is left out of the loss, because 0 * NaN is NaN. masked_softmax of phase 1 gives it zeros.

Each cause that is usually named is tried here in four number formats, with ours beside plain softmax:

    python phase4_causal/masking/nan_causes.py
"""

import argparse
import math

import torch
from torch import Tensor

from phase1_single_head.self_attention import masked_softmax, scaled_dot_product_attention
from shared import cli
from shared.attention_utils import causal_mask, padding_mask
from shared.evidence import findings
from shared.evidence.findings import Finding

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
LENGTHS, LENGTH = torch.tensor([5, 3]), 5  # two sequences, the second with two words of padding
D_K, LARGE = 64, 40.0  # q . k = 64 * 40 * 40 = 102,400; float16 ends at 65,504


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def plain_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Softmax without care for rows that see nothing."""
    return torch.softmax(scores.masked_fill(~mask, -math.inf), dim=-1)


def batch_masks() -> dict[str, Tensor]:
    """Causal and padding masks of the two sequences, padded on the right or on the left -> name -> (2, 1, T, T)."""
    right = padding_mask(LENGTHS, LENGTH)  # (2, 1, 1, T)
    return {"right": causal_mask(LENGTH) & right, "left": causal_mask(LENGTH) & right.flip(-1)}


def nan_rows(mask: Tensor, dtype: torch.dtype) -> tuple[int, int]:
    """Rows with NaN under a mask (..., T, T): (plain softmax, ours)."""
    scores = torch.zeros(mask.shape, dtype=dtype)
    return tuple(int(f(scores, mask).isnan().any(dim=-1).sum()) for f in (plain_softmax, masked_softmax))


def gradients_lost(dtype: torch.dtype, ours: bool) -> int:
    """How many of the gradients of query, key and value hold NaN, when one row sees nothing and is not in the loss."""
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(3, 4, generator=generator).to(dtype).requires_grad_() for _ in range(3))
    mask = causal_mask(3) & torch.tensor([False, True, True])  # the first query sees nothing
    weights = (masked_softmax if ours else plain_softmax)(query @ key.T / 2, mask)
    (weights @ value)[1:].sum().backward()  # the loss reads the other rows only
    return sum(bool(tensor.grad.isnan().any()) for tensor in (query, key, value))


def large_inputs(dtype: torch.dtype) -> dict[str, int]:
    """NaN (1 = yes) from large queries and keys: without scaling, scaled after, scaled before (ours)."""
    query, key = torch.full((2, 3, D_K), LARGE, dtype=dtype)
    scores = query @ key.T  # (3, D_K) @ (D_K, 3) -> (3, 3)
    _, weights = scaled_dot_product_attention(query, key, key)
    tried = {
        "not scaled": scores.softmax(dim=-1),
        "scaled after": (scores / math.sqrt(D_K)).softmax(dim=-1),
        "before": weights,
    }
    return {name: int(tensor.isnan().any()) for name, tensor in tried.items()}


def wrong_axis() -> dict[str, float]:
    """Softmax over the queries instead of the keys: NaN (1 = yes) and the row sums, under two masks."""
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


Rows = dict[str, dict[str, int]]  # side or case -> dtype -> count


def show(plain: Rows, ours: Rows, lost: Rows, large: Rows) -> None:
    print("\nRows of NaN among 10, causal & padding, plain softmax (ours)")
    for side in plain:
        print(
            f"   padded on the {side:6}" + "".join(f"{d:>12} {plain[side][d]} ({ours[side][d]})" for d in plain[side])
        )
    print("\nGradients with NaN among q, k, v, when the row that sees nothing is not in the loss")
    for name, counts in lost.items():
        print(f"   {name:14}" + "".join(f"{d:>12} {count}" for d, count in counts.items()))
    print(f"\nNaN with d_k = {D_K} and inputs of {LARGE:g} (1 = yes)")
    for name, counts in large.items():
        print(f"   {name:14}" + "".join(f"{d:>12} {count}" for d, count in counts.items()))


def record_findings(plain: Rows, ours: Rows, lost: Rows, large: Rows, options: argparse.Namespace) -> None:
    effects, axis = padding_effects(), wrong_axis()
    leaked, output = effects["weight on padding, 1 or 0 added"], effects["output at padding"]
    most = {side: max(counts.values()) for side, counts in plain.items()}
    ours_most = max(max(counts.values()) for counts in ours.values())
    cured = {d: large["not scaled"][d] - large["before"][d] for d in large["before"]}
    flat = {f"{name}, {d}": count for name, counts in large.items() for d, count in counts.items()}
    sides = {f"{side}, plain, {d}": count for side, counts in plain.items() for d, count in counts.items()}

    def entry(id: str, claim: str, measured: dict[str, float], unit: str, rule: str, ruling: dict[str, str]) -> Finding:
        return Finding(id, claim, "course notes", measured, unit, rule, **ruling)

    findings.record(
        "phase4_causal/masking/nan_causes.py",
        [
            entry(
                "C112",
                "A padding mask has a 0 where the key is padding",
                {
                    "weight on padding, added to scores": leaked,
                    "change of real words, bool": effects["change of real words"],
                },
                "weight per row; change when other padding is put in, float64",
                "padding gets no weight, also where masks are added to scores",
                findings.conditional(
                    leaked < 1e-6,
                    effects["change of real words"] == 0,
                    "0 stands for False, or is filled with -inf; in an additive mask 0 means visible",
                ),
            ),
            entry(
                "C113",
                "A padding mask makes the model ignore padding",
                {k: effects[k] for k in ("change of real words", "output at padding")},
                "largest change when other padding is put in; smallest length of an output vector at padding",
                "real words change by exactly 0, and padding puts out 0",
                findings.conditional(
                    effects["change of real words"] == 0 and output == 0,
                    effects["change of real words"] == 0,
                    "the rows of padded queries are left out of loss and pooling: only keys are hidden",
                ),
            ),
            entry(
                "C114",
                "A batch for a causal model needs the causal mask and the padding mask together",
                sides | {"ours, most of any": ours_most},
                "rows with NaN among 10",
                "no NaN on either side, in any dtype, with plain softmax",
                findings.conditional(
                    max(most.values()) == 0,
                    most["right"] == 0 and ours_most == 0,
                    "padding stands on the right, or rows that see nothing are set to 0 as here",
                ),
            ),
            entry(
                "C120",
                "NaN in attention: check that the scores are scaled",
                flat,
                f"NaN with d_k = {D_K} and inputs of {LARGE:g} (1 = yes)",
                "scaling removes NaN in every dtype",
                findings.conditional(
                    all(cured.values()),
                    any(cured.values()),
                    "float16, where q . k exceeds 65,504, and q is scaled before the product, not the scores after",
                ),
            ),
            entry(
                "C121",
                "NaN in attention: check the axis of softmax",
                axis,
                "NaN (1 = yes); sums of rows, which should be 1",
                "softmax over the wrong axis gives NaN under a causal mask and under a padding mask",
                findings.conditional(
                    bool(axis["causal: NaN"] and axis["padding: NaN"]),
                    bool(axis["padding: NaN"]),
                    "a key is hidden from all queries; under a causal mask the symptom is rows that do not sum to 1",
                ),
            ),
            entry(
                "C122",
                "NaN in attention: use float32 instead of float16",
                large["not scaled"],
                "NaN without scaling (1 = yes)",
                "NaN in float16, none in float32",
                {"verdict": findings.verdict(large["not scaled"]["float16"] > large["not scaled"]["float32"])},
            ),
            entry(
                "C123",
                "A query that sees no key makes NaN, and the NaN reaches the gradients of other rows",
                {f"{name}, {d}": count for name, counts in lost.items() for d, count in counts.items()},
                "gradients with NaN among those of q, k, v; the row itself is not in the loss",
                "at least one in every dtype with plain softmax, none with rows set to 0",
                {
                    "verdict": findings.verdict(
                        min(lost["plain softmax"].values()) >= 1 and max(lost["ours"].values()) == 0
                    )
                },
            ),
        ],
        options.output_dir,
    )


def main(argv: list[str] | None = None) -> None:
    options = cli.parse(cli.parser(__doc__), argv)
    names = {name_of(dtype): dtype for dtype in DTYPES}
    rows = {
        side: {name: nan_rows(mask, dtype) for name, dtype in names.items()} for side, mask in batch_masks().items()
    }
    plain = {side: {name: both[0] for name, both in counts.items()} for side, counts in rows.items()}
    ours = {side: {name: both[1] for name, both in counts.items()} for side, counts in rows.items()}
    lost = {
        how: {name: gradients_lost(dtype, how == "ours") for name, dtype in names.items()}
        for how in ("plain softmax", "ours")
    }
    tried = {name: large_inputs(dtype) for name, dtype in names.items()}
    large = {how: {name: tried[name][how] for name in names} for how in ("not scaled", "scaled after", "before")}
    show(plain, ours, lost, large)
    record_findings(plain, ours, lost, large, options)


if __name__ == "__main__":
    cli.run(main)
