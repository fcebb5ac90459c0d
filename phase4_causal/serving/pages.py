"""How many more texts fit into the same memory, if the cache is cut into pages?

A stream of requests: sentences of the toy language, of which a part is given and the rest is to be written. A request
is let in as soon as the memory has room for what it brings. Each step reads what is new of all texts, packed into one
batch without padding, and gives each one word more. Where memory runs out, the newest text gives its blocks back, waits
and is read again later.

Both ways run the same code (paged_cache.py). A block that is as long as the longest sentence is a cache in one piece:
each text takes one, and keeps all of it. So the block size is all that differs. Keys are one number wide, since only
the places that they take are counted.

    python phase4_causal/serving/pages.py

Writes pages.png to visualizations/plots/phase4/.
"""

import random
from collections.abc import Iterator
from statistics import mean

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from phase4_causal.serving.paged_cache import PagedCache
from shared import cli
from shared.evidence import findings
from shared.evidence.claims import EXPERIMENT, Claim, Numbers, measures
from shared.toy_language import sample_sentence
from shared.visualization_utils import BLUE, GREY, headline, label_ends, save_plot

PLACES, STEPS = 960, 120  # of the memory; of the stream
LONGEST, PAGE = 20, 4  # places: <start> and the 18 words that a sentence may have, rounded up; a block of a page
BLOCKS = (1, PAGE, LONGEST)
WRITTEN, EMPTY, AGAIN = "words a step", "empty share of the places held", "words read again for one written"


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


def run(seed: int, block_size: int, steps: int = STEPS) -> Server:
    server = Server(seed, block_size)
    for _ in range(steps):
        server.step()
    return server


def gain(n: Numbers) -> float:
    """How many times as many words are written in pages of PAGE places as in one piece."""
    return n[f"{WRITTEN}, blocks of {PAGE}"] / n[f"{WRITTEN}, blocks of {LONGEST}"]


@measures(
    Claim(
        id="pages-throughput",
        text="In pages, the same memory serves 2 to 4 times as many words as with a cache in one piece for each text",
        kind=EXPERIMENT,
        source="Kwon et al. 2023 (PagedAttention), abstract, where it is measured on the clock",
        rule=f"words a step with blocks of {PAGE} places are 2 to 4 times those with blocks of {LONGEST}, one a text",
        holds=lambda n: 2 <= gain(n) <= 4,
        oracle={f"{WRITTEN}, blocks of {PAGE}": 130.0, f"{WRITTEN}, blocks of {LONGEST}": 48.0},
        null={f"{WRITTEN}, blocks of {PAGE}": 48.0, f"{WRITTEN}, blocks of {LONGEST}": 48.0},
        unit=f"means of {STEPS} steps with {PLACES} places",
        control="the same code; a block as long as the longest text is a cache in one piece",
    )
)
def served(seed: int, steps: int = STEPS) -> dict[str, float]:
    """The same requests with each block size."""
    found = {}
    for size, server in ((size, run(seed, size, steps)) for size in BLOCKS):
        found[f"{WRITTEN}, blocks of {size}"] = mean(server.texts)
        found[f"{EMPTY}, blocks of {size}"] = 1 - sum(server.filled) / sum(server.held)
        found[f"{AGAIN}, blocks of {size}"] = server.read_again / sum(server.texts)
    return found


def show_sharing() -> None:
    """A beginning of six words and three ways to go on: what is shared, what is copied, what is given back."""
    cache, key = PagedCache(8, 1, PAGE, 1), torch.zeros(6, 1, 1)
    first = cache.start()
    cache.append(key, key, {first: 6})
    second, third = cache.start(first), cache.start(first)
    print(f"\nA text of 6 words in blocks of {PAGE}, and two more that begin like it: {list(cache.tables.values())}")
    cache.append(key[:3], key[:3], {first: 1, second: 1, third: 1})
    print(f"   each writes a word of its own, two of them into copies:  {list(cache.tables.values())}")
    cache.end(first)
    print(f"   the first one has ended, what it alone has read is free: {list(cache.tables.values())}")


def show(found: Numbers) -> None:
    print(f"\n{'':34}" + "".join(f"{f'blocks of {size}':>14}" for size in BLOCKS))
    for name, form in ((WRITTEN, "14.1f"), (EMPTY, "14.1%"), (AGAIN, "14.3f")):
        print(f"   {name:31}" + "".join(f"{found[f'{name}, blocks of {size}']:{form}}" for size in BLOCKS))


def draw(found: Numbers, seed: int, steps: int) -> tuple[Figure, str]:
    fig, ax = plt.subplots(figsize=(8, 4.6), layout="constrained")
    ends, below = {}, 0
    for size, name, color in ((LONGEST, "in one piece", GREY), (PAGE, f"in pages of {PAGE}", BLUE)):
        shares = [filled / PLACES for filled in run(seed, size, steps).filled]
        ax.plot(shares, color=color, linewidth=2.5)
        ax.fill_between(range(len(shares)), shares, color=color, alpha=0.1, linewidth=0)
        ends[name] = (len(shares) - 1, shares[-1], color)
        texts = f"{found[f'{WRITTEN}, blocks of {size}']:.0f} texts at once"
        ax.text(len(shares) / 2, (below + mean(shares)) / 2, texts, ha="center", va="center", fontsize=12)
        below = mean(shares)
    ax.set(ylim=(0, 1.02), xlim=(0, len(shares) - 1), xlabel="step", ylabel="memory that holds a key")
    ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    title = f"In pages, {'more than twice' if gain(found) > 2 else 'not twice'} as many texts fit into the same memory"
    headline(fig, title, f"no model: {PLACES} places, sentences of the toy language, seed {seed}")
    label_ends(ax, ends, size=11)
    return fig, f"{title}. The share of the memory that holds keys, step by step, both ways."


@cli.script
def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    show_sharing()
    steps = STEPS // 4 if options.quick else STEPS
    found = [served(seed, steps) for seed in cli.seeds(options)]
    show(found[0])
    save_plot(options, "phase4/pages", *draw(found[0], options.seed, steps))
    findings.record(options, *found, show_numbers=False)
    pages, piece = (found[0][f"{EMPTY}, blocks of {size}"] for size in (PAGE, LONGEST))
    return f"{gain(found[0]):.1f} times as many: in pages {pages:.0%} of what texts hold is empty, else {piece:.0%}"


if __name__ == "__main__":
    cli.run(main)
