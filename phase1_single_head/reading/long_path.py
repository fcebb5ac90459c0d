"""How far does the last output move if the first word does?

The answer is the gradient |d last output / d first word|: where it is 0, the last word can learn
nothing from the first. Outputs of different layers differ in size, so the gradient is divided by
the size of the output. And since a nudge may move everything, it is asked, too, how much of all
that moves the last output is the first word. Nothing is trained: the weights are those that torch
starts with. Two LSTMs have forget gates that start open; one attention has its residual stream.
"""

import statistics
from dataclasses import dataclass

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from phase1_single_head.self_attention import SelfAttention
from shared import charts
from shared.evidence.claims import Claim, Numbers
from shared.experiment import Experiment, Results, Run
from shared.visualization_utils import BLUE, GREEN, GREY, HIDDEN, ORANGE, PURPLE, QUIET, RED

LENGTHS = (8, 16, 32, 64, 128, 256, 512)
LONGEST = max(LENGTHS)
SIZE, NUM_DRAWS = 32, 9
GONE = 1e-9  # less than this of a change is as good as nothing
BOTTOM = 1e-16  # of the picture


def lstm_with_open_gates(bias: float) -> nn.LSTM:
    """Returns an LSTM that keeps sigmoid(bias) of the cell with each word; usually about half."""
    lstm = nn.LSTM(SIZE, SIZE, batch_first=True)
    forget_gates = slice(SIZE, 2 * SIZE)  # torch's order is input, forget, cell, output
    with torch.no_grad():
        lstm.bias_ih_l0[forget_gates] = bias
    return lstm


class ResidualAttention(SelfAttention):
    """x + attention(x), as in a transformer."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x (B, T, d_model) -> output (B, T, d_model) and weights."""
        output, weights = super().forward(x)
        return x + output, weights


LAYERS = {
    "attention": lambda: SelfAttention(SIZE),
    "x + attention": lambda: ResidualAttention(SIZE),
    "LSTM, bias 5": lambda: lstm_with_open_gates(5.0),
    "LSTM, bias 1": lambda: lstm_with_open_gates(1.0),
    "LSTM": lambda: nn.LSTM(SIZE, SIZE, batch_first=True),
    "RNN": lambda: nn.RNN(SIZE, SIZE, batch_first=True),
}
COLORS = {
    "attention": BLUE,
    "x + attention": PURPLE,
    "LSTM, bias 5": GREEN,
    "LSTM, bias 1": GREY,
    "LSTM": ORANGE,
    "RNN": RED,
}


def lengths_of(vectors: Tensor) -> Tensor:
    """Returns the Euclidean norms of vectors (T, d) -> (T,).

    The largest number is taken out first, as the square of 1e-170 is 0.
    """
    largest = vectors.abs().amax(dim=-1, keepdim=True)
    divisor = largest.masked_fill(largest == 0, 1.0)
    return (vectors / divisor).norm(dim=-1) * largest[:, 0]


@dataclass(frozen=True)
class Sensitivity:
    """How the last output answers to each word: gradients (T,), and its own size.

    An output counts as the sum of its numbers. Its size is the root mean square of them.
    """

    gradients: Tensor
    size: float

    @property
    def first_word(self) -> float:
        """How far the last output moves with the first word, in sizes of the output."""
        return self.gradients[0].item() / self.size

    @property
    def share_of_first(self) -> float:
        """The first word's share of all that moves the last output, in even shares."""
        return (len(self.gradients) * self.gradients[0] / self.gradients.sum()).item()


def sensitivity(layer: nn.Module, length: int) -> Sensitivity:
    """Returns how the last output of a layer answers to random words, in float64."""
    x = torch.randn(1, length, SIZE, dtype=torch.float64, requires_grad=True)
    outputs, _ = layer.double()(x)  # and weights, or the last state
    last = outputs[0, -1]
    (at_words,) = torch.autograd.grad(last.sum(), x)
    return Sensitivity(lengths_of(at_words[0]), last.square().mean().sqrt().item())


def measure(run: Run) -> Numbers:
    """Returns medians over draws of weights and words."""
    found = {}
    for name, make in LAYERS.items():
        torch.manual_seed(run.seed)
        for length in LENGTHS:
            draws = [sensitivity(make(), length) for _ in range(NUM_DRAWS)]
            arriving = [draw.first_word for draw in draws]
            found[f"{name}, {length} words"] = statistics.median(arriving)
        shares = [draw.share_of_first for draw in draws]
        found[f"{name}, even shares of the first of {length}"] = statistics.median(shares)
    return found


def share_of_first(n: Numbers, name: str) -> float:
    """Returns how many even shares the first of 512 words has in moving the last output."""
    return n[f"{name}, even shares of the first of {LONGEST}"]


CLAIMS = (
    Claim(
        id="open-gates-share",
        text="Of all that moves the last of 512 outputs the first word is more in an LSTM whose "
        "forget gates start wide open (bias 5) than in a layer of attention, where it has about "
        "its even share; with the customary bias of 1 it is nothing (size 32, before any training)",
        source="our question to course notes, Gradient flow; the bias is that of Gers et al. 2000, "
        "1 in Jozefowicz et al. 2015",
        rule="in even shares (1/512 of the sum of all words' gradients) the first word has at "
        "least twice as much in the LSTM with bias 5 as in attention, there 0.5 to 2, and with "
        "bias 1 at most a millionth",
        effect=lambda n: share_of_first(n, "LSTM, bias 5") / share_of_first(n, "attention"),
        at_least=2,
        also=lambda n: (
            0.5 <= share_of_first(n, "attention") <= 2 and share_of_first(n, "LSTM, bias 1") <= 1e-6
        ),
        oracle={"LSTM, bias 5, *": 5.0, "LSTM, bias 1, *": 0.0, "*": 1.0},
        null={"LSTM, bias 1, *": 0.0, "*": 1.0},
        explored=10,
    ),
)


def picture(found: Results) -> Figure:
    """What arrives, against length; a line that ends in the grey goes on falling."""
    fig, ax = plt.subplots(figsize=(8.2, 5), layout="constrained")
    ax.set(yscale="log", ylim=(BOTTOM / 30, 30), xlabel="words in the text")
    ax.axhspan(BOTTOM / 30, GONE, color=HIDDEN, linewidth=0)
    columns = [f"{length} words" for length in LENGTHS]
    lines = {}
    for name in COLORS:
        row = [max(BOTTOM, value) for value in found.row(name, columns)]
        if BOTTOM in row:
            row = row[: row.index(BOTTOM) + 1]
        lines[name] = row
    charts.lines(ax, LENGTHS, lines, COLORS)
    powers = ["1", "a thousandth", "a millionth", "a billionth"]
    ax.set_yticks([1, 1e-3, 1e-6, 1e-9], powers)
    ax.set_ylabel("how far the last output moves\nif the first word is nudged")
    ax.text(LENGTHS[0], GONE / 10, "  as good as nothing", color=QUIET, va="center")
    return fig


main = Experiment(
    measure,
    CLAIMS,
    picture,
    title="A nudge to the first word dies out in an RNN and in a usual LSTM;\n"
    "attention, and an LSTM with open gates (bias 5), pass it on",
    note="bias: of the forget gates, the higher the more is kept · x + attention: with a residual "
    "connection\n"
    f"untrained, torch's initial weights, vectors of {SIZE} numbers, median of {NUM_DRAWS} draws",
    answer="The first of 512 words has {n[attention, even shares of the first of 512]:.1f} even "
    "shares in what moves the last output of attention, "
    "{n[LSTM, bias 5, even shares of the first of 512]:.1f} in an LSTM with wide open gates, "
    "{n[LSTM, bias 1, even shares of the first of 512]:.0e} with the customary ones",
)

if __name__ == "__main__":
    main.run()
