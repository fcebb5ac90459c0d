"""What does each part of a transformer block do to the words that pass?

Attention moves information between words, and a feed-forward network works on each word by itself.
Each reads a normalised copy of x, and what it finds is added to x, the residual stream (pre-norm;
Xiong et al. 2020). The Block of this repository stands in shared/toy_model.py. Here it is taken
step by step, and with parts left out for rank_collapse.py.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from phase2_multi_head.multi_head_attention import MultiHeadAttention
from shared.toy_model import Block


def steps(block: Block, x: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
    """x (B, T, d_model) -> what each step gives, by name and in order, without dropout.

    The last is the block's output.
    """
    read = block.attention_norm(x)
    added, _ = block.attention(read, mask=mask)
    stream = x + added
    read_again = block.feed_forward_norm(stream)
    hidden = block.feed_forward[:2](read_again)  # (B, T, d_model) -> (B, T, 2 d_model), after ReLU
    computed = block.feed_forward[2](hidden)  # (B, T, 2 d_model) -> (B, T, d_model)
    return {
        "x, the residual stream": x,
        "   attention reads": read,
        "   attention adds": added,
        "x + attention": stream,
        "   feed-forward reads": read_again,
        "   hidden, after ReLU": hidden,
        "   feed-forward adds": computed,
        "what goes out": stream + computed,
    }


def without_residual(block: Block, x: Tensor) -> Tensor:
    """The block with its two additions left out."""
    output, _ = block.attention(block.attention_norm(x))
    return block.feed_forward(block.feed_forward_norm(output))


# What makes a layer: (block, x) -> output.
LAYERS_BY_PARTS: dict[str, Callable[[Block, Tensor], Tensor]] = {
    "attention alone": lambda block, x: block.attention(x)[0],
    "block without residual": without_residual,
    "attention + residual": lambda block, x: x + block.attention(x)[0],
    "whole block": lambda block, x: block(x)[0],
}


@torch.no_grad()
def main() -> None:
    block = Block(64, MultiHeadAttention(64, 4))
    x = torch.randn(1, 6, 64, generator=torch.Generator().manual_seed(0))
    print(f"{'six random words, a new block':31} {'shape':12} mean length of a vector")
    for name, values in steps(block, x).items():
        print(f"   {name:28} {tuple(values.shape)!s:12} {values.norm(dim=-1).mean():6.2f}")
    print(f"{size(block.attention):,} of its {size(block):,} parameters are attention's")


def size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


if __name__ == "__main__":
    main()
