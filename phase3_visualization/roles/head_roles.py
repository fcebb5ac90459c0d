"""What does each head do, by rules that a head can fail?

It is easy to look at a heatmap and call it "the previous-word head". Here a head gets a name by a rule with a published
margin, over all held-out sentences, or it gets none:

    position   its largest weight has the same offset in 0.9 of the rows: itself, previous, next, or another fixed
               offset; or lies on the first word in 0.9 of them                              (Voita et al. 2019)
    relation   its largest weight, itself aside, is the gold word at least 10 points (0.10) more often than with the
               best fixed offset (Voita et al. 2019), and than in the best untrained model (our addition)

Two of the six patterns of the textbooks say how widely a head spreads, not what it does. They are noted beside the
name: broad (normalised entropy 0.9 or more) and focused (mean largest weight 0.8 or more, the confidence of Voita's
positional heads). There is no separator such as [SEP] in the toy language, so the hub can only be the first word.

    python phase3_visualization/roles/head_roles.py

Prints the weights, and writes head_roles.png to visualizations/plots/phase3/.
"""

from dataclasses import dataclass, replace

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor

from phase2_multi_head.multi_head_attention import MultiHeadAttention, load_multi_head_model
from shared import cli, training
from shared.evidence import findings
from shared.evidence.claims import EXPERIMENT, IDENTITY, Claim, measures
from shared.grammar.scores import DIRECTIONS, best_fixed_offset, gold_matrices, relation_name, score_heads
from shared.head_statistics import OFFSETS, even_weights, first_share, head_statistics, offset_share, relation_weight
from shared.toy_language import RELATIONS, Sentence
from shared.training import Trained, attention_on
from shared.visualization_utils import INK, QUIET, WEIGHT_MAP, headline, save_plot

POSITIONAL, MARGIN = 0.90, 0.10  # Voita et al. 2019
BROAD, FOCUSED = 0.90, 0.80
FARTHEST = 5  # fixed offsets tried to each side
UNTRAINED = 3  # models of the control
NO_NAME = "no name"

Key = tuple[str, str]  # relation, direction


@dataclass
class Scores:
    """One number for each head of a model, (L, H): shares of rows by offset or on the first word, relations, spread."""

    offset: dict[int, Tensor]
    first: Tensor
    relation: dict[Key, Tensor]  # accuracy
    statistics: dict[str, Tensor]

    @property
    def heads(self) -> list[tuple[int, int]]:
        """(layer, head) of all heads."""
        num_layers, num_heads = self.first.shape
        return [(layer, head) for layer in range(num_layers) for head in range(num_heads)]


@dataclass
class Baselines:
    """What a head that learned nothing reaches; untrained: the highest over the heads of all untrained models."""

    fixed_offset: dict[Key, float]
    untrained: dict[int | str | Key, float]
    even: dict[str, float]  # statistics of weights of 1/n

    def bar(self, key: Key) -> float:
        """The better of the two baselines of a relation and direction."""
        return max(self.fixed_offset[key], self.untrained[key])


def golds(sentences: list[Sentence]) -> dict[Key, Tensor]:
    """(relation, direction) -> gold (N, T, T)."""
    forward = gold_matrices(sentences, max(len(sentence.words) for sentence in sentences))
    return {(r, d): gold for r in RELATIONS for d, gold in zip(DIRECTIONS, (forward[r], forward[r].mT), strict=True)}


def measure(trained: Trained, sentences: list[Sentence]) -> Scores:
    """All scores of a model, with the mean weight on the gold words among its statistics."""
    layers, mask = attention_on(trained.model, sentences, trained.recipe.objective)
    layers, mask = [weights.cpu() for weights in layers], mask.cpu()
    statistics = [head_statistics(weights, mask) for weights in layers]
    accuracy = score_heads(layers, sentences)
    return Scores(
        {o: torch.stack([offset_share(w, mask, o) for w in layers]) for o in range(-FARTHEST, FARTHEST + 1)},
        torch.stack([first_share(weights, mask) for weights in layers]),
        {(r, d): accuracy[r][..., i] for r in RELATIONS for i, d in enumerate(DIRECTIONS)},
        {name: torch.stack([layer[name] for layer in statistics]) for name in statistics[0]}
        | {
            f"weight on {r}, {d}": torch.stack([relation_weight(w, gold) for w in layers])
            for (r, d), gold in golds(sentences).items()
        },
    )


def baselines(trained: Trained, sentences: list[Sentence], count: int) -> Baselines:
    """The best fixed offset of each relation, the best head of `count` untrained models, and even weights."""
    recipes = [replace(trained.recipe, seed=trained.recipe.seed + i) for i in range(count)]
    models = [measure(training.untrained(recipe, MultiHeadAttention), sentences) for recipe in recipes]
    best = {key: max(m.relation[key].max().item() for m in models) for key in models[0].relation}
    best |= {offset: max(m.offset[offset].max().item() for m in models) for offset in models[0].offset}
    best["first"] = max(m.first.max().item() for m in models)
    best["normalised entropy"] = min(m.statistics["normalised entropy"].min().item() for m in models)
    best["largest weight"] = max(m.statistics["largest weight"].max().item() for m in models)
    _, mask = attention_on(trained.model, sentences, trained.recipe.objective)
    even, gold = even_weights(mask.cpu()), golds(sentences)
    weights = {f"weight on {r}, {d}": relation_weight(even, gold[r, d]).item() for r, d in gold}
    statistics = {name: value.item() for name, value in head_statistics(even, mask.cpu()).items()}
    return Baselines({key: best_fixed_offset(gold[key])[1] for key in gold}, best, statistics | weights)


def role_name(scores: Scores, base: Baselines, layer: int, head: int) -> str:
    """The role of a head by the rules above, or "no name". A position comes before a relation."""
    words = {offset: text for text, offset in OFFSETS.items()}
    offset = max(scores.offset, key=lambda o: scores.offset[o][layer, head].item())
    if scores.offset[offset][layer, head] >= max(POSITIONAL, base.untrained[offset] + MARGIN):
        return words.get(offset, f"offset {offset:+d}")
    if scores.first[layer, head] >= max(POSITIONAL, base.untrained["first"] + MARGIN):
        return "first word"
    margins = {key: values[layer, head].item() - base.bar(key) for key, values in scores.relation.items()}
    key = max(margins, key=lambda key: margins[key])
    return relation_name(*key) if margins[key] >= MARGIN else NO_NAME


def spread_name(scores: Scores, layer: int, head: int) -> str:
    """broad, focused, or neither (an empty string)."""
    if scores.statistics["normalised entropy"][layer, head] >= BROAD:
        return "broad"
    return "focused" if scores.statistics["largest weight"][layer, head] >= FOCUSED else ""


ALL_HEADS, BY_RELATION, SUBJECT = "all heads", "named by a relation", "verb and subject"
ITSELF, PREVIOUS, NEXT, OFFSET, FIRST = "itself", "previous", "next", "another fixed offset", "first word"
SHARPEST_UNTRAINED = "entropy of the sharpest untrained head"


@measures(
    Claim(
        id="C069",
        text="Heads learn interpretable patterns, such as subject and verb",
        kind=EXPERIMENT,
        source="course notes; rule of Voita et al. 2019",
        rule="at least half of the heads are 0.10 above the best fixed offset and the best untrained head in a "
        "relation, one of them verb and subject",
        holds=lambda n: 2 * n[BY_RELATION] >= n[ALL_HEADS] and n[SUBJECT] > 0,
        oracle={ALL_HEADS: 8, BY_RELATION: 8, SUBJECT: 2},
        null={ALL_HEADS: 8, BY_RELATION: 0, SUBJECT: 0},
        unit="heads",
        control=f"best fixed offset; {UNTRAINED} untrained models, 0.10 below by the rule",
        shows=(ALL_HEADS, BY_RELATION, SUBJECT),
    ),
    Claim(
        id="I048",
        text="Attention heads show six patterns: diagonal, previous, uniform, sparse, hub, fixed offset",
        kind=EXPERIMENT,
        rule="every one of the six has a head",
        holds=lambda n: min(n[ITSELF], n[PREVIOUS], n[NEXT] + n[OFFSET], n[FIRST], n["broad"], n["focused"]) >= 1,
        oracle={ITSELF: 1, PREVIOUS: 1, NEXT: 1, OFFSET: 0, FIRST: 1, "broad": 1, "focused": 1},
        null={ITSELF: 0, PREVIOUS: 0, NEXT: 0, OFFSET: 0, FIRST: 0, "broad": 8, "focused": 0},
        unit="heads, by rule",
        shows=(ALL_HEADS, ITSELF, PREVIOUS, NEXT, OFFSET, FIRST, "broad", "focused"),
    ),
    Claim(
        id="C145",
        text="Sparse, focused heads are frequent in well-trained models; uniform ones are undertrained",
        kind=EXPERIMENT,
        rule="every untrained head is 0.9 or more, and half of the trained heads are focused (largest weight 0.8)",
        holds=lambda n: n[SHARPEST_UNTRAINED] >= BROAD and 2 * n["focused"] >= n[ALL_HEADS],
        oracle={ALL_HEADS: 8, "focused": 8, SHARPEST_UNTRAINED: 1.0},
        null={ALL_HEADS: 8, "focused": 0, SHARPEST_UNTRAINED: 1.0},
        unit="heads; normalised entropy",
        shows=(ALL_HEADS, "focused", "entropy*"),
    ),
)
def names_given(scores: Scores, base: Baselines) -> dict[str, int | float | list[float]]:
    """How many heads have which name, and how evenly the heads spread their weight."""
    names = [role_name(scores, base, *place) for place in scores.heads]
    spreads = [spread_name(scores, *place) for place in scores.heads]
    return {
        ALL_HEADS: len(names),
        BY_RELATION: sum("→" in name for name in names),
        SUBJECT: sum("subject" in name for name in names),
        ITSELF: names.count("self"),
        PREVIOUS: names.count("previous"),
        NEXT: names.count("next"),
        OFFSET: sum(name.startswith("offset") for name in names),
        FIRST: names.count("first word"),
        "broad": spreads.count("broad"),
        "focused": spreads.count("focused"),
        "entropy of trained heads": scores.statistics["normalised entropy"].flatten().tolist(),
        SHARPEST_UNTRAINED: base.untrained["normalised entropy"],
    }


def neighbour_or_gold(
    trained: Trained, scores: Scores, sentences: list[Sentence], offset: int
) -> tuple[str, float, float]:
    """Why is the head that looks most often at this neighbour (offset -1 or 1) no more positional? -> name, two shares.

    Telling are the rows where the neighbour and the gold word of its best relation at this offset differ: there it can
    follow only one. Returned: the shares whose largest weight, the word itself aside, is on gold and on the neighbour.
    """
    layer, head = divmod(int(scores.offset[offset].argmax()), scores.first.size(1))
    # relations whose best guess without attention is this neighbour; not the control, whose gold always is
    candidates = {key: gold for key, gold in golds(sentences).items() if key[0] != "adjective-noun"}
    candidates = {key: gold for key, gold in candidates.items() if best_fixed_offset(gold)[0] == offset}
    key = max(candidates, key=lambda key: scores.relation[key][layer, head].item())
    gold = candidates[key]
    layers, _ = attention_on(trained.model, sentences, trained.recipe.objective)
    positions = torch.arange(gold.size(-1))
    distance = positions[None] - positions[:, None]  # (T, T), from query to key
    attended = layers[layer][:, head].cpu().masked_fill(distance == 0, -1).argmax(dim=-1)  # (N, T, T) -> (N, T)
    telling = gold.any(dim=-1) & ~(gold & (distance == offset)).any(dim=-1)  # (N, T)
    on_gold = gold.gather(-1, attended[..., None])[..., 0][telling]
    on_neighbour = (attended - positions == offset)[telling]
    return f"{layer}.{head}, {relation_name(*key)}", on_gold.double().mean().item(), on_neighbour.double().mean().item()


@measures(
    Claim(
        id="neighbour-head",
        text="Some head is a previous-word or next-word head",
        kind=EXPERIMENT,
        source="Voita et al. 2019",
        rule="a head looks at the same neighbour in 0.9 of the rows",
        holds=lambda n: max(n["previous, best head"], n["next, best head"]) >= POSITIONAL,
        oracle={"previous, best head": 1.0, "next, best head": 0.3},
        null={"previous, best head": 0.5, "next, best head": 0.5},
        unit="share of rows by largest weight",
        control="rows where neighbour and related word differ show which of the two the head follows",
    )
)
def neighbour_heads(trained: Trained, scores: Scores, sentences: list[Sentence]) -> dict[str, float]:
    """The best previous-word and next-word head, and what it looks at where its relation points elsewhere."""
    found = {}
    for text, offset in (("previous", -1), ("next", 1)):
        where, on_gold, on_neighbour = neighbour_or_gold(trained, scores, sentences, offset)
        found[f"{text}, best head"] = scores.offset[offset].max().item()
        found[f"that head ({where}) where gold is not the {text} word, on gold"] = on_gold
        found[f"there, on the {text} word"] = on_neighbour
    return found


@measures(
    Claim(
        id="C130",
        text="Entropy and effective context may be taken from the average of the heads",
        kind=IDENTITY,
        rule="the two differ by less than a tenth",
        holds=lambda n: abs(n["of the average"] / n["average of the heads"] - 1) < 0.1,
        unit="effective context, in words, of four heads that each look at one word",
    )
)
def four_sharp_heads() -> dict[str, float]:
    """Four heads that each look at one word, all at others: before and after they are averaged."""
    heads = torch.eye(4).flip(0)[None, :, None, :].expand(1, 4, 4, 4)
    pairs = {"of the average": heads.mean(dim=1, keepdim=True), "average of the heads": heads}
    visible = torch.ones(1, 1, 4, 4, dtype=torch.bool)
    return {name: head_statistics(w, visible)["effective context"].mean().item() for name, w in pairs.items()}


def columns(scores: Scores, base: Baselines) -> list[tuple[str, Tensor, Tensor]]:
    """(heading, values (L, H), baselines (L, H)) of the picture; of a relation, each head's better direction."""

    def alike(baseline: float) -> Tensor:
        return torch.full_like(scores.first, baseline)

    table = [
        (text, scores.offset[o], alike(base.untrained[o])) for text, o in (("itself", 0), ("previous", -1), ("next", 1))
    ]
    table.append(("first\nword", scores.first, alike(base.untrained["first"])))
    for relation in RELATIONS:
        both = torch.stack([scores.relation[relation, d] for d in DIRECTIONS])  # (2, L, H)
        bars = torch.tensor([base.bar((relation, d)) for d in DIRECTIONS])
        chosen = (both - bars[:, None, None]).argmax(dim=0)  # (2, L, H) -> (L, H)
        table.append((relation.replace("-", "\n"), both.gather(0, chosen[None])[0], bars[chosen]))
    for text in ("largest weight", "normalised entropy"):
        table.append((text.replace(" ", "\n"), scores.statistics[text], alike(base.untrained[text])))
    return table


def draw(trained: Trained, scores: Scores, base: Baselines) -> tuple[Figure, str]:
    """The table as a picture: heads down, scores across, the baseline small below each, the name at the right."""
    table, heads = columns(scores, base), scores.heads
    values = torch.stack([column.flatten() for _, column, _ in table], dim=1)  # (L * H, columns)
    bars = torch.stack([column.flatten() for _, _, column in table], dim=1)
    fig, ax = plt.subplots(figsize=(10.8, 1.9 + 0.47 * len(heads)), layout="constrained")
    ax.pcolormesh(values.numpy(), vmin=0, vmax=1, cmap=WEIGHT_MAP, edgecolors="white", linewidth=1.5)
    middle = {"ha": "center", "va": "center"}
    names = [role_name(scores, base, *place) for place in heads]
    for row, (place, name) in enumerate(zip(heads, names, strict=True)):
        for column in range(len(table)):
            color = "white" if values[row, column] > 0.4 else INK
            ax.text(column + 0.5, row + 0.4, f"{values[row, column]:.2f}", fontsize=10, color=color, **middle)
            ax.text(column + 0.5, row + 0.76, f"{bars[row, column]:.2f}", fontsize=7.5, color=color, **middle)
        text = ", ".join(part for part in (name, spread_name(scores, *place)) if part)
        ax.text(len(table) + 0.15, row + 0.5, text, va="center", fontsize=10, color=QUIET if name == NO_NAME else INK)
    ax.set_xticks([c + 0.5 for c in range(len(table))], [text for text, _, _ in table], fontsize=9)
    ax.set_yticks([r + 0.5 for r in range(len(heads))], [f"layer {layer} head {head}" for layer, head in heads])
    ax.xaxis.tick_top()
    ax.set_xlim(0, len(table) + 2.4)
    ax.tick_params(length=0)
    ax.invert_yaxis()
    ax.spines[:].set_visible(False)
    title = summary(names)
    headline(
        fig,
        title,
        f"{trained.label} · share of rows whose largest weight is there · small: baseline, the best untrained head, "
        "for relations also the best fixed offset",
    )
    return fig, f"{title}. A row for each head, a column for each score."


def summary(names: list[str]) -> str:
    number, relations, without = len(names), sum("→" in name for name in names), names.count(NO_NAME)
    positions = number - relations - without
    return f"Of {number} heads, {relations} follow a grammar relation, {positions} a position, {without} without a name"


def show(scores: Scores, base: Baselines) -> None:
    """Print the mean weights and the spread of every head beside those of even weights."""
    print(f"\n{'mean weight and spread':40}" + "".join(f"{x}.{y:<4}" for x, y in scores.heads) + "  even 1/n")
    for name, even in base.even.items():
        row = "".join(f"{value:6.2f}" for value in scores.statistics[name].flatten().tolist())
        print(f"   {name:34}{row}{even:11.2f}")


def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    trained = load_multi_head_model(options)
    sentences = training.corpus()[1][: 100 if options.quick else None]
    scores = measure(trained, sentences)
    base = baselines(trained, sentences, count=2 if options.quick else UNTRAINED)
    show(scores, base)
    save_plot(options, "phase3/head_roles", *draw(trained, scores, base))
    given, neighbours = names_given(scores, base), neighbour_heads(trained, scores, sentences)
    findings.record(options, given, neighbours, four_sharp_heads())
    return summary([role_name(scores, base, *place) for place in scores.heads])


if __name__ == "__main__":
    cli.run(main)
