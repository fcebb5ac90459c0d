"""How does one text ask another?

The queries come from one sequence, the keys and values from another. So a decoder reads its source:

    CrossAttention(x, context) = softmax(x W_q (context W_k)ᵀ / √d_k) context W_v W_o

The lengths differ, so the weights are a rectangle, and the mask hides the padding of the context.
"""

from torch import Tensor

from phase1_single_head.self_attention import SelfAttention, scaled_dot_product_attention
from shared.attention_checks import check_sequences


class CrossAttention(SelfAttention):
    """One head whose queries come from x, and whose keys and values come from context.

    It has the four matrices of SelfAttention with its output projection, and reads from two places
    (Vaswani et al. 2017, section 3.2.3).
    """

    def __init__(self, d_model: int, d_k: int | None = None, d_v: int | None = None) -> None:
        super().__init__(d_model, d_k, d_v, output_projection=True)

    def forward(
        self, x: Tensor, context: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Returns the output (B, T_q, d_model) and the weights (B, 1, T_q, T_k).

        x (B, T_q, d_model), context (B, T_k, d_model). mask: bool, True = may attend, usually the
        padding of the context, (B, 1, 1, T_k). Raises ValueError for sizes or masks that do not
        fit.
        """
        check_sequences(self.w_q.in_features, query=x, key=context, value=context)
        query = self.w_q(x).unsqueeze(1)  # (B, T_q, d_k) -> (B, 1, T_q, d_k): one head
        key = self.w_k(context).unsqueeze(1)
        value = self.w_v(context).unsqueeze(1)
        output, weights = scaled_dot_product_attention(query, key, value, mask)
        output = self.w_o(
            output.squeeze(1)
        )  # (B, 1, T_q, d_v) -> (B, T_q, d_v) -> (B, T_q, d_model)
        return output, weights
