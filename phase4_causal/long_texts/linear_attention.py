"""Attention with another kernel, whose cost grows with T instead of T².

A weight of attention is exp(q·k / √d_k) over its sum. Katharopoulos et al. 2020 take φ(q)·φ(k),
since keys can then be multiplied with values first, T d² operations and not T² d: (φ(Q) φ(K)ᵀ) V =
φ(Q) (φ(K)ᵀ V). The matrix φ(K)ᵀ V does not grow with the text. Under the causal mask it is a sum
over the past, a state to which each word adds itself. This is another function than softmax, to be
trained as such.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from shared.attention_checks import at_least_float32, check_attention_inputs

CHUNK = 64  # positions: inside a chunk the causal sums are taken with a mask, between chunks with a state


def elu_and_one(x: Tensor) -> Tensor:
    """φ of Katharopoulos et al. 2020: x + 1 above 0, e^x below. F.elu(x) + 1 is (e^x - 1) + 1,
    which rounds to 0.
    """
    return torch.where(
        x > 0, x + 1, x.clamp(max=0).exp()
    )  # clamp: an inf not chosen would spoil the gradient


FEATURE_MAPS = {"elu": elu_and_one, "relu": F.relu}


def _prepared(query: Tensor, key: Tensor, value: Tensor, feature_map: str) -> list[Tensor]:
    """Features of queries and keys; values with a last column of ones, whose weighted sum is the
    sum of the weights.
    """
    check_attention_inputs(query, key, value, None)
    if feature_map not in FEATURE_MAPS:
        raise ValueError(
            f"unknown feature_map {feature_map!r}: choose from {', '.join(FEATURE_MAPS)}"
        )
    query, key, value = at_least_float32(query, key, value)
    features = FEATURE_MAPS[feature_map]
    return [
        features(query),
        features(key),
        F.pad(value, (0, 1), value=1.0),
    ]  # (..., T_k, d_v) -> (..., T_k, d_v + 1)


def _normalized(sums: Tensor) -> Tensor:
    """Weighted sums over the sum of the weights; 0 where no key has weight: (..., T, d_v + 1) ->
    (..., T, d_v).
    """
    total = sums[..., -1:]
    return sums[..., :-1] / total.masked_fill(total == 0, 1.0)


def linear_by_loops(
    query: Tensor, key: Tensor, value: Tensor, *, causal: bool = False, feature_map: str = "elu"
) -> Tensor:
    """The specification, one query and one key at a time: (T_q, d_k), (T_k, d_k), (T_k, d_v)."""
    query, key = FEATURE_MAPS[feature_map](query), FEATURE_MAPS[feature_map](key)
    output = query.new_zeros(query.size(0), value.size(1))
    for i in range(query.size(0)):
        seen = i + 1 + key.size(0) - query.size(0) if causal else key.size(0)
        weights = [torch.dot(query[i], key[j]) for j in range(seen)]
        total = sum(weights)
        for j in range(seen if total else 0):  # else no key has weight, and the output stays 0
            output[i] += weights[j] / total * value[j]
    return output


def first_state(query: Tensor, key: Tensor, value: Tensor, state: Tensor | None) -> Tensor:
    """What a recurrence begins with: the state of the text before, or zeros (..., d_k, d_v) if
    nothing was read.
    """
    if query.size(-2) != key.size(-2):
        raise ValueError(
            f"a recurrence reads as many queries as keys: got T_q={query.size(-2)}, T_k={key.size(-2)}"
        )
    empty = (
        key[..., :0, :].mT @ value[..., :0, :]
    )  # (..., d_k, 0) @ (..., 0, d_v) -> zeros (..., d_k, d_v)
    if state is not None and (state.shape, state.dtype) != (empty.shape, empty.dtype):
        due, got = (f"{tuple(x.shape)} of {x.dtype}" for x in (empty, state))
        raise ValueError(f"the state of these keys and values has shape {due}: got {got}")
    return empty if state is None else state


def linear_attention_recurrent(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    state: Tensor | None = None,
    feature_map: str = "elu",
) -> tuple[Tensor, Tensor]:
    """The same, causal, word by word: (..., T, d_v) and the state (..., d_k, d_v + 1), all that the
    next words need.
    """
    dtype, (query, key, value) = query.dtype, _prepared(query, key, value, feature_map)
    state = first_state(query, key, value, state)
    outputs = [_normalized(query[..., :0, :] @ state)]
    for t in range(key.size(-2)):
        state = (
            state + key[..., t, :, None] * value[..., t, None, :]
        )  # (..., d_k, 1) * (..., 1, d_v + 1)
        outputs.append(
            _normalized(query[..., t, None, :] @ state)
        )  # (..., 1, d_k) @ (..., d_k, d_v + 1)
    return torch.cat(outputs, dim=-2).to(dtype), state  # T of (..., 1, d_v) -> (..., T, d_v)


def _causal_sums(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """For each i the sum over j <= i of (q_i · k_j) v_j, in chunks: (..., T, d) three times ->
    (..., T, d_v).

    Earlier chunks count through their summed states, the own chunk through its masked CHUNK x CHUNK
    products.
    """
    length = query.size(-2)
    filled = [
        F.pad(x, (0, 0, 0, -length % CHUNK)) for x in (query, key, value)
    ]  # zero keys add nothing
    query, key, value = (
        x.unflatten(-2, (-1, CHUNK)) for x in filled
    )  # (..., T, d) -> (..., chunks, CHUNK, d)
    states = (
        key.mT @ value
    )  # (..., chunks, d_k, CHUNK) @ (..., chunks, CHUNK, d_v) -> (..., chunks, d_k, d_v)
    before = F.pad(states[..., :-1, :, :], (0, 0, 0, 0, 1, 0)).cumsum(
        dim=-3
    )  # sum over the chunks before this one
    within = (query @ key.mT).tril()  # (..., chunks, CHUNK, CHUNK): itself and what comes before
    sums = query @ before + within @ value
    return sums.flatten(-3, -2)[..., :length, :]  # (..., chunks, CHUNK, d_v) -> (..., T, d_v)


def linear_attention(
    query: Tensor, key: Tensor, value: Tensor, *, causal: bool = False, feature_map: str = "elu"
) -> Tensor:
    """Attention whose weights are φ(q)·φ(k), normalised, in time and memory O(T); no √d_k.

    query (..., T_q, d_k), key (..., T_k, d_k), value (..., T_k, d_v) -> output (..., T_q, d_v),
    without the weights. causal: the last query stands at the last key. A query that gives no key
    any weight (with "relu") gets 0. Inputs of 16 bits are summed in float32. A NaN in value reaches
    earlier words of its chunk. Raises ValueError for wrong sizes.
    """
    dtype, (query, key, value) = query.dtype, _prepared(query, key, value, feature_map)
    if not causal:
        return _normalized(query @ (key.mT @ value)).to(
            dtype
        )  # (..., d_k, T_k) @ (..., T_k, d_v + 1) first
    length = max(query.size(-2), key.size(-2))
    sums = _causal_sums(
        *(F.pad(x, (0, 0, length - x.size(-2), 0)) for x in (query, key, value))
    )  # zeros in front
    return _normalized(sums[..., length - query.size(-2) :, :]).to(dtype)
