"""How does attention find keys that lie in blocks, anywhere in memory?

A cache in one piece keeps room for the longest text there may be, and most of that stays empty. So
memory is cut into blocks of a few places, as an operating system cuts its memory into pages (Kwon
et al. 2023, PagedAttention):

    pool    (H_kv, num_blocks, block_size, d_k) in each layer, for keys and for values; any block
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
from functools import partial

import torch
from torch import Tensor

from phase1_single_head.self_attention import scaled_dot_product_attention
from shared.attention_checks import check_sizes
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


@dataclass(frozen=True)
class PackedWords:
    """The N new words of several texts in one row; made once for a pass, and read by every layer.

    tokens, positions: (N,), the words, and where each stands in its own text. places: (N,), where
    its key lies in the pool, counted through all blocks. last: (texts,), the last word of each text
    in the row. tables: (texts, blocks). by_text: (texts, T_new), the row with a line for each text;
    a text with fewer new words has others in front. in_row: (N,), from these lines to the row
    again. mask: bool (texts, T_new, T), True = may attend.
    """

    tokens: Tensor
    positions: Tensor
    places: Tensor
    last: Tensor
    tables: Tensor
    by_text: Tensor
    in_row: Tensor
    mask: Tensor


class PagedCache:
    """Keys and values of many texts, (num_layers, H_kv, num_blocks, block_size, d_k) each.

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
        self.keys = like.new_zeros(num_layers, num_kv_heads, num_blocks, block_size, d_k)
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
        needed = math.ceil(len(text.tokens) / self.block_size)
        missing = needed - len(text.table) - len(prefix)
        new = []
        if missing > 0:
            free = [block for block in self.free_blocks if block not in prefix]
            # Empty ones first, so that what can still be found stays.
            free.sort(key=lambda block: bool(self.contents[block]))
            new = free[:missing]
        if missing > len(new):
            return False
        for block in prefix + new:
            self.ref_counts[block] += 1
        for block in new:
            # A block that the next pass does not fill must not be found: it holds nothing yet.
            self.contents[block] = []
            # Places that hold no word are multiplied by weights of 0, which NaN would survive.
            self.values[:, :, block] = 0
        text.table += prefix + new
        text.stored += len(prefix) * self.block_size
        for number in range(text.stored // self.block_size, text.new.stop // self.block_size):
            self.contents[text.table[number]] = text.tokens[: (number + 1) * self.block_size]
        return True

    def free(self, text: Text) -> None:
        """Free the blocks of a text, unless others read them, too.

        What a block holds stays in it until the block is allocated again.
        """
        for block in text.table:
            self.ref_counts[block] -= 1
        text.table = []
        text.stored = 0

    def store(self, layer: int, key: Tensor, value: Tensor, words: PackedWords) -> None:
        """Put key and value (N, H_kv, d_k) of the new words of all texts in their places.

        Raises ValueError for another shape.
        """
        shape = (len(words.places), self.keys.size(1), self.keys.size(4))
        if not key.shape == value.shape == shape:
            raise ValueError(
                f"key and value must be {shape}: got {tuple(key.shape)} and {tuple(value.shape)}"
            )
        for pool, new in ((self.keys, key), (self.values, value)):
            # (H_kv, num_blocks * block_size, d_k): a view. Under autocast `new` has 16 bits.
            by_place = pool[layer].flatten(1, 2)
            by_place.index_copy_(1, words.places, new.transpose(0, 1).to(pool))


def packed(texts: Sequence[Text], cache: PagedCache) -> PackedWords:
    """The new words of one text or more, all of which have blocks for them."""
    size, device = cache.block_size, cache.keys.device
    most_new = max(len(text.new) for text in texts)
    most_blocks = math.ceil(max(text.new.stop for text in texts) / size)
    tokens, positions, of_text, ends, tables = [], [], [], [], []
    for row, text in enumerate(texts):
        tokens += text.tokens[text.stored : text.new.stop]
        positions += text.new
        of_text += [row] * len(text.new)
        ends.append(len(tokens))
        # A shorter table is filled up with its last block, whose words are hidden there.
        table = text.table[:most_blocks]
        tables.append(table + table[-1:] * (most_blocks - len(table)))
    as_tensor = partial(torch.tensor, dtype=torch.long, device=device)
    positions, of_text, tables = as_tensor(positions), as_tensor(of_text), as_tensor(tables)
    last = as_tensor(ends) - 1
    before_last = last[:, None] - torch.arange(most_new, device=device).flip(0)  # (texts, T_new)
    by_text = before_last.clamp(min=0)
    from_last = torch.arange(len(tokens), device=device) - last[of_text]  # 0: its text's last word
    return PackedWords(
        as_tensor(tokens),
        positions,
        places=tables[of_text, positions // size] * size + positions % size,
        last=last,
        tables=tables,
        by_text=by_text,
        in_row=(of_text + 1) * most_new - 1 + from_last,
        mask=torch.arange(most_blocks * size, device=device) <= positions[by_text][..., None],
    )


def in_rows(pool: Tensor, tables: Tensor) -> Tensor:
    """The places of each text in a row, those that are empty as well.

    pool (H_kv, num_blocks, block_size, d_k), tables (texts, blocks) -> (H_kv, texts, T, d_k).
    """
    # (H_kv, num_blocks, block_size, d_k) -> (H_kv, texts * blocks, block_size, d_k)
    blocks = pool.index_select(1, tables.flatten())
    return blocks.view(len(pool), len(tables), -1, pool.size(-1))


def paged_attention(query: Tensor, cache: PagedCache, layer: int, words: PackedWords) -> Tensor:
    """Returns the output (N, H, d_k) of the new words of all texts, whose keys are stored.

    query: (N, H, d_k), in the order of `words`. Several query heads may share a head of keys.
    """
    key = in_rows(cache.keys[layer], words.tables)  # -> (H_kv, texts, T, d_k)
    value = in_rows(cache.values[layer], words.tables)
    shared_by = query.size(1) // len(key)  # query heads for each head of keys
    query = query.to(key.dtype)[words.by_text]  # (N, H, d_k) -> (texts, T_new, H, d_k)
    query = query.unflatten(2, (-1, shared_by)).permute(2, 0, 1, 3, 4)
    query = query.flatten(2, 3)  # -> (H_kv, texts, T_new * shared_by, d_k)
    mask = words.mask.repeat_interleave(shared_by, dim=1)[None]
    output, _ = scaled_dot_product_attention(query, key, value, mask)
    output = output.unflatten(2, (-1, shared_by)).permute(1, 2, 0, 3, 4)
    return output.flatten(2, 3).flatten(0, 1)[words.in_row]  # (texts * T_new, H, d_k) -> (N, ...)


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
