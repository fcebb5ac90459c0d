"""How was a key scored before the dot product was scaled?

    additive     v · tanh(W_q q + W_k k + b)   Bahdanau et al. 2014, where attention began
    dot          q · k                         Luong et al. 2015
    general      q · W k                       Luong et al. 2015
    concat       v · tanh(W [q; k])            Luong et al. 2015

Concat and additive are one function: W [q; k] = W_q q + W_k k, with W cut in two. The memory is
both keys and values.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from phase1_single_head.self_attention import masked_softmax
from shared.attention_checks import check_mask

METHODS = ("dot", "general", "concat")


def check_query_and_memory(query: Tensor, memory: Tensor, d_model: int) -> None:
    for name, tensor in (("query", query), ("memory", memory)):
        if tensor.dim() != 3 or tensor.size(-1) != d_model:
            raise ValueError(f"{name} must have shape (B, T, {d_model}): got {tuple(tensor.shape)}")
    if query.size(0) != memory.size(0):
        raise ValueError(
            f"query and memory must have the same batch size: got {query.size(0)} and {memory.size(0)}"
        )


def attend(scores: Tensor, memory: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Scores (B, T_q, T_k) and memory (B, T_k, d) -> output (B, T_q, d), weights (B, 1, T_q, T_k)."""
    scores = scores.unsqueeze(
        1
    )  # (B, T_q, T_k) -> (B, 1, T_q, T_k): one head, so that masks are those of every phase
    if mask is not None:
        check_mask(mask, tuple(scores.shape))
    weights = masked_softmax(scores, mask)
    return (weights @ memory.unsqueeze(1)).squeeze(1), weights  # (B, 1, T_q, d) -> (B, T_q, d)


def attend_by_loops(
    query: Tensor, memory: Tensor, score: Callable[[Tensor, Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """The specification, one pair at a time: (T_q, d_q), (T_k, d), score of a pair -> (T_q, d),
    (T_q, T_k).
    """
    weights, output = (
        memory.new_zeros(len(query), len(memory)),
        memory.new_zeros(len(query), memory.size(1)),
    )
    for i in range(len(query)):
        powers = [torch.exp(score(query[i], key)) for key in memory]
        for j in range(len(memory)):
            weights[i, j] = powers[j] / sum(powers)
            output[i] += weights[i, j] * memory[j]
    return output, weights


class AdditiveAttention(nn.Module):
    """Bahdanau's score, v · tanh(W_q q + W_k k + b): a small network looks at both (Bahdanau et al.
    2014, A.1.2).

    d_hidden is the size of that network, d_model unless given. One bias is enough, two would only
    add up; and v has none, because softmax does not see a number that is added to all scores.
    """

    def __init__(self, d_model: int, d_hidden: int | None = None) -> None:
        super().__init__()
        d_hidden = d_model if d_hidden is None else d_hidden
        self.w_q = nn.Linear(d_model, d_hidden)
        self.w_k = nn.Linear(d_model, d_hidden, bias=False)
        self.v = nn.Linear(d_hidden, 1, bias=False)

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        """W_q q + b (B, T_q, d_hidden) and W_k k (B, T_k, d_hidden) -> scores (B, T_q, T_k), each
        with each.
        """
        pairs = (
            query[:, :, None] + key[:, None]
        )  # (B, T_q, 1, d) + (B, 1, T_k, d) -> (B, T_q, T_k, d)
        return self.v(torch.tanh(pairs)).squeeze(-1)  # (B, T_q, T_k, 1) -> (B, T_q, T_k)

    def forward(
        self, query: Tensor, memory: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """query (B, T_q, d_model), memory (B, T_k, d_model) -> output (B, T_q, d_model), weights
        (B, 1, T_q, T_k).

        mask: bool, True = may attend: (T_q, T_k), (B, 1, T_q, T_k) or (B, 1, 1, T_k).
        Raises ValueError for sizes or masks that do not fit.
        """
        check_query_and_memory(query, memory, self.w_q.in_features)
        return attend(self.score(self.w_q(query), self.w_k(memory)), memory, mask)


class LuongAttention(nn.Module):
    """Luong's three scores: dot q · k, general q · W k, concat v · tanh(W [q; k]) (Luong et al.
    2015, section 3.1).

    None of them is scaled. Raises ValueError for any other method.
    """

    def __init__(self, d_model: int, method: str = "dot") -> None:
        super().__init__()
        if method not in METHODS:
            raise ValueError(f"unknown method {method!r}: choose from {', '.join(METHODS)}")
        self.d_model, self.method = d_model, method
        if method == "general":
            self.w = nn.Linear(d_model, d_model, bias=False)
        elif method == "concat":
            self.w = nn.Linear(2 * d_model, d_model)
            self.v = nn.Linear(d_model, 1, bias=False)

    def score(self, query: Tensor, memory: Tensor) -> Tensor:
        """(B, T_q, d_model), (B, T_k, d_model) -> scores (B, T_q, T_k)."""
        if self.method == "concat":
            shape = (query.size(0), query.size(1), memory.size(1), self.d_model)
            pairs = torch.cat(
                [query[:, :, None].expand(shape), memory[:, None].expand(shape)], dim=-1
            )
            return self.v(torch.tanh(self.w(pairs))).squeeze(
                -1
            )  # (B, T_q, T_k, 2 d_model) -> (B, T_q, T_k)
        key = self.w(memory) if self.method == "general" else memory
        return query @ key.transpose(-2, -1)

    def forward(
        self, query: Tensor, memory: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """query (B, T_q, d_model), memory (B, T_k, d_model) -> output (B, T_q, d_model), weights
        (B, 1, T_q, T_k).

        mask and errors as in AdditiveAttention.
        """
        check_query_and_memory(query, memory, self.d_model)
        return attend(self.score(query, memory), memory, mask)
