"""What a recurrence makes wait, what can be computed at once after all, and what is kept of a text.

    python phase1_single_head/long_path/recurrence.py

1. An RNN computes h_t = tanh(W x_t + U h_{t-1}): word t waits for word t - 1. How long the queue gets is counted: the
   longest chain of operations in autograd's graph of which each waits for the one before. That is the usual way to
   compute it; a chain cannot tell whether there is a cleverer one.
2. Without tanh there is one. h_t = a h_{t-1} + x_t, written out, is x_t + a x_{t-1} + a² x_{t-2} + ...: all words at
   once, each with a weight that falls with distance. That is attention with weights that no query chooses.
3. A recurrence keeps a state of fixed size, however long the text; attention keeps a key and a value of every word.
"""

import argparse

import torch
from torch import Tensor, nn

from phase1_single_head.self_attention import SelfAttention
from shared import cli
from shared.evidence import findings
from shared.evidence.findings import Finding

LENGTHS = (16, 64, 256)
SIZE, FACTOR = 32, 0.9


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


def recurrence_by_loop(x: Tensor, factor: float) -> Tensor:
    """h_t = factor h_{t-1} + x_t, word by word: (T, d) -> (T, d)."""
    states = [x[0]]
    for word in x[1:]:
        states.append(factor * states[-1] + word)
    return torch.stack(states)


def recurrence_weights(length: int, factor: float) -> Tensor:
    """(T, T): how much of word j is in state t, factor^(t - j), and nothing of later words."""
    position = torch.arange(length, dtype=torch.float64)
    return (factor ** (position[:, None] - position)).tril()


def recurrence_at_once(x: Tensor, factor: float) -> Tensor:
    """The same states as one matrix product, as attention takes its values: (T, d) -> (T, d)."""
    return recurrence_weights(len(x), factor).to(x.dtype) @ x  # (T, T) @ (T, d) -> (T, d)


def numbers_kept(layer: nn.Module, length: int) -> int:
    """Of `length` words: the state that a recurrent layer hands on, or the keys and values of attention."""
    x = torch.randn(1, length, SIZE)
    kept = (layer.w_k(x), layer.w_v(x)) if isinstance(layer, SelfAttention) else layer(x)[1]
    return sum(part.numel() for part in (kept if isinstance(kept, tuple) else (kept,)))


def not_linear(layer: nn.Module) -> float:
    """|f(2x) - 2 f(x)| as a share of |2 f(x)|: 0 for whatever is one matrix product."""
    x = torch.randn(1, 16, SIZE, dtype=torch.float64)
    twice = 2 * outputs(layer, x)
    return ((outputs(layer, 2 * x) - twice).norm() / twice.norm()).item()


def main(argv: list[str] | None = None) -> None:
    options = cli.parse(cli.parser(__doc__), argv)
    rnn = nn.RNN(SIZE, SIZE, batch_first=True, bias=False).double()
    chains: dict[str, list[int]] = {"RNN": [], "linear, by loop": [], "linear, at once": []}
    for n in LENGTHS:
        x = torch.randn(n, SIZE, dtype=torch.float64, requires_grad=True)
        by_loop, at_once = recurrence_by_loop(x, FACTOR), recurrence_at_once(x, FACTOR)
        torch.testing.assert_close(by_loop, at_once, rtol=0, atol=1e-9)
        for name, output in zip(chains, (outputs(rnn, x[None]), by_loop, at_once), strict=True):
            chains[name].append(longest_chain(output))
    difference = (by_loop - at_once).abs().max().item()

    print(f"\n1. Operations that wait for one another{'n =':>8}" + "".join(f"{n:>6}" for n in LENGTHS))
    for name, counts in chains.items():
        print(f"   {name:44}" + "".join(f"{count:>6}" for count in counts))
    bent = not_linear(rnn)
    print(f"   The RNN is no matrix product: twice the input is not twice the output, {bent:.0%} apart")

    print(f"\n2. h_t = {FACTOR} h_(t-1) + x_t at once: the weight of each word in each of five states")
    for row in recurrence_weights(5, FACTOR):
        print("   " + " ".join(f"{weight:6.3f}" for weight in row.tolist()))
    print(f"   loop and matrix product, {LENGTHS[-1]} words: largest difference {difference:.1e}")

    layers = {"RNN": nn.RNN(SIZE, SIZE, batch_first=True), "LSTM": nn.LSTM(SIZE, SIZE, batch_first=True)}
    layers["attention"] = SelfAttention(SIZE)
    kept = {name: [numbers_kept(layer, n) for n in LENGTHS] for name, layer in layers.items()}
    print(f"\n3. Numbers kept of n words, size {SIZE}{'n =':>15}" + "".join(f"{n:>8,}" for n in LENGTHS))
    for name, counts in kept.items():
        print(f"   {name:44}" + "".join(f"{count:>8,}" for count in counts))
    record_findings(chains, difference, bent, kept, options)


def record_findings(
    chains: dict[str, list[int]],
    difference: float,
    bent: float,
    kept: dict[str, list[int]],
    options: argparse.Namespace,
) -> None:
    steps = [steps_needed(nn.RNN(SIZE, SIZE, batch_first=True), n) for n in LENGTHS]
    weights = {d: sum(w.numel() for w in nn.RNN(d, d, bias=False).parameters()) for d in (32, 64)}
    waits = {name: len(set(counts)) > 1 for name, counts in chains.items()}
    findings.record(
        "phase1_single_head/long_path/recurrence.py",
        [
            Finding(
                "C039",
                "A recurrent layer has paths of length O(n) and O(d²) parameters",
                "Vaswani et al. 2017, table 1",
                {f"steps, n = {n}": count for n, count in zip(LENGTHS, steps, strict=True)}
                | {f"weights, d = {d}": count for d, count in weights.items()},
                "steps in time one after the other; weights of nn.RNN without biases",
                "n steps for n words, and 4 times the weights for twice the size",
                findings.verdict(tuple(steps) == LENGTHS and weights[64] == 4 * weights[32]),
            ),
            Finding(
                "C042",
                "A recurrent network cannot be computed in parallel",
                "course notes",
                {f"{name}, n = {n}": chains[name][i] for name in chains for i, n in enumerate(LENGTHS) if n != 64}
                | {"linear, difference of loop and matrix product": difference},
                "operations that wait for one another",
                "the chain grows with n, and no recurrence has another form without it (same states within 1e-9)",
                **findings.conditional(
                    waits["RNN"] and not (difference < 1e-9 and not waits["linear, at once"]),
                    waits["RNN"] and bent > 0.01,
                    "the recurrence is not linear, and only over time: the texts of a batch never wait for one another",
                ),
            ),
            Finding(
                "C059",
                "A recurrent network presses all that it has read into a state of fixed size",
                "course notes",
                {f"{name}, {n} words": kept[name][i] for name in kept for i, n in enumerate(LENGTHS) if n != 64},
                f"numbers kept, size {SIZE}; of attention, keys and values",
                "RNN and LSTM keep no more of 256 words than of 16",
                findings.verdict(all(len(set(kept[name])) == 1 for name in ("RNN", "LSTM"))),
                control=f"attention keeps {kept['attention'][-1] // kept['attention'][0]} times as much of 256 words",
            ),
        ],
        options.output_dir,
    )


if __name__ == "__main__":
    cli.run(main)
