"""What would you bet on, and what does the record say?

Six wagers of the explorer. Each has a question about one number of data/evidence.json, and answers that each stand for
a band of it. The right answer is not written down: it is the one whose band holds the whole published range, of all
seeds and all kinds of processors. Where no single band does, there is no question, and the page is not written.

The last wager has no number: of three ways to run one model the right one is the one without a bug.
"""

import argparse
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from phase3_visualization.explorer import wager_examples, wager_models
from shared.evidence import replications
from shared.evidence.report.links import HOME
from shared.evidence.report.rendering import place
from shared.tasks import SymbolMover, TwoPlaces
from shared.toy_language import SPECIAL, VOCABULARY
from shared.training import Trained

GUESS = math.log(len(VOCABULARY))  # nats: what a guess among all tokens costs
BETWEEN = "between {} and {}"
ROWS = 12  # of symbols and of letters, new to the models
WAYS = {"A": "view", "B": None, "C": "mask"}  # to run one model: the planted bug, or None


@dataclass(frozen=True)
class Choice:
    """An answer: it is right if the number lies between low and high."""

    text: str
    low: float
    high: float


@dataclass(frozen=True)
class Wager:
    """A question about one number of one claim on record, and all that is said before and after the answer."""

    title: str
    claim: str
    number: str
    setup: str
    question: str
    choices: tuple[Choice, ...]
    answer: str
    why: str
    lesson: str  # a page, and the place in it
    detail: str = ""  # the conditions under which it is measured, where the setup would grow long


def measured(claim: str, number: str) -> tuple[float, float]:
    """The least and the largest value on record."""
    blocks = [block.findings[claim] for block in replications.read() if claim in block.findings]
    span = replications.Published("", blocks, 0, 0).range(number)
    if span is None:
        raise ValueError(f"the record has no {number!r} of {claim}: run ./run_all.sh replicate")
    return span


def said(claim: str, number: str, written: str = "{:.0%}", between: str = "{} to {}") -> str:
    """The range in words: "30 % to 44 %", or one number if both ends read alike."""
    low, high = (written.format(value).replace("%", " %") for value in measured(claim, number))
    return low if low == high else between.format(low, high)


def runs_of(claim: str) -> str:
    """How often the record measured a claim."""
    blocks = [block for block in replications.read() if claim in block.findings]
    runs = sum(len(block.seeds) for block in blocks)
    return f"{runs} runs, {len({block.processor for block in blocks})} kinds of processors"


def right_choice(wager: Wager) -> int:
    """The only choice whose band holds the published range."""
    low, high = measured(wager.claim, wager.number)
    fit = [i for i, choice in enumerate(wager.choices) if choice.low <= low and high <= choice.high]
    if len(fit) != 1:
        raise ValueError(f"{wager.title}: {len(fit)} answers fit the record, {low:g} to {high:g}; one must")
    return fit[0]


def wagers() -> tuple[Wager, ...]:
    """The five that are about a number, in the order of the page."""
    other = measured("C101", "trained with the mask, one layer, word by word")[1]
    return (
        Wager(
            "Without √d_k",
            "C010",
            "not divided, 64",
            "A model reads a row of symbols. What it must say at each place depends on the symbols one and three "
            "places before. Its one head has d_k = 64, so its scores are divided by √64 = 8. A second model starts "
            f"with the same numbers and reads the same rows for the same "
            f"{wager_models.TWO_PLACES_STEPS} steps, but its scores are not divided.",
            "At how many of the places is the second model right in the end?",
            (
                Choice("More than half: it learns to keep its scores small", 0.5, 1.0),
                Choice("A quarter to a half", 0.25, 0.5),
                Choice(
                    f"Less than a quarter: hardly better than chance, 1\u00a0in\u00a0{TwoPlaces.SYMBOLS}", 0.0, 0.25
                ),
            ),
            f"It is right at {said('C010', 'not divided, 64')} of the places, the divided one at "
            f"{said('C010', 'divided, 64')}",
            "Undivided, a score starts eight times as large and moves eight times as far with each step, so softmax "
            "puts nearly all weight on one place where two are needed.",
            "phase1_single_head/README.md#5-why-divide-by-d_k",
        ),
        Wager(
            "Nobody hides the future",
            "C101",
            "trained without, one layer, word by word",
            "Two models learn to guess the next word: same start, same sentences, "
            f"{wager_models.MASKED.steps} steps. One has the causal mask. The other has none: in training the next "
            "word lies in plain sight. Its loss ends "
            f"{said('C101', 'trained without, one layer, in training', '{:.4f}', BETWEEN)} nats a word (nats: −ln of "
            "the probability of the true word). The loss with the mask ends "
            f"{said('C101', 'trained with the mask, one layer, in training', '{:.2f}', BETWEEN)}.",
            "Now only the past is there to read, as in writing. What does the model without the mask lose on each word "
            "of new sentences?",
            (
                Choice("Less than the other: it has learned the sentences better", 0.0, other),
                Choice(
                    f"More, but less than {GUESS:.1f}: a blind guess among {len(VOCABULARY)} tokens, "
                    f"{len(VOCABULARY) - len(SPECIAL)} words and {len(SPECIAL)} marks",
                    other,
                    GUESS,
                ),
                Choice(f"More than {GUESS:.1f}: a blind guess would be better", GUESS, math.inf),
            ),
            f"It loses {said('C101', 'trained without, one layer, word by word', '{:.1f}')} nats a word, the one with "
            f"the mask {said('C101', 'trained with the mask, one layer, word by word', '{:.1f}')}",
            "It learned to copy its neighbour on the right, and when it writes there is none.",
            "phase4_causal/README.md#3-what-looks-best-in-training",
        ),
        Wager(
            "A head is knocked out",
            "pruning-share",
            "toy language, heads that can each go",
            "The model of this page guesses hidden words with eight heads. In models far larger than this one a fifth "
            "of the heads and more could be taken out with hardly a loss (Michel et al. 2019). A head can go if we are "
            "95 % sure that the loss rises by less than 0.01 without it.",
            "How many of the eight heads can each go?",
            (
                Choice("None", 0, 0),
                Choice("One or two", 1, 2),
                Choice("Three to five", 3, 5),
                Choice("Six or more", 6, 8),
            ),
            "None, in any run: without the head that is needed least the 95 % interval of the rise ends "
            f"{said('pruning-share', 'toy language, cheapest head costs at most', '{:.3f}', BETWEEN)}",
            "In this small model each head carries some of the work. Even with only two look-ups to do, "
            f"{said('pruning-share', 'two look-ups, model 1, heads that can each go', '{:.0f}')} of eight could go.",
            "phase2_multi_head/pruning/README.md#which-heads-can-go",
        ),
        Wager(
            "The order is taken away",
            "rotary-longer",
            "none, reverse",
            f"Two models learn to say {SymbolMover.LENGTH} letters backwards, drawn at random from "
            f"{SymbolMover.SYMBOLS}. Both see all letters at once. One is also told at which place each letter stands; "
            "the other is not.",
            "How often does the other one say the right letter?",
            (
                Choice("Nearly always: it sees every letter", 0.9, 1.0),
                Choice("About one time in four: it knows which letters there are, not where", 0.2, 0.3),
                Choice(f"One time in ten: it guesses among all {SymbolMover.SYMBOLS} letters", 0.05, 0.15),
            ),
            f"It is right at {said('rotary-longer', 'none, reverse')} of the places, the one with positions at "
            f"{said('rotary-longer', 'sinusoidal, reverse')}; to name the most frequent letter of the string each "
            f"time is right at {said('rotary-longer', 'the most frequent symbol')}",
            "Without places neither the weights nor the mean know the order; the best bet is the most frequent letter.",
            "phase1_single_head/README.md#6-where-is-the-order",
        ),
        Wager(
            "The pretty line",
            "faithful-weights",
            "raw weights, found",
            "A word is hidden, and the model of this page guesses it. A line is as thick as the weight. Hide one word "
            "more: the guess loses most by one of them. Does the thickest line go to it?",
            "In how many sentences does it?",
            (
                Choice("In nearly all, more than 90 %", 0.9, 1.0),
                Choice("In 60 to 90 %", 0.6, 0.9),
                Choice("In about 4 of 10, as many as the nearest word gets right", 0.35, 0.5),
                Choice("In about 1 of 6, as by chance", 0.1, 0.2),
            ),
            f"In {said('faithful-weights', 'raw weights, found')}; the nearest word is it in "
            f"{said('faithful-weights', 'nearest word, found')}",
            "A weight says how much of a word is fetched, not what the guess would be without it.",
            "phase3_visualization/README.md#5-the-word-that-mattered",
            "The weights are those of the last layer, the mean of its heads. Asked are sentences in which the model "
            "loses most by the same word as a perfect reader of the grammar. The lines look right: in "
            f"{said('faithful-weights', 'raw weights, plausible')} of all sentences the thickest one goes to a word "
            "that the grammar ties to the hidden one.",
        ),
    )


def lesson_link(lesson: str) -> str:
    """Where a page of the course lies once it is rendered, as seen from the explorer; with its anchor."""
    source, anchor = lesson.split("#")
    return f"{place(Path(source)).relative_to(HOME).as_posix()}#{anchor}"


def unbroken(text: str) -> str:
    """With a per cent sign that stays beside its number."""
    return text.replace(" %", "\u00a0%")


def as_data(wager: Wager, example: dict[str, Any]) -> dict[str, Any]:
    """A wager as the page gets it."""
    return {
        "title": wager.title,
        "setup": unbroken(wager.setup),
        "detail": unbroken(wager.detail),
        "question": wager.question,
        "choices": [unbroken(choice.text) for choice in wager.choices],
        "right": right_choice(wager),
        "answer": unbroken(f"{wager.answer} ({runs_of(wager.claim)})."),
        "why": wager.why,
        "lesson": lesson_link(wager.lesson),
        "example": example,
    }


def find_the_bug(causal: Trained) -> dict[str, Any]:
    """The sixth: three ways to run one model."""
    letter = {bug: name for name, bug in WAYS.items()}
    return {
        "title": "Find the bug",
        "setup": "Three programs run the causal model of this page: the same weights, the same shapes, no error "
        "message. Two have a bug. Choose a word, and another one takes its place: how far does that move the guess at "
        "each place? Under a causal mask a place reads itself and all places before it.",
        "detail": "",
        "question": "Which program is right?",
        "choices": list(WAYS),
        "right": list(WAYS).index(letter[None]),
        "answer": f"{letter[None]}. A changed word must move its own place and those after it, and none before. "
        f"{letter['mask']} moves earlier places: its mask is the wrong way round. In {letter['view']} some later "
        "places stay still: its heads hold pieces of other words.",
        "why": "No shape tells, a changed word does. So every causal module and function of this course is tested.",
        "lesson": lesson_link("phase2_multi_head/README.md#4-wrong-and-no-shape-shows-it"),
        "example": wager_examples.one_word_changed(causal) | {"ways": list(WAYS.values())},
    }


def data(both_sides: Trained, causal: Trained, options: argparse.Namespace) -> dict[str, Any]:
    """All that the page needs for its wagers: what they say, their examples, and six small models."""
    trained = wager_models.train(options)
    generator = torch.Generator().manual_seed(10**6 + options.seed)
    symbols = torch.randint(TwoPlaces.SYMBOLS, (ROWS, TwoPlaces.LENGTH), generator=generator)
    examples = (
        {"rows": symbols.tolist(), "table": trained.table.tolist()},
        {"sentences": wager_examples.to_be_written()},
        wager_examples.hidden_verb(both_sides),
        {"rows": SymbolMover.test_strings(SymbolMover.LENGTH)[:ROWS].tolist()},
        wager_examples.pretty_line(both_sides),
    )
    return {
        "list": [*map(as_data, wagers(), examples), find_the_bug(causal)],
        "models": [wager_models.record(name, model) for name, model in trained.models.items()],
    }
