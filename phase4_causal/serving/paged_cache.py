"""How does attention find keys that lie in blocks, anywhere in memory?

A cache in one piece keeps room for the longest text there may be, and most of that stays empty. So memory is cut into
blocks of a few places, as an operating system cuts its memory into pages:

    pool    (num_blocks, H, block_size, d_k) for keys and again for values; any block may belong to any text
    table   of a text: its blocks in order. Position t is in block table[t // block_size], at t % block_size
    free    the blocks of nobody. A text takes one when its last is full, and gives all back when it ends

Texts that begin alike share the blocks of the beginning. Each block counts its readers; who wants to write into a block
that others read writes into a copy (Kwon et al. 2023, PagedAttention).
"""

from collections import Counter
from collections.abc import Mapping

import torch
from torch import Tensor

from phase1_single_head.self_attention import scaled_dot_product_attention
from shared.attention_utils import causal_mask

New = Mapping[int, int]  # text -> how many new words it has, 1 or more, in the order in which they are packed


class PagedCache:
    """Keys and values of one attention layer for many texts, in blocks of one pool.

    Every use raises ValueError for a text that was not started, or has ended.
    tables, lengths: of each text. readers: how many texts have a block in their table; free: blocks that none has.
    """

    def __init__(
        self, num_blocks: int, num_heads: int, block_size: int, d_k: int, dtype: torch.dtype = torch.float32
    ) -> None:
        self.keys, self.values = torch.zeros(2, num_blocks, num_heads, block_size, d_k, dtype=dtype)
        self.block_size, self.readers = block_size, [0] * num_blocks
        self.free = list(range(num_blocks))[::-1]  # the last is taken first
        self.tables: dict[int, list[int]] = {}
        self.lengths: dict[int, int] = {}
        self.texts = 0  # started so far

    def start(self, parent: int | None = None) -> int:
        """A new text, empty or with all that `parent` holds, of which nothing is copied -> its number."""
        self.check_texts(*([] if parent is None else [parent]))
        text, self.texts = self.texts, self.texts + 1
        self.tables[text] = list(self.tables.get(parent, []))
        self.lengths[text] = self.lengths.get(parent, 0)
        for block in self.tables[text]:
            self.readers[block] += 1
        return text

    def end(self, text: int) -> None:
        """Give back the blocks that nobody else reads."""
        self.check_texts(text)
        for block in self.tables.pop(text):
            self._leave(block)
        del self.lengths[text]

    def check_texts(self, *texts: int) -> None:
        for text in texts:
            if text not in self.tables:
                rule = "a text must be one that start() made and end() did not take"
                raise ValueError(f"{rule}: got {text}; there are {list(self.tables)}")

    def _leave(self, block: int) -> None:
        self.readers[block] -= 1
        if not self.readers[block]:
            self.free.append(block)

    def _take(self) -> int:
        block = self.free.pop()
        self.readers[block] = 1
        return block

    def blocks_for(self, new: New) -> int:
        """How many free blocks these words would take, copies of shared blocks included."""
        self.check_texts(*new)
        fresh, writers = 0, Counter()  # of each block that is not full
        for text, count in new.items():
            fresh += -(-(self.lengths[text] + count) // self.block_size) - len(self.tables[text])
            writers.update(self.tables[text][-1:] if self.lengths[text] % self.block_size else ())
        return fresh + sum(min(count, self.readers[block] - 1) for block, count in writers.items())  # the last keeps it

    def append(self, key: Tensor, value: Tensor, new: New) -> None:
        """Put key and value (N, H, d_k), the new words of all texts packed one after the other, behind their texts.

        Raises ValueError, and stores nothing, for another shape or dtype, or too few free blocks.
        """
        shape, dtype = (sum(new.values()), self.keys.size(1), self.keys.size(3)), self.keys.dtype
        for given in (key, value):
            if given.shape != shape or given.dtype != dtype:
                raise ValueError(f"words must be {shape} in {dtype}: got {tuple(given.shape)} in {given.dtype}")
        if self.blocks_for(new) > len(self.free):
            advice = "end a text, or make more blocks"
            raise ValueError(f"{self.blocks_for(new)} blocks are needed: got {len(self.free)} free ones; {advice}")
        blocks, places = [], []
        for text, count in new.items():
            table = self.tables[text]
            if self.lengths[text] % self.block_size and self.readers[table[-1]] > 1:
                shared, table[-1] = table[-1], self._take()
                self.keys[table[-1]], self.values[table[-1]] = self.keys[shared], self.values[shared]
                self._leave(shared)
            for position in range(self.lengths[text], self.lengths[text] + count):
                if position % self.block_size == 0:
                    table.append(self._take())
                blocks.append(table[-1])
                places.append(position % self.block_size)
            self.lengths[text] += count
        self.keys[blocks, :, places] = key  # (num_blocks, H, block_size, d_k) -> (N, H, d_k)
        self.values[blocks, :, places] = value


def paged_attention(query: Tensor, cache: PagedCache, new: New) -> Tensor:
    """query (N, H, d_k) of the words that were appended last, packed as then -> output (N, H, d_k).

    Raises ValueError for more words than a text holds.
    """
    cache.check_texts(*new)
    for text, count in new.items():
        if count > cache.lengths[text]:
            raise ValueError(f"text {text} holds {cache.lengths[text]} words: got {count} new ones")
    outputs = []
    for asking, text in zip(query.split(list(new.values())), new, strict=True):
        key, value = (
            pool[cache.tables[text]].transpose(0, 1).flatten(1, 2)[:, : cache.lengths[text]]
            for pool in (cache.keys, cache.values)
        )  # (num_blocks, H, block_size, d_k) -> (H, blocks of the text * block_size, d_k) -> (H, length, d_k)
        mask = causal_mask(len(asking), cache.lengths[text])
        output, _ = scaled_dot_product_attention(asking.transpose(0, 1), key, value, mask)
        outputs.append(output.transpose(0, 1))  # (H, T_new, d_k) -> (T_new, H, d_k)
    return torch.cat(outputs)
