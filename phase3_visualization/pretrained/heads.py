"""What do the heads of a published model look at, and is [CLS] a hub?

all-MiniLM-L6-v2 has six layers of twelve heads (Wang et al. 2020); any other model goes by its name
or folder. Which heads give most of their weight to one place? Much of all weight goes to [CLS] and
[SEP]. A hub would add much to who reads it; a head with nothing to do puts its weight where it adds
nothing (Clark et al. 2019). What arrives is the length of weight times vector, a_ij ||(x_j W_V +
b_V) W_O|| (Kobayashi et al. 2020). Needs the extra "pretrained":

    python phase3_visualization/pretrained/heads.py --text "Time flies like an arrow" --model
    smollm2
"""

import argparse
import random

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor

from phase2_multi_head.multi_head_attention import split_heads
from phase3_visualization.pretrained.families import rebuilt_layers
from phase3_visualization.pretrained.language_model import (
    TEXT,
    LanguageModel,
    Reading,
    add_model,
    is_decoder,
    is_default,
    load,
    read,
    refuses,
    sentences,
    visible,
)
from shared import head_statistics
from shared.evidence.claims import Claim, Numbers
from shared.experiment import Experiment, Results, Run
from shared.head_statistics import OFFSETS, added_by_heads
from shared.visualization_utils import plot_attention

DRAWN, QUICK_DRAWN, DRAWN_HEADS = 40, 8, 3  # sentences, by the seed; heads


def role_scores(reading: Reading) -> dict[str, Tensor]:
    """Mean weight that a token gives to a fixed place -> name: (L, H); "last" is [SEP] in a BERT.

    A decoder sees no next token, and the last one is seen by itself alone: these two are left out.
    """
    weights = reading.weights.flatten(1, 2)  # (B, L, H, T, T) -> (B, L * H, T, T)
    mask = visible(reading).any(dim=1, keepdim=True)  # (B, L, T, T) -> (B, 1, T, T)
    scores = {
        name: head_statistics.offset_weight(weights, mask, offset)
        for name, offset in OFFSETS.items()
    }
    scores["first"] = head_statistics.first_weight(weights, mask)
    if is_decoder(reading):
        scores.pop("next")
    else:
        is_last = (
            torch.arange(reading.real.size(1)) == reading.real.sum(dim=1, keepdim=True) - 1
        )  # (B, T)
        gold = is_last[:, None, :] & reading.real[:, :, None]  # (B, 1, T) & (B, T, 1) -> (B, T, T)
        scores["last"] = head_statistics.relation_weight(weights, gold)
    return {
        name: score.unflatten(0, reading.weights.shape[1:3]) for name, score in scores.items()
    }  # (L * H,) -> (L, H)


@torch.no_grad()
def lengths(language_model: LanguageModel, reading: Reading) -> Tensor:
    """||f(x_j)|| of every head and token, (B, L, H, T): how long what it adds would be with a
    weight of 1.
    """
    norms = []
    for layer, x in zip(
        rebuilt_layers(language_model), reading.states, strict=False
    ):  # one state more than layers
        value = split_heads(
            layer.attention.w_v(x), layer.attention.num_heads
        )  # (B, T, d_model) -> (B, H, T, d_k)
        norms.append(
            added_by_heads(layer.attention, value).norm(dim=-1)
        )  # (B, H, T, d_model) -> (B, H, T)
    return torch.stack(norms, dim=1)  # L x (B, H, T) -> (B, L, H, T)


def share_of(weights: Tensor, reading: Reading, keys: Tensor) -> float:
    """Share of each row of weights (B, L, H, T, T) that goes to some keys (B, T), mean over rows
    and heads.

    Rows are those of the sentence's own tokens: padding, [CLS] and [SEP] do not ask.
    """
    to_keys = (weights * keys[:, None, None, None]).sum(dim=-1) / weights.sum(
        dim=-1
    )  # (..., T, T) -> (..., T)
    asks = (reading.real & ~reading.special)[:, None, None]  # (B, T) -> (B, 1, 1, T)
    return ((to_keys * asks).sum(dim=(0, 3)) / asks.sum()).mean().item()


def hub_numbers(language_model: LanguageModel, reading: Reading) -> Numbers:
    """[CLS] and [SEP]: their share of the weight and of what is added, and the even share; nothing
    without them.
    """
    number = reading.real.sum(dim=1, keepdim=True)  # (B, 1)
    position = torch.arange(reading.real.size(1))
    keys = {
        "[CLS]": (position == 0) & reading.special,
        "[SEP]": (position == number - 1) & reading.special,
    }
    if not all(places.any(dim=1).all() for places in keys.values()):
        return {}
    weighted = (
        reading.weights * lengths(language_model, reading)[:, :, :, None]
    )  # (B, L, H, T, T) * (B, L, H, 1, T)
    found = {"even share": (1 / number.double()).mean().item()}
    for name, places in keys.items():
        found[f"{name}, share of the weight"] = share_of(reading.weights, reading, places)
        found[f"{name}, share of what is added"] = share_of(weighted, reading, places)
    return found


@refuses
def measure(run: Run) -> Numbers:
    """Shares are means over all heads and 40 of 80 sentences, drawn by the seed; places with most
    weight: in --text.
    """
    language_model = load(run.options.model)
    reading = read(language_model, [run.options.text])
    drawn = random.Random(run.seed).sample(sentences(), QUICK_DRAWN if run.options.quick else DRAWN)
    run.shown |= {
        "reading": reading,
        "model": language_model.name,
        "tokens": " ".join(reading.tokens[0]),
    }
    found = hub_numbers(language_model, read(language_model, drawn))
    scores = role_scores(reading)
    largest = torch.stack(list(scores.values())).amax(dim=0)  # roles x (L, H) -> (L, H)
    named = {
        "heads with over half of their weight on one place": int((largest > 0.5).sum()),
        "heads": largest.numel(),
    }
    return found | named


CLAIM = Claim(
    id="C147",
    text="In all-MiniLM-L6-v2 (6 layers of 12 heads) weight on [CLS] is a way to do nothing: [CLS] gets far more than "
    "an even share of the weight, and adds far less than that",
    source="course notes; Clark et al. 2019, section 3.2, and Kobayashi et al. 2020, of BERT, where [SEP] gets it",
    rule="[CLS] gets at least twice the even share of the weight; its share of what is added, weight times length of "
    "the vector, is at most half of its share of the weight",
    effect=lambda n: n["[CLS], share of what is added"] / n["[CLS], share of the weight"],
    at_most=0.5,
    also=lambda n: n["[CLS], share of the weight"] >= 2 * n["even share"],
    oracle={"*, share of the weight": 0.5, "*, share of what is added": 0.0, "even share": 0.08},
    null={"*, share of*": 0.5, "even share": 0.08},
    revised="was asked of [SEP], too, to which this model gives no more than an even share",
)


def picture(results: Results) -> Figure:
    """The heads that give most to one place, on one text, each for another place."""
    reading: Reading = results.shown["reading"]
    weights, tokens, scores = reading.weights[0], reading.tokens[0], role_scores(reading)
    best = sorted(scores, key=lambda role: scores[role].max(), reverse=True)[:DRAWN_HEADS]
    said = {"first": tokens[0], "last": tokens[-1]}
    fig, axes = plt.subplots(1, len(best), figsize=(10, 4.6), layout="constrained")
    for role, ax in zip(best, axes, strict=True):
        layer, head = divmod(int(scores[role].argmax()), weights.size(1))
        plot_attention(weights[layer, head], tokens, ax=ax, annotate=False, labels=False)
        ax.set(xticks=[], xlabel=f"head {layer}.{head}")
        ax.set_title(
            f"{scores[role].max():.0%} on {said.get(role, f'the {role} token')}", fontsize=12, pad=8
        )
        ax.tick_params(labelleft=ax is axes[0], labelsize=9)
    return fig


def add_options(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument(
        "--text", default=TEXT, help=f'the sentence to look at, any words (default: "{TEXT}")'
    )


main = Experiment(
    measure,
    [CLAIM],
    picture,
    title="{n[heads with over half of their weight on one place]:.0f} of {n[heads]:.0f} heads of MiniLM look mostly at "
    "one place, whatever the token",
    note="{shown[model]}, pretrained\nqueries down, keys across, as many · for three places the strongest head",
    answer="{n[heads with over half of their weight on one place]:.0f} of {n[heads]:.0f} heads of {shown[model]} give "
    "most of their weight to one place",
    options=add_options,
    about=is_default,
)

if __name__ == "__main__":
    main.run()
