"""What does multi-head attention cost, by heads and by length?

A head is a slice. Cut d_model = 512 into 1, 8 or 16 slices, and the projections stay 512 x 512; each head's scores take
d_k multiplications instead of d_model, and there are d_model / d_k heads. Only the weights, T x T for each head, grow.

    operations    8 B T d²   four projections: T d² multiplications each, and as many additions
                + 4 B T² d   scores and means: T² d multiplications each, over all heads together
    memory        in steps   8 H T² + 20 T d bytes: two matrices T x T for each head (scores, weights), and queries,
                             divided queries, keys, values, means (one sequence, float32, nothing kept for training)
                  fused      20 T d bytes, no matrix T x T: queries, keys, values, means, output; now and then the
                             kernel's scratch memory, which does not grow, is a little more than the output
    cache         8 T d      bytes of keys and values, which a model that writes must keep

Torch counts the operations and the allocator the bytes, on the CPU, to the last digit. A formula that is right at every
measured length may be trusted where no machine follows: for a million tokens.

    python phase2_multi_head/costs/cost_model.py

Writes cost_model.png to visualizations/plots/phase2/.
"""

from bisect import bisect_left
from functools import partial

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure
from torch import nn
from torch.utils.checkpoint import checkpoint

from phase1_single_head.self_attention import SelfAttention
from phase2_multi_head.costs.fused_attention import FusedMultiHeadAttention, kv_cache_bytes
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from shared import cli
from shared.evidence import findings
from shared.evidence.claims import ERRATUM, IDENTITY, PROBE, Claim, Numbers, measures
from shared.measure import count_operations, peak_memory
from shared.visualization_utils import QUIET, head_color, headline, save_plot

D_MODEL, NUM_HEADS, MILLION = 128, 2, 1_000_000
LENGTHS, QUICK_LENGTHS = tuple(2**n for n in range(6, 13)), tuple(2**n for n in range(6, 11))  # 64 to 4,096 or 1,024
WIDTHS = (64, 128, 256, 512)  # of d_model, for the crossing
BROAD, HEADS = 512, (1, 2, 4, 8, 16, 32)  # d_model and heads of the layers that are compared

# model -> (heads, d_model), from its paper
PUBLISHED = {
    "Transformer base (Vaswani et al. 2017)": (8, 512),
    "Transformer big (Vaswani et al. 2017)": (16, 1024),
    "BERT base (Devlin et al. 2019)": (12, 768),
    "BERT large (Devlin et al. 2019)": (16, 1024),
    "GPT-2 XL (Radford et al. 2019)": (25, 1600),
    "GPT-3 175B (Brown et al. 2020)": (96, 12288),
    "Llama 2 70B (Touvron et al. 2023)": (64, 8192),
    "Llama 3 8B (Grattafiori et al. 2024)": (32, 4096),
    "Llama 3 405B (Grattafiori et al. 2024)": (128, 16384),
}


COUNTED = "counted by torch for one pass, T = 128, d_model = 512"


def growth_by_heads(n: Numbers, what: str) -> float:
    return n[f"{what}, H=16"] / n[f"{what}, H=1"]


def count_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@measures(
    Claim(
        id="C026",
        text="A single head has 3d² parameters, multi-head attention 4d²",
        kind=IDENTITY,
        rule="like for like, both with W_O, the counts differ as said (3 to 4)",
        holds=lambda n: n["one head with W_O"] * 4 == n["8 heads"] * 3,
        unit="parameters, d_model = 512",
        control="the two counts as said compare a head without W_O to heads with it",
        shows=("one head*", "8 heads*"),
    ),
    Claim(
        id="C027",
        text="Multi-head attention has 4 d_model² parameters in all",
        kind=IDENTITY,
        rule="equals 4 · 512² = 1,048,576",
        holds=lambda n: n["8 heads with biases"] == 4 * BROAD**2,
        only_if=lambda n: n["8 heads"] == 4 * BROAD**2,
        condition="the projections have no biases, which add 4 d_model",
        unit="parameters, d_model = 512",
        shows=("8 heads*",),
    ),
    Claim(
        id="C028",
        text="All heads together have as many parameters as one head of full size",
        kind=IDENTITY,
        rule="the same number for every number of heads",
        holds=lambda n: len({n[f"parameters, H={heads}"] for heads in HEADS}) == 1,
        unit="parameters, d_model = 512, biases included",
        shows=("parameters, *",),
    ),
    Claim(
        id="C029",
        text="H heads cost H times the computation of one",
        kind=IDENTITY,
        rule="16 heads take at least twice the operations of one",
        holds=lambda n: n["operations, H=16"] >= 2 * n["operations, H=1"],
        unit=COUNTED,
        control="the weights, T² for each head, do grow H-fold",
        shows=("operations, *",),
    ),
    Claim(
        id="C030",
        text="Multi-head attention has the same asymptotic cost as one head",
        kind=IDENTITY,
        rule="8Td² + 4T²d, in which H does not occur, for every number of heads",
        holds=lambda n: len({n[f"operations, H={heads}"] for heads in HEADS}) == 1,
        unit=COUNTED,
        shows=("operations, *",),
    ),
    Claim(
        id="C031",
        text="Cutting d_model into heads does not increase computation much",
        kind=IDENTITY,
        rule="operations and memory for weights grow by less than a tenth from 1 head to 16",
        holds=lambda n: max(growth_by_heads(n, "operations"), growth_by_heads(n, "weights")) < 1.1,
        only_if=lambda n: growth_by_heads(n, "operations") < 1.1,
        condition="computation means matrix products; softmax and the memory for weights grow with H",
        unit=f"operations, and numbers in the weights; {COUNTED}",
        shows=("operations, *", "weights, *"),
    ),
)
@torch.no_grad()
def costs_by_heads() -> dict[str, int]:
    """Parameters with and without W_O and biases; parameters, operations, numbers in the weights by number of heads."""
    numbers = {
        "one head without W_O": count_parameters(SelfAttention(BROAD)),
        "one head with W_O": count_parameters(SelfAttention(BROAD, output_projection=True)),
        "8 heads": count_parameters(MultiHeadAttention(BROAD, 8, bias=False)),
        "8 heads with biases": count_parameters(MultiHeadAttention(BROAD, 8)),
    }
    x = torch.randn(1, 128, BROAD)
    for heads in HEADS:
        layer = MultiHeadAttention(BROAD, heads)
        numbers[f"parameters, H={heads}"] = count_parameters(layer)
        numbers[f"operations, H={heads}"] = count_operations(layer, x)
        numbers[f"weights, H={heads}"] = layer(x)[1].numel()
    return numbers


def published(name: str, n: Numbers) -> list[int]:
    """A number of all published models."""
    return [n[f"{name}, {model}"] for model in PUBLISHED]


@measures(
    Claim(
        id="C080",
        text="Models have from 8 heads (small) to 64 (large)",
        kind=ERRATUM,
        rule="all between 8 and 64",
        holds=lambda n: all(8 <= heads <= 64 for heads in published("heads", n)),
        unit="heads in a layer, from the papers",
        shows=("heads, *",),
    ),
    Claim(
        id="C082",
        text="The usual size of a head is 64",
        kind=ERRATUM,
        rule="64 in all of them",
        holds=lambda n: set(published("size", n)) == {64},
        only_if=lambda n: {n[f"size, {model}"] for model, (_, width) in PUBLISHED.items() if width <= 1600} == {64},
        condition="d_model is at most 1,600; larger models take 128",
        unit="d_model / heads, from the papers",
        shows=("size, *",),
    ),
)
def published_heads() -> dict[str, int]:
    """Heads in a layer, and their size."""
    heads = {f"heads, {model}": heads for model, (heads, _) in PUBLISHED.items()}
    return heads | {f"size, {model}": width // heads for model, (heads, width) in PUBLISHED.items()}


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


def halved(length: int) -> dict[str, float]:
    """Which share of a layer's peak memory is saved by half the length, half the heads, half of d_model."""
    whole = measured_peak(MultiHeadAttention, length, BROAD, 8)
    halves = {"length": (length // 2, BROAD, 8), "heads": (length, BROAD, 4), "d_model": (length, BROAD // 2, 8)}
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


def errors(measured: Measured) -> dict[str, float]:
    """Largest deviation from the formula, as a share of it."""
    return {
        name: max(abs(value / FORMULAS[name](length) - 1) for length, value in by_length.items())
        for name, by_length in measured.items()
    }


EXACT = "sizes at which the count is 4T²d + 8Td²"


@measures(
    Claim(
        id="C032",
        text="The attention scores are the dominant cost",
        kind=IDENTITY,
        rule="more than half",
        holds=lambda n: min(share for name, share in n.items() if name.startswith("share")) > 0.5,
        only_if=lambda n: n["share, T=4096, d=512"] > 0.5,
        condition="T > 2 d_model: not in any model of this repository",
        unit="share of all operations in Q Kᵀ and in weights · V",
        shows=("share, *",),
    ),
    Claim(
        id="C033",
        text="For long sequences the T² term dominates",
        kind=IDENTITY,
        rule="from 512 tokens on at every d_model; or else from 2 d_model on",
        holds=lambda n: max(n[f"crossing, d_model = {d_model}"] for d_model in WIDTHS) <= 512,
        only_if=lambda n: all(n[f"crossing, d_model = {d_model}"] == 2 * d_model for d_model in WIDTHS),
        condition="long means more than 2 d_model tokens",
        unit="shortest length at which scores and means take as many operations as the projections, counted",
        shows=("crossing, *",),
    ),
    Claim(
        id="C034",
        text="Multi-head attention takes O(T² d + T d²) operations",
        kind=IDENTITY,
        rule="all of them",
        holds=lambda n: n[EXACT] == n["sizes"],
        unit="T from 16 to 65,536, d_model from 64 to 512",
        shows=("sizes*",),
    ),
)
def operations_by_length() -> dict[str, float]:
    """Which part of the operations grows with T², at which lengths and widths."""
    numbers: dict[str, float] = {}
    for length, d_model in ((6, 64), (32, 64), (512, 512), (1024, 512), (4096, 512)):
        projections, attention = counted_operations(length, d_model)
        numbers[f"share, T={length}, d={d_model}"] = attention / (attention + projections)
    numbers |= {f"crossing, d_model = {d_model}": crossing(d_model) for d_model in WIDTHS}
    sizes = [(length, d_model) for length in (16, 256, 4096, 65536) for d_model in WIDTHS]
    exact = sum(counted_operations(t, d) == (projection_operations(t, d), attention_operations(t, d)) for t, d in sizes)
    return numbers | {"sizes": len(sizes), EXACT: exact}


HALVED = ("length", "heads", "d_model")
LENGTH_HALVED = ("length, T = 64", "length, T = 512")


@measures(
    Claim(
        id="C048",
        text="Flash attention takes O(T) memory",
        source="Dao et al. 2022; course notes",
        kind=PROBE,
        rule="at most 5 times the memory (4 is linear, 16 quadratic)",
        holds=lambda n: n["growth, fused"] <= 5,
        unit="peak bytes, fused; growth for 4 times as many tokens; one layer, d_model = 128, 2 heads",
        shows=("fused, *", "growth, fused", "largest deviation *", "a million *"),
    ),
    Claim(
        id="C052",
        text="Standard attention takes O(T²) time and memory",
        source="Dao et al. 2022; course notes",
        kind=PROBE,
        rule="at least 10 times the memory and the operations (4 is linear, 16 quadratic)",
        holds=lambda n: min(n["growth, in steps"], n["growth, attention itself"]) >= 10,
        unit="growth for 4 times as many tokens: peak bytes in steps; operations of scores and means, in place of time",
        shows=("growth, in steps", "growth, attention itself"),
    ),
    Claim(
        id="C061",
        text="Too little memory: reduce the length, the number of heads or d_model",
        kind=PROBE,
        rule="a fifth or more, each of them at both lengths",
        holds=lambda n: min(n[f"{name}, T = {length}"] for name in HALVED for length in (64, 512)) >= 0.2,
        only_if=lambda n: min(n[name] for name in (*LENGTH_HALVED, "heads, T = 512", "d_model, T = 64")) >= 0.2,
        condition="the length is reduced; fewer heads help long sequences only, a smaller d_model short ones only",
        unit="share of a layer's peak memory that half of it saves, from 8 heads and d_model = 512",
        shows=tuple(f"{name}, T = *" for name in HALVED),
    ),
)
def memory_by_length(measured: Measured) -> dict[str, float]:
    """How memory and operations grow, how far from the formulas, what half of each size saves, a million tokens."""
    *_, before, _, last = measured["fused"]
    return {
        **{f"fused, T = {length:,}": size for length, size in measured["fused"].items() if length >= before},
        **{f"growth, {name}": values[last] / values[before] for name, values in measured.items()},
        **{f"largest deviation from the formula, {name}": error for name, error in errors(measured).items()},
        **{f"{name}, T = {length}": saved for length in (64, 512) for name, saved in halved(length).items()},
        **{f"a million tokens, {name} (bytes)": FORMULAS[name](MILLION) for name in ("in steps", "fused", "cache")},
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


DEEP = "8 layers, T=512"


@measures(
    Claim(
        id="C149",
        text="Gradient checkpointing solves the O(T²) memory of attention",
        kind=PROBE,
        rule="with checkpointing, twice the length takes less than 2.5 times the memory",
        holds=lambda n: n["twice the length, checkpointed"] < 2.5,
        only_if=lambda n: n["saved with 8 layers"] > 2,
        condition="many layers are the trouble: one layer's weights are kept, and grow like T²",
        unit="bytes at the peak of one training step, d_model = 64, 4 heads; ratios",
        control="one layer alone, from which checkpointing has nothing to save",
    )
)
def checkpointing() -> dict[str, float]:
    """Bytes at the peak of training: layers and length against keeping all weights or computing them again."""
    found: dict[str, float] = {}
    for layers, length in ((1, 512), (8, 512), (8, 1024)):
        name = f"{layers} layer{'s' if layers > 1 else ''}, T={length}"
        found[name] = training_peak(layers, length, checkpointed=False)
        found[f"{name}, checkpointed"] = training_peak(layers, length, checkpointed=True)
    grows = found["8 layers, T=1024, checkpointed"] / found[f"{DEEP}, checkpointed"]
    return found | {
        "twice the length, checkpointed": grows,
        "saved with 8 layers": found[DEEP] / found[f"{DEEP}, checkpointed"],
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
    note = (
        f"untrained, d = {D_MODEL}, H = {NUM_HEADS}, one sequence, float32, CPU · measured up to T = {longest:,}, "
        f"off the formulas by {max(errors(measured).values()):.1%} at most; dashed: on paper"
    )
    headline(fig, title, note)
    return fig, f"{title}. Operations and peak memory of a layer against length: formulas, and what was measured."


def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    measured = measure(QUICK_LENGTHS if options.quick else LENGTHS)
    save_plot(options, "phase2/cost_model", *draw(measured))
    by_heads = costs_by_heads()
    findings.record(
        options, by_heads, published_heads(), operations_by_length(), memory_by_length(measured), checkpointing()
    )
    weights = by_heads["weights, H=16"] // by_heads["weights, H=1"]
    return f"16 heads take the parameters and operations of one, and {weights} times the memory for weights"


if __name__ == "__main__":
    cli.run(main)
