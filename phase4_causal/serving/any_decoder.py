"""How does the engine write with a decoder that the library transformers has?

The library asks for its attention by name, and hands everything that it does not know itself down
to that function. So we register one that keeps keys and values in the engine's pages. The library's
own layers do all the rest: they embed, normalise, turn queries and keys by their positions, and
make the logits.

Not every decoder can be served so. Our softmax has neither a cap on its scores nor sinks, and pages
know no window. What else might go wrong is found by a trial with two short texts.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from phase4_causal.serving.paged_cache import (
    PackedWords,
    PagedCache,
    Text,
    packed,
    paged_attention,
)
from shared.published import attention_named, library

NAME = "in pages"  # by which the library finds our function
# What limits a text, as configurations call it: the positions that a model knows, and windows. A
# text that fits into a window is read as if there were none.
LIMITS = ("max_position_embeddings", "sliding_window", "attention_chunk_size")


def in_pages(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    *,
    pages: PagedCache,
    words: PackedWords,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """What a layer of the library calls: attention of the new words of all texts, in one row.

    query (1, H, N, d_k), key and value (1, H_kv, N, d_k) -> output (1, N, H, d_k), and no weights.
    Each word sees all words before it in its own text; the library has no mask for this name.
    scaling: what the library multiplies scores by, where ours divides them by √d_k. Raises
    ValueError for a cap on the scores (softcap) and for sinks (s_aux).
    """
    if softcap is not None or s_aux is not None:
        raise ValueError("our softmax has neither a cap on its scores nor sinks")
    query = query[0].transpose(0, 1)  # (1, H, N, d_k) -> (N, H, d_k)
    key = key[0].transpose(0, 1)  # (1, H_kv, N, d_k) -> (N, H_kv, d_k)
    value = value[0].transpose(0, 1)
    if scaling is not None:
        query = query * (scaling * math.sqrt(query.size(-1)))
    pages.store(module.layer_idx, key, value, words)
    output = paged_attention(query, pages, module.layer_idx, words)
    return output.unsqueeze(0), None  # (N, H, d_k) -> (1, N, H, d_k)


class Decoder:
    """A decoder of the library with its tokenizer, as the engine takes it.

    network: such as AutoModelForCausalLM loads. Raises ValueError, one line, for a model that would
    not write in pages what it writes by itself.
    """

    def __init__(self, network: nn.Module, tokenizer: Any) -> None:
        self.network = network
        self.tokenizer = tokenizer
        library().AttentionInterface.register(NAME, in_pages)
        try:
            self.read_configuration()
            self.try_out()
        except Exception as error:  # a model that is made otherwise may stumble anywhere
            kind = network.config.model_type
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise ValueError(
                f"a model of kind {kind} cannot write in pages: {reason}; a Llama such as SmolLM2 "
                "can, or a GPT-2"
            ) from error

    def read_configuration(self) -> None:
        """Finds what the engine asks for. Not all kinds of models name it alike."""
        config = self.network.config
        heads = config.num_attention_heads
        self.num_layers = config.num_hidden_layers
        self.num_kv_heads = getattr(config, "num_key_value_heads", None) or heads
        self.d_k = getattr(config, "head_dim", None) or config.hidden_size // heads
        self.embedding = self.network.get_input_embeddings().weight.detach()
        if "longrope" in str(getattr(config, "rope_parameters", None)):
            raise ValueError("one long text would change the rotary positions of all in its row")
        limits = [getattr(config, name, None) for name in LIMITS]
        self.num_positions = min(limit for limit in limits if limit)
        ends = self.network.generation_config.eos_token_id
        self.end_ids = ends if isinstance(ends, list) else [ends]

    @torch.no_grad()
    def try_out(self) -> None:
        """Two texts in one row, in two passes, must get the logits that each gets by itself.

        Raises ValueError if they do not, as where words see those to come, or where a model counts
        positions itself, and if a layer keeps nothing in the pages: it has no attention, or one
        that does not ask for ours.
        """
        device = self.embedding.device
        texts = [Text([5, 6, 7, 8, 9], chunk_size=3), Text([9, 5, 8, 6], chunk_size=3)]
        cache = PagedCache(
            self.num_layers, 5, self.num_kv_heads, 2, self.d_k, like=self.embedding, share=False
        )
        for text in texts:
            cache.allocate(text)
        for _ in range(2):
            logits = self.logits(packed(texts, cache), cache)
            for text in texts:
                text.stored = text.new.stop
        filled = cache.keys.flatten(1).any(dim=1)  # (L, ...) -> (L,)
        if not filled.all():
            raise ValueError(f"only {filled.sum()} of its {self.num_layers} layers keep keys there")
        # The second pass read two more words of the first text, and one more of the second.
        for text, ours in zip(texts, logits[[1, 2]], strict=True):
            alone = self.network(torch.tensor([text.tokens], device=device), use_cache=False)
            expected = alone.logits[0, -1]
            off = (ours - expected).abs().max() / expected.abs().max()
            # A mistake makes some hundredths. Two right programs differ by their rounding.
            if not off < max(1e-3, 10 * torch.finfo(off.dtype).eps):
                raise ValueError(f"its logits of a short text are off by {off:.1%} of the largest")

    def encode(self, prompt: str) -> list[int]:
        """The tokens of a prompt. Raises ValueError for an empty one."""
        tokens = self.tokenizer(prompt)["input_ids"]
        if not tokens:
            raise ValueError("the prompt is empty: a published model needs a word to begin with")
        return tokens

    def logits(self, words: PackedWords, cache: PagedCache) -> Tensor:
        """Returns (N, V)."""
        with attention_named(self.network, NAME):
            output = self.network(
                words.tokens[None],
                position_ids=words.positions[None],
                use_cache=False,
                pages=cache,  # these two go down to in_pages
                words=words,
            )
        return output.logits[0]  # (1, N, V) -> (N, V)
