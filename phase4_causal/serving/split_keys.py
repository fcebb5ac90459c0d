"""A new word has one query: what is there to divide among many processors?

Its keys. Each processor attends to a part of them by itself and keeps three things: the largest score, the total of e
to the scores, and the weighted sum of values. What is kept is merged as the tiles of flash_attention.py are, in any
order, whatever the lengths of the parts. This is flash-decoding (Dao et al. 2023).

It belongs where there is too little else to divide. A prompt has thousands of queries, and a large batch many users:
then every processor has work, and little is gained by parts. One user with a long text has only a few heads.

    python phase4_causal/serving/split_keys.py

Writes split_keys.png to visualizations/plots/phase4/.
"""

import functools
import math
import operator
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor

from phase1_single_head.self_attention import scaled_dot_product_attention
from phase4_causal.long_texts.flash_attention import Kept, merge
from shared import cli
from shared.attention_checks import at_least_float32, check_attention_inputs
from shared.visualization_utils import BLUE, GREY, headline, label_ends, save_plot

WIDTH, LENGTH = 64, 4096  # of a key; keys of the comparison
PROCESSORS, HEADS, TEXT = 108, 8, 65_536  # of an A100; key-value heads of Llama 3 8B, and a long text
USERS = 32  # at most


def attend_to_part(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Kept:
    """What is kept of one part of the keys: largest score and total (..., T_q, 1), weighted sum (..., T_q, d_v)."""
    scores = (query @ key.mT / math.sqrt(key.size(-1))).masked_fill(~mask, -math.inf)  # (..., T_q, keys of the part)
    least = scores.new_full((*scores.shape[:-1], 1), torch.finfo(scores.dtype).min)  # where no key is seen; not -inf
    largest = torch.cat([least, scores], dim=-1).amax(dim=-1, keepdim=True)  # (..., T_q, 1 + keys) -> (..., T_q, 1)
    numerators = torch.exp(scores - largest)
    return largest, numerators.sum(dim=-1, keepdim=True), numerators @ value


def split_keys(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: Sequence[int],
    mask: Tensor | None = None,
    run: Callable = map,
) -> Tensor:
    """Scaled dot-product attention over the keys in parts.

    query (..., T_q, d_k), key (..., T_k, d_k), value (..., T_k, d_v) -> output (..., T_q, d_v). lengths: of the parts,
    0 or more each. mask: bool, True = may attend; a query that sees no key gets 0. run: computes the parts, by default
    one after the other; the map of a pool shares them out. Inputs of 16 bits are summed in float32. Raises ValueError
    for sizes that do not fit. Dao et al. 2023, Flash-Decoding for long-context inference.
    """
    check_attention_inputs(query, key, value, mask)
    lengths = list(map(operator.index, lengths)) or [0]  # no part: one of no keys
    if min(lengths) < 0 or sum(lengths) != key.size(-2):
        raise ValueError(f"lengths of parts must be 0 or more and sum to T_k={key.size(-2)}: got {lengths}")
    inputs = at_least_float32(query, key, value)
    mask = torch.ones(1, dtype=torch.bool, device=key.device) if mask is None else mask
    mask = mask.expand(*mask.shape[:-1], key.size(-2))  # (..., 1 or T_k) -> (..., T_k)
    parts = [x.split(lengths, dim=dim) for x, dim in ((inputs[1], -2), (inputs[2], -2), (mask, -1))]
    kept = run(functools.partial(attend_to_part, inputs[0]), *parts)
    _, total, weighted = functools.reduce(merge, kept)
    return (weighted / total.masked_fill(total == 0, 1)).to(query.dtype)  # a query that sees no key: 0 / 1 = 0


def busiest(users: int, parts: int) -> int:
    """Keys that the busiest processor reads for the next word of each user, if parts are handed out in turn."""
    return math.ceil(users * HEADS * parts / PROCESSORS) * math.ceil(TEXT / parts)


def best_parts(users: int) -> int:
    """The fewest parts with which the busiest processor reads least."""
    return min(range(1, PROCESSORS + 1), key=lambda parts: busiest(users, parts))


def draw() -> tuple[Figure, str]:
    """Keys that the busiest processor reads, against the number of users; by counting."""
    fig, ax = plt.subplots(figsize=(8.2, 4.6), layout="constrained")
    users, ends = range(1, USERS + 1), {}
    for name, color, loads in (
        ("heads whole", GREY, [busiest(n, 1) for n in users]),
        ("keys in parts", BLUE, [busiest(n, best_parts(n)) for n in users]),
    ):
        ax.plot(users, loads, color=color, linewidth=2.5)
        ends[name] = (USERS, loads[-1], color)
    ticks = [2**n for n in range(6)]
    ax.set(xscale="log", yscale="log", xlabel="users at once")
    ax.set_ylabel("keys that the busiest\nprocessor reads")
    ax.set_xticks(ticks, ticks)
    ax.set_yticks((5_000, 20_000, 80_000), ("5,000", "20,000", "80,000"))
    ax.minorticks_off()
    title = f"One user keeps {HEADS} of {PROCESSORS} processors busy; with keys in parts, all of them"
    note = f"counted, no model: {PROCESSORS} processors, as an A100 has, {HEADS} key-value heads, {TEXT:,} words a user"
    headline(fig, title, note, 12)
    label_ends(ax, ends, size=10)
    return fig, f"{title}. Keys that the busiest processor reads, against the number of users, whole and in parts."


@cli.script
def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    inputs = [x.double() for x in (torch.randn(1, WIDTH), *torch.randn(2, LENGTH, WIDTH))]
    lengths = [LENGTH // 2, 0, 3, LENGTH // 2 - 3]
    expected, _ = scaled_dot_product_attention(*inputs)
    with ThreadPoolExecutor(2) as pool:
        difference = (split_keys(*inputs, lengths, run=pool.map) - expected).abs().max().item()
    print(f"\nOne query, parts of {lengths} keys, on two threads: the output differs by {difference:.0e}")
    print(f"{PROCESSORS} processors, {HEADS} heads, {TEXT:,} keys each: the busiest reads")
    for users in (1, 4, 16, 32):
        parts = best_parts(users)
        print(f"   {users:2} users: {busiest(users, 1):7,} keys; in {parts:2} parts {busiest(users, parts):7,}")
    save_plot(options, "phase4/split_keys", *draw())
    less = busiest(1, 1) / busiest(1, best_parts(1))
    return f"The same to {difference:.0e}; with one user a processor reads 1/{less:.0f} of the keys"


if __name__ == "__main__":
    cli.run(main)
