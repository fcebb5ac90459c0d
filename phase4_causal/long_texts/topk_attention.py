"""Which keys does a query ask, if it may have only a few?

Those with the highest scores, but whoever wants to know them must compute all scores. So something
cheaper chooses. Blocks of keys are chosen by the mean of their keys (MoBA, Lu et al. 2025; NSA,
Yuan et al. 2025, learns what stands for a block), or single keys by a small trained indexer
(DeepSeek-AI 2025). Each gives a mask for an attention of phase 1 or 2, True = may attend. The last
query stands at the last key, and nobody sees later keys.

    python phase4_causal/long_texts/topk_attention.py
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from phase2_multi_head.multi_head_attention import split_heads
from shared.attention_checks import at_least_float32
from shared.attention_utils import causal_mask


def blocks_by_loops(query: Tensor, key: Tensor, count: int, block_size: int) -> Tensor:
    """The specification of block_scores with top_blocks: (T_q, d_k), (T_k, d_k) -> bool (T_q, T_k).

    A query keeps the block that it stands in, and the best `count - 1` of those before.
    """
    mask = torch.zeros(len(query), len(key), dtype=torch.bool)
    for i in range(len(query)):
        position = i + len(key) - len(query)  # of the query, among the keys
        own_start = position // block_size * block_size  # the first key of its own block
        scores = {}  # of the blocks before, each named by its first key
        for start in range(0, own_start, block_size):
            mean = key[start : start + block_size].mean(dim=0)
            scores[start] = torch.dot(query[i], mean).item()
        ranked = sorted(scores, key=scores.get, reverse=True)
        best_before = ranked[: count - 1]
        for start in [own_start, *best_before]:
            for j in range(start, start + block_size):
                if 0 <= j <= position:  # with T_q > T_k the first queries stand before all keys
                    mask[i, j] = True
    return mask


def top_k_mask(scores: Tensor, allowed: Tensor, count: int) -> Tensor:
    """True for the `count` highest of the allowed scores of each row: (..., T_q, T_k) -> bool.

    allowed: bool, of a shape that broadcasts to the scores. A row with fewer allowed scores keeps
    all of these. Of equal scores the earlier one is chosen.
    """
    scores = scores.masked_fill(~allowed, -math.inf)
    ranked = scores.argsort(dim=-1, descending=True, stable=True)
    chosen = torch.zeros_like(scores, dtype=torch.bool)
    chosen = chosen.scatter(-1, ranked[..., :count], True)
    return chosen & allowed


def top_keys(query: Tensor, key: Tensor, count: int) -> Tensor:
    """The keys that get the most weight: (..., T_q, d_k), (..., T_k, d_k) -> (..., T_q, T_k).

    Scores of 16 bits are computed in float32: rounded to 16 bits, many scores would be equal.
    """
    query, key = at_least_float32(query, key)
    not_later = causal_mask(query.size(-2), key.size(-2), device=query.device)
    return top_k_mask(query @ key.mT, not_later, count)


def block_means(key: Tensor, block_size: int) -> Tensor:
    """The mean of each block's keys: (..., T_k, d_k) -> (..., blocks, d_k).

    Keys that the last block lacks are taken as 0. That changes its mean, but nobody is chosen by
    it: only queries of this block may see it, and a query keeps its own block anyway.
    """
    missing = -key.size(-2) % block_size  # so many keys fill the last block
    padded = F.pad(key, (0, 0, 0, missing))  # after the last key; no feature is added
    blocks = padded.unflatten(-2, (-1, block_size))  # -> (..., blocks, block_size, d_k)
    return blocks.mean(dim=-2)


def block_scores(query: Tensor, key: Tensor, block_size: int) -> Tensor:
    """The product of each query with the mean of each block's keys -> (..., T_q, blocks).

    Inputs of 16 bits give scores in float32.
    """
    query, key = at_least_float32(query, key)
    return query @ block_means(key, block_size).mT


def top_blocks(scores: Tensor, key_length: int, count: int, block_size: int) -> Tensor:
    """The keys of the best blocks: scores (..., T_q, blocks) -> bool (..., T_q, T_k).

    A query always keeps the block that it stands in, as one of `count` (Lu et al. 2025, section
    2.2), whatever its score.
    """
    query_length, num_blocks = scores.shape[-2:]
    position = torch.arange(key_length - query_length, key_length, device=scores.device)
    own_block = position[:, None] // block_size  # that each query stands in: (T_q, 1)
    blocks = torch.arange(num_blocks, device=scores.device)  # their numbers
    is_own = blocks == own_block  # -> (T_q, blocks)
    scores = scores.masked_fill(is_own, math.inf)
    chosen = top_k_mask(scores, blocks <= own_block, count)
    in_chosen = chosen.repeat_interleave(block_size, dim=-1)  # a block -> its keys
    in_chosen = in_chosen[..., :key_length]  # the last block may have been filled up
    return in_chosen & causal_mask(query_length, key_length, device=scores.device)


class Indexer(nn.Module):
    """Scores keys with less work than attention (DeepSeek-AI 2025, DeepSeek-V3.2, section 2.1).

    A few small heads share one small key of each word. A head counts a positive product, and a
    negative one as 0. Each query decides how much, and with which sign, each head counts. With a
    block_size it scores blocks of keys, by their means; several layers may use one choice.
    """

    def __init__(self, d_model: int, num_heads: int, d_index: int, block_size: int = 1) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.block_size = block_size
        self.w_q = nn.Linear(d_model, num_heads * d_index, bias=False)
        self.w_k = nn.Linear(d_model, d_index, bias=False)
        self.w_head_weight = nn.Linear(d_model, num_heads, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, T, d_model) -> scores (B, T, blocks), for top_k_mask or top_blocks to choose by."""
        query = split_heads(self.w_q(x), self.num_heads)  # -> (B, heads, T, d_index)
        key = self.w_k(x).unsqueeze(1)  # -> (B, 1, T, d_index)
        key = block_means(key, self.block_size)  # -> (B, 1, blocks, d_index)
        matches = F.relu(query @ key.mT)  # -> (B, heads, T, blocks)
        head_weight = self.w_head_weight(x).mT  # (B, T, heads) -> (B, heads, T)
        head_weight = head_weight.unsqueeze(-1)  # -> (B, heads, T, 1), for each query
        return (head_weight * matches).sum(dim=1)


def main() -> None:
    # The last of six words asks. It may have four keys, or two blocks of two.
    key = torch.tensor([[9.0], [-9], [2], [2], [1], [0]])
    query = torch.ones(1, 1)
    four = top_keys(query, key, 4)[0]
    scores = block_scores(query, key, block_size=2)
    two_blocks = top_blocks(scores, key_length=6, count=2, block_size=2)[0]
    print("keys", key.flatten().tolist())
    print("the best four:", key[four].flatten().tolist())
    print("its own block and the best by mean:", key[two_blocks].flatten().tolist())
    print("The mean of 9 and -9 is 0, so it hides the best key of all.")


if __name__ == "__main__":
    main()
