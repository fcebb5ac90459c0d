"""How far is linear attention from softmax attention, and is it cheaper?

Linear attention is often called an approximation of softmax attention. An approximation should be nearer than a plain
average of all values, which does not even look at queries and keys. So all are applied to the same random queries, keys
and values, and the distance is that of the outputs, as a share of what softmax attention gives:

    distance  =  |output - softmax output| / |softmax output|

Larger queries and keys make softmax sharp. φ(q)·φ(k) hardly changes with size: every feature is positive, so that all
products are large and alike.

    python phase4_causal/long_texts/linear_kernel.py

Writes linear_attention.png to visualizations/plots/phase4/.
"""

import statistics
from collections.abc import Iterable, Mapping

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor

from phase1_single_head.self_attention import scaled_dot_product_attention
from phase4_causal.long_texts.linear_attention import FEATURE_MAPS, linear_attention, linear_attention_recurrent
from shared import cli
from shared.attention_utils import effective_context, normalized_entropy
from shared.evidence import findings
from shared.evidence.claims import ERRATUM, EXPERIMENT, IDENTITY, Claim, Numbers, measures
from shared.measure import count_operations
from shared.visualization_utils import head_color, headline, save_plot

LENGTH, WIDTH = 100, 64
SCALES = (0.25, 0.5, 1.0, 2.0, 4.0)  # standard deviation of the entries of queries and keys
COUNTED = (16, 64, 128, 512, 4096)  # lengths at which operations are counted
AVERAGE = "plain average"
WORST = "linear over average, worst size"
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


def growth_is_linear(numbers: Numbers) -> bool:
    return numbers["linear, 4,096 over 512 tokens"] <= 1.01 * 4096 / 512


@measures(
    Claim(
        id="C053",
        text="Linear attention is O(T), and so takes fewer operations than softmax attention",
        kind=IDENTITY,
        source="course notes; Katharopoulos et al. 2020",
        rule="grows with T by less than 1% more, and fewer than softmax at each length; or else from 2 d tokens on",
        holds=lambda n: growth_is_linear(n) and all(n[f"linear over softmax, T = {t:,}"] < 1 for t in COUNTED),
        only_if=lambda n: (
            growth_is_linear(n) and all(n[f"linear over softmax, T = {t:,}"] < 1 for t in COUNTED if t >= 2 * WIDTH)
        ),
        condition="the text is longer than d: the cost is T d² in place of T² d",
        unit=f"ratio of operations, counted, d = {WIDTH}",
        shows=("linear*",),
    ),
    Claim(
        id="C054",
        text="Multiplying keys with values first costs O(d²) in place of O(T²)",
        kind=IDENTITY,
        rule="neither state nor operations grow with T; or else only the state does not",
        holds=lambda n: (
            n["state after 10 tokens"] == n["state after 100 tokens"] and n["linear, 4,096 over 512 tokens"] <= 1.01
        ),
        only_if=lambda n: n["state after 10 tokens"] == n["state after 100 tokens"],
        condition="it speaks of the memory of the state; the operations are T d²",
        unit="numbers in the state; ratio of operations",
        shows=("state*", "linear, *"),
    ),
)
def operations_and_state() -> dict[str, float]:
    """Operations of one head, counted, and the numbers that the recurrence carries on."""
    softmax, linear = (
        {n: count_operations(attention, *torch.empty(3, n, WIDTH, device="meta")) for n in COUNTED}
        for attention in (scaled_dot_product_attention, linear_attention)
    )
    state = {n: linear_attention_recurrent(*torch.zeros(3, n, WIDTH))[1].numel() for n in (10, 100)}
    return {
        **{f"linear over softmax, T = {n:,}": linear[n] / softmax[n] for n in COUNTED},
        "linear, 4,096 over 512 tokens": linear[4096] / linear[512],
        **{f"state after {n} tokens": size for n, size in state.items()},
    }


@measures(
    Claim(
        id="C055",
        text="Linear attention approximates softmax attention",
        kind=EXPERIMENT,
        rule="at every size and for every feature map at most half as far as a plain average of the values",
        holds=lambda n: max(n[WORST]) <= 0.5,
        oracle={WORST: [0.0]},
        null={WORST: [1.0]},
        unit=f"distance from softmax attention at sizes {', '.join(f'{scale:g}' for scale in SCALES)}",
        control="it is exact for its own kernel, see long_context.py",
    )
)
def distance_by_size(seeds: Iterable[int]) -> dict[str, list[float]]:
    """Way -> its mean distance at each size; and for each seed the worst ratio of a kernel to the plain average."""
    by_seed = [{scale: distances(seed, scale) for scale in SCALES} for seed in seeds]
    return {NAMES[n]: [statistics.mean(found[scale][n] for found in by_seed) for scale in SCALES] for n in NAMES} | {
        WORST: [max(d[name] / d[AVERAGE] for d in found.values() for name in FEATURE_MAPS) for found in by_seed]
    }


@measures(
    Claim(
        id="C056",
        text="softmax(Q Kᵀ) V is the attention that linear attention replaces",
        kind=ERRATUM,
        rule="below 0.001",
        holds=lambda n: n["without √d_k"] < 1e-3,
        unit="distance from softmax(Q Kᵀ / √d_k) V, random inputs of size 1",
        control="the formula leaves out the division by √d_k",
    )
)
def without_division(seed: int) -> dict[str, float]:
    """How far the printed formula is from scaled dot-product attention."""
    query, key, value = make_inputs(seed)
    target, _ = scaled_dot_product_attention(query, key, value)
    return {"without √d_k": distance(torch.softmax(query @ key.mT, dim=-1) @ value, target)}


def draw(by_size: Mapping[str, list[float]], weights: dict[str, Tensor], seed: int) -> tuple[Figure, str]:
    """Left: distance against the size of queries and keys. Right: the weights of one query, largest first."""
    colors = {name: head_color(index) for index, name in enumerate(weights)}
    fig, (left, right) = plt.subplots(1, 2, figsize=(10.2, 4.6), layout="constrained")
    for label in NAMES.values():
        style = "--" if label == AVERAGE else "-"
        left.plot(SCALES, by_size[label], style, marker="o", ms=5, color=colors[label], label=label)
    left.axhline(0, color=colors["softmax"], linewidth=2)
    left.text(1.2 * SCALES[0], 0.02, "softmax attention itself", color=colors["softmax"], fontsize=9)
    left.set(xscale="log", xlabel="size of queries and keys (standard deviation)", ylabel="distance from softmax")
    left.set(ylim=(-0.04, None), title="distance of the outputs")
    left.set_xticks(SCALES, [f"{scale:g}" for scale in SCALES])
    left.minorticks_off()
    left.legend(frameon=False, loc="lower right")
    for name, matrix in weights.items():
        style = "--" if name == AVERAGE else "-"
        ordered = matrix.sort(dim=-1, descending=True).values.mean(dim=0)  # (T_q, T_k) -> (T_k,): mean over queries
        context = effective_context(matrix).mean().item()
        right.plot(range(1, LENGTH + 1), ordered, style, color=colors[name], label=f"{name}: as many as {context:.0f}")
    right.set(xlabel="key, the largest weight first", ylabel="weight, mean over queries", title="weights at size 1")
    right.legend(frameon=False, title="keys that count, exp(entropy)", title_fontsize=9)
    elu, average = (by_size[name][SCALES.index(1.0)] for name in (NAMES["elu"], AVERAGE))
    title = (
        f"At size 1 linear attention (elu + 1) is {elu:.2f} away from softmax; "
        f"a plain average of the values, {average:.2f}"
    )
    headline(
        fig,
        title,
        f"no model: random queries, keys and values, {LENGTH} tokens, d = {WIDTH}, seed {seed}, no mask · "
        f"normalised entropy at size 1: softmax {normalized_entropy(weights['softmax']).mean():.3f}, "
        f"elu + 1 {normalized_entropy(weights[NAMES['elu']]).mean():.3f}",
        size=12.5,
    )
    return fig, f"{title}. Distance from softmax attention against the size of queries and keys, and sorted weights."


def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    by_size = distance_by_size(cli.seeds(options))
    save_plot(options, "phase4/linear_attention", *draw(by_size, kernel_weights(options.seed), options.seed))
    findings.record(options, operations_and_state(), by_size, without_division(options.seed))
    elu, average = (by_size[name][SCALES.index(1.0)] for name in (NAMES["elu"], AVERAGE))
    return f"As far as not looking at all: {elu:.2f} at size 1, a plain average of the values {average:.2f}"


if __name__ == "__main__":
    cli.run(main)
