"""How does the toy transformer read words of several texts at once?

Attention is the only part of a transformer in which words meet. Norms, projections and the
feed-forward network treat each word by itself, so words of several texts may stand in one row. A
layer is cut where attention stands, which is computed over the engine's pages:

    project   before attention: query, key and value of each word
    finish    after it: the output projection, and the feed-forward network
"""

from torch import Tensor

from phase4_causal.serving.paged_cache import PackedWords, PagedCache, paged_attention
from shared.toy_language import END_ID, START_ID, encode, tokenize
from shared.toy_model import Block, ToyTransformer


class PackedToyLayer:
    """A layer of the toy transformer, with its own modules."""

    def __init__(self, block: Block) -> None:
        self.block = block

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x (N, d_model) -> query, key and value, (N, H, d_k) each."""
        attention = self.block.attention
        by_head = (attention.num_heads, -1)
        normed = self.block.attention_norm(x)
        query = attention.w_q(normed).unflatten(1, by_head)  # (N, d_model) -> (N, H, d_k)
        key = attention.w_k(normed).unflatten(1, by_head)
        value = attention.w_v(normed).unflatten(1, by_head)
        return query, key, value

    def finish(self, x: Tensor, heads: Tensor) -> Tensor:
        """x (N, d_model), and what its heads have found (N, H, d_k) -> the layer's output."""
        block = self.block
        x = x + block.attention.w_o(heads.flatten(1))  # (N, H, d_k) -> (N, d_model)
        return x + block.feed_forward(block.feed_forward_norm(x))


class PackedToy:
    """The toy transformer as the engine takes it."""

    def __init__(self, model: ToyTransformer) -> None:
        self.model = model
        self.layers = [PackedToyLayer(block) for block in model.blocks]
        self.num_layers = len(model.blocks)
        self.embedding = model.embedding.weight.detach()
        self.num_kv_heads = model.blocks[0].attention.num_heads
        self.d_k = self.embedding.size(1) // self.num_kv_heads
        self.num_positions = len(model.positions)
        self.end_ids = [END_ID]

    def encode(self, prompt: str) -> list[int]:
        """<start> and the prompt, which may be empty. Raises ValueError for an unknown word."""
        words = tokenize(prompt) if prompt else []
        return [START_ID, *encode(words)]

    def logits(self, words: PackedWords, cache: PagedCache) -> Tensor:
        """Returns (N, V)."""
        x = self.model.embedding(words.tokens) + self.model.positions[words.positions]
        for number, layer in enumerate(self.layers):
            query, key, value = layer.project(x)
            cache.store(number, key, value, words)
            heads = paged_attention(query, cache, number, words)
            x = layer.finish(x, heads)
        return self.model.output_norm(x) @ self.model.embedding.weight.T + self.model.output_bias
