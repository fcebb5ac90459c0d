"""The toy transformer: small enough to train in seconds, and the attention in it is an argument.

    tokens -> embedding + position -> per layer [x + attention(norm(x)), x + feed_forward(norm(x))]
    -> norm -> logits

Pre-norm (each sub-layer reads a normalised copy and adds its result back to x, the residual stream)
and sinusoidal positions. Whatever attention a phase builds is passed in and then runs here:

    ToyTransformer(make_attention=MultiHeadAttention)
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from shared.toy_language import MAX_LENGTH, VOCABULARY, encode

# (d_model, num_heads) -> a module whose forward(x, mask=mask) gives the output (B, T, d_model) and
# the weights (B, H, T, T)
MakeAttention = Callable[[int, int], nn.Module]


@contextmanager
def default_dtype(dtype: torch.dtype = torch.float64) -> Iterator[None]:
    """Inside `with`, whatever names no dtype has this one.

    Small models have float64. Training makes a rounding a million times as large: from 1e-7 it ends
    at another model on every kind of processor, from 1e-16 at the same one.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def dtype_on(device: str) -> torch.dtype:
    """Returns float64, or float32 on Apple's GPUs, which have no other."""
    return torch.float32 if device == "mps" else torch.float64


def sinusoidal_positions(length: int, d_model: int) -> Tensor:
    """Position encoding of Vaswani et al. 2017 -> (length, d_model).

    Column 2i holds sin(position / 10000^(2i / d_model)), column 2i + 1 that angle's cosine.
    """
    position = torch.arange(length)[:, None]
    rates = torch.exp(-math.log(10000.0) * torch.arange(0, d_model, 2) / d_model)
    angle = position * rates  # (length, ceil(d_model / 2))
    encoding = torch.zeros(length, d_model)
    encoding[:, 0::2] = angle.sin()
    encoding[:, 1::2] = angle.cos()[:, : d_model // 2]  # an odd d_model has one cosine less
    return encoding


def feed_forward(d_model: int, d_hidden: int) -> nn.Sequential:
    """A network that works on each position by itself: (..., d_model) -> (..., d_model)."""
    return nn.Sequential(nn.Linear(d_model, d_hidden), nn.ReLU(), nn.Linear(d_hidden, d_model))


class Block(nn.Module):
    """One layer: attention, which moves information between positions, and a feed-forward network.

    The network works on each position by itself.
    dropout: the chance, in training alone, of each number that either of the two adds to be 0
    instead; the others are divided by 1 - dropout, so that the mean stays (Vaswani et al. 2017,
    section 5.4).
    """

    def __init__(self, d_model: int, attention: nn.Module, dropout: float = 0.0) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(d_model)
        self.attention = attention
        self.feed_forward_norm = nn.LayerNorm(d_model)
        self.feed_forward = feed_forward(d_model, 2 * d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None, **more: Any) -> tuple[Tensor, Tensor]:
        """more: what this attention takes beside a mask, such as a cache."""
        output, weights = self.attention(self.attention_norm(x), mask=mask, **more)
        x = x + self.dropout(output)
        return x + self.dropout(self.feed_forward(self.feed_forward_norm(x))), weights


class ToyTransformer(nn.Module):
    """A transformer over the toy language; one class for every phase.

    make_attention(d_model, num_heads) builds the attention of one layer. The output layer shares
    its matrix with the embedding, so that a word is recognised by the vector that also stands for
    it (Press & Wolf 2017).
    """

    def __init__(
        self,
        d_model: int = 64,
        num_heads: int = 4,
        num_layers: int = 2,
        *,
        make_attention: MakeAttention,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(VOCABULARY), d_model)
        # Words start small beside the positions (norm sqrt(d_model / 2)); started larger, heads
        # find their roles later.
        nn.init.normal_(self.embedding.weight, std=0.2)
        positions = sinusoidal_positions(MAX_LENGTH + 2, d_model)
        self.register_buffer("positions", positions, persistent=False)
        self.blocks = nn.ModuleList()
        for _ in range(num_layers):
            self.blocks.append(Block(d_model, make_attention(d_model, num_heads)))
        self.output_norm = nn.LayerNorm(d_model)
        self.output_bias = nn.Parameter(torch.zeros(len(VOCABULARY)))

    def embed(self, tokens: Tensor, past: int = 0) -> Tensor:
        """tokens (B, T), behind `past` others -> what enters the first layer (B, T, d_model)."""
        length = past + tokens.size(-1)
        most = len(self.positions)
        if length > most:
            raise ValueError(f"the toy transformer takes at most {most} tokens: got {length}")
        return self.embedding(tokens) + self.positions[past:length]

    def forward(
        self, tokens: Tensor, mask: Tensor | None = None, caches: Sequence[Any] = ()
    ) -> tuple[Tensor, list[Tensor]]:
        """Returns the logits (B, T, V), and the weights (B, H, T, T_k) of each layer.

        tokens (B, T); mask as the attention takes it. caches: one for each layer, of
        phase4_causal/key_value_cache.py; the tokens then go on from what they hold.
        """
        past = caches[0].length if caches else 0
        x = self.embed(tokens, past)
        all_weights = []
        for i, block in enumerate(self.blocks):
            more = {"cache": caches[i]} if caches else {}
            x, weights = block(x, mask, **more)
            all_weights.append(weights)
        logits = self.output_norm(x) @ self.embedding.weight.T + self.output_bias
        return logits, all_weights


@torch.no_grad()
def weights_on_sentence(model: ToyTransformer, words: list[str]) -> Tensor:
    """Weights of all heads of all layers on one sentence -> (L, H, T, T), on the CPU."""
    _, layers = model(torch.tensor([encode(words)], device=model.positions.device))
    return torch.cat(layers).cpu()  # L x (1, H, T, T) -> (L, H, T, T)


def patched(module: nn.Module, change: Callable[[Tensor], Tensor | None]) -> RemovableHandle:
    """Inside `with`, the module gives change(output) instead of its output."""
    return module.register_forward_hook(lambda _module, _inputs, output: change(output))


def patched_input(module: nn.Module, change: Callable[[Tensor], Tensor]) -> RemovableHandle:
    """Inside `with`, the module gets change(input) instead of its input."""
    return module.register_forward_pre_hook(lambda _module, inputs: change(inputs[0]))


@contextmanager
def recorded_outputs(*modules: nn.Module) -> Iterator[list[Tensor]]:
    """Inside `with`, a list that gets each output of the modules, in the order of their calls."""
    outputs: list[Tensor] = []
    with ExitStack() as hooks:
        for module in modules:
            hooks.enter_context(patched(module, outputs.append))  # it gives None: nothing changes
        yield outputs
