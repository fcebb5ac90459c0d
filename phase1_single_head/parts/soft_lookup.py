"""Is attention a lookup: a query, many keys, and behind each key a value?

A dictionary returns the one value whose key equals the query. Attention compares the query with all keys and returns a
weighted mean of all values; because nothing in it is a yes or a no, it can be learned. Run it to see what follows from
that, in a trained head that reads a sentence of ten words or more:

    python phase1_single_head/parts/soft_lookup.py
    python phase1_single_head/parts/soft_lookup.py --sentence "those dogs beside a barn often slept in a small soft bed"
"""

import argparse
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from phase1_single_head.models import attention_input, load_single_head_model
from phase1_single_head.self_attention import SelfAttention, scaled_dot_product_attention
from shared import cli, training
from shared.toy_language import tokenize
from shared.toy_model import in_double
from shared.training import Trained

LONG_SENTENCE = "these teachers beside the streets stood quietly on a big small hill"
LONG = 10  # words; some of what is shown needs that many
NUM_READ = 100  # held-out sentences


@dataclass(frozen=True)
class Reading:
    """One sentence as a head sees it: query and key (T, d_k), value (T, d_v), weights (T, T)."""

    words: list[str]
    query: Tensor
    key: Tensor
    value: Tensor
    weights: Tensor


@torch.no_grad()
def read(trained: Trained, sentences: list[list[str]]) -> list[Reading]:
    """What the single head computes on each sentence, in float64."""
    model = in_double(trained.model)
    attention: SelfAttention = model.blocks[0].attention
    readings = []
    for words in sentences:
        x = attention_input(model, words)
        query, key, value = attention.w_q(x), attention.w_k(x), attention.w_v(x)
        _, weights = scaled_dot_product_attention(query, key, value)
        readings.append(Reading(words, query, key, value, weights))
    return readings


def read_held_out(trained: Trained) -> list[Reading]:
    return read(trained, [list(sentence.words) for sentence in training.corpus()[1][:NUM_READ]])


def long_words(options: argparse.Namespace) -> list[str]:
    """The sentence to look at if it has at least ten words, otherwise one that has."""
    return options.words if len(options.words) >= LONG else tokenize(LONG_SENTENCE)


def share_found(readings: list[Reading]) -> tuple[float, float]:
    """(mean largest weight of a row, share of rows in which one word has more than 0.9)."""
    largest = torch.cat([reading.weights.amax(dim=-1) for reading in readings])
    return largest.mean().item(), (largest > 0.9).double().mean().item()


def gradient_sizes(reading: Reading, *, hard: bool = False) -> dict[str, Tensor]:
    """Lengths of the gradients that a loss on the output sends to each query, key and value: name -> (T,).

    hard: return the value of the best key alone, as a dictionary does.
    """
    inputs = {name: getattr(reading, name).clone().requires_grad_() for name in ("query", "key", "value")}
    output, weights = scaled_dot_product_attention(**inputs)
    if hard:
        output = F.one_hot(weights.argmax(dim=-1), weights.size(-1)).to(weights) @ inputs["value"]
    gradients = torch.autograd.grad(output.square().sum(), list(inputs.values()), materialize_grads=True)
    return {name: gradient.norm(dim=-1) for name, gradient in zip(inputs, gradients, strict=True)}


def picking_query(key: Tensor, wanted: int, margin: float = 50.0) -> Tensor:
    """A query (1, d_k) that scores `margin` on one of the keys (T, d_k) and 0 on the others.

    It exists if no key is a mix of others, so at most d_k keys.
    """
    return margin * math.sqrt(key.size(-1)) * torch.linalg.pinv(key)[:, wanted][None]


@cli.script
def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    trained = load_single_head_model(options)
    (head,), held_out = read(trained, [long_words(options)]), read_held_out(trained)
    i = len(head.words) // 2
    found = sorted(zip(head.weights[i].tolist(), head.words, strict=True), reverse=True)
    print(f'\nOne head, {trained.label}, on "{" ".join(head.words)}"')
    print(f'   "{head.words[i]}" takes ' + ", ".join(f"{weight:.2f} of {word}" for weight, word in found[:6]) + ", ...")
    mean, share = share_found(held_out)
    print(f"   on {NUM_READ} held-out sentences a row's largest weight is {mean:.2f} in the mean")
    soft, hard = gradient_sizes(head), gradient_sizes(head, hard=True)
    print("\nSmallest gradient at a query, key and value; and the largest, were the best key's value alone returned")
    for name in soft:
        print(f"   {name:6} {soft[name].min().item():.4f}   {hard[name].max().item():.4f}")
    zero, picking = torch.zeros_like(head.query[:1]), picking_query(head.key, 0)
    errors = [
        (scaled_dot_product_attention(query, head.key, head.value)[0][0] - wanted).abs().max().item()
        for query, wanted in ((zero, head.value.mean(dim=0)), (picking, head.value[0]))
    ]
    print(
        f"\nA zero query gives the mean of all values, to {errors[0]:.0e}, another the first alone, to {errors[1]:.0e}"
    )
    return f"A soft one: {share:.1%} of the rows give one word more than 0.9, and every key gets a gradient"


if __name__ == "__main__":
    cli.run(main)
