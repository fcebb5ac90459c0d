"""What is multi-head attention: several small ones, or one that is cut up?

    MultiHead(Q, K, V) = Concat(head_1, ..., head_H) W_O
                head_h = Attention(Q W_Q^h, K W_K^h, V W_V^h)

(Vaswani et al. 2017, section 3.2.2.) Two views of the same thing: H small attentions side by side,
each free to look for something else, or one large projection whose output is cut into H slices. The
first is what it means; the second is how it is written. Run, the file says by how much they differ.
How to get it wrong without noticing is in heads/wrong_heads.py.

    python phase2_multi_head/multi_head_attention.py
"""

import torch
from torch import Tensor, nn

from phase1_single_head.self_attention import SelfAttention, scaled_dot_product_attention
from shared.attention_checks import check_copy, check_heads, check_sequences, torch_reference


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """(B, T, d_model) -> (B, H, T, d_model / H): head h gets columns h * d_k to (h + 1) * d_k."""
    batch, length, d_model = x.shape
    x = x.view(batch, length, num_heads, d_model // num_heads)  # -> (B, T, H, d_k)
    return x.transpose(1, 2)  # -> (B, H, T, d_k): attention mixes the last axis but one


def merge_heads(x: Tensor) -> Tensor:
    """The inverse of split_heads: (B, H, T, d_v) -> (B, T, H * d_v)."""
    x = x.transpose(1, 2)  # -> (B, T, H, d_v)
    return x.flatten(start_dim=2)  # -> (B, T, H * d_v)


class MultiHeadAttention(nn.Module):
    """H heads of size d_k = d_model / H.

    w_q, w_k and w_v read all of d_model, and w_o mixes what the heads found. dropout: the chance of
    each weight to be set to 0 in training, which scaled_dot_product_attention does. Other than in
    nn.MultiheadAttention the batch always comes first, True in a mask means may attend, and the
    weights of each head are given, not their mean. Raises ValueError if d_model is not divisible by
    num_heads.
    """

    def __init__(
        self, d_model: int, num_heads: int, *, dropout: float = 0.0, bias: bool = True
    ) -> None:
        super().__init__()
        check_heads(d_model, num_heads)
        self.num_heads = num_heads
        self.w_q = nn.Linear(d_model, d_model, bias=bias)
        self.w_k = nn.Linear(d_model, d_model, bias=bias)
        self.w_v = nn.Linear(d_model, d_model, bias=bias)
        self.w_o = nn.Linear(d_model, d_model, bias=bias)
        self.dropout = nn.Dropout(dropout)

    def project(
        self, query: Tensor, key: Tensor | None = None, value: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of each head: (B, T, d_model) -> (B, H, T, d_k), each.

        key defaults to query (self-attention), value to key. Raises ValueError for sizes that do
        not fit.
        """
        key = query if key is None else key
        value = key if value is None else value
        check_sequences(self.w_q.in_features, query, key, value)
        query = split_heads(self.w_q(query), self.num_heads)  # -> (B, H, T_q, d_k)
        key = split_heads(self.w_k(key), self.num_heads)  # -> (B, H, T_k, d_k)
        value = split_heads(self.w_v(value), self.num_heads)  # -> (B, H, T_k, d_k)
        return query, key, value

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Returns output (B, T_q, d_model) and the weights of each head, (B, H, T_q, T_k).

        query: (B, T_q, d_model); key, value: (B, T_k, d_model), as `project` takes them. mask:
        bool, True = may attend, (T_q, T_k), or (B, H, T_q, T_k) with 1 where all share it. The
        weights are those before dropout: rows sum to 1.
        """
        query, key, value = self.project(query, key, value)
        heads, weights = scaled_dot_product_attention(
            query,
            key,
            value,
            mask,
            dropout=self.dropout,
        )
        return self.w_o(merge_heads(heads)), weights  # -> (B, T_q, d_model)


class StackOfHeads(nn.Module):
    """The other view: phase 1's SelfAttention, H times, side by side.

    The outputs are concatenated and projected.
    """

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        check_heads(d_model, num_heads)
        self.num_heads = num_heads
        d_k = d_model // num_heads
        self.heads = nn.ModuleList(SelfAttention(d_model, d_k, d_k) for _ in range(num_heads))
        self.w_o = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """x (B, T, d_model) -> output (B, T, d_model), weights (B, H, T, T).

        All heads share the mask.
        """
        outputs, all_weights = [], []
        for head in self.heads:
            output, weights = head(x, mask)  # (B, T, d_k), (B, 1, T, T)
            outputs.append(output)
            all_weights.append(weights)
        side_by_side = torch.cat(outputs, dim=-1)  # H x (B, T, d_k) -> (B, T, d_model)
        return self.w_o(side_by_side), torch.cat(all_weights, dim=1)

    @torch.no_grad()
    def copy_weights(self, multi_head: MultiHeadAttention) -> None:
        """Gives head h its slice of each projection: rows h * d_k to (h + 1) * d_k of the matrix.

        multi_head: without biases.
        """
        check_copy(self, multi_head)
        for name in ("w_q", "w_k", "w_v"):
            matrix = getattr(multi_head, name).weight
            slices = matrix.chunk(self.num_heads)  # (d_model, d_model) -> H x (d_k, d_model)
            for head, rows in zip(self.heads, slices, strict=True):
                getattr(head, name).weight.copy_(rows)
        self.w_o.weight.copy_(multi_head.w_o.weight)


@torch.no_grad()
def main() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 7, 60, dtype=torch.float64)
    ours = MultiHeadAttention(60, 4, bias=False).double()
    queries = ours.w_q(x)
    split = split_heads(queries, 4)
    print(f"queries of all heads   {list(queries.shape)}      (B, T, d_model)")
    print(f"split_heads            {list(split.shape)}   (B, H, T, d_k)")
    print(f"merge_heads            {list(merge_heads(split).shape)}      the way back")
    stack = StackOfHeads(60, 4).double()
    stack.copy_weights(ours)
    output, _ = ours(x)
    by_stack, _ = stack(x)
    by_torch, _ = torch_reference(ours)(x, x, x)
    print(f"a stack of heads differs by {(by_stack - output).abs().max():.0e}")
    print(f"nn.MultiheadAttention differs by {(by_torch - output).abs().max():.0e}")


if __name__ == "__main__":
    main()
