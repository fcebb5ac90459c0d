"""What many heads cost: the same parameters and the same operations as one, counted.

A head is a slice. Cut d_model = 512 into 1, 8 or 16 slices, and the projections stay 512 x 512; each head's scores take
d_k multiplications instead of d_model, and there are d_model / d_k heads. Only the weights, T x T for each head, grow.

    python phase2_multi_head/costs/head_costs.py

The second table lists heads and their sizes in published models; the numbers are those of the papers named.
"""

import argparse
from functools import partial

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from phase1_single_head.long_path.layer_costs import count_operations
from phase1_single_head.self_attention import SelfAttention
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from shared import cli
from shared.evidence import findings
from shared.evidence.findings import Finding
from shared.measure import peak_memory

D_MODEL, LENGTH, HEADS = 512, 128, (1, 2, 4, 8, 16, 32)

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


def training_peak(layers: int, length: int, *, checkpointed: bool, d_model: int = 64, heads: int = 4) -> int:
    """Bytes at the peak of one forward and backward pass through a stack of attention layers, one text.

    checkpointed: a layer keeps only its input, and computes its weights again when their gradients are due (Chen et al.
    2016).
    """
    stack = nn.ModuleList(MultiHeadAttention(d_model, heads) for _ in range(layers))
    x = torch.randn(1, length, d_model, requires_grad=True)

    def step() -> None:
        state = x
        for layer in stack:
            attend = partial(first_output, layer)
            state = state + (checkpoint(attend, state, use_reentrant=False) if checkpointed else attend(state))
        state.sum().backward()

    return peak_memory(step)


def first_output(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return layer(x)[0]


def count_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def parameters_counted() -> dict[str, int]:
    """Parameters of one attention, d_model = 512; the formulas are asserted."""
    d = D_MODEL
    counted = {
        "one head without W_O": count_parameters(SelfAttention(d)),
        "one head with W_O": count_parameters(SelfAttention(d, output_projection=True)),
        "8 heads": count_parameters(MultiHeadAttention(d, 8, bias=False)),
        "8 heads with biases": count_parameters(MultiHeadAttention(d, 8)),
    }
    formulas = (("3d²", 3 * d**2), ("4d²", 4 * d**2), ("4d²", 4 * d**2), ("4d² + 4d", 4 * d**2 + 4 * d))
    print(f"\nParameters, d_model = {d}:")
    for (name, count), (text, formula) in zip(counted.items(), formulas, strict=True):
        print(f"   {name:22} {count:>10,} = {text}")
        assert count == formula
    return counted


def show_checkpointing() -> dict[str, int]:
    """Bytes at the peak of training: layers and length against keeping all weights or computing them again."""
    print("\nPeak of one training step, d_model = 64, 4 heads (MiB), without and with gradient checkpointing:")
    found = {}
    for layers, length in ((1, 512), (8, 512), (8, 1024)):
        name = f"{layers} layer{'s' * (layers > 1)}, T={length}"
        kept, again = (training_peak(layers, length, checkpointed=c) for c in (False, True))
        found |= {name: kept, f"{name}, checkpointed": again}
        print(f"   {name:18} {kept / 2**20:6.1f} {again / 2**20:6.1f}")
    return found


@torch.no_grad()
def costs_by_heads() -> dict[str, list[int]]:
    """Parameters, operations of one pass, and numbers in the weights, for each number of heads."""
    x = torch.randn(1, LENGTH, D_MODEL)
    layers = [MultiHeadAttention(D_MODEL, heads) for heads in HEADS]
    costs = {
        "parameters": [count_parameters(layer) for layer in layers],
        "operations": [count_operations(layer, x) for layer in layers],
        "weights": [layer(x)[1].numel() for layer in layers],
    }
    projections, attention = 8 * LENGTH * D_MODEL**2, 4 * LENGTH**2 * D_MODEL
    print(f"\nOne pass over T = {LENGTH} tokens (projections 8Td² = {projections:,}, attention 4T²d = {attention:,}):")
    print("   heads   parameters   operations    numbers in the weights")
    for heads, *row in zip(HEADS, *costs.values(), strict=True):
        print(f"   {heads:5} {row[0]:12,} {row[1]:12,} {row[2]:12,}")
    assert set(costs["operations"]) == {projections + attention}
    return costs


def show_published() -> None:
    print("\nHeads in published models:")
    for name, (heads, d_model) in PUBLISHED.items():
        print(f"   {name:40} {heads:4} heads of {d_model // heads:3}, d_model {d_model:6,}")


def show_share_of_scores() -> dict[str, float]:
    """Share of the operations that grows with T²: (T, d_model) of the models here, and of larger ones."""
    shares = {}
    for length, d_model in ((6, 64), (32, 64), (512, 512), (1024, 512), (4096, 512)):
        attention, projections = 4 * length**2 * d_model, 8 * length * d_model**2
        shares[f"T={length}, d={d_model}"] = attention / (attention + projections)
    print("\nShare of the operations that grows with T² (half at T = 2 d_model):")
    print("   " + ", ".join(f"{name}: {share:.0%}" for name, share in shares.items()))
    return shares


def main(argv: list[str] | None = None) -> None:
    options = cli.parse(cli.parser(__doc__), argv)
    parameters, costs = parameters_counted(), costs_by_heads()
    share = show_share_of_scores()
    show_published()
    record_findings(parameters, costs, share, show_checkpointing(), options)


def checkpointing_finding(peaks: dict[str, int]) -> Finding:
    grows = peaks["8 layers, T=1024, checkpointed"] / peaks["8 layers, T=512, checkpointed"]
    saves = peaks["8 layers, T=512"] / peaks["8 layers, T=512, checkpointed"]
    return Finding(
        "C149",
        "Gradient checkpointing solves the O(T²) memory of attention",
        "course notes",
        peaks | {"twice the length, checkpointed": grows, "saved with 8 layers": saves},
        "bytes at the peak of one training step; ratios",
        "with checkpointing, twice the length takes less than 2.5 times the memory",
        **findings.conditional(
            grows < 2.5, saves > 2, "many layers are the trouble: one layer's weights are kept, and grow like T²"
        ),
        control="one layer alone, from which checkpointing has nothing to save",
    )


def record_findings(
    parameters: dict[str, int],
    costs: dict[str, list[int]],
    shares: dict[str, float],
    peaks: dict[str, int],
    options: argparse.Namespace,
) -> None:
    by_heads = {name: {f"H={h}": c for h, c in zip(HEADS, counts, strict=True)} for name, counts in costs.items()}
    operations = by_heads["operations"]
    one, four_d = parameters["one head with W_O"], 4 * D_MODEL**2
    small = [d_model // heads for name, (heads, d_model) in PUBLISHED.items() if d_model <= 1600]
    d_k = {name: d_model // heads for name, (heads, d_model) in PUBLISHED.items()}
    counted = f"counted by torch for one pass, T = {LENGTH}, d_model = {D_MODEL}"
    findings.record(
        "phase2_multi_head/costs/head_costs.py",
        [
            Finding(
                "C026",
                "A single head has 3d² parameters, multi-head attention 4d²",
                "course notes",
                parameters,
                "parameters, d_model = 512",
                "like for like, both with W_O, the counts differ as said (3 to 4)",
                findings.verdict(one * 4 == parameters["8 heads"] * 3),
                control="the two counts as said compare a head without W_O to heads with it",
            ),
            Finding(
                "C027",
                "Multi-head attention has 4 d_model² parameters in all",
                "course notes",
                {name: parameters[name] for name in ("8 heads", "8 heads with biases")},
                "parameters, d_model = 512",
                "equals 4 · 512² = 1,048,576",
                **findings.conditional(
                    parameters["8 heads with biases"] == four_d,
                    parameters["8 heads"] == four_d,
                    "the projections have no biases, which add 4 d_model",
                ),
            ),
            Finding(
                "C028",
                "All heads together have as many parameters as one head of full size",
                "course notes",
                by_heads["parameters"],
                "parameters, d_model = 512, biases included",
                "the same number for every number of heads",
                findings.verdict(len(set(costs["parameters"])) == 1),
            ),
            Finding(
                "C029",
                "H heads cost H times the computation of one",
                "course notes",
                operations,
                counted,
                "16 heads take at least twice the operations of one",
                findings.verdict(operations["H=16"] >= 2 * operations["H=1"]),
                control="the weights, T² for each head, do grow H-fold",
            ),
            Finding(
                "C030",
                "Multi-head attention has the same asymptotic cost as one head",
                "course notes",
                operations,
                counted,
                "8Td² + 4T²d, in which H does not occur, for every number of heads",
                findings.verdict(len(set(costs["operations"])) == 1),
            ),
            Finding(
                "C031",
                "Cutting d_model into heads does not increase computation much",
                "course notes",
                operations | {f"weights, {name}": count for name, count in by_heads["weights"].items()},
                f"operations, and numbers in the weights; {counted}",
                "operations and memory for weights grow by less than a tenth from 1 head to 16",
                **findings.conditional(
                    max(by_heads[n]["H=16"] / by_heads[n]["H=1"] for n in ("operations", "weights")) < 1.1,
                    operations["H=16"] / operations["H=1"] < 1.1,
                    "computation means matrix products; softmax and the memory for weights grow with H",
                ),
            ),
            Finding(
                "C032",
                "The attention scores are the dominant cost",
                "course notes",
                shares,
                "share of all operations in Q Kᵀ and in weights · V",
                "more than half",
                **findings.conditional(
                    min(shares.values()) > 0.5,
                    shares["T=4096, d=512"] > 0.5,
                    "T > 2 d_model: not in any model of this repository",
                ),
            ),
            Finding(
                "C080",
                "Models have from 8 heads (small) to 64 (large)",
                "course notes",
                {name: heads for name, (heads, _) in PUBLISHED.items()},
                "heads in a layer, from the papers",
                "all between 8 and 64",
                findings.verdict(all(8 <= heads <= 64 for heads, _ in PUBLISHED.values())),
            ),
            Finding(
                "C082",
                "The usual size of a head is 64",
                "course notes",
                d_k,
                "d_model / heads, from the papers",
                "64 in all of them",
                **findings.conditional(
                    set(d_k.values()) == {64}, set(small) == {64}, "d_model is at most 1,600; larger models take 128"
                ),
            ),
            checkpointing_finding(peaks),
        ],
        options.output_dir,
    )


if __name__ == "__main__":
    cli.run(main)
