"""What do three ways around T² save?

We compare plain attention with tiles (the same function), a band (a part of it) and another kernel,
on one sequence, in the forward pass. Memory is the peak above the inputs, counted allocation by
allocation. What a GPU would read from its slow memory and write to it is computed by a formula.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from tqdm import tqdm

from phase1_single_head.self_attention import scaled_dot_product_attention
from phase2_multi_head.costs.measure import peak_memory
from phase4_causal.long_texts.flash_attention import flash_attention
from phase4_causal.long_texts.linear_attention import linear_attention
from phase4_causal.long_texts.local_attention import local_attention
from shared import charts
from shared.claims import Numbers
from shared.experiment import Experiment, Results, Run
from shared.toy_model import default_dtype
from shared.visualization_utils import BLUE, GREEN, GREY, INK, ORANGE, WIDE

NUM_HEADS = 2
D_K = 64
WINDOW = 128
LENGTHS = (128, 256, 512, 1024, 2048)
COLORS = {"plain attention": GREY, "tiles": BLUE, "band": ORANGE, "linear": GREEN}
LABELS = {  # way -> how the picture says it
    "plain attention": "plain attention",
    "tiles": "in tiles (flash)",
    "band": "near words only",
    "linear": "linear attention",
}
FAST = (16, 64, 192)  # KiB of fast memory; each processor of an A100 has 192


def calls_at(length: int) -> dict[str, Callable[[], Any]]:
    """Returns every way to compute, on the same random queries, keys and values (1, H, T, d)."""
    inputs = torch.randn(3, 1, NUM_HEADS, length, D_K)
    ways = {
        "plain attention": scaled_dot_product_attention,
        "tiles": flash_attention,
        "band": partial(local_attention, window=WINDOW),
        "linear": linear_attention,
    }
    return {name: partial(way, *inputs) for name, way in ways.items()}


def moved(length: int, fast: int | None = None) -> float:
    """Returns the MiB that one head, forward, reads from slow memory and writes to it.

    Plain: scores and weights are written, and read again. In tiles, with `fast` KiB of fast memory:
    a tile each of queries, keys, values and outputs fill it, and each tile of queries reads all
    keys and values: Θ(T² d² / fast) (Dao et al. 2022, theorem 2).
    """
    once = 2 * length * D_K  # of queries and outputs, or of keys and values
    if fast is None:
        return 4 * (2 * once + 4 * length**2) / 2**20
    rows = fast * 2**10 // (4 * 4 * D_K)  # four tiles of float32, four bytes each
    return 4 * (once + once * math.ceil(length / rows)) / 2**20


def print_traffic(length: int) -> None:
    """Prints what is read from slow memory and written to it."""
    print(f"   MiB to and from slow memory, {length:,} tokens, one head:")
    print(f"      plain attention                {moved(length):5.0f}")
    for fast in FAST:
        print(f"      tiles, {fast:3} KiB of fast memory  {moved(length, fast):5.0f}")


@default_dtype(torch.float32)  # 4 bytes a number, as in the formulas
@torch.no_grad()
def measure(run: Run) -> Numbers:
    """Returns MiB at the peak, and how much more plain attention takes than tiles at the end."""
    lengths = LENGTHS[:3] if run.options.quick else LENGTHS
    longest = lengths[-1]
    numbers: Numbers = {"tokens": longest}
    for length in tqdm(lengths, desc="lengths", leave=False, disable=None):
        calls = calls_at(length)
        for name in COLORS:
            numbers[f"{name}, {length}"] = peak_memory(calls[name]) / 2**20
    plain, tiles = numbers[f"plain attention, {longest}"], numbers[f"tiles, {longest}"]
    numbers["plain attention / tiles"] = plain / tiles
    torch.manual_seed(run.seed)
    calls = calls_at(longest)
    output, _ = calls["plain attention"]()
    run.shown["apart"] = (output - calls["tiles"]()).abs().max().item()
    print_traffic(LENGTHS[-1])
    return numbers


def picture(results: Results) -> Figure:
    """Draws peak memory of four ways against length."""
    fig, ax = plt.subplots(figsize=(WIDE, 4.2), layout="constrained")
    lengths = [length for length in LENGTHS if length <= results.mean["tokens"]]
    rows = {name: results.row(name, lengths) for name in COLORS}
    named = {LABELS[name]: row for name, row in rows.items()}
    colors = {LABELS[name]: color for name, color in COLORS.items()}
    ax.set(yscale="log", xlabel="tokens", ylabel="memory at the peak, MiB")
    ax.set_yticks((1, 4, 16, 64), (1, 4, 16, 64))
    ax.set_ylim(0.9 * min(rows["linear"]), 1.3 * max(rows["plain attention"]))
    charts.lines(ax, lengths, named, colors)
    longest, most, least = lengths[-1], rows["plain attention"][-1], rows["tiles"][-1]
    inside = longest / 1.07  # beside the ends of the lines
    ax.annotate("", (inside, most), (inside, least), arrowprops={"arrowstyle": "<->", "color": INK})
    style = {"ha": "right", "va": "center", "fontsize": 14}
    ax.text(0.95 * inside, math.sqrt(most * least), f"÷ {most / least:.0f}", **style)
    return fig


main = Experiment(
    measure,
    picture=picture,
    title="As texts grow, only plain attention's memory runs away",
    note=f"random inputs, no model · {NUM_HEADS} heads of {D_K} numbers · near: the last {WINDOW}",
    answer="They save memory: at {n[tokens]:,.0f} tokens tiles take "
    "1/{n[plain attention / tiles]:.0f} of what plain attention takes, and the outputs differ by "
    "{shown[apart]:.1g} at most. The table has the band and the other kernel",
)

if __name__ == "__main__":
    main.run()
