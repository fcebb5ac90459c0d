"""What does a head look for, and what does it say? Two matrices, read off its weights.

Of what stands at a place, x, a head makes two things (Elhage et al. 2021):

    QK    x_q W_Q W_K^T x_k^T     how much the query looks for the key
    OV    x W_V W_O               what it adds where it looks at x

With every word put in for x, each becomes a table, words by words. Norms take part without their
division and shift, which makes them linear; biases are left out.
"""

import math

import torch
from torch import Tensor, nn

from phase4_causal.induction.induction_scores import HEADS, SYMBOLS
from shared.head_statistics import composed
from shared.toy_language import SPECIAL
from shared.toy_model import ToyTransformer

WORDS = range(len(SPECIAL), len(SPECIAL) + SYMBOLS)  # of the task, W = 64


def scaled(x: Tensor, norm: nn.LayerNorm) -> Tensor:
    """The norm without its division and shift, which makes it linear: (..., d_model) -> (...,
    d_model).
    """
    return (x - x.mean(dim=-1, keepdim=True)) * norm.weight


@torch.no_grad()
def qk_and_ov(model: ToyTransformer, layer: int, head: int) -> tuple[Tensor, Tensor]:
    """QK and OV of a head, with the norm before them: 2 x (d_model, d_model)."""
    block = model.blocks[layer]
    read = scaled(
        torch.eye(model.embedding.embedding_dim).to(model.positions), block.attention_norm
    )
    attention = block.attention
    query, key, value = (  # (d_model, d_k) each
        read @ projection.weight.chunk(HEADS)[head].T
        for projection in (attention.w_q, attention.w_k, attention.w_v)
    )
    return query @ key.T / math.sqrt(key.size(-1)), value @ attention.w_o.weight.chunk(
        HEADS, dim=1
    )[head].T


@torch.no_grad()
def looks_for(model: ToyTransformer, head: int) -> Tensor:
    """How much a word looks for a key whose word before is another one, by a head of layer 1 -> (W,
    W).

    What a key knows of the word before it is what all heads of layer 0 make of that word.
    """
    words = model.embedding.weight[WORDS]  # (V, d_model) -> (W, d_model)
    copied = words @ sum(qk_and_ov(model, 0, below)[1] for below in range(HEADS))
    return words @ qk_and_ov(model, 1, head)[0] @ copied.T


@torch.no_grad()
def says(model: ToyTransformer, head: int) -> Tensor:
    """What a weight of 1 on a word adds to the logit of each, but for the last division, by a head
    of layer 1.
    """
    words = model.embedding.weight[WORDS]
    return scaled(words @ qk_and_ov(model, 1, head)[1], model.output_norm) @ words.T  # -> (W, W)


def centred(table: Tensor) -> Tensor:
    """What depends on both words: without the means of rows and of columns."""
    return table - table.mean(dim=0) - table.mean(dim=1, keepdim=True) + table.mean()


def on_diagonal(table: Tensor) -> float:
    """Share of the rows that are largest on the diagonal."""
    return (centred(table).argmax(dim=1) == torch.arange(len(table))).double().mean().item()


def compositions(model: ToyTransformer, first: int, second: int) -> dict[str, float]:
    """How much of what a head of layer 0 writes a head of layer 1 reads for its queries, keys and
    values.
    """
    _, writes = qk_and_ov(model, 0, first)
    qk, ov = qk_and_ov(model, 1, second)
    return {
        "queries": composed(writes, qk),
        "keys": composed(qk, writes.T),
        "values": composed(writes, ov),
    }
