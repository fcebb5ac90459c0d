"""Attention with another kernel, whose cost grows with T instead of T².

Attention is a weighted mean, and softmax says how weights come from a query and a key: exp(q·k / √d_k), divided by the
sum over the keys. Any positive function may stand in its place. Katharopoulos et al. 2020 take a product of features,

    weight of j for i  =  φ(q_i)·φ(k_j) / sum over l of φ(q_i)·φ(k_l),      φ(x) = elu(x) + 1  (or another, positive)

because then the sums can be taken in another order, keys with values first:

    (φ(Q) φ(K)ᵀ) V  =  φ(Q) (φ(K)ᵀ V)            T² d operations on the left, T d² on the right

φ(K)ᵀ V is a d_k x d_v matrix however long the text is. With the causal mask it is a sum over the past, a state that
each word adds itself to: the layer is a recurrent network, and it can be trained in parallel.

With elu + 1 this is not softmax attention computed faster. It is another function, and Katharopoulos et al. say so.
Features that do approximate softmax exist, drawn at random (FAVOR+, Choromanski et al. 2021): for normal ω

    exp(q·k)  =  mean over ω of  exp(ω·q - |q|²/2) · exp(ω·k - |k|²/2)

so that m draws of ω give m positive features whose products are right on average. linear_kernel.py measures how near.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from shared.attention_checks import at_least_float32, check_attention_inputs

FeatureMap = Callable[[Tensor], Tensor]  # (..., T, d_k) -> (..., T, features), not negative
CHUNK = 64  # positions: inside a chunk the causal sums are taken with a mask, between chunks with a state


def elu_and_one(x: Tensor) -> Tensor:
    """φ of Katharopoulos et al. 2020: x + 1 above 0, e^x below. F.elu(x) + 1 is (e^x - 1) + 1, which rounds to 0."""
    return torch.where(x > 0, x + 1, x.clamp(max=0).exp())  # clamp: an inf not chosen would spoil the gradient


FEATURE_MAPS: dict[str, FeatureMap] = {"elu": elu_and_one, "relu": F.relu}


def random_directions(count: int, width: int, generator: torch.Generator) -> Tensor:
    """The ω of FAVOR+ -> (count, width), float64: each is normal, and those of a block of `width` are orthogonal."""
    blocks = torch.randn(-(-count // width), width, width, dtype=torch.float64, generator=generator)
    directions, triangle = torch.linalg.qr(blocks)
    directions = directions * triangle.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)  # else not in all directions
    lengths = torch.randn(count, width, dtype=torch.float64, generator=generator).norm(dim=-1, keepdim=True)
    return directions.mT.flatten(0, 1)[:count] * lengths  # (blocks, width, width) -> (count, width)


def positive_random_features(directions: Tensor) -> FeatureMap:
    """φ of FAVOR+ with these ω (m, d_k), up to a factor that cancels; with the division by √d_k, half on each side.

    Long x underflow: in float32 many features are 0 from |x|² / √d_k = 200 on, that is entries of size 5 for d_k = 64.
    The largest exponent of all keys could be taken off, but then a later key would move what earlier words get.
    """

    def features(x: Tensor) -> Tensor:
        x = x / x.size(-1) ** 0.25
        return torch.exp(x @ directions.mT.to(x) - x.square().sum(dim=-1, keepdim=True) / 2)  # (..., d_k) -> (..., m)

    return features


def _features(
    feature_map: str | FeatureMap, query: Tensor, key: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """φ of both; that of a hidden key is 0, so that it has no weight and adds nothing to a state."""
    if isinstance(feature_map, str):
        if feature_map not in FEATURE_MAPS:
            raise ValueError(f"unknown feature_map {feature_map!r}: choose from {', '.join(FEATURE_MAPS)}")
        feature_map = FEATURE_MAPS[feature_map]
    query, key = feature_map(query), feature_map(key)
    return query, key if mask is None else key.masked_fill(~mask.unsqueeze(-1), 0.0)


def _check(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> None:
    """As attention checks its inputs; mask (..., T_k) is one row of scores that all queries share."""
    check_attention_inputs(query, key, value, None if mask is None else mask.unsqueeze(-2))  # -> (..., 1, T_k)


def _with_ones(value: Tensor) -> Tensor:
    """A last column of ones, whose weighted sum is the sum of the weights: (..., T, d_v) -> (..., T, d_v + 1)."""
    return F.pad(value, (0, 1), value=1.0)


def _normalized(sums: Tensor) -> Tensor:
    """Weighted sums over the sum of the weights; 0 where no key has weight: (..., T, d_v + 1) -> (..., T, d_v)."""
    total = sums[..., -1:]
    return sums[..., :-1] / total.masked_fill(total == 0, 1.0)


def linear_by_loops(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    causal: bool = False,
    mask: Tensor | None = None,
    feature_map: str = "elu",
) -> Tensor:
    """The specification, one query and one key at a time: (T_q, d_k), (T_k, d_k), (T_k, d_v), mask (T_k,)."""
    query, key = _features(feature_map, query, key)
    output = query.new_zeros(query.size(0), value.size(1))
    for i in range(query.size(0)):
        last = i + key.size(0) - query.size(0) if causal else key.size(0) - 1
        similarities = {j: torch.dot(query[i], key[j]) for j in range(last + 1) if mask is None or mask[j]}
        total = sum(similarities.values())
        if total:  # else no key has weight, and the output stays 0
            output[i] = sum(s / total * value[j] for j, s in similarities.items())
    return output


def first_state(query: Tensor, key: Tensor, value: Tensor, state: Tensor | None) -> Tensor:
    """What a recurrence begins with: the state of the text before, or zeros (..., d_k, d_v) if nothing was read.

    Raises ValueError for unequal lengths and a state of another size or number format.
    """
    if query.size(-2) != key.size(-2):
        raise ValueError(f"a recurrence reads as many queries as keys: got T_q={query.size(-2)}, T_k={key.size(-2)}")
    empty = key[..., :0, :].mT @ value[..., :0, :]  # (..., d_k, 0) @ (..., 0, d_v) -> zeros (..., d_k, d_v)
    if state is not None and (state.shape, state.dtype) != (empty.shape, empty.dtype):
        due, got = (f"{tuple(x.shape)} of {x.dtype}" for x in (empty, state))
        raise ValueError(f"the state of these keys and values has shape {due}: got {got}")
    return empty if state is None else state


def linear_attention_recurrent(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None = None,
    state: Tensor | None = None,
    feature_map: str | FeatureMap = "elu",
) -> tuple[Tensor, Tensor]:
    """Causal linear attention, word by word: the same as linear_attention(..., causal=True) for T_q = T_k = T.

    -> output (..., T, d_v), state (..., d_k, d_v + 1), the sums over all keys, all that the next word needs: keys and
    values themselves are forgotten. state: of the text so far, so that it may be read in pieces; without it nothing was
    read. mask: as linear_attention takes it. Raises ValueError for unequal lengths and a state of another size.
    """
    _check(query, key, value, mask)
    dtype, (query, key, value) = query.dtype, at_least_float32(query, key, value)
    query, key = _features(feature_map, query, key, mask)
    value = _with_ones(value)
    state = first_state(query, key, value, state)
    outputs = [_normalized(query[..., :0, :] @ state)]
    for t in range(key.size(-2)):
        state = state + key[..., t, :, None] * value[..., t, None, :]  # (..., d_k, 1) * (..., 1, d_v + 1)
        outputs.append(_normalized(query[..., t, None, :] @ state))  # (..., 1, d_k) @ (..., d_k, d_v + 1)
    return torch.cat(outputs, dim=-2).to(dtype), state  # T of (..., 1, d_v) -> (..., T, d_v)


def _causal_sums(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """For each i the sum over j <= i of (q_i · k_j) v_j, in chunks: (..., T, d) three times -> (..., T, d_v).

    Two parts: earlier chunks through their summed states, the own chunk through its masked CHUNK x CHUNK products.
    """
    length = query.size(-2)
    filled = [F.pad(x, (0, 0, 0, -length % CHUNK)) for x in (query, key, value)]  # zero keys add nothing
    query, key, value = (x.unflatten(-2, (-1, CHUNK)) for x in filled)  # (..., T, d) -> (..., chunks, CHUNK, d)
    states = key.mT @ value  # (..., chunks, d_k, CHUNK) @ (..., chunks, CHUNK, d_v) -> (..., chunks, d_k, d_v)
    before = F.pad(states[..., :-1, :, :], (0, 0, 0, 0, 1, 0)).cumsum(dim=-3)  # sum over the chunks before this one
    within = (query @ key.mT).tril()  # (..., chunks, CHUNK, CHUNK): itself and what comes before
    sums = query @ before + within @ value
    return sums.flatten(-3, -2)[..., :length, :]  # (..., chunks, CHUNK, d_v) -> (..., T, d_v)


def linear_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    causal: bool = False,
    mask: Tensor | None = None,
    feature_map: str | FeatureMap = "elu",
) -> Tensor:
    """Attention whose weights are φ(q)·φ(k), normalised, in time and memory O(T) (Katharopoulos et al. 2020).

    query (..., T_q, d_k), key (..., T_k, d_k), value (..., T_k, d_v) -> output (..., T_q, d_v), without the weights.
    No √d_k: φ takes queries and keys as they are. causal: the last query stands at the last key. mask: bool, True = may
    attend, of the keys alone: (T_k,) or (..., T_k), for there are no weights of single queries to hide. feature_map:
    "elu" (elu(x) + 1, positive as long as e^x is), "relu", or a function such as positive_random_features gives; with
    relu a query may give no key any weight, and its output is 0. Inputs of 16 bits are summed in float32. A NaN or inf
    among values reaches earlier words of its chunk (0 · NaN), in linear_attention_recurrent only its own and later
    ones. Raises ValueError for an unknown feature map and for sizes that do not fit.
    """
    _check(query, key, value, mask)
    dtype, (query, key, value) = query.dtype, at_least_float32(query, key, value)
    query, key = _features(feature_map, query, key, mask)
    value = _with_ones(value)
    if not causal:
        return _normalized(query @ (key.mT @ value)).to(dtype)  # (..., d_k, T_k) @ (..., T_k, d_v + 1) first
    query_length, key_length = query.size(-2), key.size(-2)
    longest = max(query_length, key_length)
    query = F.pad(query, (0, 0, longest - query_length, 0))  # zeros in front: both end at the same position
    key, value = (F.pad(x, (0, 0, longest - key_length, 0)) for x in (key, value))
    return _normalized(_causal_sums(query, key, value)[..., longest - query_length :, :]).to(dtype)
