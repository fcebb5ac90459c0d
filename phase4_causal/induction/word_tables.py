"""What does a head look for, and what does it say, word by word?

A head is two matrices (Elhage et al. 2021). With every word put in, each becomes a table, words by words:

    QK    x_q W_Q W_K^T x_k^T     how much a query word looks for a key word
    OV    x_k W_V W_O W_U         which words get likelier when the head looks at a word

What a word is by the time a head of layer 1 reads it, is said in two ways:

    words_alone      by weights of attention alone: its embedding; of the word before, what all heads of layer 0 make
                     of it, W_V W_O. Norms without their division and shift; the feed-forward network is left out.
    words_in_text    the mean of what is read, behind the norm, over places of texts with this word there, or before
"""

import math

import torch
from torch import Tensor, nn

from phase3_visualization.circuits.patching import changed
from phase4_causal.induction.induction_scores import SYMBOLS
from phase4_causal.induction.models import HEADS
from shared.toy_language import SPECIAL
from shared.toy_model import ToyTransformer

WORDS = range(len(SPECIAL), len(SPECIAL) + SYMBOLS)  # of the task, W = 64


def scaled(x: Tensor, norm: nn.LayerNorm) -> Tensor:
    """The norm without its division and shift, which makes it linear: (..., d_model) -> (..., d_model)."""
    return (x - x.mean(dim=-1, keepdim=True)) * norm.weight


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
    query, key = (w(words).chunk(HEADS, dim=-1)[head] for w, words in ((attention.w_q, queries), (attention.w_k, keys)))
    return query @ key.T / math.sqrt(key.size(-1))  # (W, d_k) each -> (W, W)


@torch.no_grad()
def ov_table(model: ToyTransformer, head: int, words: Tensor) -> Tensor:
    """What a weight of 1 on a word adds to the logit of each, but for the last division: (W, d_model) -> (W, W)."""
    attention = model.blocks[1].attention
    w_v, w_o = attention.w_v.weight.chunk(HEADS)[head], attention.w_o.weight.chunk(HEADS, dim=1)[head]
    return scaled(words @ w_v.T @ w_o.T, model.output_norm) @ model.embedding.weight[WORDS].T


def centred(table: Tensor) -> Tensor:
    """What depends on both words: without the means of rows and of columns."""
    return table - table.mean(dim=0) - table.mean(dim=1, keepdim=True) + table.mean()


def on_diagonal(table: Tensor) -> float:
    """Share of the rows that are largest on the diagonal."""
    return (centred(table).argmax(dim=1) == torch.arange(len(table))).double().mean().item()


def copying_score(table: Tensor) -> float:
    """Sum of the eigenvalues over the sum of their sizes: 1 if all words make themselves likelier, -1 less likely."""
    eigenvalues = torch.linalg.eigvals(centred(table))
    return (eigenvalues.real.sum() / eigenvalues.abs().sum()).item()
