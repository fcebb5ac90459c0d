"""How does a word decide where to look, and what does it take from there?

Self-attention with one head: every word asks all words a question and takes a weighted mean of
their answers.

    Attention(Q, K, V) = softmax(Q Kᵀ / √d_k) V                                  (Vaswani et al. 2017, equation 1)

Run it to see six words with numbers made by hand; hidden_word.py follows a word of a trained model
number by number:

    python phase1_single_head/self_attention.py
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shared.attention_checks import at_least_float32, check_attention_inputs, known_to_hold


def masked_softmax(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """Scores (..., T_q, T_k) -> weights of the same shape: each row sums to 1, and hidden keys get
    exactly 0.

    mask: bool, True = may attend. A query that may see no key gets a row of zeros, where plain
    softmax gives NaN.
    """
    if mask is None:
        return torch.softmax(scores, dim=-1)
    sees = mask.any(
        dim=-1, keepdim=True
    )  # has this query a key to see? (..., T_q, T_k) -> (..., T_q, 1)
    hidden = torch.where(sees, -math.inf, 0.0).to(
        scores.dtype
    )  # a row of -inf alone would become NaN
    scores = torch.where(mask, scores, hidden)  # before softmax: visible keys share all of 1
    weights = torch.softmax(scores, dim=-1)
    return (
        weights if known_to_hold(sees) else weights * sees
    )  # a query that sees no key gives weight to none


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *,
    dropout: nn.Dropout | None = None,
) -> tuple[Tensor, Tensor]:
    """For each query, a mean of the values, weighted by how well the query matches each key.

    query   (..., T_q, d_k)        what each position looks for; with d_k = 0 all keys are alike
    key     (..., T_k, d_k)        what each position offers to be found by
    value   (..., T_k, d_v)        what each position passes on
    mask    bool, True = may attend: (T_q, T_k), or one axis for each of the scores, of its size or 1
    ->      output (..., T_q, d_v), weights (..., T_q, T_k) before dropout

    Same result as F.scaled_dot_product_attention, which keeps the weights to itself. Hidden keys
    get weight exactly 0, and a query that may see no key gets weights and output of 0. But a value
    that is NaN or inf reaches every output, even hidden (0 · NaN is NaN), as in that function: to
    keep it out would take a second product of this size. Inputs of 16 bits are summed in float32.
    Raises ValueError for sizes, dtypes or masks that do not fit.

    >>> same_keys, values = torch.ones(2, 4), torch.tensor([[1.0], [3.0]])
    >>> scaled_dot_product_attention(torch.ones(1, 4), same_keys, values)  # equal keys: the plain mean of the values
    (tensor([[2.]]), tensor([[0.5000, 0.5000]]))
    """
    check_attention_inputs(query, key, value, mask)
    dtype, (query, key, value) = query.dtype, at_least_float32(query, key, value)
    query = query / math.sqrt(query.size(-1))  # else the scores grow with √d_k
    scores = query @ key.transpose(-2, -1)  # -> (..., T_q, T_k): query by key
    weights = masked_softmax(scores, mask)  # hidden keys get 0, each row sums to 1
    kept = weights if dropout is None else dropout(weights)  # in training some are dropped
    output = kept @ value  # (..., T_q, T_k) @ (..., T_k, d_v) -> (..., T_q, d_v)
    return output.to(dtype), weights.to(dtype)


def attention_by_loops(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The specification, one query, one key at a time: (T_q, d_k), (T_k, d_k), (T_k, d_v), mask
    (T_q, T_k); d_k > 0.
    """
    weights = query.new_zeros(query.size(0), key.size(0))
    output = query.new_zeros(query.size(0), value.size(1))
    for i in range(query.size(0)):
        visible = [j for j in range(key.size(0)) if mask is None or mask[i, j]]
        scores = [torch.dot(query[i], key[j]) / math.sqrt(key.size(1)) for j in visible]
        largest = max(
            scores, default=0.0
        )  # taken off all scores: exp cannot overflow and the ratios stay the same
        total = sum(torch.exp(score - largest) for score in scores)
        for j, score in zip(visible, scores, strict=True):
            weights[i, j] = torch.exp(score - largest) / total
            output[i] += weights[i, j] * value[j]
    return output, weights


class SelfAttention(nn.Module):
    """One head: queries, keys and values are three learned views of the same sequence.

    d_k is the size of queries and keys, d_v of values; both are d_model unless given. Without the
    output projection the output has size d_v and the module 3 d_model² weights; with it the size is
    d_model again, the weights 4 d_model².
    """

    def __init__(
        self,
        d_model: int,
        d_k: int | None = None,
        d_v: int | None = None,
        *,
        output_projection: bool = False,
    ) -> None:
        super().__init__()
        d_k = d_model if d_k is None else d_k
        d_v = d_model if d_v is None else d_v
        self.w_q = nn.Linear(d_model, d_k, bias=False)
        self.w_k = nn.Linear(d_model, d_k, bias=False)
        self.w_v = nn.Linear(d_model, d_v, bias=False)
        self.w_o = nn.Linear(d_v, d_model, bias=False) if output_projection else nn.Identity()

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """x (B, T, d_model) -> output (B, T, d_v or d_model), weights (B, 1, T, T).

        Queries, keys, values are (B, 1, T, d). The 1 is the head axis: masks and pictures are as
        with many heads. mask: (T, T), (B, 1, T, T) or (B, 1, 1, T), bool, True = may attend.
        """
        query, key, value = (w(x).unsqueeze(-3) for w in (self.w_q, self.w_k, self.w_v))
        output, weights = scaled_dot_product_attention(query, key, value, mask)
        return self.w_o(output.squeeze(-3)), weights  # (B, 1, T, d_v) -> (B, T, d_v)


# What each word is: an animal, a deed, a place. A deed asks for an animal, a place asks for a deed.
WORDS = {
    "the": (0, 0, 0),
    "cat": (2, 0, 0),
    "sat": (0, 2, 0),
    "on": (0, 1, 1),
    "a": (0, 0, 0),
    "mat": (0, 0, 2),
}
W_Q, W_K, W_V = ([0, 0], [1, 0], [0, 1]), ([1, 0], [0, 1], [0, 0]), ([1, 0], [0, 0], [0, 1])


def main() -> None:
    x = torch.tensor(list(WORDS.values()), dtype=torch.float64)
    query, key, value = (
        x @ torch.tensor(w, dtype=torch.float64) for w in (W_Q, W_K, W_V)
    )  # (6, 3) -> (6, 2)
    output, weights = scaled_dot_product_attention(query, key, value)
    print(
        "asks \\ is asked" + "".join(f"{word:>7}" for word in WORDS) + "     takes: animal, place"
    )
    for word, row, taken in zip(WORDS, weights.tolist(), output.tolist(), strict=True):
        print(
            f"{word:>15}"
            + "".join(f"{weight:7.2f}" for weight in row)
            + "".join(f"{part:13.2f}" for part in taken)
        )
    mask = torch.tensor([word != "cat" for word in WORDS]).expand(
        6, 6
    )  # True = may attend: nobody may look at "cat"
    hidden, hidden_weights = scaled_dot_product_attention(query, key, value, mask)
    print(
        f'\n"sat" gives "cat" {weights[2, 1]:.2f}, and {hidden_weights[2, 1]:.2f} if a mask hides "cat"'
    )
    for name, ours, sees in (("all words", output, None), ('"cat" hidden', hidden, mask)):
        by_loops = attention_by_loops(query, key, value, sees)[0]
        by_torch = F.scaled_dot_product_attention(query, key, value, sees)
        print(f"{name:12} by loops differs by {(ours - by_loops).abs().max():.0e}", end=", ")
        print(f"by F.scaled_dot_product_attention by {(ours - by_torch).abs().max():.0e}")


if __name__ == "__main__":
    main()
