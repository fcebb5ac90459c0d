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

    tokens: <start>, the prompt, and what has been written behind it.
    """

    limit: int = MAX_LENGTH


class Engine:
    """Writes as `generate` does, with a causal model of MultiHeadAttention.

    running: the requests that have blocks, the newest last. waiting: the others, the next to be let
    in first.
    """

    def __init__(
        self, model: ToyTransformer, num_blocks: int, block_size: int, *, share: bool = True
    ) -> None:
        num_layers = len(model.blocks)
        num_heads = model.blocks[0].attention.num_heads
        embedding = model.embedding.weight.detach()
        d_k = embedding.size(1) // num_heads
        self.model = model
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
        places = len(self.cache.readers) * self.cache.block_size
        if limit not in range(len(words) + 1, positions + 1):
            raise ValueError(
                f"limit must be a whole number of words, above the {len(words)} of the prompt, "
                f"at most the {positions} positions of the model: got {limit}"
            )
        if limit > places:
            raise ValueError(
                f"limit must be at most the {places} places of all blocks: got {limit}; "
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
            while request in self.running and not self.cache.take(request):
                newest = self.running.pop()
                self.cache.give_back(newest)
                self.waiting.appendleft(newest)
        while self.waiting and self.cache.take(self.waiting[0]):
            self.running.append(self.waiting.popleft())
        words = self.next_words()
        for request, word in zip(list(self.running), words, strict=True):
            request.stored = len(request.tokens)
            if word != END_ID:
                request.tokens.append(word)
            if word == END_ID or len(request.tokens) > request.limit:
                self.running.remove(request)
                self.cache.give_back(request)

    @torch.no_grad()
    def next_words(self) -> list[int]:
        """Returns the likeliest next word of each running text.

        One pass computes the N new words of all texts, packed into one row.
        """
        model, texts = self.model, self.running
        if not texts:
            return []
        tokens, places = [], []
        newest = []  # where the last word of each text stands in the row: it predicts the next one
        for text in texts:
            tokens += text.tokens[text.stored :]
            places += text.new
            newest.append(len(tokens) - 1)
        words = torch.tensor(tokens, device=model.positions.device)
        x = model.embedding(words) + model.positions[places]  # (N,) -> (N, d_model)
        for layer, block in enumerate(model.blocks):
            attention = block.attention
            heads = (attention.num_heads, -1)
            normed = block.attention_norm(x)
            query = attention.w_q(normed).unflatten(1, heads)  # (N, d_model) -> (N, H, d_k)
            key = attention.w_k(normed).unflatten(1, heads)
            value = attention.w_v(normed).unflatten(1, heads)
            self.cache.store(layer, key, value, texts)
            output = paged_attention(query, self.cache, layer, texts)
            x = x + attention.w_o(output.flatten(1))  # (N, H, d_k) -> (N, d_model)
            x = x + block.feed_forward(block.feed_forward_norm(x))
        last = model.output_norm(x[newest])  # (N, d_model) -> (number of texts, d_model)
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
