"""Attention is blind to order: what opens its eyes?

Shuffle the words, and each gets what it got before: a sentence is a bag of words, unless somebody
says where each word stands. Three ways to say it, beside a trained table (Gehring et al. 2017):

    sinusoidal   added to the word: sine and cosine of position · 10000^(-2i / d)      Vaswani et al. 2017, 3.5
    rotary       queries and keys are turned by these angles, pair by pair             Su et al. 2021, 3.2 (RoPE)
    ALiBi        scores fall with the distance, in each head at a speed of its own     Press et al. 2022

positions.py measures what can be learned with each.
"""

import math

import torch
from torch import Tensor

from phase1_single_head.self_attention import SelfAttention, scaled_dot_product_attention


def sinusoidal_by_loops(length: int, d_model: int) -> Tensor:
    """The specification of shared.toy_model.sinusoidal_positions, one number at a time -> (length,
    d_model), float64.

    Columns 2i and 2i + 1 are the hand of a clock. The first goes round once in 2π positions, the
    last takes almost 10000 times as long; an odd d_model has one sine without its cosine.
    """
    encoding = torch.zeros(length, d_model, dtype=torch.float64)
    for position in range(length):
        for column in range(d_model):
            angle = position / 10000 ** (
                2 * (column // 2) / d_model
            )  # columns 2i and 2i + 1 share an angle
            encoding[position, column] = math.cos(angle) if column % 2 else math.sin(angle)
    return encoding


def rotary(x: Tensor, positions: Tensor, frequencies: Tensor | None = None) -> Tensor:
    """Turn each pair of features (2i, 2i + 1) by the angle position · 10000^(-2i / d): (..., T, d)
    -> (..., T, d).

    positions: (T,). frequencies: (d / 2,), radians a position, where a model has others than these.
    A turned vector keeps its length, and the product of two depends on the offset of their
    positions alone: turning one by a and the other by b is turning only the other, by b - a (Su et
    al. 2021, section 3.2.2). Raises ValueError for an odd d, where one feature has no partner, and
    for a wrong number of positions.

    >>> rotary(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1]))  # by 0 and by 1 radian
    tensor([[1.0000, 0.0000],
            [0.5403, 0.8415]])
    """
    length, size = x.shape[-2:]
    if size % 2:
        raise ValueError(
            f"rotary positions turn pairs of features, so their number must be even: got {size}"
        )
    if positions.shape != (length,):
        raise ValueError(
            f"positions must have shape ({length},), one for each vector: got {tuple(positions.shape)}"
        )
    if frequencies is None:
        frequencies = 10000 ** (-2 * torch.arange(size // 2, dtype=x.dtype, device=x.device) / size)
    angle = positions[:, None] * frequencies  # (T, 1) * (d / 2,) -> (T, d / 2)
    first, second = x[..., 0::2], x[..., 1::2]  # (..., T, d) -> (..., T, d / 2)
    turned = first * angle.cos() - second * angle.sin(), first * angle.sin() + second * angle.cos()
    return torch.stack(turned, dim=-1).flatten(-2)  # (..., T, d / 2, 2) -> (..., T, d)


class RotarySelfAttention(SelfAttention):
    """One head that turns queries and keys by their positions. Values are not turned: they say
    what, not where.

    The parameters are those of SelfAttention, and nothing is added to x. d_k must be even.
    """

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """x (B, T, d_model) -> output (B, T, d_v or d_model), weights (B, 1, T, T)."""
        positions = torch.arange(
            x.size(-2), device=x.device
        )  # where they begin makes no difference
        query, key, value = (
            w(x).unsqueeze(-3) for w in (self.w_q, self.w_k, self.w_v)
        )  # (B, T, d) -> (B, 1, T, d)
        output, weights = scaled_dot_product_attention(
            rotary(query, positions), rotary(key, positions), value, mask
        )
        return self.w_o(output.squeeze(-3)), weights  # (B, 1, T, d_v) -> (B, T, d_v)


def alibi(length: int, slopes: Tensor) -> Tensor:
    """What is added to the scores of each head: -slope · |i - j|, slopes (H,) -> (H, T, T). To both
    sides.

    >>> alibi(3, torch.tensor([0.5]))
    tensor([[[-0.0000, -0.5000, -1.0000],
             [-0.5000, -0.0000, -0.5000],
             [-1.0000, -0.5000, -0.0000]]])
    """
    position = torch.arange(length, device=slopes.device)
    distance = (position[:, None] - position).abs()  # (T,) -> (T, T)
    return -slopes[:, None, None] * distance  # (H, 1, 1) * (T, T) -> (H, T, T)
