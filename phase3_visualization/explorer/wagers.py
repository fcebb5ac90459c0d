"""What would you bet on, and what does the record say?

Six wagers of the explorer; their texts lie in page/texts.json. Each has a question about one number
of the record, data/evidence.csv, and answers that each stand for a band of it. The right answer is
not written down: it is the one whose band holds the whole interval in which a new seed falls. Where
no single band does, there is no question, and the page is not written. The interval itself is drawn
beside the answer: of that number, or of the one that "decides". The last wager has no number: of
three ways to run one model the right one has no bug. What a wager "says" the page fills in while it
runs, so its names stand in two braces.
"""

import argparse
import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import torch

from phase1_single_head.order.reverse_and_copy import SymbolMover
from phase1_single_head.parts.two_places import TwoPlaces
from phase3_visualization.explorer import examples, models
from shared.lab import findings, record
from shared.paths import HOME, place
from shared.toy_language import SPECIAL, VOCABULARY
from shared.training.recipes import Trained

PAGE_TEXTS = Path(__file__).parent / "page" / "texts.json"
NUM_EXAMPLES = 12  # of symbols and of letters, new to the models
NUM_WRITTEN = 4  # sentences
SETUP_NUMBERS = {  # what the texts may name beside the record
    "two_places_steps": models.TWO_PLACES_STEPS,
    "masked_steps": models.MASKED.steps,
    "symbols": TwoPlaces.SYMBOLS,
    "letters": SymbolMover.LENGTH,
    "alphabet": SymbolMover.SYMBOLS,
    "tokens": len(VOCABULARY),
    "words": len(VOCABULARY) - len(SPECIAL),
    "marks": len(SPECIAL),
    "guess": math.log(len(VOCABULARY)),  # nats: what a guess among all tokens costs
}


class Span(NamedTuple):
    """Where the next seed falls. In a text it reads "0.30 to 0.44", or as one number.

    A share that is written as a percentage, such as :.0%, reads "30 to 44 %".
    """

    low: float
    high: float

    def __format__(self, written: str) -> str:
        if written.endswith("%"):
            digits = written.replace("%", "f")
            shares = findings.between(self, lambda share: format(100 * share, digits))
            return f"{shares}\u00a0%"
        return findings.between(self, lambda value: format(value, written))


def recorded_spans(experiment: str) -> dict[str, Span]:
    """Returns where each number of an experiment falls, by name."""
    spans = {}
    for name in record.runs(experiment)[0]:
        spans[name] = Span(*record.interval(experiment, name))
    return spans


def with_numbers(value: Any, names: dict) -> Any:
    """Returns a text with its numbers put in; lists and dictionaries item by item."""
    if isinstance(value, list):
        return [with_numbers(item, names) for item in value]
    if isinstance(value, dict):
        return {name: with_numbers(item, names) for name, item in value.items()}
    return value.format(**names) if isinstance(value, str) else value


def right_choice(wager: dict, spans: dict[str, Span]) -> int:
    """Returns the only choice whose band holds the interval of the record.

    Of several ways to run a model it is the one without a bug. Raises ValueError if it is not one.
    """
    if "ways" in wager:
        return wager["ways"].index(None)
    span = spans[wager["number"]]
    fit = []
    for choice, (low, high) in enumerate(wager["bands"]):
        if float(low) <= span.low and span.high <= float(high):
            fit.append(choice)
    if len(fit) != 1:
        raise ValueError(f"{wager['title']}: {len(fit)} answers fit the record, {span:g}; one must")
    return fit[0]


def lesson_link(lesson: str) -> str:
    """Returns the address of a page of the course, with its anchor, as seen from the explorer."""
    source, anchor = lesson.split("#")
    return f"{place(Path(source)).relative_to(HOME).as_posix()}#{anchor}"


def wagers() -> list[dict]:
    """Returns all six in the order of the page, with the numbers of the record.

    span: of the number that decides.
    """
    told = []
    for text in json.loads(PAGE_TEXTS.read_text(encoding="utf-8"))["wagers"]:
        spans = recorded_spans(text["experiment"]) if "experiment" in text else {}
        wager = with_numbers(text, SETUP_NUMBERS | {"n": spans})
        wager["span"] = spans.get(wager.get("decides", wager).get("number"))
        wager["right"] = right_choice(wager, spans)
        wager["lesson"] = lesson_link(wager["lesson"])
        told.append(wager)
    return told


def data(both_sides: Trained, options: argparse.Namespace) -> dict:
    """Returns what the page needs for its wagers: texts, examples, and the small models."""
    small, table = models.train_pairs(options)
    generator = torch.Generator().manual_seed(10**6 + options.seed)
    symbols = torch.randint(
        TwoPlaces.SYMBOLS, (NUM_EXAMPLES, TwoPlaces.LENGTH), generator=generator
    )
    letters = SymbolMover.test_strings(SymbolMover.LENGTH, NUM_EXAMPLES)
    written = examples.short_sentences(examples.SHORT)[:NUM_WRITTEN]
    causal = models.next_word_model(models.MASKED, options)
    examples_of = {
        "knockout": examples.hidden_verb(both_sides),
        "future": {"sentences": [sentence.words for sentence in written]},
        "backwards": {"rows": letters.tolist()},
        "undivided": {"rows": symbols.tolist(), "table": table.tolist()},
        "line": examples.pretty_line(both_sides),
        "bugs": examples.one_word_changed(causal),
    }
    return {
        "list": [wager | {"example": examples_of[wager["name"]]} for wager in wagers()],
        "models": [models.small_record(name, model) for name, model in small.items()],
    }
