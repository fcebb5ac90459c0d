"""Do the same roles come back with another seed, and in the same heads?

The seed decides the first weights and the batches. Training can give "head 2" any role, since nothing tells heads of a
layer apart at the start. So two models must not be compared head by head with the same index: first each head of one is
given the head of the other that does the most similar work (an assignment, one to one, that makes the sum of the
similarities largest), and then they are compared.

What a head does is its profile: one number between 0 and 1 for each position and relation of head_roles.py. Two
profiles are as similar as 1 - mean |difference|. An assignment always finds something alike, so it has two controls:
untrained models in place of one of the two, and the scores of one model dealt out anew, each score to any head.

    python phase3_visualization/roles/role_stability.py
    python phase3_visualization/roles/role_stability.py --seeds 4

Two models are compared, trained with --seed and with the seed after it by the recipe of the shared model, and kept
beside it; with --seeds N there are N such pairs, and neighbouring ones share a model. Writes role_stability.png, the
roles of all these models, to visualizations/plots/phase3/; the lesson shows that of --seeds 4.
"""

import itertools
from statistics import fmean as mean

import matplotlib.pyplot as plt
import networkx
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from phase2_multi_head.models import load_multi_head_model
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from shared import cli, training
from shared.evidence import findings
from shared.evidence.claims import EXPERIMENT, Above, Claim, Measured, measures
from shared.grammar.roles import head_names
from shared.grammar.scores import CORE_RELATIONS, DIRECTIONS, relation_name, score_heads
from shared.head_statistics import OFFSETS, first_share, offset_share
from shared.toy_language import Sentence
from shared.toy_model import ToyTransformer
from shared.training import attention_on
from shared.visualization_utils import HIDDEN, headline, role_color, save_plot

CLOSE = 0.10  # so near to the best head of a relation, a head has that role as well
DEALS = 20  # times that scores are dealt out anew


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


def relation_scores(profile: Tensor) -> Tensor:
    """Of a model's profiles, how often each head is right, in the better direction of each relation: (L * H, 3)."""
    return profile[:, len(OFFSETS) + 1 :].unflatten(-1, (len(CORE_RELATIONS), 2)).amax(dim=-1)


def dealt_anew(profile: Tensor, generator: torch.Generator) -> Tensor:
    """The same scores, but each of them given to a random head: what is left where no head has a role."""
    return torch.stack([column[torch.randperm(len(column), generator=generator)] for column in profile.T], dim=-1)


SAME, SAME_SCORE, ANY_SCORE = "roles found in the same head", "share right, same head", "share right, mean head"
BY_INDEX, ASSIGNED = "by index", "by assignment"
HALF_TRAINED, DEALT = "one of the two untrained, by assignment", "scores dealt out anew, by assignment"
WAYS = (BY_INDEX, ASSIGNED, HALF_TRAINED, DEALT)


@measures(
    Claim(
        id="same-place",
        text="A role is found in the same head when the model is trained again",
        kind=EXPERIMENT,
        source="course notes, Toy Example Analysis: 'Head 1 (Subject-Verb)', 'Head 2 (Verb-Object)', ...",
        rule=f"three quarters of six roles (three relations, from each model to the other): the head that follows the "
        f"relation best in one model is within {CLOSE} of the best in the other",
        holds=Above(lambda n: n[SAME], 0.75),
        oracle={SAME: 1.0},
        null={SAME: 0.25},
        unit="share of the six roles; share of held-out pairs",
        control="mean head: what a head with any other number scores",
        headline=True,
        shows=(SAME, SAME_SCORE, ANY_SCORE),
    ),
    Claim(
        id="roles-move",
        text="With another seed the same roles come back in other heads",
        kind=EXPERIMENT,
        source="ours",
        rule="assignment pairs the heads of two models more alike, by 0.02, than their index does, than it pairs "
        "trained with untrained heads, and than it pairs them where one model's scores are dealt out anew",
        holds=Above(lambda n: n[ASSIGNED] - max(n[BY_INDEX], n[HALF_TRAINED], n[DEALT]), 0.02),
        oracle={BY_INDEX: 0.7, ASSIGNED: 1.0, HALF_TRAINED: 0.7, DEALT: 0.7},
        null=dict.fromkeys(WAYS, 0.9),
        unit="similarity of profiles, 1 = the same",
        control=f"one model untrained; one model's scores dealt out anew, mean of {DEALS}",
        shows=WAYS,
    ),
)
def trained_again(first: Tensor, second: Tensor, before: tuple[Tensor, Tensor], seed: int) -> dict[str, float]:
    """Profiles (L * H, columns) of two models that differ in the seed; before: of both before training."""
    generator = torch.Generator().manual_seed(seed)
    same, score = [], []
    one, other = relation_scores(first), relation_scores(second)
    for here, there in ((one, other), (other, one)):
        again = there.gather(0, here.argmax(dim=0, keepdim=True))[0]  # (L * H, 3) -> (3,)
        same.append((again >= there.amax(dim=0) - CLOSE).double().mean().item())
        score.append(again.mean().item())
    by_index, assigned = compare(first, second)
    half_trained = compare(first, before[1])[1], compare(before[0], second)[1]
    dealt = [compare(first, dealt_anew(second, generator))[1] for _ in range(DEALS)]
    of_any = mean(torch.cat([one, other]).flatten().tolist())
    found = {SAME: mean(same), SAME_SCORE: mean(score), ANY_SCORE: of_any}
    return found | dict(zip(WAYS, (by_index, assigned, mean(half_trained), mean(dealt)), strict=True))


def follows(name: str, relation: str) -> bool:
    """Does a role of this name belong to the relation, in either direction?"""
    return name in {relation_name(relation, direction) for direction in DIRECTIONS}


def draw_heads(ax: Axes, names: list[list[str]], relation: str) -> None:
    """All heads of a model, a row for each layer; those of one relation filled and named."""
    for layer, row in enumerate(names):
        for head, name in enumerate(row):
            found = follows(name, relation)
            ground = {"color": role_color(relation) if found else HIDDEN, "linewidth": 0}
            ax.add_patch(plt.Rectangle((head + 0.04, layer + 0.05), 0.92, 0.9, **ground))
            if found and len(row) <= 4:  # with more heads there is no room
                style = {"ha": "center", "va": "center", "color": "white", "weight": "bold", "fontsize": 9}
                ax.text(head + 0.5, layer + 0.5, f"{layer}.{head}", **style)
    ax.set(xlim=(0, len(names[0])), ylim=(len(names), 0), xticks=[], yticks=[])
    ax.spines[:].set_visible(False)


def draw(names: list[list[list[str]]], label: str, seeds: range) -> tuple[Figure, str]:
    """A row for each core relation, a column for each seed; names: [seed][layer][head]."""
    title = "Train again: the roles come back,\nbut not always in the same heads"
    given = {name for of_seed in names for of_layer in of_seed for name in of_layer}
    if not any(follows(name, relation) for name in given for relation in CORE_RELATIONS):
        title = "Trained this little,\nno head has one of these roles"
    size = (min(9, 1.5 + 1.5 * len(seeds)), 1.7 + 0.8 * len(CORE_RELATIONS))
    fig, axes = plt.subplots(len(CORE_RELATIONS), len(seeds), figsize=size, layout="constrained", squeeze=False)
    fig.get_layout_engine().set(wspace=0.06, hspace=0.08)
    for relation, row in zip(CORE_RELATIONS, axes, strict=True):
        style = {"rotation": 0, "ha": "right", "va": "center", "weight": "bold", "color": role_color(relation)}
        row[0].set_ylabel(relation.replace("-", "–\n"), **style)
        for ax, of_seed in zip(row, names, strict=True):
            draw_heads(ax, of_seed, relation)
    for ax, seed in zip(axes[0], seeds, strict=True):
        ax.set_title(f"seed {seed}", fontsize=10)
    note = f"one model, {label} with each seed · roles by rule\na square: a head, layer.head · filled: has this role"
    headline(fig, title, note)
    caption = "A row for each relation, a column for each seed, in each the model's heads, filled where they follow it."
    return fig, f"{' '.join(title.split())}. {caption}"


def summary(runs: list[Measured]) -> str:
    same, roles = (round(2 * len(CORE_RELATIONS) * part) for part in (sum(run[SAME] for run in runs), len(runs)))
    index, assigned = (mean(run[way] for run in runs) for way in (BY_INDEX, ASSIGNED))
    return f"{same} of {roles} roles stay in their head; alike {index:.2f} by index, {assigned:.2f} by role"


@cli.script
def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    seeds = range(options.seed, options.seed + options.seeds + 1)
    models = [load_multi_head_model(options, seed) for seed in seeds]
    sentences = training.corpus()[1][: 100 if options.quick else None]
    found = [profiles(each.model, sentences) for each in models]
    before = [profiles(training.untrained(each.recipe, MultiHeadAttention).model, sentences) for each in models]
    pairs = zip(itertools.pairwise(found), itertools.pairwise(before), seeds, strict=False)
    runs = [trained_again(*trained, untrained, seed) for trained, untrained, seed in pairs]
    if options.pictures:
        names = [head_names(each, MultiHeadAttention) for each in models]
        save_plot(options, "phase3/role_stability", *draw(names, models[0].label, seeds))
    findings.record(options, *runs)
    return summary(runs)


if __name__ == "__main__":
    cli.run(main)
