"""Linear attention is another kernel: how far it is from softmax attention, beside an average that looks at nothing.

Linear attention is often called an approximation of softmax attention. An approximation should be nearer than a plain
average of all values, which does not even look at queries and keys. So all are applied to the same random queries, keys
and values, and the distance is that of the outputs, as a share of what softmax attention gives:

    distance  =  |output - softmax output| / |softmax output|

Larger queries and keys make softmax sharp. φ(q)·φ(k) hardly changes with size: every feature is positive, so that all
products are large and alike.

    python phase4_causal/long_texts/linear_kernel.py

Writes linear_attention.png to visualizations/plots/phase4/.
"""

import argparse
import statistics

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from phase1_single_head.self_attention import scaled_dot_product_attention
from phase4_causal.long_texts.linear_attention import FEATURE_MAPS, linear_attention, linear_attention_recurrent
from shared import cli, paths
from shared.attention_utils import effective_context, normalized_entropy
from shared.evidence import findings
from shared.evidence.findings import Finding
from shared.visualization_utils import head_color, model_note, save_figure

LENGTH, WIDTH = 100, 64
SCALES = (0.25, 0.5, 1.0, 2.0, 4.0)  # standard deviation of the entries of queries and keys
COUNTED = (16, 64, 128, 512, 4096)  # lengths at which operations are counted
AVERAGE = "plain average"
NAMES = {"elu": "linear, elu + 1", "relu": "linear, relu", AVERAGE: AVERAGE}


def make_inputs(seed: int, scale: float = 1.0) -> list[Tensor]:
    """Random queries, keys and values (LENGTH, WIDTH); the same for every scale."""
    generator = torch.Generator().manual_seed(seed)
    query, key, value = torch.randn(3, LENGTH, WIDTH, dtype=torch.float64, generator=generator)
    return [scale * query, scale * key, value]


def distance(output: Tensor, target: Tensor) -> float:
    return ((output - target).norm() / target.norm()).item()


def distances(seed: int, scale: float) -> dict[str, float]:
    """Distance from softmax attention of each feature map and of the plain average."""
    query, key, value = make_inputs(seed, scale)
    target, _ = scaled_dot_product_attention(query, key, value)
    found = {name: distance(linear_attention(query, key, value, feature_map=name), target) for name in FEATURE_MAPS}
    return found | {AVERAGE: distance(value.mean(dim=0).expand_as(target), target)}


def kernel_weights(seed: int) -> dict[str, Tensor]:
    """All weights (LENGTH, LENGTH) at scale 1, written out: with the identity as values the output is the weights."""
    query, key, _ = make_inputs(seed)
    identity = torch.eye(LENGTH, dtype=query.dtype)
    linear = {NAMES[name]: linear_attention(query, key, identity, feature_map=name) for name in FEATURE_MAPS}
    uniform = torch.full_like(identity, 1 / LENGTH)
    return {"softmax": scaled_dot_product_attention(query, key, identity)[1], **linear, AVERAGE: uniform}


def counted_operations(length: int) -> dict[str, int]:
    """Operations in the matrix products of one head, counted by torch on tensors without numbers."""
    inputs = torch.empty(3, length, WIDTH, device="meta")
    counts = {}
    for name, attention in (("softmax", scaled_dot_product_attention), ("linear", linear_attention)):
        with FlopCounterMode(display=False) as counter:
            attention(*inputs)
        counts[name] = counter.get_total_flops()
    return counts


def draw(by_scale: dict[float, dict[str, float]], weights: dict[str, Tensor], seed: int) -> tuple[Figure, str]:
    """Left: distance against the size of queries and keys. Right: the weights of one query, largest first."""
    colors = {name: head_color(index) for index, name in enumerate(weights)}
    fig, (left, right) = plt.subplots(1, 2, figsize=(10.2, 4.6), layout="constrained")
    for name, label in NAMES.items():
        values = [found[name] for found in by_scale.values()]
        style = "--" if name == AVERAGE else "-"
        left.plot(list(by_scale), values, style, marker="o", ms=5, color=colors[label], label=label)
    left.axhline(0, color=colors["softmax"], linewidth=2)
    left.text(SCALES[0], 0.02, "softmax attention itself", color=colors["softmax"], fontsize=9)
    left.set(xscale="log", xlabel="size of queries and keys (standard deviation)", ylabel="distance from softmax")
    left.set_ylim(bottom=-0.04)
    left.set_xticks(SCALES, [f"{scale:g}" for scale in SCALES])
    left.minorticks_off()
    left.legend(frameon=False, loc="lower right")
    left.set_title("distance of the outputs")
    for name, matrix in weights.items():
        style = "--" if name == AVERAGE else "-"
        ordered = matrix.sort(dim=-1, descending=True).values.mean(dim=0)  # (T_q, T_k) -> (T_k,): mean over queries
        context = effective_context(matrix).mean().item()
        right.plot(range(1, LENGTH + 1), ordered, style, color=colors[name], label=f"{name}: as many as {context:.0f}")
    right.set(xlabel="key, the largest weight first", ylabel="weight, mean over queries", title="weights at size 1")
    right.legend(frameon=False, title="keys that count, exp(entropy)", title_fontsize=9)
    one = by_scale[1.0]
    title = (
        f"At size 1 linear attention (elu + 1) is {one['elu']:.2f} away from softmax; "
        f"a plain average of the values, {one[AVERAGE]:.2f}"
    )
    fig.suptitle(title, fontsize=12.5)
    model_note(
        fig,
        f"no model: random queries, keys and values, {LENGTH} tokens, d = {WIDTH}, seed {seed}, no mask · "
        f"normalised entropy at size 1: softmax {normalized_entropy(weights['softmax']).mean():.3f}, "
        f"elu + 1 {normalized_entropy(weights[NAMES['elu']]).mean():.3f}",
    )
    return fig, f"{title}. Distance from softmax attention against the size of queries and keys, and sorted weights."


def show(by_scale: dict[float, dict[str, float]], operations: dict[int, dict[str, int]]) -> None:
    print(f"\nDistance from softmax attention, {LENGTH} tokens, d = {WIDTH}, by size of queries and keys")
    print(f"   {'':20}" + "".join(f"{scale:>9g}" for scale in by_scale))
    for name, label in NAMES.items():
        print(f"   {label:20}" + "".join(f"{found[name]:9.3f}" for found in by_scale.values()))
    print(f"\nOperations of one head, d = {WIDTH}, counted")
    for length, counts in operations.items():
        print(f"   T = {length:5,}: softmax {counts['softmax']:>15,}   linear {counts['linear']:>15,}")


def record_findings(
    by_seed: list[dict[float, dict[str, float]]], operations: dict[int, dict[str, int]], options: argparse.Namespace
) -> None:
    every = [found for by_scale in by_seed for found in by_scale.values()]
    ratios = [found[name] / found[AVERAGE] for found in every for name in FEATURE_MAPS]
    at_one = {label: [round(by_scale[1.0][name], 4) for by_scale in by_seed] for name, label in NAMES.items()}
    query, key, value = make_inputs(options.seed)
    target, _ = scaled_dot_product_attention(query, key, value)
    unscaled = distance(torch.softmax(query @ key.mT, dim=-1) @ value, target)
    fewer = {length: counts["linear"] < counts["softmax"] for length, counts in operations.items()}
    long, short = COUNTED[-1], COUNTED[-2]
    growth = operations[long]["linear"] / operations[short]["linear"]
    states = {n: linear_attention_recurrent(*(x[:n] for x in (query, key, value)))[1].numel() for n in (10, LENGTH)}
    findings.record(
        "phase4_causal/long_texts/linear_kernel.py",
        [
            Finding(
                "C053",
                "Linear attention is O(T), and so takes fewer operations than softmax attention",
                "course notes; Katharopoulos et al. 2020",
                {f"linear over softmax, T = {n:,}": c["linear"] / c["softmax"] for n, c in operations.items()}
                | {f"linear, {long:,} over {short} tokens": growth},
                f"ratio of operations, counted, d = {WIDTH}",
                "grows with T by less than 1% more, and fewer than softmax at each length; or else from 2 d tokens on",
                **findings.conditional(
                    growth <= 1.01 * long / short and all(fewer.values()),
                    growth <= 1.01 * long / short and all(fewer[n] for n in COUNTED if n >= 2 * WIDTH),
                    "the text is longer than d: the cost is T d² in place of T² d",
                ),
            ),
            Finding(
                "C054",
                "Multiplying keys with values first costs O(d²) in place of O(T²)",
                "course notes",
                {f"state after {n} tokens": size for n, size in states.items()} | {"growth of operations": growth},
                f"numbers in the state; operations at {long:,} tokens over those at {short}",
                "neither state nor operations grow with T; or else only the state does not",
                **findings.conditional(
                    len(set(states.values())) == 1 and growth <= 1.01,
                    len(set(states.values())) == 1,
                    "it speaks of the memory of the state; the operations are T d²",
                ),
            ),
            Finding(
                "C055",
                "Linear attention approximates softmax attention",
                "course notes",
                at_one | {"linear over average, worst size": round(max(ratios), 4)},
                f"distance from softmax attention at size 1; ratio over sizes {SCALES[0]:g} to {SCALES[-1]:g}",
                "at every size and for every feature map at most half as far as a plain average of the values",
                findings.verdict(max(ratios) <= 0.5),
                control="it is exact for its own kernel, see long_context.py",
                seeds=list(cli.seeds(options)),
            ),
            Finding(
                "C056",
                "softmax(Q Kᵀ) V is the attention that linear attention replaces",
                "course notes",
                {"without √d_k": round(unscaled, 4)},
                "distance from softmax(Q Kᵀ / √d_k) V, random inputs of size 1",
                "below 0.001",
                findings.verdict(unscaled < 1e-3),
                control="the formula leaves out the division by √d_k",
            ),
        ],
        options.output_dir,
    )


def main(argv: list[str] | None = None) -> None:
    options = cli.parse(cli.parser(__doc__), argv)
    by_seed = [{scale: distances(seed, scale) for scale in SCALES} for seed in cli.seeds(options)]
    means = {s: {n: statistics.mean(found[s][n] for found in by_seed) for n in NAMES} for s in SCALES}
    operations = {length: counted_operations(length) for length in COUNTED}
    show(means, operations)
    figure, caption = draw(means, kernel_weights(options.seed), options.seed)
    save_figure(
        figure, options.output_dir / paths.PLOTS / "phase4" / f"linear_attention.{options.format}", caption=caption
    )
    record_findings(by_seed, operations, options)


if __name__ == "__main__":
    cli.run(main)
