"""What does a memory of fixed size do when a word takes back an earlier one?

Linear attention keeps the sum of all keys with their values. A key that was written with an old
value and then with a new one gives both. The delta rule (Schlag et al. 2021, section 4.2) first
reads what the key gives now, and writes the difference alone. With q, k, v as rows, and keys of
length 1:

    S  <-  S + β kᵀ (v - k S)     β = 1: from now on k gives v; β = 0: nothing is written
    output  =  q S                without "- k S" it is linear attention, with q and k as they are

    python phase4_causal/long_texts/delta_rule.py
"""

import torch
from torch import Tensor

from phase4_causal.long_texts.linear_attention import CHUNK, checked_words, output_of_no_words


def delta_rule_recurrent(
    query: Tensor, key: Tensor, value: Tensor, beta: Tensor, *, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The specification, word by word: arguments, results and errors are those of delta_rule."""
    words, state = checked_words(query, key, value, state, beta=beta)
    outputs = [output_of_no_words(words.query, state)]
    for word in words.chunks(1):
        correction = word.beta * (word.value - word.key @ state)  # (..., 1, d_v)
        state = state + word.key.mT @ correction  # -> (..., d_k, d_v)
        outputs.append(word.query @ state)  # (..., 1, d_k) @ (..., d_k, d_v) -> (..., 1, d_v)
    return torch.cat(outputs, dim=-2).to(query.dtype), state  # T of (..., 1, d_v) -> (..., T, d_v)


def delta_rule(
    query: Tensor, key: Tensor, value: Tensor, beta: Tensor, *, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The delta rule in chunks: a few large products in place of a step for each word.

    query, key (..., T, d_k), value (..., T, d_v), beta (..., T) -> output (..., T, d_v) and the
    state (..., d_k, d_v), from which the text may go on (Yang et al. 2024, section 3). beta goes
    from 0 to 1, in some models to 2 (OLMo Hybrid), where a word turns the sign of what it replaces.
    Give keys of length 1: with longer ones the state may grow without end. A NaN or inf in key,
    value or beta reaches earlier words of its chunk (0 · NaN); in delta_rule_recurrent it does not.
    Inputs of 16 bits are computed in float32. Raises ValueError for sizes that do not fit.
    """
    words, state = checked_words(query, key, value, state, beta=beta)
    outputs = [output_of_no_words(words.query, state)]
    for chunk in words.chunks(CHUNK):
        q, k = chunk.query, chunk.key
        # How much of each correction a later key reads: (..., CHUNK, CHUNK).
        earlier = (chunk.beta * (k @ k.mT)).tril(-1)
        # Word t corrects by u_t = β_t (v_t - k_t S) - sum over s < t of earlier_ts u_s; for all
        # words of the chunk that is (I + earlier) u = β (v - k S).
        target = chunk.beta * (chunk.value - k @ state)
        u = torch.linalg.solve_triangular(earlier, target, upper=False, unitriangular=True)
        # What the state gives, and what this chunk has written: (..., CHUNK, d_v).
        outputs.append(q @ state + (q @ k.mT).tril() @ u)
        state = state + k.mT @ u  # (..., d_k, CHUNK) @ (..., CHUNK, d_v) -> (..., d_k, d_v)
    output = torch.cat(outputs, dim=-2)  # chunks of (..., CHUNK, d_v) -> (..., T, d_v)
    return output.to(query.dtype), state


def main() -> None:
    key = torch.tensor([[1.0, 0], [0, 1], [1, 0]])  # the last word has the key of the first
    value = torch.tensor([[10.0], [20], [30]])
    print("Each word writes its value to its key, what the memory then holds:")
    for length in (1, 2, 3):
        k, v = key[:length], value[:length]
        _, state = delta_rule(k, k, v, torch.ones(length))
        sums = k.mT @ v
        print(f"   delta rule {state.flatten().tolist()}, sums {sums.flatten().tolist()}")
    print("With the delta rule 30 stands in place of 10, in the sum both.")


if __name__ == "__main__":
    main()
