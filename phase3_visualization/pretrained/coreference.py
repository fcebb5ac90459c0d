"""Does a head of a language model know what "it" means?

A picture that is often shown: in "The animal didn't cross the street because it was too tired", one head draws a thick
line from "it" to "animal". One sentence cannot tell whether the head understood it or likes first nouns, or animals.
So the last word is exchanged, "wide" for "tired", and "it" means the street. A head that resolves "it" must now prefer
the other noun. That is asked in 40 such pairs (Winograd schemas, Levesque et al. 2012), in three steps:

    pairs, not sentences   most heads prefer the same noun in both members, and so are right in one: a habit. A head
                           that reads the meaning has more pairs with both members right than with both wrong.
    held out               the head is chosen on one half of the pairs, drawn by the seed, and scored on the other; then
                           the other way round. The best of 72 heads looks good on the pairs that chose it.
    permutation test       exchange the members of random pairs, so that no meaning is left, and take the best of all
                           heads again: how often is it as good as the real one?

    python phase3_visualization/pretrained/coreference.py

Needs pip install -e ".[pretrained]". Writes pretrained_coreference.png to visualizations/plots/phase3/. The answer is
about one model: all-MiniLM-L6-v2 is small, an encoder of six layers that was trained to compare sentences, and 39 of
the pairs are our own. Try a larger one with --model.
"""

import re
from dataclasses import dataclass

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from phase3_visualization.pretrained.language_model import (
    DEFAULT,
    LanguageModel,
    Reading,
    add_options,
    is_decoder,
    load,
    or_exit,
    read,
    record,
)
from shared import cli, paths
from shared.evidence.claims import EXPERIMENT, Claim, Numbers, measures
from shared.visualization_utils import BLUE, GREY, QUIET, RED, headline, save_plot

PERMUTATIONS = 2000
HALVES = 10  # ways to divide the pairs, for the picture


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


def tokens_of(reading: Reading, index: int, text: str, word: str) -> Tensor:
    """Which tokens of text `index` belong to a word, bool (T,): a rare word is several tokens."""
    found = [match.span() for match in re.finditer(rf"\b{word}\b", text)]
    if len(found) != 1:
        raise ValueError(f'"{word}" must stand exactly once in "{text}": found {len(found)} times; reword the pair')
    start, end = found[0]
    spans = reading.spans[index]  # (T, 2)
    return (spans[:, 0] < end) & (spans[:, 1] > start) & ~reading.special[index]


def weights_of_it(language_model: LanguageModel, pairs: tuple[Pair, ...]) -> Tensor:
    """Weight that "it" gives to the two nouns -> (pairs, member, L, H, noun); pieces of a noun are added up.

    ValueError for a decoder: "it" cannot look at the exchanged word, and does the same in both members.
    """
    texts = [pair.sentence(member) for pair in pairs for member in (0, 1)]
    reading, rows = read(language_model, texts), []
    if is_decoder(reading):
        raise ValueError(f'in a decoder "it" sees no later word: an encoder is needed, e.g. {DEFAULT}')
    for index, text in enumerate(texts):
        of_it = tokens_of(reading, index, text, "it")
        row = reading.weights[index][:, :, of_it].mean(dim=2)  # (L, H, T, T) -> (L, H, T)
        nouns = (tokens_of(reading, index, text, noun) for noun in pairs[index // 2].nouns)
        rows.append(torch.stack([row[..., noun].sum(dim=-1) for noun in nouns], dim=-1))  # (L, H, T) -> (L, H, 2)
    return torch.stack(rows).unflatten(0, (-1, 2))  # (2 * pairs, L, H, 2) -> (pairs, 2, L, H, 2)


def turns(weights: Tensor) -> tuple[Tensor, Tensor]:
    """What becomes of each head's preference from member 0 to member 1: (pairs, 2, L, H, 2) -> (pairs, L, H) twice.

    Both: 1 if it prefers the right noun in both members, -1 if the wrong one in both, else 0: the same noun, or a tie.
    Shift: how far the weight moves toward the right noun, below 0 if away from it.
    """
    preference = weights[..., 0] - weights[..., 1]  # of the first noun
    sign = preference.sign()
    return (sign[:, 0] - sign[:, 1]).div(2).trunc(), preference[:, 0] - preference[:, 1]


def best_head(both: Tensor, shift: Tensor) -> int:
    """The head with most pairs both right less both wrong; of equals, most shifts to the right noun: (pairs, heads)."""
    return int((both.sum(dim=0) + 1e-3 * (shift > 0).sum(dim=0)).argmax())


def permutation_p(both: Tensor, generator: torch.Generator) -> float:
    """How often the best of all heads is as good when the sign of each pair is drawn: both is (pairs, heads)."""
    real = both.sum(dim=0).max()
    signs = torch.randint(2, (PERMUTATIONS, len(both)), generator=generator).to(both) * 2 - 1
    by_chance = (signs @ both).amax(dim=-1)  # (PERMUTATIONS, pairs) @ (pairs, heads) -> (PERMUTATIONS,)
    return ((by_chance >= real).sum().item() + 1) / (PERMUTATIONS + 1)


def famous_head(weights: Tensor) -> tuple[int, int]:
    """The head that one would show: of the famous sentence, it prefers "animal" to "street" most."""
    preference = weights[0, 0, ..., 0] - weights[0, 0, ..., 1]  # (L, H)
    return divmod(int(preference.argmax()), preference.size(1))


PAIRS_ASKED, RIGHT, WRONG, SAME = "pairs", "both right", "both wrong", "the same noun in both"
COLORS = {RIGHT: BLUE, SAME: GREY, WRONG: RED}
MOVED, P = "weight moves to the right noun", "permutation p"
HABIT = {PAIRS_ASKED: 40, RIGHT: 0, WRONG: 0, P: 1.0}  # a head that always prefers the first noun
UNIT = "of 40 pairs that did not choose the head; all-MiniLM-L6-v2, a sentence encoder of 6 layers and 72 heads"


@measures(
    Claim(
        id="pretrained-coreference",
        text="A head of a language model resolves what a pronoun refers to",
        kind=EXPERIMENT,
        source="course notes, What is Self-Attention?, which sends 'it' to its noun; pairs as in Levesque et al. 2012",
        rule="the head chosen on one half of the pairs prefers the right noun in both members of more than half of the "
        "other half's pairs",
        holds=lambda n: n[RIGHT] > n[PAIRS_ASKED] / 2,
        oracle=HABIT | {RIGHT: 40, P: 0.001},
        null=HABIT,
        unit=UNIT,
        control="a fixed preference has no pair with both right, two coin flips have 10",
    ),
    Claim(
        id="pretrained-sensitivity",
        text='What "it" means moves the weight of some head of a language model',
        kind=EXPERIMENT,
        source="course notes, as above; the weaker reading of the same pairs",
        rule="the chosen head has more held-out pairs with both members right than with both wrong, and in less than "
        "5 % of permutations the best head is as good",
        holds=lambda n: n[RIGHT] > n[WRONG] and n[P] < 0.05,
        oracle=HABIT | {RIGHT: 40, P: 0.001},
        null=HABIT | {RIGHT: 2, WRONG: 2, P: 0.5},
        unit=UNIT,
        control="pairs with both wrong: as many, if the meaning does not matter",
    ),
)
def held_out(weights: Tensor, generator: torch.Generator) -> Numbers:
    """Choose a head on one random half of the pairs, score it on the other, exchange the halves, add up; and test."""
    both, shift = (turn.double().flatten(1) for turn in turns(weights))  # (pairs, L, H) -> (pairs, L * H)
    halves = torch.randperm(len(both), generator=generator).chunk(2)
    chosen = [best_head(both[half], shift[half]) for half in halves]
    scored = torch.cat([both[half, head] for half, head in zip(halves[::-1], chosen, strict=True)])
    moves = torch.cat([shift[half, head] for half, head in zip(halves[::-1], chosen, strict=True)])
    return {
        PAIRS_ASKED: len(both),
        RIGHT: int((scored > 0).sum()),
        WRONG: int((scored < 0).sum()),
        SAME: int((scored == 0).sum()),
        MOVED: int((moves > 0).sum()),
        P: permutation_p(both, generator),
        "chosen, layer": [head // weights.size(3) for head in chosen],
        "chosen, head": [head % weights.size(3) for head in chosen],
    }


def draw_pairs(ax: Axes, row: float, counts: dict[str, int]) -> dict[str, float]:
    """A dot for each pair, in two lines, a group for each outcome -> where each group begins."""
    starts, start = {}, 0.0
    for name, color in COLORS.items():
        dots = range(counts[name])
        ax.scatter([start + i // 2 for i in dots], [row + 0.15 * (-1) ** (i + 1) for i in dots], s=130, color=color)
        starts[name] = start
        start += (len(dots) + 1) // 2 + bool(dots)
    return starts


def draw(language_model: LanguageModel, numbers: Numbers, right: list[int]) -> tuple[Figure, str]:
    """What became of each pair: with the chosen heads, and for comparison with readers made up.

    right: in how many pairs both were right, with several divisions into halves.
    """
    pairs = numbers[PAIRS_ASKED]
    flips = {RIGHT: pairs // 4, SAME: pairs - 2 * (pairs // 4), WRONG: pairs // 4}
    made_up = {
        "a reader who\nresolves “it”": {RIGHT: pairs, SAME: 0, WRONG: 0},
        "always the first noun": {RIGHT: 0, SAME: pairs, WRONG: 0},
        "two coin flips": flips,
    }
    fig, ax = plt.subplots(figsize=(9, 4.6), layout="constrained")
    starts = draw_pairs(ax, 0, numbers)
    for name, start in starts.items():
        if numbers[name]:
            ax.text(start - 0.4, -0.45, f"{numbers[name]} {name}", color=COLORS[name], weight="bold", fontsize=11)
    for row, counts in enumerate(made_up.values()):
        draw_pairs(ax, row + 1.5, counts)
    ax.text(-0.4, 0.85, "for comparison", color=QUIET)
    ax.set_yticks([0, 1.5, 2.5, 3.5], ["the best head, on pairs\nthat did not choose it", *made_up])
    ax.set(xlim=(-0.8, pairs / 2 + 4), ylim=(3.9, -0.8), xticks=[])
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    title = "The best head for “it” mostly keeps to one noun, whatever “it” means"
    if numbers[SAME] <= pairs / 2:
        title = "The noun that the best head prefers mostly changes with what “it” means"
    example = FAMOUS.frame.replace("_", " / ".join(FAMOUS.words))
    spread = (
        f"the head is chosen on one half of the pairs; with other halves both are right in {min(right)} to {max(right)}"
    )
    headline(fig, title, f"{language_model.name} (pretrained) · {pairs} pairs such as “{example}”\n{spread}")
    return fig, f"{title}: {summary(numbers)}."


def summary(numbers: Numbers) -> str:
    right, wrong, pairs = (numbers[name] for name in (RIGHT, WRONG, PAIRS_ASKED))
    return f"“it” finds its noun in both sentences of {right} of {pairs} unseen pairs, in neither of {wrong}"


@cli.script
def main(argv: list[str] | None = None) -> str:
    parser = add_options(cli.parser(__doc__))
    options = cli.parse(parser, argv)
    language_model = or_exit(parser, load, options.model)
    weights = or_exit(parser, weights_of_it, language_model, PAIRS[:8] if options.quick else PAIRS)
    measured = [held_out(weights, torch.Generator().manual_seed(seed)) for seed in cli.seeds(options)]
    if options.pictures:
        others = [torch.Generator().manual_seed(seed) for seed in range(HALVES)]
        right = [numbers[RIGHT] for numbers in (held_out(weights, generator) for generator in others)]
        save_plot(options, "phase3/pretrained_coreference", *draw(language_model, measured[0], right))
    layer, head = famous_head(weights)
    for word, shares in zip(FAMOUS.words, weights[0, :, layer, head].tolist(), strict=True):
        line = ", ".join(f"{share:.2f} to {noun}" for noun, share in zip(FAMOUS.nouns, shares, strict=True))
        print(f'\n"... because it was too {word}": head {layer}.{head} gives {line}', end="")
    print(": one pair, an illustration")
    record(options, *measured)
    return summary(measured[0])


if __name__ == "__main__":
    cli.run(main)
