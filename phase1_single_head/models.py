"""The model of this phase: one layer with one head, trained to guess hidden words.

And how to ask it: flow_of computes every step from a hidden word to the guess by hand, guess_hidden
lets the model do it.
"""

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from phase1_single_head.self_attention import SelfAttention
from shared.attention_utils import padding_mask
from shared.toy_language import MASK, VERBS, decode, encode, pad_batch
from shared.toy_model import ToyTransformer
from shared.training.checkpoints import trained_model
from shared.training.recipes import LITTLE_DECAY, Recipe, Trained

SINGLE_HEAD_RECIPE = Recipe(
    "single_head_model",
    "masked word",
    num_heads=1,
    num_layers=1,
    steps=800,
    matrix_decay=LITTLE_DECAY,
)


def make_single_head(d_model: int, num_heads: int) -> SelfAttention:
    """SelfAttention as the toy transformer wants it; num_heads is 1."""
    return SelfAttention(d_model, output_projection=True)


def load_single_head_model(options: argparse.Namespace, seed: int | None = None) -> Trained:
    """Returns the model, trained now if there is no checkpoint of it."""
    return trained_model(SINGLE_HEAD_RECIPE, make_single_head, options, seed)


# ---- a hidden word


def choose_word(words: list[str]) -> int:
    """The position of the word that is hidden: the verb, or the last word of a text without one."""
    for position, word in enumerate(words):
        if word in VERBS:
            return position
    return len(words) - 1


def hide(words: Sequence[str], position: int) -> list[str]:
    """The words as the model reads them when it has to guess one: <mask> stands in its place."""
    return [*words[:position], MASK, *words[position + 1 :]]


def as_shown(words: Sequence[str]) -> list[str]:
    """The words as a reader is shown them: "?" for a hidden one."""
    return ["?" if word == MASK else word for word in words]


@torch.no_grad()
def guess_hidden(
    model: ToyTransformer, texts: Sequence[Sequence[str]], positions: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Hide one word in each of N texts, and let the model guess it.

    Returns how likely every word is in its place (N, V), and its row of weights (N, T).
    """
    rows = [encode(hide(words, i)) for words, i in zip(texts, positions, strict=True)]
    tokens, lengths = pad_batch(rows)
    mask = padding_mask(lengths, tokens.size(1))
    device = model.positions.device
    logits, layers = model(tokens.to(device), mask=mask.to(device))  # (N, T, V), L x (N, 1, T, T)
    text, i = torch.arange(len(texts)), torch.tensor(positions)
    return logits[text, i].softmax(dim=-1).cpu(), layers[0][text, 0, i].cpu()


def likeliest(probabilities: Tensor, count: int = 3) -> list[tuple[str, float]]:
    """The words with the largest of the probabilities (V,), and these."""
    best = probabilities.topk(count)
    return list(zip(decode(best.indices.tolist()), best.values.tolist(), strict=True))


def most_attended(weights: Tensor, position: int) -> list[int]:
    """Which two other words get the largest of the weights (T,) of a word, the largest first."""
    order = weights.argsort(descending=True, stable=True).tolist()
    order.remove(position)
    return order[:2]


# ---- its way to the guess


@dataclass(frozen=True)
class Flow:
    """All that the model computes for the hidden word i of T words, on the CPU."""

    words: list[str]
    i: int
    x: Tensor  # (T, d_model), what the head reads
    query: Tensor  # (d_k,), of the hidden word
    keys: Tensor  # (T, d_k)
    values: Tensor  # (T, d_v)
    scores: Tensor  # (T,), divided by √d_k
    weights: Tensor  # (T,)
    output: Tensor  # (d_v,), of the hidden word
    probabilities: Tensor  # (V,), how likely each word of the vocabulary is

    @property
    def seen(self) -> list[str]:
        """The words as the reader is shown them."""
        return as_shown(hide(self.words, self.i))

    @property
    def most_attended(self) -> list[int]:
        """Which two other words the hidden word gives the largest weights."""
        return most_attended(self.weights, self.i)

    @property
    def guesses(self) -> list[tuple[str, float]]:
        """The four likeliest words, and how likely they are."""
        return likeliest(self.probabilities, 4)


@torch.no_grad()
def flow_of(trained: Trained, words: list[str]) -> Flow:
    """Computes each step from the hidden word to the guess with nothing but matrix products.

    It does not call the attention of the model, so the two differ if one of them is changed.
    """
    model = trained.model.cpu()
    block = model.blocks[0]
    attention = block.attention
    i = choose_word(words)
    stream = model.embed(torch.tensor(encode(hide(words, i))))  # -> (T, d_model)
    x = block.attention_norm(stream)
    query = x[i] @ attention.w_q.weight.T  # (d_model,) @ (d_model, d_k) -> (d_k,)
    keys = x @ attention.w_k.weight.T  # (T, d_model) @ (d_model, d_k) -> (T, d_k)
    values = x @ attention.w_v.weight.T  # (T, d_model) @ (d_model, d_v) -> (T, d_v)
    scores = keys @ query / math.sqrt(len(query))  # (T, d_k) @ (d_k,) -> (T,)
    powers = torch.exp(scores)
    weights = powers / powers.sum()
    output = weights @ values  # (T,) @ (T, d_v) -> (d_v,)

    # The rest of the model turns the hidden word's vector and the output into a guess.
    word = stream[i] + attention.w_o(output)
    word = word + block.feed_forward(block.feed_forward_norm(word))
    logits = model.output_norm(word) @ model.embedding.weight.T  # (d_model,) -> (V,)
    probabilities = (logits + model.output_bias).softmax(dim=-1)
    return Flow(words, i, x, query, keys, values, scores, weights, output, probabilities)
