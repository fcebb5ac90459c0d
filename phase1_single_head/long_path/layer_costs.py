"""What a layer costs and what it can do: recurrent, convolutional, fully connected, attention, in one table.

Textbooks print this table (Vaswani et al. 2017, table 1). Here a small experiment fills every cell:

    weights              counted in the module, then found to be a multiple of d² or of (n d)²; biases are left out
    longest path         layers, or steps in time, until the last output feels the first word
    operations in a row  the longest chain of operations of one layer of which each waits for the one before
    words at once        is that chain as long for 256 words as for 16? Then all positions are computed in parallel
    any length           does the layer take a text of another length than it was made for?
    content decides      words change places: does the share of each in the last output stay with the place ("no"), go
                         with the word ("where"), or mostly stay, and grow or shrink a little ("how much")?

    python phase1_single_head/long_path/layer_costs.py

What grows with the square of the length is recorded too; what recurrence makes wait: recurrence.py.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from phase1_single_head.long_path.path_length import CausalConvolution, convolutions, layers_needed
from phase1_single_head.long_path.recurrence import longest_chain, outputs, steps_needed
from phase1_single_head.self_attention import SelfAttention, scaled_dot_product_attention
from shared import cli
from shared.evidence import findings
from shared.evidence.findings import Finding

LENGTHS = (16, 64, 256)
SIZE, NUM_DRAWS = 32, 20


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
    if name in ("RNN", "LSTM"):
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


def follow_the_words(name: str, length: int = 16, scale: float = 1.0) -> tuple[float, float]:
    """Words change places, all but the last: how far are their shares in the last output from staying with the place,
    how far from going with the word? Means over draws of weights, here times `scale`, and of words.
    """
    distances = []
    for _ in range(NUM_DRAWS):
        layer, x = LAYERS[name](SIZE, length).double(), torch.randn(1, length, SIZE).double()
        for parameter in layer.parameters():
            parameter.data *= scale
        order = torch.randperm(length - 1)
        moved = torch.cat([x[:, order], x[:, -1:]], dim=1)
        before, after = (influence(layer, text)[-1, :-1] for text in (x, moved))
        before, after = before / before.sum(), after / after.sum()
        distances.append([(after - expected).abs().sum() / 2 for expected in (before, before[order])])
    stay, go = torch.tensor(distances).mean(dim=0).tolist()
    return stay, go


def measure(name: str) -> Row:
    def chain(length: int) -> int:
        return longest_chain(outputs(LAYERS[name](4, length).double(), torch.randn(1, length, 4).double()))

    path, chains = [longest_path(name, n) for n in LENGTHS], [chain(n) for n in LENGTHS]
    return Row(weights_formula(name), path, chains, takes_any_length(name), *follow_the_words(name))


def count_operations(function: Callable[..., object], *inputs: Tensor) -> int:
    """Multiplications and additions of the matrix products, as torch counts them."""
    with FlopCounterMode(display=False) as counter:
        function(*inputs)
    return counter.get_total_flops()


def record_findings(rows: dict[str, Row], options: argparse.Namespace) -> None:
    kernels = {f"k = {k}": CausalConvolution(SIZE, k).weight.numel() for k in (3, 5, 7)}
    projected = {name: count_weights(name, SIZE, 16) for name in ("attention", "attention with W_O")}
    full, attention = rows["fully connected"], rows["attention"]
    words = torch.randn(1, 16, SIZE)
    reached = {
        name: (influence(LAYERS[name](SIZE, 16), words) > 0).double().mean().item()
        for name in ("attention", "convolution", "RNN")
    }
    recurrent = [rows[name] for name in ("RNN", "LSTM")]
    larger = [follow_the_words(name, scale=10.0)[0] for name in ("RNN", "LSTM")]
    operations, memory = {}, {}
    for n in (32, 64):
        text = torch.randn(1, n, 64)
        operations[f"layer, T = {n}"] = count_operations(SelfAttention(64), text)
        operations[f"core, T = {n}"] = count_operations(scaled_dot_product_attention, text, text, text)
        _, weights = SelfAttention(64)(text)
        memory[f"T = {n}"] = weights.numel() * weights.element_size()
    growth = {part: operations[f"{part}, T = 64"] / operations[f"{part}, T = 32"] for part in ("layer", "core")}
    table = "Vaswani et al. 2017, table 1"
    findings.record(
        "phase1_single_head/long_path/layer_costs.py",
        [
            Finding(
                "C038",
                "A convolution has O(k d²) parameters",
                table,
                kernels,
                f"weights of one layer, d = {SIZE}",
                f"equal to k · {SIZE}²",
                findings.verdict(all(count == int(k.split()[-1]) * SIZE**2 for k, count in kernels.items())),
            ),
            Finding(
                "C041",
                "Self-attention has 3d² parameters",
                "course notes",
                projected,
                f"weights of one layer, d = {SIZE}",
                f"equal to 3 · {SIZE}²",
                **findings.conditional(
                    projected["attention with W_O"] == 3 * SIZE**2,
                    projected["attention"] == 3 * SIZE**2,
                    "there is no output projection: with it they are 4d²",
                ),
            ),
            Finding(
                "C043",
                "A fully connected layer joins all positions in one step, in parallel; content does not change how",
                "course notes",
                {"layers needed": max(full.path), "change of the shares with content": full.stay}
                | {
                    f"weights, {name}": count_weights(name, 64, 6) for name in ("fully connected", "attention with W_O")
                },
                "weights: n = 6, d = 64",
                "one layer and the same chain at every length; shares that stay with the place, within 1e-9",
                findings.verdict(set(full.path) == {1} and full.at_once and full.stay < 1e-9),
                control="left out where this is told: it takes one length only, and its weights grow with n²",
            ),
            Finding(
                "C044",
                "RNN and LSTM are not content-based: what they read from where does not depend on content",
                "course notes",
                {f"{name}, from the place": rows[name].stay for name in ("RNN", "LSTM")}
                | {f"{name}, from the word": rows[name].go for name in ("RNN", "LSTM")},
                "words change places: distance of their shares from staying with the place, from going with the word",
                "0 from the place, within 1e-9; failing that, at most half as far from the place as from the word",
                **findings.conditional(
                    all(row.content_decides == "no" for row in recurrent),
                    all(row.content_decides == "how much" for row in recurrent),
                    "choosing a place is meant, as attention does it, and weights are small, as at the start",
                ),
                control=f"attention: {attention.stay:.2f} from the place, {attention.go:.0e} from the word; weights "
                f"times 10, from the place: RNN {larger[0]:.2f}, LSTM {larger[1]:.2f}",
            ),
            Finding(
                "C047",
                "In self-attention each output depends directly on every position",
                "course notes",
                reached,
                "share of the 16 · 16 gradients |d output_i / d input_j| of one layer that are not 0",
                "all of them, and a chain of operations that is as long for 256 words as for 16",
                findings.verdict(reached["attention"] == 1 and attention.at_once),
            ),
            Finding(
                "C035",
                "Self-attention takes O(T² d) operations",
                table,
                operations | {f"growth, {part}": ratio for part, ratio in growth.items()},
                "operations of one pass, d = 64; growth when T doubles",
                "twice the length takes 4 times the operations, within 5 %",
                **findings.conditional(
                    abs(growth["layer"] / 4 - 1) < 0.05,
                    abs(growth["core"] / 4 - 1) < 0.05,
                    "the projections are left out: 6Td², more than the core's 4T²d until T = 1.5 d",
                ),
            ),
            Finding(
                "C036",
                "The attention weights take O(T²) memory",
                "course notes",
                memory,
                "bytes, one head, float32",
                "twice the length takes 4 times the bytes, within 5 %",
                findings.verdict(abs(memory["T = 64"] / memory["T = 32"] / 4 - 1) < 0.05),
            ),
        ],
        options.output_dir,
    )


def main(argv: list[str] | None = None) -> None:
    options = cli.parse(cli.parser(__doc__), argv)
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
    record_findings(rows, options)


if __name__ == "__main__":
    cli.run(main)
