"""What a layer of multi-head attention costs: on paper, then measured, then on paper for a million tokens.

    operations    8 B T d²   four projections: T d² multiplications each, and as many additions
                + 4 B T² d   scores and means: T² d multiplications each, over all heads together
    memory        in steps   8 H T² + 20 T d bytes: two matrices T x T for each head (scores, weights), and queries,
                             divided queries, keys, values, means (one sequence, float32, nothing kept for training)
                  fused      20 T d bytes, no matrix T x T: queries, keys, values, means, output; now and then the
                             kernel's scratch memory, which does not grow, is a little more than the output
    cache         8 T d      bytes of keys and values, which a model that writes must keep

Torch counts the operations and the allocator the bytes, on the CPU, to the last digit. A formula that is right at every
measured length may be trusted where no machine follows.

    python phase2_multi_head/costs/cost_model.py

Writes cost_model.png to visualizations/plots/phase2/.
"""

import argparse
from bisect import bisect_left
from functools import partial

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure
from torch.utils.flop_counter import FlopCounterMode

from phase2_multi_head.costs.fused_attention import FusedMultiHeadAttention, kv_cache_bytes
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from shared import cli, paths
from shared.evidence import findings
from shared.evidence.findings import Finding
from shared.measure import peak_memory
from shared.visualization_utils import QUIET, head_color, model_note, save_figure

D_MODEL, NUM_HEADS, MILLION = 128, 2, 1_000_000
LENGTHS, QUICK_LENGTHS = tuple(2**n for n in range(6, 13)), tuple(2**n for n in range(6, 11))  # 64 to 4,096 or 1,024
WIDTHS = (64, 128, 256, 512)  # of d_model, for the crossing


def projection_operations(length: int, d_model: int, *, batch: int = 1) -> int:
    """Of W_Q, W_K, W_V and W_O."""
    return 8 * batch * length * d_model**2


def attention_operations(length: int, d_model: int, *, batch: int = 1) -> int:
    """Of Q Kᵀ and of weights · V, all heads together."""
    return 4 * batch * length**2 * d_model


def weights_bytes(length: int, num_heads: int, *, batch: int = 1, bytes_each: int = 4) -> int:
    """One matrix T x T for each head."""
    return bytes_each * batch * num_heads * length**2


def peak_bytes_in_steps(length: int, d_model: int, num_heads: int) -> int:
    """The most that MultiHeadAttention needs at one time: one sequence, float32, no mask, no training.

    That is when the values are averaged: queries, divided queries, keys, values, means, scores, weights. Or else, if
    T < d_k, at the end: in place of scores and divided queries, the merged heads and the output.
    """
    vectors, matrices = 4 * length * d_model, weights_bytes(length, num_heads)
    return max(5 * vectors + 2 * matrices, 6 * vectors + matrices)


def peak_bytes_fused(length: int, d_model: int) -> int:
    """The same for FusedMultiHeadAttention, without the kernel's scratch memory."""
    return 5 * 4 * length * d_model


@torch.no_grad()
def counted_operations(length: int, d_model: int, num_heads: int = NUM_HEADS) -> tuple[int, int]:
    """What torch counts in MultiHeadAttention: operations of the projections, operations of the attention itself.

    A tensor on the device "meta" has a shape and no numbers, so that any length is counted in no time.
    """
    layer = MultiHeadAttention(d_model, num_heads, bias=False).to("meta")
    with FlopCounterMode(display=False) as counter:
        layer(torch.empty(1, length, d_model, device="meta"))
    by_kernel = {str(kernel): count for kernel, count in counter.get_flop_counts()["Global"].items()}
    return by_kernel["aten.mm"], by_kernel["aten.bmm"]  # x Wᵀ is one matrix product, the heads are a batch of them


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


def halved(length: int, num_heads: int = 8, d_model: int = 512) -> dict[str, float]:
    """Which share of a layer's peak memory is saved by half the length, half the heads, half of d_model."""
    whole = measured_peak(MultiHeadAttention, length, d_model, num_heads)
    halves = {
        "length": (length // 2, d_model, num_heads),
        "heads": (length, d_model, num_heads // 2),
        "d_model": (length, d_model // 2, num_heads),
    }
    return {name: 1 - measured_peak(MultiHeadAttention, *sizes) / whole for name, sizes in halves.items()}


def in_bytes(size: float) -> str:
    """1536 -> "1.5 KiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} TiB"


FORMULAS = {  # what -> length -> value on paper
    "projections": lambda length: projection_operations(length, D_MODEL),
    "attention itself": lambda length: attention_operations(length, D_MODEL),
    "in steps": lambda length: peak_bytes_in_steps(length, D_MODEL, NUM_HEADS),
    "fused": lambda length: peak_bytes_fused(length, D_MODEL),
    "cache": lambda length: kv_cache_bytes(NUM_HEADS, D_MODEL // NUM_HEADS, length, bytes_each=4),
}
Measured = dict[str, dict[int, int]]  # what -> length -> value


def measure(lengths: tuple[int, ...]) -> Measured:
    """Operations and peak bytes at each length; fused_attention.py measures the cache."""
    counted = {length: counted_operations(length, D_MODEL) for length in lengths}
    return {
        "projections": {length: projections for length, (projections, _) in counted.items()},
        "attention itself": {length: attention for length, (_, attention) in counted.items()},
        "in steps": {length: measured_peak(MultiHeadAttention, length, D_MODEL, NUM_HEADS) for length in lengths},
        "fused": {length: measured_peak(FusedMultiHeadAttention, length, D_MODEL, NUM_HEADS) for length in lengths},
    }


def show(measured: Measured) -> None:
    """Measured beside paper, at last paper alone."""
    print(f"\nOne layer, d_model = {D_MODEL}, {NUM_HEADS} heads, one sequence, float32")
    print(
        f"   {'':10}{'operations':^42}{'peak memory':^42}\n   {'T':>9} {'projections':>21}{'attention itself':>21}",
        end="",
    )
    print(f"{'in steps':>14}{'fused':>14}{'cache':>14}")
    for length in (*measured["fused"], MILLION):
        values = {name: measured.get(name, {}).get(length, formula(length)) for name, formula in FORMULAS.items()}
        operations = "".join(f"{values[name]:21,}" for name in ("projections", "attention itself"))
        memory = "".join(f"{in_bytes(values[name]):>14}" for name in ("in steps", "fused", "cache"))
        print(f"   {length:9,} {operations}{memory}{'   on paper' if length == MILLION else ''}")
    for name, error in errors(measured).items():
        print(f"   largest deviation of measured from paper, {name}: {error:.1%}")


def errors(measured: Measured) -> dict[str, float]:
    """Largest deviation from the formula, as a share of it."""
    return {
        name: max(abs(value / FORMULAS[name](length) - 1) for length, value in by_length.items())
        for name, by_length in measured.items()
    }


def draw(measured: Measured) -> tuple[Figure, str]:
    """Formulas as lines, dashed where nothing was measured; measured values as points."""
    fig, (left, right) = plt.subplots(1, 2, figsize=(10.4, 4.6), layout="constrained")
    longest = max(measured["fused"])
    panels = {
        left: {"projections": "8 T d²", "attention itself": "4 T² d"},
        right: {"in steps": "8 H T² + 20 T d", "fused": "20 T d", "cache": "8 T d"},
    }
    colors = {name: head_color(index) for index, name in enumerate(FORMULAS)}
    for ax, names in panels.items():
        for name, text in names.items():
            for lengths, style in (((min(measured["fused"]), longest), "-"), ((longest, MILLION), "--")):
                steps = np.geomspace(*lengths, 60).round().astype(int).tolist()
                ax.plot(steps, [FORMULAS[name](length) for length in steps], style, color=colors[name], linewidth=1.4)
            points, style = measured.get(name, {}), "o" if name in measured else "-"
            ax.plot(list(points), list(points.values()), style, color=colors[name], ms=5, label=f"{name}: {text}")
        ax.set(xscale="log", yscale="log", xlabel="length T")
        ax.set_xticks([100, 10_000, 1_000_000], ["100", "10,000", "1,000,000"])
        ax.minorticks_off()
        ax.legend(frameon=False, fontsize=9, loc="upper left")
    at = crossing(D_MODEL)
    left.axvline(at, ymax=0.75, color=QUIET, linewidth=1, linestyle=":")
    left.text(at * 1.15, left.get_ylim()[0] * 2, f"T = {at} = {at / D_MODEL:g} d_model", color=QUIET, fontsize=9)
    left.set_title("operations")
    right.set_title("peak memory")
    sizes = [1024**power for power in (1, 2, 3, 4)]
    right.set_yticks(sizes, [in_bytes(size) for size in sizes])
    steps, fused = (in_bytes(FORMULAS[name](MILLION)) for name in ("in steps", "fused"))
    title = f"A million tokens through one small layer: {steps} in steps, {fused} fused"
    fig.suptitle(title, fontsize=13)
    worst = max(errors(measured).values())
    model_note(
        fig,
        f"untrained, d = {D_MODEL}, H = {NUM_HEADS}, one sequence, float32, CPU · measured up to T = {longest:,}, "
        f"off the formulas by {worst:.1%} at most; dashed: on paper",
    )
    return fig, f"{title}. Operations and peak memory of a layer against length: formulas, and what was measured."


def record_findings(measured: Measured, options: argparse.Namespace) -> None:
    crossings = {f"d_model = {d_model}": crossing(d_model) for d_model in WIDTHS}
    sizes = [(length, d_model) for length in (16, 256, 4096, 65536) for d_model in WIDTHS]
    exact = sum(
        sum(counted_operations(length, d_model)) == 8 * length * d_model**2 + 4 * length**2 * d_model
        for length, d_model in sizes
    )
    short, long = halved(64), halved(512)
    *_, before, _, last = measured["fused"]
    growth = {name: measured[name][last] / measured[name][before] for name in measured}
    reached = f"from {before:,} to {last:,} tokens, 4 times as many; one layer, d_model = {D_MODEL}, {NUM_HEADS} heads"
    findings.record(
        "phase2_multi_head/costs/cost_model.py",
        [
            Finding(
                "C033",
                "For long sequences the T² term dominates",
                "course notes",
                crossings,
                "shortest length at which scores and means take as many operations as the projections, counted",
                "from 512 tokens on at every d_model; or else from 2 d_model on",
                **findings.conditional(
                    max(crossings.values()) <= 512,
                    all(crossings[f"d_model = {d_model}"] == 2 * d_model for d_model in WIDTHS),
                    "long means more than 2 d_model tokens",
                ),
            ),
            Finding(
                "C034",
                "Multi-head attention takes O(T² d + T d²) operations",
                "course notes",
                {"sizes": len(sizes), "sizes at which the count is 4T²d + 8Td²": exact},
                "T from 16 to 65,536, d_model from 64 to 512",
                "all of them",
                findings.verdict(exact == len(sizes)),
            ),
            Finding(
                "C048",
                "Flash attention takes O(T) memory",
                "Dao et al. 2022; course notes",
                {f"T = {n:,}": size for n, size in measured["fused"].items() if n >= before}
                | {"growth": growth["fused"]},
                f"peak bytes, fused; growth {reached}",
                "at most 5 times the memory (4 is linear, 16 quadratic)",
                findings.verdict(growth["fused"] <= 5),
            ),
            Finding(
                "C052",
                "Standard attention takes O(T²) time and memory",
                "Dao et al. 2022; course notes",
                {"growth of peak memory": growth["in steps"], "growth of operations": growth["attention itself"]},
                f"in steps, {reached}; operations of scores and means, in place of time",
                "at least 10 times the memory and the operations (4 is linear, 16 quadratic)",
                findings.verdict(min(growth["in steps"], growth["attention itself"]) >= 10),
            ),
            Finding(
                "C061",
                "Too little memory: reduce the length, the number of heads or d_model",
                "course notes",
                {
                    f"{name}, T = {length}": saved[name]
                    for length, saved in ((64, short), (512, long))
                    for name in saved
                },
                "share of a layer's peak memory that half of it saves, from 8 heads and d_model = 512",
                "a fifth or more, each of them at both lengths",
                **findings.conditional(
                    min(*short.values(), *long.values()) >= 0.2,
                    min(short["length"], long["length"], long["heads"], short["d_model"]) >= 0.2,
                    "the length is reduced; fewer heads help long sequences only, a smaller d_model short ones only",
                ),
            ),
        ],
        options.output_dir,
    )


def main(argv: list[str] | None = None) -> None:
    options = cli.parse(cli.parser(__doc__), argv)
    measured = measure(QUICK_LENGTHS if options.quick else LENGTHS)
    show(measured)
    figure, caption = draw(measured)
    path = options.output_dir / paths.PLOTS / "phase2" / f"cost_model.{options.format}"
    save_figure(figure, path, caption=caption)
    record_findings(measured, options)


if __name__ == "__main__":
    cli.run(main)
