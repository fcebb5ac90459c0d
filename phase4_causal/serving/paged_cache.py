"""How does attention find keys that lie in blocks, anywhere in memory?

A cache in one piece keeps room for the longest text there may be, and most of that stays empty. So
memory is cut into blocks of a few places, as an operating system cuts its memory into pages (Kwon
et al. 2023, PagedAttention):

    pool    (num_blocks, H, block_size, d_k) in each layer, for keys and for values; any block may belong to any text
    table   of a text: its blocks in order. Position t is in block table[t // block_size], at t % block_size
    free    the blocks that no text has. A text takes one when its last is full, and gives all back when it ends

Texts that begin alike share their first blocks: only full ones, which nobody writes into any more,
so none is copied. A block is found by the words that it holds, even when it is free, until somebody
takes it and writes into it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from phase1_single_head.self_attention import scaled_dot_product_attention
from shared.attention_checks import check_sizes
from shared.attention_utils import causal_mask


@dataclass(eq=False)  # two texts of the same words are still two
class Text:
    """tokens: all so far. Keys and values of the first `stored` of them lie in the blocks of the
    table.
    """

    tokens: list[int]
    table: list[int] = field(default_factory=list)
    stored: int = 0

    @property
    def new(self) -> range:
        """The positions whose keys and values are still to be computed."""
        return range(self.stored, len(self.tokens))


class PagedCache:
    """Keys and values of many texts, (num_layers, num_blocks, H, block_size, d_k) each; like: a
    tensor of their dtype.

    readers: how many texts have each block. holds: of each block all tokens up to its end, which
    find it; servers keep a hash of them. share=False: no block is looked for, and each text has its
    own. ValueError for a size below 1.
    """

    def __init__(
        self,
        num_layers: int,
        num_blocks: int,
        num_heads: int,
        block_size: int,
        d_k: int,
        like: Tensor,
        *,
        share: bool,
    ) -> None:
        check_sizes(1, num_blocks=num_blocks, block_size=block_size)
        self.keys, self.values = like.new_zeros(
            2, num_layers, num_blocks, num_heads, block_size, d_k
        )
        self.block_size, self.share = block_size, share
        self.readers, self.holds = [0] * num_blocks, [[]] * num_blocks

    @property
    def free(self) -> list[int]:
        return [block for block, readers in enumerate(self.readers) if not readers]

    def found(self, tokens: list[int]) -> list[int]:
        """The full blocks that hold the beginning of these tokens; never the last one: its query is
        still needed.
        """
        blocks = []
        for end in range(self.block_size, len(tokens), self.block_size):
            if tokens[:end] not in self.holds:
                break
            blocks.append(self.holds.index(tokens[:end]))
        return blocks

    def take(self, text: Text) -> bool:
        """Give the text blocks for all of its tokens; False, and nothing changes, if too few are
        free.
        """
        found = self.found(text.tokens) if self.share and not text.table else []
        free = [block for block in self.free if block not in found]
        missing = math.ceil(len(text.tokens) / self.block_size) - len(text.table + found)
        if missing > len(free):
            return False
        for block in found + free[:missing]:
            self.readers[block] += 1
            text.table.append(block)
        for i, block in enumerate(text.table):
            self.holds[block] = text.tokens[: (i + 1) * self.block_size]
        text.stored += len(found) * self.block_size
        return True

    def give_back(self, text: Text) -> None:
        """Its blocks are free, unless others read them; what they hold stays until they are taken
        again.
        """
        for block in text.table:
            self.readers[block] -= 1
        text.table, text.stored = [], 0

    def store(self, layer: int, key: Tensor, value: Tensor, texts: Sequence[Text]) -> None:
        """Put key and value (N, H, d_k) of all new words, packed, in their places; ValueError for
        another shape.
        """
        blocks = [
            text.table[position // self.block_size] for text in texts for position in text.new
        ]
        places = [position % self.block_size for text in texts for position in text.new]
        shape = (len(places), self.keys.size(2), self.keys.size(4))
        if not key.shape == value.shape == shape:
            raise ValueError(
                f"key and value must be {shape}: got {tuple(key.shape)} and {tuple(value.shape)}"
            )
        self.keys[layer][blocks, :, places] = key  # (num_blocks, H, block_size, d_k) -> (N, H, d_k)
        self.values[layer][blocks, :, places] = value


def in_a_row(pool: Tensor, table: list[int], length: int) -> Tensor:
    """One text's words out of its blocks: (num_blocks, H, block_size, d_k) -> (H, length, d_k)."""
    return pool[table].transpose(0, 1).flatten(1, 2)[:, :length]


def paged_attention(query: Tensor, cache: PagedCache, layer: int, texts: Sequence[Text]) -> Tensor:
    """query (N, H, d_k) of the new words, whose keys are stored, packed as there -> output (N, H,
    d_k).
    """
    outputs = []
    for asking, text in zip(query.split([len(text.new) for text in texts]), texts, strict=True):
        length = len(text.tokens)
        key, value = (
            in_a_row(pool[layer], text.table, length) for pool in (cache.keys, cache.values)
        )
        mask = causal_mask(len(text.new), length, device=query.device)
        output, _ = scaled_dot_product_attention(asking.transpose(0, 1), key, value, mask)
        outputs.append(output.transpose(0, 1))  # (H, T_new, d_k) -> (T_new, H, d_k)
    return torch.cat(outputs)
