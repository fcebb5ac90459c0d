"""An attention of your own: copy this file, and change the forward.

Anything with forward(x, mask=None) -> (output, weights) runs in the toy transformer. In this one
the score of a key is lower the further away it is, and each head has its own slope (ALiBi, Press et
al. 2022), in a form that sees both sides. The command below trains it like the models of the
lesson, for about 15 s, and names and draws its heads. After a change add --retrain, so that it is
not read from its checkpoint:

    python phase2_multi_head/visualize.py \\
        --attention phase2_multi_head.alibi_attention:AlibiAttention
"""

import torch
from torch import Tensor, nn

from phase1_single_head.order.position_encodings import alibi
from phase1_single_head.self_attention import masked_softmax
from phase2_multi_head.multi_head_attention import merge_heads, split_heads
from shared.attention_checks import at_least_float32


class AlibiAttention(nn.Module):
    """Multi-head attention with a penalty on distance.

    The slopes are 2^(-8 h / H) for head h of H, from 1 on. Where H is no power of 2, published
    models have other slopes: those of the next smaller power, and between them some of the next
    larger one (the code of Press et al.).
    """

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.w_qkv = nn.Linear(d_model, 3 * d_model)
        self.w_o = nn.Linear(d_model, d_model)
        self.register_buffer("slopes", 2.0 ** (-8 * torch.arange(1, num_heads + 1) / num_heads))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """x (B, T, d_model) -> output (B, T, d_model), weights (B, H, T, T).

        mask: as MultiHeadAttention takes it.
        """
        heads = split_heads(self.w_qkv(x), 3 * self.num_heads)  # -> (B, 3 H, T, d_k)
        query, key, value = at_least_float32(*heads.chunk(3, dim=1))  # -> 3 x (B, H, T, d_k)
        scores = query @ key.mT / query.size(-1) ** 0.5 + alibi(x.size(1), self.slopes)
        weights = masked_softmax(scores, mask)
        output = (weights @ value).to(heads.dtype)
        return self.w_o(merge_heads(output)), weights.to(heads.dtype)
