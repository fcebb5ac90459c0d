"""Does a head of a language model know what "it" means?

In "The animal didn't cross the street because it was too tired" one head draws a thick line from
"it" to "animal". It may have understood, or it likes first nouns. With "wide" for "tired", "it"
means the street: a head that resolves "it" must now prefer the other noun. That is asked of
all-MiniLM-L6-v2 in 40 such pairs (Winograd schemas, Levesque et al. 2012). The head is chosen on
one half of the pairs and scored on the other, then the other way round. The seed draws the halves,
and that is all: ten seeds are one model and the same pairs, no replication. Needs pip
install -e ".[pretrained]".

    python phase3_visualization/pretrained/coreference.py --model FacebookAI/roberta-base
"""

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor

from phase3_visualization.pretrained.language_model import (
    WinogradPair,
    add_model,
    is_decoder,
    is_default,
    read_texts,
    refuses,
    sentences_of,
    tokens_of,
    winograd_pairs,
)
from shared.claims import Claim, Numbers
from shared.experiment import Experiment, Results, Run
from shared.published import DEFAULT, LanguageModel, load_language_model
from shared.visualization_utils import BLUE, GREY, INK, RED, WIDE, readable

PERMUTATIONS = 2000
# Outcome of a pair -> what the picture calls it, and its colour.
OUTCOMES = {
    "both right": ("right in both", BLUE),
    "the same noun in both": ("the same noun in both", GREY),
    "both wrong": ("wrong in both", RED),
}


def weights_of_it(language_model: LanguageModel, pairs: list[WinogradPair]) -> Tensor:
    """Returns the weight that "it" gives to the two nouns -> (pairs, member, L, H, noun).

    The pieces of a noun are added up. ValueError for a decoder, where "it" cannot look at the
    exchanged word, and does the same in both members.
    """
    texts = sentences_of(pairs)
    reading = read_texts(language_model, texts)
    if is_decoder(reading):
        raise ValueError(
            f'in a decoder "it" sees no later word: an encoder is needed, e.g. {DEFAULT}'
        )
    rows = []
    for index, text in enumerate(texts):
        it = tokens_of(reading, index, text, "it")
        from_it = reading.weights[index][:, :, it].mean(dim=2)  # (L, H, T, T) -> (L, H, T)
        for noun in pairs[index // 2].nouns:
            pieces = tokens_of(reading, index, text, noun)
            rows.append(from_it[..., pieces].sum(dim=-1))  # (L, H, T) -> (L, H)
    by_member = torch.stack(rows).unflatten(0, (-1, 2, 2))  # -> (pairs, member, noun, L, H)
    return by_member.movedim(2, -1)


def turns(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Returns 1 if a head prefers the right noun in both members, -1 if the wrong one, else 0.

    And how far its weight moves to the right noun: (pairs, 2, L, H, 2) -> (pairs, L, H) twice.
    """
    preference = weights[..., 0] - weights[..., 1]  # of the first noun
    sign = preference.sign()
    both = ((sign[:, 0] - sign[:, 1]) / 2).trunc()
    return both, preference[:, 0] - preference[:, 1]


def choose_head(both: Tensor, shift: Tensor) -> int:
    """Returns the head with most pairs both right less both wrong, (pairs, heads).

    Of equals the one that shifts to the right noun most often.
    """
    right_shifts = (shift > 0).sum(dim=0)  # (pairs, heads) -> (heads,)
    return int((both.sum(dim=0) + 1e-3 * right_shifts).argmax())


def permutation_p(both: Tensor, generator: torch.Generator) -> float:
    """Returns how often the best of all heads is as good by chance, (pairs, heads).

    By chance: the members of random pairs are exchanged.
    """
    real = both.sum(dim=0).max()
    signs = torch.randint(2, (PERMUTATIONS, len(both)), generator=generator).to(both) * 2 - 1
    by_chance = (signs @ both).amax(dim=-1)  # (PERMUTATIONS, heads) -> (PERMUTATIONS,)
    as_good = (by_chance >= real).sum().item()
    return (as_good + 1) / (PERMUTATIONS + 1)


def scored_on_other_half(weights: Tensor, generator: torch.Generator) -> Numbers:
    """Chooses a head on one random half of the pairs, scores it on the other, and the reverse."""
    both, shift = turns(weights.flatten(2, 3))  # (pairs, 2, L, H, 2) -> (pairs, L * H)
    both = both.double()
    halves = torch.randperm(len(both), generator=generator).chunk(2)
    scored, moves = [], []
    for choosing, scoring in (halves, halves[::-1]):
        head = choose_head(both[choosing], shift[choosing])
        scored += both[scoring, head].tolist()
        moves += shift[scoring, head].tolist()
    return {
        "pairs": len(both),
        "both right": scored.count(1),
        "both wrong": scored.count(-1),
        "the same noun in both": scored.count(0),
        "weight moves to the right noun": sum(move > 0 for move in moves),
        "permutation p": permutation_p(both, generator),
    }


@refuses
def measure(run: Run) -> Numbers:
    """Returns, of 40 pairs, those that a head gets right which was chosen on other pairs.

    Two coin flips have both right in 10 of 40, a habit in none.
    """
    language_model = load_language_model(run.options.model)
    run.shown["model"] = language_model.name
    pairs = winograd_pairs()[: 8 if run.options.quick else None]
    weights = weights_of_it(language_model, pairs)
    return scored_on_other_half(weights, torch.Generator().manual_seed(run.seed))


CLAIM = Claim(
    id="pretrained-coreference",
    text="A head that is to find what “it” means prefers the same noun in most pairs of "
    "sentences, whatever “it” means. Coin flips would do so in half of the pairs. Still, it hardly "
    "ever gets “it” wrong in both sentences of a pair, as coin flips would in a quarter of them. "
    "We asked it of all-MiniLM-L6-v2, a sentence encoder of 23 million numbers (6 layers of 12 "
    "heads). Each half of the pairs chooses a head for the other half, mostly not the same one. "
    "This is one model and one set of 40 pairs: a seed only draws the halves.",
    source="course notes, in “What is Self-Attention?”, where “it” finds its noun; the pairs are "
    "made as in Levesque et al. 2012. We did not measure that a head of BERT picks the right "
    "antecedent of 65 % of mentions (Clark et al. 2019, section 4.3)",
    rule="on the pairs that did not choose the head, both sentences are right in at least a tenth "
    "of the pairs more than both are wrong, and the same noun is preferred in more than half; and "
    "if, with the sentences of pairs exchanged at random, the best of all heads is as good in at "
    "most 5 of 100 draws. The seed draws which half of the pairs chooses the head",
    effect=lambda n: (n["both right"] - n["both wrong"]) / n["pairs"],
    at_least=0.1,
    also=lambda n: n["the same noun in both"] > n["pairs"] / 2 and n["permutation p"] <= 0.05,
    explored=10,
    draws=True,
    oracle={
        "pairs": 40,
        "both right": 12,
        "both wrong": 1,
        "the same noun in both": 27,
        "permutation p": 0.001,
    },
    null={
        "pairs": 40,
        "both right": 1,
        "both wrong": 1,
        "the same noun in both": 38,
        "permutation p": 0.5,
    },
    revised="at first the rule asked for both right in more than half of the pairs, which no seed "
    "gave",
)


def picture(results: Results) -> Figure:
    """Draws a dot for each pair, a row for each outcome, and how many coin flips would give."""
    numbers = results.measured[0]
    fig, ax = plt.subplots(figsize=(WIDE, 3.2), layout="constrained")
    for row, (outcome, (name, color)) in enumerate(OUTCOMES.items()):
        number = round(numbers[outcome])
        ax.scatter(range(number), [row] * number, s=64, color=color)
        flips = numbers["pairs"] / (2 if outcome == "the same noun in both" else 4)
        ax.plot([flips - 0.5] * 2, [row - 0.25, row + 0.25], color=INK, linewidth=2)
        style = {"weight": "bold", "fontsize": 11, "color": readable(color)}
        ax.text(-0.4, row - 0.3, f"{number} {name}", **style)
        if row == 0:
            ax.text(flips - 0.1, row - 0.3, "coin flips")
    ax.set(xlim=(-0.8, numbers["pairs"] * 0.75), ylim=(len(OUTCOMES) - 0.5, -0.7))
    ax.axis("off")
    return fig


main = Experiment(
    measure,
    [CLAIM],
    picture,
    title="The chosen heads of MiniLM mostly pick\nthe same noun, whatever “it” means",
    note="a dot: a pair of sentences, “because it was too tired / wide”\n"
    "{shown[model]}, pretrained",
    answer="In {n[both right]:.0f} of {n[pairs]:.0f} unseen pairs it does: the head prefers the "
    "right noun in both sentences. In {n[the same noun in both]:.0f} it prefers the same noun, "
    "whatever “it” means",
    add_options=add_model,
    claims_apply=is_default,
)

if __name__ == "__main__":
    main.run()
