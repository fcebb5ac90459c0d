"""What does each head do? A name by rule, and only for a head that beats its baselines.

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

import argparse

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor

from phase2_multi_head.multi_head_attention import load_multi_head_model
from phase3_visualization.roles.pattern_scores import (
    BROAD,
    NO_NAME,
    POSITIONAL,
    UNTRAINED,
    Baselines,
    Scores,
    arrow,
    baselines,
    golds,
    measure,
    name,
    spread,
)
from shared import cli, paths, training
from shared.evidence import findings
from shared.evidence.findings import Finding
from shared.grammar.scores import DIRECTIONS, best_fixed_offset
from shared.head_statistics import head_statistics
from shared.toy_language import RELATIONS, Sentence
from shared.training import Trained, attention_on
from shared.visualization_utils import INK, QUIET, WEIGHT_MAP, model_note, save_figure


def neighbour_or_gold(
    trained: Trained, scores: Scores, sentences: list[Sentence], offset: int
) -> tuple[str, float, float]:
    """Why is the head that looks most often at this neighbour (offset -1 or 1) no more positional? -> name, two shares.

    Telling are the rows where the neighbour and the gold word of its best relation at this offset differ: there it can
    follow only one. Returned: the shares whose largest weight, the word itself aside, is on gold and on the neighbour.
    """
    layer, head = divmod(int(scores.offset[offset].argmax()), scores.first.size(1))
    # relations whose best guess without attention is this neighbour; not the control, whose gold always is
    candidates = {(r, d): gold for r, d, gold in golds(sentences) if r != "adjective-noun"}
    candidates = {key: gold for key, gold in candidates.items() if best_fixed_offset(gold)[0] == offset}
    key = max(candidates, key=lambda k: scores.relation[k][layer, head].item())
    gold = candidates[key]
    layers, _ = attention_on(trained.model, sentences, trained.recipe.objective)
    positions = torch.arange(gold.size(-1))
    own = positions[None] == positions[:, None]
    attended = layers[layer][:, head].cpu().masked_fill(own, -1).argmax(dim=-1)  # (N, T, T) -> (N, T)
    neighbour = positions[None] - positions[:, None] == offset  # (T, T)
    telling = gold.any(dim=-1) & ~(gold & neighbour).any(dim=-1)  # (N, T)
    on_gold = gold.gather(-1, attended[..., None])[..., 0][telling]
    on_neighbour = (attended - positions == offset)[telling]
    return f"{layer}.{head}, {arrow(key)}", on_gold.double().mean().item(), on_neighbour.double().mean().item()


def columns(scores: Scores, base: Baselines) -> list[tuple[str, Tensor, Tensor]]:
    """(heading, values (L, H), baselines (L, H)) of the picture; of a relation, each head's better direction."""
    table = []
    for text, key in (("itself", 0), ("previous", -1), ("next", 1)):
        table.append((text, scores.offset[key], torch.full_like(scores.first, base.untrained[key])))
    table.append(("first\nword", scores.first, torch.full_like(scores.first, base.untrained["first"])))
    for relation in RELATIONS:
        both = torch.stack([scores.relation[relation, d] for d in DIRECTIONS])  # (2, L, H)
        bars = torch.tensor([max(base.fixed_offset[relation, d], base.untrained[relation, d]) for d in DIRECTIONS])
        chosen = (both - bars[:, None, None]).argmax(dim=0)  # (2, L, H) -> (L, H)
        table.append((relation.replace("-", "\n"), both.gather(0, chosen[None])[0], bars[chosen]))
    for text in ("largest weight", "normalised entropy"):
        values = scores.statistics[text]
        table.append((text.replace(" ", "\n"), values, torch.full_like(values, base.untrained[text])))
    return table


def draw(trained: Trained, scores: Scores, base: Baselines) -> tuple[Figure, str]:
    """The table as a picture: heads down, scores across, the baseline small below each, the name at the right."""
    table = columns(scores, base)
    num_layers, num_heads = scores.first.shape
    heads = [(layer, head) for layer in range(num_layers) for head in range(num_heads)]
    values = torch.stack([column.flatten() for _, column, _ in table], dim=1)  # (L * H, columns)
    bars = torch.stack([column.flatten() for _, _, column in table], dim=1)
    fig, ax = plt.subplots(figsize=(10.8, 1.9 + 0.47 * len(heads)), layout="constrained")
    ax.pcolormesh(values.numpy(), vmin=0, vmax=1, cmap=WEIGHT_MAP, edgecolors="white", linewidth=1.5)
    for row, (layer, head) in enumerate(heads):
        for column in range(len(table)):
            value, color = values[row, column].item(), "white" if values[row, column] > 0.4 else INK
            ax.text(column + 0.5, row + 0.4, f"{value:.2f}", ha="center", va="center", fontsize=10, color=color)
            ax.text(
                column + 0.5,
                row + 0.76,
                f"{bars[row, column]:.2f}",
                ha="center",
                va="center",
                fontsize=7.5,
                color=color,
            )
        role = name(scores, base, layer, head)
        text = ", ".join(part for part in (role, spread(scores, layer, head)) if part)
        ax.text(len(table) + 0.15, row + 0.5, text, va="center", fontsize=10, color=QUIET if role == NO_NAME else INK)
    ax.set_xticks([c + 0.5 for c in range(len(table))], [text for text, _, _ in table], fontsize=9)
    ax.set_yticks([r + 0.5 for r in range(len(heads))], [f"layer {layer} head {head}" for layer, head in heads])
    ax.xaxis.tick_top()
    ax.set_xlim(0, len(table) + 2.4)
    ax.tick_params(length=0)
    ax.invert_yaxis()
    ax.spines[:].set_visible(False)
    names = [name(scores, base, layer, head) for layer, head in heads]
    relations = sum("→" in each for each in names)
    positions = len(names) - relations - names.count(NO_NAME)
    title = (
        f"Of {len(heads)} heads, {relations} follow a grammar relation, {positions} a position, "
        f"{names.count(NO_NAME)} without a name"
    )
    fig.suptitle(title, fontsize=13)
    model_note(
        fig,
        f"{trained.label} · share of rows whose largest weight is there · small: baseline, the best untrained head, "
        "for relations also the best fixed offset",
    )
    return fig, title


def show(scores: Scores, base: Baselines) -> None:
    """Print the mean weights and the spread of every head beside those of even weights."""
    names = list(base.even)
    num_layers, num_heads = scores.first.shape
    heads = [f"{layer}.{head}" for layer in range(num_layers) for head in range(num_heads)]
    print("\nmean weight and spread     " + "".join(f"{head:>7}" for head in heads) + "   even 1/n")
    for each in names:
        row = "".join(f"{value:7.2f}" for value in scores.statistics[each].flatten().tolist())
        print(f"   {each:32}"[:34].ljust(27) + row + f"{base.even[each]:11.2f}")


def record_findings(
    trained: Trained, scores: Scores, base: Baselines, sentences: list[Sentence], options: argparse.Namespace
) -> None:
    num_layers, num_heads = scores.first.shape
    heads = [(layer, head) for layer in range(num_layers) for head in range(num_heads)]
    names = [name(scores, base, *place) for place in heads]
    telling = {}
    for text, offset in (("previous", -1), ("next", 1)):
        where, on_gold, on_neighbour = neighbour_or_gold(trained, scores, sentences, offset)
        telling[f"{text}, best head"] = scores.offset[offset].max().item()
        telling[f"that head ({where}) where gold is not the {text} word, on gold"] = on_gold
        telling[f"there, on the {text} word"] = on_neighbour
    found = {
        "itself": names.count("self"),
        "previous": names.count("previous"),
        "next": names.count("next"),
        "another fixed offset": sum(each.startswith("offset") for each in names),
        "first word": names.count("first word"),
        "broad": sum(spread(scores, *place) == "broad" for place in heads),
        "focused": sum(spread(scores, *place) == "focused" for place in heads),
    }
    kinds = (found["itself"], found["previous"], found["next"] + found["another fixed offset"], found["first word"])
    four_heads = torch.eye(4).flip(0)[None, :, None, :].expand(1, 4, 4, 4)  # each looks at one word, all at others
    all_four = torch.ones(1, 1, 4, 4, dtype=torch.bool)
    context = [
        head_statistics(w, all_four)["effective context"].mean().item()
        for w in (four_heads.mean(dim=1, keepdim=True), four_heads)
    ]
    entropy = scores.statistics["normalised entropy"]
    findings.record(
        "phase3_visualization/roles/head_roles.py",
        [
            Finding(
                "C069",
                "Heads learn interpretable patterns, such as subject and verb",
                "course notes; rule of Voita et al. 2019",
                {
                    "named by a relation": sum("→" in n for n in names),
                    "verb and subject": sum("subject" in n for n in names),
                },
                f"heads of {len(heads)}",
                "at least half of the heads are 0.10 above the best fixed offset and the best untrained head in a "
                "relation, one of them verb and subject",
                findings.verdict(2 * sum("→" in n for n in names) >= len(heads) and any("subject" in n for n in names)),
                control=f"best fixed offset; {UNTRAINED} untrained models, 0.10 below by the rule",
                seeds=[options.seed],
            ),
            Finding(
                "I048",
                "Attention heads show six patterns: diagonal, previous, uniform, sparse, hub, fixed offset",
                "course notes",
                found,
                f"heads of {len(heads)}, by rule",
                "every one of the six has a head",
                findings.verdict(min(*kinds, found["broad"], found["focused"]) >= 1),
                seeds=[options.seed],
            ),
            Finding(
                "neighbour-head",
                "Some head is a previous-word or next-word head",
                "Voita et al. 2019",
                telling,
                "share of rows by largest weight",
                "a head looks at the same neighbour in 0.9 of the rows",
                findings.verdict(max(scores.offset[o].max().item() for o in (-1, 1)) >= POSITIONAL),
                control="rows where neighbour and related word differ show which of the two the head follows",
                seeds=[options.seed],
            ),
            Finding(
                "C145",
                "Sparse, focused heads are frequent in well-trained models; uniform ones are undertrained",
                "course notes",
                {
                    "trained": entropy.flatten().tolist(),
                    "sharpest untrained head": base.untrained["normalised entropy"],
                },
                "normalised entropy",
                "every untrained head is 0.9 or more, and half of the trained heads are focused (largest weight 0.8)",
                findings.verdict(base.untrained["normalised entropy"] >= BROAD and 2 * found["focused"] >= len(heads)),
                seeds=[options.seed],
            ),
            Finding(
                "C130",
                "Entropy and effective context may be taken from the average of the heads",
                "course notes",
                {"of the average": context[0], "average of the heads": context[1]},
                "effective context, in words, of four heads that each look at one word",
                "the two differ by less than a tenth",
                findings.verdict(abs(context[0] / context[1] - 1) < 0.1),
            ),
        ],
        options.output_dir,
    )


def main(argv: list[str] | None = None) -> None:
    options = cli.parse(cli.parser(__doc__), argv)
    trained = load_multi_head_model(options)
    sentences = training.corpus()[1][: 100 if options.quick else None]
    scores = measure(trained, sentences, relation_weights=True)
    base = baselines(trained, sentences, count=2 if options.quick else UNTRAINED)
    show(scores, base)
    figure, title = draw(trained, scores, base)
    path = options.output_dir / paths.PLOTS / "phase3" / f"head_roles.{options.format}"
    save_figure(figure, path, caption=f"{title}. A row for each head, a column for each score.")
    record_findings(trained, scores, base, sentences, options)


if __name__ == "__main__":
    cli.run(main)
