"""How does one model write for many users at once, in a memory that does not hold them all?

A queue, a paged cache and a model. Each step is one pass over the new words of all texts that are
in the memory:

    prefill      a request that is let in brings all its words
    decoding     a text that is being written brings the one word that it got last
    preemption   where blocks run out, the newest text gives its own back and waits; it is prefilled again, later

Texts come and go at any step: continuous batching (Yu et al. 2022, Orca). Each is word for word
what `generate` writes.
"""

from collections import deque
from dataclasses import dataclass

import torch

from phase4_causal.serving.paged_cache import PagedCache, Text, paged_attention
from shared.toy_language import END_ID, MAX_LENGTH, START_ID, encode, tokenize
from shared.toy_model import ToyTransformer


@dataclass(eq=False)
class Request(Text):
    """tokens: <start>, the prompt, and what is written behind it, until <end> or until there are
    `limit` words.
    """

    limit: int = MAX_LENGTH


class Engine:
    """Writes as `generate` does, with a causal model of MultiHeadAttention. running: the newest
    request is the last.
    """

    def __init__(
        self, model: ToyTransformer, num_blocks: int, block_size: int, *, share: bool = True
    ) -> None:
        embedding, num_heads = model.embedding.weight, model.blocks[0].attention.num_heads
        sizes = (
            len(model.blocks),
            num_blocks,
            num_heads,
            block_size,
            embedding.size(1) // num_heads,
        )
        self.model, self.cache = model, PagedCache(*sizes, like=embedding.detach(), share=share)
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []

    def add(self, prompt: list[str], limit: int = MAX_LENGTH) -> Request:
        """Put a request at the end of the queue. Raises ValueError for one that could never be
        served.
        """
        words = [
            word for part in prompt for word in tokenize(str(part))
        ]  # an unknown one is refused
        positions, places = (
            len(self.model.positions),
            len(self.cache.readers) * self.cache.block_size,
        )
        if limit not in range(len(words) + 1, positions + 1):
            allowed = f"above the {len(words)} of the prompt, at most the {positions} positions of the model"
            raise ValueError(f"limit must be a whole number of words, {allowed}: got {limit}")
        if limit > places:
            raise ValueError(
                f"limit must be at most the {places} places of all blocks: got {limit}; make more blocks"
            )
        self.waiting.append(Request([START_ID, *encode(words)], limit=limit))
        return self.waiting[-1]

    def run(self) -> None:
        while self.waiting or self.running:
            self.step()

    def step(self) -> None:
        """One pass: a word for each text that blocks suffice for, first those that run, then those
        that wait.
        """
        for request in list(self.running):  # the oldest first
            while request in self.running and not self.cache.take(request):
                self.waiting.appendleft(self.running.pop())  # the newest
                self.cache.give_back(self.waiting[0])
        while self.waiting and self.cache.take(self.waiting[0]):
            self.running.append(self.waiting.popleft())
        for request, word in zip(list(self.running), self.next_words(), strict=True):
            request.stored = len(request.tokens)
            if word != END_ID:
                request.tokens.append(word)
            if word == END_ID or len(request.tokens) > request.limit:
                self.running.remove(request)
                self.cache.give_back(request)

    @torch.no_grad()
    def next_words(self) -> list[int]:
        """The likeliest next word of each text, from one pass over the N new words of all of them,
        packed.
        """
        model, texts = self.model, self.running
        if not texts:
            return []
        tokens, places = torch.tensor(
            [(text.tokens[place], place) for text in texts for place in text.new]
        ).T
        x = (
            model.embedding(tokens.to(model.positions.device)) + model.positions[places]
        )  # (N,) -> (N, d_model)
        for layer, block in enumerate(model.blocks):
            attention, words = block.attention, block.attention_norm(x)
            projected = (w(words) for w in (attention.w_q, attention.w_k, attention.w_v))
            query, key, value = (
                y.unflatten(1, (attention.num_heads, -1)) for y in projected
            )  # -> (N, H, d_k)
            self.cache.store(layer, key, value, texts)
            heads = paged_attention(query, self.cache, layer, texts)
            x = x + attention.w_o(heads.flatten(1))  # (N, H, d_k) -> (N, d_model)
            x = x + block.feed_forward(block.feed_forward_norm(x))
        last = torch.tensor([len(text.new) for text in texts]).cumsum(0) - 1
        logits = (
            model.output_norm(x[last]) @ model.embedding.weight.T + model.output_bias
        )  # (N, d_model) -> (texts, V)
        return logits.argmax(dim=-1).tolist()
