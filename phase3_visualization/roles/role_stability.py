"""Do the same roles come back with other seeds, and in the same heads?

The seed decides the first weights and the batches. Training can give "head 2" any role, since nothing tells heads of a
layer apart at the start. So two models must not be compared head by head with the same index: first each head of one is
given the head of the other that does the most similar work (an assignment, one to one, that makes the sum of the
similarities largest), and then they are compared.

What a head does is its profile: one number between 0 and 1 for each position and relation of head_roles.py. Two
profiles are as similar as 1 - mean |difference|. Untrained models are the control: their heads are also alike, because
none of them does anything.

    python phase3_visualization/roles/role_stability.py
    python phase3_visualization/roles/role_stability.py --seeds 5

Three seeds unless --seeds says otherwise, trained by the recipe of the shared model and kept beside it. Writes
role_stability.png to visualizations/plots/phase3/.
"""

from itertools import combinations
from statistics import fmean as mean

import matplotlib.pyplot as plt
import networkx
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from phase2_multi_head.heads.one_or_four_heads import CORE_RELATIONS
from phase2_multi_head.multi_head_attention import MultiHeadAttention, load_multi_head_model
from shared import cli, training
from shared.evidence import findings
from shared.evidence.claims import EXPERIMENT, Claim, measures
from shared.grammar.scores import offset_baselines, score_heads
from shared.head_statistics import OFFSETS, first_share, offset_share
from shared.toy_language import Sentence
from shared.toy_model import ToyTransformer
from shared.training import Recipe, attention_on
from shared.visualization_utils import INK, QUIET, WEIGHT_MAP, headline, save_plot

SEEDS = 3
REQUIRED, MARGIN = 0.90, 0.10  # accuracy asked of a relation; above the best offset, then a head has the role
TRAINED, UNTRAINED, MIXED = "trained", "untrained", "trained with untrained"

Pairs = dict[str, list[tuple[float, float]]]  # kind of models -> similarity by index and by assignment of each pair


def profiles(model: ToyTransformer, sentences: list[Sentence]) -> Tensor:
    """What each head does -> (L * H, columns) in [0, 1]: four positions, then each core relation in both directions."""
    layers, mask = attention_on(model, sentences, "masked word")
    position = torch.cat(
        [
            torch.stack([*(offset_share(w, mask, o) for o in OFFSETS.values()), first_share(w, mask)], dim=-1)
            for w in layers
        ]
    )
    scores = score_heads(layers, sentences)
    relations = [scores[relation].flatten(0, 1) for relation in CORE_RELATIONS]  # (L, H, 2) -> (L * H, 2)
    return torch.cat([position, *relations], dim=-1)


def similarities(first: Tensor, second: Tensor) -> Tensor:
    """1 - mean |difference| of every two profiles -> (heads of the first, heads of the second)."""
    return 1 - (first[:, None] - second[None]).abs().mean(dim=-1)


def assign(similarity: Tensor) -> list[int]:
    """The partner of each row, one to one, that makes the sum of similarities largest; similarity (M, M)."""
    size = len(similarity)
    graph = networkx.Graph()
    graph.add_weighted_edges_from((i, size + j, similarity[i, j].item()) for i in range(size) for j in range(size))
    pairs = [sorted(pair) for pair in networkx.max_weight_matching(graph, maxcardinality=True)]
    return [j - size for _, j in sorted(pairs)]


def compare(first: Tensor, second: Tensor) -> tuple[float, float]:
    """Mean similarity of two models' heads -> (paired by index, paired by assignment)."""
    similarity = similarities(first, second)
    partners = assign(similarity)
    return similarity.diagonal().mean().item(), similarity[range(len(partners)), partners].mean().item()


def best_of_relations(profile: Tensor) -> tuple[Tensor, Tensor]:
    """Relation scores in the better direction of one model -> best of its heads, and which head: (3,) and (3,)."""
    scores = profile[:, len(OFFSETS) + 1 :].unflatten(-1, (len(CORE_RELATIONS), 2)).amax(dim=-1)  # -> (L * H, 3)
    return tuple(scores.max(dim=0))


def compare_all(trained: list[Tensor], untrained: list[Tensor]) -> Pairs:
    """compare() for every two seeds; a single seed can only be compared with itself."""
    both = list(combinations(range(len(trained)), 2)) or [(0, 0)]
    kinds = {TRAINED: (trained, trained), UNTRAINED: (untrained, untrained), MIXED: (trained, untrained)}
    return {kind: [compare(one[a], other[b]) for a, b in both] for kind, (one, other) in kinds.items()}


@measures(
    Claim(
        id="same-place",
        text="A role is found in the same head when the model is trained again",
        kind=EXPERIMENT,
        source="course notes speak of 'head 1', 'head 2'",
        rule="each relation has the same best head with every seed",
        holds=lambda n: max(n[f"heads that follow {r} best"] for r in CORE_RELATIONS) == 1,
        oracle={f"heads that follow {r} best": 1 for r in CORE_RELATIONS},
        null={f"heads that follow {r} best": 3 for r in CORE_RELATIONS},
        unit="different heads among the seeds",
        shows=("heads that follow*",),
    ),
)
def roles_found(found: list[Tensor], offsets: dict[str, float]) -> dict[str, float | list[float]]:
    """How well the best head follows each relation, with every seed, and how many different heads that were."""
    scores, places = (torch.stack(part) for part in zip(*map(best_of_relations, found), strict=True))  # (seeds, 3)
    numbers = {r: scores[:, i].tolist() for i, r in enumerate(CORE_RELATIONS)}
    numbers |= {f"best offset, {r}": offsets[r] for r in CORE_RELATIONS}
    return numbers | {
        f"heads that follow {r} best": len(set(places[:, i].tolist())) for i, r in enumerate(CORE_RELATIONS)
    }


BY_INDEX, ASSIGNED, CONTROL = "by index", "by assignment", f"{MIXED}, by assignment"


@measures(
    Claim(
        id="roles-move",
        text="With another seed the same roles come back in other heads",
        kind=EXPERIMENT,
        source="ours",
        rule="assignment pairs trained heads 0.05 more alike than the index does, and 0.05 more alike than it pairs "
        "trained with untrained heads",
        holds=lambda n: n[ASSIGNED] - max(n[BY_INDEX], n[CONTROL]) >= 0.05,
        oracle={BY_INDEX: 0.7, ASSIGNED: 1.0, CONTROL: 0.7},
        null={BY_INDEX: 0.9, ASSIGNED: 0.92, CONTROL: 0.92},
        unit="similarity of profiles, 1 = the same",
        control="untrained models: their heads are alike because none does anything",
    )
)
def similarity_of_models(pairs: Pairs) -> dict[str, float]:
    """Mean over all pairs of seeds."""
    means = {kind: [mean(values) for values in zip(*pairs[kind], strict=True)] for kind in pairs}
    return {
        f"{'' if kind == TRAINED else f'{kind}, '}{way}": value
        for kind, values in means.items()
        for way, value in zip((BY_INDEX, ASSIGNED), values, strict=True)
    }


def draw_roles(ax: Axes, found: list[Tensor], offsets: dict[str, float], num_heads: int, seeds: range) -> None:
    """The best head of each relation for each seed: how often it is right, and which it is."""
    best = [best_of_relations(profile) for profile in found]
    ax.pcolormesh([scores for scores, _ in best], vmin=0, vmax=1, cmap=WEIGHT_MAP, edgecolors="white", linewidth=1.5)
    for row, (scores, heads) in enumerate(best):
        for column, (value, place) in enumerate(zip(scores.tolist(), heads.tolist(), strict=True)):
            layer, head = divmod(place, num_heads)
            text, color = f"{value:.2f}\nlayer {layer} head {head}", "white" if value > 0.4 else INK
            ax.text(column + 0.5, row + 0.5, text, ha="center", va="center", fontsize=9, color=color)
    labels = [f"{r.replace('-', '–')}\n(best offset {offsets[r]:.2f})" for r in CORE_RELATIONS]
    ax.set_xticks([column + 0.5 for column in range(len(labels))], labels, fontsize=8.5)
    ax.set_yticks([row + 0.5 for row in range(len(seeds))], [f"seed {seed}" for seed in seeds])
    ax.set_title("share right, best head", color=QUIET)
    ax.invert_yaxis()
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)


def draw_similarity(ax: Axes, pairs: Pairs) -> None:
    """How alike two models are, by index and by assignment; a dot for each pair of seeds."""
    for row, (kind, values) in enumerate(pairs.items()):
        for shift, way, color, of_pairs in zip(
            (-0.18, 0.18), ("index", "assignment"), (QUIET, INK), zip(*values, strict=True), strict=True
        ):
            ax.barh(row + shift, mean(of_pairs), height=0.32, color=color, alpha=1.0 if kind == TRAINED else 0.45)
            dots = [row + shift] * len(of_pairs)
            ax.plot(of_pairs, dots, ".", color="white", markeredgecolor=INK, markersize=6)
            ax.text(1.03, row + shift, f"{mean(of_pairs):.2f} by {way}", va="center", fontsize=9)
    ax.set_yticks(range(len(pairs)), pairs)
    ax.set(xlim=(0, 1.45), xticks=(0, 0.5, 1), xlabel="similarity of two models' heads (dots: pairs of seeds)")
    ax.set_title("same head, or same role?", color=QUIET)
    ax.invert_yaxis()
    ax.tick_params(length=0)


def draw(
    found: list[Tensor], pairs: Pairs, offsets: dict[str, float], recipe: Recipe, seeds: range
) -> tuple[Figure, str]:
    """Left: best head of each relation for each seed, and which head. Right: similarity of models, both ways."""
    fig, (left, right) = plt.subplots(1, 2, figsize=(10.6, 4.3), width_ratios=(1, 1.1), layout="constrained")
    draw_roles(left, found, offsets, recipe.num_heads, seeds)
    draw_similarity(right, pairs)
    title = summary(found, offsets)
    note = f"{recipe.num_layers} layers of {recipe.num_heads} heads, trained {recipe.steps:,} steps with each seed"
    headline(fig, title, note)
    return fig, f"{title}. Heads of two models paired by index and by assignment."


def summary(found: list[Tensor], offsets: dict[str, float]) -> str:
    scores, places = (torch.stack(part) for part in zip(*map(best_of_relations, found), strict=True))
    always = int((scores.amin(dim=0) >= torch.tensor([offsets[r] for r in CORE_RELATIONS]) + MARGIN).sum())
    heads = max(len(set(of_relation.tolist())) for of_relation in places.T)
    moved = f", in up to {heads} different heads" if always else ""
    return f"{always} of {len(CORE_RELATIONS)} relations beat the best offset in each of {len(found)} seeds{moved}"


def main(argv: list[str] | None = None) -> str:
    parser = cli.parser(__doc__)
    parser.set_defaults(seeds=SEEDS)
    options = cli.parse(parser, argv)
    seeds = cli.seeds(options)[: 2 if options.quick else None]
    models = [load_multi_head_model(options, seed) for seed in seeds]
    sentences = training.corpus()[1][: 100 if options.quick else None]
    found = [profiles(each.model, sentences) for each in models]
    before = [profiles(training.untrained(each.recipe, MultiHeadAttention).model, sentences) for each in models]
    pairs, offsets = compare_all(found, before), offset_baselines(sentences)
    save_plot(options, "phase3/role_stability", *draw(found, pairs, offsets, models[0].recipe, seeds))
    findings.record(options, roles_found(found, offsets), similarity_of_models(pairs))
    return summary(found, offsets)


if __name__ == "__main__":
    cli.run(main)
