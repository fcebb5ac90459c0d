"""How does a word decide where to look, and what does it take from there?

Self-attention with one head: every word asks all words a question, and takes a weighted mean of
their answers.

    Attention(Q, K, V) = softmax(Q Kᵀ / √d_k) V            (Vaswani et al. 2017, equation 1)

Run it to see three words with numbers made by hand; hidden_word.py follows a word of a trained
model number by number:

    python phase1_single_head/self_attention.py
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shared.attention_checks import at_least_float32, check_attention_inputs, known_to_hold


def masked_softmax(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """Returns weights, of the shape of the scores (..., T_q, T_k): each row sums to 1.

    mask: bool, True = may attend. A hidden key gets a weight of exactly 0. A query that may see no
    key at all gets a row of zeros, where a plain softmax would give NaN.
    """
    if mask is None:
        return torch.softmax(scores, dim=-1)
    sees_a_key = mask.any(dim=-1, keepdim=True)  # of each query: (..., T_q, 1)
    # A hidden key gets the score -inf, because e to -inf is 0. But a row of nothing but -inf would
    # become NaN. So a query that sees no key gets scores of 0 first, and weights of 0 in the end.
    hidden_score = torch.where(sees_a_key, -math.inf, 0.0).to(scores.dtype)
    scores = torch.where(mask, scores, hidden_score)
    weights = torch.softmax(scores, dim=-1)
    if known_to_hold(sees_a_key):  # the usual case, which saves the multiplication
        return weights
    return weights * sees_a_key  # True counts as 1, False as 0


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *,
    dropout: nn.Dropout | None = None,
) -> tuple[Tensor, Tensor]:
    """For each query, a mean of the values, weighted by how well the query matches each key.

    query   (..., T_q, d_k)        what each position looks for
    key     (..., T_k, d_k)        what each position offers to be found by
    value   (..., T_k, d_v)        what each position passes on
    mask    bool, True = may attend: (T_q, T_k), or with all axes of the scores (..., T_q, T_k),
            where an axis of size 1 counts for the whole axis
    ->      output (..., T_q, d_v), weights (..., T_q, T_k) before dropout

    The output is that of F.scaled_dot_product_attention, which keeps the weights to itself. Hidden
    keys get weight exactly 0, and a query that may see no key gets weights and output of 0. Inputs
    of 16 bits are computed in float32. As in that function, a hidden value of NaN or inf still
    reaches every output, because 0 · NaN is NaN.
    Raises ValueError for sizes, dtypes or masks that do not fit.

    Two keys that match equally well, so the output is the plain mean of their values:

    >>> same_keys, values = torch.ones(2, 4), torch.tensor([[1.0], [3.0]])
    >>> scaled_dot_product_attention(torch.ones(1, 4), same_keys, values)
    (tensor([[2.]]), tensor([[0.5000, 0.5000]]))
    """
    check_attention_inputs(query, key, value, mask)
    dtype = query.dtype
    query, key, value = at_least_float32(query, key, value)
    query = query / math.sqrt(query.size(-1))  # else the scores grow with √d_k
    scores = query @ key.transpose(-2, -1)  # -> (..., T_q, T_k): each query by each key
    weights = masked_softmax(scores, mask)  # each row sums to 1, hidden keys get 0
    used = weights if dropout is None else dropout(weights)  # training sets some to 0
    output = used @ value  # (..., T_q, T_k) @ (..., T_k, d_v) -> (..., T_q, d_v)
    return output.to(dtype), weights.to(dtype)


def attention_by_loops(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The specification of the function above: one query and one key at a time.

    query (T_q, d_k), key (T_k, d_k), value (T_k, d_v), mask (T_q, T_k); d_k is 1 or more.
    """
    weights = query.new_zeros(len(query), len(key))
    output = query.new_zeros(len(query), value.size(1))
    for i in range(len(query)):
        scores = {}  # of the keys that query i may see
        for j in range(len(key)):
            if mask is None or mask[i, j]:
                scores[j] = torch.dot(query[i], key[j]) / math.sqrt(key.size(1))
        # The largest is taken off all: so exp cannot overflow, and the ratios stay the same.
        largest = max(scores.values(), default=0.0)
        total = sum(torch.exp(score - largest) for score in scores.values())
        for j, score in scores.items():
            weights[i, j] = torch.exp(score - largest) / total
            output[i] += weights[i, j] * value[j]
    return output, weights


class SelfAttention(nn.Module):
    """One head: queries, keys and values are three learned views of the same sequence.

    d_k is the size of queries and keys, d_v that of values; both are d_model unless
    given. The output has size d_v, or d_model again if there is an output projection.
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
        self.w_o = nn.Identity()  # changes nothing
        if output_projection:
            self.w_o = nn.Linear(d_v, d_model, bias=False)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x (B, T, d_model) -> queries, keys and values, each (B, 1, T, d).

        The 1 is the axis of heads, so that masks and pictures are as with many heads.
        """
        query = self.w_q(x).unsqueeze(-3)  # (B, T, d_k) -> (B, 1, T, d_k)
        key = self.w_k(x).unsqueeze(-3)
        value = self.w_v(x).unsqueeze(-3)
        return query, key, value

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """x (B, T, d_model) -> output (B, T, d_v or d_model), weights (B, 1, T, T).

        mask: bool, True = may attend: (T, T), (B, 1, T, T) or (B, 1, 1, T).
        """
        query, key, value = self.project(x)
        output, weights = scaled_dot_product_attention(query, key, value, mask)
        return self.w_o(output.squeeze(-3)), weights  # (B, 1, T, d_v) -> (B, T, d_v)


def main() -> None:
    cat, sat = 0, 1  # the rows of three words: "cat" is an animal, "sat" a deed, "mat" a place
    # A deed looks for an animal, a place looks for a deed, an animal looks for nothing. The first
    # number of a query says how much the word looks for an animal, the second, for a deed. The
    # numbers of a key say how much it is one.
    query = torch.tensor([[0, 0], [2, 0], [0, 2]]).double()
    key = torch.tensor([[2, 0], [0, 2], [0, 0]]).double()
    value = torch.eye(3).double()  # each word passes on a vector of its own
    output, weights = scaled_dot_product_attention(query, key, value)
    print("How much cat, sat and mat (rows) take from cat, sat and mat (columns):")
    print(weights.numpy().round(2))

    mask = torch.ones(3, 3, dtype=torch.bool)
    mask[:, cat] = False  # no word may look at "cat"
    _, masked = scaled_dot_product_attention(query, key, value, mask)
    seen, hidden = weights[sat, cat], masked[sat, cat]
    print(f'"sat" gives "cat" {seen:.2f}, and {hidden:.2f} if a mask hides "cat"')

    by_loops, _ = attention_by_loops(query, key, value)
    print(f"by loops the output differs by {(output - by_loops).abs().max():.0e}")
    by_torch = F.scaled_dot_product_attention(query, key, value)
    print(f"by F.scaled_dot_product_attention by {(output - by_torch).abs().max():.0e}")


if __name__ == "__main__":
    main()
