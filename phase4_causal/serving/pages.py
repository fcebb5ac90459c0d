"""How many more texts fit into the same memory, if the cache is cut into pages?

A stream of requests: sentences of the toy language, of which a part is given and the rest is to be written. A request
is let in as soon as the memory has room for what it brings. Each step reads what is new of all texts, and gives each
one word more. Where memory runs out, the newest text gives its blocks back, waits and is read again later.

All ways run the same code (paged_cache.py). A block that is as long as the longest sentence is a cache in one piece, so
the block size is all that differs. Keys are one number wide, since only the places that they take are counted.
"""

import random
from collections.abc import Iterator
from statistics import mean

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from phase4_causal.serving.paged_cache import PagedCache
from shared.evidence.claims import Numbers
from shared.experiment import Experiment, Results, Run
from shared.toy_language import sample_sentence
from shared.visualization_utils import BLUE, GREY, label_ends

PLACES, STEPS = 960, 120  # of the memory; of the stream
LONGEST, PAGE = 20, 4  # places: <start> and the 18 words that a sentence may have, rounded up; a block of a page


def requests(seed: int) -> Iterator[tuple[int, int]]:
    """(words given, words in the end) of one sentence after the other, <start> included."""
    rng = random.Random(seed)
    while True:
        length = 1 + len(sample_sentence(rng).words)
        yield rng.randint(1, length), length


class Server:
    """A cache of PLACES places, and requests without end. Of each step are kept: texts, how many got a word; held, the
    places in blocks that belong to a text; filled, how many of these hold a key.
    """

    def __init__(self, seed: int, block_size: int) -> None:
        self.cache, self.coming = PagedCache(PLACES // block_size, 1, block_size, 1), requests(seed)
        self.sent_back: list[tuple[int, int]] = []  # requests that wait; they go before those that come
        self.lengths: dict[int, int] = {}  # of each text, in the end
        self.texts, self.held, self.filled = [], [], []
        self.read_again = 0  # words, in all steps

    def run(self, steps: int) -> "Server":
        for _ in range(steps):
            self.step()
        return self

    def step(self) -> None:
        """A word for each text; those that are complete end."""
        new = self.let_in(self.make_room(dict.fromkeys(self.lengths, 1)))
        keys = torch.zeros(sum(new.values()), 1, 1)
        self.cache.append(keys, keys, new)
        self.texts.append(len(new))
        self.held.append(PLACES - self.cache.block_size * len(self.cache.free))
        self.filled.append(sum(self.cache.lengths.values()))
        for text in [text for text, length in self.lengths.items() if self.cache.lengths[text] == length]:
            self.cache.end(text)
            del self.lengths[text]

    def make_room(self, new: dict[int, int]) -> dict[int, int]:
        """The newest texts give their blocks back, as many as it takes for the others to go on."""
        while self.cache.blocks_for(new) > len(self.cache.free):
            text, _ = new.popitem()
            self.sent_back.append((self.cache.lengths[text] + 1, self.lengths.pop(text)))
            self.read_again += self.cache.lengths[text]
            self.cache.end(text)
        return new

    def let_in(self, new: dict[int, int]) -> dict[int, int]:
        """New texts, each with all that it brings, as long as there is room."""
        while True:
            given, length = self.sent_back.pop() if self.sent_back else next(self.coming)
            text = self.cache.start()
            if self.cache.blocks_for(new | {text: given}) > len(self.cache.free):
                self.cache.end(text)
                self.sent_back.append((given, length))
                return new
            new[text], self.lengths[text] = given, length


def measure(run: Run) -> Numbers:
    """Counted, over all steps, of the same requests: in blocks of one place, in pages, in one piece for each text."""
    numbers = {}
    for name, size in (("blocks of 1", 1), (f"pages of {PAGE}", PAGE), ("in one piece", LONGEST)):
        server = Server(run.seed, size).run(run.steps(STEPS))
        numbers[f"words a step, {name}"] = mean(server.texts)
        numbers[f"empty share of the places held, {name}"] = 1 - sum(server.filled) / sum(server.held)
        numbers[f"words read again for one written, {name}"] = server.read_again / sum(server.texts)
        run.shown[name] = [filled / PLACES for filled in server.filled]
    return numbers


def picture(results: Results) -> Figure:
    """The share of the memory that holds keys, step by step, both ways."""
    fig, ax = plt.subplots(figsize=(8, 4.6), layout="constrained")
    ends = {}
    for name, color in (("in one piece", GREY), (f"pages of {PAGE}", BLUE)):
        shares = results.shown[name]
        ax.plot(shares, color=color, linewidth=2.5)
        ax.fill_between(range(len(shares)), shares, color=color, alpha=0.1, linewidth=0)
        texts = f"{results.runs[0][f'words a step, {name}']:.0f} texts at once"
        ax.text(len(shares) / 2, mean(shares) - 0.08, texts, ha="center", va="top", fontsize=12)
        ends[name] = (len(shares) - 1, shares[-1], color)
    ax.set(ylim=(0, 1.02), xlim=(0, len(shares) - 1), xlabel="step", ylabel="memory that holds a key")
    ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    label_ends(ax, ends, size=11)
    return fig


main = Experiment(
    measure,
    picture=picture,
    title="In pages, more than twice as many texts fit into the same memory",
    note=f"no model: {PLACES} places, sentences of the toy language",
    answer="{n[words a step, pages of 4]:.0f} words a step in pages, {n[words a step, in one piece]:.0f} in one piece: "
    "of what texts hold {n[empty share of the places held, pages of 4]:.0%} is empty, else "
    "{n[empty share of the places held, in one piece]:.0%}",
)

if __name__ == "__main__":
    main.run()
