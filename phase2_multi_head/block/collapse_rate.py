"""Experiment: how fast does attention alone make all words alike? The distance is cubed in every layer.

Two rows of weights differ as far as the queries differ AND the keys differ, and what they do to the output depends on
how far the values differ: three small factors. So a distance r to rank one (see rank_collapse.py) becomes about c r³:

    0.1 -> 0.001 c -> 1e-9 c⁴ -> ...      the number of zeros triples: doubly exponential

The output "converges with a cubic rate to a rank one matrix" (Dong et al. 2021, section 1). After three or four layers
r is below 1e-16, where float64 knows only rounding. Here the mean of the words and their differences from it are
computed apart, so that the differences keep 16 digits of their own, down to 1e-300.

    python phase2_multi_head/block/collapse_rate.py
"""

import argparse
import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from phase2_multi_head.block.pre_or_post_norm import INITIAL
from phase2_multi_head.block.rank_collapse import ALONE, LAYERS, NUM_DRAWS, distance_to_rank_one, distances, new_stack
from phase2_multi_head.multi_head_attention import MultiHeadAttention, merge_heads, split_heads
from shared import cli
from shared.evidence import findings
from shared.evidence.findings import Finding


def attend_apart(attention: MultiHeadAttention, mean: Tensor, apart: Tensor) -> tuple[Tensor, Tensor]:
    """attention(mean + apart), in the same two parts: mean (1, 1, d_model), differences from it (1, T, d_model).

    What is the same for all keys of a row, softmax does not notice. So the scores can be computed from differences:
    score_ij = (mean query) · (difference of key j) + (difference of query i) · (difference of key j). The first term
    gives all words the same weights; the second is tiny, and expm1(s) = e^s - 1 keeps the digits of a tiny s.
    """
    num_heads = attention.num_heads

    def differences(linear: nn.Linear) -> Tensor:
        return split_heads(F.linear(apart, linear.weight), num_heads)  # the bias is in the mean

    query, value = (split_heads(w(mean), num_heads) for w in (attention.w_q, attention.w_v))  # -> (1, H, 1, d_k)
    key = differences(attention.w_k) / math.sqrt(query.size(-1))  # (1, T, d_model) -> (1, H, T, d_k)
    shared = torch.softmax(query @ key.mT, dim=-1)  # the weights of the mean word, (1, H, 1, T)
    growth = torch.expm1(differences(attention.w_q) @ key.mT)  # (1, H, T, T)
    total = (shared * growth).sum(dim=-1, keepdim=True)  # (1, H, T, T) -> (1, H, T, 1)
    changes = shared * (growth - total) / (1 + total)  # the weights of each word minus those of the mean word
    values = differences(attention.w_v)
    heads, heads_apart = value + shared @ values, changes @ values  # (1, H, 1, d_k), (1, H, T, d_k)
    centre = heads_apart.mean(dim=-2, keepdim=True)
    return attention.w_o(merge_heads(heads + centre)), F.linear(merge_heads(heads_apart - centre), attention.w_o.weight)


@torch.no_grad()
def exact_distances(x: Tensor, blocks: nn.ModuleList) -> list[float]:
    """As distances of attention alone, x (1, T, d_model), but right below 1e-16 too; until 0, where float64 ends."""
    mean = x.mean(dim=-2, keepdim=True)
    apart, seen = x - mean, [distance_to_rank_one(x).item()]
    for block in blocks:
        mean, apart = attend_apart(block.attention, mean, apart)
        largest = apart.abs().max()  # taken out before squaring: the square of 1e-170 would be 0
        if largest == 0:
            break
        seen.append((largest * ((apart / largest).norm() / (mean + apart).norm())).item())
    return seen


def acceleration(run: list[float]) -> list[float]:
    """By how many times more powers of ten the distance falls in each layer than in the layer before, from layer 2."""
    falls = [math.log10(before / after) for before, after in pairwise(run)]
    return [fall / before for before, fall in pairwise(falls)]


def main(argv: list[str] | None = None) -> None:
    options = cli.parse(cli.parser(__doc__), argv)
    draws = range(NUM_DRAWS * options.seed, NUM_DRAWS * (options.seed + options.seeds))
    runs: dict[str, list[list[float]]] = {}
    for initial, xavier in INITIAL.items():
        stacks = [new_stack(xavier, draw) for draw in draws]
        runs[initial] = [exact_distances(x, blocks) for x, blocks in stacks]
        plain = distances(*stacks[0], LAYERS[ALONE])
        print(f"\nAttention alone, initial weights: {initial}. Distance to rank one, layer by layer, first draw")
        print(f"   in one sum            {' '.join(f'{value:8.0e}' for value in plain)}")
        print(f"   mean and rest apart   {' '.join(f'{value:8.0e}' for value in runs[initial][0])}")
        faster = " ".join(f"{value:8.2f}" for value in acceleration(runs[initial][0]))
        print(f"   powers of ten lost, over those lost in the layer before {faster}")
    record_findings(runs, options)


def record_findings(runs: dict[str, list[list[float]]], options: argparse.Namespace) -> None:
    late = {f"layers 4 and 5, {i}": [a for run in draws for a in acceleration(run)[2:4]] for i, draws in runs.items()}
    findings.record(
        "phase2_multi_head/block/collapse_rate.py",
        [
            Finding(
                "collapse-rate",
                "Pure attention loses rank doubly exponentially with depth, at a cubic rate",
                "Dong et al. 2021, abstract and section 1",
                late,
                "powers of ten that the distance to rank one falls by in a layer, over those in the layer before; "
                f"two values for each of {NUM_DRAWS * options.seeds} draws",
                "between 2.5 and 3.5: the distance is cubed; 1 would be plain exponential",
                findings.verdict(all(2.5 <= value <= 3.5 for values in late.values() for value in values)),
                seeds=list(cli.seeds(options)),
            ),
        ],
        options.output_dir,
    )


if __name__ == "__main__":
    cli.run(main)
