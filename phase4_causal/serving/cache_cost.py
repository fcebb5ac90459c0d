"""What does a cache cost, and why does a batch help writing and not reading?

A cache keeps 2 L H_kv d_k numbers for each token: a key and a value in each layer, for each head that has its own.

A model answers in two stages. Prefill reads the prompt, all of its words in one pass. Decoding writes, a word for each
user in one pass. A pass must read all P weights and the users' caches, and it must compute. Whatever takes longer
decides: this bound is the roofline (Williams et al. 2009).

    seconds   at least  max(operations / operations a second, bytes / bytes a second)
    weights   2 P operations for each word of the pass, but 4 P bytes (float32) once for all of them
    cache     4 L d T operations and 8 L d T bytes for each user, for the T words that it holds: nobody shares it

A written word alone does half an operation for each byte, and the processor waits for the memory. A batch of users
shares the weights that are read. The words of a prompt share them without a batch.

    python phase4_causal/serving/cache_cost.py

Writes cache_cost.png to visualizations/plots/phase4/.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor

from phase2_multi_head.grouped_query_attention import kv_cache_bytes
from phase4_causal.key_value_cache import KeyValueCache
from phase4_causal.models import long_model
from phase4_causal.writing.sampling import new_caches
from shared import cli
from shared.evidence import findings
from shared.evidence.claims import PROBE, Claim, measures
from shared.measure import count_operations, in_bytes, machine, matmul_rate, memory_rate, paired_times, ratio_quartiles
from shared.toy_model import ToyTransformer
from shared.visualization_utils import BLUE, GREEN, ORANGE, headline, label_ends, save_plot

PUBLISHED = {  # layers, key-value heads, d_k, tokens kept at most
    "GPT-2": (12, 12, 64, 1024),  # Radford et al. 2019
    "Llama 2 7B": (32, 32, 128, 4096),  # Touvron et al. 2023
    "Llama 2 70B": (80, 8, 128, 4096),  # the same paper: eight query heads share each key-value head
    "Mistral 7B": (32, 8, 128, 4096),  # Jiang et al. 2023: its window
    "Llama 3 8B": (32, 8, 128, 8192),  # Grattafiori et al. 2024
}
D_MODEL, NUM_LAYERS, ROUNDS = 768, 2, 4  # 38 MB of weights: more than most processors keep near
PREFILL, DECODING, LONG = "prefill, 128 words", "decoding, 64 words kept", "decoding, 1,024 words kept"
LINES = {  # words in the cache before, new words, sizes of the batch, colour
    PREFILL: (0, 128, (1, 4), GREEN),
    DECODING: (63, 1, (1, 4, 16, 64), BLUE),
    LONG: (1023, 1, (1, 4, 16), ORANGE),
}
TOY, CALLS = "toy model, a word after 499", "the same calls, d = 4"  # the second hardly computes
Rates = tuple[float, float]  # operations a second, bytes a second
Row = tuple[float, float, float]  # operations a byte, seconds a word by the roofline and measured


class Pass(NamedTuple):
    """One call of a model: for each of `batch` users `new` words, behind `past` words in the user's cache."""

    line: str
    batch: int
    past: int
    new: int


PASSES = {f"{line}, batch {b}": Pass(line, b, *words) for line, (*words, sizes, _) in LINES.items() for b in sizes}


@torch.no_grad()
def run(model: ToyTransformer, tokens: Tensor, caches: list[KeyValueCache], past: int) -> None:
    for cache in caches:
        cache.length = past  # what the last call added is forgotten
    model(tokens, caches=caches)


def prepared(model: ToyTransformer, work: Pass) -> Callable[[], None]:
    """A pass whose caches hold `past` words, to be called again and again."""
    caches = new_caches(model, work.past + work.new, work.batch)
    for cache in caches:
        for buffer in (cache.keys, cache.values):
            buffer.fill_(0.1)  # zeros that nobody has written to are not in memory yet: read in no time
    tokens = torch.ones(work.batch, work.new, dtype=torch.long, device=model.positions.device)
    return partial(run, model, tokens, caches, work.past)


def costs(model: ToyTransformer, work: Pass) -> tuple[int, int]:
    """Operations and bytes of a pass; what goes from layer to layer is small and left out. model: may be on "meta"."""
    heads, layers = model.blocks[0].attention.num_heads, len(model.blocks)
    d_k = model.positions.size(1) // heads
    kept = kv_cache_bytes(heads, d_k, work.past + work.new, num_layers=layers, bytes_each=4)
    weights = sum(parameter.nbytes for parameter in model.parameters())
    return count_operations(prepared(model, work)), weights + work.batch * kept


def time_passes(rounds: int, device: str) -> dict[str, list[float]]:
    """Seconds in each round of every pass, and of two small models."""
    model = long_model(1024, device, D_MODEL, NUM_LAYERS)
    calls = {name: prepared(model, work) for name, work in PASSES.items()}
    for name, small in ((TOY, long_model(500, device)), (CALLS, long_model(500, device, 4))):
        calls[name] = prepared(small, Pass(name, 1, 499, 1))
    return paired_times(calls, rounds=rounds, device=device)


@measures(
    Claim(
        id="serving-batch",
        text="In a batch a written word takes less time, since the weights are read once for all users; less is gained "
        "with long caches, which nobody shares, and little in a prompt, whose words share one pass anyway",
        source="Pope et al. 2022, section 2",
        kind=PROBE,
        rule="times: no verdict",
        holds=None,
        unit="time a word over that in a batch of 1; and of a small model, the time of its calls alone as a share of "
        "the whole; quartiles over rounds",
    )
)
def ratios(times: dict[str, list[float]]) -> dict[str, list[float]]:
    found = {f"{CALLS} / {TOY}": ratio_quartiles(times, CALLS, TOY)}
    for name, (line, batch, *_) in PASSES.items():
        if batch > 1:
            found[name] = [ratio / batch for ratio in ratio_quartiles(times, name, f"{line}, batch 1")]
    return found


def show_published() -> None:
    print(f"\n{'In 16 bits':16}{'numbers a token':>16}{'bytes a token':>15}{'tokens':>9}{'cache of one user':>19}")
    for name, (layers, heads, d_k, length) in PUBLISHED.items():
        each, whole = (kv_cache_bytes(heads, d_k, tokens, num_layers=layers) for tokens in (1, length))
        print(f"   {name:13}{each // 2:16,}{in_bytes(each):>15}{length:9,}{in_bytes(whole):>19}")


def per_word(times: dict[str, list[float]], rates: Rates) -> dict[str, Row]:
    """Of each pass: operations a byte; seconds a word, by the roofline and in the best round."""
    model, found = long_model(1024, "meta", D_MODEL, NUM_LAYERS), {}
    for name, work in PASSES.items():
        (operations, moved), words = costs(model, work), work.batch * work.new
        least = max(operations / rates[0], moved / rates[1])
        found[name] = operations / moved, least / words, min(times[name]) / words
    return found


def show(found: dict[str, Row], rates: Rates) -> None:
    operations, moved = (rate / 1e9 for rate in rates)
    print(f"\n{machine()}: {operations:.0f} billion operations or {moved:.0f} billion bytes a second")
    print(f"   {'':38}{'operations':>10}   {'ms a word':>19}\n   {'':38}{'a byte':>10}{'at least':>12}{'measured':>10}")
    for name, (intensity, least, best) in found.items():
        print(f"   {name:38}{intensity:10.1f}{1e3 * least:12.2f}{1e3 * best:10.2f}")


def draw(found: dict[str, Row]) -> tuple[Figure, str]:
    """Time for a word against the batch: measured, and dotted the roofline."""
    fig, ax = plt.subplots(figsize=(8.2, 4.8), layout="constrained")
    ends, unit = {}, found[f"{DECODING}, batch 1"][1]
    for line, (_, _, batches, color) in LINES.items():
        _, least, best = torch.tensor([found[f"{line}, batch {b}"] for b in batches]).T / unit
        ax.plot(batches, best, "o-", color=color, linewidth=2.5, ms=7)
        ax.plot(batches, least, ":", color=color, linewidth=2)
        ends[line.replace(", ", "\n", 1)] = (batches[-1], best[-1], color)
    ax.set(xscale="log", yscale="log", xlabel="users at once (batch)")
    ax.set_ylabel("time for one word\n(1 = the least for one user alone)")
    ax.set_xticks((1, 4, 16, 64), (1, 4, 16, 64))
    ax.set_yticks((1, 0.1), ("1", "1/10"))
    ax.minorticks_off()
    title = "A batch makes writing cheap: the weights are read once for all. Reading gains little"
    note = f"untrained, {NUM_LAYERS} layers, d = {D_MODEL}, float32 · dotted: the least possible, by the roofline"
    headline(fig, title, note, 12)
    label_ends(ax, ends, size=10)
    return fig, f"{title}. Time for one word against the number of users: short and long caches, and prompts."


@cli.script
def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    show_published()
    rates = matmul_rate(options.device), memory_rate(options.device)
    times = time_passes(1 if options.quick else ROUNDS, options.device)
    found = per_word(times, rates)
    show(found, rates)
    save_plot(options, "phase4/cache_cost", *draw(found))
    numbers = ratios(times)
    findings.record(options, numbers)
    written, read = (1 / numbers[f"{line}, batch {b}"][1] for line, b in ((DECODING, 64), (PREFILL, 4)))
    return f"A written word takes 1/{written:.0f} of the time in a batch of 64; a word read 1/{read:.1f} in one of 4"


if __name__ == "__main__":
    cli.run(main)
