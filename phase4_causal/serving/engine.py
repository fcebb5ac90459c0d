"""How does one model write for many users at once, in a memory that does not hold them all?

A queue, a paged cache and a model. Each step is one pass over the new words of all texts that are
in the memory:

    prefill      a request that is let in brings its words, all at once or in chunks
    decoding     a text that is being written brings the one word that it got last
    preemption   where blocks run out, the newest text gives its own back and waits; later it is
                 prefilled again

Texts come and go at any step: continuous batching (Yu et al. 2022, Orca). Each is word for word
what its model would write for one user alone. A word here is whatever the model calls a token.

    python phase4_causal/serving/engine.py
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from phase4_causal.models import long_model
from phase4_causal.serving.packed_toy import PackedToy
from phase4_causal.serving.paged_cache import PackedWords, PagedCache, Text, packed
from shared.attention_checks import check_sizes


class PackedModel(Protocol):
    """What the engine asks of a model: a pass over words of several texts, packed into one row.

    The toy transformer does it in packed_toy.py, and any decoder of a library in any_decoder.py.

    embedding: (V, d_model); the cache has its dtype and its device. num_positions: how many words
    it can read at most. end_ids: the words that end a text.
    """

    num_layers: int
    num_kv_heads: int
    d_k: int
    embedding: Tensor
    num_positions: int
    end_ids: Sequence[int]

    def encode(self, prompt: str) -> list[int]:
        """The words of a prompt, behind those that begin each text. ValueError for unknown ones."""

    def logits(self, words: PackedWords, cache: PagedCache) -> Tensor:
        """Logits (N, V) of the word after each of the N new words, whose keys go into the cache."""


@dataclass(eq=False, kw_only=True)
class Request(Text):
    """A text that is to be written until the model ends it, or until it has `limit` words.

    limit: counts every word, those of the prompt and <start> as well. From Text it has tokens, its
    words; table, its blocks; stored, of how many words these hold keys and values; and new, the
    range of positions that the next pass computes.
    """

    limit: int

    @property
    def is_full(self) -> bool:
        """Whether it has as many words as it may have."""
        return len(self.tokens) >= self.limit


class Engine:
    """Writes the likeliest next word of each text, again and again (greedy decoding).

    running: the requests that have blocks, the newest last. waiting: the others, the next to be let
    in first. share: texts that begin alike read the same blocks. chunk_size: a request brings at
    most so many words a pass, so that a long prompt does not hold up the others (chunked prefill,
    Agrawal et al. 2023, Sarathi); None for all of them.
    """

    def __init__(
        self,
        model: PackedModel,
        num_blocks: int,
        block_size: int,
        *,
        share: bool = True,
        chunk_size: int | None = None,
    ) -> None:
        if chunk_size is not None:
            check_sizes(least=1, chunk_size=chunk_size)
        self.model = model
        self.chunk_size = chunk_size
        self.cache = PagedCache(
            model.num_layers,
            num_blocks,
            model.num_kv_heads,
            block_size,
            model.d_k,
            like=model.embedding,
            share=share,
        )
        self.running: list[Request] = []
        self.waiting: deque[Request] = deque()

    def add(self, prompt: str, limit: int) -> Request:
        """Put a request at the end of the queue, and return it.

        Raises ValueError for a word that the model does not know, for a limit that the prompt has
        reached already, and for one above the positions of the model or the places of all blocks.
        """
        tokens = self.model.encode(prompt)
        # The last word is only written, never read: it needs no position and no place in a block.
        most_positions = self.model.num_positions + 1
        most_places = self.cache.num_blocks * self.cache.block_size + 1
        is_whole = limit % 1 == 0
        if not is_whole or not len(tokens) < limit <= most_positions:
            raise ValueError(
                f"limit must be a whole number of words, above the {len(tokens)} that the text "
                f"begins with, at most {most_positions}, the model's positions and one: got {limit}"
            )
        if limit > most_places:
            raise ValueError(
                f"limit must be at most {most_places}, the places of all blocks and one: "
                f"got {limit}; make more blocks"
            )
        request = Request(tokens=tokens, chunk_size=self.chunk_size, limit=limit)
        self.waiting.append(request)
        return request

    def run(self) -> None:
        """Take steps until nobody is left."""
        while self.waiting or self.running:
            self.step()

    def step(self) -> int:
        """One pass: each text that has blocks gets a word, or reads a chunk of its prompt.

        Blocks go first to the texts that run, the oldest before the others, then to those that
        wait. Returns how many words the pass computed.
        """
        for request in list(self.running):  # a copy: texts may leave self.running
            self.make_room_for(request)
        self.let_in()
        served = list(self.running)
        computed = sum(len(request.new) for request in served)
        words = self.next_words(served)
        for request, word in zip(served, words, strict=True):
            request.stored = request.new.stop
            # While a prompt is read, its next word is known, and none is written.
            if request.stored == len(request.tokens):
                self.write(request, word)
        return computed

    def make_room_for(self, request: Request) -> None:
        """Get a running text blocks for all its words; while none is free, the newest text waits.

        The newest may be this text itself. Nothing is done for one that waits already.
        """
        while request in self.running:
            has_blocks = self.cache.allocate(request)
            if has_blocks:
                return
            newest = self.running.pop()
            self.cache.free(newest)  # and it will be read again
            self.waiting.appendleft(newest)

    def let_in(self) -> None:
        """Let texts in, in their order, until the next one finds too few free blocks."""
        while self.waiting:
            if not self.cache.allocate(self.waiting[0]):
                return
            self.running.append(self.waiting.popleft())

    @torch.no_grad()
    def next_words(self, texts: Sequence[Text]) -> list[int]:
        """Returns the likeliest next word of each text, from one pass over their N new words."""
        if not texts:
            return []
        words = packed(texts, self.cache)
        logits = self.model.logits(words, self.cache)  # (N, V)
        # The last word of a text predicts its next one.
        return logits[words.last].argmax(dim=-1).tolist()

    def write(self, request: Request, word: int) -> None:
        """Put a word behind a text. A text that is finished leaves, and frees its blocks."""
        is_end = word in self.model.end_ids
        if not is_end:
            request.tokens.append(word)
        if is_end or request.is_full:
            self.running.remove(request)
            self.cache.free(request)


def main() -> None:
    model = PackedToy(long_model(34))  # for texts of 34 words; it is not trained
    engine = Engine(model, num_blocks=3, block_size=4)
    texts = [engine.add(word, limit=8) for word in ("the", "every")]
    print("Two texts that get <start> and seven words, in three blocks of four. Blocks, by pass:")
    while engine.waiting or engine.running:
        engine.step()
        print("  ", [text.table for text in texts])


if __name__ == "__main__":
    main()
