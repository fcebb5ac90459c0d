"""Is a state space model (Mamba-2) attention in disguise?

A state space model reads word by word. Its state fades by a factor α from 0 to 1 that each word
chooses, and then the word is added. With q, k, v as rows:

    S  <-  α S + kᵀ v          output  =  q S

Dao & Gu 2024, "structured state space duality": the same numbers come from attention without
softmax, in which a mask of products of α stands where the causal mask has its ones. That takes time
O(T²). So Mamba-2 trains in chunks: attention inside a chunk, and between chunks the state. In their
letters q, k and v are C, B and x, and α is the matrix A, a number times the identity. Run it:

    python phase4_causal/long_texts/state_space.py
"""

import torch
from torch import Tensor

from phase4_causal.long_texts.linear_attention import (
    CHUNK,
    Words,
    checked_words,
    output_of_no_words,
)


def decays(alpha: Tensor) -> Tensor:
    """How much of word s is left when word t reads: alpha (..., T, 1) -> (..., T, T).

    Row t, column s: the product of the alphas after s up to t, which is 1 for s = t, and 0 for
    s > t. Where every alpha is 1 it is the causal mask.
    """
    length = alpha.size(-2)
    later = torch.ones(length, length, dtype=torch.bool, device=alpha.device).tril(-1)
    # Row by row one more factor, but only for words that have been written by then. Large models
    # add logarithms; products allow an alpha of 0, which empties the state.
    factors = torch.where(later, alpha, 1.0)  # (..., T, 1) -> (..., T, T)
    return factors.cumprod(dim=-2).tril()


def state_space_attention(query: Tensor, key: Tensor, value: Tensor, alpha: Tensor) -> Tensor:
    """A state space model as attention without softmax: all words at once, in time O(T²).

    query, key (..., T, d_k), value (..., T, d_v), alpha (..., T) from 0 to 1 -> (..., T, d_v).
    Inputs of 16 bits are computed in float32. Raises ValueError for sizes that do not fit.
    """
    words, _ = checked_words(query, key, value, None, alpha=alpha)
    scores = words.query @ words.key.mT  # (..., T, d_k) @ (..., d_k, T) -> (..., T, T)
    weights = decays(words.alpha) * scores
    output = weights @ words.value  # (..., T, T) @ (..., T, d_v) -> (..., T, d_v)
    return output.to(query.dtype)


def read_chunk(
    chunk: Words, written: Tensor, left_of_words: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """What the words of a chunk read, (..., T, d_v), and the state (..., d_k, d_v) behind them.

    written: what each word adds to the line of its key, (..., T, d_v): its value, or, in
    gated_delta.py, its correction. left_of_words: the decays of the chunk. state: that before it.
    """
    # What is left, when a word reads, of the state before the chunk: (..., T, 1).
    left_of_state = chunk.alpha.cumprod(dim=-2)
    from_state = left_of_state * (chunk.query @ state)  # (..., T, d_v)
    from_words = (left_of_words * (chunk.query @ chunk.key.mT)) @ written  # (..., T, d_v)
    # At the last word of the chunk.
    faded = left_of_state[..., -1:, :] * state
    left_at_end = left_of_words[..., -1:, :].mT  # (..., 1, T) -> (..., T, 1)
    return from_state + from_words, faded + (left_at_end * chunk.key).mT @ written


def state_space(
    query: Tensor, key: Tensor, value: Tensor, alpha: Tensor, *, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """A state space model in chunks, in time O(T): attention inside them, the state between.

    Arguments and errors are those of state_space_attention (Dao & Gu 2024, section 6). Returns the
    output (..., T, d_v) and the state (..., d_k, d_v), from which the text may go on.
    """
    words, state = checked_words(query, key, value, state, alpha=alpha)
    outputs = [output_of_no_words(words.query, state)]
    for chunk in words.chunks(CHUNK):
        output, state = read_chunk(chunk, chunk.value, decays(chunk.alpha), state)
        outputs.append(output)
    return torch.cat(outputs, dim=-2).to(query.dtype), state  # chunks -> (..., T, d_v)


def state_space_recurrent(
    query: Tensor, key: Tensor, value: Tensor, alpha: Tensor, *, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The specification, word by word: arguments, results and errors are those of state_space."""
    words, state = checked_words(query, key, value, state, alpha=alpha)
    outputs = [output_of_no_words(words.query, state)]
    for word in words.chunks(1):
        state = word.alpha * state + word.key.mT @ word.value  # -> (..., d_k, d_v)
        outputs.append(word.query @ state)  # (..., 1, d_k) @ (..., d_k, d_v) -> (..., 1, d_v)
    return torch.cat(outputs, dim=-2).to(query.dtype), state  # T of (..., 1, d_v) -> (..., T, d_v)


def main() -> None:
    alpha = torch.tensor([1, 0.5, 0.5, 1])
    print("Before words 1 and 2 the state fades to a half. What each word finds of the others:")
    for row in decays(alpha[:, None]).tolist():
        print("   " + "  ".join(f"{share:4g}" for share in row))


if __name__ == "__main__":
    main()
