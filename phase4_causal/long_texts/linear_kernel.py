"""Is linear attention an approximation of softmax attention?

An approximation should be nearer than a plain average of all values, which looks at neither queries nor keys. All are
applied to the same random queries, keys and values. The distance is |output - softmax output| / |softmax output|, at
several sizes of the entries of queries and keys: larger ones make softmax sharp, and change φ(q)·φ(k) little.
"""

import torch

from phase1_single_head.self_attention import scaled_dot_product_attention
from phase4_causal.long_texts.linear_attention import linear_attention
from shared.evidence.claims import Claim, Numbers
from shared.experiment import Experiment, Run

LENGTH, WIDTH, SIZES = 100, 64, (0.25, 0.5, 1.0, 2.0)  # sizes: standard deviations
MAPS = {"elu + 1": "elu", "relu": "relu"}


def measure(run: Run) -> Numbers:
    """Distance from softmax attention, of both feature maps and of the plain average, at each size."""
    generator, found = torch.Generator().manual_seed(run.seed), {}
    query, key, value = torch.randn(3, LENGTH, WIDTH, dtype=torch.float64, generator=generator)
    for size in SIZES:
        target, _ = scaled_dot_product_attention(size * query, size * key, value)
        outputs = {name: linear_attention(size * query, size * key, value, feature_map=m) for name, m in MAPS.items()}
        for name, output in (outputs | {"plain average": value.mean(dim=0)}).items():
            found[f"{name}, {size:g}"] = ((output - target).norm() / target.norm()).item()
    return found


CLAIM = Claim(
    id="C055",
    text="Linear attention (with elu + 1 or relu) is an approximation of softmax attention",
    source="course notes, Linear Attention, on such inputs of size 1; Katharopoulos et al. 2020 do not say it",
    rule="at size 1 the nearer of the two is at most half as far as a plain average of the values",
    holds=lambda n: min(n["elu + 1, 1"], n["relu, 1"]) <= 0.5 * n["plain average, 1"],
    oracle={"plain average, *": 0.7, "*": 0.05},
    null={"*": 0.7},
)

main = Experiment(
    measure,
    [CLAIM],
    answer="At size 1 elu + 1 is {n[elu + 1, 1]:.2f} away from softmax, a plain average {n[plain average, 1]:.2f}",
)

if __name__ == "__main__":
    main.run()
