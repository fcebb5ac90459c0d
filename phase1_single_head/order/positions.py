"""What can be learned without positions, and with which?

We train one block with one head, without positions and with each way to encode them, on two tasks
in which nothing but order matters:

    reverse   place i of 16 is to say the symbol at place 15 - i: it must know where it stands
    copy      place i is to say the symbol at place i - 3: knowing distances is enough

The models that copy are then asked about strings that are longer than those of their training.
"""

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from phase1_single_head.order.position_encodings import RotarySelfAttention
from phase1_single_head.order.reverse_and_copy import (
    COPY,
    FIRST_PLACE,
    REVERSE,
    SymbolMover,
    train_mover,
)
from phase1_single_head.self_attention import SelfAttention
from shared import charts
from shared.claims import Numbers
from shared.experiment import Experiment, Results, Run
from shared.visualization_utils import BLUE, GREEN, GREY, ORANGE, WIDE

COLORS = {"none": GREY, "sinusoidal": BLUE, "learned": ORANGE, "rotary": GREEN}
STEPS, LENGTH, LONGER = 150, SymbolMover.LENGTH, (32, 64, 128, 256)


def train_encoding(encoding: str, task: str, seed: int, steps: int) -> SymbolMover:
    """Returns a trained model; with rotary positions nothing is added to its symbols."""

    def head(d_model: int) -> SelfAttention:
        kind = RotarySelfAttention if encoding == "rotary" else SelfAttention
        return kind(d_model, output_projection=True)

    return train_mover(encoding, head, task, seed, steps)


@torch.no_grad()
def answers_right(model: SymbolMover, task: str, length: int = LENGTH) -> float:
    """Returns the share of right answers.

    In strings longer than those of training only the places beyond count, which no training has
    seen.
    """
    symbols = SymbolMover.test_strings(length)
    hits = model(symbols).argmax(dim=-1) == SymbolMover.answers(task, symbols)
    first = FIRST_PLACE[task] if length == LENGTH else LENGTH
    return hits[:, first:].double().mean().item()


def most_frequent() -> float:
    """Returns the share of places that hold the most frequent symbol of their string.

    Whoever does not know the order of the symbols can be right that often.
    """
    strings = F.one_hot(SymbolMover.test_strings(LENGTH), SymbolMover.SYMBOLS)
    counts = strings.sum(dim=1)  # (B, T, S) -> (B, S)
    return (counts.amax(dim=-1) / LENGTH).mean().item()


def measure(run: Run) -> Numbers:
    """Returns shares of places that are right, in strings not trained on.

    Model, strings and steps are the same for each encoding.
    """
    numbers = {}
    for encoding in COLORS:
        for task in (REVERSE, COPY):
            model = train_encoding(encoding, task, run.seed, run.steps(STEPS))
            numbers[f"{encoding}, {task}"] = answers_right(model, task)
        for length in LONGER:  # the model that copies
            numbers[f"{encoding}, copy of {length}"] = answers_right(model, COPY, length)
    numbers["the most frequent symbol"] = most_frequent()
    return numbers


def picture(results: Results) -> Figure:
    """Above: a task that asks for a place. Below: one that asks for a distance."""
    fig, (near, far) = plt.subplots(
        2, figsize=(WIDE, 5.4), height_ratios=(2, 3), layout="constrained"
    )
    reversing = {name: results.each(f"{name}, reverse") for name in COLORS}
    guess = {"guess": results.mean["the most frequent symbol"], "guess_name": "guessing"}
    charts.bars(near, reversing, COLORS, number="{:.0%}", **guess)
    near.set_title(f"write {LENGTH} symbols backwards: each must know its place")
    columns = ["copy", *(f"copy of {length}" for length in LONGER)]
    copying = {name: results.row(name, columns) for name in COLORS}
    far.set(ylim=(0, 1.05), xlabel=f"symbols in the string (trained on {LENGTH})")
    far.yaxis.set_major_formatter(PercentFormatter(1))
    charts.lines(far, (LENGTH, *LONGER), copying, COLORS)
    far.set_title("copy the symbol 3 to the left: the distance is enough")
    return fig


main = Experiment(
    measure,
    picture=picture,
    title="Rotary positions know distances, not places",
    note=f"answers right · one layer, one head, trained {STEPS} steps",
    answer="If a string is to be written backwards, {n[sinusoidal, reverse]:.0%} of the answers "
    "are right with sinusoidal positions, {n[rotary, reverse]:.0%} with rotary ones and "
    "{n[none, reverse]:.0%} with none, where guessing gives {n[the most frequent symbol]:.0%}. If "
    "the symbol three places before is to be copied, these are {n[sinusoidal, copy]:.0%}, "
    "{n[rotary, copy]:.0%} and {n[none, copy]:.0%}.",
)

if __name__ == "__main__":
    main.run()
