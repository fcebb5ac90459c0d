"""Grouped-query attention: heads that share keys and values (Ainslie et al. 2023).

A model that writes word by word keeps the keys and values of the past. With G key-value heads for H
query heads it has G / H as much to remember; G = 1 is multi-query attention (Shazeer 2019).
"""

from torch import Tensor, nn

from phase2_multi_head.multi_head_attention import MultiHeadAttention, split_heads
from shared.attention_checks import check_sequences


class GroupedQueryAttention(MultiHeadAttention):
    """H query heads, G key-value heads: each key-value head serves H / G neighbouring query heads.

    So w_k and w_v are smaller, with G d_k rows; all else is as in MultiHeadAttention. Raises
    ValueError if d_model is not divisible by num_heads, or num_heads not by num_kv_heads.
    """

    def __init__(
        self, d_model: int, num_heads: int, num_kv_heads: int, *, bias: bool = True
    ) -> None:
        super().__init__(d_model, num_heads, bias=bias)
        if num_kv_heads < 1 or num_heads % num_kv_heads:
            these_work = [g for g in range(1, num_heads + 1) if num_heads % g == 0]
            raise ValueError(
                f"num_heads={num_heads} is not divisible by num_kv_heads={num_kv_heads}; "
                f"these work: {str(these_work)[1:-1]}"
            )
        self.num_kv_heads = num_kv_heads
        d_kv = num_kv_heads * (d_model // num_heads)
        self.w_k = nn.Linear(d_model, d_kv, bias=bias)
        self.w_v = nn.Linear(d_model, d_kv, bias=bias)

    def project(
        self, query: Tensor, key: Tensor | None = None, value: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """As in MultiHeadAttention; each key-value head is repeated for all that it serves."""
        key = query if key is None else key
        value = key if value is None else value
        check_sequences(self.w_q.in_features, query, key, value)
        shared_by = self.num_heads // self.num_kv_heads
        query = split_heads(self.w_q(query), self.num_heads)  # -> (B, H, T_q, d_k)
        key = split_heads(self.w_k(key), self.num_kv_heads)  # -> (B, G, T_k, d_k)
        value = split_heads(self.w_v(value), self.num_kv_heads)  # -> (B, G, T_k, d_k)
        # Query heads read the key-value heads 0 0 0 1 1 1 ...
        key = key.repeat_interleave(shared_by, dim=1)  # -> (B, H, T_k, d_k)
        value = value.repeat_interleave(shared_by, dim=1)  # -> (B, H, T_k, d_k)
        return query, key, value


def kv_cache_bytes(
    num_kv_heads: int, d_k: int, length: int, *, num_layers: int = 1, bytes_each: int = 2
) -> int:
    """Bytes that generation needs for the keys and values of `length` past tokens.

    bytes_each: of a number, 2 in bfloat16.
    """
    return 2 * num_layers * num_kv_heads * d_k * length * bytes_each
