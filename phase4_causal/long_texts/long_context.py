"""Do five ways around T² compute what they say, and what do they save?

    flash_attention         the same function, tile by tile: T² operations, memory O(T)    flash_attention.py
    local_attention         a part of it, the neighbourhood: T window operations           local_attention.py
    strided_attention       a part of it, every stride-th word: T²/stride operations       sparse_attention.py
    block_sparse_attention  a part of it, chosen tiles: as many operations as they have    sparse_attention.py
    linear_attention        another function, another kernel: T d² operations              linear_attention.py

First each is compared, in float64: what leaves out a part with plain attention under the mask that says the same, tiles
and kernel with their specification in loops. Then time and memory against length: one sequence, 2 heads of 64, float32,
one thread, forward only. Times are compared within rounds (shared/measure.py) and differ from run to run. Memory, which
is drawn, is the peak of the call above its inputs, counted allocation by allocation: always the same.

    python phase4_causal/long_texts/long_context.py
    python phase4_causal/long_texts/long_context.py --longest 16384          needs 9 GiB of memory and some minutes
    python phase4_causal/long_texts/long_context.py --kernel 4096            tiles against torch's kernel, some minutes

Writes long_context.png to visualizations/plots/phase4/.
"""

import itertools
import statistics
from collections.abc import Callable
from functools import partial

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor
from tqdm import tqdm

from phase1_single_head.self_attention import scaled_dot_product_attention
from phase4_causal.long_texts.flash_attention import flash_attention, flash_by_loops
from phase4_causal.long_texts.linear_attention import linear_attention, linear_attention_recurrent, linear_by_loops
from phase4_causal.long_texts.local_attention import local_attention
from phase4_causal.long_texts.sparse_attention import (
    block_sparse_attention,
    strided_attention,
    tile_mask,
    tile_pattern,
)
from shared import cli
from shared.attention_utils import causal_mask, local_mask, strided_mask
from shared.evidence import findings
from shared.evidence.claims import PROBE, Claim, measures
from shared.measure import in_bytes, machine, median_ratio, paired_times, peak_memory, ratio_quartiles
from shared.visualization_utils import BLUE, GREEN, GREY, ORANGE, headline, label_ends, save_plot

NUM_HEADS, WIDTH, WINDOW, STRIDE, BLOCK = 2, 64, 128, 64, 64
SHORTEST, LONGEST, QUICK_LONGEST = 128, 2048, 512
NAIVE, MASKED, FUSED = "plain attention", f"plain, mask of {WINDOW}", "F.scaled_dot_product_attention"
FLASH, FLASH_CAUSAL, LOCAL = "flash, tiles", "flash, tiles, causal", f"local, window {WINDOW}"
LINEAR, LINEAR_CAUSAL = "linear", "linear, causal"
STRIDED, TILES = f"strided, stride {STRIDE}", f"chosen tiles of {BLOCK}"
DRAWN = {NAIVE: GREY, FLASH: BLUE, LOCAL: ORANGE, LINEAR: GREEN}
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
Times = dict[str, list[float]]  # name -> seconds in each round
Memory = dict[int, dict[str, int]]  # length -> name -> bytes at the peak


def masked(mask: Tensor | None) -> Attention:
    """Plain attention under a mask: every score is computed, then some are hidden."""
    return lambda query, key, value: scaled_dot_product_attention(query, key, value, mask)[0]


def equality(length: int = 67) -> dict[str, float]:
    """Largest difference of outputs, and of the gradients of query, key and value, for each pair of ways; causal."""
    past, near, far = causal_mask(length), local_mask(length, length, 5), strided_mask(length, length, 8)
    allowed = tile_pattern(-(-length // 7), num_random=1)
    flash = partial(flash_attention, causal=True, block_size=(8, 12))
    linear = partial(linear_attention, causal=True)
    pairs: dict[str, tuple[Attention, Attention]] = {
        "flash, loops": (flash, partial(flash_by_loops, causal=True)),
        "flash, masked": (flash, masked(past)),
        "local, masked": (partial(local_attention, window=5, causal=True), masked(near & past)),
        "strided, masked": (partial(strided_attention, stride=8, causal=True), masked(far & past)),
        "tiles, masked": (
            partial(block_sparse_attention, block_size=7, allowed=allowed),
            masked(tile_mask(allowed, 7, length, length)),
        ),
        "linear, loops": (linear, partial(linear_by_loops, causal=True)),
        "linear, recurrence": (linear, lambda *inputs: linear_attention_recurrent(*inputs)[0]),
    }
    inputs = [torch.randn(length, size, dtype=torch.float64, requires_grad=True) for size in (16, 16, 12)]
    upstream = torch.randn(length, 12, dtype=torch.float64)
    found = {}
    for name, pair in pairs.items():
        outputs = [attention(*inputs) for attention in pair]
        results = [(output, *torch.autograd.grad(output, inputs, upstream)) for output in outputs]
        found[name] = max((a - b).abs().max().item() for a, b in zip(*results, strict=True))
    return found


def calls_at(length: int) -> dict[str, Callable[[], Tensor]]:
    """Every way to compute, on the same random queries, keys and values (1, H, T, d)."""
    inputs = torch.randn(3, 1, NUM_HEADS, length, WIDTH)
    ways: dict[str, Attention] = {
        NAIVE: masked(None),
        MASKED: masked(local_mask(length, length, WINDOW)),
        FUSED: F.scaled_dot_product_attention,
        FLASH: flash_attention,
        FLASH_CAUSAL: partial(flash_attention, causal=True),
        LOCAL: partial(local_attention, window=WINDOW),
        STRIDED: partial(strided_attention, stride=STRIDE),
        TILES: partial(block_sparse_attention, block_size=BLOCK, allowed=tile_pattern(length // BLOCK)),
        LINEAR: linear_attention,
        LINEAR_CAUSAL: partial(linear_attention, causal=True),
    }
    return {name: partial(way, *inputs) for name, way in ways.items()}


@torch.no_grad()
def measure(length: int, seconds: float) -> tuple[Times, dict[str, int]]:
    """Seconds in each round, and peak bytes, of every way at one length."""
    calls = calls_at(length)
    memory = {name: peak_memory(call) for name, call in calls.items()}  # runs each once: the warm-up of the times
    return paired_times(calls, seconds=seconds, warm_up=False), memory


@measures(
    Claim(
        id="C060",
        text="On long texts the T x T scores cost memory and time that other ways save",
        kind=PROBE,
        source="course notes, Memory Issues and Local Attention; Dao et al. 2022; Beltagy et al. 2020",
        rule="none: how long a library takes is no property of attention",
        holds=None,
        unit=f"ratios at the longest text, forward, {NUM_HEADS} heads of {WIDTH}; of times the quartiles over rounds",
        control="memory once more at six words, where there is nothing to save",
    )
)
@torch.no_grad()
def ratios(times: dict[int, Times], memory: Memory) -> dict[str, float | list[float]]:
    """How many times as much memory and time plain attention and a mask take as tiles, a band and another kernel."""
    last, short = max(memory), torch.randn(3, NUM_HEADS, 6, WIDTH)
    pairs = ((NAIVE, FLASH), (MASKED, LOCAL), (NAIVE, LINEAR), (FLASH, FUSED))
    six = peak_memory(lambda: scaled_dot_product_attention(*short)) / peak_memory(lambda: flash_attention(*short))
    return {
        "tokens": last,
        f"memory of six words, {NAIVE} / {FLASH}": six,
        **{f"memory, {slow} / {fast}": memory[last][slow] / memory[last][fast] for slow, fast in pairs},
        **{f"time, {slow} / {fast}": ratio_quartiles(times[last], slow, fast) for slow, fast in pairs},
    }


def against_kernel(length: int, rounds: int = 9) -> None:
    """Print how many times as long as torch's kernel tiles take, in 8 heads of 64, by quartiles over rounds."""
    before, inputs = torch.get_num_threads(), torch.randn(3, 1, 8, length, WIDTH)
    print(f"\nTime at {length:,} tokens, {FLASH} / {FUSED}: quartiles")
    for threads, causal, backward in itertools.product((1, 2), (False, True), (False, True)):
        torch.set_num_threads(threads)
        inputs.requires_grad_(backward)
        ways = {
            FLASH: partial(flash_attention, causal=causal),
            FUSED: partial(F.scaled_dot_product_attention, is_causal=causal),
        }
        calls = {name: partial(once, way, inputs) for name, way in ways.items()}
        low, middle, high = ratio_quartiles(paired_times(calls, rounds=rounds), FLASH, FUSED)
        name = f"threads: {threads}{', causal' if causal else ''}{', with backward' if backward else ''}"
        print(f"   {name:40}{low:6.2f}{middle:6.2f}{high:6.2f}")
    torch.set_num_threads(before)


def once(attention: Attention, inputs: Tensor) -> None:
    """One call, and where the inputs (3, ...) want gradients the way back."""
    output = attention(*inputs.unbind())
    if inputs.requires_grad:
        torch.autograd.grad(output.sum(), inputs)


def show(times: dict[int, Times], memory: Memory) -> None:
    print(f"\nOne sequence, {NUM_HEADS} heads of {WIDTH}, forward; {machine()}")
    print(f"   {'ms, median':32}" + "".join(f"{f'T = {n:,}':>12}" for n in times))
    for name in times[SHORTEST]:
        print(f"   {name:32}" + "".join(f"{statistics.median(t[name]) * 1e3:12.2f}" for t in times.values()))
    print(f"   {'peak memory':32}" + "".join(f"{f'T = {n:,}':>12}" for n in memory))
    for name in times[SHORTEST]:
        print(f"   {name:32}" + "".join(f"{in_bytes(m[name]):>12}" for m in memory.values()))


def draw(memory: Memory) -> tuple[Figure, str]:
    """Peak memory of four ways against length."""
    lengths = list(memory)
    fig, ax = plt.subplots(figsize=(8, 4.8), layout="constrained")
    ends = {}
    for name, color in DRAWN.items():
        sizes = [at_length[name] / 2**20 for at_length in memory.values()]
        ax.plot(lengths, sizes, "o-", color=color, linewidth=2.5, ms=4, clip_on=False)
        ends[name] = (lengths[-1], sizes[-1], color)
    ax.set(xlim=(0, lengths[-1]), ylim=(0, None), xlabel="tokens", ylabel="memory at the peak, MiB")
    ax.set_xticks(apart := [length for length in lengths if 16 * length >= lengths[-1]], [f"{n:,}" for n in apart])
    title = "Plain attention's memory runs away as the text grows; three other ways stay low"
    headline(fig, title, f"no model: random inputs, {NUM_HEADS} heads of {WIDTH}, float32 · what is needed beyond them")
    label_ends(ax, ends, size=10)
    return fig, f"{title}. Memory of four ways to compute attention, against length."


@cli.script
def main(argv: list[str] | None = None) -> str:
    parser = cli.parser(__doc__)
    lengths = [SHORTEST * 2**n for n in range(8)]  # 128 to 16,384
    parser.add_argument(
        "--longest", type=int, choices=lengths[2:], metavar="T", help=f"512, 1024, ... 16384 (default: {LONGEST})"
    )
    parser.add_argument("--kernel", type=int, metavar="T", help="only compare tiles with torch's kernel at T tokens")
    options = cli.parse(parser, argv)
    if options.kernel is not None:
        if options.kernel < 1:
            parser.error(f"--kernel must be 1 token or more: got {options.kernel}")
        against_kernel(options.kernel)
        return f"Tiles against torch's kernel at {options.kernel:,} tokens: the table"
    longest = options.longest or (QUICK_LONGEST if options.quick else LONGEST)
    print(
        f"\nTiles, bands, strides and recurrence differ from the same in full by {max(equality().values()):.0e} at most"
    )
    compared = tqdm([n for n in lengths if n <= longest], desc="lengths", leave=False, disable=None)
    measured = {length: measure(length, seconds=0.05) for length in compared}
    times, memory = ({length: pair[i] for length, pair in measured.items()} for i in (0, 1))
    show(times, memory)
    save_plot(options, "phase4/long_context", *draw(memory))
    found = ratios(times, memory)
    findings.record(options, found)
    less, faster = found[f"memory, {NAIVE} / {FLASH}"], median_ratio(times[longest], FLASH, NAIVE)
    return f"At {longest:,} tokens tiles give the same in 1/{less:.0f} of the memory and {faster:.2f} of the time"


if __name__ == "__main__":
    cli.run(main)
