"""How was a key scored before the dot product was scaled?

    additive     v · tanh(W_q q + W_k k + b)   Bahdanau et al. 2014, where attention began
    dot          q · k                         Luong et al. 2015
    general      q · W k                       Luong et al. 2015
    concat       v · tanh(W [q; k])            Luong et al. 2015

Concat and additive are one function: W [q; k] = W_q q + W_k k, with W cut in two. The memory is
both keys and values.
"""

import torch
from torch import Tensor, nn

from phase1_single_head.self_attention import masked_softmax
from shared.attention_checks import at_least_float32, check_mask, check_sequences

LUONG_METHODS = ("dot", "general", "concat")


class MemoryAttention(nn.Module):
    """What the two modules below share; each has a `score` of its own."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.d_model = d_model

    def forward(
        self, query: Tensor, memory: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Returns the output (B, T_q, d_model) and the weights (B, 1, T_q, T_k).

        query (B, T_q, d_model), memory (B, T_k, d_model). mask: bool, True = may attend: (T_q,
        T_k), (B, 1, T_q, T_k) or (B, 1, 1, T_k). Raises ValueError for sizes or masks that do not
        fit.
        """
        check_sequences(self.d_model, query, memory, memory)
        scores = self.score(query, memory).unsqueeze(1)  # -> (B, 1, T_q, T_k): one head
        if mask is not None:
            check_mask(mask, tuple(scores.shape))
        scores, wide = at_least_float32(scores, memory)
        weights = masked_softmax(scores, mask)
        output = weights @ wide.unsqueeze(1)  # -> (B, 1, T_q, d_model)
        return output.squeeze(1).to(memory.dtype), weights.to(memory.dtype)


class AdditiveAttention(MemoryAttention):
    """Bahdanau's score, v · tanh(W_q q + W_k k + b): a small network looks at both.

    d_hidden is the size of that network, d_model unless given (Bahdanau et al. 2014, A.1.2). One
    bias is enough, two would only add up; and v has none, because softmax does not see a number
    that is added to all scores.
    """

    def __init__(self, d_model: int, d_hidden: int | None = None) -> None:
        super().__init__(d_model)
        d_hidden = d_model if d_hidden is None else d_hidden
        self.w_q = nn.Linear(d_model, d_hidden)
        self.w_k = nn.Linear(d_model, d_hidden, bias=False)
        self.v = nn.Linear(d_hidden, 1, bias=False)

    def score(self, query: Tensor, memory: Tensor) -> Tensor:
        """(B, T_q, d_model), (B, T_k, d_model) -> scores (B, T_q, T_k), each with each."""
        query = self.w_q(query)[:, :, None]  # -> (B, T_q, 1, d_hidden)
        key = self.w_k(memory)[:, None]  # -> (B, 1, T_k, d_hidden)
        hidden = torch.tanh(query + key)  # -> (B, T_q, T_k, d_hidden)
        return self.v(hidden).squeeze(-1)  # (B, T_q, T_k, 1) -> (B, T_q, T_k)


class LuongAttention(MemoryAttention):
    """Luong's three scores: dot q · k, general q · W k, concat v · tanh(W [q; k]).

    None of them is scaled (Luong et al. 2015, section 3.1). Raises ValueError for any other method.
    """

    def __init__(self, d_model: int, method: str = "dot") -> None:
        super().__init__(d_model)
        if method not in LUONG_METHODS:
            raise ValueError(f"unknown method {method!r}: choose from {', '.join(LUONG_METHODS)}")
        self.method = method
        if method == "general":
            self.w = nn.Linear(d_model, d_model, bias=False)
        elif method == "concat":
            self.w = nn.Linear(2 * d_model, d_model)
            self.v = nn.Linear(d_model, 1, bias=False)

    def score(self, query: Tensor, memory: Tensor) -> Tensor:
        """(B, T_q, d_model), (B, T_k, d_model) -> scores (B, T_q, T_k)."""
        if self.method == "concat":
            each_with_each = (query.size(0), query.size(1), memory.size(1), self.d_model)
            queries = query[:, :, None].expand(each_with_each)
            keys = memory[:, None].expand(each_with_each)
            pairs = torch.cat([queries, keys], dim=-1)  # -> (B, T_q, T_k, 2 d_model)
            hidden = torch.tanh(self.w(pairs))
            return self.v(hidden).squeeze(-1)
        key = self.w(memory) if self.method == "general" else memory
        query, key = at_least_float32(query, key)  # unscaled products can be too large for float16
        return query @ key.transpose(-2, -1)
