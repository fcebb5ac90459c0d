"""What a key-value cache saves: operations counted for each new token, and the time of 500 tokens.

Without a cache token T costs a pass over all T tokens; with it, a pass over one token that attends to T keys:

    without   L (16 T d² + 4 T² d) + 2 T d V     projections and feed-forward network 8 d² each, attention, words
    with      L (16 d² + 4 T d) + 2 d V          exactly one T-th

It trades memory for work: the cache holds 2 L T d numbers. Operations are counted by torch, an addition and a
multiplication as two, on tensors without numbers. A model of random weights does: it costs what a trained one costs.

    python phase4_causal/writing/cache_costs.py
    python phase4_causal/writing/cache_costs.py --benchmark     writes 500 tokens in both ways, on two threads

Writes kv_cache.png to visualizations/plots/phase4/.
"""

import argparse
from functools import partial

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from phase2_multi_head.costs.cost_model import attention_operations, in_bytes, projection_operations
from phase4_causal.causal_attention import CausalSelfAttention
from phase4_causal.writing.generate import Sampling, new_caches, next_logits, write
from shared import cli, paths
from shared.evidence import findings
from shared.evidence.findings import Finding
from shared.measure import machine, median_ratio, paired_times
from shared.toy_language import SPECIAL, START_ID, VOCABULARY
from shared.toy_model import ToyTransformer, sinusoidal_positions
from shared.visualization_utils import head_color, model_note, save_figure

D_MODEL, NUM_HEADS, NUM_LAYERS = 128, 4, 4
TOKENS, QUICK_TOKENS = 500, 50
LENGTHS = (1, 5, 20, 50, 100, 500)
WITH, WITHOUT = "with cache", "without"
Counts = dict[str, dict[int, int]]  # with or without -> length -> operations of the token at that length


def long_model(length: int, device: str = "cpu") -> ToyTransformer:
    """An untrained toy transformer with `length` positions, more than the language needs."""
    model = ToyTransformer(D_MODEL, NUM_HEADS, NUM_LAYERS, make_attention=CausalSelfAttention)
    model.positions = sinusoidal_positions(length, D_MODEL)
    return model.to(device).eval()


@torch.no_grad()
def step(model: ToyTransformer, length: int, cached: bool) -> Tensor:
    """The logits of the token after `length` tokens; with a cache, length - 1 of them are in it already."""
    device = model.positions.device
    if not cached:
        return model(torch.ones(1, length, dtype=torch.long, device=device))[0]
    caches = new_caches(model, length)
    for cache in caches:
        cache.length = length - 1  # their numbers do not matter for the costs
    return next_logits(model, torch.ones(1, 1, dtype=torch.long, device=device), caches)[0]


def counted_operations(lengths: tuple[int, ...]) -> Counts:
    """What torch counts for one more token at each length."""
    model = long_model(max(lengths), "meta")  # shapes without numbers: nothing is computed
    counts: Counts = {WITH: {}, WITHOUT: {}}
    for name, by_length in counts.items():
        for length in lengths:
            with FlopCounterMode(display=False) as counter:
                step(model, length, name == WITH)
            by_length[length] = counter.get_total_flops()
    return counts


def operations_on_paper(length: int, cached: bool) -> int:
    """The formulas of the top; a cached step is one T-th of a pass over T tokens."""
    feed_forward = 8 * length * D_MODEL**2  # to 2 d_model and back
    layer = projection_operations(length, D_MODEL) + attention_operations(length, D_MODEL) + feed_forward
    whole = NUM_LAYERS * layer + 2 * length * D_MODEL * len(VOCABULARY)
    return whole // length if cached else whole


def total_operations(tokens: int, cached: bool) -> int:
    return sum(operations_on_paper(length, cached) for length in range(1, tokens + 1))


def write_some(model: ToyTransformer, tokens: int, cached: bool) -> None:
    """Ten of the steps of write_all, evenly spread."""
    for length in range(tokens // 10, tokens + 1, tokens // 10):
        step(model, length, cached)


def write_all(model: ToyTransformer, tokens: int, cached: bool) -> None:
    """Write exactly `tokens` tokens with a model that never ends."""
    start = torch.full((1, 1), START_ID, device=model.positions.device)
    written = write(model, start, Sampling(0.0), limit=tokens, cached=cached)
    assert written.tokens.size(1) == tokens + 1


def measured_ratio(options: argparse.Namespace) -> float:
    """How many times as long writing takes without the cache.

    With --benchmark all tokens are written, on two threads. Without it ten steps are timed, evenly spread, on one.
    """
    tokens = QUICK_TOKENS if options.quick else TOKENS
    model = long_model(tokens + 1, options.device)
    with torch.no_grad():
        model.output_bias[: len(SPECIAL)] = -1e4  # no <end>
    calls = {name: partial(write_all, model, tokens, name == WITH) for name in (WITH, WITHOUT)}
    if not options.benchmark:
        calls = {name: partial(write_some, model, tokens, name == WITH) for name in (WITH, WITHOUT)}
    threads = torch.get_num_threads()
    torch.set_num_threads(2 if options.benchmark else 1)
    try:
        times = paired_times(calls, rounds=3, warm_up=not options.benchmark, device=options.device)
        print(f"\nWriting {tokens} tokens, {'each' if options.benchmark else 'ten'} of them timed")
        print(f"   on {machine(options.device)}")
    finally:
        torch.set_num_threads(threads)
    timed = tokens if options.benchmark else 10
    for name, seconds in times.items():
        print(f"   {name:10} {1000 * min(seconds) / timed:6.2f} ms a token")
    return median_ratio(times, WITHOUT, WITH)


def draw(counts: Counts) -> tuple[Figure, str]:
    """Operations for each token against length, counted and by the formulas; beside it the running total."""
    fig, axes = plt.subplots(1, 2, figsize=(9.6, 4.3), layout="constrained")
    last = max(counts[WITH])
    lengths = range(1, last + 1)
    for color, (name, by_length) in enumerate(counts.items()):
        cached = name == WITH
        paper = [operations_on_paper(length, cached) for length in lengths]
        axes[0].plot(lengths, paper, color=head_color(color), linewidth=1.4)
        axes[0].plot(list(by_length), list(by_length.values()), "o", ms=5, color=head_color(color), label=name)
        totals = torch.tensor(paper, dtype=torch.float64).cumsum(dim=0)
        axes[1].plot(lengths, totals, color=head_color(color), linewidth=1.8, label=name)
    axes[0].set(xscale="log", yscale="log", xlabel="length T", ylabel="operations", title="the token at length T")
    axes[1].set(xscale="log", yscale="log", xlabel="length T", title="all tokens up to T")
    for ax in axes:
        ax.set_xticks([n for n in (1, 10, 100, 500) if n <= last], [str(n) for n in (1, 10, 100, 500) if n <= last])
        ax.minorticks_off()
        ax.legend(frameon=False, loc="upper left")
    saved = total_operations(last, False) / total_operations(last, True)
    each = counts[WITHOUT][last] / counts[WITH][last]
    title = (
        f"With a key-value cache token {last} takes 1/{each:.0f} of the operations, all {last} together 1/{saved:.0f}"
    )
    fig.suptitle(title, fontsize=12.5)
    numbers = sum(cache.num_bytes for cache in new_caches(long_model(last), last))
    model_note(
        fig,
        f"untrained, {NUM_LAYERS} layers, d = {D_MODEL}, one sequence · points: counted by torch, lines: formulas · "
        f"the cache of {last} tokens takes {in_bytes(numbers)} in float32",
    )
    return fig, f"{title}. Operations for each new token, and for all so far, against length."


def record_findings(counts: Counts, options: argparse.Namespace) -> None:
    exact = {
        name: sum(count == operations_on_paper(length, name == WITH) for length, count in by_length.items())
        for name, by_length in counts.items()
    }
    tried, last = len(counts[WITH]), max(counts[WITH])
    total = total_operations(last, False) / total_operations(last, True)
    findings.record(
        "phase4_causal/writing/cache_costs.py",
        [
            Finding(
                "cache-work",
                "With a key-value cache the token at length T takes one T-th of the operations",
                "course notes",
                {f"formula right {name}, of {tried} lengths": right for name, right in exact.items()}
                | {f"token {last}, without / with": counts[WITHOUT][last] / counts[WITH][last]}
                | {f"all {last} tokens, without / with": total},
                "lengths; ratio of operations",
                "the count is as on paper at every length, with and without, and T times less with the cache",
                findings.verdict(
                    set(exact.values()) == {tried}
                    and all(counts[WITHOUT][n] == n * counts[WITH][n] for n in counts[WITH])
                ),
            ),
        ],
        options.output_dir,
    )


def main(argv: list[str] | None = None) -> None:
    parser = cli.parser(__doc__)
    parser.add_argument("--benchmark", action="store_true", help=f"write {TOKENS} tokens three times in both ways")
    options = cli.parse(parser, argv)
    counts = counted_operations(LENGTHS[:4] if options.quick else LENGTHS)
    print(f"\nOperations for one more token, {NUM_LAYERS} layers, d = {D_MODEL}\n   {'T':>5} {WITHOUT:>15} {WITH:>15}")
    for length in counts[WITH]:
        print(f"   {length:5} {counts[WITHOUT][length]:15,} {counts[WITH][length]:15,}")
    ratio = measured_ratio(options)
    print(f"   {ratio:.1f} times as long without the cache")
    figure, caption = draw(counts)
    save_figure(figure, options.output_dir / paths.PLOTS / "phase4" / f"kv_cache.{options.format}", caption=caption)
    record_findings(counts, options)


if __name__ == "__main__":
    cli.run(main)
