"""How does one model write for many users at once, in a memory that does not hold them all?

A queue, a paged cache and a model. Each step is one pass over the new words of all texts that are
in the memory:

    prefill      a request that is let in brings all its words
    decoding     a text that is being written brings the one word that it got last
    preemption   where blocks run out, the newest text gives its own back and waits; later it is
                 prefilled again

Texts come and go at any step: continuous batching (Yu et al. 2022, Orca). Each is word for word
what `generate` writes.

    python phase4_causal/serving/engine.py
"""

from collections import deque
from dataclasses import dataclass

import torch

from phase4_causal.models import long_model
from phase4_causal.serving.paged_cache import PagedCache, Text, paged_attention
from shared.toy_language import END_ID, MAX_LENGTH, START_ID, encode, tokenize
from shared.toy_model import ToyTransformer


@dataclass(eq=False)
class Request(Text):
    """A text that is to be written until <end>, or until it has `limit` words.

    tokens: <start>, the prompt, and what has been written behind it. limit: counts the words of the
    prompt, but not <start>.
    """

    limit: int = MAX_LENGTH

    @property
    def is_full(self) -> bool:
        """Whether it has as many words as it may have."""
        return len(self.tokens) - 1 >= self.limit  # without <start>


class Engine:
    """Writes as `generate` does, with a causal model of MultiHeadAttention.

    running: the requests that have blocks, the newest last. waiting: the others, the next to be let
    in first. share: texts that begin alike read the same blocks.
    """

    def __init__(
        self, model: ToyTransformer, num_blocks: int, block_size: int, *, share: bool = True
    ) -> None:
        num_layers = len(model.blocks)
        num_heads = model.blocks[0].attention.num_heads
        embedding = model.embedding.weight.detach()
        d_k = embedding.size(1) // num_heads
        self.model = model
        # like: the cache has the dtype and the device of the model.
        self.cache = PagedCache(
            num_layers, num_blocks, num_heads, block_size, d_k, like=embedding, share=share
        )
        self.running: list[Request] = []
        self.waiting: deque[Request] = deque()

    def add(self, prompt: list[str], limit: int = MAX_LENGTH) -> Request:
        """Put a request at the end of the queue, and return it.

        Raises ValueError for a word that the language does not have, and for a limit that could
        never be reached: by the prompt, by the model's positions, or in all blocks.
        """
        words = []
        for part in prompt:
            words += tokenize(part)
        positions = len(self.model.positions)
        room = len(self.cache.readers) * self.cache.block_size  # words in all blocks
        # The last word is only written, never read, so <start> and limit words need `limit` places.
        if limit not in range(len(words) + 1, positions + 1):
            raise ValueError(
                f"limit must be a whole number of words, above the {len(words)} of the prompt, "
                f"at most the {positions} positions of the model: got {limit}"
            )
        if limit > room:
            raise ValueError(
                f"limit must be at most the {room} places of all blocks: got {limit}; "
                "make more blocks"
            )
        request = Request([START_ID, *encode(words)], limit=limit)
        self.waiting.append(request)
        return request

    def run(self) -> None:
        """Take steps until nobody is left."""
        while self.waiting or self.running:
            self.step()

    def step(self) -> None:
        """Give one word to each text that has blocks, all in one pass.

        Blocks go first to the texts that run, the oldest before the others, then to those that
        wait.
        """
        for request in list(self.running):
            self.make_room_for(request)
        self.let_in()
        served = list(self.running)
        for request, word in zip(served, self.next_words(), strict=True):
            request.stored = len(request.tokens)
            if word != END_ID:
                request.tokens.append(word)
            if word == END_ID or request.is_full:
                self.running.remove(request)
                self.cache.give_back(request)

    def make_room_for(self, request: Request) -> None:
        """Get a running text blocks for all its words; while none is free, the newest text waits.

        That text may be this one, and may have begun to wait for an older one already.
        """
        while request in self.running:
            if self.cache.take(request):
                return
            newest = self.running.pop()
            self.cache.give_back(newest)
            self.waiting.appendleft(newest)

    def let_in(self) -> None:
        """Let texts in, in their order, until the next one finds too few free blocks."""
        while self.waiting:
            if not self.cache.take(self.waiting[0]):
                return
            self.running.append(self.waiting.popleft())

    @torch.no_grad()
    def next_words(self) -> list[int]:
        """Returns the likeliest next word of each running text.

        One pass computes the N new words of all texts, packed into one row.
        """
        model, texts = self.model, self.running
        if not texts:
            return []
        tokens, positions = [], []  # of the new words; positions are those in their own texts
        last_in_row = []  # where the last word of each text stands in the row
        for text in texts:
            tokens += text.tokens[text.stored :]
            positions += text.new
            last_in_row.append(len(tokens) - 1)
        row = torch.tensor(tokens, device=model.positions.device)
        x = model.embedding(row) + model.positions[positions]  # (N,) -> (N, d_model)
        for layer, block in enumerate(model.blocks):
            attention = block.attention
            by_head = (attention.num_heads, -1)
            normed = block.attention_norm(x)
            query = attention.w_q(normed).unflatten(1, by_head)  # (N, d_model) -> (N, H, d_k)
            key = attention.w_k(normed).unflatten(1, by_head)
            value = attention.w_v(normed).unflatten(1, by_head)
            self.cache.store(layer, key, value, texts)
            output = paged_attention(query, self.cache, layer, texts)
            x = x + attention.w_o(output.flatten(1))  # (N, H, d_k) -> (N, d_model)
            x = x + block.feed_forward(block.feed_forward_norm(x))
        # The last word of a text predicts its next one: (N, d_model) -> (number of texts, d_model).
        last = model.output_norm(x[last_in_row])
        logits = last @ model.embedding.weight.T + model.output_bias
        return logits.argmax(dim=-1).tolist()


def main() -> None:
    engine = Engine(long_model(34), num_blocks=3, block_size=4)  # untrained
    texts = [engine.add([word], limit=7) for word in ("the", "every")]
    print("Two texts that get seven words each, in three blocks of four. Their blocks, by pass:")
    while engine.waiting or engine.running:
        engine.step()
        print("  ", [text.table for text in texts])


if __name__ == "__main__":
    main()
