"""Are [CLS] and [SEP] a hub of information, or a place to do nothing?

Both get much attention. Two readings of the same heatmap: the token gathers what the sentence says, so everybody reads
it; or a head that finds nothing to do puts its weight where it adds nothing (Clark et al. 2019). The weight alone
cannot tell. What counts is what arrives, the length of weight times vector (Kobayashi et al. 2020):

    a_ij ||f(x_j)||,    f(x_j) = (x_j W_V + b_V) W_O    for one head

If the vector of [SEP] is short, a weight of 0.8 on it moves little: its share of what is added is far below its share
of the weight.

    python phase3_visualization/pretrained/hub_or_no_op.py

Needs pip install -e ".[pretrained]", and a model with such tokens. What [CLS] and [SEP] add is the same for every
reader of a sentence, so even a long vector need not say anything about the sentence: shares are not yet information.
"""

import random

import torch
from torch import Tensor

from phase2_multi_head.multi_head_attention import split_heads
from phase3_visualization.pretrained.coreference import sentences
from phase3_visualization.pretrained.language_model import (
    LanguageModel,
    Reading,
    add_options,
    load,
    or_exit,
    read,
    record,
)
from phase3_visualization.pretrained.parity import PreNormLayer, rebuilt_layers
from shared import cli
from shared.evidence.claims import EXPERIMENT, Claim, measures
from shared.head_statistics import added_by_heads

FIRST, LAST = "[CLS]", "[SEP]"
DRAWN, QUICK_DRAWN = 40, 8  # sentences, by the seed
OF_WEIGHT, OF_ADDED, EVEN = "share of the weight", "share of what is added", "even share"


@torch.no_grad()
def lengths(language_model: LanguageModel, reading: Reading) -> Tensor:
    """||f(x_j)|| of every head and token, (B, L, H, T): how long what it adds would be with a weight of 1."""
    norms = []
    for layer, x in zip(rebuilt_layers(language_model), reading.states, strict=False):  # one state more than layers
        x = layer.attention_norm(x) if isinstance(layer, PreNormLayer) else x  # what the attention reads
        value = split_heads(layer.attention.w_v(x), layer.attention.num_heads)  # (B, T, d_model) -> (B, H, T, d_k)
        norms.append(added_by_heads(layer.attention, value).norm(dim=-1))  # (B, H, T, d_model) -> (B, H, T)
    return torch.stack(norms, dim=1)  # L x (B, H, T) -> (B, L, H, T)


def share_of(weights: Tensor, reading: Reading, keys: Tensor) -> Tensor:
    """Share of each row of weights (B, L, H, T, T) that goes to some keys (B, T), mean over rows -> (L, H).

    Rows are those of the sentence's own tokens: padding, [CLS] and [SEP] do not ask.
    """
    to_keys = (weights * keys[:, None, None, None]).sum(dim=-1) / weights.sum(dim=-1)  # (..., T, T) -> (..., T)
    asks = (reading.real & ~reading.special)[:, None, None]  # (B, T) -> (B, 1, 1, T)
    return (to_keys * asks).sum(dim=(0, 3)) / asks.sum()


def measure(language_model: LanguageModel, reading: Reading) -> dict[str, dict[str, Tensor]]:
    """Token -> its share of the weight, of what is added, each (L, H), and the even share."""
    weighted = reading.weights * lengths(language_model, reading)[:, :, :, None]  # (B, L, H, T, T) * (B, L, H, 1, T)
    number = reading.real.sum(dim=1, keepdim=True)  # (B, 1)
    position = torch.arange(reading.real.size(1))
    result = {}
    for name, keys in ((FIRST, position == 0), (LAST, position == number - 1)):
        keys = keys.expand(reading.real.shape) & reading.special
        if not keys.any(dim=1).all():
            raise ValueError(f"this experiment needs a model with tokens such as [CLS] and [SEP]: {name} is missing")
        result[name] = {"weight": share_of(reading.weights, reading, keys), "added": share_of(weighted, reading, keys)}
        result[name]["even"] = (1 / number.double()).mean()
    return result


def no_op(numbers: dict[str, float]) -> bool:
    """Some token gets twice the even share of the weight or more, and each that does adds half of its share or less."""
    heavy = [token for token in (FIRST, LAST) if numbers[f"{token}, {OF_WEIGHT}"] >= 2 * numbers[EVEN]]
    return bool(heavy) and all(numbers[f"{t}, {OF_ADDED}"] <= numbers[f"{t}, {OF_WEIGHT}"] / 2 for t in heavy)


def as_numbers(weight: float, added: float) -> dict[str, float]:
    """Numbers of both tokens alike, beside an even share of 0.08: for the two worlds that the rule must tell apart."""
    return {f"{token}, {share}": x for token in (FIRST, LAST) for share, x in ((OF_WEIGHT, weight), (OF_ADDED, added))}


@measures(
    Claim(
        id="C147",
        text="Weight on [CLS] and [SEP] is a way to do nothing, and not a hub that everybody reads",
        kind=EXPERIMENT,
        source="course notes; Clark et al. 2019, section 3.2; Kobayashi et al. 2020",
        rule="one of the two or both get at least twice the even share of the weight, and the share of what these add, "
        "weight times length of the vector, is at most half of their share of the weight",
        holds=no_op,
        oracle=as_numbers(weight=0.5, added=0.0) | {EVEN: 0.08},
        null=as_numbers(weight=0.5, added=0.5) | {EVEN: 0.08},
        unit=f"mean over all heads and {DRAWN} of 80 sentences, rows of the sentence's own tokens, all-MiniLM-L6-v2",
    )
)
def mean_shares(shares: dict[str, dict[str, Tensor]]) -> dict[str, float]:
    """Token -> its share of the weight and of what is added, mean over heads; and the even share."""
    parts = {OF_WEIGHT: "weight", OF_ADDED: "added"}
    means = {f"{token}, {text}": shares[token][key].mean().item() for token in shares for text, key in parts.items()}
    return means | {EVEN: shares[FIRST]["even"].item()}


def show(shares: dict[str, dict[str, Tensor]]) -> None:
    print("\nMean over heads: share of the weight → share of what is added")
    for layer in range(len(shares[FIRST]["weight"])):
        means = (
            f"{name} {x['weight'][layer].mean():.2f} → {x['added'][layer].mean():.2f}" for name, x in shares.items()
        )
        print(f"   layer {layer}   " + "   ".join(means))


@cli.script
def main(argv: list[str] | None = None) -> str:
    parser = add_options(cli.parser(__doc__))
    options = cli.parse(parser, argv)
    language_model = or_exit(parser, load, options.model)
    measured = []
    for seed in cli.seeds(options):
        drawn = random.Random(seed).sample(sentences(), QUICK_DRAWN if options.quick else DRAWN)
        shares = or_exit(parser, measure, language_model, read(language_model, drawn))
        if not measured:
            show(shares)
        measured.append(mean_shares(shares))
    record(options, *measured)
    weight, added = (measured[0][f"{FIRST}, {share}"] for share in (OF_WEIGHT, OF_ADDED))
    return f"{FIRST} gets {weight:.2f} of the weight and adds {added:.2f} of what is added"


if __name__ == "__main__":
    cli.run(main)
