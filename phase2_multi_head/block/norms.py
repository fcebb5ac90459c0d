"""What does a norm take from a vector?

Its length, so that only its direction and a learned weight for each feature are left. RMSNorm
(Zhang & Sennrich 2019) stands in most language models since Llama, and in qk_norm.py beside this
file. LayerNorm, as in our block, takes the mean away first; torch has it as nn.LayerNorm.
"""

import torch
from torch import Tensor

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


def main() -> None:
    x = torch.tensor([[3.0, 4.0], [30.0, 40.0]])
    print("Two vectors of one direction, 5 and 50 long, become one:")
    print(rms_norm(x, weight=torch.ones(2)))


if __name__ == "__main__":
    main()
