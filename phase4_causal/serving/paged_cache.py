"""How does attention find keys that lie in blocks, anywhere in memory?

How long a text will get nobody knows before. A cache in one piece keeps room for the longest there may be, and most of
that stays empty. So memory is cut into blocks of a few places, as an operating system cuts its memory into pages:

    pool    (num_blocks, H, block_size, d_k) for keys and again for values; any block may belong to any text
    table   of a text: its blocks in order. Position t is in block table[t // block_size], at t % block_size
    free    the blocks of nobody. A text takes one when its last is full, and gives all back when it ends

Texts that begin alike share the blocks of the beginning. Each block counts its readers; who wants to write into a block
that others read writes into a copy. What is attended to stays the same: keys are found through the table, that is all.
pages.py measures what this is good for (Kwon et al. 2023, PagedAttention).
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from phase1_single_head.self_attention import scaled_dot_product_attention
from phase4_causal.key_value_cache import KeyValueCache
from shared.attention_checks import at_least_float32
from shared.attention_utils import causal_mask

New = Mapping[int, int]  # text -> how many new words it has, 1 or more, in the order in which they are packed


class PagedCache:
    """Keys and values of one attention layer for many texts, in blocks of one pool.

    Raises ValueError for a size < 1, and in every use for a text that was not started, or has ended.
    tables, lengths: of each text. readers: how many texts have a block in their table; free: blocks that none has.
    """

    def __init__(
        self,
        num_blocks: int,
        num_heads: int,
        block_size: int,
        d_k: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> None:
        pool = KeyValueCache(num_blocks, num_heads, block_size, d_k, dtype=dtype, device=device)
        self.keys, self.values, self.block_size = pool.keys, pool.values, block_size
        self.free, self.readers = list(range(num_blocks))[::-1], [0] * num_blocks  # the last is taken first
        self.tables: dict[int, list[int]] = {}
        self.lengths: dict[int, int] = {}
        self.texts = 0  # started so far

    def start(self, parent: int | None = None) -> int:
        """A new text, empty or with all that `parent` holds, of which nothing is copied -> its number."""
        self._check_texts(*([] if parent is None else [parent]))
        text, self.texts = self.texts, self.texts + 1
        self.tables[text] = list(self.tables[parent]) if parent is not None else []
        self.lengths[text] = self.lengths[parent] if parent is not None else 0
        for block in self.tables[text]:
            self.readers[block] += 1
        return text

    def end(self, text: int) -> None:
        """Give back the blocks that nobody else reads."""
        self._check_texts(text)
        for block in self.tables.pop(text):
            self._leave(block)
        del self.lengths[text]

    def _check_texts(self, *texts: int) -> None:
        for text in texts:
            if text not in self.tables:
                rule = "a text must be one that start() made and end() did not take"
                raise ValueError(f"{rule}: got {text}; there are {list(self.tables)}")

    def check_words(self, name: str, words: Tensor, new: New) -> None:
        """Raise ValueError unless these are N words of texts that are there, (N, H, d_k) in the dtype of the pool."""
        self._check_texts(*new)
        shape = (sum(new.values()), self.keys.size(1), self.keys.size(3))
        if words.shape != shape or words.dtype != self.keys.dtype:
            rule = f"{shape} in {self.keys.dtype}"
            raise ValueError(f"these words need a {name} of {rule}: got {tuple(words.shape)} in {words.dtype}")

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
        self._check_texts(*new)
        fresh, writers = 0, Counter()  # of each block that is not full
        for text, count in new.items():
            fresh += -(-(self.lengths[text] + count) // self.block_size) - len(self.tables[text])
            writers.update(self.tables[text][-1:] if self.lengths[text] % self.block_size else ())
        return fresh + sum(min(count, self.readers[block] - 1) for block, count in writers.items())  # the last keeps it

    def append(self, key: Tensor, value: Tensor, new: New) -> None:
        """Put key and value (N, H, d_k), the new words of all texts packed one after the other, behind their texts.

        Raises ValueError, and stores nothing, for other shapes or dtypes, gradients, or too few free blocks.
        """
        for name, given in (("key", key), ("value", value)):
            self.check_words(name, given, new)
            if given.requires_grad:
                raise ValueError(f"words are kept without gradients: got a {name} with them; use torch.no_grad()")
        if min(new.values(), default=1) < 1:
            raise ValueError(f"every text must have 1 new word or more: got {dict(new)}")
        if self.blocks_for(new) > len(self.free):
            advice = "end a text, or make more blocks"
            raise ValueError(f"{self.blocks_for(new)} blocks are needed: got {len(self.free)} free ones; {advice}")
        blocks, places = [], []
        for text, count in new.items():
            table = self.tables[text]
            if self.lengths[text] % self.block_size and self.readers[table[-1]] > 1:
                table[-1] = self._copy(table[-1])
            for position in range(self.lengths[text], self.lengths[text] + count):
                if position % self.block_size == 0:
                    table.append(self._take())
                blocks.append(table[-1])
                places.append(position % self.block_size)
            self.lengths[text] += count
        self.keys[blocks, :, places] = key  # (num_blocks, H, block_size, d_k) -> (N, H, d_k)
        self.values[blocks, :, places] = value

    def _copy(self, block: int) -> int:
        own = self._take()
        self.keys[own], self.values[own] = self.keys[block], self.values[block]
        self._leave(block)
        return own


def attend_by_loops(
    query: Tensor, key: Tensor, value: Tensor, caches: Sequence[KeyValueCache], counts: list[int]
) -> Tensor:
    """The specification: text by text, each with a cache of its own -> (N, H, d_k)."""
    outputs = []
    for cache, *parts in zip(caches, *(x.split(counts) for x in (query, key, value)), strict=True):
        q, k, v = (part.transpose(0, 1)[None] for part in parts)  # (T_new, H, d_k) -> (1, H, T_new, d_k)
        keys, values = cache.append(k, v)  # (1, H, T_new, d_k) -> (1, H, T_k, d_k)
        heads, _ = scaled_dot_product_attention(q, keys, values, causal_mask(q.size(2), keys.size(2)))
        outputs.append(heads[0].transpose(0, 1))  # (1, H, T_new, d_k) -> (T_new, H, d_k)
    return torch.cat(outputs)


def paged_attention(query: Tensor, cache: PagedCache, new: New) -> Tensor:
    """query (N, H, d_k) of the words that were appended last, packed as then -> output (N, H, d_k).

    No padding: there is a row for each pair of a word and a key that it may see, and the softmax is taken over the rows
    of a word (Kwon et al. 2023, section 4.1; their kernel reads a block at a time). 16 bits are summed in float32.
    Raises ValueError for another shape or dtype than those of the words that were appended.
    """
    cache.check_words("query", query, new)
    if not new:
        return query
    pairs, first = [], 0
    for text, count in new.items():
        word, position = causal_mask(count, cache.lengths[text]).nonzero().unbind(1)  # (count, length) -> (pairs,) each
        block = torch.tensor(cache.tables[text])[position // cache.block_size]
        pairs.append(torch.stack([first + word, block, position % cache.block_size]))
        first += count
    word, block, place = torch.cat(pairs, dim=1).to(query.device)  # (3, P): P pairs in all
    pools = cache.keys, cache.values
    key, value = (pool[block, :, place] for pool in pools)  # (num_blocks, H, block_size, d_k) -> (P, H, d_k)
    dtype, (query, key, value) = query.dtype, at_least_float32(query, key, value)
    scores = (query[word] * key).sum(-1) / math.sqrt(query.size(-1))  # (P, H, d_k) -> (P, H)
    rows = word[:, None].expand_as(scores)  # (P,) -> (P, H)
    largest = torch.full_like(query[..., 0], -math.inf).scatter_reduce(0, rows, scores, "amax")  # (P, H) -> (N, H)
    weights = (scores - largest[word]).exp()  # not yet divided by their sum
    total = torch.zeros_like(largest).index_add(0, word, weights)  # (P, H) -> (N, H)
    mixed = weights[..., None] * value  # (P, H, 1) with (P, H, d_k) -> (P, H, d_k)
    output = torch.zeros_like(query).index_add(0, word, mixed) / total[..., None]  # (P, H, d_k) -> (N, H, d_k)
    return output.to(dtype)
