"""The model of this phase: one layer with one head, trained to guess hidden words; and how to ask
it for a guess.
"""

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from phase1_single_head.self_attention import SelfAttention, scaled_dot_product_attention
from shared import checkpoints
from shared.attention_utils import padding_mask
from shared.toy_language import MASK, VERBS, decode, encode, pad_batch
from shared.toy_model import ToyTransformer, in_double
from shared.training import LITTLE_DECAY, Recipe, Trained

RECIPE = Recipe(
    "single_head_model",
    "masked word",
    num_heads=1,
    num_layers=1,
    steps=800,
    matrix_decay=LITTLE_DECAY,
)


def make_single_head(d_model: int, num_heads: int) -> SelfAttention:
    """SelfAttention as the toy transformer wants it."""
    if num_heads != 1:
        raise ValueError(f"phase 1 has one head: got num_heads={num_heads}")
    return SelfAttention(d_model, output_projection=True)


def load_single_head_model(options: argparse.Namespace, seed: int | None = None) -> Trained:
    """The phase-1 model, one layer with one head, trained on masked words."""
    return checkpoints.trained_model(RECIPE, make_single_head, options, seed)


def choose_word(words: list[str]) -> int:
    """The word that is hidden: the verb, or the last word of a text without one."""
    return next((i for i, word in enumerate(words) if word in VERBS), len(words) - 1)


def hide(words: Sequence[str], position: int) -> list[str]:
    """The words as the model reads them when it has to guess one: <mask> stands in its place."""
    return [MASK if i == position else word for i, word in enumerate(words)]


def shown(words: Sequence[str]) -> list[str]:
    """The words as a reader is shown them: "?" for a hidden one."""
    return ["?" if word == MASK else word for word in words]


def attention_input(model: ToyTransformer, words: list[str]) -> Tensor:
    """What the attention of the first layer reads, (T, d_model): embedding plus position,
    normalised.
    """
    tokens = torch.tensor([encode(words)], device=model.positions.device)
    return model.blocks[0].attention_norm(model.embed(tokens))[0]  # (1, T, d_model) -> (T, d_model)


@torch.no_grad()
def guess_hidden(
    model: ToyTransformer, texts: Sequence[Sequence[str]], positions: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Hide one word in each of N texts -> how likely every word is in its place (N, V), its row of
    weights (N, T).
    """
    tokens, lengths = pad_batch(
        [encode(hide(words, i)) for words, i in zip(texts, positions, strict=True)]
    )
    mask, device = padding_mask(lengths, tokens.size(1)), model.positions.device
    logits, (weights, *_) = model(
        tokens.to(device), mask=mask.to(device)
    )  # (N, T, V), (N, 1, T, T)
    text, i = torch.arange(len(texts)), torch.tensor(positions)
    return logits[text, i].softmax(dim=-1).cpu(), weights[text, 0, i].cpu()


def likeliest(probabilities: Tensor, count: int = 3) -> list[tuple[str, float]]:
    """The words with the largest of the probabilities (V,), and these."""
    best = probabilities.topk(count)
    return list(zip(decode(best.indices.tolist()), best.values.tolist(), strict=True))


def most_asked(weights: Tensor, position: int) -> list[int]:
    """Which two other words get the largest of the weights (T,) of a word, the largest first."""
    order = weights.argsort(descending=True, stable=True).tolist()
    return [j for j in order if j != position][:2]


def asks(words: list[str], weights: Tensor, position: int) -> str:
    """Whom a word asks most, in words: '"cat" and "on"'."""
    return " and ".join(f'"{words[j]}"' for j in most_asked(weights, position)) or "nobody"


@dataclass(frozen=True)
class Flow:
    """All that one head computes for the hidden word i of T words."""

    words: list[str]
    i: int
    x: Tensor  # (T, d_model), what the head reads
    query: Tensor  # (d_k,), of the hidden word
    keys: Tensor  # (T, d_k)
    values: Tensor  # (T, d_v)
    scores: Tensor  # (T,)
    weights: Tensor  # (T,)
    output: Tensor  # (d_v,), of the hidden word
    guesses: list[tuple[str, float]]

    @property
    def seen(self) -> list[str]:
        """The words as the reader is shown them."""
        return shown(hide(self.words, self.i))

    @property
    def asked(self) -> list[int]:
        """Which two other words the hidden word gives the largest weights."""
        return most_asked(self.weights, self.i)


@torch.no_grad()
def flow_of(trained: Trained, words: list[str]) -> Flow:
    """Returns what the head computes on the way from the hidden word to the guess, in float64."""
    model = in_double(trained.model)
    attention = model.blocks[0].attention
    i = choose_word(words)
    x = attention_input(model, hide(words, i))
    query = attention.w_q(x[i])  # (d_model,) -> (d_k,)
    keys = attention.w_k(x)  # (T, d_model) -> (T, d_k)
    values = attention.w_v(x)  # (T, d_model) -> (T, d_v)
    scores = keys @ query / math.sqrt(len(query))  # (T, d_k) @ (d_k,) -> (T,)
    output, weights = scaled_dot_product_attention(query[None], keys, values)
    probabilities, _ = guess_hidden(model, [words], [i])
    return Flow(
        words=words,
        i=i,
        x=x,
        query=query,
        keys=keys,
        values=values,
        scores=scores,
        weights=weights[0],
        output=output[0],
        guesses=likeliest(probabilities[0], count=4),
    )
