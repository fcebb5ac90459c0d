"""Attention with another kernel, whose cost grows with T instead of T².

A weight of attention is exp(q·k / √d_k) over its sum. Katharopoulos et al. 2020 take φ(q)·φ(k),
since keys can then be multiplied with values first, T d² operations and not T² d: (φ(Q) φ(K)ᵀ) V =
φ(Q) (φ(K)ᵀ V). The matrix φ(K)ᵀ V does not grow with the text. Under the causal mask it is a sum
over the past, a state to which each word adds itself. This is another function than softmax, to be
trained as such. Run it to see a state that remembers:

    python phase4_causal/long_texts/linear_attention.py
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from shared.attention_checks import at_least_float32, check_attention_inputs

# Positions: inside a chunk the causal sums are taken with a mask, between chunks with a state.
CHUNK = 64


def elu_and_one(x: Tensor) -> Tensor:
    """φ of Katharopoulos et al. 2020: x + 1 above 0, e^x below.

    As F.elu(x) + 1 it would be (e^x - 1) + 1, which rounds to 0 for a very negative x.
    """
    below = x.clamp(max=0).exp()  # without clamp an inf that is not chosen spoils the gradient
    return torch.where(x > 0, x + 1, below)


FEATURE_MAPS = {"elu": elu_and_one, "relu": F.relu}


def _with_features(query: Tensor, key: Tensor, value: Tensor, feature_map: str) -> list[Tensor]:
    """φ of queries and keys, and the values with a last column of ones (..., T_k, d_v + 1).

    The weighted sum of the ones is the sum of the weights.
    """
    check_attention_inputs(query, key, value, None)
    if feature_map not in FEATURE_MAPS:
        known = ", ".join(FEATURE_MAPS)
        raise ValueError(f"unknown feature_map {feature_map!r}: choose from {known}")
    query, key, value = at_least_float32(query, key, value)
    features = FEATURE_MAPS[feature_map]
    return [features(query), features(key), F.pad(value, (0, 1), value=1.0)]


def _normalized(sums: Tensor) -> Tensor:
    """Weighted sums (..., T, d_v + 1) over the sum of the weights -> (..., T, d_v).

    0 where no key has weight.
    """
    total = sums[..., -1:]
    return sums[..., :-1] / total.masked_fill(total == 0, 1.0)


def output_of_no_words(query: Tensor, state: Tensor) -> Tensor:
    """The output of no words, (..., 0, d_v): a text without words has it, others begin with it."""
    return query[..., :0, :] @ state


@dataclass(frozen=True)
class Words:
    """What a recurrence reads of T words; none of it is in 16 bits.

    query, key (..., T, d_k), value (..., T, d_v). beta, alpha: factors from 0 to 1, (..., T, 1).
    """

    query: Tensor
    key: Tensor
    value: Tensor
    beta: Tensor | None = None
    alpha: Tensor | None = None

    def chunks(self, size: int) -> Iterator["Words"]:
        """Yields `size` words after the other, and in the end those that are left."""
        for start in range(0, self.key.size(-2), size):
            chunk = {}
            for name, numbers in vars(self).items():
                if numbers is not None:
                    chunk[name] = numbers[..., start : start + size, :]
            yield Words(**chunk)


def checked_words(
    query: Tensor, key: Tensor, value: Tensor, state: Tensor | None, **factors: Tensor
) -> tuple[Words, Tensor]:
    """Checks the inputs of a recurrence. It may have factors from 0 to 1, one a word (..., T).

    Returns the inputs as Words, and the state to begin with: that of the text before, or zeros
    (..., d_k, d_v). Raises ValueError for inputs or a state that do not fit, and unless there are
    as many queries as keys.
    """
    columns = {}
    for name, factor in factors.items():
        if (factor.shape, factor.dtype) != (key.shape[:-1], key.dtype):
            rule = f"{name} has one number for each key, {tuple(key.shape[:-1])} in {key.dtype}"
            raise ValueError(f"{rule}: got {tuple(factor.shape)} in {factor.dtype}")
        (factor,) = at_least_float32(factor)
        columns[name] = factor.unsqueeze(-1)  # (..., T) -> (..., T, 1)
    query, key, value = at_least_float32(query, key, value)
    leading = check_attention_inputs(query, key, value, None)
    t_q, t_k = query.size(-2), key.size(-2)
    if t_q != t_k:
        raise ValueError(f"a recurrence reads as many queries as keys: got T_q={t_q}, T_k={t_k}")
    zeros = key.new_zeros(*leading, key.size(-1), value.size(-1))
    if state is None:
        state = zeros
    elif (state.shape, state.dtype) != (zeros.shape, zeros.dtype):
        rule = f"the state of these keys and values has shape {tuple(zeros.shape)} of {zeros.dtype}"
        raise ValueError(f"{rule}: got {tuple(state.shape)} of {state.dtype}")
    return Words(query, key, value, **columns), state


def linear_attention_recurrent(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    state: Tensor | None = None,
    feature_map: str = "elu",
) -> tuple[Tensor, Tensor]:
    """The specification, causal and word by word; arguments and errors as of linear_attention.

    Returns the output (..., T, d_v) and the state (..., d_k, d_v + 1), all that later words need.
    """
    features = _with_features(query, key, value, feature_map)
    words, state = checked_words(*features, state)
    outputs = [_normalized(output_of_no_words(words.query, state))]
    for word in words.chunks(1):
        state = state + word.key.mT @ word.value  # -> (..., d_k, d_v + 1)
        outputs.append(_normalized(word.query @ state))  # -> (..., 1, d_v)
    return torch.cat(outputs, dim=-2).to(query.dtype), state  # T of (..., 1, d_v) -> (..., T, d_v)


def _causal_sums(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """For each i the sum over j <= i of (q_i · k_j) v_j: (..., T, d) three times -> (..., T, d_v).

    Earlier chunks count through their state, the own chunk through its masked CHUNK x CHUNK
    products.
    """
    words, state = checked_words(query, key, value, None)
    sums = [output_of_no_words(query, state)]
    for chunk in words.chunks(CHUNK):
        within = (chunk.query @ chunk.key.mT).tril()  # (..., CHUNK, CHUNK): itself and what is past
        sums.append(chunk.query @ state + within @ chunk.value)
        state = state + chunk.key.mT @ chunk.value  # -> (..., d_k, d_v)
    return torch.cat(sums, dim=-2)  # chunks of (..., CHUNK, d_v) -> (..., T, d_v)


def linear_attention(
    query: Tensor, key: Tensor, value: Tensor, *, causal: bool = False, feature_map: str = "elu"
) -> Tensor:
    """Attention whose weights are φ(q)·φ(k), normalised, in time and memory O(T); no √d_k.

    query (..., T_q, d_k), key (..., T_k, d_k), value (..., T_k, d_v) -> output (..., T_q, d_v),
    without the weights. causal: the last query stands at the last key. A query that gives no key
    any weight (with "relu") gets 0. Inputs of 16 bits are computed in float32. A NaN in value
    reaches earlier words of its chunk. Raises ValueError for wrong sizes.
    """
    dtype = query.dtype
    query, key, value = _with_features(query, key, value, feature_map)
    if not causal:
        sums = query @ (key.mT @ value)  # (..., d_k, T_k) @ (..., T_k, d_v + 1) first
        return _normalized(sums).to(dtype)
    # With zeros in front of the shorter, the last query stands at the last key.
    shift = key.size(-2) - query.size(-2)
    in_front = (0, 0, abs(shift), 0)
    if shift > 0:
        query = F.pad(query, in_front)
    elif shift < 0:
        key, value = F.pad(key, in_front), F.pad(value, in_front)
    sums = _causal_sums(query, key, value)[..., max(shift, 0) :, :]
    return _normalized(sums).to(dtype)


def main() -> None:
    key = torch.tensor([[1.0, 0], [0, 1], [1, 0]])  # the last word has the key of the first
    value = torch.tensor([[10.0], [20], [30]])
    print("Each word adds its value to the row of its key, and then asks with that key:")
    state = None
    for t in range(3):
        k, v = key[t : t + 1], value[t : t + 1]
        output, state = linear_attention_recurrent(k, k, v, state=state, feature_map="relu")
        print(f"   value {v.item():g}: sums {state[:, 0].tolist()}, output {output.item():g}")
    print("The last output is the mean of 10 and 30: a sum takes nothing back (see delta_rule.py).")


if __name__ == "__main__":
    main()
