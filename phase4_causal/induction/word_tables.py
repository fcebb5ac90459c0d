"""What does a head look for, and what does it say, word by word?

A head is two matrices (Elhage et al. 2021). With every word put in, each becomes a table, words by words:

    QK    x_q W_Q W_K^T x_k^T     how much a query word looks for a key word
    OV    x_k W_V W_O W_U         which words get likelier when the head looks at a word

What a word is by the time a head of layer 1 reads it, is said in two ways:

    words_alone      by weights of attention alone: its embedding; of the word before, what all heads of layer 0 make
                     of it, W_V W_O. Norms without their division and shift; the feed-forward network is left out.
    words_in_text    the mean of what is read, behind the norm, over places of texts with this word there, or before.
                     A table of means is the mean of the scores of all pairs of such places, exactly.

Used by circuits.py.
"""

import math

import torch
from torch import Tensor, nn

from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase3_visualization.circuits.patching import changed
from phase4_causal.induction.induction_scores import SYMBOLS
from shared.toy_language import SPECIAL
from shared.toy_model import ToyTransformer

WORDS = range(len(SPECIAL), len(SPECIAL) + SYMBOLS)  # of the task, W = 64


def part_of(linear: nn.Linear, num_heads: int, head: int) -> tuple[Tensor, Tensor]:
    """The rows of w_q, w_k or w_v that belong to a head: weight (d_k, d_model), bias (d_k,)."""
    return linear.weight.chunk(num_heads)[head], linear.bias.chunk(num_heads)[head]


def out_of(attention: MultiHeadAttention, head: int) -> Tensor:
    """The columns of w_o that belong to a head: (d_model, H * d_v) -> (d_model, d_v)."""
    return attention.w_o.weight.chunk(attention.num_heads, dim=1)[head]


def scaled(x: Tensor, norm: nn.LayerNorm) -> Tensor:
    """The norm without its division and shift, which makes it linear: (..., d_model) -> (..., d_model)."""
    return (x - x.mean(dim=-1, keepdim=True)) * norm.weight


def folded(weight: Tensor, norm: nn.LayerNorm) -> Tensor:
    """The weight that reads x as this one reads scaled(x): (..., d_model) -> (..., d_model)."""
    weight = weight * norm.weight
    return weight - weight.mean(dim=-1, keepdim=True)


@torch.no_grad()
def words_alone(model: ToyTransformer) -> tuple[Tensor, Tensor]:
    """What layer 1 would read of the word at a place, and of the word before it: 2 x (W, d_model)."""
    first, second = model.blocks
    words = model.embedding.weight[WORDS]  # (V, d_model) -> (W, d_model)
    copied = scaled(words, first.attention_norm) @ first.attention.w_v.weight.T @ first.attention.w_o.weight.T
    return scaled(words, second.attention_norm), scaled(copied, second.attention_norm)


@torch.no_grad()
def words_in_text(model: ToyTransformer, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """What layer 1 does read, tokens (N, T) -> 2 x (W, d_model). NaN for a word that never comes."""
    read: list[Tensor] = []
    with changed(model.blocks[1].attention_norm, read.append):
        model(tokens)
    rows = read[0][:, 1:].flatten(0, 1)  # (N, T, d_model) -> (N * (T - 1), d_model): the first place has none before
    there = [words.flatten() == torch.tensor(WORDS)[:, None] for words in (tokens[:, 1:], tokens[:, :-1])]
    here, before = (marks.to(rows) @ rows / marks.sum(dim=1, keepdim=True) for marks in there)  # -> (W, d_model)
    return here, before


@torch.no_grad()
def qk_table(model: ToyTransformer, head: int, queries: Tensor, keys: Tensor) -> Tensor:
    """Scores of a head of layer 1: words as queries and as keys, (W, d_model) each -> (W, W)."""
    attention = model.blocks[1].attention
    (w_q, b_q), (w_k, b_k) = (part_of(w, attention.num_heads, head) for w in (attention.w_q, attention.w_k))
    return (queries @ w_q.T + b_q) @ (keys @ w_k.T + b_k).T / math.sqrt(len(b_k))


@torch.no_grad()
def ov_table(model: ToyTransformer, head: int, words: Tensor) -> Tensor:
    """What a weight of 1 on a word adds to the logit of each, but for the last division: (W, d_model) -> (W, W)."""
    attention = model.blocks[1].attention
    w_v, _ = part_of(attention.w_v, attention.num_heads, head)
    return scaled(words @ w_v.T @ out_of(attention, head).T, model.output_norm) @ model.embedding.weight[WORDS].T


def centred(table: Tensor) -> Tensor:
    """What depends on both words: without the means of rows and of columns.

    Raises ValueError if a word is missing: the table of words_in_text knows only those that came.
    """
    if table.isnan().any():
        never = max(int(table.isnan().all(dim=axis).sum()) for axis in (0, 1))
        raise ValueError(f"each word must come in the texts: {never} of {len(table)} do not; more texts are needed")
    return table - table.mean(dim=0) - table.mean(dim=1, keepdim=True) + table.mean()


def on_diagonal(table: Tensor) -> float:
    """Share of the rows that are largest on the diagonal."""
    return (centred(table).argmax(dim=1) == torch.arange(len(table))).double().mean().item()


def copying_score(table: Tensor) -> float:
    """Sum of the eigenvalues over the sum of their sizes: 1 if all words make themselves likelier, -1 less likely."""
    eigenvalues = torch.linalg.eigvals(centred(table))
    return (eigenvalues.real.sum() / eigenvalues.abs().sum()).item()


def composition(reads: Tensor, writes: Tensor) -> float:
    """|AB| / |A| |B|, Frobenius norms: how much of what B writes A reads (Elhage et al. 2021)."""
    return ((reads @ writes).norm() / (reads.norm() * writes.norm())).item()


@torch.no_grad()
def compositions(model: ToyTransformer, first: int, second: int) -> dict[str, float]:
    """Of a head of layer 0 with a head of layer 1: by its queries, keys and values; norms as in scaled."""
    below, above = model.blocks
    to_q, to_k, to_v = (
        folded(part_of(w, above.attention.num_heads, second)[0], above.attention_norm)  # (d_k, d_model)
        for w in (above.attention.w_q, above.attention.w_k, above.attention.w_v)
    )
    w_v, _ = part_of(below.attention.w_v, below.attention.num_heads, first)
    writes = out_of(below.attention, first) @ folded(w_v, below.attention_norm)  # (d_model, d_v) -> (d_model, d_model)
    return {
        "Q": composition(to_k.T @ to_q, writes),
        "K": composition(to_q.T @ to_k, writes),
        "V": composition(out_of(above.attention, second) @ to_v, writes),
    }
