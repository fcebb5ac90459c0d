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

from phase3_visualization.explorer import examples, models
from shared.evidence import findings, record
from shared.paths import HOME, place
from shared.tasks import SymbolMover, TwoPlaces
from shared.toy_language import SPECIAL, VOCABULARY
from shared.training import Trained

TEXTS = Path(__file__).parent / "page" / "texts.json"
ROWS, WRITTEN = 12, 4  # of symbols and of letters, and sentences to write: new to the models
SIZES = {  # what the texts may name beside the record
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
    """Where the next seed falls; in a text "0.30 to 0.44", or one number if both ends read alike."""

    low: float
    high: float

    def __format__(self, written: str) -> str:
        return findings.between(self, lambda value: format(value, written))


def numbers(experiment: str) -> dict[str, Span]:
    """The numbers of an experiment in the record, by name."""
    names = record.runs(experiment)[0]
    return {name: Span(*record.interval(experiment, name)) for name in names}


def filled(value: Any, names: dict[str, Any]) -> Any:
    """A text with its numbers put in; lists and dictionaries item by item."""
    if isinstance(value, list):
        return [filled(item, names) for item in value]
    if isinstance(value, dict):
        return {name: filled(item, names) for name, item in value.items()}
    return value.format(**names) if isinstance(value, str) else value


def right_choice(wager: dict[str, Any]) -> int:
    """The only choice whose band holds the record's interval; of several ways to run a model the
    one without a bug.
    """
    if "ways" in wager:
        return wager["ways"].index(None)
    span = numbers(wager["experiment"])[wager["number"]]
    fit = [
        i
        for i, (low, high) in enumerate(wager["bands"])
        if float(low) <= span.low and span.high <= float(high)
    ]
    if len(fit) != 1:
        raise ValueError(f"{wager['title']}: {len(fit)} answers fit the record, {span:g}; one must")
    return fit[0]


def lesson_link(lesson: str) -> str:
    """Where a page of the course lies once it is rendered, as seen from the explorer; with its
    anchor.
    """
    source, anchor = lesson.split("#")
    return f"{place(Path(source)).relative_to(HOME).as_posix()}#{anchor}"


def wagers() -> list[dict[str, Any]]:
    """All six in the order of the page, with the numbers of the record; span: of the number that
    decides.
    """
    told = []
    for text in json.loads(TEXTS.read_text(encoding="utf-8"))["wagers"]:
        known = numbers(text["experiment"]) if "experiment" in text else {}
        span = known.get(text.get("decides", text).get("number"))
        told.append(filled(text, SIZES | {"n": known}) | {"span": span})
    return told


def data(both_sides: Trained, options: argparse.Namespace) -> dict[str, Any]:
    """All that the page needs for its wagers: what they say, their examples, and the small models."""
    small, table = models.train_pairs(options)
    generator = torch.Generator().manual_seed(10**6 + options.seed)
    symbols = torch.randint(TwoPlaces.SYMBOLS, (ROWS, TwoPlaces.LENGTH), generator=generator)
    examples_of = {
        "knockout": examples.hidden_verb(both_sides),
        "future": {
            "sentences": [
                sentence.words for sentence in examples.held_out(examples.SHORT)[:WRITTEN]
            ]
        },
        "backwards": {"rows": SymbolMover.test_strings(SymbolMover.LENGTH)[:ROWS].tolist()},
        "undivided": {"rows": symbols.tolist(), "table": table.tolist()},
        "line": examples.pretty_line(both_sides),
        "bugs": examples.one_word_changed(models.masked(options)),
    }
    told = [
        wager
        | {"right": right_choice(wager), "lesson": lesson_link(wager["lesson"])}
        | {"example": examples_of[wager["name"]]}
        for wager in wagers()
    ]
    return {
        "list": told,
        "models": [models.small_record(name, model) for name, model in small.items()],
    }
