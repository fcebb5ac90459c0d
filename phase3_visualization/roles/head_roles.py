"""What does each head do, by rules that a head can fail?

It is easy to look at a heatmap and call it "the previous-word head". Here a head gets a name only by the rules of
shared/grammar/roles.py, on one half of the held-out sentences, and keeps it if it passes on the other half.
Two of the six patterns of the textbooks say how widely a head spreads, not what it does, and are counted apart:
broad (normalised entropy 0.9 or more) and focused (mean largest weight 0.8 or more, the confidence of Voita's
positional heads). There is no separator such as [SEP] in the toy language, so the hub can only be the first word.

Does a head look at its neighbour, or at a related word that often stands there? That is asked in the rows whose
neighbour is not related by the grammar.

    python phase3_visualization/roles/head_roles.py

Prints the weights, and writes head_roles.png to visualizations/plots/phase3/.
"""

from dataclasses import dataclass

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from phase2_multi_head.models import load_multi_head_model
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from shared import cli, training
from shared.evidence import findings
from shared.evidence.claims import EXPERIMENT, Above, Claim, measures
from shared.grammar.roles import (
    MARGIN,
    NEIGHBOURS,
    NO_NAME,
    POSITIONAL,
    UNTRAINED,
    Baselines,
    Halves,
    Scores,
    halves_of,
    margins,
    role_name,
    spread_name,
)
from shared.grammar.scores import DIRECTIONS, relation_name
from shared.head_statistics import OFFSETS
from shared.toy_language import RELATIONS
from shared.training import Trained
from shared.visualization_utils import HIDDEN, INK, QUIET, WEIGHT_MAP, headline, role_color, save_plot

ALL_HEADS, FOLLOWING, DIFFERENT = "all heads", "that follow a relation", "different relations"
SUBJECT = "that follow verb and subject"


def passing(halves: Halves, layer: int, head: int) -> set[str]:
    """The relations, by direction, that a head follows in both halves of the sentences, whatever its name."""
    (_, naming), (_, scoring) = (margins(scores, base, layer, head) for scores, base in halves)
    return {name for name in naming if min(naming[name], scoring[name]) >= 0}


@measures(
    Claim(
        id="C069",
        text="Different heads learn interpretable patterns, such as subject and verb",
        kind=EXPERIMENT,
        source="course notes, Multi-Head Attention; coreference, which they also name: pretrained/coreference.py",
        rule="at least three heads follow a relation, 0.10 above both controls: two relations or more, one verb "
        "and subject",
        holds=lambda n: n[FOLLOWING] >= 3 and n[DIFFERENT] >= 2 and n[SUBJECT] >= 1,
        oracle={ALL_HEADS: 8, FOLLOWING: 8, DIFFERENT: 4, SUBJECT: 2},
        null={ALL_HEADS: 8, FOLLOWING: 0, DIFFERENT: 0, SUBJECT: 0},
        unit="heads that pass the rule on both halves of the held-out sentences",
        control=f"the best fixed offset, as in Voita et al. 2019, and the best head of {UNTRAINED} untrained models",
    ),
)
def relations_followed(halves: Halves) -> dict[str, int]:
    """How many heads pass the rule of some relation in both halves, how many relations that are, and verb and subject.

    A head may follow several relations, whatever its name; both directions are one relation.
    """
    followed = [{frozenset(name.split(" → ")) for name in passing(halves, *place)} for place in halves[0][0].heads]
    return {
        ALL_HEADS: len(followed),
        FOLLOWING: sum(map(bool, followed)),
        DIFFERENT: len(set().union(*followed)),
        SUBJECT: sum(frozenset(("verb", "subject")) in relations for relations in followed),
    }


OF_UNRELATED = "on its neighbour, where that is not related"


@measures(
    Claim(
        id="neighbour-head",
        text="Some head attends primarily to the previous or to the next word",
        kind=EXPERIMENT,
        source="course notes, Head Specialization: positional heads; Voita et al. 2019",
        rule="the head that does so most has its largest weight there in more than half of the rows whose neighbour is "
        "not related by the grammar",
        holds=Above(lambda n: n[OF_UNRELATED], 0.5),
        oracle={OF_UNRELATED: 1.0},
        null={OF_UNRELATED: 0.2},
        unit="share of rows; head chosen on one half of the held-out sentences, scored on the other",
        control=f"the best head of {UNTRAINED} untrained models",
    )
)
def neighbour_heads(halves: Halves) -> dict[str, float]:
    """How often the best neighbour head looks at its neighbour: where the two are not related, and in all rows."""
    (naming, _), (scoring, base) = halves
    offset = max(NEIGHBOURS, key=lambda o: naming.unrelated[o].max().item())
    place = divmod(int(naming.unrelated[offset].argmax()), naming.first.size(1))
    return {
        OF_UNRELATED: scoring.unrelated[offset][place].item(),
        "there, best untrained head": base.untrained[f"unrelated {offset}"],
        "on its neighbour, all rows": scoring.offset[offset][place].item(),
    }


@dataclass
class Column:
    """A score of all heads, (L, H), and what each head needs for the name; heading: of the column in the picture."""

    heading: str
    values: Tensor
    needed: Tensor
    names: tuple[str, ...]  # that it gives


def columns(scores: Scores, base: Baselines) -> list[Column]:
    """The positions, then the relations, of which each head shows its better direction."""

    def position(heading: str, share: Tensor, place: int | str, name: str) -> Column:
        needed = max(POSITIONAL, base.untrained[place] + MARGIN)
        return Column(heading, share, torch.full_like(share, needed), (name,))

    headings = {0: "itself", -1: "previous\nword", 1: "next\nword"}
    table = [position(headings[o], scores.offset[o], o, name) for name, o in OFFSETS.items()]
    table.append(position("first\nword", scores.first, "first", "first word"))
    for relation in RELATIONS:
        both = torch.stack([scores.relation[relation, d] for d in DIRECTIONS])  # (2, L, H)
        needed = torch.tensor([base.bar((relation, d)) + MARGIN for d in DIRECTIONS])
        better = (both - needed[:, None, None]).argmax(dim=0)  # (2, L, H) -> (L, H)
        names = tuple(relation_name(relation, d) for d in DIRECTIONS)
        table.append(Column(relation.replace("-", "\n"), both.gather(0, better[None])[0], needed[better], names))
    return table


def requirement(needed: float) -> str:
    """What stands below a score; no line for the share that the heading of the positions names."""
    if needed > 1:
        return f"guess: {needed - MARGIN:.2f}"
    return "" if needed == POSITIONAL else f"needs {needed:.2f}"


def draw_table(ax: Axes, table: list[Column], halves: Halves, names: list[str]) -> None:
    """Heads down, scores across, below each what it needs; framed thickly what gives a head its name."""
    heads = halves[1][0].heads
    values, needed = (
        torch.stack([part.flatten() for part in parts], dim=1)  # (L, H) each -> (L * H, columns)
        for parts in zip(*((column.values, column.needed) for column in table), strict=True)
    )
    ax.pcolormesh(values.numpy(), vmin=0, vmax=1, cmap=WEIGHT_MAP, edgecolors=HIDDEN, linewidth=1)
    for row, name in enumerate(names):
        passed = passing(halves, *heads[row])
        for place, column in enumerate(table):
            below = requirement(needed[row, place].item())
            style = {"color": "white" if values[row, place] > 0.5 else INK, "ha": "center", "va": "center"}
            ax.text(place + 0.5, row + (0.36 if below else 0.5), f"{values[row, place]:.2f}", fontsize=10, **style)
            ax.text(place + 0.5, row + 0.76, below, fontsize=8, **style)
            if name in column.names or passed & set(column.names):
                frame = {"edgecolor": role_color(column.names[0]), "linewidth": 4 if name in column.names else 1.5}
                ax.add_patch(plt.Rectangle((place + 0.03, row + 0.04), 0.94, 0.92, fill=False, zorder=3, **frame))
        weight = "normal" if name == NO_NAME else "bold"
        ax.text(len(table) + 0.15, row + 0.5, name, va="center", fontsize=10, color=role_color(name), weight=weight)
    ax.set_xticks([c + 0.5 for c in range(len(table))], [column.heading for column in table], fontsize=9)
    ax.set_yticks([r + 0.5 for r in range(len(heads))], [f"layer {layer} head {head}" for layer, head in heads])
    ax.xaxis.tick_top()
    ax.tick_params(length=0)
    ax.invert_yaxis()
    ax.spines[:].set_visible(False)
    positions = len(table) - len(RELATIONS)
    ax.axvline(positions, color="white", linewidth=6)
    style = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "color": QUIET}
    ax.annotate(f"a position: needs {POSITIONAL:.2f}", (0, 1), (2, 38), **style)
    ax.annotate(f"a relation: needs {MARGIN:.2f} more than a guess", (positions, 1), (2, 38), **style)


def draw(trained: Trained, halves: Halves, names: list[str]) -> tuple[Figure, str]:
    """The table as a picture, with the names of the heads at the right."""
    scores, base = halves[1]
    fig, ax = plt.subplots(figsize=(9, 2.0 + 0.47 * len(scores.heads)), layout="constrained")
    draw_table(ax, columns(scores, base), halves, names)
    ax.set_xlim(0, ax.get_xlim()[1] + 0.1)
    title = summary(names)
    headline(
        fig,
        title,
        f"{trained.label} · share of rows whose largest weight is there · thick frame: gives the name, thin: passes as "
        "well\na guess: the best fixed offset, or the best untrained head · both halves of the sentences must pass",
    )
    return fig, f"{title}. A row for each head, a column for each score, the name at the right."


def summary(names: list[str]) -> str:
    relations, without = sum("→" in name for name in names), names.count(NO_NAME)
    positions = len(names) - relations - without
    rest = [f"{positions} a position"] * bool(positions) + [f"{without} without a name"] * bool(without)
    return ", ".join([f"{relations} of {len(names)} heads follow the grammar by rule", *rest])


def show(scores: Scores, base: Baselines, names: list[str]) -> None:
    """Print the mean weights and the spread of every head beside those of even weights, and count six patterns."""
    print(f"\n{'mean weight and spread':40}" + "".join(f"{x}.{y:<4}" for x, y in scores.heads) + "  even 1/n")
    for name, even in base.even.items():
        row = "".join(f"{value:6.2f}" for value in scores.statistics[name].flatten().tolist())
        print(f"   {name:34}{row}{even:11.2f}")
    spreads = [spread_name(scores, *place) for place in scores.heads]
    counts = {name: (names + spreads).count(name) for name in ("self", "previous", "broad", "focused", "first word")}
    counts["another fixed offset"] = names.count("next") + sum(name.startswith("offset") for name in names)
    print(f"   six patterns of the textbooks, heads by rule: {', '.join(f'{name} {n}' for name, n in counts.items())}")


@cli.script
def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    sentences = training.corpus()[1][: 100 if options.quick else None]
    models = [load_multi_head_model(options, seed) for seed in cli.seeds(options)]
    count = 2 if options.quick else UNTRAINED
    runs = [halves_of(trained, MultiHeadAttention, sentences, count) for trained in models]
    names = [role_name(runs[0], *place) for place in runs[0][0][0].heads]
    show(*runs[0][1], names)
    save_plot(options, "phase3/head_roles", *draw(models[0], runs[0], names))
    findings.record(options, *map(relations_followed, runs), *map(neighbour_heads, runs))
    return summary(names)


if __name__ == "__main__":
    cli.run(main)
