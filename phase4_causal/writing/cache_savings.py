"""What does a key-value cache save, and does the model still write the same?

The same: it may read a prompt whole and each new word by itself, or chunks of any size. The mask must then be shifted:
query i of a chunk stands behind everything in the cache. For a single new word the causal mask hides nothing, since all
keys are of its past, so it may be left out. That does not hold for words that are read together, or read again: then an
earlier word would see a later one and, in a model of two layers or more, pass on what it saw.

Saved: without a cache token T costs a pass over all T tokens; with it, one over one token that attends to T keys.

    without   L (16 T d² + 4 T² d) + 2 T d V     projections and feed-forward network 8 d² each, attention, words
    with      L (16 d² + 4 T d) + 2 d V          exactly one T-th

It trades memory for work: the cache holds 2 L T d numbers. Operations are counted by torch, an addition and a
multiplication as two, on tensors without numbers. A model of random weights does: it costs what a trained one costs.

    python phase4_causal/writing/cache_savings.py
    python phase4_causal/writing/cache_savings.py --benchmark     writes 500 tokens in both ways, on two threads

Writes kv_cache.png to visualizations/plots/phase4/.
"""

import argparse
import math
from functools import partial

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor

from phase4_causal.causal_attention import CausalSelfAttention
from phase4_causal.key_value_cache import KeyValueCache
from phase4_causal.models import load_causal_model, long_model, with_attention
from phase4_causal.writing.sampling import Sampling, new_caches, write
from shared import cli
from shared.measure import count_operations, machine, median_ratio, paired_times
from shared.toy_language import START_ID, VOCABULARY, encode
from shared.toy_model import ToyTransformer, in_double
from shared.training import Trained
from shared.visualization_utils import BLUE, GREY, INK, headline, label_ends, save_plot

D_MODEL, NUM_LAYERS = 128, 4  # of the model whose work is counted
TOKENS, QUICK_TOKENS, TIMED = 500, 50, 5
LENGTHS = (1, 5, 20, 50, 100, 500)
WITH, WITHOUT = "with cache", "without"


class Unmasked(CausalSelfAttention):
    """CausalSelfAttention that hides nothing: new positions see the cache and each other."""

    def forward(
        self, x: Tensor, mask: Tensor | None = None, cache: KeyValueCache | None = None
    ) -> tuple[Tensor, Tensor]:
        return self.attend(x, mask, cache)


@torch.no_grad()
def read_in_chunks(model: ToyTransformer, tokens: Tensor, chunk: int) -> Tensor:
    """Logits (B, T, V) of tokens (B, T), read through caches, `chunk` tokens at a time."""
    caches = new_caches(model, tokens.size(1), tokens.size(0))
    return torch.cat([model(part, caches=caches)[0] for part in tokens.split(chunk, dim=1)], dim=1)


@torch.no_grad()
def with_and_without(model: ToyTransformer, tokens: Tensor, seed: int) -> float:
    """Largest difference of the logits: tokens (1, T) read in chunks of 1, 2, 3, T through a cache or in one pass, and
    20 sentences drawn in both ways; inf if these differ in a word."""
    whole, _ = model(tokens)
    chunks = [(read_in_chunks(model, tokens, n) - whole).abs().max().item() for n in (1, 2, 3, tokens.size(1))]
    start = tokens[:, :1].expand(20, -1)
    cached, plain = (
        write(model, start, Sampling(), generator=torch.Generator().manual_seed(seed), cached=cached)
        for cached in (True, False)
    )
    same = torch.equal(cached.tokens, plain.tokens)
    return max(*chunks, (cached.logits - plain.logits).abs().max().item() if same else math.inf)


@torch.no_grad()
def without_a_mask(trained: Trained, tokens: Tensor) -> dict[str, float]:
    """Largest difference that leaving out the mask makes to the logits of the next word, at every length of tokens."""
    expected, _ = in_double(trained.model)(tokens)  # (1, T, V)
    unmasked = in_double(with_attention(trained, Unmasked))
    again = torch.cat([unmasked(tokens[:, :n])[0][:, -1:] for n in range(1, tokens.size(1) + 1)], dim=1)
    pairs = read_in_chunks(unmasked, tokens, 2)[:, 1::2]  # only after the second of a pair a next word is asked for
    return {
        "one new word at a time, cache": (read_in_chunks(unmasked, tokens, 1) - expected).abs().max().item(),
        "two at a time, cache": (pairs - expected[:, 1::2]).abs().max().item(),
        "all words again each time": (again - expected).abs().max().item(),
    }


@torch.no_grad()
def step(model: ToyTransformer, length: int, cached: bool) -> Tensor:
    """The logits of the token after `length` tokens; with a cache, length - 1 of them are in it already."""
    caches = new_caches(model, length) if cached else []
    for cache in caches:
        cache.length = length - 1  # their numbers do not matter for the costs
    tokens = torch.ones(1, 1 if cached else length, dtype=torch.long, device=model.positions.device)
    return model(tokens, caches=caches)[0]


def operations_on_paper(length: int, cached: bool) -> int:
    """The formulas of the top; a cached step is one T-th of a pass over T tokens."""
    layer = 16 * length * D_MODEL**2 + 4 * length**2 * D_MODEL
    whole = NUM_LAYERS * layer + 2 * length * D_MODEL * len(VOCABULARY)
    return whole // length if cached else whole


def work(lengths: tuple[int, ...]) -> dict[str, float | list[int]]:
    """What torch counts for one more token at each length, and what the formulas say; and the ratio for all tokens."""
    model = long_model(max(lengths), "meta")  # shapes without numbers: nothing is computed
    found: dict[str, float | list[int]] = {"T": list(lengths)}
    for way in (WITH, WITHOUT):
        found[f"{way}, counted"] = [count_operations(step, model, length, way == WITH) for length in lengths]
        found[f"{way}, on paper"] = [operations_on_paper(length, way == WITH) for length in lengths]
    total, saved = (sum(operations_on_paper(n, way) for n in range(1, lengths[-1] + 1)) for way in (False, True))
    return found | {f"all {lengths[-1]} tokens, without / with": total / saved}


def write_some(model: ToyTransformer, tokens: int, cached: bool) -> None:
    """TIMED of the steps of write_all, evenly spread."""
    for length in range(tokens // TIMED, tokens + 1, tokens // TIMED):
        step(model, length, cached)


def write_all(model: ToyTransformer, tokens: int, cached: bool) -> None:
    """Write exactly `tokens` tokens with a model that never ends."""
    start = torch.full((1, 1), START_ID, device=model.positions.device)
    written = write(model, start, limit=tokens, cached=cached)
    assert written.tokens.size(1) == tokens + 1


def show_times(options: argparse.Namespace) -> None:
    """How long writing takes with and without the cache.

    With --benchmark all tokens are written, on two threads. Without it a few steps are timed, evenly spread, on one.
    """
    tokens = QUICK_TOKENS if options.quick else TOKENS
    model = long_model(tokens + 1, options.device)
    writer, timed = (write_all, tokens) if options.benchmark else (write_some, TIMED)
    calls = {way: partial(writer, model, tokens, way == WITH) for way in (WITH, WITHOUT)}
    threads = torch.get_num_threads()
    torch.set_num_threads(2 if options.benchmark else 1)
    try:
        times = paired_times(calls, rounds=3, warm_up=not options.benchmark, device=options.device)
        print(f"\nWriting {tokens} tokens, {timed} of them timed, on {machine(options.device)}")
    finally:
        torch.set_num_threads(threads)
    each = ", ".join(f"{way} {1000 * min(seconds) / timed:.2f} ms a token" for way, seconds in times.items())
    print(f"   {each}: {median_ratio(times, WITHOUT, WITH):.1f} times as long without the cache")


def draw(found: dict) -> tuple[Figure, str]:
    """Operations for each token against length: points counted, lines by the formulas."""
    fig, ax = plt.subplots(figsize=(8, 4.6), layout="constrained")
    last, ends = max(found["T"]), {}
    lengths = range(1, last + 1)
    for way, name, color in ((WITH, "with the cache", BLUE), (WITHOUT, "without", GREY)):
        paper = [operations_on_paper(length, way == WITH) for length in lengths]
        ax.plot(lengths, paper, color=color, linewidth=2)
        ax.plot(found["T"], found[f"{way}, counted"], "o", ms=6, color=color)
        ends[name] = (last, paper[-1], color)
    ticks = [n for n in (1, 10, 100, 500) if n <= last]
    ax.set(xscale="log", yscale="log", xlabel="words so far", ylabel="operations for the next word")
    ax.set_xticks(ticks, ticks)
    ax.minorticks_off()
    (_, most, _), (_, least, _) = ends["without"], ends["with the cache"]
    arrow = {"arrowstyle": "<->", "color": INK, "shrinkA": 6, "shrinkB": 6}
    ax.annotate("", (last, most), (last, least), arrowprops=arrow)
    style = {"textcoords": "offset points", "ha": "right", "va": "center", "fontsize": 14}
    ax.annotate(f"÷ {most / least:,.0f}", (last, math.sqrt(most * least)), (-8, 0), **style)
    title = f"With a key-value cache word {last} takes 1/{last} of the work"
    size = sum(cache.num_bytes for cache in new_caches(long_model(last), last))
    note = f"untrained, {NUM_LAYERS} layers, d = {D_MODEL} · points: counted by torch, lines: formulas"
    headline(fig, title, f"{note} · the cache of {last} words: {size / 2**20:.1f} MiB")
    label_ends(ax, ends, size=10)
    return fig, f"{title}. Operations for each new token against the length, with the cache and without."


@cli.script
def main(argv: list[str] | None = None) -> str:
    parser = cli.parser(__doc__)
    parser.add_argument("--benchmark", action="store_true", help=f"write {TOKENS} tokens three times in both ways")
    options = cli.parse(parser, argv)
    trained = load_causal_model(options)
    tokens = torch.tensor([[START_ID, *encode(options.words)]])
    same = with_and_without(in_double(trained.model), tokens, options.seed)
    print(f"\nWith a cache and without: the logits differ by {same:.0e} at most, no word is another")
    print("Without the mask they differ by")
    for way, difference in without_a_mask(trained, tokens).items():
        print(f"   {difference:.0e}   {way}")
    counted = work(LENGTHS[:4] if options.quick else LENGTHS)
    show_times(options)
    save_plot(options, "phase4/kv_cache", *draw(counted))
    last, saved = list(counted.items())[-1]
    return f"The same to {same:.0e}; {last}: {saved:.0f} times the operations"


if __name__ == "__main__":
    cli.run(main)
