"""What does a layer cost, and what can it do that others cannot?

Textbooks print this table (Vaswani et al. 2017, table 1). Here a small experiment fills every cell:

    weights              counted in the module, then found to be a multiple of d² or of (n d)²; biases are left out
    longest path         layers, or steps in time, until the last output feels the first word
    operations in a row  the longest chain of operations of one layer of which each waits for the one before
    words at once        is that chain as long for 256 words as for 16? Then all positions are computed in parallel
    any length           does the layer take a text of another length than it was made for?
    content decides      words change places: does the share of each in the last output stay with the place ("no"), go
                         with the word ("where"), or mostly stay, and grow or shrink a little ("how much")?

    python phase1_single_head/long_path/layer_costs.py

An RNN computes h_t = tanh(W x_t + U h_{t-1}): word t waits for word t - 1. Without tanh there is another way:
h_t = a h_{t-1} + x_t, written out, is x_t + a x_{t-1} + a² x_{t-2} + ...: all words at once, each with a weight that
falls with distance. That is attention with weights that no query chooses.

The price of attention: 4 n² d operations and n² weights, beside 6 n d² operations for its projections, which are the
larger part until n = 1.5 d; and it keeps keys and values of all words, where an RNN keeps one state of size d.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from phase1_single_head.long_path.path_length import (
    CausalConvolution,
    convolutions,
    layers_needed,
    longest_chain,
    outputs,
    steps_needed,
)
from phase1_single_head.self_attention import SelfAttention
from shared import cli

LENGTHS = (16, 64, 256)
SIZE, NUM_DRAWS = 32, 20
RECURRENT = ("RNN", "LSTM")


class FullyConnected(nn.Module):
    """One matrix over the whole text: every number of the output reads every number of the input."""

    def __init__(self, size: int, length: int) -> None:
        super().__init__()
        self.linear = nn.Linear(length * size, length * size)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.flatten(1)).view_as(x)  # (B, T, d) -> (B, T d) -> (B, T, d)


LAYERS: dict[str, Callable[[int, int], nn.Module]] = {  # (size, length) -> one layer
    "RNN": lambda size, length: nn.RNN(size, size, batch_first=True),
    "LSTM": lambda size, length: nn.LSTM(size, size, batch_first=True),
    "convolution": lambda size, length: CausalConvolution(size),
    "dilated convolution": lambda size, length: CausalConvolution(size, dilation=2),
    "fully connected": FullyConnected,
    "attention": lambda size, length: SelfAttention(size),
    "attention with W_O": lambda size, length: SelfAttention(size, output_projection=True),
}


@dataclass
class Row:
    """One layer in the table."""

    weights: str
    path: list[int]  # at LENGTHS
    chain: list[int]  # at LENGTHS
    any_length: bool
    stay: float  # words change places: distance of their shares from staying with the place, 0 to 1
    go: float  # and from going with the word

    @property
    def at_once(self) -> bool:
        return len(set(self.chain)) == 1

    @property
    def content_decides(self) -> str:
        if self.stay < 1e-9:
            return "no"
        return "where" if self.go < 1e-9 else "how much" if self.stay < self.go / 2 else "unclear"


def count_weights(name: str, size: int, length: int) -> int:
    """Numbers in the weight matrices of one layer."""
    return sum(weight.numel() for weight in LAYERS[name](size, length).parameters() if weight.dim() > 1)


def weights_formula(name: str) -> str:
    """The count as a multiple of d² or else of (n d)², the same multiple at every size d and length n."""
    counts = {(d, n): count_weights(name, d, n) for d in (16, 32) for n in (6, 11)}
    of_d = {count / d**2 for (d, _), count in counts.items()}
    of_nd = {count / (n * d) ** 2 for (d, n), count in counts.items()}
    if len(of_d) == 1:
        return f"{of_d.pop():g} d²"
    (multiple,) = of_nd  # an error unless there is just one
    return f"{multiple:g} (n d)²".removeprefix("1 ")


def longest_path(name: str, length: int) -> int:
    """Layers, or steps in time, until the last output feels the first word."""
    if name in RECURRENT:
        return steps_needed(LAYERS[name](4, length), length)
    if "convolution" in name:
        return layers_needed(convolutions(4, dilated="dilated" in name), length)
    return layers_needed(iter([LAYERS[name](4, length)]), length)


def takes_any_length(name: str) -> bool:
    """Does a layer made for 16 words read 17?"""
    try:
        LAYERS[name](4, 16)(torch.randn(1, 17, 4))
    except RuntimeError:
        return False
    return True


def influence(layer: nn.Module, x: Tensor) -> Tensor:
    """|d output_i / d input_j| for every pair of positions, (1, T, d) -> (T, T); an output counts as its sum."""
    every = torch.arange(x.size(1))
    copies = x.expand(len(every), -1, -1).clone().requires_grad_()  # (1, T, d) -> (T, T, d): one text for each output
    (at_input,) = torch.autograd.grad(outputs(layer, copies)[every, every].sum(), copies)
    return at_input.norm(dim=-1)  # (T, T, d) -> (T, T)


def follow_the_words(name: str, length: int = 16) -> tuple[float, float]:
    """How far shares in the last output are from staying with the place, and from going with the word, 0 to 1.

    All words but the last change places. Means over draws of weights and of words.
    """
    distances = []
    for _ in range(NUM_DRAWS):
        layer, x = LAYERS[name](SIZE, length).double(), torch.randn(1, length, SIZE).double()
        order = torch.randperm(length - 1)
        moved = torch.cat([x[:, order], x[:, -1:]], dim=1)
        before, after = (influence(layer, text)[-1, :-1] for text in (x, moved))
        before, after = before / before.sum(), after / after.sum()
        distances.append([(after - expected).abs().sum() / 2 for expected in (before, before[order])])
    stay, go = torch.tensor(distances).mean(dim=0).tolist()
    return stay, go


def measure(name: str) -> Row:
    path = [longest_path(name, n) for n in LENGTHS]
    chain = [longest_chain(outputs(LAYERS[name](4, n).double(), torch.randn(1, n, 4).double())) for n in LENGTHS]
    return Row(weights_formula(name), path, chain, takes_any_length(name), *follow_the_words(name))


@cli.script
def main(argv: list[str] | None = None) -> str:
    cli.parse(cli.parser(__doc__), argv)
    rows = {name: measure(name) for name in LAYERS}
    lengths = "".join(f"{n:>6}" for n in LENGTHS)
    print(
        f"\n{'one layer':20}{'weights':>10}{'longest path':>20}{'operations in a row':>21}   words    any      content"
    )
    print(f"{'':18}{'n =':>12}  {lengths}   {lengths}   at once  length   decides")
    for name, row in rows.items():
        path, chain = ("".join(f"{n:>6}" for n in numbers) for numbers in (row.path, row.chain))
        at_once, any_length = ("yes" if answer else "no" for answer in (row.at_once, row.any_length))
        print(f"{name:20}{row.weights:>10}  {path}   {chain}   {at_once:9}{any_length:9}{row.content_decides}")
    attention, rnn = (rows[name].chain[-1] for name in ("attention", "RNN"))
    return f"Nobody waits: {attention} operations in a row for {LENGTHS[-1]} words; in an RNN {rnn}"


if __name__ == "__main__":
    cli.run(main)
