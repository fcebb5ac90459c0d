"""What if no query and no key could be longer than another?

A score is the length of a query, times that of a key, times the cosine between them. While the
matrices grow in training so do all scores, until softmax gives everything to one key and hardly
learns any more. With normalised queries and keys (QK-norm; Henry et al. 2020, Dehghani et al. 2023)
only directions are left, and a learned weight for each feature says how far scores may go. Qwen 3
and Gemma 3 do it as here, OLMo 2 over all heads at once, nanochat without a learned weight.

The norm is RMSNorm (Zhang & Sennrich 2019), which also stands in the blocks of most language models
since Llama. LayerNorm, as in our block, takes the mean away first; torch has it as nn.LayerNorm.

    python phase2_multi_head/block/qk_norm.py
"""

import torch
from torch import Tensor, nn

from phase2_multi_head.multi_head_attention import MultiHeadAttention
from shared.attention_checks import at_least_float32

EPSILON = 1e-6  # so that a vector of zeros can be divided


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """Divides each vector by the root of its mean square.

    x (..., d), weight (d,), a factor for each feature -> (..., d), in the dtype of x. Vectors of 16
    bits are computed in float32, because in float16 the square of 256 is inf.
    """
    (wide,) = at_least_float32(x)
    mean_square = wide.square().mean(dim=-1, keepdim=True)  # -> (..., 1)
    normed = weight * wide / (mean_square + EPSILON).sqrt()
    return normed.to(x.dtype)


class NormalizedHeads(nn.Module):
    """A projection whose output is normalised head by head."""

    def __init__(self, projection: nn.Linear, num_heads: int) -> None:
        super().__init__()
        self.projection = projection
        self.num_heads = num_heads
        self.in_features = projection.in_features
        self.norm_weight = nn.Parameter(torch.ones(projection.out_features // num_heads))

    def forward(self, x: Tensor) -> Tensor:
        """x (B, T, d_model) -> (B, T, d_model)."""
        heads = self.projection(x).unflatten(-1, (self.num_heads, -1))  # -> (B, T, H, d_k)
        heads = rms_norm(heads, self.norm_weight)
        return heads.flatten(-2)  # (B, T, H, d_k) -> (B, T, d_model)


class QKNormAttention(MultiHeadAttention):
    """MultiHeadAttention with normalised queries and keys.

    Queries have one learned weight for each feature, keys another, and all heads share them.
    """

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__(d_model, num_heads)
        self.w_q = NormalizedHeads(self.w_q, num_heads)
        self.w_k = NormalizedHeads(self.w_k, num_heads)


@torch.no_grad()
def main() -> None:
    torch.manual_seed(0)
    plain, normalized = MultiHeadAttention(12, 1), QKNormAttention(12, 1)
    x = torch.randn(1, 7, 12)
    print("The largest weight of the first word, if all vectors become longer:")
    for longer in (1, 10, 100):
        _, weights = plain(longer * x)  # (1, 1, 7, 7)
        _, of_directions = normalized(longer * x)
        print(f"   {longer:3} times: plain {weights[0, 0, 0].max():.2f}", end="")
        print(f", normalised {of_directions[0, 0, 0].max():.2f}")


if __name__ == "__main__":
    main()
