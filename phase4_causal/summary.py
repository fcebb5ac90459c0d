"""What do four phases show on one poster?

    1  one head      how does a word choose where to look?
    2  many heads    what do four heads see that one does not?
    3  what they do  what do trained heads look for, although nobody told them?
    4  no future     how does a model write without seeing what comes next?

Every number is computed in this run: from the sentence in the pictures, or from the held-out sentences. A best head is
chosen on half of these and scored on the other half.

    python phase4_causal/summary.py
    python phase4_causal/summary.py --sentence "those dogs slept in a soft bed"

Writes summary_all_phases.png to visualizations/plots/.
"""

import math
import textwrap
from typing import NamedTuple

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure, SubFigure
from matplotlib.patches import Rectangle

from phase1_single_head.self_attention import attention_input, choose_word, load_single_head_model
from phase1_single_head.visualize import bars
from phase2_multi_head.heads.one_or_four_heads import CORE_RELATIONS, Roles, at_least, roles_of
from phase2_multi_head.multi_head_attention import MultiHeadAttention, load_multi_head_model, load_one_layer_model
from phase3_visualization.attention_flow import draw_flow
from phase4_causal.causal_attention import largest_leak, load_causal_model
from phase4_causal.masking.breaking_causality import TESTS, UNIFORM, floor, losses
from phase4_causal.visualize import sharpest_head
from shared import cli, training
from shared.attention_utils import causal_mask
from shared.grammar.scores import DIRECTIONS, best_heads, offset_baselines, relation_name
from shared.toy_language import START, encode
from shared.toy_model import weights_of
from shared.training import Trained, held_out_loss
from shared.visualization_utils import (
    INK,
    QUIET,
    head_color,
    model_note,
    plot_attention,
    plot_heads,
    save_plot,
    weight_colorbar,
)

QUESTIONS = (
    "How does a word choose where to look?",
    "What do four heads see that one does not?",
    "What do they look for?",
    "How to write without a future?",
)
CARD = "#f3f5f7"  # ground of the texts
NUM_TESTED = 200  # held-out sentences for the losses of phase 4
LONG = 8  # words; the arrows of a longer sentence need the whole width


class Models(NamedTuple):
    """One head and four heads in one layer, two layers of four, and the causal model."""

    one: Trained
    four: Trained
    deep: Trained
    causal: Trained


class Scores(NamedTuple):
    """How the heads of three models follow the relations, and how often the best fixed offset does."""

    one: Roles
    four: Roles
    deep: Roles
    offsets: dict[str, float]


@torch.no_grad()
def draw_one_head(part: SubFigure, trained: Trained, words: list[str]) -> str:
    """All weights of the head, and one row of it as scores and as weights; returns the answer in words."""
    attention = trained.model.blocks[0].attention
    weights, x = weights_of(trained.model, words)[0, 0], attention_input(trained.model, words)
    i = choose_word(words)
    query, key = attention.w_q(x)[i], attention.w_k(x)  # (T, d_model) -> (d_k,), (T, d_k)
    scores = (key @ query / math.sqrt(key.size(-1))).cpu()  # (T, d_k) -> (T,)
    j = int(weights[i].argmax())

    matrix, before, after = part.subplots(1, 3, width_ratios=(1.5, 1, 1))
    plot_attention(weights, words, ax=matrix)
    matrix.add_patch(Rectangle((0, i), len(words), 1, fill=False, edgecolor=INK, linewidth=1.6, clip_on=False))
    lowest, highest = min(scores.min().item(), 0), max(scores.max().item(), 0)
    room = 0.45 * (highest - lowest)
    bars(before, scores, f'scores of "{words[i]}": q · k / √d_k', words, (lowest, highest + room))
    bars(after, weights[i], "softmax: weights, sum 1", words, (0, 1.45 * weights[i].max().item()))
    return (
        f'"{words[i]}" compares its query with the key of every word. Softmax turns the scores into weights: '
        f'{weights[i, j]:.2f} for "{words[j]}", where an even share is {1 / len(words):.2f}.'
    )


def role(scores: Scores, head: int) -> str:
    """Title of a head of the one-layer model: the relation it follows best, and what the single head makes of it."""
    margin = {name: scores.four.scores[name][0, head].max().item() - scores.offsets[name] for name in CORE_RELATIONS}
    relation = max(margin, key=lambda name: margin[name])
    accuracy, direction = scores.four.scores[relation][0, head].max(dim=-1)
    if margin[relation] <= 0:
        return "no relation\nan offset does better"
    single = scores.one.chosen[relation]
    return f"{relation_name(relation, DIRECTIONS[int(direction)])} {accuracy:.2f}\none head: {single:.2f}"


def draw_four_heads(part: SubFigure, models: Models, scores: Scores, words: list[str]) -> str:
    """The heads of the one-layer model side by side, each with its relation; returns the answer in words."""
    weights = weights_of(models.four.model, words)[0]  # (1, H, T, T) -> (H, T, T)
    axes = part.subplots(1, len(weights), squeeze=False)[0]
    plot_heads(weights, words, axes=axes, titles=[role(scores, head) for head in range(len(weights))])
    for ax in axes if len(words) > LONG else axes[1:]:
        ax.set(yticks=[], xticks=[] if len(words) > LONG else ax.get_xticks())
    weight_colorbar(part, list(axes), shrink=0.7, aspect=18)
    one, four = scores.one.chosen, scores.four.chosen
    relation = max(CORE_RELATIONS, key=lambda name: four[name] - one[name])
    return (
        f"Both models have one layer, the same size and training. Loss: {held_out_loss(models.one):.2f} with one head, "
        f"{held_out_loss(models.four):.2f} with {len(weights)}. Pairs of {relation.replace('-', ' and ')} found: "
        f"{one[relation]:.2f} by one head, {four[relation]:.2f} by the best of {len(weights)}."
    )


def draw_relations(part: SubFigure, trained: Trained, scores: Scores, words: list[str]) -> str:
    """The head that follows each relation best, as arrows; returns the answer in words."""
    weights = weights_of(trained.model, words)  # (L, H, T, T)
    found = best_heads(scores.deep.scores)
    long = len(words) > LONG
    shape = (len(CORE_RELATIONS), 1) if long else (1, len(CORE_RELATIONS))
    bend = (1.2 if long else 2.6) / (len(words) + 1)  # a row of its own is flat
    for ax, relation in zip(part.subplots(*shape), CORE_RELATIONS, strict=True):
        head = found[relation]
        color = head_color(head.head)
        draw_flow(ax, weights[head.layer, head.head], words, color=color, threshold=2, bend=bend)
        for text in list(ax.texts):
            if text.get_text().isdigit():
                text.remove()  # positions are too small to read here
            elif not long:
                text.set_fontsize(10)
        label = f"{relation_name(relation, head.direction)} {head.accuracy:.2f}"
        ax.set_title(f"{label}{', ' if long else chr(10)}{head.name}", fontsize=9.5, color=color)
    lowest = min(scores.deep.chosen[relation] for relation in CORE_RELATIONS)
    offset = max(scores.offsets[relation] for relation in CORE_RELATIONS)
    return (
        f"Two layers, trained to fill gaps and never told the grammar. The best heads look at the right word "
        f"{at_least(lowest)} of the time or more, a fixed offset {offset:.2f} at most."
    )


def draw_causal(part: SubFigure, trained: Trained, leaks: tuple[float, float], words: list[str]) -> str:
    """The sharpest causal head, what the model loses, and what leaks; returns the answer in words."""
    seen = [START, *words]
    sharpest = sharpest_head(trained, seen)[2]
    held_out = training.corpus()[1][:NUM_TESTED]
    loss, least = losses(trained, held_out), floor(held_out)
    with_mask, without, _ = (loss[test] for test in TESTS)

    grid = part.add_gridspec(2, 2, width_ratios=(1.5, 2), height_ratios=(2, 1))
    plot_attention(sharpest, seen, mask=causal_mask(len(seen)), ax=part.add_subplot(grid[:, 0]))
    names = ["the grammar itself", "with the mask", "mask taken away", "blind guess"]
    tested = torch.tensor([least, with_mask, without, UNIFORM])
    bars(part.add_subplot(grid[0, 1]), tested, "loss, nats per next word", names, (0, 1.2 * tested.max().item()))
    moved, title = torch.tensor(leaks), "later words changed: earlier logits move by"
    bars(part.add_subplot(grid[1, 1]), moved, title, ["with the mask", "no mask"], (0, 1.2 * moved.max().item()))
    return (
        "Later words get the score -inf, so their weight is 0. Change them, and earlier predictions move by "
        f"{'exactly 0' if leaks[0] == 0 else f'{leaks[0]:.1e}'}; without a mask by {leaks[1]:.1f}. "
        f"The price: a loss {with_mask - least:.2f} above that of the grammar itself."
    )


def poster_title(scores: Scores, leak: float) -> tuple[str, str]:
    """The whole finding and its numbers, or a plain title if the heads have not learned enough to say so."""
    one, deep = scores.one.chosen, scores.deep.chosen
    lowest, highest = min(deep[r] for r in CORE_RELATIONS), max(one[r] for r in CORE_RELATIONS)
    found = (
        f"Of a relation's pairs one head finds {highest:.2f} at most, two layers of heads {at_least(lowest)} at least; "
        f"what leaks through the mask: {'exactly 0' if leak == 0 else f'{leak:.1e}'}"
    )
    if lowest < max(0.9, highest + 0.15) or leak > 0:
        return "Attention in four steps", found
    return "Attention learns which words belong together, and a mask hides the future", found


def write_answer(part: SubFigure, number: int, answer: str) -> None:
    """The left side of a band: its number, its question, its measured answer."""
    part.set_facecolor(CARD)
    question = textwrap.fill(QUESTIONS[number - 1], 22)
    part.text(0.05, 0.96, str(number), fontsize=34, weight="bold", color=head_color(0), va="top")
    part.text(0.22, 0.945, question, fontsize=12.8, weight="bold", va="top")
    part.text(0.05, 0.055, textwrap.fill(answer, 35), fontsize=11.3, linespacing=1.35, va="bottom")


def draw(models: Models, scores: Scores, words: list[str]) -> tuple[Figure, str]:
    """Four bands, a phase in each: on the left what is asked and answered, on the right what was seen."""
    tokens = torch.tensor([encode([START, *words])], device=models.causal.model.positions.device)
    leaks = tuple(largest_leak(trained.model, tokens)[0] for trained in (models.causal, models.deep))  # logits move by
    heights = (0.75, 2.75, 2.3, 4.2 if len(words) > LONG else 1.9, 3.0)
    fig = plt.figure(figsize=(11.4, sum(heights) + 0.4), layout="constrained")
    header, *bands = fig.subfigures(5, 1, height_ratios=heights, hspace=0.02)
    texts, pictures = zip(*(band.subfigures(1, 2, width_ratios=(1, 2.35), wspace=0.02) for band in bands), strict=True)
    answers = (
        draw_one_head(pictures[0], models.one, words),
        draw_four_heads(pictures[1], models, scores, words),
        draw_relations(pictures[2], models.deep, scores, words),
        draw_causal(pictures[3], models.causal, leaks, words),
    )
    for number, (text, answer) in enumerate(zip(texts, answers, strict=True), start=1):
        write_answer(text, number, answer)
    lines = poster_title(scores, leaks[0])
    # a hair off the middle: exactly there half a pixel would be rounded now up, now down
    header.text(0.5003, 0.8, lines[0], fontsize=18, weight="bold", ha="center", va="top")
    header.text(0.5003, 0.12, lines[1], fontsize=11.5, color=QUIET, ha="center", va="bottom")
    steps = " · ".join(f"{n}: {model.label}" for n, model in enumerate(models, start=1))
    model_note(fig, f"{steps} · relations and losses: held-out sentences")
    return fig, " ".join([*(f"{line}." for line in lines), *(f"{n}. {a}" for n, a in enumerate(answers, start=1))])


def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    loaders = (load_single_head_model, load_one_layer_model, load_multi_head_model, load_causal_model)
    models = Models(*(load(options) for load in loaders))
    scores = Scores(*map(roles_of, models[:3]), offset_baselines(training.corpus()[1]))
    save_plot(options, "summary_all_phases", *draw(models, scores, options.words))
    fresh = roles_of(training.untrained(models.deep.recipe, MultiHeadAttention, options.device))
    least, most = min(scores.deep.chosen.values()), max(fresh.chosen.values())
    return f"The best heads find {at_least(least)} or more of each relation; untrained ones {most:.2f} at most"


if __name__ == "__main__":
    cli.run(main)
