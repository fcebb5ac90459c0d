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

from phase1_single_head.self_attention import (
    SelfAttention,
    attention_input,
    load_single_head_model,
    scaled_dot_product_attention,
)
from shared import cli, training
from shared.attention_utils import causal_mask
from shared.evidence import findings
from shared.evidence.claims import EXPERIMENT, IDENTITY, Claim, measures
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


def share_found(readings: list[Reading], sharper: float = 1.0) -> tuple[float, float]:
    """(mean largest weight of a row, share of rows in which one word has more than 0.9); scores times `sharper`."""
    largest = torch.cat([(sharper * r.weights.log()).softmax(dim=-1).amax(dim=-1) for r in readings])
    return largest.mean().item(), (largest > 0.9).double().mean().item()


@measures(
    Claim(
        id="C180",
        text="Attention retrieves a document, as a search engine or a library does",
        kind=EXPERIMENT,
        rule="one word gets more than 0.9 in at least 0.9 of the rows",
        holds=lambda n: n["rows with more than 0.9 on one word"] >= 0.9,
        oracle={"rows with more than 0.9 on one word": 1.0},
        null={"rows with more than 0.9 on one word": 0.0},
        unit=f"weight; share of the rows of {NUM_READ} held-out sentences",
        control="scores a hundred times as large",
    )
)
def rows_that_retrieve(readings: list[Reading]) -> dict[str, float]:
    """How close the rows of the trained head come to picking one word."""
    mean, share = share_found(readings)
    return {
        "mean largest weight of a row": mean,
        "rows with more than 0.9 on one word": share,
        "the same, scores times 10": share_found(readings, 10)[1],
        "the same, scores times 100": share_found(readings, 100)[1],
    }


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


@measures(
    Claim(
        id="C175",
        text="Attention is a differentiable lookup of values by keys",
        kind=IDENTITY,
        rule="every query, every key and every value gets a gradient longer than 1e-6",
        holds=lambda n: min(n[f"smallest, {name}"] for name in ("query", "key", "value")) > 1e-6,
        unit="length of the gradient at one position",
        control="a lookup of the best key alone",
    )
)
def gradients_that_arrive(reading: Reading) -> dict[str, float]:
    """The smallest gradient at a query, a key and a value; and the largest that a dictionary would send."""
    soft, hard = gradient_sizes(reading), gradient_sizes(reading, hard=True)
    return {f"smallest, {name}": sizes.min().item() for name, sizes in soft.items()} | {
        f"best key alone: largest, {name}": sizes.max().item() for name, sizes in hard.items()
    }


def picking_query(key: Tensor, wanted: int, margin: float = 50.0) -> Tensor:
    """A query (1, d_k) that scores `margin` on one of the keys (T, d_k) and 0 on the others.

    It exists if no key is a mix of others, so at most d_k keys.
    """
    return margin * math.sqrt(key.size(-1)) * torch.linalg.pinv(key)[:, wanted][None]


MEAN, FIRST = "zero query, from the mean", "query of one key, from the first value"


@measures(
    Claim(
        id="C170",
        text="Pooling a sentence by attention is more flexible than its mean or its first token",
        kind=IDENTITY,
        rule="one query gives the mean, another the first value, both to 1e-9",
        holds=lambda n: max(n[MEAN], n[FIRST]) < 1e-9,
        only_if=lambda n: n[MEAN] < 1e-9,
        condition="the mean is meant: to pick out any one of n words takes a d_k of n or more",
        unit="largest absolute difference, float64",
        control="the mean and the first value are not alike",
    )
)
def pooling_errors(reading: Reading) -> dict[str, float]:
    """How far one attention query comes from the mean of all values (zero query) and from the first value alone."""
    zero, picking = torch.zeros_like(reading.query[:1]), picking_query(reading.key, 0)
    mean, _ = scaled_dot_product_attention(zero, reading.key, reading.value)
    first, _ = scaled_dot_product_attention(picking, reading.key, reading.value)
    pairs = {MEAN: (mean[0], reading.value.mean(dim=0)), FIRST: (first[0], reading.value[0])}
    pairs["mean from first value"] = reading.value.mean(dim=0), reading.value[0]
    return {name: (a - b).abs().max().item() for name, (a, b) in pairs.items()}


@measures(
    Claim(
        id="C163",
        text="The items of a batch never interact",
        kind=IDENTITY,
        rule="not a bit moves when the other items are replaced, and something does when its own word is",
        holds=lambda n: n["all other items replaced"] == 0.0 < 1e-3 < n["its own last word replaced"],
        unit="largest change of the other words of item 0",
    )
)
@torch.no_grad()
def batch_influence(attention: SelfAttention) -> dict[str, float]:
    """Largest change in item 0 of a batch when the other items change, and when its own last word does."""
    generator = torch.Generator().manual_seed(0)
    x, other = torch.randn(2, 3, 7, attention.w_q.in_features, generator=generator)
    neighbours, own = x.clone(), x.clone()
    neighbours[1:] = other[1:]
    own[0, -1] = other[0, -1]
    before, by_neighbours, by_own = (attention(batch)[0][0, :-1] for batch in (x, neighbours, own))
    return {
        "all other items replaced": (by_neighbours - before).abs().max().item(),
        "its own last word replaced": (by_own - before).abs().max().item(),
    }


@measures(
    Claim(
        id="C176",
        text="Causal masking lets all positions of a sentence be trained in parallel",
        kind=IDENTITY,
        rule="outputs and gradients differ by less than 1e-9",
        holds=lambda n: max(n["outputs"], n["gradients"]) < 1e-9,
        unit="one masked pass against a pass for each prefix, largest difference, float64",
        control="a test has other masks, and none: they differ",
    )
)
def prefix_differences(reading: Reading, mask: Tensor | None) -> dict[str, float]:
    """One pass over the sentence against one pass for each prefix: largest difference of outputs and of gradients."""
    inputs = [tensor.clone().requires_grad_() for tensor in (reading.query, reading.key, reading.value)]
    together, _ = scaled_dot_product_attention(*inputs, mask)
    ends = range(1, len(reading.words) + 1)
    alone = torch.cat([scaled_dot_product_attention(*(x[:end] for x in inputs))[0][-1:] for end in ends])
    gradients = [torch.autograd.grad(outputs.square().sum(), inputs) for outputs in (together, alone)]
    change = max((a - b).abs().max().item() for a, b in zip(*gradients, strict=True))
    return {"outputs": (together - alone).abs().max().item(), "gradients": change}


def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    trained = load_single_head_model(options)
    (head,), held_out = read(trained, [long_words(options)]), read_held_out(trained)
    i = len(head.words) // 2
    found = sorted(zip(head.weights[i].tolist(), head.words, strict=True), reverse=True)
    print(f'\nOne head, {trained.label}, on "{" ".join(head.words)}"')
    print(f'   "{head.words[i]}" takes ' + ", ".join(f"{weight:.2f} of {word}" for weight, word in found[:6]) + ", ...")
    retrieved = rows_that_retrieve(held_out)
    findings.record(
        options,
        retrieved,
        gradients_that_arrive(head),
        pooling_errors(head),
        batch_influence(trained.model.cpu().blocks[0].attention),
        prefix_differences(head, causal_mask(len(head.words))),
    )
    share = retrieved["rows with more than 0.9 on one word"]
    return f"A soft one: {share:.1%} of the rows give one word more than 0.9, and every key gets a gradient"


if __name__ == "__main__":
    cli.run(main)
