"""What does a memory gain if it may also forget?

The delta rule replaces what stands at the key of a word, and nothing else: what nobody writes again
stays and fills the memory. The gated delta rule (Yang, Kautz & Hatamizadeh 2025; in Qwen3-Next and,
with a factor for each number of a key, in Kimi Linear) lets each word choose how much of all that
stands there is kept, by one factor α from 0 to 1, before it writes. With q, k, v as rows:

    S  <-  α S + β kᵀ (v - k α S)     α = 1: the delta rule; α = 0: all is forgotten at this word
    output  =  q S                    without "- k α S" it is the state space of state_space.py

    python phase4_causal/long_texts/gated_delta.py
"""

import torch
from torch import Tensor

from phase4_causal.long_texts.delta_rule import delta_rule
from phase4_causal.long_texts.linear_attention import CHUNK, checked_words, output_of_no_words
from phase4_causal.long_texts.state_space import decays, read_chunk


def gated_delta_recurrent(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    beta: Tensor,
    alpha: Tensor,
    *,
    state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The specification, word by word: arguments, results and errors are those of gated_delta."""
    words, state = checked_words(query, key, value, state, beta=beta, alpha=alpha)
    outputs = [output_of_no_words(words.query, state)]
    for word in words.chunks(1):
        state = word.alpha * state  # all fades
        correction = word.beta * (word.value - word.key @ state)  # (..., 1, d_v)
        state = state + word.key.mT @ correction  # -> (..., d_k, d_v)
        outputs.append(word.query @ state)  # (..., 1, d_k) @ (..., d_k, d_v) -> (..., 1, d_v)
    return torch.cat(outputs, dim=-2).to(query.dtype), state  # T of (..., 1, d_v) -> (..., T, d_v)


def gated_delta(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    beta: Tensor,
    alpha: Tensor,
    *,
    state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The gated delta rule in chunks: as in delta_rule, but what is read has decayed meanwhile.

    query, key (..., T, d_k), value (..., T, d_v), beta and alpha (..., T) from 0 to 1 -> output
    (..., T, d_v) and the state (..., d_k, d_v), from which the text may go on. Each key should have
    length 1 as a vector. As in delta_rule a NaN reaches earlier words of its chunk, and inputs of
    16 bits are computed in float32. Raises ValueError for sizes that do not fit.
    """
    words, state = checked_words(query, key, value, state, beta=beta, alpha=alpha)
    outputs = [output_of_no_words(words.query, state)]
    for chunk in words.chunks(CHUNK):
        k = chunk.key
        # As in delta_rule: (I + earlier) u = target gives the corrections u of all words. The ones
        # of I are not stored, they are what unitriangular means. What a key reads has faded.
        left_of_words = decays(chunk.alpha)  # (..., CHUNK, CHUNK)
        left_of_state = chunk.alpha.cumprod(dim=-2)  # (..., CHUNK, 1)
        earlier = (chunk.beta * left_of_words * (k @ k.mT)).tril(-1)
        target = chunk.beta * (chunk.value - left_of_state * (k @ state))
        u = torch.linalg.solve_triangular(earlier, target, upper=False, unitriangular=True)
        output, state = read_chunk(chunk, u, left_of_words, state)
        outputs.append(output)
    return torch.cat(outputs, dim=-2).to(query.dtype), state  # chunks -> (..., T, d_v)


def main() -> None:
    key = torch.tensor([[1.0, 0], [0, 1], [1, 0]])  # the last word has the key of the first
    value = torch.tensor([[10.0], [20], [30]])
    beta, alpha = torch.ones(3), torch.tensor([1, 1, 0.5])
    query = key  # we look at the state alone, which no query changes
    print("Three words write 10, 20 and 30, the last one to the key of the first:")
    _, replaced = delta_rule(query, key, value, beta)
    print(f"   delta rule         {replaced.flatten().tolist()}: 30 in place of 10")
    _, faded = gated_delta(query, key, value, beta, alpha)
    print(f"   gated, α = 0.5     {faded.flatten().tolist()}: and 20 has faded to a half")
    alpha[2] = 0.0
    _, emptied = gated_delta(query, key, value, beta, alpha)
    print(f"   gated, α = 0       {emptied.flatten().tolist()}: the last word starts a new page")


if __name__ == "__main__":
    main()
