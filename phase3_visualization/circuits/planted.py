"""A model that copies. Its weights are set by hand, so that we know what each head does.

    layer 0   previous   looks at the place before, and writes the word there as "word before"
              decoy      looks at its own place, as sharply, and writes as much where nobody reads
    layer 1   induction  looks where "word before" is its own word, and guesses the word there

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

NUM_WORDS = 29  # of the language; word 0 is <start>
PERIOD = 11  # the length of the block that comes twice
TEXT_LENGTH = 1 + 2 * PERIOD
STREAM = {
    "word": NUM_WORDS,
    "position": TEXT_LENGTH,
    "word before": NUM_WORDS,
    "unread": NUM_WORDS,
    "guess": NUM_WORDS,
}
CHANGES = ("W_Q and W_K", "W_V and W_O", "stream rotated", "stream sheared")


@dataclass(frozen=True)
class PlantedHead:
    """query and key (d_model, d_k), value (d_model, d_v), output (d_v, d_model)."""

    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor


@dataclass(frozen=True)
class PlantedModel:
    """words (V, d_model), positions (T, d_model) make the stream; guess (d_model, V) reads it."""

    words: Tensor
    positions: Tensor
    layers: list[dict[str, PlantedHead]]
    guess: Tensor


def planted_model(match: float = 12.0) -> PlantedModel:
    """match: the score of the key that a head looks for; all other keys have 0."""
    identity = torch.eye(sum(STREAM.values()), dtype=torch.float64)
    # Each reads one part of the stream, in the order of STREAM; transposed, it writes there.
    word, position, before, unread, guess = identity.split(list(STREAM.values()), dim=1)
    asks_place = match * math.sqrt(TEXT_LENGTH) * position  # attention divides by √d_k
    asks_word = match * math.sqrt(NUM_WORDS) * word
    next_position = position.roll(1, dims=1)  # as a key, place j answers to j + 1
    previous = PlantedHead(asks_place, next_position, word, before.T)
    decoy = PlantedHead(asks_place, position, word, unread.T)
    induction = PlantedHead(asks_word, before, word, guess.T)
    layers = [{"previous": previous, "decoy": decoy}, {"induction": induction}]
    return PlantedModel(word.T, position.T, layers, 8 * guess)


@dataclass(frozen=True)
class HeadPass:
    """What a head did: weights (B, T, T), values (B, T, d_v), and what it added (B, T, d_model)."""

    weights: Tensor
    values: Tensor
    added: Tensor


def run_planted(
    model: PlantedModel, tokens: Tensor, **patches: Tensor
) -> tuple[Tensor, dict[str, HeadPass]]:
    """Tokens (B, T) -> logits (B, T, V), and what each head did.

    patches: name of a head -> what it adds instead of its own (B, T, d_model).
    """
    mask = causal_mask(tokens.size(1))
    stream = model.words[tokens] + model.positions
    passes = {}
    for layer in model.layers:
        added = 0
        for name, head in layer.items():
            values = stream @ head.value
            output, weights = scaled_dot_product_attention(
                stream @ head.query, stream @ head.key, values, mask
            )
            own = output @ head.output  # (B, T, d_v) -> (B, T, d_model)
            passes[name] = HeadPass(weights, values, patches.get(name, own))
            added = added + passes[name].added
        stream = stream + added  # after all heads of the layer, which read the same stream
    return stream @ model.guess, passes


def restored_by_head(model: PlantedModel, pairs: Pairs, name: str) -> tuple[float, float]:
    """The share of the answer that a head restores: by a patch, and by attribution patching.

    The second needs no patch: the gradient at what the head adds to the corrupted texts, times by
    how much the clean texts change it (Nanda 2023). For small changes both are the same.
    """
    clean_logits, clean = run_planted(model, pairs.clean)
    corrupted_logits, corrupted = run_planted(model, pairs.corrupted)
    corrupted_difference = pairs.logit_difference(corrupted_logits)
    lost = pairs.logit_difference(clean_logits) - corrupted_difference
    patched_logits, _ = run_planted(model, pairs.corrupted, **{name: clean[name].added})
    by_patch = pairs.logit_difference(patched_logits) - corrupted_difference
    own = corrupted[name].added.requires_grad_()
    logits, _ = run_planted(model, pairs.corrupted, **{name: own})
    (gradient,) = torch.autograd.grad(pairs.differences(logits).mean(), own)
    by_gradient = (gradient * (clean[name].added - own)).sum().item()
    return by_patch / lost, by_gradient / lost


def rewritten_head(
    head: PlantedHead, query_key: Tensor, value_output: Tensor, stream: Tensor
) -> PlantedHead:
    """The same head, written otherwise: what a matrix does to who writes, its inverse undoes.

    query_key stands between W_Q and W_K, value_output between W_V and W_O, `stream` behind all that
    writes.
    """
    back = stream.inverse()
    return PlantedHead(
        query=back @ head.query @ query_key,
        key=back @ head.key @ query_key.inverse().T,  # q A (k A^-T)^T = q k^T
        value=back @ head.value @ value_output,
        output=value_output.inverse() @ head.output @ stream,
    )


def other_weights(model: PlantedModel, change: str, draw: torch.Generator) -> PlantedModel:
    """Returns a model with other weights and the same function, by one of CHANGES."""

    def matrix(size: int, *used_by: str) -> Tensor:
        """A random matrix for the changes that use it, for all others the identity."""
        scale = 2 ** torch.randn((), generator=draw)
        numbers = torch.randn(size, size, generator=draw, dtype=torch.float64)
        if change in used_by:
            return scale * numbers / math.sqrt(size)
        return torch.eye(size, dtype=torch.float64)

    stream = matrix(model.words.size(1), "stream rotated", "stream sheared")
    if change == "stream rotated":
        stream = torch.linalg.qr(stream).Q
    layers = []
    for layer in model.layers:
        rewritten = {}
        for name, head in layer.items():
            query_key = matrix(head.query.size(1), "W_Q and W_K")
            value_output = matrix(head.value.size(1), "W_V and W_O")
            rewritten[name] = rewritten_head(head, query_key, value_output, stream)
        layers.append(rewritten)
    guess = stream.inverse() @ model.guess
    return PlantedModel(model.words @ stream, model.positions @ stream, layers, guess)


def planted_pairs(count: int, draw: torch.Generator) -> Pairs:
    """Pairs of texts (count, TEXT_LENGTH): <start>, and a block of different words, twice."""
    shuffled = torch.rand(count, NUM_WORDS - 1, generator=draw).argsort(dim=1)
    block = 1 + shuffled[:, :PERIOD]
    start = torch.zeros(count, 1, dtype=torch.long)
    return exchanged(torch.cat([start, block, block], dim=1), 3, 7, PERIOD)


def main() -> None:
    pairs = planted_pairs(1, torch.Generator().manual_seed(0))
    logits, passes = run_planted(planted_model(), pairs.clean)
    position = int(pairs.position)
    words = pairs.clean[0].tolist()
    print("The model reads", *words[: position + 1])
    for name, head in passes.items():
        key = int(head.weights[0, position].argmax())
        print(f"   {name:9} looks at place {key:2}, where {words[key]:2} stands")
    print(f"It guesses {logits[0, position].argmax()}; next comes {words[position + 1]}.")
    print("Share of the answer that a head restores, by a patch and by one gradient:")
    for match in (12.0, 3.0):
        print(f"   the key that is looked for has the score {match:g}, all others 0")
        for name in ("previous", "decoy"):
            shares = restored_by_head(planted_model(match), pairs, name)
            print("      {:9} {:.2f} {:.2f}".format(name, *shares))


if __name__ == "__main__":
    main()
