"""Experiment: why the residual connection? Attention alone makes all words alike, within four layers.

Every output of attention is a mean of the same values. If the words are alike, so are their queries and their weights,
and so are the outputs: they come out more alike than they went in. "Pure attention loses rank doubly exponentially with
depth" (Dong et al. 2021); how fast is in collapse_rate.py. A residual connection adds the words themselves back.

    distance = ||X - 1 xᵀ|| / ||X||      x: the mean row of X, (d_model,); Frobenius norm, for which this x is nearest

0 means that every position holds the same vector: X = 1 xᵀ has rank one. (Dong et al. use √(||·||_1 ||·||_∞) as norm.)

    python phase2_multi_head/block/rank_collapse.py

Stacks of 24 layers with initial weights, by parts: attention alone, with more and more of a block, with and without
residual connections and norms; then the trained toy model with its residual connections left out. Writes
rank_collapse.png to visualizations/plots/phase2/.
"""

import argparse
import copy
import statistics
from collections.abc import Callable
from itertools import zip_longest

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from phase2_multi_head.block.pre_or_post_norm import INITIAL, use_xavier
from phase2_multi_head.block.transformer_block import TransformerBlock, eight_word_tokens
from phase2_multi_head.multi_head_attention import MultiHeadAttention, load_multi_head_model
from shared import cli, paths, training
from shared.attention_utils import normalized_entropy
from shared.evidence import findings
from shared.evidence.findings import Finding
from shared.training import Trained
from shared.visualization_utils import HIDDEN, QUIET, head_color, model_note, save_figure

LENGTH, D_MODEL, NUM_HEADS, NUM_LAYERS, NUM_DRAWS = 16, 64, 4, 24, 3
FLOOR = 1e-15  # float64 has 16 digits: a smaller distance is nothing but rounding
PICTURED = "Xavier"  # of the initial weights


def distance_to_rank_one(x: Tensor) -> Tensor:
    """||X - 1 xᵀ|| / ||X||, Frobenius, (..., T, d) -> (...,): 0 if all rows are the same, 1 if their mean is 0."""
    if x.dim() < 2:
        raise ValueError(f"x needs at least 2 axes (T, d): got shape {tuple(x.shape)}")
    apart = x - x.mean(dim=-2, keepdim=True)
    size = torch.linalg.matrix_norm(x)
    return torch.linalg.matrix_norm(apart) / size.masked_fill(size == 0, 1.0)  # all zeros: the same rows


def block_without_residual(block: nn.Module, x: Tensor) -> Tensor:
    """A pre-norm block with its two additions left out; for a TransformerBlock or a block of the toy transformer."""
    output, _ = block.attention(block.attention_norm(x))
    return block.feed_forward(block.feed_forward_norm(output))


def block_without_norms(block: nn.Module, x: Tensor) -> Tensor:
    x = x + block.attention(x)[0]
    return x + block.feed_forward(x)


ALONE, FEED_FORWARD, NO_RESIDUAL = "attention alone", "attention, feed-forward", "block without residual"
RESIDUAL, NO_NORMS, WHOLE = "attention + residual", "block without norms", "whole block"
LAYERS: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {  # which parts of a block make a layer
    ALONE: lambda block, x: block.attention(x)[0],
    FEED_FORWARD: lambda block, x: block.feed_forward(block.attention(x)[0]),
    NO_RESIDUAL: block_without_residual,
    RESIDUAL: lambda block, x: x + block.attention(x)[0],
    NO_NORMS: block_without_norms,
    WHOLE: lambda block, x: block(x)[0],
}
COLORS = dict(zip(LAYERS, map(head_color, (3, 1, 4, 0, 5, 2)), strict=True))


@torch.no_grad()
def distances(x: Tensor, blocks: nn.ModuleList, layer: Callable[[nn.Module, Tensor], Tensor]) -> list[float]:
    """Distance of x (B, T, d_model) to rank one, mean over the batch, before the first layer and after each.

    Where it falls below FLOOR it is only rounding: the list then ends, with FLOOR.
    """
    seen = [distance_to_rank_one(x).mean().item()]
    for block in blocks:
        x = layer(block, x)
        seen.append(max(distance_to_rank_one(x).mean().item(), FLOOR))
        if seen[-1] == FLOOR:
            break
    return seen


def new_stack(xavier: bool, seed: int) -> tuple[Tensor, nn.ModuleList]:
    """Random words (1, T, d_model) and new blocks, float64."""
    torch.manual_seed(seed)
    blocks = nn.ModuleList(TransformerBlock(D_MODEL, NUM_HEADS) for _ in range(NUM_LAYERS)).double()
    if xavier:
        use_xavier(blocks)
    return torch.randn(1, LENGTH, D_MODEL, dtype=torch.float64), blocks


Stacks = dict[tuple[str, str], list[list[float]]]  # (initial weights, which parts) -> distances by layer, for each draw


def measure(seeds: range) -> Stacks:
    """The distances in stacks of every kind; all kinds of one draw have the same weights and words."""
    stacks: Stacks = {(initial, name): [] for initial in INITIAL for name in LAYERS}
    for initial, xavier in INITIAL.items():
        for draw in range(NUM_DRAWS * seeds.start, NUM_DRAWS * seeds.stop):
            x, blocks = new_stack(xavier, draw)
            for name, layer in LAYERS.items():
                stacks[initial, name].append(distances(x, blocks, layer))
    return stacks


def medians(draws: list[list[float]]) -> list[float]:
    """The median over draws at each layer, up to the first that is FLOOR."""
    result = [statistics.median(values) for values in zip_longest(*draws, fillvalue=FLOOR)]
    return result[: result.index(FLOOR) + 1] if FLOOR in result else result


def short(distance: float) -> str:
    return f"below {FLOOR:.0e}" if distance <= FLOOR else f"{distance:.2g}"


@torch.no_grad()
def of_models(trained: Trained) -> dict[str, list[float]]:
    """Distances in the trained toy model and in the same model before training, with residual connections and without.

    On sentences of eight words.
    """
    tokens = eight_word_tokens()
    models = {"trained": trained.model, "untrained": training.untrained(trained.recipe, MultiHeadAttention).model}
    results = {}
    for name, model in models.items():
        model = copy.deepcopy(model).cpu().double()
        x = model.embed(tokens)
        results[f"{name}, with residual"] = distances(x, model.blocks, LAYERS[WHOLE])
        results[f"{name}, without"] = distances(x, model.blocks, block_without_residual)
    return results


def draw(stacks: Stacks, models: dict[str, list[float]], note: str) -> tuple[Figure, str]:
    """Left: new stacks, by parts, each draw a thin line. Right: the toy model, residual connections in and out."""
    fig, (left, right) = plt.subplots(1, 2, figsize=(10.4, 4.9), layout="constrained", width_ratios=(1.8, 1))
    median = {name: medians(stacks[PICTURED, name]) for name in LAYERS}
    places = {ALONE: (6, 1e-14), FEED_FORWARD: (6, 1e-12), NO_RESIDUAL: (6, 1e-10)}
    places |= {RESIDUAL: (24.6, 2e-2), NO_NORMS: (24.6, 2e-4), WHOLE: (24.6, 1.5)}
    for name, run in median.items():
        for thin in stacks[PICTURED, name]:
            left.plot(thin, color=COLORS[name], linewidth=0.7, alpha=0.5)
        left.plot(run, color=COLORS[name], linewidth=2)
        after = f" after {len(run) - 1}" if run[-1] == FLOOR else ""
        text = f"{name}: {short(run[-1])}{after}" if after else f"{name}:\n{short(run[-1])}"
        left.text(*places[name], text, color=COLORS[name], fontsize=9, va="center")
    left.axhspan(1e-17, FLOOR, color=HIDDEN, linewidth=0)
    left.text(34, 1e-16, "rounding of float64", color=QUIET, fontsize=8.5, ha="right", va="center")
    left.set(yscale="log", ylim=(1e-17, 30), xlim=(0, 34.5), xticks=range(0, NUM_LAYERS + 1, 4), xlabel="layers")
    left.set(ylabel="distance from all words alike", title=f"new blocks, {PICTURED} weights")
    depth = len(models["trained, with residual"]) - 1
    for name, run in models.items():
        color = COLORS[NO_RESIDUAL if "without" in name else WHOLE]
        right.plot(run, "--" if "untrained" in name else "-", color=color, marker="o", markersize=4)
        factor = 1 if "without" in name else 0.4 if "untrained" in name else 3
        text = f"{name}:\n{short(run[-1])}"
        right.text(1.06 * depth, factor * run[-1], text, color=color, fontsize=9, va="center")
    right.set(yscale="log", ylim=(min(map(min, models.values())) / 5, 10), xlim=(0, 2.2 * depth), xlabel="layers")
    right.set(xticks=range(depth + 1), title="the toy model")
    for ax in (left, right):
        ax.minorticks_off()
        ax.tick_params(length=0)
    alone = median[ALONE]
    title = (
        f"Attention alone makes all words alike, distance {short(alone[-1])}, in {len(alone) - 1} layers;\n"
        f"after {NUM_LAYERS} the residual connection keeps them {short(median[RESIDUAL][-1])} apart, "
        f"the whole block {short(median[WHOLE][-1])}"
    )
    fig.suptitle(title, fontsize=13)
    model_note(fig, note)
    return fig, f"{' '.join(title.split())}. Distance to the nearest matrix of equal rows, layer by layer."


def show_stacks(stacks: Stacks) -> None:
    shown = (0, 1, 2, 3, 4, 8, 16, NUM_LAYERS)
    print(f"\nDistance to rank one, median of {len(next(iter(stacks.values())))} draws, after layer")
    print(f"   {'':41}" + "".join(f"{layer:>9}" for layer in shown))
    for (initial, name), draws in stacks.items():
        run = medians(draws)
        columns = [f"{run[layer]:9.1e}" if layer < len(run) else f"{'<':>9}" for layer in shown]
        print(f"   {initial:16} {name:24}" + "".join(columns))
    print(f"   <: below {FLOOR:.0e}, where float64 has only rounding")


def main(argv: list[str] | None = None) -> None:
    options = cli.parse(cli.parser(__doc__), argv)
    trained = load_multi_head_model(options)
    stacks = measure(cli.seeds(options))
    show_stacks(stacks)
    models = of_models(trained)
    print(f"\nThe toy model, {trained.label}, sentences of eight words:")
    for name, run in models.items():
        print(f"   {name:26}" + "".join(f"{value:9.1e}" for value in run))
    x, blocks = new_stack(INITIAL[PICTURED], NUM_DRAWS * options.seed)
    entropy = normalized_entropy(blocks[0].attention(x)[1]).mean().item()
    note = (
        f"left: untrained, {NUM_DRAWS * options.seeds} draws and their median, {LENGTH} words, d_model {D_MODEL}, "
        f"normalised entropy of layer 0: {entropy:.2f} · right: {trained.label}"
    )
    figure, caption = draw(stacks, models, note)
    save_figure(
        figure, options.output_dir / paths.PLOTS / "phase2" / f"rank_collapse.{options.format}", caption=caption
    )
    record_findings(stacks, models, options)


def record_findings(stacks: Stacks, models: dict[str, list[float]], options: argparse.Namespace) -> None:
    last = {run: [distances[-1] for distances in draws] for run, draws in stacks.items()}
    least = {name: [min(last[initial, name]) for initial in INITIAL] for name in LAYERS}
    most = {name: max(max(last[initial, name]) for initial in INITIAL) for name in LAYERS}
    ratios = [a / b for i in INITIAL for a, b in zip(last[i, WHOLE], last[i, NO_NORMS], strict=True)]
    (going_in, *_, kept), (*_, lost) = models["trained, with residual"], models["trained, without"]

    def measured(*names: str) -> dict[str, list[float]]:
        return {f"{name}, {i}": [min(last[i, name]), max(last[i, name])] for name in names for i in INITIAL}

    dong, seeds = "Dong et al. 2021, abstract", list(cli.seeds(options))
    draws = f"smallest and largest of {NUM_DRAWS * len(seeds)} draws; 1e-15 means that or less"
    unit = f"distance to rank one after {NUM_LAYERS} layers, {draws}"
    findings.record(
        "phase2_multi_head/block/rank_collapse.py",
        [
            Finding(
                "rank-residual",
                "Without skip connections the output loses rank; with them it does not",
                dong,
                measured(ALONE, RESIDUAL, WHOLE),
                unit,
                "in every draw attention alone below 1e-10, attention with the residual connection at least 0.1; "
                "failing that, at least 0.1 with nn.Linear's own weights, and of the whole block with both kinds",
                **findings.conditional(
                    most[ALONE] < 1e-10 and min(least[RESIDUAL]) >= 0.1,
                    most[ALONE] < 1e-10 and min(least[RESIDUAL][0], *least[WHOLE]) >= 0.1,
                    "the weights are small, as nn.Linear's own, or the rest of the block is there too",
                ),
                seeds=seeds,
            ),
            Finding(
                "rank-feed-forward",
                "Feed-forward networks stop the loss of rank",
                f"{dong}; its section 1 says: slow it down",
                measured(FEED_FORWARD),
                unit,
                "without a residual connection, at least 0.1 in every draw",
                findings.verdict(min(least[FEED_FORWARD]) >= 0.1),
                control="initial weights; what they do in a trained model is in the finding on the toy model",
                seeds=seeds,
            ),
            Finding(
                "rank-norm",
                "LayerNorm plays no role in the loss of rank",
                "Dong et al. 2021",
                measured(NO_RESIDUAL, WHOLE, NO_NORMS),
                unit,
                "without residual connections a block with norms is below 1e-10 all the same; with them, the whole "
                "block is at most 3 times as far from rank one as without norms",
                **findings.conditional(
                    most[NO_RESIDUAL] < 1e-10 and max(ratios) <= 3,
                    most[NO_RESIDUAL] < 1e-10,
                    "there is no residual connection: beside one, the norms keep what attention adds small",
                ),
                seeds=seeds,
            ),
            Finding(
                "rank-trained",
                "In a trained model, too, the residual connection keeps the words apart",
                dong,
                {"going in": going_in} | {name: run[-1] for name, run in models.items()},
                "distance to rank one after the last layer, mean over sentences of eight words",
                "trained: at least half of what goes in; with the residual connection left out at most a tenth",
                findings.verdict(kept >= going_in / 2 and lost <= going_in / 10),
                control="the same model before training",
                seeds=[options.seed],
            ),
        ],
        options.output_dir,
    )


if __name__ == "__main__":
    cli.run(main)
