"""What does a memory gain if it may also forget?

The delta rule takes back what a word writes anew, and nothing else: what nobody writes again stays
and fills the memory. The gated delta rule (Yang, Kautz & Hatamizadeh 2025; in Qwen3-Next and, with
a factor for each number of a key, in Kimi Linear) lets each word choose how much of all that stands
there is kept, by one factor α from 0 to 1, before it writes:

    S  <-  α S + β kᵀ (v - k α S)     α = 1: the delta rule; α = 0: all is forgotten at this word
    output  =  q S                    without "- k α S" it is the state space of state_space.py

    python phase4_causal/long_texts/gated_delta.py
"""

import torch
from torch import Tensor

from phase4_causal.long_texts.delta_rule import delta_rule, given_for
from phase4_causal.long_texts.linear_attention import CHUNK, ready_with_factors
from phase4_causal.long_texts.state_space import decay_mask


def gated_delta_by_loops(
    query: Tensor, key: Tensor, value: Tensor, beta: Tensor, alpha: Tensor
) -> Tensor:
    """The specification, without S, by a list of corrections that fade.

    query (T, d_k), key (T, d_k), value (T, d_v), beta (T,), alpha (T,) -> output (T, d_v).
    """
    corrections: list[Tensor] = []
    output = []
    for t in range(len(key)):
        corrections = [alpha[t] * correction for correction in corrections]
        left_there = given_for(key[t], key, corrections, value.size(1))
        corrections.append(beta[t] * (value[t] - left_there))
        output.append(given_for(query[t], key, corrections, value.size(1)))
    return torch.stack(output)


def gated_delta_recurrent(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    beta: Tensor,
    alpha: Tensor,
    *,
    state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The gated delta rule word by word: arguments, results and errors are those of gated_delta."""
    inputs, state = ready_with_factors(query, key, value, state, beta=beta, alpha=alpha)
    outputs = [inputs[0][..., :0, :] @ state]  # there may be no words
    for t in range(key.size(-2)):
        q, k, v, b, a = [x[..., t : t + 1, :] for x in inputs]
        state = a * state  # all fades,
        state = state + k.mT @ (b * (v - k @ state))  # and then the word corrects what is left
        outputs.append(q @ state)  # (..., 1, d_k) @ (..., d_k, d_v) -> (..., 1, d_v)
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
    """The gated delta rule in chunks: delta_rule, in which a mask of decays weighs what is read.

    query, key (..., T, d_k), value (..., T, d_v), beta and alpha (..., T) from 0 to 1 -> output
    (..., T, d_v) and the state (..., d_k, d_v), from which the text may go on. Give keys of length
    1. As in delta_rule a NaN reaches earlier words of its chunk, and inputs of 16 bits are summed
    in float32. Raises ValueError for sizes that do not fit.
    """
    inputs, state = ready_with_factors(query, key, value, state, beta=beta, alpha=alpha)
    outputs = [inputs[0][..., :0, :] @ state]  # there may be no words
    for start in range(0, key.size(-2), CHUNK):
        q, k, v, b, a = [x[..., start : start + CHUNK, :] for x in inputs]
        decay = decay_mask(a)  # (..., CHUNK, CHUNK): what is left of each word when another reads
        since_start = a.cumprod(dim=-2)  # (..., CHUNK, 1): what is left of the state
        # As in delta_rule: (I + earlier) u = target gives the corrections u of all words.
        earlier = (b * decay * (k @ k.mT)).tril(-1)
        target = b * (v - since_start * (k @ state))
        u = torch.linalg.solve_triangular(earlier, target, upper=False, unitriangular=True)
        outputs.append(since_start * (q @ state) + (decay * (q @ k.mT)) @ u)
        left_at_end = decay[..., -1:, :].mT  # of each word: (..., CHUNK, 1)
        state = since_start[..., -1:, :] * state + (left_at_end * k).mT @ u  # (..., d_k, d_v)
    output = torch.cat(outputs, dim=-2)  # chunks of (..., CHUNK, d_v) -> (..., T, d_v)
    return output.to(query.dtype), state


def main() -> None:
    key = torch.tensor([[1.0, 0], [0, 1], [1, 0]])  # the last word has the key of the first
    value = torch.tensor([[10.0], [20], [30]])
    beta, alpha = torch.ones(3), torch.tensor([1, 1, 0.5])
    print("Three words write 10, 20 and 30, the last one to the key of the first:")
    _, kept = delta_rule(key, key, value, beta)
    print(f"   delta rule         {kept.flatten().tolist()}: 30 in place of 10")
    _, faded = gated_delta(key, key, value, beta, alpha)
    print(f"   gated, α = 0.5     {faded.flatten().tolist()}: and 20 has faded to a half")
    alpha[2] = 0.0
    _, emptied = gated_delta(key, key, value, beta, alpha)
    print(f"   gated, α = 0       {emptied.flatten().tolist()}: the last word starts a new page")


if __name__ == "__main__":
    main()
