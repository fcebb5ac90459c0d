"""How far does the last output move if the first word does?

We measure it by the gradient |d last output / d first word|: where it is 0, the last word can
learn nothing from the first. Outputs of different layers differ in size, so we divide the gradient
by the size of the output. A nudge may move everything, so we also ask for a share: of all that
moves the last output, how much is the first word? Nothing is trained, the weights are those that
torch starts with. We compare attention, also with its residual stream, with an RNN and with LSTMs,
two of which have forget gates that start open.
"""

import statistics
from dataclasses import dataclass

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from phase1_single_head.self_attention import SelfAttention
from shared import charts
from shared.claims import Claim, Numbers
from shared.experiment import Experiment, Results, Run
from shared.visualization_utils import (
    BLUE,
    GREEN,
    HIDDEN,
    ORANGE,
    PURPLE,
    QUIET,
    RED,
    WIDE,
    readable,
)

LENGTHS = (8, 16, 32, 64, 128, 256, 512)
LONGEST = max(LENGTHS)
SIZE, NUM_DRAWS = 32, 9
GONE = 1e-9  # less than this of a change is as good as nothing
BOTTOM = 1e-17  # of the picture


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
        """Returns the output (B, T, d_model) of x (B, T, d_model), and the weights."""
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
PASSING_ON = {"attention": BLUE, "LSTM, bias 5": GREEN}  # their colours in the picture
FORGETTING = {"LSTM, bias 1": PURPLE, "LSTM": ORANGE, "RNN": RED}
LABELS = {  # in the picture, where they are not the names
    "LSTM, bias 5": "LSTM, gates\nwide open",
    "LSTM, bias 1": "LSTM, usual gates",
    "LSTM": "LSTM of torch",
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
    """How the last output reacts to each word: gradients (T,), and its own size.

    An output counts as the sum of its numbers. Its size is the root mean square of them.
    """

    gradients: Tensor
    size: float

    @property
    def first_word(self) -> float:
        """Returns how far the last output moves with the first word, in sizes of the output."""
        return self.gradients[0].item() / self.size

    @property
    def share_of_first(self) -> float:
        """Returns the first word's share of all that moves the last output, in even shares."""
        return (len(self.gradients) * self.gradients[0] / self.gradients.sum()).item()


def sensitivity(layer: nn.Module, length: int) -> Sensitivity:
    """Returns how the last output of a layer reacts to random words, in float64."""
    x = torch.randn(1, length, SIZE, dtype=torch.float64, requires_grad=True)
    outputs, _ = layer.double()(x)  # and weights, or the last state
    last = outputs[0, -1]
    (at_words,) = torch.autograd.grad(last.sum(), x)
    return Sensitivity(lengths_of(at_words[0]), last.square().mean().sqrt().item())


def measure(run: Run) -> Numbers:
    """Returns medians over draws of weights and words."""
    numbers = {}
    for name, make in LAYERS.items():
        torch.manual_seed(run.seed)
        for length in LENGTHS:
            draws = [sensitivity(make(), length) for _ in range(NUM_DRAWS)]
            arriving = [draw.first_word for draw in draws]
            numbers[f"{name}, {length} words"] = statistics.median(arriving)
        shares = [draw.share_of_first for draw in draws]
        numbers[f"{name}, even shares of the first of {length}"] = statistics.median(shares)
    return numbers


def share_of_first(n: Numbers, name: str) -> float:
    """Returns how many even shares the first of 512 words has in moving the last output."""
    return n[f"{name}, even shares of the first of {LONGEST}"]


CLAIMS = (
    Claim(
        id="open-gates-share",
        text="In an LSTM whose forget gates start wide open, the last output reacts more to the "
        "first word of a long text, compared with the other words, than in a layer of attention. "
        "If every word is changed a little in turn, the share of a word is its part of all that "
        "moves the last output. In attention the first word has about its even share, and in an "
        "LSTM with the customary bias of 1 it has nothing. We asked it of 512 words and layers of "
        "size 32, before any training; wide open means a bias of 5.",
        source="our question to the course notes, Gradient flow; the bias is that of Gers et al. "
        "2000, and it is 1 in Jozefowicz et al. 2015",
        rule="the first word has at least twice as many even shares (1/512 of the sum of all "
        "words' gradients) in the LSTM with bias 5 as in attention, where it has 0.5 to 2 of "
        "them, and at most a millionth of one in the LSTM with bias 1",
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


def picture(results: Results) -> Figure:
    """What arrives, against length; a line that ends in the grey goes on falling.

    x + attention is left out, because it passes the nudge on like attention alone.
    """
    fig, ax = plt.subplots(figsize=(WIDE, 4.6), layout="constrained")
    ax.set(yscale="log", ylim=(BOTTOM, 30), xlabel="words in the text")
    ax.axhspan(BOTTOM, GONE, color=HIDDEN, linewidth=0)
    columns = [f"{length} words" for length in LENGTHS]
    rows, colors = {}, {}
    for name, color in PASSING_ON.items():
        label = LABELS.get(name, name)
        rows[label] = results.row(name, columns)
        colors[label] = color
    charts.lines(ax, LENGTHS, rows, colors)
    for name, color in FORGETTING.items():
        row = results.row(name, columns)
        last = next(i for i, value in enumerate(row) if value < GONE)
        ax.plot(LENGTHS[: last + 1], row[: last + 1], "o-", color=color, markersize=5, linewidth=2)
        below = {"xytext": (0, -7), "textcoords": "offset points", "ha": "left", "va": "top"}
        ax.annotate(
            LABELS.get(name, name), (LENGTHS[last], row[last]), color=readable(color), **below
        )
    powers = ["1", "a thousandth", "a millionth", "a billionth"]
    ax.set_yticks([1, 1e-3, 1e-6, 1e-9], powers)
    ax.set_title("how far a nudge moves the last output, by its size")
    ax.text(LENGTHS[0], BOTTOM * 3, " as good as nothing", color=QUIET)
    return fig


main = Experiment(
    measure,
    CLAIMS,
    picture,
    title="In an RNN and a usual LSTM a nudge to the first word dies out; attention passes it on",
    note=f"gates: the forget gates at the start · untrained, median of {NUM_DRAWS} draws",
    answer="That depends on the layer. Of all that moves the last output, the first of 512 words "
    "is {n[attention, even shares of the first of 512]:.1f} times an even share in attention, "
    "{n[LSTM, bias 5, even shares of the first of 512]:.1f} times in an LSTM whose gates start "
    "wide open, and next to nothing in an LSTM with the customary gates.",
    uses="--seed --seeds",
)

if __name__ == "__main__":
    main.run()
