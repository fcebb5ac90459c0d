"""How many bits does a number in a cache need?

With b bits a number is one of 2^b levels, at equal steps from the least to the largest number of
its group. So one large number makes the steps of its whole group coarse. In keys a few channels are
large for every word. So KIVI (Liu et al. 2024) groups keys by channel, over words, and values by
word, over channels.

    python phase4_causal/serving/few_bits.py
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from shared.attention_checks import check_sizes


def rounded_by_loops(numbers: Tensor, bits: int) -> Tensor:
    """The specification, of one group of numbers (n,): each becomes the nearest level."""
    least, largest = min(numbers), max(numbers)
    step = (largest - least).item() / (2**bits - 1) or 1.0  # of equal numbers there is no step
    nearest = []
    for number in numbers:
        level = round((number - least).item() / step)
        nearest.append(least + level * step)
    return torch.stack(nearest)


@dataclass(frozen=True)
class FewBits:
    """What is kept of some numbers: a code for each, the least number and the step for a group."""

    codes: Tensor  # uint8, as the numbers were
    least: Tensor  # with an axis of size 1 for the group
    step: Tensor

    def restored(self) -> Tensor:
        """The numbers again, each at most half a step off."""
        return self.least + self.step * self.codes


def in_few_bits(x: Tensor, bits: int, dim: int) -> FewBits:
    """Numbers along `dim` are a group. Raises ValueError unless bits is a whole number, 1 to 8."""
    check_sizes(1, bits=bits)
    if bits > 8:
        raise ValueError(f"a code is a byte, so it has at most 8 bits: got {bits}")
    least = x.amin(dim=dim, keepdim=True)
    largest = x.amax(dim=dim, keepdim=True)
    step = (largest - least) / (2**bits - 1)
    codes = (x - least) / step.masked_fill(step == 0, 1.0)  # of equal numbers all codes are 0
    return FewBits(codes.round().to(torch.uint8), least, step)


def rounded_by_word(x: Tensor, bits: int) -> Tensor:
    """Keys or values (..., T, d), the d numbers of each word as a group."""
    return in_few_bits(x, bits, dim=-1).restored()


def rounded_by_channel(x: Tensor, bits: int, group: int) -> Tensor:
    """Keys (..., T, d), in each channel the numbers of `group` words as a group.

    The newest words, which fill no group yet, stay as they are.
    """
    count = x.size(-2) // group
    old, newest = x[..., : count * group, :], x[..., count * group :, :]
    groups = old.unflatten(-2, (count, group))  # -> (..., groups, group, d)
    rounded = in_few_bits(groups, bits, dim=-2).restored()
    return torch.cat([rounded.flatten(-3, -2), newest], dim=-2)


def main() -> None:
    keys = torch.tensor([[0.0, 2, 30], [1, 0, 50], [2, 3, 90], [3, 1, 70]])
    print("Keys of four words. In every word the third number is large:")
    print("   as they are       ", keys.int().tolist())
    print("   2 bits, by channel", rounded_by_channel(keys, bits=2, group=4).int().tolist())
    print("   2 bits, by word   ", rounded_by_word(keys, bits=2).int().tolist())
    print("By word the large number makes the steps so coarse that small ones become alike.")


if __name__ == "__main__":
    main()
