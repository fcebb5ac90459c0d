"""What does multi-head attention cost, by heads and by length?

    parameters   4 d²                     for any number of heads (biases: 4 d more)
    operations   8 T d² + 4 T² d          four projections; scores and means, of all heads together
    memory       8 H T² + 20 T d bytes    in steps: scores and weights, T x T for each head; five
                                          vectors of d a word
                 20 T d bytes             fused: no matrix T x T

Torch counts the operations, and the allocator counts the bytes, for one sequence in float32 with
nothing kept for training. We compare both with the formulas: a formula that is right at every
measured length may be trusted at lengths that no machine can hold.
"""

from functools import partial

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure

from phase2_multi_head.costs.measure import count_operations, in_bytes, peak_memory
from phase2_multi_head.fused_attention import FusedMultiHeadAttention
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from shared.claims import Numbers
from shared.experiment import Experiment, Results, Run
from shared.toy_model import default_dtype
from shared.visualization_utils import BLUE, GREY, WIDE, readable

D_MODEL, NUM_HEADS, MILLION = 128, 2, 1_000_000
LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096)
QUICK_LENGTHS = LENGTHS[:-2]
COLORS = {"in steps": GREY, "fused": BLUE}
LAYERS = {"in steps": MultiHeadAttention, "fused": FusedMultiHeadAttention}
KINDS_OF_MEMORY = {"in steps": "step by step:\nT × T tables", "fused": "fused: no table"}
BESIDE_ENDS = {"in steps": (-64, 6), "fused": (0, -36)}  # points: where the picture names a line


def peak_bytes(way: str, length: int, d_model: int = D_MODEL, num_heads: int = NUM_HEADS) -> int:
    """Returns the most that a layer needs at one time, on paper.

    In steps that is when the values are averaged: queries, divided queries, keys, values, means,
    scores, weights. Or else, if T < d_k, at the end: in place of scores and divided queries, the
    merged heads and the output. Fused, the scratch memory of the kernel is left out.
    """
    vectors, matrices = 4 * length * d_model, 4 * num_heads * length**2
    if way == "fused":
        return 5 * vectors
    return max(5 * vectors + 2 * matrices, 6 * vectors + matrices)


@torch.no_grad()
def measured_peak(way: str, length: int, d_model: int = D_MODEL, num_heads: int = NUM_HEADS) -> int:
    """Returns the peak bytes of a forward pass over one sequence, on the CPU."""
    layer = LAYERS[way](d_model, num_heads, bias=False)
    return peak_memory(partial(layer, torch.randn(1, length, d_model)))


@torch.no_grad()
def costs_of(num_heads: int) -> dict[str, int]:
    """Returns parameters, operations and numbers in the weights; d_model = 512, 128 tokens."""
    layer, x = MultiHeadAttention(512, num_heads, bias=False), torch.randn(1, 128, 512)
    return {
        "parameters": sum(parameter.numel() for parameter in layer.parameters()),
        "operations": count_operations(layer, x),
        "weights": layer(x)[1].numel(),
    }


@default_dtype(torch.float32)  # 4 bytes a number, as in the formulas
def measure(run: Run) -> Numbers:
    """Returns costs by heads, and how many times the bytes 4 times as many tokens take."""
    lengths = QUICK_LENGTHS if run.options.quick else LENGTHS
    numbers = {}
    for heads in (1, 8, 32):
        for name, cost in costs_of(heads).items():
            numbers[f"{heads} heads, {name}"] = cost
    for way in LAYERS:
        peaks = {length: measured_peak(way, length) for length in lengths}
        numbers[f"{way}, growth"] = peaks[lengths[-1]] / peaks[lengths[-3]]
        run.shown[way] = peaks
    times_as_many = peak_bytes("in steps", MILLION) / peak_bytes("fused", MILLION)
    run.shown["times"] = float(f"{times_as_many:.1g}")  # one digit
    return numbers


def picture(results: Results) -> Figure:
    """Draws peak memory against length: formulas as lines, dashed where nothing was measured."""
    fig, ax = plt.subplots(figsize=(WIDE, 4.2), layout="constrained")
    for way, color in COLORS.items():
        peaks = results.shown[way]
        for first, last, style in ((min(peaks), max(peaks), "-"), (max(peaks), MILLION, "--")):
            lengths = np.geomspace(first, last, 60).round().astype(int).tolist()
            ax.plot(lengths, [peak_bytes(way, length) for length in lengths], style, color=color)
        ax.plot(list(peaks), list(peaks.values()), "o", color=color, markersize=6)
        end = peak_bytes(way, MILLION)
        text = f"{KINDS_OF_MEMORY[way]}\n{in_bytes(end)}"
        beside = {
            "xytext": BESIDE_ENDS[way],
            "textcoords": "offset points",
            "ha": "right",
            "va": "top",
        }
        ax.annotate(text, (MILLION, end), color=readable(color), **beside)
    ax.set(xscale="log", yscale="log", xlim=(50, MILLION), xlabel="length of the text, in tokens")
    ax.set_title("memory at the peak")
    ax.set_xticks([100, 10_000, MILLION], ["100", "10,000", "1,000,000"])
    sizes = [1024**2, 1024**3, 1024**4]
    ax.set_yticks(sizes, [in_bytes(size) for size in sizes])
    ax.minorticks_off()
    return fig


main = Experiment(
    measure,
    picture=picture,
    title="For a million tokens, T × T tables take {shown[times]:,.0f} times the memory of fused "
    "attention",
    note=f"one small layer: d_model = {D_MODEL}, {NUM_HEADS} heads, untrained\n"
    "dots: measured · dashed: by formula",
    answer="By heads, 32 of them cost the parameters and operations of one, and 32 times the "
    "tables of weights. By length, the memory for 4 times the tokens grows "
    "{n[in steps, growth]:.1f} times if attention is computed step by step, and "
    "{n[fused, growth]:.1f} times if it is fused.",
    uses="--quick",
)

if __name__ == "__main__":
    main.run()
