"""How does attention find keys that lie in blocks, anywhere in memory?

A cache in one piece keeps room for the longest text there may be, and most of that stays empty. So
memory is cut into blocks of a few places, as an operating system cuts its memory into pages (Kwon
et al. 2023, PagedAttention):

    pool    (num_blocks, H_kv, block_size, d_k) in each layer, for keys and for values; any block
            may belong to any text
    table   of a text: its blocks in order. Position t is in block table[t // block_size], at place
            t % block_size
    free    the blocks that no text has. A text gets one when its last is full, and frees all of its
            own when it ends

Texts that begin alike share their first blocks: only full ones, which nobody writes into any more,
so none is copied. A block is found by the words that it holds, even when it is free, until another
text gets it and writes into it.

    python phase4_causal/serving/paged_cache.py
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from phase1_single_head.self_attention import scaled_dot_product_attention
from shared.attention_checks import check_sizes
from shared.attention_utils import causal_mask
from shared.toy_language import encode


@dataclass(eq=False)  # two texts of the same words are still two
class Text:
    """A text whose keys and values lie in blocks.

    tokens: all words so far. table: its blocks, which hold the keys and values of the first
    `stored` words. chunk_size: how many words a pass computes at most; None for all that are there.
    """

    tokens: list[int]
    table: list[int] = field(default_factory=list)
    stored: int = 0
    chunk_size: int | None = None

    @property
    def new(self) -> range:
        """The positions whose keys and values the next pass computes."""
        missing = range(self.stored, len(self.tokens))
        return missing[: self.chunk_size]


class PagedCache:
    """Keys and values of many texts, (num_layers, num_blocks, H_kv, block_size, d_k) each.

    like: a tensor of their dtype, on their device. ref_counts: how many texts have each block.
    contents: of each block all tokens of its text up to the block's end, by which it is found;
    servers keep a hash of them. share=False: no block is looked for, and each text has its own.
    Raises ValueError for num_blocks or block_size below 1.
    """

    def __init__(
        self,
        num_layers: int,
        num_blocks: int,
        num_kv_heads: int,
        block_size: int,
        d_k: int,
        like: Tensor,
        *,
        share: bool,
    ) -> None:
        check_sizes(1, num_blocks=num_blocks, block_size=block_size)
        self.keys = like.new_zeros(num_layers, num_blocks, num_kv_heads, block_size, d_k)
        self.values = torch.zeros_like(self.keys)
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.share = share
        self.ref_counts = [0] * num_blocks
        self.contents: list[list[int]] = [[]] * num_blocks

    @property
    def free_blocks(self) -> list[int]:
        """The blocks that no text has."""
        return [block for block in range(self.num_blocks) if not self.ref_counts[block]]

    def find_prefix(self, tokens: list[int]) -> list[int]:
        """The full blocks that hold the beginning of these tokens.

        The last token is never looked for, since its query is still needed.
        """
        blocks = []
        for end in range(self.block_size, len(tokens), self.block_size):
            if tokens[:end] not in self.contents:
                break
            blocks.append(self.contents.index(tokens[:end]))
        return blocks

    def allocate(self, text: Text) -> bool:
        """Give the text blocks for all of its tokens, before the pass that computes `text.new`.

        Returns False, and changes nothing, if too few blocks are free.
        """
        prefix = []  # blocks that are full already
        if self.share and not text.table:
            prefix = self.find_prefix(text.tokens)
        free = [block for block in self.free_blocks if block not in prefix]
        free.sort(key=lambda block: bool(self.contents[block]))  # empty ones first: none is lost
        needed = math.ceil(len(text.tokens) / self.block_size)
        missing = needed - len(text.table) - len(prefix)
        if missing > len(free):
            return False
        for block in prefix + free[:missing]:
            self.ref_counts[block] += 1
            text.table.append(block)
        text.stored += len(prefix) * self.block_size
        for number, block in enumerate(text.table, start=1):
            end = number * self.block_size
            # A block that the next pass does not fill must not be found: it holds nothing yet.
            self.contents[block] = text.tokens[:end] if end <= text.new.stop else []
        return True

    def free(self, text: Text) -> None:
        """Free the blocks of a text, unless others read them, too.

        What a block holds stays in it until the block is allocated again.
        """
        for block in text.table:
            self.ref_counts[block] -= 1
        text.table = []
        text.stored = 0

    def store(self, layer: int, key: Tensor, value: Tensor, texts: Sequence[Text]) -> None:
        """Put key and value (N, H_kv, d_k) of the new words of all texts, packed, in their places.

        Raises ValueError for another shape.
        """
        blocks, places = [], []
        for text in texts:
            for position in text.new:
                blocks.append(text.table[position // self.block_size])
                places.append(position % self.block_size)
        shape = (len(places), self.keys.size(2), self.keys.size(4))
        if not key.shape == value.shape == shape:
            raise ValueError(
                f"key and value must be {shape}: got {tuple(key.shape)} and {tuple(value.shape)}"
            )
        # Indexed so, the pool is (N, H_kv, d_k), as are key and value.
        self.keys[layer][blocks, :, places] = key.to(self.keys)  # under autocast it has 16 bits
        self.values[layer][blocks, :, places] = value.to(self.values)


def packed(texts: Sequence[Text], device: torch.device) -> tuple[Tensor, Tensor]:
    """The N new words of all texts in one row (N,), and their positions in their own texts (N,)."""
    tokens, positions = [], []
    for text in texts:
        tokens += text.tokens[text.stored : text.new.stop]
        positions += text.new
    return torch.tensor(tokens, device=device), torch.tensor(positions, device=device)


def in_a_row(pool: Tensor, text: Text) -> Tensor:
    """One text's words, up to the new ones, out of its blocks.

    pool (num_blocks, H_kv, block_size, d_k) -> (H_kv, T, d_k).
    """
    blocks = pool[text.table].transpose(0, 1)  # -> (H_kv, blocks, block_size, d_k)
    return blocks.flatten(1, 2)[:, : text.new.stop]


def paged_attention(query: Tensor, cache: PagedCache, layer: int, texts: Sequence[Text]) -> Tensor:
    """Returns the output (N, H, d_k) of the new words of all texts, whose keys are stored.

    query: (N, H, d_k), packed as in PagedCache.store. Several query heads may share a head of keys.
    """
    shared_by = query.size(1) // cache.keys.size(2)  # query heads for each head of keys
    query = query.to(cache.keys.dtype)
    outputs = []
    lengths = [len(text.new) for text in texts]
    for q, text in zip(query.split(lengths), texts, strict=True):
        key = in_a_row(cache.keys[layer], text)
        value = in_a_row(cache.values[layer], text)
        key = key.repeat_interleave(shared_by, dim=0)  # (H_kv, T, d_k) -> (H, T, d_k)
        value = value.repeat_interleave(shared_by, dim=0)
        mask = causal_mask(len(text.new), text.new.stop, device=query.device)
        output, _ = scaled_dot_product_attention(q.transpose(0, 1), key, value, mask)
        outputs.append(output.transpose(0, 1))  # (H, T_new, d_k) -> (T_new, H, d_k)
    return torch.cat(outputs)


def main() -> None:
    layers, blocks, heads, block_size, d_k = 1, 6, 1, 2, 1
    cache = PagedCache(layers, blocks, heads, block_size, d_k, like=torch.ones(1), share=True)
    print("Six blocks for two words each. The blocks that each text gets:")
    for sentence in ("the cat sat", "the cat ran", "a dog sat on"):
        text = Text(encode(sentence.split()))
        cache.allocate(text)
        print(f"   {sentence:14}{text.table}")
    print(f'"the cat" stands in one block for two texts; block {cache.free_blocks[0]} is free')


if __name__ == "__main__":
    main()
