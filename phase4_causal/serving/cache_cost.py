"""What does a cache cost, and why does a batch help writing and not reading?

Prefill reads the prompt, all of its words in one pass. Decoding writes, a word for each user in one
pass. A pass must read all P weights and the users' caches, and it must compute. Whatever takes
longer decides: this bound is the roofline (Williams et al. 2009). Weights cost 2 P operations for
each word, but 4 P bytes once for all. A cache of T words costs 4 L d T operations and 8 L d T bytes
for each user, and is read for this user alone.

    python phase4_causal/serving/cache_cost.py
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from phase2_multi_head.costs.measure import (
    count_operations,
    matmul_rate,
    memory_rate,
    paired_times,
    ratio_quartiles,
)
from phase2_multi_head.grouped_query_attention import kv_cache_bytes
from phase4_causal.models import long_model
from phase4_causal.writing.sampling import new_caches
from shared.claims import Numbers
from shared.experiment import Experiment, Run
from shared.toy_model import ToyTransformer

D_MODEL, NUM_LAYERS = 768, 2  # 38 MB of weights: more than most processors keep near
QUARTILES = ("lower quartile", "median", "upper quartile")


@dataclass(frozen=True)
class Work:
    """A pass of a model: each user has `past` words in a cache, and `new` words go in."""

    past: int
    new: int
    batches: tuple[int, ...]  # how many users at once


WORKS = {
    "prefill, 128 words": Work(0, 128, (1, 4)),
    "decoding, 64 words kept": Work(63, 1, (1, 4, 16, 64)),
    "decoding, 1,024 words kept": Work(1023, 1, (1, 4, 16)),
}


def prepared(model: ToyTransformer, work: Work, batch: int) -> Callable[[], None]:
    """Returns the pass as a function that can be called again and again."""
    caches = new_caches(model, work.past + work.new, batch)
    for cache in caches:
        # Zeros that nobody has written to are not in memory yet, and are read in no time.
        cache.keys.fill_(0.1)
        cache.values.fill_(0.1)
    tokens = torch.ones(batch, work.new, dtype=torch.long, device=model.positions.device)

    @torch.no_grad()
    def call() -> None:
        for cache in caches:
            cache.length = work.past  # what the last call added is forgotten
        model(tokens, caches=caches)

    return call


def costs(model: ToyTransformer, work: Work, batch: int) -> tuple[int, int]:
    """Returns operations and bytes of a pass; what goes from layer to layer is small, left out.

    model: may be on the device "meta".
    """
    num_heads = model.blocks[0].attention.num_heads
    d_k = model.positions.size(1) // num_heads
    num_layers = len(model.blocks)
    length = work.past + work.new
    cache = kv_cache_bytes(num_heads, d_k, length, num_layers=num_layers, bytes_each=4)
    weights = sum(parameter.nbytes for parameter in model.parameters())
    return count_operations(prepared(model, work, batch)), weights + batch * cache


def measure(run: Run) -> Numbers:
    """Returns operations a byte of each pass; milliseconds a word, measured and by the roofline.

    And the time for a word over that in a batch of 1, in quartiles.
    """
    device = run.options.device
    model = long_model(1024, device, D_MODEL, NUM_LAYERS)
    counted = long_model(1024, "meta", D_MODEL, NUM_LAYERS)
    calls = {}
    for name, work in WORKS.items():
        for batch in work.batches:
            calls[f"{name}, batch {batch}"] = prepared(model, work, batch)
    times = paired_times(calls, rounds=1 if run.options.quick else 4, device=device)
    operations_per_second = matmul_rate(device)
    bytes_per_second = memory_rate(device)
    numbers = {}
    for name, work in WORKS.items():
        for batch in work.batches:
            call = f"{name}, batch {batch}"
            words = batch * work.new
            operations, moved = costs(counted, work, batch)
            least_seconds = max(operations / operations_per_second, moved / bytes_per_second)
            numbers[f"{call}, operations a byte"] = operations / moved
            numbers[f"{call}, ms a word"] = 1000 * min(times[call]) / words
            numbers[f"{call}, ms by the roofline"] = 1000 * least_seconds / words
            quartiles = ratio_quartiles(times, call, f"{name}, batch 1")
            for which, ratio in zip(QUARTILES, quartiles, strict=True):
                numbers[f"{call}, {which}"] = ratio / batch
    return numbers


main = Experiment(
    measure,
    answer="Each user's cache must be read for that user alone, but the weights are read once for "
    "a batch. So a word written takes {n[decoding, 64 words kept, batch 64, median]:.2f} of the "
    "time in a batch of 64. A prompt shares them among its own words: a word read takes "
    "{n[prefill, 128 words, batch 4, median]:.2f} of the time in a batch of 4",
    machine_dependent=("*, ms *", "*, median", "* quartile"),
    uses="--device --quick",
)

if __name__ == "__main__":
    main.run()
