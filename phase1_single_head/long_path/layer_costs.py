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
from phase1_single_head.self_attention import SelfAttention, scaled_dot_product_attention
from shared import cli
from shared.evidence import findings
from shared.evidence.claims import EXPERIMENT, IDENTITY, Claim, Numbers, measures
from shared.measure import count_operations

LENGTHS = (16, 64, 256)
SIZE, NUM_DRAWS, FACTOR = 32, 20, 0.9
RECURRENT = ("RNN", "LSTM")
TABLE = "Vaswani et al. 2017, table 1"


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


def follow_the_words(name: str, length: int = 16, scale: float = 1.0) -> tuple[float, float]:
    """How far shares in the last output are from staying with the place, and from going with the word, 0 to 1.

    All words but the last change places. Means over draws of weights, here times `scale`, and of words.
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
    path = [longest_path(name, n) for n in LENGTHS]
    chain = [longest_chain(outputs(LAYERS[name](4, n).double(), torch.randn(1, n, 4).double())) for n in LENGTHS]
    return Row(weights_formula(name), path, chain, takes_any_length(name), *follow_the_words(name))


def recurrence_by_loop(x: Tensor, factor: float) -> Tensor:
    """h_t = factor h_{t-1} + x_t, word by word: (T, d) -> (T, d)."""
    states = [x[0]]
    for word in x[1:]:
        states.append(factor * states[-1] + word)
    return torch.stack(states)


def recurrence_at_once(x: Tensor, factor: float) -> Tensor:
    """The same states as one matrix product, as attention takes its values: (T, d) -> (T, d)."""
    position = torch.arange(len(x), dtype=x.dtype)
    weights = (factor ** (position[:, None] - position)).tril()  # (T, T): of word j in state t, 0 of later words
    return weights @ x  # (T, T) @ (T, d) -> (T, d)


def not_linear(layer: nn.Module) -> float:
    """|f(2x) - 2 f(x)| as a share of |2 f(x)|: 0 for whatever is one matrix product."""
    x = torch.randn(1, 16, SIZE, dtype=torch.float64)
    twice = 2 * outputs(layer, x)
    return ((outputs(layer, 2 * x) - twice).norm() / twice.norm()).item()


def numbers_kept(layer: nn.Module, length: int) -> int:
    """Of `length` words: the state that a recurrent layer hands on, or the keys and values of attention."""
    x = torch.randn(1, length, SIZE)
    kept = (layer.w_k(x), layer.w_v(x)) if isinstance(layer, SelfAttention) else layer(x)[1]
    return sum(part.numel() for part in (kept if isinstance(kept, tuple) else (kept,)))


@measures(
    Claim(
        id="C038",
        text="A convolution has O(k d²) parameters",
        kind=IDENTITY,
        source=TABLE,
        rule=f"equal to k · {SIZE}²",
        holds=lambda n: all(n[f"convolution, k = {k}"] == k * SIZE**2 for k in (3, 5, 7)),
        unit=f"weights of one layer, d = {SIZE}",
        shows=("convolution*",),
    ),
    Claim(
        id="C041",
        text="Self-attention has 3d² parameters",
        kind=IDENTITY,
        rule=f"equal to 3 · {SIZE}²",
        holds=lambda n: n["attention with W_O"] == 3 * SIZE**2,
        only_if=lambda n: n["attention"] == 3 * SIZE**2,
        condition="there is no output projection: with it they are 4d²",
        unit=f"weights of one layer, d = {SIZE}",
        shows=("attention*",),
    ),
)
def weights_counted() -> dict[str, int]:
    """Numbers in the weight matrices of some layers."""
    kernels = {f"convolution, k = {k}": CausalConvolution(SIZE, k).weight.numel() for k in (3, 5, 7)}
    return kernels | {name: count_weights(name, SIZE, 16) for name in ("attention", "attention with W_O")}


@measures(
    Claim(
        id="C043",
        text="A fully connected layer joins all positions in one step, in parallel; content does not change how",
        kind=IDENTITY,
        rule="one layer and the same chain at every length; shares that stay with the place, within 1e-9",
        holds=lambda n: (
            set(n["fully connected: layers"]) == {1}
            and len(set(n["fully connected: operations in a row"])) == 1
            and n["fully connected: from the place"] < 1e-9
        ),
        unit="at 16, 64 and 256 words; distance of the shares; weights: n = 6, d = 64",
        control="left out where this is told: it takes one length only, and its weights grow with n²",
        shows=("fully*", "weights*"),
    ),
    Claim(
        id="C044",
        text="RNN and LSTM are not content-based: what they read from where does not depend on content",
        kind=EXPERIMENT,
        rule="0 from the place, within 1e-9; failing that, at most half as far from the place as from the word",
        holds=lambda n: all(n[f"{name}: from the place"] < 1e-9 for name in RECURRENT),
        only_if=lambda n: all(n[f"{name}: from the place"] < n[f"{name}: from the word"] / 2 for name in RECURRENT),
        condition="choosing a place is meant, as attention does it, and weights are small, as at the start",
        oracle={f"{name}: from the {what}": float(what == "word") for name in RECURRENT for what in ("place", "word")},
        null={f"{name}: from the {what}": float(what == "place") for name in RECURRENT for what in ("place", "word")},
        unit="words change places: distance of their shares from staying with the place, from going with the word",
        control="attention, and weights ten times as large",
        shows=("RNN*", "LSTM*", "attention: from*"),
    ),
    Claim(
        id="C047",
        text="In self-attention each output depends directly on every position",
        kind=IDENTITY,
        rule="all of them, and a chain of operations that is as long for 256 words as for 16",
        holds=lambda n: n["attention: reached"] == 1 and len(set(n["attention: operations in a row"])) == 1,
        unit="share of the 16 · 16 gradients |d output_i / d input_j| of one layer that are not 0",
        shows=("*reached", "attention: operations*"),
    ),
)
def what_layers_join(rows: dict[str, Row]) -> dict[str, float | list[int]]:
    """What the claims need of the table; how many pairs one layer joins; recurrent layers with larger weights."""
    full, attention, words = rows["fully connected"], rows["attention"], torch.randn(1, 16, SIZE)
    found: dict[str, float | list[int]] = {
        "fully connected: layers": full.path,
        "fully connected: operations in a row": full.chain,
        "fully connected: from the place": full.stay,
        "attention: operations in a row": attention.chain,
    }
    for name in ("fully connected", "attention with W_O"):
        found[f"weights, {name}"] = count_weights(name, 64, 6)
    for name in (*RECURRENT, "attention"):
        found |= {f"{name}: from the place": rows[name].stay, f"{name}: from the word": rows[name].go}
    for name in RECURRENT:
        found[f"{name}, weights times 10: from the place"] = follow_the_words(name, scale=10.0)[0]
    for name in ("attention", "convolution", "RNN"):
        found[f"{name}: reached"] = (influence(LAYERS[name](SIZE, 16), words) > 0).double().mean().item()
    return found


def grows_by_four(numbers: Numbers, what: str) -> bool:
    return abs(numbers[f"{what}, T = 64"] / numbers[f"{what}, T = 32"] / 4 - 1) < 0.05


@measures(
    Claim(
        id="C035",
        text="Self-attention takes O(T² d) operations",
        kind=IDENTITY,
        source=TABLE,
        rule="twice the length takes 4 times the operations, within 5 %",
        holds=lambda n: grows_by_four(n, "operations of the layer"),
        only_if=lambda n: grows_by_four(n, "operations of the core"),
        condition="the projections are left out: 6Td², more than the core's 4T²d until T = 1.5 d",
        unit="operations of one pass, d = 64",
        shows=("operations*",),
    ),
    Claim(
        id="C036",
        text="The attention weights take O(T²) memory",
        kind=IDENTITY,
        rule="twice the length takes 4 times the bytes, within 5 %",
        holds=lambda n: grows_by_four(n, "bytes of the weights"),
        unit="bytes, one head, float32",
        shows=("bytes*",),
    ),
)
def growth_with_length() -> dict[str, int]:
    """Operations and bytes of one head on 32 and on 64 words."""
    found = {}
    for n in (32, 64):
        text = torch.randn(1, n, 64)
        found[f"operations of the layer, T = {n}"] = count_operations(SelfAttention(64), text)
        found[f"operations of the core, T = {n}"] = count_operations(scaled_dot_product_attention, text, text, text)
        _, weights = SelfAttention(64)(text)
        found[f"bytes of the weights, T = {n}"] = weights.numel() * weights.element_size()
    return found


LOOP, ONCE, APART = "linear, by loop", "linear, at once", "linear, difference of loop and matrix product"


@measures(
    Claim(
        id="C042",
        text="A recurrent network cannot be computed in parallel",
        kind=IDENTITY,
        rule="the chain grows with n, and no recurrence has another form without it (same states within 1e-9)",
        holds=lambda n: len(set(n["RNN"])) > 1 and not (n[APART] < 1e-9 and len(set(n[ONCE])) == 1),
        only_if=lambda n: len(set(n["RNN"])) > 1 and n["RNN: 2 f(x) from f(2x)"] > 0.01,
        condition="the recurrence is not linear, and only over time: the texts of a batch never wait for one another",
        unit=f"operations that wait for one another, n = {LENGTHS}",
    )
)
def queues() -> dict[str, float | list[int]]:
    """Chains of an RNN, and of a linear recurrence written as a loop and as one matrix product."""
    rnn = nn.RNN(SIZE, SIZE, batch_first=True, bias=False).double()
    chains: dict[str, list[int]] = {"RNN": [], LOOP: [], ONCE: []}
    for n in LENGTHS:
        x = torch.randn(n, SIZE, dtype=torch.float64, requires_grad=True)
        by_loop, at_once = recurrence_by_loop(x, FACTOR), recurrence_at_once(x, FACTOR)
        for name, output in zip(chains, (outputs(rnn, x[None]), by_loop, at_once), strict=True):
            chains[name].append(longest_chain(output))
    return chains | {APART: (by_loop - at_once).abs().max().item(), "RNN: 2 f(x) from f(2x)": not_linear(rnn)}


@measures(
    Claim(
        id="C039",
        text="A recurrent layer has paths of length O(n) and O(d²) parameters",
        kind=IDENTITY,
        source=TABLE,
        rule="n steps for n words, and 4 times the weights for twice the size",
        holds=lambda n: n["RNN: steps"] == list(LENGTHS) and n["RNN: weights, d = 64"] == 4 * n["RNN: weights, d = 32"],
        unit="steps in time one after the other; weights of nn.RNN without biases",
        shows=("RNN: steps", "RNN: weights*"),
    ),
    Claim(
        id="C059",
        text="A recurrent network presses all that it has read into a state of fixed size",
        kind=IDENTITY,
        rule="RNN and LSTM keep no more of 256 words than of 16",
        holds=lambda n: all(len(set(n[f"{name} keeps"])) == 1 for name in RECURRENT),
        unit=f"numbers kept of n = {LENGTHS} words, size {SIZE}; of attention, keys and values",
        control="attention",
        shows=("*keeps",),
    ),
)
def states() -> dict[str, int | list[int]]:
    """What recurrent layers take and keep, and what attention keeps."""
    layers = {name: LAYERS[name](SIZE, 16) for name in (*RECURRENT, "attention")}
    return {
        "RNN: steps": [steps_needed(nn.RNN(SIZE, SIZE, batch_first=True), n) for n in LENGTHS],
        **{f"RNN: weights, d = {d}": count_weights("RNN", d, 16) for d in (32, 64)},
        **{f"{name} keeps": [numbers_kept(layer, n) for n in LENGTHS] for name, layer in layers.items()},
    }


def main(argv: list[str] | None = None) -> str:
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
    findings.record(options, weights_counted(), what_layers_join(rows), growth_with_length(), queues(), states())
    attention, rnn = (rows[name].chain[-1] for name in ("attention", "RNN"))
    return f"Nobody waits: {attention} operations in a row for {LENGTHS[-1]} words; in an RNN {rnn}"


if __name__ == "__main__":
    cli.run(main)
