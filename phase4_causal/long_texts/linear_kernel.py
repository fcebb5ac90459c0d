"""Where is linear attention near softmax attention, and is it cheaper?

Linear attention is often called an approximation of softmax attention. An approximation should be nearer than a plain
average of all values, which does not even look at queries and keys. So all are applied to the same random queries, keys
and values, and the distance is that of the outputs, as a share of what softmax attention gives:

    distance  =  |output - softmax output| / |softmax output|

Larger queries and keys make softmax sharp. φ(q)·φ(k) with elu + 1 hardly changes with size: every feature is positive,
so that all products are large and alike. Positive random features do follow softmax, on average; but how much they
vary grows exponentially with the square of the length of queries and keys.

    python phase4_causal/long_texts/linear_kernel.py

Writes linear_attention.png to visualizations/plots/phase4/.
"""

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor

from phase1_single_head.self_attention import scaled_dot_product_attention
from phase4_causal.long_texts.linear_attention import (
    FeatureMap,
    linear_attention,
    positive_random_features,
    random_directions,
)
from shared import cli
from shared.evidence import findings
from shared.evidence.claims import EXPERIMENT, Claim, Numbers, measures
from shared.measure import count_operations
from shared.visualization_utils import GREEN, GREY, PURPLE, QUIET, headline, label_ends, save_plot

LENGTH, WIDTH = 100, 64  # as in the notes
SIZES = (0.25, 0.5, 1.0, 2.0)  # standard deviation of the entries of queries and keys
COUNTED = (16, 64, 128, 512, 4096)  # lengths at which operations are counted
AVERAGE, ELU, RELU = "plain average", "elu + 1", "relu"
FEATURES = {f"{count:,} random features": count for count in (64, 256, 1024, 4096)}
FEWEST, MOST = next(iter(FEATURES)), list(FEATURES)[-1]
DRAWN = {ELU: GREEN, MOST: PURPLE}


def make_inputs(seed: int, size: float = 1.0) -> list[Tensor]:
    """Random queries, keys and values (LENGTH, WIDTH); the same for every size."""
    generator = torch.Generator().manual_seed(seed)
    query, key, value = torch.randn(3, LENGTH, WIDTH, dtype=torch.float64, generator=generator)
    return [size * query, size * key, value]


def feature_maps(seed: int) -> dict[str, str | FeatureMap]:
    """Every φ that is compared."""
    directions = random_directions(max(FEATURES.values()), WIDTH, torch.Generator().manual_seed(10**6 + seed))
    random = {name: positive_random_features(directions[:count]) for name, count in FEATURES.items()}
    return {ELU: "elu", RELU: "relu"} | random


def distance(output: Tensor, target: Tensor) -> float:
    return ((output - target).norm() / target.norm()).item()


def at(size: float, values: list[float]) -> float:
    return values[SIZES.index(size)]


def of_average(n: Numbers, name: str, size: float) -> float:
    """A distance as a multiple of that of the plain average."""
    return at(size, n[name]) / at(size, n[AVERAGE])


def near_if_short(n: Numbers) -> bool:
    near = of_average(n, MOST, 0.25) <= 0.5 and at(0.25, n[MOST]) <= at(0.25, n[FEWEST]) / 3
    return near and of_average(n, MOST, 2.0) >= 1


WORLD = {AVERAGE: [0.06, 0.2, 0.7, 0.9], ELU: [0.06, 0.2, 0.7, 0.9], RELU: [0.3, 0.3, 0.7, 0.9]}


@measures(
    Claim(
        id="C055",
        text="Linear attention (with elu + 1 or relu) is an approximation of softmax attention",
        kind=EXPERIMENT,
        source="course notes, Linear Attention, on such inputs of size 1; Katharopoulos et al. 2020 do not say it",
        rule="at size 1 the nearer of the two is at most half as far as a plain average of the values",
        holds=lambda n: min(of_average(n, name, 1.0) for name in (ELU, RELU)) <= 0.5,
        oracle=WORLD | {ELU: [0.0, 0.01, 0.05, 0.1]},
        null=WORLD,
        unit=f"distance from softmax attention at sizes {', '.join(f'{size:g}' for size in SIZES)}",
        control="a plain average of the values, which looks at neither queries nor keys",
        shows=(ELU, RELU, AVERAGE),
    ),
    Claim(
        id="linear-random-features",
        text="Positive random features come near softmax attention if there are enough for the length of queries and "
        "keys: a few thousand do for short ones, and not for long ones",
        kind=EXPERIMENT,
        source="Choromanski et al. 2021 (FAVOR+), theorem 4",
        rule=f"{MOST}: at size 0.25 at most half as far as a plain average, and a third as far as "
        f"{FEWEST.split()[0]} of them; at size 2 no nearer than a plain average",
        holds=near_if_short,
        oracle=WORLD | {FEWEST: [0.11, 0.6, 2.0, 1.4], MOST: [0.014, 0.1, 1.5, 1.3]},
        null=WORLD | {FEWEST: [0.11, 0.6, 2.0, 1.4], MOST: [0.11, 0.6, 2.0, 1.4]},
        unit=f"distance from softmax attention at sizes {', '.join(f'{size:g}' for size in SIZES)}",
        control="a plain average of the values",
        shows=("*random features", AVERAGE),
    ),
)
def distances(seed: int) -> dict[str, list[float]]:
    """Distance from softmax attention of each feature map and of the plain average, one for each size."""
    maps, found = feature_maps(seed), {}
    for size in SIZES:
        query, key, value = make_inputs(seed, size)
        target, _ = scaled_dot_product_attention(query, key, value)
        outputs = {name: linear_attention(query, key, value, feature_map=each) for name, each in maps.items()}
        for name, output in (outputs | {AVERAGE: value.mean(dim=0).expand_as(target)}).items():
            found.setdefault(name, []).append(distance(output, target))
    return found


def operations(length: int) -> tuple[int, int]:
    """Operations of one head: softmax attention, linear attention with as many features as d_k."""
    inputs = torch.empty(3, length, WIDTH, device="meta")  # shapes without numbers
    return count_operations(scaled_dot_product_attention, *inputs), count_operations(linear_attention, *inputs)


def show(found: dict[str, list[float]]) -> None:
    print(f"\n{'distance from softmax attention':34}" + "".join(f"{f'size {size:g}':>10}" for size in SIZES))
    for name, values in found.items():
        print(f"   {name:31}" + "".join(f"{value:10.3f}" for value in values))
    print(f"\n{'operations, one head':34}" + "".join(f"{f'T = {length:,}':>14}" for length in COUNTED))
    for name, counts in zip(("softmax", "linear"), zip(*map(operations, COUNTED), strict=True), strict=True):
        print(f"   {name:31}" + "".join(f"{count:14,}" for count in counts))


def draw(found: dict[str, list[float]], seed: int) -> tuple[Figure, str]:
    """The distance of each feature map as a multiple of that of the plain average, against the size."""
    fig, ax = plt.subplots(figsize=(8.2, 4.8), layout="constrained")
    ends, highest = {}, 1.0
    for name, color in DRAWN.items():
        ratios = [of_average(found, name, size) for size in SIZES]
        ax.plot(SIZES, ratios, "o-", color=color, linewidth=2.5, ms=7)
        ends[name] = (SIZES[-1], ratios[-1], color)
        highest = max(highest, *ratios)
    ax.plot(SIZES, [1] * len(SIZES), "--", color=GREY, linewidth=2, zorder=0)
    for height, text in ((1.15, "further off than average ↑"), (0.85, "nearer ↓")):
        ax.text(SIZES[0], height, text, va="center", color=QUIET)
    ax.set(xscale="log", xlabel="size of queries and keys (standard deviation)", ylim=(0, 1.1 * highest))
    ax.set_xticks(SIZES, [f"{size:g}" for size in SIZES])
    ax.set_ylabel("distance from softmax attention\n(that of a plain average = 1)")
    ax.minorticks_off()
    title = "Linear attention with elu + 1 comes hardly nearer to softmax than a plain average"
    headline(fig, title, f"no model: {LENGTH} random tokens, d = {WIDTH}, seed {seed}, no mask", 12)
    label_ends(ax, ends, size=10)
    return fig, f"{title}. Distance from softmax against the size, a line for each feature map."


@cli.script
def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    found = [distances(seed) for seed in cli.seeds(options)]
    show(found[0])
    save_plot(options, "phase4/linear_attention", *draw(found[0], options.seed))
    findings.record(options, *found, show_numbers=False)
    elu, average = (at(1.0, found[0][name]) for name in (ELU, AVERAGE))
    near, plain = (at(0.25, found[0][name]) for name in (MOST, AVERAGE))
    return f"{ELU}: {elu:.2f} at size 1, a plain average {average:.2f}; {MOST}: {near:.3f} at 0.25, average {plain:.3f}"


if __name__ == "__main__":
    cli.run(main)
