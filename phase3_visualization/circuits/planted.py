"""A model that copies, with weights that are set and not trained: so it is known what each head is
for.

    layer 0   previous    looks at the place before, and writes the word there as "word before"
              decoy       looks at its own place, as sharply, and writes as much where nobody reads
    layer 1   induction   looks for the place whose word before is its own word: the word there is the guess

There is no norm and no feed-forward network. Many other weights compute the same function (Elhage
et al. 2021).
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from phase1_single_head.self_attention import scaled_dot_product_attention
from phase3_visualization.circuits.patching import Pairs, exchanged
from shared.attention_utils import causal_mask

WORDS, PERIOD = 29, 11  # word 0 is <start>; the block that comes twice
LENGTH = 1 + 2 * PERIOD
CHANGES = ("W_Q and W_K", "W_V and W_O", "stream rotated", "stream sheared")
STREAM = {"word": WORDS, "position": LENGTH, "word before": WORDS, "unread": WORDS, "guess": WORDS}


@dataclass(frozen=True)
class Head:
    """query and key (d_model, d_k), value (d_model, d_v), output (d_v, d_model)."""

    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor


@dataclass(frozen=True)
class Model:
    """words (V, d_model) and positions (T, d_model) make the stream, guess (d_model, V) reads it."""

    words: Tensor
    positions: Tensor
    layers: list[dict[str, Head]]
    guess: Tensor


def planted_model(match: float = 12.0) -> Model:
    """match: the score of the key that a head looks for; all others have 0."""
    parts = torch.eye(sum(STREAM.values()), dtype=torch.float64).split(list(STREAM.values()), dim=1)
    word, position, before, unread, guess = (
        parts  # each reads a part of the stream, and transposed it writes there
    )
    asks_place, asks_word = (
        match * math.sqrt(LENGTH) * position,
        match * math.sqrt(WORDS) * word,
    )  # for / √d_k
    next_position = position.roll(1, dims=1)  # as a key, place j answers to j + 1
    previous = Head(asks_place, next_position, word, before.T)
    decoy = Head(asks_place, position, word, unread.T)
    induction = Head(asks_word, before, word, guess.T)
    layers = [{"previous": previous, "decoy": decoy}, {"induction": induction}]
    return Model(word.T, position.T, layers, 8 * guess)


def read(
    model: Model, tokens: Tensor, **put_in: Tensor
) -> tuple[Tensor, dict[str, tuple[Tensor, ...]]]:
    """Tokens (B, T) -> logits (B, T, V); of a head weights (B, T, T), values (B, T, d_v), what it
    adds (B, T, d_model).

    put_in: what a head is to add instead.
    """
    stream, mask, seen = model.words[tokens] + model.positions, causal_mask(tokens.size(1)), {}
    for layer in model.layers:
        for name, head in layer.items():
            value = stream @ head.value
            output, weights = scaled_dot_product_attention(
                stream @ head.query, stream @ head.key, value, mask
            )
            seen[name] = (
                weights,
                value,
                put_in.get(name, output @ head.output),
            )  # (B, T, d_v) -> (B, T, d_model)
        stream = stream + sum(seen[name][2] for name in layer)  # the heads of a layer read the same
    return stream @ model.guess, seen


def other_weights(model: Model, change: str, draw: torch.Generator) -> Model:
    """The same function, by one of CHANGES: what a matrix does to who writes, its inverse undoes in
    who reads.
    """

    def drawn(size: int, *changes: str) -> Tensor:
        long = 2 ** torch.randn((), generator=draw)
        matrix = (
            long * torch.randn(size, size, generator=draw, dtype=torch.float64) / math.sqrt(size)
        )
        return matrix if change in changes else torch.eye(size, dtype=torch.float64)

    def changed(head: Head) -> Head:
        a, b = drawn(head.query.size(1), "W_Q and W_K"), drawn(head.value.size(1), "W_V and W_O")
        return Head(
            back @ head.query @ a,
            back @ head.key @ a.inverse().T,  # q A (k A^-T)^T = q k^T
            back @ head.value @ b,
            b.inverse() @ head.output @ stream,
        )

    stream = drawn(model.words.size(1), "stream rotated", "stream sheared")
    stream = torch.linalg.qr(stream).Q if change == "stream rotated" else stream
    back = stream.inverse()
    layers = [{name: changed(head) for name, head in layer.items()} for layer in model.layers]
    return Model(model.words @ stream, model.positions @ stream, layers, back @ model.guess)


def draw_pairs(count: int, draw: torch.Generator) -> Pairs:
    """<start> and a block of different words, twice; corrupted: two words of the first copy are
    exchanged.
    """
    block = 1 + torch.rand(count, WORDS - 1, generator=draw).argsort(dim=1)[:, :PERIOD]
    clean = torch.cat(
        [torch.zeros(count, 1, dtype=torch.long), block, block], dim=1
    )  # (B, PERIOD) -> (B, LENGTH)
    return exchanged(clean, 3, 7, PERIOD)
