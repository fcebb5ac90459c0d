"""What does a head look for, and what does it say? Two matrices, read off its weights.

Of what stands at a place, x, a head makes two things (Elhage et al. 2021):

    QK    x_q W_Q W_K^T x_k^T     how much the query looks for the key
    OV    x W_V W_O               what it adds where it looks at x

With every word put in for x, each becomes a table, words by words. Norms take part without their
division and shift, which makes them linear; biases are left out.

    python phase4_causal/induction/word_tables.py
"""

import math

import torch
from torch import Tensor, nn

from phase4_causal.induction.induction_scores import HEADS_A_LAYER, SYMBOLS
from shared.head_statistics import composed
from shared.toy_language import SPECIAL
from shared.toy_model import ToyTransformer

TASK_WORDS = range(len(SPECIAL), len(SPECIAL) + SYMBOLS)  # W = 64


def scaled(x: Tensor, norm: nn.LayerNorm) -> Tensor:
    """The norm without its division and shift: (..., d_model) -> (..., d_model)."""
    return (x - x.mean(dim=-1, keepdim=True)) * norm.weight


@torch.no_grad()
def qk_and_ov(model: ToyTransformer, layer: int, head: int) -> tuple[Tensor, Tensor]:
    """QK and OV of a head, with the norm before them, (d_model, d_model) each."""
    block = model.blocks[layer]
    attention = block.attention
    directions = torch.eye(model.embedding.embedding_dim).to(model.positions)
    read = scaled(directions, block.attention_norm)
    query = read @ attention.w_q.weight.chunk(HEADS_A_LAYER)[head].T  # (d_model, d_k)
    key = read @ attention.w_k.weight.chunk(HEADS_A_LAYER)[head].T
    value = read @ attention.w_v.weight.chunk(HEADS_A_LAYER)[head].T
    output = attention.w_o.weight.chunk(HEADS_A_LAYER, dim=1)[head].T  # (d_k, d_model)
    return query @ key.T / math.sqrt(key.size(-1)), value @ output


@torch.no_grad()
def looks_for(model: ToyTransformer, head: int) -> Tensor:
    """How much a word looks for a key whose word before is another one, (W, W), in layer 1.

    What a key knows of the word before it is what all heads of layer 0 make of that word.
    """
    words = model.embedding.weight[TASK_WORDS]  # (V, d_model) -> (W, d_model)
    from_below = 0
    for below in range(HEADS_A_LAYER):
        _, ov = qk_and_ov(model, 0, below)
        from_below = from_below + ov
    copied = words @ from_below
    qk, _ = qk_and_ov(model, 1, head)
    return words @ qk @ copied.T


@torch.no_grad()
def says(model: ToyTransformer, head: int) -> Tensor:
    """What a weight of 1 on a word adds to the logit of each, (W, W), by a head of layer 1.

    The division of the last norm is left out.
    """
    words = model.embedding.weight[TASK_WORDS]
    _, ov = qk_and_ov(model, 1, head)
    return scaled(words @ ov, model.output_norm) @ words.T


def centred(table: Tensor) -> Tensor:
    """What depends on both words: without the means of rows and of columns."""
    return table - table.mean(dim=0) - table.mean(dim=1, keepdim=True) + table.mean()


def on_diagonal(table: Tensor) -> float:
    """Share of the rows of a table that are largest on the diagonal, once it is centred."""
    largest = centred(table).argmax(dim=1)
    return (largest == torch.arange(len(table))).double().mean().item()


def compositions(model: ToyTransformer, first: int, second: int) -> dict[str, float]:
    """How much of what a head of layer 0 writes a head of layer 1 reads, and for what."""
    _, writes = qk_and_ov(model, 0, first)
    qk, ov = qk_and_ov(model, 1, second)
    return {
        "queries": composed(writes, qk),
        "keys": composed(qk, writes.T),
        "values": composed(writes, ov),
    }


def main() -> None:
    table = torch.tensor([[4.0, 1.0, 6.0], [1.0, 5.0, 7.0], [0.0, 2.0, 9.0]])
    print(f"A table of three words, whose last column is always large:\n{table}")
    print(f"What of it depends on both words:\n{centred(table)}")
    print(f"There {on_diagonal(table):.0%} of the rows are largest on the diagonal")


if __name__ == "__main__":
    main()
