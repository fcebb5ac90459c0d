"""Why the residual connection: what does attention alone do to the words?

It makes them all alike, within four layers. Every output of attention is a mean of the same values. If the words are
alike, so are their queries and their weights, and so are the outputs: they come out more alike than they went in. A
residual connection adds the words themselves back.

    distance = ||X - 1 xᵀ|| / ||X||      x: the mean row of X, (d_model,); Frobenius norm, for which this x is nearest

0 means that every position holds the same vector: X = 1 xᵀ has rank one. (Dong et al. use √(||·||_1 ||·||_∞) as norm.)

How fast? Two rows of weights differ as far as the queries differ AND the keys differ, and what they do to the output
depends on how far the values differ: three small factors. So a distance r becomes about c r³:

    0.1 -> 0.001 c -> 1e-9 c⁴ -> ...      the number of zeros triples: doubly exponential

The output "converges with a cubic rate to a rank one matrix" (Dong et al. 2021, section 1). After three or four layers
r is below 1e-16, where float64 knows only rounding. To follow it further, down to 1e-300, the mean of the words and
their differences from it are computed apart, so that the differences keep 16 digits of their own.

    python phase2_multi_head/block/rank_collapse.py

Stacks of 24 layers with initial weights, which the seed draws, by parts: attention alone, with more and more of a
block, with and without residual connections and norms; then the trained toy model with its residual connections left
out. Writes rank_collapse.png to visualizations/plots/phase2/.
"""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn

from phase2_multi_head.block.transformer_block import TransformerBlock, eight_word_tokens, use_xavier
from phase2_multi_head.models import load_multi_head_model
from phase2_multi_head.multi_head_attention import MultiHeadAttention, merge_heads, split_heads
from shared import cli, training
from shared.evidence import findings
from shared.evidence.claims import EXPERIMENT, Claim, Numbers, measures
from shared.toy_model import in_double
from shared.training import Trained
from shared.visualization_utils import BLUE, GREEN, HIDDEN, PURPLE, QUIET, RED, headline, label_ends, save_plot

LENGTH, D_MODEL, NUM_HEADS, NUM_LAYERS = 16, 64, 4, 24
FLOOR = 1e-15  # float64 has 16 digits: a smaller distance is nothing but rounding
INITIAL = {"nn.Linear's own": False, "Xavier": True}  # initial weights -> xavier
PICTURED = "Xavier"


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
COLORS = {ALONE: RED, NO_RESIDUAL: PURPLE, RESIDUAL: BLUE, WHOLE: GREEN}  # those that the picture shows
NAMES = {
    ALONE: "attention\nalone",
    NO_RESIDUAL: "whole block, its\nadditions left out",
    RESIDUAL: "attention, added\nto the words",
    WHOLE: "whole block",
}


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


Stacks = dict[tuple[str, str], list[float]]  # (initial weights, which parts) -> distances by layer


def draw_stacks(seed: int) -> Stacks:
    """The distances in stacks of every kind, all with the same words, and the same weights for each kind of them."""
    stacks: Stacks = {}
    for initial, xavier in INITIAL.items():
        x, blocks = new_stack(xavier, seed)
        stacks |= {(initial, name): distances(x, blocks, layer) for name, layer in LAYERS.items()}
    return stacks


def by_initial(numbers: Numbers) -> dict[str, Any]:
    """For oracles: the same numbers with both initial weights."""
    return {f"{name}, {initial}": number for name, number in numbers.items() for initial in INITIAL}


def of_both(n: Numbers, name: str) -> list[float]:
    return [n[f"{name}, {initial}"] for initial in INITIAL]


DONG = "Dong et al. 2021, abstract"
END = "distance to rank one after 24 layers with initial weights; 1e-15 means that or less"


@measures(
    Claim(
        id="rank-residual",
        text="Without skip connections and feed-forward networks the output of attention loses rank; skip connections "
        "stop that",
        source=DONG,
        kind=EXPERIMENT,
        rule="with both kinds of weights: attention alone below 1e-10, with the residual connection above 1e-4, the "
        "whole block above 0.1",
        holds=lambda n: (
            max(of_both(n, ALONE)) < 1e-10 and min(of_both(n, RESIDUAL)) > 1e-4 and min(of_both(n, WHOLE)) > 0.1
        ),
        oracle=by_initial({ALONE: 1e-15, RESIDUAL: 0.9, WHOLE: 0.9}),
        null=by_initial({ALONE: 0.5, RESIDUAL: 0.5, WHOLE: 0.5}),
        unit=END,
        control="a feed-forward network in place of the skip connection, which the abstract says stops it, too, and "
        "section 1 that it slows it down",
        headline=True,
        shows=(f"{ALONE}*", f"{RESIDUAL}*", f"{WHOLE}*", f"{FEED_FORWARD}*"),
    ),
    Claim(
        id="rank-norm",
        text="LayerNorm does not stop the loss of rank where there is no residual connection; beside one, with Xavier "
        "weights, it keeps the words apart",
        source="Dong et al. 2021, section 3, for the first half: layer normalization plays no role",
        kind=EXPERIMENT,
        rule="a block with norms and no residual below 1e-10, with both kinds of weights; the whole block with Xavier "
        "weights at least 3 times as far from rank one as without norms",
        holds=lambda n: (
            max(of_both(n, NO_RESIDUAL)) < 1e-10 and n[f"{WHOLE}, {PICTURED}"] >= 3 * n[f"{NO_NORMS}, {PICTURED}"]
        ),
        oracle=by_initial({NO_RESIDUAL: 1e-15, WHOLE: 0.5, NO_NORMS: 0.05}),
        null=by_initial({NO_RESIDUAL: 1e-15, WHOLE: 0.5, NO_NORMS: 0.5}),
        unit=END,
        shows=(f"{NO_RESIDUAL}*", f"{WHOLE}*", f"{NO_NORMS}*"),
    ),
)
def ends(stacks: Stacks) -> dict[str, float]:
    """The distance after the last layer, by parts and initial weights."""
    return {f"{name}, {initial}": run[-1] for (initial, name), run in stacks.items()}


def short(distance: float) -> str:
    return f"below {FLOOR:.0e}" if distance <= FLOOR else f"{distance:.2g}"


Models = dict[str, list[float]]  # which model, with its residual connections or without -> distances by layer


@torch.no_grad()
def of_models(trained: Trained) -> Models:
    """Distances in the trained toy model and in the same model before training, on sentences of eight words."""
    tokens = eight_word_tokens()
    results = {}
    untrained = training.untrained(trained.recipe, MultiHeadAttention)
    for name, each in (("trained", trained), ("untrained", untrained)):
        model = in_double(each.model)
        x = model.embed(tokens)
        results[f"{name}, with residual"] = distances(x, model.blocks, LAYERS[WHOLE])
        results[f"{name}, without"] = distances(x, model.blocks, block_without_residual)
    return results


@measures(
    Claim(
        id="rank-trained",
        text="In a trained model, too, the residual connection keeps the words apart",
        source=DONG,
        kind=EXPERIMENT,
        rule="trained: at least half of what goes in; with the residual connection left out at most a tenth",
        holds=lambda n: (
            n["trained, with residual"] >= n["going in"] / 2 and n["trained, without"] <= n["going in"] / 10
        ),
        oracle={"going in": 0.5, "trained, with residual": 0.5, "trained, without": 0.0},
        null={"going in": 0.5, "trained, with residual": 0.5, "trained, without": 0.5},
        unit="distance to rank one after the last layer, mean over sentences of eight words",
        control="the same model before training",
    )
)
def ends_of_models(models: Models) -> dict[str, float]:
    """The distance before the first layer and, of each model, after the last."""
    return {"going in": models["trained, with residual"][0]} | {name: run[-1] for name, run in models.items()}


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


PACE = "layers 4 and 5"


@measures(
    Claim(
        id="collapse-rate",
        text="Pure attention loses rank doubly exponentially with depth, at a cubic rate",
        source="Dong et al. 2021, abstract and section 1",
        kind=EXPERIMENT,
        rule="between 2.5 and 3.5: the distance is cubed; 1 would be plain exponential",
        holds=lambda n: all(2.5 <= pace <= 3.5 for paces in of_both(n, PACE) for pace in paces),
        oracle=by_initial({PACE: [3.0, 3.0]}),
        null=by_initial({PACE: [1.0, 1.0]}),
        unit="powers of ten that the distance to rank one falls by in a layer, over those in the layer before",
        shows=(f"{PACE}*",),
    )
)
def collapse_rates(seed: int) -> dict[str, list[float]]:
    """The acceleration in layers 4 and 5, and the distances, by initial weights."""
    runs = {initial: exact_distances(*new_stack(xavier, seed)) for initial, xavier in INITIAL.items()}
    numbers = {f"{PACE}, {initial}": acceleration(run)[2:4] for initial, run in runs.items()}
    return numbers | {f"distance layer by layer, {initial}": run for initial, run in runs.items()}


def draw(stacks: list[Stacks], note: str) -> tuple[Figure, str]:
    """The distance layer by layer with the residual connection and without, a line for each seed."""
    fig, ax = plt.subplots(figsize=(8.6, 4.6), layout="constrained")
    for name, color in COLORS.items():
        for stack in stacks:
            ax.plot(stack[PICTURED, name], color=color, linewidth=2)
    ax.axhspan(FLOOR / 30, FLOOR, color=HIDDEN, linewidth=0)
    ax.text(NUM_LAYERS - 0.3, FLOOR / 5, "alike to the last digit of float64", color=QUIET, ha="right", va="center")
    ax.set(yscale="log", ylim=(FLOOR / 30, 3), xlim=(0, NUM_LAYERS), xticks=range(0, NUM_LAYERS + 1, 4))
    ax.set_yticks([1, 1e-5, 1e-10, 1e-15], ["1", "10⁻⁵", "10⁻¹⁰", "10⁻¹⁵"])
    ax.set(xlabel="layers", ylabel="how different the words are")
    ax.minorticks_off()
    kept = {NAMES[name]: (NUM_LAYERS, stacks[0][PICTURED, name][-1], COLORS[name]) for name in (RESIDUAL, WHOLE)}
    label_ends(ax, kept, size=10)
    for name, side in ((ALONE, "right"), (NO_RESIDUAL, "left")):  # beside the last point above the rounding
        run, away = stacks[0][PICTURED, name], 9 if side == "left" else -9
        place = {"textcoords": "offset points", "ha": side, "va": "center"}
        ax.annotate(NAMES[name], (len(run) - 2, run[-2]), (away, 0), color=COLORS[name], **place)
    layers = len(stacks[0][PICTURED, ALONE]) - 1
    title = (
        f"Attention alone makes all words alike in {layers} layers;\n"
        "adding it to them slows that down, the whole block all but stops it"
    )
    headline(fig, title, note)
    said = title.replace("\n", " ")
    return fig, f"{said}. The distance to the nearest matrix of equal rows, layer by layer."


@cli.script
def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    seeds = cli.seeds(options)
    trained = [load_multi_head_model(options, seed) for seed in seeds]
    stacks, models = [draw_stacks(seed) for seed in seeds], [of_models(each) for each in trained]
    note = f"{NUM_LAYERS} layers with {PICTURED} weights, untrained, {LENGTH} random words; draws: {options.seeds}"
    save_plot(options, "phase2/rank_collapse", *draw(stacks, note))
    findings.record(options, *map(ends, stacks), *map(ends_of_models, models), *map(collapse_rates, seeds))
    alone, whole = (stacks[0][PICTURED, name] for name in (ALONE, WHOLE))
    return f"Words alike, {short(alone[-1])} apart, in {len(alone) - 1} layers; a whole block keeps {short(whole[-1])}"


if __name__ == "__main__":
    cli.run(main)
