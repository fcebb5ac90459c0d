"""Time and memory against length: plain attention, tiles, band, kernel, and the function that PyTorch brings.

One sequence, 8 heads of 64, float32, two threads, forward only. Times are compared as ratios within rounds
(shared/measure.py); run it alone, since two threads wait for each other. Memory is the peak of the call above its
inputs, counted allocation by allocation, so it is the same in every run.

    python phase4_causal/long_texts/length_benchmark.py
    python phase4_causal/long_texts/length_benchmark.py --longest 16384          needs 33 GiB of memory and some minutes

Writes long_context.png to visualizations/plots/phase4/, with times in it, so that it differs from run to run. The
findings hold only what each run repeats: operations and memory.
"""

import argparse
import os
import statistics
from collections.abc import Callable
from functools import partial

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from tqdm import tqdm

from phase1_single_head.self_attention import scaled_dot_product_attention
from phase2_multi_head.costs.cost_model import in_bytes
from phase4_causal.long_texts.long_context import flash_attention, linear_attention, local_attention
from shared import cli, paths
from shared.attention_utils import local_mask
from shared.evidence import findings
from shared.evidence.findings import Finding
from shared.measure import machine, median_ratio, paired_times, peak_memory
from shared.visualization_utils import head_color, model_note, save_figure

NUM_HEADS, WIDTH, WINDOW = 8, 64, 128
SHORTEST, LONGEST, QUICK_LONGEST = 128, 4096, 512
NAIVE, MASKED, FUSED = "plain attention", f"plain, mask of {WINDOW}", "F.scaled_dot_product_attention"
FLASH, FLASH_CAUSAL, LOCAL = "flash, tiles", "flash, tiles, causal", f"local, window {WINDOW}"
LINEAR, LINEAR_CAUSAL = "linear", "linear, causal"
NAMES = (NAIVE, MASKED, FUSED, FLASH, FLASH_CAUSAL, LOCAL, LINEAR, LINEAR_CAUSAL)
RACES = {  # fast -> slow, whose crossing point is looked for
    FLASH: NAIVE,
    FLASH_CAUSAL: FLASH,
    LOCAL: MASKED,
    LINEAR: NAIVE,
    LINEAR_CAUSAL: NAIVE,
}
Times = dict[str, list[float]]  # name -> seconds in each round


def calls_at(length: int) -> dict[str, Callable[[], Tensor]]:
    """Every way to compute, on the same random queries, keys and values (1, H, T, d)."""
    query, key, value = torch.randn(3, 1, NUM_HEADS, length, WIDTH)
    near = local_mask(length, length, WINDOW)
    return {
        NAIVE: lambda: scaled_dot_product_attention(query, key, value)[0],
        MASKED: lambda: scaled_dot_product_attention(query, key, value, near)[0],
        FUSED: partial(F.scaled_dot_product_attention, query, key, value),
        FLASH: partial(flash_attention, query, key, value),
        FLASH_CAUSAL: partial(flash_attention, query, key, value, causal=True),
        LOCAL: partial(local_attention, query, key, value, window=WINDOW),
        LINEAR: partial(linear_attention, query, key, value),
        LINEAR_CAUSAL: partial(linear_attention, query, key, value, causal=True),
    }


def measure(length: int, seconds: float) -> tuple[Times, dict[str, int]]:
    """Seconds in each round, and peak bytes, of every way at one length."""
    calls = calls_at(length)
    memory = {name: peak_memory(call) for name, call in calls.items()}  # runs each once: the warm-up of the times
    rounds = 2 if length >= LONGEST else None  # a second and more for each
    return paired_times(calls, seconds=seconds, rounds=rounds, warm_up=False), memory


def operations(attention: Callable[..., object], length: int) -> int:
    """In the matrix products of all heads, counted by torch."""
    inputs = torch.empty(3, NUM_HEADS, length, WIDTH, device="meta")  # shapes without numbers
    with FlopCounterMode(display=False) as counter:
        attention(*inputs)
    return counter.get_total_flops()


def crossing(by_length: dict[int, Times], fast: str, slow: str) -> int | None:
    """The shortest measured length from which on `fast` takes less time than `slow`; None if it never does."""
    wins = [length for length in by_length if median_ratio(by_length[length], fast, slow) < 1]
    losses = [length for length in by_length if length not in wins]
    return min((length for length in wins if length > max(losses, default=0)), default=None)


def show(times: dict[int, Times], memory: dict[int, dict[str, int]]) -> None:
    print(f"\n   {'ms, median':32}" + "".join(f"{f'T = {n:,}':>12}" for n in times))
    for name in NAMES:
        print(f"   {name:32}" + "".join(f"{statistics.median(t[name]) * 1e3:12.2f}" for t in times.values()))
    print(f"   {'peak memory':32}" + "".join(f"{f'T = {n:,}':>12}" for n in memory))
    for name in NAMES:
        print(f"   {name:32}" + "".join(f"{in_bytes(m[name]):>12}" for m in memory.values()))
    longest = max(times)
    print(f"\n   Faster from which length on, of those measured, and how many times at {longest:,}:")
    for fast, slow in RACES.items():
        at, factor = crossing(times, fast, slow), median_ratio(times[longest], slow, fast)
        print(f"   {fast:24} than {slow:24} {'never' if at is None else f'T = {at:,}':>12}{factor:10.1f}")
    print(f"   {FLASH} takes {median_ratio(times[longest], FLASH, FUSED):.2f} times as long as {FUSED}")


def plot_lines(ax: Axes, values: dict[str, list[float]], lengths: list[int]) -> None:
    for index, name in enumerate(NAMES):
        style = "--" if name in (MASKED, FLASH_CAUSAL, LINEAR_CAUSAL) else "-"
        ax.plot(lengths, values[name], style, marker="o", ms=4, color=head_color(index), label=name)
    ax.set(xscale="log", yscale="log", xlabel="length T")
    ax.set_xticks(lengths, [f"{length:,}" for length in lengths])
    ax.minorticks_off()


def draw(times: dict[int, Times], memory: dict[int, dict[str, int]]) -> tuple[Figure, str]:
    """Milliseconds and peak memory against length."""
    lengths = list(times)
    fig, (left, right) = plt.subplots(1, 2, figsize=(11, 5.6), layout="constrained")
    plot_lines(left, {name: [statistics.median(t[name]) * 1e3 for t in times.values()] for name in NAMES}, lengths)
    plot_lines(right, {name: [m[name] / 2**20 for m in memory.values()] for name in NAMES}, lengths)
    left.set_title("time of a forward pass, ms (wall clock)")
    right.set_title("peak memory, MiB")
    left.set_yticks(ticks := [0.1, 1, 10, 100, 1000], [f"{tick:g}" for tick in ticks])
    right.set_yticks(ticks := [1, 10, 100, 1000], [f"{tick:g}" for tick in ticks])
    right.legend(loc="upper left", frameon=False, fontsize=8.5)
    longest = lengths[-1]
    faster = median_ratio(times[longest], NAIVE, FLASH)
    less = memory[longest][NAIVE] / memory[longest][FLASH]
    title = (
        f"At {longest:,} tokens, tiles take 1/{less:.0f} of plain attention's memory and {1 / faster:.2f} of its time"
    )
    fig.suptitle(title, fontsize=13)
    model_note(
        fig,
        f"no model: random inputs, one sequence, {NUM_HEADS} heads of {WIDTH}, float32; times are wall clock, medians "
        f"on {machine()}, and differ from run to run",
    )
    return fig, f"{title}. Time (wall clock) and peak memory of eight ways to compute attention, against length."


def record_findings(memory: dict[int, dict[str, int]], options: argparse.Namespace) -> None:
    last = max(memory)
    before = last // 2
    fixed = partial(local_attention, window=WINDOW)
    grown = operations(partial(local_attention, window=last // 8), last)
    growth = {
        "operations": operations(fixed, last) / operations(fixed, before),
        "peak memory": memory[last][LOCAL] / memory[before][LOCAL],
        "operations, window T / 8": grown / operations(partial(local_attention, window=before // 8), before),
    }
    short = torch.randn(3, NUM_HEADS, 6, WIDTH)
    toy = peak_memory(lambda: scaled_dot_product_attention(*short)) / peak_memory(lambda: flash_attention(*short))
    saved = {"T = 6": toy} | {f"T = {n:,}": memory[n][NAIVE] / memory[n][FLASH] for n in sorted({512, last})}
    findings.record(
        "phase4_causal/long_texts/length_benchmark.py",
        [
            Finding(
                "C058",
                "Local attention solves the problem of O(T²)",
                "course notes; Beltagy et al. 2020",
                {name: round(value, 3) for name, value in growth.items()},
                f"how many times as much at {last:,} tokens as at {before:,}; window {WINDOW} unless named",
                "at most 2.2 times (2 is linear, 4 quadratic), however the window is chosen; or else if it is fixed",
                **findings.conditional(
                    max(growth.values()) <= 2.2,
                    max(growth["operations"], growth["peak memory"]) <= 2.2,
                    "the window stays as it is while the text grows, and what is further away may be lost",
                ),
            ),
            Finding(
                "C060",
                "The O(T²) memory of attention is an issue",
                "course notes",
                {name: round(value, 2) for name, value in saved.items()},
                "peak memory of plain attention over that of attention in tiles, forward",
                "10 times or more at every length; or else at the longest",
                **findings.conditional(
                    min(saved.values()) >= 10,
                    saved[f"T = {last:,}"] >= 10,
                    "the text is long; a sentence of six words has nothing to save",
                ),
            ),
        ],
        options.output_dir,
    )


def main(argv: list[str] | None = None) -> None:
    parser = cli.parser(__doc__)
    lengths = [SHORTEST * 2**n for n in range(8)]  # 128 to 16,384
    parser.add_argument(
        "--longest", type=int, choices=lengths[2:], metavar="T", help="512, 1024, ... 16384 (default: 4096)"
    )
    options = cli.parse(parser, argv)
    longest = options.longest or (QUICK_LONGEST if options.quick else LONGEST)
    threads = torch.get_num_threads()
    torch.set_num_threads(min(2, os.cpu_count() or 1))
    try:
        print(f"\nOne sequence, {NUM_HEADS} heads of {WIDTH}, forward; {machine()}")
        with torch.no_grad():
            measured = {
                length: measure(length, 0.05 if options.quick else 0.2)
                for length in tqdm([n for n in lengths if n <= longest], desc="lengths", leave=False)
            }
        times, memory = ({length: pair[i] for length, pair in measured.items()} for i in (0, 1))
        show(times, memory)
        figure, caption = draw(times, memory)
    finally:
        torch.set_num_threads(threads)
    path = options.output_dir / paths.PLOTS / "phase4" / f"long_context.{options.format}"
    save_figure(figure, path, caption=caption)
    with torch.no_grad():
        record_findings(memory, options)


if __name__ == "__main__":
    cli.run(main)
