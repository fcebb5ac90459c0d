"""What does multi-head attention cost, by heads and by length?

A head is a slice. Cut d_model = 512 into 1, 8 or 16 slices, and the projections stay 512 x 512; each head's scores take
d_k multiplications instead of d_model, and there are d_model / d_k heads. Only the weights, T x T for each head, grow.

    parameters   3 d²        one head without W_O; with it, and for any number of heads, 4 d² (biases: 4 d more)
    operations   8 B T d²    four projections: T d² multiplications each, and as many additions
               + 4 B T² d    scores and means: T² d multiplications each, over all heads together
    memory       in steps    8 H T² + 20 T d bytes: two matrices T x T for each head (scores, weights), and queries,
                             divided queries, keys, values, means (one sequence, float32, nothing kept for training)
                 fused       20 T d bytes, no matrix T x T: queries, keys, values, means, output; now and then the
                             kernel's scratch memory, which does not grow, is a little more than the output
    cache        8 T d       bytes of keys and values, which a model that writes must keep (fused_attention.py)

So scores and means are half of the work at T = 2 d_model, and the matrices half of the memory at T = 2.5 d_model / H.
Torch counts the operations and the allocator the bytes, on the CPU, to the last digit. A formula that is right at every
measured length may be trusted where no machine follows: for a million tokens.

    python phase2_multi_head/costs/cost_model.py

Writes cost_model.png to visualizations/plots/phase2/.
"""

import math
from bisect import bisect_left
from functools import partial

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure
from torch import nn
from torch.utils.checkpoint import checkpoint

from phase1_single_head.self_attention import SelfAttention
from phase2_multi_head.fused_attention import FusedMultiHeadAttention
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from shared import cli
from shared.evidence import findings
from shared.evidence.claims import PROBE, Claim, measures
from shared.measure import count_operations, in_bytes, peak_memory
from shared.visualization_utils import BLUE, GREY, INK, headline, label_ends, save_plot

D_MODEL, NUM_HEADS, MILLION = 128, 2, 1_000_000
LENGTHS, QUICK_LENGTHS = tuple(2**n for n in range(6, 13)), tuple(2**n for n in range(6, 11))  # 64 to 4,096 or 1,024
BROAD, HEADS = 512, (1, 2, 4, 8, 16, 32)  # d_model and heads of the layers that are compared
CHECKPOINTED = (256, 1024)  # lengths


def count_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def projection_operations(length: int, d_model: int, *, batch: int = 1) -> int:
    """Of W_Q, W_K, W_V and W_O."""
    return 8 * batch * length * d_model**2


def attention_operations(length: int, d_model: int, *, batch: int = 1) -> int:
    """Of Q Kᵀ and of weights · V, all heads together."""
    return 4 * batch * length**2 * d_model


def peak_bytes_in_steps(length: int, d_model: int, num_heads: int) -> int:
    """The most that MultiHeadAttention needs at one time: one sequence, float32, no mask, no training.

    That is when the values are averaged: queries, divided queries, keys, values, means, scores, weights. Or else, if
    T < d_k, at the end: in place of scores and divided queries, the merged heads and the output.
    """
    vectors, matrices = 4 * length * d_model, 4 * num_heads * length**2
    return max(5 * vectors + 2 * matrices, 6 * vectors + matrices)


def peak_bytes_fused(length: int, d_model: int) -> int:
    """The same for FusedMultiHeadAttention, without the kernel's scratch memory."""
    return 5 * 4 * length * d_model


def counted_operations(length: int, d_model: int, num_heads: int = NUM_HEADS) -> tuple[int, int]:
    """What torch counts in MultiHeadAttention: operations of the projections, operations of the attention itself."""
    layer = MultiHeadAttention(d_model, num_heads, bias=False).to("meta")
    x = torch.empty(1, length, d_model, device="meta")
    projections = sum(count_operations(w, x) for w in (layer.w_q, layer.w_k, layer.w_v, layer.w_o))
    return projections, count_operations(layer, x) - projections


def crossing(d_model: int) -> int:
    """The shortest length at which the attention itself takes at least as many operations as the projections."""

    def attention_leads(length: int) -> bool:
        projections, attention = counted_operations(length, d_model)
        return attention >= projections

    return bisect_left(range(10_000), True, lo=1, key=attention_leads)


@torch.no_grad()
def measured_peak(layer_class: type[MultiHeadAttention], length: int, d_model: int, num_heads: int) -> int:
    """Peak bytes of a forward pass over one sequence, on the CPU."""
    return peak_memory(partial(layer_class(d_model, num_heads, bias=False), torch.randn(1, length, d_model)))


FORMULAS = {  # what -> length -> value on paper
    "projections": lambda length: projection_operations(length, D_MODEL),
    "attention itself": lambda length: attention_operations(length, D_MODEL),
    "in steps": lambda length: peak_bytes_in_steps(length, D_MODEL, NUM_HEADS),
    "fused": lambda length: peak_bytes_fused(length, D_MODEL),
}
COLORS = {"in steps": GREY, "fused": BLUE}
Measured = dict[str, dict[int, int]]  # what -> length -> value


def measure(lengths: tuple[int, ...]) -> Measured:
    """Operations and peak bytes at each length."""
    counted = {length: counted_operations(length, D_MODEL) for length in lengths}
    return {
        "projections": {length: projections for length, (projections, _) in counted.items()},
        "attention itself": {length: attention for length, (_, attention) in counted.items()},
        "in steps": {length: measured_peak(MultiHeadAttention, length, D_MODEL, NUM_HEADS) for length in lengths},
        "fused": {length: measured_peak(FusedMultiHeadAttention, length, D_MODEL, NUM_HEADS) for length in lengths},
    }


def errors(measured: Measured) -> dict[str, float]:
    """Largest deviation from the formula, as a share of it."""
    return {
        name: max(abs(value / FORMULAS[name](length) - 1) for length, value in by_length.items())
        for name, by_length in measured.items()
    }


def saved_by_halves(length: int) -> dict[str, float]:
    """Which share of a layer's peak memory half the length saves, half of 8 heads, half of d_model = 512."""
    halves = {"length": (length // 2, BROAD, 8), "heads": (length, BROAD, 4), "d_model": (length, BROAD // 2, 8)}
    return {
        name: 1 - peak_bytes_in_steps(*sizes) / peak_bytes_in_steps(length, BROAD, 8) for name, sizes in halves.items()
    }


def training_peak(layers: int, length: int, *, checkpointed: bool) -> int:
    """Bytes at the peak of one forward and backward pass through a stack of attention layers, one text.

    checkpointed: a layer keeps only its input, and computes its weights again when their gradients are due (Chen et al.
    2016).
    """
    stack = nn.ModuleList(MultiHeadAttention(64, 4) for _ in range(layers))
    x = torch.randn(1, length, 64, requires_grad=True)

    def step() -> None:
        state = x
        for layer in stack:
            state = state + (checkpoint(layer, state, use_reentrant=False) if checkpointed else layer(state))[0]
        state.sum().backward()

    return peak_memory(step)


@measures(
    Claim(
        id="C048",
        text="Standard attention takes O(T²) memory, flash attention O(T)",
        source="Dao et al. 2022, section 3.1; course notes",
        kind=PROBE,
        rule="in steps at least 10, fused at most 5 (4 is linear, 16 quadratic)",
        holds=lambda n: n["in steps"] >= 10 and n["fused"] <= 5,
        unit="growth of the peak bytes for 4 times as many tokens, up to T = 4,096; one layer, d_model = 128, 2 heads",
        control="a step of training with 8 layers that keep their weights, or compute them again (checkpointing)",
    )
)
def growth(measured: Measured) -> dict[str, float]:
    """By how much peak memory grows for 4 times as many tokens: measured in steps, fused, and in training."""
    *_, before, _, last = measured["fused"]
    numbers = {name: measured[name][last] / measured[name][before] for name in ("in steps", "fused")}
    for name, again in (("training, weights kept", False), ("training, checkpointed", True)):
        short, long = (training_peak(8, length, checkpointed=again) for length in CHECKPOINTED)
        numbers[name] = long / short
    return numbers


@torch.no_grad()
def costs_by_heads() -> dict[int, tuple[int, int, int]]:
    """Number of heads -> parameters, operations and numbers in the weights, counted; d_model = 512, T = 128."""
    x, counts = torch.randn(1, 128, BROAD), {}
    for heads in HEADS:
        layer = MultiHeadAttention(BROAD, heads, bias=False)
        counts[heads] = count_parameters(layer), count_operations(layer, x), layer(x)[1].numel()
    return counts


def show_tables(counts: dict[int, tuple[int, int, int]]) -> None:
    single, with_output = (count_parameters(SelfAttention(BROAD, output_projection=w_o)) for w_o in (False, True))
    print(
        f"\nCounted, d_model = {BROAD}, 128 tokens\n   {'heads':>5}{'parameters':>12}{'operations':>14}{'weights':>10}"
    )
    for heads, (parameters, operations, weights) in counts.items():
        print(f"   {heads:5}{parameters:12,}{operations:14,}{weights:10,}")
    print(f"   d_model = {BROAD}: scores and means overtake the projections at T = {crossing(BROAD):,}")
    print(f"   one head without W_O: 3 d² = {single:,} parameters, with it 4 d² = {with_output:,}")
    print("\nPeak memory saved, 8 heads of 64      half the length   half the heads   half of d_model")
    for length in (64, 512, 4096):
        shares = saved_by_halves(length).values()
        print(f"   T = {length:5,}                  " + "".join(f"{share:17.0%}" for share in shares))


def draw(measured: Measured) -> tuple[Figure, str]:
    """Peak memory against length: formulas as lines, dashed where nothing was measured; measured values as points."""
    fig, ax = plt.subplots(figsize=(8.6, 4.6), layout="constrained")
    longest = max(measured["fused"])
    for name, color in COLORS.items():
        for first, last, style in ((min(measured[name]), longest, "-"), (longest, MILLION, "--")):
            lengths = np.geomspace(first, last, 60).round().astype(int).tolist()
            ax.plot(lengths, list(map(FORMULAS[name], lengths)), style, color=color)
        ax.plot(list(measured[name]), list(measured[name].values()), "o", color=color, markersize=6)
    ax.set(xscale="log", yscale="log", xlim=(50, MILLION), xlabel="length of the text, in tokens")
    ax.set_ylabel("memory at the peak")
    ax.set_xticks([100, 10_000, MILLION], ["100", "10,000", "1,000,000"])
    sizes = [1024**power for power in (2, 3, 4)]
    ax.set_yticks(sizes, list(map(in_bytes, sizes)))
    ax.minorticks_off()
    ends = {name: FORMULAS[name](MILLION) for name in COLORS}
    steps, fused = (in_bytes(end) for end in ends.values())
    said = {
        "in steps": f"scores and weights,\nT × T for each head:\n{steps}",
        "fused": f"no table (fused):\n{fused}",
    }
    times = float(f"{ends['in steps'] / ends['fused']:.1g}")
    ax.annotate(
        "", (MILLION, ends["fused"]), (MILLION, ends["in steps"]), arrowprops={"arrowstyle": "<->", "color": INK}
    )
    middle = math.sqrt(ends["in steps"] * ends["fused"])
    ax.annotate(f"× {times:,.0f}", (MILLION, middle), (-8, 0), textcoords="offset points", ha="right", va="center")
    label_ends(ax, {said[name]: (MILLION, end, COLORS[name]) for name, end in ends.items()}, size=10)
    title = f"With T × T tables, a million tokens need {times:,.0f} times the memory"
    note = (
        f"one small layer: d_model = {D_MODEL}, {NUM_HEADS} heads, float32, untrained · dots: measured, "
        f"up to {longest:,} tokens; dashed: by formula"
    )
    headline(fig, title, note)
    return fig, f"{title}. Peak memory of a layer against length: formulas, and what was measured."


@cli.script
def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    measured = measure(QUICK_LENGTHS if options.quick else LENGTHS)
    save_plot(options, "phase2/cost_model", *draw(measured))
    print(f"\nMeasured and by formula differ by {max(errors(measured).values()):.1%} at most")
    counts = costs_by_heads()
    show_tables(counts)
    findings.record(options, growth(measured))
    return f"16 heads take the parameters and operations of one, and {counts[16][2] // counts[1][2]} times the weights"


if __name__ == "__main__":
    cli.run(main)
