"""How long is the way from the first word to the last, and what arrives?

A recurrent network hands what it has read from word to word, convolutions from layer to layer; attention looks at every
word directly. One number shows what that means for learning, the gradient |d last output / d first word|: how much the
last output changes if the first word changes a little. Where it is 0, the last word can learn nothing from the first.

    python phase1_single_head/long_path/path_length.py

A gradient can "vanish" in two ways. By the same factor with each word: that is exponential, and after some hundred
words float32 holds nothing but 0. Or like 1/n: attention shares its weight among n words, so each has less, never 0.

The networks are untrained, as torch initialises them: here learning starts, not where it must end. One LSTM with its
forget gate set open shows how much hangs on that. What a layer costs: layer_costs.py. Writes path_length.png to
visualizations/plots/phase1/.
"""

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn

from phase1_single_head.self_attention import SelfAttention
from shared import cli
from shared.evidence import findings
from shared.evidence.claims import EXPERIMENT, Claim, Measured, Numbers, measures
from shared.visualization_utils import BLUE, HIDDEN, ORANGE, QUIET, RED, headline, label_ends, save_plot

LENGTHS = (8, 16, 32, 64, 128, 256, 512)
SIZE, NUM_DRAWS = 32, 3
GONE, FLOOR = 1e-9, 1e-16  # less than GONE of a change is as good as nothing; the picture ends at FLOOR


def outputs(network: nn.Module, x: Tensor) -> Tensor:
    """The outputs at all positions, (B, T, d); states and attention weights, which some networks add, are left out."""
    result = network(x)
    return result[0] if isinstance(result, tuple) else result


def longest_chain(output: Tensor) -> int:
    """How many operations had to wait for one another: the longest way through autograd's graph of `output`."""
    lengths, open_nodes = {}, [output.grad_fn]
    while open_nodes:
        before = [node for node, _ in open_nodes[-1].next_functions if node is not None]
        unknown = [node for node in before if node not in lengths]
        if unknown:
            open_nodes += unknown
        else:
            lengths[open_nodes.pop()] = 1 + max((lengths[node] for node in before), default=0)
    return lengths[output.grad_fn]


def steps_needed(network: nn.Module, length: int) -> int:
    """Steps that a recurrent network takes one after the other: how often its chain grows by what one word adds.

    In float64, since torch makes an LSTM in float32 one operation, inside which its steps cannot be seen.
    """
    size = next(network.parameters()).size(-1)
    one, two, all_words = (
        longest_chain(outputs(network.double(), torch.randn(1, n, size).double())) for n in (1, 2, length)
    )
    more_words, rest = divmod(all_words - one, two - one)
    assert rest == 0  # each word adds as many operations
    return 1 + more_words


class CausalConvolution(nn.Conv1d):
    """Each output reads `kernel` inputs: its own and earlier ones, `dilation` apart; before the first are zeros."""

    def __init__(self, size: int, kernel: int = 3, dilation: int = 1) -> None:
        super().__init__(size, size, kernel, dilation=dilation)
        self.reach = (kernel - 1) * dilation

    def forward(self, x: Tensor) -> Tensor:
        padded = F.pad(x.transpose(1, 2), (self.reach, 0))  # (B, T, d) -> (B, d, reach + T)
        return super().forward(padded).transpose(1, 2)  # -> (B, d, T) -> (B, T, d)


def convolutions(size: int, dilated: bool) -> Iterator[nn.Module]:
    """Layer upon layer, without end; dilated ones reach twice as far each time (van den Oord et al. 2016).

    Between them tanh, whose slope is never 0: a gradient of exactly 0 then means that there is no way at all.
    """
    dilation = 1
    while True:
        yield nn.Sequential(CausalConvolution(size, dilation=dilation), nn.Tanh())
        dilation *= 2 if dilated else 1


def layers_needed(layers: Iterator[nn.Module], length: int, size: int = 4) -> int:
    """How many layers until the last output feels the first word.

    Followed downwards by gradients: what does the last output feel through one layer, through two, ...? Each layer gets
    inputs of its own, and the first layer comes on top: who is connected to whom depends on neither.
    """
    felt = torch.zeros(1, length, size, dtype=torch.float64)
    felt[:, -1] = 1.0
    for count, layer in enumerate(layers, start=1):
        x = torch.randn(1, length, size, dtype=torch.float64, requires_grad=True)
        (felt,) = torch.autograd.grad(outputs(layer.double(), x), x, felt)
        if felt[:, 0].any():
            return count
    raise ValueError(f"these layers do not connect the first of {length} words to the last output")


def lstm_that_keeps() -> nn.LSTM:
    """An LSTM whose forget gate starts open: each word keeps sigmoid(5) = 0.993 of the cell, not about half of it."""
    lstm = nn.LSTM(SIZE, SIZE, batch_first=True)
    with torch.no_grad():
        lstm.bias_ih_l0[SIZE : 2 * SIZE] = 5.0  # gates in torch's order: input, forget, cell, output
    return lstm


NETWORKS: dict[str, Callable[[int], nn.Module]] = {  # depth -> network; only convolutions need more than one layer
    "attention": lambda depth: SelfAttention(SIZE),
    "dilated convolutions": lambda depth: nn.Sequential(*islice(convolutions(SIZE, dilated=True), depth)),
    "convolutions": lambda depth: nn.Sequential(*islice(convolutions(SIZE, dilated=False), depth)),
    "LSTM": lambda depth: nn.LSTM(SIZE, SIZE, batch_first=True),
    "LSTM, gate open": lambda depth: lstm_that_keeps(),
    "RNN": lambda depth: nn.RNN(SIZE, SIZE, batch_first=True),
}
COLORS = {"attention": BLUE, "LSTM, gate open": ORANGE, "LSTM": ORANGE, "RNN": RED}


def count_layers() -> dict[str, list[int]]:
    """Layers, or steps in time, between the first word and the last output, at each of LENGTHS."""
    return {
        "RNN": [steps_needed(nn.RNN(4, 4, batch_first=True), n) for n in LENGTHS],
        "convolutions": [layers_needed(convolutions(4, dilated=False), n) for n in LENGTHS],
        "dilated convolutions": [layers_needed(convolutions(4, dilated=True), n) for n in LENGTHS],
        "attention": [layers_needed(iter([SelfAttention(4)]), n) for n in LENGTHS],
    }


def gradient(network: nn.Module, length: int) -> float:
    """|d last output / d first word|; the output counts as its sum. In float64, where 1e-300 is not yet 0."""
    x = torch.randn(1, length, SIZE, dtype=torch.float64, requires_grad=True)
    (at_input,) = torch.autograd.grad(outputs(network.double(), x)[:, -1].sum(), x)
    largest = at_input[0, 0].abs().max()  # taken out before squaring: the square of 1e-170 would be 0
    return (largest * (at_input[0, 0] / largest).norm()).item() if largest > 0 else 0.0


def fall(gradients: list[float]) -> tuple[str, float]:
    """The law that fits better, with its number: ("power", p) for n^p, ("factor", f) for f^n. Zeros are left out."""
    points = [(n, math.log(value)) for n, value in zip(LENGTHS, gradients, strict=True) if value > 0]
    lengths, logs = map(np.array, zip(*points, strict=True))
    (power, _), power_error, *_ = np.polyfit(np.log(lengths), logs, 1, full=True)  # log n^p = p log n: a straight line
    (rate, _), rate_error, *_ = np.polyfit(lengths, logs, 1, full=True)  # log f^n = n log f: straight in n itself
    return ("power", float(power)) if power_error < rate_error else ("factor", math.exp(rate))


def fall_text(gradients: list[float]) -> str:
    law, value = fall(gradients)
    return f"like n^{value:.1f}" if law == "power" else f"× {value:.2f} a word"


def kept(numbers: Numbers, name: str) -> float:
    """What is left at the longest of the gradient at the shortest."""
    return numbers[f"{name}, {LENGTHS[-1]} words"] / numbers[f"{name}, {LENGTHS[0]} words"]


def made(**factor: float) -> dict[str, float]:
    """Made numbers: gradients that fall by a factor with each word."""
    return {f"{name}, {n} words": f**n for name, f in factor.items() for n in LENGTHS}


@measures(
    Claim(
        id="C046",
        text="The gradient of attention does not vanish over long sequences as that of a recurrent network does",
        kind=EXPERIMENT,
        source="course notes, Gradient flow and summary; for recurrent networks Hochreiter and Schmidhuber 1997",
        rule=f"from {LENGTHS[0]} to {LENGTHS[-1]} words attention keeps at least 1/1,000 (even shares leave 1/64), and "
        "RNN and LSTM at most 1e-20",
        holds=lambda n: kept(n, "attention") >= 1e-3 and max(kept(n, "RNN"), kept(n, "LSTM")) <= 1e-20,
        oracle=made(attention=1.0, RNN=0.8, LSTM=0.8),
        null=made(attention=0.8, RNN=0.8, LSTM=0.8),
        unit=f"|d last output / d first word|, one layer at torch's initial weights, median of {NUM_DRAWS} draws",
        control="an LSTM with its forget gate open, which does not vanish either",
        headline=True,
        shows=tuple(f"{name}, {n} words" for name in ("attention", "LSTM*", "RNN") for n in (8, 128, 512)),
    )
)
def gradients_that_arrive(layers: dict[str, list[int]], seed: int) -> dict[str, float]:
    """Median gradient at each length, over draws of weights and words (a mean would be the largest draw alone)."""
    found = {}
    torch.manual_seed(seed)
    for name, make in NETWORKS.items():
        depths = layers[name] if "convolutions" in name else [1] * len(LENGTHS)
        for depth, n in zip(depths, LENGTHS, strict=True):
            draws = [gradient(make(depth), n) for _ in range(NUM_DRAWS)]
            found[f"{name}, {n} words"] = statistics.median(draws)
    return found


def by_length(runs: Sequence[Measured], name: str) -> list[float]:
    """The gradient of one network at each of LENGTHS, median over seeds."""
    return [statistics.median(run[f"{name}, {n} words"] for run in runs) for n in LENGTHS]


def draw(gradients: dict[str, list[float]], note: str) -> tuple[Figure, str]:
    """What arrives, against length; a line that leaves at the bottom goes on falling, and says where it was GONE."""
    fig, ax = plt.subplots(figsize=(8, 5), layout="constrained")
    ax.axhspan(FLOOR, GONE, color=HIDDEN, linewidth=0)
    ends = {}
    for name, color in COLORS.items():
        values = gradients[name]
        gone = next((place for place, value in enumerate(values) if value < GONE), None)
        style = "--" if name == "LSTM, gate open" else "-"
        ax.plot(LENGTHS, values, style, color=color, marker="o", markersize=5, linewidth=2, clip_on=gone is not None)
        if gone is None:
            ends[name] = (LENGTHS[-1], values[-1], color)
        else:
            side, away = ("right", 1 / 1.1) if name == "RNN" else ("left", 1.1)  # each on the free side of its line
            height = max(values[gone], 10 * FLOOR)
            text = f"{name}: gone at {LENGTHS[gone]} words"
            ax.text(away * LENGTHS[gone], height, text, ha=side, va="center", fontsize=10)
    ax.set_xscale("log", base=2)
    ax.set_xticks(LENGTHS, LENGTHS)
    ax.set(xlim=(7, LENGTHS[-1]), xlabel="words", yscale="log", ylim=(FLOOR, 30))
    ax.set_yticks([10.0**-power for power in (0, 3, 6, 9)], ["1", "a thousandth", "a millionth", "a billionth"])
    ax.set_ylabel("change of the last output\nfor a small change of the first word")
    ax.minorticks_off()
    ax.text(0.95 * LENGTHS[-1], GONE / 10, "as good as nothing", color=QUIET, ha="right", va="center")
    label_ends(ax, ends, size=10)
    reaches = f"The first of {LENGTHS[-1]} words still reaches attention, but not an ordinary RNN"
    title = f"{reaches},\nand an LSTM only if its gate starts open"
    headline(fig, title, note)
    return fig, title.replace("\n", " ") + ": what arrives of the first word, against length."


@cli.script
def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    layers = count_layers()
    runs = [gradients_that_arrive(layers, seed) for seed in cli.seeds(options)]
    arrive = {name: by_length(runs, name) for name in NETWORKS}
    draws = NUM_DRAWS * options.seeds
    print(f"\n|d last output / d first word|, untrained, size {SIZE}, median of {draws} draws")
    print(f"{'n':>20}" + "".join(f"{n:>10}" for n in LENGTHS) + "   falls as")
    for name, values in arrive.items():
        print(f"{name:20}" + "".join(f"{value:>10.1e}" for value in values) + f"   {fall_text(values)}")
    print("\nLayers until the last output feels the first word; for the RNN, steps in time")
    for name, counts in layers.items():
        print(f"{name:20}" + "".join(f"{count:>10}" for count in counts))
    note = f"untrained, default initial weights, size {SIZE}, median of {draws} draws · gate open: forget bias 5"
    save_plot(options, "phase1/path_length", *draw(arrive, note))
    findings.record(options, *runs, show_numbers=False)
    attention, rnn = (fall_text(arrive[name]) for name in ("attention", "RNN"))
    return f"One layer at any length; what arrives falls {attention}, in an RNN {rnn}"


if __name__ == "__main__":
    cli.run(main)
