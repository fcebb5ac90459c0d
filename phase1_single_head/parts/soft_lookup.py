"""Attention as a lookup: a query, many keys, and behind each key a value. How far does the comparison carry?

A dictionary returns the one value whose key equals the query. Attention compares the query with all keys and returns a
weighted mean of all values; because nothing in it is a yes or a no, it can be learned. Run it to see what follows from
that, in a trained head that reads a sentence of ten words or more:

    python phase1_single_head/parts/soft_lookup.py
    python phase1_single_head/parts/soft_lookup.py --sentence "those dogs beside a barn often slept in a small soft bed"
"""

import argparse
import copy
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
from shared.evidence.findings import Finding
from shared.toy_language import tokenize
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
    model = copy.deepcopy(trained.model).cpu().double()
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


def pooling_errors(reading: Reading) -> tuple[float, float]:
    """How far one attention query comes from the mean of all values (zero query) and from the first value alone."""
    zero, picking = torch.zeros_like(reading.query[:1]), picking_query(reading.key, 0)
    mean, _ = scaled_dot_product_attention(zero, reading.key, reading.value)
    first, _ = scaled_dot_product_attention(picking, reading.key, reading.value)
    return (mean - reading.value.mean(dim=0)).abs().max().item(), (first - reading.value[0]).abs().max().item()


@torch.no_grad()
def batch_influence(attention: SelfAttention, length: int = 7) -> tuple[float, float]:
    """Largest change in item 0 of a batch when the other items change, and when its own last word does."""
    generator = torch.Generator().manual_seed(0)
    x, other = torch.randn(2, 3, length, attention.w_q.in_features, generator=generator)
    neighbours, own = x.clone(), x.clone()
    neighbours[1:] = other[1:]
    own[0, -1] = other[0, -1]
    before, by_neighbours, by_own = (attention(batch)[0][0, :-1] for batch in (x, neighbours, own))
    return (by_neighbours - before).abs().max().item(), (by_own - before).abs().max().item()


def prefix_differences(reading: Reading, mask: Tensor | None) -> tuple[float, float]:
    """One pass over the sentence against one pass for each prefix: largest difference of outputs and of gradients."""
    inputs = [tensor.clone().requires_grad_() for tensor in (reading.query, reading.key, reading.value)]
    together, _ = scaled_dot_product_attention(*inputs, mask)
    alone = torch.cat(
        [
            scaled_dot_product_attention(*(tensor[:end] for tensor in inputs))[0][-1:]
            for end in range(1, len(reading.words) + 1)
        ]
    )
    gradients = [torch.autograd.grad(outputs.square().sum(), inputs) for outputs in (together, alone)]
    change = max((a - b).abs().max().item() for a, b in zip(*gradients, strict=True))
    return (together - alone).abs().max().item(), change


def show_lookup(head: Reading, held_out: list[Reading]) -> None:
    i = len(head.words) // 2
    found = sorted(zip(head.weights[i].tolist(), head.words, strict=True), reverse=True)
    print("\n1. What is found: not one word, a mixture")
    print(f'   "{head.words[i]}" takes ' + ", ".join(f"{weight:.2f} of {word}" for weight, word in found[:6]) + ", ...")
    for sharper in (1, 10, 100):
        mean, share = share_found(held_out, sharper)
        print(f"   scores times {sharper:3}: largest weight {mean:.2f} on average, above 0.9 in {share:.0%} of rows")


def show_gradients(head: Reading) -> None:
    print("\n2. Because it is a mixture, it can be learned: lengths of the gradients, smallest to largest")
    for name, hard in (("attention", False), ("only the best key", True)):
        sizes = gradient_sizes(head, hard=hard)
        spans = ", ".join(f"{what} {size.min():.2f} to {size.max():.2f}" for what, size in sizes.items())
        print(f"   {name:17} {spans}")


def show_pooling(head: Reading) -> None:
    mean, first = pooling_errors(head)
    print("\n3. One query over a sentence makes a summary of it; the usual summaries are special cases")
    print(f"   the zero query scores all keys alike: the mean of the values, to {mean:.1g}")
    print(f"   a query that only the first key answers: the first value, as with [CLS], to {first:.1g}")


def show_independence(trained: Trained, head: Reading) -> tuple[dict[str, float], dict[str, float]]:
    """What the other items of a batch can change, and what the causal mask leaves of one pass for all prefixes."""
    others, own = batch_influence(trained.model.cpu().blocks[0].attention)
    output, gradient = prefix_differences(head, causal_mask(len(head.words)))
    print("\n4. Look-ups do not disturb each other")
    print(f"   item 0 of a batch: changes by {others:g} with all other items, by {own:.2f} with its own last word")
    print(f"   one causally masked pass against {len(head.words)} passes over prefixes: outputs differ by {output:.1g}")
    batch = {"all other items replaced": others, "its own last word replaced": own}
    return batch, {"outputs": output, "gradients": gradient}


def record_findings(trained: Trained, head: Reading, held_out: list[Reading], options: argparse.Namespace) -> None:
    mean_largest, share = share_found(held_out)
    soft, hard = gradient_sizes(head), gradient_sizes(head, hard=True)
    mean_error, first_error = pooling_errors(head)
    batch, prefixes = show_independence(trained, head)
    unmasked, _ = prefix_differences(head, None)
    findings.record(
        "phase1_single_head/parts/soft_lookup.py",
        [
            Finding(
                "C180",
                "Attention retrieves a document, as a search engine or a library does",
                "course notes",
                {"mean largest weight of a row": mean_largest, "rows with more than 0.9 on one word": share},
                f"weight; share of the rows of {len(held_out)} held-out sentences",
                "one word gets more than 0.9 in at least 0.9 of the rows",
                findings.verdict(share >= 0.9),
                control=f"with scores a hundred times as large: {share_found(held_out, 100)[1]:.2f} of the rows",
                seeds=[trained.recipe.seed],
            ),
            Finding(
                "C175",
                "Attention is a differentiable lookup of values by keys",
                "course notes",
                {f"smallest gradient, {name}": sizes.min().item() for name, sizes in soft.items()},
                "length of the gradient at one position",
                "every query, every key and every value gets a gradient longer than 1e-6",
                findings.verdict(min(sizes.min().item() for sizes in soft.values()) > 1e-6),
                control=f"a lookup of the best key alone: queries {hard['query'].max():g}, keys {hard['key'].max():g}",
                seeds=[trained.recipe.seed],
            ),
            Finding(
                "C170",
                "Pooling a sentence by attention is more flexible than its mean or its first token",
                "course notes",
                {"zero query, from the mean": mean_error, "query of one key, from the first value": first_error},
                "largest absolute difference, float64",
                "one query gives the mean, another the first value, both to 1e-9",
                **findings.conditional(
                    max(mean_error, first_error) < 1e-9,
                    mean_error < 1e-9,
                    "the mean is meant: to pick out any one of n words takes a d_k of n or more",
                ),
                control=f"mean and first value differ by {(head.value.mean(dim=0) - head.value[0]).abs().max():.2f}",
            ),
            Finding(
                "C163",
                "The items of a batch never interact",
                "course notes",
                batch,
                "largest change of the other words of item 0",
                "not a bit moves when the other items are replaced, and something does when its own word is",
                findings.verdict(batch["all other items replaced"] == 0.0 < 1e-3 < batch["its own last word replaced"]),
            ),
            Finding(
                "C176",
                "Causal masking lets all positions of a sentence be trained in parallel",
                "course notes",
                prefixes,
                f"one masked pass against {len(head.words)} passes over prefixes, largest difference, float64",
                "both below 1e-9",
                findings.verdict(max(prefixes.values()) < 1e-9),
                control=f"one pass without the mask: outputs differ by {unmasked:.2f}",
            ),
        ],
        options.output_dir,
    )


def main(argv: list[str] | None = None) -> None:
    options = cli.parse(cli.parser(__doc__), argv)
    trained = load_single_head_model(options)
    (head,), held_out = read(trained, [long_words(options)]), read_held_out(trained)
    print(f'\nOne head, {trained.label}, on "{" ".join(head.words)}"')
    show_lookup(head, held_out)
    show_gradients(head)
    show_pooling(head)
    record_findings(trained, head, held_out, options)


if __name__ == "__main__":
    cli.run(main)
