"""How many more texts fit into the same memory, if the cache is cut into pages?

Sentences of the toy language are being written: of each a random part is there already. They are let into the memory
until one does not fit. All ways run the same code (paged_cache.py): a block that is as long as the longest sentence is
a cache in one piece, so the block size is all that differs. Keys are one number wide: only the places count.
"""

import random

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure

from phase4_causal.serving.paged_cache import PagedCache
from shared import charts
from shared.evidence.claims import Numbers
from shared.experiment import Experiment, Results, Run
from shared.toy_language import sample_sentence
from shared.visualization_utils import BLUE, GREEN, GREY

PLACES, FILLS = 960, 20
BLOCKS = {"in one piece": 20, "pages of 4": 4, "blocks of 1": 1}  # places; a sentence has 18 words at most, and <start>
COLORS = {"in one piece": GREY, "pages of 4": BLUE, "blocks of 1": GREEN}


def filled(block_size: int, rng: random.Random) -> PagedCache:
    """A memory into which the next text does not fit."""
    cache = PagedCache(PLACES // block_size, 1, block_size, 1)
    while True:
        text, there = cache.start(), rng.randint(1, 1 + len(sample_sentence(rng).words))
        if cache.blocks_for({text: there}) > len(cache.free):
            cache.end(text)
            return cache
        keys = torch.zeros(there, 1, 1)
        cache.append(keys, keys, {text: there})


def measure(run: Run) -> Numbers:
    """Counted: texts in the memory, and the share of the places they hold in which no key lies; the same texts."""
    numbers = {}
    for name, block_size in BLOCKS.items():
        rng = random.Random(run.seed)
        caches = [filled(block_size, rng) for _ in range(FILLS)]
        held = sum(PLACES - block_size * len(cache.free) for cache in caches)
        numbers[f"{name}, texts"] = sum(len(cache.lengths) for cache in caches) / FILLS
        numbers[f"{name}, empty"] = 1 - sum(sum(cache.lengths.values()) for cache in caches) / held
    return numbers


def picture(results: Results) -> Figure:
    fig, ax = plt.subplots(figsize=(7.6, 3.4), layout="constrained")
    charts.bars(ax, {name: results.each(f"{name}, texts") for name in BLOCKS}, COLORS, number="{:.0f}")
    ax.set_xlabel("texts in the same memory")
    return fig


main = Experiment(
    measure,
    picture=picture,
    title="In pages, more than twice as many texts fit into the same memory",
    note=f"no model: {PLACES} places, sentences of the toy language",
    answer="{n[pages of 4, texts]:.0f} texts fit in pages, {n[in one piece, texts]:.0f} in one piece: of what they "
    "hold {n[pages of 4, empty]:.0%} is empty, else {n[in one piece, empty]:.0%}",
)

if __name__ == "__main__":
    main.run()
