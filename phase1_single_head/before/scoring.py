"""Additive and multiplicative attention: the scores that came before the transformer's.

    additive     v · tanh(W_q q + W_k k + b)   Bahdanau et al. 2014, where attention began
    dot          q · k                         Luong et al. 2015; the transformer divides it by √d_k
    general      q · W k                       Luong et al. 2015
    concat       v · tanh(W [q; k])            Luong et al. 2015

Concat and additive are the same function: W [q; k] = W_q q + W_k k, with W cut in two. Run it to see that, and to
see what each rule makes of the same query and keys:

    python phase1_single_head/before/scoring.py

Which rule is the better one is measured in scoring_rules.py.
"""

import argparse

import torch
from torch import Tensor, nn

from phase1_single_head.self_attention import check_mask, masked_softmax
from shared import cli
from shared.evidence import findings
from shared.evidence.findings import Finding

METHODS = ("dot", "general", "concat")


def check_query_and_memory(query: Tensor, memory: Tensor, d_model: int, d_memory: int) -> None:
    for name, tensor, size in (("query", query, d_model), ("memory", memory, d_memory)):
        if tensor.dim() != 3 or tensor.size(-1) != size:
            raise ValueError(f"{name} must have shape (B, T, {size}): got {tuple(tensor.shape)}")
    if query.size(0) != memory.size(0):
        raise ValueError(f"query and memory must have the same batch size: got {query.size(0)} and {memory.size(0)}")


def attend(scores: Tensor, memory: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Scores (B, T_q, T_k) and memory (B, T_k, d) -> output (B, T_q, d), weights (B, 1, T_q, T_k)."""
    scores = scores.unsqueeze(1)  # (B, T_q, T_k) -> (B, 1, T_q, T_k): one head, so that masks are those of every phase
    if mask is not None:
        check_mask(mask, tuple(scores.shape))
    weights = masked_softmax(scores, mask)
    return (weights @ memory.unsqueeze(1)).squeeze(1), weights  # (B, 1, T_q, d) -> (B, T_q, d)


class AdditiveAttention(nn.Module):
    """Bahdanau's score, v · tanh(W_q q + W_k k + b): a small network looks at both (Bahdanau et al. 2014, A.1.2).

    d_hidden is the size of that network (d_model unless given), d_memory that of the memory, which may differ from the
    query's, as for a bidirectional encoder. One bias is enough, two would only add up; and v has none, because softmax
    does not see a number that is added to all scores.
    """

    def __init__(self, d_model: int, d_hidden: int | None = None, *, d_memory: int | None = None) -> None:
        super().__init__()
        d_hidden = d_model if d_hidden is None else d_hidden
        self.w_q = nn.Linear(d_model, d_hidden)
        self.w_k = nn.Linear(d_model if d_memory is None else d_memory, d_hidden, bias=False)
        self.v = nn.Linear(d_hidden, 1, bias=False)

    def forward(self, query: Tensor, memory: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """query (B, T_q, d_model), memory (B, T_k, d_memory) -> output (B, T_q, d_memory), weights (B, 1, T_q, T_k).

        mask: bool, True = may attend: (T_q, T_k), (B, 1, T_q, T_k) or (B, 1, 1, T_k). The memory is both keys and
        values. Raises ValueError for sizes or masks that do not fit.
        """
        check_query_and_memory(query, memory, self.w_q.in_features, self.w_k.in_features)
        # every query meets every key: (B, T_q, 1, d_hidden) + (B, 1, T_k, d_hidden) -> (B, T_q, T_k, d_hidden)
        pairs = self.w_q(query)[:, :, None] + self.w_k(memory)[:, None, :]
        scores = self.v(torch.tanh(pairs)).squeeze(-1)  # (B, T_q, T_k, 1) -> (B, T_q, T_k)
        return attend(scores, memory, mask)


class LuongAttention(nn.Module):
    """Luong's three scores: dot q · k, general q · W k, concat v · tanh(W [q; k]) (Luong et al. 2015, section 3.1).

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
            pairs = torch.cat([query[:, :, None].expand(shape), memory[:, None].expand(shape)], dim=-1)
            return self.v(torch.tanh(self.w(pairs))).squeeze(-1)  # (B, T_q, T_k, 2 d_model) -> (B, T_q, T_k)
        key = self.w(memory) if self.method == "general" else memory
        return query @ key.transpose(-2, -1)

    def forward(self, query: Tensor, memory: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """query (B, T_q, d_model), memory (B, T_k, d_model) -> output (B, T_q, d_model), weights (B, 1, T_q, T_k).

        mask: bool, True = may attend: (T_q, T_k), (B, 1, T_q, T_k) or (B, 1, 1, T_k). The memory is both keys and
        values. Raises ValueError for sizes or masks that do not fit.
        """
        check_query_and_memory(query, memory, self.d_model, self.d_model)
        return attend(self.score(query, memory), memory, mask)


def concat_is_additive() -> float:
    """Largest difference of output between concat and additive attention with W cut into W_q and W_k."""
    torch.manual_seed(0)
    concat, additive = LuongAttention(11, "concat").double(), AdditiveAttention(11).double()
    with torch.no_grad():
        additive.w_q.weight.copy_(concat.w.weight[:, :11])
        additive.w_k.weight.copy_(concat.w.weight[:, 11:])
        additive.w_q.bias.copy_(concat.w.bias)
        additive.v.weight.copy_(concat.v.weight)
        query, memory = torch.randn(2, 5, 11).double(), torch.randn(2, 7, 11).double()
        return (concat(query, memory)[0] - additive(query, memory)[0]).abs().max().item()


@torch.no_grad()
def main(argv: list[str] | None = None) -> None:
    options = cli.parse(cli.parser(__doc__), argv)
    query = torch.tensor([[[1.0, 0.0]]])  # (B, T_q, d_model) = (1, 1, 2)
    memory = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [2.0, 2.0 * 3**0.5]]])  # (1, 3, 2): alike, at 90°, long and at 60°
    print("\nOne query (1, 0), three keys: (1, 0), (0, 1) and (2, 3.46), at 0°, 90° and 60°; weights, untrained")
    for name, attention in {
        "dot": LuongAttention(2),
        "general": LuongAttention(2, "general"),
        "concat": LuongAttention(2, "concat"),
        "additive": AdditiveAttention(2),
    }.items():
        _, weights = attention(query, memory)
        print(f"   {name:10} {' '.join(f'{weight:.2f}' for weight in weights[0, 0, 0].tolist())}")
    difference = concat_is_additive()
    print(f"concat against additive with the same weights: largest difference {difference:.1e}")
    assert difference < 1e-12
    record_findings(difference, query[0, 0], memory[0], options)


def record_findings(difference: float, query: Tensor, keys: Tensor, options: argparse.Namespace) -> None:
    near, _, far = keys
    findings.record(
        "phase1_single_head/before/scoring.py",
        [
            Finding(
                "I185",
                "Concat and additive scores are the same function",
                "definitions of Luong et al. 2015 and Bahdanau et al. 2014",
                {"largest difference": difference},
                "outputs with W cut into W_q and W_k, float64",
                "below 1e-12",
                findings.verdict(difference < 1e-12),
            ),
            Finding(
                "C024",
                "The dot product measures how similar query and key are",
                "course notes",
                {"same direction, length 1": (query @ near).item(), "60° apart, length 4": (query @ far).item()},
                "score of a query of length 1",
                "the key in the same direction scores highest",
                **findings.conditional(
                    bool(query @ near > query @ far),
                    bool(query @ near > query @ (far / far.norm())),
                    "the keys have comparable lengths: q · k = |q| |k| cos",
                ),
            ),
        ],
        options.output_dir,
    )


if __name__ == "__main__":
    cli.run(main)
