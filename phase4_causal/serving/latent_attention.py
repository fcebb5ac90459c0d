"""Can each head have its own keys and values, though a cache holds none of them?

Multi-head latent attention keeps one short vector c = W_down x of each word, from which each head
makes its key W_uk c and its value W_uv c (DeepSeek-AI 2024, DeepSeek-V2, section 2.1). A model that
writes need not even make them:

    query · (W_uk c) = (W_ukᵀ query) · c        the matrix moves to the query: it is absorbed
    Σ weight (W_uv c) = W_uv (Σ weight c)       and that of the values to their mean

So absorbed, it is multi-query attention whose one key, and whose one value, is c. A key that is
turned by its position stands in the way: the matrix cannot pass the turn, which is another one for
each pair of words. So places are compared apart: each head has a second query for them, and all
share one small key.

    python phase4_causal/serving/latent_attention.py
"""

import math
from functools import partial

import torch
from torch import Tensor, nn

from phase1_single_head.order.position_encodings import rotary
from phase1_single_head.self_attention import scaled_dot_product_attention
from phase2_multi_head.multi_head_attention import merge_heads, split_heads
from shared.attention_checks import check_heads, check_sequences
from shared.attention_utils import also_causal, causal_mask


class LatentAttention(nn.Module):
    """Causal multi-head latent attention; of each word d_latent + d_rotary numbers are kept.

    They are c and a key for the word's place. The paper also compresses the queries, which saves
    memory in training only, and has a norm on c; both are left out. Raises ValueError if d_model is
    not divisible by num_heads, or if d_rotary is odd.
    """

    def __init__(self, d_model: int, num_heads: int, d_latent: int, d_rotary: int) -> None:
        super().__init__()
        check_heads(d_model, num_heads)
        if d_rotary % 2:
            raise ValueError(
                f"rotary positions turn pairs of features, so d_rotary must be even: got {d_rotary}"
            )
        self.num_heads = num_heads
        self.d_k = d_model // num_heads
        self.d_latent = d_latent
        self.d_rotary = d_rotary
        linear = partial(nn.Linear, bias=False)
        self.w_q = linear(d_model, d_model)
        self.w_q_rotary = linear(d_model, num_heads * d_rotary)
        self.w_down = linear(d_model, d_latent)
        self.w_k_rotary = linear(d_model, d_rotary)  # one for all heads
        self.w_uk = linear(d_latent, d_model)
        self.w_uv = linear(d_latent, d_model)
        self.w_o = linear(d_model, d_model)

    def project(self, x: Tensor, past: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the queries of x (B, T, d_model), behind `past` words, and its cache entries.

        Each head has a query for words, (B, H, T, d_k), and one for places, (B, H, T, d_r). An
        entry is c and the key of the place, side by side: (B, T, d_c + d_r).
        """
        check_sequences(self.w_q.in_features, x, x, x)
        positions = torch.arange(past, past + x.size(1), device=x.device)
        query = split_heads(self.w_q(x), self.num_heads)  # (B, T, d_model) -> (B, H, T, d_k)
        query_rotary = split_heads(self.w_q_rotary(x), self.num_heads)  # -> (B, H, T, d_r)
        turned = rotary(query_rotary, positions)
        key_rotary = rotary(self.w_k_rotary(x), positions)  # (B, T, d_model) -> (B, T, d_r)
        return query, turned, torch.cat([self.w_down(x), key_rotary], dim=-1)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """x (B, T, d_model) -> output (B, T, d_model), weights (B, H, T, T).

        This is how the model reads: each head makes its keys and values. mask: a further mask, such
        as that of padding, as MultiHeadAttention takes it.
        """
        query, turned, entries = self.project(x)
        c, key_rotary = entries.split([self.d_latent, self.d_rotary], dim=-1)
        key = split_heads(self.w_uk(c), self.num_heads)  # (B, T, d_c) -> (B, H, T, d_k)
        value = split_heads(self.w_uv(c), self.num_heads)  # (B, T, d_c) -> (B, H, T, d_k)
        key_rotary = key_rotary.unsqueeze(1).expand_as(turned)  # (B, T, d_r) -> (B, H, T, d_r)
        query = torch.cat([query, turned], dim=-1)  # -> (B, H, T, d_k + d_r)
        key = torch.cat([key, key_rotary], dim=-1)  # -> (B, H, T, d_k + d_r)
        heads, weights = scaled_dot_product_attention(query, key, value, also_causal(x, mask))
        return self.w_o(merge_heads(heads)), weights  # (B, H, T, d_k) -> (B, T, d_model)

    def decode(self, x: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
        """forward for new words x (B, T, d_model), from the cache of the past; absorbed.

        cache: (B, T_past, d_c + d_r). Returns the output (B, T, d_model) and the cache with the new
        words, (B, T_past + T, d_c + d_r). No key and no value of a head is ever made. Raises
        ValueError if the cache has another shape.
        """
        size = self.d_latent + self.d_rotary
        if cache.dim() != 3 or (cache.size(0), cache.size(2)) != (x.size(0), size):
            rule = f"cache must be ({x.size(0)}, T_past, {size})"
            raise ValueError(f"{rule}: got {tuple(cache.shape)}; begin with T_past = 0")
        query, turned, entries = self.project(x, past=cache.size(1))
        cache = torch.cat([cache, entries], dim=1)  # (B, T_past, d_c + d_r) -> (B, T_k, d_c + d_r)
        head_shape = (self.num_heads, self.d_k)
        w_uk = self.w_uk.weight.unflatten(0, head_shape)  # (H d_k, d_c) -> (H, d_k, d_c)
        w_uv = self.w_uv.weight.unflatten(0, head_shape)
        query = torch.cat([query @ w_uk, turned], dim=-1)  # -> (B, H, T, d_c + d_r)
        # This query is longer than forward's, by whose size the scores must be divided.
        query = query * math.sqrt(size / (self.d_k + self.d_rotary))
        key = cache.unsqueeze(1)  # (B, T_k, d_c + d_r) -> (B, 1, T_k, d_c + d_r): one for all heads
        value = key[..., : self.d_latent]
        query = query.to(key.dtype)  # under autocast a cache may be more precise
        mask = causal_mask(x.size(1), key.size(2), device=x.device)
        mean, _ = scaled_dot_product_attention(query, key, value, mask)  # -> (B, H, T, d_c)
        heads = mean @ w_uv.mT  # (B, H, T, d_c) -> (B, H, T, d_k)
        return self.w_o(merge_heads(heads)), cache


def main() -> None:
    attention = LatentAttention(d_model=8, num_heads=2, d_latent=3, d_rotary=2)
    x = torch.randn(1, 4, 8)
    cache = torch.empty(1, 0, 5)
    at_once, _ = attention(x)
    print("Four words, read at once and one by one; numbers kept, and the outputs' difference:")
    for position, word in enumerate(x.split(1, dim=1)):
        output, cache = attention.decode(word, cache)
        difference = (output - at_once[:, position]).abs().max()
        print(f"   {cache.numel():2} numbers, {difference:.0e}")


if __name__ == "__main__":
    main()
