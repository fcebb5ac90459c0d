"""What does a cache cost, and why does a batch help writing and not reading?

Prefill reads the prompt, all of its words in one pass. Decoding writes, a word for each user in one
pass. A pass must read all P weights and the users' caches, and it must compute. Whatever takes
longer decides: this bound is the roofline (Williams et al. 2009). Weights cost 2 P operations for
each word, but 4 P bytes once for all. A cache of T words costs 4 L d T operations and 8 L d T bytes
for each user: nobody shares it.
"""

from collections.abc import Callable
from typing import NamedTuple

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure

from phase2_multi_head.grouped_query_attention import kv_cache_bytes
from phase4_causal.models import long_model
from phase4_causal.writing.sampling import new_caches
from shared.evidence.claims import Numbers
from shared.experiment import Experiment, Results, Run
from shared.measure import count_operations, matmul_rate, memory_rate, paired_times, ratio_quartiles
from shared.toy_model import ToyTransformer
from shared.visualization_utils import BLUE, GREEN, ORANGE, label_ends

D_MODEL, NUM_LAYERS = 768, 2  # 38 MB of weights: more than most processors keep near
LINES = {  # words in the cache before, new words, sizes of the batch, colour
    "prefill, 128 words": (0, 128, (1, 4), GREEN),
    "decoding, 64 words kept": (63, 1, (1, 4, 16, 64), BLUE),
    "decoding, 1,024 words kept": (1023, 1, (1, 4, 16), ORANGE),
}


class Pass(NamedTuple):
    """One call of a model: for each of `batch` users `new` words, behind `past` words in the user's
    cache.
    """

    batch: int
    past: int
    new: int


PASSES = {
    f"{line}, batch {b}": Pass(b, past, new)
    for line, (past, new, sizes, _) in LINES.items()
    for b in sizes
}


def prepared(model: ToyTransformer, work: Pass) -> Callable[[], None]:
    """A pass whose caches hold `past` words, to be called again and again."""
    caches = new_caches(model, work.past + work.new, work.batch)
    for cache in caches:
        for buffer in (cache.keys, cache.values):
            buffer.fill_(
                0.1
            )  # zeros that nobody has written to are not in memory yet: read in no time
    tokens = torch.ones(work.batch, work.new, dtype=torch.long, device=model.positions.device)

    @torch.no_grad()
    def call() -> None:
        for cache in caches:
            cache.length = work.past  # what the last call added is forgotten
        model(tokens, caches=caches)

    return call


def costs(model: ToyTransformer, work: Pass) -> tuple[int, int]:
    """Operations and bytes of a pass; what goes from layer to layer is small and left out. model:
    may be on "meta".
    """
    heads, layers = model.blocks[0].attention.num_heads, len(model.blocks)
    d_k = model.positions.size(1) // heads
    kept = kv_cache_bytes(heads, d_k, work.past + work.new, num_layers=layers, bytes_each=4)
    weights = sum(parameter.nbytes for parameter in model.parameters())
    return count_operations(prepared(model, work)), weights + work.batch * kept


def measure(run: Run) -> Numbers:
    """Of each pass operations a byte, and the time for a word over that in a batch of 1, quartiles
    over rounds.
    """
    device, numbers = run.options.device, {}
    model, counted = (long_model(1024, where, D_MODEL, NUM_LAYERS) for where in (device, "meta"))
    calls = {name: prepared(model, work) for name, work in PASSES.items()}
    times = paired_times(calls, rounds=1 if run.options.quick else 4, device=device)
    operations_per_second, bytes_per_second = matmul_rate(device), memory_rate(device)
    for name, work in PASSES.items():
        operations, moved = costs(counted, work)
        least_seconds = max(operations / operations_per_second, moved / bytes_per_second)
        run.shown[name] = torch.tensor([min(times[name]), least_seconds]) / (work.batch * work.new)
        numbers[f"{name}, operations a byte"] = operations / moved
        quartiles = ratio_quartiles(times, name, f"{name.rpartition(',')[0]}, batch 1")
        for which, ratio in zip(
            ("lower quartile", "median", "upper quartile"), quartiles, strict=True
        ):
            numbers[f"{name}, {which}"] = ratio / work.batch
    return numbers


def picture(results: Results) -> Figure:
    """Time for a word against the batch, as a share of that for one user: measured, and dotted the
    roofline.
    """
    fig, ax = plt.subplots(figsize=(8.2, 4.8), layout="constrained")
    ends = {}
    for line, (_, _, batches, color) in LINES.items():
        times = torch.stack([results.shown[f"{line}, batch {b}"] for b in batches])
        measured, least = (times / times[0]).T
        ax.plot(batches, measured, "o-", color=color, linewidth=2.5, ms=7)
        ax.plot(batches, least, ":", color=color, linewidth=2)
        name = line.replace(", ", "\n", 1)
        ends[f"× {measured[-1]:.2g}  {name}"] = (batches[-1], measured[-1], color)
    ax.set(
        xscale="log",
        yscale="log",
        xlabel="users at once (batch)",
        ylabel="time for one word, alone = 1",
    )
    ax.set_xticks((1, 4, 16, 64), (1, 4, 16, 64))
    ax.set_yticks((1, 0.1), ("1", "1/10"))
    ax.minorticks_off()
    label_ends(ax, ends, size=10)
    return fig


main = Experiment(
    measure,
    picture=picture,
    title="A batch makes a word far cheaper to write, but hardly to read",
    note=f"untrained, {NUM_LAYERS} layers, d = {D_MODEL}, float32 · dotted: what the roofline promises",
    answer="A written word takes {n[decoding, 64 words kept, batch 64, median]:.2f} of the time in a batch of 64; a "
    "word read {n[prefill, 128 words, batch 4, median]:.2f} in one of 4",
)

if __name__ == "__main__":
    main.run()
