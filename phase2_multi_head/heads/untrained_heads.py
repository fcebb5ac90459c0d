"""Random heads draw pictures, too: what eight untrained heads look like, in numbers.

Courses like to show a grid of eight heads of a module that was never trained, under the title "different heads learn
different patterns". This script makes that module (d_model = 512, 8 heads, 10 random tokens) and measures its heads,
beside the trained toy model and the same model before training.

    python phase2_multi_head/heads/untrained_heads.py
"""

import argparse
from dataclasses import dataclass

import torch
from torch import Tensor

from phase2_multi_head.multi_head_attention import MultiHeadAttention, load_multi_head_model
from shared import cli, training
from shared.attention_utils import attention_distance, normalized_entropy
from shared.evidence import findings
from shared.evidence.findings import Finding
from shared.head_statistics import even_weights
from shared.training import Trained, attention_on

FIGURE, TRAINED, UNTRAINED = "untrained, as in the figure", "trained toy model", "toy model before training"


@dataclass(frozen=True)
class Heads:
    """One number for each head, all layers in a row; difference is over the pairs of heads of a layer."""

    entropy: list[float]  # normalised
    distance: list[float]  # mean |i - j|, over that of even weights
    largest: list[float]  # mean largest weight of a row
    difference: float  # mean total variation between two heads' rows: 0 alike, 1 no word in common


def total_variation(weights: Tensor, rows: Tensor) -> float:
    """Mean over pairs of heads and real rows of half the sum of |difference|; weights (N, H, T, T), rows (N, T)."""
    first, second = torch.triu_indices(weights.size(1), weights.size(1), offset=1)
    moved = (weights[:, first] - weights[:, second]).abs().sum(dim=-1) / 2  # (N, H, T, T) -> (N, pairs, T)
    return moved.mean(dim=1)[rows].mean().item()


def describe(layers: list[Tensor], mask: Tensor) -> Heads:
    """layers: weights (N, H, T, T) of each; mask (N, 1, T, T): real queries and real keys."""
    rows = mask.any(dim=-1)[:, 0]  # (N, 1, T, T) -> (N, T)
    even_distance = attention_distance(even_weights(mask))[:, 0][rows].mean()
    entropy, distance, largest, differences = [], [], [], []
    for weights in layers:
        entropy += normalized_entropy(weights, mask).nanmean(dim=(0, 2)).tolist()
        for head in weights.unbind(dim=1):
            distance.append((attention_distance(head)[rows].mean() / even_distance).item())
            largest.append(head.amax(dim=-1)[rows].mean().item())
        differences.append(total_variation(weights, rows))
    return Heads(entropy, distance, largest, sum(differences) / len(differences))


@torch.no_grad()
def the_figure() -> Heads:
    """Two sequences of 10 random tokens through 8 untrained heads."""
    _, weights = MultiHeadAttention(512, 8)(torch.randn(2, 10, 512))
    return describe([weights], torch.ones(2, 1, 10, 10, dtype=torch.bool))


def of_model(trained: Trained) -> Heads:
    layers, mask = attention_on(trained.model, training.corpus()[1][:200], trained.recipe.objective)
    return describe([layer.cpu() for layer in layers], mask.cpu())


def main(argv: list[str] | None = None) -> None:
    options = cli.parse(cli.parser(__doc__), argv)
    trained = load_multi_head_model(options)
    torch.manual_seed(options.seed)
    heads = {
        FIGURE: the_figure(),
        UNTRAINED: of_model(training.untrained(trained.recipe, MultiHeadAttention)),
        TRAINED: of_model(trained),
    }
    print("\nsmallest to largest of all heads       normalised   distance to even   largest weight    difference")
    print("                                          entropy     weights' = 1       of a row         of two heads")
    for name, h in heads.items():
        columns = [f"{min(c):.2f} to {max(c):.2f}" for c in (h.entropy, h.distance, h.largest)]
        print(f"   {name:32} {columns[0]:>15} {columns[1]:>17} {columns[2]:>16} {h.difference:11.2f}")
    record_findings(heads, options)


def record_findings(heads: dict[str, Heads], options: argparse.Namespace) -> None:
    figure, untrained, trained = heads[FIGURE], heads[UNTRAINED], heads[TRAINED]
    spread = {name: max(h.distance) - min(h.distance) for name, h in heads.items()}
    findings.record(
        "phase2_multi_head/heads/untrained_heads.py",
        [
            Finding(
                "C071",
                "The grid of all heads shows the diversity of their patterns",
                "course notes",
                {name: h.difference for name, h in heads.items()},
                "mean total variation between the rows of two heads",
                "0.3 or more, and at least twice that of the same model before training",
                **findings.conditional(
                    min(figure.difference, untrained.difference) >= 0.3,
                    trained.difference >= max(0.3, 2 * untrained.difference),
                    "the model is trained",
                ),
                control="untrained modules",
                seeds=[options.seed],
            ),
            Finding(
                "C073",
                "Each of the 8 heads (of the untrained module) learned a different pattern",
                "course notes",
                {"heads": figure.entropy},
                "normalised entropy",
                "some head is below 0.9: it prefers some words to others",
                findings.verdict(min(figure.entropy) < 0.9),
                control=f"heads of the trained model: {findings.number(trained.entropy)}",
                seeds=[options.seed],
            ),
            Finding(
                "C074",
                "Some heads look nearby and others far away, some are sparse",
                "course notes",
                {f"{name}, distance, farthest minus nearest head": value for name, value in spread.items()}
                | {f"{name}, largest weight": max(h.largest) for name, h in heads.items()},
                "mean distance over that of even weights; mean largest weight of a row",
                "heads differ by 0.3 in distance, and one gives half its weight to a single word",
                **findings.conditional(
                    spread[FIGURE] >= 0.3 and max(figure.largest) >= 0.5,
                    spread[TRAINED] >= 0.3 and max(trained.largest) >= 0.5,
                    "the model is trained; the figure shows one that is not",
                ),
                seeds=[options.seed],
            ),
            Finding(
                "C075",
                "Different heads learn different patterns",
                "course notes",
                {name: max(h.entropy) - min(h.entropy) for name, h in heads.items()},
                "normalised entropy, most even head minus sharpest",
                "0.1 or more",
                **findings.conditional(
                    min(max(h.entropy) - min(h.entropy) for h in (figure, untrained)) >= 0.1,
                    max(trained.entropy) - min(trained.entropy) >= 0.1,
                    "they were trained; the title stands over modules with random weights",
                ),
                seeds=[options.seed],
            ),
        ],
        options.output_dir,
    )


if __name__ == "__main__":
    cli.run(main)
