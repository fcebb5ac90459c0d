"""What does a memory of fixed size do when a word takes back an earlier one?

Linear attention keeps the sum of all keys with their values. A key that was written with an old
value and then with a new one gives both. The delta rule (Schlag et al. 2021, section 4.2) first
reads what the key gives now, and writes the difference alone. With q, k, v as rows, and keys of
length 1:

    S  <-  S + β kᵀ (v - k S)          β = 1: from now on k gives v; β = 0: nothing is written
    output  =  q S                     without "- k S" it is linear attention, with q and k as they are
"""

import torch
from torch import Tensor

from phase4_causal.long_texts.linear_attention import CHUNK, first_state
from shared.attention_checks import at_least_float32, check_attention_inputs


def delta_by_loops(query: Tensor, key: Tensor, value: Tensor, beta: Tensor) -> Tensor:
    """The specification, without S: a list of keys and corrections. (T, d_k), (T, d_k), (T, d_v),
    (T,) -> (T, d_v).
    """
    written: list[tuple[Tensor, Tensor]] = []

    def read(asked: Tensor) -> Tensor:
        return sum(
            (torch.dot(asked, k) * correction for k, correction in written),
            torch.zeros_like(value[0]),
        )

    output = torch.zeros_like(value)
    for t in range(len(key)):
        written.append((key[t], beta[t] * (value[t] - read(key[t]))))
        output[t] = read(query[t])
    return output


def _prepared(
    query: Tensor, key: Tensor, value: Tensor, beta: Tensor, state: Tensor | None
) -> tuple[list[Tensor], Tensor]:
    """Inputs that were checked, beta as (..., T, 1), and the state to begin with."""
    check_attention_inputs(query, key, value, None)
    if (beta.shape, beta.dtype) != (key.shape[:-1], key.dtype):
        due, got = (
            f"{tuple(shape)} in {x.dtype}"
            for shape, x in ((key.shape[:-1], key), (beta.shape, beta))
        )
        raise ValueError(f"beta has one number for each key, {due}: got {got}")
    inputs = at_least_float32(query, key, value, beta.unsqueeze(-1))
    return inputs, first_state(*inputs[:3], state)


def delta_rule_recurrent(
    query: Tensor, key: Tensor, value: Tensor, beta: Tensor, *, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The delta rule word by word, with a state of constant size; arguments and errors are those of
    delta_rule.
    """
    inputs, state = _prepared(query, key, value, beta, state)
    outputs = []
    for q, k, v, b in zip(*(x.split(1, dim=-2) for x in inputs), strict=True):
        state = state + k.mT @ (b * (v - k @ state))  # -> (..., d_k, d_v)
        outputs.append(q @ state)  # (..., 1, d_k) @ (..., d_k, d_v) -> (..., 1, d_v)
    return torch.cat(outputs, dim=-2).to(query.dtype), state  # T of (..., 1, d_v) -> (..., T, d_v)


def delta_rule(
    query: Tensor, key: Tensor, value: Tensor, beta: Tensor, *, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The delta rule in chunks (Yang et al. 2024, section 3): a few large products in place of a
    step for each word.

    query, key (..., T, d_k), value (..., T, d_v), beta (..., T) from 0 to 1 -> output (..., T, d_v)
    and the state (..., d_k, d_v), from which the text may go on. Give keys of length 1: with longer
    ones the state may grow without end. A NaN or inf in key, value or beta reaches earlier words of
    its chunk (0 · NaN); in delta_rule_recurrent it does not. Inputs of 16 bits are summed in
    float32. Raises ValueError for sizes that do not fit.
    """
    inputs, state = _prepared(query, key, value, beta, state)
    outputs = []
    for q, k, v, b in zip(*(x.split(CHUNK, dim=-2) for x in inputs), strict=True):
        earlier = (b * (k @ k.mT)).tril(
            -1
        )  # (..., CHUNK, CHUNK): how much of each correction a later key reads
        # u_t = b_t (v_t - k_t S) - sum of earlier_ts u_s over s < t, which is (I + earlier) u = b
        # (v - k S)
        u = torch.linalg.solve_triangular(
            earlier, b * (v - k @ state), upper=False, unitriangular=True
        )
        outputs.append(
            q @ state + (q @ k.mT).tril() @ u
        )  # of the state, and of this chunk: (..., CHUNK, d_v)
        state = state + k.mT @ u  # (..., d_k, CHUNK) @ (..., CHUNK, d_v) -> (..., d_k, d_v)
    return torch.cat(outputs, dim=-2).to(
        query.dtype
    ), state  # chunks of (..., CHUNK, d_v) -> (..., T, d_v)
