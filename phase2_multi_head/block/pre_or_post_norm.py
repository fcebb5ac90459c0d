"""Experiment: pre-norm or post-norm, what does the place of the norm do to the gradients before the first step?

    post-norm    norm(x + sublayer(x))      x is brought back to the same size after every addition
    pre-norm     x + sublayer(norm(x))      x grows from layer to layer, so each addition counts for less

Xiong et al. 2020 prove for a simplified network that in post-norm the gradient in the last layer is as large in a deep
network as in a shallow one, and in pre-norm falls as 1/√L with the number of layers L. Large gradients near the output,
they argue, are why post-norm needs a learning rate that starts small (warm-up). Here they are measured, layer by layer.

    python phase2_multi_head/block/pre_or_post_norm.py
"""

import argparse
import statistics

import torch
import torch.nn.functional as F
from torch import nn

from phase2_multi_head.block.transformer_block import NORMS, TransformerBlock
from shared import cli
from shared.evidence import findings
from shared.evidence.findings import Finding
from shared.toy_language import VOCABULARY

D_MODEL, NUM_HEADS, NUM_DRAWS = 64, 4, 4
SHALLOW, DEEP = 6, 24  # layers
INITIAL = {"nn.Linear's own": False, "Xavier": True}  # initial weights -> xavier


@torch.no_grad()
def use_xavier(module: nn.Module) -> None:
    """Xavier weights and no biases, as in the paper; nn.Linear's own start smaller, by √3 for a square matrix."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)


def layer_gradients(num_layers: int, *, norm_first: bool, xavier: bool, seed: int) -> list[float]:
    """Size (Frobenius norm) of the gradient of each layer's last feed-forward matrix, before the first step."""
    torch.manual_seed(seed)
    blocks = nn.ModuleList(TransformerBlock(D_MODEL, NUM_HEADS, norm_first=norm_first) for _ in range(num_layers))
    to_logits = nn.Linear(D_MODEL, len(VOCABULARY))
    if xavier:
        use_xavier(blocks)
        use_xavier(to_logits)
    x, wanted = torch.randn(8, 12, D_MODEL), torch.randint(len(VOCABULARY), (8, 12))
    for block in blocks:
        x, _ = block(x)
    x = F.layer_norm(x, (D_MODEL,)) if norm_first else x  # pre-norm: the one norm of the stream itself, at its end
    F.cross_entropy(to_logits(x).flatten(0, 1), wanted.flatten()).backward()  # (B, T, V) -> (B * T, V)
    return [block.feed_forward[3].weight.grad.norm().item() for block in blocks]


Gradients = dict[tuple[str, str, int], list[list[float]]]  # (initial, norm, layers) -> a list of layers for each draw


def measure(seeds: range) -> Gradients:
    return {
        (initial, norm, num_layers): [
            layer_gradients(num_layers, norm_first=norm_first, xavier=xavier, seed=NUM_DRAWS * seed + draw)
            for seed in seeds
            for draw in range(NUM_DRAWS)
        ]
        for initial, xavier in INITIAL.items()
        for norm, norm_first in NORMS.items()
        for num_layers in (SHALLOW, DEEP)
    }


def mean_of(draws: list[list[float]], layer: int) -> float:
    """Mean over draws of the gradient in one layer, -1 for the last."""
    return statistics.mean(draw[layer] for draw in draws)


def main(argv: list[str] | None = None) -> None:
    options = cli.parse(cli.parser(__doc__), argv)
    gradients = measure(cli.seeds(options))
    print(f"\nSize of the gradient of the last feed-forward matrix, mean of {NUM_DRAWS * options.seeds} draws")
    print(f"   {'initial weights':16} {'':10} layers   first   third     mid    last   last / first")
    for (initial, norm, num_layers), draws in gradients.items():
        shown = [mean_of(draws, layer) for layer in (0, num_layers // 3, num_layers // 2, -1)]
        columns = " ".join(f"{value:7.3f}" for value in shown)
        print(f"   {initial:16} {norm:10} {num_layers:6} {columns} {shown[-1] / shown[0]:14.2f}")
    record_findings(gradients, options)


def record_findings(gradients: Gradients, options: argparse.Namespace) -> None:
    runs = {f"{norm}, {initial}": (initial, norm) for norm in NORMS for initial in INITIAL}
    pre, post = ([name for name in runs if name.startswith(norm)] for norm in NORMS)
    last = {name: mean_of(gradients[*run, DEEP], -1) for name, run in runs.items()}
    over_shallow = {name: last[name] / mean_of(gradients[*run, SHALLOW], -1) for name, run in runs.items()}
    over_first = {name: last[name] / mean_of(gradients[*run, DEEP], 0) for name, run in runs.items()}
    same_at_any_depth = all(0.75 <= over_shallow[n] <= 1.33 for n in post) and max(over_shallow[n] for n in pre) <= 0.8
    over_pre = {i: last[f"post-norm, {i}"] / last[f"pre-norm, {i}"] for i in INITIAL}
    findings.record(
        "phase2_multi_head/block/pre_or_post_norm.py",
        [
            Finding(
                "norm-depth",
                "In post-norm the gradient in the last layer is as large in a deep network as in a shallow one; in "
                "pre-norm it shrinks with depth",
                "Xiong et al. 2020, theorem 1",
                over_shallow,
                f"gradient of the last feed-forward matrix in the last layer, {DEEP} layers over {SHALLOW}",
                "post-norm 0.75 to 1.33, pre-norm at most 0.8, with both kinds of initial weights",
                findings.verdict(same_at_any_depth),
                control=f"the theorem's 1/√L gives {(SHALLOW / DEEP) ** 0.5:.2f} for pre-norm",
                seeds=list(cli.seeds(options)),
            ),
            Finding(
                "norm-layers",
                "In post-norm the gradients near the output are large",
                "Xiong et al. 2020, abstract",
                {f"{name}, last layer over first": value for name, value in over_first.items()}
                | {f"last layer, post-norm over pre-norm, {i}": value for i, value in over_pre.items()},
                f"gradient of the last feed-forward matrix, {DEEP} layers",
                "with both kinds of initial weights, the last layer's at least 1.25 times the first layer's; failing "
                "that, at least 1.25 times that of a pre-norm network of the same depth",
                **findings.conditional(
                    min(over_first[name] for name in post) >= 1.25,
                    min(over_pre.values()) >= 1.25,
                    "large means larger than in pre-norm; in a post-norm network other layers may have as much",
                ),
                seeds=list(cli.seeds(options)),
            ),
        ],
        options.output_dir,
    )


if __name__ == "__main__":
    cli.run(main)
