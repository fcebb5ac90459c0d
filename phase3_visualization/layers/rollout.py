"""From which input words does an output of several layers come?

Row i of one attention matrix says from where position i takes its value. But in layer 2 "position j" is no longer word
j: layer 1 has already mixed the words. So the matrices of all layers have to be combined (A: heads averaged).

    raw product   A_2 A_1                    forgets the residual connection: x is added, so half stays where it is
    rollout       B_2 B_1, B = (A + I) / 2   shares handed on from layer to layer       (Abnar & Zuidema 2020)
    flow          the most that can run through pipes of width B from input j to output i (Abnar & Zuidema 2020)
    corrected     rollout divided by the rollout of even attention, for causal models    (ours, see below)

Under a causal mask the first word is visible to all others in every layer, and rollout counts each of the paths to it.
So it blames the first word even if no head prefers anything. Abnar & Zuidema name this and leave it open. The
correction asks instead: how many times as much is it as if every head spread its weight evenly?

    python phase3_visualization/layers/rollout.py

Which of them finds the words that matter in a trained model: faithfulness.py, with the picture.
"""

from collections.abc import Sequence
from functools import reduce

import networkx
import torch
from torch import Tensor

from shared import cli
from shared.attention_utils import attention_rollout, causal_mask
from shared.evidence import findings
from shared.evidence.claims import EXPERIMENT, Claim, measures

TOKENS, HEADS = 16, 4  # of the random attention below
LAYERS = (1, 2, 4, 6)
DRAWS = 20
CAUSAL_LAYERS = 8

# Three tokens, the same head in both layers. The last output comes from them, by hand: product 1/2, 1/2, 0. Rollout
# 1/8, 5/8, 1/4: half of token 2 stays in each layer. Flow, to token 0: 1/2 fits into the pipe to token 1, only 1/4 from
# there on; to 1: 1/2 + 1/2; to 2: 1/2; divided by their sum 7/4. Corrected: rollout over 23/72, 17/72, 32/72, divided
# by the sum again.
BY_HAND = [torch.tensor([[[1, 0, 0], [0.5, 0.5, 0], [0, 1, 0]]], dtype=torch.float64)] * 2


def raw_product(weights: Sequence[Tensor]) -> Tensor:
    """Matrix product of the layers without the residual connection -> (..., T, T), rows sum to 1; for contrast.

    weights: one tensor (..., H, T, T) per layer, the first layer first, heads are averaged. ValueError without a layer.
    """
    if not weights:
        raise ValueError("the product needs the weights of at least one layer: got an empty list")
    return reduce(lambda below, layer: layer @ below, [layer.mean(dim=-3) for layer in weights])


def pipes(weights: Sequence[Tensor]) -> networkx.DiGraph:
    """The network of attention flow: node (l, i) is position i after l layers, and words enter at l = 0.

    weights: one tensor (H, T, T) per layer. A pipe runs from (l, i) to (l - 1, j) and is B_ij = (A_ij + [i = j]) / 2
    wide, with A the mean over heads. Outputs are sources and words are sinks, as in the paper.
    """
    graph = networkx.DiGraph()
    for level, layer in enumerate(weights, start=1):
        average = layer.detach().double().mean(dim=0)  # (H, T, T) -> (T, T)
        graph.add_nodes_from((k, i) for k in (level - 1, level) for i in range(len(average)))
        for i, row in enumerate((average + torch.eye(len(average))).div(2).tolist()):
            graph.add_edges_from(
                ((level, i), (level - 1, j), {"capacity": width}) for j, width in enumerate(row) if width > 0
            )
    return graph


def maximum_flow(weights: Sequence[Tensor], rows: Sequence[int] | None = None) -> Tensor:
    """Attention flow of Abnar & Zuidema 2020 -> (T, T), or (len(rows), T) for these outputs only; rows sum to 1.

    Entry (i, j) is the maximum flow from output i to word j, then divided by the sum of its row. Every entry is a
    problem of its own, so this is slow, and pipes shared by several words are counted for each of them: with many
    layers all words come out alike. weights: one tensor (H, T, T) per layer; no batch. ValueError for other shapes.
    """
    if not weights or weights[0].dim() != 3:
        received = tuple(weights[0].shape) if weights else "an empty list"
        raise ValueError(f"flow needs one (H, T, T) for each layer: got {received}; pick one item of a batch")
    graph, length = pipes(weights), weights[0].size(-1)
    flows = [
        [networkx.maximum_flow_value(graph, (len(weights), i), (0, j)) for j in range(length)]
        for i in (range(length) if rows is None else rows)
    ]
    flow = torch.tensor(flows, dtype=torch.float64)
    return flow / flow.sum(dim=-1, keepdim=True)


def even_causal_weights(length: int, num_layers: int) -> list[Tensor]:
    """Heads that spread their weight evenly over what a causal mask lets them see: (1, T, T) per layer, float64."""
    visible = causal_mask(length).double()
    return [(visible / visible.sum(dim=-1, keepdim=True))[None]] * num_layers


def causal_rollout(weights: Sequence[Tensor]) -> Tensor:
    """Rollout of a causal model, corrected for what each position can see -> (..., T, T), rows sum to 1.

    R_ij / U_ij, rows divided by their sum again, with U the rollout of even attention. Abnar & Zuidema 2020 (section 5)
    ask for a correction and give none: this one is ours. Heads that prefer nothing get even rows.
    weights: one tensor (..., H, T, T) per layer. Raises ValueError if a position attends to a later one.
    """
    rollout = attention_rollout(list(weights))
    length = rollout.size(-1)
    if rollout.triu(diagonal=1).any():
        raise ValueError("the correction is for causal weights: got some on later positions; use attention_rollout")
    even = attention_rollout(even_causal_weights(length, len(weights))).to(rollout)
    hidden = ~causal_mask(length, device=rollout.device)  # there 0 / 0
    ratio = (rollout / even).masked_fill(hidden, 0.0)
    return ratio / ratio.sum(dim=-1, keepdim=True)


APART = f"of {LAYERS[-1]} layers, as a share of one layer"


@measures(
    Claim(
        id="C143",
        text="Multiplying the attention matrices of the layers traces an output back to the words of the input",
        kind=EXPERIMENT,
        source="course notes, Attention Rollout",
        rule=f"after {LAYERS[-1]} layers of random attention the rows of different outputs still differ by a hundredth "
        "of what they do after one: otherwise all outputs come from the same words",
        holds=lambda n: n[f"raw product, {APART}"] >= 0.01,
        only_if=lambda n: n[f"rollout, {APART}"] >= 0.01,
        condition="the residual connection is added to each matrix first, (A + I) / 2, as in Abnar & Zuidema 2020",
        oracle={f"raw product, {APART}": 0.5, f"rollout, {APART}": 0.5},
        null={f"raw product, {APART}": 0.0, f"rollout, {APART}": 0.0},
        unit=f"standard deviation from row to row after {', '.join(map(str, LAYERS))} layers; {TOKENS} tokens, "
        f"{HEADS} heads, {DRAWS} draws",
    )
)
def rows_apart(seed: int) -> dict[str, float | list[float]]:
    """How different the rows still are: standard deviation over rows of each column, averaged, 0 if all are alike."""
    generator = torch.Generator().manual_seed(seed)
    found: dict[str, float | list[float]] = {"raw product": [], "rollout": []}
    for number in LAYERS:
        scores = torch.randn(number, DRAWS, HEADS, TOKENS, TOKENS, generator=generator, dtype=torch.float64)
        layers = list(scores.softmax(dim=-1))
        for name, combine in (("raw product", raw_product), ("rollout", attention_rollout)):
            found[name].append(combine(layers).std(dim=-2).mean().item())
    return found | {f"{name}, {APART}": apart[-1] / apart[0] for name, apart in found.items()}


@cli.script
def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    print("Three tokens, two layers, both with the weights  1 0 0 | 1/2 1/2 0 | 0 1 0. The last output comes from")
    ways = {"raw product": raw_product, "rollout": attention_rollout, "flow": maximum_flow, "corrected": causal_rollout}
    for name, combine in ways.items():
        print(f"   {name:12}" + "".join(f"{share:8.3f}" for share in combine(BY_HAND)[-1].tolist()))
    even = even_causal_weights(TOKENS, CAUSAL_LAYERS)
    blamed, corrected = (combine(even)[-1, 0].item() for combine in (attention_rollout, causal_rollout))
    print(f"Even causal attention, {TOKENS} tokens, {CAUSAL_LAYERS} layers: the last output comes")
    print(f"from token 0 by {blamed:.3f}, corrected {corrected:.4f} = 1/{TOKENS}")
    runs = [rows_apart(seed) for seed in cli.seeds(options)]
    findings.record(options, *runs)
    product, rollout = (runs[0][name][-1] for name in ("raw product", "rollout"))
    return (
        f"After {LAYERS[-1]} layers rows differ by {product:.0e} without the residual connection, {rollout:.0e} with it"
    )


if __name__ == "__main__":
    cli.run(main)
