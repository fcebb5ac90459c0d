"""Is [CLS], the token before every text, a hub of a published model?

all-MiniLM-L6-v2 has six layers of twelve heads (Wang et al. 2020); --model names another encoder.
Much of all weight goes to [CLS] and [SEP]. A hub would add much to who reads it; a head with
nothing to do puts its weight where it adds nothing (Clark et al. 2019). What arrives is the length
of weight times vector, a_ij ||(x_j W_V + b_V) W_O|| (Kobayashi et al. 2020). Needs the extra
"pretrained":

    python phase3_visualization/pretrained/hub.py --model FacebookAI/roberta-base
"""

import random

import torch
from torch import Tensor

from phase3_visualization.pretrained.language_model import (
    Reading,
    add_model,
    is_default,
    modules_of,
    read_texts,
    refuses,
    sentences_of,
    winograd_pairs,
)
from shared.claims import Claim, Numbers
from shared.experiment import Experiment, Run
from shared.head_statistics import value_lengths
from shared.published import LanguageModel, load_language_model

DRAWN, QUICK_DRAWN = 40, 8  # sentences, by the seed


def share_of(weights: Tensor, reading: Reading, keys: Tensor) -> float:
    """Returns the share of weights (B, L, H, T, T) that goes to some keys (B, T), in the mean.

    Queries are the sentence's own tokens: not padding, [CLS] and [SEP].
    """
    to_keys = (weights * keys[:, None, None, None]).sum(dim=-1)  # (B, L, H, T, T) -> (B, L, H, T)
    shares = to_keys / weights.sum(dim=-1)
    queries = (reading.real & ~reading.special)[:, None, None]  # (B, T) -> (B, 1, 1, T)
    by_head = (shares * queries).sum(dim=(0, 3)) / queries.sum()  # -> (L, H)
    return by_head.mean().item()


@torch.no_grad()
def hub_numbers(language_model: LanguageModel, reading: Reading) -> Numbers:
    """Returns the shares of [CLS] and [SEP], and the even share.

    ValueError, one line with a way out, for a model that is not built as a BERT is.
    """
    num_tokens = reading.real.sum(dim=1, keepdim=True)  # (B, 1)
    position = torch.arange(reading.real.size(1))
    ends = {"[CLS]": position == 0, "[SEP]": position == num_tokens - 1}
    layers = []
    for layer, attention in enumerate(modules_of(language_model)):
        layers.append(value_lengths(attention, reading.states[layer]))
    lengths = torch.stack(layers, dim=1)  # L x (B, H, T) -> (B, L, H, T)
    added = reading.weights * lengths[:, :, :, None]  # by each key: (B, L, H, T, T)
    numbers = {"even share": (1 / num_tokens.double()).mean().item()}
    for name, is_end in ends.items():
        keys = is_end & reading.special  # (B, T)
        numbers[f"{name}, share of the weight"] = share_of(reading.weights, reading, keys)
        numbers[f"{name}, share of what is added"] = share_of(added, reading, keys)
    return numbers


@refuses
def measure(run: Run) -> Numbers:
    """Returns shares of the weight in 40 of 80 sentences, drawn by the seed."""
    language_model = load_language_model(run.options.model)
    sentences = sentences_of(winograd_pairs())
    number = QUICK_DRAWN if run.options.quick else DRAWN
    drawn = random.Random(run.seed).sample(sentences, number)
    numbers = hub_numbers(language_model, read_texts(language_model, drawn))
    run.shown["model"] = language_model.name
    # A format string has no way to name a number with brackets.
    run.shown["gets"] = numbers["[CLS], share of the weight"]
    run.shown["adds"] = numbers["[CLS], share of what is added"]
    return numbers


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


main = Experiment(
    measure,
    [CLAIM],
    answer="[CLS] gets {shown[gets]:.0%} of all weight of {shown[model]}, and its share of what is "
    "added is {shown[adds]:.0%}",
    add_options=add_model,
    claims_apply=is_default,
)

if __name__ == "__main__":
    main.run()
