"""What would you bet on, and what does the record say?

Six wagers of the live page; their texts lie in page/texts.json. Each has a question about one
number of the record, data/evidence.csv, and answers that each stand for a band of it. The right
answer is the one whose band holds the values of all ten recorded trainings, and no other band does:
a test asks that. The interval of these values is drawn beside the answer: of that number, or of the
one that "decides". The last wager has no number: of three ways to run one model the right one has
no bug. What a wager "says" the page fills in while it runs, so its names stand in two braces.
"""

import argparse
import json
import math
import os
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch

from phase1_single_head.order.reverse_and_copy import SymbolMover
from phase1_single_head.parts.two_places import TwoPlaces
from phase2_multi_head.models import WITH_MASK_RECIPE
from phase3_visualization.explorer import examples, models
from shared import paths
from shared.toy_language import SPECIAL, VOCABULARY
from shared.training.objectives import corpus
from shared.training.recipes import Trained

PAGE_TEXTS = Path(__file__).parent / "page" / "texts.json"
NUM_EXAMPLES = 12  # of symbols and of letters, new to the models
NUM_WRITTEN, SHORT = 4, 7  # sentences, and their words at most
SETUP_NUMBERS = {  # what the texts may name beside the record
    "two_places_steps": models.TWO_PLACES_STEPS,
    "masked_steps": WITH_MASK_RECIPE.steps,
    "symbols": TwoPlaces.SYMBOLS,
    "letters": SymbolMover.LENGTH,
    "alphabet": SymbolMover.SYMBOLS,
    "tokens": len(VOCABULARY),
    "words": len(VOCABULARY) - len(SPECIAL),
    "marks": len(SPECIAL),
    "guess": math.log(len(VOCABULARY)),  # nats: what a guess among all tokens costs
}


class Interval(NamedTuple):
    """The least and the largest value of a number in ten trainings.

    In a text it reads "0.30 to 0.44", or as one number where both read alike. A share that is
    written as a percentage, such as :.0%, reads "30 to 44 %".
    """

    low: float
    high: float

    @property
    def odds(self) -> int:
        """Of losses in nats the least: the true word has one chance in so many, in thousands."""
        return int(math.exp(self.low)) // 1000 * 1000

    def __format__(self, written: str) -> str:
        low, high = format(self.low, written), format(self.high, written)
        text = low if low == high else f"{low} to {high}"
        if "%" not in text:
            return text
        return text.replace("%", "") + "\u00a0%"


def recorded_intervals(experiment: str) -> dict[str, Interval]:
    """Returns where each number of an experiment lies on the record, by name.

    Seed 0 is left out: its run, which every reader has, is none of the ten.
    """
    rows = pd.read_csv(paths.EVIDENCE)
    recorded = rows[(rows["experiment"] == experiment) & (rows["seed"] != 0)]
    numbers = recorded.groupby("number")["value"]
    ends = numbers.agg(["min", "max"])
    return {name: Interval(low, high) for name, low, high in ends.itertuples()}


def with_numbers(value: Any, names: dict) -> Any:
    """Returns a text with its numbers put in; lists and dictionaries item by item."""
    if isinstance(value, list):
        return [with_numbers(item, names) for item in value]
    if isinstance(value, dict):
        return {name: with_numbers(item, names) for name, item in value.items()}
    return value.format(**names) if isinstance(value, str) else value


def lesson_link(lesson: str) -> str:
    """Returns the address of a place in a lesson: "phase1_single_head/README.md#1-a-mean".

    A page that is published without the code leads to the repository, CODE_URL of the environment.
    """
    return f"{os.environ.get('CODE_URL', '..')}/{lesson}"


def wagers() -> list[dict]:
    """Returns all six in the order of the page, with the numbers of the record.

    interval: of the number that decides.
    """
    bets = []
    for text in json.loads(PAGE_TEXTS.read_text(encoding="utf-8"))["wagers"]:
        intervals = recorded_intervals(text["experiment"]) if "experiment" in text else {}
        wager = with_numbers(text, SETUP_NUMBERS | {"n": intervals})
        decides = wager.get("decides", wager)
        wager["interval"] = intervals.get(decides.get("number"))
        wager["lesson"] = lesson_link(wager["lesson"])
        bets.append(wager)
    return bets


def data(both_sides: Trained, options: argparse.Namespace) -> dict:
    """Returns what the page needs for its wagers: texts, examples, and the small models."""
    small, table = models.train_pairs(options)
    generator = torch.Generator().manual_seed(10**6 + options.seed)
    symbols = torch.randint(
        TwoPlaces.SYMBOLS, (NUM_EXAMPLES, TwoPlaces.LENGTH), generator=generator
    )
    letters = SymbolMover.test_strings(SymbolMover.LENGTH, NUM_EXAMPLES)
    short = [sentence.words for sentence in corpus()[1] if len(sentence.words) <= SHORT]
    examples_of = {
        "knockout": examples.knocked_out(both_sides),
        "future": {"sentences": short[:NUM_WRITTEN]},
        "backwards": {"rows": letters.tolist()},
        "undivided": {"rows": symbols.tolist(), "table": table.tolist()},
        "line": examples.with_gap(*examples.PRETTY_LINE),
        "bugs": {"words": examples.WORDS.split(), "others": examples.OTHERS.split()},
    }
    return {
        "list": [wager | {"example": examples_of[wager["name"]]} for wager in wagers()],
        "models": [models.small_record(name, model) for name, model in small.items()],
    }
