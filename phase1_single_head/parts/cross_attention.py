"""How does one text ask another?

The queries come from one sequence, the keys and values from another. So a decoder reads its source:

    CrossAttention(x, context) = softmax(x W_q (context W_k)ᵀ / √d_k) context W_v W_o

The lengths differ, so the weights are a rectangle, and the mask hides the padding of the context.
look_up.py trains one.
"""

from torch import Tensor

from phase1_single_head.self_attention import SelfAttention, scaled_dot_product_attention


class CrossAttention(SelfAttention):
    """One head whose queries come from x and whose keys and values come from context (Vaswani et
    al. 2017, 3.2.3).

    It has the four matrices of SelfAttention with its output projection, and reads from two places.
    """

    def __init__(self, d_model: int, d_k: int | None = None, d_v: int | None = None) -> None:
        super().__init__(d_model, d_k, d_v, output_projection=True)

    def forward(
        self, x: Tensor, context: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """x (B, T_q, d_model), context (B, T_k, d_model) -> output (B, T_q, d_model), weights (B,
        1, T_q, T_k).

        mask: bool, True = may attend, usually the padding of the context, (B, 1, 1, T_k). Raises
        ValueError for sizes or masks that do not fit.
        """
        d_model = self.w_q.in_features
        for name, tensor in (("x", x), ("context", context)):
            if tensor.dim() != 3 or tensor.size(-1) != d_model:
                raise ValueError(
                    f"{name} must have shape (B, T, d_model={d_model}): got {tuple(tensor.shape)}"
                )
        query = self.w_q(x).unsqueeze(1)  # (B, T_q, d_k) -> (B, 1, T_q, d_k): one head
        key, value = self.w_k(context).unsqueeze(1), self.w_v(context).unsqueeze(1)
        output, weights = scaled_dot_product_attention(query, key, value, mask)
        return self.w_o(
            output.squeeze(1)
        ), weights  # (B, 1, T_q, d_v) -> (B, T_q, d_v) -> (B, T_q, d_model)
