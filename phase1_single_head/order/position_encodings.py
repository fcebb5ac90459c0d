"""Attention is blind to order: what opens its eyes?

Shuffle the words, and each gets what it got before: a sentence is a bag of words, unless somebody
says where each word stands. Three ways to say it, beside a trained table (Gehring et al. 2017):

    sinusoidal   sines and cosines are added to the word       Vaswani et al. 2017, 3.5
    rotary       queries and keys are turned, pair by pair     Su et al. 2021, 3.2 (RoPE)
    ALiBi        scores fall with the distance                 Press et al. 2022

positions.py measures what can be learned with each.
"""

import math

import torch
from torch import Tensor

from phase1_single_head.self_attention import SelfAttention
from shared.attention_checks import at_least_float32


def sinusoidal_by_loops(length: int, d_model: int) -> Tensor:
    """The specification of shared.toy_model.sinusoidal_positions -> (length, d_model), float64.

    Columns 2i and 2i + 1 are the hand of a clock. The first goes round once in 2π positions, the
    last takes almost 10000 times as long; an odd d_model has one sine without its cosine.
    """
    encoding = torch.zeros(length, d_model, dtype=torch.float64)
    for position in range(length):
        for column in range(d_model):
            pair = column // 2  # columns 2i and 2i + 1 share an angle
            angle = position / 10000 ** (2 * pair / d_model)
            encoding[position, column] = math.cos(angle) if column % 2 else math.sin(angle)
    return encoding


def rotary(x: Tensor, positions: Tensor, frequencies: Tensor | None = None) -> Tensor:
    """Returns x (..., T, d) with each pair of features turned by an angle that grows with position.

    Features 2i and 2i + 1 are turned by position · 10000^(-2i / d) radians. positions: (T,).
    frequencies: (d / 2,), radians a position, where a model has others than these.

    A turned vector keeps its length, and the product of two depends on the offset of their
    positions alone: turning one by a and the other by b is turning only the other, by b - a (Su et
    al. 2021, section 3.2.2). The result has the dtype of x, and for 16 bits it is computed in
    float32. Raises ValueError for an odd d, where one feature has no partner, and for a wrong
    number of positions.

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
        shape = tuple(positions.shape)
        raise ValueError(f"positions must have shape ({length},), one for each vector: got {shape}")
    dtype = x.dtype
    (x,) = at_least_float32(x)  # bfloat16 has no 257: an angle would be off by a whole position
    if frequencies is None:
        frequencies = 10000 ** (-2 * torch.arange(size // 2, dtype=x.dtype, device=x.device) / size)
    angle = positions[:, None] * frequencies.to(x)  # (T, 1) * (d / 2,) -> (T, d / 2)
    cos = angle.cos()
    sin = angle.sin()
    first, second = x[..., 0::2], x[..., 1::2]  # (..., T, d) -> (..., T, d / 2)
    turned = torch.stack([first * cos - second * sin, first * sin + second * cos], dim=-1)
    return turned.flatten(-2).to(dtype)  # (..., T, d / 2, 2) -> (..., T, d)


class RotarySelfAttention(SelfAttention):
    """One head that turns queries and keys by their positions.

    Values are not turned: they say what, not where. The parameters are those of SelfAttention, and
    nothing is added to x. d_k must be even.
    """

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x (B, T, d_model) -> turned queries and keys, and values, each (B, 1, T, d)."""
        positions = torch.arange(x.size(-2), device=x.device)  # only their differences count
        query, key, value = super().project(x)
        return rotary(query, positions), rotary(key, positions), value


def alibi(length: int, slopes: Tensor) -> Tensor:
    """What is added to the scores of each head: -slope · |i - j|, slopes (H,) -> (H, T, T).

    Press et al. have it for the past alone; here it falls to both sides. Slopes of 16 bits give a
    float32 result, because no distance above 256 has a number of its own in bfloat16.

    >>> alibi(3, torch.tensor([0.5]))
    tensor([[[-0.0000, -0.5000, -1.0000],
             [-0.5000, -0.0000, -0.5000],
             [-1.0000, -0.5000, -0.0000]]])
    """
    (slopes,) = at_least_float32(slopes)
    position = torch.arange(length, device=slopes.device)
    distance = (position[:, None] - position).abs()  # (T,) -> (T, T)
    return -slopes[:, None, None] * distance  # (H, 1, 1) * (T, T) -> (H, T, T)
