"""What does a norm take from a vector?

Its length, so that only its direction and a learned weight for each feature are left. RMSNorm
(Zhang & Sennrich 2019) stands in most language models since Llama, and in qk_norm.py beside this
file. LayerNorm, as in our block, takes the mean away first; torch has it as nn.LayerNorm.
"""

import torch
from torch import Tensor

EPSILON = 1e-6  # so that a vector of zeros can be divided


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """Divides each vector by the root of its mean square.

    x (..., d), weight (d,), a factor for each feature -> (..., d).
    """
    mean_square = x.square().mean(dim=-1, keepdim=True)  # -> (..., 1)
    return weight * x / (mean_square + EPSILON).sqrt()


def main() -> None:
    x = torch.tensor([[3.0, 4.0], [30.0, 40.0]])
    print("Two vectors of one direction, 5 and 50 long, become one:")
    print(rms_norm(x, weight=torch.ones(2)))


if __name__ == "__main__":
    main()
